"""Readers of users' files on mutated files: an answer or one line, no crash, no hang.

REPRO_FUZZ_CASES sets the cases per reader (default 60), REPRO_FUZZ_SEED the first seed.
"""

import bz2
import gzip
import json
import os
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from made_up import made_up_configuration
from mutations import mutated, mutated_bytes, mutated_tree
from synthetic_corpus import HEAD, TAIL, FakePage, prose

from repro.catalog.job_inputs import read_model
from repro.catalog.jobs import job_of, read_job, read_jobs, resolve
from repro.catalog.models.open_models import OpenModel
from repro.catalog.reading import read_yaml
from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.gpu_check import read_gpu_sheet
from repro.catalog.systems.gpus import Gpu
from repro.corpus.config import FAMILIES, read_corpus_config
from repro.errors import ReproError
from repro.logs.operator_trace import read_cpu_file
from repro.logs.reading import read_log
from repro.logs.training.reading import read_training_file
from repro.observe.nccl_log import read_nccl_log
from repro.paths import PUBLISHED, ROOT
from repro.predict.tables.reading import read_known_rows
from repro.results.schema import coordinates
from repro.results.store import read_dataset, write_dataset

pytestmark = pytest.mark.slow

_CASES = int(os.environ.get("REPRO_FUZZ_CASES", "60"))
_SEED = int(os.environ.get("REPRO_FUZZ_SEED", "1"))
# Hypothesis keeps all cases of a call in memory.
_CALL = 5000
# No reader takes a hundredth of either on the files here.
_SECONDS, _BYTES = 120, 4 << 30
_SAMPLES = ROOT / "tests" / "logs" / "samples"
_PARAMS = ROOT / "params"
_CONFIGS = ROOT / "tests" / "catalog" / "configs"
_WORDS = (
    *("0", "-1", "1", "9" * 30, "1e400", "nan", "inf", "null", "true", "yes", "[]", "{}", "~", "é"),
    *(
        "\x00",
        "\ufeff",
        "\ud7ff",
        "\t",
        "\r",
        '"',
        "'",
        ":",
        ",",
        "\\",
        "#",
        "&a",
        "*a",
        "!!x",
        "|",
    ),
    *("<", ">", "--", "=", "/", "%", "model", "gpu"),
)
_VALUES = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**70), 0.0, -0.5, 1e308, float("nan")),
    *(float("inf"), "", "a", "0", "é\x00", "9" * 5000, [], [[]], {}, {"a": 1}, [None] * 50),
)
_Mutate = Callable[[bytes, Random], bytes]


def _of_text(data: bytes, chosen: Random) -> bytes:
    lines = data.decode().split("\n")
    for _ in range(chosen.randrange(1, 4)):
        at = chosen.randrange(len(lines))
        lines[at] = mutated(lines[at], chosen, _WORDS, lines)
    return "\n".join(lines).encode(errors="surrogatepass")


def _of_bytes(data: bytes, chosen: Random) -> bytes:
    for _ in range(chosen.randrange(1, 4)):
        data = mutated_bytes(data, chosen)
    return data


def _of_tree(load: Callable[[bytes], Any], dump: Callable[[Any], str]) -> _Mutate:
    """Change values of JSON or YAML, or its text."""

    def mutate(data: bytes, chosen: Random) -> bytes:
        if chosen.randrange(4) == 0:
            return _of_text(data, chosen)
        value = load(data)
        for _ in range(chosen.randrange(1, 4)):
            value = mutated_tree(value, chosen, _VALUES)
        return dump(value).encode(errors="surrogatepass")

    return mutate


_OF_JSON = _of_tree(json.loads, json.dumps)
_OF_YAML = _of_tree(yaml.safe_load, yaml.safe_dump)


def _of_table(data: bytes, chosen: Random) -> bytes:
    """Change cells of a CSV, or its text."""
    if chosen.randrange(3) == 0:
        return _of_text(data, chosen)
    rows = [line.split(",") for line in data.decode().splitlines()]
    for _ in range(chosen.randrange(1, 4)):
        row = chosen.choice(rows)
        row[chosen.randrange(len(row))] = chosen.choice((*_WORDS, *chosen.choice(rows)))
    return "\n".join(map(",".join, rows)).encode(errors="surrogatepass")


