"""Arguments and options that commands share: a model, its GPUs and network, and JSON."""

from pathlib import Path
from typing import Annotated, Any

import typer

MODEL_HELP = (
    "Model in params/open_models.yaml, path of a config.json or of Megatron's arguments, or the "
    "arguments themselves."
)
ModelArgument = Annotated[str, typer.Argument(help=MODEL_HELP)]
GpuOption = Annotated[
    str | None, typer.Option(help="GPU in params/gpus.yaml, or a data sheet (YAML).")
]
ClusterOption = Annotated[
    str | None, typer.Option(help="Cluster in params/clusters.yaml, instead of --gpu.")
]
GpusPerNodeOption = Annotated[int | None, typer.Option(help="GPUs of a node.")]
NicOption = Annotated[str | None, typer.Option(help="NICs of a node in Gbit/s, e.g. 8x400 or 200.")]
SeqOption = Annotated[
    int | None, typer.Option("--seq", "--seq-length", help="Tokens of a sequence.")
]
VocabularyOption = Annotated[
    int | None, typer.Option("--vocabulary", "--vocab-size", help="Tokens of the tokenizer.")
]
TpOption = Annotated[
    int | None, typer.Option("--tp", "--tensor-model-parallel-size", help="Tensor parallel.")
]
PpOption = Annotated[
    int | None, typer.Option("--pp", "--pipeline-model-parallel-size", help="Pipeline stages.")
]
MicroBatchOption = Annotated[
    int | None,
    typer.Option("--micro-batch", "--micro-batch-size", help="Sequences per forward pass."),
]
GlobalBatchOption = Annotated[
    int | None,
    typer.Option("--global-batch", "--global-batch-size", help="Sequences per iteration."),
]
StackOption = Annotated[str | None, typer.Option(help="Software in params/stacks.yaml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def stated_fields(job: Path | None, **options: Any) -> dict[str, Any]:
    """Return the fields of a job that its file and options state; options replace the file's."""
    from repro.catalog.jobs import read_job

    given = {name: value for name, value in options.items() if value is not None}
    return given if job is None else read_job(job) | given
