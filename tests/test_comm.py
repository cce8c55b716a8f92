"""antiphon.comm with real processes: over both MPIs, and over sockets; every result is known."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from addresses import free_addresses
from mpi_env import Mpi
from program_cases import idle_book
from program_run import run_program
from quick import in_turn
from small_plans import plan_of_counts

import antiphon
from antiphon.core.collective import Collective
from antiphon.core.plan import Entry, Plan
from antiphon.core.program import decode, prove
from antiphon.errors import Invalid
from antiphon.runtimes.engine.learned import read_learned
from antiphon.runtimes.engine.native import TransportFailed
from antiphon.runtimes.serve.book import decode_book, encode_book, make_book
from antiphon.runtimes.serve.group_book import DEFAULTS, NEAR, default_book, group_book, read_any
from antiphon.select import save_plans

PROGRAM = str(Path(__file__).with_name("comm_process.py"))
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def launch(command: list[str], env: dict[str, str] | None = None) -> tuple[list[dict[str, Any]], str]:
    """The JSON lines it prints, and all that it prints; nothing of it stays behind."""
    given = {key: value for key, value in (env or os.environ).items() if key != "ANTIPHON_CACHE"}
    with subprocess.Popen(
        command, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said = process.communicate(timeout=1000)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")], said


def table(folder: Path, ranks: int) -> Path:
    """All processes: allreduce, by the library below 16 bytes; some: allgather."""
    machine = antiphon.topology(f"full:ranks={ranks}")
    ring = antiphon.plan("allreduce", machine, planner="ring")
    one, claims = ring.entries[0].schedule, ring.entries[0].claims
    ring = Plan(
        machine, ring.collective, (Entry(0, 16, one, {**claims, "served_by": "library"}), Entry(16, None, one, claims))
    )
    some = antiphon.plan(Collective("allgather", ranks, members=(0, *range(2, ranks))), machine, planner="bruck")
    plans = {"allreduce": ring, "allgather": some}
    plans["alltoall"] = antiphon.plan("alltoall", machine, planner="pairwise")
    save_plans(folder / "table.json", plans, table=True)
    return folder / "table.json"


def calls(rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], int]:
    return {(row["collective"], row["schedule"], row["why"]): row["calls"] for row in rows}


@pytest.fixture
def mpi(request: pytest.FixtureRequest) -> Mpi:
    found: Mpi = request.getfixturevalue(request.param)
    return found


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("mpi", ["openmpi", "mpich"], indirect=True)
def test_under_mpi(mpi: Mpi, tmp_path: Path) -> None:
    command = [*mpi.mpiexec(4), mpi.python, PROGRAM, "mpi", str(table(tmp_path, 4))]
    found, said = launch(command, mpi.env)
    assert len(found) == 1, said
    by_table, by_none = calls(found[0]["table"]), calls(found[0]["none"])
    assert by_table["allreduce", "ring", ""] == 87  # those of 16 bytes or more
    assert by_table["allreduce", "the library", "measured to be slower than the library"] == 110
    assert by_table["alltoall", "pairwise", ""] == 96
    assert by_table["allgather", "the library", "no schedule for it in the table"] == 98  # there is one for some only
    assert len(by_none) == 8
    assert {why for _, _, why in by_none} == {"no schedule for it in the table"}
    assert calls(found[0]["counts"])["alltoall", "point to point", ""] == 7
    assert calls(found[0]["some"]) == {("allgather", "bruck", ""): 1}


def over_sockets(ranks: int, given: str, *checks: str) -> tuple[list[dict[str, Any]], str]:
    return launch([sys.executable, PROGRAM, "sockets", str(ranks), *free_addresses(1), given, *checks])


@needs_cc
@pytest.mark.parametrize("near", [pytest.param(True, marks=pytest.mark.slow), False])
def test_over_sockets_and_through_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near: bool) -> None:
    monkeypatch.setenv("ANTIPHON_SHARED", str(int(near)))
    (told, *_, ended), said = over_sockets(3, str(table(tmp_path, 3)), "all")
    assert ended == {"codes": [0, 0, 0]}, said
    found = calls(told["report"])
    assert found["allreduce", "ring", ""] == 87  # those of 16 bytes or more
    assert found["allreduce", "direct (default)" if near else "recursive-doubling (default)", ""] == 110
    assert {row["served_by"] for row in told["report"]} == {"antiphon"}
    default = {name.partition(" ")[0] for _, name, _ in found if "(default)" in name}
    others = set() if near else {"bruck", "recursive-doubling"}
    assert default >= {"direct", "binomial-tree", *others}  # what the table has nothing for


@needs_cc
@pytest.mark.parametrize("near", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_alltoall_of_uneven_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near: bool) -> None:
    """By a plan for an average of counts, from 1 KB on, whatever the counts of a call are."""
    monkeypatch.setenv("ANTIPHON_SHARED", str(int(near)))
    plan = plan_of_counts(antiphon.topology("line:ranks=3"))
    save_plans(tmp_path / "plan.json", {"alltoall": plan}, table=False)
    (told, *_, ended), said = over_sockets(3, str(tmp_path / "plan.json"), "counts")
    assert ended == {"codes": [0, 0, 0]}, said
    found = calls(told["report"])
    assert (found["alltoall", "relay", ""], found["alltoall", "point to point", ""]) == (4, 3)


def learned(report: list[dict[str, Any]]) -> set[str]:
    """The schedules that served allreduces of 200 KB, after what is said of the choices has been checked."""
    rows = [row for row in report if row["served_by"] == "learned"]
    assert {row["schedule"] for row in rows} >= {"calls of 1200 bytes", "calls of 200000 bytes"}
    assert all("(first search)" in row["why"] for row in rows)
    return {row["schedule"] for row in report if row["collective"] == "allreduce" and row["nbytes"] > 100_000}


@needs_cc
@pytest.mark.parametrize("near", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_learning_over_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near: bool) -> None:
    monkeypatch.setenv("ANTIPHON_SHARED", str(int(near)))
    monkeypatch.setenv("ANTIPHON_LEARN", "1")
    (told, *_, ended), said = over_sockets(3, "", "learns")
    assert ended == {"codes": [0, 0, 0]}, said
    names = learned(told["report"])
    assert {name.partition(" ")[0] for name in names} == {name for _, name in (NEAR if near else DEFAULTS)["allreduce"]}
    assert any(" x" in name for name in names)


@pytest.mark.slow
@needs_cc
def test_what_was_learned_over_sockets_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a file with a damaged line, which it loses; a file that is none ends no job, and stays."""
    monkeypatch.setenv("ANTIPHON_LEARN", "1")
    monkeypatch.setenv("ANTIPHON_LEARNED", str(tmp_path / "learned.txt"))
    for why in ("(first search)", "(learned before)"):
        (told, *_, ended), said = over_sockets(2, "", "learns")
        assert ended == {"codes": [0, 0]}, said
        (text,) = [row["why"] for row in told["report"] if row["schedule"] == "calls of 200000 bytes"]
        assert text.partition(";")[0].endswith(why)
        chosen = [line for line in read_learned(tmp_path / "learned.txt") if line.chosen]
        with (tmp_path / "learned.txt").open("a") as file:
            file.write("allreduce\t2\t\n")
    (tmp_path / "learned.txt").write_text("mine")
    (*_, ended), said = over_sockets(2, "", "learns")
    assert ended == {"codes": [0, 0]}, said
    assert said.count("antiphon: ANTIPHON_LEARNED: ") == 2  # at the start, and where it would be written
    assert (tmp_path / "learned.txt").read_text() == "mine"
    assert {(line.collective, line.ranks, line.nbytes) for line in chosen} >= {("allreduce", 2, 200_000)}


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"], indirect=True)
def test_learning_under_mpi(mpi: Mpi, tmp_path: Path) -> None:
    command = [*mpi.mpiexec(3), mpi.python, PROGRAM, "mpi", str(table(tmp_path, 3))]
    (told,), said = launch(command, {**mpi.env, "ANTIPHON_LEARN": "1"})
    assert {"ring", "ring x2", "the library"} <= learned(told["report"]), said


