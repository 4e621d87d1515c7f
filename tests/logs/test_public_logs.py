"""Logs that people posted, with the reading that a person made of each, and faults of readers."""

from pathlib import Path

import pytest

from repro.errors import ReproError
from repro.logs.reading import read_log

SAMPLES = Path(__file__).parent / "samples"
# File; source; what it is; collective, ranks, nodes and peak bus bandwidth in GB/s of each run.
READINGS = {
    # Stored public file: Intel MPI Benchmarks, Alltoall on 256 processes. Its largest row is 4 MiB
    # for each of 256 ranks in 1,039.... us on average; the rate is 255/256 of it.
    "imb_alltoall.txt": [("all_to_all", 256, None, None)],
    # OSU MPI-ROCM with remarks behind values and tables without titles: 529137.15 MB/s.
    "public_osu_remarks.txt": [("send_recv", 2, None, 529.13715)],
    # openucx/ucc pull 223: 24.00 GB/s at 76.46 us of 262144 B a peer are 7 peers, so 8 ranks.
    "ucc_alltoall.txt": [("all_to_all", 8, None, 45.96)],
    # rccl-tests 2.17.9 with rows of no bytes.
    "public_rccl_alltoall.txt": [("all_to_all", 8, 1, 268.26)],
    # H200 NVL, only out-of-place columns.
    "public_out_of_place.txt": [("all_reduce", 8, 1, 68.66)],
    # One row without a list of ranks: 35.09 / 18.72 = 1.875 = 2 x 15/16.
    "public_sockets.txt": [("all_reduce", 16, None, 35.09)],
    # NVIDIA/nccl-tests issue 214: two A40 on two nodes.
    "public_sendrecv.txt": [("send_recv", 2, 2, 0.13)],
    # deepspeedai/DeepSpeed pull 2012: 372.24 / 397.06 = 15/16. 2 MiB in 80 us.
    "public_deepspeed_broadcast.txt": [("broadcast", 16, None, 2 * 1024**2 / 80e-6 * 1e-9)],
    # NVIDIA/dgx-spark-playbooks issue 25: two GB10.
    "public_gb10.txt": [("all_gather", 2, 2, 20.95)],
    # NVIDIA/nccl-tests issue 232: Markdown with its command, no list of ranks.
    "public_tree.txt": [("all_reduce", 2, None, 41.52)],
    # hisohara/ai-scripts training/01_rccl-smoketest: parts are snipped; rows of 8 GiB at the end.
    "public_rccl_snipped.txt": [("all_reduce", 8, 1, 315.91)],
    # The same: rows that egrep picked under headings of 1, 2, 4 and 8 nodes, without any header.
    "public_egrep.txt": [
        ("all_reduce", 8, 1, 319.21),
        ("all_reduce", 16, 2, 350.24),
        ("all_reduce", 32, 4, 350.59),
        ("all_reduce", 64, 8, 350.84),
    ],
}
REFUSALS = {
    # NVIDIA/nccl-tests issue 249: one A10G, and no row.
    "public_one_rank.txt": "no measurement; the run has 1 rank, which exchanges nothing",
    # NVIDIA/nccl-tests issue 355: crashed in its first row.
    "public_crashed.txt": 'no measurement; line 27: the test failed: "Test CUDA failure common.cu',
    # ROCm/rocm-systems pull 9406: a summary without times.
    "public_columns_missing.txt": r"line 1: 'size\\ttype.* rows of nccl-tests have size",
    # facebookresearch/HolisticTraceAnalysis tests/data/ns_resolution_trace: world size 1.
    "public_one_rank.json": "no measurement; the trace has 1 rank, which exchanges nothing",
}
HEADER = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong"
ROW = "  8388608  2097152  float  sum  -1  318.62  26.33  49.37  0  322.07  26.05  48.84  0"


@pytest.mark.parametrize(("name", "runs"), READINGS.items())
def test_public_logs_are_read_as_a_person_does(
    name: str, runs: list[tuple[str, int, int | None, float | None]]
) -> None:
    found = read_log(SAMPLES / name)
    groups = found.groupby(["collective", "ranks", "nodes"], dropna=False).busbw_GBps.max()
    read = [(*key, peak) for key, peak in groups.items()]
    assert len(read) == len(runs)
    for (collective, ranks, nodes, peak), expected in zip(read, runs, strict=True):
        assert (collective, ranks) == expected[:2]
        assert (None if nodes != nodes else nodes) == expected[2]
        if expected[3] is not None:
            assert peak == pytest.approx(expected[3], rel=2e-4)


