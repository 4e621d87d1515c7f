"""Measurements of one GPU by itself, by configuration and as a table of training runs."""

import json
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.models.papers import model
from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.gpus import Gpu, find_gpu_name, read_gpus
from repro.errors import ReproError
from repro.predict.tables.unfused_training import TrainingRows, training_rows
from repro.predict.workload import Array
from repro.results.metrics import draw_sample, estimate, phase_time_s

# Parameters that decide how long one GPU computes and steps the optimizer.
ONE_GPU = (
    "gemm_efficiency",
    "wave_loss",
    "attention_gemm_efficiency",
    "logits_gemm_efficiency_alone",
    "memory_efficiency",
    "attention_passes",
    "kernel_s",
    "host_layer_s",
    "host_unfused_softmax_s",
    "host_optimizer_layer_s",
)
OUT_OF_MEMORY = "out of memory"


def calibration_rows(measured: xr.Dataset, cluster: Cluster) -> pd.DataFrame:
    """Return all measurements of one GPU as a table of training runs.

    Each configuration that ran has two rows: its computing and its optimizer's step. `repro
    calibrate --training` takes them as CSV.
    """
    check_device(measured, cluster.device)
    return rows_of_cells(cells_that_ran(measured_cells(measured)), cluster).drop(columns="half")


def check_device(measured: xr.Dataset, gpu: Gpu) -> None:
    """Refuse measurements of another GPU than the catalog's.

    Raises
    ------
    ReproError
        The ranks ran on another one, or on none of the catalog's.
    """
    for entry in json.loads(measured.attrs.get("ran_on", "[]")):
        if read_gpus()[find_gpu_name(str(entry["device"]))] != gpu:
            raise ReproError(
                f"measured on {entry['device']}, which is no {gpu.label}; name a cluster with "
                "that GPU as the experiment's (params/one_gpu.yaml)"
            )


def measured_cells(measured: xr.Dataset) -> pd.DataFrame:
    """Return one row per configuration of one GPU that was tried; `half` is empty where it ran."""
    if "iteration_time_s" not in measured or 1 not in measured["gpus"]:
        raise ReproError("no measurements of one GPU: run source `cluster` where there is one")
    one = measured.sel(gpus=1).isel(source=0, protocol=0).transpose("model", ...)
    return pd.DataFrame([row for name in one["model"].values for row in _of_model(one, str(name))])


def _of_model(one: xr.Dataset, name: str) -> Iterator[dict[str, object]]:
    for size in sorted(one["micro_batch_size"].values.tolist()):
        cell = one.sel(model=name, micro_batch_size=size)
        full = float(cell["out_of_memory"])
        if np.isnan(full):
            continue
        row = {"model": name, "micro_batch_size": size, "half": OUT_OF_MEMORY if full else ""}
        if full:
            yield row
            continue
        # Other configurations may have had more iterations.
        cell = cell.dropna("iteration", how="all", subset=["iteration_time_s"])
        computing = estimate(
            draw_sample(cell), lambda r: phase_time_s(r, "forward compute", "backward compute")
        )
        yield {
            **row,
            "measured_s": computing.value,
            "low_s": computing.low,
            "high_s": computing.high,
            "optimizer_s": float(phase_time_s(cell, "optimizer")),
            "measured_peak_bytes": float(cell["peak_memory_bytes"].max()),
        }


def cells_that_ran(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `measured_cells` that have times."""
    return cells[cells.half != OUT_OF_MEMORY].reset_index(drop=True)


def rows_of_cells(cells: pd.DataFrame, cluster: Cluster) -> pd.DataFrame:
    """Return the computing of all cells, then optimizer's steps; blank where memory was full."""
    plain = [
        _row(str(name), int(size), cluster)
        for name, size in zip(cells.model, cells.micro_batch_size, strict=True)
    ]
    parts = [
        pd.DataFrame(plain).assign(
            # Sets weigh alike, however many micro batches a model ran with.
            set=[f"{name}, {timed}" for name in cells.model],
            timed=timed,
            iteration_time_s=cells[column].to_numpy(),
            half=cells.half.to_numpy(),
        )
        for timed, column in (("computing", "measured_s"), ("optimizer", "optimizer_s"))
    ]
    return pd.concat(parts, ignore_index=True)


def _row(name: str, size: int, cluster: Cluster) -> dict[str, object]:
    trained = model(name)
    shape = trained.full
    return {
        "id": f"{name}-{size}",
        "gpu": cluster.device.label,
        "gpus_per_node": cluster.topology.gpus_per_node,
        "inter_node_gbps_per_node": cluster.topology.levels[-1].link_gbps,
        "family": trained.family,
        "layers": shape.layers,
        "hidden": shape.hidden_size,
        "heads": shape.attention_heads,
        "seq": shape.sequence_length,
        "decoder_seq": shape.decoder_sequence_length or 0,
        "vocab": shape.vocabulary_size,
        **dict.fromkeys(("gpus", "tp", "pp", "dp", "vpp"), 1),
        **dict.fromkeys(("micro_batch", "global_batch"), size),
        "recompute": "none",
        "sequence_parallel": "no",
    }


def by_row(rows: pd.DataFrame, predict: Callable[[TrainingRows], Array]) -> Array:
    """Predict training runs, in the order of their rows."""
    values = np.empty(len(rows))
    for part in training_rows(rows):
        values[part.index] = predict(part)
    return values
