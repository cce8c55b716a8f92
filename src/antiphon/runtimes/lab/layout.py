"""The layout of a lab as pure data: network namespaces, the cables between them, and a path to every rank.

`lay_out` turns a machine and a scale into a `LabLayout`, which `commands` turns into commands of Linux. Every rank is a
namespace with one address, shared by all its devices; every switch is a namespace with a bridge. All links between two
nodes form one cable (a veth pair); each end has the total rate of the links in its direction. Other ranks are reached
along the shortest path, over ranks only if no path leads through switches alone. A limit that links share becomes a
limit queue at a node that all of them leave or enter. There is one path per pair of ranks, so plans that spread
over several routes are refused (`check_paths`).

Example: 2 ranks at a switch by links of 50 GB/s, at "2Mbit per GB/s": namespaces r0, r1 and s0, two cables, 100 Mbit/s
each way, and the path r0 - s0 - r1.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from antiphon.core.routes import Routes, resolve
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.units import Number, format_bandwidth, parse_bandwidth

Pair = tuple[int, int]  # two nodes, the lower one first
MAX_NAMESPACES = 256  # of the ranks and switches of a lab
DEFAULT_RATE = 5_000_000  # bytes per second of the fastest link: 40 Mbit/s
MIN_RATE, MAX_RATE = Fraction(12_500), Fraction(1_250_000_000)  # bytes per second that a lab can emulate
_THROUGH_RANK = 10**6  # cost, in links, of forwarding by another rank: more than any path has links


@dataclass(frozen=True)
class CableEnd:
    """One end of a cable."""

    node: int  # at this end
    peer: int  # the node at the far end
    rate: Fraction | None  # bytes per second towards the peer; None if there are no links in this direction
    links: tuple[int, ...]  # the machine's links in this direction


@dataclass(frozen=True)
class LimitQueue:
    """A shared limit: everything sent (`outward`) or received by these ports of a node goes through one queue."""

    node: int
    number: int  # index among the limit queues of the lab
    peers: tuple[int, ...]  # the nodes at the far ends of these ports
    outward: bool
    rate: Fraction  # bytes per second


@dataclass(frozen=True)
class LabLayout:
    """The network of a lab."""

    machine: Topology  # with the lab's bandwidths and without latencies
    speed: Fraction  # rate in the lab / rate of the machine
    nodes: tuple[int, ...]
    cables: tuple[tuple[CableEnd, CableEnd], ...]
    limit_queues: tuple[LimitQueue, ...]
    next_link: dict[int, dict[int, int]] = field(repr=False)  # [d][n]: the first link on the path from node n to rank d

    @property
    def ranks(self) -> list[int]:
        return [node for node in self.nodes if node < self.machine.ranks]

    @property
    def ports(self) -> list[CableEnd]:
        return [port for cable in self.cables for port in cable]

    def space(self, node: int) -> str:
        """Return the network namespace of a node, which is also the name of its neighbours' devices towards it."""
        ranks = self.machine.ranks
        return f"r{node}" if node < ranks else f"s{node - ranks}"

    def path(self, src: int, dst: int) -> list[int] | None:
        """Return the links from one rank to another; None without a path."""
        node, links = src, []
        while node != dst:
            link = self.next_link[dst].get(node)
            if link is None:
                return None
            links.append(link)
            node = int(self.machine.link_dst[link])
        return links

    def without(self, dead: Sequence[Pair]) -> LabLayout:
        """Return the layout with paths that avoid the cables between these nodes."""
        machine = self.machine
        ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)
        links = {link for link, (a, b) in enumerate(ends) if (min(a, b), max(a, b)) in dead}
        return replace(self, next_link={rank: _links_towards(machine, rank, links) for rank in self.ranks})

    def connected(self) -> bool:
        """Return whether every node has a path to every rank."""
        # a rank has no link towards itself
        return all(len(links_of) == len(self.nodes) - 1 for links_of in self.next_link.values())


def lay_out(topology: Topology, scale: str = "") -> LabLayout:
    """Lay out a lab. Scale: "2Mbit per GB/s", or "link=40Mbit" for the machine's unit link; default: 40 Mbit/s for the
    fastest link.

    Raises Invalid for a scale with rates that cannot be emulated; Unsupported for a limit shared by links without a
    common end, and for more than 256 nodes. Takes O(ranks * links * log(links)) time.
    """
    if not topology.links:
        raise Unsupported(f"{topology.name} has no links: there is nothing to emulate")
    nodes = tuple(np.unique(np.concatenate([topology.link_src, topology.link_dst])).tolist())
    if len(nodes) > MAX_NAMESPACES:
        raise Unsupported(f"{topology.name} has {len(nodes)} ranks and switches; a lab has {MAX_NAMESPACES} "
                          "at most: choose a smaller machine, or an allocation by TOPO:only=RANKS")  # fmt: skip
    speed = _parse_scale(topology, scale)
    machine = _scale_machine(topology, speed)
    cables = _make_cables(machine)
    next_link = {rank: _links_towards(machine, rank) for rank in nodes if rank < machine.ranks}
    return LabLayout(machine, speed, nodes, cables, _make_limit_queues(machine), next_link)


