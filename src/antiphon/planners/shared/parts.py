"""Plans in parts, put together as one: chunks of shares of chunks, and rows that name them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs
from antiphon.core.schedule import Chunks, Schedule

LEVELS = (*(2**n for n in range(3, 15)), 2**16, 2**18, 2**20)  # parts that sizes are whole numbers of
LOSS = 5e-4  # of the time, that rounding them may cost


def still(plans: Sequence[Schedule], whole: int, common: int) -> tuple[NDArray[np.int32], Longs]:
    """Chunks that never move: those of the first plan, which are of blocks that move in no plan: their blocks and
    shares, in parts of common * whole.

    Of an allgather in which only block 1 moves:

    >>> from antiphon.core.example import of_rows
    >>> still([of_rows("allgather", 3, [(0, 1, 1, 0, 0), (0, 1, 1, 2, 0)])], whole=4, common=1)
    (array([0, 2], dtype=int32), array([4, 4]))
    """
    moving = np.zeros(plans[0].collective.blocks, bool)
    for plan in plans:
        moving[plan.chunks.block[plan.chunk]] = True
    chunks = plans[0].chunks
    rest = np.flatnonzero(~moving[chunks.block])
    return chunks.block[rest], chunks.share[rest] * (common // chunks.denominator * whole)


def joined(
    plans: Sequence[Schedule],
    table: Sequence[tuple[NDArray[np.int32], Longs]],
    rows: Sequence[tuple[int, Longs, Longs, Longs]],
    denominator: int,
    pieces: Longs,
) -> Schedule:
    """`table`: blocks and shares of chunks, in parts of the denominator; `rows`: of a plan some of its rows, with the
    step and chunk that each has now. Chunks are sorted by blocks, and so renumbered.

    Two broadcasts to rank 1, one with the first quarter of the block, the other, a step later, with the rest:

    >>> from antiphon.core.example import of_rows
    >>> plans = [of_rows("broadcast", 2, [(0, 0, 0, 1, 0)], roots=(0,))] * 2
    >>> table = [(np.array([0], np.int32), np.array([share])) for share in (1, 3)]
    >>> rows = [(n, np.array([0]), np.array([n]), np.array([n])) for n in (0, 1)]
    >>> whole = joined(plans, table, rows, 4, np.array([1, 1]))
    >>> whole.step.tolist(), whole.chunk.tolist(), whole.chunks.offset.tolist(), whole.chunks.share.tolist()
    ([0, 1], [0, 1], [0, 1], [1, 3])
    """
    block = np.concatenate([one for one, _ in table])
    share = np.concatenate([one for _, one in table]).astype(np.int64)
    order = np.argsort(block, kind="stable")
    place = np.argsort(order)
    block, share = block[order], share[order]
    before = np.cumsum(share) - share
    first = np.searchsorted(block, block)
    shrink = math.gcd(denominator, *np.unique(share).tolist())
    chunks = Chunks(block, (before - before[first]) // shrink, share // shrink, denominator // shrink)
    base = np.cumsum([0, *(len(plan.routes) for plan in plans)])
    routes = plans[0].routes
    for plan in plans[1:]:
        routes = routes.join(plan.routes)

    def column(name: str) -> NDArray[np.int32]:
        return np.concatenate([getattr(plans[n], name)[some] for n, some, _, _ in rows])

    def route(n: int, some: Longs) -> Longs:
        known = plans[n].route
        if known is None:
            return np.full(len(some), -1, np.int64)
        return np.where(known[some] < 0, -1, known[some] + base[n])

    return Schedule(
        plans[0].collective, chunks, np.concatenate([step for _, _, step, _ in rows]),
        place[np.concatenate([chunk for *_, chunk in rows])], column("src"), column("dst"),
        column("op").astype(np.uint8), route=np.concatenate([route(n, some) for n, some, _, _ in rows]), routes=routes,
        pieces=pieces[order],
    )  # fmt: skip
