"""compose and merge on random machines: what relation comes of two, told apart cell by cell in sets."""

import random
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import generate
import numpy as np
import pytest
from entries import direct
from generate_joints import joined_case
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quick import examples
from small_plans import full

from antiphon.core.collective import KINDS, ROOTED, Collective
from antiphon.core.example import machine, of_rows
from antiphon.core.request import Request
from antiphon.core.routes import Routes
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, merge
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported

Held = dict[int, frozenset[int]]  # by rank: the contributions that it has of a cell
Cell = tuple[Held, Held]  # before and after
Line = dict[tuple[Fraction, Fraction], Cell]


class DoNotMeetError(Exception):
    """The second takes what the first does not leave, or twice."""


def line_of(collective: Collective, low: Fraction = Fraction(0), high: Fraction = Fraction(1)) -> Line:
    """What a collective says of its blocks, side by side on the line from low to high."""
    relation, whole = collective.relation, int(collective.weights.sum())
    ends = [low + (high - low) * Fraction(int(end), whole) for end in np.cumsum([0, *collective.weights])]
    found: Line = {}
    for block, (begin, end) in enumerate(pairwise(ends)):
        if begin == end:
            continue
        mine = relation.pre_block == block
        names = zip(relation.pre_rank[mine].tolist(), relation.pre_id[mine].tolist(), strict=True)
        before = {rank: frozenset({name}) for rank, name in names}
        everything = frozenset(name for held in before.values() for name in held)
        wanted = relation.post_block == block
        wants = zip(relation.post_rank[wanted].tolist(), relation.post_want[wanted].tolist(), strict=True)
        after = {rank: everything if want < 0 else frozenset(relation.wants[want]) for rank, want in wants}
        found[begin, end] = before, after
    return found


def cut_at(line: Line, edges: list[Fraction]) -> Line:
    found: Line = {}
    for (begin, end), cell in line.items():
        some = [edge for edge in edges if begin <= edge <= end]
        found |= dict.fromkeys(pairwise(some), cell)
    return found


def edges_of(*lines: Line) -> list[Fraction]:
    return sorted({edge for line in lines for cell in line for edge in cell})


def used_by(schedule: Schedule) -> set[int]:
    return {*schedule.src.tolist(), *schedule.dst.tolist(), *schedule.collective.members}


def followed(first: Schedule, second: Schedule) -> Line:
    """Cell by cell: the second takes what is there; ranks that it does not use keep what they had."""
    one, two = line_of(first.collective), line_of(second.collective)
    edges, used = edges_of(one, two), used_by(second)
    one, two = cut_at(one, edges), cut_at(two, edges)
    found: Line = {}
    for cell, (before, left) in one.items():
        takes, gives = two.get(cell, ({}, {}))
        if not takes.keys() <= left.keys():
            raise DoNotMeetError
        after = {rank: held for rank, held in left.items() if rank not in used}
        value = {name: left[rank] for rank, held in takes.items() for name in held}
        for rank, names in gives.items():
            union = [name for own in names for name in value[own]]
            if len(set(union)) < len(union):
                raise DoNotMeetError
            after[rank] = frozenset(union)
        found[cell] = before, after
    if two.keys() - one.keys():
        raise DoNotMeetError
    return found


def said(line: Line) -> dict[Any, Fraction]:
    """How much of the data is treated in each way, wherever it lies; nothing is said of what nobody has at the end."""
    found: dict[Any, Fraction] = defaultdict(Fraction)
    for (begin, end), (before, after) in line.items():
        found[frozenset(before.items()), frozenset(after.items())] += end - begin
    return found


def check(made: Schedule, machine: Topology, wanted: Line) -> None:
    verify(made, machine).or_raise()
    whole = max((end for _, end in wanted), default=Fraction(1)) - min((begin for begin, _ in wanted), default=0)
    got = said(line_of(made.collective))
    assert {way: part * whole for way, part in got.items()} == said(wanted)


