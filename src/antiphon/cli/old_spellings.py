"""Spellings of the version before: each still works in this version, with one line of warning, and is in no help.

To retire a spelling, delete its row here, and its command from `OLD_COMMANDS` of the table where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class OldSpelling(NamedTuple):
    """`new`: what to type instead. `words`: what a command's name is replaced by; None where a hidden command of this
    name still does it."""

    new: str
    words: tuple[str, ...] | None = None


COMMANDS = {
    "topologies": OldSpelling("topology list", ("topology", "list")),
    "planners": OldSpelling("list planners", ("list", "planners")),
    "models": OldSpelling("list models", ("list", "models")),
    "backends": OldSpelling("list formats", ("list", "formats")),
    "runtimes": OldSpelling("list runtimes", ("list", "runtimes")),
    "simulate": OldSpelling("predict PLAN --nbytes SIZE --trace FILE"),
    "check": OldSpelling("verify PLAN --for RUNTIME --nbytes SIZE"),
    "compose": OldSpelling("plan --from A.json B.json"),
}
OPTIONS = {("predict", "--as"): "--library", ("replay", "--as"): "--library", ("plan", "--from"): "--tree-root"}


def respell(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a command line in today's spelling, and a warning for each old spelling in it."""
    if not words:
        return [], []
    name, *rest = words
    warnings = []
    old = COMMANDS.get(name)
    if old is not None:
        warnings.append(_warning(name, old.new))
    command = [name] if old is None or old.words is None else list(old.words)
    for i, word in enumerate(rest):
        if word == "--":  # the words of another program follow
            break
        option, equals, value = word.partition("=")
        new = OPTIONS.get((name, option))
        # `plan --from RANK` drew the trees of a rank, `plan --from FILE...` composes plans.
        if new is not None and (option != "--from" or (value or "".join(rest[i + 1 : i + 2])).isdigit()):
            rest[i] = new + equals + value
            warnings.append(_warning(f"{name} {option}", f"{name} {new}"))
    return [*command, *rest], warnings


def _warning(old: str, new: str) -> str:
    return f"warning: `antiphon {old}` is now `antiphon {new}`; the old spelling ends with the next version"
