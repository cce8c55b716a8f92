"""What Blink reports of its trees: counts, Figure 14, the trees of 8 GPUs, and the simulation of Figure 22(b)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from antiphon.core.loads import timeline
from antiphon.core.symmetry import canonical
from antiphon.core.topology import Topology
from antiphon.planners.rings.edge_disjoint import CyclePacking
from antiphon.planners.trees.blink import blink
from antiphon.planners.trees.both_ways import directed, undirected
from antiphon.planners.trees.fewest import Fewest, fewest_broadcast, fewest_spanning
from antiphon.planners.trees.mwu import Blink, blink_broadcast
from antiphon.planners.trees.trees import trees as exact
from antiphon.reproduce import blink_servers as cluster
from antiphon.reproduce.blink_allocations import Allocation, allocation, unique
from antiphon.reproduce.blink_made import Made, Row, judged, measured_plan, row, weighed
from antiphon.reproduce.blink_rates import optimum, ring_rate, rings, speedup, spread, why
from antiphon.reproduce.gentree_made import NEAR
from antiphon.topologies import topology

MACHINES = ("dgx1v", "dgx1p")
KINDS = ("broadcast", "allreduce")
UNIQUE = {"dgx1v": 46, "dgx1p": 14}  # 5.2
THRESHOLD = Fraction(1, 20)  # 3.2.1
LEAST = 1 - THRESHOLD
# machine, GPUs, rings that NVLinks make (one used both ways is two), pairs of GPUs whose links are in none, where
RINGS = (
    ("dgx1p", "013", 2, 0, "Figure 2(a)"),
    ("dgx1p", "014", 0, None, "Figure 2(b)"),
    ("dgx1p", "013457", 2, 3, "Figure 4"),
    ("dgx1v", "1456", 0, None, "5.2.1"),
    ("dgx1v", "2367", 2, None, "5.2.1"),
)
EPSILONS = (0.2, 0.1, 0.05, 0.02)  # coarser ones leave too few trees to choose six from: 11 at 0.3, 4 at 0.5
GIGABITS = (40, 100, 200, 400, 600, 800)
KNEE = 300  # Gbit/s, "~300Gbps" (5.4)
KEEPS_UP = Fraction(9, 10)  # of the network: "keeps up with it"
Known = dict[tuple[str, str], list[Made]]


# ---- counts ----


def counts() -> Iterator[Row]:
    """Allocations, rings and trees that the text counts."""
    yield from _allocations()
    yield from _rings()
    yield from _weights()
    yield _chunks()


def _allocations() -> Iterator[Row]:
    for name in MACHINES:
        found = unique(topology(name))
        sizes = {str(size): sum(len(one.gpus) == size for one in found) for size in range(3, 9)}
        yield row(
            f"{name}, unique allocations", {"allocations": UNIQUE[name]},
            {"allocations": len(found), "by_size": sizes}, len(found) == UNIQUE[name],
            note=f"5.2: up to renumbering, of {sum(one.alike for one in found)} sets of 3 to 8 GPUs that NVLinks join",
            engine="canonical forms",
            proof=[f"{one.name}: {one.alike} such" for one in found],
        )  # fmt: skip
    box = topology("dgx1v")
    one, other = (canonical(allocation(box, gpus).machine)[1] for gpus in (range(4), range(4, 8)))
    yield row(
        "dgx1v 0,1,2,3 and 4,5,6,7", {"alike": True}, {"alike": one == other}, one == other,
        note="2.1: in one bin", engine="canonical forms",
    )  # fmt: skip


def _rings() -> Iterator[Row]:
    for name, gpus, count, idle, where in RINGS:
        one = allocation(topology(name), map(int, gpus))
        found = rings(one.machine)
        ours = {"rings": len(found.cycles), "unused": len(_unused(one.machine, found))}
        published = {"rings": count, "unused": idle} if idle is not None else {"rings": count}
        rate, _ = optimum(one.machine, "broadcast")
        yield row(
            f"{name} {one.name}, rings", published, ours if idle is not None else {"rings": len(found.cycles)},
            found.optimal and published.items() <= ours.items(),
            note=f"{where}; a broadcast over trees has rate {rate}", engine="packing of rings",
        )  # fmt: skip
    box = topology("dgx1p")
    count = len(rings(box).cycles)
    rate = ring_rate("allreduce", count, box.ranks)
    yield row(
        "dgx1p, allreduce over rings", {"rings": 4, "rate": "32/14"}, {"rings": count, "rate": str(rate)},
        (count, rate) == (4, Fraction(32, 14)), note="5.1: each ring at 8/14 of a link", engine="packing of rings",
    )  # fmt: skip


def _unused(machine: Topology, found: CyclePacking) -> set[frozenset[int]]:
    """Pairs of ranks whose links no ring uses."""
    used = {frozenset(pair) for ring in found.cycles for pair in zip(ring, ring[1:] + ring[:1], strict=True)}
    return set(map(frozenset, zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))) - used


def _weights() -> Iterator[Row]:
    """3.2.1: how many trees the multiplicative weights give is a draw; what the integer program leaves is not."""
    box = topology("dgx1v")
    machine = directed(box, unit=box.unit)
    found = {epsilon: blink_broadcast(machine, 0, epsilon=epsilon) for epsilon in EPSILONS}
    usual = found[0.05]
    near = all(one.packed_rate >= (1 - Fraction(str(eps))) * one.optimum for eps, one in found.items())
    many = ", ".join(f"{one.packed} at {epsilon}" for epsilon, one in found.items())
    yield row(
        "dgx1v broadcast, trees before minimising", {"trees": 181}, {"trees": usual.packed},
        judged(usual.packed == 181, near and usual.packed > len(usual.trees)), note="3.2: many more than are needed",
        deviation=f"a draw, by epsilon and by which of equal trees comes first: {many}", engine="blink",
    )  # fmt: skip
    each = _each(usual)
    ours = {"trees": len(usual.trees), "each": each, "megabytes": 1000 // len(usual.trees)}
    published = {"trees": 6, "each": "1", "megabytes": 166}
    same = all(len(one.trees) == 6 and _each(one) == "1" for one in found.values())
    yield row(
        "dgx1v broadcast, trees after minimising", published, ours, ours == published and same,
        note=f"3.2.1; megabytes of 1000 for each; {'' if same else 'not '}the same for all these epsilons",
        engine="blink",
    )  # fmt: skip


def _each(found: Blink) -> str:
    """The rate of every tree, in links."""
    unit = topology("dgx1v").unit
    return ", ".join(sorted({str(tree.rate / unit) for tree in found.trees}))


def _chunks() -> Row:
    chain = topology("line:ranks=4")
    whole = measured_plan(exact, chain, "broadcast").schedule
    one, two = (timeline(replace(whole, pieces=pieces), chain).total for pieces in (1, 2))
    return row(
        "four GPUs in a row, two pieces", {"time": "2/3"}, {"time": str(two / one)}, two / one == Fraction(2, 3),
        note="4.2.1: less by a third", engine="trees",
    )  # fmt: skip


# ---- Figure 14 ----


def figure14() -> Iterator[Row]:
    """Theoretical speedups of packed trees over rings. The paper draws boxes without figures: only its words are
    compared."""
    everything: list[tuple[Fraction, str]] = []
    for name in MACHINES:
        found = unique(topology(name))
        for kind in KINDS:
            gains = [speedup(one.machine, kind) for one in found]
            everything += [(gain, f"{name} {one.name} {kind}") for gain, one in zip(gains, found, strict=True)]
            none = sum(not rings(one.machine).cycles for one in found)
            proof = [_gain(one, kind, gain) for one, gain in zip(found, gains, strict=True)]
            yield row(
                f"{name} {kind}", {"min": 1}, spread(gains), min(gains) == 1,
                note=f"5.1: at least as fast; {len(found)} allocations, {none} of them without a ring",
                engine="cuts, packing of rings", proof=proof,
            )  # fmt: skip
    most = max(gain for gain, _ in everything)
    where = [name for gain, name in everything if gain == most]
    yield row(
        "both, the greatest", {"max": 6}, {"max": float(most)}, round(most) == 6,
        deviation=f"{float(most):g} for {'; '.join(where)}", note="5.1: up to 6 times", engine="cuts, packing of rings",
        proof=[f"{name}: {gain}" for gain, name in everything if gain > 6],
    )  # fmt: skip


def _gain(one: Allocation, kind: str, gain: Fraction) -> str:
    rate, limit = optimum(one.machine, kind)
    count = len(rings(one.machine).cycles)
    over = f"{count} rings" if count else "PCIe"
    slow = ring_rate(kind, count, one.machine.ranks)
    return f"{one.name}: {gain} = {rate} ({why(limit, one.gpus)}) over {slow} ({over})"


# ---- trees ----


def trees() -> Iterator[Row]:
    """The 8-GPU machines, by `blink` and exactly; then all allocations; then a DGX-2."""
    known: Known = {}
    for name in MACHINES:
        for kind in KINDS:
            known[name, kind] = []
            yield from of_machine(name, kind, known[name, kind])
    for name in MACHINES:
        found = unique(topology(name))
        for kind in KINDS:
            yield of_allocations(name, kind, found, known[name, kind])
    dgx2 = measured_plan(blink, topology("dgx2"), "allreduce")
    published = {"trees": 16, "hops": 1}
    ours = {"trees": dgx2.count, "hops": dgx2.schedule.steps // 2}
    yield row(
        "dgx2 allreduce, blink", published, ours, ours == published, note="3.5: every GPU is the root of one",
        engine="blink",
    )  # fmt: skip


def of_machine(name: str, kind: str, known: list[Made]) -> Iterator[Row]:
    """Blink's method; exactly; and the fewest trees if 5 % may be given up. The first two are added to `known`."""
    box = topology(name)
    best, limit = optimum(box, kind)
    proof = [f"rate <= {best}: {why(limit, range(box.ranks))}"]
    six = {"trees": 6, "rate": "6"} if (name, kind) == ("dgx1v", "broadcast") else None
    near = measured_plan(blink, box, kind)
    ours = {"trees": near.count, "rate": str(near.rate), "of_optimum": _share(near.rate / best)}
    yield row(
        f"{name} {kind}, blink", six or {"of_optimum": _share(LEAST)}, ours,
        LEAST <= near.rate / best <= 1 and (six is None or six.items() <= ours.items()),
        note=f"optimum {best}; {near.told}", engine="blink", proof=proof,
    )  # fmt: skip
    fast = measured_plan(exact, box, kind)
    ours = {"trees": fast.count, "rate": str(fast.rate)}
    other = f"trees of weights {fast.weights} reach it; 6 is how many of weight 1 are needed"
    yield row(
        f"{name} {kind}, fewest at the optimum", six, ours, fast.rate == best and fast.proved,
        deviation=other if six and ours != six else None, note=f"{fast.told}; weights {fast.weights}", engine="trees",
        proof=proof,
    )  # fmt: skip
    known += [fast, near]
    few = _few(box, kind)
    rate = few.rate / box.unit
    weights = weighed(tree.rate / box.unit for tree in few.trees)
    yield row(
        f"{name} {kind}, fewest within 5 %", None, {"trees": len(few.trees), "rate": str(rate)},
        LEAST <= rate / best <= 1 and few.proved, note=f"{few.describe()}; weights {weights}", engine="trees",
        proof=proof,
    )  # fmt: skip


