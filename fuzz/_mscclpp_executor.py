"""The executor of MSCCL++ once more, thread by thread: written from its kernel alone, it shares nothing with the reader
of plans or the machine that judges them.

Every thread of every block goes through its operations by itself; data is dealt to the threads at random, anew for each
operation, because nothing but a sync says which thread does what (packets in turn, alike by all operations). Each rank
is called several times, one call right after the other, and its buffers belong to the user from the end of a call until
the next begins: then results are looked at, inputs get new values, results are spoilt. Semaphores and scratch stay as
they are. A pipeline handles a unit of each operation in turn; where scratch is smaller than what passes through it, the
first source and results lie at their place modulo its size, but not further sources. Priorities of threads are drawn,
and drawn again at a few moments: what can go wrong mostly does within some dozens of such runs.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator
from typing import Any

WAITING = object()
Steps = Generator[Any, None, None]
PER_CHUNK = (
    3  # elements of a chunk, odd so that threads change with its place; more where a group of blocks shares them
)
UNIT = 2  # elements of a chunk that a pipeline handles in a turn
MOST_STEPS = 60_000


class WrongError(Exception):
    """What was seen in a run."""


class Executor:
    """All ranks of a plan, `calls` times. `placed`: out of place, or where the buffers lie in place."""

    def __init__(self, plan: dict[str, Any], seed: int, calls: int = 2) -> None:
        self.plan, self.calls = plan, calls
        self.rng = random.Random(seed)
        self.gpus: list[dict[str, Any]] = plan["gpus"]
        self.per = PER_CHUNK
        for operation in self._every():
            if operation["name"] == "pipeline":
                self.per = PER_CHUNK + UNIT  # three turns, the last one shorter
            if "tbg_info" in operation:
                self.per = max(self.per, 2 * operation["tbg_info"]["tbg_size"])
        self.kind, self.in_place = plan["collective"], plan["inplace"]
        self.memory: dict[tuple[int, str, int], int] = {}  # rank, buffer and element; whatever is not there is junk
        self.flagged: dict[tuple[int, int, int], tuple[int, int]] = {}  # packets: rank, half, element: flag and value
        self.counter: dict[tuple[Any, ...], int] = {}
        self.fifo: dict[tuple[int, int], deque[Any]] = {}
        self.done: dict[tuple[int, int], int] = {}
        self.token = {}
        for rank, gpu in enumerate(self.gpus):
            for number, semaphore in enumerate(gpu.get("semaphores", ())):
                self.counter["local", rank, number] = semaphore["init_value"]
        self.lists = {
            (kind, rank): [p for row in gpu["channels"] if row["channel_type"] == kind for p in row["connected_to"]]
            for rank, gpu in enumerate(self.gpus) for kind in ("memory", "port")
        }  # fmt: skip

    def _every(self) -> list[dict[str, Any]]:
        rows = [one for gpu in self.gpus for block in gpu["threadblocks"] for one in block["ops"]]
        return [*rows, *(inner for one in rows for inner in one.get("ops", ()))]

    def _room(self) -> int:
        """Elements that a chunk of scratch has room for: as many units as its share of 64 MiB; 0: all of the chunk."""
        loops = [one["iter_context"]["unit_size"] for one in self._every() if one["name"] == "pipeline"]
        return UNIT * (2**26 // self.gpus[0]["scratch_chunks"] // loops[0]) if loops else 0

    def _unrolled(self, operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Operations in their order; within pipelines each with the element where its unit begins."""
        every = []
        for one in operations:
            if one["name"] == "pipeline":
                turns = range(0, one["iter_context"]["num_chunks"] * self.per, UNIT)
                every += [{**inner, "from": turn} for turn in turns for inner in one["ops"]]
            else:
                every.append(one)
        return every

    # ---- what users want ----

    def value(self, call: int, block: int, rank: int, element: int) -> int:
        key = call, block, rank, element
        if key not in self.token:
            self.token[key] = self.rng.getrandbits(100) << 8 | 1  # the low bits count contributions
        return self.token[key]

    def sides(self, rank: int) -> tuple[list[int], list[int]]:
        """Blocks of the input and of the output, in their order; of each who contributes is `givers`."""
        n = len(self.gpus)
        everything = list(range(n))
        return {
            "allreduce": ([0], [0]), "allgather": ([rank], everything), "reducescatter": (everything, [rank]),
            "alltoall": ([rank * n + to for to in everything], [at * n + rank for at in everything]),
            "broadcast": ([0] if rank == 0 else [], [0]), "reduce": ([0], [0] if rank == 0 else []),
        }[self.kind]  # fmt: skip

    def chunks(self) -> int:
        """Of a block."""
        first, _ = self.sides(0)
        return int(self.gpus[0]["input_chunks"]) // len(first)

    def address(self, rank: int, kind: str, element: int, at: int | None = None) -> tuple[int, str, int]:
        """Where an element of a buffer lies, as rank reckons it for the rank `at`."""
        there = rank if at is None else at
        if kind == "s" or not self.in_place:
            return there, kind, element
        one = self.chunks() * self.per
        shift = {("allgather", "i"): rank * one, ("reducescatter", "o"): rank * one}.get((self.kind, kind), 0)
        return there, "u", element + shift

    def begin(self, rank: int, call: int) -> None:
        first, last = self.sides(rank)
        if call:
            self.look(rank, call - 1)
        size = self.chunks() * self.per
        for element in range(len(last) * size):
            self.memory.pop(self.address(rank, "o", element), None)
        for place, block in enumerate(first):
            for element in range(size):
                self.memory[self.address(rank, "i", place * size + element)] = self.value(call, block, rank, element)

    def look(self, rank: int, call: int) -> None:
        _, last = self.sides(rank)
        size, n = self.chunks() * self.per, len(self.gpus)
        for place, block in enumerate(last):
            givers = {"allgather": [block], "alltoall": [block // n], "broadcast": [0]}.get(self.kind, list(range(n)))
            for element in range(size):
                want = sum(self.value(call, block, giver, element) for giver in givers)
                if self.memory.get(self.address(rank, "o", place * size + element)) != want:
                    raise WrongError(f"rank {rank}, call {call}: element {element} of block {block} is wrong")

    # ---- a run ----

    def run(self) -> None:
        """WrongError where it hangs, ends with other data than it should, or needs what is not there."""
        threads: dict[tuple[int, int, int], Steps] = {}
        state = [(0, 0)] * len(self.gpus)  # of each rank its call, and how many threads are left
        width = self._threads()

        def start(rank: int, call: int) -> None:
            self.begin(rank, call)
            blocks = self.gpus[rank]["threadblocks"]
            self.arrived: dict[Any, int] = getattr(self, "arrived", {})
            for number, block in enumerate(blocks):
                shares: dict[Any, list[int]] = {}
                for thread in range(width):
                    threads[rank, number, thread] = self.thread(rank, call, number, block, thread, width, shares)
            state[rank] = call, len(blocks) * width

        for rank in range(len(self.gpus)):
            start(rank, 0)
        order: dict[Any, float] = {}
        idle = steps = 0
        while threads or any(self.fifo.values()):
            actors: list[Any] = [*threads, *(("port", *key) for key, queue in self.fifo.items() if queue)]
            if self.rng.random() < 0.02 or not order:
                order = {}
            actors.sort(key=lambda one: order.setdefault(one, self.rng.random()))
            moved = False
            for actor in actors:
                if actor[0] == "port":
                    self.proxy(actor[1:])
                    moved = True
                    break
                try:
                    if next(threads[actor]) is not WAITING:
                        moved = True
                        break
                except StopIteration:
                    del threads[actor]
                    rank = actor[0]
                    call, left = state[rank]
                    state[rank] = call, left - 1
                    if left == 1:
                        if call + 1 < self.calls:
                            start(rank, call + 1)
                        else:
                            self.after(rank)
                    moved = True
                    break
            steps += 1
            idle = 0 if moved else idle + 1
            if idle > 2 or steps > MOST_STEPS:
                raise WrongError("hangs")
        for rank in range(len(self.gpus)):
            self.look(rank, self.calls - 1)

    def after(self, rank: int) -> None:
        """The user's, who may do with inputs what he likes."""
        self.look(rank, self.calls - 1)
        if not self.in_place:
            for place in range(len(self.sides(rank)[0]) * self.chunks() * self.per):
                self.memory.pop(self.address(rank, "i", place), None)

    def _threads(self) -> int:
        lists = ("channel_ids", "semaphore_ids", "dst_buff")
        return max(2, *(len(one.get(name, ())) for one in self._every() for name in lists))

    # ---- a thread ----

    def thread(
        self, rank: int, call: int, number: int, block: dict[str, Any], thread: int, width: int, shares: dict[Any, Any]
    ) -> Steps:
        names = {kind: [i for row in block["channels"] if row["channel_type"] == kind for i in row["channel_ids"]]
                 for kind in ("memory", "port")}  # fmt: skip
        refs = {kind: [i for row in block.get("remote_buffer_refs", ()) if row["access_channel_type"] == kind
                       for i in row["remote_buffer_ids"]] for kind in ("memory", "port")}  # fmt: skip
        joined = [(group["ranks"], row["buffer_type"]) for row in self.gpus[rank]["channels"]
                  if row["channel_type"] == "switch" for group in row["rank_groups"]]  # fmt: skip
        refs["switch"] = [joined[i] for row in block["channels"] if row["channel_type"] == "switch"
                          for i in row["channel_ids"]]  # fmt: skip
        syncs = 0
        for at, one in enumerate(self._unrolled(block["ops"])):
            name = one["name"]
            if name in ("nop", "barrier"):
                syncs += 1
                yield from self.meet(("nop", rank, call, number, at), width)
                if name == "barrier" and one["num_threadblocks"] > 1:
                    key = "barrier", rank, one["barrier_id"]
                    if thread == 0:
                        yield from self.barrier(key, one["num_threadblocks"])
                    yield from self.meet(("nop", rank, call, number, at, "out"), width)
            elif name in ("signal", "rlxsignal", "wait", "rlxwait"):
                if thread < len(one["channel_ids"]):
                    kind = one["channel_type"]
                    channel = names[kind][one["channel_ids"][thread]]
                    yield from self.tell(rank, kind, channel, take=name.endswith("wait"))
            elif name in ("sem_acquire", "sem_release"):
                if thread < len(one["semaphore_ids"]):
                    yield from self.local(("local", rank, one["semaphore_ids"][thread]), take=name == "sem_acquire")
            elif name == "flush":
                if thread < len(one.get("dst_buff", ())):
                    yield from self.flush((rank, names["port"][one["channel_ids"][thread]]))
            elif one.get("channel_type") == "port" and name in ("put", "pws", "pwsf", "ppkt", "rppkt"):
                if name == "rppkt":  # all threads see all packets, and meet
                    yield from self.data(rank, call, {**one, "dst_buff": []}, refs, thread, width, {})
                    yield from self.meet(("nop", rank, call, number, at), width)
                if thread < len(one["dst_buff"]):
                    yield from self.push(rank, call, one, names, refs, thread)
            else:
                yield from self.data(rank, call, one, refs, thread, width, shares.setdefault(at, {}))
        yield None

    def meet(self, key: Any, width: int) -> Steps:
        self.arrived[key] = self.arrived.get(key, 0) + 1
        yield None
        while self.arrived[key] < width:
            yield WAITING

    def barrier(self, key: Any, blocks: int) -> Steps:
        """Three counters in turn, as it is done there; the one after the next is set to 0 on arrival."""
        counts = self.counter
        now = (counts.get((*key, "now"), 0) + 1) % 3
        counts[*key, (now + 1) % 3] = 0
        counts[*key, now] = counts.get((*key, now), 0) + 1
        yield None
        while counts[*key, now] != blocks:
            yield WAITING
        counts[*key, "now"] = now
        yield None

    def tell(self, rank: int, kind: str, channel: int, *, take: bool) -> Steps:
        known = self.lists[kind, rank]
        peer = known[channel]
        number = known[:channel].count(peer)
        key = (kind, peer, rank, number) if take else (kind, rank, peer, number)
        if not take:
            if kind == "port":
                self.fifo.setdefault((rank, channel), deque()).append(("signal", key))
            else:
                self.counter[key] = self.counter.get(key, 0) + 1
            yield None
            return
        self.counter["due", *key] = due = self.counter.get(("due", *key), 0) + 1
        yield None
        while self.counter.get(key, 0) < due:
            yield WAITING

    def local(self, key: Any, *, take: bool) -> Steps:
        if not take:
            self.counter[key] += 1
            yield None
            return
        old = self.counter[key]
        self.counter[key] -= 1
        yield None
        while old <= 0 and self.counter[key] < old:
            yield WAITING

    # ---- ports ----

    def push(self, rank: int, call: int, one: Any, names: Any, refs: Any, at: int) -> Steps:
        channel = names["port"][one["channel_ids"][at]]
        flagged = one["name"].endswith("pkt")
        source, target = one["src_buff"][0 if one["name"] == "rppkt" else at], one["dst_buff"][at]
        buffer = self.gpus[rank]["remote_buffers"][refs["port"][target["buffer_id"]]]
        group = one.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        size = (source if flagged else target)["size"] * self.per // group["tbg_size"]
        skip = size * group["tb_id"]
        if "from" in one:
            skip, size = one["from"], min(size - one["from"], UNIT)
        low = self.begins(source["index"], source["type"], skip, one)
        into = self.begins(target["index"], buffer["type"], skip, one)
        half = call % 2 if self.plan.get("use_double_scratch_buffer") else 0
        pairs = [
            ((rank, half, low + i), (buffer["rank"], half, into + i))
            if flagged
            else (
                self.address(rank, source["type"], low + i),
                self.address(rank, buffer["type"], into + i, buffer["rank"]),
            )
            for i in range(size)
        ]
        queue = self.fifo.setdefault((rank, channel), deque())
        for pair in pairs:
            queue.append(("packet" if flagged else "move", *pair))
        if one["name"] in ("pws", "pwsf"):
            peer = self.lists["port", rank][channel]
            queue.append(("signal", ("port", rank, peer, self.lists["port", rank][:channel].count(peer))))
        yield None
        if one["name"] == "pwsf":
            yield from self.flush((rank, channel))

    def begins(self, index: int, kind: str, skip: int, one: Any, *, wraps: bool = True) -> int:
        """The element of a buffer at which what an operation does there begins."""
        if kind != "s" or "from" not in one or not self.plan.get("reuse_resources"):
            return index * self.per + skip
        return index * self._room() + (skip % self._room() if wraps else skip)

    def flush(self, key: tuple[int, int]) -> Steps:
        mark = object()
        self.fifo.setdefault(key, deque()).append(("mark", mark))
        yield None
        while mark not in self.counter:
            yield WAITING

    def proxy(self, key: Any) -> None:
        what, *rest = self.fifo[tuple(key)].popleft()
        if what == "packet":  # as it lies there, with its flag
            self.flagged[rest[1]] = self.flagged.get(rest[0], (0, 0))
        elif what == "move":
            self.memory[rest[1]] = self.read(rest[0])
        elif what == "signal":
            self.counter[rest[0]] = self.counter.get(rest[0], 0) + 1
        else:
            self.counter[rest[0]] = 1

    # ---- data ----

    def read(self, address: Any) -> int:
        return self.memory.get(address, 1 << 200)  # junk spoils every sum

    def data(self, rank: int, call: int, one: Any, refs: Any, thread: int, width: int, shares: dict[Any, Any]) -> Steps:
        """The elements of this thread, one after another."""
        for row, (reads, flags, writes, marks, count) in enumerate(self.rows(rank, call, one, refs)):
            if row not in shares:
                shares[row] = [i % width for i in range(count)]
                if not one["name"].endswith("pkt"):  # packets are dealt alike by all operations
                    self.rng.shuffle(shares[row])
            for i in [i for i, owner in enumerate(shares[row]) if owner == thread]:
                total = 0
                for address in flags:
                    place = address[0], address[1], address[2] + i
                    while self.flagged.get(place, (0, 0))[0] != call + 1:
                        yield WAITING
                    total += self.flagged[place][1]
                for make in reads:
                    total += self.read(make(i))
                yield None
                for make in writes:
                    self.memory[make(i)] = total
                for address in marks:
                    self.flagged[address[0], address[1], address[2] + i] = call + 1, total
                yield None

    def rows(self, rank: int, call: int, one: Any, refs: Any) -> Any:
        name, half = one["name"], call % 2 if self.plan.get("use_double_scratch_buffer") else 0
        sources, targets = one.get("src_buff", []), one.get("dst_buff", [])
        group = one.get("tbg_info", {"tb_id": 0, "tbg_size": 1})

        def span(size: int) -> tuple[int, int]:
            if "from" in one:
                return one["from"], min(size * self.per - one["from"], UNIT)
            return size * self.per // group["tbg_size"] * group["tb_id"], size * self.per // group["tbg_size"]

        def mine(
            place: Any, skip: int, index: int | None = None, kind: str | None = None, *, wraps: bool = True
        ) -> Any:
            where = place["index"] if index is None else index
            base = self.begins(where, kind or place["type"], skip, one, wraps=wraps)
            return lambda i: self.address(rank, kind or place["type"], base + i)

        def theirs(place: Any, skip: int, index: int | None = None) -> Any:
            buffer = self.gpus[rank]["remote_buffers"][refs["memory"][place["buffer_id"]]]
            base = self.begins(place["index"] if index is None else index, buffer["type"], skip, one)
            return lambda i: self.address(rank, buffer["type"], base + i, buffer["rank"])

        def packets(place: Any, skip: int) -> tuple[int, int, int]:
            at = rank
            if "buffer_id" in place:
                at = self.gpus[rank]["remote_buffers"][refs["memory"][place["buffer_id"]]]["rank"]
            return at, half, place["index"] * self.per + skip

        def everywhere(place: Any, skip: int) -> list[Any]:
            ranks, kind = refs["switch"][place["switch_channel_id"]]
            base = place["index"] * self.per + skip
            return [lambda i, at=at: self.address(rank, kind, base + i, at) for at in ranks]

        if name in ("put", "pws", "pwsf"):
            for source, target in zip(sources, targets, strict=False):
                skip, count = span(target["size"])
                yield [mine(source, skip, kind=sources[0]["type"])], [], [theirs(target, skip)], [], count
        elif name == "get":
            for source, target in zip(sources, targets, strict=False):
                skip, count = span(source["size"])
                yield [theirs(source, skip, target["index"])], [], [mine(target, skip, source["index"])], [], count
        elif name == "ppkt":
            for source, target in zip(sources, targets, strict=False):
                skip, count = span(source["size"])
                yield [mine(source, skip, kind=sources[0]["type"])], [], [], [packets(target, skip)], count
        elif name in ("copy", "re", "res", "rre", "rres"):
            skip, count = span(sources[0]["size"])
            remote = name.startswith("rr")
            further = sources[1:] if name != "copy" else []
            more = [theirs(place, skip) if remote else mine(place, skip, wraps=False) for place in further]
            far = [theirs(place, skip) for place in targets[1:]] if name in ("res", "rres") else []
            yield [mine(sources[0], skip), *more], [], [mine(targets[0], skip), *far], [], count
        elif name in ("glres", "gstore"):
            skip, count = span(targets[0]["size"])
            reads = everywhere(sources[0], skip) if name == "glres" else [mine(sources[0], skip)]
            yield reads, [], everywhere(targets[0], skip), [], count
        elif name in ("upkt", "rppkt", "cpkt", "repkt", "respkt", "recpkt", "recspkt"):
            skip, count = span(sources[0]["size"])
            marks = {"upkt": [], "repkt": [], "recpkt": targets[1:2]}.get(name, targets[name.startswith("re") :])
            plain = targets[:1] if name in ("upkt", "repkt", "respkt", "recpkt", "recspkt") else []
            flags = {"upkt": sources[:1], "rppkt": sources[:1], "cpkt": []}.get(name, sources[1:])
            reads = sources[:1] if name in ("cpkt", "repkt", "respkt", "recpkt", "recspkt") else []
            yield (
                [mine(place, skip) for place in reads], [packets(place, skip) for place in flags],
                [mine(place, skip) for place in plain], [packets(place, skip) for place in marks], count,
            )  # fmt: skip
        else:
            raise WrongError(f"no operation {name}")
