"""Messages through shared memory, between real processes: order, lengths, what is left, and who waits for whom."""

import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from ctypes import POINTER, byref, c_char, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from itertools import groupby

import pytest
from quick import in_turn

from antiphon.errors import Missing
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.native import Functions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="such memory is Linux's")


class Name(ctypes.Structure):
    _fields_ = [("key", c_uint64), ("process", c_int64), ("file", c_int32), ("members", c_uint32)]


class Error(ctypes.Structure):
    _fields_ = [("code", c_int32), ("text", c_char * 252)]


@pytest.fixture(scope="module")
def native() -> Functions:
    try:
        found = Functions(library("sockets"))
    except Missing as error:
        pytest.skip(str(error))
    for name in ("make", "join"):
        getattr(found, f"ap_shared_{name}").restype = c_void_p
    found.ap_shared_make.argtypes = [c_uint32, POINTER(Name)]
    found.ap_shared_join.argtypes = [POINTER(Name), c_uint32]
    for name in ("complete", "close", "busy"):
        getattr(found, f"ap_shared_{name}").argtypes = [c_void_p]
    for name in ("send", "receive"):
        message = [c_void_p, c_uint32, c_uint32, c_void_p, c_size_t, c_uint32, POINTER(Error)]
        getattr(found, f"ap_shared_{name}").argtypes = message
    found.ap_shared_progress.argtypes = [
        c_void_p, POINTER(c_uint32), c_int, POINTER(c_int), POINTER(c_int), POINTER(Error),
    ]  # fmt: skip
    return found


