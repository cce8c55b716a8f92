"""What programs say when they fail, in the few words that tell why."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MOST = 400  # characters
_TAIL = 3  # lines at the end, where nothing marks the one that tells
_LETTER = re.compile(r"[^\W\d_]")
_ERROR = re.compile(r"\berror\b|\b\w+(Error|Exception)\b|not found|no such file|no space left", re.IGNORECASE)
_LEFT_OUT = ("= ", "NOTE: ")  # MPICH's box says that it can be ignored


def complaint(said: Iterable[str]) -> str:
    """What tells most of all that was said; "" where nothing was.

    An error is a line. Launchers put theirs below a row of dashes, in several lines: then it is the first paragraph.
    """
    paragraphs: list[list[str]] = [[]]
    framed: list[list[str]] = []
    for line in said:
        words = " ".join(line.split())
        if words.startswith(_LEFT_OUT):
            continue
        if _LETTER.search(words):
            paragraphs[-1].append(words)
            continue
        paragraphs.append([])
        if len(words) > _TAIL:  # a row
            framed.append(paragraphs[-1])
    lines = [line for paragraph in paragraphs for line in paragraph]
    errors = list(dict.fromkeys(line for line in lines if _ERROR.search(line)))
    if errors:
        return errors[0][:_MOST]
    first = next((paragraph for paragraph in framed if paragraph), None)
    if first is None and framed:
        first = next((paragraph for paragraph in paragraphs if paragraph), None)
    return (" ".join(first) if first else " / ".join(lines[-_TAIL:]))[:_MOST]
