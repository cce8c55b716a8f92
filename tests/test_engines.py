"""Independent jobs by an engine: order, errors, workers that are killed; and who runs its jobs so."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import Invalid, NotFound
from antiphon.isolate import Lost, run_each, run_jobs
from antiphon.reproduce import reproduce, sccl
from antiphon.reproduce.rows import Each, claim

TWO = "processes:2"
EACH = [(number,) for number in range(5)]


def process_of(number: int) -> tuple[int, int]:
    return number, os.getpid()


@pytest.mark.parametrize("engine", ["processes:1", TWO])
def test_results_are_in_order_and_from_worker_processes(engine: str) -> None:
    results = list(run_each(process_of, EACH, engine))
    assert [number for number, _ in results] == list(range(5))
    assert all((process == os.getpid()) == (engine != TWO) for _, process in results)
    assert list(run_each(process_of, [], engine)) == []


@pytest.mark.parametrize("engine", ["processes:1", TWO])
def test_an_error_of_ours_is_a_result_of_its_job(engine: str) -> None:
    def refuse_two(number: int) -> int:
        if number == 2:
            raise Invalid("two")
        return number

    results = dict(run_jobs(refuse_two, dict(enumerate(EACH)), engine))
    assert str(results.pop(2)) == "two"
    assert results == {0: 0, 1: 1, 3: 3, 4: 4}
    ordered, before = run_each(refuse_two, EACH, engine), []
    with pytest.raises(Invalid, match="two"):
        before += ordered
    assert before == [0, 1]


def test_another_error_ends_all() -> None:
    with pytest.raises(Lost, match="ZeroDivisionError"):
        list(run_each(lambda number: 1 // number, EACH, TWO))


def test_jobs_of_a_killed_worker_are_done_by_another(tmp_path: Path) -> None:
    def die_once(number: int) -> int:
        mark = tmp_path / "died"
        if number == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    assert list(run_each(die_once, EACH, TWO)) == list(range(5))


def test_a_job_that_always_kills_its_worker_is_given_up() -> None:
    def die(number: int) -> None:
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(NotFound, match=r"engine processes: .* SIGKILL.*, 4 times; 1 job is left"):
        list(run_jobs(die, dict(enumerate(EACH)), TWO))


def parts(each: Each) -> Iterator[dict[str, Any]]:
    yield from each(part_of_a_table, EACH)


def part_of_a_table(number: int) -> dict[str, Any]:
    sum(range(200_000))  # CPU time that counts
    return {**claim(str(number), holds=True), "process": os.getpid()}


def test_parts_of_a_table_are_computed_by_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sccl, "table5", parts)
    for engine, here in (("processes:1", True), (TWO, False)):
        rows = list(reproduce("sccl-table5", engine))
        assert [row["name"] for row in rows] == ["0", "1", "2", "3", "4"]
        assert all((row["process"] == os.getpid()) == here for row in rows)
        assert all(0 < row["seconds"] < 10 for row in rows)
    with pytest.raises(Invalid, match="expected the number of processes"):
        list(reproduce("sccl-table3", "processes:0"))
