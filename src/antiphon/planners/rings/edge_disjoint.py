"""Pack edge-disjoint rings: as many directed cycles through all members as the direct links hold at once.

Input (`pack_cycles`): the capacity of every link in units, and the members. Output: cycles, each visiting every member
once (Hamiltonian), that together use no link more often than its units; and whether more are impossible
(`CyclePacking`). If links are equal in both directions, cycles come in pairs, there and back. The method depends on the
network of P ranks:

    complete networks   Walecki's zigzags (1892): (P - 1) / 2 cycles, each used in both directions
    grids and tori      sets of disjoint cycles, joined by exchanging edges of squares (factors.py)
    up to 16 ranks      list all cycles; then an integer program
    otherwise           take cycle after cycle from the remaining links, the widest first, in several random trials

Example: the DGX-1V has 8 GPUs with 6 NVLinks each; its links hold 3 cycles, used both ways: 6 rings.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from antiphon.core.portable import tie_breaks
from antiphon.core.topology import Topology
from antiphon.planners.rings.cycles import link_table, neighbours, search_cycle
from antiphon.planners.rings.factors import bipartite_sides, joined_factors

Capacity = dict[tuple[int, int], int]  # (from rank, to rank) -> units of the link


@dataclass(frozen=True)
class RingLimits:
    """Limits of the search for edge-disjoint cycles."""

    max_exact_ranks: int = 16  # up to this many ranks all cycles are listed ...
    max_cycles: int = 2000  # ... unless there are more than this, too many for the integer program to choose from
    few_cycles: int = 300  # up to this many cycles, the integer program is solved without a greedy trial first
    max_nodes: int = 2000  # branch-and-bound nodes of the integer program
    max_extensions: int = 300_000  # extensions of partial cycles while listing
    max_width: int = 64  # a link counts as at most this many units
    trials: int = 12  # random trials of the greedy method


RING_LIMITS = RingLimits()


@dataclass(frozen=True)
class CyclePacking:
    """Directed cycles (possibly repeated). `optimal`: whether more are impossible."""

    cycles: list[list[int]]
    optimal: bool


def capacities(topology: Topology, members: tuple[int, ...]) -> Capacity:
    """Return, by pair of ranks, the bandwidth of the widest link between them, in whole units of the narrowest's."""
    table = link_table(topology, members)
    if not table:
        return {}
    kinds = topology.link_type[list(table.values())].tolist()
    unit = min(topology.types[kind].bandwidth for kind in set(kinds))
    units = {kind: min(int(topology.types[kind].bandwidth / unit), RING_LIMITS.max_width) for kind in set(kinds)}
    return {pair: units[kind] for pair, kind in zip(table, kinds, strict=True)}


def pack_cycles(capacity: Capacity, members: tuple[int, ...], seed: int = 0) -> CyclePacking:
    """Return as many cycles through all members as found; cached. Bounded work, see RING_LIMITS."""
    return _pack_cached(tuple(sorted(capacity.items())), members, seed)


@lru_cache(maxsize=64)
def _pack_cached(
    capacity_items: tuple[tuple[tuple[int, int], int], ...], members: tuple[int, ...], seed: int
) -> CyclePacking:
    """Do the work of `pack_cycles`. `capacity_items`: the capacity in hashable form."""
    capacity = dict(capacity_items)
    limit = _count_limit(capacity, members)
    if not limit or len(members) < 2:
        return CyclePacking(cycles=[], optimal=True)
    if len(members) == 2:
        return CyclePacking([list(members)] * limit, optimal=True)
    cycles: list[list[int]] = []
    both_ways = all(capacity.get((b, a)) == units for (a, b), units in capacity.items())
    if both_ways:
        cycles = _pack_undirected(capacity, members, seed, limit)
        if len(cycles) == limit:
            return CyclePacking(cycles, optimal=True)
    # on few ranks, list all cycles and solve exactly
    optimal = False
    if (
        len(members) <= RING_LIMITS.max_exact_ranks
        and (all_cycles := list_cycles(capacity, members, directed=True)) is not None
    ):
        exact_cycles = choose_cycles(capacity, all_cycles, directed=True)
        optimal = exact_cycles is not None
        cycles = max(cycles, exact_cycles or [], key=len)
    if not (optimal or both_ways):  # with links equal in both directions, `_pack_undirected` has tried this
        cycles = _pack_greedily(capacity, members, seed, limit, directed=True)
    return CyclePacking(cycles, optimal or len(cycles) == limit)


