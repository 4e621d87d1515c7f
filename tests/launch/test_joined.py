"""Ranks that torchrun or srun started find each other and measure."""

import subprocess
import sys
from pathlib import Path

import pytest

from repro.errors import ReproError
from repro.launch.joined import Joined, joined
from repro.results.collectives import bandwidths
from repro.results.store import read_dataset

_TORCHRUN = Path(sys.executable).with_name("torchrun")
_REPRO = Path(sys.executable).with_name("repro")


def test_the_place_is_that_of_torchrun_or_of_srun() -> None:
    place = Joined(5, 8, 1, 4, "node0", 29500)
    slurm = {
        **{"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"},
        **{"SLURM_NTASKS_PER_NODE": "4", "MASTER_ADDR": "node0"},
    }
    torchrun = {
        **{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
        **{"MASTER_ADDR": "node0", "MASTER_PORT": "29500"},
    }
    assert joined(slurm) == joined(torchrun) == place


def test_what_is_missing_is_named_with_its_mend() -> None:
    with pytest.raises(ReproError, match=r"WORLD_SIZE or SLURM_NTASKS is not set: start ranks"):
        joined({})
    with pytest.raises(ReproError, match=r"MASTER_ADDR is not set; in a Slurm job first `export"):
        joined({"SLURM_NTASKS": "8"})


@pytest.mark.slow
def test_two_ranks_of_torchrun_write_one_dataset(tmp_path: Path) -> None:
    output = tmp_path / "sweep.nc"
    command = [_TORCHRUN, "--standalone", "--nproc-per-node", "2", "--no-python", _REPRO]
    arguments = ["sweep", "pinnacles", "--profile", "ci", "--output", output]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    results = read_dataset(output)
    assert results.sizes["rank"] == 2
    assert (results["source"].item(), results["gpus"].item()) == ("cluster", 2)
    found = bandwidths(results)["busbw_GBps"].sel(layout="world", in_place="out of place")
    assert bool((found > 0).all())
