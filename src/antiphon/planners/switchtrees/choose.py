"""Which plan each switch has: Algorithm 2, from the leaves upwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from antiphon.planners.switchtrees.assign import representatives
from antiphon.planners.switchtrees.cost import SLACK, Cost, Some
from antiphon.planners.switchtrees.tree import Tree
from antiphon.planners.switchtrees.types import ACPS, CPS

NEVER, AUTO, ALWAYS = "never", "auto", "always"


@dataclass(frozen=True)
class Choice:
    """What happens at a switch, after its children are done.

    `kind`: a plan type; "" where there is one child only. `flat`: among all servers below, and nothing at the switches
    below. `held`: for each child the servers on which its results are gathered first, all of them where nothing is.
    `spread`: at the end blocks go back from these to the owners there would be without. `owned`: the parts of the
    blocks that end in each child, where that is not by their servers. `seconds`: with everything below.
    """

    kind: str
    seconds: float
    flat: bool = False
    held: tuple[int, ...] = ()
    spread: bool = False
    owned: tuple[float, ...] = ()


def choose(tree: Tree, cost: Cost, rearrange: str, gathers: bool = True) -> list[Choice | None]:
    """A choice per switch, None for servers. Switches whose subtrees are alike are decided once.

    `gathers`: whether data may be gathered on fewer servers at all. Never slower than co-located PS among all, by
    this estimate. O(kinds of switches * (nodes below + divisors^2)).
    """
    decided: dict[tuple[int, bool], Choice] = {}
    out: list[Choice | None] = [None] * len(tree.parent)
    for node in range(len(tree.parent) - 1, -1, -1):
        if not tree.children[node]:
            continue
        key = int(tree.alike[node]), node == 0
        if key not in decided:
            decided[key] = _best(tree, cost, node, out, rearrange, gathers)
        out[node] = decided[key]
    return out


def _best(
    tree: Tree, cost: Cost, node: int, below_choices: list[Choice | None], rearrange: str, gathers: bool
) -> Choice:
    below = _finished(tree, node, below_choices)
    if len(below) == 1:
        return Choice("", below[0])
    options = list(_moving(tree, cost, node, below, gathers)) if rearrange != NEVER else []
    gathering = [choice for choice in options if choice.held]
    if rearrange == ALWAYS and gathering:
        return min(gathering, key=lambda choice: choice.seconds)
    best, target = _plain(tree, cost, node, below)
    for choice in options:
        if choice.seconds < target * SLACK:
            best, target = choice, choice.seconds
    if any(tree.children[child] for child in tree.children[node]):
        flat = cost.flat(node)
        if flat < best.seconds * SLACK:
            return Choice(CPS, flat, flat=True)
    return best


def _finished(tree: Tree, node: int, choices: list[Choice | None]) -> list[float]:
    """When each child is done."""
    done = (choices[child] for child in tree.children[node])
    return [choice.seconds if choice is not None else 0.0 for choice in done]


def _sizes(tree: Tree, node: int) -> list[int]:
    return [int(tree.high[child] - tree.low[child]) for child in tree.children[node]]


def _plain(tree: Tree, cost: Cost, node: int, below: list[float]) -> tuple[Choice, float]:
    """Without rearrangement: any plan type if the children have equally many servers, else straight to the owners. And
    the seconds that rearrangement must beat: it shall not be chosen for the caution with which types are."""
    sizes = _sizes(tree, node)
    if len(set(sizes)) == 1:
        kind, seconds, target = cost.best_type(node, len(sizes), sizes[0])
        return Choice(kind, max(below) + seconds), max(below) + target
    total = sum(sizes)
    seconds = max(below) + cost.direct(node, sizes, [size / total for size in sizes])
    return Choice(ACPS, seconds), seconds


def _moving(tree: Tree, cost: Cost, node: int, below: list[float], gathers: bool) -> Iterator[Choice]:
    """With data rearrangement: results gathered on fewer servers of each child; and at the root of an allreduce, where
    nobody is bound to end with a certain block, owners chosen freely."""
    sizes = _sizes(tree, node)
    free = node == 0 and cost.kind == "allreduce"
    even = [1 / len(sizes)] * len(sizes)
    total = sum(sizes)
    if free and len(set(sizes)) > 1:
        yield Choice(ACPS, max(below) + cost.direct(node, sizes, even), owned=tuple(even))
    if not gathers or max(sizes) < 2:
        return
    for counts in subsets(tree, node, sizes):
        owned = [count / sum(counts) for count in counts] if free else [size / total for size in sizes]
        holds = _holders(tree, node, counts)
        ready, after = [], [0.0]
        for child, size, holders, share, done in zip(tree.children[node], sizes, counts, owned, below, strict=True):
            away = 0.0 if holders == size else cost.gather(child, holders, (1 if free else 1 - share) / size)
            ready.append(done + away)
            if holders < size and not free:
                after.append(cost.gather(child, holders, share / size, back=True))
        seconds, kind = cost.direct(node, counts, owned, holds), ACPS
        if len(set(counts)) == 1 and len(set(owned)) == 1:
            kind, seconds, _ = cost.best_type(node, len(counts), counts[0], holds)
        owners = tuple(owned) if free and len(set(sizes)) > 1 else ()
        yield Choice(kind, max(ready) + seconds + max(after), held=tuple(counts), spread=not free, owned=owners)


def subsets(tree: Tree, node: int, sizes: list[int]) -> Iterator[list[int]]:
    """How many servers of each child go on: as many as fill its link upwards, by the convergence ratio (the bandwidth
    of this link over that of the links below it), then twice as many, and so on; and as many as the smallest child."""
    fewest = []
    for child, size in zip(tree.children[node], sizes, strict=True):
        under = sum(1 / tree.up.beta[c] for c in tree.children[child])
        fewest.append(min(size, max(1, ceil(size / (tree.up.beta[child] * under) * SLACK))) if under else 1)
    tried = [sizes]
    counts = fewest
    while counts not in tried:
        tried.append(counts)
        yield counts
        counts = [min(2 * count, size) for count, size in zip(counts, sizes, strict=True)]
    equal = [min(sizes)] * len(sizes)
    if equal not in tried:
        yield equal


def _holders(tree: Tree, node: int, counts: list[int]) -> Some:
    holds = np.zeros(tree.servers, np.bool_)
    for child, count in zip(tree.children[node], counts, strict=True):
        low, high = int(tree.low[child]), int(tree.high[child])
        holds[low + representatives(high - low, count)] = True
    return holds
