"""What the model of fused steps takes from measured runs, and the file it is kept in."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from repro.catalog.reading import Entry, read_params
from repro.catalog.systems.gpus import Gpu, read_gpus
from repro.catalog.systems.software_stacks import read_stacks
from repro.predict.fused.run import GENERATIONS, PRECISIONS, Run
from repro.predict.operators.measured import operator_costs
from repro.predict.parameters import TRANSFER, Residuals
from repro.predict.workload import Array

FUSED = "fused.yaml"
# Kinds of runs, whose residuals are told apart.
KINDS = ("replicas", "sharded parameters", "mixtures of experts", "adapters")
# What a GPU adds to the half width whose maker has no run at all: large products in bf16 reach 620
# of 1307 TFLOP/s on an MI300X where an H100 reaches 720 of 989 (SemiAnalysis, December 2024), a
# fraction 1.5 times smaller.
OTHER_MAKER = 0.43
# What sustained rates are known by, where those of another precision stand for some.
_SUSTAINED_AS = {"mxfp8": "fp8"}


class FusedParameters(Entry):
    """Fractions of what data sheets and single kernels promise.

    sustained
        Of the rate of products in short bursts, by generation and precision: power and other
        kernels take the rest.
    attention
        Of the rate of single forward attentions, by whose kernels and generation.
    sinks
        Time of attention with sinks, of that without.
    attention_backward
        Rate of the backward pass, of the forward pass's.
    memory_efficiency
        Element-wise kernels, of the memory's peak rate.
    traffic
        Element-wise traffic of a software, of what fused kernels need.
    link_efficiency, fabric_efficiency
        Bus bandwidth of links inside a domain, and of NICs.
    ring_step_s
        Latency of each step of a ring between domains.
    reserved
        Part of the multiprocessors that communication takes while it goes on behind computing.
    launch_s
        The host's time for each kernel.
    exchange
        Seconds of an exchange among expert-parallel ranks beside its transfer, by software.
    exchange_efficiency
        Of what rings have of links and fabric.
    straggler_fraction
        The slowest of N GPUs is slower by this x log2 N.
    """

    sustained: dict[str, PositiveFloat]
    attention: dict[str, PositiveFloat]
    sinks: PositiveFloat
    attention_backward: PositiveFloat
    memory_efficiency: PositiveFloat
    traffic: dict[str, PositiveFloat]
    link_efficiency: PositiveFloat
    fabric_efficiency: PositiveFloat
    ring_step_s: NonNegativeFloat
    reserved: NonNegativeFloat
    launch_s: NonNegativeFloat
    exchange: dict[str, NonNegativeFloat]
    exchange_efficiency: PositiveFloat
    straggler_fraction: NonNegativeFloat


class FusedCalibration(Entry):
    """Parameters with where they come from, and how far off they are on models they have not seen.

    `residuals` are by kind of run (`KINDS`).
    """

    source: str
    date: str
    gpus: tuple[str, ...]
    parameters: FusedParameters
    residuals: dict[str, Residuals]


def read_fused() -> FusedCalibration:
    """The calibration.

    Raises
    ------
    ReproError
        The file is missing or not valid.
    """
    value: FusedCalibration = read_params(FUSED, FusedCalibration)
    return value


class ProductCostRows(NamedTuple):
    """Costs of kernels as arrays, a value for each run (`repro.predict.operators.kernels`)."""

    efficiency: Array
    edge_loss: Array
    wave_loss: Array
    ramp_s: Array
    split_depth: Array
    memory_efficiency: Array
    launch_s: Array
    cast_s: Array


class AttentionCostRows(NamedTuple):
    """As `ProductCostRows`, of fused attention."""

    efficiency: Array
    short_tokens: Array
    narrow_loss: Array
    memory_efficiency: Array
    launch_s: Array


def product_costs(run: Run, parameters: FusedParameters, half: bool = False) -> ProductCostRows:
    """Of products in the linear layers' precision, or in half precision."""
    sustained = np.array(
        [[sustained_share(parameters, one, other) for other in PRECISIONS] for one in GENERATIONS]
    )
    # One index into flat tables: two of them take three times as long.
    at = (run.generation * len(PRECISIONS)).astype(int)
    at = at if half else at + run.precision.astype(int)
    found = ProductCostRows(*_taken(run, _product_table(), at))
    return found._replace(efficiency=found.efficiency * _taken(run, sustained.ravel(), at))


