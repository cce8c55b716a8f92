"""Machines derived from machines: keep some ranks, degrade links, join boxes, reverse, relabel.

All functions are pure: they take a `Topology` and return a new one.

    keep      an allocation: some ranks, renumbered, with the switches that may lie between them
    only      the same allocation in the numbering of the whole machine: other nodes lose their links
    degrade   some links removed, slowed down or capped
    join      several boxes, with new switches, links and network cards between them
    reverse   every link reversed
    relabel   nodes renumbered
    contract  every host as one rank

Example: `keep(dgx1, [0, 1, 4])` is a machine of 3 ranks named "dgx1 only 0,1,4"; its link j is link `.links[j]` of
dgx1. `keep` and `degrade` append to the name what they did. The unit link stays that of the original, so that rounds
and rates before and after can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from antiphon.core.columns import Bools, Ints, Longs, reached_nodes
from antiphon.core.topology import FORWARD_ONLY, Ability, LinkType, NetworkCard, SharedLimit, Topology, build
from antiphon.errors import Invalid, quote, unknown
from antiphon.units import exact, parse_bandwidth, ranks_text

End = tuple[int, int] | str  # (box, node of that box), or the name of a switch that `join` adds
Bandwidth = int | Fraction | float | str  # bytes per second, or a text such as "25GB/s"
MAX_NAME = 100  # characters of the name of a derived machine


@dataclass(frozen=True)
class Restriction:
    """An allocation with its numbering: its node i is node nodes[i] of the original, its link j is link links[j]."""

    topology: Topology
    nodes: tuple[int, ...]
    links: tuple[int, ...]

    def number(self, node: int) -> int:
        """Return the number in the allocation of a node of the original."""
        if node not in self.nodes:
            raise Invalid(
                f"node {quote(node)} is not part of {self.topology.name} "
                f"(it has {ranks_text(self.nodes[: self.topology.ranks], longest=16)} of the original)"
            )
        return self.nodes.index(node)


def keep(topology: Topology, ranks: Iterable[int], *, name: str | None = None) -> Restriction:
    """Return an allocation: only these ranks remain, renumbered from 0 in ascending order; places stay as they were.

    Switches stay if they may lie on a path between two of the ranks. A switch that no rank reaches, that reaches no
    rank, or that has only one neighbour is dropped, repeatedly. Limits shrink to the links that remain. Linear in
    links, times the depth of the hierarchy of switches.
    """
    chosen_ranks, alive = _parse_allocation(topology, ranks, "keep")
    new_number = np.cumsum(alive) - 1
    nodes = np.flatnonzero(alive)
    kept_links = alive[topology.link_src] & alive[topology.link_dst]
    link_columns = _keep_links(topology, kept_links)
    for end in ("link_src", "link_dst"):
        link_columns[end] = new_number[link_columns[end]]
    allocation = Topology(
        name=_only_name(topology, chosen_ranks) if name is None else name,
        ranks=len(chosen_ranks),
        switches=len(nodes) - len(chosen_ranks),
        places=tuple(topology.places[i] for i in nodes),
        unit=topology.unit,
        abilities=tuple(topology.ability(i) for i in nodes[len(chosen_ranks) :].tolist()),
        cards=_renumber_cards(topology, {old: new for new, old in enumerate(nodes.tolist())}),
        **link_columns,
    )
    return Restriction(allocation, tuple(nodes.tolist()), tuple(np.flatnonzero(kept_links).tolist()))


def nodes_between(topology: Topology, ranks: Bools) -> Bools:
    """Return which nodes are among these ranks, or are switches that may lie on a path between two of them."""
    alive = np.ones(topology.nodes, bool)
    alive[: topology.ranks] = ranks
    _drop_dead_switches(topology, alive)
    return alive


def only(topology: Topology, ranks: Iterable[int], *, name: str | None = None) -> Topology:
    """Return an allocation in the numbering of the original: all nodes stay, but those that `keep` drops lose their
    links.

    A collective on it names the remaining ranks as its members: the others can neither send nor relay.
    """
    chosen_ranks, alive = _parse_allocation(topology, ranks, "only")
    allocation = _with_links(topology, alive[topology.link_src] & alive[topology.link_dst])
    return replace(allocation, name=_only_name(topology, chosen_ranks) if name is None else name)


def linked_ranks(topology: Topology) -> list[int]:
    """Return the ranks that have a link, ascending: the others have failed, or are not part of an allocation."""
    linked = np.zeros(topology.nodes, bool)
    linked[topology.link_src] = linked[topology.link_dst] = True
    return np.flatnonzero(linked[: topology.ranks]).tolist()


def degrade(
    topology: Topology,
    *,
    pairs: Iterable[tuple[int, int]] | None = None,
    kind: str | None = None,
    links: Iterable[int] | None = None,
    remove: bool = False,
    slower: int | Fraction | float | str | None = None,
    to: Bandwidth | None = None,
    name: str | None = None,
) -> Topology:
    """Return the machine with some links removed, slowed by a factor (slower=2: half as fast), or capped at a bandwidth
    (to).

    The links are those between these pairs of nodes (both directions), of this kind, with these numbers; if several
    selections are given, those that all of them name. Links that remain keep their order. O(links).
    """
    if [remove, slower is not None, to is not None].count(True) != 1:
        raise Invalid("degrade: give exactly one of remove, slower, to")
    chosen = _select_links(topology, pairs, kind, links)
    name = _clip_name(f"{topology.name} degraded" if name is None else name)
    if remove:
        return replace(_with_links(topology, ~chosen), name=name)
    # Exact fractions: the bound of a degraded machine stays exact.
    factor = Fraction(1) if slower is None else exact(slower, "degrade: slower")
    if slower is not None and factor <= 1:
        raise Invalid(f"degrade: slower must be greater than 1 (2 = half as fast), got {quote(slower)}")
    cap = None if to is None else parse_bandwidth(to, "degrade: to")
    capped = [t.bandwidth if cap is None else min(t.bandwidth, cap) for t in topology.types]
    slowed = [replace(t, bandwidth=capped[i] / factor) for i, t in enumerate(topology.types)]
    # only a cap can leave every type as it is: a factor above 1 slows each
    if all(slowed[i] == topology.types[i] for i in np.unique(topology.link_type[chosen])):
        raise Invalid(f"degrade: every link selected is at most as fast as {quote(to)} already")
    # Each type gets a slowed twin, `len(types)` further on; unused types are dropped at the end.
    type_of_link = np.where(chosen, topology.link_type + len(topology.types), topology.link_type)
    with_slow_types = replace(topology, name=name, types=(*topology.types, *slowed), link_type=type_of_link)
    return _with_links(with_slow_types, np.ones(topology.links, bool))


@dataclass(frozen=True)
class Card:
    """A network card that `join` connects: it bounds what these ends together send over the new links, and separately
    what they receive over them; with `duplex` false, the sum of both."""

    name: str
    ends: tuple[End, ...]
    bandwidth: Bandwidth
    duplex: bool = True


def join(
    boxes: Sequence[Topology],
    *,
    name: str = "joined",
    names: Sequence[str] | None = None,
    switches: Sequence[str] = (),
    cables: Iterable[tuple[End, End, LinkType]] = (),
    links: Iterable[tuple[End, End, LinkType]] = (),
    cards: Iterable[Card] = (),
    unit: Fraction | int = 0,
    ability: Ability = FORWARD_ONLY,
) -> Topology:
    """Place boxes side by side and add switches and links between them.

    A cable is a link in each direction, a link is one direction; both join (box, node) pairs and names of new switches
    in any mixture, so also ranks of two boxes directly:

        join([dgx, dgx], switches=["ib"], cables=[((b, g), "ib", ib) for b in (0, 1) for g in range(8)],
             cards=[Card(f"nic{b}", tuple((b, g) for g in range(8)), "12.5GB/s") for b in (0, 1)])

    Ranks are numbered box by box, then the switches box by box, then the new ones; links box by box, then cables
    (there, back), then links. Places and limits of a box get its name ("box0") as a prefix. The unit is that of the
    slowest link if `unit` is 0. `ability`: what the new switches can do besides forwarding. Linear in the size of the
    result.
    """
    boxes = tuple(boxes)
    box_names = tuple(f"box{i}" for i in range(len(boxes))) if names is None else tuple(names)
    if not boxes or len(box_names) != len(boxes):
        raise Invalid(f"join: expected a name for each of {len(boxes)} boxes (at least 1), got {len(box_names)}")
    if len({*box_names, *switches}) != len(box_names) + len(switches):
        raise Invalid("join: two boxes or switches have the same name")
    numbers = _Numbers(boxes, tuple(switches))
    # New links follow all links of the boxes; a card's limit therefore counts from there.
    new_links = [link for a, b, link_type in cables for link in ((a, b, link_type), (b, a, link_type))] + list(links)
    ends = [(numbers.of(a), numbers.of(b), link_type) for a, b, link_type in new_links]
    first_new_link = sum(box.links for box in boxes)
    limits = [*_box_limits(boxes, box_names)]
    links_of: dict[int, list[int]] = {}  # by node, its new links
    for i, (a, b, _) in enumerate(ends):
        links_of.setdefault(a, []).append(i)
        links_of.setdefault(b, []).append(i)
    for card in cards:
        card_nodes = {numbers.of(end) for end in card.ends}
        card_links = sorted({i for node in card_nodes for i in links_of.get(node, ())})
        limits += _card_limits(card, card_nodes, [(first_new_link + i, ends[i][0], ends[i][1]) for i in card_links])
    box_links = [
        (int(numbers.of_box[i][a]), int(numbers.of_box[i][b]), box.types[type_index])
        for i, box in enumerate(boxes)
        for a, b, type_index in zip(box.link_src.tolist(), box.link_dst.tolist(), box.link_type.tolist(), strict=True)
    ]
    places = [""] * numbers.nodes
    for label, box, node_numbers in zip(box_names, boxes, numbers.of_box, strict=True):
        for node, place in zip(node_numbers.tolist(), box.places, strict=True):
            places[node] = f"{label}/{place}"
    places[numbers.nodes - len(switches) :] = switches
    abilities = [box.ability(node) for box in boxes for node in range(box.ranks, box.nodes)]
    return build(
        name,
        numbers.ranks,
        box_links + ends,
        switches=numbers.nodes - numbers.ranks,
        limits=limits,
        places=places,
        unit=unit,
        abilities=[*abilities, *[ability] * len(switches)],
    )


def reverse(topology: Topology) -> Topology:
    """Return the machine with every link reversed; all numbers stay.

    A switch that reduces then multicasts and vice versa, so that a plan for the result, run backwards, is one for the
    machine.
    """
    abilities = tuple(ability.with_links_reversed() for ability in topology.abilities)
    return replace(topology, link_src=topology.link_dst, link_dst=topology.link_src, abilities=abilities)


def relabel(topology: Topology, permutation: ArrayLike) -> Topology:
    """Renumber nodes: node i becomes node permutation[i], with its place and abilities; links keep their numbers.
    Linear."""
    new_number = check_permutation(topology, permutation)
    old_node = np.argsort(new_number).tolist()
    return replace(
        topology, link_src=new_number[topology.link_src], link_dst=new_number[topology.link_dst],
        places=tuple(topology.places[node] for node in old_node),
        abilities=tuple(topology.ability(node) for node in old_node[topology.ranks :]),
        cards=_renumber_cards(topology, dict(enumerate(new_number.tolist()))),
    )  # fmt: skip


def _renumber_cards(topology: Topology, number: Mapping[int, int]) -> tuple[NetworkCard, ...]:
    """Return the network cards with the new numbers of nodes; a card without remaining nodes is dropped."""
    cards = (replace(c, nodes=tuple(number[node] for node in c.nodes if node in number)) for c in topology.cards)
    return tuple(card for card in cards if card.nodes)


def check_permutation(topology: Topology, permutation: ArrayLike) -> Ints:
    """Return a permutation as a column; raise Invalid unless it maps ranks to ranks and switches to switches."""
    try:
        new_number = np.asarray(permutation)
    except ValueError:
        new_number = np.zeros(0, object)  # ragged
    ranks = topology.ranks
    if new_number.shape != (topology.nodes,) or new_number.dtype.kind not in "iu":
        raise Invalid(f"permutation: expected {topology.nodes} whole numbers, one per node")
    if not np.array_equal(np.sort(new_number), np.arange(topology.nodes)):
        raise Invalid(f"permutation: every number from 0 to {topology.nodes - 1} must be there exactly once")
    if ranks < topology.nodes and ranks and int(new_number[:ranks].max()) >= ranks:
        rank = int(np.flatnonzero(new_number[:ranks] >= ranks)[0])
        raise Invalid(f"permutation: rank {rank} becomes node {new_number[rank]}, a switch; ranks must become ranks")
    return new_number.astype(np.int32)


def _parse_node(value: object, count: int, label: str) -> int:
    """Return a number from 0 to count - 1; raise Invalid, beginning with `label`, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < count:
        raise Invalid(f"{label} {quote(value)} is out of range (0 to {count - 1})")
    return int(value)


