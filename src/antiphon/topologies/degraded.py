"""Apply failures to a machine: links, ranks and network cards that are down or slow, named or chosen at random.

A link is named by its two ends: "0-1", "3-nvswitch", or whole places; "0-1:2" means two of its parallel wires (unit
links), "0-1:pcie" only links of this kind. A network card is named by its shared limit ("host0/nic1"), or by the rank
that it belongs to where no other rank uses it. Failures change links and limits only: nodes, and so ranks, keep their
numbers, and a failed rank is one without links.

A fraction is chosen by hashing each item with the seed and taking the smallest hashes, so that a larger fraction
includes a smaller one.

Example: `degrade_machine(topology("dgx1v"), drop_links=["0-3:1"])` leaves one of the two NVLinks between GPUs 0 and 3.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.reshape import degrade, linked_ranks
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote, unknown, warn_unlikely
from antiphon.units import exact, parse_bandwidth, ranks_text

Pair = tuple[int, int]
MAX_DIGITS = 9  # of a number in a name: longer ones are no node of any machine
DEGRADED = " degraded"  # appended to the machine's name, once


class MissingLink(Invalid):
    """No link joins these two nodes, which exist."""


ITEMS = ("links", "nics", "ranks")  # values of `of`: what a fraction is chosen from


def degrade_machine(
    topology: Topology,
    *,
    drop_links: Sequence[str] = (),
    drop_nics: Sequence[str] = (),
    drop_ranks: Sequence[int] = (),
    slow: Mapping[str, object] | None = None,
    fraction: object = None,
    of: str = "links",
    remaining: object = None,
    seed: int = 0,
) -> Topology:
    """Return the machine after these failures; a link stands for both directions, and all nodes keep their numbers.

    `slow`: by link, network card or rank the remaining bandwidth, a factor below 1 (0.5: half) or a bandwidth.
    `fraction` (a number or its text): the share of all links, network cards or ranks (`of`) that fail, chosen by
    `seed`; with `remaining` they are slow instead, as in `slow`. Linear in the links, times the number of slow items.
    """
    if not (drop_links or slow or drop_ranks or drop_nics or fraction is not None):
        raise Invalid("nothing to degrade; give drop_links, drop_nics, drop_ranks, slow or fraction")
    if of not in ITEMS:
        raise unknown("items to choose a fraction of", of, ITEMS)
    if fraction is None and (remaining is not None or of != "links"):
        raise Invalid("degrade: of and remaining describe a fraction; give fraction, too")
    failures = _Failures(topology)
    for name, bandwidth in (slow or {}).items():
        failures.slow(failures.find_item(name), str(bandwidth))
    dropped = [failures.find_link(link) for link in drop_links] + [failures.find_card(name) for name in drop_nics]
    dropped += [failures.find_rank(rank) for rank in drop_ranks]
    if fraction is not None:
        chosen = _choose_fraction(failures.all_items(of), fraction, seed)
        if remaining is None:
            dropped += chosen
        for item in chosen if remaining is not None else ():  # slow, not gone
            failures.slow(item, str(remaining))
    for item in dropped:
        failures.drop(item)
    machine = failures.apply()
    components = connected_parts(machine)
    if not components:
        raise Invalid("degrade: no two ranks remain connected; leave some links")
    if len(components) > 1:
        warn_unlikely(
            f"{machine.name}: falls apart into {len(components)} parts between which data cannot go both ways: "
            f"{'; '.join(map(ranks_text, components))}; plan for one part, as in "
            f"allreduce:ranks={ranks_text(components[0], len(components[0]))}"
        )
    return machine


def connected_parts(topology: Topology) -> list[list[int]]:
    """Return the sets of ranks that can all send to each other, largest first; ranks without links are left out.

    Empty if no rank has links.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    src, dst, nodes = topology.link_src, topology.link_dst, topology.nodes
    graph = coo_array((np.ones(len(src), np.int8), (src, dst)), shape=(nodes, nodes))
    _, label = connected_components(graph, connection="strong")
    components: dict[int, list[int]] = {}
    for rank in linked_ranks(topology):
        components.setdefault(int(label[rank]), []).append(rank)
    return sorted(components.values(), key=lambda ranks: (-len(ranks), ranks))


SINGLE_KINDS = ("links", "wires", "nics", "ranks")  # what `name_failures` lists


def name_failures(topology: Topology, of: str) -> list[str]:
    """Return the name of each single link, wire of a link, network card or rank, as `drop_items` takes it.

    `of`: one of SINGLE_KINDS. A link of one wire has the same name as link and as wire. Raises Invalid without any.
    """
    if of not in SINGLE_KINDS:
        raise unknown("kind of single failures", of, SINGLE_KINDS)
    failures = _Failures(topology)
    items = [item for _, item in failures.all_items("links" if of == "wires" else of)]
    names = [item.name if item.rank is None else str(item.rank) for item in items]
    if of == "wires":
        names = [name if failures.count_wires(name) == 1 else f"{name}:1" for name in names]
    if not names:
        raise Invalid(f"failures: {topology.name} has no {of}")
    return names


