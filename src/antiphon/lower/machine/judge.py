"""The verdict on a code: it ends, in every legal order, with what the collective says; or what is wrong, and where."""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Longs
from antiphon.lower.machine.code import Code, spread
from antiphon.lower.machine.execute import Fault, execute
from antiphon.lower.machine.order import Accesses, Flat, Order
from antiphon.lower.uncollected import uncollected

ORDERS = 3
MOST_TRIED = 64  # races whose other order is tried


@uncollected()
def judge(code: Code, *, orders: int = ORDERS, seed: int = 0) -> Fault | None:
    """None where the code is right.

    It runs in `orders` random orders with messages whole, and in one with all of them in as many parts as ever, as they
    go when chunks are large. That none hangs holds for all orders: what an instruction waits for does not depend on
    data. Then all accesses to a cell must be ordered. Where two are not, a run in the other order is made: a fault if
    that ends with other data, and none if the order makes no difference (of two that add to a cell it always does:
    the one may miss what the other adds).
    """
    run = execute(code, seed)
    if run.fault is not None:
        done = run.fault.kind in ("wrong", "input")
        return (done and _races(code, run.order, seed, wrong=run.fault)) or run.fault
    if any(
        one.count > code.least and (one.pop >= 0 or one.push >= 0)
        for block in code.blocks
        for one in block.instructions
    ):
        chunkwise = execute(spread(code), seed)
        if chunkwise.fault is not None:
            each = "each is a message of its own" if code.least == 1 else f"a message holds {code.least} of them"
            what = f"{chunkwise.fault.what}, where chunks are so large that {each}"
            return Fault(chunkwise.fault.kind, what)
    fault = _races(code, run.order, seed)
    if fault is not None:
        return fault
    for more in range(1, orders):
        run = execute(code, seed + more)
        if run.fault is not None:
            return run.fault
    return None


def _races(code: Code, order: list[tuple[int, int]], seed: int, wrong: Fault | None = None) -> Fault | None:
    """The first two accesses that nothing orders, where the other order ends otherwise. `wrong`: how this one ended."""
    flat = Flat.of(code, order)
    asked = Order.of(code, flat)
    before, after, cell = Accesses.of(code, flat).pairs()
    pair, first = np.unique(before * len(flat.block) + after, return_index=True)
    before, after, cell = pair // len(flat.block), pair % len(flat.block), cell[first]
    bad = np.flatnonzero(asked.unordered(before, after))
    for number, at in enumerate(bad.tolist()):
        one, other = (_named(flat, int(rows[at])) for rows in (before, after))
        early, late = (other, one) if wrong is None else (one, other)
        what = f"{code.tell(*early)} does not wait for {code.tell(*late)}, and both touch"
        what += f" {code.places.tell(int(cell[at]))}"
        if number >= MOST_TRIED or _loses(code, one, other, int(cell[at])):
            return Fault("race", what)
        run = execute(code, seed, last=one, until=other)
        if (wrong is None) != (run.fault is None):
            ends = wrong or run.fault
            assert ends is not None
            return Fault("race", f"{what}: where it comes first, {ends.what}")
    if wrong is not None:
        return None
    return _from_outside(code, flat, asked) if code.apart else None


def _loses(code: Code, one: tuple[int, int], other: tuple[int, int], cell: int) -> bool:
    """Whether one of two adds to a cell that the other writes: what it read may be old when it writes the sum."""
    reads, writes = [], []
    for block, index in (one, other):
        there = code.blocks[block].instructions[index]
        reads.append(any(first <= cell < first + there.count for first in there.read))
        writes.append(any(first <= cell < first + there.count for first in there.write))
    return all(writes) and any(reads)


def _named(flat: Flat, row: int) -> tuple[int, int]:
    block = int(flat.block[row])
    return block, row - int(flat.ptr[block])


def _from_outside(code: Code, flat: Flat, asked: Order) -> Fault | None:
    """Whoever touches cells of another rank must know that it has begun, and be done before it ends."""
    rank_of = np.array([block.rank for block in code.blocks], np.int64)
    accesses = Accesses.of(code, flat)
    owner = code.places.owner(accesses.cell)
    far = np.flatnonzero(owner != rank_of[flat.block[accesses.row]])
    pairs = np.unique(accesses.row[far] * code.collective.ranks + owner[far])
    for row, rank in zip(
        (pairs // code.collective.ranks).tolist(), (pairs % code.collective.ranks).tolist(), strict=True
    ):
        there = [block for block in np.flatnonzero(rank_of == rank).tolist() if code.blocks[block].instructions]
        if not any(_ordered(asked, int(flat.ptr[block]), row) for block in there):
            return Fault("race", f"{code.tell(*_named(flat, row))} does not know whether rank {rank} has begun")
        if not any(_ordered(asked, row, int(flat.ptr[block + 1]) - 1) for block in there):
            return Fault("race", f"rank {rank} may end before {code.tell(*_named(flat, row))} is done with its data")
    return None


def _ordered(asked: Order, before: int, after: int) -> bool:
    rows: tuple[Longs, Longs] = (np.array([before]), np.array([after]))
    return not bool(asked.unordered(*rows)[0])
