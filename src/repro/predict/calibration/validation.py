"""Errors of the performance model on measurements, compared with those of a constant MFU."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from repro.catalog.models.volumes import training_flops
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError, of_file
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
from repro.predict.serving.parameters import borrowed_costs
from repro.predict.tables.columns import FIX
from repro.predict.tables.reading import COLLECTIVES, SERVING, TRAINING, read_known_rows, table_kind
from repro.predict.tables.serving import serving_rows
from repro.predict.tables.training import (
    UNFUSED,
    TrainingRows,
    otherwise,
    read_runs,
    software,
    training_rows,
)
from repro.predict.workload import Array

_LOG = logging.getLogger(__name__)


def validate(path: Path, by: Sequence[str] = ()) -> pd.DataFrame:
    """Score predictions of the rows of a CSV of measurements.

    Rows of unknown GPUs, models, precisions or software are left out, with a warning per reason.

    Parameters
    ----------
    by
        Columns whose values are the sets. Without any: `set` of training runs, GPU and precision
        of operators; `set`, or else GPU and precision, of serving; of collectives GPU, network and
        collective, and where there are both, one node and several.

    Returns
    -------
    DataFrame
        A row per set, with errors of predictions in percent of the measured time:

        n
            Number of rows.
        mape_pct, median_pct, p90_pct, max_pct
            Absolute errors.
        bias_pct
            Mean signed error.
        rank_correlation
            Spearman's coefficient; NaN where all values are equal.
        coverage_90_pct
            Fraction of rows within their 90 % interval.
        baseline_mape_pct
            Error of the constant MFU that suits this very set best.
        cross_validated_pct
            Mean absolute error of fits without one size of a log, for collectives only. A log has
            one collective, number of ranks and number of nodes. NaN where no log has two sizes.
        line_mape_pct
            The same of latency + size / bandwidth per log. NaN where no log has three sizes.

    Raises
    ------
    ReproError
        The file cannot be read or a row cannot be predicted.
    """
    rows, left_out = read_known_rows(path)
    for line in left_out:
        _LOG.warning("left out: %s", line)
    with of_file(path, FIX):
        for name in by:
            if name not in rows.columns:
                raise ReproError(
                    f"no column {name!r} to group by; choose from: {', '.join(rows.columns)}"
                )
        kind = table_kind(rows)
        if kind == COLLECTIVES:
            if by:
                raise ReproError(
                    "collectives are grouped by GPU, network and collective; fix: leave out --by"
                )
            return _score_collectives(rows)
        if kind == SERVING:
            predicted = predict_serving(rows)
            known = ["set"] if "set" in rows.columns else ["gpu", "dtype", "precision"]
            usual = [name for name in rows.columns if name in known]
        elif kind == TRAINING:
            predicted, usual = predict_runs(rows), ["set"]
        else:
            predicted = predict_operators(kind, rows)
            usual = ["gpu", "dtype", *OPERATORS[kind].apart]
    return _scores(predicted, _names(rows, by or usual))


def _names(rows: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Name the set of each row by its values of columns."""
    return rows[[*columns]].astype(object).fillna("unknown").astype(str).agg(", ".join, axis=1)


def _scores(predicted: pd.DataFrame, sets: pd.Series) -> pd.DataFrame:
    scores = {name: _score(rows) for name, rows in predicted.groupby(sets, sort=False)}
    return pd.DataFrame.from_dict(scores, orient="index").rename_axis("set")


def _score(rows: pd.DataFrame) -> dict[str, float]:
    ratio = rows.time_s / rows.measured_s
    error = 100 * (ratio - 1)
    size = error.abs()
    times = rows[["time_s", "measured_s"]]
    ranked = times.rank().corr().iloc[0, 1] if (times.nunique() > 1).all() else np.nan
    return {
        "n": len(rows),
        "mape_pct": size.mean(),
        "median_pct": size.median(),
        "p90_pct": size.quantile(0.9),
        "max_pct": size.max(),
        "bias_pct": error.mean(),
        "rank_correlation": ranked,
        "coverage_90_pct": 100 * (np.abs(np.log(ratio)) <= rows.half_width).mean(),
        "baseline_mape_pct": best_constant_mape_pct((rows.work / rows.measured_s).to_numpy()),
    }


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


def _predictions(
    index: pd.Index, time_s: Array, half_width: Array | float, work: Array, measured_s: Array
) -> pd.DataFrame:
    """Return seconds, x of the 90 % interval from time_s / e^x to time_s e^x, and a yardstick.

    `work` over a constant rate is the baseline's time.
    """
    columns = {"time_s": time_s, "half_width": half_width, "work": work, "measured_s": measured_s}
    return pd.DataFrame(columns, index=index)


def predict_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Predict training runs, each by the model of its software's generation.

    Returns
    -------
    DataFrame
        By the index of `rows`: time_s, half_width, work (FLOPs over all GPUs' peak), measured_s.
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
        part.iteration_time_s,
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
    return _predictions(
        rows.index, time_s, np.sqrt(variance), work, rows.iteration_time_s.to_numpy()
    )


def predict_serving(rows: pd.DataFrame) -> pd.DataFrame:
    """Predict batches from start to end, like `predict_runs`.

    Their work is reading the weights once for each token.
    """
    parts, borrowed = [], set()
    for part in serving_rows(rows):
        borrowed.add(borrowed_costs(part.engine.stack))
        read = weight_bytes(part.rows, part.engine) * part.rows.pp * part.rows.output_tokens
        work = read / (1e9 * part.engine.device.memory_gbytes_per_s)
        time_s = latency(passes(part.rows, part.engine), part.engine).total_s
        width = part.engine.half_width(part.rows)
        parts.append(_predictions(part.index, time_s, width, work, part.total_s))
    for line in borrowed - {""}:
        _LOG.warning(line)
    return pd.concat(parts).loc[rows.index]


def predict_operators(kind: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Predict operators of one kind, like `predict_runs`."""
    width, work = operator_half_width(kind, rows), OPERATORS[kind].work(rows)
    return _predictions(
        rows.index, operator_s(kind, rows), width, work, rows.time_us.to_numpy() * 1e-6
    )


def _score_collectives(rows: pd.DataFrame) -> pd.DataFrame:
    """Score collectives, compared with the constant bus bandwidth that suits each set.

    A network that was never measured and whose name gives no rate is left out, with a warning.
    """
    sets = _names(rows, ["gpu", "network", "collective"])
    level = pd.Series(np.where(rows.nodes > 1, ", several nodes", ", one node"), index=rows.index)
    sets += level.where(level.groupby(sets).transform("nunique") > 1, "")
    parts = []
    for _, group in rows.groupby(sets, sort=False):
        try:
            found = predict_collective(group)
        except ReproError as error:
            _LOG.warning("left out: %s", error)
            continue
        factor = bus_factor(str(group.collective.iloc[0]), group.ranks.to_numpy())
        parts.append(found.assign(work=factor * group.size_bytes, measured_s=group.time_us * 1e-6))
    if not parts:
        raise ReproError("no network of the file can be predicted; fix: see the warnings above")
    scores = _scores(pd.concat(parts), sets)
    networks = [group for _, group in rows.groupby(["gpu", "network"])]
    for column, held_out in (
        ("cross_validated_pct", errors_by_size),
        ("line_mape_pct", line_errors_by_size),
    ):
        errors = 100 * np.expm1(pd.concat([held_out(group) for group in networks])).abs()
        scores[column] = errors.groupby(sets).mean()
    return scores
