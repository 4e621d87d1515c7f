"""Commands that measure on this machine, and the pipeline that runs them all."""

import sys
from typing import Annotated

import typer

from repro.paths import ENWIKI, PARAMS, RESULTS, ROOT

app = typer.Typer()
PANEL = "Measure"


@app.command(rich_help_panel=PANEL)
def machine() -> None:
    """Note what measurements depend on of this machine, and say whether the testbed runs."""
    from repro.experiments.this_machine import note_machine

    for line in note_machine(RESULTS / "machine.json"):
        typer.echo(line)


@app.command(rich_help_panel=PANEL)
def compute(
    profile: Annotated[str, typer.Option(help="The models of this profile.")] = "default",
) -> None:
    """Measure how fast one emulated GPU computes (for the similarity rule)."""
    from repro.corpus.config import read_corpus_config
    from repro.experiments.computing import compute_path, listed_models, measure_compute
    from repro.results.store import write_dataset

    split = read_corpus_config(PARAMS / "corpus.yaml").split
    measured = measure_compute(listed_models(profile), ENWIKI, split)
    write_dataset(measured, compute_path())


@app.command(rich_help_panel=PANEL)
def decoding(
    profile: Annotated[str, typer.Option(help="Of params/decoding.yaml.")] = "default",
) -> None:
    """Measure the time per output token of a decoder on this machine's CPU."""
    from repro.experiments.machine.decoding import decoding_table, measure_decoding
    from repro.results.store import write_dataset

    measured = measure_decoding(profile)
    write_dataset(measured, RESULTS / "decoding.nc")
    typer.echo(decoding_table(measured).round(1).to_string(index=False))


@app.command(rich_help_panel=PANEL)
def operators(
    profile: Annotated[str, typer.Option(help="Of params/operator_study.yaml.")] = "default",
) -> None:
    """Measure operators of this machine's CPU, and iterations to be timed again from them."""
    from repro.experiments.machine.operators import measure_operators
    from repro.predict.operators.retimed import iterations
    from repro.results.store import write_dataset

    measured = measure_operators(profile)
    write_dataset(measured, RESULTS / "operators.nc")
    typer.echo(iterations(measured).round(4).to_string(index=False))


@app.command(rich_help_panel=PANEL)
def losses(
    profile: Annotated[str, typer.Option(help="Of params/compression.yaml.")] = "default",
) -> None:
    """Train with compressed messages for the loss, which nothing else that runs can change."""
    from repro.experiments.losses import OF_PIPELINE, train_losses
    from repro.results.compression import loss_table

    typer.echo(loss_table(train_losses(profile, OF_PIPELINE)).round(4).to_string())


@app.command(rich_help_panel=PANEL)
def gpu() -> None:
    """Measure this machine's GPU by itself (params/gpu.yaml), and keep it in data/measured/."""
    from repro.corpus.config import read_corpus_config
    from repro.experiments.machine.gpu import measure_gpu
    from repro.results.measured import MEASURED, measured_on
    from repro.results.store import write_dataset

    for name, measured in measure_gpu(read_corpus_config(PARAMS / "corpus.yaml").split):
        path = MEASURED / measured_on(measured) / f"{name}.nc"
        write_dataset(measured, path)
        typer.echo(path.relative_to(ROOT))


@app.command(rich_help_panel=PANEL)
def resolve(
    profile: Annotated[str, typer.Option(help="Of every experiment.")] = "default",
) -> None:
    """Fix every number of what the pipeline measures, a file a stage in results/resolved/."""
    from repro.experiments.stages import write_resolved

    for path in write_resolved(profile, RESULTS / "resolved"):
        typer.echo(path)


@app.command("first-look", rich_help_panel=PANEL)
def first_look(
    profile: Annotated[str, typer.Option(help="Of weak scaling.")] = "default",
) -> None:
    """Measure one model over three protocols, and draw where its time goes."""
    from repro.catalog.studies.selection import select
    from repro.experiments.obtain import obtain
    from repro.figures.disk import save_figure
    from repro.figures.experiments.scaling import breakdown

    selection = select("weak_scaling", models="bert-large", gpus=8, profile=profile)
    results = obtain(selection, "results/first_look/first_look.nc", begins=selection.name)
    if results.data_vars:
        save_figure(lambda: breakdown(results), RESULTS / "first_look" / "breakdown")


@app.command(rich_help_panel=PANEL)
def pipeline(
    profile: Annotated[
        str | None, typer.Argument(help="default, thorough or ci; by default as the last time.")
    ] = None,
) -> None:
    """Run all that has changed: `dvc repro`, with what runs and how long the rest will take."""
    from repro.pipeline import run_pipeline

    sys.exit(run_pipeline(profile))
