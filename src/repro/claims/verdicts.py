"""Compare every published claim with the results, and say what became of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from repro.catalog.studies.experiments import experiment
from repro.catalog.studies.selection import select
from repro.catalog.systems.protocols import read_protocols
from repro.claims.experiments.definitions import Quantity, Statement
from repro.claims.experiments.quantities import (
    ASSUMPTIONS,
    NOT_ON_TESTBED,
    TESTBED_INPUTS,
    TESTS,
    tested_by,
)
from repro.claims.findings import Finding, Judgement, judgement, unanswered
from repro.claims.published import Claim, read_claims
from repro.claims.studies.communication import COMMUNICATION, LOGGED
from repro.claims.studies.compression import COMPRESSION
from repro.claims.studies.every import brought_by, study_findings
from repro.claims.studies.hardware import HARDWARE, ClaimEstimate
from repro.claims.studies.inference import INFERENCE
from repro.claims.studies.operators import YARDSTICKS
from repro.claims.studies.partitions import PARTITIONS
from repro.claims.studies.predictions import PREDICTIONS, Predicted
from repro.observe.precision import CONFIDENCE
from repro.predict.explore.experiments.predicted import draw_experiment, predict_experiment
from repro.predict.workload import Array
from repro.results.metrics import Sample, draw_sample, estimate, support
from repro.results.store import why_not_run

# A number counts as reproduced within this much of the published one, or if its interval holds it.
TOLERANCE = 0.10
# What answers claims that no experiment does.
_PREDICTIONS: Mapping[str, Predicted | ClaimEstimate] = {
    **PREDICTIONS,
    **HARDWARE,
    **INFERENCE,
    **COMMUNICATION,
    **PARTITIONS,
    **COMPRESSION,
}


def judge_claims(results: Mapping[str, xr.Dataset]) -> list[Judgement]:
    """Judge the claims that the given experiments test.

    Parameters
    ----------
    results : mapping
        Datasets of the schema by experiment name, and studies': the log's as `communication`.

    Returns
    -------
    list of Judgement
        In the order of the claims' ids.
    """
    wanted = [
        claim
        for claim in read_claims()
        if tested_by(claim, results) or any(claim.id in brought_by(name) for name in results)
    ]
    return judge(wanted, results)


def judge(claims: Sequence[Claim], results: Mapping[str, xr.Dataset]) -> list[Judgement]:
    """Judge claims in their order, by results as `judge_claims` takes them."""
    tested = {TESTS[claim.id].experiment for claim in claims if claim.id in TESTS}
    measured: dict[str, dict[str, Sample | str]] = {
        source: {
            name: _sample(name, dataset, source)
            for name, dataset in results.items()
            if name in tested
        }
        for source in ("testbed", "cluster")
    }
    predicted = {name: predicted_sample(name) for name in tested}
    # Several documents repeat a claim: what answers it is evaluated once.
    asked = dict.fromkeys(_PREDICTIONS[claim.id] for claim in claims if claim.id in _PREDICTIONS)
    evaluated = {prediction: prediction.evaluate() for prediction in asked}
    inputs = {
        claim: f"{entry.label}'s rate is computed from it"
        for entry in read_protocols().values()
        for claim in entry.input_claims
    }
    judgements = []
    for claim in claims:
        at_full_scale, on_testbed, on_nodes = _SILENT, _UNTESTED, _UNTESTED
        if test := TESTS.get(claim.id):
            name, reason = test.experiment, inputs.get(claim.id, "")
            assumed = ASSUMPTIONS.get(name, "")
            if claim.id not in _PREDICTIONS:
                at_full_scale = _find(claim, test, predicted[name], reason, assumed)
            absent = f"{name} was not run"
            sample = NOT_ON_TESTBED.get(claim.id) or measured["testbed"].get(name, absent)
            on_nodes = _find(claim, test, measured["cluster"].get(name, absent), "", assumed)
            on_testbed = _find(
                claim, test, sample, reason or TESTBED_INPUTS.get(claim.id, ""), assumed
            )
        if prediction := _PREDICTIONS.get(claim.id):
            at_full_scale = evaluate_prediction(claim, prediction, *evaluated[prediction])
        if claim.id in LOGGED:
            at_full_scale = _CLOSED_FORMS
        if yardstick := YARDSTICKS.get(claim.id):
            at_full_scale = yardstick(claim)
        if finding := study_findings(claim, results, "testbed"):
            on_testbed = finding
            on_nodes = study_findings(claim, results, "cluster") or _UNTESTED
        judgements.append(judgement(claim, at_full_scale, on_testbed, on_nodes))
    return judgements


_SILENT = unanswered("the model says nothing about it")
_UNTESTED = unanswered("no experiment answers it")
_CLOSED_FORMS = Finding(None, None, "input", "closed forms are what the log is compared with")


def predicted_sample(name: str) -> Sample:
    """An experiment as predicted, with draws of the model's uncertain parameters."""
    # Some experiments are predicted for more than can be measured.
    profile = "predicted" if "predicted" in experiment(name).profiles else "default"
    selection = select(name, source="predicted", profile=profile)
    point, draws = predict_experiment(selection), draw_experiment(selection)
    return Sample(point.squeeze("source", drop=True), draws.squeeze("source", drop=True))


