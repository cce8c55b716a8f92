"""The built-in topologies by name. To add one: a file with a make function, and a line here.

A function is named by a string ("regular:ring": `ring` of regular.py), so that its file is imported only when used.
Then follow, as `antiphon list topologies` prints them, a description, the number of ranks and an example.
"""

from __future__ import annotations

from antiphon.registry import Entry, TopologyCapabilities


def _make_entry(function: str, about: str, ranks: str, example: str) -> Entry[TopologyCapabilities]:
    """Return the entry of a topology; `ranks`: the numbers of ranks that it can have, as a phrase for listings."""
    return Entry(f"antiphon.topologies.{function}", about, TopologyCapabilities(ranks, example))


TABLE = {
    "ring": _make_entry("regular:ring", "ranks in a circle, a link each way", "2 or more", "ring:ranks=8"),
    "line": _make_entry("regular:line", "ranks in a row", "2 or more", "line:ranks=5"),
    "mesh": _make_entry("regular:mesh", "a grid of any dimension, dims=4x8", "2 or more", "mesh:dims=3x4"),
    "torus": _make_entry("regular:torus", "a grid whose axes close to rings, dims=4x8", "2 or more", "torus:dims=4x4"),
    "hypercube": _make_entry(
        "regular:hypercube", "ranks are linked if their numbers differ in one bit", "2, 4, 8, ...", "hypercube:ranks=16"
    ),
    "full": _make_entry("regular:full", "a link from every rank to every other", "2 or more", "full:ranks=6"),
    "star": _make_entry("regular:star", "one switch in the middle", "2 or more", "star:ranks=8"),
    # 3x(4+2+0): a root with three children: a switch of 4 ranks, a switch of 2, and a rank
    "tree": _make_entry("trees:tree", "switches in a tree, fanouts=4x8", "2 or more", "tree:fanouts=3x(4+2+0)"),
    "dgx1p": _make_entry("dgx1:dgx1p", "NVIDIA DGX-1 with P100: 8 GPUs, 4 NVLinks each", "8", "dgx1p"),
    "dgx1v": _make_entry("dgx1:dgx1v", "NVIDIA DGX-1 with V100: 8 GPUs, 6 NVLinks each", "8", "dgx1v"),
    "dgx1v_sccl": _make_entry("dgx1:dgx1v_sccl", "DGX-1 with V100, GPUs numbered as in SCCL", "8", "dgx1v_sccl"),
    "dgx2": _make_entry("nvswitch:dgx2", "NVIDIA DGX-2: 16 V100 on two boards of NVSwitches", "16", "dgx2"),
    "dgx-a100": _make_entry("nvswitch:dgx_a100", "NVIDIA DGX A100: 8 GPUs on NVSwitches", "8", "dgx-a100"),
    "hgx-h100": _make_entry("nvswitch:hgx_h100", "NVIDIA HGX H100: 8 GPUs on NVSwitches", "8", "hgx-h100"),
    "hgx-h200": _make_entry("nvswitch:hgx_h200", "NVIDIA HGX H200: 8 GPUs on NVSwitches", "8", "hgx-h200"),
    "hgx-b200": _make_entry("nvswitch:hgx_b200", "NVIDIA HGX B200: 8 GPUs on NVSwitches", "8", "hgx-b200"),
    "gb200-nvl72": _make_entry("nvswitch:gb200_nvl72", "NVIDIA GB200 NVL72: a rack of 72 GPUs", "72", "gb200-nvl72"),
    "z52": _make_entry("z52:z52", "Gigabyte Z52: 8 MI50, reduced to one ring as in SCCL", "8", "z52"),
    "z52-pcie": _make_entry("z52:z52_pcie", "Gigabyte Z52 in full: two xGMI rings and shared PCIe", "8", "z52-pcie"),
    "mi250": _make_entry("instinct:mi250", "AMD MI250: 8 packages (gcds=16) or 4 (gcds=8)", "8 or 16", "mi250"),
    "mi300x": _make_entry("instinct:mi300x", "AMD MI300X: 8 GPUs, all linked", "8", "mi300x"),
    "mi350x": _make_entry("instinct:mi350x", "AMD MI350X: 8 GPUs, all linked", "8", "mi350x"),
    "pcie8": _make_entry("pcie:pcie8", "8 GPUs on PCIe switches and two host bridges", "8", "pcie8"),
    "gaudi3": _make_entry("accelerators:gaudi3", "Intel HLS-3: 8 Gaudi 3, all linked", "8", "gaudi3"),
    "tpu-v4": _make_entry(
        "accelerators:tpu_v4", "a slice of Google's TPU v4, dims=4x4x4", "4 or more", "tpu-v4:dims=2x2x2"
    ),
    "tpu-v5p": _make_entry(
        "accelerators:tpu_v5p", "a slice of Google's TPU v5p, dims=4x4x4", "4 or more", "tpu-v5p:dims=2x2x2"
    ),
    "tpu-v6e": _make_entry(
        "accelerators:tpu_v6e", "a slice of Google's TPU v6e, dims=4x4", "4 or more", "tpu-v6e:dims=2x4"
    ),
    "trn2": _make_entry("accelerators:trn2", "16 Trainium2 in a torus (ultra=true: 64)", "16 or 64", "trn2"),
    "cluster": _make_entry(
        "clusters:cluster", "boxes of any kind on a fabric", "as the boxes have", "cluster:box=dgx1v,boxes=4"
    ),
    "ec2": _make_entry(
        "clusters:ec2", "Amazon EC2 instances on EFA", "8 or 16 per instance", "ec2:instance=p5,instances=2"
    ),
    "dragonfly": _make_entry(
        "dragonfly:dragonfly", "groups of routers, joined pairwise", "2 or more", "dragonfly:groups=5,routers=2,hosts=2"
    ),
    "ss24": _make_entry("gentree:ss24", "GenTree's single switch", "24", "ss24"),
    "ss32": _make_entry("gentree:ss32", "GenTree's single switch", "32", "ss32"),
    "sym384": _make_entry("gentree:sym384", "GenTree's symmetric tree, 16 switches of 24", "384", "sym384"),
    "sym512": _make_entry("gentree:sym512", "GenTree's symmetric tree, 16 switches of 32", "512", "sym512"),
    "asy384": _make_entry("gentree:asy384", "GenTree's asymmetric tree, 8 switches of 32, 8 of 16", "384", "asy384"),
    "cdc384": _make_entry("gentree:cdc384", "GenTree's two data centres", "384", "cdc384"),
    "delta": _make_entry(
        "clusters:delta", "NCSA Delta: nodes of 4 A100, one network card each", "4 per node", "delta:nodes=4"
    ),
    "polaris": _make_entry(
        "clusters:polaris", "Argonne Polaris: nodes of 4 A100, two network cards", "4 per node", "polaris:nodes=4"
    ),
}
