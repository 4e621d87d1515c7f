"""What the pipeline measures, resolved into one small file a stage, which the stage depends on.

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


def write_resolved(profile: str, folder: Path) -> list[Path]:
    """Resolve every stage that measures, and write `FOLDER/STAGE.json`.

    Raises
    ------
    ReproError
        The computing times were not measured, or not on this machine.
    """
    found: dict[str, list[Resolved]] = {
        name: [resolve(select(name, protocol=_PROTOCOL.get(name, "all"), profile=profile))]
        for name in EXPERIMENTS
    }
    for cluster in read_collectives_sweep().clusters:
        found[f"collectives-{cluster}"] = [resolve(select_sweep(cluster, profile=profile))]
    found["communication"] = [resolve_communication(profile=profile)]
    found["hierarchical_zero"] = [resolve_partitions(profile)]
    found["compression"] = [resolve_compression(profile=profile)]
    one = select("weak_scaling", models="bert-large", gpus=8, profile=profile)
    found["sensitivity"] = resolve_sensitivity(one)
    return [_write(folder / f"{stage}.json", parts) for stage, parts in found.items()]


def _write(path: Path, parts: list[Resolved]) -> Path:
    replace_text(path, "\n".join(part.as_json() for part in parts) + "\n")
    return path
