"""Plan any relation block by block: send initial values along shortest paths, and combine them on the way.

A custom collective states which value each rank has and which value each needs. A value is a sum of contributions
(ranks' inputs), each once or several times: a `Value`, the tuple of their numbers, ascending. Values can only be copied
or added. So per block:

    1. a rank that needs exactly the value that some ranks have receives it along a tree from the nearest of these
    2. other values are sums: find which initial values add up to it (sums.py); gather them at a rank that needs the
       sum, along the tree of shortest paths to it, adding where branches meet
    3. the other ranks that need the same sum receive it from that rank

Slot 0 of a rank has its initial value, and at the end the value it needs. Values in transit are stored in other slots,
so that they do not mix. If a needed value is no sum of initial values, the collective is impossible, and the error
names the rank.

Example: ranks 0, 1, 2 on a line have a, b, c; rank 2 needs a + b + c. Step 1: 0 sends a to 1, which adds it to a copy
of b; step 2: 1 sends a + b to 2, which adds it to c.

An ordered collective combines contributions in ascending order only, as for a reduction that does not commute. There, a
rank on the way adds only values that are neighbours in the sum, and forwards the others separately. Example: on the
line 0, 2, 1 rank 2 sends a and c separately to 1, which forms a + b + c.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import as_int32
from antiphon.core.reshape import reverse
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Unsupported
from antiphon.planners.relations.sums import Value, sum_of
from antiphon.planners.shared.reach import Path, Reach

MAX_ROWS = 2**24  # transfers of a schedule: some gigabytes while it is built
MAX_SLOTS = 2**15  # slots of a rank
MAX_CENTRES = 16  # ranks that are tried as the one where a sum is formed; each takes a search for addends


def by_relation(topology: Topology, collective: Collective) -> Schedule:
    """Plan any collective; raises Infeasible, naming the ranks, if it is impossible. O(wants * ranks) rows."""
    out = _Rows()
    reach, back = Reach(topology), Reach(reverse(topology))
    initial, goals = _read_relation(collective)
    blocks = np.flatnonzero(collective.weights > 0)  # a block without data needs no chunk
    for chunk, block in enumerate(blocks.tolist()):
        values = initial[block]
        wants: dict[Value, list[int]] = defaultdict(list)
        for rank, want in goals[block].items():
            if values.get(rank) != want:
                wants[want].append(rank)
        _Block(
            reach, back, out, chunk=chunk, block=block, initial=values, wanting=set(goals[block]),
            ordered=collective.ordered,
        ).plan_wants(wants)  # fmt: skip
    one_chunk_each = Chunks(
        as_int32(blocks), np.zeros(len(blocks), np.int64), np.ones(len(blocks), np.int64), denominator=1
    )
    return out.to_schedule(collective, one_chunk_each)


def _read_relation(collective: Collective) -> tuple[dict[int, dict[int, Value]], dict[int, dict[int, Value]]]:
    """Return, by block and rank, the initial values and the wanted values.

    A wanted value of -1 in the relation is the sum of all contributions to the block.
    """
    relation = collective.relation
    ids: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for block, rank, contribution in zip(
        relation.pre_block.tolist(), relation.pre_rank.tolist(), relation.pre_id.tolist(), strict=True
    ):
        ids[block][rank].append(contribution)
    initial = defaultdict(dict, {b: {r: tuple(sorted(x)) for r, x in ranks.items()} for b, ranks in ids.items()})
    all_ids = {b: tuple(sorted({*itertools.chain(*ranks.values())})) for b, ranks in initial.items()}
    goals: dict[int, dict[int, Value]] = defaultdict(dict)
    for block, rank, want in zip(
        relation.post_block.tolist(), relation.post_rank.tolist(), relation.post_want.tolist(), strict=True
    ):
        goals[block][rank] = all_ids[block] if want < 0 else tuple(sorted(relation.wants[want]))
    return initial, goals


class _Rows:
    """Rows of a schedule under construction."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.paths: dict[Path, int] = {}

    def add_row(
        self, step: int, chunk: int, ends: tuple[int, int], op: int, path: Path, slots: tuple[int, int]
    ) -> None:
        """Add a transfer. Raises Unsupported if there are too many.

        `ends`: sender and receiver. `path`: its links; (): within a rank. `slots`: the one read at the sender, and the
        one written at the receiver.
        """
        route = self.paths.setdefault(path, len(self.paths)) if path else -1
        self.rows.append((step, chunk, *ends, op, route, *slots))
        if len(self.rows) > MAX_ROWS or max(slots) >= MAX_SLOTS:
            raise Unsupported(
                f"planner relay: more than {MAX_ROWS} transfers, or {MAX_SLOTS} values of one block at a rank; "
                "cut the collective into several"
            )

    def to_schedule(self, collective: Collective, chunks: Chunks) -> Schedule:
        """Return the schedule of the rows, sorted by step."""
        table = np.array(sorted(self.rows), np.int64).reshape(-1, 8)
        step, chunk, src, dst, op, route, src_slot, dst_slot = (as_int32(table[:, i]) for i in range(8))
        return Schedule(
            collective, chunks, step, chunk, src, dst, op.astype(np.uint8),
            route=route, src_slot=src_slot, dst_slot=dst_slot, routes=Routes.of(self.paths),
        )  # fmt: skip


