"""What a call takes, on random machines and sizes: never less than the bound allows, never less for more bytes, and the
same whoever asks."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quick import examples

import antiphon
from antiphon.core.bounds import bound
from antiphon.core.collective import ROOTED
from antiphon.core.reshape import keep
from antiphon.core.topology import Topology
from antiphon.cost.nccl.calls import shipped_calls
from antiphon.cost.nccl.choice import ALGORITHMS, KINDS, price_options
from antiphon.cost.nccl.layout import layout_of
from antiphon.cost.nccl.library import library_here
from antiphon.cost.replay.job import ProcessGroup
from antiphon.errors import AntiphonError
from antiphon.select import collective
from antiphon.select.limits import Limit
from antiphon.select.prices import ByLibrary, ByPlans
from antiphon.topologies import topology

BOXES = ("dgx1v", "dgx-a100", "hgx-h100", "hgx-h100:sharp=false", "hgx-b200", "mi300x")
SIZES = st.integers(0, 2**34)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """A box, some ranks of one, or several on a network that may be thin."""
    box, boxes = draw(st.sampled_from(BOXES)), draw(st.sampled_from((1, 1, 2, 3)))
    if boxes == 1:
        whole = topology(box)
        ranks = draw(st.sets(st.integers(0, whole.ranks - 1), min_size=2))
        return keep(whole, sorted(ranks), name=whole.name).topology
    fabric = draw(st.sampled_from(("switch", "leaf-spine", "fat-tree", "rail")))
    more = f",oversubscription={draw(st.sampled_from((1, 2, 4)))}" if fabric != "switch" else ""
    more += f",nics={draw(st.sampled_from((1, 2, 4, 8)))},sharp={draw(st.sampled_from(('true', 'false')))}"
    return topology(f"cluster:box={box},boxes={boxes},fabric={fabric}{more}")


@settings(max_examples=examples(24), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(machines(), st.sampled_from(KINDS), SIZES, SIZES)
def test_what_nccl_takes_is_above_the_bound_and_grows(machine: Topology, kind: str, one: int, other: int) -> None:
    wanted = collective(kind, machine, root=0 if kind in ROOTED else None)
    try:
        library, least = library_here(machine), Limit.of(bound(machine, wanted), machine, wanted)
    except AntiphonError:  # some ranks of a mesh have no link
        return
    before: dict[str, float] = {}
    for nbytes in sorted((one, other)):
        found = price_options(library.layout, library.costs, kind, nbytes, ALGORITHMS)
        for way in found:
            transfer = float(nbytes / least.bytes_per_second) if least.bytes_per_second else 0.0
            assert max(least.latency, transfer) <= way.seconds * (1 + 1e-9), way
            assert before.get(way.name, 0.0) <= way.seconds
        before = {way.name: way.seconds for way in found}


def _asked(kind: str, machine: Topology, nbytes: int, plan: Any, model: str) -> Mapping[str, tuple[float, str]]:
    """Seconds of a plan, and what they rest on, by each command that tells them."""
    (told,) = antiphon.predict(plan, nbytes)
    group = ProcessGroup("0", machine.ranks, tuple(range(machine.ranks)))
    price = ByPlans(machine, {kind: plan}, None, "").price(kind, nbytes, 0, group)
    assert price is not None
    measured = antiphon.measure.bench(plan, nbytes=nbytes, on="local", iterations=1, warmup=0)
    assert measured
    row = measured[0]
    return {
        "predict": (told["seconds"], told["rests_on"]),
        "replay": (price.seconds, price.rests_on),
        "bench": (row["predicted_seconds"], row["predicted_by"].removeprefix(f"{model}; ")),
    }


def check_all(name: str, kind: str, nbytes: int) -> None:
    """Of one machine and size: what a plan takes is the same whoever tells it, above the bound, and more for more."""
    machine = topology(name)
    found = antiphon.tune(
        kind, machine, nbytes=nbytes, planners=("ring", "binomial-tree"), search=antiphon.Search(workers="none")
    )
    (best,) = found.ranges
    assert best.gap is None or best.gap >= 1
    assert antiphon.predict(found.plan, 2 * nbytes)[0]["seconds"] >= best.seconds
    for who, (seconds, rests) in _asked(kind, machine, nbytes, found.plan, found.model).items():
        assert seconds == pytest.approx(best.seconds, rel=1e-12), who
        assert set(rests.split("; ")) <= set(best.rests_on.split("; ")), who
    assert f'"rests_on":"{best.rests_on}"' in antiphon.pages.report(found)
    if found.model == "calls":
        (own,) = antiphon.predict(kind, nbytes, topology=machine, library=library_here(machine).name)
        group = ProcessGroup("0", machine.ranks, tuple(range(machine.ranks)))
        priced = ByLibrary(machine).price(kind, nbytes, 0, group)
        assert priced is not None
        assert own["seconds"] == priced.seconds == pytest.approx((best.speedup or 0) * best.seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "kind"), [pytest.param("hgx-h100", "broadcast", marks=pytest.mark.slow), ("ring:ranks=5", "allgather")]
)
def test_whoever_asks_is_told_the_same(name: str, kind: str) -> None:
    check_all(name, kind, 1600)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(
        ("hgx-h100", "dgx-a100", "hgx-b200", "mi300x", "mi250:gcds=8", "ring:ranks=5", "ec2:instance=p4d,instances=2")
    ),
    st.sampled_from(("allreduce", "allgather", "broadcast")),
    st.integers(1, 2000).map(lambda k: 320 * k),  # whole floats for each of 5 and 16 ranks
)
def test_whoever_asks_at_whatever_size(name: str, kind: str, nbytes: int) -> None:
    check_all(name, kind, nbytes)


@pytest.mark.slow
def test_a_job_is_told_the_same_of_a_group_that_no_model_of_nccl_knows() -> None:
    machine = topology("cluster:box=hgx-h100,boxes=2")
    plan = antiphon.plan("allreduce", machine, planner="ring", ranks=[0, 1, 8])
    (told,) = antiphon.predict(plan, 1200)
    price = ByPlans(machine, {"allreduce": plan}, None, "").price("allreduce", 1200, 0, ProcessGroup("0", 3, (0, 1, 8)))
    assert price is not None
    assert (price.seconds, price.rests_on) == (told["seconds"], told["rests_on"])
    assert told["rests_on"] == "not calibrated"
    assert price.by == "ring; alpha-beta, not calibrated"


@pytest.mark.parametrize(
    ("fabric", "cuts"),
    [
        ("switch", ()),
        ("rail,oversubscription=4", ()),  # whoever goes round by rails needs no spine
        ("leaf-spine", ((2, 800e9),)),
        ("leaf-spine,oversubscription=4,spines=2", ((2, 200e9),)),
        ("fat-tree,oversubscription=2", ((1, 200e9), (2, 400e9))),
    ],
)
def test_what_leads_out_of_groups_of_nodes(fabric: str, cuts: tuple[tuple[int, float], ...]) -> None:
    assert layout_of(topology(f"cluster:box=hgx-h100,boxes=8,fabric={fabric}")).cuts == cuts


def test_a_thin_network_is_paid_for() -> None:
    """Of a ring one flow leaves two nodes; of an alltoall all that their 16 ranks have for the 16 others."""
    nbytes, machine = 10**10, "cluster:box=hgx-h100,boxes=4,fabric=leaf-spine,oversubscription=4"
    for kind, leaves in (("broadcast", nbytes), ("alltoall", nbytes // 32 * 16 * 16)):
        (row,) = antiphon.predict(kind, nbytes, topology=machine, library="nccl")
        share = shipped_calls()["ib"].share[row["protocol"]]
        assert row["terms"]["bytes"] == pytest.approx(leaves / 200e9 / share)
