"""Properties of this machine that decide testbed measurements, and caveats about results."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import xarray as xr

from repro.atomic import replace_text
from repro.catalog.studies.experiments import experiment, most_gpus
from repro.observe.environment import computing_machine
from repro.results.store import has_runs, why_not_run
from repro.testbed.ability import testbed_ability
from repro.testbed.speed import cores_per_rank

# Methods by which a rank becomes an emulated GPU, as datasets record them.
_MEANS = {
    "speed": "passes are held back to their CPU time / cores",
    "memory": "a rank counts its own peak, after every layer",
    "links": "as slow as passes are beside one rank alone, if there is such a rank",
}


def means_here() -> dict[str, object]:
    """Return what decides the speed of emulated GPUs here, except CPU shares: machine, methods."""
    return {**computing_machine(), **_MEANS}


def emulated_gpu(cores: float) -> dict[str, object]:
    """Return what decides the speed of an emulated GPU with a CPU share of so many cores here."""
    return {**means_here(), "cores": cores}


def differences(dataset: xr.Dataset, here: Mapping[str, object]) -> str:
    """Return the differences between this machine and that of a dataset; empty if none."""
    there = json.loads(dataset.attrs.get("emulated_gpu", "{}"))
    return ", ".join(
        f"{name} {there.get(name, 'unknown')}, not {value}"
        for name, value in here.items()
        if there.get(name) != value
    )


def note_machine(path: Path) -> Iterable[str]:
    """Write the properties that decide measurements to a file, which changes when one of them does.

    Returns
    -------
    iterable of str
        Lines for the user before anything runs: that the testbed cannot run here, or that results
        are another machine's.
    """
    ability = testbed_ability()
    here = {**means_here(), "testbed": ability.works}
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else here
    replace_text(path, json.dumps(here, indent=1) + "\n")
    if before != here:
        changed = [f"{name} {before.get(name)}" for name in here if before.get(name) != here[name]]
        yield f"results are of a machine with {', '.join(changed)}: they are measured again here"
    if not ability.works:
        yield f"the testbed does not run here, everything else does: {ability.found}"


def _as_in(cluster_name: str) -> dict[str, object]:
    """Return what decides the speed of an emulated GPU of a cluster here."""
    return emulated_gpu(cores_per_rank(most_gpus(cluster_name)))


def caveats(results: Mapping[str, xr.Dataset]) -> list[str]:
    """Return caveats about experiments' results, one line each.

    They list configurations that were not measured, with the cause, and results of other machines.
    """
    missing: dict[str, list[str]] = {}
    elsewhere: dict[str, list[str]] = {}
    for name, dataset in results.items():
        if reason := why_not_run(dataset):
            missing.setdefault(reason, []).append(name)
        emulated = has_runs(dataset) and "emulated_gpu" in dataset.attrs
        if emulated and (changed := differences(dataset, _as_in(experiment(name).cluster))):
            elsewhere.setdefault(changed, []).append(name)
    return [
        *(f"Not measured: {', '.join(names)} ({why})." for why, names in missing.items()),
        *(
            f"Measured on another machine: {', '.join(names)} ({changed})."
            for changed, names in elsewhere.items()
        ),
    ]
