"""A reduce is the broadcast machine_for_dual: on machines alike both ways it is the same, and as fast."""

from dataclasses import replace

import pytest
from entries import alpha_beta, shallow, trees
from quick import in_turn

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import SharedLimit, Topology
from antiphon.core.verify import verify
from antiphon.planners.shared.rows import machine_for_dual
from antiphon.topologies import topology

MB = 10**6


def planned(planner: object, machine: Topology, kind: str) -> Schedule:
    made = next(planner(Request(machine, Collective(kind, machine.ranks), nbytes=100 * MB), pieces=8))  # type: ignore[operator]
    verify(made, machine).or_raise()
    return made


@pytest.mark.parametrize(
    ("planner", "there", "back"),
    in_turn(
        [(shallow, "broadcast", "reduce"), (trees, "broadcast", "reduce"), (trees, "allgather", "reducescatter")], 2
    ),
)
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("mesh:dims=2x3", marks=pytest.mark.slow),
        "line:ranks=4",
        pytest.param("tree:fanouts=2x(2+1)", marks=pytest.mark.slow),
    ],
)
def test_as_fast_backwards(planner: object, there: str, back: str, spec: str) -> None:
    machine = topology(spec)
    forth, turned = (alpha_beta(planned(planner, machine, kind), machine)(100 * MB).seconds for kind in (there, back))
    assert turned == pytest.approx(forth, rel=1e-12)


def test_one_machine_where_all_leads_back() -> None:
    machine = topology("mesh:dims=2x3")
    seen, links = machine_for_dual(machine)
    assert seen is machine
    assert links is not None
    assert (machine.link_src[links] == machine.link_dst).all()


@pytest.mark.slow
def test_all_links_turned_where_a_limit_is_on_one_side() -> None:
    """A limit on what leaves rank 0 is one on what enters it, machine_for_dual."""
    machine = topology("ring:ranks=4")
    out = [link for link, src in enumerate(machine.link_src.tolist()) if src == 0]
    limited = replace(machine, limits=(SharedLimit("card", tuple(out), machine.unit),))
    seen, links = machine_for_dual(limited)
    assert links is None
    assert seen.link_src.tolist() == limited.link_dst.tolist()
    for kind in ("broadcast", "reduce"):
        planned(shallow, limited, kind)


def test_all_links_turned_where_one_leads_one_way() -> None:
    machine = topology("ring:ranks=4")
    once = replace(
        machine, link_src=machine.link_src[1:], link_dst=machine.link_dst[1:], link_type=machine.link_type[1:]
    )
    assert machine_for_dual(once)[1] is None
    planned(trees, once, "reduce")
