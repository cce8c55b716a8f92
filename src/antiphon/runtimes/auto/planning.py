"""Plan for an allocation: keep the plans with a predicted gain over standard algorithms, and compile them to a book.

For each collective, and for rooted ones each root up to symmetry, all sizes are tuned with packed trees and the classic
algorithms. A range of sizes keeps our plan if it is predicted to be at least 5 % faster than the best classic algorithm
and than a single tree of links; all other sizes stay with the library. Plans are passed on one by one, the most
important collective first, as the budget may end at any time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from antiphon.core.collective import ROOTED, Collective
from antiphon.core.plan import LIBRARY, Entry, Plan
from antiphon.core.symmetry import automorphisms
from antiphon.core.topology import Topology
from antiphon.cost import prepare
from antiphon.errors import AntiphonError
from antiphon.runtimes.serve.book import Book, make_book
from antiphon.select import Tuning, plan, tune
from antiphon.select.candidate import Candidate
from antiphon.select.libraries import CLASSICS
from antiphon.units import format_size

# In the order of their importance for training: when the budget ends, the plans made by then are used.
KINDS = ("allreduce", "broadcast", "allgather", "reducescatter", "reduce")
OUR_PLANNERS = ("trees",)  # they reach the optimal rate; other planners would take longer to import
TUNED_SIZES, MODEL = "1KB:256MB:2", "alpha-beta"
MIN_SPEEDUP = 1.05  # predicted, over standard algorithms; below, the library serves
MAX_ROOTS = 8  # with plans of their own, of different orbits of the symmetries


@dataclass(frozen=True)
class PredictedGain:
    """The predicted speedup of a collective over the best standard algorithm, at the largest size, and its basis."""

    kind: str
    nbytes: int
    times: float
    rests_on: str

    def __str__(self) -> str:
        return f"{self.kind} of {format_size(self.nbytes)} {self.times:.2f} times as fast ({self.rests_on})"


def plan_collectives(machine: Topology, on_plan: Callable[[Plan, PredictedGain], None]) -> None:
    """Plan the collectives one after another; `on_plan` gets each plan with its gain at once.

    Rooted collectives get a plan for each orbit of roots. The standard algorithms are the classics, which libraries
    use, and a single tree of links."""
    for kind in KINDS:
        for root in _roots_of_orbits(machine) if kind in ROOTED else (None,):
            try:
                names = [*OUR_PLANNERS, *CLASSICS]
                tuning = tune(
                    kind,
                    machine,
                    nbytes=TUNED_SIZES,
                    model=MODEL,
                    planners=names,
                    root=root,
                    workers="none",  # no worker processes
                    nccl=False,  # no comparison with NCCL's predicted times
                )
                if kind in tuning.plans:
                    useful = _keep_useful(
                        tuning, tuning.plans[kind], _price_by_tree(tuning.plans[kind].collective, machine)
                    )
                    if useful is not None:
                        on_plan(*useful)
            except AntiphonError:
                continue  # no planner supports it here


def book_of(plans: Sequence[Plan]) -> Book:
    """Return the book of plans without pages that are left to the library."""
    book = make_book(plans)
    return replace(book, pages=tuple(page for page in book.pages if page.program >= 0))


def _roots_of_orbits(machine: Topology) -> Iterator[int]:
    """Yield a root of each orbit of the symmetries."""
    generators = automorphisms(machine)
    reached: set[int] = set()
    for _ in range(MAX_ROOTS):
        root = next((rank for rank in range(machine.ranks) if rank not in reached), None)
        if root is None:
            return
        pending = [root]
        while pending:
            rank = pending.pop()
            reached.add(rank)
            pending += [to for to in (int(generator[rank]) for generator in generators) if to not in reached]
        yield root


def _price_by_tree(collective: Collective, machine: Topology) -> Callable[[int], float]:
    """Return the predicted seconds by message size along a single tree of links."""
    by_tree = plan(collective, machine, planner="relay", options={"by": "tree", "trees": 1}).entries[0].schedule
    price = prepare(MODEL, by_tree, machine)
    return lambda nbytes: float(price(nbytes).seconds)


def _keep_useful(
    tuning: Tuning, plan_of_kind: Plan, tree_seconds: Callable[[int], float]
) -> tuple[Plan, PredictedGain] | None:
    """Return the plan with sizes without a gain left to the library, and the gain; None if there is no gain."""
    kind = plan_of_kind.collective.kind
    entries: list[Entry] = []
    gain: PredictedGain | None = None
    for entry in plan_of_kind.entries:
        sizes = [size for size in tuning.sizes if entry.start <= size and (entry.stop is None or size < entry.stop)]
        speedups = {size: _predict_speedup(tuning.of(kind), tree_seconds(size), size) for size in sizes}
        beats_classics = entry.claims.get("planner") not in CLASSICS
        # Our plan serves from the smallest size on above which all sizes gain. (An entry has one size at least.)
        last_slow_size = max((size for size in sizes if speedups[size] < MIN_SPEEDUP), default=-1)
        first_size = min((size for size in sizes if size > last_slow_size), default=None) if beats_classics else None
        if first_size is None or first_size > sizes[0]:
            entries.append(_left_to_library(entry, first_size or entry.stop))
        if first_size is not None:
            largest = max(speedups)  # size
            gain = PredictedGain(kind, largest, speedups[largest], entry.claims["rests_on"])
            entries.append(replace(entry, start=first_size if first_size > sizes[0] else entry.start))
    return None if gain is None else (Plan(plan_of_kind.topology, plan_of_kind.collective, tuple(entries)), gain)


def _predict_speedup(candidates: Sequence[Candidate], tree_seconds: float, size: int) -> float:
    """Return the predicted speedup over standard algorithms."""
    priced = [candidate for candidate in candidates if size in candidate.seconds]
    classic_seconds = [candidate.seconds[size] for candidate in priced if candidate.planner in CLASSICS]
    our_seconds = min(
        (candidate.seconds[size] for candidate in priced if candidate.planner not in CLASSICS), default=math.inf
    )
    return min([tree_seconds, *classic_seconds]) / our_seconds


def _left_to_library(entry: Entry, stop: int | None) -> Entry:
    """Return an entry that the library serves."""
    return replace(entry, stop=stop, claims={**entry.claims, "use": "library", "served_by": LIBRARY, "measured": False})