SHARES = """
import os, sys, numpy as np, antiphon
if sys.argv[1] != "mpi":
    rank = int(os.fork() == 0)
    if rank:
        os.environ["ANTIPHON_SHARED"] = sys.argv[3]
    found = antiphon.comm.connect(address=sys.argv[2], rank=rank, ranks=2)
else:
    found = antiphon.comm.connect(table=sys.argv[2])
def mapped():
    return sum("memfd:antiphon" in line for line in open("/proc/self/maps"))
got = found.allreduce(np.ones(100_000))
assert (got == found.ranks).all()
before = mapped()
found.close()
os.write(1, f'{{"during": {before}, "after": {mapped()}}}\\n'.encode())
"""


@pytest.mark.slow
@needs_cc
@pytest.mark.skipif(sys.platform != "linux", reason="such memory is Linux's")
@pytest.mark.parametrize("other", ["1", "0"])
def test_processes_of_one_host_share_memory_if_all_want_to(other: str) -> None:
    found, said = launch([sys.executable, "-c", SHARES, "fork", *free_addresses(1), other])
    assert found == [{"during": int(other), "after": 0}] * 2, said


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [1, 0])
def test_mpi_processes_of_one_host_share_memory(openmpi: Mpi, tmp_path: Path, wanted: int) -> None:
    command = [*openmpi.mpiexec(3), openmpi.python, "-c", SHARES, "mpi", str(table(tmp_path, 3))]
    found, said = launch(command, {**openmpi.env, "ANTIPHON_SHARED": str(wanted)})
    assert found == [{"during": wanted, "after": 0}] * 3, said


