"""The LogGP simulation against a plain one, against closed forms, and against what must hold of any simulation."""

import heapq
import random
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import oracle
import pytest
from entries import loggp
from generate import case as random_case
from hypothesis import strategies as st
from loggp_build import (
    FIDELITIES,
    PER_HOST,
    delta,
    figures,
    held_to_account,
    level_of,
    placed,
    plain,
    simulation,
)
from loggp_plain import Machine, Message
from quick import examples

from antiphon.core.collective import Collective
from antiphon.core.schedule import REDUCE, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import expand
from antiphon.cost import Level, LogGP, Profile
from antiphon.cost.loggp.heap import new_queue, put, take
from antiphon.cost.loggp.run import Simulation

SEEDS = st.integers(0, 2**32 - 1)


def messages_of(rng: random.Random, ranks: int, whole: bool = False) -> list[Message]:
    """Up to 40 messages that wait for some before them, at times most of them for one rank."""
    count, span, hot = rng.randint(1, 40), rng.choice([ranks, ranks, 6]), rng.random() < 0.4
    sizes = [rng.randint(0, 40) for _ in range(count)] if whole else rng.sample(range(90), count)
    out = []
    for i, nbytes in enumerate(sizes):
        src, dst = rng.sample(range(span), 2)
        if hot and src != 1 and rng.random() < 0.6:
            dst = 1
        combined = rng.choice([0, nbytes, rng.randint(0, nbytes)])
        deps = rng.sample(range(i), min(i, rng.choice([0, 0, 0, 1, 1, 2, 3])))
        if rng.random() < 0.05:
            dst = src
        out.append(Message(src, dst, nbytes, deps, combined))
    return out


