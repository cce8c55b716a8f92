"""The catalogue: every entry is a sound machine, known machines have the links and bounds that papers give them,
and wrong options are one clear line.
"""

import inspect
import math
import resource
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from tables import listed

from antiphon.core import symmetry
from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.routes import opposite_links, switch_path
from antiphon.core.serialize import dumps, load_topology
from antiphon.core.topology import Topology
from antiphon.errors import AntiphonError, Invalid
from antiphon.registry import table
from antiphon.topologies import topology

GB = 10**9
LARGE = ("sym384", "sym512", "asy384", "cdc384", "gb200-nvl72")
EXAMPLES = {name: entry.can.example for name, entry in table("topology").items()}

# as published: NVLinks between pairs, numbered as in Blink (dgx1p, dgx1v) and as in SCCL's implementation
DGX1 = {
    "dgx1p": "01111000 10110100 11010010 11100001 10000111 01001011 00101101 00011110",
    "dgx1v": "01122000 10210200 12020010 21200001 20000112 02001021 00101202 00012120",
    "dgx1v_sccl": "02112000 20120100 11020020 12200001 20000211 01002012 00201102 00011220",
}

# more of the families than their examples
MORE = [spec for (spec,) in listed("more-machines")]


def inverse(spec: str, kind: str) -> Fraction:
    machine = topology(spec)
    return bound(machine, Collective(kind, machine.ranks)).inverse


def pairs(machine: Topology) -> Counter[tuple[int, int]]:
    """Unit links from node to node."""
    found: Counter[tuple[int, int]] = Counter()
    for link in range(machine.links):
        units = machine.bandwidth(link) / machine.unit
        found[int(machine.link_src[link]), int(machine.link_dst[link])] += units  # type: ignore[assignment]
    return found


def reached(machine: Topology, start: int) -> int:
    """How many nodes can be reached from one."""
    out: dict[int, list[int]] = {}
    for a, b in zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True):
        out.setdefault(a, []).append(b)
    seen, stack = {start}, [start]
    while stack:
        fresh = [b for b in out.get(stack.pop(), []) if b not in seen]
        seen.update(fresh)
        stack += fresh
    return len(seen)


def degrees(machine: Topology) -> list[int]:
    return sorted(np.bincount(machine.link_src, minlength=machine.nodes).tolist())


def sound(spec: str) -> Topology:
    """Built the same twice, connected both ways, with equal links back, and a place of its own for every node."""
    machine = topology(spec)
    assert machine == topology(spec)
    assert reached(machine, 0) == machine.nodes
    opposite_links(machine)  # refuses a machine with a link that has no equal one back
    assert len(set(machine.places)) == machine.nodes
    assert all(place and not place.startswith("/") and "//" not in place for place in machine.places)
    fastest = max(machine.types[i].bandwidth for i in np.unique(machine.link_type))
    assert 0 < machine.unit <= fastest
    assert all(0 <= kind.latency < 1 for kind in machine.types)
    return machine


# ---- every entry of the table ----


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_a_sound_machine(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    spec = EXAMPLES[name]
    assert spec.partition(":")[0] == name
    machine = sound(spec)
    assert machine.name.startswith(name)
    if name not in LARGE:
        assert machine.ranks <= 64
    (tmp_path / "machine.json").write_bytes(dumps(machine))
    assert load_topology(tmp_path / "machine.json") == machine


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_entry_declares_and_documents_itself(name: str) -> None:
    entry = table("topology")[name]
    make = entry.load()
    assert make.__name__ == name.replace("-", "_")
    assert entry.can.ranks
    assert entry.can.example
    assert make.__doc__
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in inspect.signature(make).parameters.values())


@pytest.mark.parametrize("spec", MORE)
def test_other_sizes_and_options_are_sound(spec: str) -> None:
    machine = sound(spec)
    assert machine.ranks <= 64
    assert topology(machine.name) == machine  # the name of a machine is a way to ask for it


def test_the_catalogue_page_lists_every_entry() -> None:
    page = (Path(__file__).parent.parent / "docs" / "topologies.md").read_text()
    for name, example in EXAMPLES.items():
        assert f"`{name}`" in page, name
        assert example in page, example


# ---- links as specified ----


