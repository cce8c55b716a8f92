"""Calls on streams of a program, kept in graphs of its own, in turn with others of the group."""

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from device_cases import schedule_of
from numpy.typing import NDArray

from antiphon.core.program.kinds import INPUT, OUTPUT
from antiphon.errors import TimedOut
from antiphon.lower.device.table import tables
from antiphon.runtimes.device.functions import threads
from antiphon.runtimes.device.group import CALLS, DevicePlan, Group

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
COUNT, KIND = 96, np.dtype(np.int64)


class Three:
    """Three ranks with an allreduce that is taken for streams of a program, one for each rank."""

    def __init__(self, group: Group, plan: DevicePlan) -> None:
        self.group, self.plan = group, plan
        self.call, self.handles = group.device.call, group.handles
        self.where, self.lengths = np.zeros((3, 3), np.uintp), np.zeros((3, 3), np.int64)
        for rank in range(3):
            self.lengths[rank] = [COUNT, COUNT, plan.scratch(rank, COUNT)]
            self.where[rank] = [group.memory(rank, np.zeros(int(size), KIND)) for size in self.lengths[rank]]
        self.streams = {rank: self.call.ad_stream_new(self.handles[rank]) for rank in range(3)}
        self.taken = group.capture(plan, COUNT, self.where, self.lengths, KIND)

    def give(self, turn: int) -> None:
        for rank in range(3):
            self.group.bring(rank, int(self.where[rank, INPUT]), np.arange(COUNT, dtype=KIND) * (rank + 1) + turn)
            self.group.bring(rank, int(self.where[rank, OUTPUT]), np.zeros(COUNT, KIND))

    def has(self, value: NDArray[np.int64]) -> bool:
        got = [np.empty(COUNT, KIND) for _ in range(3)]
        for rank, one in enumerate(got):
            self.group.fetch(rank, int(self.where[rank, OUTPUT]), one)
        return all(np.array_equal(one, value) for one in got)

    def right(self, turn: int) -> bool:
        return self.has(np.arange(COUNT, dtype=KIND) * 6 + 3 * turn)

    def through(self, ranks: Sequence[int] = range(3)) -> None:
        for rank in ranks:
            assert not self.call.ad_stream_end(self.handles[rank], self.streams[rank])

    def ask(self, kept: dict[int, int]) -> None:
        for rank, stream in self.streams.items():
            assert not self.call.ad_recording_enqueue(self.handles[rank], kept[rank], stream)

    def go(self) -> None:
        self.group.go(self.plan, COUNT, self.where, self.lengths, KIND, timeout=20)


@contextmanager
def started(packets: bool, number: int) -> Iterator[Three]:
    """After so many calls."""
    made = tables(schedule_of("ring:ranks=3", "ring", "allreduce"), streams=2, packets=packets)
    with Group(threads(), 3, blocks=4, threads=2, call=number) as group:
        three = Three(group, group.plan(made))
        yield three
        for rank, stream in three.streams.items():
            three.call.ad_stream_free(three.handles[rank], stream)
        three.taken.close()


@pytest.mark.parametrize("packets", [False, True])
def test_a_program_embeds_calls_in_graphs_of_its_own(packets: bool) -> None:
    """Calls that are asked for are not made before the streams do so, as often as they do; numbers wrap around."""
    with started(packets, CALLS - 4) as three:
        call, taken, streams = three.call, three.taken, three.streams
        taken.count()
        three.give(1)
        taken.ask(streams)  # as it comes
        three.through()
        assert three.right(1)
        for rank, stream in streams.items():
            assert not call.ad_stream_record(three.handles[rank], stream)
        taken.ask(streams)
        taken.ask(streams)
        kept = {rank: call.ad_stream_recorded(three.handles[rank], stream) for rank, stream in streams.items()}
        three.give(2)
        three.through()
        assert three.has(np.zeros(COUNT, np.int64))  # what is kept is not done
        for _ in range(3):
            three.ask(kept)
        three.through()
        assert three.right(2)
        assert taken.counted() == 7
        assert three.group.number % CALLS == 3
        for turn, replayed in ((3, False), (4, True)):  # the group goes on
            three.give(turn)
            if replayed:
                taken.replay(20)
            else:
                three.go()
            assert three.right(turn)
        taken.count()
        three.ask(kept)
        three.through()
        assert taken.counted() == 2
        for one in kept.values():
            call.ad_recording_free(one)


@pytest.mark.parametrize("packets", [False, True])
def test_what_hangs_on_streams_of_a_program_is_stopped(packets: bool) -> None:
    """A rank whose stream is never made to call: the others, and calls behind them, end when they are told to; then the
    group goes on, on streams and without."""
    with started(packets, CALLS - 2) as three:
        call, taken, streams = three.call, three.taken, three.streams
        three.give(0)
        call.ad_stream_record(three.handles[0], streams[0])  # its stream only keeps what it is asked for
        taken.count()
        taken.ask(streams)
        taken.ask(streams)  # behind the one that hangs
        stopping = threading.Timer(0.2, taken.stop)
        stopping.start()
        three.through((1, 2))
        stopping.join()
        call.ad_recording_free(call.ad_stream_recorded(three.handles[0], streams[0]))
        with pytest.raises(TimedOut, match="these calls were stopped"):
            taken.counted()
        assert three.group.number == CALLS  # past both, wherever the ranks were
        three.give(1)
        taken.count()
        taken.ask(streams)
        three.through()
        assert (taken.counted(), three.right(1)) == (1, True)
        three.give(2)
        three.go()
        assert three.right(2)
        three.give(3)
        taken.replay(20)
        assert three.right(3)
