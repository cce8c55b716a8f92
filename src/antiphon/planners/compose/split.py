"""A split: the members of a collective divided into nested groups.

Seats are positions in an order of the ranks in which every group is contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.transform import Spans
from antiphon.planners.shared.groups import Groups, SeatExchange, list_exchanges, units_per_seat


@dataclass(frozen=True, eq=False)
class Split:
    """Members in nested groups. `seating`: the rank at each seat. `groups`: the nested groups of consecutive seats."""

    seating: Longs
    groups: Groups

    @cached_property
    def exchanges(self) -> list[SeatExchange]:
        """Return the exchanges of an allgather, listed once: plans for all aims (stages.AIMS) have them in common."""
        # the length of all data, in units such that every exchanged stretch is a multiple of one
        total_units = len(self.seating) * units_per_seat(self.groups)
        return list_exchanges(self.groups, Spans.side_by_side(np.array([total_units])))

    def __str__(self) -> str:
        return str(self.groups)
