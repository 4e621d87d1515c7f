"""Write a file where a fault hits; print what remains: `python writers.py FAULT WRITER FOLDER`."""

import bz2
import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "corpus")]

from without_namespaces import RENAMES, forbid

from repro.errors import ReproError

_BEFORE = "as it was"


def _text(folder: Path) -> None:
    from repro.atomic import replace_text

    replace_text(folder / "claims.json", "x" * 1000)


def _tokenizer(folder: Path) -> None:
    from tokenizers import models

    from repro.corpus.vocabulary import byte_level, write_tokenizer

    write_tokenizer(byte_level(models.BPE()), folder / "gpt.json")


def _articles(folder: Path) -> None:
    from synthetic_corpus import HEAD, TAIL, FakePage, prose

    from repro.corpus.articles import extract_articles

    with tempfile.TemporaryDirectory() as elsewhere:
        dump = Path(elsewhere) / "dump.xml.bz2"
        pages = "".join(FakePage(number, prose(number)).xml() for number in range(1, 9))
        dump.write_bytes(bz2.compress((HEAD + pages + TAIL).encode()))
        made = folder / "articles.jsonl", folder / "articles.json"
        extract_articles(dump, *made, min_article_characters=1, workers=1)


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def _download(folder: Path) -> None:
    from repro.corpus.download import download

    with tempfile.TemporaryDirectory() as elsewhere:
        (Path(elsewhere) / "dump").write_bytes(bytes(1 << 20))
        handler = partial(_Handler, directory=elsewhere)
        server = HTTPServer(("127.0.0.1", 0), handler)
        # The client leaves early, which is not what is looked at.
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        download(f"http://127.0.0.1:{server.server_port}/dump", folder / "dump.xml.bz2")


def _figure(folder: Path) -> None:
    import holoviews as hv

    from repro.figures.export import save_figure

    save_figure(lambda: hv.Curve([1, 2, 3]), folder / "figure")


def _verdicts(folder: Path) -> None:
    from repro.claims.reference import keep_verdicts

    keep_verdicts([], folder)


def _fit(folder: Path) -> None:
    from repro.predict.calibration.fit import write_fit
    from repro.predict.fused.parameters import read_fused

    write_fit(read_fused(), "repro.predict.fused.parameters", folder / "fused.yaml")


def _page(folder: Path) -> None:
    from repro.site.pages import write_page

    write_page(folder / "page.md", "Title", "text")


def _log(folder: Path) -> None:
    from typer.testing import CliRunner

    from repro.cli import app
    from repro.paths import PUBLISHED

    log = PUBLISHED / "logs" / "megatron_gpt2_32_v100.txt"
    result = CliRunner().invoke(app, ["log", str(log), "--output", str(folder / "runs.nc")])
    if result.exception:
        raise result.exception


# By what is written: the function, and the files that are there before.
WRITERS: Mapping[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "text": (_text, ("claims.json",)),
    "tokenizer": (_tokenizer, ("gpt.json",)),
    "articles": (_articles, ("articles.jsonl", "articles.json")),
    "download": (_download, ("dump.xml.bz2",)),
    "figure": (_figure, ("figure.svg", "figure.png", "figure.csv")),
    "verdicts": (_verdicts, ("claims.csv",)),
    "fit": (_fit, ("fused.yaml",)),
    "page": (_page, ("page.md",)),
    "dataset of a log": (_log, ("runs.nc",)),
}


def _fill(folder: Path) -> None:
    with suppress(OSError), (folder.parent / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def _read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,bind,ro", str(folder.parent)], check=True)


def _unwritable(folder: Path) -> None:
    folder.chmod(0o555)


def _no_rename(_: Path) -> None:
    forbid(RENAMES, errno.ENOSYS)


FAULTS: Mapping[str, Callable[[Path], None]] = {
    "full disk": _fill,
    "read-only file system": _read_only,
    "unwritable folder": _unwritable,
    "no rename": _no_rename,
}


def _main(fault: str, writer: str, above: str) -> int:
    write, names = WRITERS[writer]
    folder = Path(above) / "folder"
    folder.mkdir()
    for name in names:
        (folder / name).write_text(_BEFORE)
    FAULTS[fault](folder)
    status = 0
    try:
        write(folder)
    except ReproError as error:
        print(error, file=sys.stderr)
        status = error.exit_status
    changed = [name for name in names if (folder / name).read_text(errors="replace") != _BEFORE]
    more = sorted({path.name for path in folder.iterdir()} - set(names))
    print(json.dumps({"changed": changed, "more": more}), flush=True)
    return status


if __name__ == "__main__":
    os._exit(_main(*sys.argv[1:]))
