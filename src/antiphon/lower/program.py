"""Programs: what every rank does with which addresses, and what waits for what (docs/program.md)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphon.core.plan import Plan
from antiphon.core.program import Program, dump, encode
from antiphon.errors import Unsupported
from antiphon.lower._lowering import MOST_CHANNELS, both, lower

__all__ = ["MOST_CHANNELS", "both", "lower", "program"]
FEW_PIECES, MOST_PIECES = 4, 2**20  # of a rank: those of operations that have more than a few


def program(plan: Plan, *, channels: int = 1, lag: int = 1, text: bool = False) -> dict[str, Iterator[bytes] | bytes]:
    """A file per schedule of the plan, the first is program0.bin; with `text` also what every rank does, for people."""
    files: dict[str, Iterator[bytes] | bytes] = {}
    for number, entry in enumerate(plan.entries):
        made = both(entry.schedule, channels=channels, lag=lag)
        for one in made:
            _refuse_too_many(one)
        files[f"program{number}.bin"] = encode(made)
        if text:
            for one in made:
                files[f"program{number}{'-in-place' if one.in_place else ''}.txt"] = _lines(one)
    return files


def _refuse_too_many(made: Program) -> None:
    """More pieces than an engine takes (docs/program.md, Limits)."""
    several = np.where(made.pieces > FEW_PIECES, made.pieces, 0)
    ends = np.concatenate([[0], np.cumsum(several)])
    total = np.diff(ends[made.op_ptr])
    if np.any(total > MOST_PIECES):
        rank, most = int(np.argmax(total)), int(several.max())
        fewer = most * MOST_PIECES // int(total[rank])
        raise Unsupported(
            f"the engine would not run this: rank {rank} has {int(total[rank])} pieces of operations, at most "
            f"{MOST_PIECES} are taken; plan with fewer pieces than {most}, about {fewer}"
        )


def _lines(made: Program) -> Iterator[bytes]:
    for rank in range(made.ranks):
        yield dump(made, rank).encode()
