"""Rank, world size and address from the variables of srun and torchrun."""

import pytest

from repro.errors import ReproError
from repro.launch.nodes.rank_environment import RankEnvironment, rank_environment


def test_the_place_is_that_of_torchrun_or_of_srun() -> None:
    meeting = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    slurm = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", **meeting}
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", **meeting}
    assert (
        rank_environment(slurm)
        == rank_environment(torchrun)
        == RankEnvironment(5, 8, 1, "node0", 29500)
    )


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ReproError, match="RANK or SLURM_PROCID is not set; fix: start ranks"):
        rank_environment({})
    with pytest.raises(ReproError, match="MASTER_ADDR is not set"):
        rank_environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"})
