"""The least time of so many steps against a plain linear program, and against every plan on random machines."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import quick
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import in_turn
from step_program import least_wire_seconds

from antiphon.core.bounds import bound
from antiphon.core.bounds.by_size import find_evidence
from antiphon.core.bounds.needs import needs_of
from antiphon.core.bounds.routed_search import RoutedSearch
from antiphon.core.bounds.step_search import DataDelivery, StepSearch, list_deliveries
from antiphon.core.bounds.steps import RoutedCuts, proved_times
from antiphon.core.collective import Collective
from antiphon.core.symmetry import automorphisms
from antiphon.core.topology import LinkType, SharedLimit, Topology, build
from antiphon.cost import prepare
from antiphon.cost.bound_evaluator import BoundEvaluator
from antiphon.cost.model_bound import model_bound
from antiphon.errors import AntiphonError, Invalid
from antiphon.registry import find, table
from antiphon.select import plan
from antiphon.topologies import topology

ROUNDING = 1 - 1e-9
SIZES = [1 << k for k in range(8, 32, 2)]


def demands_of(kind: str, ranks: int) -> list[tuple[np.ndarray, int]]:
    """What each rank holds of the data, and who needs all: one row per flow of the oracle."""
    one = np.eye(ranks)
    if kind == "allgather":
        return [(np.ones(ranks) / ranks, rank) for rank in range(ranks)]
    sources = range(1) if kind == "broadcast" else range(ranks)
    return [(one[a], b) for a in sources for b in range(ranks) if a != b]


@cache
def routed_cuts(machine: Topology, kind: str) -> list[RoutedCuts]:
    evidence = find_evidence(machine, Collective(kind, machine.ranks)).views[0].evidence
    return [item for item in evidence if isinstance(item, RoutedCuts)]


# links 0 to 3 are the first rank's three and another's first
LIMITED = replace(topology("full:ranks=4"), limits=(SharedLimit("card", (0, 1, 2, 3), Fraction(30 * 10**9)),))


SHOWN = ("limited", "z52-pcie", "tree:fanouts=2x(2+1)", "pcie8")


@pytest.mark.parametrize(
    ("machine", "kind"),
    in_turn(itertools.product(SHOWN, ("broadcast", "allgather", "allreduce")), 6),
)  # fmt: skip
def test_cuts_from_rank_to_rank_prove_what_the_whole_program_says(machine: str, kind: str) -> None:
    target = LIMITED if machine == "limited" else topology(machine)
    needs = needs_of(Collective(kind, target.ranks))
    weight = float(Collective(kind, target.ranks).buffer_weight or 1)
    evidence = [item for item in routed_cuts(target, kind) if item.steps <= 3]
    for item in evidence:
        proved = float(proved_times(target, needs, item, False).base_time) / weight
        exact = least_wire_seconds(target, item.steps, demands_of(kind, target.ranks))
        assert exact * (1 - 1e-4) < proved < exact * (1 + 1e-9), item.steps
    assert evidence or machine not in ("pcie8", "z52-pcie")


def test_a_broadcast_around_a_switch_takes_half_as_long_again_in_two_steps() -> None:
    wire = LinkType("wire", Fraction(10**9), 0.0)
    links = [link for rank in range(4) for link in ((rank, 4, wire), (4, rank, wire))]
    star, needs = build("star", 4, links, switches=1), needs_of(Collective("broadcast", 4))
    cuts = RoutedSearch(DataDelivery(star, np.array([1, 0, 0, 0]), (0, 1, 2, 3), False)).find_cuts(2)
    assert cuts is not None
    assert float(proved_times(star, needs, cuts, False).base_time) == pytest.approx(1.5e-9, rel=1e-5)
    assert least_wire_seconds(star, 2, demands_of("broadcast", 4)) == pytest.approx(1.5e-9)


@pytest.mark.parametrize(
    ("machine", "kind"),
    in_turn([("dgx1v", "broadcast"), ("pcie8", "broadcast"), ("pcie8", "reduce")]),
)
def test_a_search_that_begins_with_cuts_for_fewer_steps_proves_the_same(machine: str, kind: str) -> None:
    target, collective = topology(machine), Collective(kind, 8)
    needs = needs_of(collective)
    delivery = next(iter(list_deliveries(target, kind, needs, list(range(8)))))
    search_type = RoutedSearch if target.switches else StepSearch
    growing = search_type(delivery)
    for steps in (2, 3, 5):
        both = [growing.find_cuts(steps), search_type(delivery).find_cuts(steps)]
        rates = [float(proved_times(target, needs, cuts, False).base_time) for cuts in both if cuts is not None]
        assert rates == pytest.approx([rates[0]] * 2, rel=2e-4), steps


def test_prices_and_symmetries_that_do_not_hold_prove_nothing() -> None:
    # two cards of two ranks, so that symmetries move the root
    cards = tuple(SharedLimit(f"card{i}", tuple(range(6 * i, 6 * i + 6)), Fraction(30 * 10**9)) for i in range(2))
    machine, needs = replace(topology("full:ranks=4"), limits=cards), needs_of(Collective("broadcast", 4))
    cuts = routed_cuts(machine, "broadcast")[0]
    honest = proved_times(machine, needs, cuts, False).base_time
    free = replace(cuts, prices=tuple(tuple(price if i else 0 for i, price in enumerate(row)) for row in cuts.prices))
    assert proved_times(machine, needs, free, False).base_time <= honest * Fraction(1001, 1000)  # any prices are valid
    nothing = replace(cuts, prices=tuple((0,) * len(row) for row in cuts.prices))
    with pytest.raises(Invalid, match="without a price"):
        proved_times(machine, needs, nothing, False)
    swapped = tuple(np.roll(np.arange(machine.nodes), 1).tolist())
    assert proved_times(machine, needs, replace(cuts, symmetries=(swapped,)), False).base_time == 0
    moves_root = next(tuple(image.tolist()) for image in automorphisms(machine) if image[0] != 0)
    assert proved_times(machine, needs, replace(cuts, symmetries=(moves_root,)), False).base_time == 0
    with pytest.raises(Invalid, match="several ranks at once"):
        proved_times(machine, needs, cuts, True)
    with pytest.raises(Invalid, match="per step"):
        proved_times(machine, needs, replace(cuts, prices=()), False)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Machines of 6 to 8 ranks, in the ordinary set of 4 and 5, whose bounds take a tenth of the time: random links, or
    switches in a tree with some links beside; some with a limit."""
    ranks = draw(st.integers(4, 5) if quick.ordinary else st.integers(6, 8))
    switches = draw(st.sampled_from((0, 0, 1, 2, 3)))
    bandwidths, latencies = st.sampled_from((1, 1, 2, 3)), st.sampled_from((1e-6, 1e-6, 5e-6))
    kinds = [LinkType(f"k{i}", Fraction(10**9 * draw(bandwidths)), draw(latencies)) for i in range(2)]
    order = draw(st.permutations(range(ranks)))
    if switches:
        pairs = {(rank, ranks + draw(st.integers(0, switches - 1))) for rank in range(ranks)}
        pairs |= {(ranks + i, ranks + draw(st.integers(0, i - 1))) for i in range(1, switches)}
    else:
        pairs = set(itertools.pairwise(order))
    pairs |= draw(st.sets(st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1)), max_size=6))
    both = sorted({pair for a, b in pairs if a != b for pair in ((a, b), (b, a))})
    links = [(a, b, kinds[draw(st.integers(0, 1))]) for a, b in both]
    machine = build("random", ranks, links, switches=switches)
    if not draw(st.booleans()):
        return machine
    limited = draw(st.lists(st.integers(0, len(links) - 1), min_size=2, max_size=5, unique=True))
    return replace(machine, limits=(SharedLimit("shared", tuple(sorted(limited)), Fraction(10**9)),))


