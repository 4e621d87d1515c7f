"""Measure single operators on this machine, and iterations that are timed again from them."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import xarray as xr
from pandas.api.types import is_numeric_dtype
from tqdm import tqdm

from repro.catalog.dlrm import PLANS, DlrmShape, Table, plan_shards
from repro.catalog.experiments import Profile
from repro.catalog.models import Shape
from repro.catalog.operator_calls import COLLECTIVES, Sizes
from repro.catalog.operator_study import OperatorStudy, read_operator_study
from repro.corpus.config import read_corpus_config
from repro.experiments.own_ranks import run_ranks
from repro.experiments.runs import testbed_run
from repro.logs.operator_trace import TracedOperator, read_operator_trace
from repro.observe.environment import provenance
from repro.observe.nic import FloatArray
from repro.paths import ENWIKI, PARAMS
from repro.predict.operators.retimed import JUDGED, SMALLEST
from repro.train.records import TrainingRun

_Seconds = TypeVar("_Seconds", float, list[float])
# Loads a batch, and returns the iteration on it, which returns its seconds.
_Load = Callable[[], Callable[[], float]]
_MODEL = "dlrm"
_AXES = 4
_DESCRIBED = ("model", "role", "tables", "plan")
# Of one size in a repeat.
_CALLS = 7
_UNITS = {
    "operator_time_s": ("CPU time of a call, of collectives time", "s"),
    "iteration_time_s": ("iteration time, of ranks that have a core each", "s"),
    "call_traced_s": ("time of all calls in the trace, with the profiler's own", "s"),
}


@dataclass(frozen=True)
class Case:
    """One iteration: medians of each repeat, and operators by rank.

    `role` is whether it is judged or the smallest of its model; `tables` the number of a random
    set.
    """

    model: str
    role: str
    time_s: list[float]
    operators: list[list[TracedOperator]]
    tables: int = 0
    plan: str = ""


@dataclass(frozen=True)
class Found:
    """What a set of ranks measured: operators' times by repeat, and iterations."""

    operators: dict[tuple[str, Sizes], list[float]]
    cases: list[Case]


@dataclass(frozen=True)
class Sharded:
    """What one of several ranks measured: collectives (repeat, call) by name and bytes; of each set
    of tables and plan its laps (repeat, iteration, lap), which are passes and then collectives, and
    its operators."""

    collectives: dict[tuple[str, int], FloatArray]
    plans: dict[tuple[int, str], tuple[FloatArray, list[TracedOperator]]]


def measure_operators(profile_name: str) -> xr.Dataset:
    """Measure everything of `params/operator_study.yaml`.

    Returns
    -------
    Dataset
        `operator_time_s` (benchmark, repeat) at `operator_size`; `iteration_time_s` (case, repeat);
        and the `call`s of each case's trace. `docs/quantities.md` defines them.

    Raises
    ------
    ReproError
        A rank failed, the corpus is missing, or the profile is unknown.
    """
    study = read_operator_study()
    profile = study.profile(profile_name)
    found = run_ranks("operators", 1, _alone, profile_name)
    for ranks in tqdm(profile.ranks, desc="sharded tables", unit="set of ranks"):
        found.append(_together(run_ranks("sharded tables", ranks, _sharded, profile_name)))
    return _dataset(found).assign_attrs(
        title="Operators of this machine, and iterations timed again from them",
        source="testbed",
        profile=profile_name,
        provenance=provenance(study.model_dump(mode="json")),
    )


def _alone(rank: int, ranks: int, port: int, profile_name: str) -> Found:
    """On one rank: all operators, then the iterations of all models, in turns."""
    from repro.observe.operator_trace import trace_of
    from repro.train.groups import join_groups
    from repro.train.operators import operator_s
    from repro.train.run import device_scope

    study = read_operator_study()
    profile = study.profile(profile_name)
    points = [(name, sizes) for name, axes in profile.grids().items() for sizes in product(*axes)]
    operators: dict[tuple[str, Sizes], list[float]] = {point: [] for point in points}
    times: dict[tuple[str, str], list[float]] = {}
    with device_scope():
        join_groups(rank, ranks, "127.0.0.1", port)
    with tempfile.TemporaryDirectory() as scratch:
        loads = dict(_loads(study, Path(scratch)))
        for repeat in range(profile.repeats):
            for point in tqdm(points, desc=f"operators, repeat {repeat + 1}", leave=False):
                operators[point].append(operator_s(*point, study.working_set_bytes))
            for key, load in loads.items():
                taken = _iterated(partial(_run, load), profile.iterations)
                times.setdefault(key, []).append(float(np.median(taken)))
        texts = {key: trace_of(load()) for key, load in loads.items()}
    cases = [
        Case(model, role, times[model, role], [read_operator_trace(text)])
        for (model, role), text in texts.items()
    ]
    return Found(operators, cases)


def _run(load: _Load) -> float:
    return load()()


def _loads(study: OperatorStudy, scratch: Path) -> Iterator[tuple[tuple[str, str], _Load]]:
    """Iterations of each model and of its smallest shape."""
    from repro.train.dlrm import Dlrm, laps_s
    from repro.train.run import device_scope
    from repro.train.timed import loading
    from repro.train.training import set_up

    alone = Profile(models=(), gpus=(1,), warmup=1, iterations=1)
    split = read_corpus_config(PARAMS / "corpus.yaml").split
    for name in study.models:
        run = testbed_run(name, alone, ENWIKI, split, micro_batch_size=study.micro_batch_size)
        for role, one in ((SMALLEST, _smallest(run)), (JUDGED, run)):
            with device_scope():
                state = set_up(one, scratch)
            yield (name, role), loading(state)
    tables = (Table(10, 1),) * study.tables.count[0]
    bottom, top = (1,) * len(study.dlrm.bottom), (1,) * len(study.dlrm.top)
    shape = DlrmShape(dense=1, width=1, bottom=bottom, top=top, batch=1)
    model = Dlrm(shape, tables, plan_shards("row-wise", tables, 1, 1))
    batch = model.batch(0)
    yield (_MODEL, SMALLEST), lambda: lambda: sum(laps_s(model, batch))


