"""Ask other performance models about the published training runs (docs/explanation/peers.md).

Install the other models in a folder of their own, then name the folder:

    pip install --no-deps --target PEERS llm-analysis==0.2.2 fire termcolor six
    python docs/peers.py PEERS

The script takes a minute and writes `data/reference/peers.csv`. `docs/renew.py` makes the
tables of the page from this file. All answers are seconds per iteration; a blank cell is a run that
the model cannot be asked about.
"""

import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from repro.catalog.systems.gpus import find_gpu_name, gpu
from repro.paths import PUBLISHED
from repro.predict.calibration.software_fitting import (
    TRAINING_PRIORS,
    training_fitting,
)
from repro.predict.calibration.step_fitting import PRIORS, fit, fit_ring, log_errors
from repro.predict.calibration.validation import predict_runs
from repro.predict.fused.run import peak_flops
from repro.predict.parameters import Parameters
from repro.predict.tables.reading import read_collectives, read_rows
from repro.predict.tables.training import training_rows
from repro.results.reference import REFERENCE

ANSWERS = REFERENCE / "peers.csv"
TODAY = ("training_modern.csv", "training_mlperf.csv")
FITTED_2021 = "training_a100_vtrain.csv"
OTHER_2021 = "training_a100_tables.csv"
# Smaller groups are not listed as lost.
FEWEST = 3
# llm-analysis states that Megatron-LM reaches about half of the peak (its constant.py).
USUAL_EFFICIENCY = 0.5
OTHERS = {
    "constant_rate": "constant rate",
    "llm_analysis_half": "llm-analysis, 0.5",
    "llm_analysis": "llm-analysis, learnt",
}


def published_runs() -> pd.DataFrame:
    """Read all published training runs, with the file and the software's generation of each."""
    parts = []
    for name in (*TODAY, FITTED_2021, OTHER_2021):
        rows = read_rows(PUBLISHED / name)
        # Llama 3 and 3.1, and others of the same sizes, are one model here.
        size = rows.layers.astype(str) + "x" + rows.hidden.astype(str)
        parts.append(rows.assign(file=name, size=size))
    runs = pd.concat(parts, ignore_index=True)
    runs["gpu_name"] = [find_gpu_name(str(label)) for label in runs.gpu]
    runs["generation"] = [gpu(name).generation for name in runs.gpu_name]
    runs["today"] = runs.file.isin(TODAY)
    runs["kind"] = [_kind(run) for run in runs.itertuples()]
    return runs


def _kind(run: Any) -> str:
    if not run.today:
        return f"2021, {'one node' if run.gpus <= run.gpus_per_node else 'several nodes'}"
    if run.lora_rank > 0:
        return "adapters"
    if run.experts > 0:
        return "experts"
    return "dense, sharded" if run.fsdp == "yes" else "dense, replicas"


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
    table = today.reset_index(drop=True)
    times[today.index] = today.iteration_time_s * np.exp(
        training_fitting(table).cross_validate(table["size"])
    )
    start = Parameters(
        **{name: prior.median for name, prior in PRIORS.items()},
        **fit_ring(read_collectives([], "", "", None, None)[0]),
    )
    old = runs[~runs.today].dropna(axis="columns", how="all")
    for size, rows in tqdm(old.groupby("size"), desc="fits without a size of 2021"):
        seen = old[(old.file == FITTED_2021) & (old["size"] != size)]
        values = fit(list(training_rows(seen)), start).values
        errors = log_errors(list(training_rows(rows)), start.model_copy(update=values))
        times[rows.index] = rows.iteration_time_s * np.exp(errors)
    return times


def learnt_rate(runs: pd.DataFrame, at_peak_s: pd.Series) -> pd.Series:
    """Return for each run the fraction of the peak that suits the other models best.

    It has the lowest mean absolute error of time on runs of the same kind, GPU and precision; if
    these are all of one model, on runs of other kinds as well. NaN where there are none either.
    """
    reached = at_peak_s / runs.iteration_time_s
    rates = pd.Series(np.nan, index=runs.index)
    for alike in (["today", "gpu_name", "dtype"], ["kind", "gpu_name", "dtype"]):
        for _, group in runs[reached.notna()].groupby(alike):
            for size, own in group.groupby("size"):
                others = reached[group.index[group["size"] != size]].to_numpy()
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
            name=run.size,
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


def errors_pct() -> pd.DataFrame:
    """Return absolute errors of all answers in percent, by run, with its kind and GPU."""
    runs = published_runs()
    answers = pd.read_csv(ANSWERS, comment="#").set_index(["file", "id"])
    answers = answers.loc[pd.MultiIndex.from_frame(runs[["file", "id"]])].set_index(runs.index)
    errors = answers.div(runs.iteration_time_s, axis=0).sub(1).abs().mul(100)
    return errors.join(runs[["file", "kind", "gpu_name", "dtype", "generation", "today"]])


def _means(errors: pd.DataFrame, *names: str) -> tuple[str, ...]:
    """Return the number of rows that all of the models answer, and their mean errors on these."""
    both = errors[[*names]].dropna()
    cells = [f"{mean:.1f}" for mean in both.mean()] if len(both) else ["-" for _ in names]
    return (str(len(both)), *cells)


def error_table() -> list[tuple[str, ...]]:
    """Compare mean errors by kind of run and by GPU generation, each pair on the same rows."""
    errors = errors_pct()
    devices = {"ampere": "A100", "hopper": "H100 and H200", "blackwell": "B200 and GB200"}
    devices["blackwell-ultra"] = "B300 and GB300"
    today = errors[errors.today]
    groups = [
        *errors.groupby("kind"),
        ("MLPerf, all", today[today.file == TODAY[1]]),
        *(
            (f"today's, {label}", today[today.generation == name])
            for name, label in devices.items()
        ),
    ]
    head = ("runs", "rows", OTHERS["constant_rate"], "repro", "rows")
    rows = [
        (
            name,
            *_means(group, "constant_rate", "repro_held_out"),
            *_means(group, "llm_analysis_half", "llm_analysis", "repro_held_out"),
        )
        for name, group in groups
    ]
    return [(*head, OTHERS["llm_analysis_half"], OTHERS["llm_analysis"], "repro"), *rows]


def lost_table() -> list[tuple[str, ...]]:
    """List the groups of runs in which another model has a smaller mean error than this one."""
    errors = errors_pct()
    rows = []
    for alike in (["kind"], ["kind", "gpu_name", "dtype"]):
        for group_name, group in errors.groupby(alike):
            for name, label in OTHERS.items():
                both = group[[name, "repro_held_out"]].dropna()
                smaller = both[name].mean() < both.repro_held_out.mean()
                if smaller and len(both) >= FEWEST:
                    where = ", ".join(map(str, group_name))
                    rows.append((where, label, *_means(both, name, "repro_held_out")))
    return [("runs", "smaller error", "rows", "its error, %", "repro, %"), *rows]


def main() -> int:
    """Ask all models, and write their answers."""
    if len(sys.argv) != 2:
        print("no folder of other models is named; usage: docs/peers.py PEERS", file=sys.stderr)
        return 2
    sys.path.append(sys.argv[1])
    runs = published_runs()
    answers = runs[["file", "id"]].assign(
        repro=predicted(runs).time_s,
        repro_held_out=held_out_s(runs),
        constant_rate=constant_rate_s(runs),
    )
    answers = answers.join(ask_llm_analysis(runs))
    with ANSWERS.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# Written by docs/peers.py; llm-analysis {version('llm-analysis')}\n")
        answers.to_csv(file, index=False, float_format="%.5g", lineterminator="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
