"""Reading of DeepSpeed's communication logger: tables and single operations."""

from pathlib import Path

import pytest

from repro.errors import ReproError
from repro.logs.deepspeed import read_deepspeed

SAMPLES = Path(__file__).parent / "samples"
TABLES = (SAMPLES / "deepspeed_tables.txt").read_text(encoding="utf-8")
LINES = (SAMPLES / "deepspeed_lines.txt").read_text(encoding="utf-8")
KiB, MiB = 1024, 1024**2


def line(operation: str = "all_reduce", time: str = "1.50", size: str = "2.0 MB") -> str:
    return (
        f"[2026-11-21 10:01:12,470] [INFO] [logging.py:107:log_dist] [Rank 0] comm op: {operation}"
        f" | time (ms): {time} | msg size: {size} | algbw (Gbps): 22.37 | busbw (Gbps): 19.57\n"
    )


def test_a_table_is_read_once_and_its_stragglers_are_not() -> None:
    rows, skipped = read_deepspeed(TABLES, ranks=8)
    assert [(row.collective, row.size_bytes) for row in rows] == [
        ("broadcast", 98.25 * MiB),
        ("all_gather", 8 * 6 * MiB),
        ("reduce_scatter", round(678.86 * MiB)),
        ("all_reduce", 224 * KiB),
    ]
    assert [row.time_us for row in rows] == pytest.approx([8317120.0, 160.0, 9670.0, 50.0])
    short, barrier = skipped
    assert short == "line 4: its time is 0 us: '2.0 KB 146 0.42 0.00 5.96 5.96'"
    assert barrier.startswith("line 13: operation 'barrier' is not supported: '0B 4")


def test_bandwidths_are_those_of_the_definition_and_not_the_printed_ones() -> None:
    """An all-reduce's `tput` is twice the size over the time; its busbw is nccl-tests'."""
    *_, all_reduce = read_deepspeed(TABLES, ranks=8)[0]
    assert all_reduce.algbw_GBps == pytest.approx(73.40 / 8 / 2, rel=1e-3)
    assert all_reduce.busbw_GBps == pytest.approx(64.23 / 8, rel=1e-3)


def test_single_operations_are_read_and_the_tables_that_sum_them_up_are_not() -> None:
    rows, (gather,) = read_deepspeed(LINES, ranks=8)
    assert [(row.collective, row.ranks, row.size_bytes, row.time_us) for row in rows] == [
        ("reduce_scatter", 8, round(678.86 * MiB), 9460.0),
        ("all_reduce", 8, 40 * MiB, 3200.0),
        ("all_gather", 8, 8 * 6 * MiB, 110.0),
        ("send_recv", 2, 512, 250.0),
    ]
    assert gather.startswith("line 4: operation 'gather' is not supported: 'comm op")
    # (n - 1)/n of all ranks' data over the time.
    assert rows[2].busbw_GBps == pytest.approx(7 * 6 * MiB / 110e-6 * 1e-9)


@pytest.mark.parametrize(
    ("operation", "collective", "shares"),
    [
        ("all_reduce_coalesced", "all_reduce", 1),
        ("all_gather_base", "all_gather", 4),
        ("reduce_scatter_tensor", "reduce_scatter", 1),
        ("all_to_all_single", "all_to_all", 1),
        ("reduce | [Caller Func: average_tensor]", "reduce", 1),
        ("irecv", "send_recv", 1),
    ],
)
def test_operations_and_their_sizes(operation: str, collective: str, shares: int) -> None:
    (row,), _ = read_deepspeed(line(operation), ranks=4)
    assert (row.collective, row.size_bytes) == (collective, shares * 2 * MiB)


@pytest.mark.parametrize(
    ("size", "size_bytes"),
    [("7 B", 7), ("1.5 KB", 1536), ("2.0 MB", 2 * MiB), ("3.25 GB", 3.25 * 1024**3)],
)
def test_sizes_are_in_powers_of_1024(size: str, size_bytes: int) -> None:
    assert read_deepspeed(line(size=size), ranks=4)[0][0].size_bytes == size_bytes


def test_only_collectives_need_the_ranks() -> None:
    for text in (TABLES, LINES):
        with pytest.raises(
            ReproError, match=r"does not contain the number of ranks; fix: give --ranks N"
        ):
            read_deepspeed(text, ranks=None)
    assert read_deepspeed(line("send"), ranks=None)[0][0].ranks == 2


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (line(time="0.00"), "its time is 0 us"),
        (line(time="-1.00"), "its time is -1000 us"),
        (line(time="nan"), "its time is nan us"),
        (line(time="fast"), "could not convert"),
        (line(size="0B"), "no bytes to move"),
        (line(size="2.0 Mb"), "not a complete line of an operation"),
        ("comm op: all_reduce | time (ms): 1.\n", "not a complete line of an operation"),
    ],
)
def test_malformed_lines_are_named(bad: str, problem: str) -> None:
    rows, (skipped,) = read_deepspeed(line() + bad + line("broadcast"), ranks=4)
    assert [row.collective for row in rows] == ["all_reduce", "broadcast"]
    assert skipped.startswith("line 2: ")
    assert problem in skipped


def test_rows_of_a_table_that_are_not_whole_are_named() -> None:
    cut = TABLES[: TABLES.index("588.91")]
    rows, skipped = read_deepspeed(cut, ranks=8)
    assert [row.collective for row in rows] == ["broadcast", "all_gather"]
    assert skipped[-1] == ("line 9: not the seven columns of the table: '678.86 MB 40 386.80 9.67'")
