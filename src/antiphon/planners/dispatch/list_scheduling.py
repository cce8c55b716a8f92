"""Order the messages on every link: list scheduling by the longest remaining path, improved forwards and backwards.

The messages of all trees are jobs: each can start when its data have arrived, and takes turns on its resources. Of
several waiting messages the one with the longest remaining path goes first: its own time and that of the messages that
wait for it. But that path leaves out what these will have to wait for. So the run is repeated backwards in time, where
the message that ended last goes first; the later a message ends there, the earlier it must start, and that is its
priority in the next run forwards (forward-backward improvement, Li and Willis 1992). The best run is the result.

Example: two messages wait for a link, one to a rank that keeps it, one to a rank that forwards it twice. The latter
goes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.planners.dispatch.network import Arc
from antiphon.planners.dispatch.timed_trees import Tree
from antiphon.planners.shared.reach import Path

ROUNDS = 4  # runs forwards


@dataclass
class Message:
    """A chunk sent from one rank to one or, multicast by switches, to several."""

    chunk: int
    source: int
    receivers: list[tuple[int, Path]] = field(default_factory=list)
    turns: dict[int, int] = field(default_factory=dict)  # resource -> femtoseconds
    latency: int = 0  # the greatest of all receivers
    before: int = -1  # the message that brought the data to the source; -1: it begins with them
    after: list[int] = field(default_factory=list)  # messages that wait for this one


@dataclass(frozen=True)
class Run:
    """When messages start and end, in femtoseconds, and the order in which they are sent."""

    finish: int
    starts: list[int]
    ends: list[int]
    order: list[int]


def list_messages(trees: Sequence[Tree], ranks: int) -> list[Message]:
    """Return the messages of trees; those of a tree follow the messages that they wait for."""
    messages: list[Message] = []
    for tree in trees:
        message_to: dict[int, int] = {}  # node -> the message that reaches it
        path_to: dict[int, tuple[Path, int]] = {}  # switch -> its path from the sender, and the latency of that
        for node, arc in tree.arcs.items():
            if arc.tail in path_to:  # at a switch: the message goes on
                number, (path, latency) = message_to[arc.tail], path_to[arc.tail]
            else:
                number, path, latency = len(messages), (), 0
                before = message_to.get(arc.tail, -1)
                messages.append(Message(tree.item.chunk, arc.tail, before=before))
                if before >= 0:
                    messages[before].after.append(number)
            message = messages[number]
            message_to[node], path, latency = number, path + arc.links, latency + arc.latency
            _add_turns(message, tree, arc)
            if node < ranks:
                message.receivers.append((node, path))
                message.latency = max(message.latency, latency)
            else:
                path_to[node] = path, latency
    return messages


def _add_turns(message: Message, tree: Tree, arc: Arc) -> None:
    for resource in arc.resources:
        message.turns[resource] = message.turns.get(resource, 0) + tree.item.turns[resource]


def order_messages(messages: Sequence[Message], resources: int) -> Run:
    """Return the best run of all messages."""
    tail = [0] * len(messages)
    for number in range(len(messages) - 1, -1, -1):
        message = messages[number]
        longest_turn = max(message.turns.values(), default=0)
        tail[number] = longest_turn + message.latency + max((tail[other] for other in message.after), default=0)
    best = run = _run(messages, resources, [-seconds for seconds in tail])
    for _ in range(ROUNDS - 1):
        back = _run(messages, resources, [-end for end in run.ends], backwards=True)
        run = _run(messages, resources, [-end for end in back.ends])
        if run.finish < best.finish:
            best = run
    return best


def _run(messages: Sequence[Message], resources: int, priority: Sequence[int], backwards: bool = False) -> Run:
    """Send every message as soon as its data and its first resource are free; of several, that of least priority.

    Backwards in time, a message waits for those that wait for it, and its last resource is its first.
    """
    waits = [len(m.after) if backwards else int(m.before >= 0) for m in messages]
    gate = [next(iter(reversed(m.turns) if backwards else m.turns)) for m in messages]
    ready, starts, ends = ([0] * len(messages) for _ in range(3))
    free = [0] * resources
    queues: list[list[tuple[int, int]]] = [[] for _ in range(resources)]  # ready messages, by first resource
    # (time, 0, message): it becomes ready; (time, 1, resource): the resource may take the next message of its queue
    events = [(0, 0, number) for number, count in enumerate(waits) if not count]
    order: list[int] = []
    while events:
        now, kind, number = heapq.heappop(events)
        if not kind:
            queue, resource = queues[gate[number]], gate[number]
            heapq.heappush(queue, (priority[number], number))
            if len(queue) == 1:
                heapq.heappush(events, (max(now, free[resource]), 1, resource))
            continue
        if free[number] > now:  # another message took a turn meanwhile
            heapq.heappush(events, (free[number], 1, number))
            continue
        _, sent = heapq.heappop(queues[number])
        message, end = messages[sent], now
        for resource, turn in message.turns.items():
            free[resource] = max(now, free[resource]) + turn
            end = max(end, free[resource])
        starts[sent], ends[sent] = now, end + message.latency
        order.append(sent)
        if queues[number]:
            heapq.heappush(events, (free[number], 1, number))
        for other in ([message.before] if message.before >= 0 else []) if backwards else message.after:
            ready[other] = max(ready[other], ends[sent])
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(events, (ready[other], 0, other))
    return Run(max(ends, default=0), starts, ends, order)