def _parse_allocation(topology: Topology, ranks: Iterable[int], label: str) -> tuple[list[int], Bools]:
    """Return the ranks to keep, ascending, and which nodes remain with them."""
    chosen = sorted(_parse_node(rank, topology.ranks, f"{label}: rank") for rank in ranks)
    if not chosen or len(set(chosen)) != len(chosen):
        raise Invalid(f"{label}: a rank is named twice" if chosen else f"{label}: name at least one rank")
    return chosen, nodes_between(topology, np.isin(np.arange(topology.ranks), chosen))


def _only_name(topology: Topology, ranks: Sequence[int]) -> str:
    """Return the name of an allocation; an allocation of the same ranks of itself keeps its name."""
    suffix = f" only {','.join(map(str, ranks))}"
    return topology.name if topology.name.endswith(suffix) else _clip_name(topology.name + suffix)


def _clip_name(name: str) -> str:
    """Shorten a name to MAX_NAME characters, as repeated derivations or many ranks would make it too long to print."""
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 3] + "..."


def _drop_dead_switches(topology: Topology, alive: Bools) -> None:
    """Remove from `alive` the switches that can lie on no path between two ranks in it."""
    src, dst, nodes = topology.link_src, topology.link_dst, topology.nodes
    ranks = alive.copy()
    ranks[topology.ranks :] = False
    # Fixed point: dropping a switch can leave its neighbour with only one neighbour, or unreachable.
    while True:
        links = alive[src] & alive[dst]
        a, b = src[links], dst[links]
        # A node has several neighbours if some link of it, in either direction, leads elsewhere than to its entry of
        # `neighbour`, which is any one of them: the last that was written. This needs no sort: O(links).
        neighbour, several = np.full(nodes, -1, np.int64), np.zeros(nodes, bool)
        neighbour[a], neighbour[b] = b, a
        for end, other in ((a, b), (b, a)):
            several[end[neighbour[end] != other]] = True
        useful = ranks | (several & reached_nodes(ranks, a, b) & reached_nodes(ranks, b, a))
        if np.array_equal(alive, useful):
            return
        alive &= useful


