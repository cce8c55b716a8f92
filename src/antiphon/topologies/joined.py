"""Connect boxes by a fabric of switches: network cards become links and shared limits, switches are built level by
level.

`Cards` describes the cards of one box: a port is a node of the box (a GPU, or a PCIe switch) that uses a card, a rail
is a card's number. `Fabric` names the switches, the first switch of every card, and trunks between switches. With fewer
cards than ports, each port has a link of the card's speed, and a shared limit of that speed holds for all of them:

    8 GPUs, 4 cards of 25 GB/s:   GPUs 0 and 1 have a link of 25 GB/s each to rail 0, together limited to 25 GB/s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from antiphon.core.reshape import Card, End, join
from antiphon.core.topology import FORWARD_ONLY, Ability, LinkType, Topology
from antiphon.errors import Invalid
from antiphon.topologies.links import IB_HOP, SWITCH_HOP
from antiphon.topologies.options import MAX_LISTED, check_link_count, check_node_count


@dataclass(frozen=True)
class Cards:
    """The network cards of a box.

    With fewer cards than ports, consecutive ports share a card; with more, each port has several.
    """

    count: int
    bandwidth: Fraction  # of each card, bytes per second each way
    ports: tuple[int, ...]  # the nodes of the box that use cards
    kind: str = "ib"  # kind of link of the cables

    def check(self, box: str) -> None:
        """Raise Invalid unless the cards of the box of this name are divided evenly among its ports."""
        smaller, larger = sorted((self.count, len(self.ports)))
        if larger % smaller:
            raise Invalid(
                f"nics={self.count}: cannot be shared evenly by the {len(self.ports)} ports of {box}; "
                "give a number that divides it, or a multiple of it"
            )

    @property
    def rails(self) -> int:
        """The number of rails: with several cards per port, all of a port are on one rail, as one wider card."""
        return min(self.count, len(self.ports))

    @property
    def cable(self) -> Fraction:
        """Bytes per second between a port and the fabric."""
        return self.bandwidth * max(1, self.count // len(self.ports))

    def rail(self, port: int) -> int:
        """Return the rail of a port, given by its index in `ports`."""
        return port * self.rails // len(self.ports)

    def served(self) -> list[tuple[int, ...]]:
        """Return the nodes that use each card: first a card of every rail, then the next cards of the rails' ports."""
        groups = [tuple(port for i, port in enumerate(self.ports) if self.rail(i) == r) for r in range(self.rails)]
        return groups * max(1, self.count // len(self.ports))


@dataclass(frozen=True)
class Fabric:
    """The switches above the cards, by name."""

    switches: tuple[str, ...]
    first: dict[tuple[int, int], str]  # (box, rail), by their numbers -> the switch that its card is connected to
    trunks: tuple[tuple[str, str, Fraction], ...] = ()  # (lower switch, higher switch, bytes per second)


def connect_boxes(
    name: str, boxes: Sequence[tuple[Topology, Cards]], fabric: Fabric, ability: Ability = FORWARD_ONLY
) -> Topology:
    """Return boxes with these cards on a fabric, whose switches have this ability (to multicast and reduce, or not).

    Places of nodes are host3/..., shared limits are called host3/nic0 out and in.
    """
    links = sum(box.links + 2 * len(cards.ports) for box, cards in boxes) + 2 * len(fabric.trunks)
    check_node_count(sum(box.nodes for box, _ in boxes) + len(fabric.switches), name)
    check_link_count(links, name, MAX_LISTED)
    # cables from ports to their first switch, then trunks between switches; an end is (box, node) or a switch's name
    cables: list[tuple[End, End, LinkType]] = []
    card_limits: list[Card] = []
    for b, (box, cards) in enumerate(boxes):
        cards.check(box.name)
        cable = LinkType(cards.kind, cards.cable, IB_HOP)
        cables += [((b, port), fabric.first[b, cards.rail(i)], cable) for i, port in enumerate(cards.ports)]
        # several ports on one card share its bandwidth; a card of one port needs no limit but that of its cable
        card_limits += [
            Card(f"host{b}/nic{rail}", tuple((b, port) for port in group), cards.bandwidth)
            for rail, group in enumerate(cards.served()[: cards.rails])
            if len(group) > 1
        ]
    cables += [(low, high, LinkType("trunk", speed, SWITCH_HOP)) for low, high, speed in fabric.trunks]
    return join(
        [without_host(box) for box, _ in boxes], name=name, names=[f"host{b}" for b in range(len(boxes))],
        switches=fabric.switches, cables=cables, cards=card_limits,
        unit=min(min(box.unit, cards.bandwidth) for box, cards in boxes), ability=ability,
    )  # fmt: skip


def without_host(box: Topology) -> Topology:
    """Return a box without the prefix host0/ of its places: in a cluster it gets its own number."""
    if all(place.startswith("host0/") for place in box.places):
        return replace(box, places=tuple(place.removeprefix("host0/") for place in box.places))
    return box


def one_switch(boxes: int, rails: int, name: str = "fabric") -> Fabric:
    """Return a fabric of one switch, to which all cards of this many boxes are connected."""
    return Fabric((name,), {(b, r): name for b in range(boxes) for r in range(rails)})


def trunks_above(
    lower_switches: Sequence[tuple[str, Fraction]], upper_switches: Sequence[str], taper: Fraction
) -> tuple[tuple[str, str, Fraction], ...]:
    """Return trunks from every lower switch to every upper one.

    `lower_switches`: names, each with the bandwidth of all its links below. The trunks of a switch have together that
    bandwidth divided by `taper` (the oversubscription).
    """
    return tuple(
        (low, high, bandwidth / taper / len(upper_switches))
        for low, bandwidth in lower_switches
        for high in upper_switches
    )
