"""Read the output of rocm-smi: `--showtopo` (with `--shownodesbw` and `--showproductname`), as tables or as JSON, and
`amd-smi topology` in both forms, with `amd-smi static` for the model.

"XGMI" is printed for all pairs of a hive, directly connected or not; the weight tells them apart: 15 for one link,
more for paths via other GPUs. Only `--shownodesbw` and amd-smi print the number of links of a pair, as the bandwidths
of one link and of all links together in MB/s ("50000-200000": 4 links; 0: the pair is not joined). Without them the GPU
model decides. For a known model the nominal bandwidth of a link is used: drivers print less, 50 GB/s on an MI300X.
Texts are cut where they are stored or quoted ([:40] and the like), so that a damaged file fills no memory or message.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Any

import msgspec

from antiphon.core.files import read_bytes
from antiphon.core.jsontext import decode
from antiphon.errors import Invalid
from antiphon.formats.probe.box import BRIDGE, GPU, Box, PcieDevice, build_box, pcie_generation
from antiphon.formats.probe.lines import read_lines, read_sample
from antiphon.formats.probe.probed import Probed
from antiphon.formats.probe.speeds import (
    MI200,
    MI300,
    MI350,
    GpuType,
    device_name,
    gpu_type_by_generation,
    gpu_type_by_name,
)
from antiphon.topologies.instinct import mi250
from antiphon.topologies.links import XGMI3
from antiphon.units import format_bandwidth

MAX_BYTES = 2**20  # of a JSON file
_MAX_GPUS = 128  # GPUs of a table
# Titles of tables: what the table has ("": it is not read), and how its title begins
_TITLES = (
    ("weight", re.compile(r"=*\s*weight\b", re.IGNORECASE)),
    ("kind", re.compile(r"=*\s*(link )?type\b", re.IGNORECASE)),
    ("speed", re.compile(r"=*\s*(numa bw|bandwidth|min-?max)", re.IGNORECASE)),
    ("", re.compile(r"=+ *\S|[A-Z ]+ TABLE:", re.IGNORECASE)),
)  # fmt: skip
# A key of the JSON: what is listed for a pair of GPUs
_PAIR = re.compile(r"\(Topology\) (.{1,40}?) (?:between )?DRM devices ([0-9]{1,4}) and ([0-9]{1,4})")
_AMD_SMI = re.compile(r'\s*(\{\s*"gpu_data"\s*:\s*)?\[\s*\{\s*"gpu"')  # how the JSON of amd-smi begins
# keys whose values name the model or the generation of a GPU; PCI addresses, by which amd-smi calls GPUs
_NAME = re.compile(r"card series|device name|card model|gfx version|market", re.IGNORECASE)
_BUS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
Table = dict[tuple[str, str], str]  # pair of GPUs -> the text of the cell


class _AmdLink(msgspec.Struct):
    """The path from a GPU to another in the JSON of `amd-smi topology`."""

    gpu: Annotated[int, msgspec.Meta(ge=0, lt=10_000)]  # the other GPU
    weight: int | str = ""
    link_type: str = ""
    bandwidth: str = ""  # minimum-maximum, MB/s


class _AmdGpu(msgspec.Struct):
    gpu: Annotated[int, msgspec.Meta(ge=0, lt=10_000)]
    links: list[_AmdLink] = []  # of `amd-smi topology`
    asic: dict[str, Any] = {}  # of `amd-smi static`


class _SmiOutput:
    """The contents of all files."""

    def __init__(self) -> None:
        self.gpus: dict[str, int] = {}  # name -> number, in the order of the output
        self.tables: dict[str, Table] = {"weight": {}, "kind": {}, "speed": {}}
        self.numa: dict[str, str] = {}  # GPU -> NUMA node
        self.models: Counter[str] = Counter()  # product name -> number of times that it is printed

    def add_gpu(self, name: str) -> None:
        """Number a GPU when it is first named."""
        if name not in self.gpus:
            self.gpus[name] = len(self.gpus)
            if len(self.gpus) > _MAX_GPUS:
                raise Invalid(f"shows more than {_MAX_GPUS} GPUs; a box has some eight")

    def count_model(self, text: str) -> None:
        """Count the product that a GPU's name, its PCI device identifier or its generation (gfx942) stands for."""
        text = text.strip()
        gpu_type = gpu_type_by_generation(text)
        name = device_name("1002", text) or (gpu_type.name if gpu_type else text[:80])
        if gpu_type_by_name(name):
            self.models[name] += 1


def read(paths: Iterable[str], name: str, *, pcie: object = None, pcie_gen: object = None) -> Probed:
    """Read the box in these files.

    `pcie`: whether PCIe is drawn, as the user says; default: unless xGMI joins all GPUs. `pcie_gen`: its generation, 3
    to 5; default: that of the GPUs.
    """
    output = _SmiOutput()
    for path in paths:
        begin = read_sample(path)
        if _AMD_SMI.match(begin):
            _read_amd_smi(output, read_bytes(path, MAX_BYTES))
        elif begin.lstrip().startswith("{") or '"(Topology) ' in begin:
            _read_json(output, read_bytes(path, MAX_BYTES))
        else:
            _read_text(output, path)
    if not output.gpus:
        raise Invalid("lists no GPU; expected what `rocm-smi --showtopo` prints, as tables or as JSON")
    return build_box(_make_box(output, name, pcie_gen), pcie)


