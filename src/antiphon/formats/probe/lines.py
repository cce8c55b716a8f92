"""Read a text file line by line with limits on length and count, so that memory stays bounded for any file."""

from __future__ import annotations

import os
from collections.abc import Iterator

from antiphon.core.files import read_buffers
from antiphon.errors import Invalid

LONGEST = 2**18  # bytes of a line
_SAMPLE = 2**16


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers from 1; bytes that are not UTF-8 are replaced. Linear."""
    number, partial = 0, b""
    for block in read_buffers(path):
        begin = 0
        while (end := block.find(b"\n", begin)) >= 0:
            number += 1
            yield number, _decode_line(partial + block[begin:end], number)
            begin, partial = end + 1, b""
        partial += block[begin:]
        if len(partial) > LONGEST:
            _decode_line(partial, number + 1)
    if partial:
        yield number + 1, _decode_line(partial, number + 1)


def _decode_line(line: bytes, number: int) -> str:
    if len(line) > LONGEST:
        raise Invalid(f"line {number}: has more than {LONGEST} bytes")
    return line.rstrip(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")


def read_sample(path: str | os.PathLike[str]) -> str:
    """Return the beginning of a file, by which its format is recognised."""
    begin = b""
    for block in read_buffers(path):
        begin += block[: _SAMPLE - len(begin)]
        if len(begin) >= _SAMPLE:
            break
    return begin.decode("utf-8", "replace").removeprefix("\ufeff")
