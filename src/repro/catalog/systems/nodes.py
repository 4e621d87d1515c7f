"""Where source `cluster` runs: this machine's GPUs, or a partition (`params/nodes.yaml`)."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from repro.catalog.reading import Entry, choose, read_yaml
from repro.catalog.systems.protocols import read_transports
from repro.paths import PARAMS

Precision = Literal["fp32", "bf16", "fp16"]
Attention = Literal["megatron", "torch", "transformer-engine"]


class Slurm(Entry):
    """A partition, and how its jobs are asked for.

    Attributes
    ----------
    nodes
        The most nodes of a job.
    time_limit_min
        Of a job, in minutes.
    jobs
        Jobs of the same number of nodes that share the work at once: the size of a job array.
    options
        More options of sbatch.
    setup
        Shell commands before anything runs on a node.
    container
        An Apptainer image in which everything runs on the nodes; None: nothing is wrapped.
    """

    partition: str
    nodes: PositiveInt
    time_limit_min: PositiveInt
    jobs: PositiveInt = 1
    options: tuple[str, ...] = ()
    setup: str = ""
    container: str | None = None


class Nodes(Entry):
    """Where and how real nodes train.

    Attributes
    ----------
    gpus_per_node
        Ranks on a node; None: the GPUs of this machine.
    shapes
        Whether models have the papers' size or that of the testbed, for nodes without GPUs.
    warmup, iterations
        Iterations dropped and recorded, whatever the experiment's profile says.
    adapters
        HCA ports or interfaces by protocol; those of other protocols are found on the nodes.
    slurm
        Needed with `launch: slurm` only.
    """

    launch: Literal["local", "slurm"]
    gpus_per_node: PositiveInt | None = None
    shapes: Literal["full", "testbed"] = "full"
    precision: Precision = "bf16"
    attention: Attention = "megatron"
    warmup: PositiveInt
    iterations: PositiveInt
    adapters: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    slurm: Slurm | None = None

    @model_validator(mode="after")
    def _complete(self) -> "Nodes":
        for name in self.adapters:
            choose("protocol", name, read_transports())
        if self.launch == "slurm" and (self.slurm is None or self.gpus_per_node is None):
            raise ValueError("launch slurm needs gpus_per_node and the section slurm")
        return self


def read_nodes() -> Nodes:
    """The nodes that `params/nodes.yaml` describes."""
    value: Nodes = read_yaml(PARAMS / "nodes.yaml", Nodes)
    return value
