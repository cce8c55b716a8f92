"""Build the rows of a plan and their routes. All is done for the reducescatter; the allgather is the same backwards.

From the root downwards: at each switch the owners of all blocks are known; `assign.deal_blocks` assigns which server of
each child holds each block before the switch's step; these are the owners for the switches below. Steps are assigned
first (`_switch_end_steps`): as soon as possible, but aligned with other switches of the same height where the parent
must wait anyway.

    gather     results of a child move to fewer servers, where the plan rearranges data
    combine    the plan type among the children: partial results meet at the owner's child, at the owner
    spread     gathered blocks that are owned in this child return to their owners

Example: two leaves with servers 0, 1 and 2, 3, blocks 0..3 owned by servers of the same number. At the root block 0 is
held by server 0 (of its own leaf) and by server 2 or 3, say 2: step 1 has 2 > 0. Below, in step 0, server 1 sends
block 0 to 0, and server 3 sends it to 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Ints, Longs, dense
from antiphon.core.routes import Routes
from antiphon.planners.switchtrees.assign import Owned, deal_blocks, gather_holders
from antiphon.planners.switchtrees.choose import Choice
from antiphon.planners.switchtrees.tree import Tree
from antiphon.planners.switchtrees.types import CPS, moves_of, steps_of

AT_ONCE = 2**22  # rows built in one batch
Columns = tuple[Ints, Ints, Ints, Ints]  # step, block, src, dst


@dataclass(frozen=True, eq=False)
class Rows:
    """Transfers between servers. Every block has a tree towards its owner: every other server sends it on exactly
    once.
    """

    step: Ints
    block: Ints
    src: Ints
    dst: Ints
    steps: int


def plan_rows(tree: Tree, choices: list[Choice | None], owner: Longs) -> Rows:
    """Return the reducescatter of a plan: servers * (servers - 1) rows.

    `owner`: of every block, before rearrangement at the root. O(rows + switches * blocks log blocks).
    """
    maker = _RowBuilder(tree, choices)
    maker.build_rows(owner)
    step, block, src, dst = (np.concatenate(column) for column in zip(*maker.made, strict=True))
    return Rows(step, block, src, dst, int(maker.ended[0]))


def block_owners(tree: Tree, choice: Choice | None) -> Longs:
    """Return who owns each block of an allreduce before rearrangement at the root: each server one, or as chosen."""
    if choice is None or not choice.owned:
        return np.arange(tree.servers)
    edges = np.rint(np.cumsum((0.0, *choice.owned)) * tree.servers).astype(np.int64)
    owner_lists = []
    for child, count in zip(tree.children[0], np.diff(edges).tolist(), strict=True):
        low, high = int(tree.low[child]), int(tree.high[child])
        owner_lists.append(low + np.arange(count) * (high - low) // max(count, 1))
    return np.concatenate(owner_lists)


class _RowBuilder:
    """Rows under construction, and the step after which each switch is done."""

    def __init__(self, tree: Tree, choices: list[Choice | None]) -> None:
        self.tree, self.choices = tree, choices
        self.made: list[Columns] = []
        self.ended = self._switch_end_steps()

    def _switch_end_steps(self) -> Longs:
        """Return the step after which everything at a switch is done.

        As soon as possible, but where its parent must wait anyway, together with other switches of its height: these
        move as much.
        """
        tree, nodes = self.tree, len(self.tree.parent)
        own, soon, height = (np.zeros(nodes, np.int64) for _ in range(3))
        for node in range(nodes - 1, -1, -1):
            choice = self.choices[node]
            if choice is None:
                continue
            own[node] = self._gather_steps(node, choice) + self._exchange_steps(node, choice) + choice.spread
            if not choice.flat:
                below = tree.children[node]
                height[node] = height[below].max() + 1
                soon[node] = (soon[below] + own[below]).max()
        longest = np.zeros(int(height.max()) + 1, np.int64)
        np.maximum.at(longest, height, own)
        # by height: when the lower heights are done, if each takes as long as its slowest switch
        together = np.cumsum(longest) - longest
        # from the root downwards: begin together with all switches of the same height, but not before the children are
        # done, and in time for the parent
        begun = soon.copy()
        for node in range(1, nodes):
            latest = begun[tree.parent[node]] - own[node]
            begun[node] = min(latest, max(soon[node], together[height[node]]))
        return begun + own

    def _exchange_steps(self, node: int, choice: Choice) -> int:
        return 1 if choice.flat else steps_of(choice.kind, len(self.tree.children[node]))

    def _gather_steps(self, node: int, choice: Choice) -> int:
        tree = self.tree
        sizes = [int(tree.high[c] - tree.low[c]) for c in tree.children[node]]
        return int(any(holders < size for holders, size in zip(choice.holder_counts, sizes, strict=False)))

    def build_rows(self, owner: Longs) -> None:
        """Build from the root downwards.

        `cut`: servers whose results were gathered on others above: they keep their part of a block and do not send it
        below.
        """
        ahead: list[tuple[int, Longs, list[Longs]]] = [(0, owner, [])]
        while ahead:
            node, owner, cut = ahead.pop()
            choice = self.choices[node]
            if choice is None:
                continue
            if choice.flat:
                self._send_to_owners(node, owner, cut)
                continue
            tree, children = self.tree, self.tree.children[node]
            low = np.append(tree.low[children], tree.high[node])
            placed = Owned.by_child(owner, low)
            holders = [deal_blocks(owner, placed, int(low[i]), int(low[i + 1])) for i in range(len(children))]
            going = [
                gather_holders(holders[i], int(low[i]), int(low[i + 1]), count)
                if count < low[i + 1] - low[i]
                else holders[i]
                for i, count in enumerate(choice.holder_counts)
            ] or holders
            self._gather_on_holders(node, choice, placed.child, holders, going, cut)
            if len(children) > 1:
                self._combine_children(node, choice, placed.child, going, cut)
            for i, child in enumerate(children):
                if tree.children[child]:
                    cut_here = [] if going[i] is holders[i] else [going[i]]
                    ahead.append((child, holders[i], [*cut, *cut_here]))

    def _add_rows(
        self, step: int | Ints, block: Longs | Ints, src: Longs | Ints, dst: Longs | Ints, cut: list[Longs]
    ) -> None:
        if cut:
            # rows whose source already gave its part of the block to another server are left out
            still_there = np.all([src != gathered_on[block] for gathered_on in cut], axis=0)
            step = step if isinstance(step, int) else step[still_there]
            block, src, dst = block[still_there], src[still_there], dst[still_there]
        when = np.full(len(block), step, np.int32) if isinstance(step, int) else step.astype(np.int32)
        self.made.append((when, block.astype(np.int32), src.astype(np.int32), dst.astype(np.int32)))

    def _send_to_owners(self, node: int, owner: Longs, cut: list[Longs]) -> None:
        """Send everything below directly to the owner, in one step."""
        low, high = int(self.tree.low[node]), int(self.tree.high[node])
        each = max(AT_ONCE // (high - low), 1)
        for begin in range(0, len(owner), each):
            block = np.arange(begin, min(begin + each, len(owner)), dtype=np.int32)
            moves = moves_of(CPS, high - low, (owner[block] - low).astype(np.int32))
            self._add_moves(int(self.ended[node]) - 1, block, moves.src + np.int32(low), owner[block][:, None], cut)

    def _add_moves(self, step: int | Ints, block: Ints, src: Ints, dst: Longs | Ints, cut: list[Longs]) -> None:
        when = step if isinstance(step, int) else step.ravel()
        shape = src.shape
        rows: Ints = np.repeat(block, shape[1])
        to: Ints = np.broadcast_to(dst, shape).astype(np.int32).ravel()
        self._add_rows(when, rows, src.ravel(), to, cut)

    def _gather_on_holders(
        self, node: int, choice: Choice, child: Longs, holders: list[Longs], going: list[Longs], cut: list[Longs]
    ) -> None:
        """Rearrange before; and after, if owners are fixed: what is owned here returns then instead."""
        after = int(self.ended[node]) - 1
        before = after - choice.spread - self._exchange_steps(node, choice)
        for i, (holder, gatherer) in enumerate(zip(holders, going, strict=True)):
            if holder is gatherer:
                continue
            # with fixed owners, what is owned in this child stays for now, and takes part only after the exchange
            moves = holder != gatherer
            away = np.flatnonzero(moves & (child != i) if choice.spread else moves)
            self._add_rows(before, away, holder[away], gatherer[away], cut)
            if choice.spread:
                own_blocks = np.flatnonzero(moves & (child == i))
                self._add_rows(after, own_blocks, gatherer[own_blocks], holder[own_blocks], cut)

    def _combine_children(self, node: int, choice: Choice, child: Longs, going: list[Longs], cut: list[Longs]) -> None:
        """Apply the plan type among the children, each represented by its holder of the block."""
        count, first = len(going), int(self.ended[node]) - choice.spread - self._exchange_steps(node, choice)
        holder = np.stack(going).astype(np.int32)
        each = max(AT_ONCE // count, 1)
        for begin in range(0, holder.shape[1], each):
            block = np.arange(begin, min(begin + each, holder.shape[1]), dtype=np.int32)
            moves = moves_of(choice.kind, count, child[block].astype(np.int32))
            src, dst = holder[moves.src, block[:, None]], holder[moves.dst, block[:, None]]
            self._add_moves(moves.step + np.int32(first), block, src, dst, cut)


def tree_routes(tree: Tree, src: Ints, dst: Ints) -> tuple[Routes, Ints]:
    """Return the path of every pair of servers up and down a tree of single links: a table, and each row's index in it.

    O(rows + pairs * depth).
    """
    servers = tree.servers
    pairs, route = dense(src * np.int64(servers) + dst, servers * servers)
    ends = pairs // servers, pairs % servers
    hops, legs = np.zeros(len(pairs), np.int64), []
    for direction, begin, other in ((tree.up, ends[0], ends[1]), (tree.down, ends[1], ends[0])):
        node, row, steps = tree.leaf[begin], np.arange(len(pairs)), []
        while len(row):
            # climb while the other end is not below this node
            apart = (other[row] < tree.low[node]) | (other[row] >= tree.high[node])
            row, node = row[apart], node[apart]
            real = direction.link[node] >= 0
            steps.append((row[real], direction.link[node[real]]))
            node = tree.parent[node]
        legs.append(steps)
        for row, _ in steps:
            hops[row] += 1
    ptr = np.concatenate([[0], np.cumsum(hops)]).astype(np.int64)
    flat = np.empty(int(ptr[-1]), np.int32)
    # upward links are filled in from the path's beginning, downward links from its end
    up, down = ptr[:-1].copy(), ptr[1:] - 1
    for row, link in legs[0]:
        flat[up[row]] = link
        up[row] += 1
    for row, link in legs[1]:
        flat[down[row]] = link
        down[row] -= 1
    return Routes(ptr, flat), route.astype(np.int32)