def _of_dump(data: bytes, chosen: Random) -> bytes:
    """Change the XML of a dump, or its compressed bytes."""
    if chosen.randrange(2):
        return _of_bytes(data, chosen)
    parts = (b"<page>", b"</page>", b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;", b"<text>", b"]]>")
    xml = bz2.decompress(data)
    at = chosen.randrange(len(xml))
    return bz2.compress(xml[:at] + chosen.choice(parts) + xml[at + chosen.randrange(40) :])


@dataclass(frozen=True)
class _Reader:
    """Reader of a file; `prepare` writes it and others to a folder, and returns them, it first."""

    read: Callable[[Path], object]
    mutate: _Mutate
    prepare: Callable[[Path, pytest.FixtureRequest], list[Path]]
    # Options of a command may replace fields of a job, so that errors name the field only.
    names_file: bool = True


def _copy(source: Path, lines: int = 30) -> Callable[[Path, object], list[Path]]:
    """Copy the first lines of a table, or a whole file of another kind."""

    def copy(folder: Path, _: object) -> list[Path]:
        text = source.read_text().splitlines(keepends=True)
        kept = text[:lines] if source.suffix == ".csv" else text
        return _text(source.name, "".join(kept))(folder, _)

    return copy


def _entries(name: str) -> Callable[[Path, object], list[Path]]:
    """Write the first entries of a file of params/."""

    def write(folder: Path, _: object) -> list[Path]:
        entries = yaml.safe_load((_PARAMS / name).read_text())
        return _text(name, yaml.safe_dump(dict(list(entries.items())[:4])))(folder, _)

    return write


def _text(name: str, text: str) -> Callable[[Path, object], list[Path]]:
    def write(folder: Path, _: object) -> list[Path]:
        (folder / name).write_text(text)
        return [folder / name]

    return write


def _sheet(folder: Path, request: pytest.FixtureRequest) -> list[Path]:
    entry = yaml.safe_load((_PARAMS / "gpus.yaml").read_text())["h100-sxm-80gb"]
    return _text("sheet.yaml", yaml.safe_dump(entry))(folder, request)


def _compressed(folder: Path, _: object) -> list[Path]:
    path = folder / "log.gz"
    path.write_bytes(gzip.compress((_SAMPLES / "recent_all_reduce.txt").read_bytes()))
    return [path]


def _of_corpus(*names: str) -> Callable[[Path, pytest.FixtureRequest], list[Path]]:
    def copy(folder: Path, request: pytest.FixtureRequest) -> list[Path]:
        enwiki = request.getfixturevalue("enwiki")
        return [Path(shutil.copy(enwiki / name, folder)) for name in names]

    return copy


def _dump(folder: Path, _: object) -> list[Path]:
    pages = [FakePage(number, prose(number)).xml() for number in range(1, 5)]
    blocks = [HEAD + pages[0], pages[1] + pages[2], pages[3] + TAIL]
    (folder / "dump.xml.bz2").write_bytes(b"".join(bz2.compress(one.encode()) for one in blocks))
    return [folder / "dump.xml.bz2"]


def _vocabulary(family: str) -> Callable[[Path, pytest.FixtureRequest], list[Path]]:
    """Write a tokenizer as it is published."""

    def write(folder: Path, request: pytest.FixtureRequest) -> list[Path]:
        from tokenizers import Tokenizer

        enwiki = request.getfixturevalue("enwiki")
        if family == "t5":
            import sentencepiece

            options = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "minloglevel": 2}
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(prose(1, 400).split("\n")),
                model_prefix=str(folder / "spiece"),
                vocab_size=200,
                **options,
            )
            return [folder / "spiece.model"]
        tokenizer = Tokenizer.from_file(str(enwiki / "tokenizers" / f"{family}.json"))
        made = tokenizer.model.save(str(folder))
        return [Path(one) for one in made]

    return write


def _netcdf(folder: Path, _: object) -> list[Path]:
    path = folder / "weak_scaling.nc"
    write_dataset(made_up_configuration(coordinates("bert-large", "rdma", 2)), path)
    return [path]


def _read_netcdf(path: Path) -> object:
    return read_dataset(path).load()


def _read_job(path: Path) -> object:
    return resolve(job_of(read_job(path)))


