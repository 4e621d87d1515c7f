"""Models and hardware as users name them: by name, file, arguments, or rates of links.

All commands that predict read them here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repro.catalog.models.hugging_face import ModelFile, parse_config, read_config
from repro.catalog.models.megatron_arguments import is_arguments, read_arguments
from repro.catalog.models.open_models import model_named, read_open_models
from repro.catalog.systems.clusters import cluster as read_cluster
from repro.catalog.systems.gpu_check import read_gpu_sheet
from repro.catalog.systems.gpus import Gpu, gpu_named
from repro.errors import ReproError, of_file

_NICS = re.compile(r"(?:(\d{1,4})\s*[x*]\s*)?(\d{1,6}(?:\.\d{1,6})?)")
# GPUs of a node where its maker joins more of them by fast links.
_NODE_GPUS = 8


@dataclass(frozen=True)
class Hardware:
    """GPUs and the links between them.

    Attributes
    ----------
    device
        GPU with the links and NICs of its nodes.
    known
        Whether the GPU is one of `params/gpus.yaml`, and not of a data sheet.
    gpus_per_node
        GPUs of a node.
    nic_gbps
        Rate of all NICs of a node, in Gbit/s.
    notes
        What was not given and by which rule it was filled; one phrase each.
    gpus
        GPUs of the cluster; None for nodes of one's own.
    """

    device: Gpu
    known: bool
    gpus_per_node: int
    nic_gbps: float
    notes: tuple[str, ...] = ()
    gpus: int | None = None

    def notes_on(self, gpus: int) -> list[str]:
        """Return a note if a job has more GPUs than the cluster."""
        few = self.gpus is not None and gpus > self.gpus
        return [f"more nodes than the cluster has, which are {self.gpus} GPUs"] if few else []


def read_model(given: str, seq: int | None = None, vocabulary: int | None = None) -> ModelFile:
    """Read a model.

    Parameters
    ----------
    given
        Name in `params/open_models.yaml` in any spelling, path of a `config.json` or of Megatron's
        arguments, or the text of either.
    seq
        Tokens of a sequence. Default: those that the model or the arguments state.
    vocabulary
        Tokens of the tokenizer, where arguments do not state them.

    Raises
    ------
    ReproError
        The name is unknown, a file or an argument is not understood, a size is less than 1, or the
        sequence is longer than learned positions.
    """
    _check_sizes(seq=seq, vocabulary=vocabulary)
    found = _read_model(given, seq, vocabulary)
    if seq is not None:
        kept = tuple(one for one in found.notes if not one.startswith("sequence length"))
        found = replace(found, shape=found.shape.model_copy(update={"seq": seq}), notes=kept)
    if 0 < found.shape.positions < found.shape.seq:
        raise ReproError(
            f"seq {found.shape.seq} is longer than {found.shape.positions} learned positions; "
            "fix: lower it"
        )
    return found


def _read_model(given: str, seq: int | None, vocabulary: int | None) -> ModelFile:
    path = Path(given)
    if given.lstrip().startswith("{"):
        _refuse_vocabulary("config.json", vocabulary)
        return parse_config(given, "config.json")
    if _is_file(path) and path.suffix == ".json":
        _refuse_vocabulary(given, vocabulary)
        return replace(read_config(path), label=_label(path))
    if not _is_file(path) and ("--" in given or "\n" in given):
        return _read_arguments(given, seq, vocabulary)
    if _is_file(path):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ReproError(f"{path}: cannot be read as text ({error})") from None
        with of_file(path, "give a config.json or a file of Megatron's arguments"):
            if not is_arguments(text):
                raise ReproError("neither a config.json nor Megatron's arguments")
            return _read_arguments(text, seq, vocabulary)
    entry = model_named(given)
    if entry is None:
        known = ", ".join(read_open_models())
        raise ReproError(
            f"unknown model {given!r:.80}: no such file; choose from: {known}, or give a "
            "config.json or a file of Megatron's arguments"
        )
    _refuse_vocabulary(given, vocabulary)
    note = f"sequence length {entry.shape.seq}, of params/open_models.yaml"
    formats = entry.published_formats
    return ModelFile(entry.label, entry.shape, (note,), published_formats=formats)


def _refuse_vocabulary(given: str, vocabulary: int | None) -> None:
    if vocabulary is not None:
        raise ReproError(
            f"vocabulary {vocabulary}: {given} has its own; fix: omit it, as only Megatron's "
            "arguments need it"
        )


def _is_file(path: Path) -> bool:
    """Return whether a path names a file; arguments are too long for one, or have other signs."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _read_arguments(text: str, seq: int | None, vocabulary: int | None) -> ModelFile:
    if seq and "seq-length" not in text and "seq_length" not in text:
        text += f"\n--seq-length {seq}"
    arguments = read_arguments(text, vocabulary)
    return replace(arguments.model, plan=arguments.plan)


