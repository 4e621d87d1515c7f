"""Results that are missing or outdated say so, whoever reads them."""

from pathlib import Path

import pytest
import xarray as xr

from repro.experiments.machine.decoding import _MEASURED
from repro.results import store


@pytest.mark.parametrize("name", ["operators", "decoding"])
def test_what_an_earlier_version_measured_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    assert "none yet" in store.why_not_run(store.read_result(name))
    store.write_dataset(xr.Dataset({"token_s": ("repeat", [1.0, 2.0])}), tmp_path / f"{name}.nc")
    outdated = store.read_result(name)
    assert not outdated.data_vars and "earlier version" in store.why_not_run(outdated)


def test_what_decoding_measures_today_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    measured = {name: ("repeat", [1.0]) for name in _MEASURED}
    today = xr.Dataset(measured, {"probe_width": [1792, 2304]})
    store.write_dataset(today, tmp_path / "decoding.nc")
    assert set(store.read_result("decoding").data_vars) == set(_MEASURED)
