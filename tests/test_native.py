"""The native engine in one process: ranks as threads, over a transport that buffers nothing."""

import os
import random
import shutil
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import in_turn
from small_plans import planned
from tables import listed

import antiphon
from antiphon.core.datatypes import accumulator, average, combine_of, data_type
from antiphon.core.interpret import interpret
from antiphon.core.interpret.buffers import sides
from antiphon.core.program import encode
from antiphon.core.schedule import Schedule
from antiphon.core.transform import pipeline
from antiphon.errors import AntiphonError, Invalid, Missing, TimedOut, Unsupported
from antiphon.formats.program import both, lower
from antiphon.runtimes.engine import build
from antiphon.runtimes.engine.learner import PLANNED_SLICES
from antiphon.runtimes.engine.native import OPERATORS, TYPE_OF_SIZE, TYPES, Engine, Warming, Wire

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(build.library("threads"))


def inputs_of(schedule: Schedule, unit: int, dtype: str, in_place: bool, seed: int) -> list[Array]:
    """Small whole numbers where bits are compared after another order would matter less; all bits elsewhere."""
    kind, make = data_type(dtype), np.random.default_rng(seed)
    first, _ = sides(schedule.collective, in_place)
    counts = [int(weight) * unit for weight in first.size]
    if kind.kind in "iu":
        bounds = np.iinfo(kind)
        return [make.integers(bounds.min, bounds.max, n, kind, endpoint=True) for n in counts]
    return [make.uniform(-2, 2, n).astype(kind) for n in counts]


def run_threads(
    engine: Engine, data: bytes, given: list[Array], unit: int, op: str, places: list[bool], split: int | None = None,
    runs: int = 1, timeout: float = 20.0, wires: list[Wire] | None = None, slices: int = PLANNED_SLICES,
    counts: Array | None = None,
) -> list[Array]:  # fmt: skip
    """What every rank ends with; `places`: per rank, whether it runs in place; `counts`: of an alltoall."""
    program, ranks = engine.program(data), len(given)
    plans = [
        program.plan(r, unit, places[r], split, slices) if counts is None else program.plan_counts(r, counts)
        for r in range(ranks)
    ]
    wires = engine.threads(ranks) if wires is None else wires
    outputs = [np.empty(0)] * ranks
    errors: list[AntiphonError] = []
    kept: list[Array] = []  # who fails goes, but others may still read what it sent

    def go(rank: int) -> None:
        try:
            for _ in range(runs):
                source = given[rank].copy()
                target = source if places[rank] else np.full(plans[rank].needs.output, 99, source.dtype)
                kept.extend([source, target])
                plans[rank].run(None if places[rank] else source, target, wires[rank], op, timeout)
                assert places[rank] or source.tobytes() == given[rank].tobytes()
                outputs[rank] = target
        except AntiphonError as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(rank,)) for rank in range(ranks)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for wire in wires:
        wire.close()
    if errors:
        raise errors[0]
    return outputs


def same(a: Array, b: Array, zeros: bool = False) -> bool:
    """Bit by bit, but for what is not a number; `zeros`: and but for the sign of 0."""
    if a.dtype.kind in "iu":
        return np.array_equal(a, b)
    bits = np.dtype(f"u{a.dtype.itemsize}")
    with np.errstate(all="ignore"):
        alike = np.isnan(a) & np.isnan(b) | (zeros & (a == 0) & (b == 0))
        return bool(np.all((a.view(bits) == b.view(bits)) | alike))


PLANS = listed("engine-plans")


@pytest.mark.parametrize(("kind", "machine", "planner"), in_turn(PLANS, 5))
def test_every_rank_ends_with_what_the_interpreter_says(engine: Engine, kind: str, machine: str, planner: str) -> None:
    schedule = planned(kind, machine, planner)
    data = encode(both(schedule))
    draw = random.Random(f"{kind} {planner}")
    ranks = schedule.collective.ranks
    for unit in (0, 1, 7, 500, 2049):
        dtype, op = draw.choice([*TYPES]), draw.choice([*OPERATORS])
        for in_place in (False, True):
            given = inputs_of(schedule, unit, dtype, in_place, unit)
            want = interpret(schedule, [one.copy() for one in given], op=op, dtype=dtype, in_place=in_place)
            split, slices = draw.choice([None, 64, 1000]), draw.choice([1, 4, 7, 64])
            found = run_threads(engine, data, given, unit, op, [in_place] * ranks, split, runs=2, slices=slices)
            for rank in range(ranks):
                assert same(found[rank], want[rank]), (unit, dtype, op, in_place, split, slices, rank)


