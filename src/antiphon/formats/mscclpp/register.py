"""A small module beside the plans that hands them to MSCCL++: which plan is for which call."""

from __future__ import annotations

from antiphon.core.collective import Collective

_TEXT = '''"""Hands the execution plans beside this file to MSCCL++. Written by Antiphon; unproven on GPUs.

    import register
    builder = mscclpp.ext.AlgorithmCollectionBuilder()
    register.register(builder, rank, world_size, ranks_per_node)

`register` refuses, with a RuntimeError that says why, what the plans are not for. `select` chooses by collective, size
and place; for a call that no plan fits it gives None, and MSCCL++ goes on with its own. So it does for calls with a
root, which requests do not tell. With a selector of your own, call `select(algorithms, request)` from it. Older
versions have an ExecutionPlanRegistry instead: use `fitting` with that.
"""

import os

COLLECTIVE = {collective!r}
RANKS = {ranks}
RANKS_PER_NODE = {per_node}  # 0: any
ROOTS = {roots!r}
# file, name of the plan, in place, smallest and largest size in bytes, and what sizes must be multiples of
PLANS = (
{rows})
_HERE = os.path.dirname(os.path.abspath(__file__))


def check(world_size, ranks_per_node):
    """RuntimeError where the plans are for other jobs."""
    if world_size != RANKS:
        raise RuntimeError(f"these plans are for {{RANKS}} ranks, not for {{world_size}}")
    if RANKS_PER_NODE and ranks_per_node != RANKS_PER_NODE:
        raise RuntimeError(f"these plans are for {{RANKS_PER_NODE}} ranks per node, not for {{ranks_per_node}}")
    for file, *_ in PLANS:
        if not os.path.isfile(os.path.join(_HERE, file)):
            raise RuntimeError(f"{{file}} is missing beside {{__file__}}")


def fitting(collective, nbytes, in_place, root=None):
    """The name of the plan for a call, or None."""
    if collective != COLLECTIVE or (ROOTS and root is not None and (root,) != ROOTS):
        return None
    for _, name, place, smallest, largest, unit in PLANS:
        if place == in_place and smallest <= nbytes <= largest and nbytes and nbytes % unit == 0:
            return name
    return None


def select(algorithms, request):
    """A selector: what fits the request, of the algorithms that were registered, by collective and name."""
    if ROOTS or request.world_size != RANKS or (RANKS_PER_NODE and request.n_ranks_per_node != RANKS_PER_NODE):
        return None
    mode = request.buffer_mode()
    in_place = getattr(mode, "name", str(mode)).upper().replace("_", "").endswith("INPLACE")
    name = fitting(request.collective, request.message_size, in_place)
    return algorithms.get(COLLECTIVE, {{}}).get(name) if name else None


def register(builder, rank, world_size, ranks_per_node):
    """Add all plans, and the selector, to an AlgorithmCollectionBuilder of mscclpp.ext; gives the algorithms."""
    check(world_size, ranks_per_node)
    import mscclpp

    made = []
    for file, name, *_ in PLANS:
        plan = mscclpp.ExecutionPlan(os.path.join(_HERE, file), rank)
        constraint = mscclpp.Algorithm.Constraint(world_size=RANKS, n_ranks_per_node=RANKS_PER_NODE)
        made.append(mscclpp.Algorithm(id=name, execution_plan=plan, tags={{}}, constraint=constraint))
        builder.add_algorithm_builder(made[-1])
    builder.set_algorithm_selector(select)
    return made
'''


Row = tuple[str, str, bool, int, int, int]


def registration(collective: Collective, rows: list[Row], per_node: int) -> bytes:
    """`rows`: file, name, in place, smallest and largest size, and of what a multiple. `per_node`: ranks of each host,
    0 where these differ."""
    told = "".join(f"    {row!r},\n" for row in rows)
    return _TEXT.format(
        collective=collective.kind, ranks=collective.ranks, per_node=per_node, roots=collective.roots, rows=told
    ).encode()
