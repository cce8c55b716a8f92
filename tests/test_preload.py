"""The library under LD_PRELOAD: programs that know nothing of it get the same results, by our schedules."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mpi_env import Mpi
from program_cases import idle_book
from small_plans import plan_of_counts

import antiphon
from antiphon.core.plan import Entry, Plan
from antiphon.errors import AntiphonError
from antiphon.runtimes.serve import files
from antiphon.runtimes.serve.book import encode_book, make_book, read_table
from antiphon.select import save_plans

PROGRAMS = Path(__file__).with_name("preload")
PLANNERS = {
    "allreduce": "ring", "allgather": "ring", "reducescatter": "ring", "broadcast": "binomial-tree",
    "reduce": "binomial-tree", "gather": "direct", "scatter": "direct", "alltoall": "pairwise",
}  # fmt: skip
OTHERS = {**PLANNERS, "allreduce": "direct", "allgather": "bruck", "reducescatter": "direct", "alltoall": "bruck"}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tables and compiled programs of this run are kept."""
    made = tmp_path_factory.getbasetemp() / "preload"
    made.mkdir(exist_ok=True)
    return made


def table(folder: Path, ranks: int, planners: dict[str, str] = PLANNERS, name: str = "") -> Path:
    path = folder / f"{name or 'table'}{ranks}.json"
    if not path.exists():
        machine = antiphon.topology(f"full:ranks={ranks}")
        save_plans(path, {k: antiphon.plan(k, machine, planner=p) for k, p in planners.items()}, table=True)
    return path


@cache
def preloaded(python: str, mpicc: str) -> str:
    """The library for an MPI, made by its own Python, which it then starts for tables."""
    if python == sys.executable:
        return str(antiphon.native.build("mpi", mpicc))
    command = [python, "-m", "antiphon", "build", "mpi", "--compiler", mpicc]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=True)
    return done.stdout.strip()


def compiled(folder: Path, mpi: Mpi, name: str, *flags: str) -> str:
    path = folder / f"{name}-{mpi.name}"
    if not path.exists():
        command = [*mpi.compiler, "-O0", "-Wall", "-Wextra", "-Werror", "-pthread", *flags, str(PROGRAMS / f"{name}.c")]
        subprocess.run([*command, "-o", str(path)], check=True, timeout=1000, env=mpi.env)
    return str(path)


class Run:
    """A program under mpiexec, with the library or, without tables, as it is."""

    def __init__(
        self,
        mpi: Mpi,
        folder: Path,
        ranks: int,
        command: list[str],
        tables: Sequence[Path | str] | None,
        seconds: float = 150,
        **settings: str,
    ) -> None:
        self.path = folder / f"report{len(list(folder.glob('report*')))}.json"
        self.path.touch()
        env = {**mpi.env, **settings}
        if tables is not None:
            first = env.pop("FIRST", "")
            env["LD_PRELOAD"] = f"{first} {preloaded(mpi.python, mpi.mpicc)}".strip()
            env["ANTIPHON_TABLE"] = ":".join(map(str, tables))
            env.setdefault("ANTIPHON_REPORT", str(self.path))
            env.setdefault("ANTIPHON_AFTER", "0")
        self.done = subprocess.run(
            [*mpi.mpiexec(ranks), *command], env=env, capture_output=True, text=True, timeout=seconds, check=False
        )
        said = [line for line in self.done.stderr.splitlines() if line.startswith("antiphon: ")]
        self.compiling = [line for line in said if line.startswith("antiphon: tables are being compiled")]
        self.warnings = [line for line in said if line not in self.compiling]  # that hangs on the computer

    def right(self) -> Run:
        assert self.done.returncode == 0, self.done.stderr
        assert self.done.stdout.split("\n")[0] == "right", self.done.stdout
        return self

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.path.read_text())
        return found

    @property
    def left(self) -> dict[str, int]:
        return {f"{row['collective']}: {row['reason']}": row["calls"] for row in self.report["left"]}

    def by(self, planner: str) -> dict[str, int]:
        return {row["collective"]: row["calls"] for row in self.report["served"] if row["planner"] == planner}

    def served(self, collective: str, ranks: int) -> int:
        rows = self.report["served"]
        return sum(row["calls"] for row in rows if row["collective"] == collective and row["ranks"] == ranks)


