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
    PcieDevice,
    build_box,
    find_group,
    join_groups,
    pcie_generation,
)
from antiphon.formats.probe.lines import read_lines
from antiphon.formats.probe.probed import Probed
from antiphon.formats.probe.speeds import (
    A100,
    B200,
    H100,
    P100,
    V100,
    GpuType,
    gpu_type_by_name,
    nominal_speed,
    pcie_speed,
)
from antiphon.topologies.links import GB, NVLINK
from antiphon.topologies.options import Bandwidth
from antiphon.units import format_bandwidth, parse_bandwidth

# Paths of the matrix -> level of the PCIe tree that the path goes up to. PHB (3) and NODE (4) both stay in a socket.
_LEVEL = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
_ONE_SWITCH, _SWITCHES, _SOCKET = _LEVEL["PIX"], _LEVEL["PXB"], _LEVEL["NODE"]
# Cells of any matrix: the GPU itself (X), NVLinks, paths. Cells of `topo -p2p` are recognized, but not used: they say
# whether two GPUs reach each other (OK) or why not (chipset, GPU or topology not supported, disabled, unknown).
_CELL = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|PXN|N/A|OK|CNS|GNS|TNS|NS|DR|U")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# `nvlink -s`: speed of a link; `-R`: the device at its other end; `-c`: a line per capability
_LINK = re.compile(r"Link ([0-9]{1,2}): ([0-9]{1,3}(?:\.[0-9]{1,3})?) GB/s")
_REMOTE = re.compile(r"Link ([0-9]{1,2}): Remote Device ([0-9A-Fa-f:.]{5,16}):? Link")
_LINK_CAPABILITY = re.compile(r"Link ([0-9]{1,2}), ")
_MAX_LINKS = 18  # NVLinks of any GPU so far
_MAX_REMOTE = 64  # addresses read per GPU: above any number of NVLinks, so that memory stays bounded
_MAX_PEERS = 128  # GPUs and cards of a matrix
_MAX_NAME = 100  # characters of a product name
_MIN_GPUS_TO_GUESS = 4  # with fewer, the numbers of NVLinks alone do not determine the type of GPU


@dataclass
class _SmiOutput:
    """The contents of all texts. GPUs and cards are called as in the matrix: GPU0, NIC0."""

    peers: list[str] = field(default_factory=list)  # columns of the matrix, GPUs first
    cells: dict[tuple[str, str], int] = field(default_factory=dict)  # level (_LEVEL) of the PCIe path between two
    nvlinks: dict[tuple[str, str], int] = field(default_factory=dict)  # number of NVLinks between two
    numa: dict[str, str] = field(default_factory=dict)  # GPU -> its NUMA node, or its cores
    product_names: dict[str, str] = field(default_factory=dict)  # GPU -> product name
    links: dict[str, dict[int, Fraction | None]] = field(default_factory=dict)  # GPU -> link -> speed, if reported
    remote: dict[str, list[str]] = field(default_factory=dict)  # GPU -> addresses at the other ends of its links
    gpu_at_address: dict[str, str] = field(default_factory=dict)  # address on PCIe -> GPU
    pcie_speeds: dict[str, Fraction] = field(default_factory=dict)  # GPU -> bytes per second of its PCIe slot
    aliases: dict[str, str] = field(default_factory=dict)  # card of the matrix -> its device: NIC0 -> mlx5_0


def read(
    paths: Iterable[str], name: str, *, pcie: object = None, pcie_gen: object = None, nvlink: Bandwidth | None = None
) -> Probed:
    """Read the box in these files.

    `pcie`: include PCIe (yes or no; default: if NVLinks do not join all GPUs). `pcie_gen`: its generation, such as 4.
    `nvlink`: bandwidth of one NVLink, if the files have none.
    """
    return build_box(read_box(paths, name, pcie_gen, nvlink), pcie)


