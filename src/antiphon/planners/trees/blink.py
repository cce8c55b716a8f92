"""The planner `blink`: spanning trees packed as published (docs/planners/blink.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from antiphon.core.bounds import bound
from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.bounds.network import network_of
from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.reshape import reverse
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import dual, invert
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.options import parse_yes
from antiphon.planners.shared.pieces import piped
from antiphon.planners.shared.places import hosts
from antiphon.planners.trees._published import Asked, Set, local_trees, packed
from antiphon.planners.trees.allreduce import allreduces
from antiphon.planners.trees.hybrid import split
from antiphon.planners.trees.lay import reduce_and_spread, spread
from antiphon.planners.trees.restrict import Slice, of_kinds, with_links, within
from antiphon.planners.trees.servers import three_phases
from antiphon.planners.trees.tree import Tree

TURNED = ("reduce", "gather", "reducescatter")
MOST_RANKS = 64
LEAST_EPSILON = Fraction(1, 200)  # rounds grow with 1 / epsilon^2: some seconds


@dataclass(frozen=True)
class _Asked(Asked):
    """And whether slower links serve as well, and how long it takes until they may."""

    hybrid: bool = False
    waiting: Fraction = Fraction(0)
    nbytes: int | None = None


def blink(
    request: Request,
    *,
    pieces: int | None = None,
    epsilon: float = 0.05,
    threshold: float | str | Fraction = Fraction(1, 20),
    hybrid: bool = False,
    t_dpa: float = 0.0,
) -> Iterator[Schedule]:
    """Yields the packing of trees, pipelined in `pieces`: the best for `nbytes`, or several where none is given.

    `epsilon`: how near the multiplicative weights come to the optimum (3.2); `threshold`: how far from it the integer
    program may stay to have few trees (3.2.1). `hybrid`: slower links carry a set of trees of their own, with the split
    of Equation 8, `t_dpa` seconds later (3.4). Several servers: an allreduce in three phases (3.5).
    """
    if hybrid and len(request.sizes) > 1:  # the split itself is for a size
        for nbytes in request.sizes:
            one = replace(request, nbytes=nbytes, also=())
            yield from blink(one, pieces=pieces, epsilon=epsilon, threshold=threshold, hybrid=hybrid, t_dpa=t_dpa)
        return
    topology, collective = request.topology, request.collective
    if len(collective.members) > MOST_RANKS:
        raise Unsupported(f"planner blink takes up to {MOST_RANKS} ranks, not {len(collective.members)}; use trees")
    asked = _Asked(
        float(Fraction(str(_share("epsilon", epsilon, LEAST_EPSILON)))), Fraction(str(_share("threshold", threshold))),
        parse_yes(hybrid, "option hybrid"), _seconds(t_dpa), request.nbytes,
    )  # fmt: skip
    most = bound(topology, collective)
    limit = most.without_help
    made, count, how = _made(topology, collective, asked)
    rate = throughput(made, topology)
    told = {
        "rate": None if rate is None else str(rate / topology.unit),
        "optimal": rate == most.bytes_per_second,
        **({"optimal_without_switches": rate == limit.bytes_per_second} if most.unaided else {}),
        "trees": count,
        "how": how,
    }
    given = {"epsilon": asked.epsilon, "threshold": str(threshold), "hybrid": asked.hybrid, "t_dpa": t_dpa}
    usual = {"epsilon": 0.05, "threshold": "1/20", "hybrid": False, "t_dpa": 0.0}
    kept = {key: value for key, value in given.items() if value != usual[key]}
    for schedule in piped(made, topology, pieces, request.sizes, request.profile):
        options = {**kept, "pieces": int(schedule.pieces)}
        proof = {"bound": (most if rate == most.bytes_per_second else limit).stated()}
        yield replace(schedule, provenance={"planner": "blink", "options": options, "found": told, **proof})


def _share(name: str, value: Any, least: Fraction = Fraction(0)) -> Any:
    try:
        fine = 0 < Fraction(str(value)) < 1 and Fraction(str(value)) >= least
    except (ValueError, ZeroDivisionError):
        fine = False
    if not fine:
        between = f"from {float(least)} to below 1" if least else "between 0 and 1"
        raise Invalid(f"option {name}: expected a number {between}, such as 0.05, got {quote(value)}")
    return value


def _seconds(value: Any) -> Fraction:
    try:
        seconds = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        seconds = Fraction(-1)
    if seconds < 0:
        raise Invalid(f"option t_dpa: expected seconds, 0 or more, such as 0.0002, got {quote(value)}")
    return seconds


def _made(topology: Topology, collective: Collective, asked: _Asked) -> tuple[Schedule, int, str]:
    """The schedule without pieces, of how many trees or parts, and how they were found."""
    if len(collective.members) < 2:
        return spread(collective, ()), 0, "nothing to move"
    if collective.kind in TURNED:
        made, count, how = _made(reverse(topology), dual(collective)[0], asked)
        return replace(invert(made), collective=collective), count, how
    servers = hosts(topology, collective.members)
    if collective.kind == "allreduce":
        try:
            if len(servers) > 1 and topology.switches:
                return _three_phases(topology, collective, servers, asked)
            sets = _sets(topology, collective, asked)
        except Unsupported:
            if asked.hybrid:
                raise
            return _exact(topology, collective)
        pairs = [pair for one in sets for pair in one.pairs]
        return reduce_and_spread(collective, pairs), len(pairs), "; ".join(one.how for one in sets)
    sets = _sets(topology, collective, asked)
    made = spread(collective, [tree for one in sets for tree in one.trees])
    return made, sum(one.count for one in sets), "; ".join(one.how for one in sets)


def _exact(topology: Topology, collective: Collective) -> tuple[Schedule, int, str]:
    """Where neither direct links nor one-hop trees join the ranks, which the paper does not treat."""
    *_, made = allreduces(topology, collective, None, Fraction(0), 0, None)
    return made.schedule, made.count, made.how


def _three_phases(
    topology: Topology, collective: Collective, servers: Sequence[Sequence[int]], asked: _Asked
) -> tuple[Schedule, int, str]:
    def local(ranks: Sequence[int]) -> list[Tree]:
        return local_trees(within(topology, _place(topology, ranks, collective.members)), ranks, asked)

    made, parts = three_phases(topology, collective, servers, local)
    return made, parts, f"three phases over {len(servers)} servers"


def _place(topology: Topology, ranks: Sequence[int], members: Sequence[int]) -> str:
    """The shortest place that all of these ranks are at, and no other member."""
    parts = topology.places[ranks[0]].split("/")
    others = [topology.places[rank].split("/") for rank in members if rank not in set(ranks)]
    depth = next(d for d in range(1, len(parts) + 1) if all(other[:d] != parts[:d] for other in others))
    return "/".join(parts[:depth])


def _sets(topology: Topology, collective: Collective, asked: _Asked) -> list[Set]:
    """The trees over the fastest kind of link that joins all, and, for a hybrid, over all other links. Servers are
    joined by another kind than their GPUs: there all links serve together."""
    if len(hosts(topology, collective.members)) > 1 and not asked.hybrid:
        return [packed(with_links(topology, np.ones(topology.links, bool)), collective, asked)]
    main, rest = _by_kind(topology, collective.members)
    first = packed(main, collective, asked)
    if not asked.hybrid:
        return [first]
    if rest is None:
        raise Unsupported(
            f"planner blink: hybrid needs a second kind of links that joins all ranks of {topology.name}; leave it out"
        )
    second = packed(rest, collective, asked)
    data = Fraction(asked.nbytes) if asked.nbytes else Fraction(1)
    waiting = asked.waiting if asked.nbytes else Fraction(0)  # for large data it does not matter
    slow = split(data, first.rate, second.rate, waiting) / data
    return [first.scaled(1 - slow), second.scaled(slow)] if slow else [first]


def _by_kind(topology: Topology, members: Sequence[int]) -> tuple[Slice, Slice | None]:
    """The links of the kind that joins the members best, then all others if they join them, too. One kind for all where
    none alone joins them."""
    kinds = sorted({topology.types[i].kind for i in np.unique(topology.link_type).tolist()})
    rated = [(_rate(of_kinds(topology, [kind]), members), kind) for kind in kinds]
    best, kind = max(rated)
    if not best:
        return with_links(topology, np.ones(topology.links, bool)), None
    rest = of_kinds(topology, [other for other in kinds if other != kind])
    return of_kinds(topology, [kind]), rest if _rate(rest, members) else None


def _rate(part: Slice, members: Sequence[int]) -> Fraction:
    """How fast the first member could broadcast to all over these links; 0 where it cannot."""
    if not part.links:
        return Fraction(0)
    return tightest_cut(network_of(part.topology), {(members[0],): 1}, members[1:])[1]
