"""A program is its collective, or it is refused: whatever was changed in it, at every size, before memory is taken."""

import os
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import generate
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_cases import Wrong, changed, idle, judge, variants
from program_mutants import UNITS, bases, mutants, tried
from quick import examples, ordinary
from small_plans import of_rows, planned

import antiphon
from antiphon.core.collective import Collective
from antiphon.core.program import FOLD, RECEIVE, SEND, Program, decode, encode, prove
from antiphon.core.program.form import MOST_STRETCHES
from antiphon.core.program.kinds import OUTPUT, SCRATCH
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule
from antiphon.core.transform import pipeline
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.program import both, lower
from antiphon.runtimes.serve import book as book_module
from antiphon.runtimes.serve.book import Book, encode_book, make_book, read_table

RING = planned("allreduce", "ring:ranks=4", "ring")


# ---- what is right is proven, what is proven is right ----


@settings(max_examples=examples(25), deadline=None)
@given(generate.cases(), st.integers(0, 1), st.integers(1, 3), st.integers(1, 4))
def test_what_is_lowered_is_proven(case: generate.Case, lag: int, channels: int, pieces: int) -> None:
    prove(*variants(pipeline(case.schedule, pieces), lag=lag, channels=channels))


def test_the_second_judge_agrees() -> None:
    for nth, program in enumerate(bases(range(1 if ordinary else 18))):
        prove(program)
        judge(program, UNITS[nth % len(UNITS)])


@pytest.mark.parametrize("count", [30, pytest.param(2000, marks=pytest.mark.slow)])
def test_one_number_changed_is_refused_or_harmless(count: int) -> None:
    """By random changes of all columns; `python tests/program_mutants.py 100000` makes as many as you like."""
    found = tried(bases(range(18)), count, 5, (1, 3, 7))
    assert found["refused"] > count / 2
    assert found["right"] > count / 20  # some changes do no harm


@pytest.mark.slow
def test_the_second_judge_finds_changes() -> None:
    """It is no judge that agrees with everything: most of what is refused is wrong at one of these sizes."""
    noticed = refused = 0
    for program in mutants(bases(range(9)), 150, 11):
        try:
            prove(program)
        except (Invalid, Unsupported):
            refused += 1
            try:
                for unit in (1, 5):
                    judge(program, unit)
            except (Wrong, IndexError):
                noticed += 1
    assert noticed > 0.7 * refused > 50


def test_every_size_at_once() -> None:
    """A part that is too long by less than an element at any size that could be tried."""
    whole = 2**61 - 1
    cuts = np.array([0, 2**60, whole])
    chunks = Chunks(np.zeros(2, np.int32), cuts[:-1], np.diff(cuts), whole)
    schedule = Schedule(Collective("broadcast", 2), chunks, [0, 0], [0, 1], [0, 0], [1, 1], [COPY] * 2)
    program = lower(pipeline(schedule, 2))
    prove(program)
    at = int(np.flatnonzero((program.kind[program.part_op] == SEND) & (program.part_end != program.part_begin))[0])
    middle = int(program.part_end[at])
    wrong = changed(program, "point_numerator", middle, int(program.point_numerator[middle]) + 1)
    other = np.append(program.point_numerator, program.point_numerator[middle])
    wrong = replace(wrong, point_numerator=other, point_whole=np.append(program.point_whole, 0))
    for ends in ("part_end", "part_begin"):  # only receives are as they were
        values = getattr(program, ends).copy()
        values[(values == middle) & (program.kind[program.part_op] == RECEIVE)] = len(other) - 1
        wrong = replace(wrong, **{ends: values})
    wrong = replace(
        wrong,
        point_numerator=np.append(program.point_numerator, program.point_numerator[middle] + 1),
        part_begin=program.part_begin,
    )
    judge(wrong, 7)
    with pytest.raises(Invalid, match="other stretches of the line"):
        prove(wrong)