def _parse_scale(topology: Topology, scale: str) -> Fraction:
    """Return the rate in the lab over the rate of the machine. Invalid if a rate cannot be emulated."""
    # Only kinds of links that occur limit the scale.
    bandwidths = [topology.types[kind].bandwidth for kind in np.unique(topology.link_type).tolist()]
    speed = DEFAULT_RATE / max(bandwidths)
    if scale:
        link = re.fullmatch(r"\s*link\s*=\s*(.+)", scale)
        per = re.fullmatch(r"\s*(.+?)\s+per\s+(.+?)\s*", scale)
        if link is not None:
            speed = _parse_rate(link[1]) / topology.unit
        elif per is not None:
            amount = per[2] if per[2][0].isdigit() else f"1{per[2]}"  # "per GB/s" is per 1GB/s
            speed = _parse_rate(per[1]) / parse_bandwidth(amount, "--scale")
        else:
            raise Invalid(f'--scale: expected "2Mbit per GB/s" or "link=40Mbit", got {quote(scale)}')
    for extreme, bandwidth in (("fastest", max(bandwidths)), ("slowest", min(bandwidths))):
        if not MIN_RATE <= bandwidth * speed <= MAX_RATE:
            raise Invalid(
                f"--scale: the {extreme} link would have {format_bandwidth(bandwidth * speed)}; a lab keeps rates from "
                f"{format_bandwidth(MIN_RATE)} to {format_bandwidth(MAX_RATE)} (0.1 Mbit/s to 10 Gbit/s)"
            )
    return speed


def _parse_rate(text: str) -> Fraction:
    """Return bytes per second of a rate such as "40Mbit", which needs no "/s"."""
    rate = text.strip()
    return parse_bandwidth(f"{rate}/s" if re.search(r"bit$", rate, re.IGNORECASE) else rate, "--scale")


def _scale_machine(topology: Topology, speed: Fraction) -> Topology:
    """Return the machine at the lab's rates, rounded to bits per second."""

    def scale_rate(bandwidth: Number) -> Fraction:
        return Fraction(max(round(bandwidth * speed * 8), 1), 8)

    return replace(
        topology,
        types=tuple(replace(kind, bandwidth=scale_rate(kind.bandwidth), latency=0.0) for kind in topology.types),
        limits=tuple(replace(limit, bandwidth=scale_rate(limit.bandwidth)) for limit in topology.limits),
        unit=topology.unit * speed,
    )


def _make_cables(machine: Topology) -> tuple[tuple[CableEnd, CableEnd], ...]:
    """Return a cable per pair of nodes with links, with the links of each direction at the end that sends."""
    joined: dict[tuple[int, int], list[int]] = {}
    for link, ends in enumerate(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)):
        joined.setdefault(ends, []).append(link)

    def port(node: int, peer: int) -> CableEnd:
        links = joined.get((node, peer), [])
        return CableEnd(node, peer, sum(map(machine.bandwidth, links), Fraction(0)) or None, tuple(links))

    # A cable is undirected, with a port per end; a direction without links has rate None.
    pairs = sorted({(min(ends), max(ends)) for ends in joined})
    return tuple((port(a, b), port(b, a)) for a, b in pairs)


def _links_towards(machine: Topology, target: int, dead: Collection[int] = ()) -> dict[int, int]:
    """Return by node the first link of its path to rank `target`: fewest ranks between, then fewest links, then widest.

    `dead`: links that no path takes.
    """
    into: list[list[int]] = [[] for _ in range(machine.nodes)]
    for link, head in enumerate(machine.link_dst.tolist()):
        into[head].append(link)
    # Dijkstra from the target against the direction of the links; keys are (links + tolls of ranks between, -width)
    next_link: dict[int, int] = {}
    # entries: cost, -width of the path so far, first link of the path (-1: none), node
    queue: list[tuple[int, Fraction, int, int]] = [(0, Fraction(0), -1, target)]
    settled: set[int] = set()
    while queue:
        cost, negative_width, link, node = heapq.heappop(queue)
        if node in settled:
            continue
        settled.add(node)
        if link >= 0:
            next_link[node] = link
        # a rank on the path costs more than any number of switches
        toll = _THROUGH_RANK if node < machine.ranks and node != target else 0
        for before in into[node]:
            tail = int(machine.link_src[before])
            if tail not in settled and before not in dead:
                link_width = machine.bandwidth(before)
                # the width of a path is that of its narrowest link; wider ones come first among equals
                bottleneck = link_width if node == target else min(link_width, -negative_width)
                heapq.heappush(queue, (cost + 1 + toll, -bottleneck, before, tail))
    return next_link


