"""One request: the frontier or one point of any collective, by way of one that only spreads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.ksync.certificate import AS_PLANNED, BEST_FOUND, COMPOSED, FOR_K, OPTIMAL
from antiphon.core.ksync.instance import instance_of
from antiphon.core.reshape import reverse
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid, TimedOut, Unsupported
from antiphon.planners.sccl._auto import TURNS, Found, decide
from antiphon.planners.sccl._cache import Cache
from antiphon.planners.sccl._canonical import Posed, posed
from antiphon.planners.sccl._explain import explain
from antiphon.planners.sccl._frontier import USUAL_K, Limits, Point, frontier, is_large, usual_steps
from antiphon.planners.sccl._points import Way, certificate, everywhere, joined, schedule_at, way_to
from antiphon.planners.sccl._product import by_product
from antiphon.planners.sccl._search import Impossible, Search
from antiphon.planners.sccl._task import rounds_of, schedule_of

MOST_RANKS = 128
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """What is asked for, and the means."""

    topology: Topology
    collective: Collective
    seed: int = 0
    deadline: float = math.inf
    memory: int | None = None
    tell: Tell = lambda text: None
    cache: Cache | None = None

    def search(self, way: Way) -> tuple[Search, Posed]:
        """The search, in canonical numbers, and the way back from what it finds."""
        if len(self.collective.members) > MOST_RANKS:
            raise Unsupported(
                f"planner sccl: {len(self.collective.members)} ranks; it takes up to {MOST_RANKS}. "
                "Use hierarchical-ring, multi-ring or double-binary-tree"
            )
        problem = posed(instance_of(way.topology, way.collective))
        return Search(problem.instance, self.seed, self.deadline, self.cache), problem


def points(work: Work, limits: Limits) -> Iterator[Schedule]:
    """Every point of the frontier as a schedule, as soon as it is found."""
    way = way_to(work.topology, work.collective)
    search, problem = work.search(way)
    floor = bound(way.topology, way.collective).inverse
    halved = way.about == COMPOSED
    most = limits.steps if limits.steps is not None else usual_steps(search.instance.least_steps)
    inner = replace(limits, steps=max(most // 2, 1) if halved and limits.steps is not None else most)
    least_direct: Fraction | None = None
    product = None
    if limits.k is None and is_large(search.instance, search.instance.least_steps):
        product = by_product(search, work.tell)
        if product is not None and limits.steps is not None and product.steps * (1 + halved) > limits.steps:
            product = None
    for found in _points(search, floor, inner, product, work.tell):
        point = problem.point(found)
        if halved and point.steps < 2 * search.instance.least_steps and point.steps <= most:
            least_direct = Fraction(point.rounds, point.parts)
            yield _with_certificate(everywhere(point, work.collective), point, AS_PLANNED, limits.k, direct=True)
        if not halved:
            made = schedule_at(point, work.topology, work.collective, way.about)
            assert made is not None
            yield _with_certificate(made, point, way.about, limits.k)
        elif 2 * point.steps <= most or limits.steps is None:
            ratio = Fraction(2 * point.rounds, point.parts * len(work.collective.members))
            if least_direct is None or ratio < least_direct:
                halves = _halves(work, point)
                if halves is not None:
                    yield _with_certificate(halves, point, COMPOSED, limits.k)


def _points(search: Search, floor: Fraction, limits: Limits, product: Point | None, tell: Tell) -> Iterator[Point]:
    """The frontier, and last, also where time runs out before, the point of the machine as a product of two."""
    best: Fraction | None = None
    try:
        for point in frontier(search, floor, limits, tell):
            best = point.ratio
            yield point
    except TimedOut:
        if product is not None and (best is None or product.ratio < best):
            yield product
        raise
    if product is not None and (best is None or product.ratio < best):
        yield product


def _halves(work: Work, point: Point) -> Schedule | None:
    """An allreduce of two halves; the first is synthesized apart where the machine is not alike both ways."""
    made = schedule_at(point, work.topology, work.collective, COMPOSED)
    if made is not None:
        return made
    turned = reverse(work.topology)
    search, problem = work.search(Way(turned, point.instance.collective, AS_PLANNED))
    decided = decide(search, point.parts, point.steps, point.rounds, tell=work.tell, memory=work.memory)
    if not isinstance(decided, Found):
        work.tell(f"no reducescatter of {point.steps} steps and {point.rounds} rounds was found; left out")
        return None
    first = schedule_of(problem.asked, point.parts, problem.moves(decided.moves))
    return joined(first, schedule_of(point.instance, point.parts, point.moves), work.collective)


def _with_certificate(schedule: Schedule, point: Point, about: str, k: int | None, direct: bool = False) -> Schedule:
    told: dict[str, object] = {"engine": point.engine, "found": _told(point, about, direct)}
    if not direct:
        told["certificate"] = certificate(point, about, USUAL_K if k is None else k)
    return replace(schedule, provenance=told)


def _told(point: Point, about: str, direct: bool) -> dict[str, object]:
    """What is known of the point, in words for people."""
    if direct:
        return {"proof": BEST_FOUND, "meaning": "every input is sent everywhere and added on arrival"}
    least = point.least.worth.rounds_per_part / point.instance.input_weight
    meaning = {
        OPTIMAL: f"no {point.steps} steps have R/C below {point.ratio}",
        FOR_K: f"no {point.steps} steps with R <= S + k have R/C below {point.ratio}",
        BEST_FOUND: f"{point.steps} steps have R/C = {point.ratio} here, and R/C >= {least} is proved",
    }[point.proof]
    return {
        "proof": point.proof,
        "meaning": f"of the allgather it is made of: {meaning}" if about == COMPOSED else meaning,
    }


def one_point(work: Work, chunks: int, steps: int, rounds: int) -> Schedule:
    """Just this point; Infeasible with the bound that forbids it, TimedOut where nothing was decided."""
    for name, value in (("chunks", chunks), ("steps", steps), ("rounds", rounds)):
        if value < 1:
            raise Invalid(f"{name}: expected a whole number from 1, got {value}")
    if work.collective.kind == "allreduce":
        return _one_allreduce(work, chunks, steps, rounds)
    way = way_to(work.topology, work.collective)
    search, problem = work.search(way)
    weight = work.collective.input_weight
    if chunks % weight:
        raise Invalid(
            f"chunks: {work.collective.kind} among {len(work.collective.members)} ranks takes a multiple of {weight} "
            f"chunks per rank, got {chunks}"
        )
    point = _decided(work, search, problem, chunks // weight, steps, rounds)
    made = schedule_at(point, work.topology, work.collective, way.about)
    assert made is not None
    return _with_certificate(made, point, way.about, None)


def _one_allreduce(work: Work, chunks: int, steps: int, rounds: int) -> Schedule:
    """As two halves where the numbers allow it, else with every input sent everywhere."""
    search, problem = work.search(way_to(work.topology, work.collective))
    ranks = len(work.collective.members)
    reasons = []
    if chunks % ranks == 0 and steps % 2 == 0 and rounds // 2 >= steps // 2:
        try:
            point = _decided(work, search, problem, chunks // ranks, steps // 2, rounds // 2)
            halves = _halves(work, point)
            if halves is not None:
                return _with_certificate(halves, point, COMPOSED, None)
        except Infeasible as error:
            reasons.append(f"as reducescatter then allgather: {error}")
    else:
        reasons.append(f"as reducescatter then allgather it needs C a multiple of {ranks}, and S and R even, R >= S")
    try:
        point = _decided(work, search, problem, chunks, steps, rounds)
    except Infeasible as error:
        reasons.append(f"with every input sent everywhere: {error}")
        raise Infeasible("; ".join(reasons)) from None
    return _with_certificate(everywhere(point, work.collective), point, AS_PLANNED, None, direct=True)


def _decided(work: Work, search: Search, problem: Posed, parts: int, steps: int, rounds: int) -> Point:
    decided = decide(search, parts, steps, rounds, tell=work.tell, memory=work.memory)
    instance = search.instance
    if isinstance(decided, Impossible):
        raise Infeasible(explain(problem.asked, parts, steps, rounds, problem.impossible(decided)))
    chunks = parts * instance.input_weight
    if decided is None:
        raise TimedOut(
            f"planner sccl neither found nor refuted C = {chunks}, S = {steps}, R = {rounds} in {TURNS} turns; "
            "ask for more rounds, fewer chunks, or another seed"
        )
    used = max(steps, sum(rounds_of(instance, decided.moves)))
    proof = OPTIMAL if Fraction(used, chunks) == search.ratio(steps) else BEST_FOUND
    point = Point(instance, parts, steps, used, decided.moves, decided.engine, proof, search.proved(steps))
    return problem.point(point)