@pytest.mark.parametrize("name", DGX1)
def test_dgx1_is_linked_as_published(name: str) -> None:
    machine, rows = topology(name), DGX1[name].split()
    assert pairs(machine) == {(a, b): int(n) for a, row in enumerate(rows) for b, n in enumerate(row) if n != "0"}
    assert machine.unit == (20 if name == "dgx1p" else 25) * GB


@pytest.mark.parametrize(
    ("spec", "ranks", "switches", "links", "lowest", "highest"),
    [
        ("ring:ranks=8", 8, 0, 16, 2, 2), ("line:ranks=5", 5, 0, 8, 1, 2), ("mesh:dims=3x4", 12, 0, 34, 2, 4),
        ("torus:dims=4x4", 16, 0, 64, 4, 4), ("torus:dims=2x4", 8, 0, 24, 3, 3), ("torus:dims=3x4x5", 60, 0, 360, 6, 6),
        ("torus:dims=8", 8, 0, 16, 2, 2), ("hypercube:ranks=16", 16, 0, 64, 4, 4), ("full:ranks=6", 6, 0, 30, 5, 5),
        ("star:ranks=8", 8, 1, 16, 1, 8), ("ring:ranks=5,routers=true", 5, 5, 20, 1, 3),
        ("tree:fanouts=4x8", 32, 5, 72, 1, 9), ("tree:fanouts=2x(3+5)", 8, 3, 20, 1, 6),
        ("tree:fanouts=3x(4+2+0)", 7, 3, 18, 1, 5), ("z52", 8, 0, 16, 2, 2), ("z52-pcie", 8, 0, 28, 3, 5),
        ("mi250", 16, 0, 56, 3, 4), ("mi250:gcds=8", 8, 0, 24, 3, 3), ("mi300x", 8, 0, 56, 7, 7),
        ("mi350x", 8, 0, 56, 7, 7),
        ("dgx2", 16, 2, 34, 1, 9), ("dgx-a100", 8, 1, 16, 1, 8), ("pcie8", 8, 6, 26, 1, 3),
        ("dragonfly", 72, 36, 2 * (72 + 9 * 6 + 36), 1, 7), ("delta:nodes=4", 16, 1, 80, 4, 16),
        ("ss24", 24, 1, 48, 1, 24), ("ss32", 32, 1, 64, 1, 32), ("sym384", 384, 17, 800, 1, 25),
        ("sym512", 512, 17, 1056, 1, 33), ("asy384", 384, 17, 800, 1, 33), ("cdc384", 384, 18, 802, 1, 33),
    ],
)  # fmt: skip
def test_counts_and_degrees(spec: str, ranks: int, switches: int, links: int, lowest: int, highest: int) -> None:
    machine = topology(spec)
    assert (machine.ranks, machine.switches, machine.links) == (ranks, switches, links)
    found = degrees(machine)
    assert (found[0], found[-1]) == (lowest, highest)


@settings(max_examples=examples(40))
@given(st.lists(st.integers(2, 4), min_size=1, max_size=4), st.booleans())
def test_grids_join_neighbours_along_each_axis(sizes: list[int], closed: bool) -> None:
    family = "torus" if closed else "mesh"
    machine = topology(f"{family}:dims={'x'.join(map(str, sizes))}")
    at = np.array(np.unravel_index(np.arange(machine.ranks), sizes)).T
    apart = np.abs(at[:, None] - at[None])
    ring = np.minimum(apart, np.array(sizes) - apart) if closed else apart
    expected = {(a, b) for a, b in np.argwhere(ring.sum(axis=2) == 1).tolist()}
    assert set(pairs(machine)) == expected
    assert machine.links == len(expected)


def test_two_machines_that_are_a_third() -> None:
    def key(spec: str) -> str:
        return symmetry.canonical(topology(spec))[1]

    assert key("torus:dims=4x4") == key("hypercube:ranks=16")
    assert key("torus:dims=9") == key("ring:ranks=9")
    assert key("mesh:dims=6") == key("line:ranks=6")
    assert key("torus:dims=2x2") == key("ring:ranks=4")
    assert key("tree:fanouts=6,bandwidth=25GB/s") == key("star:ranks=6")