@pytest.mark.parametrize(("name", "reason"), REFUSALS.items())
def test_public_logs_without_a_measurement_say_why(name: str, reason: str) -> None:
    with pytest.raises(ReproError, match=reason) as info:
        read_log(SAMPLES / name)
    assert "\n" not in str(info.value)


def test_intel_mpi_benchmarks_give_the_mean_time_of_all_ranks_data() -> None:
    found = read_log(SAMPLES / "imb_alltoall.txt")
    (row,) = found[found.size_bytes == 256 * 64].itertuples()
    assert row.time_us == 92.30
    assert row.busbw_GBps == pytest.approx(255 * 64 / 92.30e-6 * 1e-9)
    assert "no bytes to move" in found.attrs["skipped"][0]


def text_of(*lines: str) -> str:
    return "\n".join((*lines, ""))


def read(tmp_path: Path, text: str, **given: object):
    path = tmp_path / "log"
    path.write_text(text, encoding="utf-8")
    return read_log(path, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "prefix",
    [
        *(" 0: ", "[0] ", "[rank0]: ", "worker-0: ", "node001: ", "> ", "\x1b[32m", "gpu-07 | "),
        *("2025-05-01T12:00:00.123456Z ", "2025-05-01 12:00:00,123 ", "[2025-05-01 12:00:00] "),
        *("2025-05-01T12:00:00Z stdout F ", "2025-05-01T12:00:00Z worker-0: > "),
    ],
)
def test_prefixes_of_launchers_are_not_part_of_a_row(prefix: str, tmp_path: Path) -> None:
    plain = read(tmp_path, text_of(HEADER, ROW))
    found = read(tmp_path, text_of(prefix + HEADER, prefix + ROW))
    assert found.equals(plain)
    assert found.ranks.tolist() == [16, 16]  # 49.37 / 26.33 = 1.875
    windows = text_of(prefix + HEADER, prefix + ROW).replace("\n", "\r\n")
    assert read(tmp_path, windows).equals(plain)


@pytest.mark.parametrize(
    "header",
    [
        HEADER.replace("#", ""),
        "",
        *(HEADER[: HEADER.rindex(name)] for name in ("algbw", "#wrong")),
        *(HEADER[: HEADER.index(name)] for name in ("busbw", "#wrong  time")),
        HEADER[: HEADER.rindex("time")],
    ],
)
def test_rows_without_a_header_or_with_a_cut_one_are_read(header: str, tmp_path: Path) -> None:
    found = read(tmp_path, text_of(header, ROW))
    assert found.time_us.tolist() == [318.62, 322.07]
    assert found.in_place.tolist() == [False, True]


def test_a_row_that_does_not_fit_a_cut_header_is_named(tmp_path: Path) -> None:
    cut = HEADER[: HEADER.rindex("time") + 4]
    short = " ".join([*ROW.split()[:9], "1.0"])
    found = read(tmp_path, text_of(cut, short, ROW))
    assert found.time_us.tolist() == [318.62, 322.07]
    assert found.attrs["skipped"][0].startswith("line 2: the header is cut: '8388608 2097152")


def test_an_elided_list_of_ranks_has_the_last_ones_number(tmp_path: Path) -> None:
    ranks = [f"#  Rank {rank:2} Group 0 Pid 1 on node{rank} device 0 [0x00] GPU" for rank in (0, 1)]
    last = ranks[0].replace("Rank  0", "Rank 63").replace("node0", "node63")
    row = "134217728  524288  float  none  -1  5405.8  24.83  24.44  0  5405.8  24.83  24.44  N/A"
    found = read(tmp_path, text_of("# nThread 1", *ranks, "......", last, HEADER, row))
    assert set(zip(found.collective, found.ranks, strict=True)) == {("all_to_all", 64)}
    assert found.nodes.tolist() == [None, None]


def test_a_column_header_begins_another_run(tmp_path: Path) -> None:
    gather = "  8388608  524288  float  none  -1  318.62  26.33  19.75  0  322.07  26.05  19.54  0"
    found = read(tmp_path, text_of(HEADER, ROW, HEADER, gather))
    runs = found.groupby("collective").ranks.unique().map(list).to_dict()
    # 19.75 / 26.33 = 3/4, and a count of an eighth contradicts nothing that is used.
    assert runs == {"all_gather": [4], "all_reduce": [16]}


