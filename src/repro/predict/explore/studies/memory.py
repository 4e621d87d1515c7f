"""Memory of a training step by what decides it: beside published figures, and of open models."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from repro.catalog.models.open_models import open_model
from repro.catalog.models.volumes import embedding_parameters
from repro.catalog.parallel.layouts import Layout, read_plan
from repro.catalog.reading import choose
from repro.catalog.studies.published_memory import read_published_memory
from repro.catalog.systems.gpus import gpu
from repro.errors import ReproError
from repro.paths import PUBLISHED
from repro.predict.fused import memory as fused
from repro.predict.fused.run import Run
from repro.predict.memory import MIXED, WIDTHS, Memory
from repro.predict.step.memory import activation_bytes_per_layer, memory
from repro.predict.tables.training import read_runs, shape_columns
from repro.predict.workload import RECOMPUTE, Plan, Workload, workload

_GIB = 2**30


def published_memory() -> pd.DataFrame:
    """Figure 1 of Korthikanti et al., 2023, beside what is predicted.

    Returns
    -------
    DataFrame
        By model, mode and part (states, activations): published and predicted in GiB, error_pct.
        The figure leaves out embeddings.
    """
    rows: dict[tuple[str, ...], tuple[float, float]] = {}
    table = pd.read_csv(PUBLISHED / "korthikanti_fig1_memory.csv")
    for row in table.to_dict("records"):
        model, mode = str(row["model"]), str(row["mode"])
        w = published_workload(model, mode)
        found = memory(w)
        embeddings = embedding_parameters(w) / w.tensor_parallel
        per_parameter = MIXED.weight + MIXED.gradient + MIXED.master + MIXED.moments
        states = found.states - per_parameter * embeddings
        for part, published, predicted in (
            ("states", row["params_opt_GiB"], states),
            ("activations", row["activations_GiB"], found.activations),
        ):
            rows[model, mode, part] = (published, float(predicted[0]) / _GIB)
    return _with_errors(rows, ["model", "mode", "part"])


def published_savings() -> pd.DataFrame:
    """Figure 7 of Korthikanti et al., 2023, beside what is predicted.

    Returns
    -------
    DataFrame
        By model and mode: published and predicted activations of a layer in percent of those with
        nothing saved, error_pct.
    """
    rows: dict[tuple[str, ...], tuple[float, float]] = {}
    table = pd.read_csv(PUBLISHED / "korthikanti_fig7_actmem_pct.csv")
    for row in table.to_dict("records"):
        model, mode = str(row["model"]), str(row["mode"])
        saved, whole = (
            activation_bytes_per_layer(published_workload(model, one)) for one in (mode, "none")
        )
        rows[model, mode] = (row["pct_of_baseline"], float(100 * saved[0] / whole[0]))
    return _with_errors(rows, ["model", "mode"])


def published_workload(model: str, mode: str) -> Workload:
    """One of the models in one of the modes of `params/memory.yaml`.

    Raises
    ------
    ReproError
        A name is unknown.
    """
    known = read_published_memory()
    chosen, saving = choose("model", model, known.models), choose("mode", mode, known.modes)
    layout = read_plan(chosen.plan)
    plan = Plan(
        global_batch_size=layout.micro_batch_size * layout.micro_batches,
        micro_batch_size=layout.micro_batch_size,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        virtual_stages=layout.virtual_stages,
        recompute=saving.recompute,
        sequence_parallel=saving.sequence_parallel,
    )
    return workload("gpt", chosen.shape, plan).flat()[0]


def memory_by_policy(model: str, plan: str) -> pd.DataFrame:
    """Memory of the first stage by what is recomputed and what replicas share.

    Parameters
    ----------
    model
        Of `params/open_models.yaml`.
    plan
        As `repro.catalog.parallel.layouts.read_plan` takes it; its `zero` is left out.

    Returns
    -------
    DataFrame
        Parts in GB, by policy. Where attention is fused, recomputing its core saves nothing.

    Raises
    ------
    ReproError
        A name is unknown, or the model cannot be split so.
    """
    run = {mode: open_run(model, plan, mode) for mode in ("none", "full")}
    return _parts(
        {
            f"recompute {mode}, ZeRO-{level}": fused.memory(one, zero=level)
            for mode, one in run.items()
            for level in range(4)
        }
    )


def memory_by_stage(model: str, plan: str, recompute: str = "none") -> pd.DataFrame:
    """Memory of each stage, as `memory_by_policy` with the plan's `zero`."""
    run, layout = open_run(model, plan, recompute), read_plan(plan)
    return _parts(
        {
            f"stage {stage}": fused.memory(run, stage, zero=layout.zero)
            for stage in range(layout.pipeline_parallel)
        }
    )


