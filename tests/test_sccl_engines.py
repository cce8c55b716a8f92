"""Engines against each other, against a search through all algorithms, and against what linear programs prove."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
from quick import in_turn, some
from reference_engines import boolean, cpsat, z3
from sccl_cases import case, least_by_search, work

from antiphon.core.collective import Collective
from antiphon.core.ksync.instance import Instance, instance_of
from antiphon.core.loads import rounds
from antiphon.core.topology import LinkType, build
from antiphon.core.verify import verify
from antiphon.planners.synth import linear
from antiphon.planners.synth.flow import has_single_destinations, solve_flow
from antiphon.planners.synth.group import SymmetryGroup, find_subgroups, group_of, trivial_group
from antiphon.planners.synth.program import StepProgram
from antiphon.planners.synth.sat import solve_sat
from antiphon.planners.synth.task import Answer, Effort, Engine, Task, rounds_of, schedule_of
from antiphon.topologies import topology

ENGINES: dict[str, Engine] = {"z3": z3, "boolean": boolean, "cpsat": cpsat, "sat": solve_sat}
EFFORT = Effort(conflicts=20000)
MOST_WORK = 4000  # of the search through all algorithms
MORE = 8  # rounds beyond the steps that are gone through to find the fewest


def engines(instance: Instance) -> dict[str, Engine]:
    return ENGINES | ({"flow": solve_flow} if has_single_destinations(instance) else {})


def check(task: Task, answer: Answer) -> None:
    """What is found is an algorithm, of these steps and rounds."""
    assert answer.moves is not None
    assert not answer.refuted
    machine = task.instance.topology
    found = schedule_of(task.instance, task.parts, answer.moves)
    verify(found, machine).or_raise()
    need = rounds_of(task.instance, answer.moves)
    assert len(need) <= task.steps
    need += [1] * (task.steps - len(need))
    assert sum(max(1, r) for r in need) <= task.rounds
    assert task.split is None or all(a <= b for a, b in zip(need, task.split, strict=True))
    assert found.steps <= task.steps
    assert rounds(found, machine) <= task.rounds


def agreed(task: Task, seed: int) -> bool | None:
    """What all engines say that say anything; what they find is checked."""
    said = {}
    none = trivial_group(task.instance)
    for name, engine in engines(task.instance).items():
        answer = engine(task, none, EFFORT)
        if answer.moves is not None:
            check(task, answer)
        if answer.moves is not None or answer.refuted:
            said[name] = answer.moves is not None
    assert len(set(said.values())) <= 1, (seed, task.parts, task.steps, task.rounds, task.split, said)
    assert {"sat", "cpsat"} & set(said), (seed, "undecided")
    return next(iter(said.values()), None)


def fewest(instance: Instance, parts: int, steps: int) -> int | None:
    """The fewest rounds by one engine, if they are few."""
    none = trivial_group(instance)
    counts = range(steps, steps + MORE + 1)
    return next((r for r in counts if solve_sat(Task(instance, parts, steps, r), none, EFFORT).moves is not None), None)


def sizes(instance: Instance, rng: random.Random) -> Iterator[tuple[int, int]]:
    """(parts, steps): as few steps as there must be, and one more."""
    few = sum(kind.weight for kind in instance.kinds) <= 6
    for steps in (instance.least_steps, instance.least_steps + 1):
        yield rng.choice([1, 1, 2, 3] if few else [1]), steps


def a_split(rng: random.Random, total: int, steps: int) -> tuple[int, ...]:
    marks = [0, *sorted(rng.sample(range(1, total), steps - 1)), total]
    return tuple(b - a for a, b in itertools.pairwise(marks))


def compare(seed: int) -> None:
    """The whole comparison for one instance."""
    instance, rng = case(seed), random.Random(seed)
    group = group_of(instance)
    for parts, steps in sizes(instance, rng):
        least = fewest(instance, parts, steps)
        proofs = [linear.least_rounds(StepProgram(instance, steps, g)).worth for g in (trivial_group(instance), group)]
        assert proofs[0].rounds_per_part == proofs[1].rounds_per_part
        if least is None:
            continue
        assert all(Fraction(least, parts) >= proof.rounds_per_part for proof in proofs)
        task = Task(instance, parts, steps, least)
        if least > steps:
            assert agreed(replace(task, rounds=least - 1), seed) is False
        assert agreed(task, seed) is True
        split = a_split(rng, least, steps)
        possible = agreed(replace(task, split=split), seed)
        forbids = linear.refute_rounds(StepProgram(instance, steps, group), split).worth.forbids(split, parts)
        assert not (forbids and possible), (seed, split)
        with_symmetry(replace(task, rounds=least + rng.randint(0, 1)), group)
    if instance.least_steps > 1:
        too_few = Task(instance, 1, instance.least_steps - 1, instance.least_steps + 3)
        assert not any(e(too_few, trivial_group(instance), EFFORT).moves for e in ENGINES.values())


def with_symmetry(task: Task, group: SymmetryGroup) -> None:
    """Under any subgroup engines find algorithms or none; those they find are right."""
    weights = [kind.weight for kind in task.instance.kinds]
    for part in find_subgroups(group, task.parts, weights)[:3]:
        if len(part) > 1:
            asked: list[Engine] = [
                solve_sat,
                cpsat,
                z3,
                *([solve_flow] if has_single_destinations(task.instance) else []),
            ]
            answers = [engine(task, part, EFFORT) for engine in asked]
            for answer in answers:
                if answer.moves is not None:
                    check(task, answer)
            assert answers[2].moves is not None  # it leaves the group alone
            if all(a.moves is not None or a.refuted for a in answers[:2]):
                assert (answers[0].moves is None) == (answers[1].moves is None)


@pytest.mark.slow
@pytest.mark.parametrize("first", [10, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, *range(20, 80, 10)))])
def test_engines_agree(first: int) -> None:
    for seed in some(range(first, first + 10)):
        compare(seed)


def tiny(seed: int) -> int:
    """Compare with the search through all algorithms; how many questions there were."""
    instance = case(seed, most_ranks=4, most_chunks=3)
    asked = 0
    if work(instance) > MOST_WORK:
        return asked
    for steps in range(1, min(3, instance.least_steps + 1) + 1):
        parts = 2 if sum(kind.weight for kind in instance.kinds) == 1 else 1
        most = steps + 3
        least = least_by_search(instance.topology, instance.collective, parts, steps, most)
        for r in range(steps, most + 1):
            possible = agreed(Task(instance, parts, steps, r), seed) if steps >= instance.least_steps else False
            assert possible == (least is not None and r >= least), (seed, parts, steps, r, least)
            asked += 1
    return asked


@pytest.mark.slow
def test_engines_agree_with_a_search_through_all_algorithms() -> None:
    seeds = some(range(12))
    assert sum(tiny(seed) for seed in seeds) >= 4 * len(seeds)


LINK = LinkType("link", Fraction(10**9))


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_ring_by_hand(engine: Engine) -> None:
    """On a one-way ring of 4, allgather takes 3 steps of a round per part each, and no other split will do."""
    ring = build("ring", 4, [(i, (i + 1) % 4, LINK) for i in range(4)])
    instance = instance_of(ring, Collective("allgather", 4))
    none = trivial_group(instance)
    check(Task(instance, 1, 3, 3), engine(Task(instance, 1, 3, 3), none, Effort()))
    check(Task(instance, 2, 3, 6, (2, 2, 2)), engine(Task(instance, 2, 3, 6, (2, 2, 2)), none, Effort()))
    for task in (Task(instance, 1, 2, 9), Task(instance, 2, 3, 5), Task(instance, 2, 3, 6, (1, 3, 2))):
        assert engine(task, none, Effort()) == Answer(None, refuted=True)


@pytest.mark.parametrize("engine", [z3, boolean, cpsat], ids=["z3", "boolean", "cpsat"])
def test_fewer_rounds_than_steps_are_refuted(engine: Engine) -> None:
    instance = instance_of(topology("dgx1v_sccl"), Collective("allgather", 8))
    assert engine(Task(instance, 1, 3, 2), trivial_group(instance), Effort()).refuted


@pytest.mark.parametrize("engine", in_turn(ENGINES.values(), 2), ids=ENGINES)
def test_the_same_seed_gives_the_same_algorithm(engine: Engine) -> None:
    instance = instance_of(topology("dgx1v_sccl"), Collective("allgather", 8))
    task = Task(instance, 2, 2, 3)
    answers = [engine(task, trivial_group(instance), Effort(conflicts=10**6, seed=3)) for _ in range(2)]
    assert answers[0] == answers[1]
    check(task, answers[0])


@pytest.mark.parametrize("engine", in_turn([z3, boolean, cpsat], 3), ids=["z3", "boolean", "cpsat"])
def test_too_little_effort_says_nothing(engine: Engine) -> None:
    """(19, 5, 5) broadcast from GPU 0 of a DGX-1 is beyond any search: nobody may claim to have gone through it."""
    instance = instance_of(topology("dgx1v_sccl"), Collective("broadcast", 8, roots=(0,)))
    answer = engine(Task(instance, 19, 5, 5), trivial_group(instance), Effort(conflicts=50))
    assert answer == Answer(None, refuted=False)
