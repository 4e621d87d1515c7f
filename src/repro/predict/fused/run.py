"""What is trained, how it is split and on what, as arrays with a row for each run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import numpy as np
import pandas as pd

from repro.catalog.gpus import Generation, Gpu, gpu, gpu_labelled
from repro.catalog.reading import choose
from repro.catalog.stacks import read_stacks, stack_of
from repro.errors import ReproError
from repro.predict.workload import RECOMPUTE, Array

GENERATIONS: tuple[str, ...] = get_args(Generation)
# Precisions of the linear layers, with the bytes of an operand's element: scales are one byte for
# each 32 elements of MXFP8 and each 16 of NVFP4.
OPERAND_BYTES: Mapping[str, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "mxfp8": 1.0 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
PRECISIONS = tuple(OPERAND_BYTES)
# What can be hidden behind computing, as tables call it: gradients and parameters of replicas,
# gradients alone, and what tensor, pipeline and expert parallelism send.
OVERLAPS = ("dp", "dp-grad", "tp", "pp", "ep")
_UNKNOWN = "unknown"
# GPUs of a node, and of a domain, where nobody says.
_USUAL_NODE = 8.0

# Columns of a table of runs. Those that are not there, or blank, are unknown: what follows from
# others, or the usual, is taken for them.
NEEDED = ("gpu", "gpus", "layers", "hidden", "heads", "seq", "vocab", "global_batch")
_USUAL: Mapping[str, Any] = {
    "set": "",
    "dtype": "bf16",
    **dict.fromkeys(("tp", "pp", "cp", "ep", "vpp", "micro_batch"), 1),
    **dict.fromkeys(("experts", "experts_per_token", "expert_ffn", "shared_expert_ffn"), 0),
    "gated_mlp": "no",
    "fsdp": "no",
    "tied_embeddings": "no",
    "recompute": "none",
    "overlap": _UNKNOWN,
}


@dataclass(frozen=True)
class Run:
    """Rows of runs, each field a float array of one length.

    Attributes
    ----------
    layers, hidden, ffn, heads, kv_heads, head_dim, gated, seq, vocab, tied
        The model: widths in elements, `seq` in tokens; `gated` and `tied` are 0 or 1. `ffn` is 0
        where all layers are mixtures of experts.
    experts, experts_per_token, expert_ffn, shared_expert_ffn
        0 for dense models.
    tp, pp, cp, ep, dp, vpp
        Sizes of the parallel groups, and the chunks of a pipeline stage. Experts are spread over
        the data- and context-parallel ranks.
    sharded
        1 where replicas share the parameters (FSDP, ZeRO-3); 0 where they share the optimizer.
    micro_batch, micro_batches
        Sequences of a forward pass, and forward passes of an iteration.
    recompute, precision, generation, stack
        Indices in `RECOMPUTE`, `PRECISIONS` and `GENERATIONS`, and in the order of
        `params/stacks.yaml`.
    hidden_dp, hidden_gradients, hidden_tp, hidden_pp, hidden_ep
        1 where `OVERLAPS` are hidden.
    operand_bytes
        Of an element of a linear layer's operands.
    peak_flops, half_flops
        In the linear layers' precision, and in half precision.
    multiprocessors, memory_bytes_per_s, link_bytes_per_s, nic_bytes_per_s
        Of one GPU; links and NIC in one direction.
    domain_gpus
        GPUs that its links join without a NIC.
    """

    layers: Array
    hidden: Array
    ffn: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    gated: Array
    seq: Array
    vocab: Array
    tied: Array
    experts: Array
    experts_per_token: Array
    expert_ffn: Array
    shared_expert_ffn: Array
    tp: Array
    pp: Array
    cp: Array
    ep: Array
    dp: Array
    vpp: Array
    sharded: Array
    micro_batch: Array
    micro_batches: Array
    recompute: Array
    precision: Array
    generation: Array
    stack: Array
    hidden_dp: Array
    hidden_gradients: Array
    hidden_tp: Array
    hidden_pp: Array
    hidden_ep: Array
    operand_bytes: Array
    peak_flops: Array
    half_flops: Array
    multiprocessors: Array
    memory_bytes_per_s: Array
    link_bytes_per_s: Array
    nic_bytes_per_s: Array
    domain_gpus: Array

    @property
    def gpus(self) -> Array:
        """All GPUs of the job."""
        count: Array = self.tp * self.pp * self.cp * self.dp
        return count

    @property
    def tokens(self) -> Array:
        """Tokens of a micro batch that one group of tensor-parallel GPUs has."""
        count: Array = self.micro_batch * self.seq / self.cp
        return count

    @property
    def mixture(self) -> Array:
        """1 where layers are mixtures of experts."""
        is_one: Array = np.minimum(self.experts, 1.0)
        return is_one

    def rows(self, chosen: slice | Array) -> "Run":
        """Some of the rows."""
        kept: dict[str, Any] = {one.name: getattr(self, one.name)[chosen] for one in fields(self)}
        return replace(self, **kept)


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
    table = table.assign(
        **{
            name: table[name].fillna(usual) if name in table.columns else usual
            for name, usual in _USUAL.items()
        }
    )

    def numbers(name: str) -> Array:
        found = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=float)
        _refuse(table, name, ~(found >= 0), "a number")
        return found

    def numbers_or(name: str, otherwise: Array) -> Array:
        if name not in table.columns:
            return otherwise
        found = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=float)
        return np.where(np.isnan(found), otherwise, found)

    def yes(name: str) -> Array:
        found = table[name].astype(str).str.lower()
        _refuse(table, name, ~found.isin(["yes", "no"]), "yes or no")
        return (found == "yes").to_numpy(dtype=float)

    def index(name: str, known: tuple[str, ...]) -> Array:
        found = table[name].astype(str).map({one: at for at, one in enumerate(known)})
        _refuse(table, name, found.isna(), f"one of {', '.join(known)}")
        return found.to_numpy(dtype=float)

    def each(column: pd.Series, value: Callable[[str], Any]) -> Array:
        # Tables of plans are long and name few things.
        found = column.astype(str).map({one: value(one) for one in column.astype(str).unique()})
        return found.to_numpy(dtype=float)

    def of_gpu(value: Callable[[Gpu], Any]) -> Array:
        return each(table.gpu, lambda label: value(gpu(gpu_labelled(label))))

    gpus, tp, pp, cp = (numbers(name) for name in ("gpus", "tp", "pp", "cp"))
    dp = numbers_or("dp", gpus / (tp * pp * cp))
    _refuse(table, "gpus", ~np.isclose(gpus, tp * pp * cp * dp), "tp x pp x cp x dp")
    hidden, heads, experts = numbers("hidden"), numbers("heads"), numbers("experts")
    micro_batch = numbers("micro_batch")
    node = numbers_or("gpus_per_node", np.full(len(table), _USUAL_NODE))
    own_nic = of_gpu(lambda one: one.nic_gbps)
    nic_gbps = numbers_or("inter_node_gbps_per_node", own_nic * node) / node
    precision = index("dtype", PRECISIONS)
    sharded = yes("fsdp")
    # Both halves take as long.
    table["dtype"] = table["dtype"].replace("fp16", "bf16")
    table["recompute"] = table["recompute"].replace(_UNKNOWN, "none")
    stacks = table["stack"] if "stack" in table.columns else table["set"].astype(str).map(stack_of)
    known_stacks = {name: float(at) for at, name in enumerate(read_stacks())}

    def hides(name: str) -> Array:
        # What is not said is what the software does by default, which leaves exchanges of experts.
        return each(
            table["overlap"],
            lambda said: (said == _UNKNOWN and name != "ep") or name in said.split(","),
        )

    def peak(name: str) -> Array:
        return of_gpu(lambda one: _peak(one, name))

    return Run(
        layers=numbers("layers"),
        hidden=hidden,
        ffn=np.where(experts > 0, 0.0, numbers_or("ffn", 4 * hidden)),
        heads=heads,
        kv_heads=numbers_or("kv_heads", heads),
        head_dim=numbers_or("head_dim", hidden / heads),
        gated=yes("gated_mlp"),
        seq=numbers("seq"),
        vocab=numbers("vocab"),
        tied=yes("tied_embeddings"),
        experts=experts,
        experts_per_token=numbers("experts_per_token"),
        expert_ffn=numbers("expert_ffn"),
        shared_expert_ffn=numbers("shared_expert_ffn"),
        tp=tp,
        pp=pp,
        cp=cp,
        ep=numbers("ep"),
        dp=dp,
        vpp=numbers("vpp"),
        sharded=sharded,
        micro_batch=micro_batch,
        # Software that sizes micro batches itself need not divide the batch.
        micro_batches=np.maximum(numbers("global_batch") / (micro_batch * dp), 1.0),
        recompute=index("recompute", RECOMPUTE),
        precision=precision,
        generation=of_gpu(lambda one: GENERATIONS.index(one.generation)),
        stack=each(stacks, lambda name: choose("stack", name, known_stacks)),
        hidden_dp=hides("dp"),
        hidden_gradients=np.maximum(hides("dp"), hides("dp-grad")),
        hidden_tp=hides("tp"),
        hidden_pp=hides("pp"),
        hidden_ep=hides("ep"),
        operand_bytes=np.array(list(OPERAND_BYTES.values()))[precision.astype(int)],
        peak_flops=np.choose(precision.astype(int), [peak(name) for name in PRECISIONS]),
        half_flops=of_gpu(lambda one: one.peak_flops),
        multiprocessors=of_gpu(lambda one: one.multiprocessors),
        memory_bytes_per_s=of_gpu(lambda one: 1e9 * one.memory_gbytes_per_s),
        link_bytes_per_s=of_gpu(lambda one: 1e9 * one.link_gbytes_per_s),
        nic_bytes_per_s=nic_gbps * 1e9 / 8,
        domain_gpus=numbers_or("nvlink_domain", of_gpu(lambda one: one.domain_gpus)),
    )


def _peak(device: Gpu, precision: str) -> float:
    """The dense peak in FLOP/s; without units of its own a precision has the next one's."""
    fp8 = device.fp8_flops or device.peak_flops
    return {"bf16": device.peak_flops, "nvfp4": device.fp4_flops or fp8}.get(precision, fp8)


def _refuse(table: pd.DataFrame, name: str, wrong: Any, wanted: str) -> None:
    wrong = np.asarray(wrong)
    if wrong.any():
        row = int(wrong.argmax())
        raise ReproError(
            f"line {row + 2}: {name} is {table[name].tolist()[row]!r}; wanted is {wanted}"
        )


def training_flops(run: Run) -> Array:
    """Floating-point operations of an iteration's products, nothing recomputed.

    Six for each parameter that a token meets in layers and logits, and 6 L a d s for attention,
    which causality halves (Narayanan et al., SC 2021, appendix, without the half).
    """
    tokens = run.micro_batch * run.micro_batches * run.dp * run.seq
    attention = 2 * (run.heads + run.kv_heads) * run.head_dim
    widths = run.ffn + run.shared_expert_ffn + run.experts_per_token * run.expert_ffn
    layer = run.hidden * (attention + (2 + run.gated) * widths)
    scores = run.layers * run.heads * run.head_dim * run.seq
    flops: Array = 6 * tokens * (run.layers * layer + run.vocab * run.hidden + scores)
    return flops
