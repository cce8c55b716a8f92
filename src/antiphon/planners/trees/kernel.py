"""One maximum flow per sink, kept while capacities change: what splitting and packing ask is "how much may go?".

Both take capacity away step by step and must know the most that leaves every sink served. That the flow of a sink
exists proves it served; taking capacity away pushes only what no longer fits onto other paths. A change that removes a
units lowers a cut's capacity by a or not at all, so if d units of some sink's flow find no other path, a - d is exactly
the most that may be removed.

Plain Python ints throughout: exact for capacities of any size. What a sink's flow leaves open is kept as one bit mask
per node, so that a search takes one operation per node and not per arc. Measured (CPU seconds, packing the forest of
128 GPUs in 16 boxes): searching arc by arc 11, with masks 0.8; arc by arc compiled with numba 0.3, beside 4 s for
compiling, 0.25 s for importing and 200 MB to install. Hence no compiled core.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

Arc = tuple[int, int]


def bits(mask: int) -> list[int]:
    """The numbers of the bits that are set, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


class SinkFlows:
    """Nodes 0..nodes-1, of which 0..sinks-1 are sinks; one arc per pair; for every sink a flow that brings it all
    of every root's supply.

    `capacity[arc]`, `flow[arc][sink]`; `open[sink][x]`: the nodes that more of the sink's flow could go to from x.
    Beside the roots there may be one growing tree: what the sink gets of it starts at `taken[node][sink]`, wherever
    the tree already is; `sources[sink]` is the mask of these nodes.
    """

    def __init__(self, nodes: int, sinks: int, arcs: Mapping[Arc, int], supply: Mapping[int, int]) -> None:
        self.nodes, self.sinks = nodes, sinks
        self.tail: list[int] = []
        self.head: list[int] = []
        self.capacity: list[int] = []
        self.flow: list[list[int]] = []
        self.at = [[-1] * nodes for _ in range(nodes)]
        self.open = [[0] * nodes for _ in range(sinks)]
        self.taken = [[0] * sinks for _ in range(nodes)]
        self.sources = [0] * sinks
        for (tail, head), capacity in sorted(arcs.items()):
            self.add(tail, head, capacity)
        self.served = all(
            self.push(sink, root, 1 << sink, amount) == 0
            for sink in range(sinks)
            for root, amount in sorted(supply.items())
            if root != sink
        )

    def add(self, tail: int, head: int, capacity: int) -> int:
        """The arc from tail to head, made where there is none; its capacity grows by `capacity`."""
        arc = self.at[tail][head]
        if arc < 0:
            arc = self.at[tail][head] = len(self.tail)
            self.tail.append(tail)
            self.head.append(head)
            self.capacity.append(0)
            self.flow.append([0] * self.sinks)
        self.widen(arc, capacity)
        return arc

    def widen(self, arc: int, more: int) -> None:
        """The arc gains capacity."""
        if more > 0:
            self.capacity[arc] += more
            tail, bit = self.tail[arc], 1 << self.head[arc]
            for masks in self.open:
                masks[tail] |= bit

    def refresh(self, sink: int, tail: int, head: int) -> None:
        """Whether more of the sink's flow could go from tail to head: along the arc, or by cancelling the arc back."""
        there, back = self.at[tail][head], self.at[head][tail]
        if (there >= 0 and self.flow[there][sink] < self.capacity[there]) or (back >= 0 and self.flow[back][sink] > 0):
            self.open[sink][tail] |= 1 << head
        else:
            self.open[sink][tail] &= ~(1 << head)

    def refresh_both(self, sink: int, arc: int) -> None:
        self.refresh(sink, self.tail[arc], self.head[arc])
        self.refresh(sink, self.head[arc], self.tail[arc])

    def push(self, sink: int, start: int, goals: int, amount: int, goal: int = -1) -> int:
        """Send more of the sink's flow from start to some goal; what finds no way.

        With `goal`, the goals are that node and the sources of the growing tree, from which it goes on to `goal`
        within the tree.
        """
        while amount:
            path = self._search(self.open[sink], start, goals)
            if path is None:
                return amount
            end = path[-1]
            most = amount
            for x, y in itertools.pairwise(path):
                most = min(most, self._room(sink, x, y))
            if goal >= 0 and end != goal:
                most = min(most, self.taken[end][sink])
                self.retake(sink, end, goal, most)
                if not self.taken[end][sink]:
                    goals &= ~(1 << end)
            for x, y in itertools.pairwise(path):
                self.send(sink, x, y, most)
            amount -= most
        return 0

    @staticmethod
    def _search(masks: Sequence[int], start: int, goals: int) -> list[int] | None:
        """The nodes of a path with the fewest arcs to some goal. O(nodes) operations on masks."""
        if goals >> start & 1:
            return [start]
        seen, level = 1 << start, [start]
        levels = [level]
        while level:
            reached = 0
            for node in level:
                reached |= masks[node]
            hit = reached & goals & ~seen
            if hit:
                path = [(hit & -hit).bit_length() - 1]
                for before in reversed(levels):
                    bit = 1 << path[-1]
                    path.append(next(node for node in before if masks[node] & bit))
                path.reverse()
                return path
            reached &= ~seen
            seen |= reached
            level = bits(reached)
            levels.append(level)
        return None

    def _room(self, sink: int, x: int, y: int) -> int:
        there, back = self.at[x][y], self.at[y][x]
        room = self.capacity[there] - self.flow[there][sink] if there >= 0 else 0
        return room + (self.flow[back][sink] if back >= 0 else 0)

    def send(self, sink: int, x: int, y: int, amount: int) -> None:
        """Along an arc with room: what flows the other way is cancelled first."""
        there, back = self.at[x][y], self.at[y][x]
        if back >= 0:
            cancelled = min(amount, self.flow[back][sink])
            self.flow[back][sink] -= cancelled
            amount -= cancelled
        if amount:
            self.flow[there][sink] += amount
        self.refresh(sink, x, y)
        self.open[sink][y] |= 1 << x

    def retake(self, sink: int, old: int, new: int, amount: int) -> None:
        """The sink gets that much of the growing tree from another of its nodes, or (-1) no longer from it."""
        left = self.taken[old][sink] = self.taken[old][sink] - amount
        if not left:
            self.sources[sink] &= ~(1 << old)
        if new >= 0 and amount:
            self.taken[new][sink] += amount
            self.sources[sink] |= 1 << new

    def untake(self, sink: int, arc: int) -> None:
        """What the sink gets from the growing tree at the arc's head goes over the arc again."""
        tail, head = self.tail[arc], self.head[arc]
        back = self.taken[head][sink]
        if back:
            self.retake(sink, head, tail, back)
            self.flow[arc][sink] += back
        self.refresh_both(sink, arc)

    def divert(self, sink: int, arc: int, goal: int = -1) -> int:
        """Take off the arc what exceeds its capacity; return what finds no other way, and put that back on it.

        `goal`: the arc's head, if the growing tree could then reach it by itself.
        """
        tail, head = self.tail[arc], self.head[arc]
        flow = self.flow[arc]
        excess = flow[sink] - self.capacity[arc]
        flow[sink] -= excess
        self.refresh_both(sink, arc)
        goals = 1 << head | (self.sources[sink] if goal >= 0 else 0)
        left = self.push(sink, tail, goals, excess, goal)
        if left:
            flow[sink] += left
            self.refresh(sink, head, tail)
        return left
