"""Read XML of hwloc's lstopo, versions 1 to 3: packages, memories, caches and cores, the PCIe tree with GPUs and
network cards, and the bandwidths of NVLink and xGMI if hwloc was built with support for them.

GPUs become ranks if there are any, else cores do.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from antiphon.errors import Invalid
from antiphon.formats.probe.box import BRIDGE, GPU, MAX_GPUS, NIC, SWITCH, Box, Device, build_box
from antiphon.formats.probe.cores import MAX_CORES, Core, of_cores
from antiphon.formats.probe.found import Probed
from antiphon.formats.probe.speeds import Make, device_name, make_by_name, nearest_pcie_speed
from antiphon.formats.xml import Attributes, read_xml
from antiphon.topologies.links import GB, NVLINK

_COMPUTE_NAME = re.compile(r"(cuda|nvml|rsmi|amdsmi|ze)([0-9]{1,4})(?:\.[0-9]{1,3})?")
_CARD = re.compile(r"mlx[0-9]|hfi|bxi|cxi|ib[0-9]|hsn|qib|bnxt_re|efa")
_MAX_VALUES = 2**16
_NVIDIA, _AMD = "10de", "1002"


@dataclass
class _Slot:
    """A device of PCIe, and what the system calls it."""

    device: int
    kind: str  # its class
    vendor: str
    names: list[str] = field(default_factory=list)
    model: str = ""
    nvswitch: bool = False


@dataclass
class _Open:
    kind: str
    set: str
    number: int = 0
    device: int = -1
    slot: _Slot | None = None


def read(paths: Iterable[str], name: str, *, pcie: object = None) -> Probed:
    """Read the box in this file."""
    reader = _Reader()
    for path in paths:
        read_xml(path, reader, doctype=True, text=reader.text)
    gpus = _find_gpus(reader)
    if not gpus:
        cores = reader.cores or reader.threads
        return of_cores(cores, reader.host or name)
    return build_box(_make_box(reader, gpus, name), pcie)


class _Reader:
    def __init__(self) -> None:
        self.open: list[_Open] = []
        self.box = Box("")
        self.bridges: dict[str, int] = {}  # by the memories that they are near
        self.slots: list[_Slot] = []
        self.objects: dict[str, int] = {}  # what a matrix names: its slot
        self.packages: set[str] = set()
        self.cores: list[Core] = []
        self.threads: list[Core] = []
        self.numbered = 0
        self.host = ""
        self.matrix = ""
        self.hears = ""
        self.partial = self.prefix = ""
        self.indexes: list[str] = []
        self.values = array("d")
        self.matrices: dict[str, tuple[list[str], array[float]]] = {}

    def begin(self, name: str, attributes: Attributes, line: int) -> None:
        if not self.open and name != "topology":
            raise Invalid(f"line {line}: begins with <{name[:40]}>; what lstopo writes begins with <topology>")
        element = _Open(name, self.open[-1].set if self.open else "")
        if name == "object":
            self._begin_object(element, attributes, line)
        elif name == "info" and attributes.get("name") == "HostName":
            self.host = attributes.get("value", "")[:60] if attributes.get("value", "").isprintable() else ""
        elif (
            name == "info" and attributes.get("name") in ("GPUModel", "PCIDevice") and (slot := self._innermost_slot())
        ):
            if attributes["name"] == "GPUModel" or not slot.model:
                slot.model = attributes.get("value", "")[:80]
        elif name.startswith("distances2"):
            self.matrix, self.indexes, self.values = attributes.get("name", "")[:40], [], array("d")
            self.prefix = attributes.get("type", "")[:20]
        elif name in ("indexes", "u64values") and self.matrix in ("NVLinkBandwidth", "XGMIBandwidth"):
            self.hears, self.partial = name, ""
        self.open.append(element)

    def end(self, name: str) -> None:
        self.open.pop()
        if name in ("indexes", "u64values") and self.hears:
            self._add_words(self.partial + " ")
            self.hears = ""
        elif name.startswith("distances2") and self.values:
            self.matrices[self.matrix] = (self.indexes, self.values)

    def text(self, piece: str) -> None:
        if self.hears:
            # Text arrives in pieces that may end within a word: hold back the last one.
            *complete, self.partial = (self.partial + piece).split(" ")
            self._add_words(" ".join(complete))
            if len(self.partial) > 100:
                raise Invalid(f"matrix {self.matrix}: has a word of more than 100 characters")

    def _add_words(self, words: str) -> None:
        for word in words.split():
            if self.hears == "indexes":
                self.indexes.append(word if ":" in word else f"{self.prefix}:{word}")
            elif re.fullmatch(r"[0-9]{1,15}", word):
                self.values.append(float(word))
            else:
                raise Invalid(f"matrix {self.matrix}: {word[:20]!r} is no bandwidth in MB/s")
            if len(self.values) > _MAX_VALUES or len(self.indexes) > MAX_GPUS:
                raise Invalid(f"matrix {self.matrix}: has more than {MAX_GPUS} objects or {_MAX_VALUES} values")

    def _innermost_slot(self) -> _Slot | None:
        return next((element.slot for element in reversed(self.open) if element.slot is not None), None)

    def _begin_object(self, element: _Open, attributes: Attributes, line: int) -> None:
        kind = element.kind = attributes.get("type", "")[:20]
        if kind == "Cache" and attributes.get("depth", "1") not in ("0", "1"):  # as version 1 calls them
            element.kind = "L2Cache"
        element.number = self.numbered = self.numbered + 1
        element.set = attributes.get("nodeset", element.set)[:200]
        key = attributes.get("gp_index", "")[:12]
        if kind in ("Bridge", "PCIDev"):
            self._add_pci_device(element, kind, attributes)
            if element.slot is not None:
                self.objects[f"{kind}:{key}"] = len(self.slots) - 1
        elif kind == "OSDev" and (slot := self._innermost_slot()) is not None:
            if len(slot.names) < 16:
                slot.names.append(attributes.get("name", "")[:40])
            self.objects[f"OSDev:{key}"] = len(self.slots) - 1  # devices of PCIe do not stand in each other
        elif kind in ("Package", "Socket"):
            self.packages.add(f"Package:{key}")
        elif kind in ("Core", "PU"):
            self._add_core(kind, element.set, line)
        if len(self.objects) > 2**14:
            raise Invalid(f"line {line}: has more than {2**14} devices")

    def _add_core(self, kind: str, memory: str, line: int) -> None:
        cores = self.cores if kind == "Core" else self.threads
        if kind == "PU" and self.cores:
            return
        if len(cores) >= MAX_CORES * (1 if kind == "Core" else 2):
            raise Invalid(f"line {line}: has more than {MAX_CORES} cores")
        package = cache = ""
        for element in self.open:
            if element.kind in ("Package", "Socket"):
                package = str(element.number)
            elif not cache and element.kind in ("L4Cache", "L3Cache", "L2Cache"):
                cache = str(element.number)  # the outermost
        cores.append((package, memory, cache))

    def _add_pci_device(self, element: _Open, kind: str, attributes: Attributes) -> None:
        # The innermost enclosing device is the parent on PCIe.
        up = next((outer.device for outer in reversed(self.open) if outer.device >= 0), -1)
        if kind == "Bridge" and attributes.get("bridge_type", "0-1").startswith("0"):
            if element.set not in self.bridges:
                self.bridges[element.set] = self.box.add(Device(BRIDGE, name=element.set[:20]))
            element.device = self.bridges[element.set]
            return
        if up < 0:
            up = self.bridges.setdefault(element.set, -1)
            if up < 0:
                up = self.bridges[element.set] = self.box.add(Device(BRIDGE, name=element.set[:20]))
        rate = attributes.get("pci_link_speed", "")
        speed = (
            nearest_pcie_speed(float(rate) * GB)
            if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,9})?", rate) and float(rate)
            else None
        )
        element.device = self.box.add(Device(SWITCH, up, speed, attributes.get("pci_busid", "")[:20]))
        if kind == "PCIDev":
            identifiers = re.match(
                r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", attributes.get("pci_type", "").lower()
            )
            element.slot = _Slot(
                element.device, identifiers[1] if identifiers else "", identifiers[2] if identifiers else ""
            )
            element.slot.model = device_name(identifiers[2], identifiers[3]) if identifiers else ""
            element.slot.nvswitch = attributes.get("subtype", "") == "NVSwitch" or (
                element.slot.kind == "0680" and element.slot.vendor == _NVIDIA
            )
            self.slots.append(element.slot)


def _find_gpus(reader: _Reader) -> list[_Slot]:
    """GPUs in the order of the first library that names all of them, else of their places."""
    slots = [slot for slot in reader.slots if _is_gpu(slot)]
    if len(slots) > MAX_GPUS:
        raise Invalid(f"shows {len(slots)} GPUs; at most {MAX_GPUS} of one box are read")
    for library in ("nvml", "rsmi", "amdsmi", "cuda", "ze"):
        numbers = [_library_number(slot, library) for slot in slots]
        if slots and all(number is not None for number in numbers) and len(set(numbers)) == len(slots):
            return sorted(slots, key=lambda slot: _library_number(slot, library) or 0)
    return slots


def _library_number(slot: _Slot, library: str) -> int | None:
    for name in slot.names:
        if (match := _COMPUTE_NAME.fullmatch(name)) and match[1] == library:
            return int(match[2])
    return None


def _is_gpu(slot: _Slot) -> bool:
    """Whether it is a compute device: named by a compute library, or of PCI class 3D or accelerator."""
    if any(_COMPUTE_NAME.fullmatch(name) for name in slot.names):
        return True
    if slot.vendor == _NVIDIA:
        return slot.kind in ("0302", "0300")
    return slot.vendor == _AMD and slot.kind in ("0380", "1200")


def _make_box(reader: _Reader, gpus: list[_Slot], name: str) -> Box:
    box = reader.box
    box.gpus = [slot.device for slot in gpus]
    for slot in gpus:
        box.devices[slot.device].kind = GPU
    kinds = Counter(slot.model for slot in gpus if make_by_name(slot.model))
    box.model = kinds.most_common(1)[0][0] if kinds else ""
    make = make_by_name(box.model) if box.model else None
    box.name = f"{len(gpus)} x {box.model}" if box.model else (reader.host or name)
    box.name = box.name if box.name.isprintable() else name
    box.link_bandwidth = make.link if make else NVLINK
    box.pcie = make.pcie if make else 4
    for slot in reader.slots:
        if slot.kind == "0207" or any(_CARD.match(word) for word in slot.names):
            box.devices[slot.device].kind = NIC
            label = next((word for word in slot.names if _CARD.match(word)), box.devices[slot.device].name)
            box.speeds[box.add(Device(NIC, slot.device, None, label))] = None
    for matrix, (indexes, values) in reader.matrices.items():
        _add_matrix(box, reader, gpus, matrix, indexes, values, make)
    if not reader.matrices and make and make.links:
        fast = "xGMI" if make.xgmi else "NVLink"
        box.notes.append(
            f"the file has no {fast} bandwidths: hwloc has them where it was built with the vendor's library"
        )
    return box


def _add_matrix(
    box: Box, reader: _Reader, gpus: list[_Slot], matrix: str, indexes: list[str], values: array[float],
    make: Make | None,
) -> None:  # fmt: skip
    """A matrix of MB/s between GPUs, NVSwitches and packages, row by row."""
    count = len(indexes)
    if len(values) != count * count:
        raise Invalid(f"matrix {matrix}: has {len(values)} values for {count} objects; expected {count * count}")
    box.fast_kind = "xgmi" if matrix == "XGMIBandwidth" else "nvlink"
    rank = {id(slot): number for number, slot in enumerate(gpus)}
    slots = [reader.slots[reader.objects[key]] if key in reader.objects else None for key in indexes]
    twice = _double_count(slots, values, rank, make)
    for row, slot in enumerate(slots):
        if slot is None or id(slot) not in rank:
            continue
        a = rank[id(slot)]
        for column, other in enumerate(slots):
            speed = Fraction(int(values[row * count + column])) * 10**6 / twice
            if not speed or row == column:
                continue
            if other is not None and id(other) in rank:
                box.bonds[a, rank[id(other)]] = speed
            elif other is not None and other.nvswitch:
                box.ports[a] = box.ports.get(a, Fraction(0)) + speed
            elif indexes[column] in reader.packages:
                box.hosts[a] = speed
    box.sharp = make is not None and make.sharp
    if twice > 1:
        box.notes.append("NVLink bandwidths are halved: this version of hwloc counts both ways for NVLink 3 and 4")


def _double_count(slots: list[_Slot | None], values: array[float], rank: dict[int, int], make: Make | None) -> int:
    """2 where a GPU has more than its make can have: hwloc before 2.10 counted both ways for NVLink 3 and 4."""
    if make is None or make.xgmi or not make.links:
        return 1
    count = len(slots)
    sums = [
        sum(values[row * count + column] for column in range(count) if column != row)
        for row, slot in enumerate(slots) if slot is not None and id(slot) in rank
    ]  # fmt: skip
    return 2 if max(sums, default=0.0) * 1e6 > 1.01 * float(make.links * make.link) else 1
