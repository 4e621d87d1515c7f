"""The pace of emulated GPUs: what the check of it takes for good, and what it names."""

import pytest

from repro.errors import ReproError
from repro.observe.environment import usable_cores
from repro.testbed.speed import Passes, cores_per_rank, verify_speed


def _passes(wall_s: float, cpu_s: float) -> Passes:
    return Passes((wall_s,) * 5, (cpu_s,) * 5)


def test_ranks_that_keep_their_pace_are_taken() -> None:
    check = verify_speed(0.2, [(_passes(0.05, 0.01), [_passes(0.051, 0.01), _passes(0.05, 0.01)])])
    assert check.cores == 0.2
    assert check.late == pytest.approx(0.02)
    assert check.all_to_one == pytest.approx(1.02)


def test_one_pass_that_was_disturbed_is_no_reason() -> None:
    disturbed = Passes((0.05, 0.05, 0.5), (0.01, 0.01, 0.01))
    verify_speed(0.2, [(_passes(0.05, 0.01), [disturbed])])


def test_a_rank_that_is_late_is_named() -> None:
    with pytest.raises(ReproError, match=r"rank 1 cannot keep its pace of 0.2 cores.*20% late"):
        verify_speed(0.2, [(_passes(0.05, 0.01), [_passes(0.05, 0.01), _passes(0.06, 0.01)])])


def test_one_rank_must_compute_as_fast_as_all() -> None:
    """Both keep the pace, but the cores are slower when all of them are busy."""
    with pytest.raises(ReproError, match=r"rank 0 takes 1\.50 times as long"):
        verify_speed(0.2, [(_passes(0.05, 0.01), [_passes(0.075, 0.015)])])


def test_a_drifting_machine_is_compared_with_itself() -> None:
    """Twice as slow in the second half: one rank and all are, in each of their turns."""
    slow, fast = _passes(0.1, 0.02), _passes(0.05, 0.01)
    check = verify_speed(0.2, [(fast, [fast]), (fast, [fast]), (slow, [slow])])
    assert check.all_to_one == pytest.approx(1.0)


def test_shares_leave_the_network_stack_its_part() -> None:
    assert 8 * cores_per_rank(8) <= 0.8 * usable_cores()
    assert cores_per_rank(1) <= 1.0
