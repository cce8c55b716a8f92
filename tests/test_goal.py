"""GOAL: what is written is read by a reader of its own, matched, and replayed."""

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from entries import goal
from generate import Case, cases
from goal_read import Key, Operation, partner, read
from hypothesis import given, settings
from message_graphs import message_graph
from quick import examples

from antiphon.core.messages import messages as messages_of
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.transform import expand
from antiphon.errors import Invalid
from antiphon.select import plan


def replay(found: dict[Key, Operation], o: int = 0, L: int = 0, G: int = 0) -> dict[Key, int]:
    """When every operation is done where nothing is contended for: o + L + (size - 1) * G + o for a message."""
    of, done = partner(found), dict[Key, int]()

    def waits(key: Key) -> list[Key]:
        return [*found[key].needs, *([of[key]] if key in of else [])]

    ready = {key: len(waits(key)) for key in found}
    readers: dict[Key, list[Key]] = defaultdict(list)
    for key in found:
        for other in waits(key):
            readers[other].append(key)
    todo = [key for key, count in ready.items() if not count]
    for key in todo:
        op = found[key]
        start = max([done[other] for other in op.needs], default=0)
        if op.way == "recv":
            done[key] = max(start, done[of[key]] + L + (op.size - 1) * G) + o
        else:
            done[key] = start + (op.size if op.way == "calc" else o)
        for other in readers[key]:
            ready[other] -= 1
            if not ready[other]:
                todo.append(other)
    assert len(done) == len(found), "operations wait for each other"
    return done


def text_of(made: Plan, **options: Any) -> str:
    return b"".join(goal(made, **options)["schedule.goal"]).decode()


def test_a_small_one_to_the_letter() -> None:
    made = plan("reduce", "line:ranks=3", planner="relay", options={"pieces": 1})
    assert text_of(made, nbytes=100, gamma=1e-9) == (
        "// reduce of 100 bytes on 3 ranks, order data\n// 2 messages\nnum_ranks 3\n"
        "\nrank 0 {\nl1: recv 100b from 1 tag 1\nl2: calc 100\nl2 requires l1\n}\n"
        "\nrank 1 {\nl1: recv 100b from 2 tag 0\nl2: calc 100\nl2 requires l1\n"
        "l3: send 100b to 0 tag 1\nl3 requires l2\n}\n"
        "\nrank 2 {\nl1: send 100b to 1 tag 0\n}\n"
    )


@given(cases())
@settings(max_examples=examples(60))
@pytest.mark.parametrize("order", ["data", "rounds"])
def test_sends_and_receives_match_and_bytes_are_conserved(order: str, case: Case) -> None:
    made = Plan.of(case.topology, case.schedule)
    messages = messages_of(expand(case.schedule))
    nbytes, combined = messages.nbytes(50000)
    ranks, found = read(text_of(made, nbytes=50000, order=order, gamma=1e-9, nics=3))
    assert ranks == case.topology.ranks
    wire = messages.src != messages.dst
    sizes = sorted(np.maximum(nbytes[wire], 1).tolist())
    assert sorted(op.size for op in found.values() if op.way == "send") == sizes
    assert sum(op.size for op in found.values() if op.way == "calc") == int(combined.sum())
    assert all(op.nic < 3 for op in found.values())
    replay(found)


