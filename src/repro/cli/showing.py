"""Commands that show results: claims, figures, the site, the explorer."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from repro.cli.options import JsonOption
from repro.cli.output import print_json, records
from repro.paths import RESULTS, require_clone

if TYPE_CHECKING:
    from repro.claims.findings import Judgement
    from repro.claims.published import Claim

app = typer.Typer()
_PANEL = "See"

_FILE_WIDTH = 160


@app.command(rich_help_panel=_PANEL, epilog="Example: repro claims C017 --reference")
def claims(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Claims to print in full, e.g. C017. Default: all.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print one row per claim.")] = False,
    verdict: Annotated[
        str | None, typer.Option(help='Only this verdict, e.g. "not reproduced". Default: all.')
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="Only this experiment, e.g. weak_scaling. Default: all.")
    ] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Judge the run in data/reference/, not results/.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print verdicts on the published claims: counts by observation, one row each, or in full."""
    from rich.console import Console

    from repro.claims.reference import judge_reference, reference_run
    from repro.claims.terminal import (
        card,
        check_verdict,
        overview,
        requested_claims,
        rows,
        with_verdict,
    )

    selected = requested_claims(ids or (), experiment)
    if verdict is not None:
        check_verdict(verdict)
    if reference:
        chosen = judge_reference(selected)
        caveats = [f"reference run, not this machine ({reference_run()})"]
    else:
        chosen, caveats = _judge_here(selected)
    if verdict is not None:
        chosen = with_verdict(chosen, verdict)
    if as_json:
        print_json([asdict(judgement) for judgement in chosen])
        return
    # A terminal has its own width; a file takes any.
    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH, highlight=False)
    if ids:
        console.print(*map(card, chosen), sep="\n")
    else:
        console.print(rows(chosen) if every or verdict or experiment else overview(chosen))
    for caveat in caveats:
        typer.echo(caveat, err=True)


def _judge_here(claims: "list[Claim]") -> "tuple[list[Judgement], list[str]]":
    """Judge claims on `results/`; return also what a reader has to know about these results."""
    from repro.catalog.studies.experiments import EXPERIMENTS
    from repro.claims.verdicts import judge
    from repro.experiments.this_machine import caveats
    from repro.studies.datasets import read_evidence

    results = read_evidence()
    ours = caveats({str(name): results[name] for name in EXPERIMENTS if name in results})
    return judge(claims, results), list(ours)


@app.command(rich_help_panel=_PANEL)
def figures() -> None:
    """Write all figures to results/figures/ as SVG, PNG, CSV and JSON, and results/metrics.json."""
    from repro.claims.findings import read_judgements
    from repro.figures.claim_dots import compared_figures
    from repro.figures.experiments.every import every_figure, save_figures
    from repro.figures.predicted.what_if import scenario_figures
    from repro.results.store import read_experiments, read_result, read_sweeps
    from repro.results.summary import write_metrics

    results = read_experiments()
    write_metrics(results, RESULTS / "metrics.json")
    measured = results | read_sweeps() | {"sensitivity": read_result("sensitivity")}
    drawn = [*every_figure(measured), *compared_figures(read_judgements()), *scenario_figures()]
    for path in save_figures(drawn, RESULTS / "figures"):
        typer.echo(path)


@app.command(rich_help_panel=_PANEL)
def site(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--open", help="Open the site in a browser.")] = False,
) -> None:
    """Write the web site of documents, notebooks, claims and figures to results/site/."""
    require_clone("repro site")
    from repro.site.build import build_site

    page = build_site(typer.Context(context.find_root().command, info_name="repro"))
    typer.echo(page)
    if show:
        typer.launch(page.as_uri())


@app.command(rich_help_panel=_PANEL)
def reference() -> None:
    """Write the run in results/ as the reference run: small files in data/reference/, for git."""
    from repro.claims.published import documented_claims
    from repro.claims.reference import keep_run
    from repro.claims.verdicts import judge
    from repro.pipeline import keep_times
    from repro.studies.datasets import read_evidence

    results = read_evidence()
    for path in (keep_times(), *keep_run(results, judge(documented_claims(), results))):
        typer.echo(path)


@app.command(rich_help_panel=_PANEL)
def compare(
    every: Annotated[bool, typer.Option("--all", help="Print one row per result.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print how many results of the run in results/ agree with the reference run.

    A result is one quantity of one configuration; two agree if their intervals overlap.
    """
    from repro.claims.reference import agreement, compare, reference_run
    from repro.results.reference import describe_run
    from repro.results.store import has_runs, read_experiments

    results = read_experiments()
    compared = compare(results)
    table = compared if every else agreement(compared)
    here = describe_run(next(filter(has_runs, results.values())))
    if as_json:
        rows = records(table.reset_index().rename(columns={"median ratio": "median_ratio"}))
        print_json({"here": here, "reference": reference_run(), "results": rows})
        return
    typer.echo(f"here:      {here}")
    typer.echo(f"reference: {reference_run()}")
    typer.echo(table.round(3).to_string())


@app.command(rich_help_panel=_PANEL)
def explore(
    port: Annotated[int, typer.Option(help="TCP port.", min=1, max=65535)] = 5006,
    show: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Serve web pages: sliders for iterations and parallel plans, and a job of your own."""
    from repro.explorer.serve import serve

    serve(port, show)
