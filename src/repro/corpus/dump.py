"""Wikipedia dump: the excerpt in the gensim wheel, a file on disk, or a URL."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from repro.atomic import replacing
from repro.corpus.config import EXCERPT, CorpusConfig
from repro.corpus.download import download
from repro.errors import ReproError

_MEMBER = (
    "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
)
# All wheels of one version hold the same test data. Fixed tags make the download independent of
# the running Python, for which there may be no wheel.
_WHEEL_TAGS = [
    *("--python-version", "3.11"),
    *("--implementation", "cp"),
    *("--abi", "cp311"),
    *("--platform", "manylinux2014_x86_64"),
    *("--platform", "manylinux_2_24_x86_64"),
]
_BZIP2_MAGIC = b"BZh"
_FIX = "fix: set `dump` in params/corpus.yaml to a *-pages-articles.xml.bz2"


def fetch_dump(config: CorpusConfig, dump: Path) -> Path:
    """Make `dump` the Wikipedia dump that the configuration names.

    A dump on disk is linked symbolically, so 20 GB are not copied and it may be on another file
    system. The excerpt and a URL's file are fetched only if they are missing.

    Parameters
    ----------
    config
        The source of the dump.
    dump
        Target path, e.g. `data/enwiki/dump.xml.bz2`.

    Returns
    -------
    Path
        The file that holds the bytes: `dump` itself, or its link target.

    Raises
    ------
    ReproError
        The dump cannot be fetched, is not bzip2, or has another digest than configured.
    """
    if config.dump == EXCERPT:
        _fetch_excerpt(config, dump)
    elif config.dump.startswith(("http://", "https://")):
        download(config.dump, dump)
        if not _is_bzip2(dump):
            dump.unlink()
            raise ReproError(f"{config.dump}: not bzip2; {_FIX}")
    else:
        _link(Path(config.dump).expanduser().resolve(), dump)
    return dump.resolve()


def _fetch_excerpt(config: CorpusConfig, dump: Path) -> None:
    if dump.is_file() and not dump.is_symlink() and _sha256(dump) == config.excerpt_sha256:
        return
    requirement = f"gensim=={config.gensim_version}"
    with tempfile.TemporaryDirectory() as folder, replacing(dump) as temporary:
        _download_wheel(requirement, Path(folder))
        _extract_member(next(Path(folder).glob("*.whl")), temporary)
        digest = _sha256(temporary)
        if digest != config.excerpt_sha256:
            raise ReproError(
                f"the excerpt in {requirement} has SHA-256 {digest}, not {config.excerpt_sha256}; "
                f"fix: correct gensim_version or excerpt_sha256 in params/corpus.yaml"
            )


def _download_wheel(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", *_WHEEL_TAGS]
    command += ["--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # pip's own message is checked, because importlib.util.find_spec("pip") would make setuptools,
    # and therefore Megatron, unimportable for the rest of this process.
    if "No module named pip" in done.stderr:
        raise ReproError(
            f"{sys.executable} has no pip, which downloads the excerpt; fix: run "
            f"`{sys.executable} -m ensurepip`, or set `dump` in params/corpus.yaml to a file"
        )
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"exit {done.returncode}"
        raise ReproError(
            f"pip cannot download {requirement} ({reason}); fix: check the network and "
            f"gensim_version in params/corpus.yaml, or set `dump` there to a file"
        )


def _extract_member(wheel: Path, destination: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        try:
            source = archive.open(_MEMBER)
        except KeyError:
            raise ReproError(
                f"{wheel.name} has no {_MEMBER}; fix: set gensim_version in params/corpus.yaml to "
                f"a version that has it, such as 4.4.0"
            ) from None
        with source, destination.open("wb") as target:
            shutil.copyfileobj(source, target)


def _link(source: Path, dump: Path) -> None:
    if not source.is_file():
        raise ReproError(f"{source}: no such file; {_FIX}")
    if not _is_bzip2(source):
        raise ReproError(f"{source}: not bzip2; {_FIX}")
    if dump.parent.resolve() / dump.name == source:
        return
    with replacing(dump) as temporary:
        os.symlink(source, temporary)


def _is_bzip2(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_BZIP2_MAGIC)) == _BZIP2_MAGIC


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