def drawn_counts(make: np.random.Generator, ranks: int) -> Iterator[Array]:
    """Elements per receiver (row) and sender (column): none, few, many, one receiver of nearly all, few blocks."""
    for greatest in (1, 4, 3000):
        yield make.integers(0, greatest, (ranks, ranks))
    yield np.where(np.arange(ranks)[:, None] == 2, make.integers(0, 20_000, (ranks, ranks)), 1)
    yield np.where(make.random((ranks, ranks)) < 0.1, 7777, 0)


@pytest.mark.parametrize(
    ("machine", "planner", "nbytes"),
    in_turn(
        [
            ("full:ranks=4", "pairwise", "1MB"), ("full:ranks=5", "bruck", "1MB"), ("ring:ranks=5", "relay", "1MB"),
            ("torus:dims=3x3", "flows", "64MB"), ("mesh:dims=2x3", "compose", "1MB"),
            ("hypercube:dims=3", "dispatch", "64MB"),
            ("cluster:box=full:ranks=4+bandwidth=50GB/s,boxes=2", "compose", "1GB"),  # in 1024 pieces
        ], 3
    ),
)  # fmt: skip
def test_an_alltoall_moves_any_counts(engine: Engine, machine: str, planner: str, nbytes: str) -> None:
    schedule = antiphon.plan("alltoall", machine, planner=planner, nbytes=nbytes).entries[0].schedule
    data, make = encode(both(schedule)), np.random.default_rng(0)
    for counts in drawn_counts(make, ranks := schedule.collective.ranks):
        block = [[make.integers(0, 256, n, np.uint8) for n in row] for row in counts.tolist()]
        given = [np.concatenate([block[to][rank] for to in range(ranks)]) for rank in range(ranks)]
        found = run_threads(engine, data, given, 0, "sum", [False] * ranks, runs=2, counts=counts)
        for rank in range(ranks):
            assert np.array_equal(found[rank], np.concatenate(block[rank])), counts


def test_counts_that_are_refused(engine: Engine) -> None:
    program = engine.program(encode(both(planned("alltoall", "full:ranks=4", "pairwise"))))
    with pytest.raises(Invalid, match="4 members exchange 16 blocks"):
        program.plan_counts(0, np.ones((3, 3)))
    for greatest in (2**57, 2**63):
        with pytest.raises(Invalid, match="more elements than there can be"):
            program.plan_counts(0, np.full((4, 4), greatest, np.uint64))
    plan, (wire, *others) = program.plan_counts(0, np.full((4, 4), 3)), engine.threads(4)
    with pytest.raises(Invalid, match="its output has 11 bytes, 12 are needed"):
        plan.run(np.zeros(12, np.uint8), np.zeros(11, np.uint8), wire)
    for one in (wire, *others):
        one.close()
    with pytest.raises(Invalid, match="only a program for an alltoall of even blocks"):
        engine.program(encode(both(planned("allreduce", "full:ranks=4", "ring")))).plan_counts(0, np.ones((4, 4)))


@pytest.mark.parametrize("pieces", [pytest.param(2, marks=pytest.mark.slow), 5])
def test_pieces_go_one_after_another(engine: Engine, pieces: int) -> None:
    schedule = pipeline(planned("allreduce", "ring:ranks=4", "ring"), pieces)
    data = encode(both(schedule))
    for unit in (0, 1, 3, 101, 3000):
        for in_place in (False, True):
            given = inputs_of(schedule, unit, "float32", in_place, unit)
            want = interpret(schedule, [one.copy() for one in given], in_place=in_place)
            for slices in (1, 2, 3, 4, 6, 16, 64):  # also more and fewer than the program says
                found = run_threads(engine, data, given, unit, "sum", [in_place] * 4, slices=slices)
                assert all(map(same, found, want)), (unit, in_place, slices)


@pytest.mark.parametrize(
    ("kind", "machine", "planner"),
    [("allreduce", "dgx1v", "trees"), ("broadcast", "dgx1v", "trees"), ("allreduce", "torus:dims=2x3", "multi-ring")],
)
def test_sliced_plans_of_many_trees(engine: Engine, kind: str, machine: str, planner: str) -> None:
    """Slices cross rings and trees that share ranks: any number of them ends, and with the same bits."""
    schedule = pipeline(planned(kind, machine, planner), 6)
    data, ranks = encode(both(schedule)), schedule.collective.ranks
    given = inputs_of(schedule, 4001, "int32", True, 1)
    want = interpret(schedule, [one.copy() for one in given], in_place=True, dtype="int32")
    for slices in (1, 2, 3, 5, 8, 12, 48):
        found = run_threads(engine, data, given, 4001, "sum", [True] * ranks, slices=slices)
        assert all(map(same, found, want)), slices


