"""Notebooks that follow a process which measures for them.

The pipeline has one process measure what all timed notebooks will ask for, into their journals
(`repro.experiments.ahead`). A notebook that follows finds it there, and measures nothing itself: it
gives way to what is measured.
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from repro.errors import ReproError
from repro.launch.cases import Case
from repro.launch.journal import Journal

_AHEAD = "REPRO_AHEAD"
_LOOK_S = 0.2


def follows(pid: int) -> Mapping[str, str]:
    """The environment of what follows a process."""
    return {_AHEAD: str(pid)}


def wait_until_measured(cases: Sequence[Case[Any]], journal: Journal) -> None:
    """Wait until the journal has all cases, where this process follows another.

    Raises
    ------
    ReproError
        That one has ended before.
    """
    if (ahead := os.environ.get(_AHEAD)) is None:
        return
    lacking = list(cases)
    while lacking:
        runs = os.path.exists(f"/proc/{ahead}")
        if not (lacking := [case for case in lacking if not journal.has(case.inputs)]):
            return
        if not runs:
            raise ReproError(
                f"{lacking[0].label} and {len(lacking) - 1} more were not measured ahead; "
                "they are measured when this is run by itself"
            )
        time.sleep(_LOOK_S)
