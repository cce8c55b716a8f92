"""Any relation is planned, on any machine whose links allow it; what cannot be had is told, with who lacks what."""

import itertools
import json
import random
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from entries import relay
from generate import KINDS_AND_CUSTOM, case
from generate import collective as random_collective
from generate import topology as random_machine
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn

import antiphon
from antiphon.cli import run
from antiphon.core.collective import Collective, custom_relation
from antiphon.core.request import Request
from antiphon.core.serialize import load_plan
from antiphon.core.topology import LinkType, Topology, build
from antiphon.core.verify import verify
from antiphon.errors import Infeasible, Unsupported
from antiphon.planners.relations.blocks import by_relation
from antiphon.planners.relations.sums import sum_of
from antiphon.topologies import topology

DOCS = Path(__file__).parent.parent / "docs"
Pre = list[tuple[int, int, int]]
Post = list[tuple[int, int, tuple[int, ...] | None]]


def relation(ranks: int, pre: Pre, post: Post) -> Collective:
    return Collective("custom", ranks, custom=custom_relation(pre, post, ranks))


def examples_of_pages() -> list[Any]:
    """Every custom collective of every page."""
    found: list[Any] = []
    for page in sorted(DOCS.rglob("*.md")):
        for block in re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL):
            value = json.loads(block)
            if isinstance(value, dict) and value.get("format") == "antiphon-collective" and "blocks" in value:
                found.append(pytest.param(value, id=f"{page.stem}-{len(found)}"))
    return found


def test_the_pages_have_an_example() -> None:
    assert examples_of_pages()


