"""The memory of an emulated GPU: a run counts what it takes, and ends when that is too much."""

from collections.abc import Callable
from typing import Any

from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import nn

from repro.observe.memory import peak_bytes, resident_bytes, trim_heap

# Of its allowance, what a run has when it begins to give back what it has freed.
_NEARLY_ALL = 0.9
# To which resident memory tells what is in use: there are whole pages, and blocks freed since.
_COUNTED_TO = 0.05


def keep_to_allowance(
    model: nn.Module, held_bytes: int, allowance_bytes: int
) -> Callable[[], None]:
    """Look after every layer's and the whole model's forward pass whether memory was enough.

    A GPU refuses the allocation that goes beyond its memory; here it succeeds, and what is counted
    shows it one layer later. Before it refuses, a GPU's allocator gives back what was freed and is
    kept for later, which grows by a fifth and more in a pipeline; so does a run here, before a
    layer's forward pass and before the backward pass, when there is little left.

    Parameters
    ----------
    held_bytes
        What the process held when the run began, as `reset_peak` says.
    allowance_bytes
        What the run may take beside it.

    Returns
    -------
    Callable
        Looks at any other time.

    Raises
    ------
    MemoryError
        From the model, or the returned function: the run's peak went over its allowance.
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
