"""Allreduce by trees: undirected ones used both ways, two forests one after the other, or trees in and out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.core.reshape import reverse
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, invert
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.shared.staged import Asked, Ready, Staged, staged
from antiphon.planners.trees.both_ways import Undirected, undirected
from antiphon.planners.trees.fewest import Fewest, fewest_spanning
from antiphon.planners.trees.images import Forest, spread_images
from antiphon.planners.trees.in_and_out import pack_allreduce_lp
from antiphon.planners.trees.lay import Pair, reduce_and_spread, refined, spread
from antiphon.planners.trees.out import FEW_RANKS, MOST_HOPS, out_of
from antiphon.planners.trees.portions import Portioned, portioned
from antiphon.planners.trees.rounding import Part, Room, Rounding, parts_of, rounded, rounded_trees, with_shares
from antiphon.planners.trees.spanning import spanning
from antiphon.planners.trees.tree import Tree

SOME_RANKS = 32  # up to which trees in and out are packed tree by tree: ten seconds on an irregular machine
MORE_RANKS = 256  # up to which that is done by cuts


@dataclass(frozen=True)
class Made:
    """A schedule without pieces, the trees it uses, how many serve one part of the data, and what is known of that.

    `best`: no packing of such trees is faster before its shares are rounded, whatever other schedules may be.
    """

    schedule: Schedule
    trees: tuple[Tree, ...]
    count: int
    how: str
    best: bool
    few: str | None = None
    rounding: Rounding | None = None
    halves: tuple[Schedule, Schedule] | None = None  # an allgather, and one of the machine with all links turned

    def exact_rate(self, topology: Topology) -> Fraction | None:
        """Bytes of nbytes per second before shares were rounded."""
        rate = throughput(self.schedule, topology)
        return rate / (1 - self.rounding.loss) if rate is not None and self.rounding is not None else rate


def allreduces(
    topology: Topology, collective: Collective, bound: Fraction | None, loss: Fraction, seed: int, most: int | None
) -> Iterator[Made]:
    """Ways to do it, the likeliest best first; none after one that comes within the loss of the bound (bytes/s).
    `most`: the greatest denominator of shares."""
    many = len(collective.members) ** 2 > MOST_HOPS
    for way in (in_halves,) if many else (_both_ways, in_halves, _in_and_out):
        made = way(topology, collective, loss, seed, most)
        if made is not None:
            yield made
            rate = made.exact_rate(topology)
            if bound is not None and rate is not None and rate >= (1 - loss) * bound:
                return


def _both_ways(
    topology: Topology, collective: Collective, loss: Fraction, seed: int, denominator: int | None
) -> Made | None:
    """Undirected trees: up and down the same links (Blink, 3.3), at tau. Not where a switch or a limit is met."""
    machine = _undirected(topology, collective)
    if machine is None:
        return None
    if machine.vertices <= FEW_RANKS:
        few = _fewest(machine, loss)
        trees, rounding = rounded_trees(few.trees, {}, collective.members, topology, denominator)
        made = reduce_and_spread(collective, [Pair.of(tree) for tree in trees])
        return Made(
            made, trees, len(trees), "undirected spanning trees", few.rate == few.optimum, few.describe(), rounding
        )
    trees, rounding = rounded_trees(spanning(machine).trees, {}, collective.members, topology, denominator)
    made = reduce_and_spread(collective, [Pair.of(tree) for tree in trees])
    return Made(made, trees, len(trees), "undirected spanning trees", True, rounding=rounding)


@lru_cache(maxsize=64)
def _fewest(machine: Undirected, loss: Fraction) -> Fewest:
    """Kept: the same machine is asked for with other pieces, sizes and baselines."""
    return fewest_spanning(machine, loss=loss)


def _undirected(topology: Topology, collective: Collective) -> Undirected | None:
    try:
        return undirected(topology, collective.members)
    except Unsupported:
        return None
    except Invalid:
        if len(collective.members) == topology.ranks:
            raise
        return None  # others may pass data on


def in_halves(topology: Topology, collective: Collective, loss: Fraction, seed: int, denominator: int | None) -> Made:
    """A reducescatter, then an allgather, each by forests: one set of trees per rank. Even where each is the fastest,
    together they need not be: they share the links, and roots need not weigh the same."""
    gather = Collective("allgather", collective.ranks, collective.members)
    demand = dict.fromkeys(collective.members, 1)
    out = out_of(topology, demand, collective.members, seed=seed)
    group = None if out.forest is None else out.forest.group
    into = out_of(reverse(topology), demand, collective.members, seed=seed, group=group)
    who = collective.members
    if out.forest is None or into.forest is None:
        given, turned, group = out.trees, into.trees, None
    else:
        given, turned = out.firsts, into.firsts
    parts = [*parts_of(given, demand, who, "out"), *parts_of(turned, demand, who, "into")]
    rounding = rounded(parts, Room.seen(topology, group), denominator)
    trees_out = with_shares(given, rounding)
    trees_in = with_shares(turned, rounding, len(given))
    turned_round, straight = (
        spread(gather, trees) if group is None else spread_images(gather, Forest(topology, group, trees))
        for trees in (trees_in, trees_out)
    )
    both = compose(invert(turned_round), straight)
    how = f"reducescatter and allgather by {out.how}"
    return Made(
        both, (*trees_in, *trees_out), most(trees_out), how, False, rounding=rounding, halves=(straight, turned_round)
    )


def apart(made: Made, topology: Topology) -> tuple[Ready, Ready]:
    """Its halves: an allgather, and one of the machine with all links turned."""
    assert made.halves is not None
    gather, turned = made.halves
    return Ready([gather], topology), Ready([turned], reverse(topology))


def one_after_the_other(halves: tuple[Ready, Ready], collective: Collective, asked: Asked) -> Iterator[Staged]:
    """Halves, each begun as unevenly as is best for the size, both with the same options. Both at once are no
    slower in ever finer pieces; but alone each is half as deep, so that a pipeline is full sooner."""
    gather, turned = halves
    for one in staged(gather, asked):
        pieces, steps, waits = (one.options.get(name) for name in ("pieces", "steps", "waits"))
        same = replace(asked, pieces=pieces, steps=steps, waits=bool(waits), sizes=asked.sizes[:1])
        try:
            first = invert(next(iter(staged(turned, same))).schedule)
        except Unsupported:  # takes more steps
            continue
        yield Staged(replace(compose(first, one.schedule), collective=collective), {**one.options, "halves": True})


def _in_and_out(
    topology: Topology, collective: Collective, loss: Fraction, seed: int, denominator: int | None
) -> Made | None:
    """Trees in and out with common roots: where links differ each way, or limits are shared."""
    if len(collective.members) <= SOME_RANKS:
        found = pack_allreduce_lp(topology, collective.members)
        proved, into, out, how = found.proved, found.trees_in, found.trees_out, "trees in and out with common roots"
    else:
        by_cuts = _by_cuts(topology, collective)
        if by_cuts is None:
            return None
        proved, into, out = False, by_cuts.trees[True], by_cuts.trees[False]
        how = "trees in and out with common roots, parts of the links by cuts"
    pairs = pairs_of(into, out)
    whole = sum((pair.rate for pair in pairs), Fraction(0))
    parts = [
        Part(None, pair.rate / whole, 1, tuple(link for *_, path, _ in (*pair.up, *pair.down) for link in path))
        for pair in pairs
    ]
    rounding = rounded(parts, Room.seen(topology), denominator)
    if rounding is not None:
        pairs = [replace(p, rate=Fraction(n)) for p, n in zip(pairs, rounding.counts, strict=True) if n]
    return Made(
        reduce_and_spread(collective, pairs), (*into, *out), len(pairs), how, proved, rounding=rounding,
    )  # fmt: skip


def _by_cuts(topology: Topology, collective: Collective) -> Portioned | None:
    """None on too many ranks, and where some take no part."""
    ranks = len(collective.members)
    return portioned(topology, None, (False, True)) if ranks == topology.ranks <= MORE_RANKS else None


def pairs_of(trees_in: tuple[Tree, ...], trees_out: tuple[Tree, ...]) -> list[Pair]:
    """Trees in and out of every root side by side."""
    up, down = _by_root(trees_in), _by_root(trees_out)
    pairs = []
    for root in sorted(up):
        whole = sum((tree.rate for tree in up[root]), Fraction(0))
        pairs += [Pair.met(share * whole, *both) for share, both in refined([up[root], down[root]])]
    return pairs


def most(trees: Iterable[Tree]) -> int:
    """The most trees that one root has."""
    return max(Counter(tree.root for tree in trees).values(), default=0)


def _by_root(trees: tuple[Tree, ...]) -> dict[int, list[Tree]]:
    found: dict[int, list[Tree]] = defaultdict(list)
    for tree in trees:
        found[tree.root].append(tree)
    return found
