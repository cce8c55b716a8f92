"""Files that lie, with right checksums: the engine refuses them before it allocates or touches anything."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import generate
import numpy as np
import pytest
from craft import Crafted, number
from entries import program
from hypothesis import given
from hypothesis import strategies as st
from program_cases import variants

import antiphon
from antiphon.core.plan import Entry, Plan
from antiphon.core.program import encode
from antiphon.core.transform import pipeline
from antiphon.errors import Invalid, Unsupported
from antiphon.formats import emit
from antiphon.formats.program import both, lower
from antiphon.runtimes.engine import build
from antiphon.runtimes.engine.native import Engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(build.library("threads"))


@cache
def made(kind: str = "allreduce", planner: str = "ring", ranks: int = 2, pieces: int = 1) -> bytes:
    schedule = antiphon.plan(kind, antiphon.topology(f"full:ranks={ranks}"), planner=planner).at(0).schedule
    return encode(both(pipeline(schedule, pieces) if pieces > 1 else schedule))


def in_pieces(pieces: int) -> bytes:
    """A file of any number of pieces, also of more than anybody would write."""
    file = Crafted(made(pieces=1000))
    for rank in range(2):
        for place in (False, True):
            file.put("operations", -1, 8, "I", pieces, rank=rank, place=place)
            file.put("classes", -1, 16, "I", pieces, rank=rank, place=place)
    return file.file


def far(file: Crafted) -> Crafted:
    """As if the caller's array had 2^32 units; what is moved stands in the last one."""
    file.sides(0, 2**32, 2**32)
    at, count = file.table("bases", 0)
    for row in range(count):
        if number(file.data, at + 24 * row + 8) != 2:
            file.put("bases", row, 0, "q", 2**32 - 1)
    return file


