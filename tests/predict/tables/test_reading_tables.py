"""Measurements: what is wrong in a file is named in one line."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from examples import CALIBRATED, measurements

from repro.errors import ReproError
from repro.paths import PUBLISHED
from repro.predict.calibration.step_fitting import calibrate_step
from repro.predict.calibration.validation import validate
from repro.predict.tables.reading import read_collectives, read_rows
from repro.predict.tables.training import cluster_like, training_rows

Change = Callable[[pd.DataFrame], pd.DataFrame]


def _with(name: str, value: object) -> Change:
    """The second row, which is line 3 of its file, says something else."""

    def changed(table: pd.DataFrame) -> pd.DataFrame:
        table[name] = table[name].astype(object)
        table.loc[1, name] = value
        return table

    return changed


_POSITIVE = "must be a positive number; fix: correct it"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda table: table.drop(columns="heads"), ("no column 'heads'; must have gpu, gpus, ",)),
        (lambda table: table.head(0), ("no rows",)),
        (_with("iteration_time_s", 0.0), (f"iteration_time_s is 0.0; {_POSITIVE}",)),
        (_with("iteration_time_s", -1.5), (f"iteration_time_s is -1.5; {_POSITIVE}",)),
        (_with("iteration_time_s", "fast"), (f"iteration_time_s is 'fast'; {_POSITIVE}",)),
        (_with("iteration_time_s", None), (f"iteration_time_s is nan; {_POSITIVE}",)),
        (
            lambda table: table.assign(gpu="Z100"),
            ("unknown GPU 'Z100'; choose from: a100-sxm-80gb",),
        ),
        (
            _with("recompute", "some"),
            ("recompute is 'some'; must be one of none, selective, full; fix: correct it",),
        ),
        (_with("tp", 3), ("gpus is 1; must be tp x pp x dp; fix: correct it",)),
        (_with("pp", 5), ("gpus is 1; must be tp x pp x dp; fix: correct it",)),
        (_with("global_batch", 17), ("global_batch_size 17", "micro_batch_size 4")),
        (_with("layers", "many"), ("layers is 'many'; must be a positive number; fix: ",)),
        (_with("layers", 0), (f"layers is 0; {_POSITIVE}",)),
        (_with("heads", None), ("heads is nan; must be a positive number; fix: ",)),
        (_with("gpu", None), ("gpu is nan; must be text; fix: correct it",)),
        (
            _with("inter_node_gbps_per_node", None),
            (f"inter_node_gbps_per_node is nan; {_POSITIVE}",),
        ),
        (_with("set", None), ("set is nan; must be text; fix: correct it",)),
        (
            _with("sequence_parallel", "maybe"),
            ("sequence_parallel is 'maybe'; must be yes or no; fix: correct it",),
        ),
        (_with("gpus", 7), ("gpus is 7; must be tp x pp x dp; fix: correct it",)),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_named(change: Change, named: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    # Two rows, so that little is predicted where nothing is refused.
    change(measurements(CALIBRATED).head(2)).to_csv(path, index=False)
    with pytest.raises(ReproError) as raised:
        validate(path)
    message = str(raised.value)
    assert "\n" not in message and message.startswith(f"{path}: ")
    assert "; must be " not in message or ": line 3: " in message
    for part in named:
        assert part in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"rows\.csv: no such file"):
        read_rows(tmp_path / "rows.csv")


@pytest.mark.parametrize("content", ["", 'a,b\n"1,2\n3,4,5\n'])
def test_what_is_no_csv_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content)
    with pytest.raises(ReproError, match=r"rows\.csv: not a CSV of measurements") as raised:
        read_rows(path)
    assert "\n" not in str(raised.value)


def test_rows_of_different_machines_come_apart() -> None:
    table = measurements(CALIBRATED)
    table.loc[3:5, "inter_node_gbps_per_node"] = 800
    parts = list(training_rows(table))
    assert sorted(len(part.index) for part in parts) == [3, len(table) - 3]
    for part in parts:
        top = part.cluster.topology.levels[-1]
        assert {top.link_gbps} == set(table.inter_node_gbps_per_node[part.index])
        assert part.workload.layers.tolist() == table.layers[part.index].tolist()


def test_clusters_that_nobody_listed() -> None:
    listed = cluster_like("A100-SXM-80GB", 8, 1600.0)
    other = cluster_like("A100-SXM-80GB", 4, 100.0)
    assert listed.topology.gpus_per_node == 8
    assert other.topology.gpus_per_node == 4
    assert other.topology.levels[-1].link_gbps == 100.0
    assert other.topology.levels[-2].link_gbps == listed.topology.levels[-2].link_gbps


def test_uneven_stages_are_as_slow_as_the_fullest(tmp_path: Path) -> None:
    table = measurements(CALIBRATED).head(2).assign(layers=[11, 12], pp=4, dp=1, tp=1, gpus=4)
    path = tmp_path / "rows.csv"
    table.to_csv(path, index=False)
    (part,) = training_rows(read_rows(path))
    assert part.workload.layers.tolist() == [12, 12]


def test_a_log_that_names_no_hosts_takes_ranks_and_nodes_from_the_caller(tmp_path: Path) -> None:
    log = tmp_path / "osu.txt"
    log.write_text(
        "# OSU MPI Allgather Latency Test v7.4\n# Size       Avg Latency(us)\n"
        "1048576               1000.00\n",
        encoding="utf-8",
    )
    with pytest.raises(ReproError, match=r"osu.txt: lists no hosts; fix: state .* \(--nodes\)"):
        read_collectives([log], "GPU", "net", ranks=8)
    rows, _ = read_collectives([log], "GPU", "net", ranks=8, nodes=2)
    added = rows[rows.gpu == "GPU"].iloc[0]
    # OSU's size is one rank's block.
    assert (added.ranks, added.nodes, added.size_bytes) == (8, 2, 8 * 1048576)


def test_the_ranks_of_all_logs_are_asked_for_once(tmp_path: Path) -> None:
    sample = Path(__file__).parents[2] / "logs" / "samples" / "osu_allgather_full.txt"
    logs = [tmp_path / name for name in ("one.txt", "two.txt")]
    for log in logs:
        log.write_text(sample.read_text())
    with pytest.raises(ReproError, match=r"one\.txt, .*two\.txt: no list of ranks; .*--ranks"):
        read_collectives(logs, "GPU", "net", nodes=2)
    rows, _ = read_collectives(logs, "GPU", "net", ranks=4, nodes=2)
    assert (rows[rows.gpu == "GPU"].ranks == 4).all()


@pytest.mark.parametrize(
    ("table", "named"),
    [
        (
            {"m": [8], "n": [8], "k": [8], "dtype": ["bf16"], "gpu": ["H100"]},
            "gemm.csv: no column 'time_us'; must have gpu, dtype, m, n, k, time_us; fix: ",
        ),
        (
            {"m": [8], "n": [8], "k": [8], "dtype": ["bf16"], "gpu": [None], "time_us": [1.0]},
            r"gemm\.csv: line 2: gpu is nan; must be text; fix: correct it",
        ),
    ],
)
def test_what_is_wrong_of_operators_is_named(
    table: dict[str, list[object]], named: str, tmp_path: Path
) -> None:
    path = tmp_path / "gemm.csv"
    pd.DataFrame(table).to_csv(path, index=False)
    with pytest.raises(ReproError, match=named):
        validate(path)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"nodes": None}, r"line 2: nodes is nan; must be a positive number; fix: correct it$"),
        ({"ranks": 0}, "line 2: ranks is 0; must be a positive number"),
        ({"size_bytes": "8K"}, "line 2: size_bytes is '8K'; must be a positive number"),
        ({"network": None}, "line 2: network is nan; must be text"),
    ],
)
def test_what_is_wrong_of_collectives_is_named(
    changed: dict[str, object], named: str, tmp_path: Path
) -> None:
    path = tmp_path / "collectives.csv"
    rows = pd.read_csv(PUBLISHED / "collectives_nccl.csv").head(1).assign(**changed)
    rows.to_csv(path, index=False)
    with pytest.raises(ReproError, match=named):
        validate(path)


def test_collectives_have_sets_of_their_own() -> None:
    with pytest.raises(ReproError, match="collectives are grouped by GPU, network and collective"):
        validate(PUBLISHED / "collectives_nccl.csv", by=["gpu"])


def test_only_training_runs_calibrate() -> None:
    rows = read_rows(PUBLISHED / "inference_a100_fastertransformer.csv")
    with pytest.raises(ReproError, match="no column 'gpus'"):
        calibrate_step(rows, rows, "wrong file")