def sustained_name(generation: str, precision: str) -> str:
    """What `FusedParameters.sustained` calls a generation's rate in a precision."""
    return f"{generation} {_SUSTAINED_AS.get(precision, precision)}"


def sustained_share(parameters: FusedParameters, generation: str, precision: str) -> float:
    """Return the share of its rate that a generation sustains in a precision.

    One without runs of its own sustains what the mean of all others does.
    """
    known, name = parameters.sustained, sustained_name(generation, precision)
    if name in known:
        return known[name]
    ending = sustained_name("", precision)
    others = [share for one, share in known.items() if one.endswith(ending)]
    return sum(others) / len(others)


def attention_costs(run: Run, parameters: FusedParameters) -> AttentionCostRows:
    """Of the software's fused attention, forward."""
    stacks = list(read_stacks().values())
    found = AttentionCostRows(*_taken(run, _attention_table(), run.generation.astype(int)))
    factors = np.array(
        [
            [parameters.attention.get(f"{one.attention} {name}", 1.0) for name in GENERATIONS]
            for one in stacks
        ]
    )
    at = run.stack.astype(int) * len(GENERATIONS) + run.generation.astype(int)
    return found._replace(efficiency=found.efficiency * _taken(run, factors.ravel(), at))


def _taken(run: Run, table: Array, at: Array) -> Array:
    """Columns of a table, in the runs' precision."""
    found: Array = np.take(table.astype(run.layers.dtype), at, axis=-1)
    return found


def kinds(run: Run) -> Array:
    """Index in `KINDS` of each run."""
    kind: Array = np.select([run.trained < 1, run.experts > 0, run.sharded > 0], [3, 2, 1], 0)
    return kind


def half_width(run: Run, calibrated: FusedCalibration) -> Array:
    """Half of the 90 % interval of ln(iteration time): the quantile of the cross-validated
    residuals of the run's kind, and in quadrature what a GPU that was not measured adds."""
    quantile = np.array([calibrated.residuals[name].half_width for name in KINDS])[kinds(run)]
    measured = measured_generations(calibrated)
    makers = {_maker(name) for name in measured}
    added = [
        0.0 if name in measured else TRANSFER if _maker(name) in makers else OTHER_MAKER
        for name in GENERATIONS
    ]
    width: Array = np.hypot(quantile, np.array(added)[run.generation.astype(int)])
    return width


def measured_generations(calibrated: FusedCalibration) -> set[str]:
    """Return the generations of the GPUs whose runs are in the calibration."""
    return {read_gpus()[name].generation for name in calibrated.gpus}


def _maker(generation: str) -> str:
    return "AMD" if generation.startswith("cdna") else "NVIDIA"


def of_stack(run: Run, value: Any) -> Array:
    """`value` of each run's software."""
    found = np.array([float(value(one)) for one in read_stacks().values()])
    return _taken(run, found, run.stack.astype(int))


def by_software(run: Run, values: Mapping[str, float]) -> Array:
    """The value of each run's software; where it has none, that of the first."""
    names = list(read_stacks())
    found = np.array([values.get(name, values[names[0]]) for name in names])
    return _taken(run, found, run.stack.astype(int))


def _any_gpu(generation: str) -> Gpu:
    return next(one for one in read_gpus().values() if one.generation == generation)


@lru_cache
def _product_table() -> Array:
    """Costs of products (cost, generation x precision)."""
    found = [
        [
            operator_costs("gemm", _any_gpu(generation), "bf16" if name == "bf16" else "fp8").costs
            for name in PRECISIONS
        ]
        for generation in GENERATIONS
    ]
    return np.array(
        [[one[name] for row in found for one in row] for name in ProductCostRows._fields]
    )


@lru_cache
def _attention_table() -> Array:
    """Costs of fused attention (cost, generation)."""
    found = [
        operator_costs("attention_prefill", _any_gpu(name), "bf16").costs for name in GENERATIONS
    ]
    return np.array([[one[name] for one in found] for name in AttentionCostRows._fields])
