"""Measure iterations on this machine's GPU, and the operators that they are timed again from."""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch.profiler import ProfilerActivity
from tqdm import tqdm

from repro.catalog.models.dlrm import PLANS, plan_shards
from repro.catalog.studies.gpu import GpuIterations
from repro.catalog.studies.operator_benchmarks import Sizes
from repro.experiments.machine.on_gpu import attributes, possible
from repro.experiments.machine.operator_cases import padded
from repro.experiments.runs import gpu_run
from repro.logs.gpu_trace import PARTS, GpuCall, read_gpu_trace
from repro.observe.operator_trace import trace_of
from repro.predict.operators.trace_replay import FEWER, JUDGED
from repro.train.dlrm import Batch, Dlrm, Lookups
from repro.train.gpu_operators import call_s
from repro.train.records import TrainingRun

_DEVICE = "cuda"
_DLRM, _DLRM_PRECISION = "dlrm", "fp32"
# The set of tables that tells the host's time, and is not judged.
_OTHER_TABLES = 99
# One call: its operator, precisions and sizes.
_Point = tuple[str, tuple[str, ...], Sizes]


@dataclass(frozen=True)
class Case:
    """An iteration: its times, and what it launches.

    `samples` are the micro batch; `tables` is the number of a random set. `parts_s` (iteration,
    part) are of `PARTS`, none where only the whole is known.
    """

    model: str
    samples: int
    tables: int
    role: str
    times_s: list[float]
    parts_s: list[list[float]]
    calls: list[GpuCall]


def measure_gpu_iterations(asked: GpuIterations, corpus: Path, split: str) -> xr.Dataset:
    """Iterations of the papers' models and of DLRMs, and the operators that they consist of.

    Returns
    -------
    Dataset
        `iteration_time_s` (case, iteration) and `part_time_s` (case, iteration, part), NaN of
        DLRMs; `benchmark_time_s` (benchmark, repeat) of operators at `benchmark_size`; and every
        case's `call`s in the order of the host. Both have the number of their name, with
        precisions, in `operator`. The attribute `not_run` has what had no memory, or
        could not be captured, and why.

    Raises
    ------
    ReproError
        The corpus is missing.
    """
    reasons: dict[str, str] = {}
    cases = []
    for what, measure in tqdm(list(_cases(asked, corpus, split)), desc="iterations"):
        if case := possible(measure, what, reasons):
            cases.append(case)
        gc.collect()
        torch.cuda.empty_cache()
    times = {}
    for operator, precisions, sizes in tqdm(_points(asked, cases), desc="operators"):
        turns_bytes = asked.rotation_bytes(operator)
        work = partial(call_s, operator, precisions, sizes, turns_bytes, asked.repeats)
        name = " ".join((operator, *precisions))
        if found := possible(work, f"{name} {sizes}", reasons):
            times[name, sizes] = found
    title = "Iterations of a GPU, timed again from its operators"
    return _dataset(cases, times).assign_attrs(attributes(title, asked, reasons))


def _cases(
    asked: GpuIterations, corpus: Path, split: str
) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Everything that is asked: what it is, and what measures it."""
    for name, samples in product(asked.models, asked.micro_batches):
        role = FEWER if samples == asked.micro_batches[0] else JUDGED
        run = gpu_run(name, asked.precision, samples, asked.warmup, asked.iterations, corpus, split)
        yield f"{name} {samples}", partial(_trained, name, run, role)
    fewest, *others = asked.samples
    yield f"{_DLRM} {fewest}", partial(_recommending, asked, _OTHER_TABLES, fewest, FEWER)
    for number, samples in product(range(asked.table_sets), others):
        yield (
            f"{_DLRM} {number} {samples}",
            partial(_recommending, asked, number, samples, JUDGED),
        )


def _trained(name: str, run: TrainingRun, role: str) -> Case:
    """Iterations of one of the papers' models."""
    from repro.train.megatron.groups import alone
    from repro.train.phases import read_phases
    from repro.train.run import iterate
    from repro.train.training import set_up

    times_s, parts_s = [], []
    with alone(), tempfile.TemporaryDirectory() as scratch:
        state = set_up(run, Path(scratch))
        for _ in range(run.warmup + run.iterations):
            batches = [next(state.training)]
            times_s.append(_seconds(partial(iterate, state, batches)))
            phases, _ = read_phases(state.timers, times_s[-1])
            behind_s = phases["optimizer"] + phases["gradient sync"] + phases["straggler wait"]
            backward_s = phases["backward compute"]
            parts_s.append([times_s[-1] - backward_s - behind_s, backward_s, behind_s])
        text = trace_of(partial(iterate, state, batches), ProfilerActivity.CUDA)
        parameters = sum(one.numel() for one in state.module.parameters())
    calls = read_gpu_trace(text, run.precision, parameters)
    kept = slice(run.warmup, None)
    return Case(name, run.micro_batch_size, 0, role, times_s[kept], parts_s[kept], calls)


