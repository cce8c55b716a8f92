"""A machine as NCCL's model sees it: ranks, nodes, a rank's bandwidth within its node and a node's to other nodes.

Input: a topology, whose places name the hosts. Output: a `NcclLayout` (of the whole machine, not of one node), or
Unsupported if no measurements exist for such a machine (nodes of different size, or that cannot reach each other).
*wire*: a rank's links within its node; *cards*: a node's links to others; *trunks*: links between switches outside of
nodes. A node is a host here; only `machine.nodes` counts the nodes of the graph, ranks and switches.

Example: two HGX H100 boxes joined by one InfiniBand switch: 16 ranks, 2 nodes, wire 450 GB/s, card 8 * 50 GB/s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.needs import needs_of
from antiphon.core.bounds.routing import even_routings
from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.reshape import keep
from antiphon.core.topology import HOST_PREFIXES, Topology, hosts
from antiphon.cost.nccl.calls import CallFigures
from antiphon.cost.nccl.rings import MAX_RANKS, PCIE, ring_bandwidth
from antiphon.errors import Invalid, Unsupported, quote

TRUNK = "trunk"  # kind of links between switches of a network of any kind
MAX_SOURCES = 64  # ranks of a node from which distances are computed


@dataclass(frozen=True)
class NcclLayout:
    """The figures of a machine that NCCL's model needs. Bandwidths are in bytes per second."""

    ranks: int
    nodes: int
    wire: float  # bandwidth with which any rank sends within its node
    card: float = 0.0  # bandwidth with which a node sends to others, over all its cards
    kinds: tuple[str, ...] = ()  # of links that enter or leave a node
    switched: bool = False  # ranks of a node meet in a switch
    in_switches: bool = False  # such switches multicast and reduce
    in_network: bool = False  # the network's switches multicast and reduce
    all_meet: bool = True  # any two ranks of a node have a link, or a switch
    pairs: int = 0  # ordered pairs of ranks with a direct link, in all nodes
    inner: frozenset[tuple[str, Fraction]] = frozenset()  # kind and bandwidth of links within nodes
    trunks: tuple[str, ...] = ()  # kinds of links between switches outside of nodes
    # per group of nodes below common switches: the number of nodes and the bandwidth of the links that leave the group
    cuts: tuple[tuple[int, float], ...] = ()
    # bandwidth of a rank while all ranks of a node send to all others of it, over shortest paths; 0: the same as `wire`
    to_all: float = 0.0
    hops: float = 1.0  # greatest distance within a node: in links, or 1 for rank to switch to rank
    over_pcie: bool = False  # a node's links form no ring of all ranks: rings use PCIe, at PCIE of a unit link's rate

    @property
    def local(self) -> int:
        """Return the ranks of a node."""
        return self.ranks // self.nodes

    @property
    def only_pcie(self) -> bool:
        """Return whether some ranks do not reach each other over the links, so that all data take PCIe."""
        return self.over_pcie and not self.to_all


@dataclass(frozen=True)
class Wires:
    """The links of a machine with any kind of nodes: `inner`, `kinds`, `trunks`, `switched` as in `NcclLayout`."""

    inner: frozenset[tuple[str, Fraction]]
    kinds: tuple[str, ...]
    trunks: tuple[str, ...]
    switched: bool


_layouts: WeakKeyDictionary[Topology, NcclLayout] = WeakKeyDictionary()  # cached, as every plan of a machine needs it
_wires: WeakKeyDictionary[Topology, Wires] = WeakKeyDictionary()


def layout_of(machine: Topology) -> NcclLayout:
    """Derive the layout from the links; raise Unsupported if nodes differ in size or do not reach each other.

    O(links), once per machine.
    """
    layout = _layouts.get(machine)
    if layout is None:
        layout = _layouts[machine] = _find_layout(machine)
    return layout


def wires_of(machine: Topology) -> Wires:
    """Derive the wires from the links. O(links), once per machine."""
    wires = _wires.get(machine)
    if wires is None:
        wires = _wires[machine] = _sorted_wires(machine, _node_of_all(machine, node_of_ranks(machine)))
    return wires


def count_cards(machine: Topology) -> int:
    """Return the network cards of a node, 0 for a single node.

    A card is a link to other nodes or to switches outside; links that share a limit are one card.
    """
    node_of = _node_of_all(machine, node_of_ranks(machine))
    leaving = {*np.flatnonzero((node_of[machine.link_src] == 0) & (node_of[machine.link_dst] != 0)).tolist()}
    shared = {frozenset(leaving.intersection(limit.links)) for limit in machine.limits} - {frozenset()}
    # Of limits within limits (of cards, and of the bus that these are on) only the innermost are cards.
    cards = [links for links in shared if not any(other < links for other in shared)]
    return len(cards) + len(leaving.difference(*cards))


