"""The alpha-beta time of a schedule by docs/models.md, written apart from antiphon.cost: steps are barriers.

Only the columns of a schedule, the lists of a topology and the words of a collective are used.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

from _meaning import Judge

MAX_LOADS = 20_000


class TooManyLoadsError(Exception):
    """More rows times pieces than are worth summing in fractions."""


def figures(machine: Any, profile: Any) -> tuple[list[Fraction], list[float], list[tuple[tuple[int, ...], Fraction]]]:
    """Bytes per second and latency of every link, and the shared limits, with a profile's overrides by kind."""
    kinds = [machine.types[at] for at in machine.link_type.tolist()]
    factor = [Fraction(profile.bandwidth_factor.get(kind.kind, 1)) for kind in kinds]
    widths = [kind.bandwidth * scale for kind, scale in zip(kinds, factor, strict=True)]
    late = [profile.alpha.get(kind.kind, kind.latency) for kind in kinds]
    limits = [(limit.links, limit.bandwidth * max(factor[x] for x in limit.links)) for limit in machine.limits]
    return widths, late, limits


def step_costs(schedule: Any, machine: Any, judge: Judge, profile: Any) -> list[tuple[float, Fraction]]:
    """Latency and wire time per byte of nbytes of every step, alpha-beta as docs/models.md defines it."""
    joined = judge.joined(schedule)
    widths, late, limits = figures(machine, profile)
    weights, chunks = schedule.collective.weights.tolist(), schedule.chunks
    share = [
        Fraction(part * weights[block], chunks.denominator * schedule.collective.buffer_weight)
        for part, block in zip(chunks.share.tolist(), chunks.block.tolist(), strict=True)
    ]
    messages: list[tuple[int, int, float, set[int]]] = []  # step, chunk, latency, links
    for row, path in zip(joined.rows, joined.paths, strict=True):
        alone = row["joint"] not in joined.drawn
        if path and share[row["chunk"]]:
            links = {*path} if alone else set()
            messages.append((row["step"], row["chunk"], sum(late[x] for x in path), links))
    for drawn in joined.drawn.values():
        own = drawn.own(joined.can)
        links = drawn.links | ({own} if own is not None else set())
        if share[drawn.rows[0]["chunk"]]:
            messages.append((drawn.rows[0]["step"], drawn.rows[0]["chunk"], 0.0, links))
    if sum(joined.pieces(chunk) for _, chunk, _, _ in messages) > MAX_LOADS:
        raise TooManyLoadsError
    loads: dict[int, dict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    latency: dict[int, float] = defaultdict(float)
    for step, chunk, seconds, links in messages:
        pieces = joined.pieces(chunk)
        for at in range(step, step + pieces):
            latency[at] = max(latency[at], seconds)
            for link in links:
                loads[at][link] += share[chunk] / pieces
    costs = []
    for at in sorted(latency):
        load = loads[at]
        wire = [load[link] / widths[link] for link in load]
        wire += [sum(load.get(link, Fraction(0)) for link in links) / width for links, width in limits]
        costs.append((latency[at], max(wire, default=Fraction(0))))
    return costs
