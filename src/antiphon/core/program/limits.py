"""What a program may ask for, judged by its numbers alone before any memory is taken (docs/program.md, Limits)."""

from __future__ import annotations

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Bools, Longs
from antiphon.core.program.kinds import Program
from antiphon.errors import Unsupported

MOST_WEIGHT = 2**61  # of all blocks together
MOST_PAIRS = 2**24  # of a block and a rank that has or needs it
MOST_WORK = 2**25  # of a rank: pieces * (1 + parts + waits), all operations together
FEW_PIECES, MOST_PIECES = 4, 2**20  # of a rank: of all operations with more than a few pieces, all pieces together
MOST_STRETCHES = 2**22  # that a proof looks at: atoms of all parts, inputs and outputs; some 250 bytes each
MOST_ELEMENTS = 2**22  # of all buffers of all ranks in a run of `check`


def refuse_collective(collective: Collective) -> None:
    """Unsupported where the relation alone would fill the memory, or its places leave 64 bits."""
    members, roots = len(collective.members), max(len(collective.roots), 1)
    others = {"allreduce": 1, "allgather": members, "reducescatter": members, "alltoall": members, "custom": 0}
    if members * others.get(collective.kind, roots) > MOST_PAIRS:
        raise Unsupported(
            f"a program for {collective.kind} among {members} ranks has more than 2^24 blocks at its ranks"
        )
    if int(collective.weights.sum()) > MOST_WEIGHT:
        raise Unsupported("its blocks weigh more than 2^61 together; give them smaller weights")


def refuse_work(program: Program) -> None:
    """Unsupported where a rank has more to do than an engine takes."""
    parts, waits = np.diff(program.part_ptr), np.diff(program.wait_ptr)
    each = program.pieces.astype(np.float64) * (1 + parts + waits)
    many = np.where(program.pieces > FEW_PIECES, program.pieces, 0)
    for what, amounts, most in (("", many, MOST_PIECES), (", of their parts and waits", each, MOST_WORK)):
        work = np.diff(np.append(0.0, np.cumsum(amounts, dtype=np.float64))[program.op_ptr])
        if np.any(work > most):
            rank, pieces = int(np.argmax(work)), int(program.pieces.max())
            raise Unsupported(
                f"no engine runs this: rank {rank} has {work[rank]:.0f} pieces of operations{what}, at most {most} are "
                f"taken; use fewer pieces than {pieces}, about {max(int(pieces * most / work[rank]), 1)}"
            )


def oversized(slot: Longs, size: tuple[Longs, Longs], written: tuple[Longs, Longs, Longs]) -> Bools:
    """Which slots weigh more than the greatest part that is written into them. `size`: of every slot, whole and part;
    `written`: slot, whole and part of every part that is written."""
    into, whole, part = written
    order = np.lexsort((part, whole, into))
    last = np.append(into[order][1:] != into[order][:-1], True)[: len(order)]
    most_whole, most_part = np.full(len(slot), -1, np.int64), np.zeros(len(slot), np.int64)
    most_whole[into[order][last]] = whole[order][last]
    most_part[into[order][last]] = part[order][last]
    return np.asarray((size[0] > most_whole) | ((size[0] == most_whole) & (size[1] > most_part)))
