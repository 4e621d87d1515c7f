"""Commands that predict with the performance model, validate it and fit it to measurements."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from repro.errors import ReproError
from repro.paths import HOME, PUBLISHED

app = typer.Typer()
_command = partial(app.command, rich_help_panel="Predict")
_ModelArgument = Annotated[
    str, typer.Argument(help="Model in params/open_models.yaml, e.g. llama3.1-70b.")
]
_GpuOption = Annotated[str, typer.Option(help="GPU in params/gpus.yaml.")]
_GpusOption = Annotated[int, typer.Option(help="Number of GPUs.")]
_JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_BatchOption = Annotated[int, typer.Option(help="Sequences per iteration.")]


# 1 KiB to 4 GiB, each four times the one before.
_STANDARD_SIZES = tuple(4**power for power in range(5, 17))
# K, M and G are powers of 1024, as in nccl-tests, and so are KiB, MiB and GiB. KB, MB and GB are
# powers of 1000.
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMG])(I?B)?|B)?\s*", re.IGNORECASE)


def parse_size(text: str) -> float:
    """Parse a size in bytes: `64MiB`, `1G`, `100 MB`, `4096`.

    Raises
    ------
    ReproError
        The text is no size.
    """
    found = _SIZE.fullmatch(text)
    if not found or float(found[1]) == 0:
        raise ReproError(f"size {text!r}: take a number of bytes, KiB, MiB or GiB, such as 64MiB")
    base = 1000.0 if (found[3] or "").upper() == "B" else 1024.0
    power = " KMG".index((found[2] or " ").upper())
    return float(found[1]) * float(base**power)


@_command(epilog="Example: repro estimate config.json --gpu h100-sxm-80gb --gpus 64 --tp 8")
def estimate(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Model in params/open_models.yaml, path of a config.json or of Megatron's "
            "arguments, or the arguments themselves."
        ),
    ] = None,
    job: Annotated[
        Path | None, typer.Option(help="YAML file of a job; options replace its fields.")
    ] = None,
    jobs: Annotated[
        Path | None, typer.Option(help="CSV with a job per row; prints a table, or with --json.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPU in params/gpus.yaml, or a data sheet (repro gpu-spec).")
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs. Default: one node.")] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Cluster in params/clusters.yaml, instead of --gpu.")
    ] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of a node.")] = None,
    nic: Annotated[
        str | None, typer.Option(help="NICs of a node in Gbit/s, e.g. 8x400 or 200.")
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", "--tensor-model-parallel-size", help="Tensor parallel.")
    ] = None,
    pp: Annotated[
        int | None,
        typer.Option("--pp", "--pipeline-model-parallel-size", help="Pipeline stages."),
    ] = None,
    cp: Annotated[
        int | None, typer.Option("--cp", "--context-parallel-size", help="Context parallel.")
    ] = None,
    ep: Annotated[
        int | None, typer.Option("--ep", "--expert-model-parallel-size", help="Expert parallel.")
    ] = None,
    etp: Annotated[
        int | None,
        typer.Option("--etp", "--expert-tensor-parallel-size", help="Ranks that divide an expert."),
    ] = None,
    vpp: Annotated[int | None, typer.Option(help="Model chunks per pipeline stage.")] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option("--micro-batch", "--micro-batch-size", help="Sequences per forward pass."),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option("--global-batch", "--global-batch-size", help="Sequences per iteration."),
    ] = None,
    seq: Annotated[
        int | None, typer.Option("--seq", "--seq-length", help="Tokens of a sequence.")
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option("--vocabulary", "--vocab-size", help="Tokens of the tokenizer.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Linear layers: bf16, fp8, mxfp8 or nvfp4.")
    ] = None,
    stack: Annotated[str | None, typer.Option(help="Software in params/stacks.yaml.")] = None,
    recompute: Annotated[
        str | None,
        typer.Option("--recompute", "--recompute-granularity", help="none, selective or full."),
    ] = None,
    zero: Annotated[
        int | None,
        typer.Option(help="Shared by replicas: 0 nothing, 1 optimizer, 2 gradients, 3 weights."),
    ] = None,
    gradient_bytes: Annotated[int | None, typer.Option(help="Bytes of a gradient: 2 or 4.")] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Rank of adapters (LoRA).")] = None,
    expert_imbalance: Annotated[
        float | None, typer.Option(help="Tokens of the busiest expert rank / mean.")
    ] = None,
    overlap: Annotated[
        str | None, typer.Option(help="Communication behind computing: all or none.")
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(help="Measured: 4.2s, '9500 tokens/s/GPU', '410 TFLOP/s' or '38 %' (MFU)."),
    ] = None,
    peak_tflops: Annotated[
        float | None, typer.Option(help="Peak that a measured MFU refers to.")
    ] = None,
    flops: Annotated[
        str | None, typer.Option(help="FLOPs that were counted: causal, megatron or 6n.")
    ] = None,
    as_json: _JsonOption = False,
) -> None:
    """Print whether a training job fits, what it should reach, and why a measured one differs.

    Exit status 3 if it does not fit in memory.
    """
    from repro.catalog.jobs import job_of, read_job, read_jobs, resolve
    from repro.predict.explore.jobs import estimate as estimates
    from repro.predict.explore.jobs.estimate_report import report_json, report_table, report_text
    from repro.predict.explore.jobs.explain import explain

    options = {
        "model": model,
        "gpu": gpu,
        "gpus": gpus,
        "cluster": cluster,
        "gpus_per_node": gpus_per_node,
        "nic": nic,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "etp": etp,
        "vpp": vpp,
        "micro_batch": micro_batch,
        "global_batch": global_batch,
        "seq": seq,
        "vocabulary": vocabulary,
        "precision": precision,
        "stack": stack,
        "recompute": recompute,
        "zero": zero,
        "gradient_bytes": gradient_bytes,
        "lora_rank": lora_rank,
        "expert_imbalance": expert_imbalance,
        "overlap": overlap,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if jobs is not None:
        if job is not None or measured is not None:
            raise ReproError("--jobs beside --job or --measured; fix: give one of them")
        found = estimates.estimate([resolve(one) for one in read_jobs(jobs, given)])
        if as_json:
            typer.echo(json.dumps([report_json(one) for one in found], indent=1))
        else:
            typer.echo(report_table(found).to_string(index=False, float_format="{:.4g}".format))
        return
    fields = ({} if job is None else read_job(job).model_dump(exclude_none=True)) | given
    if "model" not in fields:
        raise ReproError("no model; fix: repro estimate MODEL --gpu GPU, or --job FILE")
    one = estimates.estimate([resolve(job_of(fields))])[0]
    compared = explain(one, measured, peak_tflops=peak_tflops, formula=flops) if measured else None
    if as_json:
        typer.echo(json.dumps(report_json(one, compared), indent=1))
    else:
        typer.echo(report_text(one, compared))
    if one.memory_verdict == estimates.DOES_NOT_FIT:
        raise typer.Exit(3)


@_command(epilog="Example: repro log train.log --gpu h100-sxm-80gb --nic 8x400")
def log(
    file: Annotated[Path, typer.Argument(help="Log of a training run, of any supported tool.")],
    job: Annotated[
        Path | None, typer.Option(help="YAML file of a job, for what the log omits.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model, as repro estimate takes it.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU, as repro estimate takes it.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Cluster in params/clusters.yaml.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of a node.")] = None,
    nic: Annotated[str | None, typer.Option(help="NICs of a node in Gbit/s, e.g. 8x400.")] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    global_batch: Annotated[int | None, typer.Option(help="Sequences per iteration.")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Sequences per forward pass.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Tokens of the tokenizer.")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor parallel size.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages.")] = None,
    stack: Annotated[str | None, typer.Option(help="Software in params/stacks.yaml.")] = None,
    as_json: _JsonOption = False,
) -> None:
    """Print what a training log says of its iterations, what to expect, and what differs.

    Exit status 3 if a run is slower than the 90 % interval.
    """
    from repro.catalog.jobs import read_job
    from repro.logs.reading import read_text
    from repro.logs.training.reading import read_training_log
    from repro.predict.explore.jobs.logged import judge, log_json, log_text

    options = {
        "model": model,
        "gpu": gpu,
        "gpus": gpus,
        "cluster": cluster,
        "gpus_per_node": gpus_per_node,
        "nic": nic,
        "seq": seq,
        "global_batch": global_batch,
        "micro_batch": micro_batch,
        "vocabulary": vocabulary,
        "tp": tp,
        "pp": pp,
        "stack": stack,
    }
    given = {} if job is None else read_job(job).model_dump(exclude_none=True)
    given |= {name: value for name, value in options.items() if value is not None}
    try:
        found = read_training_log(read_text(file))
    except ReproError as error:
        raise ReproError(f"{file}: {error}") from None
    judged = judge(found, given)
    typer.echo(
        json.dumps(log_json(found, judged), indent=1) if as_json else log_text(found, judged)
    )
    if any(one.verdict == "slower" for one in judged):
        raise typer.Exit(3)


@_command("what-if", epilog="Example: repro what-if llama3.1-70b --gpus 512 --global-batch 1024")
def what_if(
    model: _ModelArgument,
    gpu: _GpuOption = "h100-sxm-80gb",
    gpus: _GpusOption = 1024,
    global_batch: _BatchOption = 2048,
    precisions: Annotated[
        str | None,
        typer.Option(help="Precisions of linear layers, comma-separated. Default: bf16,fp8."),
    ] = None,
    expert_imbalance: Annotated[
        float | None, typer.Option(help="Tokens of the busiest expert rank / mean. Default: even.")
    ] = None,
    zero_bubble: Annotated[
        bool, typer.Option(help="Zero-bubble pipeline schedule ZB-H1, one model chunk per stage.")
    ] = False,
) -> None:
    """Print the ten parallel plans that train a model fastest, with predicted iteration times."""
    from repro.predict.explore.jobs.fused_plans import best_plans, plan_table

    best = best_plans(
        model,
        gpu,
        gpus,
        global_batch,
        precisions=precisions.split(",") if precisions else None,
        expert_imbalance=expert_imbalance,
        zero_bubble=zero_bubble,
    )
    typer.echo(plan_table(best))


@_command(epilog="Example: repro fits llama3.1-8b --gpus 16")
def fits(
    model: _ModelArgument,
    gpu: _GpuOption = "h100-sxm-80gb",
    gpus: _GpusOption = 64,
    global_batch: _BatchOption = 512,
    precision: Annotated[str, typer.Option(help="Precision: bf16, fp8, mxfp8 or nvfp4.")] = "bf16",
) -> None:
    """Print the largest micro batch and context that fit in memory, and the largest model.

    The table has one row per recomputation policy and ZeRO stage, fastest first.
    """
    from repro.predict.explore.jobs.fits import fits_table, largest_model, what_fits

    typer.echo(fits_table(what_fits(model, gpu, gpus, global_batch, precision=precision)))
    typer.echo(f"largest model that fits: {largest_model(gpu, gpus, global_batch, precision)}")


@_command("serve-estimate", epilog="Example: repro serve-estimate llama3.1-70b --token-ms 50")
def serve_estimate(
    model: _ModelArgument,
    gpu: _GpuOption = "h100-sxm-80gb",
    cluster: Annotated[
        str | None, typer.Option(help="Cluster in params/clusters.yaml, instead of --gpu.")
    ] = None,
    gpus: _GpusOption = 8,
    input_tokens: Annotated[int, typer.Option("--input", help="Tokens per prompt.")] = 1024,
    output_tokens: Annotated[int, typer.Option("--output", help="Tokens per answer.")] = 256,
    token_ms: Annotated[
        float | None, typer.Option(help="Longest time per output token, in ms. Default: any.")
    ] = None,
    first_ms: Annotated[
        float | None, typer.Option(help="Longest time to first token, in ms. Default: any.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences per copy. Default: best.")] = None,
    precisions: Annotated[
        str, typer.Option(help="Precisions of linear layers, comma-separated.")
    ] = "bf16",
    stack: Annotated[str, typer.Option(help="Software in params/serving.yaml, or its first.")] = "",
) -> None:
    """Print latency and throughput of the best serving plan, and what bounds each operator."""
    from repro.predict.explore.jobs.serving import best_plan, estimate_text, service, serving_plans

    deployment = service(model, gpu, gpus, input_tokens, output_tokens, stack, cluster)
    plans = serving_plans(deployment, precisions.split(","), batch)
    typer.echo(estimate_text(deployment, plans, best_plan(plans, token_ms, first_ms)))


@_command(epilog="Example: repro traffic gpt2-large --plan tp=2,pp=4,dp=2,micro_batches=8")
def traffic(
    model: Annotated[str, typer.Argument(help="GPT model, e.g. gpt2-large or gpt3-13b.")],
    plan: Annotated[
        str,
        typer.Option(help="Sizes of tp, cp, dp, pp, vpp, sp, zero, micro_batch, micro_batches."),
    ],
    cluster: Annotated[str, typer.Option(help="Cluster in params/clusters.yaml.")] = "dgx-a100",
) -> None:
    """Print the bytes that one training iteration sends, by group, topology level and phase.

    Parameters, gradients and activations are in half precision.
    """
    from repro.catalog.parallel.layouts import read_plan
    from repro.catalog.studies.larger_models import gpt_shape
    from repro.catalog.systems.clusters import cluster as read_cluster
    from repro.predict.explore.jobs.traffic import traffic as volumes
    from repro.predict.explore.jobs.traffic import traffic_table

    layout, topology = read_plan(plan), read_cluster(cluster).topology
    typer.echo(traffic_table(volumes(gpt_shape(model), layout, topology)))


@_command(epilog="Example: repro busbw dgx-h100 --size 64MiB")
def busbw(
    cluster: Annotated[str, typer.Argument(help="Cluster in params/clusters.yaml.")],
    log: Annotated[
        Path | None,
        typer.Argument(help="Log of nccl-tests, OSU, DeepSpeed or torch's profiler."),
    ] = None,
    collective: Annotated[
        str | None, typer.Option(help="Collective, if LOG has none. Default: all_reduce.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Size, e.g. 64MiB. Default: LOG's, or 1 KiB to 4 GiB.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Ranks, if LOG states none. Default: GPUs of two nodes.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Protocol between nodes. Default: measured or nominal rates.")
    ] = None,
) -> None:
    """Print the bus bandwidth to expect on a cluster, or whether that of a log is as expected."""
    from repro.catalog.systems.clusters import cluster as read_cluster
    from repro.logs.reading import read_log
    from repro.predict.network.expected import busbw_table, expected_busbw, judge_busbw

    topology = read_cluster(cluster).topology
    if log is None:
        sizes = _STANDARD_SIZES if size is None else parse_size(size)
        two_nodes = min(2 * topology.gpus_per_node, topology.gpus)
        n = two_nodes if ranks is None else ranks
        expected = expected_busbw(cluster, collective or "all_reduce", sizes, n, protocol)
        typer.echo(busbw_table(expected))
        return
    measured = read_log(log, collective, ranks)
    for skipped in measured.attrs["skipped"]:
        typer.echo(f"not read: {skipped}", err=True)
    if size is not None:
        measured = measured[measured.size_bytes == parse_size(size)]
        if measured.empty:
            raise ReproError(f"{log}: no measurement of size {size}; fix: omit --size")
    typer.echo(busbw_table(judge_busbw(measured, cluster, protocol).join(measured.in_place)))


@_command(epilog="Example: repro retime trace.json")
def retime(
    trace: Annotated[Path, typer.Argument(help="Trace recorded with record_shapes=True.")],
) -> None:
    """Print measured and predicted times of the operators in a PyTorch profiler trace of a CPU.

    Predictions use fp32 microbenchmarks of this machine (`repro operators`).
    """
    from repro.logs.operator_trace import read_cpu_file
    from repro.predict.operators.trace_replay import replay_trace
    from repro.results.store import has_runs, read_result, why_not_run

    calls, measured = read_cpu_file(trace), read_result("operators")
    if not has_runs(measured):
        raise ReproError(f"no microbenchmarks ({why_not_run(measured)}); fix: dvc repro operators")
    typer.echo(replay_trace(calls, measured).round(3).to_string())


@_command(epilog="Example: repro validate data/published/training_modern.csv --by gpu,dtype")
def validate(
    file: Annotated[Path, typer.Argument(help="CSV of measurements, as in data/published/.")],
    by: Annotated[
        str, typer.Option(help="Columns to group by, e.g. gpu,dtype. Default: by kind of row.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Print the errors of the performance model's predictions for a CSV of measurements."""
    from repro.predict.calibration.validation import validate

    scores = validate(file, by.split(",") if by else ())
    if as_json:
        entries = scores.reset_index().astype(object)
        typer.echo(json.dumps(entries.where(entries.notna(), None).to_dict("records"), indent=1))
    else:
        typer.echo(scores.round(2).to_string())