def _find_layout(machine: Topology) -> NcclLayout:
    """Compute the layout of a machine from its links: bandwidths of a rank within its node and of a node to others."""
    of_rank = node_of_ranks(machine)
    nodes = int(of_rank.max()) + 1
    if len(set(np.bincount(of_rank).tolist())) > 1:
        raise Unsupported(f"topology {machine.name}: its nodes differ in ranks; no model of NCCL is calibrated there")
    node_of, wires = _node_of_all(machine, of_rank), wires_of(machine)
    src, dst = node_of[machine.link_src], node_of[machine.link_dst]  # per link the nodes that it joins, -1: in none
    speed = np.array([float(t.bandwidth) for t in machine.types])[machine.link_type]
    inside = (machine.link_src < machine.ranks) & (src == dst) & (src >= 0)  # links out of a rank, within its node
    wire = np.bincount(machine.link_src[inside], weights=speed[inside], minlength=machine.nodes)[: machine.ranks]
    if nodes > 1:
        _check_reach(machine, node_of, nodes)
    card = _outgoing_bandwidth(machine, (src >= 0) & (dst != src), speed, src)
    in_switches, in_network = _find_abilities(machine, node_of)
    local = machine.ranks // nodes
    min_wire = float(wire.min()) if local > 1 else 0.0  # of the rank with the fewest links
    between_ranks = inside & (machine.link_dst < machine.ranks)
    pairs = len(np.unique(machine.link_src[between_ranks] * machine.nodes + machine.link_dst[between_ranks]))
    all_meet = wires.switched or pairs == machine.ranks * (local - 1)
    # without switches direct links limit the rings; in several nodes, and for many ranks, that is not computed
    ring_limited = nodes == 1 and 1 < local <= MAX_RANKS and not machine.switches
    ring_wire = _ring_bandwidth(machine, min_wire) if ring_limited else min_wire
    over_pcie = ring_limited and not ring_wire
    return NcclLayout(
        machine.ranks, nodes, wire=PCIE * float(machine.unit) if over_pcie else ring_wire, card=card, kinds=wires.kinds,
        switched=wires.switched, in_switches=in_switches and local > 1, in_network=in_network, all_meet=all_meet,
        pairs=pairs, inner=wires.inner, trunks=wires.trunks,
        cuts=_find_cuts(machine, node_of, speed) if wires.trunks else (),
        to_all=0.0 if all_meet or not min_wire else _to_all(machine, np.flatnonzero(of_rank == 0).tolist()),
        hops=_farthest(machine, node_of) / (2 if wires.switched else 1), over_pcie=over_pcie,
    )  # fmt: skip


def _ring_bandwidth(machine: Topology, min_wire: float) -> float:
    """Return a rank's bandwidth around the rings of a node without switches.

    If all pairs have equal links: all links of the rank that has the fewest (`min_wire`); else as many rings as the
    links can hold (rings.py).
    """
    width = np.zeros((machine.ranks, machine.ranks))
    np.add.at(width, (machine.link_src, machine.link_dst), [float(machine.bandwidth(i)) for i in range(machine.links)])
    np.fill_diagonal(width, width.max())  # so that the minimum is over pairs of different ranks
    return min_wire if width.min() == width.max() else min(ring_bandwidth(machine), min_wire)


def _farthest(machine: Topology, node_of: Longs) -> float:
    """Return the greatest distance, in links, between two ranks of the first node that reach each other within it."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    inside = (node_of[machine.link_src] == 0) & (node_of[machine.link_dst] == 0)
    ends = (machine.link_src[inside], machine.link_dst[inside])
    ranks = np.flatnonzero(node_of[: machine.ranks] == 0)
    if not len(ends[0]) or len(ranks) < 2:
        return 1.0
    links = csr_array((np.ones(len(ends[0])), ends), shape=(machine.nodes, machine.nodes))
    steps = shortest_path(links, unweighted=True, indices=ranks[:MAX_SOURCES])[:, ranks]
    return float(steps[np.isfinite(steps)].max(initial=1.0))


def _to_all(machine: Topology, members: list[int]) -> float:
    """Return a rank's bandwidth in an alltoall within its node if some pairs have no link; 0 if there is no path.

    Such pairs use the fewest hops through other ranks of the node, spread evenly, as NCCL relays them (its paths NVB).
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    node = machine if len(members) == machine.ranks else keep(machine, members).topology
    links = csr_array((np.ones(node.links), (node.link_src, node.link_dst)), shape=(node.nodes, node.nodes))
    _, component = connected_components(links, connection="strong")
    if np.ptp(component[: node.ranks]):  # ranks are in several components
        return 0.0
    routings = even_routings(node, needs_of(Collective("alltoall", node.ranks)))
    if not routings or not routings[0].time:
        return 0.0
    # The first routing is over paths of the fewest links. A byte of each block takes time / scale seconds, in which a
    # rank sends a byte to each of the others.
    return (node.ranks - 1) * float(node.resources.scale) / routings[0].time


