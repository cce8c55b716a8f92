"""Reproduce Blink's results on trees: counts, Figure 14, the trees of 8 GPUs, and the simulation of Figure 22(b).

Blink (Wang et al., MLSys 2020) broadcasts and reduces along packed spanning trees, where NCCL uses rings. Its machines
are DGX-1 boxes, of which a job gets some GPUs (an allocation). Each function yields rows: the published figure, ours,
and whether they agree. Ours come from the planners `blink` (the paper's method: many trees by multiplicative weights,
then few by an integer program) and `trees` (exact), from rings packed into the links (`pack_rings`), and from lower
bounds. Rates are in unit links: a rate of 6 moves 6 times what one NVLink carries. Numbers such as 5.2 are sections.
The arguments of `row` are name, published figures, ours, and whether they agree; those of `agreement`, whether figures
agree, and whether at least the trend does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from antiphon.core.loads import timeline
from antiphon.core.symmetry import canonical
from antiphon.core.topology import Topology
from antiphon.planners.rings.edge_disjoint import CyclePacking
from antiphon.planners.trees.blink import blink
from antiphon.planners.trees.blink_packing import Blink, blink_broadcast
from antiphon.planners.trees.direct_links import directed_machine, undirected_machine
from antiphon.planners.trees.fewest import Fewest, fewest_broadcast, fewest_spanning
from antiphon.planners.trees.trees import trees as exact
from antiphon.reproduce import blink_servers as cluster
from antiphon.reproduce.blink_allocations import Allocation, allocation, unique_allocations
from antiphon.reproduce.blink_rates import (
    RatedPlan,
    explain_bound,
    join_rates,
    pack_rings,
    plan_and_rate,
    rate_bound,
    ring_rate,
    speedup,
    summarize,
)
from antiphon.reproduce.rows import Row, agreement, is_near, row
from antiphon.topologies import topology

BOXES = ("dgx1v", "dgx1p")
KINDS = ("broadcast", "allreduce")
UNIQUE_ALLOCATIONS = {"dgx1v": 46, "dgx1p": 14}  # allocations up to renumbering (5.2)
RATE_LOSS = Fraction(1, 20)  # share of the optimal rate that Blink gives up for fewer trees (3.2.1)
MIN_SHARE = 1 - RATE_LOSS  # share of the optimal rate that Blink must reach
# machine, GPUs, number of rings of NVLinks (one used both ways counts twice), number of pairs of GPUs whose NVLinks are
# in no ring (None: not stated), where the paper states them
RING_CASES = (
    ("dgx1p", "013", 2, 0, "Figure 2(a)"),
    ("dgx1p", "014", 0, None, "Figure 2(b)"),
    ("dgx1p", "013457", 2, 3, "Figure 4"),
    ("dgx1v", "1456", 0, None, "5.2.1"),
    ("dgx1v", "2367", 2, None, "5.2.1"),
)
EPSILONS = (0.2, 0.1, 0.05, 0.02)  # precision of multiplicative weights; at 0.3 only 11 trees are left, at 0.5 4
GIGABITS = (40, 100, 200, 400, 600, 800)  # networks of Figure 22(b), in Gbit/s
KNEE_GBITS = 300  # Gbit/s from which NVLinks are the bottleneck: "~300Gbps" (5.4)
MIN_NETWORK_SHARE = Fraction(9, 10)  # share of the network's bandwidth from which a plan "keeps up with it"


# ---- counts ----


def counts() -> Iterator[Row]:
    """Yield the numbers of allocations, rings and trees that the text states."""
    yield from _allocation_rows()
    yield from _ring_rows()
    yield from _weight_rows()
    yield _chunk_row()


def _allocation_rows() -> Iterator[Row]:
    """Count allocations up to renumbering, and compare two that the paper calls equal."""
    for name in BOXES:
        allocations = unique_allocations(topology(name))
        sizes = {str(size): sum(len(each.gpus) == size for each in allocations) for size in range(3, 9)}
        sets = sum(each.alike for each in allocations)
        yield row(
            f"{name}, unique allocations", {"allocations": UNIQUE_ALLOCATIONS[name]},
            {"allocations": len(allocations), "by_size": sizes}, len(allocations) == UNIQUE_ALLOCATIONS[name],
            note=f"5.2: up to renumbering, of {sets} sets of 3 to 8 GPUs that NVLinks join",
            engine="canonical forms",
            proof=[f"{each.name}: {each.alike} such" for each in allocations],
        )  # fmt: skip
    box = topology("dgx1v")
    first, second = (canonical(allocation(box, gpus).machine).key for gpus in (range(4), range(4, 8)))
    yield row(
        "dgx1v 0,1,2,3 and 4,5,6,7", {"alike": True}, {"alike": first == second}, first == second,
        note="2.1: in one bin", engine="canonical forms",
    )  # fmt: skip


def _ring_rows() -> Iterator[Row]:
    """Count rings in the allocations of the paper's figures."""
    for name, gpus, count, unused_pairs, where in RING_CASES:
        job = allocation(topology(name), map(int, gpus))
        packing = pack_rings(job.machine)
        ours = {"rings": len(packing.cycles), "unused": len(_unused_links(job.machine, packing))}
        published = {"rings": count, "unused": unused_pairs} if unused_pairs is not None else {"rings": count}
        rate, _ = rate_bound(job.machine, "broadcast")
        yield row(
            f"{name} {job.name}, rings", published,
            ours if unused_pairs is not None else {"rings": len(packing.cycles)},
            packing.optimal and published.items() <= ours.items(),
            note=f"{where}; a broadcast over trees has rate {rate}", engine="packing of rings",
        )  # fmt: skip
    box = topology("dgx1p")
    count = len(pack_rings(box).cycles)
    rate = ring_rate("allreduce", count, box.ranks)
    yield row(
        "dgx1p, allreduce over rings", {"rings": 4, "rate": "32/14"}, {"rings": count, "rate": str(rate)},
        (count, rate) == (4, Fraction(32, 14)), note="5.1: each ring at 8/14 of a link", engine="packing of rings",
    )  # fmt: skip


