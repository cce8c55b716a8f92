"""Read the output of ibnetdiscover: blocks of switches, adapters (network cards) and routers, each with its ports.

A block has a head line, then a line per port with the node and port at the other end of its cable:

    Switch 36 "S-0002c9..."  # "leaf0" ...
    [1]  "H-0002c9..."[1](2c9...)  # "node01 mlx5_0" lid 4 4xHDR

    Ca 1 "H-0002c9..."  # "node01 mlx5_0"
    [1](2c9...)  "S-0002c9..."[1]  # lid 4 lmc 0 "leaf0" lid 1 4xHDR
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from antiphon.errors import Invalid, quote
from antiphon.formats.probe.lines import read_lines
from antiphon.formats.probe.net import (
    MAX_HOSTS,
    MAX_PORTS,
    MAX_SWITCHES,
    Net,
    natural_key,
    network_machine,
)
from antiphon.formats.probe.probed import Port, Probed
from antiphon.formats.probe.speeds import cable_speed

# Groups of a head: word, kind (S: switch, H: adapter, R: router), GUID, label. Of a port: its number; kind, GUID and
# port number at the other end; the rest of the line, with label and speed.
_HEAD = re.compile(r'(Switch|Ca|Rt)\s+[0-9]{1,5}\s+"([SHR])-([0-9a-fA-F]{1,32})"\s*#?\s*(?:"([^"]{0,200})")?')
_PORT = re.compile(
    r'\[([0-9]{1,4})\](?:\[ext [0-9]{1,4}\])?(?:\([0-9a-fA-F]{1,32}\))?\s+"([SHR])-([0-9a-fA-F]{1,32})"'
    r"\[([0-9]{1,4})\](?:\[ext [0-9]{1,4}\])?(?:\([0-9a-fA-F]{1,32}\))?\s*#?\s*(.*)"
)
_SPEED = re.compile(r"\b([0-9]{1,2}x[A-Z][A-Z0-9]{2,4})\b")
_PORT_BITS = 40  # of a packed port: room for 10^8 nodes
_PORTS = 10**4  # port numbers have at most four digits: a port is packed as node * _PORTS + number
_ASSUMED_CABLE = "4xHDR"  # where a cable's speed is unknown
_QUOTED = re.compile(r'"([^"]{0,200})"')


def read(paths: Iterable[str], name: str) -> Probed:
    """Return the network as a machine with a rank per host."""
    reader = _Reader()
    for path in paths:
        for number, line in read_lines(path):
            reader.line(line.strip(), number)
    return network_machine(reader.net(name))


class _Reader:
    """Nodes by their kind and GUID ("S-..." switch, "H-..." adapter), and each cable once, though both ends list it."""

    def __init__(self) -> None:
        self.current = -1  # node of the current block
        self.numbers: dict[str, int] = {}  # kind and GUID -> node
        self.labels: list[str] = []  # by node the text in quotes: a switch's name, or "node01 mlx5_0"
        # (lower packed port) << _PORT_BITS | (higher packed port) -> speed, such as "4xHDR". One number takes less
        # memory than a tuple: a file may have millions of cables.
        self.cables: dict[int, str] = {}
        self.speed_labels: dict[str, str] = {}  # so that equal texts share memory

    def line(self, line: str, number: int) -> None:
        """Read a line: the head of a block, or a port of the current block."""
        if match := _HEAD.match(line):
            self.current = self._number_of(match[2], match[3], match[4] or "")
        elif line.startswith("[") and (match := _PORT.match(line)):
            if self.current < 0:
                raise Invalid(f"line {number}: a port before the switch or adapter that has it")
            tail = match[5]
            label = _QUOTED.search(tail)  # of the other end, whose own block a listing of adapters alone lacks
            peer = self._number_of(match[2], match[3], label[1] if label else "")
            low, high = sorted((self.current * _PORTS + int(match[1]), peer * _PORTS + int(match[4])))
            speeds = _SPEED.findall(tail)
            key = low << _PORT_BITS | high
            speed = speeds[-1] if speeds else self.cables.get(key, "")  # perhaps the line of the other end has it
            self.cables[key] = self.speed_labels.setdefault(speed, speed)
            # coarse limits on memory while reading (`network_machine` has the exact ones): cables of hosts and as many
            # between switches
            if len(self.cables) > 2 * MAX_PORTS:
                raise Invalid(f"line {number}: more than {2 * MAX_PORTS} cables")
        # hosts, switches, and an adapter for each port
        if len(self.labels) > MAX_HOSTS + MAX_SWITCHES + MAX_PORTS:
            raise Invalid(f"line {number}: more than {MAX_HOSTS + MAX_SWITCHES + MAX_PORTS} adapters and switches")

    def _number_of(self, kind: str, guid: str, label: str) -> int:
        """Return the number of a node, which gets the label if it has none."""
        number = self.numbers.setdefault(f"{kind}-{guid.lower()}", len(self.labels))
        if number == len(self.labels):
            self.labels.append("")
        if label and not self.labels[number]:
            self.labels[number] = "".join(c for c in label if c.isprintable()).strip()[:100]
        return number

    def net(self, name: str) -> Net:
        """Return the network; hosts are grouped from the labels of their cards."""
        net = Net(name)
        names = [*self.numbers]
        switches = [number for number, node in enumerate(names) if not node.startswith("H")]
        net.switches = _switch_names([(self.labels[number], names[number][2:]) for number in switches])
        switch_position = {number: position for position, number in enumerate(switches)}
        ends = [divmod(end, _PORTS) for key in self.cables for end in divmod(key, 1 << _PORT_BITS)]
        adapters = {number for number, _ in ends if number not in switch_position}
        in_switches = {number for number in adapters if _is_in_switch(self.labels[number])}
        cards = {
            number: _host_and_card(self.labels[number], names[number][2:]) for number in sorted(adapters - in_switches)
        }
        net.hosts = sorted({host for host, _ in cards.values()}, key=natural_key)
        host_position = {host: number for number, host in enumerate(net.hosts)}
        unknown: set[str] = set()  # speeds of cables
        both_ends = zip(ends[::2], ends[1::2], strict=True)  # each: (node, number of the port)
        for ((a, a_port), (b, b_port)), cable in zip(both_ends, self.cables.values(), strict=True):
            speed = cable_speed(cable)
            if speed is None:
                unknown.add(cable)
                speed = cable_speed(_ASSUMED_CABLE) or Fraction(0)
            if a in switch_position and b in switch_position:
                low, high = sorted((switch_position[a], switch_position[b]))
                if low != high:  # a cable from a switch to itself carries nothing
                    net.trunks[low, high] = net.trunks.get((low, high), Fraction(0)) + speed
                continue
            adapter, port, switch = (a, a_port, b) if a not in switch_position else (b, b_port, a)
            if switch not in switch_position:
                raise Invalid(f"{quote(names[a])} and {quote(names[b])} are cabled without a switch between")
            if adapter in cards:
                host, card = cards[adapter]
                net.ports.append(Port(host_position[host], f"{card}/{port}", switch_position[switch], speed))
        if in_switches:
            net.notes.append(f"{len(in_switches)} adapters of switches (aggregation nodes, management) are no hosts")
        if unknown:
            examples = ", ".join(sorted(map(repr, unknown))[:4])
            net.notes.append(f"cables without a known speed ({examples}): {_ASSUMED_CABLE} is assumed")
        net.ports.sort(key=lambda port: (port.host, natural_key(port.card)))
        return net


def _switch_names(switches: list[tuple[str, str]]) -> list[str]:
    """Return names of switches from their (label, GUID); the GUID is added to a label that several have."""
    count = Counter(label for label, _ in switches)
    return [label if label and count[label] == 1 else f"{label} {guid}".strip() for label, guid in switches]


def _host_and_card(label: str, guid: str) -> tuple[str, str]:
    """Return host and card of an adapter from labels such as "node01 mlx5_0". A vendor's product name is no host."""
    words = label.split()
    if not words or re.search(r"Mellanox|Voltaire|InfiniHost|Technologies", label):
        return f"H-{guid}", "card"
    return words[0], words[1] if len(words) > 1 else "card"


def _is_in_switch(label: str) -> bool:
    """Return whether this is an adapter inside a switch, such as an aggregation node of SHARP."""
    return re.search(r"aggregation node|Quantum .*SHARP|Sharp", label, re.IGNORECASE) is not None
