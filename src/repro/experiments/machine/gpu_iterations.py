"""Measured iterations of this machine's GPU, and of the operators with which they are replayed."""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import torch
import xarray as xr
from torch.profiler import ProfilerActivity
from tqdm import tqdm

from repro.catalog.studies.gpu import GpuIterations
from repro.experiments.machine.iterations import Case, iteration_dataset, operator_points
from repro.experiments.machine.on_gpu import attributes, possible
from repro.experiments.runs import gpu_run
from repro.logs.operator_trace import read_gpu_trace
from repro.observe.operator_trace import trace_of
from repro.predict.operators.trace_replay import FEWER, JUDGED
from repro.train.dlrm import Batch, Dlrm, Lookups
from repro.train.gpu_operators import call_s
from repro.train.records import TrainingRun

_DEVICE = "cuda"
_DLRM, _DLRM_PRECISION = "dlrm", "fp32"
# Set of tables from which the host's time is fitted; its prediction is not judged.
_OTHER_TABLES = 99


def measure_gpu_iterations(asked: GpuIterations, corpus: Path, split: str) -> xr.Dataset:
    """Measure iterations of the papers' models and of DLRMs, and their operators.

    Returns
    -------
    Dataset
        By `repro.experiments.machine.iterations.iteration_dataset`. The attribute `not_run` has the
        cases without enough memory or without a capture, with the reasons.

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
    for point in tqdm(operator_points(asked, cases), desc="operators"):
        operator, precisions, sizes = point
        turns_bytes = asked.rotation_bytes(operator)
        work = partial(call_s, operator, precisions, sizes, turns_bytes, asked.repeats)
        name = " ".join((operator, *precisions))
        if found := possible(work, f"{name} {sizes}", reasons):
            times[point] = found
    title = "Iterations of a GPU, timed again from its operators"
    return iteration_dataset(cases, times).assign_attrs(attributes(title, asked, reasons))


def _cases(
    asked: GpuIterations, corpus: Path, split: str
) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield every requested case: its name, and the function that measures it."""
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
    """Measure iterations of one of the papers' models."""
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
    times_s, parts_s = times_s[kept], parts_s[kept]
    return Case(name, run.micro_batch_size, role, times_s, calls, parts_s=parts_s)


def _recommending(asked: GpuIterations, number: int, samples: int, role: str) -> Case:
    """Measure iterations of a DLRM with one set of tables."""
    shape = asked.dlrm.model_copy(update={"batch": samples})
    tables = asked.tables.draw(number)
    with torch.device(_DEVICE):
        model = Dlrm(shape, tables)
    step = partial(model.iterate, _on_gpu(model.batch(number)))
    times_s = [_seconds(step) for _ in range(asked.warmup + asked.iterations)]
    calls = read_gpu_trace(trace_of(step, ProfilerActivity.CUDA), _DLRM_PRECISION, 0)
    return Case(_DLRM, samples, role, times_s[asked.warmup :], calls, number)


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