def drop_items(topology: Topology, names: Sequence[str]) -> Topology:
    """Return the machine without these links ("0-1"), wires ("0-1:1"), network cards and ranks ("3")."""
    failures = _Failures(topology)
    for name in names:
        failures.drop(failures.find_item(name))
    return failures.apply()


def failure_name(topology: Topology, text: str) -> str:
    """Return the name that `name_failures` gives a link, wires, a network card or a rank.

    Users may name the ends of a link in any order and by their places; its one name here is "lower-higher".
    """
    failures = _Failures(topology)
    item = failures.find_item(text)
    if item.rank is not None or text in failures.cards:
        return text
    ends = topology.link_src[item.links[0]], topology.link_dst[item.links[0]]
    name = f"{min(ends)}-{max(ends)}"
    wires = failures.count_wires(name)
    all_links = failures.find_link(name).links
    if item.wires and item.wires < wires:
        return f"{name}:{item.wires}"
    return name if len(item.links) == len(all_links) else text  # else: the links of one kind of several, "0-1:pcie"


@dataclass(frozen=True)
class _Item:
    """Something that can fail, by the numbers of its links.

    `limits`: numbers of the shared limits that a card is modelled by. `wires`: the number of unit links that fail in
    each direction; 0: all. `card`: number in `Topology.cards` of a card that no link uses yet. `rank`: a whole rank.
    """

    name: str
    links: Longs
    limits: tuple[int, ...] = ()
    wires: int = 0
    card: int | None = None
    rank: int | None = None


