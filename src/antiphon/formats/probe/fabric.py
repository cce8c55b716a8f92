"""What ibnetdiscover prints: blocks of switches, adapters and routers, each with its ports and what they lead to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

from antiphon.errors import Invalid, quote
from antiphon.formats.probe.found import Found, Port
from antiphon.formats.probe.lines import numbered
from antiphon.formats.probe.net import MOST_NODES, MOST_PORTS, Net, counted, drawn, natural
from antiphon.formats.probe.speeds import infiniband

_HEAD = re.compile(r'(Switch|Ca|Rt)\s+[0-9]{1,5}\s+"([SHR])-([0-9a-fA-F]{1,32})"\s*#?\s*(?:"([^"]{0,200})")?')
_PORT = re.compile(
    r'\[([0-9]{1,4})\](?:\[ext [0-9]{1,4}\])?(?:\([0-9a-fA-F]{1,32}\))?\s+"([SHR])-([0-9a-fA-F]{1,32})"'
    r"\[([0-9]{1,4})\](?:\[ext [0-9]{1,4}\])?(?:\([0-9a-fA-F]{1,32}\))?\s*#?\s*(.*)"
)
_SPEED = re.compile(r"\b([0-9]{1,2}x[A-Z][A-Z0-9]{2,4})\b")
_QUOTED = re.compile(r'"([^"]{0,200})"')


def read(paths: Iterable[str], name: str) -> Found:
    """The network, a rank per host."""
    return drawn(read_net(paths, name))


def read_net(paths: Iterable[str], name: str) -> Net:
    reader = _Reader()
    for path in paths:
        for number, line in numbered(path):
            reader.line(line.strip(), number)
    return reader.net(name)


class _Reader:
    def __init__(self) -> None:
        self.here = ("", "")  # S, H or R, and the node
        self.labels: dict[tuple[str, str], str] = {}
        # both ends, the lesser first, each (kind, node, port): its speed
        self.cables: dict[tuple[tuple[str, str, int], tuple[str, str, int]], str] = {}

    def line(self, line: str, number: int) -> None:
        if found := _HEAD.match(line):
            self.here = (found[2], found[3].lower())
            self._name(self.here, found[4] or "")
        elif line.startswith("[") and (found := _PORT.match(line)):
            if not self.here[0]:
                raise Invalid(f"line {number}: a port before the switch or adapter that has it")
            other = (found[2], found[3].lower())
            tail = found[5]
            if (label := _QUOTED.search(tail)) and self.here[0] == "S":
                self._name(other, label[1])
            self.labels.setdefault(other, "")
            ends = sorted([(*self.here, int(found[1])), (*other, int(found[4]))])
            speed = _SPEED.findall(tail)
            self.cables[ends[0], ends[1]] = speed[-1] if speed else self.cables.get((ends[0], ends[1]), "")
            if len(self.cables) > 2 * MOST_PORTS or len(self.labels) > 4 * MOST_NODES:
                raise Invalid(f"line {number}: more than {2 * MOST_PORTS} cables or {4 * MOST_NODES} nodes")

    def _name(self, node: tuple[str, str], label: str) -> None:
        clean = "".join(c for c in label if c.isprintable()).strip()[:100]
        if clean or node not in self.labels:
            self.labels[node] = clean

    def net(self, name: str) -> Net:
        net = Net(name)
        switches = [node for node in self.labels if node[0] in "SR"]
        titles = _titles([(self.labels[node], node[1]) for node in switches])
        at = {node: number for number, node in enumerate(switches)}
        net.switches = titles
        hosts = {node: _host(self.labels[node], node[1]) for node in self.labels if node[0] == "H"}
        cabled = {node for ends in self.cables for node in ((end[0], end[1]) for end in ends)}
        helpers = [node for node, (host, card) in hosts.items() if _is_helper(self.labels[node])]
        kept = {node: host for node, host in hosts.items() if node in cabled and node not in set(helpers)}
        net.hosts = natural(list({host for host, _ in kept.values()}))
        place = {host: number for number, host in enumerate(net.hosts)}
        unknown: set[str] = set()
        for (a, b), told in self.cables.items():
            speed = infiniband(told)
            if speed is None:
                unknown.add(told)
                speed = infiniband("4xHDR") or Fraction(0)
            ends = [(a[0], a[1]), (b[0], b[1])]
            if all(end in at for end in ends):
                low, high = sorted((at[ends[0]], at[ends[1]]))
                if low != high:
                    net.trunks[low, high] = net.trunks.get((low, high), Fraction(0)) + speed
                continue
            mine = [end for end in ends if end in kept]
            switch = [end for end in ends if end in at]
            if mine and switch:
                number = a[2] if (a[0], a[1]) == mine[0] else b[2]
                host, card = kept[mine[0]]
                net.ports.append(Port(place[host], f"{card}/{number}", at[switch[0]], speed))
            elif len(mine) == 2:
                raise Invalid(
                    f"{quote(kept[mine[0]][0])} and {quote(kept[mine[1]][0])} are cabled without a switch between"
                )
        if helpers:
            net.notes.append(f"{len(helpers)} adapters of switches (aggregation nodes, management) are no hosts")
        if unknown:
            net.notes.append(
                f"cables without a known speed ({', '.join(sorted(map(repr, unknown))[:4])}): 4xHDR is assumed"
            )
        net.ports.sort(key=lambda port: (port.host, counted(port.card)))
        return net


def _titles(named: list[tuple[str, str]]) -> list[str]:
    """Names of switches; those that several have, with their numbers."""
    count: dict[str, int] = {}
    for label, _ in named:
        count[label] = count.get(label, 0) + 1
    return [label if label and count[label] == 1 else f"{label} {guid}".strip() for label, guid in named]


def _host(label: str, guid: str) -> tuple[str, str]:
    """The host and the card of an adapter: "node01 HCA-1", "node01 mlx5_0". A maker's words are no host."""
    words = label.split()
    if not words or re.search(r"Mellanox|Voltaire|InfiniHost|Technologies", label):
        return f"H-{guid}", "card"
    return words[0], words[1] if len(words) > 1 else "card"


def _is_helper(label: str) -> bool:
    """Adapters inside of switches: aggregation nodes of SHARP."""
    return re.search(r"aggregation node|Quantum .*SHARP|Sharp", label, re.IGNORECASE) is not None
