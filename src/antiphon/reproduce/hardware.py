"""Compare results that papers measured on hardware with predictions by the calibrated costs of GPU calls (cost/nccl).

The papers (SCCL, Blink) draw figures without numbers, so the claims in their text are compared: mostly speedups over
NCCL. We plan and verify the paper's algorithms, predict their times (SCCL's by the model `lowering`, Blink's by
`calls`), and divide NCCL's time by the model of NCCL by them. Both sides use the same launch costs, protocols and wire
efficiencies of V100s, calibrated by published tables of nccl-tests. For GPUs without calibration only bandwidths are
compared. Numbers such as 5.5.1 in notes are sections of the paper; `engine` of a row names what computed our figures.
The first arguments of `row` are name, published figures, ours, and whether they agree. `agreement` derives the last
from whether our figures are near the published ones (`holds`), and whether at least the trend agrees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from antiphon.cost import Predictor, prepare
from antiphon.cost.basis import join_bases
from antiphon.cost.lowering_costs import COPIES, STEPS
from antiphon.cost.nccl.calls import SIMPLE
from antiphon.cost.nccl.library import LibraryModel, library_here
from antiphon.planners.classic.direct import direct
from antiphon.planners.classic.parameter_server import colocated_ps
from antiphon.reproduce.blink_allocations import Allocation, unique_allocations
from antiphon.reproduce.blink_rates import PCIE, pack_rings, rate_bound, ring_rate, speedup, summarize
from antiphon.reproduce.gentree_plans import verified_plan
from antiphon.reproduce.rows import Row, agreement, claim, is_near, row
from antiphon.reproduce.sccl_plans import make_family
from antiphon.topologies import topology

SIZES = tuple(2**e for e in range(10, 31))
SMALL = 2**16  # largest of the small sizes
LARGE = 2**26  # smallest of the large sizes
EXPOSED_SHARE = 0.5  # share of a training step that is communication and not hidden by computation (Blink, 2.1)
STEP_SAVED = 0.4  # greatest share of a training step that trees save (Blink, 5.4)
COMMUNICATION_SAVED = {"max": 0.87, "mean": 0.31}  # shares of the time of communication (Blink, 5.4)
SAME_COSTS = "launch, protocols and the share of the wire are the same on both sides"


# ---- SCCL, Figures 4 to 6 ----

# The algorithms (C, S, R) that the figures show
SCCL_POINTS = {
    "allgather": ((1, 2, 2), (2, 2, 3), (6, 3, 7), (6, 7, 7)),
    "allreduce": ((8, 4, 4), (16, 4, 6), (48, 6, 14), (48, 14, 14)),
}
# The greatest speedup for small and for large sizes (5.5.1 and 5.5.2)
SCCL_SPEEDUPS = {"allgather": (2.2, 1.14), "allreduce": (1.8, 1.06)}
# Lowered to a kernel per step, or to copies (5.5); Figure 5 names no line by copies.
SCCL_LOWERINGS = {"allgather": (STEPS, COPIES), "allreduce": (STEPS,)}
# Of Figure 5; the text names them by their allgathers: "1-chunk", (1, 2, 2), for small sizes, (6, 7, 7) for large ones
NAMED_IN_TEXT = ((8, 4, 4), (48, 14, 14))
COPIES_OVER_KERNELS = 1.1  # section 4: copy engines have about 10 % more bandwidth on NVLink

Curve = dict[int, float]  # speedup by size
Line = tuple[tuple[int, int, int], str]  # a line of a figure: an algorithm (C, S, R) and its lowering


def sccl_figures() -> Iterator[Row]:
    """Yield speedups over NCCL on a DGX-1, then the claims about the Z52.

    NCCL runs by protocol Simple, as in the paper (5.5); algorithms are lowered to a kernel per step or to copies.
    """
    machine = topology("dgx1v_sccl")
    for kind, points in SCCL_POINTS.items():
        library = library_here(machine)
        nccl = {size: _by_simple(library, kind, size) for size in SIZES}
        curves = dict[Line, Curve]()
        for point in points:
            schedule = make_family(machine, kind).make(*point).schedule
            for lowering in SCCL_LOWERINGS[kind]:
                predict = prepare("lowering", schedule, machine, options={"kind": lowering})
                curves[point, lowering] = {size: nccl[size] / predict(size).seconds for size in SIZES}
        basis = predict(SIZES[0]).rests_on  # what calibrates these costs, the same for all points and lowerings
        yield from _sccl_speedups(kind, curves, basis)
        if kind == "allgather":
            yield from _figure_4(curves)
            continue
        paper_curve = _fastest({key: curve for key, curve in curves.items() if key[0] in NAMED_IN_TEXT})
        middle = min(gain for size, gain in paper_curve.items() if SMALL < size < LARGE)
        yield row(
            f"DGX-1 {kind}, middle sizes", {"NCCL_faster": True}, {"NCCL_faster": middle < 1}, middle < 1,
            note="5.5: NCCL is beating SCCL's algorithms, (8, 4, 4) and (48, 14, 14), as synchronization of several "
            "steps costs much there",
            deviation=None if middle < 1 else "a launch per step costs less here", engine="lowering",
        )  # fmt: skip
    yield from _z52_rows()


def _by_simple(library: LibraryModel, kind: str, size: int) -> float:
    """Return the seconds of NCCL by protocol Simple. (`at` returns an option per algorithm and protocol.)"""
    return min(option.seconds for option in library.at(kind, size) if option.protocol == SIMPLE)


def _fastest(curves: Mapping[Line, Curve]) -> Curve:
    """Return the greatest speedup at each size."""
    return {size: max(curve[size] for curve in curves.values()) for size in SIZES}


def _sccl_speedups(kind: str, curves: Mapping[Line, Curve], basis: str) -> Iterator[Row]:
    """Yield the greatest speedups for small and for large sizes."""
    best = _fastest(curves)
    proof = []
    for size, gain in best.items():
        point, lowering = max(curves, key=lambda key: curves[key][size])
        proof.append(f"{size} B: {gain:.3f} by ({', '.join(map(str, point))}), {lowering}")
    small = max(gain for size, gain in best.items() if size <= SMALL)
    large = max(gain for size, gain in best.items() if size >= LARGE)
    for name, published, ours in zip(("small", "large"), SCCL_SPEEDUPS[kind], (small, large), strict=True):
        yield row(
            f"DGX-1 {kind}, {name} sizes", {"speedup": published}, {"speedup": round(ours, 3)},
            agreement(is_near(ours, published), ours > 1), engine="lowering", proof=proof,
            note=f"5.5: up to {published} times as fast as NCCL by Simple; {basis}",
            deviation=None if is_near(ours, published) else "a step is assumed to cost one launch",
        )  # fmt: skip


def _figure_4(curves: Mapping[Line, Curve]) -> Iterator[Row]:
    """Yield each line of Figure 4, which prints no figures, and what the text says of lowering to copies."""
    for (point, lowering), curve in curves.items():
        small, large = curve[SIZES[0]], curve[SIZES[-1]]
        yield row(
            f"DGX-1 allgather ({', '.join(map(str, point))}), {lowering}", published=None,
            ours={"speedup_1KB": round(small, 3), "speedup_1GB": round(large, 3)}, ok=True, engine="lowering",
            note="Figure 4, drawn only",
        )  # fmt: skip
    # both lowerings of one algorithm at the largest size
    by_kernels, by_copies = curves[(6, 7, 7), STEPS][SIZES[-1]], curves[(6, 7, 7), COPIES][SIZES[-1]]
    gain = by_copies / by_kernels
    holds = is_near(gain, COPIES_OVER_KERNELS)
    yield row(
        "DGX-1 allgather (6, 7, 7), copies over kernels, 1 GB", {"speedup": COPIES_OVER_KERNELS},
        {"speedup": round(gain, 3)}, agreement(holds, gain > 1), engine="lowering",
        note="4: copy engines have about 10 % more bandwidth on NVLink",
        deviation=None if holds else "copy engines reach 96.9 % of a link here, kernels by Simple 85.7 %",
    )  # fmt: skip
    is_slower = curves[(6, 7, 7), COPIES][SIZES[0]] < curves[(6, 7, 7), STEPS][SIZES[0]]
    yield claim(
        "DGX-1 allgather (6, 7, 7), copies slower for small sizes", is_slower, note="4: higher initial alpha cost"
    )


def _basis_of(library: LibraryModel, ours: Sequence[Predictor]) -> str:
    """Return the calibrations that the figures of both sides are based on, at all sizes."""
    nccl_basis = [library.brief("allreduce", size) for size in SIZES]
    return join_bases([*nccl_basis, *(predict(size).rests_on for predict in ours for size in SIZES)])


def _z52_rows() -> Iterator[Row]:
    """Compare which algorithm is faster for the smallest and for the largest size on a Z52.

    MI50s are not calibrated: latencies and bandwidths of the catalogue decide.
    """
    machine = topology("z52")
    latency_optimal, bandwidth_optimal = (
        make_family(machine, "allgather").make(*point) for point in ((1, 4, 4), (2, 7, 7))
    )
    ratio = {  # over 1: the latency-optimal algorithm is faster
        size: prepare("alpha-beta", bandwidth_optimal.schedule, machine)(size).seconds
        / prepare("alpha-beta", latency_optimal.schedule, machine)(size).seconds
        for size in (SIZES[0], SIZES[-1])
    }
    ours = {"small": "(1, 4, 4)" if ratio[SIZES[0]] > 1 else "(2, 7, 7)",
            "large": "(1, 4, 4)" if ratio[SIZES[-1]] > 1 else "(2, 7, 7)"}  # fmt: skip
    published = {"small": "(1, 4, 4)", "large": "(2, 7, 7)"}
    yield row(
        "Z52 allgather, the faster one", published, ours, ours == published, engine="alpha-beta",
        note="5.5, Figure 6; MI50s are not calibrated, so nothing is said of RCCL",
    )  # fmt: skip


# ---- Blink, Figures 15 to 18 ----

BLINK_SPEEDUPS = {  # 5.2.1, 5.2.2: the greatest speedup and the geometric mean over allocations, and the figure
    ("dgx1v", "broadcast"): (6.0, 2.0, "Figure 15"), ("dgx1p", "broadcast"): (3.0, 1.6, "Figure 16"),
    ("dgx1v", "allreduce"): (8.0, 2.0, "Figure 17"),
}  # fmt: skip


def blink_figures() -> Iterator[Row]:
    """Yield Blink's claims about a DGX-1 at 500 MB, where only bandwidth counts.

    First the speedups of trees over NCCL's rings on all allocations (the GPUs of the box that a job may get). Then how
    much less bandwidth an allreduce has than a broadcast. Last the share of a training step that trees save.
    """
    share, link = _nvlink_costs()
    allocations = {name: unique_allocations(topology(name)) for name in ("dgx1v", "dgx1p")}
    for (name, kind), (greatest, mean, figure) in BLINK_SPEEDUPS.items():
        speedups = summarize([speedup(allocation.machine, kind) for allocation in allocations[name]])
        holds = is_near(speedups["max"], greatest) and is_near(speedups["mean"], mean)
        yield row(
            f"{name} {kind} over NCCL", {"max": greatest, "mean": mean},
            {"max": speedups["max"], "mean": speedups["mean"]},
            agreement(holds, speedups["max"] > 1 and speedups["mean"] > 1), engine="cuts, packing of rings",
            note=f"5.2, {figure}: up to {greatest:g} times, {mean:g} in the geometric mean; "
            + ("calibrated by v100: " + SAME_COSTS if name == "dgx1v" else "P100s are not calibrated"),
            deviation=None if holds else "rings that leave NVLink are taken to get half a link of PCIe (5.1); where "
            "the paper's greatest speedup exceeds ours they got less, and Blink gained by its chunks, too",
        )  # fmt: skip
    yield from _allreduce_loss_row(allocations["dgx1v"], link * share)
    yield _allreduce_over_broadcast_row()
    yield _training_row(allocations["dgx1v"])
    yield _step_row(allocations["dgx1v"])


def _nvlink_costs() -> tuple[float, float]:
    """Return the share of an NVLink's bandwidth that NCCL's kernels reach, and its nominal bytes per second."""
    box = topology("dgx1v")
    return library_here(box).costs.gpu.share["simple"], float(box.unit)


def _allreduce_loss_row(allocations: Sequence[Allocation], link: float) -> Iterator[Row]:
    """Compare the GB/s by which an allreduce is slower than a broadcast on 3 and 4 GPUs, on average.

    `link`: bytes per second of an NVLink, as calibrated.
    """
    machines = [allocation.machine for allocation in allocations if len(allocation.gpus) in (3, 4)]
    losses = [
        float(rate_bound(machine, "broadcast").rate - rate_bound(machine, "allreduce").rate) * link / 1e9
        for machine in machines
    ]
    mean = math.fsum(losses) / len(losses)
    yield row(
        "dgx1v, an allreduce below a broadcast on 3 and 4 GPUs", {"GB_per_second": [20, 30]},
        {"GB_per_second": round(mean, 1)}, agreement(20 <= mean <= 30, mean > 0), engine="cuts",
        note=f"5.2.2: 20 to 30 GB/s less on average; links at {link / 1e9:.1f} GB/s, as calibrated",
        deviation=None if 20 <= mean <= 30 else f"{mean:.1f} GB/s: the two differ by less than measured",
    )  # fmt: skip


def _allreduce_over_broadcast_row() -> Row:
    """Compare the rates of an allreduce and a broadcast on 8 GPUs: the paper says that one is half the other."""
    machine = topology("dgx1v")
    blink = float(rate_bound(machine, "allreduce").rate / rate_bound(machine, "broadcast").rate)
    count = len(pack_rings(machine).cycles)
    nccl = float(ring_rate("allreduce", count, machine.ranks) / ring_rate("broadcast", count, machine.ranks))
    holds = is_near(blink, published=0.5) and is_near(nccl, published=0.5)
    return row(
        "dgx1v, an allreduce over a broadcast on 8 GPUs", {"blink": 0.5, "nccl": 0.5},
        {"blink": round(blink, 3), "nccl": round(nccl, 3)}, agreement(holds, blink < 1 and nccl < 1),
        note="5.2.2: only half, for both", engine="cuts",
        deviation=None if holds else "8/14: an allreduce sends 7/8 of the data twice, a broadcast all of it once",
    )  # fmt: skip


def _training_row(allocations: Sequence[Allocation]) -> Row:
    """Compare the share of communication time that trees save (Figure 18). Shares of whole steps need the time of
    computation, which is not printed."""
    gains = summarize([speedup(allocation.machine, "allreduce") for allocation in allocations])
    greatest, mean = 1 - 1 / gains["max"], 1 - 1 / gains["mean"]  # a speedup g saves the share 1 - 1/g of the time
    return row(
        "dgx1v, communication saved in a training", dict(COMMUNICATION_SAVED),
        {"max": round(greatest, 3), "mean": round(mean, 3)},
        agreement(
            is_near(greatest, COMMUNICATION_SAVED["max"]) and is_near(mean, COMMUNICATION_SAVED["mean"]),
            greatest > mean > 0,
        ),
        note="5.4, Figure 18: up to 87 %, 31 % in the geometric mean",
        deviation="ours is of all 46 allocations, the paper's of some that it does not name",
        engine="cuts, packing of rings",
    )  # fmt: skip


def _step_row(allocations: Sequence[Allocation]) -> Row:
    """Compare the greatest share of a training step that trees save.

    Half of a step is assumed to be communication that nothing hides (2.1: up to 50 % of an iteration on a DGX-1V),
    shortened by the greatest speedup. No step is replayed.
    """
    gain = summarize([speedup(allocation.machine, "allreduce") for allocation in allocations])["max"]
    saved = EXPOSED_SHARE * (1 - 1 / gain)
    return row(
        "dgx1v, a training step, most", {"saved": STEP_SAVED}, {"saved": round(saved, 3)},
        agreement(is_near(saved, STEP_SAVED), saved > STEP_SAVED / 2), engine="cuts, packing of rings",
        note="5.4, Figure 18: up to 40 % of an iteration; 2.1, Figure 5: communication is as much as 50 % of one",
        deviation=None if is_near(saved, STEP_SAVED) else "the greatest share and the greatest gain need not be of "
        "one allocation; the paper's geometric mean, 6.3 %, needs shares per network, which it does not print",
    )  # fmt: skip


# ---- Blink, Figures 19 to 21 ----


def dgx2_figures() -> Iterator[Row]:
    """Yield an allreduce on 16 GPUs by trees of one hop, against NCCL's choice: first for small sizes, then at best."""
    machine = topology("dgx2")
    library = library_here(machine)
    trees = [prepare("calls", verified_plan(planner, machine), machine) for planner in (colocated_ps, direct)]
    basis = _basis_of(library, trees)
    seconds = {size: min(predict(size).seconds for predict in trees) for size in SIZES}
    gains = {size: library.choice("allreduce", size).seconds / seconds[size] for size in SIZES}
    proof = [f"{size} B: {gain:.3f}" for size, gain in gains.items()]
    small = max(gain for size, gain in gains.items() if size <= SMALL)
    greatest = max(gains.values())
    for name, published, ours, figure in (
        ("latency", 3.32, small, "Figure 20"), ("throughput", 3.5, greatest, "Figure 19"),
    ):  # fmt: skip
        holds = is_near(ours, published)
        yield row(
            f"dgx2, {name} over NCCL", {"speedup": published}, {"speedup": round(ours, 3)}, agreement(holds, ours > 1),
            note=f"5.2.3, {figure}: up to {published} times; {basis}", engine="calls",
            proof=proof,
            deviation=None if holds else "the paper's NCCL chooses double binary trees as well, with fewer hops than "
            "its rings; in the model of it one box has rings alone",
        )  # fmt: skip
    falls = gains[SIZES[-1]] < gains[SIZES[0]]
    note = "5.2.3: especially effective for smaller data sizes"
    yield claim("dgx2, most for smaller sizes", falls, note=note, engine="calls", proof=proof)
    yield _hybrid_row()


def _hybrid_row() -> Row:
    """Compare the bandwidth that PCIe adds to NVLinks in a broadcast (Figure 21)."""
    share, link = _nvlink_costs()
    gained = float(PCIE) * link * share / 1e9
    return row(
        "dgx1v, PCIe beside NVLinks in a broadcast", {"GB_per_second": [2, 5]}, {"GB_per_second": round(gained, 1)},
        agreement(2 <= gained <= 5, gained > 0), note="5.3, Figure 21: 2 to 5 GB/s more", engine="rates",
        deviation=None if 2 <= gained <= 5 else "half a link at the share of an NVLink: what switching between the two "
        "costs, and what PCIe really gives, no table tells",
    )  # fmt: skip
