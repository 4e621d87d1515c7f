"""Plans: how they broadcast, which can run, and what is said of those that cannot."""

from typing import Any

import numpy as np
import pytest
from examples import GPT, rows, workloads
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import ReproError
from repro.predict.workload import Plan, check, recompute_codes, valid, workload


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tensor_parallel": 3}, ("attention_heads 16", "tensor_parallel 3")),
        ({"pipeline_parallel": 5}, ("layers 24", "pipeline_parallel 5")),
        (
            {"pipeline_parallel": 2, "virtual_stages": 5},
            ("layers 24", "pipeline_parallel 2", "virtual_stages 5"),
        ),
        (
            {"micro_batch_size": 3, "data_parallel": 2},
            ("global_batch_size 64", "micro_batch_size 3", "data_parallel 2"),
        ),
        ({"virtual_stages": 2}, ("virtual_stages 2", "pipeline_parallel")),
        (
            {"pipeline_parallel": 4, "virtual_stages": 2, "micro_batch_size": 32},
            ("virtual_stages 2", "micro batches"),
        ),
        ({"tensor_parallel": 0}, ("tensor_parallel 0",)),
        ({"micro_batch_size": -1}, ("micro_batch_size -1",)),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, tuple) else "",
)
def test_a_plan_that_cannot_run_is_named(fields: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(ReproError) as raised:
        check(rows(Plan(**{"global_batch_size": 64, **fields})))
    message = str(raised.value)
    assert "\n" not in message
    for part in named:
        assert part in message


def test_the_first_plan_that_cannot_run_is_named() -> None:
    plan = Plan(global_batch_size=[64, 64, 65, 67], micro_batch_size=2)
    with pytest.raises(ReproError, match="global_batch_size 65 "):
        check(rows(plan))


def test_plans_that_can_run_are_not_refused() -> None:
    check(rows(Plan(global_batch_size=64, tensor_parallel=[1, 2, 4], pipeline_parallel=[1, 2, 4])))


@pytest.mark.parametrize("unknown", ["partial", ["none", "partial"], True])
def test_an_unknown_recompute_is_named(unknown: Any) -> None:
    with pytest.raises(ReproError, match=r"^unknown recompute '?(partial|True)'?; choose from"):
        workload("gpt", GPT, Plan(global_batch_size=1, recompute=unknown))


@pytest.mark.parametrize("unknown", [3, -1, 0.5])
def test_a_number_that_is_no_recompute_is_named(unknown: float) -> None:
    with pytest.raises(ReproError, match=f"recompute.*{unknown}"):
        workload("gpt", GPT, Plan(global_batch_size=1, recompute=unknown))


def test_recompute_by_name_and_by_number() -> None:
    names = ["none", "selective", "full"]
    assert recompute_codes(names).tolist() == [0, 1, 2]
    assert recompute_codes(recompute_codes(names)).tolist() == [0, 1, 2]


_ANY = st.integers(-1, 12)


@given(_ANY, _ANY, _ANY, _ANY, _ANY, _ANY)
def test_what_is_valid_is_what_is_not_refused(
    batch: int, micro_batch: int, d: int, t: int, p: int, v: int
) -> None:
    w = rows(Plan(batch, micro_batch, d, t, p, v))
    with np.errstate(all="ignore"):
        runs = bool(valid(w)[0])
        try:
            check(w)
            refused = False
        except ReproError:
            refused = True
    assert refused != runs


@given(workloads(most=3))
def test_drawn_workloads_can_run(w: Any) -> None:
    # What the other properties are tested on.
    assert valid(w).all()


def test_fields_broadcast() -> None:
    plan = Plan(global_batch_size=np.array([[8], [16], [24]]), data_parallel=np.array([1, 2, 4, 8]))
    flat, form = workload("gpt", GPT, plan).flat()
    assert form == (3, 4)
    assert flat.layers.tolist() == [24.0] * 12
    assert flat.micro_batches.reshape(form)[1].tolist() == [16, 8, 4, 2]
    assert flat.rows(slice(4, 6)).gpus.tolist() == [1, 2]


def test_the_logits_of_t5_see_the_decoders_tokens() -> None:
    shape = GPT.model_copy(update={"decoder_sequence_length": 128})
    plan = Plan(global_batch_size=8, micro_batch_size=4)
    assert rows(plan, shape, "t5").tokens.tolist() == [4 * 128]
    assert rows(plan).tokens.tolist() == [4 * 1024]
