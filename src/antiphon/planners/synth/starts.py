"""Begin the search on large machines with plans of quick planners, and improve these. Called by work.py.

The planners in STARTS need about a second on 128 ranks. Their plans, cut into equal chunks, are points (C, S, R) like
any other. `improve_starts` yields those that no other beats, and then better ones (improve.py): first with fewer
rounds, then with fewer steps, then with more steps and fewer rounds. Above MOST_SEARCHED nothing else is tried.

These points have no certificate: on hundreds of ranks checking one takes long. A point is optimal all the same if its
R/C meets the bandwidth bound. On the torus 8x16 improving leads to (4, 12, 127), which has the fewest steps, too; on
four DGX-1 in a ring, from chunks cut in two, to (8, 14, 31).

`quick_schedules` yields the plans as they are, on machines of any size and for any collective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.ksync.certificate import BEST_FOUND
from antiphon.core.ksync.instance import Instance
from antiphon.core.loads import pieces_of, pipelined_steps
from antiphon.core.request import Request
from antiphon.core.routes import resolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import expand
from antiphon.errors import EffortSpent, Infeasible, Invalid, NotFound, Unsupported
from antiphon.planners.synth.effort_budget import UNIT, EffortBudget
from antiphon.planners.synth.flow import has_single_destinations
from antiphon.planners.synth.frontier import Point, size_of
from antiphon.planners.synth.improve import LIMITS, ChangingAlgorithm
from antiphon.planners.synth.search import SearchState
from antiphon.planners.synth.task import Move, drop_useless_moves, rounds_of
from antiphon.registry import call, find

STARTS = ("greedy", "trees", "compose")  # the quickest first
START_PRICE = 2 * UNIT  # effort of all of them together
LEAST_EFFORT = 10 * UNIT  # with less, these planners do not run before a search; `tune` gives less and runs them itself
MOST_MOVES = 150_000  # plans with more moves are no starts
# Size of an instance (frontier.size_of): chunks at one part per block, times arcs, times steps.
START_SIZE, START_RANKS = 30_000, 32  # above this size, or on as many ranks, quick plans come before the search
MOST_SEARCHED = 400_000  # above this size they replace it
IMPROVE_SHARE = 6  # improving gets 1 / IMPROVE_SHARE of the effort where the search goes on afterwards

Tell = Callable[[str], None]
_Start = tuple[str, int, tuple[Move, ...]]  # planner, chunks per block, moves


def starts_quickly(search: SearchState) -> bool:
    """Return whether quick plans come first: where the exact search takes long, if the effort suffices for both."""
    size, effort = size_of(search.instance, search.instance.least_steps), search.budget.left()
    takes_long = size > START_SIZE or search.instance.ranks >= START_RANKS
    return is_too_large(search.instance) or (takes_long and (effort is None or effort >= LEAST_EFFORT))


def is_too_large(instance: Instance) -> bool:
    """Return whether the linear program over time is out of reach."""
    size = size_of(instance, instance.least_steps)
    if has_single_destinations(instance):  # the chunks of one source are one flow
        size = size * len({kind.holders for kind in instance.kinds}) // len(instance.kinds)
    return size > MOST_SEARCHED


def quick_schedules(topology: Topology, collective: Collective, budget: EffortBudget) -> Iterator[tuple[str, Schedule]]:
    """Yield the plans of the quick planners, with their names; those that cannot plan this are left out."""
    budget.pay(START_PRICE)
    for name in STARTS:
        entry = find("planner", name)
        if collective.kind not in entry.can.collectives:
            continue
        with suppress(Unsupported, Invalid, Infeasible, NotFound):
            for schedule in call("planner", name, entry.load(), {}, Request(topology, collective)):
                budget.check()
                yield name, schedule


def improve_starts(
    search: SearchState, floor: Fraction, max_steps: int | None, tell: Tell = lambda text: None, *, spend_all: bool
) -> Iterator[Point]:
    """Yield points of at most `max_steps` steps, each better than all before in S or R/C. `floor`: the bound on R/C.

    Ends when nothing improves, or when its share of the effort (all of it with `spend_all`) is spent.
    """
    instance, effort = search.instance, search.budget.left()
    share = None if effort is None or spend_all else effort // IMPROVE_SHARE
    # a budget of its own, charged to that of the search at the end
    budget = EffortBudget(
        search.budget.effort if share is None else search.budget.spent + share, search.budget.until, search.budget.spent
    )
    best: dict[int, Fraction] = {}  # steps -> R/C

    def yield_unbeaten(block_chunks: int, moves: tuple[Move, ...], engine: str) -> Iterator[Point]:
        """Yield the point of these moves, and record it in `best`, unless a point is as good in S and R/C."""
        rounds = rounds_of(instance, moves)
        point = Point(instance, block_chunks, len(rounds), sum(rounds), moves, engine, BEST_FOUND)
        beaten = any(steps <= point.steps and ratio <= point.ratio for steps, ratio in best.items())
        if not beaten and (max_steps is None or point.steps <= max_steps):
            best[point.steps] = point.ratio
            gap = f", {float(point.ratio / floor):.3f} times the bound" if floor else ""
            tell(f"{engine}: (C, S, R) = ({point.chunks}, {point.steps}, {point.rounds}), R/C = {point.ratio}{gap}")
            yield point

    try:
        # by (S, R per chunk of a block): planner, chunks per block, moves
        starts: dict[tuple[int, Fraction], _Start] = {}
        for name, block_chunks, moves in _list_starts(instance, budget):
            rounds = rounds_of(instance, moves)
            starts.setdefault((len(rounds), Fraction(sum(rounds), block_chunks)), (name, block_chunks, moves))
            yield from yield_unbeaten(block_chunks, moves, name)
        unbeaten = [
            start for (steps, ratio), start in sorted(starts.items())
            if not any(s <= steps and r <= ratio and (s, r) != (steps, ratio) for s, r in starts)
        ]  # fmt: skip
        # finer ones get the effort that the others leave
        least_rounds = floor * instance.input_weight
        finer_starts = [finer_start for start in unbeaten for finer_start in _cut_finer(start, least_rounds)]
        for number, (name, block_chunks, moves) in enumerate([*unbeaten, *finer_starts]):
            start_budget = EffortBudget(_share_of(budget, max(len(unbeaten) - number, 1)), budget.until, budget.spent)
            min_rounds = math.ceil(floor * instance.input_weight * block_chunks)
            with suppress(EffortSpent):
                for improved in _improve(
                    ChangingAlgorithm(instance, moves, start_budget, search.seed), min_rounds, instance.least_steps
                ):
                    yield from yield_unbeaten(block_chunks, improved, f"{name}, improved")
            budget.spent = start_budget.spent
            # optimal in both S and R/C
            if any(ratio <= floor and steps <= instance.least_steps for steps, ratio in best.items()):
                break
    except EffortSpent:
        pass
    # `budget` began at the search's `spent`; its last price may have exceeded the search's effort
    search.budget.pay(min(budget.spent, search.budget.effort or budget.spent) - search.budget.spent)


def _cut_finer(start: _Start, least_rounds: Fraction) -> Iterator[_Start]:
    """Yield the start with chunks cut finer, so that whole rounds can meet the bound, if they could not before.

    `least_rounds`: the bound on R / (chunks per block).
    """
    name, block_chunks, moves = start
    factor = (least_rounds * block_chunks).denominator
    if factor > 1 and len(moves) * factor <= MOST_MOVES:
        finer = ((kind, chunk * factor + i, path, step) for kind, chunk, path, step in moves for i in range(factor))
        yield name, block_chunks * factor, tuple(sorted(finer))


def _share_of(budget: EffortBudget, count: int) -> int | None:
    """Return the effort up to which the next of `count` starts may spend."""
    effort = budget.left()
    return None if effort is None else budget.spent + max(effort // count, 1)


def _improve(algorithm: ChangingAlgorithm, min_rounds: int, least_steps: int) -> Iterator[tuple[Move, ...]]:
    """Yield algorithms of fewer rounds, then of fewer steps, then of more steps and fewer rounds."""
    for depth in LIMITS.depths:
        algorithm.shave_all(min_rounds, depth)
        yield algorithm.moves()
    saved = algorithm.save()
    while len(algorithm.rounds) > least_steps and (algorithm.merge(extra=0) or algorithm.merge(extra=1)):
        algorithm.shave_all(min_rounds, LIMITS.usual_depth)
        yield algorithm.moves()
    algorithm.restore(saved)
    while sum(algorithm.rounds) > min_rounds and algorithm.split():
        algorithm.shave_all(min_rounds, LIMITS.usual_depth)
        yield algorithm.moves()


def _list_starts(instance: Instance, budget: EffortBudget) -> Iterator[tuple[str, int, tuple[Move, ...]]]:
    """Yield the quick planners' plans as (planner, chunks per block, moves)."""
    known_figures: set[tuple[str, int, int]] = set()  # of two plans with equal figures the second is skipped
    for name, schedule in quick_schedules(instance.topology, instance.collective, budget):
        figures = name, schedule.chunks_per_rank, pipelined_steps(schedule)
        if figures in known_figures or schedule.transfers * int(pieces_of(schedule).max(initial=1)) > MOST_MOVES:
            continue
        known_figures.add(figures)
        start = to_moves(instance, schedule)
        if start is not None:
            yield name, *start


