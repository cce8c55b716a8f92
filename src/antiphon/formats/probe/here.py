"""Probe this machine from Linux's files and vendors' programs: GPUs and their links, PCIe, memories, caches, cards.

Linux's information is read below /sys (`sysfs` names another root, so that a copy can be read as well). NVLinks are
not there: nvidia-smi lists them. xGMI links are (the driver's topology). Notes list what could not be determined.
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
from antiphon.formats.probe.box import BRIDGE, GPU, NIC, SWITCH, Box, Device, build_box
from antiphon.formats.probe.cores import Core, of_cores
from antiphon.formats.probe.found import Probed, ranks_named
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

SYSFS = "/sys"
PROGRAM_TIMEOUT = 60.0  # seconds
_MAX_OUTPUT = 2**24
_NVIDIA, _AMD = "0x10de", "0x1002"
_XGMI = "11"  # the type of such a link in the driver's topology
Environment = Mapping[str, str]


def look_at_machine(
    source: str = "", sysfs: str = SYSFS, environment: Environment | None = None, pcie: object = None
) -> Probed:
    """Return this machine, as far as this process may use it.

    `source`: ask this tool alone. `sysfs`: the folder to read instead of /sys. `pcie`: as for `build_box`.
    """
    variables = os.environ if environment is None else environment
    probed = _printed_machine(source) if source else _look_at_all(sysfs, pcie)
    return keep_allocated(probed, variables)


# ---- programs ----


def _printed_machine(source: str) -> Probed:
    """Return the machine that the programs of one source print."""
    if source not in SOURCES:
        raise unknown("source of machines", source, SOURCES)
    programs = SOURCES[source].programs
    if not programs:
        raise Invalid(f"--from {source} reads a file; name it")
    if shutil.which(programs[0][0]) is None:
        raise Missing(
            f"--from {source} without a file asks {programs[0][0]}, which is not on PATH; install it, or name a file "
            "with what it prints"
        )
    with tempfile.TemporaryDirectory(prefix="antiphon-probe-") as folder:
        return read(_run_programs(source, folder), source)


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
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return b"", str(getattr(error, "strerror", "") or "takes too long")
    if done.returncode:
        last = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        return done.stdout[:_MAX_OUTPUT], (last[-1][:200] if last else f"ends with {done.returncode}")
    return done.stdout[:_MAX_OUTPUT], ""


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
        return of_cores(linux.cores(), "this machine", notes)
    box.name = box.name or (f"{len(box.gpus)} x {box.model}" if box.model else "this machine")
    box.notes = [*notes, *box.notes]
    return build_box(box, pcie)


def _with_nvlinks(linux: _LinuxDevices, nvidia_box: Box) -> Box:
    """Return Linux's box with the links of nvidia-smi, if both list the same GPUs; else nvidia-smi's box."""
    places = {linux.box.devices[device].name: device for device in linux.nvidia}
    devices = [places.get(nvidia_box.addresses.get(rank, "")) for rank in range(len(nvidia_box.gpus))]
    if not linux.nvidia or any(device is None for device in devices):
        nvidia_box.notes.append("PCIe is as nvidia-smi shows it: what Linux shows are not the same GPUs")
        return nvidia_box
    box = linux.box
    box.gpus = [device for device in devices if device is not None]
    box.bonds, box.switch_bandwidth = nvidia_box.bonds, nvidia_box.switch_bandwidth
    box.link_bandwidth = nvidia_box.link_bandwidth
    if nvidia_box.model:
        box.name, box.model = nvidia_box.name, nvidia_box.model
    box.fast_kind, box.has_nvls, box.pcie = "nvlink", nvidia_box.has_nvls, nvidia_box.pcie
    box.notes += nvidia_box.notes
    return box


class _LinuxDevices:
    """The devices below /sys, as a `Box`: the PCIe tree with GPUs and network cards, and xGMI links."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self.box = Box("")
        self.at: dict[str, int] = {}  # PCI address -> number of the device in the box
        self.bridges: dict[str, int] = {}  # NUMA node -> its host bridge in the box
        self.nvidia: list[int] = []
        self.amd: list[int] = []
        self.boards: Counter[str] = Counter()  # product names of the GPUs, if their identifiers are known
        self.notes: list[str] = []

    def read(self) -> None:
        folder = self.root / "bus" / "pci" / "devices"
        places = sorted(os.listdir(folder)) if folder.is_dir() else []
        if not places:
            self.notes.append(f"PCIe cannot be seen: nothing in {folder}")
        gpus = {_NVIDIA: (("0x0300", "0x0302"), self.nvidia), _AMD: (("0x0380", "0x1200"), self.amd)}  # by class
        for place in places:
            kind, vendor = text(folder / place / "class"), text(folder / place / "vendor")
            if vendor in gpus and kind.startswith(gpus[vendor][0]):
                gpus[vendor][1].append(self.device(folder / place, GPU))
                if board := device_name(vendor, text(folder / place / "device")):
                    self.boards[board] += 1
        self.box.gpus = [*self.nvidia, *self.amd]
        self.box.model = self.boards.most_common(1)[0][0] if self.boards else ""
        self._read_xgmi()
        self._read_cards()

    def device(self, path: Path, kind: str) -> int:
        """Add a device with all bridges above it, and return its number in the box."""
        real = Path(os.path.realpath(path))
        chain = [name for name in real.parts if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", name)]
        numa = text(path / "numa_node") or "-1"
        if numa not in self.bridges:
            self.bridges[numa] = self.box.add(Device(BRIDGE, name=f"numa {numa}"))
        up = self.bridges[numa]
        for number, place in enumerate(chain or [path.name]):
            is_last = number == len(chain) - 1 or not chain
            path_above = real if is_last else Path(*real.parts[: real.parts.index(place) + 1])
            if place not in self.at:
                self.at[place] = self.box.add(Device(SWITCH, up, _slot_speed(path_above), place))
            up = self.at[place]
        self.box.devices[up].kind = kind
        return up

    def _read_cards(self) -> None:
        """Add the network cards: those with RDMA, then the others."""
        used: set[int] = set()
        for group, speed_of in (("infiniband", rdma_speed), ("net", ethernet_speed)):
            folder = self.root / "class" / group
            for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
                path = folder / name
                if not (path / "device").exists():
                    continue  # loops, bridges and such
                up = self.device(path / "device", NIC) if _on_pcie(path / "device") else -1
                if up in used or up < 0:
                    continue
                if group == "net":
                    used.add(up)
                speed = speed_of(path)
                if speed is None:
                    self.notes.append(f"network card {name}: its speed is unknown (no link?)")
                self.box.nic_speeds[self.box.add(Device(NIC, up, None, name))] = speed
            used |= {self.box.devices[device].parent for device in self.box.nic_speeds}
        if not self.box.nic_speeds:
            self.notes.append("no network card on PCIe")
        self.box.drop_slow_cards()

    def _read_xgmi(self) -> None:
        """Read links from AMD's driver, which lists nodes (GPUs are those with a gpu_id) and links between them."""
        folder = self.root / "class" / "kfd" / "kfd" / "topology" / "nodes"
        rank = {device: number for number, device in enumerate(self.box.gpus)}
        owner: dict[str, int] = {}
        gpu_type: GpuType | None = gpu_type_by_name(self.box.model)
        for node in sorted(os.listdir(folder)) if folder.is_dir() else ():
            values = read_properties(folder / node / "properties")
            if text(folder / node / "gpu_id") in ("", "0"):
                continue
            location, domain = int(values.get("location_id", "0")), int(values.get("domain", "0"))
            place = f"{domain:04x}:{location >> 8 & 255:02x}:{location >> 3 & 31:02x}.{location & 7:x}"
            if self.at.get(place) in rank:
                owner[node] = rank[self.at[place]]
            version = int(values.get("gfx_target_version", "0"))
            gpu_type = gpu_type or gpu_type_by_generation(
                f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}"
            )
        if self.amd and not owner:
            self.notes.append(f"xGMI cannot be seen: the driver shows no topology in {folder}")
        weights: dict[tuple[int, int], int] = {}
        speeds: dict[tuple[int, int], Fraction] = {}
        for node, me in owner.items():
            for kind in ("io_links", "p2p_links"):
                links = folder / node / kind
                for link in sorted(os.listdir(links)) if links.is_dir() else ():
                    values = read_properties(links / link / "properties")
                    other = owner.get(values.get("node_to", ""))
                    if values.get("type") == _XGMI and other is not None and other != me:
                        weights[me, other] = int(values.get("weight", "15"))
                        speeds[me, other] = Fraction(int(values.get("max_bandwidth", "0"))) * 10**6
        lowest = min(weights.values(), default=0)
        self.box.model = self.box.model or (gpu_type.name if gpu_type else "")
        if weights:
            self.box.fast_kind, self.box.link_bandwidth = "xgmi", (gpu_type or MI200).link
            self.box.pcie = (gpu_type or MI200).pcie
        for pair, weight in weights.items():
            if weight == lowest:
                self.box.bonds[pair] = speeds[pair] or self.box.link_bandwidth

    def cores(self) -> list[Core]:
        """Return the cores with package, memory and last cache; of this machine, only those allowed to this process."""
        folder = self.root / "devices" / "system" / "cpu"
        allowed = os.sched_getaffinity(0) if str(self.root) == SYSFS and hasattr(os, "sched_getaffinity") else None
        memories = _memory_of_threads(self.root)
        cores: dict[str, Core] = {}
        for number in sorted(int(name[3:]) for name in os.listdir(folder) if re.fullmatch(r"cpu[0-9]{1,6}", name)):
            thread = folder / f"cpu{number}"
            if not (thread / "topology").is_dir() or (allowed is not None and number not in allowed):
                continue
            package = text(thread / "topology" / "physical_package_id")
            siblings = text(thread / "topology" / "thread_siblings_list") or str(number)
            cores.setdefault(f"{package}/{siblings}", (package, memories.get(number, ""), _last_cache(thread)))
        return [*cores.values()]


