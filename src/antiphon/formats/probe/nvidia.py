"""Read the output of nvidia-smi: `topo -m` (and `-mp`), `nvlink -s`, `-c` and `-R`, `-L`, and --query-gpu as CSV; one
file or several, or one text after another.

The matrix shows the number of NVLinks between two GPUs (NV4), else the PCIe path: PIX, PXB (switches), PHB, NODE
(host bridges of one socket), SYS (between sockets). It does not distinguish NVLinks to GPUs from NVLinks to
NVSwitches: a row with more of them than a GPU has leads to NVSwitches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from antiphon.errors import Invalid
from antiphon.formats.probe.box import (
    BRIDGE,
    GPU,
    MAX_GPUS,
    NIC,
    SWITCH,
    Box,
    Device,
    build_box,
    find_group,
    join_groups,
    pcie_generation,
)
from antiphon.formats.probe.found import Probed
from antiphon.formats.probe.lines import read_lines
from antiphon.formats.probe.speeds import A100, B200, H100, P100, V100, Make, make_by_name, nominal_speed, pcie
from antiphon.topologies.links import GB, NVLINK
from antiphon.topologies.options import Bandwidth
from antiphon.units import format_bandwidth, parse_bandwidth

_LEVEL = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
_CELL = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|PXN|N/A|OK|CNS|GNS|TNS|NS|DR|U")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LINK = re.compile(r"Link ([0-9]{1,2}): ([0-9]{1,3}(?:\.[0-9]{1,3})?) GB/s")
_REMOTE = re.compile(r"Link ([0-9]{1,2}): Remote Device ([0-9A-Fa-f:.]{5,16}):? Link")
_ABLE = re.compile(r"Link ([0-9]{1,2}), ")
_MAX_LINKS = 18  # of any GPU so far
_MAX_PEERS = 128  # of a matrix
_MIN_GUESSED = 4  # GPUs whose NVLinks alone tell their make


@dataclass
class _Printed:
    """The contents of all texts."""

    peers: list[str] = field(default_factory=list)  # columns of the matrix, GPUs first
    cells: dict[tuple[str, str], int] = field(default_factory=dict)  # level of PCIe between two
    nvlinks: dict[tuple[str, str], int] = field(default_factory=dict)
    numa: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    links: dict[str, dict[int, Fraction | None]] = field(default_factory=dict)  # of a GPU, with speeds where told
    remote: dict[str, list[str]] = field(default_factory=dict)  # the devices that its links lead to
    bus: dict[str, str] = field(default_factory=dict)  # GPU by its place on PCIe
    slots: dict[str, Fraction] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)  # NIC0: mlx5_0


def read(
    paths: Iterable[str], name: str, *, pcie: object = None, pcie_gen: object = None, nvlink: Bandwidth | None = None
) -> Probed:
    """Read the box in these files. `nvlink`: bandwidth of one NVLink, if the files have none."""
    return build_box(read_box(paths, name, pcie_gen, nvlink), pcie)


def read_box(paths: Iterable[str], name: str, pcie_gen: object = None, nvlink: Bandwidth | None = None) -> Box:
    """Read the box, before it is drawn."""
    printed = _Printed()
    for path in paths:
        _Reader(printed).lines(path)
    gpus = sorted(
        {*(p for p in printed.peers if p.startswith("GPU")), *printed.models, *printed.links}, key=_peer_number
    )
    if not gpus:
        raise Invalid("lists no GPU; expected what `nvidia-smi topo -m` or `nvidia-smi nvlink -s` prints")
    if len(gpus) > MAX_GPUS:
        raise Invalid(f"shows {len(gpus)} GPUs; at most {MAX_GPUS} of one box are read")
    models = [printed.models.get(gpu, "") for gpu in gpus]
    kinds = Counter(model for model in models if model)
    make = next((make for model in models if (make := make_by_name(model))), None)
    model = kinds.most_common(1)[0][0] if kinds else ""
    guess = None if model else _guess_make(printed, gpus)
    if guess is not None:
        model, make = guess.name, guess
    box = Box(f"{len(gpus)} x {model}" if model else name, model)
    if guess is not None:
        box.notes.append(f"GPUs are taken to be {model}: each has {guess.links} NVLinks, and the file names none")
    box.pcie = pcie_generation(pcie_gen, make.pcie if make else 4)
    box.buses = {
        rank: bus for bus, gpu in printed.bus.items() for rank, candidate in enumerate(gpus) if candidate == gpu
    }
    _add_tree(box, printed, gpus)
    _add_nvlinks(box, printed, gpus, make, None if nvlink is None else parse_bandwidth(nvlink, "nvlink"))
    return box


def _peer_number(peer: str) -> tuple[int, str]:
    digits = re.search(r"[0-9]+$", peer)
    return (int(digits[0]) if digits else 0, peer)


class _Reader:
    """Line by line: the row of names begins a matrix, "GPU 0: ..." what follows of that GPU."""

    def __init__(self, printed: _Printed) -> None:
        self.printed = printed
        self.columns: list[str] = []
        self.affinities: list[str] = []
        self.gpu = ""
        self.query: list[str] = []

    def lines(self, path: str) -> None:
        for number, raw in read_lines(path):
            line = _ANSI.sub("", raw).rstrip() if "\x1b" in raw else raw.rstrip()
            if not line.strip():
                continue
            words = line.split()
            if (
                self._read_head(line, words)
                or self._read_row(words, line, number)
                or self._read_nvlink(line)
                or self._read_csv(line)
            ):
                continue

    def _read_head(self, line: str, words: list[str]) -> bool:
        """The names of the columns: GPU0, GPU1, ... then cards, then affinities."""
        # a row of cells also begins with GPU0
        if words[0] != "GPU0" or (len(words) > 1 and _CELL.fullmatch(words[1])):
            return False
        self.columns = []
        for word in words:
            if word in ("CPU", "NUMA", "GPU"):
                break
            self.columns.append(word)
        peers = set(self.printed.peers)
        self.printed.peers += [column for column in self.columns if column not in peers]
        if len(self.printed.peers) > _MAX_PEERS:
            raise Invalid(f"has a matrix of {len(self.printed.peers)} devices; at most {_MAX_PEERS} are read")
        tail = re.split(r"\t+| {2,}", line.strip())
        self.affinities = [
            title.strip() for title in tail if title.strip() in ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
        ]
        return True

    def _read_row(self, words: list[str], line: str, number: int) -> bool:
        if words[0] not in self.columns or len(words) < 2:
            return self._read_alias(words)
        me, cells = words[0], words[1 : 1 + len(self.columns)]
        if not all(_CELL.fullmatch(cell) for cell in cells) or len(cells) < len(self.columns):
            # the beginning of a row is right: a truncated matrix is an error, other text is not
            if _CELL.fullmatch(cells[0]):
                raise Invalid(
                    f"line {number}: row {me} has {len([c for c in cells if _CELL.fullmatch(c)])} cells for "
                    f"{len(self.columns)} columns; give the matrix whole, as `nvidia-smi topo -m` prints it"
                )
            return False
        for other, cell in zip(self.columns, cells, strict=True):
            if cell.startswith("NV"):
                self.printed.nvlinks[me, other] = int(cell[2:])
            elif cell in _LEVEL:
                self.printed.cells[me, other] = _LEVEL[cell]
        # after the cells: affinities, which tell the sockets apart
        tail = words[1 + len(self.columns) :]
        if me.startswith("GPU") and "NUMA Affinity" in self.affinities and len(tail) > 1:
            self.printed.numa[me] = tail[1]
        elif me.startswith("GPU") and tail:
            self.printed.numa[me] = f"cores {tail[0]}"
        return True

    def _read_alias(self, words: list[str]) -> bool:
        """The legend of cards: NIC0: mlx5_0."""
        if len(words) == 2 and re.fullmatch(r"NIC[0-9]{1,4}:", words[0]):
            self.printed.aliases[words[0][:-1]] = words[1]
            return True
        return False

    def _read_nvlink(self, line: str) -> bool:
        if match := re.match(r"\s*GPU ([0-9]{1,4}): ([^()]{1,100}?)(?: \(|$)", line):
            self.gpu = f"GPU{match[1]}"
            self.printed.models[self.gpu] = match[2].strip()
            return True
        if not self.gpu:
            return False
        links = self.printed.links.setdefault(self.gpu, {})
        if match := _LINK.search(line):
            links[int(match[1])] = Fraction(match[2]) * GB
        elif match := _REMOTE.search(line):
            links.setdefault(int(match[1]), None)
            remote = self.printed.remote.setdefault(self.gpu, [])
            if len(remote) < 64:
                remote.append(_normalize_bus(match[2].rstrip(":")))
        elif match := _ABLE.search(line):
            links.setdefault(int(match[1]), None)
        elif "inactive" not in line.lower():
            if not links:
                del self.printed.links[self.gpu]
            return False
        return True

    def _read_csv(self, line: str) -> bool:
        """index, name, pci.bus_id, pcie.link.gen.max, pcie.link.width.max: as --query-gpu prints them with its head."""
        cells = [cell.strip() for cell in line.split(",")]
        if cells[0] == "index" and "name" in cells:
            self.query = cells
            return True
        if not self.query or len(cells) != len(self.query) or not re.fullmatch(r"[0-9]{1,4}", cells[0]):
            return False
        row = dict(zip((key.split(" ")[0] for key in self.query), cells, strict=True))
        gpu = f"GPU{row['index']}"
        self.printed.models[gpu] = row["name"][:100]
        if "pci.bus_id" in row:
            self.printed.bus[_normalize_bus(row["pci.bus_id"])] = gpu
        gen, width = (row.get(f"pcie.link.{key}.max", "") for key in ("gen", "width"))
        # PCIe generation -> GT/s per lane
        rates = {"1": "2.5", "2": "5", "3": "8", "4": "16", "5": "32", "6": "64"}
        if speed := pcie(f"{rates.get(gen, '')} GT/s", width):
            self.printed.slots[gpu] = speed
        return True


def _normalize_bus(text: str) -> str:
    """00000000:07:00.0 and 0000:07:00.0 are one place."""
    return text.lower()[-12:]


# ---- the tree of PCIe ----


def _add_tree(box: Box, printed: _Printed, gpus: list[str]) -> None:
    """Devices are one socket, one switch, one switch below it, if a cell in either direction shows it."""
    cards = [peer for peer in printed.peers if not peer.startswith("GPU")]
    members = [*gpus, *cards]
    at = {peer: number for number, peer in enumerate(members)}
    # union-find per level: devices that a path of at most this level connects share a group
    groups = {level: list(range(len(members))) for level in (1, 2, 4)}
    for (a, b), cell in printed.cells.items():
        for level, group in groups.items():
            if a in at and b in at and cell <= level:
                join_groups(group, at[a], at[b])
    homes: dict[str, int] = {}
    for gpu in gpus:
        numa = printed.numa.get(gpu, "N/A")
        # GPUs with the same NUMA affinity share a socket, even without a cell that shows it
        if numa not in ("N/A", "-1"):
            join_groups(groups[4], at[gpu], homes.setdefault(numa, at[gpu]))
    device_of: dict[tuple[int, int], int] = {}
    speeds = printed.slots
    matrix = bool(printed.cells or printed.numa)
    for peer in members:
        up = -1
        # from the socket down; each group becomes a device once
        for level, kind in ((4, BRIDGE), (2, SWITCH), (1, SWITCH)):
            first = find_group(groups[level], at[peer])
            if matrix and (level, first) not in device_of:
                device_of[level, first] = box.add(Device(kind, up))
            up = device_of.get((level, first), -1)
        kind = GPU if peer.startswith("GPU") else NIC
        name = printed.aliases.get(peer, peer)
        device = box.add(Device(kind, up, speeds.get(peer), name))
        if kind == GPU:
            box.gpus.append(device)
        else:
            box.speeds[device] = None


# ---- NVLinks ----


def _guess_make(printed: _Printed, gpus: list[str]) -> Make | None:
    """The make by the numbers of NVLinks alone: the links of a GPU add up to those of its make, or each pair shows all
    of them, as by way of NVSwitches. Of few GPUs just H100, as two of a smaller make have bridges of as many. None
    where several makes fit: four GPUs with 6 links per pair are V100s on switches, or H100s without."""
    counts = [printed.nvlinks.get((a, b), 0) for a in gpus for b in gpus if a != b]
    if counts and max(counts) == H100.links:
        return H100
    if len(gpus) < _MIN_GUESSED:
        return None
    # direct links: a row adds up to all links; NVSwitches: every cell shows all links
    rows = {sum(printed.nvlinks.get((a, b), 0) for b in gpus if a != b) for a in gpus}
    fitting = [
        make
        for make in (P100, V100, A100, H100)
        if rows == {make.links} or (make != P100 and {*counts} == {make.links})
    ]
    return fitting[0] if len(fitting) == 1 else None


def _add_nvlinks(box: Box, printed: _Printed, gpus: list[str], make: Make | None, asked_speed: Fraction | None) -> None:
    measured = [speed for links in printed.links.values() for speed in links.values() if speed]
    link_bandwidth = asked_speed or (nominal_speed(max(measured)) if measured else (make.link if make else NVLINK))
    box.link_bandwidth = link_bandwidth
    guessed = not any(printed.models.values()) and not measured and asked_speed is None
    names = set(gpus)
    between_gpus = {(a, b): count for (a, b), count in printed.nvlinks.items() if a in names and b in names and count}
    if not between_gpus:
        _without_matrix(box, printed, gpus, link_bandwidth, make)
        return
    if guessed:
        box.notes.append(
            f"one NVLink is assumed to carry {format_bandwidth(link_bandwidth)} each way: the "
            "file names no GPU (add what "
            "`nvidia-smi nvlink -s` prints)"
        )
    rank = {gpu: number for number, gpu in enumerate(gpus)}
    if _is_switched(printed, gpus, between_gpus, make):
        box.sharp = make is not None and make.sharp
        for gpu in gpus:
            widest = max((count for (a, _), count in between_gpus.items() if a == gpu), default=0)
            active = len([speed for speed in printed.links.get(gpu, {}).values() if speed])
            if widest:
                box.ports[rank[gpu]] = (min(active, widest) if active else widest) * link_bandwidth
        box.notes.append("NVLinks lead to NVSwitches, which are drawn as one switch")
        return
    for (a, b), count in between_gpus.items():
        box.bonds[rank[a], rank[b]] = count * link_bandwidth


def _is_switched(
    printed: _Printed, gpus: list[str], between_gpus: dict[tuple[str, str], int], make: Make | None
) -> bool:
    """Whether a row of the matrix has more NVLinks than a GPU has; or what its links lead to is no GPU."""
    rows = Counter[str]()
    for (a, _), count in between_gpus.items():
        rows[a] += count
    for gpu, places in printed.remote.items():
        # a link leads to a PCI address that is not a GPU's
        if printed.bus and any(place not in printed.bus for place in places) and rows[gpu]:
            return True
        if set(places) and rows[gpu] > len(places):
            return True
    for gpu, count in rows.items():
        active = len([speed for speed in printed.links.get(gpu, {}).values() if speed])
        if count > (active or (make.links if make and make.links else _MAX_LINKS)):
            return True
    # all links of a GPU on a board (SXM) lead to one other only by way of switches; GH200 is in pairs
    names = " ".join(printed.models.get(gpu, "") for gpu in gpus)
    full = make is not None and make.links > 0 and all(count == make.links for count in between_gpus.values())
    board = "SXM" in names or make in (H100, B200)
    return full and board and not re.search("GH200|NVL2", names)


def _without_matrix(box: Box, printed: _Printed, gpus: list[str], link_bandwidth: Fraction, make: Make | None) -> None:
    """`nvlink -s` alone shows the number of links per GPU, not where they lead; `-R` does."""
    active = {
        gpu: len([s for s in printed.links.get(gpu, {}).values() if s] or printed.links.get(gpu, {})) for gpu in gpus
    }
    if not any(active.values()) or len(gpus) < 2:
        return
    rank = {gpu: number for number, gpu in enumerate(gpus)}
    places = {place for remote in printed.remote.values() for place in remote}
    between = {place for place in places if place in printed.bus}
    if places and between == places:
        for gpu, remote in printed.remote.items():
            for place, count in Counter(remote).items():
                if printed.bus[place] in rank:
                    box.bonds[rank[gpu], rank[printed.bus[place]]] = count * link_bandwidth
        return
    if (not printed.cells and len(gpus) > 2) or (make and make.sharp) or places:
        box.sharp = make is not None and make.sharp
        box.ports = {rank[gpu]: count * link_bandwidth for gpu, count in active.items() if count}
        box.notes.append(
            "no matrix shows the peers of NVLinks: drawn as if to NVSwitches (add what `nvidia-smi topo -m` prints)"
        )
    elif not printed.cells:
        a, b = gpus
        box.bonds = (
            {(0, 1): active[a] * link_bandwidth, (1, 0): active[b] * link_bandwidth} if active[a] and active[b] else {}
        )
