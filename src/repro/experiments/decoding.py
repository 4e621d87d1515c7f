"""Time per output token of a decoder on this machine's CPU, beside two numbers measured before."""

import multiprocessing
import socket
from dataclasses import asdict
from multiprocessing.connection import Connection

import numpy as np
import pandas as pd
import xarray as xr
from tqdm import tqdm

from repro.catalog.decoding import DecodingProfile, Rates, Weights, read_decoding
from repro.errors import ReproError
from repro.observe.environment import provenance
from repro.predict.serving.host import Host, output_token_s

_DIMS = ("weights", "ranks", "batch", "context")
_BYTES = {"bf16": 2.0, "int8": 1.0}
_NUMBERS = {
    "bytes_per_s": ("rate at which one row reads weights", "B/s"),
    "flops": ("rate of a product of many rows", "FLOP/s"),
    "reduce_s": ("all-reduce of a hidden state", "s"),
}


def measure_decoding(profile_name: str) -> xr.Dataset:
    """Measure every configuration of `params/decoding.yaml`.

    Returns
    -------
    Dataset
        `output_token_s` (weights, ranks, batch, context, repeat), medians over a repeat's tokens
        and the slower rank, and `bytes_per_s`, `flops` and `reduce_s` (weights, ranks, repeat),
        which are measured before each repeat.

    Raises
    ------
    ReproError
        A rank failed, or the profile is unknown.
    """
    entry = read_decoding()
    profile = entry.profile(profile_name)
    shape = (len(entry.weights), len(entry.ranks), len(profile.batches), len(profile.contexts))
    times = np.full((*shape, profile.repeats), np.nan)
    numbers = {name: np.full((*shape[:2], profile.repeats), np.nan) for name in _NUMBERS}
    cells = [(w, r) for w in range(shape[0]) for r in range(shape[1])]
    for w, r in tqdm(cells, desc="decoding", unit="set of ranks"):
        for repeat, (rates, found) in enumerate(_run(entry.weights[w], entry.ranks[r], profile)):
            times[w, r, :, :, repeat] = found
            for name, value in asdict(rates).items():
                numbers[name][w, r, repeat] = value
    units = {"units": "s", "long_name": "time per output token"}
    return xr.Dataset(
        {
            "output_token_s": ((*_DIMS, "repeat"), times, units),
            **{
                name: ((*_DIMS[:2], "repeat"), value, _attributes(name))
                for name, value in numbers.items()
            },
        },
        coords={
            "weights": list(entry.weights),
            "ranks": list(entry.ranks),
            "batch": list(profile.batches),
            "context": list(profile.contexts),
        },
        attrs={
            "title": "A decoder with a cache on this machine's CPU",
            "source": "testbed",
            "profile": profile_name,
            "provenance": provenance(entry.model_dump(mode="json")),
        },
    )


def _attributes(name: str) -> dict[str, str]:
    long_name, units = _NUMBERS[name]
    return {"long_name": long_name, "units": units}


def decoding_table(measured: xr.Dataset) -> pd.DataFrame:
    """Medians beside what the numbers that were measured before predict.

    Returns
    -------
    DataFrame
        A row per configuration: measured_ms, predicted_ms and error_pct of the prediction.
    """
    entry = read_decoding()
    middle = measured.median("repeat")
    table = middle.output_token_s.rename("measured_s").to_dataframe().reset_index()
    hosts = {
        (w, r): Host(*(float(middle[name].sel(weights=w, ranks=r)) for name in _NUMBERS))
        for w in middle.weights.values
        for r in middle.ranks.values
    }
    predicted = [
        float(
            output_token_s(
                entry.shape,
                hosts[row.weights, row.ranks],
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


def _run(weights: Weights, ranks: int, profile: DecodingProfile) -> list[tuple[Rates, np.ndarray]]:
    """What ranks of processes of their own measure, the slowest of them in each case."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    pipes, processes = [], []
    for rank in range(ranks):
        here, there = context.Pipe()
        arguments = (rank, ranks, port, weights, profile, there)
        processes.append(context.Process(target=_rank, args=arguments, daemon=True))
        processes[-1].start()
        there.close()
        pipes.append(here)
    try:
        answers = [pipe.recv() for pipe in pipes]
    except EOFError:
        raise ReproError(
            f"decoding with {ranks} ranks: one of them ended; see its words above"
        ) from None
    finally:
        for process in processes:
            process.terminate()
            process.join()
    merged = []
    for of_repeat in zip(*answers, strict=True):
        rates = [one for one, _ in of_repeat]
        slowest = Rates(
            min(one.bytes_per_s for one in rates),
            min(one.flops for one in rates),
            max(one.reduce_s for one in rates),
        )
        merged.append((slowest, np.max([times for _, times in of_repeat], axis=0)))
    return merged


def _rank(
    rank: int, ranks: int, port: int, weights: Weights, profile: DecodingProfile, answer: Connection
) -> None:
    """One rank's process: its model once, then numbers and all configurations in turns."""
    import torch
    import torch.distributed as dist

    from repro.train.decoding import Decoder, Probe, step_times_s

    torch.set_num_threads(1)
    if ranks > 1:
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    shape = read_decoding().shape
    decoder, probe = Decoder(shape, weights, rank, ranks), Probe(weights, shape.hidden, ranks)
    found = []
    for _ in range(profile.repeats):
        rates = probe.measure()
        times = [
            [np.median(step_times_s(decoder, b, c, profile.tokens)) for c in profile.contexts]
            for b in profile.batches
        ]
        found.append((rates, np.array(times)))
    answer.send(found)
