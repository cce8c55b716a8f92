"""Needs in groups: the loads of one group add up, those of different groups may be the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.bounds.needs import Needs
from antiphon.core.collective import Collective
from antiphon.core.columns import Longs

UNICAST = ("scatter", "gather", "alltoall")
SPREAD = ("broadcast", "allgather")
COLLECT = ("reduce", "reducescatter")


@dataclass(frozen=True, eq=False)
class FamilyRows:
    """A family by its name (see witness.Family), with one row of `needs` per block."""

    of: str
    at: tuple[int, ...]
    rows: Longs


def groups_of(collective: Collective, needs: Needs) -> list[FamilyRows]:
    """The families whose joint linear program is the strongest known bound for this collective."""
    kind = collective.kind
    every = np.arange(len(needs))
    if kind == "allreduce":
        first = collective.members[0]
        pairs = [p for other in collective.members[1:] for p in ((first, other), (other, first))]
        return [FamilyRows("pair", (a, b), _between(needs, a, b)) for a, b in pairs]
    alone = len(np.unique(needs.block)) == len(needs)
    if kind in UNICAST or (kind == "custom" and alone):
        return [FamilyRows("all", (), every)]
    groups: list[FamilyRows] = []
    if kind != "custom" or not collective.combining or not _one_destination(needs):
        groups += to_each(needs) if kind not in COLLECT else []
    if kind in COLLECT or (kind == "custom" and collective.combining):
        groups += from_each(needs)
    if kind == "custom":
        groups.append(FamilyRows("all", (), needs.one_per_block(every)))
    return groups


def to_each(needs: Needs) -> Iterator[FamilyRows]:
    """What each rank needs."""
    for dst in np.unique(needs.dst).tolist():
        yield FamilyRows("to", (dst,), needs.one_per_block(np.flatnonzero(needs.dst == dst)))


def from_each(needs: Needs) -> Iterator[FamilyRows]:
    """What each rank alone holds."""
    for holders in np.unique(needs.holders).tolist():
        if len(needs.sets[holders]) == 1:
            rows = needs.one_per_block(np.flatnonzero(needs.holders == holders))
            yield FamilyRows("from", needs.sets[holders], rows)


def _one_destination(needs: Needs) -> bool:
    pairs = np.unique(needs.block << 32 | needs.dst)
    return len(np.unique(pairs >> 32)) == len(pairs)


def _between(needs: Needs, source: int, target: int) -> Longs:
    """The rows of what one rank alone holds and another needs."""
    return np.flatnonzero((needs.holders == _single(needs.sets, source)) & (needs.dst == target))


def _single(sets: Sequence[tuple[int, ...]], rank: int) -> int:
    if rank < len(sets) and sets[rank] == (rank,):
        return rank
    return sets.index((rank,))


@dataclass(frozen=True, eq=False)
class Commodity:
    """A flow with one end: from `root` to many (forward), or from many to `root`; amounts by holder set or
    rank.

    An end that is a set of several holders is named by its index in needs.sets, as ("set", index).
    """

    group: int
    root: tuple[str, int]
    forward: bool
    ends: tuple[tuple[tuple[str, int], int], ...]


def commodities_of(groups: Sequence[FamilyRows], needs: Needs) -> list[Commodity]:
    """Rows gathered by the end they share: one flow per destination, or per source where that is needed."""
    commodities: list[Commodity] = []
    for number, group in enumerate(groups):
        forward = group.of != "to"
        gathered: dict[tuple[str, int], dict[tuple[str, int], int]] = {}
        for row in group.rows.tolist():
            source, sink = _end(needs, int(needs.holders[row])), ("node", int(needs.dst[row]))
            root, end = (source, sink) if forward else (sink, source)
            amounts = gathered.setdefault(root, {})
            amounts[end] = amounts.get(end, 0) + int(needs.weights[needs.block[row]])
        commodities += [Commodity(number, root, forward, tuple(ends.items())) for root, ends in gathered.items()]
    return commodities


def _end(needs: Needs, holders: int) -> tuple[str, int]:
    ranks = needs.sets[holders]
    return ("node", ranks[0]) if len(ranks) == 1 else ("set", holders)