def test_slices_that_cannot_become_fewer(engine: Engine) -> None:
    schedule = planned("allreduce", "ring:ranks=4", "ring")
    mixed = pipeline(schedule, [2 + i % 3 for i in range(len(schedule.chunks))])
    program = engine.program(encode(both(mixed)))
    assert program.plan(0, 100, slices=8).needs.output == 100
    with pytest.raises(Unsupported, match="may only have a multiple of them"):
        program.plan(0, 100, slices=2)
    with pytest.raises(Invalid, match="0 slices"):
        program.plan(0, 100, slices=0)


def test_who_is_late_delays_only_those_that_need_it(engine: Engine) -> None:
    """A scatter without buffering: ranks 1, 2 and 4 are done before rank 3 begins, though it comes before 4."""
    schedule = planned("scatter", "full:ranks=5", "direct")
    program, wires = engine.program(encode([lower(schedule)])), engine.threads(5)
    given = inputs_of(schedule, 1000, "float32", False, 4)
    want = interpret(schedule, given)
    out = [np.zeros_like(one) for one in want]
    calls = [program.plan(r, 1000).bound(given[r], out[r], wires[r], timeout=20.0) for r in range(5)]
    threads = [threading.Thread(target=call) for call in calls]
    for rank in (0, 1, 2, 4):
        threads[rank].start()
    for rank in (1, 2, 4):
        threads[rank].join()
        assert same(out[rank], want[rank])
    assert threads[0].is_alive()
    threads[3].start()
    for rank in (0, 3):
        threads[rank].join()
    assert all(map(same, out, want))
    for wire in wires:
        wire.close()


def test_ranks_may_mix_in_place_and_not(engine: Engine) -> None:
    schedule = planned("reduce", "full:ranks=4", "binomial-tree")
    data = encode(both(schedule))
    given = inputs_of(schedule, 33, "int32", False, 1)
    want = interpret(schedule, given)
    found = run_threads(engine, data, given, 33, "sum", [True, False, True, False], 64)
    assert same(found[0], want[0])


def test_memory_is_touched_for_elements_of_their_size() -> None:
    names = {number: name for name, number in TYPES.items()}
    assert {size: np.dtype(names[number]).itemsize for size, number in TYPE_OF_SIZE.items()} == {1: 1, 2: 2, 4: 4, 8: 8}


@pytest.mark.parametrize("dtype", [*TYPES])
@pytest.mark.parametrize("op", [*OPERATORS])
def test_combinations_are_those_of_the_interpreter(engine: Engine, dtype: str, op: str) -> None:
    kind, make = data_type(dtype), np.random.default_rng(5)
    for count in (1, 2, 3, 7):
        for n in (1, 8, 1023, 2500):
            if kind.kind in "iu":
                operands = [np.frombuffer(make.bytes(n * kind.itemsize), kind).copy() for _ in range(count)]
            else:
                operands = [(make.normal(0, 10.0 ** make.integers(-8, 5, n))).astype(kind) for _ in range(count)]
                if n > 1000:
                    for k, odd in enumerate((np.nan, np.inf, -np.inf, 6e-8, 65504, 65519.99, 65520, 1e-40, 3e38)):
                        with np.errstate(all="ignore"):
                            operands[k % count][make.integers(0, n, 9)] = odd
            wide = accumulator(kind)
            with np.errstate(all="ignore"):
                want = operands[0].astype(wide)
                for other in operands[1:]:
                    want = combine_of(op)(want, other.astype(wide))
                want = want.astype(kind)
                divided = average(want, count)
            result = np.empty(n, kind)
            engine.fold(result, operands, op)
            zeros = op in ("min", "max")  # of 0 and -0 NumPy takes either, as the processor does
            assert same(result, want, zeros), (count, n)
            if count == 3:
                result = operands[2].copy()  # in the place of an operand
                engine.fold(result, [operands[0], operands[1], result], op)
                assert same(result, want, zeros)
            engine.divide(result, count)
            if op == "avg":
                assert same(result, divided)


def test_all_float16_go_to_float32_and_back(engine: Engine) -> None:
    every = np.arange(2**16, dtype=np.uint16)
    for dtype in ("float16", "bfloat16"):
        values = every.view(data_type(dtype))
        one = np.ones(2**16, values.dtype)
        for n in (2**16, 7):  # by vectors, and without
            result = np.empty(n, values.dtype)
            engine.fold(result, [values[-n:], one[-n:]], "prod")
            assert same(result, values[-n:])


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_every_two_float8(engine: Engine, dtype: str) -> None:
    every = np.arange(2**8, dtype=np.uint8).view(data_type(dtype))
    some = [np.repeat(every, 2**8), np.tile(every, 2**8)]
    for op in ("sum", "prod"):
        with np.errstate(all="ignore"):
            want = combine_of(op)(*(one.astype(np.float32) for one in some)).astype(every.dtype)
        result = np.empty_like(want)
        engine.fold(result, some, op)
        assert same(result, want), op