def straight(kind: str, ranks: int, root: int = 0, weights: list[int] | None = None) -> Schedule:
    roots = (root,) if kind in ROOTED else ()
    wanted = Collective(kind, ranks, roots=roots, weights=np.array(weights or [], np.int64))
    return next(iter(direct(Request(full(ranks), wanted))))


def met(first: Schedule, second: Schedule, machine: Topology) -> Schedule | None:
    """The two composed and judged; None where they do not meet, as both say."""
    try:
        wanted = followed(first, second)
    except DoNotMeetError:
        with pytest.raises(Invalid, match="compose: "):
            compose(first, second)
        return None
    made = compose(first, second)
    check(made, machine, wanted)
    return made


def test_routes_of_the_second_follow_all_routes_of_the_first_also_those_that_no_row_names() -> None:
    routes = Routes.of([[1], [3]])
    to_one = of_rows("reduce", 3, [(0, 0, 1, 0, 1), (0, 0, 2, 0, 1)], roots=(0,), routes=routes)
    rows, routes = [(0, 0, 0, 1, 0), (0, 0, 0, 2, 0)], Routes.of([[0], [2]])
    both = compose(to_one, of_rows("broadcast", 3, rows, roots=(0,), routes=routes, route=[0, 1]))
    assert both.route is not None
    assert [both.routes[route] for route in both.route[2:].tolist()] == [(0,), (2,)]
    assert verify(both, machine()).ok


def test_any_two_collectives_among_the_same_ranks() -> None:
    """Of 64 pairs those that meet, and what they make; one that has no name is a relation of its own."""
    made = {(a, b): met(straight(a, 3), straight(b, 3), full(3)) for a in KINDS for b in KINDS}
    kinds = {pair: one.collective.kind for pair, one in made.items() if one is not None}
    assert len(kinds) == 25
    assert kinds["scatter", "allgather"] == kinds["broadcast", "allgather"] == "broadcast"
    assert kinds["allreduce", "scatter"] == kinds["reduce", "scatter"] == "reducescatter"
    assert kinds["allgather", "allgather"] == kinds["alltoall", "allgather"] == "allgather"
    assert kinds["gather", "scatter"] == "alltoall"  # from each rank to itself
    assert kinds["scatter", "gather"] == kinds["broadcast", "gather"] == "custom"  # all from the root to the root


def test_two_that_do_not_share_a_root_meet_where_the_first_left_it() -> None:
    there = compose(straight("broadcast", 4, 1), straight("gather", 4, 2))
    assert there.collective == Collective("scatter", 4, (1, 2), (1,), np.array([0, 1]))  # the others take no part
    with pytest.raises(
        Invalid, match=r"takes all of the data at rank 2, where the reduce .* \(it leaves that at rank 1\)"
    ):
        compose(straight("reduce", 4, 1), straight("broadcast", 4, 2))


@pytest.mark.parametrize(
    ("first", "second", "made"), [("gather", "broadcast", "broadcast"), ("reduce", "scatter", "reduce")]
)
def test_where_a_block_is_empty_nobody_has_it(first: str, second: str, made: str) -> None:
    def weighted(kind: str) -> Schedule:
        return straight(kind, 3, 0, [2, 0, 1] if kind in ("gather", "scatter") else None)

    both = compose(weighted(first), weighted(second))
    assert both.collective == Collective(made, 3, roots=(0, 2), weights=np.array([2, 1]))
    check(both, full(3), followed(weighted(first), weighted(second)))


def alike(rng: random.Random, first: Collective, kind: str) -> Collective:
    """Of this kind on the same ranks, with the first root; mostly with blocks as the first has them."""
    root = (rng.choice([*first.roots, first.members[0]]),) if kind in ROOTED else ()
    plain = Collective(kind, first.ranks, first.members, root)
    if plain.blocks == first.blocks and first.weights.any() and rng.random() < 0.8:
        return Collective(kind, first.ranks, first.members, root, first.weights)
    return plain


