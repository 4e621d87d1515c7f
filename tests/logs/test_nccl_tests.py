"""Reading of nccl-tests' output: three generations of text, JSON, and files that end early."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.logs.measurements import COLUMNS
from repro.logs.reading import read_log
from repro.paths import PUBLISHED

Write = Callable[[str], Path]

SAMPLES = Path(__file__).parent / "samples"
# 2.17 and later: names the test, has a column for every argument, says where it ends.
RECENT = (SAMPLES / "recent_all_reduce.txt").read_text(encoding="utf-8")
# 2.0.0: columns differ by test, nothing names the test, ranks have no groups.
FIRST = (SAMPLES / "first_all_gather.txt").read_text(encoding="utf-8")

PLACES = {
    "both": "    33.10   31.68   {bus}      0    32.90   31.87   {bus}    {in_place}",
    "out of place": "    33.10   31.68   {bus}      0",
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "log"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def unnamed(row: str, ranks: int) -> str:
    """A run of a version in between: today's columns, and no line that names the test."""
    devices = [
        f"#  Rank  {rank} Group  0 Pid   1234 on       node device  {rank} [0x0{rank}] GPU"
        for rank in range(ranks)
    ]
    columns = [
        line for line in RECENT.splitlines() if line.startswith("#  ") and "Rank" not in line
    ]
    return "\n".join(["# nThread 1 nGpus 1", "# Using devices", *devices, "#", *columns, row, ""])


def test_text_of_a_recent_version(write: Write) -> None:
    found = read_log(write(RECENT))
    assert tuple(found.columns) == COLUMNS
    assert len(found) == 6
    assert found.attrs["skipped"] == ()
    first = found.iloc[0]
    assert tuple(first) == (*("all_reduce", "float", 1048576, 4, 2, False, 152.84, 6.86, 10.29, 1),)
    assert found.in_place.tolist() == [False, True] * 3
    assert found.time_us.tolist()[-2:] == [1204.7, 1198.2]


def test_printed_bandwidths_are_those_of_the_definition(write: Write) -> None:
    found = read_log(write(RECENT))
    algbw = found.size_bytes / found.time_us * 1e-3
    assert found.algbw_GBps.to_numpy() == pytest.approx(algbw.to_numpy(), abs=0.006)
    busbw = algbw * bus_factor("all_reduce", found.ranks)
    assert found.busbw_GBps.to_numpy() == pytest.approx(busbw.to_numpy(), abs=0.006)


def test_text_of_the_first_version_without_operator_and_root(write: Write) -> None:
    with pytest.raises(ReproError, match=r"log: does not contain the name of its collective"):
        read_log(write(FIRST.replace("0e+00", "N/A")))
    found = read_log(write(FIRST))
    assert found.collective.unique().tolist() == ["all_gather"]
    assert (found.ranks.unique().tolist(), found.nodes.unique().tolist()) == ([3], [1])
    assert found.size_bytes.tolist() == [480, 480, 134217696, 134217696]
    (skipped,) = found.attrs["skipped"]
    assert skipped.startswith("line 11: no bytes to move: '0             0   float")


def test_the_first_all_to_all_leaves_its_operator_blank(write: Write) -> None:
    text = FIRST.replace("count    type  ", "count    type   redop  ")
    text = text.replace("0   float", "0   float        ").replace("8   float", "8   float        ")
    found = read_log(write("./build/alltoall_perf -g 3\n" + text))
    assert found.collective.unique().tolist() == ["all_to_all"]
    assert found.time_us.tolist() == [41.33, 41.02, 1812.3, 1794.6]
    # No other leaves it blank, so that it needs no name.
    assert read_log(write(text)).collective.unique().tolist() == ["all_to_all"]


