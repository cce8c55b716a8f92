"""A box read from a tool's file is as good as the catalogue's: same bound, same figures, same plans.

What a format does not report stands in `MISSING` with the line that is printed of it.
"""

import json
from itertools import permutations
from pathlib import Path

import probe_cases
import pytest
from probe_text import bandwidths, bridge, core, cpu, gpu, lstopo, nvlink_status, pci, slot, system, thing, topo
from quick import in_turn
from test_probe_here import Linux, program

import antiphon
from antiphon.core.symmetry import canonical
from antiphon.cost import usual_model
from antiphon.cost.nccl.calls import shipped_calls
from antiphon.cost.nccl.gpus import generation_of
from antiphon.cost.nccl.layout import layout_of
from antiphon.formats.probe.here import look_at_machine
from antiphon.formats.probe.probed import Probed
from antiphon.formats.probe.table import read

BUSES = [f"{0x10 + i:02x}" for i in range(8)]
PASS = "pass --model calls:gpu=h100 (or a100, v100, b200, mi300x)"
NAMES = {
    "dgx1v": "Tesla V100-SXM2-32GB", "dgx-a100": "NVIDIA A100-SXM4-80GB", "hgx-h100": "NVIDIA H100 80GB HBM3",
    "mi300x": "AMD Instinct MI300X", "mi350x": "AMD Instinct MI350X",
}  # fmt: skip
FIGURES = {"dgx1v": "v100", "dgx-a100": "a100", "hgx-h100": "h100", "mi300x": "mi300x", "mi350x": "mi350x"}
GENERATIONS = {"mi300x": "gfx942", "mi350x": "gfx950"}  # of AMD's GPUs
SM = {"dgx1v": 70, "dgx-a100": 80, "hgx-h100": 90}
DEVICES = {"dgx1v": "1db5", "dgx-a100": "20b2", "hgx-h100": "2330", "mi300x": "74a1", "mi350x": "75a0"}
NVLINKS = {"dgx1v": 6, "dgx-a100": 12, "hgx-h100": 18}
DGX1_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
DGX1_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
MATRICES = {"dgx1v": probe_cases.DGX1V, "dgx-a100": probe_cases.DGX_A100, "hgx-h100": probe_cases.HGX_H100}


def wires(a: int, b: int) -> int:
    """NVLinks between two GPUs of a DGX-1V."""
    pair = (min(a, b), max(a, b))
    return 2 if pair in DGX1_DOUBLE else int(pair in DGX1_SINGLE)


def nccl_xml(machine: str, *, devices: bool) -> str:
    """NCCL_TOPO_DUMP_FILE: with the identifiers that newer NCCLs write, or with the capability alone."""
    rows = []
    for rank, bus in enumerate(BUSES):
        if machine == "dgx1v":
            links = " ".join(f"{BUSES[other]}*{wires(rank, other)}" for other in range(8) if wires(rank, other))
        elif machine in GENERATIONS:
            links = " ".join(f"{other}*1" for other in BUSES if other != bus)
        else:
            links = " ".join(f"s{0xA0 + i:02x}*{NVLINKS[machine] // 6}" for i in range(6))
        amd = machine in GENERATIONS
        generation = GENERATIONS.get(machine, "")
        text = gpu(rank, links, 94 if amd else SM[machine], generation, "xgmi" if amd else "nvlink")
        row = pci(bus, text, kind="0x120000" if amd else "0x030200")
        if devices:
            vendor = "0x1002" if amd else "0x10de"
            row = row.replace("link_speed", f'vendor="{vendor}" device="0x{DEVICES[machine]}" link_speed', 1)
        rows.append(row)
    return system(cpu(0, *rows[:4]), cpu(1, *rows[4:]))


