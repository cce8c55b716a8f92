"""A split: the members of a collective divided into nested groups.

Seats are positions in an order of the ranks in which every group is contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core.columns import Longs
from antiphon.planners.shared.groups import Groups


@dataclass(frozen=True, eq=False)
class Split:
    """Members in nested groups. `seating`: the rank at each seat. `groups`: the nested groups of consecutive seats."""

    seating: Longs
    groups: Groups

    def __str__(self) -> str:
        return str(self.groups)
