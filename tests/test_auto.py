"""Plans made at the start of a job: what is asked, for which machine, what is kept and believed, and at which call all
processes take the answer. Real jobs: test_auto_jobs.py."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import antiphon
from antiphon.core.choose import Call
from antiphon.core.reshape import keep, relabel
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.formats.probe.probed import Probed
from antiphon.runtimes.auto import isomorphic
from antiphon.runtimes.auto.allocation import find_allocation
from antiphon.runtimes.auto.answering import answer_question
from antiphon.runtimes.auto.planning import book_of, plan_collectives
from antiphon.runtimes.serve import auto_question
from antiphon.runtimes.serve.auto_question import AutoAnswer, build_question, decode_answer, kept_name, read_kept
from antiphon.runtimes.serve.auto_turns import Turns
from antiphon.runtimes.serve.book import Book, decode_book, encode_book
from antiphon.runtimes.serve.group_book import default_book
from antiphon.runtimes.serve.ledger import LedgerRow
from antiphon.runtimes.serve.serving import Serving

DGX = antiphon.topology("dgx1v")
PART = (1, 4, 5, 6)


def asked(visible: Sequence[str], boots: str = "", environment: dict[str, str] | None = None) -> Probed:
    """The machine of processes that see these GPUs, each on the host of its letter."""
    hosts = boots or "a" * len(visible)
    said = [f"{boot} host-{boot} {one}" for boot, one in zip(hosts, visible, strict=True)]
    told = environment or {}
    return find_allocation(build_question(said, told), told, lambda _: _box())


def _box() -> Probed:
    return Probed(DGX, (), tuple(f"GPU {rank}" for rank in range(8)))


def links(machine: Topology) -> list[tuple[int, int, str]]:
    """In the numbers of the machine, whatever the numbers of links."""
    ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), machine.link_type.tolist(), strict=True)
    return sorted((src, dst, str(machine.types[kind].bandwidth)) for src, dst, kind in ends)


def part(ranks: Sequence[int]) -> list[tuple[int, int, str]]:
    """These GPUs of a DGX-1V, the first of them rank 0."""
    place = {rank: number for number, rank in enumerate(ranks)}
    ends = [(place.get(src), place.get(dst), speed) for src, dst, speed in links(DGX)]
    return sorted((src, dst, speed) for src, dst, speed in ends if src is not None and dst is not None)


# ---- which machine it is ----


@pytest.mark.parametrize(
    ("visible", "environment", "ranks"),
    [
        (["-"] * 8, {}, range(8)),
        (["-"] * 4, {}, range(4)),
        (["=1,4,5,6"] * 4, {}, PART),
        (["=6,5,4,1"] * 4, {}, (6, 5, 4, 1)),
        (["=1,4,5,6,7"] * 4, {}, PART),  # one is left over
        (["=1", "=4", "=5", "=6"], {}, PART),
        (["=GPU-8b"] * 8, {}, range(8)),
        (["-"] * 4, {"ANTIPHON_RANKS": "1,4-6"}, PART),
        (["=0"] * 4, {"ANTIPHON_RANKS": "6,5,4,1"}, (6, 5, 4, 1)),  # it goes before what is seen
        (["=1,4,5,6"] * 4, {"ANTIPHON_TOPOLOGY": "dgx1v"}, PART),
        (["-"] * 8, {"ANTIPHON_TOPOLOGY": "dgx1v"}, range(8)),
    ],
)
def test_a_process_is_the_gpu_that_it_sees_or_that_is_named(
    visible: list[str], environment: dict[str, str], ranks: Sequence[int]
) -> None:
    assert links(asked(visible, "", environment).machine) == part(ranks)


def test_a_machine_of_just_these_processes_is_taken_as_it_is(tmp_path: Path) -> None:
    """The variable counts the GPUs of the whole box, the file has only those of the job."""
    from antiphon.core.serialize import save_topology

    save_topology(tmp_path / "part.json", keep(DGX, PART).topology)
    found = asked(["=1,4,5,6"] * 4, "", {"ANTIPHON_TOPOLOGY": str(tmp_path / "part.json")})
    assert links(found.machine) == part(PART)


def test_hosts_of_a_cluster_in_the_order_in_which_processes_are_on_them() -> None:
    named = {"ANTIPHON_TOPOLOGY": "cluster:boxes=2,box=dgx1v"}
    cluster = antiphon.topology(named["ANTIPHON_TOPOLOGY"])
    found = asked(["=2,3"] * 4, "abab", named)
    want = keep(cluster, (2, 3, 10, 11)).topology
    assert links(found.machine) == links(relabel(want, [0, 2, 1, 3, *range(4, want.nodes)]))
    assert asked(["-"] * 5, "aaaab", named).machine.ranks == 5


@pytest.mark.parametrize(
    ("visible", "boots", "environment", "says"),
    [
        (["-"] * 9, "", {}, "there are 9 processes"),
        (["=0", "=0"], "", {}, "which GPU each process uses"),
        (["=0,1", "-"], "", {}, "only some processes set"),
        (["=8"] * 1 + ["=9"], "", {}, "has 8"),
        (["-"] * 2, "ab", {}, "2 hosts, and their network is unknown"),
        (["-"] * 4, "", {"ANTIPHON_RANKS": "1,4"}, "names 2 ranks"),
        (["-"] * 2, "", {"ANTIPHON_RANKS": "0,8"}, "needed is one of the 8"),
        (["-"] * 2, "", {"ANTIPHON_RANKS": "0;1"}, "expected ranks such as"),
        (["-"] * 2, "", {"ANTIPHON_TOPOLOGY": "dgx9"}, "dgx9"),
        (["-"] * 1, "", {}, "nothing to plan"),
        (["-"] * 2, "", {"ANTIPHON_RANKS": "0,5"}, "nothing to plan"),
    ],
)
def test_what_cannot_be_told_is_said(visible: list[str], boots: str, environment: dict[str, str], says: str) -> None:
    with pytest.raises(AntiphonError, match=says):
        asked(visible, boots, environment)


def test_without_gpus_it_says_what_to_do() -> None:
    cores = Probed(antiphon.topology("full:ranks=2"), ("no NVIDIA GPU on PCIe",), ("core 0", "core 1"))
    with pytest.raises(Unsupported, match=r"no GPU is seen here .*ANTIPHON_TOPOLOGY"):
        find_allocation(build_question(["a host -"] * 2, {}), {}, lambda _: cores)


def test_slurm_tells_of_the_network_between_hosts() -> None:
    from antiphon.formats.probe.joining import read_machine

    fabric = replace(read_machine("star:ranks=3"), names=("host-c", "host-a.site", "host-b"), hosts=True)

    def look(source: str) -> Probed:
        return fabric if source == "slurm" else _box()

    told = {"SLURM_JOB_ID": "1"}
    said = [f"{boot} host-{boot}.site -" for boot in "abab"]
    found = find_allocation(build_question(said, told), told, look)
    assert found.machine.ranks == 4


# ---- what is asked ----


def test_the_same_job_asks_the_same_and_another_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*auto_question.VISIBLE, "ANTIPHON_TOPOLOGY", "ANTIPHON_RANKS"):
        monkeypatch.delenv(name, raising=False)
    names = [kept_name(build_question([auto_question.process_line()] * 2))]
    assert names[0] == kept_name(build_question([auto_question.process_line()] * 2))
    for name, value in (("CUDA_VISIBLE_DEVICES", ""), ("CUDA_VISIBLE_DEVICES", "0,1"), ("ANTIPHON_RANKS", "0,1")):
        monkeypatch.setenv(name, value)
        names.append(kept_name(build_question([auto_question.process_line()] * 2)))
    names.append(kept_name(build_question([auto_question.process_line()] * 3)))
    machine = tmp_path / "machine.json"
    monkeypatch.setenv("ANTIPHON_TOPOLOGY", str(machine))
    for text in ("one", "two"):  # another machine by the same name
        machine.write_text(text)
        names.append(kept_name(build_question([auto_question.process_line()] * 2)))
    assert len(set(names)) == len(names)


def test_no_word_of_the_environment_can_pass_for_another_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0\nprocess b host =1 2")
    told = {"ANTIPHON_RANKS": "0 1\nmachine =x -", "ANTIPHON_TOPOLOGY": "a\tb\n"}
    text = build_question([auto_question.process_line()], told)
    assert len(text.splitlines()) == 4
    assert [len(line.split(" ")) for line in text.splitlines()][1:] == [3, 2, 4]


@pytest.mark.parametrize("text", ["", "antiphon auto 0 x\n", "antiphon auto 1 9.9.9\nprocess a b -\n"])
def test_questions_of_others_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        auto_question.read_processes(text)


# ---- plans, and those of machines alike ----


@pytest.mark.slow
def test_where_no_ring_is_trees_are_planned_and_only_what_gains_is_in_the_book() -> None:
    planned_with_gains: list[tuple[Any, Any]] = []
    plan_collectives(asked(["=1,4,5,6"] * 4).machine, lambda plan, gain: planned_with_gains.append((plan, gain)))
    book = book_of([plan for plan, _ in planned_with_gains])
    gains = [gain for _, gain in planned_with_gains]
    assert min(page.start for page in book.pages) >= 1000
    assert all(page.program >= 0 for page in book.pages)
    assert {page.planner.split()[0] for page in book.pages} == {"trees"}
    assert {page.kind for page in book.pages} == {"allreduce", "broadcast", "allgather", "reducescatter", "reduce"}
    assert {page.root for page in book.pages if page.kind == "broadcast"} == {0, 1, 2, 3}
    assert all(gain.times > 1.05 for gain in gains)
    # 25 GB/s and 50 GB/s in and out of the worst rank against one tree of the slowest links
    assert gains[0].kind == "allreduce"
    assert gains[0].times > 3
    assert str(gains[0]).endswith("times as fast (not calibrated)")


@given(st.permutations(range(4)))
def test_kept_plans_serve_machines_alike_under_any_numbers(tmp_path_factory: Any, order: list[int]) -> None:
    folder = tmp_path_factory.mktemp("kept")
    folder.chmod(0o700)
    machine = asked(["=1,4,5,6"] * 4).machine
    plan = antiphon.plan("broadcast", machine, planner="trees", root=1)
    isomorphic.cache_plans(machine, [plan], "much", folder)
    other = asked([f"={','.join(str(PART[i]) for i in order)}"] * 4).machine
    found = isomorphic.find_plans(other, folder)
    assert found is not None
    (mine,), gain = found
    assert gain == "much"
    assert links(mine.topology) == links(other)
    assert mine.collective.roots == (order.index(1),)
    assert verify(mine.entries[0].schedule, mine.topology).ok


def test_other_allocations_of_the_same_shape_take_the_kept_plan(tmp_path: Path) -> None:
    """Blink counts allocations of a DGX-1V by their shape: {0,1,2,3} looks like {4,5,6,7}."""
    tmp_path.chmod(0o700)
    first, second, third = (asked([f"={ranks}"] * 4).machine for ranks in ("0,1,2,3", "4,5,6,7", "1,4,5,6"))
    isomorphic.cache_plans(first, [antiphon.plan("allreduce", first, planner="trees")], "", tmp_path)
    assert isomorphic.find_plans(second, tmp_path) is not None
    assert isomorphic.find_plans(third, tmp_path) is None


def test_damaged_and_foreign_plans_are_not_believed(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    machine = asked(["=1,4,5,6"] * 4).machine
    plan = antiphon.plan("allreduce", machine, planner="trees")
    isomorphic.cache_plans(machine, [plan], "", tmp_path)
    path = isomorphic.path_of(machine, tmp_path)
    good = path.read_bytes()
    for bad in (b"", good[:-9], good[: len(good) // 2], b"{}", b"\xff" * 9):
        path.write_bytes(bad)
        with pytest.raises(Invalid, match="damaged"):
            isomorphic.find_plans(machine, tmp_path)
    path.write_bytes(good)
    assert isomorphic.find_plans(machine, tmp_path) is not None
    path.chmod(0o666)
    with pytest.raises(Invalid, match="others may write"):
        isomorphic.find_plans(machine, tmp_path)
    path.chmod(0o600)
    tmp_path.chmod(0o777)
    with pytest.raises(Invalid, match="others may write"):
        isomorphic.find_plans(machine, tmp_path)


def test_a_wrong_schedule_in_a_kept_file_is_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    machine = asked(["=1,4,5,6"] * 4).machine
    plan = antiphon.plan("allreduce", machine, planner="trees")
    schedule = plan.entries[0].schedule
    less = schedule.take(np.arange(schedule.transfers - 1))
    wrong = replace(plan, entries=(replace(plan.entries[0], schedule=less),))
    isomorphic.cache_plans(machine, [wrong], "", tmp_path)
    with pytest.raises(Invalid, match="a schedule is wrong"):
        isomorphic.find_plans(machine, tmp_path)


# ---- an answer, and the file that keeps it ----


def small_answer(name: str = "machine") -> AutoAnswer:
    return AutoAnswer("planned", name, "twice", "a note", encode_book(default_book("allreduce", 4)))


def test_an_answer_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    told = small_answer("tab\tand\nline")
    back = decode_answer(told.encode())
    assert (back.how, back.machine, back.gain, back.notes) == ("planned", "tab and line", "twice", "a note")
    assert back.book == told.book
    path = tmp_path / "x.plan"
    assert read_kept(path) == (None, "")
    path.write_bytes(told.encode())
    path.chmod(0o644)
    found, why = read_kept(path)
    assert (why, found and found.how, found and found.book) == ("", "kept", told.book)


@pytest.mark.parametrize("bad", ["cut", "bit", "words", "empty", "writable", "link", "folder", "theirs"])
def test_an_answer_that_cannot_be_believed_is_none(tmp_path: Path, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    data = small_answer().encode()
    line = data.index(b"\n") + 1
    broken = {
        "cut": data[:-1], "bit": data[: line + 40] + bytes([data[line + 40] ^ 1]) + data[line + 41 :],
        "words": b"planned\n" + data[line:], "empty": b"",
    }  # fmt: skip
    path = tmp_path / "x.plan"
    path.write_bytes(broken.get(bad, data))
    path.chmod(0o666 if bad == "writable" else 0o600)
    if bad == "link":
        path.rename(tmp_path / "other")
        path.symlink_to(tmp_path / "other")
    if bad == "folder":
        tmp_path.chmod(0o770)
    if bad == "theirs":
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        if os.getuid() == 0:
            os.chown(path, 54321, -1)
    found, why = read_kept(path)
    assert found is None
    assert "not trusted" in why or "not used" in why


def test_planning_ends_with_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_AUTO_BUDGET", "1ms")
    monkeypatch.setenv("ANTIPHON_TOPOLOGY", "dgx1v")
    assert answer_question(build_question(["a host -"] * 8), None).startswith(b"failed\tplanning was stopped after")


def test_where_nothing_gains_there_are_no_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_AUTO_BUDGET", "1000000")  # of all that this process has done, other tests included
    monkeypatch.setenv("ANTIPHON_TOPOLOGY", "full:ranks=2")
    assert answer_question(build_question(["a host -"] * 2), None) == (
        b"failed\tfull:ranks=2: no plan is predicted to be faster than plain ways; all stays as it is\n"
    )


def test_a_failure_is_an_answer_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_TOPOLOGY", "no\nmachine")
    told = answer_question(build_question(["a host -"] * 8), None)
    assert told.startswith(b"failed\t")
    assert told.count(b"\n") == 1


# ---- at which call ----


class Later:
    """A process apart that has its answer after so many looks."""

    def __init__(self, looks: int, fails: bool) -> None:
        self.looks, self.fails, self.ended = looks, fails, 0

    def poll(self) -> AutoAnswer | None:
        self.looks -= 1
        if self.looks >= 0:
            return None
        if self.fails:
            raise Unsupported("no machine")
        return small_answer()

    def end(self) -> None:
        self.ended += 1


class All:
    """Sums over threads, one for each process."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.barrier = ranks, threading.Barrier(ranks)
        self.given: list[Any] = [None] * ranks

    def adder(self, rank: int) -> Callable[[NDArray[Any]], None]:
        def add(values: NDArray[Any]) -> None:
            self.given[rank] = values.copy()
            self.barrier.wait(20)
            values[:] = sum(self.given)
            self.barrier.wait(20)

        return add


