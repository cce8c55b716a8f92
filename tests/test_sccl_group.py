"""Symmetries of an instance: each element is one, together they are a group, and wide tables are filled once."""

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from quick import examples
from sccl_cases import case

from antiphon.core.ksync.instance import Instance, instance_of
from antiphon.core.topology import LinkType, SharedLimit, build
from antiphon.planners.synth import group as _group
from antiphon.planners.synth.group import SymmetryGroup, group_of
from antiphon.select import collective
from antiphon.topologies import topology


def an_instance(spec: str, kind: str = "allgather") -> Instance:
    machine = topology(spec)
    return instance_of(machine, collective(kind, machine))


def check(instance: Instance, group: SymmetryGroup) -> None:
    """By the definition: what each element does to bonds, limits, arcs and kinds follows from what they are."""
    arcs, count = instance.arcs, len(instance.bonds)
    assert [part[0].tolist() for part in (group.nodes, group.kinds)] == [
        list(range(instance.nodes)), list(range(len(instance.kinds)))
    ]  # fmt: skip
    for e in range(len(group)):
        nodes, bonds, resources = group.nodes[e], group.bonds[e], group.resources[e]
        for part in (nodes, bonds, group.arcs[e], resources, group.kinds[e]):
            assert sorted(part.tolist()) == list(range(len(part)))
        assert np.array_equal(nodes[instance.tail], instance.tail[bonds])
        assert np.array_equal(nodes[instance.head], instance.head[bonds])
        assert np.array_equal(resources[:count], bonds)
        assert [instance.capacity[r] for r in resources.tolist()] == list(instance.capacity)
        for bond, limits in enumerate(instance.limits_of):
            assert sorted(resources[list(limits)].tolist()) == sorted(instance.limits_of[bonds[bond]])
        for arc, path in enumerate(arcs.paths):
            assert arcs.paths[group.arcs[e, arc]] == tuple(bonds[list(path)].tolist())
        for number, kind in enumerate(instance.kinds):
            image = instance.kinds[group.kinds[e, number]]
            assert sorted(nodes[list(kind.holders)].tolist()) == list(image.holders)
            assert sorted(nodes[list(kind.dests)].tolist()) == list(image.dests)
            assert kind.weight == image.weight


def check_closed(group: SymmetryGroup) -> None:
    rows = {tuple(row) for row in np.hstack([group.nodes, group.bonds]).tolist()}
    assert len(rows) == len(group)
    for one in range(min(len(group), 24)):
        for other in range(len(group)):
            nodes, bonds = group.nodes[one][group.nodes[other]], group.bonds[one][group.bonds[other]]
            assert (*nodes.tolist(), *bonds.tolist()) in rows


def test_elements_are_symmetries_and_products_stay_inside() -> None:
    sizes = Counter[bool]()
    for seed in range(examples(200)):
        instance = case(seed)
        group = group_of(instance)
        check(instance, group)
        check_closed(group)
        sizes[len(group) > 1] += 1
    assert sizes[True] > examples(200) // 20, "hardly any of them has symmetries"


@pytest.mark.parametrize(
    ("spec", "kind", "order"),
    [
        ("torus:dims=4x4", "allgather", 384), ("torus:dims=4x4", "broadcast", 24),
        ("hypercube:ranks=16", "alltoall", 384),
        ("dgx1v_sccl", "allgather", 4), ("z52", "alltoall", 16), ("full:ranks=6", "allgather", 720),
    ],
)  # fmt: skip
def test_groups_that_are_held_whole(spec: str, kind: str, order: int) -> None:
    group = group_of(an_instance(spec, kind))
    assert len(group) == order
    check_closed(group)


def doubled(ranks: int) -> Instance:
    """Two links each way between all, under a limit each, so that they are not merged."""
    kind = LinkType("link", Fraction(10**9))
    links = [(a, b, kind) for a in range(ranks) for b in range(ranks) if a != b for _ in range(2)]
    limits = [SharedLimit(f"limit{i}", (i,), Fraction(10**9)) for i in range(len(links))]
    machine = build("double", ranks, links, limits=limits)
    return instance_of(machine, collective("allgather", machine))


@pytest.mark.parametrize(("ranks", "order"), [(3, 6), (8, None)])
def test_parallel_bonds_change_places_apart_from_nodes(ranks: int, order: int | None) -> None:
    """What tells elements apart is more than their nodes, also in a part of a group too great."""
    instance = doubled(ranks)
    assert len(instance.bonds) == 2 * ranks * (ranks - 1)
    group = group_of(instance)
    check(instance, group)
    check_closed(group)
    assert len(group) == order or (order is None and 1 < len(group) <= 512)


def test_wide_tables_are_filled_for_chosen_elements_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group of full:ranks=24 has 24! elements: a search among random ones multiplies nothing but nodes."""
    instance = an_instance("full:ranks=24")
    wide = [0]
    real = _group._apply_after  # noqa: SLF001  # as TAKEN of test_layering.py says

    def counting(element: Any, rows: Any, widths: Any) -> Any:
        if len(widths) > 1:
            wide[0] += len(rows)
        return real(element, rows, widths)

    monkeypatch.setattr(_group, "_apply_after", counting)
    group = group_of(instance)
    assert wide[0] == len(group) - 1
