"""Measure single operators on this machine, and iterations that are timed again from them."""

import os
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, groupby, product
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np
import xarray as xr
from tqdm import tqdm

from repro.catalog.models.dlrm import PLANS, plan_shards
from repro.catalog.studies.experiments import Profile
from repro.catalog.studies.operator_benchmarks import (
    COLLECTIVES,
    EMBEDDING_BAG,
    INDEX_ADD,
    LAUNCHED_VIEW,
    LAUNCHES,
)
from repro.catalog.studies.operators import (
    SAMPLE_DIVISOR,
    OperatorProfile,
    OperatorStudy,
    read_operator_study,
)
from repro.corpus.config import read_corpus_config
from repro.experiments.machine.operator_cases import (
    IN_A_ROW,
    UNDISTURBED,
    Case,
    Found,
    Point,
    operator_dataset,
)
from repro.experiments.machine.own_ranks import Turn, run_ranks, take_turns
from repro.experiments.runs import testbed_run
from repro.logs.operator_trace import TracedOperator, read_operator_trace
from repro.observe.environment import provenance
from repro.paths import ENWIKI, find
from repro.predict.operators.trace_replay import FEWER, JUDGED

# Loads a batch, and returns the iteration on it, which returns its seconds.
_Load = Callable[[], Callable[[], float]]
_Timed = TypeVar("_Timed")
# Role, set of tables and plan.
_Key = tuple[str, int, str]
_MODEL = "dlrm"
# Of a collective of one size in a repeat; iterations behind which caches hold what they hold from
# then on; batches that take turns, as rows that every iteration uses would stay in caches.
_CALLS, _SETTLING, _BATCHES = 5, 3, 4
_OF_TABLES = {EMBEDDING_BAG, INDEX_ADD, "index_select"}
# The set of tables that no plan is judged on.
_OTHER_TABLES = 99


@dataclass(frozen=True)
class Sharded:
    """What one of several ranks measured in turns with some sets of tables.

    `operators` are those that plans have, each called by itself once; `collectives` have calls by
    turn; `laps` are those of iterations by turn, passes and then collectives; `traces` have each
    case's operators.
    """

    operators: dict[Point, list[float]] = field(default_factory=dict)
    collectives: dict[Point, list[list[float]]] = field(default_factory=dict)
    laps: dict[_Key, list[list[list[float]]]] = field(default_factory=dict)
    traces: dict[_Key, list[TracedOperator]] = field(default_factory=dict)


def measure_operators(profile_name: str) -> xr.Dataset:
    """Measure everything of `params/operator_study.yaml`.

    Returns
    -------
    Dataset
        `operator_time_s` (benchmark, repeat) at `operator_size`; `pass_time_s` and
        `collective_time_s` of each case, iteration and rank; and the `call`s of each case's trace.
        `docs/quantities.md` defines them.

    Raises
    ------
    ReproError
        A rank failed, the corpus is missing, or the profile is unknown.
    """
    study = read_operator_study()
    profile = study.profile(profile_name)
    # The profiler says on each start and stop that it does; ranks inherit that it should not.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    found = run_ranks("operators", 1, _alone, profile_name)
    found.append(together(run_ranks("sharded tables", profile.ranks, _sharded, profile_name)))
    return operator_dataset(found).assign_attrs(
        title="Operators of this machine, and iterations timed again from them",
        source="testbed",
        profile=profile_name,
        provenance=provenance(study.model_dump(mode="json")),
    )