def _few(box: Topology, kind: str) -> Fewest:
    if kind == "broadcast":
        return fewest_broadcast(directed(box), 0, loss=THRESHOLD)
    return fewest_spanning(undirected(box), loss=THRESHOLD)


def of_allocations(name: str, kind: str, found: Sequence[Allocation], known: Sequence[Made]) -> Row:
    """Every allocation: exactly at the optimum, and how near Blink's method comes. `known`: these two, of all GPUs."""
    shares, proof, reached, whole = [], [], 0, 0
    for one in found:
        best, limit = optimum(one.machine, kind)
        every = len(one.gpus) == topology(name).ranks
        fast, near = known if every else (measured_plan(planner, one.machine, kind) for planner in (exact, blink))
        reached += fast.rate == best
        shares.append(near.rate / best)
        whole += near.told.endswith("weights 0 or 1")
        proof.append(
            f"{one.name}: rate {fast.rate}, trees {fast.count}; <= {best}: {why(limit, one.gpus)}; blink: rate "
            f"{near.rate}, trees {near.count}"
        )
    least = min(shares)
    return row(
        f"{name} {kind}, all allocations", {"blink_of_optimum": _share(LEAST)},
        {"at_optimum": reached, "of": len(found), "blink_of_optimum": _share(least)},
        reached == len(found) and LEAST <= least <= max(shares) <= 1,
        note=f"blink: weights of 0 or 1 do for {whole} of {len(found)}", engine="trees, blink",
        proof=proof,
    )  # fmt: skip


