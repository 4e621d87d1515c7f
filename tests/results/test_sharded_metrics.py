"""The GPT-350M report's quantities, against arithmetic by hand on predicted times."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from repro.catalog.studies.selection import select
from repro.claims.contradictions import contradictions
from repro.collectives.definitions import busbw_GBps
from repro.predict.explore.experiments.predicted import predict_experiment
from repro.results.sharded import (
    COLLECTIVES,
    bandwidth_table,
    collective_busbw_GBps,
    collective_times_s,
    share_table,
    tokens_per_s_per_gpu,
)
from repro.results.store import not_run

_MODELS = ("gpt-350m", "gpt-1.3b")
_COMMUNICATION = ["straggler wait", "gradient sync", "parameter all-gather"]


def _weights(layers: int, hidden: int) -> int:
    """Half-precision bytes of a GPT: 12 h^2 + 13 h a layer, both embeddings, the last norm."""
    return 2 * (layers * (12 * hidden**2 + 13 * hidden) + (50304 + 1024) * hidden + 2 * hidden)


_BYTES = {"gpt-350m": _weights(24, 1024), "gpt-1.3b": _weights(24, 2048)}


@pytest.fixture(scope="module")
def predicted() -> xr.Dataset:
    return predict_experiment(select("gpt350m", "predicted", profile="predicted"))


def _one(values: xr.DataArray, **where: object) -> float:
    return float(values.squeeze(["source", "protocol"]).sel(where).squeeze())


def _phases_s(results: xr.Dataset, names: list[str], **where: object) -> float:
    times = results["phase_time_s"].squeeze(["source", "protocol", "iteration", "rank"]).sel(where)
    return float(times.sel(phase=names).sum("phase"))


@pytest.mark.parametrize("model", _MODELS)
@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("micro_batch", [1, 64])
def test_bandwidths_are_those_of_the_weights_in_half_precision(
    predicted: xr.Dataset, model: str, gpus: int, micro_batch: int
) -> None:
    where = {"model": model, "gpus": gpus, "micro_batch_size": micro_batch}
    for name, phase in COLLECTIVES.items():
        seconds = _phases_s(predicted, [phase], **where)
        times = collective_times_s(predicted).sel(collective=name)
        assert _one(times, **where) == pytest.approx(seconds)
        found = _one(collective_busbw_GBps(predicted).sel(collective=name), **where)
        assert found == pytest.approx((gpus - 1) / gpus * _BYTES[model] / seconds / 1e9)
        # Which is the bus bandwidth of nccl-tests for either collective.
        for operation in ("reduce_scatter", "all_gather"):
            assert found == pytest.approx(
                float(busbw_GBps(operation, gpus, _BYTES[model], seconds))
            )


def test_one_gpu_has_no_bandwidth(predicted: xr.Dataset) -> None:
    assert collective_busbw_GBps(predicted).sel(gpus=1).isnull().all()
    assert collective_busbw_GBps(predicted).sel(gpus=[2, 4, 8]).notnull().all()


@pytest.mark.parametrize("model", _MODELS)
def test_tokens_are_a_micro_batch_of_1024_an_iteration(predicted: xr.Dataset, model: str) -> None:
    tokens = tokens_per_s_per_gpu(predicted)
    times = predicted["iteration_time_s"].squeeze(["source", "protocol", "iteration", "rank"])
    for gpus in (1, 8):
        for micro_batch in (1, 4, 64):
            where = {"model": model, "gpus": gpus, "micro_batch_size": micro_batch}
            by_hand = micro_batch * 1024 / float(times.sel(where))
            assert _one(tokens, **where) == pytest.approx(by_hand)


def test_times_are_those_at_full_scale(predicted: xr.Dataset) -> None:
    slower = predicted.assign(time_scale=2 * predicted["time_scale"])
    np.testing.assert_allclose(
        collective_busbw_GBps(slower), 2 * collective_busbw_GBps(predicted), rtol=1e-12
    )
    np.testing.assert_allclose(
        tokens_per_s_per_gpu(slower), 2 * tokens_per_s_per_gpu(predicted), rtol=1e-12
    )


def test_bandwidths_in_a_table(predicted: xr.Dataset) -> None:
    table = bandwidth_table(predicted)
    assert list(table.columns) == [
        "reduce-scatter, ms",
        "all-gather, ms",
        "reduce-scatter, GB/s",
        "all-gather, GB/s",
    ]
    assert set(table.index) == {(model, gpus) for model in _MODELS for gpus in (2, 4, 8)}
    assert table.notnull().all(axis=None)
    for (model, gpus), row in table.iterrows():  # type: ignore[misc]
        for name in COLLECTIVES:
            by_hand = (gpus - 1) / gpus * _BYTES[model] / row[f"{name}, ms"] / 1e6
            # Two decimals of 1.85 ms are 0.3 %.
            assert row[f"{name}, GB/s"] == pytest.approx(by_hand, rel=0.004)


def test_shares_by_source(predicted: xr.Dataset) -> None:
    slower = predicted.assign(iteration_time_s=2 * predicted["iteration_time_s"])
    measured = slower.assign_coords(source=["testbed"])
    table = share_table(measured, predicted, not_run({"cluster": "no GPU"}))
    assert list(table.columns) == ["testbed", "predicted"]
    assert len(table) == 2 * 7
    times = predicted["iteration_time_s"].squeeze(["source", "protocol", "iteration", "rank"])
    for model in _MODELS:
        where = {"model": model, "gpus": 8, "micro_batch_size": 4}
        share = 100 * _phases_s(predicted, _COMMUNICATION, **where) / float(times.sel(where))
        row = table.loc[(model, 4)]
        assert row["predicted"] == pytest.approx(share, abs=0.05)
        assert row["testbed"] == pytest.approx(share / 2, abs=0.05)
    assert share_table(not_run({"cluster": "no GPU"})).equals(pd.DataFrame())


def test_the_reports_own_numbers_contradict_each_other() -> None:
    (entry,) = [c for c in contradictions() if c.quantity == "GPT-350M, bandwidth between nodes"]
    assert (entry.stated, entry.unit) == (11.29, "GB/s")
    # 700 MB in 62 ms among 8 GPUs.
    by_formula = float(busbw_GBps("all_gather", 8, 700e6, 62e-3))
    assert by_formula == pytest.approx(9.88, abs=0.005)
    assert entry.implied == pytest.approx(by_formula)
    # And the weights of the model that is meant have no other size.
    assert _BYTES["gpt-350m"] == pytest.approx(700e6, rel=0.02)