class _Failures:
    """Collects failures of a machine: by link its remaining bandwidth, and the same by limit and card."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        # What remains, in bytes per second, by number of the link, shared limit or card; others are as before
        self.bandwidth: dict[int, Fraction] = {}  # 0: the link is gone
        self.limit: dict[int, Fraction] = {}
        self.card: dict[int, Fraction | None] = {}  # None: the card is gone
        self.lost_ranks: set[int] = set()

    @cached_property
    def cards(self) -> dict[str, _Item]:
        """Network cards by name: shared limits, links of a rank to another host, and cards that no link uses yet."""
        topology, cards = self.topology, {}
        shared: dict[str, list[int]] = {}  # name of a card -> numbers of its limits
        for number, limit in enumerate(topology.limits):  # a card has a limit for each direction: "nic1 out", "nic1 in"
            name = limit.name.removesuffix(" out").removesuffix(" in")
            shared.setdefault(name, []).append(number)
        under_limit = np.zeros(topology.links, bool)
        for name, numbers in shared.items():
            links = np.unique(np.concatenate([topology.limits[i].links for i in numbers]))
            under_limit[links] = True
            cards[name] = _Item(name, links, tuple(numbers))
        # links that leave a host and are under no shared limit are a card of their rank alone
        host_names = [place.split("/", 1)[0] for place in topology.places]  # "host0/gpu3": in a host; "spine0": in none
        _, host = np.unique(host_names, return_inverse=True)
        is_in_host = np.array(["/" in place for place in topology.places])
        src, dst = topology.link_src, topology.link_dst
        leaves_host = (host[src] != host[dst]) & ~under_limit & (is_in_host[src] | is_in_host[dst])
        for rank in np.unique(np.concatenate([src[leaves_host], dst[leaves_host]])).tolist():
            if rank < topology.ranks and is_in_host[rank]:
                name = topology.places[rank]
                cards[name] = _Item(name, np.flatnonzero(leaves_host & ((src == rank) | (dst == rank))))
        for number, card in enumerate(topology.cards):
            cards.setdefault(card.name, _Item(card.name, np.zeros(0, np.int64), card=number))
        return cards

    def find_link(self, text: str) -> _Item:
        """Return a link by its name "0-1", or some of its parallel links by "0-1:2" or "0-1:pcie"."""
        topology = self.topology
        name, colon, kind_or_number = text.rpartition(":")
        kinds = {t.kind for t in topology.types}
        # a colon before anything but a number or a kind belongs to the name
        if not colon or not (kind_or_number.isdigit() or kind_or_number in kinds):
            name, kind_or_number = text, ""
        a, b = pair_of(topology, name)
        src, dst = topology.link_src, topology.link_dst
        links = np.flatnonzero(((src == a) & (dst == b)) | ((src == b) & (dst == a)))
        if kind_or_number in kinds:
            links = links[[topology.types[i].kind == kind_or_number for i in topology.link_type[links].tolist()]]
        if not links.size:
            kind_text = f" of kind {kind_or_number}" if kind_or_number in kinds else ""
            ends = f"{topology.node_name(a)} and {topology.node_name(b)}"
            raise MissingLink(f"degrade: no link{kind_text} joins {ends} of {topology.name}")
        wires = int(kind_or_number[:MAX_DIGITS]) if kind_or_number.isdigit() else None
        if wires == 0:
            raise Invalid(f"link {quote(text)}: expected a number of wires from 1 behind the colon")
        return _Item(text, links, wires=wires or 0)

    def count_wires(self, name: str) -> Fraction:
        """Return the number of unit links of a link in its wider direction, as a share of a unit if it is slower."""
        topology, links = self.topology, self.find_link(name).links
        sources = topology.link_src[links]
        totals = [
            sum(map(topology.bandwidth, links[sources == source].tolist()), Fraction(0))
            for source in np.unique(sources)
        ]
        return max(totals) / topology.unit

    def find_card(self, name: str) -> _Item:
        """Return a network card by its name, or by the number or place of the rank that has it to itself."""
        nodes = _nodes_named(self.topology, name)
        places = [self.topology.places[node] for node in nodes] if len(nodes) == 1 else []
        for candidate in (name, *places):
            if candidate in self.cards:
                return self.cards[candidate]
        if not self.cards:
            raise Invalid(f"network card {quote(name)}: {self.topology.name} has no network cards; name links instead")
        raise unknown(f"network card of {self.topology.name}", name, self.cards)

    def find_rank(self, rank: int) -> _Item:
        """Return a rank as an item: all its links, in both directions."""
        topology = self.topology
        if not 0 <= rank < topology.ranks:
            raise Invalid(f"rank {rank} is out of range; {topology.name} has ranks 0 to {topology.ranks - 1}")
        links = np.flatnonzero((topology.link_src == rank) | (topology.link_dst == rank))
        return _Item(f"rank {rank}", links, rank=rank)

    def find_item(self, name: str) -> _Item:
        """Return what a name of `slow` stands for: a rank's number, a network card or a link."""
        if name.isdigit() and len(name) <= MAX_DIGITS:
            return self.find_rank(int(name))
        return self.cards[name] if name in self.cards else self.find_link(name)

    def all_items(self, of: str) -> list[tuple[str, _Item]]:
        """Return all links, cards or ranks (`of`), each with the text that is hashed to choose among them.

        The texts must never change: a seed would choose other items. A link is all links between two nodes.
        """
        topology = self.topology
        if of == "ranks":
            return [(f"rank {rank}", self.find_rank(rank)) for rank in linked_ranks(topology)]
        if of == "nics":
            return [(name, item) for name, item in self.cards.items()]
        low, high = (f(topology.link_src, topology.link_dst).astype(np.int64) for f in (np.minimum, np.maximum))
        pair = low * topology.nodes + high
        order = np.argsort(pair, kind="stable")
        starts = np.flatnonzero(np.diff(pair[order])) + 1
        return [
            (f"{low[links[0]]} {high[links[0]]}", _Item(f"{low[links[0]]}-{high[links[0]]}", links))
            for links in np.split(order, starts) if len(links)  # one empty array if the machine has no links
        ]  # fmt: skip

    def slow(self, item: _Item, remaining: str) -> None:
        """Reduce the bandwidth of an item to `remaining`: a factor below 1, or a bandwidth."""
        is_factor = not any(char.isalpha() for char in remaining.replace("e-", ""))  # no unit; 1e-3 is a number
        value = exact(remaining, "slow") if is_factor else parse_bandwidth(remaining, "slow")
        if is_factor and not 0 < value < 1:
            raise Invalid(f"slow: {quote(remaining)}: expected the remaining bandwidth, such as 0.5 or 10GB/s")
        if item.wires:
            raise Invalid(f"slow: {item.name}: names wires, which are up or down; name the link, or drop the wires")
        topology, is_slower = self.topology, False

        def reduce_bandwidth(now: Fraction) -> Fraction:
            nonlocal is_slower
            is_slower |= is_factor or value < now
            return now * value if is_factor else min(now, value)

        # A card that ranks share is slowed by its limit, and each of its links, too.
        for number in item.limits:
            self.limit[number] = reduce_bandwidth(self.limit.get(number, topology.limits[number].bandwidth))
        for link in item.links.tolist():
            self.bandwidth[link] = reduce_bandwidth(self.bandwidth.get(link, topology.bandwidth(link)))
        if item.card is not None and (speed := topology.cards[item.card].bandwidth) is not None:
            self.card[item.card] = reduce_bandwidth(speed)
        if not is_slower:
            if item.card is not None and topology.cards[item.card].bandwidth is None:
                raise Invalid(f"slow: {item.name}: the bandwidth of this card is not known; it can only be dropped")
            raise Invalid(f"slow: {item.name}: is at most as fast as {quote(remaining)} already")

    def drop(self, item: _Item) -> None:
        """Remove an item, or in each direction as many wires of it as it names, the widest link first."""
        if item.card is not None:
            self.card[item.card] = None
        if item.rank is not None:
            self.lost_ranks.add(item.rank)
        for source in np.unique(self.topology.link_src[item.links]).tolist():  # of a link, one for each direction
            failed = self.topology.unit * item.wires  # bytes per second that this direction has yet to lose
            links = item.links[self.topology.link_src[item.links] == source].tolist()
            now = {link: self.bandwidth.get(link, self.topology.bandwidth(link)) for link in links}
            for link in sorted(links, key=lambda link: (-now[link], link)):
                lost = min(failed, now[link]) if item.wires else now[link]
                self.bandwidth[link] = now[link] - lost
                failed -= lost

    def apply(self) -> Topology:
        """Return the machine with all failures."""
        topology = self.topology
        name = topology.name if topology.name.endswith(DEGRADED) else f"{topology.name}{DEGRADED}"
        limits = tuple(replace(x, bandwidth=self.limit.get(i, x.bandwidth)) for i, x in enumerate(topology.limits))
        cards = [
            replace(card, bandwidth=self.card.get(i, card.bandwidth), nodes=nodes)
            for i, card in enumerate(topology.cards)
            if (nodes := tuple(node for node in card.nodes if node not in self.lost_ranks))
            and not (i in self.card and self.card[i] is None)
        ]
        machine = replace(topology, name=name, limits=limits, cards=tuple(cards))
        by_bandwidth: dict[Fraction, list[int]] = {}
        for link, bandwidth in self.bandwidth.items():
            if bandwidth == topology.bandwidth(link):  # `degrade` refuses to slow a link to its own bandwidth
                continue
            by_bandwidth.setdefault(bandwidth, []).append(link)
        removed = by_bandwidth.pop(Fraction(0), [])  # these come last, as the remaining links get new numbers
        for bandwidth, links in by_bandwidth.items():
            machine = degrade(machine, links=links, to=bandwidth, name=name)
        return degrade(machine, links=removed, remove=True, name=name) if removed else machine


