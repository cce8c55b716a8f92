"""Recorded jobs: read, followed, priced; what of them is exposed, and what ours would make of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import replay_traces as made
from replay_traces import read_job

import antiphon
from antiphon.cli import run
from antiphon.cost import Profile
from antiphon.cost.replay import buckets, cores
from antiphon.cost.replay.job import CALL, STEP, WAIT, WORK, ProcessGroup, RecordedCollective, RecordedJob, TimelineItem
from antiphon.cost.replay.steps import replay_job
from antiphon.errors import AntiphonError, Invalid
from antiphon.formats.chakra.nodes import COLLECTIVE, COMPUTE, attribute, head, node
from antiphon.formats.chakra.wire import octets
from antiphon.select.prices import ByPlans, interpolate_seconds
from antiphon.select.together import compare_together, find_call_sets

MS = 1e-3


def two_ranks(more: float = 2 * MS) -> RecordedJob:
    """As in the description of a job: rank 1 calls so much later."""

    def items(work: float) -> list[TimelineItem]:
        return [
            TimelineItem(WORK, work), TimelineItem(CALL, call=0, recorded_at=work),
            TimelineItem(WORK, 4 * MS, recorded_at=work), TimelineItem(WAIT, call=0, recorded_at=18 * MS),
            TimelineItem(WORK, 1 * MS, recorded_at=18 * MS),
            TimelineItem(STEP, recorded_at=19 * MS),
        ]  # fmt: skip

    call = RecordedCollective("allreduce", 10**6, 0, 6 * MS, 12 * MS)
    ranks = {0: items(10 * MS), 1: items(10 * MS + more)}
    return RecordedJob([ProcessGroup("0", 2, (0, 1))], [call], ranks, {0: [[0]], 1: [[0]]}, [19 * MS])


# ---- the graph ----


def test_the_example_of_the_description() -> None:
    found = replay_job(two_ranks(), [6 * MS])
    assert found.steps == [pytest.approx(19 * MS)]
    assert found.waited == [pytest.approx((4 + 2) / 2 * MS)]
    assert replay_job(two_ranks(), [0.0]).steps == [pytest.approx(17 * MS)]  # what rank 1 computes
    assert replay_job(two_ranks(), [1 * MS]).waited == [0.0]  # it is over before anybody waits


def test_who_waits_for_what_is_never_called_is_named() -> None:
    job = two_ranks()
    broken = RecordedJob(
        job.groups, job.calls, {0: [item for item in job.ranks[0] if item.kind != CALL]}, {0: []}, job.steps
    )
    for way in (lambda: replay_job(broken, [0.0]), lambda: cores.replay_job(broken, [0.0], 2)):
        with pytest.raises(Invalid, match="rank 0: waits for a collective that another rank"):
            way()


# ---- PyTorch's profiler ----


def test_ddp_by_gloo_on_processors(tmp_path: Path) -> None:
    job = read_job(made.write(tmp_path, [made.ddp(0), made.ddp(1)]))
    assert [(call.kind, call.nbytes, call.bucket) for call in job.calls] == [("allreduce", 10**6, True)] * 4
    assert job.steps == [pytest.approx(20 * MS)] * 2
    assert [item.kind for item in job.ranks[0]] == 2 * [
        WORK, CALL, WORK, WORK, CALL, WORK, WORK, WAIT, WORK, WAIT, WORK, STEP
    ]  # fmt: skip
    within = [item.seconds for item in job.ranks[0] if item.kind == WORK and item.call >= 0]
    assert within == pytest.approx(4 * [0.05 * MS])
    # called after 10 and 14 ms, over after 15 and 19: the second begins when the first is done, by one thread
    assert [call.seconds for call in job.calls[:2]] == pytest.approx([5 * MS, 4 * MS])
    now = replay_job(job, [call.seconds for call in job.calls])
    assert now.steps == pytest.approx([20 * MS, 20 * MS])
    assert now.waited[:2] == pytest.approx([0.9 * MS, 3.8 * MS], rel=0.01)
    assert [one.nbytes for one in job.gradients] == [10**6] * 2
    assert job.gradients[0].work == pytest.approx(9.9 * MS)


def test_a_thread_that_says_late_that_it_is_done(tmp_path: Path) -> None:
    """The line goes on at 15.1 ms, the collective is said to be over at 15.15: it waited until then all the same."""
    traces = [made.ddp(0), made.ddp(1)]
    for trace in traces:
        for event in trace["traceEvents"]:
            if event["name"] == "gloo:all_reduce" and event["ts"] % 20_000 < 12_000:
                event["dur"] += 150.0
    job = read_job(made.write(tmp_path, traces))
    assert [item.kind for item in job.ranks[0]].count(WAIT) == 4
    assert job.calls[0].seconds == pytest.approx(5.1 * MS)
    assert replay_job(job, [0.0] * 4).step == pytest.approx((20 - 0.9 - 3.8) * MS, rel=0.02)


def test_sharded_parameters_wait_at_once(tmp_path: Path) -> None:
    """An allgather right after whose call nothing is computed until it is over; its shapes tell output, then input."""
    dims = {"Input type": ["float", "float", "", "Scalar"], "Input Dims": [[2000], [1000], [], []]}
    events = [
        made.step(0, 0.0, 10_000.0), made.op("aten::copy_", 100.0, 900.0),
        made.op("c10d::_allgather_base_", 1000.0, 100.0, **dims), made.carried("all_gather", 1200.0, 2800.0, 1000),
        made.op("aten::mm", 4100.0, 5900.0),
    ]  # fmt: skip
    job = read_job(made.write(tmp_path, [made.of_rank(rank, events) for rank in (0, 1)]))
    assert [(call.kind, call.nbytes) for call in job.calls] == [("allgather", 8000)]
    assert job.calls[0].seconds == pytest.approx(3 * MS)  # from the call on
    assert replay_job(job, [3 * MS]).step == pytest.approx(10 * MS)
    assert replay_job(job, [0.0]).step == pytest.approx((10 - 3) * MS)  # what gloo did within its call goes with it
    assert cores.replay_job(cores.remove_slowdown(job, 8), [0.0], 8).step == pytest.approx((10 - 3) * MS)


def test_calls_of_ours_tell_when_they_ran_and_who_waited(tmp_path: Path) -> None:
    told = {"Process Group Name": "0", "Group size": 2, "Process Group Ranks": "[0, 1]"}
    about = {"Collective name": "reduce_scatter_single", "In msg nelems": 500, "Out msg nelems": 250, "dtype": "Float"}
    events = [
        made.step(0, 0.0, 10_000.0), made.op("aten::mm", 0.0, 3000.0),
        made.op("antiphon:reduce_scatter_single", 3000.0, 5.0, call=7, **about, **told),
        made.op("aten::mm", 3100.0, 2000.0),
        made.op("antiphon:wait", 5200.0, 1800.0, call=7, **told),
        made.op("antiphon:done", 7100.0, 2.0, call=7, **{"begun ns ago": 4_000_000, "over ns ago": 200_000}, **told),
        made.op("aten::mm", 7200.0, 2800.0),
    ]  # fmt: skip
    job = read_job(made.write(tmp_path, [made.of_rank(rank, events) for rank in (0, 1)]))
    assert [(call.kind, call.nbytes) for call in job.calls] == [("reducescatter", 2000)]
    assert job.calls[0].seconds == pytest.approx(3.9 * MS)
    found = replay_job(job, [3.9 * MS])
    assert (found.step, found.waited[0]) == (pytest.approx(10 * MS), pytest.approx(1.7 * MS))
    events[5]["args"]["call"] = 8  # the end of another call: nothing is known of this one
    with pytest.raises(Invalid, match="no collectives in its steps"):
        read_job(made.write(tmp_path, [made.of_rank(0, events)]))


def test_kernels_of_nccl_beside_those_that_compute(tmp_path: Path) -> None:
    job = read_job(made.write(tmp_path, [made.gpu(0), made.gpu(1)]))
    assert [(call.kind, call.nbytes) for call in job.calls] == [("allreduce", 10**6)]
    assert job.calls[0].seconds == pytest.approx(5.01 * MS)  # from when the first kernel was done
    found = replay_job(job, [call.seconds for call in job.calls])
    assert found.step == pytest.approx(10.062 * MS, rel=0.01)
    assert found.waited[0] == pytest.approx(3.01 * MS)
    assert replay_job(job, [1 * MS]).step == pytest.approx(7.06 * MS, rel=0.01)  # hidden behind the second kernel


def test_clocks_of_hosts_are_told_by_the_ends_of_collectives(tmp_path: Path) -> None:
    other = made.ddp(1, late=2.0)
    other["host_name"] = "there"
    for event in other["traceEvents"]:
        event["ts"] -= 123_456.0  # behind, so that it would seem to have come first
    job = read_job(made.write(tmp_path, [made.ddp(0), other]))
    assert [call.seconds for call in job.calls[:2]] == pytest.approx([3 * MS, 4 * MS])
    assert replay_job(job, [call.seconds for call in job.calls]).step == pytest.approx(20 * MS)


# ---- others ----


def test_chakra_traces_by_their_dependencies(tmp_path: Path) -> None:
    """Computation 4 ms, an allreduce of 5 ms beside 2 ms more, and 1 ms after it."""
    about = octets(10, attribute("comm_type", 0)) + octets(10, attribute("comm_size", 10**6))
    file = head({}) + b"".join(
        [
            node(1, "mm", COMPUTE, [], 4000), node(2, "grads", COLLECTIVE, [1], 5000, about),
            node(3, "mm", COMPUTE, [1], 2000), node(4, "adam", COMPUTE, [2, 3], 1000),
        ]
    )  # fmt: skip
    for rank in (0, 1):
        (tmp_path / f"job.{rank}.et").write_bytes(file)
    job = read_job([tmp_path])
    assert replay_job(job, [5 * MS]).step == pytest.approx(10 * MS)
    assert replay_job(job, [5 * MS]).waited == [pytest.approx(3 * MS)]
    assert replay_job(job, [1 * MS]).step == pytest.approx(7 * MS)


def test_profiles_of_nccl(tmp_path: Path) -> None:
    files = made.write(tmp_path, [made.profile_of_nccl(0), made.profile_of_nccl(1)])  # type: ignore[list-item]
    job = read_job(files)
    assert [(call.kind, call.nbytes) for call in job.calls] == [("allgather", 8000)]
    assert job.calls[0].seconds == pytest.approx(50e-6)
    assert any("shows nothing of computation" in note for note in job.notes)


def test_the_inspector_of_nccl(tmp_path: Path) -> None:
    for rank in (0, 1):
        lines = [made.inspected(rank, number, 2 * MS) for number in (3, 1, 2)]
        (tmp_path / f"rank{rank}.log").write_text("\n".join(lines) + "\n")
    job = read_job([tmp_path])
    assert [call.nbytes for call in job.calls] == [4096] * 3
    assert replay_job(job, [2 * MS] * 3).step == pytest.approx(6 * MS)


def test_the_inspector_counts_one_block_of_an_allgather(tmp_path: Path) -> None:
    for rank in (0, 1):
        lines = [made.inspected(rank, number, 2 * MS, coll) for number, coll in enumerate(("AllGather", "Broadcast"))]
        (tmp_path / f"rank{rank}.log").write_text("\n".join(lines))
    calls = read_job([tmp_path]).calls
    assert [(call.kind, call.nbytes) for call in calls] == [("allgather", 8192), ("broadcast", 4096)]


# ---- hostile files ----


def changed(trace: dict[str, Any], **args: Any) -> dict[str, Any]:
    for event in trace["traceEvents"]:
        event["args"] |= args
    return trace


HUGE = [made.op("aten::mm", 0, 9), made.allreduce(0.0, 1.0, 2**59), made.carried("all_reduce", 1.0, 2.0, 1)]


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ({"traceEvents": []}, "neither a trace of PyTorch's profiler nor of a profiler of NCCL"),
        ({"topology": {}, "plans": []}, "neither a trace of PyTorch's profiler nor of a profiler of NCCL"),  # a plan
        (made.of_rank(0, [made.op("aten::mm", 0.0, 5.0)]), "record_shapes=True"),
        (changed(made.gpu(0), **{"Group size": 2**49}), "has 562949953421312 ranks"),
        (changed(made.gpu(0), **{"In msg nelems": 2**49, "Collective name": "gather", "Group size": 2**11}), "bytes"),
        (changed(made.gpu(0), **{"In msg nelems": "x"}), "In msg nelems, Out msg nelems or Group size is not there"),
        (changed(made.gpu(0), dtype=["Float"]), "its dtype is not known"),
        (changed(made.gpu(0), correlation=[1]), "no collectives in its steps"),
        (changed(made.gpu(0), **{"Collective name": {}}), "lack the arguments"),
        (changed(made.gpu(0), **{"Process Group Ranks": [[[]]]}), None),
        ({**made.gpu(0), "distributedInfo": {"pg_config": [7]}}, "pg_config"),
        ({**made.gpu(0), "distributedInfo": []}, None),
        ({**made.gpu(0), "distributedInfo": {"rank": -1, "world_size": "2", "pg_config": 5}}, None),
        (made.of_rank(0, HUGE), "bytes"),
        ([{"ph": "b", "cat": "COLL", "id": [], "ts": 0, "args": {"Rank": -1}}], "event 0: a collective without"),
    ],
)  # fmt: skip
def test_odd_traces_are_refused_in_one_line(trace: Any, said: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(trace))
    if said is None:  # odd, but it says what is needed
        assert read_job([tmp_path / "a.json"]).calls
        return
    with pytest.raises(AntiphonError, match=said) as told:
        read_job([tmp_path / "a.json"])
    assert len(str(told.value).splitlines()) == 1
    assert str(told.value).startswith(str(tmp_path)) or "ranks" in said or said == "bytes"  # of the whole job


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"coll_perf": {}}', "line 1"), (made.inspected(0, 1, 1.0).replace("AllReduce", "Gossip"), "Gossip"),
        (made.inspected(5, 1, 1.0), "rank 5 of 2"),
        (made.inspected(0, 1, 1.0).replace("4096", "-1"), "of no possible size"),
    ],
)  # fmt: skip
def test_odd_lines_are_refused(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(line + "\n")
    with pytest.raises(Invalid, match=said):
        read_job([tmp_path / "a.log"])


def test_ranks_that_call_different_things(tmp_path: Path) -> None:
    other = made.ddp(1)
    for event in other["traceEvents"]:
        if event["name"] == "c10d::allreduce_":
            event["args"]["Input Dims"] = [[[3]], [], [], [], [], []]
    with pytest.raises(Invalid, match="rank 0 calls allreduce of 1000000 bytes, rank 1 allreduce of 12"):
        read_job(made.write(tmp_path, [made.ddp(0), other]))
    with pytest.raises(Invalid, match="of the same rank"):
        read_job(made.write(tmp_path, [made.ddp(0), made.ddp(0)]))
    with pytest.raises(Invalid, match="there are 0"):
        read_job([])


# ---- prices ----


NCCL_TESTS = """# nThread 1 nGpus 8 minBytes 1024
# ./build/all_reduce_perf -b 1K -e 4K -f 2 -g 8
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float     sum      -1    30.00    0.03    0.06      0    31.00    0.03    0.06      0
     2000000        500000     float     sum      -1    40.00   50.00  100.00      0    40.50   49.38   98.77      0
