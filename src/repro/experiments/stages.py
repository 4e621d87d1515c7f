"""What the pipeline's stages measure, resolved: into one small file a stage, which it depends on.

An edit of the performance model, of a parameter or of this room that leaves a stage's numbers as
they are leaves its file as it is, and nothing is measured again.
"""

from pathlib import Path

from repro.atomic import replace_text
from repro.catalog.studies.collectives import read_collectives_sweep, select_sweep
from repro.catalog.studies.experiments import EXPERIMENTS
from repro.catalog.studies.selection import select
from repro.experiments.communication import resolve_communication
from repro.experiments.compression import resolve_compression
from repro.experiments.obtain import resolve, resolve_sensitivity
from repro.experiments.partitions import resolve_partitions
from repro.experiments.resolved import Resolved

# Measured over fewer protocols than it is predicted for.
_PROTOCOL = {"micro_batches": "rdma"}
_STUDIES = ("communication", "hierarchical_zero", "compression", "sensitivity")
_SWEEPS = "collectives-"


def resolve_stage(name: str, profile: str) -> list[Resolved]:
    """What a stage measures, by the name of its dataset.

    Raises
    ------
    ReproError
        The computing times were not measured, or not on this machine.
    """
    if name in EXPERIMENTS:
        return [resolve(select(name, protocol=_PROTOCOL.get(name, "all"), profile=profile))]
    if name == "communication":
        return [resolve_communication(profile=profile)]
    if name == "hierarchical_zero":
        return [resolve_partitions(profile)]
    if name == "compression":
        return [resolve_compression(profile=profile)]
    if name == "sensitivity":
        return resolve_sensitivity(
            select("weak_scaling", models="bert-large", gpus=8, profile=profile)
        )
    return [resolve(select_sweep(name.removeprefix(_SWEEPS), profile=profile))]


def write_resolved(profile: str, folder: Path) -> list[Path]:
    """Resolve every stage, and write `FOLDER/STAGE.json`; raises as `resolve_stage` does."""
    sweeps = [f"{_SWEEPS}{cluster}" for cluster in read_collectives_sweep().clusters]
    names = (*EXPERIMENTS, *sweeps, *_STUDIES)
    return [_write(folder / f"{name}.json", resolve_stage(name, profile)) for name in names]


def _write(path: Path, parts: list[Resolved]) -> Path:
    replace_text(path, "\n".join(part.as_json() for part in parts) + "\n")
    return path
