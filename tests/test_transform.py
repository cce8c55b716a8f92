"""Transforms: laws on random schedules, and cases worked out by hand."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import generate
import numpy as np
import pytest
from entries import direct
from generate import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from small_plans import full

from antiphon.core import reshape
from antiphon.core.collective import Collective
from antiphon.core.loads import claims, timeline
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule, cut
from antiphon.core.topology import LinkType, Topology, both_ways, build
from antiphon.core.transform import (
    clean,
    compose,
    dual,
    expand,
    find_unneeded,
    invert,
    merge,
    pipeline,
    plain_copies,
    relabel,
    split,
)
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported

LINK = LinkType("link", Fraction(10**9))


def circle(ranks: int) -> Topology:
    pairs = {tuple(sorted((i, (i + 1) % ranks))) for i in range(ranks)}
    return build("circle", ranks, both_ways(sorted(pairs), LINK))


def ring_allgather(ranks: int) -> Schedule:
    wanted = Collective("allgather", ranks)
    step, here = np.divmod(np.arange((ranks - 1) * ranks), ranks)
    return Schedule(wanted, cut(wanted, 1), step, (here - step) % ranks, here, (here + 1) % ranks, here * 0)


def right(schedule: Schedule, topology: Topology) -> bool:
    report = verify(schedule, topology)
    assert report.ok, report.fault
    return True


# ---- laws on random schedules ----


@given(cases(), st.integers(2, 4))
def test_splitting_changes_nothing_but_the_chunks(case: generate.Case, parts: int) -> None:
    finer = split(case.schedule, parts)
    assert right(finer, case.topology)
    assert len(finer.chunks) == parts * len(case.schedule.chunks)
    assert timeline(finer, case.topology).total == timeline(case.schedule, case.topology).total


@given(cases())
def test_expanded_pieces_equal_the_unexpanded_result(case: generate.Case) -> None:
    out = expand(case.schedule)
    assert right(out, case.topology)
    assert out.pieces == 1
    before, after = claims(case.schedule, case.topology), claims(out, case.topology)
    assert before == after
    assert timeline(case.schedule, case.topology).total == timeline(out, case.topology).total


@given(cases(), st.randoms(use_true_random=False))
def test_relabelling_changes_no_verdict_and_no_figure(case: generate.Case, rng: random.Random) -> None:
    machine = case.topology
    ranks = rng.sample(range(machine.ranks), machine.ranks)
    names = [*ranks, *(machine.ranks + i for i in rng.sample(range(machine.switches), machine.switches))]
    renamed, moved = relabel(case.schedule, names), reshape.relabel(machine, names)
    assert right(renamed, moved)
    assert claims(renamed, moved) == claims(case.schedule, machine)
    assert timeline(renamed, moved).total == timeline(case.schedule, machine).total
    back = np.argsort(names)
    assert relabel(renamed, back).same_as(case.schedule)


@given(cases())
def test_cleaning_keeps_the_outcome_and_leaves_no_waste(case: generate.Case) -> None:
    lean = clean(case.schedule)
    assert right(lean, case.topology)
    assert not find_unneeded(lean)
    found = find_unneeded(case.schedule)
    assert lean.transfers == case.schedule.transfers - len(found.redundant) - len(found.dead)


@given(cases())
def test_the_inverse_achieves_the_dual_and_its_inverse_is_the_schedule(case: generate.Case) -> None:
    try:
        back = invert(case.schedule)
    except Unsupported:
        return
    reversed_machine = reshape.reverse(case.topology)
    assert right(back, reversed_machine)
    assert back.collective == dual(case.schedule.collective)[0]
    if dual(back.collective)[0] != case.schedule.collective:
        # of a custom block that goes from one rank to one rank the name of the contribution is free
        assert case.schedule.collective.kind == "custom"
        return
    forth = invert(back)
    shift = int(case.schedule.step.min(initial=0)) if case.schedule.transfers else 0
    original = plain_copies(clean(plain_copies(case.schedule)))
    if original.transfers:
        original = replace(original, step=original.step - original.step.min())
        forth = replace(forth, step=forth.step - forth.step.min())
    assert forth.same_as(replace(original, provenance={})), shift


@given(cases("reducescatter"), st.integers(0, 2**30))
def test_allreduce_is_reducescatter_then_allgather(case: generate.Case, seed: int) -> None:
    first = case.schedule
    rng = random.Random(seed)
    import generate_schedule

    wanted = Collective("allgather", first.collective.ranks, first.collective.members, (), first.collective.weights)
    second = generate_schedule.schedule(rng, wanted, case.topology)
    try:
        both = compose(first, second)
    except Unsupported:  # shares without a common denominator, or nothing but empty blocks
        return
    assert both.collective == Collective("allreduce", wanted.ranks, wanted.members)
    assert right(both, case.topology)


@given(cases(), cases())
def test_merging_a_schedule_with_its_like(case: generate.Case, other: generate.Case) -> None:
    joint = merge([case.schedule, case.schedule], [1, Fraction(2, 3)])
    assert right(joint, case.topology)
    assert timeline(joint, case.topology).total == timeline(case.schedule, case.topology).total
    one, two = case.schedule.collective, other.schedule.collective
    if one.ranks != two.ranks or (one != two and set(one.members) & set(two.members)):
        with pytest.raises(Invalid, match=r"machines of|is used by schedule 1"):
            merge([case.schedule, other.schedule])


# ---- groups ----


def direct_among(kind: str, ranks: int, members: Sequence[int], root: int | None = None) -> Schedule:
    """Everything in one step, straight to whoever needs it."""
    wanted = Collective(kind, ranks, tuple(members), () if root is None else (root,))
    machine = full(ranks)
    return next(iter(direct(Request(machine, wanted))))


def at_once(kind: str, ranks: int, groups: Sequence[Sequence[int]], shares: list[int] | None = None) -> Schedule:
    return merge([direct_among(kind, ranks, group) for group in groups], shares)


BOXES, PAIRS = [[0, 1, 2], [3, 4, 5]], [[0, 3], [1, 4], [2, 5]]


def test_what_has_a_root_is_composed_over_groups() -> None:
    spread = compose(direct_among("scatter", 6, BOXES[0], 1), merge(
        [direct_among("broadcast", 6, pair, pair[0]) for pair in PAIRS], [1, 1, 1]))  # fmt: skip
    assert spread.collective.kind == "custom"
    whole = compose(spread, at_once("allgather", 6, BOXES))
    assert whole.collective == Collective("broadcast", 6, roots=(1,))
    assert right(whole, full(6))
    further = compose(direct_among("reduce", 6, BOXES[0], 2), direct_among("broadcast", 6, [2, 3, 4], 2))
    assert further.collective.kind == "custom"  # of three ranks, to three others
    assert right(further, full(6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: compose(direct_among("reducescatter", 6, BOXES[0]), direct_among("allgather", 6, BOXES[1])),
         "takes the part from 0 to 1/3 of the data at rank 3, where the reducescatter among ranks 0, 1, 2 does not"),
        (lambda: compose(at_once("allgather", 6, BOXES), direct_among("allreduce", 6, range(6))), "0 twice"),
        (lambda: at_once("allgather", 6, [[0, 1, 2], [2, 3]]), "rank 2 is used by schedule 1 .* and by schedule 2"),
        (lambda: compose(direct_among("allgather", 6, [0, 1]), direct_among("allgather", 5, [0, 1, 2])), "5, 6 ranks"),
    ],
)  # fmt: skip
def test_relations_that_do_not_meet(make: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        make()


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_random_groups_put_together(data: st.DataObject) -> None:
    """Boxes of random sizes, in a random order of ranks; across, by the stretches that their ranks hold."""
    sizes = data.draw(st.lists(st.integers(2, 4), min_size=2, max_size=3))
    ranks = sum(sizes)
    order = data.draw(st.permutations(range(ranks)))
    ends = np.cumsum([0, *sizes])
    boxes = [sorted(order[low:high]) for low, high in pairwise(ends.tolist())]
    edges = sorted({Fraction(i, size) for size in sizes for i in range(size + 1)})
    across = [[box[int(low * len(box))] for box in boxes] for low in edges[:-1]]
    shares = [high - low for low, high in pairwise(edges)]
    pieces = data.draw(st.sampled_from([1, 3]))
    middle = merge([pipeline(direct_among("allreduce", ranks, group), pieces) for group in across], shares)
    inside = [pipeline(at_once(kind, ranks, boxes), pieces) for kind in ("reducescatter", "allgather")]
    whole = compose(compose(inside[0], middle), inside[1])
    assert whole.collective == Collective("allreduce", ranks)
    assert whole.pieces == pieces
    assert right(whole, full(ranks))


# ---- by hand ----


def test_inverting_refuses_what_would_count_twice() -> None:
    exchange = Collective("allreduce", 2)
    with pytest.raises(Unsupported, match="compose"):
        invert(Schedule(exchange, cut(exchange, 1), [0, 0], [0, 0], [0, 1], [1, 0], [1, 1]))
    doubled = ring_allgather(4)
    again = doubled.take(np.append(np.arange(doubled.transfers), 0), step=np.append(doubled.step, 7))
    assert invert(again).same_as(invert(doubled))  # the redundant transfer is dropped first
    wanted = Collective("reduce", 3, roots=(2,))  # the partial sum at 1 is read twice: once to no avail, once for 2
    twice = Schedule(wanted, cut(wanted, 1), [0, 1, 2], [0, 0, 0], [0, 1, 0], [1, 2, 2], [1, 1, 0])
    with pytest.raises(Unsupported):
        invert(replace(twice, op=np.array([1, 1, 1], np.uint8)))


def test_unequal_shares_of_two_trees() -> None:
    """Two chains the two ways round a ring with 3/4 and 1/4 of the data: the first decides the time."""
    machine = circle(3)
    wanted = Collective("broadcast", 3)
    one = Schedule(wanted, cut(wanted, 1), [0, 1], [0, 0], [0, 1], [1, 2], [0, 0])
    two = Schedule(wanted, cut(wanted, 1), [0, 1], [0, 0], [0, 2], [2, 1], [0, 0])
    joint = merge([one, two], [Fraction(3), Fraction(1)])
    assert right(joint, machine)
    assert timeline(joint, machine).total == Fraction(2 * 3, 4 * 10**9)
    with pytest.raises(Invalid, match="share"):
        merge([one, two], [1])
