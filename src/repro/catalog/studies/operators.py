"""Study of operators and iterations on this machine's CPU (`params/operator_study.yaml`)."""

from collections.abc import Mapping

from pydantic import PositiveInt

from repro.catalog.models.dlrm import Table, random_tables
from repro.catalog.reading import Entry, choose, read_params
from repro.catalog.studies.operator_benchmarks import BY_ROWS, LOOKUPS, Sizes

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
    """Grids of sizes at which operators are measured, in all combinations.

    Attributes
    ----------
    sides
        Values of m, n and k of matmuls, by precision.
    batches, batched_sides
        Batches and sides of batched matmuls, by precision.
    elements
        Elements of element-wise operators.
    rows, widths
        Sizes of row-wise operators.
    lookups, table_rows, embedding_widths
        Sizes of lookups.
    """

    sides: Mapping[str, tuple[PositiveInt, ...]]
    batches: Mapping[str, tuple[PositiveInt, ...]]
    batched_sides: Mapping[str, tuple[PositiveInt, ...]]
    elements: tuple[PositiveInt, ...]
    rows: tuple[PositiveInt, ...]
    widths: tuple[PositiveInt, ...]
    lookups: tuple[PositiveInt, ...]
    table_rows: tuple[PositiveInt, ...]
    embedding_widths: tuple[PositiveInt, ...]

    def grid(self, operator: str, precision: str) -> tuple[Sizes, ...]:
        """Return the sizes at which an operator of `operator_benchmarks` is measured, by axis."""
        if operator.startswith("product"):
            return 3 * (self.sides[precision],)
        if operator.startswith("batched product"):
            return (self.batches[precision], *3 * (self.batched_sides[precision],))
        if operator in BY_ROWS:
            return self.rows, self.widths
        if operator in LOOKUPS:
            return self.lookups, self.embedding_widths, self.table_rows
        return (self.elements,)


class OperatorProfile(Grids):
    """Sizes of a CPU's operators; operators and iterations are measured in `rounds` rounds."""

    rounds: PositiveInt


class OperatorStudy(Entry):
    """Models of the testbed whose iterations are predicted from their operators.

    The first micro batch determines the host's time; the others are judged.
    """

    models: tuple[str, ...]
    micro_batches: tuple[PositiveInt, ...]
    profiles: dict[str, OperatorProfile]

    def profile(self, name: str) -> OperatorProfile:
        """Return a profile by name; an unknown name is a `ReproError` that lists the choices."""
        return choose("profile", name, self.profiles)


def read_operator_study() -> OperatorStudy:
    """Read `params/operator_study.yaml`."""
    value: OperatorStudy = read_params("operator_study.yaml", OperatorStudy)
    return value
