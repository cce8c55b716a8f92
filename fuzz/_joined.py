"""What docs/schedule.md (Joints) asks of rows that are bound together, in plain dictionaries, and what they load.

Written from the documents alone, one joint and one switch after the other; no word of the package is used.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from fractions import Fraction
from typing import Any

Link = tuple[int, int]
Place = tuple[str, int]  # "from" a rank, "to" a rank, "by" a switch
Path = tuple[int, ...]
Row = dict[str, int]


def rows_of(schedule: Any) -> list[Row]:
    names = {"step": 0, "chunk": 0, "src": 0, "dst": 0, "op": 0, "src_slot": 0, "dst_slot": 0, "joint": -1}
    count = len(schedule.step)
    columns = []
    for name, empty in names.items():
        values = getattr(schedule, name)
        columns.append([empty] * count if values is None else values.tolist())
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def groups_of(rows: list[Row]) -> dict[int, list[int]]:
    """The joints: those of one row are none."""
    found: dict[int, list[int]] = defaultdict(list)
    for at, row in enumerate(rows):
        if row["joint"] >= 0:
            found[row["joint"]].append(at)
    return {name: some for name, some in found.items() if len(some) > 1}


class Drawn:
    """One joint on one machine: who sends to whom, and the links of the paths."""

    def __init__(self, rows: list[Row], paths: list[Path], ends: list[Link], ranks: int) -> None:
        self.rows, self.paths, self.ends, self.ranks = rows, paths, ends, ranks
        self.sources = {row["src"] for row in rows}
        self.destinations = {row["dst"] for row in rows}
        self.links = {link for path in paths for link in path}
        self.tail = {link: self.place(ends[link][0], "from") for link in self.links}
        self.head = {link: self.place(ends[link][1], "to") for link in self.links}
        self.joined: dict[Place, set[Place]] = defaultdict(set)
        for link in self.links:
            self.joined[self.tail[link]].add(self.head[link])
            self.joined[self.head[link]].add(self.tail[link])

    def place(self, node: int, side: str) -> Place:
        return (side, node) if node < self.ranks else ("by", node)

    def disagree(self) -> str | None:
        for name in ("step", "chunk", "op"):
            if len({row[name] for row in self.rows}) > 1:
                return f"several {name}s"
        pairs = [(row["src"], row["dst"]) for row in self.rows]
        wanted = {(s, d) for s in self.sources for d in self.destinations if s != d}
        if any(s == d for s, d in pairs) or len(pairs) != len(set(pairs)) or set(pairs) != wanted:
            return "not a row from every source to every destination"
        for end, slot in (("src", "src_slot"), ("dst", "dst_slot")):
            if len({(row[end], row[slot]) for row in self.rows}) != len({row[end] for row in self.rows}):
                return "several slots of one rank"
        if len(self.sources) > 1 and self.rows[0]["op"] == 0:
            return "several sources, but copies"
        return None

    def no_tree(self) -> str | None:
        ways = [(self.tail[link], self.head[link]) for link in self.links]
        if len(ways) != len(set(ways)):
            return "parallel links"
        for place, near in self.joined.items():
            if place[0] != "by" and len(near) > 1:
                return f"several links at rank {place[1]}"
        seen, todo = set(), [next(iter(self.joined))]
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo.extend(self.joined[at])
        edges = sum(len(near) for near in self.joined.values()) // 2
        return None if len(seen) == len(self.joined) and edges == len(self.joined) - 1 else "no tree"

    def way(self, start: Place, goal: Place) -> list[Place]:
        """The one way between two places of a tree."""
        trail: dict[Place, Place] = {start: start}
        todo = [start]
        while todo:
            at = todo.pop()
            for near in self.joined[at]:
                if near not in trail:
                    trail[near] = at
                    todo.append(near)
        found = [goal]
        while found[-1] != start:
            found.append(trail[found[-1]])
        return found[::-1]

    def unable(self, can: dict[int, Any], fits: dict[int, bool]) -> str | None:
        into, out = Counts(), Counts()
        for link in self.links:
            into.add(self.head[link])
            out.add(self.tail[link])
        if len(self.sources) == 1 or len(self.destinations) == 1:
            for place in self.joined:
                if place[0] == "by" and len(self.sources) > 1 and into[place] > 1 and not fits[place[1]]:
                    return f"switch {place[1]} cannot combine"
                if place[0] == "by" and len(self.sources) == 1 and out[place] > 1 and not can[place[1]].multicast:
                    return f"switch {place[1]} cannot multicast"
            return self.no_way_back(can)
        hubs = [place for place in self.joined if place[0] == "by" and can[place[1]].through]
        return None if any(self.hub(place, can, fits) for place in hubs) else "no hub"

    def hub(self, place: Place, can: dict[int, Any], fits: dict[int, bool]) -> bool:
        directed = {(self.tail[link], self.head[link]) for link in self.links}
        inward, outward = set(), set()
        for s in self.sources:
            inward |= set(itertools.pairwise(self.way(("from", s), place)))
        for d in self.destinations:
            outward |= set(itertools.pairwise(self.way(place, ("to", d))))
        if not (inward | outward) <= directed:
            return False
        for node in [p for p in self.joined if p[0] == "by"]:
            if sum(b == node for _, b in inward) > 1 and not fits[node[1]]:
                return False
            if sum(a == node for a, _ in outward) > 1 and not can[node[1]].multicast:
                return False
        return True

    def beside(self) -> tuple[int, int] | None:
        """The link from a multicast's source, or to a reduction's destination; and its switch."""
        if len(self.sources) == 1 and len(self.destinations) > 1:
            link = next(x for x in self.links if self.tail[x][0] == "from")
            return link, self.ends[link][1]
        if len(self.sources) > 1 and len(self.destinations) == 1:
            link = next(x for x in self.links if self.head[x][0] == "to")
            return link, self.ends[link][0]
        return None

    def own(self, can: dict[int, Any]) -> int | None:
        """The link that `own` asks for; -1 where there is none."""
        found = self.beside()
        if found is None or found[1] < self.ranks or not can[found[1]].own:
            return None
        a, b = self.ends[found[0]]
        forth = [x for x, ends in enumerate(self.ends) if ends == (a, b)]
        back = [x for x, ends in enumerate(self.ends) if ends == (b, a)]
        return back[forth.index(found[0]) % len(back)] if back else -1

    def no_way_back(self, can: dict[int, Any]) -> str | None:
        return "no link back for what a rank has itself" if self.own(can) == -1 else None

    def meets(self) -> list[int]:
        return [place[1] for place, near in self.joined.items() if place[0] == "by" and len(near) >= 3]


class Counts(dict[Place, int]):
    def __missing__(self, key: Place) -> int:
        return 0

    def add(self, key: Place) -> None:
        self[key] += 1


def suits(name: str, op: str | None, dtype: str | None) -> bool:
    """Whether "max", or "max of float16", is what is asked for."""
    words = name.split(" of ")
    return (op is None or words[0] == op) and (dtype is None or len(words) == 1 or words[1] == dtype)


class Joined:
    """All joints of a schedule whose rows have a way each. `paths`: the links of every row, () inside a rank."""

    def __init__(
        self, schedule: Any, paths: list[Path], topology: Any, op: str | None = None, dtype: str | None = None
    ) -> None:
        self.schedule, self.paths = schedule, paths
        self.rows = rows_of(schedule)
        self.ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
        self.ranks = topology.ranks
        every = [topology.ability(node) for node in range(topology.ranks + topology.switches)]
        self.can = dict(enumerate(every))
        op = "sum" if op == "avg" else op
        self.fits = {
            node: one.reduce
            and (dtype is None or not one.types or dtype in one.types)
            and (not one.operators or any(suits(name, op, dtype) for name in one.operators))
            for node, one in self.can.items()
        }
        self.drawn = {
            name: Drawn([self.rows[at] for at in some], [paths[at] for at in some], self.ends, self.ranks)
            for name, some in groups_of(self.rows).items()
        }

    def judge(self) -> str | None:
        for name, one in self.drawn.items():
            wrong = one.disagree() or one.no_tree() or one.unable(self.can, self.fits)
            if wrong:
                return f"joint {name}: {wrong}"
        return self.crowded()

    def pieces(self, chunk: int) -> int:
        pieces = self.schedule.pieces
        return pieces if isinstance(pieces, int) else int(pieces[chunk])

    def crowded(self) -> str | None:
        spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for one in self.drawn.values():
            begin = one.rows[0]["step"]
            for switch in one.meets():
                spans[switch].append((begin, begin + self.pieces(one.rows[0]["chunk"])))
        for switch, some in spans.items():
            most = self.can[switch].at_once
            if most and any(sum(a <= begin < b for a, b in some) > most for begin, _ in some):
                return f"more than {most} joints at switch {switch} in one step"
        return None

    def loads(self) -> dict[int, Fraction]:
        """What every link carries in all steps together, in parts of nbytes."""
        chunks, weights = self.schedule.chunks, self.schedule.collective.weights.tolist()
        whole = self.schedule.collective.buffer_weight
        share = [
            Fraction(part * weights[block], chunks.denominator * whole)
            for part, block in zip(chunks.share.tolist(), chunks.block.tolist(), strict=True)
        ]
        total: dict[int, Fraction] = defaultdict(Fraction)
        for row, path in zip(self.rows, self.paths, strict=True):
            if row["joint"] not in self.drawn:
                for link in path:
                    total[link] += share[row["chunk"]]
        for one in self.drawn.values():
            own = one.own(self.can)
            for link in one.links | ({own} if own is not None else set()):
                total[link] += share[one.rows[0]["chunk"]]
        return dict(total)
