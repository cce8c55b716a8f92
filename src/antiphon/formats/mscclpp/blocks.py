"""Steps of a rank as thread blocks of the executor: channels and remote buffers numbered, cut where a block is full.

What does not fit into one block goes on in the next, which waits for the one before: by a semaphore, and when these
are used up by a barrier of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from antiphon.core.program.kinds import SCRATCH
from antiphon.errors import Unsupported
from antiphon.formats.mscclpp.limits import (
    KINDS,
    MEMORY,
    MOST_BARRIERS,
    MOST_CHANNELS,
    MOST_OF_ONE,
    MOST_OPERATIONS,
    MOST_SEMAPHORES,
    PORT,
    SWITCH,
)
from antiphon.lower.onesided.form import (
    ADD,
    FOLD,
    PACK,
    PACKETS,
    PUT,
    SIGNAL,
    SPREAD,
    SYNC,
    UNPACK,
    WAIT,
    Move,
    Place,
    Step,
)
from antiphon.lower.onesided.form import SWITCH as SWITCHES

NOP = '{"name":"nop"}'
ROOM = MOST_OPERATIONS - 4  # a link before and behind takes two each


@dataclass
class Block:
    """`operations` as JSON; `channels` and `buffers` by type, as numbers of the rank."""

    operations: list[str] = field(default_factory=list)
    channels: dict[str, list[int]] = field(default_factory=lambda: {MEMORY: [], PORT: [], SWITCH: []})
    buffers: dict[str, list[int]] = field(default_factory=lambda: {MEMORY: [], PORT: [], SWITCH: []})


Group = tuple[tuple[int, ...], str]


@dataclass
class Gpu:
    """A rank: `channels` by type and peer, `groups` of switches as (ranks, kind), `buffers` as (peer, kind, type)."""

    blocks: list[Block]
    channels: dict[str, list[int]]
    buffers: list[tuple[int, str, str]]
    links: int
    groups: list[Group] = field(default_factory=list)

    @property
    def semaphores(self) -> int:
        return min(self.links, MOST_SEMAPHORES)


@dataclass(frozen=True)
class Ends:
    """How a rank reaches others: by a port where `far` says so. `kind`: what a buffer is called in the file. `groups`:
    those of switches that it is in."""

    rank: int
    far: Callable[[int, int], bool]
    kind: Callable[[int], str]
    groups: list[Group] = field(default_factory=list)

    def type(self, peer: int) -> str:
        return PORT if self.far(self.rank, peer) else MEMORY


def gpu_of(ends: Ends, streams: Iterable[list[Step]]) -> Gpu:
    """The thread blocks of a rank. Its channels are numbered by peer, then by stream, on both sides alike."""
    every = [_ported(ends, steps) for steps in streams]
    used = sorted({(peer, number) for number, steps in enumerate(every) for step in steps for peer in _peers(step)})
    number: dict[tuple[int, int], int] = {}
    channels: dict[str, list[int]] = {MEMORY: [], PORT: []}
    for peer, stream in used:
        kind = ends.type(peer)
        number[peer, stream] = len(channels[kind])
        channels[kind].append(peer)
    gpu = Gpu([], channels, [], 0, ends.groups)
    buffers: dict[tuple[int, str, str], int] = {}
    for stream, steps in enumerate(every):
        if steps:
            cut = _Cut(ends, {peer: number[peer, s] for peer, s in used if s == stream}, buffers, gpu.links)
            gpu.blocks += cut.blocks(steps)
            gpu.links = cut.links
    gpu.buffers = list(buffers)
    return gpu


def _peers(step: Step) -> Iterable[int]:
    """With whom it needs channels; switches have their own."""
    return () if step.kind in (SWITCHES, SPREAD) else (*step.peers, *(move.peer for move in step.moves))


def _ported(ends: Ends, steps: list[Step]) -> list[Step]:
    """What goes through ports is not put until the signal that follows, and then in one with it: the proxy does both in
    order, and the rank goes on when the data has left."""
    if not any(ends.far(ends.rank, peer) for step in steps for peer in _peers(step)):
        return steps
    held: dict[int, list[Move]] = {}
    made: list[Step] = []
    for step in steps:
        far = [move for move in step.moves if ends.far(ends.rank, move.peer)]
        for move in far:
            held.setdefault(move.peer, []).append(move)
        near = tuple(move for move in step.moves if move not in far)
        if step.kind == SIGNAL:
            moves = [move for peer in step.peers for move in held.pop(peer, [])]
            made.append(step._replace(moves=tuple(moves)))
        elif step.kind != PUT or near:
            made.append(step._replace(moves=near))
    return made


class _Cut:
    """The blocks of one stream."""

    def __init__(
        self, ends: Ends, channel: dict[int, int], buffers: dict[tuple[int, str, str], int], links: int
    ) -> None:
        self.ends, self.channel, self.buffers, self.links = ends, channel, buffers, links
        self.made = [Block()]

    def blocks(self, steps: list[Step]) -> list[Block]:
        for step in steps:
            if step.kind == SYNC:
                self._add([NOP])
            elif step.kind in (SIGNAL, WAIT):
                self._tell(step)
            elif step.kind == PUT:
                self._put("put", MEMORY, step.moves)
            elif step.kind == PACK:
                self._put("ppkt", MEMORY, step.moves)
            elif step.kind in (FOLD, ADD, UNPACK):
                self._fold(step)
            else:
                self._switch(step)
        return self.made

    def _tell(self, step: Step) -> None:
        moves = {move.peer for move in step.moves}
        if step.moves:
            self._through_ports(step.moves)
        for kind in (MEMORY, PORT):
            peers = [peer for peer in step.peers if self.ends.type(peer) == kind and peer not in moves]
            if peers:
                block = self._room(1, kind, self._channels(peers), [])
                ids = ",".join(str(block.channels[kind].index(self.channel[peer])) for peer in peers)
                name = "signal" if step.kind == SIGNAL else "wait"
                block.operations.append(f'{{"name":"{name}","channel_ids":[{ids}],"channel_type":"{kind}"}}')

    def _through_ports(self, moves: tuple[Move, ...]) -> None:
        """All but the last move to each, then the last with the signal, and a pause until it has left."""
        last = {move.peer: move for move in moves}
        earlier = [move for move in moves if move is not last[move.peer]]
        for low in range(0, len(earlier), MOST_OF_ONE):
            self._put("put", PORT, tuple(earlier[low : low + MOST_OF_ONE]))
        if earlier:
            self._add([NOP])
        final = list(last.values())
        for low in range(0, len(final), MOST_OF_ONE):
            self._put("pwsf", PORT, tuple(final[low : low + MOST_OF_ONE]))
        self._add([NOP])

    def _put(self, name: str, kind: str, moves: tuple[Move, ...]) -> None:
        block = self._room(1, kind, self._channels(move.peer for move in moves), list(moves))
        ids = ",".join(str(block.channels[kind].index(self.channel[move.peer])) for move in moves)
        source = ",".join(self._local(move.source, move.size) for move in moves)
        target = ",".join(self._remote(block, kind, move) for move in moves)
        block.operations.append(
            f'{{"name":"{name}","src_buff":[{source}],"dst_buff":[{target}],"channel_ids":[{ids}],'
            f'"channel_type":"{kind}"}}'
        )

    def _fold(self, step: Step) -> None:
        source = ",".join(self._local(place, step.size) for place in step.operands)
        into = self._local(step.into, step.size)
        flagged = "pkt" if step.kind == ADD else ""
        if len(step.operands) == 1:
            name = "upkt" if step.kind == UNPACK else "copy"
            self._add([f'{{"name":"{name}","src_buff":[{source}],"dst_buff":[{into}]}}'])
        elif not step.moves:
            self._add([f'{{"name":"re{flagged}","src_buff":[{source}],"dst_buff":[{into}],"reduce_op":"sum"}}'])
        else:
            peers = [move.peer for move in step.moves]
            block = self._room(1, MEMORY, self._channels(peers), list(step.moves))
            target = ",".join([into, *(self._remote(block, MEMORY, move) for move in step.moves)])
            ids = ",".join(str(block.channels[MEMORY].index(self.channel[peer])) for peer in peers)
            block.operations.append(
                f'{{"name":"res{flagged}","src_buff":[{source}],"dst_buff":[{target}],"channel_ids":[{ids}],'
                f'"channel_type":"memory","reduce_op":"sum"}}'
            )

    def _switch(self, step: Step) -> None:
        places = [step.into, *step.operands] if step.kind == SWITCHES else [step.into]
        ids = [self.ends.groups.index((step.peers, self.ends.kind(place[0]))) for place in places]
        block = self._room(1, SWITCH, ids, [])
        target, *source = (
            f'{{"switch_channel_id":{block.channels[SWITCH].index(at)},"index":{place[1]},"size":{step.size}}}'
            for at, place in zip(ids, places, strict=True)
        )
        name, more = ("glres", ',"reduce_op":"sum"') if source else ("gstore", "")
        read = source[0] if source else self._local(step.operands[0], step.size)
        block.operations.append(
            f'{{"name":"{name}","src_buff":[{read}],"dst_buff":[{target}],"channel_type":"{SWITCH}"{more}}}'
        )

    def _channels(self, peers: Iterable[int]) -> list[int]:
        return [self.channel[peer] for peer in peers]

    def _local(self, place: Place, size: int) -> str:
        return f'{{"type":"{self._kind(place)}","index":{place[1]},"size":{size}}}'

    def _kind(self, place: Place) -> str:
        return self.ends.kind(SCRATCH if place[0] == PACKETS else place[0])

    def _remote(self, block: Block, kind: str, move: Move) -> str:
        at = block.buffers[kind].index(self._buffer(kind, move))
        return f'{{"buffer_id":{at},"index":{move.target[1]},"size":{move.size}}}'

    def _buffer(self, kind: str, move: Move) -> int:
        return self.buffers.setdefault((move.peer, self._kind(move.target), kind), len(self.buffers))

    def _add(self, operations: list[str]) -> None:
        self._room(len(operations), MEMORY, [], []).operations.extend(operations)

    def _room(self, more: int, kind: str, numbers: list[int], moves: list[Move]) -> Block:
        """The block that takes so many operations more, with these channels and buffers; a new one where none does."""
        block = self.made[-1]
        if not moves and len(block.operations) + more <= ROOM and set(numbers) <= set(block.channels[kind]):
            return block
        for _ in range(2):
            channels = list(dict.fromkeys([*block.channels[kind], *numbers]))
            buffers = list(dict.fromkeys([*block.buffers[kind], *(self._buffer(kind, move) for move in moves)]))
            full = len(channels) > MOST_CHANNELS or len(buffers) > MOST_CHANNELS
            if not full and len(block.operations) + more <= ROOM + (2 if len(self.made) == 1 else 0):
                block.channels[kind], block.buffers[kind] = channels, buffers
                return block
            block = self._next()
        raise AssertionError("an operation fits into an empty block")

    def _next(self) -> Block:
        old, new = self.made[-1], Block()
        if self.links < MOST_SEMAPHORES:
            ids = f'"semaphore_ids":[{self.links}]'
            old.operations += [NOP, f'{{"name":"sem_release",{ids}}}']
            new.operations += [f'{{"name":"sem_acquire",{ids}}}', NOP]
        elif self.links < MOST_SEMAPHORES + MOST_BARRIERS:
            both = f'{{"name":"barrier","barrier_id":{self.links - MOST_SEMAPHORES},"num_threadblocks":2}}'
            old.operations.append(both)
            new.operations.append(both)
        else:
            raise Unsupported(
                f"rank {self.ends.rank}: more than {MOST_SEMAPHORES + MOST_BARRIERS} of its thread blocks go on where "
                "another is full, and GPUs have no more semaphores and barriers"
            )
        self.links += 1
        self.made.append(new)
        return new


def kinds_of(whole: int | None) -> Callable[[int], str]:
    """What the buffers of a program are called. `whole`: in place, which of the two stands for the one buffer."""
    if whole is None:
        return KINDS.__getitem__
    return (KINDS[whole], KINDS[whole], KINDS[2]).__getitem__