def switches(calls: Sequence[tuple[str, int]], looks: int, fails: bool, readers: Sequence[bool], path: Path) -> Any:
    """For each process the number of the call from which on it goes by the book, and its Turns. `readers`: which find
    the file."""
    ranks = len(readers)
    every = All(ranks)
    apart: Any = Later(looks, fails)
    turns = [
        Turns(rank == 0, apart if rank == 0 else None, str(path) if reads else "", LedgerRow("auto", "", ""), 1.0)
        for rank, reads in enumerate(readers)
    ]
    found: list[tuple[int, Book | None]] = [(0, None)] * ranks

    def run(rank: int) -> None:
        add = every.adder(rank)
        for number, (kind, nbytes) in enumerate(calls, 1):
            if not turns[rank].over and turns[rank].due(number, kind, nbytes):
                book = turns[rank].turn(number, add)
                if book is not None:
                    found[rank] = number, book

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert not any(one.is_alive() for one in threads)
    return found, turns, apart


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["allreduce", "broadcast", "gather", "alltoall", "barrier"]), st.sampled_from([0, 8, 10**6])
    ),
    min_size=1, max_size=300,
)  # fmt: skip


@given(CALLS, st.integers(0, 6), st.booleans(), st.lists(st.booleans(), min_size=2, max_size=4))
def test_all_switch_at_the_same_call(
    tmp_path_factory: Any, calls: list[tuple[str, int]], looks: int, fails: bool, readers: list[bool]
) -> None:
    folder = tmp_path_factory.mktemp("turns")
    folder.chmod(0o700)
    path = folder / "x.plan"
    path.write_bytes(small_answer().encode())
    path.chmod(0o600)
    found, turns, apart = switches(calls, looks, fails, readers, path)
    assert len({number for number, _ in found}) == 1
    assert len({one.over for one in turns}) == 1
    number, book = found[0]
    if number:
        assert all(one == decode_book(small_answer().book) for _, one in found)
        assert not fails
        assert number > looks
        assert turns[0].row.why.startswith(f"from call {number} on; predicted: twice")
    elif turns[0].over:
        assert fails
        assert turns[0].row.why == "no machine"
    assert not apart.ended  # that takes longer than a call may
    for one in [*turns, *turns]:
        one.end()
    assert apart.ended == 1
    assert book is None or number <= len(calls)