def _unused_links(machine: Topology, packing: CyclePacking) -> set[frozenset[int]]:
    """Return the pairs of ranks whose links no ring uses."""
    used_pairs = {frozenset(pair) for ring in packing.cycles for pair in zip(ring, ring[1:] + ring[:1], strict=True)}
    return set(map(frozenset, zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))) - used_pairs


def _weight_rows() -> Iterator[Row]:
    """Count trees before and after minimising (3.2.1).

    Their number by multiplicative weights depends on how ties are broken; after the integer program it does not.
    """
    box = topology("dgx1v")
    # `unit`: the integer program counts capacities in a number that also divides the rate of one link
    machine = directed_machine(box, unit=box.unit)
    packings = {epsilon: blink_broadcast(machine, root=0, epsilon=epsilon) for epsilon in EPSILONS}
    default_packing = packings[0.05]  # `packed`: number of trees before minimising; `trees`: those after it
    is_near_optimum = all(
        packing.packed_rate >= (1 - Fraction(str(epsilon))) * packing.optimum for epsilon, packing in packings.items()
    )
    # "a draw" in the row: the number before minimising is a matter of chance
    counts = ", ".join(f"{packing.packed} at {epsilon}" for epsilon, packing in packings.items())
    yield row(
        "dgx1v broadcast, trees before minimising", {"trees": 181}, {"trees": default_packing.packed},
        agreement(
            default_packing.packed == 181, is_near_optimum and default_packing.packed > len(default_packing.trees)
        ), note="3.2: many more than are needed",
        deviation=f"a draw, by epsilon and by which of equal trees comes first: {counts}", engine="blink",
    )  # fmt: skip
    ours = {
        "trees": len(default_packing.trees),
        "each": _tree_rates(default_packing),
        "megabytes": 1000 // len(default_packing.trees),
    }
    published = {"trees": 6, "each": "1", "megabytes": 166}
    is_same = all(len(packing.trees) == 6 and _tree_rates(packing) == "1" for packing in packings.values())
    yield row(
        "dgx1v broadcast, trees after minimising", published, ours, ours == published and is_same,
        note=f"3.2.1; megabytes of 1000 for each; {'' if is_same else 'not '}the same for all these epsilons",
        engine="blink",
    )  # fmt: skip


