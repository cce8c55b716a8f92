"""Write the steps of a rank as thread blocks of MSCCL++'s executor, which limits what a thread block holds.

The steps of a rank come in **streams**, sequences that run at the same time; each is written to a thread block. Where
that is full, the stream continues in the next thread block, which waits for the one before: by a semaphore, or by a
barrier once no semaphore is left. A barrier serves a **crowd** of two or more thread blocks. Each visits it as often as
there are others; block k works after its k-th visit:

    block 0   work  barrier  barrier
    block 1   barrier  work  barrier
    block 2   barrier  barrier  work

Where streams are few, each is shared by a **group** of thread blocks: every member does all steps, on its own share of
every operation, with memory channels of its own, so that members need not wait for each other. That is only right if
the same member always has the same bytes, so all operations of the stream have one size and begin at multiples of it
(`cut_steps` in groups.py). Port channels belong to member 0, which moves all data of the group through them, since one
proxy thread serves them in order. The group meets at a barrier before and after that. Where a thread block of such a
group is full, all members go on in other thread blocks after the same step: old and new ones meet once. A stream with
more partners than a thread block has channels may be **divided**: each member signals and waits for some of them.

Below, a **lane** is one member's version of a stream; without groups streams and lanes are the same. A step has a kind
and, by kind, the `peers` that it signals or waits for, the `moves` that it puts into peers' memory, and the places
(buffer, first chunk) of `size` chunks that it reads (`operands`) and writes (`into`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from antiphon.core.program import BufferLayout, Program
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH, chunked
from antiphon.errors import Unsupported
from antiphon.formats.mscclpp.gpu import BlockText, BufferKey, Chaining, GpuText, SwitchGroup
from antiphon.formats.mscclpp.groups import DATA, MEET, can_be_divided, cut_steps, divide_steps, find_chunks_per_step
from antiphon.formats.mscclpp.shape import (
    KINDS,
    MEMORY,
    MOST_BARRIERS,
    MOST_BLOCKS,
    MOST_CELLS,
    MOST_CHANNELS,
    MOST_OF_ONE,
    MOST_OPERATIONS,
    MOST_SEMAPHORES,
    PORT,
    SWITCH,
)
from antiphon.lower.onesided import form
from antiphon.lower.onesided.form import Place, StreamMove, StreamStep
from antiphon.lower.onesided.packets import ByPackets
from antiphon.lower.onesided.steps import OneSided, StreamSteps
from antiphon.lower.onesided.switched import ADVICE, Switched
from antiphon.lower.without_gc import without_gc

NOP = '{"name":"nop"}'  # all threads of a thread block wait for each other
BACK_END = "format mscclpp-json"
MOST_CHUNKS = 2**20  # of a buffer
MIN_SHARE = 2**14  # bytes that all threads of a thread block copy at once: a smaller share is not worth another block
MOST_GROUPED = 2**15  # operations of a plan with groups, a put once per target: the executor reads all per message size
MORE_STREAMS = 64  # tried where fewer do not fit, before MOST_BLOCKS, which leaves no block to continue a stream in
FEW_STREAMS = 4  # tried where more do not fit; each is a long chain of blocks
PAIR = 2  # blocks at a barrier: a full one and the one that continues its stream
# Blocks at a barrier, enough to chain all blocks of a GPU: MOST_SEMAPHORES + MOST_BARRIERS * (CROWD - 1) >= MOST_BLOCKS
CROWD = 7
# Names of the executor's operations on packets: data with flags, which a reader polls instead of waiting for a signal.
PUT_PACKETS, SEND_SCRATCH_PACKETS, COPY_TO_PACKETS, UNPACK_PACKETS = "ppkt", "rppkt", "cpkt", "upkt"
PUT_SIGNAL_FLUSH = "pwsf"  # put through a port, signal, and wait until both have left
Far = Callable[[int, int], bool]  # of two ranks: whether they are on different hosts


@dataclass(frozen=True)
class Ends:
    """How a rank reaches others: through a port channel where `far` is true, else by writing to their memory.

    `buffer_names`: as in the file, by buffer of the program. `switch_groups`: those with this rank.
    """

    rank: int
    far: Far
    buffer_names: tuple[str, ...]
    switch_groups: list[SwitchGroup] = field(default_factory=list)

    def channel_type(self, peer: int) -> str:
        """Return the type of the channels to a peer."""
        return PORT if self.far(self.rank, peer) else MEMORY


@dataclass
class ThreadBlockGroup:
    """A group of `size` thread blocks.

    `barriers`: none if it does not meet; else of the group, of its first cut, of the group after that, ...
    `cuts`: the numbers of the steps before which all members go on in other thread blocks, because member 0, which
    writes most, is full.
    """

    size: int
    barriers: list[int]
    cuts: list[int] = field(default_factory=list)

    def barrier_text(self, number: int) -> str:
        size = self.size * (1 + number % 2)  # at a cut the old and the new thread blocks
        return f'{{"name":"barrier","barrier_id":{self.barriers[number]},"num_threadblocks":{size}}}'


def gpu_of(
    ends: Ends, streams: Iterable[list[StreamStep]], max_crowd: int = PAIR, group: int = 1,
    divided: Collection[int] = (),
) -> GpuText:  # fmt: skip
    """Return the thread blocks of a rank, at most `max_crowd` at a barrier, `group` for each stream.

    Its channels are numbered by peer, then by lane, as on the peer's side. `divided`: the numbers of the divided
    streams. With groups, the caller has already applied `_defer_to_ports`.
    """
    steps_of_lane = [
        divide_steps(steps, member, group) if stream in divided else steps
        for stream, steps in enumerate(streams)
        for member in range(group)
    ]
    # 1. Channels: one per peer and lane; both ends sort by (peer, lane), so the k-th channels match.
    connections: set[tuple[int, int]] = set()  # (peer, lane); switches have channels of their own
    for lane, steps in enumerate(steps_of_lane):
        for step in steps:
            if step.kind not in (form.SWITCH, form.SPREAD):
                connections.update([(peer, lane) for peer in step.peers])
                connections.update([(move.peer, lane) for move in step.moves if move.peer != ends.rank])
    channels: dict[str, list[int]] = {MEMORY: [], PORT: []}
    channels_of_lane: list[dict[int, int]] = [{} for _ in steps_of_lane]  # by lane: peer -> channel
    for peer, lane in sorted(connections):
        channel_type = ends.channel_type(peer)
        if channel_type == MEMORY or lane % group == 0:  # ports belong to member 0
            channels_of_lane[lane][peer] = len(channels[channel_type])
            channels[channel_type].append(peer)
    # 2. Blocks: cut each lane into thread blocks that respect the executor's limits.
    moving_streams = sum(map(_moves_data, steps_of_lane[::group]))  # by the lane of member 0 of each
    gpu = GpuText(
        blocks=[], channels=channels, buffers=[], chaining=Chaining(max_crowd), switch_groups=ends.switch_groups,
        moving_streams=moving_streams, group=group,
    )  # fmt: skip
    buffers: dict[BufferKey, int] = {}
    for first_lane in range(0, len(steps_of_lane), group):
        if not steps_of_lane[first_lane]:
            continue
        has_ports = any(ends.channel_type(peer) == PORT for peer in channels_of_lane[first_lane])
        meets = group > 1 and (has_ports or first_lane // group in divided)
        # add_barrier takes one of the GPU's barriers and returns its number
        thread_block_group = ThreadBlockGroup(group, [gpu.chaining.add_barrier()] if meets else [])
        for member in range(group):
            steps, channel_of_peer = steps_of_lane[first_lane + member], channels_of_lane[first_lane + member]
            if has_ports and group == 1:
                steps = _defer_to_ports(ends, steps)
            writer = _LaneWriter(ends, channel_of_peer, buffers, gpu.chaining, thread_block_group, member)
            gpu.blocks += writer.blocks(steps)
    gpu.buffers = list(buffers)
    return gpu


def _defer_to_ports(ends: Ends, steps: list[StreamStep]) -> list[StreamStep]:
    """Move puts through ports into the signal that follows: the proxy thread performs both in order.

    The rank continues when the data has left. Steps to which this was applied before stay the same.
    """
    pending: dict[int, list[StreamMove]] = {}
    deferred_steps: list[StreamStep] = []
    for step in steps:
        # packets need no signal, so their moves stay where they are
        far = [move for move in step.moves if ends.far(ends.rank, move.peer) and step.kind != form.PACK]
        for move in far:
            pending.setdefault(move.peer, []).append(move)
        near = tuple(move for move in step.moves if move not in far)
        if step.kind == form.SIGNAL:
            # the signal carries all puts that were deferred since the last signal to this peer
            moves = [move for peer in step.peers for move in pending.pop(peer, [])]
            deferred_steps.append(step._replace(moves=tuple(moves)))
        elif step.kind != form.PUT or near:
            deferred_steps.append(step._replace(moves=near))
    return deferred_steps


class _LaneWriter:
    """Writes one lane into thread blocks. `channel`: by peer, its channel in this lane."""

    def __init__(
        self, ends: Ends, channel: dict[int, int], buffers: dict[BufferKey, int], chaining: Chaining, group:
        ThreadBlockGroup, member: int,
    ) -> None:  # fmt: skip
        self.ends, self.channel, self.buffers, self.chaining = ends, channel, buffers, chaining
        self.group, self.member = group, member
        # the share of every operation that this member performs
        self.share_text = f',"tbg_info":{{"tb_id":{member},"tbg_size":{group.size}}}' if group.size > 1 else ""
        self.buffer_names = ends.buffer_names
        self.block_texts = [BlockText()]
        # recurring texts of the last block: channel and buffer ids by moves
        self.move_ids: dict[tuple[object, ...], tuple[str, list[int]]] = {}
        self.crowd: list[BlockText] = []  # at the last barrier
        self.room = MOST_OPERATIONS - self._count_chain_operations()  # operations that the last block may have

    def blocks(self, steps: list[StreamStep]) -> list[BlockText]:
        """Return the thread blocks of this lane. Member 0 comes first, and decides where its group is cut."""
        for number, step in enumerate(steps):
            if number in self.group.cuts:
                self._cut()
            text, length = self.block_texts[-1], len(self.block_texts[-1].operations)
            try:
                self._write_step(step)
            except Unsupported:
                if self.member or not self.group.barriers:  # other members are cut where member 0 is
                    raise
                del text.operations[length:]  # what was written of this step; the next block repeats it
                self.group.cuts.append(number)
                self.group.barriers += [self.chaining.add_barrier(), self.chaining.add_barrier()]
                self._cut()
                self._write_step(step)
        self._meet_crowd()
        return self.block_texts

    def _cut(self) -> None:
        """Go on in another thread block after the next cut of the group."""
        # Barrier 2 k is that of the k-th block's own meetings, 2 k + 1 the one at its end.
        text = self.group.barrier_text(2 * len(self.block_texts) - 1)
        self.block_texts[-1].operations.append(text)
        self.block_texts.append(BlockText([text]))
        self.move_ids = {}

    def _write_step(self, step: StreamStep) -> None:
        if step.kind == form.SYNC:
            self._write_sync()
        elif step.kind == MEET:  # from `divide_steps` (groups.py)
            self._meet()
        elif step.kind in (form.SIGNAL, form.WAIT):
            self._signal_or_wait(step)
        elif step.kind == form.PUT:
            self._write_put("put", MEMORY, step.moves)
        elif step.kind == form.PACK:
            self._write_pack(step.moves)
        elif step.kind in (form.FOLD, form.ADD, form.UNPACK):
            self._write_fold(step)
        else:
            self._write_switch(step)

    def _meet(self) -> None:
        self._append_operations([self.group.barrier_text(2 * len(self.block_texts) - 2)])

    def _signal_or_wait(self, step: StreamStep) -> None:
        """Write a signal or wait, with the puts that were deferred to it."""
        put_peers = {move.peer for move in step.moves}  # their signal goes with the put
        channel_types = {peer: self.ends.channel_type(peer) for peer in step.peers}
        # Member 0 uses ports for its group, which meets before it signals, and after it has put or waited.
        meets = PORT in channel_types.values() and self.group.size > 1
        if meets and step.kind == form.SIGNAL:
            self._meet()
        if step.moves and self.member == 0:
            self._write_port_puts(step.moves)
        for channel_type in (MEMORY, PORT):
            peers = [peer for peer in step.peers if channel_types[peer] == channel_type and peer not in put_peers]
            if peers and (channel_type == MEMORY or self.member == 0):
                channels = [self.channel[peer] for peer in peers]
                block = self._find_block(count=1, channel_type=channel_type, channels=channels, buffers=())
                ids = ",".join([str(block.channels[channel_type][channel]) for channel in channels])
                name = "signal" if step.kind == form.SIGNAL else "wait"
                block.operations.append(f'{{"name":"{name}","channel_ids":[{ids}],"channel_type":"{channel_type}"}}')
        if meets and (step.moves or step.kind == form.WAIT):
            self._meet()

    def _write_port_puts(self, moves: tuple[StreamMove, ...]) -> None:
        """Write puts through ports. The last to each peer has the signal, and the block waits until it has left."""
        last = {move.peer: move for move in moves}
        # a port performs requests in order, so waiting for the last put per peer waits for all
        earlier = [move for move in moves if move is not last[move.peer]]
        for low in range(0, len(earlier), MOST_OF_ONE):  # the channels that an operation may have, one for each move
            self._write_put("put", PORT, tuple(earlier[low : low + MOST_OF_ONE]))
        if earlier:
            self._append_operations([NOP])
        final = list(last.values())
        for low in range(0, len(final), MOST_OF_ONE):
            self._write_put(PUT_SIGNAL_FLUSH, PORT, tuple(final[low : low + MOST_OF_ONE]))
        self._append_operations([NOP])

    def _write_put(self, name: str, channel_type: str, moves: tuple[StreamMove, ...]) -> None:
        block, ids, target = self._find_ids(channel_type, moves)
        source = ",".join([self._local_text(move.source, move.size) for move in moves])
        block.operations.append(
            f'{{"name":"{name}","src_buff":[{source}],"dst_buff":[{target}],"channel_ids":[{ids}],'
            f'"channel_type":"{channel_type}"{self.share_text if channel_type == MEMORY else ""}}}'
        )

    def _write_pack(self, moves: tuple[StreamMove, ...]) -> None:
        """Write packets to other ranks; for ports first to this rank's scratch, from where they send them.

        The moves of a step are all of one kind, so the first shows it (`ByPackets` writes a step for each kind).
        """
        if moves[0].source[0] == form.PACKETS:
            self._write_put(SEND_SCRATCH_PACKETS, PORT, moves)
        elif moves[0].peer != self.ends.rank:
            self._write_put(PUT_PACKETS, MEMORY, moves)
        else:
            for move in moves:
                source, target = (self._local_text(place, move.size) for place in (move.source, move.target))
                self._append_operations(
                    [f'{{"name":"{COPY_TO_PACKETS}","src_buff":[{source}],"dst_buff":[{target}]{self.share_text}}}']
                )

    def _write_fold(self, step: StreamStep) -> None:
        source = ",".join([self._local_text(place, step.size) for place in step.operands])
        into = self._local_text(step.into, step.size)
        # ADD folds packets: names of such reductions end in pkt, as in recspkt: r, e(duce), c(opy), s(end)
        suffix = "pkt" if step.kind == form.ADD else ""
        if len(step.operands) == 1:
            name = UNPACK_PACKETS if step.kind == form.UNPACK else "copy"
            self._append_operations([f'{{"name":"{name}","src_buff":[{source}],"dst_buff":[{into}]{self.share_text}}}'])
        elif not step.moves:
            operation = f'{{"name":"re{suffix}","src_buff":[{source}],"dst_buff":[{into}],"reduce_op":"sum"'
            self._append_operations([f"{operation}{self.share_text}}}"])
        else:
            local_moves = [move for move in step.moves if move.peer == self.ends.rank]
            sent = [move for move in step.moves if move.peer != self.ends.rank]
            block, ids, target = self._find_ids(MEMORY, sent)
            target = ",".join(
                [*(self._local_text(move.target, move.size) for move in local_moves), *filter(None, [target])]
            )
            name = f"re{'c' if local_moves else ''}{'s' if sent else ''}{suffix}"
            block.operations.append(
                f'{{"name":"{name}","src_buff":[{source}],"dst_buff":[{into},{target}],"channel_ids":[{ids}],'
                f'"channel_type":"memory","reduce_op":"sum"{self.share_text}}}'
            )

    def _write_switch(self, step: StreamStep) -> None:
        places = [step.into, *step.operands] if step.kind == form.SWITCH else [step.into]
        ids = [self.ends.switch_groups.index((step.peers, self.buffer_names[place[0]])) for place in places]
        block = self._find_block(count=1, channel_type=SWITCH, channels=ids, buffers=())
        target, *source = (
            f'{{"switch_channel_id":{block.channels[SWITCH][at]},"index":{place[1]},"size":{step.size}}}'
            for at, place in zip(ids, places, strict=True)
        )
        # glres: multimem load-reduce, then store; gstore: multicast store of local data
        name, operator = ("glres", ',"reduce_op":"sum"') if source else ("gstore", "")
        read = source[0] if source else self._local_text(step.operands[0], step.size)
        block.operations.append(
            f'{{"name":"{name}","src_buff":[{read}],"dst_buff":[{target}],"channel_type":"{SWITCH}"{operator}'
            f"{self.share_text}}}"
        )

    def _local_text(self, place: Place, size: int) -> str:
        return f'{{"type":"{self.buffer_names[place[0]]}","index":{place[1]},"size":{size}}}'

    def _find_ids(self, channel_type: str, moves: Sequence[StreamMove]) -> tuple[BlockText, str, str]:
        """Return a block with room for an operation with these moves and, as JSON, their channels and targets in it."""
        # moves to the same peers and buffers have the same channel and buffer ids within a block
        key = (channel_type, *[(move.peer, move.target[0]) for move in moves])
        ids = self.move_ids.get(key)
        if ids is None or len(self.block_texts[-1].operations) >= self.room:
            channels = [self.channel[move.peer] for move in moves]
            keys = [(move.peer, self.buffer_names[move.target[0]], channel_type) for move in moves]
            buffers = [self.buffers.setdefault(buffer_key, len(self.buffers)) for buffer_key in keys]
            block = self._find_block(count=1, channel_type=channel_type, channels=channels, buffers=buffers)
            channel_ids = ",".join([str(block.channels[channel_type][channel]) for channel in channels])
            ids = self.move_ids[key] = channel_ids, [block.buffers[channel_type][number] for number in buffers]
        channel_ids, buffer_ids = ids
        target = [
            f'{{"buffer_id":{at},"index":{move.target[1]},"size":{move.size}}}'
            for at, move in zip(buffer_ids, moves, strict=True)
        ]
        return self.block_texts[-1], channel_ids, ",".join(target)

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
        self._find_block(len(operations), MEMORY, channels=(), buffers=()).operations.extend(operations)

    def _find_block(self, count: int, channel_type: str, channels: Sequence[int], buffers: Sequence[int]) -> BlockText:
        """Return the block with room for `count` operations with these channels and buffers; a new one if necessary.

        `channels`: numbers among the rank's of this type. `buffers`: those in `self.buffers`. The block has all then.
        """
        block = self.block_texts[-1]
        # the second try is an empty block; if that has no room, nothing has
        for _ in range(2):
            if len(block.operations) + count <= self.room and block.add_channels(channel_type, channels, buffers):
                return block
            block = self._next_block()
        raise Unsupported(
            f"rank {self.ends.rank}: an operation with {len(set(channels))} channels and {len(set(buffers))} remote "
            f"buffers does not fit into an empty thread block, which has room for {self.room} operations and "
            f"{MOST_CHANNELS} of each of those; take a planner with fewer partners, or one in which a message goes on "
            "to fewer ranks"
        )

    def _next_block(self) -> BlockText:
        # `blocks` catches this at member 0: it cuts the group before the step, and writes the step in the next block.
        if self.group.barriers:
            raise Unsupported(f"rank {self.ends.rank}: a step of a group that meets does not fit into a thread block")
        old, new = self.block_texts[-1], BlockText()
        chaining = self.chaining
        # preferred: a semaphore, two operations, independent of other blocks
        if chaining.semaphores < MOST_SEMAPHORES:
            ids = f'"semaphore_ids":[{chaining.semaphores}]'
            if not old.operations or old.operations[-1] is not NOP:
                old.operations.append(NOP)
            old.operations.append(f'{{"name":"sem_release",{ids}}}')
            new.operations += [f'{{"name":"sem_acquire",{ids}}}', NOP]
            chaining.semaphores += 1
            visits_before = 0
        else:
            # semaphores are used up: a barrier, which up to `max_crowd` blocks share
            if len(self.crowd) in (0, chaining.max_crowd):
                self._begin_crowd(old)
            visits_before = len(self.crowd)  # written when the crowd is complete
            self.crowd.append(new)
        self.block_texts.append(new)
        self.move_ids = {}
        self.room = MOST_OPERATIONS - visits_before - self._count_chain_operations()
        return new

    def _count_chain_operations(self) -> int:
        """Return the number of operations at the end of the last block that chain it to the next."""
        max_crowd = self.chaining.max_crowd
        if self.group.barriers:
            return 1  # the barrier of a cut
        if self.chaining.semaphores < MOST_SEMAPHORES:
            return 2  # NOP, sem_release
        if len(self.crowd) in (0, max_crowd):  # it would begin a crowd
            return max_crowd - 1
        return max_crowd - len(self.crowd)  # a visit of the barrier for each block that may still join

    def _begin_crowd(self, first: BlockText) -> None:
        """Begin a barrier with this block, and complete the last one."""
        self._meet_crowd()
        if self.chaining.barriers == MOST_BARRIERS:
            max_linked = MOST_SEMAPHORES + MOST_BARRIERS * (self.chaining.max_crowd - 1)
            raise Unsupported(
                f"rank {self.ends.rank}: more than {max_linked} of its thread blocks go on where another is full, and "
                "GPUs have no more semaphores and barriers"
            )
        self.chaining.barriers += 1
        self.crowd = [first]

    def _meet_crowd(self) -> None:
        """Write the visits of all blocks of the last barrier."""
        count = len(self.crowd)
        # no other lane has begun a barrier since, as lanes are written one after another: the last is this crowd's
        barrier = f'{{"name":"barrier","barrier_id":{self.chaining.barriers - 1},"num_threadblocks":{count}}}'
        for number, block in enumerate(self.crowd):
            # block k works after k visits, and before the other count - 1 - k
            block.operations[:0] = [barrier] * number
            block.operations += [barrier] * (count - 1 - number)
        self.crowd = []


# ---- all ranks ----


def name_buffers(program: Program) -> tuple[str, ...]:
    """Return the names, in the file, of input, output, scratch and packets.

    In place the one buffer is the caller's input or output, whichever is larger.
    """
    scratch = KINDS[SCRATCH]
    if not program.in_place:
        return (*KINDS, scratch)
    # the caller passes the larger buffer; the other one is a section of it
    larger = KINDS[INPUT if program.collective.kind in ("reducescatter", "scatter") else OUTPUT]
    return larger, larger, scratch, scratch


def gpus_of(
    program: Program, layout: BufferLayout, switched: Switched, blocks: int, far: Far, chunk_bytes: int = 0
) -> list[GpuText]:
    """Return the text of all ranks, for data with signals.

    `layout`: addresses of data; `chunk_bytes`: see `_fit_blocks`.
    """
    names = name_buffers(program)
    groups = sorted({(ranks, names[buffer]) for ranks, buffer in switched.groups})
    if any(far(ranks[0], rank) for ranks, _ in groups for rank in ranks):
        raise Unsupported(f"{BACK_END}: lets switches work for ranks of one host only; {ADVICE}")
    ends = [Ends(rank, far, names, [group for group in groups if rank in group[0]]) for rank in range(program.ranks)]
    _, gpus = _fit_blocks(ends, blocks, OneSided(program, layout, switched).split_streams, chunk_bytes)
    return gpus


def gpus_by_packets(program: Program, blocks: int, far: Far) -> tuple[BufferLayout, list[GpuText]]:
    """Return addresses and the text of all ranks, for data in packets. Calls use the halves of scratch in turn."""
    packets = ByPackets(program, chunked(program, MOST_CHUNKS, BACK_END), far)
    ends = [Ends(rank, far, name_buffers(program)) for rank in range(program.ranks)]
    layout, gpus = _fit_blocks(ends, blocks, packets.split_streams, chunk_bytes=0)
    if (total := int(layout.sizes.sum() + layout.sizes[:, SCRATCH].sum())) > MOST_CELLS:
        raise Unsupported(f"{BACK_END}: {total} chunks and packets, of at most {MOST_CELLS}")
    return layout, gpus


@without_gc()
def _fit_blocks(
    ends: list[Ends], blocks: int, deal_into: Callable[[int], StreamSteps], chunk_bytes: int
) -> tuple[BufferLayout, list[GpuText]]:
    """Return addresses and thread blocks, by the first layout that the executor can load:

    1. groups that share streams, where these are few. `chunk_bytes`: the size of the largest chunk; 0: no groups.
    2. `blocks` streams, then more of them as long as the schedule has more: each has fewer operations.
    3. few streams with long chains of blocks, where signals and waits of several streams are joined.

    `deal_into(n)`: the number of streams, at most n, a function from a rank to its steps by stream, and the addresses.
    """
    deal_into = cache(deal_into)
    if chunk_bytes and (grouped := _fit_groups(ends, blocks, deal_into, chunk_bytes)) is not None:
        return grouped
    reason, more_streams_help = "", True
    # (streams, blocks at a barrier): more streams mean fewer operations per block; each costs a block of MOST_BLOCKS
    tries = [(max_streams, PAIR) for max_streams in sorted({blocks, max(blocks, MORE_STREAMS), MOST_BLOCKS})]
    for max_streams, max_crowd in (*tries, (FEW_STREAMS, CROWD), (1, CROWD)):
        if max_crowd == PAIR and not more_streams_help:
            continue
        streams, steps_of, layout = deal_into(max_streams)
        more_streams_help = streams >= max_streams  # else the schedule has no more streams than these
        gpus: list[GpuText] = []
        try:
            for rank_ends in ends:
                steps = steps_of(rank_ends.rank)
                if sum(map(len, steps)) > MOST_BLOCKS * MOST_OPERATIONS:  # in more streams it would not be less
                    more_streams_help = False
                gpus.append(gpu_of(rank_ends, steps, max_crowd))
                if len(gpus[-1].blocks) > MOST_BLOCKS:
                    needs = f"rank {rank_ends.rank} needs {len(gpus[-1].blocks)} thread blocks"
                    raise Unsupported(f"{needs}, of at most {MOST_BLOCKS} that are there at once")
        except Unsupported as error:
            reason = str(error)
            continue
        return layout, gpus
    raise Unsupported(f"{BACK_END}: {reason}; take a planner with fewer steps, or fewer chunks")


# ---- groups ----


def _moves_data(steps: list[StreamStep]) -> bool:
    """Return whether a stream does more than signal and wait."""
    return any(step.kind in DATA for step in steps)


def _fit_groups(
    ends: list[Ends], blocks: int, deal_into: Callable[[int], StreamSteps], chunk_bytes: int
) -> tuple[BufferLayout, list[GpuText]] | None:
    """Return addresses and thread blocks in groups; None if groups do not help or fit.

    With switches, most ranks have only signals in a stream, and its blocks there are idle. Groups that meet need
    barriers. So fewer streams with larger groups are tried until nearly all blocks (three quarters) move data.
    """
    best: tuple[BufferLayout, list[GpuText]] | None = None
    max_streams, most_moving = blocks, 0  # most_moving: thread blocks of all ranks that move data at once
    while max_streams and 4 * most_moving <= 3 * blocks * len(ends):
        streams, steps_of, layout = deal_into(max_streams)
        # Quick exit: nearly all blocks of rank 0 move data. Without switches other ranks have about as many.
        if not ends[0].switch_groups and 4 * sum(map(_moves_data, steps_of(0))) > 3 * blocks:
            return best
        by_rank = [[_defer_to_ports(rank_ends, steps) for steps in steps_of(rank_ends.rank)] for rank_ends in ends]
        moving_streams = sum(_moves_data(steps) for rank_streams in by_rank for steps in rank_streams)
        most_moving = most_moving or moving_streams  # at first: without groups, one block for each stream
        busy_streams = max(sum(map(bool, rank_streams)) for rank_streams in by_rank)
        group = min(blocks // max(busy_streams, 1), max(chunk_bytes // MIN_SHARE, 1))
        max_streams = min(max_streams, streams) // 2
        if moving_streams * group <= most_moving:
            continue
        units = [
            find_chunks_per_step(rank_streams[stream] for rank_streams in by_rank) for stream in range(len(by_rank[0]))
        ]
        by_rank = [
            [cut_steps(steps, unit) for steps, unit in zip(rank_streams, units, strict=True)]
            for rank_streams in by_rank
        ]
        divided = {
            stream for stream in range(len(units)) if can_be_divided([rank_streams[stream] for rank_streams in by_rank])
        }
        operations = sum(
            max(len(step.moves), 1)
            for rank_streams in by_rank
            for stream, steps in enumerate(rank_streams)
            for step in (divide_steps(steps, member=0, group=group) if stream in divided else steps)
        )
        # `operations` is not 0: streams move data, as moving_streams * group > most_moving
        group = min(group, MOST_GROUPED // operations)
        while moving_streams * group > most_moving:
            with suppress(Unsupported):
                gpus = [
                    gpu_of(rank_ends, streams_of_rank, PAIR, group, divided)
                    for rank_ends, streams_of_rank in zip(ends, by_rank, strict=True)
                ]
                # more than `blocks` are there where some have handed over to others
                if all(len(gpu.blocks) <= MOST_BLOCKS for gpu in gpus):
                    best, most_moving = (layout, gpus), moving_streams * group
            group //= 2
    return best
