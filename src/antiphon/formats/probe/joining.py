"""Combine a server and a fabric into a cluster.

The server (a box with GPUs) and the fabric (a machine whose ranks are hosts, with switches) come from files of
different tools. Each host of the fabric becomes a copy of the server; a cable of the host becomes a network card, whose
bandwidth is shared by the GPUs that use the card.

Example: a box of 8 GPUs with 4 cards, and a fabric of 2 hosts with 4 cables each: 16 ranks; cable k of a host serves
GPUs 2 k and 2 k + 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from antiphon.core.reshape import Card, End, join
from antiphon.core.serialize import load_topology
from antiphon.core.topology import LinkType, NetworkCard, Topology, both_ways, build
from antiphon.cost.nccl.calls import shipped_calls
from antiphon.cost.nccl.gpus import generation_of
from antiphon.cost.nccl.layout import layout_of
from antiphon.errors import Invalid, Unsupported, quote, warn_unlikely
from antiphon.formats.probe.box import ports_of_card
from antiphon.formats.probe.lines import read_sample
from antiphon.formats.probe.probed import Port, Probed
from antiphon.formats.probe.table import read
from antiphon.topologies import topology
from antiphon.topologies.clusters import cards_of, sold_with_cards
from antiphon.topologies.joined import without_host
from antiphon.topologies.links import IB_HOP, SWITCH_HOP
from antiphon.topologies.options import MAX_LISTED, Bandwidth, check_integer, check_link_count, check_node_count
from antiphon.units import format_bandwidth

Cable = tuple[End, End, LinkType]  # each end: a node of a host (host, node), or the name of a switch


def read_machine(text: str, source: str = "") -> Probed:
    """Return a machine by its name, by its file, or by the file of a tool (`source`; "": recognised by contents)."""
    if not os.path.exists(text):
        return _without_probe(topology(text))
    if not source and '"antiphon-topology"' in read_sample(text):
        return _without_probe(load_topology(text))
    return read([text], source)


def _without_probe(machine: Topology) -> Probed:
    return Probed(machine, notes=(), names=tuple(f"rank {rank}" for rank in range(machine.ranks)))


def join_box_and_fabric(box: Probed, fabric: Probed, name: str = "") -> Probed:
    """Return a machine with a box for every host of the fabric. Ranks are numbered box by box.

    The box's file lists which card serves which GPUs. The host's cables in the fabric's file are assigned to these
    cards by name, if both files have names, else in order. If the box's file lists no cards, the cables are spread
    evenly over its ranks (or its PCIe switches). GPUs that share a card get a link of the card's speed each, and a
    shared limit, as in the catalogue's clusters.

    `fabric.assumed`: the fabric's file has switches but no speeds (Slurm). Then every host gets the cables of the box's
    cards, and links between switches are scaled by `factor`, the bandwidth of these cables divided by the bandwidth
    that the fabric assumed per host.
    """
    machine, hosts = fabric.machine, fabric.machine.ranks
    if box.hosts:  # its ranks are hosts, not GPUs
        raise Invalid("the first is a network, not a box; name the box first, then the fabric")
    check_node_count(hosts * box.machine.nodes + machine.switches, "the joined machine")
    check_link_count(hosts * box.machine.links + machine.links, "the joined machine", MAX_LISTED)
    ports = fabric.ports or _list_ports(machine)
    ports_of: list[list[Port]] = [[] for _ in range(hosts)]
    for port in ports:
        ports_of[port.host].append(port)
    if not fabric.assumed and ports_of[0]:
        _warn_thin_fabric(box, fabric, ports_of[0])
    switches = [f"switch{number}" for number in range(machine.switches)]
    cables: list[Cable] = []
    cards: list[Card] = []
    factor = Fraction(0)  # the first host's; all hosts are the same box
    for host in range(hosts):
        if not ports_of[host]:
            raise Invalid(f"host {quote(fabric.names[host])} has no cable to a switch")
        # `assumed`: the fabric's file lists no speeds, so the box's cards set them.
        assignment = _assign_box_cards(box, ports_of[host]) if fabric.assumed else _assign_nodes(box, ports_of[host])
        # Trunks of an assumed fabric grow by the same factor as the cables below them.
        factor = factor or sum((p.speed for p, _ in assignment), Fraction(0)) / sum(p.speed for p in ports_of[host])
        _add_cables(host, assignment, machine, switches, cables, cards)
    trunks = list(_scale_trunks(machine, switches, factor if fabric.assumed else Fraction(1)))
    cluster = join(
        [without_host(box.machine)] * hosts, name=(name or f"{hosts} x {box.machine.name} on {machine.name}")[:100],
        names=[f"host{host}" for host in range(hosts)], switches=switches, cables=cables, links=trunks, cards=cards,
        unit=min(box.machine.unit, *(port.speed for port in ports)),
    )  # fmt: skip
    hosts_note = (
        [f"host0 is {fabric.names[0]}, host{hosts - 1} is {fabric.names[-1]}"] if fabric.hosts and hosts > 1 else []
    )
    names = tuple(f"{host}/{rank}" for host in fabric.names for rank in box.names)
    return Probed(cluster, (*box.notes, *fabric.notes, *hosts_note), names)


def join_by_own_cards(
    box: Probed, boxes: int, *, rail: bool = False, nic: Bandwidth | None = None, name: str = ""
) -> Probed:
    """Return `boxes` copies of this box, connected by its own network cards.

    All cards are on one switch or, with `rail`, the cards next to the same GPUs of every box on a switch of their own,
    below a spine. `nic`: bandwidth of each card; default: that in the file.
    """
    check_integer(boxes, "boxes", 2, 100_000)
    cards, assumed = cards_with_speeds(box, nic)
    with_cards = replace(box, machine=replace(box.machine, cards=cards), notes=(*box.notes, *assumed))
    # With `rail`, cards next to the same GPUs of every box share a switch; otherwise all cards do.
    groups = list(dict.fromkeys(card.nodes if rail else () for card in cards))
    rail_of = [groups.index(card.nodes if rail else ()) for card in cards]
    switches = [f"rail{number}" for number in range(len(groups))] if rail else ["fabric"]
    ports = [
        Port(host, card.name, boxes + rail_of[i], _speed_of(card))
        for host in range(boxes)
        for i, card in enumerate(cards)
    ]
    # a link for each host and switch; `join_box_and_fabric` takes its type from it, but the speeds from `ports`
    pairs = {(port.host, port.switch): LinkType("ib", port.speed, IB_HOP) for port in ports}
    links = [link for pair, kind in pairs.items() for link in both_ways([pair], kind)]
    # the spine carries as much as the rail below it
    if len(groups) > 1:
        spine = boxes + len(switches)
        switches.append("spine")
        for number in range(len(groups)):
            below = sum((port.speed for port in ports if port.switch == boxes + number), Fraction(0))
            links += both_ways([(boxes + number, spine)], LinkType("trunk", below, SWITCH_HOP))
    names = tuple(f"host{host}" for host in range(boxes))
    machine = build("rails" if rail else "one switch", boxes, links, switches=len(switches), places=[*names, *switches])
    return join_box_and_fabric(with_cards, Probed(machine, names=names, ports=tuple(ports)), name)


def _speed_of(card: NetworkCard) -> Fraction:
    """Return the speed of a card that has one, as all of `cards_with_speeds` have."""
    assert card.bandwidth is not None
    return card.bandwidth


def cards_with_speeds(box: Probed, nic: Bandwidth | None) -> tuple[tuple[NetworkCard, ...], list[str]]:
    """Return the network cards of a box with their speeds, and notes about assumptions.

    `nic`: the speed of each card; None: that in the box's file or, where it has none, an assumed one.
    """
    machine, notes, sold_as = box.machine, list[str](), _sold_as(box.machine)
    card_defaults = cards_of(machine, nics=None, nic=nic, sold_as=sold_as)
    card_bandwidth = f"{format_bandwidth(card_defaults.bandwidth)}" + (f" as of {sold_as}" if sold_as else "")
    if machine.cards:
        explicit_bandwidth = card_defaults.bandwidth if nic is not None else None
        if explicit_bandwidth is None and any(card.bandwidth is None for card in machine.cards):
            notes.append(
                f"network cards carry {card_bandwidth} (assumed: the file does not say; set it by nic=400Gbit/s)"
            )
        speeds = [explicit_bandwidth or card.bandwidth or card_defaults.bandwidth for card in machine.cards]
        return tuple(replace(c, bandwidth=speed) for c, speed in zip(machine.cards, speeds, strict=True)), notes
    card_defaults.check(machine.name)
    count, ports = card_defaults.count, card_defaults.ports
    if sold_as != machine.name:
        notes.append(
            f"{count} network cards of {card_bandwidth} are assumed: the file lists none (set their speed by nic=)"
        )
    groups = [ports_of_card(ports, card, count) for card in range(count)]
    return tuple(NetworkCard(f"nic{card}", card_defaults.bandwidth, nodes) for card, nodes in enumerate(groups)), notes


def _sold_as(machine: Topology) -> str:
    """Return the catalogue's box with the network cards that this machine is usually sold with; "" if unknown."""
    if sold_with_cards(machine.name):
        return machine.name
    with suppress(Unsupported):
        gpu = generation_of(machine, layout_of(machine), shipped_calls())
        boxes = [name for name in gpu.figures.boxes if sold_with_cards(name)] if gpu is not None else []
        return next((name for name in boxes if topology(name).ranks == machine.ranks), "")
    return ""


