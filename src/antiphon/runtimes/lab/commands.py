"""Generate the `ip`, `bridge` and `tc` commands that create a layout, as input for their -batch mode, per namespace.

Input: a `LabLayout`. Output (`batches`): texts of commands. A rank's namespace gets an address, its devices and a route
to every other rank; a switch's namespace gets a bridge with a fixed table of addresses and ports, so that no frame is
flooded. A device is named after the namespace at its other end. A device that sends over links is shaped to their rate
by an HTB queue. A shared limit becomes one more device (ifb) with such a queue, through which the traffic of its links
is redirected. For ranks 0 and 1 at switch s0:

    in r0:  address add 10.77.0.1/32 dev s0;  route add 10.77.0.2/32 dev s0 scope link src 10.77.0.1
    in s0:  fdb add 02:61:70:00:00:01 dev r1 master static
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from antiphon.runtimes.lab.layout import CableEnd, LabLayout, Pair

MTU = 9000  # bytes: jumbo frames, as few packets as Ethernet allows
ETHERNET_HEADER = 14  # bytes
BURST = 16 * 1024  # bytes; a smaller burst does not reach the rate, a larger one lets short messages pass unlimited
PACKET = 18 * 1024  # bytes that TCP passes to a device at once: two packets, its minimum
AT_ONCE = BURST + PACKET  # bytes that an idle link lets through without delay
_QUEUE = 10_000  # packets queued at a shared limit
_RANKS_PER_SUBNET = 200  # of addresses that end in 1 to 254
# No other addresses, so that only the programs' data is counted; replies may come by another link. TCP does not use the
# settings of this computer: with some congestion controls a link is idle now and then.
SETTINGS = {
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
    "ipv4/ip_forward": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/default/send_redirects": "0",
    "ipv4/tcp_congestion_control": "reno",  # the only one that every kernel has and a namespace may choose
    "ipv4/tcp_slow_start_after_idle": "0",
    "ipv4/tcp_no_metrics_save": "1",
}
Batch = tuple[str, str, str]  # program; namespace, "": that of the process that runs it; commands, one per line


def rank_address(rank: int) -> str:
    """Return the IP address of a rank."""
    return f"10.77.{rank // _RANKS_PER_SUBNET}.{rank % _RANKS_PER_SUBNET + 1}"


def network_address(layout: LabLayout, rank: int, switch: int) -> str:
    """Return the address that a rank with several switches has at one of them, beside its `rank_address`.

    Two switches share a prefix from 10.100 on, each with two subnets.
    """
    number = switch - layout.machine.ranks
    subnet, host = divmod(rank, _RANKS_PER_SUBNET)
    return f"10.{100 + number // 2}.{number % 2 * 2 + subnet}.{host + 1}"


def rank_switches(layout: LabLayout) -> dict[int, list[int]]:
    """Return the switches of each rank that has several: each of them is a network of its own, as of a host's cards."""
    switches_of: dict[int, list[int]] = defaultdict(list)
    for port in layout.ports:
        if port.node < layout.machine.ranks <= port.peer:
            switches_of[port.node].append(port.peer)
    return {rank: switches for rank, switches in switches_of.items() if len(switches) > 1}


def _card_address(rank: int) -> str:
    """Return the MAC address that all devices of a rank have: a locally administered one (02)."""
    return f"02:61:70:00:{rank >> 8:02x}:{rank & 255:02x}"


def bits(rate: Fraction) -> int:
    """Return bits per second of a rate in bytes per second."""
    return round(rate * 8)