KINDS = ("broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter", "allreduce", "alltoall")


@given(machines(), st.sampled_from(KINDS), st.data())
@settings(max_examples=2 if quick.ordinary else 120)
def test_no_plan_of_any_planner_beats_the_bound_on_random_machines(
    machine: Topology, kind: str, data: st.DataObject
) -> None:
    target = Collective(kind, machine.ranks)
    least = model_bound("alpha-beta", {}, BoundEvaluator(machine, target, bound(machine, target)))
    assert least is not None
    able = [
        name
        for name, entry in table("planner").items()
        if kind in find("planner", name).can.collectives and entry.is_builtin
    ]
    for name in data.draw(st.lists(st.sampled_from(able), min_size=3, max_size=5, unique=True)):
        try:
            made = plan(kind, machine, planner=name, effort=0.1)
        except AntiphonError:
            continue
        for entry in made.entries:
            predict = prepare("alpha-beta", entry.schedule, machine)
            for nbytes in SIZES:
                assert least(nbytes) <= predict(nbytes).seconds / ROUNDING, (name, nbytes)


@given(machines(), st.sampled_from(("broadcast", "allgather")))
@settings(max_examples=2 if quick.ordinary else 40)
def test_the_bound_is_below_the_program_of_any_number_of_steps(machine: Topology, kind: str) -> None:
    """Nothing in the bound says more than that all data must flow to every rank, within so many steps and latencies."""
    target = Collective(kind, machine.ranks)
    least = model_bound("alpha-beta", {}, BoundEvaluator(machine, target, bound(machine, target)))
    assert least is not None
    late = sum(sorted(float(t.latency) for t in machine.types)[-1:]) * (machine.switches + 1)
    for steps in (2, 4, 6):
        wire = least_wire_seconds(machine, steps, demands_of(kind, machine.ranks))
        for nbytes in SIZES:
            assert least(nbytes) <= (steps * late + wire * nbytes) / ROUNDING, (steps, nbytes)
