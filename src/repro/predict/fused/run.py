"""What is trained, how it is split and on what, as arrays with a row for each run."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from repro.catalog.models.layers import (
    Attention,
    attentions,
    forward_flops,
    layer_kinds,
    products,
)
from repro.catalog.models.open_models import DecoderShape
from repro.catalog.reading import choose
from repro.catalog.systems.gpus import Generation, Gpu
from repro.catalog.systems.software_stacks import read_stacks
from repro.predict.decoders import Decoders, model_columns
from repro.predict.workload import Array

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


# Fields of a run that tables and plan searches need not state: gradients travel in fp32, parameters
# in half precision.
DEFAULTS: Mapping[str, float] = {
    "etp": 1.0,
    "trained": 1.0,
    "gradient_bytes": 4.0,
    "parameter_bytes": 2.0,
}


@dataclass(frozen=True)
class Run(Decoders):
    """Rows of training runs, each field a float array of one length.

    Attributes
    ----------
    seq
        Tokens of a sequence.
    imbalance
        Tokens of the busiest expert-parallel rank over those of the average one, 1 or more.
    tp, pp, cp, ep, etp, dp, vpp
        Sizes of the parallel groups, and the chunks of a pipeline stage. Experts are spread over
        the ranks of a stage, and each is divided among `etp` of them.
    zero_bubble
        1 where gradients of weights fill the pipeline's bubble (ZB-H1); 0 for 1F1B.
    sharded
        1 where replicas share the parameters (FSDP, ZeRO-3); 0 where they share the optimizer.
    trained
        Share of the parameters that have gradients; below 1 those of adapters (LoRA).
    gradient_bytes, parameter_bytes
        Size of a gradient and of a gathered parameter on the wire.
    micro_batch, micro_batches
        Sequences of a forward pass, and forward passes of an iteration.
    recompute, precision, generation, stack
        Indices in `RECOMPUTE`, `PRECISIONS` and `GENERATIONS`, and in the order of
        `params/stacks.yaml`.
    hidden_dp, hidden_gradients, hidden_tp, hidden_pp, hidden_ep
        1 where what they send is hidden: gradients and parameters of replicas, gradients, and what
        tensor, pipeline and expert parallelism send.
    operand_bytes
        Of an element of a linear layer's operands.
    peak_flops, half_flops
        In the linear layers' precision, and in half precision.
    multiprocessors, memory_bytes_per_s, link_bytes_per_s, nic_bytes_per_s
        Of one GPU; links and NIC in one direction.
    domain_gpus
        GPUs that its links join without a NIC.
    """

    seq: Array
    imbalance: Array
    tp: Array
    pp: Array
    cp: Array
    ep: Array
    etp: Array
    dp: Array
    vpp: Array
    zero_bubble: Array
    sharded: Array
    trained: Array
    gradient_bytes: Array
    parameter_bytes: Array
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
    def expert_replicas(self) -> Array:
        """GPUs that have the same experts, which are spread over the ranks of a stage."""
        count: Array = np.maximum(self.dp * self.cp * self.tp / (self.ep * self.etp), 1.0)
        return count

    @property
    def quantised(self) -> Array:
        """1 where linear layers compute below half precision."""
        is_one: Array = np.minimum(self.precision, 1.0)
        return is_one

    def single(self) -> "Run":
        """The same rows in single precision: half the bytes, and the seventh digit is lost."""
        return replace(
            self, **{one.name: getattr(self, one.name).astype(np.float32) for one in fields(self)}
        )


def visible_share(one: Attention, tokens: Array) -> Array:
    """Return the share of causal scores that layers compute, of which some may have a window."""
    near = np.minimum(2 * one.window / tokens, 1.0)
    share: Array = np.where(one.window > 0, 1 - one.windowed * (1 - near), 1.0)
    return share


def peak_flops(device: Gpu, precision: str) -> float:
    """The dense peak in FLOP/s; without units of its own a precision has the next one's."""
    fp8 = device.fp8_flops or device.peak_flops
    return {"bf16": device.peak_flops, "nvfp4": device.fp4_flops or fp8}.get(precision, fp8)


def decoder_runs(shape: DecoderShape, device: Gpu, stack: str, **plan: ArrayLike) -> Run:
    """Combine a decoder, a GPU and training software with plans.

    Software overlaps all communication except expert exchanges.

    Parameters
    ----------
    device
        GPU in its maker's systems; it need not be in `params/gpus.yaml`.
    stack
        Name in `params/stacks.yaml`.
    plan
        Fields of `Run` from `imbalance` to `precision`, they broadcast.

    Raises
    ------
    ReproError
        The software is unknown.
    """
    stacks = {name: index for index, name in enumerate(read_stacks())}
    precision = np.asarray(plan["precision"], dtype=int)
    columns: dict[str, ArrayLike] = {
        **model_columns(shape),
        "seq": shape.seq,
        **DEFAULTS,
        **plan,
        "generation": GENERATIONS.index(device.generation),
        "stack": choose("stack", stack, stacks),
        **dict.fromkeys(("hidden_dp", "hidden_gradients", "hidden_tp", "hidden_pp"), 1),
        "hidden_ep": 0,
        "operand_bytes": np.array(list(OPERAND_BYTES.values()))[precision],
        "peak_flops": np.array([peak_flops(device, name) for name in PRECISIONS])[precision],
        "half_flops": device.peak_flops,
        "multiprocessors": device.multiprocessors,
        "memory_bytes_per_s": 1e9 * device.memory_gbytes_per_s,
        "link_bytes_per_s": 1e9 * device.link_gbytes_per_s,
        "nic_bytes_per_s": 1e9 / 8 * device.nic_gbps,
        "domain_gpus": device.domain_gpus,
    }
    columns |= {name: plan[name] for name in plan if name.startswith("hidden_")}
    arrays = np.broadcast_arrays(*(np.asarray(value, dtype=float) for value in columns.values()))
    return Run(**dict(zip(columns, arrays, strict=True)))


def training_flops(run: Run) -> Array:
    """Floating-point operations of an iteration's products, nothing recomputed.

    Six for each parameter that a token meets in layers and logits, and 6 L a d s for attention,
    which causality halves (Narayanan et al., SC 2021, appendix, without the half).
    """
    tokens = run.micro_batch * run.micro_batches * run.dp * run.seq
    per_token: Array = 2 * (1 + run.mtp_layers) * run.vocab * run.hidden
    for count, layer in layer_kinds(run):
        # Causality leaves half of the scores.
        scores = sum(
            2 * one.heads * one.mean_dim * run.seq * visible_share(one, run.seq)
            for one in attentions(layer)
        )
        of_layer = forward_flops(products(layer), {"own": 1.0}) + scores
        per_token = per_token + (1 + run.mtp_layers / run.layers) * count * of_layer
    flops: Array = 3 * tokens * per_token
    return flops