@pytest.mark.parametrize(
    ("label", "ranks", "bus", "in_place", "collective"),
    [
        ("1048576   262144   float   sum     -1", 4, "47.52", "0", "all_reduce"),
        ("1048576   262144   float   sum     -1", 2, "31.68", "0", "all_reduce"),
        ("1048576   262144   float   sum     -1", 2, "31.68", "N/A", "send_recv"),
        ("1048576   262144   float   sum     -1", 4, "31.68", "N/A", "send_recv"),
        ("1048576    65536   float   sum     -1", 4, "23.76", "0", "reduce_scatter"),
        ("1048576    65536   float   none    -1", 4, "23.76", "0", "all_gather"),
        ("1048576    65536   float   none    -1", 4, "23.76", "N/A", "all_to_all"),
        ("1048576   131072    half   none    -1", 4, "23.76", "0", "all_gather"),
        ("1048576   262144   float   none     0", 4, "31.68", "0", "broadcast"),
        ("1048576   262144   float   sum      0", 4, "31.68", "0", "reduce"),
    ],
)
def test_columns_tell_the_collective(
    write: Write, label: str, ranks: int, bus: str, in_place: str, collective: str
) -> None:
    row = label + PLACES["both"].format(bus=bus, in_place=in_place)
    assert read_log(write(unnamed(row, ranks))).collective.unique().tolist() == [collective]


def test_a_collective_that_no_column_tells_is_asked_for(write: Write) -> None:
    row = "1048576 262144 float sum -1" + PLACES["out of place"].format(bus="31.68")
    path = write(unnamed(row, ranks=2))
    missing = r"name of its collective; fix: give --collective NAME; choose from: al"
    with pytest.raises(ReproError, match=missing):
        read_log(path)
    (only,) = read_log(path, collective="all_reduce").itertuples()
    assert (only.collective, only.in_place) == ("all_reduce", False)
    with pytest.raises(ReproError, match="unknown collective 'allsum'; choose from: all_reduce"):
        read_log(path, collective="allsum")


def test_one_place_only(write: Write) -> None:
    row = "1048576 262144 float sum -1" + PLACES["out of place"].format(bus="47.52")
    assert read_log(write(unnamed(row, 4))).in_place.tolist() == [False]
    # A replayed trace has blanks in place of the first four columns.
    blank = row.replace("-1 ", "-1 " + 32 * " ")
    assert read_log(write(unnamed(blank, 4))).in_place.tolist() == [True]
    header = unnamed(row, 4).replace("     time   algbw   busbw  #wrong\n", "\n")
    assert read_log(write(header)).time_us.tolist() == [33.10]


def test_ranks_that_no_line_lists_are_asked_for(write: Write) -> None:
    row = "1048576 262144 float sum -1" + PLACES["out of place"].format(bus="47.52")
    path = write(unnamed(row.replace("sum     -1", "sum  0").replace("47.52", "31.68"), ranks=0))
    with pytest.raises(
        ReproError, match="does not contain the number of ranks; fix: give --ranks N"
    ):
        read_log(path, collective="broadcast")
    assert read_log(path, collective="broadcast", ranks=4).ranks.tolist() == [4]


def test_bandwidths_say_how_many_ranks_there_were(write: Write) -> None:
    row = "1048576 262144 float sum -1" + PLACES["out of place"].format(bus="47.52")
    path = write(unnamed(row, ranks=0))
    for ranks in (None, 4):
        found = read_log(path, ranks=ranks)
        assert (found.ranks.tolist(), found.collective.tolist()) == ([4], ["all_reduce"])
        assert found.nodes.tolist() == [None]
    with pytest.raises(ReproError, match="ranks is 8, but the bandwidths of all_reduce are those"):
        read_log(path, ranks=8)
    shares = write(unnamed(row.replace("47.52", "23.76"), ranks=0))
    assert read_log(shares, collective="all_gather").ranks.tolist() == [4]


@pytest.mark.parametrize("broken", ["Rank  3 Group  0 Pid   ", "Rank  3"])
def test_a_list_of_ranks_that_is_not_whole_is_corrected(write: Write, broken: str) -> None:
    line = next(line for line in RECENT.splitlines() if "Rank  3" in line)
    found = read_log(write(RECENT.replace(line, f"#  {broken}")))
    assert found.ranks.unique().tolist() == [4]
    assert found.nodes.unique().tolist() == [None]
    (remark,) = found.attrs["skipped"]
    assert "it has 3; the bandwidths of all_reduce are those of 4 ranks" in remark


def test_ranks_that_contradict_bandwidths_of_many_are_refused(write: Write) -> None:
    row = "1048576 262144 float sum -1    33.10   31.68   63.35      0"
    text = "# nccl-tests: all_reduce_perf\n" + unnamed(row, ranks=4)
    with pytest.raises(
        ReproError, match=r"4 ranks contradict .* those of \d+ to \d+ ranks; fix: g"
    ):
        read_log(write(text.replace("nccl-tests: ", "")))
    # The fix that the message names.
    found = read_log(write(text.replace("nccl-tests: ", "")), ranks=4096)
    assert (found.ranks.tolist(), found.nodes.tolist()) == ([4096], [None])
    with pytest.raises(ReproError, match="4 ranks contradict"):
        read_log(write(text.replace("nccl-tests: ", "")), ranks=7)


