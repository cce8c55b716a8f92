"""Find the line of the user's program that made a statement of a hand-written schedule, for errors.

`current_line` walks up the call stack to the first frame outside this package. If the user wrote a helper function, its
line alone says little. So the line that called it, within the user's `with` statement, is added: "ring.py:12 (called at
main.py:30)".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType, FrameType

from antiphon.errors import list_first

_PACKAGE_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
MAX_LINES_NAMED = 3  # in one error, then "..." (list_first)


@dataclass(frozen=True)
class SourceLine:
    """A line of a user's file. `caller`: the line within the `with` block that called the function with this line; None
    if this line itself is in the block.
    """

    file: str
    number: int
    caller: SourceLine | None = None

    def __str__(self) -> str:
        text = f"{_shorten_path(self.file)}:{self.number}"
        return text if self.caller is None else f"{text} (called at {self.caller})"


def current_line(with_function: CodeType | None = None) -> SourceLine:
    """Return the innermost line outside this package.

    `with_function`: the code of the function that holds the `with` block (None: not known yet). If the innermost line
    is in a helper function that the block called, the line of that call is included.
    """
    frame = _leave_package(sys._getframe(1))
    line, calling_frame = SourceLine(frame.f_code.co_filename, frame.f_lineno), frame
    while with_function is not None and calling_frame.f_code is not with_function:
        if calling_frame.f_back is None:  # the `with` function is not on the stack: a thread or generator of the user
            return line
        calling_frame = calling_frame.f_back
    caller = SourceLine(calling_frame.f_code.co_filename, calling_frame.f_lineno)
    return line if with_function is None or caller == line else SourceLine(line.file, line.number, caller)


def current_code() -> CodeType:
    """Return the code of the innermost function outside this package."""
    return _leave_package(sys._getframe(1)).f_code


def lines_text(lines: Iterable[SourceLine]) -> str:
    """Return the lines for use in a sentence: each once, in order, at most MAX_LINES_NAMED."""
    return list_first(dict.fromkeys(map(str, lines)), MAX_LINES_NAMED)


def _leave_package(frame: FrameType) -> FrameType:
    """Return the innermost frame from this one on that is outside this package."""
    while frame.f_code.co_filename.startswith(_PACKAGE_FOLDER) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _shorten_path(file: str) -> str:
    """Return the path relative to the working directory if it is below it."""
    try:
        folder = os.path.join(os.getcwd(), "")
    except OSError:  # the directory is gone
        return file
    return file.removeprefix(folder)
