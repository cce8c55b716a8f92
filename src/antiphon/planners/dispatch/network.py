"""The machine as `dispatch` sees it: arcs that data cross in one go, their resources, and when these are busy.

Nodes are the ranks and the switches that multicast. An arc leads from node to node over links and through switches that
only forward. It occupies *resources*: its links and the shared limits that they are under. By the rules of the model
`critical-path`, a message that is ready at time t takes a turn of bytes / bandwidth on every resource, as soon as the
resource is free from t on. It arrives when the last turn has ended and all latencies have passed.

Times are whole femtoseconds: sums are exact, so that equal times are equal.

Example: a link of 1 us and 1 GB/s carries two messages of 1 KB that are ready at 0: turns from 0 to 1 us and from 1 to
2 us, arrivals at 2 and 3 us.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass

from antiphon.core.messages import seconds_per_byte
from antiphon.core.routes import out_links
from antiphon.core.topology import Topology
from antiphon.planners.shared.reach import Path

SECOND = 10**15  # femtoseconds


@dataclass(frozen=True)
class Arc:
    """A path from node `tail` to node `head` through switches that only forward."""

    tail: int
    head: int
    links: Path
    resources: tuple[int, ...]  # the links, then the shared limits that they are under
    latency: int  # femtoseconds


class ArcNetwork:
    """Nodes and arcs of a machine.

    `out[u]`, `into[v]`: arcs by tail and by head. Of the paths between two nodes there is one per first link.
    `arcs`: the number of all arcs. `pace`: by resource, femtoseconds per byte.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology, self.ranks = topology, topology.ranks
        self.pace = [SECOND * seconds for seconds in seconds_per_byte(topology).tolist()]
        self.is_node = [node < topology.ranks or _just_multicasts(topology, node) for node in range(topology.nodes)]
        links_from = out_links(topology)
        self.out: list[list[Arc]] = [[] for _ in range(topology.nodes)]
        self.into: list[list[Arc]] = [[] for _ in range(topology.nodes)]
        for tail in range(topology.nodes):
            for first in links_from[tail] if self.is_node[tail] else ():
                for path in self._paths_from(tail, first, links_from):
                    arc = self._make_arc(tail, path)
                    self.out[tail].append(arc)
                    self.into[arc.head].append(arc)
        self.arcs = sum(map(len, self.out))

    def _paths_from(self, tail: int, first: int, links_from: list[list[int]]) -> list[Path]:
        """Return the shortest paths that begin with this link, to every node that they reach through other switches."""
        heads = self.topology.link_dst
        paths: list[Path] = []
        reached, queue = {tail}, deque[Path]([(first,)])
        while queue:
            path = queue.popleft()
            head = int(heads[path[-1]])
            if head in reached:
                continue
            reached.add(head)
            if self.is_node[head]:
                paths.append(path)
            else:
                queue.extend((*path, link) for link in links_from[head])
        return paths

    def _make_arc(self, tail: int, path: Path) -> Arc:
        """Return the arc over this path from `tail`."""
        topology = self.topology
        limits = dict.fromkeys(limit for link in path for limit in topology.resources.limits_of(link))
        latency = sum(topology.types[int(topology.link_type[link])].latency for link in path)
        return Arc(tail, int(topology.link_dst[path[-1]]), path, (*path, *limits), round(SECOND * latency))

    def turns(self, nbytes: float) -> list[int]:
        """Return by resource the femtoseconds for which a message of `nbytes` occupies it."""
        return [round(nbytes * pace) for pace in self.pace]


def _just_multicasts(topology: Topology, node: int) -> bool:
    """Return whether a switch multicasts without further traffic (`own`) and limits (`at_once`), see `Ability`."""
    ability = topology.ability(node)
    return ability.multicast and not ability.own and not ability.at_once


class BusyTimeline:
    """The busy intervals of every resource in femtoseconds, ascending; intervals that touch are merged."""

    def __init__(self, resources: int) -> None:
        self.begins: list[list[int]] = [[] for _ in range(resources)]
        self.ends: list[list[int]] = [[] for _ in range(resources)]

    def find_turn(self, resource: int, ready: int, length: int) -> int:
        """Return when the first free interval of this length begins, from `ready` on."""
        begins, ends = self.begins[resource], self.ends[resource]
        i = bisect_right(ends, ready)
        while i < len(begins) and begins[i] < ready + length:
            ready = max(ready, ends[i])
            i += 1
        return ready

    def book_turn(self, resource: int, begin: int, length: int) -> None:
        """Mark a free interval as busy."""
        if not length:
            return
        begins, ends = self.begins[resource], self.ends[resource]
        i, end = bisect_left(begins, begin), begin + length
        joins_previous, joins_next = i > 0 and ends[i - 1] == begin, i < len(begins) and begins[i] == end
        if joins_previous and joins_next:
            ends[i - 1] = ends.pop(i)
            del begins[i]
        elif joins_previous:
            ends[i - 1] = end
        elif joins_next:
            begins[i] = begin
        else:
            begins.insert(i, begin)
            ends.insert(i, end)
