"""Training jobs as users have them: a model, a plan, GPUs and a network, each given or by a rule.

A job is plain data: a YAML file, options of a command, or a row of a table. `resolve` fills what is
not given and says by which rule; nothing is taken for something else.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from repro.catalog.models.hugging_face import ModelFile, read_config
from repro.catalog.models.megatron_arguments import is_arguments, read_arguments
from repro.catalog.models.open_models import DecoderShape, read_open_models
from repro.catalog.reading import Entry, choose, read_yaml
from repro.catalog.systems.clusters import cluster as read_cluster
from repro.catalog.systems.gpus import Gpu, find_gpu_name, gpu, read_gpus
from repro.catalog.systems.software_stacks import read_stacks
from repro.errors import ReproError

Recompute = Literal["none", "selective", "full"]
_NICS = re.compile(r"(?:(\d+)\s*[x*]\s*)?(\d+(?:\.\d+)?)")
# Micro batches per replica and pipeline stage where no global batch is given.
_MICRO_BATCHES = 8
_MOST_RANKS = 10**6
Size = PositiveInt


class Job(Entry):
    """Training job.

    Attributes
    ----------
    model
        Name in `params/open_models.yaml`, path of a `config.json` or of Megatron's arguments, or
        the arguments themselves.
    vocabulary
        Tokens of the tokenizer, where arguments do not state them.
    gpu
        Name in `params/gpus.yaml`, or path of a data sheet.
    gpus
        GPUs of the job.
    cluster
        Name in `params/clusters.yaml`, whose GPU, links and NICs are used.
    gpus_per_node, nic
        A cluster of one's own: GPUs of a node, and its NICs in Gbit/s, such as `8x400`.
    tp, pp, cp, ep, etp, vpp
        Tensor, pipeline, context, expert and expert-tensor parallel sizes; chunks of a stage.
    micro_batch, global_batch, seq
        Sequences of a forward pass and of an iteration, tokens of a sequence.
    precision
        Precision of linear layers: bf16, fp8, mxfp8 or nvfp4.
    stack
        Software in `params/stacks.yaml`.
    recompute
        Activations that the backward pass computes again.
    zero
        Shared by replicas: 0 nothing, 1 the optimizer's states, 2 gradients too, 3 weights too.
    gradient_bytes
        Size of a gradient in memory, where micro batches are summed, and on the wire. Megatron-LM:
        4, or 2 with --grad-reduce-in-bf16.
    lora_rank
        Rank of adapters, which alone are trained; 0: everything is.
    expert_imbalance
        Tokens of the busiest expert-parallel rank over the mean.
    overlap
        Communication behind computing: all that the software can, or none.
    """

    model: str
    vocabulary: Size | None = None
    gpu: str | None = None
    gpus: Size | None = Field(default=None, le=_MOST_RANKS)
    cluster: str | None = None
    gpus_per_node: Size | None = None
    nic: str | None = None
    tp: Size | None = None
    pp: Size | None = None
    cp: Size | None = None
    ep: Size | None = None
    etp: Size | None = None
    vpp: Size | None = None
    micro_batch: Size | None = None
    global_batch: Size | None = None
    seq: Size | None = None
    precision: Literal["bf16", "fp8", "mxfp8", "nvfp4"] | None = None
    stack: str | None = None
    recompute: Recompute | None = None
    zero: NonNegativeInt | None = Field(default=None, le=3)
    gradient_bytes: Literal[2, 4] | None = None
    lora_rank: NonNegativeInt | None = None
    expert_imbalance: PositiveFloat | None = Field(default=None, ge=1)
    overlap: Literal["all", "none"] | None = None


@dataclass(frozen=True)
class ResolvedJob:
    """Job without gaps.

    Attributes
    ----------
    label
        Name of the model.
    shape
        Its dimensions, with the job's sequence length.
    device
        GPU with the links and NICs of the job's nodes.
    known
        Whether the GPU is one of `params/gpus.yaml`.
    nic_gbps
        Rate of all NICs of a node, in Gbit/s.
    gpus_per_node
        GPUs of a node.
    gpus, dp
        GPUs of the job, and its replicas.
    notes
        What was not given and by which rule it was filled; one phrase each.

    Other fields are those of `Job`.
    """

    label: str
    shape: DecoderShape
    device: Gpu
    known: bool
    gpus_per_node: int
    nic_gbps: float
    gpus: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    dp: int
    vpp: int
    micro_batch: int
    global_batch: int
    precision: str
    stack: str
    recompute: Recompute
    zero: int
    gradient_bytes: int
    lora_rank: int
    expert_imbalance: float
    overlap: str
    notes: tuple[str, ...]

    @property
    def micro_batches(self) -> int:
        """Micro batches of a replica per iteration."""
        return self.global_batch // (self.micro_batch * self.dp)

    @property
    def tokens(self) -> int:
        """Tokens of an iteration."""
        return self.global_batch * self.shape.seq


def job_of(fields: Mapping[str, Any]) -> Job:
    """Check the fields of a job.

    Raises
    ------
    ReproError
        A field is unknown or its value is not allowed; the message names both.
    """
    try:
        return Job(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise ReproError(f"unknown field {name}; choose from: {', '.join(_FIELDS)}") from None
        raise ReproError(f"{name} is {first['input']!r}: {first['msg']}") from None


_FIELDS = tuple(Job.model_fields)


def read_job(path: Path) -> Job:
    """Read a job from a YAML file.

    Raises
    ------
    ReproError
        The file is missing or not valid; the message names the field.
    """
    job: Job = read_yaml(path, Job)
    return job


def read_jobs(path: Path, options: Mapping[str, Any]) -> list[Job]:
    """Read a job per row of a CSV, whose columns are fields of `Job`; `options` fill the others.

    Raises
    ------
    ReproError
        The file is missing, or a cell is not allowed; the message names the row.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReproError(f"{path}: cannot be read as CSV ({error})") from None
    jobs = []
    for number, row in enumerate(rows, start=2):
        cells = {str(name): value for name, value in row.items() if value not in (None, "")}
        try:
            jobs.append(job_of({**options, **cells}))
        except ReproError as error:
            raise ReproError(f"{path}, line {number}: {error}") from None
    return jobs


