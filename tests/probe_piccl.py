"""PICCL's topologies with their figures, and the machines that a person draws of them. Three stand in public, all in
its own repository; the others are made of facts that papers tell of machines, in PICCL's form."""

from __future__ import annotations

from collections.abc import Sequence

from probe_text import Case

Groups = int | Sequence["Groups"]  # how many nodes there are, or what is in a group
PICCL = "PICCL-Project/PICCL, tools/loggp_sim/"
PAPER = "Parameterized Algorithms and Parameter Selection for Fast GPU-GPU Collective Communication, "
GENTREE = "the paper on GenModel and GenTree, "


def _csv(latency: float, overhead: float, gap: float, per_byte: float, sizes: Sequence[int] = (1, 65536)) -> str:
    rows = [f"{size},{latency!r},{overhead!r},{overhead!r},{gap!r},{per_byte!r}" for size in sizes]
    return "\n".join(["s,L,o_s,o_r,g,G", *rows]) + "\n"


def _speed(gigabytes: float, latency: float) -> str:
    """Figures of which only these two are told."""
    return _csv(latency, 4e-6, 1e-5, 1e-9 / gigabytes)


def _topo(groups: Groups, files: Sequence[str], ports: str = "", nodes: int = 0) -> str:
    """`files`: of each level, the inmost first; `nodes`: what the file says that it has."""
    depth = _depth(groups)
    counts, lines, seen = [0] * depth, [], 0

    def write(inside: Groups, level: int) -> None:
        nonlocal seen
        number, counts[level] = counts[level], counts[level] + 1
        more = f' ports="{ports}"' if ports and not level else ' nics="-1"' if ports else ""
        lines.append(f'<group level="{level}" id="{number}"{more} param_file="{files[level]}">')
        if isinstance(inside, int):
            lines.extend(f'    <node id="{node}"/>' for node in range(seen, seen + inside))
            seen += inside
        else:
            for one in inside:
                write(one, level - 1)
        lines.append("</group>\n")

    write(groups, depth - 1)
    return "\n".join([f'<topo num_nodes="{nodes or seen}" num_levels="{depth}">', *lines, "</topo>\n"])


def _depth(groups: Groups) -> int:
    return 1 if isinstance(groups, int) else 1 + max(map(_depth, groups))


def _hosts(count: int, each: int, speed: float, uplink: float) -> str:
    """Hosts with so many ranks below one switch, as a person tells it."""
    nodes = " ".join(f"{each * i}..{each * i + each - 1}-host{i}/switch" for i in range(count))
    return f"level0 {speed}: {nodes}; level1 {uplink}: " + " ".join(f"host{i}/switch-switch" for i in range(count))


_NCCL = [14.7098e-6, 4.4927e-6, 13.00337103673227e-6, 1.218696520684701e-11]  # L, o, g, G of nccl_l0_simple_loggp.csv
_TESTED = {  # test_param_0.csv and test_param_1.csv: seconds, plainly for tests
    "test_param_0.csv": _csv(10, 5, 8, 1, (1, 2, 256, 512, 1024)),
    "test_param_1.csv": _csv(100, 5, 80, 10, (1, 2, 256, 512, 1024)),
}
_PARAMETERS = [f"tools/loggp_sim/tests/test_param/test_param_{i}.csv" for i in (0, 1)]
_DELTA = {"nvlink.csv": _speed(75, 14.7e-6), "slingshot.csv": _speed(25, 20e-6)}  # 600 and 200 Gbit/s
_DRAGON = {**_DELTA, "dragonfly.csv": _speed(25, 22e-6)}
_ROCE = {"roce.csv": _speed(1.25, 5e-6)}  # 10 Gbit/s
_SWITCHES = {"middle.csv": _speed(0.625, 6.58e-3), "root.csv": _speed(6.25, 6.58e-3)}  # by their seconds per float
_POD = {"nvswitch.csv": _speed(300, 10e-6), "pod.csv": _speed(25, 15e-6)}

