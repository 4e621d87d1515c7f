"""Time per output token of a decoder on this machine's CPU, beside what probes let expect."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.optimize import isotonic_regression
from tqdm import tqdm

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.studies.decoding import DecodingProfile, Weights, read_decoding
from repro.experiments.machine.own_ranks import bind_to_core, run_ranks, take_turns
from repro.observe.environment import provenance
from repro.predict.operators.curves import Curve
from repro.predict.serving.host import Measured, measured_token_s

_DIMS = ("weights", "ranks", "batch", "context")
# Bytes of the caches that attention goes through, more than a processor has caches.
_CACHES_BYTES = 2.4e8
# What is measured, over which of its sizes.
_MEASURED = {
    "output_token_s": ("time per output token", "s", ("batch", "context")),
    "probe_token_s": ("time per output token of the probes", "s", ("probe_width", "probe_batch")),
    "attention_s": ("a layer's attention to its cache", "s", ("probe_batch", "probe_context")),
}


def measure_decoding(profile_name: str) -> xr.Dataset:
    """Measure every configuration of `params/decoding.yaml`, in turns with its probes.

    Returns
    -------
    Dataset
        On the slower rank: `output_token_s` (weights, ranks, batch, context, repeat), medians over
        a repeat's tokens; and of the probes `probe_token_s` (weights, ranks, probe_width,
        probe_batch, repeat) and `attention_s` (weights, ranks, probe_batch, probe_context, repeat).

    Raises
    ------
    ReproError
        A rank failed, or the profile is unknown.
    """
    entry = read_decoding()
    profile = entry.profile(profile_name)
    coords: dict[str, list[Any]] = {
        "weights": list(entry.weights),
        "ranks": list(entry.ranks),
        "batch": list(profile.batches),
        "context": list(profile.contexts),
        "probe_width": [shape.hidden for shape in entry.probes.shapes],
        "probe_batch": list(entry.probed_batches(profile)),
        "probe_context": list(entry.probes.contexts),
    }
    cells = list(product(entry.weights, entry.ranks))
    found = [_run(*cell, profile) for cell in tqdm(cells, desc="decoding", unit="set of ranks")]
    variables = {}
    for name, (long_name, units, sizes) in _MEASURED.items():
        dims = (*_DIMS[:2], *sizes)
        values = np.array([one[name] for one in found])
        shape = *(len(coords[dim]) for dim in dims), profile.repeats
        described = {"long_name": long_name, "units": units}
        variables[name] = ((*dims, "repeat"), values.reshape(shape), described)
    return xr.Dataset(
        variables,
        coords,
        {
            "title": "A decoder with a cache on this machine's CPU",
            "source": "testbed",
            "profile": profile_name,
            "provenance": provenance(entry.model_dump(mode="json")),
        },
    )


def decoding_table(measured: xr.Dataset) -> pd.DataFrame:
    """Means beside what is predicted from those of probes.

    Returns
    -------
    DataFrame
        A row per configuration: measured_ms, predicted_ms and error_pct of the prediction.
    """
    entry = read_decoding()
    mean = measured.mean("repeat")
    table = mean.output_token_s.rename("measured_s").to_dataframe().reset_index()
    known = {
        (w, r): _measured(mean.sel(weights=w, ranks=r), entry.probes.shapes)
        for w in mean.weights.values
        for r in mean.ranks.values
    }
    predicted = [
        float(measured_token_s(entry.shape, known[row.weights, row.ranks], row.batch, row.context))
        for row in table.itertuples()
    ]
    measured_s = table.pop("measured_s").to_numpy()
    beside: pd.DataFrame = table.assign(
        measured_ms=1e3 * measured_s,
        predicted_ms=1e3 * np.array(predicted),
        error_pct=100 * (np.array(predicted) / measured_s - 1),
    )
    return beside


def _measured(probed: xr.Dataset, shapes: tuple[DecoderShape, DecoderShape]) -> Measured:
    """What one rank takes, between the sizes that were measured."""
    batches, contexts = (
        probed[dim].values.astype(float) for dim in ("probe_batch", "probe_context")
    )
    # A step of more sequences never takes less: fewer were disturbed then.
    rising = [isotonic_regression(one.values).x for one in probed["probe_token_s"]]
    steps = [Curve((batches,), token_s) for token_s in rising]
    attention = Curve((batches, contexts), probed["attention_s"].values)
    return Measured(shapes, (steps[0], steps[1]), attention)


def _run(weights: Weights, ranks: int, profile: DecodingProfile) -> dict[str, np.ndarray]:
    """What ranks of processes of their own measure (sizes, repeat), the slowest in each case."""
    answers = run_ranks("decoding", ranks, _rank, weights, profile)
    return {name: np.max([one[name] for one in answers], axis=0) for name in _MEASURED}


def _rank(
    rank: int, ranks: int, port: int, weights: Weights, profile: DecodingProfile
) -> dict[str, list[list[float]]]:
    """One rank's process: the decoder's tokens and all probes, in turns."""
    import torch
    import torch.distributed as dist

    from repro.train.decoding import Decoder, attention_s, token_s

    if ranks > 1:
        # Where the kernel chooses cores, steps are a sixth longer and vary twice as much.
        bind_to_core(rank)
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    entry = read_decoding()
    batches, contexts = entry.probed_batches(profile), entry.probes.contexts
    decoder, *probes = (
        Decoder(shape, weights, rank, ranks) for shape in (entry.shape, *entry.probes.shapes)
    )
    caches = torch.full((int(_CACHES_BYTES / 2),), 0.5, dtype=torch.bfloat16)
    measured: dict[str, list[Callable[[], float]]] = {
        "output_token_s": [
            partial(token_s, decoder, batch, context, profile.tokens)
            for batch, context in product(profile.batches, profile.contexts)
        ],
        "probe_token_s": [
            partial(token_s, probe, batch, contexts[0], profile.tokens)
            for probe, batch in product(probes, batches)
        ],
        "attention_s": [
            partial(attention_s, probes[0], caches, batch, context)
            for batch, context in product(batches, contexts)
        ],
    }
    found: dict[str, list[list[float]]] = {
        name: [[] for _ in calls] for name, calls in measured.items()
    }
    turns = [turn for name in measured for turn in zip(found[name], measured[name], strict=True)]
    # Kernels of each shape are made when it is first met.
    for _, measure in turns:
        measure()
    take_turns(turns, profile.repeats, silent=rank > 0)
    return found
