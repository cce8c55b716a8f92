"""What `ip`, `bridge` and `tc` are told to make of a layout: texts for their -batch, by network namespace."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product
from typing import Any

from antiphon.runtimes.lab.layout import Layout, Port

MTU = 9000
BURST = 16 * 1024  # bytes; with less the rate is not reached, with more short messages pass unlimited
PACKET = 18 * 1024  # bytes that TCP hands to a device as one, which pass as one: two packets, the least it makes
AT_ONCE = BURST + PACKET  # what a link that was idle lets through before anybody waits for it
_QUEUE = 10_000  # packets that wait at a shared limit
# No address but ours, so that nothing but the programs' data is counted; replies may come by another link. How TCP
# sends is not left to this computer's settings: with some of its ways a link is idle now and then.
SETTINGS = {
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
    "ipv4/ip_forward": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/default/send_redirects": "0",
    "ipv4/tcp_congestion_control": "reno",  # the only one that every kernel has, and lets a namespace choose
    "ipv4/tcp_slow_start_after_idle": "0",
    "ipv4/tcp_no_metrics_save": "1",
}
Batch = tuple[str, str, str]  # program, namespace, text


def address(rank: int) -> str:
    return f"10.77.{rank // 200}.{rank % 200 + 1}"


def network_address(layout: Layout, rank: int, switch: int) -> str:
    """Of a rank with several switches: at that one. Another prefix than that of `address`."""
    number = switch - layout.machine.ranks
    return f"10.{100 + number // 2}.{number % 2 * 2 + rank // 200}.{rank % 200 + 1}"


def networks(layout: Layout) -> dict[int, list[int]]:
    """By rank its switches, where it has several: each is a network for itself, as cards of a host are."""
    found: dict[int, list[int]] = defaultdict(list)
    for port in layout.ports:
        if port.node < layout.machine.ranks <= port.peer:
            found[port.node].append(port.peer)
    return {rank: switches for rank, switches in found.items() if len(switches) > 1}


def _card(rank: int) -> str:
    return f"02:61:70:00:{rank >> 8:02x}:{rank & 255:02x}"


def bits(rate: Fraction) -> int:
    return round(rate * 8)


def batches(layout: Layout) -> list[Batch]:
    """In this order: cables first, all of them created inside the namespaces that they join."""
    ip: dict[int, list[str]] = defaultdict(list)
    tc: dict[int, list[str]] = defaultdict(list)
    fdb: dict[int, list[str]] = defaultdict(list)
    for node in layout.nodes:
        ip[node].append("link set lo up")
        if node >= layout.machine.ranks:
            ip[node].append("link add name br0 type bridge stp_state 0 mcast_snooping 0")
            ip[node].append(f"link set dev br0 mtu {MTU} up")
    several = networks(layout)
    for port in layout.ports:
        if port.peer in several.get(port.node, ()):  # the first address of the device
            own = network_address(layout, port.node, port.peer)
            ip[port.node].append(f"address add {own}/32 dev {layout.space(port.peer)}")
        _port(layout, port, ip[port.node], tc[port.node])
    _ways(layout, ip, fdb)
    _ways_by_switch(layout, several, ip)
    _limits(layout, ip, tc)
    cables = "".join(_cable(layout, number, *cable) for number, cable in enumerate(layout.cables))
    made: list[Batch] = [("ip", "", cables)]
    for program, texts in (("ip", ip), ("bridge", fdb), ("tc", tc)):
        made += [
            (program, layout.space(n), "".join(f"{line}\n" for line in texts[n])) for n in layout.nodes if texts[n]
        ]
    return made


def _cable(layout: Layout, number: int, one: Port, other: Port) -> str:
    """Numbers of devices that are nowhere the same: the kernel notices late that a pair of equal numbers is up."""

    def end(port: Port, index: int) -> str:
        card = f" address {_card(port.node)}" if port.node < layout.machine.ranks else ""
        return f"name {layout.space(port.peer)} index {index} mtu {MTU}{card} netns {layout.space(port.node)}"

    return f"link add {end(one, 2 * number + 10)} type veth peer {end(other, 2 * number + 11)}\n"


def _port(layout: Layout, port: Port, ip: list[str], tc: list[str]) -> None:
    device = layout.space(port.peer)
    if port.node >= layout.machine.ranks:
        ip.append(f"link set dev {device} master br0")
        ip.append(f"link set dev {device} type bridge_slave learning off flood off mcast_flood off bcast_flood off")
    else:
        ip.append(f"address add {address(port.node)}/32 dev {device}")
    ip.append(f"link set dev {device} gso_max_size {PACKET} up")
    if port.rate is not None:
        tc += _shaper(device, port.rate)


def _shaper(device: str, rate: Fraction) -> list[str]:
    how = f"rate {bits(rate)}bit burst {BURST}b cburst {BURST}b quantum {MTU + 14}"
    return [
        f"qdisc add dev {device} root handle 1: htb default 1",
        f"class add dev {device} parent 1: classid 1:1 htb {how}",
    ]


def _ways(layout: Layout, ip: dict[int, list[str]], fdb: dict[int, list[str]]) -> None:
    """Of ranks: routes to all others, and whose card is next. Of switches: by which port to which card."""
    for target, steps in layout.step.items():
        for node in steps:
            device, card = _next(layout, node, target)
            if node >= layout.machine.ranks:
                fdb[node].append(f"fdb add {_card(target)} dev {device} master static")
            else:
                _direct_route(ip[node], address(target), device, card, address(node))


def _next(layout: Layout, node: int, target: int) -> tuple[str, str]:
    """By which device it goes on to a rank, and to whose card."""
    machine, steps = layout.machine, layout.step[target]
    following = int(machine.link_dst[steps[node]])
    device = layout.space(following)
    while following >= machine.ranks:
        following = int(machine.link_dst[steps[following]])
    return device, _card(following)


def _direct_route(ip: list[str], there: str, device: str, card: str, own: str) -> None:
    """As if it were a neighbour: programs look for routes without a gateway."""
    ip.append(f"neigh add {there} lladdr {card} nud permanent dev {device}")
    ip.append(f"route add {there}/32 dev {device} scope link src {own}")


def _ways_by_switch(layout: Layout, several: dict[int, list[int]], ip: dict[int, list[str]]) -> None:
    """What is sent to an address that a rank has at a switch goes by that switch from all that are there, too; from
    others as to the rank."""
    for target, switches in several.items():
        for switch, node in product(switches, layout.ranks):
            if node == target or node not in layout.step[target]:
                continue
            there = network_address(layout, target, switch)
            if switch in several.get(node, ()):
                own = network_address(layout, node, switch)
                _direct_route(ip[node], there, layout.space(switch), _card(target), own)
            else:
                _direct_route(ip[node], there, *_next(layout, node, target), address(node))


def _limits(layout: Layout, ip: dict[int, list[str]], tc: dict[int, list[str]]) -> None:
    """Traffic of a shared limit makes a detour over one more device that is as slow as the limit."""
    hooked: set[tuple[int, str]] = set()
    for funnel in layout.funnels:
        queue = f"ifb{funnel.number}"
        ip[funnel.node].append(f"link add name {queue} mtu {MTU} txqueuelen {_QUEUE} type ifb")
        ip[funnel.node].append(f"link set dev {queue} up")
        tc[funnel.node] += _shaper(queue, funnel.rate)
        for peer in funnel.peers:
            device = layout.space(peer)
            if (funnel.node, device) not in hooked:
                hooked.add((funnel.node, device))
                tc[funnel.node].append(f"qdisc add dev {device} clsact")
            side = "egress" if funnel.outward else "ingress"
            away = f"action mirred egress redirect dev {queue}"
            tc[funnel.node].append(f"filter add dev {device} {side} protocol all u32 match u32 0 0 {away}")


def about(layout: Layout, name: str, scale: str) -> dict[str, Any]:
    """What processes in the lab, and those who ask for it, need to know."""
    first = {port.node: layout.space(port.peer) for port in reversed(layout.ports)}
    return {
        "name": name,
        "scale": scale,
        "ranks": layout.ranks,
        "hosts": {f"r{rank}": address(rank) for rank in layout.ranks},
        "devices": {str(rank): first[rank] for rank in layout.ranks},
    }