def sample(
    mpi: Mpi, folder: Path, ranks: int, sizes: str, types: str, planners: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run the mpi4py script by our plans; every call must have been served, and every result be right."""
    out = folder / f"out{ranks}-{mpi.name}.json"
    command = [mpi.python, str(PROGRAMS / "sample.py"), sizes, types, str(out)]
    tables = None if planners is None else [table(folder, ranks, planners, planners["allreduce"])]
    run = Run(mpi, folder, ranks, command, tables, ANTIPHON_LEAST="0")
    assert run.done.returncode == 0, run.done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["wrong"] == []
    if planners is not None:
        assert run.warnings == []
        assert run.left == {}
        assert all(run.served(collective, ranks) > 0 for collective in planners)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "sizes", "types", "planners"),
    [
        (2, "7,4097", "f4,i1", OTHERS), (4, "4097", "f4,u2", PLANNERS),
        (8, "3", "f8", OTHERS),
    ],
)  # fmt: skip
def test_an_mpi4py_program_gets_what_it_should(
    openmpi: Mpi, folder: Path, ranks: int, sizes: str, types: str, planners: dict[str, str]
) -> None:
    found = sample(openmpi, folder, ranks, sizes, types, planners)
    if ranks == 2:
        assert sample(openmpi, folder, ranks, sizes, types) == found  # the library's own results


def test_the_same_under_mpich(mpich: Mpi, folder: Path) -> None:
    """Its mpi4py calls the functions for large counts."""
    sample(mpich, folder, 2, "4097", "f4", OTHERS)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 16])
def test_all_types_and_sizes(mpi: Mpi, folder: Path, ranks: int) -> None:
    for planners in (PLANNERS, OTHERS):
        sample(mpi, folder, ranks, "1,7,1000,4097,100003" if ranks < 8 else "1,1000,4097", "", planners)


def test_a_c_program_with_communicators_types_and_threads(mpi: Mpi, folder: Path) -> None:
    arguments = ["short"] if mpi.name == "mpich" else []
    command = [compiled(folder, mpi, "program"), *arguments]
    run = Run(mpi, folder, 4, command, [table(folder, 4), table(folder, 2)], ANTIPHON_LEAST="0").right()
    assert run.warnings == []
    assert run.served("allreduce", 4) == (3 if arguments else 95)  # also of the world backwards
    assert run.served("allreduce", 2) == run.served("broadcast", 2) == 20  # of the table for two
    assert [run.served(kind, 4) for kind in ("gather", "scatter", "allgather", "alltoall")] == [2, 2, 1, 2]
    assert run.left == {
        "broadcast: the arguments are wrong": 2,
        "broadcast: the communicator has one process": 4,
        "allreduce: the communicator has one process": 4,
        "allreduce: the communicator is one between two groups": 2,
        "allreduce: there is no data": 1,
        "allreduce: plans do not combine by its operator": 3,
        "allreduce: plans do not combine its data type": 1,
        "reducescatter: its counts differ": 1,
    }
    run = Run(
        mpi, folder, 4, [compiled(folder, mpi, "program"), "threads"], [table(folder, 4)], ANTIPHON_LEAST="0"
    ).right()
    assert run.served("allreduce", 4) in (0, 30)  # 0: an MPI that has no threads


@pytest.mark.slow
def test_types_of_no_bytes(mpi: Mpi, folder: Path) -> None:
    run = Run(mpi, folder, 3, [compiled(folder, mpi, "empty")], [table(folder, 3)], ANTIPHON_LEAST="0").right()
    assert run.report["served"] == []


def test_calls_that_no_plan_is_for_are_not_interposed(openmpi: Mpi) -> None:
    command = ["nm", "-D", "--defined-only", preloaded(openmpi.python, openmpi.mpicc)]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True)
    names = {line.split()[-1].lower() for line in symbols.stdout.splitlines()}
    assert {"mpi_allreduce", "mpi_allgatherv", "mpi_iallreduce"} <= names
    removed = ("scan", "exscan", "gatherv", "scatterv", "alltoallw")
    forms = ("mpi_{}", "mpi_{}_c", "mpi_i{}", "mpi_{}_init", "mpi_{}_", "ompi_{}_f")
    assert not names & {form.format(name) for name in removed for form in forms}
    assert not names & {"mpi_ialltoallv", "mpi_alltoallv_init"}


UNEVEN = """
import numpy as np
from mpi4py import MPI
me, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
for comm in (MPI.COMM_WORLD, MPI.COMM_WORLD.Dup()):
    for call in range(20):
        draw = np.random.default_rng(call)
        counts = draw.integers(0, (1, 5, 4000)[call % 3], (size, size)) + (call % 5 == 4)
        counts[:, -1] *= 1 + 50 * (call % 2)
        for gap in (0, 1) if call == 11 else (0,):
            to, of = counts[me].tolist(), counts[:, me].tolist()
            at = [sum(of[:i]) + gap * i for i in range(size)]
            out = np.full(sum(of) + size, -1.0)
            wanted = out.copy()
            for i in range(size):
                wanted[at[i] : at[i] + of[i]] = 10 * i + me
            sent = np.concatenate([np.full(to[i], 10.0 * me + i) for i in range(size)])
            comm.Alltoallv([sent, to, None, MPI.DOUBLE], [out, of, at, MPI.DOUBLE])
            assert (out == wanted).all(), (me, call, gap)
    line = np.arange(2 * size) + 100 * me
    comm.Alltoallv(MPI.IN_PLACE, [line, [2] * size, [2 * i for i in range(size)], MPI.LONG])
    assert (line.reshape(size, 2) == 2 * me + np.arange(2) + 100 * np.arange(size)[:, None]).all()
    comm.Disconnect() if comm != MPI.COMM_WORLD else None
if me == 0:
    print("right")
"""


@pytest.mark.slow
def test_an_alltoallv_goes_by_a_plan_for_counts(mpi: Mpi, folder: Path) -> None:
    """From 1 KB on; the others, and those whose data a plan cannot use as it lies, go to MPI at all processes."""
    plan = plan_of_counts(antiphon.topology("line:ranks=3"))
    save_plans(folder / "counts.json", {"alltoall": plan}, table=False)
    command = [mpi.python, "-c", UNEVEN]
    run = Run(mpi, folder, 3, command, [folder / "counts.json"], ANTIPHON_LEAST="0", ANTIPHON_AFTER="2").right()
    assert run.warnings == []
    assert run.served("alltoallv", 3) == 11 + 10  # on the second communicator the first two calls are for MPI
    spread = "its blocks do not lie one after another, or types or counts differ between processes"
    assert run.left[f"alltoallv: {spread}"] == 4
    assert run.left["alltoallv: the communicator was new"] == 2
    # a plan for even blocks serves no alltoallv: MPI gets it before the processes exchange anything
    run = Run(mpi, folder, 2, command, [table(folder, 2)], ANTIPHON_LEAST="0").right()
    assert run.served("alltoallv", 2) == 0
    assert run.left == {"alltoallv: the table has no plan for it": 44}


@pytest.mark.slow
def test_sizes_of_an_alltoallv_that_are_left_to_mpi_are_left_to_it_while_learning(mpich: Mpi, folder: Path) -> None:
    """No learner chooses for an alltoallv, so the row of these sizes, which has no program, serves none."""
    plan = plan_of_counts(antiphon.topology("line:ranks=3"))
    save_plans(folder / "counts.json", {"alltoall": plan}, table=False)
    command, settings = [mpich.python, "-c", UNEVEN], {"ANTIPHON_LEAST": "0", "ANTIPHON_LEARN": "1"}
    run = Run(mpich, folder, 3, command, [folder / "counts.json"], **settings).right()
    assert run.served("alltoallv", 3) > 0
    assert run.left["alltoallv: the table says that the library is faster"] > 0


@pytest.mark.slow
def test_an_alltoallv_without_memory_for_its_counts_goes_to_mpi(mpi: Mpi, folder: Path) -> None:
    """At all processes, if one has none: the others would wait for it."""
    save_plans(folder / "counts.json", {"alltoall": plan_of_counts(antiphon.topology("line:ranks=3"))}, table=False)
    shim = compiled(folder, mpi, "no_counts", "-D_GNU_SOURCE", "-shared", "-fPIC", "-ldl")
    settings = {"ANTIPHON_LEAST": "0", "FIRST": shim, "POOR": "1"}
    run = Run(mpi, folder, 3, [mpi.python, "-c", UNEVEN], [folder / "counts.json"], **settings).right()
    assert run.warnings == ["antiphon: alltoallv is left to the MPI library: rank 1 has no memory for the counts"] * 2
    assert run.served("alltoallv", 3) == 0
    assert run.left == {"alltoallv: a process could not run the plan": 44}


BLOCKS = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
me, size = comm.rank, comm.size
for counts in ([700] * size, [700 + 10 * i for i in range(size)]):
    for gap in (0, 5):
        at = [sum(counts[:i]) + gap * (i + 1) for i in range(size)]
        out = np.full(at[-1] + counts[-1] + 9, -1.0)
        wanted = out.copy()
        for i in range(size):
            wanted[at[i] : at[i] + counts[i]] = np.arange(counts[i]) + i
        comm.Allgatherv(np.arange(counts[me]) + float(me), [out, counts, at, MPI.DOUBLE])
        assert (out == wanted).all(), (me, counts, gap)
        out[:] = -1
        out[at[me] : at[me] + counts[me]] = np.arange(counts[me]) + me
        comm.Allgatherv(MPI.IN_PLACE, [out, counts, at, MPI.DOUBLE])
        assert (out == wanted).all(), (me, counts, gap, "in place")
    first, part = sum(counts[:me]), np.full(counts[me] + 1, -1.0)
    comm.Reduce_scatter(np.arange(sum(counts)) + float(me), part[:-1], counts)
    assert (part[:-1] == size * np.arange(first, first + counts[me]) + sum(range(size))).all() and part[-1] == -1
if me == 0:
    print("right")
"""


@pytest.mark.slow
def test_lists_of_counts_go_by_plans_where_these_are_alike(mpi: Mpi, folder: Path) -> None:
    run = Run(mpi, folder, 3, [mpi.python, "-c", BLOCKS], [table(folder, 3)], ANTIPHON_LEAST="0").right()
    assert run.warnings == []
    assert (run.served("allgather", 3), run.served("reducescatter", 3)) == (4, 1)
    assert run.left == {"allgather: its counts differ": 4, "reducescatter: its counts differ": 1}


def small(
    mpi: Mpi, folder: Path, tables: Sequence[Path | str], *arguments: str, ranks: int = 2, **settings: str
) -> Run:
    return Run(mpi, folder, ranks, [compiled(folder, mpi, "small"), *arguments], tables, **settings)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("table4.json", "is for 4 ranks; this job has 2"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("cut.json", "not valid JSON"),
                ("cut.book", "the book is cut off or damaged"),
                ("no.json", "No such file"),
                ("", "ANTIPHON_TABLE is not set"),
            )
        ),
    ],
)
def test_a_table_that_is_none_is_told_once_and_the_library_does_it_all(
    openmpi: Mpi, folder: Path, name: str, text: str
) -> None:
    table(folder, 4)
    (folder / "cut.json").write_bytes(table(folder, 2).read_bytes()[:3000])
    (folder / "cut.book").write_bytes(encode_book(read_table(table(folder, 2)))[:-100])
    run = small(openmpi, folder, [folder / name if name else ""], "100000").right()
    assert len(run.warnings) == 1, run.done.stderr
    assert text in run.warnings[0]
    assert run.warnings[0].endswith("; the MPI library does it all")
    assert run.report["served"] == run.report["left"] == []
    assert text in run.report["warning"]


