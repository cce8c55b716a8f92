"""Steps of a rank as thread blocks of the executor: channels and remote buffers numbered, cut where a block is full.

What does not fit into one block goes on in the next, which waits for the one before: by a semaphore, and when these
are used up by a barrier. A barrier serves two blocks, or a **crowd**: each comes to it as often as there are others,
the first when it is done, the second once before its work and then when that is done, and so on. So

    block 0   work  barrier  barrier
    block 1   barrier  work  barrier
    block 2   barrier  barrier  work

Where streams are few, a **group** of blocks shares each: every block does all steps of the stream on its own part of
every operation, with memory channels of its own, so that no block of a group waits for another. All operations of the
stream then have one size, and begin at multiples of it: else a part of one operation were the part of another block in
the next. Ports are left to the first block, which moves all at once: one proxy serves them, one request after another.
Before it does so the group meets at a barrier, and behind it again. Cutting and dividing of streams: groups.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from antiphon.core.program import Bound, Program
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH, chunked
from antiphon.errors import Unsupported
from antiphon.formats.mscclpp.groups import DATA, MEET, can_be_divided, cut_steps, divide_steps, find_unit
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
from antiphon.lower.onesided.packets import ByPackets
from antiphon.lower.onesided.steps import Dealt, OneSided
from antiphon.lower.onesided.switched import ADVICE, Switched
from antiphon.lower.uncollected import uncollected

NOP = '{"name":"nop"}'
WHAT = "back end mscclpp-json"
MOST_CHUNKS = 2**20
PART = 2**14  # bytes that all threads of a thread block copy at once: fewer are no work for another one
MOST_GROUPED = 2**15  # operations of all ranks: the loader reads the whole file for every new size
FEW = 4  # streams, where more do not fit
CROWD = 7  # blocks at a barrier: enough for semaphores and barriers to link all blocks of a GPU


Far = Callable[[int, int], bool]  # whether two ranks are on different hosts


@dataclass
class BlockText:
    """A thread block as text. A channel or buffer has a number at its rank, and in the block a position of its own."""

    operations: list[str] = field(default_factory=list)  # as JSON
    # by type: number at the rank -> position in the block
    channels: dict[str, dict[int, int]] = field(default_factory=lambda: {MEMORY: {}, PORT: {}, SWITCH: {}})
    buffers: dict[str, dict[int, int]] = field(default_factory=lambda: {MEMORY: {}, PORT: {}, SWITCH: {}})

    def add_ends(self, kind: str, channels: Sequence[int], buffers: Sequence[int]) -> bool:
        """Add these channels and buffers if there is room for all of them; return whether the block has them."""
        own_channels, own_buffers = self.channels[kind], self.buffers[kind]
        new_channels, new_buffers = (
            [number for number in channels if number not in own_channels],
            [number for number in buffers if number not in own_buffers],
        )
        if not new_channels and not new_buffers:
            return True
        if (
            len(own_channels) + len(set(new_channels)) > MOST_CHANNELS
            or len(own_buffers) + len(set(new_buffers)) > MOST_CHANNELS
        ):
            return False
        for number in new_channels:
            own_channels.setdefault(number, len(own_channels))
        for number in new_buffers:
            own_buffers.setdefault(number, len(own_buffers))
        return True


Group = tuple[tuple[int, ...], str]


@dataclass
class Links:
    """The used semaphores and barriers of a rank, and the most blocks of a barrier."""

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
    """How a rank reaches others: by a port where `far` is true. `kinds`: the names of buffers in the file. `groups`:
    the groups of switches with this rank."""

    rank: int
    far: Far
    kinds: tuple[str, ...]
    groups: list[Group] = field(default_factory=list)

    def type(self, peer: int) -> str:
        return PORT if self.far(self.rank, peer) else MEMORY


@dataclass(frozen=True)
class Share:
    """A member of a group of `size` blocks; `barrier`: where these meet, -1 if they do not."""

    member: int
    size: int
    barrier: int

    def text(self) -> str:
        """Return, as JSON, the share of every operation that this member performs."""
        return f',"tbg_info":{{"tb_id":{self.member},"tbg_size":{self.size}}}' if self.size > 1 else ""

    def barrier_text(self) -> str:
        return f'{{"name":"barrier","barrier_id":{self.barrier},"num_threadblocks":{self.size}}}'


def gpu_of(
    ends: Ends, streams: Iterable[list[Step]], crowd: int = 2, group: int = 1, divided: Collection[int] = ()
) -> Gpu:
    """Return the thread blocks of a rank, at most `crowd` at a barrier, `group` for each stream. Its channels are
    numbered by peer, then by stream and block of its group, on both sides alike. `divided`: streams that are."""
    # Member k of a group stands for a stream of its own; ports belong to member 0.
    steps_of_block = [
        divide_steps(steps, member, group) if stream in divided else steps
        for stream, steps in enumerate(streams)
        for member in range(group)
    ]
    # 1. Channels: one per peer and block; both ends sort by (peer, block), so the k-th channels match.
    connections: set[tuple[int, int]] = set()  # (peer, block); switches have channels of their own
    for block, steps in enumerate(steps_of_block):
        for step in steps:
            if step.kind not in (SWITCHES, SPREAD):
                connections.update([(peer, block) for peer in step.peers])
                connections.update([(move.peer, block) for move in step.moves if move.peer != ends.rank])
    channels: dict[str, list[int]] = {MEMORY: [], PORT: []}
    channel_of: list[dict[int, int]] = [{} for _ in steps_of_block]  # by block: peer -> channel
    for peer, block in sorted(connections):
        kind = ends.type(peer)
        if kind == MEMORY or block % group == 0:
            channel_of[block][peer] = len(channels[kind])
            channels[kind].append(peer)
    # 2. Blocks: cut each stream into thread blocks that respect the executor's limits.
    gpu = Gpu([], channels, [], Links(crowd), ends.groups)
    buffers: dict[tuple[int, str, str], int] = {}
    for block, (channel_of_peer, steps) in enumerate(zip(channel_of, steps_of_block, strict=True)):
        if not steps:
            continue
        if block % group == 0:
            has_ports = any(ends.type(peer) == PORT for peer in channel_of_peer)
            # only a stream that uses ports has puts to defer
            ported = _defer_to_ports(ends, steps) if has_ports else steps
            meets = group > 1 and (has_ports or block // group in divided)
            if meets:
                gpu.links.barriers += 1
                if gpu.links.barriers > MOST_BARRIERS:
                    raise Unsupported(f"rank {ends.rank}: more than {MOST_BARRIERS} groups of blocks meet")
        share = Share(block % group, group, gpu.links.barriers - 1 if meets else -1)
        gpu.blocks += _Cut(ends, channel_of_peer, buffers, gpu.links, share).blocks(steps if divided else ported)
    gpu.buffers = list(buffers)
    return gpu


def _defer_to_ports(ends: Ends, steps: list[Step]) -> list[Step]:
    """Defer puts through ports to the signal that follows, and join them with it: the proxy performs both in order, and
    the rank continues when the data has left."""
    pending: dict[int, list[Move]] = {}
    ported: list[Step] = []
    for step in steps:
        far = [move for move in step.moves if ends.far(ends.rank, move.peer) and step.kind != PACK]
        for move in far:
            pending.setdefault(move.peer, []).append(move)
        near = tuple(move for move in step.moves if move not in far)
        if step.kind == SIGNAL:
            # the signal carries all puts that were deferred since the last signal to this peer
            moves = [move for peer in step.peers for move in pending.pop(peer, [])]
            ported.append(step._replace(moves=tuple(moves)))
        elif step.kind != PUT or near:
            ported.append(step._replace(moves=near))
    return ported


class _Cut:
    """The blocks of one stream, or of one member of its group."""

    def __init__(
        self, ends: Ends, channel: dict[int, int], buffers: dict[tuple[int, str, str], int], links: Links, share: Share
    ) -> None:
        self.ends, self.channel, self.buffers, self.links, self.share = ends, channel, buffers, links, share
        self.part = share.text()
        self.kinds = ends.kinds
        self.block_texts = [BlockText()]
        self.signal_texts: dict[tuple[int, tuple[int, ...]], str] = {}  # signals and waits that the last block has
        self.move_names: dict[tuple[object, ...], tuple[str, list[int]]] = {}  # channels and buffers of moves, in it
        self.crowd: list[BlockText] = []  # at the last barrier
        self.room = MOST_OPERATIONS - self._operations_behind()

    def blocks(self, steps: list[Step]) -> list[BlockText]:
        for step in steps:
            if step.kind == SYNC:
                self._write_sync()
            elif step.kind == MEET:
                self._append_operations([self.share.barrier_text()])
            elif step.kind in (SIGNAL, WAIT):
                self._signal_or_wait(step)
            elif step.kind == PUT:
                self._write_put("put", MEMORY, step.moves)
            elif step.kind == PACK:
                self._write_pack(step.moves)
            elif step.kind in (FOLD, ADD, UNPACK):
                self._write_fold(step)
            else:
                self._write_switch(step)
        self._meet_crowd()
        if self.share.barrier >= 0 and self.share.size > 1 and len(self.block_texts) > 1:
            raise Unsupported(f"rank {self.ends.rank}: a group of blocks that meets needs more than one line")
        return self.block_texts

    def _signal_or_wait(self, step: Step) -> None:
        # fast path: the same signal was written in this block before, and its numbers are valid here
        text = self.signal_texts.get(step[:2])
        if text is not None and not step.moves and len(self.block_texts[-1].operations) < self.room:
            self.block_texts[-1].operations.append(text)
            return
        moves = {move.peer for move in step.moves}
        kinds = {peer: self.ends.type(peer) for peer in step.peers}
        meets = PORT in kinds.values() and self.share.size > 1  # the group, before its first block signals for all
        if meets and step.kind == SIGNAL:
            self._append_operations([self.share.barrier_text()])
        if step.moves and self.share.member == 0:
            self._write_port_puts(step.moves)
        for kind in (MEMORY, PORT):
            peers = [peer for peer in step.peers if kinds[peer] == kind and peer not in moves]
            if peers and (kind == MEMORY or self.share.member == 0):
                channels = [self.channel[peer] for peer in peers]
                block = self._find_block(1, kind, channels, ())
                ids = ",".join([str(block.channels[kind][channel]) for channel in channels])
                name = "signal" if step.kind == SIGNAL else "wait"
                block.operations.append(f'{{"name":"{name}","channel_ids":[{ids}],"channel_type":"{kind}"}}')
                # only a signal to one type of channel is one text that can be reused
                if len(peers) == len(step.peers) and not meets:
                    self.signal_texts[step[:2]] = block.operations[-1]
        if meets and (step.moves or step.kind == WAIT):
            self._append_operations([self.share.barrier_text()])

    def _write_port_puts(self, moves: tuple[Move, ...]) -> None:
        """Write puts through ports. The last to each peer has the signal, and the block waits until it has left."""
        last = {move.peer: move for move in moves}
        # a port performs requests in order, so waiting for the last put per peer waits for all
        earlier = [move for move in moves if move is not last[move.peer]]
        for low in range(0, len(earlier), MOST_OF_ONE):
            self._write_put("put", PORT, tuple(earlier[low : low + MOST_OF_ONE]))
        if earlier:
            self._append_operations([NOP])
        final = list(last.values())
        for low in range(0, len(final), MOST_OF_ONE):
            self._write_put("pwsf", PORT, tuple(final[low : low + MOST_OF_ONE]))
        self._append_operations([NOP])

    def _write_put(self, name: str, kind: str, moves: tuple[Move, ...]) -> None:
        block, ids, target = self._name_moves(kind, moves)
        source = ",".join([self._local_text(move.source, move.size) for move in moves])
        block.operations.append(
            f'{{"name":"{name}","src_buff":[{source}],"dst_buff":[{target}],"channel_ids":[{ids}],'
            f'"channel_type":"{kind}"{self.part if kind == MEMORY else ""}}}'
        )

    def _write_pack(self, moves: tuple[Move, ...]) -> None:
        """Write packets to other ranks; for ports first to this rank's scratch, from where they send them."""
        if moves[0].source[0] == PACKETS:
            self._write_put("rppkt", PORT, moves)
        elif moves[0].peer != self.ends.rank:
            self._write_put("ppkt", MEMORY, moves)
        else:
            for move in moves:
                source, target = (self._local_text(place, move.size) for place in (move.source, move.target))
                self._append_operations([f'{{"name":"cpkt","src_buff":[{source}],"dst_buff":[{target}]{self.part}}}'])

    def _write_fold(self, step: Step) -> None:
        source = ",".join([self._local_text(place, step.size) for place in step.operands])
        into = self._local_text(step.into, step.size)
        # the packet variants of reduce read flagged data and need no wait
        flagged = "pkt" if step.kind == ADD else ""
        if len(step.operands) == 1:
            name = "upkt" if step.kind == UNPACK else "copy"
            self._append_operations([f'{{"name":"{name}","src_buff":[{source}],"dst_buff":[{into}]{self.part}}}'])
        elif not step.moves:
            self._append_operations(
                [f'{{"name":"re{flagged}","src_buff":[{source}],"dst_buff":[{into}],"reduce_op":"sum"{self.part}}}']
            )
        else:
            own = [move for move in step.moves if move.peer == self.ends.rank]
            sent = [move for move in step.moves if move.peer != self.ends.rank]
            block, ids, target = self._name_moves(MEMORY, sent)
            target = ",".join([*(self._local_text(move.target, move.size) for move in own), *filter(None, [target])])
            name = f"re{'c' if own else ''}{'s' if sent else ''}{flagged}"
            block.operations.append(
                f'{{"name":"{name}","src_buff":[{source}],"dst_buff":[{into},{target}],"channel_ids":[{ids}],'
                f'"channel_type":"memory","reduce_op":"sum"{self.part}}}'
            )

    def _write_switch(self, step: Step) -> None:
        places = [step.into, *step.operands] if step.kind == SWITCHES else [step.into]
        ids = [self.ends.groups.index((step.peers, self.kinds[place[0]])) for place in places]
        block = self._find_block(1, SWITCH, ids, ())
        target, *source = (
            f'{{"switch_channel_id":{block.channels[SWITCH][at]},"index":{place[1]},"size":{step.size}}}'
            for at, place in zip(ids, places, strict=True)
        )
        # glres: multimem load-reduce, then store; gstore: multicast store of local data
        name, operator = ("glres", ',"reduce_op":"sum"') if source else ("gstore", "")
        read = source[0] if source else self._local_text(step.operands[0], step.size)
        block.operations.append(
            f'{{"name":"{name}","src_buff":[{read}],"dst_buff":[{target}],"channel_type":"{SWITCH}"{operator}'
            f"{self.part}}}"
        )

    def _local_text(self, place: Place, size: int) -> str:
        return f'{{"type":"{self.kinds[place[0]]}","index":{place[1]},"size":{size}}}'

    def _name_moves(self, kind: str, moves: Sequence[Move]) -> tuple[BlockText, str, str]:
        """Return a block with room for an operation with these moves, its numbers of their channels, and targets."""
        # moves to the same peers and buffers have the same channel and buffer ids within a block
        key = (kind, *[(move.peer, move.target[0]) for move in moves])
        names = self.move_names.get(key)
        if names is None or len(self.block_texts[-1].operations) >= self.room:
            channels = [self.channel[move.peer] for move in moves]
            ends = [(move.peer, self.kinds[move.target[0]], kind) for move in moves]
            buffers = [self.buffers.setdefault(end, len(self.buffers)) for end in ends]
            block = self._find_block(1, kind, channels, buffers)
            ids = ",".join([str(block.channels[kind][channel]) for channel in channels])
            names = self.move_names[key] = ids, [block.buffers[kind][number] for number in buffers]
        target = [
            f'{{"buffer_id":{at},"index":{move.target[1]},"size":{move.size}}}'
            for at, move in zip(names[1], moves, strict=True)
        ]
        return self.block_texts[-1], names[0], ",".join(target)

    def _write_sync(self) -> None:
        operations = self.block_texts[-1].operations
        # consecutive syncs are one
        if operations and operations[-1] is NOP:
            return
        if len(operations) < self.room:
            operations.append(NOP)
        else:
            self._append_operations([NOP])

    def _append_operations(self, operations: list[str]) -> None:
        self._find_block(len(operations), MEMORY, (), ()).operations.extend(operations)

    def _find_block(self, count: int, kind: str, channels: Sequence[int], buffers: Sequence[int]) -> BlockText:
        """Return the block with room for `count` operations with these channels and buffers; a new one if necessary."""
        block = self.block_texts[-1]
        # the second try is an empty block; if that has no room, nothing has
        for _ in range(2):
            if len(block.operations) + count <= self.room and block.add_ends(kind, channels, buffers):
                return block
            block = self._next_block()
        raise Unsupported(
            f"rank {self.ends.rank}: an operation with {len(set(channels))} channels and {len(set(buffers))} remote "
            f"buffers does not fit into an empty thread block, which has room for {self.room} operations and "
            f"{MOST_CHANNELS} of each of those; take a planner with fewer partners, or one in which a message goes on "
            "to fewer ranks"
        )

    def _next_block(self) -> BlockText:
        old, new = self.block_texts[-1], BlockText()
        links, before = self.links, 2
        # preferred link to the next block: a semaphore, two operations, independent of other blocks
        if links.semaphores < MOST_SEMAPHORES:
            ids = f'"semaphore_ids":[{links.semaphores}]'
            if not old.operations or old.operations[-1] is not NOP:
                old.operations.append(NOP)
            old.operations.append(f'{{"name":"sem_release",{ids}}}')
            new.operations += [f'{{"name":"sem_acquire",{ids}}}', NOP]
            links.semaphores, before = links.semaphores + 1, 0  # they stand there already
        else:
            # semaphores are used up: link by a barrier, which `crowd` blocks share
            if len(self.crowd) in (0, links.crowd):
                self._begin_crowd(old)
            before = len(self.crowd)
            self.crowd.append(new)
        self.block_texts.append(new)
        # ids are local to a block
        self.signal_texts, self.move_names = {}, {}
        self.room = MOST_OPERATIONS - before - self._operations_behind()
        return new

    def _operations_behind(self) -> int:
        """Return how many operations link the last block to the one after it."""
        if self.links.semaphores < MOST_SEMAPHORES:
            return 2
        return self.links.crowd - (len(self.crowd) or self.links.crowd) or self.links.crowd - 1

    def _begin_crowd(self, first: BlockText) -> None:
        self._meet_crowd()
        if self.links.barriers == MOST_BARRIERS:
            max_linked = MOST_SEMAPHORES + MOST_BARRIERS * (self.links.crowd - 1)
            raise Unsupported(
                f"rank {self.ends.rank}: more than {max_linked} of its thread blocks go on where another is full, and "
                "GPUs have no more semaphores and barriers"
            )
        self.links.barriers += 1
        self.crowd = [first]

    def _meet_crowd(self) -> None:
        """Write the visits of all blocks of the last barrier."""
        count = len(self.crowd)
        barrier = f'{{"name":"barrier","barrier_id":{self.links.barriers - 1},"num_threadblocks":{count}}}'
        for number, block in enumerate(self.crowd):
            # block k starts after k visits: block 0 has met the others once, block 1 twice, ...
            block.operations[:0] = [barrier] * number
            block.operations += [barrier] * (count - 1 - number)
        self.crowd = []


