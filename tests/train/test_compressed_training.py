"""Compressed training: rings, bytes, what is bit-identical, and ranks that disagree."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from made_up import configuration_dataset, small_run
from rank_pool import RankPool

from repro.catalog.parallel.codecs import Codec, Compression
from repro.catalog.parallel.encoded_volumes import power_sgd_bytes, ring_bytes
from repro.catalog.parallel.partitions import Partition
from repro.errors import ReproError
from repro.launch.request import plain
from repro.observe.communication_log import CommunicationLog, logging
from repro.observe.nic import NicSeries
from repro.results.merging import merge
from repro.results.outcome import Outcome
from repro.results.schema import coordinates
from repro.studies.compression.tables import sent_table, time_table
from repro.train.compression.codecs import coding_of
from repro.train.compression.coder import coder_of
from repro.train.compression.power_sgd import PowerSgd
from repro.train.compression.ring import EncodedRing
from repro.train.phases import create_timers
from repro.train.records import RankRecord, TrainingRun
from repro.train.run import iterate, train
from repro.train.training import set_up

pytestmark = pytest.mark.slow

_INT8, _INT4 = Codec(kind="integers", bits=8), Codec(kind="integers", bits=4)
_RING = [_INT8, Codec(kind="fp8"), Codec(kind="top-k", share=0.3)]
_THREE_WAYS = {"stages": 2, "tensor_parallel": 2}
_NONE = Compression(label="none")
_NAIVE = Compression(label="naive", data=_INT8, tensor=_INT8, pipeline=_INT8)


def _summed(codec: Codec, elements: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A rank's task: an encoded sum, all ranks' addends, and what this rank sent."""
    given = torch.randn(
        dist.get_world_size(), elements, generator=torch.Generator().manual_seed(elements)
    )
    group = dist.group.WORLD
    assert group is not None
    total, log = given[dist.get_rank()].clone(), CommunicationLog(lambda: "gradient sync")
    with logging(log):
        EncodedRing(coder_of(codec, create_timers())).all_reduce(total, group)
    sent = sum(one.size_bytes for one in log.take(0) if one.operation == "send")
    return total, given, sent


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("codec", _RING, ids=lambda codec: codec.kind)
def test_a_ring_is_off_by_a_bound_a_hop(pool: RankPool, codec: Codec, ranks: int) -> None:
    elements, coding = 1003, coding_of(codec)
    found = pool.run(_summed, codec, elements, ranks=ranks)
    _, given, _ = found[0]
    # Partial sums are encoded as they are with what earlier hops lost; none is larger than this.
    largest = given.abs().sum(0).max().expand(elements) * 2
    bound = ranks * coding.error_bound(largest) if codec.kind != "top-k" else None
    for rank, (total, _, sent) in enumerate(found):
        assert torch.equal(total, found[0][0]), "ranks have different sums"
        assert sent == ring_bytes(codec, elements, ranks, rank)
        if bound is not None:
            off = (total - given.sum(0)).abs()
            assert float(off.max()) > 0 and (off <= bound).all()


def test_sizes_that_depend_on_numbers_travel_with_them(pool: RankPool) -> None:
    pytest.importorskip("zstandard")
    for total, given, sent in pool.run(_summed, Codec(kind="zstd"), 5001, ranks=4):
        assert torch.allclose(total, given.sum(0), rtol=1e-5, atol=1e-5)
        assert 0 < sent < 2 * 3 / 4 * total.nbytes


def _repeated(codec: Codec, feeds_back: bool, times: int) -> float:
    """A rank's task: how far the mean of repeated sums is off, of the sum."""
    given = torch.randn(4, 500, generator=torch.Generator().manual_seed(1))
    group, timers = dist.group.WORLD, create_timers()
    assert group is not None
    sums = (
        PowerSgd(codec.rank, feeds_back, timers)
        if codec.rank
        else EncodedRing(coder_of(codec, timers), feeds_back)
    )
    total, mean = torch.empty(500), torch.zeros(500)
    for _ in range(times):
        # Gradients lie where they lay in the iteration before.
        total.copy_(given[dist.get_rank()])
        sums.all_reduce(total, group)
        mean += total / times
    return float((mean - given.sum(0)).norm() / given.sum(0).norm())