class End:
    """One member's end. `done`: numbers of messages that are."""

    def __init__(self, native: Functions, handle: int) -> None:
        self.native, self.handle, self.done = native, handle, set[int]()
        self.memory: list[object] = []

    def _start(self, how: str, peer: int, channel: int, place: object, size: int, number: int) -> None:
        error = Error()
        call = getattr(self.native, f"ap_shared_{how}")
        if call(self.handle, peer, channel, ctypes.cast(place, c_void_p), size, number, byref(error)):
            raise ValueError(error.text.decode())

    def send(self, peer: int, channel: int, data: bytes | ctypes.Array[c_char], number: int) -> None:
        place = data if isinstance(data, ctypes.Array) else ctypes.create_string_buffer(data, len(data) or 1)
        self.memory.append(place)
        self._start("send", peer, channel, place, len(data), number)

    def receive(self, peer: int, channel: int, size: int, number: int) -> ctypes.Array[c_char]:
        place = ctypes.create_string_buffer(size or 1)
        self._start("receive", peer, channel, place, size, number)
        return place

    def look(self) -> bool:
        numbers, count, moved, error = (c_uint32 * 5)(), c_int(), c_int(), Error()
        if self.native.ap_shared_progress(self.handle, numbers, 5, byref(count), byref(moved), byref(error)):
            raise ValueError(error.text.decode())
        self.done |= set(numbers[: count.value])
        return bool(moved.value)

    def wait(self, numbers: set[int], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not numbers <= self.done:
            assert time.monotonic() < end, f"waited for {sorted(numbers - self.done)[:9]}"
            if not self.look():
                os.sched_yield()


def members(native: Functions, count: int, each: Callable[[End, int], None]) -> None:
    """Runs it in as many processes; what one says to have gone wrong fails the test, and so does a hang."""
    name = Name()
    first = native.ap_shared_make(count, byref(name))
    assert first
    pids = {}
    for me in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(90)
                handle = first if me == 0 else native.ap_shared_join(byref(name), me)
                assert handle, "the memory was not found"
                end = End(native, handle)
                each(end, me)
                assert not native.ap_shared_busy(handle)
                native.ap_shared_close(handle)
                code = 0
            except BaseException as error:
                print(f"member {me}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        pids[pid] = me
    failed = []
    for pid, me in pids.items():
        if os.waitpid(pid, 0)[1]:
            failed.append(me)
    native.ap_shared_close(first)
    assert not failed, f"members {failed}"


def pattern(*key: int, size: int) -> bytes:
    return random.Random(hash(key)).randbytes(size)


@dataclass
class Traffic:
    """Messages of each pair and channel in order, the same for all: their sizes. Equal `data` may share blocks."""

    members: int
    messages: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # from, to, channel, size, data


def any_traffic(seed: int) -> Traffic:
    rng = random.Random(seed)
    traffic = Traffic(rng.choice((2, 3, 5)))
    sizes = (0, 1, 7, 40, 41, 1000, 16384, 16385, 100_000, 1_500_000)
    for data in range(rng.choice((5, 30))):
        source, size, channel = rng.randrange(traffic.members), rng.choice(sizes), rng.randrange(3)
        others = [one for one in range(traffic.members) if one != source]
        for target in rng.sample(others, rng.randint(1, len(others))):
            traffic.messages.append((source, target, channel, size, data))
    return traffic


def exchange(end: End, me: int, traffic: Traffic, seed: int) -> None:
    """Starts what is this member's in an order of its own, but for that of each lane; looks around in between."""
    rng = random.Random(seed * 100 + me)
    lanes: dict[tuple[str, int, int], list[tuple[int, int, int]]] = {}
    for number, (source, target, channel, size, data) in enumerate(traffic.messages):
        if source == me:
            lanes.setdefault(("send", target, channel), []).append((2 * number, size, data))
        if target == me:
            lanes.setdefault(("receive", source, channel), []).append((2 * number + 1, size, data))
    kept = {data: ctypes.create_string_buffer(pattern(data, size=size), size or 1)
            for _, _, _, size, data in traffic.messages}  # fmt: skip
    places, numbers = {}, set()
    slow = rng.random() < 0.5
    while any(lanes.values()):
        how, peer, channel = rng.choice([lane for lane, rest in lanes.items() if rest])
        number, size, data = lanes[how, peer, channel].pop(0)
        numbers.add(number)
        if how == "send":
            view = (c_char * size).from_buffer(kept[data]) if size else kept[data][:0]
            end.send(peer, channel, view, number)
        else:
            places[number] = (end.receive(peer, channel, size, number), size, data)
        for _ in range(rng.choice((0, 0, 1, 9)) if slow else 0):
            end.look()
    end.wait(numbers)
    for place, size, data in places.values():
        assert place.raw[:size] == pattern(data, size=size), f"data {data}"


@pytest.mark.parametrize("seed", in_turn(range(12), 6))
def test_all_messages_arrive_in_order_whoever_is_first(native: Functions, seed: int) -> None:
    traffic = any_traffic(seed)
    members(native, traffic.members, lambda end, me: exchange(end, me, traffic, seed))


@pytest.mark.parametrize(
    "data_of", in_turn([(lambda peer: 1,), (lambda peer: peer,)]), ids=["the same data", "other data"]
)
def test_late_receivers_keep_no_other_waiting(native: Functions, data_of: Callable[[int], int]) -> None:
    """3 MB for each of three: more than blocks hold. The last gets its own while the others sleep."""
    told, word = os.pipe()
    places = {data: ctypes.create_string_buffer(pattern(data, size=3_000_000), 3_000_000) for data in (1, 2, 3)}

    def each(end: End, me: int) -> None:
        if me == 0:
            for peer in (1, 2, 3):
                end.send(peer, 0, places[data_of(peer)], peer)
            end.wait({1, 2, 3})
            return
        if me != 3:
            assert os.read(told, 1) == b"x"  # only when the last has all
        place = end.receive(0, 0, 3_000_000, 7)
        end.wait({7})
        assert place.raw == places[data_of(me)].raw
        if me == 3:
            os.write(word, b"xx")

    members(native, 4, each)
    os.close(told)
    os.close(word)


def test_the_same_data_sent_once_more_goes_from_its_begin(native: Functions) -> None:
    """While it is under way to another, and with other contents after it was done."""

    def each(end: End, me: int) -> None:
        old, new = pattern(1, size=2_000_000), pattern(2, size=2_000_000)
        if me == 0:
            place = (c_char * len(old)).from_buffer_copy(old)
            end.send(1, 0, place, 1)
            end.look()
            end.send(2, 0, place, 2)
            end.wait({1, 2})
            ctypes.memmove(place, new, len(new))
            end.send(2, 0, place, 3)
            end.send(1, 0, place, 4)
            end.wait({3, 4})
            return
        for number, wanted in enumerate((old, new)):
            got = end.receive(0, 0, len(wanted), number)
            end.wait({number})
            assert got.raw == wanted

    members(native, 3, each)


def test_what_is_asked_for_last_may_come_first(native: Functions) -> None:
    """The receiver wants channel 1 before it has room for channel 0, of which more comes than all blocks hold."""

    def each(end: End, me: int) -> None:
        if me == 0:
            end.send(1, 0, pattern(0, size=5_000_000), 1)
            end.send(1, 1, pattern(1, size=50_000), 2)
            end.wait({1, 2})
        else:
            place = end.receive(0, 1, 50_000, 3)
            end.wait({3})
            assert place.raw == pattern(1, size=50_000)
            place = end.receive(0, 0, 5_000_000, 4)
            end.wait({4})
            assert place.raw == pattern(0, size=5_000_000)

    members(native, 2, each)


def test_who_is_far_ahead_does_not_fill_the_memory_of_others(native: Functions) -> None:
    """What is sent before anything of it is asked for stays with the sender, but for the blocks."""
    told, word = os.pipe()

    def each(end: End, me: int) -> None:
        if me == 1:
            end.send(0, 0, pattern(1, size=3_000_000), 1)
            for _ in range(2000):
                end.look()
                os.sched_yield()
            assert not end.done
            os.write(word, b"x")
            end.wait({1})
        elif me == 2:
            assert os.read(told, 1) == b"x"
            end.send(0, 0, b"now", 1)
            end.wait({1})
        else:
            end.receive(2, 0, 3, 1)
            end.wait({1})
            place = end.receive(1, 0, 3_000_000, 2)
            end.wait({2})
            assert place.raw == pattern(1, size=3_000_000)

    members(native, 3, each)
    os.close(told)
    os.close(word)


def test_blocks_that_one_has_read_are_free_for_another(native: Functions) -> None:
    name = Name()
    ends = [End(native, native.ap_shared_make(3, byref(name)))]
    ends += [End(native, native.ap_shared_join(byref(name), me)) for me in (1, 2)]
    ends[0].send(1, 0, bytes(900_000), 1)
    ends[0].look()
    ends[1].receive(0, 0, 900_000, 2)
    ends[1].wait({2})
    ends[0].send(2, 0, bytes(500_000), 3)
    ends[0].look()
    assert {1, 3} <= ends[0].done
    for end in ends:
        native.ap_shared_close(end.handle)


def test_many_rounds_use_the_same_memory(native: Functions) -> None:
    """A sender that runs ahead; blocks and queues go round many times."""

    def each(end: End, me: int) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for turn in range(200):
            size = (turn * 7919) % 40_000
            end.done.clear()
            end.send(1 - me, turn % 3, pattern(turn, me, size=size), 1)
            place = end.receive(1 - me, turn % 3, size, 2)
            end.wait({1, 2} if turn % 5 else {2})
            end.wait({1, 2})
            assert place.raw[:size] == pattern(turn, 1 - me, size=size), turn
            end.memory.clear()
        assert len(os.listdir("/proc/self/fd")) == before

    members(native, 2, each)


def test_a_message_of_another_length_is_an_error(native: Functions) -> None:
    def each(end: End, me: int) -> None:
        if me == 0:
            end.send(1, 0, b"four", 1)
            end.wait({1})
        else:
            end.receive(0, 0, 5, 2)
            with pytest.raises(ValueError, match="a message of 4 bytes came where 5 were expected"):
                end.wait({2})
            os._exit(0)

    members(native, 2, each)


def test_memory_that_is_not_there_or_another_one_is_not_joined(native: Functions) -> None:
    name, other = Name(), Name()
    first, second = native.ap_shared_make(2, byref(name)), native.ap_shared_make(2, byref(other))
    for wrong in (
        Name(name.key + 1, name.process, name.file, 2),
        Name(name.key, name.process, other.file, 2),
        Name(name.key, name.process, name.file, 3),
        Name(name.key, name.process, 0, 2),
        Name(name.key, 2**30, name.file, 2),
        Name(0, name.process, name.file, 2),
    ):
        assert not native.ap_shared_join(byref(wrong), 1)
    joined = native.ap_shared_join(byref(name), 1)
    assert joined
    native.ap_shared_complete(first)
    assert not native.ap_shared_join(byref(name), 1)  # it cannot be found any longer
    for handle in (joined, first, second):
        native.ap_shared_close(handle)


def test_what_is_under_way_is_given_up_with_the_end(native: Functions) -> None:
    """Closing frees all of it: run under a leak checker, this says nothing."""
    name = Name()
    first = native.ap_shared_make(3, byref(name))
    second = native.ap_shared_join(byref(name), 1)
    one, two = End(native, first), End(native, second)
    place = (c_char * 90_000).from_buffer_copy(bytes(90_000))
    for peer in (1, 2):
        for number in range(20):
            one.send(peer, number % 2, place, number)
    for _ in range(9):
        one.look(), two.look()  # strays at the second
    two.receive(0, 0, 90_000, 1)
    two.receive(2, 0, 90_000, 2)
    native.ap_shared_close(first), native.ap_shared_close(second)


def test_runs_are_of_several_sizes() -> None:
    """The samples have messages that fit a queue, a block, and more than all blocks; some to several at once."""
    sizes = {size for seed in range(12) for *_, size, _ in any_traffic(seed).messages}
    assert {0, 41, 1_500_000} <= sizes
    shared = [
        len(list(group)) for seed in range(12) for _, group in groupby(any_traffic(seed).messages, lambda m: m[4])
    ]
    assert max(shared) > 1
