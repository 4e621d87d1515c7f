"""Time per output token of a decoder on this machine's CPU, measured and predicted."""

from functools import partial
from itertools import product

import pandas as pd
import xarray as xr
from tqdm import tqdm

from repro.catalog.studies.decoding import Decoding, read_decoding
from repro.experiments.measurement import results_store
from repro.observe.environment import computing_machine, provenance
from repro.predict.serving.host import Host, output_token_s

_WEIGHT_BYTES = {"bf16": 2.0, "int8": 1.0}


def measure_decoding(profile_name: str) -> xr.Dataset:
    """Measure every configuration of `params/decoding.yaml` on one thread.

    Returns
    -------
    Dataset
        `output_token_s` (weights, batch, context), and two rates of linear layers of one large
        matrix (weights). `bytes_per_s` is the rate at which one row reads it, and `flops` the rate
        of matmuls of many rows.

    Raises
    ------
    ReproError
        The profile is unknown.
    """
    entry = read_decoding()
    entry.profile(profile_name)
    inputs = {
        "decoding": entry.model_dump(mode="json"),
        "profile": profile_name,
        "machine": computing_machine(),
    }
    return results_store().find_or_run(inputs, "cpu", partial(_measure, entry, profile_name))


def _measure(entry: Decoding, profile_name: str) -> xr.Dataset:
    from repro.train.decoding import Decoder, rates, token_s

    profile = entry.profile(profile_name)
    measured_rates = [rates(weights) for weights in entry.weights]
    tokens = []
    for weights in tqdm(entry.weights, desc="decoding", leave=False):
        decoder = Decoder(entry.shape, weights)
        tokens.append(
            [
                [token_s(decoder, batch, context) for context in profile.contexts]
                for batch in profile.batches
            ]
        )
    return xr.Dataset(
        {
            "output_token_s": (
                ("weights", "batch", "context"),
                tokens,
                {"long_name": "time per output token", "units": "s"},
            ),
            "bytes_per_s": (
                "weights",
                [read for read, _ in measured_rates],
                {"long_name": "rate of reading weights", "units": "B/s"},
            ),
            "flops": (
                "weights",
                [multiplied for _, multiplied in measured_rates],
                {"long_name": "rate of products", "units": "FLOP/s"},
            ),
        },
        {
            "weights": list(entry.weights),
            "batch": list(profile.batches),
            "context": list(profile.contexts),
        },
        {
            "title": "A decoder with a cache on this machine's CPU",
            "source": "testbed",
            "profile": profile_name,
            "provenance": provenance(entry.model_dump(mode="json")),
        },
    )


def decoding_table(measured: xr.Dataset) -> pd.DataFrame:
    """Compare measured times per output token with `output_token_s` at the measured rates.

    Returns
    -------
    DataFrame
        A row per configuration: measured_ms, predicted_ms and error_pct of the prediction.
    """
    shape, rows = read_decoding().shape, []
    dims = ("weights", "batch", "context")
    for weights, batch, context in product(*(measured[dim].values for dim in dims)):
        own = measured.sel(weights=weights, batch=batch, context=context)
        host = Host(float(own.bytes_per_s), float(own.flops))
        predicted_s = float(output_token_s(shape, host, batch, context, _WEIGHT_BYTES[weights]))
        measured_s = float(own.output_token_s)
        rows.append(
            {
                "weights": weights,
                "batch": batch,
                "context": context,
                "measured_ms": 1e3 * measured_s,
                "predicted_ms": 1e3 * predicted_s,
                "error_pct": 100 * (predicted_s / measured_s - 1),
            }
        )
    return pd.DataFrame(rows)
