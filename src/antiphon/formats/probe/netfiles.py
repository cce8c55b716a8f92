"""Read the network files of simulators: ASTRA-sim's (YAML, and JSON of its first version), those of ns-3 in the forms
of HPCC and SimAI, and the links in TACOS's CSV.

ASTRA-sim lists dimensions, the innermost first: in each, GPUs that differ in that coordinate alone form a ring, are
fully connected, or share a switch. Bandwidths are of one link in each direction; GB are 10^9 bytes.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import numpy as np

from antiphon.core.columns import as_int32
from antiphon.core.files import read_bytes, within
from antiphon.core.jsontext import decode
from antiphon.core.topology import LinkType, Topology
from antiphon.errors import Invalid, quote
from antiphon.formats.probe.found import Probed
from antiphon.formats.probe.lines import read_lines
from antiphon.topologies.links import GB
from antiphon.topologies.options import MAX_LISTED, check_link_count
from antiphon.units import exact, parse_bandwidth, parse_seconds

MAX_BYTES = 2**18  # of what describes dimensions
MAX_RANKS, MAX_TYPES, MAX_LINKS = 2**14, 2**10, 2**17
_FORMS = {
    "ring": "ring", "fullyconnected": "full", "alltoall": "full", "switch": "switch", "mesh": "line", "line": "line",
    "torus": "ring", "mesh2d": "line",
}  # fmt: skip


def read(paths: Iterable[str], name: str) -> Probed:
    """Read the network in this file."""
    path = next(iter(paths))
    first = [line.strip() for _, line in _first_lines(path)]
    if not first:
        raise Invalid("is empty")
    if first[0].startswith("{"):
        return _by_dimensions(_read_json(read_bytes(path, MAX_BYTES)), name)
    if any(re.match(r"(npus_count|topology)\s*:", line) for line in first):
        return _by_dimensions(_read_yaml(path), name)
    if any("SrcID" in line or line.startswith("NPUs Count") for line in first):
        return _read_tacos(path, name)
    if re.match(r"[0-9]+(\s+[0-9]+){1,5}(\s+\S+){0,2}$", first[0]):
        return _read_ns3(path, name)
    raise Invalid("is no network file of ASTRA-sim, ns-3 or TACOS (see docs/probing.md for what is read)")


def _first_lines(path: str) -> Iterator[tuple[int, str]]:
    for count, (number, line) in enumerate(read_lines(path)):
        if count > 200:
            return
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line


# ---- ASTRA-sim ----


def _read_yaml(path: str) -> dict[str, list[str]]:
    """Keys with lists on one line, or entries in lines of their own; nothing else of YAML is needed."""
    values: dict[str, list[str]] = {}
    key = ""
    for number, raw in read_lines(path):
        line = raw.split("#", 1)[0].strip()
        if match := re.fullmatch(r"([A-Za-z_-]{1,40})\s*:\s*(.*)", line):
            key, text = match[1].replace("-", "_"), match[2].strip()
            if len(values) > 50:
                raise Invalid(f"line {number}: more than 50 keys")
            values[key] = _split_words(text.strip("[]")) if text else []
        elif line.startswith("- ") and key:
            values[key].append(line[2:].strip().strip("\"'"))
        elif line and line not in ("---", "..."):
            raise Invalid(f"line {number}: {quote(line)}; expected key: [ value, value ]")
        if key and len(values[key]) > 64:
            raise Invalid(f"line {number}: {key} has more than 64 values")
    return values


def _split_words(text: str) -> list[str]:
    return [word.strip().strip("\"'") for word in text.split(",")] if text.strip() else []


def _read_json(data: bytes) -> dict[str, list[str]]:
    root = decode(data, dict[str, Any])
    values_of: dict[str, list[str]] = {}
    for key, value in root.items():
        values = value if isinstance(value, list) else [value]
        values_of[key.replace("-", "_")[:40]] = [str(item)[:40] for item in values[:65]]
    return values_of


def _by_dimensions(values: dict[str, list[str]], name: str) -> Probed:
    sizes = _read_sizes(values)
    forms = _read_forms(values)
    if len(sizes) == 1 and len(forms) == 2 and forms[0] == forms[1]:  # Torus2D of 16
        side = math.isqrt(sizes[0])
        sizes = [side, sizes[0] // side] if side * side == sizes[0] else sizes
    count = math.prod(sizes)
    if count > MAX_RANKS:
        raise Invalid(f"has {count} NPUs; at most {MAX_RANKS} are read")
    speeds = _read_numbers(values, ("bandwidth", "link_bandwidth"), len(sizes))
    delays = _read_numbers(values, ("latency", "link_latency"), len(sizes))
    parallel = _read_numbers(values, ("links_count",), len(sizes)) if "links_count" in values else [None] * len(sizes)
    # One topology for all dimensions.
    if len(forms) == 1 and len(sizes) > 1:
        forms = forms * len(sizes)
    if len(forms) != len(sizes):
        raise Invalid(f"names {len(forms)} topologies for {len(sizes)} dimensions")
    links = _Links(count)
    for axis, (form, size) in enumerate(zip(forms, sizes, strict=True)):
        speed, delay = speeds[axis], delays[axis]
        if speed is None or speed <= 0:
            raise Invalid(f"bandwidth of dimension {axis}: must be greater than 0")
        rate = speed * GB * _side_by_side(form, size, parallel[axis])
        kind = LinkType("link" if form != "switch" else "port", rate, float((delay or Fraction(0)) / 10**9))
        _add_dimension(links, form, sizes, axis, kind)
    return Probed(links.machine(name), (), tuple(f"NPU {rank}" for rank in range(count)))


def _read_sizes(values: dict[str, list[str]]) -> list[int]:
    sizes = next((values[key] for key in ("npus_count", "units_count", "nodes_per_dim") if values.get(key)), None)
    if sizes is None:
        raise Invalid("has no npus_count (units-count in the first version)")
    if len(sizes) > 16 or not all(re.fullmatch(r"[0-9]{1,6}", size) and int(size) for size in sizes):
        raise Invalid(f"npus_count is {quote(sizes)}; expected a size from 1 for each of at most 16 dimensions")
    return [int(size) for size in sizes]


def _read_forms(values: dict[str, list[str]]) -> list[str]:
    words = values.get("topologies_per_dim") or values.get("topology") or values.get("topology_name") or []
    if len(words) == 1 and (match := re.fullmatch(r"(Torus|Mesh)([234])D(?:_(.*))?", words[0])):
        words = [match[1]] * int(match[2]) + ([match[3]] if match[3] else [])
    elif len(words) == 1 and "_" in words[0]:
        words = words[0].split("_")
    forms = []
    for word in words:
        form = _FORMS.get(word.lower().replace("_", ""))
        if form is None:
            raise Invalid(f"topology {quote(word)} is not read; expected Ring, FullyConnected, Switch or Mesh")
        forms.append(form)
    if not forms:
        raise Invalid("has no topology")
    return forms


def _read_numbers(values: dict[str, list[str]], keys: Sequence[str], count: int) -> list[Fraction | None]:
    key = next((key for key in keys if values.get(key)), None)
    if key is None:
        raise Invalid(f"has no {keys[0]}")
    with within(key):
        numbers: list[Fraction | None] = [exact(text, "number") for text in values[key]]
    if len(numbers) == 1:
        numbers = numbers * count
    if len(numbers) != count:
        raise Invalid(f"{key} has {len(numbers)} values for {count} dimensions")
    return numbers


def _side_by_side(form: str, size: int, links: Fraction | None) -> Fraction:
    """Parallel links per pair, if every NPU has `links` in this dimension."""
    if links is None or links <= 0 or size < 2:
        return Fraction(1)
    if form == "full":
        return max(links / (size - 1), Fraction(1))
    return links / 2 if form in ("ring", "line") and size > 2 and links > 1 else links


def _add_dimension(links: _Links, form: str, sizes: Sequence[int], axis: int, kind: LinkType) -> None:
    """Add the links among nodes that differ along this axis alone; the first axis varies fastest."""
    size, stride = sizes[axis], math.prod(sizes[:axis])
    if size < 2:
        return
    other_axes = [range(n) if i != axis else (0,) for i, n in enumerate(sizes)]
    strides = [math.prod(sizes[:i]) for i in range(len(sizes))]
    each = size * (size - 1) if form == "full" else 2 * size
    check_link_count(links.count + each * math.prod(sizes) // size, "the network", MAX_LISTED)
    # `corner` fixes the other coordinates; `line` varies along this axis.
    for corner in product(*reversed(other_axes)):
        base = sum(at * s for at, s in zip(reversed(corner), strides, strict=True))
        line = [base + i * stride for i in range(size)]
        if form == "switch":
            hub = links.switch(f"dim{axis}/switch{links.hubs}")
            pairs = [(rank, hub) for rank in line]
        elif form == "full":
            pairs = [(a, b) for i, a in enumerate(line) for b in line[i + 1 :]]
        else:
            pairs = list(pairwise(line)) + ([(line[-1], line[0])] if form == "ring" and size > 2 else [])
        for a, b in pairs:
            links.add(a, b, kind)
            links.add(b, a, kind)


class _Links:
    """Links as columns, with the kinds that they are of."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.ends, self.of = array("q"), array("q")
        self.kinds: dict[LinkType, int] = {}
        self.places = [f"npu{rank}" for rank in range(ranks)]

    @property
    def count(self) -> int:
        return len(self.of)

    @property
    def hubs(self) -> int:
        return len(self.places) - self.ranks

    def switch(self, place: str) -> int:
        self.places.append(place)
        return len(self.places) - 1

    def add(self, a: int, b: int, kind: LinkType) -> None:
        number = self.kinds.setdefault(kind, len(self.kinds))
        if len(self.kinds) > MAX_TYPES:
            raise Invalid(f"has more than {MAX_TYPES} kinds of links")
        self.ends.extend((a, b))
        self.of.append(number)

    def machine(self, name: str) -> Topology:
        src, dst = as_int32(np.frombuffer(self.ends, np.int64).reshape(-1, 2)).T if self.of else (np.zeros(0, int),) * 2
        return Topology(
            name[:100], self.ranks, len(self.places) - self.ranks, src, dst, np.array(self.of, np.int64),
            tuple(self.kinds), places=tuple(self.places),
        )  # fmt: skip