def test_small_calls_to_or_from_a_root_do_not_ask_at_first(tmp_path: Path) -> None:
    """Processes that only give may be far ahead of the others, and shall stay so."""
    found, _, _ = switches([("broadcast", 8)] * 64, 0, False, [True, True], tmp_path / "none")
    assert found[0] == (0, None)
    found, turns, _ = switches([("broadcast", 8)] * 300, 0, False, [True, True], tmp_path / "none")
    assert found[0][0] == 4 * 65  # they hear of it, nobody finds the file, the bytes are handed on, and all are ready
    assert all(one.data for one in turns)


def test_many_calls_ask_seldom() -> None:
    turns = Turns(False, None, "", LedgerRow("auto", "", ""), 1.0)
    count = 0
    for number in range(1, 100_001):
        if turns.due(number, "allreduce", 8):
            turns.turn(number, lambda values: None)
            count += 1
    assert count < 600  # 64, then one in 64 of those that there were


def test_calls_of_a_new_kind_while_plans_are_prepared() -> None:
    """A call that needs a default plan adds a book between two steps of preparing."""
    engine: Any = mock.Mock()
    wire: Any = mock.Mock(stopped=False, near=False)
    serving = Serving(engine, wire, 0, default_book("allreduce", 2), b"", fill=True)
    turns = Turns(False, None, "", LedgerRow("auto", "", ""), 1.0)
    serving.ask_for_plans(turns, b"")
    steps = turns.ready(default_book("allgather", 2))
    next(steps)
    page = serving.find(Call("allgather", 16))
    assert page is not None
    serving.run(page, 2, np.zeros(2, np.float32), np.zeros(4, np.float32))
    assert next(steps) is None  # the plan of the new book for this call is made
