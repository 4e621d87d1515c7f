"""Reader of PyTorch profiler (Kineto) traces: collectives of NCCL kernels and of gloo.

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

COLLECTIVES: Mapping[str, str] = {
    **dict.fromkeys(("allreduce", "all_reduce", "allreduce_coalesced"), "all_reduce"),
    **dict.fromkeys(
        ("all_gather", "_allgather_base", "_all_gather_base", "allgather_into_tensor_coalesced"),
        "all_gather",
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
# nccl-tests' name and bytes of an element type, by its name in c10 (kernels) and in C++ (gloo).
DTYPES: Mapping[str, tuple[str, int]] = {
    **dict.fromkeys(("Float", "float"), ("float", 4)),
    **dict.fromkeys(("Double", "double"), ("double", 8)),
    **dict.fromkeys(("Half", "c10::Half"), ("half", 2)),
    **dict.fromkeys(("BFloat16", "c10::BFloat16"), ("bfloat16", 2)),
    **dict.fromkeys(("Float8_e4m3fn", "c10::Float8_e4m3fn"), ("f8e4m3", 1)),
    **dict.fromkeys(("Float8_e5m2", "c10::Float8_e5m2"), ("f8e5m2", 1)),
    **dict.fromkeys(("Char", "signed char"), ("int8", 1)),
    # NCCL sends booleans as bytes.
    **dict.fromkeys(("Byte", "unsigned char", "Bool", "bool"), ("uint8", 1)),
    **dict.fromkeys(("Int", "int"), ("int32", 4)),
    **dict.fromkeys(("Long", "long", "long int"), ("int64", 8)),
}
_KERNEL = re.compile(r"\b[nr]ccl\w*Kernel")
_GLOO = "gloo:"
_CALL = "record_param_comms"


def read_kineto(text: str, ranks: int | None) -> Reading:
    """Read one rank's trace: a measurement per NCCL kernel and per gloo operation.

    By nccl-tests' definition, the size is the larger of a rank's input and output: all_gather's
    output, reduce_scatter's input. Coalesced operations count as one operation of their total size.
    An all-to-all of unequal parts has no such size and is skipped.

    The time is that of the kernel or of the gloo thread. It includes waiting for later ranks, so
    the minimum over repeats is closest to the transfer time. The calls (`record_param_comms`,
    `c10d::`) return before the transfer ends and are not read. gloo's send and recv are not read
    either, because their end is not that of the transfer. A trace shows the operations that ran:
    gloo runs a reduce-scatter as all-reduces.

    Parameters
    ----------
    text : str
        Content of the file.
    ranks
        Number of ranks if the trace does not contain it. NCCL kernels have it; for gloo it is
        known if all process groups have the same size.
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
        except (LookupError, TypeError, ValueError, ArithmeticError) as problem:
            reason = f"no {problem}" if isinstance(problem, KeyError) else problem
            skipped.append(f"traceEvents[{number}]: {name[:60]}: {reason}")
    if calls and not rows:
        # A trace has calls only if the GPU was not profiled, or if groups have one rank.
        kernels = any(
            isinstance(event, dict) and event.get("cat") == "kernel"
            for event in content["traceEvents"]
        )
        cause = "all of one rank" if kernels else "fix: profile with ProfilerActivity.CUDA"
        skipped.append(f"{calls} calls of collectives without kernels; {cause}")
    info = content.get("distributedInfo")
    if not rows and not skipped and isinstance(info, dict) and info.get("world_size") == 1:
        skipped.append("the trace has 1 rank, which exchanges nothing: there is nothing to judge")
    return rows, skipped


def _group_size(info: Any) -> int | None:
    """Return the ranks of a process group; None if sizes differ or the trace has none."""
    groups = info.get("pg_config") if isinstance(info, dict) else None
    found = groups if isinstance(groups, list) else []
    sizes = [group.get("pg_size") if isinstance(group, dict) else None for group in found]
    alike = bool(sizes) and isinstance(sizes[0], int) and all(one == sizes[0] for one in sizes)
    return sizes[0] if alike else None


def _collective(name: str) -> str:
    if name not in COLLECTIVES:
        raise ValueError(f"collective {name!r} is not supported")
    return COLLECTIVES[name]


def _dtype(name: str) -> tuple[str, int]:
    if name not in DTYPES:
        raise ValueError(f"element type {name!r} is not supported")
    return DTYPES[name]


def _kernel(event: Mapping[str, Any], args: Mapping[str, Any], ranks: int | None) -> Measurement:
    collective = _collective(args["Collective name"])
    dtype, width = _dtype(args["dtype"])
    if collective == "send_recv":
        # The trace has the size of the group, not the two ranks of the message.
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
        raise ValueError("its time is not that of the transfer")
    if "Input Dims" not in args:
        raise ValueError("has no sizes; fix: profile with record_shapes=True")
    if ranks is None:
        raise ValueError("the size of its process group is missing; fix: give --ranks N")
    (dtype, width), *others = {_dtype(name) for name in args["Input type"]}
    if others:
        raise ValueError("elements of several types")
    size_bytes = sum(math.prod(dims) for dims in args["Input Dims"]) * width
    if collective == "all_gather":
        size_bytes *= ranks
    return measured(collective, dtype, size_bytes, ranks, float(event["dur"]))
