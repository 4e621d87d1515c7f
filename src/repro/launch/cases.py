"""What an experiment asks of its ranks, one order after another, and what becomes of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

import xarray as xr

from repro.collectives.records import CollectiveSweep
from repro.errors import ProtocolMissing
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
        """How many steps of progress ranks report: iterations, or cases of a sweep."""
        run = self.order.run
        if isinstance(run, CollectiveSweep):
            return run.cases
        return run.warmup + run.iterations


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


def _swept(
    source: str, protocol: str, order: Order[CollectiveSweep], outcome: Outcome | OutOfMemory
) -> xr.Dataset:
    assert isinstance(outcome, Outcome)
    return sweep_dataset(source, protocol, order.ranks, order.run, outcome)


Run = Callable[[Case[Work], Callable[[int], None]], Outcome | OutOfMemory]


def run_cases(
    cases: Sequence[Case[Work]],
    journal: Journal,
    run: Run[Work],
    report: Callable[[Case[Work], int], None],
) -> tuple[list[xr.Dataset], dict[str, str]]:
    """Have every case run that the journal does not have, and keep what it gives.

    Memory rises with the batch: what a series could not hold, it cannot hold at a larger value.

    Parameters
    ----------
    run
        Carries out a case, and calls its second argument with the steps done so far.
    report
        Is called with a case when it begins, as it proceeds and when it is done, and with its
        steps done so far.

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
    full: set[tuple[object, ...] | None] = set()
    for case in cases:
        if case.protocol in missing:
            continue
        report(case, 0)
        dataset = journal.find(case.inputs)
        if dataset is None:
            try:
                outcome = (
                    OutOfMemory(0, "a smaller batch had no room")
                    if case.series in full
                    else run(case, partial(report, case))
                )
            except ProtocolMissing as reason:
                missing[case.protocol] = str(reason)
                continue
            dataset = case.dataset(outcome)
            journal.keep(case.inputs, dataset)
        if "out_of_memory" in dataset and bool(dataset["out_of_memory"].any()):
            full.add(case.series)
        report(case, case.steps)
        datasets.append(dataset)
    return datasets, missing