# ---- what is wrong ----


@cache
def ring() -> bytes:
    return encode(both(planned("allreduce", "ring:ranks=3", "ring")))


def mended(data: bytes) -> bytes:
    """A damaged ring() with its checksums made right again."""
    body, good = bytearray(data), ring()
    head = struct.unpack_from("<Q", good, 16)[0]
    for at in range(head - 24 * 6, head, 24):
        begin, size = struct.unpack_from("<QQ", body, at)
        if begin and begin + size <= len(body):
            struct.pack_into("<I", body, at + 16, zlib.crc32(bytes(body[begin : begin + size])))
    struct.pack_into("<I", body, 12, zlib.crc32(bytes(body[16:head])))
    return bytes(body)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda d: b"", "no program file"),
        (lambda d: b"PROGRAMS" + d[8:], "no program file"),
        (lambda d: d[:-1], "cut off"),
        (lambda d: d[:100], "cut off"),
        (lambda d: d + bytes(8), "cut off"),
        (lambda d: d[:8] + b"\2" + d[9:], "version 2"),
        (lambda d: d[:36] + b"\4" + d[37:], "checksum of its head"),
        (lambda d: mended(d[:36] + b"\4" + d[37:]), "do not fit together"),
        (lambda d: d[:-3] + bytes([d[-3] ^ 1]) + d[-2:], "checksum of rank 2"),
    ],
)
def test_a_damaged_file_is_refused(engine: Engine, damage: Callable[[bytes], bytes], told: str) -> None:
    with pytest.raises((Invalid, Unsupported), match=told):
        engine.program(damage(ring())).plan(2, 5, True)


@pytest.mark.parametrize(
    ("table", "row", "value", "told"),
    [
        (2, 24, struct.pack("<qqII", 0, 0, 1, 0), "lies outside of its buffer"),  # slots without room
        (0, 16, struct.pack("<qq", 7, 0), "point 0"),  # all points beyond the end
        (1, 24, struct.pack("<qIIII", -1, 1, 0, 0, 0), "slot 0 has more room"),  # all bases before the beginning
        (1, 24, struct.pack("<qIIII", 0, 3, 0, 0, 0), "base 0"),
        (3, 4, struct.pack("<I", 99), "slot 0"),
        (4, 32, struct.pack("<HHIIIIIII", 4, 0, 1, 1, 0, 0, 1, 0, 0), "operation 0"),
        (4, 32, struct.pack("<HHIIIIIII", 0, 0, 0, 1, 0, 0, 1, 0, 0), "operation 0"),  # to itself
        (4, 32, struct.pack("<HHIIIIIII", 1, 0, 1, 1, 0, 2**31, 2**31, 0, 0), "operation 0"),
        (6, 4, struct.pack("<I", 9999), "operation"),  # waits for what is not there
    ],
    ids=["room", "points", "before", "buffer", "class", "kind", "itself", "parts", "wait"],
)
def test_every_index_of_a_file_is_checked(engine: Engine, table: int, row: int, value: bytes, told: str) -> None:
    """All rows of one table of rank 0 out of place are replaced."""
    good, body = ring(), bytearray(ring())
    head = struct.unpack_from("<Q", good, 16)[0]
    begin = struct.unpack_from("<Q", good, head - 24 * 6)[0]
    counts = struct.unpack_from("<8I", good, begin + 24)
    at = begin + 56
    for size, count in zip((16, 24, 24, 4, 32, 12, 4)[:table], counts, strict=False):
        at += (size * count + 7) // 8 * 8
    assert counts[table] > 0
    body[at : at + row * counts[table]] = value * counts[table]
    with pytest.raises(Invalid, match=told):
        engine.program(mended(bytes(body))).plan(0, 100)


def test_where_nobody_answers_a_timeout_ends_it_and_the_wire(engine: Engine) -> None:
    plan, wires = engine.program(ring()).plan(0, 5), engine.threads(3)
    call = plan.bound(np.zeros(5, np.float32), np.zeros(5, np.float32), wires[0], timeout=0.05)
    with pytest.raises(TimedOut, match="nothing came or went"):
        call()
    with pytest.raises(AntiphonError, match="an earlier run failed"):
        call()
    for wire in wires:
        wire.close()


