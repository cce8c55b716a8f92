"""Ports and NICs that nobody waits for are left out of the LogGP simulation: nothing changes by it, to the last bit."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from loggp_build import DELTA, delta, figures, hosts_of, planned
from quick import examples

from antiphon.core.collective import Collective
from antiphon.core.routes import Routes
from antiphon.core.schedule import Chunks, Schedule
from antiphon.cost import LogGP, Profile
from antiphon.cost.loggp import state as engine
from antiphon.cost.loggp.event_loop import simulate
from antiphon.cost.loggp.loggp import loggp
from antiphon.cost.loggp.run import Simulation

RANKS = 8


def among_neighbours(rng: random.Random) -> Schedule:
    """Messages along a few arrows, each used in many rounds, of few sizes: what a ring does, and what is nearly one. An
    arrow may be there twice, by two routes."""
    turn = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)] if rng.random() < 0.5 else []
    arrows = [
        *turn,
        *(tuple(rng.choices(range(RANKS), k=2)) for _ in range(rng.choice([0, 0, 1, 2, 6]))),
        *turn[: rng.choice([0, 0, 1])],
    ] or [(0, 5)]
    count, op = rng.choice([1, 3]), rng.choice([0, 0, 1])
    share = [rng.randint(1, 30) for _ in range(count)]
    chunks = Chunks(np.zeros(count, np.int32), np.cumsum([0, *share[:-1]]), np.array(share), sum(share))
    rows = [
        (step, rng.randrange(count), src, dst, op, rng.randrange(2), int(src == dst))
        for step in range(8) for src, dst in arrows if rng.random() < 0.8
    ]  # fmt: skip
    step_, chunk, src_, dst_, ops, route, slot = np.array(rows or [(0, 0, 0, 1, 0, 0, 0)], np.int32).T
    made, routes = Collective("allreduce", RANKS), Routes.of([[0], [1]])  # nothing is asked of them but their numbers
    return Schedule(
        made, chunks, step_, chunk, src_, dst_, ops.astype(np.uint8), route, dst_slot=slot, routes=routes
    )  # fmt: skip


def figures_near(rng: random.Random) -> LogGP:
    """Gaps that are as long as what hides them, a little less or more; ports and NICs of each number."""
    found = figures(rng)
    levels = tuple(
        replace(level, g=((min(level.L) + min(level.o_s) + min(level.o_r)) * rng.choice([0.0, 0.5, 1.0, 1.5]),))
        for level in found.levels
    )
    return replace(found, levels=levels, device_radix=rng.choice([1, 2, 4]), node_radix=rng.choice([None, 1, 2, 4]))


def test_what_nobody_waits_for() -> None:
    here, seen = hosts_of(RANKS, 2), Counter[str]()
    for seed in range(examples(400)):
        rng = random.Random(seed)
        made = among_neighbours(rng)
        ready = loggp(made, here, profile=Profile(loggp=figures_near(rng)))
        assert isinstance(ready, Simulation)
        nbytes = int(made.chunks.share.sum())
        cost = engine.Cost(*(np.rint(one * engine.GRAINS) for one in ready.cost(nbytes)[0]))
        log = engine.new_log(len(ready.work))
        grains, last, *_ = simulate(ready.work.graph, cost, None, ready.work.node, ready.ports, ready.nics, log)
        seconds = grains / engine.GRAINS
        found, unlogged = ready.run(nbytes), ready.run(nbytes, False)
        assert (found.seconds, found.last, unlogged.seconds) == (seconds, last, seconds), f"seed {seed}"
        for name in engine.Log._fields:
            known = getattr(log, name)
            told = known / engine.GRAINS if known.dtype == np.float64 else known
            assert np.array_equal(getattr(found.log, name), told), f"seed {seed}: {name}"
        for what, some, left in zip(("ports", "NICs"), (ready.ports, ready.nics), ready.waited_for(cost), strict=True):
            if some:
                seen[f"{what} {'kept' if left else 'left out'}"] += 1
    assert len(seen) == 4
    assert min(seen.values()) >= examples(100), seen


@pytest.mark.parametrize("kind", ["allgather", "allreduce"])
def test_a_ring_has_nothing_to_wait_for(kind: str) -> None:
    """One after another, by far more ports than it takes; two directions between hosts need two NICs."""
    for directions, nics in ((1, 0), (2, 1)):
        made = planned(delta(4), kind, "ring", directions=directions)
        ready = loggp(made, delta(4), profile=DELTA)
        assert isinstance(ready, Simulation)
        assert ready.waited_for(ready.cost(2**20)[0]) == (0, nics)
