"""Programs: every bit as the interpreter, in any legal order; checked on their own; files refused when damaged."""

import json
import struct
import zlib
from dataclasses import replace
from itertools import islice
from pathlib import Path

import generate
import numpy as np
import pytest
from contract import Setting, able, machine, solves
from hypothesis import given, settings
from hypothesis import strategies as st
from program_cases import Plain, changed, compare, implied, inputs_of, rotation, variants, without_wait
from program_run import run_program
from quick import examples, in_turn
from small_plans import of_rows, planned

from antiphon.cli import run
from antiphon.core.collective import KINDS, Collective
from antiphon.core.program import (
    FOLD,
    JOIN,
    RECEIVE,
    SEND,
    Program,
    decode,
    dump,
    encode,
    layout_of,
    prove,
)
from antiphon.core.program.kinds import SCRATCH
from antiphon.core.request import Request
from antiphon.core.schedule import COPY, Chunks, Schedule
from antiphon.core.transform import pipeline
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.program import both, lower
from antiphon.registry import call

RING = planned("allreduce", "ring:ranks=4", "ring")


# ---- the outcome ----


@settings(max_examples=examples(8), deadline=None)
@given(generate.cases(most_ranks=6), st.integers(0, 9), st.integers(0, 2**20))
def test_any_schedule(case: generate.Case, unit: int, seed: int) -> None:
    for program in compare(case.schedule, (unit,), (seed,)):
        prove(program)


def plans_on(spec: str, kind: str) -> list[Schedule]:
    """The first that each planner makes there for all, for some of the ranks, and for two roots."""
    here = machine(spec)
    everyone = tuple(range(here.ranks))
    rooted = kind in ("broadcast", "reduce", "scatter", "gather")
    asked = [(everyone, everyone[-1:]), (everyone[1:], everyone[1:3])]
    found = []
    for members, roots in asked:
        at = Setting(spec, Collective(kind, here.ranks, members, roots if rooted else ()))
        for name, entry in able(kind):
            if solves(entry):
                continue
            try:
                found += islice(call("planner", name, entry.load(), {}, Request(here, at.wanted)), 1)
            except Unsupported:
                continue
    return found


@pytest.mark.parametrize(
    "kind", in_turn([kind if n % 2 else pytest.param(kind, marks=pytest.mark.slow) for n, kind in enumerate(KINDS)])
)
@pytest.mark.parametrize(
    "spec", ["mesh:dims=2x2", *(pytest.param(spec, marks=pytest.mark.slow) for spec in ("star:ranks=7", "dgx1v"))]
)
def test_every_planner(spec: str, kind: str) -> None:
    made = plans_on(spec, kind)
    assert len(made) > 2
    for number, schedule in enumerate(made):
        compare(schedule, (7,), (number,))