def _recommending(asked: GpuIterations, number: int, samples: int, role: str) -> Case:
    """Iterations of a DLRM with one set of tables."""
    shape = asked.dlrm.model_copy(update={"batch": samples})
    tables = asked.tables.draw(number)
    shards = plan_shards(next(iter(PLANS)), tables, shape.width, 1)
    with torch.device(_DEVICE):
        model = Dlrm(shape, tables, shards)
    step = partial(model.iterate, _on_gpu(model.batch(number)))
    times_s = [_seconds(step) for _ in range(asked.warmup + asked.iterations)]
    calls = read_gpu_trace(trace_of(step, ProfilerActivity.CUDA), _DLRM_PRECISION, 0)
    return Case(_DLRM, samples, number, role, times_s[asked.warmup :], [], calls)


def _on_gpu(batch: Batch) -> Batch:
    lookups = [
        Lookups(one.rows.to(_DEVICE), one.offsets.to(_DEVICE), one.samples.to(_DEVICE))
        for one in batch.lookups
    ]
    return Batch(batch.dense.to(_DEVICE), batch.clicked.to(_DEVICE), tuple(lookups))


def _seconds(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.monotonic()
    step()
    torch.cuda.synchronize()
    return time.monotonic() - start


def _points(asked: GpuIterations, cases: Sequence[Case]) -> list[_Point]:
    """Sizes of their own at which operators of these iterations are measured."""
    wanted = dict.fromkeys(
        (one.operator, one.precisions) for case in cases for one in case.calls if one.sizes
    )
    return [
        (operator, precisions, sizes)
        for operator, precisions in wanted
        for sizes in product(*asked.grid(operator, precisions[0]))
    ]


def _dataset(cases: list[Case], times: dict[tuple[str, Sizes], list[float]]) -> xr.Dataset:
    calls = [(number, one) for number, case in enumerate(cases) for one in case.calls]
    names = [" ".join((one.operator, *one.precisions)) for _, one in calls]
    operators, numbers = np.unique([*names, *(name for name, _ in times)], return_inverse=True)
    iterations = max(len(case.times_s) for case in cases)
    unknown = np.full((iterations, len(PARTS)), np.nan)
    parts_s = np.array([case.parts_s or unknown for case in cases])
    variables: dict[str, Any] = {
        "iteration_time_s": (
            ("case", "iteration"),
            np.array([case.times_s for case in cases]),
            {"long_name": "iteration time", "units": "s"},
        ),
        "part_time_s": (
            ("case", "iteration", "part"),
            parts_s,
            {"long_name": "time of a part of an iteration", "units": "s"},
        ),
        "benchmark_operator": ("benchmark", numbers[len(calls) :].astype(np.int16)),
        "benchmark_size": (("benchmark", "axis"), padded([sizes for _, sizes in times])),
        "benchmark_time_s": (
            ("benchmark", "repeat"),
            np.array(list(times.values())),
            {"long_name": "time of a call", "units": "s"},
        ),
        "call_case": ("call", np.array([number for number, _ in calls], dtype=np.int16)),
        "call_part": ("call", np.array([PARTS.index(one.part) for _, one in calls], np.int8)),
        "call_operator": ("call", numbers[: len(calls)].astype(np.int16)),
        "call_size": (("call", "axis"), padded([one.sizes for _, one in calls])),
        "call_launches": ("call", np.array([one.launches for _, one in calls], np.int16)),
        "call_busy_s": (
            "call",
            np.array([one.busy_s for _, one in calls], np.float32),
            {"long_name": "time on the GPU in the trace", "units": "s"},
        ),
    }
    for name in ("model", "samples", "tables", "role"):
        variables[f"case_{name}"] = ("case", np.array([getattr(case, name) for case in cases]))
    return xr.Dataset(variables, {"part": list(PARTS), "operator": operators})
