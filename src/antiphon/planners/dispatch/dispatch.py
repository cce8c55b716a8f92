"""The planner `dispatch`: the least finishing time at a size, on links with latencies and bandwidths of their own.

Other planners count steps, or fill links at the greatest rate. In between, where latency and transmission take about as
long, neither decides: what counts is when each chunk arrives. `dispatch` plans by the rules of the model
`critical-path`: a send starts as soon as its data and its links are free.

    trees     every piece of a block gets a tree that arrives by a deadline and loads links little (timed_trees.py)
    order     on each link, the message with the longest remaining path goes first (list_scheduling.py)

A round does both for one deadline. A cycle runs rounds for several deadlines between the time of the slowest piece
alone on an idle machine and the best finishing time; the next cycle takes the pieces that finished last first (squeaky
wheel optimization, Joslin and Clements 1999), while that is faster. All of it is done for one piece per block, then for
more. Collectives that combine data are planned backwards; an allreduce is planned as two halves and, if that can be
faster, as an allgather of whole inputs, which are added on arrival.

Steps of the schedule only give the order of sends. Models with barriers between steps price such a schedule high, so
`tune` uses this planner under models without them.

Example: two boxes joined by one link, an allgather. Blocks of ranks next to the link cross first. Meanwhile those of
other ranks arrive there, so that the link is never idle. The block that has farthest to go in the other box is not the
last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Floats
from antiphon.core.request import Request
from antiphon.core.reshape import reverse
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import add_on_arrival, compose, dual, invert
from antiphon.errors import Infeasible, Unsupported
from antiphon.planners.dispatch.list_scheduling import Message, MessageTimes, list_messages, order_messages
from antiphon.planners.dispatch.network import SECOND, ArcNetwork
from antiphon.planners.dispatch.timed_trees import Delivery, TimedTree, TimedTreeGrower
from antiphon.planners.shared.reach import Path, suggest_planners
from antiphon.planners.shared.rows import PiecesOrBest, machine_for_dual

SPREADING = ("broadcast", "scatter", "allgather", "alltoall")  # planned as they are: they copy, without reducing
BUSY_SURCHARGE = 4.0  # a resource that was busy all the time costs 1 + this times as much as an idle one


@dataclass(frozen=True)
class DispatchLimits:
    """Limits of the search. Chosen on TE-CCL's cases (bench/bench_teccl.py)."""

    usual_bytes: int = 1024  # the size planned for if none is requested: small, so that latency decides
    pieces: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)  # per block
    min_bytes: int = 32  # of a piece
    min_gain: float = 1.002  # a number of pieces is a gain if it is this much faster
    patience: int = 2  # the search ends after this many numbers of pieces in turn without a gain
    # from the time of the slowest piece alone on an idle machine (0) to the best finishing time (1)
    deadlines: tuple[float, ...] = (0.25, 1.0)
    cycles: int = 6  # of all deadlines; from the second on, the pieces that finished last are taken first
    # limits of (pieces of all blocks) * (arcs of the machine); 320,000 take 35 CPU seconds on a ring of 4
    max_arcs: int = 2**19  # with one piece per block
    max_arcs_in_pieces: int = 2**17  # with more


LIMITS = DispatchLimits()


class _TimedSchedule(NamedTuple):
    """A schedule for a collective, its pieces per block, and when it finishes, in femtoseconds."""

    schedule: Schedule
    pieces: int
    finish: int


@dataclass(frozen=True)
class _Round:
    """The messages of a round, and when each is sent."""

    messages: Sequence[Message]
    run: MessageTimes


def dispatch(request: Request, *, pieces: PiecesOrBest = None) -> Iterator[Schedule]:
    """Yield for every size the schedule with the least finishing time that was found."""
    topology, collective = request.topology, request.collective
    sizes = [LIMITS.usual_bytes if nbytes is None else max(nbytes, 1) for nbytes in request.sizes]
    for nbytes in dict.fromkeys(sizes):
        schedule, piece_count, _ = _plan_collective(topology, collective, nbytes, pieces)
        yield replace(
            schedule, provenance={"planner": "dispatch", "options": {"pieces": piece_count}, "nbytes": nbytes}
        )


