"""Boxes as tools have printed them in public, each made again from its facts, with the machine that a person draws.

Sources are public issues and documents, by their address without https://github.com/ where they stand there. Numbers of
links and places are theirs; texts are made by `probe_text`.
"""

from __future__ import annotations

from probe_text import (
    Case,
    bandwidths,
    bridge,
    core,
    cpu,
    gpu,
    grouped,
    lstopo,
    nic,
    nvlink_status,
    pci,
    showtopo,
    slot,
    system,
    thing,
    topo,
)

MLX = [f"mlx5_{i}" for i in range(18)]
NICS = [f"NIC{i}" for i in range(20)]

DGX1_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
DGX1_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))


def _dgx1(a: str, b: str) -> str:
    """A DGX-1V as its matrix shows it."""
    ends = tuple(int(peer[3:]) for peer in (a, b)) if a.startswith("GPU") and b.startswith("GPU") else None
    if ends in DGX1_DOUBLE:
        return "NV2"
    if ends in DGX1_SINGLE:
        return "NV1"
    return grouped(
        "PIX: 0 1 mlx5_0",
        "PIX: 2 3 mlx5_1",
        "PIX: 4 5 mlx5_2",
        "PIX: 6 7 mlx5_3",
        "PHB: 0 1 2 3 mlx5_0 mlx5_1",
        "PHB: 4 5 6 7 mlx5_2 mlx5_3",
    )(a, b)


DGX1V = topo(8, _dgx1, MLX[:4], [0] * 4 + [1] * 4)
DGX1V_LINKS = "nvlink 50: 0-3 0-4 1-2 1-5 2-3 4-7 5-6 6-7; nvlink 25: 0-1 0-2 1-3 2-6 3-7 4-5 4-6 5-7"
_A100_PAIRS = ("PXB: 0 1 NIC0 NIC1", "PXB: 2 3 NIC2 NIC3", "PXB: 4 5 NIC6 NIC7", "PXB: 6 7 NIC8 NIC9")
DGX_A100 = topo(8, grouped(*_A100_PAIRS, nvlink="NV12"), NICS[:12], [3, 3, 1, 1, 7, 7, 5, 5])
HGX_H100 = topo(8, grouped(*(f"PXB: {i} NIC{i}" for i in range(8)), nvlink="NV18"), NICS[:8], [0] * 4 + [1] * 4)
HIVE = showtopo(8, lambda a, b: 15, lambda a, b: "XGMI", [0] * 4 + [1] * 4)

