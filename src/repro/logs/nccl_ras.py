"""Reader of NCCL RAS's JSON (`ncclras -f json`): the state of communicators, without any time.

Fields are from NCCL's user guide, troubleshooting, RAS, JSON output (2.28.7 and later).
"""

import re
from collections.abc import Iterator
from typing import Any

from repro.logs.measurements import Reading
from repro.logs.truncated_json import read_json

SIGN = r'"communicators_count"\s*:'
# NCCL 2.28.9 omits a comma in `missing_ranks`.
_NO_COMMA = re.compile(r'([\d"el])(\s*\n\s*)("[^"\n]*"\s*:)')


def read_nccl_ras(text: str) -> Reading:
    """Read a report: it has no measurement, so each finding is a part that is not one.

    Findings are ranks that are missing, and ranks that have started fewer collectives than others:
    they arrive last, and all others wait for them.
    """
    skipped = ["NCCL RAS reports states and counts, but no times; fix: use NCCL Inspector for them"]
    start = text.find("{")
    content = read_json(_NO_COMMA.sub(r"\1,\2\3", text[max(start, 0) :]), "communicators", skipped)
    found = [
        finding
        for communicator in content.get("communicators", [])
        if isinstance(communicator, dict)
        for finding in _findings(communicator)
    ]
    return [], ["; ".join([skipped[0], *found]), *skipped[1:]]


def _findings(communicator: dict[str, Any]) -> Iterator[str]:
    name = f"communicator {communicator.get('hash')} of {communicator.get('size')} ranks"
    missing = [one.get("rank") for one in _dicts(communicator.get("missing_ranks"))]
    if missing:
        yield f"{name} lacks rank {', '.join(map(str, missing))}"
    counts: dict[str, dict[Any, int]] = {}
    for one in _dicts(communicator.get("ranks")):
        for collective, count in (one.get("collective_counts") or {}).items():
            if isinstance(count, int):
                counts.setdefault(collective, {})[one.get("rank")] = count
    for collective, by_rank in counts.items():
        most, least = max(by_rank.values()), min(by_rank.values())
        if least < most:
            late = [str(rank) for rank, count in by_rank.items() if count == least]
            yield f"{name}: rank {', '.join(late)} is at {collective} {least}, others at {most}"


def _dicts(items: Any) -> list[dict[str, Any]]:
    return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []
