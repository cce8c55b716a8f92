"""Check a packing of trees, which proves that a lower bound on time is attained, and return its time.

The *rate* of a tree is the weight of the share of a block that it carries. A tree with direction "out" carries it from
its root to all ranks that want the block, one with direction "in" from all ranks that contribute to its root. These
ranks are its *ends*. Three conditions: every tree joins its root to all ends, entering each rank at most once; the
rates of the trees of a block sum to its weight; a root distributes only what it holds or receives by other trees. The
time is then the greatest load over capacity of all links and limits. The search for trees (attained.py) and the recheck
of a bound call `packed_time`, which shares no code with the search.

Example: a broadcast of weight 1 from rank 0 over the trees 0->1->2 and 0->2->1, rate 1/2 each, on unit links: each
link carries at most 1/2, so the time is 1/2. docs/bounds.md says why it is attained in the limit of ever finer chunks.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from fractions import Fraction

from antiphon.core.bounds.witness import Packing, Tree
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology
from antiphon.errors import Invalid


def packed_time(topology: Topology, collective: Collective, packing: Packing) -> Fraction:
    """Return the time of a packing (weight over bytes per second); raise Invalid if it does not do the collective."""
    _require(collective.custom is None, "it is of a custom collective")
    relation = collective.relation
    having: dict[int, set[int]] = defaultdict(set)
    wanting: dict[int, set[int]] = defaultdict(set)
    for ranks_of, block_column, rank_column in (
        (having, relation.pre_block, relation.pre_rank),
        (wanting, relation.post_block, relation.post_rank),
    ):
        for block, rank in zip(block_column.tolist(), rank_column.tolist(), strict=True):
            ranks_of[block].add(rank)
    rates: dict[tuple[int, str, int], Fraction] = defaultdict(Fraction)  # by (block, "out" or "in", root)
    load = [Fraction(0)] * topology.links
    for tree in packing.trees:
        _require(tree.block in having, "a tree is of a block that is not there")
        _require(tree.rate > 0, "a tree has no rate")
        ends = wanting if tree.way == "out" else having
        _check_tree(topology, tree, ends[tree.block])
        rates[tree.block, tree.way, tree.root] += tree.rate
        for link in itertools.chain.from_iterable(tree.routes):
            load[link] += tree.rate
    for block, weight in enumerate(collective.weights.tolist()):
        if weight:
            _check_rates(block, weight, having[block], wanting[block], rates)
    times = [amount / topology.bandwidth(link) for link, amount in enumerate(load)]
    times += [sum((load[link] for link in limit.links), Fraction(0)) / limit.bandwidth for limit in topology.limits]
    return max(times, default=Fraction(0))


def _require(holds: bool, failure: str) -> None:
    """Raise Invalid if a condition does not hold."""
    if not holds:
        raise Invalid(f"this bound's packing does not hold: {failure}; compute the bound anew")


def _check_tree(topology: Topology, tree: Tree, ends: set[int]) -> None:
    """Check that a tree's routes join ranks of the machine, enter every rank at most once and reach all ends from the
    root."""
    _require(tree.way in ("out", "in"), "a tree goes neither out nor in")
    parent: dict[int, int] = {}
    for route in tree.routes:
        _require(bool(route) and all(0 <= k < topology.links for k in route), "a tree takes a link that is not there")
        tails, heads = ([int(ends_of[k]) for k in route] for ends_of in (topology.link_src, topology.link_dst))
        _require(tails[1:] == heads[:-1], "the links of a route do not join")
        _require(all(node >= topology.ranks for node in heads[:-1]), "a route passes through a rank")
        # as seen from the root: `first` is the rank nearer to it
        first, last = (tails[0], heads[-1]) if tree.way == "out" else (heads[-1], tails[0])
        _require(max(first, last) < topology.ranks, "a route ends at a switch")
        _require(last != tree.root and last not in parent, "a tree comes to a rank twice")
        parent[last] = first
    # Follow the parents from each end: the root must be reached without a cycle.
    for end in sorted({*ends, *parent}):
        node, steps = end, 0
        while node != tree.root:
            _require(node in parent and steps <= len(parent), f"a tree does not join ranks {tree.root} and {end}")
            node, steps = parent[node], steps + 1


def _check_rates(
    block: int, weight: int, having: set[int], wanting: set[int], rates: dict[tuple[int, str, int], Fraction]
) -> None:
    """Check that the trees of a block carry all of it, and that no root sends what it neither holds nor receives.

    `rates`: the sum of rates by (block, direction, root).
    """
    roots = {root for of_block, _, root in rates if of_block == block}
    into = {root: rates.get((block, "in", root), Fraction(0)) for root in roots}
    out = {root: rates.get((block, "out", root), Fraction(0)) for root in roots}
    # Several ranks want the block: trees "out" bring it to them. One rank wants it: trees "in" end there, or, if it
    # already holds the block, a tree "out" of it without routes.
    if len(wanting) > 1 or having == wanting:
        delivered = sum(out.values(), Fraction(0))
        is_supplied = all(having == {root} or out[root] <= into[root] for root in roots)
    else:
        delivered = sum((into[root] for root in roots & wanting), Fraction(0))
        is_supplied = not any(out.values())
    _require(is_supplied, f"a root gives of block {block} what it does not have")
    _require(delivered == weight, f"its trees bring {delivered} of block {block}, which has {weight}")
