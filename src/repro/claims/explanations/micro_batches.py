"""Which micro batch agrees with the journal paper's claims about its pipelines; it states none.

The claims of figure 5 are tested on predictions for every way to cut the batches: with one micro
batch size on 2, 4 and 8 GPUs, or with one number of micro batches.
"""

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.studies.experiments import experiment
from repro.claims.experiments.quantities import TESTS
from repro.claims.published import read_claims
from repro.claims.verdicts import judge_point

# Claims of figure 5, by id.
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


def consistency(results: xr.Dataset) -> pd.DataFrame:
    """What each policy gives for each claim, and how many are reproduced.

    Parameters
    ----------
    results : Dataset
        Experiment `micro_batches`, all models, GPUs and protocols, one source.

    Returns
    -------
    DataFrame
        A row for the published values and one per policy that all models allow; a column per claim
        (a number in its unit, or whether an order holds) and the number of claims reproduced.
    """
    claims = {claim.id: claim for claim in read_claims() if claim.id in _TITLES}
    published = {
        _title(name): "yes" if claims[name].value is None else f"{claims[name].value:g}"
        for name in _TITLES
    }
    rows = {"published": {**published, "reproduced": ""}}
    for policy, chosen in _policies(results.squeeze("source", drop=True)).items():
        cells, reproduced = {}, 0
        for name in _TITLES:
            found = judge_point(claims[name], TESTS[name], chosen)
            assert found.value is not None
            whole = "yes" if found.value else "no"
            cells[_title(name)] = whole if claims[name].value is None else f"{found.value:.2f}"
            reproduced += found.verdict == "reproduced"
        rows[policy] = {**cells, "reproduced": f"{reproduced} of {len(_TITLES)}"}
    return pd.DataFrame.from_dict(rows, orient="index")


def _title(claim: str) -> str:
    return f"{_TITLES[claim]} ({claim})"


def _policies(results: xr.Dataset) -> dict[str, xr.Dataset]:
    """Results without the swept dimension, by what is the same on all GPU counts."""
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
        wanted = batch // count
        if bool(np.isin(wanted, sizes).all()):
            name = f"{count} micro batches" if count > 1 else "whole batch at once"
            found[name] = needed.sel({_SWEPT: wanted}).drop_vars(_SWEPT)
    return {
        name: chosen
        for name, chosen in found.items()
        if bool(chosen["iteration_time_s"].notnull().any(["iteration", "rank"]).all())
    }