@pytest.mark.slow
def test_a_table_of_which_no_call_takes_anything(mpi: Mpi, folder: Path) -> None:
    """It is reported once per job, not once per process, and only where nobody asked for a report."""
    silent = {"ANTIPHON_REPORT": "0", "ANTIPHON_LEAST": "0"}
    gather = table(folder, 2, {"allgather": "ring"}, "gather")
    (said,) = small(mpi, folder, [gather], "100000", **silent).right().warnings
    assert said.startswith("antiphon: no call ran by a plan (allreduce: the table has no plan for it); ")
    assert "ANTIPHON_REPORT=1" in said
    both = table(folder, 2)
    assert small(mpi, folder, [both], "100000", **silent).right().warnings == []
    intended = {**silent, "ANTIPHON_LEAST": "1GB"}
    assert small(mpi, folder, [both], "100000", **intended).right().warnings == []


@pytest.mark.slow
def test_a_book_that_is_not_its_collective_is_refused(mpi: Mpi, folder: Path) -> None:
    """Its checksums are right, its allreduce does nothing: ranks would get memory that was never written."""
    path = idle_book(folder / "idle.book", 2)
    run = small(mpi, folder, [path], "100000").right()
    assert len(run.warnings) == 1, run.done.stderr
    assert "idle.book: the program for allreduce (ring): rank 0 ends without block 0" in run.warnings[0]
    assert run.report["served"] == []
    good = folder / "good.book"
    good.write_bytes(encode_book(read_table(table(folder, 2))))
    assert small(mpi, folder, [good], "100000").right().served("allreduce", 2) == 1


