"""What the page shows for one setting of its widgets: numbers of the model and of results."""

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
from repro.predict.explore.jobs.pareto import pareto
from repro.predict.explore.jobs.plans import best_plans, choose_job
from repro.predict.parameters import calibration
from repro.results.reference import SOURCE, read_reference
from repro.results.store import has_runs, read_dataset

# Those of cluster A without a sweep: what differs is the protocol and the number of GPUs.
EXPERIMENTS = ("weak_scaling", "strong_scaling", "model_parallelism")
_ALL = 1_000_000
_PLANNED = ("iteration_time_s", "memory_bytes", "gpu_s_per_sequence")


@dataclass(frozen=True)
class View:
    """A setting of the widgets.

    Attributes
    ----------
    experiment, model, protocol : str
        One of `EXPERIMENTS`, and names of its models and protocols.
    gpus : int
        GPUs of the job.
    gbps, latency_us : float
        What the protocol's rate (Gbit/s) and latency (µs) would be.
    sequences : int
        Sequences per GPU and iteration; in data parallelism one micro batch.
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
        """The protocol with this rate and latency."""
        changes = {"effective_gbps": self.gbps, "latency_us": self.latency_us}
        return protocol(self.protocol).model_copy(update=changes)


def default_view(
    name: str, model: str = "gpt2-large", protocol_name: str = "rdma", gpus: int = 8
) -> View:
    """A configuration as its experiment has it."""
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
    """Milliseconds by phase, a row per bar, and where the measured one is from.

    Rows: measured, where there is a measurement; predicted as the experiment has it; predicted with
    the view's rate, latency and sequences.

    Raises
    ------
    ReproError
        The batch does not divide into micro batches.
    """
    asked = default_view(view.experiment, view.model, view.protocol, view.gpus)
    measured, origin = _measured(view)
    bars = {} if measured is None else {"measured": measured}
    bars |= {"predicted, as measured": _predicted(asked), "predicted, as set": _predicted(view)}
    return pd.DataFrame(bars).T.dropna(axis="columns", how="all"), origin


def plans(view: View) -> pd.DataFrame:
    """All ways to train on 1 to all GPUs of the cluster that fit into memory, fastest first.

    Returns
    -------
    DataFrame
        As `repro.predict.explore.jobs.plans.best_plans` has it, with the level `gpus` in front, and
        `pareto`: no other plan is at least as good in time, memory and cost.

    Raises
    ------
    ReproError
        Nothing fits.
    """
    entry = cluster(experiment(view.experiment).cluster)
    name = experiment(view.experiment).cluster
    found, reason = {}, ""
    batch = view.sequences * view.gpus
    for gpus in (2**power for power in range(entry.topology.gpus.bit_length())):
        job = choose_job(view.model, name, view.protocol, gpus, batch)
        try:
            found[gpus] = best_plans(replace(job, protocol=view.transport), _ALL)
        except ReproError as error:
            reason = str(error)
    if not found:
        raise ReproError(reason)
    table: pd.DataFrame = pd.concat(found, names=["gpus"]).sort_values(
        "iteration_time_s", kind="stable"
    )
    table = table.assign(pareto=pareto(table[list(_PLANNED)].to_numpy()))
    return table


def _predicted(view: View) -> "pd.Series[float]":
    selection = _selection(view)
    parameters = calibration(cluster(selection.experiment.cluster).calibration).parameters
    return _phases(predict_with(selection, {view.protocol: view.transport}, parameters))


def _selection(view: View) -> Selection:
    """The experiment with the view's batch."""
    chosen = select(view.experiment, "predicted", view.protocol, view.model, view.gpus)
    entry = chosen.experiment
    changes = {"global_batch_size": view.sequences * view.gpus, "sequences_per_gpu": None}
    if not entry.pipeline:
        changes["micro_batch_size"] = None
    changed: Experiment = entry.model_copy(update=changes)
    changed.batch(view.model, view.gpus)
    return replace(chosen, experiment=changed)


def _measured(view: View) -> tuple["pd.Series[float] | None", str]:
    """Of this machine's run, or of the reference run, and which of them; or that there is none."""
    path = RESULTS / f"{view.experiment}.nc"
    own = {"measured here": read_dataset(path)} if path.exists() else {}
    cell = {"model": view.model, "protocol": view.protocol, "gpus": view.gpus, "source": SOURCE}
    for origin, dataset in (own | {"reference run": read_reference(view.experiment)}).items():
        if has_runs(dataset) and all(value in dataset[dim].values for dim, value in cell.items()):
            return _phases(dataset.sel({dim: [value] for dim, value in cell.items()})), origin
    return None, "not measured; `make repro` measures it"


def _phases(results: xr.Dataset) -> "pd.Series[float]":
    """Mean over iterations and ranks, in milliseconds at full scale, by phase."""
    times = (results["phase_time_s"] / results["time_scale"]).mean(["iteration", "rank"])
    series: pd.Series[float] = 1e3 * times.squeeze(drop=True).to_series().reindex(list(PHASES))
    return series.where(np.abs(series) > 0)
