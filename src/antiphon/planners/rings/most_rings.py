"""Find as many rings as the direct links hold, and an upper bound that shows why there cannot be more.

Input (`most_rings`, called by multi_ring.py): for every pair of ranks the number of rings that its links can carry
(units), and the members. Output (`RingsFound`): directed cycles, each through all members, that together use no link
more often than its units; an upper bound on their number, and its reason in words. The least of three bounds, each easy
to recheck:

    degree    the units of links that leave, or enter, one rank
    factors   every ring leaves and enters every rank once; a maximum flow finds how often the links allow all ranks
              to be left and entered
    cut       the units of links that leave some set of ranks

If edge_disjoint.py finds fewer rings than that, the links are split at random into as many factors (sets of cycles that
visit every rank once) as the bound allows, and factor_swaps.py swaps links until each is a single cycle. So complete
networks of P ranks get P - 1 rings for all P but 4 and 6, for which only P - 2 exist (Tillson 1980), and a hypercube of
32 ranks gets 5.

Example: a hypercube of 32 ranks. 5 links leave every rank, so there are 5 rings at most, and 5 are found.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

import numpy as np

from antiphon.planners.rings.edge_disjoint import Capacity, count_degrees, pack_cycles
from antiphon.planners.rings.factor_swaps import Factor, join_by_swaps

MAX_COMPLETE_RANKS = 128  # up to this many ranks, rings of complete networks are made of rotations
MAX_JOINED_RANKS = 128  # up to this many ranks, random factors are joined to rings, within these limits:
MAX_SPLITS = 12  # random splits into factors, for each number of rings
SWAP_EFFORT = 3_000_000  # swaps examined times ranks, over all MAX_SPLITS splits
MAX_CUT_RANKS = 128  # up to this many ranks, the smallest cut is looked for


@dataclass(frozen=True)
class RingsFound:
    """Directed cycles; `at_most`: an upper bound on their number; `because`: its reason in words."""

    cycles: list[list[int]]
    at_most: int
    because: str

    @property
    def proved(self) -> bool:
        """Whether more are impossible."""
        return len(self.cycles) == self.at_most


def most_rings(capacity: Capacity, members: tuple[int, ...], seed: int = 0) -> RingsFound:
    """Return as many cycles through all members as are found within limits (edge_disjoint.py, SWAP_EFFORT).

    `capacity`: (sender, receiver) -> units. Directions count separately.
    """
    return _most_rings_cached(tuple(sorted(capacity.items())), members, seed)


@lru_cache(maxsize=64)
def _most_rings_cached(
    capacity_items: tuple[tuple[tuple[int, int], int], ...], members: tuple[int, ...], seed: int
) -> RingsFound:
    """Do the work of `most_rings`. `capacity_items`: the capacity, hashable."""
    capacity, size = dict(capacity_items), len(members)
    # the cheapest bound first; costlier ones only if the packing stays below it
    limit, because = _degree_bound(capacity, members)
    widths = set(capacity.values())
    is_complete = len(widths) == 1 and len(capacity) == size * (size - 1)
    # an odd number of ranks has zigzags (edge_disjoint.py); 4 and 6 ranks have no P - 1 rings
    if is_complete and 8 <= size <= MAX_COMPLETE_RANKS and size % 2 == 0:
        # factors of a complete network, one per distance: every rank is followed by the rank at this distance. Some of
        # them are many short cycles, which are then joined
        rotations = [[(rank + distance) % size for rank in range(size)] for distance in range(1, size)]
        # all links have equally many units: as many copies of each cycle fit. Without cycles ([]: not joined), go on
        cycles = _factors_to_cycles(join_by_swaps(rotations, seed), members) * widths.pop()
        if len(cycles) == limit:
            return RingsFound(cycles, limit, because)
    packed = pack_cycles(capacity, members, seed)
    if len(packed.cycles) < limit:
        limit, because = min((limit, because), _factors_held(capacity, members, limit), key=itemgetter(0))
        if size <= MAX_CUT_RANKS:
            limit, because = min((limit, because), _cut_bound(capacity, members), key=itemgetter(0))
    cycles = packed.cycles
    if packed.optimal and len(cycles) < limit:
        return RingsFound(
            cycles, len(cycles), "every ring was listed, and no more of them fit" if cycles else "none fits"
        )
    if size <= MAX_JOINED_RANKS and len(cycles) < limit:
        cycles = max(cycles, _join_factors(capacity, members, seed, len(cycles), limit), key=len)
    return RingsFound(cycles, limit, because)


# --- joining random factors -------------------------------------------------------------------------------------------


def _join_factors(
    capacity: Capacity, members: tuple[int, ...], seed: int, rings_so_far: int, limit: int
) -> list[list[int]]:
    """Return more than `rings_so_far` rings, up to `limit`, by joining random factors; [] if that fails."""
    rng, swaps = random.Random(seed), SWAP_EFFORT // MAX_SPLITS // len(members)
    # the greatest number first; MAX_SPLITS random splits for each
    for number in range(limit, rings_so_far, -1):
        for start in range(MAX_SPLITS):
            factors = _split_into_factors(capacity, members, number, rng)
            if factors is None:
                break
            joined = join_by_swaps(factors, seed + start, swaps)
            if joined:
                return _factors_to_cycles(joined, members)
    return []


def _split_into_factors(
    capacity: Capacity, members: tuple[int, ...], number: int, rng: random.Random
) -> list[Factor] | None:
    """Return a random split of links into `number` factors; None if the links do not hold that number.

    A maximum flow chooses links such that every rank is left and entered `number` times. Then each perfect matching of
    ranks with their successors is a factor; one exists as long as all degrees are equal (König).
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    size = len(members)
    rows, columns = list(range(size)), list(range(size))
    # a random numbering of the ranks makes the maximum flow another one each time
    rng.shuffle(rows)
    rng.shuffle(columns)
    used_units = _regular_units(capacity, members, number, rows, columns)
    if used_units is None:
        return None
    # take out one factor after the other
    factors = []
    rank_of_column = {column: rank for rank, column in enumerate(columns)}
    for _ in range(number):
        pairs = sorted(used_units)
        a, b = zip(*pairs, strict=True)
        network = csr_array((np.ones(len(pairs)), (a, b)), shape=(size, size))
        match = maximum_bipartite_matching(network, perm_type="column").tolist()  # by row, its column
        factors.append([rank_of_column[match[rows[rank]]] for rank in range(size)])
        for pair in enumerate(match):
            used_units[pair] -= 1
            if not used_units[pair]:
                del used_units[pair]
    return factors


