"""Time per output token of a decoder on this machine's CPU, beside what probes let expect."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from tqdm import tqdm

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.studies.decoding import DecodingProfile, Weights, read_decoding
from repro.experiments.machine.own_ranks import bind_to_core, run_ranks, take_turns
from repro.observe.environment import provenance
from repro.predict.operators.curves import Curve
from repro.predict.serving.host import Measured, measured_token_s

_DIMS = ("weights", "ranks", "batch", "context")
_BYTES = {"bf16": 2.0, "int8": 1.0}
# What is measured, over which of its sizes.
_MEASURED = {
    "output_token_s": ("time per output token", "s", ("batch", "context")),
    "probe_token_s": ("time per output token of the probe", "s", ("probe_batch",)),
    "weight_byte_s": ("products over the bytes of their weights", "s/B", ("probe_batch",)),
    "attention_s": ("a layer's attention to its cache", "s", ("probe_batch", "probe_context")),
}


def measure_decoding(profile_name: str) -> xr.Dataset:
    """Measure every configuration of `params/decoding.yaml`, in turns with its probes.

    Returns
    -------
    Dataset
        On the slower rank: `output_token_s` (weights, ranks, batch, context, repeat), medians over
        a repeat's tokens; and of the probes `probe_token_s` and `weight_byte_s` (weights, ranks,
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
        (w, r): _measured(mean.sel(weights=w, ranks=r), entry.probes.shape)
        for w in mean.weights.values
        for r in mean.ranks.values
    }
    predicted = [
        float(
            measured_token_s(
                entry.shape,
                known[row.weights, row.ranks],
                row.batch,
                row.context,
                _BYTES[row.weights],
                ranks=row.ranks,
            )
        )
        for row in table.itertuples()
    ]
    measured_s = table.pop("measured_s").to_numpy()
    beside: pd.DataFrame = table.assign(
        measured_ms=1e3 * measured_s,
        predicted_ms=1e3 * np.array(predicted),
        error_pct=100 * (np.array(predicted) / measured_s - 1),
    )
    return beside


def _measured(probed: xr.Dataset, shape: DecoderShape) -> Measured:
    """What one rank takes, between the sizes that were measured."""

    def curve(name: str) -> Curve:
        axes = tuple(probed[dim].values.astype(float) for dim in _MEASURED[name][2])
        return Curve(axes, probed[name].values)

    return Measured(shape, curve("probe_token_s"), curve("weight_byte_s"), curve("attention_s"))


def _run(weights: Weights, ranks: int, profile: DecodingProfile) -> dict[str, np.ndarray]:
    """What ranks of processes of their own measure (sizes, repeat), the slowest in each case."""
    answers = run_ranks("decoding", ranks, _rank, weights, profile)
    return {name: np.max([one[name] for one in answers], axis=0) for name in _MEASURED}


def _rank(
    rank: int, ranks: int, port: int, weights: Weights, profile: DecodingProfile
) -> dict[str, list[list[float]]]:
    """One rank's process: the decoder's tokens and all probes, in turns."""
    import torch.distributed as dist

    from repro.train.decoding import Decoder, Probe, token_s

    if ranks > 1:
        # Where the kernel chooses cores, steps are a sixth longer and vary twice as much.
        bind_to_core(rank)
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    entry = read_decoding()
    batches, contexts = entry.probed_batches(profile), entry.probes.contexts
    decoder = Decoder(entry.shape, weights, rank, ranks)
    probe = Probe(entry.probes.shape, weights, rank, ranks)
    measured: dict[str, list[Callable[[], float]]] = {
        "output_token_s": [
            partial(token_s, decoder, batch, context, profile.tokens)
            for batch, context in product(profile.batches, profile.contexts)
        ],
        "probe_token_s": [partial(probe.token_s, batch) for batch in batches],
        "weight_byte_s": [partial(probe.weight_byte_s, batch) for batch in batches],
        "attention_s": [
            partial(probe.attention_s, batch, context)
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
