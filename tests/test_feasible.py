"""What is said to be impossible is proved to be, in whatever form; else it is said what was searched."""

import random
from fractions import Fraction

import pytest
import sums_plain
from commands import Capture, answer
from entries import sccl
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from quick import examples, in_turn
from sccl_cases import topology as random_machine

import antiphon
from antiphon.cli import run
from antiphon.core.bounds import bound
from antiphon.core.collective import Collective, custom_relation
from antiphon.core.ksync.certificate import check_certificate
from antiphon.core.ksync.instance import Instance, instance_of
from antiphon.core.loads import rounds
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, build
from antiphon.core.verify import verify
from antiphon.errors import Infeasible, Invalid, NotFound, Unsupported
from antiphon.planners.synth import one_point
from antiphon.planners.synth.group import group_of, trivial_group
from antiphon.planners.synth.search import Impossible, SearchState
from antiphon.planners.synth.sums import Shape, SumTarget, schedule_of_sends, solve_sums
from antiphon.planners.synth.task import Effort
from antiphon.planners.synth.tree_pairs import list_images, solve_tree_pairs
from antiphon.select import collective
from antiphon.topologies import topology

DGX1 = "dgx1v_sccl"


def wish(spec: str, chunks: int, steps: int, rounds: int, kind: str = "allreduce") -> list[str]:
    return ["plan", kind, spec, "--planner", f"sccl:chunks={chunks},steps={steps},rounds={rounds}"]


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ((2, 1, 2), "has S below 2"),
        ((48, 4, 6), "has R/C below 7/24"),
        ((3, 2, 2), "brings the input of rank 0 to all"),
        ((1, 3, 2), "has R below S"),
    ],
)
def test_an_allreduce_is_impossible_only_by_what_holds_for_all_forms(
    figures: tuple[int, int, int], why: str, capsys: Capture
) -> None:
    found = answer(capsys, *wish(DGX1, *figures), code=1)
    assert found["feasible"] is False
    assert "no allreduce of any form" in found["why"]
    assert why in found["why"]


