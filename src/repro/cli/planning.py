"""Commands that search plans of a model: the fastest, those that fit, and those that serve it."""

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repro.cli.options import (
    ClusterOption,
    GpuOption,
    GpusPerNodeOption,
    JsonOption,
    ModelArgument,
    NicOption,
    SeqOption,
    VocabularyOption,
)
from repro.cli.output import print_json, records
from repro.errors import ReproError

if TYPE_CHECKING:
    from repro.catalog.job_inputs import Hardware
    from repro.catalog.models.hugging_face import ModelFile

app = typer.Typer()
_command = partial(app.command, rich_help_panel="Predict")
_GPU = "h100-sxm-80gb"
_TrainingGpus = Annotated[
    int | None, typer.Option(help="Number of GPUs. Default: the arguments', or 1024.")
]
_FittingGpus = Annotated[
    int | None, typer.Option(help="Number of GPUs. Default: the arguments', or 64.")
]
_TrainingBatch = Annotated[
    int | None, typer.Option(help="Sequences per iteration. Default: the arguments', or 2048.")
]
_FittingBatch = Annotated[
    int | None, typer.Option(help="Sequences per iteration. Default: the arguments', or 512.")
]


@dataclass(frozen=True)
class _Question:
    """Model on some hardware.

    `notes` name what was not given, with the rule that filled it.
    """

    model: "ModelFile"
    where: "Hardware"
    notes: tuple[str, ...]

    def sized(self, **sizes: tuple[int | None, int]) -> "tuple[_Question, list[int]]":
        """Take sizes that are given, else those of the model's arguments, else defaults.

        The question that is returned has the notes on them.
        """
        plan, notes, found = self.model.plan, list(self.notes), []
        for name, (given, default) in sizes.items():
            if given is None:
                rule = "from the arguments" if name in plan else "as not given"
                notes.append(f"{name} {plan.get(name, default)}, {rule}")
            found.append(plan.get(name, default) if given is None else given)
        unused = [f"{name} {value}" for name, value in plan.items() if name not in (*sizes, "seq")]
        if unused:
            notes.append(f"{', '.join(unused)} of the arguments not used, as plans are searched")
        return replace(self, notes=tuple(notes)), found

    def described(self, **others: Any) -> dict[str, Any]:
        """Return the question as fields of JSON."""
        shape = self.model.shape
        return {
            "model": self.model.label,
            "parameters": shape.count(shape.experts),
            "active_parameters": shape.count(shape.experts_per_token),
            "gpu": self.where.device.label,
            "calibrated": self.where.known,
            "gpus_per_node": self.where.gpus_per_node,
            "nic_gbps": self.where.nic_gbps,
            **others,
        }

    def print(self, text: str, answer: Mapping[str, Any], as_json: bool, **job: Any) -> None:
        """Print an answer, and on stderr what was assumed; or both as JSON."""
        notes = [*self.notes, *self.where.notes_on(job["gpus"])]
        if as_json:
            print_json({"job": {**self.described(**job), "notes": notes}, **answer})
            return
        assumed = textwrap.wrap("assumed: " + "; ".join(notes), 100, subsequent_indent="  ")
        for line in assumed if notes else ():
            typer.echo(line, err=True)
        typer.echo(text)


def _ask(
    model: str,
    gpu: str | None,
    cluster: str | None,
    gpus_per_node: int | None,
    nic: str | None,
    *,
    seq: int | None = None,
    vocabulary: int | None = None,
) -> _Question:
    """Read a model and its hardware; without a GPU or a cluster, `_GPU` is taken."""
    from repro.catalog.job_inputs import read_hardware, read_model

    found = read_model(model, seq, vocabulary)
    notes = found.notes
    if gpu is None and cluster is None:
        gpu, notes = _GPU, (*notes, f"GPU {_GPU}, as not given")
    where = read_hardware(gpu, cluster, gpus_per_node, nic)
    return _Question(found, where, (*notes, *where.notes))


@_command("what-if", epilog="Example: repro what-if llama3.1-70b --gpus 512 --global-batch 1024")
def what_if(
    model: ModelArgument,
    gpu: GpuOption = None,
    gpus: _TrainingGpus = None,
    global_batch: _TrainingBatch = None,
    cluster: ClusterOption = None,
    gpus_per_node: GpusPerNodeOption = None,
    nic: NicOption = None,
    seq: SeqOption = None,
    vocabulary: VocabularyOption = None,
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
    as_json: JsonOption = False,
) -> None:
    """Print the ten parallel plans that train a model fastest, with predicted iteration times.

    Exit status 3 if no plan fits in memory.
    """
    from repro.predict.explore.jobs.fused_plans import best_plans, plan_table

    asked = _ask(model, gpu, cluster, gpus_per_node, nic, seq=seq, vocabulary=vocabulary)
    asked, (count, batch) = asked.sized(gpus=(gpus, 1024), global_batch=(global_batch, 2048))
    best = best_plans(
        asked.model,
        asked.where,
        count,
        batch,
        precisions=None if precisions is None else precisions.split(","),
        expert_imbalance=expert_imbalance,
        zero_bubble=zero_bubble,
    )
    plans = {"plans": records(best.rename(columns={"dtype": "precision"}))}
    job = {"gpus": count, "global_batch": batch, "seq": asked.model.shape.seq}
    asked.print(plan_table(best), plans, as_json, **job)