def test_addresses_are_exact_at_any_size() -> None:
    """unit * part is more than 63 bits."""
    whole = 2**61 - 1
    cuts = np.array([0, 7, 2**60 + 1, whole])
    chunks = Chunks(np.zeros(3, np.int32), cuts[:-1], np.diff(cuts), whole)
    schedule = Schedule(Collective("broadcast", 2), chunks, [0, 0, 0], [0, 1, 2], [0, 0, 0], [1, 1, 1], [COPY] * 3)
    program = lower(schedule)
    assert program.denominator == whole
    unit = 10**15 + 7
    found = layout_of(program, unit).at.tolist()
    assert found == [
        unit * (int(w) * whole + int(p)) // whole
        for w, p in zip(program.point_whole, program.point_numerator, strict=True)
    ]
    assert sorted(found) == [0, *(unit * int(c) // whole for c in cuts[1:])]
    compare(schedule, (0, 1, 5, 99))
    with pytest.raises(Invalid, match="are no size"):
        layout_of(program, 2**62)


# ---- the form ----


def test_a_ring_copies_nothing() -> None:
    """Sends read where the data lies, the gathering half receives where it belongs, in four slots; at least in two."""
    for program in both(RING):
        buffers = program.base_buffer[program.part_base]
        crossing = program.kind[program.part_op]
        assert not (buffers[crossing == SEND] == SCRATCH).any()
        assert (buffers[crossing == RECEIVE] == SCRATCH).sum() == 4 * 6
        assert (np.diff(program.part_ptr)[program.kind == FOLD] == 3).all()
        assert np.diff(program.slot_ptr).tolist() == [4] * 4
        assert layout_of(program, 80).sizes[:, SCRATCH].tolist() == [40] * 4
        assert program.pieces[program.kind == SEND].sum() == 48
    assert np.diff(lower(RING, lag=0).slot_ptr).tolist() == [2] * 4


def test_channels() -> None:
    program = lower(RING, channels=3)
    assert set(program.channel.tolist()) == {0, 1, 2}
    prove(program)
    for wrong in (0, True, 2**15 + 1):
        with pytest.raises(Invalid, match="channels: expected a whole number from 1"):
            lower(RING, channels=wrong)
    with pytest.raises(Invalid, match="lag: expected"):
        lower(RING, lag=-1)


def test_size_is_linear() -> None:
    """Everybody to everybody in one step: a version that 63 read is written once."""
    schedule = planned("allreduce", "full:ranks=64", "direct")
    program = lower(schedule)
    assert program.operations <= 3 * schedule.transfers
    assert len(program.wait) <= 3 * schedule.transfers
    assert len(encode([program])) < 200 * schedule.transfers


def test_an_illegal_schedule_has_no_program() -> None:
    with pytest.raises(Invalid, match="what it does not hold"):
        lower(of_rows(Collective("broadcast", 3), [(0, 0, 1, 2, COPY), (1, 0, 0, 1, COPY)]))


def test_the_text() -> None:
    text = dump(lower(RING), 0)
    assert "fold out[1/4:3/8] = in[1/4:3/8] + slot0[0:1/8]  (after 0)" in text
    assert "avg  out[0:1] / 4" in text
    assert "in 3 pieces" in dump(lower(pipeline(RING, 3)), 1)
    with pytest.raises(Invalid, match="rank: expected 0 to 3"):
        dump(lower(RING), 4)


# ---- the check, and the run, notice what is wrong ----


@pytest.mark.parametrize("which", in_turn(range(5), 2))
def test_every_wait_is_needed_or_implied(which: int) -> None:
    schedule = (
        RING, pipeline(RING, 3), rotation(3), generate.case(5, "allreduce", 4).schedule,
        planned("alltoall", "full:ranks=3", "direct"),
    )[which]  # fmt: skip
    for program in variants(schedule):
        prove(program)
        for at in range(len(program.wait)):
            less = without_wait(program, at)
            if implied(program, at):
                continue
            with pytest.raises(Invalid, match=r"rank \d+"):
                prove(less)


def faults(program: Program, runs: int = 12) -> int:
    """How many of so many runs notice."""
    noticed = 0
    for seed in range(runs):
        given = inputs_of(program.collective, 24, program.in_place, seed=seed)
        right = run_program(lower(RING, in_place=program.in_place), [a.copy() for a in given])
        try:
            found = run_program(program, given, seed=seed)
            noticed += any(not np.array_equal(a, b) for a, b in zip(found, right, strict=True))
        except Invalid:
            noticed += 1
    return noticed


@pytest.mark.slow
def test_runs_notice_missing_waits() -> None:
    program = lower(RING, in_place=True)
    assert faults(program) == 0
    fold = program.kind == FOLD  # of the others many are implied by what other ranks wait for
    brought = np.flatnonzero(fold[program.wait_op] & (program.kind[program.wait] == RECEIVE))
    assert all(faults(without_wait(program, int(at))) for at in brought[::5])
    freed = np.flatnonzero((program.kind[program.wait_op] == RECEIVE) & fold[program.wait])
    assert any(faults(without_wait(program, int(at))) for at in freed)


def operation(program: Program, kind: int, nth: int = 0) -> int:
    return int(np.flatnonzero(program.kind == kind)[nth])


def test_damage_is_noticed() -> None:
    program = lower(RING)
    send, fold = operation(program, SEND), operation(program, FOLD)
    part = int(program.part_ptr[send])
    cases: list[tuple[Program, str]] = [
        (changed(program, "peer", send, int(program.peer[send + 1])), "no receive of this time"),
        (changed(program, "channel", send, 1), "its channel is not there"),
        (changed(program, "kind", fold, 9), "make no sense"),
        (changed(program, "kind", fold, JOIN), "it has parts"),
        (changed(program, "peer", send, 0), "no other rank as its peer"),
        (changed(program, "part_end", part, len(program.point_whole) - 1), "takes it as other stretches"),
        (changed(program, "class_numerator", 0, 0), "leaves its slot"),
        (
            replace(program, slot_class=program.slot_class[:-1], slot_ptr=np.minimum(program.slot_ptr, 15)),
            "names what is not",
        ),
        (changed(program, "part_base", int(program.part_ptr[fold]), int(program.part_base[part])), "into the input"),
        (changed(program, "part_base", part, int(program.base_ptr[2])), "a base of another rank"),
        (changed(program, "wait", 0, send + 40), "not before it"),
        (changed(program, "wait", 0, program.operations), "names what is not there"),
        (changed(program, "op_ptr", 1, -1), "op_ptr does not share out"),
        (changed(program, "when", fold, 0), "not at an earlier time|before that of the operation before"),
        (changed(program, "pieces", send, 2), "no receive of this time"),
    ]
    for damaged, says in cases:
        with pytest.raises(Invalid, match=says):
            prove(damaged)


def test_a_deadlock_is_noticed() -> None:
    """Two ranks receive first and send when that is done."""
    program = lower(of_rows(Collective("allgather", 2), [(0, 0, 0, 1, COPY), (0, 1, 1, 0, COPY)]))
    sends = [operation(program, SEND, nth) for nth in (0, 1)]
    ptr = program.wait_ptr.copy()
    for send in sends:
        ptr[send + 1 :] += 1
    stuck = replace(program, wait=np.array([operation(program, RECEIVE, nth) for nth in (0, 1)]), wait_ptr=ptr)
    with pytest.raises(Invalid, match="not at an earlier time"):
        prove(stuck)
    for strict in (False, True):
        with pytest.raises(Invalid, match=r"deadlock: \d instances never end"):
            run_program(stuck, [np.arange(3), np.arange(3)], strict=strict)


# ---- the file ----


def files() -> list[tuple[list[Program], bytes]]:
    made = [both(generate.case(seed, kind).schedule) for seed, kind in enumerate((*KINDS, "custom"))]
    made.append(both(pipeline(RING, 3), channels=2))
    return [(programs, encode(programs)) for programs in made]


def test_a_file_holds_all() -> None:
    for programs, data in files():
        again = decode(data)
        assert encode(again) == data
        for mine, theirs in zip(programs, again, strict=True):
            assert (mine.collective, mine.in_place, mine.label) == (theirs.collective, theirs.in_place, theirs.label)
            for rank in range(mine.ranks):
                assert dump(mine, rank) == dump(theirs, rank)
            assert np.array_equal(layout_of(mine, 77).sizes, layout_of(theirs, 77).sizes)
        prove(again[-1])


def test_the_file_is_as_the_page_says() -> None:
    for programs, data in files():
        for program in programs:
            layout = layout_of(program, 1013)
            for rank in range(program.ranks):
                plain = Plain(data, rank, int(program.in_place))
                assert [plain.first * 1013, plain.last * 1013] == layout.sizes[rank, :2].tolist()
                first = int(program.op_ptr[rank])
                assert len(plain.operations) == int(program.op_ptr[rank + 1]) - first
                for row, one in enumerate(plain.operations, first):
                    kind, channel, peer, pieces, when, part, parts, wait, waits = one
                    columns = (program.kind, program.channel, program.peer, program.pieces, program.when)
                    assert [int(c[row]) for c in columns] == [kind, channel, peer, pieces, when]
                    at = int(program.part_ptr[row])
                    for nth in range(parts):
                        here = tuple(
                            int(c[at + nth]) for c in (layout.buffer, layout.begin, layout.length, layout.stride)
                        )
                        assert plain.part(part + nth, 1013) == here
                    mine = program.wait[program.wait_ptr[row] : program.wait_ptr[row + 1]] - first
                    assert [w for (w,) in plain.waits[wait : wait + waits]] == mine.tolist()


def test_a_damaged_file_is_refused() -> None:
    data = encode(both(RING))
    for length in [*range(200), *range(200, len(data), 97)]:
        with pytest.raises((Invalid, Unsupported)):
            decode(data[:length])
    random = np.random.default_rng(3)
    for at in [*range(96), *random.integers(0, len(data), 300).tolist()]:
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        with pytest.raises((Invalid, Unsupported)):
            decode(bytes(broken))
    with pytest.raises(Invalid, match="has something behind it"):
        decode(data + b"\0")
    with pytest.raises(Unsupported, match="of version 2"):
        decode(data[:8] + b"\2\0\0\0" + data[12:])
    with pytest.raises(Invalid, match="does not begin with ANTIPROG"):
        decode(b"hello")


def test_sections_stand_one_behind_the_other() -> None:
    """Else a small file could be read as a large one, by sections that lie upon each other."""
    data = encode([lower(RING)])
    head = struct.unpack_from("<Q", data, 16)[0]
    first = head - 2 * 4 * 24
    entries = [struct.unpack_from("<QQII", data, first + 24 * i) for i in range(4)]
    bodies = [data[begin : begin + size] for begin, size, _, _ in entries]
    for order in ([0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 3, 2]):
        table, at = bytearray(data[:head]), head
        for rank in order:
            struct.pack_into("<QQ", table, first + 24 * rank, at, len(bodies[rank]))
            at += len(bodies[rank])
        struct.pack_into("<I", table, 12, zlib.crc32(table[16:]))
        again = bytes(table) + b"".join(bodies[rank] for rank in order)
        if order == sorted(order):
            assert again == data
        else:
            with pytest.raises(Invalid, match="does not stand behind the one before it"):
                decode(again)


def test_what_belongs_into_one_file() -> None:
    with pytest.raises(Invalid, match="one program out of place"):
        encode([])
    with pytest.raises(Invalid, match="one program out of place"):
        encode([lower(RING), lower(RING)])
    with pytest.raises(Invalid, match="of one schedule"):
        encode([lower(RING), lower(RING, in_place=True, channels=2)])


def test_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "allreduce", "ring:ranks=4", "--planner", "ring", "-o", "plan.json"]) == 0
    capsys.readouterr()
    line = ["export", "plan.json", "-o", "out", "--to"]
    assert run([*line, "program:text=true,channels=2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    names = [Path(one["file"]).name for one in told["files"]]
    assert names == ["program0.bin", "program0.txt", "program0-in-place.txt"]
    made = decode((tmp_path / "out/program0.bin").read_bytes())
    assert [(p.in_place, p.channels) for p in made] == [(False, 2), (True, 2)]
    for program in made:
        prove(program)
    texts = [(tmp_path / "out" / name).read_text() for name in names[1:]]
    assert texts == ["".join(dump(p, rank) for rank in range(4)) for p in made]
    assert run([*line, "program", "--nbytes", "1KB"]) == 2
    assert "leave nbytes out" in capsys.readouterr().err
