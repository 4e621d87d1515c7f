"""Cost of compressed messages: times and bytes by scheme, losses over seeds."""

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.parallel.codecs import Compression, Direction
from repro.catalog.parallel.encoded_volumes import encoded_bytes, power_sgd_bytes, ring_bytes
from repro.collectives.definitions import bus_factor
from repro.observe.precision import half_width
from repro.results.communication import one_configuration, transfers
from repro.results.outcome import Outcome
from repro.results.store import has_runs, why_not_run
from repro.train.records import Spectrum, TrainingRun

NONE = "none"
# The direction of what a group carries, by what it is for.
_DIRECTIONS: dict[str, Direction] = {
    "data": "data",
    "embedding": "data",
    "tensor": "tensor",
    "pipeline": "pipeline",
}
_FP32 = 4


def loss_dataset(run: TrainingRun, outcome: Outcome) -> xr.Dataset:
    """Return the losses of one training, without its coordinates.

    Returns
    -------
    Dataset
        `training_loss` (step), the mean of all replicas, and `validation_loss` (validated_step).
    """
    training = np.nanmean([record.loss for record in outcome.records], axis=0)
    validation = outcome.records[0].validation_loss
    return xr.Dataset(
        {
            "training_loss": ("step", training, {"long_name": "training loss", "units": "1"}),
            "validation_loss": (
                "validated_step",
                np.array(validation),
                {"long_name": "validation loss", "units": "1"},
            ),
        },
        coords={
            "step": np.arange(1, len(training) + 1),
            "validated_step": run.validate_every * np.arange(1, len(validation) + 1),
        },
    )


def spectra_dataset(found: Sequence[Spectrum]) -> xr.Dataset:
    """`rank_share` and `entropy_bits` (matrix, observed_step), and of each matrix its `kind`."""
    frame = pd.DataFrame(found).rename(columns={"layer": "matrix", "step": "observed_step"})
    values = frame.set_index(["matrix", "observed_step"])[["rank_share", "entropy_bits"]]
    kinds = frame.drop_duplicates("matrix").set_index("matrix").kind
    dataset = values.to_xarray()
    dataset["rank_share"].attrs = {"long_name": "effective rank over the most", "units": "1"}
    dataset["entropy_bits"].attrs = {"long_name": "entropy as integers of 8 bits", "units": "bit"}
    return dataset.assign_coords(kind=("matrix", kinds[dataset["matrix"].values].tolist()))


def has_losses(results: xr.Dataset) -> bool:
    """Whether anything was trained for its loss."""
    return "validation_loss" in results


def time_table(results: xr.Dataset) -> pd.DataFrame:
    """Means of the timed schemes by protocol, in seconds of the testbed.

    They are not brought to full scale: a codec on an emulated GPU is as much slower than links as
    this machine makes it, and not as a real GPU's.

    Returns
    -------
    DataFrame
        By `protocol` and `scheme`: `iteration_s` with `low` and `high`, its 95 % interval; the
        iteration time `without` compression over it, less one, in percent (`gain_percent`); and
        seconds of every phase that takes any. Why there is none, if nothing was run.
    """
    if not has_runs(results):
        return pd.DataFrame({"not run": [why_not_run(results)]})
    rows = {}
    for protocol in results["protocol"].values:
        for name in _timed(results):
            one = one_configuration(results.sel(protocol=[protocol], scheme=name))
            times = one["iteration_time_s"].mean("rank").dropna("iteration")
            mean, half = float(times.mean()), half_width(times.values.tolist())
            phases = one["phase_time_s"].mean(["iteration", "rank"]).to_series()
            rows[str(protocol), name] = {
                "iteration_s": mean,
                "low": max(0.0, mean - half),
                "high": mean + half,
                **phases[phases != 0],
            }
    table = pd.DataFrame(rows).T.rename_axis(["protocol", "scheme"]).fillna(0.0)
    plain = table.xs(NONE, level="scheme").iteration_s.to_dict()
    without = table.index.get_level_values("protocol").map(plain).to_numpy()
    table.insert(3, "gain_percent", 100 * (without / table.iteration_s - 1))
    return table


