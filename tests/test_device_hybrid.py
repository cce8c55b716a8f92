"""Two plans share a call: the split follows from the first calls, with speeds made up; on threads results are right."""

import shutil
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import antiphon
from antiphon.core.program.kinds import INPUT, OUTPUT
from antiphon.core.routes import resolve
from antiphon.errors import Invalid, Unsupported
from antiphon.lower.device.table import tables
from antiphon.runtimes.device.functions import threads
from antiphon.runtimes.device.group import Group
from antiphon.runtimes.device.hybrid import TRIES, Hybrid, Work, idle_links, slow_plan, work_of
from antiphon.runtimes.measure.device import Threads

FIRST = 4 * TRIES


class RandomData:
    """Links that take so long: seconds until they begin, elements a second. What is asked for side by side takes as
    long as the longest."""

    def __init__(self, fast: tuple[float, float], slow: tuple[float, float], count: int) -> None:
        self.spent, self.done, self.both = {"fast": 0.0, "slow": 0.0}, list[tuple[int, int]](), 1.0
        self.made = Hybrid(self.work("fast", *fast), self.work("slow", *slow), count, self.timer)

    def work(self, name: str, waiting: float, rate: float) -> Work:
        def work(first: int, count: int) -> None:
            self.spent[name] += waiting + count / rate
            self.done.append((first, count))

        return work

    def timer(self, work: Callable[[], None]) -> float:
        self.spent = dict.fromkeys(self.spent, 0.0)
        work()
        times = [one for one in self.spent.values() if one]
        return max(times) * (self.both if len(times) == 2 else 1.0)

    def calls(self, many: int, count: int) -> None:
        """Every call does each element once."""
        for _ in range(many):
            self.done.clear()
            self.made.call()
            assert sorted(self.done)[0][0] == 0
            ends = [first + size for first, size in sorted(self.done)]
            assert [first for first, _ in sorted(self.done)[1:]] == ends[:-1]
            assert ends[-1] == count


@pytest.mark.parametrize(
    ("slow", "share"),
    [
        ((0.0, 1e6), 1.0 / 11),  # Equation 8 without a wait
        ((0.02, 1e6), (1.0 - 0.02 * 1e7 / 1e6) / 11),  # what the slow one begins later it has less
        ((0.2, 1e6), 0.0),  # as fast as everything by the fast one: it is left out
        ((0.0, 1e7), 0.5),
    ],
)
def test_both_are_through_at_once(slow: tuple[float, float], share: float) -> None:
    count, made = 10**6, RandomData((0.001, 1e7), (slow[0] + 0.001, slow[1]), 10**6)
    made.calls(FIRST + TRIES + 2, count)
    assert made.made.settled
    assert made.made.share == pytest.approx(share * count, abs=17)
    assert made.made.share % 16 == 0
    if share:
        made.timer(made.made.call)
        assert made.spent["fast"] == pytest.approx(made.spent["slow"], rel=1e-3)


def test_what_is_no_faster_together_is_left_alone() -> None:
    """As links may turn out to share more than was thought."""
    made = RandomData((0.0, 1e7), (0.0, 1e7), 10**6)
    made.both = 2.5
    made.calls(FIRST + TRIES + 2, 10**6)
    assert (made.made.settled, made.made.share) == (True, 0)


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_on_threads_every_call_is_right() -> None:
    """Those that are measured, and those that are shared: one plan by the kernel, the other through the host."""
    count, kind, machine = 1000, np.dtype(np.int32), antiphon.topology("full:ranks=4")
    fast, slow = (antiphon.plan("allreduce", machine, planner=name).at(2**20).schedule for name in ("ring", "direct"))
    with Group(threads(), 4, 2) as first, Group(threads(), 4, 2) as second:
        works, where = [], np.zeros((4, 3), np.uintp)
        for rank in range(4):
            where[rank, :2] = [first.memory(rank, np.zeros(count, kind)) for _ in range(2)]
        for group, schedule, way in ((first, fast, "kernel"), (second, slow, "staged")):
            plan = group.plan(tables(schedule, streams=2))
            lengths = np.array([[count, count, plan.scratch(rank, count)] for rank in range(4)], np.int64)
            own = where.copy()
            own[:, 2] = [group.memory(rank, np.zeros(int(lengths[rank, 2]), kind)) for rank in range(4)]
            works.append(work_of(group, plan, "allreduce", own, lengths, kind, way=way, timeout=20.0))
            with pytest.raises(Unsupported, match="not of alltoall"):
                work_of(group, plan, "alltoall", own, lengths, kind)
        speeds = iter([1.0] * TRIES + [0.5] * TRIES + [2.0] * TRIES + [1.0] * TRIES + [0.7] * TRIES)

        def timer(work: Callable[[], None]) -> float:
            work()
            return next(speeds)

        hybrid = Hybrid(works[0], works[1], count, timer)
        for turn in range(FIRST + TRIES + 3):
            given = [np.arange(count, dtype=kind) * (rank + 1) + turn for rank in range(4)]
            for rank in range(4):
                first.bring(rank, int(where[rank, INPUT]), given[rank])
                first.bring(rank, int(where[rank, OUTPUT]), np.zeros(count, kind))
            hybrid.call()
            for rank in range(4):
                got = np.zeros(count, kind)
                first.fetch(rank, int(where[rank, OUTPUT]), got)
                np.testing.assert_array_equal(got, sum(given))
        assert hybrid.share == 333 // 16 * 16
        hybrid.close()


