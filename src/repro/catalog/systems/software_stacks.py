"""Training software: kernel fusion, launch counts and overlap (`params/stacks.yaml`)."""

from typing import Literal

from pydantic import NonNegativeFloat

from repro.catalog.reading import Entry, read_params


class Launches(Entry):
    """Kernels that the host launches per layer and micro batch.

    Casts to a precision below bf16 add `quantised` to each pass. Routing adds `experts` to the
    forward pass, and `expert` for each local expert.
    """

    forward: NonNegativeFloat
    backward: NonNegativeFloat
    quantised: NonNegativeFloat
    experts: NonNegativeFloat
    expert: NonNegativeFloat


class Stack(Entry):
    """Training software and its properties.

    `sets` are parts of the names of published sets that ran on it. `attention` names its fused
    attention kernels: `vendor`, written for each generation (cuDNN, FlashAttention-3), or `flash2`.
    `hides_tensor` and `hides_experts` state whether it can overlap tensor- and expert-parallel
    communication with compute, if configured to. With `gradient_syncs_per_micro_batch`, sharded
    gradients are reduced in each backward pass. Gradients travel with `gradient_bytes`;
    with `gathers_low_precision`, parameters of linear layers are gathered in the layers' precision.
    With `fp32_shards`, sharded weights and gradients
    are in fp32, and the optimizer has no other copy. With `keeps_projections`, selective
    recomputation keeps outputs of projections only.
    """

    label: str
    sets: tuple[str, ...]
    attention: Literal["vendor", "flash2"]
    launches: Launches
    hides_tensor: bool
    hides_experts: bool
    gradient_syncs_per_micro_batch: bool
    gradient_bytes: Literal[2, 4]
    gathers_low_precision: bool
    fp32_shards: bool = False
    keeps_projections: bool = False
    source: str


def read_stacks() -> dict[str, Stack]:
    """Read all training software by name, in the order of the file."""
    stacks: dict[str, Stack] = read_params("stacks.yaml", dict[str, Stack])
    return stacks


def stack_of(set_name: str) -> str:
    """Return the name of the software that a published set ran on.

    If no software claims the set, it is the first of the file.
    """
    stacks = read_stacks()
    matches = (
        name for name, stack in stacks.items() if any(part in set_name for part in stack.sets)
    )
    return next(matches, next(iter(stacks)))
