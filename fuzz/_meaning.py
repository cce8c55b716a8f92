"""The meaning of a schedule, written from docs/schedule.md and docs/formats.md alone, in plain dictionaries.

Nothing of the package is used but the columns of a schedule, the lists of a topology and the words of a collective:
neither its verifier nor its interpreter, its routes or its relations of the built-in kinds. `Judge(topology)` keeps the
routes that it found, because many schedules are judged on one machine.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from _joined import Joined

Value = dict[int, int]  # contribution -> how often; a cell that is not in the table is EMPTY
Cells = dict[int, dict[int, Value]]  # block -> rank -> value
Ends = tuple[Cells, Cells]  # before and after


def builtin(collective: Any) -> Ends:
    """Who has what and who wants what, by the table of docs/schedule.md."""
    members, roots, kind = list(collective.members), list(collective.roots), collective.kind
    every = {m: {m: 1} for m in members}
    whole = {m: dict.fromkeys(members, 1) for m in members}
    have: Cells = {}
    want: Cells = {}
    if kind in ("broadcast", "allgather"):
        for b, r in enumerate(roots if kind == "broadcast" else members):
            have[b], want[b] = {r: {r: 1}}, {m: {r: 1} for m in members}
    elif kind in ("reduce", "reducescatter"):
        for b, r in enumerate(roots if kind == "reduce" else members):
            have[b], want[b] = every, {r: whole[r]}
    elif kind == "allreduce":
        have[0], want[0] = every, whole
    else:
        pairs = {  # (contributes, ends with it), in the order of the blocks
            "scatter": [(root, m) for m in members for root in roots],
            "gather": [(m, root) for root in roots for m in members],
            "alltoall": [(sender, receiver) for receiver in members for sender in members],
        }[kind]
        for b, (a, z) in enumerate(pairs):
            have[b], want[b] = {a: {a: 1}}, {z: {a: 1}}
    return have, want


def custom(relation: Any) -> Ends:
    """The same of a relation in rows: an id as often as it is listed; want -1 is every id of the block once."""
    have: Cells = defaultdict(dict)
    for b, r, i in zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), relation.pre_id.tolist(), strict=True):
        cell = have[b].setdefault(r, {})
        cell[i] = cell.get(i, 0) + 1
    want: Cells = defaultdict(dict)
    for b, r, w in zip(
        relation.post_block.tolist(), relation.post_rank.tolist(), relation.post_want.tolist(), strict=True
    ):
        all_ids = {i for cell in have[b].values() for i in cell}
        want[b][r] = dict(Counter(relation.wants[w])) if w >= 0 else dict.fromkeys(all_ids, 1)
    return have, want


class Judge:
    """Judges schedules on one machine."""

    def __init__(self, topology: Any) -> None:
        self.topology, self.ranks = topology, topology.ranks
        self.ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
        self.out: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for link, (a, b) in enumerate(self.ends):
            self.out[a].append((link, b))
        self.known: dict[tuple[int, int], bool] = {}
        self.first: set[tuple[int, int, str]] = set()  # (step, chunk, kind) of what the last schedule has wrong first
        self.relations: dict[int, tuple[Any, Ends]] = {}

    # ---- routes ----

    def paths(
        self, at: int, goal: int, seen: tuple[int, ...], links: tuple[int, ...] = ()
    ) -> Iterator[tuple[int, ...]]:
        """The links of every path through switches alone, each visited once."""
        for link, node in self.out[at]:
            if node == goal:
                yield (*links, link)
            elif node >= self.ranks and node not in seen:
                yield from self.paths(node, goal, (*seen, node), (*links, link))

    def only(self, src: int, dst: int) -> tuple[int, ...]:
        """The links of a row without a route that has one."""
        if src == dst:
            return ()
        direct = [link for link, node in self.out[src] if node == dst]
        return (direct[0],) if direct else next(self.paths(src, dst, ()))

    def implied(self, src: int, dst: int) -> bool:
        """Whether a row without a route has one: the one direct link, or else the one path through switches."""
        if (src, dst) not in self.known:
            direct = sum(node == dst for _, node in self.out[src])
            if direct == 0:
                found = self.paths(src, dst, ())
                direct = sum(1 for _, _ in zip(range(2), found, strict=False))
            self.known[src, dst] = direct == 1
        return self.known[src, dst]

    def leads(self, path: tuple[int, ...], src: int, dst: int) -> bool:
        """Whether links join into a way from one rank to another, through switches alone."""
        if src == dst or not path or any(not 0 <= link < len(self.ends) for link in path):
            return False
        if self.ends[path[0]][0] != src or self.ends[path[-1]][1] != dst:
            return False
        joints = itertools.pairwise(path)
        return all(self.ends[a][1] == self.ends[b][0] >= self.ranks for a, b in joints)

    # ---- data ----

    def relation(self, collective: Any) -> Ends:
        if id(collective) not in self.relations:
            made = custom(collective.custom) if collective.custom is not None else builtin(collective)
            self.relations[id(collective)] = collective, made  # kept alive, so that its id is not another's
        return self.relations[id(collective)][1]

    def joined(self, schedule: Any, op: str | None = None, dtype: str | None = None) -> Joined:
        """The joints of a schedule whose rows have a way each."""
        count = len(schedule.step)
        route = [-1] * count if schedule.route is None else schedule.route.tolist()
        rows = zip(route, schedule.src.tolist(), schedule.dst.tolist(), strict=True)
        paths = [schedule.routes[way] if way >= 0 else self.only(src, dst) for way, src, dst in rows]
        return Joined(schedule, paths, self.topology, op, dtype)

    def judge(self, schedule: Any, op: str | None = None, dtype: str | None = None) -> str | None:
        """None: it is correct. Else the first thing that is wrong."""
        chunks = schedule.chunks
        block = chunks.block.tolist()
        have, want = self.relation(schedule.collective)
        self.first = set()
        wrong = tiling(schedule)
        if wrong:
            return wrong
        value: dict[tuple[int, int, int], Value] = {}
        for chunk, b in enumerate(block):
            for rank, start in have.get(b, {}).items():
                value[rank, chunk, 0] = start
        wrong = self.play(schedule, value) or self.joined(schedule, op, dtype).judge()
        if wrong:
            return wrong
        for chunk, b in enumerate(block):
            for rank, end in want.get(b, {}).items():
                if value.get((rank, chunk, 0)) != end:
                    return f"rank {rank} does not end with chunk {chunk}"
        return None

    def play(self, schedule: Any, value: dict[tuple[int, int, int], Value]) -> str | None:
        """Step after step, in place; what is illegal, if anything."""
        table = [schedule.routes[i] for i in range(len(schedule.routes))]
        count = len(schedule.step)
        route = [-1] * count if schedule.route is None else schedule.route.tolist()
        slots = [[0] * count if side is None else side.tolist() for side in (schedule.src_slot, schedule.dst_slot)]
        columns = (schedule.step, schedule.chunk, schedule.src, schedule.dst, schedule.op)
        by_step: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for step, *row in zip(*(c.tolist() for c in columns), route, *slots, strict=True):
            by_step[step].append(tuple(row))
        for step in sorted(by_step):
            wrong: list[tuple[int, str, str]] = []  # chunk, kind, and what is said of it
            writers: dict[tuple[int, int, int], list[tuple[int, Value]]] = defaultdict(list)
            for chunk, src, dst, op, way, from_slot, to_slot in by_step[step]:
                source, target = (src, chunk, from_slot), (dst, chunk, to_slot)
                if source == target:
                    wrong.append((chunk, "self", f"{target} into itself"))
                if way >= 0:
                    if way >= len(table) or not self.leads(table[way], src, dst):
                        wrong.append((chunk, "route", f"route {way} does not lead from {src} to {dst}"))
                elif src != dst and not self.implied(src, dst):
                    wrong.append((chunk, "route", f"no single way from {src} to {dst}"))
                if source not in value:
                    wrong.append((chunk, "empty", f"{source} is empty"))
                writers[target].append((op, value.get(source, {})))
            new: dict[tuple[int, int, int], Value] = {}
            for cell, all_of in writers.items():
                if len(all_of) == 1 and all_of[0][0] == 0:
                    new[cell] = all_of[0][1]
                    continue
                if any(op == 0 for op, _ in all_of):
                    wrong.append((cell[1], "race", f"a race for {cell}"))
                total = dict(value.get(cell, {}))
                for _, part in all_of:
                    for name, times in part.items():
                        total[name] = total.get(name, 0) + times
                new[cell] = total
            if wrong:
                first = min(chunk for chunk, _, _ in wrong)
                self.first = {(step, chunk, kind) for chunk, kind, _ in wrong if chunk == first}
                return f"step {step}: {min(wrong)[2]}"
            value.update(new)
        return None


def tiling(schedule: Any) -> str | None:
    """Whether the chunks of every block tile it exactly; a block of weight 0 may have none."""
    chunks = schedule.chunks
    parts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for b, offset, share in zip(chunks.block.tolist(), chunks.offset.tolist(), chunks.share.tolist(), strict=True):
        parts[b].append((offset, share))
    for b, weight in enumerate(schedule.collective.weights.tolist()):
        if not parts[b]:
            if weight:
                return f"block {b} has no chunk"
            continue
        at = 0
        for offset, share in sorted(parts[b]):
            if offset != at or share <= 0:
                return f"block {b} is not tiled at {at}"
            at += share
        if at != chunks.denominator:
            return f"block {b} ends at {at} of {chunks.denominator}"
    return None
