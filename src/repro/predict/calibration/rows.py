"""Measurements as rows: read, checked, and turned into workloads on machines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from repro.catalog.models.papers import Family
from repro.catalog.reading import choose
from repro.catalog.systems.clusters import Cluster, read_clusters
from repro.catalog.systems.gpus import find_gpu_name, gpu
from repro.catalog.systems.topology import Level, Topology
from repro.errors import ReproError
from repro.logs.measurements import RanksMissing
from repro.logs.reading import read_log
from repro.paths import PUBLISHED
from repro.predict.fused.reading import NEEDED as FUSED
from repro.predict.fused.reading import read_runs, stack_names
from repro.predict.operators.measured import KINDS as OPERATORS
from repro.predict.operators.measured import kind_of
from repro.predict.serving.reading import is_serving
from repro.predict.workload import Array, Workload, check, from_columns

TRAINING = (
    *("set", "gpu", "gpus", "gpus_per_node", "inter_node_gbps_per_node"),
    *("layers", "hidden", "heads", "seq", "vocab", "tp", "pp", "dp", "vpp"),
    *("micro_batch", "global_batch", "recompute", "sequence_parallel", "iteration_time_s"),
)
# Columns that a table may have beside them, and what holds where it has none or says nothing.
_OPTIONAL: Mapping[str, str | int] = {"family": "gpt", "decoder_seq": 0, "timed": "iteration"}
# What `iteration_time_s` may be of, as phases of `repro.predict.step.iteration`; None: all of them.
TIMED: dict[str, tuple[str, ...] | None] = {
    "iteration": None,
    "computing": ("forward_compute", "backward_compute", "recompute"),
    "optimizer": ("optimizer",),
}
# Megatron-LM of 2021, the software that `repro.predict.step` is about: what tables run on that have
# none of these columns, on GPUs of these generations.
UNFUSED = "megatron-lm-2021"
_FUSED_ONLY = {"cp", "ep", "attention", "gated_mlp"}
_UNFUSED_GENERATIONS = ("volta", "ampere", "cdna2")
_COLLECTIVES_FILE = "collectives_nccl.csv"
# What the table of the GPT-350M report was measured on (sections 3.1 and 3.2); the network's name
# is that of its cluster in params/clusters.yaml.
_BIG_RED_FILE = "nccl_bigred200.csv"
_BIG_RED = {
    "gpu": "A100-SXM-40GB",
    "network": "Slingshot-10 100 Gb/s per node",
    "collective": "all_reduce",
}
_BIG_RED_NODES = {"inter": 2, "intra": 1}
COLLECTIVES = ("gpu", "ranks", "nodes", "network", "collective", "size_bytes", "time_us")


def read_rows(path: Path) -> pd.DataFrame:
    """A CSV of measurements.

    Raises
    ------
    ReproError
        The file is missing, empty or no CSV, or has none of the known forms; the message names
        what is missing.
    """
    try:
        rows = pd.read_csv(path)
    except FileNotFoundError:
        raise ReproError(f"{path}: no such file") from None
    except OSError as error:
        raise ReproError(f"{path}: cannot be read ({error.strerror})") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ReproError(f"{path}: not a CSV of measurements ({error})") from None
    if {f"{side}_time_us" for side in _BIG_RED_NODES} <= set(rows.columns):
        rows = _big_red_rows(rows)
    if rows.empty:
        raise ReproError(f"{path}: no rows")
    if is_serving(rows):
        return rows
    if (kind := operator_kind(rows)) is not None:
        _check_columns(path, rows, ("gpu", "dtype", *OPERATORS[kind].apart, "time_us"))
        _refuse(path, rows, "gpu", rows.gpu.isna(), "text")
        _check_numbers(path, rows, (*OPERATORS[kind].axes, "time_us"))
    elif "collective" in rows.columns:
        _check_columns(path, rows, COLLECTIVES)
        _check_numbers(path, rows, ("ranks", "nodes", "size_bytes", "time_us"))
    else:
        _check_runs(path, rows)
    return rows


def read_training(path: Path) -> pd.DataFrame:
    """A CSV of training runs of Megatron-LM of 2021, as `read_rows`.

    Raises
    ------
    ReproError
        As there, or it is a table of something else.
    """
    rows = read_rows(path)
    _check_columns(path, rows, TRAINING)
    return rows


def operator_kind(rows: pd.DataFrame) -> str | None:
    """The kind of operator that a table is of; None for other tables. Collectives are one on a node
    whose network has no name."""
    return None if "network" in rows.columns else kind_of(rows.columns)


def software(rows: pd.DataFrame) -> pd.Series:
    """Each run's software: `stack`; where that is blank, in a table that knows none of what came
    later, `UNFUSED` on GPUs of its time; else what its set is known to have run on."""
    found = stack_names(rows)
    if _FUSED_ONLY & set(rows.columns):
        return found
    generations = rows.gpu.map(lambda label: gpu(find_gpu_name(str(label))).generation)
    unsaid = rows["stack"].isna() if "stack" in rows.columns else True
    return found.mask(generations.isin(_UNFUSED_GENERATIONS) & unsaid, UNFUSED)


def _big_red_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The report's two settings, which stand side by side, one below the other."""
    settings = [
        pd.DataFrame(
            {
                **_BIG_RED,
                "ranks": table[f"{side}_n"],
                "nodes": nodes,
                "size_bytes": table["size_bytes"],
                "time_us": table[f"{side}_time_us"],
            }
        )
        for side, nodes in _BIG_RED_NODES.items()
    ]
    return pd.concat(settings, ignore_index=True)


