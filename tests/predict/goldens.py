"""Goldens: the answers of the performance model, written to a folder and compared with another.

    python tests/predict/goldens.py write FOLDER [--all]      # --all: 60 times as many numbers
    python tests/predict/goldens.py compare OLD NEW           # exit status 1 if anything drifted

`tests/predict/goldens/` is the small set in git. `test_goldens.py` compares it with the model; a
commit that changes answers renews it, so that a reviewer reads the drift as a diff:

    python tests/predict/goldens.py write tests/predict/goldens
"""

import argparse
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from typer.testing import CliRunner

from repro.catalog.job_inputs import read_hardware, read_model
from repro.catalog.models.open_models import read_open_models
from repro.catalog.models.papers import read_models
from repro.catalog.models.volumes import parameters, training_flops
from repro.catalog.parallel.layouts import read_plan
from repro.catalog.studies.experiments import EXPERIMENTS
from repro.catalog.studies.larger_models import gpt_shape, read_larger_models
from repro.catalog.studies.selection import select
from repro.catalog.systems.clusters import cluster
from repro.claims.published import documented_claims
from repro.claims.verdicts import judge
from repro.cli import app
from repro.errors import ReproError
from repro.paths import PUBLISHED, ROOT
from repro.predict.calibration import validation
from repro.predict.explore.experiments.predicted import predict_experiment
from repro.predict.explore.jobs import fused_plans, plans
from repro.predict.explore.jobs.fits import what_fits
from repro.predict.explore.jobs.larger import predict_larger
from repro.predict.explore.jobs.serving import Service, operators, serving_plans
from repro.predict.explore.jobs.traffic import traffic
from repro.predict.network.expected import expected_busbw
from repro.predict.network.links import predict_collective
from repro.predict.tables.reading import read_rows, table_kind
from repro.studies.communication.predicted import predict_study
from repro.studies.compression.predicted import predict_compressed
from repro.studies.hierarchical_zero.predicted import memory_by_part, predict_schemes
from repro.studies.memory.predicted import (
    memory_by_policy,
    memory_by_stage,
    published_memory,
    published_savings,
)