COUNTED_SENDS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
int PMPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    int (*next)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *) =
        (int (*)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *))dlsym(RTLD_NEXT, "PMPI_Isend");
    int rank;
    PMPI_Comm_rank(comm, &rank);
    if (!rank) fprintf(stderr, "sent %d\n", count);
    return next(data, count, type, to, tag, comm, request);
}
"""
SUMS = """
import sys, numpy as np, antiphon
comm = antiphon.comm.connect(table=sys.argv[1])
for count in (0, 100, 31_000, 500_000, 1_500_000):
    values = np.arange(count, dtype="f8") * (comm.rank + 1)
    assert (comm.allreduce(values) == 6 * np.arange(count)).all()
print("{}")
"""


# Settings of Open MPI, the longest piece, and what is sent whole although it is longer: blocks of 4 MB, in eight slices
PIECES = [
    ({"btl": "tcp,self"}, 65_024, set()),
    ({"btl": "tcp,self", "btl_tcp_eager_limit": "4096"}, 3_584, {500_000}),  # too many pieces
    ({"btl": "sm,self"}, 200_000, {500_000}),
]


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize(("settings", "limit", "longer"), PIECES)
def test_open_mpi_by_tcp_sends_messages_in_pieces(
    openmpi: Mpi, tmp_path: Path, settings: dict[str, str], limit: int, longer: set[int]
) -> None:
    """Above its eager limit a message would wait for an agreement, behind what goes the other way."""
    (tmp_path / "counted.c").write_text(COUNTED_SENDS)
    counted = tmp_path / "counted.so"
    subprocess.run([*openmpi.compiler, "-shared", "-fPIC", str(tmp_path / "counted.c"), "-o", str(counted)], check=True)
    own = {f"OMPI_MCA_{name}": value for name, value in {**settings, "pml": "ob1"}.items()}
    env = {**openmpi.env, **own, "ANTIPHON_SHARED": "0", "LD_PRELOAD": str(counted)}
    found, said = launch([*openmpi.mpiexec(3), openmpi.python, "-c", SUMS, str(table(tmp_path, 3))], env)
    assert found == [{}] * 3, said
    sent = {int(line.split()[1]) for line in said.splitlines() if line.startswith("sent ")}
    assert {length for length in sent if length > limit} == longer
    assert max(sent - longer) > 0.9 * min(limit, 166_672)


@needs_cc
def test_a_killed_process_is_an_error_at_the_others() -> None:
    found, said = over_sockets(4, "", "killed")
    assert found[-1] == {"codes": [1, 1, 1, -9]}, said
    errors = {row["rank"]: row for row in found[:-1]}
    assert {row["kind"] for row in errors.values()} == {"TransportFailed"}
    assert len(errors) == 3
    assert all("is lost" in row["error"] for row in errors.values())


@needs_cc
@pytest.mark.parametrize(
    ("checks", "given", "told"),
    in_turn(
        [
            ([], "absent.json", "absent.json: cannot be read"),
            (["lonely"], "", "the first is rank 2|did not all answer|is gone|did not answer"),
            (["odd"], "", "expects 4 processes|is gone|did not answer|does not listen"),
        ],
        3,
    ),
    ids=["no table", "a process that does not come", "another number of processes"],
)
def test_what_cannot_be_is_told_to_all(checks: list[str], given: str, told: str) -> None:
    found, said = over_sockets(3, given, *checks)
    errors = [row for row in found if "error" in row]
    assert len(errors) == len(found[-1]["codes"]), said
    assert all(re.search(told, row["error"]) for row in errors), errors


WRONG = r"wrong\.book: the program for allreduce \(ring\): rank 0 ends without block 0, which the allreduce gives to it"


@pytest.mark.slow
@needs_cc
def test_a_book_that_is_not_its_collective_is_an_error_at_all(tmp_path: Path) -> None:
    found, said = over_sockets(3, str(idle_book(tmp_path / "wrong.book", 3)))
    assert found[-1] == {"codes": [1, 1, 1]}, said
    assert [row["kind"] for row in found[:-1]] == ["Invalid"] * 3, said
    assert all(re.search(WRONG, row["error"]) for row in found[:-1]), said


READS = """
import json, os, sys, antiphon, antiphon.errors
try:
    antiphon.comm.connect(table=sys.argv[1]).close()
