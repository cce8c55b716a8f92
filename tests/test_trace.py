"""Traces of simulations: what each rank sends and receives, arrows, the critical path; and traces side by side."""

import itertools
import json
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generate import Case, cases
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from perfetto_env import opened
from quick import examples

import antiphon
from antiphon.cli import run
from antiphon.cost import chrome_trace, prepare, simulate
from antiphon.cost.chrome import RANKS, RankWork, TracedMessage, TraceWriter, write_ranks
from antiphon.errors import Invalid, Unsupported
from antiphon.formats import chrome
from antiphon.select import plan
from antiphon.topologies import topology

Event = dict[str, Any]
MODELS = [
    ("alpha-beta", None, "dgx1v"), ("critical-path", None, "dgx1v"), ("sccl", None, "dgx1v"),
    ("flows", None, "full:ranks=5"),
    pytest.param("loggp", "loggp-delta", "delta:nodes=2", marks=pytest.mark.slow),  # its loops are compiled first
]  # fmt: skip


def events_of(data: bytes) -> list[Event]:
    found: list[Event] = json.loads(data)["traceEvents"]
    return found


def lines_of(events: list[Event]) -> dict[tuple[int, int], str]:
    """The name of each line by process and number."""
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def slices(events: list[Event], kind: str) -> list[Event]:
    return [e for e in events if e["ph"] == "X" and e["cat"] == kind]


def facts(event: Event) -> tuple[int, int, int]:
    told = event["args"]
    return told["step"], told["src"], told["dst"]


def spans_of(events: list[Event]) -> dict[tuple[int, int], list[tuple[int, int, Event]]]:
    """Of each line its slices, from and to which nanosecond, in order."""
    found: dict[tuple[int, int], list[tuple[int, int, Event]]] = {}
    for e in events:
        if e["ph"] == "X":
            begin = round(e["ts"] * 1000)
            found.setdefault((e["pid"], e["tid"]), []).append((begin, begin + round(e["dur"] * 1000), e))
    for spans in found.values():
        spans.sort(key=lambda one: one[:2])
    return found


def enclosing(spans: dict[tuple[int, int], list[tuple[int, int, Event]]], arrow: Event) -> Event:
    """The slice of its line that is open where an arrow begins or ends: just one, as no two of a line overlap."""
    at, add_track = round(arrow["ts"] * 1000), spans[arrow["pid"], arrow["tid"]]
    begin, end, found = add_track[bisect_right(add_track, at, key=lambda one: one[0]) - 1]
    assert begin <= at < end
    return found


def check_lines(events: list[Event]) -> None:
    """No two slices of a line overlap, to the nanosecond."""
    for add_track in spans_of(events).values():
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(add_track))


@pytest.mark.parametrize(("model", "profile", "spec"), MODELS)
def test_every_message_is_sent_and_received_with_an_arrow(model: str, profile: str | None, spec: str) -> None:
    made = plan("allreduce", topology(spec), planner="ring")
    row, trace = simulate(made, "1MB", model=model, profile=profile, trace=True)
    assert trace is not None
    events = events_of(trace)
    sent, received = slices(events, "send"), slices(events, "receive")
    schedule = made.at(10**6).schedule
    pairs = set(zip(schedule.step.tolist(), schedule.src.tolist(), schedule.dst.tolist(), strict=True))
    assert Counter(map(facts, sent)) == Counter(map(facts, received)) == Counter(pairs)
    lines = lines_of(events)
    assert all(lines[e["pid"], e["tid"]].startswith(f"rank {e['args']['src']} sends") for e in sent)
    assert all(lines[e["pid"], e["tid"]].startswith(f"rank {e['args']['dst']} receives") for e in received)
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == len(pairs)
    spans = spans_of(events)
    for number, start in starts.items():
        one, other = enclosing(spans, start), enclosing(spans, ends[number])
        assert (one["cat"], other["cat"]) == ("send", "receive")
        assert one["args"] == other["args"]
    assert max(e["ts"] + e["dur"] for e in received) == pytest.approx(row["seconds"] * 1e6, rel=1e-3)
    check_lines(events)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(random=cases(most_ranks=5), model=st.sampled_from(["alpha-beta", "critical-path", "flows"]))
def test_traces_of_any_schedule(random: Case, model: str) -> None:
    """Messages that wait for each other on one link are on the path before the one ahead has landed."""
    ready = prepare(model, random.schedule, random.topology)
    assume(ready(10**6).seconds < 10**6)  # beyond some weeks a float has no nanoseconds
    path, made = ready(10**6).critical_path, ready.events(10**6)  # type: ignore[attr-defined]
    events = events_of(chrome_trace(made, random.topology, 10**6, model, path))
    check_lines(events)
    assert len(slices(events, "send")) == sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events)
    assert len(slices(events, "critical")) == len(path)


