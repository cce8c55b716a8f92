"""Everything in one step: each holder sends directly to each rank that needs its data.

No plan has fewer steps. In an allreduce on P ranks each sends its whole buffer to all others, (P - 1) times nbytes: for
the smallest messages only.
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.core.collective import ROOTED
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.planners.classic.one_step import one_step
from antiphon.planners.shared.rows import finish_schedule, refuse_too_many_transfers


def direct(request: Request) -> Iterator[Schedule]:
    """Yield one schedule: P - 1 transfers per root, else P (P - 1)."""
    collective = request.collective
    ranks = len(collective.members)
    senders = len(collective.roots) if collective.kind in ROOTED else ranks
    refuse_too_many_transfers("direct", request, senders * (ranks - 1))
    yield finish_schedule(one_step(collective), request, "direct", options={})