def _share(value: Fraction) -> float:
    return round(float(value), 4)


# ---- Figure 22(b) ----


def figure22b() -> Iterator[Row]:
    """100 MB on 3 and 5 GPUs of two servers; what is assumed is said in `blink_servers`."""
    for gigabits in GIGABITS:
        found = cluster.point(gigabits)
        says = "network" if gigabits < KNEE else "NVLink"
        ours = {"limit": found.limit, "bytes_per_second": found.speed, "rings_bytes_per_second": _rings_at(gigabits)}
        yield row(
            f"network of {gigabits} Gbit/s", {"limit": says}, ours,
            found.limit == says and (says == "NVLink" or found.speed >= KEEPS_UP * found.network),
            note=f"{found.speed / float(found.rate):.3g} of what endless data get", engine="blink",
        )  # fmt: skip
    top = cluster.point(cluster.PLENTY).rate
    nominal = cluster.point(cluster.PLENTY, cluster.LINK).rate
    met = cluster.point(top / cluster.GIGABIT)
    pairs = ", ".join(f"{count} have {links}" for links, count in sorted(cluster.knees().items()))
    yield row(
        "network at which NVLinks are the limit", {"bytes_per_second": float(KNEE * cluster.GIGABIT)},
        {"bytes_per_second": float(top)}, abs(top / cluster.GIGABIT - KNEE) <= NEAR * KNEE and met.rate == top,
        note=f"5.4: ~{KNEE} Gbit/s, here {_gigabits(top)} for GPUs and a speed of NVLinks that are assumed: the paper "
        f"names neither. {_gigabits(nominal)} at their nominal speed. The slower server's trees have a rate of 2 links "
        f"here; of all pairs of a 3- and a 5-GPU allocation {pairs}",
        engine="blink",
    )  # fmt: skip


def _rings_at(gigabits: int) -> float:
    return float(cluster.rings(gigabits))


def _gigabits(speed: Fraction) -> str:
    return f"{float(speed / cluster.GIGABIT):g}"