def _read_dump(path: Path) -> object:
    from repro.corpus.articles import extract_articles

    made = path.parent / "articles.jsonl", path.parent / "manifest.json"
    return extract_articles(path, *made, min_article_characters=1, workers=1)


def _read_articles(path: Path) -> object:
    from repro.corpus.records import read_articles

    return list(read_articles(path, "articles"))


def _read_tokenizer(path: Path) -> object:
    from repro.corpus.tokenizer import LocalTokenizer

    return LocalTokenizer(path).tokenize("Two words, 1906 café.")


def _import(family: Any) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        from repro.corpus.pretrained_tokenizers import import_tokenizer

        return import_tokenizer(family, path, path.parent / "made.json")

    return read


def _read_indexed(path: Path) -> object:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    from repro.corpus.indexed import check_indexed

    prefix = path.with_suffix("")
    check_indexed(prefix)
    dataset = IndexedDataset(str(prefix))
    return [dataset[number].sum() for number in range(len(dataset))]


def _read_manifests(path: Path) -> object:
    from repro.corpus.manifest import stats

    return list(stats(path.parent))


def _read_collectives(path: Path) -> object:
    return read_log(path, "all_reduce", 8)


def _read_config(path: Path) -> object:
    return read_model(str(path))


_JOB = "model: llama3.1-8b\ngpu: h100-sxm-80gb\ngpus: 16\ntp: 2\nnic: 8x400\nprecision: fp8\n"
_JOBS = "model,gpu,gpus,tp,nic\nllama3.1-8b,h100-sxm-80gb,16,2,8x400\nqwen3-8b,b200-sxm-180gb,8,,\n"
_ARGUMENTS = (
    "--num-layers 32\n--hidden-size 4096\n--ffn-hidden-size 14336\n--num-attention-heads 32\n"
    "--group-query-attention\n--num-query-groups 8\n--swiglu\n--disable-bias-linear\n"
    "--seq-length 8192\n--padded-vocab-size 128256\n--tensor-model-parallel-size 2\n"
)
_LOG_OF_NCCL = (
    "n1:17:20 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]={mlx5_1:1/RoCE} [RO]; OOB eth0:1<0>\n"
    "NCCL version 2.21.5+cuda12.4\nn1:17:20 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"
    "n1:17:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0(8)/GDRDMA\n"
    "n1:17:20 [0] NCCL INFO NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=400000\n"
    "n1:17:20 [0] NCCL INFO Subnet-aware routing: overriding dev 0 with dev 1\n"
)
_TRAINING_LOG = "".join(
    f" iteration {number}/ 90 | elapsed time per iteration (ms): 8000.5 | global batch size: 8 |\n"
    f"    forward-compute ................: (3012.10, 3013.50)\n"
    for number in range(1, 6)
)
_TRACE = json.dumps(
    {
        "traceEvents": [
            {
                **{
                    "ph": "X",
                    "cat": "cpu_op",
                    "name": f"aten::{name}",
                    "tid": 1,
                    "ts": at,
                    "dur": 9,
                },
                "args": {"Input Dims": sizes, "Input type": ["float"] * len(sizes)},
            }
            for at, (name, sizes) in enumerate(
                [("addmm", [[8], [6, 4], [4, 8]]), ("mul_", [[48], []]), ("cat", [[[6, 4]], []])]
            )
        ]
    }
)
_MANIFEST = json.dumps(
    {"articles": 2, "pages": 3, "dropped": {"redirect": 1}, "articles_of_characters": {"64": 2}}
    | {"named": ["redirect: A"]}
)
_SCHEMAS: dict[str, Any] = {
    "gpus.yaml": dict[str, Gpu],
    "clusters.yaml": dict[str, Cluster],
    "open_models.yaml": dict[str, OpenModel],
}
_TABLES = (
    *("training_modern.csv", "training_a100_tables.csv", "collectives_nccl.csv"),
    *("nccl_bigred200.csv", "serving_engines.csv", "operators/gemm_h100_sxm.csv"),
)
_OBJECTS = ("flight_recorder.json", "kineto_nccl.json", "nccl_ras.json")
_READERS: dict[str, _Reader] = {
    "job": _Reader(_read_job, _OF_YAML, _text("job.yaml", _JOB), names_file=False),
    "table of jobs": _Reader(partial(read_jobs, options={}), _of_table, _text("jobs.csv", _JOBS)),
    "data sheet": _Reader(read_gpu_sheet, _OF_YAML, _sheet),
    "corpus.yaml": _Reader(read_corpus_config, _OF_YAML, _copy(_PARAMS / "corpus.yaml")),
    **{
        name: _Reader(partial(read_yaml, schema=schema), _OF_YAML, _entries(name))
        for name, schema in _SCHEMAS.items()
    },
    **{
        f"config.json of {name}": _Reader(_read_config, _OF_JSON, _copy(_CONFIGS / f"{name}.json"))
        for name in ("llama-3-70b", "deepseek-v3", "gpt2-xl", "llama-4-scout-text")
    },
    "Megatron's arguments": _Reader(_read_config, _of_text, _text("train.sh", _ARGUMENTS)),
    **{name: _Reader(read_known_rows, _of_table, _copy(PUBLISHED / name)) for name in _TABLES},
    **{
        path.name: _Reader(
            _read_collectives, _OF_JSON if path.name in _OBJECTS else _of_text, _copy(path)
        )
        for path in sorted(_SAMPLES.iterdir())
        if not path.name.startswith("public")
    },
    "compressed log": _Reader(_read_collectives, _of_bytes, _compressed),
    "trace of a CPU": _Reader(read_cpu_file, _OF_JSON, _text("trace.json", _TRACE)),
    "training log": _Reader(read_training_file, _of_text, _text("train.log", _TRAINING_LOG)),
    "NCCL's log": _Reader(
        lambda path: read_nccl_log(path.read_text(errors="replace")),
        _of_text,
        _text("nccl.log", _LOG_OF_NCCL),
    ),
    "dump": _Reader(_read_dump, _of_dump, _dump),
    "articles": _Reader(_read_articles, _of_text, _of_corpus("articles.jsonl")),
    "manifests": _Reader(_read_manifests, _OF_JSON, _text("articles.json", _MANIFEST)),
    **{
        f"tokenizer of {family}": _Reader(
            _read_tokenizer, _OF_JSON, _of_corpus(f"tokenizers/{family}.json")
        )
        for family in FAMILIES
    },
    **{
        f"published tokenizer of {family}": _Reader(_import(family), mutate, _vocabulary(family))
        for family, mutate in (("gpt", _of_text), ("bert", _of_text), ("t5", _of_bytes))
    },
    "netCDF": _Reader(_read_netcdf, _of_bytes, _netcdf),
    "indexed dataset": _Reader(
        _read_indexed, _of_bytes, _of_corpus("datasets/bert.idx", "datasets/bert.bin")
    ),
}


