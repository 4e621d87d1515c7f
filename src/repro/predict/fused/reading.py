"""Runs read from a table: what it says, what follows from that, and the usual for the rest."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.models.open_models import DecoderShape, read_open_models
from repro.catalog.reading import choose
from repro.catalog.systems.gpus import Gpu, find_gpu_name, gpu
from repro.catalog.systems.software_stacks import read_stacks, stack_of
from repro.errors import ReproError
from repro.predict.fused.run import GENERATIONS, OPERAND_BYTES, PRECISIONS, Run, peak_flops
from repro.predict.workload import RECOMPUTE, Array

_UNKNOWN = "unknown"
# GPUs of a node, and of a domain, where nobody says.
_USUAL_NODE = 8.0

# What mean the same: both halves take as long, and nobody recomputes unasked.
_ALIKE = {"dtype": {"fp16": "bf16"}, "recompute": {_UNKNOWN: "none"}}

# Columns of a table of runs. Those that are not there, or blank, are unknown: what follows from
# others, or the usual, is taken for them.
NEEDED = ("gpu", "gpus", "layers", "hidden", "heads", "seq", "vocab", "global_batch")
_USUAL: Mapping[str, Any] = {
    "set": "",
    "dtype": "bf16",
    **dict.fromkeys(("tp", "pp", "cp", "ep", "vpp", "micro_batch"), 1),
    **dict.fromkeys(("experts", "experts_per_token", "expert_ffn", "shared_expert_ffn"), 0),
    "gated_mlp": "no",
    "zero_bubble": "no",
    "fsdp": "no",
    "tied_embeddings": "no",
    "recompute": "none",
    "overlap": _UNKNOWN,
}
# Tokens of the busiest rank of experts, over the mean, where nobody says: the capacity that it was
# given (Fedus et al., Switch Transformers, 2022, section 2.2).
UNEVEN = 1.25
# What else could be where a table is blank.
_OTHERWISE: Mapping[str, Any] = {
    "overlap": "none",
    "recompute": "full",
    "micro_batch": 2,
    "expert_imbalance": UNEVEN,
}


@dataclass(frozen=True)
class _Columns:
    """A table's columns as arrays, refused where they are not what they should be."""

    table: pd.DataFrame

    def numbers(self, name: str) -> Array:
        """A column that has a number in every row."""
        found = self._parsed(name)
        self.refuse(name, ~(found >= 0), "a number")
        return found

    def numbers_or(self, name: str, otherwise: Array) -> Array:
        """A column that may be missing, or blank in some rows."""
        if name not in self.table.columns:
            return otherwise
        found = self._parsed(name)
        return np.where(np.isnan(found), otherwise, found)

    def yes(self, name: str) -> Array:
        """1 for yes and 0 for no."""
        found = self.table[name].astype(str).str.lower()
        self.refuse(name, ~found.isin(["yes", "no"]), "yes or no")
        return (found == "yes").to_numpy(dtype=float)

    def index(self, name: str, known: tuple[str, ...]) -> Array:
        """Where each row's value is among the known ones."""
        found = self.table[name].astype(str).replace(_ALIKE[name])
        self.refuse(name, ~found.isin(known), f"one of {', '.join(known)}")
        return self.each(found, known.index)

    def each(self, column: pd.Series, value: Callable[[str], Any]) -> Array:
        """A value for every row's text; tables of plans are long and have few of them."""
        found = column.astype(str).map({one: value(one) for one in column.astype(str).unique()})
        return found.to_numpy(dtype=float)

    def of_gpu(self, value: Callable[[Gpu], Any]) -> Array:
        """A value of every row's GPU."""
        return self.each(self.table.gpu, lambda label: value(gpu(find_gpu_name(label))))

    def hides(self, name: str) -> Array:
        """1 where a row says that it hides `name`, or says nothing: software does by default, but
        for exchanges of experts."""
        return self.each(
            self.table["overlap"],
            lambda said: (
                (said == _UNKNOWN and name != "ep")
                or name in (one.strip().lower() for one in said.split(","))
            ),
        )

    def known_window(self) -> Array:
        """The window of rows whose model is an open one; 0 of others, and of nameless ones."""
        if "model" not in self.table.columns:
            return np.zeros(len(self.table))
        known = {name: entry.shape.window for name, entry in read_open_models().items()}
        return self.each(self.table["model"], lambda name: known.get(name, 0))

    def refuse(self, name: str, wrong: Any, wanted: str) -> None:
        """Name the first row where something is wrong."""
        wrong = np.asarray(wrong)
        if wrong.any():
            row = int(wrong.argmax())
            value = self.table[name].tolist()[row]
            raise ReproError(f"line {row + 2}: {name} is {value!r}; wanted is {wanted}")

    def _parsed(self, name: str) -> Array:
        return pd.to_numeric(self.table[name], errors="coerce").to_numpy(dtype=float)