except antiphon.errors.Invalid as error:
    os.write(1, json.dumps(str(error)).encode().join([b'{"error": ', b"}\\n"]))
"""


@needs_cc
@pytest.mark.parametrize("first", ["allreduce", "alltoall"])
def test_calls_in_different_order_are_told_and_nothing_goes_on_after_it(first: str) -> None:
    """Both calls need a plan made at once, which would be that for another call."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"

    def take_part(rank: int) -> list[str]:
        said = []
        with antiphon.comm.connect(rank=rank, ranks=2, address=address, timeout=60) as group:
            for name in (first if rank else "allgather", "reduce", "reducescatter"):
                with pytest.raises(TransportFailed) as told:
                    getattr(group, name)(np.ones(4))
                said.append(str(told.value))
        return said

    with ThreadPoolExecutor(2) as pool:
        (at_first, at_second) = pool.map(take_part, range(2))
    assert "the connection to rank 1 is lost" in at_first[0]
    assert re.fullmatch(
        rf"rank 0 makes call 1: allgather of 32 bytes of float64, this rank call 1: {first} .*of \d\d bytes of float64"
        "; all must make the same calls in the same order",
        at_second[0],
    )
    assert all(text.startswith("an earlier call failed: ") for text in (*at_first[1:], *at_second[1:]))


