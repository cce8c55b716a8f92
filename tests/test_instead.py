"""What planners name where they refuse: on thousands of ranks, too, only those that take it."""

import re
import sys
from dataclasses import replace

import pytest
from entries import greedy, relay

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.errors import Unsupported
from antiphon.planners.greedy.search import GreedySearch
from antiphon.planners.shared.reach import Reach
from antiphon.registry import find, table
from antiphon.topologies import topology

search_module = sys.modules[GreedySearch.__module__]


def named(planner: str, spec: str, kind: str) -> set[str]:
    """Who is named by the refusal."""
    machine = topology(spec)
    with pytest.raises(Unsupported) as refused:
        next(iter(find("planner", planner).load()(Request(machine, Collective(kind, machine.ranks)))))
    text = str(refused.value)
    assert text.startswith(f"planner {planner}: ")
    return set(re.findall(r"[a-z][a-z0-9-]*", text.rpartition("use ")[2])) & set(table("planner"))


@pytest.mark.parametrize(
    ("spec", "kind", "refusing", "left"),
    [
        pytest.param(
            "torus:dims=64x64",
            "alltoall",
            ("ring", "multi-ring", "compose", "flows", "relay"),
            set(),
            marks=pytest.mark.slow,
        ),
        pytest.param("torus:dims=64x64", "allgather", ("relay", "trees"), {"ring", "compose"}, marks=pytest.mark.slow),
        pytest.param("torus:dims=48x48", "allreduce", ("relay", "trees"), {"ring", "compose"}, marks=pytest.mark.slow),
        pytest.param(
            "star:ranks=4096",
            "alltoall",
            ("ring", "multi-ring", "flows"),
            {"direct", "pairwise"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_nobody_who_refuses_is_named(spec: str, kind: str, refusing: tuple[str, ...], left: set[str]) -> None:
    for planner in refusing:
        found = named(planner, spec, kind)
        assert found & {*refusing} == set(), planner
        assert bool(found & left) == bool(left), planner


@pytest.mark.slow
def test_relay_refuses_before_a_tree_is_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a few sources it grows them."""

    def grown(trees: Reach, source: int) -> None:
        raise AssertionError(source)

    machine = topology("torus:dims=64x64")
    assert next(relay(Request(machine, Collective("broadcast", 4096)), trees=1)).transfers == 4095
    monkeypatch.setattr(Reach, "tree_from", grown)
    for kind in ("allgather", "reducescatter", "allreduce", "alltoall"):
        with pytest.raises(Unsupported, match="take too long"):
            next(relay(Request(machine, Collective(kind, 4096)), trees=1))
    with pytest.raises(Unsupported, match="take too long"):
        next(relay(Request(machine, Collective("allreduce", 4096)), by="tree", trees=1))


def test_greedy_names_who_takes_the_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "GREEDY", replace(search_module.GREEDY, max_work=0))
    with pytest.raises(Unsupported, match="use planner relay, ring or compose, or fewer parts"):
        next(greedy(Request(topology("ring:ranks=6"), Collective("allgather", 6))))
