"""The tables are complete, the ring of the default plan is the best there is, and capabilities may be a dictionary."""

import pytest

from antiphon import registry
from antiphon.core.collective import KINDS
from antiphon.errors import Invalid
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


def test_an_entry_of_a_package_that_cannot_serve_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    read_table = registry.table.__wrapped__  # type: ignore[attr-defined]
    for point, message in ((_Point("ring"), "is not an antiphon.registry.Entry"), (_Point(None), "name that is taken")):
        point.name = "ring" if "taken" in message else "its"
        monkeypatch.setattr(registry, "entry_points", lambda group, point=point: [point])
        with pytest.raises(Invalid, match=message):
            read_table("planner")
