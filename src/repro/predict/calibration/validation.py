"""Errors of the performance model on measurements, compared with those of a constant MFU."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from repro.catalog.models.volumes import training_flops
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.predict.calibration.interval import half_width
from repro.predict.calibration.link_fitting import errors_by_size, line_errors_by_size
from repro.predict.calibration.step_fitting import predicted_times_s
from repro.predict.fused.iteration import in_blocks_s
from repro.predict.fused.parameters import half_width as fused_half_width
from repro.predict.fused.parameters import read_fused
from repro.predict.fused.run import training_flops as fused_flops
from repro.predict.network.links import predict_collective
from repro.predict.operators.measured import KINDS as OPERATORS
from repro.predict.operators.measured import half_width as operator_half_width
from repro.predict.operators.measured import operator_s
from repro.predict.parameters import calibration
from repro.predict.serving.latency import latency, passes
from repro.predict.serving.memory import weight_bytes
from repro.predict.tables.collectives import is_collectives
from repro.predict.tables.columns import naming
from repro.predict.tables.fused_training import otherwise, read_runs
from repro.predict.tables.reading import UNFUSED, operator_kind, read_rows, software
from repro.predict.tables.serving import is_serving, serving_rows
from repro.predict.tables.unfused_training import TrainingRows, training_rows
from repro.predict.workload import Array

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Score:
    """Errors of the predictions of one set, in percent of the measured time.

    `bias_pct` is the mean signed error, `coverage_90_pct` the fraction of rows within their 90 %
    interval, `baseline_mape_pct` the error of the constant MFU that suits this very set best.
    """

    set: str
    n: int
    mape_pct: float
    median_pct: float
    p90_pct: float
    max_pct: float
    bias_pct: float
    rank_correlation: float | None
    coverage_90_pct: float
    baseline_mape_pct: float


@dataclass(frozen=True)
class CollectivesScore(Score):
    """Errors of one set of collectives, also of fits to the file with one size of a log held out.

    `cross_validated_pct` is the mean absolute error of the cost model
    (`repro.predict.network.links`), `line_mape_pct` that of latency + size / bandwidth per log. A
    log has one collective, number of ranks and number of nodes. The model needs two sizes of a
    log, the line three; None where no log has them.
    """

    cross_validated_pct: float | None
    line_mape_pct: float | None


def validate(path: Path, by: Sequence[str] = ()) -> Sequence[Score]:
    """Predict every row of a CSV of measurements.

    Parameters
    ----------
    by
        Columns whose values are the sets. Without any: `set` of training runs, GPU and precision
        of operators; `set`, or else GPU and precision, of serving.

    Returns
    -------
    sequence of Score
        One per set; of collectives between nodes one `CollectivesScore` per GPU, network and
        collective, and where there are both, for one node and for several.

    Raises
    ------
    ReproError
        The file cannot be read or a row cannot be predicted.
    """
    rows = read_rows(path)
    with naming(path):
        for name in by:
            if name not in rows.columns:
                raise ReproError(
                    f"no column {name!r} to group by; choose from: {', '.join(rows.columns)}"
                )
        kind = operator_kind(rows)
        if kind is None and is_collectives(rows):
            if by:
                raise ReproError(
                    "collectives are grouped by GPU, network and collective; fix: leave out --by"
                )
            return _validate_collectives(rows)
        predicted, measured_s, usual = _predict_rows(kind, rows)
    grouped = rows[[*(by or usual)]].astype(object).fillna("unknown")
    names = grouped.astype(str).agg(", ".join, axis=1)
    return [
        _score(str(name), predicted.loc[seconds.index], seconds)
        for name, seconds in measured_s.groupby(names, sort=False)
    ]


def _predict_rows(
    kind: str | None, rows: pd.DataFrame
) -> tuple[pd.DataFrame, pd.Series, Sequence[str]]:
    """Return predictions, measured seconds, and the columns whose values are the sets."""
    if is_serving(rows):
        known = ["set"] if "set" in rows.columns else ["gpu", "dtype", "precision"]
        return *_predict_serving(rows), [name for name in rows.columns if name in known]
    if kind is not None:
        usual = ("gpu", "dtype", *OPERATORS[kind].apart)
        return _predict_operators(kind, rows), rows.time_us * 1e-6, usual
    return predict_runs(rows), rows.iteration_time_s, ("set",)


def _predictions(
    index: pd.Index, time_s: Array, half_width: Array | float, work: Array
) -> pd.DataFrame:
    found = {"time_s": time_s, "half_width": half_width, "work": work}
    return pd.DataFrame(found, index=index)


def predict_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Predict training runs, each by the model of its software's generation.

    Returns
    -------
    DataFrame
        By the index of `rows`: time_s, half_width of its 90 % interval (from time_s / e^x to
        time_s e^x), and work (FLOPs over all GPUs' peak).
    """
    unfused = (software(rows) == UNFUSED).to_numpy()
    parts = (
        [_predict_unfused(part) for part in training_rows(rows[unfused])] if unfused.any() else []
    )
    if not unfused.all():
        parts.append(_predict_fused(rows[~unfused]))
    return pd.concat(parts)


def _predict_unfused(part: TrainingRows) -> pd.DataFrame:
    calibrated = calibration(part.cluster.calibration)
    run = part.workload
    flops = training_flops(run.family, run, run.global_batch_size)
    return _predictions(
        part.index,
        predicted_times_s(part, calibrated.parameters),
        half_width(run, part.cluster, calibrated),
        flops / (run.gpus * part.cluster.device.peak_flops),
    )


