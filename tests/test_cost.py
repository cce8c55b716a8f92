"""Cost models: against the published formula, against plain loops over single messages, and by hand."""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from generate import Case, cases
from hypothesis import given, settings
from quick import examples
from tables import listed

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.loads import pieces_of
from antiphon.core.schedule import Local, Schedule, cut
from antiphon.core.topology import LinkType, Topology, both_ways, build
from antiphon.core.transform import expand, pipeline
from antiphon.cost import Prediction, Profile, load_profile, prepare, simulate
from antiphon.cost import trace as tracing
from antiphon.errors import Invalid, Unsupported
from antiphon.registry import table
from antiphon.select import plan
from antiphon.topologies import topology

MODELS = ("alpha-beta", "critical-path", "sccl")
UNIT = LinkType("nvlink", Fraction(1), 1.0)  # a second of latency, a byte per second
NBYTES = (0, 1, 1000, 10**6, 10**9)


def seconds(model: str, schedule: Schedule, machine: Topology, nbytes: int, **more: Any) -> float:
    found: Prediction = prepare(model, schedule, machine, **more)(nbytes)
    assert found.seconds == pytest.approx(sum(found.terms.values()))
    return found.seconds


def sends(machine: Topology, rows: list[tuple[int, ...]], chunks: int = 1, **more: Any) -> Schedule:
    """Copies (step, chunk, src, dst[, route]); a model does not ask whether they are right. All chunks are equal."""
    step, chunk, src, dst, *route = np.array(rows, np.int32).T
    made = Collective("broadcast", machine.ranks)
    zeros = np.zeros(len(rows), np.uint8)
    return Schedule(made, cut(made, chunks), step, chunk, src, dst, zeros, route[0] if route else None, **more)


def chain(ranks: int, kind: LinkType = UNIT, **more: Any) -> Topology:
    return build("chain", ranks, both_ways([(r, r + 1) for r in range(ranks - 1)], kind), **more)


# ---- SCCL, section 3.6 ----


# ---- messages, routes, limits ----


@pytest.mark.parametrize("model", ["alpha-beta", "critical-path"])
def test_latency_counts_per_message_not_per_chunk(model: str) -> None:
    machine = chain(2)
    together = sends(machine, [(0, chunk, 0, 1) for chunk in range(4)], 4)
    assert seconds(model, together, machine, 8) == 1 + 8
    found = prepare(model, together, machine)(8)
    assert found.terms == {"latency": 1.0, "bandwidth": 8.0}
    assert found.bottleneck == "link 0 (rank 0 to rank 1, nvlink)"
    assert list(found.critical_path) == [(0, 0, 1)]
    after = sends(machine, [(chunk, chunk, 0, 1) for chunk in range(4)], 4)
    assert seconds("alpha-beta", after, machine, 8) == 4 + 8


def test_local_work_has_a_price_where_somebody_does_it() -> None:
    """Our runtimes do not, PICCL does: a model of it says so."""
    made = sends(chain(2), [(0, 0, 0, 1)], local=(Local("permute", Fraction(1, 2)), Local("permute", Fraction(1))))
    bare = sends(chain(2), [(0, 0, 0, 1)])
    for model in table("model"):
        if model not in ("genmodel", "calls", "lowering"):  # nothing is known of what launches on this machine
            assert prepare(model, made, chain(2))(100).terms == prepare(model, bare, chain(2))(100).terms
    memory = Profile(memory_bandwidth=Fraction(3))
    found = prepare("loggp:local=on", made, chain(2), profile=memory)(100)
    assert found.terms["local"] == 50
    assert found.seconds == prepare("loggp", made, chain(2), profile=memory)(100).seconds + 50
    slow = prepare("loggp:local=on", made, chain(2), profile=Profile(memory_bandwidth=Fraction(1, 10)))(100)
    assert "local work (permute, permute)" in slow.bottleneck
    assert prepare("loggp:local=on", made, chain(2))(10**11).terms["local"] == 1.5  # 100 GB/s where nothing is said
    assert "local" not in prepare("loggp:local=on", bare, chain(2))(100).terms
    with pytest.raises(Invalid, match="option local of model loggp: expected on or off, got 'maybe'"):
        prepare("loggp:local=maybe", made, chain(2))


