"""Let Megatron-Core, which names CUDA devices literally, run on CPU tensors inside one scope.

Used by rank processes on machines without a GPU only; with a GPU nothing is patched.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch.overrides import TorchFunctionMode

from repro.collectives.ring import ring_all_gather, ring_reduce_scatter

_CPU = torch.device("cpu")


class _CudaMeansCpu(TorchFunctionMode):
    """Turn `device="cuda"` into the CPU, and CUDA copies and type names into their CPU twins."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and str(device).startswith("cuda"):
            kwargs = {**kwargs, "device": _CPU}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # Megatron's optimizer sorts parameters by CUDA tensor type names.
            name = str(func(*args))
            # Scopes may be nested.
            return name if "cuda" in name else name.replace("torch.", "torch.cuda.", 1)
        return func(*args, **kwargs)


def _splits_as_numbers(
    dispatcher: Any, point: str, tokens_per_expert: torch.Tensor | None = None
) -> torch.Tensor | None:
    """What stands for the copy of numbers of tokens from the GPU, by a stream of its own: they are
    on the CPU, and only those that collectives are given have to become numbers."""
    for name in ("input_splits", "output_splits"):
        if isinstance(splits := getattr(dispatcher, name), torch.Tensor):
            setattr(dispatcher, name, splits.numpy())
    return tokens_per_expert


@contextmanager
def cpu_as_cuda() -> Iterator[None]:
    """Make the parts of `torch.cuda` that Megatron-Core calls mean the CPU, within this scope.

    Reduce-scatters and all-gathers are those of `repro.collectives.ring`.
    """
    with ExitStack() as stack:
        for module, name, replacement in (
            (dist, "reduce_scatter_tensor", ring_reduce_scatter),
            (dist, "all_gather_into_tensor", ring_all_gather),
            (param_and_grad_buffer, "dist_reduce_scatter_func", ring_reduce_scatter),
            (param_and_grad_buffer, "dist_all_gather_func", ring_all_gather),
            (torch.cuda, "current_device", lambda: _CPU),
            (torch.cuda, "synchronize", lambda *args, **kwargs: None),
            (torch.cuda, "current_stream", lambda *args: None),
            (torch.cuda, "Stream", lambda: None),
            (MoEAlltoAllTokenDispatcher, "_maybe_dtoh_and_synchronize", _splits_as_numbers),
        ):
            stack.enter_context(mock.patch.object(module, name, replacement))
        stack.enter_context(_CudaMeansCpu())
        yield
