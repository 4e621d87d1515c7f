"""Times of operators on this machine's GPU, without the launch time of the host.

Calls are captured as a CUDA graph, whose replays are timed by events. Calls rotate through sets of
operands that exceed the caches, as weights and activations of a model do.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any, Literal

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from repro.catalog.studies.operator_benchmarks import Sizes
from repro.train.decoding import scaled_product
from repro.train.megatron.models import DTYPES
from repro.train.operators import prepared

Kind = Literal["gemm", "attention_prefill", "attention_decode", "addition"]
Work = Callable[[], object]
# Bytes of rotating operands, where caches of today's GPUs are 40 to 126 MB; the most sets of them.
_TURNS_BYTES, _MOST_SETS = 3e8, 32
# Least time of a replay, and the most calls in it.
_SHORTEST_S, _MOST_CALLS = 1e-3, 200
# Time of a replay without a pause: short enough to see clocks fall, longer than reading them takes.
_SUSTAINED_S = 2e-2
_Events = tuple[torch.cuda.Event, torch.cuda.Event]
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def operator_s(kind: Kind, variant: str, sizes: Sequence[int], repeats: int) -> list[float]:
    """Measure the seconds of one call in each replay.

    Parameters
    ----------
    kind, sizes
        `gemm` (m, n, k), as a linear layer multiplies: (m, k) and the transpose of (n, k);
        `attention_prefill` (batch, tokens, heads, heads of keys, width), causal;
        `attention_decode` (batch, cached tokens, heads, heads of keys, width), for one token;
        `addition` (bytes,) that are read and written.
    variant
        `bf16` or `fp8` for matmuls, a name in `BACKENDS` for attention, `bf16` for additions.

    Raises
    ------
    RuntimeError
        Torch has no such kernel.
    """
    make, call = _prepared(kind, variant, sizes)
    with sdpa_kernel(BACKENDS[variant]) if variant in BACKENDS else torch.no_grad():
        return _in_turns_s(make, call, _TURNS_BYTES, repeats)


@dataclass(frozen=True)
class Sustained:
    """Replays without a pause, in lists of one length.

    `at_s` is the end of each after the start of the first, `call_s` the time of one of its calls.
    `power_w` and `clock_mhz` are the GPU's power and clock meanwhile.
    """

    at_s: list[float]
    call_s: list[float]
    power_w: list[float]
    clock_mhz: list[float]


def sustained(variant: str, sizes: Sequence[int], seconds: float, rest_s: float) -> Sustained:
    """Measure matmuls for so many seconds after a rest; arguments are those of `operator_s`."""
    make, call = _prepared("gemm", variant, sizes)
    with torch.no_grad():
        first = make()
        once_s = eager_s(lambda: call(*first), 1)[0]
        sets = [first, *(make() for _ in range(3))]
        count = int(_SUSTAINED_S / once_s) + 1
        graph = _captured([partial(call, *given) for given in islice(cycle(sets), count)])
    found = Sustained([], [], [], [])
    torch.cuda.synchronize()
    time.sleep(rest_s)
    start = time.perf_counter()
    running: _Events | None = _begun(graph)
    while running:
        begin, end = running
        # One more replay is queued after the running one.
        running = _begun(graph) if time.perf_counter() < start + seconds else None
        found.power_w.append(torch.cuda.power_draw() / 1e3)
        found.clock_mhz.append(float(torch.cuda.clock_rate()))
        end.synchronize()
        found.call_s.append(begin.elapsed_time(end) / 1e3 / count)
        found.at_s.append(time.perf_counter() - start)
    return found


def _begun(graph: torch.cuda.CUDAGraph) -> _Events:
    begin, end = _event(), _event()
    begin.record()
    graph.replay()
    end.record()
    return begin, end


@torch.no_grad()
def call_s(
    operator: str, precisions: Sequence[str], sizes: Sizes, turns_bytes: float, repeats: int
) -> list[float]:
    """Measure the seconds of one call of an operator of `operator_benchmarks` in each replay.

    Operands have these precisions, and rotate in `turns_bytes` bytes.

    Raises
    ------
    RuntimeError
        The GPU lacks memory for the operator, or the operator cannot be captured.
    """
    with _on_gpu_in(precisions[0]):
        make, call = prepared(operator, sizes, turns_bytes)

        def typed() -> tuple[Any, ...]:
            operands = make()
            if "product" in operator:
                # A GPU multiplies ones in less time than other numbers.
                return tuple(one.normal_() for one in operands)
            given = [
                one.to(DTYPES[name])
                for one, name in zip(operands, precisions, strict=False)
                if isinstance(one, torch.Tensor) and one.is_floating_point()
            ]
            return (*given, *operands[len(given) :])

        return _in_turns_s(typed, call, turns_bytes, repeats)


@contextmanager
def _on_gpu_in(precision: str) -> Iterator[None]:
    """Create tensors on the GPU and in this precision by default, within this scope."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[precision])
    try:
        with torch.device("cuda"):
            yield
    finally:
        torch.set_default_dtype(before)


