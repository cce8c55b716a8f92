"""How hard `tune` searches for candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from antiphon.api._checked import CHECKS, path, several
from antiphon.errors import Invalid, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import Seconds


@dataclass(frozen=True)
class Search:
    """The candidates that `antiphon.tune` tries, and how hard.

    `effort`: how much each candidate tries that searches (`sccl`), in units of about a second; they are counted, so the
    same is found on every machine.
    `budget`: CPU seconds, or "60s", for each candidate: a safety stop.
    `seed`: the same seed gives the same plans.
    `workers`: processes; left out, or 0, one per core; "none": all is done in this one. It changes no result.
    `deterministic`: every element is combined in one and the same order at all sizes.
    `sweep`: values of options to try, {"k": "2:64"}, {"k": [2, 4]} or {"k": "factors"} (of the number of ranks).
    `plans`: files of plans of your own (`antiphon.write`, MSCCL's XML, ...), which are candidates, too, by name `plan`.
    `shortlist`: how many of the best at every size are returned with their schedules (`.shortlist`).
    """

    effort: float = 5.0
    budget: Seconds = 60.0
    seed: int = 0
    workers: int | Literal["none"] | None = None
    deterministic: bool = False
    sweep: Mapping[str, Any] | None = None
    plans: str | Sequence[str] = ()
    shortlist: int = 0

    def __post_init__(self) -> None:
        for name in ("effort", "budget", "seed", "deterministic", "shortlist"):
            object.__setattr__(self, name, CHECKS[name](getattr(self, name), name))
        if not (isinstance(self.plans, str | tuple | list) and not self.plans):
            object.__setattr__(self, "plans", several(path)(self.plans, "plans"))

    def options(self) -> dict[str, Any]:
        """Return the fields by name; `plans` only where there are some."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return values if values["plans"] else {k: v for k, v in values.items() if k != "plans"}


FIELDS = tuple(f.name for f in dataclasses.fields(Search))


def as_search(value: Any) -> Search:
    if value is None:
        return Search()
    if not isinstance(value, Search):
        raise Invalid(f"search: expected an antiphon.Search, such as antiphon.Search(budget=10), got {quote(value)}")
    return value
