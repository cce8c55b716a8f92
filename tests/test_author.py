"""The language for schedules that people write: places, statements, steps, and what is told of mistakes."""

import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import antiphon
from antiphon.cli import run as command
from antiphon.core.collective import Collective, custom_relation
from antiphon.core.schedule import COPY, REDUCE
from antiphon.errors import AntiphonError, Invalid, Unsupported

ROOT = Path(__file__).resolve().parent.parent


def rows(w: antiphon.Writing) -> list[tuple[int, ...]]:
    """(step, chunk, src, dst, op) of every transfer, in the order of writing."""
    names = ("step", "chunk", "src", "dst", "op")
    return list(zip(*(w.schedule.columns()[name].tolist() for name in names), strict=True))


def full(ranks: int = 4) -> antiphon.Topology:
    return antiphon.topology(f"full:ranks={ranks}")


# ---- what a plan so made can do ----


def test_a_written_plan_is_a_plan_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with antiphon.write("allreduce", "ring:ranks=4", chunks=4) as w:
        for i in range(4):
            c = w[i, "input", i]
            for k in (1, 2, 3):
                c = c.reduce_to((i + k) % 4)
            for k in (4, 5, 6):
                c = c.copy_to((i + k) % 4)
    assert (w.plan.entries[0].claims["planner"], w.schedule.provenance["planner"]) == ("written", "written")
    antiphon.save(w.plan, "plan.json")
    assert antiphon.load("plan.json", antiphon.Plan).entries[0].schedule.same_as(w.schedule)
    assert antiphon.verify("plan.json", proof=True)
    assert antiphon.predict("plan.json", "1MB")[0]["seconds"] > 0
    assert antiphon.traces.simulate("plan.json", "1MB", trace="trace.json")[0]["seconds"] > 0
    antiphon.save({"allreduce": w.plan}, "table.json")
    assert antiphon.load("table.json", antiphon.Plan).entries[0].schedule.same_as(w.schedule)
    (told,) = antiphon.run("plan.json", "64KiB", dtype="float32")
    assert told["correct"]
    for name, nbytes in (("goal", "64KiB"), ("program", None), ("piccl-xml", "64KiB")):
        assert antiphon.export("plan.json", name, nbytes=nbytes)
    assert command(["run", "plan.json", "--nbytes", "64KiB"]) == 0
    assert command(["verify", "plan.json", "--proof"]) == 0


