"""Read traces of PyTorch's profiler (Kineto): the collectives that NCCL's kernels and gloo ran.

Keys and names are those of torch/csrc/profiler/util.h, of torch/csrc/distributed/c10d
(`RECORD_PARAM_COMMS` in ProcessGroupNCCL.cpp, `gloo:` in ProcessGroupGloo.cpp) and of c10's
ScalarType.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from repro.logs.measurements import POINT_TO_POINT, Measurement, Reading, measured
from repro.logs.truncated_json import read_json

_COLLECTIVES: Mapping[str, str] = {
    **dict.fromkeys(("allreduce", "all_reduce", "allreduce_coalesced"), "all_reduce"),
    **dict.fromkeys(
        ("all_gather", "_allgather_base", "allgather_into_tensor_coalesced"), "all_gather"
    ),
    **dict.fromkeys(
        ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
        "reduce_scatter",
    ),
    **dict.fromkeys(("all_to_all", "all_to_allv"), "all_to_all"),
    **dict.fromkeys(("broadcast", "_broadcast_oop"), "broadcast"),
    **dict.fromkeys(("reduce", "_reduce_oop"), "reduce"),
    **dict.fromkeys(("send", "recv"), "send_recv"),
}
# By the names of c10's ScalarType (kernels) and of C++ (gloo): nccl-tests' name, bytes.
_DTYPES: Mapping[str, tuple[str, int]] = {
    **dict.fromkeys(("Float", "float"), ("float", 4)),
    **dict.fromkeys(("Double", "double"), ("double", 8)),
    **dict.fromkeys(("Half", "c10::Half"), ("half", 2)),
    **dict.fromkeys(("BFloat16", "c10::BFloat16"), ("bfloat16", 2)),
    **dict.fromkeys(("Float8_e4m3fn", "c10::Float8_e4m3fn"), ("f8e4m3", 1)),
    **dict.fromkeys(("Float8_e5m2", "c10::Float8_e5m2"), ("f8e5m2", 1)),
    **dict.fromkeys(("Char", "signed char"), ("int8", 1)),
    # NCCL moves truth values as bytes.
    **dict.fromkeys(("Byte", "unsigned char", "Bool", "bool"), ("uint8", 1)),
    **dict.fromkeys(("Int", "int"), ("int32", 4)),
    **dict.fromkeys(("Long", "long", "long int"), ("int64", 8)),
}
_KERNEL = re.compile(r"\b[nr]ccl\w*Kernel")
_GLOO = "gloo:"
_CALL = "record_param_comms"


def read_kineto(text: str, ranks: int | None) -> Reading:
    """Measurements of one rank's trace: a row per kernel of NCCL and per operation of gloo.

    Size is by nccl-tests' definition the larger one of what a rank hands over and gets, times the
    element's bytes: all_gather's output, reduce_scatter's input. Coalesced operations count as one
    of their sizes' sum. An all-to-all of unequal parts has no such size and is skipped.

    The time is the kernel's or the gloo thread's. It holds the waiting for ranks that came later,
    so that over repeats the least is nearest to what the links need. The calls themselves
    (`record_param_comms`, `c10d::`) return before the transfer ends and are not read, nor are
    gloo's send and recv, which end when the data left or after a wait of any length. A trace
    shows what ran: gloo makes all-reduces of a reduce-scatter.

    Parameters
    ----------
    text : str
        The file's content.
    ranks
        Used where the trace does not say. It says it for each kernel of NCCL, and for gloo where
        all process groups have one size.
    """
    skipped: list[str] = []
    content = read_json(text, "traceEvents", skipped)
    group = _group_size(content.get("distributedInfo")) or ranks
    rows: list[Measurement] = []
    calls = 0
    for number, event in enumerate(content.get("traceEvents", [])):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        name, args = str(event.get("name")), event.get("args") or {}
        calls += name == _CALL
        try:
            if event.get("cat") == "kernel" and (_KERNEL.search(name) or "Collective name" in args):
                rows.append(_kernel(event, args, ranks))
            elif name.startswith(_GLOO):
                rows.append(_gloo(event, args, group))
        except (KeyError, TypeError, ValueError) as problem:
            reason = f"no {problem}" if isinstance(problem, KeyError) else problem
            skipped.append(f"traceEvents[{number}]: {name[:60]}: {reason}")
    if calls and not rows:
        # They are all that a trace has of NCCL without the GPU, and of groups of one rank.
        kernels = any(
            isinstance(event, dict) and event.get("cat") == "kernel"
            for event in content["traceEvents"]
        )
        mend = "of one rank" if kernels else "profile the GPU as well"
        skipped.append(f"{calls} calls of collectives without kernels; {mend}")
    return rows, skipped


def _group_size(info: Mapping[str, Any] | None) -> int | None:
    """The ranks of the trace's process groups; None where they differ or are not said."""
    sizes = {group.get("pg_size") for group in (info or {}).get("pg_config", [])}
    return sizes.pop() if len(sizes) == 1 else None


def _collective(name: str) -> str:
    if name not in _COLLECTIVES:
        raise ValueError(f"{name!r} is none of the collectives that are read")
    return _COLLECTIVES[name]


def _dtype(name: str) -> tuple[str, int]:
    if name not in _DTYPES:
        raise ValueError(f"elements of type {name!r} have no size here")
    return _DTYPES[name]


def _kernel(event: Mapping[str, Any], args: Mapping[str, Any], ranks: int | None) -> Measurement:
    collective = _collective(args["Collective name"])
    dtype, width = _dtype(args["dtype"])
    if collective == "send_recv":
        # The group is all that could have met.
        n = POINT_TO_POINT
    else:
        n = int(args["Group size"] if ranks is None else args.get("Group size", ranks))
    elements = {side: int(args[f"{side} msg nelems"]) for side in ("In", "Out")}
    if collective == "all_to_all":
        for side, total in elements.items():
            # A list of more than 30 parts ends in "...".
            parts = set(re.findall(r"\d+", str(args.get(f"{side} split size", ""))))
            if parts and {int(part) * n for part in parts} != {total}:
                raise ValueError("an all-to-all of unequal parts")
    size_bytes = max(elements.values()) * width
    return measured(collective, dtype, size_bytes, n, float(event["dur"]))


def _gloo(event: Mapping[str, Any], args: Mapping[str, Any], ranks: int | None) -> Measurement:
    collective = _collective(str(event["name"]).removeprefix(_GLOO))
    if collective == "send_recv":
        raise ValueError("does not span the transfer")
    if "Input Dims" not in args:
        raise ValueError("has no sizes; profile with record_shapes=True")
    if ranks is None:
        raise ValueError("its process group's size is not known; give it (ranks=N)")
    (dtype, width), *others = {_dtype(name) for name in args["Input type"]}
    if others:
        raise ValueError("elements of several types")
    size_bytes = sum(math.prod(dims) for dims in args["Input Dims"]) * width
    if collective == "all_gather":
        size_bytes *= ranks
    return measured(collective, dtype, size_bytes, ranks, float(event["dur"]))