def _regular_units(
    capacity: Capacity, members: tuple[int, ...], number: int, rows: list[int], columns: list[int]
) -> dict[tuple[int, int], int] | None:
    """Return units of links such that every rank is left and entered `number` times; None if impossible.

    The result is keyed by (rows[i], columns[j]) for the link from member i to member j: `rows` and `columns` renumber
    the members as senders and as receivers.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    size = len(members)
    index = {rank: i for i, rank in enumerate(members)}
    source, sink = 2 * size, 2 * size + 1
    # source > out-copy of each rank > in-copies of its neighbours > sink
    arcs = {(rows[index[a]], size + columns[index[b]]): units for (a, b), units in capacity.items()}
    arcs |= {(source, i): number for i in range(size)} | {(size + i, sink): number for i in range(size)}
    a, b = zip(*arcs, strict=True)
    network = csr_array((np.array(list(arcs.values()), np.int32), (a, b)), shape=(sink + 1, sink + 1), dtype=np.int32)
    flow = maximum_flow(network, source, sink)
    if flow.flow_value != number * size:
        return None
    flow_table = flow.flow.tocoo()
    entries = zip(flow_table.row.tolist(), flow_table.col.tolist(), flow_table.data.tolist(), strict=True)
    return {(i, j - size): units for i, j, units in entries if units > 0 and i < size <= j < source}


def _factors_to_cycles(factors: list[Factor], members: tuple[int, ...]) -> list[list[int]]:
    """Return each factor, which must be a single cycle, as its ranks in order."""
    cycles = []
    for factor in factors:
        cycle, successor = [0], factor[0]
        while successor:  # until the cycle is back at rank 0
            cycle.append(successor)
            successor = factor[successor]
        cycles.append([members[i] for i in cycle])
    return cycles


# --- upper bounds -----------------------------------------------------------------------------------------------------


def _degree_bound(capacity: Capacity, members: tuple[int, ...]) -> tuple[int, str]:
    """Return the bound by degree and its reason: each ring leaves and enters every rank once."""
    out, into = count_degrees(capacity, members)
    units, rank, verb = min([(out[r], r, "leave") for r in members] + [(into[r], r, "enter") for r in members])
    return units, f"only {units} units of links {verb} rank {rank}"


def _factors_held(capacity: Capacity, members: tuple[int, ...], limit: int) -> tuple[int, str]:
    """Return the bound by factors and its reason: how often links can leave and enter all ranks, up to `limit`."""
    order = list(range(len(members)))
    count = limit
    while count and _regular_units(capacity, members, count, order, order) is None:
        count -= 1
    return count, f"no choice of links leaves and enters every rank {count + 1} times"


def _cut_bound(capacity: Capacity, members: tuple[int, ...]) -> tuple[int, str]:
    """Return the bound by the smallest cut and its reason: each ring leaves every set of ranks at least once.

    One maximum flow from the first member to each other one and, if links differ by direction, one back.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    size = len(members)
    index = {rank: i for i, rank in enumerate(members)}
    if not capacity:
        return 0, "there are no links"
    a, b = zip(*((index[a], index[b]) for a, b in capacity), strict=True)
    network = csr_array((np.array(list(capacity.values()), np.int32), (a, b)), shape=(size, size), dtype=np.int32)
    is_symmetric = all(capacity.get((b, a)) == units for (a, b), units in capacity.items())
    ends = [(0, other) for other in range(1, size)]
    flows = (
        (maximum_flow(network, s, t), s) for s, t in (ends if is_symmetric else [*ends, *((t, s) for s, t in ends)])
    )
    min_cut, start = min(flows, key=lambda flow_and_start: flow_and_start[0].flow_value)  # of equal ones the first
    # the cut's side: the ranks that the source still reaches over links with capacity left
    residual = csr_array(network - min_cut.flow)
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    inside = sorted(members[i] for i in breadth_first_order(residual, start, return_predecessors=False).tolist())
    value = int(min_cut.flow_value)
    return value, f"only {value} units of links leave ranks {','.join(map(str, inside))}"
