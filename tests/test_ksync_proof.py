"""Refutations by search: the clauses against exhaustive search, the checker against truth tables and corruptions."""

import dataclasses
import itertools
import json
import random
import zlib
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick import examples

from antiphon.core.collective import Collective
from antiphon.core.ksync import cnf
from antiphon.core.ksync.cnf import Question, build_formula
from antiphon.core.ksync.instance import Instance, instance_of
from antiphon.core.ksync.proof import (
    Refutation,
    check_chains,
    check_refutation,
    pack_chains,
    resolve_chain,
    unpack_chains,
)
from antiphon.core.topology import LinkType, SharedLimit, Topology, build
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.synth import refute as refuting
from antiphon.planners.synth.elaborate import Elaboration
from antiphon.planners.synth.group import trivial_group
from antiphon.planners.synth.refute import find_refutation
from antiphon.planners.synth.sat import solve_sat
from antiphon.planners.synth.task import Effort, Task
from antiphon.topologies import topology

TORUS = [(7, 6), (8, 6), (10, 8), (11, 8), (12, 8)]  # chunks and rounds of broadcast in 4 steps that nothing does


@cache
def torus() -> Instance:
    return instance_of(topology("torus:dims=4x4"), Collective("broadcast", 16, roots=(0,)))


@cache
def proved(parts: int, rounds: int, ordered: bool) -> Refutation:
    found = find_refutation(torus(), Question(parts, 4, rounds, ordered=ordered), Effort())[0]
    assert found is not None
    return found


def solved(clauses: Sequence[Sequence[int]]) -> bool:
    from pysat.solvers import Solver

    if () in clauses:
        return False
    with Solver(name="minisat22", bootstrap_with=[list(c) for c in clauses]) as solver:
        return bool(solver.solve())


# ---- the points of the torus ----


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "rounds"), TORUS)
def test_torus_plain(parts: int, rounds: int) -> None:
    found = proved(parts, rounds, False)
    assert len(json.dumps(found.as_json())) < 1_000_000
    check_refutation(torus(), found)


def test_effort_spent() -> None:
    assert find_refutation(torus(), Question(12, 4, 8), Effort(conflicts=50))[0] is None


def test_given_split() -> None:
    found = find_refutation(torus(), Question(8, 4, 6, (2, 1, 1, 2), True), Effort(), again=0)[0]
    assert found is not None
    check_refutation(torus(), Refutation.of_json(json.loads(json.dumps(found.as_json()))))


def test_restart_with_shuffled_clauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refuting, "FIRST_CONFLICTS", 20)
    found = find_refutation(torus(), Question(7, 4, 6, None, True), Effort(), again=0)[0]
    assert found is not None
    check_refutation(torus(), found)


def test_a_proof_is_checked_without_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_refutation(torus(), Question(7, 4, 6, None, True), Effort(), again=0)[0]
    monkeypatch.setitem(__import__("sys").modules, "pysat.solvers", None)
    assert found is not None
    check_refutation(torus(), found)


# ---- what must be refused ----


@cache
def clauses_of(question: Question) -> list[cnf.Clause]:
    return build_formula(torus(), question).clauses


def lists(found: Refutation) -> tuple[list[list[int]], int]:
    given = len(clauses_of(found.question))
    return list(unpack_chains(found.proof, given)), given


def refused(found: Refutation, chains: list[list[int]]) -> bool:
    try:
        check_chains(clauses_of(found.question), chains)
    except Invalid:
        return True
    return False


def test_every_dropped_lemma_is_refused() -> None:
    found = proved(8, 6, True)
    chains, given = lists(found)
    assert not refused(found, chains)
    assert pack_chains(chains, given) == found.proof
    for place in range(len(chains)):
        assert refused(found, chains[:place] + chains[place + 1 :])
        kept = [[n - (n > given + place) for n in chain if n != given + place] for chain in chains]
        assert refused(found, kept[:place] + kept[place + 1 :])


