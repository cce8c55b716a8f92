"""Model a network of hosts and switches as probing tools report it, and convert it to a machine.

The machine has a rank per host. All cables of a host to one switch become one link (each way), all cables between two
switches one trunk. Where a report has no speeds, those of trunks are assumed (`Net.with_assumed_trunks`).

Example: 4 hosts with a port of 12.5 GB/s each at a switch, and one switch above: the trunk gets 50 GB/s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction

from antiphon.core.topology import Link, LinkType, build
from antiphon.errors import Invalid
from antiphon.formats.probe.box import find_group, join_groups
from antiphon.formats.probe.probed import Port, Probed
from antiphon.topologies.links import IB_HOP, SWITCH_HOP

# Far above the fabrics that are read here; a wrong file ends before memory does
MAX_HOSTS, MAX_SWITCHES, MAX_PORTS = 2**14, 2**12, 2**15
_MAX_NAME = 100  # characters of a machine's name
_MAX_SORTED = 200  # characters of a name that count in its sort key


@dataclass
class Net:
    """A network that a reader of some tool's files fills in. Hosts and switches are referred to by their positions.

    A switch is its position in `switches` here; in the machine, the nodes of switches follow those of hosts.
    """

    name: str
    hosts: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)
    trunks: dict[tuple[int, int], Fraction] = field(default_factory=dict)  # (lower, higher position): bytes/s each way
    above: list[tuple[int, int]] = field(default_factory=list)  # only without speeds: (switch, switch above it)
    kind: str = "ib"  # name of the link type of cables to hosts; all kinds get the latency of InfiniBand
    assumed: bool = False  # the files have no speeds: bandwidth above a switch is assumed equal to that below it
    notes: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raise Invalid if the network has no host, or is too large to convert."""
        if not self.hosts:
            raise Invalid("lists no host; nothing can communicate")
        if len(self.hosts) > MAX_HOSTS or len(self.switches) > MAX_SWITCHES or len(self.ports) > MAX_PORTS:
            raise Invalid(f"shows more than {MAX_HOSTS} hosts, {MAX_SWITCHES} switches or {MAX_PORTS} ports of hosts")

    def with_assumed_trunks(self) -> Net:
        """Return a copy with trunks of assumed speeds: the bandwidth above a switch is the sum of that below it,
        divided evenly among the switches above it.
        """
        below = [Fraction(0)] * len(self.switches)  # bytes per second of all links below a switch
        for port in self.ports:
            below[port.switch] += port.speed
        switches_above: dict[int, list[int]] = {}
        pending_below = [0] * len(self.switches)  # number of switches directly below that are not done
        for low, high in self.above:
            switches_above.setdefault(low, []).append(high)
            pending_below[high] += 1
        # Topological order from the lowest switches up (Kahn): a switch is ready once all below it are done.
        ready = [switch for switch, count in enumerate(pending_below) if not count]
        trunks: dict[tuple[int, int], Fraction] = {}
        done_count = 0
        while ready:
            low = ready.pop()
            done_count += 1
            for high in switches_above.get(low, ()):
                share = below[low] / len(switches_above[low])
                if share:
                    trunks[min(low, high), max(low, high)] = share
                below[high] += share
                pending_below[high] -= 1
                if not pending_below[high]:
                    ready.append(high)
        if done_count < len(self.switches):
            raise Invalid("has switches above each other in a circle")
        return replace(self, trunks=trunks)


def network_machine(net: Net) -> Probed:
    """Return the machine of a network, whose ranks are the hosts. In its ports a switch is a node of the machine."""
    net.check()
    first_switch = len(net.hosts)  # node of switch 0
    ports = tuple(replace(port, switch=first_switch + port.switch) for port in net.ports)
    speed_between: dict[tuple[int, int], Fraction] = {}  # all cables of a host to one switch
    for port in ports:
        key = port.host, port.switch
        speed_between[key] = speed_between.get(key, Fraction(0)) + port.speed
    link_types: dict[tuple[str, Fraction], LinkType] = {}  # one object per kind and speed
    links: list[Link] = []
    for (host, switch), speed in speed_between.items():
        cable = link_types.setdefault((net.kind, speed), LinkType(net.kind, speed, IB_HOP))
        links += [(host, switch, cable), (switch, host, cable)]
    for (low, high), speed in net.trunks.items():
        trunk = link_types.setdefault(("trunk", speed), LinkType("trunk", speed, SWITCH_HOP))
        low_node, high_node = first_switch + low, first_switch + high
        links += [(low_node, high_node, trunk), (high_node, low_node, trunk)]
    machine = build(net.name[:_MAX_NAME], len(net.hosts), links, switches=len(net.switches), places=unique_places(net))
    notes = [*net.notes]
    if networks := _count_components(net):
        notes.append(f"hosts are in {networks} networks that nothing shown here joins")
    return Probed(machine, tuple(notes), names=tuple(net.hosts), hosts=True, ports=ports, assumed=net.assumed)


def unique_places(net: Net) -> list[str]:
    """Return the names of hosts, then of switches; a number is added to a name that is taken."""
    names: list[str] = []
    taken_places: set[str] = set()
    for name in [*net.hosts, *net.switches]:
        place = name if name not in taken_places else f"{name} ({len(names)})"
        taken_places.add(place)
        names.append(place)
    return names


def _count_components(net: Net) -> int:
    """Return the number of connected components with hosts; 0 if there is only one."""
    hosts = len(net.hosts)
    group = list(range(hosts + len(net.switches)))  # union-find over hosts, then switches
    for port in net.ports:
        join_groups(group, port.host, hosts + port.switch)
    for low, high in net.trunks:
        join_groups(group, hosts + low, hosts + high)
    components = len({find_group(group, host) for host in range(hosts)})
    return components if components > 1 else 0


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which names stand as people count, node2 before node10: digits compare as numbers."""
    # runs of digits (at most 18: they fit in an int64) and of other characters
    runs = re.split(r"([0-9]{1,18})", name[:_MAX_SORTED])
    return [(int(run), "") if run.isdigit() and run.isascii() else (-1, run) for run in runs]