@settings(max_examples=examples(90), deadline=None)
@given(st.integers(0, 2**32 - 1))
@example(1331)  # the lengths of its blocks have no common multiple below 2^62, the shares of its chunks do
def test_two_random_schedules_one_after_the_other(seed: int) -> None:
    """Machines with switches, limits, one-way and parallel links, relays; groups, uneven and empty blocks, roots."""
    rng = random.Random(seed)
    machine = generate.topology(rng, rng.randint(2, 6))
    one = generate.collective(rng, machine.ranks, rng.choice(KINDS))
    if not one.weights.any():
        return
    two = alike(rng, one, rng.choice(KINDS))
    both = [generate.schedule(rng, wanted, machine) for wanted in (one, two)]
    if rng.random() < 0.3:
        other = alike(rng, one, rng.choice(KINDS))
        made = met(both[0], both[1], machine)
        if made is not None:
            with suppress(Unsupported):  # what two schedules cut, a third cuts too finely: seed 4382
                met(made, generate.schedule(rng, other, machine), machine)
    else:
        met(both[0], both[1], machine)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_random_groups_beside_each_other_and_then_together(seed: int) -> None:
    """Groups of a random machine, each with its share of the data or all of them; then others in the same groups."""
    rng = random.Random(seed)
    machine = generate.topology(rng, rng.randint(4, 7))
    order = rng.sample(range(machine.ranks), machine.ranks)
    half = rng.randint(2, machine.ranks - 2)
    kind = rng.choice(KINDS)
    groups = [Collective(kind, machine.ranks, tuple(some)) for some in (order[:half], order[half:])]
    plans = [generate.schedule(rng, group, machine) for group in groups]
    shares = rng.choice([None, [1, 1], [2, 3]])
    if shares is None and used_by(plans[0]) & used_by(plans[1]):
        with pytest.raises(Invalid, match="is used by schedule 1"):
            merge(plans)
        return
    made = merge(plans, shares)
    check(made, machine, beside(plans, shares))
    next_kind = rng.choice(KINDS)
    then = [generate.schedule(rng, alike(rng, group, next_kind), machine) for group in groups]
    if shares is not None or not used_by(then[0]) & used_by(then[1]):
        met(made, merge(then, shares), machine)


def beside(plans: list[Schedule], shares: list[int] | None) -> Line:
    """Each on its own stretch of the line, or both on all of it."""
    if shares is not None:
        ends = np.cumsum([0, *shares]).tolist()
        lines = [
            line_of(plan.collective, Fraction(low), Fraction(high))
            for plan, (low, high) in zip(plans, pairwise(ends), strict=True)
        ]
        return {cell: what for line in lines for cell, what in line.items()}
    lines = [line_of(plan.collective) for plan in plans]
    edges = edges_of(*lines)
    one, two = (cut_at(line, edges) for line in lines)
    return {cell: (one[cell][0] | two[cell][0], one[cell][1] | two[cell][1]) for cell in one}


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 1]))
def test_what_switches_combine_and_copy_is_composed(seed: int, place: int) -> None:
    """A schedule whose rows are bound to multicasts and reductions of switches, before or after a plain one."""
    rng = random.Random(seed)
    case = joined_case(rng)
    if case is None or verify(case.schedule, case.topology).fault:
        return
    joined = case.schedule
    each = tuple(replace(one, at_once=0) for one in case.topology.abilities)  # finer chunks are more joints
    machine = replace(case.topology, abilities=each)
    try:
        other = generate.schedule(rng, alike(rng, joined.collective, rng.choice(KINDS)), machine)
    except IndexError:  # a link leads one way only, and there is no way back
        return
    made = met(joined, other, machine) if place == 0 else met(other, joined, machine)
    if made is not None:
        assert made.joint is not None or joined.joint is None
