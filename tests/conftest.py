"""What several rooms' tests share."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import background
import numpy as np
import pytest
import xarray as xr
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir
from made_up import made_up_experiment
from rank_pool import RankPool

pytest_plugins = ["browsing"]

# Hypothesis without deadlines (no test asserts a time) and with the same examples in every run. Its
# caches would otherwise end up in the repository.
set_hypothesis_home_dir(tempfile.gettempdir() + "/hypothesis")
settings.register_profile("repro", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("repro")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="let tests see this machine's GPUs")


def pytest_configure(config: pytest.Config) -> None:
    # Ranks of tests are processes that share this machine's CPU; NCCL gives each a GPU of its own.
    if not config.getoption("--gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if hasattr(config, "workerinput"):
        # What runs on pytest-xdist's workers measures nothing, notebooks' kernels neither.
        background.run_in_background()
        os.environ["PYTHONSTARTUP"] = background.__file__


def pytest_collection_finish() -> None:
    # What is imported is looked through by no later search for garbage, of which runs ask for many.
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from repro.testbed.ability import testbed_ability

    for item in items:
        # What others at the same time would disturb would be waited for by itself.
        if item.get_closest_marker("testbed") or item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.slow)
    marked = [item for item in items if item.get_closest_marker("testbed")]
    if marked and not (ability := testbed_ability()).works:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=ability.found))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _sees_gpus():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no GPU, or no --gpu"))


def _sees_gpus() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """A shell has what it starts in the background ignore SIGINT, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_namespaces() -> list[str]:
    """The beginning of a command that runs where the kernel refuses namespaces."""
    return [sys.executable, str(Path(__file__).with_name("without_namespaces.py"))]


@pytest.fixture
def one_rank() -> Iterator[None]:
    """Megatron's process groups with this process alone in them."""
    import torch
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from repro.train.megatron.groups import alone
    from repro.train.run import device_scope

    with device_scope(), alone():
        model_parallel_cuda_manual_seed(1, inference_rng_tracker=not torch.cuda.is_available())
        yield


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    """Rank processes that all tests use in turn."""
    ranks = RankPool()
    yield ranks
    ranks.close()


@pytest.fixture
def cuda_means_cpu() -> Iterator[None]:
    """The scope in which Megatron-Core runs on this machine's device."""
    from repro.train.run import device_scope

    with device_scope():
        yield


@pytest.fixture(scope="session")
def enwiki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus through the real stages: tokenizers and indexed datasets of all families."""
    from repro.corpus.config import FAMILIES
    from repro.corpus.indexed import write_indexed
    from repro.corpus.records import Article, to_line
    from repro.corpus.vocabulary import train_tokenizer

    folder = tmp_path_factory.mktemp("enwiki")
    generator = np.random.default_rng(1)
    words = ["".join(generator.choice(list(_LETTERS), size=length)) for length in [3, 5, 7] * 400]
    with (folder / "articles.jsonl").open("w", encoding="utf-8") as file:
        for number in range(60):
            text = " ".join(_sentence(generator, words) for _ in range(40))
            file.write(to_line(Article(id=number + 1, title=f"Article {number}", text=text)))
    for family in FAMILIES:
        tokenizer = folder / "tokenizers" / f"{family}.json"
        train_tokenizer(family, folder / "articles.jsonl", tokenizer, vocabulary_size=1024)
        prefix, manifest = folder / "datasets" / family, folder / "manifests" / f"{family}.json"
        write_indexed(family, folder / "articles.jsonl", tokenizer, prefix, manifest, workers=1)
    return folder


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _sentence(generator: np.random.Generator, words: list[str]) -> str:
    return " ".join(generator.choice(words, size=9)).capitalize() + "."


@pytest.fixture(scope="session")
def made_up_results() -> xr.Dataset:
    """All configurations of the made-up experiment."""
    return made_up_experiment()
