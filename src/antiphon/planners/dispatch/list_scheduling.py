"""Order the messages on every link: list scheduling by the longest remaining path, improved forwards and backwards.

The planner `dispatch` calls `list_messages`, then `order_messages`, with the trees of timed_trees.py. The messages of
all trees are jobs: each can start when its data have arrived, and takes turns on (occupies) its resources, which are
links and shared limits. Of several waiting messages the one with the longest remaining path goes first: its own time
and that of the messages that wait for its data. But that path leaves out queueing behind other messages. So the run is
repeated backwards in time, where the message that ended last goes first. The later a message ends in the backward run,
the higher is its priority in the next forward run (forward-backward improvement, Li and Willis 1992). The best run is
the result.

Example: two messages wait for a link. The first goes to a rank that keeps it, the second to a rank that forwards it
twice. The second is sent first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.planners.dispatch.network import Arc
from antiphon.planners.dispatch.timed_trees import TimedTree
from antiphon.planners.shared.reach import Path

FORWARD_RUNS = 4  # the first one, and three improvements by a backward run each


@dataclass
class Message:
    """A chunk sent from one rank to one or, multicast by switches, to several."""

    chunk: int
    source: int
    receivers: list[tuple[int, Path]] = field(default_factory=list)
    turns: dict[int, int] = field(default_factory=dict)  # resource -> femtoseconds, in the order of the path
    latency: int = 0  # femtoseconds, the greatest of all receivers
    before: int = -1  # the message that brings the data to the source; -1: the source has them from the beginning
    after: list[int] = field(default_factory=list)  # messages that wait for this one


@dataclass(frozen=True)
class MessageTimes:
    """When messages start and end, in femtoseconds, and the order in which they are sent."""

    finish: int
    starts: list[int]
    ends: list[int]
    order: list[int]


def list_messages(trees: Sequence[TimedTree], ranks: int) -> list[Message]:
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


def _add_turns(message: Message, tree: TimedTree, arc: Arc) -> None:
    """Add the turns of an arc; a resource that the message passes twice has one turn of twice the length."""
    for resource in arc.resources:
        message.turns[resource] = message.turns.get(resource, 0) + tree.item.turns[resource]


def order_messages(messages: Sequence[Message], resources: int) -> MessageTimes:
    """Return the best run of all messages."""
    remaining = [0] * len(messages)  # femtoseconds from the start of a message to the end of its longest path
    for number in range(len(messages) - 1, -1, -1):
        message = messages[number]
        longest_turn = max(message.turns.values(), default=0)
        remaining[number] = (
            longest_turn + message.latency + max((remaining[follower] for follower in message.after), default=0)
        )
    best = run = _run(messages, resources, [-path for path in remaining])
    for _ in range(FORWARD_RUNS - 1):
        backward_run = _run(messages, resources, [-end for end in run.ends], backwards=True)
        run = _run(messages, resources, [-end for end in backward_run.ends])
        if run.finish < best.finish:
            best = run
    return best


def _run(messages: Sequence[Message], resources: int, priority: Sequence[int], backwards: bool = False) -> MessageTimes:
    """Send every message as soon as its data are there and its first resource is free.

    At its further resources a message queues behind those that were sent before it. Of several messages, the one with
    the least `priority` is sent first. `backwards`: time is reversed, so a message waits for its followers, and its
    last resource comes first.
    """
    # by message, the number of others that must still end before it may start
    missing = [len(m.after) if backwards else int(m.before >= 0) for m in messages]
    first_resource = [next(iter(reversed(m.turns) if backwards else m.turns)) for m in messages]
    ready, starts, ends = ([0] * len(messages) for _ in range(3))
    free_at = [0] * resources
    queues: list[list[tuple[int, int]]] = [[] for _ in range(resources)]  # ready messages, by first resource
    # (time, 0, message): it becomes ready; (time, 1, resource): the resource may take the next message of its queue
    events = [(0, 0, number) for number, count in enumerate(missing) if not count]
    order: list[int] = []
    while events:
        now, is_turn, number = heapq.heappop(events)
        if not is_turn:
            queue, resource = queues[first_resource[number]], first_resource[number]
            heapq.heappush(queue, (priority[number], number))
            if len(queue) == 1:
                heapq.heappush(events, (max(now, free_at[resource]), 1, resource))
            continue
        if free_at[number] > now:  # another message took a turn meanwhile
            heapq.heappush(events, (free_at[number], 1, number))
            continue
        _, sent = heapq.heappop(queues[number])
        message, end = messages[sent], now
        for resource, turn in message.turns.items():
            free_at[resource] = max(now, free_at[resource]) + turn
            end = max(end, free_at[resource])
        starts[sent], ends[sent] = now, end + message.latency
        order.append(sent)
        if queues[number]:
            heapq.heappush(events, (free_at[number], 1, number))
        for follower in ([message.before] if message.before >= 0 else []) if backwards else message.after:
            ready[follower] = max(ready[follower], ends[sent])
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(events, (ready[follower], 0, follower))
    return MessageTimes(max(ends, default=0), starts, ends, order)