@pytest.mark.parametrize("model", [*MODELS, "flows"])
def test_nothing_moves(model: str) -> None:
    machine = chain(2)
    nothing = Schedule(Collective("broadcast", 2), cut(Collective("broadcast", 2), 1), *[np.zeros(0, int)] * 5)
    found = prepare(model, nothing, machine)(1000)
    assert (found.seconds, found.bottleneck, list(found.critical_path)) == (0, "nothing takes time", [])
    inside = sends(machine, [(0, 0, 0, 0)], dst_slot=np.array([1]))
    assert seconds(model, inside, machine, 1000) == 0


def test_a_bad_route_is_named() -> None:
    for model in (*MODELS, "flows"):
        with pytest.raises(Invalid, match="step 3, chunk 0"):
            prepare(model, sends(chain(3), [(3, 0, 0, 2)]), chain(3))


# ---- against plain loops ----


def plainly_barriers(schedule: Schedule, machine: Topology, nbytes: int) -> float:
    """Every piece on its own: per step the greatest latency of a row, and the greatest load."""
    ways, pieces = oracle.Ways(machine), pieces_of(schedule)
    latency: dict[int, float] = defaultdict(float)
    for row in oracle.rows_of(schedule):
        alpha = sum(machine.types[machine.link_type[link]].latency for link in ways.path(row, schedule) or ())
        for step in range(row.step, row.step + int(pieces[row.chunk])):
            latency[step] = max(latency[step], alpha)
    return sum(latency.values()) + float(sum(oracle.step_seconds(schedule, machine).values()) * nbytes)


def plainly_messages(pieced: Schedule, machine: Topology, nbytes: int) -> float:
    """Message by message in the order of (step, src, dst, route), with a table of cells and one of links."""
    schedule = expand(pieced)
    ways, weights = oracle.Ways(machine), schedule.collective.weights
    grouped: dict[tuple[int, ...], list[oracle.Row]] = defaultdict(list)
    for row in oracle.rows_of(schedule):
        ahead = (row.dst - row.src) % schedule.collective.ranks
        grouped[row.step, ahead, row.src, row.route].append(row)
    there: dict[tuple[int, ...], float] = defaultdict(float)
    read: dict[tuple[int, ...], float] = defaultdict(float)
    free: dict[int, float] = defaultdict(float)
    for step in sorted({key[0] for key in grouped}):
        landing = defaultdict(list)
        for key in sorted(key for key in grouped if key[0] == step):
            rows = grouped[key]
            ready = max(there[row.chunk, row.src, row.src_slot] for row in rows)
            share = sum(
                Fraction(int(schedule.chunks.share[r.chunk]) * int(weights[schedule.chunks.block[r.chunk]]))
                for r in rows
            ) / (schedule.chunks.denominator * schedule.collective.buffer_weight)
            path, sent = ways.path(rows[0], schedule) or (), ready
            for link in path:
                limits = [(machine.links + i, x.bandwidth) for i, x in enumerate(machine.limits) if link in x.links]
                for resource, bandwidth in [(link, machine.bandwidth(link)), *limits]:
                    free[resource] = max(free[resource], ready) + float(share * nbytes / bandwidth)
                    sent = max(sent, free[resource])
            alpha = sum(machine.types[machine.link_type[link]].latency for link in path)
            for row in rows:
                cell = (row.chunk, row.src, row.src_slot)
                read[cell] = max(read[cell], sent)
                landing[row.chunk, row.dst, row.dst_slot].append(sent + alpha)
        written = {cell: max(*when, there[cell], read[cell]) for cell, when in landing.items()}
        there.update(written)
        read.update(dict.fromkeys(written, 0.0))
    return max(there.values(), default=0.0)