def _alone(rank: int, ranks: int, port: int, profile_name: str) -> Found:
    """On one rank: operators, and the iterations of all models of one."""
    from repro.observe.operator_trace import trace_of
    from repro.train.megatron.groups import join_groups
    from repro.train.operators import launch_s, view_s
    from repro.train.run import device_scope

    study = read_operator_study()
    profile = study.profile(profile_name)
    operators: dict[Point, list[float]] = {}
    # Rows are summed up and changed in turns with the iterations that do so, below.
    single = _single(study, profile, operators, profile.grids().keys() - _OF_TABLES)
    for launch, moved in product(LAUNCHES, profile.moved):
        point = operators.setdefault((launch, (moved,)), [])
        single.append((point, partial(launch_s, launch, moved)))
    single.append((operators.setdefault((LAUNCHED_VIEW, (0,)), []), view_s))
    with device_scope():
        join_groups(rank, ranks, "127.0.0.1", port)
    with tempfile.TemporaryDirectory() as scratch:
        loads = dict(_loads(study, Path(scratch)))
        times: dict[tuple[str, str], list[list[float]]] = {key: [] for key in loads}
        whole = [
            (times[key], partial(_in_a_row, partial(_loaded, load))) for key, load in loads.items()
        ]
        take_turns([*single, *profile.turns * whole], profile.repeats, silent=False)
        texts = {key: trace_of(load()) for key, load in loads.items()}
    cases = [
        Case(
            model,
            role,
            1,
            np.reshape(times[model, role], (-1, 1, 1)),
            np.empty((np.size(times[model, role]), 1, 0)),
            [read_operator_trace(text)],
        )
        for (model, role), text in texts.items()
    ]
    return Found(1, operators, cases)


def _single(
    study: OperatorStudy,
    profile: OperatorProfile,
    into: dict[Point, list[float]],
    names: Container[str],
) -> list[Turn]:
    """Every operator of these names at each of its sizes, alone on this rank."""
    from repro.train.operators import operator_s

    return [
        (
            into.setdefault((name, sizes), []),
            partial(operator_s, name, *study.operands(name, sizes)),
        )
        for name, axes in profile.grids().items()
        if name in names
        for sizes in product(*axes)
    ]


def _loaded(load: _Load) -> float:
    return load()()


def _in_a_row(step: Callable[[], _Timed]) -> list[_Timed]:
    """Iterations behind those that find caches as something else left them."""
    for _ in range(_SETTLING):
        step()
    return [step() for _ in range(IN_A_ROW)]


