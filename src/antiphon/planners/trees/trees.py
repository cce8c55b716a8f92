"""The planner `trees`: packed trees at the greatest rate there is, with what proves it (docs/planners/trees.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import dual, invert
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.options import parse_yes
from antiphon.planners.shared.backwards import backwards
from antiphon.planners.shared.instead import instead
from antiphon.planners.shared.pieces import piped
from antiphon.planners.shared.reach import Hop, Reach
from antiphon.planners.shared.staged import Asked, Ready, Staged, staged
from antiphon.planners.trees.allreduce import Made, allreduces, apart, in_halves, most, one_after_the_other
from antiphon.planners.trees.columns import check_reach
from antiphon.planners.trees.images import spread_images
from antiphon.planners.trees.lay import spread
from antiphon.planners.trees.out import out_of
from antiphon.planners.trees.rounding import denominator_of, rounded_trees
from antiphon.planners.trees.tree import Tree

SPREADING = ("broadcast", "allgather")
NEARLY, FAR = 1.02, 2.0  # times the bound: from where on halves are tried, and until where
HALVED = 128  # ranks up to which they are
MOST_RANKS = 2048  # those that take part


def trees(
    request: Request, *, pieces: int | None = None, steps: int | None = None, waits: bool | None = None,
    halves: bool | None = None, loss: float | str | Fraction = 0, denominator: int | None = None,
) -> Iterator[Schedule]:  # fmt: skip
    """Yields the fastest packing of trees, in equal `pieces` or begun unevenly in so many `steps`: what is best for
    `nbytes`, or several numbers of pieces if none is given. `waits`: in so many steps, every hop in a time of its own.

    Reduce and reducescatter are broadcast and allgather of the machine with all links turned, run backwards; allreduce
    takes whichever is best of undirected trees used both ways, two forests, and trees in and out; with `halves` (left
    out: where that is faster) one forest after the other. `loss`: the share of the rate that may be given up for fewer
    trees (0.05), where one set of trees serves. `denominator`: the greatest of the trees' shares (left out: 1024, more
    where that would lose over 0.5 %); what is lost is told. Growth: see docs.
    """
    topology, collective = request.topology, request.collective
    given_up, most_of = _loss(loss), denominator_of(denominator)
    waiting, halved = _yes(waits, "waits"), _yes(halves, "halves")
    asked = Asked("trees", pieces, steps, request.sizes, request.profile, waiting)
    if len(collective.members) > MOST_RANKS:
        raise Unsupported(
            f"planner trees: {len(collective.members)} ranks; it takes up to {MOST_RANKS}; "
            + instead(topology, collective, "compose", "ring", "greedy")
        )
    most = bound(topology, collective)
    limit = most.without_help
    made = _best(topology, collective, limit.bytes_per_second, given_up, request.seed, most_of)
    kept: dict[str, Any] = {"loss": str(given_up)} if given_up else {}
    kept |= {} if most_of is None else {"denominator": most_of}
    for which, one in _timed(made, request, asked, halved, limit, most_of):
        told = _told(which, topology, most)
        proof = {"bound": (most if told["optimal"] else limit).stated()}
        by = {"planner": "trees", "options": {**kept, **one.options}, "seed": request.seed}
        yield replace(one.schedule, provenance={**by, "found": told, **proof})


def _told(made: Made, topology: Topology, most: Bound) -> dict[str, Any]:
    """What a plan says of its trees."""
    limit, rate = most.without_help, throughput(made.schedule, topology)
    lost = made.rounding is not None and made.rounding.loss > 0
    told: dict[str, Any] = {
        "rate": str(rate / topology.unit) if rate is not None else None,
        "optimal": rate == most.bytes_per_second,
        **({"optimal_without_switches": rate == limit.bytes_per_second} if most.unaided else {}),
        "best_of_its_kind": (made.best and not lost) or rate == limit.bytes_per_second,
        "trees": made.count,
        "deepest": max((tree.depth for tree in made.trees), default=0),
        "how": made.how,
    }
    if made.few is not None:
        told["few"] = made.few
    if made.rounding is not None:
        exact = made.exact_rate(topology)
        told["how"] = f"{made.how}; {made.rounding.describe()}"
        told["rounding"] = {
            "denominator": made.rounding.denominator,
            "loss": float(made.rounding.loss),
            "exact_rate": None if exact is None else str(exact / topology.unit),
        }
    return told


def _timed(
    made: Made, request: Request, asked: Asked, halves: bool | None, limit: Bound, most_of: int | None
) -> Iterator[tuple[Made, Staged]]:
    """The trees in pieces, or in uneven parts; or, where that is asked for or is faster, halves one after the other."""
    topology, collective = request.topology, request.collective
    if halves and collective.kind != "allreduce":
        raise Unsupported(f"planner trees: a {collective.kind} has no halves; leave the option out")

    @cache
    def two() -> tuple[Made, tuple[Ready, Ready]]:
        both = made if made.halves else in_halves(topology, collective, Fraction(0), request.seed, most_of)
        return both, apart(both, topology)

    def in_turn(asked: Asked) -> list[tuple[Made, Staged]]:
        both, halves = two()
        return [(both, one) for one in one_after_the_other(halves, collective, asked)]

    if halves:
        yield from in_turn(asked)
        return
    whole = Ready([made.schedule], topology)
    rooted = collective.kind in ("broadcast", "reduce")  # uneven parts of these: see shallow
    for nbytes in request.sizes if asked.pieces is None else request.sizes[:1]:
        mine = replace(asked, sizes=(nbytes,))
        if asked.steps is None and (nbytes is None or rooted or asked.pieces is not None):
            some = piped(made.schedule, topology, asked.pieces, mine.sizes, request.profile)
            found = [(made, Staged(one, {"pieces": int(one.pieces)})) for one in some]
        else:
            alone = mine if asked.steps is not None or collective.kind != "allreduce" else replace(mine, waits=False)
            found = [(made, one) for one in staged(whole, alone)]  # halves wait better
        if nbytes is not None and collective.kind == "allreduce" and asked.pieces is None and asked.steps is None:
            found = [_faster(found[0], in_turn, mine, nbytes, topology, limit)]
        yield from found


def _faster(
    one: tuple[Made, Staged], in_turn: Callable[[Asked], list[tuple[Made, Staged]]], asked: Asked, nbytes: int,
    topology: Topology, limit: Bound,
) -> tuple[Made, Staged]:  # fmt: skip
    """Halves where both at once are not near the bound, though more of their time than not is the bound's."""

    def seconds(made: tuple[Made, Staged]) -> float:
        return alpha_beta(made[1].schedule, topology, profile=asked.profile)(nbytes).seconds

    taken, least = seconds(one), float(limit.seconds(nbytes))
    if not NEARLY * least < taken < FAR * least or one[0].schedule.collective.ranks > HALVED:
        return one
    return min([one, *in_turn(asked)], key=seconds)


