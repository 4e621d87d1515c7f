"""The schema: nothing measured is lost, and a figure is three lines away."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from made_up import TIME_SCALE, made_up_configuration

from repro.catalog.phases import PHASES
from repro.errors import ReproError
from repro.results.merging import merge
from repro.results.schema import coordinates
from repro.results.store import read_dataset, write_dataset


def test_a_configuration_keeps_every_sample() -> None:
    dataset = made_up_configuration(coordinates("gpt2-medium", "rdma", 8))
    sizes = {"iteration": 6, "rank": 8, "phase": len(PHASES)}
    assert dict(dataset["phase_time_s"].squeeze().sizes) == sizes
    assert list(dataset["phase"].values) == list(PHASES)
    assert float(dataset["time_scale"].squeeze()) == TIME_SCALE
    for variable in dataset.data_vars.values():
        assert variable.attrs["units"] and variable.attrs["long_name"]


def test_rates_integrate_to_the_bytes_counted() -> None:
    dataset = made_up_configuration(coordinates("gpt2-medium", "tcp", 8)).squeeze()
    time = np.concatenate([[0.0], dataset["nic_time_s"].values])
    # Six iterations of half a gigabit; the sample before the first iteration counts from zero.
    total = float((dataset["rx_gbps"].isel(node=0).values * np.diff(time)).sum())
    assert total == pytest.approx(3.0, rel=0.01)
    # Capacity shrinks with rate_scale = 40/400/2, so full scale is 20 times as much.
    assert np.allclose(dataset["rx_full_scale_gbps"], 20 * dataset["rx_gbps"])


def test_rates_over_iterations_are_their_bytes_over_their_time() -> None:
    dataset = made_up_configuration(coordinates("gpt2-medium", "rdma", 8)).squeeze()
    seconds = float(dataset["iteration_time_s"].isel(rank=0, iteration=0))
    expected = 20 * 0.5 / seconds
    assert dataset["rx_iteration_full_scale_gbps"].values == pytest.approx(expected, rel=0.03)


def test_merging_fills_what_was_not_run_with_nan() -> None:
    merged = merge(
        [
            made_up_configuration(coordinates("t5-large", "tcp", 2)),
            made_up_configuration(coordinates("bert-large", "rdma", 4)),
        ]
    )
    assert list(merged["model"].values) == ["t5-large", "bert-large"]
    assert list(merged["gpus"].values) == [2, 4]
    time = merged["iteration_time_s"].sel(source="testbed")
    assert np.isnan(time.sel(model="t5-large", protocol="rdma")).all()
    ranks = time.sel(model="t5-large", protocol="tcp", gpus=2).notnull().any("iteration")
    assert ranks.values.tolist() == [True, True, False, False]


def test_figure_3_is_three_lines_away(made_up_results: xr.Dataset, tmp_path: Path) -> None:
    write_dataset(made_up_results, tmp_path / "r.nc")
    results = xr.open_dataset(tmp_path / "r.nc")
    phases = results.phase_time_s.mean(["iteration", "rank"]).sel(model="bert-large", gpus=8)
    ax = phases.squeeze().to_pandas().plot.bar(stacked=True)
    assert len(ax.patches) == len(PHASES) * 3


def test_names_of_different_lengths_survive_the_disk(tmp_path: Path) -> None:
    for protocol in ("tcp", "rdma", "ipoib"):
        write_dataset(
            made_up_configuration(coordinates("bert-large", protocol, 2)),
            tmp_path / f"{protocol}.nc",
        )
    merged = merge([read_dataset(tmp_path / f"{p}.nc") for p in ("tcp", "rdma", "ipoib")])
    write_dataset(merged, tmp_path / "merged.nc")
    assert list(read_dataset(tmp_path / "merged.nc")["protocol"].values) == ["tcp", "rdma", "ipoib"]


def test_writing_the_same_twice_gives_the_same_bytes(
    made_up_results: xr.Dataset, tmp_path: Path
) -> None:
    for name in ("a.nc", "b.nc"):
        write_dataset(made_up_results, tmp_path / name)
    assert (tmp_path / "a.nc").read_bytes() == (tmp_path / "b.nc").read_bytes()


def test_a_failed_write_leaves_the_old_file(
    made_up_results: xr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.nc"
    write_dataset(made_up_configuration(coordinates("bert-large", "tcp", 2)), path)
    before = path.read_bytes()

    def full(self: xr.Dataset, target: Path, **options: object) -> None:
        target.write_bytes(b"half a file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(xr.Dataset, "to_netcdf", full)
    with pytest.raises(ReproError, match=r"r\.nc: cannot be written \(.*No space left"):
        write_dataset(made_up_results, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.nc"]


def test_an_unwritable_folder_is_named(made_up_results: xr.Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ReproError, match=r"cannot be written"):
        write_dataset(made_up_results, tmp_path / "file" / "r.nc")


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.nc").write_text("hello")
    with pytest.raises(ReproError, match=r"r\.nc: not a readable netCDF file"):
        read_dataset(tmp_path / "r.nc")
    with pytest.raises(ReproError, match=r"none\.nc: no such result"):
        read_dataset(tmp_path / "none.nc")