# ---- all ranks ----


def buffer_kinds(program: Program) -> tuple[str, ...]:
    """Return the names of input, output, scratch and packets. In place the one buffer is the input or the output that
    callers hand over, whichever is larger."""
    scratch = KINDS[SCRATCH]
    if not program.in_place:
        return (*KINDS, scratch)
    # the caller passes the larger buffer; the other one is a section of it
    larger = KINDS[INPUT if program.collective.kind in ("reducescatter", "scatter") else OUTPUT]
    return larger, larger, scratch, scratch


def gpus_of(program: Program, bound: Bound, switched: Switched, blocks: int, far: Far, room: int = 0) -> list[Gpu]:
    kinds = buffer_kinds(program)
    groups = sorted({(ranks, kinds[buffer]) for ranks, buffer in switched.groups})
    if any(far(ranks[0], rank) for ranks, _ in groups for rank in ranks):
        raise Unsupported(f"{WHAT}: lets switches work for ranks of one host only; {ADVICE}")
    ends = [Ends(rank, far, kinds, [group for group in groups if rank in group[0]]) for rank in range(program.ranks)]
    return _fit_blocks(ends, blocks, OneSided(program, bound, switched).dealt, room)[1]


def gpus_by_packets(program: Program, blocks: int, far: Far) -> tuple[Bound, list[Gpu]]:
    packets = ByPackets(program, chunked(program, MOST_CHUNKS, WHAT), far)
    ends = [Ends(rank, far, buffer_kinds(program)) for rank in range(program.ranks)]
    bound, gpus = _fit_blocks(ends, blocks, packets.dealt, 0)
    if int(bound.sizes.sum()) > FEW_CELLS:
        raise Unsupported(f"{WHAT}: {int(bound.sizes.sum())} chunks and packets, of at most {FEW_CELLS}")
    return bound, gpus


