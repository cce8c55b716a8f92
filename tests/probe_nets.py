"""Networks as tools and simulators have written them in public, each made again from its facts, with the machine that a
person draws. Sources as in `probe_boxes`."""

from __future__ import annotations

from probe_text import Case, fabric

IB = [
    Case(
        "two switches and three adapters with makers' names",
        "linux-rdma/infiniband-diags, the manual's example",
        fabric(
            {"isr": "ISR9024 Voltaire", "sw": "SW-6IB4 Voltaire"},
            [
                "isr 22 - a 1 4xSDR",
                "isr 10 - sw 1 4xSDR",
                "isr 8 - b 2 4xSDR",
                "isr 6 - sw 3 4xSDR",
                "isr 12 - b 1 4xSDR",
                "sw 6 - c 1 4xSDR",
            ],
        )
        .replace('"a"', '"MT23108 InfiniHost Mellanox Technologies"')
        .replace('"b"', '"MT23108 InfiniHost Mellanox Technologies"')
        .replace('"c"', '"MT23108 InfiniHost Mellanox Technologies"'),
        3,
        2,
        "ib 1: 0-ISR 2-SW; ib 2: 1-ISR; trunk 2: ISR-SW",
    ),
    Case(
        "a simulated pair of switches",
        "a course on InfiniBand's simulator, its discovery",
        fabric(
            {"s1": "Switch1", "s2": "Switch2"},
            ["s1 1 - Hca1 1 4xSDR", "s1 2 - Hca2 2 4xSDR", "s1 3 - s2 3 4xSDR", "s1 4 - s2 4 4xSDR"],
        ),
        2,
        2,
        "ib 1: 0-Switch1 1-Switch1; trunk 2: Switch1-Switch2",
    ),
    Case(
        "twelve nodes on EDR",
        "a viewer of networks, its built-in example of 2023",
        fabric(
            {"sb": "SwitchIB Mellanox Technologies"},
            [f"sb {i + 1} - node{n:03d}/HCA-1 1 4xEDR" for i, n in enumerate((18, 20, 14, 16, 10, 12, 6, 8, 2, 4))],
        ),
        10,
        1,
        "ib 12.5: *-SwitchIB",
    ),
    Case(
        "five nodes on QDR",
        "notes on a storage cluster: ibnetdiscover after ibstat",
        fabric(
            {"is4": "Infiniscale-IV Mellanox Technologies"},
            [
                "is4 1 - ip-211/mlx4_0 1 4xQDR",
                "is4 14 - ip-212/mlx4_0 1 4xQDR",
                "is4 16 - ip-213/mlx4_0 1 4xQDR",
                "is4 33 - ip-160/HCA-1 1 4xQDR",
                "is4 36 - ip-210/mlx4_0 1 4xQDR",
            ],
        ),
        5,
        1,
        "ib 4: *-Infiniscale",
    ),
    Case(
        "two cards of a node, an aggregation node, an uplink of FDR",
        "a tool that compares fabrics, its tests",
        fabric(
            {"sw95": "MF0;r-ufm-sw95:MQM8700/U1", "sw226": "MF0;r-ufm-sw226:SX6036/U1"},
            [
                "sw95 3 - sw226 1 4xFDR",
                "sw95 23 - r-dcs96/HCA-1 1 4xEDR",
                "sw95 24 - r-dcs96/HCA-2 1 4xEDR",
                "sw95 41 - agg 1 4xHDR",
                "sw226 5 - r-ufm128/HCA-1 1 4xFDR",
            ],
        ).replace('"agg"', '"Mellanox Technologies Aggregation Node"'),
        2,
        2,
        "ib 25: 0-sw95; ib 6.818: 1-sw226; trunk 6.818: sw95-sw226",
        notes=("no hosts",),
    ),
    Case(
        "three of a rack below a director, double cables",
        "a site's scripts: marmot on Sun's M2 and M9",
        fabric(
            {"m2": "0x0021283a8836a0a0 M2-1", "m9": "0x0021283a89e015d2 M9-3-LC-5d"},
            [
                "m2 36 - marmot1/HCA-1 1 4xQDR",
                "m2 34 - marmot3/HCA-1 1 4xQDR",
                "m2 35 - m9 34 4xQDR",
                "m2 33 - m9 33 4xQDR",
                "m9 1 - marmot2/HCA-1 1 4xQDR",
            ],
        ),
        3,
        2,
        "ib 4: 0,2~M2-1 1~M9-3; trunk 8: M2-1~M9-3",
    ),
    Case(
        "adapters of several speeds",
        "a site's scripts: Voltaire 4036, whose name has a #",
        fabric(
            {"v": "Voltaire 4036 # v4036"},
            [
                "v 1 - larissa/HCA-1 1 4xQDR",
                "v 2 - triton/HCA-1 1 4xDDR",
                "v 4 - telesto/HCA-1 1 4xDDR",
                "v 5 - skoll/HCA-1 1 4xDDR",
            ],
        ),
        4,
        1,
        "ib 4: 0-Voltaire; ib 2: 1,2,3-Voltaire",
    ),
    Case(
        "six of a chassis",
        "a simulator of a shell for InfiniBand",
        fabric(
            {"bc": "BC 36-Port QSFP QDR Infiniband Switch"},
            [
                f"bc {p} - {h}/HCA-1 1 4xQDR"
                for p, h in ((1, "0"), (18, "0-r3"), (33, "r3-1014"), (34, "r3-1015"), (35, "r3-1016"), (36, "r3-1017"))
            ],
            adapters=False,
        ),
        6,
        1,
        "ib 4: *-BC",
    ),
    Case(
        "one host on SDR, adapters not listed",
        "TACC's tacc_stats: ibnetdiscover of Ranger",
        fabric(
            {"i3": "MT47396 Infiniscale-III Mellanox Technologies"},
            ["i3 1 - i115-312/HCA-1 1 4xSDR", "i3 2 - i115-308/HCA-1 1 4xSDR"],
            adapters=False,
        ),
        2,
        1,
        "ib 1: *-MT47396",
    ),
    Case(
        "four cards of a node on four leaves, a spine",
        "Leonardo, as CRAB's parser has it: lrdn0001 mlx5_0 on HDR",
        fabric(
            {**{f"l{i}": f"leaf{i:02d}" for i in range(4)}, "s": "spine01"},
            [
                *(f"l{i} {h} - lrdn000{h}/mlx5_{i} 1 2xHDR" for i in range(4) for h in (1, 2)),
                *(f"l{i} {30 + c} - s {4 * i + c} 4xHDR" for i in range(4) for c in range(2)),
            ],
        ),
        2,
        5,
        "ib 12.5: 0,1-leaf00 0,1-leaf01 0,1-leaf02 0,1-leaf03; trunk 50: leaf00-spine01 leaf01-spine01 leaf02-spine01 "
        "leaf03-spine01",
    ),
]