LIES: dict[str, tuple[Callable[[Crafted], Crafted], int, str]] = {
    "the bytes of scratch wrap": (lambda f: f.put("classes", -1, 0, "qq", 2**61, 0), 1, "class 0"),
    "a slot has more room than is written": (lambda f: f.put("classes", -1, 0, "qq", 1, 0), 100, "slot 0 has more"),
    "a slot has more pieces than are written": (
        lambda f: f.put("classes", -1, 16, "I", 2**31), 1, "operation 0",
    ),
    "a base is before the beginning": (lambda f: f.put("bases", 0, 0, "q", -1), 100, "lies outside of its buffer"),
    "a base is far behind the end": (lambda f: f.put("bases", 0, 0, "q", 2**63 - 1), 9, "lies outside of its buffer"),
    "buffers are larger than the collective's": (far, 9, "weigh 4294967296 and 4294967296; by .* it is 1 and 1"),
    "a point is behind the end": (lambda f: f.put("points", 1, 0, "qq", 1, 1), 100, "point 1"),
    "a point is before the beginning": (lambda f: f.put("points", 1, 0, "qq", -1, 0), 100, "point 1"),
    "a stretch goes backwards": (lambda f: f.put("parts", 0, 0, "II", 4, 0), 100, "operation 0"),
    "parts are shared": (lambda f: f.put("operations", 1, 16, "I", 0), 100, "operation 1"),
    "waits are shared": (lambda f: f.put("operations", -1, 24, "I", 0), 100, "operation"),
    "finish is in scratch": (lambda f: f.put("finish", 0, 8, "I", 2), 100, "finish 0"),
    "weights beyond 2^62": (lambda f: f.weight(0, 2**62), 1, "its weights"),
    "a negative weight": (lambda f: f.weight(0, -1), 1, "its weights"),
    "a greater weight": (lambda f: f.weight(0, 7), 1, "its greatest buffer"),
    "a greater buffer": (lambda f: f.head("buffer_weight", 9), 1, "its greatest buffer"),
    "another kind": (lambda f: f.head("kind", 4), 1, "its blocks are not those of its kind"),
    "a rooted kind without roots": (lambda f: f.head("kind", 0), 1, "its members, roots or blocks"),
    "too many pieces": (lambda f: f.put("operations", -1, 8, "I", 2**27), 1, "operation|pieces"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused(engine: Engine, lie: str) -> None:
    craft, unit, told = LIES[lie]
    with pytest.raises((Invalid, Unsupported), match=told):
        engine.program(craft(Crafted(made())).file).plan(0, unit)


def test_in_place_there_is_no_input(engine: Engine) -> None:
    file = Crafted(made())
    file.put("bases", 0, 8, "I", 0, place=True)
    with pytest.raises(Invalid, match="base 0"):
        engine.program(file.file).plan(0, 10, True)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("kind", "planner"), [("allgather", "ring"), ("scatter", "direct"), ("alltoall", "pairwise"), ("reduce", "ring")]
)
def test_every_side_of_every_kind_is_held_against_the_head(
    engine: Engine, kind: str, planner: str, in_place: bool
) -> None:
    data = made(kind, planner, 3)
    for rank in range(3):
        begin = Crafted(data).section(rank, in_place)
        weights = number(data, begin + 8, "Q"), number(data, begin + 16, "Q")
        for side in range(2):
            told = [*weights]
            told[side] += 1
            with pytest.raises(Invalid, match=f"rank {rank} says that its buffers weigh {told[0]} and {told[1]}"):
                engine.program(Crafted(data).sides(rank, told[0], told[1], in_place).file).plan(rank, 5, in_place)


@given(generate.cases(most_ranks=6), st.integers(0, 7))
def test_what_is_lowered_is_within_all_limits(engine: Engine, case: generate.Case, unit: int) -> None:
    """Any collective: several roots, uneven weights, any relation, slots and routes."""
    programs = variants(case.schedule)
    opened = engine.program(encode(programs))
    for one in programs:
        for rank in range(one.ranks):
            needs = opened.plan(rank, unit, one.in_place).needs
            weights = [0 if one.in_place else int(one.weights[0][rank]), int(one.weights[1][rank])]
            assert [needs.input, needs.output] == [weight * unit for weight in weights]


def test_what_the_caller_has_is_what_counts(engine: Engine) -> None:
    program, wires = engine.program(made()), engine.threads(2)
    whole, part = np.zeros(100, np.float64), np.zeros(99, np.float64)
    for in_place, source, target, told in (
        (False, part, whole, "rank 1: its input has 792 bytes, 800 are needed"),
        (False, whole, part, "rank 1: its output has 792 bytes, 800 are needed"),
        (False, None, whole, "rank 1: its input has 0 bytes, 800 are needed"),
        (True, None, part, "rank 1: its output has 792 bytes, 800 are needed"),
        (False, whole.astype(np.float32), whole, "of two types, float32 and float64"),
        (False, np.zeros(200)[::2], whole, "do not stand one after another"),
    ):
        with pytest.raises(Invalid, match=told):
            program.plan(1, 100, in_place).run(source, target, wires[1])
    for wire in wires:
        wire.close()


def test_buffers_that_are_too_small_are_refused_before_anything_is_laid_out(engine: Engine) -> None:
    plan, wires = engine.program(made()).plan(0, 2**33, split=2**14), engine.threads(2)
    some = np.zeros(8, np.float32)
    with pytest.raises(Invalid, match=f"rank 0: its input has 32 bytes, {4 * 2**33} are needed"):
        plan.run(some, some.copy(), wires[0])
    assert plan.needs.instances == 0
    for wire in wires:
        wire.close()


def test_pieces_have_limits(engine: Engine) -> None:
    """A rank may have 2^20 pieces of operations, and 2^25 of these, their parts and waits."""
    data = made(pieces=1000)
    plan = engine.program(data).plan(0, 5000)
    assert plan.needs.input == 5000
    with pytest.raises(Unsupported, match=r"more than 2\^20 pieces of operations.*use fewer pieces"):
        engine.program(in_pieces(300_000)).plan(0, 5000)


def test_what_is_exported_is_taken_and_what_is_not_taken_is_not_exported(engine: Engine) -> None:
    """At the limit, and one piece beyond it."""
    machine = antiphon.topology("full:ranks=2")
    schedule = antiphon.plan("allreduce", machine, planner="ring").at(0).schedule
    for rows in (lower(schedule), lower(schedule, in_place=True)):
        assert int(np.diff(rows.op_ptr).max()) == 6
    most = 2**20 // 6
    for pieces, good in ((most, True), (most + 1, False), (10**9, False)):
        finer = pipeline(schedule, pieces)
        plan = Plan(machine, schedule.collective, (Entry(0, None, finer, {}),))
        if good:
            data = program(plan)["program0.bin"]
            assert isinstance(data, bytes)
            assert engine.program(data).plan(1, 10, True).needs.output == 10
            continue
        with pytest.raises(Unsupported, match=rf"pieces of operations.*fewer pieces than {pieces}, about {most}$"):
            program(plan)
        with pytest.raises(Unsupported, match="pieces of operations"):
            engine.program(in_pieces(pieces)).plan(1, 10)


def test_what_would_fill_the_memory_is_told_before_it_is_tried() -> None:
    machine = antiphon.topology("ring:ranks=4")
    plan = antiphon.plan("allreduce", machine, planner="ring", options={"pieces": 10**9})
    transfers = plan.at(0).schedule.transfers
    with pytest.raises(Unsupported, match=rf"{transfers * 10**9} rows \({transfers} transfers of up to {10**9} pieces"):
        emit(plan, "goal", nbytes="1GB")
    with pytest.raises(Unsupported, match=r"rank 0 has \d+ pieces of operations"):
        emit(plan, "program")


def test_messages_that_are_split_have_limits(engine: Engine) -> None:
    plan, wires = engine.program(made()).plan(0, 2**26, split=64), engine.threads(2)
    some = np.zeros(2**26, np.int8)
    with pytest.raises(Unsupported, match="too many messages; split at more bytes"):
        plan.run(some, some.copy(), wires[0], timeout=1.0)
    for wire in wires:
        wire.close()


def test_a_small_file_cannot_ask_for_much_memory(tmp_path: Path) -> None:
    """All that the limits allow in one file of 3 KB: 2^20 pieces, and as many waits as that leaves."""
    file = tmp_path / "many.bin"
    file.write_bytes(made(pieces=2**17))
    script = (
        "import resource, sys\nfrom pathlib import Path\nimport numpy as np\n"
        "from antiphon.errors import AntiphonError\nfrom antiphon.runtimes.engine import build\n"
        "from antiphon.runtimes.engine.native import Engine\n"
        "engine = Engine(build.library('threads'))\nwires = engine.threads(2)\n"
        "plan = engine.program(Path(sys.argv[1]).read_bytes()).plan(0, 1)\n"
        "some, out = np.zeros(1), np.zeros(1)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    plan.run(some, out, wires[0], timeout=0.05)\nexcept AntiphonError:\n    pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, plan.needs.instances)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True)
    kilobytes, instances = map(int, done.stdout.split())
    assert instances > 2**19
    assert kilobytes < 200_000
