"""Schemes at full scale: what must hold whatever the parameters, and limits that are known."""

from dataclasses import replace

import numpy as np
import pytest

from repro.catalog.studies.partitions import read_partition_study
from repro.studies.hierarchical_zero.predicted import (
    bytes_by_level,
    faster_links,
    memory_by_part,
    partitioned_training,
    predict_schemes,
)

_SCHEMES = read_partition_study().schemes


def test_three_levels_fit_where_an_eighth_of_the_gradients_do() -> None:
    found = predict_schemes()
    fewest = found.groupby("scheme").gpus.min()
    # 20.6 billion parameters: 41 GB of weights and 82 GB of gradients in every GCD of 64.
    assert "zero-1" not in fewest.index
    # 16 bytes a parameter, spread over all, beside all weights.
    assert fewest["zero-2"] == 16
    # 16 bytes a parameter over a node are 41 GB; three levels need the optimizer's over two.
    assert fewest["mics"] == 8
    assert fewest["three-level"] == 16
    assert (found.low <= found.tflops_per_gpu).all()
    assert (found.tflops_per_gpu <= found.high).all()


def test_without_links_to_wait_for_all_schemes_compute_alike() -> None:
    known = partitioned_training()
    free = replace(
        known.where, levels=tuple(replace(one, bytes_per_s=1e30) for one in known.where.levels)
    )
    nothing = known.parameters.model_copy(update={"collective_latency_s": 0.0})
    times = []
    for name in ("zero-3", "hpz", "mics", "three-level"):
        step = replace(known, where=free, parameters=nothing).step(_SCHEMES[name], 384)
        assert step is not None
        assert float(step.exposed[0]) < 1e-6
        times.append(float((step.time_s - step.optimizer)[0]))
    assert np.ptp(times) < 1e-9 * max(times)


def test_slow_links_favour_what_crosses_them_least() -> None:
    known = partitioned_training()
    slow = replace(known, where=faster_links(known.where, 1 / 64))
    speed = {name: float(slow.tflops(_SCHEMES[name], 384)[0]) for name in ("zero-3", "hpz", "mics")}
    assert speed["zero-3"] < speed["hpz"] < speed["mics"]


def test_overlap_only_hides() -> None:
    known = partitioned_training()
    bare = replace(known, setting=known.setting.model_copy(update={"overlap": "none"}))
    for name in ("zero-3", "zero-plus-plus", "three-level"):
        hidden, shown = (one.step(_SCHEMES[name], 384) for one in (known, bare))
        assert hidden is not None and shown is not None
        assert float(hidden.exposed[0]) < float(shown.exposed[0])
        wire = float((shown.gather + shown.reduce)[0])
        assert float(shown.exposed[0]) == pytest.approx(wire)


def test_levels_and_memory_are_the_closed_forms() -> None:
    sent = bytes_by_level(384).groupby(["scheme", "level"]).sent_bytes.sum()
    # Every micro batch of three levels stays inside nodes; the fabric sees an eighth, twice.
    psi = sum(unit for unit in memory_by_part(384).loc[["zero-1"], "weights"]) / 2
    assert sent["three-level", "fabric"] == pytest.approx(2 * 2 * psi / 8 * 47 / 48, rel=0.01)
    assert ("three-level", "package") in sent.index
