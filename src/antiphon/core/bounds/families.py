"""Group needs into families for the linear program of bounds (lp.py): loads add up within a family, not across them.

A need is a row (block, holders, destination) of needs.py. A byte that several ranks need can cross a link once and be
copied later, so the loads of different destinations must not be added; the loads for one destination must. The grouping
that gives the strongest known bound depends on the collective:

    allgather, broadcast        one family per destination ("to")
    reduce, reducescatter       one family per source ("from")
    scatter, gather, alltoall   one family of everything ("all"): every need has its own bytes
    allreduce                   both directions between the first member and every other member ("pair")

Example: allgather on 3 ranks has families to 0, to 1 and to 2; in each, two blocks arrive. The load of a link is the
maximum over the families, not the sum. `commodities_of` then turns each family into flows with one common end: here
one flow from two sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.bounds.needs import Needs
from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, distinct, distinct_pairs

UNICAST = ("scatter", "gather", "alltoall")  # kinds in which every block has one holder and one destination
SPREAD = ("broadcast", "allgather")  # one holder, several destinations
COLLECT = ("reduce", "reducescatter")  # several holders, one destination


@dataclass(frozen=True, eq=False)
class FamilyRows:
    """A family, with one row of `needs` per block: bytes that can be combined or copied on the way load a link once."""

    kind: str  # "to", "from", "pair" or "all": the words of witness.Family.of
    ranks: tuple[int, ...]  # the ranks that `kind` refers to; none for "all"
    rows: Longs  # row numbers in `needs`, ascending


def families_of(collective: Collective, needs: Needs) -> list[FamilyRows]:
    """Return the families whose joint linear program is the strongest known bound for this collective."""
    kind = collective.kind
    all_rows = np.arange(len(needs))
    if kind == "allreduce":
        first = collective.members[0]
        pairs = [p for other in collective.members[1:] for p in ((first, other), (other, first))]
        return [FamilyRows("pair", (a, b), _rows_between(needs, a, b)) for a, b in pairs]
    # Every block needed once: nothing can be shared, so all loads add up.
    needed_once = len(np.unique(needs.block)) == len(needs)
    if kind in UNICAST or (kind == "custom" and needed_once):
        return [FamilyRows("all", ranks=(), rows=all_rows)]
    if kind != "custom":
        return list(from_each(needs) if kind in COLLECT else to_each(needs))
    families: list[FamilyRows] = []
    # A custom collective that is like a reduce or reducescatter needs no families "to".
    if not collective.combining or not _has_one_destination(needs):
        families += to_each(needs)
    if collective.combining:
        families += from_each(needs)
    # "all" with one need of each block: bytes of different blocks are different, so their loads add up
    return [*families, FamilyRows("all", ranks=(), rows=needs.one_per_block(all_rows))]


def to_each(needs: Needs) -> Iterator[FamilyRows]:
    """Yield one family per destination: the data that it needs."""
    for dst in range(needs.rows_by_dst.owners):
        if (rows := needs.rows_by_dst.of_owner(dst)).size:
            yield FamilyRows("to", (dst,), needs.one_per_block(rows))


def from_each(needs: Needs) -> Iterator[FamilyRows]:
    """Yield one family per rank: the data that it alone holds."""
    for holders, ranks in enumerate(needs.sets):
        if len(ranks) == 1 and (rows := needs.rows_by_holders.of_owner(holders)).size:
            yield FamilyRows("from", ranks, needs.one_per_block(rows))


def _has_one_destination(needs: Needs) -> bool:
    """Whether every block is needed by one rank only (for any number of its contributions)."""
    block, _ = distinct_pairs(needs.block, needs.dst)
    return len(distinct(block)) == len(block)


def _rows_between(needs: Needs, source: int, target: int) -> Longs:
    """Return the rows of data that one rank alone holds and another needs."""
    rows: Longs = needs.rows_by_dst.of_owner(target)
    held: Longs = rows[needs.holders[rows] == _index_of_single(needs.sets, source)]
    return held


def _index_of_single(sets: Sequence[tuple[int, ...]], rank: int) -> int:
    """Return the number of the set that has this rank alone; with the built-in kinds that is the rank."""
    if rank < len(sets) and sets[rank] == (rank,):
        return rank
    return sets.index((rank,))


@dataclass(frozen=True, eq=False)
class Commodity:
    """A flow with one common end: from `root` to many ends (forward), or from many to `root`, with an amount per end.

    An end is ("node", rank), or ("set", index into needs.sets) if several ranks hold the data.
    """

    family: int  # index of its family
    root: tuple[str, int]
    forward: bool
    ends: tuple[tuple[tuple[str, int], int], ...]  # (end, amount in weights)


def commodities_of(families: Sequence[FamilyRows], needs: Needs) -> list[Commodity]:
    """Gather the rows of each family by their common end: one flow per destination ("to" families) or per source."""
    commodities: list[Commodity] = []
    for number, family in enumerate(families):
        forward = family.kind != "to"
        gathered: dict[tuple[str, int], dict[tuple[str, int], int]] = {}
        for row in family.rows.tolist():
            source, sink = _commodity_end(needs, int(needs.holders[row])), ("node", int(needs.dst[row]))
            root, end = (source, sink) if forward else (sink, source)
            amounts = gathered.setdefault(root, {})
            amounts[end] = amounts.get(end, 0) + int(needs.weights[needs.block[row]])
        commodities += [Commodity(number, root, forward, tuple(ends.items())) for root, ends in gathered.items()]
    return commodities


def _commodity_end(needs: Needs, holders: int) -> tuple[str, int]:
    """Return the holders of a row as an end of a flow."""
    ranks = needs.sets[holders]
    return ("node", ranks[0]) if len(ranks) == 1 else ("set", holders)
