"""Convert points of a frontier to schedules of the requested collective, each with its certificate.

The search handles spreading collectives, which only copy. Combining collectives, which reduce, are the inverse of
spreading ones (SCCL, section 3.5): run a broadcast of the reversed machine backwards, and every copy becomes a
reduction towards the root. So reduce and reducescatter come from broadcast and allgather, and allreduce is a
reducescatter followed by an allgather. An allreduce may also send every rank's whole input everywhere, as an allgather
does, and add on arrival: half the steps, but more data.

Example: broadcast 0 -> 1 -> 2 in two steps. Backwards: 2 -> 1 in step 1, 1 adds and sends 1 -> 0 in step 2: a reduce.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.ksync.certificate import AS_PLANNED, COMPOSED, FORMAT, REVERSED
from antiphon.core.loads import rounds as rounds_in
from antiphon.core.reshape import reverse
from antiphon.core.routes import opposite_links
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import add_on_arrival, compose, dual, invert
from antiphon.core.transform.sums import sums_of
from antiphon.errors import Unsupported
from antiphon.planners.synth.frontier import Point
from antiphon.planners.synth.task import schedule_of

SUMMED = "sums"  # of a Conversion; all_forms.py states what the certificates of such a collective are about


@dataclass(frozen=True)
class Conversion:
    """How to get a collective from a spreading one: the machine and collective to search, and the name of the
    conversion.

    `about`: AS_PLANNED (no conversion), REVERSED (run backwards), COMPOSED (a reducescatter, then an allgather), or
    SUMMED (searched in every form only, as all that are combined in order; the spreading one has its symmetries).
    """

    topology: Topology
    collective: Collective
    about: str


def has_halves(collective: Collective) -> bool:
    """Return whether a reducescatter and an allgather make it, which combine in any order."""
    return collective.kind == "allreduce" and not collective.ordered


def conversion_for(topology: Topology, collective: Collective) -> Conversion:
    """Return what to search for a collective. Raises Unsupported if there is no such search."""
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
        return Conversion(topology, collective, AS_PLANNED)
    sums = sums_of(collective)
    if collective.ordered:
        if sums is None:
            raise Unsupported("planner sccl: it keeps an order in sums of one block only; use planner relay")
        return Conversion(topology, sums.spread(), SUMMED)
    if has_halves(collective):
        return Conversion(topology, Collective("allgather", collective.ranks, collective.members), COMPOSED)
    try:
        return Conversion(reverse(topology), dual(collective).collective, REVERSED)
    except Unsupported as error:
        if sums is not None:
            return Conversion(topology, sums.spread(), SUMMED)
        raise Unsupported(f"planner sccl: {error}, and so synthesized; use planner relay") from None


def schedule_at(point: Point, topology: Topology, collective: Collective, about: str) -> Schedule | None:
    """Return the schedule of a point for the requested collective. `about`: as in `Conversion`.

    None where an allreduce's first half would need more rounds than its second (links differ by direction).
    """
    schedule = schedule_of(point.instance, point.parts, point.moves)
    if about == REVERSED:
        schedule = replace(invert(schedule), collective=collective)
    elif about == COMPOSED:
        back = _run_backwards(schedule, topology, point.rounds)
        if back is None:
            return None
        schedule = replace(compose(back, schedule), collective=collective)
    return schedule


def _run_backwards(spreading: Schedule, topology: Topology, rounds: int) -> Schedule | None:
    """Invert an allgather on the machine itself, link by opposite link; None if a link has no opposite, or if the
    result needs more than `rounds`.
    """
    try:
        inverted = invert(spreading, opposite_links(topology))
    except Unsupported:
        return None
    return inverted if rounds_in(inverted, topology) <= rounds else None


def join_halves(first: Schedule, second: Schedule, collective: Collective) -> Schedule:
    """Return an allreduce: a reducescatter (from an allgather of the reversed machine) followed by an allgather."""
    return replace(compose(invert(first), second), collective=collective)


def send_everywhere(point: Point, collective: Collective) -> Schedule:
    """Return an allreduce in the steps of an allgather: every rank's input goes everywhere and is added on arrival."""
    return add_on_arrival(schedule_of(point.instance, point.parts, point.moves), collective)


def build_certificate(point: Point, about: str, k: int) -> dict[str, Any]:
    """Return what core.ksync.certificate rechecks, as plain JSON values.

    `about`: as in `Conversion`. `k`: the maximum of rounds beyond steps up to which better points are refuted.
    """
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
    assert point.bound_proof is not None
    return {
        "format": FORMAT, "about": about, "proof": point.proof, "k": k,
        "chunks": point.chunks, "steps": point.steps, "rounds": point.rounds,
        "least": point.bound_proof.dual.as_json(), "refuted": refuted,
        "open": [[parts * weight, rounds] for parts, rounds in point.open],
    }  # fmt: skip
