"""Processes that make different calls (mismatch_process.py): each is told, within seconds, and no number is wrong.

Whoever needs something of all others cannot complete the call in which they part; who only gives something away learns
of it in the next call."""

import re
import shutil
import sys
import threading
from collections import defaultdict
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mismatch_process
import numpy as np
import pytest
from addresses import free_addresses
from hypothesis import given
from hypothesis import strategies as st
from mpi_env import Mpi
from quick import ordinary
from test_comm import launch

import antiphon
from antiphon.core.plan import Entry, Plan
from antiphon.errors import Invalid, TimedOut
from antiphon.runtimes.engine.native import Mismatch, TransportFailed
from antiphon.runtimes.serve import group_start
from antiphon.runtimes.serve.book import make_book
from antiphon.runtimes.serve.call_head import CallHead
from antiphon.select import save_plans

PROGRAM = str(Path(__file__).with_name("mismatch_process.py"))
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
Row = dict[str, Any]
BOTH = re.compile(
    r"^rank \d makes call \d+: .+, this rank call \d+: .+; all must make the same calls in the same order$"
)
TO_ONE = ("from one", "to one", "root", "moved", "combined", "booleans")  # some give only, and go on


def found_by(command: list[str], env: dict[str, str] | None = None) -> dict[tuple[str, str], list[Row]]:
    rows, said = launch(command, env)
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if "case" in row:
            found[row["case"], row["how"]].append(row)
        else:
            assert not any(row["codes"]), said
    for group in found.values():
        assert len(group) == group[0]["ranks"], said
    return found


def check(found: dict[tuple[str, str], list[Row]], names: Collection[str], ways: int) -> None:
    """Every rank ends in an error, none by waiting until it is too late, and one at least names both calls."""
    assert {name for name, _ in found} == {*names}
    assert len(found) == ways * len(names)
    for (name, how), rows in found.items():
        told = [(row["rank"], row["done"], row["kind"], row["error"]) for row in rows]
        assert all(row["kind"] in ("Mismatch", "TransportFailed", "CollectiveFailed") for row in rows), (
            name,
            how,
            told,
        )
        assert any(BOTH.match(row["error"]) for row in rows), (name, how, told)
        assert not any("nothing came or went" in row["error"] for row in rows), (name, how, told)
        most = 2 if any(part in name for part in TO_ONE) else 0  # the call after it may be right
        assert all(row["done"] <= most for row in rows), (name, how, told)


