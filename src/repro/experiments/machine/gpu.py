"""Measure this machine's GPU by itself: operators, a decoder, attention of a training iteration."""

import gc
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
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

from repro.catalog.models.open_models import open_model
from repro.catalog.phases import PHASES
from repro.catalog.reading import Entry
from repro.catalog.studies.gpu import (
    GpuAttention,
    GpuDecoder,
    GpuOperators,
    GpuSustained,
    GpuWeights,
    read_gpu_study,
)
from repro.errors import NotRunHere
from repro.experiments.machine.gpu_iterations import measure_gpu_iterations, possible
from repro.experiments.runs import gpu_run
from repro.observe.environment import accelerator, provenance
from repro.paths import ENWIKI
from repro.predict.operators.measured import KINDS, measured_rows
from repro.train.decoding import Decoder
from repro.train.gpu_operators import (
    BACKENDS,
    Kind,
    Work,
    eager_s,
    operator_s,
    replays_s,
    sustained,
)

# What is measured of each kind, in which of the variants that were published.
_VARIANTS: Mapping[Kind, tuple[str, ...]] = {
    "gemm": ("bf16", "fp8"),
    "attention_prefill": tuple(BACKENDS),
    "attention_decode": tuple(BACKENDS),
}
# Of a product, each behind an idle moment.
_BURSTS = 5
# Matrices in fp8 have rows and columns of whole blocks.
_FP8_BLOCK = 16
# How passes of a decoder are launched.
_LAUNCHES: Mapping[str, Callable[[Work, int], list[float]]] = {
    "graph": lambda work, repeats: replays_s([work], repeats),
    "host": eager_s,
}


def measure_gpu(split: str) -> Iterator[tuple[str, xr.Dataset]]:
    """All of `params/gpu.yaml`: names and datasets, each when it is there.

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
    yield "gpu_attention", measure_gpu_attention(study.attention, ENWIKI, split)
    yield "gpu_iterations", measure_gpu_iterations(study.iterations, ENWIKI, split)


def measure_gpu_operators(asked: GpuOperators) -> xr.Dataset:
    """Seconds of operators.

    Returns
    -------
    Dataset
        `time_s` (row, repeat), NaN where torch has no such kernel or memory was not enough. Along
        `row` also `kind`, `variant`, the axes of the kind (`repro.predict.operators.measured`), and
        `published_us`, what the operator was published to take on `published_of`.
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
            "time_s": (("row", "repeat"), np.array(times), _about("time of a call", "s")),
            **along,
        },
        attrs=_attributes("Operators of a GPU, as replays of CUDA graphs", asked, reasons),
    )


def _axes(kind: Kind) -> tuple[str, ...]:
    return KINDS[kind].axes if kind in KINDS else ("moved_bytes",)


def _rows(asked: GpuOperators) -> pd.DataFrame:
    """Operators to measure: sizes that were published, of one precision for each variant."""
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
    """Products in bursts, and without a pause.

    Returns
    -------
    Dataset
        `burst_s` (variant, product, repeat), a call's time behind idle moments; `sustained_s`
        (variant, product, replay), a call's while others ran before, with `ended_s` since the
        first, `power_w` and `clock_mhz`, NaN behind the last. `m`, `n` and `k` along `product`.
    """
    cells = [*product(asked.variants, asked.products)]
    bursts, found = [], []
    for variant, sizes in tqdm(cells, desc="sustained products"):
        bursts.append(operator_s("gemm", variant, sizes, _BURSTS))
        found.append(sustained(variant, sizes, asked.seconds, asked.rest_s))
    counts = len(asked.variants), len(asked.products)
    dims = ("variant", "product", "replay")
    longest = max(len(one.at_s) for one in found)

    def padded(name: str, long_name: str, units: str) -> tuple[Any, ...]:
        values = np.full((len(found), longest), np.nan)
        for at, one in enumerate(found):
            values[at, : len(one.at_s)] = getattr(one, name)
        return dims, values.reshape(*counts, -1), _about(long_name, units)

    return xr.Dataset(
        {
            "burst_s": (
                ("variant", "product", "repeat"),
                np.array(bursts).reshape(*counts, -1),
                _about("time of a call in a burst", "s"),
            ),
            "sustained_s": padded("call_s", "time of a call", "s"),
            "ended_s": padded("at_s", "end since the first began", "s"),
            "power_w": padded("power_w", "power", "W"),
            "clock_mhz": padded("clock_mhz", "clock of multiprocessors", "MHz"),
        },
        {
            "variant": list(asked.variants),
            **{
                name: ("product", [sizes[at] for sizes in asked.products])
                for at, name in enumerate("mnk")
            },
        },
        _attributes("Products in bursts and without a pause", asked),
    )