def _in_turns_s(
    make: Callable[[], tuple[Any, ...]],
    call: Callable[..., object],
    turns_bytes: float,
    repeats: int,
) -> list[float]:
    """Measure the seconds of one call in each replay of enough calls, on rotating operands."""
    first = make()
    count = min(_MOST_SETS, int(turns_bytes // max(1, _nbytes(first))))
    sets = [first, *(make() for _ in range(count - 1))]
    once_s = eager_s(lambda: call(*first), 1)[0]
    calls = min(max(len(sets), int(_SHORTEST_S / once_s)), _MOST_CALLS)
    works = [partial(call, *operands) for operands in islice(cycle(sets), calls)]
    return [replay / calls for replay in replays_s(works, repeats)]


def _nbytes(values: Iterable[object]) -> int:
    """Return the bytes of tensors, also of those in tuples."""
    return sum(
        one.nbytes if isinstance(one, torch.Tensor) else _nbytes(one)
        for one in values
        if isinstance(one, torch.Tensor | tuple)
    )


def replays_s(works: Sequence[Work], repeats: int) -> list[float]:
    """Measure the seconds of each replay of a graph that runs all works one after the other."""
    return eager_s(_captured(works).replay, repeats)


def _captured(works: Sequence[Work]) -> torch.cuda.CUDAGraph:
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        # Libraries choose and load their kernels.
        works[0]()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in works:
            work()
    return graph


def eager_s(work: Work, repeats: int) -> list[float]:
    """Measure the seconds of some work on the GPU, repeatedly after a warm-up."""
    work()
    times = []
    for _ in range(repeats):
        begin, end = _event(), _event()
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return times


def kernels(work: Work) -> list[tuple[str, float]]:
    """Return the names and seconds of some work's kernels after a warm-up, by torch's profiler."""
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    return [
        (event.name, event.time_range.elapsed_us() / 1e6)
        for event in profile.events()
        if "CUDA" in str(event.device_type)
    ]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


Made = tuple[Callable[[], tuple[torch.Tensor, ...]], Callable[..., object]]


def _prepared(kind: Kind, variant: str, sizes: Sequence[int]) -> Made:
    """Return the function that makes a set of operands, and the call."""
    if kind == "addition":
        elements = sizes[0] // 6
        return (
            lambda: (_normal(elements), _normal(elements), _normal(elements)),
            lambda one, other, result: torch.add(one, other, out=result),
        )
    if kind == "gemm":
        m, n, k = sizes
        if variant == "bf16":
            return lambda: (_normal(m, k), _normal(n, k)), functional.linear
        return (
            lambda: (_eighth(m, k), _eighth(n, k), torch.ones((), device="cuda")),
            lambda rows, weight, one: scaled_product(rows, weight, one, one),
        )
    batch, tokens, heads, kv_heads, width = sizes
    if kind == "attention_prefill":
        queries, keys = (batch, heads, tokens, width), (batch, kv_heads, tokens, width)
    else:
        # Queries that share keys are rows of one matmul, which reads the keys once.
        queries, keys = (
            (batch, kv_heads, heads // kv_heads, width),
            (batch, kv_heads, tokens, width),
        )
    causal = kind == "attention_prefill"
    return (
        lambda: (_normal(*queries), _normal(*keys), _normal(*keys)),
        lambda q, k, v: functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        ),
    )


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def _eighth(*shape: int) -> torch.Tensor:
    return _normal(*shape).to(torch.float8_e4m3fn)
