"""Build the transfers of a plan and their routes (Algorithm 1 of GenTree, from the root down).

Input: the rooted tree of switches with ranks (the paper's servers) as leaves, the choice at every switch (choose.py:
which plan type of types.py its children use), and the owner of every block: the rank that ends with its sum. Output of
`plan_rows`: the rows of a reducescatter, as servers, blocks and steps; the allgather is the same backwards.

At each switch the owners of all blocks are known. For each child, `assign.deal_blocks` decides which of its servers
holds the child's partial sum of each block (the holder) when the child is done. If the plan gathers, partial sums go on
to fewer servers (the gatherers) before the switch combines its children. For the switches below, the holders are the
owners. The steps of a switch, after all steps of the switches below it:

    gather     partial sums of a child move from their holders to fewer servers, if the plan rearranges data
    combine    the plan type among the children: partial sums of a block meet at its owner
    spread     a block that, due to gathering, was combined at another server of the child that has its owner goes to
               this owner

A flat choice has no steps below it: all servers below the switch send each block to its owner at once (type CPS,
co-located parameter servers). When each switch works is decided first (`_switch_end_steps`): as soon as possible, but
together with other switches of the same height if the parent must wait anyway.

Example: two leaves with servers 0, 1 and 2, 3, blocks 0..3 owned by servers of the same number. At the root block 0 is
held by server 0 (of its own leaf) and by server 2 or 3, say 2: step 1 has 2 > 0. Below, in step 0, server 1 sends
block 0 to 0, and server 3 sends it to 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Ints, Longs, unique_inverse
from antiphon.core.routes import Routes
from antiphon.planners.switchtrees.assign import Owned, deal_blocks, gather_holders
from antiphon.planners.switchtrees.choose import SwitchChoice
from antiphon.planners.switchtrees.tree import RootedTree
from antiphon.planners.switchtrees.types import CPS, moves_of, steps_of

BATCH_ROWS = 2**22  # rows built in one batch
Columns = tuple[Ints, Ints, Ints, Ints]  # step, block, src, dst


@dataclass(frozen=True, eq=False)
class ServerRows:
    """Transfers between servers: the partial sum of `block` goes from `src` to `dst` in `step`.

    The rows of a block form a tree towards its owner: every other server sends it exactly once.
    """

    step: Ints
    block: Ints
    src: Ints
    dst: Ints
    steps: int


def plan_rows(tree: RootedTree, choices: list[SwitchChoice | None], owner: Longs) -> ServerRows:
    """Return the reducescatter of a plan: servers * (servers - 1) rows. O(rows + switches * blocks log blocks).

    `owner`: by block, the server that owns it.
    """
    builder = _RowBuilder(tree, choices)
    builder.build_rows(owner)
    step, block, src, dst = (np.concatenate(column) for column in zip(*builder.columns, strict=True))
    return ServerRows(step, block, src, dst, int(builder.ended[0]))


def block_owners(tree: RootedTree, choice: SwitchChoice | None) -> Longs:
    """Return the owner of each block of an allreduce. `choice`: the choice at the root.

    Each server owns one block, unless the choice states the fraction of all blocks that the servers of each child own
    (`owned`).
    """
    if choice is None or not choice.owned:
        return np.arange(tree.servers)
    edges = np.rint(np.cumsum((0.0, *choice.owned)) * tree.servers).astype(np.int64)
    owner_lists = []
    for child, count in zip(tree.children[0], np.diff(edges).tolist(), strict=True):
        low, high = int(tree.low[child]), int(tree.high[child])
        owner_lists.append(low + np.arange(count) * (high - low) // max(count, 1))
    return np.concatenate(owner_lists)


class _RowBuilder:
    """Rows under construction, and by switch the number of steps after which it is done (`ended`).

    Of a choice, `kind` is the plan type, `holder_counts` by child the number of servers on which its partial sums are
    gathered ((): no gathering), and `spread` whether a last step takes blocks from there to their owners.
    """

    def __init__(self, tree: RootedTree, choices: list[SwitchChoice | None]) -> None:
        self.tree, self.choices = tree, choices
        self.columns: list[Columns] = []
        self.ended = self._switch_end_steps()

    def _switch_end_steps(self) -> Longs:
        """Return, by switch, the number of steps after which everything at it and below is done.

        A switch works as soon as possible. But if its parent must wait anyway, it works together with others of its
        height, which move the same amount of data: then the steps are evenly full.
        """
        tree, nodes = self.tree, len(self.tree.parent)
        # by node: its own steps, the earliest step in which it can begin, and its height; children before their parents
        own_steps, earliest, height = (np.zeros(nodes, np.int64) for _ in range(3))
        for node in range(nodes - 1, -1, -1):
            choice = self.choices[node]
            if choice is None:
                continue
            own_steps[node] = self._gather_steps(node, choice) + self._exchange_steps(node, choice) + choice.spread
            if not choice.flat:
                below = tree.children[node]
                height[node] = height[below].max() + 1
                earliest[node] = (earliest[below] + own_steps[below]).max()
        longest = np.zeros(int(height.max()) + 1, np.int64)
        np.maximum.at(longest, height, own_steps)
        # by height: the step from which all its switches can work, if each height takes as long as its slowest switch
        together = np.cumsum(longest) - longest
        # from the root down: begin together with the height, but after the children and in time for the parent
        begin = earliest.copy()
        for node in range(1, nodes):
            latest = begin[tree.parent[node]] - own_steps[node]
            begin[node] = min(latest, max(earliest[node], together[height[node]]))
        return begin + own_steps

    def _exchange_steps(self, node: int, choice: SwitchChoice) -> int:
        """Return the steps in which a switch combines its children."""
        return 1 if choice.flat else steps_of(choice.kind, len(self.tree.children[node]))

    def _gather_steps(self, node: int, choice: SwitchChoice) -> int:
        """Return 1 if the results of some child are gathered on fewer servers first, else 0."""
        tree = self.tree
        sizes = [int(tree.high[c] - tree.low[c]) for c in tree.children[node]]
        # `holder_counts` is empty where nothing is gathered
        return int(any(holders < size for holders, size in zip(choice.holder_counts, sizes, strict=False)))

    def build_rows(self, owner: Longs) -> None:
        """Add the rows of all switches, from the root down.

        `gathered_above`: for each gathering at a switch above, by block the server that it is gathered on. Below, this
        server keeps its own partial sum: it need not send it to the holder, whose sum comes to it later.
        """
        pending: list[tuple[int, Longs, list[Longs]]] = [(0, owner, [])]
        while pending:
            node, owner, gathered_above = pending.pop()
            choice = self.choices[node]
            if choice is None:
                continue
            if choice.flat:
                self._send_to_owners(node, owner, gathered_above)
                continue
            tree, children = self.tree, self.tree.children[node]
            # who holds each block in every child, and where these partial sums are when the children are combined
            low = np.append(tree.low[children], tree.high[node])
            owned = Owned.by_child(owner, low)
            holders = [deal_blocks(owner, owned, int(low[i]), int(low[i + 1])) for i in range(len(children))]
            # without gathering, the holders themselves have the partial sums
            gatherers = [
                gather_holders(holders[i], int(low[i]), int(low[i + 1]), count)
                if count < low[i + 1] - low[i]
                else holders[i]
                for i, count in enumerate(choice.holder_counts)
            ] or holders
            # this switch's steps, then the switches below, whose owners are the holders
            self._gather_and_spread(node, choice, owned.child, holders, gatherers, gathered_above)
            if len(children) > 1:
                self._combine_children(node, choice, owned.child, gatherers, gathered_above)
            for i, child in enumerate(children):
                if tree.children[child]:
                    gathered_here = [] if gatherers[i] is holders[i] else [gatherers[i]]
                    pending.append((child, holders[i], [*gathered_above, *gathered_here]))

    def _add_rows(
        self, step: int | Ints, block: Longs | Ints, src: Longs | Ints, dst: Longs | Ints, gathered_above: list[Longs]
    ) -> None:
        """Add rows with these columns, without those whose sender keeps its partial sum by `gathered_above`."""
        if gathered_above:
            still_there = np.all([src != gathered_on[block] for gathered_on in gathered_above], axis=0)
            step = step if isinstance(step, int) else step[still_there]
            block, src, dst = block[still_there], src[still_there], dst[still_there]
        step_column = np.full(len(block), step, np.int32) if isinstance(step, int) else step.astype(np.int32)
        self.columns.append((step_column, block.astype(np.int32), src.astype(np.int32), dst.astype(np.int32)))

    def _send_to_owners(self, node: int, owner: Longs, gathered_above: list[Longs]) -> None:
        """Add the rows of a flat choice: every server below sends each block directly to its owner, in one step."""
        low, high = int(self.tree.low[node]), int(self.tree.high[node])
        blocks_per_batch = max(BATCH_ROWS // (high - low), 1)
        for begin in range(0, len(owner), blocks_per_batch):
            block = np.arange(begin, min(begin + blocks_per_batch, len(owner)), dtype=np.int32)
            moves = moves_of(CPS, high - low, (owner[block] - low).astype(np.int32))
            self._add_moves(
                int(self.ended[node]) - 1, block, moves.src + np.int32(low), owner[block][:, None], gathered_above
            )

    def _add_moves(
        self, step: int | Ints, block: Ints, src: Ints, dst: Longs | Ints, gathered_above: list[Longs]
    ) -> None:
        """Add moves as rows. `src` (and `step`, `dst` if they are tables): blocks x moves of a block."""
        step_column = step if isinstance(step, int) else step.ravel()
        shape = src.shape
        blocks: Ints = np.repeat(block, shape[1])
        receivers: Ints = np.broadcast_to(dst, shape).astype(np.int32).ravel()
        self._add_rows(step_column, blocks, src.ravel(), receivers, gathered_above)

    def _gather_and_spread(
        self,
        node: int,
        choice: SwitchChoice,
        child: Longs,
        holders: list[Longs],
        gatherers: list[Longs],
        gathered_above: list[Longs],
    ) -> None:
        """Add the rows that gather each child's partial sums, and those that spread blocks to their owners at the end.

        `child`: by block, the child of its owner; `holders`, `gatherers`: by child and block, the server before and
        after gathering.
        """
        after = int(self.ended[node]) - 1
        before = after - choice.spread - self._exchange_steps(node, choice)
        for i, (holder, gatherer) in enumerate(zip(holders, gatherers, strict=True)):
            if holder is gatherer:
                continue
            # With `spread`, an owned block's partial sum stays at its holder, which adds the others' sum at the end.
            # Without it (at the root of an allreduce) owners are free: a block's sum stays at its gatherer.
            is_gathered = holder != gatherer
            moved_blocks = np.flatnonzero(is_gathered & (child != i) if choice.spread else is_gathered)
            self._add_rows(before, moved_blocks, holder[moved_blocks], gatherer[moved_blocks], gathered_above)
            if choice.spread:
                own_blocks = np.flatnonzero(is_gathered & (child == i))
                self._add_rows(after, own_blocks, gatherer[own_blocks], holder[own_blocks], gathered_above)

    def _combine_children(
        self, node: int, choice: SwitchChoice, child: Longs, gatherers: list[Longs], gathered_above: list[Longs]
    ) -> None:
        """Add the rows of the plan type among the children; for each block a child is represented by the server that
        has its partial sum.
        """
        count, first = len(gatherers), int(self.ended[node]) - choice.spread - self._exchange_steps(node, choice)
        gatherer = np.stack(gatherers).astype(np.int32)  # by child and block
        blocks_per_batch = max(BATCH_ROWS // count, 1)
        for begin in range(0, gatherer.shape[1], blocks_per_batch):
            block = np.arange(begin, min(begin + blocks_per_batch, gatherer.shape[1]), dtype=np.int32)
            moves = moves_of(choice.kind, count, child[block].astype(np.int32))
            src, dst = gatherer[moves.src, block[:, None]], gatherer[moves.dst, block[:, None]]
            self._add_moves(moves.step + np.int32(first), block, src, dst, gathered_above)


def tree_routes(tree: RootedTree, src: Ints, dst: Ints) -> tuple[Routes, Ints]:
    """Return the distinct paths between servers through a tree of single links, and the number of each row's path.

    O(rows + pairs * depth).
    """
    servers = tree.servers
    pairs, route = unique_inverse(src * np.int64(servers) + dst, servers * servers)
    sender, receiver = pairs // servers, pairs % servers
    # climb from both ends to where the paths meet: upward links from the sender, downward ones from the receiver
    hops, climbs = np.zeros(len(pairs), np.int64), []
    for direction, begin, other in ((tree.up, sender, receiver), (tree.down, receiver, sender)):
        node, row, steps = tree.leaf[begin], np.arange(len(pairs)), []
        while len(row):
            # climb while the other end is not below this node
            not_met = (other[row] < tree.low[node]) | (other[row] >= tree.high[node])
            row, node = row[not_met], node[not_met]
            # of a link with the root in its middle, each direction counts once, at the end that sends: -1 at the other
            has_link = direction.link[node] >= 0
            steps.append((row[has_link], direction.link[node[has_link]]))
            node = tree.parent[node]
        climbs.append(steps)
        for row, _ in steps:
            hops[row] += 1
    ptr = np.concatenate([[0], np.cumsum(hops)]).astype(np.int64)
    flat = np.empty(int(ptr[-1]), np.int32)
    # upward links are filled in from the path's beginning, downward links from its end
    up, down = ptr[:-1].copy(), ptr[1:] - 1
    upward_steps, downward_steps = climbs
    for row, link in upward_steps:
        flat[up[row]] = link
        up[row] += 1
    for row, link in downward_steps:
        flat[down[row]] = link
        down[row] -= 1
    return Routes(ptr, flat), route.astype(np.int32)