@_command(epilog="Example: repro calibrate --log my.log --gpu H100 --network 'my fabric'")
def calibrate(
    name: Annotated[str, typer.Option(help="Write params/calibration/NAME.yaml.")] = (
        "a100-megatron"
    ),
    training: Annotated[
        Path,
        typer.Option(help="CSV of training runs.", show_default="training_a100_vtrain.csv"),
    ] = PUBLISHED / "training_a100_vtrain.csv",
    log: Annotated[
        list[Path] | None,
        typer.Option(
            help="Log of nccl-tests, OSU, DeepSpeed or torch's profiler; fits links only. Pass all "
            "logs in one call: it replaces earlier fits."
        ),
    ] = None,
    gpu: Annotated[str, typer.Option(help="GPU of the logs.")] = "",
    network: Annotated[str, typer.Option(help="Name for the logs' network.")] = "",
    ranks: Annotated[int | None, typer.Option(help="Ranks, if the logs state none.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes, if the logs state none.")] = None,
) -> None:
    """Fit the performance model to measurements, and write the fits to params/.

    GPUs are fitted to training runs, links to collectives, and all other parts
    to published measurements.
    """
    from repro.predict.calibration.fit import write_fit
    from repro.predict.calibration.link_fitting import calibrate_links
    from repro.predict.calibration.operator_fitting import calibrate_operators
    from repro.predict.calibration.software_fitting import calibrate_fused, calibrate_serving
    from repro.predict.calibration.step_fitting import calibrate_step
    from repro.predict.fused.parameters import FUSED
    from repro.predict.network.links import LINKS
    from repro.predict.operators.measured import OPERATORS
    from repro.predict.parameters import CALIBRATIONS
    from repro.predict.serving.parameters import FITTED
    from repro.predict.tables.columns import naming
    from repro.predict.tables.reading import read_collectives, read_rows

    def keep(found: object, name: str, module: str) -> None:
        typer.echo(HOME / "params" / name)
        write_fit(found, f"repro.predict.{module}", HOME / "params" / name)

    collectives, sources = read_collectives(log or [], gpu, network, ranks, nodes)
    links = calibrate_links(collectives, sources)
    if log:
        keep(links, LINKS, "network.links")
        return
    runs = read_rows(training)
    with naming(training):
        step = calibrate_step(runs, collectives, f"{training.name}, {sources}")
    keep(links, LINKS, "network.links")
    keep(step, f"{CALIBRATIONS.name}/{name}.yaml", "parameters")
    keep(calibrate_operators(), OPERATORS, "operators.kernels")
    modern = PUBLISHED / "training_modern.csv"
    keep(calibrate_fused(read_rows(modern), modern.name), FUSED, "fused.parameters")
    served = PUBLISHED / "inference_a100_fastertransformer.csv"
    keep(calibrate_serving(read_rows(served), served.name), FITTED, "serving.parameters")
