"""Measured runs as traces: what the engine records, on every runtime, on one clock; beside what was simulated."""

import base64
import json
import shutil
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_env import why_no_lab
from perfetto_env import opened
from quick import crossed

import antiphon
from antiphon.cli import run
from antiphon.core.program import encode, layout_of
from antiphon.core.program.kinds import FOLD, RECEIVE, SEND
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.program import both
from antiphon.runtimes.engine import trace as tracing
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.native import Engine
from antiphon.runtimes.engine.trace import CALL, Trace
from antiphon.runtimes.measure import recorder
from antiphon.runtimes.measure.case import Runnable
from antiphon.runtimes.measure.loop import Peers
from antiphon.runtimes.measure.recorder import measured_trace, unpack_records
from antiphon.runtimes.measure.rows import run_schedule

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
Event = dict[str, Any]
NBYTES = 240_000


# ---- the engine ----


class Job:
    """A plan at all of its ranks, each a thread, recorded."""

    def __init__(self, made: Any, nbytes: int, room: int = tracing.MIN_RECORDS) -> None:
        self.schedule = made.at(nbytes).schedule
        self.ranks = self.schedule.collective.ranks
        self.program = both(self.schedule)[0]
        self.unit = nbytes // 4 // self.schedule.collective.buffer_weight
        engine = Engine(library("threads"))
        loaded = engine.program(encode([self.program]))
        self.wires = engine.threads(self.ranks)
        self.plans = [loaded.plan(rank, self.unit, split=0) for rank in range(self.ranks)]
        self.traces = [Trace(wire, room) for wire in self.wires]
        self.given = [np.ones(nbytes // 4, np.float32) for _ in range(self.ranks)]
        self.out = [np.zeros(nbytes // 4, np.float32) for _ in range(self.ranks)]

    def go(self, times: int = 1, op: str = "sum") -> None:
        def work(rank: int) -> None:
            for _ in range(times):
                self.plans[rank].run(self.given[rank], self.out[rank], self.wires[rank], op, 60.0)

        with ThreadPoolExecutor(self.ranks) as pool:
            list(pool.map(work, range(self.ranks)))

    def close(self) -> None:
        for trace, wire in zip(self.traces, self.wires, strict=True):
            trace.stop()
            wire.close()


@pytest.fixture
def job() -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def start(*given: Any) -> Job:
        made.append(Job(*given))
        return made[-1]

    yield start
    for one in made:
        one.close()


@needs_cc
@pytest.mark.parametrize(("kind", "spec", "planner", "op"), crossed([
    ("allreduce", "dgx1v", "multi-ring"), ("alltoall", "full:ranks=5", "direct"), ("broadcast", "dgx1v", "blink"),
], ["sum", "avg"], 2))  # fmt: skip
def test_a_record_for_every_operation(job: Callable[..., Job], kind: str, spec: str, planner: str, op: str) -> None:
    """Those of the program, each with its peer, bytes and time in the program, within its call."""
    made = antiphon.plan(kind, spec, planner=planner)
    one = job(made, 80 * made.collective.buffer_weight * 4, 2**14)
    before = [trace.moment()[1] for trace in one.traces]
    one.go(op=op if made.collective.combining else "sum")
    program, length = one.program, layout_of(one.program, one.unit).length
    for rank, trace in enumerate(one.traces):
        records = trace.call(0)
        wanted: Counter[tuple[int, int, int, int]] = Counter()
        for number in np.flatnonzero(program.rank == rank).tolist():
            parts = program.part_op == number
            if program.kind[number] not in (SEND, RECEIVE, FOLD) or program.pieces[number] > 1:
                continue
            elements = int(length[parts].sum() if program.kind[number] != FOLD else length[parts][0])
            if elements:
                peer = int(program.peer[number])
                wanted[int(program.kind[number]), peer, int(program.when[number]), 4 * elements] += 1
        columns = (records[name].tolist() for name in ("kind", "peer", "when", "bytes"))
        found = Counter(row for row in zip(*columns, strict=True) if row[0] != CALL)
        if (program.pieces == 1).all():
            assert found == wanted
        assert found >= wanted
        call = records[0]
        assert call["kind"] == CALL
        assert before[rank] <= call["begin"] < call["end"] <= trace.moment()[1]
        assert np.all((call["begin"] <= records["begin"]) & (records["begin"] <= records["end"]))
        assert np.all(records["end"] <= call["end"])


@needs_cc
def test_pieces_are_steps(job: Callable[..., Job]) -> None:
    """Piece i of what passes in step s passes in step s + i."""
    made = antiphon.plan("broadcast", "line:ranks=3", planner="relay", options={"pieces": 5})
    one = job(made, 4000)
    one.go()
    records = one.traces[1].call(0)
    for kind, step in ((tracing.RECEIVE, 0), (tracing.SEND, 1)):
        mine = records[records["kind"] == kind]
        assert (mine["when"] // 2).tolist() == [step + piece for piece in range(5)]
        assert mine["bytes"].tolist() == [800] * 5


@needs_cc
def test_no_message_is_there_before_it_is_sent(job: Callable[..., Job]) -> None:
    """One clock for all: the k-th receive from a rank ends after the k-th send to it began. Over many runs."""
    one = job(antiphon.plan("allreduce", "full:ranks=4", planner="ring"), 4096, 2**12)
    one.go(20)
    seen = 0
    for back in range(10):
        calls = [trace.call(back) for trace in one.traces]
        for src in range(one.ranks):
            for dst in range(one.ranks):
                sent = calls[src][(calls[src]["kind"] == tracing.SEND) & (calls[src]["peer"] == dst)]
                got = calls[dst][(calls[dst]["kind"] == tracing.RECEIVE) & (calls[dst]["peer"] == src)]
                assert len(sent) == len(got)
                assert np.all(sent["begin"] <= got["end"] + 200)  # what two readings of a moment may differ by
                seen += len(sent)
    assert seen == 10 * 48


@needs_cc
def test_the_newest_take_the_place_of_the_oldest(job: Callable[..., Job]) -> None:
    one = job(antiphon.plan("allreduce", "full:ranks=4", planner="ring"), 4096)
    one.go(3)
    trace = one.traces[0]
    each = len(trace.call(0))
    assert trace.count_complete() == 3
    one.go(50)
    assert trace.count_complete() == tracing.MIN_RECORDS // each
    assert [trace.call(back)["instance"][0] for back in range(3)] == [52, 51, 50]
    assert all(len(trace.call(back)) == each for back in range(trace.count_complete()))
    assert trace.call(1)["end"].max() <= trace.call(0)["begin"].min()
    with pytest.raises(IndexError, match="are kept"):
        trace.call(trace.count_complete())
    for one_trace in one.traces:
        one_trace.fit(100)
    one.go(100)
    assert trace.count_complete() == 100


@needs_cc
def test_a_call_longer_than_the_ring(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own record is gone: it is not told in part."""
    one = job(antiphon.plan("allreduce", "full:ranks=4", planner="ring"), 4096, 16)
    one.go()
    assert one.traces[0].count_complete() == 0
    with pytest.raises(IndexError):
        one.traces[0].call(0)


@needs_cc
def test_nothing_is_recorded_when_it_is_off(job: Callable[..., Job]) -> None:
    one = job(antiphon.plan("allreduce", "full:ranks=4", planner="ring"), 4096)
    one.go()
    for trace in one.traces:
        trace.stop()
    one.go(2)
    assert [trace.count_complete() for trace in one.traces] == [1] * 4
    for trace in one.traces:
        trace.start()
    one.go(1)
    assert [trace.count_complete() for trace in one.traces] == [2] * 4


@needs_cc
def test_both_clocks_tell_the_same(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor's counter, where there is one, and by the kernel's nanoseconds."""
    made = antiphon.plan("allreduce", "full:ranks=2", planner="ring")
    for kept in {tracing.is_tsc_reliable(), False}:
        monkeypatch.setattr(tracing, "is_tsc_reliable", lambda kept=kept: kept)
        one = job(made, 4096)
        before = recorder.time.monotonic_ns()
        one.go(5)
        after = recorder.time.monotonic_ns()
        first, last = one.traces[0].call(4), one.traces[0].call(0)
        assert before - 1000 <= first["begin"][0] < last["end"][0] <= after + 1000


# ---- clocks ----


class Threads(Peers):
    """Threads of this process, as processes that exchange values."""

    def __init__(self, many: int) -> None:
        self.values: list[Any] = [None] * many
        self.barrier = threading.Barrier(many)
        self.local = threading.local()

    @property
    def first(self) -> bool:  # type: ignore[override]
        return bool(self.local.rank == 0)

    def all(self, value: Any) -> list[Any]:
        self.values[self.local.rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found


def offsets(ahead: list[int], names: list[str]) -> list[tuple[float, float]]:
    together = Threads(len(ahead))

    def work(rank: int) -> tuple[float, float]:
        together.local.rank = rank
        return recorder.clock_offset(together, lambda: recorder.time.monotonic_ns() + ahead[rank], names[rank])

    with ThreadPoolExecutor(len(ahead)) as pool:
        return list(pool.map(work, range(len(ahead))))


def test_clocks_that_differ_are_bounded() -> None:
    """Whatever they differ by, the truth lies within what is told, and that is less than an exchange takes."""
    ahead = [0, 5_000_000_000, -123_456_789_000, 777]
    found = offsets(ahead, ["a", "b", "c", "d"])
    assert found[0] == (0, 0)
    for truth, (told, error) in zip(ahead[1:], found[1:], strict=True):
        assert abs(told - truth) <= error < 50e6


def test_one_clock_needs_no_exchange() -> None:
    assert offsets([0, 10**9], ["same", "same"]) == [(0, 0), (0, 0)]
    assert recorder.clock_name() == recorder.clock_name()


@needs_cc
def test_a_clock_that_is_ahead_is_set_back() -> None:
    """Ranks of another host, as their own clock tells it: the trace is the same, but for the error that it tells."""
    made = antiphon.plan("allreduce", "full:ranks=3", planner="ring")
    rows = run_schedule("local", Runnable(made.at(NBYTES).schedule), NBYTES, trace=True)
    assert rows is not None
    told = rows[0]["traced"]
    whole = json.loads(measured_trace(told, "here", {}))
    for one, ahead in zip(told, (0, 5 * 10**9, -(10**12)), strict=True):
        records = unpack_records(one["records"]).copy()
        for name in ("begin", "end"):
            records[name] += ahead
        packed = base64.b64encode(zlib.compress(records.tobytes())).decode()
        one |= {"records": packed, "ahead": float(ahead), "error": 1500.0 * (ahead != 0)}
    again = json.loads(measured_trace(told, "here", {}))
    assert again["otherData"].pop("clock_error_us") == 1.5
    assert whole["otherData"].pop("clock_error_us") == 0
    assert again == whole


# ---- every runtime ----


def check_run(path: Path, made: Any, on: str, nbytes: int = NBYTES, rest: bool = False) -> dict[str, Any]:
    """The trace of a run shows each of its messages, sent and received, and all of them within the call. `rest`:
    ranks may cut them."""
    told = json.loads(path.read_bytes())
    about, events = told["otherData"], told["traceEvents"]
    assert about["title"] == f"{made.collective.kind} on {made.topology.name}, measured on {on}"
    assert about["nbytes"] == nbytes
    assert 1 <= about["run"] <= about["runs"]
    assert about["clock_error_us"] == 0  # one host, one clock
    kinds: dict[str, list[Event]] = {}
    for e in events:
        if e["ph"] == "X":
            kinds.setdefault(e["cat"], []).append(e)
    schedule = made.at(nbytes).schedule
    pairs = set(zip(schedule.step.tolist(), schedule.src.tolist(), schedule.dst.tolist(), strict=True))
    for kind in ("send", "receive"):
        found = Counter((e["args"]["step"], e["args"]["src"], e["args"]["dst"]) for e in kinds[kind])
        assert set(found) == pairs
        assert rest or set(found.values()) == {1}
    assert sum(e["args"]["bytes"] for e in kinds["send"]) == sum(e["args"]["bytes"] for e in kinds["receive"])
    assert len(kinds["call"]) == len(made.collective.members)
    end = max(e["ts"] + e["dur"] for e in kinds["call"])
    assert min(e["ts"] for e in kinds["call"]) == 0
    assert all(0 <= e["ts"] <= e["ts"] + e["dur"] <= end + 0.002 for some in kinds.values() for e in some)
    starts = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
    ends = {e["id"]: e["ts"] for e in events if e["ph"] == "f"}
    assert len(starts) == len(kinds["send"])
    assert starts.keys() == ends.keys()
    if made.collective.combining:
        assert {e["args"]["rank"] for e in kinds["fold"]} == set(made.collective.members)
    found_about: dict[str, Any] = about
    return found_about


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    found = antiphon.plan("allreduce", "full:ranks=3", planner="ring")
    antiphon.save(found, "plan.json")
    return found


@needs_cc
@pytest.mark.parametrize("in_place", [False, True])
def test_local_runs_by_the_engine_when_traced(made: Any, in_place: bool) -> None:
    (row,) = antiphon.run(made, NBYTES, trace="trace.json", in_place=in_place, repeat=5)
    assert row["correct"]
    assert "traced" not in row
    about = check_run(Path("trace.json"), made, "local")
    assert about["runs"] == 5
    assert about["seconds"] == row["seconds"]
    assert "traced" not in antiphon.run(made, NBYTES)[0]


@needs_cc
def test_the_command_says_where_the_trace_is(made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "plan.json", "--nbytes", str(NBYTES), "--trace", "trace.json"]) == 0
    assert "written: trace.json" in capsys.readouterr().out
    check_run(Path("trace.json"), made, "local")
    assert run(["run", "plan.json", "--nbytes", "1KB", "--trace", "no/such/trace.json"]) == 2


@needs_cc
def test_ranks_that_only_relay_and_ranks_without_work(made: Any) -> None:
    """A broadcast among some of a machine's ranks: those without any part have no line."""
    some = antiphon.plan("broadcast", "line:ranks=5", ranks=[0, 2, 3], planner="relay")
    antiphon.run(some, NBYTES, trace="trace.json")
    told = json.loads(Path("trace.json").read_bytes())["traceEvents"]
    ranks = {e["args"]["rank"] for e in told if e["ph"] == "X" and e["cat"] == "call"}
    assert ranks == {0, 1, 2, 3}


HAS_MPI = find_spec("mpi4py") is not None and Path(sys.executable).with_name("mpiexec").exists()


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize(("on", "there"), [("mpi", HAS_MPI), ("torch", find_spec("torch") is not None)])
def test_processes(made: Any, on: str, there: bool) -> None:
    if not there:
        pytest.skip(f"needs {on}")
    (row,) = antiphon.run(made, NBYTES, on=on, trace="trace.json")
    assert row["correct"]
    check_run(Path("trace.json"), made, on)


@pytest.mark.slow
def test_lab_beside_its_simulation_in_perfetto(made: Any) -> None:
    """The same plan, run in the lab and simulated, in one file, which Perfetto's own processor reads."""
    if why := why_no_lab():
        pytest.skip(why)
    assert run(["lab", "run", "plan.json", "--nbytes", str(NBYTES), "--trace", "measured.json"]) == 0
    check_run(Path("measured.json"), made, "lab")
    antiphon.traces.simulate(made, NBYTES, trace="simulated.json")
    antiphon.traces.merge(["measured.json", "simulated.json"], "both.json")
    with opened(Path("both.json")) as asked:
        assert asked.complaints() == []
        found = asked.rows(
            "select process.name as name, category, count(*) as many from slice "
            "join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid) "
            "where category in ('send', 'receive') group by 1, 2 order by 1, 2"
        )
        many = len(made.at(NBYTES).schedule.step)
        assert [(one["name"].rpartition(", ")[2], one["category"], one["many"]) for one in found] == [
            ("measured on lab: ranks", "receive", many), ("measured on lab: ranks", "send", many),
            ("model critical-path: ranks", "receive", many), ("model critical-path: ranks", "send", many),
        ]  # fmt: skip
        assert asked.one("select count(*) from flow") == 2 * many
        assert asked.one("select count(*) from slice where depth > 0") == 0


def test_what_cannot_be_traced(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="trace: shows one run, and there are 2 sizes"):
        antiphon.run(made, "1KB:2KB", trace="trace.json")
    from antiphon.registry import find, table

    local = find("runtime", "local")
    monkeypatch.setitem(table("runtime"), "local", replace(local, can=replace(local.can, trace=False)))
    with pytest.raises(Unsupported, match="--on local: its runs cannot be traced"):
        antiphon.run(made, "1KB", trace="trace.json")


@needs_cc
def test_a_run_that_is_too_long(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MAX_RECORDS", 16)
    with pytest.raises(Unsupported, match="operations at a rank is too long for a trace"):
        antiphon.run(made, NBYTES, trace="trace.json")
    assert not Path("trace.json").exists()