@pytest.mark.parametrize(
    "codec",
    [_INT4, Codec(kind="top-k", share=0.1), Codec(kind="power-sgd", rank=2)],
    ids=lambda c: c.kind,
)
def test_what_is_fed_back_arrives_in_the_end(pool: RankPool, codec: Codec) -> None:
    off, *others = pool.run(_repeated, codec, False, 60, ranks=4)
    assert set(others) == {off}, "ranks have different sums"
    fed, *_ = pool.run(_repeated, codec, True, 60, ranks=4)
    assert fed < off / 2


def _low_rank(rank: int) -> tuple[float, int]:
    """A rank's task: how far a sum of outer products is off, and what this rank sent for it."""
    thin = [
        torch.randn(2, 30, rank, generator=torch.Generator().manual_seed(seed)) for seed in range(2)
    ]
    matrices = [one[0] @ one[1].T for one in thin]
    own, group = matrices[dist.get_rank()].clone(), dist.group.WORLD
    assert group is not None
    sums, log = PowerSgd(2 * rank, False, create_timers()), CommunicationLog(lambda: "other")
    with logging(log):
        sums.all_reduce(own, group)
    off = float((own - sum(matrices)).abs().max())
    return off, sum(one.size_bytes for one in log.take(0))


def test_gradients_of_low_rank_are_summed_exactly_in_few_bytes(pool: RankPool) -> None:
    for off, size in pool.run(_low_rank, 3, ranks=2):
        assert off < 1e-3
        assert size == 2 * power_sgd_bytes(900, 6) == 2 * 30 * 6 * 4


def _run(corpus: Path, compression: Compression | None, **changes: Any) -> TrainingRun:
    run = small_run("gpt", corpus, microbatches=2)
    split = {"tensor_parallel": 2, "pipeline_parallel": 2}
    return replace(run, **{**split, "compression": compression, **changes})


def _steps(run: TrainingRun, scratch: Path) -> tuple[list[float], torch.Tensor]:
    """A rank's task: its losses, and its weights after them."""
    state = set_up(run, scratch)
    losses = []
    for _ in range(3):
        batches = [next(state.training) for _ in range(run.microbatches)]
        losses.append(iterate(state, batches))
    weights = [one.detach().reshape(-1) for one in state.module.parameters()]
    return losses, torch.cat(weights)


def test_no_codec_is_bit_identical_and_a_codec_is_not(
    pool: RankPool, enwiki: Path, tmp_path: Path
) -> None:
    plain, none, naive = (
        pool.run(_steps, _run(enwiki, compression), tmp_path, ranks=8, **_THREE_WAYS)
        for compression in (None, _NONE, _NAIVE)
    )
    for (losses, weights), (same_losses, same), (off_losses, off) in zip(
        plain, none, naive, strict=True
    ):
        np.testing.assert_array_equal(losses, same_losses)
        assert torch.equal(weights, same)
        # Three steps of Adam move a weight by three times the learning rate at most.
        assert 0 < float((weights - off).abs().max()) < 2 * 3 * 1.1e-4
        np.testing.assert_allclose(losses, off_losses, rtol=0.02)
    # Replicas of a stage have the same weights: ranks 0 and 2, 1 and 3, ...
    for rank in (0, 1, 4, 5):
        assert torch.equal(naive[rank][1], naive[rank + 2][1])


def _recorded(run: TrainingRun, scratch: Path) -> RankRecord:
    """A rank's task."""
    return train(run, scratch)[0]