def text(path: Path) -> str:
    """Return the text of a small file; "" if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(2**16).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_properties(path: Path) -> dict[str, str]:
    """Return the properties of a file whose lines have a name and a whole number."""
    return dict(re.findall(r"(?m)^(\w{1,60}) ([0-9]{1,19})$", text(path)))


def _on_pcie(path: Path) -> bool:
    return (Path(os.path.realpath(path)) / "vendor").exists() and (path / "class").exists()


def _slot_speed(path: Path) -> Fraction | None:
    """Return the link above a device: at its maximum speed (idle links are slowed down), at its current width."""
    width, max_width = text(path / "current_link_width"), text(path / "max_link_width")
    lanes = (
        width
        if width.isdigit() and int(width) and (not max_width.isdigit() or int(width) <= int(max_width))
        else max_width
    )
    return pcie_speed(text(path / "max_link_speed"), lanes)


def rdma_speed(path: Path) -> Fraction | None:
    """Return the speed of the fastest port of an RDMA card that is up, from texts such as "200 Gb/sec (4X HDR)"."""
    ports = sorted(os.listdir(path / "ports")) if (path / "ports").is_dir() else []
    speeds = []
    for port in ports:
        up = "ACTIVE" in text(path / "ports" / port / "state").upper() or not (path / "ports" / port / "state").exists()
        rate = re.match(r"([0-9]{1,4}(?:\.[0-9]{1,2})?) Gb/sec", text(path / "ports" / port / "rate"))
        if rate and up:
            speeds.append(Fraction(rate[1]) * 10**9 / 8)
    return max(speeds, default=None)


def ethernet_speed(path: Path) -> Fraction | None:
    mbit = text(path / "speed")
    return Fraction(int(mbit)) * 10**6 / 8 if mbit.isdigit() and int(mbit) else None


def _memory_of_threads(root: Path) -> dict[int, str]:
    """Return the nearest memory (NUMA node) per hardware thread."""
    folder = root / "devices" / "system" / "node"
    memory_of: dict[int, str] = {}
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        for span in text(folder / name / "cpulist").split(",") if re.fullmatch(r"node[0-9]{1,6}", name) else ():
            if match := re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", span.strip()):
                memory_of |= dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1), name)
    return memory_of


def _last_cache(path: Path) -> str:
    """Return the list of hardware threads that share the last cache of a thread."""
    folder = path / "cache"
    levels = [
        (int(level), text(folder / name / "shared_cpu_list"))
        for name in (sorted(os.listdir(folder)) if folder.is_dir() else ())
        if (level := text(folder / name / "level")).isdigit() and text(folder / name / "type") != "Instruction"
    ]
    return max(levels, default=(0, ""))[1]


# ---- allocations ----


def keep_allocated(probed: Probed, environment: Environment) -> Probed:
    """Return the part allocated to this process: GPUs by the vendors' environment variables, hosts by Slurm's."""
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
