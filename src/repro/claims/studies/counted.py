"""What a log counts, beside the closed forms: of each rank and iteration."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd


def beside_forms(
    logged: pd.DataFrame,
    keys: Callable[[pd.DataFrame], Counter[Any]],
    forms: Sequence[Mapping[Any, int]],
) -> dict[str, float | bool]:
    """Calls and bytes of a rank and iteration on average, and whether every one is as expected.

    Parameters
    ----------
    logged
        `repro.results.communication.transfers` of one run; barriers are the instrument's own.
    keys
        How often each kind of call is among rows; the last item of a kind is its bytes.
    forms
        The same of each rank, by the closed forms.

    Returns
    -------
    dict
        `calls` and `calls_by_forms`, `bytes` and `bytes_by_forms`, and whether they `agree`.
    """
    logged = logged[logged.operation != "barrier"]
    same, calls, sent = [], 0, 0
    for _, own in logged.groupby(["iteration", "rank"]):
        expected = forms[int(own["rank"].iloc[0])]
        same.append(keys(own) == expected)
        calls += sum(expected.values())
        sent += sum(key[-1] * count for key, count in expected.items())
    return {
        "calls": len(logged) / len(same),
        "calls_by_forms": calls / len(same),
        "bytes": logged.bytes.sum() / len(same),
        "bytes_by_forms": sent / len(same),
        "agree": all(same),
    }
