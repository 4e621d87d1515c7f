"""Measure collectives where a notebook asks for it: on the testbed, or on real nodes."""

import json
from dataclasses import asdict
from pathlib import Path

import xarray as xr

from repro.catalog.collectives import SweepSelection
from repro.catalog.nodes import Nodes, read_nodes
from repro.catalog.protocols import transport
from repro.collectives.records import CollectiveSweep
from repro.errors import NotRunHere
from repro.launch.cases import Case, run_cases, sweep_case
from repro.launch.experiment import fabric_links
from repro.launch.journal import Journal
from repro.launch.messages import Order, Site
from repro.launch.on_nodes import gpus_per_node, run_on_nodes
from repro.launch.progress import progress
from repro.launch.sites import open_site
from repro.observe.environment import computing_machine, provenance
from repro.results.merging import merge
from repro.testbed.similarity import emulated_rates_gbps


def measure_collectives(selection: SweepSelection, journal: Journal, folder: Path) -> xr.Dataset:
    """Measure a selection, sweep after sweep.

    Parameters
    ----------
    folder
        For what ranks of real nodes write.

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
    not_run: dict[str, str] = {}
    try:
        if selection.source == "testbed":
            dataset = _on_testbed(selection, journal)
        else:
            cases = _node_cases(selection, read_nodes())
            dataset, not_run = run_on_nodes(cases, journal, folder, "collectives", "case")
    except NotRunHere as reason:
        dataset, not_run = xr.Dataset(), {selection.source: str(reason)}
    return describe(dataset, selection, not_run)


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
                "protocols": {name: transport(name).model_dump() for name in selection.protocols},
            }
        ),
    )


def _asked(selection: SweepSelection, gpus: int, ranks_per_node: int) -> CollectiveSweep:
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


def _case(
    selection: SweepSelection, protocol: str, order: Order[CollectiveSweep], **where: object
) -> Case[CollectiveSweep]:
    source = selection.source
    inputs = {"source": source, "protocol": protocol, "order": asdict(order), **where}
    return sweep_case(source, protocol, order, inputs)


def _on_testbed(selection: SweepSelection, journal: Journal) -> xr.Dataset:
    """Measure on emulated nodes.

    Ranks compute as fast as they can: a collective is the network's work, not an emulated GPU's.
    """
    entry, scale = selection.cluster, selection.sweeps.rate_scale
    topology = entry.topology.first(max(selection.gpus))
    cases = []
    for gpus in selection.gpus:
        asked = _asked(selection, gpus, topology.gpus_per_node)
        for name in selection.protocols:
            fabric = fabric_links(entry, name)
            rates = emulated_rates_gbps(entry, fabric.bytes_per_s * 8e-9, scale)
            order = Order(asked, gpus, rates, fabric.latency_s)
            cases.append(_case(selection, name, order, machine=computing_machine()))
    with (
        open_site(Site(topology, topology.gpus, cores=None)) as session,
        progress(cases, "collectives", "case") as bar,
    ):
        datasets, _ = run_cases(
            cases, journal, lambda case, report: session.run(case.order, report), bar.report
        )
    return merge(datasets)


def _node_cases(selection: SweepSelection, nodes: Nodes) -> list[Case[CollectiveSweep]]:
    each = gpus_per_node(nodes)
    return [
        _case(
            selection,
            name,
            Order(_asked(selection, gpus, min(each, gpus)), gpus, rates_gbps={}),
            nodes=nodes.model_dump(),
        )
        for gpus in selection.gpus
        for name in selection.protocols
    ]