def _warn_thin_fabric(box: Probed, fabric: Probed, ports: Sequence[Port]) -> None:
    """Warn if the cables of the first host are slower than the box's cards together (as listed, else as sold)."""
    cards = box.machine.cards
    if not cards or not all(card.bandwidth for card in cards):
        if not _sold_as(box.machine):
            return
        cards, _ = cards_with_speeds(box, nic=None)
    speed = sum((_speed_of(card) for card in cards), Fraction(0))
    cables = sum((port.speed for port in ports), Fraction(0))
    if cables < speed:
        warn_unlikely(
            f"{fabric.machine.name}: its cables carry {format_bandwidth(cables)} per host, but the {len(cards)} "
            f"network cards of {box.machine.name} carry {format_bandwidth(speed)}; give a fabric with their speed, or "
            f"pass switch:boxes={fabric.machine.ranks} instead"
        )


def _list_ports(machine: Topology) -> tuple[Port, ...]:
    """Return the cables of a fabric from the catalogue or a topology file: the links of its ranks."""
    ports = []
    ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)
    for link, (a, b) in enumerate(ends):
        if a < machine.ranks:
            if b < machine.ranks:
                raise Unsupported(
                    f"{machine.name}: ranks {a} and {b} are joined without a switch; a fabric has its hosts on switches"
                )
            ports.append(Port(a, f"card{link}", b, machine.bandwidth(link)))
    return tuple(ports)


