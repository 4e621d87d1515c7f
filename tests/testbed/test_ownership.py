"""Whose a folder is, so that what a killed run left can be told from what another one uses."""

from pathlib import Path

from repro.testbed.ownership import is_leftover, leftovers, owned_name


def test_ownership_tells_the_living_from_the_dead(tmp_path: Path) -> None:
    assert not is_leftover(owned_name())
    pid, start = owned_name().removeprefix("repro-").split("-")
    dead = f"repro-{pid}-{int(start) + 1}"
    assert is_leftover(dead), "a reused process id is another process"
    (tmp_path / owned_name()).mkdir()
    (tmp_path / dead).mkdir()
    assert leftovers(tmp_path) == [tmp_path / dead]
