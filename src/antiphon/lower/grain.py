"""The grain of a program: how many equal chunks a unit of weight must be cut into, so that all addresses are whole."""

from __future__ import annotations

import math

import numpy as np

from antiphon.core.program import Bound, Program, bind
from antiphon.errors import Unsupported


def grain(program: Program) -> int:
    """The least number of elements of a unit at which every point lies at a whole number without rounding. O(points).

    Two ranks that swap their blocks whole, and in halves:

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.lowering import lower
    >>> whole = [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)]
    >>> halves = [*whole, (0, 2, 0, 1, 0), (0, 3, 1, 0, 0)]
    >>> grain(lower(of_rows("allgather", 2, whole))), grain(lower(of_rows("allgather", 2, halves, parts=2)))
    (1, 2)
    """
    return program.denominator // math.gcd(program.denominator, int(np.gcd.reduce(program.point_part, initial=0)))


def chunked(program: Program, most: int, what: str) -> Bound:
    """The addresses of a program counted in chunks: those at its grain. `most`: chunks that a buffer may have.

    Of all sizes with count elements in a block, runtimes take those that the grain divides, and scale the addresses.
    Unsupported, in the name of `what`, where a buffer has more chunks.
    """
    least = grain(program)
    heaviest = int(max(size.max(initial=0) for size in program.weights))
    if least * max(heaviest, 1) > most:
        raise Unsupported(
            f"{what}: all its chunks are equal, and to cut a unit into {least} of them makes {least * heaviest} in a "
            f"buffer, of at most {most}; take fewer chunks, or a planner that cuts blocks evenly"
        )
    bound = bind(program, least)
    scratch = int(bound.sizes.max(initial=0))
    if scratch > most:
        raise Unsupported(
            f"{what}: {scratch} chunks of scratch at one rank, of at most {most}; take fewer chunks, or another planner"
        )
    return bound
