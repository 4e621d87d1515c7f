"""Tables of published latencies and throughputs of serving, as rows of models and engines."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.models.open_models import OpenModel, read_open_models
from repro.catalog.systems.gpus import find_gpu_name, gpu
from repro.catalog.systems.serving import read_serving_stacks, serving_stack_of
from repro.errors import ReproError
from repro.predict.serving.memory import largest_batch
from repro.predict.serving.parameters import engine
from repro.predict.serving.served import SHAPE, Engine, Served, check
from repro.predict.workload import Array

# What tables call a column; the first name is the one it has here.
_CALLED: Mapping[str, tuple[str, ...]] = {
    "set": (),
    "gpu": ("device", "hardware"),
    "model": ("model_name",),
    "input_len": ("input_length", "input_tokens", "isl", "prompt_len", "prompt_tokens"),
    "output_len": ("output_length", "output_tokens", "osl", "generated_tokens"),
    "batch": ("batch_size", "concurrency", "max_batch", "max_batch_size", "max_num_seqs"),
    "dtype": ("precision", "quantization", "weights_dtype"),
    "cache_dtype": ("kv_dtype", "kv_cache_dtype"),
    # Who says only how many GPUs there are splits over all of them.
    "tp": ("tensor_parallel", "tensor_parallel_size", "tp_size", "gpus", "num_gpus"),
    "pp": ("pipeline_parallel", "pipeline_parallel_size", "pp_size"),
    "ep": ("expert_parallel", "expert_parallel_size", "ep_size"),
    "stack": ("engine", "framework", "software"),
    "latency_ms": ("total_latency_ms",),
    "tokens_per_s": (
        *("throughput_tokens_per_s", "throughput_tok_s", "throughput", "output_tokens_per_s"),
        *("out_tokens_per_s", "throughput_out_tok_s", "output_throughput", "tok_per_s", "tok_s"),
        *("tokens_s", "output_tokens_s", "throughput_tokens_s", "throughput_tok_per_s"),
    ),
    "tokens_per_s_per_gpu": (
        *("throughput_tokens_per_s_per_gpu", "throughput_per_gpu", "tok_per_s_per_gpu"),
        *("output_tokens_per_s_per_gpu", "out_tok_s_per_gpu", "out_tok_s_gpu", "tok_s_gpu"),
        *("tokens_s_gpu", "output_tokens_s_gpu", "throughput_out_tok_s_gpu"),
    ),
}
_MEASURED = ("latency_ms", "tokens_per_s", "tokens_per_s_per_gpu")
_OWN_SHAPE = ("layers", "hidden", "heads", "vocab")
_YES = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class ServingRows:
    """Rows of one engine: where they stand in their table, and seconds from start to end as
    measured."""

    index: pd.Index
    rows: Served
    engine: Engine
    total_s: Array


def renamed(table: pd.DataFrame) -> pd.DataFrame:
    """A table with the names that its columns have here, the first of several for the same."""
    plain = {re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_"): name for name in table.columns}
    found = {
        own: [plain[one] for one in (own, *others) if one in plain]
        for own, others in _CALLED.items()
    }
    return table.rename(columns={said[0]: own for own, said in found.items() if said})


def is_serving(table: pd.DataFrame) -> bool:
    """Whether a table is one of serving: prompts, outputs, and how long or how many a second."""
    columns = set(renamed(table).columns)
    return {"input_len", "output_len"} <= columns and bool(columns & {*_MEASURED})


def serving_rows(table: pd.DataFrame) -> Iterator[ServingRows]:
    """The rows of a table by engine.

    Wanted are gpu, input_len, output_len, one of latency_ms, tokens_per_s (of all its GPUs) and
    tokens_per_s_per_gpu, and either model (a name of `params/open_models.yaml`, as tables write it)
    or layers, hidden, heads and vocab. May be missing or blank: batch (as many sequences as the
    memory holds), tp, pp and ep (1), dtype (fp16), cache_dtype (that of the weights), stack (what
    its set is known to have run on), and the rest of a model's shape.

    Raises
    ------
    ReproError
        A column is missing or a value is not known; the message names the row.
    """
    called = renamed(table)
    for name in ("gpu", "input_len", "output_len"):
        if name not in called.columns:
            raise ReproError(f"no column {name!r}; wanted are gpu, input_len, output_len")
    if "model" not in called.columns and not set(_OWN_SHAPE) <= set(called.columns):
        raise ReproError(f"no column 'model', and not all of {', '.join(_OWN_SHAPE)}")
    dtype = _text(called, "dtype", "fp16")
    keys = pd.DataFrame(
        {
            "gpu": called["gpu"].astype(str),
            "dtype": dtype,
            "cache": _text(called, "cache_dtype", "").mask(lambda one: one == "", dtype),
            "stack": _stacks(called),
        }
    )
    for _, own in keys.drop_duplicates().iterrows():
        part = called[(keys == own).all(axis=1)]
        label, weights, cache, stack = own
        served_by = engine(gpu(find_gpu_name(label)), weights, cache, stack)
        rows = _served(part, served_by)
        yield ServingRows(part.index, rows, served_by, _total_s(part, rows))


def model_called(name: str) -> OpenModel:
    """An open model by any of its names, whatever its case and marks; the longest that is in it.

    Raises
    ------
    ReproError
        No model of the catalogue has it.
    """
    known = read_open_models()
    plain = {
        _plain(one): entry
        for key, entry in known.items()
        for one in (key, entry.label, *entry.published_as)
    }
    wanted = _plain(name.rsplit("/", 1)[-1])
    inside = [one for one in plain if one in wanted]
    if not inside:
        raise ReproError(f"unknown model {name!r}; choose from: {', '.join(known)}")
    return plain[max(inside, key=len)]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _stacks(table: pd.DataFrame) -> list[str]:
    """Each row's software: the one it names, however it is written, else what its set ran on."""
    known = read_serving_stacks()
    shapes = _text(table, "layers", "") + "x" + _text(table, "hidden", "")
    named = _text(table, "stack", "").map(
        lambda said: next((name for name in known if _plain(name) == _plain(said)), said)
    )
    rows = zip(named, _text(table, "set", ""), shapes, strict=True)
    return [name or serving_stack_of(of_set, shape) for name, of_set, shape in rows]


