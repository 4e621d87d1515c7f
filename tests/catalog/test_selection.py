"""A notebook's parameters: what papermill may pass, and what is refused."""

import pytest
from pydantic import ValidationError

from repro.catalog.studies.collectives import select_sweep
from repro.catalog.studies.experiments import Batch, Experiment, experiment
from repro.catalog.studies.selection import select
from repro.errors import ReproError


def test_all_is_what_the_profile_says() -> None:
    selection = select("strong_scaling")
    assert selection.gpus == (2, 4, 8)
    assert len(selection.models) == 4
    assert selection.protocols == ("rdma", "ipoib", "tcp")


def test_open_models_are_asked_for_by_name() -> None:
    assert select("weak_scaling", models="bert-large,mixtral-8x7b").models[1] == "mixtral-8x7b"
    assert "mixtral-8x7b" not in select("weak_scaling").models


@pytest.mark.parametrize("gpus", ["2,8", [2, 8], (2, 8), ["2", "8"]])
def test_gpus_may_be_written_in_several_ways(gpus: object) -> None:
    assert select("weak_scaling", gpus=gpus).gpus == (2, 8)  # type: ignore[arg-type]


def test_what_is_named_twice_is_run_once() -> None:
    selection = select("weak_scaling", models="bert-large,bert-large", gpus="8,8")
    assert (selection.models, selection.gpus) == (("bert-large",), (8,))


def test_values_of_a_sweep_ascend_so_that_memory_does() -> None:
    entry = experiment("data_batches").model_dump()
    entry["profiles"]["default"]["values"] = [256, 64, 16]
    with pytest.raises(ValidationError, match="profile default: values do not ascend; fix: sort"):
        Experiment.model_validate(entry)


def test_one_of_each() -> None:
    selection = select("weak_scaling", protocol="ipoib", models="bert-large", gpus=4)
    assert (selection.protocols, selection.models, selection.gpus) == (
        ("ipoib",),
        ("bert-large",),
        (4,),
    )


def test_real_nodes_have_more_protocols() -> None:
    assert select("weak_scaling", "cluster", "roce").protocols == ("roce",)
    assert select("weak_scaling", "cluster").protocols == ("rdma", "ipoib", "tcp")
    assert select_sweep("pinnacles", "cluster", "rdma-host").protocols == ("rdma-host",)
    with pytest.raises(ReproError, match="unknown protocol 'roce'"):
        select_sweep("pinnacles", "testbed", "roce")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"protocol": "quic"}, "unknown protocol 'quic'; choose from: rdma, ipoib, tcp, all"),
        ({"models": "gpt5"}, "unknown model 'gpt5'; choose from: gpt2-medium"),
        ({"gpus": 3}, "unknown number of GPUs '3'; choose from: 2, 4, 8"),
        ({"profile": "huge"}, "unknown profile 'huge'; choose from: default, thorough, ci"),
        (
            {"source": "dream"},
            "unknown source 'dream'; choose from: paper, reference, predicted, testbed",
        ),
    ],
)
def test_unknown_values_are_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ReproError, match=message):
        select("weak_scaling", **arguments)


def test_batches_follow_the_papers() -> None:
    strong, weak = select("strong_scaling").experiment, select("weak_scaling").experiment
    assert [strong.batch("bert-large", gpus) for gpus in (2, 8)] == [Batch(16, 8), Batch(16, 2)]
    assert [weak.batch("bert-large", gpus) for gpus in (2, 8)] == [Batch(8, 4), Batch(32, 4)]
    pipelines = select("model_parallelism").experiment
    for model, batches in {"gpt2-medium": (32, 64, 128), "gpt2-large": (16, 32, 64)}.items():
        found = [pipelines.batch(model, gpus).global_batch_size for gpus in (2, 4, 8)]
        assert tuple(found) == batches
    assert select("cluster_b").experiment.batch("gpt2-large", 16) == Batch(192, 12)


def test_one_stage_per_gpu_or_as_many_as_asked_for() -> None:
    assert select("model_parallelism").experiment.stages(8) == 8
    asked = select("model_parallelism", pipeline_parallel=2, micro_batch_size=8)
    assert asked.experiment.stages(8) == 2
    assert asked.batches("bert-large", 8) == {None: Batch(128, 8)}
    assert select("weak_scaling").experiment.stages(8) == 1


def test_a_sweep_leaves_out_what_does_not_divide() -> None:
    swept = select("micro_batches", source="predicted", profile="predicted")
    assert swept.batches("gpt2-large", 8) == {
        value: Batch(64, value) for value in (1, 2, 4, 8, 16, 32, 64)
    }


def test_protocols_are_the_clusters() -> None:
    assert select("data_batches").protocols == ("rdma",)
    assert select("data_batches", protocol="tcp").protocols == ("tcp",)
    with pytest.raises(ReproError, match="unknown protocol 'tcp'; choose from: rdma, all"):
        select("cluster_b", protocol="tcp")


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("model_parallelism", {"micro_batch_size": 7}, "micro_batch_size 7: .*gpt2-medium does"),
        ("model_parallelism", {"pipeline_parallel": 3}, "pipeline_parallel 3: .*does not divide"),
        (
            "micro_batches",
            {"micro_batch_size": 4},
            "micro_batch_size 4: the experiment sweeps it; fix",
        ),
    ],
)
def test_batches_that_do_not_divide_are_refused(
    name: str, asked: dict[str, int], message: str
) -> None:
    with pytest.raises(ReproError, match=message):
        select(name, **asked)  # type: ignore[arg-type]
