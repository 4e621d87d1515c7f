"""Commands that measure on this machine, and the pipeline that runs all of them."""

import sys
from typing import Annotated

import typer

from repro.extras import require
from repro.paths import ENWIKI, RESULTS, find

app = typer.Typer()
PANEL = "Measure"
_Profile = Annotated[str, typer.Option(help="Run size: default, thorough or ci.")]


@app.command(rich_help_panel=PANEL)
def machine() -> None:
    """Write this machine's properties to results/machine.json; warn if the testbed cannot run."""
    from repro.experiments.this_machine import note_machine

    for line in note_machine(RESULTS / "machine.json"):
        typer.echo(line)


@app.command(rich_help_panel=PANEL)
def compute(profile: _Profile = "default") -> None:
    """Write the computing times of one emulated GPU to results/compute.nc."""
    require("torch")
    from repro.corpus.config import read_corpus_config
    from repro.experiments.computing import compute_path, listed_models, measure_compute
    from repro.results.store import write_dataset

    split = read_corpus_config(find("params/corpus.yaml")).split
    measured = measure_compute(listed_models(profile), ENWIKI, split)
    write_dataset(measured, compute_path())


@app.command(rich_help_panel=PANEL)
def decoding(profile: _Profile = "default") -> None:
    """Write a decoder's time per output token on this machine's CPU to results/decoding.nc."""
    require("torch")
    from repro.experiments.machine.decoding import decoding_table, measure_decoding
    from repro.results.store import write_dataset

    measured = measure_decoding(profile)
    write_dataset(measured, RESULTS / "decoding.nc")
    typer.echo(decoding_table(measured).round(1).to_string(index=False))


@app.command(rich_help_panel=PANEL)
def operators(profile: _Profile = "default") -> None:
    """Write times of operators and of iterations on this machine's CPU to results/operators.nc.

    The printed table compares each iteration with its trace replayed at the operators' times.
    """
    require("torch")
    from repro.experiments.machine.operators import measure_operators
    from repro.predict.operators.trace_replay import iterations
    from repro.results.store import write_dataset

    measured = measure_operators(profile)
    write_dataset(measured, RESULTS / "operators.nc")
    typer.echo(
        iterations(measured).drop(columns=["tables", "longer"]).round(1).to_string(index=False)
    )


@app.command(rich_help_panel=PANEL)
def losses(profile: _Profile = "default") -> None:
    """Write the losses of training with compressed communication to results/losses.nc.

    Losses are not timing-sensitive.
    """
    require("torch")
    from repro.experiments.losses import OF_PIPELINE, train_losses
    from repro.results.compression import loss_table

    typer.echo(loss_table(train_losses(profile, OF_PIPELINE)).round(4).to_string())


@app.command(rich_help_panel=PANEL)
def gpu() -> None:
    """Write measurements of this machine's GPU (params/gpu.yaml) to data/measured/."""
    require("torch")
    from repro.corpus.config import read_corpus_config
    from repro.experiments.machine.gpu import measure_gpu
    from repro.results.measured import MEASURED, measured_on
    from repro.results.store import write_dataset

    for name, measured in measure_gpu(read_corpus_config(find("params/corpus.yaml")).split):
        path = MEASURED / measured_on(measured) / f"{name}.nc"
        write_dataset(measured, path)
        typer.echo(path)


@app.command(rich_help_panel=PANEL)
def resolve(profile: _Profile = "default") -> None:
    """Write all inputs of each measuring stage to one file per stage in results/resolved/."""
    from repro.experiments.stages import write_resolved

    for path in write_resolved(profile, RESULTS / "resolved"):
        typer.echo(path)


@app.command(rich_help_panel=PANEL)
def method() -> None:
    """Write digests of the code that ranks load to results/method/, which DVC compares."""
    from repro.launch.method import write_methods

    for path in write_methods(RESULTS / "method"):
        typer.echo(path)


@app.command("first-look", rich_help_panel=PANEL)
def first_look(profile: _Profile = "default") -> None:
    """Measure one model over three protocols, and write a figure to results/first_look/."""
    require("torch")
    from repro.catalog.studies.selection import select
    from repro.experiments.obtain import obtain
    from repro.figures.experiments.scaling import breakdown
    from repro.figures.export import save_figure

    selection = select("weak_scaling", models="bert-large", gpus=8, profile=profile)
    results = obtain(selection, "results/first_look/first_look.nc", begins=selection.name)
    if results.data_vars:
        save_figure(lambda: breakdown(results), RESULTS / "first_look" / "breakdown")


@app.command(rich_help_panel=PANEL, epilog="Example: repro pipeline thorough")
def pipeline(
    profile: Annotated[
        str | None, typer.Argument(help="default, thorough or ci. Default: the last one.")
    ] = None,
) -> None:
    """Run all changed stages (`dvc repro`), and print progress and remaining time."""
    from repro.pipeline import run_pipeline

    sys.exit(run_pipeline(profile))
