"""From each to each as much as those two say, by no plan: over memory and over sockets, one thread for each rank."""

import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from test_sockets import wires_of

from antiphon.errors import TimedOut
from antiphon.runtimes.engine.native import DISAGREED, EVEN, MOVED, Engine, Mismatch, TransportFailed, Wire
from antiphon.runtimes.serve.call_head import CallHead
from antiphon.runtimes.serve.wires import engine_over_sockets

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
RANKS = 4
WAYS = ["memory", "sockets"]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engine_over_sockets()


class Group:
    """Wires between threads, and the calls that they are in."""

    def __init__(self, engine: Engine, way: str, ranks: int = RANKS) -> None:
        self.ranks, self.wires = ranks, near(engine, ranks) if way == "memory" else wires_of(engine, ranks)
        self.heads = [CallHead(rank, b"the same") for rank in range(ranks)]
        for wire, head in zip(self.wires, self.heads, strict=True):
            wire.calls(head.memory)
        self.pool = ThreadPoolExecutor(ranks)

    def all(self, each: Callable[[int], Any]) -> list[Any]:
        return [one.result() for one in [self.pool.submit(each, rank) for rank in range(self.ranks)]]

    def exchange(self, rank: int, sends: list[int], comes: list[int], timeout: float = 20.0, **call: Any) -> Any:
        """What became of it, and what has come; the bytes that rank i sends to rank j are all 16 i + j."""
        self.heads[rank].begin(**{"kind": "alltoall", "nbytes": 0, "type_": 1, **call})
        given = np.concatenate([np.full(count, 16 * rank + j, np.uint8) for j, count in enumerate(sends)])
        out, lengths = np.full(sum(comes), 255, np.uint8), np.array([sends, comes], np.uint64)
        return self.wires[rank].uneven(given.ctypes.data, out.ctypes.data, lengths, timeout), out

    def table(self, table: list[list[int]]) -> list[Any]:
        return self.all(lambda rank: self.exchange(rank, table[rank], [row[rank] for row in table]))

    def close(self) -> None:
        for wire in self.wires:
            wire.close()
        self.pool.shutdown()


def near(engine: Engine, ranks: int) -> list[Wire]:
    first, name = engine.share(ranks)
    assert first
    memories = [first, *(engine.join(name, rank) for rank in range(1, ranks))]
    return [engine.shared(memory, [-1] * ranks) for memory in memories]


@pytest.fixture(params=WAYS)
def group(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Group]:
    made = Group(engine, request.param)
    yield made
    made.close()


def want(table: list[list[int]], rank: int) -> Any:
    return np.concatenate([np.full(row[rank], 16 * other + rank, np.uint8) for other, row in enumerate(table)])


def test_what_is_sent_comes(group: Group) -> None:
    draw = random.Random(1)
    for most in (1, 50, 50, 3000, 100_000, 1_000_000):
        table = [[draw.choice([0, 1, most, draw.randrange(most + 1)]) for _ in range(RANKS)] for _ in range(RANKS)]
        table[0][0] = most + 1  # in any case not all alike
        for rank, (found, out) in enumerate(group.table(table)):
            assert found == MOVED
            assert np.array_equal(out, want(table, rank))


def test_one_pair_that_differs_is_known_to_all(group: Group) -> None:
    table = [[5] * RANKS for _ in range(RANKS)]
    table[1][2] = 6
    assert [found for found, _ in group.table(table)] == [MOVED] * RANKS


def test_lengths_that_are_all_the_same_are_left_to_a_plan(group: Group) -> None:
    for count in (0, 7):
        for found, out in group.table([[count] * RANKS for _ in range(RANKS)]):
            assert found == EVEN
            assert (out == 255).all()


def test_lengths_that_do_not_fit_are_known_to_all_and_nothing_moves(group: Group) -> None:
    table = [[i + j for j in range(RANKS)] for i in range(RANKS)]

    def call(rank: int) -> Any:
        comes = [row[rank] for row in table]
        if rank == 2:
            comes[1] += 1  # and as much less from another, so that the sums are right
            comes[3] -= 1
        return group.exchange(rank, table[rank], comes)

    for found, out in group.all(call):
        assert found == DISAGREED
        assert (out == 255).all()
    assert [found for found, _ in group.table(table)] == [MOVED] * RANKS  # and the group goes on


def test_several_calls_in_a_row_while_some_are_ahead(group: Group) -> None:
    tables = [[[(i * j * k) % 40_000 for j in range(RANKS)] for i in range(RANKS)] for k in range(1, 30)]

    def call(rank: int) -> None:
        for table in tables:
            found, out = group.exchange(rank, table[rank], [row[rank] for row in table])
            assert found == MOVED
            assert np.array_equal(out, want(table, rank))

    group.all(call)


def test_another_call_is_found(group: Group) -> None:
    def call(rank: int) -> str:
        with pytest.raises((Mismatch, TransportFailed)) as told:
            group.exchange(rank, [1, 2, 3, 4], [1, 2, 3, 4], **({"kind": "broadcast", "root": 0} if rank == 3 else {}))
        group.wires[rank].close()  # so that the others notice
        return type(told.value).__name__

    assert "Mismatch" in group.all(call)


def test_who_does_not_come_is_waited_for_as_long_as_asked(group: Group) -> None:
    for _ in range(2):
        with pytest.raises((TimedOut, TransportFailed), match=r"nothing came or went for 0\.2|an earlier run failed"):
            group.exchange(0, [1, 2, 3, 4], [1, 2, 3, 4], timeout=0.2)
