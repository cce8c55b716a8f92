"""A plain linear program for the least wire time of so many steps, as an oracle for the bound by size.

What goes over each route from rank to rank in each step is a variable, and so is a flow of its own from the holders to
every rank; no flow may exceed what goes between two ranks. Written out in full, without cuts, symmetries or duals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from antiphon.core.topology import Topology

Terms = list[tuple[int, float]]


def list_routes(machine: Topology) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Every route from a rank to another, through no switch twice."""

    def onward(start: int, node: int, links: tuple[int, ...], seen: frozenset[int]):  # type: ignore[no-untyped-def]
        for link in np.flatnonzero(machine.link_src == node).tolist():
            head = int(machine.link_dst[link])
            if head < machine.ranks and head != start:
                yield start, head, (*links, link)
            elif head >= machine.ranks and head not in seen:
                yield from onward(start, head, (*links, link), seen | {head})

    for rank in range(machine.ranks):
        yield from onward(rank, rank, (), frozenset())


def least_wire_seconds(machine: Topology, steps: int, demands: Sequence[tuple[Sequence[float], int]]) -> float:
    """Least seconds of wire time per byte; `demands`: the bytes that each rank holds, and who needs all of them."""
    routes, ranks = list(list_routes(machine)), machine.ranks
    count = len(routes)
    first = steps + count * steps  # of the variables of the flows: over routes, then what stays at a rank
    per_flow = (count + ranks) * steps
    upper: list[Terms] = []
    equal: list[tuple[Terms, float]] = []
    resources: list[tuple[tuple[int, ...], float]] = [
        ((link,), float(machine.bandwidth(link))) for link in range(machine.links)
    ]
    resources += [(tuple(limit.links), float(limit.bandwidth)) for limit in machine.limits]
    for step in range(steps):
        at = steps + step * count
        for links, width in resources:
            uses = [(at + r, float(sum(link in links for link in route))) for r, (_, _, route) in enumerate(routes)]
            upper.append([(step, -width / 1e9), *((i, n) for i, n in uses if n)])
        for d in range(len(demands)):
            upper += [[(first + d * per_flow + step * count + r, 1.0), (at + r, -1.0)] for r in range(count)]
    for d, (supply, sink) in enumerate(demands):
        flow, stay = first + d * per_flow, first + d * per_flow + count * steps
        for time in range(steps + 1):
            for rank in range(ranks):
                terms: Terms = []
                if time:
                    terms.append((stay + (time - 1) * ranks + rank, 1.0))
                    into = [r for r, route in enumerate(routes) if route[1] == rank]
                    terms += [(flow + (time - 1) * count + r, 1.0) for r in into]
                if time < steps:
                    terms.append((stay + time * ranks + rank, -1.0))
                    out = [r for r, route in enumerate(routes) if route[0] == rank]
                    terms += [(flow + time * count + r, -1.0) for r in out]
                held = -float(supply[rank]) if time == 0 else 0.0
                equal.append((terms, held + (sum(supply) if time == steps and rank == sink else 0.0)))
    variables = first + per_flow * len(demands)

    def matrix(rows: Sequence[Terms]) -> csr_matrix:
        entries = [(i, column, value) for i, terms in enumerate(rows) for column, value in terms]
        row, column, value = zip(*entries, strict=True)
        return csr_matrix((value, (row, column)), shape=(len(rows), variables))

    costs = np.where(np.arange(variables) < steps, 1.0, 0.0)
    result = linprog(
        costs, A_ub=matrix(upper), b_ub=np.zeros(len(upper)), A_eq=matrix([terms for terms, _ in equal]),
        b_eq=[value for _, value in equal], method="highs",
    )  # fmt: skip
    return float(result.fun) / 1e9 if result.status == 0 else float("inf")
