"""Obtain the Wikipedia dump: the excerpt in the gensim wheel, a file on disk, or a URL."""

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
# Every wheel of one version holds the same test data. Naming one makes the download independent
# of the Python that runs here, for which there may be no wheel.
_WHEEL_TAGS = [
    *("--python-version", "3.11"),
    *("--implementation", "cp"),
    *("--abi", "cp311"),
    *("--platform", "manylinux2014_x86_64"),
    *("--platform", "manylinux_2_24_x86_64"),
]
_BZIP2_MAGIC = b"BZh"
_MEND = "`dump` in params/corpus.yaml must name a *-pages-articles.xml.bz2"


def fetch_dump(config: CorpusConfig, dump: Path) -> Path:
    """Make `dump` the Wikipedia dump that the configuration names.

    A dump that is already on disk is linked symbolically, so 20 GB are neither copied nor bound
    to one file system. The excerpt and a URL's file are written only if they are not there yet.

    Parameters
    ----------
    config
        Says where the dump comes from.
    dump
        Where it shall be, e.g. `data/enwiki/dump.xml.bz2`.

    Returns
    -------
    Path
        The file that holds the bytes: `dump` itself, or what it links to.

    Raises
    ------
    ReproError
        The dump cannot be obtained, or is not what it should be.
    """
    if config.dump == EXCERPT:
        _fetch_excerpt(config, dump)
    elif config.dump.startswith(("http://", "https://")):
        download(config.dump, dump)
        if not _is_bzip2(dump):
            dump.unlink()
            raise ReproError(f"{config.dump}: not bzip2; {_MEND}")
    else:
        _link(Path(config.dump).expanduser().resolve(), dump)
    return dump.resolve()


def _fetch_excerpt(config: CorpusConfig, dump: Path) -> None:
    if dump.is_file() and not dump.is_symlink() and _sha256(dump) == config.excerpt_sha256:
        return
    requirement = f"gensim=={config.gensim_version}"
    with tempfile.TemporaryDirectory() as folder, replacing(dump) as temporary:
        _download_wheel(requirement, Path(folder))
        _take_member(next(Path(folder).glob("*.whl")), temporary)
        digest = _sha256(temporary)
        if digest != config.excerpt_sha256:
            raise ReproError(
                f"the excerpt in {requirement} has SHA-256 {digest}, not {config.excerpt_sha256}; "
                f"mend gensim_version or excerpt_sha256 in params/corpus.yaml"
            )


def _download_wheel(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", *_WHEEL_TAGS]
    command += ["--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # Asked here, importlib.util.find_spec("pip") would make setuptools, and with it Megatron,
    # unimportable for the rest of this process.
    if "No module named pip" in done.stderr:
        raise ReproError(
            f"{sys.executable} has no pip, which fetches the excerpt; run "
            f"`{sys.executable} -m ensurepip`, or set `dump` in params/corpus.yaml to a file"
        )
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"exit {done.returncode}"
        raise ReproError(
            f"pip cannot download {requirement} ({reason}); check the network and gensim_version "
            f"in params/corpus.yaml, or set `dump` there to a file"
        )


def _take_member(wheel: Path, destination: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        try:
            source = archive.open(_MEMBER)
        except KeyError:
            raise ReproError(
                f"{wheel.name} has no {_MEMBER}; set gensim_version in params/corpus.yaml to a "
                f"version that does, such as 4.4.0"
            ) from None
        with source, destination.open("wb") as target:
            shutil.copyfileobj(source, target)


def _link(source: Path, dump: Path) -> None:
    if not source.is_file():
        raise ReproError(f"{source}: no such file; {_MEND}")
    if not _is_bzip2(source):
        raise ReproError(f"{source}: not bzip2; {_MEND}")
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