@dataclass
class _Gather:
    """A sum formed at the rank `centre`, along a tree."""

    centre: int
    uses: dict[int, int]  # by rank, how often its initial value is added
    depth: dict[int, int] = field(default_factory=dict)  # by rank of the tree, its distance from the centre
    below: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # by rank, the ranks that send to it
    replaces: bool = False  # whether the centre has an initial value that is no addend, which the sum overwrites
    position: dict[int, int] = field(default_factory=dict)  # by rank that adds its value, its index among the addends
    ordered: bool = False

    def collects(self, rank: int) -> bool:
        """Return whether a rank combines values before it sends them on."""
        return bool(self.below.get(rank)) or self.uses.get(rank, 0) > 1

    @property
    def copy_steps(self) -> int:
        """The number of steps, at the start, in which ranks copy their own value to the slot where received values
        will be added to it.
        """
        return max((n for rank, n in self.uses.items() if rank != self.centre and self.collects(rank)), default=0)

    def partial_sums(self) -> dict[int, list[tuple[int, int]]]:
        """Return by rank the partial sums that it sends on, each as its first and last position in the sum.

        Unless the collective is ordered, there is a single one per rank, and its second number is only that of the last
        span joined to it: enough to distinguish the sum of several spans from each of these spans.
        """
        sums: dict[int, list[tuple[int, int]]] = {}
        for rank in sorted(self.depth, key=self.depth.__getitem__, reverse=True):
            own_interval = [(self.position[rank],) * 2] if rank in self.uses else []
            joined: list[tuple[int, int]] = []
            for first, last in sorted(
                [*own_interval, *(span for child in self.below.get(rank, ()) for span in sums[child])]
            ):
                if joined and (not self.ordered or first == joined[-1][1] + 1):
                    joined[-1] = (joined[-1][0], last)
                else:
                    joined.append((first, last))
            sums[rank] = joined
        return sums

    @property
    def steps(self) -> int:
        """The steps of the gather. A centre that adds its own value n times copies and adds it up in n - 1 steps, and
        takes one more to add the rest.
        """
        total = self.copy_steps + max(self.depth.values()) + self.replaces
        return max(total, self.uses.get(self.centre, 0))


Delivery = tuple[int, list[int]]  # a value that is copied down a tree: its source and its destinations