NVIDIA = [
    Case(
        "DGX A100",
        "NVIDIA/nccl/issues/1505",
        DGX_A100,
        8,
        1,
        "nvlink 300: *-nvswitch",
        notes=("25 GB/s", "NIC4"),
        cards={
            "NIC0": (0,),
            "NIC1": (1,),
            "NIC2": (2,),
            "NIC3": (3,),
            "NIC6": (4,),
            "NIC7": (5,),
            "NIC8": (6,),
            "NIC9": (7,),
        },
    ),
    Case(
        "DGX-2",
        "NVIDIA/nccl-tests/issues/78",
        topo(
            16,
            grouped(
                "PIX: 0 1 mlx5_0",
                "PIX: 2 3 mlx5_1",
                "PIX: 4 5 mlx5_2",
                "PIX: 6 7 mlx5_3",
                "PXB: 0 1 2 3 mlx5_0 mlx5_1",
                "PXB: 4 5 6 7 mlx5_2 mlx5_3",
                "NODE: 0 1 2 3 4 5 6 7 mlx5_0 mlx5_1 mlx5_2 mlx5_3",
                nvlink="NV6",
            ),
            MLX[:10],
        ),
        16,
        2,
        "nvlink 150: 0..7-board0/nvswitch 8..15-board1/nvswitch; nvlink 1200: board0/nvswitch-board1/nvswitch",
    ),
    Case(
        "two RTX 5090",
        "noonghunna/club-3090/issues/1229",
        topo(2, grouped(between="PHB"), (), [0, 0], nvlink_status([("NVIDIA GeForce RTX 5090", ())] * 2), tabs=True),
        2,
        1,
        "pcie 63.02: *-bridge0",
        notes=("generation 5",),
    ),
    Case(
        "eight GPUs on four switches",
        "kubernetes/kubernetes/issues/53497",
        topo(
            8,
            grouped("PIX: 0 1", "PIX: 2 3", "PIX: 4 5", "PIX: 6 7", "PHB: 0 1 2 3 mlx4_0", "PHB: 4 5 6 7"),
            ["mlx4_0"],
        ),
        8,
        6,
        "pcie 15.75: 0,1-pcie0 2,3-pcie1 4,5-pcie2 6,7-pcie3 pcie0,pcie1-bridge0 pcie2,pcie3-bridge1; socket 16: "
        "bridge0-bridge1",
        {"bridge0 in": (31.51, 3), "bridge1 in": (31.51, 3)},
        options={"pcie_gen": 3},
        cards={"mlx4_0": (0, 1, 2, 3)},
    ),
    Case(
        "four H100 without NVSwitch",
        "NVIDIA/nccl/issues/1617",
        topo(
            4, grouped("PIX: 0 NIC0", "PIX: 1 NIC1", "PIX: 2 NIC2", "PIX: 3 NIC3", nvlink="NV6"), NICS[:4], [3, 1, 7, 5]
        ),
        4,
        0,
        "nvlink 150: all",
        cards={"NIC0": (0,), "NIC1": (1,), "NIC2": (2,), "NIC3": (3,)},
    ),
    Case(
        "HGX H100",
        "bytedance/flux/issues/14",
        topo(
            8,
            grouped("PXB: 0 NIC0", "PIX: NIC1 NIC2", *(f"PXB: {i} NIC{i + 2}" for i in range(1, 8)), nvlink="NV18"),
            NICS[:12],
            [0] * 4 + [1] * 4,
        ),
        8,
        1,
        "nvlink 450: *-nvswitch",
        sharp=True,
        notes=("NIC1, NIC2",),
    ),
    Case(
        "PCIe of a box with NVLink (topo -mp)",
        "deepseek-ai/DeepEP/issues/60",
        topo(
            8,
            grouped(
                "PIX: 0 NIC0",
                "PIX: 1 NIC1",
                "PIX: 2 NIC2",
                "PIX: 3 NIC7",
                "NODE: 0 1 2 3 NIC0 NIC1 NIC2 NIC7",
                "NODE: 4 5 6 7",
            ),
            NICS[:8],
            [0] * 4 + [1] * 4,
        ),
        8,
        2,
        "pcie 63.02: 0..3-bridge0 4..7-bridge1; socket 16: bridge0-bridge1",
        {"bridge0 in": (126.0, 5), "bridge1 in": (126.0, 5)},
        options={"pcie_gen": 5},
    ),
    Case(
        "V100 with links that are down",
        "Azure/azhpc-diagnostics/issues/73",
        nvlink_status([("Tesla V100-SXM2-32GB", ["25.781", "25.781", "25.781", "", "25.781", ""])] * 4),
        4,
        1,
        "nvlink 100: *-nvswitch",
        notes=("no matrix",),
    ),
    Case(
        "GB200",
        "NVIDIA/k8s-test-infra/issues/371",
        nvlink_status([("NVIDIA GB200", ["53.125"] * 18)] * 4),
        4,
        1,
        "nvlink 900: *-nvswitch",
        sharp=True,
    ),
    Case(
        "two RTX 3090 with a bridge",
        "NVIDIA GA102 whitepaper: four links of 14.0625 GB/s",
        topo(2, grouped(nvlink="NV4"), (), [0, 0], nvlink_status([("NVIDIA GeForce RTX 3090", ["14.062"] * 4)] * 2)),
        2,
        0,
        "nvlink 56.25: 0-1",
    ),
    Case(
        "two A100 of a board with NVSwitches, as a virtual machine shows them",
        "NVIDIA/nccl/issues/1505, the first two of its GPUs",
        topo(2, grouped(nvlink="NV12"), (), [0, 0]) + nvlink_status([("NVIDIA A100-SXM4-40GB", ["25"] * 12)] * 2),
        2,
        1,
        "nvlink 300: *-nvswitch",
    ),
    Case(
        "two H100, names not told",
        "bytedance/flux/issues/14, the first two of its GPUs",
        topo(2, grouped(nvlink="NV18"), (), [0, 0]),
        2,
        1,
        "nvlink 450: *-nvswitch",
        sharp=True,
    ),
    Case(
        "DGX-1V",
        "NVIDIA, DGX-1 with Tesla V100 (white paper, figure 4)",
        DGX1V,
        8,
        0,
        DGX1V_LINKS,
        cards={f"mlx5_{i}": (2 * i, 2 * i + 1) for i in range(4)},
    ),
]

