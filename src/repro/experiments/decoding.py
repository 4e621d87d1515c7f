"""Time per output token of a decoder on this machine's CPU, beside what was measured before."""

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pandas as pd
import xarray as xr
from tqdm import tqdm

from repro.catalog.decoding import DecodingProfile, Probed, Weights, read_decoding
from repro.experiments.own_ranks import run_ranks
from repro.observe.environment import provenance
from repro.predict.operators.retimed import Curve
from repro.predict.serving.host import Measured, measured_token_s

_DIMS = ("weights", "ranks", "batch", "context")
_BYTES = {"bf16": 2.0, "int8": 1.0}
# What is measured before, over which of its sizes.
_PROBED = {
    "weight_byte_s": ("products over the bytes of their weights", "s/B", ("probe_batch",)),
    "attention_s": ("a layer's attention to its cache", "s", ("probe_batch", "probe_context")),
    "reduce_s": ("all-reduce of the hidden states", "s", ("probe_batch",)),
}


def measure_decoding(profile_name: str) -> xr.Dataset:
    """Measure every configuration of `params/decoding.yaml`.

    Returns
    -------
    Dataset
        `output_token_s` (weights, ranks, batch, context, repeat), medians over a repeat's tokens
        and the slower rank; and what is measured before each repeat, of the slowest rank:
        `weight_byte_s` and `reduce_s` (weights, ranks, probe_batch, repeat) and `attention_s`
        (weights, ranks, probe_batch, probe_context, repeat).

    Raises
    ------
    ReproError
        A rank failed, or the profile is unknown.
    """
    entry = read_decoding()
    profile = entry.profile(profile_name)
    shape = (len(entry.weights), len(entry.ranks), len(profile.batches), len(profile.contexts))
    times = np.full((*shape, profile.repeats), np.nan)
    sizes = {"probe_batch": entry.probes.batches, "probe_context": entry.probes.contexts}
    probed = {
        name: np.full((*shape[:2], *(len(sizes[dim]) for dim in dims), profile.repeats), np.nan)
        for name, (_, _, dims) in _PROBED.items()
    }
    cells = [(w, r) for w in range(shape[0]) for r in range(shape[1])]
    for w, r in tqdm(cells, desc="decoding", unit="set of ranks"):
        for repeat, (before, found) in enumerate(_run(entry.weights[w], entry.ranks[r], profile)):
            times[w, r, :, :, repeat] = found
            for name, values in before.items():
                probed[name][w, r, ..., repeat] = values
    units = {"units": "s", "long_name": "time per output token"}
    return xr.Dataset(
        {
            "output_token_s": ((*_DIMS, "repeat"), times, units),
            **{
                name: (
                    (*_DIMS[:2], *dims, "repeat"),
                    probed[name],
                    {"long_name": long_name, "units": units},
                )
                for name, (long_name, units, dims) in _PROBED.items()
            },
        },
        coords={
            "weights": list(entry.weights),
            "ranks": list(entry.ranks),
            "batch": list(profile.batches),
            "context": list(profile.contexts),
            **{dim: list(values) for dim, values in sizes.items()},
        },
        attrs={
            "title": "A decoder with a cache on this machine's CPU",
            "source": "testbed",
            "profile": profile_name,
            "provenance": provenance(entry.model_dump(mode="json")),
        },
    )


def decoding_table(measured: xr.Dataset) -> pd.DataFrame:
    """Medians beside what is predicted from what was measured before.

    Returns
    -------
    DataFrame
        A row per configuration: measured_ms, predicted_ms and error_pct of the prediction.
    """
    entry = read_decoding()
    middle = measured.median("repeat")
    table = middle.output_token_s.rename("measured_s").to_dataframe().reset_index()
    known = {
        (w, r): _measured(middle.sel(weights=w, ranks=r))
        for w in middle.weights.values
        for r in middle.ranks.values
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


def _measured(probed: xr.Dataset) -> Measured:
    """What one rank takes, between the sizes that were measured."""

    def curve(name: str) -> Curve:
        axes = tuple(probed[dim].values.astype(float) for dim in _PROBED[name][2])
        return Curve(axes, np.log(probed[name].values))

    alone = int(probed.ranks) == 1
    return Measured(
        curve("weight_byte_s"), curve("attention_s"), None if alone else curve("reduce_s")
    )


def _run(
    weights: Weights, ranks: int, profile: DecodingProfile
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """What ranks of processes of their own measure, the slowest of them in each case."""
    answers = run_ranks("decoding", ranks, _rank, weights, profile)
    for of_repeat in zip(*answers, strict=True):
        before = {
            field.name: np.max([getattr(probed, field.name) for probed, _ in of_repeat], axis=0)
            for field in fields(Probed)
        }
        yield before, np.max([times for _, times in of_repeat], axis=0)


def _rank(
    rank: int, ranks: int, port: int, weights: Weights, profile: DecodingProfile
) -> list[tuple[Probed, np.ndarray]]:
    """One rank's process: its model once, then probes and all configurations in turns."""
    import torch.distributed as dist

    from repro.train.decoding import Decoder, Probe, step_times_s

    if ranks > 1:
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    entry = read_decoding()
    decoder = Decoder(entry.shape, weights, rank, ranks)
    probe = Probe(entry.probes, entry.shape.hidden, weights, rank, ranks)
    found = []
    for _ in range(profile.repeats):
        probed = probe.measure()
        times = [
            [np.median(step_times_s(decoder, b, c, profile.tokens)) for c in profile.contexts]
            for b in profile.batches
        ]
        found.append((probed, np.array(times)))
    return found