def read_box(paths: Iterable[str], name: str, pcie_gen: object = None, nvlink: Bandwidth | None = None) -> Box:
    """Read the box, before it is converted to a topology. `pcie_gen`, `nvlink`: as for `read`."""
    output = _SmiOutput()
    for path in paths:
        _Reader(output).read_file(path)
    gpus = sorted(
        {*(p for p in output.peers if p.startswith("GPU")), *output.product_names, *output.links}, key=_peer_number
    )
    if not gpus:
        raise Invalid("lists no GPU; expected what `nvidia-smi topo -m` or `nvidia-smi nvlink -s` prints")
    if len(gpus) > MAX_GPUS:
        raise Invalid(f"shows {len(gpus)} GPUs; at most {MAX_GPUS} of one box are read")
    product_names = [output.product_names[gpu] for gpu in gpus if output.product_names.get(gpu)]
    gpu_type = next((gpu_type for product in product_names if (gpu_type := gpu_type_by_name(product))), None)
    model = Counter(product_names).most_common(1)[0][0] if product_names else ""
    guess = None if model else _guess_gpu_type(output, gpus)
    if guess is not None:
        model, gpu_type = guess.name, guess
    box = Box(f"{len(gpus)} x {model}" if model else name, model)
    if guess is not None:
        box.notes.append(
            f"GPUs are taken to be {model}: each has {guess.links} NVLinks, and the file names no GPU model"
        )
    box.pcie_generation = pcie_generation(pcie_gen, gpu_type.pcie_generation if gpu_type else box.pcie_generation)
    rank_of = {gpu: rank for rank, gpu in enumerate(gpus)}
    box.addresses = {rank_of[gpu]: address for address, gpu in output.gpu_at_address.items() if gpu in rank_of}
    _add_tree(box, output, gpus)
    _add_nvlinks(box, output, gpus, gpu_type, None if nvlink is None else parse_bandwidth(nvlink, "nvlink"))
    return box


def _peer_number(peer: str) -> tuple[int, str]:
    """Return the sort key of a GPU or card: GPU2 before GPU10."""
    digits = re.search(r"[0-9]+$", peer)
    return (int(digits[0]) if digits else 0, peer)


