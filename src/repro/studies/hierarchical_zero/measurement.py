"""Measurement of one model in every ZeRO partition, on three levels of links."""

import json
from dataclasses import asdict, replace
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
from repro.experiments.measurement import Measurement, measure, save
from repro.experiments.runs import testbed_run
from repro.experiments.similarity import FASTEST_LINK_GBPS, Similarity
from repro.experiments.this_machine import emulated_gpu
from repro.launch.request import PoolSpec, Request
from repro.paths import ENWIKI, find
from repro.results.schema import coordinates
from repro.results.store import not_run
from repro.studies.hierarchical_zero.predicted import partitioned_training
from repro.testbed.speed import cores_per_rank
from repro.train.records import TrainingRun

_TESTBED = "testbed"
# The network between nodes, which is that of the experiment whose model it is.
_PROTOCOL = "rdma"


def get_partitions(
    source: str = _TESTBED, profile: str = "default", output: str = ""
) -> xr.Dataset:
    """Train `params/hierarchical_zero.yaml`'s model in every scheme, and log its communication.

    Parameters
    ----------
    source
        One of `SOURCES`; only the testbed can train it.
    profile
        Run size, which has a number of iterations.
    output
        NetCDF file to write, relative to the project. Empty: none.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`, with one more dimension `scheme`.

    Raises
    ------
    ReproError
        A value is unknown, a scheme's groups do not divide the GPUs, or a run failed.
    """
    if choose("source", source, {known: known for known in SOURCES}) != _TESTBED:
        reason = {source: "schemes are trained on emulated nodes; predictions are below"}
        return save(not_run(reason, title=read_partition_study().title), output)
    return save(measure(partition_measurement(profile)), output)


def measure_profile(profile: str) -> xr.Dataset:
    """Measure the study's dataset of the pipeline."""
    return get_partitions(profile=profile)


def partition_measurement(profile: str = "default") -> Measurement:
    """Return the measurement of the study, with every number fixed."""
    study = read_partition_study()
    emulated = study.testbed
    iterations = choose("profile", profile, emulated.iterations)
    topology = emulated.topology
    computed = experiment(emulated.experiment).cluster
    most = most_gpus(computed)
    if not topology.gpus == emulated.gpus <= most:
        raise ReproError(
            f"params/hierarchical_zero.yaml: gpus {emulated.gpus} of a topology of {topology.gpus}"
            f"; fix: use as many, at most the {most} of {emulated.experiment}"
        )
    similarity, requests, missing = None, [], {}
    cores = cores_per_rank(most)
    try:
        similarity = _similarity(study)
        fastest = max(level.link_gbps for level in topology.levels) * similarity.rate_scale
        # All levels keep their ratio; where links would be too fast, GPUs are slowed.
        slowed = max(1.0, fastest / FASTEST_LINK_GBPS)
        similarity, cores = similarity.slowed(slowed), cores / slowed
        run = _run(study, iterations)
        requests = [
            _request(name, scheme.on(topology, emulated.gpus), run, similarity, study, cores)
            for name, scheme in study.schemes.items()
        ]
    except NotRunHere as reason:
        missing = {_TESTBED: str(reason)}
    return Measurement(
        name="hierarchical_zero",
        target=PoolSpec(topology, topology.gpus, cores),
        requests=tuple(requests),
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
    """Return the similarity of the testbed's model and the predicted one."""
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


def _request(
    name: str,
    partition: Partition,
    run: TrainingRun,
    similarity: Similarity,
    study: PartitionStudy,
    cores: float,
) -> Request[TrainingRun]:
    gpus, levels = study.testbed.gpus, study.testbed.topology.levels
    return Request(
        {**coordinates(study.testbed.model, _PROTOCOL, gpus), "scheme": name},
        replace(run, partition=partition),
        gpus,
        rates_gbps={level.name: level.link_gbps * similarity.rate_scale for level in levels},
        time_scale=similarity.time_scale,
        rate_scale=similarity.rate_scale,
        conditions={"emulated_gpu": emulated_gpu(cores)},
    )


def requested_partitions(results: xr.Dataset) -> dict[str, tuple[dict[str, Any], Partition]]:
    """Return each scheme's `TrainingRun` as JSON, and its groups, by name."""
    return {
        request["coordinates"]["scheme"]: (
            request["run"],
            Partition(**request["run"]["partition"]),
        )
        for request in json.loads(results.attrs["requests"])
    }
