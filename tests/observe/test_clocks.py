"""Offsets of clocks: of real ranks, whose machine has one clock, and in closed form."""

import time
from itertools import pairwise

import numpy as np
import pytest
import torch.distributed as dist
from rank_pool import RankPool

from repro.observe.clock_offsets import ClockOffset, on_rank0_clock
from repro.observe.clocks import measure_offset

# What floating-point numbers of monotonic clocks differ by.
_ROUNDING_S = 1e-6


pytestmark = pytest.mark.alone


def _measure() -> tuple[float, ClockOffset, float]:
    begin = time.monotonic()
    return begin, measure_offset(), time.monotonic()


def _measure_shifted(shifts_s: tuple[float, ...]) -> ClockOffset:
    shift_s = shifts_s[dist.get_rank()]
    return measure_offset(clock=lambda: time.monotonic() + shift_s)


def _measure_while_drifting(rate: float, instants: int) -> list[tuple[float, float]]:
    """How far rank 0's clock, as this rank makes it out, is ahead of the machine's at instants.

    This rank's own clock runs faster by `rate` times its number. Second is the uncertainty.
    """

    def clock(machine_s: float | None = None) -> float:
        machine_s = time.monotonic() if machine_s is None else machine_s
        return machine_s * (1 + rate * dist.get_rank())

    before = measure_offset(clock=clock)
    seen_s = []
    for _ in range(instants):
        time.sleep(0.05)
        seen_s.append(time.monotonic())
    after = measure_offset(clock=clock)
    uncertainty_s = max(before.uncertainty_s, after.uncertainty_s)
    return [(on_rank0_clock(clock(one), before, after) - one, uncertainty_s) for one in seen_s]


@pytest.mark.slow
def test_ranks_of_one_machine_have_one_clock(pool: RankPool) -> None:
    answers = pool.run(_measure, ranks=4)
    for begin_s, offset, end_s in answers:
        assert abs(offset.offset_s) <= offset.uncertainty_s + _ROUNDING_S
        assert begin_s <= offset.at_s <= end_s
    assert (answers[0][1].offset_s, answers[0][1].uncertainty_s) == (0.0, 0.0)
    assert all(offset.uncertainty_s > 0 for _, offset, _ in answers[1:])


@pytest.mark.slow
def test_a_shifted_clock_is_found_in_either_direction(pool: RankPool) -> None:
    shifts_s = (100.0, 105.0, 97.0)
    offsets = pool.run(_measure_shifted, shifts_s, ranks=3)
    for shift_s, offset in zip(shifts_s, offsets, strict=True):
        assert abs(offset.offset_s - (shift_s - 100.0)) <= offset.uncertainty_s + _ROUNDING_S


@pytest.mark.slow
def test_a_rank_alone_is_its_own_reference(pool: RankPool) -> None:
    (offset,) = pool.run(_measure_shifted, (5.0,), ranks=1)
    assert (offset.offset_s, offset.uncertainty_s) == (0.0, 0.0)


@pytest.mark.slow
def test_times_of_a_drifting_clock_are_right_all_along(pool: RankPool) -> None:
    """Clocks that differ by a tenth, some 30 ms from one measurement to the other."""
    for answers in pool.run(_measure_while_drifting, 0.1, 6, ranks=2):
        for error_s, uncertainty_s in answers:
            assert abs(error_s) <= uncertainty_s + _ROUNDING_S
            assert uncertainty_s < 0.015


def test_a_constant_drift_is_undone_exactly() -> None:
    true_s = np.linspace(0.0, 86_400.0, 25)
    # 10 parts per million fast, and 5 s ahead at the start.
    own_s = 5.0 + true_s * (1 + 1e-5)
    before = ClockOffset(own_s[0], own_s[0] - true_s[0], 1e-4)
    after = ClockOffset(own_s[-1], own_s[-1] - true_s[-1], 1e-4)
    np.testing.assert_allclose(on_rank0_clock(own_s, before, after), true_s, rtol=0, atol=1e-9)
    assert on_rank0_clock(float(own_s[7]), before, after) == pytest.approx(true_s[7], abs=1e-9)
    # Beyond the two measurements the same line goes on.
    assert on_rank0_clock(5.0 - 1e3 * (1 + 1e-5), before, after) == pytest.approx(-1e3, abs=1e-9)


def test_what_the_offsets_are_wrong_by_bounds_what_times_are_wrong_by() -> None:
    before, after = ClockOffset(0.0, 0.002, 0.002), ClockOffset(10.0, -0.001, 0.001)
    times_s = on_rank0_clock(np.linspace(0.0, 10.0, 11), before, after)
    assert np.abs(times_s - np.linspace(0.0, 10.0, 11)).max() <= 0.002 + _ROUNDING_S
    assert all(one < other for one, other in pairwise(times_s))


def test_two_measurements_at_one_time_are_refused() -> None:
    one = ClockOffset(1.0, 0.0, 1e-4)
    with pytest.raises(ValueError, match=r"measured at 1.0 s and 1.0 s"):
        on_rank0_clock(2.0, one, one)
