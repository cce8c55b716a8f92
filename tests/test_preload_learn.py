"""Learning (ANTIPHON_LEARN=1): candidates are tried and chosen while the job runs, by all processes alike."""

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mpi_env import Mpi
from quick import ordinary
from test_preload import Run, compiled, folder

import antiphon
from antiphon.cli import run as cli
from antiphon.core.plan import Entry, Plan
from antiphon.errors import Invalid
from antiphon.runtimes.engine.learned import HEADER, diff_learned, keep_learned, merge_learned, read_learned
from antiphon.runtimes.serve.book import read_table
from antiphon.select import save_plans

__all__ = ["folder"]
MACHINE = "full:ranks=4"


CHOICES = {
    "allreduce": [(0, "recursive-doubling"), (8_000, "direct"), (40_000, "ring")],
    "broadcast": [(0, "binomial-tree"), (8_000, "direct")],
}


def ranges_table(folder: Path) -> Path:
    """A table with three schedules for allreduce, by size, and two for broadcast."""
    path = folder / "ranges.json"
    if not path.exists():
        machine = antiphon.topology(MACHINE)
        plans = {}
        for kind, choices in CHOICES.items():
            options: dict[str, Any] = {"root": 3} if kind == "broadcast" else {}
            entries: list[Entry] = []
            for number, (start, planner) in enumerate(choices):
                (entry,) = antiphon.plan(kind, machine, planner=planner, **options).entries
                stop = choices[number + 1][0] if number + 1 < len(choices) else None
                entries.append(replace(entry, start=start, stop=stop))
            plans[kind] = Plan(machine, entries[0].schedule.collective, tuple(entries))
        save_plans(path, plans, table=True)
    return path


def learned(run: Run, kind: str, nbytes: int) -> dict[str, Any]:
    (row,) = [row for row in run.report["learned"] if (row["collective"], row["nbytes"]) == (kind, nbytes)]
    return dict(row)


@pytest.mark.slow
@pytest.mark.parametrize("calls", [900, 10_000])
def test_drawn_times_and_delays(mpich: Mpi, folder: Path, calls: int) -> None:
    """Times differ between processes and the fastest candidate changes: all choose alike, or they would not end."""
    command = [compiled(folder, mpich, "drawn"), str(calls), "255"]
    run = Run(mpich, folder, 4, command, [ranges_table(folder)], ANTIPHON_LEARN="1", ANTIPHON_TRIED="drawn:9").right()
    assert run.warnings == []
    large = learned(run, "allreduce", 64_000)
    assert {row["planner"] for row in large["candidates"]} == {"the library", "ring", "direct", "recursive-doubling"}
    assert {row["slices"] for row in large["candidates"]} > {1}
    # how soon a change is noticed depends on how long an exchange takes here: on a busy machine, long
    assert len(large["choices"]) > (calls > 900)


def test_what_was_learned_stays(mpich: Mpi, folder: Path, tmp_path: Path) -> None:
    """The next job begins with it, also with a file of an earlier version; `table` shows, merges and compares it."""
    command, file = [compiled(folder, mpich, "drawn"), "300", "0"], tmp_path / "learned.txt"
    settings = {"ANTIPHON_LEARN": "1", "ANTIPHON_LEARNED": str(file), "ANTIPHON_TRIED": "1:3"}
    book = read_table(ranges_table(folder))
    checksums = {f"{page.key:x}": f"{zlib.crc32(book.programs[page.program]):x}" for page in book.pages}
    for version, why in ((2, "first search"), (2, "learned before"), (1, "learned before")):
        if version == 1:
            keep_learned(
                file, [replace(line, checksum=checksums.get(line.checksum, "0")) for line in read_learned(file)]
            )
        run = Run(mpich, folder, 4, command, [ranges_table(folder)], **settings).right()
        assert run.warnings == []
        first = learned(run, "allreduce", 64_000)["choices"][0]
        assert (first["planner"], first["why"]) == ("ring", why)
        lines = read_learned(file)
        assert {line.checksum for line in lines} <= {"0", *checksums}
    chosen = [line.planner for line in lines if line.chosen]
    assert set(chosen) == {planner for choices in CHOICES.values() for _, planner in choices}
    twice = merge_learned([lines, lines])
    assert [line.samples for line in twice] == [2 * line.samples for line in lines]
    assert [row["new"] for row in diff_learned(lines, twice)] == chosen
    other = tmp_path / "both.txt"
    for words in (
        ["show", str(file)],
        ["merge", str(file), str(file), "-o", str(other)],
        ["diff", str(file), str(other)],
    ):
        assert cli(["table", *words]) == 0
    assert read_learned(other) == antiphon.replay.learned([file, file]) == twice
    assert cli(["table", "merge", str(file)]) == cli(["table", "diff", str(file)]) == 2


