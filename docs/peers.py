"""Ask other performance models about the published training runs (docs/explanation/peers.md).

Install the other models in a folder of their own, then name the folder:

    pip install --no-deps --target PEERS llm-analysis==0.2.2 fire==0.7.0 termcolor==3.1.0 six
    python docs/peers.py PEERS

The script takes three minutes and writes `data/reference/peers.csv`. `docs/renew.py` makes the
tables of the page from this file. All answers are seconds per iteration; a blank cell is a run that
the model cannot be asked about.
"""

import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.systems.gpus import find_gpu_name, gpu
from repro.paths import PUBLISHED
from repro.predict.calibration.software_fitting import TRAINING_PRIORS, model_names, training_fitting
from repro.predict.calibration.step_fitting import PRIORS, cross_validate, fit_ring
from repro.predict.calibration.validation import predict_runs
from repro.predict.fused.run import peak_flops
from repro.predict.parameters import Parameters
from repro.predict.tables.reading import read_collectives, read_rows
from repro.results.reference import REFERENCE

ANSWERS = REFERENCE / "peers.csv"
TODAY = ("training_modern.csv", "training_mlperf.csv")
FITTED_2021 = "training_a100_vtrain.csv"
OTHER_2021 = "training_a100_tables.csv"
# llm-analysis states that Megatron-LM reaches about half of the peak (its constant.py).
USUAL_EFFICIENCY = 0.5
PEERS = {
    "repro_held_out": "repro, held out",
    "constant_rate": "constant rate",
    "llm_analysis": "llm-analysis, learnt",
    "llm_analysis_half": "llm-analysis, 0.5",
}


def published_runs() -> pd.DataFrame:
    """Read all published training runs, with the file and the software's generation of each."""
    parts = []
    for name in (*TODAY, FITTED_2021, OTHER_2021):
        rows = read_rows(PUBLISHED / name).assign(file=name)
        if name not in TODAY:
            rows["model"] = model_names(rows)
        parts.append(rows)
    runs = pd.concat(parts, ignore_index=True)
    runs["gpu_name"] = [find_gpu_name(str(label)) for label in runs.gpu]
    runs["generation"] = [gpu(name).generation for name in runs.gpu_name]
    runs["today"] = runs.file.isin(TODAY)
    return runs


def predicted(runs: pd.DataFrame) -> pd.DataFrame:
    """Predict all runs with the kept calibration: `time_s`, and `work` in seconds at peak rate."""
    # Columns of one file are blank, not absent, in the table of all files.
    files = [rows.dropna(axis="columns", how="all") for _, rows in runs.groupby("file")]
    return pd.concat([predict_runs(rows) for rows in files]).loc[runs.index]


def held_out_s(runs: pd.DataFrame) -> pd.Series:
    """Predict each run by a fit without its model; runs outside of the fit by the kept fit."""
    times = predicted(runs).time_s
    fitted = {name.split()[1] for name in TRAINING_PRIORS if name.startswith("sustained ")}
    today = runs[runs.today & runs.generation.isin(fitted)]
    errors = training_fitting(today.reset_index(drop=True)).cross_validate(
        today.model.reset_index(drop=True)
    )
    times[today.index] = today.iteration_time_s * np.exp(errors)
    old = runs[runs.file == FITTED_2021].dropna(axis="columns", how="all")
    medians = {name: prior.median for name, prior in PRIORS.items()}
    start = Parameters(**medians, **fit_ring(read_collectives([], "", "", None, None)[0]))
    times[old.index] = old.iteration_time_s * np.exp(cross_validate(old, old.model, start))
    return times


