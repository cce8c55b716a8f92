"""Device tables in every order that can be: right as they are, wrong as soon as anything that they need is left out.

What the model takes for granted is told in device/model.cc; the kernel itself is tried in test_device_proof.py.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from device_cases import schedule_of
from device_model import (
    CALL_BITS,
    CALLS,
    PUT,
    ROUND_BITS,
    SIGNAL,
    SYNC,
    WAIT,
    Call,
    Case,
    Step,
    changed_step,
    pairs,
    steps_of,
    take_apart,
    without,
)
from quick import in_turn

from antiphon.core.collective import KINDS
from antiphon.errors import AntiphonError
from antiphon.lower.device.table import tables
from antiphon.lower.onesided import steps
from antiphon.lower.onesided.streams import find_credits
from antiphon.registry import table
from antiphon.runtimes.device import group
from antiphon.runtimes.engine.build import DEVICE

LAST = CALLS - 1  # the next call is number 0
PLANNERS = [name for name in table("planner") if name != "sccl"]


@cache
def call(
    planner: str, kind: str, spec: str = "full:ranks=3", in_place: bool = False, streams: int = 1, lanes: int = 1,
    rounds: int = 1, packets: bool = False, pull: bool = False,
) -> Call | None:  # fmt: skip
    """With an element for each atom at least, if these are few."""
    try:
        schedule = schedule_of(spec, planner, kind)
        made = tables(schedule, in_place=in_place, streams=streams, packets=packets, pull=pull)
    except AntiphonError:
        return None
    read = tuple(map(take_apart, made))
    if lanes * rounds > 1 and not all(one.sliced for one in read):
        return None
    unit = read[0].denominator if read[0].denominator <= 6 else 2
    return Call(read, schedule.collective, unit * lanes * rounds, in_place, lanes, rounds)


def surely(planner: str, kind: str, **options: Any) -> Call:
    found = call(planner, kind, **options)
    assert found is not None
    return found


def all_calls(spec: str, every: int = 1, **options: Any) -> Iterator[tuple[str, Call]]:
    """Of each planner and collective that it can; or only each second, third of them."""
    able = [(planner, kind, in_place) for planner in PLANNERS for kind in KINDS for in_place in (False, True)
            if kind in table("planner")[planner].can.collectives]  # fmt: skip
    for planner, kind, in_place in able[::every]:
        found = call(planner, kind, spec, in_place, **options)
        if found is not None:
            yield f"{planner} {kind} in_place={in_place} on {spec}", found


def hold(calls: list[tuple[str, Call]], **options: Any) -> None:
    """Two of each in a row, the second with the number 0."""
    faults = []
    for name, one in calls:
        said = Case([one, one], first=LAST, **options).judged()
        if not said.startswith("right"):
            faults.append(f"{name}: {said}")
    assert not faults, "\n".join(faults[:5])


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["full:ranks=2", "full:ranks=3", "line:ranks=3", "star:ranks=3"])
def test_every_planner_in_every_order_everywhere(spec: str) -> None:
    hold(list(all_calls(spec)))
    hold(list(all_calls(spec, streams=2)))


@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "rounds"), [(2, 1), (1, 2), (1, 3)])
def test_lanes_and_rounds(lanes: int, rounds: int) -> None:
    hold(list(all_calls("full:ranks=2", lanes=lanes, rounds=rounds)))
    hold([(name, one) for name, one in all_calls("full:ranks=3", lanes=lanes, rounds=rounds) if _short(one, 16)])


def _short(one: Call, most: int) -> bool:
    return all(len(steps) <= most for each in one.tables for steps in each.streams)


@pytest.mark.slow
def test_different_calls_in_turn_on_the_same_buffers() -> None:
    """A rank may be two calls ahead of another; slices of one call are not those of the next."""
    mixed = [
        surely("ring", "allgather"), surely("direct", "alltoall"), surely("binomial-tree", "broadcast", in_place=True),
        surely("direct", "allreduce", in_place=True), surely("ring", "allgather", rounds=2),
        surely("direct", "broadcast", lanes=2),
    ]  # fmt: skip
    assert Case(mixed, first=LAST - 1).judged().startswith("right")


def test_more_calls_than_two() -> None:
    for one in (surely("binomial-tree", "broadcast"), surely("ring", "allgather")):
        assert Case([one] * 5, first=LAST - 2).judged().startswith("right")


# What is left out here nothing else stands in for.
NEEDED = [("direct", "allgather"), ("ring", "allgather"), ("binomial-tree", "broadcast"), ("direct", "alltoall"),
          ("direct", "reducescatter")]  # fmt: skip


def wrong(one: Call, **options: Any) -> str:
    """What is wrong with two such calls; "" if nothing."""
    said = Case([one, one], **{"first": LAST, **options}).judged()
    assert not said.startswith("too many")
    return "" if said.startswith("right") else said.split(":")[0]


def behind_a_put(one: Call, signal: tuple[int, int, int, int]) -> bool:
    """Whether it tells of data; else it is a credit, or says that a call has begun."""
    stream, source, target, number = signal
    steps = one.tables[source].streams[stream]
    at = next(k for k, step in enumerate(steps) if step.kind == SIGNAL and
              any((a.rank, a.number) == (target, number) for a in step.arguments))  # fmt: skip
    return any(step.kind not in (SIGNAL, WAIT, SYNC) and any(a.rank == target for a in step.arguments)
               for step in steps[:at])  # fmt: skip


@pytest.mark.parametrize(("planner", "kind"), in_turn(NEEDED, 2))
def test_no_signal_may_be_missing(planner: str, kind: str) -> None:
    """Neither one that tells of data nor one that says that a place is free: there is a race, and data are wrong."""
    one = surely(planner, kind)
    told = pairs(one)
    assert {behind_a_put(one, signal) for signal in told} == {False, True}
    for signal in told:
        assert wrong(without(one, signal)) in ("race", "result"), signal
    spoiled = [signal for signal in told if wrong(without(one, signal), races=False) == "result"]
    assert {behind_a_put(one, signal) for signal in spoiled} == {False, True}


@pytest.mark.parametrize(("planner", "kind"), in_turn(NEEDED, 2))
def test_no_fence_may_be_missing(planner: str, kind: str) -> None:
    """A signal without release, a wait without acquire. What was put before a signal without release may be seen too
    late; what was read before may be read too late, which only the race tells."""
    one = surely(planner, kind)
    for where in steps_of(one, SIGNAL):
        assert wrong(changed_step(one, *where, ordered=False)) == "race", where
    assert any(wrong(changed_step(one, *where, ordered=False), races=False) == "result"
               for where in steps_of(one, SIGNAL))  # fmt: skip
    assert any(wrong(changed_step(one, *where, ordered=False), races=False) == "result"
               for where in steps_of(one, WAIT))  # fmt: skip
    for rank, stream, at in steps_of(one, WAIT):
        if not _is_awaited_at_the_end(one.tables[rank].streams[stream], at):
            assert wrong(changed_step(one, rank, stream, at, ordered=False)), (rank, stream, at)


def test_no_credit_within_a_call_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that is written a second time. Of 2 and 3 ranks no planner has one."""
    whole = surely("binomial-tree", "allreduce", spec="full:ranks=5")
    assert Case([whole], first=LAST).judged().startswith("right")
    left_out = list[int]()

    def none(*given: Any, **how: Any) -> Any:
        found = find_credits(*given, **how)
        left_out.append(int(found.sum()))
        return found & False

    monkeypatch.setattr(steps, "find_credits", none)
    one = call.__wrapped__("binomial-tree", "allreduce", spec="full:ranks=5")
    assert left_out == [1]
    assert Case([one], first=LAST).judged().startswith("race")