def _tree_rates(packing: Blink) -> str:
    """Return the distinct rates of the trees, in multiples of the rate of one link, as text."""
    unit = topology("dgx1v").unit
    return ", ".join(sorted({str(tree.rate / unit) for tree in packing.trees}))


def _chunk_row() -> Row:
    """Compare the time of a chain in two pieces with that in one (4.2.1): 4 half steps instead of 3 whole ones."""
    chain = topology("line:ranks=4")
    chain_plan = plan_and_rate(exact, chain, "broadcast").schedule
    unpipelined, pipelined = (timeline(replace(chain_plan, pieces=pieces), chain).total for pieces in (1, 2))
    ratio = pipelined / unpipelined
    return row(
        "four GPUs in a row, two pieces", {"time": "2/3"}, {"time": str(ratio)}, ratio == Fraction(2, 3),
        note="4.2.1: less by a third", engine="trees",
    )  # fmt: skip


# ---- Figure 14 ----


def figure14() -> Iterator[Row]:
    """Yield theoretical speedups of packed trees over rings.

    The paper's figure is a box plot without numbers, so only its text is compared.
    """
    named_ratios: list[tuple[Fraction, str]] = []
    for name in BOXES:
        allocations = unique_allocations(topology(name))
        for kind in KINDS:
            speedups = [speedup(allocation.machine, kind) for allocation in allocations]
            named_ratios += [
                (ratio, f"{name} {allocation.name} {kind}")
                for ratio, allocation in zip(speedups, allocations, strict=True)
            ]
            without_rings = sum(not pack_rings(allocation.machine).cycles for allocation in allocations)
            proof = [
                _explain_gain(allocation, kind, ratio) for allocation, ratio in zip(allocations, speedups, strict=True)
            ]
            yield row(
                f"{name} {kind}", {"min": 1}, summarize(speedups), min(speedups) == 1,
                note=f"5.1: at least as fast; {len(allocations)} allocations, {without_rings} of them without a ring",
                engine="cuts, packing of rings", proof=proof,
            )  # fmt: skip
    greatest = max(ratio for ratio, _ in named_ratios)
    greatest_names = [name for ratio, name in named_ratios if ratio == greatest]
    yield row(
        "both, the greatest", {"max": 6}, {"max": float(greatest)}, round(greatest) == 6,
        deviation=f"{float(greatest):g} for {'; '.join(greatest_names)}", note="5.1: up to 6 times",
        engine="cuts, packing of rings",
        proof=[f"{name}: {ratio}" for ratio, name in named_ratios if ratio > 6],
    )  # fmt: skip


def _explain_gain(allocation: Allocation, kind: str, ratio: Fraction) -> str:
    """Return the proof of a speedup: the rates of trees and rings, with the bound's witness."""
    rate, limit = rate_bound(allocation.machine, kind)
    count = len(pack_rings(allocation.machine).cycles)
    baseline = f"{count} rings" if count else "PCIe"
    baseline_rate = ring_rate(kind, count, allocation.machine.ranks)
    witness = explain_bound(limit, allocation.gpus)
    return f"{allocation.name}: {ratio} = {rate} ({witness}) over {baseline_rate} ({baseline})"


# ---- trees ----