def _loads(study: OperatorStudy, scratch: Path) -> Iterator[tuple[tuple[str, str], _Load]]:
    """Iterations of each model, and on fewer samples."""
    from repro.train.run import device_scope
    from repro.train.timed import loading
    from repro.train.training import set_up

    alone = Profile(models=(), gpus=(1,), warmup=1, iterations=1)
    split = read_corpus_config(find("params/corpus.yaml")).split
    for name in study.models:
        run = testbed_run(name, alone, ENWIKI, split, micro_batch_size=study.micro_batch_size)
        fewer = replace(run, micro_batch_size=run.micro_batch_size // SAMPLE_DIVISOR)
        for role, one in ((FEWER, fewer), (JUDGED, run)):
            with device_scope():
                state = set_up(one, scratch)
            yield (name, role), loading(state)


def _sharded(rank: int, ranks: int, port: int, profile_name: str) -> list[Sharded]:
    """On each of several ranks at once, a part of the sets of tables in each repeat: all of them
    would not fit into memory."""
    import torch.distributed as dist

    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    study = read_operator_study()
    profile = study.profile(profile_name)
    sets = range(profile.table_sets)
    return [
        _in_turns(study, profile, sets[repeat :: profile.repeats], rank, ranks)
        for repeat in tqdm(range(profile.repeats), desc="repeats", leave=False, disable=rank > 0)
    ]


def _in_turns(
    study: OperatorStudy, profile: OperatorProfile, sets: Sequence[int], rank: int, ranks: int
) -> Sharded:
    """Every plan of some sets of tables, and what they consist of."""
    from repro.observe.operator_trace import trace_of
    from repro.train.operators import collective_s

    found = Sharded()
    steps = dict(_dlrms(study, sets, rank, ranks))
    for key, step in steps.items():
        step()
        found.traces[key] = read_operator_trace(trace_of(step), ranks)
    had = {one.operator for traced in found.traces.values() for one in traced}
    turns = _single(study, profile, found.operators, had)
    all_rounds = []
    for name, size in product(COLLECTIVES.values(), profile.bytes):
        calls = found.collectives.setdefault((name, (size,)), [])
        turns += profile.turns * [
            (calls, partial(collective_s, name, size, _CALLS, study.states_bytes))
        ]
    # A set of tables has all its turns in one repeat, and what is compared in it runs in each.
    often = profile.repeats * profile.turns
    for _, own in groupby(steps, lambda key: key[:2]):
        compared = {key: steps[key] for key in own}
        rounds: list[dict[_Key, list[list[float]]]] = []
        turns += often * [(rounds, partial(_round, compared, rounds))]
        all_rounds.append(rounds)
    take_turns(turns, 1, silent=True)
    for rounds in all_rounds:
        for key in rounds[0]:
            found.laps[key] = [one[key] for one in rounds]
    return found


def _round(
    compared: Mapping[_Key, Callable[[], list[float]]], rounds: Sequence[object]
) -> dict[_Key, list[list[float]]]:
    """A turn of each, which ranks begin together, in another order each time: what a wandering
    machine takes longer all do."""
    import torch.distributed as dist

    found = {key: list[list[float]]() for key in compared}
    for key in Random(len(rounds)).sample(list(compared), len(compared)):
        dist.barrier()
        found[key] = _in_a_row(compared[key])
    return found


def _dlrms(
    study: OperatorStudy, sets: Sequence[int], rank: int, ranks: int
) -> Iterator[tuple[_Key, Callable[[], list[float]]]]:
    """Iterations by role, set of tables and plan; the one on fewer samples is on tables of which no
    plan is judged."""
    from repro.train.dlrm import Dlrm, laps_s

    fewer = study.dlrm.model_copy(update={"batch": study.dlrm.batch // SAMPLE_DIVISOR})
    asked = [(FEWER, _OTHER_TABLES, next(iter(PLANS)), fewer)]
    asked += [(JUDGED, number, plan, study.dlrm) for number in sets for plan in PLANS]
    for role, number, plan, shape in asked:
        tables = study.tables.draw(number)
        shards = plan_shards(plan, tables, shape.width, ranks)
        model = Dlrm(shape, tables, shards, rank, ranks)
        batches = [model.batch(seed) for seed in range(_BATCHES)]
        yield (role, number, plan), partial(laps_s, model, cycle(batches))


def together(answers: list[list[Sharded]]) -> Found:
    """What several ranks measured as one: an operator takes what it takes them on average, a
    collective what it takes the last one to come."""
    from repro.train.dlrm import PASSES

    ranks, first = len(answers), answers[0]
    operators: dict[Point, list[float]] = {}
    # Repeats have sets of tables of their own, and some have operators that others lack.
    for one in set.intersection(*(set(repeat.operators) for own in answers for repeat in own)):
        times = np.array([[repeat.operators[one] for repeat in own] for own in answers])
        operators[one] = times.mean(axis=(0, 2)).tolist()
    for one in first[0].collectives:
        # Of each rank, repeat, turn and call.
        times = np.array([[repeat.collectives[one] for repeat in own] for own in answers])
        operators[one] = np.quantile(times.min(axis=0), UNDISTURBED, axis=(1, 2)).tolist()
    cases = []
    for key in dict.fromkeys(key for repeat in first for key in repeat.laps):
        role, tables, plan = key
        having = [[repeat for repeat in own if key in repeat.laps] for own in answers]
        laps = np.stack(
            [np.concatenate([turn for one in own for turn in one.laps[key]]) for own in having],
            axis=1,
        )
        traces = [own[0].traces[key] for own in having]
        passes_s, collectives_s = laps[..., :PASSES], laps[..., PASSES:]
        cases.append(Case(_MODEL, role, ranks, passes_s, collectives_s, traces, tables, plan))
    return Found(ranks, operators, cases)