def test_split_communicators_have_the_ranks_of_one_group(write: Write) -> None:
    row = "1048576 262144 float sum -1" + PLACES["both"].format(bus="31.68", in_place="0")
    text = unnamed(row, 4).replace("Rank  2 Group  0", "Rank  2 Group  1")
    text = text.replace("Rank  3 Group  0", "Rank  3 Group  1")
    assert read_log(write(text)).ranks.unique().tolist() == [2]


def test_tags_of_mpirun_and_extra_columns(write: Write) -> None:
    tagged = "\n".join(f"[1,0]<stdout>:{line}" for line in RECENT.splitlines())
    assert len(read_log(write(tagged))) == 6
    inside = RECENT.replace("   float", "[1,3]<stdout>:   float").replace("0x", "[1,1]<stderr>: 0x")
    assert len(read_log(write(inside))) == 6
    stamped = RECENT.replace("#wrong\n", "#wrong            timestamp\n")
    stamped = stamped.replace("       0\n", "       0  2026-11-21 10:00:00\n")
    assert read_log(write(stamped)).time_us.tolist() == read_log(write(RECENT)).time_us.tolist()
    per_iteration = RECENT.replace("#wrong ", "#wrong  i_min  i_max ").replace(
        "#wrong\n", "#wrong  i_min  i_max\n"
    )
    per_iteration = per_iteration.replace("       0 ", "       0   1.00   2.00 ").replace(
        "       0\n", "       0   1.00   2.00\n"
    )
    assert read_log(write(per_iteration)).busbw_GBps.tolist() == [
        *(10.29, 10.53),
        *(39.49, 39.07),
        *(83.56, 84.01),
    ]


def test_truncated_and_wrong_rows_are_named_and_the_others_read(write: Write) -> None:
    lines = RECENT.splitlines()
    first, _, _, last = (at for at, line in enumerate(lines) if line and line[0] not in "#$")
    cut = [*lines[:last], lines[last][:60]]
    found = read_log(write("\n".join(cut)))
    assert found.size_bytes.unique().tolist() == [1048576, 8388608]
    (skipped,) = found.attrs["skipped"]
    assert skipped.startswith(f"line {last + 1}: 6 columns where the header has 13: '67108864 ")
    for wrong, problem in (("164.x0", "could not convert"), ("0.0", "its time is 0 us")):
        cut[first] = lines[first].replace("152.84", wrong)
        found = read_log(write("\n".join(cut)))
        assert found.size_bytes.unique().tolist() == [8388608]
        assert found.attrs["skipped"][0].startswith(f"line {first + 1}: {problem}")
    cut[first] = lines[first].replace("10.29       0", "10.29       3")
    assert "3 wrong elements" in read_log(write("\n".join(cut))).attrs["skipped"][0]


def test_no_measurement_is_one_line(write: Write) -> None:
    header = RECENT[: RECENT.index("     1048576 ")]
    with pytest.raises(ReproError, match=r"log: no measurement; nccl-tests printed none"):
        read_log(write(header))
    with pytest.raises(ReproError, match=r"no measurement; line 15: 4 columns where"):
        read_log(write(header + "     1048576        262144     float     su"))


def test_programs_that_are_not_read_are_named(write: Write) -> None:
    with pytest.raises(ReproError, match="scatter_perf is not supported; choose from: all_red"):
        read_log(write(RECENT.replace("all_reduce_perf", "scatter_perf")))


@pytest.mark.parametrize("ended", [True, False])
def test_several_runs_in_one_text(write: Write, ended: bool) -> None:
    first = RECENT if ended else RECENT[: RECENT.index("# Out of")]
    found = read_log(write(first + FIRST))
    assert found.groupby("collective").size().to_dict() == {"all_gather": 4, "all_reduce": 6}
    assert found.groupby("collective").ranks.unique().map(list).to_dict() == {
        "all_gather": [3],
        "all_reduce": [4],
    }


