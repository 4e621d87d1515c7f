"""Training jobs: a model, a plan, GPUs and a network, each given or by a rule.

A job is plain data: a YAML file, options of a command, or a row of a table. `resolve` fills what is
not given and says by which rule; nothing is taken for something else.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    create_model,
    field_validator,
)

from repro.catalog.job_inputs import read_hardware, read_model
from repro.catalog.models.decoder_rules import MOST
from repro.catalog.models.open_models import DecoderShape
from repro.catalog.reading import Entry, choose, read_yaml
from repro.catalog.systems.gpus import Gpu
from repro.catalog.systems.software_stacks import read_stacks
from repro.errors import ReproError, of_file, one_line

Recompute = Literal["none", "selective", "full"]
# Micro batches per replica and pipeline stage where no global batch is given.
_MICRO_BATCHES = 8
_MOST_RANKS = 10**6
Size = Annotated[PositiveInt, Field(le=MOST)]


class Job(Entry):
    """Training job.

    Attributes
    ----------
    model
        Name in `params/open_models.yaml`, path of a `config.json` or of Megatron's arguments, or
        the text of either.
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
    expert_imbalance: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    overlap: Literal["all", "none"] | None = None

    @field_validator("gradient_bytes", mode="before")
    @classmethod
    def _number_of_a_cell(cls, given: Any) -> Any:
        """Return the number of a table's cell, which is text."""
        return int(given) if isinstance(given, str) and given in ("2", "4") else given


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
            raise ReproError(
                f"unknown field {name}; choose from: {', '.join(Job.model_fields)}"
            ) from None
        if first["type"] == "missing":
            raise ReproError(f"{name} is missing; fix: give it") from None
        raise ReproError(f"{name} is {first['input']!r}: {first['msg']}") from None


# A job of which options or a log state the model.
_JOB_FILE = create_model("_JOB_FILE", __base__=Job, model=(str | None, None))


def read_job(path: Path) -> dict[str, Any]:
    """Read the fields of a job from a YAML file, which may leave some to options or a log.

    Raises
    ------
    ReproError
        The file is missing or not valid; the message names the field.
    """
    found: Job = read_yaml(path, _JOB_FILE)
    return found.model_dump(exclude_none=True)


def read_jobs(path: Path, options: Mapping[str, Any]) -> list[ResolvedJob]:
    """Read and resolve a job per row of a CSV, whose columns are fields of `Job`.

    `options` are fields that rows leave out; at least one row must leave out each.

    Raises
    ------
    ReproError
        The file is missing, or a row is no job that can run; the message names the line.
    """
    jobs = []
    unused = set(options)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, restkey="cell without a column")
            for row in rows:
                cells = {name: value for name, value in row.items() if value not in (None, "")}
                unused &= cells.keys()
                with of_file(f"{path}, line {rows.line_num}", "correct this cell"):
                    jobs.append(resolve(job_of({**options, **cells})))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReproError(
            f"{path}: cannot be read as CSV ({one_line(error)}); fix: correct it"
        ) from None
    if jobs and unused:
        raise ReproError(
            f"{path}: all rows state {', '.join(sorted(unused))}; fix: omit the option"
        )
    return jobs


def resolve(job: Job) -> ResolvedJob:
    """Fill what a job leaves out, and check that it can run.

    Raises
    ------
    ReproError
        A name is unknown, a file is not understood, or sizes do not divide.
    """
    found = read_model(job.model, job.seq, job.vocabulary)
    where = read_hardware(job.gpu, job.cluster, job.gpus_per_node, job.nic)
    notes, plan = [*found.notes, *where.notes, *where.notes_on(job.gpus or 1)], found.plan
    stated = {name: value for name, value in job if value is not None}

    def filled(name: str, rule: str, value: Any) -> Any:
        if name in stated:
            return stated[name]
        if name in plan:
            notes.append(f"{name} {plan[name]}, from the arguments")
            return plan[name]
        notes.append(f"{name} {value}, {rule}")
        return value

    gpus = filled("gpus", "one node", where.gpus_per_node)
    sizes = {name: filled(name, "as not given", 1) for name in ("tp", "pp", "cp", "vpp")}
    ep, etp = (stated.get(name, plan.get(name, 1)) for name in ("ep", "etp"))
    if found.shape.experts:
        ep = filled("ep", "as not given", 1)
        etp = filled("etp", "Megatron's default is tp", sizes["tp"])
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
    resolved = ResolvedJob(
        label=found.label,
        shape=found.shape,
        device=where.device,
        known=where.known,
        gpus_per_node=where.gpus_per_node,
        nic_gbps=where.nic_gbps,
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
        f"tp {job.tp} neither divides {shape.kv_heads} key-value heads nor is a multiple": (
            shape.kv_heads % job.tp and job.tp % shape.kv_heads
        ),
        f"global_batch {job.global_batch} is no multiple of micro_batch {job.micro_batch} x dp "
        f"{job.dp}": job.global_batch % (job.micro_batch * job.dp),
        f"pp {job.pp} x vpp {job.vpp} are more chunks than {shape.layers} layers": (
            job.pp * job.vpp > shape.layers + shape.mtp_layers + 2
        ),
        f"vpp {job.vpp} needs pp above 1": job.vpp > 1 and job.pp == 1,
        f"seq {shape.seq} is no multiple of 2 x cp {job.cp}": (
            job.cp > 1 and shape.seq % (2 * job.cp)
        ),
        f"ep {job.ep}, etp {job.etp} or expert_imbalance: {job.label} has no experts": (
            not shape.experts and (job.ep, job.etp, job.expert_imbalance) != (1, 1, 1)
        ),
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
