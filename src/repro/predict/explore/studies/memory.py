"""Memory of a training step: compared with published figures, and of open models by choice."""

from collections.abc import Mapping, Sequence
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
from repro.predict.tables.fused_training import read_runs, shape_columns
from repro.predict.workload import Workload, layout_plan, workload

_GIB = 2**30


def published_memory() -> pd.DataFrame:
    """Compare figure 1 of Korthikanti et al., 2023, with predictions.

    Returns
    -------
    DataFrame
        By model, mode and part (states, activations): published and predicted in GiB without
        embeddings, error_pct.
    """
    rows = []
    for row in pd.read_csv(PUBLISHED / "korthikanti_fig1_memory.csv").itertuples():
        w = _published_workload(str(row.model), str(row.mode))
        found = memory(w)
        per_parameter = MIXED.weight + MIXED.gradient + MIXED.master + MIXED.moments
        states = found.states - per_parameter * embedding_parameters(w) / w.tensor_parallel
        for part, published, predicted in (
            ("states", row.params_opt_GiB, states),
            ("activations", row.activations_GiB, found.activations),
        ):
            rows.append((row.model, row.mode, part, published, predicted[0] / _GIB))
    return _with_errors(rows, "model", "mode", "part")


def published_savings() -> pd.DataFrame:
    """Compare figure 7 of Korthikanti et al., 2023, with predictions.

    Returns
    -------
    DataFrame
        By model and mode: published and predicted activations of a layer in percent of those with
        nothing saved, error_pct.
    """
    rows = []
    for row in pd.read_csv(PUBLISHED / "korthikanti_fig7_actmem_pct.csv").itertuples():
        saved, whole = (
            activation_bytes_per_layer(_published_workload(str(row.model), mode))[0]
            for mode in (str(row.mode), "none")
        )
        rows.append((row.model, row.mode, row.pct_of_baseline, 100 * saved / whole))
    return _with_errors(rows, "model", "mode")


def _published_workload(model: str, mode: str) -> Workload:
    """Return one of the models in one of the modes of `params/memory.yaml`."""
    known = read_published_memory()
    chosen, saving = choose("model", model, known.models), choose("mode", mode, known.modes)
    layout = replace(read_plan(chosen.plan), sequence_parallel=saving.sequence_parallel)
    return workload("gpt", chosen.shape, layout_plan(layout, saving.recompute)).flat()[0]


def _with_errors(rows: Sequence[tuple[object, ...]], *names: str) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=[*names, "published", "predicted"]).set_index([*names])
    return table.assign(error_pct=100 * (table.predicted / table.published - 1))


def memory_by_policy(model: str, plan: str) -> pd.DataFrame:
    """Predict memory of the first stage by recomputation and ZeRO stage.

    Attention is fused, so that recomputing its core alone saves nothing.

    Parameters
    ----------
    model
        Name in `params/open_models.yaml`.
    plan
        Plan of `repro.catalog.parallel.layouts.read_plan`; its `zero` is ignored here.

    Returns
    -------
    DataFrame
        Parts in GB, one row per policy.

    Raises
    ------
    ReproError
        A name is unknown, or the plan does not divide the model.
    """
    runs = {mode: _open_run(model, read_plan(plan), mode) for mode in ("none", "full")}
    return _parts(
        {
            f"recompute {mode}, ZeRO-{level}": fused.memory(run, zero=level)
            for mode, run in runs.items()
            for level in range(4)
        }
    )


def memory_by_stage(model: str, plan: str) -> pd.DataFrame:
    """Predict memory of each pipeline stage; otherwise as `memory_by_policy`."""
    layout = read_plan(plan)
    run = _open_run(model, layout)
    return _parts(
        {
            f"stage {stage}": fused.memory(run, stage, zero=layout.zero)
            for stage in range(layout.pipeline_parallel)
        }
    )


def memory_by_width(model: str, plan: str) -> pd.DataFrame:
    """Predict memory of the first stage by precision of linear layers and of Adam's states."""
    layout = read_plan(plan)
    runs = {name: _open_run(model, layout, precision=name) for name in ("bf16", "fp8")}
    of_layers = {
        f"linear layers in {name}": fused.memory(run, zero=layout.zero)
        for name, run in runs.items()
    }
    of_states = {
        name: fused.memory(runs["bf16"], zero=layout.zero, widths=widths)
        for name, widths in WIDTHS.items()
        if widths != MIXED
    }
    return _parts(of_layers | of_states)


def memory_by_context(model: str, plan: str, recompute: str) -> pd.DataFrame:
    """Predict memory of the first stage with sequences 1, 4 and 16 times as long.

    Longer sequences are split among as many context-parallel ranks, or not split.
    """
    layout = read_plan(plan)
    run, found = _open_run(model, layout, recompute), {}
    for times in (1, 4, 16):
        for ranks in dict.fromkeys((1, times)):
            longer = replace(run, seq=run.seq * times, cp=run.cp * ranks)
            split = f", {ranks} ranks" if ranks > 1 else ""
            found[f"{longer.seq[0]:.0f} tokens{split}"] = fused.memory(longer, zero=layout.zero)
    return _parts(found)


def _open_run(model: str, layout: Layout, recompute: str = "none", precision: str = "bf16") -> Run:
    """Return a run of one open model; a `ReproError` if the layout does not divide it."""
    shape, chunks = open_model(model).shape, layout.pipeline_parallel * layout.virtual_stages
    # The two ends may count as layers.
    if shape.layers % chunks and (shape.layers + 2) % chunks:
        layers = f"{shape.layers} layers, or {shape.layers + 2}"
        raise ReproError(f"pp x vpp is {chunks}; {layers}, do not divide")
    if shape.heads % layout.tensor_parallel:
        raise ReproError(f"tp is {layout.tensor_parallel}; {shape.heads} heads do not divide")
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


def _parts(found: Mapping[str, Memory]) -> pd.DataFrame:
    """Return parts in GB, with the framework's own."""
    rows = {
        name: {part: float(np.ravel(size)[0]) / 1e9 for part, size in vars(one).items()}
        for name, one in found.items()
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.assign(framework=fused.FRAMEWORK_BYTES / 1e9)
