"""Steps of a rank as thread blocks of the executor: channels and remote buffers numbered, cut where a block is full.

What does not fit into one block goes on in the next, which waits for the one before: by a semaphore, and when these
are used up by a barrier. A barrier serves two blocks, or a **crowd**: each comes to it as often as there are others,
the first when it is done, the second once before its work and then when that is done, and so on. So

    block 0   work  barrier  barrier
    block 1   barrier  work  barrier
    block 2   barrier  barrier  work
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from antiphon.core.collective import Collective
from antiphon.core.program import Bound, Program
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH, chunked
from antiphon.errors import Unsupported
from antiphon.formats.mscclpp.shape import (
    FEW_CELLS,
    KINDS,
    MEMORY,
    MOST_BARRIERS,
    MOST_BLOCKS,
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
from antiphon.lower.onesided.packets import ByPackets
from antiphon.lower.onesided.steps import OneSided
from antiphon.lower.onesided.switched import INSTEAD, Switched
from antiphon.lower.uncollected import uncollected

NOP = '{"name":"nop"}'
WHAT = "back end mscclpp-json"
MOST_CHUNKS = 2**20
FEW = 4  # streams, where more do not fit
Dealt = tuple[int, Callable[[int], list[list[Step]]]]  # how many streams, and what a rank does in each
CROWD = 7  # so many blocks at a barrier: then semaphores and barriers link more of them than there may be


@dataclass
class BlockText:
    """`operations` as JSON; `channels` and `buffers` by type, as numbers of the rank, each with its place."""

    operations: list[str] = field(default_factory=list)
    channels: dict[str, dict[int, int]] = field(default_factory=lambda: {MEMORY: {}, PORT: {}, SWITCH: {}})
    buffers: dict[str, dict[int, int]] = field(default_factory=lambda: {MEMORY: {}, PORT: {}, SWITCH: {}})

    def takes(self, kind: str, channels: Sequence[int], buffers: Sequence[int]) -> bool:
        """Whether it has these, or has had room for them and has them now."""
        mine, theirs = self.channels[kind], self.buffers[kind]
        new, more = [one for one in channels if one not in mine], [one for one in buffers if one not in theirs]
        if not new and not more:
            return True
        if len(mine) + len(set(new)) > MOST_CHANNELS or len(theirs) + len(set(more)) > MOST_CHANNELS:
            return False
        for number in new:
            mine.setdefault(number, len(mine))
        for number in more:
            theirs.setdefault(number, len(theirs))
        return True


Group = tuple[tuple[int, ...], str]


@dataclass
class Links:
    """How many semaphores and barriers of a rank are used, and how many blocks a barrier is for at most."""

    crowd: int
    semaphores: int = 0
    barriers: int = 0


@dataclass
class Gpu:
    """A rank: `channels` by type and peer, `groups` of switches as (ranks, kind), `buffers` as (peer, kind, type)."""

    blocks: list[BlockText]
    channels: dict[str, list[int]]
    buffers: list[tuple[int, str, str]]
    links: Links
    groups: list[Group] = field(default_factory=list)


@dataclass(frozen=True)
class Ends:
    """How a rank reaches others: by a port where `far` says so. `kind`: what a buffer is called in the file. `groups`:
    those of switches that it is in."""

    rank: int
    far: Callable[[int, int], bool]
    kind: Callable[[int], str]
    groups: list[Group] = field(default_factory=list)

    def port(self, peer: int) -> bool:
        return self.far(self.rank, peer)

    def type(self, peer: int) -> str:
        return PORT if self.port(peer) else MEMORY


def gpu_of(ends: Ends, streams: Iterable[list[Step]], crowd: int = 2) -> Gpu:
    """The thread blocks of a rank, at most `crowd` at a barrier. Its channels are numbered by peer, then by stream, on
    both sides alike."""
    every = list(streams)
    peers = [_peers(steps) for steps in every]
    every = [
        _ported(ends, steps) if any(map(ends.port, some)) else steps for steps, some in zip(every, peers, strict=True)
    ]
    used = sorted((peer, number) for number, some in enumerate(peers) for peer in some)
    channels: dict[str, list[int]] = {MEMORY: [], PORT: []}
    by_stream: list[dict[int, int]] = [{} for _ in every]
    for peer, stream in used:
        kind = ends.type(peer)
        by_stream[stream][peer] = len(channels[kind])
        channels[kind].append(peer)
    gpu = Gpu([], channels, [], Links(crowd), ends.groups)
    buffers: dict[tuple[int, str, str], int] = {}
    for stream, steps in enumerate(every):
        if steps:
            gpu.blocks += _Cut(ends, by_stream[stream], buffers, gpu.links).blocks(steps)
    gpu.buffers = list(buffers)
    return gpu


def _peers(steps: list[Step]) -> set[int]:
    """With whom they need channels; switches have their own."""
    found: set[int] = set()
    for step in steps:
        if step.kind not in (SWITCHES, SPREAD):
            found.update(step.peers)
            for move in step.moves:
                found.add(move.peer)
    return found


def _ported(ends: Ends, steps: list[Step]) -> list[Step]:
    """What goes through ports is not put until the signal that follows, and then in one with it: the proxy does both in
    order, and the rank goes on when the data has left."""
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
        self, ends: Ends, channel: dict[int, int], buffers: dict[tuple[int, str, str], int], links: Links
    ) -> None:
        self.ends, self.channel, self.buffers, self.links = ends, channel, buffers, links
        self.kinds = [ends.kind(buffer) for buffer in (INPUT, OUTPUT, SCRATCH, SCRATCH)]  # of packets, too
        self.type = {peer: ends.type(peer) for peer in channel}
        self.made = [BlockText()]
        self.told: dict[tuple[int, tuple[int, ...]], str] = {}  # signals and waits that the last block has
        self.known: dict[tuple[object, ...], tuple[str, list[int]]] = {}  # channels and buffers of moves, in it
        self.crowd: list[BlockText] = []  # at the last barrier
        self.room = MOST_OPERATIONS - self._behind()

    def blocks(self, steps: list[Step]) -> list[BlockText]:
        for step in steps:
            if step.kind == SYNC:
                self._sync()
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
        self._meet()
        return self.made

    def _tell(self, step: Step) -> None:
        known = self.told.get(step[:2])
        if known is not None and not step.moves and len(self.made[-1].operations) < self.room:
            self.made[-1].operations.append(known)
            return
        moves = {move.peer for move in step.moves}
        if step.moves:
            self._through_ports(step.moves)
        for kind in (MEMORY, PORT):
            peers = [peer for peer in step.peers if self.type[peer] == kind and peer not in moves]
            if peers:
                block, ids = self._room(1, kind, peers)
                name = "signal" if step.kind == SIGNAL else "wait"
                block.operations.append(f'{{"name":"{name}","channel_ids":[{ids}],"channel_type":"{kind}"}}')
                if len(peers) == len(step.peers):
                    self.told[step[:2]] = block.operations[-1]

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
        block, ids, target = self._there(kind, moves)
        source = ",".join([self._local(move.source, move.size) for move in moves])
        block.operations.append(
            f'{{"name":"{name}","src_buff":[{source}],"dst_buff":[{target}],"channel_ids":[{ids}],'
            f'"channel_type":"{kind}"}}'
        )

    def _fold(self, step: Step) -> None:
        source = ",".join([self._local(place, step.size) for place in step.operands])
        into = self._local(step.into, step.size)
        flagged = "pkt" if step.kind == ADD else ""
        if len(step.operands) == 1:
            name = "upkt" if step.kind == UNPACK else "copy"
            self._add([f'{{"name":"{name}","src_buff":[{source}],"dst_buff":[{into}]}}'])
        elif not step.moves:
            self._add([f'{{"name":"re{flagged}","src_buff":[{source}],"dst_buff":[{into}],"reduce_op":"sum"}}'])
        else:
            block, ids, target = self._there(MEMORY, step.moves)
            block.operations.append(
                f'{{"name":"res{flagged}","src_buff":[{source}],"dst_buff":[{into},{target}],"channel_ids":[{ids}],'
                f'"channel_type":"memory","reduce_op":"sum"}}'
            )

    def _switch(self, step: Step) -> None:
        places = [step.into, *step.operands] if step.kind == SWITCHES else [step.into]
        ids = [self.ends.groups.index((step.peers, self.ends.kind(place[0]))) for place in places]
        block = self._block(1, SWITCH, ids, ())
        target, *source = (
            f'{{"switch_channel_id":{block.channels[SWITCH][at]},"index":{place[1]},"size":{step.size}}}'
            for at, place in zip(ids, places, strict=True)
        )
        name, more = ("glres", ',"reduce_op":"sum"') if source else ("gstore", "")
        read = source[0] if source else self._local(step.operands[0], step.size)
        block.operations.append(
            f'{{"name":"{name}","src_buff":[{read}],"dst_buff":[{target}],"channel_type":"{SWITCH}"{more}}}'
        )

    def _local(self, place: Place, size: int) -> str:
        return f'{{"type":"{self.kinds[place[0]]}","index":{place[1]},"size":{size}}}'

    def _there(self, kind: str, moves: Sequence[Move]) -> tuple[BlockText, str, str]:
        """The block that takes an operation with these moves; their channels, as it calls them; and their targets."""
        key = (kind, *[(move.peer, move.target[0]) for move in moves])
        known = self.known.get(key)
        if known is None or len(self.made[-1].operations) >= self.room:
            block, ids = self._room(1, kind, [move.peer for move in moves], moves)
            known = self.known[key] = ids, [block.buffers[kind][self._buffer(kind, move)] for move in moves]
        target = [
            f'{{"buffer_id":{at},"index":{move.target[1]},"size":{move.size}}}'
            for at, move in zip(known[1], moves, strict=True)
        ]
        return self.made[-1], known[0], ",".join(target)

    def _buffer(self, kind: str, move: Move) -> int:
        return self.buffers.setdefault((move.peer, self.kinds[move.target[0]], kind), len(self.buffers))

    def _sync(self) -> None:
        made = self.made[-1].operations
        if made and made[-1] is NOP:
            return
        if len(made) < self.room:
            made.append(NOP)
        else:
            self._add([NOP])

    def _add(self, operations: list[str]) -> None:
        self._block(len(operations), MEMORY, (), ()).operations.extend(operations)

    def _room(self, more: int, kind: str, peers: list[int], moves: Sequence[Move] = ()) -> tuple[BlockText, str]:
        """The block that takes so many operations more, to these peers; and their channels, as it calls them."""
        channels = [self.channel[peer] for peer in peers]
        block = self._block(more, kind, channels, [self._buffer(kind, move) for move in moves])
        mine = block.channels[kind]
        return block, ",".join([str(mine[channel]) for channel in channels])

    def _block(self, more: int, kind: str, channels: Sequence[int], buffers: Sequence[int]) -> BlockText:
        """The block that takes so many operations more, with these channels and buffers; a new one where none does."""
        block = self.made[-1]
        for _ in range(2):
            if len(block.operations) + more <= self.room and block.takes(kind, channels, buffers):
                return block
            block = self._next()
        raise Unsupported(
            f"rank {self.ends.rank}: an operation with {len(set(channels))} channels and {len(set(buffers))} remote "
            f"buffers does not fit into an empty thread block, which has room for {self.room} operations and "
            f"{MOST_CHANNELS} of each of those; take a planner with fewer partners, or one in which a message goes on "
            "to fewer ranks"
        )

    def _next(self) -> BlockText:
        old, new = self.made[-1], BlockText()
        links, before = self.links, 2
        if links.semaphores < MOST_SEMAPHORES:
            ids = f'"semaphore_ids":[{links.semaphores}]'
            if not old.operations or old.operations[-1] is not NOP:
                old.operations.append(NOP)
            old.operations.append(f'{{"name":"sem_release",{ids}}}')
            new.operations += [f'{{"name":"sem_acquire",{ids}}}', NOP]
            links.semaphores, before = links.semaphores + 1, 0  # they stand there already
        else:
            if len(self.crowd) in (0, links.crowd):
                self._begin(old)
            before = len(self.crowd)
            self.crowd.append(new)
        self.made.append(new)
        self.told, self.known = {}, {}
        self.room = MOST_OPERATIONS - before - self._behind()
        return new

    def _behind(self) -> int:
        """Operations of the link behind the last block."""
        if self.links.semaphores < MOST_SEMAPHORES:
            return 2
        return self.links.crowd - (len(self.crowd) or self.links.crowd) or self.links.crowd - 1

    def _begin(self, first: BlockText) -> None:
        self._meet()
        if self.links.barriers == MOST_BARRIERS:
            most = MOST_SEMAPHORES + MOST_BARRIERS * (self.links.crowd - 1)
            raise Unsupported(
                f"rank {self.ends.rank}: more than {most} of its thread blocks go on where another is full, and GPUs "
                "have no more semaphores and barriers"
            )
        self.links.barriers += 1
        self.crowd = [first]

    def _meet(self) -> None:
        """The blocks of the last barrier come to it, so many as they are."""
        many = len(self.crowd)
        here = f'{{"name":"barrier","barrier_id":{self.links.barriers - 1},"num_threadblocks":{many}}}'
        for number, block in enumerate(self.crowd):
            block.operations[:0] = [here] * number
            block.operations += [here] * (many - 1 - number)
        self.crowd = []


def kinds_of(whole: int | None) -> Callable[[int], str]:
    """What the buffers of a program are called. `whole`: in place, which of the two stands for the one buffer."""
    if whole is None:
        return KINDS.__getitem__
    return (KINDS[whole], KINDS[whole], KINDS[2]).__getitem__


# ---- all ranks ----


def whole_of(collective: Collective) -> int:
    """In place: whether the input or the output that callers hand over is the one buffer, whole."""
    return INPUT if collective.kind in ("reducescatter", "scatter") else OUTPUT


def gpus_of(
    program: Program, bound: Bound, known: Switched, blocks: int, far: Callable[[int, int], bool]
) -> list[Gpu]:  # fmt: skip
    kind = _kinds(program)
    groups = sorted({(ranks, kind(buffer)) for ranks, buffer in known.groups})
    if any(far(ranks[0], rank) for ranks, _ in groups for rank in ranks):
        raise Unsupported(f"{WHAT}: lets switches work for ranks of one host only; {INSTEAD}")
    ends = [Ends(rank, far, kind, [one for one in groups if rank in one[0]]) for rank in range(program.ranks)]
    whole = OneSided(program, bound, known)

    def dealt(most: int) -> Dealt:
        made = whole.dealt(most)
        return made.count, made.steps

    return _fitting(ends, blocks, dealt)


def gpus_by_packets(program: Program, blocks: int, far: Callable[[int, int], bool]) -> tuple[Bound, list[Gpu]]:
    whole = chunked(program, MOST_CHUNKS, WHAT)
    bound, packets = whole, ByPackets(program, whole)

    def dealt(most: int) -> Dealt:
        nonlocal bound
        count, steps, bound = packets.dealt(most)
        return count, steps

    gpus = _fitting([Ends(rank, far, _kinds(program)) for rank in range(program.ranks)], blocks, dealt)
    if int(bound.sizes.sum()) > FEW_CELLS:
        raise Unsupported(f"{WHAT}: {int(bound.sizes.sum())} chunks and packets, of at most {FEW_CELLS}")
    return bound, gpus


def _kinds(program: Program) -> Callable[[int], str]:
    return kinds_of(whole_of(program.collective) if program.in_place else None)


@uncollected()
def _fitting(ends: list[Ends], blocks: int, dealt: Callable[[int], Dealt]) -> list[Gpu]:
    """In as many streams as asked; where blocks are too full for these, in more, as far as there are more; and at last
    in few, where signals and waits of several are one, with long lines of blocks."""
    why, streams, tried = "", 0, 0
    tries = [(most, 2) for most in sorted({blocks, max(blocks, 64), MOST_BLOCKS})]
    for most, crowd in (*tries, (FEW, CROWD), (1, CROWD)):
        if crowd == 2 and streams < tried:  # there are no more than these
            continue
        (streams, steps_of), made, tried = dealt(most), list[Gpu](), most
        try:
            for one in ends:
                steps = steps_of(one.rank)
                if sum(map(len, steps)) > MOST_BLOCKS * MOST_OPERATIONS:  # in more streams it would not be less
                    streams = 0
                made.append(gpu_of(one, steps, crowd))
                if len(made[-1].blocks) > MOST_BLOCKS:
                    needs = f"rank {one.rank} needs {len(made[-1].blocks)} thread blocks"
                    raise Unsupported(f"{needs}, of at most {MOST_BLOCKS} that are there at once")
        except Unsupported as error:
            why = str(error)
            continue
        return made
    raise Unsupported(f"{WHAT}: {why}; take a planner with fewer steps, or fewer chunks")