@pytest.mark.slow
def test_the_rest_is_used_where_one_table_is_bad(openmpi: Mpi, folder: Path) -> None:
    run = small(openmpi, folder, [table(folder, 2), "/no/such"], "4000", ANTIPHON_LEAST="lots").right()
    assert run.warnings == ["antiphon: ANTIPHON_LEAST=lots is no size; 2KB is taken; the rest is used"]
    assert run.served("allreduce", 2) == 1
    run = small(openmpi, folder, ["", table(folder, 2)], "4000", ANTIPHON_REPORT="1").right()
    assert any("allreduce" in line and "2 ranks" in line and "by ring" in line for line in run.warnings)


def test_small_calls_and_those_that_the_library_does_faster_are_left_to_it(openmpi: Mpi, folder: Path) -> None:
    machine = antiphon.topology("full:ranks=2")
    ring = antiphon.plan("allreduce", machine, planner="ring").at(0)
    parts = [
        (0, 1000, {"planner": "first", "reference_seconds": 1.0}),
        (1000, 10000, {"planner": "second"}),
        (10000, 20000, {"served_by": "library"}),
        (20000, 5000000, {"planner": "last"}),
        (5000000, None, {"served_by": "library", "measured": False}),
    ]
    entries = tuple(Entry(start, stop, ring.schedule, claims) for start, stop, claims in parts)
    path = folder / "parts.json"
    save_plans(path, {"allreduce": Plan(machine, ring.schedule.collective, entries)}, table=True)
    sizes = ["8", "1000", "1996", "2000", "9996", "10000", "19996", "20000", "4000000", "5000000"]
    run = small(openmpi, folder, [path], *sizes).right()
    found = {row["planner"]: (row["calls"], row["from"], row["to"]) for row in run.report["served"]}
    assert found == {"first": (1, 8, 8), "second": (2, 2000, 9996), "last": (2, 20000, 4000000)}
    assert run.left == {
        "allreduce: it is smaller than ANTIPHON_LEAST and was not measured": 2,
        "allreduce: the table says that the library is faster": 2,
        "allreduce: its size was not measured": 1,
    }


