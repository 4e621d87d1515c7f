"""Every scheme trains as replicas do, moves and holds what forms say, and refuses the rest."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from made_up import small_run
from rank_pool import RankPool
from torch.distributed.tensor import DTensor

from repro.catalog.models.papers import Family, Shape
from repro.catalog.parallel.partitions import Partition, gpt_units, held_bytes, iteration_calls
from repro.catalog.studies.partitions import read_partition_study
from repro.catalog.systems.topology import Topology
from repro.train.partition.collectives import Collectives
from repro.train.partition.groups import join_partition
from repro.train.phases import create_timers
from repro.train.records import EmulatedGpu, RankRecord, TrainingRun
from repro.train.run import iterate, train
from repro.train.training import set_up

pytestmark = pytest.mark.slow

# What the first step of Adam changes has the size of its rate, whatever the gradients.
_STEPS, _FP32 = 3, 4
_SCHEMES = read_partition_study().schemes
_EXACT = [name for name, one in _SCHEMES.items() if not (one.int8_weights or one.int4_gradients)]
_QUANTISED = [name for name in _SCHEMES if name not in _EXACT]
# No number of rows is a multiple of the ranks.
_ODD = Shape(
    layers=2,
    hidden_size=36,
    ffn_hidden_size=60,
    attention_heads=4,
    sequence_length=20,
    vocabulary_size=1027,
)


def _topology(pair: int, node: int, nodes: int) -> Topology:
    counts = zip(("package", "node", "fabric"), (pair, node, nodes), strict=True)
    levels = [{"name": name, "members": count, "link_gbps": 1.0} for name, count in counts]
    return Topology.model_validate({"levels": levels})


# Nodes of one pair, and of two.
_FOUR, _EIGHT = _topology(2, 1, 2), _topology(2, 2, 2)


def _run(family: Family, corpus: Path, **changes: Any) -> TrainingRun:
    return replace(small_run(family, corpus), **{"microbatches": 2, **changes})


def _steps(run: TrainingRun, scratch: Path) -> tuple[list[float], torch.Tensor]:
    """A rank's task: its losses, and all weights after the last step."""
    state = set_up(run, scratch)
    losses = []
    for _ in range(_STEPS):
        batches = [next(state.training) for _ in range(run.microbatches)]
        losses.append(iterate(state, batches))
    weights = [_whole(one) for _, one in sorted(state.module.named_parameters())]
    return losses, torch.cat(weights)


def _whole(weights: torch.Tensor) -> torch.Tensor:
    """All elements. DTensor remembers meshes of runs before, whose groups' names are others' now:
    of a mesh only its ranks are asked."""
    if not isinstance(weights, DTensor):
        return weights.detach().reshape(-1)
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, weights.to_local().detach())
    parts = [everybody[rank] for rank in weights.device_mesh.mesh.tolist()]
    return torch.cat([part.reshape(-1) for part in parts])


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def _check_alike(
    pool: RankPool,
    run: TrainingRun,
    scratch: Path,
    partitions: dict[str, Partition],
) -> None:
    ranks = next(iter(partitions.values())).ranks
    alike = pool.run(_steps, run, scratch, ranks=ranks, family=run.family)
    for name, partition in partitions.items():
        spread = replace(run, partition=partition)
        found = pool.run(_steps, spread, scratch, ranks=ranks, family=run.family)
        for (losses, weights), (expected, whole) in zip(found, alike, strict=True):
            assert losses == pytest.approx(expected, rel=1e-6), name
            assert _apart(weights, whole) < 1e-6, name


def test_every_scheme_trains_as_replicas_do(pool: RankPool, enwiki: Path, tmp_path: Path) -> None:
    partitions = {name: _SCHEMES[name].on(_EIGHT, 8) for name in _EXACT}
    _check_alike(pool, _run("gpt", enwiki, shape=_ODD), tmp_path, partitions)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_other_families_train_so_too(
    pool: RankPool, enwiki: Path, tmp_path: Path, family: Family
) -> None:
    partitions = {"three-level": _SCHEMES["three-level"].on(_FOUR, 4)}
    _check_alike(pool, _run(family, enwiki, microbatches=1), tmp_path, partitions)


def test_quantised_schemes_stay_within_what_their_blocks_allow(
    pool: RankPool, enwiki: Path, tmp_path: Path
) -> None:
    for seed in (1, 2):
        run = _run("gpt", enwiki, shape=_ODD, seed=seed)
        alike = pool.run(_steps, run, tmp_path, ranks=4)
        for name in _QUANTISED:
            spread = replace(run, partition=_SCHEMES[name].on(_FOUR, 4))
            found = pool.run(_steps, spread, tmp_path, ranks=4)
            for (losses, weights), (expected, whole) in zip(found, alike, strict=True):
                # A weight is off by at most 1/254 of its block's largest while losses are
                # computed; a step of Adam moves one by at most the learning rate.
                assert losses == pytest.approx(expected, rel=1 / 254)
                assert float((weights - whole).abs().max()) < 2 * _STEPS * 1.1e-4


