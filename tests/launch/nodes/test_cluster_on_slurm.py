"""Source `cluster` on a real Slurm whose nodes are the testbed's: what users run, on slow links."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import yaml
from slurm_testbed import (
    MAX_TIME_MINUTES,
    PARTITION,
    SLURMD_TIMEOUT_S,
    SlurmTestbed,
    needs_slurm,
    slurm_testbed,
)
from waiting import PATIENCE_S, wait_until

from repro.paths import ROOT

pytestmark = [pytest.mark.testbed, pytest.mark.slow, pytest.mark.root, needs_slurm]

# Enough for a link to be what ranks wait for, on a machine whose cores eight of them share.
_LINK_GBPS = 0.1
_WEAK = "select('weak_scaling', 'cluster', 'tcp', 'bert-large', {gpus}, 'ci')"
_RUN = (
    "import repro.errors, sys\n"
    "from repro.catalog.studies.selection import select\n"
    "from repro.experiments.sources import get_results\n"
    "try:\n    get_results({selection}, '{output}')\n"
    "except repro.errors.ReproError as error:\n    sys.exit(str(error))\n"
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmTestbed]:
    """Four nodes for what others wait for, and one more for the job that reaches its limit."""
    folder = tmp_path_factory.mktemp("slurm")
    with slurm_testbed(folder, nodes=5, link_gbps=_LINK_GBPS) as testbed:
        yield testbed


class _Project:
    """A user's copy of the project, with its own `params/nodes.yaml`."""

    def __init__(self, folder: Path, corpus: Path, slurm: SlurmTestbed, **changes: object):
        for part in ("src", "params", "notebooks", "data/published"):
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        (folder / "data/enwiki").symlink_to(corpus)
        path = folder / "params/nodes.yaml"
        section = {
            **{"partition": PARTITION, "nodes": 4, "time_limit_min": MAX_TIME_MINUTES},
            **{"setup": "", "jobs": 1},
        }
        nodes = {
            **{"launch": "slurm", "gpus_per_node": 2, "shapes": "testbed", "precision": "fp32"},
            **{"warmup": 1, "iterations": 3, "adapters": {"tcp": ["up"]}},
            "slurm": section,
        }
        nodes.update({key: value for key, value in changes.items() if key in nodes})
        section.update({key: value for key, value in changes.items() if key in section})  # type: ignore[misc]
        path.write_text(yaml.safe_dump(nodes))
        self.folder, self._slurm = folder, slurm

    def start(self, *command: str) -> "subprocess.Popen[str]":
        environment = {"PYTHONPATH": str(self.folder / "src")}
        return self._slurm.popen([sys.executable, *command], environment, self.folder)

    def get_results(
        self, selection: str, output: str = "results/out.nc"
    ) -> "subprocess.Popen[str]":
        return self.start("-c", _RUN.format(selection=selection, output=output))

    def finished(self) -> dict[Path, int]:
        """Configurations that are kept, with the time when they were written."""
        kept = (self.folder / "results/store").glob("*.nc")
        return {path: path.stat().st_mtime_ns for path in kept}

    def wait_for(self, reached: Callable[[], bool]) -> None:
        wait_until(reached, lambda: list(self.folder.glob("results/logs/**/*.log")))


def _ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, errors


@pytest.fixture(scope="module")
def too_long(
    tmp_path_factory: pytest.TempPathFactory, enwiki: Path, slurm: SlurmTestbed
) -> "subprocess.Popen[str]":
    """An experiment whose job does nothing but last, begun before the others run."""
    project = _Project(
        tmp_path_factory.mktemp("limit"),
        enwiki,
        slurm,
        **{"time_limit_min": 1, "nodes": 1, "setup": "sleep 600"},
    )
    return project.get_results(_WEAK.format(gpus=2))


def test_the_weak_scaling_notebook_runs_on_four_nodes(
    tmp_path: Path, enwiki: Path, slurm: SlurmTestbed, too_long: "subprocess.Popen[str]"
) -> None:
    project = _Project(tmp_path, enwiki, slurm)
    asked = {"source": "cluster", "profile": "ci", "protocol": "tcp", "output": "results/weak.nc"}
    parameters = [word for pair in asked.items() for word in ("-p", *pair)]
    notebook = "notebooks/weak_scaling.ipynb"
    code, errors = _ended(project.start("-m", "papermill", notebook, "out.ipynb", *parameters))
    assert code == 0, errors[-3000:]
    dataset = xr.load_dataset(tmp_path / "results/weak.nc")
    assert json.loads(dataset.attrs["not_run"]) == {}
    assert dataset["gpus"].values.tolist() == [2, 8] and dataset.sizes["rank"] == 8
    at_8 = dataset.sel(gpus=8, adapter="up").squeeze()
    # A ring all-reduce of S bytes over n ranks leaves each node once: 2 (n-1)/n S, and headers.
    theory = 2 * 7 / 8 * at_8["gradient_bytes"].item()
    sent = at_8["adapter_sent_bytes"]
    assert sent.sizes["node"] == 4
    np.testing.assert_allclose(sent.mean("iteration") / theory, 1.01, atol=0.02)
    ran_on = {one["configuration"]: one for one in json.loads(dataset.attrs["ran_on"])}
    largest = ran_on["bert-large, tcp, 8 GPUs"]
    assert len(largest["hosts"]) == 4 and largest["bytes_proven"]
    assert ran_on["bert-large, tcp, 2 GPUs"]["hosts"][0].startswith("node")
    assert len(project.finished()) == 2
    assert len(list((tmp_path / "results/logs/weak_scaling/4nodes").rglob("rank*.log"))) == 8