def read_collectives(
    logs: Sequence[Path],
    gpu: str,
    network: str,
    ranks: int | None = None,
    nodes: int | None = None,
) -> tuple[pd.DataFrame, str]:
    """The published collectives, and those of logs on one GPU and network.

    Parameters
    ----------
    logs
        Of any tool that `repro.logs.reading` reads.
    ranks, nodes
        Of the logs, where they do not say.

    Returns
    -------
    tuple
        The rows, and the files that they come from.

    Raises
    ------
    ReproError
        A log cannot be read, or the GPU, the network or the number of nodes is not known. The
        number of ranks is asked for once, for all logs that do not say it.
    """
    published = (_COLLECTIVES_FILE, _BIG_RED_FILE)
    parts = [read_rows(PUBLISHED / name) for name in published]
    silent = []
    for path in logs:
        if not gpu or not network:
            raise ReproError(f"{path}: does not say what it ran on; give --gpu and --network")
        try:
            measured = read_log(path, ranks=ranks)
        except RanksMissing:
            silent.append(str(path))
            continue
        if measured.nodes.isna().any():
            if nodes is None:
                raise ReproError(f"{path}: lists no hosts; say how many nodes there were (--nodes)")
            measured["nodes"] = measured.nodes.fillna(nodes)
        out_of_place = measured[~measured.in_place.astype(bool)]
        parts.append(out_of_place.assign(gpu=gpu, network=network))
    if silent:
        raise ReproError(f"{', '.join(silent)}: no list of ranks; say how many (--ranks)")
    names = ", ".join([*published, *(path.name for path in logs)])
    return pd.concat(parts, ignore_index=True), names


_TEXT = ("set", "gpu", "recompute", "sequence_parallel")


def _check_runs(path: Path, rows: pd.DataFrame) -> None:
    _check_columns(path, rows, (*FUSED, "iteration_time_s"))
    _refuse(path, rows, "gpu", rows.gpu.isna(), "text")
    _check_numbers(path, rows, ("iteration_time_s",))
    if (software(rows) == UNFUSED).any():
        _check_unfused(path, rows)
        return
    try:
        read_runs(rows)
    except ReproError as error:
        raise ReproError(f"{path}: {error}") from None


def _check_columns(path: Path, rows: pd.DataFrame, wanted: tuple[str, ...]) -> None:
    missing = [name for name in wanted if name not in rows.columns]
    if missing:
        raise ReproError(f"{path}: no column {missing[0]!r}; wanted are {', '.join(wanted)}")


def _check_unfused(path: Path, rows: pd.DataFrame) -> None:
    _check_columns(path, rows, TRAINING)
    _check_numbers(path, rows, tuple(name for name in TRAINING if name not in _TEXT))
    for name in _TEXT:
        _refuse(path, rows, name, rows[name].isna(), "text")
    yes_or_no = rows.sequence_parallel.isin(["yes", "no"])
    _refuse(path, rows, "sequence_parallel", ~yes_or_no, "yes or no")
    product = rows.tp * rows.pp * rows.dp
    _refuse(path, rows, "gpus", rows.gpus != product, "tp x pp x dp")