@pytest.mark.slow
def test_links_that_a_plan_leaves_idle_have_one_of_their_own() -> None:
    machine = antiphon.topology("dgx1v:pcie=true")
    made = antiphon.plan("broadcast", machine, planner="blink", root=3).at(2**20).schedule
    slow = slow_plan(made, machine, 2**20)
    left = idle_links(made, machine)
    assert {left.types[number].kind for number in left.link_type.tolist()} == {"pcie", "socket"}
    assert slow.collective == made.collective
    over = resolve(left, slow.src, slow.dst, slow.route, slow.routes)
    assert not len(over.faulty_rows)
    assert not idle_links(slow, left).links
    for kind, where, planner, why in (
        ("broadcast", "dgx1v:pcie=true", "blink", "no kind of links of dgx1v.* idle"),
        ("broadcast", "dgx1v", "trees", "no kind of links of dgx1v.* idle"),
        ("allgather", "dgx1v:pcie=true", "blink", "not of this allgather"),
    ):
        options = {"hybrid": True} if planner == "blink" and kind == "broadcast" else None
        other = antiphon.plan(kind, where, planner=planner, options=options)
        with pytest.raises(Unsupported, match=why):
            slow_plan(other.at(2**20).schedule, other.topology, 2**20)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_the_command_runs_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split by seconds that are told to it, out of place and in place; what is checked is the whole."""
    made, ways = list[Hybrid](), list[str]()
    seconds = [1.0] * TRIES + [0.5] * TRIES + [2.0] * TRIES + [1.0] * TRIES + [0.7] * TRIES

    def timed(fast: Work, slow: Work, count: int) -> Hybrid:
        left = iter(seconds)

        def timer(work: Callable[[], None]) -> float:
            work()
            return next(left)

        made.append(Hybrid(fast, slow, count, timer))
        return made[-1]

    by_host = Group.go_by_host

    def noted(*given: Any, **how: Any) -> Any:
        ways.append(how["way"])
        return by_host(*given, **how)

    monkeypatch.setattr(sys.modules[Threads.__module__], "Hybrid", timed)
    monkeypatch.setattr(Group, "go_by_host", noted)
    plan = antiphon.plan("reduce", "dgx1v:pcie=true", planner="blink", root=0)
    for in_place in (False, True):
        (row,) = antiphon.run(plan, "96KB", on="threads", dtype="int32", in_place=in_place, hybrid=True)
        assert (row["correct"], row["agree"]) == (True, True)
        assert row["slow_share"] == pytest.approx(1 / 3, abs=16 / 24000)
        assert row["t_dpa"] == pytest.approx(0.0)
    assert (len(made), set(ways)) == (2, {"staged"})
    with pytest.raises(Invalid, match="hybrid: means nothing to runtime local"):
        antiphon.run(plan, "96KB", hybrid=True)


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_long_messages_go_through_the_host_half_after_half() -> None:
    """Messages of several halves, of which the last is not full; and one that is passed on."""
    schedule = antiphon.plan("broadcast", "ring:ranks=3", planner="ring", root=0).at(2**20).schedule
    count = 5 * 2**18 + 77
    values = [np.arange(count, dtype=np.int32) + rank for rank in range(3)]
    with Group(threads(), 3, 4) as group:
        outputs = [one.copy() for one in values]
        group.run(group.plan(tables(schedule, in_place=True)), count, None, outputs, way="staged", timeout=60)
        for one in outputs:
            np.testing.assert_array_equal(one, values[0])
