"""Reproduce Tables 3, 4 and 5 of SCCL, and whole frontiers of its two machines by its Algorithm 1.

A point (C, S, R) is a schedule with C chunks of each rank's input, S steps and R rounds. Table 3 lists NCCL's rings;
Tables 4 and 5 list synthesized points on a DGX-1 and a Gigabyte Z52, and the paper calls some of them latency- or
bandwidth-optimal. Each point is synthesized again by the planner `sccl`, verified, and its optimality proved or refuted
(sccl_optimality). Reducescatter, reduce and scatter are duals: the same schedules run backwards, printed together with
allgather, broadcast and gather. A `PointFamily` is a machine with a collective and a root; a `Standing` says which
bounds a point attains and whether it is Pareto-optimal. Each function below yields rows for `antiphon reproduce`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain, starmap
from typing import Any

from antiphon.core.collective import KINDS
from antiphon.core.topology import Topology
from antiphon.errors import AntiphonError, Missing
from antiphon.reproduce.rows import Each
from antiphon.reproduce.sccl_optimality import K, Point, Standing, standings_of
from antiphon.reproduce.sccl_plans import PointFamily, Synthesized, cpu_seconds, make_family, roots_of
from antiphon.reproduce.sccl_tables import DGX1, DUALS, NCCL_DGX1, NCCL_PIPELINED, Z52, Published, Rows, rows_of_kind
from antiphon.select import plan
from antiphon.topologies import topology

PIPELINE_PIECES = (1, 2, 4, 8, 16)  # m of Table 3: pieces of NCCL's pipelined rings
MAX_STEPS = 6  # steps of a frontier; only that of a broadcast gets so far, as more steps always pipeline better
COPYING_KINDS = ("allgather", "gather", "scatter", "alltoall", "broadcast")  # collectives that do not combine
Row = dict[str, Any]


def table3() -> Iterator[Row]:
    """Yield Table 3: NCCL's rings, by the planner `multi-ring`; pipelined ones for several numbers m of pieces."""
    machine = topology("dgx1v_sccl")
    points = [(kind, 0, point) for kind, point in NCCL_DGX1.items()]  # m = 0: not pipelined
    # C, S, R: six rings, with m pieces each; 8 ranks need 7 steps for the first piece, and m - 1 for the others
    points += [(kind, m, (6 * m, 6 + m, 6 + m)) for kind in NCCL_PIPELINED for m in PIPELINE_PIECES]
    for kind, m, point in points:
        begin = cpu_seconds()
        ring_plan = plan(kind, machine, planner="multi-ring", options={"pieces": m} if m else {})
        seconds = cpu_seconds() - begin
        claims = ring_plan.entries[0].claims
        ours = (int(claims["chunks"]), int(claims["steps"]), int(claims["rounds"]))
        gap = claims["bandwidth_gap"]
        yield {
            "name": f"{kind}, m = {m}" if m else kind, "published": _point_fields(point),
            "ours": {**_point_fields(ours), "optimal": claims["proof"] or ""},
            "deviation": _describe_difference(point, ours), "ok": ours == point,
            "note": "R/C meets its bound" if gap == 1 else f"R/C is {gap:.4g} times its bound; 1 as m grows",
            "engine": "multi-ring", "seconds": seconds, "proof": [],
        }  # fmt: skip


def table4(each: Each = starmap) -> Iterator[Row]:
    """Yield Table 4: the DGX-1, with its GPUs numbered as in SCCL's implementation."""
    return _table_rows(topology("dgx1v_sccl"), DGX1, each)


def table5(each: Each = starmap) -> Iterator[Row]:
    """Yield Table 5: the Z52, as the ring that SCCL makes of its links."""
    return _table_rows(topology("z52"), Z52, each)


def _table_rows(machine: Topology, published: Mapping[str, Rows], each: Each) -> Iterator[Row]:
    """Yield the rows of every collective, then of the dual that the paper prints with it: one part, as both share work.

    Roots that a symmetry of the machine maps to each other have equal rows, so one root of each orbit is taken.
    """
    arguments = [(machine, [kind, *filter(None, [DUALS.get(kind)])], published) for kind in published]
    yield from chain.from_iterable(each(_part_rows, arguments))


def _part_rows(machine: Topology, kinds: Sequence[str], published: Mapping[str, Rows]) -> Iterator[Row]:
    for family, rows in _families(machine, kinds, published):
        yield from family_rows(family, rows)