def read_runs(table: pd.DataFrame) -> Run:
    """Runs of a table with the columns `NEEDED`, and any others of `training_modern.csv`.

    Raises
    ------
    ReproError
        A column is missing, a value is not known, or the GPUs are no product of the groups; the
        message names the row.
    """
    for name in NEEDED:
        if name not in table.columns:
            raise ReproError(f"no column {name!r}; wanted are {', '.join(NEEDED)}")
    usual = {
        name: table[name].fillna(value) if name in table.columns else value
        for name, value in _USUAL.items()
    }
    of = _Columns(table.assign(**usual))
    gpus, tp, pp, cp = (of.numbers(name) for name in ("gpus", "tp", "pp", "cp"))
    dp = of.numbers_or("dp", gpus / (tp * pp * cp))
    of.refuse("gpus", ~np.isclose(gpus, tp * pp * cp * dp), "tp x pp x cp x dp")
    hidden, heads, experts = of.numbers("hidden"), of.numbers("heads"), of.numbers("experts")
    zero_bubble = of.yes("zero_bubble")
    of.refuse("vpp", (zero_bubble > 0) & (of.numbers("vpp") > 1), "1, as zero_bubble is yes")
    imbalance = of.numbers_or("expert_imbalance", np.ones(len(table)))
    of.refuse("expert_imbalance", imbalance < 1, "1 (even) or more")
    micro_batch = of.numbers("micro_batch")
    node = of.numbers_or("gpus_per_node", np.full(len(table), _USUAL_NODE))
    own_nics_gbps = node * of.of_gpu(lambda one: one.nic_gbps)
    nic_gbps = of.numbers_or("inter_node_gbps_per_node", own_nics_gbps) / node
    precision = of.index("dtype", PRECISIONS)
    peaks = [of.of_gpu(partial(peak_flops, precision=name)) for name in PRECISIONS]
    numbered = {name: at for at, name in enumerate(read_stacks())}
    return Run(
        layers=of.numbers("layers"),
        hidden=hidden,
        ffn=np.where(experts > 0, 0.0, of.numbers_or("ffn", 4 * hidden)),
        heads=heads,
        kv_heads=of.numbers_or("kv_heads", heads),
        head_dim=of.numbers_or("head_dim", hidden / heads),
        gated_mlp=of.yes("gated_mlp"),
        window=of.numbers_or("window", of.known_window()),
        seq=of.numbers("seq"),
        vocab=of.numbers("vocab"),
        tied=of.yes("tied_embeddings"),
        experts=experts,
        experts_per_token=of.numbers("experts_per_token"),
        expert_ffn=of.numbers("expert_ffn"),
        shared_expert_ffn=of.numbers("shared_expert_ffn"),
        imbalance=imbalance,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=of.numbers("ep"),
        dp=dp,
        vpp=of.numbers("vpp"),
        zero_bubble=zero_bubble,
        sharded=of.yes("fsdp"),
        micro_batch=micro_batch,
        # Software that sizes micro batches itself need not divide the batch.
        micro_batches=np.maximum(of.numbers("global_batch") / (micro_batch * dp), 1.0),
        recompute=of.index("recompute", RECOMPUTE),
        precision=precision,
        generation=of.of_gpu(lambda one: GENERATIONS.index(one.generation)),
        stack=of.each(stack_names(of.table), lambda name: choose("stack", name, numbered)),
        hidden_dp=of.hides("dp"),
        hidden_gradients=np.maximum(of.hides("dp"), of.hides("dp-grad")),
        hidden_tp=of.hides("tp"),
        hidden_pp=of.hides("pp"),
        hidden_ep=of.hides("ep"),
        operand_bytes=np.array(list(OPERAND_BYTES.values()))[precision.astype(int)],
        peak_flops=np.choose(precision.astype(int), peaks),
        half_flops=of.of_gpu(lambda one: one.peak_flops),
        multiprocessors=of.of_gpu(lambda one: one.multiprocessors),
        memory_bytes_per_s=of.of_gpu(lambda one: 1e9 * one.memory_gbytes_per_s),
        link_bytes_per_s=of.of_gpu(lambda one: 1e9 * one.link_gbytes_per_s),
        nic_bytes_per_s=nic_gbps * 1e9 / 8,
        domain_gpus=of.numbers_or("nvlink_domain", of.of_gpu(lambda one: one.domain_gpus)),
    )


def shape_columns(shape: DecoderShape) -> dict[str, Any]:
    """A model's columns of such a table."""
    return shape.model_dump() | {"gated_mlp": "yes" if shape.gated_mlp else "no"}


def stack_names(table: pd.DataFrame) -> pd.Series:
    """Each run's software: `stack`, else what its set is known to have run on."""
    sets = table["set"] if "set" in table.columns else pd.Series("", index=table.index)
    known = sets.fillna("").astype(str).map(stack_of)
    return table["stack"].fillna(known).astype(str) if "stack" in table.columns else known


def otherwise(table: pd.DataFrame) -> Iterator[tuple[Array, pd.DataFrame]]:
    """For each column that decides much, where it is blank, and the table with another value there
    than `read_runs` takes."""
    for name, value in _OTHERWISE.items():
        given = table[name] if name in table.columns else pd.Series(None, index=table.index)
        yield given.isna().to_numpy(), table.assign(**{name: given.astype(object).fillna(value)})