def test_a_program_that_is_wrong_ends_with_its_line(tmp_path: Path) -> None:
    program = tmp_path / "chain.py"
    program.write_text(
        "import antiphon\nwith antiphon.write('broadcast', 'line:ranks=3') as w:\n"
        "    w[0, 'input', 0].copy_to(1)\n    w[0, 'input', 0].copy_to(2)\n"
    )
    done = subprocess.run(
        [sys.executable, "chain.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("antiphon.errors.Invalid: chain.py:4: the schedule is wrong: step 0")
    assert "has no link or path" in done.stderr


# ---- places ----


def test_an_index_is_that_of_the_first_place_of_every_rank() -> None:
    with antiphon.write("allreduce", full(3), chunks=4) as w:
        there = w[[0, 1], "input", 1:3].reduce_to(2, "tmp", 5)
        assert [place.index for place in there.places] == [5, 6]
        w[2, "tmp", 5:7].reduce_to(2, "output", 1).copy_to([0, 1])
        w[[0, 1], "input", [0, 3]].reduce_to(2).copy_to([0, 1])
    assert antiphon.run(w.plan, "60KB")[0]["correct"]


def test_any_relation_has_places() -> None:
    """Block 0 is summed from ranks 0 and 1 for rank 3, block 1 goes from rank 2 to 0 and 3."""
    relation = custom_relation([(0, 0, 0), (0, 1, 1), (1, 2, 0)], [(0, 3, None), (1, 3, None), (1, 0, None)], 4)
    with antiphon.write(Collective("custom", 4, custom=relation), full(), chunks=2) as w:
        w[[0, 1], "input"].reduce_to(3, "output", 0)
        w[2, "input"].copy_to(3, "output", 2)
        w[3, "output", 2:].copy_to(0)
    assert antiphon.run(w.plan, "60KB")[0]["correct"]
    with antiphon.write(Collective("allgather", 3, weights=np.array([1, 0, 5])), full(3), chunks=3) as w:
        for rank in range(3):
            w[rank, "input"].copy_to([other for other in range(3) if other != rank])
    assert antiphon.run(w.plan, "60KB")[0]["correct"]
    with antiphon.write(Collective("broadcast", 3, roots=(2, 1)), full(3)) as w:
        w[2, "input", 0].copy_to([0, 1], "output", 0)
        w[1, "input", 0].copy_to([0, 2], "output", 1)
    assert antiphon.run(w.plan, "60KB")[0]["correct"]


def test_input_and_output_are_one_place_where_both_have_the_chunk() -> None:
    with antiphon.write("allreduce", full(2)) as w:
        w[0, "input", 0].copy_to(0, "output", 0)
        w[0, "input", 0].reduce_to(1)
        w[1, "output", 0].copy_to(0)
    assert rows(w) == [(0, 0, 0, 1, REDUCE), (1, 0, 1, 0, COPY)]


def test_scratch_is_a_slot_of_its_own_or_a_relay() -> None:
    with antiphon.write("allreduce", full(3)) as w:
        w[1, "input", 0].copy_to(0, "from 1")
        w[2, "input", 0].copy_to(0, "from 2", 7)
        w[0, "from 1", 0].reduce_to(0)
        w[0, "from 2", 7].reduce_to(0).copy_to([1, 2])
    assert w.schedule.slot("dst").tolist() == [1, 2, 0, 0, 0, 0]
    assert w.schedule.slot("src").tolist() == [0, 0, 1, 2, 0, 0]
    assert w.schedule.step.tolist() == [0, 0, 1, 1, 2, 2]
    assert antiphon.run(w.plan, "60KB")[0]["correct"]
    with antiphon.write("scatter", antiphon.topology("line:ranks=3")) as w:
        w[0, "input", 1].copy_to(1)
        passing = w[0, "input", 2].copy_to(1)
        assert repr(passing) == "w[1, 'scratch', 2]"
        passing.copy_to(2)
    assert w.schedule.src_slot is None  # what only passes needs no slot beside
    assert w.schedule.dst_slot is None


def test_routes_are_chosen_or_named() -> None:
    machine = antiphon.topology("cluster:box=ring:ranks=4,boxes=2,fabric=rail,spines=2")
    with antiphon.write("broadcast", machine, ranks=[0, 6]) as w:
        w[0, "input", 0].copy_to(6)
    assert w.schedule.route is not None
    chosen = w.schedule.routes[int(w.schedule.route[0])]
    with antiphon.write("broadcast", machine, ranks=[0, 6]) as w:
        w[0, "input", 0].copy_to(6, via=chosen)
    assert w.schedule.route is not None
    assert w.schedule.routes[int(w.schedule.route[0])] == chosen
    broken = pytest.raises(Invalid, match=r"test_author\.py:\d+: the schedule is wrong: step 0, .* route 0, ")
    with broken, antiphon.write("broadcast", machine, ranks=[0, 6]) as w:
        w[0, "input", 0].copy_to(6, via=chosen[:1])


# ---- steps ----


def test_steps_follow_from_data() -> None:
    with antiphon.write("allreduce", full(), verify=False) as w:
        w[1, "input", 0].reduce_to(0)  # 0
        w[0, "output", 0].copy_to(2)  # 1: what it reads came in step 0
        w[3, "input", 0].reduce_to(0)  # 1: what it changes is read in step 1, at its beginning
        w[3, "input", 0].copy_to(1)  # 0: read in step 0, replaced in step 0
        w[2, "output", 0].reduce_to(3)  # 2
        w[1, "output", 0].copy_to(3)  # 3: replaces what came in step 2
        w[1, "output", 0].reduce_to(2)  # 2: into what was read in step 2
    assert w.schedule.step.tolist() == [0, 1, 1, 0, 2, 3, 2]


def test_what_is_replaced_was_read_by_all() -> None:
    with antiphon.write("allreduce", full(5), verify=False) as w:
        w[1, "input", 0].copy_to(2).copy_to(3)  # 0, 1
        w[0, "input", 0].reduce_to(3)  # 2: replaced in step 1
        w[0, "input", 0].copy_to(4)  # 0
        w[1, "input", 0].copy_to(0)  # 2: read last in step 2, though the last that reads it is in step 0
    assert w.schedule.step.tolist() == [0, 1, 2, 0, 2]


def test_steps_can_be_said() -> None:
    with antiphon.write("allgather", full(), verify=False) as w:
        w[0, "input", 0].copy_to(1)
        with w.step():
            w[2, "input", 0].copy_to(3)
            w[3, "input", 0].copy_to(2)
        w[1, "input", 0].copy_to(0)
        w.step()
        w[0, "output", 0].copy_to(2)
        w[0, "output", 1].copy_to(2)
        w.step()
        w.step()  # one in which nothing happens is none
        w[2, "output", 0].copy_to(3)
    assert w.schedule.step.tolist() == [0, 1, 1, 2, 3, 3, 4]


# ---- mistakes ----


def _late(w: antiphon.Writing) -> None:
    c = w[0, "input", 0].copy_to(1, "tmp", 0)
    w[0, "input", 1].copy_to(1, "tmp", 0)
    c.copy_to(2)


def _fresh(w: antiphon.Writing) -> None:
    with w.together():
        c = w[0, "input", 0].copy_to(1)
        c.copy_to(2)


def _twice(w: antiphon.Writing) -> None:
    with w.together():
        w[0, "input", 0].copy_to(2)
        w[1, "input", 0].copy_to(2)


def _two_data(w: antiphon.Writing) -> None:
    with w.step():
        w[0, "input", 0].reduce_to(2, "tmp", 0)
        w[1, "input", 1].reduce_to(2, "tmp", 0)


def _copied_and_added(w: antiphon.Writing) -> None:
    with w.step():
        w[0, "input", 0].reduce_to(2)
        w[1, "input", 0].copy_to(2)


def _within(w: antiphon.Writing) -> None:
    with w.step():
        w.step()


def _together_within(w: antiphon.Writing) -> None:
    with w.step(), w.together():
        pass


def _joint_within(w: antiphon.Writing) -> None:
    with w.joint(), w.joint():
        pass


def _forgotten_with(w: antiphon.Writing) -> None:
    w.together()
    w[0, "input", 0].copy_to(1)


MISTAKES: list[tuple[Callable[[Any], object], str, int]] = [
    (lambda w: w[0, "input", 2], "index of rank 0's input: expected a whole number from 0 to 1, got 2", 0),
    (lambda w: w[0, "input", -1], "from 0 to 1, got -1", 0),
    (lambda w: w[0, "input", 0:3], "from 0 to 2, got 3", 0),
    (lambda w: w[0, "input", 1:0], "ascending order, such as 0:4, got slice", 0),
    (lambda w: w[0, "input", "0"], "got '0'", 0),
    (lambda w: w[0, "input", True], "got True", 0),
    (lambda w: w[4, "input", 0], "rank: expected a whole number from 0 to 3, got 4", 0),
    (lambda w: w[0.5, "input", 0], "rank: expected", 0),
    (lambda w: w["01", "input", 0], "got '01'", 0),
    (lambda w: w[itertools.count(), "input", 0], "more than 4194304 numbers in one argument", 0),
    (lambda w: w[0], r"expected w\[rank, buffer\]", 0),
    (lambda w: w[0, 1, 2, 3], r"expected w\[rank, buffer\]", 0),
    (lambda w: w[0, 1, 2], "buffer: expected", 0),
    (lambda w: w[0, "tmp", 0], r"nothing has been put into w\[0, 'tmp', 0\] yet", 0),
    (lambda w: w[0, "tmp", 5 : 2**31 - 1], r"nothing has been put into w\[0, 'tmp', 5\] yet", 0),
    (lambda w: w[0, "tmp"], "scratch is as large as you make it", 0),
    (lambda w: w[0, "input", 0].copy_to(4), "rank: expected", 0),
    (lambda w: w[0, "input", 0].copy_to(1, "output", 1), r"w\[1, 'output', 1\] is not for the data of", 0),
    (lambda w: w[0, "input", 0].reduce_to(1, "input", 1), r"its place there is w\[1, 'input', 0\]", 0),
    (lambda w: w[0, "input", 0].copy_to(1, None, 0), "an index needs its buffer", 0),
    (lambda w: w[0, "input", 0].copy_to(1, ""), "buffer: expected", 0),
    (lambda w: w[0, "input", 0].copy_to(1, via="3"), "via: expected the numbers of links", 0),
    (lambda w: w[0, "input", 0].copy_to(1, via=[99]), "via: expected a whole number from 0 to", 0),
    (lambda w: w[0, "input", 0].reduce_to(0), "one place, which cannot be added to itself", 0),
    (lambda w: w[[0, 1], "input", 0].copy_to(2), "several places are copied to one", 0),
    (lambda w: (w[0, "input", 0].copy_to(1, "t", 0), w[0, "input", 1].reduce_to(1, "t", 0)), "another chunk than", 0),
    (_late, r"w\[1, 'tmp', 0\] holds another chunk by now", 3),
    (_fresh, "arrives in this very step", 3),
    (_twice, r"test_author\.py:\d+.* writes w\[2, 'output', 0\] in this step, too", 3),
    (_two_data, r"writes w\[2, 'tmp', 0\] in this step, too", 3),
    (_copied_and_added, "in this step, too", 3),
    (_within, "a step within a step", 2),
    (_together_within, "together already", 1),
    (_joint_within, "a joint within a joint", 1),
    (_forgotten_with, "are for `with`", 1),
]


@pytest.mark.parametrize(("mistake", "told", "line"), MISTAKES)
def test_a_mistake_is_told_at_its_line(mistake: Callable[[Any], object], told: str, line: int) -> None:
    first = mistake.__code__.co_firstlineno
    with pytest.raises(Invalid, match=told) as caught, antiphon.write("allreduce", full(), chunks=2) as w:
        mistake(w)
    assert re.match(rf"\S*test_author\.py:{first + line} \(called at \S*test_author\.py:\d+\): ", str(caught.value))
    assert "\n" not in str(caught.value)


def test_a_place_that_a_rank_does_not_have() -> None:
    with antiphon.write("scatter", full(3), verify=False) as w:
        with pytest.raises(Invalid, match="rank 1 has no place for it there; use scratch"):
            w[0, "input", 2].copy_to(1, "output")
        with pytest.raises(Invalid, match="index of rank 1's input: expected a whole number but there is none, got 0"):
            w[1, "input", 0]


def outcome(kind: str, body: Callable[[Any], object], **options: Any) -> str:
    """What is said of a block when it ends."""
    with pytest.raises(Invalid) as caught, antiphon.write(kind, full(3), **options) as w:
        body(w)
    return re.sub(r"\S*test_author\.py:", "", str(caught.value))


def test_what_verification_finds_is_told_with_lines() -> None:
    def empty(w: antiphon.Writing) -> None:
        w[1, "output", 0].copy_to(2)

    def lacking(w: antiphon.Writing) -> None:
        w[0, "input", 0].reduce_to(1).copy_to([0, 2])

    def double(w: antiphon.Writing) -> None:
        w[1, "input", 0].reduce_to(0)
        w[2, "input", 0].reduce_to(0).copy_to([1, 2])
        w[1, "output", 0].reduce_to(0)

    def second(w: antiphon.Writing) -> None:
        w[[1, 2], "input", 0].reduce_to(0).copy_to([1, 2])
        w[1, "input", 1].reduce_to(0).copy_to([1, 2])

    def once(w: antiphon.Writing) -> None:
        w[[1, 2, 1], "input", 0].reduce_to([0, 0])

    def nothing(w: antiphon.Writing) -> None:
        w[0, "input", 0].copy_to(1)

    at = {one.__name__: one.__code__.co_firstlineno + 1 for one in (empty, lacking, double, second, once, nothing)}
    said = outcome("broadcast", empty)
    assert said.startswith(f"{at['empty']} (called at")
    assert "reads a cell that holds nothing yet; it is w[1, 'output', 0] to w[2, 'output', 0]" in said
    said = outcome("allreduce", lacking)
    assert said.startswith(f"{at['lacking']} (called at")
    assert "rank 0 ends without the contribution of rank 2; here w[0, 'output', 0] is written for the last time" in said
    said = outcome("allreduce", double)
    assert re.match(
        rf"{at['double'] + 2} \(called at \d+\): .* rank 0 ends with the contribution of rank 0, 1, 2 more", said
    )
    said = outcome("allreduce", second, chunks=2)
    assert re.match(rf"{at['second'] + 1} \(called at \d+\): .* rank 0 .*; here w\[0, 'output', 1\] is", said)
    said = outcome("reduce", once)
    assert re.match(rf"{at['once']} \(called at \d+\): the schedule is wrong: ", said)  # one line, though four rows
    said = outcome("broadcast", nothing)
    assert re.match(r"\d+: the schedule is wrong: chunk 0: rank 2 ends without", said)
    assert said.endswith("nothing in the block writes w[2, 'output', 0]")


def test_the_block_has_a_beginning_and_an_end() -> None:
    w = antiphon.write("broadcast", full(2))
    with pytest.raises(Invalid, match="has not begun; write `with"):
        w[0, "input", 0]
    with w:
        c = w[0, "input", 0].copy_to(1)
        with pytest.raises(Invalid, match=r"w\.plan is not there: the block has not ended yet"):
            w.plan  # noqa: B018
    with pytest.raises(Invalid, match="has ended"):
        c.copy_to(0)
    with pytest.raises(Invalid, match="is written already"), w:
        pass
    with pytest.raises(ZeroDivisionError), antiphon.write("broadcast", full(2)) as w:
        _ = 1 / 0
    with pytest.raises(Invalid, match=r"w\.schedule is not there: no block"):
        w.schedule  # noqa: B018
    with pytest.raises(Invalid, match="are for `with`"), antiphon.write("broadcast", full(2)) as w:
        w.together()


def test_what_is_caught_leaves_nothing_behind() -> None:
    """A block goes on after a mistake that the user catches as if the statement were not there."""
    with antiphon.write("allreduce", full(3), ranks=[0, 1]) as w:
        with pytest.raises(AntiphonError):
            _copied_and_added(w)
        with w.together():
            w[0, "input", 0].reduce_to(1)
            w[1, "input", 0].reduce_to(0)
    assert len(w.lines) == w.schedule.transfers == 2


def test_too_many_chunks_are_refused() -> None:
    with pytest.raises(Unsupported, match="chunks: 3 blocks in 33554432 parts"):
        antiphon.write("allgather", full(3), chunks=2**25)
