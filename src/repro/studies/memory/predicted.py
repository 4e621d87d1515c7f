"""Memory of a training step: compared with published figures, and of open models by choice."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from repro.catalog.models.open_models import open_model
from repro.catalog.models.volumes import embedding_parameters
from repro.catalog.parallel.layouts import Layout, read_plan
from repro.catalog.reading import choose
from repro.catalog.studies.published_memory import read_published_memory
from repro.catalog.systems.gpus import gpu
from repro.catalog.systems.software_stacks import read_stacks
from repro.errors import ReproError
from repro.paths import PUBLISHED
from repro.predict.fused import memory as fused
from repro.predict.fused.run import PRECISIONS, Run, decoder_runs
from repro.predict.memory import MIXED, WIDTHS, Memory
from repro.predict.step.memory import layer_activation_bytes, memory
from repro.predict.workload import Workload, layout_plan, recompute_codes, workload

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
            layer_activation_bytes(_published_workload(str(row.model), mode))[0][0]
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
    policies = list(product(("none", "full"), range(4)))
    recompute, zero = zip(*policies, strict=True)
    run = _open_run(model, read_plan(plan), recompute)
    labels = [f"recompute {mode}, ZeRO-{level}" for mode, level in policies]
    return _parts(labels, fused.memory(run, zero=np.array(zero)))


def memory_by_stage(model: str, plan: str) -> pd.DataFrame:
    """Predict memory of each pipeline stage; otherwise as `memory_by_policy`."""
    layout = read_plan(plan)
    stages = np.arange(layout.pipeline_parallel)
    found = fused.memory(_open_run(model, layout), stages, zero=layout.zero)
    return _parts([f"stage {stage}" for stage in stages], found)


def memory_by_width(model: str, plan: str) -> pd.DataFrame:
    """Predict memory of the first stage by precision of linear layers and of Adam's states."""
    layout = read_plan(plan)
    names = ("bf16", "fp8")
    by_layers = _open_run(model, layout, precision=[PRECISIONS.index(name) for name in names])
    labels = [f"linear layers in {name}" for name in names]
    tables = [_parts(labels, fused.memory(by_layers, zero=layout.zero))]
    run = _open_run(model, layout)
    tables += [
        _parts([name], fused.memory(run, zero=layout.zero, widths=widths))
        for name, widths in WIDTHS.items()
        if widths != MIXED
    ]
    return pd.concat(tables)


def memory_by_context(model: str, plan: str, recompute: str) -> pd.DataFrame:
    """Predict memory of the first stage with sequences 1, 4 and 16 times as long.

    Longer sequences are split among as many context-parallel ranks, or not split.
    """
    layout = read_plan(plan)
    run = _open_run(model, layout, recompute)
    times, ranks = np.array([(1, 1), (4, 1), (4, 4), (16, 1), (16, 16)]).T
    longer = replace(run, seq=run.seq * times, cp=run.cp * ranks)
    labels = [
        f"{tokens:.0f} tokens" + (f", {count} ranks" if count > 1 else "")
        for tokens, count in zip(longer.seq, ranks, strict=True)
    ]
    return _parts(labels, fused.memory(longer, zero=layout.zero))


def _open_run(
    model: str, layout: Layout, recompute: ArrayLike = "none", precision: ArrayLike = 0
) -> Run:
    """Return runs of one open model; a `ReproError` if the layout does not divide it."""
    shape, chunks = open_model(model).shape, layout.pipeline_parallel * layout.virtual_stages
    # The two ends may count as layers.
    if shape.layers % chunks and (shape.layers + 2) % chunks:
        layers = f"{shape.layers} layers, or {shape.layers + 2}"
        raise ReproError(f"pp x vpp is {chunks}; {layers}, do not divide")
    if shape.heads % layout.tensor_parallel:
        raise ReproError(f"tp is {layout.tensor_parallel}; {shape.heads} heads do not divide")
    return decoder_runs(
        shape,
        gpu("h100-sxm-80gb"),
        next(iter(read_stacks())),
        imbalance=1,
        tp=layout.tensor_parallel,
        pp=layout.pipeline_parallel,
        cp=layout.context_parallel,
        ep=1,
        dp=layout.data_parallel,
        vpp=layout.virtual_stages,
        zero_bubble=0,
        sharded=0,
        micro_batch=layout.micro_batch_size,
        micro_batches=layout.micro_batches,
        recompute=recompute_codes(recompute),
        precision=precision,
    )


def _parts(labels: list[str], found: Memory) -> pd.DataFrame:
    """Return parts in GB, with the framework's own, a row per label."""
    parts = {name: np.broadcast_to(size, len(labels)) / 1e9 for name, size in vars(found).items()}
    return pd.DataFrame(parts, index=labels).assign(framework=fused.FRAMEWORK_BYTES / 1e9)
