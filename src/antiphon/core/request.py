"""The request to a planner: the argument that every planner takes beside its own options."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote


def silent(text: str) -> None:
    """Ignore progress messages."""


def effort_of(effort: float | None) -> float | None:
    """Return a valid effort unchanged; raise Invalid for any other value."""
    if effort is None or (isinstance(effort, int | float) and effort is not True and 0 < effort < math.inf):
        return effort
    raise Invalid(f"effort: expected a number greater than 0, got {quote(effort)}")


@dataclass(frozen=True)
class Request:
    """A collective to plan on a machine. A planner is `plan(request, **options) -> Iterator[Schedule]`.

    `nbytes`
        The size to plan for; None: any.
    `profile`
        Measured figures of the machine, for planners that price candidates.
    `budget`
        Seconds of CPU time after which a planner stops with TimedOut.
    `seed`
        The same seed gives the same schedules.
    `effort`
        The limit of a search, counted by the planner in units of about a CPU second, so that the search ends at the
        same point on every computer, with EffortSpent. None: the planner's default.
    `also`
        Further sizes to plan for after `nbytes` (None: any), for callers that price all schedules by their own model.
        A planner loops over `sizes`, which has `nbytes` and these.
    `tell`
        The function that is called with each progress message.
    """

    topology: Topology
    collective: Collective
    nbytes: int | None = None
    profile: Any = None  # a cost.profile.Profile, which the core does not import
    budget: float | None = None
    seed: int = 0
    effort: float | None = None
    also: tuple[int | None, ...] = ()
    tell: Callable[[str], None] = field(default=silent, compare=False)

    def __post_init__(self) -> None:
        for label, value, kind in (("topology", self.topology, Topology), ("collective", self.collective, Collective)):
            if not isinstance(value, kind):
                raise Invalid(f"{label}: expected a {kind.__name__}, got {quote(value)}")
        if self.collective.ranks != self.topology.ranks:
            raise Invalid(
                f"the collective is for {self.collective.ranks} ranks, but topology {self.topology.name} "
                f"has {self.topology.ranks}"
            )
        numbers = [("nbytes", 0 if nbytes is None else nbytes) for nbytes in (self.nbytes, *self.also)]
        for label, number in (*numbers, ("seed", self.seed)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise Invalid(f"{label}: expected a whole number from 0, got {quote(number)}")
        seconds = 0 if self.budget is None else self.budget
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise Invalid(f"budget: expected seconds, 0 or more, got {quote(seconds)}")
        effort_of(self.effort)

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """The sizes to plan for, in order; None stands for any size."""
        return tuple(dict.fromkeys((self.nbytes, *self.also)))
