"""Results that are missing or outdated say so, whoever reads them."""

from pathlib import Path

import pytest
import xarray as xr

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
    today = xr.Dataset({name: ("weights", [1.0]) for name in ("bytes_per_s", "flops")})
    store.write_dataset(today, tmp_path / "decoding.nc")
    assert set(store.read_result("decoding").data_vars) == set(today.data_vars)