def _smallest(run: TrainingRun) -> TrainingRun:
    """One sequence through the narrowest layers: operators take what calling them takes."""
    shape = run.shape
    assert isinstance(shape, Shape)
    hidden = 4 * shape.attention_heads
    narrow = {"hidden_size": hidden, "ffn_hidden_size": 4 * hidden}
    return replace(run, micro_batch_size=1, shape=shape.model_copy(update=narrow))


def _sharded(rank: int, ranks: int, port: int, profile_name: str) -> Sharded:
    """On each of several ranks: collectives, and every plan of each set of tables, in turns."""
    import torch.distributed as dist

    from repro.observe.operator_trace import trace_of
    from repro.train.dlrm import Dlrm, laps_s
    from repro.train.operators import collective_s

    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    study = read_operator_study()
    profile = study.profile(profile_name)
    collectives = {
        (name, size): np.array([collective_s(name, size, _CALLS) for _ in range(profile.repeats)])
        for name, size in product(COLLECTIVES.values(), profile.bytes)
    }
    plans = {}
    for number in range(profile.table_sets):
        # Other tables on each number of ranks.
        tables = study.tables.draw(100 * ranks + number)
        steps, laps = {}, {}
        for plan in PLANS:
            shards = plan_shards(plan, tables, study.dlrm.width, ranks)
            model = Dlrm(study.dlrm, tables, shards, rank, ranks)
            steps[plan] = partial(laps_s, model, model.batch(number))
            laps[plan] = [_iterated(steps[plan], profile.iterations)]
        for _ in range(profile.repeats - 1):
            for plan, step in steps.items():
                laps[plan].append(_iterated(step, profile.iterations))
        for plan, step in steps.items():
            operators = read_operator_trace(trace_of(step), ranks)
            plans[number, plan] = np.array(laps[plan]), operators
    return Sharded(collectives, plans)


def _iterated(step: Callable[[], _Seconds], iterations: int) -> list[_Seconds]:
    """Iterations behind one that finds caches as another model left them."""
    step()
    return [step() for _ in range(iterations)]


def _together(answers: list[Sharded]) -> Found:
    """Several ranks' measurements as one, as if each had a core of its own.

    A pass takes the CPU time of the rank that needs most, in the median of iterations. A collective
    begins when the last rank comes, for which it is shortest; other work only prolongs it, so that
    of several the shortest counts.
    """
    from repro.train.dlrm import PASSES

    operators: dict[tuple[str, Sizes], list[float]] = {}
    for name, size in answers[0].collectives:
        times = np.array([one.collectives[name, size] for one in answers])
        operators[name, (len(answers), size)] = times.min(axis=(0, 2)).tolist()
    cases = []
    for number, plan in answers[0].plans:
        of_ranks = [one.plans[number, plan] for one in answers]
        laps = np.array([laps for laps, _ in of_ranks])
        passes_s = np.median(laps[..., :PASSES].max(axis=0), axis=1).sum(axis=-1)
        collectives_s = laps[..., PASSES:].min(axis=(0, 2)).sum(axis=-1)
        rows = [rows for _, rows in of_ranks]
        cases.append(Case(_MODEL, JUDGED, (passes_s + collectives_s).tolist(), rows, number, plan))
    return Found(operators, cases)


def _dataset(found: list[Found]) -> xr.Dataset:
    points = [point for one in found for point in one.operators.items()]
    cases = [case for one in found for case in one.cases]
    calls = pd.DataFrame(
        [
            {"case": number, "rank": rank, **vars(row)}
            for number, case in enumerate(cases)
            for rank, rows in enumerate(case.operators)
            for row in rows
        ]
    )
    described = pd.DataFrame(
        {
            **{name: [getattr(case, name) for case in cases] for name in _DESCRIBED},
            "ranks": [len(case.operators) for case in cases],
        }
    )
    variables = {
        "operator_name": (("benchmark",), np.array([name for (name, _), _ in points], dtype=str)),
        "operator_size": (("benchmark", "axis"), _padded([sizes for (_, sizes), _ in points])),
        "operator_time_s": (("benchmark", "repeat"), np.array([times for _, times in points])),
        "iteration_time_s": (("case", "repeat"), np.array([case.time_s for case in cases])),
        "call_size": (("call", "axis"), _padded(list(calls["sizes"]))),
        **{f"case_{name}": (("case",), _column(described[name])) for name in described},
        **{
            f"call_{name}": (("call",), _column(calls[name]))
            for name in calls.columns
            if name != "sizes"
        },
    }
    dataset = xr.Dataset(variables)
    for name, (long_name, units) in _UNITS.items():
        dataset[name].attrs = {"long_name": long_name, "units": units}
    return dataset


def _column(values: pd.Series) -> np.ndarray:
    return values.to_numpy(dtype=None if is_numeric_dtype(values) else str)


def _padded(sizes: list[Sizes]) -> FloatArray:
    """Sizes of any number of axes, with NaN for those that are not there."""
    table = np.full((len(sizes), _AXES), np.nan)
    for row, given in zip(table, sizes, strict=True):
        row[: len(given)] = given
    return table