Assignment = Sequence[tuple[Port, tuple[int, ...]]]  # a cable, and the nodes of the box that use it


def _assign_nodes(box: Probed, ports: list[Port]) -> Assignment:
    """Return each cable of a host with the nodes of the box that it serves."""
    cards = box.machine.cards
    by_name = {card.name: card.nodes for card in cards}
    card_names = [port.card.partition("/")[0] for port in ports]  # fabric.py names a port CARD/NUMBER
    # assign cables to the box's cards by name, else in order if there are as many, else spread them evenly
    if by_name and all(name in by_name for name in card_names):
        return [(port, by_name[name]) for port, name in zip(ports, card_names, strict=True)]
    if cards and len(cards) == len(ports):
        return [(port, card.nodes) for port, card in zip(ports, cards, strict=True)]
    nodes = _card_nodes(box.machine)
    smaller, larger = sorted((len(ports), len(nodes)))
    # Only an even distribution: every cable serves equally many nodes, or every node gets equally many cables.
    if larger % smaller:
        raise Invalid(
            f"{len(ports)} cables of a host cannot be shared evenly by the {len(nodes)} places of {box.machine.name}; "
            "give the box as a file that lists its network cards (nvidia-smi topo -m, NCCL's XML)"
        )
    return [(port, ports_of_card(nodes, number, len(ports))) for number, port in enumerate(ports)]


def _assign_box_cards(box: Probed, ports: list[Port]) -> Assignment:
    """Return the cables of a host whose file lists only switches: one per card of the box, with the card's speed."""
    cards = box.machine.cards or (NetworkCard("card", bandwidth=None, nodes=tuple(_card_nodes(box.machine))),)
    assignment = []
    for number, card in enumerate(cards):
        port = ports[number % len(ports)]
        assignment.append((replace(port, card=card.name, speed=card.bandwidth or port.speed), card.nodes))
    return assignment


def _card_nodes(machine: Topology) -> list[int]:
    """Return the nodes that network cards attach to: PCIe switches, if there are no faster links, else ranks."""
    # box.py and the catalogue name the places of PCIe switches so
    pcie_switches = [node for node in range(machine.ranks, machine.nodes) if "/pcie" in machine.places[node]]
    fast = {machine.types[kind].kind for kind in machine.link_type.tolist()} - {"pcie", "socket"}
    return pcie_switches if pcie_switches and not fast else list(range(machine.ranks))


def _add_cables(
    host: int,
    assignment: Assignment,
    machine: Topology,
    switches: Sequence[str],
    cables: list[Cable],
    cards: list[Card],
) -> None:
    """Append the cables of one host to `cables`, and to `cards` a `Card` for each cable that several nodes share.

    Several cables between a node and a switch become one link.
    """
    bandwidth_between: dict[tuple[int, int], Fraction] = {}
    kind_of: dict[int, LinkType] = {}
    for number, (port, nodes) in enumerate(assignment):
        for node in nodes:
            bandwidth_between[node, port.switch] = bandwidth_between.get((node, port.switch), Fraction(0)) + port.speed
        kind_of.setdefault(port.switch, _kind_of_link(machine, port.host, port.switch))
        if len(nodes) > 1:
            cards.append(Card(f"host{host}/nic{number}", tuple((host, node) for node in nodes), port.speed))
    for (node, switch), speed in sorted(bandwidth_between.items()):
        link_kind = kind_of[switch]
        cables.append(((host, node), switches[switch - machine.ranks], replace(link_kind, bandwidth=speed)))


def _kind_of_link(machine: Topology, host: int, switch: int) -> LinkType:
    """Return the type of the first link from a host to a switch."""
    is_between = (machine.link_src == host) & (machine.link_dst == switch)
    return machine.types[int(machine.link_type[is_between][0])]


def _scale_trunks(machine: Topology, switches: Sequence[str], factor: Fraction) -> Iterator[Cable]:
    """Yield the links between switches, their bandwidth multiplied by `factor`."""
    ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), machine.link_type.tolist(), strict=True)
    for a, b, kind in ends:
        if a >= machine.ranks and b >= machine.ranks:
            link_kind = machine.types[kind]
            scaled = replace(link_kind, bandwidth=link_kind.bandwidth * factor)
            yield switches[a - machine.ranks], switches[b - machine.ranks], scaled
