"""The performance model's calibrated parameters, and the files they are kept in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat

from repro.catalog.reading import Entry, choose, read_yaml
from repro.paths import HOME, ROOT

# What a GPU other than the calibrated one, or another generation of the software, adds to the half
# width of intervals: two published runs of one configuration (530B on 280 GPUs a replica, full
# recomputation) differ by 10 %, 49.05 s (Korthikanti et al., 2023) and 54.09 s (Narayanan et al.,
# 2021); sustained clocks differ too.
TRANSFER = 0.15

Fraction = Annotated[float, Field(gt=0, le=1.2)]

# Folder of calibrations, in the repository and below `HOME`.
CALIBRATIONS = Path("params/calibration")


class Parameters(Entry):
    """What the performance model cannot know from data sheets. Times in seconds.

    A copy may have columns of values in its fields (`model_copy`), which broadcast against the rows
    of a workload: that is how uncertain parameters are carried through the model.

    The GPU: fractions of the data sheet's peak that kernels reach.

    gemm_efficiency
        Large matrix products, of the tensor cores' peak.
    wave_loss
        How much of the last wave's idle multiprocessors costs time (0 none, 1 all of it).
    attention_gemm_efficiency
        The batched products of the attention core.
    logits_gemm_efficiency, logits_gemm_efficiency_alone
        The products with the word embeddings, when tensor parallelism splits the vocabulary, and
        when one GPU has all of it.
    memory_efficiency
        Element-wise kernels, of the memory's peak rate.
    attention_passes
        Traffic of softmax and dropout in the attention core, in units of the ideal fused kernels'.
    kernel_s
        Start and end of a kernel on the GPU.

    The host, which launches kernels: what the GPU waits for where its work is shorter.

    host_layer_s
        One layer's forward, recompute or backward pass.
    host_collective_s
        Each tensor-parallel collective.
    host_unfused_softmax_s
        More of it per pass where the fused softmax does not apply (Megatron-LM: heads x batch per
        GPU no multiple of 4).
    host_micro_batch_s, host_iteration_s, host_optimizer_layer_s
        Per micro batch, per iteration, per layer of the optimizer's step.

    Links.

    collective_efficiency, ring_ramp
        Bus bandwidth of n ranks below one node's switch: efficiency x nominal x n / (n + ramp).
    fabric_efficiency
        Bus bandwidth between nodes, of the NICs' nominal rate. A protocol's effective rate has it
        already.
    collective_latency_s, latency_exponent
        A collective of n ranks of a node costs latency x n^exponent beside its transfer: launch,
        handshakes, waiting for each other.
    hop_s
        A pipeline stage's receive, beside its transfer.
    congestion_exponent
        A ring over k nodes gets (k/2)^-exponent of the bus bandwidth between two.

    Scale.

    straggler_fraction
        The slowest of N GPUs is slower than one by fraction x ln N.

    Draws only.

    network_error
        How much longer collectives of a cluster's measured network take than its model says, in
        half widths of the model's 90 % interval.
    """

    gemm_efficiency: Fraction
    wave_loss: Annotated[float, Field(ge=0, le=1)]
    attention_gemm_efficiency: Fraction
    logits_gemm_efficiency: Fraction
    logits_gemm_efficiency_alone: Fraction
    memory_efficiency: Fraction
    attention_passes: PositiveFloat
    kernel_s: NonNegativeFloat
    host_layer_s: NonNegativeFloat
    host_collective_s: NonNegativeFloat
    host_unfused_softmax_s: NonNegativeFloat
    host_micro_batch_s: NonNegativeFloat
    host_iteration_s: NonNegativeFloat
    host_optimizer_layer_s: NonNegativeFloat
    collective_efficiency: Fraction
    ring_ramp: NonNegativeFloat
    fabric_efficiency: Fraction
    collective_latency_s: NonNegativeFloat
    latency_exponent: NonNegativeFloat
    hop_s: NonNegativeFloat
    congestion_exponent: NonNegativeFloat
    straggler_fraction: NonNegativeFloat
    network_error: float = 0.0


@dataclass(frozen=True)
class Prior:
    """What is known of a parameter before any measurement: its median, and the standard deviation
    of its logarithm."""

    median: float
    deviation: float


class Residuals(Entry):
    """How far a calibration is off on points it has not seen: cross-validated by model size,
    between nodes by the number of GPUs.

    `half_width` is the 90 % quantile of `|ln(predicted / measured)|`; of few groups, of the next
    one.
    """

    rows: int
    mape_pct: float
    half_width: PositiveFloat


class Calibration(Entry):
    """Parameters with where they come from and how sure they are.

    `gpu` is the one that was measured. `covariance` is that of the natural logarithms of the fitted
    parameters, in the order of `fitted`. `residuals` are by regime: with and without tensor
    parallelism.
    """

    source: str
    date: str
    gpu: str
    parameters: Parameters
    fitted: tuple[str, ...]
    covariance: tuple[tuple[float, ...], ...]
    residuals: dict[str, Residuals]


def calibration(name: str) -> Calibration:
    """A calibration of `params/calibration/` by name.

    Raises
    ------
    ReproError
        There is none of that name, or its file is not valid.

    Examples
    --------
    >>> calibration("a100-megatron").parameters is not None
    True
    """
    folders = ROOT / CALIBRATIONS, HOME / CALIBRATIONS
    files = {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}
    path = choose("calibration", name, files)
    value: Calibration = read_yaml(path, Calibration)
    return value