def resolve(job: Job) -> ResolvedJob:
    """Fill what a job leaves out, and check that it can run.

    Raises
    ------
    ReproError
        A name is unknown, a file is not understood, or sizes do not divide.
    """
    notes: list[str] = []
    found, plan = _model(job)
    notes += found.notes
    device, known, per_node, nic_gbps = _hardware(job, notes)
    stated = {name: value for name, value in job if value is not None}

    def filled(name: str, rule: str, value: Any) -> Any:
        if name in stated:
            return stated[name]
        if name in plan:
            notes.append(f"{name} {plan[name]}, from the arguments")
            return plan[name]
        notes.append(f"{name} {value}, {rule}")
        return value

    gpus = filled("gpus", "one node", per_node)
    sizes = {name: filled(name, "as not given", 1) for name in ("tp", "pp", "cp", "vpp")}
    ep = filled("ep", "as not given", 1) if found.shape.experts else stated.get("ep", 1)
    etp = filled("etp", "Megatron's default is tp", sizes["tp"]) if ep > 1 else 1
    if found.shape.experts and ep == 1:
        etp = stated.get("etp", plan.get("etp", sizes["tp"]))
    split = sizes["tp"] * sizes["pp"] * sizes["cp"]
    if gpus % split:
        raise ReproError(
            f"gpus {gpus}: no multiple of tp {sizes['tp']} x pp {sizes['pp']} x cp {sizes['cp']} = "
            f"{split}; fix: change one of them"
        )
    dp = gpus // split
    micro_batch = filled("micro_batch", "as not given", 1)
    batch = micro_batch * dp * _MICRO_BATCHES * sizes["pp"]
    batch = filled("global_batch", f"{_MICRO_BATCHES} micro batches per replica and stage", batch)
    seq = stated.get("seq", plan.get("seq", found.shape.seq))
    resolved = ResolvedJob(
        label=found.label,
        shape=found.shape.model_copy(update={"seq": seq}),
        device=device,
        known=known,
        gpus_per_node=per_node,
        nic_gbps=nic_gbps,
        gpus=gpus,
        **sizes,
        ep=ep,
        etp=etp,
        dp=dp,
        micro_batch=micro_batch,
        global_batch=batch,
        precision=filled("precision", "as not given", "bf16"),
        stack=filled("stack", "as not given", "megatron-core"),
        recompute=filled("recompute", "as not given", "none"),
        zero=filled("zero", "the distributed optimizer", 1),
        gradient_bytes=filled("gradient_bytes", "Megatron's default", 4),
        lora_rank=stated.get("lora_rank", 0),
        expert_imbalance=stated.get("expert_imbalance", 1.0),
        overlap=stated.get("overlap", "all"),
        notes=tuple(notes),
    )
    check(resolved)
    return resolved