def test_gentree_networks_have_the_parameters_of_its_table_5() -> None:
    machine = topology("sym384")
    speeds = {kind.kind: kind.bandwidth for kind in machine.types}
    assert speeds == {"ethernet": 4 / Fraction("6.4e-9"), "trunk": 4 / Fraction("6.4e-10")}

    def delay(machine: Topology, a: int, b: int) -> float:
        path = switch_path(machine, a, b)
        assert path is not None
        return sum(machine.types[machine.link_type[link]].latency for link in path)

    alpha = 6.58e-3
    assert delay(machine, 0, 1) == pytest.approx(3 * alpha)
    assert delay(machine, 0, 383) == pytest.approx(5 * alpha)
    assert delay(topology("cdc384"), 0, 383) == pytest.approx(4 * alpha + 3e-2)
    below = Counter(int(b) for a, b in pairs(topology("asy384")) if a < 384)
    assert sorted(below.values()) == [16] * 8 + [32] * 8


def test_the_z52_ring_and_its_shared_pcie() -> None:
    whole, ring = topology("z52-pcie"), topology("z52")
    xgmi = {
        (int(a), int(b))
        for a, b, t in zip(whole.link_src, whole.link_dst, whole.link_type, strict=True)
        if whole.types[t].kind == "xgmi"
    }
    islands = [{0, 2, 3, 5}, {1, 4, 6, 7}]  # three GPUs of a socket and one of the other; 2 and 3 not linked
    assert all({a, b} <= islands[0] or {a, b} <= islands[1] for a, b in xgmi)
    assert (2, 3) not in xgmi
    assert [{int(whole.link_src[i]) for i in limit.links} for limit in whole.limits] == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert all(len(limit.links) == 6 and limit.bandwidth == 27 * GB for limit in whole.limits)
    assert set(pairs(ring)) <= set(pairs(whole))


@pytest.mark.parametrize(
    ("spec", "each_way"),
    [("dgx2", 150), ("dgx-a100", 300), ("hgx-h100", 450), ("hgx-h200", 450),
     ("hgx-b200", 900), ("gb200-nvl72", 900), ("gaudi3", 525), ("tpu-v4", 300), ("tpu-v5p", 600), ("trn2", 512),
     ("tpu-v6e:dims=16x16", 400), ("trn2:ultra=true", 640), ("mi300x", 448), ("mi350x", 537.6), ("mi250", 350),
     ("dgx1v", 150),
     ("dgx1p", 80)],
)  # fmt: skip
def test_what_a_gpu_can_send(spec: str, each_way: float) -> None:
    machine = topology(spec)
    for rank in range(machine.ranks):
        out = sum(machine.bandwidth(int(link)) for link in np.flatnonzero(machine.link_src == rank))
        assert out == each_way * GB


def test_slices_of_tpus_close_where_theirs_do() -> None:
    def closed(spec: str) -> bool:
        machine = topology(spec)
        return len({int(n) for n in np.bincount(machine.link_src)}) == 1

    shapes = {"v4:dims=4x4x4": True, "v4:dims=4x4x8": True, "v4:dims=2x4x4": False, "v5p:dims=4x4x6": False}
    shapes |= {"v6e:dims=16x16": True, "v6e:dims=8x8": False, "v6e:dims=8x16": False, "v4:dims=4x4": False}
    assert {shape: closed(f"tpu-{shape}") for shape in shapes} == shapes
    assert topology("tpu-v6e:dims=8x16").links == 4 * 8 * 16 - 2 * 16  # rings along 16, lines along 8
    for spec in ("tpu-v6e:dims=2x2x2", "tpu-v6e:dims=32x2", "tpu-v4:dims=2x2x2x2"):
        with pytest.raises(Invalid, match="at most"):
            topology(spec)


@pytest.mark.parametrize(
    ("instance", "gigabits"), [("p4d", 400), ("p5", 3200), ("p5en", 3200), ("p6-b200", 3200), ("trn2", 3200)]
)
def test_what_an_instance_of_ec2_can_send(instance: str, gigabits: int) -> None:
    machine = topology(f"ec2:instance={instance},instances=3")
    first = [n for n in range(machine.nodes) if machine.places[n].startswith("host0/")]
    cards = [i for i in np.flatnonzero(np.isin(machine.link_src, first)) if machine.link_dst[i] == machine.nodes - 1]
    shared = [limit.bandwidth for limit in machine.limits if set(limit.links) & set(cards)]
    assert 8 * (sum(shared) or sum(machine.bandwidth(int(i)) for i in cards)) == gigabits * GB


# ---- clusters ----