def _sorted_wires(machine: Topology, node_of: Longs) -> Wires:
    """Return the kinds of links within nodes, out of nodes and between outer switches (`node_of` is -1)."""
    src, dst = node_of[machine.link_src], node_of[machine.link_dst]
    inside = (src == dst) & (src >= 0)
    inner_types = [machine.types[int(t)] for t in np.unique(machine.link_type[inside])]
    switched = bool((inside & (machine.link_src < machine.ranks) & (machine.link_dst >= machine.ranks)).any())
    return Wires(
        frozenset((kind.kind, kind.bandwidth) for kind in inner_types), _link_kinds(machine, src != dst),
        _link_kinds(machine, (src < 0) & (dst < 0)), switched,
    )  # fmt: skip


def _link_kinds(machine: Topology, links: NDArray[np.bool_]) -> tuple[str, ...]:
    """Return the kinds of these links, sorted. `links`: per link."""
    return tuple(sorted({machine.types[int(t)].kind for t in np.unique(machine.link_type[links])}))


def node_of_ranks(machine: Topology) -> Longs:
    """Return the number of each rank's node; all are in one if places name none."""
    return np.array(hosts(machine) or [0] * machine.ranks, np.int64)


def count_nodes(machine: Topology, members: Collection[int]) -> int:
    """Return the number of nodes on which these ranks are."""
    return len(np.unique(node_of_ranks(machine)[[*members]]))


def _node_of_all(machine: Topology, of_rank: Longs) -> Longs:
    """Return the node of every rank and of switches whose place is in a node; -1: in none.

    Everything is in one node if places name none, or if they name a single host and no link lies within it.
    """
    single_node = np.zeros(machine.nodes, np.int64)
    is_single = not of_rank.any()
    if is_single and not _host(machine.places[0]):
        return single_node
    prefix = {_host(place): int(node) for place, node in zip(machine.places, of_rank, strict=False)}
    switches = [prefix.get(_host(place), -1) for place in machine.places[machine.ranks :]]
    node_of = np.array([*of_rank.tolist(), *switches], np.int64)
    within = (node_of[machine.link_src] == 0) & (node_of[machine.link_dst] == 0)
    return single_node if is_single and not within.any() else node_of


def _host(place: str) -> str:
    """Return the prefix of a place up to the host."""
    components = place.split("/")
    at = next((i for i, component in enumerate(components[:-1]) if component.startswith(HOST_PREFIXES)), None)
    return "/".join(components[: at + 1]) if at is not None else ""


def _outgoing_bandwidth(machine: Topology, leaving: NDArray[np.bool_], speed: NDArray[np.float64], src: Longs) -> float:
    """Return the minimum bandwidth from a node to others: its links, and the shared limits among them.

    Per link: `leaving`, whether it leaves a node; `speed`, in bytes per second; `src`, the node that it leaves.
    """
    # Scale links down to their shared limits, one limit after the other; what remains is the usable rate.
    rate = {link: float(speed[link]) for link in np.flatnonzero(leaving).tolist()}
    for limit in machine.limits:
        members = [link for link in limit.links if link in rate]
        total = sum(rate[link] for link in members)
        if members and total > float(limit.bandwidth):
            for link in members:
                rate[link] *= float(limit.bandwidth) / total
    per_node: dict[int, float] = {}
    for link, value in rate.items():
        node = int(src[link])
        per_node[node] = per_node.get(node, 0.0) + value
    return min(per_node.values(), default=0.0)


def _check_reach(machine: Topology, node_of: Longs, nodes: int) -> None:
    """Raise Unsupported unless every node can be reached from every other. O(links * greatest number of hops)."""
    # Each node is one vertex, each switch outside of nodes its own vertex behind them.
    group = np.where(node_of < 0, nodes + np.arange(machine.nodes), node_of)
    src, dst = group[machine.link_src], group[machine.link_dst]
    # Strong connectivity: search forwards and backwards from node 0.
    for begin, end, forth in ((src, dst, True), (dst, src, False)):
        reached = np.zeros(nodes + machine.nodes, bool)
        new = np.zeros(1, np.int64)
        while len(new):
            reached[new] = True
            new = end[reached[begin] & ~reached[end]]
        if not reached[:nodes].all():
            stuck = np.flatnonzero(reached[:nodes] == forth)  # nodes that node 0 reaches, or that do not reach it
            first = machine.places[int(np.flatnonzero(node_of == stuck[0])[0])]
            others_text = f" and {len(stuck) - 1} nodes with it" if len(stuck) > 1 else ""
            raise Unsupported(
                f"topology {machine.name}: no link leads out of {_host(first) or first}{others_text} to the others; no "
                "model of NCCL is calibrated there"
            )


