"""LogGP with one processor to a rank (`cpu=shared`, `meaning=loggops`): by hand, against a plain simulation, and
against what LogGOPSim said of the same GOAL files (bench/bench_loggops.py)."""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from entries import loggp
from loggp_build import DELTA, FIDELITIES, PER_HOST, delta, figures, graph, topology_of, with_figures
from loggp_plain import Message
from processors_plain import Processors
from quick import examples, in_turn
from small_plans import only
from test_loggp import messages_of, nodes_of

import antiphon
from antiphon.cost import Level, LogGP, Profile
from antiphon.cost.loggp.loggp import simulate_graph
from antiphon.cost.loggp.run import Simulation
from antiphon.errors import Invalid, Unsupported

MEASURED = Path(__file__).parent.parent / "bench" / "results" / "loggops.json"
# ---- by hand: docs/models/loggp.md derives each, and LogGOPSim says the same of these as GOAL files ----


def in_nanoseconds(gamma: float = 1.0) -> Profile:
    """L = 2500, o = 1500, g = 1000, G = 6 per byte, gamma = 1 per byte."""
    level = Level("", L=2500e-9, o_s=1500e-9, o_r=1500e-9, g=1000e-9, G=6e-9, gamma=gamma * 1e-9)
    return Profile(loggp=LogGP((level,), 1, None))


def m(src: int, dst: int, nbytes: int, *deps: int, combined: int = 0) -> Message:
    return Message(src, dst, nbytes, deps, combined)


@dataclass(frozen=True)
class Case:
    """Nanoseconds when each message is done, with ports and with processors. 1001 bytes take 6000."""

    messages: list[Message]
    ports: list[int]
    loggops: list[int]
    options: dict[str, Any]


def case(*messages: Message, ports: list[int], loggops: list[int], **options: Any) -> Case:
    return Case(list(messages), ports, loggops, options)


HAND = {
    # o + L + 6000 + o, either way
    "a message": case(m(0, 1, 1001), ports=[11500], loggops=[11500]),
    # ports: the second waits until the first is done; processors: o is over at 1500, the port is free at 6000 + g
    "one after the other": case(m(0, 1, 1001), m(0, 2, 1001, 0), ports=[11500, 23000], loggops=[11500, 18500]),
    # ports: o of both at once, first bytes at 1500 and 2500; processors: the second begins at 1500
    "two short sends": case(m(0, 1, 1), m(0, 2, 1), ports=[5500, 6500], loggops=[5500, 7000]),
    # first bytes come at 4000. ports: in at 10000; the next from 11000 to 17000, and o. processors: 4000 to 11500 with
    # o in it, then 7500 more
    "two receives": case(m(1, 0, 1001), m(2, 0, 1001), ports=[11500, 18500], loggops=[11500, 19000]),
    # another port helps ports, not processors
    "two receives by two ports": case(
        m(1, 0, 1001), m(2, 0, 1001), ports=[11500, 11500], loggops=[11500, 19000], device_radix=2),
    # rank 0 takes in from 4000 to 11500, so it begins to send again then, not at 7000
    "a send waits while bytes come in": case(
        m(0, 1, 1001), m(1, 0, 1001), m(0, 2, 1001), ports=[11500, 11500, 18500], loggops=[11500, 11500, 23000]),
    # the second has been waiting longer than what the first leaves to combine: 11500 to 19000, then 1001
    "combining waits": case(
        m(1, 0, 1001, combined=1001), m(2, 0, 1001), ports=[12501, 18500], loggops=[20001, 19000]),
    # a rank takes what comes before it sends on: 11500 to 19000, then the third, ready at 11500 but younger
    "who was first": case(
        m(1, 0, 1001), m(2, 0, 1001), m(0, 3, 1001, 0), ports=[11500, 18500, 23000], loggops=[11500, 19000, 30500]),
    # rank 1 takes the message of rank 2 at 11500 only; a long one is over for rank 2 no sooner
    "a long send": case(
        m(0, 1, 1001), m(2, 1, 1001), m(2, 3, 1001, 1), ports=[11500, 18500, 30000], loggops=[11500, 19000, 23000],
        eager=1000),
    "the same, eager": case(
        m(0, 1, 1001), m(2, 1, 1001), m(2, 3, 1001, 1), ports=[11500, 18500, 30000], loggops=[11500, 19000, 18500],
        eager=1001),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND)
def test_by_hand(name: str) -> None:
    told = HAND[name]
    made, here = graph(4, told.messages), topology_of("full:ranks=4")
    known = {"device_radix": told.options.get("device_radix", 1)}
    ports = simulate_graph(made, here, profile=in_nanoseconds(), **known)
    shared = simulate_graph(made, here, profile=in_nanoseconds(), meaning="loggops", **told.options)
    for found, wanted in ((ports, told.ports), (shared, told.loggops)):
        assert isinstance(found, Simulation)
        np.testing.assert_allclose(found.run(1).log.done * 1e9, wanted, rtol=1e-9)
        assert np.isclose(found(1).seconds * 1e9, max(wanted), rtol=1e-9)


# ---- against a plain simulation ----