def sent_table(results: xr.Dataset) -> pd.DataFrame:
    """Compare bytes that ranks sent with those that the codecs promise.

    Returns
    -------
    DataFrame
        By `scheme` and `direction`, of a rank and iteration on average: `sent_bytes` as logged
        (messages of rings one by one), `promised_bytes`, whether they are the same (`agree`), and
        `share_percent` of the bytes without compression. If nothing was run, the reason.
    """
    if not has_runs(results):
        return pd.DataFrame({"not run": [why_not_run(results)]})
    asked, one_protocol = _asked(results), results.isel(protocol=[0])
    calls = {name: _moved(one_protocol.sel(scheme=name)) for name in _timed(results)}
    rows = []
    for name, own in calls.items():
        for direction in dict.fromkeys(_DIRECTIONS.values()):
            sent, promised, plain = (
                _total(frame, direction, compression)
                for frame, compression in (
                    (own, None),
                    (calls[NONE], asked[name]),
                    (calls[NONE], None),
                )
            )
            share = 100 * sent / plain if plain else np.nan
            rows.append((name, direction, sent, promised, round(sent) == round(promised), share))
    columns = ["scheme", "direction", "sent_bytes", "promised_bytes", "agree", "share_percent"]
    return pd.DataFrame(rows, columns=columns).set_index(columns[:2])


def loss_table(results: xr.Dataset) -> pd.DataFrame:
    """Compare the last validation loss of each scheme with that without compression, by seed.

    Returns
    -------
    DataFrame
        By `scheme`: `seeds`; `loss`, their mean, and `spread`, their standard deviation;
        `above_none`, the mean difference, with `low` and `high`, its 95 % interval. If nothing was
        trained, the reason.
    """
    if not has_losses(results):
        return pd.DataFrame({"not run": [why_not_run(results)]})
    last = results["validation_loss"].isel(validated_step=-1)
    rows = {}
    for name in _trained(results):
        own = last.sel(scheme=name)
        above = (own - last.sel(scheme=NONE)).values
        half = half_width(above.tolist())
        rows[name] = {
            "seeds": len(above),
            "loss": float(own.mean()),
            "spread": float(own.std(ddof=1)),
            "above_none": float(above.mean()),
            "low": float(above.mean()) - half,
            "high": float(above.mean()) + half,
        }
    return pd.DataFrame(rows).T.rename_axis("scheme")


def _asked(results: xr.Dataset) -> dict[str, Compression]:
    """Return the compression of the timed ranks' messages, by scheme."""
    return {
        request["coordinates"]["scheme"]: Compression.model_validate(request["run"]["compression"])
        for request in json.loads(results.attrs["requests"])
        if "protocol" in request["coordinates"]
    }


def _timed(results: xr.Dataset) -> list[str]:
    known = results["iteration_time_s"].notnull()
    return _with(known.any([dim for dim in known.dims if dim != "scheme"]))


def _trained(results: xr.Dataset) -> list[str]:
    known = results["validation_loss"].notnull()
    return _with(known.any([dim for dim in known.dims if dim != "scheme"]))


def _with(known: xr.DataArray) -> list[str]:
    return [str(name) for name in known["scheme"].values[known.values]]


def _moved(results: xr.Dataset) -> pd.DataFrame:
    """Return the mean calls that send per rank and iteration, in the groups of a direction."""
    calls = transfers(results)
    per = len(calls[["iteration", "rank"]].drop_duplicates())
    own = calls[calls.role.isin(list(_DIRECTIONS)) & ~calls.operation.isin(("recv", "barrier"))]
    columns = ["role", "operation", "ranks", "rank", "bytes"]
    return (own.groupby(columns).size() / per).rename("calls").reset_index()


def _total(calls: pd.DataFrame, direction: Direction, compression: Compression | None) -> float:
    """Return a rank's mean bytes in a direction, with or without a compression."""
    own = calls[calls.role.map(_DIRECTIONS) == direction]
    return float(
        sum(
            times * _sent(operation, ranks, rank, size, direction, compression)
            for _, operation, ranks, rank, size, times in own.itertuples(index=False)
        )
    )


def _sent(
    operation: str,
    ranks: tuple[int, ...],
    rank: int,
    size: int,
    direction: Direction,
    compression: Compression | None,
) -> float:
    """Return the bytes that a rank sends in one call."""
    codec = compression.by_direction().get(direction) if compression else None
    if compression is None or codec is None or size < compression.smallest_bytes:
        name = "send_recv" if operation == "send" else operation
        return float(bus_factor(name, len(ranks))) * size
    elements = size // _FP32
    if codec.rank:
        return 2 * float(bus_factor(operation, len(ranks))) * power_sgd_bytes(elements, codec.rank)
    if operation == "send":
        return encoded_bytes(codec, elements)
    return ring_bytes(codec, elements, len(ranks), ranks.index(rank))
