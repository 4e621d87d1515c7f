"""Claims about the communication of GPT training (C152-C154): logged, predicted by closed forms."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.models.papers import Shape
from repro.catalog.parallel.communication_volumes import Calls, step_communication
from repro.catalog.studies.communication import read_communication_study
from repro.catalog.studies.larger_models import gpt_shape
from repro.catalog.systems.clusters import cluster
from repro.claims.findings import Finding
from repro.claims.published import Claim
from repro.claims.quantities import Answers, Prediction, StudyTest
from repro.predict.network.collectives import message_s
from repro.predict.network.machine import Hops, machine
from repro.predict.parameters import Parameters
from repro.predict.workload import Array
from repro.results.communication import transfers
from repro.results.store import has_runs, why_not_run
from repro.studies.communication.measurement import requested_layouts
from repro.studies.communication.predicted import study_layout, throughput, volumes

STUDY = "communication"
# Smallest rank correlation that counts as one; a quantity that only rises with the length has 1.
_CORRELATED = 0.5
_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def agreement(results: xr.Dataset) -> pd.DataFrame:
    """Compare the communication log with the closed forms, by layout.

    Returns
    -------
    DataFrame
        One row per layout that was run, with the columns of `compare_with_forms`. Calls are
        counted by group, phase, operation and size. If nothing was run, the reason.
    """
    if not has_runs(results):
        return pd.DataFrame({"not run": [why_not_run(results)]})
    rows = []
    for name, (run, layout) in requested_layouts(results).items():
        logged = transfers(results.sel(layout=name))
        if logged.empty:
            # The layout ran out of memory.
            continue
        shape, width = Shape.model_validate(run["shape"]), _BYTES[run["precision"]]
        stages = [
            _count(step_communication(shape, layout, stage, width, width))
            for stage in range(layout.pipeline_parallel)
        ]
        # Stages are the outermost dimension of a layout.
        stage_ranks = layout.ranks // layout.pipeline_parallel
        forms = [stages[rank // stage_ranks] for rank in range(layout.ranks)]
        rows.append({"layout": name, **compare_with_forms(logged, _keys, forms)})
    return pd.DataFrame(rows)


def compare_with_forms(
    logged: pd.DataFrame,
    keys: Callable[[pd.DataFrame], Counter[Any]],
    forms: Sequence[Mapping[Any, int]],
) -> dict[str, float | bool]:
    """Compare the calls in a log with closed forms.

    Parameters
    ----------
    logged
        `repro.results.communication.transfers` of one run; barriers belong to the measurement.
    keys
        Count rows by kind of call; the last item of a kind is its bytes.
    forms
        The same counts for each rank and iteration, by the closed forms.

    Returns
    -------
    dict
        `calls` and `calls_by_forms`, `bytes` and `bytes_by_forms` per rank and iteration on
        average, and whether all counts `agree`.
    """
    logged = logged[logged.operation != "barrier"]
    same, calls, sent = [], 0, 0
    for _, own in logged.groupby(["iteration", "rank"]):
        expected = forms[int(own["rank"].iloc[0])]
        same.append(keys(own) == expected)
        calls += sum(expected.values())
        sent += sum(key[-1] * count for key, count in expected.items())
    return {
        "calls": len(logged) / len(same),
        "calls_by_forms": calls / len(same),
        "bytes": logged.bytes.sum() / len(same),
        "bytes_by_forms": sent / len(same),
        "agree": all(same),
    }


def _keys(own: pd.DataFrame) -> Counter[tuple[str, str, str, int]]:
    return Counter(zip(own.role, own.phase, own.operation, own.bytes, strict=True))


def _count(calls: tuple[Calls, ...]) -> Counter[tuple[str, str, str, int]]:
    found: Counter[tuple[str, str, str, int]] = Counter()
    for one in calls:
        found[one.role, one.phase, one.operation, one.size_bytes] += one.calls
    return found


# Predictions at full scale use the study's plan on its fewest GPUs.


def _messages_are_latency_bound(parameters: Parameters) -> Array:
    """Test whether latency is half or more of the time of each model's messages between stages.

    The stages are on neighbouring nodes.
    """
    study = read_communication_study()
    where = machine(cluster(study.study.cluster), parameters)
    layout = study_layout()
    hops = Hops(
        np.arange(where.gpus_per_node), np.arange(where.gpus_per_node, 2 * where.gpus_per_node)
    )
    flows = hops.flows(where)
    empty_s = parameters.hop_s + message_s(0.0, flows, where)
    bound = []
    for name in study.study.models:
        moved = volumes(gpt_shape(name), layout)
        size = float(moved[moved.role == "pipeline"].bytes.max())
        bound.append(empty_s >= 0.5 * (parameters.hop_s + message_s(size, flows, where)))
    return np.asarray(np.all(bound, axis=0))


def _sequences_go_with_both(parameters: Parameters) -> Array:
    """Test whether throughput and communication per GPU both rise with the sequence length.

    Their rank correlations must be above `_CORRELATED` for every model.
    """
    study = read_communication_study()
    layout = study_layout()
    lengths = study.study.sequence_lengths
    least = []
    for name in study.study.models:
        shapes = [gpt_shape(name).model_copy(update={"sequence_length": s}) for s in lengths]
        tokens = np.array([throughput(shape, layout, parameters) for shape in shapes])
        sent = np.array([volumes(shape, layout).sent_bytes.sum() for shape in shapes])
        least.append(np.minimum(_rank_correlation(tokens), _rank_correlation(sent[:, None])))
    return np.asarray(np.min(np.array(least), axis=0) > _CORRELATED)


def _rank_correlation(values: Array) -> Array:
    """Compute Spearman's correlation of each column with the order of its rows."""
    count = len(values)
    ranks = values.argsort(axis=0).argsort(axis=0)
    apart = ((ranks - np.arange(count)[:, None]) ** 2).sum(axis=0)
    return np.asarray(1 - 6 * apart / (count * (count**2 - 1)))


def _every_call_agrees(_: Claim, results: xr.Dataset) -> Finding:
    """Judge whether the log and the closed forms agree in every call."""
    agree = agreement(results)["agree"]
    reason = f"every call of {agree.sum()} of {len(agree)} layouts"
    return Finding(None, None, "reproduced" if agree.all() else "not reproduced", reason)


_on_dgx = partial(Prediction, STUDY, cluster="dgx-a100")
ANSWERS: Answers = {
    "C152": _on_dgx(_messages_are_latency_bound),
    "C153": _on_dgx(_sequences_go_with_both),
    "C154": StudyTest(STUDY, _every_call_agrees),
}