def _yes(value: object, name: str) -> bool | None:
    """None where it is left out."""
    return None if value is None else parse_yes(value, f"option {name}")


def _loss(loss: float | str | Fraction) -> Fraction:
    try:
        value = Fraction(str(loss))
    except (ValueError, ZeroDivisionError):
        value = Fraction(-1)
    if not 0 <= value < 1:
        raise Invalid(f"option loss: expected a share of the rate from 0 to below 1, such as 0.05, got {quote(loss)}")
    return value


def _best(
    topology: Topology, collective: Collective, limit: Fraction | None, loss: Fraction, seed: int, most_of: int | None
) -> Made:
    if len(collective.members) < 2:
        return Made(spread(collective, ()), (), 0, "nothing to move", True)
    if collective.kind == "allreduce":
        ways = list(allreduces(topology, collective, limit, loss, seed, most_of))
        rates = [made.exact_rate(topology) or Fraction(0) for made in ways]
        top = max(rates)
        enough = [(made, rate) for made, rate in zip(ways, rates, strict=True) if rate >= (1 - loss) * top]
        made, rate = min(enough, key=lambda one: (one[0].count if loss else 0, one[0].schedule.steps))
        proved = any(way.best and at == rate for way, at in zip(ways, rates, strict=True))
        return replace(made, best=proved and rate == top)
    if collective.kind in SPREADING:
        return _spread(topology, collective, loss, seed, most_of)
    machine, links = backwards(topology)
    turned = _spread(machine, dual(collective)[0], loss, seed, most_of, back=True)
    return replace(turned, schedule=replace(invert(turned.schedule, links), collective=collective))


def _spread(
    topology: Topology, collective: Collective, loss: Fraction, seed: int, most_of: int | None, back: bool = False
) -> Made:
    """`back`: what is made will be run backwards."""
    relation = collective.relation
    demand: Counter[int] = Counter()
    for block, rank in zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True):
        demand[rank] += int(collective.weights[block])
    wanted = {root: weight for root, weight in demand.items() if weight}
    light = [root for root in demand if root not in wanted]  # no weight, and yet sent: whoever waits for it must get it
    check_reach(topology, light, collective.members, back)
    found = out_of(topology, wanted, collective.members, loss, seed)
    if found.forest is not None and collective.blocks == len(wanted):
        forest, who = found.forest, collective.members
        firsts, rounding = rounded_trees(forest.firsts, wanted, who, topology, most_of, forest.group)
        made = spread_images(collective, replace(forest, firsts=firsts))
        return Made(made, firsts, most(firsts), found.how, found.optimal, found.few, rounding)
    reach = Reach(topology)
    empty = [Tree(root, Fraction(1), tuple(_hops(reach, root))) for root in light]
    kept, rounding = rounded_trees(found.trees, wanted, collective.members, topology, most_of)
    made = spread(collective, [*kept, *empty])
    return Made(made, kept, most(kept), found.how, found.optimal, found.few, rounding)


def _hops(reach: Reach, root: int) -> Iterator[tuple[int, Hop]]:
    """A tree of shortest paths, for blocks that weigh nothing."""
    return ((rank, hop) for rank, hop in reach.of(root).items() if rank != root)
