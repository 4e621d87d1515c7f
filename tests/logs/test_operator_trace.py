"""Traces of operators: which microbenchmark stands for each call, and what divides an iteration."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from repro.catalog.studies.operator_benchmarks import benchmark_of
from repro.errors import ReproError
from repro.logs.operator_trace import HOST, HOST_OF_VIEW, read_operator_file, read_operator_trace


def _event(name: str, start: float, end: float, dims: list[Any] | None = None) -> dict[str, Any]:
    args = {} if dims is None else {"Input Dims": dims, "Input Strides": list(map(_dense, dims))}
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "tid": 1,
        "ts": start,
        "dur": end - start,
        "args": args,
    }


def _dense(dims: list[Any]) -> list[Any]:
    strides = [1]
    for size in reversed(dims[1:]):
        strides.insert(0, strides[0] * size)
    return strides[: len(dims)]


def _trace(*events: dict[str, Any]) -> str:
    return json.dumps({"traceEvents": list(events)})


_ITERATION = _trace(
    # A linear layer: a view and a product, which is what counts.
    _event("aten::linear", 0, 100, [[6, 4], [8, 4], [8]]),
    _event("aten::t", 1, 3, [[8, 4]]),
    _event("aten::addmm", 5, 95, [[8], [6, 4], [4, 8]]),
    _event("aten::copy_", 10, 20, [[6, 8], [8]]),
    _event("c10d::allreduce_", 110, 200, [[[1000]]]),
    _event("aten::mul_", 210, 220, [[48], []]),
    _event("aten::mul_", 230, 240, [[48], []]),
    _event("aten::unheard_of", 250, 260, [[48]]),
    # A view stands for those that it consists of.
    _event("aten::select", 270, 274, [[6, 8]]),
    _event("aten::as_strided", 271, 273, [[6, 8]]),
)


def test_an_operator_stands_for_what_it_calls() -> None:
    found = {(one.segment, one.operator): one for one in read_operator_trace(_ITERATION, ranks=2)}
    product = found[0, "product nn"]
    assert product.sizes == (6, 8, 4) and product.calls == 1
    assert product.traced_s == pytest.approx(90e-6)
    assert (0, "copy_/2") not in found
    assert found[1, "mul_/1"].calls == 2 and found[1, "mul_/1"].sizes == (48,)
    # What no microbenchmark stands for is named, without sizes.
    assert found[1, "unheard_of"].sizes == ()
    assert found[0, HOST].calls == 1 and found[1, HOST].calls == 3
    assert (0, HOST_OF_VIEW) not in found and found[1, HOST_OF_VIEW].calls == 1


def test_collectives_of_several_ranks_divide_an_iteration() -> None:
    rows = read_operator_trace(_ITERATION, ranks=2)
    (reduced,) = [one for one in rows if one.operator == "all_reduce"]
    assert (reduced.segment, reduced.sizes) == (0, (4000,))
    alone = read_operator_trace(_ITERATION)
    assert {one.segment for one in alone} == {0}
    assert "all_reduce" not in {one.operator for one in alone}


@pytest.mark.parametrize(
    ("name", "dims", "strides", "expected"),
    [
        ("mm", [[6, 4], [4, 8]], [[4, 1], [1, 4]], ("product nt", (6, 8, 4))),
        ("mm", [[6, 4], [4, 8]], [[1, 6], [8, 1]], ("product tn", (6, 8, 4))),
        (
            "baddbmm",
            [[2, 6, 8], [2, 6, 4], [2, 4, 8]],
            [[48, 8, 1], [24, 4, 1], [32, 1, 4]],
            ("batched product nt", (2, 6, 8, 4)),
        ),
        ("_softmax", [[2, 3, 5]], [[15, 5, 1]], ("_softmax", (6, 5))),
        ("add", [[6, 4], [6, 4]], [[4, 1], [4, 1]], ("add/2", (24,))),
        ("add", [[6, 4], [4]], [[4, 1], [1]], ("add row", (6, 4))),
        ("add", [[6, 4], [6, 1]], [[4, 1], [1, 1]], ("add/1", (24,))),
        ("copy_", [[6, 4], [6, 4]], [[4, 1], [1, 6]], ("copy_ strided", (24,))),
        ("cat", [[[6, 4], [1, 4]], []], [[[4, 1], [8, 1]], []], ("cat/1", (28,))),
        ("cat", [[[6, 4], [6, 4]], []], [[[4, 1], [8, 1]], []], ("cat strided", (48,))),
        ("_fused_adam_", [[[6, 4], [4]], [[6, 4], [4]]], [], ("_fused_adamw_/1", (28,))),
        ("index_select", [[9, 4], [], [7]], [[4, 1], [], [1]], ("index_select", (7, 4, 9))),
        (
            "_embedding_bag_forward_only",
            [[9, 4], [21], [7]],
            [[4, 1], [1], [1]],
            ("_embedding_bag", (7, 3, 4, 9)),
        ),
    ],
)
def test_sizes_of_calls(
    name: str, dims: list[Any], strides: list[Any], expected: tuple[str, tuple[int, ...]]
) -> None:
    args = {"Input Dims": dims, "Input Strides": strides}
    assert benchmark_of(f"aten::{name}", args) == expected


def test_sums_of_all_rows_are_told_from_others() -> None:
    args = {"Input Dims": [[3, 6, 4], [], []], "Input Strides": [[24, 4, 1], [], []]}
    for summed, expected in (
        ("[0, 1]", ("sum rows", (18, 4))),
        ("[0]", ("sum/1", (72,))),
        ("[-1]", ("sum/1", (72,))),
    ):
        found = benchmark_of("aten::sum", {**args, "Concrete Inputs": ["", summed, "True"]})
        assert found == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_trace(_event("aten::mm", 0, 1)), "no shapes; fix: profile with record_shapes=True"),
        (_trace(_event("step", 0, 1, [[1]])), "has no operators"),
        ("{}", "has no operators"),
    ],
)
def test_a_trace_that_says_too_little_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(ReproError, match=message) as caught:
        read_operator_file(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
