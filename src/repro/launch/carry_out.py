"""Carry out an experiment's cases where they are asked for, and keep what is finished."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import xarray as xr

from repro.catalog.systems.nodes import Nodes
from repro.errors import NotRunHere
from repro.launch.cases import Case, run_cases
from repro.launch.journal import Journal
from repro.launch.messages import Site
from repro.launch.nodes.run import run_on_nodes
from repro.launch.progress import progress
from repro.launch.ranks.sites import Session, open_site
from repro.results.merging import merge
from repro.results.outcome import Outcome, OutOfMemory
from repro.train.records import Report


def carry_out(
    cases: Sequence[Case[Any]], where: Site | Nodes, journal: Journal, folder: Path, title: str
) -> tuple[xr.Dataset, dict[str, str]]:
    """Have every case run that the journal does not have.

    Parameters
    ----------
    where
        A site of this machine, or real nodes.
    journal : Journal
        Finished cases, so that an interrupted experiment goes on where it stopped.
    folder
        For what ranks and jobs of real nodes write.
    title
        Of the progress bar.

    Returns
    -------
    dataset, not_run
        The union of the cases that were run, and what could not be run, with the reasons.

    Raises
    ------
    ReproError
        A run or a job failed, or a check before it or a proof after it did.
    """
    if not cases:
        return xr.Dataset(), {}
    try:
        if isinstance(where, Site):
            return _run_on_site(cases, where, journal, title), {}
        return run_on_nodes(cases, where, journal, folder, title)
    except NotRunHere as reason:
        source = "testbed" if isinstance(where, Site) else "cluster"
        return xr.Dataset(), {source: str(reason)}


def _run_on_site(
    cases: Sequence[Case[Any]], site: Site, journal: Journal, title: str
) -> xr.Dataset:
    """Run on a set of ranks, which start when the first case needs them."""
    session: Session | None = None
    with ExitStack() as stack, progress(cases, title) as bar:

        def run(cases: Sequence[Case[Any]], report: Report) -> Sequence[Outcome] | OutOfMemory:
            nonlocal session
            if session is None:
                bar.say("starting ranks")
                session = stack.enter_context(open_site(site, bar.say))
            return session.take_turns([case.order for case in cases], report)

        return merge(run_cases(cases, journal, run, bar.report, in_turns=True)[0])
