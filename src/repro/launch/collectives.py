"""Measure collectives where a notebook asks for it: on the testbed, or on this machine's GPUs."""

import json
from dataclasses import asdict

import torch
import xarray as xr
from tqdm import tqdm

from repro.catalog.collectives import SweepSelection
from repro.catalog.protocols import protocol
from repro.collectives.records import CollectiveSweep
from repro.collectives.sweep import cases
from repro.errors import NotRunHere
from repro.launch.experiment import fabric_links
from repro.launch.journal import Journal
from repro.launch.messages import Order, Outcome, Site
from repro.launch.sites import open_site
from repro.observe.environment import provenance
from repro.results.collectives import sweep_dataset
from repro.results.merging import merge
from repro.testbed.similarity import emulated_rates_gbps


def measure_collectives(selection: SweepSelection, journal: Journal) -> xr.Dataset:
    """Measure a selection, sweep after sweep.

    Returns
    -------
    Dataset
        As `repro.results.collectives` has it; without variables and with the reason in `not_run`
        where this machine cannot run the source.

    Raises
    ------
    ReproError
        A collective returned wrong data, a link does not carry its rate, or a rank failed.
    """
    site, orders = _testbed(selection) if selection.source == "testbed" else _local(selection)
    datasets, not_run = [], {}
    try:
        if not orders:
            raise NotRunHere(
                "this machine has no GPU; in a Slurm job start `srun repro sweep CLUSTER`"
            )
        datasets = _measure(selection.source, site, orders, journal)
    except NotRunHere as reason:
        not_run = {selection.source: str(reason)}
    return describe(merge(datasets) if datasets else xr.Dataset(), selection, not_run)


def describe(dataset: xr.Dataset, selection: SweepSelection, not_run: dict[str, str]) -> xr.Dataset:
    """Give a dataset its attributes."""
    emulated = selection.source == "testbed"
    return dataset.assign_attrs(
        title=f"{selection.sweeps.title}, {selection.cluster.label}",
        published_in=selection.sweeps.source,
        experiment="collectives",
        cluster=selection.cluster_name,
        profile=selection.profile_name,
        rate_scale=selection.sweeps.rate_scale if emulated else 1.0,
        not_run=json.dumps(not_run),
        provenance=provenance(
            {
                "sweep": selection.sweeps.model_dump(),
                "cluster": selection.cluster.model_dump(),
                "protocols": {name: protocol(name).model_dump() for name in selection.protocols},
            }
        ),
    )


def asked_for(selection: SweepSelection, gpus: int, ranks_per_node: int) -> CollectiveSweep:
    """What a selection's ranks are to measure, the most of them in all layouts."""
    profile = selection.profile
    most = gpus == max(selection.gpus)
    return CollectiveSweep(
        collectives=selection.collectives,
        sizes_bytes=profile.sizes_bytes,
        layouts=selection.sweeps.layouts if most else ("world",),
        ranks_per_node=ranks_per_node,
        dtype=selection.sweeps.dtype,
        warmup=profile.warmup,
        repeats=profile.repeats,
        longest_call_s=profile.longest_call_s,
    )


_Orders = dict[tuple[str, int], Order[CollectiveSweep]]


def _testbed(selection: SweepSelection) -> tuple[Site, _Orders]:
    """Emulated nodes, and an order by protocol and number of GPUs.

    Ranks have no CPU quota: a collective is the network's work, not that of an emulated GPU.
    """
    entry, scale = selection.cluster, selection.sweeps.rate_scale
    topology = entry.topology.first(max(selection.gpus))
    orders = {}
    for gpus in selection.gpus:
        run = asked_for(selection, gpus, topology.gpus_per_node)
        for name in selection.protocols:
            fabric = fabric_links(entry, name)
            rates = emulated_rates_gbps(entry, fabric.bytes_per_s * 8e-9, scale)
            orders[name, gpus] = Order(run, gpus, rates, fabric.latency_s)
    return Site(topology, topology.gpus, cores=None), orders


def _local(selection: SweepSelection) -> tuple[Site, _Orders]:
    """The GPUs of this machine, as one node."""
    here = torch.cuda.device_count()
    counts = [gpus for gpus in selection.gpus if gpus <= here]
    return Site(None, max(counts, default=1), cores=None), {
        ("local", gpus): Order(asked_for(selection, gpus, here), gpus, {}) for gpus in counts
    }


def _measure(source: str, site: Site, orders: _Orders, journal: Journal) -> list[xr.Dataset]:
    datasets = []
    total = sum(cases(order.run) for order in orders.values())
    with open_site(site) as session, tqdm(total=total, desc="collectives", unit="case") as bar:
        for (name, gpus), order in orders.items():
            bar.set_postfix_str(f"{name}, {gpus} GPUs")
            before = bar.n

            def report(done: int, before: float = before) -> None:
                bar.update(before + done - bar.n)

            inputs = {"source": source, "protocol": name, "order": asdict(order)}
            dataset = journal.find(inputs)
            if dataset is None:
                outcome = session.run(order, report)
                assert isinstance(outcome, Outcome)
                dataset = sweep_dataset(source, name, gpus, order.run, outcome)
                journal.keep(inputs, dataset)
            report(cases(order.run))
            datasets.append(dataset)
    return datasets
