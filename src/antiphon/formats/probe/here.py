"""Probe this machine from Linux's files and vendors' programs: GPUs and their links, PCIe, memories, caches, cards.

Linux's information is read below /sys (`sysfs` names another root, so that a copy can be read as well). It includes
xGMI links (the topology of AMD's driver), but not NVLinks: nvidia-smi lists them. Notes list what could not be
determined. Without GPUs, the cores of the processors become the ranks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from antiphon.errors import AntiphonError, Invalid, Missing, unknown
from antiphon.formats.probe import nvidia
from antiphon.formats.probe.box import BRIDGE, GPU, NIC, SWITCH, Box, PcieDevice, build_box
from antiphon.formats.probe.cores import Core, model_cores
from antiphon.formats.probe.probed import Probed, ranks_named
from antiphon.formats.probe.slurm import expand_hosts
from antiphon.formats.probe.speeds import (
    MI200,
    GpuType,
    device_name,
    gpu_type_by_generation,
    gpu_type_by_name,
    pcie_speed,
)
from antiphon.formats.probe.table import SOURCES, read
from antiphon.registry import refuse_unknown_options
from antiphon.units import format_bandwidth

SYSFS = "/sys"
PROGRAM_TIMEOUT = 60.0  # seconds
TOO_LONG = "takes too long"  # why a program failed that was stopped
_MAX_OUTPUT = 2**24  # bytes read of a program's output
_NVIDIA, _AMD = "0x10de", "0x1002"  # PCI identifiers of the vendors
_XGMI = "11"  # type of an xGMI link in the topology of AMD's driver (KFD, HSA_IOLINK_TYPE_XGMI)
Environment = Mapping[str, str]


def look_at_machine(
    source: str = "",
    sysfs: str = SYSFS,
    environment: Environment | None = None,
    options: Mapping[str, object] | None = None,
) -> Probed:
    """Return this machine, as far as this process may use it.

    `source`: ask this tool alone ("": Linux, and the vendors' tools). `sysfs`: the folder to read instead of /sys.
    `environment`: the variables that name allocated GPUs and hosts; default: this process's. `options`: of the tool's
    reader; without `source` only `pcie`, as for `build_box`.
    """
    variables = os.environ if environment is None else environment
    options = options or {}
    probed = _printed_machine(source, options) if source else _look_at_all(sysfs, options.get("pcie"))
    return keep_allocated(probed, variables)


# ---- programs ----


def _printed_machine(source: str, options: Mapping[str, object]) -> Probed:
    """Return the machine that the programs of one source print. `options`: of its reader."""
    if source not in SOURCES:
        raise unknown("source of machines", source, SOURCES)
    programs = SOURCES[source].programs
    if not programs:
        raise Invalid(f"--from {source} reads a file; name it")
    first_program, *_ = programs[0]  # a command line
    if shutil.which(first_program) is None:
        raise Missing(
            f"--from {source} without a file asks {first_program}, which is not on PATH; install it, or name a file "
            "with what it prints"
        )
    refuse_unknown_options("reader", source, SOURCES[source].load(), options)  # before its programs run
    with tempfile.TemporaryDirectory(prefix="antiphon-probe-") as folder:
        return read(_run_programs(source, folder), source, options)


def _run_programs(source: str, folder: str) -> list[str]:
    """Return a file per program of a source with what it prints. Programs that fail, except the first, are skipped."""
    paths = []
    for number, command in enumerate(SOURCES[source].programs):
        text, fault = run_program(command)
        if fault and not number:
            raise Missing(f"{' '.join(command)}: {fault}")
        if text.strip() and not fault:
            path = Path(folder, f"{source}{number}.txt")
            path.write_bytes(text)
            paths.append(str(path))
    return paths


def run_program(command: tuple[str, ...], timeout: float = PROGRAM_TIMEOUT) -> tuple[bytes, str]:
    """Return what a program prints, and why it failed ("" if it did not)."""
    try:
        process = subprocess.run(command, capture_output=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return b"", str(getattr(error, "strerror", "") or TOO_LONG)
    if process.returncode:
        lines = (process.stderr or process.stdout).decode("utf-8", "replace").strip().splitlines()
        return process.stdout[:_MAX_OUTPUT], (lines[-1][:200] if lines else f"ends with {process.returncode}")
    return process.stdout[:_MAX_OUTPUT], ""


# ---- everything ----


def _look_at_all(sysfs: str, pcie: object) -> Probed:
    """Probe GPUs with their interconnect or, if there are none, cores."""
    if not os.path.isdir(sysfs):
        raise Missing(
            f"{sysfs}: is not a directory; Linux lists its devices there (--option sysfs=DIR names another place)"
        )
    linux = _LinuxDevices(sysfs)
    linux.read()
    notes = list(linux.notes)
    box = linux.box
    if shutil.which("nvidia-smi") is None:
        why = "nvidia-smi is not on PATH"
        notes.append(f"NVLinks cannot be seen: {why}" if linux.nvidia else f"no NVIDIA GPU on PCIe ({why})")
    else:
        try:
            with tempfile.TemporaryDirectory(prefix="antiphon-probe-") as folder:
                box = _with_nvlinks(linux, nvidia.read_box(_run_programs("nvidia-smi", folder), "this machine"))
        except AntiphonError as error:
            notes.append(f"NVLinks cannot be seen: {error}")
    if not linux.amd:
        notes.append("no AMD GPU on PCIe")
    if not box.gpus:
        return model_cores(linux.cores(), "this machine", notes)
    box.name = box.name or (f"{len(box.gpus)} x {box.model}" if box.model else "this machine")
    box.notes = [*notes, *box.notes]
    return build_box(box, pcie)


def _with_nvlinks(linux: _LinuxDevices, nvidia_box: Box) -> Box:
    """Return Linux's box with the links of nvidia-smi, if both list the same GPUs; else nvidia-smi's box."""
    by_address = {linux.box.devices[device].name: device for device in linux.nvidia}  # Linux names them by address
    devices = [by_address.get(nvidia_box.addresses.get(rank, "")) for rank in range(len(nvidia_box.gpus))]
    if not linux.nvidia or any(device is None for device in devices):
        nvidia_box.notes.append("PCIe is as nvidia-smi shows it: what Linux shows are not the same GPUs")
        return nvidia_box
    box = linux.box
    box.gpus = [device for device in devices if device is not None]
    box.bonds, box.switch_bandwidth = nvidia_box.bonds, nvidia_box.switch_bandwidth
    box.link_bandwidth = nvidia_box.link_bandwidth
    if nvidia_box.model:
        box.name, box.model = nvidia_box.name, nvidia_box.model
    box.fast_kind, box.has_nvls, box.pcie_generation = "nvlink", nvidia_box.has_nvls, nvidia_box.pcie_generation
    box.notes += nvidia_box.notes
    return box


class _LinuxDevices:
    """The devices below /sys, as a `Box`: the PCIe tree with GPUs and network cards, and xGMI links."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self.box = Box(name="")
        self.devices: dict[str, int] = {}  # PCI address -> number of the device in the box
        self.bridges: dict[str, int] = {}  # NUMA node -> its host bridge in the box
        self.nvidia: list[int] = []  # devices of the box that are NVIDIA's GPUs
        self.amd: list[int] = []
        self.boards: Counter[str] = Counter()  # product names of the GPUs, if their identifiers are known
        self.notes: list[str] = []

    def read(self) -> None:
        """Fill the box."""
        folder = self.root / "bus" / "pci" / "devices"
        addresses = sorted(os.listdir(folder)) if folder.is_dir() else []
        if not addresses:
            self.notes.append(f"PCIe cannot be seen: nothing in {folder}")
        # PCI classes of a vendor's GPUs: VGA and 3D controllers; other displays and accelerators
        gpu_classes = {_NVIDIA: ("0x0300", "0x0302"), _AMD: ("0x0380", "0x1200")}
        gpus = {_NVIDIA: self.nvidia, _AMD: self.amd}
        for address in addresses:
            pci_class, vendor = read_text(folder / address / "class"), read_text(folder / address / "vendor")
            if vendor in gpus and pci_class.startswith(gpu_classes[vendor]):
                gpus[vendor].append(self.add_device(folder / address, GPU))
                if board := device_name(vendor, read_text(folder / address / "device")):
                    self.boards[board] += 1
        self.box.gpus = [*self.nvidia, *self.amd]
        self.box.model = self.boards.most_common(1)[0][0] if self.boards else ""
        self._read_xgmi()
        self._read_cards()

    def add_device(self, path: Path, kind: str) -> int:
        """Add a device with all bridges above it, and return its number in the box."""
        # below /sys/devices, each folder on the path of a device is the bridge above the next one
        real = Path(os.path.realpath(path))
        chain = [name for name in real.parts if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", name)]
        numa = read_text(path / "numa_node") or "-1"
        if numa not in self.bridges:
            self.bridges[numa] = self.box.add(PcieDevice(BRIDGE, name=f"numa {numa}"))
        device = self.bridges[numa]
        for number, address in enumerate(chain or [path.name]):
            is_last = number == len(chain) - 1 or not chain
            folder = real if is_last else Path(*real.parts[: real.parts.index(address) + 1])
            if address not in self.devices:
                self.devices[address] = self.box.add(PcieDevice(SWITCH, device, _slot_speed(folder), address))
            device = self.devices[address]
        self.box.devices[device].kind = kind
        return device

    def _read_cards(self) -> None:
        """Add the network cards: those with RDMA, then those of other PCIe devices."""
        listed_devices: set[int] = set()  # PCIe devices whose card is listed already
        for group, speed_of in (("infiniband", rdma_speed), ("net", ethernet_speed)):
            folder = self.root / "class" / group
            for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
                path = folder / name
                if not (path / "device").exists():
                    continue  # loops, bridges and such
                # the PCIe device; the card is a device of its own below it, also of kind NIC, as several can share one
                device = self.add_device(path / "device", NIC) if _on_pcie(path / "device") else -1
                if device in listed_devices or device < 0:
                    continue
                if group == "net":  # one for each PCIe device; several RDMA cards may share a device
                    listed_devices.add(device)
                speed = speed_of(path)
                if speed is None:
                    self.notes.append(f"network card {name}: its speed is unknown (no link?)")
                self.box.nic_speeds[self.box.add(PcieDevice(NIC, device, speed=None, name=name))] = speed
            listed_devices |= {self.box.devices[device].parent for device in self.box.nic_speeds}
        if not self.box.nic_speeds:
            self.notes.append("no network card on PCIe")
        self.box.drop_slow_cards()

    def _read_xgmi(self) -> None:
        """Read links from AMD's driver, which lists nodes (GPUs are those with a gpu_id) and links between them."""
        folder = self.root / "class" / "kfd" / "kfd" / "topology" / "nodes"
        rank = {device: number for number, device in enumerate(self.box.gpus)}
        rank_of_node: dict[str, int] = {}
        gpu_type: GpuType | None = gpu_type_by_name(self.box.model)
        for node in sorted(os.listdir(folder)) if folder.is_dir() else ():
            values = read_properties(folder / node / "properties")
            if read_text(folder / node / "gpu_id") in ("", "0"):
                continue
            location, domain = int(values.get("location_id", "0")), int(values.get("domain", "0"))
            # location_id: 8 bits of bus, 5 of device, 3 of function
            address = f"{domain:04x}:{location >> 8 & 255:02x}:{location >> 3 & 31:02x}.{location & 7:x}"
            if self.devices.get(address) in rank:
                rank_of_node[node] = rank[self.devices[address]]
            version = int(values.get("gfx_target_version", "0"))
            gpu_type = gpu_type or gpu_type_by_generation(
                f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}"
            )
        if self.amd and not rank_of_node:
            self.notes.append(f"xGMI cannot be seen: the driver shows no topology in {folder}")
        weights: dict[tuple[int, int], int] = {}
        speeds: dict[tuple[int, int], Fraction] = {}
        for node, src in rank_of_node.items():
            for kind in ("io_links", "p2p_links"):
                links = folder / node / kind
                for link in sorted(os.listdir(links)) if links.is_dir() else ():
                    values = read_properties(links / link / "properties")
                    dst = rank_of_node.get(values.get("node_to", ""))
                    if values.get("type") == _XGMI and dst is not None and dst != src:
                        weights[src, dst] = int(values.get("weight", "15"))  # 15: one link, no GPU between
                        speeds[src, dst] = Fraction(int(values.get("max_bandwidth", "0"))) * 10**6  # from MB/s
        lowest = min(weights.values(), default=0)  # of direct links; greater weights are paths through other GPUs
        self.box.model = self.box.model or (gpu_type.name if gpu_type else "")
        if weights:
            if gpu_type is None:  # reader `rocm` assumes these links as well
                gpu_type = MI200
                self.notes.append(
                    f"the driver names no AMD GPU of the catalogue: taken to be {MI200.name}, with PCIe "
                    f"{MI200.pcie_generation} and, where it states no bandwidth, {format_bandwidth(MI200.link)} each "
                    "way per xGMI link"
                )
            self.box.fast_kind, self.box.link_bandwidth = "xgmi", gpu_type.link
            self.box.pcie_generation = gpu_type.pcie_generation
        for pair, weight in weights.items():
            if weight == lowest:
                self.box.bonds[pair] = speeds[pair] or self.box.link_bandwidth

    def cores(self) -> list[Core]:
        """Return the cores with package, NUMA node and last-level cache. On this machine (not a copy of its /sys), only
        those in this process's affinity mask.
        """
        folder = self.root / "devices" / "system" / "cpu"
        allowed = os.sched_getaffinity(0) if str(self.root) == SYSFS and hasattr(os, "sched_getaffinity") else None
        memories = _memory_of_threads(self.root)
        cores: dict[str, Core] = {}
        for number in sorted(int(name[3:]) for name in os.listdir(folder) if re.fullmatch(r"cpu[0-9]{1,6}", name)):
            thread = folder / f"cpu{number}"
            if not (thread / "topology").is_dir() or (allowed is not None and number not in allowed):
                continue
            # hardware threads with the same siblings are one core
            package = read_text(thread / "topology" / "physical_package_id")
            siblings = read_text(thread / "topology" / "thread_siblings_list") or str(number)
            cores.setdefault(f"{package}/{siblings}", (package, memories.get(number, ""), _last_cache(thread)))
        return [*cores.values()]


def read_text(path: Path) -> str:
    """Return the text of a small file; "" if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(2**16).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_properties(path: Path) -> dict[str, str]:
    """Return the properties of a file whose lines have a name and a whole number."""
    return dict(re.findall(r"(?m)^(\w{1,60}) ([0-9]{1,19})$", read_text(path)))


def _on_pcie(path: Path) -> bool:
    """Return whether a folder of /sys is a device of PCIe, which has a vendor and a class; virtual ones have not."""
    return (Path(os.path.realpath(path)) / "vendor").exists() and (path / "class").exists()


def _slot_speed(path: Path) -> Fraction | None:
    """Return bytes per second of the link above a device: at its maximum speed, as idle links are slowed down, and its
    current width, as slots may have fewer lanes than the device. A current width of 0, or above the maximum, is none.
    """
    width, max_width = read_text(path / "current_link_width"), read_text(path / "max_link_width")
    lanes = (
        width
        if width.isdigit() and int(width) and (not max_width.isdigit() or int(width) <= int(max_width))
        else max_width
    )
    return pcie_speed(read_text(path / "max_link_speed"), lanes)


def rdma_speed(path: Path) -> Fraction | None:
    """Return bytes/s of the fastest port of an RDMA card that is up, from texts such as "200 Gb/sec (4X HDR)"."""
    ports = sorted(os.listdir(path / "ports")) if (path / "ports").is_dir() else []
    speeds = []
    for port in ports:
        state = path / "ports" / port / "state"
        is_up = "ACTIVE" in read_text(state).upper() or not state.exists()
        rate = re.match(r"([0-9]{1,4}(?:\.[0-9]{1,2})?) Gb/sec", read_text(path / "ports" / port / "rate"))
        if rate and is_up:
            speeds.append(Fraction(rate[1]) * 10**9 / 8)
    return max(speeds, default=None)


def ethernet_speed(path: Path) -> Fraction | None:
    """Return bytes per second of an Ethernet card; None if it has no link."""
    mbit = read_text(path / "speed")
    return Fraction(int(mbit)) * 10**6 / 8 if mbit.isdigit() and int(mbit) else None


def _memory_of_threads(root: Path) -> dict[int, str]:
    """Return the nearest memory (NUMA node) per hardware thread."""
    folder = root / "devices" / "system" / "node"
    memory_of: dict[int, str] = {}
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        for span in read_text(folder / name / "cpulist").split(",") if re.fullmatch(r"node[0-9]{1,6}", name) else ():
            if match := re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", span.strip()):
                memory_of |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1), name)
    return memory_of


def _last_cache(path: Path) -> str:
    """Return the hardware threads that share a thread's last-level cache, as Linux lists them ("0-7,64-71")."""
    folder = path / "cache"
    levels = [
        (int(level), read_text(folder / name / "shared_cpu_list"))
        for name in (sorted(os.listdir(folder)) if folder.is_dir() else ())
        if (level := read_text(folder / name / "level")).isdigit()
        and read_text(folder / name / "type") != "Instruction"
    ]
    _, sharing_threads = max(levels, default=(0, ""))
    return sharing_threads


# ---- allocations ----


def keep_allocated(probed: Probed, environment: Environment) -> Probed:
    """Return the ranks allocated to this process: GPUs by the vendors' environment variables (the first that is set
    counts), hosts by Slurm's."""
    if probed.hosts:
        job = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""
        if not job:
            return probed
        hosts = expand_hosts(job, "SLURM_JOB_NODELIST")
        return probed.only(ranks_named(probed, hosts, "SLURM_JOB_NODELIST"), f"only the hosts of this job: {job[:100]}")
    if not probed.names or not probed.names[0].startswith("GPU"):
        return probed
    for variable in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        value = environment.get(variable)
        if value is not None:
            ranks = visible_gpus(value, probed.machine.ranks)
            if ranks is None:
                why = f"{variable}={value[:60]}: names no GPU by its number; all are shown"
                return replace(probed, notes=(*probed.notes, why))
            if not ranks:
                raise Invalid(f"{variable} is {value[:60]!r}: it shows no GPU to programs; set or unset it")
            if ranks != list(range(probed.machine.ranks)):
                return probed.only(ranks, f"only {variable}={value[:60]}: rank 0 is GPU {ranks[0]}")
            return probed
    return probed


def visible_gpus(value: str, count: int) -> list[int] | None:
    """Return the GPU numbers in a variable such as CUDA_VISIBLE_DEVICES; None if it names GPUs otherwise.

    As the libraries do, it stops at the first entry that is no GPU here."""
    ranks: list[int] = []
    for entry in value.split(","):
        word = entry.strip()
        if re.match(r"(GPU|MIG)-", word):
            return None
        if not re.fullmatch(r"[0-9]{1,6}", word) or int(word) >= count or int(word) in ranks:
            break
        ranks.append(int(word))
    return ranks
