"""The linear program of uneven pipelining (uneven.py): how much data of each schedule starts in each step.

Input: schedules of one collective (here: plans), each divided into classes of chunks that start together
(`ChunkClass`), and a number of steps. A class that starts in step s loads links in steps s, s + 1, ..., as its own
schedule says. Output (`solve_starts`): how much of each class starts in each step, such that all steps together are
shortest.

    variables   b[c, s]   fraction of the data that class c starts in step s
                t[s]      length of step s
                p[plan]   fraction of the data that goes by each plan
    minimize    sum of t[s]
    such that   sum over s of b[c, s] = p[plan of c]        all classes of a plan carry the same fraction
                sum of p = 1
                t[s] >= sum over c and l of load[c, kind, l] * b[c, s - l]      for every kind of resource

Here load[c, kind, l] is the load of class c in the l-th step after its start.

In the middle of a long pipeline all steps are alike, so `_StepGroups` gives them common variables; only the steps at
both ends have their own. A kind is a set of links and shared limits that every class loads alike; a kind that another
one exceeds in every step is left out.

Example: a chain of two links in three steps: half starts in step 0, half in step 1. Each step lasts 1/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from antiphon.core.columns import Bools, Floats, Longs

KIND_TOLERANCE = 0.01  # kinds are merged if their loads differ by less than this fraction of the plan's largest load
# Steps at each end, besides those of the deepest class, with variables of their own (with 4, schedules 0.7 % slower).
OWN_EDGE_STEPS = 12
# Nonzero entries from which on the interior point method (with crossover) is quicker, up to four times.
MIN_INTERIOR_ENTRIES = 2_500
LATENCY_SURCHARGE = 1e-3  # surcharge, relative to the time, on the class with the slowest path
TIE_SURCHARGE = 1e-5  # random surcharge, relative to the time: solvers are slow among many equally good solutions


def undominated_rows(load: Floats, decimals: int) -> list[int]:
    """Return the numbers of the rows of a matrix that no other row equals or exceeds in every column, heaviest first.

    Of rows that are equal to `decimals` digits, one is kept.
    """
    max_load = load.max(initial=0.0)
    if not max_load:
        return []
    _, first = np.unique(np.round(load / max_load, decimals), axis=0, return_index=True)
    heaviest_first = first[np.argsort(-load[first].sum(axis=1), kind="stable")]
    rows: list[int] = []
    for row in heaviest_first.tolist():
        if load[row].any() and not (rows and (load[rows] >= load[row]).all(axis=1).any()):
            rows.append(row)
    return rows


@dataclass(frozen=True, eq=False)
class ChunkClass:
    """Chunks of a plan that start together.

    Steps count from their start. `load[kind, step]`: seconds per byte of nbytes by kind of resource; `latency[step]`:
    that of the slowest path in use, in seconds.
    """

    plan: int  # number of the plan
    chunks: Longs  # numbers of the chunks
    load: Floats
    latency: Floats

    @property
    def steps(self) -> int:
        """Steps from the start to the end of the last chunk."""
        return self.load.shape[1]


class _StepGroups:
    """The steps as the linear program sees them: those in the middle of a long pipeline count as one step, repeated.

    While the pipeline fills and drains every step has a variable of its own.
    `variable[s]`: number of the variable that is the length of step s. If of 7 steps 2 to 4 are in the middle: 0, 1,
    2, 2, 2, 3, 4.
    `has_rows[s]`: whether the linear program has rows for step s.
    `edge`: number of steps at each end with start variables of their own.
    """

    def __init__(self, steps: int, deepest: int) -> None:
        """`steps`: of the whole pipeline. `deepest`: the most steps of any class."""
        self.steps, self.edge = steps, deepest + OWN_EDGE_STEPS
        # steps from `low` to `high` - 1 are in the middle: every chunk under way there started in the middle, too
        low, high = self.edge + deepest - 1, steps - deepest + 1 - self.edge
        step = np.arange(steps)
        if high - low < 2:  # a short pipeline has no middle
            self.edge = steps
            low = high = steps
        self.variable = np.where(step < low, step, np.maximum(step - (high - low) + 1, low)) if low < steps else step
        self.has_rows: Bools = (step <= low) | (step >= high)  # the rows of one middle step hold for all
        self.variable_count = int(self.variable[-1]) + 1

    def start_variables(self, depth: int) -> Longs:
        """Return the number of the start variable of each step in which a class of `depth` steps can start: one for
        all steps in the middle."""
        start = np.arange(self.steps - depth + 1)
        middle_end = len(start) - self.edge
        if middle_end <= self.edge:
            return start
        return np.where(start < self.edge, start, np.maximum(start - (middle_end - self.edge) + 1, self.edge))


def count_entries(chunk_class: ChunkClass, kinds: Sequence[int], steps: int, deepest: int) -> int:
    """Return the number of entries of the linear program that a class needs: its nonzero loads times start variables.

    `deepest`: steps of the deepest class.

    >>> count_entries(ChunkClass(0, np.arange(1), np.eye(2), np.zeros(2)), [0, 1], 5, 2)
    8
    """
    if chunk_class.steps > steps:
        return 0
    return int((chunk_class.load[list(kinds)] > 0).sum()) * (
        int(_StepGroups(steps, deepest).start_variables(chunk_class.steps)[-1]) + 1
    )


def solve_starts(
    classes: Sequence[ChunkClass], kinds: Sequence[int], steps: int, forbidden: Sequence[Bools] | None = None
) -> list[Floats] | None:
    """Return, by class, the fraction of the data that starts in each possible step; None if the solver fails.

    `kinds`: numbers of the kinds of resources that count. `forbidden`: by class and step, whether starting is
    forbidden. Among nearly equal solutions those with paths of low latency are preferred, since a step lasts as long as
    its slowest path.

    A chain of two links is done in three steps by halves:

    >>> chain = ChunkClass(0, np.arange(1), np.eye(2), np.zeros(2))
    >>> solve_starts([chain], [0, 1], 3)
    [array([0.5, 0.5])]
    """
    from scipy import sparse
    from scipy.optimize import linprog

    plans = sorted({chunk_class.plan for chunk_class in classes})
    step_groups = _StepGroups(steps, max(chunk_class.steps for chunk_class in classes))
    start_variables = [step_groups.start_variables(chunk_class.steps) for chunk_class in classes]
    # by class, the column of its first start variable; last, the end of all of them
    first_column = np.cumsum([0, *(int(variables[-1]) + 1 for variables in start_variables)])
    length_column, plan_column = int(first_column[-1]), int(first_column[-1]) + step_groups.variable_count
    # variables in this order: starts b by class, lengths t of steps, fractions p of plans
    max_load = max(float(chunk_class.load.max()) for chunk_class in classes) or 1.0  # loads are divided by it
    latencies = np.array([chunk_class.latency.max() for chunk_class in classes])
    # a slight surcharge on classes with slow paths prefers quick ones among nearly equal solutions
    surcharge = LATENCY_SURCHARGE * (latencies - latencies.min()) / (latencies.max() or 1.0)
    rows, columns, values = [], [], []
    cost, upper_bound = np.zeros(plan_column + len(plans)), np.full(plan_column + len(plans), np.inf)
    # a length variable counts as many times as there are steps that it stands for
    cost[length_column:plan_column] = np.bincount(step_groups.variable)
    # equality constraints: a row per class (what starts - p[its plan] = 0), then one for the sum of p
    equal = np.zeros((len(classes) + 1, len(cost)))
    for number, (chunk_class, variables, begin) in enumerate(
        zip(classes, start_variables, first_column.tolist(), strict=False)
    ):
        load = chunk_class.load[list(kinds)]
        # data that start in step s load step s + offset: one entry per kind, offset and start variable
        kind, offset = np.nonzero(load)
        step = offset[:, None] + np.arange(len(variables))
        has_row = step_groups.has_rows[step]
        rows.append((kind[:, None] * step_groups.variable_count + step_groups.variable[step])[has_row])
        columns.append(np.broadcast_to(begin + variables, step.shape)[has_row])
        values.append(np.broadcast_to((load[kind, offset] / max_load)[:, None], step.shape)[has_row])
        columns_of = slice(begin, begin + int(variables[-1]) + 1)
        equal[number, columns_of] = np.bincount(variables)  # the steps that each variable stands for
        equal[number, plan_column + plans.index(chunk_class.plan)] = -1
        cost[columns_of] = surcharge[number] * equal[number, columns_of]
        if forbidden is not None:
            upper_bound[begin + variables[forbidden[number]]] = 0
    equal[-1, plan_column:] = 1
    rows.append(np.arange(len(kinds) * step_groups.variable_count))
    columns.append(length_column + np.tile(np.arange(step_groups.variable_count), len(kinds)))
    values.append(np.full(len(kinds) * step_groups.variable_count, -1.0))
    shape = (len(kinds) * step_groups.variable_count, len(cost))
    upper = sparse.csr_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=shape)
    # the interior point method is quicker on large programs, but returns a mixture of equal optima: a tiny random cost
    # makes the optimum unique
    is_large = upper.nnz >= MIN_INTERIOR_ENTRIES
    if is_large:
        tie_break = np.random.default_rng(0).uniform(0, TIE_SURCHARGE * len(plans) / len(classes), length_column)
        cost[:length_column] += tie_break * equal[:, :length_column].sum(axis=0)
    solution = linprog(
        cost,
        A_ub=upper,
        b_ub=np.zeros(shape[0]),
        A_eq=sparse.csr_array(equal),
        b_eq=np.append(np.zeros(len(classes)), 1.0),
        bounds=np.stack([np.zeros(len(cost)), upper_bound], axis=1),
        method="highs-ipm" if is_large else "highs",
    )
    if solution.status != 0:
        return None
    return [
        solution.x[begin + variables] for begin, variables in zip(first_column.tolist(), start_variables, strict=False)
    ]


def merge_kinds(classes: Sequence[ChunkClass]) -> list[ChunkClass]:
    """Return the classes with one kind for all resources that every class loads alike, without dominated kinds.

    >>> load = np.array([[1.0, 0], [1, 0], [2, 0], [0, 1]])
    >>> merge_kinds([ChunkClass(0, np.arange(1), load, np.zeros(2))])[0].load.tolist()
    [[2.0, 0.0], [0.0, 1.0]]
    """
    load = np.concatenate([chunk_class.load for chunk_class in classes], axis=1)
    if not load.any():
        return []  # without data there is nothing to pipeline
    rows = undominated_rows(load, decimals=10)
    return [replace(chunk_class, load=chunk_class.load[rows]) for chunk_class in classes]


def distinct_kinds(classes: Sequence[ChunkClass]) -> list[int]:
    """Return kinds (by number), one for each set of nearly equal ones (KIND_TOLERANCE).

    >>> load = np.array([[2.0, 0], [1.99, 0], [0, 1]])
    >>> distinct_kinds([ChunkClass(0, np.arange(1), load, np.zeros(2))])
    [0, 2]
    """
    tops: dict[int, float] = {}  # by plan, its largest load
    for chunk_class in classes:
        tops[chunk_class.plan] = max(tops.get(chunk_class.plan, 0.0), float(chunk_class.load.max()))
    if not tops:
        return []
    loads = np.concatenate([chunk_class.load / tops[chunk_class.plan] for chunk_class in classes], axis=1)
    kinds: list[int] = []
    for number, row in enumerate(loads):
        if not kinds or np.abs(loads[kinds] - row).max(axis=1).min() > KIND_TOLERANCE:
            kinds.append(number)
    return kinds