def hwloc(machine: str, *, library: bool) -> str:
    """lstopo --of xml: with the name that NVML or ROCm SMI reports, or with identifiers of PCIe alone."""
    amd = machine in GENERATIONS
    vendor, kind = ("1002", "1200") if amd else ("10de", "0302")
    name = NAMES[machine] if library else ""
    keys = [f"OSDev:{500 + rank}" for rank in range(8)]
    boards = [
        bridge(
            slot(
                bus, kind, f"{vendor}:{DEVICES[machine]}", f"{'rsmi' if amd else 'nvml'}{rank}", key=500 + rank,
                model=name,
            ),
            host=True,
        )
        for rank, bus in enumerate(BUSES)
    ]  # fmt: skip
    switched = machine in ("dgx-a100", "hgx-h100")
    if switched:
        boards.append(bridge(slot("a0", "0680", "10de:22a3", "nvswitch0", key=600, subtype="NVSwitch"), host=True))
        keys.append("PCIDev:600")
    count = len(keys)

    def speed(a: int, b: int) -> int:
        if a == b:
            return 1_000_000
        if switched:
            return 25000 * NVLINKS[machine] if max(a, b) == 8 else 0
        return {"mi300x": 64000, "mi350x": 76800}[machine] if amd else 25000 * wires(a, b)

    rows = [[speed(a, b) for b in range(count)] for a in range(count)]
    if switched:
        boards[-1] = boards[-1].replace('type="PCIDev"', 'type="PCIDev" gp_index="600"')
    tail = bandwidths("XGMIBandwidth" if amd else "NVLinkBandwidth", keys, rows)
    return lstopo(thing("Package", core(0, "0x1"), *boards, nodeset="0x1"), tail=tail)


def rocm(*names: str) -> str:
    return probe_cases.HIVE + "".join(f"GPU[{i}]\t\t: {name}\n" for name in names for i in range(8))


def amd_smi_tables() -> str:
    """`amd-smi topology` of eight GPUs, each joined with all others; it names no model."""
    text = ""
    for title, own, other in (("WEIGHT", "0", "15"), ("HOPS", "0", "1"), ("LINK TYPE", "SELF", "XGMI")):
        rows = [[f"0000:{bus}:00.0", *(own if bus == column else other for column in BUSES)] for bus in BUSES]
        lines = [["", *(f"0000:{bus}:00.0" for bus in BUSES)], *rows]
        text += f"{title} TABLE:\n" + "".join(f"{' '.join(f'{cell:12}' for cell in line)}\n" for line in lines) + "\n"
    return text


def amd_smi_json(links: dict[tuple[int, int], int], wrapped: bool = False) -> str:
    """`amd-smi topology --json` of eight GPUs with so many links per pair, as it is and as newer versions wrap it."""
    ends = [[(rank, other, links.get((rank, other), 0)) for other in range(8)] for rank in range(8)]
    gpus = [
        {
            "gpu": row[0][0], "bdf": f"0000:{BUSES[row[0][0]]}:00.0",
            "links": [
                {
                    "gpu": b, "bdf": f"0000:{BUSES[b]}:00.0", "weight": 0 if a == b else 15 if count else 30,
                    "link_status": "ENABLED", "link_type": "SELF" if a == b else "XGMI", "num_hops": int(a != b),
                    "bandwidth": "N/A" if a == b else f"{50_000 * bool(count)}-{50_000 * count}", "dma": "T",
                }
                for a, b, count in row
            ],
        }
        for row in ends
    ]  # fmt: skip
    return json.dumps({"gpu_data": gpus} if wrapped else gpus)


def mi250_links() -> dict[tuple[int, int], int]:
    """By pair of the catalogue's mi250 the number of links, of 50 GB/s each."""
    machine = antiphon.topology("mi250:gcds=8")
    ends = enumerate(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))
    return {pair: round(machine.bandwidth(link) / 50_000_000_000) for link, pair in ends}


def nvidia_names(machine: str) -> str:
    return nvlink_status([(NAMES[machine], ["25.781" if machine == "dgx1v" else "26.562"] * NVLINKS[machine])] * 8)