@pytest.mark.slow
def test_calls_that_are_left_again_and_again(mpi: Mpi, folder: Path) -> None:
    """Their arguments are remembered, and what a handle meant before its communicator was freed is not."""
    machine = antiphon.topology("full:ranks=4")
    plans = {}
    for kind in ("broadcast", "allreduce"):
        one = antiphon.plan(kind, machine, planner=PLANNERS[kind]).at(0)
        claims = {**one.claims, "measured": True, "served_by": "library"}
        plans[kind] = Plan(machine, one.schedule.collective, (Entry(0, None, one.schedule, claims),))
    path = folder / "left4.json"
    save_plans(path, plans, table=True)
    command = [compiled(folder, mpi, "left", "-rdynamic", "-ldl")]
    run = Run(mpi, folder, 4, command, [path, table(folder, 2)], ANTIPHON_LEAST="0", ANTIPHON_REPORT="")
    assert run.warnings == []
    run.right()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [
    ("-Wl,-z,now", "-Wl,-z,relro"), pytest.param(("-Wl,-z,lazy",), marks=pytest.mark.slow),
    pytest.param(("-Wl,-z,norelro", "-Wl,-z,lazy"), marks=pytest.mark.slow),
])  # fmt: skip
def test_a_function_without_plans_is_called_without_this_library(
    mpi: Mpi, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """Whether the loader filled in its entries at start, and made them read-only, or fills them at first calls; also in
    a page that holds writable data, of which only a part is named as read-only."""
    machine = antiphon.topology("full:ranks=2")
    path = tmp_path / "sums.json"
    save_plans(path, {"allreduce": antiphon.plan("allreduce", machine, planner="direct")}, table=True)
    command = [compiled(tmp_path, mpi, "bypass", "-fPIE", "-pie", "-ldl", *flags)]
    if "norelro" in flags[0]:
        mark_data_read_only(Path(command[0]))
    Run(mpi, tmp_path, 2, command, [path], ANTIPHON_LEAST="0", ANTIPHON_REPORT="").right()


def mark_data_read_only(program: Path) -> None:
    """Name the file's data as read-only after the start (RELRO). They end within a page, so the loader leaves that one
    writable. The row of the program headers is taken from a note."""
    data = bytearray(program.read_bytes())
    (first,), (size, count) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<HH", data, 54)
    kinds = {struct.unpack_from("<II", data, at): at for at in range(first, first + count * size, size)}
    note, writable = kinds[4, 4], kinds[1, 6]  # PT_NOTE, readable; PT_LOAD, readable and writable
    data[note : note + size] = data[writable : writable + size]
    struct.pack_into("<II", data, note, 0x6474E552, 4)  # PT_GNU_RELRO, readable
    program.write_bytes(data)


@pytest.mark.slow
def test_ranks_of_one_box_on_several_hosts_do_not_fit(openmpi: Mpi, folder: Path) -> None:
    names = tuple(f"host{rank // 2}/gpu{rank % 2}" for rank in range(4))
    machine = replace(antiphon.topology("full:ranks=4"), places=names)
    path = folder / "boxes.json"
    save_plans(path, {"allreduce": antiphon.plan("allreduce", machine, planner="ring")}, table=True)
    assert read_table(path).hosts == (0, 0, 1, 1)
    shim = compiled(folder, openmpi, "hosts", "-shared", "-fPIC")
    run = small(openmpi, folder, [path], "100000", ranks=4).right()
    assert run.served("allreduce", 4) == 1  # two boxes in one are as good
    run = small(openmpi, folder, [path], "100000", ranks=4, FIRST=shim).right()
    assert "ranks on one host that are on several here; the MPI library does it all" in run.warnings[0]


@pytest.mark.slow
def test_what_is_kept_of_a_table_is_the_users_own(openmpi: Mpi, folder: Path) -> None:
    """It is found by what the table holds, and believed only where nobody else may have written it."""
    path = folder / "once.json"
    save_plans(
        path, {"allreduce": antiphon.plan("allreduce", antiphon.topology("full:ranks=2"), planner="ring")}, table=True
    )
    books = Path(preloaded(openmpi.python, openmpi.mpicc)).parent / "books"
    before = set(books.glob("*.book"))

    def planner(table: Path = path) -> str:
        return str(small(openmpi, folder, [table], "4000").right().report["served"][0]["planner"])

    assert planner() == "ring"
    (kept,) = set(books.glob("*.book")) - before
    assert kept.name.startswith(hashlib.sha256(path.read_bytes()).hexdigest())
    direct = antiphon.plan("allreduce", antiphon.topology("full:ranks=2"), planner="direct")
    kept.write_bytes(encode_book(make_book([direct])))
    assert planner() == "direct"
    for closed, opened in ((0o644, 0o664), (0o600, 0o646)):  # others may have written it: made anew
        kept.chmod(opened)
        assert planner() == "ring"
        assert kept.stat().st_mode & 0o777 == 0o644
        kept.write_bytes(encode_book(make_book([direct])))
        kept.chmod(closed)
        assert planner() == "direct"
    books.chmod(0o777)  # here others may have put it: all is made anew, where nobody else may write
    assert planner() == "ring"
    assert books.stat().st_mode & 0o777 == 0o755
    copy = folder / "copy.json"
    copy.write_bytes(path.read_bytes())
    mark = kept.stat().st_mtime_ns
    assert planner(copy) == "ring"
    assert (kept.stat().st_mtime_ns, len(set(books.glob("*.book")))) == (mark, 1)  # one copy for equal tables
    kept.write_bytes(kept.read_bytes()[:-1])  # a damaged one is made anew
    assert planner() == "ring"
    kept.unlink()


IMB = os.environ.get("ANTIPHON_TEST_IMB", "")  # IMB-MPI1 (its source has the 3-clause BSD licence), made for Open MPI


@pytest.mark.slow
@pytest.mark.skipif(not IMB, reason="needs $ANTIPHON_TEST_IMB: the benchmark IMB-MPI1, compiled with Open MPI's mpicc")
def test_the_intel_mpi_benchmarks(openmpi: Mpi, folder: Path) -> None:
    kinds = ["allreduce", "allgather", "bcast", "reduce", "gather", "scatter", "alltoall", "reduce_scatter"]
    command = [IMB, *kinds, "-iter", "4", "-msglog", "2:20", "-npmin", "2"]
    run = Run(openmpi, folder, 4, command, [table(folder, 4), table(folder, 2)], ANTIPHON_LEAST="0")
    assert run.done.returncode == 0, run.done.stderr
    assert run.warnings == []
    assert all(run.served(kind, ranks) > 50 for kind in PLANNERS for ranks in (2, 4))
    if "defects" in run.done.stdout:  # compiled with CHECK: the last column
        rows = [line.split() for line in run.done.stdout.splitlines() if line[:13].strip().isdigit()]
        assert rows
        assert {float(row[-1]) for row in rows if len(row) > 3} == {0.0}
    assert {text.partition(": ")[2] for text in run.left} == {"there is no data"}


@pytest.mark.slow
def test_a_killed_process_ends_the_job(openmpi: Mpi, folder: Path) -> None:
    run = small(openmpi, folder, [table(folder, 2)], "killed", "100000")
    assert run.done.stdout.startswith("right")
    assert run.done.returncode != 0


@pytest.mark.slow
def test_one_that_does_not_come_is_an_error_where_a_time_is_given(openmpi: Mpi, folder: Path) -> None:
    told = folder / "late.txt"
    run = small(openmpi, folder, [table(folder, 2)], "late", "100000", ANTIPHON_TIMEOUT="0.5", LATE=str(told))
    assert told.read_text() == "late: -1 -1\n"
    assert "nothing came or went for 0.5 seconds" in run.done.stderr
    assert "an earlier call on this communicator failed" in run.done.stderr
    assert run.done.returncode != 0


WAITS = """
import os, resource, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import numpy as np
from mpi4py import MPI

def given_away():
    # by who sleeps once in each look at most, by who does not some 80,000 times
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw

comm, data = MPI.COMM_WORLD, np.ones(5000, np.float32)
comm.Allreduce(MPI.IN_PLACE, data)
time.sleep(0 if comm.rank else 2)
before = given_away()
comm.Allreduce(MPI.IN_PLACE, data)
most = comm.reduce(given_away() - before if comm.rank else 0, MPI.MAX)
if comm.rank == 0:
    print("right" if most < 5000 else f"the processor was given away {most} times")
"""


@pytest.mark.slow
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: [])(0)) < 2, reason="needs two processors")
def test_who_waits_among_more_processes_than_processors_sleeps(mpi: Mpi, folder: Path) -> None:
    run = Run(mpi, folder, 3, [mpi.python, "-c", WAITS], [table(folder, 3)], ANTIPHON_LEAST="0").right()
    assert run.served("allreduce", 3) == 2