"""


@pytest.mark.parametrize(
    ("nbytes", "seconds"), [(100, 1.0), (1000, 1.0), (1500, 1.5), (2000, 2.0), (4000, 4.0)],
)  # fmt: skip
def test_between_measured_sizes(nbytes: int, seconds: float) -> None:
    assert interpolate_seconds([(1000, 1.0), (2000, 2.0)], nbytes) == pytest.approx(seconds)


def test_buckets_cut_anew(tmp_path: Path) -> None:
    step = buckets.last_step(read_job(made.write(tmp_path, [made.ddp(0), made.ddp(1)])))
    gradients, told = buckets.ready_gradients(step, [])
    assert not told
    assert sum(one.nbytes for one in gradients) == 2 * 10**6
    for least, many in ((1, 32), (500_000, 4), (10**6, 2), (2 * 10**6, 1), (10**9, 1)):
        made_anew = buckets.rebucket(step, gradients, least)
        assert len(made_anew.calls) == many
        assert sum(call.nbytes for call in made_anew.calls) == 2 * 10**6
        whole = replay_job(made_anew, [0.0] * many, serial=True).step
        assert whole == pytest.approx(replay_job(step, [0.0, 0.0]).step)  # the same computation
    one = replay_job(buckets.rebucket(step, gradients, 10**9), [8 * MS], serial=True).step
    two = replay_job(buckets.rebucket(step, gradients, 10**6), [4 * MS] * 2, serial=True).step
    assert two < one  # the first begins earlier


# ---- all of it ----


ROWS = [{"collective": "allreduce", "nbytes": 10**6, "seconds": 1 * MS, "in_place": False, "correct": True}]


def found(files: Sequence[Path], **given: Any) -> dict[str, Any]:
    return antiphon.replay.job(files, **given)


def test_a_replay_by_what_was_measured(tmp_path: Path) -> None:
    told = found(made.write(tmp_path, [made.ddp(0), made.ddp(1)]), measured=ROWS)
    assert told["step"]["recorded"] == told["step"]["replayed"] == pytest.approx(20 * MS)
    # buckets over after 11 and 15 ms: the first is hidden, 0.8 ms of the second are not
    assert told["step"]["ours"] == pytest.approx((20 - 0.9 - 3.8 + 0.8 - 0.1) * MS, rel=0.01)
    assert told["step"]["without_communication"] == pytest.approx((20 - 0.9 - 3.8 - 0.1) * MS, rel=0.01)
    (row,) = told["calls"]
    assert (row["collective"], row["nbytes"], row["per_step"], row["bucket"]) == ("allreduce", 10**6, 2, True)
    assert row["exposed"] == pytest.approx(4.7 * MS, rel=0.01)
    assert row["hidden"] == pytest.approx(4.3 * MS, rel=0.01)
    assert row["gain"] == pytest.approx(told["step"]["replayed"] - told["step"]["ours"], rel=0.01)
    assert row["most"] == pytest.approx(4.8 * MS, rel=0.01)  # and 0.1 within the calls
    assert told["worth_tuning"]["collective"] == "allreduce"
    assert told["buckets"]["recorded"] == 10**6


def test_a_table_that_was_measured_says_what_its_plans_take(tmp_path: Path) -> None:
    """And what it leaves to the library stays as it was; with a model named the model counts."""
    files = made.write(tmp_path, [made.ddp(0), made.ddp(1)])
    plan = antiphon.plan("allreduce", "full:ranks=2", planner="ring")
    (entry,) = plan.entries
    claims = {
        "planner": "ring",
        "measurements": [{"nbytes": 500_000, "seconds": 2e-3}, {"nbytes": 2**21, "seconds": 9}],
    }
    table = replace(plan, entries=(replace(entry, stop=10**6 + 1, claims=claims), replace(entry, start=10**6 + 1)))
    (row,) = found(files, table=table)["calls"]
    assert row["ours"] == pytest.approx(interpolate_seconds([(500_000, 2e-3), (2**21, 9.0)], 10**6))
    assert "measured" in row["by"]
    (row,) = found(files, table=table, model="alpha-beta")["calls"]
    assert row["ours"] < 1 * MS
    left = replace(plan, entries=(replace(entry, claims={**claims, "served_by": "library"}),))
    told = found(files, table=left)
    assert told["calls"][0]["ours"] is None
    assert told["step"]["ours"] == told["step"]["replayed"]
    assert any("left to the library" in note for note in told["notes"])


@pytest.mark.parametrize("model", ["alpha-beta", "genmodel"])
def test_a_replay_rests_on_what_the_prediction_does(tmp_path: Path, model: str) -> None:
    """On a profile or on nothing, whatever words a note or a name has in it."""
    files = made.write(tmp_path, [made.ddp(0), made.ddp(1)])
    plan = antiphon.plan("allreduce", "full:ranks=2", planner="ring")
    for profile in (None, Profile(name="calibrated, measured", alpha={"link": 1e-6})):
        (said,) = antiphon.predict(plan, 10**6, model=model, profile=profile)
        told = found(files, table=plan, model=model, profile=profile)
        assert told["step"]["rests_on"] == told["calls"][0]["rests_on"] == said["rests_on"]
        assert said["rests_on"] == ("not calibrated" if profile is None else "profile calibrated, measured")


def test_the_name_of_a_file_does_not_say_what_was_measured(tmp_path: Path) -> None:
    rows = tmp_path / "measured, not calibrated.json"
    rows.write_text(json.dumps(ROWS))
    told = found(made.write(tmp_path, [made.ddp(0), made.ddp(1)]), measured=rows)
    assert told["step"]["rests_on"] == told["worth_tuning"]["rests_on"] == "measured"


def test_a_job_of_processors_on_a_machine_of_gpus_is_told(tmp_path: Path) -> None:
    for traces, told in (([made.ddp(0), made.ddp(1)], 1), ([made.gpu(0), made.gpu(1)], 0)):
        files = made.write(tmp_path, traces)
        notes = found(files, topology=antiphon.topology("hgx-h100", only=[0, 1]), planners="ring")["notes"]
        assert sum("computed on CPUs" in note for note in notes) == told


def test_a_replay_by_plans_and_beside_nccl(tmp_path: Path) -> None:
    traces = [made.gpu(rank) for rank in range(2)]
    for trace in traces:
        for event in trace["traceEvents"]:
            if "Group size" in event["args"]:
                event["args"] |= {"Group size": 8, "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}
        trace["distributedInfo"] = {"rank": trace["distributedInfo"]["rank"], "world_size": 8}
    told = found(made.write(tmp_path, traces), topology="hgx-h100", planners=["ring", "nvls"])
    (row,) = told["calls"]
    assert 0 < row["ours"] < 5 * MS
    assert "calibrated by" in row["by"]
    assert row["rests_on"] == told["step"]["rests_on"] == "calibrated by h100"
    assert row["library"] > 0
    assert "calibrated by" in row["library_by"]
    assert told["step"]["ours"] < told["step"]["replayed"]
    with pytest.raises(Invalid, match="give the machine that it ran on"):
        found(tmp_path, topology="full:ranks=2")
    with pytest.raises(Invalid, match="topology: name the machine"):
        found(tmp_path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(path) for path in made.write(tmp_path, [made.ddp(0), made.ddp(1)])]
    rows = tmp_path / "rows.txt"
    rows.write_text(NCCL_TESTS)
    assert run(["replay", *files, "--measured", str(rows), "--cores", "4"]) == 0
    said = capsys.readouterr().out
    for words in ("a step takes 20 ms", "with ours", "worth tuning first: allreduce", "the ranks share 4 cores"):
        assert words in said
    assert run(["replay", *files, "--topology", "full:ranks=2", "--planner", "ring", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["topology"] == "full:ranks=2"
    assert run(["replay", str(tmp_path / "none.json"), "--topology", "full:ranks=2"]) == 2


# ---- groups at the same time ----


def pairs_at_once(nbytes: int = 10**8) -> RecordedJob:
    """Two steps in which eight pairs, a rank of each of two boxes, allreduce at the same time; one pair once more."""
    groups = [ProcessGroup(f"pair{i}", 2, (i, i + 8)) for i in range(8)]
    calls = [
        RecordedCollective("allreduce", nbytes, group, 3 * MS, at * MS)
        for start in (0, 20) for group, at in [*((g, start + 0.1 * g) for g in range(8)), (0, start + 10)]
    ]  # fmt: skip
    lanes: dict[int, list[list[int]]] = {rank: [[]] for rank in range(16)}
    items: dict[int, list[TimelineItem]] = {rank: [] for rank in range(16)}
    for number, call in enumerate(calls):
        for rank in groups[call.group].members:
            lanes[rank][0].append(number)
            items[rank] += [TimelineItem(CALL, call=number), TimelineItem(WAIT, call=number)]
            items[rank] += [TimelineItem(STEP)] if number in (8, 17) or (call.group and number < 18) else []
    return RecordedJob(groups, calls, items, lanes, [20 * MS, 20 * MS])


def test_calls_at_the_same_time_are_sets_that_repeat() -> None:
    sets = find_call_sets(pairs_at_once())
    assert next(iter(sets.values())) == 2
    assert next(iter(sets)) == {("allreduce", 10**8, group) for group in range(8)}


@pytest.mark.slow
def test_what_a_joint_plan_gains_over_plans_apart() -> None:
    machine = antiphon.topology("cluster:box=dgx-a100,boxes=2")

    def plan(kind: str, members: Sequence[int], _: Sequence[int]) -> Any:
        return antiphon.plan(kind, machine, ranks=list(members), planner="trees", nbytes=10**8)

    rows, notes = compare_together(pairs_at_once(), ByPlans(machine, {}, plan, "alpha-beta"))
    assert notes == []
    assert len(rows) == 1
    assert (len(rows[0]["calls"]), rows[0]["per_step"]) == (8, 1)
    # Each pair alone may take all eight cards of its box; all pairs together have one card each: 25 GB/s.
    assert rows[0]["joint"] == pytest.approx(10**8 / 25e9, rel=0.05)
    assert rows[0]["apart"] > rows[0]["joint"]
    assert rows[0]["gain"] == rows[0]["apart"] - rows[0]["joint"]