def measure_gpu_decoding(asked: GpuDecoder) -> xr.Dataset:
    """Seconds of decoders' steps, and of prompts that they read.

    Returns
    -------
    Dataset
        `output_token_s` (model, weights, launch, batch, context, repeat) and `prompt_s` (model,
        weights, launch, prompt_batch, prompt_tokens, repeat), with `launch` either `graph`, a CUDA
        graph, or `host`, operator by operator. NaN where the caches did not fit. `kernels` (model,
        weights, phase) is how many there are.
    """
    reasons: dict[str, str] = {}
    found = []
    for model in asked.models:
        of_model = []
        for weights in asked.weights:
            one = _decoding(asked, model, weights, reasons)
            of_model.append(one.expand_dims(model=[model], weights=[weights]))
            # Of the one before: both may not fit a GPU.
            gc.collect()
            torch.cuda.empty_cache()
        found.append(xr.concat(of_model, "weights"))
    attributes = _attributes("Decoders on a GPU", asked, reasons)
    return xr.concat(found, "model").assign_attrs(attributes)


def _decoding(
    asked: GpuDecoder, model: str, weights: GpuWeights, reasons: dict[str, str]
) -> xr.Dataset:
    """One decoder of `measure_gpu_decoding`; `reasons` get those of what did not fit."""
    decoder = Decoder(open_model(model).shape, weights, device="cuda")
    sizes = {
        "batch": list(asked.batches),
        "context": list(asked.contexts),
        "prompt_batch": list(asked.prompt_batches),
        "prompt_tokens": list(asked.prompt_tokens),
    }
    passes: dict[str, tuple[str, Callable[[Decoder, int, int], Work], tuple[str, str]]] = {
        "output_token_s": ("time per output token", _token, ("batch", "context")),
        "prompt_s": ("time of reading prompts", _prompt, ("prompt_batch", "prompt_tokens")),
    }
    variables: dict[str, Any] = {}
    for name, (long_name, make, dims) in passes.items():
        times = []
        grid = [*product(_LAUNCHES, sizes[dims[0]], sizes[dims[1]])]
        for launch, batch, tokens in tqdm(grid, desc=f"{model} in {weights}, {name}"):
            prepared = partial(make, decoder, batch, tokens)
            work = partial(_launched, launch, prepared, asked.repeats)
            label = f"{model} {weights} {name} {launch} {[batch, tokens]}"
            found = possible(work, label, reasons)
            times.append(found or [np.nan] * asked.repeats)
        shape = (len(_LAUNCHES), *(len(sizes[dim]) for dim in dims), asked.repeats)
        values = np.array(times).reshape(shape)
        variables[name] = (("launch", *dims, "repeat"), values, _about(long_name, "s"))
    kernels = [
        _kernels(make(decoder, *(sizes[dim][0] for dim in dims)))
        for _, make, dims in passes.values()
    ]
    variables["kernels"] = (("phase",), np.array(kernels), _about("kernels of a pass", "1"))
    return xr.Dataset(variables, {"launch": list(_LAUNCHES), **sizes, "phase": ["token", "prompt"]})


def _launched(launch: str, make: Callable[[], Work], repeats: int) -> list[float]:
    return _LAUNCHES[launch](make(), repeats)


def _token(decoder: Decoder, batch: int, context: int) -> Work:
    """A token for each of `batch` sequences, always behind as many cached ones."""
    last = torch.zeros(batch, dtype=torch.long, device="cuda")
    decoder.fill(batch, context, 1)

    def work() -> None:
        decoder.step(last)
        decoder.rewind(context)

    return work


def _prompt(decoder: Decoder, batch: int, tokens: int) -> Work:
    """Prompts that are read, over and over."""
    prompts = torch.zeros(batch, tokens, dtype=torch.long, device="cuda")
    decoder.fill(batch, 0, tokens)

    def work() -> None:
        decoder.read(prompts)
        decoder.rewind(0)

    return work


def measure_gpu_attention(asked: GpuAttention, corpus: Path, split: str) -> xr.Dataset:
    """Training iterations by attention and sequence length.

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
                _about("iteration time", "s"),
            ),
            "phase_time_s": (
                (*dims, "phase", "iteration"),
                phases.reshape(*counts, len(PHASES), -1),
                _about("phase time", "s"),
            ),
            "peak_memory_bytes": (dims, peaks.reshape(counts), _about("peak memory", "B")),
        },
        {
            "attention": list(asked.kinds),
            "sequence": list(asked.sequences),
            "phase": list(PHASES),
        },
        _attributes(
            f"{asked.model} by attention, {asked.tokens} tokens a micro batch", asked, reasons
        ),
    )


def _kernels(work: Work) -> int:
    """Kernels that some work launches."""
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    return sum("CUDA" in str(event.device_type) for event in profile.events())


def _about(long_name: str, units: str) -> dict[str, str]:
    return {"long_name": long_name, "units": units}


def _attributes(
    title: str, asked: Entry, not_run: Mapping[str, str] | None = None
) -> dict[str, Any]:
    return {
        "title": title,
        "not_run": json.dumps(not_run or {}),
        "source": "cluster",
        "ran_on": json.dumps([accelerator()]),
        "provenance": provenance(asked.model_dump(mode="json")),
    }
