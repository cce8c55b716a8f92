"""register.py against a stand-in that chooses as MSCCL++ is documented to: the right plan at all ranks, or none."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mscclpp_runtime import Builder, Job, module_of
from quick import crossed, in_turn, ordinary

import antiphon
from antiphon.core.plan import Entry, Plan
from antiphon.core.transform import split
from antiphon.cost.nccl.model import calls
from antiphon.errors import Unsupported
from antiphon.select.plans import every_plan

KINDS = ("allreduce", "allgather", "reducescatter", "broadcast")


def plan_of(
    kind: str, machine: str = "full:ranks=4", planner: str = "", split: int = 0, root: int | None = None
) -> Plan:
    """A plan, with its range of sizes split in two where that is asked for."""
    default = "binomial-tree" if kind == "broadcast" else "direct"
    plan = antiphon.plan(kind, antiphon.topology(machine), planner=planner or default, root=root)
    if not split:
        return plan
    schedule = plan.entries[0].schedule
    return Plan(plan.topology, plan.collective, (Entry(0, split, schedule), Entry(split, None, schedule)))


def job_of(
    plans: Plan | dict[str, Plan], folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Job, dict[str, Any]]:
    antiphon.export(plans, "mscclpp-json", folder, options=options)
    space = module_of(folder, monkeypatch)
    job = Job(space["RANKS"], space["RANKS_PER_NODE"])
    job.register(space, sum_only=True)
    return job, space


@pytest.mark.parametrize(("kind", "place"), crossed(KINDS, ["in", "out"], 2))
def test_every_size_and_place_runs_a_plan_that_fits_or_none(
    kind: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Throws, and ranks that choose differently, are failures of `Job.call`."""
    job, _ = job_of(plan_of(kind, split=2**19), tmp_path, monkeypatch, packets=8192)
    root = 0 if kind == "broadcast" else None
    served = 0
    for count in (1, 2, 16, 100, 1000, 1024, 4000, 4096, 8192, 2**17 - 16, 2**17, 100 * 2**10, 2**19, 2**21, 2**40):
        plan = job.call(kind, count, place, root)
        if plan is None:
            continue
        served += 1
        whole = count * 4 if kind in ("allgather", "reducescatter") else count
        assert plan["min_message_size"] <= whole <= plan["max_message_size"]
        assert plan["inplace"] == (place == "in" and kind != "broadcast")
        assert (plan["protocol"] == "LL") == (whole <= 8192 and kind != "broadcast")
    assert served >= 7
    assert job.call(kind, 4096, place, root) is not None
    assert job.call(kind, 4000 + 4, place, root) is None


def test_a_runner_up_serves_the_tuned_size_that_chunks_do_not_divide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the schedule that was priced, of the several of its planner, not the fastest of these."""
    tuned, machine = 2**20, antiphon.topology("ring:ranks=4")
    plan = plan_of("allreduce", "ring:ranks=4", "ring")
    winner = split(plan.entries[0].schedule, 3)
    others = list(every_plan("allreduce", machine, planner="sccl"))
    _, priced, *_ = sorted(antiphon.predict(other, tuned, model="alpha-beta")[0]["seconds"] for other in others)
    runners_up = [{"planner": "sccl", "options": {}, "seconds": priced}]
    claims = {"planner": "ring", "at": tuned, "seconds": priced / 2, "model": "alpha-beta", "runners_up": runners_up}
    job, _ = job_of(replace(plan, entries=(Entry(0, None, winner, claims),)), tmp_path, monkeypatch)
    for nbytes, chunks in ((tuned, 8), (3 * tuned, 24), (tuned + 256, 8), (tuned + 16, None)):
        served = job.call("allreduce", nbytes, "out", None)
        assert (served and served["gpus"][0]["input_chunks"]) == chunks, nbytes


def test_a_plan_with_relays_has_no_runner_up_beside_it() -> None:
    """register.py serves no plan with relays, whatever its unit is."""
    plan = antiphon.plan("allreduce", antiphon.topology("full:ranks=5"), planner="relay", ranks=[0, 1])
    claims = {"planner": "relay", "at": 2**20, "seconds": 1.0, "runners_up": []}
    schedule = split(plan.entries[0].schedule, 3)
    files = antiphon.export(replace(plan, entries=(Entry(0, None, schedule, claims),)), "mscclpp-json")
    assert [*files] == ["plan0.json", "plan0-in-place.json", "register.py"]


def test_calls_above_2_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest size of a plan is an int for the loader. A range above what offsets allow has a note, no file."""
    job, _ = job_of(plan_of("allgather", planner="ring", split=3 * 2**30), tmp_path / "a", monkeypatch)
    assert job.call("allgather", 3 * 2**28) is not None
    files = antiphon.export(plan_of("allreduce", split=3 * 2**30), "mscclpp-json")
    assert {*files} == {"plan0.json", "plan0-in-place.json", "register.py"}
    assert [note.split(": ", 1)[1] for note in files.notes] == [
        "serves calls of up to 1431655760B only: offsets have 32 bits",
        "serves calls of up to 0B only: offsets have 32 bits",
    ]