class _Reader:
    """Read texts line by line. The row of names begins a matrix; "GPU 0: ..." begins the lines of that GPU."""

    def __init__(self, output: _SmiOutput) -> None:
        self.output = output
        self.columns: list[str] = []  # of the last matrix: GPU0, GPU1, NIC0
        self.affinities: list[str] = []  # titles of the columns behind those, such as "CPU Affinity"
        self.gpu = ""  # that the lines about NVLinks belong to
        self.query_titles: list[str] = []  # of the last CSV head

    def read_file(self, path: str) -> None:
        """Read the lines of a file."""
        for number, raw in read_lines(path):
            line = _ANSI.sub("", raw).rstrip() if "\x1b" in raw else raw.rstrip()
            if not line.strip():
                continue
            words = line.split()
            # the first that recognizes the line reads it; others are skipped
            _ = (
                self._read_head(line, words)
                or self._read_row(words, number)
                or self._read_nvlink(line)
                or self._read_csv(line)
            )

    def _read_head(self, line: str, words: list[str]) -> bool:
        """Read the names of the columns (GPU0, GPU1, ..., cards, affinities); return whether the line has them."""
        # a row of cells also begins with GPU0
        if words[0] != "GPU0" or (len(words) > 1 and _CELL.fullmatch(words[1])):
            return False
        self.columns = []
        for word in words:
            if word in ("CPU", "NUMA", "GPU"):  # a title of the affinities, such as "CPU Affinity"
                break
            self.columns.append(word)
        peers = set(self.output.peers)
        self.output.peers += [column for column in self.columns if column not in peers]
        if len(self.output.peers) > _MAX_PEERS:
            raise Invalid(f"has a matrix of {len(self.output.peers)} devices; at most {_MAX_PEERS} are read")
        tail = re.split(r"\t+| {2,}", line.strip())
        self.affinities = [
            title.strip() for title in tail if title.strip() in ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
        ]
        return True

    def _read_row(self, words: list[str], number: int) -> bool:
        """Read a row of the matrix; return whether the line is one, or a line of the legend."""
        if words[0] not in self.columns or len(words) < 2:
            return self._read_alias(words)
        row_name, cells = words[0], words[1 : 1 + len(self.columns)]
        if not all(_CELL.fullmatch(cell) for cell in cells) or len(cells) < len(self.columns):
            # The first cell is valid, so this is a matrix that was cut off: an error. Otherwise it is other text: skip.
            if _CELL.fullmatch(cells[0]):
                raise Invalid(
                    f"line {number}: row {row_name} has {len([c for c in cells if _CELL.fullmatch(c)])} cells for "
                    f"{len(self.columns)} columns; give the matrix whole, as `nvidia-smi topo -m` prints it"
                )
            return False
        for column, cell in zip(self.columns, cells, strict=True):
            if cell.startswith("NV"):
                self.output.nvlinks[row_name, column] = int(cell[2:])
            elif cell in _LEVEL:
                self.output.cells[row_name, column] = _LEVEL[cell]
        # after the cells: cores and NUMA node (older tools: only cores), which tell the sockets apart
        cores, numa_node = (*words[1 + len(self.columns) :], "", "")[:2]
        if row_name.startswith("GPU") and "NUMA Affinity" in self.affinities and numa_node:
            self.output.numa[row_name] = numa_node
        elif row_name.startswith("GPU") and cores:
            self.output.numa[row_name] = f"cores {cores}"
        return True

    def _read_alias(self, words: list[str]) -> bool:
        """Read a line of the legend of cards, NIC0: mlx5_0; return whether it is one."""
        if len(words) == 2 and re.fullmatch(r"NIC[0-9]{1,4}:", words[0]):
            card, device = words
            self.output.aliases[card.removesuffix(":")] = device
            return True
        return False

    def _read_nvlink(self, line: str) -> bool:
        """Read a line of `nvlink` or `-L` about a GPU; return whether it is one."""
        if match := re.match(r"\s*GPU ([0-9]{1,4}): ([^()]{1,100}?)(?: \(|$)", line):
            self.gpu = f"GPU{match[1]}"
            self.output.product_names[self.gpu] = match[2].strip()
            return True
        if not self.gpu:
            return False
        links = self.output.links.get(self.gpu, {})
        if match := _LINK.search(line):
            links[int(match[1])] = Fraction(match[2]) * GB
        elif match := _REMOTE.search(line):
            links.setdefault(int(match[1]), None)
            remote = self.output.remote.setdefault(self.gpu, [])
            if len(remote) < _MAX_REMOTE:
                remote.append(_normalize_address(match[2].rstrip(":")))
        elif match := _LINK_CAPABILITY.search(line):
            links.setdefault(int(match[1]), None)
        elif "inactive" not in line.lower():  # an inactive link is a line about the GPU, too
            return False
        self.output.links[self.gpu] = links
        return True

    def _read_csv(self, line: str) -> bool:
        """Read a line of --query-gpu as CSV: its head, or a row of a GPU; return whether it is one.

        The columns may be index, name, pci.bus_id, pcie.link.gen.max and pcie.link.width.max, in any order;
        index and name are required.
        """
        cells = [cell.strip() for cell in line.split(",")]
        if "index" in cells and "name" in cells:
            self.query_titles = cells
            return True
        if not self.query_titles or len(cells) != len(self.query_titles):
            return False
        row = dict(zip((key.split(" ")[0] for key in self.query_titles), cells, strict=True))
        if not re.fullmatch(r"[0-9]{1,4}", row["index"]):
            return False
        gpu = f"GPU{row['index']}"
        self.output.product_names[gpu] = row["name"][:_MAX_NAME]
        if "pci.bus_id" in row:
            self.output.gpu_at_address[_normalize_address(row["pci.bus_id"])] = gpu
        gen, width = (row.get(f"pcie.link.{key}.max", "") for key in ("gen", "width"))
        # PCIe generation -> GT/s per lane
        rates = {"1": "2.5", "2": "5", "3": "8", "4": "16", "5": "32", "6": "64"}
        if speed := pcie_speed(f"{rates.get(gen, '')} GT/s", width):
            self.output.pcie_speeds[gpu] = speed
        return True


def _normalize_address(text: str) -> str:
    """Return a PCI address in its short form: 00000000:07:00.0 and 0000:07:00.0 are the same."""
    return text.lower()[-len("0000:07:00.0") :]


# ---- the tree of PCIe ----


