"""Every GPU, model, cluster, software, precision, codec and protocol has an answer of its own.

Two names may share an answer only if all that they state is equal.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from repro.catalog.models.open_models import read_open_models
from repro.catalog.parallel.codecs import Codec, Kind
from repro.catalog.parallel.encoded_volumes import encoded_bytes
from repro.catalog.studies.compressed_training import read_compressed_training
from repro.catalog.systems.clusters import read_clusters
from repro.catalog.systems.gpus import gpu, read_gpus
from repro.catalog.systems.protocols import read_protocols, read_transports
from repro.catalog.systems.serving import read_serving_stacks
from repro.catalog.systems.software_stacks import read_stacks
from repro.cli import app
from repro.errors import ReproError
from repro.predict.explore.jobs.plans import choose_job, transports
from repro.predict.fused.run import PRECISIONS
from repro.predict.serving.served import FORMATS
from repro.studies.compression.predicted import encoding

pytestmark = pytest.mark.slow

_SMALL = "llama3.1-8b"
# Names for the same thing, and texts.
_SAID = ("label", "published_as", "source", "sets")


def _ask(*arguments: str) -> Any:
    """Return an answer, or the line that says why there is none."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    if result.exit_code in (0, 3) and result.stdout:
        return json.loads(result.stdout)
    assert isinstance(result.exception, ReproError) and "\n" not in str(result.exception)
    return str(result.exception)


def _numbers(answer: Any) -> str:
    """Return an answer without the job that it repeats."""
    named = {name: value for name, value in answer.items() if name != "job"}
    return json.dumps(named if isinstance(answer, dict) else answer)


def _check_distinct(answers: Mapping[str, str], stated: Mapping[str, Any]) -> None:
    by_answer = defaultdict(list)
    for name, answer in answers.items():
        by_answer[answer].append(name)
    for first, *others in by_answer.values():
        for other in others:
            assert _stated(stated[first]) == _stated(stated[other]), (first, other)


def _stated(entry: Any) -> dict[str, Any]:
    fields: dict[str, Any] = entry.model_dump()
    return {name: value for name, value in fields.items() if name not in _SAID}


def _answers(option: str, precision: str, *asked: str) -> dict[str, str]:
    """Return the answers of all GPUs that have a precision; the others say why there is none."""
    found = {}
    for name, entry in read_gpus().items():
        answer = _ask(*asked, "--gpu", name, "--gpus", "16", option, precision)
        if isinstance(answer, dict):
            plans = answer.get("plans", [answer["job"]])
            assert answer["job"]["gpu"] == entry.label
            assert {plan["precision"] for plan in plans} == {precision}
            found[name] = _numbers(answer)
        else:
            assert precision in answer and f"{entry.label} has no units" in answer
    assert found
    _check_distinct(found, read_gpus())
    return found


def test_gpus_and_precisions_of_training() -> None:
    answers = {name: _answers("--precision", name, "estimate", _SMALL) for name in PRECISIONS}
    for name, entry in read_gpus().items():
        own = [found[name] for found in answers.values() if name in found]
        assert len(set(own)) == len(own) == len(entry.precisions)


@pytest.mark.parametrize("model", [_SMALL, "mixtral-8x7b"])
def test_gpus_and_precisions_of_serving(model: str) -> None:
    asked = ("serve-estimate", model)
    known = [one for one in FORMATS if model != _SMALL or not FORMATS[one].others]
    answers = {name: _answers("--precisions", name, *asked) for name in known}
    for name in read_gpus():
        own = [found[name] for found in answers.values() if name in found]
        assert len(set(own)) == len(own)
    assert "has no experts" in _ask("serve-estimate", _SMALL, "--precisions", "fp4-experts")


