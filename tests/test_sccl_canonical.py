"""Problems that differ in numbers alone are one problem: posed alike, decided alike, with proofs for each numbering."""

import json
import random
from collections.abc import Iterator
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from entries import sccl
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, some
from sccl_cases import case

from antiphon.core.collective import Collective, custom_relation
from antiphon.core.ksync.certificate import check_certificate
from antiphon.core.ksync.dual import StepDual, evaluate_dual
from antiphon.core.ksync.instance import Instance, instance_of
from antiphon.core.ksync.renaming import Naming, rename_instance, renamed_dual
from antiphon.core.request import Request
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.core.transform import relabel_collective
from antiphon.core.verify import verify
from antiphon.errors import Invalid
from antiphon.planners.synth import auto
from antiphon.planners.synth.cache import Question, fingerprint, is_algorithm
from antiphon.planners.synth.canonical import pose_canonically
from antiphon.planners.synth.frontier import Limits, find_frontier
from antiphon.planners.synth.search import Impossible, SearchState
from antiphon.select import collective

GB = Fraction(10**9)
Asked = tuple[Topology, Collective]


def shuffled(machine: Topology, what: Collective, seed: int) -> Asked:
    """The same with nodes, links and limits numbered at random."""
    rng = random.Random(seed)
    ranks, nodes = machine.ranks, machine.nodes
    to = [*rng.sample(range(ranks), ranks), *rng.sample(range(ranks, nodes), nodes - ranks)]
    order = rng.sample(range(machine.links), machine.links)
    place = {old: new for new, old in enumerate(order)}
    limits = [SharedLimit(x.name, tuple(place[link] for link in x.links), x.bandwidth) for x in machine.limits]
    rng.shuffle(limits)
    kinds = [machine.types[i] for i in machine.link_type.tolist()]
    links = [(to[machine.link_src[i]], to[machine.link_dst[i]], kinds[i]) for i in order]
    moved = build("moved", ranks, links, switches=machine.switches, limits=limits, unit=machine.unit)
    return moved, relabel_collective(what, np.array(to[:ranks]))[0]


def form(instance: Instance) -> object:
    """All that a search looks at."""
    kinds = [(kind.holders, kind.dests, kind.weight) for kind in instance.kinds]
    ends = instance.ranks, instance.nodes, instance.tail.tolist(), instance.head.tolist()
    return ends, instance.capacity, instance.limits_of, kinds


def form_of(machine: Topology, what: Collective) -> object:
    found = pose_canonically(instance_of(machine, what)).instance
    return fingerprint(found), form(found)


@settings(max_examples=examples(150))
@given(st.integers(0, 10**5), st.integers(0, 10**5))
def test_alike_problems_are_posed_alike(seed: int, other: int) -> None:
    asked = case(seed)
    machine, what = asked.topology, asked.collective
    assert form_of(machine, what) == form_of(*shuffled(machine, what, other))


def test_who_wants_what_counts_even_where_all_ranks_look_alike() -> None:
    """Swaps of neighbours in a ring, or of those opposite: every rank gives one and takes one both times."""
    ring = build("ring", 4, both_ways([(0, 1), (1, 2), (2, 3), (3, 0)], LinkType("link", GB)))

    def swap(pairs: list[tuple[int, int]]) -> Collective:
        both = [*pairs, *((b, a) for a, b in pairs)]
        pre, post = [(i, a, 0) for i, (a, _) in enumerate(both)], [(i, b, None) for i, (_, b) in enumerate(both)]
        return Collective("custom", 4, custom=custom_relation(pre, post, 4))

    near, far, again = swap([(0, 1), (2, 3)]), swap([(0, 2), (1, 3)]), swap([(1, 2), (3, 0)])
    assert form_of(ring, near) == form_of(ring, again) != form_of(ring, far)


