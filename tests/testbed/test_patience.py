"""A check that fails is waited for, out loud, and is an error in the end."""

import pytest

from repro.errors import ReproError
from repro.testbed import verify


def _failing(times: int) -> list[ReproError | None]:
    return [ReproError("rank 1 cannot keep its pace")] * times + [None]


def test_a_busy_machine_is_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_PAUSE_S", 0.0)
    monkeypatch.setattr(verify, "_SAY_AFTER_S", 0.0)
    monkeypatch.setattr(verify, "find_cpu_competitor", lambda: "a browser uses 90% of a core")
    results = iter(_failing(5))

    def check() -> str:
        if error := next(results):
            raise error
        return "kept"

    said: list[str] = []
    assert verify.until_verified(check, said.append) == "kept"
    # Once, not five times: the next line is a minute away.
    assert said == ["waiting, a browser uses 90% of a core: rank 1 cannot keep its pace"]


def test_patience_ends() -> None:
    def check() -> None:
        raise ReproError("rank 1 cannot keep its pace")

    with pytest.raises(ReproError, match="rank 1"):
        verify.until_verified(check, print, patience_s=0.0)
