"""Tables of training runs: of Megatron-LM of 2021 as workloads, of today's software as runs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd

from repro.catalog.models.open_models import read_open_models
from repro.catalog.reading import choose
from repro.catalog.systems.clusters import Cluster, read_clusters
from repro.catalog.systems.gpus import Gpu, find_gpu_name, gpu
from repro.catalog.systems.software_stacks import read_stacks, stack_of
from repro.catalog.systems.topology import Level, Topology
from repro.errors import ReproError
from repro.predict.fused.run import (
    GENERATIONS,
    OPERAND_BYTES,
    PRECISIONS,
    Run,
    peak_flops,
)
from repro.predict.tables.columns import (
    POSITIVE,
    TEXT,
    YES_NO,
    Column,
    choice,
    number,
    read,
    refuse,
    same_kind,
)
from repro.predict.workload import RECOMPUTE, Array, Workload, check, from_columns

# Name of Megatron-LM of 2021, the software of `repro.predict.step`. Tables ran on it that have none
# of these columns, on GPUs of these generations.
UNFUSED = "megatron-lm-2021"
_FUSED_ONLY = {"cp", "ep", "attention", "gated_mlp"}
_UNFUSED_GENERATIONS = ("volta", "ampere", "cdna2")
# Columns that every table of runs has.
_RUN = (
    Column("gpu", TEXT),
    *same_kind("gpus layers hidden heads seq vocab global_batch", POSITIVE),
)
_TIME = Column("iteration_time_s", POSITIVE)
_UNFUSED = (
    *_RUN,
    _TIME,
    Column("set", TEXT),
    *same_kind("gpus_per_node inter_node_gbps_per_node tp pp dp vpp micro_batch", POSITIVE),
    Column("recompute", choice(RECOMPUTE)),
    Column("sequence_parallel", YES_NO),
)
# Software that states nothing overlaps all but exchanges of experts.
_OVERLAP = "dp,tp,pp"
# Published tables mark unknown values in several ways.
_STATED = number(or_blank=True)
_SOFTWARE = same_kind("set stack", TEXT, "")
_FUSED = (
    *_RUN,
    Column("model", TEXT, ""),
    *same_kind("tp pp cp ep etp vpp micro_batch", default=1),
    Column("gradient_bytes", _STATED, np.nan),
    Column("lora_rank", _STATED, 0),
    *same_kind("experts experts_per_token expert_ffn shared_expert_ffn", default=0),
    Column("expert_imbalance", number(1, or_blank=True), 1),
    *same_kind("gated_mlp zero_bubble fsdp tied_embeddings", YES_NO, "no"),
    # Half precision takes as long in either format.
    Column("dtype", choice(PRECISIONS, fp16=0), "bf16"),
    Column("recompute", choice(RECOMPUTE, unknown=0), "none"),
    Column("overlap", TEXT, _OVERLAP),
    Column("gpus_per_node", _STATED, 8),
    # Blank: values that follow from others.
    *same_kind("dp ffn kv_heads head_dim window nvlink_domain", _STATED, np.nan),
    Column("inter_node_gbps_per_node", _STATED, np.nan),
)
# Tokens of the busiest rank of experts over the mean, where a table does not state it: a usual
# capacity (Fedus et al., Switch Transformers, 2022, section 2.2).
UNEVEN = 1.25
# Other likely values of blank cells.
_OTHERWISE: Mapping[str, Any] = {
    "overlap": "none",
    "recompute": "full",
    "micro_batch": 2,
    "expert_imbalance": UNEVEN,
}


def check_runs(table: pd.DataFrame) -> None:
    """Check a table of measured training runs, each by the model of its software's generation.

    Raises
    ------
    ReproError
        A column or cell is wrong.
    """
    read(table, (*_RUN, _TIME))
    unfused = (software(table) == UNFUSED).to_numpy()
    if unfused.any():
        list(training_rows(table[unfused]))
    if not unfused.all():
        read_runs(table[~unfused])


def software(table: pd.DataFrame) -> pd.Series:
    """Return the name of each run's software.

    It is `stack`. Where that is blank, it is `UNFUSED` for GPUs of its time in tables of its time,
    else the software that the run's set is known to have run on.
    """
    found = _stacks(table)
    if _FUSED_ONLY & set(table.columns):
        return found
    generations = _by_value(table.gpu, lambda label: gpu(find_gpu_name(label)).generation)
    unsaid = table["stack"].isna() if "stack" in table.columns else True
    return found.mask(generations.isin(_UNFUSED_GENERATIONS) & unsaid, UNFUSED)


def _stacks(table: pd.DataFrame) -> pd.Series:
    """Return each run's software: `stack`, else the one that its set is known to have run on."""
    rows = read(table, _SOFTWARE)
    return rows["stack"].where(rows["stack"] != "", rows["set"].map(stack_of))


def _by_value(cells: pd.Series, value: Callable[[str], Any]) -> pd.Series:
    """Return a value for each cell, computed once for each different text."""
    return cells.map({text: value(str(text)) for text in cells.unique()})


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
    """Read training runs of GPTs by machine, from a table with `_UNFUSED`.

    Raises
    ------
    ReproError
        A column or cell is wrong, a GPU is unknown, or a row's sizes do not divide.
    """
    rows = read(table, _UNFUSED)
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


