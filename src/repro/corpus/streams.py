"""Decompress a dump: its bzip2 streams one after another, or in groups that can be read alone."""

import bz2
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 20
# How a stream begins that is not empty: a level, and the magic number of its first block. By chance
# these ten bytes are in 20 GB once in 10^14 dumps.
_HEADER = re.compile(rb"BZh[1-9]1AY&SY")
_HEADER_BYTES = 10
# A dump whose first stream is longer than this is read from its beginning to its end.
_LONGEST_FIRST_STREAM = 64 << 20


class Damaged(Exception):
    """The compressed file is truncated or corrupt; the message says where and how."""


def stream_groups(dump: Path, group_bytes: int) -> Iterator[tuple[int, int]] | None:
    """Divide a multistream dump into parts that can be decompressed alone.

    The streams are found by how they begin, which is what the index that is published beside such a
    dump lists; the index is not needed.

    Parameters
    ----------
    dump
        A file of one or many bzip2 streams.
    group_bytes
        Compressed size of a part; a part is longer if a stream is.

    Returns
    -------
    iterator of tuple of int, or None
        First byte of each part, and of the next one; None if the dump is one long stream.
    """
    starts = _stream_starts(dump)
    next(starts, None)
    second = next(starts, None)
    return None if second is None else _groups(dump, group_bytes)


def _groups(dump: Path, group_bytes: int) -> Iterator[tuple[int, int]]:
    begun = 0
    for start in _stream_starts(dump, whole=True):
        if start - begun >= group_bytes:
            yield begun, start
            begun = start
    yield begun, dump.stat().st_size


def _stream_starts(dump: Path, *, whole: bool = False) -> Iterator[int]:
    with dump.open("rb") as file:
        offset, rest = 0, b""
        while (whole or offset < _LONGEST_FIRST_STREAM) and (block := file.read(_BLOCK)):
            block = rest + block
            for found in _HEADER.finditer(block):
                yield offset + found.start()
            # A header that is whole in `rest` was found: nine bytes do not hold one.
            rest = block[-(_HEADER_BYTES - 1) :]
            offset += len(block) - len(rest)


def decompress(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Decompress the streams that begin from `start` up to `end`, in pieces of 1 MiB at most.

    Parameters
    ----------
    file
        The dump, opened to read bytes.
    start
        Where a stream begins.
    end
        Where the first stream begins that is not wanted, or the end of the file.

    Yields
    ------
    bytes
        The next piece.

    Raises
    ------
    Damaged
        A stream is truncated or corrupt, or what follows is no stream.
    """
    left = end - start
    file.seek(start)
    decompressor, data, begun = bz2.BZ2Decompressor(), b"", False
    while True:
        if decompressor.eof:
            data, decompressor = decompressor.unused_data, bz2.BZ2Decompressor()
            begun = False
        if not data and decompressor.needs_input:
            data = file.read(min(_BLOCK, left))
            left -= len(data)
            if not data:
                break
        begun = True
        try:
            # Limited, for a few bytes of bzip2 may hold gigabytes.
            piece = decompressor.decompress(data, max_length=_BLOCK)
        except (OSError, ValueError) as error:
            raise Damaged(f"{error} before byte {file.tell()}") from None
        data = b""
        if piece:
            yield piece
    if begun:
        raise Damaged(f"the compressed data ends inside a stream at byte {file.tell()}")