def trees() -> Iterator[Row]:
    """Yield trees of the 8-GPU boxes, by `blink` and by `trees`; then of all allocations; then of a DGX-2."""
    full_plans: dict[tuple[str, str], list[RatedPlan]] = {}
    for name in BOXES:
        for kind in KINDS:
            full_plans[name, kind] = []
            yield from machine_rows(name, kind, full_plans[name, kind])
    for name in BOXES:
        allocations = unique_allocations(topology(name))
        for kind in KINDS:
            yield allocations_row(name, kind, allocations, full_plans[name, kind])
    dgx2 = plan_and_rate(blink, topology("dgx2"), "allreduce")
    # steps: each tree reduces to its root, then broadcasts from it
    published = {"trees": 16, "hops": 1}
    ours = {"trees": dgx2.count, "hops": dgx2.schedule.steps // 2}
    yield row(
        "dgx2 allreduce, blink", published, ours, ours == published, note="3.5: every GPU is the root of one",
        engine="blink",
    )  # fmt: skip


def machine_rows(name: str, kind: str, full_plans: list[RatedPlan]) -> Iterator[Row]:
    """Yield three rows for a box: planner `blink`, planner `trees`, and the fewest trees within 5 % of the optimum.

    The plans of the first two are added to `full_plans`, the exact one first.
    """
    box = topology(name)
    optimum, limit = rate_bound(box, kind)
    proof = [f"rate <= {optimum}: {explain_bound(limit, range(box.ranks))}"]
    published = {"trees": 6, "rate": "6"} if (name, kind) == ("dgx1v", "broadcast") else None
    blink_plan = plan_and_rate(blink, box, kind)
    share = blink_plan.rate / optimum
    ours = {"trees": blink_plan.count, "rate": str(blink_plan.rate), "of_optimum": _round_share(share)}
    yield row(
        f"{name} {kind}, blink", published or {"of_optimum": _round_share(MIN_SHARE)}, ours,
        MIN_SHARE <= share <= 1 and (published is None or published.items() <= ours.items()),
        note=f"optimum {optimum}; {blink_plan.summary}", engine="blink", proof=proof,
    )  # fmt: skip
    exact_plan = plan_and_rate(exact, box, kind)
    ours = {"trees": exact_plan.count, "rate": str(exact_plan.rate)}
    # the text where our fewest trees at the optimum are not the six published ones
    differs_from_six = f"trees of weights {exact_plan.weights} reach it; 6 of weight 1 are needed"
    yield row(
        f"{name} {kind}, fewest at the optimum", published, ours, exact_plan.rate == optimum and exact_plan.proved,
        deviation=differs_from_six if published and ours != published else None,
        note=f"{exact_plan.summary}; weights {exact_plan.weights}", engine="trees", proof=proof,
    )  # fmt: skip
    full_plans += [exact_plan, blink_plan]
    fewest = _fewest_trees(box, kind)
    rate = fewest.rate / box.unit
    weights = join_rates(tree.rate / box.unit for tree in fewest.trees)
    yield row(
        f"{name} {kind}, fewest within 5 %", published=None, ours={"trees": len(fewest.trees), "rate": str(rate)},
        ok=MIN_SHARE <= rate / optimum <= 1 and fewest.proved, note=f"{fewest.describe()}; weights {weights}",
        engine="trees", proof=proof,
    )  # fmt: skip


def _fewest_trees(box: Topology, kind: str) -> Fewest:
    """Return the fewest trees whose rate is at least 95 % of the optimum."""
    if kind == "broadcast":
        return fewest_broadcast(directed_machine(box), root=0, loss=RATE_LOSS)
    return fewest_spanning(undirected_machine(box), loss=RATE_LOSS)


def allocations_row(name: str, kind: str, allocations: Sequence[Allocation], full_plans: Sequence[RatedPlan]) -> Row:
    """Compare every allocation: whether planner `trees` attains the optimum, and how near `blink` comes.

    `full_plans`: the plans of the whole box by `trees` and `blink`, which are not computed again.
    """
    shares, proof = [], []
    optimal_count = integral_count = 0  # allocations: `trees` attains the optimum; `blink` needs weights 0 and 1 only
    for job in allocations:
        optimum, limit = rate_bound(job.machine, kind)
        all_gpus = len(job.gpus) == topology(name).ranks
        exact_plan, blink_plan = (
            full_plans if all_gpus else (plan_and_rate(planner, job.machine, kind) for planner in (exact, blink))
        )
        optimal_count += exact_plan.rate == optimum
        shares.append(blink_plan.rate / optimum)
        integral_count += blink_plan.summary.endswith("weights 0 or 1")  # the words of planner blink
        proof.append(
            f"{job.name}: rate {exact_plan.rate}, trees {exact_plan.count}; <= {optimum}: "
            f"{explain_bound(limit, job.gpus)}; blink: rate {blink_plan.rate}, trees {blink_plan.count}"
        )
    least_share = min(shares)
    return row(
        f"{name} {kind}, all allocations", {"blink_of_optimum": _round_share(MIN_SHARE)},
        {"at_optimum": optimal_count, "of": len(allocations), "blink_of_optimum": _round_share(least_share)},
        optimal_count == len(allocations) and MIN_SHARE <= least_share <= max(shares) <= 1,
        note=f"blink: weights of 0 or 1 do for {integral_count} of {len(allocations)}", engine="trees, blink",
        proof=proof,
    )  # fmt: skip


def _round_share(value: Fraction) -> float:
    return round(float(value), 4)


# ---- Figure 22(b) ----


def figure22b() -> Iterator[Row]:
    """Yield an allreduce of 100 MB on 3 and 5 GPUs of two servers; `blink_servers` states the assumptions."""
    for gigabits in GIGABITS:
        # `speed`: bytes/s for 100 MB; `rate`: for endless data; `network`: the bandwidth between the servers
        point = cluster.network_point(gigabits)
        expected = "network" if gigabits < KNEE_GBITS else "NVLink"
        ours = {
            "limit": point.limit,
            "bytes_per_second": point.speed,
            "rings_bytes_per_second": float(cluster.ring_bandwidth(gigabits)),
        }
        yield row(
            f"network of {gigabits} Gbit/s", {"limit": expected}, ours,
            point.limit == expected and (expected == "NVLink" or point.speed >= MIN_NETWORK_SHARE * point.network),
            note=f"{point.speed / float(point.rate):.3g} of what endless data get", engine="blink",
        )  # fmt: skip
    # with a network that limits nothing, the rate is that of NVLinks, at the assumed and at their nominal speed
    nvlink_rate = cluster.network_point(cluster.UNLIMITED_GBITS).rate
    nominal_rate = cluster.network_point(cluster.UNLIMITED_GBITS, cluster.NOMINAL_NVLINK).rate
    at_knee = cluster.network_point(nvlink_rate / cluster.GIGABIT_BYTES)
    pairs = ", ".join(f"{count} have {links}" for links, count in sorted(cluster.count_knees().items()))
    yield row(
        "network at which NVLinks are the limit", {"bytes_per_second": float(KNEE_GBITS * cluster.GIGABIT_BYTES)},
        {"bytes_per_second": float(nvlink_rate)},
        is_near(nvlink_rate / cluster.GIGABIT_BYTES, KNEE_GBITS) and at_knee.rate == nvlink_rate,
        note=f"5.4: ~{KNEE_GBITS} Gbit/s, here {_in_gigabits(nvlink_rate)} for GPUs and a speed of NVLinks that are "
        "assumed: "
        f"the paper names neither. {_in_gigabits(nominal_rate)} at their nominal speed. The slower "
        "server's trees have a rate "
        f"of 2 links here; of all pairs of a 3- and a 5-GPU allocation {pairs}",
        engine="blink",
    )  # fmt: skip


def _in_gigabits(speed: Fraction) -> str:
    return f"{float(speed / cluster.GIGABIT_BYTES):g}"
