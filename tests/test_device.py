"""The kernel of GPUs, on threads: tables hold at every size, damaged ones are refused, calls follow each other."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_cases import TYPES, idle, schedule_of
from device_model import PUT
from quick import crossed, in_turn

import antiphon
from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.interpret import analyse
from antiphon.core.interpret import run as interpret
from antiphon.core.interpret.buffers import sides
from antiphon.core.program.kinds import OUTPUT
from antiphon.core.schedule import Schedule
from antiphon.core.transform import unjoined
from antiphon.errors import Invalid, Missing, TimedOut, Unsupported
from antiphon.formats.device.statements import statements
from antiphon.lower.device.table import Table, tables, tables_of
from antiphon.lower.lowering import lower
from antiphon.runtimes.device.call_choices import CallChoice, list_choices
from antiphon.runtimes.device.functions import threads
from antiphon.runtimes.device.group import CALLS, WAYS, Group
from antiphon.runtimes.engine.build import DEVICE
from antiphon.runtimes.measure.device import Cuda, Threads

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
NVCC, HIPCC = shutil.which("nvcc"), shutil.which("hipcc")
CASES = [
    ("allreduce", "ring:ranks=3", "ring"), ("allreduce", "dgx1v", "trees"), ("allreduce", "full:ranks=8", "recmult"),
    ("allgather", "full:ranks=5", "bruck"), ("alltoall", "full:ranks=4", "pairwise"),
    ("reduce", "full:ranks=6", "binomial-tree"),
    ("reducescatter", "full:ranks=4", "halving-doubling"), ("broadcast", "full:ranks=7", "double-binary-tree"),
    ("scatter", "full:ranks=4", "binomial-tree"), ("gather", "full:ranks=4", "binomial-tree"),
    ("allreduce", "hgx-h100", "nvls"), ("allreduce", "full:ranks=2", "direct"),
]  # fmt: skip
Arrays = list[np.ndarray[Any, Any]]


def arrays(schedule: Schedule, unit: int, dtype: str, in_place: bool, seed: int = 1) -> tuple[Arrays, Arrays]:
    random = np.random.default_rng(seed)
    first, last = sides(schedule.collective, in_place)
    make = lambda count: random.integers(1, 5, int(count) * unit).astype(data_type(dtype))  # noqa: E731
    inputs = [make(count) for count in first.size]
    return inputs, [np.zeros(int(count) * unit, data_type(dtype)) for count in last.size]


def run(group: Group, made: Sequence[Table], schedule: Schedule, unit: int, in_place: bool = False, **how: Any) -> None:
    """One call, held against the interpreter, bit for bit."""
    dtype, op = how.pop("dtype", "float32"), how.pop("op", "sum")
    inputs, outputs = arrays(schedule, unit, dtype, in_place)
    given = [one.copy() for one in inputs]
    expected = interpret(analyse(unjoined(schedule)), given, op=op, dtype=data_type(dtype), in_place=in_place)
    if in_place:
        outputs = [one.copy() for one in inputs]
    group.run(group.plan(made), unit, None if in_place else inputs, outputs, op, timeout=20, **how)
    for mine, right in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(mine, right)


@pytest.mark.parametrize(("kind", "machine", "planner", "in_place"), crossed(CASES, [False, True], 6))
def test_one_table_is_right_at_every_size(kind: str, machine: str, planner: str, in_place: bool) -> None:
    schedule = schedule_of(machine, planner, kind)
    made = tables(schedule, in_place=in_place, streams=4)
    with Group(threads(), schedule.collective.ranks, blocks=8) as group:
        for unit, dtype in ((0, "int8"), (1, "float64"), (7, "bfloat16"), (1001, "float32"), (4096, "float16")):
            run(group, made, schedule, unit, in_place, dtype=dtype)
            if all(one.sliced for one in made):
                run(group, made, schedule, unit, in_place, dtype=dtype, lanes=2, rounds=3)
            for way in WAYS[1:]:
                run(group, made, schedule, unit, in_place, dtype=dtype, lanes=3, way=way)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_threads_of_a_block_share_out_words_of_16_bytes(dtype: str) -> None:
    """Nothing at all, a word less or more than all threads take at once, and ends before and after the words."""
    schedule, width = schedule_of("full:ranks=3", "direct", "allreduce"), data_type(dtype).itemsize
    word, at_once = 16 // width, (2 if width == 1 else 4) * 3
    with Group(threads(), 3, blocks=4, threads=3) as group:
        table = tables(schedule, streams=1)
        for words in (0, 1, 2, 3 * at_once - 1, 3 * at_once, 6 * at_once + 1):
            for odd in (0, 1, word - 1):
                run(group, table, schedule, words * word + odd, dtype=dtype, lanes=1 + words % 2)


@pytest.mark.parametrize("op", in_turn(["prod", "max", "min", "avg"]))
def test_what_is_combined(op: str) -> None:
    schedule = schedule_of("ring:ranks=4", "ring", "allreduce")
    with Group(threads(), 4, blocks=8, threads=2) as group:
        for dtype in set(TYPES) - {"float32"}:
            run(group, tables(schedule), schedule, 301, dtype=dtype, op=op, lanes=2)


@pytest.mark.slow
def test_average_is_divided_once_by_whoever_wrote_it() -> None:
    """In several streams, and in slices."""
    for planner in ("trees", "multi-ring"):
        schedule = schedule_of("dgx1v", planner, "allreduce")
        made = tables(schedule, streams=4)
        assert made[0].streams > 1
        with Group(threads(), 8, blocks=8) as group:
            run(group, made, schedule, 1003, op="avg", dtype="int32", lanes=2, rounds=2)


@pytest.mark.parametrize("packets", [False, True])
def test_uneven_blocks_and_sub_groups(packets: bool) -> None:
    """Some blocks are empty; and somebody hears nothing of others."""
    machine = antiphon.topology("full:ranks=5")
    uneven = Collective("allgather", 5, weights=np.array([3, 0, 7, 1, 2]))
    for what, ranks in ((uneven, None), ("allreduce", [4, 1, 2])):
        schedule = antiphon.plan(what, machine, planner="direct", ranks=ranks).at(0).schedule
        made = tables(schedule, packets=packets)
        with Group(threads(), 5, blocks=4) as group:
            for unit in (1, 5, 64):
                run(group, made, schedule, unit)


def test_calls_follow_each_other_beyond_their_last_number() -> None:
    some = [schedule_of("ring:ranks=4", "ring", "allreduce"), schedule_of("full:ranks=4", "pairwise", "alltoall")]
    made = [tables(one, streams=2) for one in some]
    with Group(threads(), 4, blocks=4, call=CALLS - 3) as group:
        for number in range(8):
            run(group, made[number % 2], some[number % 2], 50 + number, lanes=2)
        assert group.number % CALLS == 5


def puts(made: Table) -> int:
    """How many runs of memory it sends."""
    return sum(form[0] == "copy" and values[0] != values[3] for form, values in statements(made).streams[0])


@pytest.mark.parametrize(("ranks", "k", "in_place"), crossed(in_turn([(9, 3), (8, 2), (12, 4), (7, 2)]), [False, True]))
def test_blocks_that_arrive_in_another_order_are_permuted_in_place(ranks: int, k: int, in_place: bool) -> None:
    schedule = (
        antiphon.plan("allgather", f"full:ranks={ranks}", planner="permrecmult", options={"k": k}).at(2**20).schedule
    )
    made = tables(schedule, in_place=in_place, arrival=True)
    plainly = tables(schedule, in_place=in_place, streams=1)
    assert all(puts(one) <= puts(other) for one, other in zip(made, plainly, strict=True))
    if ranks == 9:
        assert [puts(one) for one in made] == [4] * 9  # two partners in each of two rounds
        assert all(puts(one) > 4 for one in plainly)
    with Group(threads(), ranks, blocks=2, threads=3) as group:
        for unit in (0, 1, 7, 1000):
            run(group, made, schedule, unit, in_place)
            run(group, made, schedule, unit, in_place, lanes=2, rounds=3)
            for way in WAYS[1:]:
                run(group, made, schedule, unit, in_place, lanes=2, way=way)


def test_what_has_no_order_of_arrival() -> None:
    uneven = Collective("allgather", 4, weights=np.array([3, 1, 1, 2]))
    for what, planner in (("allgather", "ring"), ("allreduce", "permrecmult"), (uneven, "permrecmult")):
        schedule = antiphon.plan(what, "full:ranks=4", planner=planner).at(0).schedule
        with pytest.raises(Unsupported, match=r"no order of arrival|several lengths"):
            tables(schedule, arrival=True)


@pytest.mark.parametrize("packets", [False, True])
def test_a_rank_that_does_nothing_is_noticed_and_the_next_call_is_right(packets: bool) -> None:
    schedule = schedule_of("ring:ranks=4", "ring", "allreduce")
    made = tables(schedule, streams=2, packets=packets)
    with Group(threads(), 4, blocks=4) as group:
        inputs, outputs = arrays(schedule, 100, "float32", False)
        with pytest.raises(TimedOut, match=r"ranks \[.*time was up"):
            group.run(group.plan([*made[:3], idle(made[3])]), 100, inputs, outputs, timeout=0.3)
        run(group, made, schedule, 100)


def test_buffers_are_held_against_the_table() -> None:
    schedule = schedule_of("ring:ranks=4", "ring", "allreduce")
    made = tables(schedule, streams=2)
    with Group(threads(), 4, blocks=4) as group:
        inputs, outputs = arrays(schedule, 100, "float32", False)
        outputs[2] = outputs[2][:99]
        with pytest.raises(Invalid, match=r"rank \d: a buffer is too short"):
            group.run(group.plan(made), 100, inputs, outputs)
        plan = group.plan(made)
        for short in (False, True, False):  # a call like the one before is not held against the table anew
            inputs, outputs = arrays(schedule, 100, "float32", False)
            if short:
                inputs[1] = inputs[1][:99]
                with pytest.raises(Invalid, match=r"rank \d: a buffer is too short"):
                    group.run(plan, 100, inputs, outputs)
            else:
                group.run(plan, 100, inputs, outputs, timeout=20)
        with pytest.raises(Invalid, match="need more blocks than the rank has"):
            group.run(group.plan(made), 100, *arrays(schedule, 100, "float32", False), lanes=3)
        with pytest.raises(Unsupported, match="from 1 to 4096 threads"):
            Group(threads(), 4, blocks=2**20)


def test_what_is_of_another_group_or_of_another_shape_is_refused() -> None:
    schedule = schedule_of("ring:ranks=3", "ring", "allreduce")
    made, kind = tables(schedule), np.dtype(np.int32)
    where, lengths = np.zeros((3, 3), np.uintp), np.zeros((3, 3), np.int64)
    with Group(threads(), 3) as group, Group(threads(), 3) as other, Group(threads(), 4) as larger:
        plan = group.plan(made)
        for call in (other.go, other.go_by_host, other.capture):
            with pytest.raises(Invalid, match="one of another group"):
                call(plan, 0, where, lengths, kind)
        with pytest.raises(Invalid, match="tables of 3 ranks, for 4"):
            larger.plan(made)
        for places, counts in ((where[:2], lengths), (where, lengths.astype(np.int32)), (where, lengths.T)):
            with pytest.raises(Invalid, match="3 ranks have 3 places and 3 lengths each"):
                group.go(plan, 0, places, counts, kind)
        with pytest.raises(Invalid, match="no such number of elements"):
            group.go(plan, -1, where, lengths, kind)
        turned = group.plan([made[1], made[2], made[0]])
        with pytest.raises(Invalid, match="that of another rank"):
            group.go(turned, 0, where, lengths, kind)
        run(group, made, schedule, 7)


def test_by_steps_whatever_waits_is_told_before() -> None:
    """In streams, with ranks that go on as far as they can; and a signal that nobody gives is noticed at once."""
    for way in WAYS[1:]:
        schedule = schedule_of("dgx1v", "multi-ring", "allreduce")
        made = tables(schedule, streams=4)
        with Group(threads(), 8, blocks=4) as group:
            for unit in (1000, 7, 5000):
                run(group, made, schedule, unit, op="avg", dtype="int32", way=way)
            run(group, made, schedule, 500)  # the kernel knows nothing of it
            inputs, outputs = arrays(schedule, 100, "float32", False)
            with pytest.raises(Invalid, match="waits for a signal that nobody gives"):
                group.run(group.plan([*made[:7], idle(made[7])]), 100, inputs, outputs, way=way)
            run(group, made, schedule, 100, way=way)


def test_scratch_that_is_used_again_is_never_sliced() -> None:
    """Slices of other data would lie elsewhere in it, and run over each other."""
    schedule = schedule_of("full:ranks=8", "halving-doubling", "reducescatter")
    program = lower(schedule, lag=0)
    made = tables_of(program)
    assert not all(one.sliced for one in made)
    with Group(threads(), 8, blocks=8) as group:
        run(group, made, schedule, 100)
        run(group, made, schedule, 10000, lanes=4, way="steps")  # where every step is done before the next begins
        with pytest.raises(Unsupported, match="one lane and one round"):
            run(group, made, schedule, 100, lanes=2)


@pytest.mark.parametrize("packets", [False, True])
def test_a_damaged_table_is_refused_or_stays_within_its_buffers(packets: bool) -> None:
    schedule = schedule_of("ring:ranks=3", "ring", "allreduce")
    made, random, refused = tables(schedule, streams=2, packets=packets), np.random.default_rng(5), 0
    with Group(threads(), 3, blocks=2) as group:
        for trial in range(150):
            words = made[0].words.copy()
            at = int(random.integers(2, 17) if trial % 3 == 0 else random.integers(len(words)))
            words[at] = int(random.choice([-1, 0, 1, 2, 3, 7, 2**31, 2**62, 2**63 - 1, -(2**63), int(words[at]) + 1]))
            inputs, outputs = arrays(schedule, 64, "float32", False)
            try:
                plan = group.plan([made[0]._replace(words=words), *made[1:]])
                group.run(plan, 64, inputs, outputs, timeout=0.02)
            except (Invalid, TimedOut, Unsupported):
                refused += 1
        assert refused > 40
        with pytest.raises(Invalid, match="its length is not what its head says"):
            group.plan([made[0]._replace(words=made[0].words[:-1]), *made[1:]])
        run(group, made, schedule, 64)


def test_what_is_put_has_the_length_of_its_place() -> None:
    """Else more would be read than was held against the buffers."""
    made = tables(schedule_of("ring:ranks=3", "ring", "allreduce"), streams=1)
    words = made[0].words.tolist()
    steps, arguments = words[12:14]
    first = len(words) - 5 * arguments
    kinds = {words[at]: words[at + 1] for at in range(first - 4 * steps, first, 4)}
    with Group(threads(), 3) as group:
        for place in (0, 1):  # from, to
            changed = made[0].words.copy()
            changed[first + 5 * (kinds[PUT] + place) + 4] += 1
            with pytest.raises(Invalid, match="a place is put to one of another length"):
                group.plan([made[0]._replace(words=changed), *made[1:]])


def test_the_runtime_threads_tells_rows_like_all_others() -> None:
    plan = antiphon.plan("allreduce", "ring:ranks=4", planner="ring")
    (row,) = antiphon.run(plan, "12KB", on="threads", dtype="float16", op="max")
    assert (row["correct"], row["agree"], row["on"]) == (True, True, "threads")
    assert row["reference_seconds"] > 0


def test_how_a_call_is_made_is_tried_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is about as fast as the best the fewest blocks; trying leaves nothing behind in the data of the case."""
    tried: list[CallChoice] = []

    def slowly(call: Callable[[CallChoice], None], some: Iterator[CallChoice]) -> list[tuple[CallChoice, float]]:
        for one in some:
            call(one)
            tried.append(one)
        return [(one, {"kernel": 2.0, "steps": 1.0}.get(one.way, 3.0) / min(one.lanes, 2)) for one in tried]

    made: list[str] = []
    by_host = Group.go_by_host
    monkeypatch.setattr(
        Threads,
        "choices",
        lambda self, plans, blocks, nbytes: list_choices(plans["plain"].streams, blocks, True, nbytes),
    )
    monkeypatch.setattr(sys.modules[Threads.__module__], "time_choices", slowly)

    def noted(*given: Any, **how: Any) -> Any:
        made.append(f"{how['way']} {how['lanes']}")
        return by_host(*given, **how)

    monkeypatch.setattr(Group, "go_by_host", noted)
    plan = antiphon.plan("allreduce", "ring:ranks=2", planner="ring")
    (row,) = antiphon.run(plan, "12KB", on="threads", in_place=True)
    assert (row["correct"], row["agree"]) == (True, True)
    assert {one.way for one in tried} == set(WAYS) - {"staged"}
    assert made[-1] == "steps 2"
    assert row["choice"] == {"way": "steps", "lanes": 2, "rounds": 1, "tables": "plain"}
    lanes, seconds = ([one[key] for one in row["frontier"]] for key in ("lanes", "seconds"))
    assert lanes == sorted(set(lanes))
    assert seconds == sorted(set(seconds), reverse=True)


