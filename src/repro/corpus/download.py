"""Resumable HTTP download of one large file."""

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from repro.atomic import cannot_be_written
from repro.errors import ReproError, one_line

_BLOCK = 1 << 20
_TIMEOUT_S = 60.0


def download(url: str, destination: Path) -> None:
    """Download `url` to `destination`, resuming an interrupted download.

    Received bytes are kept in `destination` + `.part`, and the server's ETag (or modification
    time) in `.part.version`. `.../latest/...` is another file each month, and bytes of two dumps
    must not be joined.

    Parameters
    ----------
    url
        An http or https URL.
    destination
        The file to write. It is kept if it has the size that the server reports.

    Raises
    ------
    ReproError
        The server refuses, cannot be reached, or stops early; running again resumes.
    """
    part = destination.with_name(destination.name + ".part")
    version = part.with_name(part.name + ".version")
    start = part.stat().st_size if part.exists() and version.exists() else 0
    request = urllib.request.Request(url)
    if start:
        request.add_header("Range", f"bytes={start}-")
        # The server sends the rest (206) if the file is the same, else all of it (200).
        request.add_header("If-Range", version.read_text(encoding="ascii"))
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                start = 0
            length = response.headers["Content-Length"]
            total = None if length is None else start + int(length)
            if not start and total is not None and _has_size(destination, total):
                return
            _save_version(version, response.headers)
            _receive(response, part, start, total)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise ReproError(
                f"{url}: the server answers {error.code} {error.reason}; fix: correct `dump` in "
                f"params/corpus.yaml, or run again later"
            ) from None
        # The earlier attempt received the whole file, or more than the file now has.
        if error.headers["Content-Range"] != f"bytes */{start}":
            part.unlink()
            raise ReproError(f"{url}: changed since {part} was started; fix: run again") from None
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        message = one_line(reason) or type(error).__name__
        raise ReproError(f"{url}: {message}; fix: run again to resume from {part}") from None
    try:
        os.replace(part, destination)
    except OSError as error:
        raise cannot_be_written(destination, error.strerror) from None
    version.unlink(missing_ok=True)


def _receive(response: http.client.HTTPResponse, part: Path, start: int, total: int | None) -> None:
    with (
        part.open("ab" if start else "wb") as file,
        tqdm(total=total, initial=start, unit="B", unit_scale=True, disable=None) as bar,
    ):
        while block := response.read(_BLOCK):
            file.write(block)
            bar.update(len(block))
        received = file.tell()
    # Read in blocks, urllib does not report that a stream ended early.
    if total is not None and received != total:
        raise http.client.HTTPException(f"the stream ended after {received} of {total} bytes")


def _save_version(version: Path, headers: http.client.HTTPMessage) -> None:
    # Servers refuse a weak ETag (W/...) in If-Range, because it does not identify every byte.
    tag = headers["ETag"]
    value = tag if tag and not tag.startswith("W/") else headers["Last-Modified"]
    if value:
        version.write_text(value, encoding="ascii")
    else:
        version.unlink(missing_ok=True)


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size