def check(job: ResolvedJob) -> None:
    """Refuse a job that cannot run.

    Raises
    ------
    ReproError
        Sizes do not divide, or the GPU lacks the precision; the message names the field.
    """
    shape, choices = job.shape, job.device.precisions
    choose("stack", job.stack, read_stacks())
    if job.precision not in choices:
        raise ReproError(
            f"precision {job.precision}: {job.device.label} has no units for it; choose from: "
            f"{', '.join(choices)}"
        )
    stage = job.dp * job.cp * job.tp
    rules = {
        f"tp {job.tp} does not divide {shape.heads} heads": shape.heads % job.tp,
        f"global_batch {job.global_batch} is no multiple of micro_batch {job.micro_batch} x dp "
        f"{job.dp}": job.global_batch % (job.micro_batch * job.dp),
        f"pp {job.pp} x vpp {job.vpp} are more chunks than {shape.layers} layers": (
            job.pp * job.vpp > shape.layers + shape.mtp_layers + 2
        ),
        f"vpp {job.vpp} needs pp above 1": job.vpp > 1 and job.pp == 1,
        f"cp {job.cp} does not divide seq {shape.seq}": shape.seq % job.cp,
        f"ep {job.ep}: {job.label} has no experts": job.ep > 1 and not shape.experts,
        f"ep {job.ep} does not divide {shape.experts} experts": (
            shape.experts and shape.experts % job.ep
        ),
        f"ep {job.ep} x etp {job.etp} does not divide the {stage} ranks of a stage": (
            shape.experts and stage % (job.ep * job.etp)
        ),
        f"zero {job.zero} with pp {job.pp}: sharded weights need pp 1": (
            job.zero == 3 and job.pp > 1
        ),
    }
    for message, broken in rules.items():
        if broken:
            raise ReproError(f"{message}; fix: change one of them")


def _model(job: Job) -> tuple[ModelFile, Mapping[str, Any]]:
    """Return a job's model, and the plan that comes with arguments."""
    known = read_open_models()
    if job.model in known:
        entry = known[job.model]
        note = f"sequence length {entry.shape.seq}, of params/open_models.yaml"
        return ModelFile(entry.label, entry.shape, () if job.seq else (note,)), {}
    text = job.model if "--" in job.model or "\n" in job.model else None
    path = Path(job.model)
    if text is None and not path.is_file():
        raise ReproError(
            f"unknown model {job.model!r}: no such file; choose from: {', '.join(known)}, or give "
            "a config.json or a file of Megatron's arguments"
        )
    if text is None:
        if path.is_dir() or path.suffix == ".json":
            found = read_config(path)
            kept = [one for one in found.notes if not (job.seq and one.startswith("sequence"))]
            return ModelFile(_label(path), found.shape, tuple(kept)), {}
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ReproError(f"{path}: cannot be read as text ({error})") from None
        if not is_arguments(text):
            raise ReproError(f"{path}: neither a config.json nor Megatron's arguments")
    if job.seq and "seq-length" not in text and "seq_length" not in text:
        text += f"\n--seq-length {job.seq}"
    arguments = read_arguments(text, job.vocabulary)
    return arguments.model, arguments.plan


def _label(path: Path) -> str:
    """Name a model by its file, or by its folder if the file is called as all are."""
    return path.parent.name if path.stem == "config" and path.parent.name else path.stem


def _hardware(job: Job, notes: list[str]) -> tuple[Gpu, bool, int, float]:
    """Return the GPU with its links, whether it is known, GPUs of a node, and its NICs' rate."""
    if job.cluster is not None:
        if job.gpus_per_node or job.nic:
            raise ReproError("cluster beside gpus_per_node or nic; fix: give either")
        entry = read_cluster(job.cluster)
        node, fabric = entry.topology.levels[-2:]
        device = gpu(find_gpu_name(job.gpu)) if job.gpu else entry.device
        if device.label != entry.device.label:
            raise ReproError(f"gpu {job.gpu}: {job.cluster} has {entry.device.label}; fix: omit it")
        per_node = entry.topology.gpus_per_node
        changed: dict[str, Any] = {
            "domain_gpus": per_node,
            "link_gbytes_per_s": node.link_gbps / 8,
            "nic_gbps": fabric.link_gbps / per_node,
        }
        return device.model_copy(update=changed), True, per_node, fabric.link_gbps
    if job.gpu is None:
        raise ReproError("no GPU; fix: give gpu (params/gpus.yaml or a data sheet) or cluster")
    path = Path(job.gpu)
    known = path.suffix not in (".yaml", ".yml")
    device = gpu(_gpu_name(job.gpu)) if known else read_yaml(path, Gpu)
    per_node = job.gpus_per_node or min(device.domain_gpus, 8)
    if job.gpus_per_node is None:
        notes.append(f"{per_node} GPUs per node, as not given")
    if job.nic is None:
        notes.append(f"a NIC of {device.nic_gbps:g} Gbit/s per GPU, of its maker's systems")
        return device, known, per_node, device.nic_gbps * per_node
    node_gbps = nics_gbps(job.nic)
    changed = {"nic_gbps": node_gbps / per_node}
    if device.domain_gpus <= 8:
        changed["domain_gpus"] = per_node
    return device.model_copy(update=changed), known, per_node, node_gbps


def _gpu_name(name: str) -> str:
    return name if name in read_gpus() else find_gpu_name(name)


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
        raise ReproError(f"nic {text!r}; write the NICs of a node as 8x400 (Gbit/s each)")
    return rate
