"""The engine `boolean`: the direct encoding that SCCL is compared with in section 5.4.3. For the ablation.

One Boolean per tuple (chunk, arc, step) of the algorithm, and nothing else but the rounds: what is sent was there at
first or was sent there in an earlier step; what is wanted is sent there in some step; a rank gets a chunk once.
"""

from __future__ import annotations

from antiphon.core.ksync.instance import Kind
from antiphon.planners.sccl._group import Group
from antiphon.planners.sccl._smt import Script, any_of, bound_loads, declare_rounds
from antiphon.planners.sccl._task import Answer, Effort, Move, Task, tidy


def boolean(task: Task, group: Group, effort: Effort) -> Answer:
    """Ask z3; the group is left alone. Refuted: for this split if one is given. O(chunks * arcs * steps) Booleans."""
    script = Script()
    kinds = task.instance.kinds
    chunks = [(k, i) for k, kind in enumerate(kinds) for i in range(len(task.instance.chunks(kind, task.parts)))]
    most = declare_rounds(script, task)
    for c, (k, _) in enumerate(chunks):
        _chunk(script, task, c, kinds[k])
    head = task.instance.arcs.head.tolist()
    coming = [[c for c, (k, _) in enumerate(chunks) if head[arc] not in kinds[k].holders] for arc in range(len(head))]
    bound_loads(script, task, most, lambda arc, step: [_send(c, arc, step) for c in coming[arc]])
    model, none = script.ask(True, effort)
    if model is None:
        return Answer(None, refuted=none)
    moves: list[Move] = []
    for c, (k, i) in enumerate(chunks):
        sent = [
            (path, step)
            for arc, path in enumerate(task.instance.arcs.paths)
            for step in range(task.steps)
            if (chosen := model.get(_send(c, arc, step))) is not None and bool(chosen)
        ]
        moves += [(k, i, path, step) for path, step in tidy(task.instance, k, sent)]
    return Answer(tuple(moves))


def _send(chunk: int, arc: int, step: int) -> str:
    return f"x{chunk}_{arc}_{step}"


def _chunk(script: Script, task: Task, c: int, kind: Kind) -> None:
    arcs, steps = task.instance.arcs, range(task.steps)
    into: list[list[int]] = [[] for _ in range(task.instance.ranks)]
    for arc, b in enumerate(arcs.head.tolist()):
        if b not in kind.holders:
            into[b].append(arc)
    for rank, coming in enumerate(into):
        all_of = [script.declare(_send(c, arc, step), "Bool") for step in steps for arc in coming]
        script.at_most(all_of, 1)
        if rank in kind.dests:
            script.either(all_of)
    for arc, (a, b) in enumerate(zip(arcs.tail.tolist(), arcs.head.tolist(), strict=True)):
        if b in kind.holders or a in kind.holders:
            continue
        for step in steps:
            earlier = [_send(c, other, before) for before in range(step) for other in into[a]]
            script.hold(f"(=> {_send(c, arc, step)} {any_of(earlier)})")