def _sample(name: str, dataset: xr.Dataset, source: str) -> Sample | str:
    """An experiment's measurements as its claims need them, or why they cannot answer."""
    # Open models may have been run beside the papers', and are in no claim.
    models = list(experiment(name).profiles["default"].models)
    return missing(name, dataset, source) or draw_sample(
        dataset.sel(source=source, drop=True).sel(model=models)
    )


def missing(name: str, dataset: xr.Dataset, source: str) -> str:
    """What of an experiment its claims would need beside what a source has; empty if nothing."""
    if reasons := why_not_run(dataset):
        return reasons
    if source not in dataset["source"].values:
        return f"{name} was not run on source {source}"
    entry = experiment(name)
    full = entry.profiles["default"]
    for dim, wanted in (
        ("model", full.models),
        ("gpus", full.gpus),
        ("protocol", entry.protocols),
        *([(entry.sweep, full.values)] if entry.sweep else []),
    ):
        absent = [str(value) for value in wanted if value not in dataset[dim].values]
        if absent:
            return f"{name} was run without {dim} {', '.join(absent)}"
    return ""


def _find(
    claim: Claim,
    test: Quantity | Statement,
    sample: Sample | str,
    input_reason: str,
    assumption: str,
) -> Finding:
    if isinstance(sample, str):
        return Finding(None, None, "input" if input_reason else "not run", sample)
    if isinstance(test, Statement):
        value = float(test.holds(sample.results))
        found = _of_statement(support(sample, test.holds), bool(value))
    else:
        result = estimate(sample, test.compute)
        value = result.value
        found = _of_number(claim, value, (result.low, result.high), test.neutral)
    if np.isnan(value):
        return Finding(None, None, "not run", "configurations are missing")
    if input_reason:
        return replace(found, verdict="input", reason=input_reason)
    return replace(found, reason=assumption)


def judge_point(claim: Claim, test: Quantity | Statement, results: xr.Dataset) -> Finding:
    """Judge a claim on results alone, without an interval; an order holds (1) or does not (0, also
    of what is missing)."""
    if isinstance(test, Statement):
        holds = float(test.holds(results)) == 1.0
        return _of_statement(float(holds), holds)
    value = float(test.compute(results))
    return _of_number(claim, value, (value, value), test.neutral)


def evaluate_prediction(
    claim: Claim, predicted: Predicted | ClaimEstimate, value: float, draws: Array
) -> Finding:
    """Judge a claim on a prediction and its draws, as `Predicted.evaluate` gives them."""
    if claim.value is None:
        found = _of_statement(float(np.mean(draws)), bool(value))
    else:
        low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        found = _of_number(claim, value, (float(low), float(high)), predicted.neutral)
    return replace(found, reason=predicted.assumption)


def _of_statement(share: float, holds: bool) -> Finding:
    if share >= CONFIDENCE:
        return Finding(share, None, "reproduced")
    return Finding(share, None, "same direction" if holds else "not reproduced")


def _of_number(
    claim: Claim, value: float, interval: tuple[float, float], neutral: float | None
) -> Finding:
    published = claim.value
    assert published is not None
    if claim.comparator == "ge":
        held = value >= published or interval[1] >= published
        return Finding(value, interval, "reproduced" if held else "not reproduced")
    if interval[0] <= published <= interval[1] or abs(value / published - 1) <= TOLERANCE:
        return Finding(value, interval, "reproduced")
    if neutral is not None and (value - neutral) * (published - neutral) > 0:
        return Finding(value, interval, "same direction")
    return Finding(value, interval, "not reproduced")
