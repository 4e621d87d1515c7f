"""Measure for notebooks that follow, in one process, so that nothing waits for their figures.

    python -m repro.experiments.ahead PROFILE STAGE...

What stages measure (`repro.experiments.stages`) is in their journals then, where notebooks find it,
and ranks stay up from one stage to the next. A line says when a stage begins.
"""

import sys
from collections.abc import Sequence

from repro.catalog.studies.experiments import EXPERIMENTS, experiment
from repro.errors import ReproError
from repro.experiments.obtain import carried_out, own_path
from repro.experiments.stages import resolve_stage
from repro.launch.journal import Journal
from repro.launch.ranks.sites import keep_ranks


def measure_ahead(profile: str, stages: Sequence[str]) -> None:
    """Measure what stages ask for, by the names of their datasets, one after the other.

    Raises
    ------
    ReproError
        A run failed.
    """
    with keep_ranks():
        for stage in stages:
            print(f"Measuring {stage}", flush=True)
            path = own_path(stage)
            journal = Journal(path)
            for resolved in resolve_stage(stage, profile):
                carried_out(resolved, journal, path)
            if stage in EXPERIMENTS and (following := experiment(stage).begins):
                journal.hand_on(Journal(own_path(following)))


if __name__ == "__main__":
    try:
        measure_ahead(sys.argv[1], sys.argv[2:])
    except ReproError as reason:
        sys.exit(str(reason))
