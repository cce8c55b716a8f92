"""Processes set apart: whoever is quicker, dies, hangs, eats memory, is late or is not wanted any more."""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from quick import in_turn

from antiphon.core.ksync.instance import instance_of
from antiphon.errors import Invalid, TimedOut
from antiphon.isolate import (
    Lost,
    PoolTerms,
    Starved,
    Stopped,
    can_fork,
    in_order,
    run_in_child,
    stream_job,
    usual_workers,
)
from antiphon.planners.synth import linear
from antiphon.planners.synth.search import SearchState
from antiphon.select import collective
from antiphon.topologies import topology

LONG = 120.0  # seconds, for what would go on for ever if it went wrong
Work = Callable[[int, Callable[[str], None]], Any]


def terms(work: Work, workers: int = 2, **more: Any) -> PoolTerms[int]:
    return PoolTerms(work, **{"seconds": lambda job: LONG, "workers": workers, **more})


KILLED = "its process was ended by signal SIGKILL, as computers end what takes too much memory"


class Held:
    """A pipe that children inherit: its far end is open as long as one of them lives."""

    def __init__(self) -> None:
        self.near, self.far = os.pipe()
        self.open = [self.near, self.far]

    def gone(self) -> bool:
        self.close(self.far)
        return bool(select.select([self.near], [], [], LONG)[0]) and os.read(self.near, 1) == b""

    def close(self, end: int) -> None:
        self.open.remove(end)
        os.close(end)


@pytest.fixture
def held() -> Iterator[Held]:
    pipe = Held()
    yield pipe
    for end in list(pipe.open):
        pipe.close(end)


@pytest.mark.parametrize("workers", in_turn([1, 2, 3, 8]))
def test_results_come_in_order(workers: int) -> None:
    assert list(in_order(range(9), terms(lambda job, _: job * job, workers))) == [(i, i * i) for i in range(9)]


def test_jobs_run_at_the_same_time_and_the_first_is_told_first() -> None:
    """Job 0 ends when job 1 has written; so they cannot run one after the other."""
    near, far = os.pipe()

    def work(job: int, _: Any) -> bytes:
        if job:
            os.write(far, b"x")
            return b"written"
        return os.read(near, 1)

    assert list(in_order(range(2), terms(work))) == [(0, b"x"), (1, b"written")]
    os.close(near)
    os.close(far)


def test_what_they_tell_is_passed_on() -> None:
    said: list[str] = []

    def work(job: int, tell: Callable[[str], None]) -> None:
        tell(f"job {job}")

    assert len(list(in_order(range(3), terms(work), on_message=said.append))) == 3
    assert sorted(said) == ["job 0", "job 1", "job 2"]


def test_one_that_dies_is_told_and_survived() -> None:
    def work(job: int, _: Any) -> int:
        if job == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1 // (job - 2)

    found = dict(in_order(range(4), terms(work)))
    assert (found[0], found[3]) == (-1, 1)
    assert isinstance(found[1], Lost)
    assert "SIGKILL" in str(found[1])
    assert "ZeroDivisionError" in str(found[2])


