"""A file of text line by line: nothing but the line at hand is in memory, however long the file is."""

from __future__ import annotations

import os
from collections.abc import Iterator

from antiphon.core.files import read_blocks
from antiphon.errors import Invalid

LONGEST = 2**18  # bytes of a line
_SAMPLE = 2**16


def numbered(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """The lines with their numbers from 1; bytes that are no UTF-8 become question marks. Linear."""
    number, rest = 0, b""
    for block in read_blocks(path):
        begin = 0
        while (end := block.find(b"\n", begin)) >= 0:
            number += 1
            yield number, _text(rest + block[begin:end], number)
            begin, rest = end + 1, b""
        rest += block[begin:]
        if len(rest) > LONGEST:
            _text(rest, number + 1)
    if rest:
        yield number + 1, _text(rest, number + 1)


def _text(line: bytes, number: int) -> str:
    if len(line) > LONGEST:
        raise Invalid(f"line {number}: has more than {LONGEST} bytes")
    return line.rstrip(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")


def sample(path: str | os.PathLike[str]) -> str:
    """The beginning of a file, which tells what it is."""
    found = b""
    for block in read_blocks(path):
        found += block[: _SAMPLE - len(found)]
        if len(found) >= _SAMPLE:
            break
    return found.decode("utf-8", "replace").removeprefix("\ufeff")
