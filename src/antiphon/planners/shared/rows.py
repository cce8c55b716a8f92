"""Schedules from rows: ranks in a chosen order, rows by position, several roots, routes at the end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import Ints, Longs, narrow, own
from antiphon.core.reshape import reverse
from antiphon.core.routes import Routes, opposite_links
from antiphon.core.schedule import COPY, MAX_DENOMINATOR, REDUCE, Chunks, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import dual, invert
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.planners.shared.reach import Path, suggest_planners
from antiphon.planners.shared.routing import with_routes

MOST_TRANSFERS = 2**28
Order = str | int | Sequence[int] | None
Make = Callable[[Collective], Schedule]
Row = tuple[int, int, int, int, int, Path]  # step, chunk, from, to, op, links


@dataclass(frozen=True, eq=False)
class Seats:
    """The ranks that take part, by position: seat i is `rank[i]`, the collective's member number `member[i]`."""

    rank: Ints
    member: Longs

    def __len__(self) -> int:
        return len(self.rank)

    @staticmethod
    def in_order(collective: Collective, order: Order = None, first: int | None = None) -> Seats:
        """In the given order, by default that of their numbers, turned so that rank `first` comes first. O(P log P).

        >>> seats = Seats.of(Collective("allgather", 5, (0, 2, 4)), "4,0,2", first=0)
        >>> seats.rank.tolist(), seats.member.tolist()
        ([0, 2, 4], [0, 1, 2])
        """
        ranks = np.array(given_order(order, collective), np.int32)
        if first is not None:
            ranks = np.roll(ranks, -int(np.flatnonzero(ranks == first)[0]))
        return Seats(ranks, np.searchsorted(np.array(collective.members), ranks).astype(np.int64))


def given_order(order: Order, collective: Collective) -> list[int]:
    """The option `order`: "0,3,2,1" or a list, every rank that takes part exactly once."""
    if order is None:
        return list(collective.members)
    try:
        ranks = [int(r) for r in (str(order).split(",") if isinstance(order, str | int) else order)]
    except ValueError:
        raise Invalid(f"option order: expected ranks such as 0,3,2,1, got {quote(order)}") from None
    if sorted(ranks) != list(collective.members):
        raise Invalid("option order: must name every rank that takes part exactly once")
    return ranks


def refuse_more_than_fits(
    planner: str, topology: Topology, collective: Collective, rows: int, max_rows: int = MOST_TRANSFERS
) -> None:
    """Before anything is built: Unsupported if there would be too many transfers."""
    if rows > max_rows:
        moving = ("pairwise", "direct", "flows", "relay")
        spreading = ("relay", "binomial-tree", "double-binary-tree", "compose")
        names = [name for name in (moving if collective.kind == "alltoall" else spreading) if name != planner]
        raise Unsupported(
            f"planner {planner}: {collective.kind} on {len(collective.members)} ranks needs about {rows} transfers; "
            f"at most {max_rows}; {suggest_planners(topology, collective, *names)}"
        )


def rows_to_schedule(
    collective: Collective, seats: Seats, step: ArrayLike, chunk: ArrayLike, src: ArrayLike, dst: ArrayLike,
    op: int = COPY, parts: int = 1,
) -> Schedule:  # fmt: skip
    """Rows whose ends are seats, as a schedule without routes: every block in `parts` chunks. O(rows).

    >>> chain = Collective("broadcast", 3, roots=(2,))
    >>> schedule = lay(chain, Seats.of(chain, first=2), [0, 1], [0, 0], [0, 1], [1, 2])
    >>> schedule.src.tolist(), schedule.dst.tolist()
    ([2, 0], [0, 1])
    """
    when = np.asarray(step).ravel()
    return Schedule(
        collective, cut(collective, parts), narrow(when), narrow(np.asarray(chunk).ravel()),
        own(seats.rank[np.asarray(src).ravel()]), own(seats.rank[np.asarray(dst).ravel()]),
        own(np.full(len(when), op, np.uint8)),
    )  # fmt: skip