def _plan_collective(topology: Topology, collective: Collective, nbytes: int, pieces: int | None) -> _TimedSchedule:
    """Plan any collective for a size. `pieces`: per block; None: the best number."""
    if collective.kind in SPREADING:
        return _plan_spread(topology, collective, nbytes, pieces)
    if collective.kind == "allreduce":
        return _plan_allreduce(topology, collective, nbytes, pieces)
    # where switches multicast or reduce, only the reversed machine has the abilities that the dual needs
    # opposite: per link its opposite, if the machine is its own reverse; None: it is planned on the reversed machine
    machine, opposite = (reverse(topology), None) if topology.abilities else machine_for_dual(topology)
    spread = _plan_spread(machine, dual(collective).collective, nbytes, pieces)
    return spread._replace(schedule=invert(spread.schedule, opposite))


def _plan_allreduce(topology: Topology, collective: Collective, nbytes: int, pieces: int | None) -> _TimedSchedule:
    """Return the faster of two halves and an allgather of whole inputs."""
    scatter, gather = (
        Collective(kind, collective.ranks, collective.members) for kind in ("reducescatter", "allgather")
    )
    second = _plan_collective(topology, gather, nbytes, pieces)
    # in as many pieces, so that both halves move the same chunks
    first = _plan_collective(topology, scatter, nbytes, second.pieces)
    halves = _TimedSchedule(compose(first.schedule, second.schedule), second.pieces, first.finish + second.finish)
    # an allgather of whole inputs brings nbytes of every other member over the links into a rank
    entry_bandwidth = np.bincount(topology.link_dst, [float(topology.bandwidth(x)) for x in range(topology.links)])
    fastest_seconds = (len(collective.members) - 1) * nbytes / entry_bandwidth[list(collective.members)].min()
    if fastest_seconds * SECOND >= halves.finish:
        return halves
    whole_inputs = _plan_spread(topology, gather, nbytes * len(collective.members), pieces)
    if whole_inputs.finish >= halves.finish:
        return halves
    return whole_inputs._replace(schedule=add_on_arrival(whole_inputs.schedule, collective))


def _plan_spread(topology: Topology, collective: Collective, nbytes: int, pieces: int | None) -> _TimedSchedule:
    """Return the fastest schedule over several numbers of pieces."""
    network, best, best_count, patience = ArcNetwork(topology), None, 1, LIMITS.patience
    block_bytes: Floats = collective.weights.astype(np.float64) * (nbytes / collective.buffer_weight)
    for piece_count in LIMITS.pieces if pieces is None else (pieces,):
        # those of one piece per block, times the pieces: a list of all could be too long
        item_count = len(_list_items(network, collective, block_bytes / piece_count, 1)) * piece_count
        arcs = item_count * network.arcs
        if best is not None and (
            arcs > LIMITS.max_arcs_in_pieces or block_bytes.max(initial=0.0) < LIMITS.min_bytes * piece_count
        ):
            break
        if arcs > LIMITS.max_arcs:
            raise Unsupported(
                f"planner dispatch: {collective.kind} on {topology.name} in {item_count} pieces over {network.arcs} "
                f"hops takes too long; {suggest_planners(topology, collective, 'relay', 'flows', 'trees', 'compose')}"
            )
        plan = _search(network, _list_items(network, collective, block_bytes / piece_count, piece_count))
        patience -= 1  # full again after a clear gain
        if best is None or plan.run.finish * LIMITS.min_gain < best.run.finish:
            patience = LIMITS.patience
        if best is None or plan.run.finish < best.run.finish:
            best, best_count = plan, piece_count
        if not patience:
            break
    assert best is not None
    return _TimedSchedule(_to_schedule(collective, best, best_count), best_count, best.run.finish)