def _with_links(topology: Topology, kept_links: Bools) -> Topology:
    """Return the machine with only these links; all nodes stay."""
    return replace(topology, **_keep_links(topology, kept_links))


def _keep_limits(topology: Topology, kept_links: Bools) -> tuple[SharedLimit, ...]:
    """Return the shared limits with only these links, renumbered in order, without the limits that lose all of them."""
    number, resources = np.cumsum(kept_links) - 1, topology.resources
    # An allocation of a large machine keeps few of its limits, so start from the remaining links. As resources, limits
    # are numbered after the links, and limit_ptr delimits those of each link.
    limit_numbers = np.unique(resources.limit_of[np.repeat(kept_links, np.diff(resources.limit_ptr))]) - topology.links
    limits = [topology.limits[i] for i in limit_numbers.tolist()]
    return tuple(
        replace(limit, links=tuple(int(number[link]) for link in limit.links if kept_links[link])) for limit in limits
    )


def _keep_links(topology: Topology, kept_links: Bools) -> dict[str, Any]:
    """Return the columns of a topology with only these links, renumbered in order; empty limits and unused types are
    dropped."""
    # Types that became equal (say, both capped at one bandwidth) are merged.
    used_types, index_in_used = np.unique(topology.link_type[kept_links], return_inverse=True)
    merged: dict[LinkType, int] = {}
    merged_index = [merged.setdefault(topology.types[i], len(merged)) for i in used_types]
    return {
        "link_src": topology.link_src[kept_links],
        "link_dst": topology.link_dst[kept_links],
        "link_type": np.array(merged_index, np.int32)[index_in_used.astype(np.intp)],
        "types": tuple(merged),
        "limits": _keep_limits(topology, kept_links),
    }