def _read_json(output: _SmiOutput, data: bytes) -> None:
    """Read the JSON of rocm-smi, which may print warnings before it, in lines of their own."""
    root = decode(data[data.find(b"{") :], dict[str, Any])
    for card_key, values in root.items():
        card = re.fullmatch(r"card([0-9]{1,4})", card_key)
        if not isinstance(values, dict):
            continue
        if card:
            output.add_gpu(f"GPU{int(card[1])}")
        for key, value in values.items():
            if not isinstance(value, str | int):
                continue
            text = str(value)[:80]
            if pair := _PAIR.match(key):
                _add_entry(output, pair[1], f"GPU{int(pair[2])}", f"GPU{int(pair[3])}", text)
            elif card and "Numa Node" in key:
                output.numa[f"GPU{int(card[1])}"] = text
            elif card and _NAME.search(key):
                output.count_model(text)


def _read_amd_smi(output: _SmiOutput, data: bytes) -> None:
    """Read the JSON of `amd-smi topology` or `amd-smi static`; newer versions put the list of GPUs into an object."""
    wrapped = data.lstrip().startswith(b"{")
    for gpu in decode(data, dict[str, list[_AmdGpu]])["gpu_data"] if wrapped else decode(data, list[_AmdGpu]):
        output.add_gpu(f"GPU{gpu.gpu}")
        output.count_model(str(gpu.asic.get("market_name", ""))[:80])
        for link in gpu.links:
            for title, value in (("weight", link.weight), ("type", link.link_type), ("bandwidth", link.bandwidth)):
                _add_entry(output, title, f"GPU{gpu.gpu}", f"GPU{link.gpu}", str(value)[:40])


def _add_entry(output: _SmiOutput, title: str, a: str, b: str, value: str) -> None:
    """Add an entry of a table for both directions of a pair: JSON has each pair once, or (amd-smi) each direction."""
    output.add_gpu(a)
    output.add_gpu(b)
    title = title.lower()
    table = "weight" if "weight" in title else "kind" if "type" in title else "speed" if "bandwidth" in title else ""
    if table:
        output.tables[table][a, b] = value
        output.tables[table].setdefault((b, a), value)


def _read_text(output: _SmiOutput, path: str) -> None:
    """Read the tables of rocm-smi or amd-smi in a file."""
    table, columns = "", list[str]()
    for _, raw in read_lines(path):
        line = raw.strip()
        if not line:
            continue
        # A title starts a table; unknown tables ("") are read and ignored.
        title = next((name for name, pattern in _TITLES if pattern.match(line)), None)
        if title is not None and not _is_gpu(line.split(maxsplit=1)[0]):
            table, columns = title, []
            continue
        words = line.split()
        # names of GPUs alone are a table's header; a single one, in a table that has a header, is a row without values
        if all(_is_gpu(word) for word in words) and (len(words) > 1 or not columns):
            columns = words[: _MAX_GPUS + 1]  # one more than may be is an error in `add_gpu`
            for word in columns:
                output.add_gpu(word)
        elif _is_gpu(words[0]) and columns and len(words) > len(columns):
            if table:
                for column, value in zip(columns, words[1:], strict=False):
                    output.tables[table][words[0], column] = value[:40]
        elif match := re.match(r"GPU(?: |\[)([0-9]{1,4})\]?\s*:\s*(.{1,60}?):\s*(.{1,80})", line):
            if "Numa Node" in match[2]:
                output.numa[f"GPU{int(match[1])}"] = match[3].strip()
            elif _NAME.search(match[2]):
                output.count_model(match[3])
        elif match := re.match(r"\s*(?:MARKET_NAME|TARGET_GRAPHICS_VERSION):\s*(.{1,80})", line):
            output.count_model(match[1])


def _is_gpu(word: str) -> bool:
    return re.fullmatch(r"GPU[0-9]{1,4}", word) is not None or _BUS.fullmatch(word) is not None


