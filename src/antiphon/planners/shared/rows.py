"""Build schedules from rows, in the steps that most planners share: options, seats, roots, routes, provenance.

A row is one transfer: step, chunk, sender, receiver, and whether it copies or reduces. Regular algorithms are written
for seats 0..P-1 (positions in an order of the members) as NumPy columns; `rows_to_schedule` replaces seats by ranks.
Irregular ones, such as trees, list rows with their links: `schedule_of`. Then

    plan_backwards     plans the dual collective (broadcast for reduce, allgather for reducescatter) and runs that plan
                       backwards
    machine_for_dual   returns the machine on which the dual collective is to be planned
    plan_in_halves     plans two collectives that make up one, such as a reducescatter and an allgather
    per_root           plans several roots: one schedule per root, side by side
    fold_extra_ranks   extends an allreduce among a power of two to the remaining ranks
    finish_schedule    adds routes, pieces (slices) and provenance

Example: a broadcast along the chain of ranks 2 > 0 > 1 is rows (step 0, chunk 0, seat 0 to 1) and (step 1, chunk 0,
seat 1 to 2), with the members in the order 2, 0, 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.core.collective import ROOTED, Collective
from antiphon.core.columns import Ints, Longs, as_int32, freeze
from antiphon.core.request import Request
from antiphon.core.reshape import reverse
from antiphon.core.routes import Routes, opposite_links
from antiphon.core.schedule import COPY, MAX_DENOMINATOR, REDUCE, Chunks, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, dual, invert
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.options import Option
from antiphon.planners.shared.reach import Path, suggest_planners
from antiphon.planners.shared.routing import with_routes

MOST_TRANSFERS = 2**28  # of one schedule, whose columns then take some 5 GB
# Options that several planners have:
Order = Annotated[
    str | int | Sequence[int] | None, Option("the ranks in this order, such as 0,3,2,1 (default: by number)")
]
Pieces = Annotated[int, Option("pipelining depth", minimum=1)]
Directions = Annotated[int, Option("2: half of the data each way round a ring", choices=(1, 2))]
# Variants of the option `pieces`:
PiecesOrBest = Annotated[
    int | None, Option("pipelining depth (default: the best for --nbytes; without it, several plans)", minimum=1)
]
UnevenSteps = Annotated[
    int | None,
    Option("pipeline in uneven parts, in this many steps, instead of in equal pieces", minimum=1, maximum=1024),
]
ChainPieces = Annotated[
    int | None, Option("pipelining depth (default: 32 for broadcast and reduce, else 1)", minimum=1)
]
PlanFunction = Callable[[Collective], Schedule]
REDUCESCATTER_ALLGATHER = ("reducescatter", "allgather")  # an allreduce in halves
HALVES_AT_ROOT = {  # collectives in two halves, the first to one rank, the second from it
    "allreduce": ("reduce", "broadcast"),
    "allgather": ("gather", "broadcast"),
    "reducescatter": ("reduce", "scatter"),
}
Row = tuple[int, int, int, int, int, Path]  # step, chunk, from, to, op, links


@dataclass(frozen=True, eq=False)
class Seats:
    """The members in some order: at seat (position) i is rank `rank[i]`, which is number `member[i]` of the members."""

    rank: Ints
    member: Longs

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.rank)

    @staticmethod
    def in_order(collective: Collective, order: Order = None, first: int | None = None) -> Seats:
        """Return the members in this order (default: by number), rotated so that rank `first` comes first.

        >>> seats = Seats.in_order(Collective("allgather", 5, (0, 2, 4)), "4,0,2", first=0)
        >>> seats.rank.tolist(), seats.member.tolist()
        ([0, 2, 4], [0, 1, 2])
        """
        ranks = np.array(parse_order(order, collective), np.int32)
        if first is not None:
            ranks = np.roll(ranks, -int(np.flatnonzero(ranks == first)[0]))
        return Seats(ranks, np.searchsorted(np.array(collective.members), ranks).astype(np.int64))


def parse_order(order: Order, collective: Collective) -> list[int]:
    """Parse the option `order`: "0,3,2,1" or a list, every member exactly once."""
    if order is None:
        return list(collective.members)
    try:
        ranks = [int(r) for r in (str(order).split(",") if isinstance(order, str | int) else order)]
    except ValueError:
        raise Invalid(f"option order: expected ranks such as 0,3,2,1, got {quote(order)}") from None
    if sorted(ranks) != list(collective.members):
        raise Invalid("option order: must name every rank that takes part exactly once")
    return ranks


def refuse_too_many_transfers(planner: str, request: Request, rows: int, max_rows: int = MOST_TRANSFERS) -> None:
    """Raise Unsupported, before anything is built, if there would be too many transfers."""
    if rows > max_rows:
        collective = request.collective
        # planners with fewer transfers, to suggest
        alltoall = ("pairwise", "direct", "flows", "relay")
        trees = ("relay", "binomial-tree", "double-binary-tree", "compose")
        names = [name for name in (alltoall if collective.kind == "alltoall" else trees) if name != planner]
        raise Unsupported(
            f"planner {planner}: {collective.kind} on {len(collective.members)} ranks needs about {rows} transfers; "
            f"at most {max_rows}; {suggest_planners(request.topology, collective, *names)}"
        )


def rows_to_schedule(
    collective: Collective, seats: Seats, step: ArrayLike, chunk: ArrayLike, src: ArrayLike, dst: ArrayLike,
    op: int = COPY, chunks_per_block: int = 1,
) -> Schedule:  # fmt: skip
    """Return a schedule without routes from rows whose senders and receivers are seats. O(rows).

    `op`: COPY or REDUCE, that of all rows. Every block is divided into `chunks_per_block` equal chunks.

    >>> chain = Collective("broadcast", 3, roots=(2,))
    >>> schedule = rows_to_schedule(chain, Seats.in_order(chain, first=2), [0, 1], [0, 0], [0, 1], [1, 2])
    >>> schedule.src.tolist(), schedule.dst.tolist()
    ([2, 0], [0, 1])
    """
    steps = np.asarray(step).ravel()
    return Schedule(
        collective, cut(collective, chunks_per_block), as_int32(steps), as_int32(np.asarray(chunk).ravel()),
        freeze(seats.rank[np.asarray(src).ravel()]), freeze(seats.rank[np.asarray(dst).ravel()]),
        freeze(np.full(len(steps), op, np.uint8)),
    )  # fmt: skip


def collective_among(collective: Collective, kind: str, root: int | None = None) -> Collective:
    """Return a collective of another kind among the same ranks, to be composed into one of the original kind.

    Its blocks have equal weight, since composing would drop blocks of weight 0. (Chunks are shares of blocks, which do
    not depend on weights.) `finish_schedule` restores the original collective.
    """
    return Collective(kind, collective.ranks, collective.members, () if root is None else (root,))


def plan_in_halves(
    collective: Collective, plan: PlanFunction, halves: tuple[str, str] = REDUCESCATTER_ALLGATHER, root: int = 0
) -> Schedule:
    """Plan two collectives among the same ranks with `plan`, and return one after the other.

    `halves`: their kinds. `root`: of those that have one.
    """
    first, second = (plan(collective_among(collective, kind, root if kind in ROOTED else None)) for kind in halves)
    return compose(first, second)


def plan_backwards(collective: Collective, plan_dual: PlanFunction) -> Schedule:
    """Plan the dual collective (a broadcast for a reduce) with `plan_dual`, and return that plan run backwards.

    For plans without routes. Planners of routes plan on `machine_for_dual` and call `invert` with its links.
    """
    dual_collective = dual(collective).collective
    return invert(plan_dual(dual_collective))


def per_root(collective: Collective, plan_single: PlanFunction) -> Schedule:
    """Plan a rooted collective as one schedule per root, side by side. O(rows).

    `plan_single` must return schedules without routes and pieces, which would be dropped.

    >>> def direct(single):
    ...     receivers = [rank for rank in range(3) if rank != single.roots[0]]
    ...     return rows_to_schedule(single, Seats.in_order(single), [0, 0], [0, 0], [single.roots[0]] * 2, receivers)
    >>> both = per_root(Collective("broadcast", 3, roots=(0, 2)), direct)
    >>> both.chunk.tolist(), both.src.tolist(), both.dst.tolist()
    ([0, 0, 1, 1], [0, 0, 2, 2], [1, 2, 0, 1])
    """
    if len(collective.roots) == 1:
        return plan_single(collective)
    blocks = [_blocks_of(collective, i) for i in range(len(collective.roots))]
    single_collectives = [
        Collective(collective.kind, collective.ranks, collective.members, (root,), collective.weights[root_blocks])
        for root, root_blocks in zip(collective.roots, blocks, strict=True)
    ]
    schedules = [plan_single(single) for single in single_collectives]
    # bring all chunk tables to one denominator, and renumber the chunks
    denominator = math.lcm(*(s.chunks.denominator for s in schedules))
    scale = [denominator // s.chunks.denominator for s in schedules]
    first_chunk = np.cumsum([0, *(len(s.chunks) for s in schedules)])

    def join_columns(column: Callable[[int, Schedule], NDArray[Any]]) -> NDArray[Any]:
        """Return a column of all schedules, one after the other."""
        return np.concatenate([column(i, s) for i, s in enumerate(schedules)])

    chunks = Chunks(
        as_int32(join_columns(lambda i, s: blocks[i][s.chunks.block])),
        join_columns(lambda i, s: s.chunks.offset * scale[i]),
        join_columns(lambda i, s: s.chunks.share * scale[i]),
        denominator,
    )
    return Schedule(
        collective, chunks, join_columns(lambda i, s: s.step),
        as_int32(join_columns(lambda i, s: s.chunk + first_chunk[i])), join_columns(lambda i, s: s.src),
        join_columns(lambda i, s: s.dst), join_columns(lambda i, s: s.op),
    )  # fmt: skip


def _blocks_of(collective: Collective, root: int) -> Longs:
    """Return the blocks of the root number `root` (its index in `roots`), in the order they have with it as only root.

    >>> _blocks_of(Collective("scatter", 3, roots=(0, 2)), 1)
    array([1, 3, 5])
    """
    members, roots = len(collective.members), len(collective.roots)
    if collective.kind == "scatter":  # block m * roots + r goes from root r to member m
        return np.arange(members) * roots + root
    if collective.kind == "gather":  # block r * members + m goes from member m to root r
        return root * members + np.arange(members)
    return np.array([root])


def fold_extra_ranks(collective: Collective, core: Schedule, extra: Ints, partner: Ints) -> Schedule:
    """Return the allreduce `core` among some ranks, extended to the ranks `extra` by two more steps. O(rows).

    Each extra rank first adds its data to those of its partner, and at the end copies the result from it (Thakur,
    Rabenseifner and Gropp 2005).

    Ranks 0 and 1 exchange; rank 2 goes through rank 0:

    >>> from antiphon.core.example import of_rows
    >>> core = of_rows("allreduce", 3, [(0, 0, 0, 1, 1), (0, 0, 1, 0, 1)])  # (step, chunk, from, to, op)
    >>> extended = fold_extra_ranks(core.collective, core, np.array([2], np.int32), np.array([0], np.int32))
    >>> [column.tolist() for column in (extended.step, extended.src, extended.dst, extended.op)]
    [[0, 1, 1, 2], [2, 0, 1, 0], [0, 1, 0, 2], [1, 1, 1, 0]]
    """
    if not len(extra):
        return replace(core, collective=collective)
    chunks = np.arange(len(core.chunks), dtype=np.int32)
    chunk = np.tile(chunks, len(extra))
    # Step 0: extra ranks send to their partners; last step: the results come back; `core` in between.
    extra_ends, partner_ends = np.repeat(extra, len(chunks)), np.repeat(partner, len(chunks))
    zeros = np.zeros(len(chunk), np.int32)
    return Schedule(
        collective, core.chunks, np.concatenate([zeros, core.step + np.int32(1), zeros + (core.steps + 1)]),
        np.concatenate([chunk, core.chunk, chunk]), np.concatenate([extra_ends, core.src, partner_ends]),
        np.concatenate([partner_ends, core.dst, extra_ends]),
        np.concatenate([zeros + REDUCE, core.op, zeros + COPY]),
    )  # fmt: skip


def finish_schedule(
    schedule: Schedule, request: Request, planner: str, options: Mapping[str, Any], pieces: int = 1,
    facts: Mapping[str, Any] | None = None,
) -> Schedule:  # fmt: skip
    """Return the schedule with routes, pieces and provenance, for exactly the requested collective.

    `options`: those that reproduce this schedule; None values are omitted. `facts`: figures of the search, stated under
    the key "found" of the provenance.
    """
    collective = request.collective
    requested = schedule if schedule.collective is collective else replace(schedule, collective=collective)
    routed = with_routes(requested, request.topology, planner)
    stated_options = {key: value for key, value in options.items() if value is not None}
    extra_facts = {"found": dict(facts)} if facts else {}
    return replace(routed, pieces=pieces, provenance={"planner": planner, "options": stated_options, **extra_facts})


def schedule_of(collective: Collective, shares: Sequence[tuple[int, Fraction]], rows: Sequence[Row]) -> Schedule:
    """Return a schedule of these rows. `shares`: by chunk, its block and fraction of it.

    The chunks of a block come one after the other, and lie in it in this order.
    """
    denominator = math.lcm(*{share.denominator for _, share in shares})
    if denominator >= MAX_DENOMINATOR:
        raise Unsupported(
            "the shares of the trees have no common denominator below 2^62; use planner trees, which rounds them"
        )
    # Offsets: a running sum of the shares that restarts with every block.
    block = np.array([block for block, _ in shares], np.int64)
    share = np.array([share.numerator * (denominator // share.denominator) for _, share in shares], np.int64)
    total_before = np.cumsum(share) - share
    starts_block = np.concatenate([[True], block[1:] != block[:-1]])
    offset = total_before - total_before[np.maximum.accumulate(np.where(starts_block, np.arange(len(block)), 0))]
    # Equal paths share one entry of the route table.
    paths: dict[Path, int] = {}
    route = np.array([paths.setdefault(path, len(paths)) for *_, path in rows], np.int32)
    step, chunk, src, dst, op = np.array([row[:5] for row in rows], np.int32).reshape(-1, 5).T
    return Schedule(
        collective, Chunks(block.astype(np.int32), offset, share, denominator), step, chunk, src, dst,
        op.astype(np.uint8), route=route, routes=Routes.of(paths),
    )  # fmt: skip


def machine_for_dual(topology: Topology) -> tuple[Topology, Ints | None]:
    """Return a machine to plan the dual collective on, and for `invert` the opposite of each of its links, or None.

    If every link and shared limit has an equal opposite, the result is the machine itself. (Its reverse would be the
    same up to numbering, but a search on it might end with another plan, and then a reduce would not be exactly as fast
    as a broadcast.) Otherwise it is the reversed machine, where links keep their numbers, and None. O(links log links).
    """
    try:
        links = opposite_links(topology)
    except Unsupported:
        return reverse(topology), None
    # Limits must be symmetric, too: the mirrored set of links with the same bandwidth, equally often.
    forward_limits = Counter((limit.bandwidth, frozenset(limit.links)) for limit in topology.limits)
    backward_limits = Counter(
        (limit.bandwidth, frozenset(links[list(limit.links)].tolist())) for limit in topology.limits
    )
    return (topology, links) if forward_limits == backward_limits else (reverse(topology), None)
