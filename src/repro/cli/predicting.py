"""Commands that ask the performance model, judge it, and fit it to measurements."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from repro.errors import ReproError
from repro.paths import PARAMS, PUBLISHED

app = typer.Typer()
_PANEL = "Predict"


@app.command("what-if", rich_help_panel=_PANEL)
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
    from repro.predict.explore.jobs.fused_plans import best_plans, plan_table

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


@app.command(rich_help_panel=_PANEL)
def fits(
    model: Annotated[str, typer.Argument(help="Of params/open_models.yaml, as llama3.1-70b.")],
    gpu: Annotated[str, typer.Option(help="Of params/gpus.yaml.")] = "h100-sxm-80gb",
    gpus: Annotated[int, typer.Option(help="GPUs of the job.")] = 64,
    global_batch: Annotated[int, typer.Option(help="Sequences per iteration.")] = 512,
    precision: Annotated[str, typer.Option(help="Of linear layers.")] = "bf16",
) -> None:
    """Print the largest micro batch and the longest context with which MODEL fits, by what is
    computed again and what replicas share, the cheapest first; and the largest model."""
    from repro.predict.explore.jobs.fits import fits_table, largest_model, what_fits

    typer.echo(fits_table(what_fits(model, gpu, gpus, global_batch, precision=precision)))
    typer.echo(f"largest model that fits: {largest_model(gpu, gpus, global_batch, precision)}")


@app.command("serve-estimate", rich_help_panel=_PANEL)
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
    from repro.predict.explore.jobs.serving import best_plan, estimate_text, service, serving_plans

    asked = service(model, gpu, gpus, input_tokens, output_tokens, stack, cluster)
    plans = serving_plans(asked, precisions.split(","), batch)
    typer.echo(estimate_text(asked, plans, best_plan(plans, token_ms, first_ms)))


@app.command(rich_help_panel=_PANEL)
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
    from repro.catalog.parallel.layouts import read_plan
    from repro.catalog.systems.clusters import cluster as read_cluster
    from repro.predict.explore.jobs.traffic import gpt_shape, traffic_table
    from repro.predict.explore.jobs.traffic import traffic as volumes

    layout = read_plan(plan)
    topology = read_cluster(cluster or "dgx-a100").topology
    typer.echo(traffic_table(volumes(gpt_shape(model), layout, topology)))


@app.command(rich_help_panel=_PANEL)
def busbw(
    cluster: str,
    log: Annotated[
        Path | None, typer.Argument(help="Measured collectives: judge them. Any known tool's log.")
    ] = None,
    collective: Annotated[
        str | None, typer.Option(help="Where LOG does not say; else all_reduce.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Such as 64MiB; without it, 1 KiB to 4 GiB.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Where LOG does not say; else the GPUs of two nodes.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="One of the cluster's, between nodes.")
    ] = None,
) -> None:
    """Print the bus bandwidth to expect on a CLUSTER, or whether that of a LOG is as expected."""
    from repro.catalog.systems.clusters import cluster as read_cluster
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


@app.command(rich_help_panel=_PANEL)
def retime(
    trace: Annotated[Path, typer.Argument(help="Of torch's profiler, with record_shapes=True.")],
    ranks: Annotated[int, typer.Option(help="Of the process group.")] = 1,
) -> None:
    """Print the operators of a TRACE with what this machine's microbenchmarks let expect."""
    from repro.logs.operator_trace import read_operator_file
    from repro.predict.operators.retimed import retimed_trace
    from repro.results.store import has_runs, read_result, why_not_run

    rows, measured = read_operator_file(trace, ranks), read_result("operators")
    if not has_runs(measured):
        raise ReproError(f"no microbenchmarks; {why_not_run(measured)}")
    found = retimed_trace(rows, measured, ranks)
    typer.echo(found.round(3).to_string(index=False))


@app.command(rich_help_panel=_PANEL)
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


@app.command(rich_help_panel=_PANEL)
def calibrate(
    name: Annotated[str, typer.Option(help="Writes params/calibration/NAME.yaml.")] = (
        "a100-megatron"
    ),
    training: Annotated[
        Path, typer.Option(help="CSV of training runs on one GPU, as in data/published/.")
    ] = PUBLISHED / "training_a100_vtrain.csv",
    log: Annotated[
        list[Path] | None,
        typer.Option(
            help="Of nccl-tests, OSU, DeepSpeed or the PyTorch profiler: all logs of one's own, as "
            "networks of others are forgotten. Fits links only."
        ),
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
    from repro.predict.calibration.rows import read_collectives, read_rows, read_training
    from repro.predict.calibration.serving_fitting import calibrate_serving, write_serving
    from repro.predict.fused.parameters import FUSED
    from repro.predict.network.links import LINKS
    from repro.predict.operators.measured import OPERATORS

    runs = read_training(training)
    collectives, sources = read_collectives(log or [], gpu, network, ranks, nodes)
    write_links(calibrate_links(collectives, sources), LINKS)
    typer.echo("params/links.yaml")
    if log:
        return
    value = calibrate(runs, collectives, f"{training.name}, {sources}")
    write_calibration(value, PARAMS / "calibration" / f"{name}.yaml")
    typer.echo(f"params/calibration/{name}.yaml")
    write_operators(fit_operators(), OPERATORS)
    typer.echo("params/operators.yaml")
    modern = PUBLISHED / "training_modern.csv"
    write_fused(calibrate_fused(read_rows(modern), modern.name), FUSED)
    typer.echo("params/fused.yaml")
    served = PUBLISHED / "inference_a100_fastertransformer.csv"
    write_serving(calibrate_serving(read_rows(served), served.name))
    typer.echo("params/serving_fit.yaml")