def _add_tree(box: Box, output: _SmiOutput, gpus: list[str]) -> None:
    """Add the PCIe tree: sockets, switches in them, switches below those, then GPUs and cards.

    Two devices share a socket (or a switch) if a cell of the matrix, in either direction, has a path of at most that
    level.
    """
    cards = [peer for peer in output.peers if not peer.startswith("GPU")]
    members = [*gpus, *cards]
    index_of = {peer: number for number, peer in enumerate(members)}
    # union-find per level: devices that a path of at most this level connects share a group, named by its first member
    groups = {level: list(range(len(members))) for level in (_ONE_SWITCH, _SWITCHES, _SOCKET)}
    for (a, b), cell in output.cells.items():
        for level, group in groups.items():
            if a in index_of and b in index_of and cell <= level:
                join_groups(group, index_of[a], index_of[b])
    first_gpu_of_numa: dict[str, int] = {}
    for gpu in gpus:
        numa = output.numa.get(gpu, "N/A")
        # GPUs with the same NUMA affinity share a socket, even without a cell that shows it
        if numa not in ("N/A", "-1"):
            join_groups(groups[_SOCKET], index_of[gpu], first_gpu_of_numa.setdefault(numa, index_of[gpu]))
    device_of: dict[tuple[int, int], int] = {}  # (level, first member of a group) -> its bridge or switch
    shows_paths = bool(output.cells or output.numa)  # else no device has a parent
    for peer in members:
        parent = -1
        # from the socket down; each group becomes a device once
        for level, kind in ((_SOCKET, BRIDGE), (_SWITCHES, SWITCH), (_ONE_SWITCH, SWITCH)):
            first_member = find_group(groups[level], index_of[peer])
            if shows_paths and (level, first_member) not in device_of:
                device_of[level, first_member] = box.add(PcieDevice(kind, parent))
            parent = device_of.get((level, first_member), -1)
        kind = GPU if peer.startswith("GPU") else NIC
        name = output.aliases.get(peer, peer)
        device = box.add(PcieDevice(kind, parent, output.pcie_speeds.get(peer), name))
        if kind == GPU:
            box.gpus.append(device)
        else:
            box.nic_speeds[device] = None  # the bandwidth of its network is unknown


# ---- NVLinks ----


def _guess_gpu_type(output: _SmiOutput, gpus: list[str]) -> GpuType | None:
    """Return the type of GPU that the numbers of NVLinks alone determine, or None.

    Either the links of a GPU add up to those of its type, or each pair shows all of them, as through NVSwitches. Pairs
    with 18 links are taken as H100s on switches, though B200s have as many. With few GPUs no other type is recognized:
    two GPUs may be joined by a bridge of as many links. None if several types fit: four GPUs with 6 links per pair are
    V100s on switches, or H100s without.
    """
    counts = [output.nvlinks.get((a, b), 0) for a in gpus for b in gpus if a != b]
    if counts and max(counts) == H100.links:
        return H100
    if len(gpus) < _MIN_GPUS_TO_GUESS:
        return None
    # direct links: a row adds up to all links; NVSwitches, which P100 lacks: every cell shows all links
    rows = {sum(output.nvlinks.get((a, b), 0) for b in gpus if a != b) for a in gpus}
    candidates = [
        gpu_type
        for gpu_type in (P100, V100, A100, H100)
        if rows == {gpu_type.links} or (gpu_type != P100 and {*counts} == {gpu_type.links})
    ]
    return candidates[0] if len(candidates) == 1 else None


def _add_nvlinks(
    box: Box, output: _SmiOutput, gpus: list[str], gpu_type: GpuType | None, requested_speed: Fraction | None
) -> None:
    """Add the NVLinks of the matrix to the box: between GPUs, or from GPUs to NVSwitches.

    `gpu_type`: None if unknown. `requested_speed`: bytes per second of one NVLink, if the user states it.
    """
    reported_speeds = [speed for links in output.links.values() for speed in links.values() if speed]
    link_bandwidth = requested_speed or (
        nominal_speed(max(reported_speeds)) if reported_speeds else (gpu_type.link if gpu_type else NVLINK)
    )
    box.link_bandwidth = link_bandwidth
    is_bandwidth_assumed = not any(output.product_names.values()) and not reported_speeds and requested_speed is None
    names = set(gpus)
    between_gpus = {(a, b): count for (a, b), count in output.nvlinks.items() if a in names and b in names and count}
    if not between_gpus:
        _add_nvlinks_by_count(box, output, gpus, link_bandwidth, gpu_type)
        return
    if is_bandwidth_assumed:
        box.notes.append(
            f"one NVLink is assumed to carry {format_bandwidth(link_bandwidth)} each way: the file names no GPU (add "
            "what `nvidia-smi nvlink -s` prints)"
        )
    rank = {gpu: number for number, gpu in enumerate(gpus)}
    if _is_switched(output, gpus, between_gpus, gpu_type):
        box.has_nvls = gpu_type is not None and gpu_type.has_nvls
        for gpu in gpus:
            max_links = max((count for (a, _), count in between_gpus.items() if a == gpu), default=0)
            active_links = len([speed for speed in output.links.get(gpu, {}).values() if speed])
            # every cell shows all NVLinks of the GPU; `nvlink -s` (active_links, if in the files) omits broken ones
            if max_links:
                box.switch_bandwidth[rank[gpu]] = min(active_links or max_links, max_links) * link_bandwidth
        box.notes.append("NVLinks lead to NVSwitches, which are drawn as one switch")
        return
    for (gpu, peer), count in between_gpus.items():
        box.bonds[rank[gpu], rank[peer]] = count * link_bandwidth


