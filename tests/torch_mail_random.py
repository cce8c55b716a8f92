"""Messages of a process group in random order: `python torch_mail_random.py FIRST COUNT`, of so many seeds.

All draw the same list of what is to be done. Each does its part in an order of its own; only what has one sender,
receiver and tag keeps its order, and what all do together. Of three seeds with one nobody is killed, but some end while
the others have not yet looked at what these sent. With the two others one process is killed in the middle: with the
first of these collectives are of another group than messages, so that messages between the others must go on.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import antiphon.torch  # noqa: F401 (the backend)

SIZE = 4
TIMEOUT, MARGIN, LIMIT = 60.0, 30.0, 280.0  # of the group; on a busy machine; of all
ROUNDS, EACH = 4, 40
LENGTHS = (0, 1, 16, 17, 1000, 30_000, 65_536, 65_537, 400_000)
LONG = 8 << 20
ANY, SHIFT, LAST = 10, 20, 30  # tags


@dataclass(frozen=True)
class Item:
    """`what`: "send", "any", "shift" (each to the one so many places on), "sum"."""

    number: int
    what: str
    src: int
    dst: int
    tag: int
    length: int


@dataclass
class Under:
    """A call under way: with whom, and what it brings."""

    work: Any
    what: str
    peers: tuple[int, ...]
    into: list[torch.Tensor] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


def drawn(seed: int, victim: int) -> list[list[Item]]:
    draw, rounds, number = random.Random(seed), [], 0
    for place in range(ROUNDS):
        to_any = draw.choice((40, 70_000))
        rounds.append([])
        for _ in range(EACH):
            number += 1
            what = draw.choices(("send", "any", "shift", "sum"), (14, 3, 2, 2))[0]
            src, dst = draw.sample(range(SIZE), 2)
            tag = draw.randrange(3)
            length = LONG if draw.random() < (0.4 if victim in (src, dst) else 0.05) else draw.choice(LENGTHS)
            if what == "any":
                tag, length = ANY + place, to_any  # where one is killed, some wait for ever
            elif what == "shift":
                tag = SHIFT
            rounds[-1].append(Item(number, what, src, dst, tag, length))
    return rounds


def content(number: int, length: int, of: int = 0) -> torch.Tensor:
    some = (torch.arange(251) + 7 * number + 31 * of).to(torch.uint8)
    return some.repeat(length // 251 + 1)[:length]


def end_at_once() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Process:
    def __init__(self, seed: int, rank: int, group: Any, together: Any, victim: int, strict: bool) -> None:
        self.draw, self.rank, self.group, self.together = random.Random(1000 * seed + rank), rank, group, together
        self.victim, self.strict = victim, strict  # strict: what has nothing to do with the victim must succeed
        self.under: list[Under] = []
        self.from_any: list[Under] = []
        self.counts = {"done": 0, "failed": 0}

    # ---- what is begun ----

    def begin(self, item: Item, sends: bool) -> None:
        try:
            getattr(self, f"begin_{item.what}")(item, sends)
        except RuntimeError as error:
            self.failed((self.victim,) if item.what == "sum" else self.partners(item, sends), error)

    def partners(self, item: Item, sends: bool) -> tuple[int, ...]:
        if item.what == "shift":
            by = 1 + item.number % (SIZE - 1)
            return (self.rank + by) % SIZE, (self.rank - by) % SIZE
        return (item.dst if sends else self.victim if item.what == "any" else item.src,)

    def begin_send(self, item: Item, sends: bool) -> None:
        peers = self.partners(item, sends)
        if sends:
            given = content(item.number, item.length)
            self.under.append(Under(dist.isend(given, item.dst, self.group, item.tag), "send", peers))
        else:
            into = torch.zeros(item.length, dtype=torch.uint8)
            work = dist.irecv(into, item.src, self.group, item.tag)
            self.under.append(Under(work, "recv", peers, [into], [item.number]))

    def begin_any(self, item: Item, sends: bool) -> None:
        if sends:
            return self.begin_send(item, sends)
        into = torch.zeros(item.length, dtype=torch.uint8)
        self.from_any.append(Under(dist.irecv(into, None, self.group, item.tag), "any", (), [into]))
        return None

    def begin_shift(self, item: Item, _: bool) -> None:
        to, of = self.partners(item, True)
        given, into = content(item.number, item.length, self.rank), torch.zeros(item.length, dtype=torch.uint8)
        found = Under(None, "shift", (to, of), [into], [item.number])
        if item.number % 2 or self.victim in found.peers:  # of one work that fails the rest is left alone
            ops = [
                dist.P2POp(dist.isend, given, to, self.group, SHIFT),
                dist.P2POp(dist.irecv, into, of, self.group, SHIFT),
            ]
            works = dist.batch_isend_irecv(ops)
            self.under.append(Under(works[0], "send", (to,)))
            found.work, found.peers = works[-1], (of,)
        else:
            with dist._coalescing_manager(self.group, torch.device("cpu"), async_ops=True) as together:
                dist.isend(given, to, self.group, SHIFT)
                dist.irecv(into, of, self.group, SHIFT)
            found.work = together
        self.under.append(found)

    def begin_sum(self, item: Item, _: bool) -> None:
        line = torch.full((item.length // 8,), float(item.number + self.rank))
        work = dist.all_reduce(line, group=self.together, async_op=True)
        self.under.append(Under(work, "sum", (self.victim,), [line], [item.number]))

    # ---- what is over ----

    def failed(self, peers: tuple[int, ...], error: Exception) -> None:
        self.counts["failed"] += 1
        if self.victim < 0 or (self.strict and self.victim not in peers):
            raise AssertionError(f"with {peers}: {error}") from error

    def wait(self, one: Under) -> None:
        began = time.monotonic()
        try:
            if one.what == "any" and self.victim >= 0:  # those of who is killed never come
                one.work.wait(timedelta(seconds=0.5))
            else:
                one.work.wait()
        except RuntimeError as error:
            one.numbers = []
            self.failed(one.peers if one.what != "any" else (self.victim,), error)
        else:
            self.counts["done"] += 1
            self.check(one)
        spent = time.monotonic() - began
        assert spent < TIMEOUT + MARGIN, (one, spent)

    def check(self, one: Under) -> None:
        if one.what == "sum":
            assert one.into[0].eq(SIZE * one.numbers[0] + sum(range(SIZE))).all()
        elif one.numbers:
            of = one.peers[-1] if one.what == "shift" else 0
            wrong = one.into[0].ne(content(one.numbers[0], len(one.into[0]), of)).nonzero()
            assert not len(wrong), (
                one.what,
                one.numbers,
                one.peers,
                len(one.into[0]),
                len(wrong),
                wrong[:3],
                one.into[0][:9],
            )

    def round(self, items: list[Item], dies: bool) -> None:
        streams: dict[Any, list[tuple[Item, bool]]] = {}
        for item in items:
            if item.what in ("shift", "sum"):
                streams.setdefault("all", []).append((item, True))
            elif self.rank == item.src:
                streams.setdefault((item.dst, item.tag), []).append((item, True))
            elif self.rank == item.dst:
                streams.setdefault((item.src if item.what == "send" else "any", item.tag, "here"), []).append(
                    (item, False)
                )
        last = self.draw.randrange(2 * len(items)) if dies else -1  # then some milliseconds, whatever it is at
        while streams:
            if last == 0:
                threading.Timer(self.draw.random() / 100, end_at_once).start()
            last -= 1
            key = self.draw.choice(sorted(streams, key=str))
            self.begin(*streams[key].pop(0))
            if not streams[key]:
                del streams[key]
            if self.draw.random() < 0.1:
                time.sleep(self.draw.random() / 500)
            if self.under and self.draw.random() < 0.2:
                one = self.draw.choice(self.under)
                if one.what in ("send", "recv"):
                    one.work.is_completed()
        self.draw.shuffle(self.under)
        if last >= 0:
            threading.Timer(self.draw.random() / 50, end_at_once).start()
        for one in self.under:
            self.wait(one)
        for one in self.from_any:
            self.wait(one)
        self.check_any([item for item in items if item.what == "any" and item.dst == self.rank])
        self.under, self.from_any = [], []

    def check_any(self, items: list[Item]) -> None:
        """Of each sender in the order in which it sent them."""
        left = {src: [item.number for item in items if item.src == src] for src in range(SIZE)}
        for one in self.from_any:
            if not one.work.is_completed() or not one.work.is_success():
                continue
            src = one.work.source_rank()
            if src != self.victim:
                assert torch.equal(one.into[0], content(left[src].pop(0), len(one.into[0]))), src


def talk(rank: int, group: Any) -> None:
    """From each to each: all are connected."""
    others = [other for other in range(SIZE) if other != rank]
    works = [dist.isend(torch.ones(1), other, group, LAST) for other in others]
    works += [dist.irecv(torch.zeros(1), other, group, LAST) for other in others]
    for one in works:
        one.wait()


def leave(seed: int, rank: int, store: Any) -> None:
    """Some send to the others and end; these look for it later. A new group: all may be sent unasked, and little fits
    into the systems' memory."""
    draw, group = random.Random(seed), dist.new_group()
    talk(rank, group)
    leaving = draw.sample(range(SIZE), draw.randrange(1, SIZE))
    sent = {
        (src, dst): [draw.choice(LENGTHS[:6]) for _ in range(4)] if draw.random() < 0.5 else [60_000] * 4
        for src in leaving
        for dst in range(SIZE)
        if src != dst
    }
    if rank in leaving:
        for (src, dst), lengths in sent.items():
            for number, length in enumerate(lengths):
                if src == rank and dst not in leaving:
                    dist.send(content(number, length, rank), dst, group, LAST)
        store.set(f"left {rank}", "")
        dist.destroy_process_group()
        return
    store.wait([f"left {one}" for one in leaving])
    time.sleep(random.Random(seed + rank).random() / 2)
    for src in draw.sample(leaving, len(leaving)):
        for number, length in enumerate(sent[src, rank]):
            into = torch.zeros(length, dtype=torch.uint8)
            dist.recv(into, src, group, LAST)
            assert torch.equal(into, content(number, length, src))
        with pytest.raises(RuntimeError, match="is lost"):
            dist.recv(torch.zeros(1), src, group, LAST)
    store.set(f"heard {rank}", "")
    dist.destroy_process_group()


