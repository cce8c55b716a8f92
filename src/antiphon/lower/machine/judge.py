"""The verdict on a code: it ends, in every legal order, with what the collective says; or what is wrong, and where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from antiphon.core.columns import Bools, Longs, starts
from antiphon.lower.machine.code import Code, held_up, spread
from antiphon.lower.machine.execute import Fault, execute
from antiphon.lower.machine.order import Accesses, Flat, Order, Row
from antiphon.lower.machine.waves import MANY, Waves, ends
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
    the one may miss what the other adds). The runs of a large code whose accesses are all ordered are made many
    instructions at a time: the first, too, where no run is needed to know the order (`_right`).
    """
    many = int(code.begin[-1]) >= MANY
    seed += many  # blocks get farther ahead then, which is faster
    if many and _right(code, orders, seed):
        return None
    run = execute(code, seed)
    if run.fault is not None:
        if run.fault.kind not in ("wrong", "input"):
            return run.fault
        return _races(Order.of(code, Flat.of(code, run.order)), seed, wrong=run.fault)[0] or run.fault
    chunkwise = _chunkwise(code, seed)
    if chunkwise is not None:
        return chunkwise
    asked = Order.of(code, Flat.of(code, run.order))
    if code.held and not _ends_held(asked):
        slower = execute(held_up(code), seed)
        if slower.fault is not None and slower.fault.kind == "hang":
            return slower.fault
    fault, ordered = _races(asked, seed)
    if fault is not None:
        return fault
    waves = Waves(asked) if many and ordered and asked.whole else None
    for more in range(1, orders):
        if waves is None or not waves.right(seed + more):
            run = execute(code, seed + more)
            if run.fault is not None:
                return run.fault
    return None


def _right(code: Code, orders: int, seed: int) -> bool:
    """Whether a large code is seen to be right without a run of one instruction after another: its order is the same
    in all of them, as nearly always, and says enough. What is wrong, those say."""
    asked = Order.of(code, Flat.of(code, ()))
    if not asked.whole:
        return False
    waves = Waves(asked)
    if not all(waves.right(seed + more) for more in range(orders)):
        return False
    asked.flat = Flat.of(code, waves.order)
    return (
        (not code.held or _ends_held(asked))
        and _chunkwise(code, seed) is None
        and _races(asked, seed, most=0) == (None, True)
    )


def _chunkwise(code: Code, seed: int) -> Fault | None:
    """What goes wrong with messages in as many parts as ever."""
    if not any(
        one.count > code.least and (one.pop >= 0 or one.push >= 0)
        for block in code.blocks
        for one in block.instructions
    ):
        return None
    fault = execute(spread(code), seed).fault
    if fault is None:
        return None
    each = "each is a message of its own" if code.least == 1 else f"a message holds {code.least} of them"
    return Fault(fault.kind, f"{fault.what}, where chunks are so large that {each}")


def _ends_held(asked: Order) -> bool:
    """Whether it surely ends where what is held up waits."""
    return asked.whole and ends(asked, [_rows(asked.flat, before, one) for one, before in asked.code.held])


def _races(
    asked: Order, seed: int, wrong: Fault | None = None, most: int = MOST_TRIED
) -> tuple[Fault | None, bool]:  # fmt: skip
    """The first two accesses that nothing orders, where the other order ends otherwise; and whether there are none that
    nothing orders. `wrong`: how this run ended. `most`: of so many the other order is tried."""
    code, flat = asked.code, asked.flat
    accesses = Accesses.of(code, flat)
    before, after, cell, written = accesses.pairs()
    pair, first = np.unique((before * len(flat.block) + after) * 2 + written, return_index=True)
    before, after, cell, written = pair // 2 // len(flat.block), pair // 2 % len(flat.block), cell[first], pair % 2 > 0
    bad = np.flatnonzero(asked.unordered(before, after))
    for number, at in enumerate(bad.tolist()):
        one, other = (_named(flat, int(rows[at])) for rows in (before, after))
        early, late = (other, one) if wrong is None else (one, other)
        what = f"{code.tell(*early)} does not wait for {code.tell(*late)}, and both touch"
        what += f" {code.places.tell(int(cell[at]))}"
        if number >= most or _loses(code, one, other, int(cell[at])):
            return Fault("race", what), False
        run = execute(code, seed, last=one, until=other)
        if (wrong is None) != (run.fault is None):
            ended = wrong or run.fault
            assert ended is not None
            return Fault("race", f"{what}: where it comes first, {ended.what}"), False
    if wrong is not None:
        return None, False
    if code.inorder:
        rows = np.array([_rows(flat, *pair) for pair in code.inorder], np.int64)
        for at in np.flatnonzero(asked.unordered(rows[:, 0], rows[:, 1])).tolist():
            one, other = code.inorder[at]
            return Fault(
                "race", f"{code.tell(*other)} does not wait for {code.tell(*one)}, and both ask one proxy"
            ), False
    if any(one.loose for block in code.blocks for one in block.instructions):
        unseen = np.flatnonzero(written)[Order.of(code, flat, firm=True).unordered(before[written], after[written])]
        for at in unseen[~np.isin(unseen, bad)].tolist():
            one, other = (_named(flat, int(rows[at])) for rows in (before, after))
            what = (
                f"{code.tell(*other)}: knows only by a relaxed signal that {code.tell(*one)} is done, and may not yet"
            )
            return Fault("race", f"{what} see what that writes to {code.places.tell(int(cell[at]))}"), False
    return (_from_outside(code, accesses, asked) or _left(code)) if code.apart else None, not len(bad)


