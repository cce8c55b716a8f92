"""Memory accesses of reductions and the number of senders per receiver: of schedules, and their lower bounds.

GenModel adds these two kinds of optimality to latency and bandwidth (GenModel and GenTree paper, sections 3.1 to 3.3).
Combining f values at once (f is the *fan-in*) reads f and writes one: f + 1 accesses per byte and f - 1 additions. A
sum of v values that is formed in h reductions takes (v - 1) + 2 h accesses (equation 15): fewest if all are combined at
once.

Example: 4 values. At once: 4 reads + 1 write = 5 accesses. Pairwise in 3 reductions: 3 * (2 + 1) = 9 accesses. But
combining at once needs 3 senders to one receiver at the same time (incast), which slows networks down: Theorem 2 says
that no schedule is optimal in both.

`list_reductions` reads the fan-ins off a schedule by sorting its writes; `work_of` sums them per rank;
`least_memory_accesses` and `least_incast` are the lower bounds. A *cell* is one rank's copy of a chunk.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.assumed import REDUCTION, conditions_without_help
from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.columns import SAFE_INT64, Longs, order_of, pack_columns, run_starts, sums_by_group, unique_inverse
from antiphon.core.dependencies import cell_keys
from antiphon.core.joints import joints_of
from antiphon.core.loads import pieces_of
from antiphon.core.schedule import COPY, REDUCE, Schedule
from antiphon.core.topology import Topology

# ---- what a schedule does ----


@dataclass(frozen=True, eq=False)
class Reductions:
    """One row per reduction: in `step`, `rank` combines `fanin` values of `chunk` at once, its own value included.

    `row` is one of the transfers that bring these values. A local copy between slots is listed, too, with fan-in 1,
    because it reads and writes. A single value that arrives in an empty cell combines nothing and is not listed.
    """

    step: Longs
    rank: Longs
    chunk: Longs
    fanin: Longs
    row: Longs


def list_reductions(schedule: Schedule) -> Reductions:
    """Return all reductions of a schedule, in the order of cells and steps: one sort of its writes, O(n log n).

    Values that a switch combined on the way arrive as one value.

    Rank 0 of `core.example.star` combines its own value and those of two others:

    >>> from antiphon.core.example import star
    >>> reductions = list_reductions(star())
    >>> reductions.rank.tolist(), reductions.fanin.tolist(), reductions.row.tolist()
    ([0], [3], [0])
    """
    if not bool((schedule.op == REDUCE).any() or (schedule.src == schedule.dst).any()):  # only copies between ranks
        return Reductions(*(np.zeros(0, np.int64) for _ in range(5)))
    schedule, original_row, _ = _merge_joint_arrivals(schedule)
    cell, cell_count = cell_keys(schedule, "dst")
    distinct_steps, step_index = unique_inverse(schedule.step.astype(np.int64), bound=schedule.steps or 1)
    step_count = max(len(distinct_steps), 1)
    # The key (cell, step) would not fit into int64: number only the cells in use.
    if cell_count * step_count >= SAFE_INT64:
        cells, cell = unique_inverse(cell, bound=cell_count)
        cell_count = len(cells)
    order = order_of(cell * step_count + step_index, bound=cell_count * step_count)
    # Equal keys are writes into one cell in one step: they are combined at once.
    key = (cell * step_count + step_index)[order]
    first = np.flatnonzero(run_starts(key))
    row = order[first]
    count = np.diff(np.append(first, len(key)))
    is_first_write = run_starts(key[first] // step_count)  # the first group of writes into its cell
    has_value = ~is_first_write
    has_value[is_first_write] = _cells_begin_full(schedule, row[is_first_write])
    is_reduction = schedule.op[row] == REDUCE
    is_local = (schedule.op[row] == COPY) & (schedule.src[row] == schedule.dst[row])
    # The cell's own value takes part if it holds one, from the start or by an earlier write. A copy reads one value.
    fanin = np.where(is_reduction, count + has_value, 1)
    listed_groups = np.flatnonzero((is_reduction & (fanin > 1)) | is_local)
    row = row[listed_groups]
    columns = (schedule.step[row], schedule.dst[row], schedule.chunk[row], fanin[listed_groups], original_row[row])
    return Reductions(*(column.astype(np.int64) for column in columns))


def _merge_joint_arrivals(schedule: Schedule) -> tuple[Schedule, Longs, Longs]:
    """Return the schedule with one row per (joint, receiving rank), the numbers of these rows, and their senders.

    A switch that combines what several ranks send counts as one sender. All such switches together have the number
    `ranks`, one more than the last rank. So all combined arrivals at one receiver count as one sender.
    """
    sender, joints = schedule.src.astype(np.int64), joints_of(schedule)
    if joints is None:
        return schedule, np.arange(schedule.transfers), sender
    ranks = schedule.collective.ranks
    is_combined = (joints.of_row >= 0) & (joints.sources[joints.of_row] > 1)
    is_retained = ~is_combined  # ordinary rows; the first row of each combined arrival is added next
    combined_rows = np.flatnonzero(is_combined)
    arrival = joints.of_row[combined_rows] * ranks + schedule.dst[combined_rows]  # (joint, receiver) as one number
    is_retained[combined_rows[np.unique(arrival, return_index=True)[1]]] = True
    rows = np.flatnonzero(is_retained)
    return schedule.take(rows), rows, np.where(is_combined, ranks, sender)[rows]


def _cells_begin_full(schedule: Schedule, rows: Longs) -> NDArray[np.bool_]:
    """Return whether the cells that these rows write hold a value before the first step."""
    relation, ranks = schedule.collective.relation, schedule.collective.ranks
    block = schedule.chunks.block[schedule.chunk[rows]].astype(np.int64)
    written = block * ranks + schedule.dst[rows]
    initial = relation.pre_block.astype(np.int64) * ranks + relation.pre_rank
    sorted_initial = np.sort(initial)
    position = np.minimum(np.searchsorted(sorted_initial, written), max(len(sorted_initial) - 1, 0))
    is_initial = sorted_initial[position] == written if len(sorted_initial) else np.zeros(len(rows), np.bool_)
    is_full: NDArray[np.bool_] = is_initial & (schedule.slot("dst")[rows] == 0)  # inputs are in slot 0
    return is_full


@dataclass(frozen=True, eq=False)
class MemoryWork:
    """Additions and memory accesses per rank of a schedule, exact, in units of nbytes."""

    additions: tuple[Fraction, ...]
    accesses: tuple[Fraction, ...]

    @cached_property
    def most_accesses(self) -> Fraction:
        return max(self.accesses, default=Fraction(0))


def work_of(schedule: Schedule) -> MemoryWork:
    """Return the additions and accesses of every rank, summed over all steps. O(n log n)."""
    reductions = list_reductions(schedule)
    weights, scale = schedule.chunks.weights(schedule.collective)  # a chunk is weights[chunk] / scale of nbytes
    # Python integers where int64 could overflow: a byte counts at most once per row, plus twice per reduction
    if float(weights.max(initial=0)) * (schedule.transfers + 2 * len(reductions.row)) >= SAFE_INT64:
        weights = weights.astype(object)
    weight = weights[reductions.chunk]

    def sum_per_rank(operations_per_byte: Longs) -> tuple[Fraction, ...]:
        total = sums_by_group(reductions.rank, weight * operations_per_byte, schedule.collective.ranks)
        return tuple(Fraction(int(value), scale) for value in total)

    additions = sum_per_rank(np.maximum(reductions.fanin - 1, 0))
    return MemoryWork(additions, accesses=sum_per_rank(reductions.fanin + 1))


def most_senders(schedule: Schedule) -> int:
    """Return the greatest number of ranks that send to one receiver at once. O(n log n).

    A chunk that is sent in p pieces is in flight for p steps from its own step on, so transfers of neighbouring steps
    overlap. Switches that combine what several ranks send count as one sender.
    """
    schedule, _, sender = _merge_joint_arrivals(schedule)
    ranks = schedule.collective.ranks + 1
    remote_rows = np.flatnonzero(schedule.src != schedule.dst)
    if not len(remote_rows):
        return 0
    # Each transfer is an interval of steps (begin, end) of its (receiver, sender) pair.
    pair = schedule.dst[remote_rows] * np.int64(ranks) + sender[remote_rows]
    begin = schedule.step[remote_rows].astype(np.int64)
    end = begin + pieces_of(schedule)[schedule.chunk[remote_rows]]
    end_bound = int(end.max()) + 1
    order = order_of(*pack_columns((pair, ranks * ranks), (begin, end_bound)))
    pair, begin, end = pair[order], begin[order], end[order]
    starts_interval = run_starts(pair)
    group = np.cumsum(starts_interval) - 1
    # Per (sender, receiver) pair merge overlapping intervals: pieces in flight at once are one sender. `latest_end` is
    # the end of everything of the pair that began so far; the multiple of `end_bound` separates the pairs.
    latest_end = np.maximum.accumulate(group * end_bound + end)
    starts_interval[1:] |= (group * end_bound + begin)[1:] > latest_end[:-1]
    first = np.flatnonzero(starts_interval)
    last = np.append(first[1:], len(pair)) - 1
    dst, begin, end = pair[first] // ranks, begin[first], latest_end[last] - group[last] * end_bound
    # Sweep over begins and ends per receiver; at equal times ends come first.
    is_begin = np.repeat([1, 0], len(first))
    order = order_of(*pack_columns((np.tile(dst, 2), ranks), (np.concatenate([begin, end]), end_bound), (is_begin, 2)))
    return int(np.cumsum(np.where(is_begin[order], 1, -1)).max())  # the ends of a receiver cancel its begins


# ---- lower bounds ----


def least_memory_accesses(collective: Collective) -> Fraction:
    """Return Theorem 1's lower bound on the memory accesses (in nbytes) of the busiest rank, for any schedule.

    A result of k values takes at least k + 1 accesses, wherever they are combined and in however many reductions; the
    busiest rank has at least the average over all ranks (relays may combine as well). For allreduce and reducescatter
    of N ranks that is (N + 1) / N; 0 if nothing is combined. O(rows of the relation).
    """
    total = sum(
        int(w) * (k + 1)
        for w, k in zip(collective.weights.tolist(), _values_per_block(collective), strict=True)
        if k > 1
    )
    return Fraction(total, collective.buffer_weight * collective.ranks)


def least_incast(collective: Collective) -> int:
    """Return the fewest senders to one receiver at once that a schedule can do with: 1 if anything must move, else 0.

    Every collective can be done one message at a time, with one sender and so without incast (section 3.3.1).
    """
    if collective.kind in ("custom", "scatter", "gather", "alltoall"):
        return 1 if len(needs_of(collective)) else 0
    return int(collective.weights.any())  # in these kinds every block involves several ranks


def senders_if_least_memory(collective: Collective) -> int:
    """Return Theorem 2's number of senders to one receiver, if memory accesses are least and values are combined on
    arrival.

    To combine all N values at once the other N - 1 must arrive at once, so with a penalty for incast that begins below
    N - 1 senders no schedule is optimal in both. A schedule that stores arrivals in separate slots over several steps
    and combines them afterwards escapes the theorem, at the price of more steps and buffers.
    """
    return max(max(_values_per_block(collective), default=0) - 1, 0)


def least_json(collective: Collective, topology: Topology | None = None) -> dict[str, Any]:
    """Return both lower bounds as JSON: the accesses in nbytes, and the fewest senders to one receiver.

    Beside the accesses of Theorem 1 stands the number of senders that Theorem 2 demands for them. If switches of
    `topology` can combine for ranks, the accesses assume that they do not, which the key `assumes` states.
    """
    accesses = least_memory_accesses(collective)
    return {
        "memory": {
            "accesses": str(accesses),
            "senders": senders_if_least_memory(collective),
            **_assumption_json(collective, topology),
        },
        "incast": {"senders": least_incast(collective)},
    }


def reached_json(schedule: Schedule, topology: Topology | None = None) -> dict[str, Any]:
    """Return a schedule's figures beside the least ones; gap 1.0 is optimal, None: nothing is combined.

    `topology` as of `least_json`.
    """
    least_accesses, accesses = least_memory_accesses(schedule.collective), work_of(schedule).most_accesses
    gap = float(accesses / least_accesses) if least_accesses else None
    return {
        "memory": {
            "accesses": str(accesses),
            "least": str(least_accesses),
            "gap": gap,
            **_assumption_json(schedule.collective, topology),
        },
        "incast": {"senders": most_senders(schedule), "least": least_incast(schedule.collective)},
    }


def _assumption_json(collective: Collective, topology: Topology | None) -> dict[str, list[str]]:
    """Return the assumption that switches do not reduce, if some could help by it: the bounds here ignore that help."""
    reduces = topology is not None and REDUCTION in conditions_without_help(topology, collective)
    return {"assumes": [REDUCTION]} if reduces else {}


def _values_per_block(collective: Collective) -> list[int]:
    """Return per block a lower bound on the number of initial values in its largest result (0 or 1: no combining)."""
    if collective.custom is None:
        return [int(count) for count in collective.contributions_per_block]
    relation, blocks = collective.custom, collective.blocks
    max_initial = [1] * blocks  # the most contributions that one rank begins with as a single value
    pairs = zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True)
    for (block, _), size in Counter(pairs).items():
        max_initial[block] = max(max_initial[block], size)
    totals, min_values = collective.contributions_per_block.tolist(), [0] * blocks
    for block, want in zip(relation.post_block.tolist(), relation.post_want.tolist(), strict=True):
        want_size = totals[block] if want < 0 else len(set(relation.wants[want]))
        min_values[block] = max(min_values[block], -(-want_size // max_initial[block]))
    return min_values