# ---- shared limits ----


def _make_limit_queues(machine: Topology) -> tuple[LimitQueue, ...]:
    """Return a queue for each shared limit, at a node that all its links leave, or else one at which all arrive."""
    limit_queues: list[LimitQueue] = []
    # an end of a cable can pass through one queue only: (node, peer, outward) of the ports that have one
    used_ports: set[tuple[int, int, bool]] = set()
    for limit in machine.limits:
        limit_queue = _make_limit_queue(machine, limit.links, len(limit_queues), limit.bandwidth, used_ports)
        if limit_queue is None:
            raise Unsupported(
                f"the lab cannot emulate the limit {quote(limit.name)} of {machine.name}: its links neither all leave "
                "one node nor all arrive at one, or share their ends with another limit; take those links out, or "
                "choose a machine without it"
            )
        limit_queues.append(limit_queue)
        used_ports |= {(limit_queue.node, peer, limit_queue.outward) for peer in limit_queue.peers}
    return tuple(limit_queues)


def _make_limit_queue(
    machine: Topology, links: Sequence[int], number: int, rate: Fraction, used_ports: set[tuple[int, int, bool]]
) -> LimitQueue | None:
    """Return the queue that limits exactly these links together; None if there is no such queue."""
    tails = {int(machine.link_src[link]) for link in links}
    heads = {int(machine.link_dst[link]) for link in links}
    # the limit is emulated where all its links leave, or else where all arrive
    for outward, near_nodes, far_nodes in ((True, tails, heads), (False, heads, tails)):
        if len(near_nodes) != 1:
            continue
        node = next(iter(near_nodes))
        cable_links = _links_between(machine, node, far_nodes, outward)
        if cable_links == set(links) and not any((node, peer, outward) in used_ports for peer in far_nodes):
            return LimitQueue(node, number, tuple(sorted(far_nodes)), outward, rate)
    return None


def _links_between(machine: Topology, node: int, peers: Iterable[int], outward: bool) -> set[int]:
    """Return all links of the cables between a node and peers in one direction: a queue limits all of them together."""
    near, far = (machine.link_src, machine.link_dst) if outward else (machine.link_dst, machine.link_src)
    return set(np.flatnonzero((near == node) & np.isin(far, list(peers))).tolist())


# ---- what a schedule needs ----


def check_paths(layout: LabLayout, src: Sequence[int], dst: Sequence[int], route: object, table: Routes) -> None:
    """Raise Unsupported if a schedule sends along other links than the lab does.

    `src`, `dst`, `route`: columns of its transfers; `route` indexes `table`, None: default routes.
    """
    machine = layout.machine
    route_column = None if route is None else np.asarray(route, np.int32)
    resolved = resolve(machine, np.asarray(src, np.int32), np.asarray(dst, np.int32), route_column, table)
    if len(resolved.faulty_rows):
        raise Invalid(f"the schedule's transfer {resolved.faults[0]}")
    # check each distinct (src, dst, route) once
    key = (np.asarray(src, np.int64) * machine.nodes + np.asarray(dst)) * (len(resolved.table) + 1) + resolved.route
    _, first = np.unique(key, return_index=True)
    for row in first.tolist():
        a, b = int(src[row]), int(dst[row])
        if a == b:
            continue
        plan_path = [_link_ends(machine, link) for link in resolved.table[int(resolved.route[row])]]
        lab_path = [_link_ends(machine, link) for link in layout.path(a, b) or []]
        if plan_path != lab_path:
            raise Unsupported(
                f"the plan sends from rank {a} to rank {b} by {_path_text(machine, plan_path)}, the lab by "
                f"{_path_text(machine, lab_path)}; it has one path for each pair: plan without options that spread "
                "over several"
            )


def _link_ends(machine: Topology, link: int) -> tuple[int, int]:
    return int(machine.link_src[link]), int(machine.link_dst[link])


def _path_text(machine: Topology, ends: Sequence[tuple[int, int]]) -> str:
    between = [machine.places[head] for _, head in ends[:-1]]
    return " and ".join(between) if between else "the link between them" if ends else "no path"
