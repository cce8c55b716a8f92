"""Parameter servers: one rank collects, reduces and sends back all data; or every rank does so for a part.

`parameter-server` is the reduce-broadcast of the GenTree paper (docs/planners/switches.md, section 2.1): 2 steps, and
the server sends and receives (P-1) times nbytes, so its links are the bottleneck. `colocated-ps` (sections 2.1 and
3.3): every rank serves 1/P of the data: 2 steps, and every rank sends 2 (P-1)/P nbytes, the minimum; the price is that
P - 1 ranks send to one at once (incast).

Example: allreduce on ranks 0 to 3. By a server: 1, 2, 3 send all their data to 0, which sends the sum back to each.
Co-located: rank i receives quarter i from all others, and sends its sum back to each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid, quote
from antiphon.options import Option
from antiphon.planners.classic.one_step import one_step
from antiphon.planners.shared.rows import (
    HALVES_AT_ROOT,
    REDUCESCATTER_ALLGATHER,
    Pieces,
    finish_schedule,
    per_root,
    plan_in_halves,
    refuse_too_many_transfers,
)

_ALL_SERVE = {  # the two halves of a collective in which every rank serves a part of the data
    "allreduce": REDUCESCATTER_ALLGATHER,
    "broadcast": ("scatter", "allgather"),
    "reduce": ("reducescatter", "gather"),
}


Server = Annotated[int | None, Option("the rank that serves (default: the first member)", minimum=0)]


def parameter_server(request: Request, *, server: Server = None, pieces: Pieces = 1) -> Iterator[Schedule]:
    """Yield one schedule of O(P) transfers (allgather, reducescatter: O(P^2)).

    With several pieces the server sends one piece back while it collects the next.
    """
    collective = request.collective
    ranks = len(collective.members)
    server_rank = collective.members[0] if server is None else server
    if server_rank not in collective.members:
        raise Invalid(f"option server: rank {quote(server)} does not take part; choose one of those that do")
    refuse_too_many_transfers("parameter-server", request, ranks * (2 if collective.kind == "allreduce" else ranks))
    schedule = plan_in_halves(collective, one_step, HALVES_AT_ROOT[collective.kind], server_rank)
    options = {"server": server_rank, "pieces": pieces}
    yield finish_schedule(schedule, request, "parameter-server", options, pieces)


def colocated_ps(request: Request, *, pieces: Pieces = 1) -> Iterator[Schedule]:
    """Yield one schedule of O(P^2) transfers in two steps.

    An allreduce is a reducescatter and an allgather, each in one step from every rank to every other. A broadcast is a
    scatter, then that allgather; a reduce is that reducescatter, then a gather.
    """
    collective = request.collective
    ranks = len(collective.members)
    refuse_too_many_transfers("colocated-ps", request, 2 * ranks * ranks * max(len(collective.roots), 1))

    def plan(single: Collective) -> Schedule:
        return plan_in_halves(single, one_step, _ALL_SERVE[single.kind], single.roots[0] if single.roots else 0)

    schedule = per_root(collective, plan) if collective.roots else plan(collective)
    yield finish_schedule(schedule, request, "colocated-ps", {"pieces": pieces}, pieces)
