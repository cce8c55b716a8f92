"""From a machine to a lab, as pure data: network namespaces, the cables between them, and the way to everywhere.

Every rank is a namespace with one address, which all its devices share; every switch is one with a bridge. All links
between two nodes are one cable (a veth pair); each end lets out as much as the links in its direction together.
Who is no neighbour is reached along the shortest path, over other ranks only where none leads through switches alone.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from antiphon.core.routes import Routes, resolve
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.units import Number, format_bandwidth, parse_bandwidth

MOST = 256  # namespaces
USUAL = 5_000_000  # bytes per second of the fastest link: 40 Mbit/s
LEAST, GREATEST = Fraction(12_500), Fraction(1_250_000_000)
_THROUGH_RANK = 10**6  # links that a detour over another rank counts for


@dataclass(frozen=True)
class Port:
    """One end of a cable: `device` of `node`, towards `peer`. What it lets out goes over `links`, which may be none."""

    node: int
    peer: int
    rate: Fraction | None  # bytes per second
    links: tuple[int, ...]


@dataclass(frozen=True)
class Funnel:
    """A shared limit: all that goes out of these ports of a node (or comes in by them) goes through one queue."""

    node: int
    number: int
    peers: tuple[int, ...]
    outward: bool
    rate: Fraction


@dataclass(frozen=True)
class Layout:
    """`machine` has the lab's bandwidths and no latencies. `step[d][n]`: the link that leads from node n to rank d."""

    machine: Topology
    speed: Fraction  # bytes per second of the lab for one of the machine
    nodes: tuple[int, ...]
    cables: tuple[tuple[Port, Port], ...]
    funnels: tuple[Funnel, ...]
    step: dict[int, dict[int, int]] = field(repr=False)

    @property
    def ranks(self) -> list[int]:
        return [node for node in self.nodes if node < self.machine.ranks]

    @property
    def ports(self) -> list[Port]:
        return [port for cable in self.cables for port in cable]

    def space(self, node: int) -> str:
        """The network namespace of a node; its neighbours call the device towards it the same."""
        ranks = self.machine.ranks
        return f"r{node}" if node < ranks else f"s{node - ranks}"

    def path(self, src: int, dst: int) -> list[int] | None:
        """The links from one rank to another."""
        node, found = src, []
        while node != dst:
            link = self.step[dst].get(node)
            if link is None:
                return None
            found.append(link)
            node = int(self.machine.link_dst[link])
        return found

    def connected(self) -> bool:
        return all(len(found) == len(self.nodes) - 1 for found in self.step.values())


def lay_out(topology: Topology, scale: str = "") -> Layout:
    """Scale: "2Mbit per GB/s", or "link=40Mbit" for the machine's unit link; else its fastest link gets 40 Mbit/s.

    Invalid for a scale that gives no rates or such as cannot be kept; Unsupported for a limit shared by links that have
    no end in common, and for more than 256 nodes. O(ranks * links * log).
    """
    if not topology.links:
        raise Unsupported(f"{topology.name} has no links: there is nothing to emulate")
    nodes = tuple(np.unique(np.concatenate([topology.link_src, topology.link_dst])).tolist())
    if len(nodes) > MOST:
        raise Unsupported(f"{topology.name} has {len(nodes)} ranks and switches; a lab has {MOST} at most: choose a "
                          "smaller machine, or an allocation by --only")  # fmt: skip
    speed = _speed(topology, scale)
    machine = _scaled(topology, speed)
    cables = _cables(machine)
    step = {rank: _towards(machine, rank) for rank in nodes if rank < machine.ranks}
    return Layout(machine, speed, nodes, cables, _funnels(machine), step)


def _speed(topology: Topology, scale: str) -> Fraction:
    used = [topology.types[kind].bandwidth for kind in np.unique(topology.link_type).tolist()]
    speed = USUAL / max(used)
    if scale:
        link = re.fullmatch(r"\s*link\s*=\s*(.+)", scale)
        per = re.fullmatch(r"\s*(.+?)\s+per\s+(.+?)\s*", scale)
        if link is not None:
            speed = _rate(link[1]) / topology.unit
        elif per is not None:
            one = per[2] if per[2][0].isdigit() else f"1{per[2]}"
            speed = _rate(per[1]) / parse_bandwidth(one, "--scale")
        else:
            raise Invalid(f'--scale: expected "2Mbit per GB/s" or "link=40Mbit", got {quote(scale)}')
    for which, there in (("fastest", max(used)), ("slowest", min(used))):
        if not LEAST <= there * speed <= GREATEST:
            raise Invalid(
                f"--scale: the {which} link would have {format_bandwidth(there * speed)}; a lab keeps rates from "
                f"{format_bandwidth(LEAST)} to {format_bandwidth(GREATEST)} (0.1 Mbit/s to 10 Gbit/s)"
            )
    return speed


def _rate(text: str) -> Fraction:
    short = text.strip()
    return parse_bandwidth(f"{short}/s" if re.search(r"bit$", short, re.IGNORECASE) else short, "--scale")


