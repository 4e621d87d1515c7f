"""Shapes of small deep learning recommendation models (DLRM).

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems",
2019.
"""

from dataclasses import dataclass

import numpy as np
from pydantic import PositiveInt

from repro.catalog.reading import Entry


class DlrmShape(Entry):
    """Dense layers and inputs of a recommendation model.

    Attributes
    ----------
    dense
        Numerical (non-categorical) features of a sample.
    width
        Columns of each embedding table.
    bottom, top
        Hidden widths of the layers below and above the interaction.
    batch
        Samples of an iteration.
    """

    dense: PositiveInt
    width: PositiveInt
    bottom: tuple[PositiveInt, ...]
    top: tuple[PositiveInt, ...]
    batch: PositiveInt


@dataclass(frozen=True)
class Table:
    """Embedding table: its number of rows, and how many of them each sample sums."""

    rows: int
    pooling: int


def random_tables(
    seed: int, count: tuple[int, int], rows: tuple[int, int], pooling: tuple[int, int]
) -> tuple[Table, ...]:
    """Draw tables: their number is uniform, their rows and pooling are log-uniform."""
    draw = np.random.default_rng(seed)
    number = int(draw.integers(count[0], count[1] + 1))
    sizes, sums = (
        np.exp(draw.uniform(np.log(least), np.log(most), number)) for least, most in (rows, pooling)
    )
    return tuple(Table(int(a), max(1, round(b))) for a, b in zip(sizes, sums, strict=True))
