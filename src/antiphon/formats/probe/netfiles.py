"""Read the network files of simulators: ASTRA-sim's (YAML, and JSON of its first version), those of ns-3 in the forms
of HPCC and SimAI, and the links in TACOS's CSV. `read` returns a `Probed`: the topology, with notes.

ASTRA-sim lists dimensions, the innermost first: in each, GPUs that differ in that coordinate alone form a ring, are
fully connected, or share a switch. Bandwidths are of one link in each direction; GB are 10^9 bytes. Two dimensions:

    topology: [ Ring, Switch ]
    npus_count: [ 4, 2 ]
    bandwidth: [ 50.0, 25.0 ]       GB/s
    latency: [ 500.0, 1000.0 ]      ns

are 8 GPUs: two rings of 4, and a switch for each pair of GPUs with the same position in their rings.

Texts are cut where they are stored or quoted ([:40] and the like), so that a damaged file fills no memory or message.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import islice, pairwise
from typing import Any

import numpy as np

from antiphon.core.columns import as_int32
from antiphon.core.files import read_bytes, within
from antiphon.core.jsontext import decode
from antiphon.core.topology import LinkType, Topology
from antiphon.errors import Invalid, quote
from antiphon.formats.probe.lines import read_lines
from antiphon.formats.probe.probed import Probed
from antiphon.topologies.links import GB
from antiphon.topologies.options import MAX_LISTED, check_link_count
from antiphon.units import exact, parse_bandwidth, parse_seconds

# Far above real files, so that damaged or other ones end early
_HEAD_LINES = 200  # in which the kind of a file is looked for
_MAX_KEYS, _MAX_VALUES, _MAX_DIMENSIONS = 50, 64, 16  # of a file of ASTRA-sim
MAX_BYTES = 2**18  # of a JSON file
MAX_RANKS = 2**14
MAX_TYPES = 2**10  # of links
MAX_LINKS = 2**17  # directed links of a file of TACOS, cables of one of ns-3
# How the GPUs of a dimension are joined, by the names that the versions of ASTRA-sim have for it
_SHAPES = {
    "ring": "ring", "fullyconnected": "full", "alltoall": "full", "switch": "switch", "mesh": "line", "line": "line",
    "torus": "ring",
    "mesh2d": "line",  # as one of several words; alone, `_read_shapes` makes two dimensions of Mesh2D
}  # fmt: skip


def read(paths: Iterable[str], name: str) -> Probed:
    """Read the network in the first of these files (other kinds of sources are read from several)."""
    path = next(iter(paths))
    first_lines = _first_lines(path)
    if not first_lines:
        raise Invalid("is empty")
    if first_lines[0].startswith("{"):
        return _machine_by_dimensions(_read_json(read_bytes(path, MAX_BYTES)), name)
    if any(re.match(r"(npus_count|topology)\s*:", line) for line in first_lines):
        return _machine_by_dimensions(_read_yaml(path), name)
    if any("SrcID" in line or line.startswith("NPUs Count") for line in first_lines):
        return _read_tacos(path, name)
    # a rough test: `_read_ns3` requires 3 counts, or 5 and the type of GPU (SimAI)
    if re.match(r"[0-9]+(\s+[0-9]+){1,5}(\s+\S+){0,2}$", first_lines[0]):
        return _read_ns3(path, name)
    raise Invalid("is no network file of ASTRA-sim, ns-3 or TACOS (see docs/probing.md for what is read)")


def _first_lines(path: str) -> list[str]:
    """Return the first lines, stripped, without comments and blank lines."""
    lines = (line.strip() for _, line in islice(read_lines(path), _HEAD_LINES))
    return [line for line in lines if line and not line.startswith("#")]


# ---- ASTRA-sim ----


def _read_yaml(path: str) -> dict[str, list[str]]:
    """Return the lists by key, on one line or with an entry per line. Nothing else of YAML is read."""
    values: dict[str, list[str]] = {}
    key = ""
    for number, raw in read_lines(path):
        line = raw.split("#", 1)[0].strip()
        if match := re.fullmatch(r"([A-Za-z_-]{1,40})\s*:\s*(.*)", line):
            key, text = match[1].replace("-", "_"), match[2].strip()
            if len(values) > _MAX_KEYS:
                raise Invalid(f"line {number}: more than {_MAX_KEYS} keys")
            values[key] = _split_words(text.strip("[]")) if text else []
        elif line.startswith("- ") and key:
            values[key].append(line[2:].strip().strip("\"'"))
        elif line and line not in ("---", "..."):
            raise Invalid(f"line {number}: {quote(line)}; expected key: [ value, value ]")
        if key and len(values[key]) > _MAX_VALUES:
            raise Invalid(f"line {number}: {key} has more than {_MAX_VALUES} values")
    return values


def _split_words(text: str) -> list[str]:
    """Return the words between commas, without quotes."""
    return [word.strip().strip("\"'") for word in text.split(",")] if text.strip() else []


def _read_json(data: bytes) -> dict[str, list[str]]:
    """Return the lists by key; a single value is a list of one.

    Of a list that is too long, _MAX_VALUES + 1 values are kept: its length is refused where its key is read.
    """
    root = decode(data, dict[str, Any])
    values_of: dict[str, list[str]] = {}
    for key, value in root.items():
        values = value if isinstance(value, list) else [value]
        values_of[key.replace("-", "_")[:40]] = [str(item)[:40] for item in values[: _MAX_VALUES + 1]]
    return values_of


def _machine_by_dimensions(values: dict[str, list[str]], name: str) -> Probed:
    """Return the machine of ASTRA-sim's description, by the lists that the file has."""
    sizes = _read_sizes(values)
    shapes = _read_shapes(values)
    if len(sizes) == 1 and len(shapes) == 2 and shapes[0] == shapes[1]:  # Torus2D of 16: 4 x 4
        side = math.isqrt(sizes[0])
        sizes = [side, sizes[0] // side] if side * side == sizes[0] else sizes
    count = math.prod(sizes)
    if count > MAX_RANKS:
        raise Invalid(f"has {count} NPUs; at most {MAX_RANKS} are read")
    speeds = _read_numbers(values, ("bandwidth", "link_bandwidth"), len(sizes))
    latencies = _read_numbers(values, ("latency", "link_latency"), len(sizes))
    counts: Sequence[Fraction | None] = [None] * len(sizes)
    if "links_count" in values:
        counts = _read_numbers(values, ("links_count",), len(sizes))
    # One topology for all dimensions.
    if len(shapes) == 1 and len(sizes) > 1:
        shapes = shapes * len(sizes)
    if len(shapes) != len(sizes):
        raise Invalid(f"names {len(shapes)} topologies for {len(sizes)} dimensions")
    links = _Links(count)
    for axis, (shape, size) in enumerate(zip(shapes, sizes, strict=True)):
        speed, latency = speeds[axis], latencies[axis]
        if speed <= 0:
            raise Invalid(f"bandwidth of dimension {axis}: must be greater than 0")
        rate = speed * GB * _parallel_links(shape, size, counts[axis])
        kind = LinkType("link" if shape != "switch" else "port", rate, float(latency / 10**9))
        _add_dimension(links, shape, sizes, axis, kind)
    return Probed(links.build_machine(name), names=tuple(f"NPU {rank}" for rank in range(count)))


def _read_sizes(values: dict[str, list[str]]) -> list[int]:
    """Return the number of GPUs along each dimension."""
    sizes = next((values[key] for key in ("npus_count", "units_count", "nodes_per_dim") if values.get(key)), None)
    if sizes is None:
        raise Invalid("has no npus_count (units-count in the first version)")
    if len(sizes) > _MAX_DIMENSIONS or not all(re.fullmatch(r"[0-9]{1,6}", size) and int(size) for size in sizes):
        raise Invalid(
            f"npus_count is {quote(sizes)}; expected a size from 1 for each of at most {_MAX_DIMENSIONS} dimensions"
        )
    return [int(size) for size in sizes]


def _read_shapes(values: dict[str, list[str]]) -> list[str]:
    """Return the shape of each dimension, a value of _SHAPES. "Torus2D" is two dimensions, "Ring_Switch" too."""
    words = values.get("topologies_per_dim") or values.get("topology") or values.get("topology_name") or []
    if len(words) == 1 and (match := re.fullmatch(r"(Torus|Mesh)([234])D(?:_(.*))?", words[0])):
        words = [match[1]] * int(match[2]) + ([match[3]] if match[3] else [])
    elif len(words) == 1 and "_" in words[0]:
        words = words[0].split("_")
    shapes = []
    for word in words:
        shape = _SHAPES.get(word.lower().replace("_", ""))
        if shape is None:
            raise Invalid(f"topology {quote(word)} is not read; expected Ring, FullyConnected, Switch or Mesh")
        shapes.append(shape)
    if not shapes:
        raise Invalid("has no topology")
    return shapes


def _read_numbers(values: dict[str, list[str]], keys: Sequence[str], count: int) -> list[Fraction]:
    """Return the numbers of the first of these keys, one per dimension; one number alone is for all dimensions."""
    key = next((key for key in keys if values.get(key)), None)
    if key is None:
        raise Invalid(f"has no {keys[0]}")
    with within(key):
        numbers = [exact(text, "number") for text in values[key]]
    if len(numbers) == 1:
        numbers = numbers * count
    if len(numbers) != count:
        raise Invalid(f"{key} has {len(numbers)} values for {count} dimensions")
    return numbers


def _parallel_links(shape: str, size: int, links: Fraction | None) -> Fraction:
    """Return the number of parallel links per pair if every NPU has `links` in this dimension; 1 for None.

    For a switch the pair is the NPU and the switch.
    """
    if links is None or links <= 0 or size < 2:
        return Fraction(1)
    if shape == "full":  # all are joined, even where the file counts fewer links than neighbours
        return max(links / (size - 1), Fraction(1))
    # in a ring or line the links of an NPU lead to two neighbours; a single one is that to the next NPU
    return links / 2 if shape in ("ring", "line") and size > 2 and links > 1 else links


def _add_dimension(links: _Links, shape: str, sizes: Sequence[int], axis: int, kind: LinkType) -> None:
    """Add the links among nodes that differ along this axis alone; the first axis varies fastest."""
    size = sizes[axis]
    if size < 2:
        return
    links_per_line = size * (size - 1) if shape == "full" else 2 * size  # a line of GPUs has two fewer than a ring
    line_count = math.prod(sizes) // size
    check_link_count(links.count + links_per_line * line_count, "the network", MAX_LISTED)
    # a row of ranks along this axis for each choice of the other coordinates
    ranks = np.arange(math.prod(sizes)).reshape(sizes[::-1])
    for line in np.moveaxis(ranks, -1 - axis, -1).reshape(-1, size).tolist():
        if shape == "switch":
            switch = links.add_switch(f"dim{axis}/switch{links.switch_count}")
            pairs = [(rank, switch) for rank in line]
        elif shape == "full":
            pairs = [(a, b) for i, a in enumerate(line) for b in line[i + 1 :]]
        else:
            pairs = list(pairwise(line)) + ([(line[-1], line[0])] if shape == "ring" and size > 2 else [])
        for a, b in pairs:
            links.add(a, b, kind)
            links.add(b, a, kind)


class _Links:
    """A network that is being read: its nodes, and its directed links as columns."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.ends = array("q")  # source and destination of each link, one after the other
        self.kind_of_link = array("q")
        self.kinds: dict[LinkType, int] = {}  # kind -> its number
        self.places = [f"npu{rank}" for rank in range(ranks)]

    @property
    def count(self) -> int:
        return len(self.kind_of_link)

    @property
    def switch_count(self) -> int:
        return len(self.places) - self.ranks

    def add_switch(self, place: str) -> int:
        self.places.append(place)
        return len(self.places) - 1

    def add(self, a: int, b: int, kind: LinkType) -> None:
        """Add a link from a to b."""
        number = self.kinds.setdefault(kind, len(self.kinds))
        if len(self.kinds) > MAX_TYPES:
            raise Invalid(f"has more than {MAX_TYPES} kinds of links")
        self.ends.extend((a, b))
        self.kind_of_link.append(number)

    def build_machine(self, name: str) -> Topology:
        """Return the network as a topology."""
        src, dst = (
            as_int32(np.frombuffer(self.ends, np.int64).reshape(-1, 2)).T
            if self.kind_of_link
            else (np.zeros(0, int),) * 2
        )
        return Topology(
            name[:100], self.ranks, switches=self.switch_count, link_src=src, link_dst=dst,
            link_type=np.array(self.kind_of_link, np.int64), types=tuple(self.kinds), places=tuple(self.places),
        )  # fmt: skip


# ---- ns-3 ----


def _read_ns3(path: str, name: str) -> Probed:
    """Read a head (the counts), the numbers of switches, then a line per cable: source, destination, rate, delay."""
    # the lines that `_first_lines` returns, so that there is a first one, and all after them
    lines = (
        (number, line.split())
        for number, line in read_lines(path)
        if line.strip() and not line.lstrip().startswith("#")
    )
    number, head = next(lines)
    values = [int(word) for word in head if re.fullmatch(r"[0-9]{1,7}", word)]
    if len(values) == 3:
        (nodes, switches, cables), nvswitches = values, 0
    # nodes, GPUs per server, NVSwitches, other switches, links; a sixth number, as a type of GPU, is not read
    elif len(values) in (5, 6):
        nodes, _, nvswitches, other_switches, cables = values[:5]
        switches = nvswitches + other_switches
    else:
        raise Invalid(f"line {number}: expected the numbers of nodes, switches and links (or nodes, GPUs per server, "
                      "NVSwitches, switches and links)")  # fmt: skip
    if nodes > MAX_RANKS or cables > MAX_LINKS or switches >= nodes:
        raise Invalid(f"line {number}: {nodes} nodes with {switches} switches and {cables} links cannot be read")
    switch_numbers: list[int] = []
    while len(switch_numbers) < switches:
        number, words = next(lines, (number, []))
        if not words or not all(re.fullmatch(r"[0-9]{1,7}", word) for word in words):
            raise Invalid(f"line {number}: expected the numbers of {switches} switches, found {len(switch_numbers)}")
        switch_numbers += [int(word) for word in words]
    if len(set(switch_numbers)) != switches or not all(switch < nodes for switch in switch_numbers):
        raise Invalid(f"line {number}: expected {switches} different switches below {nodes}")
    return _read_cables(lines, name, nodes, switch_numbers, nvswitches, cables)


def _read_cables(
    lines: Iterator[tuple[int, list[str]]],
    name: str,
    nodes: int,
    switch_numbers: list[int],
    nvswitches: int,
    cables: int,
) -> Probed:
    """Read the cables and return the machine. Nodes that are no switches are ranks.

    `switch_numbers`: the nodes that are switches; the first `nvswitches` of them are NVSwitches.
    """
    switches = set(switch_numbers)
    ranks = [node for node in range(nodes) if node not in switches]
    if not ranks:
        raise Invalid("lists switches only, no hosts; nothing can communicate")
    # Renumber: ranks first, then switches.
    new_number = {node: new for new, node in enumerate([*ranks, *switch_numbers])}
    nvswitch_nodes = set(switch_numbers[:nvswitches])
    links = _Links(len(ranks))
    links.places = [f"node{rank}" for rank in ranks]
    for node in switch_numbers:
        links.add_switch(f"{'nvswitch' if node in nvswitch_nodes else 'switch'}{node}")
    kinds: dict[tuple[str, str, str], LinkType] = {}
    number = 0
    for number, words in lines:
        if len(words) < 4 or not all(
            re.fullmatch(r"[0-9]{1,7}", node_text) and int(node_text) < nodes for node_text in words[:2]
        ):
            raise Invalid(f"line {number}: expected source, destination, rate, delay; nodes are 0 to {nodes - 1}")
        a, b = map(int, words[:2])
        rate, delay = words[2:4]
        if a == b:
            raise Invalid(f"line {number}: leads from node {a} to itself")
        kind_name = "nvlink" if {a, b} & nvswitch_nodes else "trunk" if {a, b} <= switches else "ethernet"
        key = (kind_name, rate[:40], delay[:40])
        if key not in kinds:
            with within(f"line {number}"):
                kinds[key] = LinkType(kind_name, parse_bandwidth(rate, "rate"), parse_seconds(delay, "delay"))
        links.add(new_number[a], new_number[b], kinds[key])
        links.add(new_number[b], new_number[a], kinds[key])
        if links.count > 2 * cables:  # a cable is two links
            raise Invalid(f"line {number}: more than {cables} links, the number in its head")
    if links.count < 2 * cables:
        raise Invalid(f"line {number}: has {links.count // 2} links, but its head says {cables}")
    return Probed(links.build_machine(name), names=tuple(f"node {rank}" for rank in ranks))


# ---- TACOS ----


def _read_tacos(path: str, name: str) -> Probed:
    """Read rows of links, each in one direction. Cells behind the bandwidth are a schedule, which is not read."""
    count = 0
    links: _Links | None = None
    columns: list[str] = []
    kinds: dict[tuple[str, str], LinkType] = {}
    for number, raw in read_lines(path):
        cells = [cell.strip() for cell in raw.split(",", 8)]  # the columns that are read come first
        if cells[0] == "NPUs Count" and len(cells) > 1 and re.fullmatch(r"[0-9]{1,6}", cells[1]):
            count = int(cells[1])
            if not 0 < count <= MAX_RANKS:
                raise Invalid(f"line {number}: {count} NPUs; from 1 to {MAX_RANKS} are read")
            links = _Links(count)
        elif cells[0] == "SrcID":
            columns = cells
        elif columns and raw.strip():
            if links is None:
                raise Invalid(f"line {number}: a link before NPUs Count")
            row = dict(zip(columns, cells, strict=False))
            a, b = row["SrcID"], row.get("DestID", "")
            if not all(re.fullmatch(r"[0-9]{1,6}", end) and int(end) < count for end in (a, b)) or a == b:
                raise Invalid(
                    f"line {number}: expected two different NPUs from 0 to {count - 1}, got {quote(a)}, {quote(b)}"
                )
            # titles with their units, such as "Latency (ns)"
            latency_title = next((c for c in row if c.startswith("Latency")), "")
            bandwidth_title = next((c for c in row if c.startswith("Bandwidth")), "")
            figures = row.get(latency_title, "")[:40], row.get(bandwidth_title, "")[:40]
            if figures not in kinds:
                latency_text, bandwidth_text = figures
                with within(f"line {number}"):
                    latency = exact(latency_text, "latency") / (10**6 if "us" in latency_title else 10**9)
                    kinds[figures] = LinkType("link", exact(bandwidth_text, "bandwidth") * GB, float(latency))
            links.add(int(a), int(b), kinds[figures])
            if links.count > MAX_LINKS:
                raise Invalid(f"line {number}: more than {MAX_LINKS} links")
    if links is None or not links.count:
        raise Invalid("has no links; expected NPUs Count, then SrcID,DestID,Latency (ns),Bandwidth (GB/s)")
    return Probed(links.build_machine(name), names=tuple(f"NPU {rank}" for rank in range(count)))
