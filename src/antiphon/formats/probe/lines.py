"""Read a text file line by line with limits on length and count, so that memory stays bounded for any file."""

from __future__ import annotations

import os
from collections.abc import Iterator

from antiphon.core.files import read_buffers
from antiphon.errors import Invalid

MAX_LINE = 2**18  # bytes
_SAMPLE = 2**16  # bytes from which a format is recognised


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers from 1; bytes that are not UTF-8 are replaced. Linear."""
    number, partial = 0, b""
    for block in read_buffers(path):
        begin = 0  # of the next line in the block; `partial`: the part of a line in earlier blocks
        while (end := block.find(b"\n", begin)) >= 0:
            number += 1
            yield number, _decode_line(partial + block[begin:end], number)
            begin, partial = end + 1, b""
        partial += block[begin:]
        if len(partial) > MAX_LINE:
            _decode_line(partial, number + 1)  # raises
    if partial:
        yield number + 1, _decode_line(partial, number + 1)


def _decode_line(line: bytes, number: int) -> str:
    if len(line) > MAX_LINE:
        raise Invalid(f"line {number}: has more than {MAX_LINE} bytes")
    return line.rstrip(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")


def read_sample(path: str | os.PathLike[str]) -> str:
    """Return the beginning of a file, by which its format is recognised."""
    sample = b""
    for block in read_buffers(path):
        sample += block[: _SAMPLE - len(sample)]
        if len(sample) >= _SAMPLE:
            break
    return sample.decode("utf-8", "replace").removeprefix("\ufeff")
