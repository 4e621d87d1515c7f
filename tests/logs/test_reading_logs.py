"""Logs of any tool: recognised by their content, and read as far as they go."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.errors import ReproError
from repro.logs.measurements import COLUMNS
from repro.logs.reading import TOOLS, read_log, read_text

SAMPLES = Path(__file__).parent / "samples"
WRITTEN_BY = {
    "recent_all_reduce.txt": "nccl-tests",
    "first_all_gather.txt": "nccl-tests",
    "osu_allgather_full.txt": "OSU micro-benchmarks",
    "osu_several.txt": "OSU micro-benchmarks",
    "deepspeed_tables.txt": "DeepSpeed",
    "deepspeed_lines.txt": "DeepSpeed",
    "kineto_nccl.json": "Kineto",
    "nccl_inspector.json": "NCCL Inspector",
    "flight_recorder.json": "flight recorder",
    "imb_alltoall.txt": "Intel MPI Benchmarks",
    "mscclpp_table.txt": "MSCCL++",
    "mscclpp_test.txt": "MSCCL++",
    "ucc_alltoall.txt": "ucc_perftest",
}
# It has no measurement.
WITHOUT_TIMES = {"nccl_ras.json": "NCCL RAS"}


@pytest.mark.parametrize(("name", "tool"), WRITTEN_BY.items())
def test_the_content_tells_the_tool(name: str, tool: str, tmp_path: Path) -> None:
    found = read_log(SAMPLES / name, ranks=8)
    assert found.attrs["tool"] == tool
    assert tuple(found.columns) == COLUMNS
    assert found.index.tolist() == list(range(len(found)))
    packed = tmp_path / "log"
    packed.write_bytes(gzip.compress((SAMPLES / name).read_bytes()))
    again = read_log(packed, ranks=8)
    assert again.equals(found)
    assert again.attrs == found.attrs


def test_every_tool_has_a_sample() -> None:
    names = {path.name for path in SAMPLES.iterdir() if not path.name.startswith("public_")}
    assert names == set(WRITTEN_BY | WITHOUT_TIMES)
    assert set((WRITTEN_BY | WITHOUT_TIMES).values()) == set(TOOLS)


def test_what_a_log_does_not_say_is_none() -> None:
    found = read_log(SAMPLES / "osu_several.txt", ranks=8)
    assert found.dtype.tolist()[:3] == [None, None, "float"]
    assert set(found.nodes) == {None}
    assert not found.in_place.any()


@pytest.mark.parametrize("text", ["", "nothing of the kind\n", '{"traces": []}', "[1, 2]"])
def test_files_of_no_known_tool(text: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(text, encoding="utf-8")
    unsupported = r"/log: is not a log of a supported tool; choose from: nccl-tests, OSU"
    with pytest.raises(ReproError, match=unsupported):
        read_log(path)


def test_a_file_of_two_tools_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    names = ("osu_several.txt", "deepspeed_tables.txt")
    path.write_text("".join((SAMPLES / name).read_text(encoding="utf-8") for name in names))
    with pytest.raises(ReproError, match="logs of OSU micro-benchmarks and DeepSpeed; fix: use"):
        read_log(path, ranks=8)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"^/missing: no such file; fix: correct the path$"):
        read_log(Path("/missing"))
    with pytest.raises(ReproError, match="is a folder; fix: name one file in it"):
        read_log(tmp_path)
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(b"\x1f\x8bno gzip at all")
    with pytest.raises(ReproError, match=r"damaged\.gz: cannot be decompressed \("):
        read_log(damaged)


def test_redirected_output_of_powershell_is_read(tmp_path: Path) -> None:
    name = "osu_several.txt"
    text = (SAMPLES / name).read_text(encoding="utf-8")
    path = tmp_path / name
    path.write_text(text, encoding="utf-16")
    assert read_text(path).splitlines() == text.splitlines()


def test_ranks_and_collectives_are_checked_and_missing_ranks_asked_for() -> None:
    path = SAMPLES / "osu_allgather_full.txt"
    missing = r"osu_allgather_full\.txt: does not contain the number of ranks; fix: give --ranks N"
    with pytest.raises(ReproError, match=missing):
        read_log(path)
    with pytest.raises(ReproError, match="ranks is 0; fix: pass 1 or more"):
        read_log(path, ranks=0)
    with pytest.raises(ReproError, match="unknown collective 'gather'; choose from"):
        read_log(path, collective="gather", ranks=8)
    assert len(read_log(path, collective="AllGather", ranks=8)) == 3


def test_no_measurement_is_one_line_with_the_first_reason(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": []}), encoding="utf-8")
    with pytest.raises(ReproError, match=r"trace\.json: no measurement; Kineto printed none"):
        read_log(path)
    path.write_text("# OSU MPI Gather Latency Test v7.5\n", encoding="utf-8")
    with pytest.raises(ReproError, match=r"no measurement; line 1: 'OSU MPI Gather") as info:
        read_log(path)
    assert "\n" not in str(info.value)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cut") / "log"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", WRITTEN_BY)
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_a_log_cut_anywhere_gives_the_rows_before(
    name: str, packed: bool, cut: Path, data: st.DataObject
) -> None:
    whole = read_log(SAMPLES / name, ranks=8)
    content = (SAMPLES / name).read_bytes()
    content = gzip.compress(content) if packed else content
    cut.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        rows = read_log(cut, ranks=8)
    except ReproError as error:
        assert "\n" not in str(error)
    else:
        assert rows.equals(whole.iloc[: len(rows)])
