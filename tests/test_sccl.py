"""SCCL on the machines of its paper: proofs of rows, what does not exist, roots. All rows: test_reproduce.py."""

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import in_turn

from antiphon.core.ksync.certificate import check_certificate
from antiphon.core.ksync.dual import evaluate_dual
from antiphon.core.ksync.instance import instance_of
from antiphon.core.reshape import relabel
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid
from antiphon.planners.synth.search import SearchState
from antiphon.reproduce.sccl_plans import make_family, roots_of
from antiphon.reproduce.sccl_tables import DGX1, Z52, rows_of_kind
from antiphon.topologies import topology

SPREADING = ("allgather", "broadcast", "gather", "alltoall")


@pytest.fixture(autouse=True)
def _nothing_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No stored answer has a part in this: there are none, and none are stored."""
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))
    yield
    assert not (tmp_path / "cache").exists()


def renumbered(machine: Topology, seed: int) -> Topology:
    return relabel(machine, np.random.default_rng(seed).permutation(machine.ranks))


def test_there_are_two_orbits_of_roots() -> None:
    for seed in range(5):
        assert len(roots_of(renumbered(topology("dgx1v_sccl"), seed), "broadcast")) == 2
        assert len(roots_of(renumbered(topology("z52"), seed), "gather")) == 1
    assert roots_of(topology("dgx1v_sccl"), "broadcast") == [0, 1]
    assert roots_of(topology("dgx1v_sccl"), "alltoall") == [None]


# ---- certificates ----


@pytest.mark.parametrize(
    ("spec", "kind", "root", "point", "least"),
    in_turn(
        [
            ("dgx1v_sccl", "allgather", None, (6, 3, 7), Fraction(7, 6)),
            ("dgx1v_sccl", "allgather", None, (2, 2, 3), Fraction(3, 2)),
            ("dgx1v_sccl", "reducescatter", None, (48, 3, 7), Fraction(7, 48)),
            ("dgx1v_sccl", "allreduce", None, (48, 6, 14), Fraction(7, 24)),
            ("dgx1v_sccl", "broadcast", 1, (18, 5, 5), Fraction(5, 18)),
            ("dgx1v_sccl", "reduce", 1, (12, 4, 4), Fraction(1, 3)),
            ("dgx1v_sccl", "alltoall", None, (24, 2, 8), Fraction(1, 3)),
            ("z52", "alltoall", None, (8, 4, 8), Fraction(1)),
            ("z52", "broadcast", 0, (10, 8, 8), Fraction(4, 5)),
        ],
        6,
    ),
)
def test_a_row_carries_a_proof_that_no_row_of_its_steps_is_better(
    spec: str, kind: str, root: int | None, point: tuple[int, int, int], least: Fraction
) -> None:
    group = make_family(topology(spec), kind, root)
    made = group.make(*point)
    assert (made.point, made.ratio_bound, made.proof, made.trusted) == (point, least, "proved-optimal", ())
    certificate = json.loads(json.dumps(made.schedule.provenance["certificate"]))
    check_certificate(group.topology, group.collective, certificate)
    with pytest.raises(Invalid, match="below its own bound"):
        check_certificate(
            group.topology, group.collective, {**certificate, "chunks": 2 * certificate["chunks"]}
        )  # as if it moved twice as much
    with pytest.raises(Invalid, match="proves only"):
        check_certificate(group.topology, group.collective, {**certificate, "rounds": certificate["rounds"] + 1})


# ---- what does not exist ----


@pytest.mark.parametrize(("spec", "table"), in_turn([("z52", Z52), ("dgx1v_sccl", DGX1)]))
def test_no_row_has_room_for_more_chunks(spec: str, table: Any) -> None:
    """In as many steps and rounds: exact duals refute it for every row, at the roots whose best rows they are."""
    machine = topology(spec)
    for kind in SPREADING:
        root = roots_of(machine, kind)[-1]
        search = SearchState(instance_of(machine, make_family(machine, kind, root).collective))
        for row in rows_of_kind(table, kind, machine.ranks):
            if (spec, kind, row.point) == ("dgx1v_sccl", "broadcast", (6, 3, 5)):
                continue  # dominated by (6, 3, 3)
            parts = search.instance.parts_of(row.chunks) + 1
            why = search.check_bounds(parts, row.steps, row.rounds)
            assert why is not None, (kind, row.point)
            value = evaluate_dual(search.instance, why.duals[0].dual)  # the dual alone, evaluated anew
            assert row.rounds < parts * value.rounds_per_part


NONE = [
    ("dgx1v_sccl", "allgather", None, (6, 2, 7), "3/2"),
    ("dgx1v_sccl", "allgather", None, (2, 2, 2), "3/2"),
    ("dgx1v_sccl", "allgather", None, (6, 3, 6), "7/6"),
    ("dgx1v_sccl", "reducescatter", None, (48, 2, 7), "3/2"),
    ("dgx1v_sccl", "allreduce", None, (48, 4, 14), "4/13"),  # whatever its form: it holds broadcasts
    ("dgx1v_sccl", "gather", 1, (6, 2, 7), "3/2"),
    ("dgx1v_sccl", "gather", 0, (6, 2, 6), "7/6"),
    ("dgx1v_sccl", "broadcast", 1, (3, 2, 2), "1"),
    ("dgx1v_sccl", "broadcast", 1, (7, 3, 3), "1/2"),
    ("dgx1v_sccl", "broadcast", 1, (13, 4, 4), "1/3"),
    ("dgx1v_sccl", "broadcast", 1, (19, 5, 5), "5/18"),  # left to a solver, it was undecided after minutes
    ("dgx1v_sccl", "broadcast", 1, (18, 4, 5), "1/3"),
    ("dgx1v_sccl", "broadcast", 0, (14, 4, 4), "4/13"),
    ("dgx1v_sccl", "broadcast", 0, (20, 5, 5), "5/19"),
    ("dgx1v_sccl", "alltoall", None, (24, 2, 7), "1/3"),
    ("dgx1v_sccl", "alltoall", None, (24, 7, 7), "1/3"),
    ("z52", "allgather", None, (2, 4, 6), "7/2"),
    ("z52", "alltoall", None, (8, 4, 7), "1"),
    ("z52", "broadcast", 0, (4, 4, 5), "2"),
    ("z52", "broadcast", 0, (10, 7, 8), "7/8"),
]


@pytest.mark.parametrize(("spec", "kind", "root", "point", "least"), in_turn(NONE))
def test_what_would_be_better_is_refuted_with_its_bound(
    spec: str, kind: str, root: int | None, point: tuple[int, int, int], least: str
) -> None:
    group = make_family(topology(spec), kind, root)
    with pytest.raises(Infeasible, match=rf"R/C below {least} exists for \w+ on {spec}"):
        group.make(*point)


@pytest.mark.parametrize(
    ("kind", "point"),
    in_turn(
        [
            ("broadcast", (7, 3, 3)),
            ("broadcast", (13, 4, 4)),
            ("broadcast", (19, 5, 5)),
            ("broadcast", (22, 3, 9)),
            ("reduce", (7, 3, 3)),
            ("reduce", (13, 4, 4)),
            ("gather", (6, 2, 7)),  # both bounds at once, which no row of the paper has
            ("scatter", (48, 2, 7)),
        ],
        2,
    ),
)
def test_the_other_roots_of_a_dgx1_allow_more(kind: str, point: tuple[int, int, int]) -> None:
    machine = topology("dgx1v_sccl")
    assert make_family(machine, kind, 0).make(*point).point == point
    with pytest.raises(Infeasible):
        make_family(machine, kind, 1).make(*point)


# ---- frontiers ----


def test_more_rounds_allow_better_than_k_does() -> None:
    """DGX-1 alltoall in two steps: (24, 2, 8) needs k = 6."""
    group = make_family(topology("dgx1v_sccl"), "alltoall")
    assert [made.point for made in group.frontier(None, 4)] == [(24, 2, 8)]