# ---- rocm-smi ----


def _hives(a: int, b: int) -> str:
    return "XGMI" if a // 4 == b // 4 else "PCIE"


def _gcds(a: int, b: int) -> int:
    """Links between the eight dies of four MI250X, as the driver's xgmi_num_links has them."""
    rows = ("04100020", "40010100", "10042000", "01400001", "00200410", "01004001", "20001004", "00010140")
    return int(rows[a][b])


def _amd_smi(rows: dict[str, object]) -> str:
    buses = [f"0000:{bus}:00.0" for bus in ("c1", "c6", "c9", "ce", "d1", "d6", "d9", "de")]
    text = ""
    for title, cell in rows.items():
        text += f"{title}:\n" + " " * 13 + " ".join(buses) + "\n"
        for i, bus in enumerate(buses):
            text += f"{bus} " + " ".join(f"{cell(i, j)!s:<12}" for j in range(8)) + "\n"  # type: ignore[operator]
        text += "\n"
    return text


def _rocm_json(pairs: dict[tuple[int, int], str], weight: str, gpus: int) -> str:
    import json

    said = {f"(Topology) Link type between DRM devices {a} and {b}": kind for (a, b), kind in pairs.items()}
    said |= {f"(Topology) Weight between DRM devices {a} and {b}": weight for a, b in pairs}
    said |= {f"(Topology) Hops between DRM devices {a} and {b}": "1" for a, b in pairs}
    cards = {
        f"card{i}": {"(Topology) Numa Node": str(i // 4), "(Topology) Numa Affinity": str(i // 4)} for i in range(gpus)
    }
    return json.dumps({**cards, "system": said})


_EACH = {(a, b): "XGMI" for a in range(8) for b in range(a + 1, 8)}
MI250X_LINKS = "xgmi 200: 0-1 2-3 4-5 6-7; xgmi 100: 0-6 2-4; xgmi 50: 0-2 1-3 1-5 3-7 4-6 5-7"

ROCM = [
    Case(
        "four GPUs of four nodes",
        "ROCm/rocm_smi_lib/issues/108",
        showtopo(4, lambda a, b: 52, lambda a, b: "PCIE", [0, 1, 3, 2]),
        4,
        4,
        "pcie 31.51: 0-bridge0 1-bridge1 2-bridge2 3-bridge3; socket 16: bridge0-bridge1 bridge0-bridge2 "
        "bridge0-bridge3 "
        "bridge1-bridge2 bridge1-bridge3 bridge2-bridge3",
    ),
    Case(
        "MI300X", "modelscope/ms-swift, its page on AMD GPUs", HIVE, 8, 0, "xgmi 64: all", notes=("taken to be MI300X",)
    ),
    Case(
        "MI210 hive",
        "EPCCed/archer2-docs, GPU nodes",
        showtopo(4, lambda a, b: 15, lambda a, b: "XGMI", [0, 1, 2, 3], " {}"),
        4,
        0,
        "xgmi 50: all",
        notes=("no make",),
    ),
    Case(
        "two hives of four",
        "a report of eight MI210: weights 15 in a hive, 72 between",
        showtopo(8, lambda a, b: 15 if a // 4 == b // 4 else 72, _hives, [0] * 4 + [1] * 4),
        8,
        2,
        "xgmi 50: 0-1 0-2 0-3 1-2 1-3 2-3 4-5 4-6 4-7 5-6 5-7 6-7; pcie 31.51: 0..3-bridge0 4..7-bridge1; socket 16: "
        "bridge0-bridge1",
        {"bridge0 in": (63.02, 5), "bridge1 in": (63.02, 5)},
    ),
    Case(
        "MI355X as vLLM's reporter shows it",
        "vllm-project/vllm/pull/53900",
        HIVE + "GPU[0]\t\t: Card Series: \t\tAMD Instinct MI355X\n",
        8,
        0,
        "xgmi 76.8: all",
    ),
    Case(
        "MI250X, tables of amd-smi",
        "ROCm/rocm-systems/issues/5763",
        _amd_smi(
            {
                "ACCESS TABLE": lambda a, b: "ENABLED",
                "WEIGHT TABLE": lambda a, b: 0 if a == b else 15 if _gcds(a, b) else 30,
                "HOPS TABLE": lambda a, b: int(a != b),
                "LINK TYPE TABLE": lambda a, b: "SELF" if a == b else "XGMI",
                "BANDWIDTH TABLE": lambda a, b: (
                    "N/A" if a == b else f"{50000 if _gcds(a, b) else 0}-{50000 * _gcds(a, b)}"
                ),
            }
        ),
        8,
        0,
        MI250X_LINKS,
    ),
    Case(
        "MI250X, weights alone",
        "ROCm/rocm-systems/issues/5763, the same machine by rocm-smi",
        showtopo(8, lambda a, b: 15 if _gcds(a, b) else 30, lambda a, b: "XGMI", [0] * 8),
        8,
        0,
        MI250X_LINKS,
        notes=("catalogue's mi250",),
    ),
    Case(
        "JSON, each pair once",
        "ROCm/rocm_smi_lib: rocm-smi --showtopo --json",
        _rocm_json(_EACH, "15", 8),
        8,
        0,
        "xgmi 64: all",
    ),
    Case(
        "one virtual GPU",
        "sgl-project/sglang, a report of its environment",
        f"{' Link Type between two GPUs ':=^90}\n       GPU0         \nGPU0   0            \n",
        1,
        0,
        "",
    ),
    Case(
        "MI50 hive of four in a ring",
        "ROCm/rccl/pull/272: model 24, way 0-1-2-3-0",
        showtopo(4, lambda a, b: 15 if (a - b) % 2 else 30, lambda a, b: "XGMI", [0] * 4)
        + "GPU[0]\t\t: Card series:\tVega 20 [Radeon Pro VII/Radeon Instinct MI50 32GB]\n",
        4,
        0,
        "xgmi 46: 0-1 1-2 2-3 0-3",
    ),
]

# ---- NCCL and RCCL ----


def _pair(
    switch: str,
    first: int,
    buses: tuple[str, str],
    links: tuple[str, str],
    *more: str,
    sm: int = 80,
    gts: str = "16.0 GT/s PCIe",
) -> str:
    """A switch with two GPUs."""
    gpus = [pci(bus, gpu(first + i, links[i], sm), kind="0x030200", gts=gts) for i, bus in enumerate(buses)]
    return pci(switch, *gpus, *more, gts=gts)


_A100 = "sc4*2 sc5*2 sc6*2 sc7*2 sc8*2 sc9*2"
_H100 = "s05*4 s06*5 s07*5 s08*4"
_EIGHT = ("0c", "15", "1e", "69", "9f", "af", "bf", "df")
_XGMI = ("c1", "c5", "c9", "cd", "d1", "d5", "d9", "dd")


def _to(buses: tuple[str, ...], me: int, counts: dict[tuple[int, int], int]) -> str:
    """Links of one of these to others, by pairs."""
    return " ".join(
        f"{buses[other]}*{count}" for (a, b), count in counts.items() for one, other in ((a, b), (b, a)) if one == me
    )


_FULL8 = {(a, b): 1 for a in range(8) for b in range(a + 1, 8)}
_GCD8 = {(a, b): _gcds(a, b) for a in range(8) for b in range(a + 1, 8) if _gcds(a, b)}
_DGX1_BUSES = ("06", "07", "0a", "0b", "85", "86", "89", "8a")
_DGX1 = {**dict.fromkeys(DGX1_DOUBLE, 2), **dict.fromkeys(DGX1_SINGLE, 1)}


def _amd(bus: str, rank: int, links: str, gcn: str, gts: str = "16.0 GT/s PCIe", kind: str = "0x038000") -> str:
    return pci(bus, gpu(rank, links, 104, gcn, "xgmi").replace("0x030200", kind), kind=kind, gts=gts)


def dgx1v_xml() -> str:
    links = [_to(_DGX1_BUSES, i, _DGX1) for i in range(8)]
    switches = []
    for s, bus in enumerate(("03", "08", "82", "87")):
        card = pci(f"{0x40 + s:02x}", nic(f"mlx5_{s}", 100000), kind="0x020700", gts="8 GT/s")
        ends = (_DGX1_BUSES[2 * s], _DGX1_BUSES[2 * s + 1])
        switches.append(_pair(bus, 2 * s, ends, (links[2 * s], links[2 * s + 1]), card, sm=70, gts="8 GT/s"))
    return system(cpu(0, *switches[:2], vendor="GenuineIntel"), cpu(1, *switches[2:], vendor="GenuineIntel"))


NCCL = [
    Case(
        "DGX A100",
        "NVIDIA/nccl/issues/1505",
        system(
            *(
                cpu(
                    n,
                    pci(
                        f"0{i}",
                        pci(
                            f"1{i}",
                            _pair(
                                f"2{i}",
                                2 * i,
                                (f"3{i}", f"4{i}"),
                                (_A100, _A100),
                                *(
                                    pci(f"{p}{i}", nic(f"mlx5_{2 * i + p - 5}", 200000), kind="0x020700")
                                    for p in (5, 6)
                                ),
                            ),
                        ),
                    ),
                )
                for i, n in enumerate((3, 1, 7, 5))
            )
        ),
        8,
        1,
        "nvlink 300: *-nvswitch",
        cards={f"mlx5_{i}": (i,) for i in range(8)},
    ),
    Case(
        "four of a DGX-1V",
        "NVIDIA/nccl/issues/671",
        system(
            cpu(
                0,
                _pair("03", 0, ("06", "07"), ("07*1 0a*1 0b*2 85*2", "86*2 0a*2 0b*1 06*1"), sm=70, gts="8 GT/s"),
                _pair("08", 2, ("0a", "0b"), ("0b*2 06*1 07*2 89*1", "06*2 0a*2 07*1 8a*1"), sm=70, gts="8 GT/s"),
            )
        ),
        4,
        0,
        "nvlink 50: 0-3 1-2 2-3; nvlink 25: 0-1 0-2 1-3",
        notes=("lead to no GPU",),
    ),
    Case(
        "HGX H100",
        "aliyun/SimAI/issues/128",
        system(
            *(
                cpu(
                    n,
                    *(
                        pci(
                            f"{n}{i}",
                            pci(f"{n + 2}{i}", gpu(4 * n + i, _H100, 90), kind="0x030200", gts="32.0 GT/s"),
                            pci(f"{n + 4}{i}", nic(f"mlx5_{4 * n + i}", 400000), kind="0x020700", gts="32.0 GT/s"),
                            gts="32.0 GT/s",
                        )
                        for i in range(4)
                    ),
                )
                for n in (0, 1)
            )
        ),
        8,
        1,
        "nvlink 450: *-nvswitch",
        sharp=True,
        cards={f"mlx5_{i}": (i,) for i in range(8)},
    ),
    Case(
        "ND40rs, the file that the cloud ships",
        "Azure/azhpc-images/pull/393",
        system(
            *(
                cpu(n, *(pci(f"{n}{i}", kind="0x030200", gts="8 GT/s") for i in range(4)), vendor="GenuineIntel")
                for n in (0, 1)
            )
        ),
        8,
        2,
        "pcie 15.75: 0..3-bridge0 4..7-bridge1; socket 16: bridge0-bridge1",
        {"bridge0 in": (31.51, 5), "bridge1 in": (31.51, 5)},
        ("without their NVLinks",),
    ),
    Case(
        "four A100 in two bridged pairs, each on a node",
        "Azure's NC A100 v4: topology file of its images",
        system(
            *(
                cpu(n, pci(f"0{n + 1}", gpu(n, f"0{(n ^ 1) + 1}*12"), kind="0x030200", gts="", width=0))
                for n in range(4)
            )
        ),
        4,
        4,
        "nvlink 300: 0-1 2-3; pcie 31.51: 0-bridge0 1-bridge1 2-bridge2 3-bridge3; socket 16: bridge0-bridge1 "
        "bridge0-bridge2 bridge0-bridge3 bridge1-bridge2 bridge1-bridge3 bridge2-bridge3",
        notes=("16 lanes of generation 4",),
    ),
    Case(
        "MI300X",
        "ROCm/rccl, tools/topo_expl/models/topo_8p_940.xml",
        system(
            *(
                cpu(
                    n,
                    *(
                        pci(
                            f"{n}{i}",
                            _amd(
                                _EIGHT[4 * n + i],
                                4 * n + i,
                                _to(_EIGHT, 4 * n + i, _FULL8),
                                "gfx942",
                                "32.0 GT/s PCIe",
                                "0x120000",
                            ),
                            pci(f"{n + 4}{i}", nic(f"mlx5_{4 * n + i}", 400000), kind="0x020700", gts="32.0 GT/s PCIe"),
                            gts="32.0 GT/s PCIe",
                        )
                        for i in range(4)
                    ),
                )
                for n in (0, 1)
            ),
            version=2,
        ),
        8,
        0,
        "xgmi 64: all",
        cards={f"mlx5_{i}": (i,) for i in range(8)},
    ),
    Case(
        "MI250X",
        "ROCm/rccl, tools/topo_expl/models/topo_8p1h.xml",
        system(cpu(0, *(_amd(_XGMI[i], i, _to(_XGMI, i, _GCD8), "910") for i in range(8))), version=2),
        8,
        0,
        MI250X_LINKS,
    ),
    Case(
        "eight on PCIe switches below one socket",
        "ROCm/rccl, tools/topo_expl/models/topo_8p_pcie.xml",
        system(
            cpu(
                0,
                pci(
                    "01",
                    *(
                        pci(
                            f"1{s}",
                            *(_amd(f"{2 + s}{i}", 4 * s + i, "", "906", "8 GT/s") for i in range(4)),
                            gts="8 GT/s",
                        )
                        for s in (0, 1)
                    ),
                    gts="8 GT/s",
                ),
            ),
            version=2,
        ),
        8,
        3,
        "pcie 15.75: 0..3-pcie1 4..7-pcie2 pcie1,pcie2-pcie0",
    ),
    Case(
        "DGX-1V",
        "NVIDIA, DGX-1 with Tesla V100 (white paper, figure 4)",
        dgx1v_xml(),
        8,
        0,
        DGX1V_LINKS,
        cards={f"mlx5_{i}": (2 * i, 2 * i + 1) for i in range(4)},
    ),
    Case(
        "rings of a graph",
        "Azure's NC A100 v4: graph file of its images",
        '<graphs version="1"><graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="12" '
        'speedinter="12" typeintra="SYS" '
        'typeinter="PIX" samechannels="0"><channel><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu '
        'dev="3"/></channel><channel>'
        '<gpu dev="0"/><gpu dev="3"/><gpu dev="2"/><gpu dev="1"/></channel></graph><graph id="1" pattern="1" '
        'nchannels="1" '
        'speedintra="12"><channel><gpu dev="0"/><gpu dev="1"/></channel></graph></graphs>',
        4,
        0,
        "channel 12: 0-1 1-2 2-3 0-3",
        notes=("of a graph",),
    ),
]

# ---- hwloc ----

_TWO = [
    thing(
        "Package",
        *(
            thing(
                "L3Cache",
                core(8 * p + 2 * c, f"0x{p + 1}"),
                core(8 * p + 2 * c + 1, f"0x{p + 1}"),
                nodeset=f"0x{p + 1}",
            )
            for c in range(2)
        ),
        nodeset=f"0x{p + 1}",
    )
    for p in range(2)
]


def _p100(index: int) -> str:
    return bridge(
        bridge(
            slot(
                f"0{index}",
                "0302",
                "10de:15f9",
                f"cuda{index}",
                f"nvml{index}",
                model="Tesla P100-SXM2-16GB",
                key=330 + 2 * index,
            ),
            speed="7.876923",
        ),
        host=True,
    )


_MINSKY = [
    [1000000, 40000, 0, 0, 40000, 0],
    [40000, 1000000, 0, 0, 40000, 0],
    [0, 0, 1000000, 40000, 0, 40000],
    [0, 0, 40000, 1000000, 0, 40000],
    [40000, 40000, 0, 0, 1000000, 0],
    [0, 0, 40000, 40000, 0, 1000000],
]


def _v100(index: int) -> str:
    return bridge(
        slot(f"{0x30 + index:02x}", "0302", "10de:1db8", f"nvml{index}", model="Tesla V100-SXM3-32GB", key=800 + index)
    )


def _dgx2() -> str:
    switches = [
        slot(f"{0x60 + i:02x}", "0680", "10de:1ac2", speed="1.000000", subtype="NVSwitch", gp_index=600 + i)
        for i in range(12)
    ]
    keys = [f"OSDev:{800 + i}" for i in range(16)] + [f"PCIDev:{600 + i}" for i in range(12)]
    board = [i // 8 if i < 16 else (i - 16) // 6 for i in range(28)]
    rows = [[25000 if board[a] == board[b] and (a < 16) != (b < 16) else 0 for b in range(28)] for a in range(28)]
    packages = [
        thing(
            "Package",
            core(p, f"0x{p + 1}"),
            *(bridge(*(_v100(8 * p + 4 * h + i) for i in range(4)), host=True) for h in range(2)),
            bridge(*switches[6 * p : 6 * p + 6], host=True),
            nodeset=f"0x{p + 1}",
        )
        for p in range(2)
    ]
    return lstopo(*packages, version=' version="3.0"', tail=bandwidths("NVLinkBandwidth", keys, rows))


def _fermi(bus: str, *names: str, speed: str = "0.000000") -> str:
    return bridge(slot(bus, "0302", "10de:1094", *names, speed=speed, model="Tesla M2075"), speed=speed)


_SLOW = slot("05", "0300", "102b:0532", speed="0.000000")  # a console's display adapter

HWLOC = [
    Case(
        "two packages with two caches each",
        "open-mpi/hwloc, tests/hwloc/x86/Intel-Core-2xXeon-E5345.xml",
        lstopo(*_TWO),
        8,
        6,
        "core 10: 0,1-socket0/cache0/switch 2,3-socket0/cache1/switch 4,5-socket1/cache0/switch "
        "6,7-socket1/cache1/switch; "
        "cache 20: socket0/cache0/switch-socket0/switch socket0/cache1/switch-socket0/switch "
        "socket1/cache0/switch-socket1/switch "
        "socket1/cache1/switch-socket1/switch; socket 16: socket0/switch-socket1/switch",
        notes=("a rank is a core",),
    ),
    Case(
        "two cores of a laptop, two threads each",
        "open-mpi/hwloc, tests/hwloc/x86/Intel-CPUID.1A-1p2co2t.xml",
        lstopo(thing("Package", thing("L3Cache", core(0, "0x1", 2), core(1, "0x1", 2)))),
        2,
        1,
        "core 10: *-socket0/switch",
    ),
    Case(
        "four packages of two cores, version 1",
        "open-mpi/hwloc of 2013, tests/xml/16em64t-4s2c2t.xml",
        lstopo(
            *(
                thing("Socket", thing("Cache", core(2 * p, "0x1", 2), core(2 * p + 1, "0x1", 2), depth=3))
                for p in range(4)
            ),
            version="",
            dtd="hwloc.dtd",
        ),
        8,
        4,
        "core 10: 0,1-socket0/switch 2,3-socket1/switch 4,5-socket2/switch 6,7-socket3/switch; socket 16: "
        "socket0/switch-socket1/switch "
        "socket0/switch-socket2/switch socket0/switch-socket3/switch socket1/switch-socket2/switch "
        "socket1/switch-socket3/switch "
        "socket2/switch-socket3/switch",
    ),
    Case(
        "caches of version 1",
        "open-mpi/hwloc of 2013, tests/xml/8em64t-2mi2ma2c.xml: two packages with two caches of two cores",
        lstopo(
            *(
                thing(
                    "Socket",
                    *(thing("Cache", core(4 * p + c, "0x1"), core(4 * p + c + 1, "0x1"), depth=2) for c in (0, 2)),
                )
                for p in range(2)
            ),
            version="",
            dtd="hwloc.dtd",
        ),
        8,
        6,
        "core 10: 0,1-socket0/cache0/switch 2,3-socket0/cache1/switch 4,5-socket1/cache0/switch "
        "6,7-socket1/cache1/switch; "
        "cache 20: socket0/cache0/switch-socket0/switch socket0/cache1/switch-socket0/switch "
        "socket1/cache0/switch-socket1/switch socket1/cache1/switch-socket1/switch; "
        "socket 16: socket0/switch-socket1/switch",
    ),
    Case(
        "S822LC: P100 in pairs, NVLink to processors",
        "open-mpi/hwloc, tests/hwloc/xml/power8gpudistances.xml",
        lstopo(
            *(
                thing(
                    "Package",
                    core(p, f"0x{p + 1}"),
                    _p100(2 * p),
                    _p100(2 * p + 1),
                    nodeset=f"0x{p + 1}",
                    gp_index=3 + p,
                )
                for p in range(2)
            ),
            version=' version="3.0"',
            tail=bandwidths(
                "NVLinkBandwidth", [*(f"OSDev:{331 + 2 * i}" for i in range(4)), "Package:3", "Package:4"], _MINSKY
            ),
        ),
        4,
        2,
        "nvlink 40: 0-1 2-3 0,1-bridge0 2,3-bridge1; socket 16: bridge0-bridge1",
    ),
    Case(
        "DGX-2",
        "open-mpi/hwloc, tests/hwloc/xml/nvidiaDGX2.xml",
        _dgx2(),
        16,
        2,
        "nvlink 150: 0..7-board0/nvswitch 8..15-board1/nvswitch; nvlink 1200: board0/nvswitch-board1/nvswitch",
    ),
    Case(
        "three M2075, PCIe not told",
        "open-mpi/hwloc, tests/hwloc/xml/32em64t-2n8c2t-pci-normalio.xml",
        lstopo(
            thing(
                "NUMANode",
                thing("Socket", core(0, "0x1")),
                bridge(_fermi("03"), bridge(_SLOW), host=True),
                nodeset="0x1",
            ),
            thing(
                "NUMANode",
                thing("Socket", core(1, "0x2")),
                bridge(_fermi("83"), _fermi("84", "cuda0"), host=True),
                nodeset="0x2",
            ),
            version="",
            dtd="hwloc.dtd",
        ),
        3,
        2,
        "pcie 15.75: 0-bridge0 1,2-bridge1; socket 16: bridge0-bridge1",
        {"bridge1 in": (31.51, 3)},
        ("generation 3 are assumed",),
    ),
    Case(
        "two GPUs of two sockets",
        "open-mpi/hwloc, tests/hwloc/xml/irregulargroups-disallowed.xml",
        lstopo(
            *(
                thing(
                    "Package",
                    core(p, f"0x{p + 1}"),
                    bridge(bridge(slot(f"1{p}", "0302", "10de:20f1", f"cuda{p}", speed="31.507692")), host=True),
                    nodeset=f"0x{p + 1}",
                )
                for p in range(2)
            )
        ),
        2,
        2,
        "pcie 15.75: 0-bridge0 1-bridge1; socket 16: bridge0-bridge1",
    ),
    Case(
        "eight dies of four MI250X",
        "open-mpi/hwloc/issues/775",
        lstopo(
            thing(
                "Package",
                core(0, "0x1"),
                *(
                    bridge(
                        bridge(
                            slot(f"c{i}", "0380", "1002:7408", f"rsmi{i}", key=500 + i, model="AMD Instinct MI250X")
                        ),
                        host=True,
                    )
                    for i in range(8)
                ),
                nodeset="0x1",
            ),
            tail=bandwidths(
                "XGMIBandwidth",
                [f"OSDev:{500 + i}" for i in range(8)],
                [[1000000 if a == b else 50000 * _gcds(a, b) for b in range(8)] for a in range(8)],
            ),
        ),
        8,
        0,
        MI250X_LINKS,
    ),
    Case(
        "A100 whose bandwidths count both ways",
        "open-mpi/hwloc/issues/574",
        lstopo(
            thing(
                "Package",
                core(0, "0x1"),
                *(
                    bridge(
                        slot(f"1{i}", "0302", "10de:20b0", f"nvml{i}", key=500 + i, model="NVIDIA A100-SXM4-40GB"),
                        host=True,
                    )
                    for i in range(4)
                ),
                nodeset="0x1",
            ),
            tail=bandwidths(
                "NVLinkBandwidth",
                [f"OSDev:{500 + i}" for i in range(4)],
                [[1000000 if a == b else 200000 for b in range(4)] for a in range(4)],
            ),
        ),
        4,
        0,
        "nvlink 100: all",
        notes=("halved",),
    ),
]