OTHER_JOB = """
from pathlib import Path
import numpy as np
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:  # the file was read in MPI_Init; another job writes it now
    Path({file!r}).write_text({text!r})
for call in range(100):
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, np.ones(16_000, np.int32))
print("right" if MPI.COMM_WORLD.rank == 0 else "", end="")
"""


@pytest.mark.slow
def test_what_another_job_has_learned_meanwhile_stays(mpich: Mpi, folder: Path, tmp_path: Path) -> None:
    file, line = tmp_path / "learned.txt", "broadcast\t9\t1\t8000\t0\t4\t2\t0.2\t0.1\t0.3\t1\tthe library\n"
    program = OTHER_JOB.format(file=str(file), text=f"{HEADER}\n{line}")
    settings = {"ANTIPHON_LEARN": "1", "ANTIPHON_LEARNED": str(file), "ANTIPHON_TRIED": "3:1"}
    run = Run(mpich, folder, 4, [mpich.python, "-c", program], [ranges_table(folder)], **settings).right()
    assert run.warnings == []
    assert {(row.collective, row.ranks) for row in read_learned(file)} == {("broadcast", 9), ("allreduce", 4)}
    assert list(tmp_path.iterdir()) == [file]
    # no file of ours: it stays as it is
    program = OTHER_JOB.format(file=str(file), text="mine")
    run = Run(mpich, folder, 4, [mpich.python, "-c", program], [ranges_table(folder)], **settings).right()
    assert file.read_text() == "mine"
    assert "no file of what was learned; it stays as it is" in run.warnings[0]


@pytest.mark.slow
def test_sizes_are_stated_before_a_search_has_ended(mpich: Mpi, folder: Path) -> None:
    command = [compiled(folder, mpich, "drawn"), "8", "0"]
    run = Run(mpich, folder, 4, command, [ranges_table(folder)], ANTIPHON_LEARN="1").right()
    assert {row["nbytes"] for row in run.report["learned"]} == {4_000, 64_000}
    run = Run(mpich, folder, 4, command, [ranges_table(folder)], ANTIPHON_LEARNED="x").right()
    assert "ANTIPHON_LEARNED has no effect without ANTIPHON_LEARN=1" in run.warnings[0]


def test_choices_of_several_roots_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"reduce\t4\t{root}\t8000\t0\t4\t2\t0.2\t0.1\t0.3\t1\tthe library\n" for root in (0, 3)]
    (tmp_path / "a.txt").write_text("".join([HEADER, "\n", *lines]))
    assert cli(["table", "diff", *[str(tmp_path / "a.txt")] * 2]) == 0
    head, *rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[head.split().index("root")] for row in rows] == ["0", "3"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no file of what was learned"),
        ("{}", "no file of what was learned"),
        (HEADER + "\nallreduce\t4\n", "line 2: expected 12 cells"),
        (HEADER + "\nallreduce\t4\t-1\t8\tzz\t4\t1\t1\t1\t1\t1\tring\n", "line 2: expected 12 cells"),
        (HEADER + "\nallreduce\t4\t-1\t8\t0\t4\t1\tnan\t1\t1\t1\tring\n", "line 2: expected 12 cells"),
        (HEADER + "\nallreduce\t4\t-1\t8\t0\t0\t4\t1\t1\t1\t1\tring\n", "line 2: expected 12 cells"),  # no slices
    ],
)
def test_files_of_what_was_learned_that_are_none(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "wrong.txt").write_text(text)
    with pytest.raises(Invalid, match=problem):
        read_learned(tmp_path / "wrong.txt")


def test_a_clear_case(mpich: Mpi, folder: Path) -> None:
    command = [compiled(folder, mpich, "drawn"), "400", "0"]
    for times, planner in (("1:3", "ring"), ("3:1", "the library"))[: 1 if ordinary else 2]:
        run = Run(mpich, folder, 4, command, [ranges_table(folder)], ANTIPHON_LEARN="1", ANTIPHON_TRIED=times).right()
        row = learned(run, "allreduce", 64_000)
        assert [(choice["planner"], choice["why"]) for choice in row["choices"]] == [(planner, "first search")], times
        assert row["choices"][0]["call"] <= 60


@pytest.mark.slow
def test_candidates_in_turn(mpich: Mpi, folder: Path) -> None:
    """For recording calls: of 300 calls every second has 64 KB, of which four fifths are allreduces."""
    command, turns = [compiled(folder, mpich, "drawn"), "300", "0"], "turns:1x4,1x8,2x4,0x4"
    run = Run(mpich, folder, 4, command, [ranges_table(folder)], ANTIPHON_LEARN="1", ANTIPHON_TRIED=turns).right()
    assert run.warnings == []
    served = {(row["planner"], row["from"]): row["calls"] for row in run.report["served"] if row["to"] == 64_000}
    assert served["ring", 64_000] == 120 // 2