def _tree(levels: str) -> str:
    return "".join(f"SwitchName={line}\n" for line in levels.split("; "))


SLURM = [
    Case(
        "three levels of two",
        "slurm.schedmd.com/topology.html, the first example",
        "# topology.conf\n"
        + _tree(
            "s0 Nodes=tux[0-1]; s1 Nodes=tux[2-3]; s2 Nodes=tux[4-5]; s3 Nodes=tux[6-7]; s4 Switches=s[0-1]; "
            "s5 Switches=s[2-3]; s6 Switches=s[4-5]"
        ),
        8,
        7,
        "ib 25: 0,1-s0 2,3-s1 4,5-s2 6,7-s3; trunk 50: s0-s4 s1-s4 s2-s5 s3-s5; trunk 100: s4-s6 s5-s6",
        notes=("200 Gbit/s", "upwards what it has below"),
    ),
    Case(
        "two levels of four",
        "slurm.schedmd.com/topology.html, the second example",
        _tree(
            "s0 Nodes=tux[0-3]   LinkSpeed=900; s1 Nodes=tux[4-7]   LinkSpeed=900; s2 Nodes=tux[8-11]  LinkSpeed=900; "
            "s3 Nodes=tux[12-15] LinkSpeed=1800; s4 Switches=s[0-3]  LinkSpeed=1800"
        ),
        16,
        5,
        "ib 25: 0..3-s0 4..7-s1 8..11-s2 12..15-s3; trunk 100: s0,s1,s2,s3-s4",
    ),
    Case(
        "comments and a speed with a unit",
        "a Puppet module for Slurm",
        _tree("s0 Nodes=dev[0-5]; s1 Nodes=dev-[6-11]; s2 Nodes=dev-[12-17]") + "# GUID: XXXXXX - switch 0\n"
        "SwitchName=s3 Switches=s[0-2] LinkSpeed=100Mb/s\n",
        18,
        4,
        "ib 25: 0..5-s0 6..11-s1 12..17-s2; trunk 150: s0,s1,s2-s3",
    ),
    Case(
        "leading zeros, a lone node",
        "NVIDIA/topograph, one of its providers' tests",
        "# spine-01=d-0001\n"
        + _tree("spine-01 Switches=leaf-[01-02]; leaf-01 Nodes=node-[01-02]; leaf-02 Nodes=node-03"),
        3,
        3,
        "ib 25: 0,1~leaf-01 2~leaf-02; trunk 50: leaf-01~spine-01; trunk 25: leaf-02~spine-01",
    ),
    Case(
        "leaves below two spines",
        "a course on GPU clusters: two spines over all leaves",
        _tree(
            "spine1 Switches=leaf[1-2]; spine2 Switches=leaf[1-2]; leaf1 Nodes=node[001-004]; leaf2 Nodes=node[005-008]"
        ),
        8,
        4,
        "ib 25: 0..3-leaf1 4..7-leaf2; trunk 50: leaf1,leaf2-spine1 leaf1,leaf2-spine2",
    ),
    Case(
        "blocks",
        "the manual page topology.conf(5), plugin topology/block (blocks of four)",
        "".join(f"BlockName=block{b + 1} Nodes=node[{4 * b + 1}-{4 * b + 4}]\n" for b in range(4))
        + "BlockSizes=4,16\n",
        16,
        5,
        "ib 25: 0..3-block1 4..7-block2 8..11-block3 12..15-block4; trunk 100: block1,block2,block3,block4-between",
        notes=("blocks are joined by one switch",),
    ),
    Case(
        "what scontrol shows",
        "a monitor for Slurm: scontrol show topology",
        "SwitchName=a1 Level=0 LinkSpeed=1 Nodes=worker-1\nSwitchName=b1 Level=0 LinkSpeed=1 Nodes=worker-0\n"
        "SwitchName=c2 Level=1 LinkSpeed=1 Nodes=worker-0 Switches=b1\nSwitchName=d2 Level=1 LinkSpeed=1 "
        "Nodes=worker-1 Switches=a1\n"
        "SwitchName=root Level=2 LinkSpeed=1 Nodes=worker-0,worker-1,worker-dyn-0,worker-payg-0 "
        "Switches=c2,d2,unknown\n"
        "SwitchName=unknown Level=0 LinkSpeed=1 Nodes=worker-dyn-0,worker-payg-0\n",
        4,
        6,
        "ib 25: 0-a1 1-b1 2,3-unknown; trunk 25: a1-d2 b1-c2 c2-root d2-root; trunk 50: root-unknown",
    ),
    Case(
        "one cell of Leonardo",
        "a reader of scontrol's output, its test",
        "SwitchName=isw-L2-CELLG1 Level=1 LinkSpeed=1 Nodes=lrdn[0001-0004] Switches=isw1[0100,0102]\n"
        "SwitchName=isw10100 Level=0 LinkSpeed=1 Nodes=lrdn[0001-0002]\nSwitchName=isw10102 Level=0 LinkSpeed=1 "
        "Nodes=lrdn[0003-0004]\n",
        4,
        3,
        "ib 25: 0,1-isw10100 2,3-isw10102; trunk 50: isw10100,isw10102-isw-L2",
    ),
    Case(
        "workers without a place in the network",
        "nebius/soperator, its operator's tests",
        _tree(
            "root Switches=spine1,unknown; spine1 Switches=leaf1,leaf2; leaf1 Nodes=worker-0; leaf2 "
            "Nodes=worker-1; unknown Nodes=worker-2"
        ),
        3,
        5,
        "ib 25: 0-leaf1 1-leaf2 2-unknown; trunk 25: leaf1,leaf2-spine1 unknown-root; trunk 50: spine1-root",
    ),
    Case(
        "a part that nothing joins",
        "NVIDIA/topograph: SwitchName=no-topology beside the tree",
        _tree(
            "core Switches=spine; no-topology Nodes=node[13,23]; spine Switches=tor[1-2]; tor1 "
            "Nodes=node[11-12]; tor2 Nodes=node[21-22]"
        ),
        6,
        5,
        "ib 25: 0,1-no 2,3-tor1 4,5-tor2; trunk 50: tor1,tor2-spine; trunk 100: spine-core",
        notes=("2 networks",),
    ),
]


