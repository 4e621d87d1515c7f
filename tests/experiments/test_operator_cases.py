"""What a measured iteration takes, of ranks that were disturbed now and then."""

import numpy as np
import pytest

from repro.catalog.studies.operators import read_operator_study
from repro.experiments.operators import Case


def _case(passes_s: np.ndarray, collectives_s: np.ndarray) -> Case:
    return Case("dlrm", "judged", passes_s.shape[1], passes_s, collectives_s, [])


def test_the_slowest_rank_of_each_pass_and_the_last_to_come_to_each_collective() -> None:
    # Two ranks, of which each is the slower one in one of two passes.
    passes_s = np.tile([[1.0, 4.0], [3.0, 2.0]], (8, 1, 1))
    # The first one waits for the second.
    collectives_s = np.tile([[2.5], [0.5]], (8, 1, 1))
    assert _case(passes_s, collectives_s).time_s == pytest.approx(3 + 4 + 0.5)


def test_what_the_machine_delays_now_and_then_does_not_count() -> None:
    passes_s, collectives_s = np.full((9, 2, 1), 1.0), np.full((9, 2, 1), 0.25)
    undisturbed = _case(passes_s.copy(), collectives_s.copy()).time_s
    # A host that stops a pass, and threads that wait for a core in a half of the collectives.
    passes_s[:3], collectives_s[4:] = 9.0, 3.0
    assert _case(passes_s, collectives_s).time_s == pytest.approx(undisturbed)
    # In most of them it is what a collective takes.
    collectives_s[1:] = 3.0
    assert _case(passes_s, collectives_s).time_s == pytest.approx(undisturbed + 2.75)


def test_the_error_is_that_of_a_median() -> None:
    draw = np.random.default_rng(1)
    passes_s = 10 + draw.normal(size=(400, 1, 1))
    found = _case(passes_s, np.empty((400, 1, 0))).standard_error_s
    # Of a normal distribution, of standard deviation 1.
    assert found == pytest.approx(np.sqrt(np.pi / 2 / 400), rel=0.25)


def test_operands_take_turns_in_what_an_iteration_goes_through() -> None:
    study = read_operator_study()
    sizes = (10.0, 20.0, 500.0)
    assert study.operands("index_select", sizes) == (sizes, 0)
    assert study.operands("index_add_", (*sizes, 8e6)) == (sizes, 8e6)
    (_, states), (_, working) = (study.operands(o, sizes) for o in ("embedding", "product nn"))
    assert working < states
