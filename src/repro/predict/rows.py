"""Published measurements as rows: read, checked, and turned into workloads on machines."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from repro.catalog.clusters import Cluster, read_clusters
from repro.catalog.gpus import read_gpus
from repro.catalog.reading import choose
from repro.catalog.topology import Level, Topology
from repro.errors import ReproError
from repro.predict.workload import Array, Workload, check, from_columns

TRAINING = (
    *("set", "gpu", "gpus", "gpus_per_node", "inter_node_gbps_per_node"),
    *("layers", "hidden", "heads", "seq", "vocab", "tp", "pp", "dp", "vpp"),
    *("micro_batch", "global_batch", "recompute", "sequence_parallel", "iteration_time_s"),
)
COLLECTIVES = ("gpu", "ranks", "nodes", "network", "collective", "size_bytes", "time_us")


def read_rows(path: Path) -> pd.DataFrame:
    """A CSV of measurements.

    Raises
    ------
    ReproError
        The file is missing, empty or no CSV, or has none of the known forms; the message names
        what is missing.
    """
    try:
        rows = pd.read_csv(path)
    except FileNotFoundError:
        raise ReproError(f"{path}: no such file") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ReproError(f"{path}: not a CSV of measurements ({error})") from None
    wanted = COLLECTIVES if "collective" in rows.columns else TRAINING
    missing = [name for name in wanted if name not in rows.columns]
    if missing:
        raise ReproError(f"{path}: no column {missing[0]!r}; wanted are {', '.join(wanted)}")
    if rows.empty:
        raise ReproError(f"{path}: no rows")
    measured = "time_us" if wanted is COLLECTIVES else "iteration_time_s"
    times = pd.to_numeric(rows[measured], errors="coerce")
    if not (times > 0).all():
        line = int(np.argmin((times > 0).to_numpy())) + 2
        raise ReproError(
            f"{path}: line {line}: {measured} is {rows[measured].iloc[line - 2]!r}; "
            "wanted is a positive number"
        )
    return rows


@dataclass(frozen=True)
class TrainingRows:
    """Rows of one machine: where they stand in their table, what was run, how long it took."""

    index: pd.Index
    cluster: Cluster
    workload: Workload
    iteration_time_s: Array


def training_rows(rows: pd.DataFrame) -> Iterator[TrainingRows]:
    """Training measurements by machine.

    Raises
    ------
    ReproError
        A GPU is unknown, or a row's sizes do not divide.
    """
    for key, group in rows.groupby(["gpu", "gpus_per_node", "inter_node_gbps_per_node"]):
        gpu, gpus_per_node, fabric_gbps = cast(tuple[str, int, float], key)
        columns: dict[str, ArrayLike] = {
            "layers": group.layers,
            "hidden_size": group.hidden,
            "ffn_hidden_size": 4 * group.hidden,
            "attention_heads": group.heads,
            "sequence_length": group.seq,
            "decoder_sequence_length": np.zeros(len(group)),
            "vocabulary_size": group.vocab,
            "global_batch_size": group.global_batch,
            "micro_batch_size": group.micro_batch,
            "data_parallel": group.dp,
            "tensor_parallel": group.tp,
            "pipeline_parallel": group.pp,
            "virtual_stages": group.vpp,
            "recompute": group.recompute.to_numpy(dtype=str),
            "sequence_parallel": group.sequence_parallel == "yes",
            "distributed_optimizer": np.zeros(len(group)),
            "overlap_gradient_sync": np.zeros(len(group)),
            "gradient_bytes": np.full(len(group), 2),
        }
        run = from_columns("gpt", **columns)
        check(run)
        yield TrainingRows(
            index=group.index,
            cluster=cluster_like(gpu, int(gpus_per_node), float(fabric_gbps)),
            workload=run,
            iteration_time_s=group.iteration_time_s.to_numpy(dtype=float),
        )


def cluster_like(gpu: str, gpus_per_node: int, fabric_gbps: float) -> Cluster:
    """The catalog's cluster with that GPU, node and rate between nodes.

    Where there is none: the first one with that GPU, with that node size and rate.

    Raises
    ------
    ReproError
        No cluster of the catalog has that GPU.
    """
    labels = {entry.label: name for name, entry in read_gpus().items()}
    name = choose("GPU", gpu, labels)
    having = [entry for entry in read_clusters().values() if entry.gpu == name]
    if not having:
        raise ReproError(f"no cluster in params/clusters.yaml has the GPU {gpu!r}; add one")
    for entry in having:
        top = entry.topology.levels[-1]
        if entry.topology.gpus_per_node == gpus_per_node and top.link_gbps == fabric_gbps:
            return entry
    node, fabric = having[0].topology.levels[-2:]
    levels = (
        Level(name=node.name, members=gpus_per_node, link_gbps=node.link_gbps),
        Level(name=fabric.name, members=fabric.members, link_gbps=fabric_gbps),
    )
    return having[0].model_copy(update={"topology": Topology(levels=levels)})