def test_changed_hints_are_refused() -> None:
    """Every hint left out, doubled, or another in its place: what still resolves must still be sound, and is rare."""
    found = proved(8, 6, True)
    chains, given = lists(found)
    rng = random.Random(1)
    passed = tried = 0
    for place, chain in enumerate(chains):
        at = rng.randrange(len(chain))
        other = rng.randrange(given + place)
        for new in (
            chain[:at] + chain[at + 1 :],
            [*chain[: at + 1], *chain[at:]],
            [*chain[:at], other, *chain[at + 1 :]],
            [*chain[:at], given + place, *chain[at + 1 :]],
            chain[::-1] if len(chain) > 2 else [],
        ):
            tried += 1
            passed += not refused(found, [*chains[:place], new, *chains[place + 1 :]])
    assert tried > 50
    assert passed <= tried // 20


def test_truncated_and_garbled_bytes() -> None:
    found = proved(8, 6, True)
    chains, _ = lists(found)
    raw = zlib.decompress(found.proof)
    broken = [
        b"", found.proof[:-1], found.proof[: len(found.proof) // 2], found.proof + b"x", b"no bytes of zlib",
        zlib.compress(raw[:-1]), zlib.compress(b""), zlib.compress(raw + b"\0"), zlib.compress(raw + b"\x01"),
        zlib.compress(raw + b"\x80"), zlib.compress(raw + b"\x01" + b"\xff" * 9 + b"\x01"),
    ]  # fmt: skip
    for proof in broken:
        with pytest.raises(Invalid, match=r"^certificate: its refutation .*; plan anew$"):
            check_refutation(torus(), dataclasses.replace(found, proof=proof))
    assert refused(found, chains[:-1])
    assert refused(found, [])


def test_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.core.ksync.proof.MOST_BYTES", 100)
    with pytest.raises(Invalid, match="more than 100 bytes"):
        check_refutation(torus(), proved(8, 6, True))


def test_proof_of_something_else() -> None:
    found = proved(8, 6, True)
    asked = found.question
    others = [
        dataclasses.replace(asked, rounds=7),  # there is one
        dataclasses.replace(asked, steps=5), dataclasses.replace(asked, parts=7), dataclasses.replace(asked, parts=9),
        dataclasses.replace(asked, ordered=False), dataclasses.replace(asked, split=(2, 1, 1, 2)),
    ]  # fmt: skip
    for other in others:
        with pytest.raises(Invalid, match="does not hold"):
            check_refutation(torus(), Refutation(other, found.proof))
    cube = instance_of(topology("hypercube:ranks=16"), Collective("broadcast", 16, roots=(0,)))
    elsewhere = instance_of(torus().topology, Collective("broadcast", 16, roots=(5,)))
    for instance in (cube, elsewhere):
        with pytest.raises(Invalid, match="does not hold"):
            check_refutation(instance, found)


@pytest.mark.parametrize(
    "change",
    [
        {"proof": "*"}, {"proof": None}, {"proof": 3}, {"steps": "4"}, {"steps": 4.0}, {"ordered": 1}, {"split": 3},
        {"split": [1, 1.5]}, {"parts": True}, {"shared": 1}, "parts", "steps", "rounds", "split", "ordered", "proof",
    ],
)  # fmt: skip
def test_unreadable_json(change: dict[str, object] | str) -> None:
    """What is changed in it, or left out."""
    told = proved(8, 6, True).as_json()
    told = {**told, **change} if isinstance(change, dict) else {k: v for k, v in told.items() if k != change}
    with pytest.raises(Invalid, match="cannot be read"):
        Refutation.of_json(told)


def test_what_is_said_not_to_be_shared_is_not() -> None:
    told = proved(8, 6, True)
    assert Refutation.of_json({**told.as_json(), "shared": False}).question == told.question


@pytest.mark.parametrize(
    "asked", [Question(0, 4, 6), Question(1, -1, 6), Question(1, 4, -1), Question(1, 4, 6, (1, 1, 1)),
              Question(1, 4, 6, (2, 2, 2, 2)), Question(1, 4, 6, (-1, 3, 3, 1))],
)  # fmt: skip
def test_questions_that_are_none(asked: Question) -> None:
    with pytest.raises(Invalid, match=r"^refutation: "):
        build_formula(torus(), asked)


def test_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in (Question(10**9, 4, 6), Question(1, 4, 10**9)):
        with pytest.raises(Unsupported, match="variables"):
            build_formula(torus(), asked)
    monkeypatch.setattr(cnf, "MAX_FORMULA", 6000)
    with pytest.raises(Unsupported, match="clauses"):
        build_formula(torus(), Question(8, 4, 6))


def test_paths_left_out_prove_nothing() -> None:
    arcs = dataclasses.replace(torus().arcs, exhaustive=False)
    instance = dataclasses.replace(torus())
    instance.__dict__["arcs"] = arcs
    with pytest.raises(Unsupported, match="too many paths"):
        build_formula(instance, Question(8, 4, 6))


# ---- the checker alone ----


def implied(clauses: Sequence[Sequence[int]], lemma: Sequence[int], variables: int) -> bool:
    for bits in itertools.product((False, True), repeat=variables):
        holds = [any(bits[abs(x) - 1] == (x > 0) for x in clause) for clause in (*clauses, lemma)]
        if all(holds[:-1]) and not holds[-1]:
            return False
    return True


def test_chains_that_do_not_resolve() -> None:
    known = [(1, 2), (-1, -2), (2, 3), (-1, 2)]
    assert resolve_chain(known, [0, 3]) == (2,)
    for chain, why in (([0, 1], "in 2 literals"), ([0, 2], "in 0 literals"), ([-1], "clause -1"), ([4], "clause 4"),
                       ([0, 3, 0], "in 0 literals"), ([], "no chain")):  # fmt: skip
        with pytest.raises(Invalid, match=why):
            resolve_chain(known, chain)


@pytest.mark.parametrize(
    ("raw", "why"),
    [(b"\x03\x02", "last chain is cut off"), (b"\x01\x82", "last number is cut off"),
     (b"\x01" + b"\x80" * 5 + b"\x01", "too great")],
)  # fmt: skip
def test_bytes_that_are_no_chains(raw: bytes, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        list(unpack_chains(zlib.compress(raw), 5))


LITERALS = st.sampled_from([-4, -3, -2, -1, 1, 2, 3, 4])


@given(st.lists(st.lists(LITERALS, max_size=4), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_what_resolves_is_implied(clauses: list[list[int]], rng: random.Random) -> None:
    """Also of clauses with doubled literals, and of such as are always true."""
    known: list[Sequence[int]] = [tuple(c) for c in clauses]
    for _ in range(30):
        chain = [rng.randrange(len(known)) for _ in range(rng.randint(1, 4))]
        try:
            known.append(resolve_chain(known, chain))
        except Invalid:
            continue
        assert implied(clauses, known[-1], 4)


@given(st.lists(st.lists(st.integers(0, 2**20), min_size=1, max_size=9), max_size=9), st.integers(0, 300))
def test_packed_and_unpacked(numbers: list[list[int]], given_clauses: int) -> None:
    chains = [[n % (given_clauses + i) for n in row] for i, row in enumerate(numbers) if given_clauses + i]
    chains = chains if given_clauses else []
    assert list(unpack_chains(pack_chains(chains, given_clauses), given_clauses)) == chains


# ---- from CaDiCaL's lemmas to chains ----


def drup(clauses: list[list[int]]) -> list[str] | None:
    from pysat.solvers import Solver

    with Solver(name="cadical195", bootstrap_with=clauses, with_proof=True) as solver:
        return None if solver.solve() else solver.get_proof()


def test_chains_of_random_clauses() -> None:
    """Hard enough for units, deletions of clauses and inprocessing; some with units and doubled literals."""
    refuted = 0
    for seed in range(examples(25)):
        rng = random.Random(seed)
        variables = rng.choice([5, 20, 60, 100, 130])
        sizes = [1, 2, 2, 3, 3, 3] if variables == 20 else [2, 3, 3, 3] if seed % 2 else [3]
        clauses = []
        for _ in range(round(variables * (5.0 if 1 not in sizes else 3))):
            chosen = rng.sample(range(1, variables + 1), rng.choice(sizes))
            clause = [v if rng.random() < 0.5 else -v for v in chosen]
            clauses.append(clause + clause[:1] * (seed % 3 == 0))
        lines = drup(clauses)
        if lines is not None:
            work = Elaboration(clauses, variables)
            work.read_proof(lines)
            check_chains(clauses, work.build_chains())
            refuted += 1
    assert refuted > examples(25) // 2


def test_proof_without_an_end() -> None:
    work = Elaboration([[1, 2, 3], [-1, 2, 3]], 3)
    assert not work.read_proof(["2 3 0"])
    with pytest.raises(RuntimeError, match="does not reach"):
        work.build_chains()
    work = Elaboration([[1, 2, 3]], 3)
    assert work.read_proof(["1 0", "-1 0"])
    with pytest.raises(RuntimeError, match="does not follow"):
        work.build_chains()


# ---- the clauses against exhaustive search ----

BANDWIDTHS = [Fraction(1), Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3, 2)]


def machine(rng: random.Random) -> Topology:
    """A cycle through all nodes, further links, parallel ones too, perhaps a switch or two and shared limits."""
    ranks, switches = rng.choice([(2, 0), (3, 0), (3, 0), (4, 0), (3, 1), (2, 2), (3, 2)])
    nodes = rng.sample(range(ranks + switches), ranks + switches)
    pairs = list(itertools.pairwise([*nodes, nodes[0]]))
    pairs += [(a, b) for a, b in (rng.sample(nodes, 2) for _ in range(rng.randint(0, 3)))]
    links = [(a, b, LinkType("link", rng.choice(BANDWIDTHS))) for a, b in pairs]
    limits = [
        SharedLimit(f"l{i}", tuple(rng.sample(range(len(links)), rng.randint(1, len(links)))), rng.choice(BANDWIDTHS))
        for i in range(rng.choice([0, 0, 1, 2]))
    ]
    return build("random", ranks, links, switches=switches, limits=limits, unit=1)


def task(rng: random.Random, machine: Topology) -> Collective:
    kind = rng.choice(["broadcast", "broadcast", "scatter", "gather", "allgather", "alltoall"])
    members = rng.sample(range(machine.ranks), rng.randint(2, machine.ranks))
    roots = (rng.choice(members),) if kind in ("broadcast", "scatter", "gather") else ()
    plain = Collective(kind, machine.ranks, tuple(sorted(members)), roots)
    if rng.random() < 0.6:
        return plain
    weights = np.array([rng.choice([0, 1, 1, 2, 3]) for _ in range(plain.blocks)])
    return Collective(kind, machine.ranks, plain.members, roots, weights)


def ways(machine: Topology) -> list[tuple[int, int, tuple[int, ...]]]:
    """(tail, head, links and limits it loads) of every simple path between ranks through switches."""
    ends = list(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))
    found = []

    def walk(path: list[int], seen: set[int]) -> None:
        node = ends[path[-1]][1]
        if node < machine.ranks:
            loads = list(path)
            for i, limit in enumerate(machine.limits):
                loads += [len(ends) + i for link in path if link in limit.links]
            found.append((ends[path[0]][0], node, tuple(loads)))
            return
        for link, (a, b) in enumerate(ends):
            if a == node and b not in seen:
                walk([*path, link], seen | {b})

    for link, (a, b) in enumerate(ends):
        if a < machine.ranks:
            walk([link], {a, b})
    return found


State = frozenset[tuple[int, int]]


def exists(machine: Topology, collective: Collective, parts: int, splits: list[tuple[int, ...]]) -> bool:
    """Go through all algorithms, link by link: every state that can be reached in every step."""
    relation = collective.relation
    chunks = [(b, p) for b, w in enumerate(collective.weights.tolist()) for p in range(w * parts)]
    pre = set(zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True))
    post = set(zip(relation.post_block.tolist(), relation.post_rank.tolist(), strict=True))
    start = frozenset((i, r) for i, (b, _) in enumerate(chunks) for r in range(machine.ranks) if (b, r) in pre)
    goal = {(i, r) for i, (b, _) in enumerate(chunks) for r in range(machine.ranks) if (b, r) in post}
    arcs = ways(machine)
    room = [machine.bandwidth(link) for link in range(machine.links)] + [x.bandwidth for x in machine.limits]

    @cache
    def after(state: State, rounds: int) -> frozenset[State]:
        targets = [(i, r) for i in range(len(chunks)) for r in range(machine.ranks) if (i, r) not in state]
        found: set[State] = set()
        seen: set[tuple[int, State, tuple[int, ...]]] = set()

        def choose(place: int, got: State, left: tuple[int, ...]) -> None:
            if (place, got, left) in seen:
                return
            seen.add((place, got, left))
            if place == len(targets):
                found.add(got)
                return
            chunk, rank = targets[place]
            choose(place + 1, got, left)
            for a, b, loads in arcs:
                if b == rank and (chunk, a) in state:
                    less = list(left)
                    for x in loads:
                        less[x] -= 1
                    if min(less) >= 0:
                        choose(place + 1, got | {(chunk, rank)}, tuple(less))

        choose(0, state, tuple(int(r / machine.unit * rounds) for r in room))
        return frozenset(s for s in found if not any(s < other for other in found))

    def reaches(split: tuple[int, ...]) -> bool:
        states = {start}
        for rounds in split:
            states = {new for state in states for new in after(state, rounds)}
        return any(goal <= state for state in states)

    return any(reaches(split) for split in splits)


def compositions(rounds: int, steps: int) -> list[tuple[int, ...]]:
    return [s for s in itertools.product(range(rounds + 1), repeat=steps) if sum(s) == rounds or not steps]


def agrees(seed: int) -> bool | None:
    """What all forms of the question, the refutation and exhaustive search say; None where it is too large."""
    rng = random.Random(seed)
    where = machine(rng)
    collective = task(rng, where)
    instance = instance_of(where, collective)
    parts, steps, rounds = rng.choice([1, 1, 2, 3]), rng.randint(0, 3), rng.randint(0, 5)
    chunks = sum(kind.weight for kind in instance.kinds) * parts
    if chunks * (where.ranks - 1) > 9 or chunks * len(ways(where)) > 24:
        return None
    truth = exists(where, collective, parts, compositions(rounds, steps))
    for ordered in (True, False):
        asked = Question(parts, steps, rounds, None, ordered)
        assert solved(build_formula(instance, asked).clauses) == truth, seed
        found = find_refutation(instance, asked, Effort())[0]
        assert (found is None) == truth, seed
        if found is not None:
            check_refutation(instance, found)
    split = rng.choice(compositions(rounds, steps))
    asked = Question(parts, steps, rounds, split, bool(seed % 2))
    assert solved(build_formula(instance, asked).clauses) == exists(where, collective, parts, [split]), seed
    return truth


@pytest.mark.parametrize(
    ("first", "count", "least"),
    [
        (20, examples(250), examples(250) // 6),  # before these are some that take seconds
        *(pytest.param(1000 * part, 500, 80, marks=pytest.mark.slow) for part in range(1, 5)),
    ],
)
def test_clauses_agree_with_exhaustive_search(first: int, count: int, least: int) -> None:
    answers = [agrees(seed) for seed in range(first, first + count)]
    assert answers.count(True) > least
    assert answers.count(False) > least


def test_clauses_agree_with_the_engine() -> None:
    """Larger ones, against the engine `sat`, which has at least one round in every step."""
    seen = set()
    for seed in range(60):
        rng = random.Random(seed)
        where = machine(rng)
        instance = instance_of(where, task(rng, where))
        parts, steps, rounds = rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 9)
        least = max(1, instance.least_steps)
        engine = any(
            solve_sat(Task(instance, parts, s, rounds), trivial_group(instance), Effort()).moves is not None
            for s in range(least, min(steps, rounds) + 1)
        )
        seen.add(engine)
        assert (
            solved(build_formula(instance, Question(parts, steps, rounds, None, bool(seed % 2))).clauses) == engine
        ), seed
    assert seen == {True, False}
