"""The study at full scale: its volumes are those of a plan, and grow as the formulas say."""

import pytest

from repro.catalog.studies.communication import read_communication_study
from repro.catalog.studies.larger_models import gpt_shape
from repro.catalog.systems.clusters import cluster
from repro.errors import ReproError
from repro.predict.explore.jobs.traffic import traffic
from repro.studies.communication.predicted import predict_study, study_layout, volumes


def test_a_ranks_volumes_are_the_plans_over_its_ranks() -> None:
    shape, layout = gpt_shape("gpt3-13b"), study_layout(128)
    plan = traffic(shape, layout, cluster("dgx-a100").topology)
    mean = plan.groupby("group").total_bytes.sum() / layout.ranks
    found = volumes(shape, layout).groupby("role").sent_bytes.sum()
    assert found.to_dict() == pytest.approx(mean.to_dict())


def test_volumes_grow_with_sequences_and_width_and_not_with_replicas() -> None:
    study = read_communication_study().study
    found = predict_study().set_index(["model", "gpus", "sequence_length"])
    assert set(found.index.get_level_values("model")) == set(study.models)
    for name in study.models:
        own = gpt_shape(name)
        fewest = found.loc[name, min(study.gpus)]
        # The norms' gradients, once an iteration, do not grow.
        assert fewest.tensor_bytes[4096] / fewest.tensor_bytes[1024] == pytest.approx(4, rel=1e-2)
        assert fewest.pipeline_bytes[4096] == 4 * fewest.pipeline_bytes[1024]
        replicated = found.xs((name, own.sequence_length), level=("model", "sequence_length"))
        assert replicated.tensor_bytes.nunique() == 1
        assert replicated.data_bytes.is_monotonic_increasing


def test_gpus_that_do_not_fill_replicas_are_refused() -> None:
    with pytest.raises(ReproError, match="gpus 100: no multiple of the 64 of tp=8,pp=8"):
        study_layout(100)
