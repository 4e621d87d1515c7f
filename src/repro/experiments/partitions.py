"""Runs of one model in every scheme of partitioning, on three levels of links."""

import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import xarray as xr

from repro.catalog.models.papers import model
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES, TESTBED_ELEMENT_BYTES, gradient_bytes
from repro.catalog.parallel.partitions import Partition
from repro.catalog.reading import choose
from repro.catalog.studies.experiments import Profile, experiment, most_gpus
from repro.catalog.studies.partitions import PartitionStudy, read_partition_study
from repro.catalog.studies.selection import SOURCES
from repro.corpus.config import read_corpus_config
from repro.errors import NotRunHere, ReproError
from repro.experiments.computing import read_computing
from repro.experiments.obtain import carried_out, finish
from repro.experiments.resolved import Resolved
from repro.experiments.runs import testbed_run
from repro.experiments.similarity import FASTEST_LINK_GBPS, Similarity
from repro.experiments.this_machine import emulated_gpu
from repro.launch.cases import Case, training_case
from repro.launch.journal import Journal
from repro.launch.messages import Order, Site
from repro.paths import ENWIKI, RESULTS, find
from repro.predict.explore.studies.partitions import partitioned_training
from repro.results.outcome import Outcome, OutOfMemory
from repro.results.schema import Cell
from repro.results.store import not_run
from repro.testbed.speed import cores_per_rank
from repro.train.records import TrainingRun

_TESTBED = "testbed"
# The one network between nodes, as of the experiment whose model it is.
_PROTOCOL = "rdma"


def obtain_partitions(
    source: str = _TESTBED, profile: str = "default", output: str = ""
) -> xr.Dataset:
    """Train `params/hierarchical_zero.yaml`'s model in every scheme, and log what it communicates.

    Parameters
    ----------
    source
        One of `SOURCES`; only on the testbed there is something to train with.
    profile
        How many iterations are recorded.
    output
        The netCDF file to write, relative to the project's root.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`, with one more dimension `scheme`.

    Raises
    ------
    ReproError
        A value is unknown, a scheme's groups do not divide the GPUs, or a run failed.
    """
    study = read_partition_study()
    path = RESULTS.parent / (output or f"results/adhoc/hierarchical_zero-{source}-{profile}.nc")
    journal = Journal(path)
    if choose("source", source, {known: known for known in SOURCES}) != _TESTBED:
        reason = {source: "schemes are trained on emulated nodes; what is predicted stands below"}
        return finish(not_run(reason, title=study.title), path, journal)
    return finish(carried_out(resolve_partitions(profile), journal, path), path, journal)


def resolve_partitions(profile: str = "default") -> Resolved:
    """What the study asks of the testbed, and nothing run."""
    study = read_partition_study()
    emulated = study.testbed
    iterations = choose("profile", profile, emulated.iterations)
    topology = emulated.topology
    computed = experiment(emulated.experiment).cluster
    most = most_gpus(computed)
    if not topology.gpus == emulated.gpus <= most:
        raise ReproError(
            f"params/hierarchical_zero.yaml: gpus {emulated.gpus} of a topology of {topology.gpus}"
            f"; wanted are as many, and no more than the {most} that {emulated.experiment} has"
        )
    similarity, cases, missing = None, [], {}
    cores = cores_per_rank(most)
    try:
        similarity = _similarity(study)
        fastest = max(level.link_gbps for level in topology.levels) * similarity.rate_scale
        # All levels keep their proportion: where links would be too fast, GPUs are slowed.
        slowed = max(1.0, fastest / FASTEST_LINK_GBPS)
        similarity, cores = similarity.slowed(slowed), cores / slowed
        run = _run(study, iterations)
        cases = [
            _case(name, scheme.on(topology, emulated.gpus), run, similarity, study)
            for name, scheme in study.schemes.items()
        ]
    except NotRunHere as reason:
        missing = {_TESTBED: str(reason)}
    return Resolved(
        title="hierarchical_zero",
        where=Site(topology, topology.gpus, cores),
        cases=tuple(cases),
        attributes={
            "title": study.title,
            "published_in": study.source,
            "experiment": "hierarchical_zero",
            "profile": profile,
            "emulated_gpu": json.dumps(emulated_gpu(cores)),
            "similarity": json.dumps(asdict(similarity) if similarity else {}),
        },
        parameters={"hierarchical_zero": study.model_dump()},
        missing=missing,
    )


def _run(study: PartitionStudy, iterations: int) -> TrainingRun:
    emulated = study.testbed
    profile = Profile(
        models=(), gpus=(emulated.gpus,), warmup=emulated.warmup, iterations=iterations
    )
    split = read_corpus_config(find("params/corpus.yaml")).split
    size = emulated.micro_batch_size
    run = testbed_run(emulated.model, profile, ENWIKI, split, micro_batch_size=size)
    return replace(run, log_communication=True)


def _similarity(study: PartitionStudy) -> Similarity:
    """The testbed's model for the predicted one: what one GPU computes of a micro batch, and its
    gradients' bytes."""
    emulated = study.testbed
    kind = model(emulated.model)
    full = partitioned_training()
    seconds = float((full.compute_s.forward_compute + full.backward_s)[0])
    known = read_computing(experiment(emulated.experiment).cluster, emulated.model, False)
    testbed = kind.testbed_size(False)
    return Similarity(
        model=study.predicted.model,
        pipeline=False,
        micro_batch_size=emulated.micro_batch_size,
        mfu=full.flops / (full.entry.device.peak_flops * seconds),
        compute_full_s=seconds,
        compute_testbed_s=known.seconds(emulated.micro_batch_size, step=False),
        volume_full_bytes=gradient_bytes("gpt", full.shape, FULL_ELEMENT_BYTES),
        volume_testbed_bytes=gradient_bytes("gpt", testbed, TESTBED_ELEMENT_BYTES),
    )


def _case(
    name: str,
    partition: Partition,
    run: TrainingRun,
    similarity: Similarity,
    study: PartitionStudy,
) -> Case[TrainingRun]:
    levels = study.testbed.topology.levels
    order = Order(
        run=replace(run, partition=partition),
        ranks=study.testbed.gpus,
        rates_gbps={one.name: one.link_gbps * similarity.rate_scale for one in levels},
    )
    cell = Cell(study.testbed.model, _PROTOCOL, study.testbed.gpus)
    inputs = {"scheme": name, "similarity": asdict(similarity), "order": asdict(order)}
    scales = similarity.time_scale, similarity.rate_scale
    case = training_case(_TESTBED, cell, order, inputs, *scales)
    return replace(
        case, label=f"{case.label}, {name}", dataset=partial(_by_scheme, case, name), series=None
    )


def _by_scheme(case: Case[TrainingRun], name: str, outcome: Outcome | OutOfMemory) -> xr.Dataset:
    return case.dataset(outcome).expand_dims(scheme=[name])


def asked_partitions(results: xr.Dataset) -> dict[str, tuple[dict[str, Any], Partition]]:
    """What each scheme's ranks were told, and its groups, by name."""
    found = {}
    for asked in json.loads(results.attrs["asked"]):
        run = asked["order"]["run"]
        found[asked["scheme"]] = run, Partition(**run["partition"])
    return found
