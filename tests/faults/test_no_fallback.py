"""An answer is for what was asked, or there is an error: no option and no name is ignored.

Options are those of the parsers, so a new one fails until it has a value here.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import typer
import yaml
from typer.testing import CliRunner

from repro.cli import app
from repro.errors import ReproError
from repro.paths import PUBLISHED, ROOT

pytestmark = pytest.mark.slow

_NCCL_LOG = ROOT / "tests/logs/samples/recent_all_reduce.txt"
_SILENT_LOG = ROOT / "tests/logs/samples/public_egrep.txt"
_TRAINING_LOG = "".join(
    f" iteration {number}/ 90 | elapsed time per iteration (ms): {8000.0 + number} | "
    f"global batch size: 128 | lm loss: 3.1E+00 |\n"
    for number in range(1, 9)
)
_MORE_RUNS = PUBLISHED / "training_a100_tables.csv"
_ARGUMENTS = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear "
    "--untie-embeddings-and-output-weights --position-embedding-type rope"
)
_DENSE = ("llama3.1-8b", "--gpu", "h100-sxm-80gb")
_EXPERTS = ("mixtral-8x7b", "--gpu", "h100-sxm-80gb")
_ON_CLUSTER = ("llama3.1-8b", "--cluster", "dgx-a100")
_UNSTATED = ("SCRIPT", "--gpu", "h100-sxm-80gb")

_SEEN = ("--model", "llama3.1-8b", "--gpus", "64", "--seq", "4096")

# By command: arguments that every option is added to, by a name.
_BASES: dict[str, dict[str, tuple[str, ...]]] = {
    "estimate": {
        "dense": (*_DENSE, "--gpus", "64", "--tp", "2"),
        "experts": (*_EXPERTS, "--gpus", "64", "--tp", "2", "--ep", "8"),
        "stages": (*_DENSE, "--gpus", "64", "--tp", "2", "--pp", "4"),
        "cluster": (*_ON_CLUSTER, "--gpus", "16", "--tp", "2"),
        "arguments": (*_UNSTATED, "--gpus", "64", "--vocabulary", "32000"),
        "measured": (*_DENSE, "--gpus", "64", "--measured", "40 %", "--flops", "causal"),
        "measured time": (*_DENSE, "--gpus", "64", "--measured", "9s"),
        "low precision": (
            *(*_DENSE, "--gpus", "64", "--precision", "fp8", "--measured", "40 %"),
            *("--flops", "causal", "--peak-tflops", "1979"),
        ),
        "jobs": ("--jobs", "JOBS"),
    },
    "what-if": {
        "dense": (*_DENSE, "--gpus", "64", "--global-batch", "64"),
        "experts": (*_EXPERTS, "--gpus", "64", "--global-batch", "64"),
        "stages": ("llama3.1-405b", "--gpu", "h100-sxm-80gb"),
        "cluster": (*_ON_CLUSTER, "--gpus", "64", "--global-batch", "64"),
        "arguments": (*_UNSTATED, "--vocabulary", "32000", "--gpus", "64"),
    },
    "fits": {
        "dense": (*_DENSE, "--gpus", "64"),
        "experts": (*_EXPERTS, "--gpus", "64"),
        "cluster": (*_ON_CLUSTER, "--gpus", "64"),
        "arguments": (*_UNSTATED, "--vocabulary", "32000"),
    },
    "serve-estimate": {
        "dense": _DENSE,
        "experts": _EXPERTS,
        "cluster": _ON_CLUSTER,
        "arguments": (*_UNSTATED, "--vocabulary", "32000"),
        "load": (*_DENSE, "--rate", "5", "--gpus", "4"),
    },
    "busbw": {
        "cluster": ("pinnacles",),
        "description": ("--gpu", "h100-sxm-80gb", "--gpus-per-node", "8", "--nic", "8x400"),
        "log": ("dgx-a100", str(_NCCL_LOG)),
        "silent log": ("dgx-a100", str(_SILENT_LOG)),
        "log of a description": ("--gpu", "h100-sxm-80gb", str(_NCCL_LOG)),
    },
    "log": {
        "dense": ("LOG", *_SEEN, "--gpu", "h100-sxm-80gb"),
        "cluster": ("LOG", *_SEEN, "--cluster", "dgx-a100"),
        "job": ("LOG", "--job", "JOB"),
    },
    "validate": {
        "training": (str(_MORE_RUNS),),
        "collectives": (str(PUBLISHED / "nccl_bigred200.csv"),),
    },
    "calibrate": {
        "published": (),
        "log": ("--log", str(_NCCL_LOG), "--gpu", "H100", "--network", "own"),
        "silent log": ("--log", str(_SILENT_LOG), "--gpu", "H100", "--network", "own"),
        "training log": ("--training-log", "LOG", "--job", "JOB"),
    },
}
# By option: values that are not the default in any base.
_VALUES: dict[str, tuple[str, ...]] = {
    "--job": ("OTHER_JOB",),
    "--jobs": ("JOBS",),
    "--model": ("llama3.1-70b",),
    "--gpu": ("b200-sxm-180gb", "v100-sxm2-32gb"),
    "--gpus": ("128",),
    "--cluster": ("dgx-a100-800g", "dgx-b200"),
    "--gpus-per-node": ("4",),
    "--nic": ("8x100",),
    "--tp": ("4",),
    "--pp": ("2", "8"),
    "--cp": ("2",),
    "--ep": ("4",),
    "--etp": ("4",),
    "--vpp": ("2",),
    "--micro-batch": ("2",),
    "--global-batch": ("1024",),
    "--seq": ("2048",),
    "--vocabulary": ("64000",),
    "--precision": ("fp8", "mxfp8", "nvfp4"),
    "--precisions": ("bf16,fp8,mxfp8", "fp8", ""),
    "--stack": ("pytorch-fsdp", "maxtext", "vllm"),
    "--recompute": ("selective", "full"),
    "--zero": ("0", "2", "3"),
    "--gradient-bytes": ("2",),
    "--lora-rank": ("16",),
    "--expert-imbalance": ("2",),
    "--overlap": ("none",),
    "--measured": ("20s", "12 %"),
    "--peak-tflops": ("500",),
    "--flops": ("6n", "nonsense"),
    "--zero-bubble": ("",),
    "--input": ("2000",),
    "--output": ("2000",),
    "--token-ms": ("5",),
    "--first-ms": ("30",),
    "--rate": ("20",),
    "--percentile": ("99",),
    "--gpu-hour-cost": ("3",),
    "--batch": ("3",),
    "--collective": ("broadcast",),
    "--size": ("64MiB",),
    "--ranks": ("3", "8"),
    "--nodes": ("1", "3"),
    "--protocol": ("tcp",),
    "--by": ("gpus", "no such column"),
    "--name": ("mine",),
    "--training": (str(_MORE_RUNS),),
    "--log": (str(_NCCL_LOG), str(_SILENT_LOG)),
    "--network": ("another",),
    "--training-log": ("LOG",),
}
# Options that say where and how an answer is printed.
_PRINTED = {"--json", "--output", "--help"}
_FASTEST = "the fastest plans of the default precisions are in fp8"
_ONE_STAGE = "the fastest plans have one stage, and so no bubble"
# Command, base and option that leave the numbers as they are, with the reason.
_UNCHANGED = {
    **{
        ("what-if", base, "--precisions fp8"): _FASTEST
        for base in _BASES["what-if"]
        if base != "cluster"
    },
    **{("what-if", base, "--zero-bubble "): _ONE_STAGE for base in ("dense", "cluster")},
    ("estimate", "arguments", "--zero 0"): "so are arguments without --use-distributed-optimizer",
    ("log", "dense", "--job OTHER_JOB"): "options replace all fields of the file",
    ("busbw", "log of a description", "--gpu b200-sxm-180gb"): "the NICs are the limit, and equal",
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Files that bases and values name in capitals."""
    job = {"model": "llama3.1-8b", "gpu": "h100-sxm-80gb", "gpus": 64, "seq": 8192}
    texts = {
        "LOG": _TRAINING_LOG,
        "SCRIPT": f"{_ARGUMENTS} --seq-length 4096",
        "JOB": yaml.safe_dump(job),
        "OTHER_JOB": yaml.safe_dump(job | {"model": "llama3.1-70b", "seq": 1024}),
        "JOBS": "model,gpu,tp,pp\nllama3.1-8b,h100-sxm-80gb,2,1\nllama3.1-70b,b200-sxm-180gb,8,1\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in texts}


def _fields(answer: Any) -> Any:
    """Return an answer without the job that it repeats and without notes."""
    if isinstance(answer, dict):
        told = ("job", "notes", "assumed")
        return {name: _fields(value) for name, value in answer.items() if name not in told}
    return [_fields(one) for one in answer] if isinstance(answer, list) else answer


def _answer(*arguments: str) -> Any:
    """Return the numbers of an answer, or None if one line says what is wrong."""
    result = CliRunner().invoke(app, arguments)
    if result.exit_code in (0, 3) and result.stdout:
        if "--json" in arguments:
            return _fields(json.loads(result.stdout))
        return result.stdout
    if isinstance(result.exception, ReproError):
        assert "\n" not in str(result.exception)
    else:
        assert result.exit_code == 2, (arguments, result.exception)
    return None


def _options() -> Iterator[Any]:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for command, bases in _BASES.items():
        for option in commands[command].params:
            if option.param_type_name == "option" and option.opts[0] not in _PRINTED:
                for base in bases:
                    name = option.opts[0]
                    yield pytest.param(command, base, name, id=f"{command} {base} {name}")


@pytest.mark.parametrize(("command", "base", "option"), _options())
def test_an_option_changes_the_answer_or_is_refused(
    command: str, base: str, option: str, files: dict[str, str], calibrated: None
) -> None:
    asked = [command, *(files.get(one, one) for one in _BASES[command][base])]
    asked += [] if command == "calibrate" else ["--json"]
    before = _answer(*asked)
    assert before is not None
    for value in _VALUES[option]:
        more = [option] if option == "--zero-bubble" else [option, files.get(value, value)]
        if all(one in asked for one in more):
            continue
        same = _answer(*asked, *more) == before
        assert same == ((command, base, f"{option} {value}") in _UNCHANGED), (option, value)


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits that print what they are fitted to, as they take minutes, and write nothing."""
    from repro.predict.calibration import (
        fit,
        link_fitting,
        operator_fitting,
        own_runs,
        software_fitting,
        step_fitting,
    )

    def shown(*inputs: Any) -> str:
        for one in inputs:
            typer.echo(one.to_csv() if hasattr(one, "to_csv") else repr(one))
        return ""

    def own(*inputs: Any) -> SimpleNamespace:
        shown(*inputs)
        return SimpleNamespace(calibration="", runs=pd.DataFrame({"error_pct": [0.0]}))

    for module, names in {
        link_fitting: ("calibrate_links",),
        operator_fitting: ("calibrate_operators",),
        software_fitting: ("calibrate_fused",),
        step_fitting: ("calibrate_step",),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, shown)
    monkeypatch.setattr(software_fitting, "calibrate_serving", lambda *_: {})
    monkeypatch.setattr(own_runs, "fit_own_runs", own)
    monkeypatch.setattr(fit, "write_fit", lambda _fit, _module, path: typer.echo(path))