FOLDER = Path(__file__).parent / "goldens"
# Largest relative difference of one number; today's software is computed in single precision.
_TOLERANCE, _SINGLE = 1e-9, 1e-6
_SINGLE_GROUPS = ("training", "accuracy", "claims", "todays_plans", "fits")
# Smallest number that a difference is relative to; errors in percent are relative to 100 %.
_SMALL, _PERCENT = 1e-5, 100.0
_TRAINING = ("training_a100_vtrain", "training_a100_tables", "training_modern")
_COLLECTIVES = ("collectives_nccl", "nccl_bigred200")
_SERVING = "inference_a100_fastertransformer"
# Every how many rows of published operators are in the small set.
_OPERATORS_EVERY = 60
_PLANS = (
    "tp=2,dp=4",
    "tp=2,sp=1,pp=2,dp=2,micro_batches=4",
    "pp=2,vpp=2,dp=4,micro_batches=4",
    "dp=8,zero=1",
    "dp=8,zero=3",
    "cp=2,dp=4",
)
_JOBS = (
    ("gpt2-medium", "pinnacles", "rdma", 8, 32),
    ("gpt2-large", "pinnacles", "tcp", 8, 32),
    ("bert-large", "pinnacles", "ipoib", 4, 64),
    ("t5-large", "cluster-b", "fabric", 16, 64),
    ("gpt2-large", "dgx-a100", "fabric", 32, 256),
)
_QUESTIONS = (
    *(f"what-if {model} --gpus 64 --global-batch 256" for model in ("llama3.1-8b", "mixtral-8x7b")),
    "what-if llama3.1-70b --gpus 1024",
    "what-if llama3.1-405b --gpu gb200 --gpus 1152 --global-batch 1152",
    "what-if qwen3-235b-a22b --gpu h200-sxm-141gb --gpus 256 --expert-imbalance 1.5",
    "what-if gpt-oss-120b --gpu b200-sxm-180gb --gpus 64 --global-batch 512",
    "what-if gpt3-175b --gpu a100-sxm-80gb --gpus 512 --precisions bf16",
    "what-if llama3.1-70b --gpu h100-sxm-80gb --gpus 128 --zero-bubble",
    "what-if llama3.1-70b --gpu mi300x --gpus 128 --global-batch 512",
    "what-if tinyllama-1.1b --gpu l40s --gpus 8 --global-batch 64",
    "fits llama3.1-8b --gpus 8",
    "fits llama3.1-70b --gpus 64",
    "fits llama3.1-405b --gpus 64",
    "fits qwen3-30b-a3b --gpu a100-sxm-40gb --gpus 16",
    "fits gpt3-175b --gpu b200-sxm-180gb --gpus 64 --precision fp8",
    "fits olmoe-1b-7b --gpu v100-sxm2-16gb --gpus 8",
    "serve-estimate llama3.1-8b --gpus 1",
    "serve-estimate llama3.1-70b --input 2048 --output 256 --token-ms 50 --precisions bf16,fp8",
    "serve-estimate llama3.1-405b --gpu h200-sxm-141gb --gpus 8 --precisions fp8",
    "serve-estimate mixtral-8x7b --gpu a100-sxm-80gb --gpus 4 --first-ms 500",
    "serve-estimate qwen3-235b-a22b --cluster dgx-h100 --gpus 16",
    "serve-estimate falcon-180b --gpu b200-sxm-180gb --batch 64",
    "serve-estimate llama2-7b --gpu l40s --gpus 1 --input 512 --output 128",
    "serve-estimate llama3.1-70b --precisions fp8 --rate 20 --first-ms 1000 --gpu-hour-cost 2",
    "serve-estimate gpt-oss-120b --stack vllm --gpus 4 --rate 15 --token-ms 30 --percentile 99",
    "traffic gpt2-large --plan dp=8",
    "traffic gpt2-large --plan tp=2,pp=2,dp=2,micro_batches=8",
    "traffic gpt3-13b --plan tp=8,pp=4,dp=2,sp=1,zero=1,micro_batches=8",
    "traffic gpt2-medium --plan pp=4,vpp=2,dp=2,micro_batches=8",
    "traffic gpt3-13b --plan tp=4,cp=2,dp=4 --cluster dgx-h100",
    "traffic gpt2-medium --plan dp=8,zero=3 --cluster pinnacles",
    *(f"busbw pinnacles --protocol {protocol}" for protocol in ("rdma", "ipoib", "tcp")),
    "busbw big-red-200 --collective all_gather",
    "busbw big-red-200 --collective reduce_scatter --ranks 4",
    "busbw dgx-h100 --collective all_to_all",
    "busbw dgx-h100 tests/logs/samples/recent_all_reduce.txt",
    "busbw gb200-nvl72 --ranks 72",
    "busbw frontier --ranks 64",
    "busbw lassen --collective broadcast",
    "busbw cluster-b --size 64MiB",
    "busbw dgx-a100-800g --ranks 512",
)


def _joined(parts: Mapping[object, pd.DataFrame]) -> pd.DataFrame:
    """Tables one below the other, with keys in words."""
    tables = []
    for key, table in parts.items():
        keys = [f"{_key(key)} | {_key(index)}" for index in table.index]
        tables.append(table.set_axis(pd.Index(keys), axis="index"))
    return pd.concat(tables)


def _published(name: str) -> pd.DataFrame:
    return read_rows(PUBLISHED / f"{name}.csv")


def _times(found: pd.DataFrame) -> pd.DataFrame:
    """Columns that are answers; `work` is a yardstick."""
    return found[["time_s", "half_width"]].reset_index(drop=True)


def _training(everything: bool) -> pd.DataFrame:
    return _joined({name: _times(validation.predict_runs(_published(name))) for name in _TRAINING})


def _serving(everything: bool) -> pd.DataFrame:
    return _times(validation.predict_serving(_published(_SERVING)))


def _collectives(everything: bool) -> pd.DataFrame:
    return _joined({name: _times(predict_collective(_published(name))) for name in _COLLECTIVES})


def _operators(everything: bool) -> pd.DataFrame:
    found = {}
    for path in sorted((PUBLISHED / "operators").glob("*.csv")):
        rows = read_rows(path).iloc[:: 1 if everything else _OPERATORS_EVERY]
        found[path.stem] = _times(validation.predict_operators(table_kind(rows), rows))
    return _joined(found)


def _accuracy(everything: bool) -> pd.DataFrame:
    names = (*_TRAINING, _SERVING, *_COLLECTIVES)
    return pd.concat({name: validation.validate(PUBLISHED / f"{name}.csv") for name in names})


