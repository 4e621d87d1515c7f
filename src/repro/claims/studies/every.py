"""Studies that are no experiments: which claims they bring, and what their measurements say."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import xarray as xr

from repro.claims.findings import Finding, unanswered
from repro.claims.published import Claim
from repro.claims.studies.communication import COMMUNICATION, LOGGED
from repro.claims.studies.compression import COMPRESSION, LOSSES
from repro.claims.studies.partitions import PARTITIONED, PARTITIONS
from repro.results.store import why_not_run

Judge = Callable[[Claim, xr.Dataset], Finding]


@dataclass(frozen=True)
class Study:
    """The claims that a study's predictions answer, and who judges others on its dataset."""

    predicted: Collection[str]
    measured: Mapping[str, Judge]


STUDIES: Mapping[str, Study] = {
    "communication": Study(COMMUNICATION, LOGGED),
    "hierarchical_zero": Study(PARTITIONS, PARTITIONED),
    "compression": Study(COMPRESSION, LOSSES),
}


def brought_by(name: str) -> frozenset[str]:
    """The claims that a study brings; none if it is an experiment."""
    study = STUDIES.get(name)
    return frozenset() if study is None else frozenset({*study.predicted, *study.measured})


def study_findings(claim: Claim, results: Mapping[str, xr.Dataset], source: str) -> Finding | None:
    """What a source's measurements of the study that a claim is of say; None: it is of none."""
    for name, study in STUDIES.items():
        if judge := study.measured.get(claim.id):
            return _judged(claim, judge, name, results.get(name), source)
    return None


def _judged(
    claim: Claim, judge: Judge, name: str, dataset: xr.Dataset | None, source: str
) -> Finding:
    if dataset is None or not dataset.data_vars:
        why = "" if dataset is None else why_not_run(dataset)
        return unanswered(why or f"{name} was not run")
    # What was measured on one machine alone has no such dimension.
    sources = dataset["source"].values if "source" in dataset.dims else ["testbed"]
    if source not in sources:
        return unanswered(f"{name} was not run on source {source}")
    return judge(claim, dataset.sel(source=[source]) if "source" in dataset.dims else dataset)
