"""NCCL's and RCCL's XML: the topology (NCCL_TOPO_DUMP_FILE, or the files that clouds ship) and the graphs
(NCCL_GRAPH_DUMP_FILE).

A topology has a <cpu> per NUMA node, below it the tree of PCIe (<pci>), in it GPUs with their NVLinks or xGMI links and
network cards. A graph lists rings as orders of GPUs with the speed of each channel; the machine of a graph has only the
links that these rings use.

Texts are cut where they are stored or quoted ([:40] and the like), so that a damaged file fills no memory or message.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from antiphon.core.topology import LinkType, build
from antiphon.errors import Invalid, quote
from antiphon.formats.probe.box import BRIDGE, GPU, MAX_GPUS, NIC, SWITCH, UNKNOWN_GPU_NOTE, Box, PcieDevice, build_box
from antiphon.formats.probe.probed import Probed
from antiphon.formats.probe.speeds import (
    GpuType,
    device_name,
    gpu_type_by_capability,
    gpu_type_by_generation,
    gpu_type_by_name,
    pcie_speed,
)
from antiphon.formats.xml import Attributes, read_xml
from antiphon.topologies.links import GB, NVLINK, NVLINK_LATENCY
from antiphon.units import exact

_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # PCI classes: display, 3D, accelerator
_NVSWITCH = "0x068000"  # PCI class of a bridge
_MAX_LINKS = 2**13  # elements of links in a topology; GPUs of all rings of graphs together
_VIRTUAL = re.compile(r"veth|virbr|docker|tap|tun|lo$|br-")  # no cards
_FASTEST = Fraction(1000 * GB)  # bytes per second of a network card; a file that says more is in other units
_RING = "4"  # NCCL's number of the pattern


def read(paths: list[str], name: str, *, pcie: object = None) -> Probed:
    """Return the machine in these files: that of a topology, or if there is none, that of graphs.

    `pcie`: whether to include PCIe, as for `build_box`.
    """
    reader = _Reader()
    for path in paths:
        reader.depth = 0
        read_xml(path, reader, allow_doctype=True)
    if reader.gpus or not reader.rings:
        return build_box(_make_box(reader, name), pcie)
    return _machine_of_rings(reader, name)


@dataclass
class _Gpu:
    device: int  # index in `Box.devices`
    bus: str  # PCI address
    values: dict[str, str]  # attributes of <gpu>: dev, rank, sm (compute capability), gcn (AMD's generation)
    # per <nvlink> or <xgmi>: bus of its target, PCI class of the target, number of links
    links: list[tuple[str, str, int]] = field(default_factory=list)


class _Reader:
    """Collects devices, GPUs and rings while the XML is read, element by element."""

    def __init__(self) -> None:
        self.depth = 0
        self.root = ""
        self.box = Box(name="")
        self.open_devices: list[int] = []  # per open element its device; -1 if it is none
        self.gpus: list[_Gpu] = []
        self.pci_elements: list[tuple[int, str, str]] = []  # per <pci>: device, bus, class
        self.boards: dict[int, str] = {}  # device -> board name, if its identifiers are known
        self.hosts: set[str] = set()  # hashes of host names
        self.link_elements = 0  # so far
        self.rings: list[tuple[Fraction, list[int], bool]] = []  # speed, GPUs, whether it closes
        self.graph: dict[str, str] = {}  # attributes of the last <graph>
        self.channel: list[int] | None = None  # the GPUs so far of the open <channel>
        self.closed = True  # whether the open channel stays in this host, so that its last GPU sends to the first

    def begin(self, name: str, attributes: Attributes, line: int) -> None:
        self.depth += 1
        if self.depth == 1:
            if name not in ("system", "graphs"):
                raise Invalid(f"line {line}: begins with <{name[:40]}>; expected <system> (topology) or <graphs>")
            self.root = name
        if self.root == "graphs":
            self._begin_graph_element(name, attributes, line)
        else:
            self.open_devices.append(self._begin_element(name, attributes, line))

    def end(self, name: str) -> None:
        self.depth -= 1
        if self.root != "graphs":
            self.open_devices.pop()
        elif name == "channel" and self.channel is not None:
            self._end_ring()

    # ---- a topology ----

    def _innermost_device(self) -> int:
        return next((device for device in reversed(self.open_devices) if device >= 0), -1)

    def _begin_element(self, name: str, attributes: Attributes, line: int) -> int:
        """Read an element of a topology; return its device in the box, -1 if it is none."""
        if name == "cpu":
            self.hosts.add(attributes.get("host_hash", "")[:40])
            return self.box.add(PcieDevice(BRIDGE, name=f"numa {attributes.get('numaid', '?')[:8]}"))
        if name == "pci":
            speed = pcie_speed(attributes.get("link_speed", ""), attributes.get("link_width", ""))
            bus = attributes.get("busid", "")[:40].lower()
            device = self.box.add(PcieDevice(SWITCH, self._innermost_device(), speed, bus))
            self.pci_elements.append((device, bus, attributes.get("class", "")[:10]))
            self.boards[device] = device_name(attributes.get("vendor", ""), attributes.get("device", ""))
            return device
        if name == "gpu":
            self._add_gpu(attributes)
        elif name in ("nvlink", "xgmi") and self.gpus:
            self.link_elements += 1
            if self.link_elements > _MAX_LINKS:
                raise Invalid(f"line {line}: has more than {_MAX_LINKS} links between GPUs")
            count = _link_count(attributes.get("count", "1"), line)
            target, target_class = attributes.get("target", "")[:40].lower(), attributes.get("tclass", "")[:10]
            self.gpus[-1].links.append((target, target_class, count))
            self.box.fast_kind = name
        elif name == "net":
            self._add_card(attributes)
        return -1

    def _add_gpu(self, attributes: Attributes) -> None:
        """Add the GPU at the innermost open PCIe device."""
        device = self._innermost_device()
        if device < 0:
            device = self.box.add(PcieDevice(GPU))
        self.box.devices[device].kind = GPU
        if len(self.gpus) >= MAX_GPUS:
            raise Invalid(f"has more than {MAX_GPUS} GPUs")
        values = {key: attributes[key][:40] for key in ("dev", "rank", "sm", "gcn") if key in attributes}
        self.gpus.append(_Gpu(device, self.box.devices[device].name, values))

    def _add_card(self, attributes: Attributes) -> None:
        """Add a network card below the innermost open PCIe device; virtual ones are left out."""
        parent_index = self._innermost_device()
        parent = self.box.devices[parent_index] if parent_index >= 0 else None
        # a <pci> that contains a <net>, virtual or not, is no switch but the card itself; each <net> is a port of it
        if parent is not None and parent.kind == SWITCH:
            parent.kind = NIC
        name = attributes.get("name", "")[:40]
        if _VIRTUAL.match(name):
            return
        mbit = attributes.get("speed", "")
        speed = Fraction(int(mbit)) * 10**6 / 8 if mbit.isdigit() and 0 < len(mbit) < 10 and int(mbit) else None
        if speed and speed > _FASTEST:
            speed /= 1000  # Slingshot's plugin writes kbit/s
        self.box.nic_speeds[self.box.add(PcieDevice(NIC, parent_index, speed=None, name=name))] = speed

    # ---- graphs ----

    def _begin_graph_element(self, name: str, attributes: Attributes, line: int) -> None:
        """Read the pattern and speed of a graph, or a GPU of the open channel; a <net> in it leads to other hosts."""
        if name == "graph":
            self.graph = {key: attributes.get(key, "")[:20] for key in ("pattern", "speedintra", "id")}
        elif name == "channel":
            self.channel, self.closed = [], True
        elif name == "net":
            self.closed = False  # it goes on in another host
        elif name == "gpu" and self.channel is not None:
            dev = attributes.get("dev", attributes.get("rank", ""))
            if not re.fullmatch(r"\d{1,6}|0x[\da-f]{1,5}", dev, re.ASCII):  # newer NCCLs write 0xa
                raise Invalid(f"line {line}: gpu has dev={quote(dev)}; expected its number")
            self.channel.append(int(dev, 16 if dev.startswith("0x") else 10))
            if len(self.channel) > MAX_GPUS:
                raise Invalid(f"line {line}: a channel has more than {MAX_GPUS} GPUs")

    def _end_ring(self) -> None:
        """Keep the channel that ends if it is a ring with a speed; those of other patterns (trees) are left out."""
        if self.graph.get("pattern") == _RING and self.channel:
            speed = exact(self.graph["speedintra"] or "0", "speedintra") * GB
            if speed > 0:
                self.rings.append((speed, self.channel, self.closed))
                if sum(len(ring) for _, ring, _ in self.rings) > _MAX_LINKS:
                    raise Invalid(f"has rings of more than {_MAX_LINKS} GPUs together")
        self.channel = None


def _link_count(text: str, line: int) -> int:
    if not text.isdigit() or len(text) > 4:
        raise Invalid(f"line {line}: count is {quote(text)}; expected the number of links")
    return int(text)


def _make_box(reader: _Reader, name: str) -> Box:
    """Complete the box of a topology: its GPUs in order, their model, and the links between them."""
    box = reader.box
    if not reader.gpus:
        devices = [(d, bus) for d, bus, pci_class in reader.pci_elements if pci_class.startswith(_GPU_CLASSES)]
        if len(devices) > MAX_GPUS:
            raise Invalid(f"has more than {MAX_GPUS} GPUs")
        reader.gpus = [_Gpu(device, bus, values={}) for device, bus in devices]
        for device, _ in devices:
            box.devices[device].kind = GPU
        if devices:
            box.notes.append(
                "the file names places of GPUs without their NVLinks: what NCCL_TOPO_DUMP_FILE writes has them"
            )
    gpus = _in_order(reader.gpus)
    box.gpus = [gpu.device for gpu in gpus]
    model, gpu_type = _identify_board(gpus, reader.boards, box.notes)
    box.name, box.model = (f"{len(gpus)} x {model}" if model else name), model
    box.link_bandwidth = gpu_type.link if gpu_type else NVLINK
    box.pcie_generation = gpu_type.pcie_generation if gpu_type else 4
    if gpu_type is None and any(gpu.links for gpu in gpus):
        box.notes.append("one link between GPUs is assumed to carry 25 GB/s each way: the file shows no generation")
    _add_links(box, gpus, gpu_type)
    box.drop_slow_cards()
    if len(reader.hosts) > 1:
        box.notes.append(f"GPUs of {len(reader.hosts)} hosts stand in one file: drawn as one box")
    return box


def _in_order(gpus: list[_Gpu]) -> list[_Gpu]:
    """Return the GPUs in the order of `rank`, else of `dev`, if that differs for all of them."""
    for key in ("rank", "dev"):
        numbers = [gpu.values.get(key, "") for gpu in gpus]
        if all(text.isdigit() and len(text) < 9 for text in numbers) and len(set(numbers)) == len(numbers):
            return sorted(gpus, key=lambda gpu: int(gpu.values[key]))
    return gpus


def _identify_board(gpus: list[_Gpu], boards: dict[int, str], notes: list[str]) -> tuple[str, GpuType | None]:
    """Return the board that most GPUs have, and its type of GPU: by PCI identifiers, else by the generation alone."""
    models = Counter(boards[gpu.device] for gpu in gpus if boards.get(gpu.device))
    if models:
        model = models.most_common(1)[0][0]
        return model, gpu_type_by_name(model)
    for key, gpu_type_of in (("gcn", gpu_type_by_generation), ("sm", _gpu_type_by_sm)):
        value = next((gpu.values[key] for gpu in gpus if key in gpu.values), "")
        if gpu_type := gpu_type_of(value):
            notes.append(f'GPUs are taken to be {gpu_type.name}: the file has {key}="{value}" and no name')
            return gpu_type.name, gpu_type
    return "", None


def _gpu_type_by_sm(sm: str) -> GpuType | None:
    return gpu_type_by_capability(int(sm)) if sm.isdigit() and len(sm) < 5 else None


def _add_links(box: Box, gpus: list[_Gpu], gpu_type: GpuType | None) -> None:
    """Add the links of GPUs to the box, with the bandwidth `box.link_bandwidth` each."""
    rank = {gpu.bus: number for number, gpu in enumerate(gpus) if gpu.bus}
    switch_links: Counter[int] = Counter()
    unmatched_links = 0
    for number, gpu in enumerate(gpus):
        for target, target_class, count in gpu.links:
            if not count:
                continue
            if target_class == _NVSWITCH:
                switch_links[number] += count
            elif target in rank and rank[target] != number:
                key = number, rank[target]
                box.bonds[key] = box.bonds.get(key, Fraction(0)) + count * box.link_bandwidth
            else:
                unmatched_links += count
    box.switch_bandwidth = {number: count * box.link_bandwidth for number, count in switch_links.items()}
    box.has_nvls = gpu_type is not None and gpu_type.has_nvls
    if unmatched_links:
        box.notes.append(
            f"{unmatched_links} links lead to no GPU of the file (to processors, or to GPUs that are not visible)"
        )


def _machine_of_rings(reader: _Reader, name: str) -> Probed:
    """Return the machine of rings: a rank per GPU, a link per pair with the bandwidth of all channels that use it."""
    devs = sorted({dev for _, ring, _ in reader.rings for dev in ring})
    rank = {dev: number for number, dev in enumerate(devs)}
    bandwidth: dict[tuple[int, int], Fraction] = {}
    for speed, ring, closed in reader.rings:
        for a, b in zip(ring, [*ring[1:], *ring[:1]] if closed else ring[1:], strict=False):
            if a != b:
                bandwidth[rank[a], rank[b]] = bandwidth.get((rank[a], rank[b]), Fraction(0)) + speed
    links = [(a, b, LinkType("channel", speed, NVLINK_LATENCY)) for (a, b), speed in sorted(bandwidth.items())]
    places = [f"host0/gpu{dev}" for dev in devs]
    notes = (
        "of a graph only the links that its rings use are there; the topology (NCCL_TOPO_DUMP_FILE) has all",
        UNKNOWN_GPU_NOTE,
    )
    return Probed(build(name, len(devs), links, places=places), notes, tuple(f"GPU {dev}" for dev in devs))
