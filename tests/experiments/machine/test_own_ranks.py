"""Ranks of processes of their own: their answers, and what they say where they have none."""

import os
from pathlib import Path

import pytest

from repro.errors import ReproError
from repro.experiments.machine.own_ranks import bind_to_core, run_ranks

pytestmark = pytest.mark.slow


def _twice(rank: int, ranks: int, port: int, number: int) -> int:
    return 2 * number + rank


def _fail(rank: int, ranks: int, port: int) -> int:
    if rank == 1:
        raise ReproError("no dataset; make it with `repro corpus dataset gpt`")
    return rank


def _end(rank: int, ranks: int, port: int) -> None:
    raise SystemExit(3)


def _bound(rank: int, ranks: int, port: int, cpus: Path) -> set[int]:
    bind_to_core(rank, cpus)
    return os.sched_getaffinity(0)


def test_answers_are_in_the_order_of_ranks() -> None:
    assert run_ranks("counting", 3, _twice, 10) == [20, 21, 22]


def test_a_ranks_own_words_are_what_the_user_reads() -> None:
    with pytest.raises(ReproError, match=r"^no dataset; make it with `repro corpus dataset gpt`$"):
        run_ranks("counting", 2, _fail)


def test_a_rank_that_ends_without_a_word_is_said_so() -> None:
    with pytest.raises(ReproError, match="counting with 2 ranks: one of them ended"):
        run_ranks("counting", 2, _end)


def test_ranks_are_bound_to_a_core_each_and_share_where_there_are_no_more(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    # Nothing is known of threads: each is a core.
    assert run_ranks("binding", 3, _bound, tmp_path) == [
        {usable[rank % len(usable)]} for rank in range(3)
    ]
    # All are threads of one core.
    for cpu in usable:
        siblings = tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        siblings.parent.mkdir(parents=True)
        siblings.write_text(",".join(map(str, usable)) + "\n")
    assert run_ranks("binding", 2, _bound, tmp_path) == [{usable[0]}] * 2
