"""A notebook's parameters: what papermill may pass, and what is refused."""

import pytest

from repro.catalog.selection import select
from repro.errors import ReproError


def test_all_is_what_the_profile_says() -> None:
    selection = select("strong_scaling")
    assert selection.gpus == (2, 4, 8)
    assert len(selection.models) == 4
    assert selection.protocols == ("rdma", "ipoib", "tcp")


@pytest.mark.parametrize("gpus", ["2,8", [2, 8], (2, 8), ["2", "8"]])
def test_gpus_may_be_written_in_several_ways(gpus: object) -> None:
    assert select("weak_scaling", gpus=gpus).gpus == (2, 8)  # type: ignore[arg-type]


def test_one_of_each() -> None:
    selection = select("weak_scaling", protocol="ipoib", models="bert-large", gpus=4)
    assert (selection.protocols, selection.models, selection.gpus) == (
        ("ipoib",),
        ("bert-large",),
        (4,),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"protocol": "quic"}, "unknown protocol 'quic'; choose from: rdma, ipoib, tcp, all"),
        ({"models": "gpt5"}, "unknown model 'gpt5'; choose from: gpt2-medium"),
        ({"gpus": 3}, "unknown number of GPUs '3'; choose from: 2, 4, 8"),
        ({"profile": "huge"}, "unknown profile 'huge'; choose from: default, ci"),
        ({"source": "dream"}, "unknown source 'dream'; choose from: paper, predicted, testbed"),
    ],
)
def test_unknown_values_are_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ReproError, match=message):
        select("weak_scaling", **arguments)


def test_batches_follow_the_papers() -> None:
    strong, weak = select("strong_scaling").experiment, select("weak_scaling").experiment
    assert [strong.micro_batch(gpus) for gpus in (2, 4, 8)] == [8, 4, 2]
    assert [weak.micro_batch(gpus) for gpus in (2, 4, 8)] == [4, 4, 4]
