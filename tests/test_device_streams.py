"""Calls on streams of a program, kept in graphs of its own, in turn with others of the group."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence

import numpy as np
import pytest

import antiphon
from antiphon.core.program.kinds import INPUT, OUTPUT
from antiphon.errors import TimedOut
from antiphon.lower.device.table import tables
from antiphon.runtimes.device.functions import threads
from antiphon.runtimes.device.group import CALLS, Group

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
COUNT, KIND = 96, np.dtype(np.int64)


@pytest.mark.parametrize("packets", [False, True])
def test_a_program_embeds_calls_in_graphs_of_its_own(packets: bool) -> None:
    """Calls that are asked for are not made before the streams do so, as often as they do; numbers wrap around."""
    schedule = antiphon.plan("allreduce", "ring:ranks=3", planner="ring").at(2**10).schedule
    made = tables(schedule, streams=2, packets=packets)
    with Group(threads(), 3, blocks=4, threads=2, call=CALLS - 4) as group:
        call, plan = group.device.call, group.plan(made)
        where, lengths = np.zeros((3, 3), np.uintp), np.zeros((3, 3), np.int64)
        for rank in range(3):
            lengths[rank] = [COUNT, COUNT, plan.scratch(rank, COUNT)]
            where[rank] = [group.memory(rank, np.zeros(int(size), KIND)) for size in lengths[rank]]
        handles = group.handles
        streams = {rank: call.ad_stream_new(handles[rank]) for rank in range(3)}

        def give(turn: int) -> None:
            for rank in range(3):
                group.bring(rank, int(where[rank, INPUT]), np.arange(COUNT, dtype=KIND) * (rank + 1) + turn)
                group.bring(rank, int(where[rank, OUTPUT]), np.zeros(COUNT, KIND))

        def has(value: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
            got = [np.empty(COUNT, KIND) for _ in range(3)]
            for rank, one in enumerate(got):
                group.fetch(rank, int(where[rank, OUTPUT]), one)
            return all(np.array_equal(one, value) for one in got)

        def right(turn: int) -> bool:
            return has(np.arange(COUNT, dtype=KIND) * 6 + 3 * turn)

        def through() -> None:
            for rank, stream in streams.items():
                assert not call.ad_stream_end(handles[rank], stream)

        taken = group.capture(plan, COUNT, where, lengths, KIND)
        taken.count()
        give(1)
        taken.ask(streams)  # as it comes
        through()
        assert right(1)
        for rank, stream in streams.items():
            assert not call.ad_stream_keep(handles[rank], stream)
        taken.ask(streams)
        taken.ask(streams)
        kept = {rank: call.ad_stream_kept(handles[rank], stream) for rank, stream in streams.items()}
        give(2)
        through()
        assert has(np.zeros(COUNT, np.int64))  # what is kept is not done
        for _ in range(3):
            for rank, stream in streams.items():
                assert not call.ad_kept_ask(handles[rank], kept[rank], stream)
        through()
        assert right(2)
        assert taken.counted() == 7
        assert group.number % CALLS == 3
        for turn, replayed in ((3, False), (4, True)):  # the group goes on
            give(turn)
            if replayed:
                taken.replay(20)
            else:
                group.go(plan, COUNT, where, lengths, KIND, timeout=20)
            assert right(turn)
        taken.count()
        for rank, stream in streams.items():
            assert not call.ad_kept_ask(handles[rank], kept[rank], stream)
        through()
        assert taken.counted() == 2
        for rank, stream in streams.items():
            call.ad_kept_free(kept[rank])
            call.ad_stream_free(handles[rank], stream)
        taken.close()


@pytest.mark.parametrize("packets", [False, True])
def test_what_hangs_on_streams_of_a_program_is_stopped(packets: bool) -> None:
    """A rank whose stream is never made to call: the others, and calls behind them, end when they are told to; then the
    group goes on, on streams and without."""
    schedule = antiphon.plan("allreduce", "ring:ranks=3", planner="ring").at(2**10).schedule
    made = tables(schedule, streams=2, packets=packets)
    with Group(threads(), 3, blocks=4, threads=2, call=CALLS - 2) as group:
        call, plan = group.device.call, group.plan(made)
        where, lengths = np.zeros((3, 3), np.uintp), np.zeros((3, 3), np.int64)
        for rank in range(3):
            lengths[rank] = [COUNT, COUNT, plan.scratch(rank, COUNT)]
            where[rank] = [group.memory(rank, np.zeros(int(size), KIND)) for size in lengths[rank]]
            group.bring(rank, int(where[rank, INPUT]), np.arange(COUNT, dtype=KIND) * (rank + 1))
        handles = group.handles
        streams = {rank: call.ad_stream_new(handles[rank]) for rank in range(3)}

        def right() -> bool:
            got = np.empty(COUNT, KIND)
            good = True
            for rank in range(3):
                group.fetch(rank, int(where[rank, OUTPUT]), got)
                good &= np.array_equal(got, np.arange(COUNT) * 6)
                group.bring(rank, int(where[rank, OUTPUT]), np.zeros(COUNT, KIND))
            return good

        def through(ranks: Sequence[int] = range(3)) -> None:
            for rank in ranks:
                assert not call.ad_stream_end(handles[rank], streams[rank])

        taken = group.capture(plan, COUNT, where, lengths, KIND)
        call.ad_stream_keep(handles[0], streams[0])  # its stream only keeps what it is asked for
        taken.count()
        taken.ask(streams)
        taken.ask(streams)  # behind the one that hangs
        stopping = threading.Timer(0.2, taken.stop)
        stopping.start()
        through((1, 2))
        stopping.join()
        call.ad_kept_free(call.ad_stream_kept(handles[0], streams[0]))
        with pytest.raises(TimedOut, match="these calls were stopped"):
            taken.counted()
        assert group.number == CALLS  # past both, wherever the ranks were
        taken.count()
        taken.ask(streams)
        through()
        assert (taken.counted(), right()) == (1, True)
        group.go(plan, COUNT, where, lengths, KIND, timeout=20)
        assert right()
        taken.replay(20)
        assert right()
        for rank, stream in streams.items():
            call.ad_stream_free(handles[rank], stream)
        taken.close()
