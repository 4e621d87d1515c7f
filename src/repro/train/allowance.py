"""Memory limit of an emulated GPU: a run measures its memory, and ends if it exceeds the limit."""

from collections.abc import Callable
from typing import Any

from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import nn

from repro.observe.memory import peak_bytes, resident_bytes, trim_heap

# Fraction of the limit at which a run begins to return freed memory to the system.
_NEARLY_ALL = 0.9
# Tolerance of resident memory as a measure of memory in use: it has whole pages and freed blocks.
_COUNTED_TO = 0.05


def keep_to_allowance(
    model: nn.Module, held_bytes: int, allowance_bytes: int
) -> Callable[[], None]:
    """Check the memory limit after every layer's and the whole model's forward pass.

    A GPU refuses the allocation that exceeds its memory; here it succeeds, and the check fails one
    layer later. Before it refuses, a GPU's allocator frees its cache, which grows by a fifth and
    more in a pipeline. A run here does the same when little memory is left, before a layer's
    forward pass and before the backward pass.

    Parameters
    ----------
    held_bytes
        Memory of the process when the run began, from `reset_peak`.
    allowance_bytes
        Memory that the run may take in addition.

    Returns
    -------
    Callable
        Function that checks at any other time.

    Raises
    ------
    MemoryError
        From the model, or the returned function: the run's peak exceeded its limit.
    """

    def look(*_: Any) -> None:
        taken = peak_bytes() - held_bytes
        if taken > (1 + _COUNTED_TO) * allowance_bytes:
            raise MemoryError(
                f"the run has taken {taken / 1e6:.0f} MB, the emulated GPU has "
                f"{allowance_bytes / 1e6:.0f} MB for it"
            )

    def make_room(*_: Any) -> None:
        if resident_bytes() - held_bytes > _NEARLY_ALL * allowance_bytes:
            trim_heap()

    for layer in model.modules():
        if isinstance(layer, TransformerLayer):
            layer.register_forward_pre_hook(make_room)
            layer.register_forward_hook(look)
    model.register_forward_hook(look)
    model.register_forward_hook(make_room)
    return look