def pair_of(topology: Topology, link: str) -> Pair:
    """Return the two nodes of a link as people name it: "0-1", "3-nvswitch", "host0/gpu3-host0/nvswitch"."""
    for hyphen in (i for i, char in enumerate(link) if char == "-"):  # names may have a hyphen, too
        names = link[:hyphen].strip(), link[hyphen + 1 :].strip()
        ends = [_nodes_named(topology, name) for name in names]
        if all(ends):
            for name, nodes in zip(names, ends, strict=True):
                if len(nodes) > 1:
                    candidates = ", ".join(topology.places[node] for node in nodes[:4])
                    raise Invalid(f"link {quote(link)}: {name} could be {candidates}; name the whole place")
            (first,), (second,) = ends
            return first, second
    if "-" not in link:
        raise Invalid(f"link {quote(link)}: expected two nodes, such as 0-1")
    unknown_end = next((p.strip() for p in link.split("-", 1) if not _nodes_named(topology, p.strip())), link)
    raise unknown(
        f"node of {topology.name}", unknown_end, [*map(str, range(topology.ranks)), *topology.places[topology.ranks :]]
    )


def _nodes_named(topology: Topology, name: str) -> list[int]:
    """Return the nodes of this name: a number, a place, or the last parts of a place."""
    if name.isdigit() and len(name) <= MAX_DIGITS:
        return [int(name)] if int(name) < topology.nodes else []
    exact_matches = [node for node, place in enumerate(topology.places) if place == name]
    return exact_matches or [node for node, place in enumerate(topology.places) if place.endswith(f"/{name}")]


def _choose_fraction(items: Sequence[tuple[str, _Item]], fraction: object, seed: int) -> list[_Item]:
    """Return the fraction (rounded up) of the items whose texts, hashed with the seed, are smallest."""
    share: Fraction = exact(fraction, "fraction")
    if not 0 < share < 1:
        raise Invalid(f"fraction: expected a number between 0 and 1, such as 0.02, got {quote(fraction)}")
    if not items:
        raise Invalid("fraction: the machine has none of these items; choose others by `of`")
    item_of = {hashlib.sha256(f"{seed} {text}".encode()).digest(): item for text, item in items}  # texts are distinct
    return [item_of[digest] for digest in sorted(item_of)[: math.ceil(share * len(items))]]
