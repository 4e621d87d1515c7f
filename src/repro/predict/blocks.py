"""Many rows evaluated in blocks that fit a cache."""

from collections.abc import Callable, Mapping
from typing import Protocol, Self, TypeVar

import numpy as np

from repro.predict.workload import Array

# Some fifty arrays of this size stay in a second-level cache.
_BLOCK_BYTES = 65536


class _Rows(Protocol):
    @property
    def layers(self) -> Array: ...

    def rows(self, chosen: slice, /) -> Self: ...


_Many = TypeVar("_Many", bound=_Rows)


def in_blocks(many: _Many, evaluate: Callable[[_Many], Mapping[str, Array]]) -> dict[str, Array]:
    """Evaluate flat rows block by block and join the results by name."""
    count, length = max(len(many.layers), 1), _BLOCK_BYTES // many.layers.itemsize
    blocks = [evaluate(many.rows(slice(at, at + length))) for at in range(0, count, length)]
    return {name: np.concatenate([block[name] for block in blocks], axis=-1) for name in blocks[0]}
