"""Sweeps of collectives, on the testbed or on real nodes, resolved."""

from dataclasses import asdict

from repro.catalog.studies.collectives import SweepSelection
from repro.catalog.systems.nodes import Nodes, read_nodes
from repro.catalog.systems.protocols import transport
from repro.collectives.records import CollectiveSweep
from repro.errors import NotRunHere
from repro.experiments.on_testbed import fabric_links
from repro.experiments.resolved import Resolved
from repro.experiments.similarity import emulated_rates_gbps
from repro.launch.cases import Case, sweep_case
from repro.launch.messages import Order, Site
from repro.launch.nodes.run import gpus_per_node, nodes_for
from repro.observe.environment import computing_machine


def resolve_sweep(selection: SweepSelection) -> Resolved:
    """What a selection of sweeps asks of emulated or real nodes, whichever its source is."""
    missing: dict[str, str] = {}
    where: Site | Nodes
    if selection.source == "testbed":
        topology = selection.cluster.topology.truncated_to(max(selection.gpus))
        # Ranks compute as fast as they can: a collective is the network's work, not a GPU's.
        where = Site(topology, topology.gpus, cores=None)
        cases = _testbed_cases(selection)
    else:
        where = read_nodes()
        try:
            cases = _node_cases(selection, where)
        except NotRunHere as reason:
            cases, missing = [], {selection.source: str(reason)}
    return Resolved(
        title="collectives",
        where=where,
        cases=tuple(cases),
        attributes=sweep_attributes(selection),
        parameters=sweep_parameters(selection),
        missing=missing,
    )


def sweep_attributes(selection: SweepSelection) -> dict[str, object]:
    """What datasets of a selection say of themselves, from whichever source."""
    emulated = selection.source == "testbed"
    return {
        "title": f"{selection.sweeps.title}, {selection.cluster.label}",
        "published_in": selection.sweeps.source,
        "experiment": "collectives",
        "cluster": selection.cluster_name,
        "profile": selection.profile_name,
        "rate_scale": selection.sweeps.rate_scale if emulated else 1.0,
    }


def sweep_parameters(selection: SweepSelection) -> dict[str, object]:
    """What they follow from."""
    return {
        "sweep": selection.sweeps.model_dump(),
        "cluster": selection.cluster.model_dump(),
        "protocols": {name: transport(name).model_dump() for name in selection.protocols},
    }


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
        most_repeats=profile.most_repeats,
        longest_call_s=profile.longest_call_s,
        in_place=profile.in_place,
    )


def _case(
    selection: SweepSelection, protocol: str, order: Order[CollectiveSweep], **where: object
) -> Case[CollectiveSweep]:
    source = selection.source
    inputs = {"source": source, "protocol": protocol, "order": asdict(order), **where}
    return sweep_case(source, protocol, order, inputs)


def _testbed_cases(selection: SweepSelection) -> list[Case[CollectiveSweep]]:
    entry, scale = selection.cluster, selection.sweeps.rate_scale
    cases = []
    for gpus in selection.gpus:
        asked = _asked(selection, gpus, entry.topology.gpus_per_node)
        for name in selection.protocols:
            fabric = fabric_links(entry, name)
            rates = emulated_rates_gbps(entry, fabric.bytes_per_s * 8e-9, scale)
            order = Order(asked, gpus, rates, fabric.latency_s)
            cases.append(_case(selection, name, order, machine=computing_machine()))
    return cases


def _node_cases(selection: SweepSelection, nodes: Nodes) -> list[Case[CollectiveSweep]]:
    each = gpus_per_node(nodes)
    return [
        _case(
            selection,
            name,
            Order(_asked(selection, gpus, gpus // nodes_for(gpus, each)), gpus, rates_gbps={}),
            nodes=nodes.model_dump(),
        )
        for gpus in selection.gpus
        for name in selection.protocols
    ]
