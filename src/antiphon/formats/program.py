"""Programs: what every rank does with which addresses, and what waits for what (docs/program.md)."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.core.plan import Plan
from antiphon.core.program import Program, dump, encode
from antiphon.lower.lowering import MOST_CHANNELS, both, lower

__all__ = ["MOST_CHANNELS", "both", "lower", "program"]


def program(plan: Plan, *, channels: int = 1, lag: int = 1, text: bool = False) -> dict[str, Iterator[bytes] | bytes]:
    """A file per schedule of the plan, the first is program0.bin; with `text` also what every rank does, for people."""
    files: dict[str, Iterator[bytes] | bytes] = {}
    for number, entry in enumerate(plan.entries):
        made = both(entry.schedule, channels=channels, lag=lag)
        files[f"program{number}.bin"] = encode(made)
        if text:
            for one in made:
                files[f"program{number}{'-in-place' if one.in_place else ''}.txt"] = _lines(one)
    return files


def _lines(made: Program) -> Iterator[bytes]:
    for rank in range(made.ranks):
        yield dump(made, rank).encode()