@contextmanager
def _bounded() -> Iterator[None]:
    """Fail where a reader takes minutes or gigabytes."""

    def hang(*_: object) -> None:
        raise AssertionError(f"more than {_SECONDS} s")

    before, limits = signal.signal(signal.SIGALRM, hang), resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    signal.alarm(_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (size + _BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", _READERS)
def test_a_changed_file_is_read_or_refused_in_one_line(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    reader = _READERS[name]
    paths = reader.prepare(tmp_path, request)
    contents = {path: path.read_bytes() for path in paths}
    ended: Counter[str] = Counter()

    def check(chosen: Random) -> None:
        path = chosen.choice(paths)
        path.write_bytes(reader.mutate(contents[path], chosen))
        try:
            with _bounded():
                reader.read(paths[0])
            ended["read"] += 1
        except ReproError as error:
            ended["refused"] += 1
            message = str(error)
            assert len(message.splitlines()) == 1
            assert not reader.names_file or str(tmp_path) in message, message
            assert "fix: " in message or "choose from: " in message, message
        finally:
            path.write_bytes(contents[path])

    drawn = given(st.randoms(use_true_random=False))
    for part in range(0, _CASES, _CALL):
        limits = settings(
            max_examples=min(_CALL, _CASES - part),
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        seed(_SEED + part // _CALL)(limits(drawn(check)))()
    print(f"{name}: {dict(ended)}")
    # Logs are read as far as possible; NCCL RAS has no times.
    assert ended["read"] or name == "nccl_ras.json"
    assert ended["refused"] or reader.mutate is _of_text