@pytest.mark.slow
def test_where_the_engine_is_loaded_by_python_it_offers_nothing(openmpi: Mpi, folder: Path) -> None:
    script = folder / "local.py"
    script.write_text(
        "import numpy as np\n"
        "from antiphon.runtimes.engine.build import library\nfrom antiphon.runtimes.engine.native import Engine\n"
        "engine = Engine(library('mpi'))\n"
        "from mpi4py import MPI\n"
        "wire = engine.mpi(MPI.COMM_WORLD, [0, 1], 2)\n"
        "a = np.ones(5000)\n"
        "MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, a)\nassert a[0] == 2\n"
        "wire.close()\nprint('right') if MPI.COMM_WORLD.rank == 0 else None\n"
    )
    report = folder / "nothing.json"
    settings = {"ANTIPHON_TABLE": str(table(folder, 2)), "ANTIPHON_REPORT": str(report), "ANTIPHON_LEAST": "0"}
    Run(openmpi, folder, 2, [openmpi.python, str(script)], None, **settings).right()
    assert not report.exists()


# ---- without processes ----


@pytest.mark.slow
def test_the_book_maker_answers(tmp_path: Path, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    path = table(folder, 2)
    kept = tmp_path / "new" / f"{hashlib.sha256(path.read_bytes()).hexdigest()}-1.book"
    assert files.main(str(path), str(kept)) == 0
    answer = capfdbinary.readouterr().out
    assert answer == b"book\n" + kept.read_bytes()
    assert read_table(kept) == read_table(path)
    assert files.main(str(path), "/proc/none/a.book") == 0
    assert capfdbinary.readouterr().out == answer
    assert files.main(str(tmp_path / "none.json")) == 1
    assert capfdbinary.readouterr().out.startswith(b"error ")
    assert files.main(str(path), str(tmp_path / "new" / "of-another-table.book")) == 0  # it changed meanwhile
    assert not (tmp_path / "new" / "of-another-table.book").exists()
    for number in range(70):
        files.write_cache_file(b"x", tmp_path / "many" / f"{number}.book")
    assert len(list((tmp_path / "many").glob("*"))) == files.MAX_FILES


# ---- communicators ----


@pytest.mark.slow
def test_many_communicators(mpi: Mpi, folder: Path) -> None:
    """In turn copies of the world, halves of it, and its reverse: 15 of each. The first eight calls of each that a plan
    could serve are the library's; then memory is shared, until that is as much as it may be."""
    run = Run(
        mpi, folder, 4, [compiled(folder, mpi, "many"), "45", "3", "5"], [table(folder, 4), table(folder, 2)],
        ANTIPHON_LEAST="0", ANTIPHON_AFTER="8",
    ).right()  # fmt: skip
    assert run.warnings == []
    soon_freed, at_the_end, copies, halves, reverses = 5, 2, 15, 30, 15
    new = {kind: run.left[f"{kind}: the communicator was new"] for kind in ("broadcast", "reduce", "allgather")}
    others = soon_freed + at_the_end + 2 * (copies + halves)
    # of rounds of allreduce, broadcast, reduce, allgather; blocks have an order, which no table has for a reverse
    assert new == {"broadcast": others + 3 * reverses, "reduce": others + 2 * reverses, "allgather": others}
    assert run.left["allgather: the table has no plan for it"] == 4 * reverses - 20  # one has none at all
    assert run.served("allreduce", 2) > 0
    assert run.served("allgather", 4) > 1  # also that of the end, when there is memory again
    assert run.left["allreduce: other communicators had the memory that may be shared"] > 15
    assert float(run.done.stdout.split()[1]) < 100


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["0", "2", "3"])
def test_communicators_some_of_which_share_memory(mpi: Mpi, folder: Path, shared: str) -> None:
    """Of five processes two or three at most: messages between the others are MPI's, on a communicator for them."""
    run = Run(
        mpi, folder, 5, [compiled(folder, mpi, "many"), "6", "3", "3"], [table(folder, ranks) for ranks in (5, 2, 3)],
        ANTIPHON_LEAST="0", ANTIPHON_SHARED=shared,
    ).right()  # fmt: skip
    assert run.warnings == []
    assert run.left == {"allgather: the table has no plan for it": 8}
    assert [run.served("allgather", ranks) for ranks in (5, 2, 3)] == [14, 8, 8]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["two", "one", "after nothing"])