def process(rank: int, seed: int, path: str, killed: bool, apart: bool) -> None:
    faulthandler.dump_traceback_later(LIMIT - 10, exit=True)
    store = dist.FileStore(path, SIZE)
    dist.init_process_group("antiphon", store=store, rank=rank, world_size=SIZE, timeout=timedelta(seconds=TIMEOUT))
    group = dist.new_group() if apart else dist.group.WORLD
    draw = random.Random(-seed - 1)
    victim = draw.randrange(SIZE) if killed else -1
    dying = draw.randrange(ROUNDS)
    mine = Process(seed, rank, group, dist.group.WORLD, victim, apart)
    talk(rank, group)
    for number, items in enumerate(drawn(seed, victim)):
        mine.round(items, rank == victim and number >= dying)
    if killed:
        dist.destroy_process_group()
    else:
        leave(seed, rank, store)
    assert killed or mine.counts["done"] > ROUNDS * EACH // SIZE


def run(seed: int) -> bool:
    killed, apart = seed % 3 > 0, seed % 3 == 1
    children = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(SIZE):
            child = os.fork()
            if not child:
                code = 1
                try:
                    process(rank, seed, f"{folder}/store", killed, apart)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    good = sorted(codes) == ([-9] if killed else [0]) + [0] * (SIZE - 1)
    print(f"seed {seed}: {'right' if good else codes}", flush=True)
    return good


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    wrong = [seed for seed in range(first, first + count) if not run(seed)]
    sys.exit(bool(wrong))
