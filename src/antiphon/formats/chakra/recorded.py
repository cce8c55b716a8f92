"""Chakra execution traces as a recorded job: what is computed, and what waits for what by their dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.cost.replay.job import ProcessGroup
from antiphon.cost.replay.recorded import Heard, Recorded
from antiphon.errors import Invalid
from antiphon.formats.chakra.nodes import COLLECTIVE, COMPUTE, Node, read_in_order
from antiphon.formats.chakra.read import Heard as Files
from antiphon.formats.chakra.read import collective_of, groups_of

_US = 1e-6


def recorded_of(traces: Files) -> list[Recorded]:
    """Of each rank: computation one after another, on one lane, in an order in which it may; collectives beside it, of
    one group one after another. The times of nodes are how long they take; when they began is not looked at."""
    return [_recorded(rank, nodes, len(traces)) for rank, (_, nodes) in traces.items()]


def _recorded(rank: int, nodes: Sequence[Node], ranks: int) -> Recorded:
    process_groups = groups_of(nodes)
    groups: dict[str, ProcessGroup] = {}
    calls: list[Heard] = []
    waits: list[tuple[float, float, int]] = []
    done: dict[int, tuple[float, int]] = {}  # of a node when it is done, and the last collective that it comes after
    waited: set[int] = set()
    now, free = 0.0, dict[str, float]()
    for node in sorted_as_recorded(nodes):
        before = [done[other] for other in node.waits]
        after = max((call for _, call in before), key=lambda call: calls[call].end if call >= 0 else -1.0, default=-1)
        if node.type == COMPUTE:
            if after >= 0 and after not in waited:
                waits.append((now, max(now, calls[after].end), after))
                now = max(now, calls[after].end)
                waited.add(after)
            now += node.duration_us * _US
            done[node.id] = now, -1
        elif node.type == COLLECTIVE:
            row: dict[str, Any] = collective_of(node, process_groups)
            name, members = row["group"], tuple(row["members"] or ())
            groups.setdefault(name, ProcessGroup(name, len(members) or ranks, members))
            called = max([0.0, *(at for at, _ in before)])
            begin = max(called, free.get(name, 0.0))
            free[name] = begin + node.duration_us * _US
            calls.append(Heard(row["collective"], row["nbytes"], name, min(called, now), begin, free[name], name, 0))
            done[node.id] = free[name], len(calls) - 1
        else:
            done[node.id] = max([0.0, *(at for at, _ in before)]), after
    if not calls:
        raise Invalid(f"rank {rank}: has no collectives")
    end = max([now, *(call.end for call in calls)])
    if not end > 0:
        raise Invalid(f"rank {rank}: no node tells how long it took (duration_micros)")
    return Recorded(rank, "", groups, [(0.0, end)], calls, waits)


def sorted_as_recorded(nodes: Sequence[Node]) -> list[Node]:
    """Each after all that it waits for, and otherwise in the order in which they began, where that is told."""
    return list(read_in_order(sorted(nodes, key=lambda node: (node.start_us, node.id))))