def test_inspector_sizes_are_those_of_its_bandwidths() -> None:
    reduced, scattered = read_log(SAMPLES / "nccl_inspector.json").itertuples()
    assert (reduced.collective, reduced.ranks, reduced.nodes) == ("all_reduce", 8, 1)
    assert reduced.busbw_GBps == pytest.approx(485.119099)
    # The plugin's documentation prints a rank's part, and a bandwidth of all parts.
    assert scattered.size_bytes == 8 * 2147483648
    assert scattered.busbw_GBps == pytest.approx(366.134533)


def test_inspector_records_that_contradict_themselves_are_named(tmp_path: Path) -> None:
    text = (SAMPLES / "nccl_inspector.json").read_text(encoding="utf-8")
    found = read(tmp_path, text.replace("277.210914", "27.7210914"))
    assert found.collective.tolist() == ["reduce_scatter"]
    assert "27.7211 GB/s is not that of 17179869184 B" in found.attrs["skipped"][0]
    cut = read(tmp_path, text[: text.rindex("coll_exec")])
    assert (cut.collective.tolist(), len(cut.attrs["skipped"])) == (["all_reduce"], 1)
    host = text.replace("kernel_gpu", "collective_cpu")
    assert "the host's" in read(tmp_path, host).attrs["skipped"][0]


def test_ras_names_missing_and_late_ranks() -> None:
    with pytest.raises(ReproError) as info:
        read_log(SAMPLES / "nccl_ras.json")
    assert "reports states and counts, but no times; fix: use NCCL Inspector" in str(info.value)
    assert "of 3 ranks lacks rank 1" in str(info.value)
    assert "rank 2 is at AllReduce 41, others at 42" in str(info.value)


def test_the_flight_recorder_has_times_of_completed_collectives() -> None:
    found = read_log(SAMPLES / "flight_recorder.json")
    reduced, gathered = found.itertuples()
    assert (reduced.ranks, reduced.size_bytes, reduced.time_us) == (4, 2 * 1024**2, 500)
    assert reduced.busbw_GBps == pytest.approx(1.5 * 2 * 1024**2 / 500e-6 * 1e-9)
    assert (gathered.collective, gathered.size_bytes) == ("all_gather", 4 * 4194304)
    assert found.attrs["skipped"] == ("entries[2]: all_reduce is started, not completed",)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.")
    with pytest.raises(ReproError, match=r"is a pickle, which runs code .* fix: dump the flight"):
        read_log(path)


def test_mscclpp_tables() -> None:
    table = read_log(SAMPLES / "mscclpp_table.txt", ranks=8)
    assert table.size_bytes.tolist() == [2048, 2**20, 2**29]
    assert table.algbw_GBps.tolist() == pytest.approx([0.34, 65.54, 255.65], rel=5e-3)
    with pytest.raises(ReproError, match="number of ranks; fix: give --ranks N"):
        read_log(SAMPLES / "mscclpp_table.txt")
    (row,) = (test := read_log(SAMPLES / "mscclpp_test.txt")).itertuples()
    assert (row.collective, row.ranks, row.nodes, row.in_place) == ("all_reduce", 2, 1, True)
    assert "2 wrong elements" in test.attrs["skipped"][0]


def test_ucc_without_ranks_that_follow_asks_for_them(tmp_path: Path) -> None:
    text = (SAMPLES / "ucc_alltoall.txt").read_text(encoding="utf-8")
    found = read_log(SAMPLES / "ucc_alltoall.txt")
    # 65536 float32 to each of 8 peers, by nccl-tests' size.
    assert found.size_bytes.tolist()[0] == 8 * 262144
    assert found.busbw_GBps.tolist()[0] == pytest.approx(24.00, abs=0.005)
    with pytest.raises(ReproError, match="give --ranks N"):
        read(tmp_path, text.replace(" 24.00", " 23.10"))


def test_osu_bandwidths_are_of_a_window() -> None:
    found = read_log(SAMPLES / "public_osu_remarks.txt")
    assert set(found.window) == {1, 64}
    assert found[found.window == 1].time_us.min() == 0.31


def test_osu_tables_without_a_title_are_those_of_their_heading(tmp_path: Path) -> None:
    text = text_of("--- osu_bw (D D) ---", "# Size      Bandwidth (MB/s)", "4194304  432602.71")
    (row,) = read(tmp_path, text).itertuples()
    assert (row.collective, row.window) == ("send_recv", 64)
    assert row.busbw_GBps == pytest.approx(432.60271)


@pytest.mark.parametrize("text", ["one\ntwo\nbusbw 12\n", "hello 1 2 3 4 5 6 7 8 9\n"])
def test_nothing_recognized_has_the_nearest_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"0 of \d lines are a meas.* nearest is line") as info:
        read(tmp_path, text)
    assert "\n" not in str(info.value)
