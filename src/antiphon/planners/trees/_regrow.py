"""Fewer and shallower trees: take a few back, the deepest among them, and grow these anew in another order.

Trees grown first take the short ways, and the last ones must go round. What is grown anew has the same roots and
weights in total, so a packing stays one; it is kept where it is better, and else undone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from antiphon.planners.trees.arborescences import Arborescence, Packing

Quality = tuple[int, list[int]]  # number of trees, their depths from the deepest: less is better
PATIENCE = 60


def regrow(packing: Packing, trees: Sequence[Arborescence], tries: int, seed: int = 0) -> list[Arborescence]:
    """No more trees than before, and no deeper ones. Each try costs as much as growing at most 8 trees.

    Stops early where no root has two trees and none is deeper than its root is far from some node, and when many
    tries in a row gained nothing.
    """
    rng = random.Random(seed)
    kept = list(trees)
    goal = [_farthest(packing, root) for root in sorted({tree.root for tree in trees})]
    best, since = quality(kept), 0
    for _ in range(tries):
        if best <= (len(goal), sorted(goal, reverse=True)) or since == PATIENCE:
            break
        chosen = _chosen(kept, rng)
        old = [kept[at] for at in sorted(chosen)]
        before = packing.save()
        for tree in old:
            packing.take_back(tree)
        packing.left = {kept[at].root: packing.left[kept[at].root] for at in chosen}  # the first chosen grows first
        rng.shuffle(packing.turn)
        new = packing.run()
        if quality(new) <= quality(old):
            kept = [tree for at, tree in enumerate(kept) if at not in chosen] + new
        else:
            packing.restore(before)
        since = since + 1 if quality(kept) == best else 0
        best = quality(kept)
    return sorted(kept, key=lambda tree: tree.root)


def quality(trees: Sequence[Arborescence]) -> Quality:
    return len(trees), sorted((tree.depth for tree in trees), reverse=True)


def _chosen(trees: Sequence[Arborescence], rng: random.Random) -> list[int]:
    """One of the deepest trees first, or two of one root; and some others."""
    several: dict[int, list[int]] = {}
    for at, tree in enumerate(trees):
        several.setdefault(tree.root, []).append(at)
    pairs = [here for here in several.values() if len(here) > 1]
    if pairs and rng.randrange(2):
        here = pairs[rng.randrange(len(pairs))]
        start = rng.randrange(len(here))
        chosen = [here[start], here[start - 1]]
    else:
        deepest = max(tree.depth for tree in trees)
        worst = [at for at, tree in enumerate(trees) if tree.depth == deepest]
        chosen = [worst[rng.randrange(len(worst))]]
    for _ in range(1 + rng.randrange(6)):
        at = rng.randrange(len(trees))
        if at not in chosen:
            chosen.append(at)
    return chosen


def _farthest(packing: Packing, root: int) -> int:
    """How many arcs the farthest node is away: no tree is shallower."""
    flows = packing.flows
    depth = {root: 0}
    for node in (queue := [root]):
        for arc in packing.out[node]:
            head = flows.head[arc]
            if head not in depth:
                depth[head] = depth[node] + 1
                queue.append(head)
    return max(depth.values())
