"""MSCCL XML: what is written runs right as the executor does it, and whatever file is read is judged."""

import random
import re
import tracemalloc
from pathlib import Path

import msccl_cases as cases
import pytest
from _msccl_executor import verdict
from entries import msccl_xml
from quick import in_turn
from tables import listed

import antiphon
from antiphon.core.collective import Collective
from antiphon.core.plan import Entry, Plan
from antiphon.core.program import Program
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.formats.msccl import write
from antiphon.formats.msccl.code import codes_of
from antiphon.formats.msccl.read import AlgorithmFile, read_msccl
from antiphon.formats.msccl.write import bytes_of, xml_of
from antiphon.lower.blocks.blocks import NumberedStep, compile_to_blocks, separate_reductions
from antiphon.lower.blocks.place import RuntimeLimits
from antiphon.lower.machine.judge import judge
from antiphon.planners.table import TABLE

PLANNERS = [
    (planner, coll)
    for planner, entry in TABLE.items()
    if not entry.can.in_switches and planner != "sccl"
    for coll in entry.can.collectives
    if coll != "custom"
]


FEWER = ("recmult", "halving-doubling", "ring")


def fault_of(data: bytes, **how: int) -> str | None:
    """What is wrong with a file, for any place that it is for."""
    try:
        for code in codes_of(read_msccl(data), **how):
            fault = judge(code)
            if fault is not None:
                return str(fault)
    except (Invalid, Unsupported) as error:
        return str(error)
    return None


def right(program: Program, **options: object) -> AlgorithmFile:
    """Written, read back and judged."""
    data = xml_of(program, **options)  # type: ignore[arg-type]
    assert fault_of(data) is None
    found = read_msccl(data)
    assert found.notes == ()
    return found


def programs(coll: str, planner: str, topology: str) -> list[Program]:
    try:
        return [cases.program(coll, planner, topology, in_place) for in_place in (False, True)]
    except (Unsupported, Invalid):
        return []


# ---- what is written ----


@pytest.mark.parametrize(("number", "planner", "coll"), in_turn([(n, *which) for n, which in enumerate(PLANNERS)], 13))
def test_every_planner_in_and_out_of_place(number: int, planner: str, coll: str) -> None:
    dice = random.Random(f"{planner} {coll}")
    machines = f"full:ranks={dice.choice((2, 3, 5, 6))}", f"ring:ranks={dice.choice((3, 4, 5))}"
    for program in programs(coll, planner, machines[number % 2]):
        try:
            right(program)
        except Unsupported as error:  # uneven parts may be finer than a buffer of the format has chunks
            assert planner == "shallow" and "take fewer chunks" in str(error)  # noqa: PT018, PT017


@pytest.mark.parametrize(
    ("coll", "topology"),
    in_turn(
        [
            ("alltoall", "ring:ranks=9"),
            ("reducescatter", "ring:ranks=11"),
            ("reducescatter", "dgx1v"),
            ("reduce", "dgx1v"),
        ],
        6,
    ),
)
def test_a_place_that_a_message_went_past_is_not_written_while_it_is_read(coll: str, topology: str) -> None:
    """A message that is folded as it comes waits for no reader of its own place; whoever writes there next must: the
    next message (the first two), or the fold that it goes into."""
    for program in programs(coll, "greedy", topology):
        right(program)


@pytest.mark.parametrize("instances", in_turn([2, 3], 2))
@pytest.mark.parametrize("coll", ["allreduce", "allgather", "reducescatter", "alltoall"])
def test_instances_have_parts_of_chunks_and_channels_of_their_own(coll: str, instances: int) -> None:
    for program in programs(coll, "bruck" if coll != "allreduce" else "halving-doubling", "full:ranks=6"):
        one, more = right(program), right(program, instances=instances, proto="LL128")
        assert (more.channels, more.chunks) == (one.channels * instances, one.chunks * instances)


def test_what_is_received_is_sent_on_and_added_at_once() -> None:
    """A ring takes what it takes by hand: s, rrs, rrcs, rcs, r, one block a way, no scratch."""
    found = right(cases.program("allreduce", "ring", "ring:ranks=4", True))
    verbs = [[step.verb for step in block.steps] for block in found.gpus[0].blocks]
    assert verbs == [["s", "rrcs", "rrcs", "rrcs", "rcs", "rcs", "r"]] * 2
    assert all(gpu.sizes[2] == 0 for gpu in found.gpus)


