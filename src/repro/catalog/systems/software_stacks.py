"""The software of a training step: what it fuses, launches and hides (`params/stacks.yaml`)."""

from typing import Literal

from pydantic import NonNegativeFloat

from repro.catalog.reading import Entry, read_yaml
from repro.paths import PARAMS


class Launches(Entry):
    """Kernels that the host launches for a layer and a micro batch.

    `quantised` are those that casts to a precision below bf16 add to each pass, `experts` those
    that routing adds to the forward pass, and `expert` those of each local expert.
    """

    forward: NonNegativeFloat
    backward: NonNegativeFloat
    quantised: NonNegativeFloat
    experts: NonNegativeFloat
    expert: NonNegativeFloat


class Stack(Entry):
    """One software.

    `sets` are parts of names of published sets that ran on it. `attention` is whose fused kernels
    it takes: `vendor`, those written for each generation (cuDNN, FlashAttention-3), or `flash2`.
    `hides_tensor` and `hides_experts` say that it can overlap what tensor and expert parallelism
    send with computing, where it is told to.
    `gradient_syncs_per_micro_batch` says that sharded gradients are reduced in each backward pass.
    """

    label: str
    sets: tuple[str, ...]
    attention: Literal["vendor", "flash2"]
    launches: Launches
    hides_tensor: bool
    hides_experts: bool
    gradient_syncs_per_micro_batch: bool
    source: str


def read_stacks() -> dict[str, Stack]:
    """All of them by name, in the order of the file."""
    stacks: dict[str, Stack] = read_yaml(PARAMS / "stacks.yaml", dict[str, Stack])
    return stacks


def stack_of(set_name: str) -> str:
    """The name of the software that a published set ran on; the first where none claims it."""
    known = read_stacks()
    claiming = (name for name, one in known.items() if any(part in set_name for part in one.sets))
    return next(claiming, next(iter(known)))