@pytest.mark.parametrize(
    ("ranks", "serves"), in_turn([(3, "; serves only multiples of 96 bytes (no power of two)"), (4, "")])
)
def test_files_state_the_sizes_that_they_serve(tmp_path: Path, ranks: int, serves: str) -> None:
    plan = antiphon.plan("allreduce", f"ring:ranks={ranks}", planner="ring")
    schedule = plan.entries[0].schedule
    plan = Plan(
        plan.topology,
        plan.collective,
        (Entry(0, 65537, schedule), Entry(65537, 2**17, schedule), Entry(2**17, None, schedule)),
    )
    written = antiphon.export(plan, "mscclpp-json", tmp_path)
    assert written.purposes["plan1.json"] == f"allreduce >64KiB to 128KiB{serves}"
    narrow = replace(plan, entries=(Entry(0, 97, schedule), Entry(97, 100, schedule), Entry(100, None, schedule)))
    purposes = antiphon.export(narrow, "mscclpp-json").purposes
    assert "serves no call" in purposes["plan1.json"]  # no multiple of 96 or 128 bytes
    assert purposes["plan2.json"] == f"allreduce from 100B on{serves}"


def test_a_broadcast_serves_its_root_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And in one way, whatever other ranks than the root hand over as input."""
    job, space = job_of(plan_of("broadcast", root=2), tmp_path, monkeypatch)
    names = set()
    for place, root in itertools.product(("in", "out", "root"), (0, 1, 2, None)):
        plan = job.call("broadcast", 4096, place, root)
        assert (plan is not None) == (root == 2), (place, root)
        names |= {plan["name"]} if plan else set()
    assert len(names) == 1
    assert space["fitting"]("broadcast", 4096, False) is None


@pytest.mark.parametrize("kind", KINDS)
def test_who_does_not_promise_to_sum_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    antiphon.export(plan_of(kind), "mscclpp-json", tmp_path)
    space, builder = module_of(tmp_path, monkeypatch), Builder()
    if kind in ("allgather", "broadcast"):
        space["register"](builder, 0, 4, 4)
        return
    with pytest.raises(RuntimeError, match=f"plans for {kind} only add, also for min.*pass sum_only=True"):
        space["register"](builder, 0, 4, 4)
    assert not builder.algorithms


def test_a_table_of_all_collectives_is_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = job_of({kind: plan_of(kind) for kind in KINDS}, tmp_path, monkeypatch)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"register.py", *(f"{kind}-plan0{place}.json" for kind in KINDS for place in ("", "-in-place"))}
    for kind in KINDS:
        plan = job.call(kind, 4096, root=0 if kind == "broadcast" else None)
        assert plan is not None
        assert plan["collective"] == kind
    part = antiphon.plan("allgather", "full:ranks=4", planner="ring", ranks=(0, 1, 2))
    with pytest.raises(Unsupported, match="plans of 3 and 4 ranks; export each by itself"):
        antiphon.export({"allreduce": plan_of("allreduce"), "allgather": part}, "mscclpp-json")


def test_switches_serve_only_memory_and_types_that_they_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, space = job_of(plan_of("allreduce", "hgx-h100", "nvls"), tmp_path, monkeypatch)
    size = 2**20
    assert job.call("allreduce", size) is None  # there is no driver here, so no memory of its
    job.builders = [Builder() for _ in range(8)]
    space["is_bindable"] = lambda address: address >= 2**41
    job.register(space, sum_only=True)
    assert job.call("allreduce", size) is None  # the input is not
    space["is_bindable"] = lambda address: True
    assert job.call("allreduce", size, dtype="bfloat16") is not None
    assert job.call("allreduce", size, dtype="float8_e4m3fn") is None


def test_types_without_a_kernel_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = job_of(plan_of("allgather"), tmp_path, monkeypatch)
    assert job.call("allgather", 4096, dtype="float8_e4m3fn") is not None
    assert job.call("allgather", 4096, dtype="uint8") is None


def test_no_packets_in_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would repeat their flags."""
    job, space = job_of(plan_of("allreduce"), tmp_path, monkeypatch, packets=8192)
    for captured in (False, True):
        space["is_captured"] = lambda stream, captured=captured: captured
        small, large = job.call("allreduce", 4096), job.call("allreduce", 2**20)
        assert (small is None, large is None) == (captured, False)


def test_no_packets_beside_calls_that_do_not_wait_for_all() -> None:
    """A rank may leave a broadcast two calls ahead of another; then both halves of its scratch may be in use."""
    for kind in ("broadcast", "gather") if ordinary else ("broadcast", "reduce", "scatter", "gather"):
        plans = {"allreduce": plan_of("allreduce"), kind: plan_of(kind, planner="direct")}
        for packets in ("64KiB", "yes", "0", "auto"):  # auto: no predicted times, so nothing speaks for packets
            files = antiphon.export(plans, "mscclpp-json", options={"packets": packets})
            assert any("packets" in name for name in files) == (packets == "64KiB")
            assert any(name.startswith(kind) for name in files) == (packets in ("0", "auto"))
            named = {"0": "", "auto": f"no packets: a rank may leave {kind} before others"}
            assert named.get(packets, f"left to the library: {kind}: a rank") in " ".join(files.notes)
    plans = {kind: plan_of(kind) for kind in ("allreduce", "alltoall")}
    assert "alltoall-plan0-packets.json" in antiphon.export(plans, "mscclpp-json", options={"packets": "64KiB"})