def nodes_of(ranks: int) -> list[int]:
    return [rank // PER_HOST for rank in range(ranks)]


# ---- random graphs of messages ----


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_plain_simulation_says_the_same(fidelity: str) -> None:
    """Message by message; no two things happen at one moment by chance, so order there cannot matter."""
    for seed in range(examples(72)):
        rng = random.Random(seed)
        nodes = rng.choice([2, 3, 4])
        told, given_ = messages_of(rng, PER_HOST * nodes), figures(rng)
        found = simulation(told, given_, fidelity, nodes).run(1)
        held_to_account(found, told, fidelity)
        wanted = plain(told, given_, fidelity, nodes_of(PER_HOST * nodes))
        np.testing.assert_allclose(found.log.ready, wanted.ready, rtol=1e-9, err_msg=f"seed {seed}: ready")
        np.testing.assert_allclose(found.log.done, wanted.done, rtol=1e-9, err_msg=f"seed {seed}: done")


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_what_holds_of_ties_too(fidelity: str) -> None:
    """Whole figures: many things at one moment. Whatever their order, nothing is lost, and no one is early."""
    for seed in range(examples(48)):
        rng = random.Random(seed)
        told, given_ = messages_of(rng, 16, whole=True), figures(rng, whole=True)
        ready = simulation(told, given_, fidelity)
        found = ready.run(1)
        held_to_account(found, told, fidelity)
        free = simulation([replace(one, combined=0) for one in told], given_, fidelity, contention="off").run(1)
        assert (found.log.done >= free.log.done).all()
        terms = ready(1).terms
        assert np.isclose(sum(terms.values()), found.seconds, rtol=1e-9)
        assert min(terms.values()) >= 0
        path = ready.path(found)
        assert not told[path[0]].deps
        assert all(a in told[b].deps for a, b in pairwise(path.tolist()))


def test_without_limits_every_message_takes_what_it_takes() -> None:
    """o_s + G (m - 1) + L + o_r after the last that it waited for, at both fidelities."""
    for seed in range(60):
        rng = random.Random(seed)
        told, given_ = messages_of(rng, 16), figures(rng)
        told = [replace(one, combined=0) for one in told]
        done: list[float] = []
        for one in told:
            level = given_.levels[one.src // PER_HOST != one.dst // PER_HOST].at(one.nbytes)
            alone = level["o_s"] + level["G"] * max(one.nbytes - 1, 0) + level["L"] + level["o_r"]
            done.append(max((done[i] for i in one.deps), default=0.0) + float(alone if one.src != one.dst else 0.0))
        for fidelity in FIDELITIES:
            found = simulation(told, given_, fidelity, contention="off").run(1)
            np.testing.assert_allclose(found.log.done, done, rtol=1e-9)


def test_the_queue_is_fair() -> None:
    """What is next, and among equal times what was put in first, however much came in between."""
    for seed in range(40):
        rng = random.Random(seed)
        most, moments = rng.choice([1, 5, 300]), rng.choice([1, 3, 30, 10**6])
        heap, lists = new_queue(most)
        idle, waiting, now, number = list(range(most)), [], 0.0, 0
        for _ in range(1500):
            if idle and rng.random() < 0.55:
                message, time = idle.pop(rng.randrange(len(idle))), now + rng.randint(0, moments)
                put(heap, lists, time, message)
                heapq.heappush(waiting, (time, number, message))
                number += 1
            else:
                time, message = take(heap, lists)
                if not waiting:
                    assert message == -1
                    continue
                assert (time, message) == (waiting[0][0], waiting[0][2])
                now = heapq.heappop(waiting)[0]
                idle.append(message)


# ---- schedules ----


class Derived:
    """The messages of a schedule and what each waits for, straight from docs/models/loggp.md."""

    def __init__(self, schedule: Schedule, nbytes: int, given: LogGP, topology: Topology, order: str) -> None:
        schedule = expand(schedule)
        grouped: dict[tuple[int, ...], list[oracle.Row]] = defaultdict(list)
        for row in oracle.rows_of(schedule):
            grouped[row.step, row.src, row.dst, row.route].append(row)
        ranks = schedule.collective.ranks
        self.keys = sorted(grouped, key=lambda key: (key[0], (key[2] - key[1]) % ranks, key[1], key[3]))
        weights, chunks = schedule.collective.weights, schedule.chunks
        total = chunks.denominator * schedule.collective.buffer_weight

        def size(rows: list[oracle.Row]) -> float:
            return float(sum(
                (Fraction(int(chunks.share[r.chunk]) * int(weights[chunks.block[r.chunk]]) * nbytes, total)
                 for r in rows), start=Fraction(0)))  # fmt: skip

        groups = given.groups(topology)
        self.level = {key: int(level_of(groups, np.array([key[1]]), np.array([key[2]]))[0]) for key in self.keys}
        for key in self.keys:
            if key[1] == key[2]:
                self.level[key] = -1
        self.cells(grouped)
        self.messages = []
        for key in self.keys:
            rows = grouped[key]
            deps, behind = self.waits(key, order)
            level = self.level[key]
            taken = given.levels[max(level, 0)].at(size(rows))
            self.messages.append(Message(
                key[1], key[2], size(rows), sorted(deps), size([r for r in rows if r.op == REDUCE]),
                **{name: float(value) for name, value in taken.items()}, behind=sorted(behind)))  # fmt: skip

    def cells(self, grouped: dict[tuple[int, ...], list[oracle.Row]]) -> None:
        """Per message the cells it reads; per cell the messages that read or write it, with their steps."""
        self.reads = {key: {(r.chunk, r.src, r.src_slot) for r in grouped[key]} for key in self.keys}
        self.readers: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        self.writers: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for i, key in enumerate(self.keys):
            for row in grouped[key]:
                self.readers[row.chunk, row.src, row.src_slot].append((key[0], i))
                self.writers[row.chunk, row.dst, row.dst_slot].append((key[0], i))

    def waits(self, key: tuple[int, ...], order: str) -> tuple[set[int], set[int]]:
        """The messages that must be done, and those of which the last byte must have left."""
        deps: set[int] = set()
        behind: set[int] = set()
        step, src = key[0], key[1]
        if order in ("rounds", "streams"):
            for i, other in enumerate(self.keys):
                same = order == "rounds" or self.level[other] == self.level[key]
                if other[0] < step and src in other[1:3] and same:
                    deps.add(i)
        if order in ("streams", "data"):
            for cell in self.reads[key]:
                written = [(s, i) for s, i in self.writers[cell] if s < step]
                deps |= {i for _, i in written}
                last = max((s for s, _ in written), default=-1)
                # the value that is read came into being in step `last`: those that sent the value before it did so
                # in that step at the latest
                behind |= {i for s, i in self.readers[cell] if s <= last}
        return deps, behind


ORDERS = ("rounds", "streams", "data")


def ends(schedule: Schedule, here: Topology, given_: LogGP, fidelity: str, order: str, nbytes: int) -> Any:
    """When the messages are done, in order of time: as simulated, and plainly."""
    made = loggp(schedule, here, profile=Profile(loggp=given_), fidelity=fidelity, order=order)
    assert isinstance(made, Simulation)
    found = made.run(nbytes)
    told = Derived(schedule, nbytes, given_, here, order).messages
    held_to_account(found, told, "any")
    packet = given_.packet if fidelity == "packet" else None
    wanted = Machine(told, given_.nodes(here).tolist(), given_.device_radix, given_.node_radix, packet).run()
    return sorted(found.log.done.tolist()), sorted(float(moment) for moment in wanted)


@pytest.mark.parametrize("order", ORDERS)
def test_random_schedules_wait_for_what_they_must(order: str) -> None:
    """Right ones, of any sizes, routes, slots and pieces, on any machine; much happens at one moment here, so nothing
    contends."""
    messages = 0
    for seed in range(examples(25)):
        rng = random.Random(seed)
        one = random_case(seed)
        calm_ = tuple(replace(level, gamma=0) for level in figures(rng).levels)
        here, given_ = placed(one.topology, rng.choice([1, 2, 3])), LogGP(calm_, None, None)
        found, wanted = ends(one.schedule, here, given_, "message", order, rng.randint(1, 400))
        np.testing.assert_allclose(found, wanted, rtol=1e-9, err_msg=f"seed {seed}")
        messages += len(wanted)
    assert messages > 100


def test_a_long_packet_finds_the_server_free_that_was_free_when_it_came() -> None:
    """Two messages into a node of two NIC servers: nobody waits, whichever packet is in first with its last byte."""
    slow, fast = Message(0, 8, 8, o_s=1, G=4), Message(4, 8, 8, G=1)
    for told in ([slow, fast], [fast, slow]):
        assert Machine(told, nodes_of(12), 2, 2, 4).run() == [1 + 28 if one is slow else 7 for one in told]
    for seed in (2218, 7666, 7693, 7867, 618693709):  # such messages, some among others
        rng = random.Random(seed)
        given_, figures_ = messages_of(rng, 16), figures(rng)
        found = simulation(given_, figures_, "packet").run(1)
        wanted = plain(given_, figures_, "packet", nodes_of(16)).done
        np.testing.assert_allclose(found.log.done, wanted, rtol=1e-9, err_msg=f"seed {seed}")


def test_rounding_makes_no_packets() -> None:
    """3 parts of 5 of 20480 bytes are three packets, though 3 * 0.2 * 20480 is more than 12288 in floats."""
    made = Collective("allreduce", 8)
    rows = [(0, chunk, 0, 4) for chunk in range(3)] + [(0, chunk, 1, 5) for chunk in range(3)]
    step, chunk, src, dst = np.array(rows, np.int32).T
    several = Schedule(made, cut(made, 5), step, chunk, src, dst, np.zeros(6, np.uint8))
    given_ = Profile(loggp=LogGP((Level("", G=1),)))
    found = loggp(several, delta(2), profile=given_, fidelity="packet")(20480)
    # six packets, and the last ends a byte before the NIC's turn does
    assert np.isclose(found.seconds, 6 * 4096 - 1, rtol=1e-9)