def texts() -> dict[tuple[str, str], str]:
    """By format and machine what the tool prints."""
    found: dict[tuple[str, str], str] = {}
    for machine, matrix in MATRICES.items():
        found["nvidia-smi topo -m", machine] = matrix
        found["nvidia-smi topo -m and nvlink -s", machine] = matrix + nvidia_names(machine)
    for machine in NAMES:
        found["nccl-xml", machine] = nccl_xml(machine, devices=False)
        found["nccl-xml with devices", machine] = nccl_xml(machine, devices=True)
        found["hwloc with the vendor's library", machine] = hwloc(machine, library=True)
        found["hwloc with identifiers", machine] = hwloc(machine, library=False)
    found["rocm-smi --showtopo", "mi300x"] = rocm()
    found["rocm-smi --showproductname", "mi300x"] = rocm("Card Series: \t\tAMD Instinct MI300X OAM")
    found["rocm-smi --showproductname, virtual machine", "mi300x"] = rocm("Card Series: \t\tAMD Instinct MI300X VF")
    found["rocm-smi --showtopo --json", "mi300x"] = probe_cases.text_of("rocm-smi", "JSON, each pair once")
    found["amd-smi topology", "mi300x"] = amd_smi_tables()
    every_pair = dict.fromkeys(permutations(range(8), 2), 1)
    found["amd-smi topology --json", "mi300x"] = amd_smi_json(every_pair)
    found["amd-smi topology --json, wrapped", "mi300x"] = amd_smi_json(every_pair, wrapped=True)
    found["rocm-smi --showproductname, device", "mi300x"] = rocm("Card model: \t\t0x74a1")
    found["rocm-smi --showproductname, generation", "mi300x"] = rocm("GFX Version: \t\tgfx942")
    found["rocm-smi --showproductname", "mi350x"] = rocm("Card Series: \t\tAMD Instinct MI350X")
    found["rocm-smi --showproductname, MI355X", "mi350x"] = rocm("Card Series: \t\tAMD Instinct MI355X OAM")
    return found


TEXTS = texts()


def read_text(tmp_path: Path, text: str) -> Probed:
    path = tmp_path / "box.txt"
    path.write_text(text, encoding="utf-8")
    return read([str(path)])


def check_as_good(box: Probed, name: str) -> None:
    """The same machine up to the numbers of ranks, the same figures, and no less than its plans."""
    catalogue = antiphon.topology(name)
    assert canonical(box.machine)[1] == canonical(catalogue)[1]
    assert antiphon.bound("allreduce", box.machine).inverse == antiphon.bound("allreduce", catalogue).inverse
    target = (antiphon.collective("allreduce", box.machine),)
    assert usual_model(box.machine, wanted=target) == usual_model(catalogue, wanted=target) == "calls"
    figures = generation_of(box.machine, layout_of(box.machine), shipped_calls())
    assert figures is not None
    assert figures[0].name == FIGURES[name]
    library = "rccl" if name in GENERATIONS else "nccl"
    for kind in ("allreduce", "alltoall"):
        sizes = ["1KB", "1MB", "1GB"]
        rows, expected = (antiphon.predict(kind, sizes, topology=m, library=library) for m in (box.machine, catalogue))
        for row, other in zip(rows, expected, strict=True):
            assert all(row[key] == other[key] for key in ("algorithm", "protocol", "seconds"))
    assert not any("--model" in note for note in box.notes)


@pytest.mark.parametrize(("source", "machine"), in_turn(TEXTS, 3), ids=str)
def test_a_box_that_is_read_has_the_catalogues_figures(source: str, machine: str, tmp_path: Path) -> None:
    check_as_good(read_text(tmp_path, TEXTS[source, machine]), machine)