def _families(
    machine: Topology, kinds: Iterable[str], published: Mapping[str, Rows]
) -> Iterator[tuple[PointFamily, Rows]]:
    """Yield families of these collectives on a machine, each with its published rows."""
    for kind in kinds:
        for root in roots_of(machine, kind):
            yield make_family(machine, kind, root), rows_of_kind(published, kind, machine.ranks)


def family_rows(family: PointFamily, published: Rows) -> Iterator[Row]:
    """Yield a row per published point of a family. Each is synthesized and compared with all others of the family."""
    synthesized: list[Synthesized] = []
    missing: dict[int, str] = {}  # by index of the published row, why it could not be synthesized
    for number, row in enumerate(published):
        try:
            synthesized.append(family.make(*row.point))
        except Missing:
            raise
        except AntiphonError as error:  # one row that fails is a result, too
            missing[number] = str(error)
    # a copy, as the loop below adds forms that are not in the table
    standings = iter(zip(tuple(synthesized), standings_of(family, synthesized), strict=True))
    for number, row in enumerate(published):
        if number in missing:
            yield _missing_row(family, row, missing[number])
        else:
            result = _result_row(family, row, *next(standings))
            if family.collective.kind == "allreduce":
                synthesized += _find_better_forms(family, synthesized, row.steps)
                result["note"] += f"; {_describe_best_form(family, synthesized, row.steps)}"
            yield result


def _find_better_forms(family: PointFamily, algorithms: list[Synthesized], max_steps: int) -> list[Synthesized]:
    """Search allreduces with at most these steps that need not be a reducescatter followed by an allgather.

    Return [] if `algorithms` has such an allreduce (one not `composed` of two halves), or one that meets the bound on
    R/C (`limits().inverse`).
    """
    if any(a.steps <= max_steps and (a.ratio == family.limits().inverse or not a.composed) for a in algorithms):
        return []
    return family.frontier(k=None, steps=max_steps)  # None: any number of rounds


def _describe_best_form(family: PointFamily, algorithms: list[Synthesized], max_steps: int) -> str:
    """Return in words the point with the least R/C in at most these steps, and its gap to the lower bound."""
    best = min((a for a in algorithms if a.steps <= max_steps), key=lambda a: (a.ratio, a.steps, a.chunks))
    ratio_bound = family.limits().inverse  # of R/C, with any number of steps
    if not best.composed and best.ratio_bound is not None:  # that of a composed form holds for composed ones only
        ratio_bound = max(ratio_bound, best.ratio_bound)
    gap = "optimal" if best.ratio == ratio_bound else f"{float(best.ratio / ratio_bound):.4g} times the lower bound"
    return f"best of any form: {best.point}, {gap}"


def _result_row(family: PointFamily, published: Published, algorithm: Synthesized, standing: Standing) -> Row:
    """Return the row of a point that was synthesized. A point with `trusted` claims is not ok: only a solver backs it.

    `standing.pareto` is None if it is undecided whether the point is Pareto-optimal.
    """
    refutation, doubt = _check_label(family, published.optimal, algorithm, standing)
    difference = _describe_difference(published.point, algorithm.point)
    differences = [difference] if difference else []
    if refutation:
        differences.append(f"not latency-optimal: {refutation}")
    note = [standing.text + (" in two halves" if algorithm.composed and standing.pareto else "")]
    refuted = [f"{point}: {why}" for point, why in standing.refuted]
    reached = (
        algorithm.chunks == published.chunks
        and algorithm.steps <= published.steps
        and algorithm.rounds <= published.rounds
    )
    return {
        "name": f"{family.name} {published.point}",
        "published": {**_point_fields(published.point), "optimal": published.optimal, "seconds": published.seconds},
        "ours": {**_point_fields(algorithm.point), "optimal": standing.optimal, "pareto": standing.pareto},
        "deviation": "; ".join(differences) or None,
        "ok": reached and not doubt and not algorithm.trusted and standing.pareto is not None,
        "note": "; ".join([*note, *([doubt] if doubt else [])]),
        "engine": algorithm.engine, "seconds": algorithm.seconds, "proof": [*standing.proof, *refuted],
    }  # fmt: skip