def test_calls_that_do_not_fit_are_refused(engine: Engine) -> None:
    program = engine.program(ring())
    assert (program.facts.ranks, program.facts.kind, program.facts.variants) == (3, 6, 3)
    with pytest.raises(Invalid, match="program is for 3 ranks"):
        program.plan(3, 5)
    with pytest.raises(Invalid, match="64 bytes or more"):
        program.plan(0, 5, split=1)
    for unit in (2**62, 2**63, 2**64 - 1):
        with pytest.raises(Invalid):
            program.plan(0, unit)
    plan, wires = program.plan(0, 5), [*engine.threads(2), *engine.threads(3)]
    with pytest.raises(Invalid, match="input has 16 bytes, 20 are needed"):
        plan.run(np.zeros(4, np.float32), np.zeros(5, np.float32), wires[2])
    with pytest.raises(Invalid, match="there are 2 ranks"):
        plan.run(np.zeros(5, np.float32), np.zeros(5, np.float32), wires[0], timeout=1.0)
    with pytest.raises(Invalid, match="data type"):
        plan.run(np.zeros(5, np.complex64), np.zeros(5, np.complex64), wires[0])
    for wire in wires:
        wire.close()
    only = engine.program(encode([lower(planned("allreduce", "ring:ranks=3", "ring"))]))
    with pytest.raises(Unsupported, match="in place"):
        only.plan(0, 5, True)


# ---- compiling ----


def test_what_is_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build.library("threads")
    before = path.stat().st_mtime_ns
    assert build.library("threads") == path
    assert path.stat().st_mtime_ns == before
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    assert build.native_folder() == tmp_path / "native"


@pytest.mark.parametrize("target", ["mpi", "threads"])
def test_a_compiler_that_is_not_there(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = {"mpi": "MPICC", "threads": "CC"}[target]
    monkeypatch.setenv(variable, "/no/such/compiler -m64")
    with pytest.raises(Missing, match=f"no such program; name your compiler by --compiler or in .{variable}"):
        build.library(target)
    monkeypatch.setenv(variable, "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(build.sys, "executable", "/nowhere/python")
    with pytest.raises(Missing, match=f"or set .{variable}"):
        build.library(target)


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "cc"
    script.write_text(
        "#!/bin/sh\ncase \"$*\" in *-dM*) echo '#define A 1';; *) echo 'x.c:1: error: odd' >&2; exit 1;; esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ANTIPHON_CACHE", raising=False)
    with pytest.raises(Missing, match=r"could not compile the engine: x.c:1: error: odd"):
        build.library("threads", str(script))
    assert [*(tmp_path / "cache").rglob("*.so")] == []
    assert os.fspath(build.native_folder()).startswith(str(tmp_path))


def resident() -> int:
    """Bytes of memory that this process has, not only addresses for."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


WARMED = """
import os, sys, time
from pathlib import Path
import antiphon
from antiphon.core.program import encode
from antiphon.formats.program import both
from antiphon.runtimes.engine import build
from antiphon.runtimes.engine.native import Engine
from antiphon.runtimes.engine.native import Warming

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

kind, planner, unit = sys.argv[1:]
schedule = antiphon.plan(kind, antiphon.topology("full:ranks=4"), planner=planner).at(0).schedule
plan = Engine(build.library("threads")).program(encode(both(schedule))).plan(0, int(unit))
before = resident()
warming = Warming([(plan, 4)])
while not warming.done:
    time.sleep(0.01)
print(resident() - before, plan.needs.scratch)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "planner", "unit"), [("allreduce", "ring", 8_000_000), ("alltoall", "bruck", 2_000_000)]
)
def test_the_memory_of_a_plan_is_there_before_its_first_run(kind: str, planner: str, unit: int) -> None:
    """Its scratch (a ring's allreduce), and what messages of several stretches are put together in (Bruck's). In a
    process of its own: in this one it may get memory that other tests have left behind, and their threads let go of."""
    command = [sys.executable, "-c", WARMED, kind, planner, str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1000)
    taken, scratch = map(int, said.stdout.split())
    least = 4 * scratch if planner == "ring" else 4 * 2 * unit  # two blocks of four go at once
    assert taken > 0.9 * least > 10**7


def test_warming_ends_when_it_is_told_to(engine: Engine) -> None:
    plan = engine.program(encode(both(planned("allreduce", "full:ranks=4", "ring")))).plan(0, 100_000_000)
    before = resident()
    warming = Warming([(plan, 4)])
    warming.end()
    assert warming.done
    assert resident() - before < 2 * int(plan.needs.scratch)  # of four bytes each
