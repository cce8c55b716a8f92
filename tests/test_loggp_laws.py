"""What must hold of the LogGP simulation: closed forms, laws, what is told, and what is refused."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from entries import loggp
from generate import case as random_case
from hypothesis import given, settings
from hypothesis import strategies as st
from loggp_build import (
    DELTA,
    FIDELITIES,
    delta,
    figures,
    graph,
    hosts_of,
    placed,
    simulation,
)
from loggp_plain import Message
from quick import examples
from small_plans import only

from antiphon.core.collective import Collective
from antiphon.core.schedule import Schedule, cut
from antiphon.cost import Level, LogGP, Profile, prepare, simulate
from antiphon.cost.loggp.forms import kring, recmult
from antiphon.cost.loggp.loggp import simulate_graph
from antiphon.cost.loggp.run import Simulation
from antiphon.errors import Invalid
from antiphon.select import plan

SEEDS = st.integers(0, 2**32 - 1)

# ---- closed forms ----

KRING = [(16, 4), (64, 4), (64, 8), (12, 3), (64, 64)]
RECMULT = [(16, 2), (64, 4), (64, 8), (81, 3)]


def calm(rng: random.Random) -> LogGP:
    """Figures of which the gap is always hidden: g <= o_s + L + o_r."""

    def level(within: str) -> Level:
        L, o_s, o_r = (rng.uniform(1e-6, 1e-5) for _ in range(3))
        g = rng.uniform(0, 1) * (L + o_s + o_r)
        return Level(within, L=L, o_s=o_s, o_r=o_r, g=g, G=rng.uniform(1e-12, 1e-10), gamma=rng.uniform(0, 1e-11))

    return LogGP((level("host"), level("")))


def kring_agrees(p: int, k: int, m: int, given_: LogGP, kind: str, overlap: bool = False) -> None:
    here = hosts_of(p, k)
    made = only("kring", here, kind, k=k, overlap=overlap)
    order = "streams" if overlap else "rounds"
    found = loggp(made, here, profile=Profile(loggp=given_), contention="off", order=order)(m * p).seconds
    inner, outer = given_.levels
    wanted = kring(p, k, m, outer, inner, collective=kind, overlap=overlap)
    assert np.isclose(found, wanted, rtol=1e-9), (p, k, m, kind)


def recmult_agrees(p: int, k: int, m: int, given_: LogGP, kind: str) -> None:
    here = hosts_of(p, p)
    made = only("recmult", here, kind, k=k)
    total = m * p if kind == "allgather" else m
    alone = replace(given_, levels=given_.levels[-1:])
    found = loggp(made, here, profile=Profile(loggp=alone), contention="off")(total).seconds
    assert np.isclose(found, recmult(p, k, m, given_.levels[-1], collective=kind), rtol=1e-9), (p, k, m, kind)


@pytest.mark.parametrize("kind", ["allgather", "allreduce"])
def test_without_contention_the_closed_forms_hold(kind: str) -> None:
    for number, (p, k) in enumerate(KRING):
        kring_agrees(p, k, 10_000 * number + 1, calm(random.Random(number)), kind)
    for number, (p, k) in enumerate(RECMULT):
        recmult_agrees(p, k, 10_000 * number + 1, calm(random.Random(number)), kind)


@settings(max_examples=examples(15))
@given(SEEDS)
def test_closed_forms_of_other_shapes(seed: int) -> None:
    rng = random.Random(seed)
    kind, m = rng.choice(["allgather", "allreduce"]), rng.randint(1, 100_000)
    k = rng.randint(2, 6)
    kring_agrees(k * rng.randint(1, 5), k, m, calm(rng), kind)
    k = rng.randint(2, 5)
    recmult_agrees(k ** rng.randint(1, 2 if k > 3 else 3), k, m, calm(rng), kind)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_the_gap_binds_as_the_form_says(fidelity: str) -> None:
    """With a port for each of the k - 1 that a rank sends at once, and no NICs to share: gap=True."""
    level = Level("", L=1e-6, o_s=1e-6, o_r=1e-6, g=2e-5, G=1e-10)
    for p, k in RECMULT[:3]:
        here = hosts_of(p, p)
        made, m = only("recmult", here, "allgather", k=k), 4000
        given_ = LogGP((level,), k - 1, None, packet=2**40)  # an endless packet: heads are whole messages
        found = loggp(made, here, profile=Profile(loggp=given_), fidelity=fidelity)(m * p).seconds
        assert np.isclose(found, recmult(p, k, m, level), rtol=1e-9)
        assert found > recmult(p, k, m, level, gap=False)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_trace_shows_every_message(fidelity: str) -> None:
    made = plan("allgather", delta(2), planner="kring")
    row, trace = simulate(made, "1MB", model=f"loggp:fidelity={fidelity}", profile=DELTA, trace=True)
    assert trace is not None
    events = json.loads(trace)["traceEvents"]
    sent, received = ([e for e in events if e.get("cat") == kind] for kind in ("send", "receive"))
    rows = {(int(s), int(a), int(b)) for s, a, b in zip(*(getattr(made.at(10**6).schedule, c).tolist()
            for c in ("step", "src", "dst")), strict=True)}  # fmt: skip
    told = {(e["args"]["step"], e["args"]["src"], e["args"]["dst"]) for e in sent}
    assert told == rows
    assert len(sent) == len(received) == len(rows)
    assert np.isclose(max(e["ts"] + e["dur"] for e in received), row["seconds"] * 1e6, atol=1e-3)
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in sent)


def test_the_fast_pass_on_random_schedules() -> None:
    for seed in range(40):
        one = random_case(seed)
        calmer = [replace(level, gamma=0) for level in figures(random.Random(seed)).levels]
        made = loggp(one.schedule, placed(one.topology, 2), profile=Profile(loggp=LogGP(calmer)), contention="off")
        assert isinstance(made, Simulation)
        assert made.run(97, record=False).seconds == made.run(97).seconds


# ---- what must hold ----


def slower(given_: LogGP, name: str, *factors: float) -> LogGP:
    scaled = [tuple(f * v for v in getattr(level, name)) for f, level in zip(factors, given_.levels, strict=True)]
    levels = (replace(level, **{name: values}) for level, values in zip(given_.levels, scaled, strict=True))
    return replace(given_, levels=tuple(levels))


ALIKE = LogGP((Level("host", L=10, o_s=5, o_r=6, g=8, G=1), Level("", L=100, o_s=5, o_r=6, g=8, G=10)), packet=4)


def test_a_known_anomaly_of_overheads() -> None:
    """As in any schedule by list (Graham): rank 7 sends near and far by one port. Near first: first bytes at 5 and 16,
    far done at 16 + 30 + 100 + 6. With a greater o_s near it asks later, far goes first, and all is done sooner."""
    told = [Message(7, 5, 4), Message(7, 2, 4)]
    assert simulation(told, ALIKE, "message", 2)(1).seconds == 152
    assert simulation(told, slower(ALIKE, "o_s", 2, 1), "message", 2)(1).seconds == 141


def test_a_known_anomaly_of_ports() -> None:
    """Two ports: rank 6 sends both at once, so at the NIC 5 to 3 comes third, and last; 2 to 7 waits for that in vain.
    One port: 5 to 3 is second, is done 40 sooner, and what waits for it too."""
    told = [Message(6, 3, 8), Message(6, 2, 4), Message(5, 3, 8), Message(2, 7, 4, (2,))]
    one, two = (simulation(told, replace(ALIKE, device_radix=radix), "message", 2) for radix in (1, 2))
    assert one.run(1).log.done.tolist() == [181, 301, 261, 402]
    assert two.run(1).log.done.tolist() == [181, 221, 301, 442]


# ---- traces, profiles, errors ----


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_the_bottleneck_is_the_end_that_lacks_ports(fidelity: str) -> None:
    for kind, end in (("scatter", "rank 0: sends to more"), ("gather", "rank 0: receives from more")):
        made, model = plan(kind, delta(2), planner="direct"), f"loggp:fidelity={fidelity},device_radix=1"
        assert prepare(model, made.at(8).schedule, made.topology, profile=DELTA)(8).bottleneck.startswith(end)


WRONG = [
    (lambda: Level("host", L=-1), "L: expected figures from 0"),
    (lambda: Level("host", o_s=float("nan")), "o_s"),
    (lambda: Level("host", o_r=float("inf")), "o_r"),
    (lambda: Level("host", g="x"), "g"),
    (lambda: Level("host", (1, 2), G=(1e-9, 1e-9, 1e-9)), "G: 3 figures for 2 sizes"),
    (lambda: Level("host", (2, 1)), "ascending"),
    (lambda: Level("host", (1, 1)), "ascending"),
    (lambda: Level("host", ()), "sizes"),
    (lambda: LogGP(()), "levels"),
    (lambda: LogGP((Level("host"), Level("host"))), "once"),
    (lambda: LogGP((Level(""), Level("host"))), "last level"),
    (lambda: LogGP((Level(),), device_radix=0), "device_radix"),
    (lambda: LogGP((Level(),), node_radix=1.5), "node_radix"),
    (lambda: LogGP((Level(),), device_radix=2**17), "no limit"),
    (lambda: LogGP((Level(),), packet=0), "packet"),
    (lambda: LogGP((Level(),), packet=None), "packet"),
    (lambda: Profile(loggp=1), "loggp"),
]


@pytest.mark.parametrize(("make", "said"), WRONG)
def test_wrong_figures(make: Any, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        make()


def test_wrong_wishes() -> None:
    here = delta(2)
    made = only("ring", here, "allgather")
    for model, said in (
        ("loggp:fidelity=fine", "message or packet"),
        ("loggp:order=any", "rounds, streams, data"),
        ("loggp:contention=no", "on or off"),
        ("loggp:device_radix=0", "device_radix"),
        ("loggp:node_radix=many", "node_radix"),
        ("loggp:fidelity", "key=value"),
        ("loggp:fidelity=packet,fidelity=packet", "twice"),
    ):
        with pytest.raises(Invalid, match=said):
            prepare(model, made, here, profile=DELTA)
    with pytest.raises(Invalid, match='share none; add a level without "within"'):
        loggp(made, here, profile=Profile(loggp=LogGP((Level("host"),))))
    few = graph(4, [Message(0, 1, 1)])
    with pytest.raises(Invalid, match="no LogGP figures"):
        simulate_graph(few, here, profile=Profile())
    with pytest.raises(Invalid, match="messages among 16 ranks"):
        simulate_graph(graph(16, [Message(0, 1, 1)]), here, profile=DELTA)


# ---- small and great ----


def test_nothing_to_do() -> None:
    here = delta(2)
    made = Collective("allgather", 8)
    empty = Schedule(made, cut(made, 1), *(np.zeros(0, np.int32) for _ in range(5)))
    for model in ("loggp", "loggp:fidelity=packet", "loggp:order=data", "loggp:order=streams", "loggp:contention=off"):
        for profile in (DELTA, None):
            found = prepare(model, empty, here, profile=profile)(1000)
            assert found.seconds == 0
            assert len(found.critical_path) == 0


def test_great_sizes_and_figures() -> None:
    here = delta(2)
    made = only("ring", here, "allgather")
    most = Profile(loggp=LogGP((Level("", L=3600, o_s=3600, o_r=3600, g=3600, G=3600),)))
    found = loggp(made, here, profile=most)(2**50)
    assert np.isfinite(found.seconds)
    assert np.isclose(sum(found.terms.values()), found.seconds)
    assert loggp(made, here, profile=Profile(loggp=LogGP((Level(),))))(2**50).seconds == 0


@pytest.mark.slow
def test_a_great_schedule() -> None:
    """A million messages and more: just the sum is told; packets and whole messages go through."""
    here = hosts_of(1100, 4)
    made = loggp(only("ring", here, "allgather"), here, profile=DELTA)
    found = made(1100 * 1000)
    assert found.terms == {"messages": found.seconds}
    assert len(found.critical_path) == 1099


def test_many_pieces_are_made_fewer() -> None:
    here = delta(2)
    made = replace(only("ring", here, "allgather"), pieces=2**20)
    assert "approximate" in loggp(made, here, profile=DELTA)(10**9).note


TINY = """
from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.cost import prepare
from antiphon.cost.loggp.compiled import numba
from antiphon.registry import table
from antiphon.topologies import topology
here = topology("delta:nodes=2")
made = next(iter(table("planner")["kring"].load()(Request(here, Collective("allreduce", 8)), k=4)))
models = ["loggp", "loggp:fidelity=packet", "loggp:order=streams", "loggp:order=data", "loggp:contention=off",
          "loggp:meaning=loggops"]
out = [prepare(model, made, here, profile="loggp-delta")(nbytes) for model in models for nbytes in (100, 60000)]
told = [[float(one.seconds), list(map(float, one.terms.values())), [list(map(int, h)) for h in one.critical_path]]
        for one in out]
"""
BLOCKED = 'import json, sys\nsys.modules["numba"] = None\n' + TINY + "print(json.dumps([numba is not None, told]))"


@pytest.mark.slow
def test_without_numba_the_same_comes_out() -> None:
    """Bit by bit."""
    here: dict[str, Any] = {}
    exec(TINY, here)
    ran = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == [False, here["told"]]
