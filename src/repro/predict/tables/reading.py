"""Files of measurements: read as CSV, told apart by their columns, and checked."""

from pathlib import Path

import pandas as pd

from repro.catalog.systems.gpus import find_gpu_name, gpu
from repro.errors import ReproError
from repro.predict.operators.measured import KINDS as OPERATORS
from repro.predict.operators.measured import kind_of
from repro.predict.tables.collectives import collective_rows, is_collectives
from repro.predict.tables.columns import POSITIVE, TEXT, Column, naming, read
from repro.predict.tables.fused_training import RUN, read_runs, stack_names
from repro.predict.tables.serving import is_serving
from repro.predict.tables.unfused_training import training_rows

# Name of Megatron-LM of 2021, the software of `repro.predict.step`. Tables ran on it that have none
# of these columns, on GPUs of these generations.
UNFUSED = "megatron-lm-2021"
_FUSED_ONLY = {"cp", "ep", "attention", "gated_mlp"}
_UNFUSED_GENERATIONS = ("volta", "ampere", "cdna2")
_TIME = Column("iteration_time_s", POSITIVE)


def read_rows(path: Path) -> pd.DataFrame:
    """Read a CSV of measurements and check it.

    Raises
    ------
    ReproError
        The file is missing, empty or no CSV, or a column or cell is wrong.
    """
    try:
        rows = pd.read_csv(path)
    except FileNotFoundError:
        raise ReproError(f"{path}: no such file") from None
    except OSError as error:
        raise ReproError(f"{path}: cannot be read ({error.strerror})") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ReproError(f"{path}: not a CSV of measurements ({error})") from None
    if rows.empty:
        raise ReproError(f"{path}: no rows")
    with naming(path):
        if is_serving(rows):
            return rows
        if (kind := operator_kind(rows)) is not None:
            _check_operators(kind, rows)
        elif is_collectives(rows):
            return collective_rows(rows)
        else:
            _check_runs(rows)
    return rows


def read_training(path: Path) -> pd.DataFrame:
    """Read a CSV of training runs of Megatron-LM of 2021, as `read_rows` does.

    Raises
    ------
    ReproError
        The file is wrong, or is a table of something else.
    """
    rows = read_rows(path)
    with naming(path):
        list(training_rows(rows))
    return rows


def operator_kind(rows: pd.DataFrame) -> str | None:
    """Return the kind of operator of a table; None for other tables.

    Collectives are operators if they ran on one node whose network has no name.
    """
    return None if "network" in rows.columns else kind_of(rows.columns)


def software(rows: pd.DataFrame) -> pd.Series:
    """Return the name of each run's software.

    It is `stack`. Where that is blank, it is `UNFUSED` for GPUs of its time in tables of its time,
    else the software that the run's set is known to have run on.
    """
    found = stack_names(rows)
    if _FUSED_ONLY & set(rows.columns):
        return found
    generations = rows.gpu.map(lambda label: gpu(find_gpu_name(str(label))).generation)
    unsaid = rows["stack"].isna() if "stack" in rows.columns else True
    return found.mask(generations.isin(_UNFUSED_GENERATIONS) & unsaid, UNFUSED)


def _check_operators(kind: str, rows: pd.DataFrame) -> None:
    texts = [Column(name, TEXT) for name in ("gpu", "dtype", *OPERATORS[kind].apart)]
    read(rows, [*texts, *(Column(name, POSITIVE) for name in (*OPERATORS[kind].axes, "time_us"))])


def _check_runs(rows: pd.DataFrame) -> None:
    read(rows, (*RUN, _TIME))
    unfused = (software(rows) == UNFUSED).to_numpy()
    if unfused.any():
        list(training_rows(rows[unfused]))
    if not unfused.all():
        read_runs(rows[~unfused])