def learnt_rate(runs: pd.DataFrame, at_peak_s: pd.Series) -> pd.Series:
    """Return for each run the fraction of the peak that suits the other models best.

    Runs are alike in software generation, GPU and precision. The fraction has the lowest mean
    absolute error of time on all such runs of other models; NaN where there are none.
    """
    reached = at_peak_s / runs.iteration_time_s
    rates = pd.Series(np.nan, index=runs.index)
    known = runs[reached.notna()]
    for _, alike in known.groupby(["today", "gpu_name", "dtype"]):
        for model, own in alike.groupby("model"):
            others = reached[alike.index[alike.model != model]].to_numpy()
            if len(others):
                errors = np.abs(others / others[:, None] - 1).mean(axis=1)
                rates[own.index] = others[errors.argmin()]
    return rates


def _llm_analysis() -> Callable[[Any, float], float]:
    """Return a function that asks llm-analysis for a run's seconds at an efficiency."""
    from llm_analysis import analysis, config  # type: ignore[import-not-found]
    from llm_analysis.logger import logger  # type: ignore[import-not-found]

    logger.setLevel("ERROR")
    kept = analysis.ActivationRecomputation
    recomputed = {"full": kept.FULL, "selective": kept.SELECTIVE}
    bits = {"fp8": 8, "mxfp8": 8, "nvfp4": 4}

    def ask(run: Any, efficiency: float) -> float:
        device, width = gpu(run.gpu_name), bits.get(run.dtype, 16)
        replicas = int(run.gpus // (run.tp * run.pp))
        ffn = run.ffn if run.ffn > 0 else 4 * run.hidden
        model = config.ModelConfig(
            name=run.model,
            num_layers=int(run.layers),
            n_head=int(run.heads),
            hidden_dim=int(run.hidden),
            vocab_size=int(run.vocab),
            max_seq_len=int(run.seq),
            num_key_value_heads=int(run.kv_heads if run.kv_heads > 0 else run.heads),
            ffn_embed_dim=int(ffn),
            expansion_ratio=ffn / run.hidden,
        )
        described = config.GPUConfig(
            name=run.gpu_name,
            mem_per_GPU_in_GB=device.memory_gb,
            hbm_bandwidth_in_GB_per_sec=device.memory_gbytes_per_s,
            intra_node_bandwidth_in_GB_per_sec=device.link_gbytes_per_s,
            intra_node_min_message_latency=8e-6,
            peak_fp16_TFLOPS=device.peak_flops / 1e12,
            peak_i8_TFLOPS=peak_flops(device, "fp8") / 1e12,
            peak_i4_TFLOPS=peak_flops(device, "nvfp4") / 1e12,
            inter_node_bandwidth_in_GB_per_sec=device.nic_gbps / 8,
        )
        plan = config.ParallelismConfig(tp_size=int(run.tp), pp_size=int(run.pp), dp_size=replicas)
        precision = config.DtypeConfig(weight_bits=width, activation_bits=width)
        asked = analysis.LLMAnalysis(
            model, described, precision, plan, flops_efficiency=min(efficiency, 1.0)
        )
        zero = analysis.DSZeRO.STAGE_3 if run.fsdp == "yes" else analysis.DSZeRO.STAGE_1
        answer = asked.training(
            batch_size_per_gpu=int(run.micro_batch),
            global_batch_size=int(run.global_batch),
            seq_len=int(run.seq),
            activation_recomputation=recomputed.get(run.recompute, kept.NONE),
            ds_zero=zero,
            mlp_gated_linear_units=run.gated_mlp == "yes",
        )
        return float(answer["latency_per_iter"])

    return ask


def ask_llm_analysis(runs: pd.DataFrame) -> pd.DataFrame:
    """Ask llm-analysis with its usual efficiency, and with one learnt from other models.

    It knows no context parallelism and no adapters, and its FLOPs ignore experts.
    """
    ask = _llm_analysis()
    known = runs[~(runs.cp > 1) & ~(runs.lora_rank > 0) & runs.experts.isna()]

    def answers(efficiencies: Iterable[float]) -> pd.Series:
        times = pd.Series(np.nan, index=runs.index)
        for run, efficiency in zip(known.itertuples(), efficiencies, strict=True):
            try:
                times[run.Index] = ask(run, efficiency) if efficiency > 0 else np.nan
            except AssertionError as refusal:
                print(f"llm-analysis refuses {run.id}: {refusal}", file=sys.stderr)
        return times

    learnt = learnt_rate(runs, answers([1.0] * len(known)))
    return pd.DataFrame(
        {
            "llm_analysis": answers(learnt[known.index]),
            "llm_analysis_half": answers([USUAL_EFFICIENCY] * len(known)),
        }
    )


def constant_rate_s(runs: pd.DataFrame) -> pd.Series:
    """Predict each run with the MFU of other models on the same GPU in the same precision."""
    work = predicted(runs).work
    return work / learnt_rate(runs, work)


def _kind(run: Any) -> str:
    if not run.today:
        return "dense, Megatron-LM of 2021"
    if run.lora_rank > 0:
        return "MLPerf, adapters"
    if run.file == TODAY[1]:
        return "MLPerf, all weights"
    if run.experts > 0:
        return "experts"
    return "dense, sharded" if run.fsdp == "yes" else "dense, replicas"


def errors_pct() -> pd.DataFrame:
    """Return absolute errors of all answers in percent, with `kind`, `gpu_name` and others."""
    runs = published_runs()
    answers = pd.read_csv(ANSWERS, comment="#").set_index(["file", "id"])
    answers = answers.loc[pd.MultiIndex.from_frame(runs[["file", "id"]])].set_index(runs.index)
    errors = answers.div(runs.iteration_time_s, axis=0).sub(1).abs().mul(100)
    kinds = [_kind(run) for run in runs.itertuples()]
    return errors.assign(kind=kinds).join(runs[["gpu_name", "dtype", "generation", "today"]])


def _means(errors: pd.DataFrame, *names: str) -> tuple[str, ...]:
    """Return the number of rows that all of the models answer, and their mean errors on these."""
    both = errors[[*names]].dropna()
    cells = [f"{mean:.1f}" for mean in both.mean()] if len(both) else ["-" for _ in names]
    return (str(len(both)), *cells)


def error_table() -> list[tuple[str, ...]]:
    """Compare mean errors by kind of run and by GPU generation, each pair on the same rows."""
    errors = errors_pct()
    groups = list(errors.groupby("kind", sort=False))
    groups += list(errors[errors.today].groupby("generation"))
    head = ("runs", "rows", "constant rate", "repro", "rows", PEERS["llm_analysis_half"])
    rows = [
        (
            str(name),
            *_means(group, "constant_rate", "repro_held_out"),
            *_means(group, "llm_analysis_half", "llm_analysis", "repro_held_out"),
        )
        for name, group in groups
    ]
    return [(*head, PEERS["llm_analysis"], "repro"), *rows]


def lost_table() -> list[tuple[str, ...]]:
    """List the groups of runs in which another model has a smaller mean error than this one."""
    rows = []
    for (kind, device, precision), group in errors_pct().groupby(["kind", "gpu_name", "dtype"]):
        for name, label in list(PEERS.items())[1:]:
            both = group[[name, "repro_held_out"]].dropna()
            if len(both) and both[name].mean() < both.repro_held_out.mean():
                where = f"{kind}, {device}, {precision}"
                rows.append((where, label, *_means(group, name, "repro_held_out")))
    return [("runs", "smaller error", "rows", "its error", "repro"), *rows]


def main() -> int:
    """Ask all models, and write their answers."""
    sys.path.append(sys.argv[1])
    runs = published_runs()
    answers = runs[["file", "id"]].assign(
        repro_held_out=held_out_s(runs), constant_rate=constant_rate_s(runs)
    )
    answers = answers.join(ask_llm_analysis(runs))[["file", "id", *PEERS]]
    with ANSWERS.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# Written by docs/peers.py; llm-analysis {version('llm-analysis')}\n")
        answers.to_csv(file, index=False, float_format="%.5g", lineterminator="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
