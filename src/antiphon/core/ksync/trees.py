"""Lower bounds on an allreduce of all ranks in S steps, by prices of links and cheapest trees, in whole numbers.

There are n ranks, C chunks of each rank's input, and r_s rounds in step s, R in all. A *send* carries one chunk, or a
partial sum of it, from rank to rank within a step. As in dual.py, resources have a price in each step, and a send costs
the prices of all resources that it crosses. With

    B_s   the price of everything the machine can carry in one round of step s
    V     the least that the sends of one chunk can cost

    C * V <= price of all sends <= sum over s of r_s * B_s <= R * max B_s,   and so   R / C >= V / max B_s.

Example: 3 ranks in a line, 2 steps, price 1 on each of the 4 links in both steps, so B_s = 4. The ends send to the
middle in step 1 and receive from it in step 2: V = 4, and R / C >= 1.

A tree *towards* a rank brings it all inputs: each other rank sends once, and later than its subtree does. A tree *away*
from a rank brings its input to all: each other rank receives once, and later than its parent. The sends of a chunk
contain both for every rank. They bound V by roots or by pairs.

By roots, if the dual has `trees`: each has a root, a direction, and lengths of its own for links and steps. All lengths
of a link in a step sum to at most its price. So V is at least the sum of the cheapest trees, each by its lengths.

By pairs, if not: V is at least the cost of the cheapest pair below, or of 2 n - 1 cheapest sends if that is less.

1. Let t be the first step after which some rank, v, has all n inputs.
2. Each other rank has sent its input towards v, before step t or to v itself in step t: n - 1 sends "up".
3. Each other rank gets the last input that it lacks in step t or later: n - 1 sends "down"; v receives none.
4. These are 2 (n - 1) sends. If there are more, they cost at least 2 n - 1 cheapest sends. Let there be no more.
5. If none goes down in step t, they are a tree towards v until step t and a tree away from v after it.
6. Else some rank w gets its last input in step t. v sends nothing up, so its first send is in step t at the earliest:
   w gets the input of v in step t from v itself. As this is w's one send down, w gets nothing else in that step.
7. Before step t, v lacks some input z. w has it after step t, but v cannot send it, so w had it before. It has come to
   w by sends up, so it reaches v by w's one send up. If that went to a rank x other than v, x's one send up would lie
   on the path of z behind w, and v would lack the input of x as long as z, so that w would lack it after step t. So w
   sends to v itself, in step t: the two *exchange* what they have. What v lacked comes from w: no other rank is w.
8. All others have sent up to v or w before step t, and receive from them after it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.ksync.dual import FAR_COST, MAX_PRICE, StepInequality, bond_costs, prices_of_round, require
from antiphon.core.ksync.instance import Instance
from antiphon.errors import Invalid

# A check takes 3 ** ranks sums per step and tree: one for each set of owners before the step and each larger set after.
MAX_RANKS, MAX_STEPS = 10, 100
_FAR_SEND = FAR_COST >> 4  # stands for FAR_COST in sums, which then stay below 2 ** 63: at most MAX_RANKS are added
Costs = Sequence[Sequence[Sequence[Any]]]  # of a send, by step (from 0), sender and receiver
Rows = tuple[tuple[int, int, int], ...]  # (resource or bond, step, price or length)
Tree = tuple[int, bool, Rows]  # root, whether the tree leads towards it, lengths of bonds


class Pair(NamedTuple):
    """A tree towards some rank and a tree away from it, or towards and away from two ranks that exchange in between."""

    up_steps: int  # steps of the tree towards; an exchange takes the step after them
    roots: int  # the rank, or the two, as a set of bits
    exchanges: bool


@dataclass(frozen=True)
class TreeDual:
    """Prices of resources, as in `StepDual`, and trees with lengths of bonds (groups of parallel links)."""

    steps: int
    prices: Rows
    trees: tuple[Tree, ...] = ()

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


def _read_rows(rows: Any) -> Rows:
    return tuple((int(resource), int(step), int(amount)) for resource, step, amount in rows)


def is_bounded_by_trees(instance: Instance, collective: Collective) -> bool:
    """Return whether trees bound this collective: an allreduce of all ranks, which are few.

    All paths through switches must be known (`exhaustive`), as a bound holds for schedules by any of them.
    """
    ranks = len(collective.members)
    return collective.kind == "allreduce" and ranks == instance.ranks <= MAX_RANKS and instance.arcs.exhaustive


def evaluate_tree_dual(instance: Instance, dual: TreeDual) -> StepInequality:
    """Return what this dual proves; raise Invalid if it breaks a rule. O(trees * steps * 3^ranks).

    `instance`: of the allgather of all ranks, on the machine of the allreduce. Only its paths and capacities are used,
    which do not depend on the collective.
    """
    steps, ranks = dual.steps, instance.ranks
    require(1 <= steps <= MAX_STEPS and ranks <= MAX_RANKS, "it has too many steps or ranks")
    require(instance.arcs.exhaustive, "there are too many paths through switches")
    prices = _table_of(dual.prices, len(instance.capacity), steps)
    round_price = prices_of_round(instance, prices)
    require(max(round_price) > 0, "all its prices are 0")
    costs = bond_costs(instance, prices)
    value = _value_by_roots(instance, costs, dual.trees) if dual.trees else _value_by_pairs(instance, costs)
    require(value < FAR_COST, "a rank is out of reach within its steps")
    return StepInequality(round_price, value)


def _value_by_roots(instance: Instance, costs: Any, trees: Sequence[Tree]) -> int:
    """Return the sum of the cheapest trees, each by its own lengths. `costs`: by bond and step."""
    tables = [_table_of(rows, *costs.shape) for _, _, rows in trees]
    # in each step the lengths of a bond in all trees sum to at most its price
    require(bool((sum(tables) <= costs).all()), "it shares out more than a move costs")
    value = 0
    for (root, toward, _), lengths in zip(trees, tables, strict=True):
        require(0 <= root < instance.ranks, "a root is no rank")
        costs_from_first_step, *_ = list_tree_costs(send_costs(instance, lengths.tolist(), toward))
        value += int(costs_from_first_step[1 << root])
    return value


def _value_by_pairs(instance: Instance, bond_prices: Any) -> int:
    """Return the cost of the cheapest pair of trees, or of 2 n - 1 cheapest sends, if that is less."""
    costs, reversed_costs = (send_costs(instance, bond_prices.tolist(), toward) for toward in (False, True))
    (pair_cost, _), *_ = list_pairs(costs, reversed_costs)
    cheapest_send = min(cost for by_sender in costs for by_receiver in by_sender for cost in by_receiver)
    return int(min(pair_cost, (2 * instance.ranks - 1) * cheapest_send))


def _table_of(rows: Rows, count: int, steps: int) -> Any:
    """Return rows as an array by resource (or bond) and step."""
    table = np.zeros((count, steps), np.int64)
    for resource, step, amount in rows:
        require(0 <= resource < count and 0 <= step < steps and 0 <= amount <= MAX_PRICE, "a price is out of range")
        table[resource, step] = amount
    return table


def send_costs(instance: Instance, lengths: Sequence[Sequence[Any]], toward: bool = False) -> Costs:
    """Return the cost of a send by step, sender and receiver. `lengths`: by bond and step.

    `toward`: with all links and the order of steps reversed, so that a tree towards a rank leads away from it.
    """
    steps, ranks = len(lengths[0]), instance.ranks
    costs = [[[FAR_COST] * ranks for _ in range(ranks)] for _ in range(steps)]
    arcs = zip(instance.arcs.tail.tolist(), instance.arcs.head.tolist(), instance.arcs.paths, strict=True)
    for (tail, head, path), step in itertools.product(arcs, range(steps)):
        path_cost = sum(lengths[bond][step] for bond in path)
        sender, receiver, at = (head, tail, steps - 1 - step) if toward else (tail, head, step)
        costs[at][sender][receiver] = min(costs[at][sender][receiver], path_cost)
    return costs


def list_tree_costs(costs: Costs) -> list[list[Any]]:
    """Return `tables`: tables[s][owners] is the least cost of sends in steps s and later that bring to all ranks what
    the ranks `owners` (a set, as bits) have before step s.

    Each other rank receives once. The last table is that after all steps, where only the set of all ranks costs 0.
    """
    by_step = np.minimum(np.array(costs), _FAR_SEND)  # [step][sender][receiver]
    growths = _list_growths(by_step.shape[1])
    after = np.full(1 << by_step.shape[1], _FAR_SEND, by_step.dtype)
    after[-1] = 0
    tables = [after]
    for step_costs in by_step[::-1]:
        tables.append(_costs_before(step_costs, tables[-1], growths))
    return [np.where(table < _FAR_SEND, table, FAR_COST).tolist() for table in reversed(tables)]


class _Growths(NamedTuple):
    """All pairs of a set of owners before a step and one after it, by the set before."""

    before: Any
    after: Any
    first: Any  # by set before: its first pair
    new: list[Any]  # by rank: the pairs in which it becomes an owner


@functools.lru_cache(maxsize=MAX_RANKS)
def _list_growths(ranks: int) -> _Growths:
    sets = np.arange(1 << ranks)
    before, after = np.nonzero((sets[:, None] & ~sets) == 0)
    new = [np.flatnonzero((before ^ after) >> rank & 1) for rank in range(ranks)]
    return _Growths(before, after, np.searchsorted(before, sets), new)


def _costs_before(step_costs: Any, after: Any, growths: _Growths) -> Any:
    """Return by set of owners the least cost from this step on. `after`: the same from the next step on."""
    costs = np.zeros(len(growths.before), after.dtype)
    for receiver, pairs in enumerate(growths.new):
        costs[pairs] += _arrival_costs(step_costs[:, receiver])[growths.before[pairs]]
    return np.minimum(np.minimum.reduceat(costs + after[growths.after], growths.first), _FAR_SEND)


def _arrival_costs(costs_by_sender: Any) -> Any:
    """Return by set of owners the least cost of a send from one of them."""
    table = np.array([_FAR_SEND], costs_by_sender.dtype)
    for cost in costs_by_sender:
        table = np.concatenate((table, np.minimum(table, cost)))
    return table


def list_pairs(costs: Costs, reversed_costs: Costs) -> list[tuple[Any, Pair]]:
    """Return pairs of trees with the cost of all their sends, the cheapest first.

    There is one for every root and number of steps up, and one for every two ranks and step of their exchange.
    `reversed_costs`: those of `send_costs` with `toward`.
    """
    steps, ranks = len(costs), range(len(costs[0]))
    down_from_step = list_tree_costs(costs)
    up_in_steps = list_tree_costs(reversed_costs)[::-1]  # the last k reversed steps are the first k steps
    pairs = []
    for up_steps, v in itertools.product(range(steps + 1), ranks):
        root = 1 << v
        cost = up_in_steps[up_steps][root] + down_from_step[up_steps][root]
        pairs.append((cost, Pair(up_steps, root, exchanges=False)))
    for up_steps, (v, w) in itertools.product(range(steps), itertools.combinations(ranks, 2)):
        roots = (1 << v) | (1 << w)
        exchange = costs[up_steps][v][w] + costs[up_steps][w][v]
        cost = up_in_steps[up_steps][roots] + exchange + down_from_step[up_steps + 1][roots]
        pairs.append((cost, Pair(up_steps, roots, exchanges=True)))
    return sorted(pairs)
