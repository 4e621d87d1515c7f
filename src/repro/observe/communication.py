"""A log of all collectives and messages of this process, taken where c10d dispatches them.

The functions of torch.distributed, a process group's own methods and torch's functional
collectives all end in the operators `c10d::*`. While a log is open, these have a kernel in front of
their own that notes each call and hands it on; backends, Megatron-Core and callers stay as they
are, and no other operator is slowed. A call is over when its `Work.wait` returns.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from repro.observe.transfers import MESSAGES, Transfer, role_of

# c10d's operators, and what they are.
_OPERATIONS = {
    **dict.fromkeys(("allreduce_", "allreduce_coalesced_"), "all_reduce"),
    **dict.fromkeys(("allgather_", "_allgather_base_", "allgather_coalesced_"), "all_gather"),
    "allgather_into_tensor_coalesced_": "all_gather",
    **dict.fromkeys(("reduce_scatter_", "_reduce_scatter_base_"), "reduce_scatter"),
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    **dict.fromkeys(("alltoall_", "alltoall_base_"), "all_to_all"),
    **{f"{name}_": name for name in ("broadcast", "reduce", "gather", "scatter")},
    **{"send": "send", "recv_": "recv", "recv_any_source_": "recv", "barrier": "barrier"},
}
# The dispatcher's key that all calls pass, on every device and below autograd; these operators have
# no kernel there.
_KEY = "BackendSelect"
# On a GPU a moment is an event, whose time is known when the device has come to it.
_Moment = float | torch.cuda.Event
_Kernel = Callable[[], Any]
_in_use: "CommunicationLog | None" = None


@dataclass(slots=True)
class _Call:
    operation: str
    group: dist.ProcessGroup
    size_bytes: int
    dtype: torch.dtype
    phase: str
    asynchronous: bool
    peer: int
    on_gpu: bool
    start: _Moment
    end: _Moment = math.nan


@dataclass(frozen=True, slots=True)
class _Operator:
    """An operator of c10d and where its arguments are: first tensors (out of place there are two,
    each a tensor or lists of them), behind them the group; None where there is no such argument."""

    operation: str
    tensors: int
    peer: int | None
    asynchronous: int | None


class CommunicationLog:
    """What this process calls in groups of more than one rank, while `logging` has it.

    Parameters
    ----------
    phase
        Says in which phase of the iteration the process is.
    """

    def __init__(self, phase: Callable[[], str]) -> None:
        self._phase = phase
        self._calls: list[_Call] = []
        self._unfinished: dict[dist.Work, _Call] = {}
        self._within = False

    def take(self, iteration: int) -> list[Transfer]:
        """What was called since the last time, as of `iteration`; the log is empty then."""
        seconds = _clock(any(call.on_gpu for call in self._calls))
        found = [
            Transfer(
                iteration,
                call.operation,
                role_of(call.group.group_desc, call.operation),
                tuple(dist.get_process_group_ranks(call.group)),
                call.size_bytes,
                str(call.dtype).removeprefix("torch."),
                call.phase,
                call.asynchronous,
                call.peer,
                seconds(call.start),
                seconds(call.end),
            )
            for call in self._calls
        ]
        self._calls, self._unfinished = [], {}
        return found

    @contextmanager
    def one_call(
        self, operation: str, group: dist.ProcessGroup, whole: torch.Tensor
    ) -> Iterator[None]:
        """Note everything inside as one call."""
        call = self._begin(operation, group, whole.nbytes, whole)
        self._within = True
        try:
            yield
        finally:
            self._within = False
        call.end = _now(call.on_gpu)

    def dispatched(self, operator: _Operator, arguments: tuple[Any, ...], hand_on: _Kernel) -> Any:
        """Hand a call of an operator of c10d on, and note it."""
        group = dist.ProcessGroup.unbox(arguments[operator.tensors])
        if self._within or group.size() == 1:
            return hand_on()
        size_bytes, first = 0, None
        for side in arguments[: operator.tensors]:
            flat = _flat(side)
            side_bytes = flat[0].nbytes if len(flat) == 1 else sum([one.nbytes for one in flat])
            size_bytes = max(size_bytes, side_bytes)
            first = flat[0] if first is None and flat else first
        assert first is not None
        call = self._begin(operator.operation, group, size_bytes, first)
        if operator.operation == "barrier":
            call.size_bytes = 0
        if operator.peer is not None:
            call.peer = dist.get_global_rank(group, arguments[operator.peer])
        # The operators' default is left out; messages are requests, which have no such word.
        at = operator.asynchronous
        call.asynchronous = at is None or at >= len(arguments) or arguments[at]
        result = hand_on()
        work = result[-1] if isinstance(result, tuple) else result
        self._unfinished[dist.Work.unbox(work)] = call
        return result

    def waited(self, work: dist.Work) -> None:
        """The caller has waited for a work; one that is unknown ends a batch of messages."""
        if call := self._unfinished.pop(work, None):
            call.end = _now(call.on_gpu)
            return
        for one in self._unfinished.values():
            if one.operation in MESSAGES:
                one.end = _now(one.on_gpu)

    def _begin(
        self, operation: str, group: dist.ProcessGroup, size_bytes: int, tensor: torch.Tensor
    ) -> _Call:
        gpu, kind = tensor.is_cuda, tensor.dtype
        call = _Call(operation, group, size_bytes, kind, self._phase(), False, -1, gpu, _now(gpu))
        self._calls.append(call)
        return call


@contextmanager
def logging(log: CommunicationLog) -> Iterator[None]:
    """Note what this process communicates in `log`."""
    global _in_use
    wait = dist.Work.wait

    def noted_wait(work: dist.Work, *arguments: Any, **options: Any) -> Any:
        result = wait(work, *arguments, **options)
        log.waited(work)
        return result

    with torch.library._scoped_library("c10d", "IMPL") as library:
        for name in _OPERATIONS:
            library.impl(name, _noting_kernel(log, name), _KEY, with_keyset=True)
        with mock.patch.object(dist.Work, "wait", noted_wait):
            _in_use = log
            try:
                yield
            finally:
                _in_use = None


def logged_as(operation: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a collective that is made of messages, `collective(output, input, ..., group=...)`,
    noted as the one call that it stands for."""

    def decorate(collective: Callable[..., None]) -> Callable[..., None]:
        @wraps(collective)
        def call(
            output: torch.Tensor,
            input: torch.Tensor,
            *arguments: Any,
            group: dist.ProcessGroup | None = None,
            **options: Any,
        ) -> None:
            ring = group or dist.group.WORLD
            if _in_use is None or ring is None or ring.size() == 1:
                collective(output, input, *arguments, group=group, **options)
                return
            whole = max(output, input, key=torch.Tensor.numel)
            with _in_use.one_call(operation, ring, whole):
                collective(output, input, *arguments, group=group, **options)

        return call

    return decorate


