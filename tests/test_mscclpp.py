"""MSCCL++: what is written is right in every order, what others wrote is read, and what is damaged is found."""

import copy
import json
import re
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import _harness as harness
import _mscclpp_executor as executor
import mscclpp as fuzzer
import pytest
from mscclpp_cases import FOREIGN, NOP, SWITCHED, tell
from packing_cases import OPTIMA
from quick import in_turn, some

import antiphon
from antiphon.api.checking import check
from antiphon.core.collective import Collective
from antiphon.core.plan import Entry, Plan
from antiphon.core.program import Program
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.formats import emit
from antiphon.formats.msccl.code import codes_of
from antiphon.formats.msccl.read import read_msccl
from antiphon.formats.mscclpp import blocks, shape, write
from antiphon.formats.mscclpp.read import plan_of, read_plan
from antiphon.lower.lowering import lower
from antiphon.lower.machine.code import Code
from antiphon.lower.machine.judge import judge
from antiphon.lower.onesided.streams import find_credits

CASES = [
    ("allreduce", "ring:ranks=4", "ring"), ("allreduce", "dgx1v", "multi-ring"),
    ("allreduce", "full:ranks=8", "halving-doubling"), ("alltoall", "full:ranks=5", "pairwise"),
    ("broadcast", "full:ranks=7", "binomial-tree"), ("reducescatter", "full:ranks=4", "pairwise"),
    ("scatter", "full:ranks=4", "binomial-tree"), ("gather", "full:ranks=4", "binomial-tree"),
    ("reduce", "delta:nodes=2", "binomial-tree"), ("allgather", "delta:nodes=2", "ring"),
]  # fmt: skip


def files_of(kind: str, machine: str, planner: str, **options: Any) -> dict[str, bytes]:
    plan = antiphon.plan(kind, antiphon.topology(machine), planner=planner)
    return {name: text for name, text in emit(plan, "mscclpp-json", options=options).items() if isinstance(text, bytes)}


def verdict(plan: dict[str, Any]) -> str:
    return str(judge(plan_of(json.dumps(plan).encode()).code) or "")


# ---- what is written ----


@pytest.mark.parametrize("case", in_turn([(case,) for case in CASES]), ids="-".join)
def test_what_is_written_is_right(case: tuple[str, str, str]) -> None:
    for name, text in files_of(*case).items():
        if name == "register.py":
            continue
        read = plan_of(text)
        assert judge(read.code) is None, name
        assert read.code.collective.kind == case[0]
        plan = json.loads(text)
        for gpu in plan["gpus"]:
            assert gpu["input_chunks"] > 0 < gpu["output_chunks"]
            assert len(gpu["semaphores"]) <= shape.MOST_SEMAPHORES
            for block in gpu["threadblocks"]:
                assert len(block["ops"]) <= shape.MOST_OPERATIONS


MACHINES = [
    *(f"full:ranks={n}" for n in range(2, 17)), *(f"ring:ranks={n}" for n in range(3, 17)), "dgx1v", "dgx1p",
    "delta:nodes=2", "delta:nodes=4",
]  # fmt: skip
STAGED_ON = ("full:ranks=5", "dgx1v", "delta:nodes=2")  # some minutes each


@pytest.mark.slow
@pytest.mark.parametrize("machine", [*MACHINES, *(f"{name}/{gpus}" for name, gpus, *_ in OPTIMA)])
def test_all_planners_and_collectives(machine: str) -> None:
    """Also among some GPUs of a box."""
    from antiphon.core.collective import KINDS, ROOTED
    from antiphon.planners.table import TABLE

    name, _, gpus = machine.partition("/")
    members = tuple(int(gpu) for gpu in gpus)
    topology = antiphon.topology(name, only=members or None)
    written = Counter[str]()
    for planner in TABLE.keys() - {"sccl"}:  # which may search for long
        for kind in KINDS:
            roots = (members or (0,))[:1] if kind in ROOTED else ()
            try:
                given = Collective(kind, topology.ranks, members=members, roots=roots)
                plan = antiphon.plan(given, topology, planner=planner)
            except AntiphonError:
                continue
            for form, options in (
                ("mscclpp-json", {"packets": "64KiB"}), ("msccl-xml", {}), ("msccl-xml", {"fused": False}),
                *([("mscclpp-json", {"staged": True})] if machine in STAGED_ON else ()),
            ):  # fmt: skip
                try:
                    files = emit(plan, form, options={"alone": True, **options})
                except AntiphonError:
                    continue
                for file, text in files.items():
                    data = text if isinstance(text, bytes) else b"".join(text)
                    if file.endswith(".json"):
                        assert judge(plan_of(data).code) is None, (planner, kind, file)
                    elif file.endswith(".xml"):
                        for code in codes_of(read_msccl(data)):
                            assert judge(code) is None, (planner, kind, file, options)
                    written[form] += 1
    assert min(written.values()) > (15 if gpus else 60), written