def _pack_undirected(capacity: Capacity, members: tuple[int, ...], seed: int, limit: int) -> list[list[int]]:
    """Return cycles in pairs, there and back, for links that are equal in both directions.

    `limit`: an upper bound on the number of cycles, which counts both directions.
    """
    cycles = _zigzag_cycles(capacity, members)
    if cycles is None and len(members) > RING_LIMITS.max_exact_ranks:
        cycles = _by_factors(capacity, members, seed, limit)
    if cycles is None:
        is_small = len(members) <= RING_LIMITS.max_exact_ranks
        all_cycles = list_cycles(capacity, members, directed=False) if is_small else None
        # a lucky trial may spare the integer program
        if all_cycles is None or len(all_cycles) > RING_LIMITS.few_cycles:
            cycles = _pack_greedily(capacity, members, seed, limit // 2, directed=False)
        # `limit` counts both directions of a cycle; an odd one cannot be reached
        if all_cycles is not None and (cycles is None or len(cycles) < limit // 2):
            cycles = max(cycles or [], choose_cycles(capacity, all_cycles, directed=False) or [], key=len)
    return [directed_cycle for cycle in cycles or [] for directed_cycle in (cycle, [cycle[0], *cycle[:0:-1]])]


def _by_factors(capacity: Capacity, members: tuple[int, ...], seed: int, limit: int) -> list[list[int]] | None:
    """Return undirected cycles by the method of factors.py, for a network of equal links; None if it finds none."""
    units, number = min(capacity.values()), {rank: i for i, rank in enumerate(members)}
    if max(capacity.values()) != units:
        return None
    edges = [(number[a], number[b]) for a, b in sorted(capacity) if a < b]
    # every cycle is used in both directions (which `limit` counts), and once per unit of the links
    cycles = joined_factors(edges, len(members), limit // 2 // units, seed)
    return [[members[i] for i in cycle] for cycle in cycles] * units or None


def _count_limit(capacity: Capacity, members: tuple[int, ...]) -> int:
    """Return an upper bound on the number of cycles: the fewest units that leave or enter a member.

    It is 0 for a connected bipartite network whose sides differ in size.
    """
    number = {rank: i for i, rank in enumerate(members)}
    bipartition = bipartite_sides([(number[a], number[b]) for a, b in capacity], len(members))
    side, is_connected = bipartition or ([], False)
    if is_connected and 2 * sum(side) != len(members):
        # a Hamiltonian cycle alternates between the sides, so both must have equally many ranks
        return 0
    out, into = count_degrees(capacity, members)
    return min([*out.values(), *into.values()])


def count_degrees(capacity: Capacity, members: tuple[int, ...]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the units that leave every rank, and that enter it."""
    out, into = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
    for (a, b), units in capacity.items():
        out[a] += units
        into[b] += units
    return out, into


def _zigzag_cycles(capacity: Capacity, members: tuple[int, ...]) -> list[list[int]] | None:
    """Return Walecki's zigzags for a complete network of equal links: (P-1)/2 cycles, rounded down; None for any other.

    2k members are put on a circle. Zigzags over it are 0, 1, -1, 2, -2, ..., k and their rotations by 1 to k-1; the
    last member closes each zigzag to a cycle. With an even number of ranks one more member remains. It is inserted in
    the middle of every zigzag, between two opposite members; these pairs are all different.
    """
    size, units = len(members), set(capacity.values())
    if len(units) != 1 or len(capacity) != size * (size - 1):
        return None
    circle = (size - 1) // 2 * 2
    zigzag = [(i + 1) // 2 * (1 if i % 2 else -1) for i in range(circle)]
    cycles = []
    for rotation in range(circle // 2):
        around = [members[(position + rotation) % circle] for position in zigzag]
        extra = [] if size % 2 else [members[circle]]
        cycles.append([members[-1], *around[: circle // 2], *extra, *around[circle // 2 :]])
    return cycles * units.pop()


def _cycle_edges(cycle: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of consecutive ranks of a cycle."""
    return list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))


def choose_cycles(capacity: Capacity, all_cycles: list[tuple[int, ...]], *, directed: bool) -> list[list[int]] | None:
    """Return the most of these cycles that the links hold, by an integer program; None if the solver gives up.

    Unless `directed`, a cycle uses its links in both directions.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    if not all_cycles:
        return []
    number = {pair: i for i, pair in enumerate(sorted(capacity))}
    # x[c]: how often cycle c is used. One row per link: the sum of x over the cycles that use it is at most its units
    links = [
        number[pair if directed or pair[0] < pair[1] else pair[::-1]] for c in all_cycles for pair in _cycle_edges(c)
    ]
    columns = np.repeat(np.arange(len(all_cycles)), len(all_cycles[0]))
    matrix = csr_array((np.ones(len(links)), (links, columns)), shape=(len(number), len(all_cycles)))
    # each cycle takes a unit of as many links as there are ranks, so no more than `max_cycles` fit; their tie-breaks
    # sum to less than half a cycle, so more cycles are always better
    max_cycles = sum(capacity.values()) / len(all_cycles[0])
    gain = 1 + tie_breaks(len(all_cycles)) / (2 * max_cycles)
    result = milp(
        -gain, constraints=LinearConstraint(matrix, ub=[capacity[pair] for pair in number]),
        bounds=Bounds(0, np.inf), integrality=np.ones(len(all_cycles)),
        options={"mip_rel_gap": 0, "node_limit": RING_LIMITS.max_nodes},
    )  # fmt: skip
    if result.status != 0:
        return None
    times = np.rint(result.x).astype(int).tolist()
    return [list(cycle) for cycle, count in zip(all_cycles, times, strict=True) for _ in range(count)]


def list_cycles(capacity: Capacity, members: tuple[int, ...], directed: bool) -> list[tuple[int, ...]] | None:
    """Return every Hamiltonian cycle, beginning at the first member; None if there are more than `RING_LIMITS` allows.

    Unless `directed`, each in only one of its two directions.
    """
    neighbours_of: dict[int, list[int]] = {rank: [] for rank in members}
    for a, b in sorted(capacity):
        neighbours_of[a].append(b)
    start, size = members[0], len(members)
    cycles: list[tuple[int, ...]] = []
    path, used, extensions = [start], {start}, 0
    choices = [iter(neighbours_of[start])]
    max_extensions, max_cycles = RING_LIMITS.max_extensions, RING_LIMITS.max_cycles
    while choices:
        # depth-first search with an explicit stack: one iterator of next ranks per position of the path
        next_rank = next((rank for rank in choices[-1] if rank not in used), None)
        if next_rank is None:
            choices.pop()
            used.discard(path.pop())
            continue
        extensions += 1
        if extensions > max_extensions:
            return None
        path.append(next_rank)
        used.add(next_rank)
        choices.append(iter(neighbours_of[next_rank]))
        # every undirected cycle is met in both directions; keep the one whose second rank is smaller than its last
        if len(path) == size and start in neighbours_of[next_rank] and (directed or path[1] < next_rank):
            if len(cycles) == max_cycles:
                return None
            cycles.append(tuple(path))
    return cycles


def _pack_greedily(
    capacity: Capacity, members: tuple[int, ...], seed: int, target_count: int, *, directed: bool
) -> list[list[int]]:
    """Return the best of several random trials: take cycle after cycle from the remaining links, the widest first.

    `target_count`: the number of cycles at which to stop. Unless `directed`, a cycle uses its links in both directions.
    """
    best: list[list[int]] = []
    for trial in range(RING_LIMITS.trials):
        rng = random.Random(seed * RING_LIMITS.trials + trial)
        remaining_units, cycles = dict(capacity), []
        while cycle := _find_cycle(remaining_units, members, rng):
            cycles.append(cycle)
            for a, b in _cycle_edges(cycle):
                for pair in ((a, b),) if directed else ((a, b), (b, a)):
                    remaining_units[pair] -= 1
        best = max(best, cycles, key=len)
        if len(best) >= target_count:
            break
    return best


def _find_cycle(remaining_units: Capacity, members: tuple[int, ...], rng: random.Random) -> list[int]:
    """Return a cycle over links with units left, or []. Ranks with few free neighbours come first, then wide links."""
    near = neighbours((pair for pair, units in remaining_units.items() if units > 0), members)
    # the key of going from `rank` to `other`, which has `free` neighbours not visited yet: the greatest is tried first
    cycle, _ = search_cycle(
        near, members, lambda rank, other, free: (-free, remaining_units[rank, other], rng.random())
    )
    return cycle