def doubled(times: int) -> Program:
    """A broadcast to one: what comes is doubled so often in scratch, and added to what came."""
    program = lower(planned("broadcast", "full:ranks=2", "direct"))
    # rank 0 has its copy and its send as they were; rank 1: receive, copy, doublings, sum
    first = int(program.op_ptr[1])
    begin, end = int(program.part_begin[0]), int(program.part_end[0])
    bases = len(program.base_shift)
    out = next(b for b in range(int(program.base_ptr[1]), bases) if program.base_buffer[b] == OUTPUT)
    kept = slice(0, first)
    receive = first
    assert program.kind[receive] == RECEIVE
    when = int(program.when[receive])
    parts = [[out], [bases, out], *[[bases, bases, bases]] * times, [out, out, bases]]
    waits: list[list[int]] = [[]] + [[receive + i] for i in range(times + 2)]
    count = len(parts)
    columns = {
        "kind": [RECEIVE] + [FOLD] * (count - 1), "channel": [0] * count, "peer": [0] + [1] * (count - 1),
        "pieces": [1] * count, "when": [when + i for i in range(count)],
    }  # fmt: skip
    made = {name: np.append(getattr(program, name)[kept], values) for name, values in columns.items()}
    many = int(program.part_ptr[first])
    flat = [base for one in parts for base in one]
    return replace(
        program, **made, op_ptr=np.array([0, first, first + count]),
        part_ptr=np.append(program.part_ptr[: first + 1], many + np.cumsum([len(one) for one in parts])),
        part_base=np.append(program.part_base[:many], flat),
        part_begin=np.append(program.part_begin[:many], [begin] * len(flat)),
        part_end=np.append(program.part_end[:many], [end] * len(flat)),
        wait_ptr=np.append(program.wait_ptr[: first + 1], program.wait_ptr[first] + np.cumsum([len(w) for w in waits])),
        wait=np.append(program.wait[: program.wait_ptr[first]], [w for one in waits for w in one]).astype(np.int64),
        base_ptr=np.array([0, program.base_ptr[1], bases + 1]), base_shift=np.append(program.base_shift, 0),
        base_buffer=np.append(program.base_buffer, SCRATCH), base_slot=np.append(program.base_slot, 0),
        base_origin=np.append(program.base_origin, begin), class_whole=np.array([1]), class_numerator=np.array([0]),
        class_pieces=np.array([1]), slot_ptr=np.array([0, 0, 1]), slot_class=np.array([0]),
    )  # fmt: skip


def test_sums_that_wrap_around_do_not_pass() -> None:
    """After 64 doublings the fingerprint of what is added is 0; the count of what it holds is not."""
    for times in (0, 1, 63, 64, 65, 128):
        with pytest.raises(Invalid, match="rank 1 ends with wrong data in block 0"):
            prove(doubled(times))


def test_variants_that_ranks_could_not_mix() -> None:
    """Each is right for itself, and their messages have the same sizes and times; but what they carry differs."""
    one = of_rows(
        Collective("allreduce", 3), [(0, 0, 2, 1, REDUCE), (0, 0, 0, 1, REDUCE), (1, 0, 1, 0, COPY), (2, 0, 1, 2, COPY)]
    )
    other = of_rows(
        Collective("allreduce", 3),
        [
            (0, 0, 2, 1, REDUCE, 0, 0), (0, 0, 0, 1, COPY, 0, 1), (1, 0, 1, 0, REDUCE, 0, 0),
            (1, 0, 1, 1, REDUCE, 1, 0), (2, 0, 1, 2, COPY, 0, 0),
        ],
    )  # fmt: skip
    slow = of_rows(
        Collective("allreduce", 3), [(0, 0, 2, 1, REDUCE), (1, 0, 0, 1, REDUCE), (2, 0, 1, 0, COPY), (2, 0, 1, 2, COPY)]
    )
    for schedule in (one, other, slow):
        prove(*both(schedule))
    mixed = lower(one), lower(other, in_place=True)
    for program in mixed:
        prove(program)
    with pytest.raises(Invalid, match="carry other data than out of place"):
        prove(*decode(encode(mixed)))
    with pytest.raises(Invalid, match="are others than out of place"):
        prove(lower(one), lower(slow, in_place=True))


# ---- limits ----


def hungry() -> Iterator[tuple[Program, str]]:
    """Small files that ask for much."""
    ring = lower(RING)
    yield changed(ring, "class_whole", 0, 1), "is larger than what is written into it|leaves its slot"
    yield replace(ring, class_pieces=np.full_like(ring.class_pieces, 2**32 - 1)), "other pieces than that"
    deep = pipeline(RING, 2**23)
    yield lower(deep), "use fewer pieces"
    slots = replace(ring, slot_class=np.append(ring.slot_class, 0), slot_ptr=ring.slot_ptr + (np.arange(5) == 4))
    yield slots, "slot 4 is larger than what is written"
    heavy = Collective("broadcast", 2, weights=np.array([2**61, 3]), roots=(0, 1))
    yield lower(of_rows(heavy, [(0, 0, 0, 1, COPY), (0, 1, 1, 0, COPY)])), "more than 2\\^61"


def test_what_asks_for_much_is_refused_before_memory_is_taken() -> None:
    for program, why in hungry():
        tracemalloc.start()
        try:
            with pytest.raises((Invalid, Unsupported), match=why):
                prove(program)
            assert tracemalloc.get_traced_memory()[1] < 2**22, why
        finally:
            tracemalloc.stop()
    with pytest.raises(Unsupported, match="use fewer pieces"):
        encode([lower(pipeline(RING, 2**30))])  # so nobody writes a file that no engine runs
    many = lower(of_rows(Collective("broadcast", 2), [(s, c, 0, 1, COPY) for s, c in enumerate(range(3000))], 3000))
    whole = replace(many, part_begin=many.part_begin * 0, part_end=many.part_end * 0 + len(many.point_whole) - 1)
    assert len(many.part_begin) * 3000 > MOST_STRETCHES
    with pytest.raises(Unsupported, match="too many to prove"):
        prove(whole)


