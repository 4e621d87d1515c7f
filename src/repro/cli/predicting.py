"""Commands that predict with the performance model, validate it and fit it to measurements."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from repro.cli.options import (
    MODEL_HELP,
    ClusterOption,
    GlobalBatchOption,
    GpuOption,
    GpusPerNodeOption,
    JsonOption,
    MicroBatchOption,
    NicOption,
    PpOption,
    SeqOption,
    StackOption,
    TpOption,
    VocabularyOption,
    stated_fields,
)
from repro.cli.output import print_json, print_table
from repro.errors import ReproError, of_file
from repro.paths import HOME, PUBLISHED

app = typer.Typer()
_command = partial(app.command, rich_help_panel="Predict")
_CALIBRATION, _TRAINING = "a100-megatron", "training_a100_vtrain.csv"


@_command(epilog="Example: repro estimate config.json --gpu h100-sxm-80gb --gpus 64 --tp 8")
def estimate(
    model: Annotated[
        str | None,
        typer.Argument(help=MODEL_HELP),
    ] = None,
    job: Annotated[
        Path | None, typer.Option(help="YAML file of a job; options replace its fields.")
    ] = None,
    jobs: Annotated[
        Path | None, typer.Option(help="CSV with a job per row; prints a table, or with --json.")
    ] = None,
    gpu: GpuOption = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs. Default: one node.")] = None,
    cluster: ClusterOption = None,
    gpus_per_node: GpusPerNodeOption = None,
    nic: NicOption = None,
    tp: TpOption = None,
    pp: PpOption = None,
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
    micro_batch: MicroBatchOption = None,
    global_batch: GlobalBatchOption = None,
    seq: SeqOption = None,
    vocabulary: VocabularyOption = None,
    precision: Annotated[
        str | None, typer.Option(help="Linear layers: bf16, fp8, mxfp8 or nvfp4.")
    ] = None,
    stack: StackOption = None,
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
    as_json: JsonOption = False,
) -> None:
    """Print whether a training job fits, what it should reach, and why a measured one differs.

    Exit status 3 if it does not fit in memory.
    """
    from repro.catalog.jobs import job_of, read_jobs, resolve
    from repro.predict.explore.jobs import estimate as estimates
    from repro.predict.explore.jobs.estimate_report import report_json, report_table, report_text
    from repro.predict.explore.jobs.explain import explain

    if jobs is not None and (job is not None or measured is not None):
        raise ReproError("--jobs beside --job or --measured; fix: give one of them")
    if measured is None and (peak_tflops is not None or flops is not None):
        raise ReproError("--peak-tflops or --flops without --measured; fix: give it")
    given = stated_fields(
        job,
        model=model,
        gpu=gpu,
        gpus=gpus,
        cluster=cluster,
        gpus_per_node=gpus_per_node,
        nic=nic,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=etp,
        vpp=vpp,
        micro_batch=micro_batch,
        global_batch=global_batch,
        seq=seq,
        vocabulary=vocabulary,
        precision=precision,
        stack=stack,
        recompute=recompute,
        zero=zero,
        gradient_bytes=gradient_bytes,
        lora_rank=lora_rank,
        expert_imbalance=expert_imbalance,
        overlap=overlap,
    )
    if jobs is not None:
        found = estimates.estimate(read_jobs(jobs, given))
        if as_json:
            print_json([report_json(one) for one in found])
        else:
            typer.echo(report_table(found).to_string(index=False, float_format="{:.4g}".format))
        return
    if "model" not in given:
        raise ReproError("no model; fix: repro estimate MODEL --gpu GPU, or --job FILE")
    one = estimates.estimate([resolve(job_of(given))])[0]
    compared = (
        None if measured is None else explain(one, measured, peak_tflops=peak_tflops, formula=flops)
    )
    if as_json:
        print_json(report_json(one, compared))
    else:
        typer.echo(report_text(one, compared))
    if one.memory_verdict == estimates.DOES_NOT_FIT:
        raise typer.Exit(3)


@_command("gpu-spec", epilog="Example: repro gpu-spec my_gpu.yaml")
def gpu_spec(
    file: Annotated[
        Path, typer.Argument(help="Data sheet (YAML) with the keys of a GPU in params/gpus.yaml.")
    ],
) -> None:
    """Check the data sheet of a GPU for usual mistakes: units, sparse peaks, sums of directions.

    Prints a line per implausible value, and exit status 1.
    """
    from repro.catalog.systems.gpu_check import implausible, nearest_gpu, parse_gpu_sheet

    sheet = parse_gpu_sheet(file)
    if found := implausible(sheet):
        typer.echo("\n".join(found))
        raise typer.Exit(1)
    typer.echo(f"{sheet.label}: plausible; nearest GPU in params/gpus.yaml: {nearest_gpu(sheet)}")


@_command(epilog="Example: repro traffic gpt2-large --plan tp=2,pp=4,dp=2,micro_batches=8")
def traffic(
    model: Annotated[str, typer.Argument(help="GPT model, e.g. gpt2-large or gpt3-13b.")],
    plan: Annotated[
        str,
        typer.Option(help="Sizes of tp, cp, dp, pp, vpp, sp, zero, micro_batch, micro_batches."),
    ],
    cluster: Annotated[str, typer.Option(help="Cluster in params/clusters.yaml.")] = "dgx-a100",
    as_json: JsonOption = False,
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
    found = volumes(gpt_shape(model), layout, topology)
    print_table(found, traffic_table(found), as_json)


@_command(epilog="Example: repro validate data/published/training_modern.csv --by gpu,dtype")
def validate(
    file: Annotated[Path, typer.Argument(help="CSV of measurements, as in data/published/.")],
    by: Annotated[
        str, typer.Option(help="Columns to group by, e.g. gpu,dtype. Default: by kind of row.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Print the errors of the performance model's predictions for a CSV of measurements."""
    from repro.predict.calibration.validation import validate

    scores = validate(file, by.split(",") if by else ())
    print_table(scores.reset_index(), scores.round(2).to_string(), as_json)


