"""Reading of OSU micro-benchmarks: their sizes and rates as nccl-tests defines them."""

from pathlib import Path

import pytest

from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.logs.measurements import Reading
from repro.logs.osu import read_osu

SAMPLES = Path(__file__).parent / "samples"
ALL_GATHER = (SAMPLES / "osu_allgather_full.txt").read_text(encoding="utf-8")
SEVERAL = (SAMPLES / "osu_several.txt").read_text(encoding="utf-8")


def printed(test: str, row: str, header: str = "# Size       Avg Latency(us)") -> str:
    return f"# OSU MPI {test} Test v7.5\n# Datatype: MPI_CHAR.\n{header}\n{row}\n"


def only(reading: Reading) -> str:
    """Why the one row was not read."""
    rows, (problem,) = reading
    assert rows == []
    return problem


def test_an_all_gathers_size_is_that_of_all_ranks() -> None:
    rows, skipped = read_osu(ALL_GATHER, ranks=8)
    assert skipped == []
    assert [row.size_bytes for row in rows] == [8 * 4096, 8 * 65536, 8 * 1048576]
    largest = rows[-1]
    assert (largest.collective, largest.dtype, largest.nodes) == ("all_gather", "int8", None)
    assert largest.time_us == 402.16
    # (n - 1)/n of all ranks' data over the time.
    assert largest.busbw_GBps == pytest.approx(7 / 8 * 8 * 1048576 / 402.16e-6 * 1e-9)


@pytest.mark.parametrize(
    ("test", "collective", "size"),
    [
        ("Allreduce Latency", "all_reduce", 1024),
        ("Reduce_scatter Latency", "reduce_scatter", 1024),
        ("Broadcast Latency", "broadcast", 1024),
        ("Reduce Latency", "reduce", 1024),
        ("Allgather Latency", "all_gather", 4096),
        ("All-to-All Personalized Exchange Latency", "all_to_all", 4096),
    ],
)
def test_sizes_of_every_collective(test: str, collective: str, size: int) -> None:
    (row,), _ = read_osu(printed(test, "1024      12.50"), ranks=4)
    assert (row.collective, row.size_bytes, row.ranks) == (collective, size, 4)
    assert row.algbw_GBps == pytest.approx(size / 12.5e3)
    assert row.busbw_GBps == pytest.approx(float(bus_factor(collective, 4)) * size / 12.5e3)


def test_several_benchmarks_of_one_file() -> None:
    rows, skipped = read_osu(SEVERAL, ranks=8)
    assert [row.collective for row in rows] == 2 * ["all_to_all"] + 5 * ["send_recv"]
    assert [row.dtype for row in rows] == [None, None, "float", "float", "int8", "int8", "int8"]
    assert {row.ranks for row in rows[2:]} == {2}
    gather, empty, slow = skipped
    assert gather.startswith("line 9: 'OSU MPI Gather Latency Test v7.5' is not supported; choose")
    assert empty.startswith("line 17: no bytes to move")
    assert slow.startswith("line 24: its rate is 0 MB/s")


def test_rates_are_of_one_direction() -> None:
    """MB/s are 1e6 B/s; a bi-directional rate counts what each of the two ranks sends."""
    *_, one_way, both_ways = read_osu(SEVERAL, ranks=8)[0]
    assert one_way.busbw_GBps == pytest.approx(24.51261)
    assert one_way.time_us == pytest.approx(4194304 / 24512.61)
    assert both_ways.busbw_GBps == pytest.approx(47.18592 / 2)
    assert both_ways.time_us == pytest.approx(2 * 4194304 / 47185.92)


def test_only_collectives_need_the_ranks() -> None:
    with pytest.raises(
        ReproError, match=r"does not contain the number of ranks; fix: give --ranks N"
    ):
        read_osu(ALL_GATHER, ranks=None)
    (row,), _ = read_osu(printed("Latency", "8      1.50"), ranks=None)
    assert (row.collective, row.ranks, row.time_us) == ("send_recv", 2, 1.5)


@pytest.mark.parametrize("library", ["MPI", "MPI-CUDA", "MPI-ROCM", "NCCL-CUDA", "RCCL-ROCM"])
def test_titles_of_libraries_and_accelerators(library: str) -> None:
    text = printed("Allreduce Latency", "1024      12.50").replace("MPI ", f"{library} ")
    assert [row.collective for row in read_osu(text, ranks=4)[0]] == ["all_reduce"]


@pytest.mark.parametrize(
    "title", ["MPI Non-blocking Allreduce Latency", "MPI_Get latency", "MPI Allgatherv Latency"]
)
def test_other_benchmarks_are_refused_by_name(title: str) -> None:
    text = printed("Latency", "1024      12.50").replace("MPI Latency", title)
    assert only(read_osu(text, ranks=4)).startswith(f"line 1: 'OSU {title} Test v7.5' is not supp")


def test_tags_of_mpirun() -> None:
    tagged = "\n".join(f"[1,0]<stdout>:{line}" for line in ALL_GATHER.splitlines())
    assert read_osu(tagged, ranks=8) == read_osu(ALL_GATHER, ranks=8)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("1024", "1 columns where the header has 2"),
        ("1024      12.50    3", "3 columns where the header has 2"),
        ("1024      12.5", "lacks the two decimals"),
        ("1024      0.00", "its time is 0 us"),
        ("1024      -3.00", "its time is -3 us"),
        ("1024      nan", "its time is nan us"),
        ("1024      fast", "could not convert"),
        ("1k24      12.50", "invalid literal"),
    ],
)
def test_malformed_rows_are_named(row: str, problem: str) -> None:
    text = printed("Allreduce Latency", f"{row}\n2048      20.00")
    rows, (skipped,) = read_osu(text, ranks=4)
    assert [found.size_bytes for found in rows] == [2048]
    assert skipped.startswith("line 4: ")
    assert problem in skipped


def test_a_rows_other_columns() -> None:
    header = "# Size       Avg Latency(us)        Validation"
    rows, (failed,) = read_osu(
        printed("Reduce Latency", "8   1.50   Pass\n16   1.60   Fail", header), ranks=4
    )
    assert [row.size_bytes for row in rows] == [8]
    assert "its validation is 'Fail'" in failed
    header = "# Size       Avg Latency(us)     Transmit Size"
    assert "derived" in only(read_osu(printed("Reduce Latency", "8   1.50   4", header), ranks=4))
    header = "# Size      Bandwidth (MB/s)"
    assert "is not in (us)" in only(read_osu(printed("Latency", "8   1.50", header), ranks=4))


def test_a_header_that_is_cut_has_no_rows() -> None:
    rows, skipped = read_osu(printed("Latency", "8", "# Size") + ALL_GATHER, ranks=8)
    assert len(rows) == 3
    assert skipped == []
