"""Paths through the machine: the links that a transfer crosses from one rank to another, by way of switches.

A transfer (a row of a schedule) names a route, or leaves it out if there is only one possibility: the one direct link,
or the one path through switches. `resolve` finds the path of every row and reports faults by row.

Example: on a machine with links 0: 0->1, 1: 1->0, 2: 0->2, 3: 2->0 (no switches), a transfer 1 -> 0 resolves to link 1;
1 -> 2 has no path, because routes may not pass through rank 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import (
    TABLE_PER_ROW,
    Floats,
    Ints,
    Longs,
    concat_ranges,
    order_of,
    pack_columns,
    run_starts,
    unique_inverse,
)
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported

MAX_PAIR_TABLE = 2**22  # entries (16 MiB): up to this, a table of all pairs of nodes always replaces searches


@dataclass(frozen=True, eq=False)
class Routes:
    """A table of link paths: route i is links[ptr[i]:ptr[i+1]]."""

    ptr: Longs
    links: Ints

    @staticmethod
    def of(paths: Iterable[Sequence[int]]) -> Routes:
        """Build the table from lists of links."""
        listed = [list(path) for path in paths]
        flat = np.array([link for path in listed for link in path], np.int32)
        return Routes(np.cumsum([0, *map(len, listed)], dtype=np.int64), flat)

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, route: int) -> tuple[int, ...]:
        return tuple(self.links[self.ptr[route] : self.ptr[route + 1]].tolist())

    def join(self, other: Routes) -> Routes:
        """Return this table followed by the other. O(links).

        >>> both = Routes.of([[4], [7, 8]]).join(Routes.of([[5, 6]]))
        >>> both.ptr.tolist(), both.links.tolist()
        ([0, 1, 3, 5], [4, 7, 8, 5, 6])
        """
        return Routes(
            np.concatenate([self.ptr, self.ptr[-1] + other.ptr[1:]]), np.concatenate([self.links, other.links])
        )

    def take(self, indices: Longs) -> Routes:
        """Return the routes with these indices, in this order. O(links).

        >>> selected = Routes.of([[4], [7, 8], [9]]).take(np.array([1, 2]))
        >>> selected.ptr.tolist(), selected.links.tolist()
        ([0, 2, 3], [7, 8, 9])
        """
        lengths = np.diff(self.ptr)[indices]
        return Routes(np.append(0, np.cumsum(lengths)), self.links[concat_ranges(self.ptr[indices], lengths)])

    def backwards(self, links: Ints | None = None) -> Routes:
        """Return every path reversed: its links in reverse order, link i replaced by links[i] if given. O(links).

        >>> Routes.of([[4], [7, 8]]).backwards().links.tolist()
        [4, 8, 7]
        """
        owner = np.repeat(np.arange(len(self)), np.diff(self.ptr))
        reversed_links = self.links[self.ptr[owner] + self.ptr[owner + 1] - 1 - np.arange(len(owner))]
        return Routes(self.ptr, reversed_links if links is None else links[reversed_links])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Routes)
            and np.array_equal(self.ptr, other.ptr)
            and np.array_equal(self.links, other.links)
        )

    def __hash__(self) -> int:
        return hash((self.ptr.tobytes(), self.links.tobytes()))


NO_ROUTES = Routes.of([])


@dataclass(frozen=True, eq=False)
class Resolved:
    """The path of every row."""

    table: Routes
    route: Ints  # per row an index into `table`; -1: the row loads no link (it stays within a rank, or is faulty)
    faulty_rows: Longs  # the rows without a valid path, ascending
    faults: tuple[str, ...]  # per faulty row, what is wrong


def route_faults(topology: Topology, table: Routes) -> dict[int, str]:
    """Return the faults of the routes themselves, by index into the table. O(links log links).

    >>> from antiphon.core.example import machine
    >>> route_faults(machine(), Routes.of([[0, 2], []]))  # links 0 to 1 and 0 to 2
    {1: 'has no links', 0: 'is broken: link 0 ends where link 2 does not begin'}
    """
    faults: dict[int, str] = {}
    lengths = np.diff(table.ptr)
    for route in np.flatnonzero(lengths == 0):
        faults[int(route)] = "has no links"
    outside = (table.links < 0) | (table.links >= topology.links)
    owner = np.repeat(np.arange(len(table)), lengths)
    for route in np.unique(owner[outside]):
        faults.setdefault(int(route), f"uses a link that the topology does not have (it has {topology.links})")
    safe = np.where(outside, 0, table.links)
    if not topology.links or not len(safe):
        return faults
    src, dst = topology.link_src[safe], topology.link_dst[safe]
    inner = owner[1:] == owner[:-1]  # between two links of one route
    for at in np.flatnonzero(inner & (dst[:-1] != src[1:])):
        faults.setdefault(int(owner[at]), f"is broken: link {safe[at]} ends where link {safe[at + 1]} does not begin")
    for at in np.flatnonzero(inner & (dst[:-1] < topology.ranks)):
        faults.setdefault(int(owner[at]), f"passes through rank {dst[at]}; routes may pass through switches only")
    # A node entered twice within one route shows up as equal neighbours after sorting.
    entered, _ = pack_columns((owner, len(table)), (dst, topology.nodes))
    entered.sort()
    for key in entered[1:][entered[1:] == entered[:-1]].tolist():
        faults.setdefault(key // topology.nodes, f"visits node {key % topology.nodes} twice")
    return faults


def resolve(topology: Topology, src: Ints, dst: Ints, route: Ints | None, table: Routes) -> Resolved:
    """Find the path of every row. A row without a route (-1) takes the one direct link, else the one path through
    switches.

    Linear in rows (a binary search per row); paths through switches are searched once per distinct pair.

    >>> from antiphon.core.example import machine
    >>> resolved = resolve(machine(), np.array([1, 0, 1]), np.array([0, 2, 2]), None, NO_ROUTES)
    >>> resolved.route, resolved.table[1], resolved.faulty_rows
    (array([ 1,  2, -1], dtype=int32), (1,), array([2]))
    """
    rows = len(src)
    fault_by_row: dict[int, str] = {}
    between_ranks = src != dst
    if route is None and between_ranks.all():
        unnamed_rows = np.arange(rows)
        route_of, indirect = _direct_links(topology, src, dst)
        route_of += np.int32(len(table))  # reset to -1 below for pairs without a direct link
    else:
        named_route = np.full(rows, -1, np.int32) if route is None else route
        _check_named_routes(topology, src, dst, named_route, table, fault_by_row)
        route_of = np.where(between_ranks, named_route, -1).astype(np.int32)
        unnamed_rows = np.flatnonzero(between_ranks & (named_route < 0))
        direct, indirect = _direct_links(topology, src[unnamed_rows], dst[unnamed_rows])
        route_of[unnamed_rows] = direct + np.int32(len(table))
    indirect = unnamed_rows[indirect]  # rows without a single direct link
    route_of[indirect] = -1
    paths: list[Sequence[int]] = []
    # No single direct link: look for the only path through switches, once per distinct pair.
    if indirect.size:
        pair = src[indirect].astype(np.int64) * topology.nodes + dst[indirect]
        keys, inverse = unique_inverse(pair, bound=topology.nodes**2)
        # per distinct pair its rows
        rows_by_pair = np.split(indirect[np.argsort(inverse, kind="stable")], np.cumsum(np.bincount(inverse))[:-1])
        for rows_of_pair, path in zip(rows_by_pair, _find_only_paths(topology, keys), strict=True):
            if isinstance(path, str):
                fault_by_row.update((int(row), path) for row in rows_of_pair)
            else:
                route_of[rows_of_pair] = len(table) + topology.links + len(paths)
                paths.append(path)
    # The result table: the named routes, then every link as a route of its own, then the paths found.
    single_links = Routes(np.arange(topology.links + 1, dtype=np.int64), np.arange(topology.links, dtype=np.int32))
    order = sorted(fault_by_row)
    return Resolved(
        table=table.join(single_links).join(Routes.of(paths)),
        route=route_of,
        faulty_rows=np.array(order, np.int64),
        faults=tuple(fault_by_row[i] for i in order),
    )


def _check_named_routes(
    topology: Topology, src: Ints, dst: Ints, route: NDArray[np.int32], table: Routes, fault_of: dict[int, str]
) -> None:
    """Add to `fault_of`, by row, the faults of the routes that rows name (-1: none). Linear in rows and the table.

    >>> from antiphon.core.example import machine
    >>> src, dst, route, bad = *np.array([[1, 1, 0], [0, 2, 2], [0, 0, -1]]), {}
    >>> _check_named_routes(machine(), src, dst, route, Routes.of([[1]]), bad)
    >>> bad
    {1: 'names route 0, which leads from node 1 to 0, not from 1 to 2'}
    """
    rows = np.flatnonzero(route >= 0)
    if not rows.size:
        return
    faults = route_faults(topology, table)
    for row in rows[route[rows] >= len(table)]:
        fault_of[int(row)] = f"names route {route[row]}, but there are only {len(table)}"
    rows = rows[route[rows] < len(table)]
    for row in rows[src[rows] == dst[rows]]:
        fault_of[int(row)] = "moves data inside one rank, yet names a route"
    if faults:
        faulty = np.isin(route[rows], np.array(list(faults)))
        for row in rows[faulty]:
            fault_of.setdefault(int(row), f"names route {route[row]}, which {faults[int(route[row])]}")
        rows = rows[~faulty]
    row_routes = route[rows]
    first, last = table.links[table.ptr[row_routes]], table.links[table.ptr[row_routes + 1] - 1]
    wrong = (topology.link_src[first] != src[rows]) | (topology.link_dst[last] != dst[rows])
    for row, a, b in zip(rows[wrong], first[wrong], last[wrong], strict=True):
        ends, row_ends = f"{topology.link_src[a]} to {topology.link_dst[b]}", f"{src[row]} to {dst[row]}"
        fault_of.setdefault(int(row), f"names route {route[row]}, which leads from node {ends}, not from {row_ends}")


def _direct_links(topology: Topology, src: Ints, dst: Ints) -> tuple[Ints, Longs]:
    """Return the only direct link of every pair, or -1, and the indices of the pairs without exactly one.

    O(pairs), or a binary search for each.

    >>> from antiphon.core.example import machine
    >>> _direct_links(machine(), np.array([1, 1, 2]), np.array([0, 2, 0]))
    (array([ 1, -1,  3], dtype=int32), array([1]))
    """
    nodes = topology.nodes
    keys = topology.link_src.astype(np.int64) * nodes + topology.link_dst
    # If a table of all pairs of nodes is small, or little larger than `src`, look up in it instead of searching.
    if nodes * nodes <= max(MAX_PAIR_TABLE, TABLE_PER_ROW * len(src)):
        table = np.full(nodes * nodes, -1, np.int32)
        table[keys] = np.arange(topology.links, dtype=np.int32)
        # Parallel links overwrite each other in the table; the overwritten ones show which pairs have several.
        several = keys[table[keys] != np.arange(topology.links)]
        table[several] = -1
        link = table[src * np.int64(nodes) + dst]
        return link, np.flatnonzero(link < 0)
    order = order_of(keys, bound=nodes * nodes)
    keys = keys[order]
    single = run_starts(keys) & np.append(run_starts(keys)[1:], True)  # keys of one link: no parallel ones
    keys, order = keys[single], order[single]
    pairs = src.astype(np.int64) * nodes + dst
    at = np.minimum(np.searchsorted(keys, pairs), max(len(keys) - 1, 0))
    has_link = keys[at] == pairs if len(keys) else np.zeros(len(pairs), bool)
    link = np.where(has_link, order[at], -1).astype(np.int32) if len(keys) else np.full(len(pairs), -1, np.int32)
    return link, np.flatnonzero(~has_link)


def _find_only_paths(topology: Topology, pairs: Longs) -> Iterator[list[int] | str]:
    """Yield for each pair (src * nodes + dst, ascending) the only simple path through switches, or the fault.

    One search per source finds a tree of paths. If every node that the search reaches is entered by one link only (not
    counting links straight back to where the search came from), the paths of the tree are the only ones. Otherwise a
    second path is searched for, pair by pair.
    """
    out = out_links(topology)
    source, entered_by, entered_again = -1, {}, set()  # type: int, dict[int, int], set[int]
    for key in pairs.tolist():
        src, dst = divmod(key, topology.nodes)
        if src != source:
            source, (entered_by, entered_again) = src, _search_switches(topology, src, out)
        path = _trace_back(topology, entered_by, src, dst)
        if path is None:
            yield f"has no link or path through switches from rank {src} to rank {dst}"
        elif not entered_again or not _has_second_path(topology, src, dst, path, out):
            yield path
        else:
            yield _ambiguity_text(topology, src, dst)


def _has_second_path(topology: Topology, src: int, dst: int, path: list[int], out: list[list[int]]) -> bool:
    """Return whether there is another simple path. It lacks some link of `path`: search without each link in turn."""
    return any(switch_path(topology, src, dst, without=link, out=out) is not None for link in path)


def _ambiguity_text(topology: Topology, src: int, dst: int) -> str:
    """Return the fault of a pair with several paths."""
    direct = np.flatnonzero((topology.link_src == src) & (topology.link_dst == dst))
    if direct.size > 1:
        listed = ", ".join(f"{i} ({topology.types[topology.link_type[i]].kind})" for i in direct[:4].tolist())
        return f"is ambiguous: parallel links {listed} join rank {src} to rank {dst}; name a route"
    return f"is ambiguous: several paths lead through switches from rank {src} to rank {dst}; name a route"


def _search_switches(topology: Topology, src: int, links_out: list[list[int]]) -> tuple[dict[int, int], set[int]]:
    """Search from src through switches, breadth first.

    Return the link by which each node is first entered, and the nodes that a second link enters, too (other than
    straight back to where the search came from).
    """
    heads, ranks = topology.link_dst, topology.ranks
    entered_by: dict[int, int] = {src: -1}
    entered_again: set[int] = set()
    queue = deque([src])
    while queue:
        node = queue.popleft()
        previous = int(topology.link_src[entered_by[node]]) if entered_by[node] >= 0 else -1
        for link in links_out[node]:
            head = int(heads[link])
            # Straight back is not a second path: a simple path never returns over the node that it came from.
            if head in (src, previous):
                continue
            if head in entered_by:
                entered_again.add(head)
                continue
            entered_by[head] = link
            if head >= ranks:
                queue.append(head)
    return entered_by, entered_again


def _trace_back(topology: Topology, entered_by: dict[int, int], src: int, dst: int) -> list[int] | None:
    """Return the path to dst in the search tree, or None."""
    if dst not in entered_by:
        return None
    path = [entered_by[dst]]
    while (node := int(topology.link_src[path[-1]])) != src:
        path.append(entered_by[node])
    return path[::-1]


def latencies(topology: Topology, table: Routes) -> Floats:
    """Return the latency of every route in seconds: the sum over its links."""
    latency_of_type = np.array([t.latency for t in topology.types], np.float64)
    owner = np.repeat(np.arange(len(table)), np.diff(table.ptr))
    link_latencies = latency_of_type[topology.link_type[table.links]]
    return np.bincount(owner, weights=link_latencies, minlength=len(table)).astype(np.float64, copy=False)


def opposite_links(topology: Topology) -> Ints:
    """Return for every link the opposite one of the same type; parallel links are matched in order. One sort.

    >>> from antiphon.core.example import machine
    >>> opposite_links(machine())
    array([1, 0, 3, 2], dtype=int32)
    """
    by_pair = np.lexsort((topology.link_type, topology.link_dst, topology.link_src))
    by_opposite_pair = np.lexsort((topology.link_type, topology.link_src, topology.link_dst))
    is_opposite = (
        np.array_equal(topology.link_src[by_pair], topology.link_dst[by_opposite_pair])
        and np.array_equal(topology.link_dst[by_pair], topology.link_src[by_opposite_pair])
        and np.array_equal(topology.link_type[by_pair], topology.link_type[by_opposite_pair])
    )
    if not is_opposite:
        raise Unsupported(
            f"topology {topology.name}: some links have no equal link back, so no plan runs backwards on it"
        )
    out: Ints = np.empty(topology.links, np.int32)
    out[by_pair] = by_opposite_pair
    return out


def out_links(topology: Topology) -> list[list[int]]:
    """Return the links out of every node, in ascending order.

    >>> from antiphon.core.example import machine
    >>> out_links(machine())
    [[0, 2], [1], [3]]
    """
    out: list[list[int]] = [[] for _ in range(topology.nodes)]
    for link, src in enumerate(topology.link_src.tolist()):
        out[src].append(link)
    return out


def switch_path(
    topology: Topology, src: int, dst: int, *, without: int = -1, out: list[list[int]] | None = None
) -> list[int] | None:
    """Return a path with the fewest links from rank src to rank dst through switches (not over link `without`), or
    None. `out`: `out_links` of the topology, if the caller has it."""
    out = out_links(topology) if out is None else out
    entered_by: dict[int, int] = {src: -1}
    queue = deque([src])
    while queue:
        node = queue.popleft()
        for link in out[node]:
            head = int(topology.link_dst[link])
            if link == without or head in entered_by or (head < topology.ranks and head != dst):
                continue
            entered_by[head] = link
            if head == dst:
                return _trace_back(topology, entered_by, src, dst)
            queue.append(head)
    return None
