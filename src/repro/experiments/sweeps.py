"""Measurements of collectives by size, on the testbed or on real nodes."""

from repro.catalog.studies.collectives import SweepSelection
from repro.catalog.systems.nodes import Nodes, read_nodes
from repro.catalog.systems.protocols import transport
from repro.collectives.records import CollectiveSweep
from repro.errors import NotRunHere
from repro.experiments.measurement import Measurement
from repro.experiments.on_testbed import fabric_links
from repro.experiments.similarity import emulated_rates_gbps
from repro.launch.nodes.run import gpus_per_node, nodes_for
from repro.launch.request import PoolSpec, Request
from repro.observe.environment import computing_machine


def sweep_measurement(selection: SweepSelection) -> Measurement:
    """Return the measurement of a selection of sweeps on emulated or real nodes."""
    missing: dict[str, str] = {}
    target: PoolSpec | Nodes
    if selection.source == "testbed":
        topology = selection.cluster.topology.truncated_to(max(selection.gpus))
        # Ranks compute at full speed: a collective is the network's work, not a GPU's.
        target = PoolSpec(topology, topology.gpus, cores=None)
        requests = _testbed_requests(selection)
    else:
        target = read_nodes()
        try:
            requests = _node_requests(selection, target)
        except NotRunHere as reason:
            requests, missing = [], {selection.source: str(reason)}
    return Measurement(
        name=f"collectives-{selection.cluster_name}",
        target=target,
        requests=tuple(requests),
        attributes=sweep_attributes(selection),
        parameters=sweep_parameters(selection),
        missing=missing,
    )


def sweep_attributes(selection: SweepSelection) -> dict[str, object]:
    """Return the attributes of a selection's dataset, from any source."""
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
    """Return the parameters of a selection's dataset."""
    return {
        "sweep": selection.sweeps.model_dump(),
        "cluster": selection.cluster.model_dump(),
        "protocols": {name: transport(name).model_dump() for name in selection.protocols},
    }


def _sweep(selection: SweepSelection, gpus: int, ranks_per_node: int) -> CollectiveSweep:
    """Return the sweep of so many ranks; the largest number of them measures all layouts."""
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


def _testbed_requests(selection: SweepSelection) -> list[Request[CollectiveSweep]]:
    entry, scale = selection.cluster, selection.sweeps.rate_scale
    conditions = {"machine": computing_machine()}
    requests = []
    for gpus in selection.gpus:
        sweep = _sweep(selection, gpus, entry.topology.gpus_per_node)
        for name in selection.protocols:
            fabric = fabric_links(entry, name)
            requests.append(
                Request(
                    coordinates={"source": selection.source, "protocol": name, "gpus": gpus},
                    run=sweep,
                    ranks=gpus,
                    rates_gbps=emulated_rates_gbps(entry, fabric.bytes_per_s * 8e-9, scale),
                    fabric_latency_s=fabric.latency_s,
                    conditions=conditions,
                )
            )
    return requests


def _node_requests(selection: SweepSelection, nodes: Nodes) -> list[Request[CollectiveSweep]]:
    each = gpus_per_node(nodes)
    return [
        Request(
            coordinates={"source": selection.source, "protocol": name, "gpus": gpus},
            run=_sweep(selection, gpus, gpus // nodes_for(gpus, each)),
            ranks=gpus,
            conditions={"nodes": nodes.model_dump()},
        )
        for gpus in selection.gpus
        for name in selection.protocols
    ]
