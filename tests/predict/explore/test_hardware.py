"""Speed-up by GPU: parts multiply to the whole; designs follow their node, rates and budget."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.gpus import gpu
from repro.catalog.systems.technology import read_technology
from repro.errors import ReproError
from repro.predict.explore.hardware import (
    BOUNDS,
    PARTS,
    design_cube,
    designs_by_node,
    fastest,
    gains_by_design,
    generations,
    hybrid,
    more_gpus,
    pareto_front,
    scaled_peak_tflops,
    speed_up_by_part,
    with_budget,
)
from repro.predict.explore.jobs.fused_plans import Training
from repro.predict.fused.iteration import FusedPhases

_OLD, _NEW = gpu("a100-sxm-80gb"), gpu("gb200")
_TRAINING = Training(open_model("llama3.1-8b"), 64, 512)
# More than one domain of links.
_HALF = replace(_TRAINING, gpus=1024, global_batch=2048, precisions=("bf16",))
_AXES = {
    # Pairs, so that slopes are those at their places.
    "peak_tflops": [100.0, 110.0, 312.0, 340.0, 2700.0, 3000.0],
    "memory_gbytes_per_s": [200.0, 220.0, 2039.0, 2200.0, 7200.0, 8000.0],
    "network_gbps": [10.0, 11.0, 200.0, 220.0, 2900.0, 3200.0],
    "memory_gb": [40.0, 80.0],
}


def test_all_parts_make_the_newer_gpu_and_none_the_older() -> None:
    assert hybrid(_OLD, _NEW, frozenset()) == _OLD
    whole = hybrid(_OLD, _NEW, frozenset(PARTS))
    same = {"label": whole.label, "published_as": whole.published_as, "source": whole.source}
    assert whole == _NEW.model_copy(update=same)


def test_units_for_low_precision_are_as_many_times_as_fast() -> None:
    found = hybrid(_OLD, _NEW, frozenset({"precision"}))
    assert found.fp8_flops == pytest.approx(2 * 312e12)
    assert found.fp4_flops == pytest.approx(4 * 312e12)


@pytest.mark.slow
def test_factors_multiply_to_the_whole_speed_up() -> None:
    parts = speed_up_by_part(_TRAINING, _OLD, _NEW)
    before, after = (fastest(_TRAINING, one).iteration_time_s for one in (_OLD, _NEW))
    assert parts.factor.prod() == pytest.approx(before / after)
    assert (parts["least"] <= parts.factor).all() and (parts.factor <= parts["most"]).all()
    alone = fastest(_TRAINING, hybrid(_OLD, _NEW, frozenset({"computing"}))).iteration_time_s
    assert parts.loc["computing", "first"] == pytest.approx(before / alone)
    without = hybrid(_OLD, _NEW, frozenset(PARTS) - {"memory"})
    last = fastest(_TRAINING, without).iteration_time_s / after
    assert parts.loc["memory", "last"] == pytest.approx(last)


def test_a_precision_needs_units_for_it() -> None:
    only_fp4 = replace(_TRAINING, precisions=("bf16", "nvfp4"))
    assert fastest(only_fp4, gpu("h100-sxm-80gb"))["dtype"] == "bf16"
    assert fastest(only_fp4, _NEW)["dtype"] == "nvfp4"


def test_gpus_without_the_memory_are_left_out() -> None:
    table = generations(replace(_TRAINING, gpus=1, global_batch=8), ["a100-sxm-40gb", "gb300"])
    assert list(table.index) == ["GB300 (one GPU)"]


def test_more_gpus_are_faster_by_less_than_their_number() -> None:
    found = more_gpus(_TRAINING, _OLD, _NEW, times=(1, 4)).times_as_fast
    assert found[1] < found[4] < 4 * found[1]


def test_steps_between_nodes_agree_with_the_foundrys_own_sum() -> None:
    """From N7 to A14, 4.2 times the efficiency (TSMC, Open Innovation Platform Forum, 2025)."""
    assert 1 / read_technology().energy(1.4) == pytest.approx(4.2, rel=0.05)


def test_a_peak_is_limited_by_area_or_by_power() -> None:
    technology = read_technology()
    reference = technology.reference

    def peak(nm: float, area: float, power: float) -> float:
        return scaled_peak_tflops(
            technology, nm, area * reference.area_mm2, power * reference.power_w
        )

    assert peak(7.0, 1, 1) == pytest.approx(312)
    # Twice the area is power's to use, and twice the power area's.
    assert peak(7.0, 2, 1) == peak(7.0, 1, 1) == peak(7.0, 1, 2)
    # 1.84 times the density needs less than 1 / 0.7 of the power.
    assert peak(5.0, 1, 1) == pytest.approx(312 / 0.7)


def test_the_node_explains_the_v100_and_half_of_the_b200() -> None:
    gained = gains_by_design(read_technology()).gained
    assert gained["V100-SXM2-16GB"] == pytest.approx(1.0, abs=0.1)
    assert 1.5 < gained["B200-SXM-180GB"] < 2.5


def test_designs_are_slower_with_less_of_anything() -> None:
    def seconds(area: float = 800, power: float = 700, network: float = 400) -> xr.DataArray:
        found = designs_by_node(
            _TRAINING, read_technology(), area_mm2=area, power_w=power, network_gbps=network
        )
        return found.sum("bound", skipna=False)

    most = seconds()
    assert most.sizes["nm"] == 7 and bool(most.notnull().any())
    for less in (seconds(area=400), seconds(power=300), seconds(network=25)):
        assert bool((less >= most - 1e-12).where(most.notnull(), True).all())
    assert bool((most.sel(nm=1.0) < most.sel(nm=12.0)).where(most.sel(nm=1).notnull()).any())


def test_every_phase_is_waited_for_once() -> None:
    phases = [phase for parts in BOUNDS.values() for phase in parts]
    assert sorted(phases) == sorted(FusedPhases.__dataclass_fields__)


@pytest.fixture(scope="module")
def cube() -> xr.Dataset:
    return design_cube(_HALF, read_technology(), _AXES)


def test_the_references_own_point_is_its_fastest_plan(cube: xr.Dataset) -> None:
    at = cube.sel(peak_tflops=312.0, memory_gbytes_per_s=2039.0, network_gbps=200.0, memory_gb=80.0)
    with_its_links = _OLD.model_copy(update={"link_gbytes_per_s": 900.0, "domain_gpus": 72})
    best = fastest(_HALF, with_its_links).iteration_time_s
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


def test_budgets_are_the_references_at_home(cube: xr.Dataset) -> None:
    home = with_budget(cube, read_technology(), 7.0).sel(
        peak_tflops=312.0, memory_gbytes_per_s=2039.0, network_gbps=200.0
    )
    # Its network is beside the 400 W, and so are links that are three times as fast.
    added = 200e9 * 20e-12 + 8 * 600e9 * 5e-12
    assert float(home.power_w) == pytest.approx(400 + added)
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


@pytest.mark.parametrize("value", [-3.0, 0.0, np.nan])
def test_a_rate_that_cannot_be_is_named(value: float) -> None:
    with pytest.raises(ReproError, match=f"network_gbps {value:g}: take more than 0"):
        design_cube(_HALF, read_technology(), {**_AXES, "network_gbps": [value]})
