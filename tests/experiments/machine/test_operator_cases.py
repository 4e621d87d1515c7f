"""What a measured iteration takes, of ranks that were disturbed now and then."""

import numpy as np
import pytest

from repro.catalog.studies.operators import read_operator_study
from repro.experiments.machine.operator_cases import IN_A_ROW
from repro.experiments.machine.operators import Case, Sharded, together
from repro.logs.operator_trace import TracedOperator


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
    passes_s = 10 + draw.normal(size=(4000, 1, 1))
    found = np.std(_case(passes_s, np.empty((4000, 1, 0))).drawn_s)
    # Of a normal distribution, of standard deviation 1.
    assert found == pytest.approx(np.sqrt(np.pi / 2 / 4000), rel=0.25)


def test_turns_are_drawn_whole_and_the_same_ones_in_every_case() -> None:
    # Turns of some iterations that a machine has taken longer together.
    turns = np.repeat(np.random.default_rng(1).normal(size=1000), IN_A_ROW)
    one, other = (
        _case(10 + by + turns[:, None, None], np.empty((len(turns), 1, 0))) for by in (0, 3)
    )
    assert np.std(one.drawn_s) == pytest.approx(np.sqrt(np.pi / 2 / 1000), rel=0.25)
    assert other.drawn_s - one.drawn_s == pytest.approx(3)


def test_operands_take_turns_in_what_an_iteration_goes_through() -> None:
    study = read_operator_study()
    sizes = (10.0, 20.0, 500.0)
    assert study.operands("index_add_", (*sizes, 8e6)) == (sizes, 8e6)
    (_, states), (_, working) = (study.operands(o, sizes) for o in ("embedding", "product nn"))
    assert working < states


def test_what_ranks_and_repeats_measured_becomes_one() -> None:
    everywhere, once = ("add/2", (10.0,)), ("relu/1", (10.0,))
    collective = ("all_reduce", (64.0,))
    traced = [TracedOperator(0, "add/2", (10.0,), True, 1, 1.0)]

    def measured(rank: int, repeat: int) -> Sharded:
        # Each repeat has a set of tables of its own. Of four passes and three collectives.
        key = ("judged", repeat, "row-wise")
        laps = [[[10.0 * rank + one] * 4 + [0.5] * 3 for one in (1, 2)], [[3.0] * 4 + [0.5] * 3]]
        return Sharded(
            {everywhere: [1.0 + rank + 10 * repeat], **({once: [1.0]} if repeat else {})},
            # The last one to come does not wait; a quarter of the calls are shorter than that.
            {collective: [[9.0 - rank, 1.0 + rank, 2.0], [3.0, 4.0 * (rank + 1), 5.0]]},
            {key: laps},
            {key: traced},
        )

    found = together([[measured(rank, repeat) for repeat in (0, 1)] for rank in (0, 1)])
    assert found.ranks == 2
    # Means over ranks, by repeat; and nothing that only some repeats had.
    assert found.operators[everywhere] == [1.5, 11.5]
    assert once not in found.operators
    shortest = np.quantile([8.0, 1.0, 2.0, 3.0, 4.0, 5.0], 0.25)
    assert found.operators[collective] == pytest.approx([shortest] * 2)
    assert [case.tables for case in found.cases] == [0, 1]
    for case in found.cases:
        assert case.passes_s[..., 0].tolist() == [[1.0, 11.0], [2.0, 12.0], [3.0, 3.0]]
        assert case.collectives_s.shape == (3, 2, 3)
        assert case.operators == [traced, traced]
