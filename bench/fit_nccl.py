"""What a call costs, from published measurements: writes the files of `src/antiphon/cost/profiles/calls`.

Run: python bench/fit_nccl.py [--write]. Tables of part `fit` alone are read, sizes from 1 KB on, times out of place.
Every figure starts at a prior (what documents say, below) and is drawn to it by a weight, so that what no table tells
stays there; it is then named under "assumed". Weights were chosen on the tables of part fit alone, each left out in
turn. Least squares of log(predicted / measured), bent for outliers; the number of
evaluations is bounded, so the result is the same on every machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from _common import print_table
from numpy.typing import NDArray
from published import FIT, ONE_FOR_ALL, Published, published, relay_tables, xla_tables

from antiphon.cost.nccl.calls import (
    FOLDER,
    FORMAT,
    LL,
    LL128,
    PROTOCOLS,
    SIMPLE,
    VERSION,
    CallFigures,
    Copies,
    Nvls,
    Units,
)
from antiphon.cost.nccl.choice import CHOSEN, Costs, price_options
from antiphon.cost.nccl.gpus import box_of
from antiphon.cost.nccl.msccl import ALLPAIRS, shipped_algorithms

LEAST = 1024  # bytes: below, only launch and hops count, and those tables have many such rows
PRIOR_WEIGHT = 0.1  # of a figure that is off by e, against a measurement that is off by e
LATENCY_WEIGHT = 0.2  # of launches and hops within a node
SHARE_WEIGHT = 0.3  # of the shares that LL and LL128 have within a node
KNOWN_WEIGHT = 1.0  # of the share that Simple has, which is told by documents
MOST_EVALUATIONS = 100
FURTHEST = 30.0  # so many times its prior a figure is at most, and at least that part of it: more is no latency
SMALL, LARGE = 64 * 1024, 64 * 2**20  # ends of the range between
MOVED = 1e-3  # a figure that is no further from its prior than this was told by nothing
# Shares of the wire: a flag for each four bytes (LL), 120 of 128 bytes (LL128), 370 of 450 GB/s (Simple; NVIDIA's
# answers in nccl-tests issue 309). Hops within a node: as NCCL's own model has them (src/graph/tuning.cc).
HOPS = {LL: 0.6e-6, LL128: 1.9e-6, SIMPLE: 3.4e-6}
RAMP, SLOWDOWN, LAUNCH_CHANNEL = 2e-5, 1.0, 1e-7
SHARES = {LL: 0.3, LL128: 0.75, SIMPLE: 0.82}
FAR = {LL: 6e-6, LL128: 8e-6, SIMPLE: 15e-6}
FAR_SHARES = {LL: 0.4, LL128: 0.85, SIMPLE: 0.93}
GPUS: Mapping[str, dict[str, Any]] = {
    "v100": {"boxes": ["dgx1v", "dgx1v_sccl", "dgx2"]},
    "a100": {"boxes": ["dgx-a100", "p4d", "delta", "polaris"]},
    "h100": {"boxes": ["hgx-h100", "hgx-h200", "p5"], "nvls": True},
    "mi300x": {"boxes": ["mi300x"], "library": "RCCL"},
    "mi350x": {"boxes": ["mi350x"], "library": "RCCL"},
}
# Multiprocessors of a GPU by its vendor's data sheet; channels as NCCL's log tells them ("24 coll channels, 16 nvls
# channels, 32 p2p channels"), each a thread block with a multiprocessor for itself. V100: 6 rings, each made twice.
UNITS = {
    "v100": Units(of=80, taken={"ring": 12}, source="https://github.com/NVIDIA/nccl/issues/713"),
    "a100": Units(of=108, taken={"ring": 24}, source="https://github.com/NVIDIA/Megatron-LM/issues/516"),
    "h100": Units(
        of=132, taken={"ring": 24, "nvls": 16, "sends": 32},
        source="https://github.com/aws-samples/awsome-distributed-training/tree/main/micro-benchmarks/nccl-tests",
    ),
    "mi300x": Units(of=304, source="https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"),
    "mi350x": Units(of=256, source="https://www.amd.com/en/products/accelerators/instinct/mi350/mi350x.html"),
    # A DGX B200: "32 coll channels, 32 collnet channels, 32 nvls channels, 32 p2p channels". 148 multiprocessors as the
    # driver tells them (pytorch/ao, pull request 4002).
    "b200": Units(
        of=148, taken={"ring": 32, "nvls": 32, "sends": 32}, source="https://github.com/NVIDIA/nccl/issues/1646",
    ),
}  # fmt: skip
# Copies between two GPUs by cudaMemcpyPeerAsync (CUDA's p2pBandwidthLatencyTest). abci-benchmarks: both ways at once,
# the median of all pairs, 48.45 of 50 GB/s (V100) and 206.5 of 300 (A100). H100: one way, 375 of 450 GB/s; no latency
# told.
COPIES = {
    "v100": Copies(latency=1.9e-6, share=0.969, source="https://github.com/aistairc/abci-benchmarks"),
    "a100": Copies(latency=3.25e-6, share=0.688, source="https://github.com/aistairc/abci-benchmarks"),
    "h100": Copies(
        latency=3.25e-6, share=0.833, source="https://github.com/NVIDIA/nccl/issues/1264", assumed=["latency"],
    ),
}  # fmt: skip
# Generations without a table of their own in part fit: the figures of another.
LIKE = {"b200": ("h100", ["hgx-b200", "gb200-nvl72"])}
NETWORKS: Mapping[str, dict[str, Any]] = {
    "ib": {"kinds": ["ib"]},
    "efa-4": {"kinds": ["efa"], "gpus": ["a100"]},
    "efa-32": {"kinds": ["efa"], "gpus": ["h100", "b200"]},
    "tcpxo": {"kinds": ["tcpxo"]},
    "roce": {"kinds": ["ib"], "gpus": ["mi300x"]},
}
MESSAGE = (
    5e-6  # each further message to another node: 2.5 ms for 511 of them, the smallest row of a100-ndv4-64-alltoall
)
# Of ranks within a node: what all to all, twice, takes on eight A100s beyond its launch and two hops, by MSCCL's
# leaderboard (bench/fit_msccl.py): of each of the six further messages of either step. Elsewhere as there.
TOLD_BY_MSCCL = "a100"
Figures = dict[str, float]


def priors() -> Figures:
    found: Figures = {}
    for gpu, told in GPUS.items():
        found |= {f"{gpu} launch": 5e-6, f"{gpu} more": 4e-6, f"{gpu} channel": LAUNCH_CHANNEL}
        found |= {f"{gpu} ramp": RAMP, f"{gpu} slowdown": SLOWDOWN}
        found |= {f"{gpu} hop {p}": HOPS[p] for p in PROTOCOLS} | {f"{gpu} share {p}": SHARES[p] for p in PROTOCOLS}
        if told.get("nvls"):
            found |= {f"{gpu} nvls latency": 2e-5, f"{gpu} nvls share": 0.6, f"{gpu} nvls ramp": RAMP}
    for network in NETWORKS:
        found |= {f"{network} hop {p}": FAR[p] for p in PROTOCOLS}
        found |= {f"{network} share {p}": FAR_SHARES[p] for p in PROTOCOLS} | {f"{network} message": MESSAGE}
    return found


def weight_of(name: str) -> float:
    """How strongly a figure is drawn to its prior."""
    if name.endswith(f"share {SIMPLE}"):
        return KNOWN_WEIGHT
    if name.split(" ", maxsplit=1)[0] not in GPUS:
        return PRIOR_WEIGHT
    latency, share = " hop " in name or name.endswith(" launch"), " share " in name
    return LATENCY_WEIGHT if latency else SHARE_WEIGHT if share else PRIOR_WEIGHT


def calls_of(figures: Figures, name: str, tables: list[str], of: list[str], assumed: list[str]) -> CallFigures:
    told = {**GPUS, **NETWORKS}[name]
    nvls = (
        Nvls(**{figure: figures[f"{name} nvls {figure}"] for figure in ("latency", "share", "ramp")})
        if "nvls" in told
        else None
    )
    return CallFigures(
        format=FORMAT, version=VERSION, name=name, boxes=told.get("boxes", []), measured=of,
        kinds=told.get("kinds", []), gpus=told.get("gpus", []), library=told.get("library", "NCCL"),
        calibrated_by=tables, assumed=assumed,
        launch=figures.get(f"{name} launch", 0.0), launch_more=figures.get(f"{name} more", 0.0),
        launch_channel=figures.get(f"{name} channel", 0.0), slowdown=figures.get(f"{name} slowdown", 0.0),
        ramp=figures.get(f"{name} ramp", 0.0),
        message=figures.get(f"{name} message", 0.0), nvls=nvls,
        hop={p: figures[f"{name} hop {p}"] for p in PROTOCOLS},
        share=shares(figures, name), units=UNITS.get(name), copies=COPIES.get(name),
    )  # fmt: skip


def shares(figures: Figures, name: str) -> dict[str, float]:
    """Simple may have all of a wire; of what it has the form of LL leaves half at most, that of LL128 15 of 16."""
    most = min(figures[f"{name} share {SIMPLE}"], 1.0)
    return {
        p: min(figures[f"{name} share {p}"], most * part) for p, part in ((LL, 1 / 2), (LL128, 15 / 16), (SIMPLE, 1))
    }


def algorithms_of(table: Published) -> tuple[str, ...]:
    """What the run was told to do, where it was."""
    told = [word.partition("=")[2].rstrip(",") for word in table.environment.split() if word.startswith("NCCL_ALGO=")]
    return (told[0].lower(),) if told else CHOSEN


def apart(tables: Sequence[Published]) -> list[list[Published]]:
    """Tables that have no generation and no network in common tell nothing of one another."""
    found: list[tuple[set[str], list[Published]]] = []
    for table in tables:
        names = {name for name in (table.gpu, table.fabric) if name}
        mine = [one for one in found if one[0] & names]
        found = [one for one in found if not one[0] & names]
        joined = [other for one in mine for other in one[1]]
        found.append((names.union(*(one[0] for one in mine)), [*joined, table]))
    return [one for _, one in found]


def fitted(tables: Sequence[Published], prior: Figures) -> tuple[Figures, int, int]:
    """The figures that these tables tell of, the number of measurements, and that of evaluations."""
    from scipy.optimize import least_squares

    places = {table.name: table.layout for table in tables}
    told = {name for table in tables for name in (table.gpu, table.fabric) if name}
    names = [name for name in prior if name.split(" ")[0] in told]
    start = np.log([prior[name] for name in names])
    drawn = np.array([weight_of(name) for name in names])

    def off(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        figures = dict(zip(names, np.exp(logs).tolist(), strict=True))
        known = {name: calls_of(figures, name, [], [], []) for name in told}
        found = []
        for table in tables:
            network = known[table.fabric] if table.fabric else None
            costs = Costs(known[table.gpu], network, table.processes == ONE_FOR_ALL)
            for nbytes, seconds in table.seconds():
                if nbytes >= LEAST:
                    priced = price_options(places[table.name], costs, table.collective, nbytes, algorithms_of(table))
                    found.append(np.log(priced[0].seconds / seconds))
        return np.concatenate([found, drawn * (logs - start)])

    ends = start - np.log(FURTHEST), start + np.log(FURTHEST)
    best = least_squares(off, start, bounds=ends, loss="soft_l1", f_scale=0.1, max_nfev=MOST_EVALUATIONS)
    return dict(zip(names, np.exp(best.x).tolist(), strict=True)), len(off(start)) - len(names), best.nfev


def main() -> None:
    tables = [table for table in (*published(), *relay_tables(), *xla_tables()) if table.part == FIT]
    prior = priors()
    figures = dict(prior)
    for some in apart(tables):
        found, measured, evaluations = fitted(some, prior)
        figures |= found
        print(f"{measured} measurements of {len(some)} tables, {len(found)} figures, {evaluations} evaluations")
    still = [name for name, value in figures.items() if abs(np.log(value / prior[name])) < MOVED]
    print_table(["figure", "prior", "fitted", ""], [
        [name, f"{prior[name]:.3g}", f"{figures[name]:.3g}", "assumed" if name in still else ""] for name in prior
    ])  # fmt: skip
    if "--write" in sys.argv:
        write(figures, tables, still)


def write(figures: Figures, tables: list[Published], still: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    made = {}
    allpairs = next(one for one in shipped_algorithms() if one.way == ALLPAIRS and one.seconds is not None)
    assert allpairs.seconds is not None
    within = allpairs.seconds - figures[f"{TOLD_BY_MSCCL} launch"] - 2 * figures[f"{TOLD_BY_MSCCL} hop {LL}"]
    figures = figures | {f"{name} message": within / (2 * (allpairs.local - 2)) for name in GPUS}
    still = [*still, *(f"{name} message" for name in GPUS if name != TOLD_BY_MSCCL)]
    for name in (*GPUS, *NETWORKS):
        by = [table.name for table in tables if name in (table.gpu, table.fabric)]
        rounded = {key: float(f"{value:.3g}") for key, value in figures.items()}
        of = sorted({box_of(table.topology) for table in tables if table.gpu == name})
        made[name] = calls_of(
            rounded, name, by, of, [key.removeprefix(f"{name} ") for key in still if key.startswith(f"{name} ")]
        )
        if name in GPUS:
            kinds = sorted({table.collective for table in tables if table.gpu == name})
            made[name] = msgspec.structs.replace(made[name], collectives=kinds)
    for name, (like, boxes) in LIKE.items():
        assumed = [f"all, as of {like}"]
        made[name] = msgspec.structs.replace(
            made[like], name=name, boxes=boxes, measured=[], calibrated_by=[], collectives=[], assumed=assumed,
            units=UNITS.get(name), copies=msgspec.structs.replace(COPIES[like], assumed=["latency", "share"]),
        )  # fmt: skip
    for name, calls in made.items():
        row = {key: value for key, value in msgspec.to_builtins(calls).items() if value not in ([], {}, None, 0.0)}
        (FOLDER / f"{name}.json").write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
