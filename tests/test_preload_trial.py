"""Plans that nobody has measured: their first calls go both ways, and then the way that was faster."""

from __future__ import annotations

from pathlib import Path

import pytest
from mpi_env import Mpi
from test_preload import Run, compiled, folder, table

import antiphon
from antiphon.core.plan import Entry, Plan
from antiphon.core.transform import pipeline
from antiphon.runtimes.serve.book import decode_book, encode_book, make_book
from antiphon.select import save_plans

__all__ = ["folder"]
CALLS, TRIED = 20, 4  # of a size; of the first eight those that are the library's
TURNS, SLOWER = "allreduce: its first calls go both ways in turn", "allreduce: its first calls took longer by a plan"


def sums(mpi: Mpi, folder: Path, path: Path, sizes: list[int], **settings: str) -> Run:
    command = [compiled(folder, mpi, "small"), *(str(size) for size in sizes for _ in range(CALLS))]
    return Run(mpi, folder, 2, command, [path], **settings).right()


def test_the_first_calls_go_both_ways_and_the_others_one_way(openmpi: Mpi, folder: Path) -> None:
    sizes = [1000, 40000, 400000]
    run = sums(openmpi, folder, table(folder, 2), sizes)
    left = run.left
    assert left.pop("allreduce: it is smaller than ANTIPHON_LEAST and was not measured") == CALLS
    assert left.pop(TURNS) == 2 * TRIED
    assert left.pop(SLOWER, 0) in (0, CALLS - 2 * TRIED, 2 * (CALLS - 2 * TRIED))
    assert left == {}
    assert run.served("allreduce", 2) + sum(run.left.values()) == 3 * CALLS


@pytest.mark.slow
@pytest.mark.parametrize("which", ["openmpi", "mpich"])
def test_a_plan_of_thousands_of_messages_is_left(request: pytest.FixtureRequest, folder: Path, which: str) -> None:
    machine = antiphon.topology("full:ranks=2")
    one = antiphon.plan("allreduce", machine, planner="ring").at(0)
    slow = pipeline(one.schedule, 4096)
    path = folder / "slow.json"
    save_plans(path, {"allreduce": Plan(machine, slow.collective, (Entry(0, None, slow, {}),))}, table=True)
    mpi = request.getfixturevalue(which)
    run = sums(mpi, folder, path, [40000])
    assert run.left == {TURNS: TRIED, SLOWER: CALLS - 2 * TRIED}
    assert run.served("allreduce", 2) == TRIED
    run = sums(mpi, folder, path, [40000], ANTIPHON_LEAST="2KB")
    assert run.left == {}
    assert run.served("allreduce", 2) == CALLS


@pytest.mark.slow
def test_what_is_promised_in_one_order_is_not_tried(openmpi: Mpi, folder: Path) -> None:
    plan = antiphon.plan("allreduce", "full:ranks=2", planner="ring", deterministic=True)
    path = folder / "ordered.json"
    save_plans(path, {"allreduce": plan}, table=True)
    run = sums(openmpi, folder, path, [40000])
    assert run.left == {}
    assert run.served("allreduce", 2) == CALLS


def test_a_book_tells_what_is_promised() -> None:
    for deterministic in (False, True):
        plan = antiphon.plan("allreduce", "full:ranks=2", planner="direct", deterministic=deterministic)
        book = make_book([plan])
        assert [page.ordered for page in book.pages] == [deterministic]
        assert decode_book(encode_book(book)) == book
