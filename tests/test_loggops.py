"""LogGP with one processor to a rank (`cpu=shared`, `meaning=loggops`): by hand, against a plain simulation, and
against what LogGOPSim said of the same GOAL files (bench/bench_loggops.py)."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loggp_build import DELTA, FIDELITIES, PER_HOST, delta, figures, graph, planned, topology_of, with_figures
from loggp_plain import Message
from processors_plain import Processors
from test_loggp import messages_of, nodes_of

import antiphon
from antiphon.cost import Level, LogGP, Profile
from antiphon.cost._loggp_run import Simulation
from antiphon.cost.loggp import loggp, simulate_graph
from antiphon.errors import Invalid, Unsupported

MEASURED = Path(__file__).parent.parent / "bench" / "results" / "loggops.json"
SHARED = {"cpu": "shared", "node_radix": "none"}

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
    for seed in range(80):
        compared(seed, whole)


@pytest.mark.slow
@settings(max_examples=1500)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_a_plain_simulation_says_the_same_often(seed: int, whole: bool) -> None:
    compared(seed, whole)