def _flat(dataset: xr.Dataset, keep: set[str] | None = None) -> pd.DataFrame:
    """Return one row per number; means over dimensions that are not in `keep`."""
    parts = {}
    for name, variable in dataset.data_vars.items():
        if not np.issubdtype(variable.dtype, np.number) or (keep and name not in _MAIN):
            continue
        averaged = [] if keep is None else [dim for dim in variable.dims if dim not in keep]
        values = variable.mean(averaged).rename("value")
        table = values.expand_dims(number=1).to_dataframe()[["value"]]
        # Most phases of most configurations take no time.
        parts[name] = table[table.value.fillna(0) != 0]
    return _joined(parts)


_MAIN = {"iteration_time_s", "phase_time_s", "memory_bytes"}
_CONFIGURATION = {"model", "protocol", "gpus", "micro_batch_size", "global_batch_size", "phase"}


def _experiments(everything: bool) -> pd.DataFrame:
    keep = None if everything else _CONFIGURATION
    return _joined(
        {
            name: _flat(predict_experiment(select(name, source="predicted")), keep)
            for name in EXPERIMENTS
        }
    )


def _claims(everything: bool) -> pd.DataFrame:
    rows = {
        one.id: [found.value, *(found.interval or (None, None)), found.verdict]
        for one in judge(documented_claims(), {})
        for found in (one.findings["predicted"],)
    }
    return pd.DataFrame.from_dict(rows, "index", columns=["value", "low", "high", "verdict"])


def _counts(everything: bool) -> pd.DataFrame:
    rows = {
        name: (parameters(m.family, m.full), training_flops(m.family, m.full, 1))
        for name, m in read_models().items()
    }
    rows |= {name: (parameters("gpt", m.shape), None) for name, m in read_open_models().items()}
    rows |= {
        name: (parameters("gpt", m.shape), training_flops("gpt", m.shape, 1))
        for name, m in read_larger_models().models.items()
    }
    return pd.DataFrame.from_dict(rows, "index", columns=["parameters", "flops_per_sequence"])


def _traffic(everything: bool) -> pd.DataFrame:
    topology = cluster("dgx-a100").topology
    names = ("gpt2-medium", "gpt2-large", "gpt3-13b") if everything else ("gpt2-large",)
    return _joined(
        {
            (name, plan): traffic(gpt_shape(name), read_plan(plan), topology)
            for name in names
            for plan in _PLANS
        }
    )


def _plans(everything: bool) -> pd.DataFrame:
    count = 1000 if everything else 3
    return _joined({str(job): plans.best_plans(plans.choose_job(*job), count) for job in _JOBS})


def _todays_plans(everything: bool) -> pd.DataFrame:
    devices = ("a100-sxm-80gb", "h100-sxm-80gb", "gb200", "mi300x")
    found = {}
    for name in read_open_models():
        for device in devices if everything else devices[1:2]:
            try:
                best = fused_plans.best_plans(read_model(name), read_hardware(device), 256, 512)
            except ReproError as error:
                best = pd.DataFrame({"error": [str(error)]})
            found[name, device] = best.head(100 if everything else 2).reset_index()
    return _joined(found)


def _fits(everything: bool) -> pd.DataFrame:
    models = ("llama3.1-8b", "llama3.1-70b", "qwen3-30b-a3b", "gpt3-175b")
    where = read_hardware("h100-sxm-80gb")
    return _joined({name: what_fits(read_model(name), where, 64, 512) for name in models})


def _serving_plans(everything: bool) -> pd.DataFrame:
    found, where = {}, read_hardware("h100-sxm-80gb")
    for name in ("llama3.1-8b", "llama3.1-70b", "mixtral-8x7b", "gpt-oss-120b"):
        deployment = Service(read_model(name), where, 8, 1024, 256)
        found[name] = serving_plans(deployment, ["bf16", "fp8"], None)
        found[name] = found[name] if everything else found[name].iloc[::40]
        found[f"{name} operators"] = operators(deployment, found[name].iloc[0])
    return _joined(found)


def _memory(everything: bool) -> pd.DataFrame:
    plan = "tp=2,pp=4,dp=2,micro_batches=8"
    found = {"published": published_memory(), "savings": published_savings()}
    for model in ("gpt3-22b", "llama3.1-8b"):
        for name, by in (("policy", memory_by_policy), ("stage", memory_by_stage)):
            try:
                found[f"{model} by {name}"] = by(model, plan)
            except ReproError as error:
                found[f"{model} by {name}"] = pd.DataFrame({"error": [str(error)]})
    return _joined(found)


