"""A log in the schema's dataset and back; tables and traces of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import xarray as xr
from made_up import configuration_dataset, made_up_configuration, made_up_records

from repro.errors import ReproError
from repro.logs.reading import read_log
from repro.observe.nic import NicSeries
from repro.observe.transfers import Transfer
from repro.results.communication import by_group, transfers
from repro.results.merging import merge
from repro.results.outcome import Outcome
from repro.results.schema import coordinates
from repro.results.store import read_dataset, write_dataset
from repro.results.traces import write_traces

_CELL = coordinates("gpt2-medium", "rdma", 2)
_MB = 1 << 20


def _call(rank: int, operation: str, role: str, size_bytes: int, at: float, s: float) -> Transfer:
    message = operation in ("send", "recv")
    return Transfer(
        iteration=0,
        operation=operation,
        role=role,
        ranks=(0, 1),
        size_bytes=size_bytes,
        dtype="bfloat16",
        phase="gradient sync",
        asynchronous=message,
        peer=1 - rank if message else -1,
        start_s=10 + at,
        end_s=10 + at + s,
    )


def _logged(late_s: float = 0.0) -> xr.Dataset:
    """Two ranks, of which rank 1 comes `late_s` later to what takes 2 ms then."""
    records = [
        replace(
            record,
            transfers=(
                _call(
                    record.rank,
                    "all_reduce",
                    "data",
                    _MB,
                    late_s * record.rank,
                    2e-3 + late_s * (1 - record.rank),
                ),
                _call(record.rank, "reduce_scatter", "data", 2 * _MB, 0.01, 1e-3),
                _call(record.rank, "recv" if record.rank else "send", "pipeline", 256, 0.02, 1e-4),
                _call(record.rank, "barrier", "world", 0, 0.03, 1e-5),
            ),
        )
        for record in made_up_records(_CELL)
    ]
    series = NicSeries(time_s=[9.0, 20.0], rx_bytes=[(0,), (1,)], tx_bytes=[(0,), (1,)])
    return configuration_dataset(_CELL, Outcome(tuple(records), series, (), 0.0))


def test_calls_come_back_as_they_were(tmp_path: Path) -> None:
    other = made_up_configuration(coordinates("gpt2-medium", "tcp", 2))
    write_dataset(merge([_logged(), other]), tmp_path / "run.nc")
    calls = transfers(read_dataset(tmp_path / "run.nc").sel(protocol="rdma"))
    both = ("all_reduce", "reduce_scatter")
    assert list(calls.operation) == [*both, "send", "barrier", *both, "recv", "barrier"]
    assert list(calls.bytes[:3]) == [_MB, 2 * _MB, 256]
    assert list(calls["rank"]) == [0] * 4 + [1] * 4
    assert set(calls.ranks) == {(0, 1)} and set(calls.dtype) == {"bfloat16"}
    assert list(calls.peer[:4]) == [-1, -1, 1, -1]
    assert calls.end_s[0] == pytest.approx(2e-3)


def test_what_has_no_log_says_so() -> None:
    with pytest.raises(ReproError, match="log_communication"):
        transfers(made_up_configuration(_CELL))


def test_bandwidths_are_those_of_the_group_without_its_waiting() -> None:
    table = by_group(transfers(_logged(late_s=1e-3))).set_index("operation")
    reduced = table.loc["all_reduce"]
    assert reduced.group_ranks == 2 and reduced.calls == 1
    # Of two ranks, 2 (n-1)/n is 1.
    assert reduced.algbw_GBps == pytest.approx(_MB / 2e-3 * 1e-9)
    assert reduced.busbw_GBps == pytest.approx(reduced.algbw_GBps)
    scattered = table.loc["reduce_scatter"]
    assert scattered.busbw_GBps == pytest.approx(scattered.algbw_GBps / 2)
    assert "barrier" not in table.index


def test_clocks_apart_are_refused() -> None:
    with pytest.raises(ReproError, match="clocks are not aligned"):
        _logged(late_s=-5e-3)


def test_a_trace_is_read_by_what_reads_the_profilers(tmp_path: Path) -> None:
    first, second, whole = write_traces(_logged(), tmp_path)
    assert [path.name for path in (first, second, whole)] == [
        *("rank0.json", "rank1.json", "all_ranks.json")
    ]
    rows = read_log(first)
    assert rows.attrs["tool"] == "Kineto"
    assert list(rows.collective) == ["all_reduce", "reduce_scatter", "send_recv"]
    assert list(rows.size_bytes) == [_MB, 2 * _MB, 256]
    assert list(rows.time_us) == pytest.approx([2000, 1000, 100])


def test_holistic_trace_analysis_opens_it(tmp_path: Path) -> None:
    analysis = pytest.importorskip("hta.trace_analysis")
    *ranks, _ = write_traces(_logged(), tmp_path)
    opened = analysis.TraceAnalysis(trace_files=dict(enumerate(map(str, ranks))))
    kernels = opened.get_gpu_kernel_breakdown(visualize=False)[0]
    communication = kernels[kernels.kernel_type == "COMMUNICATION"]
    # 2 + 1 + 0.1 + 0.01 ms on either rank.
    assert float(communication["sum"].sum()) == pytest.approx(2 * 3110, rel=0.01)


def test_a_trace_is_json(tmp_path: Path) -> None:
    for path in write_traces(_logged(), tmp_path):
        events = json.loads(path.read_text())["traceEvents"]
        steps = [event for event in events if event["name"].startswith("ProfilerStep")]
        assert len(steps) == 6 * len({event["pid"] for event in events})