def _select_links(
    topology: Topology, pairs: Iterable[tuple[int, int]] | None, kind: str | None, links: Iterable[int] | None
) -> Bools:
    """Return per link whether all given selections name it; every entry of `pairs` must match some link."""
    if pairs is None and kind is None and links is None:
        raise Invalid("degrade: say which links: pairs, kind or links")
    chosen = np.ones(topology.links, bool)
    if pairs is not None:
        by_pairs = np.zeros(topology.links, bool)
        for pair in pairs:
            a, b = (_parse_node(node, topology.nodes, "degrade: node") for node in pair)
            src, dst = topology.link_src, topology.link_dst
            match = ((src == a) & (dst == b)) | ((src == b) & (dst == a))
            if not match.any():
                ends = f"{topology.node_name(a)} and {topology.node_name(b)}"
                raise Invalid(f"degrade: no link joins {ends} of {topology.name}")
            by_pairs |= match
        chosen &= by_pairs
    if kind is not None:
        link_kinds = {topology.types[i].kind for i in np.unique(topology.link_type)}
        if kind not in link_kinds:
            raise unknown(f"kind of link of {topology.name}", kind, link_kinds)
        chosen &= np.array([link_type.kind == kind for link_type in topology.types])[topology.link_type]
    if links is not None:
        numbered = np.zeros(topology.links, bool)
        numbered[[_parse_node(link, topology.links, "degrade: link") for link in links]] = True
        chosen &= numbered
    if not chosen.any():
        raise Invalid(f"degrade: no link of {topology.name} is named by every selection; loosen one")
    return chosen


