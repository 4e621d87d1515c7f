"""Tables of collectives: published ones, and logs of one GPU and network."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from repro.errors import ReproError
from repro.logs.measurements import RanksMissing
from repro.logs.reading import read_log
from repro.paths import PUBLISHED
from repro.predict.tables.columns import POSITIVE, read, require, same_kind

_COLUMNS = ("gpu", "ranks", "nodes", "network", "collective", "size_bytes", "time_us")
_PUBLISHED = ("collectives_nccl.csv", "nccl_bigred200.csv")
# Hardware of the GPT-350M report's table (sections 3.1 and 3.2); the network's name is that of its
# cluster in params/clusters.yaml.
_BIG_RED = {
    "gpu": "A100-SXM-40GB",
    "network": "Slingshot-10 100 Gb/s per node",
    "collective": "all_reduce",
}
_BIG_RED_NODES = {"inter": 2, "intra": 1}


def is_collectives(table: pd.DataFrame) -> bool:
    """Return whether a table, which is none of operators, has collectives."""
    return "collective" in table.columns or _is_big_red(table)


def collective_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Check a table of collectives, one per row; the GPT-350M report's becomes one.

    Raises
    ------
    ReproError
        A column is missing, or a size, time or number of ranks or nodes is not positive.
    """
    rows = _big_red_rows(table) if _is_big_red(table) else table
    require(rows, _COLUMNS)
    read(rows, same_kind("ranks nodes size_bytes time_us", POSITIVE))
    return rows


def _is_big_red(table: pd.DataFrame) -> bool:
    return {f"{side}_time_us" for side in _BIG_RED_NODES} <= set(table.columns)


def _big_red_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the report's two settings, which are next to each other, one below the other."""
    settings = [
        table.assign(
            **_BIG_RED, ranks=table[f"{side}_n"], nodes=nodes, time_us=table[f"{side}_time_us"]
        )[list(_COLUMNS)]
        for side, nodes in _BIG_RED_NODES.items()
    ]
    return pd.concat(settings, ignore_index=True)


def read_collectives(
    logs: Sequence[Path],
    gpu: str,
    network: str,
    ranks: int | None = None,
    nodes: int | None = None,
) -> tuple[pd.DataFrame, str]:
    """Read the published collectives, and those of logs on one GPU and network.

    Parameters
    ----------
    logs
        Files of any tool that `repro.logs.reading` reads.
    ranks, nodes
        Numbers of ranks and nodes, where logs do not state them.

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
    parts = [collective_rows(pd.read_csv(PUBLISHED / name)) for name in _PUBLISHED]
    silent = []
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
            measured["nodes"] = measured.nodes.fillna(nodes)
        out_of_place = measured[~measured.in_place.astype(bool)]
        parts.append(out_of_place.assign(gpu=gpu, network=network))
    if silent:
        raise ReproError(f"{', '.join(silent)}: no list of ranks; fix: state how many (--ranks)")
    names = ", ".join([*_PUBLISHED, *(path.name for path in logs)])
    return pd.concat(parts, ignore_index=True), names
