"""The verdict on a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.core.topology import Topology
    from antiphon.core.verify import Fault


@dataclass(frozen=True)
class Report:
    """Whether a plan is right, and whether a runtime will run it: true if nothing speaks against it.

    `fault`: the first thing wrong with the plan (`.kind`, `.message`, `.step`, `.chunk`, ...), or None.
    `topology`: the machine that it was verified on; None where another program's file is wrong on any.
    `proved`, `trusted`, `stated`: with proof=True, the claims that were rechecked, those that a solver alone vouches
    for, and those that the file only states, in words.
    `will_run`: with `runtime`, whether that runtime will run the plan for this call; else None.
    `reasons`: why it will or will not, each with `what`, `why`, `instead` and `file`.
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
        """Whether the plan is right, on whatever it may run."""
        return self.fault is None

    def __bool__(self) -> bool:
        return self.ok and self.will_run is not False

    def as_json(self) -> dict[str, Any]:
        """The keys that `antiphon verify --json` prints."""
        runs = {} if self.will_run is None else {"will_run": self.will_run, "reasons": [dict(r) for r in self.reasons]}
        return {"ok": self.ok, "fault": None if self.fault is None else self.fault.as_dict(), **runs}
