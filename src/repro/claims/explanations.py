"""Explanations of claims that do not reproduce: fits, micro batches, NCCL's trees."""

from functools import cache

import numpy as np
import pandas as pd
import xarray as xr
from scipy.optimize import least_squares
from tqdm import tqdm

from repro.catalog.models.volumes import ring_all_reduce_bytes
from repro.catalog.studies.experiments import experiment
from repro.catalog.studies.selection import select
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import Protocol, read_protocols
from repro.claims.published import read_claims
from repro.claims.quantities import Quantity, experiment_tests
from repro.claims.verdicts import judge_point, predicted_sample
from repro.predict.calibration.interval import slower
from repro.predict.explore.experiments.predicted import predict_with
from repro.predict.parameters import calibration
from repro.predict.workload import Array
from repro.progress import clear_progress
from repro.results.metrics import iteration_time_s, phase_time_s, utilisation_gbps

HEADLINES = ("C001", "C002", "C003", "C004", "C005", "C017", "C018", "C072", "C073", "C061")
_FITTED = ("rdma_gbps", "ipoib_gbps", "tcp_gbps", "compute_factor", "host_factor")
# Published numbers are rounded averages of four models whose sequence lengths are unknown.
_RELATIVE_ERROR = 0.05
# Standard deviations of the factors on computing and on the host; rates are free.
_FACTOR_DEVIATIONS = np.array([0.2, 0.4])
# Largest payload rate of each port: EDR InfiniBand twice, and 10 GbE without its framing.
_PORT_GBPS = (100.0, 100.0, 9.41)
_TOLERANCE = 1e-3
# Step of the numbers' logarithms for numerical slopes.
_STEP = 1e-5
# Claims of figure 5.
_TITLES = {
    "C034": "iteration, IPoIB/RDMA",
    "C035": "iteration, TCP/RDMA",
    "C099": "forward receive, IPoIB/RDMA, up to",
    "C097": "forward receive, TCP/RDMA, up to",
    "C100": "embedding sync, IPoIB/RDMA, up to",
    "C098": "embedding sync, TCP/RDMA, up to",
    "C041": "both timers' share, %, up to",
    "C096": "compute rises",
    "C101": "T5-Large's share is largest",
}
_SWEPT = "micro_batch_size"
# Claims about busier NICs.
_GAINS = {"tcp": "C082", "ipoib": "C083", "rdma": "C084"}
_RANKS = 4


def explain() -> tuple[pd.Series, pd.DataFrame]:
    """Fit the headline claims, and predict each of them from a fit to the others.

    Five numbers are fitted to ten claims. The fits to nine show which claims are explained and
    which are only fitted.

    Returns
    -------
    fitted : Series
        Gbit/s of a NIC by protocol, factors on all computing and on the host's times.
    explained : DataFrame
        One row per claim: its published value, its value in the fit to all claims (`fitted`) and in
        the fit to all others (`left_out`), and the distance of the latter from the published value
        in units of the assumed error (`deviations`).
    """
    claims = {claim.id: claim for claim in read_claims()}
    published = np.array([claims[claim].value for claim in HEADLINES], float)
    start = [entry.effective_gbps for entry in read_protocols().values()] + [1.0, 1.0]
    everything = list(range(len(HEADLINES)))
    all_fitted = _fit(everything, published, np.log(start))
    left_out = []
    for left in tqdm(everything, desc="leave one out", unit="claim"):
        others = _fit([one for one in everything if one != left], published, all_fitted)
        left_out.append(np.exp(_values_around(tuple(others))[0, left]))
    clear_progress()
    rows = {
        "statement": [claims[claim].statement for claim in HEADLINES],
        "unit": [claims[claim].unit for claim in HEADLINES],
        "published": published,
        "fitted": np.exp(_values_around(tuple(all_fitted))[0]),
        "left_out": left_out,
        "deviations": np.log(left_out / published) / _RELATIVE_ERROR,
    }
    return (
        pd.Series(np.exp(all_fitted), _FITTED),
        pd.DataFrame(rows, index=pd.Index(HEADLINES, name="id")),
    )


def _fit(at: list[int], published: Array, start: Array) -> Array:
    """Return the logarithms of the five numbers that fit the claims at these places best."""
    targets = np.log(published[at])

    def residuals(logarithms: Array) -> Array:
        errors = (_values_around(tuple(logarithms))[0, at] - targets) / _RELATIVE_ERROR
        return np.concatenate([errors, logarithms[-2:] / _FACTOR_DEVIATIONS])

    def slopes(logarithms: Array) -> Array:
        values = _values_around(tuple(logarithms))[:, at]
        errors = (values[1:] - values[0]).T / _STEP / _RELATIVE_ERROR
        factors = np.eye(len(logarithms))[-2:] / _FACTOR_DEVIATIONS[:, None]
        return np.concatenate([errors, factors])

    limits = np.log([*_PORT_GBPS, np.inf, np.inf])
    first = np.minimum(start, limits - 1e-6)
    solution = least_squares(
        residuals, first, jac=slopes, bounds=(-np.inf, limits), xtol=_TOLERANCE
    )
    best: Array = solution.x
    return best