@given(cases())
def test_barriers_are_what_a_plain_loop_says(random: Case) -> None:
    ready = prepare("alpha-beta", random.schedule, random.topology)
    for nbytes in (0, 1000, 10**9):
        want = plainly_barriers(random.schedule, random.topology, nbytes)
        assert ready(nbytes).seconds == pytest.approx(want, rel=1e-9)


@given(cases())
def test_messages_are_what_a_plain_loop_says(random: Case) -> None:
    ready = prepare("critical-path", random.schedule, random.topology)
    for nbytes in (0, 1000, 10**9):
        want = plainly_messages(random.schedule, random.topology, nbytes)
        assert ready(nbytes).seconds == pytest.approx(want, rel=1e-9)


@given(cases())
def test_pieces_are_priced_as_if_written_out(random: Case) -> None:
    whole = expand(random.schedule)
    for model in ("alpha-beta", "critical-path"):
        few, many = (prepare(model, s, random.topology) for s in (random.schedule, whole))
        for nbytes in (0, 10**6):
            a, b = few(nbytes), many(nbytes)
            assert a.seconds == pytest.approx(b.seconds, rel=1e-9)
            assert dict(a.terms) == pytest.approx(dict(b.terms), rel=1e-9)


@given(cases())
def test_laws(random: Case) -> None:
    """Monotone in size, convex without barriers, never above barriers; order of rows does not matter."""
    schedule, machine = random.schedule, random.topology
    shuffled = schedule.take(np.random.default_rng(random.seed).permutation(schedule.transfers))
    for model in ("alpha-beta", "critical-path"):
        ready, other = prepare(model, schedule, machine), prepare(model, shuffled, machine)
        spread = [0, 10**9, 10**3, 10**6, 3, 10**4, 10**7, 10**8]
        times = {nbytes: ready(nbytes).seconds for nbytes in spread}
        ordered = [times[nbytes] for nbytes in sorted(times)]
        assert all(a <= b * (1 + 1e-12) for a, b in pairwise(ordered))
        middle = ready(5 * 10**8 + 5 * 10**2).seconds
        assert middle <= (times[10**9] + times[10**3]) / 2 * (1 + 1e-12)
        for nbytes in sorted(times):  # what is kept of other sizes changes nothing
            assert other(nbytes).seconds == pytest.approx(times[nbytes], rel=1e-9)
    late, soon = (prepare(model, schedule, machine) for model in ("alpha-beta", "critical-path"))
    for nbytes in (0, 1000, 10**9):
        assert soon(nbytes).seconds <= late(nbytes).seconds * (1 + 1e-9)


@settings(max_examples=examples(30))
@given(cases(most_ranks=6))
def test_no_prediction_beats_the_bound(random: Case) -> None:
    limits = bound(random.topology, random.collective)
    least = min((t.latency for t in random.topology.types), default=0.0)
    for model in ("alpha-beta", "critical-path", "flows", "genmodel"):
        ready = prepare(model, random.schedule, random.topology)
        for nbytes in (0, 1000, 10**9):
            floor = max(float(limits.seconds(nbytes)), limits.latency_steps * least)
            assert ready(nbytes).seconds >= floor * (1 - 1e-9)


@given(cases())
def test_traces_tell_the_same(random: Case) -> None:
    """No link does two things at once, and the last message lands when the prediction says."""
    for model in ("alpha-beta", "critical-path"):
        ready = prepare(model, random.schedule, random.topology)
        events = ready.events(10**6)  # type: ignore[attr-defined]
        total = ready(10**6).seconds
        end = events.landed.max(initial=0.0)  # with barriers, latest and busiest may be different messages
        assert end == pytest.approx(total, rel=1e-6) if model == "critical-path" else end <= total * (1 + 1e-6)
        busy = np.flatnonzero(events.use_end > events.use_start)
        order = busy[np.lexsort((events.use_start[busy], events.paths.use_resource[busy]))]
        same = np.diff(events.paths.use_resource[order]) == 0
        gap = events.use_start[order][1:] - events.use_end[order][:-1]
        assert not np.any(same & (gap < -1e-6 * total))
        assert np.all(events.use_start >= events.start[events.paths.use_message] - 1e-6 * total)


