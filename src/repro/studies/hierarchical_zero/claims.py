"""Claims about three levels of ZeRO on Frontier (C142-C145): logged and predicted."""

from collections import Counter
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.models.papers import Shape
from repro.catalog.models.volumes import TESTBED_ELEMENT_BYTES
from repro.catalog.parallel.partitions import gpt_units, held_bytes, iteration_calls
from repro.catalog.studies.partitions import read_partition_study
from repro.catalog.systems.clusters import cluster
from repro.claims.findings import Finding
from repro.claims.published import Claim
from repro.claims.quantities import Answers, Prediction, StudyTest
from repro.predict.parameters import Parameters
from repro.predict.workload import Array
from repro.results.communication import transfers
from repro.results.store import has_runs, why_not_run
from repro.studies.communication.claims import compare_with_forms
from repro.studies.hierarchical_zero.measurement import requested_partitions
from repro.studies.hierarchical_zero.predicted import bytes_by_level, partitioned_training
from repro.studies.hierarchical_zero.tables import logged_by_level

STUDY = "hierarchical_zero"
_GPUS = 384
_THREE_LEVELS, _ZERO_PP = "three-level-quantised", "zero-plus-plus"
_ZERO_3, _HPZ = "zero-3", "hpz"


def scheme_agreement(results: xr.Dataset) -> pd.DataFrame:
    """Compare the communication log and the memory of ranks with the closed forms, by scheme.

    Returns
    -------
    DataFrame
        One row per scheme that was run, with the columns of `compare_with_forms` and `held_bytes`:
        weights, gradients and Adam's moments of the rank that holds most, measured and by the
        forms. If nothing was run, the reason.
    """
    if not has_runs(results):
        return pd.DataFrame({"not run": [why_not_run(results)]})
    rows = []
    for name, (run, partition) in requested_partitions(results).items():
        one = results.sel(scheme=name)
        logged = transfers(one)
        if logged.empty:
            # The scheme ran out of memory.
            continue
        units = gpt_units(Shape.model_validate(run["shape"]))
        width = TESTBED_ELEMENT_BYTES
        forms = Counter[tuple[str, str, int, int, int]]()
        for calls in iteration_calls(partition, units, run["microbatches"], width, width):
            call = calls.collective
            key = (calls.phase, call.operation, call.ranks, call.stride, call.size_bytes)
            forms[key] += calls.calls
        counts = compare_with_forms(logged, _keys, [forms] * partition.ranks)
        held = held_bytes(partition, units, width)
        # Adam's two moments are two thirds of the optimizer's bytes.
        states = held["weights"] + held["gradients"] + held["optimizer states"] * 2 // 3
        measured = one["weight_bytes"].max() + one["gradient_bytes"] + one["adam_state_bytes"].max()
        rows.append(
            {
                "scheme": name,
                **counts,
                "held_bytes": int(measured.squeeze()),
                "held_bytes_by_forms": states,
            }
        )
    return pd.DataFrame(rows)


def _keys(own: pd.DataFrame) -> Counter[tuple[str, str, int, int, int]]:
    sizes, strides = own.ranks.map(len), [ranks[1] - ranks[0] for ranks in own.ranks]
    return Counter(zip(own.phase, own.operation, sizes, strides, own.bytes, strict=True))


def _gain(parameters: Parameters) -> Array:
    """Compute the throughput of a GPU in three levels over that in ZeRO++."""
    study, known = read_partition_study(), partitioned_training(parameters)
    ours, theirs = (known.tflops(study.scheme(name), _GPUS) for name in (_THREE_LEVELS, _ZERO_PP))
    return np.asarray(ours / theirs)


def _efficiency(parameters: Parameters) -> Array:
    """Compute the throughput per GCD on all GCDs over that on the fewest that hold the model."""
    study, known = read_partition_study(), partitioned_training(parameters)
    scheme = study.scheme(_THREE_LEVELS)
    found = (known.tflops(scheme, gpus) for gpus in study.predicted.gpus)
    first = next(one for one in found if not np.isnan(one).any())
    return np.asarray(known.tflops(scheme, _GPUS) / first)


def _links_are_ordered(_: Parameters) -> Array:
    """Test whether the rate per GCD falls from level to level, while all GCDs send."""
    below, rates = 1, []
    for level in cluster(read_partition_study().predicted.cluster).topology.levels:
        rates.append(level.link_gbps / below)
        below *= level.members
    return np.array(bool(np.all(np.diff(rates) < 0)))


def _second_copies_reduce_traffic(_: Parameters) -> Array:
    return np.array(_reduces_traffic(_over_fabric(bytes_by_level(_GPUS))))


def _over_fabric(sent: pd.DataFrame) -> "pd.Series[float]":
    """Return the bytes that a rank sends between nodes in an iteration, by scheme."""
    fabric: pd.Series[float] = sent[sent.level == "fabric"].groupby("scheme").sent_bytes.sum()
    return fabric


def _reduces_traffic(fabric: "pd.Series[float]") -> bool:
    """Test whether hpZ, which adds second copies to ZeRO-3, sends less, and ZeRO++ still less."""
    return bool(fabric[_ZERO_PP] < fabric[_HPZ] < fabric[_ZERO_3])


def _logged_traffic(_: Claim, results: xr.Dataset) -> Finding:
    """Judge whether second copies reduce the logged traffic between nodes."""
    fabric = _over_fabric(logged_by_level(results, read_partition_study().testbed.topology)) / 1e6
    reason = (
        f"logged between nodes, in MB a rank and iteration: {fabric[_ZERO_3]:.3g} in ZeRO-3, "
        f"{fabric[_HPZ]:.3g} with second copies, {fabric[_ZERO_PP]:.3g} in ZeRO++"
    )
    return Finding(
        None, None, "reproduced" if _reduces_traffic(fabric) else "not reproduced", reason
    )


_on_frontier = partial(Prediction, STUDY, cluster="frontier")
ANSWERS: Answers = {
    "C142": _on_frontier(_gain),
    "C143": _on_frontier(_efficiency),
    "C144": _on_frontier(_links_are_ordered),
    "C145": (_on_frontier(_second_copies_reduce_traffic), StudyTest(STUDY, _logged_traffic)),
}