def _check_label(
    family: PointFamily, printed: str, algorithm: Synthesized, standing: Standing
) -> tuple[str | None, str | None]:
    """Check which optimum the paper's label says that a point has.

    Return (refutation, None) if the label does not hold, (None, doubt) if that is undecided, (None, None) if it holds.
    """
    if printed in ("", standing.optimal) or standing.optimal == "both":
        return None, None
    limits = family.limits()
    if printed in ("bandwidth", "both") and algorithm.ratio != limits.inverse:
        return None, f"R/C = {algorithm.ratio}, and whether one reaches {limits.inverse} is not shown"
    # The label says latency-optimal, and S is above the bound: an algorithm that meets the bound refutes it. With
    # C = 1 inputs are not divided: each is sent to all ranks, so an allreduce takes half the steps of a composed one.
    try:
        quickest = family.make(chunks=1, steps=limits.latency_steps, rounds=limits.latency_steps)
    except AntiphonError as error:
        return None, f"S >= {limits.latency_steps} is the bound, and no algorithm that meets it was found: {error}"
    return f"{quickest.point}, with every input sent everywhere, takes {quickest.steps} steps", None


def _missing_row(family: PointFamily, published: Published, why: str) -> Row:
    """Return the row of a point that could not be synthesized."""
    return {
        "name": f"{family.name} {published.point}",
        "published": {**_point_fields(published.point), "optimal": published.optimal, "seconds": published.seconds},
        "ours": None, "deviation": why, "ok": False, "note": "not synthesized", "engine": None, "seconds": None,
        "proof": [],
    }  # fmt: skip


def frontiers(each: Each = starmap) -> Iterator[Row]:
    """Yield the frontiers of both machines: every collective that does not combine, and a root of every orbit."""
    kinds = sorted(COPYING_KINDS, key=KINDS.index)
    tables = (topology("dgx1v_sccl"), DGX1), (topology("z52"), Z52)
    return each(_frontier_row, chain.from_iterable(_families(machine, kinds, table) for machine, table in tables))


def _frontier_row(family: PointFamily, rows: Rows) -> Row:
    """Compare the frontier of schedules with R <= S + K with the published points that no other published one beats."""
    max_steps = max(MAX_STEPS, family.limits().latency_steps)
    published_points = undominated(
        [row.point for row in rows if row.rounds <= row.steps + K and row.steps <= max_steps]
    )
    begin = cpu_seconds()
    frontier = family.frontier(K, max_steps)
    seconds = cpu_seconds() - begin
    ours = [algorithm.point for algorithm in frontier]
    own_costs = {point: _steps_and_ratio(point) for point in ours}
    notes = []
    for point in published_points:
        if point not in ours:
            steps, ratio = _steps_and_ratio(point)
            better = [o for o, (s, r) in own_costs.items() if s <= steps and r <= ratio]
            notes.append(f"{point} is dominated by {better[-1]}" if better else f"{point} is missing")
    unpublished = [point for point in ours if point not in published_points]
    if unpublished:
        notes.append(f"not in the paper: {', '.join(map(str, unpublished))}")
    none_missing = not any(note.endswith("missing") for note in notes)
    all_proved = all(not algorithm.trusted and algorithm.proof != "best-found-in-budget" for algorithm in frontier)
    return {
        "name": f"{family.topology.name} {family.name}",
        "published": [_point_fields(point) for point in published_points],
        "ours": [{**_point_fields(algorithm.point), "proof": algorithm.proof} for algorithm in frontier],
        "deviation": "; ".join(notes) or None, "ok": none_missing and all_proved,
        "note": f"R <= S + {K}" + (f", S <= {max_steps}" if family.collective.kind == "broadcast" else ""),
        "engine": ", ".join(dict.fromkeys(algorithm.engine for algorithm in frontier)), "seconds": seconds,
        "proof": [line for algorithm in frontier for line in algorithm.proved],
    }  # fmt: skip


def undominated(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats in both steps and R / C; fewest steps first."""
    best: list[Point] = []
    least_ratio: Fraction | None = None
    # of equally good points the one with the least C comes first
    for point in sorted(points, key=lambda point: (*_steps_and_ratio(point), point)):
        _, ratio = _steps_and_ratio(point)
        if least_ratio is None or ratio < least_ratio:
            best.append(point)
            least_ratio = ratio
    return best


def _steps_and_ratio(point: Point) -> tuple[int, Fraction]:
    """Return S and R / C."""
    chunks, steps, rounds = point
    return steps, Fraction(rounds, chunks)


def _point_fields(point: Point) -> dict[str, int]:
    return dict(zip(("chunks", "steps", "rounds"), point, strict=True))


def _describe_difference(published: Point, ours: Point) -> str | None:
    return None if ours == published else f"ours is {ours}"
