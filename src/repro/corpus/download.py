"""Fetch one large file over HTTP, resuming where an earlier attempt stopped."""

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from repro.errors import ReproError, one_line

_BLOCK = 1 << 20
_TIMEOUT_S = 60.0


def download(url: str, destination: Path) -> None:
    """Fetch `url` into `destination`.

    What has arrived is kept in `destination` + `.part`, and `.part.version` holds the server's
    ETag (or modification time) for it: `.../latest/...` names another file every month, and
    bytes of two dumps must not be joined.

    Parameters
    ----------
    url
        An http or https URL.
    destination
        The file to write. It is left alone if it already has the size that the server states.

    Raises
    ------
    ReproError
        The server refuses, cannot be reached, or stops early; running again resumes.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = destination.with_name(destination.name + ".part")
    version = part.with_name(part.name + ".version")
    start = part.stat().st_size if part.exists() and version.exists() else 0
    request = urllib.request.Request(url)
    if start:
        request.add_header("Range", f"bytes={start}-")
        # Answered with the rest (206) if the file is still the same, else with all of it (200).
        request.add_header("If-Range", version.read_text(encoding="ascii"))
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                start = 0
            length = response.headers["Content-Length"]
            total = None if length is None else start + int(length)
            if not start and total is not None and _has_size(destination, total):
                return
            _remember_version(version, response.headers)
            _receive(response, part, start, total)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise ReproError(f"{url}: the server answers {error.code} {error.reason}") from None
        # The earlier attempt had everything, or more than there is now.
        if error.headers["Content-Range"] != f"bytes */{start}":
            part.unlink()
            raise ReproError(f"{url}: changed since {part} was begun; run again") from None
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        said = one_line(reason) or type(error).__name__
        raise ReproError(f"{url}: {said}; run again to resume from {part}") from None
    os.replace(part, destination)
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
    # urllib reports an early end of the stream as an ordinary end when it is read in blocks.
    if total is not None and received != total:
        raise http.client.HTTPException(f"the stream ended after {received} of {total} bytes")


def _remember_version(version: Path, headers: http.client.HTTPMessage) -> None:
    # A weak ETag (W/...) does not vouch for every byte, so servers refuse it in If-Range.
    tag = headers["ETag"]
    value = tag if tag and not tag.startswith("W/") else headers["Last-Modified"]
    if value:
        version.write_text(value, encoding="ascii")
    else:
        version.unlink(missing_ok=True)


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size