def test_more_streams_where_few_are_too_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with very many ranks, by smaller limits: before all goes into few long lines, as many streams as there are."""
    monkeypatch.setattr(blocks, "MOST_OPERATIONS", 8)
    monkeypatch.setattr(blocks, "MOST_BLOCKS", 14)
    schedule = antiphon.plan("allgather", antiphon.topology("ring:ranks=12"), planner="ring").at(0).schedule
    text = write.json_of(lower(schedule), blocks=2, packets=True)
    assert judge(plan_of(text).code) is None
    assert max(len(gpu["threadblocks"]) for gpu in json.loads(text)["gpus"]) == 14


@pytest.mark.slow
def test_few_streams_in_long_lines_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with very many ranks, by smaller limits: where many streams do not fit, one does, and barriers are for several
    blocks, one for those that are left."""
    for module, name, value in (
        (blocks, "MOST_OPERATIONS", 16), (blocks, "MOST_SEMAPHORES", 2), (blocks, "MOST_BARRIERS", 2),
        (blocks, "MOST_BLOCKS", 14),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    text = files_of("allreduce", "ring:ranks=12", "ring", blocks=14)["plan0.json"]
    plan = json.loads(text)
    assert judge(plan_of(text).code) is None
    for seed in some(range(3)):
        executor.Executor(plan, seed, calls=2).run()
    for gpu in plan["gpus"]:
        many = Counter(
            (one["barrier_id"], one["num_threadblocks"], block["id"])
            for block in gpu["threadblocks"]
            for one in block["ops"]
            if one["name"] == "barrier"
        )
        assert all(often == size - 1 for (_, size, _), often in many.items())
        assert {size for _, size, _ in many} == {7, 5}
        assert len(gpu["semaphores"]) == 2
        assert max(len(block["ops"]) for block in gpu["threadblocks"]) <= 16
    with pytest.raises(Unsupported, match="more than 14 of its thread blocks go on where another is full"):
        files_of("allreduce", "ring:ranks=16", "ring", blocks=14)


def test_what_fits_into_no_block_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.formats.mscclpp.gpu.MOST_CHANNELS", 1)
    with pytest.raises(Unsupported, match=r"rank 0: an operation with . channels .* does not fit into an empty thread"):
        files_of("allreduce", "full:ranks=4", "direct")


@pytest.mark.slow
def test_links_by_barriers() -> None:
    text = files_of("allreduce", "ring:ranks=112", "ring", blocks=1, lag=1)["plan0.json"]
    assert b'"barrier"' in text
    assert b"sem_acquire" in text
    assert judge(plan_of(text).code) is None


@pytest.mark.parametrize(
    ("kind", "machine", "planner"),
    in_turn([
        pytest.param("allreduce", "full:ranks=12", "direct", marks=pytest.mark.slow),
        ("allreduce", "full:ranks=4", "ring"),
        ("allgather", "full:ranks=5", "bruck"), ("reducescatter", "ring:ranks=4", "ring"),
        ("alltoall", "full:ranks=4", "bruck"),
    ], 2),
)  # fmt: skip
def test_packets(kind: str, machine: str, planner: str) -> None:
    files = files_of(kind, machine, planner, packets=4096)
    plans = {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}
    for name, plan in plans.items():
        small = "-packets" in name
        other = plans[name.replace("-packets", "")]
        names = {one["name"] for gpu in plan["gpus"] for block in gpu["threadblocks"] for one in block["ops"]}
        assert (plan["protocol"], plan["use_double_scratch_buffer"]) == (("LL", True) if small else ("Simple", False))
        assert ("ppkt" in names, "signal" in names) == (small, not small)
        assert (plan["min_message_size"], other["min_message_size"]) == ((0, 4097) if small else (4097, 4097))
        if small:
            assert plan["max_message_size"] == 4096
            assert judge(plan_of(files[name]).code) is None
            executor.Executor(plan, 3, calls=3).run()
    assert len(plans) == 4


def test_who_waits_for_packets_before_sending_them_may_hang() -> None:
    """No thread passes its part of what waits, though the parts themselves are in no order."""
    plan = json.loads(files_of("allgather", "full:ranks=2", "direct", packets=4096, blocks=1)["plan0-packets.json"])
    for rank, hangs in ((0, False), (1, True)):
        for block in plan["gpus"][rank]["threadblocks"]:
            block["ops"].sort(key=lambda one: ("upkt", "ppkt", "copy").index(one["name"]))
        assert ("never done" in verdict(plan)) is hangs
        seen = [str(error) for error in (fuzzer.seen(plan, seed, 3) for seed in range(3))]
        assert any("hangs" in one for one in seen) is hangs


PORTED = ("allreduce", "allgather", "reducescatter", "alltoall")


@pytest.mark.parametrize(
    ("kind", "planner"),
    in_turn([*((kind, "direct") for kind in PORTED), ("allreduce", "hierarchical-ps"), ("allreduce", "ring"),
             ("allgather", "recmult"), ("reducescatter", "halving-doubling"), ("alltoall", "bruck")]),
)  # fmt: skip
def test_packets_between_hosts_go_by_way_of_scratch(kind: str, planner: str) -> None:
    """A proxy copies them with their flags; nothing but scratch is touched at others."""
    machine = antiphon.topology("delta:nodes=2", only=(0, 1, 4, 5))
    plan = antiphon.plan(kind, machine, planner=planner, ranks=(0, 1, 4, 5))
    for name, text in antiphon.export(plan, "mscclpp-json", options={"packets": 4096}).items():
        if "packets" not in name:
            continue
        read = json.loads(text)
        assert judge(plan_of(text).code) is None, name
        every = [one for gpu in read["gpus"] for block in gpu["threadblocks"] for one in block["ops"]]
        by_port = {one["name"] for one in every if one.get("channel_type") == "port"}
        assert by_port == {"rppkt"}
        assert {one["type"] for gpu in read["gpus"] for one in gpu["remote_buffers"]} == {"s"}
        for seed in some(range(2)):
            executor.Executor(read, seed, calls=3).run()


def test_a_tuned_plan_is_written_by_the_protocol_that_it_won_by() -> None:
    """Else a note says how much longer it takes, and where NCCL is faster then the range is left to that."""
    plan = antiphon.plan("allreduce", antiphon.topology("hgx-h100"), planner="direct")
    schedule, at = plan.entries[0].schedule, 2**9
    seconds = antiphon.predict(plan, at, model="calls")[0]["seconds"]

    def export(speedup: float, **options: Any) -> tuple[list[str], tuple[str, ...]]:
        claims = {"model": "calls", "at": at, "seconds": seconds, "speedup": speedup, "reference": "nccl"}
        entries = (Entry(0, 2**10, schedule, claims), Entry(2**10, None, schedule))
        files = antiphon.export(Plan(plan.topology, plan.collective, entries), "mscclpp-json", options=options)
        return sorted(name for name in files if "plan0" in name), files.notes

    assert export(1.01) == (["plan0-packets-in-place.json", "plan0-packets.json"], ())
    files, (note,) = export(1.01, packets=0)
    assert files == []
    said = r"allreduce up to 1KiB: at 512B protocol Simple takes [0-9.]+ times the time of the choice, which won by ll"
    assert re.fullmatch(said + r": left to NCCL \(option packets=512B\)", note)
    files, (note,) = export(100.0, packets=0)
    assert files == ["plan0-in-place.json", "plan0.json"]
    assert "won by ll (option" in note


@pytest.mark.parametrize(("speedup", "largest"), in_turn([(1.8, 2**14), (1.1, 2**13), (100.0, 2**17)], 2))
def test_packets_as_far_as_they_beat_plain_data_and_the_library(speedup: float, largest: int) -> None:
    """Also where a protocol that no file can have would be faster: on these GPUs LL128, above 8 KiB."""
    plan = antiphon.plan("allreduce", antiphon.topology("mi300x"), planner="recursive-doubling")
    schedule, at = plan.entries[0].schedule, 2**11
    seconds = antiphon.predict(plan, at, model="calls")[0]["seconds"]
    claims = {"model": "calls", "at": at, "seconds": seconds, "speedup": speedup, "reference": "rccl"}
    files = antiphon.export(Plan(plan.topology, plan.collective, (Entry(0, None, schedule, claims),)), "mscclpp-json")
    assert json.loads(files["plan0-packets.json"])["max_message_size"] == largest


def test_packets_where_they_suit() -> None:
    """Not where some hear from nobody, not where switches work; and all sizes are served."""
    for kind, machine, planner in (
        ("broadcast", "full:ranks=4", "binomial-tree"),
        ("allreduce", "hgx-h100", "nvls"),
    ):  # fmt: skip
        assert set(files_of(kind, machine, planner, packets=4096)) == set(files_of(kind, machine, planner))
    plan = antiphon.plan("allreduce", antiphon.topology("full:ranks=4"), planner="direct")
    plan = Plan(
        plan.topology,
        plan.collective,
        (Entry(0, 1000, plan.entries[0].schedule), Entry(1000, None, plan.entries[0].schedule)),
    )
    found = {name: json.loads(text) for name, text in emit(plan, "mscclpp-json", options={"packets": "2KB"}).items()
             if name.endswith(".json")}  # fmt: skip
    sizes = {
        name: (one["min_message_size"], one["max_message_size"]) for name, one in found.items() if "in-pl" not in name
    }
    assert sizes["plan0-packets.json"] == (0, 999)
    assert "plan0.json" not in sizes
    assert "plan1-packets.json" in sizes


def test_between_hosts_by_ports() -> None:
    plan = json.loads(files_of("allgather", "delta:nodes=2", "ring")["plan0.json"])
    kinds = Counter(row["channel_type"] for gpu in plan["gpus"] for row in gpu["channels"])
    assert kinds == {"port": 4, "memory": 8}
    names = Counter(one["name"] for gpu in plan["gpus"] for block in gpu["threadblocks"] for one in block["ops"])
    assert names["pwsf"]
    assert not names["flush"]


@pytest.mark.parametrize("lag", [1, 2**20])
def test_what_has_gone_round_needs_no_credit(lag: int) -> None:
    """In a ring the sum that comes to a rank has gone by it: its place is free. Scratch used again needs credits."""
    program = program_of("allreduce", "full:ranks=8", "ring", lag=lag)
    asked = [int(find_credits(program, farther=farther).sum()) for farther in (False, True)]
    assert asked == ([176, 80] if lag == 1 else [8 * 2 * 6, 0])


def program_of(kind: str, machine: str, planner: str, **options: int) -> Program:
    return lower(antiphon.plan(kind, antiphon.topology(machine), planner=planner).at(0).schedule, **options)


@pytest.mark.parametrize("form", ["mscclpp-json", "msccl-xml"])
@pytest.mark.parametrize(("kind", "root"), in_turn([("allreduce", None), ("alltoall", None), ("broadcast", 4)], 2))
def test_some_gpus_of_a_box(form: str, kind: str, root: int | None) -> None:
    """The file is for a communicator of these alone, in their order."""
    box = antiphon.topology("dgx1v", only=(1, 4, 5, 6))
    roots = {} if root is None else {"roots": (root,)}
    given = Collective(kind, 8, members=(1, 4, 5, 6), **roots)
    plan = antiphon.plan(given, box, planner="relay")
    codes: list[Code] = []
    for name, text in emit(plan, form).items():
        data = text if isinstance(text, bytes) else b"".join(text)
        if name.endswith(".json"):
            codes.append(plan_of(data).code)
        elif name.endswith(".xml"):
            codes += codes_of(read_msccl(data))
        else:
            assert b"RANKS = 4\nRANKS_PER_NODE = 4" in data
            assert f"'{kind}', {None if root is None else 1}, ".encode() in data
    assert {code.in_place for code in codes} == {False, True}
    for code in codes:
        assert code.collective == Collective(kind, 4, roots=() if root is None else (1,))
        assert judge(code) is None


@pytest.mark.parametrize(
    ("kind", "members", "root"),
    in_turn(
        [("allgather", (2, 5), None), ("allreduce", (0, 1), None), ("reduce", (1, 6), 6), ("broadcast", (4, 7), 7)]
    ),
)
def test_idle_gpus_that_relay_take_part(kind: str, members: tuple[int, ...], root: int | None) -> None:
    """The files are for a communicator of all, of which the idle have no data of their own."""
    given = Collective(kind, 8, members=members, **({} if root is None else {"roots": (root,)}))
    plan = antiphon.plan(given, "mi350x", planner="relay")
    schedule = plan.entries[0].schedule
    assert {*schedule.src.tolist()} - {*members}
    files = emit(plan, "mscclpp-json")
    assert b"RANKS = 8\n" in bytes(files["register.py"])  # type: ignore[arg-type]
    codes = [plan_of(data).code for name, data in files.items() if name.endswith(".json") and isinstance(data, bytes)]
    assert {code.in_place for code in codes} == {False, True}
    for code in codes:
        assert code.collective == Collective("custom", 8, weights=given.weights, custom=given.relation)
        assert judge(code) is None
    schedule = plan.entries[0].schedule
    in_two = Plan(plan.topology, plan.collective, (Entry(0, 2**20, schedule), Entry(2**20, None, schedule)))
    split = antiphon.export(in_two, "mscclpp-json")
    assert "relay; only programs that call the executor themselves" in split.notes[0]
    upper, lower_part = (json.loads(split[f"plan{at}.json"]) for at in (1, 0))
    if kind != "allgather":  # there buffers differ in size
        assert (lower_part["max_message_size"], upper["min_message_size"]) == (2**20 - 1, 2**20)
    rows = check(plan, "mscclpp-0.9", "64MiB")
    assert {row["file"] for row in rows} == {name for name in files if name.endswith(".json")}
    assert "hangs" not in {finding["outcome"] for row in rows for finding in row["findings"]}


def test_a_reducescatter_by_relays_is_refused() -> None:
    plan = antiphon.plan(Collective("reducescatter", 8, members=(1, 6)), "mi350x", planner="relay")
    with pytest.raises(Unsupported, match="no reducescatter by relays outside of its ranks"):
        emit(plan, "mscclpp-json")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"blocks": 0}, "blocks: expected a whole number from 1"), ({"threads": 100}, "warps of 32"),
        ({"alignment": 24}, "multiples of 16"), ({"name": 'a"b'}, "name: expected"),
        ({"packets": "many"}, "packets: cannot read 'many'"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        files_of("allreduce", "full:ranks=2", "ring", **options)


# ---- groups of blocks ----

DATA = {"put", "copy", "re", "res", "glres", "gstore", "pwsf"}
GROUPED = [
    ("allreduce", "hgx-h100", "direct"), ("allreduce", "hgx-h100", "halving-doubling"),
    ("allreduce", "hgx-h100", "ring"), ("allreduce", "hgx-h100", "double-binary-tree"),
    ("allreduce", "hgx-h100", "nvls"),
    ("allgather", "hgx-h100", "direct"), ("allgather", "hgx-h100", "nvls"), ("allgather", "hgx-h100", "ring"),
    ("reducescatter", "hgx-h100", "direct"), ("alltoall", "hgx-h100", "direct"),
    ("allreduce", "delta:nodes=2", "hierarchical-ps"),
]  # fmt: skip


@pytest.mark.parametrize("case", in_turn([(case,) for case in GROUPED], 6), ids="-".join)
def test_nearly_all_blocks_that_may_be_there_move_data(case: tuple[str, str, str]) -> None:
    """Each operation is there once for each part, and ports are left to the first block of a group."""
    for name, text in files_of(*case).items():
        if name == "register.py":
            continue
        plan = json.loads(text)
        assert judge(plan_of(text).code) is None, name
        for gpu in plan["gpus"]:
            assert len(gpu["threadblocks"]) <= 32
            assert sum(any(one["name"] in DATA for one in block["ops"]) for block in gpu["threadblocks"]) >= 24
            parts: Counter[tuple[str, int]] = Counter()
            for one in (one for block in gpu["threadblocks"] for one in block["ops"] if one["name"] in DATA):
                group = one.pop("tbg_info", {"tb_id": 0, "tbg_size": 1})
                assert one.get("channel_type") != "port" or group["tbg_size"] == 1
                parts[json.dumps((one["name"], one["src_buff"], one["dst_buff"])), group["tbg_size"]] += 1
            assert all(many % size == 0 for (_, size), many in parts.items())


def test_groups_only_where_there_is_work_for_them() -> None:
    """At most one block for every 16 KiB of an operation, at the largest size of the range."""
    plan = antiphon.plan("allgather", antiphon.topology("full:ranks=4"), planner="direct")
    schedule = plan.entries[0].schedule
    ends = (0, 2**16, 2**17 + 1, None)
    entries = tuple(Entry(ends[at] or 0, ends[at + 1], schedule) for at in range(3))
    files = antiphon.export(Plan(plan.topology, plan.collective, entries), "mscclpp-json")
    for number, group in enumerate((1, 2, 8)):
        blocks = json.loads(files[f"plan{number}.json"])["gpus"][0]["threadblocks"]
        data = [one for block in blocks for one in block["ops"] if one["name"] in DATA]
        assert {one.get("tbg_info", {"tbg_size": 1})["tbg_size"] for one in data} == {group}


@pytest.mark.parametrize(
    ("kind", "planner", "most"),
    in_turn([("allreduce", "halving-doubling", 18), ("allreduce", "recursive-doubling", 14)]),
)
def test_groups_that_meet_go_on_in_other_blocks(
    kind: str, planner: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members after the same step, at a barrier of old and new blocks; as the executor runs it."""
    monkeypatch.setattr(blocks, "MOST_OPERATIONS", most)
    machine = antiphon.topology("delta:nodes=2", only=(0, 1, 4, 5))
    plan = antiphon.plan(kind, machine, planner=planner, ranks=(0, 1, 4, 5))
    files = antiphon.export(plan, "mscclpp-json", options={"blocks": 4})
    for text in (text for name, text in files.items() if name.endswith(".json")):
        written = json.loads(text)
        assert judge(plan_of(text).code) is None
        for seed in some(range(3)):
            executor.Executor(copy.deepcopy(written), seed, calls=2).run()
        for gpu in written["gpus"]:
            every = [one for block in gpu["threadblocks"] for one in block["ops"]]
            size = next(one["tbg_info"]["tbg_size"] for one in every if "tbg_info" in one)
            links = Counter(one["barrier_id"] for one in every if one.get("num_threadblocks") == 2 * size)
            assert links
            assert {*links.values()} == {2 * size}
            assert max(len(block["ops"]) for block in gpu["threadblocks"]) <= most
        link = min(links)
        for block in gpu["threadblocks"]:
            block["ops"] = [one for one in block["ops"] if one.get("barrier_id") != link]
        assert verdict(written)


@pytest.mark.slow
def test_a_plan_that_keeps_few_blocks_busy_says_so() -> None:
    """Groups that meet for ports need a barrier, and one more each time that they go on in other blocks."""
    for planner, says in (("multi-ring", "2 of 32 thread blocks move data"), ("halving-doubling", "")):
        plan = antiphon.plan("allreduce", antiphon.topology("cluster:box=dgx-a100,boxes=2"), planner=planner)
        notes = antiphon.export(plan, "mscclpp-json").notes
        assert [note for note in notes if "thread blocks" in note and says in note] == list(notes)
        assert bool(notes) == bool(says)


@pytest.mark.parametrize("what", ["part", "barrier", "size"])
def test_damaged_groups_are_found(what: str) -> None:
    machine = antiphon.topology("delta:nodes=2", only=(0, 1, 4, 5))
    plan = antiphon.plan("allreduce", machine, planner="recursive-doubling", ranks=(0, 1, 4, 5))
    damaged = json.loads(antiphon.export(plan, "mscclpp-json", options={"blocks": 4})["plan0.json"])
    assert verdict(damaged) == ""
    operations = damaged["gpus"][0]["threadblocks"][1]["ops"]
    grouped = [one for one in operations if "tbg_info" in one]
    if what == "part":
        grouped[-1]["tbg_info"]["tb_id"] = 0
    elif what == "barrier":
        for block in damaged["gpus"][0]["threadblocks"]:
            block["ops"] = [one for one in block["ops"] if one["name"] != "barrier"]
    else:
        grouped[0]["tbg_info"]["tbg_size"] += 1
    assert verdict(damaged) != ""


# ---- what passes through scratch ----


def staged_of(kind: str, machine: str, planner: str, **options: Any) -> dict[str, dict[str, Any]]:
    files = files_of(kind, machine, planner, staged="yes", **options)
    return {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda loop: loop["ops"].pop(), "ends with other contributions"),
        (lambda loop: loop["ops"].pop(1), "nothing has been written yet"),
        (lambda loop: loop["ops"].pop(4), "does not wait for"),
        (lambda loop: loop["ops"][8]["src_buff"].reverse(), "at the offsets of destinations"),
        (lambda loop: loop["ops"][8]["src_buff"][0].update(size=2), "goes over 1 chunks"),
        (lambda loop: loop["iter_context"].update(unit_size=2**19 + 32), "which units of"),
    ],
)
def test_faults_of_staged_plans_are_named(change: Any, said: str) -> None:
    plan = staged_of("allreduce", "full:ranks=3", "direct", blocks=4)["plan0-in-place.json"]
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            change(block["ops"][0])
    fault = ""
    try:
        fault = verdict(plan)
    except AntiphonError as error:
        fault = str(error)
    assert said in fault


@pytest.mark.parametrize(
    ("kind", "machine", "planner", "said"),
    [
        ("allreduce", "hgx-h100", "nvls", "switches write into buffers"),
        ("alltoall", "full:ranks=32", "bruck", "too many steps for one thread block each"),
        ("reducescatter", "full:ranks=8", "halving-doubling", "sums of received data stay there"),
        ("gather", "full:ranks=4", "binomial-tree", "only data of equal size"),
    ],
)
def test_what_cannot_be_staged(kind: str, machine: str, planner: str, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        staged_of(kind, machine, planner)


# ---- what others write ----


@pytest.mark.parametrize("name", [*FOREIGN, "switched"])
def test_plans_of_others(name: str, tmp_path: Path) -> None:
    plan = FOREIGN.get(name, SWITCHED)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    read = read_plan(tmp_path / "plan.json")
    assert (read.name, judge(read.code)) == (name, None)
    if name != "switched":
        for seed in range(10):
            executor.Executor(plan, seed, calls=3).run()


# ---- what is wrong ----


def changed(name: str, change: Any) -> dict[str, Any]:
    plan = copy.deepcopy({**FOREIGN, "switched": SWITCHED}[name])
    change(plan)
    return plan


def ops(plan: dict[str, Any], rank: int, block: int) -> list[Any]:
    found: list[Any] = plan["gpus"][rank]["threadblocks"][block]["ops"]
    return found


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("pairs", lambda p: ops(p, 0, 0).pop(2), "block 0, step 2 (rres) does not know whether rank 1 has begun"),
        ("pairs", lambda p: ops(p, 1, 2).append(tell("signal", 0)), "the next call would find it so"),
        ("pairs", lambda p: ops(p, 1, 2).pop(3), "rank 1 may end before rank 0, block 0, step 3 (rres) is done"),
        ("pairs", lambda p: ops(p, 0, 0).pop(0), "never comes"),
        ("pairs", lambda p: ops(p, 0, 0).__setitem__(5, tell("rlxsignal", 0)), ""),
        ("pulled", lambda p: ops(p, 0, 0).__setitem__(2, tell("rlxsignal", 0)), "only by a relaxed signal"),
        ("pulled", lambda p: ops(p, 0, 0).pop(1), "does not wait for"),
        ("pulled", lambda p: ops(p, 0, 0).pop(4), "step 4 (get): reads chunk 1 of the scratch of rank 1"),
        ("pulled", lambda p: ops(p, 0, 0)[5]["src_buff"][0].update(index=0), "step 7 (copy): reads chunk 1"),
        ("grouped", lambda p: ops(p, 0, 1)[4]["tbg_info"].update(tb_id=0), "part 1 of 2, of the output of rank 1 ends"),
        ("packets", lambda p: ops(p, 0, 0)[0]["dst_buff"].pop(), "never done"),
        ("packets", lambda p: p.update(use_double_scratch_buffer=False), "does not know whether rank"),
        ("forward", lambda p: p["gpus"][1]["threadblocks"][1]["ops"].clear(), "never done"),
        ("ported", lambda p: ops(p, 0, 0)[3].update(name="pws"), "may end before"),
        ("ported", lambda p: ops(p, 0, 0)[3].update(name="put"), "never comes"),
        ("posted", lambda p: ops(p, 0, 0).pop(1), "does not wait for"),
        ("posted", lambda p: ops(p, 1, 0).pop(0), "never done"),
        ("posted", lambda p: ops(p, 0, 0).pop(2), "never done"),
        ("posted", lambda p: p.update(use_double_scratch_buffer=False), "does not know whether rank"),
        ("staged", lambda p: ops(p, 0, 1).pop(0), "nothing has been written yet"),
        ("staged", lambda p: p["gpus"][0]["semaphores"][0].update(init_value=1), "step 2 (re): reads chunk 0"),
        ("switched", lambda p: ops(p, 0, 0).pop(2), "does not know whether rank 1 has begun"),
    ],
)  # fmt: skip
def test_faults_are_named(name: str, change: Any, said: str) -> None:
    found = verdict(changed(name, change))
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("pairs", lambda p: p["gpus"][0].update(output_chunks=0), r"gpus\[0\].output_chunks: is 0, by which"),
        ("pairs", lambda p: p["gpus"].reverse(), r"gpus\[0\].id: is 1"),
        ("pairs", lambda p: ops(p, 0, 0).extend([NOP] * 60), "67 operations, of at most 64"),
        ("pairs", lambda p: ops(p, 0, 0)[0].update(channel_ids=[1]), "memory channel 1, but its block has 1"),
        ("pairs", lambda p: ops(p, 0, 0)[3]["dst_buff"][1].update(buffer_id=3), "remote buffer 3"),
        ("pairs", lambda p: ops(p, 0, 0)[3]["dst_buff"][1].update(index=4), "chunks 4 to 4 of the input of rank 1"),
        ("pairs", lambda p: ops(p, 0, 0)[3].update(name="fly"), "'fly' is no operation"),
        ("pairs", lambda p: p["gpus"][0]["channels"][0].update(connected_to=[0] * 4), "connected to 0, which is"),
        ("pairs", lambda p: p.update(collective="gossip"), "'gossip' does not define its result"),
        ("pairs", lambda p: p.update(buffer_alignment=4), "multiple of 16"),
        ("pairs", lambda p: p["gpus"][0].update(scratch_chunks=2**30), "bytes of operations on them"),
        ("staged", lambda p: ops(p, 0, 0)[8].update(semaphore_ids=[1]), "semaphore 1, but this GPU has 1"),
        ("forward", lambda p: p.update(protocol="Simple"), "which only protocol LL gives them"),
        ("forward", lambda p: ops(p, 0, 0).append(ops(p, 0, 0)[0]), "writes packets where others of the same call"),
        ("posted", lambda p: ops(p, 0, 0)[2]["src_buff"][0].update(type="i"), "packets go to scratch, not to 'i'"),
        ("posted", lambda p: ops(p, 0, 0)[2].update(channel_ids=[]), "1 destinations, but 0 channels"),
        ("posted", lambda p: p["gpus"][0]["channels"][0].update(connected_to=[0]), "connected to 0"),
        ("switched", lambda p: p["gpus"][1]["channels"].pop(), "does not join|switch channel 0"),
    ],
)  # fmt: skip
def test_what_the_loader_takes_blindly_is_refused(name: str, change: Any, said: str) -> None:
    with pytest.raises((Invalid, Unsupported), match=said) as caught:
        verdict(changed(name, change))
    assert "\n" not in str(caught.value)


def test_hostile_files() -> None:
    deep = b'{"name":' * 20_000
    for text in (b"", b"{", deep, b"[" * 10**5, b'{"gpus":[' + b"{}," * 10**4, b"\xff" * 100, b"null"):
        tracemalloc.start()
        with pytest.raises(AntiphonError) as caught:
            plan_of(text)
        assert "\n" not in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < 20 * max(len(text), 2**16)
        tracemalloc.stop()


@pytest.mark.parametrize("count", [15, pytest.param(80, marks=pytest.mark.slow)])
def test_damage_is_found(count: int) -> None:
    counts = harness.run(fuzzer.NAME, fuzzer.one, count, 1)[0]
    assert min(counts["right"], counts["race"], counts["hang"], counts["refused"]) > count // 16


def test_the_fuzzer_finds_a_judge_that_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzer, "judge", lambda code: None)
    with pytest.raises(harness.Found, match="judged right, but"):
        harness.run(fuzzer.NAME, fuzzer.one, 50, 1)


def test_blocks_of_any_weight_are_judged_and_those_of_weight_0_rule_packets_out() -> None:
    """A rank that sends nothing to another may be two calls ahead of it, when both halves of scratch may be in use."""
    for kind, weights in (
        ("allgather", [1, 0, 2]),
        ("reducescatter", [1, 0, 2]),
        ("alltoall", [0, 1, 0, 0, 0, 1, 1, 0, 0]),
    ):
        plan = antiphon.plan(Collective(kind, 3, weights=weights), antiphon.topology("ring:ranks=3"))
        files = emit(plan, "mscclpp-json", options={"alone": True, "packets": "64KB"})
        plans = [name for name in files if name.startswith("plan")]
        assert plans
        assert not any("packets" in name for name in plans)
        for name in plans:
            code = plan_of(
                b"".join([files[name]] if isinstance(files[name], bytes) else files[name]), collective=plan.collective
            ).code
            assert judge(code) is None, (kind, name)
