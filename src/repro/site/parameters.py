"""Page of every field in `params/`, from the pydantic models that validate the files."""

import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from repro.catalog.models.ignored_fields import IgnoredFields
from repro.catalog.models.open_models import OpenModel
from repro.catalog.models.papers import Model
from repro.catalog.reading import Entry
from repro.catalog.studies.collectives import Collectives
from repro.catalog.studies.communication import CommunicationStudy
from repro.catalog.studies.compressed_training import CompressedTraining
from repro.catalog.studies.compression import CompressionStudy
from repro.catalog.studies.decoding import Decoding
from repro.catalog.studies.experiments import EXPERIMENTS, Experiment
from repro.catalog.studies.larger_models import LargerModels
from repro.catalog.studies.operators import OperatorStudy
from repro.catalog.studies.partitions import PartitionStudy
from repro.catalog.studies.published_memory import PublishedMemory
from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.gpus import Gpu
from repro.catalog.systems.nodes import Nodes
from repro.catalog.systems.protocols import Protocol, Variant
from repro.catalog.systems.serving import ServingStack
from repro.catalog.systems.software_stacks import Stack
from repro.catalog.systems.technology import Technology
from repro.corpus.config import CorpusConfig
from repro.predict.fused.parameters import FusedCalibration
from repro.predict.network.links import LinkCalibration
from repro.predict.operators.measured import MeasuredOperator
from repro.predict.parameters import Calibration
from repro.predict.serving.parameters import ServingFit
from repro.site.pages import table, write_page

# Models that validate each file.
_FILES: dict[str, tuple[type[Entry], ...]] = {
    ", ".join(f"{name}.yaml" for name in (*EXPERIMENTS, "one_gpu")): (Experiment,),
    "models.yaml": (Model,),
    "clusters.yaml": (Cluster,),
    "gpus.yaml": (Gpu,),
    "protocols.yaml": (Protocol, Variant),
    "nodes.yaml": (Nodes,),
    "collectives.yaml": (Collectives,),
    "corpus.yaml": (CorpusConfig,),
    "open_models.yaml": (OpenModel,),
    "ignored_fields.yaml": (IgnoredFields,),
    "stacks.yaml": (Stack,),
    "serving.yaml": (ServingStack,),
    "technology.yaml": (Technology,),
    "communication.yaml": (CommunicationStudy,),
    "memory.yaml": (PublishedMemory,),
    "hierarchical_zero.yaml": (PartitionStudy,),
    "compression.yaml": (CompressionStudy,),
    "compressed_training.yaml": (CompressedTraining,),
    "larger_models.yaml": (LargerModels,),
    "calibration/*.yaml": (Calibration,),
    "links.yaml": (LinkCalibration,),
    "operators.yaml": (MeasuredOperator,),
    "fused.yaml": (FusedCalibration,),
    "serving_fit.yaml": (ServingFit,),
    "decoding.yaml": (Decoding,),
    "operator_study.yaml": (OperatorStudy,),
}
_ATTRIBUTES = re.compile(r"\n*Attributes\n-+\n(.*)", re.DOTALL)
_UNIONS = (Union, types.UnionType)


def write_parameters(path: Path) -> None:
    """Write a page with a table of fields for each model of each file."""
    blocks = []
    seen: set[type[Entry]] = set()
    for file, models in _FILES.items():
        blocks.append(f"## {file}")
        for model in models:
            for one in _with_parts(model):
                if one not in seen:
                    seen.add(one)
                    blocks += _describe(one)
    introduction = (
        "Files in `params/` hold all parameters. They are validated when they are read: an error "
        "is one line that names the unknown key or the invalid value. `pipeline.yaml` selects the "
        "profile of `dvc repro`."
    )
    write_page(path, "Parameters: all fields", introduction, *blocks)


def _describe(model: type[Entry]) -> list[str]:
    prose = inspect.getdoc(model) or ""
    meanings = _meanings(prose)
    rows = [
        (f"`{name}`", f"`{_type(field)}`", _default(field), meanings.get(name, ""))
        for name, field in model.model_fields.items()
    ]
    header = ["field", "type", "default", *(["meaning"] if meanings else [])]
    rows_shown = [row[: len(header)] for row in rows]
    return [f"### {model.__name__}", _ATTRIBUTES.sub("", prose), table(header, rows_shown)]


def _meanings(prose: str) -> dict[str, str]:
    """Return field descriptions from a docstring's Attributes; fields may share an entry."""
    section = _ATTRIBUTES.search(prose)
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else []:
        if line and not line.startswith(" "):
            names = line.split(":")[0].split(", ")
        else:
            for name in names:
                found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return found


def _with_parts(model: type[Entry]) -> Iterator[type[Entry]]:
    """Yield a model and the models of its fields, in order."""
    yield model
    for field in model.model_fields.values():
        for part in _entries(field.annotation):
            yield from _with_parts(part)


def _entries(annotation: Any) -> Iterator[type[Entry]]:
    if isinstance(annotation, type) and issubclass(annotation, Entry):
        yield annotation
    for part in get_args(annotation):
        yield from _entries(part)


def _type(field: FieldInfo) -> str:
    limits = ", ".join(str(limit) for limit in field.metadata if "(" in str(limit))
    return _name(field.annotation) + (f" [{limits}]" if limits else "")


def _name(annotation: Any) -> str:
    """Return a short name of a type: `int`, `dict[str, Profile]`, `'gpt' | 'bert'`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _name(parts[0])
    if origin in _UNIONS:
        return " | ".join(_name(part) for part in parts)
    if origin is None:
        return "None" if annotation is type(None) else getattr(annotation, "__name__", "any")
    if not isinstance(origin, type):
        return " | ".join(map(repr, parts))
    inner = ", ".join("..." if part is ... else _name(part) for part in parts)
    return f"{origin.__name__}[{inner}]"


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else f"`{field.get_default()!r}`"
