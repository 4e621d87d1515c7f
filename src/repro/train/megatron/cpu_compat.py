"""Patches within which Megatron-Core, which names CUDA devices literally, runs on CPU tensors.

Only rank processes on machines without a GPU use them; with a GPU nothing is patched.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cache, wraps
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch._C._distributed_c10d import ProcessGroupGloo, Store
from torch.distributed import distributed_c10d

from repro.collectives.ring import ring_all_gather, ring_reduce_scatter

_CPU = torch.device("cpu")


# Functions that make tensors on a given device. Each is replaced separately, because a mode that
# sees every call of torch would take a seventh of an iteration.
_MAKING = (
    *("tensor", "as_tensor", "empty", "zeros", "ones", "full", "arange", "rand", "randn"),
    *("empty_like", "zeros_like", "ones_like", "full_like"),
)
_type_name = torch.Tensor.type


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the function with `device="cuda"` as the CPU."""

    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = _CPU
        return make(*args, **kwargs)

    return made


def _cuda_type(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return a CUDA tensor type name, by which Megatron's optimizer sorts parameters."""
    found = _type_name(tensor, *args, **kwargs)
    return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) else found


def _unless_alone(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return an all-reduce that does nothing in a group of one rank.

    Megatron-Core sums losses and norms over tensor-parallel groups of any size. Each call through
    gloo's thread would take a tenth of a small model's compute time.
    """

    @wraps(all_reduce)
    def reduced(
        tensor: torch.Tensor,
        op: Any = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Any:
        if not async_op and dist.get_world_size(group) == 1:
            return None
        return all_reduce(tensor, op, group, async_op)

    return reduced


def _splits_as_numbers(
    dispatcher: Any, point: str, tokens_per_expert: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Replace the copy of token counts from the GPU in a separate stream.

    The counts are on the CPU already; only those for collectives have to become numbers.
    """
    for name in ("input_splits", "output_splits"):
        if isinstance(splits := getattr(dispatcher, name), torch.Tensor):
            setattr(dispatcher, name, splits.numpy())
    return tokens_per_expert


@cache
def _devices(interfaces: str | None) -> list[ProcessGroupGloo.Device]:
    """Return gloo's network devices, chosen as torch does."""
    if not interfaces:
        return [ProcessGroupGloo.create_default_device()]
    return [ProcessGroupGloo.create_device(interface=name) for name in interfaces.split(",")]


class _OnOneDevice(ProcessGroupGloo):
    """Gloo group that shares one socket thread with all groups of this process.

    Otherwise each group has its own thread, which wakes up 100 times per second even if idle. With
    the eighteen groups of Megatron-Core, every rank would lose 3 % of a core.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._devices = _devices(os.environ.get("GLOO_SOCKET_IFNAME"))
        options._threads = 2 * len(options._devices)
        super().__init__(store, rank, size, options)


@contextmanager
def cpu_as_cuda() -> Iterator[None]:
    """Replace the parts of `torch.cuda` that Megatron-Core calls by the CPU, within this scope.

    Reduce-scatters and all-gathers are those of `repro.collectives.ring`. Groups that are made
    within the scope share a thread for their sockets.
    """
    replacements: list[tuple[Any, str, Any]] = [
        *((torch, name, _on_cpu(getattr(torch, name))) for name in _MAKING),
        (torch.Tensor, "cuda", lambda tensor, *args, **kwargs: tensor),
        (torch.Tensor, "type", _cuda_type),
        (distributed_c10d, "ProcessGroupGloo", _OnOneDevice),
        (dist, "all_reduce", _unless_alone(dist.all_reduce)),
        (dist, "reduce_scatter_tensor", ring_reduce_scatter),
        (dist, "all_gather_into_tensor", ring_all_gather),
        (param_and_grad_buffer, "dist_reduce_scatter_func", ring_reduce_scatter),
        (param_and_grad_buffer, "dist_all_gather_func", ring_all_gather),
        (torch.cuda, "current_device", lambda: _CPU),
        (torch.cuda, "synchronize", lambda *args, **kwargs: None),
        (torch.cuda, "current_stream", lambda *args: None),
        (torch.cuda, "Stream", lambda: None),
        (MoEAlltoAllTokenDispatcher, "_maybe_dtoh_and_synchronize", _splits_as_numbers),
    ]
    with ExitStack() as stack:
        for owner, name, replacement in replacements:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield
