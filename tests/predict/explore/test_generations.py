"""Parts of a speed-up multiply to the whole, and designs follow their node's density and energy."""

from dataclasses import replace

import numpy as np
import pytest

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.gpus import gpu
from repro.catalog.systems.technology import read_technology
from repro.errors import ReproError
from repro.predict.explore.hardware.designs import (
    BOUNDS,
    designs_gained,
    explore_designs,
    peak_flops,
)
from repro.predict.explore.hardware.generations import (
    PARTS,
    fastest,
    generations,
    hybrid,
    more_gpus,
    speed_up_by_part,
)
from repro.predict.explore.jobs.fused_plans import Training
from repro.predict.fused.iteration import Phases

_OLD, _NEW = gpu("a100-sxm-80gb"), gpu("gb200")
_TRAINING = Training(open_model("llama3.1-8b"), 64, 512)


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
    technology, one = read_technology(), np.ones(1)
    reference = technology.reference
    area, power = reference.area_mm2, reference.power_w
    at_home = peak_flops(technology, 7.0 * one, area * one, power * one)
    assert at_home == pytest.approx(312e12)
    # Twice the area is power's to use, and twice the power area's.
    assert peak_flops(technology, 7.0 * one, 2 * area * one, power * one) == at_home
    assert peak_flops(technology, 7.0 * one, area * one, 2 * power * one) == at_home
    # 1.84 times the density needs less than 1 / 0.7 of the power.
    small = peak_flops(technology, 5.0 * one, area * one, power * one)
    assert small == pytest.approx(312e12 / 0.7)


def test_the_node_explains_the_v100_and_half_of_the_b200() -> None:
    gained = designs_gained(read_technology()).gained
    assert gained["V100-SXM2-16GB"] == pytest.approx(1.0, abs=0.1)
    assert 1.5 < gained["B200-SXM-180GB"] < 2.5


def test_designs_are_slower_with_less_of_anything() -> None:
    found = explore_designs(_TRAINING, read_technology(), area_mm2=[400, 800], power_w=[300, 700])
    time_s = found.waited_s.sum("bound", skipna=False)
    assert found.sizes["nm"] == 7 and bool(time_s.notnull().any())
    for name in ("area_mm2", "power_w", "network_gbps"):
        assert bool((time_s.diff(name) <= 1e-12).where(time_s.diff(name).notnull(), True).all())
    assert bool((time_s.sel(nm=1.0) < time_s.sel(nm=12.0)).where(time_s.sel(nm=1).notnull()).any())


def test_every_phase_is_waited_for_once() -> None:
    phases = [phase for parts in BOUNDS.values() for phase in parts]
    assert sorted(phases) == sorted(Phases.__dataclass_fields__)


def test_an_absurd_design_is_named() -> None:
    with pytest.raises(ReproError, match="power_w -5: take 1 to 100000"):
        explore_designs(_TRAINING, read_technology(), area_mm2=[400], power_w=[-5])