@given(cases())
@settings(max_examples=examples(40))
@pytest.mark.parametrize("order", ["data", "rounds"])
def test_everybody_waits_for_exactly_what_the_schedule_says(order: str, case: Case) -> None:
    """Who can have heard of whom: along paths in the file, and along those of the graph of messages."""
    _, found = read(text_of(Plan.of(case.topology, case.schedule), nbytes=50000, order=order))
    graph = message_graph(case.schedule, 50000, order, "left" if order == "rounds" else "received")
    theirs = reached_in_file(found)
    name: list[Key | None] = []
    tags: dict[tuple[int, int, int], Key] = {
        (rank, op.peer, op.tag): (rank, label) for (rank, label), op in found.items() if op.way == "send"
    }
    for number, (src, dst) in enumerate(zip(graph.src.tolist(), graph.dst.tolist(), strict=True)):
        name.append(None if src == dst else tags[src, dst, number])
    heard: list[set[int]] = []
    for i, (a, b) in enumerate(itertools.pairwise(graph.deps_ptr.tolist())):
        heard.append(set().union(*(heard[j] | {j} for j in graph.deps[a:b].tolist())))
        own = name[i]
        if own is not None:
            assert {name[j] for j in heard[i]} - {None} == theirs[own]


def reached_in_file(found: dict[Key, Operation]) -> dict[Key, set[Key]]:
    """Per send the sends that must have begun before it."""
    of = partner(found)
    out: dict[Key, set[Key]] = {}

    def before(key: Key) -> set[Key]:
        if key not in out:
            others = [*found[key].needs, *([of[key]] if key in of else [])]
            out[key] = set()
            for other in others:
                out[key] |= before(other) | ({other} if found[other].way == "send" else set())
        return out[key]

    for key in found:
        before(key)
    return {key: value for key, value in out.items() if found[key].way == "send"}


@pytest.mark.parametrize("order", ["data", "rounds"])
def test_recursive_doubling_takes_what_it_should(order: str) -> None:
    made = plan("allreduce", "full:ranks=8", planner="recursive-doubling")
    _, found = read(text_of(made, nbytes=1000, gamma=1e-9, order=order))
    one = 7 + 100 + 999 * 3 + 7 + 1000
    assert max(replay(found, 7, 100, 3).values()) == 3 * one


def all_to_all(times: int, ranks: int) -> Plan:
    made = plan("allreduce", f"full:ranks={ranks}", planner="direct")
    schedule = made.entries[0].schedule
    columns = {name: np.tile(column, times) for name, column in schedule.columns().items() if name != "route"}
    columns["step"] = np.repeat(np.arange(times), schedule.transfers)
    return Plan.of(made.topology, Schedule(schedule.collective, schedule.chunks, **columns))


@pytest.mark.parametrize("order", ["data", "rounds"])
def test_many_that_wait_for_many_meet_in_one_operation(order: str) -> None:
    text = text_of(all_to_all(3, 20), nbytes=1000, order=order)
    assert text.count("\n") < 20 * (3 * 19 * 2 * 3 + 10)  # without joins it is 19 * 19 lines per rank and step
    _, found = read(text)
    done = replay(found, 0, 100)
    assert max(done.values()) == 300
    assert sum(op.way == "calc" for op in found.values()) == text.count("calc 0 cpu 1\n") == 2 * 20


def test_messages_are_dealt_to_nics_in_turn() -> None:
    _, found = read(text_of(all_to_all(2, 5), nbytes=1000, nics=2))
    for rank in range(5):
        for way in ("send", "recv"):
            nics = [op.nic for (at, _), op in found.items() if at == rank and op.way == way]
            assert nics == [0, 1, 0, 1] * 2


def test_an_empty_message_has_a_byte() -> None:
    _, found = read(text_of(plan("allreduce", "ring:ranks=5"), nbytes=3))
    assert {op.size for op in found.values()} == {1}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"order": "steps"}, "order: expected rounds or data, got 'steps'"),
        ({"gamma": -1e-9}, "gamma: expected seconds per byte"),
        ({"gamma": "soon"}, "gamma: cannot read"),
        ({"nics": 0}, "nics: expected a whole number from 1 to 256, got 0"),
        ({"nics": True}, "nics"),
        ({"nbytes": "3parsecs"}, "nbytes: unknown unit"),
    ],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as told:
        goal(plan("allreduce", "ring:ranks=3"), **{"nbytes": 100, **options})
    assert says in str(told.value)
