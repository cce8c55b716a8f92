"""The linear program of uneven starts: how much of each class of chunks starts in each step.

    variables   b[c, s]   amount of class c that starts in step s
                t[s]      length of step s
                p[plan]   fraction of the data that goes by each plan
    minimize    sum of t[s]
    such that   sum_s b[c, s] = p[plan of c]        classes of a plan carry the same data
                sum of p = 1
                t[s] >= sum over c, level l of load[c, kind, l] * b[c, s - l]     for every kind of resource

In the middle of a long pipeline all steps are alike, so `_Line` represents them by one; only the steps at both ends
have variables of their own. Resources that all classes load alike are one kind, and kinds that another dominates are
dropped.

Example: a chain of two links in three steps: half starts in step 0, half in step 1. Each step lasts 1/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from antiphon.core.columns import Bools, Floats, Longs

ALIKE = 0.01  # of the largest load of a plan: kinds of resources that differ by less are merged


EDGE = 12  # steps beyond the deepest with starts of their own: with 4, up to 0.7 % of the time is lost


MANY = 10_000  # entries above which the interior point method (with crossover) takes a quarter of the time


QUICKER = 1e-3  # of the time: minimum gain from using the slowest paths where others are quick


TIE = 1e-5  # of the time: random tie-break, since solvers are slow among many equally good solutions


def drop_dominated(load: Floats, decimals: int) -> Floats:
    """Return the rows that no other row exceeds everywhere; rows equal to `decimals` digits count as one."""
    return load[_undominated_rows(load, decimals)]


def _undominated_rows(load: Floats, decimals: int) -> list[int]:
    top = load.max(initial=0.0)
    if not top:
        return []
    _, first = np.unique(np.round(load / top, decimals), axis=0, return_index=True)
    heaviest_first = first[np.argsort(-load[first].sum(axis=1), kind="stable")]
    rows: list[int] = []
    for row in heaviest_first.tolist():
        if load[row].any() and not (rows and (load[rows] >= load[row]).all(axis=1).any()):
            rows.append(row)
    return rows


@dataclass(frozen=True, eq=False)
class Class:
    """Chunks of a plan that start together.

    `load[kind, step]`: seconds per byte of nbytes by kind of resource; `latency`: of the slowest path in each step.
    """

    plan: int
    chunks: Longs
    load: Floats
    latency: Floats

    @property
    def steps(self) -> int:
        return self.load.shape[1]


class _Line:
    """Steps as the linear program sees them: in the middle of many, every step is represented by one.

    While pipelines fill and drain, every step is its own. `kind`: of every step; `shown`: whether the step's loads
    appear in the program.
    """

    def __init__(self, steps: int, deepest: int) -> None:
        """`deepest`: the maximum number of steps of any class."""
        self.steps, self.edge = steps, deepest + EDGE
        low, high = self.edge + deepest - 1, steps - deepest + 1 - self.edge
        every = np.arange(steps)
        if high - low < 2:
            self.edge = steps
            low = high = steps
        self.kind = np.where(every < low, every, np.maximum(every - (high - low) + 1, low)) if low < steps else every
        self.shown: Bools = (every <= low) | (every >= high)
        self.kinds = int(self.kind[-1]) + 1

    def start_variables(self, depth: int) -> Longs:
        """Return, for a class with this depth, the number of the variable for each starting step."""
        every = np.arange(self.steps - depth + 1)
        last = len(every) - self.edge
        if last <= self.edge:
            return every
        return np.where(every < self.edge, every, np.maximum(every - (last - self.edge) + 1, self.edge))


def count_entries(chunk_class: Class, kinds: Sequence[int], steps: int, deepest: int) -> int:
    """Return the number of entries of the linear program for a class, if the deepest class takes `deepest` steps.

    >>> count_entries(Class(0, np.arange(1), np.eye(2), np.zeros(2)), [0, 1], 5, 2)
    8
    """
    if chunk_class.steps > steps:
        return 0
    return int((chunk_class.load[list(kinds)] > 0).sum()) * (
        int(_Line(steps, deepest).start_variables(chunk_class.steps)[-1]) + 1
    )


def solve_starts(
    classes: Sequence[Class], kinds: Sequence[int], steps: int, shut: Sequence[Bools] | None = None
) -> list[Floats] | None:
    """Return for every class how much starts in each possible step; None if the program was not solved.

    Classes of a plan carry the same data. `kinds`: the resources that count; `shut`: by class and step where nothing
    may start. Among nearly equal solutions those with quick paths are preferred: a step lasts as long as its slowest
    path.

    A chain of two links is done in three steps by halves:

    >>> chain = Class(0, np.arange(1), np.eye(2), np.zeros(2))
    >>> solve_starts([chain], [0, 1], 3)
    [array([0.5, 0.5])]
    """
    import scipy.sparse as sp
    from scipy.optimize import linprog

    plans = sorted({chunk_class.plan for chunk_class in classes})
    line = _Line(steps, max(chunk_class.steps for chunk_class in classes))
    places = [line.start_variables(chunk_class.steps) for chunk_class in classes]
    first = np.cumsum([0, *(int(place[-1]) + 1 for place in places)])
    clock, choice = int(first[-1]), int(first[-1]) + line.kinds
    top = max(float(chunk_class.load.max()) for chunk_class in classes) or 1.0
    late = np.array([chunk_class.latency.max() for chunk_class in classes])
    # a slight surcharge on classes with slow paths decides between nearly equal solutions
    dear = QUICKER * (late - late.min()) / (late.max() or 1.0)
    rows, columns, values = [], [], []
    cost, upper_bound = np.zeros(choice + len(plans)), np.full(choice + len(plans), np.inf)
    # a represented step counts as many times as it stands for
    cost[clock:choice] = np.bincount(line.kind)
    equal = np.zeros((len(classes) + 1, len(cost)))
    for number, (chunk_class, place, begin) in enumerate(zip(classes, places, first.tolist(), strict=False)):
        load = chunk_class.load[list(kinds)]
        # what starts in step s loads step s + level: one entry per (kind, level) and starting step
        kind, level = np.nonzero(load)
        at = level[:, None] + np.arange(len(place))
        shown = line.shown[at]
        rows.append((kind[:, None] * line.kinds + line.kind[at])[shown])
        columns.append(np.broadcast_to(begin + place, at.shape)[shown])
        values.append(np.broadcast_to((load[kind, level] / top)[:, None], at.shape)[shown])
        columns_of = slice(begin, begin + int(place[-1]) + 1)
        equal[number, columns_of] = np.bincount(place)
        equal[number, choice + plans.index(chunk_class.plan)] = -1
        cost[columns_of] = dear[number] * equal[number, columns_of]
        if shut is not None:
            upper_bound[begin + place[shut[number]]] = 0
    equal[-1, choice:] = 1
    rows.append(np.arange(len(kinds) * line.kinds))
    columns.append(clock + np.tile(np.arange(line.kinds), len(kinds)))
    values.append(np.full(len(kinds) * line.kinds, -1.0))
    shape = (len(kinds) * line.kinds, len(cost))
    upper = sp.csr_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=shape)
    # the interior-point solver is quicker here, but returns a mixture of equal optima: a tiny random cost makes it
    # unique
    large = upper.nnz >= MANY
    if large:
        apart = np.random.default_rng(0).uniform(0, TIE * len(plans) / len(classes), clock)
        cost[:clock] += apart * equal[:, :clock].sum(axis=0)
    solution = linprog(
        cost,
        A_ub=upper,
        b_ub=np.zeros(shape[0]),
        A_eq=sp.csr_array(equal),
        b_eq=np.append(np.zeros(len(classes)), 1.0),
        bounds=np.stack([np.zeros(len(cost)), upper_bound], axis=1),
        method="highs-ipm" if large else "highs",
    )
    if solution.status != 0:
        return None
    return [solution.x[begin + place] for begin, place in zip(first.tolist(), places, strict=False)]


def merge_kinds(classes: Sequence[Class]) -> list[Class]:
    """Merge resources that all classes load alike, and drop those that another dominates.

    >>> load = np.array([[1.0, 0], [1, 0], [2, 0], [0, 1]])
    >>> merge_kinds([Class(0, np.arange(1), load, np.zeros(2))])[0].load.tolist()
    [[2.0, 0.0], [0.0, 1.0]]
    """
    load = np.concatenate([chunk_class.load for chunk_class in classes], axis=1)
    if not load.any():
        return []  # without data there is nothing to pipeline
    rows = _undominated_rows(load, 10)
    return [replace(chunk_class, load=chunk_class.load[rows]) for chunk_class in classes]


def distinct_kinds(classes: Sequence[Class]) -> list[int]:
    """Return kinds of resources such that no two are nearly equal.

    >>> load = np.array([[2.0, 0], [1.99, 0], [0, 1]])
    >>> distinct_kinds([Class(0, np.arange(1), load, np.zeros(2))])
    [0, 2]
    """
    tops: dict[int, float] = {}
    for chunk_class in classes:
        tops[chunk_class.plan] = max(tops.get(chunk_class.plan, 0.0), float(chunk_class.load.max()))
    if not tops:
        return []
    loads = np.concatenate([chunk_class.load / tops[chunk_class.plan] for chunk_class in classes], axis=1)
    kinds: list[int] = []
    for number, row in enumerate(loads):
        if not kinds or np.abs(loads[kinds] - row).max(axis=1).min() > ALIKE:
            kinds.append(number)
    return kinds