def test_boxes_of_several_kinds_take_turns() -> None:
    """Each with the cards that it is sold with; "+" also parts options, which have a key, and occurs in fan-outs."""
    machine = topology("cluster:box=dgx1v+dgx-a100,boxes=3")
    assert (machine.ranks, machine.name) == (24, "cluster:box=dgx1v+dgx-a100,boxes=3,fabric=switch")
    whole = [topology(f"cluster:box={box},boxes=2") for box in ("dgx1v", "dgx-a100")]
    assert len(machine.limits) == len(whole[0].limits)  # two DGX-1, whose GPUs share cards, as in a cluster of them
    assert {kind for each in whole for kind in each.types} == {*machine.types}
    for name in ("torus:dims=2x4+bandwidth=50GB/s", "tree:fanouts=2x(3+5)+uplink=50GB/s+100GB/s"):
        assert topology(f"cluster:box={name},boxes=2").ranks == 16
    for wrong in ("cluster:box=dgx1v+dgx-a100,fabric=rail", "cluster:box=dgx1v+dgx2+z52,boxes=2"):
        with pytest.raises(Invalid, match=r"boxes of several kinds need fabric=switch and boxes=\d or more"):
            topology(wrong)
    with pytest.raises(Invalid, match="unknown topology 'dgx9'"):
        topology("cluster:box=dgx1v+dgx9")


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 3))
def test_a_dragonfly_joins_every_two_groups_once(groups: int, routers: int, hosts: int) -> None:
    if groups * routers * hosts < 2:
        return
    machine = topology(f"dragonfly:groups={groups},routers={routers},hosts={hosts}")
    across: Counter[tuple[int, int]] = Counter()
    out = Counter(dict.fromkeys(range(machine.ranks, machine.nodes), 0))
    for a, b, t in zip(machine.link_src.tolist(), machine.link_dst.tolist(), machine.link_type.tolist(), strict=True):
        if machine.types[t].kind == "global":
            across[(a - machine.ranks) // routers, (b - machine.ranks) // routers] += 1
            out[a] += 1
    assert across == {(g, h): 1 for g in range(groups) for h in range(groups) if g != h}
    assert max(out.values()) <= math.ceil((groups - 1) / routers)


# ---- exact bounds known from papers and textbooks ----


@pytest.mark.parametrize(("spec", "kind", "value"), [row[:3] for row in listed("known-bounds")])
def test_known_bounds(spec: str, kind: str, value: str) -> None:
    assert inverse(spec, kind) == Fraction(value)


# ---- wrong options ----


@pytest.mark.parametrize(("spec", "says"), listed("refused-machines"))
def test_wrong_options_are_one_clear_line(spec: str, says: str) -> None:
    with pytest.raises(AntiphonError) as caught:
        topology(spec)
    assert isinstance(caught.value, Invalid)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900


@pytest.mark.parametrize("options", [{"dims": True}, {"dims": 2.5}, {"ranks": True}, {"dims": [4, 4]}])
def test_wrong_types_from_python(options: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        table("topology")["torus"].load()(**options)


def test_huge_machines_are_refused_before_memory_is_used() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for spec in ("ring:ranks=999999999", "torus:dims=99999x99999", "tree:fanouts=999999x999999", "star:ranks=99999999",
                 "full:ranks=999999", "cluster:boxes=100000,box=dgx2", "dragonfly:groups=9000,routers=9000,hosts=9000",
                 "hypercube:dims=20,routers=true", "full:ranks=1048576,routers=true"):  # fmt: skip
        with pytest.raises(Invalid, match=r"at most|from"):
            topology(spec)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


# ---- large ----


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("torus:dims=8x8x8", "511/6"), ("hypercube:ranks=512", "511/9"), ("torus:dims=16x32", "511/4"),
        ("ring:ranks=512", "511/2"), ("cluster:box=dgx-a100,boxes=64,fabric=fat-tree", "63"), ("sym384", "383"),
        ("cluster:box=dgx1v,boxes=64", None), ("sym512", "511"),
        ("asy384", "383"), ("cdc384", "383"), ("delta:nodes=128", None),
        ("dragonfly:groups=16,routers=8,hosts=4", None), ("cluster:box=mi250,boxes=32,fabric=rail", None),
    ],
)  # fmt: skip
def test_large_machines(spec: str, value: str | None) -> None:
    machine = sound(spec)
    assert 256 <= machine.ranks <= 512
    found = bound(machine, Collective("allgather", machine.ranks)).inverse
    assert found > 0 if value is None else found == Fraction(value)
