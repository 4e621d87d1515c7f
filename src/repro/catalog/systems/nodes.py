"""Nodes of source `cluster`: this machine's GPUs, or a Slurm partition (`params/nodes.yaml`)."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from repro.catalog.reading import Entry, choose, read_params
from repro.catalog.systems.protocols import read_transports

Precision = Literal["fp32", "bf16", "fp16"]
Attention = Literal["megatron", "torch", "transformer-engine"]


class Slurm(Entry):
    """Slurm partition, and the options of its jobs.

    Attributes
    ----------
    nodes
        Largest number of nodes per job.
    time_limit_min
        Time limit of a job in minutes.
    jobs
        Jobs with the same number of nodes that run at once: the size of a job array.
    options
        Further options of sbatch.
    setup
        Shell commands that run first on every node.
    container
        Apptainer image in which everything runs on the nodes; None uses no container.
    """

    partition: str
    nodes: PositiveInt
    time_limit_min: PositiveInt
    jobs: PositiveInt = 1
    options: tuple[str, ...] = ()
    setup: str = ""
    container: str | None = None


class Nodes(Entry):
    """Training setup on real nodes.

    Attributes
    ----------
    gpus_per_node
        Ranks per node; None uses all GPUs of this machine.
    shapes
        Model size: that of the papers, or that of the testbed for nodes without GPUs.
    warmup, iterations
        Iterations dropped and recorded; they replace those of the experiment's profile.
    adapters
        HCA ports or interfaces by protocol; those of other protocols are detected on the nodes.
    slurm
        Required with `launch: slurm` only.
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
    def _consistent(self) -> "Nodes":
        for name in self.adapters:
            choose("protocol", name, read_transports())
        if self.launch == "slurm" and (self.slurm is None or self.gpus_per_node is None):
            raise ValueError("launch is slurm; fix: set gpus_per_node and the section slurm")
        return self


def read_nodes() -> Nodes:
    """Read the nodes that `params/nodes.yaml` describes."""
    value: Nodes = read_params("nodes.yaml", Nodes)
    return value