def _yaml(forms: str, sizes: str, speeds: str, delays: str, note: str = "") -> str:
    return (
        f"{note}topology: [ {forms} ]  # Ring, Switch, FullyConnected\n\nnpus_count: [ {sizes} ]  # number of NPUs\n"
        f"bandwidth: [ {speeds} ]  # GB/s\nlatency: [ {delays} ]  # ns\n"
    )


def _first(
    forms: list[str], sizes: list[int], speeds: list[float], links: list[int] | None = None, name: str = "Hierarchical"
) -> str:
    import json

    said = {
        "topology-name": name,
        "topologies-per-dim": forms,
        "dimensions-count": len(sizes),
        "units-count": sizes,
        "link-latency": [500] * len(sizes),
        "link-bandwidth": speeds,
        "nic-latency": [0] * len(sizes),
        "hbm-scale": [0] * len(sizes),
    }
    if links:
        said["links-count"] = links
    if not forms:
        del said["topologies-per-dim"]
    return json.dumps(said, indent=2)


def _simai() -> str:
    rows = [f"{g} {16 + g // 8} 900Gbps 0.000025ms 0\n{g} {18 + g % 8} 200Gbps 0.001ms 0" for g in range(16)]
    rows += [f"{leaf} {spine} 400Gbps 0.001ms 0" for leaf in range(18, 26) for spine in range(26, 34)]
    return "34 8 2 16 96 H20\n" + " ".join(map(str, range(16, 34))) + " \n" + "\n".join(rows) + "\n"