def _label(path: Path) -> str:
    """Name a model by its file, or by its folder if the file is called as all are."""
    return path.parent.name if path.stem == "config" and path.parent.name else path.stem


def read_hardware(
    gpu: str | None = None,
    cluster: str | None = None,
    gpus_per_node: int | None = None,
    nic: str | None = None,
) -> Hardware:
    """Read the GPU, nodes and network of a job.

    Parameters
    ----------
    gpu
        Name in `params/gpus.yaml`, or path of a data sheet.
    cluster
        Name in `params/clusters.yaml`, whose GPU, links and NICs are used.
    gpus_per_node, nic
        GPUs of a node, and its NICs in Gbit/s, such as `8x400`.

    Raises
    ------
    ReproError
        A name is unknown, a file is not a data sheet, a size is less than 1, or inputs contradict
        each other.
    """
    _check_sizes(gpus_per_node=gpus_per_node)
    if cluster is not None:
        if gpus_per_node or nic:
            raise ReproError("cluster beside gpus_per_node or nic; fix: give either")
        return _of_cluster(cluster, gpu)
    if gpu is None:
        raise ReproError("no GPU; fix: give gpu (params/gpus.yaml or a data sheet) or cluster")
    path = Path(gpu)
    known = path.suffix not in (".yaml", ".yml")
    device = gpu_named(gpu) if known else read_gpu_sheet(path)
    notes: list[str] = []
    per_node = gpus_per_node or min(device.domain_gpus, _NODE_GPUS)
    if gpus_per_node is None:
        notes.append(f"{per_node} GPUs per node, as not given")
    if nic is None:
        notes.append(f"a NIC of {device.nic_gbps:g} Gbit/s per GPU, of its maker's systems")
        node_gbps = device.nic_gbps * per_node
    else:
        node_gbps = nics_gbps(nic)
    changed: dict[str, Any] = {"nic_gbps": node_gbps / per_node}
    # Links join a node, or less where a bridge joins few cards, or more in a rack.
    if device.domain_gpus <= _NODE_GPUS:
        few = device.domain_gpus < _NODE_GPUS
        changed["domain_gpus"] = min(per_node, device.domain_gpus) if few else per_node
    device = device.model_copy(update=changed)
    return Hardware(device, known, per_node, node_gbps, tuple(notes))


def _of_cluster(name: str, gpu: str | None) -> Hardware:
    entry = read_cluster(name)
    node, fabric = entry.topology.levels[-2:]
    if gpu is not None and gpu_named(gpu).label != entry.device.label:
        raise ReproError(f"gpu {gpu}: {name} has {entry.device.label}; fix: omit it")
    per_node = entry.topology.gpus_per_node
    changed: Mapping[str, Any] = {
        "domain_gpus": per_node,
        "link_gbytes_per_s": node.link_gbps / 8,
        "nic_gbps": fabric.link_gbps / per_node,
    }
    device = entry.device.model_copy(update=changed)
    return Hardware(device, True, per_node, fabric.link_gbps, gpus=entry.topology.gpus)


def _check_sizes(**sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ReproError(f"{name} {size}: take 1 or more")


def nics_gbps(text: str) -> float:
    """Read the NICs of a node, such as 8x400 or 200, in Gbit/s.

    Raises
    ------
    ReproError
        The text is no number of NICs and rate.
    """
    found = _NICS.fullmatch(text.strip())
    rate = float(found[2]) * int(found[1] or 1) if found else 0.0
    if not rate:
        raise ReproError(f"nic {text!r:.40}; fix: write the NICs of a node as 8x400 (Gbit/s each)")
    return rate
