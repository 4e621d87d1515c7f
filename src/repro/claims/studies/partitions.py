"""Three levels of ZeRO on Frontier (C142-C145): logged, by closed forms, and at full scale."""

from collections import Counter

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
from repro.claims.studies.counted import beside_forms
from repro.claims.studies.predictions import Predicted
from repro.experiments.partitions import requested_partitions
from repro.predict.explore.studies.partitions import bytes_by_level, partitioned_training
from repro.predict.parameters import Parameters
from repro.predict.workload import Array
from repro.results.communication import transfers
from repro.results.partitions import logged_by_level
from repro.results.store import has_runs, why_not_run

_GPUS = 384
_THREE_LEVELS, _ZERO_PP = "three-level-quantised", "zero-plus-plus"
_ZERO_3, _HPZ = "zero-3", "hpz"


def scheme_agreement(results: xr.Dataset) -> pd.DataFrame:
    """The log and what ranks held beside the closed forms, by scheme.

    Returns
    -------
    DataFrame
        A row for each scheme that was run: `calls` and `bytes` of a rank and iteration on average,
        logged and by the closed forms, and whether they `agree` exactly: as many collectives of
        each size by phase, operation and group; `held_bytes` of weights, gradients and Adam's
        moments of the fullest rank, measured and by the forms. Why there is none, if nothing was
        run.
    """
    if not has_runs(results):
        return pd.DataFrame({"not run": [why_not_run(results)]})
    rows = []
    for name, (run, partition) in requested_partitions(results).items():
        one = results.sel(scheme=name)
        logged = transfers(one)
        if logged.empty:
            # Its memory was not enough.
            continue
        units = gpt_units(Shape.model_validate(run["shape"]))
        width = TESTBED_ELEMENT_BYTES
        forms = Counter[tuple[str, str, int, int, int]]()
        for calls in iteration_calls(partition, units, run["microbatches"], width, width):
            call = calls.collective
            key = (calls.phase, call.operation, call.ranks, call.stride, call.size_bytes)
            forms[key] += calls.calls
        every = [forms] * partition.ranks
        counts = beside_forms(logged, _keys, every)
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
    """Throughput of a GPU in three levels over that in ZeRO++."""
    study, known = read_partition_study(), partitioned_training(parameters)
    ours, theirs = (known.tflops(study.scheme(name), _GPUS) for name in (_THREE_LEVELS, _ZERO_PP))
    return np.asarray(ours / theirs)


def _efficiency(parameters: Parameters) -> Array:
    """Throughput of a GPU of all over that on the fewest GCDs whose memory is enough."""
    study, known = read_partition_study(), partitioned_training(parameters)
    scheme = study.scheme(_THREE_LEVELS)
    found = (known.tflops(scheme, gpus) for gpus in study.predicted.gpus)
    first = next(one for one in found if not np.isnan(one).any())
    return np.asarray(known.tflops(scheme, _GPUS) / first)


def _links_are_ordered(_: Parameters) -> Array:
    """Whether a GCD's share of the links falls from level to level, while all GCDs send."""
    below, shares = 1, []
    for level in cluster(read_partition_study().predicted.cluster).topology.levels:
        shares.append(level.link_gbps / below)
        below *= level.members
    return np.array(bool(np.all(np.diff(shares) < 0)))


def _second_copies_spare_the_fabric(_: Parameters) -> Array:
    """Whether hpZ, which adds second copies to ZeRO-3 and nothing else, sends less in groups that
    span nodes, and all of ZeRO++ still less."""
    return np.array(_spared(_over_fabric(bytes_by_level(_GPUS))))


def _over_fabric(sent: pd.DataFrame) -> "pd.Series[float]":
    """What a rank sends between nodes in an iteration, by scheme."""
    fabric: pd.Series[float] = sent[sent.level == "fabric"].groupby("scheme").sent_bytes.sum()
    return fabric


def _spared(fabric: "pd.Series[float]") -> bool:
    return bool(fabric[_ZERO_PP] < fabric[_HPZ] < fabric[_ZERO_3])


def _fabric_is_spared(_: Claim, results: xr.Dataset) -> Finding:
    """The same of what the testbed's log has."""
    fabric = _over_fabric(logged_by_level(results, read_partition_study().testbed.topology)) / 1e6
    said = (
        f"logged between nodes, in MB a rank and iteration: {fabric[_ZERO_3]:.3g} in ZeRO-3, "
        f"{fabric[_HPZ]:.3g} with second copies, {fabric[_ZERO_PP]:.3g} in ZeRO++"
    )
    return Finding(None, None, "reproduced" if _spared(fabric) else "not reproduced", said)


_OPEN = (
    "GPT-NeoX-20B in the base setting of params/hierarchical_zero.yaml (micro batch 1, one an "
    "iteration, sequences of 2,048, full recomputation, all hidden that can be): the abstract "
    "states none of it"
)
_SCHEMES = "ZeRO++ with all its parts, three levels with its quantised collectives too"
_WEAK = "weak scaling from the fewest GCDs whose memory is enough; weak or strong is not stated"
PARTITIONS: dict[str, Predicted] = {
    "C142": Predicted(_gain, 1.0, "frontier", f"{_OPEN}; {_SCHEMES}"),
    "C143": Predicted(_efficiency, 1.0, "frontier", f"{_OPEN}; {_WEAK}"),
    "C144": Predicted(_links_are_ordered, None, "frontier", "each GCD's share while all send"),
    "C145": Predicted(_second_copies_spare_the_fabric, None, "frontier", _OPEN),
}
PARTITIONED = {"C145": _fabric_is_spared}
