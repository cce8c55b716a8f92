"""A division of the members into nested groups: the ranks in an order where groups are contiguous, and the groups."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core.columns import Longs
from antiphon.planners.shared.groups import Groups


@dataclass(frozen=True, eq=False)
class Split:
    """The members by seat, and the groups that the seats form."""

    seating: Longs
    groups: Groups

    def __str__(self) -> str:
        return str(self.groups)