def _predict_fused(rows: pd.DataFrame) -> pd.DataFrame:
    """Predict runs of today's software.

    Intervals of rows with blank cells are wider, by half of what the missing values could change.
    """
    calibrated = read_fused()
    run = read_runs(rows)
    time_s = in_blocks_s(run, calibrated.parameters)
    variance = fused_half_width(run, calibrated) ** 2
    for blank, table in otherwise(rows):
        other_s = in_blocks_s(read_runs(table), calibrated.parameters)
        variance += blank * (np.log(other_s / time_s) / 2) ** 2
    work = fused_flops(run) / (run.gpus * run.peak_flops)
    return _predictions(rows.index, time_s, np.sqrt(variance), work)


def _predict_serving(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Return seconds of batches from start to end, predicted and measured.

    Their work is reading the weights once for each token.
    """
    parts, measured = [], []
    for part in serving_rows(rows):
        read = weight_bytes(part.rows, part.engine) * part.rows.pp * part.rows.output_tokens
        work = read / (1e9 * part.engine.device.memory_gbytes_per_s)
        time_s = latency(passes(part.rows, part.engine), part.engine).total_s
        parts.append(_predictions(part.index, time_s, part.engine.half_width, work))
        measured.append(pd.Series(part.total_s, index=part.index))
    return pd.concat(parts).loc[rows.index], pd.concat(measured).loc[rows.index]


def _predict_operators(kind: str, rows: pd.DataFrame) -> pd.DataFrame:
    width, work = operator_half_width(kind, rows), OPERATORS[kind].work(rows)
    return _predictions(rows.index, operator_s(kind, rows), width, work)


def _validate_collectives(rows: pd.DataFrame) -> list[CollectivesScore]:
    """Score collectives, compared with the constant bus bandwidth that suits each set.

    A network that was never measured and whose name gives no rate is left out, with a warning.
    """
    networks = [group for _, group in rows.groupby(["gpu", "network"], dropna=False)]
    by_model = pd.concat([errors_by_size(group) for group in networks])
    by_line = pd.concat([line_errors_by_size(group) for group in networks])
    scores = []
    for name, group in rows.groupby(_sets(rows), sort=False):
        try:
            score = _score(str(name), _predict_collectives(group), group.time_us * 1e-6)
        except ReproError as error:
            _LOG.warning("left out: %s", error)
            continue
        scores.append(
            CollectivesScore(
                **asdict(score),
                cross_validated_pct=_mean_error_pct(by_model.loc[group.index]),
                line_mape_pct=_mean_error_pct(by_line.loc[group.index]),
            )
        )
    if not scores:
        raise ReproError("no network of the file can be predicted; fix: see the warnings above")
    return scores


def _sets(rows: pd.DataFrame) -> pd.Series:
    """Return each row's set: GPU, network, collective, and one or several nodes if both occur."""
    name = rows[["gpu", "network", "collective"]].astype(str).agg(", ".join, axis=1)
    level = pd.Series(np.where(rows.nodes > 1, ", several nodes", ", one node"), index=rows.index)
    both = level.groupby(name).transform("nunique") > 1
    sets: pd.Series = name + level.where(both, "")
    return sets


def _mean_error_pct(log_errors: pd.Series) -> float | None:
    """Return the mean over rows that have an error; None where none has."""
    known = log_errors.dropna()
    return float(100 * np.abs(np.expm1(known)).mean()) if len(known) else None


def _predict_collectives(rows: pd.DataFrame) -> pd.DataFrame:
    work = bus_factor(str(rows.collective.iloc[0]), rows.ranks.to_numpy()) * rows.size_bytes
    return predict_collective(rows).assign(work=work)


def _score(name: str, predicted: pd.DataFrame, measured: pd.Series) -> Score:
    ratio = predicted.time_s / measured
    error = 100 * (ratio - 1)
    size = error.abs()
    inside = np.abs(np.log(ratio)) <= predicted.half_width
    return Score(
        set=name,
        n=len(measured),
        mape_pct=float(size.mean()),
        median_pct=float(size.median()),
        p90_pct=float(size.quantile(0.9)),
        max_pct=float(size.max()),
        bias_pct=float(error.mean()),
        rank_correlation=_rank_correlation(predicted.time_s, measured),
        coverage_90_pct=float(100 * inside.mean()),
        baseline_mape_pct=best_constant_mape_pct((predicted.work / measured).to_numpy()),
    )


def _rank_correlation(predicted: pd.Series, measured: pd.Series) -> float | None:
    """Return Spearman's coefficient; None where all values are equal or there is only one."""
    if predicted.nunique() < 2 or measured.nunique() < 2:
        return None
    return float(predicted.rank().corr(measured.rank()))


def best_constant_mape_pct(work_per_second: Array) -> float:
    """Return the lowest mean absolute percentage error that time = work / constant rate can have.

    Parameters
    ----------
    work_per_second : Array
        Work over measured time, by row; the error of a rate R is mean `|x/R - 1|`, whose minimum
        stands at one of the x.
    """
    errors = [np.abs(work_per_second / rate - 1).mean() for rate in work_per_second]
    return float(100 * min(errors))


def table(scores: Sequence[Score]) -> str:
    """Format scores as text, one line per set."""
    return pd.DataFrame([vars(score) for score in scores]).set_index("set").round(2).to_string()
