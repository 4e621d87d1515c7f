"""Tables of latencies and throughputs of serving, as rows of models and engines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd

from repro.catalog.models.open_models import model_called
from repro.catalog.systems.gpus import find_gpu_name, gpu
from repro.catalog.systems.serving import read_serving_stacks, serving_stack_of
from repro.errors import ReproError
from repro.predict.decoders import MODEL, model_columns
from repro.predict.serving.memory import largest_batch
from repro.predict.serving.parameters import engine, stack_named, weights_of
from repro.predict.serving.served import Engine, Served, check, precision
from repro.predict.tables.columns import (
    POSITIVE,
    TEXT,
    YES_NO,
    Column,
    number,
    read,
    refuse,
    renamed,
    unknown,
)
from repro.predict.tables.training import fill_widths
from repro.predict.workload import Array

_SIZE = number(1)
_LENGTHS = (
    Column("input_len", _SIZE, aliases="input_length input_tokens isl prompt_len prompt_tokens"),
    Column("output_len", _SIZE, aliases="output_length output_tokens osl generated_tokens"),
)
_BATCH = "batch_size concurrency max_batch max_batch_size max_num_seqs"
# Tables that state only the number of GPUs split tensors over all of them.
_TP = "tensor_parallel tensor_parallel_size tp_size gpus num_gpus"
_SWITCHES = ("gated_mlp", "tied")
_COLUMNS = (
    Column("gpu", TEXT, aliases="device hardware"),
    *_LENGTHS,
    Column("set", TEXT, "", aliases=""),
    Column("model", TEXT, "", aliases="model_name"),
    # Blank: as many sequences as the memory holds.
    Column("batch", _SIZE, np.nan, aliases=_BATCH),
    # Blank: the precision in which the authors publish the model's weights.
    Column("dtype", TEXT, "", aliases="precision quantization weights_dtype"),
    # Blank: the precision of the weights.
    Column("cache_dtype", TEXT, "", aliases="kv_dtype kv_cache_dtype"),
    Column("tp", _SIZE, 1, aliases=_TP),
    Column("pp", _SIZE, 1, aliases="pipeline_parallel pipeline_parallel_size pp_size"),
    # Blank: 1, or as the software reaches most throughput (`_spread_experts`).
    Column("ep", _SIZE, np.nan, aliases="expert_parallel expert_parallel_size ep_size"),
    # Blank: no, or with spread experts. Yes: each GPU of `tp` has sequences of its own.
    Column("dp_attention", YES_NO, np.nan, aliases="enable_dp_attention attention_dp"),
    Column("release", number(0, or_blank=True), np.nan, aliases="version engine_version"),
    # Blank: the software that the set is known to have run on.
    Column("stack", TEXT, "", aliases="engine framework software"),
    # Blank: the shape of the model.
    *(Column(name, YES_NO if name in _SWITCHES else number(), np.nan) for name in MODEL),
)
_THROUGHPUT = (
    "throughput_tokens_per_s throughput_tok_s throughput output_tokens_per_s out_tokens_per_s "
    "throughput_out_tok_s output_throughput tok_per_s tok_s tokens_s output_tokens_s "
    "throughput_tokens_s throughput_tok_per_s"
)
_THROUGHPUT_PER_GPU = (
    "throughput_tokens_per_s_per_gpu throughput_per_gpu tok_per_s_per_gpu "
    "output_tokens_per_s_per_gpu out_tok_s_per_gpu out_tok_s_gpu tok_s_gpu tokens_s_gpu "
    "output_tokens_s_gpu throughput_out_tok_s_gpu"
)
# The first of these columns that is not blank counts.
_MEASURED = (
    Column("latency_ms", POSITIVE, np.nan, aliases="total_latency_ms"),
    Column("tokens_per_s", POSITIVE, np.nan, aliases=_THROUGHPUT),
    Column("tokens_per_s_per_gpu", POSITIVE, np.nan, aliases=_THROUGHPUT_PER_GPU),
)
# Columns that an engine follows from.
_ENGINE = ["gpu", "dtype", "cache_dtype", "stack"]
_OWN_SHAPE = ["layers", "hidden", "heads", "vocab"]


@dataclass(frozen=True)
class ServingRows:
    """Rows of one engine: their index in the table, and measured seconds from start to end."""

    index: pd.Index
    rows: Served
    engine: Engine
    total_s: Array


def is_serving(table: pd.DataFrame) -> bool:
    """Return whether a table has prompts, outputs, and latencies or throughputs."""
    found = set(renamed(table, (*_LENGTHS, *_MEASURED)).columns)
    lengths, measured = ({one.name for one in columns} for columns in (_LENGTHS, _MEASURED))
    return lengths <= found and bool(measured & found)


def serving_rows(table: pd.DataFrame) -> Iterator[ServingRows]:
    """Read the rows of a table by engine.

    A table must have gpu, input_len, output_len, and in each row one of latency_ms, tokens_per_s
    (of all its GPUs) and tokens_per_s_per_gpu. It must have model, a name of
    `params/open_models.yaml` in any spelling, or layers, hidden, heads and vocab. `_COLUMNS` has
    the others and their defaults.

    Raises
    ------
    ReproError
        A column or cell is wrong, or a name is unknown.
    """
    rows = _read(table)
    _fill_shapes(rows)
    _spread_experts(rows)
    for key, part in rows.groupby(_ENGINE, sort=False):
        on = _engine(cast(tuple[str, ...], key))
        batches = _served(part, on)
        yield ServingRows(part.index, batches, on, _total_s(part, batches))


def unknown_serving(table: pd.DataFrame) -> pd.Series:
    """Return why each row's GPU, model, precision or software is unknown; else an empty text.

    Raises
    ------
    ReproError
        A column or cell is wrong.
    """
    rows = _read(table)
    unnamed = rows.model.where(rows[_OWN_SHAPE].isna().any(axis=1))
    reasons = unknown(rows.gpu, find_gpu_name)
    reasons = reasons.where(reasons != "", unknown(unnamed, model_called))
    for key, part in rows[reasons == ""].groupby(_ENGINE, sort=False):
        try:
            _engine(cast(tuple[str, ...], key))
        except ReproError as error:
            reasons[part.index] = str(error)
    known = rows[reasons == ""].copy()
    _fill_shapes(known)
    whole = (known.dp_attention == 1) & (known.experts == 0)
    reasons[known.index[whole]] = "dp_attention is yes, which dense layers do not have; fix: no"
    uneven = known[(np.mod(known.heads, known.tp) > 0) & (known.dp_attention != 1)]
    for tp, heads in set(zip(uneven.tp, uneven.heads, strict=True)):
        at = uneven.index[(uneven.tp == tp) & (uneven.heads == heads)]
        reasons[at] = f"tp {tp:g} does not divide {heads:g} heads; fix: take one of its divisors"
    return reasons


def _read(table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of a table of serving, with each row's software and measured value."""
    called = renamed(table, (*_COLUMNS, *_MEASURED))
    if "model" not in called.columns and not set(_OWN_SHAPE) <= set(called.columns):
        raise ReproError(
            f"no column 'model'; must have it or {', '.join(_OWN_SHAPE)}; fix: add the column"
        )
    rows = read(called, (*_COLUMNS, *_MEASURED))
    measured = [one.name for one in _MEASURED]
    first = next((name for name in measured if name in called.columns), measured[0])
    refuse(called, first, rows[measured].isna().all(axis=1), POSITIVE.must_be)
    rows["stack"] = _stacks(rows)
    rows["dtype"] = _formats(rows)
    return rows


