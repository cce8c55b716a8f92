"""Lower bounds on an allreduce of all ranks in S steps, by prices of links and trees, checked in whole numbers.

As in dual.py, everything that r_s rounds of step s can carry costs at most r_s * B_s, so R / C >= V / max B_s, where V
is the least that the sends of one chunk can cost. Here V comes from trees: the inputs of a chunk reach a rank over a
tree towards it, and its own input reaches all others over a tree away from it. A tree has one send per rank but its
root; up a tree they are ever later, down a tree, too. `list_tree_costs` finds the cheapest ones.

`trees` states for some roots and directions lengths of links per step, which sum to at most the prices: the sends of a
chunk cost at least the cheapest tree of each under its own lengths.

Without them, V is the least cost of a pair of trees, or of 2 (n - 1) + 1 sends, if that is less. Let t be the first
step after which the inputs of all n ranks have reached some rank, v. Each other rank has sent towards v by then, and
each other rank receives something in step t or later that does not go to v: 2 (n - 1) sends. If there are no more,

- either each rank sends up a tree to v once in steps up to t, and receives down a tree from v once in later steps;
- or a rank w exchanges what it has with v in step t: what v lacked before can only be all that w had, so every other
  rank has sent up to v or w before, and receives from them later.

Example: 3 ranks in a line, 2 steps, price 1 on every link in both. The cheapest pair goes up to rank 1 and down from
it: V = 4, the links carry B = 4 per round, R / C >= 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.ksync.dual import FAR_COST, MAX_PRICE, StepInequality
from antiphon.core.ksync.instance import Instance
from antiphon.errors import Invalid

MAX_RANKS = 10  # 3 ** ranks sums per step
Pair = tuple[int, int, bool]  # steps up the first tree; its root, or the two that exchange, as bits; whether they do
Costs = Sequence[Sequence[Sequence[Any]]]  # of a send, by step, sender and receiver


@dataclass(frozen=True)
class TreeDual:
    """`prices`: rows (resource, step, price), as in `StepDual`. `trees`: root, whether the tree leads to it, and rows
    (bond, step, length).
    """

    steps: int
    prices: tuple[tuple[int, int, int], ...]
    trees: tuple[tuple[int, bool, tuple[tuple[int, int, int], ...]], ...] = ()

    def as_json(self) -> dict[str, Any]:
        trees = [[root, toward, [list(row) for row in rows]] for root, toward, rows in self.trees]
        return {"steps": self.steps, "prices": [list(row) for row in self.prices], "trees": trees}

    @staticmethod
    def of_json(value: Mapping[str, Any]) -> TreeDual:
        try:
            trees = tuple((int(root), bool(toward), _read_rows(rows)) for root, toward, rows in value["trees"])
            return TreeDual(int(value["steps"]), _read_rows(value["prices"]), trees)
        except (KeyError, TypeError, ValueError) as error:
            raise Invalid(f"certificate: a dual in it cannot be read ({error!r}); plan anew") from None


def _read_rows(rows: Any) -> tuple[tuple[int, int, int], ...]:
    return tuple((int(a), int(b), int(c)) for a, b, c in rows)


def is_bounded_by_trees(instance: Instance, collective: Collective) -> bool:
    """Return whether trees bound this collective: an allreduce of all ranks, which are few."""
    ranks = len(collective.members)
    return collective.kind == "allreduce" and ranks == instance.ranks <= MAX_RANKS and instance.arcs.exhaustive


def evaluate_tree_dual(instance: Instance, dual: TreeDual) -> StepInequality:
    """Return what this dual proves; raise Invalid if it breaks a rule. O(trees * steps * 3^ranks).

    `instance`: the allgather of all ranks, on the machine of the allreduce.
    """
    steps, bonds, ranks = dual.steps, len(instance.bonds), instance.ranks
    _require(1 <= steps <= 100 and ranks <= MAX_RANKS, "it has too many steps or ranks")
    _require(instance.arcs.exhaustive, "there are too many paths through switches")
    prices = _table_of(dual.prices, len(instance.capacity), steps)
    cost = prices[:bonds].copy()
    for bond, limits in enumerate(instance.limits_of):
        cost[bond] += prices[list(limits)].sum(axis=0)
    round_price = tuple(
        sum((b * int(p) for b, p in zip(instance.capacity, prices[:, s], strict=True) if p), Fraction(0))
        for s in range(steps)
    )
    _require(max(round_price) > 0, "all its prices are 0")
    if dual.trees:
        lengths = [_table_of(rows, bonds, steps) for _, _, rows in dual.trees]
        _require(bool((sum(lengths) <= cost).all()), "it shares out more than a move costs")
        _require(all(0 <= root < ranks for root, _, _ in dual.trees), "a root is no rank")
        value = sum(
            list_tree_costs(send_costs(instance, table.tolist(), toward))[0][1 << root]
            for table, (root, toward, _) in zip(lengths, dual.trees, strict=True)
        )
    else:
        costs = send_costs(instance, cost.tolist())
        cheapest_send = min(cost for table in costs for row in table for cost in row)
        (pair_cost, _), *_ = list_pairs(costs, send_costs(instance, cost.tolist(), toward=True))
        value = min(pair_cost, (2 * ranks - 1) * cheapest_send)
    _require(value < FAR_COST, "a rank is out of reach within its steps")
    return StepInequality(round_price, int(value))


def _table_of(rows: Sequence[tuple[int, int, int]], count: int, steps: int) -> Any:
    table = np.zeros((count, steps), np.int64)
    for place, step, amount in rows:
        _require(0 <= place < count and 0 <= step < steps and 0 <= amount <= MAX_PRICE, "a price is out of range")
        table[place, step] = amount
    return table


def send_costs(instance: Instance, lengths: Sequence[Sequence[Any]], toward: bool = False) -> Costs:
    """Return the cost of a send by step, sender and receiver. `lengths`: by bond and step.

    `toward`: on the machine with its links reversed, and in the reverse order of steps.
    """
    steps, ranks = len(lengths[0]), instance.ranks
    costs = [[[FAR_COST] * ranks for _ in range(ranks)] for _ in range(steps)]
    ends = zip(instance.arcs.tail.tolist(), instance.arcs.head.tolist(), instance.arcs.paths, strict=True)
    for (tail, head, path), step in itertools.product(ends, range(steps)):
        cost = sum(lengths[bond][step] for bond in path)
        row, column, place = (head, tail, steps - 1 - step) if toward else (tail, head, step)
        costs[place][row][column] = min(costs[place][row][column], cost)
    return costs


def list_tree_costs(costs: Costs) -> list[list[Any]]:
    """Return by step (after the last, too) and set of ranks, as bits, the least cost of bringing to all what these have
    before the step, where each other rank receives once.
    """
    ranks = range(len(costs[0]))
    full = (1 << len(ranks)) - 1
    tables = [[FAR_COST] * full + [0]]
    for step_costs in reversed(costs):
        after = tables[0]
        # arrival[v][owners]: the least cost of a send to v from one of `owners`
        arrival = [[FAR_COST] for _ in ranks]
        for v, owners in itertools.product(ranks, range(1, full + 1)):
            first = owners & -owners
            arrival[v].append(min(arrival[v][owners ^ first], step_costs[first.bit_length() - 1][v]))
        table = [FAR_COST]
        for owners in range(1, full + 1):
            later = [(owners, 0)]  # sets after this step, and what they cost
            for v in ranks:
                paid = arrival[v][owners]
                if not owners >> v & 1 and paid < FAR_COST:
                    later += [(to | 1 << v, cost + paid) for to, cost in later]
            table.append(min(FAR_COST, *(cost + after[to] for to, cost in later)))
        tables.insert(0, table)
    return tables


def list_pairs(costs: Costs, reversed_costs: Costs) -> list[tuple[Any, Pair]]:
    """Return pairs of trees with the costs of their sends, the cheapest first: of each root and step of its sum, or two
    ranks and the step of their exchange, the cheapest. `reversed_costs`: `toward`.
    """
    steps, ranks = len(costs), range(len(costs[0]))
    down, up = list_tree_costs(costs), list_tree_costs(reversed_costs)
    pairs = [(up[steps - t][1 << v] + down[t][1 << v], (t, 1 << v, False)) for t in range(steps + 1) for v in ranks]
    for t, (v, w) in itertools.product(range(steps), itertools.combinations(ranks, 2)):
        pair = 1 << v | 1 << w
        exchange = costs[t][v][w] + costs[t][w][v]
        pairs.append((up[steps - t][pair] + exchange + down[t + 1][pair], (t, pair, True)))
    return sorted(pairs)


def _require(holds: bool, failure: str) -> None:
    if not holds:
        raise Invalid(f"certificate: its dual does not hold: {failure}; plan anew")
