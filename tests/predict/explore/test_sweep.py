"""Sweeps: dimensions broadcast by name, chunk by chunk, and say what they are."""

from dataclasses import replace

import numpy as np
import xarray as xr
from examples import CALIBRATED, GPT, machine_of, rows

from repro.predict.explore.jobs.sweep import predict
from repro.predict.step.iteration import predict_phases
from repro.predict.step.memory import memory
from repro.predict.step.quantities import quantities
from repro.predict.workload import Plan

_DGX = machine_of("dgx-a100")
_GPUS = xr.DataArray([1, 2, 4, 8, 16], dims="gpus", coords={"gpus": [1, 2, 4, 8, 16]})
_MICRO_BATCHES = xr.DataArray([1, 2, 4], dims="micro_batch")
_RECOMPUTE = xr.DataArray(["none", "selective", "full"], dims="recompute")
_PLAN = Plan(
    global_batch_size=64,
    micro_batch_size=_MICRO_BATCHES,
    data_parallel=_GPUS,
    recompute=_RECOMPUTE,
)


def _predict(plan: Plan) -> xr.Dataset:
    return predict("gpt", GPT, plan, _DGX, CALIBRATED)


def test_dimensions_broadcast_by_name() -> None:
    swept = _predict(_PLAN)
    assert dict(swept.iteration_time_s.sizes) == {"micro_batch": 3, "gpus": 5, "recompute": 3}
    assert swept.gpus.values.tolist() == _GPUS.values.tolist()
    for b, b_value in enumerate(_MICRO_BATCHES.values):
        for code, name in enumerate(_RECOMPUTE.values):
            w = rows(Plan(64, b_value, _GPUS.values, recompute=str(name)))
            alone = quantities(w, _DGX, CALIBRATED)
            phases, parts = predict_phases(w, _DGX, CALIBRATED), memory(w)
            one = swept.isel(micro_batch=b, recompute=code)
            for quantity in ("iteration_time_s", "mfu", "hfu", "fabric_bytes"):
                np.testing.assert_allclose(one[quantity], alone[quantity], rtol=1e-12)
            for phase in ("gradient sync", "optimizer"):
                expected = getattr(phases, phase.replace(" ", "_"))
                np.testing.assert_allclose(one.phase_time_s.sel(phase=phase), expected, rtol=1e-12)
            np.testing.assert_allclose(one.memory_bytes.sum("part"), parts.total, rtol=1e-12)


def test_phases_add_up_and_all_is_described() -> None:
    swept = _predict(_PLAN)
    np.testing.assert_allclose(swept.phase_time_s.sum("phase"), swept.iteration_time_s)
    for variable in swept.data_vars.values():
        assert variable.attrs["units"] and variable.attrs["long_name"]


def test_one_plan_is_one_value() -> None:
    assert _predict(Plan(global_batch_size=64)).iteration_time_s.shape == ()


def test_recompute_by_name_is_recompute_by_number() -> None:
    numbers = replace(_PLAN, recompute=_RECOMPUTE.copy(data=[0, 1, 2]))
    xr.testing.assert_identical(_predict(_PLAN), _predict(numbers))


def test_what_cannot_run_is_nan() -> None:
    heads = xr.DataArray([1, 3, 4, 5], dims="tensor_parallel")
    swept = _predict(Plan(global_batch_size=64, tensor_parallel=heads))
    for variable in swept.data_vars.values():
        missing = variable.isnull()
        assert missing.isel(tensor_parallel=[1, 3]).all()
        assert not missing.isel(tensor_parallel=[0, 2]).any()