def memory_by_width(model: str, plan: str, recompute: str = "none") -> pd.DataFrame:
    """Memory of the first stage by precision: of linear layers, and of what Adam keeps."""
    layout = read_plan(plan)
    of_layers = {
        f"linear layers in {name}": fused.memory(
            open_run(model, plan, recompute, name), zero=layout.zero
        )
        for name in ("bf16", "fp8")
    }
    run = open_run(model, plan, recompute)
    of_states = {
        name: fused.memory(run, zero=layout.zero, widths=widths)
        for name, widths in WIDTHS.items()
        if widths != MIXED
    }
    return _parts(of_layers | of_states)


def memory_by_context(model: str, plan: str, recompute: str = "none") -> pd.DataFrame:
    """Memory of the first stage with sequences up to 16 times as long, split among as many
    context-parallel ranks and not split."""
    layout = read_plan(plan)
    found = {}
    for times in (1, 4, 16):
        for ranks in dict.fromkeys((1, times)):
            run = open_run(model, plan, recompute)
            longer = replace(run, seq=run.seq * times, cp=run.cp * ranks)
            split = f", {ranks} ranks" if ranks > 1 else ""
            found[f"{longer.seq[0]:.0f} tokens{split}"] = fused.memory(longer, zero=layout.zero)
    return _parts(found)


def open_run(model: str, plan: str, recompute: str = "none", precision: str = "bf16") -> Run:
    """One open model, split so.

    Raises
    ------
    ReproError
        A name is unknown, or the model cannot be split so.
    """
    shape, layout = open_model(model).shape, read_plan(plan)
    choose("recompute", recompute, dict.fromkeys(RECOMPUTE))
    _check(shape.layers, shape.heads, layout)
    row = {
        "gpu": gpu("h100-sxm-80gb").label,
        "gpus": layout.ranks,
        "tp": layout.tensor_parallel,
        "pp": layout.pipeline_parallel,
        "cp": layout.context_parallel,
        "vpp": layout.virtual_stages,
        "micro_batch": layout.micro_batch_size,
        "global_batch": layout.micro_batch_size * layout.micro_batches * layout.data_parallel,
        "recompute": recompute,
        "dtype": precision,
        **shape_columns(shape),
    }
    return read_runs(pd.DataFrame([row]))


def _check(layers: int, heads: int, layout: Layout) -> None:
    chunks = layout.pipeline_parallel * layout.virtual_stages
    # The two ends may count as layers.
    if layers % chunks and (layers + 2) % chunks:
        raise ReproError(f"pp x vpp is {chunks}; {layers} layers, or {layers + 2}, do not divide")
    if heads % layout.tensor_parallel:
        raise ReproError(f"tp is {layout.tensor_parallel}; {heads} heads do not divide")


def _parts(found: Mapping[str, Memory]) -> pd.DataFrame:
    """Parts in GB, the framework's own among them."""
    rows = {
        name: {part: float(np.ravel(size)[0]) / 1e9 for part, size in vars(one).items()}
        for name, one in found.items()
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.assign(framework=fused.FRAMEWORK_BYTES / 1e9)


def _with_errors(
    rows: Mapping[tuple[str, ...], tuple[float, float]], names: list[str]
) -> pd.DataFrame:
    index = pd.MultiIndex.from_tuples(list(rows), names=names)
    table = pd.DataFrame(list(rows.values()), index=index, columns=["published", "predicted"])
    return table.assign(error_pct=100 * (table.predicted / table.published - 1))
