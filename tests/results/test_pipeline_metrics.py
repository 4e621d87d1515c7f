"""Both readings of a pipeline's communication, on one whose every moment is known."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from made_up import (
    EMBEDDING_S,
    HOP_S,
    STAGE_S,
    TIME_SCALE,
    made_up_configuration,
    made_up_pipeline,
)

from repro.results.merging import merge
from repro.results.metrics import (
    embedding_sync_s,
    forward_receive_s,
    iteration_time_s,
    last_stage_s,
    pipeline_split_s,
    resample,
    timer_fraction,
    wire_share,
)
from repro.results.schema import coordinates, out_of_memory_dataset, placed
from repro.results.summary import pipeline_readings, write_metrics

_ITERATION_S = 4 * STAGE_S + 2 * HOP_S + EMBEDDING_S


@pytest.fixture(scope="module")
def pipeline() -> xr.Dataset:
    return made_up_pipeline(coordinates("bert-large", "rdma", 2))


def test_the_timers_hold_fill_and_drain(pipeline: xr.Dataset) -> None:
    assert forward_receive_s(pipeline).item() == pytest.approx((STAGE_S + HOP_S) / TIME_SCALE)
    assert embedding_sync_s(pipeline).item() == pytest.approx((STAGE_S + EMBEDDING_S) / TIME_SCALE)
    expected = (2 * STAGE_S + HOP_S + EMBEDDING_S) / _ITERATION_S
    assert timer_fraction(pipeline).item() == pytest.approx(expected)
    compute = last_stage_s(pipeline, "forward compute", "backward compute")
    assert compute.item() == pytest.approx(2 * STAGE_S / TIME_SCALE)


def test_the_wire_is_messages_and_syncs_only(pipeline: xr.Dataset) -> None:
    # Both stages take part in both messages.
    assert wire_share(pipeline).item() == pytest.approx((2 * HOP_S + EMBEDDING_S) / _ITERATION_S)
    split = TIME_SCALE * pipeline_split_s(pipeline).squeeze()
    assert float(split.sel(part="messages")) == pytest.approx(2 * HOP_S)
    # The first stage waits for both passes of the last, the last for the forward pass.
    assert float(split.sel(part="waiting for neighbours")) == pytest.approx(1.5 * STAGE_S)
    assert float(split.sel(part="drain")) == pytest.approx(STAGE_S / 2)
    assert float(split.sum()) == pytest.approx(_ITERATION_S)


def test_every_message_is_kept(pipeline: xr.Dataset) -> None:
    one = pipeline.squeeze()
    iterations = one.sizes["iteration"]
    assert one.sizes["message"] == 2 * iterations
    assert one.sizes["call"] == 4 * iterations
    took = one["message_end_s"] - one["message_start_s"]
    assert took.values == pytest.approx(HOP_S)
    assert one["message_backward"].values.tolist() == [0, 1] * iterations
    assert float(one["message_bytes"].sum()) == 2 * 800 * iterations


def test_pipelines_of_other_sizes_merge(pipeline: xr.Dataset) -> None:
    other = made_up_pipeline(coordinates("gpt2-medium", "tcp", 2))
    merged = merge([pipeline, other])
    assert merged.sizes["message"] == pipeline.sizes["message"]
    timed = timer_fraction(merged).squeeze()
    assert timed.notnull().values.tolist() == [[True, False], [False, True]]


def test_intervals_come_from_the_iterations(pipeline: xr.Dataset) -> None:
    drawn = resample(pipeline.sel(source="testbed", drop=True))
    assert float(timer_fraction(drawn).std()) == pytest.approx(0, abs=1e-12)


def test_both_readings_stand_side_by_side(pipeline: xr.Dataset) -> None:
    table = pipeline_readings(pipeline)
    row = table.loc[("bert-large", "rdma")]
    assert row[("timers", 2)] == pytest.approx(100 * timer_fraction(pipeline).item(), abs=0.05)
    assert row[("wire", 2)] == pytest.approx(100 * wire_share(pipeline).item(), abs=0.05)


def test_a_cell_out_of_memory_says_so_beside_those_that_ran() -> None:
    cells = [coordinates("bert-large", "rdma", 8, "global_batch_size", value) for value in (8, 16)]
    merged = merge([made_up_configuration(cells[0]), placed(out_of_memory_dataset(), cells[1])])
    assert merged["out_of_memory"].squeeze().values.tolist() == [0, 1]
    assert np.isfinite(iteration_time_s(merged).squeeze().values).tolist() == [True, False]


def test_sweeps_have_no_metrics_and_pipelines_their_own(
    pipeline: xr.Dataset, tmp_path: Path
) -> None:
    swept = made_up_configuration(coordinates("bert-large", "rdma", 8, "global_batch_size", 8))
    write_metrics({"a": pipeline, "b": swept}, tmp_path / "metrics.json")
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert set(found) == {"a"}
    assert set(found["a"]) >= {"timer_fraction", "wire_share"}