def _find_cuts(machine: Topology, node_of: Longs, speed: NDArray[np.float64]) -> tuple[tuple[int, float], ...]:
    """Return per group of nodes below common switches its number of nodes and the bandwidth of its links to others.

    Nodes on the same switches form a group, then such groups, and so on. Equal ones count once. O(links * levels).
    """
    nodes = int(node_of.max()) + 1
    above = node_of < 0
    group = np.where(above, nodes + np.arange(machine.nodes), node_of)  # each outer switch is at first its own group
    size = np.zeros(machine.nodes)  # 1 for one representative rank per node
    _, representative = np.unique(node_of[: machine.ranks], return_index=True)
    size[representative] = 1
    cuts: set[tuple[int, float]] = set()
    while True:
        # Merge level by level up the tree of switches, until nothing changes.
        merged = _merge_groups(machine, group, nodes)
        if (merged == group).all():
            return tuple(sorted(cuts))
        group = merged
        src, dst = group[machine.link_src], group[machine.link_dst]
        out = np.bincount(src[src != dst], weights=speed[src != dst], minlength=nodes + machine.nodes)
        node_counts = np.bincount(group, weights=size, minlength=nodes + machine.nodes).astype(int)
        cuts |= {
            (int(node_counts[g]), float(out[g])) for g in np.unique(group[group < nodes]) if node_counts[g] < nodes
        }


def _merge_groups(machine: Topology, group: Longs, nodes: int) -> Longs:
    """Merge groups that are connected to the same switches, together with the switches connected to no other group.

    `group`: per vertex of the machine its group; groups from `nodes` on are outer switches.
    """
    src, dst = group[machine.link_src], group[machine.link_dst]
    # by group, the switches that it is connected to; groups with equal switches merge into the least of them
    switches_of: dict[int, set[int]] = {}
    for a, b in {*zip(src.tolist(), dst.tolist(), strict=True)}:
        for member, switch in ((a, b), (b, a)):
            if member < nodes <= switch:
                switches_of.setdefault(member, set()).add(switch)
    least_group: dict[frozenset[int], int] = {}  # by set of switches
    leader = {
        member: least_group.setdefault(frozenset(switches), member) for member, switches in sorted(switches_of.items())
    }
    # by switch, the merged groups connected to it; with a single one, it joins that
    owners: dict[int, set[int]] = {}
    for member, switches in switches_of.items():
        for switch in switches:
            owners.setdefault(switch, set()).add(leader[member])
    leader |= {switch: min(owner) for switch, owner in owners.items() if len(owner) == 1}
    return np.array([leader.get(member, member) for member in group.tolist()], np.int64)


def _find_abilities(machine: Topology, node_of: Longs) -> tuple[bool, bool]:
    """Return whether switches within nodes multicast and reduce, and whether those between nodes do."""
    is_between = {
        bool(node_of[machine.ranks + switch] < 0)
        for switch, ability in enumerate(machine.abilities)
        if ability.multicast and ability.reduce
    }
    return False in is_between, True in is_between


def network_of(layout: NcclLayout, gpu: str, networks: Mapping[str, CallFigures]) -> CallFigures | None:
    """Return the figures of the network that has all links of the layout between nodes, preferably with this GPU."""
    kinds, above = set(layout.kinds), set(layout.trunks) - {TRUNK}  # trunks of kind TRUNK go with any network
    if not kinds:
        return None
    candidates = [c for c in networks.values() if kinds | above <= set(c.kinds) and (not c.gpus or gpu in c.gpus)]
    return min(candidates, key=lambda calls: not calls.gpus, default=None)


def by_name(name: str, catalogue: Mapping[str, CallFigures], option: str, *, boxes: bool) -> CallFigures:
    """Look up figures by name. `boxes`: those of GPUs in a box, else of networks; `option`: for the message."""
    figures = {key: calls for key, calls in catalogue.items() if bool(calls.boxes) == boxes}
    if name not in figures:
        raise Invalid(f"{option}={quote(name)}: figures are known of {', '.join(figures)}")
    return figures[name]
