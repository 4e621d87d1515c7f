"""The study of operators and iterations (`params/operator_study.yaml`)."""

from typing import Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from repro.catalog.models.dlrm import DlrmShape, Table, random_tables
from repro.catalog.reading import Entry, choose, read_yaml
from repro.catalog.studies.operator_benchmarks import (
    BAGS,
    BATCHED_PRODUCTS,
    BY_ELEMENTS,
    BY_ROWS,
    CHANGES,
    LOOKUPS,
    PRODUCTS,
    STRIDED,
    Sizes,
)
from repro.paths import PARAMS

TOUCHED_ONCE = ("embedding", "_fused_adamw_/1", "linalg_vector_norm/1", "zero_/1")
# An iteration on one in so many of the samples tells the host's time.
FEWER_SAMPLES = 4
_Range = tuple[PositiveInt, PositiveInt]


class TableSets(Entry):
    """Random tables: their number, their rows, and the rows that a sample sums up, from and to."""

    count: _Range
    rows: _Range
    pooling: _Range

    def draw(self, number: int) -> tuple[Table, ...]:
        """The tables of one set; the same number gives the same."""
        return random_tables(number, self.count, self.rows, self.pooling)


class Grids(Entry):
    """Sizes that operators are measured at, all combinations of those they have; not of products.

    Attributes
    ----------
    elements
        Of element-wise work.
    rows, widths
        Of operators that go by rows.
    lookups, table_rows, embedding_widths, bags, poolings
        Of lookups; poolings are rows that a bag sums up, on average.
    """

    elements: tuple[PositiveInt, ...]
    rows: tuple[PositiveInt, ...]
    widths: tuple[PositiveInt, ...]
    lookups: tuple[PositiveInt, ...]
    table_rows: tuple[PositiveInt, ...]
    embedding_widths: tuple[PositiveInt, ...]
    bags: tuple[PositiveInt, ...]
    poolings: tuple[PositiveFloat, ...]

    def by_size(self, operator: str) -> tuple[Sizes, ...]:
        """Those of an operator of `operator_benchmarks`, an axis for each of its sizes."""
        tables = (self.embedding_widths, self.table_rows)
        if operator in BY_ROWS:
            return self.rows, self.widths
        if operator == BAGS:
            return (self.bags, self.poolings, *tables)
        return (self.lookups, *tables) if operator in LOOKUPS else (self.elements,)


class OperatorProfile(Grids):
    """What is measured of a CPU's operators, and how often.

    Attributes
    ----------
    sides
        m, n and k of products.
    batches, batched_sides
        Of batched products.
    changed_behind
        Bytes that a rank goes through from the lookup of rows to their change.
    moved
        Bytes that an operator moves before another one is launched.
    bytes
        Of collectives.
    repeats
        Of the whole.
    turns
        Of each model and plan in a repeat, of a few iterations each.
    ranks
        Those that recommendation models run on.
    table_sets
        Random sets of tables; each is measured in one of the repeats.
    """

    sides: tuple[PositiveInt, ...]
    batches: tuple[PositiveInt, ...]
    batched_sides: tuple[PositiveInt, ...]
    changed_behind: tuple[PositiveInt, ...]
    moved: tuple[PositiveInt, ...]
    bytes: tuple[PositiveInt, ...]
    repeats: PositiveInt
    turns: PositiveInt
    ranks: PositiveInt
    table_sets: PositiveInt

    def grids(self) -> dict[str, tuple[tuple[float, ...], ...]]:
        """The sizes of every operator of `operator_benchmarks` that one rank measures, an axis for each
        of its sizes."""
        products = {f"product {layout}": 3 * (self.sides,) for layout in PRODUCTS}
        batched = {
            f"batched product {layout}": (self.batches, *3 * (self.batched_sides,))
            for layout in BATCHED_PRODUCTS
        }
        by_elements = [
            f"{name}/{count}" for name, counts in BY_ELEMENTS.items() for count in counts
        ]
        others = {
            name: self.by_size(name) for name in (*BY_ROWS, *LOOKUPS, BAGS, *by_elements, *STRIDED)
        }
        changes = (*self.by_size(CHANGES), self.changed_behind)
        return {**products, **batched, **others, CHANGES: changes}


class OperatorStudy(Entry):
    """Models of the testbed by name with their micro batch, the bytes that operands and that states
    take turns in, recommendation models, and profiles by name."""

    models: tuple[str, ...]
    micro_batch_size: PositiveInt
    working_set_bytes: PositiveFloat
    states_bytes: PositiveFloat
    dlrm: DlrmShape
    tables: TableSets
    profiles: dict[str, OperatorProfile]

    @model_validator(mode="after")
    def _leaves_fewer_samples(self) -> Self:
        for name, samples in (
            ("micro_batch_size", self.micro_batch_size),
            ("dlrm: batch", self.dlrm.batch),
        ):
            if samples < FEWER_SAMPLES:
                raise ValueError(
                    f"{name} is {samples}; give {FEWER_SAMPLES} or more, for an iteration on one "
                    f"in {FEWER_SAMPLES} samples tells the host's time"
                )
        return self

    def operands(self, operator: str, sizes: Sizes) -> tuple[Sizes, float]:
        """The sizes of an operator's operands, and the bytes that these and results take turns in,
        or that are moved before rows of a table are used again."""
        if operator == CHANGES:
            return sizes[:-1], sizes[-1]
        return sizes, self.states_bytes if operator in TOUCHED_ONCE else self.working_set_bytes

    def profile(self, name: str) -> OperatorProfile:
        """One by name."""
        return choose("profile", name, self.profiles)


def read_operator_study() -> OperatorStudy:
    """The file."""
    value: OperatorStudy = read_yaml(PARAMS / "operator_study.yaml", OperatorStudy)
    return value