def test_without_a_driver_it_is_said_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cuda, "driver", "libnosuchdriver.so")
    with pytest.raises(Missing, match="--on threads runs the same kernel"):
        antiphon.run(antiphon.plan("allreduce", "ring:ranks=4", planner="ring"), "12KB", on="cuda")


def compiles(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        [*command, "-std=c++17", "-DTYPES_COMPILED=64", "-o", str(folder / "out"), str(DEVICE / "cuda.cu")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "warning" not in done.stderr


@pytest.mark.slow  # test_device_cuda.py compiles it so, too
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_nvcc_takes_it_without_a_word(tmp_path: Path) -> None:
    compiles([str(NVCC), "-arch=sm_90", "-Xcicc", "-O0", "-ptx", "-Xcompiler", "-Wall,-Wextra"], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", [75, 80, 90, 100])
def test_nvcc_compiles_it_without_a_word(arch: int, tmp_path: Path) -> None:
    compiles([str(NVCC), f"-arch=sm_{arch}", "-O3", "-c", "-Xcompiler", "-Wall,-Wextra"], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(HIPCC is None, reason="needs hipcc")
@pytest.mark.parametrize("arch", ["gfx906", "gfx90a"])
def test_hipcc_compiles_it_without_a_word(arch: str, tmp_path: Path) -> None:
    compiles([str(HIPCC), "-x", "hip", f"--offload-arch={arch}", "-O3", "-c", "-Wall", "-Wextra"], tmp_path)


class Talk:
    """What several groups of one process tell each other, each on a thread of its own."""

    def __init__(self, groups: int) -> None:
        self.met, self.told = threading.Barrier(groups), dict[int, bytes]()

    def tell(self, group: int) -> Callable[[bytes], list[bytes]]:
        def all_told(data: bytes) -> list[bytes]:
            self.told[group] = data
            self.met.wait(20)
            found = list(self.told.values())
            self.met.wait(20)
            return found

        return all_told


@pytest.mark.slow
def test_ranks_elsewhere_that_do_not_call_are_noticed() -> None:
    """By the kernel and by steps; the next call is right again, whichever way it is made."""
    schedule, talk = schedule_of("ring:ranks=4", "ring", "allreduce"), Talk(2)
    made, kind = tables(schedule, streams=2), np.dtype(np.int32)
    right = np.full(64, 10, kind)

    def do(number: int, mine: list[int]) -> list[Any]:
        said = list[Any]()
        with Group(threads(), 4, 4, own_ranks=mine, tell=talk.tell(number)) as group:
            plan = group.plan(made)
            lengths = np.array([[64, 64, plan.scratch(mine[0], 64)]] * 4, np.int64)
            filled = [{r: np.full(lengths[r, place], (r + 1) * (1 - place), kind) for r in mine} for place in range(3)]
            where = np.array([group.everywhere(one) for one in filled], np.uintp).T.copy()
            for way in WAYS:
                how = {"timeout": 0.2 if number else 20.0}
                for called in (number, True):  # at first only the second group calls
                    talk.met.wait(20)
                    try:
                        if called and way == "kernel":
                            group.go(plan, 64, where, lengths, kind, **how)
                        elif called:
                            group.go_by_host(plan, 64, where, lengths, kind, way=way, **how)
                        else:
                            group.number += 1
                    except TimedOut:
                        said.append(way)
                    how = {"timeout": 20.0}
                    talk.met.wait(20)
                for rank in mine:
                    got = np.zeros(64, kind)
                    group.fetch(rank, int(where[rank, OUTPUT]), got)
                    said.append(np.array_equal(got, right))
        return said

    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(do, number, mine) for number, mine in enumerate(([0], [1, 2, 3])))
        assert first.result() == [True] * len(WAYS)
        assert second.result() == [said for way in WAYS for said in (way, True, True, True)]