@given(cases())
def test_paths_are_paths(random: Case) -> None:
    """In the order of steps, over rows of the schedule."""
    for model in ("alpha-beta", "critical-path"):
        schedule = expand(random.schedule) if model == "critical-path" else random.schedule
        last = schedule.step + pieces_of(schedule)[schedule.chunk] - 1
        path = prepare(model, schedule, random.topology)(10**6).critical_path
        assert [hop[0] for hop in path] == sorted(hop[0] for hop in path)
        for step, src, dst in path:
            alive = (schedule.src == src) & (schedule.dst == dst) & (schedule.step <= step) & (step <= last)
            assert alive.any()


# ---- sizes, pieces, profiles ----


def test_two_sizes_on_a_line_settle_those_between(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = topology("dgx1v")
    ready = prepare("critical-path", plan("allreduce", machine).entries[0].schedule, machine)
    assert ready(0).seconds < ready(10**9).seconds
    monkeypatch.setattr(type(ready), "run", None)  # no further pass
    assert ready(10**6).seconds == pytest.approx((ready(0).seconds * 999 + ready(10**9).seconds) / 1000)


def test_too_many_pieces_give_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = chain(3)
    few = sends(machine, [(0, 0, 0, 1), (1, 0, 1, 2)], pieces=8)
    monkeypatch.setattr(tracing, "MAX_ROWS", 15)
    found = prepare("critical-path", few, machine)(80)
    assert found.seconds == seconds("alpha-beta", few, machine, 80) == 9 * (1 + 10)
    assert "upper bound" in found.note
    monkeypatch.setattr(tracing, "MAX_ROWS", 16)
    assert prepare("critical-path", few, machine)(80).seconds == 80 + 1 + 10 + 1
    monkeypatch.setattr(tracing, "MAX_ROWS", 15)
    with pytest.raises(Unsupported, match="fewer pieces"):
        prepare("alpha-beta", few, machine).events(80)  # type: ignore[attr-defined]
    deep = pipeline(few, 2**20)
    assert seconds("alpha-beta", deep, machine, 2**20) == 2 * (2**20 + 1)


@pytest.mark.parametrize(("text", "says"), listed("refused-profiles"))
def test_bad_profiles(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(Invalid, match=r"bad\.json: ") as told:
        load_profile(path)
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_a_model_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan("allreduce", topology("dgx1v"))
    monkeypatch.setattr("antiphon.cost.prepare", lambda *a, **k: lambda nbytes: Prediction(1.0, {}, "link 0"))
    assert simulate(made, "1KB", model="alpha-beta")[0]["seconds"] == 1.0
    with pytest.raises(Unsupported, match="these give one: alpha-beta"):
        simulate(made, "1KB", model="alpha-beta", trace=True)


@pytest.mark.parametrize("name", sorted(table("model")))
@pytest.mark.parametrize("kind", ["allgather", "allreduce", "broadcast"])
def test_every_model_of_the_table(name: str, kind: str) -> None:
    """The contract: prepared once, any size, terms that sum to the seconds, a bottleneck with a name, a path."""
    machine = topology("dgx1v")
    schedule = plan(kind, machine).entries[0].schedule
    ready = prepare(name, schedule, machine)
    floor = bound(machine, schedule.collective)
    before = 0.0
    for nbytes in NBYTES:
        found = ready(nbytes)
        assert found.seconds == pytest.approx(sum(found.terms.values()))
        assert found.seconds >= max(before, float(floor.seconds(nbytes)))
        assert found.bottleneck
        assert all(len(hop) == 3 for hop in found.critical_path)
        before = found.seconds
