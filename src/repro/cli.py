"""The command line: one short function per stage of the pipeline, and the questions users ask."""

import json
import sys
import warnings
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from repro.errors import ReproError
from repro.paths import ENWIKI, PARAMS, PUBLISHED, RESULTS

app = typer.Typer(
    pretty_exceptions_enable=False,
)
corpus_app = typer.Typer(help="From an English Wikipedia dump to Megatron's datasets.")
app.add_typer(corpus_app, name="corpus", no_args_is_help=True)

_DUMP = ENWIKI / "dump.xml.bz2"
_ARTICLES = ENWIKI / "articles.jsonl"
_MANIFESTS = ENWIKI / "manifests"
_OTHERS = "done; once all shares are, run it again without --share"
_FILE_WIDTH = 160
_ShareOption = Annotated[
    str, typer.Option(help="The part to do in one of several jobs: 0/16, to 15/16.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"repro {version('repro')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print it, and end."
        ),
    ] = False,
) -> None:
    """The wind tunnel for LLM interconnects."""
    if context.invoked_subcommand is None:
        from repro.first_steps import first_steps

        typer.echo(first_steps())


@corpus_app.command("dump")
def corpus_dump() -> None:
    """Obtain the dump that params/corpus.yaml names."""
    from repro.corpus.config import read_corpus_config
    from repro.corpus.dump import fetch_dump

    typer.echo(fetch_dump(read_corpus_config(PARAMS / "corpus.yaml"), _DUMP))


@corpus_app.command("extract")
def corpus_extract(share: _ShareOption = "0/1") -> None:
    """Extract the plain text of the dump's articles."""
    from repro.corpus.articles import extract_articles
    from repro.corpus.config import read_corpus_config
    from repro.corpus.shards import Share

    config = read_corpus_config(PARAMS / "corpus.yaml")
    done = extract_articles(
        _DUMP,
        _ARTICLES,
        _MANIFESTS / "articles.json",
        min_article_characters=config.min_article_characters,
        workers=config.workers,
        share=Share.parse(share),
    )
    typer.echo(_ARTICLES if done else _OTHERS)


@corpus_app.command("tokenizer")
def corpus_tokenizer(family: str) -> None:
    """Train the tokenizer of a model family (gpt, bert, t5), or take an existing one."""
    from repro.corpus.config import check_family, read_corpus_config
    from repro.corpus.existing import take_tokenizer
    from repro.corpus.vocabulary import train_tokenizer

    name = check_family(family)
    config = read_corpus_config(PARAMS / "corpus.yaml")
    target = ENWIKI / "tokenizers" / f"{name}.json"
    if name in config.tokenizer_files:
        made = take_tokenizer(name, Path(config.tokenizer_files[name]).expanduser(), target)
    else:
        size = config.vocabulary_sizes.of(name)
        made = train_tokenizer(name, _ARTICLES, target, vocabulary_size=size)
    typer.echo(made)


@corpus_app.command("dataset")
def corpus_dataset(family: str, share: _ShareOption = "0/1") -> None:
    """Tokenize the articles into the indexed dataset of a model family (gpt, bert, t5)."""
    from repro.corpus.config import check_family, read_corpus_config
    from repro.corpus.indexed import write_indexed
    from repro.corpus.shards import Share

    name = check_family(family)
    prefix = ENWIKI / "datasets" / name
    done = write_indexed(
        name,
        _ARTICLES,
        ENWIKI / "tokenizers" / f"{name}.json",
        prefix,
        _MANIFESTS / f"{name}.json",
        workers=read_corpus_config(PARAMS / "corpus.yaml").workers,
        share=Share.parse(share),
    )
    typer.echo(f"{prefix}.bin, {prefix}.idx" if done else _OTHERS)


@corpus_app.command("stats")
def corpus_stats() -> None:
    """Show what the corpus is made of: pages, drops and their reasons, tokens, lengths."""
    from repro.corpus.manifest import stats

    for line in stats(_MANIFESTS):
        typer.echo(line)


