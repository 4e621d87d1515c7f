"""Decompression of a dump's bzip2 streams, in sequence or in groups that can be read alone."""

import bz2
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 20
# First bytes of a stream that is not empty: the level, and the magic number of its first block.
# Random data contain these ten bytes in one of 10^14 dumps of 20 GB.
_HEADER = re.compile(rb"BZh[1-9]1AY&SY")
_HEADER_BYTES = 10
# A dump whose first stream is longer than this is read sequentially.
_LONGEST_FIRST_STREAM = 64 << 20


class Damaged(Exception):
    """The compressed file is truncated or corrupt; the message says where and how."""


def stream_groups(dump: Path, group_bytes: int) -> Iterator[tuple[int, int]] | None:
    """Divide a multistream dump into groups of streams that can be decompressed alone.

    Streams are found by their first bytes, so the index published with such a dump is not needed.

    Parameters
    ----------
    dump
        A file of one or many bzip2 streams.
    group_bytes
        Compressed size of a group; a group with a longer stream is larger.

    Returns
    -------
    iterator of tuple of int, or None
        First byte of each group, and of the next one; None if the dump is one long stream.
    """
    starts = _stream_starts(dump)
    next(starts, None)
    second = next(starts, None)
    return None if second is None else _groups(dump, group_bytes)


def _groups(dump: Path, group_bytes: int) -> Iterator[tuple[int, int]]:
    group_start = 0
    for start in _stream_starts(dump, to_end=True):
        if start - group_start >= group_bytes:
            yield group_start, start
            group_start = start
    yield group_start, dump.stat().st_size


def _stream_starts(dump: Path, *, to_end: bool = False) -> Iterator[int]:
    with dump.open("rb") as file:
        offset, rest = 0, b""
        while (to_end or offset < _LONGEST_FIRST_STREAM) and (block := file.read(_BLOCK)):
            block = rest + block
            for found in _HEADER.finditer(block):
                yield offset + found.start()
            # Nine bytes are too short for a header, so none is found twice.
            rest = block[-(_HEADER_BYTES - 1) :]
            offset += len(block) - len(rest)


def decompress(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Decompress the streams that start in bytes `start` to `end`, in pieces of at most 1 MiB.

    Parameters
    ----------
    file
        The dump, opened to read bytes.
    start
        First byte of a stream.
    end
        First byte of the next stream that is not read, or the size of the file.

    Yields
    ------
    bytes
        The next piece.

    Raises
    ------
    Damaged
        A stream is truncated or corrupt, or the bytes after a stream are not a stream.
    """
    remaining = end - start
    file.seek(start)
    decompressor, data, inside = bz2.BZ2Decompressor(), b"", False
    while True:
        if decompressor.eof:
            data, decompressor = decompressor.unused_data, bz2.BZ2Decompressor()
            inside = False
        if not data and decompressor.needs_input:
            data = file.read(min(_BLOCK, remaining))
            remaining -= len(data)
            if not data:
                break
        inside = True
        try:
            # A limit is needed: a few bytes of bzip2 may decompress to gigabytes.
            piece = decompressor.decompress(data, max_length=_BLOCK)
        except (OSError, ValueError) as error:
            raise Damaged(f"{error} before byte {file.tell()}") from None
        data = b""
        if piece:
            yield piece
    if inside:
        raise Damaged(f"the compressed data end inside a stream at byte {file.tell()}")