def _make_box(output: _SmiOutput, name: str, pcie_gen: object) -> Box:
    """Return the box with its NUMA nodes, GPUs and xGMI links."""
    gpus = [*output.gpus]
    if all(gpu.startswith("GPU") for gpu in gpus):
        gpus.sort(key=lambda gpu: (len(gpu), gpu))
    model = output.models.most_common(1)[0][0] if output.models else ""
    box = Box(name, fast_kind="xgmi")
    gpu_type = gpu_type_by_name(model) if model else None
    direct = _direct_pairs(output, gpus)
    gpu_type = gpu_type or _guess_gpu_type(box, output, gpus, direct)
    box.model = model or (gpu_type.name if gpu_type else "")
    if box.model:
        box.name = f"{len(gpus)} x {box.model}"
    box.link_bandwidth = gpu_type.link if gpu_type else XGMI3
    box.pcie_generation = pcie_generation(pcie_gen, gpu_type.pcie_generation if gpu_type else box.pcie_generation)
    bridge_of_numa: dict[str, int] = {}
    for gpu in gpus:
        numa = output.numa.get(gpu, "0")
        if numa not in bridge_of_numa:
            bridge_of_numa[numa] = box.add(PcieDevice(BRIDGE, name=f"numa {numa[:8]}"))
        box.gpus.append(box.add(PcieDevice(GPU, bridge_of_numa[numa], name=gpu)))
    if not output.numa and len(gpus) > 1:
        box.notes.append("no NUMA nodes are listed: all GPUs are assumed to be on one")
    _add_bonds(box, output, gpus, direct, gpu_type)
    return box


def _direct_pairs(output: _SmiOutput, gpus: list[str]) -> set[tuple[int, int]]:
    """Return the pairs that xGMI links join directly: those of the least weight."""
    rank = {gpu: number for number, gpu in enumerate(gpus)}
    kinds, weights = output.tables["kind"], output.tables["weight"]
    pairs = {(a, b) for (a, b), kind in kinds.items() if kind.upper() == "XGMI" and a in rank and b in rank and a != b}
    weight_of = {
        pair: int(weights[pair]) for pair in pairs if weights.get(pair, "").isdigit() and len(weights[pair]) < 9
    }
    lowest = min(weight_of.values(), default=0)
    speeds = output.tables["speed"]
    bandwidths = {pair: _parse_bandwidths(speeds.get(pair, "")) for pair in pairs}
    return {
        (rank[a], rank[b])
        for (a, b), (_, total) in bandwidths.items()
        if weight_of.get((a, b), lowest) == lowest and total != 0
    }


def _parse_bandwidths(text: str) -> tuple[int, int | None]:
    """Return the MB/s of one link and of all links of a pair from "50000-200000"; (0, None), for unknown, if the text
    has no such form.
    """
    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", text)
    return (int(match[1]), int(match[2])) if match else (0, None)


def _guess_gpu_type(box: Box, output: _SmiOutput, gpus: list[str], direct: set[tuple[int, int]]) -> GpuType | None:
    """Return the type that the directly joined pairs alone determine, or None.

    Eight GPUs that are all joined are MI300X. Eight or sixteen that are joined as in the catalogue's mi250 are MI250.
    """
    if not any(kind.upper() == "XGMI" for kind in output.tables["kind"].values()):
        return None
    if len(gpus) == 8 and len(direct) == 8 * 7:  # ordered pairs: fully connected
        box.notes.append("eight GPUs, each joined with all others: taken to be MI300X (the file names no make)")
        return MI300
    if any(direct == _catalogue_pairs(count) for count in (8, 16)):
        return MI200
    return None


def _catalogue_pairs(gcds: int) -> set[tuple[int, int]]:
    """Return the pairs that links join in the catalogue's mi250 of this many GCDs (dies, each a GPU of its own)."""
    machine = mi250(gcds=gcds)
    return set(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))


def _add_bonds(
    box: Box, output: _SmiOutput, gpus: list[str], direct: set[tuple[int, int]], gpu_type: GpuType | None
) -> None:
    """Add the bandwidth of each directly joined pair: as printed, as in the catalogue, or of one link."""
    if not direct:
        return
    speeds = output.tables["speed"]
    bandwidths = {pair: _parse_bandwidths(speeds.get((gpus[pair[0]], gpus[pair[1]]), "")) for pair in sorted(direct)}
    lacks_bandwidth = [megabytes is None for _, megabytes in bandwidths.values()]
    if gpu_type is None:
        box.notes.append(
            f"one xGMI link is assumed to carry {format_bandwidth(box.link_bandwidth)} each way, as of MI200: no AMD "
            "GPU of the catalogue is named"
        )
    if all(lacks_bandwidth) and gpu_type == MI200 and direct in (_catalogue_pairs(8), _catalogue_pairs(16)):
        catalogue_machine = mi250(gcds=len(gpus))
        ends = zip(catalogue_machine.link_src.tolist(), catalogue_machine.link_dst.tolist(), strict=True)
        box.bonds = {pair: catalogue_machine.bandwidth(link) for link, pair in enumerate(ends)}
        box.notes.append(
            "no table has the number of links per pair (add --shownodesbw): as the catalogue's mi250 has it"
        )
        return
    for pair, (per_link, megabytes) in bandwidths.items():  # MB/s
        if megabytes and gpu_type and per_link and megabytes % per_link == 0:
            box.bonds[pair] = megabytes // per_link * box.link_bandwidth
        else:
            box.bonds[pair] = Fraction(megabytes) * 10**6 if megabytes else box.link_bandwidth
    # unknown GPUs have a note of their own, above; these two have one link per pair
    if any(lacks_bandwidth) and gpu_type not in (None, MI300, MI350):
        box.notes.append("no table has the number of links per pair (add --shownodesbw): one each is assumed")
