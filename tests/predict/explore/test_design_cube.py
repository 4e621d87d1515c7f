"""A cube of designs: what its points are, its budgets and its Pareto front."""

import numpy as np
import pytest
import xarray as xr

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.gpus import gpu
from repro.catalog.systems.technology import read_technology
from repro.errors import ReproError
from repro.predict.explore.hardware.design_cube import design_cube, pareto_front, with_budget
from repro.predict.explore.hardware.generations import fastest
from repro.predict.explore.jobs.fused_plans import Training

_TRAINING = Training(open_model("llama3.1-8b"), 64, 512, precisions=("bf16",))
_AXES = {
    # Pairs, so that slopes are those at their places.
    "peak_tflops": [100.0, 110.0, 312.0, 340.0, 2700.0, 3000.0],
    "memory_gbytes_per_s": [200.0, 220.0, 2039.0, 2200.0, 7200.0, 8000.0],
    "network_gbps": [10.0, 11.0, 200.0, 220.0, 2900.0, 3200.0],
    "memory_gb": [40.0, 80.0],
}


@pytest.fixture(scope="module")
def cube() -> xr.Dataset:
    home = gpu("a100-sxm-80gb")
    return design_cube(
        _TRAINING,
        read_technology(),
        link_gbytes_per_s=home.link_gbytes_per_s,
        domain_gpus=home.domain_gpus,
        **_AXES,
    )


def test_the_references_own_point_is_its_fastest_plan(cube: xr.Dataset) -> None:
    at = cube.sel(peak_tflops=312.0, memory_gbytes_per_s=2039.0, network_gbps=200.0, memory_gb=80.0)
    best = fastest(_TRAINING, gpu("a100-sxm-80gb")).iteration_time_s
    assert float(at.iteration_time_s) == pytest.approx(best)


def test_no_rate_slows_a_design_down(cube: xr.Dataset) -> None:
    for name in _AXES:
        assert bool((cube.iteration_time_s.diff(name) <= 1e-12).all())


def test_what_is_scarce_is_waited_for(cube: xr.Dataset) -> None:
    names = cube.bound.attrs["meanings"]

    def bound(tflops: float, memory: float, network: float) -> str:
        rates = {"peak_tflops": tflops, "memory_gbytes_per_s": memory, "network_gbps": network}
        return str(names[int(cube.bound.sel({**rates, "memory_gb": 80.0}))])

    assert bound(100, 8000, 3200) == "compute"
    assert bound(3000, 200, 3200) == "memory"
    assert bound(3000, 8000, 10) == "network"


def test_a_rate_that_bounds_all_makes_it_as_much_faster(cube: xr.Dataset) -> None:
    slow = cube.elasticity.sel(rate="compute", peak_tflops=100.0, memory_gbytes_per_s=8000.0)
    assert (slow > 0.8).all()


def test_budgets_are_the_references_at_home(cube: xr.Dataset) -> None:
    home = with_budget(cube, read_technology(), 7.0).sel(
        peak_tflops=312.0, memory_gbytes_per_s=2039.0, network_gbps=200.0
    )
    # Its network is beside the 400 W.
    assert float(home.power_w) == pytest.approx(400 + 200e9 * 20e-12)
    assert float(home.area_mm2) == pytest.approx(826)
    newer = with_budget(cube, read_technology(), 5.0).sel(peak_tflops=312.0)
    assert float(newer.area_mm2) == pytest.approx(826 / 1.84)


def test_nothing_is_better_than_the_front(cube: xr.Dataset) -> None:
    designs = with_budget(cube, read_technology(), 3.0)
    front = pareto_front(designs, area_mm2=800)
    assert front.power_w.is_monotonic_increasing
    assert front.iteration_time_s.is_monotonic_decreasing
    assert (front.area_mm2 <= 800).all()
    power = designs.power_w.broadcast_like(designs.iteration_time_s)
    small = designs.area_mm2.broadcast_like(designs.iteration_time_s) <= 800
    for row in front.itertuples():
        better = (power < row.power_w) & (designs.iteration_time_s < row.iteration_time_s)
        assert not bool((better & small).any())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("peak_tflops", -3.0, "peak_tflops -3: take 1 to 1e\\+06"),
        ("network_gbps", np.nan, "network_gbps nan: take 1 to 100000"),
        ("memory_gbytes_per_s", 1e12, "memory_gbytes_per_s 1e\\+12: take 10 to 1e\\+06"),
    ],
)
def test_an_absurd_design_is_named(name: str, value: float, message: str) -> None:
    with pytest.raises(ReproError, match=message):
        design_cube(_TRAINING, read_technology(), **{**_AXES, name: [value]})


def test_a_node_that_nobody_has_is_named(cube: xr.Dataset) -> None:
    with pytest.raises(ReproError, match="node 4 nm: choose from 12, 7, 5"):
        with_budget(cube, read_technology(), 4.0)
