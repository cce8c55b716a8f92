"""What is asked for, and the frontier of any collective, by way of one that only spreads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.ksync.certificate import AS_PLANNED, BEST_FOUND, COMPOSED
from antiphon.core.ksync.instance import instance_of
from antiphon.core.reshape import reverse
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import TimedOut, Unsupported
from antiphon.planners.synth.auto import Solved, decide
from antiphon.planners.synth.cache import Cache
from antiphon.planners.synth.canonical import Posed, posed
from antiphon.planners.synth.frontier import USUAL_K, Limits, Point, frontier, is_large, usual_steps
from antiphon.planners.synth.points import Way, certificate, everywhere, joined, schedule_at, way_to
from antiphon.planners.synth.product import by_product
from antiphon.planners.synth.purse import Purse
from antiphon.planners.synth.search import Findings
from antiphon.planners.synth.task import schedule_of

MOST_RANKS = 128
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Problem:
    """What is asked for, and the means."""

    topology: Topology
    collective: Collective
    seed: int = 0
    purse: Purse = field(default_factory=Purse)
    memory: int | None = None
    tell: Tell = lambda text: None
    cache: Cache | None = None

    def search(self, approach: Way) -> tuple[Findings, Posed]:
        """The search, in canonical numbers, and the way back from what it finds."""
        if len(self.collective.members) > MOST_RANKS:
            raise Unsupported(
                f"planner sccl: {len(self.collective.members)} ranks; it takes up to {MOST_RANKS}. "
                "Use hierarchical-ring, multi-ring or double-binary-tree"
            )
        problem = posed(instance_of(approach.topology, approach.collective))
        return Findings(problem.instance, self.seed, self.purse, self.cache), problem


def points(work: Problem, limits: Limits) -> Iterator[Schedule]:
    """Every point of the frontier as a schedule, as soon as it is found."""
    approach = way_to(work.topology, work.collective)
    search, problem = work.search(approach)
    floor = bound(approach.topology, approach.collective).without_help.inverse
    halved = approach.about == COMPOSED
    max_steps = limits.steps if limits.steps is not None else usual_steps(search.instance.least_steps)
    inner = replace(limits, steps=max(max_steps // 2, 1) if halved and limits.steps is not None else max_steps)
    least_direct: Fraction | None = None
    product = None
    if limits.k is None and is_large(search.instance, search.instance.least_steps):
        product = by_product(search, work.tell)
        if product is not None and limits.steps is not None and product.steps * (1 + halved) > limits.steps:
            product = None
    for canonical_point in _points(search, floor, inner, product, work.tell):
        point = problem.point(canonical_point)
        if halved and point.steps < 2 * search.instance.least_steps and point.steps <= max_steps:
            least_direct = Fraction(point.rounds, point.parts)
            yield with_certificate(everywhere(point, work.collective), point, AS_PLANNED, limits.k, direct=True)
        if not halved:
            schedule = schedule_at(point, work.topology, work.collective, approach.about)
            assert schedule is not None
            yield with_certificate(schedule, point, approach.about, limits.k)
        elif 2 * point.steps <= max_steps or limits.steps is None:
            ratio = Fraction(2 * point.rounds, point.parts * len(work.collective.members))
            if least_direct is None or ratio < least_direct:
                halves = halves_of(work, point)
                if halves is not None:
                    yield with_certificate(halves, point, COMPOSED, limits.k)


def _points(search: Findings, floor: Fraction, limits: Limits, product: Point | None, tell: Tell) -> Iterator[Point]:
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


def halves_of(work: Problem, point: Point) -> Schedule | None:
    """An allreduce of two halves; the first is synthesized apart where the machine is not alike both ways."""
    schedule = schedule_at(point, work.topology, work.collective, COMPOSED)
    if schedule is not None:
        return schedule
    turned = reverse(work.topology)
    search, problem = work.search(Way(turned, point.instance.collective, AS_PLANNED))
    decided = decide(search, point.parts, point.steps, point.rounds, tell=work.tell, memory=work.memory)
    if not isinstance(decided, Solved):
        work.tell(f"no reducescatter of {point.steps} steps and {point.rounds} rounds was found; left out")
        return None
    first = schedule_of(problem.asked, point.parts, problem.moves(decided.moves))
    return joined(first, schedule_of(point.instance, point.parts, point.moves), work.collective)


def with_certificate(schedule: Schedule, point: Point, about: str, k: int | None, direct: bool = False) -> Schedule:
    """With what is known of the point. What a certificate means is read from it alone, so no words of ours are kept."""
    if direct:
        findings = {"proof": BEST_FOUND, "how": "every input is sent everywhere and added on arrival"}
        return replace(schedule, provenance={"engine": point.engine, "found": findings})
    proof = certificate(point, about, USUAL_K if k is None else k)
    provenance = {"engine": point.engine, "found": {"proof": point.proof}, "certificate": proof}
    return replace(schedule, provenance=provenance)
