"""The result of `verify`: a report that is true or false."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.core.topology import Topology
    from antiphon.core.verify import Fault


@dataclass(frozen=True)
class Report:
    """Verdict on a plan, and on whether a runtime will run it; true unless there is an objection.

    Attributes
    ----------
    fault
        The first error in the plan (`.kind`, `.message`, `.step`, `.chunk`, ...), or None.
    topology
        The machine that it was verified on; None for another program's file that is wrong on any machine.
    proved, trusted, stated
        With proof=True: claims that were rechecked, claims that only a solver vouches for, and claims that the file
        only states, in words.
    will_run
        With `runtime`, whether that runtime will run the plan for this call; else None.
    reasons
        The reasons for `will_run`, each with `what`, `why`, `instead` and `file`.
    """

    topology: Topology | None
    fault: Fault | None = None
    proved: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    will_run: bool | None = None
    reasons: tuple[Mapping[str, Any], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the plan itself is correct, apart from any runtime."""
        return self.fault is None

    def __bool__(self) -> bool:
        """Return whether the plan is correct and no runtime objects."""
        return self.ok and self.will_run is not False

    def as_json(self) -> dict[str, Any]:
        """Return the keys that `antiphon verify --json` prints."""
        runs = {} if self.will_run is None else {"will_run": self.will_run, "reasons": [dict(r) for r in self.reasons]}
        return {"ok": self.ok, "fault": None if self.fault is None else self.fault.as_dict(), **runs}