@pytest.mark.parametrize(
    ("spec", "points", "refuted", "changes", "why"),
    [
        (
            "ring:ranks=5", [(1, 2, 2), (10, 3, 11), (5, 4, 4)], (3, 3, 3),
            [{"sends": 12}, {"sends": "11"}, {"sends": -1}, {"refutation": None}], r"crosses \d+ links or more",
        ),
        pytest.param(
            "hypercube:ranks=8", [(3, 3, 3), (6, 4, 4), (12, 5, 7)], (7, 3, 6),
            [{"trees": []}, {"steps": 4}, {"prices": []}, {"trees": None}], "the trees that bring all inputs",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_an_allreduce_is_optimal_where_its_chunks_cross_no_more_links_than_they_must(
    spec: str,
    points: list[tuple[int, int, int]],
    refuted: tuple[int, int, int],
    changes: list[dict[str, object]],
    why: str,
) -> None:
    """Broadcasts and cuts do not prove it: on the hypercube they allow R/C = 5/6 in 3 steps."""
    found = antiphon.frontier.find("allreduce", spec)
    assert [(p.chunks, p.steps, p.rounds, p.proof) for p in found.points] == [(*p, "proved-optimal") for p in points]
    certificate = next(p.schedule.provenance["certificate"] for p in found.points if p.about == "sums" and p.ratio >= 1)
    machine, least = found.topology, certificate["least"]
    assert check_certificate(machine, found.collective, certificate).proved
    for change in changes:
        with pytest.raises(Invalid, match="certificate"):
            check_certificate(machine, found.collective, {**certificate, "least": least | change})
    figures = dict(zip(("chunks", "steps", "rounds"), refuted, strict=True))
    with pytest.raises(Infeasible, match=why):
        antiphon.plan("allreduce", spec, planner="sccl", options=figures)


@pytest.mark.parametrize(("figures", "posed"), [((8, 4, 4), 0), pytest.param((2, 2, 2), 2, marks=pytest.mark.slow)])
def test_broadcasts_are_looked_at_once_per_kind_of_root_and_not_where_halves_exist(
    figures: tuple[int, int, int], posed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight roots of two kinds, on a machine that is alike both ways: sixteen broadcasts are two problems."""
    looked_at = []
    forbidden = SearchState.check_bounds

    def heard(self: SearchState, *asked: int) -> Impossible | None:
        looked_at.append(self.instance.collective.kind)
        return forbidden(self, *asked)

    monkeypatch.setattr(SearchState, "check_bounds", heard)
    machine = topology(DGX1)
    wanted = dict(zip(("chunks", "steps", "rounds"), figures, strict=True))
    list(sccl(Request(machine, collective("allreduce", machine)), **wanted, cache=False))
    assert looked_at.count("broadcast") == posed


def test_what_is_neither_found_nor_refuted_says_what_was_searched(capsys: Capture) -> None:
    asked = wish("ring:ranks=5", 3, 3, 4)
    found = answer(capsys, *asked, code=1)
    assert found["feasible"] is None
    assert found["asked"] == {"chunks": 3, "steps": 3, "rounds": 4}
    assert [one["form"] for one in found["searched"]] == ["halves", "everywhere", "sums"]
    assert [one["outcome"] for one in found["searched"]] == ["does not apply", "none exists", "none exists"]
    assert run(asked) == 1
    said = capsys.readouterr().out
    assert "as halves" in said
    assert "nothing proves that there is none" in " ".join(said.split())


def test_a_point_may_take_fewer_steps_than_were_asked_for() -> None:
    """Forward, the broadcast may idle in its first step; run backwards, that would be a last step without transfers."""
    plan = antiphon.plan("reduce", "ring:ranks=3", planner="sccl", options={"chunks": 2, "steps": 2, "rounds": 4})
    assert plan.entries[0].schedule.steps == 1
    assert antiphon.verify(plan, proof=True)


def test_without_time_nothing_is_said_to_be_impossible(capsys: Capture) -> None:
    for kind in ("allreduce", "broadcast"):
        found = answer(capsys, *wish("torus:dims=4x4", 24, 8, 22, kind), "--budget", "1ms", code=1)
        assert found["feasible"] is None, kind


def test_what_only_a_solver_says_is_no_proof(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_point, "decide_candidate", lambda *args, **how: Impossible("search"))
    found = answer(capsys, *wish(DGX1, 2, 2, 3, "allgather"), code=1)
    assert found["feasible"] is None
    assert "no proof" in found["searched"][0]["why"]


def test_where_paths_are_left_out_a_search_refutes_nothing() -> None:
    """36 paths through two rows of switches lead from rank 0 to rank 1; a dozen is looked at, over two of the first.

    Six chunks at once take six paths that share no switch. They exist, and rank 2 gets them from rank 1.
    """
    planes, thin, wide = 6, LinkType("link", Fraction(10**9)), LinkType("link", Fraction(6 * 10**9))
    links = [(1, 2, wide)]
    for plane in range(planes):
        first, second = 3 + plane, 3 + planes + plane
        links += [(0, first, thin), (second, 1, thin)]
        links += [(first, 3 + planes + other, thin) for other in range(planes)]
    machine = build("planes", 3, links, switches=2 * planes)
    target = Collective("broadcast", 3, (0, 1, 2), (0,))
    instance = instance_of(machine, target)
    assert not instance.arcs.exhaustive
    with pytest.raises(NotFound) as raised:
        list(sccl(Request(machine, target), chunks=planes, steps=2, rounds=2))
    assert raised.value.searched[0]["outcome"] == "not decided"
    assert "only the shortest" in str(raised.value)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**6), chunks=st.integers(1, 3), steps=st.integers(1, 3), spare=st.integers(0, 2))
def test_nothing_that_is_found_is_refuted(seed: int, chunks: int, steps: int, spare: int) -> None:
    """On random machines of up to 4 ranks: where sums without symmetry are found, nothing forbids them."""
    rng = random.Random(seed)
    machine = random_machine(rng, rng.randint(2, 4))
    target = collective("allreduce", machine)
    try:
        instance = instance_of(machine, Collective("allgather", machine.ranks))
    except Invalid:
        assume(False)  # some rank is out of reach
    found = sums_of(instance, target, (chunks, steps, steps + spare))
    if found is None:
        return
    (made,) = sccl(Request(machine, target), chunks=chunks, steps=steps, rounds=steps + spare, cache=False)
    for one in (found, made):
        verify(one, machine).or_raise()
        assert int(one.step.max()) + 1 <= steps
        assert rounds(one, machine) <= steps + spare


def sums_of(instance: Instance, target: Collective, point: tuple[int, int, int]) -> Schedule | None:
    """What the engine finds without symmetry, one partial sum per rank and chunk."""
    chunks, steps, rounds = point
    shape = Shape(trivial_group(instance), (0,), chunks)
    everywhere = SumTarget(target.members, dict.fromkeys(target.members, frozenset(target.members)))
    sends = solve_sums(instance, everywhere, (steps, rounds), shape, Effort(5000)).sends
    return None if sends is None else schedule_of_sends(instance, target, chunks, list(sends))


def test_sums_are_found_in_the_least_steps_that_can_be() -> None:
    """One chunk among 3 ranks on a circle and on a chain."""
    for spec, least in (("ring:ranks=3", 1), ("line:ranks=3", 2)):
        machine = topology(spec)
        target = collective("allreduce", machine)
        instance = instance_of(machine, Collective("allgather", 3))
        for steps in (1, 2, 3):
            assert (sums_of(instance, target, (1, steps, steps)) is not None) == (steps >= least)


@pytest.mark.parametrize(("spec", "point"), in_turn([("full:ranks=4", (4, 2, 2)), (DGX1, (12, 4, 4))]))
def test_two_trees_per_chunk_are_right_under_all_symmetries(spec: str, point: tuple[int, int, int]) -> None:
    """Images that run backwards, too. Every chunk is sent 2 (n - 1) times."""
    chunks, steps, most_rounds = point
    machine = topology(spec)
    instance = instance_of(machine, Collective("allgather", machine.ranks))
    group = group_of(instance)
    start = group.nodes[0]
    swaps = [e for e, row in enumerate(group.nodes) if (row[row] == start).all() and (row != start).all()]
    found = 0
    for images in list_images(instance, group, [[0], *([0, e] for e in swaps[:4])]):
        answer = solve_tree_pairs(instance, point, images, Effort(2000))
        if answer.sends is None:
            continue
        found += 1
        schedule = schedule_of_sends(instance, collective("allreduce", machine), chunks, list(answer.sends))
        verify(schedule, machine).or_raise()
        assert schedule.steps <= steps
        assert rounds(schedule, machine) <= most_rounds
        assert len(schedule.step) == 2 * (machine.ranks - 1) * chunks
    assert found > 1


def test_two_trees_need_links_for_all_their_sends() -> None:
    """One chunk among 3 ranks of a line: up to the middle, then down; not in fewer steps, nor three in three rounds."""
    machine = topology("line:ranks=3")
    instance = instance_of(machine, Collective("allgather", 3))
    images = list_images(instance, trivial_group(instance), [[0]])[0]
    for point, exists in (((1, 2, 2), True), ((1, 1, 1), False), ((2, 3, 3), True), ((3, 3, 3), False)):
        answer = solve_tree_pairs(instance, point, images, Effort(2000))
        assert (answer.sends is not None, answer.refuted) == (exists, not exists), point


@pytest.mark.slow
def test_little_effort_finds_scans_that_are_optimal() -> None:
    scan = sums_relation(4, {rank: 2 ** (rank + 1) - 1 for rank in range(4)})
    found = antiphon.frontier.find(scan, "ring:ranks=4", effort=2)
    points = [(p.chunks, p.steps, p.rounds, p.proof) for p in found.points]
    assert points[:2] == [(2, 2, 2, "proved-optimal"), (4, 3, 3, "proved-optimal")]


def sums_relation(ranks: int, wanted: dict[int, int]) -> Collective:
    """Every rank has an input; `wanted`: per rank the inputs of the sum that it wants, as bits."""
    inputs = [(0, rank, rank) for rank in range(ranks)]
    post = [(0, rank, tuple(i for i in range(ranks) if bits >> i & 1)) for rank, bits in wanted.items()]
    return Collective("custom", ranks, custom=custom_relation(inputs, post, ranks))


@pytest.mark.parametrize(
    ("seeds", "kind"),
    [
        (range(2), "allreduce"), (range(2, 4), "custom"),
        pytest.param(range(2, 600), "allreduce", marks=pytest.mark.slow),
        pytest.param(range(300, 390), "custom", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_no_sums_of_any_form_are_missing_or_wrongly_impossible(seeds: range, kind: str) -> None:
    """On random machines of 3 and 4 ranks a search through all of few chunks, steps and rounds finds nothing better."""
    compared = 0
    for seed in seeds:
        rng = random.Random(seed)
        machine = random_machine(rng, rng.choice([3, 3, 4]))
        everyone = 2**machine.ranks - 1
        wanted = dict.fromkeys(range(machine.ranks), everyone)
        target = Collective("allreduce", machine.ranks)
        if kind == "custom":  # some ranks want the sum of their own input and some others
            wanted = {r: rng.randint(1, everyone) | 1 << r for r in range(machine.ranks) if rng.random() < 0.8}
            target = sums_relation(machine.ranks, wanted)
        try:
            least = max(bound(machine, target).latency_steps, 1)
            results = list(sccl(Request(machine, target), k=1, steps=least + 1, cache=False))
        except (Invalid, Unsupported):
            continue  # some rank is out of reach, or nothing moves
        except NotFound:
            results = []
        best: dict[int, Fraction] = {}
        for result in results:
            verify(result, machine).or_raise()
            ratio = Fraction(max(rounds(result, machine), result.steps), result.chunks_per_rank)
            best[result.steps] = min(ratio, best.get(result.steps, ratio))
        for steps in range(least, min(least + 1, 7 - machine.ranks) + 1):
            point = sums_plain.least_ratio(machine, wanted, steps, most_chunks=7 - machine.ranks, spare=1)
            if point is None:
                continue
            chunks, fewest = point
            found = min((ratio for s, ratio in best.items() if s <= steps), default=None)
            assert found is not None, (seed, steps, point)
            assert found <= Fraction(fewest, chunks), (seed, steps, point)
            list(sccl(Request(machine, target), chunks=chunks, steps=steps, rounds=fewest, cache=False))
            compared += 1
    assert compared > len(seeds) // 2


def test_partial_sums_are_impossible_by_what_they_contain() -> None:
    scan = sums_relation(8, {rank: 2 ** (rank + 1) - 1 for rank in range(8)})
    with pytest.raises(Infeasible, match="brings the input of rank 0 to all"):
        antiphon.plan(scan, DGX1, planner="sccl", options={"chunks": 3, "steps": 2, "rounds": 2})


@pytest.mark.parametrize(
    ("spec", "wanted", "points"),
    [
        ("line:ranks=3", [1, 3, 7], [(1, 2, 2), (2, 3, 3)]),  # a scan
        ("line:ranks=3", [0, 1, 3], [(1, 2, 2), (2, 3, 3)]),  # without each rank's own input
        ("ring:ranks=4", [3, 3, 12, 12], [(1, 1, 1)]),
        pytest.param("dgx1v_sccl", [2 ** (rank + 1) - 1 for rank in range(8)], [(2, 2, 2)], marks=pytest.mark.slow),
    ],
)
def test_scans_and_partial_sums_are_planned_proved_and_run(
    spec: str, wanted: list[int], points: list[tuple[int, int, int]]
) -> None:
    target = sums_relation(len(wanted), {rank: bits for rank, bits in enumerate(wanted) if bits})
    found = antiphon.frontier.find(target, spec, steps=points[-1][1])
    assert [(p.chunks, p.steps, p.rounds, p.proof) for p in found.points] == [(*p, "proved-optimal") for p in points]
    plan = found.plan()
    assert antiphon.verify(plan, proof=True)
    assert all(row["correct"] for row in antiphon.run(plan, 4096))
