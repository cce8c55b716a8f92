"""The tables are complete, the ring of the default plan is the best there is, and capabilities may be a dictionary."""

from fractions import Fraction

import pytest

from antiphon import registry
from antiphon.core.collective import KINDS
from antiphon.core.loads import timeline
from antiphon.core.topology import LinkType, SharedLimit, both_ways, build
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.registry import table
from antiphon.select import plan
from antiphon.topologies import topology


def test_the_tables_are_complete() -> None:
    for kind in ("topology", "planner", "model", "backend"):
        for name, entry in table(kind).items():
            assert entry.about, name
            assert callable(entry.load()), name
    for name, entry in table("planner").items():
        assert entry.can.effort > 0, name
        assert set(entry.can.collectives) <= {*KINDS, "custom"}, name
        assert entry.can.sweep[0] == {}, name  # the defaults first
        for options in entry.can.sweep:
            assert set(options) <= set(entry.options), name


@pytest.mark.parametrize("ranks", [3, 8])
def test_both_ways_round_a_ring_is_optimal(ranks: int) -> None:
    for kind in ("allgather", "reducescatter"):
        entry = plan(kind, topology(f"ring:ranks={ranks}")).entries[0]
        assert entry.claims["bandwidth_gap"] == 1.0
        assert entry.claims["proof"] in ("bandwidth", "both")


def test_ring_on_dgx1v_goes_over_double_links() -> None:
    machine = topology("dgx1v")
    entry = plan("allgather", machine).entries[0]
    order = [int(rank) for rank in entry.schedule.provenance["options"]["order"].split(",")]
    width = {
        (int(a), int(b)): machine.bandwidth(i) / machine.unit
        for i, (a, b) in enumerate(zip(machine.link_src, machine.link_dst, strict=True))
    }
    assert {width[a, b] for a, b in zip(order, order[1:] + order[:1], strict=True)} == {2}
    assert timeline(entry.schedule, machine).total == Fraction(7, 4) / 8 / machine.unit
    assert entry.claims["bandwidth_gap"] == 1.5  # 7/4 against 7/6


def test_ring_over_a_switch_names_its_routes() -> None:
    port = LinkType("ib", Fraction(10**9))
    limit = SharedLimit("nic", (0, 2), Fraction(10**9))
    machine = build("star", 4, both_ways([(i, 4) for i in range(4)], port), switches=1, limits=[limit])
    for kind in ("allgather", "allreduce"):
        entry = plan(kind, machine).entries[0]
        assert verify(entry.schedule, machine).ok
        assert entry.claims["bandwidth_gap"] >= 1


def test_ring_on_parallel_links_names_the_widest() -> None:
    fast, slow = LinkType("nvlink", Fraction(10**10)), LinkType("pcie", Fraction(10**9))
    pairs = [(0, 1), (1, 2), (2, 0)]
    machine = build("two kinds", 3, both_ways(pairs, slow) + both_ways(pairs, fast))
    entry = plan("allgather", machine, options={"directions": 1}).entries[0]
    used = {machine.types[machine.link_type[link]].kind for link in entry.schedule.routes.links.tolist()}
    assert used == {"nvlink"}


def test_ring_among_some_ranks() -> None:
    machine = topology("dgx1v")
    entry = plan("allreduce", machine, ranks=[0, 3, 4, 7]).entries[0]
    assert set(entry.schedule.src.tolist()) == {0, 3, 4, 7}
    with pytest.raises(Unsupported, match="no cycle"):
        plan("allreduce", machine, ranks=[0, 1, 6])


class _Point:
    """An entry point of an installed package."""

    name = "its"

    def __init__(self, entry: object) -> None:
        self.load = lambda: entry


@pytest.mark.parametrize(
    ("can", "message"),
    [
        ({"collectives": ("allgather",), "topologies": "any", "options": ("pieces",)}, ""),
        ({"collectives": ("allgather",), "efort": 3.0}, "capability of .* 'efort'; did you mean 'effort'"),
        (["allgather"], "expected antiphon.registry.PlannerCapabilities"),
    ],
)
def test_capabilities_may_be_a_dictionary_for_one_version(
    monkeypatch: pytest.MonkeyPatch, can: object, message: str
) -> None:
    point = _Point(registry.Entry("antiphon.planners.rings.ring:ring", "", can))
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    read_table = registry.table.__wrapped__  # type: ignore[attr-defined]
    if message:
        with pytest.raises(Invalid, match=message):
            read_table("planner")
        return
    with pytest.warns(DeprecationWarning, match=r"now antiphon.registry.PlannerCapabilities\(...\)"):
        entry = read_table("planner")["its"]
    assert entry.can == registry.PlannerCapabilities(("allgather",))
    assert list(entry.options) == ["order", "directions", "pieces", "undivided"]