class _Numbers:
    """The numbers of every box's nodes, and of the new switches, in the joined machine."""

    def __init__(self, boxes: Sequence[Topology], switches: Sequence[str]) -> None:
        self.ranks = sum(box.ranks for box in boxes)
        self.boxes, self.of_box = boxes, [np.zeros(0, np.int64)] * len(boxes)
        # of_box[b]: the numbers of the nodes of box b. Ranks of all boxes come first, then their switches, then the new
        # switches.
        rank, switch = 0, self.ranks
        for i, box in enumerate(boxes):
            self.of_box[i] = np.concatenate([rank + np.arange(box.ranks), switch + np.arange(box.switches)])
            rank, switch = rank + box.ranks, switch + box.switches
        self.switch_number = {label: switch + i for i, label in enumerate(switches)}
        self.nodes = switch + len(self.switch_number)

    def of(self, end: End) -> int:
        """Return the number of an end: a (box, node) pair or the name of a new switch."""
        if isinstance(end, str):
            if end not in self.switch_number:
                raise unknown("switch to join at", end, self.switch_number)
            return self.switch_number[end]
        if not isinstance(end, tuple) or len(end) != 2:
            raise Invalid(f"join: expected (box, node) or the name of a new switch, got {quote(end)}")
        box = _parse_node(end[0], len(self.boxes), "join: box")
        return int(self.of_box[box][_parse_node(end[1], self.boxes[box].nodes, f"join: node of box {box}")])


