"""The planner `shallow`: packed trees of bounded depth, the shallow with the fast (docs/planners/shallow.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, dual, invert
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.planners.shared.backwards import backwards
from antiphon.planners.shared.reach import Reach, centre
from antiphon.planners.shared.staged import Asked, Ready, staged
from antiphon.planners.trees.bounded import LARGE, SPENT, Machine, around, bounded
from antiphon.planners.trees.choice import chosen
from antiphon.planners.trees.columns import check_reach, pack_lp
from antiphon.planners.trees.images import Mirrored
from antiphon.planners.trees.out import out_of
from antiphon.planners.trees.quick import quick_links
from antiphon.planners.trees.rounding import Rounding, rounded_trees
from antiphon.planners.trees.tree import Tree

DEEPER = (0, 1, 2, 3, 4, 5, 6)  # depths tried beyond the least possible
ENOUGH = Fraction(999, 1000)  # of the bound: what is deeper is not looked for
LOST, FINE = Fraction(1, 1000), 16384  # of the rate by rounding shares; then the greatest denominator
FINELY = 128  # trees up to which that is done
FASTER = Fraction(101, 100)  # than what is shallower
PRICED = 24  # ranks up to which depths are also tried by exact prices
TWICE = 64  # ranks up to which symmetries are done without where they seem to cost rate
LOSSES, PATIENT = 2, SPENT // 10  # depths in a row at which that was slower, and what it took: deeper it is not done
LESS = (1, 3, 6)  # depths tried on machines of more than LARGE ranks
SLOW = ((32, Fraction(1)), (64, 1 / FASTER), (LARGE, Fraction(9, 10)))  # up to how many ranks what part of the bound
# is slow: only then the forest of `trees` is made, which may take a minute on 64


@dataclass(frozen=True, eq=False)
class _Forest:
    """A schedule of trees of one depth, and the packing that it is made of."""

    schedule: Schedule
    packed: Mirrored
    depth: int
    trees: int
    rate: Fraction
    how: str


@dataclass(frozen=True, eq=False)
class _Found:
    """Forests, the fastest first, and what may begin unevenly: of each kind of trees a schedule. The first `least`
    kinds are those of one fast forest, without which the others are of no use."""

    forests: list[_Forest]
    kinds: list[Schedule]
    least: int


def shallow(
    request: Request, *, depth: int | None = None, pieces: int | None = None, steps: int | None = None
) -> Iterator[Schedule]:
    """Yields forests of several depths, each near the greatest rate of its depth: in equal `pieces`, or all together
    begun unevenly in so many `steps`. Where neither is given the best for `nbytes`, or several if that is not given.

    `depth`: no tree deeper than this. Reduce is the broadcast of the machine with all links turned, run backwards;
    allreduce the reduce to the most central member, then the broadcast from it, in one pipeline.
    """
    topology, collective = request.topology, request.collective
    _check(depth, collective)
    most = bound(topology, collective)
    limit = most.without_help.bytes_per_second
    back = collective.kind == "reduce"
    machine, links = backwards(topology) if back else (topology, None)
    if collective.kind == "allreduce":
        found = _up_and_down(request, depth, pieces is None)
    else:
        spread_out = dual(collective)[0] if back else collective
        check_reach(machine, [collective.roots[0]], collective.members, back)
        found = _found(machine, spread_out, limit or Fraction(0), depth, request.seed, pieces is None)
    forests = found.forests
    told: dict[str, Any] = {
        "forests": [
            {"depth": one.depth, "rate": str(one.rate / topology.unit), "trees": one.trees, "how": one.how}
            for one in forests
        ],
    }
    asked = Asked("shallow", pieces, steps, request.sizes, request.profile)
    for one in staged(Ready([one.schedule for one in forests], machine, found.kinds, found.least), asked):
        made = replace(invert(one.schedule, links), collective=collective) if back else one.schedule
        most_of = forests[one.plan].depth if one.plan else depth
        kept = {**({} if most_of is None else {"depth": most_of}), **one.options}
        provenance = {"planner": "shallow", "options": kept, "seed": request.seed, "found": told}
        yield replace(made, provenance={**provenance, "bound": most.without_help.stated()})


def _check(depth: object, collective: Collective) -> None:
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 1):
        raise Invalid(f"option depth: expected a whole number of 1 or more, got {quote(depth)}")
    if len(collective.roots) > 1:
        raise Unsupported("planner shallow: takes one root; use planner trees")


def _up_and_down(request: Request, depth: int | None, begun: bool) -> _Found:
    """Of an allreduce: what is reduced along a forest is spread along one as deep; where links lead both ways along the
    same. Else they are paired from the fastest on."""
    topology, wanted = request.topology, request.collective
    root = centre(Reach(topology), wanted.members)
    spread_out = Collective("broadcast", wanted.ranks, wanted.members, (root,))
    turned, links = backwards(topology)
    ways: list[_Found] = []
    for machine in [topology] if links is not None else [topology, turned]:
        check_reach(machine, [root], wanted.members, machine is turned)
        limit = bound(machine, spread_out).without_help.bytes_per_second
        ways.append(_found(machine, spread_out, limit or Fraction(0), depth, request.seed, begun))
    down, up = ways[0].forests, ways[-1].forests

    def met(one: Schedule, other: Schedule) -> Schedule:
        return replace(compose(invert(one, links), other), collective=wanted)

    forests = []
    for number in range(max(len(down), len(up))):
        one, other = (some[min(number, len(some) - 1)] for some in (up, down))
        made = met(one.schedule, other.schedule)
        rate = throughput(made, topology) or Fraction(0)
        forests.append(replace(other, schedule=made, depth=max(one.depth, other.depth), rate=rate))
    return _Found(forests, [met(kind, kind) for kind in ways[0].kinds if links is not None], ways[0].least)


def _found(
    machine: Topology, collective: Collective, limit: Fraction, depth: int | None, seed: int, begun: bool = True
) -> _Found:
    """Of a broadcast: every forest shallower and slower than the one before. `begun`: what may begin unevenly, too."""
    root = collective.roots[0]
    ranks = _spanned(machine, root, collective.members)
    view = Machine(machine, root, ranks, around(machine, root, collective.members, seed))
    found: list[_Forest] = []
    alike: list[Mirrored] = []
    for packed, how, seen in _by_depth(view, ranks, limit, depth):
        forest = _laid(machine, collective, packed, how)
        if not found or forest.rate > found[-1].rate * FASTER:
            found.append(forest)
        if seen is not None and (not alike or seen.rate > alike[-1].rate * FASTER):
            alike.append(seen)
        if packed.rate >= limit * ENOUGH:
            break
    if not found:
        raise Unsupported(f"planner shallow: no tree reaches all ranks within depth {depth}; leave depth out")
    if view.plain:
        alike = [one.packed for one in found]
    elif not alike or alike[-1].rate * FASTER < found[-1].rate:
        alike.append(Mirrored.of(machine, found[-1].packed.trees, view.group))
    if not begun:
        return _Found(found[::-1], [], 1)
    quick = _quick(view, ranks, alike[-1], limit)
    return _Found(found[::-1], *_kinds(collective, view, [quick or alike[-1], *alike[-2::-1]]))


def _quick(view: Machine, ranks: Sequence[int], fastest: Mirrored, limit: Fraction) -> Mirrored | None:
    """A forest as fast and as deep as this by quick ways alone, where not all are: a step lasts as long as its slowest
    way."""
    links = quick_links(view.topology, view.root, ranks, float(limit)) if len(ranks) <= LARGE else None
    if links is None:
        return None
    inside = Machine(view.topology, view.root, ranks, view.group, links)
    found = bounded(inside, fastest.depth, float(limit))
    if found is None or found.rate < fastest.rate * ENOUGH:
        return None
    view.known.update(inside.known)
    return found


def _kinds(collective: Collective, view: Machine, alike: Sequence[Mirrored]) -> tuple[list[Schedule], int]:
    """A schedule of every tree and its images, alone: all links that symmetries take to each other are loaded alike.
    Those of the fastest forest, and how many they are; then what is worth beginning of all that was grown; then those
    of other forests."""
    firsts = [tree.hops for one in alike for tree in one.firsts]
    fastest = len(alike[0].firsts)
    some = [*firsts[:fastest], *chosen(view, [*firsts, *reversed(view.known)]), *firsts[fastest:]]
    trees = Mirrored.of(view.topology, [Tree(view.root, Fraction(1), hops) for hops in some], view.group)
    return [trees.rated([tree]).schedule(collective) for tree in trees.firsts], fastest


def _spanned(machine: Topology, root: int, members: Sequence[int]) -> list[int]:
    """The members; all ranks where some relay must take part."""
    inside = Machine(machine, root, members)
    everyone = range(machine.ranks)
    alone = inside.tree(1 / inside.capacity, len(members)) is not None
    return list(members) if alone else _reached(machine, root, everyone)


def _reached(machine: Topology, root: int, ranks: Sequence[int]) -> list[int]:
    """Those that some way leads to, by way of any others."""
    out: dict[int, list[int]] = {}
    for tail, head in zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True):
        out.setdefault(tail, []).append(head)
    seen, todo = {root}, [root]
    for node in todo:
        for head in out.get(node, []):
            if head not in seen:
                seen.add(head)
                todo.append(head)
    return [rank for rank in ranks if rank in seen]


def _by_depth(
    view: Machine, ranks: Sequence[int], limit: Fraction, depth: int | None
) -> Iterator[tuple[Mirrored, str, Mirrored | None]]:
    """Packings of growing depth, then one without a bound of it, unless `depth` is asked for: the fastest, how it was
    found, and what there is of that depth as these symmetries see the machine."""
    machine, root = view.topology, view.root
    plain = Machine(machine, root, ranks)
    goal = float(limit)
    least = next(most for most in range(1, len(ranks) + 1) if plain.tree(1 / plain.capacity, most) is not None)
    losses = 0
    fastest, more = Fraction(0), DEEPER if len(ranks) <= LARGE else LESS
    tried = [least + deeper for deeper in more]
    if depth is not None:  # the same as without it, up to there: so it gives a shallower forest of several again
        tried = [*(one for one in tried if one < depth), depth]
    for most in sorted({min(one, max(len(ranks) - 1, 1)) for one in tried}):
        seen = best = bounded(view, most, goal)
        if best is None:
            continue
        how = "hubs"
        hopeless = losses >= LOSSES and plain.spent > PATIENT
        if best.rate < goal * float(ENOUGH) and not view.plain and len(ranks) <= TWICE and not hopeless:
            other = bounded(plain, most, goal)
            losses = losses + 1 if other is not None and other.rate < best.rate else 0
            if other is not None and other.rate > best.rate:
                seen = bounded(view, most, goal, other.firsts) or other
                best = seen if seen.rate * ENOUGH > other.rate else other
        if best.rate < goal * float(ENOUGH) and len(ranks) <= PRICED:
            exact = pack_lp(machine, {root: 1}, ranks, hops=most)
            if float(exact.rate) > best.rate:
                best, how = Mirrored.of(machine, exact.trees), "columns"
        fastest = max(fastest, best.rate)
        yield best, how, seen
        if view.spent + plain.spent >= SPENT:
            break
    slow = next((limit * part for most, part in SLOW if len(ranks) <= most), Fraction(0))
    if depth is None and (fastest < slow or not limit):
        packed = out_of(machine, {root: 1}, ranks)
        yield Mirrored.of(machine, packed.trees), packed.how, None


def _laid(machine: Topology, collective: Collective, packed: Mirrored, how: str) -> _Forest:
    firsts, lost = _rounded(machine, collective, packed, None)
    if lost is not None and lost.loss > LOST and len(firsts) <= FINELY:
        firsts, _ = _rounded(machine, collective, packed, FINE)
    trees = packed.rated(firsts)
    made = trees.schedule(collective)
    return _Forest(made, packed, trees.depth, len(trees), throughput(made, machine) or Fraction(0), how)


def _rounded(
    machine: Topology, collective: Collective, packed: Mirrored, asked: int | None
) -> tuple[tuple[Tree, ...], Rounding | None]:
    return rounded_trees(packed.firsts, {collective.roots[0]: 1}, collective.members, machine, asked, packed.group)