def batches(layout: LabLayout) -> list[Batch]:
    """Return the commands in order: cables first, created inside the namespaces that they join."""
    ip: dict[int, list[str]] = defaultdict(list)
    tc: dict[int, list[str]] = defaultdict(list)
    fdb: dict[int, list[str]] = defaultdict(list)
    for node in layout.nodes:
        ip[node].append("link set lo up")
        if node >= layout.machine.ranks:
            ip[node].append("link add name br0 type bridge stp_state 0 mcast_snooping 0")
            ip[node].append(f"link set dev br0 mtu {MTU} up")
    switches_of = rank_switches(layout)
    for port in layout.ports:
        if port.peer in switches_of.get(port.node, ()):  # the first address of the device
            own_address = network_address(layout, port.node, port.peer)
            ip[port.node].append(f"address add {own_address}/32 dev {layout.space(port.peer)}")
        _configure_port(layout, port, ip[port.node], tc[port.node])
    _add_routes(layout, ip, fdb, "add")
    _routes_by_switch(layout, switches_of, ip, "add")
    _add_limits(layout, ip, tc)
    cables = "".join(_cable_command(layout, number, *cable) for number, cable in enumerate(layout.cables))
    all_batches: list[Batch] = [("ip", "", cables)]
    for program, texts in (("ip", ip), ("bridge", fdb), ("tc", tc)):
        all_batches += [
            (program, layout.space(n), "".join(f"{line}\n" for line in texts[n])) for n in layout.nodes if texts[n]
        ]
    return all_batches


def cut_batches(layout: LabLayout, dead: Sequence[Pair]) -> list[Batch]:
    """Return the commands after which the cables between these nodes are down and all others up."""
    ip: dict[int, list[str]] = defaultdict(list)
    for port in layout.ports:
        is_dead = (min(port.node, port.peer), max(port.node, port.peer)) in dead
        ip[port.node].append(f"link set dev {layout.space(port.peer)} {'down' if is_dead else 'up'}")
    return [("ip", layout.space(node), "".join(f"{line}\n" for line in lines)) for node, lines in ip.items()]


def route_batches(layout: LabLayout) -> list[Batch]:
    """Return the commands that replace the paths of a lab by those of this layout."""
    ip: dict[int, list[str]] = defaultdict(list)
    fdb: dict[int, list[str]] = defaultdict(list)
    _add_routes(layout, ip, fdb, "replace")
    _routes_by_switch(layout, rank_switches(layout), ip, "replace")
    return [
        (program, layout.space(node), "".join(f"{line}\n" for line in lines))
        for program, texts in (("ip", ip), ("bridge", fdb)) for node, lines in texts.items()
    ]  # fmt: skip


def _cable_command(layout: LabLayout, number: int, first: CableEnd, second: CableEnd) -> str:
    """Return the command of a cable. Device indices are unique: else the kernel notices late that a pair is up."""

    def end(port: CableEnd, index: int) -> str:
        card = f" address {_card_address(port.node)}" if port.node < layout.machine.ranks else ""
        return f"name {layout.space(port.peer)} index {index} mtu {MTU}{card} netns {layout.space(port.node)}"

    index = 2 * number + 10  # a namespace begins with a few devices of its own, such as the loopback
    return f"link add {end(first, index)} type veth peer {end(second, index + 1)}\n"


def _configure_port(layout: LabLayout, port: CableEnd, ip: list[str], tc: list[str]) -> None:
    """Add the commands for one end of a cable: into the bridge or with the rank's address, up, and shaped."""
    device = layout.space(port.peer)
    if port.node >= layout.machine.ranks:
        ip.append(f"link set dev {device} master br0")
        ip.append(f"link set dev {device} type bridge_slave learning off flood off mcast_flood off bcast_flood off")
    else:
        ip.append(f"address add {rank_address(port.node)}/32 dev {device}")
    ip.append(f"link set dev {device} gso_max_size {PACKET} up")
    if port.rate is not None:
        tc += _shaper_commands(device, port.rate)


def _shaper_commands(device: str, rate: Fraction) -> list[str]:
    """Return the commands that limit the rate at which a device sends."""
    htb = f"htb rate {bits(rate)}bit burst {BURST}b cburst {BURST}b quantum {MTU + ETHERNET_HEADER}"
    return [
        f"qdisc add dev {device} root handle 1: htb default 1",
        f"class add dev {device} parent 1: classid 1:1 {htb}",
    ]


