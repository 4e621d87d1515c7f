"""Values that the page shows for one setting of its widgets, predicted and measured."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.phases import PHASES
from repro.catalog.studies.experiments import Experiment, experiment
from repro.catalog.studies.selection import Selection, select
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import Protocol, protocol
from repro.errors import ReproError
from repro.paths import RESULTS
from repro.predict.explore.experiments.predicted import predict_with
from repro.predict.explore.jobs.plans import best_plans, choose_job
from repro.predict.explore.jobs.search import pareto
from repro.predict.parameters import calibration
from repro.results.reference import SOURCE, read_reference
from repro.results.store import has_runs, read_dataset

# Experiments of cluster A that vary the model, the protocol and the number of GPUs only.
EXPERIMENTS = ("weak_scaling", "strong_scaling", "model_parallelism")
_ALL_PLANS = 1_000_000
_OBJECTIVES = ("iteration_time_s", "memory_bytes", "gpu_s_per_sequence")


@dataclass(frozen=True)
class View:
    """Setting of the widgets.

    Attributes
    ----------
    experiment, model, protocol : str
        One of `EXPERIMENTS`, and names of its models and protocols.
    gpus : int
        GPUs of the job.
    gbps, latency_us : float
        Rate (Gbit/s) and latency (µs) in place of the protocol's own.
    sequences : int
        Sequences per GPU and iteration; one micro batch in data parallelism.
    """

    experiment: str
    model: str
    protocol: str
    gpus: int
    gbps: float
    latency_us: float
    sequences: int

    @cached_property
    def transport(self) -> Protocol:
        """Protocol with this rate and latency."""
        changes = {"effective_gbps": self.gbps, "latency_us": self.latency_us}
        return protocol(self.protocol).model_copy(update=changes)


def default_view(
    name: str, model: str = "gpt2-large", protocol_name: str = "rdma", gpus: int = 8
) -> View:
    """Return a configuration with its experiment's rate, latency and batch."""
    entry, transport = experiment(name), protocol(protocol_name)
    return View(
        name,
        model,
        protocol_name,
        gpus,
        transport.effective_gbps,
        transport.latency_us,
        entry.batch(model, gpus).global_batch_size // gpus,
    )


def breakdown(view: View) -> tuple[pd.DataFrame, str]:
    """Return milliseconds by phase, a row per bar, and the origin of the measured bar.

    Rows: measured, if there is a measurement; predicted with the experiment's rate, latency and
    batch; predicted with the view's.

    Raises
    ------
    ReproError
        The batch does not divide into micro batches.
    """
    default = default_view(view.experiment, view.model, view.protocol, view.gpus)
    measured, origin = _measured(view)
    bars = {} if measured is None else {"measured": measured}
    bars |= {"predicted, as measured": _predicted(default), "predicted, as set": _predicted(view)}
    return pd.DataFrame(bars).T.dropna(axis="columns", how="all"), origin


def plans(view: View) -> pd.DataFrame:
    """Return all plans on 1 to all GPUs of the cluster that fit into memory, fastest first.

    Returns
    -------
    DataFrame
        As `repro.predict.explore.jobs.plans.best_plans` returns, with the index level `gpus` in
        front and the column `pareto`: Pareto-optimal in time, memory and cost.

    Raises
    ------
    ReproError
        No plan fits.
    """
    name = experiment(view.experiment).cluster
    entry = cluster(name)
    found, reason = {}, ""
    batch = view.sequences * view.gpus
    for gpus in (2**power for power in range(entry.topology.gpus.bit_length())):
        job = choose_job(view.model, name, view.protocol, gpus, batch)
        try:
            found[gpus] = best_plans(replace(job, protocol=view.transport), _ALL_PLANS)
        except ReproError as error:
            reason = str(error)
    if not found:
        raise ReproError(reason)
    table: pd.DataFrame = pd.concat(found, names=["gpus"]).sort_values(
        "iteration_time_s", kind="stable"
    )
    table = table.assign(pareto=pareto(table[list(_OBJECTIVES)].to_numpy()))
    return table


def _predicted(view: View) -> "pd.Series[float]":
    selection = _selection(view)
    parameters = calibration(cluster(selection.experiment.cluster).calibration).parameters
    return _phases(predict_with(selection, {view.protocol: view.transport}, parameters))


def _selection(view: View) -> Selection:
    """Return the selected experiment with the view's batch."""
    chosen = select(view.experiment, "predicted", view.protocol, view.model, view.gpus)
    entry = chosen.experiment
    changes = {"global_batch_size": view.sequences * view.gpus, "sequences_per_gpu": None}
    if not entry.pipeline:
        changes["micro_batch_size"] = None
    changed: Experiment = entry.model_copy(update=changes)
    changed.batch(view.model, view.gpus)
    return replace(chosen, experiment=changed)


def _measured(view: View) -> tuple["pd.Series[float] | None", str]:
    """Return phases of this machine's run, else of the reference run, with the run's name."""
    path = RESULTS / f"{view.experiment}.nc"
    local = {"measured here": read_dataset(path)} if path.exists() else {}
    chosen = {"model": view.model, "protocol": view.protocol, "gpus": view.gpus, "source": SOURCE}
    for origin, dataset in (local | {"reference run": read_reference(view.experiment)}).items():
        if has_runs(dataset) and all(value in dataset[dim].values for dim, value in chosen.items()):
            return _phases(dataset.sel({dim: [value] for dim, value in chosen.items()})), origin
    return None, "not measured; fix: make repro"


def _phases(results: xr.Dataset) -> "pd.Series[float]":
    """Return the mean over iterations and ranks in milliseconds at full scale, by phase."""
    times = (results["phase_time_s"] / results["time_scale"]).mean(["iteration", "rank"])
    series: pd.Series[float] = 1e3 * times.squeeze(drop=True).to_series().reindex(list(PHASES))
    return series.where(np.abs(series) > 0)
