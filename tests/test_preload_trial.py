"""Plans that nobody has measured: their first calls go both ways, and then the way that was faster."""

from pathlib import Path

import pytest
from mpi_env import Mpi
from test_preload import Run, compiled, folder, table

import antiphon
from antiphon.runtimes.serve.book import decode_book, encode_book, make_book
from antiphon.select import save_plans

__all__ = ["folder"]
CALLS, TRIED, EARLY = 20, 4, 2  # of a size; of the first eight, or four, those that are the library's
TURNS, SLOWER = (
    "allreduce: its first calls try plan and library in turn",
    "allreduce: its first calls took longer by a plan",
)


def sums(mpi: Mpi, folder: Path, path: Path, sizes: list[int], **settings: str) -> Run:
    command = [compiled(folder, mpi, "small"), *(str(size) for size in sizes for _ in range(CALLS))]
    return Run(mpi, folder, 2, command, [path], **settings).right()


@pytest.mark.slow
def test_the_first_calls_go_both_ways_and_the_others_one_way(openmpi: Mpi, folder: Path) -> None:
    sizes = [1000, 40000, 400000]
    # who was slowest counts: process 0 by itself would keep to the plan
    run = sums(openmpi, folder, table(folder, 2), sizes, ANTIPHON_TRIED="1:8,9:8")
    left = run.left
    assert left.pop("allreduce: it is smaller than ANTIPHON_LEAST and was not measured") == CALLS
    assert left.pop(TURNS) == 2 * TRIED
    assert left.pop(SLOWER) == 2 * (CALLS - 2 * TRIED)
    assert left == {}
    assert run.served("allreduce", 2) + sum(run.left.values()) == 3 * CALLS


def tried(mpi: Mpi, folder: Path, ranks: int, times: str, kind: str, *how: str) -> tuple[int, int, int]:
    """Calls of one kind by plans, by the library while both ways were tried, and by the library as that took less time.
    `times`: what calls are to have taken (ANTIPHON_TRIED)."""
    command = [compiled(folder, mpi, "tried"), kind, *how]
    tables = [table(folder, ranks), table(folder, 2)] if "halves" in how else [table(folder, ranks)]
    run = Run(mpi, folder, ranks, command, tables, ANTIPHON_TRIED=times).right()
    left = run.left
    both, slower = left.pop(TURNS.replace("allreduce", kind), 0), left.pop(SLOWER.replace("allreduce", kind), 0)
    assert left == {}
    assert run.warnings == []
    return run.served(kind, 2 if "halves" in how else ranks), both, slower


@pytest.mark.slow
def test_a_clear_difference_decides_after_four_calls(openmpi: Mpi, folder: Path) -> None:
    path = table(folder, 2)
    for times, expected in [
        ("1:8", (CALLS - EARLY, EARLY, 0)),
        ("8:1", (EARLY, EARLY, CALLS - 2 * EARLY)),
        ("0.001:0.008", PLAN),  # so short that scheduling may have made the difference
    ]:
        run = sums(openmpi, folder, path, [40000], ANTIPHON_TRIED=times)
        assert (run.served("allreduce", 2), run.left.get(TURNS, 0), run.left.get(SLOWER, 0)) == expected, times


REST = CALLS - 2 * TRIED
PLAN, LIBRARY = (TRIED + REST, TRIED, 0), (TRIED, TRIED, REST)
CASES = [  # of four processes
    ("allreduce", "world", "0", "out", "1:2", PLAN),
    ("allreduce", "world", "0", "in", "2:1", LIBRARY),
    # who was slowest counts: by themselves all but the last would keep to the plan
    ("allreduce", "turned", "0", "out", "1:8,1:8,1:8,9:8", LIBRARY),
    ("broadcast", "world", "3", "in", "8:1,1:9,1:2,1:2", PLAN),
    ("reduce", "world", "2", "in", "2:1", LIBRARY),
    ("gather", "world", "1", "in", "1:2", PLAN),
    ("scatter", "world", "3", "in", "2:1,1:1", LIBRARY),
    ("allgather", "world", "0", "in", "1:2", PLAN),
    ("reducescatter", "world", "0", "in", "2:1", LIBRARY),
    ("alltoall", "world", "0", "in", "1:2,2:3", PLAN),
    # each half decides for itself: of the world's processes 0 and 2, and 1 and 3
    ("allgather", "halves", "0", "out", "1:2,2:1,1:2,1:1", (2 * TRIED + REST, 2 * TRIED, REST)),
    ("broadcast", "halves", "1", "out", "2:1,1:2,2:1,1:2", (2 * TRIED + REST, 2 * TRIED, REST)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "comm", "root", "place", "times", "expected"), CASES)
def test_which_way_is_kept_to(
    mpi: Mpi, folder: Path, kind: str, comm: str, root: str, place: str, times: str,
    expected: tuple[int, int, int],
) -> None:  # fmt: skip
    assert tried(mpi, folder, 4, times, kind, comm, root, place, "4000") == expected


@pytest.mark.slow
def test_where_a_size_is_given_nothing_is_tried(mpi: Mpi, folder: Path) -> None:
    run = sums(mpi, folder, table(folder, 2), [40000], ANTIPHON_LEAST="2KB", ANTIPHON_TRIED="2:1")
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


@pytest.mark.slow
@pytest.mark.parametrize("said", ["2", "2:", "2:1,", "2:1;1:2", "2:one", ":1", "2:1,1", "-2:1"])
def test_times_that_are_none_are_told(openmpi: Mpi, folder: Path, said: str) -> None:
    run = sums(openmpi, folder, table(folder, 2), [40000], ANTIPHON_TRIED=said)
    told = (
        f"antiphon: ANTIPHON_TRIED={said} does not say what calls took, as 2:1 does; they are timed; the rest is used"
    )
    assert run.warnings == [told]
