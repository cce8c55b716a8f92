"""Read the output of ibnetdiscover: blocks of switches, adapters and routers, each with its ports and their peers."""

from __future__ import annotations

import re
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
    sort_naturally,
)
from antiphon.formats.probe.probed import Port, Probed
from antiphon.formats.probe.speeds import cable_speed

_HEAD = re.compile(r'(Switch|Ca|Rt)\s+[0-9]{1,5}\s+"([SHR])-([0-9a-fA-F]{1,32})"\s*#?\s*(?:"([^"]{0,200})")?')
_PORT = re.compile(
    r'\[([0-9]{1,4})\](?:\[ext [0-9]{1,4}\])?(?:\([0-9a-fA-F]{1,32}\))?\s+"([SHR])-([0-9a-fA-F]{1,32})"'
    r"\[([0-9]{1,4})\](?:\[ext [0-9]{1,4}\])?(?:\([0-9a-fA-F]{1,32}\))?\s*#?\s*(.*)"
)
_SPEED = re.compile(r"\b([0-9]{1,2}x[A-Z][A-Z0-9]{2,4})\b")
_PORTS = 10**4  # port numbers have four digits at most
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
        self.current, self.of_switch = -1, False
        self.numbers: dict[str, int] = {}
        self.labels: list[str] = []
        self.cables: dict[int, str] = {}  # both ends, each node * _PORTS + port, packed into one number -> speed
        self.speed_labels: dict[str, str] = {}  # so that equal texts share memory

    def line(self, line: str, number: int) -> None:
        if match := _HEAD.match(line):
            self.current = self._number_of(match[2], match[3], match[4] or "")
            self.of_switch = match[2] != "H"
        elif line.startswith("[") and (match := _PORT.match(line)):
            if self.current < 0:
                raise Invalid(f"line {number}: a port before the switch or adapter that has it")
            tail = match[5]
            label = _QUOTED.search(tail) if self.of_switch else None  # lines of adapters begin with other quoted texts
            other = self._number_of(match[2], match[3], label[1] if label else "")
            ends = sorted((self.current * _PORTS + int(match[1]), other * _PORTS + int(match[4])))
            speed = _SPEED.findall(tail)[-1:]
            key = ends[0] << 40 | ends[1]
            label_of_speed = speed[0] if speed else self.cables.get(key, "")
            self.cables[key] = self.speed_labels.setdefault(label_of_speed, label_of_speed)
            if len(self.cables) > 2 * MAX_PORTS:
                raise Invalid(f"line {number}: more than {2 * MAX_PORTS} cables")
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
        net = Net(name)
        names = [*self.numbers]
        switches = [number for number, node in enumerate(names) if not node.startswith("H")]
        net.switches = _switch_names([(self.labels[number], names[number][2:]) for number in switches])
        at = {number: position for position, number in enumerate(switches)}
        ends = [divmod(end, _PORTS) for key in self.cables for end in (key >> 40, key & (1 << 40) - 1)]
        cabled = {number for number, _ in ends if number not in at}
        helpers = {number for number in cabled if _is_helper(self.labels[number])}
        cards = {number: _host_and_card(self.labels[number], names[number][2:]) for number in sorted(cabled - helpers)}
        net.hosts = sort_naturally(list({host for host, _ in cards.values()}))
        place = {host: number for number, host in enumerate(net.hosts)}
        unknown: set[str] = set()
        for (a, b), cable in zip(zip(ends[::2], ends[1::2], strict=True), self.cables.values(), strict=True):
            speed = cable_speed(cable)
            if speed is None:
                unknown.add(cable)
                speed = cable_speed("4xHDR") or Fraction(0)
            if a[0] in at and b[0] in at:
                low, high = sorted((at[a[0]], at[b[0]]))
                if low != high:
                    net.trunks[low, high] = net.trunks.get((low, high), Fraction(0)) + speed
                continue
            (adapter, port), (switch, _) = (a, b) if a[0] not in at else (b, a)
            if switch not in at:
                raise Invalid(f"{quote(names[a[0]])} and {quote(names[b[0]])} are cabled without a switch between")
            if adapter in cards:
                host, card = cards[adapter]
                net.ports.append(Port(place[host], f"{card}/{port}", at[switch], speed))
        if helpers:
            net.notes.append(f"{len(helpers)} adapters of switches (aggregation nodes, management) are no hosts")
        if unknown:
            examples = ", ".join(sorted(map(repr, unknown))[:4])
            net.notes.append(f"cables without a known speed ({examples}): 4xHDR is assumed")
        net.ports.sort(key=lambda port: (port.host, natural_key(port.card)))
        return net


def _switch_names(named: list[tuple[str, str]]) -> list[str]:
    """Return names of switches; to a name that several have, the GUID is added."""
    count: dict[str, int] = {}
    for label, _ in named:
        count[label] = count.get(label, 0) + 1
    return [label if label and count[label] == 1 else f"{label} {guid}".strip() for label, guid in named]


def _host_and_card(label: str, guid: str) -> tuple[str, str]:
    """Return host and card of an adapter from labels such as "node01 mlx5_0". A vendor's product name is no host."""
    words = label.split()
    if not words or re.search(r"Mellanox|Voltaire|InfiniHost|Technologies", label):
        return f"H-{guid}", "card"
    return words[0], words[1] if len(words) > 1 else "card"


def _is_helper(label: str) -> bool:
    """Return whether this is an adapter inside a switch, such as an aggregation node of SHARP."""
    return re.search(r"aggregation node|Quantum .*SHARP|Sharp", label, re.IGNORECASE) is not None
