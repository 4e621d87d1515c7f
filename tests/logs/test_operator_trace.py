"""Traces of operators: which microbenchmark stands for each call, and what divides an iteration."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from repro.catalog.studies.operator_benchmarks import benchmark_of
from repro.errors import ReproError
from repro.logs.operator_trace import read_cpu_file, read_cpu_trace


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
    _event("aten::select", 270, 274, [[6, 8]]),
    _event("aten::as_strided", 271, 273, [[6, 8]]),
)


def test_an_operator_includes_what_it_calls() -> None:
    view, product, *others = read_cpu_trace(_ITERATION)
    assert (view.operator, view.sizes) == ("t", ())
    assert (product.operator, product.sizes) == ("product nn", (6, 8, 4))
    assert (product.launches, product.busy_s) == (1, pytest.approx(90e-6))
    # Views within the linear layer are calls, the copy within the product is none; operators
    # without a microbenchmark have no sizes.
    assert [(one.operator, one.sizes) for one in others] == [
        ("mul_/1", (48,)),
        ("mul_/1", (48,)),
        ("unheard_of", ()),
        ("as_strided", ()),
    ]


def test_precisions_are_those_of_the_operands_or_of_the_run() -> None:
    bf16 = _event("aten::relu", 0, 1, [[6, 4]])
    bf16["args"]["Input type"] = ["c10::BFloat16"]
    joined = _event("aten::cat", 2, 3, [[[6, 4], [6, 4]], []])
    joined["args"]["Input Strides"] = [[[4, 1], [4, 1]], []]
    text = _trace(bf16, joined)
    assert [one.precisions for one in read_cpu_trace(text)] == [("bf16",), ()]
    assert [one.precisions for one in read_cpu_trace(text, "fp32")] == [("bf16",), ("fp32",)]


def test_a_trace_of_a_gpu_is_refused() -> None:
    kernel = {**_event("some kernel", 5, 9), "cat": "kernel"}
    with pytest.raises(ReproError, match="it is a GPU's; fix: profile an iteration on a CPU"):
        read_cpu_trace(_trace(_event("aten::relu", 0, 1, [[6, 4]]), kernel))


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
        ("{}", "no shapes"),
    ],
)
def test_a_trace_that_says_too_little_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(ReproError, match=message) as caught:
        read_cpu_file(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