@cache
def _values_around(logarithms: tuple[float, ...]) -> Array:
    """Compute logarithms of the claims' quantities (point, claim) from those of five numbers.

    The first point has the numbers as given; each other has one of them a step larger. Values are
    cached, because every fit to nine claims starts at the same point.
    """
    steps = np.insert(_STEP * np.eye(len(logarithms)), 0, 0.0, axis=0)
    points = np.exp(np.array(logarithms) + steps)
    *rates, compute_factor, host_factor = np.hsplit(points, len(logarithms))
    protocols: dict[str, Protocol] = {
        name: entry.model_copy(update={"effective_gbps": rate})
        for (name, entry), rate in zip(read_protocols().items(), rates, strict=True)
    }
    predicted = {}
    for name in {_quantity(claim).experiment for claim in HEADLINES}:
        selection = select(name, source="predicted")
        fitted = calibration(cluster(selection.experiment.cluster).calibration).parameters
        changed = slower(fitted, compute_factor, host_factor)
        predicted[name] = predict_with(selection, protocols, changed)
    quantities = [_quantity(claim) for claim in HEADLINES]
    return np.log([q.compute(predicted[q.experiment]) for q in quantities]).T


def _quantity(claim: str) -> Quantity:
    test = experiment_tests()[claim]
    assert isinstance(test, Quantity)
    return test


def consistency(results: xr.Dataset) -> pd.DataFrame:
    """Judge the claims of figure 5 for every way to cut the batches.

    The paper does not state its micro batch. A policy has one micro batch size on 2, 4 and 8 GPUs,
    or one number of micro batches.

    Parameters
    ----------
    results : Dataset
        Experiment `micro_batches`, all models, GPUs and protocols, one source.

    Returns
    -------
    DataFrame
        One row for the published values and one per policy that all models allow; one column per
        claim (a number in its unit, or yes if an order holds), and the number of reproduced claims.
    """
    claims = {claim.id: claim for claim in read_claims() if claim.id in _TITLES}
    published = {
        _title(name): "yes" if claims[name].value is None else f"{claims[name].value:g}"
        for name in _TITLES
    }
    tests = experiment_tests()
    rows = {"published": {**published, "reproduced": ""}}
    for policy, chosen in _policies(results.squeeze("source", drop=True)).items():
        cells, reproduced = {}, 0
        for name in _TITLES:
            found = judge_point(claims[name], tests[name], chosen)
            assert found.value is not None
            holds = "yes" if found.value else "no"
            cells[_title(name)] = holds if claims[name].value is None else f"{found.value:.2f}"
            reproduced += found.verdict == "reproduced"
        rows[policy] = {**cells, "reproduced": f"{reproduced} of {len(_TITLES)}"}
    return pd.DataFrame.from_dict(rows, orient="index")


def _title(claim: str) -> str:
    return f"{_TITLES[claim]} ({claim})"


def _policies(results: xr.Dataset) -> dict[str, xr.Dataset]:
    """Return results without the swept dimension, by the size or number that is constant."""
    needed = results[["iteration_time_s", "phase_time_s", "p2p_time_s", "time_scale"]]
    sizes = results[_SWEPT].values
    entry = experiment("micro_batches")
    batch = xr.DataArray(
        [
            [entry.batch(str(model), int(gpus), 1).global_batch_size for gpus in results["gpus"]]
            for model in results["model"].values
        ],
        dims=("model", "gpus"),
        coords={"model": results["model"], "gpus": results["gpus"]},
    )
    found = {}
    for size in sizes:
        found[f"micro batch {size}"] = needed.sel({_SWEPT: size}, drop=True)
    for count in sizes:
        needed_sizes = batch // count
        if bool(np.isin(needed_sizes, sizes).all()):
            name = f"{count} micro batches" if count > 1 else "whole batch at once"
            found[name] = needed.sel({_SWEPT: needed_sizes}).drop_vars(_SWEPT)
    return {
        name: chosen
        for name, chosen in found.items()
        if bool(chosen["iteration_time_s"].notnull().any(["iteration", "rank"]).all())
    }


def utilisation_gains() -> pd.DataFrame:
    """Predict with rings and with trees how much busier NICs are with 8 than with 4 GPUs.

    A ring of n ranks sends 2(n-1)/n S bytes through each NIC. NCCL may choose a double binary tree:
    between two nodes, each of its two trees moves half of S up and half of S down, so S bytes pass
    each NIC in each direction, compared with 1.5 S for a ring of 4 ranks.

    Returns
    -------
    DataFrame
        One row per protocol: the published rate of a NIC with 8 GPUs over that with 4, mean over
        models, and the predicted one with rings (`ring`) and with trees for 4 GPUs (`tree`).
    """
    published = {claim.id: claim.value for claim in read_claims()}
    results = predicted_sample("weak_scaling").results
    time, rate = iteration_time_s(results), utilisation_gbps(results)
    sync = phase_time_s(results, "gradient sync").sel(gpus=_RANKS)
    # Bytes of the tree per byte of the ring.
    fraction = 1 / ring_all_reduce_bytes(1.0, _RANKS)
    with_tree = time.sel(gpus=_RANKS) - sync * (1 - fraction)
    tree_rate = rate.sel(gpus=_RANKS) * time.sel(gpus=_RANKS) * fraction / with_tree
    rows = {}
    for name, entry in read_protocols().items():
        most = rate.sel(gpus=8, protocol=name)
        rows[entry.label] = {
            "published": published[_GAINS[name]],
            "ring": float((most / rate.sel(gpus=_RANKS, protocol=name)).mean()),
            "tree": float((most / tree_rate.sel(protocol=name)).mean()),
        }
    return pd.DataFrame.from_dict(rows, "index").rename_axis("protocol")
