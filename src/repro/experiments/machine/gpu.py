"""Measurements of this machine's GPU by itself: operators, decoders and training iterations."""

import gc
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from tqdm import tqdm

from repro.catalog.phases import PHASES
from repro.catalog.studies.gpu import (
    GpuAttention,
    GpuOperators,
    GpuSustained,
    read_gpu_study,
)
from repro.errors import NotRunHere
from repro.experiments.machine.gpu_decoding import (
    measure_gpu_decoding,
    measure_gpu_decoding_parts,
)
from repro.experiments.machine.gpu_iterations import measure_gpu_iterations
from repro.experiments.machine.on_gpu import about, attributes, possible
from repro.experiments.runs import gpu_run
from repro.paths import ENWIKI
from repro.predict.operators.measured import KINDS, measured_rows
from repro.train.gpu_operators import (
    BACKENDS,
    Kind,
    operator_s,
    sustained,
)

# Measured variants of each kind, out of the published ones.
_VARIANTS: Mapping[Kind, tuple[str, ...]] = {
    "gemm": ("bf16", "fp8"),
    "attention_prefill": tuple(BACKENDS),
    "attention_decode": tuple(BACKENDS),
}
# Matrices in fp8 have rows and columns of whole blocks.
_FP8_BLOCK = 16


def measure_gpu(split: str) -> Iterator[tuple[str, xr.Dataset]]:
    """Measure all of `params/gpu.yaml`, and yield each name and dataset when it is complete.

    Parameters
    ----------
    split
        Weights of training and validation data of the corpus.

    Raises
    ------
    NotRunHere
        This machine has no GPU.
    """
    if not torch.cuda.is_available():
        raise NotRunHere("this machine has no GPU that torch sees; run it on one that has")
    study = read_gpu_study()
    yield "gpu_operators", measure_gpu_operators(study.operators)
    yield "gpu_sustained", measure_gpu_sustained(study.sustained)
    yield "gpu_decoding", measure_gpu_decoding(study.decoder)
    yield "gpu_decoding_parts", measure_gpu_decoding_parts(study.decoder)
    yield "gpu_attention", measure_gpu_attention(study.attention, ENWIKI, split)
    yield "gpu_iterations", measure_gpu_iterations(study.iterations, ENWIKI, split)


def measure_gpu_operators(asked: GpuOperators) -> xr.Dataset:
    """Measure times of operators.

    Returns
    -------
    Dataset
        `time_s` (row, repeat), NaN where torch has no such kernel or memory was not enough. Along
        `row` also `kind`, `variant`, the axes of the kind (`repro.predict.operators.measured`), and
        `published_us`, the published time of the operator on `published_of`.
    """
    rows = _rows(asked)
    times: list[list[float]] = []
    reasons: dict[str, str] = {}
    for row in tqdm(rows.to_dict("records"), desc="operators"):
        kind, variant = row["kind"], row["variant"]
        sizes = [int(row[axis]) for axis in _axes(kind)]
        work = partial(operator_s, kind, variant, sizes, asked.repeats)
        found = possible(work, f"{kind} {variant} {sizes}", reasons)
        times.append(found or [np.nan] * asked.repeats)
    along = {name: ("row", rows[name].to_numpy()) for name in rows}
    return xr.Dataset(
        {
            "time_s": (("row", "repeat"), np.array(times), about("time of a call", "s")),
            **along,
        },
        attrs=attributes("Operators of a GPU, as replays of CUDA graphs", asked, reasons),
    )


def _axes(kind: Kind) -> tuple[str, ...]:
    return KINDS[kind].axes if kind in KINDS else ("moved_bytes",)


def _rows(asked: GpuOperators) -> pd.DataFrame:
    """Return the operators to measure: published sizes, one precision for each variant."""
    parts = []
    for kind, variants in _VARIANTS.items():
        published = measured_rows(kind, asked.published_of)
        for variant in variants:
            found = published[published.dtype == ("fp8" if variant == "fp8" else "bf16")]
            if variant == "fp8":
                found = found[(found.n % _FP8_BLOCK == 0) & (found.k % _FP8_BLOCK == 0)]
            part = found.iloc[:: asked.every][list(KINDS[kind].axes)]
            took_us = found.iloc[:: asked.every].time_us
            parts.append(part.assign(kind=kind, variant=variant, published_us=took_us))
    moved = pd.DataFrame({"moved_bytes": asked.added_bytes, "kind": "addition", "variant": "bf16"})
    return pd.concat([*parts, moved], ignore_index=True)