# Ending of models of which adapters are trained only (LoRA), and the share of parameters that these
# are: of rank 16 beside the attention's products of Llama 2 70B.
_ADAPTED, _ADAPTERS = "-lora", 0.0006
# Properties of a model that no table states.
_NOT_STATED = ("kv_rank", "query_rank", "rope_dim", "dense_layers", "dense_ffn", "mtp_layers")


def read_runs(table: pd.DataFrame) -> Run:
    """Read runs of a table with the columns `_RUN`, and any others of `training_modern.csv`.

    Raises
    ------
    ReproError
        A column or cell is wrong, or the GPUs are no product of the groups.
    """
    rows = read(table, _FUSED)
    groups = rows.tp * rows.pp * rows.cp
    rows["dp"] = rows.dp.fillna(rows.gpus / groups)
    refuse(table, "gpus", ~np.isclose(rows.gpus, groups * rows.dp), "tp x pp x cp x dp")
    refuse(table, "vpp", (rows.zero_bubble > 0) & (rows.vpp > 1), "1 where zero_bubble is yes")
    shapes = {name: entry.shape for name, entry in read_open_models().items()}
    windows = {name: shape.window for name, shape in shapes.items()}
    rows["window"] = rows.window.fillna(rows.model.map(windows)).fillna(0)
    sinks = {name: float(shape.sinks) for name, shape in shapes.items()}
    fill_widths(rows)
    rows["value_dim"] = rows.head_dim
    adapted = rows.model.str.endswith(_ADAPTED) | (rows.lora_rank > 0)
    rows = rows.assign(
        **dict.fromkeys(_NOT_STATED, 0.0),
        windowed=0.5,
        sinks=rows.model.map(sinks).fillna(0.0),
        trained=np.where(adapted, _ADAPTERS, 1.0),
    )
    rows["ffn"] = rows.ffn.where(rows.experts == 0, 0.0)

    def of_gpu(value: Callable[[Gpu], float]) -> pd.Series:
        return _by_value(rows.gpu, lambda label: value(gpu(find_gpu_name(label))))

    def overlaps(*names: str) -> pd.Series:
        def any_of(stated: str) -> bool:
            return not set(names).isdisjoint(stated.lower().replace(" ", "").split(","))

        return _by_value(rows.overlap.replace("unknown", _OVERLAP), any_of)

    nics_gbps = rows.gpus_per_node * of_gpu(lambda one: one.nic_gbps)
    node_gbps = rows.inter_node_gbps_per_node.fillna(nics_gbps)
    precision = rows["dtype"].to_numpy(dtype=int)
    stacks = {name: at for at, name in enumerate(read_stacks())}
    stack = _by_value(_stacks(table), lambda name: choose("stack", name, stacks))
    software = [list(read_stacks().values())[at] for at in stack.astype(int)]
    operand_bytes = np.array(list(OPERAND_BYTES.values()))[precision]
    gathered = np.where([one.gathers_low_precision for one in software], operand_bytes, 2.0)
    peaks = [of_gpu(partial(peak_flops, precision=name)).to_numpy() for name in PRECISIONS]
    found = rows.assign(
        tied=rows.tied_embeddings,
        imbalance=rows.expert_imbalance,
        sharded=rows.fsdp,
        # Software that sizes micro batches itself need not divide the batch.
        micro_batches=np.maximum(rows.global_batch / (rows.micro_batch * rows.dp), 1.0),
        precision=precision,
        generation=of_gpu(lambda one: GENERATIONS.index(one.generation)),
        stack=stack,
        gradient_bytes=rows.gradient_bytes.fillna(
            pd.Series([float(one.gradient_bytes) for one in software], rows.index)
        ),
        parameter_bytes=gathered,
        hidden_gradients=overlaps("dp", "dp-grad"),
        **{f"hidden_{name}": overlaps(name) for name in ("dp", "tp", "pp", "ep")},
        operand_bytes=operand_bytes,
        peak_flops=np.choose(precision, peaks),
        half_flops=of_gpu(lambda one: one.peak_flops),
        multiprocessors=of_gpu(lambda one: one.multiprocessors),
        memory_bytes_per_s=of_gpu(lambda one: 1e9 * one.memory_gbytes_per_s),
        link_bytes_per_s=of_gpu(lambda one: 1e9 * one.link_gbytes_per_s),
        nic_bytes_per_s=node_gbps / rows.gpus_per_node * 1e9 / 8,
        domain_gpus=rows.nvlink_domain.fillna(of_gpu(lambda one: one.domain_gpus)),
    )
    return Run(**{one.name: found[one.name].to_numpy(dtype=float) for one in fields(Run)})


def fill_widths(rows: pd.DataFrame) -> None:
    """Fill blank widths of a model: a GPT's, without a dense part where there are experts."""
    rows["ffn"] = rows.ffn.fillna((4 * rows.hidden).where(~(rows.experts > 0), 0.0))
    rows["kv_heads"] = rows.kv_heads.fillna(rows.heads)
    rows["head_dim"] = rows.head_dim.fillna(rows.hidden / rows.heads)


def otherwise(table: pd.DataFrame) -> Iterator[tuple[Array, pd.DataFrame]]:
    """Yield which rows leave an important column blank, and the table with another value there."""
    for name, value in _OTHERWISE.items():
        given = table[name] if name in table.columns else pd.Series(None, index=table.index)
        yield given.isna().to_numpy(), table.assign(**{name: given.astype(object).fillna(value)})