def _loses(code: Code, one: tuple[int, int], other: tuple[int, int], cell: int) -> bool:
    """Whether one of two adds to a cell that the other writes: what it read may be old when it writes the sum."""
    reads, writes = [], []
    for block, index in (one, other):
        there = code.blocks[block].instructions[index]
        reads.append(any(first <= cell < first + there.count for first in there.read))
        writes.append(any(first <= cell < first + there.count for first in there.write))
    return all(writes) and any(reads)


def _rows(flat: Flat, one: Row, other: Row) -> tuple[int, int]:
    return int(flat.ptr[one[0]]) + one[1], int(flat.ptr[other[0]]) + other[1]


def _named(flat: Flat, row: int) -> tuple[int, int]:
    block = int(flat.block[row])
    return block, row - int(flat.ptr[block])


def _from_outside(code: Code, accesses: Accesses, asked: Order) -> Fault | None:
    """Whoever touches cells of another rank must know that it has begun, and be done before it ends. Of a line
    the first of those that touch a rank, and the last, speak for all between. What goes on beside is not the rank."""
    rank_of = np.array([code.collective.ranks if block.beside else block.rank for block in code.blocks], np.int64)
    ahead = np.array([one.ahead for block in code.blocks for one in block.instructions], bool)
    flat = asked.flat
    owner = code.places.owner(accesses.cell)
    far = np.flatnonzero(owner != rank_of[flat.block[accesses.row]])
    plain, early = (
        np.unique(accesses.row[some] * code.collective.ranks + owner[some])
        for some in _halves(far, ahead[accesses.row[far]])
    )
    line, place = asked.lines
    rows, ranks = plain // code.collective.ranks, plain % code.collective.ranks
    group = line[rows] * code.collective.ranks + ranks
    order = np.lexsort((place[rows], group))
    rows, ranks, group = rows[order], ranks[order], group[order]
    edge = starts(group)
    for row, rank in _unknown(asked, rank_of, rows[edge], ranks[edge], before=True):
        return Fault("race", f"{code.tell(*_named(flat, row))} does not know whether rank {rank} has begun")
    edge = np.append(edge[1:], True)[: len(edge)]
    for row, rank in _unknown(asked, rank_of, rows[edge], ranks[edge], before=False):
        return Fault("race", f"rank {rank} may end before {code.tell(*_named(flat, row))} is done with its data")
    if not len(early):
        return None
    ends = _ends(line, place)
    heard = _heard(asked, rank_of, set(ends.tolist()), before=True)
    known: dict[int, int] = defaultdict(int)  # of each rank from whom it has heard in the end, as bits
    for row in ends.tolist():
        known[int(rank_of[flat.block[row]])] |= heard[row]
    rows, ranks = early // code.collective.ranks, early % code.collective.ranks
    _, first = np.unique(rank_of[flat.block[rows]] * code.collective.ranks + ranks, return_index=True)
    for at in np.sort(first).tolist():
        row, rank = int(rows[at]), int(ranks[at])
        if not known[int(rank_of[flat.block[row]])] >> rank & 1:
            what = "its rank ends without having heard of that, and may be two calls ahead"
            return Fault("race", f"{code.tell(*_named(flat, row))} writes at rank {rank}: {what}")
    return None