def to_moves(instance: Instance, schedule: Schedule) -> tuple[int, tuple[Move, ...]] | None:
    """Return the chunks per block and the moves of a schedule that only copies, its chunks taken as equal.

    None if it reduces, uses slots, or has other than equally many chunks per unit of weight in all blocks.
    """
    schedule = expand(schedule)
    chunks, weights = schedule.chunks, instance.collective.weights
    count = np.bincount(chunks.block, minlength=len(weights))
    block_chunks = int(count.max(initial=0)) // max(int(weights.max(initial=1)), 1)
    if not block_chunks or not np.array_equal(count, weights * block_chunks) or schedule.slots > 1 or schedule.op.any():
        return None
    order = np.lexsort((chunks.offset, chunks.block))
    position = np.empty(len(order), np.int64)  # of a chunk in its block
    position[order] = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    # (block, position) -> (number of the kind, number in the kind), as moves name chunks
    numbers = {
        name: (number, i) for number, kind in enumerate(instance.kinds)
        for i, name in enumerate(instance.chunks_of_kind(kind, block_chunks))
    }  # fmt: skip
    bond_of = {link: bond for bond, links in enumerate(instance.bonds) for link in links}
    resolved = resolve(instance.topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    names = list(zip(chunks.block.tolist(), position.tolist(), strict=True))
    moves_of: dict[tuple[int, int], list[tuple[tuple[int, ...], int]]] = {}
    rows = zip(schedule.chunk.tolist(), resolved.route.tolist(), schedule.step.tolist(), strict=True)
    paths = [tuple(bond_of[link] for link in resolved.table[route]) for route in range(len(resolved.table))]
    for chunk, route, step in rows:
        number = numbers.get(names[chunk])
        if number is not None and route >= 0:  # not a chunk that nobody needs, nor a copy within a rank
            moves_of.setdefault(number, []).append((paths[route], step))
    moves = [
        (kind, chunk, *move) for (kind, chunk), chunk_moves in moves_of.items()
        for move in drop_useless_moves(instance, kind, chunk_moves)
    ]  # fmt: skip
    return block_chunks, tuple(sorted(moves))