def _is_switched(
    output: _SmiOutput, gpus: list[str], between_gpus: dict[tuple[str, str], int], gpu_type: GpuType | None
) -> bool:
    """Return whether NVLinks lead to NVSwitches: a row has more links than a GPU, or a link leads to no GPU."""
    row_sums = Counter[str]()  # NVLinks of a GPU, if they led to GPUs
    for (a, _), count in between_gpus.items():
        row_sums[a] += count
    for gpu, addresses in output.remote.items():
        # a link leads to a PCI address that is not a GPU's
        if output.gpu_at_address and row_sums[gpu] and not output.gpu_at_address.keys() >= set(addresses):
            return True
        if addresses and row_sums[gpu] > len(addresses):  # the row has more links than `nvlink -R` lists
            return True
    for gpu, count in row_sums.items():
        active_links = len([speed for speed in output.links.get(gpu, {}).values() if speed])
        if count > (active_links or (gpu_type.links if gpu_type and gpu_type.links else _MAX_LINKS)):
            return True
    # If every pair of GPUs on a board (SXM) shows all links, there are switches between them. Not so GH200 and NVL2,
    # which are wired in pairs.
    names = " ".join(output.product_names.get(gpu, "") for gpu in gpus)
    shows_all_links = (
        gpu_type is not None and gpu_type.links > 0 and all(count == gpu_type.links for count in between_gpus.values())
    )
    is_on_board = "SXM" in names or gpu_type in (H100, B200)
    return shows_all_links and is_on_board and not re.search("GH200|NVL2", names)


def _add_nvlinks_by_count(
    box: Box, output: _SmiOutput, gpus: list[str], link_bandwidth: Fraction, gpu_type: GpuType | None
) -> None:
    """Add NVLinks if no matrix shows any: `nvlink -s` shows their number per GPU, and `-R` where they lead.

    Without -R, two GPUs are taken to be linked to each other, more (or types with NVLS) to NVSwitches. If there is a
    matrix (`output.cells`), it shows that no NVLinks join GPUs: then only NVSwitches are possible.
    """
    active_links = {}
    for gpu in gpus:
        speeds = output.links.get(gpu, {}).values()
        # -c and -R show links without speeds: then all count
        active_links[gpu] = sum(1 for speed in speeds if speed) or len(speeds)
    if not any(active_links.values()) or len(gpus) < 2:
        return
    rank = {gpu: number for number, gpu in enumerate(gpus)}
    addresses = {address for remote in output.remote.values() for address in remote}
    if addresses and output.gpu_at_address.keys() >= addresses:  # all lead to GPUs
        for gpu, remote in output.remote.items():
            for address, count in Counter(remote).items():
                if output.gpu_at_address[address] in rank:
                    box.bonds[rank[gpu], rank[output.gpu_at_address[address]]] = count * link_bandwidth
        return
    if (not output.cells and len(gpus) > 2) or (gpu_type and gpu_type.has_nvls) or addresses:
        box.has_nvls = gpu_type is not None and gpu_type.has_nvls
        box.switch_bandwidth = {rank[gpu]: count * link_bandwidth for gpu, count in active_links.items() if count}
        box.notes.append(
            "no matrix shows the peers of NVLinks: drawn as if to NVSwitches (add what `nvidia-smi topo -m` prints)"
        )
    elif len(gpus) == 2 and not output.cells:
        forward_speed, backward_speed = (active_links[gpu] * link_bandwidth for gpu in gpus)
        box.bonds = {(0, 1): forward_speed, (1, 0): backward_speed} if forward_speed and backward_speed else {}