@_command(epilog="Example: repro calibrate --log my.log --gpu H100 --network 'my fabric'")
def calibrate(
    name: Annotated[
        str | None,
        typer.Option(help=f"Write params/calibration/NAME.yaml. Default: {_CALIBRATION}."),
    ] = None,
    training: Annotated[
        Path | None, typer.Option(help=f"CSV of training runs. Default: {_TRAINING}.")
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            help="Log of nccl-tests, OSU, DeepSpeed or torch's profiler; fits links only. Pass all "
            "logs in one call: it replaces earlier fits."
        ),
    ] = None,
    gpu: Annotated[str, typer.Option(help="GPU of the logs.")] = "",
    network: Annotated[str, typer.Option(help="Name for the logs' network.")] = "",
    training_log: Annotated[
        list[Path] | None,
        typer.Option(
            help="Log of a training run of yours; fits today's software only. Pass all logs in one "
            "call."
        ),
    ] = None,
    job: Annotated[
        Path | None, typer.Option(help="YAML file of a job, for what training logs omit.")
    ] = None,
    ranks: Annotated[int | None, typer.Option(help="Ranks, if the logs state none.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes, if the logs state none.")] = None,
) -> None:
    """Fit the performance model to measurements, and write the fits to params/.

    GPUs are fitted to training runs, links to collectives, and all other parts
    to published measurements. Logs of training move only what their times
    depend on; errors are also printed for each run by a fit to the others.
    """
    import pandas as pd

    from repro.predict.calibration.fit import write_fit
    from repro.predict.calibration.link_fitting import calibrate_links
    from repro.predict.calibration.operator_fitting import calibrate_operators
    from repro.predict.calibration.software_fitting import calibrate_fused, calibrate_serving
    from repro.predict.calibration.step_fitting import calibrate_step
    from repro.predict.fused.parameters import FUSED
    from repro.predict.network.links import LINKS
    from repro.predict.operators.measured import OPERATORS
    from repro.predict.parameters import CALIBRATIONS
    from repro.predict.serving.parameters import FITTED, ServingFit
    from repro.predict.tables.columns import FIX
    from repro.predict.tables.reading import read_collectives, read_rows

    def keep(found: object, name: str, module: str) -> None:
        typer.echo(HOME / "params" / name)
        write_fit(found, f"repro.predict.{module}", HOME / "params" / name)

    if job is not None and not training_log:
        raise ReproError(f"--job {job} without --training-log; fix: give the log")
    if (network or ranks or nodes or (gpu and not training_log)) and not log:
        raise ReproError("--gpu, --network, --ranks or --nodes without --log; fix: give the log")
    if log and training_log:
        raise ReproError("--training-log beside --log; fix: give one kind of log")
    if (log or training_log) and (name is not None or training is not None):
        raise ReproError("--name or --training beside a log: not used; fix: omit it")
    if training_log:
        from repro.predict.calibration.own_runs import fit_own_runs
        from repro.predict.explore.jobs.logged import measured_runs

        logged = measured_runs(training_log, stated_fields(job, gpu=gpu or None))
        for reason in logged.left_out:
            typer.echo(f"left out: {reason}", err=True)
        own = fit_own_runs(logged.run, logged.measured_s, logged.gpus, logged.source)
        keep(own.calibration, FUSED, "fused.parameters")
        typer.echo(own.runs.set_axis(list(logged.names)).round(2).to_string())
        return
    collectives, sources = read_collectives(log or [], gpu, network, ranks, nodes)
    links = calibrate_links(collectives, sources)
    if log:
        keep(links, LINKS, "network.links")
        return
    training = training or PUBLISHED / _TRAINING
    runs = read_rows(training)
    with of_file(training, FIX):
        step = calibrate_step(runs, collectives, f"{training.name}, {sources}")
    keep(links, LINKS, "network.links")
    keep(step, f"{CALIBRATIONS.name}/{name or _CALIBRATION}.yaml", "parameters")
    keep(calibrate_operators(), OPERATORS, "operators.kernels")
    names = ("training_modern.csv", "training_mlperf.csv")
    modern = pd.concat([read_rows(PUBLISHED / name) for name in names], ignore_index=True)
    keep(calibrate_fused(modern, ", ".join(names)), FUSED, "fused.parameters")
    engines: dict[str, ServingFit] = {}
    for name in ("serving_engines.csv", "inference_a100_fastertransformer.csv"):
        engines |= calibrate_serving(read_rows(PUBLISHED / name), name)
    keep(engines, FITTED, "serving.parameters")
