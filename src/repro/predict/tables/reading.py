"""Files of measurements: read as CSV or logs, told apart by their columns, and checked."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from repro.catalog.systems.gpus import find_gpu_name
from repro.errors import ReproError, of_file, one_line
from repro.logs.measurements import RanksMissing
from repro.logs.reading import check_stated, read_log
from repro.paths import PUBLISHED
from repro.predict.operators.measured import KINDS as OPERATORS
from repro.predict.operators.measured import kind_of
from repro.predict.tables.columns import FIX, POSITIVE, TEXT, read, same_kind, unknown
from repro.predict.tables.serving import is_serving, unknown_serving
from repro.predict.tables.training import check_runs

SERVING, COLLECTIVES, TRAINING = "serving", "collectives", "training"
_COLLECTIVES = (
    *same_kind("gpu network collective", TEXT),
    *same_kind("ranks nodes size_bytes time_us", POSITIVE),
)
_PUBLISHED_COLLECTIVES = ("collectives_nccl.csv", "nccl_bigred200.csv")
# Hardware of the GPT-350M report's table (sections 3.1 and 3.2); the network's name is that of its
# cluster in params/clusters.yaml. Each row has times on two nodes and on one.
_BIG_RED = {
    "gpu": "A100-SXM-40GB",
    "network": "Slingshot-10 100 Gb/s per node",
    "collective": "all_reduce",
}
_BIG_RED_NODES = {"inter": 2, "intra": 1}
_BIG_RED_COLUMNS = ("size_bytes", "inter_n", "inter_time_us", "intra_n", "intra_time_us")


def read_rows(path: Path) -> pd.DataFrame:
    """Read a CSV of measurements and check it.

    Raises
    ------
    ReproError
        The file is missing, empty or no CSV, or a column or cell is wrong.
    """
    rows = _read_csv(path)
    with of_file(path, FIX):
        _check(rows)
    return rows


def read_known_rows(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read a CSV of measurements without rows of unknown GPUs, models, precisions or software.

    Returns
    -------
    tuple
        The other rows, and a line per reason why rows were left out, which names their lines.

    Raises
    ------
    ReproError
        The file is missing, empty or no CSV, a column or cell is wrong, or no row is known.
    """
    rows = _read_csv(path)
    with of_file(path, FIX):
        reasons = _why_unknown(rows)
        known = rows[reasons == ""]
        if known.empty:
            raise ReproError(str(reasons.iloc[0]))
        _check(known)
    left_out = reasons[reasons != ""]
    return known, [
        f"{path}: {_lines(part.index)}: {reason}"
        for reason, part in left_out.groupby(left_out, sort=False)
    ]


def _lines(index: pd.Index) -> str:
    """Name lines of a CSV, such as `lines 2, 5-7`."""
    lines = index.to_numpy() + 2
    runs = np.split(lines, np.flatnonzero(np.diff(lines) > 1) + 1)
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(texts)}"


def _why_unknown(rows: pd.DataFrame) -> pd.Series:
    """Return why each row cannot be predicted; an empty text where it can."""
    kind = table_kind(rows)
    if kind == SERVING:
        return unknown_serving(rows)
    if kind == COLLECTIVES or "gpu" not in rows.columns:
        return pd.Series("", index=rows.index)
    return unknown(rows.gpu, find_gpu_name)


def _read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV of measurements without checking it."""
    try:
        rows = pd.read_csv(path)
    except FileNotFoundError:
        raise ReproError(f"{path}: no such file") from None
    except OSError as error:
        raise ReproError(f"{path}: cannot be read ({error.strerror})") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ReproError(
            f"{path}: not a CSV of measurements ({one_line(error)}); fix: correct it"
        ) from None
    if not isinstance(rows.index, pd.RangeIndex):
        raise ReproError(f"{path}: line 2 has more cells than the header; fix: name all columns")
    if rows.empty:
        raise ReproError(f"{path}: no rows; fix: give a row per measurement")
    if set(_BIG_RED_COLUMNS) <= set(rows.columns):
        rows = _big_red_rows(rows)
    return rows


def _check(rows: pd.DataFrame) -> None:
    """Refuse a table with a wrong column or cell."""
    kind = table_kind(rows)
    if kind in OPERATORS:
        texts = same_kind(f"gpu dtype {' '.join(OPERATORS[kind].apart)}", TEXT)
        axes = same_kind(f"{' '.join(OPERATORS[kind].axes)} time_us", POSITIVE)
        read(rows, (*texts, *axes))
    elif kind == COLLECTIVES:
        read(rows, _COLLECTIVES)
    elif kind == TRAINING:
        check_runs(rows)


def _big_red_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the report's two settings, which are next to each other, one below the other."""
    settings = [
        table[["size_bytes"]].assign(
            **_BIG_RED, ranks=table[f"{side}_n"], nodes=nodes, time_us=table[f"{side}_time_us"]
        )
        for side, nodes in _BIG_RED_NODES.items()
    ]
    return pd.concat(settings, ignore_index=True)


def table_kind(rows: pd.DataFrame) -> str:
    """Return `SERVING`, `COLLECTIVES`, `TRAINING` or the kind of operator of a table.

    Collectives are operators if they ran on one node whose network has no name.
    """
    if is_serving(rows):
        return SERVING
    if "network" not in rows.columns and (kind := kind_of(rows.columns)):
        return kind
    return COLLECTIVES if "collective" in rows.columns else TRAINING


def read_collectives(
    logs: Sequence[Path] = (),
    gpu: str = "",
    network: str = "",
    ranks: int | None = None,
    nodes: int | None = None,
) -> tuple[pd.DataFrame, str]:
    """Read the published collectives, and those of logs on one GPU and network.

    Parameters
    ----------
    logs
        Files of any tool that `repro.logs.reading` reads.
    ranks, nodes
        Numbers of ranks and nodes, where logs do not state them; at least one log must not.

    Returns
    -------
    tuple
        The rows, and the files that they come from.

    Raises
    ------
    ReproError
        A log cannot be read, or the GPU, the network or the number of nodes is not known. One
        message names all logs that do not state their ranks.
    """
    parts = [read_rows(PUBLISHED / name) for name in _PUBLISHED_COLLECTIVES]
    silent, filled = [], False
    for path in logs:
        if not gpu or not network:
            raise ReproError(f"{path}: does not say what it ran on; fix: give --gpu and --network")
        try:
            measured = read_log(path, ranks=ranks)
        except RanksMissing:
            silent.append(str(path))
            continue
        if measured.nodes.isna().any():
            if nodes is None:
                raise ReproError(f"{path}: lists no hosts; fix: state how many nodes (--nodes)")
            measured["nodes"], filled = measured.nodes.fillna(nodes), True
        out_of_place = measured[~measured.in_place.astype(bool)]
        parts.append(out_of_place.assign(gpu=gpu, network=network))
    if silent:
        raise ReproError(f"{', '.join(silent)}: no list of ranks; fix: state how many (--ranks)")
    if logs:
        own = pd.concat(parts[len(_PUBLISHED_COLLECTIVES) :])
        check_stated(own, ", ".join(map(str, logs)), ranks=ranks)
        if nodes is not None and not filled and set(own.nodes) != {nodes}:
            raise ReproError(f"nodes {nodes}: the logs list their hosts; fix: omit --nodes")
    names = ", ".join([*_PUBLISHED_COLLECTIVES, *(path.name for path in logs)])
    return pd.concat(parts, ignore_index=True), names