@_command(epilog="Example: repro fits llama3.1-8b --gpus 16")
def fits(
    model: ModelArgument,
    gpu: GpuOption = None,
    gpus: _FittingGpus = None,
    global_batch: _FittingBatch = None,
    cluster: ClusterOption = None,
    gpus_per_node: GpusPerNodeOption = None,
    nic: NicOption = None,
    seq: SeqOption = None,
    vocabulary: VocabularyOption = None,
    precision: Annotated[str, typer.Option(help="Precision: bf16, fp8, mxfp8 or nvfp4.")] = "bf16",
    as_json: JsonOption = False,
) -> None:
    """Print the largest micro batch and context that fit in memory, and the largest model.

    The table has one row per recomputation policy and ZeRO stage, fastest first. Exit status 3 if
    no plan fits.
    """
    from repro.predict.explore.jobs.fits import fits_table, largest_model, what_fits

    asked = _ask(model, gpu, cluster, gpus_per_node, nic, seq=seq, vocabulary=vocabulary)
    asked, (count, batch) = asked.sized(gpus=(gpus, 64), global_batch=(global_batch, 512))
    found = what_fits(asked.model, asked.where, count, batch, precision)
    largest = largest_model(asked.where, count, batch, precision)
    named = {"dtype": "precision", "context": "context_tokens"}
    answer = {
        "policies": records(found.reset_index().rename(columns=named)),
        "largest_model": largest and asdict(largest),
    }
    last = f"largest model that fits: {largest or 'none of params/open_models.yaml'}"
    job = {"gpus": count, "global_batch": batch, "seq": asked.model.shape.seq}
    asked.print(f"{fits_table(found)}\n{last}", answer, as_json, **job)


@_command("serve-estimate", epilog="Example: repro serve-estimate llama3.1-70b --token-ms 50")
def serve_estimate(
    model: ModelArgument,
    gpu: GpuOption = None,
    cluster: ClusterOption = None,
    gpus_per_node: GpusPerNodeOption = None,
    nic: NicOption = None,
    gpus: Annotated[
        int | None, typer.Option(help="Number of GPUs. Default: 8, or the fewest for --rate.")
    ] = None,
    input_tokens: Annotated[int, typer.Option("--input", help="Tokens per prompt.")] = 1024,
    output_tokens: Annotated[int, typer.Option("--output", help="Tokens per answer.")] = 256,
    vocabulary: VocabularyOption = None,
    token_ms: Annotated[
        float | None, typer.Option(help="Longest time per output token, in ms. Default: any.")
    ] = None,
    first_ms: Annotated[
        float | None, typer.Option(help="Longest time to first token, in ms. Default: any.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second, which arrive at random.")
    ] = None,
    percentile: Annotated[
        int | None,
        typer.Option(
            help="Percentage of requests at --rate within the times: 50, 90 (default), 99."
        ),
    ] = None,
    gpu_hour_cost: Annotated[
        float | None, typer.Option(help="Price of a GPU for an hour, in any currency.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Sequences per copy, at most with --rate. Default: best.")
    ] = None,
    precisions: Annotated[
        str, typer.Option(help="Precisions of linear layers, comma-separated.")
    ] = "bf16",
    stack: Annotated[str, typer.Option(help="Software in params/serving.yaml, or its first.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Print latency and throughput of the best serving plan, and what bounds each operator.

    With --rate, print percentiles of the times of requests at this rate, and
    the fewest GPUs on which they keep --first-ms and --token-ms.

    Exit status 3 if the model or one sequence does not fit in memory.
    """
    from repro.predict.explore.jobs.load import Load, load_plans, load_text
    from repro.predict.explore.jobs.serving import (
        Service,
        best_plan,
        estimate_text,
        operators,
        serving_plans,
        with_costs,
    )
    from repro.predict.serving.parameters import borrowed_costs, engine

    tokens = input_tokens + output_tokens
    asked = _ask(model, gpu, cluster, gpus_per_node, nic, seq=tokens, vocabulary=vocabulary)
    if ahead := asked.model.shape.mtp_layers:
        asked = replace(asked, notes=(*asked.notes, f"{ahead} layers that predict ahead unused"))
    if borrowed := borrowed_costs(engine(asked.where.device, "bf16", stack=stack).stack):
        asked = replace(asked, notes=(*asked.notes, borrowed))
    count = 8 if gpus is None else gpus
    service = Service(asked.model, asked.where, count, input_tokens, output_tokens, stack)
    names = precisions.split(",")
    if "" in names:
        raise ReproError(f"precisions {precisions!r}: an empty name; fix: name one, such as bf16")
    if rate is None:
        if percentile is not None:
            raise ReproError(f"percentile {percentile}: requests have no rate; fix: give --rate")
        plans = with_costs(serving_plans(service, names, batch), gpu_hour_cost)
        best = best_plan(plans, token_ms, first_ms)
        text = estimate_text(service, plans, best)
        optimal = plans[plans.best].drop(columns="best").sort_values("output_token_s")
        answer = {"plan": best.drop("best").to_dict(), "plans": records(optimal)}
        job: dict[str, Any] = {"gpus": service.gpus}
    else:
        load = Load(rate, token_ms, first_ms, 90 if percentile is None else percentile)
        plans = load_plans(service, load, names, batch, fewest=gpus is None)
        plans = with_costs(plans, gpu_hour_cost)
        best = plans.iloc[0]
        text = load_text(service, load, plans)
        ends = plans.filter(regex="_(low|high)_s$").columns
        answer = {"load": records(plans)[0], "loads": records(plans.drop(columns=ends))}
        job = {"gpus": int(best.gpus), "requests_per_s": rate, "percentile": load.percentile}
    named = {"intensity": "intensity_flops_per_byte", "rate": "flops_per_s"}
    answer["operators"] = records(operators(service, best).rename(columns=named))
    job |= {"input_tokens": input_tokens, "output_tokens": output_tokens}
    asked.print(text, answer, as_json, **job)