def _box_limits(boxes: Sequence[Topology], names: Sequence[str]) -> Iterable[SharedLimit]:
    """Yield the limits of all boxes, with the links renumbered."""
    first = 0
    for label, box in zip(names, boxes, strict=True):
        for limit in box.limits:
            yield SharedLimit(f"{label}/{limit.name}", tuple(first + link for link in limit.links), limit.bandwidth)
        first += box.links


def _card_limits(card: Card, ends: set[int], links: Sequence[tuple[int, int, int]]) -> list[SharedLimit]:
    """Return the limits that a network card puts on new links (number, source, destination)."""
    bandwidth = parse_bandwidth(card.bandwidth, f"bandwidth of card {card.name}")
    # Links between two ends of one card stay inside of it and do not load it.
    outgoing = tuple(number for number, a, b in links if a in ends and b not in ends)
    incoming = tuple(number for number, a, b in links if b in ends and a not in ends)
    if not outgoing and not incoming:
        raise Invalid(f"join: no new link leaves or reaches the ends of card {quote(card.name)}")
    if not card.duplex:
        return [SharedLimit(card.name, outgoing + incoming, bandwidth)]
    directions = ((f"{card.name} out", outgoing), (f"{card.name} in", incoming))
    return [SharedLimit(label, numbers, bandwidth) for label, numbers in directions if numbers]


def contract(topology: Topology, host: Longs) -> Topology:
    """Return the machine whose ranks are the hosts of this one. `host`: the host of every rank.

    Links inside a host vanish, and with them those of switches that only its own ranks use. All switches keep their
    numbers. Places and network cards are dropped.
    """
    ranks = int(host.max()) + 1
    number = np.concatenate([host, np.arange(ranks, ranks + topology.switches)])
    src, dst = number[topology.link_src], number[topology.link_dst]
    inner = _inner_switches(ranks, topology.switches, src, dst)
    kept_links = (src != dst) & ~inner[src] & ~inner[dst]
    return Topology(
        name=topology.name, ranks=ranks, switches=topology.switches, link_src=src[kept_links], link_dst=dst[kept_links],
        link_type=topology.link_type[kept_links], types=topology.types, limits=_keep_limits(topology, kept_links),
        unit=topology.unit, abilities=topology.abilities,
    )  # fmt: skip


def _inner_switches(ranks: int, switches: int, src: Longs, dst: Longs) -> Bools:
    """Return which nodes are switches whose routes begin and end at one rank, so that no data pass to another."""
    nodes = ranks + switches
    is_connected = np.zeros((nodes, ranks), bool)  # by node, the ranks that a route joins with it, either way
    for tail, head in ((src, dst), (dst, src)):
        # Extend routes from every rank, by links that end at a switch, until no further switch is reached.
        reached = np.eye(nodes, ranks, dtype=bool)
        into_switch = head >= ranks
        while True:
            extended = reached.copy()
            np.logical_or.at(extended, head[into_switch], reached[tail[into_switch]])
            if np.array_equal(extended, reached):
                break
            reached = extended
        is_connected |= reached
    return np.asarray((np.arange(nodes) >= ranks) & (is_connected.sum(axis=1) <= 1))
