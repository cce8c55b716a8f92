"""What is requested of the search (`Problem`), and how a search of a collective begins.

A `Problem` names the requested collective. Every search is for a collective that only copies, and its result is
converted to the requested one (points.Conversion). One problem may start several searches: an allreduce starts one for
its allgather, and others for the broadcasts and reduces that bound it. All share the budget and the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from antiphon.core.collective import Collective
from antiphon.core.ksync.instance import instance_of
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.synth.cache import Cache
from antiphon.planners.synth.canonical import CanonicalProblem, pose_canonically
from antiphon.planners.synth.effort_budget import EffortBudget
from antiphon.planners.synth.points import Conversion
from antiphon.planners.synth.search import SearchState

MOST_RANKS = 128  # members of a collective that is searched
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Problem:
    """The request. `memory`: limit in bytes of a worker process. `tell`: receives lines of progress."""

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
            refuse_many_ranks(self.collective)
        problem = pose_canonically(instance_of(conversion.topology, conversion.collective))
        return SearchState(problem.instance, self.seed, self.budget, self.cache), problem


def refuse_many_ranks(collective: Collective) -> NoReturn:
    """Raise Unsupported, because the collective has more than MOST_RANKS members."""
    raise Unsupported(
        f"planner sccl: {len(collective.members)} ranks; it searches up to {MOST_RANKS}, and above takes plans of "
        "quick planners, if there are any, with --effort 10 or more. Use hierarchical-ring, multi-ring or "
        "double-binary-tree"
    )