@app.command()
def machine() -> None:
    """Note what measurements depend on of this machine, and say whether the testbed runs."""
    from repro.experiments.this_machine import note_machine

    for line in note_machine(RESULTS / "machine.json"):
        typer.echo(line)


@app.command()
def compute(
    cluster: str,
    profile: Annotated[str, typer.Option(help="The models of this profile.")] = "default",
) -> None:
    """Measure how fast one emulated GPU of a CLUSTER computes (for the similarity rule)."""
    from repro.corpus.config import read_corpus_config
    from repro.experiments.computing import compute_path, listed_models, measure_compute
    from repro.results.store import write_dataset

    split = read_corpus_config(PARAMS / "corpus.yaml").split
    measured = measure_compute(cluster, listed_models(cluster, profile), ENWIKI, split)
    write_dataset(measured, compute_path(cluster))


@app.command()
def decoding(
    profile: Annotated[str, typer.Option(help="Of params/decoding.yaml.")] = "default",
) -> None:
    """Measure the time per output token of a decoder on this machine's CPU."""
    from repro.experiments.decoding import decoding_table, measure_decoding
    from repro.results.store import write_dataset

    measured = measure_decoding(profile)
    write_dataset(measured, RESULTS / "decoding.nc")
    typer.echo(decoding_table(measured).round(1).to_string(index=False))


@app.command()
def operators(
    profile: Annotated[str, typer.Option(help="Of params/operator_study.yaml.")] = "default",
) -> None:
    """Measure operators of this machine's CPU, and iterations to be timed again from them."""
    from repro.experiments.operators import measure_operators
    from repro.predict.operators.retimed import iterations
    from repro.results.store import write_dataset

    measured = measure_operators(profile)
    write_dataset(measured, RESULTS / "operators.nc")
    typer.echo(iterations(measured).round(4).to_string(index=False))


@app.command()
def retime(
    trace: Annotated[Path, typer.Argument(help="Of torch's profiler, with record_shapes=True.")],
    ranks: Annotated[int, typer.Option(help="Of the process group.")] = 1,
) -> None:
    """Print the operators of a TRACE with what this machine's microbenchmarks let expect."""
    from repro.logs.operator_trace import read_operator_file
    from repro.predict.operators.retimed import retimed_trace
    from repro.results.store import read_dataset

    rows = read_operator_file(trace, ranks)
    found = retimed_trace(rows, read_dataset(RESULTS / "operators.nc"))
    typer.echo(found.round(3).to_string(index=False))


@app.command()
def resolve(
    profile: Annotated[str, typer.Option(help="Of every experiment.")] = "default",
) -> None:
    """Fix every number of what the pipeline measures, a file a stage in results/resolved/."""
    from repro.experiments.write_resolved import write_resolved

    for path in write_resolved(profile, RESULTS / "resolved"):
        typer.echo(path)


@app.command()
def pipeline(
    profile: Annotated[
        str | None, typer.Argument(help="default, thorough or ci; by default as the last time.")
    ] = None,
) -> None:
    """Run all that has changed: `dvc repro`, with what runs and how long the rest will take."""
    from repro.pipeline import run_pipeline

    sys.exit(run_pipeline(profile))


@app.command("first-look")
def first_look(
    profile: Annotated[str, typer.Option(help="Of weak scaling.")] = "default",
) -> None:
    """Measure one model over three protocols, and draw where its time goes."""
    from repro.catalog.selection import select
    from repro.experiments.obtain import obtain
    from repro.figures.disk import save_figure
    from repro.figures.scaling import breakdown

    selection = select("weak_scaling", models="bert-large", gpus=8, profile=profile)
    results = obtain(selection, "results/first_look/first_look.nc")
    if results.data_vars:
        save_figure(lambda: breakdown(results), RESULTS / "first_look" / "breakdown")


