"""Check that a code (code.py) ends in every legal order with the result of its collective; else return the first fault.

A *code* is the instructions of the thread blocks of all ranks; a *cell* is one chunk of a buffer; a *row* is the number
of an instruction over all thread blocks. Trying all orders is impossible, and unnecessary: waits do not depend on data.
The proof has three parts.

1. One complete run with random contributions ends with the right multisets (execute.py): some order is right.
2. If one run does not hang, no run does. Runs with messages split as for large chunks cover larger sizes.
3. All conflicting accesses to a cell are ordered (order.py), so every order reads the same values. If two accesses are
   not ordered, the run is repeated in the other order: different results are a fault.

Example: two thread blocks add into the same cell without a wait between them. Both orders may give the right sum in an
atomic simulation, but on hardware one addition can be lost; so two unordered additions are always a fault.

Readers of files mark (code.py) *detached* blocks, such as proxies, which run beside their rank. Instructions are
*ahead* if they may write at a rank that has not begun, and *loose* if their signals do not make their writes visible. A
runtime relies on the order of *inorder* pairs; by *delays* an instruction cannot end before another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from antiphon.core.columns import Bools, Longs, run_starts
from antiphon.lower.machine.code import Code, Spot, split_into_messages, with_delays
from antiphon.lower.machine.execute import CodeFault, execute
from antiphon.lower.machine.order import Accesses, Flat, Order
from antiphon.lower.without_gc import without_gc

ORDERS = 3  # random orders that are run
MOST_TRIED = 64  # unordered pairs whose other order is tried, each by a run; further ones count as races


@without_gc()
def judge(code: Code, *, orders: int = ORDERS, seed: int = 0) -> CodeFault | None:
    """Return the first fault of a code, or None if it is right.

    The code runs in `orders` random orders with undivided messages, and once with messages split as for large chunks.
    If these runs do not hang, no order does: waits do not depend on data. Then all accesses to a cell must be ordered.
    Where two accesses are not, a run in the other order decides: it is a fault if that run ends with other data. Two
    unordered additions to a cell are always a fault: one may miss the other.
    """
    # Stage 1: a complete run.
    run = execute(code, seed)
    if run.fault is not None:
        # Wrong data may come from a race, which then is the fault to report; other faults speak for themselves.
        if run.fault.kind not in ("wrong", "input"):
            return run.fault
        return _find_race(Order.of(code, Flat.of(code, run.order)), seed, wrong=run.fault) or run.fault
    # Stage 2: messages split as far as possible must not hang either, since queues are finite.
    split_fault = _find_chunkwise(code, seed)
    if split_fault is not None:
        return split_fault
    happens_before = Order.of(code, Flat.of(code, run.order))
    if code.delays and not _ends_with_delays(happens_before):
        delayed_run = execute(with_delays(code), seed)
        if delayed_run.fault is not None and delayed_run.fault.kind == "hang":
            return delayed_run.fault
    # Stage 3: races.
    fault = _find_race(happens_before, seed)
    if fault is not None:
        return fault
    for run_number in range(1, orders):
        run = execute(code, seed + run_number)
        if run.fault is not None:
            return run.fault
    return None


def _find_chunkwise(code: Code, seed: int) -> CodeFault | None:
    """Return the fault of a run with messages split as far as possible."""
    if not any(
        instruction.count > code.message_chunks and (instruction.pop >= 0 or instruction.push >= 0)
        for block in code.blocks
        for instruction in block.instructions
    ):
        return None
    fault = execute(split_into_messages(code), seed).fault
    if fault is None:
        return None
    messages_text = (
        "each is a message of its own" if code.message_chunks == 1 else f"a message holds {code.message_chunks} of them"
    )
    return CodeFault(fault.kind, f"{fault.what}, where chunks are so large that {messages_text}")


def _ends_with_delays(happens_before: Order) -> bool:
    """Return whether the code surely ends if instructions wait for everything that may delay them (`Code.delays`)."""
    if not happens_before.complete:  # an order that respects all known edges may still be impossible
        return False
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    # it ends if the order and the delays together close no cycle
    flat, rows = happens_before.flat, len(happens_before.flat.block)
    follows = np.flatnonzero(~run_starts(flat.block))
    delays = [_row_pair(flat, earlier, later) for later, earlier in happens_before.code.delays]
    earlier_rows, later_rows = np.array(delays, np.int64).reshape(-1, 2).T
    src = np.concatenate([follows - 1, happens_before.src, earlier_rows])
    dst = np.concatenate([follows, happens_before.dst, later_rows])
    graph = csr_array((np.ones(len(src), np.int8), (src, dst)), shape=(rows, rows))
    return int(connected_components(graph, connection="strong", return_labels=False)) == rows


def _find_race(happens_before: Order, seed: int, wrong: CodeFault | None = None) -> CodeFault | None:
    """Return the first race, else the first fault of `inorder` pairs, relaxed signals, or independent ranks.

    A race is an unordered pair of accesses whose other order gives another result. `wrong`: the fault with which this
    run ended, if any; then the other order is the one that ends well. The other order of MOST_TRIED pairs is tried; any
    further pair counts as a race.
    """
    code, flat = happens_before.code, happens_before.flat
    accesses = Accesses.of(code, flat)
    # per conflicting pair: the row that ran first, the other row, their cell, and whether the first row writes it
    before, after, cell, written = accesses.pairs()
    # Rows often conflict at many cells: ask about each (before, after, written) once, at one of its cells.
    _, first_pair = np.unique((before * len(flat.block) + after) * 2 + written, return_index=True)
    before, after, cell, written = before[first_pair], after[first_pair], cell[first_pair], written[first_pair]
    unordered = np.flatnonzero(happens_before.unordered(before, after))
    for number, pair in enumerate(unordered.tolist()):
        first_spot, second_spot = (_spot_of(flat, int(rows[pair])) for rows in (before, after))
        later, earlier = (second_spot, first_spot) if wrong is None else (first_spot, second_spot)
        message = f"{code.describe(*later)} does not wait for {code.describe(*earlier)}, and both touch"
        message += f" {code.places.describe(int(cell[pair]))}"
        if number >= MOST_TRIED or _loses_addition(code, first_spot, second_spot, int(cell[pair])):
            return CodeFault("race", message)
        run = execute(code, seed, delayed=first_spot, until=second_spot)
        if (wrong is None) != (run.fault is None):  # one of the two orders ends well, the other does not
            failure = wrong or run.fault
            assert failure is not None
            return CodeFault("race", f"{message}: where it comes first, {failure.what}")
    if wrong is not None:  # no race explains it: `judge` reports `wrong` itself
        return None
    if code.inorder:
        first_rows, second_rows = np.array([_row_pair(flat, *spots) for spots in code.inorder], np.int64).T
        for number in np.flatnonzero(happens_before.unordered(first_rows, second_rows)).tolist():
            first_spot, second_spot = code.inorder[number]
            return CodeFault(
                "race",
                f"{code.describe(*second_spot)} does not wait for {code.describe(*first_spot)}, and both ask one proxy",
            )
    if any(instruction.loose for block in code.blocks for instruction in block.instructions):
        visible_order = Order.of(code, flat, visible_only=True)
        # Pairs whose first row writes, that are ordered, but not by signals that make the write visible.
        invisible = np.flatnonzero(written)[visible_order.unordered(before[written], after[written])]
        for pair in invisible[~np.isin(invisible, unordered)].tolist():
            first_spot, second_spot = (_spot_of(flat, int(rows[pair])) for rows in (before, after))
            message = (
                f"{code.describe(*second_spot)}: knows only by a relaxed signal that {code.describe(*first_spot)} is "
            )
            message += "done, and may not yet"
            return CodeFault("race", f"{message} see what that writes to {code.places.describe(int(cell[pair]))}")
    if not code.independent_ranks:
        return None
    return _find_outside_access(code, accesses, happens_before) or _find_unbalanced(code)


def _loses_addition(code: Code, first_spot: Spot, second_spot: Spot, cell: int) -> bool:
    """Return whether both instructions write a cell and one of them adds to it: it may write a sum of an old value."""
    reads, writes = [], []
    for block, index in (first_spot, second_spot):
        instruction = code.blocks[block].instructions[index]
        reads.append(any(first <= cell < first + instruction.count for first in instruction.read))
        writes.append(any(first <= cell < first + instruction.count for first in instruction.write))
    return all(writes) and any(reads)


def _row_pair(flat: Flat, first_spot: Spot, second_spot: Spot) -> tuple[int, int]:
    """Return the rows of two instructions."""
    first_row, second_row = (int(flat.ptr[block]) + index for block, index in (first_spot, second_spot))
    return first_row, second_row


def _spot_of(flat: Flat, row: int) -> Spot:
    block = int(flat.block[row])
    return block, row - int(flat.ptr[block])


def _find_outside_access(code: Code, accesses: Accesses, happens_before: Order) -> CodeFault | None:
    """Return a fault if a rank accesses cells of another rank that may not have begun, or may have ended.

    A *line* is thread blocks of a rank that run one after the other. Of a line, only the first and the last row that
    access a rank are checked. Detached blocks, such as proxies, do not count as their rank.
    """
    # Per block its rank; detached blocks have a number that no rank has.
    rank_of = np.array([code.collective.ranks if block.detached else block.rank for block in code.blocks], np.int64)
    ahead = np.array([instruction.ahead for block in code.blocks for instruction in block.instructions], bool)
    flat = happens_before.flat
    owner = code.places.owner(accesses.cell)
    remote = np.flatnonzero(owner != rank_of[flat.block[accesses.row]])
    # (row, rank that it accesses) as one number, without and with `ahead`
    plain_keys, ahead_keys = (
        np.unique(accesses.row[far_rows] * code.collective.ranks + owner[far_rows])
        for far_rows in _split_rows(remote, ahead[accesses.row[remote]])
    )
    line, position = happens_before.lines
    rows, ranks = plain_keys // code.collective.ranks, plain_keys % code.collective.ranks
    # rows of one line that access one rank, in the order of the line
    group = line[rows] * code.collective.ranks + ranks
    order = np.lexsort((position[rows], group))
    rows, ranks, group = rows[order], ranks[order], group[order]
    is_first = run_starts(group)  # of the rows of a line that access one rank
    for row, rank in _find_unknown(happens_before, rank_of, rows[is_first], ranks[is_first], before=True):
        return CodeFault("race", f"{code.describe(*_spot_of(flat, row))} does not know whether rank {rank} has begun")
    is_last = np.append(is_first[1:], True)[: len(is_first)]  # [: len]: without rows, append makes one entry
    for row, rank in _find_unknown(happens_before, rank_of, rows[is_last], ranks[is_last], before=False):
        return CodeFault(
            "race", f"rank {rank} may end before {code.describe(*_spot_of(flat, row))} is done with its data"
        )
    if not len(ahead_keys):
        return None
    ends = _line_ends(line, position)
    heard_from = _collect_heard(happens_before, rank_of, set(ends.tolist()), before=True)
    heard_at_end: dict[int, int] = defaultdict(int)  # per rank, the ranks that it has heard from in the end, as bits
    for row in ends.tolist():
        heard_at_end[int(rank_of[flat.block[row]])] |= heard_from[row]
    rows, ranks = ahead_keys // code.collective.ranks, ahead_keys % code.collective.ranks
    # Detached blocks do what their rank asked for, so it is that rank which may be too far ahead.
    writers = np.array([block.rank for block in code.blocks], np.int64)[flat.block[rows]]
    _, first = np.unique(writers * code.collective.ranks + ranks, return_index=True)
    for number in np.sort(first).tolist():
        row, rank = int(rows[number]), int(ranks[number])
        if not heard_at_end[int(writers[number])] >> rank & 1:
            message = "its rank ends without having heard of that, and may be two calls ahead"
            return CodeFault("race", f"{code.describe(*_spot_of(flat, row))} writes at rank {rank}: {message}")
    return None


def _find_unbalanced(code: Code) -> CodeFault | None:
    """Return a fault if a semaphore does not end at its start value."""
    balance = [0] * len(code.start)
    last_use: dict[tuple[int, bool], Spot] = {}  # by semaphore and whether it is a release
    for block, thread_block in enumerate(code.blocks):
        for index, instruction in enumerate(thread_block.instructions):
            for semaphores, sign in ((instruction.release, 1), (instruction.acquire, -1)):
                for semaphore in semaphores:
                    balance[semaphore] += sign
                    last_use[semaphore, sign > 0] = block, index
    for semaphore, surplus in enumerate(balance):
        if surplus:
            name = code.semaphore_names[semaphore] if code.semaphore_names else f"semaphore {semaphore}"
            message = (
                f"gives {surplus} more to {name} than is taken"
                if surplus > 0
                else f"takes {-surplus} more of {name} than is given"
            )
            return CodeFault(
                "left", f"{code.describe(*last_use[semaphore, surplus > 0])}: {message}; the next call would find it so"
            )
    return None


def _split_rows(rows: Longs, mask: Bools) -> tuple[Longs, Longs]:
    return rows[~mask], rows[mask]


def _line_ends(line: Longs, position: Longs) -> Longs:
    """Return the rows with which lines end."""
    order = np.lexsort((position, line))
    last_rows: Longs = order[np.append(run_starts(line[order])[1:], True)[: len(order)]]
    return last_rows


def _find_unknown(
    happens_before: Order, rank_of: Longs, rows: Longs, ranks: Longs, *, before: bool
) -> Iterator[tuple[int, int]]:
    """Yield the (row, rank) pairs for which nothing shows that the rank begins before the row.

    With `before` False: that it ends after the row. Most rows have a direct message from (or to) that rank. For the
    others, `_collect_heard` finds all ranks that a row has heard from.
    """
    # Keys are (line, rank) as one number; + 1 because `rank_of` has a further number for detached blocks.
    flat, key_base = happens_before.flat, happens_before.code.collective.ranks + 1
    # per edge, the row on the side of `rows` and the one on the other side
    own_rows, far_rows = happens_before.dst, happens_before.src
    if not before:
        own_rows, far_rows = far_rows, own_rows
    line, position = happens_before.lines
    key = line[own_rows] * key_base + rank_of[flat.block[far_rows]]
    order = np.lexsort((position[own_rows] if before else -position[own_rows], key))
    keys, first_of_key = np.unique(key[order], return_index=True)  # the first edge of a line and a far rank
    asked_keys = line[rows] * key_base + ranks
    key_index = np.searchsorted(keys, asked_keys)
    is_direct = np.append(keys, -1)[key_index] == asked_keys  # the -1 is for keys above all others
    soonest = position[own_rows][order][first_of_key[key_index[is_direct]]]
    is_direct[is_direct] = soonest <= position[rows][is_direct] if before else soonest >= position[rows][is_direct]
    if is_direct.all():
        return
    heard_from = _collect_heard(happens_before, rank_of, set(rows[~is_direct].tolist()), before=before)
    for row, rank in zip(rows[~is_direct].tolist(), ranks[~is_direct].tolist(), strict=True):
        if not heard_from[row] >> rank & 1:
            yield row, rank


def _collect_heard(happens_before: Order, rank_of: Longs, rows: set[int], *, before: bool) -> dict[int, int]:
    """Return per row, as a bit mask, the ranks that it has heard from: those with a row that happens before it.

    With `before` False: those with a row that happens after it. One pass over all edges, in the order of the run, or
    backwards.

    Two blocks, of ranks 0 and 1, of two rows each; row 1 (of rank 0) comes before row 3 (of rank 1):

    >>> from types import SimpleNamespace as Object
    >>> flat = Object(block=np.array([0, 0, 1, 1]), when=np.array([0, 1, 2, 3]))
    >>> code = Object(collective=Object(ranks=2))
    >>> order = Object(flat=flat, code=code, src=np.array([1]), dst=np.array([3]))
    >>> _collect_heard(order, np.array([0, 1]), {2, 3}, before=True)
    {1: 1, 2: 2, 3: 3}
    """
    flat, ranks = happens_before.flat, happens_before.code.collective.ranks
    src, dst = (happens_before.src, happens_before.dst) if before else (happens_before.dst, happens_before.src)
    # Two kinds of events at a row: it hears what an edge brings; then, if others ask for it, its bits are stored. An
    # event's number is twice the row's time, plus 1 for the later of the two in the direction of the pass.
    stored = np.union1d(src, np.fromiter(rows, np.int64, len(rows)))
    event = np.concatenate([2 * flat.when[dst] + (not before), 2 * flat.when[stored] + before])
    order = np.argsort(event if before else -event, kind="stable")
    bits = [1 << rank if rank < ranks else 0 for rank in rank_of.tolist()]  # by block
    heard_bits: dict[int, int] = {}
    event_blocks = flat.block[np.concatenate([dst, stored])][order].tolist()
    sources = np.concatenate([src, np.full(len(stored), -1)])[order].tolist()  # -1: store
    event_rows = np.concatenate([dst, stored])[order].tolist()
    for block, source, row in zip(event_blocks, sources, event_rows, strict=True):
        if source >= 0:
            bits[block] |= heard_bits[source]
        else:
            heard_bits[row] = bits[block]
    return heard_bits