def _add_routes(layout: LabLayout, ip: dict[int, list[str]], fdb: dict[int, list[str]], verb: str) -> None:
    """Add or replace (`verb`) the routes of ranks to all others, each by the card of the next rank on the path, and the
    entries of switches that name the port towards each card.
    """
    for target, steps in layout.next_link.items():
        for node in steps:
            device, card = _next_hop(layout, node, target)
            if node >= layout.machine.ranks:
                fdb[node].append(f"fdb {verb} {_card_address(target)} dev {device} master static")
            else:
                _direct_route(ip[node], verb, rank_address(target), device, card, rank_address(node))


def _next_hop(layout: LabLayout, node: int, target: int) -> tuple[str, str]:
    """Return the device and the address of the next card on the path to a rank."""
    machine, steps = layout.machine, layout.next_link[target]
    next_node = int(machine.link_dst[steps[node]])
    device = layout.space(next_node)
    while next_node >= machine.ranks:
        next_node = int(machine.link_dst[steps[next_node]])
    return device, _card_address(next_node)


def _direct_route(ip: list[str], verb: str, target_address: str, device: str, card: str, own_address: str) -> None:
    """Route as to a neighbour: programs look for routes without a gateway."""
    ip.append(f"neigh {verb} {target_address} lladdr {card} nud permanent dev {device}")
    ip.append(f"route {verb} {target_address}/32 dev {device} scope link src {own_address}")


def _routes_by_switch(
    layout: LabLayout, switches_of: dict[int, list[int]], ip: dict[int, list[str]], verb: str
) -> None:
    """Add or replace routes to the addresses that ranks have at their switches: over this switch from ranks that are at
    it, too; from all others along the path to the rank."""
    for target, switches in switches_of.items():
        for switch, node in product(switches, layout.ranks):
            if node == target or node not in layout.next_link[target]:
                continue
            target_address = network_address(layout, target, switch)
            if switch in switches_of.get(node, ()):
                own_address = network_address(layout, node, switch)
                _direct_route(ip[node], verb, target_address, layout.space(switch), _card_address(target), own_address)
            else:
                _direct_route(ip[node], verb, target_address, *_next_hop(layout, node, target), rank_address(node))


def _add_limits(layout: LabLayout, ip: dict[int, list[str]], tc: dict[int, list[str]]) -> None:
    """Redirect the traffic of each shared limit (`LimitQueue`) over a device with the rate of the limit."""
    devices_with_filters: set[tuple[int, str]] = set()
    for limit_queue in layout.limit_queues:
        queue = f"ifb{limit_queue.number}"
        ip[limit_queue.node].append(f"link add name {queue} mtu {MTU} txqueuelen {_QUEUE} type ifb")
        ip[limit_queue.node].append(f"link set dev {queue} up")
        tc[limit_queue.node] += _shaper_commands(queue, limit_queue.rate)
        for peer in limit_queue.peers:
            device = layout.space(peer)
            if (limit_queue.node, device) not in devices_with_filters:
                devices_with_filters.add((limit_queue.node, device))
                tc[limit_queue.node].append(f"qdisc add dev {device} clsact")
            side = "egress" if limit_queue.outward else "ingress"
            action = f"action mirred egress redirect dev {queue}"
            # a mask of 0 matches every packet
            tc[limit_queue.node].append(f"filter add dev {device} {side} protocol all u32 match u32 0 0 {action}")


def lab_facts(layout: LabLayout, name: str, scale: str) -> dict[str, Any]:
    """Return the facts on a lab for processes in it and for `lab status`."""
    # the first device of every node, as later entries of a dictionary replace earlier ones
    first_device = {port.node: layout.space(port.peer) for port in reversed(layout.ports)}
    return {
        "name": name,
        "scale": scale,
        "ranks": layout.ranks,
        "hosts": {f"r{rank}": rank_address(rank) for rank in layout.ranks},
        "devices": {str(rank): first_device[rank] for rank in layout.ranks},
    }