PICCLS = [
    Case(
        "pairs of GPUs, from outside ten times as far",
        PICCL + "README.md with profiles/nccl_l0_simple_loggp.csv and nccl_l1_simple_loggp_mock.csv",
        _topo([2, 2, 2, 2], ["./profiles/nccl_l0_simple_loggp.csv", "./profiles/nccl_l1_simple_loggp_mock.csv"]),
        8,
        5,
        _hosts(4, 2, 82.05, 8.205),
        files={
            "nccl_l0_simple_loggp.csv": _csv(*_NCCL),
            "nccl_l1_simple_loggp_mock.csv": _csv(*(10 * value for value in _NCCL)),
        },
        figures=(("host", 14.7098e-6, 1.218696520684701e-11), ("", 147.098e-6, 1.218696520684701e-10)),
        ports=1,
    ),
    Case(
        "two boxes of four",
        PICCL + "tests/test_topology/test_topo.xml",
        _topo([4, 4], _PARAMETERS, "1"),
        8,
        3,
        _hosts(2, 4, 1e-9, 1e-10),
        files=_TESTED,
        figures=(("host", 10, 1), ("", 100, 10)),
        ports=1,
    ),
    Case(
        "four boxes of four that say they have eight nodes",
        PICCL + "tests/test_topology/test_topo_large.xml",
        _topo([4, 4, 4, 4], _PARAMETERS, "1", nodes=8),
        16,
        5,
        _hosts(4, 4, 1e-9, 1e-10),
        notes=("num_nodes is 8, but 16 nodes stand in it",),
        files=_TESTED,
        figures=(("host", 10, 1), ("", 100, 10)),
        ports=1,
    ),
    Case(
        "a node of Delta alone",
        PICCL + "profiles/osu_loggp_intra.csv (its first sizes); " + PAPER + "V.B",
        _topo(4, ["profiles/osu_loggp_intra.csv"]),
        4,
        1,
        "level0 82.8: *-switch",
        files={"osu_loggp_intra.csv": _csv(15.3981e-6, 4.8e-6, 14.04e-6, 1.207667585433873e-11, (1, 4097))},
        figures=(("", 15.3981e-6, 1.207667585433873e-11),),
        ports=1,
    ),
    Case(
        "Delta, 16 nodes with one card each",
        PAPER + "V.B",
        _topo([4] * 16, ["nvlink.csv", "slingshot.csv"], "1"),
        64,
        17,
        _hosts(16, 4, 75, 25),
        files=_DELTA,
        options={"radix": 8},
        figures=(("host", 14.7e-6, 1e-9 / 75), ("", 20e-6, 4e-11)),
        ports=1,
    ),
    Case(
        "Polaris, 16 nodes with two cards each",
        PAPER + "V.B",
        _topo([4] * 16, ["nvlink.csv", "slingshot.csv"], "2"),
        64,
        17,
        _hosts(16, 4, 75, 50),
        files=_DELTA,
        figures=(("host", 14.7e-6, 1e-9 / 75), ("", 20e-6, 4e-11)),
        ports=2,
    ),
    Case(
        "two groups of a dragonfly",
        PAPER + "IV.B (links within a group of the dragonfly have the same figures) and V.B",
        _topo([[4, 4, 4], [4, 4, 4]], ["nvlink.csv", "slingshot.csv", "dragonfly.csv"], "1"),
        24,
        9,
        "level0 75: 0..3-rack0/host0/switch 4..7-rack0/host1/switch 8..11-rack0/host2/switch "
        "12..15-rack1/host3/switch 16..19-rack1/host4/switch 20..23-rack1/host5/switch; "
        "level1 25: rack0/host0/switch-rack0/switch rack0/host1/switch-rack0/switch rack0/host2/switch-rack0/switch "
        "rack1/host3/switch-rack1/switch rack1/host4/switch-rack1/switch rack1/host5/switch-rack1/switch; "
        "level2 75: rack0/switch-switch rack1/switch-switch",
        files=_DRAGON,
        figures=(("host", 14.7e-6, 1e-9 / 75), ("rack", 20e-6, 4e-11), ("", 22e-6, 4e-11)),
        ports=1,
    ),
    Case(
        "fifteen servers on one switch, 10 Gbit/s",
        GENTREE + "section 3",
        _topo(15, ["roce.csv"], "1"),
        15,
        1,
        "level0 1.25: *-switch",
        files=_ROCE,
        figures=(("", 5e-6, 8e-10),),
        ports=1,
    ),
    Case(
        "eight servers of eight A100 with four cards of 200 Gbit/s",
        GENTREE + "section 5.2, the GPU testbed",
        _topo([8] * 8, ["nvswitch.csv", "pod.csv"], "4"),
        64,
        9,
        _hosts(8, 8, 300, 100),
        files=_POD,
        figures=(("host", 10e-6, 1e-9 / 300), ("", 15e-6, 4e-11)),
        ports=4,
    ),
    Case(
        "eight switches of 32 servers and eight of 16",
        GENTREE + "section 5.3, ASY384, and table 5",
        _topo([32] * 8 + [16] * 8, ["middle.csv", "root.csv"], "1"),
        384,
        17,
        "level0 0.625: "
        + " ".join(f"{32 * i}..{32 * i + 31}-host{i}/switch" for i in range(8))
        + " "
        + " ".join(f"{256 + 16 * i}..{271 + 16 * i}-host{8 + i}/switch" for i in range(8))
        + "; level1 6.25: "
        + " ".join(f"host{i}/switch-switch" for i in range(16)),
        files=_SWITCHES,
        figures=(("host", 6.58e-3, 1.6e-9), ("", 6.58e-3, 1.6e-10)),
        ports=1,
    ),
]
