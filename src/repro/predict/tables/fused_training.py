"""Tables of training runs of today's software: stated values, derived ones and defaults."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.models.open_models import read_open_models
from repro.catalog.reading import choose
from repro.catalog.systems.gpus import Gpu, find_gpu_name, gpu
from repro.catalog.systems.software_stacks import read_stacks, stack_of
from repro.predict.fused.run import (
    DEFAULTS,
    GENERATIONS,
    OPERAND_BYTES,
    PRECISIONS,
    Run,
    peak_flops,
)
from repro.predict.tables.columns import (
    TEXT,
    YES_NO,
    Column,
    by_value,
    choice,
    number,
    read,
    refuse,
    same_kind,
)
from repro.predict.workload import RECOMPUTE, Array

_UNKNOWN = "unknown"
# Properties of a model that no table states.
_NOT_STATED = ("kv_rank", "query_rank", "rope_dim", "dense_layers", "dense_ffn", "mtp_layers")
# Columns that every table of runs has.
RUN = (Column("gpu", TEXT), *same_kind("gpus layers hidden heads seq vocab global_batch"))
# Published tables mark unknown values in several ways.
_STATED = number(or_blank=True)
_SOFTWARE = same_kind("set stack", TEXT, "")
_COLUMNS = (
    *RUN,
    Column("model", TEXT, ""),
    *same_kind("tp pp cp ep vpp micro_batch", default=1),
    *same_kind("experts experts_per_token expert_ffn shared_expert_ffn", default=0),
    Column("expert_imbalance", number(1, or_blank=True), 1),
    *same_kind("gated_mlp zero_bubble fsdp tied_embeddings", YES_NO, "no"),
    # Half precision takes as long in either format.
    Column("dtype", choice(PRECISIONS, fp16=0), "bf16"),
    Column("recompute", choice(RECOMPUTE, unknown=0), "none"),
    Column("overlap", TEXT, _UNKNOWN),
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


def read_runs(table: pd.DataFrame) -> Run:
    """Read runs of a table with the columns `RUN`, and any others of `training_modern.csv`.

    Raises
    ------
    ReproError
        A column or cell is wrong, or the GPUs are no product of the groups.
    """
    rows = read(table, _COLUMNS)
    groups = rows.tp * rows.pp * rows.cp
    rows["dp"] = rows.dp.fillna(rows.gpus / groups)
    refuse(table, "gpus", ~np.isclose(rows.gpus, groups * rows.dp), "tp x pp x cp x dp")
    refuse(table, "vpp", (rows.zero_bubble > 0) & (rows.vpp > 1), "1 where zero_bubble is yes")
    windows = {name: entry.shape.window for name, entry in read_open_models().items()}
    rows["window"] = rows.window.fillna(rows.model.map(windows)).fillna(0)
    fill_widths(rows)
    rows["ffn"] = rows.ffn.where(rows.experts == 0, 0.0)
    rows["value_dim"] = rows.head_dim
    rows = rows.assign(**dict.fromkeys(_NOT_STATED, 0.0), **DEFAULTS, windowed=0.5)

    def of_gpu(value: Callable[[Gpu], float]) -> pd.Series:
        return by_value(rows.gpu, lambda label: value(gpu(find_gpu_name(label))))

    def overlaps(name: str) -> pd.Series:
        return by_value(rows.overlap, partial(_overlaps, name))

    nics_gbps = rows.gpus_per_node * of_gpu(lambda one: one.nic_gbps)
    node_gbps = rows.inter_node_gbps_per_node.fillna(nics_gbps)
    precision = rows["dtype"].to_numpy(dtype=int)
    stacks = {name: at for at, name in enumerate(read_stacks())}
    peaks = [of_gpu(partial(peak_flops, precision=name)).to_numpy() for name in PRECISIONS]
    found = rows.assign(
        tied=rows.tied_embeddings,
        imbalance=rows.expert_imbalance,
        sharded=rows.fsdp,
        # Software that sizes micro batches itself need not divide the batch.
        micro_batches=np.maximum(rows.global_batch / (rows.micro_batch * rows.dp), 1.0),
        precision=precision,
        generation=of_gpu(lambda one: GENERATIONS.index(one.generation)),
        stack=by_value(stack_names(table), lambda name: choose("stack", name, stacks)),
        hidden_gradients=np.maximum(overlaps("dp"), overlaps("dp-grad")),
        **{f"hidden_{name}": overlaps(name) for name in ("dp", "tp", "pp", "ep")},
        operand_bytes=np.array(list(OPERAND_BYTES.values()))[precision],
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


def _overlaps(name: str, stated: str) -> bool:
    """Return whether a row overlaps `name`.

    Software that states nothing overlaps all but exchanges of experts.
    """
    if stated == _UNKNOWN:
        return name != "ep"
    return name in (part.strip().lower() for part in stated.split(","))


def stack_names(table: pd.DataFrame) -> pd.Series:
    """Return each run's software: `stack`, else the one that its set is known to have run on."""
    rows = read(table, _SOFTWARE)
    return rows["stack"].where(rows["stack"] != "", rows["set"].map(stack_of))


def otherwise(table: pd.DataFrame) -> Iterator[tuple[Array, pd.DataFrame]]:
    """Yield which rows leave an important column blank, and the table with another value there."""
    for name, value in _OTHERWISE.items():
        given = table[name] if name in table.columns else pd.Series(None, index=table.index)
        yield given.isna().to_numpy(), table.assign(**{name: given.astype(object).fillna(value)})