def collective_among(collective: Collective, kind: str, root: int | None = None) -> Collective:
    """Return another collective among the same ranks, to compose with: without weights, as chunks are shares of blocks
    and composing drops blocks of weight 0. `finish` restores the weights."""
    return Collective(kind, collective.ranks, collective.members, () if root is None else (root,))


def plan_backwards(collective: Collective, make: Make) -> Schedule:
    """What `make` plans for the dual collective, run backwards."""
    return invert(make(dual(collective)[0]))


def per_root(collective: Collective, make: Make) -> Schedule:
    """A rooted collective as one schedule per root, side by side. O(rows).

    >>> def direct(one):
    ...     others = [rank for rank in range(3) if rank != one.roots[0]]
    ...     return lay(one, Seats.of(one), [0, 0], [0, 0], [one.roots[0]] * 2, others)
    >>> both = per_root(Collective("broadcast", 3, roots=(0, 2)), direct)
    >>> both.chunk.tolist(), both.src.tolist(), both.dst.tolist()
    ([0, 0, 1, 1], [0, 0, 2, 2], [1, 2, 0, 1])
    """
    if len(collective.roots) == 1:
        return make(collective)
    blocks = [_blocks_of(collective, i) for i in range(len(collective.roots))]
    alone = [
        Collective(collective.kind, collective.ranks, collective.members, (root,), collective.weights[root_blocks])
        for root, root_blocks in zip(collective.roots, blocks, strict=True)
    ]
    schedules = [make(single) for single in alone]
    common = math.lcm(*(s.chunks.denominator for s in schedules))
    scale = [common // s.chunks.denominator for s in schedules]
    base = np.cumsum([0, *(len(s.chunks) for s in schedules)])

    def joint(column: Callable[[int, Schedule], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([column(i, s) for i, s in enumerate(schedules)])

    chunks = Chunks(
        narrow(joint(lambda i, s: blocks[i][s.chunks.block])),
        joint(lambda i, s: s.chunks.offset * scale[i]),
        joint(lambda i, s: s.chunks.share * scale[i]),
        common,
    )
    return Schedule(
        collective, chunks, joint(lambda i, s: s.step), narrow(joint(lambda i, s: s.chunk + base[i])),
        joint(lambda i, s: s.src), joint(lambda i, s: s.dst), joint(lambda i, s: s.op),
    )  # fmt: skip


def _blocks_of(collective: Collective, root: int) -> Longs:
    """The blocks of the root of this number, in the order in which it would have them alone.

    >>> _blocks_of(Collective("scatter", 3, roots=(0, 2)), 1)
    array([1, 3, 5])
    """
    members, roots = len(collective.members), len(collective.roots)
    if collective.kind == "scatter":
        return np.arange(members) * roots + root
    if collective.kind == "gather":
        return root * members + np.arange(members)
    return np.array([root])


def fold_extra_ranks(collective: Collective, core: Schedule, extra: Ints, partner: Ints) -> Schedule:
    """An allreduce among some ranks, extended to all: the extra ranks add theirs to a partner's before, and copy
    the outcome after (two more steps; Thakur, Rabenseifner and Gropp 2005). O(rows).

    Ranks 0 and 1 exchange; rank 2 goes by way of rank 0:

    >>> from antiphon.core.example import of_rows
    >>> core = of_rows("allreduce", 3, [(0, 0, 0, 1, 1), (0, 0, 1, 0, 1)])
    >>> whole = folded(core.collective, core, np.array([2], np.int32), np.array([0], np.int32))
    >>> [column.tolist() for column in (whole.step, whole.src, whole.dst, whole.op)]
    [[0, 1, 1, 2], [2, 0, 1, 0], [0, 1, 0, 2], [1, 1, 1, 0]]
    """
    if not len(extra):
        return replace(core, collective=collective)
    chunks = np.arange(len(core.chunks), dtype=np.int32)
    chunk = np.tile(chunks, len(extra))
    extra_ends, partner_ends = np.repeat(extra, len(chunks)), np.repeat(partner, len(chunks))
    nothing = np.zeros(len(chunk), np.int32)
    return Schedule(
        collective, core.chunks, np.concatenate([nothing, core.step + np.int32(1), nothing + (core.steps + 1)]),
        np.concatenate([chunk, core.chunk, chunk]), np.concatenate([extra_ends, core.src, partner_ends]),
        np.concatenate([partner_ends, core.dst, extra_ends]),
        np.concatenate([nothing + REDUCE, core.op, nothing + COPY]),
    )  # fmt: skip


def finish_schedule(
    schedule: Schedule, topology: Topology, collective: Collective, planner: str, options: Mapping[str, Any],
    pieces: int = 1, found: Mapping[str, Any] | None = None,
) -> Schedule:  # fmt: skip
    """Return the schedule with routes, pieces and provenance, for exactly the requested collective.

    `options`: those that give this schedule again; None values are omitted. `found`: further facts for the provenance.
    """
    exact = schedule if schedule.collective is collective else replace(schedule, collective=collective)
    named = with_routes(exact, topology, planner)
    stated = {key: value for key, value in options.items() if value is not None}
    extra = {"found": dict(found)} if found else {}
    return replace(named, pieces=pieces, provenance={"planner": planner, "options": stated, **extra})


def schedule_of(collective: Collective, shares: Sequence[tuple[int, Fraction]], rows: Sequence[Row]) -> Schedule:
    """Make a schedule of rows. `shares`: per chunk its block and share; the chunks of a block stand one behind the
    other."""
    denominator = math.lcm(*{share.denominator for _, share in shares})
    if denominator >= MAX_DENOMINATOR:
        raise Unsupported(
            "the shares of the trees have no common denominator below 2^62; use planner trees, which rounds them"
        )
    return schedule_in_parts(
        collective, [(b, s.numerator * (denominator // s.denominator)) for b, s in shares], denominator, rows
    )


def schedule_in_parts(
    collective: Collective, parts: Sequence[tuple[int, int]], denominator: int, rows: Sequence[Row]
) -> Schedule:
    """Return a schedule with chunks one behind the other in their blocks.

    `parts`: per chunk its block, and how many of the `denominator` parts of a block it is.
    """
    block, share = np.array(parts, np.int64).reshape(-1, 2).T
    before = np.cumsum(share) - share
    first = np.concatenate([[True], block[1:] != block[:-1]])
    offset = before - before[np.maximum.accumulate(np.where(first, np.arange(len(block)), 0))]
    paths: dict[Path, int] = {}
    route = np.array([paths.setdefault(row[5], len(paths)) for row in rows], np.int32)
    step, chunk, src, dst, op = np.array([row[:5] for row in rows], np.int32).reshape(-1, 5).T
    return Schedule(
        collective, Chunks(block.astype(np.int32), offset, share, denominator), step, chunk, src, dst,
        op.astype(np.uint8), route=route, routes=Routes.of(paths),
    )  # fmt: skip


def machine_for_dual(topology: Topology) -> tuple[Topology, Ints | None]:
    """A machine to plan on, and what to give `invert` with the plan.

    Where every link has one like it that leads back, and shared limits have, the machine itself, so that what is
    gathered is as fast as what is spread: with all links turned it is the same machine, but for their numbers, and a
    search may end elsewhere. Else the machine with all links turned. O(links log links).
    """
    try:
        links = opposite_links(topology)
    except Unsupported:
        return reverse(topology), None
    forward_limits = Counter((limit.bandwidth, frozenset(limit.links)) for limit in topology.limits)
    backward_limits = Counter(
        (limit.bandwidth, frozenset(links[list(limit.links)].tolist())) for limit in topology.limits
    )
    return (topology, links) if forward_limits == backward_limits else (reverse(topology), None)