NETFILES = [
    Case(
        "a ring of four",
        "astra-sim/astra-sim, examples/network/analytical/Ring_4npus.yml",
        _yaml("Ring", "4", "50.0", "500.0"),
        4,
        0,
        "link 50: 0-1 1-2 2-3 3-0",
    ),
    Case(
        "four boxes in a ring",
        "astra-sim/astra-sim, inputs/network/hgx_h100_32gpu.yml (two GPUs a box)",
        _yaml(
            "Switch, Ring", "2, 4", "400, 50", "936.25, 1000", "# Analytical Network Input File\n#bandwidth: [820 ]\n"
        ),
        8,
        4,
        "port 400: 0,1-dim0/switch0 2,3-dim0/switch1 4,5-dim0/switch2 6,7-dim0/switch3; link 50: 0-2 2-4 4-6 6-0 "
        "1-3 3-5 5-7 7-1",
    ),
    Case(
        "a torus of TPUs",
        "astra-sim/astra-sim, inputs/network/tpu_v3_32_2dtorus.yml (3 by 3)",
        _yaml("Ring, Ring", "3, 3", "80.0, 80.0", "1000.0, 1000.0"),
        9,
        0,
        "link 80: 0-1 1-2 2-0 3-4 4-5 5-3 6-7 7-8 8-6 0-3 3-6 6-0 1-4 4-7 7-1 2-5 5-8 8-2",
    ),
    Case(
        "three dimensions",
        "astra-sim/astra-network-analytical, congestion_unaware/example_network.yml (2 by 3 by 2)",
        _yaml("Ring, FullyConnected, Switch", "2, 3, 2", "200.0, 100.0, 50.0", "50.0, 500.0, 2000.0"),
        12,
        6,
        "link 200: 0-1 2-3 4-5 6-7 8-9 10-11; link 100: 0-2 0-4 2-4 1-3 1-5 3-5 6-8 6-10 8-10 7-9 7-11 9-11; "
        "port 50: 0,6-switch0 1,7-switch1 2,8-switch2 3,9-switch3 4,10-switch4 5,11-switch5",
    ),
    Case(
        "the first version: a hierarchy",
        "astra-sim/astra-sim, inputs/network/analytical/sample_Hierarchical.json (2 by 3 by 2)",
        _first(["Ring", "AllToAll", "Switch"], [2, 3, 2], [250, 25, 12.5]),
        12,
        6,
        "link 250: 0-1 2-3 4-5 6-7 8-9 10-11; link 25: 0-2 0-4 2-4 1-3 1-5 3-5 6-8 6-10 8-10 7-9 7-11 9-11; "
        "port 12.5: 0,6-switch0 1,7-switch1 2,8-switch2 3,9-switch3 4,10-switch4 5,11-switch5",
    ),
    Case(
        "the first version: links counted",
        "astra-sim/analytical, its README (2 by 3)",
        _first(["Ring", "FullyConnected"], [2, 3], [250, 25], [2, 2]),
        6,
        0,
        "link 500: 0-1 2-3 4-5; link 25: 0-2 0-4 2-4 1-3 1-5 3-5",
    ),
    Case(
        "the first version: a torus by its name",
        "astra-sim/astra-sim, inputs/network/analytical/sample_Torus2D.json (3 by 2)",
        _first([], [3, 2], [25, 25], None, "Torus2D"),
        6,
        0,
        "link 25: 0-1 1-2 2-0 3-4 4-5 5-3 0-3 1-4 2-5",
    ),
    Case(
        "SimAI: sixteen H20 on rails",
        "aliyun/SimAI, inputs/topo/Rail_Opti_SingleToR_16g_8gps_200Gbps_H20",
        _simai(),
        16,
        18,
        "nvlink 112.5: 0..7-nvswitch16 8..15-nvswitch17; ethernet 25: 0,8-switch18 1,9-switch19 2,10-switch20 "
        "3,11-switch21 "
        "4,12-switch22 5,13-switch23 6,14-switch24 7,15-switch25; trunk 50: "
        + " ".join(f"switch{leaf}-switch{spine}" for leaf in range(18, 26) for spine in range(26, 34)),
    ),
    Case(
        "HPCC: four hosts, a leaf and a spine each",
        "netiken/parsimon, its test of ns-3 topologies",
        "8 4 8\n4 5 6 7\n0 4 100Gbps 1000ns 0\n1 4 1000Gbps 1000ns 0\n2 5 1000Gbps 1000ns 0\n3 5 1000Gbps 1000ns 0\n"
        "4 6 1000Gbps 1000ns 0\n4 7 1000Gbps 1000ns 0\n5 6 1000Gbps 1000ns 0\n5 7 1000Gbps 1000ns 0\n",
        4,
        4,
        "ethernet 12.5: 0-switch4; ethernet 125: 1-switch4 2,3-switch5; trunk 125: switch4,switch5-switch6 "
        "switch4,switch5-switch7",
    ),
    Case(
        "TACOS: a mesh of two by two with one link one way",
        "astra-sim/tacos, its CSV writer",
        "NPUs Count,4\nLinks Count,7\nChunks Count,4\nChunk Size,1048576,B\nSrcID,DestID,Latency (ns),Bandwidth "
        "(GB/s),Chunks\n"
        "0,1,500,50,0:500,2:900\n0,2,500,50,None\n1,0,500,50,1:20\n1,3,500,25,None\n2,0,500,50,None\n"
        "2,3,500,50,None\n3,2,500,50,3:1\n",
        4,
        0,
        "link 50: 0-1 0-2 2-3; link 25: 1>3",
    ),
]
