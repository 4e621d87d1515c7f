"""What a trace says of a GPU: calls in the order of the host, parts, waits, what lies within."""

import json
from typing import Any

import pytest

from repro.errors import ReproError
from repro.logs.operator_trace import PARTS, WAIT, read_gpu_trace

_FORWARD, _BACKWARD, _OPTIMIZER = PARTS


def _event(name: str, start: float, length: float, thread: int = 1, **args: Any) -> dict[str, Any]:
    known = {"Input Dims": [], "Input Strides": [], "Input type": []}
    given = {"ph": "X", "cat": "cpu_op", "ts": start, "dur": length, "tid": thread}
    return {**given, "name": name, "args": {**known, **args}}


def _kernel(launched_by: int, length: float) -> dict[str, Any]:
    args = {"External id": launched_by}
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": length, "tid": 7, "args": args}


def _operands(*shapes: list[int], types: list[str]) -> dict[str, Any]:
    strides = [[shape[-1], 1] if len(shape) == 2 else [1] * len(shape) for shape in shapes]
    return {"Input Dims": list(shapes), "Input Strides": strides, "Input type": types}


def _trace(*events: dict[str, Any]) -> str:
    return json.dumps({"traceEvents": list(events)})


_BF16, _FP32 = "c10::BFloat16", "float"
# Lists of tensors, of which the profiler does not say the shapes if they are long.
_LISTS = {"Input Dims": [[], []], "Input Strides": [[], []], "Input type": ["TensorList", "Scalar"]}
_ITERATION = _trace(
    # A view launches nothing; what a linear layer launches is its product's, with two kernels.
    _event("aten::view", 0, 1, **{"External id": 1}),
    _event("aten::linear", 2, 8, **{"External id": 2}),
    _event(
        "aten::addmm",
        3,
        6,
        **{"External id": 3},
        **_operands([64], [32, 16], [16, 64], types=[_BF16] * 3),
    ),
    _event("aten::fill_", 4, 1, **{"External id": 4}, **_operands([8], types=[_BF16])),
    _kernel(3, 5.0),
    _kernel(4, 2.0),
    _event(
        "aten::copy_",
        12,
        1,
        **{"External id": 5},
        **_operands([32, 64], [32, 64], [], types=[_FP32, _BF16, "Scalar"]),
    ),
    _kernel(5, 3.0),
    # Another thread goes back.
    _event("autograd::engine::evaluate_function: MmBackward0", 20, 9, thread=2),
    _event("aten::new_kind", 21, 2, thread=2, **{"External id": 6}),
    _kernel(6, 1.5),
    _event("aten::_fused_adamw_", 40, 2, **{"External id": 7}, **_LISTS),
    *3 * [_kernel(7, 1.0)],
    {**_event("cudaStreamSynchronize", 43, 1), "cat": "cuda_runtime"},
    _event("aten::_fused_adamw_", 45, 2, **{"External id": 8}, **_LISTS),
    _kernel(8, 1.0),
)


def test_calls_stand_in_the_hosts_order_with_all_that_they_launch() -> None:
    calls = read_gpu_trace(_ITERATION, "bf16", 4000)
    assert [(one.part, one.operator, one.launches) for one in calls] == [
        (_FORWARD, "product nn", 2),
        (_FORWARD, "copy_/2", 1),
        (_BACKWARD, "new_kind", 1),
        (_OPTIMIZER, "_fused_adamw_/1", 3),
        (_OPTIMIZER, WAIT, 0),
        (_OPTIMIZER, "_fused_adamw_/1", 1),
    ]
    assert [one.busy_s for one in calls] == pytest.approx(
        [7e-6, 3e-6, 1.5e-6, 3e-6, 0, 1e-6], rel=1e-9
    )


def test_sizes_and_precisions_are_those_that_were_multiplied_and_copied() -> None:
    product, copy, unknown, *_ = read_gpu_trace(_ITERATION, "bf16", 4000)
    assert (product.sizes, product.precisions) == ((32, 64, 16), ("bf16",))
    assert (copy.sizes, copy.precisions) == ((32 * 64,), ("fp32", "bf16"))
    assert (unknown.sizes, unknown.precisions) == ((), ())


def test_optimizers_steps_share_the_parameters_by_what_they_launch() -> None:
    steps = [one for one in read_gpu_trace(_ITERATION, "bf16", 4000) if "adamw" in one.operator]
    assert [one.sizes for one in steps] == [(3000,), (1000,)]
    assert {one.precisions for one in steps} == {("fp32",)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "no shapes; fix: profile with record_shapes=True"),
        (
            _trace(_event("aten::view", 0, 1, **{"External id": 1})),
            "nothing in it ran on a GPU; fix: profile with ProfilerActivity.CUDA",
        ),
    ],
)
def test_what_is_no_trace_of_a_gpu_is_refused(text: str, said: str) -> None:
    with pytest.raises(ReproError, match=said):
        read_gpu_trace(text, "bf16", 1)
