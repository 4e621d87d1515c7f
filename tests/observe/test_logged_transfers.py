"""Roles of process groups, and clocks that do not agree."""

from dataclasses import replace

import pytest

from repro.errors import ReproError
from repro.observe.transfers import Transfer, check_clocks, role_of

_MADE_UP = Transfer(
    iteration=0,
    operation="all_reduce",
    role="data",
    ranks=(0, 1),
    size_bytes=8,
    dtype="float32",
    phase="gradient sync",
    asynchronous=False,
    peer=-1,
    start_s=1.0,
    end_s=1.2,
)


@pytest.mark.parametrize(
    ("description", "operation", "role"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "all_reduce", "tensor"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "all_reduce", "data"),
        ("MODEL_PARALLEL_GROUP", "all_reduce", "optimizer"),
        ("EXPERT_DATA_PARALLEL_GROUP", "all_gather", "expert"),
        ("default_pg", "all_reduce", "world"),
        ("default_pg", "send", "pipeline"),
        ("undefined", "send", "other"),
    ],
)
def test_a_group_is_for_what_its_description_says(
    description: str, operation: str, role: str
) -> None:
    assert role_of(description, operation) == role


def test_clocks_that_agree_to_less_than_a_collective_are_let_pass() -> None:
    check_clocks([[_MADE_UP], [replace(_MADE_UP, start_s=1.15, end_s=1.3)]])


def test_a_rank_that_leaves_before_another_comes_has_another_clock() -> None:
    later = [replace(_MADE_UP, start_s=2.0, end_s=2.2), replace(_MADE_UP, start_s=3.0, end_s=3.1)]
    left = r"rank 0 left all_reduce 0\.800000 s before rank 1 entered it: their clocks are not"
    with pytest.raises(ReproError, match=left):
        check_clocks([[_MADE_UP], later[:1]])
    # The k-th call of one rank is the k-th of the other.
    check_clocks([[_MADE_UP, later[1]], [replace(_MADE_UP, start_s=0.9), later[1]]])
