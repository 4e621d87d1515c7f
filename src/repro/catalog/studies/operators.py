"""Study of operators and iterations on CPUs (`params/operator_study.yaml`)."""

from typing import Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from repro.catalog.models.dlrm import DlrmShape, Table, random_tables
from repro.catalog.reading import Entry, choose, read_params
from repro.catalog.studies.operator_benchmarks import (
    BATCHED_MATMUL_LAYOUTS,
    BY_ELEMENTS,
    BY_ROWS,
    EMBEDDING_BAG,
    INDEX_ADD,
    LOOKUPS,
    MATMUL_LAYOUTS,
    STRIDED,
    Sizes,
)

# Operators whose operands an iteration uses once.
TOUCHED_ONCE = ("embedding", "_fused_adamw_/1", "linalg_vector_norm/1", "zero_/1")
# An iteration on 1/SAMPLE_DIVISOR of the samples determines the host's time.
SAMPLE_DIVISOR = 4
_Range = tuple[PositiveInt, PositiveInt]


class TableSets(Entry):
    """Ranges of random tables: their number, their rows, and the rows that a sample sums."""

    count: _Range
    rows: _Range
    pooling: _Range

    def draw(self, number: int) -> tuple[Table, ...]:
        """Return the tables of one set; the number is the seed."""
        return random_tables(number, self.count, self.rows, self.pooling)


class Grids(Entry):
    """Grids of sizes for operators other than matmuls; all combinations are measured.

    Attributes
    ----------
    elements
        Elements of element-wise operators.
    rows, widths
        Sizes of row-wise operators.
    lookups, table_rows, embedding_widths, bags, poolings
        Sizes of lookups; poolings are average rows per bag.
    """

    elements: tuple[PositiveInt, ...]
    rows: tuple[PositiveInt, ...]
    widths: tuple[PositiveInt, ...]
    lookups: tuple[PositiveInt, ...]
    table_rows: tuple[PositiveInt, ...]
    embedding_widths: tuple[PositiveInt, ...]
    bags: tuple[PositiveInt, ...]
    poolings: tuple[PositiveFloat, ...]

    def size_axes(self, operator: str) -> tuple[Sizes, ...]:
        """Return the sizes of an operator of `operator_benchmarks`, by axis."""
        tables = (self.embedding_widths, self.table_rows)
        if operator in BY_ROWS:
            return self.rows, self.widths
        if operator == EMBEDDING_BAG:
            return (self.bags, self.poolings, *tables)
        return (self.lookups, *tables) if operator in LOOKUPS else (self.elements,)


class OperatorProfile(Grids):
    """Sizes and repeats for a CPU's operators.

    Attributes
    ----------
    sides
        Values of m, n and k of matmuls.
    batches, batched_sides
        Batches and sides of batched matmuls.
    changed_behind
        Bytes that a rank uses between the lookup of rows and their change.
    moved
        Bytes that an operator moves before another one is launched.
    bytes
        Sizes of collectives.
    repeats
        Repeats of the whole measurement.
    turns
        Rounds per repeat; in each, every model and plan runs a few iterations.
    ranks
        Number of ranks of recommendation models.
    table_sets
        Number of random sets of tables; each is measured in one of the repeats.
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
        """Return the sizes of every benchmark that one rank measures, by operator and axis."""
        products = {f"product {layout}": 3 * (self.sides,) for layout in MATMUL_LAYOUTS}
        batched = {
            f"batched product {layout}": (self.batches, *3 * (self.batched_sides,))
            for layout in BATCHED_MATMUL_LAYOUTS
        }
        by_elements = [
            f"{name}/{count}" for name, counts in BY_ELEMENTS.items() for count in counts
        ]
        others = {
            name: self.size_axes(name)
            for name in (*BY_ROWS, *LOOKUPS, EMBEDDING_BAG, *by_elements, *STRIDED)
        }
        changes = (*self.size_axes(INDEX_ADD), self.changed_behind)
        return {**products, **batched, **others, INDEX_ADD: changes}


class OperatorStudy(Entry):
    """Models and recommendation models, with the sizes of their operators.

    `models` of the testbed have `micro_batch_size`. Operands rotate through `working_set_bytes`,
    and those that an iteration uses once through `states_bytes`.
    """

    models: tuple[str, ...]
    micro_batch_size: PositiveInt
    working_set_bytes: PositiveFloat
    states_bytes: PositiveFloat
    dlrm: DlrmShape
    tables: TableSets
    profiles: dict[str, OperatorProfile]

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        for name, samples in (
            ("micro_batch_size", self.micro_batch_size),
            ("dlrm: batch", self.dlrm.batch),
        ):
            if samples < SAMPLE_DIVISOR:
                raise ValueError(
                    f"{name} is {samples}; choose {SAMPLE_DIVISOR} or more, because a fraction "
                    f"1/{SAMPLE_DIVISOR} is run too"
                )
        return self

    def operands(self, operator: str, sizes: Sizes) -> tuple[Sizes, float]:
        """Return the sizes of an operator's operands, and the bytes through which tensors rotate.

        For `index_add_`, these are the bytes used between the lookup and the change of rows.
        """
        if operator == INDEX_ADD:
            return sizes[:-1], sizes[-1]
        return sizes, self.states_bytes if operator in TOUCHED_ONCE else self.working_set_bytes

    def profile(self, name: str) -> OperatorProfile:
        """Return a profile by name; an unknown name is a `ReproError` that lists the choices."""
        return choose("profile", name, self.profiles)


def read_operator_study() -> OperatorStudy:
    """Read `params/operator_study.yaml`."""
    value: OperatorStudy = read_params("operator_study.yaml", OperatorStudy)
    return value