def test_a_further_table_is_for_all_processes_in_another_order(openmpi: Mpi, folder: Path, which: str) -> None:
    """Of three communicators and one at the end the second is of halves and the third the world backwards; before, more
    copies than can have memory at once are made and freed."""
    all_of_them, others = table(folder, 4), table(folder, 4, OTHERS, "others")
    tables, gathered = {
        "one": ([all_of_them], 3), "after nothing": (["", all_of_them], 5), "two": ([all_of_them, others], 5)
    }[which]  # fmt: skip
    command = [compiled(folder, openmpi, "many"), "3", "1", "20"]
    run = Run(openmpi, folder, 4, command, tables, ANTIPHON_LEAST="0").right()
    assert run.served("allgather", 4) == 20 + gathered
    assert run.served("allreduce", 4) == 20 + 5 + 1  # also of the world, at the end
    assert run.left.get("allgather: the table has no plan for it", 0) == 5 - gathered


ROWS_AND_COLUMNS = """
from mpi4py import MPI
import numpy as np
world = MPI.COMM_WORLD
row, column = world.Split(world.rank // 2, world.rank), world.Split(world.rank % 2, world.rank)
for _ in range(3):
    total, gathered = np.full(5000, world.rank, "f8"), np.empty((2, 5000))
    row.Allreduce(MPI.IN_PLACE, total)
    column.Allgather(total, gathered)
    if (total != 1 + 4 * (world.rank // 2)).any() or (gathered != [[1], [5]]).any():
        world.Abort()
print("right") if world.rank == 0 else None
"""


