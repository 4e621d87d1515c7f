"""What several rooms' tests share."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from repro.launch.messages import Outcome
from repro.observe.nic import NicSeries
from repro.results.merging import merge
from repro.results.schema import configuration_dataset
from repro.testbed.similarity import Similarity
from repro.testbed.verify import LinkCheck
from repro.train.records import PHASES, RankRecord, Span


def testbed_missing() -> str:
    """Why the testbed cannot run here; empty if it can."""
    from repro.observe.doctor import examine

    line = examine()[0]
    return "" if line.startswith("yes") else line


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("testbed")]
    if marked and (reason := testbed_missing()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def one_rank() -> Iterator[None]:
    """Megatron's process groups with this process alone in them."""
    import socket

    from repro.train.groups import join_groups, leave_groups
    from repro.train.run import device_scope

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with device_scope():
        join_groups(0, 1, "127.0.0.1", port)
        yield
        leave_groups()


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
    words = [
        f"{stem}{ending}" for stem in ["network", "model", "rate", "link"] for ending in _ENDINGS
    ]
    generator = np.random.default_rng(1)
    with (folder / "articles.jsonl").open("w", encoding="utf-8") as file:
        for number in range(60):
            text = " ".join(_sentence(generator, words) for _ in range(40))
            file.write(to_line(Article(id=number + 1, title=f"Article {number}", text=text)))
    for family in FAMILIES:
        tokenizer = folder / "tokenizers" / f"{family}.json"
        train_tokenizer(family, folder / "articles.jsonl", tokenizer, vocabulary_size=1024)
        write_indexed(family, folder / "articles.jsonl", tokenizer, folder / "datasets" / family)
    return folder


_ENDINGS = [chr(a) + chr(b) for a in range(97, 110) for b in range(97, 110)]


def _sentence(generator: np.random.Generator, words: list[str]) -> str:
    return " ".join(generator.choice(words, size=9)).capitalize() + "."


# A made-up experiment with round numbers: every model computes for 0.1 s, RDMA carries 100 Gbit/s.
_RATES = {"rdma": 100.0, "ipoib": 25.0, "tcp": 10.0}
_ITERATIONS = 6
TIME_SCALE = 2.0


def made_up_configuration(model: str, protocol: str, gpus: int) -> xr.Dataset:
    """One configuration whose gradient sync is 2(n-1)/n x 10 Gbit over the protocol's rate."""
    sync = 0.02 if gpus == 2 else 2 * (gpus - 1) / gpus * 10 / _RATES[protocol]
    times = {
        "forward compute": 0.03,
        "backward compute": 0.06,
        "straggler wait": 0.0,
        "gradient sync": sync,
        "optimizer": 0.01,
        "other": 0.0,
    }
    iteration = sum(times.values())
    starts = tuple(10.0 + number * iteration for number in range(_ITERATIONS))
    records = tuple(
        RankRecord(
            rank=rank,
            start_s=starts,
            iteration_time_s=(iteration,) * _ITERATIONS,
            phase_time_s={phase: (times[phase],) * _ITERATIONS for phase in PHASES},
            loss=tuple(7.0 - 0.1 * number for number in range(_ITERATIONS)),
            validation_loss=(),
            spans=(Span("validation", starts[2], starts[2] + 0.01),),
            parameters=10,
            gradient_bytes=40,
            peak_memory_bytes=1000,
        )
        for rank in range(gpus)
    )
    clock = np.arange(9.9, starts[-1] + iteration + 0.1, 0.02)
    nodes = max(1, gpus // 2)
    # Every NIC receives 0.5 Gbit in every iteration, evenly.
    received = np.clip((clock - 10.0) / iteration, 0, _ITERATIONS) * 0.5e9 / 8
    series = NicSeries(
        time_s=clock.tolist(),
        rx_bytes=[(int(value),) * nodes for value in received],
        tx_bytes=[(int(value),) * nodes for value in received],
    )
    links = tuple(LinkCheck(level, 1.0, (0.99, 1.01)) for level in ("node", "fabric"))
    similarity = Similarity(model, 0.3, 0.05, 0.1, 400, 40)
    assert similarity.time_scale == TIME_SCALE
    return configuration_dataset(
        "testbed", protocol, gpus, similarity, Outcome(records, series, links, 0.0)
    )


@pytest.fixture(scope="session")
def made_up_results() -> xr.Dataset:
    """All configurations of the made-up experiment."""
    return merge(
        [
            made_up_configuration(model, protocol, gpus)
            for model in ("gpt2-medium", "gpt2-large", "bert-large", "t5-large")
            for protocol in _RATES
            for gpus in (2, 4, 8)
        ]
    )


@pytest.fixture
def free_ports() -> list[int]:
    """Two ports on the loopback that nobody uses."""
    import socket

    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return [one.getsockname()[1], two.getsockname()[1]]