@pytest.mark.parametrize("command", ["estimate", "what-if", "serve-estimate"])
def test_models(command: str) -> None:
    models, answers = read_open_models(), {}
    for name, entry in models.items():
        answer = _ask(command, name, "--gpu", "gb300", "--gpus", "512")
        # Heads or layers of some do not divide.
        if isinstance(answer, dict):
            assert answer["job"]["model"] == entry.label
            answers[name] = _numbers(answer)
    assert len(answers) > len(models) / 2
    _check_distinct(answers, models)


def test_clusters_and_protocols() -> None:
    answers = {}
    for name, cluster in read_clusters().items():
        for protocol in read_transports():
            asked = ("busbw", name, "--ranks", str(cluster.topology.gpus), "--protocol", protocol)
            answer = _ask(*asked)
            if protocol in cluster.protocols:
                answers[f"{name} {protocol}"] = json.dumps(answer)
            else:
                assert isinstance(answer, str) and protocol in answer
            if protocol in read_protocols() and protocol not in transports(name):
                with pytest.raises(ReproError, match=protocol):
                    choose_job("gpt2-large", name, protocol, gpus=2, global_batch_size=2)
    assert answers and len(set(answers.values())) == len(answers)
    estimates = {
        name: _ask("estimate", _SMALL, "--cluster", name, "--gpus", "16")
        for name in read_clusters()
    }
    for name, answer in estimates.items():
        assert answer["job"]["gpu"] == read_clusters()[name].device.label
    both = {name: f"{_numbers(one)} {_ask('busbw', name)}" for name, one in estimates.items()}
    _check_distinct(both, read_clusters())


def test_training_software() -> None:
    sizes = ("--gpus", "16", "--tp", "2", "--ep", "4")
    asked = ("estimate", "mixtral-8x7b", "--gpu", "h100-sxm-80gb", *sizes)
    answers = {name: _ask(*asked, "--stack", name) for name in read_stacks()}
    assert all(answer["job"]["stack"] == name for name, answer in answers.items())
    _check_distinct({name: _numbers(one) for name, one in answers.items()}, read_stacks())


def test_serving_software() -> None:
    # The most sequences at once of some differ.
    asked = ("serve-estimate", _SMALL, "--gpu", "h100-sxm-80gb", "--batch", "1500", "--stack")
    answers = {name: _numbers(_ask(*asked, name)) for name in read_serving_stacks()}
    _check_distinct(answers, read_serving_stacks())


_SETTINGS: dict[Kind, dict[str, Any]] = {
    "zfp-rate": {"bits": 8},
    "zfp-accuracy": {"tolerance": 0.1},
    "integers": {"bits": 4},
    "fp8": {},
    "top-k": {"share": 0.1},
    "zstd": {},
    "power-sgd": {"rank": 4},
}


def test_codecs_of_messages() -> None:
    assert set(_SETTINGS) == set(get_args(Kind))
    others = {"zfp-rate": {"bits": 16}, "integers": {"bits": 8}, "top-k": {"share": 0.2}}
    codecs = [
        Codec(kind=kind, **setting) for kind, setting in (*_SETTINGS.items(), *others.items())
    ]
    # PowerSGD's messages are matrices, and have a function of their own.
    sizes = [encoded_bytes(codec, 10**6) for codec in codecs if codec.kind != "power-sgd"]
    assert len(set(sizes)) == len(sizes)
    for kind, setting in _SETTINGS.items():
        for name, value in {"bits": 8, "tolerance": 0.1, "share": 0.1, "rank": 4}.items():
            if name not in setting:
                with pytest.raises(ReproError, match=f"codec {kind} has no {name}"):
                    Codec(kind=kind, **setting, **{name: value})


@pytest.mark.parametrize("name", read_compressed_training().codecs)
def test_codecs_on_gpus(name: str) -> None:
    codec = read_compressed_training().codecs[name]
    times = {encoding(codec, bits, gpu(codec.gpu)).encode_s_per_byte for bits in codec.rates}
    assert len(times) == len(codec.rates)
    with pytest.raises(ReproError, match="rate of"):
        encoding(codec, 7.5, gpu(codec.gpu))