@app.command()
def figures() -> None:
    """Draw every figure as SVG, PNG, CSV and for the site into results/figures/, and write the
    metrics."""
    from repro.claims.judged import read_judgements
    from repro.figures.compared import compared_figures
    from repro.figures.every import every_figure, save_figures
    from repro.figures.what_if import scenario_figures
    from repro.results.store import read_experiments, read_result, read_sweeps
    from repro.results.summary import write_metrics

    results = read_experiments()
    write_metrics(results, RESULTS / "metrics.json")
    shown = results | read_sweeps() | {"sensitivity": read_result("sensitivity")}
    drawn = [*every_figure(shown), *compared_figures(read_judgements()), *scenario_figures()]
    for path in save_figures(drawn, RESULTS / "figures"):
        typer.echo(path)


@app.command()
def site(
    show: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> None:
    """Build the site of documents, executed notebooks, claims and figures: results/site/."""
    from repro.site.build import build_site

    page = build_site()
    typer.echo(page)
    if show:
        typer.launch(page.as_uri())


@app.command()
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

    from repro.catalog.experiments import EXPERIMENTS
    from repro.claims.reference import judge_reference, reference_run
    from repro.claims.selection import filter_claims
    from repro.claims.terminal import card, overview, rows
    from repro.claims.verdicts import judge_every_claim
    from repro.experiments.this_machine import caveats
    from repro.results.store import read_evidence

    results = {} if reference else read_evidence()
    judged = judge_reference() if reference else judge_every_claim(results)
    chosen = filter_claims(judged, ids or (), verdict, experiment)
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


@app.command()
def reference() -> None:
    """Keep the run in results/ as the reference run: small files in data/reference, for git."""
    from repro.claims.reference import keep_run
    from repro.results.store import read_evidence

    for path in keep_run(read_evidence()):
        typer.echo(path)


@app.command()
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


@app.command("what-if")
def what_if(
    model: Annotated[str, typer.Argument(help="Of params/open_models.yaml, as llama3.1-70b.")],
    gpu: Annotated[str, typer.Option(help="Of params/gpus.yaml.")] = "h100-sxm-80gb",
    gpus: Annotated[int, typer.Option(help="GPUs of the job.")] = 1024,
    global_batch: Annotated[int, typer.Option(help="Sequences per iteration.")] = 2048,
    precisions: Annotated[
        str | None,
        typer.Option(help="Of linear layers, with commas; without it, bf16 and fp8."),
    ] = None,
    expert_imbalance: Annotated[
        float | None,
        typer.Option(help="Tokens of the busiest rank of experts, over the mean; 1 is even."),
    ] = None,
    zero_bubble: Annotated[
        bool, typer.Option(help="Pipelines by ZB-H1, with one chunk a stage.")
    ] = False,
) -> None:
    """Print the best plans to train MODEL."""
    from repro.predict.explore.fused_plans import best_plans, plan_table

    asked = precisions.split(",") if precisions else None
    best = best_plans(
        model,
        gpu,
        gpus,
        global_batch,
        precisions=asked,
        expert_imbalance=expert_imbalance,
        zero_bubble=zero_bubble,
    )
    typer.echo(plan_table(best))


@app.command("serve-estimate")
def serve_estimate(
    model: Annotated[str, typer.Argument(help="Of params/open_models.yaml, as llama3.1-70b.")],
    gpu: Annotated[str, typer.Option(help="Of params/gpus.yaml.")] = "h100-sxm-80gb",
    cluster: Annotated[
        str | None, typer.Option(help="Of params/clusters.yaml, with its GPU and links.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="GPUs of the deployment.")] = 8,
    input_tokens: Annotated[int, typer.Option("--input", help="Tokens of a prompt.")] = 1024,
    output_tokens: Annotated[int, typer.Option("--output", help="Tokens that are written.")] = 256,
    token_ms: Annotated[
        float | None, typer.Option(help="Longest time per output token, in ms.")
    ] = None,
    first_ms: Annotated[float | None, typer.Option(help="Longest time to first token.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences at once; else any.")] = None,
    precisions: Annotated[str, typer.Option(help="Of linear layers, with commas.")] = "bf16",
    stack: Annotated[str, typer.Option(help="Of params/serving.yaml; else its first.")] = "",
) -> None:
    """Print how MODEL is served best: latencies, throughput, and what bounds each operator."""
    from repro.predict.explore.serving import best_plan, estimate_text, service, serving_plans

    asked = service(model, gpu, gpus, input_tokens, output_tokens, stack, cluster)
    plans = serving_plans(asked, precisions.split(","), batch)
    typer.echo(estimate_text(asked, plans, best_plan(plans, token_ms, first_ms)))


@app.command()
def fits(
    model: Annotated[str, typer.Argument(help="Of params/open_models.yaml, as llama3.1-70b.")],
    gpu: Annotated[str, typer.Option(help="Of params/gpus.yaml.")] = "h100-sxm-80gb",
    gpus: Annotated[int, typer.Option(help="GPUs of the job.")] = 64,
    global_batch: Annotated[int, typer.Option(help="Sequences per iteration.")] = 512,
    precision: Annotated[str, typer.Option(help="Of linear layers.")] = "bf16",
) -> None:
    """Print the largest micro batch and the longest context with which MODEL fits, by what is
    computed again and what replicas share, the cheapest first; and the largest model."""
    from repro.predict.explore.fits import fits_table, largest_model, what_fits

    typer.echo(fits_table(what_fits(model, gpu, gpus, global_batch, precision=precision)))
    typer.echo(f"largest model that fits: {largest_model(gpu, gpus, global_batch)}")


@app.command()
def explore(
    port: Annotated[int, typer.Option(help="Of this machine.")] = 5006,
    show: Annotated[bool, typer.Option(help="Open it in a browser.")] = True,
) -> None:
    """Serve pages with sliders: measured and predicted iterations side by side with plans, and GPUs
    that do not exist."""
    from repro.explorer.serve import serve

    serve(port, show)


@app.command()
def traffic(
    model: Annotated[str, typer.Argument(help="A GPT, such as gpt2-large or gpt3-13b.")],
    plan: Annotated[
        str, typer.Option(help="tp, cp, dp, pp, vpp, sp, zero, micro_batch, micro_batches.")
    ],
    cluster: Annotated[
        str | None, typer.Option(help="Of params/clusters.yaml; without it, dgx-a100's nodes.")
    ] = None,
) -> None:
    """Print what an iteration of MODEL moves by a plan such as tp=2,pp=4,dp=2,micro_batches=8:
    volumes by group, level of the topology and phase, in half precision."""
    from repro.catalog.clusters import cluster as read_cluster
    from repro.catalog.layouts import read_plan
    from repro.predict.explore.traffic import gpt_shape, traffic_table
    from repro.predict.explore.traffic import traffic as volumes

    layout = read_plan(plan)
    topology = read_cluster(cluster or "dgx-a100").topology
    typer.echo(traffic_table(volumes(gpt_shape(model), layout, topology)))


@app.command()
def validate(
    file: Path,
    by: Annotated[
        str, typer.Option(help="Columns whose values are sets, such as gpu,dtype,model.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
) -> None:
    """Predict every row of a CSV of measurements and print how far off the model is, per set."""
    from repro.predict.calibration.validation import table, validate

    scores = validate(file, by.split(",") if by else ())
    typer.echo(
        json.dumps([asdict(score) for score in scores], indent=1) if as_json else table(scores)
    )


@app.command()
def calibrate(
    name: Annotated[str, typer.Option(help="Writes params/calibration/NAME.yaml.")] = (
        "a100-megatron"
    ),
    training: Annotated[
        Path, typer.Option(help="CSV of training runs on one GPU, as in data/published/.")
    ] = PUBLISHED / "training_a100_vtrain.csv",
    log: Annotated[
        list[Path] | None,
        typer.Option(help="Of nccl-tests, OSU, DeepSpeed or the PyTorch profiler."),
    ] = None,
    gpu: Annotated[str, typer.Option(help="The GPU of the logs.")] = "",
    network: Annotated[str, typer.Option(help="The network of the logs.")] = "",
    ranks: Annotated[int | None, typer.Option(help="Ranks, if the logs do not say.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes, if the logs do not say.")] = None,
) -> None:
    """Fit the performance model to measurements: GPUs to training runs, links to collectives,
    operators, the steps of fused software and serving to what was published of them."""
    from repro.predict.calibration.calibrating import calibrate, write_calibration
    from repro.predict.calibration.fused_fitting import calibrate_fused, write_fused
    from repro.predict.calibration.link_fitting import calibrate_links, write_links
    from repro.predict.calibration.operator_fitting import fit_operators, write_operators
    from repro.predict.calibration.rows import read_collectives, read_rows
    from repro.predict.calibration.serving_fitting import calibrate_serving, write_serving
    from repro.predict.fused.parameters import FUSED
    from repro.predict.network.links import LINKS
    from repro.predict.operators.measured import OPERATORS

    collectives, sources = read_collectives(log or [], gpu, network, ranks, nodes)
    value = calibrate(read_rows(training), collectives, f"{training.name}, {sources}")
    write_calibration(value, PARAMS / "calibration" / f"{name}.yaml")
    typer.echo(f"params/calibration/{name}.yaml")
    write_links(calibrate_links(collectives, sources), LINKS)
    typer.echo("params/links.yaml")
    write_operators(fit_operators(), OPERATORS)
    typer.echo("params/operators.yaml")
    runs = PUBLISHED / "training_modern.csv"
    write_fused(calibrate_fused(read_rows(runs), runs.name), FUSED)
    typer.echo("params/fused.yaml")
    served = PUBLISHED / "inference_a100_fastertransformer.csv"
    write_serving(calibrate_serving(read_rows(served), served.name))
    typer.echo("params/serving_fit.yaml")


@app.command()
def busbw(
    cluster: str,
    log: Annotated[
        Path | None, typer.Argument(help="Measured collectives: judge them. Any known tool's log.")
    ] = None,
    collective: Annotated[
        str | None, typer.Option(help="Without it: what LOG says, or all_reduce.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Such as 64MiB; without it, 1 KiB to 4 GiB.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Without it: what LOG says, or the GPUs of two nodes.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="One of the cluster's, between nodes.")
    ] = None,
) -> None:
    """Print the bus bandwidth to expect on a CLUSTER, or whether that of a LOG is as expected."""
    from repro.catalog.clusters import cluster as read_cluster
    from repro.logs.reading import read_log
    from repro.predict.network.busbw_table import STANDARD_SIZES, parse_size, table
    from repro.predict.network.expected import expected_busbw, judge_busbw

    topology = read_cluster(cluster).topology
    if log is None:
        sizes = STANDARD_SIZES if size is None else parse_size(size)
        two_nodes = min(2 * topology.gpus_per_node, topology.gpus)
        n = two_nodes if ranks is None else ranks
        typer.echo(table(expected_busbw(cluster, collective or "all_reduce", sizes, n, protocol)))
        return
    measured = read_log(log, collective, ranks)
    for skipped in measured.attrs["skipped"]:
        typer.echo(f"not read: {skipped}", err=True)
    if size is not None:
        measured = measured[measured.size_bytes == parse_size(size)]
        if measured.empty:
            raise ReproError(f"{log}: has no measurement of {size}")
    typer.echo(table(judge_busbw(measured, cluster, protocol).join(measured.in_place)))


@app.command()
def doctor() -> None:
    """Say what this machine can do, one line each, with the mend where it cannot."""
    from repro.doctor import examine

    for finding in examine():
        typer.echo(finding)


def main() -> None:
    """Run a command; what the user can mend is one line on stderr and exit status 1."""
    # Megatron-Core names every accelerated package that it does without.
    warnings.filterwarnings("ignore", category=UserWarning, module="megatron")
    try:
        app(standalone_mode=True)
    except ReproError as error:
        sys.exit(f"repro: {error}")
    except KeyboardInterrupt:
        sys.exit("repro: interrupted; the same command goes on from here")