_JOB_FOLDER = "results/logs/strong_scaling/2nodes"


def _at_work(
    folder: Path, corpus: Path, slurm: SlurmTestbed
) -> tuple[_Project, "subprocess.Popen[str]", str]:
    """Return a job of two configurations on two nodes when the first is finished, and its id."""
    project = _Project(folder, corpus, slurm, nodes=2, gpus_per_node=1)
    models = "gpt2-medium,bert-large"
    selection = f"select('strong_scaling', 'cluster', 'tcp', '{models}', 2, 'default')"
    client = project.get_results(selection)
    project.wait_for(lambda: len(project.finished()) >= 1)
    return project, client, (folder / _JOB_FOLDER / "job").read_text()


def test_a_failing_node_costs_the_running_configuration_only(
    tmp_path: Path, enwiki: Path, slurm: SlurmTestbed, too_long: "subprocess.Popen[str]"
) -> None:
    project, client, job = _at_work(tmp_path, enwiki, slurm)
    before = project.finished()
    # Not the node of the batch script, which sees ranks fail before Slurm sees the node fail.
    victim = int(_other_node(slurm, job).removeprefix("node"))
    slurm.kill_node(victim)
    slurm.wait_down(1)
    slurm.start_node(victim)
    code, errors = _ended(client)
    assert code == 0, errors[-3000:]
    dataset = xr.load_dataset(tmp_path / "results/out.nc")
    assert bool(dataset["iteration_time_s"].isel(rank=0).notnull().all())
    shown = slurm.job(job)
    assert shown["JobState"] == "COMPLETED" and shown["Restarts"] == "1"
    logs = tmp_path / _JOB_FOLDER
    for path, written in before.items():
        assert path.stat().st_mtime_ns == written
    assert len(list(logs.glob("*/step0.pkl"))) == 2


def test_daemons_that_do_not_answer_for_a_while_cost_nothing(
    tmp_path: Path, enwiki: Path, slurm: SlurmTestbed, too_long: "subprocess.Popen[str]"
) -> None:
    project, client, job = _at_work(tmp_path, enwiki, slurm)
    before = project.finished()
    assert (tmp_path / _JOB_FOLDER).stat().st_mode & 0o777 == 0o700
    with slurm.stopped("slurmctld"), slurm.stopped("slurmd"):
        time.sleep(SLURMD_TIMEOUT_S / 2)
    code, errors = _ended(client)
    assert code == 0, errors[-3000:]
    assert before.items() <= project.finished().items() and len(project.finished()) == 2
    shown = slurm.job(job)
    assert shown["JobState"] == "COMPLETED" and shown["Restarts"] == "0"


def _other_node(slurm: SlurmTestbed, job: str) -> str:
    """A node of a job that does not run its batch script."""
    shown = slurm.job(f"{job}_0")
    nodes = slurm.run(["scontrol", "show", "hostnames", shown["NodeList"]]).stdout.split()
    return next(node for node in nodes if node != shown["BatchHost"])


def test_an_interrupted_client_leaves_no_element_of_an_array(
    tmp_path: Path, enwiki: Path, slurm: SlurmTestbed, too_long: "subprocess.Popen[str]"
) -> None:
    project = _Project(tmp_path, enwiki, slurm, iterations=100_000, jobs=2)
    models = "gpt2-medium,bert-large"
    client = project.get_results(
        f"select('strong_scaling', 'cluster', 'tcp', '{models}', 2, 'default')"
    )
    project.wait_for(lambda: (tmp_path / "results/logs/strong_scaling/1nodes/job").exists())
    job = (tmp_path / "results/logs/strong_scaling/1nodes/job").read_text()
    elements = [f"{job}_{element}" for element in range(2)]
    for element in elements:
        slurm.wait_state(element, "RUNNING")
    client.send_signal(signal.SIGINT)
    assert client.wait(PATIENCE_S) != 0
    for element in elements:
        slurm.wait_state(element, "CANCELLED")


def test_a_rejected_job_is_one_line_with_slurms_reason(
    tmp_path: Path, enwiki: Path, slurm: SlurmTestbed
) -> None:
    project = _Project(tmp_path, enwiki, slurm, partition="nowhere")
    code, errors = _ended(project.get_results(_WEAK.format(gpus=2)))
    assert code == 1 and "Traceback" not in errors
    last = errors.strip().splitlines()[-1]
    assert "Slurm rejected" in last and "nvalid partition" in last and "params/nodes.yaml" in last


def test_a_job_that_finishes_nothing_in_its_time_says_which_limit_to_raise(
    too_long: "subprocess.Popen[str]",
) -> None:
    code, errors = _ended(too_long)
    assert code == 1 and "Traceback" not in errors
    last = errors.strip().splitlines()[-1]
    assert "ended as TIMEOUT with 1 of 1 configurations open" in last
    assert "raise slurm.time_limit_min (1) in params/nodes.yaml" in last
