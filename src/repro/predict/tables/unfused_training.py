"""Tables of training runs of Megatron-LM of 2021, as workloads on machines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd

from repro.catalog.systems.clusters import Cluster, read_clusters
from repro.catalog.systems.gpus import find_gpu_name
from repro.catalog.systems.topology import Level, Topology
from repro.errors import ReproError
from repro.predict.tables.columns import (
    POSITIVE,
    TEXT,
    YES_NO,
    Column,
    choice,
    read,
    refuse,
    same_kind,
)
from repro.predict.workload import RECOMPUTE, Array, Workload, check, from_columns

_COLUMNS = (
    *same_kind("set gpu", TEXT),
    *same_kind("gpus gpus_per_node inter_node_gbps_per_node layers hidden heads", POSITIVE),
    *same_kind("seq vocab tp pp dp vpp micro_batch global_batch", POSITIVE),
    Column("recompute", choice(RECOMPUTE)),
    Column("sequence_parallel", YES_NO),
    # Blank: the configuration did not fit.
    Column("iteration_time_s", POSITIVE, np.nan),
)


@dataclass(frozen=True)
class TrainingRows:
    """Training runs on one machine: index and set in their table, workload and seconds.

    `phases` are the timed phases of `repro.predict.step.iteration`; None: all.
    """

    index: pd.Index
    sets: Array
    cluster: Cluster
    workload: Workload
    iteration_time_s: Array
    phases: tuple[str, ...] | None = None


def training_rows(table: pd.DataFrame) -> Iterator[TrainingRows]:
    """Read training runs of GPTs by machine, from a table with `_COLUMNS`.

    Raises
    ------
    ReproError
        A column or cell is wrong, a GPU is unknown, or a row's sizes do not divide.
    """
    rows = read(table, _COLUMNS)
    refuse(table, "gpus", rows.gpus != rows.tp * rows.pp * rows.dp, "tp x pp x dp")
    for key, group in rows.groupby(["gpu", "gpus_per_node", "inter_node_gbps_per_node"]):
        gpu, node, fabric_gbps = cast(tuple[str, float, float], key)
        run = from_columns(
            "gpt",
            # Stages of published runs may be uneven: the largest one decides.
            layers=np.ceil(group.layers / (group.pp * group.vpp)) * group.pp * group.vpp,
            hidden_size=group.hidden,
            ffn_hidden_size=4 * group.hidden,
            attention_heads=group.heads,
            sequence_length=group.seq,
            decoder_sequence_length=np.zeros(len(group)),
            vocabulary_size=group.vocab,
            global_batch_size=group.global_batch,
            micro_batch_size=group.micro_batch,
            data_parallel=group.dp,
            tensor_parallel=group.tp,
            pipeline_parallel=group.pp,
            virtual_stages=group.vpp,
            recompute=group.recompute.to_numpy(dtype=float),
            sequence_parallel=group.sequence_parallel,
            distributed_optimizer=np.zeros(len(group)),
            overlap_gradient_sync=np.zeros(len(group)),
            gradient_bytes=np.full(len(group), 2),
        )
        check(run)
        yield TrainingRows(
            index=group.index,
            sets=group["set"].to_numpy(),
            cluster=cluster_like(gpu, int(node), fabric_gbps),
            workload=run,
            iteration_time_s=group.iteration_time_s.to_numpy(),
        )


def cluster_like(gpu: str, gpus_per_node: int, fabric_gbps: float) -> Cluster:
    """Return the catalog's cluster with that GPU, GPUs per node and Gb/s between nodes.

    Where there is none, it is the first one with that GPU, with that node size and rate.

    Raises
    ------
    ReproError
        No cluster of the catalog has that GPU.
    """
    name = find_gpu_name(gpu)
    having = [entry for entry in read_clusters().values() if entry.gpu == name]
    if not having:
        raise ReproError(f"no cluster in params/clusters.yaml has the GPU {gpu!r}; fix: add one")
    for entry in having:
        top = entry.topology.levels[-1]
        if entry.topology.gpus_per_node == gpus_per_node and top.link_gbps == fabric_gbps:
            return entry
    node, fabric = having[0].topology.levels[-2:]
    levels = (
        Level(name=node.name, members=gpus_per_node, link_gbps=node.link_gbps),
        Level(name=fabric.name, members=fabric.members, link_gbps=fabric_gbps),
    )
    # Measurements of the network are of another node and fabric.
    changed = {"topology": Topology(levels=levels), "network": None}
    return having[0].model_copy(update=changed)