def _formats(rows: pd.DataFrame) -> list[str]:
    """Return the weights that each row's precision means for the model that it names."""
    pairs = list(zip(rows.model, rows.dtype, strict=True))
    known = {pair: _format(*pair) for pair in set(pairs)}
    return [known[pair] for pair in pairs]


def _format(model: str, name: str) -> str:
    """Return the weights that a precision means; unknown names are left to `unknown_serving`."""
    try:
        return weights_of(model_called(model), name)
    except ReproError:
        pass
    try:
        return precision(name or "bf16")
    except ReproError:
        return name


def _engine(key: tuple[str, ...]) -> Engine:
    """Return the engine of rows with the same values of `_ENGINE`."""
    label, weights, cache, stack = key
    return engine(gpu(find_gpu_name(label)), weights, cache, stack)


def _total_s(rows: pd.DataFrame, batches: Served) -> Array:
    """Return seconds from start to end: the latency, or all outputs at the throughput."""
    tokens_per_s = rows.tokens_per_s.fillna(rows.tokens_per_s_per_gpu * batches.gpus)
    outputs_s = batches.batch * batches.output_tokens / tokens_per_s
    total_s: Array = (1e-3 * rows.latency_ms).fillna(outputs_s).to_numpy()
    return total_s


def _stacks(rows: pd.DataFrame) -> list[str]:
    """Return each row's software: the one it names in any spelling, else the one of its set."""
    return [
        stack_named(stated) if stated else serving_stack_of(of_set, f"{layers:.0f}x{hidden:.0f}")
        for stated, of_set, layers, hidden in zip(
            rows["stack"], rows["set"], rows.layers, rows.hidden, strict=True
        )
    ]


def _fill_shapes(rows: pd.DataFrame) -> None:
    """Fill blank columns of a row's shape from the model that it names, else as a GPT's."""
    incomplete = rows[_OWN_SHAPE].isna().any(axis=1)
    for name in rows.model[incomplete].unique():
        shape, named = model_called(name).shape, incomplete & (rows.model == name)
        for column, value in model_columns(shape).items():
            rows.loc[named & rows[column].isna(), column] = value
    fill_widths(rows)
    rows["value_dim"] = rows.value_dim.fillna(rows.head_dim)
    rows["windowed"] = rows.windowed.fillna(0.5)
    rows[list(MODEL)] = rows[list(MODEL)].fillna(0.0)


def _spread_experts(rows: pd.DataFrame) -> None:
    """Fill expert parallel sizes, with attention on each GPU (DEP) where it is stated or usual.

    Rows of maximum throughput, without a batch, have the split that their release reaches it with.
    With DEP all tensor-parallel GPUs have sequences of their own and share the experts.
    """
    known = read_serving_stacks()
    since = [known[name].spreads_experts_since if name in known else None for name in rows["stack"]]
    late = rows.release >= pd.Series(since, index=rows.index, dtype=float)
    usual = late & rows.ep.isna() & rows.batch.isna() & (rows.experts > 0)
    apart = rows.dp_attention.fillna(usual).astype(bool)
    rows.loc[apart, "ep"] = np.fmax(rows.ep, rows.tp)[apart]
    rows.loc[apart, "tp"] = 1.0
    rows["ep"] = rows.ep.fillna(1.0)


def _served(rows: pd.DataFrame, on: Engine) -> Served:
    columns = {name: rows[name].to_numpy() for name in (*MODEL, "tp", "pp", "ep")}
    columns["input_tokens"] = rows.input_len.to_numpy()
    columns["output_tokens"] = rows.output_len.to_numpy()
    held = np.maximum(largest_batch(Served(**columns, batch=np.ones(len(rows))), on), 1.0)
    batch = rows.batch.to_numpy()
    served = Served(**columns, batch=np.where(np.isnan(batch), held, batch))
    check(served)
    return served