def test_one_that_dies_while_its_own_child_lives_is_told(held: Held) -> None:
    """Its pipe to us stays open then, until that one ends with this test."""

    def work(job: int, _: Any) -> None:
        if not os.fork():
            os.close(held.far)
            os.read(held.near, 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    assert [str(result) for _, result in in_order([0], terms(work))] == [KILLED]


def test_one_that_is_late_is_ended(held: Held) -> None:
    times = iter([0.0, LONG])

    def work(job: int, _: Any) -> int:
        if job == 0:
            signal.pause()
        return job

    found = dict(in_order(range(2), terms(work, seconds=lambda job: next(times))))
    assert isinstance(found[0], Stopped)
    assert found[1] == 1
    assert held.gone()


def test_memory_has_a_limit_each() -> None:
    def work(job: int, _: Any) -> int:
        return len([bytearray(2**20) for _ in range(4096 if job else 1)])

    found = dict(in_order(range(2), terms(work, memory=2**28)))
    assert found[0] == 1
    assert isinstance(found[1], Starved)
    assert str(found[1]) == "out of memory: more than 0.25 GiB"


def test_an_error_comes_in_its_turn(held: Held) -> None:
    def work(job: int, _: Any) -> int:
        if job == 1:
            raise Invalid("no such thing; ask for another")
        if job > 1:
            signal.pause()
        return job

    results = in_order(range(6), terms(work, 3))
    assert next(results) == (0, 0)
    with pytest.raises(Invalid, match="no such thing"):
        next(results)
    assert held.gone()


def test_what_earlier_results_settle_is_ended_and_dropped(held: Held) -> None:
    settled: set[int] = set()

    def work(job: int, _: Any) -> int:
        if job in (1, 2):
            signal.pause()
        return job

    found = []
    for job, result in in_order(range(5), terms(work, 4), lambda job: job not in settled):
        found.append((job, result))
        settled.update((1, 2))
    assert found == [(0, 0), (3, 3), (4, 4)]
    assert held.gone()


def test_one_that_is_done_but_no_longer_wanted_is_dropped() -> None:
    """However quick it is, it counts for nothing."""
    near, far = os.pipe()
    settled: set[int] = set()

    def work(job: int, _: Any) -> int:
        if job == 1:
            os.write(far, b"x")
        elif job == 0:
            os.read(near, 1)
        return job

    found = []
    for job, _ in in_order(range(3), terms(work), lambda job: job not in settled):
        found.append(job)
        settled.add(1)
    assert found == [0, 2]


def test_who_stops_asking_ends_them(held: Held) -> None:
    results = in_order(range(5), terms(lambda job, _: signal.pause() if job else 0, 3))
    assert next(results) == (0, 0)
    results.close()
    assert held.gone()


def test_ctrl_c_ends_them(held: Held) -> None:
    def work(job: int, say: Callable[[str], None]) -> None:
        say("at work")
        signal.pause()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(in_order(range(5), terms(work, 3), on_message=lambda words: signal.raise_signal(signal.SIGINT)))
    finally:
        signal.signal(signal.SIGINT, before)
    assert held.gone()


class PressesCtrlC:
    """Whoever reads it is interrupted in the middle of reading."""

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return signal.raise_signal, (signal.SIGINT,)


@pytest.mark.parametrize("own_program", [False, True])
def test_a_message_that_ctrl_c_meets_is_read_whole(own_program: bool) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    messages = stream_job(0, PoolTerms(_says_before_and_after_ctrl_c, grace=LONG), own_program=own_program)
    heard: list[Any] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            heard.extend(messages)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [message[0] for message in heard] == ["with it", "after it"]


def _says_before_and_after_ctrl_c(job: int, say: Callable[[Any], None]) -> None:
    say(("with it", PressesCtrlC()))
    say(("after it",))
    signal.pause()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they go on until they are done")
def test_they_end_with_a_caller_that_is_killed(held: Held) -> None:
    told, begun = os.pipe()

    def work(job: int, _: Any) -> None:
        os.write(begun, b"x")
        signal.pause()

    caller = os.fork()
    if not caller:
        list(in_order(range(3), terms(work, 3)))
        os._exit(0)
    for _ in range(3):
        assert os.read(told, 1) == b"x"
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    os.close(begun)
    assert held.gone()


def test_the_end_of_the_time_lets_those_begun_finish() -> None:
    left = iter([LONG, LONG])

    def seconds(job: int) -> float:
        for some in left:
            return some
        raise TimedOut("the budget is used up")

    results = in_order(range(9), terms(lambda job, _: job, seconds=seconds))
    assert [next(results), next(results)] == [(0, 0), (1, 1)]
    with pytest.raises(TimedOut):
        next(results)


def test_linear_programs_in_a_child_after_some_in_its_parent() -> None:
    """HiGHS keeps threads where there are processors enough; a fork has none of them, and the child would hang."""
    machine = topology("torus:dims=4x4")
    search = SearchState(instance_of(machine, collective("broadcast", machine)))
    here = [linear.split_rounds(search.program_for(steps), 2 * steps - 1, 2 * steps) for steps in (5, 6)]
    assert can_fork()

    def work(job: int, _: Any) -> Any:
        return linear.split_rounds(search.program_for(5 + job), 2 * job + 9, 2 * job + 10)

    assert list(in_order(range(2), terms(work))) == list(enumerate(here))


def test_without_a_way_to_end_those_threads_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy.optimize._highspy._core as core

    assert can_fork()
    monkeypatch.setitem(sys.modules, core.__name__, object())
    assert not can_fork()


def test_as_many_workers_as_processors_up_to_four(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpus, workers in (({0}, 1), ({0, 5}, 2), (set(range(64)), 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cpus=cpus: cpus, raising=False)
        assert usual_workers() == workers


# ---- one alone ----


def test_what_a_worker_returns_or_raises_comes_back() -> None:
    def refuse() -> None:
        raise Invalid("no such thing; ask for another")

    assert run_in_child(lambda x: x + 1, 1) == 2
    with pytest.raises(Invalid, match="no such thing"):
        run_in_child(refuse)


def test_a_worker_that_dies_is_told() -> None:
    with pytest.raises(Lost, match="SIGKILL"):
        run_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(Lost, match="ZeroDivisionError"):
        run_in_child(lambda: 1 // 0)


def test_a_worker_is_stopped_at_the_end_of_its_time() -> None:
    """It would wait for ever; once it is gone nobody holds the other end of the pipe any more."""
    mine, theirs = os.pipe()
    with pytest.raises(Stopped):
        run_in_child(signal.pause, seconds=0.0)
    os.close(theirs)
    assert select.select([mine], [], [], 60)[0], "the worker still runs"
    assert os.read(mine, 1) == b""
    os.close(mine)


def test_memory_has_a_limit() -> None:
    def hoard() -> int:
        return len([bytearray(2**20) for _ in range(4096)])

    with pytest.raises(Lost, match="out of memory"):
        run_in_child(hoard, memory=2**28)
