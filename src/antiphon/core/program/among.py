"""A program for some ranks of a machine as one for a job of just these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.program.kinds import Program
from antiphon.errors import Unsupported


def job_of(collective: Collective) -> tuple[int, ...]:
    """The ranks of a job that does this: who takes part; all, where the collective itself names its ranks."""
    return collective.members if collective.custom is None else tuple(range(collective.ranks))


def counted_anew(collective: Collective, members: Sequence[int]) -> Collective:
    """The same of just these, by their places among them."""
    if len(members) == collective.ranks:
        return collective
    number = {rank: place for place, rank in enumerate(members)}
    roots = tuple(number[root] for root in collective.roots)
    return Collective(collective.kind, len(members), roots=roots, weights=collective.weights)


def among(program: Program, members: Sequence[int]) -> Program:
    """All ranks of it are members, which are counted anew in their order; the others must have nothing to do."""
    if len(members) == program.ranks:
        return program
    keep = np.asarray(members)
    number = np.full(program.ranks, -1)
    number[keep] = np.arange(len(keep))
    outside = np.setdiff1d(np.arange(program.ranks), keep)
    pointers = {name: getattr(program, name) for name in ("base_ptr", "slot_ptr", "op_ptr", "finish_ptr")}
    if any(np.diff(ptr)[outside].any() for ptr in pointers.values()):
        raise Unsupported("a rank that does not take part would have to help; plan on the machine without it (--only)")
    less: dict[str, Any] = {name: np.append(0, np.cumsum(np.diff(ptr)[keep])) for name, ptr in pointers.items()}
    collective = counted_anew(program.collective, members)
    return replace(program, collective=collective, peer=number[program.peer], **less)
