"""Commands that read logs and traces of other tools, and judge them by predictions."""

import re
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from repro.cli.options import (
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
from repro.errors import ReproError

app = typer.Typer()
_command = partial(app.command, rich_help_panel="Predict")
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


@_command(epilog="Example: repro log train.log --gpu h100-sxm-80gb --nic 8x400")
def log(
    file: Annotated[Path, typer.Argument(help="Log of a training run, of any supported tool.")],
    job: Annotated[
        Path | None, typer.Option(help="YAML file of a job, for what the log omits.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model, as repro estimate takes it.")] = None,
    gpu: GpuOption = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs.")] = None,
    cluster: ClusterOption = None,
    gpus_per_node: GpusPerNodeOption = None,
    nic: NicOption = None,
    seq: SeqOption = None,
    global_batch: GlobalBatchOption = None,
    micro_batch: MicroBatchOption = None,
    vocabulary: VocabularyOption = None,
    tp: TpOption = None,
    pp: PpOption = None,
    stack: StackOption = None,
    output: Annotated[
        Path | None, typer.Option(help="Also write a dataset of the runs (.nc).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a training log says of its iterations, what to expect, and what differs.

    Exit status 3 if a run is slower than the 90 % interval.
    """
    from repro.logs.training.reading import read_training_file
    from repro.predict.explore.jobs.logged import judge, log_json, log_text
    from repro.results.store import write_dataset
    from repro.results.training_logs import log_dataset

    given = stated_fields(
        job,
        model=model,
        gpu=gpu,
        gpus=gpus,
        cluster=cluster,
        gpus_per_node=gpus_per_node,
        nic=nic,
        seq=seq,
        global_batch=global_batch,
        micro_batch=micro_batch,
        vocabulary=vocabulary,
        tp=tp,
        pp=pp,
        stack=stack,
    )
    text, found = read_training_file(file)
    judged = judge(found, given)
    if as_json:
        print_json(log_json(found, judged))
    else:
        typer.echo(log_text(found, judged))
    if output is not None:
        models = [one.measured.estimate.job.label if one.measured else "" for one in judged]
        write_dataset(log_dataset(found, text, file.name, models), output)
    if any(one.verdict == "slower" for one in judged):
        raise typer.Exit(3)


@_command(epilog="Example: repro busbw --gpu h100 --gpus-per-node 8 --nic 8x400 my_log.txt")
def busbw(
    cluster: Annotated[
        str | None,
        typer.Argument(help="Cluster in params/clusters.yaml; omit it with --gpu."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Argument(help="Log of a benchmark or a profiler of collectives, of any known tool."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPU in params/gpus.yaml, to describe a cluster.")
    ] = None,
    gpus_per_node: GpusPerNodeOption = None,
    nic: NicOption = None,
    collective: Annotated[
        str | None, typer.Option(help="Collective, if LOG has none. Default: all_reduce.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Size, e.g. 64MiB. Default: LOG's, or 1 KiB to 4 GiB.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Ranks, if LOG states none. Default: GPUs of two nodes.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Nodes, if LOG states none. Default: ranks fill nodes.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Protocol between nodes. Default: measured or nominal rates.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the bus bandwidth to expect on a cluster, or whether that of a log is as expected.

    Exit status 3 if the peak of a log is below the 90 % interval.
    """
    from repro.catalog.described import described_cluster
    from repro.catalog.systems.clusters import cluster as read_cluster
    from repro.collectives.definitions import collective_name
    from repro.logs.reading import check_stated, read_log
    from repro.predict.network import expected as expectations

    if gpu is not None:
        if log is not None:
            raise ReproError(f"cluster {cluster} beside --gpu {gpu}; fix: give either")
        log = None if cluster is None else Path(cluster)
        system, notes = described_cluster(gpu, gpus_per_node, nic)
        for note in notes:
            typer.echo(f"assumed: {note}", err=True)
    elif gpus_per_node is not None or nic is not None:
        raise ReproError("--gpus-per-node and --nic describe a cluster of --gpu; fix: give --gpu")
    elif cluster is None:
        raise ReproError("no cluster; fix: repro busbw CLUSTER [LOG], or --gpu GPU [LOG]")
    else:
        system = read_cluster(cluster)
    per_node = system.topology.gpus_per_node
    if log is None:
        sizes = _STANDARD_SIZES if size is None else parse_size(size)
        two_nodes = min(2 * per_node, system.topology.gpus)
        n = two_nodes if ranks is None else ranks
        name = collective or "all_reduce"
        expected = expectations.expected_busbw(system, name, sizes, n, protocol, nodes)
        print_table(expected, expectations.busbw_table(expected), as_json)
        return
    measured = read_log(log, collective, ranks)
    skipped = measured.attrs["skipped"]
    for one in skipped:
        typer.echo(f"not read: {one}", err=True)
    typer.echo(
        f"{measured.attrs['tool']}: {len(measured)} measurements in {measured.attrs['lines']} "
        f"lines, {len(skipped)} remarks",
        err=True,
    )
    # They are used where the log states none.
    check_stated(measured, log, collective=collective and collective_name(collective), ranks=ranks)
    stated = measured.nodes.notna()
    if nodes is not None and stated.all() and set(measured.nodes) != {nodes}:
        listed = ", ".join(str(count) for count in sorted(set(measured.nodes)))
        raise ReproError(f"{log}: lists {listed} nodes, not --nodes {nodes}; fix: omit --nodes")
    if nodes is not None:
        measured["nodes"] = measured.nodes.where(stated, nodes)
    elif not stated.all():
        typer.echo(
            f"assumed: ranks fill nodes of {per_node} GPUs, as the log lists no hosts; "
            "fix: give --nodes N",
            err=True,
        )
    if size is not None:
        measured = measured[measured.size_bytes == parse_size(size)]
        if measured.empty:
            raise ReproError(f"{log}: no measurement of size {size}; fix: omit --size")
    judged = expectations.judge_busbw(measured, system, protocol)
    shown = judged.join(measured.in_place)
    print_table(shown, expectations.busbw_table(shown), as_json)
    typer.echo(expectations.summary(judged), err=as_json)
    if expectations.whole_verdict(judged) == expectations.SLOW:
        raise typer.Exit(3)


@_command(epilog="Example: repro retime trace.json")
def retime(
    trace: Annotated[Path, typer.Argument(help="Trace recorded with record_shapes=True.")],
    as_json: JsonOption = False,
) -> None:
    """Print measured and predicted times of the operators in a PyTorch profiler trace of a CPU.

    Predictions use fp32 microbenchmarks of this machine (`repro measure operators`).
    """
    from repro.logs.operator_trace import read_cpu_file
    from repro.predict.operators.trace_replay import replay_trace
    from repro.results.store import has_runs, read_result, why_not_run

    calls, measured = read_cpu_file(trace), read_result("operators")
    if not has_runs(measured):
        raise ReproError(
            f"no microbenchmarks ({why_not_run(measured)}); fix: dvc repro measure@operators"
        )
    found = replay_trace(calls, measured).reset_index()
    print_table(found, found.round(3).to_string(index=False), as_json)
