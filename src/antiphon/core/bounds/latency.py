"""The minimum number of steps: the greatest distance from the holders of some data to a rank that needs them.

Distance counts steps: within one step a transfer crosses any number of switches and one link into a rank. So this is a
shortest path problem with weight 1 for links into ranks and 0 for links into switches. The holders of one block may be
several ranks (a *holder set*); the search starts from all sets at once.

All sets are searched together with bitsets: bit i of reach[v] is set if data of holder set i can have reached node v.
One step is two OR-reductions over the links sorted by head. The number of steps until all needs are met is the answer:
O(steps * links * sets / 64).

Example: a ring of 6 ranks, allgather. After 1 step each rank has the bits of itself and 2 neighbours, after 2 of 5
ranks, after 3 of all 6: 3 steps. The proof for one farthest pair is a path of 3 steps and a distance for every node (0
at the holders, growing by at most 1 per link), which recheck.py verifies without a search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.witness import Distance
from antiphon.core.columns import WORD_BITS, Longs, row_batches, set_bits, word_count
from antiphon.core.topology import Topology
from antiphon.errors import Invalid

_MAX_WORDS = 2**23  # 64-bit words gathered at once (64 MiB); more holder sets are searched in batches

Bits = NDArray[np.uint64]


class _LinksByHead(NamedTuple):
    """Links sorted by their heads: those into heads[i] come from tails[starts[i]:starts[i + 1]]."""

    heads: Longs
    starts: Longs
    tails: Longs

    def spread(self, reach: Bits) -> Bits:
        """Return for every head its own bits and those that arrive over these links."""
        return reach[self.heads] | np.bitwise_or.reduceat(reach[self.tails], self.starts, axis=0)


class _Arcs:
    """Links sorted by their heads, in two groups: those into ranks and those into switches."""

    def __init__(self, topology: Topology) -> None:
        key = np.unique(topology.link_dst.astype(np.int64) * topology.nodes + topology.link_src)
        self.head, self.tail = key // topology.nodes, key % topology.nodes
        self.ranks = topology.ranks
        split = int(np.searchsorted(self.head, topology.ranks))
        self.into_ranks = self._group_by_head(slice(0, split))
        self.into_switches = self._group_by_head(slice(split, None))

    def _group_by_head(self, arcs: slice) -> _LinksByHead:
        """Return some of the sorted links by head; `starts` counts from the first of them."""
        heads, starts = np.unique(self.head[arcs], return_index=True)
        return _LinksByHead(heads, starts, self.tail[arcs])

    def step_reach(self, reach: Bits) -> bool:
        """Advance by one step in place: across any number of switches, then into ranks. True if a rank got anything
        new."""
        switches, ranks = self.into_switches.heads, self.into_ranks.heads
        # Cross switches until nothing changes: they take no step.
        while switches.size:
            reached = self.into_switches.spread(reach)
            if np.array_equal(reached, reach[switches]):
                break
            reach[switches] = reached
        if not ranks.size:
            return False
        reached = self.into_ranks.spread(reach)
        changed = not np.array_equal(reached, reach[ranks])
        reach[ranks] = reached
        return changed


def latency_of(topology: Topology, needs: Needs) -> Distance | None:
    """Return the farthest need with a proof of its distance, or None if nothing must move.

    Raises Invalid if some rank cannot be reached from the holders of data that it needs.
    Cost: O(steps * links * sets / 64) by bitsets over the distinct holder sets.
    """
    if not len(needs):
        return None
    arcs = _Arcs(topology)
    by_holders = needs.rows_by_holders  # the rows of `needs`, grouped by holder set (the "owner" of its rows)
    needed_sets = np.flatnonzero(np.diff(by_holders.pointer))
    most_steps, farthest_set, farthest_rank = -1, needs.sets[0], 0
    # Batches of holder sets, a bit each in words of 64, bound the memory of the bitsets.
    batch_size = WORD_BITS * max(1, _MAX_WORDS // max(1, topology.links))
    for first in range(0, len(needed_sets), batch_size):
        set_numbers = needed_sets[first : first + batch_size]
        # by need of these sets, in the order of `of_owners`: the index of its set in the batch
        column = np.repeat(np.arange(len(set_numbers)), by_holders.counts(set_numbers))
        sets = [needs.sets[i] for i in set_numbers.tolist()]
        steps, index, rank = _farthest_need(
            arcs, topology.nodes, sets, column, needs.dst[by_holders.of_owners(set_numbers)]
        )
        if steps < 0:
            raise _unreachable_error(topology, arcs, sets[index], rank, np.unique(needs.dst))
        if steps > most_steps:
            most_steps, farthest_set, farthest_rank = steps, sets[index], rank
    return _build_proof(topology, arcs, farthest_set, farthest_rank)


def _pack_bits(nodes: int, rows: Longs, columns: Longs, width: int) -> Bits:
    """Return a bitset of `width` bits per node, with bit columns[i] of node rows[i] set."""
    words = np.zeros((nodes, word_count(width)), np.uint64)
    for bits in row_batches(len(rows)):
        set_bits(words, rows[bits], columns[bits])
    return words


def _farthest_need(
    arcs: _Arcs, nodes: int, sets: list[tuple[int, ...]], column: Longs, dst: Longs
) -> tuple[int, int, int]:
    """Return the greatest distance of a need, the index of its holder set in `sets`, and its rank.

    If some need cannot be met, return -1 and that need instead. Need i: rank dst[i] needs data of `sets[column[i]]`.
    """
    sizes = [len(s) for s in sets]
    rows = np.array([r for s in sets for r in s], np.int64)
    reach = _pack_bits(nodes, rows, np.repeat(np.arange(len(sets)), sizes), len(sets))
    need = _pack_bits(arcs.ranks, dst, column, len(sets))
    steps = 0
    while True:
        changed = arcs.step_reach(reach)
        unreached = need & ~reach[: arcs.ranks]
        done = not unreached.any()
        # Needs that this step met last, or that no step meets, are the farthest ones: the first of them is the witness.
        if done or not changed:
            rank, word = (int(x[0]) for x in np.nonzero(need if done else unreached))
            bits = int((need if done else unreached)[rank, word])
            index = WORD_BITS * word + (bits & -bits).bit_length() - 1  # the lowest bit that is set
            return (steps + 1 if done else -1), index, rank
        need, steps = unreached, steps + 1


def _unreachable_error(
    topology: Topology, arcs: _Arcs, holders: tuple[int, ...], rank: int, receivers: Longs
) -> Invalid:
    """Return the error for a rank that cannot be reached from the holders; it lists the other such `receivers`."""
    reach = _pack_bits(topology.nodes, np.array(holders), np.zeros(len(holders), np.int64), width=1)
    while arcs.step_reach(reach):
        pass
    other_ranks = [r for r in receivers[reach[receivers, 0] == 0].tolist() if r != rank]
    other_ranks_text = (
        f" (nor can rank{'s' if len(other_ranks) > 1 else ''} {_format_ranks(other_ranks)})" if other_ranks else ""
    )
    start = f"rank {holders[0]}" if len(holders) == 1 else f"ranks {_format_ranks(list(holders))}"
    return Invalid(
        f"rank {rank} cannot be reached from {start}{other_ranks_text}: no path of links leads there; "
        "add links, or leave these ranks out"
    )


def _format_ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _build_proof(topology: Topology, arcs: _Arcs, holders: tuple[int, ...], rank: int) -> Distance:
    """Return the distances from the holders to all nodes (capped at that of `rank`) and a shortest path to `rank`."""
    nodes = topology.nodes
    distance = np.full(nodes, -1, np.int64)
    entered_from = np.full(nodes, -1, np.int64)
    distance[list(holders)] = 0
    steps = 0
    into_rank = arcs.head < topology.ranks
    while distance[rank] < 0:
        # Links into switches first (distance unchanged), then one layer of links into ranks (distance + 1).
        for to_ranks in (False, True):
            while True:
                is_next = (distance[arcs.tail] >= 0) & (distance[arcs.head] < 0) & (into_rank == to_ranks)
                heads, first = np.unique(arcs.head[is_next], return_index=True)
                entered_from[heads] = arcs.tail[is_next][first]
                distance[heads] = steps + to_ranks
                if to_ranks or not heads.size:
                    break
        steps += 1
    # Nodes beyond the answer are capped: the proof needs only "at least".
    distance[distance < 0] = distance[rank]
    path = [rank]
    while entered_from[path[-1]] >= 0:
        path.append(int(entered_from[path[-1]]))
    distances = tuple(np.minimum(distance, distance[rank]).tolist())
    return Distance(holders, rank, steps=int(distance[rank]), path=tuple(path[::-1]), distances=distances)
