"""From points of a frontier to schedules of the collective that was asked for, each with its certificate.

Combining collectives are the inverse of spreading ones (SCCL, section 3.5): reduce and reducescatter run a broadcast
and an allgather of the reversed machine backwards; allreduce is a reducescatter, then an allgather. An allreduce may
also send every rank's whole input everywhere, as an allgather does, and add up on arrival: half the steps, more data.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.columns import narrow
from antiphon.core.ksync.certificate import AS_PLANNED, COMPOSED, FORMAT, TURNED
from antiphon.core.loads import rounds as rounds_in
from antiphon.core.reshape import reverse
from antiphon.core.routes import opposite_links
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, dual, invert
from antiphon.errors import Unsupported
from antiphon.planners.synth.frontier import Point
from antiphon.planners.synth.task import schedule_of


@dataclass(frozen=True)
class Way:
    """How a collective comes from one that only spreads: that one's machine and collective, and `about`, its name."""

    topology: Topology
    collective: Collective
    about: str


def way_to(topology: Topology, collective: Collective) -> Way:
    """What to synthesize for a collective; Unsupported for what has no such way."""
    needs = needs_of(collective)
    if not len(needs):
        raise Unsupported(
            f"planner sccl: no data have to move for this {collective.kind}, so there is no R/C; use planner direct"
        )
    if needs.joined:
        raise Unsupported(
            "planner sccl: some value begins with a contribution more than once, or one is wanted more than once; "
            "use planner relay"
        )
    if not collective.combining:
        return Way(topology, collective, AS_PLANNED)
    if collective.kind == "allreduce":
        return Way(topology, Collective("allgather", collective.ranks, collective.members), COMPOSED)
    try:
        return Way(reverse(topology), dual(collective)[0], TURNED)
    except Unsupported as error:
        raise Unsupported(f"planner sccl: {error}, and so synthesized; use planner relay") from None


def schedule_at(point: Point, topology: Topology, collective: Collective, about: str) -> Schedule | None:
    """The schedule of a point for the collective asked for; None where an allreduce's first half would need more
    rounds than its second (the machine's links are not alike both ways).
    """
    schedule = schedule_of(point.instance, point.parts, point.moves)
    if about == TURNED:
        schedule = replace(invert(schedule), collective=collective)
    elif about == COMPOSED:
        back = _backwards(schedule, topology, point.rounds)
        if back is None:
            return None
        schedule = replace(compose(back, schedule), collective=collective)
    return schedule


def _backwards(spreading: Schedule, topology: Topology, rounds: int) -> Schedule | None:
    try:
        inverted = invert(spreading, opposite_links(topology))
    except Unsupported:
        return None
    return inverted if rounds_in(inverted, topology) <= rounds else None


def joined(first: Schedule, second: Schedule, collective: Collective) -> Schedule:
    """An allreduce of a reducescatter (an allgather of the reversed machine, not yet turned) and an allgather."""
    return replace(compose(invert(first), second), collective=collective)


def everywhere(point: Point, collective: Collective) -> Schedule:
    """An allreduce in the steps of an allgather: every rank's input goes everywhere and is added on arrival.

    What is passed on later is kept in a slot of its own, and added from there a step after.
    """
    spread = schedule_of(point.instance, point.parts, point.moves)
    place = {rank: i + 1 for i, rank in enumerate(collective.members)}
    blocks = len(collective.members)
    rows: list[tuple[int, int, int, int, int, int, int, int]] = []  # step, chunk, src, dst, op, route, slots
    passing: dict[tuple[int, int], int] = defaultdict(lambda: -1)  # (chunk, rank): the last step it sends that on in
    steps, chunks = spread.step.tolist(), spread.chunk.tolist()
    ends = list(zip(spread.src.tolist(), spread.dst.tolist(), strict=True))
    for step, chunk, (src, _) in zip(steps, chunks, ends, strict=True):
        passing[chunk, src] = max(passing[chunk, src], step)
    routes = spread.route.tolist() if spread.route is not None else [-1] * len(steps)
    for step, chunk, (src, dst), route in zip(steps, chunks, ends, routes, strict=True):
        part_number, block = divmod(chunk, blocks)
        owner = collective.members[block]
        slot = place[owner]
        source = slot if src != owner or step > 0 else 0
        if passing[chunk, dst] > step:
            rows.append((step, part_number, src, dst, COPY, route, source, slot))
            rows.append((step + 1, part_number, dst, dst, REDUCE, -1, slot, 0))
        else:
            rows.append((step, part_number, src, dst, REDUCE, route, source, 0))
    for (chunk, rank), last in sorted(passing.items()):
        part_number, block = divmod(chunk, blocks)
        if collective.members[block] == rank and last > 0:
            rows.append((0, part_number, rank, rank, COPY, -1, 0, place[rank]))
    table = np.array(sorted(rows), np.int64).reshape(-1, 8)
    column = [narrow(table[:, i]) for i in range(8)]
    return Schedule(
        collective, cut(collective, point.parts), column[0], column[1], column[2], column[3],
        column[4].astype(np.uint8), route=column[5], src_slot=column[6], dst_slot=column[7], routes=spread.routes,
    )  # fmt: skip


def certificate(point: Point, about: str, k: int) -> dict[str, Any]:
    """What core.ksync.certificate rechecks: plain JSON values."""
    refuted = []
    for refuted_point in point.refuted:
        entry: dict[str, Any] = {
            "chunks": refuted_point.parts * point.instance.input_weight,
            "rounds": refuted_point.rounds,
        }
        if refuted_point.why.duals:
            entry |= {"how": "duals", "duals": [proved.dual.as_json() for proved in refuted_point.why.duals]}
        elif refuted_point.why.resolution is not None:
            entry |= {"how": "resolution", "refutation": refuted_point.why.resolution}
        else:
            entry["how"] = "search"
        refuted.append(entry)
    weight = point.instance.input_weight
    return {
        "format": FORMAT, "about": about, "proof": point.proof, "k": k,
        "chunks": point.chunks, "steps": point.steps, "rounds": point.rounds,
        "least": point.least.dual.as_json(), "refuted": refuted,
        "open": [[parts * weight, rounds] for parts, rounds in point.open],
    }  # fmt: skip