def _noting_kernel(log: CommunicationLog, name: str) -> Callable[..., Any]:
    """What stands in front of c10d's own kernels of an operator."""
    operator = getattr(torch.ops.c10d, name).default
    at = {one.name: number for number, one in enumerate(operator._schema.arguments)}
    known = _Operator(
        _OPERATIONS[name],
        at["process_group"],
        at.get("dst", at.get("src")),
        at.get("async_op"),
    )
    below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, _KEY))

    # None of them has an argument that goes by name only.
    def kernel(keys: Any, *arguments: Any) -> Any:
        return log.dispatched(
            known, arguments, lambda: operator.redispatch(keys & below, *arguments)
        )

    return kernel


def _flat(side: Any) -> list[torch.Tensor]:
    if isinstance(side, torch.Tensor):
        return [side]
    if all([isinstance(part, torch.Tensor) for part in side]):
        return list(side)
    return [tensor for part in side for tensor in _flat(part)]


def _now(on_gpu: bool) -> _Moment:
    return _event() if on_gpu else time.monotonic()


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _clock(on_gpu: bool) -> Callable[[_Moment], float]:
    """Turns moments into seconds, events by one that is recorded now, when all are over."""
    if not on_gpu:
        return lambda moment: moment if isinstance(moment, float) else math.nan
    torch.cuda.synchronize()
    anchor = _event()
    anchor.synchronize()
    at_s = time.monotonic()
    return lambda moment: (
        moment if isinstance(moment, float) else at_s - moment.elapsed_time(anchor) * 1e-3
    )