@pytest.mark.slow
def test_a_plan_for_groups_serves_each_of_their_communicators(mpi: Mpi, folder: Path) -> None:
    machine = antiphon.topology("mesh:dims=2x2")
    plan = antiphon.plan(antiphon.collective("allreduce@rows + allgather@columns", machine), machine)
    save_plans(folder / "groups.json", {"custom": plan}, table=False)
    command = [mpi.python, "-c", ROWS_AND_COLUMNS]
    run = Run(mpi, folder, 4, command, [folder / "groups.json"], ANTIPHON_LEAST="0").right()
    assert run.warnings == []
    assert run.by("groups") == {"allreduce": 3, "allgather": 3}


# ---- tables that take long ----


@pytest.fixture
def slow_start(tmp_path: Path) -> str:
    """Python takes longer than the library is silent."""
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(2.5)\n")
    return str(tmp_path)


def new_table(folder: Path, name: str) -> Path:
    """Of bytes that no library has ever seen."""
    made = table(folder, 2, {"allreduce": "ring"}, name)
    bits = f"{int.from_bytes(os.urandom(8), 'big'):064b}"
    made.write_text(made.read_text() + bits.replace("0", " ").replace("1", "\n"))
    return made


@pytest.mark.slow  # whoever waits takes a whole processor meanwhile
def test_what_takes_long_is_said(openmpi: Mpi, folder: Path, slow_start: str) -> None:
    path = new_table(folder, "slow")
    first = small(openmpi, folder, [path], PYTHONPATH=slow_start).right()
    (line,) = first.compiling
    assert f"compiled, now {path}; `antiphon build mpi --table FILE` does that before a job" in line
    assert small(openmpi, folder, [path], PYTHONPATH=slow_start).right().compiling == []


@pytest.mark.slow
def test_tables_are_compiled_before_a_job(
    openmpi: Mpi, folder: Path, slow_start: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([slow_start, os.environ.get("PYTHONPATH", "")]))
    path = new_table(folder, "before")
    made = antiphon.native.build("mpi", openmpi.mpicc, path)
    books = made.parent / "books"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert [book for book in books.iterdir() if book.name.startswith(digest)]
    assert capfd.readouterr() == ("", "")  # whoever asked for it knows what takes so long
    with pytest.raises(AntiphonError, match=r"nothing\.json: No such file"):
        antiphon.native.build("mpi", openmpi.mpicc, [path, folder / "nothing.json"])
    with pytest.raises(AntiphonError, match="takes no tables"):
        antiphon.native.build("nccl-tuner", "", path)