@pytest.mark.parametrize(("gain", "chosen"), [(1.05, "packets"), (3.0, "broadcast")])
def test_packets_or_a_broadcast_by_what_they_gain(gain: float, chosen: str) -> None:
    """The library takes three times as long as our broadcast, or as much more as `gain`."""
    machine = antiphon.topology("hgx-h100")

    def tuned(kind: str, planner: str, nbytes: int, protocol: str, speedup: float) -> Plan:
        plan = antiphon.plan(kind, machine, planner=planner, nbytes=nbytes)
        schedule = plan.entries[0].schedule
        seconds = calls(schedule, machine).seconds_by_protocol(nbytes)[protocol]
        claims = {"at": nbytes, "seconds": seconds, "model": "calls", "reference": "nccl", "speedup": speedup}
        return replace(plan, entries=(Entry(0, None, schedule, claims),))

    plans = {
        "allreduce": tuned("allreduce", "recursive-doubling", 2048, "ll", 1.3),
        "broadcast": tuned("broadcast", "direct", 4096, "simple", gain),
    }
    files = antiphon.export(plans, "mscclpp-json")
    assert {word for name in files for word in ("packets", "broadcast") if word in name} == {chosen}
    (note,) = (note for note in files.notes if "before others enter" in note)
    assert "faster for allreduce at" in note
    assert ("option packets=0 writes" in note, "option packets=yes writes" in note) == (
        chosen == "packets",
        chosen == "broadcast",
    )


def test_notes_on_ranges_that_begin_where_packets_end() -> None:
    """In words of round sizes; a staged plan leaves sizes out because of its units, not of offsets."""
    machine, tuned = antiphon.topology("hgx-h100"), 2**19
    plan = antiphon.plan("allreduce", machine, planner="recursive-doubling")
    schedule = plan.entries[0].schedule
    seconds = min(calls(schedule, machine).seconds_by_protocol(tuned).values())
    claims = {"at": tuned, "seconds": seconds, "model": "calls", "reference": "nccl", "speedup": 9.0}
    plan = replace(plan, entries=(Entry(0, tuned + 1, schedule, claims), Entry(tuned + 1, None, schedule)))
    staged = " ".join(antiphon.export(plan, "mscclpp-json", options={"staged": "yes", "packets": "64KiB"}).notes)
    assert "allreduce up to 512KiB: staged" in staged
    assert "no plan for sizes >64KiB to 512KiB" in staged
    assert "offsets" not in staged
    plain = " ".join(antiphon.export(plan, "mscclpp-json", options={"packets": "2KiB"}).notes)
    assert "allreduce up to 512KiB: above 2KiB protocol Simple takes" in plain


def test_no_packets_beside_such_calls_of_another_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = job_of(plan_of("allreduce"), tmp_path / "a", monkeypatch, packets=8192)
    antiphon.export(plan_of("allgather"), "mscclpp-json", tmp_path / "b", options={"packets": 8192})
    job.register(module_of(tmp_path / "b", monkeypatch))
    antiphon.export(plan_of("broadcast"), "mscclpp-json", tmp_path / "c")
    with pytest.raises(RuntimeError, match="packets may hang beside plans for broadcast"):
        job.register(module_of(tmp_path / "c", monkeypatch))


def test_packets_beside_a_broadcast_that_is_left_to_nccl() -> None:
    broadcast = plan_of("broadcast")
    served = Entry(0, None, broadcast.entries[0].schedule, {"use": "library", "served_by": "nccl"})
    plans = {"allreduce": plan_of("allreduce"), "broadcast": Plan(broadcast.topology, broadcast.collective, (served,))}
    files = antiphon.export(plans, "mscclpp-json", options={"packets": "64KiB"})
    assert "allreduce-plan0-packets.json" in files
    assert not any("no packets" in note or name.startswith("broadcast") for note in files.notes for name in files)


def test_other_jobs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, space = job_of(plan_of("allgather"), tmp_path, monkeypatch)
    with pytest.raises(RuntimeError, match="for 4 ranks, not for 8"):
        space["register"](Builder(), 2, 8, 4)
    with pytest.raises(RuntimeError, match="for 4 ranks per node, not for 2"):
        space["register"](Builder(), 2, 4, 2)
    job.per_node = 2
    assert job.call("allgather", 4096) is None
    (tmp_path / "plan0.json").unlink()
    with pytest.raises(RuntimeError, match=r"plan0\.json is missing"):
        space["register"](Builder(), 2, 4, 4)