def _logged(run: TrainingRun, scratch: Path) -> RankRecord:
    """A rank's task."""
    return train(run, scratch)[0]


@pytest.mark.parametrize("name", list(_SCHEMES))
def test_log_and_states_are_the_closed_forms(
    pool: RankPool, enwiki: Path, tmp_path: Path, name: str
) -> None:
    partition = _SCHEMES[name].on(_EIGHT, 8)
    run = _run("gpt", enwiki, shape=_ODD, log_communication=True, partition=partition)
    units = gpt_units(_ODD)
    expected = Counter[tuple[str, str, int, int, int]]()
    for calls in iteration_calls(partition, units, run.microbatches, _FP32, _FP32):
        one = calls.collective
        expected[calls.phase, one.operation, one.ranks, one.stride, one.size_bytes] += calls.calls
    held = held_bytes(partition, units, _FP32)
    for rank, record in enumerate(pool.run(_logged, run, tmp_path, ranks=8)):
        logged = Counter(
            (one.phase, one.operation, len(one.ranks), one.ranks[1] - one.ranks[0], one.size_bytes)
            for one in record.transfers
            if one.operation != "barrier"
        )
        assert logged == expected, f"rank {rank}"
        assert {one.role for one in record.transfers} <= {"data", "world"}
        assert record.weight_bytes == held["weights"]
        assert record.gradient_bytes == held["gradients"]
        # Two moments of the three numbers that the optimizer keeps of a weight.
        assert 3 * record.adam_state_bytes == 2 * held["optimizer states"]


def _summed(partition: Partition, seed: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """A rank's task: its part of a quantised sum over all ranks, what it should be, and by how
    much two hops of 4 bits may be off."""
    generator = torch.Generator().manual_seed(seed)
    given = torch.randn(8, 8 * 300, generator=generator)
    rank, node = dist.get_rank(), partition.node
    collectives = Collectives(partition, join_partition(partition), create_timers())
    found = collectives.reduce(given[rank].clone(), 8, 1)
    # Of every addend half a scale, then of every node's sum.
    largest = float(given.abs().max())
    bound = 8 * largest / 14 + 8 // node * (node * largest * (1 + 1 / 14)) / 14
    return found, given.sum(0).view(8, -1)[rank], bound


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_quantised_sum_is_off_by_half_a_scale_an_addend(pool: RankPool, seed: int) -> None:
    for node in (1, 2, 4, 8):
        partition = Partition(8, 8, 8, 8, node=node, int4_gradients=True)
        for found, expected, bound in pool.run(_summed, partition, seed, ranks=8):
            off = (found - expected).abs().max()
            assert 0 < float(off) < bound


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"save_every": 1}, "save_every is 1"),
        ({"distributed_optimizer": True}, "distributed_optimizer is True"),
        ({"precision": "bf16"}, "precision is bf16"),
        ({"partition": Partition(4, 2, 3, 4)}, "gradients 3 is not a multiple of"),
        ({"partition": Partition(8, 2, 4, 8)}, "partition is of 8 ranks; there are 4"),
    ],
)
def test_what_cannot_be_spread_is_refused(
    pool: RankPool, enwiki: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    run = _run("gpt", enwiki, partition=Partition(4, 2, 2, 4))
    (reason, *_) = pool.run(_refused, replace(run, **changes), tmp_path, ranks=4)
    assert words in reason


def _refused(run: TrainingRun, scratch: Path) -> str:
    """A rank's task."""
    from repro.errors import ReproError

    try:
        set_up(run, scratch)
    except ReproError as error:
        return str(error)
    return ""


def _paced(run: TrainingRun, scratch: Path) -> dict[str, tuple[float, ...]]:
    """A rank's task: the phases of a paced run."""
    return train(run, scratch, gpu=EmulatedGpu(cores=0.2))[0].phase_time_s


def test_collectives_in_the_middle_of_passes_are_phases_of_their_own(
    pool: RankPool, enwiki: Path, tmp_path: Path
) -> None:
    run = _run("gpt", enwiki, shape=_ODD, partition=_SCHEMES["three-level"].on(_FOUR, 4))
    for phases in pool.run(_paced, run, tmp_path, ranks=4):
        for name in ("forward compute", "gradient sync", "parameter all-gather"):
            assert min(phases[name]) > 0
        assert min(phases["other"]) >= 0