def _text(table: pd.DataFrame, name: str, usual: str) -> pd.Series:
    if name not in table.columns:
        return pd.Series(usual, index=table.index)
    return table[name].fillna(usual).astype(str)


def _numbers(table: pd.DataFrame, name: str, usual: Array | float | None) -> Array:
    """A column of numbers; `usual` where it is missing or blank, which None does not allow."""
    if name not in table.columns:
        assert usual is not None
        return np.broadcast_to(np.asarray(usual, float), len(table)).copy()
    said = table[name].map(lambda one: _YES.get(str(one).lower(), one))
    blank = table[name].isna().to_numpy()
    found = pd.to_numeric(said, errors="coerce").to_numpy(dtype=float)
    wrong = np.isnan(found) & (~blank | (usual is None))
    if wrong.any():
        row = int(wrong.argmax())
        value = table[name].tolist()[row]
        raise ReproError(f"line {table.index[row] + 2}: {name} is {value!r}; wanted is a number")
    return found if usual is None else np.where(np.isnan(found), usual, found)


def _shapes(table: pd.DataFrame) -> dict[str, Array]:
    """Each row's model: its own columns, else those of the model it names, else a GPT's."""
    known: dict[str, Any] = {name: np.full(len(table), np.nan) for name in SHAPE}
    names, unsaid = _text(table, "model", ""), np.zeros(len(table), bool)
    for name in _OWN_SHAPE:
        unsaid |= table[name].isna().to_numpy() if name in table.columns else True
    for name in names[unsaid].unique():
        at = (names == name).to_numpy() & unsaid
        for field, column in known.items():
            column[at] = float(getattr(model_called(name).shape, field))
    own = {name: _numbers(table, name, known[name]) for name in SHAPE}
    usual = {
        "ffn": np.where(own["experts"] > 0, 0.0, 4 * own["hidden"]),
        "kv_heads": own["heads"],
        "head_dim": own["hidden"] / own["heads"],
    }
    return {
        name: np.where(np.isnan(column), usual.get(name, 0.0), column)
        for name, column in own.items()
    }


def _served(table: pd.DataFrame, on: Engine) -> Served:
    columns: dict[str, Array] = _shapes(table)
    for name in ("tp", "pp", "ep"):
        columns[name] = _numbers(table, name, 1.0)
    columns["input_tokens"] = _numbers(table, "input_len", None)
    columns["output_tokens"] = _numbers(table, "output_len", None)
    said = _numbers(table, "batch", np.nan)
    held = np.maximum(largest_batch(Served(**columns, batch=np.ones(len(table))), on), 1.0)
    rows = Served(**columns, batch=np.where(np.isnan(said), held, said))
    check(rows)
    return rows


def _total_s(table: pd.DataFrame, rows: Served) -> Array:
    """From start to end: as measured, or as long as writing everything takes at the throughput."""
    names: Sequence[str] = [name for name in _MEASURED if name in table.columns]
    value = _numbers(table, names[0], None)
    if not np.all(value > 0):
        row = int(np.argmin(value > 0))
        raise ReproError(
            f"line {table.index[row] + 2}: {names[0]} is {value[row]:g}; "
            "wanted is a positive number"
        )
    if names[0] == "latency_ms":
        total: Array = 1e-3 * value
        return total
    gpus = rows.gpus if names[0] == "tokens_per_s_per_gpu" else 1.0
    written: Array = rows.batch * rows.output_tokens / (value * gpus)
    return written
