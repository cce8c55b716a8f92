"""Read XML of hwloc's lstopo, versions 1 to 3: packages, memories, caches and cores, the PCIe tree with GPUs and
network cards, and the bandwidths of NVLink and xGMI if hwloc was built with support for them.

GPUs become ranks if there are any, else cores do.
Texts are cut where they are stored or quoted ([:40] and the like), so that a damaged file fills no memory or message.

The file nests objects; the tree of PCIe devices is the nesting of Bridge and PCIDev. Bandwidths are matrices of MB/s:

    <object type="PCIDev" gp_index="40" pci_type="0302 [10de:20b0] ..." pci_link_speed="31.5">
      <object type="OSDev" gp_index="41" name="nvml0"/>
    <distances2hetero name="NVLinkBandwidth" ...><indexes>PCIDev:40 PCIDev:52</indexes><u64values>0 ...</u64values>
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from antiphon.errors import Invalid
from antiphon.formats.probe.box import BRIDGE, GPU, MAX_GPUS, NIC, SWITCH, Box, PcieDevice, build_box
from antiphon.formats.probe.cores import MAX_CORES, Core, model_cores
from antiphon.formats.probe.probed import Probed
from antiphon.formats.probe.speeds import GpuType, device_name, gpu_type_by_name, nearest_pcie_speed
from antiphon.formats.xml import Attributes, read_xml
from antiphon.topologies.links import GB, NVLINK

# Names of GPUs in the libraries that compute on them or manage them
_COMPUTE_NAME = re.compile(r"(cuda|nvml|rsmi|amdsmi|ze)([0-9]{1,4})(?:\.[0-9]{1,3})?")
# Names of fast network cards
_CARD = re.compile(r"mlx[0-9]|hfi|bxi|cxi|ib[0-9]|hsn|qib|bnxt_re|efa")
_MAX_VALUES = 2**16  # of a matrix
_MAX_OBJECTS = 2**14  # devices of PCIe and of the operating system
_MAX_NAMES = 16  # that the operating system has for a device of PCIe
# PCI classes: of GPUs (VGA and 3D controllers; other displays and accelerators), NVSwitches and InfiniBand cards
_NVIDIA_GPU, _AMD_GPU, _OTHER_BRIDGE, _INFINIBAND = ("0300", "0302"), ("0380", "1200"), "0680", "0207"
_NVIDIA, _AMD = "10de", "1002"  # vendors, as PCI numbers them


@dataclass
class _PciDevice:
    """A device of PCIe, and what the operating system calls it."""

    device: int  # index in `Box.devices`
    kind: str  # PCI class, four hexadecimal digits
    vendor: str  # four hexadecimal digits
    names: list[str] = field(default_factory=list)  # such as "nvml0" or "mlx5_0"
    model: str = ""  # product name
    nvswitch: bool = False  # whether it is an NVSwitch


@dataclass
class _Element:
    """An XML element that is not yet closed."""

    kind: str  # type of the object, else the name of the element
    memories: str  # bits of the NUMA nodes near it, as hwloc writes sets; inherited from the element around it
    number: int = 0  # of objects, in the order of the file
    device: int = -1  # index in `Box.devices`; -1: none
    pci_device: _PciDevice | None = None


def read(paths: Iterable[str], name: str, *, pcie: object = None) -> Probed:
    """Read the machine in this file. `pcie`: as for `build_box`."""
    reader = _Reader()
    for path in paths:
        read_xml(path, reader, allow_doctype=True, text=reader.text)
    gpus = _find_gpus(reader)
    if not gpus:
        cores = reader.cores or reader.threads
        return model_cores(cores, reader.host or name)
    return build_box(_make_box(reader, gpus, name), pcie)


class _Reader:
    """Collect what the file has. `read_xml` calls `begin` and `end` for each element, and `text` between them."""

    def __init__(self) -> None:
        self.open_elements: list[_Element] = []
        self.box = Box(name="")
        self.bridges: dict[str, int] = {}  # NUMA nodes near a host bridge -> its index in `Box.devices`
        self.pci_devices: list[_PciDevice] = []
        self.objects: dict[str, int] = {}  # key of an object in matrices -> index in `pci_devices`
        self.packages: set[str] = set()  # keys of processors
        self.cores: list[Core] = []
        self.threads: list[Core] = []  # hardware threads, used where the file has no cores
        self.element_count = 0
        self.host = ""
        # The matrix that is being read: its name, the type of its objects, their keys, and the values row by row
        self.matrix = ""
        self.object_type = ""
        self.keys: list[str] = []
        self.values = array("d")
        self.collecting = ""  # "indexes" or "u64values" while their text is read
        self.partial_word = ""  # the end of the text so far, whose word may go on
        self.matrices: dict[str, tuple[list[str], array[float]]] = {}

    def begin(self, name: str, attributes: Attributes, line: int) -> None:
        """Read the begin of an element."""
        if not self.open_elements and name != "topology":
            raise Invalid(f"line {line}: begins with <{name[:40]}>; what lstopo writes begins with <topology>")
        element = _Element(name, self.open_elements[-1].memories if self.open_elements else "")
        if name == "object":
            self._begin_object(element, attributes, line)
        elif name == "info" and attributes.get("name") == "HostName":
            self.host = attributes.get("value", "")[:60] if attributes.get("value", "").isprintable() else ""
        elif (
            name == "info"
            and attributes.get("name") in ("GPUModel", "PCIDevice")
            and (pci_device := self._innermost_pci_device())
        ):
            if attributes["name"] == "GPUModel" or not pci_device.model:
                pci_device.model = attributes.get("value", "")[:80]
        elif name.startswith("distances2"):
            self.matrix, self.keys, self.values = attributes.get("name", "")[:40], [], array("d")
            self.object_type = attributes.get("type", "")[:20]
        elif name in ("indexes", "u64values") and self.matrix in ("NVLinkBandwidth", "XGMIBandwidth"):
            self.collecting, self.partial_word = name, ""
        self.open_elements.append(element)

    def end(self, name: str) -> None:
        """Read the end of an element."""
        self.open_elements.pop()
        if name in ("indexes", "u64values") and self.collecting:
            self._add_words(self.partial_word + " ")
            self.collecting = ""
        elif name.startswith("distances2") and self.values:
            self.matrices[self.matrix] = (self.keys, self.values)

    def text(self, piece: str) -> None:
        """Read a piece of the text of an element."""
        if self.collecting:
            # Text arrives in pieces that may end within a word: hold back the last one.
            *complete, self.partial_word = (self.partial_word + piece).split(" ")
            self._add_words(" ".join(complete))
            if len(self.partial_word) > 100:
                raise Invalid(f"matrix {self.matrix}: has a word of more than 100 characters")

    def _add_words(self, words: str) -> None:
        """Add complete words of the text to the keys or the values of the matrix."""
        for word in words.split():
            if self.collecting == "indexes":
                self.keys.append(word if ":" in word else f"{self.object_type}:{word}")
            elif re.fullmatch(r"[0-9]{1,15}", word):
                self.values.append(float(word))
            else:
                raise Invalid(f"matrix {self.matrix}: {word[:20]!r} is no bandwidth in MB/s")
            if len(self.values) > _MAX_VALUES or len(self.keys) > MAX_GPUS:
                raise Invalid(f"matrix {self.matrix}: has more than {MAX_GPUS} objects or {_MAX_VALUES} values")

    def _innermost_pci_device(self) -> _PciDevice | None:
        """Return the innermost PCI device whose element is open."""
        return next(
            (element.pci_device for element in reversed(self.open_elements) if element.pci_device is not None), None
        )

    def _begin_object(self, element: _Element, attributes: Attributes, line: int) -> None:
        """Read the begin of an object: a memory, cache, core, PCI device or device of the operating system."""
        kind = element.kind = attributes.get("type", "")[:20]
        if kind == "Cache" and attributes.get("depth", "1") not in ("0", "1"):  # as version 1 calls them
            element.kind = "L2Cache"
        element.number = self.element_count = self.element_count + 1
        element.memories = attributes.get("nodeset", element.memories)[:200]
        key = attributes.get("gp_index", "")[:12]
        if kind in ("Bridge", "PCIDev"):
            self._add_pci_device(element, kind, attributes)
            if element.pci_device is not None:
                self.objects[f"{kind}:{key}"] = len(self.pci_devices) - 1
        elif kind == "OSDev" and (pci_device := self._innermost_pci_device()) is not None:
            if len(pci_device.names) < _MAX_NAMES:
                pci_device.names.append(attributes.get("name", "")[:40])
            # PCIDevs are nested in bridges, never in each other, so the one begun last encloses this element.
            self.objects[f"OSDev:{key}"] = len(self.pci_devices) - 1
        elif kind in ("Package", "Socket"):
            self.packages.add(f"Package:{key}")
        elif kind in ("Core", "PU"):
            self._add_core(kind, element.memories, line)
        if len(self.objects) > _MAX_OBJECTS:
            raise Invalid(f"line {line}: has more than {_MAX_OBJECTS} devices")

    def _add_core(self, kind: str, memory: str, line: int) -> None:
        """Add a core, or a hardware thread if there are no cores, with its package, memory and cache."""
        cores = self.cores if kind == "Core" else self.threads
        if kind == "PU" and self.cores:
            return
        if len(cores) >= MAX_CORES * (1 if kind == "Core" else 2):  # two hardware threads per core
            raise Invalid(f"line {line}: has more than {MAX_CORES} cores")
        package = cache = ""
        for element in self.open_elements:
            if element.kind in ("Package", "Socket"):
                package = str(element.number)
            elif not cache and element.kind in ("L4Cache", "L3Cache", "L2Cache"):
                cache = str(element.number)  # the outermost
        cores.append((package, memory, cache))

    def _host_bridge(self, memories: str) -> int:
        """Return the host bridge near these memories, by its index in `Box.devices`; all such bridges are one."""
        if memories not in self.bridges:
            self.bridges[memories] = self.box.add(PcieDevice(BRIDGE, name=memories[:20]))
        return self.bridges[memories]

    def _add_pci_device(self, element: _Element, kind: str, attributes: Attributes) -> None:
        """Add a PCI bridge or device to the box, below the device whose element encloses it."""
        # The innermost enclosing device is the parent on PCIe.
        parent = next((outer.device for outer in reversed(self.open_elements) if outer.device >= 0), -1)
        # bridge_type: 0 is the host, 1 PCIe, on the upper and on the lower side
        if kind == "Bridge" and attributes.get("bridge_type", "0-1").startswith("0"):
            element.device = self._host_bridge(element.memories)
            return
        if parent < 0:
            parent = self._host_bridge(element.memories)
        speed_text = attributes.get("pci_link_speed", "")
        speed = (
            nearest_pcie_speed(float(speed_text) * GB)
            if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,9})?", speed_text) and float(speed_text)
            else None
        )
        # SWITCH until `_make_box` sets the kind of GPUs and cards, when all their names are known.
        element.device = self.box.add(PcieDevice(SWITCH, parent, speed, attributes.get("pci_busid", "")[:20]))
        if kind == "PCIDev":
            identity = re.match(
                r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", attributes.get("pci_type", "").lower()
            )
            element.pci_device = _PciDevice(
                element.device, identity[1] if identity else "", identity[2] if identity else ""
            )
            element.pci_device.model = device_name(identity[2], identity[3]) if identity else ""
            element.pci_device.nvswitch = attributes.get("subtype", "") == "NVSwitch" or (
                element.pci_device.kind == _OTHER_BRIDGE and element.pci_device.vendor == _NVIDIA
            )
            self.pci_devices.append(element.pci_device)


def _find_gpus(reader: _Reader) -> list[_PciDevice]:
    """Return the GPUs in the order of the first library that names all of them, else of the file."""
    pci_devices = [pci_device for pci_device in reader.pci_devices if _is_gpu(pci_device)]
    if len(pci_devices) > MAX_GPUS:
        raise Invalid(f"shows {len(pci_devices)} GPUs; at most {MAX_GPUS} of one box are read")
    for library in ("nvml", "rsmi", "amdsmi", "cuda", "ze"):
        numbers = [_library_number(pci_device, library) for pci_device in pci_devices]
        if pci_devices and all(number is not None for number in numbers) and len(set(numbers)) == len(pci_devices):
            return sorted(pci_devices, key=lambda pci_device: _library_number(pci_device, library) or 0)
    return pci_devices


def _library_number(pci_device: _PciDevice, library: str) -> int | None:
    """Return the number that a library gives to a GPU, or None."""
    for name in pci_device.names:
        if (match := _COMPUTE_NAME.fullmatch(name)) and match[1] == library:
            return int(match[2])
    return None


def _is_gpu(pci_device: _PciDevice) -> bool:
    """Return whether it is a GPU: named by a compute library, or of a PCI class that its vendor gives to GPUs."""
    if any(_COMPUTE_NAME.fullmatch(name) for name in pci_device.names):
        return True
    if pci_device.vendor == _NVIDIA:
        return pci_device.kind in _NVIDIA_GPU
    return pci_device.vendor == _AMD and pci_device.kind in _AMD_GPU


def _make_box(reader: _Reader, gpus: list[_PciDevice], name: str) -> Box:
    """Return the box with its GPUs, network cards and the bandwidths between GPUs."""
    box = reader.box
    box.gpus = [pci_device.device for pci_device in gpus]
    for pci_device in gpus:
        box.devices[pci_device.device].kind = GPU
    kinds = Counter(pci_device.model for pci_device in gpus if gpu_type_by_name(pci_device.model))
    box.model = kinds.most_common(1)[0][0] if kinds else ""
    gpu_type = gpu_type_by_name(box.model) if box.model else None
    box.name = f"{len(gpus)} x {box.model}" if box.model else (reader.host or name)
    box.name = box.name if box.name.isprintable() else name
    box.link_bandwidth = gpu_type.link if gpu_type else NVLINK
    if gpu_type:
        box.pcie_generation = gpu_type.pcie_generation
    for pci_device in reader.pci_devices:
        if pci_device.kind == _INFINIBAND or any(_CARD.match(word) for word in pci_device.names):
            box.devices[pci_device.device].kind = NIC
            label = next((word for word in pci_device.names if _CARD.match(word)), box.devices[pci_device.device].name)
            # the card's network port, below the card
            port = box.add(PcieDevice(NIC, pci_device.device, speed=None, name=label))
            box.nic_speeds[port] = None  # the file has no bandwidth of networks
    for matrix, (keys, values) in reader.matrices.items():
        _add_matrix(box, reader, gpus, matrix, keys, values, gpu_type)
    if not reader.matrices and gpu_type and gpu_type.links:
        fast = "xGMI" if gpu_type.xgmi else "NVLink"
        box.notes.append(
            f"the file has no {fast} bandwidths: hwloc has them where it was built with the vendor's library"
        )
    return box


def _add_matrix(
    box: Box, reader: _Reader, gpus: list[_PciDevice], matrix: str, keys: list[str], values: array[float],
    gpu_type: GpuType | None,
) -> None:  # fmt: skip
    """Add the bandwidths of a matrix of MB/s between GPUs, NVSwitches and packages, row by row."""
    count = len(keys)
    if len(values) != count * count:
        raise Invalid(f"matrix {matrix}: has {len(values)} values for {count} objects; expected {count * count}")
    box.fast_kind = "xgmi" if matrix == "XGMIBandwidth" else "nvlink"
    rank = {id(pci_device): number for number, pci_device in enumerate(gpus)}
    pci_devices = [reader.pci_devices[reader.objects[key]] if key in reader.objects else None for key in keys]
    directions = _directions_counted(pci_devices, values, rank, gpu_type)
    for row, pci_device in enumerate(pci_devices):
        if pci_device is None or id(pci_device) not in rank:
            continue
        a = rank[id(pci_device)]
        for column, other in enumerate(pci_devices):
            speed = Fraction(int(values[row * count + column])) * 10**6 / directions
            if not speed or row == column:
                continue
            if other is not None and id(other) in rank:
                box.bonds[a, rank[id(other)]] = speed
            elif other is not None and other.nvswitch:
                box.switch_bandwidth[a] = box.switch_bandwidth.get(a, Fraction(0)) + speed
            elif keys[column] in reader.packages:
                box.hosts[a] = speed
    box.has_nvls = gpu_type is not None and gpu_type.has_nvls
    if directions > 1:
        box.notes.append("NVLink bandwidths are halved: this version of hwloc counts both ways for NVLink 3 and 4")


def _directions_counted(
    pci_devices: list[_PciDevice | None], values: array[float], rank: dict[int, int], gpu_type: GpuType | None
) -> int:
    """Return the number of directions of a link that the values count: 2 if a GPU has more than its type can have, else
    1.

    hwloc before 2.10 counted both directions of NVLink 3 and 4.
    """
    if gpu_type is None or gpu_type.xgmi or not gpu_type.links:
        return 1
    count = len(pci_devices)
    bandwidths = [  # of each GPU, MB/s
        sum(values[row * count + column] for column in range(count) if column != row)
        for row, pci_device in enumerate(pci_devices) if pci_device is not None and id(pci_device) in rank
    ]  # fmt: skip
    # 1 % more is rounding
    return 2 if max(bandwidths, default=0.0) * 1e6 > 1.01 * float(gpu_type.links * gpu_type.link) else 1