def test_what_only_passes_through_is_stored_nowhere() -> None:
    """Out of place what a ring reduces is in no buffer of the user's."""
    found = right(cases.program("reducescatter", "ring", "ring:ranks=4"))
    verbs = {step.verb for gpu in found.gpus for block in gpu.blocks for step in block.steps}
    assert verbs == {"s", "rrs", "rrc"}
    assert all(gpu.sizes[2] == 0 for gpu in found.gpus)


def test_blocks_that_are_too_long_go_on_in_others() -> None:
    short = RuntimeLimits(steps=5)
    program = cases.program("allreduce", "ring", "ring:ranks=6")
    made = compile_to_blocks(program, short)
    assert max(len(block.rows) for rank in made.ranks for block in rank) <= 5
    assert made.channels > 1
    for in_place in (False, True):
        right(cases.program("allreduce", "multi-ring", "dgx1v", in_place))


def test_rings_of_blocks_with_many_chunks_do_not_wait_for_each_other() -> None:
    """All ranks send three chunks and then receive: two slots are not enough for a block that does both."""
    for planner in ("trees", "relay", "multi-ring"):
        for program in programs("allgather", planner, "ring:ranks=5"):
            right(program, proto="Simple", instances=3)


def test_more_reductions_than_the_executor_makes_one() -> None:
    """It has room for sixteen in one step, with the count of the last: a flag ends what must not be one."""
    rows = [NumberedStep("re", (2, at), (1, 0), 2, None, False) for at in range(20)]
    separate_reductions(rows)
    assert [at for at, row in enumerate(rows) if row.flag] == [15]
    rows = [NumberedStep("re", (2, at), (1, 0), 2 - at // 2, None, False) for at in range(4)]
    separate_reductions(rows)
    assert [at for at, row in enumerate(rows) if row.flag] == [1]
    right(cases.program("allreduce", "direct", "full:ranks=20", True))


def test_a_file_is_the_same_every_time() -> None:
    """Wherever in memory the objects lie that it is made of."""
    program = cases.program("alltoall", "bruck", "full:ranks=12", in_place=True)
    assert len({xml_of(program) for _ in range(4)}) == 1


def test_a_file_for_each_place() -> None:
    plan = antiphon.plan("alltoall", antiphon.topology("full:ranks=2"), planner="direct")
    files = {name: b"".join(text) for name, text in msccl_xml(plan).items()}
    assert all(fault_of(data) is None for data in files.values())
    assert len(files) == 2


def test_sizes_are_those_of_the_plan_as_the_runtime_counts() -> None:
    topology = antiphon.topology("full:ranks=4")
    small, large = (
        antiphon.plan("gather", topology, planner=name).at(1).schedule for name in ("direct", "binomial-tree")
    )
    plan = Plan(topology, small.collective, (Entry(0, 4000, small), Entry(4000, None, large)))
    assert [bytes_of(entry, plan) for entry in plan.entries] == [(0, 999), (1000, 0)]
    texts = [b"".join(text) for text in msccl_xml(plan, name="mine").values()]
    assert b'name="mine"' in texts[0]
    assert b'minBytes="0" maxBytes="999"' in texts[0]
    assert b'minBytes="1000" maxBytes="0"' in texts[-1]
    nothing = Plan(topology, small.collective, (Entry(0, 1, small), Entry(1, None, large)))
    assert len(msccl_xml(nothing)) == 2  # no file without an end for a range that has one at once


def test_text_is_what_the_executors_own_parser_takes() -> None:
    data = xml_of(cases.program("broadcast", "binomial-tree", "full:ranks=5"))
    assert data.startswith(b"<algo ")
    assert not re.search(rb"[\t'\r]|<[^>]*\n", data)
    for key in (b"minBytes", b"maxBytes", b"inplace", b"outofplace", b"root"):
        assert key + b'="' in data


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proto": "simple"}, "proto: expected auto, Simple, LL, LL128, got 'simple'"),
        ({"instances": 0}, "instances: expected a whole number from 1 to 32, got 0"),
        ({"instances": True}, "instances: expected a whole number"),
        ({"name": "a b"}, "name: expected up to 100 letters"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], message: str) -> None:
    plan = antiphon.plan("allreduce", antiphon.topology("full:ranks=2"), planner="direct")
    with pytest.raises(Invalid, match=re.escape(message)):
        msccl_xml(plan, **options)  # type: ignore[arg-type]


def test_what_cannot_be_written_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    program = cases.program("allreduce", "ring", "ring:ranks=8")
    with pytest.raises(Unsupported, match="more than 1 channels with blocks of 5 steps"):
        compile_to_blocks(program, RuntimeLimits(steps=5, channels=1))
    with pytest.raises(Unsupported, match="to cut a unit into 16 of them makes 16 in a buffer, of at most 15"):
        compile_to_blocks(program, RuntimeLimits(chunks=15))
    many = cases.program("allreduce", "direct", "full:ranks=9")
    with pytest.raises(Unsupported, match=r"rank 0 waits for 7 thread blocks .* only for the first 3 of a rank"):
        compile_to_blocks(many, RuntimeLimits(waited=3))
    seven = {planner: cases.program("reducescatter", planner, "full:ranks=7") for planner in ("pairwise", *FEWER)}
    with pytest.raises(Unsupported, match=r"with fewer partners \(recmult, halving-doubling, ring\)"):
        compile_to_blocks(seven["pairwise"], RuntimeLimits(waited=4))
    for planner in FEWER:
        compile_to_blocks(seven[planner], RuntimeLimits(waited=4))
    with pytest.raises(Unsupported, match="rank 0 needs more than 9 thread blocks"):
        compile_to_blocks(many, RuntimeLimits(blocks=9))
    monkeypatch.setattr(write, "NODES", 20)
    with pytest.raises(Unsupported, match="holds 20; take a planner with fewer steps"):
        xml_of(many)
    uneven = antiphon.plan(
        Collective("allgather", 3, weights=[1, 2, 3]), antiphon.topology("full:ranks=3"), planner="direct"
    )
    with pytest.raises(Unsupported, match="blocks are all of one size"):
        msccl_xml(uneven)


# ---- what others write ----


@pytest.mark.parametrize("name", cases.FOREIGN)
def test_published_algorithms_are_right(name: str) -> None:
    data = cases.FOREIGN[name]
    assert fault_of(data) is None
    assert verdict(data) is None


def test_the_root_of_a_call_shows_or_must_be_told() -> None:
    data = cases.FOREIGN["binomial"]
    assert next(codes_of(read_msccl(data))).collective.roots == (1,)
    assert "tb 0" in str(fault_of(data, root=0))
    both = data.replace(b'coll="broadcast"', b'coll="reduce"')
    with pytest.raises(Unsupported, match="does not name the root of the reduce; pass it as root"):
        list(codes_of(read_msccl(both)))


def test_what_generators_leave_out_is_a_note() -> None:
    data = cases.FOREIGN["ring"]
    plain = data.replace(b' outofplace="0" minBytes="0" maxBytes="0"', b"")
    other = b'<?xml version="1.0"?>\n' + plain.replace(b'"', b"'").replace(b" chan", b"\n chan").replace(b"   ", b"\t")
    found = read_msccl(plain)
    assert (found.in_place, found.out_of_place, found.sizes) == (True, False, (0, 0))
    assert found.notes == ("the executor's parser refuses this file: it has no outofplace, minBytes, maxBytes",)
    assert fault_of(other) is None
    text = " ".join(read_msccl(other).notes)
    assert all(word in text for word in ("<?xml", "tabs", "single quotes"))


def test_messages_are_whole_at_small_sizes() -> None:
    """Three chunks go as one message where they are small, and need two slots for themselves where they are not."""
    ranks = []
    for rank in range(2):
        steps: list[cases.Step] = [
            ("s", "i", 0, "i", 0, 3, -1, -1, 0), ("cpy", "i", 0, "o", 3 * rank, 3, -1, -1, 0),
            ("r", "i", 0, "o", 3 - 3 * rank, 3, -1, -1, 0),
        ]  # fmt: skip
        ranks.append([cases.block(0, 1 - rank, 1 - rank, steps)])
    data = cases.algorithm("allgather", 6, ranks, (3, 6, 0))
    assert "where chunks are so large that each is a message of its own" in str(fault_of(data))
    assert fault_of(data.replace(b'maxBytes="0"', b'maxBytes="65536"')) is None
    assert fault_of(data.replace(b"Simple", b"LL")) is None


@pytest.mark.parametrize(("name", "old", "new", "message"), listed("msccl-faults"))
def test_a_fault_is_named_with_its_place(name: str, old: str, new: str, message: str) -> None:
    data = cases.FOREIGN[name]
    assert fault_of(data) is None
    assert old.encode() in data
    said = str(fault_of(data.replace(old.encode(), new.encode(), 1)))
    assert re.search(message, said), said
    assert "\n" not in said


def adding(*sums: cases.Step) -> bytes:
    """Two ranks that exchange two chunks, and then add."""
    ranks = []
    for rank in range(2):
        steps: list[cases.Step] = [
            ("s", "i", 0, "i", 0, 2, -1, -1, 0), ("r", "i", 0, "s", 0, 2, -1, -1, 0), *sums,
        ]  # fmt: skip
        ranks.append([cases.block(0, 1 - rank, 1 - rank, steps)])
    return cases.algorithm("allreduce", 2, ranks, (2, 0, 20), in_place=True)


def test_reductions_that_the_executor_makes_one_have_the_count_of_the_last() -> None:
    """Of nothing, as the last: so nothing is added, but for a flag before it."""
    whole: cases.Step = ("re", "s", 0, "i", 0, 2, -1, -1, 0)
    nothing: cases.Step = ("re", "s", 0, "i", 0, 0, -1, -1, 0)
    for data, good in (
        (adding(whole), True),
        (adding(whole, nothing), False),
        (adding((*whole[:8], 1), nothing), True),
    ):
        assert (fault_of(data) is None) is good
        assert (verdict(data) is None) is good


def test_the_executor_has_room_for_sixteen_reductions_in_one() -> None:
    """It counts all of a block: the first sixteen are one, then all others, which may be too many."""
    more: list[cases.Step] = [("re", "s", 0, "s", 4, 1, -1, -1, 0)] * 39
    for many, good in ((20, True), (32, True), (33, False)):
        data = adding(("re", "s", 0, "i", 0, 2, -1, -1, 0), ("cpy", "i", 0, "s", 4, 1, -1, -1, 0), *more[: many - 1])
        assert (fault_of(data) is None) is good, many
        assert (verdict(data) is None) is good
    assert "more than 16 reductions one" in str(fault_of(data))


# ---- hostile files ----


RING = cases.FOREIGN["ring"]
HOSTILE = [
    b"", b"<", b"<algo", b"<algo/>", b"not XML", b"<algo></algo>", b"<gpu/>", b'<tb id="0"/>', b"\x00" * 100,
    b'<!DOCTYPE algo [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><algo name="&b;"/>',
    b'<!DOCTYPE algo SYSTEM "file:///etc/passwd"><algo/>', b"<algo>" * 5000, RING[:-20], RING * 2,
    RING.replace(b'ngpus="4"', b'ngpus="99999999999999999999"'),
    RING.replace(b'ngpus="4"', b'ngpus="1024"'),
    RING.replace(b'nchunksperloop="4"', b'nchunksperloop="2147483647"'),
    RING.replace(b'nchunksperloop="4"', b'nchunksperloop="30000"'),
    RING.replace(b'cnt="1"', b'cnt="-1"'), RING.replace(b'cnt="1"', b'cnt="72"'),
    cases.FOREIGN["hierarchical"].replace(b'srcbuf="s" srcoff="0"', b'srcbuf="s" srcoff="32000"').replace(
        b's_chunks="1"', b's_chunks="2000000000"'),
    RING.replace(b"rrcs", b"xyz"), RING.replace(b'srcbuf="i"', b'srcbuf="\xc3\xa9"'),
    RING.replace(b'coll="allreduce"', b'coll="alltoallv"'), RING.replace(b"step", b"stop"),
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_end_in_one_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.xml"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(AntiphonError) as caught:
            list(codes_of(read_msccl(path)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert peak < 2**22 + 20 * len(data)