def _scaled(topology: Topology, speed: Fraction) -> Topology:
    """Rates in whole bits per second, as they can be set."""

    def bits(bandwidth: Number) -> Fraction:
        return Fraction(max(round(bandwidth * speed * 8), 1), 8)

    return replace(
        topology,
        types=tuple(replace(kind, bandwidth=bits(kind.bandwidth), latency=0.0) for kind in topology.types),
        limits=tuple(replace(limit, bandwidth=bits(limit.bandwidth)) for limit in topology.limits),
        unit=topology.unit * speed,
    )


def _cables(machine: Topology) -> tuple[tuple[Port, Port], ...]:
    joined: dict[tuple[int, int], list[int]] = {}
    for link, ends in enumerate(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)):
        joined.setdefault(ends, []).append(link)

    def port(node: int, peer: int) -> Port:
        links = joined.get((node, peer), [])
        return Port(node, peer, sum(map(machine.bandwidth, links), Fraction(0)) or None, tuple(links))

    pairs = sorted({(min(ends), max(ends)) for ends in joined})
    return tuple((port(a, b), port(b, a)) for a, b in pairs)


def _towards(machine: Topology, target: int) -> dict[int, int]:
    """By node the link that leads on to this rank: fewest ranks between, then fewest links, then the widest."""
    into: list[list[int]] = [[] for _ in range(machine.nodes)]
    for link, head in enumerate(machine.link_dst.tolist()):
        into[head].append(link)
    found: dict[int, int] = {}
    queue: list[tuple[int, Fraction, int, int]] = [(0, Fraction(0), -1, target)]
    left: set[int] = set()
    while queue:
        cost, width, link, node = heapq.heappop(queue)
        if node in left:
            continue
        left.add(node)
        if link >= 0:
            found[node] = link
        toll = _THROUGH_RANK if node < machine.ranks and node != target else 0
        for before in into[node]:
            tail = int(machine.link_src[before])
            if tail not in left:
                own = machine.bandwidth(before)
                least = own if node == target else min(own, -width)
                heapq.heappush(queue, (cost + 1 + toll, -least, before, tail))
    return found


# ---- shared limits ----


def _funnels(machine: Topology) -> tuple[Funnel, ...]:
    """A queue for each shared limit, at a node that all its links leave, or else one at which all arrive."""
    made: list[Funnel] = []
    taken: set[tuple[int, int, bool]] = set()
    for limit in machine.limits:
        found = _funnel(machine, limit.links, len(made), limit.bandwidth, taken)
        if found is None:
            raise Unsupported(
                f"the lab cannot emulate the limit {quote(limit.name)} of {machine.name}: its links neither all leave "
                "one node nor all arrive at one, or share their ends with another limit; take those links out, or "
                "choose a machine without it"
            )
        made.append(found)
        taken |= {(found.node, peer, found.outward) for peer in found.peers}
    return tuple(made)


def _funnel(
    machine: Topology, links: Sequence[int], number: int, rate: Fraction, taken: set[tuple[int, int, bool]]
) -> Funnel | None:
    tails = {int(machine.link_src[link]) for link in links}
    heads = {int(machine.link_dst[link]) for link in links}
    for outward, here, there in ((True, tails, heads), (False, heads, tails)):
        if len(here) != 1:
            continue
        node = next(iter(here))
        whole = _between(machine, node, there, outward)
        if whole == set(links) and not any((node, peer, outward) in taken for peer in there):
            return Funnel(node, number, tuple(sorted(there)), outward, rate)
    return None


def _between(machine: Topology, node: int, others: Iterable[int], outward: bool) -> set[int]:
    """All links of the cables between a node and others in one direction: they can only be limited together."""
    near, far = (machine.link_src, machine.link_dst) if outward else (machine.link_dst, machine.link_src)
    return set(np.flatnonzero((near == node) & np.isin(far, list(others))).tolist())


# ---- what a schedule needs ----


def check_paths(layout: Layout, src: Sequence[int], dst: Sequence[int], route: object, table: Routes) -> None:
    """Refuse a schedule that sends along other links than the lab does."""
    machine = layout.machine
    given = None if route is None else np.asarray(route, np.int32)
    found = resolve(machine, np.asarray(src, np.int32), np.asarray(dst, np.int32), given, table)
    if len(found.bad):
        raise Invalid(f"the schedule's transfer {found.why[0]}")
    width = machine.nodes
    key = (np.asarray(src, np.int64) * width + np.asarray(dst)) * (len(found.table) + 1) + found.route
    _, first = np.unique(key, return_index=True)
    for row in first.tolist():
        a, b = int(src[row]), int(dst[row])
        if a == b:
            continue
        theirs = [_ends(machine, link) for link in found.table[int(found.route[row])]]
        ours = [_ends(machine, link) for link in layout.path(a, b) or []]
        if ours != theirs:
            raise Unsupported(
                f"the plan sends from rank {a} to rank {b} by {_route(machine, theirs)}, the lab by "
                f"{_route(machine, ours)}; it has one path for each pair: plan without options that spread over several"
            )


def _ends(machine: Topology, link: int) -> tuple[int, int]:
    return int(machine.link_src[link]), int(machine.link_dst[link])


def _route(machine: Topology, ends: Sequence[tuple[int, int]]) -> str:
    between = [machine.places[head] for _, head in ends[:-1]]
    return " and ".join(between) if between else "the link between them" if ends else "no path"
