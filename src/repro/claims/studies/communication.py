"""What GPT training communicates (C152-C154): logged, by closed forms, and at full scale."""

from collections import Counter

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
from repro.claims.studies.counted import beside_forms
from repro.claims.studies.predictions import Predicted
from repro.experiments.communication import requested_layouts
from repro.predict.explore.studies.communication import study_layout, throughput, volumes
from repro.predict.network.collectives import message_s
from repro.predict.network.machine import Hops, machine
from repro.predict.parameters import Parameters
from repro.predict.workload import Array
from repro.results.communication import transfers
from repro.results.store import has_runs, why_not_run

# Of ranks; a quantity that only rises with the length has 1.
_CORRELATED = 0.5
_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def agreement(results: xr.Dataset) -> pd.DataFrame:
    """The log beside the closed forms, by layout.

    Returns
    -------
    DataFrame
        A row for each layout that was run: `calls` and `bytes` of a rank and iteration on average,
        logged and by the closed forms, and whether they `agree` exactly: as many calls of each size
        by group, phase, operation, rank and iteration. Why there is none, if nothing was run.
    """
    if not has_runs(results):
        return pd.DataFrame({"not run": [why_not_run(results)]})
    rows = []
    for name, (run, layout) in requested_layouts(results).items():
        logged = transfers(results.sel(layout=name))
        if logged.empty:
            # Its memory was not enough.
            continue
        shape, width = Shape.model_validate(run["shape"]), _BYTES[run["precision"]]
        stages = [
            _counted(step_communication(shape, layout, stage, width, width))
            for stage in range(layout.pipeline_parallel)
        ]
        # Stages are the outermost of a layout's dimensions.
        each = layout.ranks // layout.pipeline_parallel
        forms = [stages[rank // each] for rank in range(layout.ranks)]
        counts = beside_forms(logged, _keys, forms)
        rows.append({"layout": name, **counts})
    return pd.DataFrame(rows)


def _keys(own: pd.DataFrame) -> Counter[tuple[str, str, str, int]]:
    return Counter(zip(own.role, own.phase, own.operation, own.bytes, strict=True))


def _counted(calls: tuple[Calls, ...]) -> Counter[tuple[str, str, str, int]]:
    found: Counter[tuple[str, str, str, int]] = Counter()
    for one in calls:
        found[one.role, one.phase, one.operation, one.size_bytes] += one.calls
    return found


# At full scale, by the study's plan on its fewest GPUs.


def _messages_are_latency_bound(parameters: Parameters) -> Array:
    """Whether latency is half of the time, or more, of each model's messages between stages that
    are on neighbouring nodes."""
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
    """Whether longer sequences go with more throughput and more communication of a GPU: rank
    correlations above `_CORRELATED` for every model."""
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
    """Spearman's, of each column with the order of its rows."""
    count = len(values)
    ranks = values.argsort(axis=0).argsort(axis=0)
    apart = ((ranks - np.arange(count)[:, None]) ** 2).sum(axis=0)
    return np.asarray(1 - 6 * apart / (count * (count**2 - 1)))


_PLAN = "GPT-3 of 1.3B to 175B on 64 GPUs, tensor parallelism 8, 8 stages, micro batch 1 assumed"
COMMUNICATION = {
    "C152": Predicted(_messages_are_latency_bound, cluster="dgx-a100", assumption=_PLAN),
    "C153": Predicted(_sequences_go_with_both, cluster="dgx-a100", assumption=_PLAN),
}


def _every_call_agrees(_: Claim, results: xr.Dataset) -> Finding:
    """Whether the log and the closed forms agree in every call."""
    agree = agreement(results)["agree"]
    said = f"every call of {agree.sum()} of {len(agree)} layouts"
    return Finding(None, None, "reproduced" if agree.all() else "not reproduced", said)


LOGGED = {"C154": _every_call_agrees}
