"""Options of the search behind `tune`, declared once for Python and the command line."""

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

    Parameters
    ----------
    effort
        Limit of each candidate that searches (`sccl`), in counted units of about a second, so the result is the same on
        every machine.
    budget
        CPU seconds, or "60s", of each candidate: a safety stop.
    seed
        The same seed gives the same plans.
    workers
        Worker processes. Default, or 0: one per core; "none": everything runs in this process. It changes no result.
    deterministic
        Combine every element in one fixed order at all sizes.
    sweep
        Values of options to try: {"k": "2:64"} (every number from 2 to 64), {"k": [2, 4]} or {"k": "factors"} (of the
        number of ranks).
    plans
        Files of plans of your own (`antiphon.write`, MSCCL's XML, ...), which become candidates named `plan`.
    shortlist
        Number of best candidates per size that are returned with their schedules (`.shortlist`).
    failures
        Also tune the machine without each single one of its "links", "wires", "nics" or "ranks" (symmetric failures
        once); `.save` writes all plans into one table, from which ANTIPHON_DEAD chooses.
    counts
        Measured counts of an alltoall: a matrix (row i, column j: what rank i sends to rank j), several, or a JSON file
        of them. The plan is for their average and right for any; `.counts` is what it loses at others.

    Raises
    ------
    Invalid
        A field has a wrong value.

    Examples
    --------
    >>> Search(effort=1, workers="none").seed
    0
    """

    effort: float = 5.0
    budget: Seconds = 60.0
    seed: int = 0
    workers: int | Literal["none"] | None = None
    deterministic: bool = False
    sweep: Mapping[str, Any] | None = None
    plans: str | Sequence[str] = ()
    shortlist: int = 0
    failures: str = ""
    counts: Any = None

    def __post_init__(self) -> None:
        """Check and normalize the fields that say by themselves whether they are right, so that a wrong one fails here.

        A search checks `workers`, `sweep`, `failures` and `counts`: by its planners, machine and collective.
        """
        for name in ("effort", "budget", "seed", "deterministic", "shortlist"):
            object.__setattr__(self, name, CHECKS[name](getattr(self, name), name))
        has_no_plans = isinstance(self.plans, str | tuple | list) and not self.plans  # "" and () are no files
        if not has_no_plans:
            object.__setattr__(self, "plans", several(path)(self.plans, "plans"))

    def options(self) -> dict[str, Any]:
        """Return the fields by name; `plans`, `failures` and `counts` only if there are any."""
        names = [f.name for f in dataclasses.fields(self)]
        unused = {name for name in ("plans", "failures", "counts") if not self.has(name)}
        return {name: getattr(self, name) for name in names if name not in unused}

    def has(self, name: str) -> bool:
        """Return whether a field has any content: files, values, a count."""
        value = getattr(self, name)
        return value is not None if name == "counts" else bool(value)  # an array has no truth value


FIELDS = tuple(f.name for f in dataclasses.fields(Search))


def as_search(value: Any) -> Search:
    """Return a Search, the default one for None."""
    if value is None:
        return Search()
    if not isinstance(value, Search):
        raise Invalid(f"search: expected an antiphon.Search, such as antiphon.Search(budget=10), got {quote(value)}")
    return value