def test_one_process_alone_needs_nothing() -> None:
    with antiphon.comm.connect(rank=0, ranks=1, address="nowhere:1") as c:
        x = np.arange(4.0)
        assert c.allreduce(x, "avg").tolist() == [0, 1, 2, 3]
        assert c.allgather(x).tolist() == c.alltoall(x).tolist() == c.reducescatter(x).tolist() == x.tolist()
        assert c.broadcast(x) is x
        assert np.array_equal(c.gather(x), c.scatter(x))
        assert c.report() == []
    page = Path(__file__).parent.parent / "docs" / "numpy.md"
    exec(compile(page.read_text().split("```python\n")[2].partition("```")[0], str(page), "exec"), {})


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"rank": 0}, "needs all of"),
        ({"rank": 2, "ranks": 2, "address": "a:1"}, "from 0 to 1"),
        ({"rank": 0, "ranks": 2, "address": "nowhere"}, "host:port"),
        ({"rank": 0, "ranks": 2, "address": "127.0.0.1:99999"}, "host:port"),
        ({"communicator": 7, "rank": 0, "ranks": 2, "address": "a:1"}, "not both"),
        ({"communicator": 7}, "communicator"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_wrong_arguments(how: dict[str, Any], told: str) -> None:
    if how.keys() == {"communicator"}:
        pytest.importorskip("mpi4py")
    with pytest.raises(Invalid, match=told):
        antiphon.comm.connect(**how)


# ---- books of groups ----


@pytest.mark.parametrize(
    ("ranks", "near"), in_turn([(3, False), (2, False), (2, True), (4, True), (5, False), (5, True)], 3)
)
def test_the_default_plans_are_right(ranks: int, near: bool) -> None:
    for kind in DEFAULTS:
        book = default_book(kind, ranks, 1 if kind in ("broadcast", "reduce", "gather", "scatter") else -1, near)
        assert book.pages[0].start == 0
        assert book.pages[-1].stop is None
        for data in book.programs:
            for program in decode(data):
                prove(program)


def test_default_plans_are_kept_for_small_groups() -> None:
    """One for all roots that mean nothing; large ones could fill the memory."""
    assert default_book("allreduce", 3) is default_book("allreduce", 3, 2)
    assert default_book("allreduce", 3) is not default_book("allreduce", 3, near=True)
    assert default_book("broadcast", 3, 1) is not default_book("broadcast", 3, 2)
    assert default_book("broadcast", 17, 1) is not default_book("broadcast", 17, 1)


def test_a_group_gets_the_plans_for_its_places() -> None:
    machine = antiphon.topology("full:ranks=5")
    plans = [antiphon.plan(Collective("gather", 5, members=(1, 3, 4), roots=(3,)), machine, planner="direct")]
    plans.append(antiphon.plan(Collective("allreduce", 5, members=(1, 3, 4)), machine, planner="ring"))
    whole = make_book(plans, every_root=False)
    group = group_book(whole, 3, (1, 3, 4), 5)
    assert [(page.kind, page.members, page.root) for page in group.pages] == [
        ("gather", (0, 1, 2), 1), ("allreduce", (0, 1, 2), -1),
    ]  # fmt: skip
    assert decode_book(encode_book(group)) == group
    for data in group.programs:
        for program in decode(data):
            prove(program)
    given = [np.arange(7) + r for r in range(3)]
    program = decode(group.programs[1])[0]
    assert all(np.array_equal(out, sum(given)) for out in run_program(program, given, seed=2))
    assert group_book(whole, 3, (0, 1, 2), 5).pages == ()  # other places
    assert len(group_book(whole, 3, (0, 1, 2), 3).pages) == 2  # three processes in all: the machine is elsewhere
    assert group_book(whole, 2, (0, 1), 2).pages == ()


def test_what_can_be_a_table(tmp_path: Path) -> None:
    plan = antiphon.plan("allreduce", antiphon.topology("ring:ranks=3"), planner="ring")
    book = make_book([plan])
    save_plans(tmp_path / "plan.json", {"allreduce": plan}, table=False)
    (tmp_path / "book.bin").write_bytes(encode_book(book))
    files = [tmp_path / "plan.json", tmp_path / "book.bin"]
    for one in (plan, [plan], {"allreduce": plan}, book, encode_book(book), *files):
        assert read_any(one) == book
    for wrong in (7, [], ["plan.json"], {"a": 1}):
        with pytest.raises(Invalid, match="table: expected"):
            read_any(wrong)
    with pytest.raises(Invalid, match="cut off"):
        read_any(encode_book(book)[:-9])
