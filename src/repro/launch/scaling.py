"""Run a scaling experiment on the testbed: every configuration of a selection, resumable."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import xarray as xr
from tqdm import tqdm

from repro.catalog.clusters import Cluster, cluster
from repro.catalog.experiments import most_gpus
from repro.catalog.models import model
from repro.catalog.protocols import protocol
from repro.catalog.selection import Selection
from repro.errors import NotRunHere, ReproError
from repro.launch.compute import emulated_cores
from repro.launch.journal import Journal
from repro.launch.messages import Order, Site
from repro.launch.runs import testbed_run
from repro.launch.sites import Session, open_site
from repro.observe.environment import provenance
from repro.predict.compute import compute_time
from repro.results.merging import merge
from repro.results.schema import configuration_dataset
from repro.results.store import read_dataset
from repro.testbed.quota import usable_cores
from repro.testbed.similarity import REFERENCE_MICRO_BATCH, Similarity, derive


@dataclass(frozen=True)
class _Configuration:
    """One cell of the experiment, fully resolved."""

    protocol: str
    gpus: int
    similarity: Similarity
    order: Order

    @property
    def label(self) -> str:
        """Its name in the progress bar."""
        return f"{self.similarity.model}, {self.protocol}, {self.gpus} GPUs"

    def inputs(self, site: Site) -> Mapping[str, object]:
        """All that decides what is measured, except the machine."""
        return {
            "protocol": self.protocol,
            "similarity": asdict(self.similarity),
            "order": asdict(self.order),
            "cores": site.cores,
        }


def measure_scaling(
    selection: Selection,
    compute: Path,
    corpus: Path,
    split: str,
    journal: Journal,
    compute_factor: float = 1.0,
) -> xr.Dataset:
    """Measure a selection on the testbed.

    Parameters
    ----------
    selection : Selection
        What to run; its source is `testbed`.
    compute : Path
        The result of `repro.launch.compute.measure_compute`.
    corpus, split
        The folder of the enwiki artefacts, and its weights of training and validation data.
    journal : Journal
        Finished configurations, so that an interrupted run goes on where it stopped.
    compute_factor : float
        Take the full-scale computing time to be this many times the predicted one.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`. Attribute `not_run` is a JSON object from what
        could not run on this machine to the reason.

    Raises
    ------
    ReproError
        A run failed, or the journal cannot be written.
    """
    entry = cluster(selection.experiment.cluster)
    site = Site(entry.topology, entry.topology.gpus, emulated_cores(most_gpus()))
    similarities = _similarities(selection.models, entry, compute, compute_factor)
    configurations, not_run = _plan(selection, entry, site, similarities, corpus, split)
    datasets: list[xr.Dataset] = []
    try:
        datasets = _measure(configurations, site, journal, selection.name)
    except NotRunHere as reason:
        not_run = {"testbed": str(reason)}
    dataset = merge(datasets) if datasets else xr.Dataset()
    dataset.attrs = {
        "title": selection.experiment.title,
        "published_in": selection.experiment.source,
        "experiment": selection.name,
        "profile": selection.profile_name,
        "quota_cores": "none" if site.cores is None else site.cores,
        "not_run": json.dumps(not_run),
        "similarity": json.dumps({name: _explain(s) for name, s in similarities.items()}),
        "provenance": provenance(
            {
                "experiment": selection.experiment.model_dump(),
                "cluster": entry.model_dump(),
                "protocols": {name: protocol(name).model_dump() for name in selection.protocols},
                "models": {name: model(name).model_dump() for name in selection.models},
            }
        ),
    }
    return dataset


def _similarities(
    models: Sequence[str], entry: Cluster, compute: Path, factor: float
) -> dict[str, Similarity]:
    seconds = read_dataset(compute)["iteration_time_s"].median("iteration").to_series()
    for name in models:
        if name not in seconds:
            raise ReproError(f"{compute}: no model {name!r}; run `repro compute` for it first")
    similarities = {}
    for name in models:
        full = compute_time(model(name), entry, REFERENCE_MICRO_BATCH).value_s * factor
        similarities[name] = derive(name, model(name), entry, float(seconds[name]), full)
    return similarities


def _explain(similarity: Similarity) -> dict[str, object]:
    return {
        **asdict(similarity),
        "time_scale": similarity.time_scale,
        "rate_scale": similarity.rate_scale,
        "rule": "B_testbed = B_cluster (V_testbed/V_full) (C_full/C_testbed)",
    }


def _plan(
    selection: Selection,
    entry: Cluster,
    site: Site,
    similarities: Mapping[str, Similarity],
    corpus: Path,
    split: str,
) -> tuple[list[_Configuration], dict[str, str]]:
    """Configurations that can run here, fewest changes of rank groups first, and the others."""
    planned, not_run = [], {}
    networks = {name: protocol(name) for name in selection.protocols}
    for gpus in selection.gpus:
        if site.cores is None and gpus > usable_cores():
            not_run[f"{gpus} GPUs"] = (
                f"without CPU quotas no more ranks than cores ({usable_cores()}) are honest; "
                "run as root, or in a delegated cgroup"
            )
            continue
        micro_batch = selection.experiment.micro_batch(gpus)
        for name, similarity in similarities.items():
            run = testbed_run(name, micro_batch, selection.profile, corpus, split)
            for transport, network in networks.items():
                order = Order(
                    run=run,
                    ranks=gpus,
                    rates_gbps=similarity.rates_gbps(entry, network.effective_gbps),
                    fabric_latency_s=network.latency_us * 1e-6 * similarity.time_scale,
                )
                planned.append(_Configuration(transport, gpus, similarity, order))
    return planned, not_run


def _measure(
    configurations: list[_Configuration], site: Site, journal: Journal, title: str
) -> list[xr.Dataset]:
    """Every configuration's dataset, from the journal or from a run; ranks start when needed."""
    datasets = []
    session: Session | None = None
    total = sum(c.order.run.warmup + c.order.run.iterations for c in configurations)
    with ExitStack() as stack, tqdm(total=total, desc=title, unit="it") as bar:
        for configuration in configurations:
            bar.set_postfix_str(configuration.label)
            inputs = configuration.inputs(site)
            dataset = journal.find(inputs)
            if dataset is None:
                session = session or stack.enter_context(open_site(site))
                outcome = session.train(configuration.order, report=lambda _: bar.update())
                dataset = configuration_dataset(
                    "testbed",
                    configuration.protocol,
                    configuration.gpus,
                    configuration.similarity,
                    outcome,
                )
                journal.keep(inputs, dataset)
            else:
                bar.update(configuration.order.run.warmup + configuration.order.run.iterations)
            datasets.append(dataset)
    return datasets