@dataclass
class _Block:
    """The plan of one block under construction."""

    reach: Reach  # its `tree_from(rank)`: a tree with the fewest hops, as rank -> Hop (parent, path from there, depth)
    back: Reach  # the same of the reversed machine
    out: _Rows
    chunk: int  # its number differs from that of the block, as blocks without data have no chunk
    block: int
    initial: dict[int, Value]  # by rank
    wanting: set[int]  # the ranks that need a value
    ordered: bool = False  # whether contributions are combined in ascending order
    next_slot: dict[int, int] = field(default_factory=lambda: defaultdict(lambda: 1))  # by rank, its first unused slot
    passed_ranks: set[int] = field(default_factory=set)  # ranks whose slot 0 holds values in transit

    def plan_wants(self, wants: dict[Value, list[int]]) -> None:
        """Spread and gather initial values first; then spread the gathered sums."""
        initial_spreads, gathers, sum_spreads = list[Delivery](), list[_Gather](), list[Delivery]()
        for want, dests in wants.items():
            spreads, unreached = self._from_nearest([r for r, value in self.initial.items() if value == want], dests)
            initial_spreads += spreads
            while unreached:  # each gather serves at least the rank at which it forms the sum
                gathers.append(self._plan_gather(want, unreached))
                centre = gathers[-1].centre
                spreads, unreached = self._from_nearest([centre], [rank for rank in unreached if rank != centre])
                sum_spreads += spreads
        # initial values may be overwritten only after the last step in which something reads them; sums are spread
        # after that
        begin = max(
            [gather.steps for gather in gathers] + [self._count_steps(*delivery) for delivery in initial_spreads],
            default=0,
        )
        for delivery in initial_spreads:
            self._spread_down(*delivery, 0, begin)
        for gather in gathers:
            self._add_gather_rows(gather, begin)
        for delivery in sum_spreads:
            self._spread_down(*delivery, begin, None)

    def _from_nearest(self, holders: list[int], dests: list[int]) -> tuple[list[Delivery], list[int]]:
        """Assign each destination to its nearest holder; also return the destinations that no holder reaches."""
        by_holder: dict[int, list[int]] = defaultdict(list)
        unreached = []
        for dest in dests:
            reaching_holders = [
                (self.reach.tree_from(rank)[dest].depth, rank) for rank in holders if dest in self.reach.tree_from(rank)
            ]
            if reaching_holders:
                _, nearest_holder = min(reaching_holders)
                by_holder[nearest_holder].append(dest)
            else:
                unreached.append(dest)
        return sorted(by_holder.items()), unreached

    def _plan_gather(self, want: Value, dests: list[int]) -> _Gather:
        """Plan a sum at one of the ranks that want it: the one with the shortest total distance to the addends."""
        candidates = []
        for dest in dests[:MAX_CENTRES]:
            uses = self._find_addends(want, dest)
            tree = self.back.tree_from(dest)
            candidates.append((sum(tree[rank].depth * n for rank, n in uses.items()), dest, uses))
        _, centre, uses = min(candidates, key=itemgetter(0, 1))
        # on the reversed machine: a rank's parent is the next one on the way to the centre
        tree = self.back.tree_from(centre)
        gather = _Gather(centre, uses, replaces=bool(self.initial.get(centre)) and not uses.get(centre))
        gather.ordered = self.ordered
        addends = sorted(uses, key=self.initial.__getitem__)
        gather.position = {rank: position for position, rank in enumerate(addends)}
        if self.ordered:
            self._refuse_interleaved(addends, uses)
        for rank in uses:
            current = rank
            # walk to the centre, and stop where another rank's path has been
            while current not in gather.depth:
                gather.depth[current] = tree[current].depth
                if current != centre:
                    gather.below[tree[current].parent].append(current)
                    current = tree[current].parent
        return gather

    def _refuse_interleaved(self, addends: list[int], uses: dict[int, int]) -> None:
        """Raise Unsupported if the values of these ranks, one after another, are no ascending contributions."""
        for before, after in itertools.pairwise(addends):  # a single addend has no pair: its repetitions commute
            if self.initial[before][-1] >= self.initial[after][0] or max(uses.values()) > 1:
                raise Unsupported(
                    f"planner relay: the contributions of ranks {before} and {after} to block {self.block} cannot be "
                    "combined in ascending order; let ranks begin with single contributions, each wanted once"
                )

    def _find_addends(self, want: Value, dest: int) -> dict[int, int]:
        """Return how often each rank's value is added at `dest`; of ranks with equal values, the nearest is used."""
        tree, contributions = self.back.tree_from(dest), Counter(want)
        nearest: dict[Value, tuple[float, int]] = {}  # by value: hops to the rank, and the rank
        unreachable: dict[Value, int] = {}
        for rank, value in sorted(self.initial.items()):
            if Counter(value) <= contributions:
                if rank in tree:
                    nearest[value] = min(nearest.get(value, (inf, 0)), (tree[rank].depth, rank))
                else:
                    unreachable.setdefault(value, rank)
        addends = sum_of(want, sorted(nearest, key=nearest.__getitem__))
        if addends is not None:
            return {nearest[value][1]: times for value, times in addends.items()}
        # it is impossible: because a rank that has an addend is out of reach, or in any case?
        with_unreachable = sum_of(want, [*nearest, *unreachable]) or {}
        missing = next((value for value in with_unreachable if value not in nearest), None)
        if missing is not None:
            raise Infeasible(
                f"no links lead from rank {unreachable[missing]} to rank {dest} of {self.reach.topology.name}, "
                "not even by way of others; no planner can do that"
            )
        raise Infeasible(
            f"rank {dest} can never have what it wants of block {self.block}: values are only ever added up, and no "
            f"sum of what ranks begin with is {_format_value(want)}; no planner can do that"
        )

    # ---- rows ----

    def _new_slot(self, rank: int) -> int:
        """Return an unused slot of a rank."""
        self.next_slot[rank] += 1
        return self.next_slot[rank] - 1

    def _passing_slot(self, rank: int) -> int:
        """Return a slot for values that only pass through: slot 0 if nothing else is ever stored there."""
        if rank in self.initial or rank in self.wanting or rank in self.passed_ranks:
            return self._new_slot(rank)
        self.passed_ranks.add(rank)
        return 0

    def _count_steps(self, source: int, dests: Iterable[int]) -> int:
        """Count the steps of a spread; a destination with another initial value replaces that in one more step."""
        tree = self.reach.tree_from(source)
        return max(tree[dest].depth + (dest in self.initial) for dest in dests)

    def _spread_down(self, source: int, dests: list[int], begin: int, end: int | None) -> None:
        """Add the rows of a spread down a tree, from step `begin` on.

        With `end`, initial values are read until that step, so those of destinations are replaced in the step before
        it. Without, nothing reads them any more: slot 0 is overwritten at once.
        """
        tree, dest_set = self.reach.tree_from(source), set(dests)
        slot = {source: 0}
        for dest in dests:
            replaces = end is not None and dest in self.initial
            slot[dest] = self._new_slot(dest) if replaces else 0
            if replaces and end is not None:
                self.out.add_row(end - 1, self.chunk, (dest, dest), COPY, (), (slot[dest], 0))
        done: set[int] = set()
        # from each destination up the tree, until the source or a rank whose row exists
        for dest in dests:
            current = dest
            while current != source and current not in done:
                done.add(current)
                hop = tree[current]
                for rank in (current, hop.parent):
                    if rank not in slot:
                        slot[rank] = self._passing_slot(rank)
                step = begin + hop.depth - 1
                self.out.add_row(
                    step, self.chunk, (hop.parent, current), COPY, hop.path, (slot[hop.parent], slot[current])
                )
                current = hop.parent
        assert dest_set <= done

    def _add_gather_rows(self, gather: _Gather, end: int) -> None:
        """Add the rows of a sum up a tree; the last values arrive in step `end` - 1.

        If the sum then replaces another value, they arrive one step earlier.
        """
        centre, tree = gather.centre, self.back.tree_from(gather.centre)
        # a rank at depth d sends d steps before the end: what the ranks below it sent arrived in the step before
        last_step = end - gather.replaces
        sums = gather.partial_sums()
        slots = {rank: [self._sum_slot(gather, rank, span) for span in sums[rank]] for rank in gather.depth}

        def slot_of(rank: int, position: int) -> int:
            """Return the slot of the rank's partial sum that contains the value in this position: the last one that
            begins at it or before. (No sum ends at len(uses), so the search passes all that begin at the position.)"""
            return slots[rank][bisect_right(sums[rank], (position, len(gather.uses))) - 1]

        for rank, times in gather.uses.items():
            # a rank that adds its value several times, or to what it receives, first copies it to a slot of its own and
            # adds it up there, one step for each time
            own_slot = (
                slot_of(rank, gather.position[rank]) if rank != centre else self._new_slot(centre) if times > 1 else 0
            )
            if own_slot:
                # the centre's slot 0 counts as one of the times
                for step in range(times - (rank == centre)):
                    self.out.add_row(step, self.chunk, (rank, rank), REDUCE if step else COPY, (), (0, own_slot))
            if rank == centre and own_slot:
                self.out.add_row(end - 1, self.chunk, (rank, rank), REDUCE, (), (own_slot, 0))
        for rank, depth in gather.depth.items():
            if rank != centre:
                hop = tree[rank]
                for span, source in zip(sums[rank], slots[rank], strict=True):
                    # if nothing is added to it at the parent, copy it; a REDUCE into an empty slot is a copy, too. The
                    # hop is one of the reversed machine, so its path is reversed.
                    op = COPY if span in sums[hop.parent] else REDUCE
                    ends, target = (rank, hop.parent), slot_of(hop.parent, span[0])
                    self.out.add_row(last_step - depth, self.chunk, ends, op, hop.path[::-1], (source, target))
        if gather.replaces:
            self.out.add_row(end - 1, self.chunk, (centre, centre), COPY, (), (slots[centre][0], 0))

    def _sum_slot(self, gather: _Gather, rank: int, partial_sum: tuple[int, int]) -> int:
        """Return the slot for a partial sum of the gather at a rank: slot 0 for its unchanged initial value, and for
        the whole sum at the centre."""
        if rank == gather.centre:
            return self._new_slot(rank) if gather.replaces else 0
        own_position = gather.position.get(rank)
        is_initial = partial_sum == (own_position, own_position) and gather.uses[rank] == 1
        return 0 if is_initial else self._new_slot(rank)


def _format_value(value: Value) -> str:
    """Return the sum as text, at most six contributions of it."""
    listed = " + ".join(map(str, value[:6]))
    return f"contribution {listed}{' + ...' if len(value) > 6 else ''}"