def _is_awaited_at_the_end(steps: tuple[Step, ...], at: int) -> bool:
    return all(step.kind == WAIT for step in steps[at:])


@pytest.mark.parametrize(("planner", "kind"), in_turn(NEEDED, 2))
def test_no_sync_before_a_signal_may_be_missing(planner: str, kind: str) -> None:
    """What other threads of the block do is not done."""
    one = surely(planner, kind)
    some = [(rank, stream, at) for rank, stream, at in steps_of(one, SYNC)
            if one.tables[rank].streams[stream][at - 1].kind not in (SIGNAL, WAIT)]  # fmt: skip
    assert some
    for where in some:
        assert wrong(changed_step(one, *where, kind=None)) == "race", where
    assert any(wrong(changed_step(one, *where, kind=None), races=False) == "result" for where in some)


@pytest.mark.parametrize(("planner", "kind"), in_turn(NEEDED, 2))
def test_the_number_of_the_call_may_not_be_missing(planner: str, kind: str) -> None:
    """What a signal says holds for its call; and numbers are compared in a circle."""
    one = surely(planner, kind)
    for races in (False, True):
        assert wrong(one, epochs=False, races=races)
        assert wrong(one, signed=False, races=races)
    assert not wrong(one, signed=False, first=1)


def test_the_model_counts_as_the_kernel_does() -> None:
    assert group.CALLS == CALLS
    assert f"ROUND_BITS = {ROUND_BITS}, CALL_BITS = {CALL_BITS} " in (DEVICE / "signals.h").read_text()