# ---- ns-3 ----


def _read_ns3(path: str, name: str) -> Probed:
    """A head of numbers, the numbers of switches, then a line per cable: source, destination, rate, delay, errors."""
    lines = ((number, line.split()) for number, line in read_lines(path) if line.strip() and not line.startswith("#"))
    number, head = next(lines)
    values = [int(word) for word in head if re.fullmatch(r"[0-9]{1,7}", word)]
    if len(values) == 3:
        (nodes, switches, cables), inner = values, 0
    elif len(values) in (5, 6):
        nodes, _, inner, outer, cables = values[:5]
        switches = inner + outer
    else:
        raise Invalid(f"line {number}: expected the numbers of nodes, switches and links (or nodes, GPUs per server, "
                      "NVSwitches, switches and links)")  # fmt: skip
    if nodes > MAX_RANKS or cables > MAX_LINKS or switches >= nodes:
        raise Invalid(f"line {number}: {nodes} nodes with {switches} switches and {cables} links cannot be read")
    listed: list[int] = []
    while len(listed) < switches:
        number, words = next(lines, (number, []))
        if not words or not all(re.fullmatch(r"[0-9]{1,7}", word) for word in words):
            raise Invalid(f"line {number}: expected the numbers of {switches} switches, found {len(listed)}")
        listed += [int(word) for word in words]
    if len(set(listed)) != switches or not all(switch < nodes for switch in listed):
        raise Invalid(f"line {number}: expected {switches} different switches below {nodes}")
    return _read_cables(lines, name, nodes, listed, inner, cables)