def test_which_of_two_parallel_links_a_limit_bounds_counts() -> None:
    """Two ways from 0 to 1; the limit holds one of them and the way back, or one of them and what comes from 2."""
    fast, slow = LinkType("link", 2 * GB), LinkType("link", GB)
    links = [(0, 1, fast), (0, 1, fast), (0, 1, slow), (1, 0, slow), (1, 2, slow), (2, 0, slow)]

    def under(*limits: tuple[int, ...]) -> Asked:
        bounds = tuple(SharedLimit(f"limit{i}", those, GB) for i, those in enumerate(limits))
        machine = build("parallel", 3, links, limits=bounds)
        return machine, collective("allgather", machine)

    forms = [form_of(*under((0, 3), (1, 4))), form_of(*under((1, 3), (0, 4))), form_of(*under((0, 4), (1, 3)))]
    assert forms[0] == forms[1] == forms[2]
    others = [form_of(*under((0, 3), (2, 4))), form_of(*under((2, 3), (0, 4))), form_of(*under((0, 3, 4)))]
    assert len({repr(one) for one in [forms[0], *others]}) == 4


@settings(max_examples=examples(60))
@given(st.integers(0, 10**5), st.integers(0, 10**5))
def test_any_renaming_is_the_same_problem(seed: int, other: int) -> None:
    """Renamed and back, duals prove what they proved, and a renaming read from text does the same."""
    asked, rng = case(seed), np.random.default_rng(other)
    ranks, bonds = asked.ranks, len(asked.bonds)
    nodes = np.concatenate([rng.permutation(ranks), ranks + rng.permutation(asked.nodes - ranks)])
    limits, kinds = rng.permutation(len(asked.capacity) - bonds), rng.permutation(len(asked.kinds))
    naming = Naming(nodes, rng.permutation(bonds), limits, kinds)
    there = rename_instance(asked, Naming.of_json(json.loads(json.dumps(naming.as_json())), asked))
    assert form(rename_instance(there, naming.inverse())) == form(asked)
    rebuilt = instance_of(there.topology, there.collective)
    assert (rebuilt.tail.tolist(), rebuilt.limits_of) == (there.tail.tolist(), there.limits_of)
    assert rebuilt.capacity == there.capacity
    assert set(map(repr, map(sides, rebuilt.kinds))) == set(map(repr, map(sides, there.kinds)))
    proved = SearchState(there).prove_least(max(there.least_steps, 1) + 1)
    dual = StepDual.of_json(json.loads(json.dumps(renamed_dual(proved.dual, naming.inverse()).as_json())))
    assert evaluate_dual(asked, dual) == proved.worth


def sides(kind: Any) -> object:
    return kind.holders, kind.dests, sorted(zip(kind.blocks, kind.weights, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": [0, 0, 1]},
        {"nodes": [0, 1]},
        {"nodes": [0, 3, 2, 1]},
        {"bonds": [True]},
        {"limits": None},
        {"kinds": "0"},
    ],
)
def test_a_renaming_that_is_none_is_refused(change: dict[str, object]) -> None:
    star = build("star", 3, both_ways([(0, 3), (1, 3), (2, 3)], LinkType("link", GB)), switches=1)
    asked = instance_of(star, Collective("allgather", 3))
    good = pose_canonically(asked).back.as_json()
    Naming.of_json(good, asked)
    with pytest.raises(Invalid, match="its renaming of"):
        Naming.of_json({**good, **change}, asked)


# ---- what is found ----


