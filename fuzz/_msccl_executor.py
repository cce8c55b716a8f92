"""What MSCCL's executor does with a file, told from what is known of it alone: the judge of `msccl`.

Values are sums of random numbers. A file is right if every run ends, with what the collective says: one in which all go
as far as they can; for each step one in which it waits until nothing else can go on, so that all that does not need it
comes before it, and one in which it waits so after it has read and before it writes; some in random orders. Each with
messages whole, and chunk by chunk.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import dataclass, field

TAG = re.compile(rb"<(/?)(\w+)((?:\s+\w+=\"[^\"]*\")*)\s*(/?)>")
ATTRIBUTE = re.compile(rb"(\w+)=\"([^\"]*)\"")
SENDING, RECEIVING = {"s", "rcs", "rrs", "rrcs"}, {"r", "rcs", "rrs", "rrc", "rrcs"}
COUNT = 1 << 80
DECLARED = {"i": "i_chunks", "o": "o_chunks", "s": "s_chunks"}


class Bad(Exception):
    """Why it is not right."""


@dataclass
class Move:
    kind: str
    count: int
    dst: tuple[str, int]
    srcs: list[tuple[str, int]]
    needs: list[tuple[int, int]]
    shows: int = -1
    flag: bool = False


@dataclass
class Worker:
    rank: int
    send: int
    recv: int
    chan: int
    moves: list[Move] = field(default_factory=list)


def verdict(data: bytes, seed: int = 0) -> str | None:
    """None where it is right, for every place that it says it is for; of calls with a root, for the one that it says,
    or for any."""
    try:
        head, gpus = parsed(data)
        if head["inplace"] == head["outofplace"] == "0":
            return None  # it is never used
        workers = prepared(head, gpus)
    except Bad as why:
        return str(why)
    if head["coll"] not in ("broadcast", "reduce", "gather", "scatter") or "root" in head:
        return _of_root(head, gpus, workers, seed)
    said = [_of_root({**head, "root": str(root)}, gpus, workers, seed) for root in range(int(head["ngpus"]))]
    return None if None in said else said[0]


def _of_root(
    head: dict[str, str], gpus: dict[int, dict], workers: dict[tuple[int, int], Worker], seed: int
) -> str | None:  # fmt: skip
    try:
        for key, in_place in (("outofplace", False), ("inplace", True)):
            if int(head[key]):
                _judge(head, gpus, workers, in_place, random.Random(seed))
    except Bad as why:
        return str(why)
    return None


def parsed(data: bytes) -> tuple[dict[str, str], dict[int, dict]]:
    """The head, and by rank its attributes with its thread blocks by number."""
    head: dict[str, str] = {}
    gpus: dict[int, dict] = {}
    gpu: dict = {}
    block: dict = {}
    for closing, name, text, _ in TAG.findall(data):
        if closing:
            continue
        attributes = {key.decode(): value.decode() for key, value in ATTRIBUTE.findall(text)}
        if name == b"algo":
            head = attributes
        elif name == b"gpu":
            gpu = {**attributes, "blocks": {}}
            if int(attributes["id"]) in gpus:
                raise Bad("a rank twice")
            gpus[int(attributes["id"])] = gpu
        elif name == b"tb":
            block = {**attributes, "steps": []}
            if int(attributes["id"]) in gpu["blocks"]:
                raise Bad("a thread block twice")
            gpu["blocks"][int(attributes["id"])] = block
        else:
            block["steps"].append(attributes)
    return head, gpus


def prepared(head: dict[str, str], gpus: dict[int, dict]) -> dict[tuple[int, int], Worker]:
    """What the parser of the executor makes of it, and what it and the device take for granted."""
    ranks, channels = int(head["ngpus"]), int(head["nchannels"])
    if sorted(gpus) != list(range(ranks)) or not 1 <= channels <= 128 or int(head["nchunksperloop"]) < 1:
        raise Bad("ranks, channels or chunks make no sense")
    workers: dict[tuple[int, int], Worker] = {}
    for rank, gpu in gpus.items():
        if sorted(gpu["blocks"]) != list(range(len(gpu["blocks"]))) or not gpu["blocks"]:
            raise Bad("thread blocks are not numbered without gaps")
        seen = set()
        for number, block in gpu["blocks"].items():
            send, recv, chan = int(block["send"]), int(block["recv"]), int(block["chan"])
            if not all(-1 <= peer < ranks and peer != rank for peer in (send, recv)) or not 0 <= chan <= 128:
                raise Bad("a peer or channel that is not there")
            for side, peer in (("send", send), ("recv", recv)):
                if peer >= 0:
                    if chan >= channels or (side, peer, chan) in seen:
                        raise Bad("no such channel, or two thread blocks on one connection")
                    seen.add((side, peer, chan))
            workers[rank, number] = Worker(rank, send, recv, chan)
        for side in ("send", "recv"):
            for chan in range(channels):
                if sum(1 for what, _, where in seen if (what, where) == (side, chan)) > 32:
                    raise Bad("more than 32 peers on a channel")
        for number, block in gpu["blocks"].items():
            _moves(gpu, block, workers[rank, number])
    return workers


def _moves(gpu: dict, block: dict, worker: Worker) -> None:
    waiting: list[tuple[int, int]] = []
    chain = None
    total = 0
    for number, step in enumerate(block["steps"]):
        kind, count = step["type"], int(step["cnt"])
        _one(gpu, worker, number, step)
        needs, goal = int(step["depid"]), int(step["deps"])
        if needs >= 0:
            waiting.append((needs, goal))
        if kind == "nop":
            continue
        src, dst = (step["srcbuf"], int(step["srcoff"])), (step["dstbuf"], int(step["dstoff"]))
        if kind == "re" and chain == (dst, src[0]) and needs == -1:
            worker.moves[-1].srcs.append(src)
            worker.moves[-1].count = count
            if len(worker.moves[-1].srcs) > 16:
                raise Bad("more than 16 reductions in one")
        else:
            if waiting and needs < 0:
                raise Bad("a nop that nothing which waits follows")
            worker.moves.append(Move(kind, count, dst, [src], waiting))
            waiting = []
        total += kind == "re"
        worker.moves[-1].flag = step["hasdep"] == "1"
        chain = (dst, src[0]) if kind == "re" and not worker.moves[-1].flag and total != 16 else None
    steps = 0
    for move in worker.moves:
        for other, goal in move.needs:
            if other > 127 or other >= len(gpu["blocks"]) or not -(2**15) <= goal < 2**15:
                raise Bad("a dependency on what is not there")
        steps += max(len(move.needs) - 1, 0) + len(move.srcs) - 1
        move.shows = steps
        steps += 1


def _one(gpu: dict, worker: Worker, number: int, step: dict[str, str]) -> None:
    """What makes no sense of a step alone."""
    kind, count = step["type"], int(step["cnt"])
    if int(step["s"]) != number or number >= 64:
        raise Bad("steps are not numbered as they follow, or too many")
    if kind not in SENDING | RECEIVING | {"cpy", "re", "nop"} or step["hasdep"] not in ("0", "1"):
        raise Bad("no such step")
    if {step["srcbuf"], step["dstbuf"]} - {"i", "o", "s"}:
        raise Bad("no such buffer")
    if kind == "nop":
        return
    if not 0 <= count < 72:
        raise Bad("count")
    if (kind in SENDING and worker.send < 0) or (kind in RECEIVING and worker.recv < 0):
        raise Bad("no peer")
    named = []
    if kind in ("s", "rrs", "rrcs", "cpy", "re"):
        named.append((step["srcbuf"], int(step["srcoff"])))
    if kind in ("r", "rcs", "rrcs", "cpy", "re"):
        named.append((step["dstbuf"], int(step["dstoff"])))
    for letter, at in named:
        if count and not 0 <= at < int(gpu[DECLARED[letter]]):
            raise Bad("an offset outside of what is declared")


class Memory:
    """The buffers of all ranks before, and what must be in them in the end."""

    def __init__(self, head: dict[str, str], gpus: dict[int, dict], in_place: bool, dice: random.Random) -> None:
        kind, ranks, chunks = head["coll"], int(head["ngpus"]), int(head["nchunksperloop"])
        if kind in ("allgather", "reducescatter", "alltoall") and chunks % ranks:
            raise Bad("chunks that ranks do not divide")
        part = chunks // ranks
        root = int(head.get("root", "0"))
        rooted = kind in ("broadcast", "reduce", "gather", "scatter")
        if rooted and not 0 <= root < ranks:
            raise Bad("no such root")
        own = {
            "allreduce": (chunks, chunks), "alltoall": (chunks, chunks), "allgather": (part, chunks),
            "reducescatter": (chunks, part), "broadcast": (chunks, chunks), "reduce": (chunks, chunks),
            "gather": (chunks, chunks * ranks), "scatter": (chunks * ranks, chunks),
        }  # fmt: skip
        self.cells: list[dict[tuple[str, int], int]] = []
        self.at: list[dict[str, tuple[str, int, int]]] = []  # letter: buffer, where it begins there, its size
        give: list[list[int]] = []
        for rank in range(ranks):
            size_in, size_out = own[kind]
            if kind in ("broadcast", "scatter") and rank != root:
                size_in = 0
            if kind in ("reduce", "gather") and rank != root:
                size_out = 0
            shift_in = rank * size_in if in_place and kind in ("allgather", "gather") and size_out else 0
            shift_out = rank * size_out if in_place and kind in ("reducescatter", "scatter") and size_in else 0
            names = ("u", "u") if in_place else ("i", "o")
            self.at.append({
                "i": (names[0], shift_in, size_in), "o": (names[1], shift_out, size_out), "s": ("s", 0, 2**15),
            })  # fmt: skip
            give.append([COUNT + dice.getrandbits(64) for _ in range(size_in)])
            self.cells.append({self.cell(rank, "i", at): value for at, value in enumerate(give[-1])})
        sums = [sum(column) for column in zip(*give, strict=False)]
        self.want: list[dict[tuple[str, int], int]] = []
        for rank in range(ranks):
            size = self.at[rank]["o"][2]
            if kind in ("allreduce", "reduce"):
                wanted = sums[:size]
            elif kind == "reducescatter":
                wanted = sums[rank * part : (rank + 1) * part]
            elif kind == "broadcast":
                wanted = give[root]
            elif kind == "alltoall":
                wanted = [value for other in give for value in other[rank * part : (rank + 1) * part]]
            elif kind == "scatter":
                wanted = give[root][rank * chunks : (rank + 1) * chunks]
            else:
                wanted = [value for other in give for value in other][:size]
            first = {self.cell(rank, "i", at): value for at, value in enumerate(give[rank])}
            self.want.append({**first, **{self.cell(rank, "o", at): value for at, value in enumerate(wanted)}})

    def cell(self, rank: int, letter: str, at: int) -> tuple[str, int]:
        buffer, shift, size = self.at[rank][letter]
        if not 0 <= at < size:
            raise Bad("outside of a buffer")
        return buffer, shift + at


def _judge(
    head: dict[str, str], gpus: dict[int, dict], workers: dict[tuple[int, int], Worker], in_place: bool,
    dice: random.Random,
) -> None:  # fmt: skip
    for (rank, _), worker in workers.items():
        shape = Memory(head, gpus, in_place, random.Random(0))
        for move in worker.moves:
            reads = [] if move.kind in ("r", "rcs") else move.srcs
            writes = [] if move.kind in ("s", "rrs") else [move.dst]
            for letter, at in (*reads, *writes):
                if move.count:
                    shape.cell(rank, letter, at)
                    shape.cell(rank, letter, at + move.count - 1)
                    if letter == "s" and at + move.count > int(gpus[rank]["s_chunks"]):
                        raise Bad("outside of the scratch")
    places = [(key, at) for key, worker in workers.items() for at in range(len(worker.moves))]
    holds = [None, *((key, at, half) for key, at in places for half in (0, 1))]
    for whole in (True, False):
        if not whole and all(move.count < 2 for worker in workers.values() for move in worker.moves):
            break
        for hold in holds:
            _Run(head, gpus, workers, in_place, whole, hold, None).go()
        for _ in range(3):
            _Run(head, gpus, workers, in_place, whole, None, dice).go()


class _Run:
    def __init__(self, head, gpus, workers, in_place, whole, hold, dice) -> None:  # type: ignore[no-untyped-def]
        self.memory = Memory(head, gpus, in_place, random.Random(1))
        self.workers, self.whole, self.hold, self.dice = workers, whole, hold, dice
        self.slots = 2 if head["proto"] == "Simple" else 8
        self.queues: dict[tuple[int, int, int], list[list[int]]] = defaultdict(list)
        self.at = dict.fromkeys(workers, 0)
        self.part = dict.fromkeys(workers, 0)
        self.shown = dict.fromkeys(workers, -1)
        self.read: dict[tuple[int, int], list[int]] = {}

    def go(self) -> None:
        keys = list(self.workers)
        moved = True
        while moved or self.hold is not None:
            if not moved:
                self.hold = None
            moved = False
            if self.dice is not None:
                self.dice.shuffle(keys)
            for key in keys:
                while self._step(key):
                    moved = True
                    if self.dice is not None and self.dice.random() < 0.5:
                        break
        if any(self.at[key] < len(worker.moves) for key, worker in self.workers.items()):
            raise Bad("never ends")
        if any(self.queues.values()):
            raise Bad("messages are left")
        for rank, wanted in enumerate(self.memory.want):
            cells = self.memory.cells[rank]
            if any(cells.get(cell) != value for cell, value in wanted.items()):
                raise Bad("ends with other data")

    def _step(self, key: tuple[int, int]) -> bool:
        worker = self.workers[key]
        if self.at[key] == len(worker.moves) or self.hold == (key, self.at[key], int(key in self.read)):
            return False
        move = worker.moves[self.at[key]]
        fresh = key not in self.read and self.part[key] == 0
        if fresh and any(self.shown[worker.rank, other] < max(goal, 0) for other, goal in move.needs):
            return False
        come, go = (worker.recv, worker.rank, worker.chan), (worker.rank, worker.send, worker.chan)
        receives, sends = move.kind in RECEIVING and move.count > 0, move.kind in SENDING and move.count > 0
        count = move.count if self.whole or not (receives or sends) else 1
        if key not in self.read:
            if (receives and not self.queues[come]) or (sends and len(self.queues[go]) >= self.slots):
                return False
            self.read[key] = self._value(worker, move, self.part[key], count, come if receives else None)
            return True
        self._done(worker, move, self.part[key], self.read.pop(key), go if sends else None)
        self.part[key] += count
        if self.part[key] >= move.count:
            self.part[key] = 0
            self.at[key] += 1
            if move.flag:
                self.shown[key] = move.shows
        return True

    def _value(self, worker, move, low, count, come) -> list[int]:  # type: ignore[no-untyped-def]
        cells, rank = self.memory.cells[worker.rank], worker.rank
        values: list[list[int]] = []
        if come is not None:
            values.append(self.queues[come].pop(0))
            if len(values[0]) != count:
                raise Bad("a message of another length")
        reads = [] if move.kind in ("r", "rcs") else list(move.srcs)
        if move.kind == "re":
            reads.append(move.dst)
        for letter, at in reads:
            here = [cells.get(self.memory.cell(rank, letter, at + low + i)) for i in range(count)]
            if None in here:
                raise Bad("reads what is not there")
            values.append(here)  # type: ignore[arg-type]
        return [sum(column) for column in zip(*values, strict=True)]

    def _done(self, worker, move, low, result, go) -> None:  # type: ignore[no-untyped-def]
        cells, rank = self.memory.cells[worker.rank], worker.rank
        if move.kind not in ("s", "rrs"):
            for i, value in enumerate(result):
                cells[self.memory.cell(rank, move.dst[0], move.dst[1] + low + i)] = value
        if go is not None:
            self.queues[go].append(result)
