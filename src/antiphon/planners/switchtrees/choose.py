"""Choose how each switch combines the data of its children: Algorithm 2 of GenTree (Xiong et al. 2024), leaves first.

Input: the rooted tree, and `PartCost`, which predicts times for one message size. Output of `choose_plans`: a
`SwitchChoice` per switch. For each switch, given when its children are done, these are compared:

    in place     the plan types of types.py among its children; ACPS if these have different numbers of servers
    rearranged   the same after gathering each child's partial sums on fewer servers ("data rearrangement")
    flat         co-located parameter servers among all servers below, without any work at the switches below

Gathering costs a step within the child but leaves fewer senders, and a few servers suffice to fill a slow uplink:
`holder_counts` starts with the convergence ratio, the uplink's bandwidth over that of the links below.

Example: a rack of 16 servers with 1 GB/s each and an uplink of 2 GB/s. The ratio is 1/8, so 2, 4, 8 servers are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from antiphon.planners.switchtrees.assign import representatives
from antiphon.planners.switchtrees.cost import SLACK, PartCost, ServerMask
from antiphon.planners.switchtrees.tree import RootedTree
from antiphon.planners.switchtrees.types import ACPS, CPS

NEVER, AUTO, ALWAYS = "never", "auto", "always"  # option `rearrange`


@dataclass(frozen=True)
class SwitchChoice:
    """What happens at a switch after its children are done."""

    kind: str  # plan type; "" with a single child
    seconds: float  # until the switch is done, everything below included
    flat: bool = False  # among all servers below, with nothing at the switches below
    holder_counts: tuple[int, ...] = ()  # by child, servers on which its partial sums are gathered; (): no gathering
    spread: bool = False  # at the end, blocks go from the servers of `holder_counts` to their owners
    owned: tuple[float, ...] = ()  # by child, fraction of the blocks owned there, if not in proportion to its servers


def choose_plans(tree: RootedTree, cost: PartCost, rearrange: str, gathers: bool = True) -> list[SwitchChoice | None]:
    """Return a choice per node, None for servers. Isomorphic subtrees are decided once.

    `rearrange`: the planner's option. `gathers`: whether partial sums may be gathered on fewer servers. By this
    prediction the result is never slower than co-located parameter servers among all. O(kinds of switches * (nodes
    below + divisors^2)).
    """
    decided: dict[tuple[int, bool], SwitchChoice] = {}  # by shape of the subtree, and whether it is the whole tree
    choices: list[SwitchChoice | None] = [None] * len(tree.parent)
    for node in range(len(tree.parent) - 1, -1, -1):
        if not tree.children[node]:
            continue
        # the root is a case of its own: there owners may be free
        key = int(tree.shape[node]), node == 0
        if key not in decided:
            decided[key] = _choose_plan(tree, cost, node, choices, rearrange, gathers)
        choices[node] = decided[key]
    return choices


def _choose_plan(
    tree: RootedTree, cost: PartCost, node: int, below_choices: list[SwitchChoice | None], rearrange: str, gathers: bool
) -> SwitchChoice:
    """Return the choice at a switch, from the choices below it."""
    child_seconds = _finish_times(tree, node, below_choices)
    if len(child_seconds) == 1:
        return SwitchChoice(kind="", seconds=child_seconds[0])
    options = list(_plans_with_gathering(tree, cost, node, child_seconds, gathers)) if rearrange != NEVER else []
    gathering = [choice for choice in options if choice.holder_counts]
    if rearrange == ALWAYS and gathering:
        return min(gathering, key=lambda choice: choice.seconds)
    best, target = _plan_in_place(tree, cost, node, child_seconds)
    for choice in options:
        # rearrangement must be clearly faster than the best in place, as the model is least sure of it. SLACK is a
        # factor just below 1, so that rounding decides nothing
        if choice.seconds < target * SLACK:
            best, target = choice, choice.seconds
    # one step among all servers may win if latency decides
    if any(tree.children[child] for child in tree.children[node]):
        flat = cost.price_flat(node)
        if flat < best.seconds * SLACK:
            return SwitchChoice(CPS, flat, flat=True)
    return best


def _finish_times(tree: RootedTree, node: int, choices: list[SwitchChoice | None]) -> list[float]:
    """Return when each child is done, in seconds."""
    done = (choices[child] for child in tree.children[node])
    return [choice.seconds if choice is not None else 0.0 for choice in done]


def _child_sizes(tree: RootedTree, node: int) -> list[int]:
    """Return the number of servers of each child."""
    return [int(tree.high[child] - tree.low[child]) for child in tree.children[node]]


def _plan_in_place(
    tree: RootedTree, cost: PartCost, node: int, child_seconds: list[float]
) -> tuple[SwitchChoice, float]:
    """Return the best plan without rearrangement, and the seconds that rearrangement must beat.

    Any plan type if the children have equally many servers, otherwise ACPS.
    """
    sizes = _child_sizes(tree, node)
    if len(set(sizes)) == 1:
        kind, seconds, target = cost.best_type(node, len(sizes), sizes[0])
        return SwitchChoice(kind, max(child_seconds) + seconds), max(child_seconds) + target
    total = sum(sizes)
    seconds = max(child_seconds) + cost.price_direct(node, sizes, [size / total for size in sizes])
    return SwitchChoice(ACPS, seconds), seconds


def _plans_with_gathering(
    tree: RootedTree, cost: PartCost, node: int, child_seconds: list[float], gathers: bool
) -> Iterator[SwitchChoice]:
    """Yield plans with data rearrangement: partial sums gathered on fewer servers of each child.

    At the root of an allreduce no server must own a particular block, so owners are free there; ACPS with equally many
    blocks owned in each child is a choice, too, even without gathering.
    """
    sizes = _child_sizes(tree, node)
    free_owners = node == 0 and cost.kind == "allreduce"
    equal_shares = [1 / len(sizes)] * len(sizes)
    total = sum(sizes)
    if free_owners and len(set(sizes)) > 1:
        yield SwitchChoice(
            ACPS, max(child_seconds) + cost.price_direct(node, sizes, equal_shares), owned=tuple(equal_shares)
        )
    if not gathers or max(sizes) < 2:
        return
    # each choice of holders, priced in stages
    for counts in holder_counts(tree, node, sizes):
        owned = [count / sum(counts) for count in counts] if free_owners else [size / total for size in sizes]
        # three stages: gather (done at `ready`), exchange among the holders, and spread to fixed owners (takes `after`)
        holds = _mark_holders(tree, node, counts)
        ready, after = [], [0.0]
        for child, size, holders, share, done in zip(
            tree.children[node], sizes, counts, owned, child_seconds, strict=True
        ):
            # what a server gives to its group's holder: everything or, with fixed owners, all but the blocks owned in
            # the child (the holder spreads the other children's sums of those at the end)
            gather_share = (1 if free_owners else 1 - share) / size
            gathering = 0.0 if holders == size else cost.price_gather(child, holders, gather_share)
            ready.append(done + gathering)
            if holders < size and not free_owners:
                after.append(cost.price_gather(child, holders, share / size, back=True))
        seconds, kind = cost.price_direct(node, counts, owned, holds), ACPS
        if len(set(counts)) == 1 and len(set(owned)) == 1:
            kind, seconds, _ = cost.best_type(node, len(counts), counts[0], holds)
        owners = tuple(owned) if free_owners and len(set(sizes)) > 1 else ()
        yield SwitchChoice(
            kind, max(ready) + seconds + max(after), holder_counts=tuple(counts), spread=not free_owners, owned=owners
        )


def holder_counts(tree: RootedTree, node: int, sizes: list[int]) -> Iterator[list[int]]:
    """Yield choices of the number of servers per child that hold its partial sums after gathering.

    As many as fill the child's uplink, by the convergence ratio; then twice as many, and so on; and in each child as
    many as the smallest child has.
    """
    fewest = []
    for child, size in zip(tree.children[node], sizes, strict=True):
        # convergence ratio: bandwidth of the uplink over that of the links below it
        bandwidth = sum(1 / tree.up.beta[c] for c in tree.children[child])
        # SLACK: rounding must not add a server
        fewest.append(min(size, max(1, ceil(size / (tree.up.beta[child] * bandwidth) * SLACK))) if bandwidth else 1)
    tried = [sizes]  # all servers of every child: that is no gathering
    counts = fewest
    while counts not in tried:
        tried.append(counts)
        yield counts
        counts = [min(2 * count, size) for count, size in zip(counts, sizes, strict=True)]
    equal = [min(sizes)] * len(sizes)
    if equal not in tried:
        yield equal


def _mark_holders(tree: RootedTree, node: int, counts: list[int]) -> ServerMask:
    """Return which servers hold partial sums after gathering on `counts` servers per child."""
    holds = np.zeros(tree.servers, np.bool_)
    for child, count in zip(tree.children[node], counts, strict=True):
        low, high = int(tree.low[child]), int(tree.high[child])
        holds[low + representatives(high - low, count)] = True
    return holds
