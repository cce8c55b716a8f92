"""Read Slurm's topology.conf (switches in a tree, blocks, or rings, each taken for a switch) or the output of
`scontrol show topology`, and host lists.

Neither contains speeds (LinkSpeed has no unit, and Slurm does not use it). Assumed are one cable of 200 Gbit/s per
host, and as much bandwidth above every switch as below it (`Net.with_assumed_trunks`).

Two leaf switches of four hosts each, below a spine:

    SwitchName=leaf0 Nodes=tux[0-3]
    SwitchName=leaf1 Nodes=tux[4-7]
    SwitchName=spine Switches=leaf[0-1]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

from antiphon.errors import Invalid, quote
from antiphon.formats.probe.lines import read_lines
from antiphon.formats.probe.net import MAX_HOSTS, MAX_SWITCHES, Net, network_machine
from antiphon.formats.probe.probed import Port, Probed
from antiphon.topologies.links import GB
from antiphon.topologies.options import Bandwidth
from antiphon.units import parse_bandwidth

CABLE = Fraction(25 * GB)  # assumed bytes per second each way: 200 Gbit/s
_MAX_LINE = 2**18  # characters of a line with all its continuations
_MAX_NAMES = 2 * MAX_HOSTS  # in all lists of a file: a host may be in the list of a leaf switch and of those above
_WORD = re.compile(r"([A-Za-z_]{1,40})=(\S*)")
_ITEM = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")


def read(paths: Iterable[str], name: str, *, nic: Bandwidth | None = None) -> Probed:
    """Return the network as a machine with a rank per host. `nic`: bandwidth of the card of a host."""
    reader = _Reader()
    for path in paths:
        for number, line in _join_lines(path):
            reader.line(line, number)
    return network_machine(reader.net(name, CABLE if nic is None else parse_bandwidth(nic, "nic"), nic is not None))


def _join_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments; a line that ends in a backslash is joined with the next."""
    continued, first = "", 0
    for number, line in read_lines(path):
        text = line.split("#", 1)[0].rstrip()
        first = first or number
        if text.endswith("\\"):
            continued += text[:-1] + " "
            if len(continued) > _MAX_LINE:
                raise Invalid(f"line {first}: goes on for more than {_MAX_LINE} characters")
            continue
        if (continued + text).strip():
            yield first, (continued + text).strip()
        continued, first = "", 0


class _Reader:
    """Collects switches (or blocks) line by line, with the hosts and switches below each."""

    def __init__(self) -> None:
        self.nodes: dict[str, list[str]] = {}  # switch or block -> its hosts
        self.below: dict[str, list[str]] = {}  # switch -> switches below it
        self.has_blocks = False
        self.count = 0  # names in all lists so far; `expand_hosts` limits them

    def line(self, line: str, number: int) -> None:
        """Read a line: a switch, block or ring with the hosts and switches below it."""
        values = {key.lower(): value for key, value in _WORD.findall(line)}
        name = values.get("switchname") or values.get("blockname") or values.get("ringname")
        if name is None:
            # rulers and remarks of scontrol, and the sizes of blocks, which say nothing of switches
            if "blocksizes" in line.lower() or line.startswith(("---", "No ")):
                return
            raise Invalid(
                f"line {number}: {quote(line)} is no line of topology.conf; expected SwitchName=... with Nodes= or "
                "Switches="
            )
        self.has_blocks = self.has_blocks or "blockname" in values
        if name in self.nodes:
            raise Invalid(f"line {number}: switch {quote(name)} stands there already")
        hosts = expand_hosts(values.get("nodes", ""), f"line {number}: Nodes", before=self.count)
        below = expand_hosts(values.get("switches", ""), f"line {number}: Switches", before=self.count)
        self.count += len(hosts) + len(below)
        self.nodes[name], self.below[name] = hosts, below
        if len(self.nodes) > MAX_SWITCHES:
            raise Invalid(f"line {number}: more than {MAX_SWITCHES} switches")

    def net(self, name: str, cable: Fraction, speed_is_known: bool) -> Net:
        """Return the network; `cable`: bytes per second of each host's cable, assumed unless `speed_is_known`."""
        net = Net(name, assumed=True)
        net.switches = [*self.nodes]
        switch_number = {switch: number for number, switch in enumerate(net.switches)}
        host_number: dict[str, int] = {}
        for switch, hosts in self.nodes.items():
            if self.below[switch]:
                continue  # scontrol lists all hosts below a switch; a cable goes to the lowest switch only
            for host in hosts:
                number = host_number.setdefault(host, len(host_number))
                # a host below several leaf switches has a card for each of them
                net.ports.append(Port(number, f"card{switch_number[switch]}", switch_number[switch], cable))
        net.hosts = [*host_number]
        for switch, switches_below in self.below.items():
            for low in switches_below:
                if low not in switch_number:
                    raise Invalid(f"switch {quote(switch)} is above {quote(low)}, which has no line of its own")
                net.above.append((switch_number[low], switch_number[switch]))
        if self.has_blocks and len(net.switches) > 1 and not net.above:
            net.switches.append("between blocks")
            net.above = [(block, len(net.switches) - 1) for block in range(len(net.switches) - 1)]
            net.notes.append("blocks are joined by one switch (assumed: the file shows nothing between them)")
        if not speed_is_known:
            net.notes.append("one cable of 200 Gbit/s per host is assumed (--option nic=400Gbit/s)")
        if net.above:
            net.notes.append("every switch is assumed to have upwards what it has below (Slurm reports no speeds)")
        net.check()
        return net.with_assumed_trunks()


def expand_hosts(text: str, label: str = "hosts", before: int = 0) -> list[str]:
    """Return the names of a list such as tux[0-3,12],login, in order. Numbers keep their leading zeros.

    `label`: what messages call the list. `before`: the number of names in earlier lists of the file.
    """
    host_names: list[str] = []
    if text.strip().lower() in ("", "(null)", "none"):
        return host_names
    if text.count("[") != text.count("]"):
        raise Invalid(f"{label}: {quote(text)} has a bracket without its other")
    for item in _ITEM.findall(text.strip()):
        names = [""]
        for piece in re.findall(r"\[[^\]]*\]|[^\[]+", item.strip()):
            tails = list(_expand_range(piece[1:-1], label)) if piece.startswith("[") else [piece]
            if len(names) * len(tails) + len(host_names) + before > _MAX_NAMES:
                raise Invalid(f"{label}: names more than {_MAX_NAMES} hosts; that is more than are read")
            names = [name + tail for name in names for tail in tails]
        host_names += names
    for name in host_names:
        if not name or len(name) > 100 or not name.isprintable() or "]" in name:
            raise Invalid(f"{label}: {quote(name)} is no name of a host")
    return host_names


def _expand_range(text: str, label: str) -> Iterator[str]:
    """Yield the numbers of a bracket such as 0-3,12 as texts."""
    for entry in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", entry)
        if match is None:
            raise Invalid(f"{label}: [{entry[:40]}] is no range; expected numbers such as [0-3,12]")
        low, high = int(match[1]), int(match[2] or match[1])
        if not 0 <= high - low <= _MAX_NAMES:
            raise Invalid(f"{label}: [{entry[:40]}] is no range from low to high of at most {_MAX_NAMES}")
        for number in range(low, high + 1):
            yield f"{number:0{len(match[1])}d}"
