"""Read PICCL's topologies: nested groups, each with a file of LogGP parameters, as a machine and its profile.

    <topo num_nodes="4" num_levels="2">
        <group level="1" id="0" param_file="level1.csv">
            <group level="0" id="0" ports="2" param_file="level0.csv"> <node id="0"/> <node id="1"/> </group>
            <group level="0" id="1" ports="2" param_file="level0.csv"> <node id="2"/> <node id="3"/> </group>

The parameters of a pair of ranks are those of their lowest common group: here level0.csv between 0 and 1, level1.csv
between 0 and 2. In the machine a group becomes a switch with links of matching latency and bandwidth, so that all other
commands work on it; the exact LogGP parameters are in the profile. A file may come from anywhere: only parameter files
in its own folder are opened.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from antiphon.core.columns import as_int32
from antiphon.core.files import name_of, one_line, reading, within
from antiphon.core.topology import LinkType, Topology
from antiphon.cost.figures import MAX_RADIX, Level, LogGP
from antiphon.cost.profile import Profile
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.piccl.figures import read_figures
from antiphon.formats.xml import Attributes, read_integer, read_xml
from antiphon.topologies.options import check_node_count

NAMES = ("host", "rack", "row", "hall", "site", "region")  # of the levels in places, the innermost first
_MIN_G = Fraction(1, 10**15)  # seconds per byte; replaces G = 0, as a link needs a finite bandwidth


@dataclass(eq=False)
class FileGroup:
    """A group of the file."""

    level: int  # 0: a host
    id: int  # unique within its level
    file: str  # name of its parameter file
    ports: int | None  # network ports of a host, all its cards together; None if not stated
    line: int  # of the file, for messages
    nodes: array[int] = field(default_factory=lambda: array("q"))  # ranks directly in it
    groups: list[FileGroup] = field(default_factory=list)  # groups directly in it

    def hosts(self) -> int:
        """Return the number of groups of level 0 in it; a group with ranks directly in it counts as one host."""
        return 1 if self.level == 0 else max(sum(group.hosts() for group in self.groups), 1)


def read_topology(
    path: str | os.PathLike[str], device_radix: int | None = None, notes: list[str] | None = None
) -> tuple[Topology, Profile]:
    """Return the machine in a file, and a profile with its LogGP parameters. O(nodes).

    `device_radix`: messages that a rank sends at once, which PICCL takes as an argument; default: that of the file if
    Antiphon wrote it, else 1. `notes`: is extended by notes on corrected values. Every fault is one line that names the
    file.
    """
    reader = _Reader()
    read_xml(path, reader)
    with reading(name_of(path)):
        reader.check([] if notes is None else notes)
        figures = _read_all_figures(Path(path), reader.groups)
        names, levels = _name_levels(reader, figures)
        ports = {group.ports if group.ports is not None else 1 for group in reader.groups if group.level == 0}
        if len(ports) > 1:
            raise Unsupported(
                f"its hosts differ in ports ({', '.join(map(str, sorted(ports)[:5]))}); a profile has one node radix "
                "for all: read a file for each kind of host"
            )
        radix = (
            device_radix if device_radix is not None else read_integer(reader.head, "device_radix", "topo", default=1)
        )
        # A port sends one packet at a time. A profile calls PICCL's hosts nodes, and their number of ports (one for all
        # hosts, as checked above) the node radix.
        loggp = LogGP(tuple(levels), radix, node_radix=ports.pop(), node=NAMES[0])
        title = reader.head.get("name") or Path(path).name.split(".")[0]
        return _build_machine(reader, figures, names, loggp, title), Profile(name=title, loggp=loggp)


class _Reader:
    """Collects groups and nodes in the order of the file (the interface of `xml.Reader`)."""

    def __init__(self) -> None:
        self.depth = self.nodes = self.levels = 0
        self.head: Attributes = {}
        self.groups: list[FileGroup] = []
        self.top_groups: list[FileGroup] = []
        self.open_groups: list[FileGroup] = []
        self.open_node: int | None = None  # line of the <node> that is not yet closed
        self.ids, self.lines = array("q"), array("q")  # of nodes: their numbers, and the lines they stand in
        self.group_lines: dict[tuple[int, int], int] = {}  # level and id of a group: its line

    def begin(self, name: str, attributes: Attributes, line: int) -> None:
        self.depth += 1
        if self.depth == 1:
            if name != "topo":
                other = "; it is a schedule, not a machine" if name == "collective" else ""
                raise Invalid(f"line {line}: begins with <{name[:40]}>, a topology with <topo ...>{other}")
            self.head = dict(attributes)
            self.nodes = read_integer(attributes, "num_nodes", f"line {line}: topo")
            self.levels = read_integer(attributes, "num_levels", f"line {line}: topo", default=0)
        elif self.open_node is not None:
            raise Invalid(
                f"line {line}: <{name[:40]}> stands in the node of line {self.open_node}; close that: <node .../>"
            )
        elif name == "group":
            self._begin_group(attributes, line)
        elif name == "node" and self.open_groups:
            self._add_node(read_integer(attributes, "id", f"line {line}: node"), line)
            self.open_node = line
        else:
            raise Invalid(f"line {line}: <{name[:40]}> does not belong here; expected <group ...> or <node id=.../>")

    def end(self, name: str) -> None:
        self.depth -= 1
        if name == "node":
            self.open_node = None
        elif self.depth:
            self.open_groups.pop()

    def _begin_group(self, attributes: Attributes, line: int) -> None:
        where = f"line {line}: group"
        level, number = read_integer(attributes, "level", where), read_integer(attributes, "id", where)
        if level >= len(NAMES):
            raise Unsupported(f"{where}: level {level}; at most {len(NAMES)} levels (0 to {len(NAMES) - 1}) are read")
        if self.open_groups and level >= self.open_groups[-1].level:
            raise Invalid(
                f"{where}: level {level} stands in a group of level {self.open_groups[-1].level}; give it a lower level"
            )
        # ids are unique within a level
        if (earlier_line := self.group_lines.get((level, number))) is not None:
            raise Invalid(
                f"{where}: level {level} has a group {number} in line {earlier_line} already; give each its own id"
            )
        self.group_lines[level, number] = line
        file = attributes.get("param_file", "")
        if not file:
            raise Invalid(f'{where} has no param_file="..."; name its file of LogGP parameters')
        ports = read_integer(attributes, "ports", where) if level == 0 and "ports" in attributes else None
        if ports is not None and not 1 <= ports <= MAX_RADIX:
            raise Invalid(f"{where}: ports is {ports}; expected 1 to {MAX_RADIX}")
        group = FileGroup(level, number, file, ports, line)
        (self.open_groups[-1].groups if self.open_groups else self.top_groups).append(group)
        self.groups.append(group)
        self.open_groups.append(group)

    def _add_node(self, number: int, line: int) -> None:
        self.ids.append(number)
        self.lines.append(line)
        self.open_groups[-1].nodes.append(number)

    def check(self, notes: list[str]) -> None:
        """Check that nodes are 0 to num_nodes - 1, each once, and that levels are complete and nested."""
        if not self.nodes:
            raise Invalid("num_nodes is 0; expected 1 or more")
        # count, range, duplicates, gaps, levels: each check relies on the ones before it
        nodes = np.frombuffer(self.ids, np.int64)
        if len(nodes) > self.nodes and np.array_equal(np.sort(nodes), np.arange(len(nodes))):
            notes.append(f"num_nodes is {self.nodes}, but {len(nodes)} nodes stand in it: these are taken, as by PICCL")
            self.nodes = len(nodes)
        check_node_count(self.nodes + len(self.groups), f"num_nodes={self.nodes}")
        out_of_range = np.flatnonzero(nodes >= self.nodes)
        if out_of_range.size:
            first = int(out_of_range[0])
            raise Invalid(f"line {self.lines[first]}: node {nodes[first]}, but num_nodes is {self.nodes}")
        order = np.argsort(nodes, kind="stable")
        duplicates = np.flatnonzero(nodes[order[1:]] == nodes[order[:-1]])
        if duplicates.size:
            first, second = order[duplicates[0]], order[duplicates[0] + 1]
            raise Invalid(
                f"line {self.lines[second]}: node {nodes[first]} stands in line {self.lines[first]} already; keep one"
            )
        if len(nodes) < self.nodes:
            missing_node = next(node for node in range(self.nodes) if node >= len(nodes) or nodes[order[node]] != node)
            raise Invalid(f"num_nodes is {self.nodes}, but node {missing_node} stands in no group")
        levels = {group.level for group in self.groups}
        missing_level = next((level for level in range(max(self.levels, max(levels) + 1)) if level not in levels), None)
        if missing_level is not None:
            raise Invalid(f"has no group of level {missing_level}; num_levels is {self.levels}")
        if self.levels and max(levels) >= self.levels:
            raise Invalid(f"has groups of level {max(levels)}, but num_levels is {self.levels}")
        if len(self.top_groups) > 1:
            a, b, *_ = self.top_groups
            raise Invalid(
                f"the groups in line {a.line} and line {b.line} have no group in common, so the connection "
                "between their nodes is undefined; put all into one group of a higher level"
            )


def _read_all_figures(path: Path, groups: Sequence[FileGroup]) -> dict[str, Level]:
    """Return the LogGP parameters of every parameter file, by its name in the topology; each file is read once."""
    figures: dict[str, Level] = {}
    for group in groups:
        if group.file not in figures:
            with within(f"line {group.line}: param_file"):
                parameter_file = _find_file(path.resolve().parent, group.file)
            figures[group.file] = read_figures(parameter_file, one_line(group.file))
    return figures


def _find_file(folder: Path, file_name: str) -> Path:
    """Find a parameter file by its name relative to the topology's folder or to a folder above, as PICCL names files.

    Nothing outside the folder is opened, nor is its existence revealed, for any name in an untrusted topology.
    """
    if "\0" in file_name or file_name.startswith("/") or ".." in Path(file_name).parts:
        raise Invalid(f"{quote(file_name)} leads out of the folder of the topology; name a file in it")
    path_names = Path(file_name).parts
    # PICCL runs in a folder above; so drop leading folders of the name one by one
    for first in range(len(path_names)):
        candidate = folder.joinpath(*path_names[first:])
        with contextlib.suppress(OSError, RuntimeError):
            # symbolic links must not lead out of the folder
            target = candidate.resolve(strict=True)
            if not target.is_relative_to(folder):
                raise Invalid(
                    f"{quote(file_name)} is a link that leads out of the folder of the topology; copy the file"
                )
            if target.is_file():
                return target
    raise Invalid(f"there is no file {quote(file_name)} in the folder of the topology; copy it there")


def _name_levels(reader: _Reader, figures: dict[str, Level]) -> tuple[dict[tuple[int, str], str], list[Level]]:
    """Return the name of places by (level, parameter file), and the levels of the profile, innermost first.

    A level of the profile is for ranks that share a place of its name; the innermost that two ranks share counts.
    Groups of one level can have different parameter files. The most frequent file takes the plain name ("host"); groups
    with another file are an extra place inside of the plain one (host3/host-b), whose level precedes the plain one.
    """
    names: dict[tuple[int, str], str] = {}
    levels = []
    top = reader.top_groups[0]
    for number in sorted({group.level for group in reader.groups}):
        files = Counter(group.file for group in reader.groups if group.level == number)
        # the most frequent parameter file of a level takes the plain name
        order = sorted(files, key=lambda file: -files[file])  # stable: of equally many the first in the file
        # the one group of the top level holds all ranks, and "" is the place that all share
        plain_name = "" if number == top.level else NAMES[number]
        level_names = [plain_name, *(f"{plain_name}-{_number_in_letters(i)}" for i in range(1, len(order)))]
        names |= {(number, file): name for file, name in zip(order, level_names, strict=True)}
        levels += [
            replace(figures[file], within=name) for file, name in reversed(list(zip(order, level_names, strict=True)))
        ]
    return names, levels


def _number_in_letters(number: int) -> str:
    """Return a, b, ..., z, aa, ab, ... for 0, 1, ..."""
    text = ""
    # without a digit for 0: after z comes aa, hence the - 1 for each further letter
    while number >= 0:
        text, number = chr(ord("a") + number % 26) + text, number // 26 - 1
    return text


def _build_machine(
    reader: _Reader, figures: dict[str, Level], names: dict[tuple[int, str], str], loggp: LogGP, title: str
) -> Topology:
    """Return a machine with a switch for every group, linked to the switch of the group around it.

    Latencies along a route sum to that of the lowest common group; bandwidths are 1/G of the level times the ports.
    """
    ends, kind_of = array("q"), array("q")
    places = [""] * (reader.nodes + len(reader.groups))
    switch = {id(group): reader.nodes + i for i, group in enumerate(reader.groups)}
    kinds: dict[tuple[int, int, str, str], int] = {}
    types: list[LinkType] = []

    def add_link(inner: int, outer: FileGroup, group: FileGroup | None) -> None:
        """Link node `inner` (a rank, or the switch of `group`) to the switch of the group around it, both ways."""
        loggp_level = figures[outer.file]
        ports = group.hosts() * (loggp.node_radix or 1) if group is not None else 1
        key = (ports, outer.level, outer.file, group.file if group is not None else "")  # links that are alike
        if key not in kinds:
            # G is seconds per byte at the largest size: 1 / G is the bandwidth of one port
            rate = ports / max(Fraction(loggp_level.G[-1]), _MIN_G)
            # half of the additional latency of this level (at the smallest size) on the way up, half on the way down
            latency = (loggp_level.L[0] - (figures[group.file].L[0] if group is not None else 0.0)) / 2
            # 1 / G of a binary float is an unwieldy fraction: whole bytes per second will do, below 1000 some decimals
            rate = Fraction(round(rate)) if rate >= 1000 else rate.limit_denominator(10**9)
            kind = LinkType(f"level{outer.level}", rate, max(latency, 0.0))
            if kind not in types:
                types.append(kind)
            kinds[key] = types.index(kind)
        ends.extend((inner, switch[id(outer)], switch[id(outer)], inner))
        kind_of.extend((kinds[key], kinds[key]))

    # depth first without recursion, as files from elsewhere may be nested deeply
    pending = [(reader.top_groups[0], "")]
    while pending:
        group, prefix = pending.pop()
        name = names[group.level, group.file]
        plain_name = NAMES[group.level]
        if group is not reader.top_groups[0]:
            prefix += f"{plain_name}{group.id}/" + (f"{name}/" if name != plain_name else "")
        places[switch[id(group)]] = f"{prefix}switch" if prefix else "switch"
        for node in group.nodes:
            places[node] = f"{prefix}rank{node}"
            add_link(node, group, None)
        for inner in group.groups:
            add_link(switch[id(inner)], group, inner)
            pending.append((inner, prefix))
    src, dst = as_int32(np.frombuffer(ends, np.int64).reshape(-1, 2)).T
    kind_column = as_int32(np.frombuffer(kind_of, np.int64))
    return Topology(
        title, reader.nodes, switches=len(reader.groups), link_src=src, link_dst=dst, link_type=kind_column,
        types=tuple(types), places=tuple(places),
    )  # fmt: skip
