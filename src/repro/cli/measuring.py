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


@app.command(rich_help_panel=PANEL, epilog="Example: repro measure weak_scaling --profile ci")
def measure(
    names: Annotated[list[str], typer.Argument(help="Datasets of the pipeline.")],
    profile: _Profile = "default",
) -> None:
    """Write datasets to results/NAME.nc; what results/store has is not measured again."""
    require("torch")
    from repro.experiments.measurement import dataset_path
    from repro.results.store import write_dataset
    from repro.studies.datasets import measure_dataset

    for name in names:
        write_dataset(measure_dataset(name, profile), dataset_path(name))
        typer.echo(dataset_path(name))


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


@app.command("first-look", rich_help_panel=PANEL)
def first_look(profile: _Profile = "default") -> None:
    """Measure one model over three protocols, and write a figure to results/first_look/."""
    require("torch")
    from repro.catalog.studies.selection import select
    from repro.experiments.sources import get_results
    from repro.figures.experiments.scaling import breakdown
    from repro.figures.export import save_figure

    selection = select("weak_scaling", models="bert-large", gpus=8, profile=profile)
    results = get_results(selection)
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