def _left(code: Code) -> Fault | None:
    """A semaphore that does not end as it began."""
    more = [0] * len(code.start)
    last: dict[tuple[int, bool], tuple[int, int]] = {}
    for block, there in enumerate(code.blocks):
        for index, one in enumerate(there.instructions):
            for some, sign in ((one.release, 1), (one.acquire, -1)):
                for semaphore in some:
                    more[semaphore] += sign
                    last[semaphore, sign > 0] = block, index
    for semaphore, left in enumerate(more):
        if left:
            name = code.named[semaphore] if code.named else f"semaphore {semaphore}"
            what = (
                f"gives {left} more to {name} than is taken"
                if left > 0
                else f"takes {-left} more of {name} than is given"
            )
            return Fault("left", f"{code.tell(*last[semaphore, left > 0])}: {what}; the next call would find it so")
    return None


def _halves(rows: Longs, chosen: Bools) -> tuple[Longs, Longs]:
    return rows[~chosen], rows[chosen]


def _ends(line: Longs, place: Longs) -> Longs:
    """The rows with which lines end."""
    order = np.lexsort((place, line))
    found: Longs = order[np.append(starts(line[order])[1:], True)[: len(order)]]
    return found


def _unknown(asked: Order, rank_of: Longs, rows: Longs, ranks: Longs, *, before: bool) -> Iterator[tuple[int, int]]:
    """Rows and ranks of which nothing says that the rank has begun before the row, or ends after it. Most hear it
    straight from that rank, or tell it; for the others it is said, block by block, what all have heard."""
    flat, many = asked.flat, asked.code.collective.ranks + 1
    mine, far = (asked.dst, asked.src) if before else (asked.src, asked.dst)
    line, place = asked.lines
    key = line[mine] * many + rank_of[flat.block[far]]
    order = np.lexsort((place[mine] if before else -place[mine], key))
    found, at = np.unique(key[order], return_index=True)
    wanted = line[rows] * many + ranks
    row = np.searchsorted(found, wanted)
    told = np.append(found, -1)[row] == wanted
    soonest = place[mine][order][at[row[told]]]
    told[told] = soonest <= place[rows][told] if before else soonest >= place[rows][told]
    if told.all():
        return
    heard = _heard(asked, rank_of, set(rows[~told].tolist()), before=before)
    for row, rank in zip(rows[~told].tolist(), ranks[~told].tolist(), strict=True):
        if not heard[row] >> rank & 1:
            yield row, rank


def _heard(asked: Order, rank_of: Longs, rows: set[int], *, before: bool) -> dict[int, int]:
    """Of each row the ranks, as bits, some row of which comes before it; or after it. One pass over all edges, in the
    order in which rows happened, or backwards.

    Two blocks, of ranks 0 and 1, of two rows each; row 1 (of rank 0) comes before row 3 (of rank 1):

    >>> from types import SimpleNamespace as Some
    >>> flat = Some(block=np.array([0, 0, 1, 1]), when=np.array([0, 1, 2, 3]))
    >>> code = Some(collective=Some(ranks=2))
    >>> order = Some(flat=flat, code=code, src=np.array([1]), dst=np.array([3]))
    >>> _heard(order, np.array([0, 1]), {2, 3}, before=True)
    {1: 1, 2: 2, 3: 3}
    """
    flat, ranks = asked.flat, asked.code.collective.ranks
    src, dst = (asked.src, asked.dst) if before else (asked.dst, asked.src)
    leaving = np.union1d(src, np.fromiter(rows, np.int64, len(rows)))
    event = np.concatenate([2 * flat.when[dst] + (not before), 2 * flat.when[leaving] + before])
    order = np.argsort(event if before else -event, kind="stable")
    bits = [1 << rank if rank < ranks else 0 for rank in rank_of.tolist()]  # by block
    found: dict[int, int] = {}
    block = flat.block[np.concatenate([dst, leaving])][order].tolist()
    come = np.concatenate([src, np.full(len(leaving), -1)])[order].tolist()
    leave = np.concatenate([dst, leaving])[order].tolist()
    for here, one, row in zip(block, come, leave, strict=True):
        if one >= 0:
            bits[here] |= found[one]
        else:
            found[row] = bits[here]
    return found