def measure_gpu_sustained(asked: GpuSustained) -> xr.Dataset:
    """Measure matmuls that run without a pause.

    Returns
    -------
    Dataset
        `product_s` (variant, product, replay), the time of one call. `ended_s` is the end of the
        replay after the start of the first one; also `power_w` and `clock_mhz`. All are NaN after
        the last replay. `m`, `n` and `k` are along `product`.
    """
    cells = [*product(asked.variants, asked.products)]
    found = [
        sustained(variant, sizes, asked.seconds, asked.rest_s)
        for variant, sizes in tqdm(cells, desc="products without a pause")
    ]
    longest = max(len(one.at_s) for one in found)

    def padded(name: str, long_name: str, units: str) -> tuple[Any, ...]:
        values = np.full((len(found), longest), np.nan)
        for at, one in enumerate(found):
            values[at, : len(one.at_s)] = getattr(one, name)
        shaped = values.reshape(len(asked.variants), len(asked.products), -1)
        return ("variant", "product", "replay"), shaped, about(long_name, units)

    variables = {
        "product_s": padded("call_s", "time of a product", "s"),
        "ended_s": padded("at_s", "end since the first began", "s"),
        "power_w": padded("power_w", "power", "W"),
        "clock_mhz": padded("clock_mhz", "clock of multiprocessors", "MHz"),
    }
    sizes = {
        name: ("product", [one[at] for one in asked.products]) for at, name in enumerate("mnk")
    }
    return xr.Dataset(
        variables,
        {"variant": list(asked.variants), **sizes},
        attributes("Products of a GPU without a pause", asked),
    )


def measure_gpu_attention(asked: GpuAttention, corpus: Path, split: str) -> xr.Dataset:
    """Measure training iterations by attention and sequence length.

    Returns
    -------
    Dataset
        `iteration_time_s` (attention, sequence, iteration), `phase_time_s` (attention, sequence,
        phase, iteration) and `peak_memory_bytes` (attention, sequence), NaN where memory was full.
    """
    from repro.train.megatron.groups import alone
    from repro.train.run import train

    cells = list(product(asked.kinds, asked.sequences))
    counts = len(asked.kinds), len(asked.sequences)
    times = np.full((len(cells), asked.iterations), np.nan)
    phases = np.full((len(cells), len(PHASES), asked.iterations), np.nan)
    peaks = np.full(len(cells), np.nan)
    reasons: dict[str, str] = {}
    with alone(), tempfile.TemporaryDirectory() as scratch:
        for at, (kind, sequence) in enumerate(tqdm(cells, desc="attention")):
            batch = asked.tokens // sequence
            run = gpu_run(asked.model, "bf16", batch, asked.warmup, asked.iterations, corpus, split)
            shape = run.shape.model_copy(update={"sequence_length": sequence})
            run = replace(run, shape=shape, attention=kind)
            work = partial(train, run, Path(scratch))
            records = possible(work, f"{kind} {sequence}", reasons)
            if records is not None:
                times[at] = records[0].iteration_time_s
                phases[at] = [records[0].phase_time_s[phase] for phase in PHASES]
                peaks[at] = records[0].peak_memory_bytes
            gc.collect()
            torch.cuda.empty_cache()
    dims = ("attention", "sequence")
    return xr.Dataset(
        {
            "iteration_time_s": (
                (*dims, "iteration"),
                times.reshape(*counts, -1),
                about("iteration time", "s"),
            ),
            "phase_time_s": (
                (*dims, "phase", "iteration"),
                phases.reshape(*counts, len(PHASES), -1),
                about("phase time", "s"),
            ),
            "peak_memory_bytes": (dims, peaks.reshape(counts), about("peak memory", "B")),
        },
        {
            "attention": list(asked.kinds),
            "sequence": list(asked.sequences),
            "phase": list(PHASES),
        },
        attributes(
            f"{asked.model} by attention, {asked.tokens} tokens a micro batch", asked, reasons
        ),
    )