def _read_cables(
    lines: Iterator[tuple[int, list[str]]], name: str, nodes: int, listed: list[int], inner: int, cables: int
) -> Probed:
    """The machine: nodes that are no switches are ranks. `inner`: number of switches that are NVSwitches."""
    switch = set(listed)
    ranks = [node for node in range(nodes) if node not in switch]
    if not ranks:
        raise Invalid("has switches alone")
    # Renumber: ranks first, then switches.
    at = {node: new for new, node in enumerate([*ranks, *listed])}
    nvswitch = set(listed[:inner])
    links = _Links(len(ranks))
    links.places = [f"node{rank}" for rank in ranks]
    for node in listed:
        links.switch(f"{'nvswitch' if node in nvswitch else 'switch'}{node}")
    kinds: dict[tuple[str, str, str], LinkType] = {}
    number = 0
    for number, words in lines:
        if len(words) < 4 or not all(re.fullmatch(r"[0-9]{1,7}", word) and int(word) < nodes for word in words[:2]):
            raise Invalid(f"line {number}: expected source, destination, rate, delay; nodes are 0 to {nodes - 1}")
        a, b = int(words[0]), int(words[1])
        if a == b:
            raise Invalid(f"line {number}: leads from node {a} to itself")
        word = "nvlink" if {a, b} & nvswitch else "trunk" if {a, b} <= switch else "ethernet"
        key = (word, words[2][:40], words[3][:40])
        if key not in kinds:
            with within(f"line {number}"):
                kinds[key] = LinkType(word, parse_bandwidth(words[2], "rate"), parse_seconds(words[3], "delay"))
        links.add(at[a], at[b], kinds[key])
        links.add(at[b], at[a], kinds[key])
        if links.count > 2 * cables:
            raise Invalid(f"line {number}: more than {cables} links, the number in its head")
    if links.count < 2 * cables:
        raise Invalid(f"line {number}: has {links.count // 2} links, but its head says {cables}")
    return Probed(links.machine(name), (), tuple(f"node {rank}" for rank in ranks))


# ---- TACOS ----


def _read_tacos(path: str, name: str) -> Probed:
    """Rows of links, each in one direction; what stands behind bandwidths is a schedule, and passed over."""
    count = 0
    links: _Links | None = None
    columns: list[str] = []
    kinds: dict[tuple[str, str], LinkType] = {}
    for number, raw in read_lines(path):
        cells = [cell.strip() for cell in raw.split(",", 8)]
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
            key = (
                next((c for c in row if c.startswith("Latency")), ""),
                next((c for c in row if c.startswith("Bandwidth")), ""),
            )
            figures = row.get(key[0], "")[:40], row.get(key[1], "")[:40]
            if figures not in kinds:
                with within(f"line {number}"):
                    delay = exact(figures[0], "latency") / (10**6 if "us" in key[0] else 10**9)
                    kinds[figures] = LinkType("link", exact(figures[1], "bandwidth") * GB, float(delay))
            links.add(int(a), int(b), kinds[figures])
            if links.count > MAX_LINKS:
                raise Invalid(f"line {number}: more than {MAX_LINKS} links")
    if links is None or not links.count:
        raise Invalid("has no links; expected NPUs Count, then SrcID,DestID,Latency (ns),Bandwidth (GB/s)")
    return Probed(links.machine(name), (), tuple(f"NPU {rank}" for rank in range(count)))