moments = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0] / 7, (pair[0] + pair[1]) / 7))


@settings(max_examples=examples(80))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), moments, moments), max_size=30))
def test_slices_of_a_line_never_overlap(drawn: list[Any]) -> None:
    """Whatever the moments are; what a rank does within itself has no other end."""
    writer = TraceWriter("any")
    messages = [TracedMessage(a, b, {"src": src, "dst": dst, "step": 0}) for src, dst, a, b in drawn]
    write_ranks(writer, messages, [RankWork(src, "fold", "fold", a, {}) for src, _, a, _ in drawn])
    check_lines(writer.events)
    kinds = Counter(e["cat"] for e in writer.events if e["ph"] == "X")
    apart = sum(src != dst for src, dst, *_ in drawn)
    assert kinds == Counter({"send": apart, "receive": apart, "within": len(drawn) - apart, "fold": len(drawn)})
    assert {(e["pid"], e["ph"]) for e in writer.events if e["ph"] in "sf"} <= {(RANKS, "s"), (RANKS, "f")}


# ---- side by side ----


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The same plan by two models."""
    monkeypatch.chdir(tmp_path)
    made = antiphon.plan("allreduce", "full:ranks=4", planner="ring")
    for model in ("alpha-beta", "critical-path"):
        antiphon.traces.simulate(made, "1MB", model=model, trace=f"{model}.json")
    return ["alpha-beta.json", "critical-path.json"]


def test_traces_side_by_side(two: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "merge", *two, "-o", "both.json"]) == 0
    said = capsys.readouterr().out
    assert "allreduce on full:ranks=4, model alpha-beta" in said
    assert "written: both.json" in said
    one, other, both = (events_of(Path(name).read_bytes()) for name in (*two, "both.json"))
    assert len(both) == len(one) + len(other)
    for kind in ("send", "receive", "turn", "critical"):
        assert len(slices(both, kind)) == len(slices(one, kind)) + len(slices(other, kind))
    arrows: dict[int, list[Event]] = {}
    for e in both:
        if e["ph"] in "sf":
            arrows.setdefault(e["id"], []).append(e)
    assert all([e["ph"] for e in pair] == ["s", "f"] and pair[0]["pid"] == pair[1]["pid"] for pair in arrows.values())
    names = {e["pid"]: e["args"]["name"] for e in both if e["name"] == "process_name"}
    places = {e["pid"]: e["args"]["sort_index"] for e in both if e["name"] == "process_sort_index"}
    assert sorted(places.values()) == list(range(len(names)))
    order = [names[pid] for pid in sorted(names, key=lambda pid: places[pid])]
    assert [name.partition("model ")[2] for name in order][:4] == [
        "alpha-beta: ranks", "critical-path: ranks", "alpha-beta: links", "critical-path: links"
    ]  # fmt: skip
    check_lines(both)
    assert antiphon.traces.merge(two, "again.json")[0]["events"] == len(one)
    assert Path("again.json").read_bytes() == Path("both.json").read_bytes()


def test_numbers_without_measure_are_no_fault(two: list[str]) -> None:
    """Found by damaging files: a place, a process and an id beyond what a float holds."""
    huge = "1" + "0" * 400
    event = f'{{"ph": "M", "name": "process_sort_index", "pid": {huge}, "args": {{"sort_index": {huge}}}}}'
    Path("huge.json").write_text(f'{{"traceEvents": [{event}, {{"ph": "s", "ts": 1, "id": {huge}}}]}}')
    antiphon.traces.merge([two[0], "huge.json"], "both.json")
    found = [e for e in events_of(Path("both.json").read_bytes()) if e["ph"] == "s" and "cat" not in e]
    assert [e["ts"] for e in found] == [0]


HOSTILE = [
    (b"", "not valid JSON"),
    (b"{}", "traceEvents"),
    (b'{"traceEvents": 5}', "traceEvents"),
    (b'{"traceEvents": [5]}', "expected an object"),
    (b'{"traceEvents": [{"name": "a"}]}', "event 0: has no phase"),
    (b'{"traceEvents": [{"ph": "X", "dur": 1}]}', "event 0: a slice needs"),
    (b'{"traceEvents": [{"ph": "X", "ts": 0, "dur": -1}]}', "event 0: a slice needs"),
    (b'{"traceEvents": [{"ph": "X", "ts": "0"}]}', "event 0: ts is no time"),
    (b'{"traceEvents": [{"ph": "X", "ts": 1e300}]}', "event 0: ts is no time"),
    (b'{"traceEvents": [{"ph": "X", "ts": true}]}', "event 0: ts is no time"),
    (b'{"traceEvents": [{"ph": "X", "ts": 0, "pid": [1]}]}', "event 0: pid is neither"),
    (b'{"traceEvents": [{"ph": "X", "ts": 0, "args": 5}]}', "event 0: args"),
    (b'{"traceEvents": [{"ph": "i", "args": {"a": ' + b"[" * 3000 + b"]" * 3000 + b"}}]}", "nested too deeply"),
    (b'{"traceEvents": [' + b"{}," * 10**6 + b"{}]}", "has 1000003 lists and objects|has 100000. lists"),
]


@pytest.mark.parametrize(("data", "why"), HOSTILE)
def test_files_that_are_no_traces(two: list[str], data: bytes, why: str) -> None:
    Path("bad.json").write_bytes(data)
    with pytest.raises(Invalid, match=why) as told:
        antiphon.traces.merge([two[0], "bad.json"], "both.json")
    assert str(told.value).startswith("bad.json: ")
    assert not Path("both.json").exists()


def test_too_few_and_too_many(two: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="expected 2 to"):
        antiphon.traces.merge(two[:1], "both.json")
    monkeypatch.setattr(chrome, "MAX_EVENTS", 400)
    with pytest.raises(Unsupported, match="at most 400"):
        antiphon.traces.merge(two, "both.json")


# ---- read by Perfetto itself ----


@pytest.mark.slow
def test_perfetto_reads_a_simulation(tmp_path: Path) -> None:
    made = antiphon.plan("allreduce", "dgx1v", planner="multi-ring")
    (row,) = antiphon.traces.simulate(made, "1MB", model="critical-path", trace=tmp_path / "trace.json")
    with opened(tmp_path / "trace.json") as asked:
        assert asked.complaints() == []
        sent = 2 * 16 * 14
        assert asked.rows("select category, count(*) as many from slice group by 1 order by 1") == [
            {"category": "critical", "many": 14}, {"category": "receive", "many": sent},
            {"category": "send", "many": sent}, {"category": "turn", "many": sent},
        ]  # fmt: skip
        assert asked.one("select count(*) from flow") == sent
        assert asked.one(
            "select count(*) from flow join slice a on slice_out = a.id join slice b on slice_in = b.id "
            "where a.category != 'send' or b.category != 'receive' or a.name != b.name"
        ) == 0  # fmt: skip
        assert asked.one("select count(*) from slice where depth > 0") == 0
        assert asked.one("select max(ts + dur) - min(ts) from slice") == pytest.approx(row["seconds"] * 1e9, abs=2)
        path = asked.rows("select name from slice where category = 'critical' order by ts")
        assert [one["name"] for one in path] == [f"{a} to {b}, step {step}" for step, a, b in row["critical_path"]]
        assert asked.one("select count(*) from counter") == 0


@pytest.mark.slow
def test_perfetto_reads_what_takes_no_time(tmp_path: Path) -> None:
    """Of no bytes and no latency: slices of no length."""
    machine = antiphon.topology("full:ranks=3,latency=0")
    made = antiphon.plan("allreduce", machine, planner="ring")
    antiphon.traces.simulate(made, 0, trace=tmp_path / "trace.json")
    with opened(tmp_path / "trace.json") as asked:
        assert asked.one("select count(*) from slice where category = 'send'") == 24


@pytest.mark.slow
def test_perfetto_reads_counters(tmp_path: Path) -> None:
    made = antiphon.plan("allreduce", "ss24", planner="hierarchical-ps", options={"fanins": "8x3"})
    antiphon.traces.simulate(made, "4MB", model="flows", profile="genmodel-table5", trace=tmp_path / "trace.json")
    with opened(tmp_path / "trace.json") as asked:
        assert asked.complaints() == []
        assert asked.one("select max(value) from counter") == 1
        assert asked.one("select count(distinct track_id) from counter") == 48


@pytest.mark.slow
def test_perfetto_reads_two_side_by_side(two: list[str]) -> None:
    antiphon.traces.merge(two, "both.json")
    with opened(Path("both.json")) as asked:
        assert asked.complaints() == []
        found = asked.rows(
            "select process.name as name, count(*) as many from slice join thread_track on track_id = thread_track.id "
            "join thread using (utid) join process using (upid) where category in ('send', 'receive') group by 1"
        )
        assert [(one["name"].partition("model ")[2], one["many"]) for one in found] == [
            ("alpha-beta: ranks", 96), ("critical-path: ranks", 96)
        ]  # fmt: skip
        assert asked.one("select count(*) from flow") == 96
        assert np.isclose(asked.one("select min(ts) from slice"), 0)