def _studies(everything: bool) -> pd.DataFrame:
    return _joined(
        {
            "communication": predict_study(),
            "compression": predict_compressed(),
            "partitions": predict_schemes(),
            "partition memory": memory_by_part(384),
            "larger": _flat(predict_larger()),
        }
    )


def _busbw(everything: bool) -> pd.DataFrame:
    sizes = 2.0 ** np.arange(10, 33, 1 if everything else 4)
    found = {}
    for name in ("pinnacles", "big-red-200", "dgx-h100", "frontier", "gb200-nvl72"):
        for collective in ("all_reduce", "all_gather", "all_to_all"):
            ranks = min(16, cluster(name).topology.gpus)
            found[name, collective] = expected_busbw(name, collective, sizes, ranks)
    return _joined(found)


def _answer(question: str) -> str:
    """Return the output of a command, and its error if it has one."""
    result = CliRunner().invoke(app, shlex.split(question))
    error = f"repro: {result.exception}\n" if isinstance(result.exception, ReproError) else ""
    return f"$ repro {question}\n{result.stdout}{error}"


GROUPS: dict[str, Callable[[bool], pd.DataFrame]] = {
    "training": _training,
    "serving": _serving,
    "collectives": _collectives,
    "operators": _operators,
    "accuracy": _accuracy,
    "experiments": _experiments,
    "claims": _claims,
    "counts": _counts,
    "traffic": _traffic,
    "plans": _plans,
    "todays_plans": _todays_plans,
    "fits": _fits,
    "serving_plans": _serving_plans,
    "memory": _memory,
    "studies": _studies,
    "busbw": _busbw,
}


def write(folder: Path, everything: bool = False) -> None:
    """Write one CSV of keys and values per group, and the answers on the command line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, answers in GROUPS.items():
        table = answers(everything)
        table = table.set_axis(pd.Index(map(_key, table.index)), axis="index")
        values = {
            f"{key} | {column}": f"{value:.12g}" if isinstance(value, float) else value
            for column in table
            for key, value in table[column].dropna().items()
        }
        pd.Series(values, name="value").rename_axis("key").to_csv(
            folder / f"{name}.csv", lineterminator="\n"
        )
    os.chdir(ROOT)
    text = "\n".join(map(_answer, _QUESTIONS))
    (folder / "questions.txt").write_text(text, encoding="utf-8")


def _key(index: object) -> str:
    return " | ".join(map(str, index)) if isinstance(index, tuple) else str(index)


def _read(path: Path) -> "pd.Series[str]":
    return pd.read_csv(path, index_col="key", dtype=str, na_filter=False)["value"]


def differences(old: Path, new: Path) -> Iterator[str]:
    """Yield one line per group that drifted: how many values, and the largest relative change.

    One line more names each question that has another answer.
    """
    for name in GROUPS:
        before, after = (
            pd.read_csv(folder / f"{name}.csv", index_col="key", dtype=str, na_filter=False)[
                "value"
            ]
            for folder in (old, new)
        )
        gone, come = before.index.difference(after.index), after.index.difference(before.index)
        if len(gone) or len(come):
            yield f"{name}: {len(gone)} keys are gone and {len(come)} new: {[*gone, *come][:2]}"
        both = pd.DataFrame({"before": before, "after": after}).dropna()
        both = both[both.before != both.after]
        numbers = both.apply(pd.to_numeric, errors="coerce")
        smallest = _PERCENT if name == "accuracy" else _SMALL
        change = (numbers.after - numbers.before).abs() / numbers.abs().max(axis=1).clip(smallest)
        drifted = both[~(change <= (_SINGLE if name in _SINGLE_GROUPS else _TOLERANCE))]
        if len(drifted):
            worst = change.fillna(np.inf).idxmax()
            yield (
                f"{name}: {len(drifted)} of {len(before)} values drifted, most by "
                f"{change[worst]:.2g} at {worst!r}: {both.before[worst]} -> {both.after[worst]}"
            )
    texts = [(folder / "questions.txt").read_text(encoding="utf-8") for folder in (old, new)]
    for first, second in zip(*(text.split("\n$ ") for text in texts), strict=True):
        if first != second:
            yield f"questions: another answer to {first.splitlines()[0]!r}"


def main() -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--all", action="store_true", help="all rows instead of the small set")
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "write":
        write(arguments.folder, arguments.all)
        return 0
    found = list(differences(arguments.old, arguments.new))
    print("\n".join(found) or "no drift")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