class Watched:
    """All that engines are asked, in full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[object] = []
        sat, apart, flow = auto.solve_sat, auto.run_in_child, auto.solve_flow

        def watched_sat(task: Any, group: Any, effort: Any, solver: str, *rest: Any) -> Any:
            self._note(solver, task, group, effort)
            return sat(task, group, effort, solver, *rest)

        def watched_apart(_: Any, task: Any, group: Any, effort: Any, solver: str, *rest: Any, **how: Any) -> Any:
            self._note(solver, task, group, effort)
            return apart(sat, task, group, effort, solver, *rest, **how)

        def watched_flow(task: Any, group: Any, effort: Any, *rest: Any) -> Any:
            self._note("flow", task, group, effort)
            return flow(task, group, effort, *rest)

        monkeypatch.setattr(auto, "solve_sat", watched_sat)
        monkeypatch.setattr(auto, "run_in_child", watched_apart)
        monkeypatch.setattr(auto, "solve_flow", watched_flow)

    def _note(self, engine: str, task: Any, group: Any, effort: Any) -> None:
        elements = tuple(getattr(group, part.name).tobytes() for part in fields(group))
        numbers = task.parts, task.steps, task.rounds, task.split, effort.conflicts, effort.seed
        self.asked.append((engine, numbers, elements, form(task.instance)))

    def taken(self) -> list[object]:
        asked, self.asked = self.asked, []
        return asked


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def checked(machine: Topology, what: Collective, **options: Any) -> Iterator[tuple[object, ...]]:
    """The frontier, every schedule verified and every certificate rechecked as it is read from a file."""
    for made in sccl(Request(machine, what), **options):
        verify(made, machine).or_raise()
        told = made.provenance.get("certificate")
        if told is not None:
            rechecked = check_certificate(machine, what, json.loads(json.dumps(told)))
            assert rechecked.proved
            told = told["chunks"], told["steps"], told["rounds"], told["proof"], told["open"]
        yield made.chunks_per_rank, made.steps, told, made.provenance["engine"], made.provenance["found"]


@pytest.mark.slow
def test_an_allreduce_of_two_unlike_halves_is_made_in_the_numbers_asked_for() -> None:
    """Links one way only: the reducescatter cannot be the allgather turned round, and is synthesized apart."""
    links = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (3, 1)]
    machine = build("one-way", 4, [(a, b, LinkType("link", GB)) for a, b in links])
    what = collective("allreduce", machine)
    plain = list(checked(machine, what, steps=6, k=2))
    assert any(told for _, _, told, *_ in plain)
    for seed in range(6):
        assert list(checked(*shuffled(machine, what, seed), steps=6, k=2)) == plain


def test_random_problems_have_the_same_frontier_for_the_same_work(watched: Watched) -> None:
    found = 0
    for seed in some(range(8)):
        asked = case(seed, most_ranks=5, most_chunks=8)
        machine, what = asked.topology, asked.collective
        options = {"steps": asked.least_steps + 1, "k": 2}
        plain, work = list(checked(machine, what, **options)), watched.taken()
        assert list(checked(*shuffled(machine, what, seed), **options)) == plain
        assert watched.taken() == work
        found += len(plain)
    assert found > len(some(range(8)))


@settings(max_examples=examples(40))
@given(st.integers(0, 10**5))
def test_points_and_proofs_are_those_of_the_problem_as_asked(seed: int) -> None:
    asked = case(seed, most_ranks=5, most_chunks=8)
    problem = pose_canonically(asked)
    search = SearchState(problem.instance)
    for point in find_frontier(search, Fraction(0), Limits(k=2, steps=asked.least_steps + 1)):
        mine = problem.translate_point(point)
        assert mine.instance is asked
        assert mine.bound_proof is not None
        assert evaluate_dual(asked, mine.bound_proof.dual) == mine.bound_proof.worth
        question = Question(asked, point.parts, point.steps, point.rounds, "")
        assert is_algorithm(question, mine.moves)
        for one, before in zip(mine.refuted, point.refuted, strict=True):
            for proved, was in zip(one.why.duals, before.why.duals, strict=True):
                assert evaluate_dual(asked, proved.dual) == was.worth


def test_a_proof_by_resolution_says_of_which_numbering_it_is() -> None:
    asked = case(4)
    problem = pose_canonically(asked)
    why = problem.translate_impossible(Impossible("search", resolution={"proof": "x"}))
    assert why.resolution is not None
    there = rename_instance(asked, Naming.of_json(why.resolution["naming"], asked))
    assert form(there) == form(problem.instance)