@uncollected()
def _fit_blocks(ends: list[Ends], blocks: int, dealt: Callable[[int], Dealt], room: int) -> tuple[Bound, list[Gpu]]:
    """Return addresses and thread blocks in `blocks` streams, shared by groups where streams are fewer (`room`: bytes
    of the largest chunk, 0: no groups); where blocks are too full, in more, as far as there are more; and at last in
    few, where signals and waits of several are joined, with long chains of blocks."""
    why, streams, tried, dealt = "", 0, 0, cache(dealt)
    if room and (grouped := _fit_groups(ends, blocks, dealt, room)) is not None:
        return grouped
    # more streams mean fewer operations per block; each costs a block, and a GPU has MOST_BLOCKS
    tries = [(max_streams, 2) for max_streams in sorted({blocks, max(blocks, 64), MOST_BLOCKS})]
    for max_streams, crowd in (*tries, (FEW, CROWD), (1, CROWD)):
        if crowd == 2 and streams < tried:  # there are not more
            continue
        (streams, steps_of, bound), gpus, tried = dealt(max_streams), list[Gpu](), max_streams
        try:
            for rank_ends in ends:
                steps = steps_of(rank_ends.rank)
                if sum(map(len, steps)) > MOST_BLOCKS * MOST_OPERATIONS:  # in more streams it would not be less
                    streams = 0
                gpus.append(gpu_of(rank_ends, steps, crowd))
                if len(gpus[-1].blocks) > MOST_BLOCKS:
                    needs = f"rank {rank_ends.rank} needs {len(gpus[-1].blocks)} thread blocks"
                    raise Unsupported(f"{needs}, of at most {MOST_BLOCKS} that are there at once")
        except Unsupported as error:
            why = str(error)
            continue
        return bound, gpus
    raise Unsupported(f"{WHAT}: {why}; take a planner with fewer steps, or fewer chunks")