@pytest.mark.parametrize("model", ["", "AMD Instinct MI250X"])
def test_the_links_of_each_pair_are_read_from_amd_smi(model: str, tmp_path: Path) -> None:
    files = [tmp_path / "topology.json", tmp_path / "static.json"]
    files[0].write_text(amd_smi_json(mi250_links()))
    files[1].write_text(json.dumps([{"gpu": i, "asic": {"market_name": model}} for i in range(8)]))
    box = read([str(file) for file in files])
    assert canonical(box.machine)[1] == canonical(antiphon.topology("mi250:gcds=8"))[1]
    assert not any("links per pair" in note for note in box.notes)
    files[0].write_text(amd_smi_json({pair: 2 * count for pair, count in mi250_links().items()}))
    assert canonical(read([str(file) for file in files]).machine)[1] != canonical(box.machine)[1]


@pytest.mark.parametrize("machine", NAMES)
def test_this_machine_without_the_vendors_program(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux shows which GPUs these are, but no NVLinks (nvidia-smi does); xGMI stands in the driver's topology."""
    monkeypatch.setenv("PATH", str(tmp_path))
    linux, amd = Linux(tmp_path / "sys"), machine in GENERATIONS
    nodes = "class/kfd/kfd/topology/nodes"
    for rank in range(8):
        linux.gpu(f"00:0{rank}/{0x10 + rank:02x}:00", amd=amd, device=f"0x{DEVICES[machine]}")
        if amd:
            linux.put(f"{nodes}/{rank}", gpu_id=rank + 1, properties=f"location_id {(0x10 + rank) << 8}\ndomain 0\n")
            for other in set(range(8)) - {rank}:
                speed = 64000 if machine == "mi300x" else 76800
                link = f"node_to {other}\ntype 11\nweight 15\nmax_bandwidth {speed}\n"
                linux.put(f"{nodes}/{rank}/io_links/{other}", properties=link)
    box = look_at_machine("", str(linux.root), {})
    assert box.machine.name == f"8 x {NAMES[machine]}"
    assert not any("--model" in note for note in box.notes)
    if amd:
        check_as_good(box, machine)
    else:
        assert any("NVLinks cannot be seen" in note for note in box.notes)


@pytest.mark.parametrize("machine", MATRICES)
def test_this_machine_by_the_vendors_program(machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    linux = Linux(tmp_path / "sys")
    for rank in range(8):
        linux.gpu(f"00:0{rank}/{0x10 + rank:02x}:00", device=f"0x{DEVICES[machine]}")
    program(linux, "nvidia-smi", {"topo -m": MATRICES[machine], "nvlink -s": nvidia_names(machine)})
    check_as_good(look_at_machine("", str(linux.root), {}), machine)


GRAPH = '<graphs><graph id="0" pattern="4" speedintra="20"><channel>{}</channel></graph></graphs>'
# What a format does not report, and the line that says so
MISSING = {
    "which GPUs: two with bridges, names not printed": (topo(2, lambda a, b: "NV4"), PASS),
    "which GPUs: NCCL's graphs have only the order of a ring": (
        GRAPH.format("".join(f'<gpu dev="{i}"/>' for i in range(8))), PASS,
    ),
    "which GPUs: an sm that is not known": (
        system(cpu(0, pci("10", gpu(0, "11*4", 77)), pci("11", gpu(1, "10*4", 77)))), PASS,
    ),
    "H100 or B200: the matrix alone shows 18 NVLinks of either": (
        MATRICES["hgx-h100"], "taken to be H100: each has 18 NVLinks, and the file names no GPU model",
    ),
    "the board: sm says the generation alone": (
        TEXTS["nccl-xml", "hgx-h100"], 'taken to be H100: the file has sm="90" and no name',
    ),
    "NVLinks: lstopo without the vendor's library": (
        hwloc("dgx1v", library=False).replace("NVLinkBandwidth", "Other"), "the file has no NVLink bandwidths",
    ),
    "where NVLinks lead: nvidia-smi nvlink -s without topo -m": (
        nvidia_names("dgx1v"), "no matrix shows the peers of NVLinks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fact", MISSING)
def test_a_fact_that_is_missing_is_reported_in_a_line(fact: str, tmp_path: Path) -> None:
    text, line = MISSING[fact]
    notes = [note for note in read_text(tmp_path, text).notes if line in note]
    assert len(notes) == 1