def _check_numbers(path: Path, rows: pd.DataFrame, names: tuple[str, ...]) -> None:
    for name in names:
        values = pd.to_numeric(rows[name], errors="coerce")
        _refuse(path, rows, name, ~(values > 0), "a positive number")


def _refuse(path: Path, rows: pd.DataFrame, name: str, wrong: pd.Series, wanted: str) -> None:
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        value = rows[name].tolist()[row]
        raise ReproError(f"{path}: line {row + 2}: {name} is {value!r}; wanted is {wanted}")


@dataclass(frozen=True)
class TrainingRows:
    """Rows of one machine: where they stand in their table, what was run, how long it took.

    `phases` are those of an iteration that were timed; None: the whole of it.
    """

    index: pd.Index
    cluster: Cluster
    workload: Workload
    iteration_time_s: Array
    phases: tuple[str, ...] | None = None


def training_rows(rows: pd.DataFrame) -> Iterator[TrainingRows]:
    """Training measurements by machine, family of models and what was timed.

    Beside `TRAINING` a table may have the columns `family` (gpt, bert, t5; without it gpt),
    `decoder_seq` (tokens, t5's) and `timed` (a name of `TIMED`; without it the iteration).

    Raises
    ------
    ReproError
        A GPU, a family or what was timed is unknown, or a row's sizes do not divide.
    """
    machine = ["gpu", "gpus_per_node", "inter_node_gbps_per_node"]
    completed = rows.assign(
        **{
            name: rows[name].fillna(value) if name in rows.columns else value
            for name, value in _OPTIONAL.items()
        }
    )
    for key, group in completed.groupby([*machine, "family", "timed"]):
        gpu, gpus_per_node, fabric_gbps, family, timed = cast(tuple[str, int, float, str, str], key)
        columns: dict[str, ArrayLike] = {
            # A run that was measured did run, so stages may be uneven: the fullest one decides.
            "layers": np.ceil(group.layers / (group.pp * group.vpp)) * group.pp * group.vpp,
            "hidden_size": group.hidden,
            "ffn_hidden_size": 4 * group.hidden,
            "attention_heads": group.heads,
            "sequence_length": group.seq,
            "decoder_sequence_length": group.decoder_seq,
            "vocabulary_size": group.vocab,
            "global_batch_size": group.global_batch,
            "micro_batch_size": group.micro_batch,
            "data_parallel": group.dp,
            "tensor_parallel": group.tp,
            "pipeline_parallel": group.pp,
            "virtual_stages": group.vpp,
            "recompute": group.recompute.to_numpy(dtype=str),
            "sequence_parallel": group.sequence_parallel == "yes",
            "distributed_optimizer": np.zeros(len(group)),
            "overlap_gradient_sync": np.zeros(len(group)),
            "gradient_bytes": np.full(len(group), 2),
        }
        known: dict[str, Family] = {name: name for name in get_args(Family)}
        run = from_columns(choose("family", family, known), **columns)
        check(run)
        yield TrainingRows(
            index=group.index,
            cluster=cluster_like(gpu, int(gpus_per_node), float(fabric_gbps)),
            workload=run,
            iteration_time_s=group.iteration_time_s.to_numpy(dtype=float),
            phases=choose("timed", timed, TIMED),
        )


def cluster_like(gpu: str, gpus_per_node: int, fabric_gbps: float) -> Cluster:
    """The catalog's cluster with that GPU, node and rate between nodes.

    Where there is none: the first one with that GPU, with that node size and rate.

    Raises
    ------
    ReproError
        No cluster of the catalog has that GPU.
    """
    name = find_gpu_name(gpu)
    having = [entry for entry in read_clusters().values() if entry.gpu == name]
    if not having:
        raise ReproError(f"no cluster in params/clusters.yaml has the GPU {gpu!r}; add one")
    for entry in having:
        top = entry.topology.levels[-1]
        if entry.topology.gpus_per_node == gpus_per_node and top.link_gbps == fabric_gbps:
            return entry
    node, fabric = having[0].topology.levels[-2:]
    levels = (
        Level(name=node.name, members=gpus_per_node, link_gbps=node.link_gbps),
        Level(name=fabric.name, members=fabric.members, link_gbps=fabric_gbps),
    )
    # What was measured on the one with another node and fabric says nothing of this one.
    changed = {"topology": Topology(levels=levels), "network": None}
    return having[0].model_copy(update=changed)
