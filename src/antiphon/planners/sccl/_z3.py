"""The engine `z3`: the encoding of SCCL, section 3.4, as it is printed, mended and generalised. The reference.

An integer time[c, n] says when chunk c comes to rank n (SCCL counts from 1 what is sent in step 0; S + 1 is never),
a Boolean snd[c, a] whether it comes over arc a, at whatever time. Rounds are integers. Where the text is mended:
never is S + 1 and then nothing is sent there, to where a chunk is from the first nothing is sent at all, and a link
stands in E only if it has bandwidth. Generalised: arcs are paths through switches too, and load all on their way;
capacities are fractions. It uses no symmetry and no distances, and shares with engines that others than z3 answer
nothing but the form of the answer.
"""

from __future__ import annotations

from antiphon.core.ksync.instance import Kind
from antiphon.planners.sccl._group import Group
from antiphon.planners.sccl._smt import Model, Script, any_of, bound_loads, declare_rounds
from antiphon.planners.sccl._task import Answer, Effort, Move, Task, tidy


def z3(task: Task, group: Group, effort: Effort) -> Answer:
    """Ask z3; the group is left alone. Refuted: for this split if one is given. O(chunks * arcs * steps) terms.

    Free rounds make the sums weighted, which its finite-domain solver takes best; fixed ones leave counts, and
    there the order of the times weighs more, which the arithmetic of its core takes best.
    """
    script = Script()
    kinds = task.instance.kinds
    chunks = [(k, i) for k, kind in enumerate(kinds) for i in range(len(task.instance.chunks(kind, task.parts)))]
    most = declare_rounds(script, task)
    for c, (k, _) in enumerate(chunks):
        _chunk(script, task, c, kinds[k])
    head = task.instance.arcs.head.tolist()
    coming = [[c for c, (k, _) in enumerate(chunks) if head[arc] not in kinds[k].holders] for arc in range(len(head))]

    def sends(arc: int, step: int) -> list[str]:
        return [f"(and {_snd(c, arc)} (= {_time(c, head[arc])} {step + 1}))" for c in coming[arc]]

    bound_loads(script, task, most, sends)
    free = task.split is None and task.rounds > task.steps
    model, none = script.ask(free, effort)
    if model is None:
        return Answer(None, refuted=none)
    return Answer(tuple(move for c, (k, i) in enumerate(chunks) for move in _moves(task, model, c, k, i)))


def _time(chunk: int, rank: int) -> str:
    return f"t{chunk}_{rank}"


def _snd(chunk: int, arc: int) -> str:
    return f"x{chunk}_{arc}"


def _chunk(script: Script, task: Task, c: int, kind: Kind) -> None:
    """C1 to C4 for one chunk."""
    arcs, steps = task.instance.arcs, task.steps
    into: list[list[str]] = [[] for _ in range(task.instance.ranks)]
    for rank in range(task.instance.ranks):
        if rank not in kind.holders:  # C1: holders have it at time 0, and need no variable
            script.declare(_time(c, rank), "Int")
            script.within(_time(c, rank), 1, steps if rank in kind.dests else steps + 1)  # C2
    for arc, (a, b) in enumerate(zip(arcs.tail.tolist(), arcs.head.tolist(), strict=True)):
        if b not in kind.holders:
            into[b].append(script.declare(_snd(c, arc), "Bool"))
            if a not in kind.holders:
                script.hold(f"(=> {_snd(c, arc)} (< {_time(c, a)} {_time(c, b)}))")  # C4
    for rank, sends in enumerate(into):
        if rank in kind.dests:  # C3
            script.one(sends)
        elif rank not in kind.holders:
            script.at_most(sends, 1)
            script.hold(f"(= (<= {_time(c, rank)} {steps}) {any_of(sends)})")


def _moves(task: Task, model: Model, c: int, kind: int, number: int) -> list[Move]:
    arcs = task.instance.arcs
    sent = []
    for arc, path in enumerate(arcs.paths):
        chosen = model.get(_snd(c, arc))
        if chosen is not None and bool(chosen):
            sent.append((path, model[_time(c, int(arcs.head[arc]))].as_long() - 1))
    return [(kind, number, path, step) for path, step in tidy(task.instance, kind, sent)]
