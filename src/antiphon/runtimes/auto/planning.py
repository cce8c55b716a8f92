"""The plans of an allocation: those that are predicted to gain over plain ways, and a book of them."""

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
from antiphon.select.tuning import Candidate
from antiphon.select.libraries import CLASSICS
from antiphon.units import format_size

# The ones that training waits for first: where the effort ends, what was found until then is used.
KINDS = ("allreduce", "broadcast", "allgather", "reducescatter", "reduce")
OURS = ("trees",)  # which have the greatest rate there is; rings need more to be loaded
SIZES, MODEL = "1KB:256MB:2", "alpha-beta"
WORTH = 1.05  # so many times as fast as a plain way must be predicted, else it is left as it is
FEW_ROOTS = 8  # that no symmetry takes to one another: of so many each has its plan


@dataclass(frozen=True)
class Gain:
    """How many times as fast as by the best plain way a collective is predicted to be, at the greatest size, and what
    that rests on."""

    kind: str
    nbytes: int
    times: float
    rests_on: str

    def __str__(self) -> str:
        return f"{self.kind} of {format_size(self.nbytes)} {self.times:.2f} times as fast ({self.rests_on})"


def planned(machine: Topology, heard: Callable[[Plan, Gain], None]) -> None:
    """Plans for the collectives, one after the other; `heard` gets each at once, with what it gains. Where a rooted one
    looks otherwise from another root there is a plan for that root, too.

    The plain ways are the classics, which libraries use, and what goes along one tree of links, without packing."""
    for kind in KINDS:
        for root in _roots(machine) if kind in ROOTED else (None,):
            try:
                names = [*OURS, *CLASSICS]
                found = tune(
                    kind, machine, nbytes=SIZES, model=MODEL, planners=names, root=root, workers="none", nccl=False
                )
                if kind in found.plans:
                    made = _worth(found, found.plans[kind], _plainly(found.plans[kind].collective, machine))
                    if made is not None:
                        heard(*made)
            except AntiphonError:
                continue  # nobody can plan it here


def book_of(plans: Sequence[Plan]) -> Book:
    """Without pages for what is left to the library: as if they were not in the table."""
    book = make_book(plans)
    return replace(book, pages=tuple(page for page in book.pages if page.program >= 0))


def _roots(machine: Topology) -> Iterator[int]:
    """One root of each kind that symmetries tell apart."""
    generators = automorphisms(machine)
    seen: set[int] = set()
    for _ in range(FEW_ROOTS):
        root = next((rank for rank in range(machine.ranks) if rank not in seen), None)
        if root is None:
            return
        todo = [root]
        while todo:
            here = todo.pop()
            seen.add(here)
            todo += [to for to in (int(one[here]) for one in generators) if to not in seen]
        yield root


def _plainly(collective: Collective, machine: Topology) -> Callable[[int], float]:
    """Seconds along one tree of links."""
    by_tree = plan(collective, machine, planner="relay", options={"by": "tree", "trees": 1}).entries[0].schedule
    price = prepare(MODEL, by_tree, machine)
    return lambda nbytes: float(price(nbytes).seconds)


def _worth(found: Tuning, whole: Plan, plainly: Callable[[int], float]) -> tuple[Plan, Gain] | None:
    """The plan with all that is not worth it left to the library."""
    kind = whole.collective.kind
    entries: list[Entry] = []
    gain: Gain | None = None
    for entry in whole.entries:
        sizes = [size for size in found.sizes if entry.start <= size and (entry.stop is None or size < entry.stop)]
        times = {size: _times(found.of(kind), plainly(size), size) for size in sizes}
        good = entry.claims.get("planner") not in CLASSICS
        # from the least size on from which all are worth it
        slow = max((size for size in sizes if times[size] < WORTH), default=-1)
        since = min((size for size in sizes if size > slow), default=None) if good else None
        if since is None or since > sizes[0]:
            entries.append(_left(entry, since or entry.stop))
        if since is not None:
            gain = Gain(kind, max(times), times[max(times)], entry.claims["rests_on"])
            entries.append(replace(entry, start=since if since > sizes[0] else entry.start))
    return None if gain is None else (Plan(whole.topology, whole.collective, tuple(entries)), gain)


def _times(candidates: Sequence[Candidate], plain: float, size: int) -> float:
    """How many times as fast as plain ways."""
    priced = [one for one in candidates if size in one.seconds]
    classics = [one.seconds[size] for one in priced if one.planner in CLASSICS]
    ours = min((one.seconds[size] for one in priced if one.planner not in CLASSICS), default=math.inf)
    return min([plain, *classics]) / ours


def _left(entry: Entry, stop: int | None) -> Entry:
    """What the library does."""
    return replace(entry, stop=stop, claims={**entry.claims, "use": "library", "served_by": LIBRARY, "measured": False})