# ---- books ----


def book_of(kind: str) -> Book:
    machine = antiphon.topology("full:ranks=3")
    planner = "ring" if kind == "allreduce" else "direct"
    return make_book([antiphon.plan(kind, machine, planner=planner)], every_root=False)


def with_program(book: Book, *programs: Program) -> Book:
    return replace(book, programs=(encode(programs),))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "proven"


def test_a_book_whose_program_is_not_its_collective_is_refused_by_name(cache: Path, tmp_path: Path) -> None:
    right, path = book_of("allreduce"), tmp_path / "x.book"
    programs = decode(right.programs[0])
    gather = book_of("gather")
    moved = replace(gather.pages[0], root=1)
    fewer = replace(right.pages[0], members=(0, 2, 1))
    cases = [
        (with_program(right, *map(idle, programs)), r"allreduce \(ring\): rank 0 ends without block 0"),
        (with_program(right, programs[0], idle(programs[1])), r"allreduce \(ring\): rank 0 ends with wrong data"),
        (replace(right, programs=gather.programs), r"allreduce \(ring\): it is gather, which is not what its page"),
        (replace(gather, pages=(moved,)), r"gather \(direct\): it is gather among other ranks, with another root"),
        (replace(right, pages=(fewer,)), r"allreduce \(ring\): it is allreduce among other ranks"),
    ]  # fmt: skip
    for book, why in cases:
        path.write_bytes(encode_book(book))
        with pytest.raises(Invalid, match=rf"x\.book: the program for {why}"):
            read_table(path)
    assert not cache.exists()
    unused = replace(right, pages=(replace(right.pages[0], program=-1),), programs=(b"x" * 8,))
    path.write_bytes(encode_book(unused))
    assert read_table(path) == unused  # what no page lists is never run


def test_a_book_is_proven_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, book = tmp_path / "x.book", book_of("allreduce")
    path.write_bytes(encode_book(book))
    assert read_table(path) == book
    (mark,) = cache.iterdir()
    assert (cache.stat().st_mode & 0o777, mark.stat().st_size) == (0o700, 0)

    asked: list[Book] = []
    monkeypatch.setattr(book_module, "refuse_wrong", asked.append)
    assert read_table(path) == book
    assert not asked
    for place, modes in ((mark, (0o666, 0o620)), (cache, (0o777, 0o730))):  # others may have put it there
        kept = place.stat().st_mode
        for mode in modes:
            place.chmod(mode)
            assert read_table(path) == book
            assert asked.pop() == book
            assert not asked
        place.chmod(kept)
    mark.unlink()
    mark.symlink_to(path)
    read_table(path)
    assert asked.pop() == book
    mark.unlink()
    read_table(path)
    assert asked.pop() == book
    read_table(path)  # it was marked again
    assert not asked
    monkeypatch.setattr(book_module, "proof_digest", lambda: b"another proof")
    read_table(path)
    assert asked.pop() == book
    monkeypatch.setenv("ANTIPHON_CACHE", "off")
    read_table(path)
    assert asked.pop() == book
    monkeypatch.setenv("ANTIPHON_CACHE", str(path))  # no folder
    assert read_table(path) == book


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_marks_of_others_are_not_believed(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, book = tmp_path / "x.book", book_of("allreduce")
    path.write_bytes(encode_book(book))
    read_table(path)
    asked: list[Book] = []
    monkeypatch.setattr(book_module, "refuse_wrong", asked.append)
    os.chown(next(cache.iterdir()), 12345, -1)
    read_table(path)
    assert asked == [book]


def test_what_is_made_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the lowering would be noticed before anything runs."""

    monkeypatch.setattr(book_module, "both", lambda schedule: [idle(one) for one in both(schedule)])
    with pytest.raises(Invalid, match=r"the program for allreduce \(ring\): rank 0 ends without block 0"):
        book_of("allreduce")


def test_a_pipelined_schedule_is_named_by_all_its_steps() -> None:
    plan = antiphon.plan("broadcast", "ring:ranks=4", planner="ring")
    claims = plan.entries[0].claims
    assert claims["steps"] > plan.entries[0].schedule.steps
    (stated,) = antiphon.verify(plan, proof=True).stated
    assert stated.startswith(f"(C, S, R) = ({claims['chunks']}, {claims['steps']}, {claims['rounds']}): provenance")