@pytest.mark.parametrize("machine", in_turn(["ring", "line", "star", "full", "dgx1v"], 3))
@pytest.mark.parametrize("value", examples_of_pages())
def test_the_examples_of_the_pages_are_planned_verified_and_run(
    value: Any, machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = machine if machine == "dgx1v" else f"{machine}:ranks={value['ranks']}"
    if machine == "dgx1v":
        value = {**value, "ranks": 8}
    file, out = tmp_path / "relation.json", tmp_path / "plan.json"
    file.write_text(json.dumps(value))
    assert run(["plan", str(file), spec, "-o", str(out)]) == 0
    assert run(["verify", str(out), "--proof"]) == 0
    assert run(["run", str(out), "--nbytes", "4KB"]) == 0
    capsys.readouterr()
    assert all(row["correct"] for row in antiphon.run(load_plan(out), "64KB"))


def test_tune_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "relation.json"
    file.write_text(json.dumps(examples_of_pages()[0].values[0]))
    assert run(["tune", str(file), "ring:ranks=4", "--nbytes", "1KB:1MB", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {entry["planner"] for entry in told["ranges"]} <= {"relay", "sccl"}
    assert run(["plan", str(file), "ring:ranks=4", "--planner", "ring"]) == 2
    assert "planners that can: relay" in capsys.readouterr().err
    assert run(["plan", str(file), "ring:ranks=4", "--planner", "sccl"]) == 2
    assert "use planner relay" in capsys.readouterr().err


# ---- random ones ----


@settings(max_examples=examples(300), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_every_relation_on_every_connected_machine(seed: int) -> None:
    rng = random.Random(seed)
    machine = random_machine(rng)
    wanted = random_collective(rng, machine.ranks, "custom")
    for made in relay(Request(machine, wanted)):
        verify(made, machine).or_raise()


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_the_eight_kinds_are_relations_too(seed: int) -> None:
    found = case(seed, kind=random.Random(seed).choice([kind for kind in KINDS_AND_CUSTOM if kind != "custom"]))
    verify(by_relation(found.topology, found.collective), found.topology).or_raise()


def cut_down(rng: random.Random) -> Topology:
    """A machine of up to 5 ranks with links in some directions only."""
    ranks = rng.randint(2, 5)
    pairs = list(itertools.permutations(range(ranks), 2))
    kind = LinkType("link", Fraction(10**9))
    return build("cut", ranks, [(a, b, kind) for a, b in rng.sample(pairs, rng.randint(1, len(pairs)))])


def any_relation(rng: random.Random, ranks: int) -> Collective:
    """Not made so that it can be met."""
    ids = range(rng.randint(1, 4))
    pre = [(0, rank, rng.choice(ids)) for rank in range(ranks) for _ in range(rng.choice([0, 1, 1, 2]))]
    pre = pre or [(0, 0, 0)]
    known = sorted({name for _, _, name in pre})
    post: Post = []
    for rank in rng.sample(range(ranks), rng.randint(1, ranks)):
        count = rng.randint(1, 4)
        post.append((0, rank, None if rng.random() < 0.3 else tuple(rng.choice(known) for _ in range(count))))
    return relation(ranks, pre, post)


@settings(max_examples=examples(300), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_it_is_planned_if_and_only_if_it_can_be_had(seed: int) -> None:
    """On machines with one-way links: whether sums of what reaches a rank give what it wants, by trying all counts."""
    rng = random.Random(seed)
    machine = cut_down(rng)
    wanted = any_relation(rng, machine.ranks)
    if can_be_had(machine, wanted):
        verify(by_relation(machine, wanted), machine).or_raise()
        return
    with pytest.raises(Infeasible, match=r"rank \d .*no planner can do that"):
        by_relation(machine, wanted)


def can_be_had(machine: Topology, wanted: Collective) -> bool:
    ranks, ends = range(machine.ranks), list(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))
    reached = {(a, a) for a in ranks}
    for _ in ranks:
        reached |= {(a, c) for a, b in reached for x, c in ends if x == b}
    rows = wanted.relation
    held = {rank: Counter(rows.pre_id[rows.pre_rank == rank].tolist()) for rank in ranks}
    for rank, want in zip(rows.post_rank.tolist(), rows.post_want.tolist(), strict=True):
        sought = Counter(set(rows.pre_id.tolist()) if want < 0 else rows.wants[want])
        values = [held[other] for other in ranks if (other, rank) in reached and held[other]]
        ways = itertools.product(range(5), repeat=len(values))
        sums = (Counter(x for v, n in zip(values, way, strict=True) for x in [*v.elements()] * n) for way in ways)
        if sought not in sums:
            return False
    return True


# ---- by hand ----


def test_who_cannot_be_reached_is_named() -> None:
    kind = LinkType("link", Fraction(1))
    machine = build("one way", 3, [(0, 1, kind), (1, 0, kind), (2, 1, kind)])
    with pytest.raises(Infeasible, match=r"no links lead from rank 0 to rank 2 of one way.* no planner can do that"):
        list(relay(Request(machine, relation(3, [(0, 0, 0)], [(0, 2, None)]))))
    with pytest.raises(Infeasible, match="no links lead from rank 1 to rank 2"):
        list(relay(Request(machine, relation(3, [(0, 2, 0), (0, 1, 1)], [(0, 2, None)]))))
    with pytest.raises(Infeasible, match="no links lead from rank 0 to rank 2"):
        list(relay(Request(machine, Collective("broadcast", 3, (0, 1, 2), (0,)))))


def test_what_no_sum_gives_is_impossible() -> None:
    """Of a + b and b + c nobody can make a + b + c, nor a alone of a + b."""
    machine = topology("full:ranks=3")
    pre = [(0, 0, 1), (0, 0, 2), (0, 1, 2), (0, 1, 3)]
    for want in ((1, 2, 3), (1,)):
        with pytest.raises(Infeasible, match="rank 2 can never have what it wants of block 0"):
            by_relation(machine, relation(3, pre, [(0, 2, want)]))
    (once, twice) = ((1, 2, 2, 3), (1, 1, 2, 2, 2, 3))
    verify(by_relation(machine, relation(3, pre, [(0, 2, once), (0, 0, twice)])), machine).or_raise()


def test_a_sum_that_many_want_is_made_once() -> None:
    """An allreduce as a relation: gathered at one rank and spread, not gathered at each."""
    ranks = 16
    pre = [(0, rank, rank) for rank in range(ranks)]
    made = by_relation(
        topology(f"line:ranks={ranks}"), relation(ranks, pre, [(0, rank, None) for rank in range(ranks)])
    )
    assert made.transfers <= 3 * ranks


@pytest.mark.slow
def test_a_search_for_a_sum_has_an_end() -> None:
    """A want of which no sum is found or ruled out within the limit: then it is not called impossible."""
    rng = random.Random(1)
    values = list({tuple(sorted(rng.sample(range(60), 6))) for _ in range(400)})
    with pytest.raises(Unsupported, match="comparisons"):
        sum_of(tuple(range(60)), values)