def _list_items(network: ArcNetwork, collective: Collective, piece_bytes: Floats, piece_count: int) -> list[Delivery]:
    """Return the pieces that somebody wants; `piece_bytes`: by block."""
    relation = collective.relation
    source = dict(zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True))
    receivers: dict[int, set[int]] = {block: set() for block in source}
    for block, rank in zip(relation.post_block.tolist(), relation.post_rank.tolist(), strict=True):
        receivers[block].add(rank)
    # by size of a piece: by resource, the femtoseconds for which the piece occupies it
    turns = {size: network.turns(size) for size in set(piece_bytes.tolist())}
    return [
        Delivery(
            chunk=piece * collective.blocks + block,  # as `cut` numbers them
            source=rank,
            receivers=frozenset(receivers[block] - {rank}),
            turns=turns[piece_bytes[block]],
        )
        for piece in range(piece_count)
        for block, rank in source.items()
        if receivers[block] - {rank}
    ]


def _search(network: ArcNetwork, items: Sequence[Delivery]) -> _Round:
    """Return the fastest plan of several rounds."""
    best = _plan_round(network, items, deadline=None, previous=None)
    # no piece arrives earlier than alone on an idle machine (prices do not matter without a deadline)
    floor = max((_grow(TimedTreeGrower(network, price=[]), item, deadline=None).finish for item in items), default=0)
    for cycle in range(LIMITS.cycles):
        finish_before = best.run.finish
        for share in LIMITS.deadlines:
            if best.run.finish <= floor:
                return best
            deadline = floor + int(share * (best.run.finish - floor))
            plan = _plan_round(network, items, deadline, best)
            if plan.run.finish < best.run.finish:
                best = plan
        if cycle and best.run.finish == finish_before:  # the first cycle has not yet taken late pieces first
            break
        finish: dict[int, int] = {}  # by chunk
        for message, end in zip(best.messages, best.run.ends, strict=True):
            finish[message.chunk] = max(finish.get(message.chunk, 0), end)
        items = sorted(items, key=lambda item: -finish[item.chunk])
    return best


def _plan_round(
    network: ArcNetwork, items: Sequence[Delivery], deadline: int | None, previous: _Round | None
) -> _Round:
    """Grow the trees of all items in this order, then order their messages.

    `deadline`: femtoseconds in which each tree should arrive; None: as early as it can. Resources that are busy in the
    `previous` round cost more.
    """
    load = [0] * len(network.pace)  # femtoseconds by resource, as `pace` is by resource
    for message in previous.messages if previous is not None else ():
        for resource, turn in message.turns.items():
            load[resource] += turn
    fullest = max(load, default=0) or 1
    grower = TimedTreeGrower(network, [1 + BUSY_SURCHARGE * busy / fullest for busy in load])
    messages = list_messages([_grow(grower, item, deadline) for item in items], network.ranks)
    return _Round(messages, order_messages(messages, len(network.pace)))


def _grow(grower: TimedTreeGrower, item: Delivery, deadline: int | None) -> TimedTree:
    """Return the tree of an item; Infeasible if a receiver is out of reach."""
    tree = grower.grow(item, deadline)
    if tree is None:
        raise Infeasible(
            f"planner dispatch: no links lead from rank {item.source} of {grower.network.topology.name} to all ranks "
            "that want its data, not even by way of others; no planner can do that"
        )
    return tree


def _to_schedule(collective: Collective, plan: _Round, piece_count: int) -> Schedule:
    """Return the schedule: each message in the first step after those that it waits for, for data or for a link."""
    routes: dict[Path, int] = {}
    rows: list[tuple[int, ...]] = []  # step, chunk, from, to, op, route, joint
    last_step: dict[int, int] = {}  # by resource
    steps = [0] * len(plan.messages)
    for position, number in enumerate(plan.run.order):
        message = plan.messages[number]
        data = steps[message.before] if message.before >= 0 else -1
        step = steps[number] = 1 + max(data, *(last_step.get(resource, -1) for resource in message.turns))
        last_step.update(dict.fromkeys(message.turns, step))
        for receiver, path in message.receivers:
            route = routes.setdefault(path, len(routes))
            joint = position if len(message.receivers) > 1 else -1  # a multicast by switches
            rows.append((step, message.chunk, message.source, receiver, COPY, route, joint))
    step_column, chunk, src, dst, op, route_column, joint_column = np.array(rows, np.int32).reshape(-1, 7).T
    return Schedule(
        collective, cut(collective, piece_count), step_column, chunk, src, dst, op.astype(np.uint8), route=route_column,
        routes=Routes.of(routes), joint=joint_column,
    )  # fmt: skip