def test_ranks_that_have_not_spoken_for_long() -> None:
    """What stands there from their last call is not taken for what is to come, for half the circle of numbers."""
    one = surely("direct", "allgather")
    for since in (2, 2**24, 2**31, CALLS // 2 - 1):
        assert Case([one, one], numbers=[7, 7 + since]).judged().startswith("right"), since
    assert not Case([one, one], numbers=[7, 8 + CALLS // 2]).judged().startswith("right")


def test_two_threads_do_not_tell_one_peer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two signals to one peer there may be no sync: so one thread tells both, wherever the peer stands among
    others. (As here, where credits are given that nobody needs.)"""
    monkeypatch.setattr(steps, "find_credits", lambda program, **_: find_credits(program, farther=False))
    one = call.__wrapped__("multi-ring", "allreduce", spec="full:ranks=8", streams=4)
    assert one is not None
    assert wrong(one, most=0, by_peer=False) == "overtaken"
    assert Case([one], most=0).judged().startswith("too many")  # not at once: that is found before anything runs


# Small data as packets, with flags in them. Boxes have two halves: only from the third call on is one used again.
BY_PACKETS = [("direct", "allgather"), ("ring", "allgather"), ("direct", "alltoall"), ("direct", "reducescatter"),
              ("ring", "allreduce"), ("binomial-tree", "broadcast"), ("binomial-tree", "gather")]  # fmt: skip


def packets_wrong(one: Call, **options: Any) -> str:
    """What is wrong with three such calls; "" if nothing."""
    said = Case([one] * 3, first=LAST - 1, **options).judged()
    assert not said.startswith("too many")
    return "" if said.startswith("right") else said.split(":")[0]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["full:ranks=2", "full:ranks=3", "line:ranks=3"])
def test_every_planner_by_packets_in_every_order_everywhere(spec: str) -> None:
    assert {one.tables[0].receives_all for _, one in all_calls(spec, packets=True)} == {False, True}
    for more in ({}, {"streams": 2}, {"lanes": 2}, {"rounds": 2}):
        for name, one in all_calls(spec, packets=True, **more):
            if more == {} or _short(one, 12):
                assert not packets_wrong(one, most=10**6), (name, more)


def test_with_packets_and_without_in_turn() -> None:
    some = [surely("ring", "allgather", packets=True), surely("direct", "alltoall"),
            surely("direct", "reducescatter", packets=True), surely("binomial-tree", "broadcast", packets=True),
            surely("direct", "allreduce", packets=True, in_place=True)]  # fmt: skip
    assert Case(some, first=LAST - 2).judged().startswith("right")
    assert Case(some[::-1], first=2**32 - 2).judged().startswith("right")


@pytest.mark.parametrize(("planner", "kind"), BY_PACKETS)
def test_no_flag_of_packets_may_be_missing(planner: str, kind: str) -> None:
    """Nor the number of the call in it."""
    one = surely(planner, kind, packets=True)
    assert not packets_wrong(one)
    assert packets_wrong(one, flags=False) == "result"
    assert packets_wrong(one, epochs=False) == "result"


def test_who_reads_late_has_the_other_half_of_the_box() -> None:
    """Who has heard from all may be a call ahead: what he sends then may not lie where it has not been read."""
    for planner, kind in (("direct", "allgather"), ("direct", "alltoall"), ("direct", "reducescatter")):
        assert packets_wrong(surely(planner, kind, packets=True), halves=False) == "deadlock"


def test_who_has_not_heard_from_all_waits_until_they_have_begun() -> None:
    for planner, kind in (("binomial-tree", "broadcast"), ("binomial-tree", "gather"), ("direct", "scatter")):
        one = surely(planner, kind, packets=True)
        assert not one.tables[0].receives_all
        assert packets_wrong(one, opening=False) == "deadlock"


def test_weak_memory_changes_nothing_for_packets() -> None:
    """What else a rank writes is its own; others see it when they like."""
    for planner, kind in (
        ("direct", "reducescatter"),
        ("binomial-tree", "broadcast"),
        ("halving-doubling", "allreduce"),
    ):
        one = surely(planner, kind, packets=True, spec="full:ranks=2" if kind == "allreduce" else "full:ranks=3")
        assert not packets_wrong(one, races=False)


# Who receives reads: what is told is that others may read, and that they have.


def test_every_planner_pulled_in_every_order() -> None:
    calls = list(all_calls("full:ranks=3", 29, pull=True))
    assert len(calls) > 5
    hold(calls)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["full:ranks=2", "full:ranks=3", "line:ranks=3", "star:ranks=3"])
def test_every_planner_pulled_in_every_order_everywhere(spec: str) -> None:
    for more in ({}, {"streams": 2}, {"lanes": 2}, {"rounds": 2}):
        hold([(name, one) for name, one in all_calls(spec, pull=True, **more) if more == {} or _short(one, 16)])


def test_pulled_and_pushed_in_turn() -> None:
    some = [surely("ring", "allgather", pull=True), surely("direct", "alltoall"),
            surely("direct", "reducescatter", pull=True), surely("ring", "allreduce", pull=True, in_place=True),
            surely("binomial-tree", "broadcast")]  # fmt: skip
    assert Case(some, first=LAST - 2).judged().startswith("right")


@pytest.mark.parametrize(
    ("planner", "kind"),
    [NEEDED[1], *(pytest.param(*one, marks=pytest.mark.slow) for one in NEEDED if one != NEEDED[1])],
)
def test_nothing_that_is_pulled_may_be_read_too_early_or_written_too_soon(planner: str, kind: str) -> None:
    """No signal that others may read, no fence, no sync before a signal, no number of the call may be missing; and of
    what tells that others have read, not all: some follow from what is told later."""
    one = surely(planner, kind, pull=True)
    assert not wrong(one)
    found = [(behind_a_put(one, signal), wrong(without(one, signal))) for signal in pairs(one)]
    assert {what for behind, what in found if not behind} <= {"race", "result"}
    assert {what for behind, what in found if behind} & {"race", "result"}
    assert any(wrong(without(one, signal), races=False) == "result" for signal in pairs(one))
    for kinds in ((PUT, SYNC), (SYNC, PUT)):  # before others hear of it, and before it is read
        some = [(rank, stream, at) for rank, stream, at in steps_of(one, SYNC)
                if one.tables[rank].streams[stream][at - kinds.index(SYNC)].kind == kinds[0] and
                one.tables[rank].streams[stream][at - kinds.index(SYNC) + 1].kind == kinds[1]]  # fmt: skip
        assert "race" in {wrong(changed_step(one, *where, kind=None)) for where in some}, kinds
    early = [(rank, stream, at) for rank, stream, at in steps_of(one, WAIT)
             if [step.kind for step in one.tables[rank].streams[stream][at + 1 : at + 3]] == [SYNC, PUT]]  # fmt: skip
    assert {wrong(changed_step(one, *where, ordered=False)) for where in early} & {"race", "result"}
    assert "race" in {wrong(changed_step(one, *where, ordered=False)) for where in steps_of(one, SIGNAL)}
    assert wrong(one, epochs=False)
    assert wrong(one, signed=False)
