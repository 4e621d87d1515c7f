"""Predictions as labelled datasets, for plans whose fields are arrays with named dimensions."""

from dataclasses import fields

import numpy as np
import xarray as xr

from repro.catalog.models.papers import Family, Shape
from repro.predict.network.machine import Machine
from repro.predict.parameters import Parameters
from repro.predict.step.quantities import MEMORY, PHASES, quantities
from repro.predict.workload import Array, Plan, recompute_codes, workload

# Units and descriptions of predicted quantities other than phases and parts of memory.
_SINGLE: dict[str, tuple[str, str]] = {
    "iteration_time_s": ("s", "iteration time"),
    "tokens_per_s_per_gpu": ("1/s", "tokens trained per second and GPU"),
    "mfu": ("1", "model FLOPs over time and peak"),
    "hfu": ("1", "executed FLOPs, recomputed ones too, over time and peak"),
    "tensor_parallel_bytes": ("B", "bytes a GPU sends for tensor parallelism, per iteration"),
    "gradient_sync_bytes": ("B", "bytes a GPU sends for gradients, per iteration"),
    "parameter_all_gather_bytes": ("B", "bytes a GPU sends for parameters, per iteration"),
    "pipeline_bytes": ("B", "bytes a GPU sends to pipeline neighbours, per iteration"),
    "fabric_bytes": ("B", "bytes a node's NICs send, per iteration"),
    "fabric_gbps": ("Gbit/s", "rate a node's NICs send, over the iteration"),
    "fabric_burst_gbps": ("Gbit/s", "rate a node's NICs send while gradients are on the wire"),
}
_QUANTITIES = (*PHASES, *MEMORY, *_SINGLE)


def predict(
    family: Family, shape: Shape, plan: Plan, machine: Machine, parameters: Parameters
) -> xr.Dataset:
    """Predict training iterations of one model for every combination of a plan's values.

    Parameters
    ----------
    plan : Plan
        Fields are values or DataArrays; dimensions broadcast by name.

    Returns
    -------
    Dataset
        `phase_time_s` (..., phase), `memory_bytes` (..., part), `iteration_time_s`, `mfu` and
        more, with units and descriptions in their attributes. NaN if a plan cannot run.

    Examples
    --------
    >>> import xarray as xr
    >>> from repro.catalog.systems.clusters import cluster
    >>> from repro.catalog.models.papers import model
    >>> from repro.predict.network.machine import machine
    >>> from repro.predict.parameters import calibration
    >>> a100 = cluster("dgx-a100")
    >>> p = calibration(a100.calibration).parameters
    >>> gpt = model("gpt2-medium")
    >>> gpus = xr.DataArray([1, 2, 4, 8], dims="gpus")
    >>> plan = Plan(global_batch_size=64, micro_batch_size=8, data_parallel=gpus)
    >>> predict(gpt.family, gpt.full, plan, machine(a100, p), p).iteration_time_s.dims
    ('gpus',)
    """
    names = [field.name for field in fields(Plan)]

    def evaluate(*values: Array) -> Array:
        """Stack all quantities on a new last axis."""
        flat, form = workload(family, shape, Plan(**dict(zip(names, values, strict=True)))).flat()
        found = quantities(flat, machine, parameters)
        stacked = np.stack([found[name] for name in _QUANTITIES], axis=-1)
        return stacked.reshape(*form, len(_QUANTITIES))

    computed = xr.apply_ufunc(
        evaluate,
        *(_array(name, getattr(plan, name)) for name in names),
        output_core_dims=[["quantity"]],
    ).assign_coords(quantity=list(_QUANTITIES))
    result = xr.Dataset(
        {
            "phase_time_s": _stack(computed, PHASES, "phase"),
            "memory_bytes": _stack(computed, MEMORY, "part"),
            **{name: computed.sel(quantity=name, drop=True) for name in _SINGLE},
        }
    )
    described = {"phase_time_s": ("s", "time in phase"), "memory_bytes": ("B", "memory of a GPU")}
    for name, (units, long_name) in {**_SINGLE, **described}.items():
        result[name].attrs = {"units": units, "long_name": long_name}
    return result


def _array(name: str, value: object) -> xr.DataArray:
    array = value if isinstance(value, xr.DataArray) else xr.DataArray(value)
    if name == "recompute" and array.dtype.kind not in "fiu":
        codes: xr.DataArray = xr.apply_ufunc(recompute_codes, array)
        return codes
    return array


def _stack(computed: xr.DataArray, names: tuple[str, ...], dim: str) -> xr.DataArray:
    labels = [name.replace("_", " ") for name in names]
    chosen = computed.sel(quantity=list(names)).rename(quantity=dim)
    return chosen.assign_coords({dim: labels})
