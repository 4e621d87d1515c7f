"""Commands that show what was measured: claims, figures, the site, the explorer."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from repro.paths import RESULTS

app = typer.Typer()
_PANEL = "See"

_FILE_WIDTH = 160


@app.command(rich_help_panel=_PANEL)
def claims(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Show these in full, such as C017.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print a row for each claim.")] = False,
    verdict: Annotated[
        str | None, typer.Option(help="Only those with this verdict, of any source.")
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="Only those that this experiment answers.")
    ] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="As the run kept in data/reference measured them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
) -> None:
    """Print what became of the published claims: verdicts by observation, rows, or one in full."""
    from rich.console import Console

    from repro.catalog.studies.experiments import EXPERIMENTS
    from repro.claims.reference import judge_reference, reference_run
    from repro.claims.shown.selection import asked_claims, check_verdict, with_verdict
    from repro.claims.shown.terminal import card, overview, rows
    from repro.claims.verdicts import judge
    from repro.experiments.this_machine import caveats
    from repro.results.store import read_evidence

    asked = asked_claims(ids or (), experiment)
    if verdict is not None:
        check_verdict(verdict)
    results = {} if reference else read_evidence()
    chosen = judge_reference(asked) if reference else judge(asked, results)
    if verdict is not None:
        chosen = with_verdict(chosen, verdict)
    if as_json:
        typer.echo(json.dumps([asdict(judgement) for judgement in chosen], indent=1))
        return
    # A file takes any width; a terminal has its own.
    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH, highlight=False)
    if ids:
        console.print(*map(card, chosen), sep="\n")
    else:
        console.print(rows(chosen) if every or verdict or experiment else overview(chosen))
    if reference:
        typer.echo(f"testbed: a reference run, not this machine's ({reference_run()})", err=True)
    for caveat in caveats({name: results[name] for name in EXPERIMENTS if name in results}):
        typer.echo(caveat, err=True)


@app.command(rich_help_panel=_PANEL)
def figures() -> None:
    """Draw every figure as SVG, PNG, CSV and for the site into results/figures/, and write the
    metrics."""
    from repro.claims.judged import read_judgements
    from repro.figures.compared import compared_figures
    from repro.figures.experiments.every import every_figure, save_figures
    from repro.figures.predicted.what_if import scenario_figures
    from repro.results.store import read_experiments, read_result, read_sweeps
    from repro.results.summary import write_metrics

    results = read_experiments()
    write_metrics(results, RESULTS / "metrics.json")
    shown = results | read_sweeps() | {"sensitivity": read_result("sensitivity")}
    drawn = [*every_figure(shown), *compared_figures(read_judgements()), *scenario_figures()]
    for path in save_figures(drawn, RESULTS / "figures"):
        typer.echo(path)


@app.command(rich_help_panel=_PANEL)
def site(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> None:
    """Build the site of documents, executed notebooks, claims and figures: results/site/."""
    from repro.site.build import build_site

    page = build_site(typer.Context(context.find_root().command, info_name="repro"))
    typer.echo(page)
    if show:
        typer.launch(page.as_uri())


@app.command(rich_help_panel=_PANEL)
def reference() -> None:
    """Keep the run in results/ as the reference run: small files in data/reference, for git."""
    from repro.claims.reference import keep_run
    from repro.pipeline import keep_times
    from repro.results.store import read_evidence

    for path in (keep_times(), *keep_run(read_evidence())):
        typer.echo(path)


@app.command(rich_help_panel=_PANEL)
def compare(
    every: Annotated[bool, typer.Option("--all", help="Print a row for each cell.")] = False,
) -> None:
    """Say which cells of the run in results/ agree with the reference run in their intervals."""
    from repro.claims.reference import agreement, compare, reference_run
    from repro.results.reference import describe_run
    from repro.results.store import has_runs, read_experiments

    results = read_experiments()
    compared = compare(results)
    typer.echo(f"here:      {describe_run(next(filter(has_runs, results.values())))}")
    typer.echo(f"reference: {reference_run()}")
    typer.echo((compared if every else agreement(compared)).round(3).to_string())


@app.command(rich_help_panel=_PANEL)
def explore(
    port: Annotated[int, typer.Option(help="Of this machine.", min=1, max=65535)] = 5006,
    show: Annotated[bool, typer.Option(help="Open it in a browser.")] = True,
) -> None:
    """Serve pages with sliders: measured and predicted iterations side by side with plans, and GPUs
    that do not exist."""
    from repro.explorer.serve import serve

    serve(port, show)
