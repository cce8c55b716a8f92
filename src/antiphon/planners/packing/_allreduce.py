"""Allreduce by trees: undirected ones used both ways, two forests one after the other, or trees in and out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.core.reshape import reverse
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, invert
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.packing._both_ways import Undirected, undirected
from antiphon.planners.packing._fewest import fewest_spanning
from antiphon.planners.packing._in_and_out import InAndOut, pack_allreduce_lp
from antiphon.planners.packing._lay import Pair, reduce_and_spread, refined, spread
from antiphon.planners.packing._out import FEW_RANKS, out_of
from antiphon.planners.packing._spanning import spanning
from antiphon.planners.packing._tree import Tree

SOME_RANKS = 32  # up to which trees in and out are packed: ten seconds on an irregular machine


@dataclass(frozen=True)
class Made:
    """A schedule without pieces, the trees it uses, how many serve one part of the data, and what is known of that.

    `best`: no packing of such trees is faster, whatever other schedules may be.
    """

    schedule: Schedule
    trees: tuple[Tree, ...]
    count: int
    how: str
    best: bool
    few: str | None = None


def allreduces(
    topology: Topology, collective: Collective, bound: Fraction | None, loss: Fraction, seed: int
) -> Iterator[Made]:
    """Ways to do it, the likeliest best first; none after one that comes within the loss of the bound (bytes/s)."""
    for way in (_both_ways, _in_halves, _in_and_out):
        made = way(topology, collective, loss, seed)
        if made is not None:
            yield made
            rate = throughput(made.schedule, topology)
            if bound is not None and rate is not None and rate >= (1 - loss) * bound:
                return


def _both_ways(topology: Topology, collective: Collective, loss: Fraction, seed: int) -> Made | None:
    """Undirected trees: up and down the same links (Blink, 3.3), at tau. Not where a switch or a limit is met."""
    machine = _undirected(topology, collective)
    if machine is None:
        return None
    if machine.vertices <= FEW_RANKS:
        few = fewest_spanning(machine, loss=loss)
        made = reduce_and_spread(collective, [Pair.of(tree) for tree in few.trees])
        return Made(
            made, few.trees, len(few.trees), "undirected spanning trees", few.rate == few.optimum, few.describe()
        )
    found = spanning(machine)
    made = reduce_and_spread(collective, [Pair.of(tree) for tree in found.trees])
    return Made(made, found.trees, len(found.trees), "undirected spanning trees", True)


def _undirected(topology: Topology, collective: Collective) -> Undirected | None:
    try:
        return undirected(topology, collective.members)
    except Unsupported:
        return None
    except Invalid:
        if len(collective.members) == topology.ranks:
            raise
        return None  # others may pass data on


def _in_halves(topology: Topology, collective: Collective, loss: Fraction, seed: int) -> Made:
    """A reducescatter, then an allgather, each by forests: one set of trees per rank. Even where each is the fastest,
    together they need not be: they share the links, and roots need not weigh the same."""
    gather = Collective("allgather", collective.ranks, collective.members)
    demand = dict.fromkeys(collective.members, 1)
    out = out_of(topology, demand, collective.members, seed=seed)
    into = out_of(reverse(topology), demand, collective.members, seed=seed)
    both = compose(invert(spread(gather, into.trees)), spread(gather, out.trees))
    how = f"reducescatter and allgather by {out.how}"
    return Made(both, (*into.trees, *out.trees), most(out.trees), how, False)


def _in_and_out(topology: Topology, collective: Collective, loss: Fraction, seed: int) -> Made | None:
    """Trees in and out with common roots: where links differ each way, or limits are shared."""
    if len(collective.members) > SOME_RANKS:
        return None
    found = pack_allreduce_lp(topology, collective.members)
    pairs = pairs_of(found)
    trees = (*found.trees_in, *found.trees_out)
    return Made(
        reduce_and_spread(collective, pairs), trees, len(pairs), "trees in and out with common roots", found.proved
    )


def pairs_of(found: InAndOut) -> list[Pair]:
    """Trees in and out of every root side by side."""
    up, down = _by_root(found.trees_in), _by_root(found.trees_out)
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
