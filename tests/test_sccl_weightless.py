"""Blocks of weight 0 have no data: no chunk, no transfer, no part in S, R and C, and proofs hold all the same."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from entries import sccl
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

import antiphon
from antiphon.core.bounds import bound
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.interpret import interpret
from antiphon.core.loads import claims
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import load_plan
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.errors import Infeasible, Unsupported
from antiphon.planners.synth.task import cut_by_weight
from antiphon.select.proofs import recheck_certificate
from antiphon.topologies import topology

KINDS = ("allgather", "scatter", "alltoall", "gather", "broadcast", "reducescatter")
MACHINES = ("ring:ranks=4", "line:ranks=4", "star:ranks=3", "full:ranks=3", "ring:ranks=5")


@st.composite
def problems(draw: st.DrawFn) -> tuple[Topology, Collective]:
    machine = topology(draw(st.sampled_from(MACHINES)))
    kind = draw(st.sampled_from(KINDS))
    ranks = draw(st.lists(st.integers(0, machine.ranks - 1), min_size=2, max_size=machine.ranks, unique=True))
    count = draw(st.integers(1, 2)) if kind in ROOTED else 0
    plain = Collective(kind, machine.ranks, tuple(ranks), tuple(ranks[:count]))
    weights = draw(st.lists(st.integers(0, 2), min_size=plain.blocks, max_size=plain.blocks))
    return machine, Collective(kind, machine.ranks, plain.members, plain.roots, np.array(weights))


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(problems())
def test_what_has_no_data_has_no_part(problem: tuple[Topology, Collective]) -> None:
    """Claims are those of the certificate, which holds; the fewest steps are those of the bound."""
    machine, collective = problem
    least = bound(machine, collective)
    if not least.latency_steps:
        with pytest.raises(Unsupported, match="no data have to move"):
            next(sccl(Request(machine, collective), cache=False))
        return
    made = list(sccl(Request(machine, collective), k=1, steps=least.latency_steps + 1, cache=False))
    stated = [checked(schedule, machine, least.inverse) for schedule in made]
    if stated:
        first = stated[0]
        chunks, steps, rounds = first["chunks"], first["steps"], max(first["rounds"], first["steps"])
        (again,) = sccl(Request(machine, collective), chunks=chunks, steps=steps, rounds=rounds, cache=False)
        assert checked(again, machine, least.inverse)["chunks"] == chunks


def checked(schedule: Schedule, machine: Topology, inverse: Fraction) -> Mapping[str, Any]:
    """Right, proved, without a trace of what has no data, and with the right outcome when it is run."""
    collective = schedule.collective
    verify(schedule, machine).or_raise()
    assert recheck_certificate(schedule, machine) is not None
    stated = claims(schedule, machine)
    assert stated["steps"] == schedule.provenance["certificate"]["steps"]
    assert stated["chunks"] % collective.input_weight == 0
    assert stated["rounds"] >= inverse * stated["chunks"]
    assert np.all(collective.weights[schedule.chunks.block] > 0)
    return stated


def test_a_far_rank_without_data_costs_no_step() -> None:
    """On a line 0-1-2-3 nobody but 1 and 2 has anything: two steps, as the bound says, not three."""
    machine = topology("line:ranks=4")
    uneven = Collective("allgather", 4, weights=np.array([0, 1, 1, 0]))
    (made,) = sccl(Request(machine, uneven), k=0, steps=2, cache=False)
    assert checked(made, machine, bound(machine, uneven).inverse)["steps"] == 2
    assert {int(b) for b in made.chunks.block} == {1, 2}
    with pytest.raises(Infeasible, match="no algorithm with S = 1"):
        next(sccl(Request(machine, uneven), chunks=1, steps=1, rounds=1, cache=False))


def test_chunks_count_what_has_data() -> None:
    """Of a root's eight blocks two have data, of weight 1 and 3: C is a multiple of 4, and what arrives is right."""
    machine = topology("dgx1v")
    uneven = Collective("scatter", 8, roots=(0,), weights=np.array([0, 1, 0, 0, 0, 0, 0, 3]))
    (made,) = sccl(Request(machine, uneven), chunks=4, steps=2, rounds=2, cache=False)
    assert checked(made, machine, bound(machine, uneven).inverse)["chunks"] == 4
    data = np.arange(20, dtype=np.int64)
    out = interpret(made, [data if rank == 0 else None for rank in range(8)])
    assert [part.tolist() for part in out] == [[], [0, 1, 2, 3, 4], [], [], [], [], [], list(range(5, 20))]


def test_plans_of_such_collectives_are_written_read_and_proved(tmp_path: Path) -> None:
    machine = topology("ring:ranks=4")
    weights = np.array([1, 0, 2, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 2])
    found = antiphon.frontier.find(Collective("alltoall", 4, weights=weights), machine, k=2, steps=3)
    assert found.points
    found.save(tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    assert antiphon.verify(plan, proof=True)


def test_weights_without_a_common_denominator_are_refused() -> None:
    primes = [101, 103, 107, 109, 113, 127, 131, 137, 139, 149]
    instance: Any = SimpleNamespace(collective=Collective("allgather", len(primes), weights=np.array(primes)))
    with pytest.raises(Unsupported, match="no common denominator"):
        cut_by_weight(instance, 1)