def compared(seed: int, whole: bool) -> None:
    """Random messages, levels, ports and limits of what is eager: every moment of every message."""
    rng = random.Random(seed)
    nodes = rng.choice([2, 3, 4])
    ranks, sent, eager = PER_HOST * nodes, rng.choice(["left", "received"]), rng.choice(["none", 0, 20, 60])
    told = [replace(one, combined=0) if one.src == one.dst else one for one in messages_of(rng, ranks, whole)]
    given_ = replace(figures(rng, whole), node_radix=None)
    found = simulate_graph(graph(ranks, told), delta(nodes), profile=Profile(loggp=given_), cpu="shared", sent=sent,
                           eager=eager)  # fmt: skip
    assert isinstance(found, Simulation)
    outcome = found.run(1)
    plain = []
    for one in with_figures(told, given_, nodes_of(ranks)):
        own = [i for i in set(one.deps) if sent == "left" and told[i].src == one.src != told[i].dst]
        plain.append(replace(one, deps=sorted(set(one.deps) - set(own)), behind=own))
    limit = float("inf") if eager == "none" else float(eager)
    machine = Processors(plain, ranks, given_.device_radix, limit)
    np.testing.assert_allclose(outcome.log.done, machine.run(), rtol=1e-9, err_msg=f"seed {seed}")
    np.testing.assert_allclose(outcome.log.ready, machine.ready, rtol=1e-9, err_msg=f"seed {seed}")
    assert (outcome.log.ready <= outcome.log.begin).all()
    assert (outcome.log.begin <= outcome.log.landed).all()
    assert (outcome.log.landed <= outcome.log.done).all()
    terms = found(1).terms
    assert np.isclose(sum(terms.values()), outcome.seconds, rtol=1e-9)
    assert min(terms.values()) >= 0


@pytest.mark.parametrize("whole", [False, True])
def test_a_plain_simulation_says_the_same(whole: bool) -> None:
    """Whole figures too, of which many moments are one: whose turn it is then is told as well."""
    for seed in range(examples(80)):
        compared(seed, whole)


# ---- `sent=left` with ports ----


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_what_has_left_is_done_for_its_sender(fidelity: str) -> None:
    """Left at 1500 + 6000; o to 9000, when the port is free (7500 + g): first byte 9000, and 2500 + 6000 + 1500."""
    made, here = graph(4, [m(0, 1, 1001), m(0, 2, 1001, 0)]), topology_of("full:ranks=4")
    for sent, wanted in (("received", 23000), ("left", 19000)):
        found = simulate_graph(made, here, profile=in_nanoseconds(), fidelity=fidelity, sent=sent)(1)
        assert np.isclose(found.seconds * 1e9, wanted, rtol=1e-9)
        assert np.isclose(sum(found.terms.values()), found.seconds, rtol=1e-9)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cpu": "two"}, "option cpu of model loggp: expected overlap or shared, got 'two'"),
        ({"sent": "arrived"}, "option sent of model loggp: expected received or left"),
        ({"meaning": "logp"}, "option meaning of model loggp: expected ports or loggops, got 'logp'"),
        ({"cpu": "shared", "eager": "soon"}, "eager"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], says: str) -> None:
    here = topology_of("full:ranks=4")
    with pytest.raises(Invalid) as told:
        loggp(only("ring", here, "allgather"), here, profile=in_nanoseconds(), **options)
    assert says in str(told.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"meaning": "loggops", "fidelity": "packet"}, "leave out fidelity=packet"),
        ({"meaning": "loggops", "contention": "off"}, "leave out contention=off"),
        ({"cpu": "shared"}, "add node_radix=none"),
        ({"meaning": "loggops", "node_radix": 1}, "add node_radix=none"),
        ({"eager": 1000}, "add cpu=shared"),
        ({"meaning": "loggops", "cpu": "overlap", "eager": 1000}, "add cpu=shared"),
    ],
)
def test_options_that_make_no_sense_together(options: dict[str, Any], says: str) -> None:
    here = delta(2)
    with pytest.raises(Unsupported) as told:
        loggp(only("ring", here, "allgather"), here, profile=DELTA, **options)
    assert says in str(told.value)


# ---- against LogGOPSim ----

ROWS = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("case", in_turn(sorted({json.dumps(row["case"]) for row in ROWS}), 3))
def test_loggopsim_says_the_same(case: str) -> None:
    """To the nanosecond, of a plan as it is exported; where more than 16 operations of a rank are ready together, of
    the simulator with a sort that keeps their order."""
    told = json.loads(case)
    plan = antiphon.plan(told["collective"], told["topology"], planner=told["planner"], options=told["options"])
    for row in ROWS:
        if row["case"] == told:
            model = f"loggp:meaning=loggops,order={told['order']},eager={row['figures']['S']}"
            figures_ = row["figures"]
            o, rest = figures_["o"] * 1e-9, {name: figures_[name] * 1e-9 for name in ("L", "g", "G", "gamma")}
            profile = Profile(loggp=LogGP((Level("", o_s=o, o_r=o, **rest),), 1, None))
            seconds = antiphon.predict(plan, row["nbytes"], model=model, profile=profile)[0]["seconds"]
            assert round(seconds * 1e9, 3) == row["stable"]


def test_loggopsim_as_it_is_says_the_same_of_eight_plans() -> None:
    """Within 0.1 % for ten plans and more, each at three sizes and with two sets of figures; half of them differ with
    ports."""
    plans = {row["case"]["name"]: [] for row in ROWS}
    for row in ROWS:
        if row["simulated"] == row["stable"]:
            plans[row["case"]["name"]].append(row["ports"] / row["simulated"])
    assert len(plans) >= 10
    assert all(len(ratios) >= 6 for ratios in plans.values())
    assert sum(min(ratios) < 0.95 for ratios in plans.values()) >= 5