def as_json(**changed: Any) -> dict[str, Any]:
    """What src/util.cu of nccl-tests writes: booleans and roots are strings."""
    device = {"group": 0, "pid": 1, "device_hex": "0009:01:00", "device_info": "NVIDIA H100"}
    results = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": {"time": time, "alg_bw": bw, "bus_bw": 1.5 * bw, "nwrong": 0.0},
            "in_place": {"time": time + 1, "alg_bw": bw, "bus_bw": 1.5 * bw, "nwrong": None},
            "actual_iterations": 20,
            "experiment_name": "",
        }
        for size, time, bw in ((1048576, 164.3, 6.382), (8388608, 344.5, 24.35))
    ]
    return {
        "version": 2,
        "start_time": "2026-11-21 10:00:00",
        "args": ["/opt/nccl-tests/build/all_reduce_perf", "-J", "out.json"],
        "env": ["NCCL_DEBUG=WARN"],
        "nccl_version": 22807,
        "config": {
            "nthreads": 1,
            "ngpus": 2,
            "blocking_collectives": "false",
            "devices": [
                {"rank": rank, "hostname": host, "device": 0} | device
                for rank, host in ((0, "first"), (2, "second"))
            ],
        },
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "end_time": "2026-11-21 10:01:00",
    } | changed


def test_json(write: Write) -> None:
    found = read_log(write(json.dumps(as_json())))
    assert len(found) == 4
    assert tuple(found.columns) == COLUMNS
    # One device is listed for each process; each has two GPUs.
    assert tuple(found.iloc[0])[:6] == ("all_reduce", "float", 1048576, 4, 2, False)
    assert found.time_us.tolist() == [164.3, 165.3, 344.5, 345.5]
    assert found.busbw_GBps.tolist() == pytest.approx([9.573, 9.573, 36.525, 36.525])
    assert found.attrs["skipped"] == ()


def test_json_of_processor_time_and_of_one_place(write: Write) -> None:
    content = as_json()
    first, second = content["results"]
    first["out_of_place"]["cpu_time"] = first["out_of_place"].pop("time")
    second["out_of_place"] = None
    found = read_log(write(json.dumps(content)))
    assert found.time_us.tolist() == [164.3, 165.3, 345.5]


def test_json_that_ends_early(write: Write) -> None:
    text = json.dumps(as_json(), separators=(",", ":"))
    found = read_log(write(text[: text.index("344.5") + 3]))
    assert found.size_bytes.unique().tolist() == [1048576]
    assert found.ranks.unique().tolist() == [4]
    assert "the file ends early" in found.attrs["skipped"][0]
    with pytest.raises(ReproError, match=r"no measurement; character \d+: the file ends early"):
        read_log(write(text[: text.index("164.3")]))
    with pytest.raises(ReproError, match=r"no measurement; character \d+: the file ends early"):
        read_log(write(text[: text.index('"config"') + 20]))
    with pytest.raises(ReproError, match=r"no measurement; character 2: the file ends early"):
        read_log(write('{no json "results": [{}]}'))


def test_json_records_that_are_not_whole_are_named(write: Write) -> None:
    content = as_json()
    content["results"][0]["in_place"]["time"] = "nan"
    found = read_log(write(json.dumps(content)))
    assert found.size_bytes.unique().tolist() == [8388608]
    assert found.attrs["skipped"] == ("results[0]: its time is nan us",)
    del content["results"][1]["size"]
    with pytest.raises(ReproError, match=r"no measurement; results\[0\]: its time"):
        read_log(write(json.dumps(content)))


def test_bus_bandwidth_is_that_of_every_published_cell() -> None:
    published = pd.read_csv(PUBLISHED / "nccl_bigred200.csv")
    checked = 0
    for where in ("inter", "intra"):
        factor = bus_factor("all_reduce", published[f"{where}_n"])
        busbw = factor * published.size_bytes / published[f"{where}_time_us"] * 1e-3
        reported = published[f"{where}_busbw_GBps_reported"]
        assert busbw.to_numpy() == pytest.approx(reported.to_numpy(), rel=5e-4)
        checked += len(busbw)
    assert checked == 24


def test_bus_factors_of_nccl_tests() -> None:
    wanted = {
        **{"all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875},
        **{"broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0},
    }
    assert {name: float(bus_factor(name, 8)) for name in wanted} == wanted
    with pytest.raises(ReproError, match="unknown collective 'gather'"):
        bus_factor("gather", 8)