def test_bytes_are_as_promised_and_coding_is_a_phase(
    pool: RankPool, enwiki: Path, tmp_path: Path
) -> None:
    parts, requests = [], []
    schemes = {
        "none": _NONE,
        "naive": _NAIVE,
        "gradients": Compression(label="g", data=_INT4, error_feedback=True),
    }
    for name, compression in schemes.items():
        run = _run(enwiki, compression, log_communication=True, iterations=2)
        records = pool.run(_recorded, run, tmp_path, ranks=8, **_THREE_WAYS)
        series = NicSeries(time_s=[0.0, 1e9], rx_bytes=[(0,), (1,)], tx_bytes=[(0,), (1,)])
        outcome = Outcome(tuple(records), series, (), 0.0)
        dataset = configuration_dataset(coordinates("gpt2-medium", "rdma", 8), outcome)
        parts.append(dataset.expand_dims(scheme=[name]))
        where = {"protocol": "rdma", "scheme": name}
        requests.append({"coordinates": where, "run": plain(asdict(run))})
        for record in records:
            phases = record.phase_time_s
            assert min(phases["other"]) >= 0
            assert min(phases["tensor all-reduce"]) > 0
            assert (min(phases["encode"]) > 0) == (min(phases["decode"]) > 0) == (name != "none")
    results = merge(parts).assign_attrs(requests=json.dumps(requests))
    table = sent_table(results)
    assert table.agree.all(), table
    share = table.share_percent.unstack()
    assert (share.loc["none"] == 100).all()
    # A quarter, and a scale of four bytes for each 256.
    assert share.loc["naive", ["data", "pipeline"]].tolist() == pytest.approx(
        [25 * 260 / 256] * 2, rel=0.02
    )
    assert share.loc["gradients", ["tensor", "pipeline"]].tolist() == [100, 100]
    assert share.loc["gradients", "data"] == pytest.approx(12.5 * 264 / 256, rel=0.04)
    times = time_table(results).loc["rdma"]
    assert times.loc["none", "gain_percent"] == 0
    assert times.loc["none", "encode"] == 0 < times.loc["naive", "encode"]


def _refused(runs: list[TrainingRun], scratch: Path) -> str:
    """A rank's task: what it says of its run."""
    try:
        set_up(runs[dist.get_rank()], scratch)
    except ReproError as error:
        return str(error)
    return ""


def test_ranks_that_disagree_are_refused(pool: RankPool, enwiki: Path, tmp_path: Path) -> None:
    one = replace(small_run("gpt", enwiki), compression=Compression(label="a", data=_INT8))
    other = replace(one, compression=Compression(label="a", data=_INT4))
    for runs in ([one, other], [one, replace(one, compression=None)]):
        for reason in pool.run(_refused, runs, tmp_path, ranks=2):
            assert reason.startswith("ranks disagree on compression: rank 1 has ")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"distributed_optimizer": True}, "distributed_optimizer is True; only all-reduces"),
        ({"sequence_parallel": True}, "sequence_parallel is True; only all-reduces"),
        ({"partition": Partition(2, 2, 2, 2)}, "has codecs for data, pipeline, tensor; with a"),
        (
            {"compression": Compression(label="w", data=_INT8, weights=_INT8)},
            "and without one for none",
        ),
    ],
)
def test_what_passes_elsewhere_is_refused(
    pool: RankPool, enwiki: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    run = replace(small_run("gpt", enwiki), **{"compression": _NAIVE, **changes})
    (reason, _) = pool.run(_refused, [run, run], tmp_path, ranks=2)
    assert words in reason


def test_gathered_weights_as_integers_are_those_of_a_quantised_partition(
    enwiki: Path, tmp_path: Path
) -> None:
    spread = Partition(4, 4, 4, 4)
    run = replace(
        small_run("gpt", enwiki, microbatches=2, iterations=2),
        partition=spread,
        log_communication=True,
    )
    own = RankPool()
    plain, encoded, quantised = (
        own.run(_recorded, one, tmp_path, ranks=4)
        for one in (
            run,
            replace(run, compression=Compression(label="w", weights=_INT8)),
            replace(run, partition=replace(spread, int8_weights=True)),
        )
    )
    own.close()
    for without, found, expected in zip(plain, encoded, quantised, strict=True):
        assert found.loss == expected.loss != without.loss
        assert min(found.phase_time_s["encode"]) > 0
        sizes, wanted = (
            [one.size_bytes for one in record.transfers if one.operation == "all_gather"]
            for record in (found, expected)
        )
        assert sizes == wanted
