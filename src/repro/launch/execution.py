"""Execution of requests on a pool of ranks or on real nodes; the store answers those it has."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, NoReturn

import xarray as xr
from tqdm import tqdm

from repro.collectives.records import CollectiveSweep
from repro.errors import ProtocolMissing, ReproError
from repro.launch.ranks.pool import RankPool, open_pool
from repro.launch.request import PoolSpec, Request, Work
from repro.launch.store import Store
from repro.progress import clear_progress
from repro.results.collectives import sweep_dataset
from repro.results.outcome import Outcome, OutOfMemory
from repro.results.schema import out_of_memory_dataset, placed, training_dataset
from repro.train.records import Report, TrainingRun

# Runs requests of the same work interleaved, and reports the steps done.
Run = Callable[[Sequence[Request[Work]], Report], Sequence[Outcome] | OutOfMemory]


def run_on_pool(
    requests: Sequence[Request[Any]], pool: PoolSpec, store: Store, title: str
) -> list[xr.Dataset]:
    """Return the datasets of requests; those that the store lacks run on ranks of this machine.

    Ranks start when the first request needs them.

    Raises
    ------
    NotRunHere
        This machine cannot run the pool.
    ReproError
        A run failed, or a check of links or ranks did.
    """
    ranks: RankPool | None = None
    with ExitStack() as stack, progress(requests, title) as bar:

        def run(group: Sequence[Request[Any]], report: Report) -> Sequence[Outcome] | OutOfMemory:
            nonlocal ranks
            if ranks is None:
                bar.say("starting ranks")
                ranks = stack.enter_context(open_pool(pool, bar.say))
            return ranks.run_interleaved(group, report)

        return run_requests(requests, store, run, bar.report, interleaved=True)[0]


@dataclass
class Bar:
    """Progress bar over all requests, which may be reported on more than once."""

    _bar: "tqdm[NoReturn]"
    _done: dict[str, int] = field(default_factory=dict)

    def report(self, requests: Sequence[Request[Any]], steps: int, text: str = "") -> None:
        """Show the steps done of requests that run interleaved, and a text."""
        if not requests:
            return
        protocols = "+".join(request.protocol for request in requests)
        label = requests[0].label.replace(requests[0].protocol, protocols, 1)
        self._bar.set_postfix_str(f"{label}{', ' if text else ''}{text}")
        self._bar.update(steps - self._done.get(label, 0))
        self._done[label] = steps

    def say(self, text: str) -> None:
        """Show what the run is waiting for."""
        self._bar.set_postfix_str(text)


@contextmanager
def progress(requests: Sequence[Request[Any]], title: str) -> Iterator[Bar]:
    """Show a progress bar as long as the context lasts."""
    training = bool(requests) and isinstance(requests[0].run, TrainingRun)
    unit = "it" if training else "case"
    total = sum(request.steps for request in requests)
    bar: tqdm[NoReturn] = tqdm(total=total, desc=title, unit=unit)
    with bar:
        yield Bar(bar)
    clear_progress()


def run_requests(
    requests: Sequence[Request[Work]],
    store: Store,
    run: Run[Work],
    report: Callable[[Sequence[Request[Work]], int, str], None],
    interleaved: bool = False,
) -> tuple[list[xr.Dataset], dict[str, str]]:
    """Run requests that the store lacks, and store each result at once.

    Memory grows with the batch: after a request ran out of memory, larger values of its sweep do
    not run.

    Parameters
    ----------
    run
        Runs requests, and calls its second argument with the steps of all of them done so far.
    report
        Is called with requests when they begin, proceed and end, the steps done and a text.
    interleaved
        Whether neighbours that differ in links only run interleaved.

    Returns
    -------
    datasets, missing
        One dataset per request that was run, and the missing protocols with the reason.

    Raises
    ------
    ReproError
        A run failed.
    """
    datasets: list[xr.Dataset] = []
    missing: dict[str, str] = {}
    out_of_memory: set[tuple[object, ...]] = set()
    for neighbours in _grouped(requests, interleaved):
        group = [request for request in neighbours if request.protocol not in missing]
        found = {at: store.find(request) for at, request in enumerate(group)}
        left = [request for at, request in enumerate(group) if found[at] is None]
        if left:
            report(left, 0, "")
            try:
                outcomes = (
                    [OutOfMemory(0, "out of memory at a smaller batch")] * len(left)
                    if left[0].series in out_of_memory
                    else _outcomes(left, run, report)
                )
            except ProtocolMissing as reason:
                missing |= {request.protocol: str(reason) for request in left}
                continue
            for at, outcome in zip(
                (at for at in found if found[at] is None), outcomes, strict=True
            ):
                found[at] = store.put(group[at], result_of(group[at], outcome))
        for at, dataset in found.items():
            assert dataset is not None
            if "out_of_memory" in dataset and bool(dataset["out_of_memory"].any()):
                out_of_memory.add(group[at].series)
            datasets.append(dataset)
        report(left, sum(request.steps for request in left), "")
        for request in group:
            if request not in left:
                report([request], request.steps, "")
    return datasets, missing


def result_of(request: Request[Any], outcome: Outcome | OutOfMemory) -> xr.Dataset:
    """Return the dataset of a request's outcome at its coordinates.

    Raises
    ------
    ReproError
        A rank ran out of memory where that is no result.
    """
    sweeps = isinstance(request.run, CollectiveSweep)
    if isinstance(outcome, OutOfMemory):
        if sweeps or request.dataset:
            smaller = "sizes_bytes in params/collectives.yaml" if sweeps else "batches"
            raise ReproError(
                f"{request.label}: out of memory ({outcome.message}); fix: choose smaller {smaller}"
            )
        return placed(out_of_memory_dataset(), request.coordinates)
    if request.dataset:
        found = request.dataset(request.run, outcome)
    elif sweeps:
        found = sweep_dataset(request.run, outcome)
    else:
        found = training_dataset(outcome, request.time_scale, request.rate_scale)
    return placed(found, request.coordinates)


def _outcomes(
    requests: Sequence[Request[Work]],
    run: Run[Work],
    report: Callable[[Sequence[Request[Work]], int, str], None],
) -> list[Outcome | OutOfMemory]:
    """Run requests; if not all of them fit into memory, run those of each batch separately."""
    found = run(requests, partial(report, requests))
    if not isinstance(found, OutOfMemory):
        return list(found)
    if all(request.run == requests[0].run for request in requests):
        return [found] * len(requests)
    by_batch = groupby(requests, key=lambda request: request.run)
    return [one for _, same in by_batch for one in _outcomes(list(same), run, report)]


def _grouped(requests: Sequence[Request[Work]], interleaved: bool) -> Iterator[list[Request[Work]]]:
    """Yield neighbours that differ in links and micro batches only, or each request by itself."""
    if not interleaved:
        yield from ([request] for request in requests)
        return
    for _, group in groupby(requests, key=_work):
        yield list(group)


def _work(request: Request[Any]) -> tuple[TrainingRun | CollectiveSweep, int, tuple[int, ...]]:
    run: TrainingRun | CollectiveSweep = request.run
    if isinstance(run, TrainingRun):
        run = replace(run, microbatches=1)
    return run, request.ranks, request.memory_bytes
