"""From any collective to the search: derive the collective to search, walk its frontier, convert the points.

The search handles collectives that only copy (spreading ones). Those that reduce are derived from these:

    what is requested            what is synthesized                              conversion
    broadcast, allgather, ...    itself                                           none
    reduce, reducescatter, ...   its inverse on the reversed machine              run backwards
    allreduce                    allgather                                        reducescatter + allgather, or sent
                                                                                  everywhere and added on arrival

On large machines that are Cartesian products, a point assembled from both factors is a further candidate (product.py).
Searches run on a canonically renumbered instance (canonical.py), so equal problems have equal answers and share the
cache.
"""

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
from antiphon.planners.synth.auto import Solved, decide_candidate
from antiphon.planners.synth.cache import Cache
from antiphon.planners.synth.canonical import CanonicalProblem, pose_canonically
from antiphon.planners.synth.effort_budget import EffortBudget
from antiphon.planners.synth.frontier import USUAL_K, Limits, Point, find_frontier, is_large, usual_steps
from antiphon.planners.synth.points import (
    Conversion,
    build_certificate,
    conversion_for,
    join_halves,
    schedule_at,
    send_everywhere,
)
from antiphon.planners.synth.product import by_product
from antiphon.planners.synth.search import SearchState
from antiphon.planners.synth.task import schedule_of

MOST_RANKS = 128
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Problem:
    """The request: machine, collective, seed, effort and CPU budget, bytes of memory, progress callback, cache."""

    topology: Topology
    collective: Collective
    seed: int = 0
    budget: EffortBudget = field(default_factory=EffortBudget)
    memory: int | None = None
    tell: Tell = lambda text: None
    cache: Cache | None = None

    def start_search(self, conversion: Conversion) -> tuple[SearchState, CanonicalProblem]:
        """Return the search, which uses canonical numbers, and the problem that translates its results back."""
        if len(self.collective.members) > MOST_RANKS:
            raise Unsupported(
                f"planner sccl: {len(self.collective.members)} ranks; it takes up to {MOST_RANKS}. "
                "Use hierarchical-ring, multi-ring or double-binary-tree"
            )
        problem = pose_canonically(instance_of(conversion.topology, conversion.collective))
        return SearchState(problem.instance, self.seed, self.budget, self.cache), problem


def find_schedules(work: Problem, limits: Limits) -> Iterator[Schedule]:
    """Yield every point of the frontier as a schedule, when it is found."""
    conversion = conversion_for(work.topology, work.collective)
    search, problem = work.start_search(conversion)
    floor = bound(conversion.topology, conversion.collective).without_help.inverse
    halved = conversion.about == COMPOSED
    max_steps = limits.steps if limits.steps is not None else usual_steps(search.instance.least_steps)
    # an allreduce of two halves has twice the steps of the allgather that is searched
    inner = replace(limits, steps=max(max_steps // 2, 1) if halved and limits.steps is not None else max_steps)
    least_direct: Fraction | None = None
    product = None
    if limits.k is None and is_large(search.instance, search.instance.least_steps):
        product = by_product(search, work.tell)
        if product is not None and limits.steps is not None and product.steps * (1 + halved) > limits.steps:
            product = None
    for canonical_point in _add_product_point(search, floor, inner, product, work.tell):
        point = problem.translate_point(canonical_point)
        # an allgather point serves an allreduce twice: directly, in as many steps, and as two halves, in twice as many
        if halved and point.steps < 2 * search.instance.least_steps and point.steps <= max_steps:
            least_direct = Fraction(point.rounds, point.parts)
            yield with_certificate(send_everywhere(point, work.collective), point, AS_PLANNED, limits.k, direct=True)
        if not halved:
            schedule = schedule_at(point, work.topology, work.collective, conversion.about)
            assert schedule is not None
            yield with_certificate(schedule, point, conversion.about, limits.k)
        elif 2 * point.steps <= max_steps or limits.steps is None:
            # an allreduce buffer has one block per member, so the same chunks count `members` times
            ratio = Fraction(2 * point.rounds, point.parts * len(work.collective.members))
            if least_direct is None or ratio < least_direct:
                halves = halves_of(work, point)
                if halves is not None:
                    yield with_certificate(halves, point, COMPOSED, limits.k)


def _add_product_point(
    search: SearchState, floor: Fraction, limits: Limits, product: Point | None, tell: Tell
) -> Iterator[Point]:
    """Yield the frontier and then, also if time runs out before its end, the product's point if it is better."""
    best: Fraction | None = None
    try:
        for point in find_frontier(search, floor, limits, tell):
            best = point.ratio
            yield point
    except TimedOut:
        if product is not None and (best is None or product.ratio < best):
            yield product
        raise
    if product is not None and (best is None or product.ratio < best):
        yield product


def halves_of(work: Problem, point: Point) -> Schedule | None:
    """Return an allreduce of two halves; the first is synthesized separately if the machine is not symmetric in
    direction.
    """
    schedule = schedule_at(point, work.topology, work.collective, COMPOSED)
    if schedule is not None:
        return schedule
    turned = reverse(work.topology)
    search, problem = work.start_search(Conversion(turned, point.instance.collective, AS_PLANNED))
    decided = decide_candidate(search, point.parts, point.steps, point.rounds, tell=work.tell, memory=work.memory)
    if not isinstance(decided, Solved):
        work.tell(f"no reducescatter of {point.steps} steps and {point.rounds} rounds was found; left out")
        return None
    first = schedule_of(problem.original, point.parts, problem.translate_moves(decided.moves))
    return join_halves(first, schedule_of(point.instance, point.parts, point.moves), work.collective)


def with_certificate(schedule: Schedule, point: Point, about: str, k: int | None, direct: bool = False) -> Schedule:
    """Attach engine, proof and certificate. A certificate is self-explanatory data, so no prose is stored with it."""
    if direct:
        findings = {"proof": BEST_FOUND, "how": "every input is sent everywhere and added on arrival"}
        return replace(schedule, provenance={"engine": point.engine, "found": findings})
    proof = build_certificate(point, about, USUAL_K if k is None else k)
    provenance = {"engine": point.engine, "found": {"proof": point.proof}, "certificate": proof}
    return replace(schedule, provenance=provenance)
