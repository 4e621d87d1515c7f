"""What an experiment asks of its ranks, one order after another, and what becomes of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Generic

import xarray as xr

from repro.collectives.records import CollectiveSweep
from repro.errors import ProtocolMissing, ReproError
from repro.launch.journal import Journal
from repro.launch.messages import Order, Work
from repro.results.collectives import sweep_dataset
from repro.results.outcome import Outcome, OutOfMemory
from repro.results.schema import Cell, configuration_dataset, out_of_memory_dataset
from repro.train.records import TrainingRun


@dataclass(frozen=True)
class Case(Generic[Work]):
    """One order of an experiment.

    Attributes
    ----------
    label
        For people.
    protocol
        A name of `params/protocols.yaml`.
    order
        What the ranks are told.
    inputs
        All that decides what is measured, except the machine.
    dataset
        Makes the outcome a dataset.
    series
        What it shares with the other values of a sweep; None: it is not part of one.
    """

    label: str
    protocol: str
    order: Order[Work]
    inputs: Mapping[str, object]
    dataset: Callable[[Outcome | OutOfMemory], xr.Dataset]
    series: tuple[object, ...] | None = None

    @property
    def steps(self) -> int:
        """How many steps of progress ranks report at least: iterations, or cases of a sweep."""
        run = self.order.run
        return run.configurations if isinstance(run, CollectiveSweep) else run.iterations


def training_case(
    source: str,
    cell: Cell,
    order: Order[TrainingRun],
    inputs: Mapping[str, object],
    time_scale: float = 1.0,
    rate_scale: float = 1.0,
) -> Case[TrainingRun]:
    """A configuration to train; the scales are those of the testbed's similarity."""
    return Case(
        cell.label,
        cell.protocol,
        order,
        inputs,
        partial(_trained, source, cell, time_scale, rate_scale),
        (cell.model, cell.protocol, cell.gpus),
    )


def _trained(
    source: str, cell: Cell, time_scale: float, rate_scale: float, outcome: Outcome | OutOfMemory
) -> xr.Dataset:
    if isinstance(outcome, OutOfMemory):
        return out_of_memory_dataset(source, cell)
    return configuration_dataset(source, cell, outcome, time_scale, rate_scale)


def sweep_case(
    source: str, protocol: str, order: Order[CollectiveSweep], inputs: Mapping[str, object]
) -> Case[CollectiveSweep]:
    """Collectives to measure."""
    return Case(
        f"{protocol}, {order.ranks} GPUs",
        protocol,
        order,
        inputs,
        partial(_swept, source, protocol, order),
    )


def in_dimension(case: Case[Work], dimension: str, value: str | float, label: str) -> Case[Work]:
    """A case whose dataset has one more dimension, with this value; both are among its inputs."""
    return replace(
        case,
        label=f"{case.label}, {label}",
        inputs={**case.inputs, dimension: value},
        dataset=partial(_in_dimension, case, dimension, value),
        series=case.series and (case.series, dimension, value),
    )


def _in_dimension(
    case: Case[Work], dimension: str, value: str | float, outcome: Outcome | OutOfMemory
) -> xr.Dataset:
    return case.dataset(outcome).expand_dims({dimension: [value]})


def _swept(
    source: str, protocol: str, order: Order[CollectiveSweep], outcome: Outcome | OutOfMemory
) -> xr.Dataset:
    if isinstance(outcome, OutOfMemory):
        raise ReproError(
            f"collectives over {protocol} on {order.ranks} GPUs: {outcome.message}; take smaller "
            "sizes_bytes in params/collectives.yaml"
        )
    return sweep_dataset(source, protocol, order.ranks, order.run, outcome)


# Is told how far cases are, in steps, and what else there is to say.
_Report = Callable[[Sequence[Case[Work]], int, str], None]
# Carries out cases of the same work in turns, and tells how far they are.
Run = Callable[[Sequence[Case[Work]], Callable[[int, str], None]], Sequence[Outcome] | OutOfMemory]


def run_cases(
    cases: Sequence[Case[Work]],
    journal: Journal,
    run: Run[Work],
    report: _Report[Work],
    in_turns: bool = False,
) -> tuple[list[xr.Dataset], dict[str, str]]:
    """Have every case run that the journal does not have, and keep what it gives.

    Memory rises with the batch: what a series could not hold, it cannot hold at a larger value.

    Parameters
    ----------
    run
        Carries out cases, and calls its second argument with the steps of all of them done so far.
    report
        Is called with cases when they begin, as they proceed and when they are done, with their
        steps done so far, and what else there is to say.
    in_turns
        Whether neighbours of the same work on as many ranks are carried out together.

    Returns
    -------
    datasets, not_run
        One dataset for each case that was run, and the protocols that are missing with the reason.

    Raises
    ------
    ReproError
        A run failed.
    """
    datasets: list[xr.Dataset] = []
    missing: dict[str, str] = {}
    full: set[tuple[object, ...]] = set()
    for neighbours in _grouped(cases, in_turns):
        group = [case for case in neighbours if case.protocol not in missing]
        kept = [journal.find(case.inputs) for case in group]
        todo = [case for case, known in zip(group, kept, strict=True) if known is None]
        made = []
        if todo:
            report(todo, 0, "")
            try:
                outcomes = (
                    [OutOfMemory(0, "a smaller batch had no room")] * len(todo)
                    if todo[0].series in full
                    else _outcomes(todo, run, report)
                )
            except ProtocolMissing as reason:
                missing |= {case.protocol: str(reason) for case in todo}
                continue
            for case, outcome in zip(todo, outcomes, strict=True):
                made.append(case.dataset(outcome))
                journal.keep(case.inputs, made[-1])
        fresh = iter(made)
        for case, known in zip(group, kept, strict=True):
            dataset = next(fresh) if known is None else known
            if case.series and "out_of_memory" in dataset and bool(dataset["out_of_memory"].any()):
                full.add(case.series)
            datasets.append(dataset)
        report(todo, sum(case.steps for case in todo), "")
        for case in group:
            if case not in todo:
                report([case], case.steps, "")
    return datasets, missing


def _outcomes(
    cases: Sequence[Case[Work]], run: Run[Work], report: _Report[Work]
) -> list[Outcome | OutOfMemory]:
    """Of each case; where not all had room, those of smaller batches may have it."""
    found = run(cases, partial(report, cases))
    if not isinstance(found, OutOfMemory):
        return list(found)
    if all(case.order.run == cases[0].order.run for case in cases):
        return [found] * len(cases)
    by_batch = groupby(cases, key=lambda case: case.order.run)
    return [one for _, same in by_batch for one in _outcomes(list(same), run, report)]


def _grouped(cases: Sequence[Case[Work]], in_turns: bool) -> Iterator[list[Case[Work]]]:
    """Neighbours that differ in their links and numbers of micro batches only, or every case by
    itself."""
    if not in_turns:
        yield from ([case] for case in cases)
        return
    group: list[Case[Work]] = []
    for case in cases:
        if group and _work(case) != _work(group[0]):
            yield group
            group = []
        group.append(case)
    if group:
        yield group


def _work(case: Case[Any]) -> tuple[TrainingRun | CollectiveSweep, int, tuple[int, ...]]:
    run: TrainingRun | CollectiveSweep = case.order.run
    if isinstance(run, TrainingRun):
        run = replace(run, microbatches=1)
    return run, case.order.ranks, case.order.memory_bytes