# ---- groups ----


def _fit_groups(
    ends: list[Ends], blocks: int, dealt: Callable[[int], Dealt], room: int
) -> tuple[Bound, list[Gpu]] | None:
    """Return addresses and thread blocks in groups; None where groups bring nothing. Fewer streams with larger groups
    are tried until nearly all blocks move data: switches leave most ranks of a stream with nothing but signals."""
    # best: blocks that move data, blocks of a group, the steps by rank and stream, the addresses
    best: tuple[int, int, list[list[list[Step]]], Bound] | None = None
    max_streams = blocks
    while max_streams:
        streams, steps_of, bound = dealt(max_streams)
        if not ends[0].groups and 2 * sum(map(bool, steps_of(0))) > blocks:
            return None
        by_rank = [[_defer_to_ports(rank_ends, steps) for steps in steps_of(rank_ends.rank)] for rank_ends in ends]
        used = max(sum(map(bool, of_rank)) for of_rank in by_rank)  # streams of a rank
        group = min(blocks // max(used, 1), max(room // PART, 1))
        moving = sum(any(step.kind in DATA for step in steps) for of_rank in by_rank for steps in of_rank)
        if best is None or moving * group > best[0]:
            best = moving * group, group, by_rank, bound
        if 4 * moving * group > 3 * blocks * len(ends):
            break
        max_streams = min(max_streams, streams) // 2
    if best is None or best[1] == 1:
        return None
    _, group, by_rank, bound = best
    units = [find_unit(of_rank[stream] for of_rank in by_rank) for stream in range(len(by_rank[0]))]
    by_rank = [[cut_steps(steps, unit) for steps, unit in zip(of_rank, units, strict=True)] for of_rank in by_rank]
    divided = {stream for stream in range(len(units)) if can_be_divided([of_rank[stream] for of_rank in by_rank])}
    operations = sum(
        len(divide_steps(steps, 0, group) if stream in divided else steps)
        for of_rank in by_rank
        for stream, steps in enumerate(of_rank)
    )
    group = min(group, MOST_GROUPED // operations)
    while group > 1:
        with suppress(Unsupported):
            gpus = [gpu_of(*of_rank, 2, group, divided) for of_rank in zip(ends, by_rank, strict=True)]
            if all(len(gpu.blocks) <= blocks for gpu in gpus):
                return bound, gpus
        group //= 2
    return None