NAMES = [name for name, _, _ in mismatch_process.PAIRS]
NEAR = [
    pytest.param("", id="shared memory and not, in turn"),
    pytest.param("1", id="shared memory", marks=pytest.mark.slow),
    pytest.param("0", id="none shared", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("near", NEAR)
def test_every_kind_between_processes_without_mpi(monkeypatch: pytest.MonkeyPatch, near: str) -> None:
    names = NAMES[:: (each := 3 if ordinary else 1)]
    monkeypatch.setenv("MISMATCH_NEAR", near)
    monkeypatch.setenv("MISMATCH_EACH", str(each))
    check(found_by([sys.executable, PROGRAM, "comm", "4", *free_addresses(2 * len(names))]), names, 2)


def tables(folder: Path, ranks: int) -> list[str]:
    """One for all kinds; and one for allreduce alone, from 16 bytes on, and for alltoall: the rest is the library's."""
    machine = antiphon.topology(f"full:ranks={ranks}")
    planners = {"allreduce": "ring", "allgather": "bruck", "reducescatter": "direct", "alltoall": "direct"}
    planners |= {"broadcast": "binomial-tree", "reduce": "binomial-tree", "gather": "direct", "scatter": "direct"}
    plans = {kind: antiphon.plan(kind, machine, planner=planner) for kind, planner in planners.items()}
    save_plans(folder / "all.json", plans, table=True)
    ring = plans["allreduce"].entries[0]
    some = (
        Entry(0, 16, ring.schedule, {**ring.claims, "served_by": "library"}),
        Entry(16, None, ring.schedule, ring.claims),
    )
    mixed = {"allreduce": Plan(machine, plans["allreduce"].collective, some), "alltoall": plans["alltoall"]}
    save_plans(folder / "some.json", mixed, table=True)
    return [str(folder / "all.json"), str(folder / "some.json")]


def check_mpi(mpi: Mpi, folder: Path, near: str) -> None:
    command = [*mpi.mpiexec(3), mpi.python, PROGRAM, "mpi", *tables(folder, 3)]
    found = found_by(command, {**mpi.env, "MISMATCH_NEAR": near})
    check(found, NAMES, 3)


@pytest.mark.slow
@pytest.mark.parametrize("near", NEAR)
def test_every_kind_under_open_mpi(openmpi: Mpi, tmp_path: Path, near: str) -> None:
    check_mpi(openmpi, tmp_path, near)


@pytest.mark.slow
@pytest.mark.parametrize("near", NEAR)
def test_every_kind_under_mpich(mpich: Mpi, tmp_path: Path, near: str) -> None:
    check_mpi(mpich, tmp_path, near)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install 'antiphon[torch]'")
@pytest.mark.parametrize("near", NEAR)
def test_every_kind_under_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near: str) -> None:
    monkeypatch.setenv("MISMATCH_NEAR", near)
    monkeypatch.delenv("ANTIPHON_TABLE", raising=False)
    found = found_by([sys.executable, "-W", "ignore", PROGRAM, "torch", "4", str(tmp_path)])
    wrong = {
        key: found.pop(key) for key in list(found) if key[0] in ("all_to_all sends more", "all_to_all expects more")
    }
    check(found, {name for name, _ in found}, 2)
    assert len(found) == 34
    assert len(wrong) == 4
    for (name, _), rows in wrong.items():  # all are told alike, and the group goes on
        last = rows[0]["ranks"] - 1
        sends, expects = (4, 3) if "sends" in name else (3, 2)
        a, b = (last, 0) if "sends" in name else (0, last)
        text = f"all_to_all: rank {a} sends {sends} elements to rank {b}, which expects {expects} from it"
        assert {(row["kind"], row["error"]) for row in rows} == {("ValueError", text)}, rows


# ---- what all must have alike, and what they need not ----


def side_by_side(ranks: int, do: Any, **options: Any) -> list[Any]:
    """`do` in so many threads, each a process to the others."""
    (address,) = free_addresses(1)

    def one(rank: int) -> Any:
        with antiphon.comm.connect(rank=rank, ranks=ranks, address=address, **{"timeout": 20.0, **options}) as c:
            return do(c)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


def test_some_in_place_and_some_not_is_right() -> None:
    """Their messages are the same."""

    def do(c: Any) -> bool:
        for here in (False, True):
            inside = (c.rank % 2 == 1) == here
            x = np.arange(12.0) + c.rank
            got = c.allreduce(x, out=x if inside else None)
            assert np.array_equal(got, 3 * np.arange(12.0) + 3)
            line = np.zeros(36)
            own = line[12 * c.rank : 12 * c.rank + 12] if inside else np.zeros(12)
            own[:] = c.rank
            assert np.array_equal(c.allgather(own, out=line), np.repeat([0.0, 1.0, 2.0], 12))
            x = np.arange(3.0) + 10 * c.rank
            assert np.array_equal(c.alltoall(x, out=x if inside else None), np.arange(0, 30, 10) + c.rank)
            x = np.arange(6.0)
            own = x[2 * c.rank : 2 * c.rank + 2] if inside else np.zeros(2)
            assert np.array_equal(c.reducescatter(x, out=own), 3 * np.arange(2 * c.rank, 2 * c.rank + 2))
        return True

    assert side_by_side(3, do) == [True] * 3


def test_a_call_of_another_group_is_an_error_that_names_it() -> None:
    """Whether a process that waits in one group will ever come to another, nobody can know: patience has an end."""
    first, second = free_addresses(2)

    def one(rank: int) -> str:
        with (
            antiphon.comm.connect(rank=rank, ranks=2, address=first, timeout=1.0) as a,
            antiphon.comm.connect(rank=rank, ranks=2, address=second, timeout=1.0) as b,
            pytest.raises((TimedOut, TransportFailed)) as told,
        ):
            (a if rank else b).allreduce(np.ones(4))
        return str(told.value)

    with ThreadPoolExecutor(2) as pool:
        for text in pool.map(one, range(2)):
            assert "(call 1: allreduce (sum) of 32 bytes of float64)" in text


def test_another_table_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 0 hands its table to all; one that has another all the same, of plans as many and as large, is told."""
    machine = antiphon.topology("full:ranks=2")
    books = [make_book([antiphon.plan("allreduce", machine, planner=planner)]) for planner in ("ring", "direct")]
    taken = iter(books)
    monkeypatch.setattr(group_start, "decode_book", lambda _: next(taken))

    def do(c: Any) -> str:
        with pytest.raises(TransportFailed) as told:
            c.allreduce(np.ones(4))
        return str(told.value)

    said = side_by_side(2, do)
    assert any("by other plans than this rank" in text for text in said), said


def test_another_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = iter(("1.0", "1.1"))
    monkeypatch.setattr(group_start, "version", lambda: next(versions))
    (address,) = free_addresses(1)

    def one(rank: int) -> str:
        with pytest.raises(Invalid) as told:
            antiphon.comm.connect(rank=rank, ranks=2, address=address, timeout=20.0)
        return str(told.value)

    with ThreadPoolExecutor(2) as pool:
        said = {*pool.map(one, range(2))}
    assert len(said) == 1
    assert re.match(
        r"process 1 runs version 1\.. of Antiphon, process 0 version 1\..; install the same for all", said.pop()
    )


def test_ranks_that_only_give_are_told_by_the_next_call_they_take_from() -> None:
    def do(c: Any) -> tuple[int, str]:
        done = 0
        c.broadcast(np.ones(4), 0)
        c.broadcast(np.ones(4), 1)
        for _ in range(3):
            c.broadcast(np.ones(4), root=c.rank)
            done += 1
        with pytest.raises(TransportFailed) as told:
            c.allreduce(np.ones(4))
        return done, str(told.value)

    found = side_by_side(2, do)
    assert [done for done, _ in found] == [3, 3]
    assert any(BOTH.match(text) and "makes call 3: broadcast from" in text for _, text in found), found
    assert issubclass(Mismatch, TransportFailed)


def giving_only(rank: int, address: str, both: threading.Barrier) -> str:
    try:
        with antiphon.comm.connect(rank=rank, ranks=2, address=address, timeout=20.0) as c:
            for root in range(2):
                c.broadcast(np.ones(4), root)
            c.allreduce(np.ones(4))
            c.broadcast(np.ones(4), rank)
            both.wait(timeout=20)
    except TransportFailed as error:
        return str(error)
    return ""


@pytest.mark.parametrize("near", ["1", "0"])
def test_ranks_that_give_and_end_are_told_at_the_end(monkeypatch: pytest.MonkeyPatch, near: str) -> None:
    """Whoever ends last sees what the other gave."""
    monkeypatch.setenv("ANTIPHON_SHARED", near)
    (address,) = free_addresses(1)
    with ThreadPoolExecutor(2) as pool:
        said = [*pool.map(giving_only, range(2), [address] * 2, [threading.Barrier(2)] * 2)]
    assert any(BOTH.match(text) and "call 4: broadcast from rank" in text for text in said), said


@given(st.lists(st.sampled_from(["allreduce", "broadcast", "again", "stage 1", "stage 2", "stage 0", "extend"])))
def test_what_is_told_of_a_call_is_what_a_fresh_head_would_tell(steps: list[str]) -> None:
    """The same call again only gets another number; what was written in between must not stay."""
    head, about, call, made = CallHead(3, b"plans"), [b"plans"], ("allgather", 8, 1, "", -1), 0
    for step in steps:
        if step.startswith("stage"):
            head.stage(int(step[-1]))
        elif step == "extend":
            head.extend(b"more")
            about.append(b"more")
        else:
            call = call if step == "again" else (step, 1024, 11, "sum", 0)
            head.begin(*call)
            made += 1
            fresh = CallHead(3, about[0])
            for more in about[1:]:
                fresh.extend(more)
            fresh.number = made - 1
            fresh.begin(*call)
            assert head.memory.raw == fresh.memory.raw
