"""Source `cluster` on this machine: real ranks that torchrun starts, each in a fresh process."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from repro.catalog.studies.collectives import select_sweep
from repro.catalog.studies.selection import select
from repro.catalog.systems.nodes import Nodes, read_nodes
from repro.errors import ReproError
from repro.experiments import measurement, on_nodes, sweeps
from repro.experiments.measurement import measure
from repro.experiments.on_nodes import node_measurement
from repro.experiments.sweeps import sweep_measurement
from repro.observe.adapters import read_interfaces
from repro.results.collectives import OUT_OF_PLACE

_HERE = [one.name for one in read_interfaces() if one.up and one.kind == "ethernet"]
needs_ethernet = pytest.mark.skipif(not _HERE, reason="this machine has no Ethernet interface")


def _use(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """Two ranks without GPUs, on the small shapes."""
    chosen = Nodes(
        launch="local",
        gpus_per_node=2,
        shapes="testbed",
        precision="fp32",
        warmup=1,
        iterations=2,
        adapters={"tcp": tuple(_HERE[:1])},
    ).model_copy(update=changes)
    for module in (on_nodes, sweeps):
        monkeypatch.setattr(module, "read_nodes", lambda: chosen)


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measurement, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_the_file_in_the_repository_is_for_this_machines_gpus() -> None:
    nodes = read_nodes()
    assert (nodes.launch, nodes.shapes, nodes.slurm is not None) == ("local", "full", True)


@needs_ethernet
@pytest.mark.slow
def test_ranks_of_this_machine_train_and_say_what_they_ran_on(
    enwiki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch)
    selection = select("weak_scaling", "cluster", "all", "bert-large", "all", "ci")
    folder = tmp_path / "results/logs/weak_scaling"
    dataset = measure(node_measurement(selection, enwiki, "95,5"))
    assert dataset["source"].values.tolist() == ["cluster"]
    assert dataset["protocol"].values.tolist() == ["tcp"]
    assert dataset.sizes["rank"] == 2 and dataset.sizes["iteration"] == 2
    assert (dataset["time_scale"] == 1).all() and (dataset["min_inter_node_bytes"] == 0).all()
    phases = dataset["phase_time_s"].sum("phase")
    np.testing.assert_allclose(phases, dataset["iteration_time_s"])
    reasons = json.loads(dataset.attrs["not_run"])
    assert reasons["8 GPUs"] == "params/nodes.yaml has 1 node of 2"
    assert "needs an active InfiniBand port; this node has" in reasons["rdma"]
    (ran_on,) = json.loads(dataset.attrs["ran_on"])
    assert ran_on["backend"] == "gloo" and ran_on["configuration"] == "bert-large, tcp, 2 GPUs"
    logs = folder / "bert-large-tcp-2-GPUs"
    assert {"rank0.log", "rank1.log", "launcher.log"} <= {path.name for path in logs.iterdir()}
    assert not list(logs.glob("rank*.pkl"))


@needs_ethernet
@pytest.mark.slow
def test_ranks_of_this_machine_measure_collectives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch)
    selection = select_sweep("pinnacles", "cluster", "tcp", 2, "all_reduce", "ci")
    dataset = measure(sweep_measurement(selection))
    where = {"layout": "world", "collective": "all_reduce", "in_place": OUT_OF_PLACE}
    times = dataset["call_time_s"].sel(where)
    # On a machine that stalls, the larger sizes are left out once a call is too long.
    assert (times.isel(size_bytes=0) > 0).all() and times.sizes["rank"] == 2
    assert not (times <= 0).any()


@needs_ethernet
@pytest.mark.slow
def test_a_failing_rank_is_one_line_with_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch)
    selection = select("weak_scaling", "cluster", "tcp", "bert-large", 2, "ci")
    empty = tmp_path / "no-corpus"
    with pytest.raises(ReproError, match=r"rank [01] failed: .*no-corpus.*; logs are in "):
        measure(node_measurement(selection, empty, "95,5"))


def test_without_gpus_the_source_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use(monkeypatch, shapes="full")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    selection = select("weak_scaling", "cluster", "all", "bert-large", "all", "ci")
    dataset = measure(node_measurement(selection, tmp_path, "95,5"))
    assert not dataset.data_vars
    assert "this machine has no GPU; run on one" in json.loads(dataset.attrs["not_run"])["cluster"]
    sweep = select_sweep("pinnacles", "cluster", "tcp")
    found = measure(sweep_measurement(sweep))
    assert "has no GPU" in json.loads(found.attrs["not_run"])["cluster"]


def test_launch_slurm_needs_its_section() -> None:
    with pytest.raises(ValueError, match="launch is slurm; fix: set gpus_per_node and"):
        Nodes(launch="slurm", warmup=1, iterations=1)
    with pytest.raises(ReproError, match="unknown protocol 'carrier-pigeon'"):
        Nodes(launch="local", warmup=1, iterations=1, adapters={"carrier-pigeon": ("p0",)})
