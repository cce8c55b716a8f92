"""Uneven alltoalls whose counts (data per pair of ranks) change from call to call, as in a mixture of experts.

A plan is made for the average counts. Its schedule moves fixed shares of the block of each pair of ranks, so it is
right for any counts (`recount`), but its loads no longer fit the links as well. A step here is one of the user's
program, a call with its matrix of counts, not one of a schedule. The loss is computed in two ways:

    measure_loss   time / lower bound of each measured step, under the model of the tuning
    bound_loss     the greatest ratio for any counts, by loads alone: the limit for fine slices of large messages

Let f[r, p] be the share of the block of pair p that crosses resource r, and c[p] the counts. The load of r is linear in
c, and no schedule is faster than the cuts allow: a set S of nodes needs (sum of c[p] over pairs out of S) / capacity
out of S. So the greatest ratio is that of the linear programs, one per resource r,

    maximise  sum of f[r, p] c[p] / capacity(r)   such that   sum of c[p] over pairs out of S <= capacity(S)  for all S

Prices y >= 0 of the sets prove the bound: if those of the sets that p leaves sum to f[r, p] / capacity(r) or more for
every pair, no counts that all sets allow in one second occupy r for more seconds than the sum of y(S) capacity(S).
`_price_cuts` scales the solver's prices until they do.

Example: on a ring of 4, neighbours exchange their data directly. If only rank 0 sends, and only to rank 1, half of that
could have gone the other way round: a loss of 2, and no counts lose more.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds import bound
from antiphon.core.bounds.candidates import distinct_sides, limit_sides, middle_sides, place_partitions
from antiphon.core.bounds.counting import cut_of
from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.columns import Floats, Longs
from antiphon.core.joints import crossed_links
from antiphon.core.plan import Entry, Plan
from antiphon.core.portable import row_dot
from antiphon.core.routes import resolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost import Profile, as_profile, prepare
from antiphon.errors import Invalid, Unsupported
from antiphon.select.figures import measure
from antiphon.select.limits import least_times

MAX_STEPS = 2**16  # matrices of a file
MAX_COUNT = 2**40  # greatest count of a pair of ranks, in any unit
PREDICTED_STEPS = 32  # steps whose time is predicted, at even distances: each needs a lower bound of its own
LARGEST_AVERAGE = 1000  # average counts are rounded up to whole numbers of this scale: within 0.1 % of the largest
MIDDLE_SIDES = 16  # cuts across the middle of a grid that bound the loss


@dataclass(frozen=True, eq=False)
class Counts:
    """Measured counts of an alltoall: `matrices[step, i, j]` is what member i sends to member j."""

    matrices: Longs

    @staticmethod
    def of(value: Any, members: int) -> Counts:
        """Read a matrix or a list of matrices, as a value or from a JSON file; Invalid unless they fit the members."""
        label = "counts"
        if isinstance(value, str | os.PathLike):
            label = f"counts, {os.fspath(value)}"
            try:
                value = json.loads(Path(value).read_bytes())
            except (OSError, ValueError, RecursionError) as error:
                raise Invalid(f"{label}: cannot be read: {error}") from None
        try:
            array = np.asarray(value)
        except ValueError:
            array = np.zeros(0, object)
        array = array[None] if array.ndim == 2 else array
        if array.ndim != 3 or array.dtype.kind not in "iu" or array.shape[1:] != (members, members):
            raise Invalid(
                f"{label}: expected a matrix of {members} rows and columns, or a list of them, with the whole number "
                "that rank i sends to rank j in row i, column j"
            )
        if not 1 <= len(array) <= MAX_STEPS or array.min() < 0 or array.max() > MAX_COUNT:
            raise Invalid(f"{label}: expected 1 to {MAX_STEPS} matrices of whole numbers from 0 to {MAX_COUNT}")
        off_diagonal = array * ~np.eye(members, dtype=bool)
        empty_steps = np.flatnonzero(~off_diagonal.any(axis=(1, 2)))
        if len(empty_steps):
            raise Invalid(
                f"{label}: matrix {empty_steps[0]} has nothing to send from one rank to another; leave it out"
            )
        return Counts(array.astype(np.int64))

    def average(self, ranks: int, members: Sequence[int]) -> Collective:
        """Return the alltoall of the average counts, rounded up, so that every pair has a route."""
        total = self.matrices.sum(axis=0)
        weights = np.maximum(-(-total * LARGEST_AVERAGE // total.max()), 1)
        # transposed, as blocks are in the order of receivers, then senders
        return Collective("alltoall", ranks, tuple(members), weights=weights.T.ravel())

    def collective(self, step: int, ranks: int, members: Sequence[int]) -> Collective:
        """Return the alltoall of one step."""
        return Collective("alltoall", ranks, tuple(members), weights=self.matrices[step].T.ravel())

    def sizes(self, nbytes: int) -> list[int]:
        """Return the size of each step, its largest buffer, if that of the average counts is `nbytes`."""
        # the largest buffer of the sum of all matrices, which is the average times their number; then that of each
        largest_of_sum, *largest = (
            max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())
            for matrix in (self.matrices.sum(axis=0), *self.matrices)
        )
        return [max(round(nbytes * len(self.matrices) * int(step) / int(largest_of_sum)), 1) for step in largest]


@dataclass(frozen=True)
class CountsLoss:
    """What a plan for the average counts loses: time / lower bound at measured counts, and at most for any."""

    nbytes: int  # the largest buffer of the average counts
    matrices: int  # number of measured matrices
    gaps: tuple[float, ...]  # of the matrices whose time was predicted; (): the model has no bound
    any_counts: float  # `bound_loss`: the greatest ratio for any counts

    def as_json(self) -> dict[str, Any]:
        return {
            "nbytes": self.nbytes, "matrices": self.matrices, "priced": len(self.gaps),
            "gap_median": median(self.gaps) if self.gaps else None, "gap_worst": max(self.gaps, default=None),
            "any_counts": self.any_counts,
        }  # fmt: skip


def of_request(value: Any, target: Collective) -> tuple[Counts, Collective]:
    """Return the counts of a request for an alltoall among these ranks, and the alltoall of their average."""
    if target.kind != "alltoall":
        raise Invalid(f"counts: are for an alltoall, not for {target.title}")
    counts = Counts.of(value, len(target.members))
    return counts, counts.average(target.ranks, target.members)


def measure_loss(plan: Plan, counts: Counts, nbytes: int, model: str, profile: Any = None) -> CountsLoss:
    """Predict the time of the plan's schedule for `nbytes` at the measured counts, and bound its loss for any.

    `profile`: figures that replace nominal ones; None: there are none.
    """
    topology, target = plan.topology, plan.collective
    loaded_profile: Profile | None = None if profile is None else as_profile(profile)
    machine = topology if loaded_profile is None else loaded_profile.on(topology)
    schedule, sizes, gaps = plan.at(nbytes).schedule, counts.sizes(nbytes), []
    for step in np.unique(np.linspace(0, len(sizes) - 1, PREDICTED_STEPS).round().astype(int)).tolist():
        recounted = recount_schedule(schedule, counts.collective(step, target.ranks, target.members))
        size = sizes[step]
        seconds = prepare(model, recounted, topology, profile=loaded_profile)(size).seconds
        limit = bound(machine, recounted.collective)
        try:
            least_seconds = least_times(recounted.collective, machine, limit, [size], model, loaded_profile)[size]
        except Unsupported:  # no bound is known under this model
            break
        gaps.append(seconds / least_seconds)
    return CountsLoss(nbytes, len(sizes), tuple(gaps), bound_loss(schedule, machine))


def recount_schedule(schedule: Schedule, target: Collective) -> Schedule:
    """Return the same transfers for an alltoall of the same members with other counts."""
    old = schedule.collective
    if old.kind != "alltoall" or target.kind != "alltoall" or old.members != target.members:
        raise Invalid(f"counts: {old.title} has none; expected an alltoall among the same ranks")
    # Proofs are for the old counts.
    provenance = {key: value for key, value in schedule.provenance.items() if key in ("planner", "options")}
    return replace(schedule, collective=target, provenance=provenance)


def recount(plan: Plan, counts: Any) -> Plan:
    """Return the plan with the counts of one step, each schedule verified, with its new figures."""
    step_counts = Counts.of(counts, len(plan.collective.members))
    if len(step_counts.matrices) != 1:
        raise Invalid(f"counts: expected the matrix of one step, got {len(step_counts.matrices)}")
    target = step_counts.collective(step=0, ranks=plan.collective.ranks, members=plan.collective.members)
    limits = bound(plan.topology, target)
    entries = []
    for entry in plan.entries:
        schedule = recount_schedule(entry.schedule, target)
        claims = {"planner": entry.claims.get("planner"), **measure(schedule, plan.topology, limits)}
        entries.append(Entry(entry.start, entry.stop, schedule, claims))
    return Plan(plan.topology, target, tuple(entries))


# ---- the loss for any counts ----


def bound_loss(schedule: Schedule, topology: Topology) -> float:
    """Return the greatest ratio, over all counts, of the time that the schedule loads a resource to the least time that
    cuts prove, both at the bandwidths of `topology`."""
    shares = _find_shares(schedule, topology)
    crossings, capacity = _list_cuts(schedule.collective, topology)
    capacity_of = topology.resources.bytes_per_second
    # Resources with equal rows, such as all cards of a box, have the same linear program: solve it once.
    loads = {  # `indptr` grows at the resources that some block crosses
        (shares[[r]].toarray() / float(capacity_of(r))).tobytes()
        for r in np.flatnonzero(np.diff(shares.indptr)).tolist()
    }
    return max((_price_cuts(np.frombuffer(row), crossings, capacity) for row in sorted(loads)), default=1.0)


def _find_shares(schedule: Schedule, topology: Topology) -> Any:
    """Return for every resource (row) the share of every block that crosses it, as a sparse matrix."""
    import scipy.sparse as sp

    resources, chunks = topology.resources, schedule.chunks
    paths = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    link, row = crossed_links(schedule, paths, topology)
    chunk = schedule.chunk[row]
    # A link also loads the shared limits that include it. `index`: for each resource, the position in `link`.
    index, resource = resources.with_limits(link)
    chunk = chunk[index]
    shape = (len(resources.class_of), schedule.collective.blocks)
    entries = (chunks.share[chunk] / chunks.denominator, (resource, chunks.block[chunk]))
    return sp.coo_array(entries, shape=shape).tocsr()


def _list_cuts(target: Collective, topology: Topology) -> tuple[NDArray[np.bool_], Floats]:
    """Return cuts: whether block b must cross cut c, as a matrix [c, b], and the bytes per second of each cut.

    A cut is a set of nodes; a block crosses it if its sender is inside and its receiver outside.
    """
    equal_blocks = replace(target, weights=np.zeros(0, np.int64))  # none: all blocks are equal
    needs, relation = needs_of(equal_blocks), target.relation
    sides = [*limit_sides(topology)]
    for nodes in itertools.chain.from_iterable(place_partitions(topology)):
        side = np.zeros(topology.nodes, bool)
        side[nodes] = True
        sides += [side, ~side]
    demand = np.ones((topology.ranks, topology.ranks))  # every rank sends equally much to every other
    sides += middle_sides(topology, demand, MIDDLE_SIDES)
    sides = distinct_sides(sides)
    crossings = np.array([side[relation.pre_rank] & ~side[relation.post_rank] for side in sides])
    capacity = np.array([float(cut_of(topology, needs, side).capacity) for side in sides])
    is_crossed = crossings.any(axis=1)
    return crossings[is_crossed], capacity[is_crossed]


def _price_cuts(load: Floats, crossings: NDArray[np.bool_], capacity: Floats) -> float:
    """Return the least bound on the load of a resource that prices of cuts prove, for counts within all capacities.

    `load`: by block, the seconds that a byte of it occupies the resource. `crossings`, `capacity`: see `_list_cuts`.
    """
    from scipy.optimize import linprog

    blocks = np.flatnonzero(load > 0)
    scale = float(load.max()) * float(capacity.max())  # prices and their sum are then of the order of 1
    leaves = crossings[:, blocks].T.astype(float)  # [block, cut]: 1 if the block must cross the cut
    cost, minimum = capacity / capacity.max(), load[blocks] / load.max()
    result = linprog(cost, A_ub=-leaves, b_ub=-minimum, method="highs")
    if result.status != 0:
        raise Unsupported(f"counts: the program that bounds the loss ended with: {result.message}")
    price = np.maximum(result.x, 0.0)
    # Rounding may leave a block's sum of prices below its load: then scale all prices up, which proves the bound.
    correction = float((minimum / row_dot(leaves, price)).max())
    return float(row_dot(cost, price)) * max(correction, 1.0) * scale
