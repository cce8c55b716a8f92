"""Third stage of the compilation to thread blocks: assign every step to a block and a channel, and find its waits.

In this file a block is a thread block, and a step is one of its instructions (MSCCL's word). The letters of its verb
say what it does, in order: r receive, a second r reduce, c copy (store), s send; "re" reduces and "cpy" copies inside a
rank.

The input is the segments of messages, the stretches of folds, and the tracks, sets of segments that share channels
(segments.py); the output is the blocks of each rank with their steps. `compile_to_blocks` calls `place_steps`. This is
one walk through the times of the program (`Operation.when`): at each time first local work of all ranks, then all
sends, then all receives. Blocks execute their steps in this order, and a step waits only for steps of earlier times (a
fold on arrival also for the step before it in its chain). If every block only sends or only receives, the step with the
smallest time can always proceed (docs/program.md). A block that also forwards what it receives may wait for an empty
slot at a later time: `blocks.find_stuck` checks whether all blocks reach their end.

A message that is folded on arrival is not stored in the cells that the program gives it, and does not wait for earlier
readers of these cells. A later writer to the cells must wait for these readers, although the program makes it wait only
for the fold: so the readers are recorded as `behind` the fold. If the fold's result takes the cells of one of its
messages, the first step of the fold waits for the readers instead.

`done_before` of a block grows by the waits of its steps; steps in it are not waited for again. The *chain* of a stretch
of a fold are the segments that are folded into it on arrival, one after the other; its *stored operands* are added from
memory.

Example: a segment that rank 1 receives from rank 0 and forwards to rank 2 becomes one step "rcs" (receive, copy, send)
of a block of rank 1 that receives from 0 and sends to 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from antiphon.core.program import FOLD, JOIN, RECEIVE, SEND
from antiphon.errors import Unsupported
from antiphon.lower.blocks.operations import Block, BlockStep, Operation, ProgramValues, Segment
from antiphon.lower.blocks.segments import Track, waits_through_joins


@dataclass(frozen=True)
class RuntimeLimits:
    """Limits of a runtime, per rank unless stated otherwise. The defaults are those of MSCCL's executor."""

    steps: int = 64  # of a block
    channels: int = 32
    blocks: int = 1024
    per_channel: int = 32  # blocks with sends on one channel, and likewise blocks with receives
    waited: int = 128  # blocks that other blocks may wait for: their number is an int8
    count: int = 71  # chunks of a step
    chunks: int = 2**15 - 1  # of a buffer: offsets are int16
    slots: int = 2  # of a queue between two blocks
    fused_receives: bool = True  # whether a step that receives can also reduce or forward
    together: int = 32  # steps that one step can wait for; more waits are collected by steps without work


# ---- what a step waits for ----


Awaited = dict[Block, BlockStep]  # of each block the last step to wait for, which implies those before it


class StepNeeds(NamedTuple):
    """The steps that a step waits for, and whether one of them does not exist yet."""

    awaited: Awaited
    has_unplaced: bool


def add_awaited(needs: Awaited, step: BlockStep) -> None:
    """Add a step to wait for; of each block only the last one counts."""
    latest_step = needs.get(step.block)
    if latest_step is None or latest_step.index < step.index:
        needs[step.block] = step


def latest_steps_of(waits: Iterable[Operation]) -> Awaited:
    """Return, of every block, the last step that belongs to any of these operations."""
    steps: Awaited = {}
    for operation in waits:
        for step in operation.done:
            latest_step = steps.get(step.block)
            if latest_step is None or latest_step.index < step.index:
                steps[step.block] = step
    return steps


def steps_before_write(waits: Iterable[Operation]) -> Awaited:
    """Return the steps that must precede a step that writes: those of its waits, and those behind its waits."""
    needs = latest_steps_of(waits)
    add_behind(needs, waits)
    return needs


def add_behind(needs: Awaited, waits: Iterable[Operation]) -> None:
    """Add the steps that are behind these operations (see the module)."""
    for operation in waits:
        if operation.behind:
            for step in operation.behind.values():
                add_awaited(needs, step)


def inherit_behind(operation: Operation) -> None:
    """Collect the steps behind an operation: its own and those of its waits, unless its last steps imply them."""
    behind = operation.behind or {}
    add_behind(behind, operation.waits)
    if behind:
        operation.behind = {
            block: step for block, step in behind.items() if not any(_is_implied(end, step) for end in operation.done)
        }


def _is_implied(end: BlockStep, step: BlockStep) -> bool:
    """Return whether `step` is surely done when `end` is."""
    return (end.block is step.block and step.index <= end.index) or end.done_before.get(step.block, -1) >= step.index


def last_steps(steps: list[BlockStep]) -> list[BlockStep]:
    """Return of every block the last of these steps."""
    if len(steps) == 1:
        return steps
    latest_steps: Awaited = {}
    for step in steps:
        add_awaited(latest_steps, step)
    return list(latest_steps.values())


def missing_steps(block: Block, needs: Awaited) -> list[BlockStep]:
    """Return the needed steps that the block has not waited for yet and that no other needed step implies."""
    done_before = block.done_before
    missing = [
        step for step in needs.values() if step.block is not block and done_before.get(step.block, -1) < step.index
    ]
    if len(missing) < 2:
        return missing
    return [
        step
        for step in missing
        if not any(other is not step and other.done_before.get(step.block, -1) >= step.index for other in missing)
    ]


# ---- blocks and channels ----


FUSED = {"r": "rcs", "rrc": "rrcs"}  # verb of a step that receives -> verb if it also sends


class Full(Exception):
    """More channels are needed than there are. `compile_to_blocks` then tries fewer tracks."""


class _Reservation(NamedTuple):
    """Room for a receive that is not placed yet."""

    block: Block
    steps: int  # that it takes in the file
    awaited: Awaited  # what it waits for


def place_steps(values: ProgramValues, tracks: list[Track], limits: RuntimeLimits) -> list[list[Block]]:
    """Return the blocks by rank. Linear in steps, and in blocks of a rank for each step that waits."""
    return _Placement(values, tracks, limits).place_all()


class _Placement:
    """The state of the walk through the times of the program."""

    def __init__(self, values: ProgramValues, tracks: list[Track], limits: RuntimeLimits) -> None:
        self.values, self.tracks, self.limits = values, tracks, limits
        self.blocks: list[list[Block]] = [[] for _ in values.ranks]
        # (rank, channel, peer, whether it sends to the peer) -> block
        self.block_of_peer: dict[tuple[int, int, int, bool], Block] = {}
        self.sending: dict[tuple[int, int], int] = defaultdict(int)  # (rank, channel) -> number of blocks with sends
        self.receiving: dict[tuple[int, int], int] = defaultdict(int)  # and with receives
        # A track opens a new channel when one is full: (track, number of its full channels) -> channel.
        self.channels: dict[tuple[int, int], int] = {}
        # (from, to, track) -> number of channels of the track that are full for this connection
        self.full_channels: dict[tuple[int, int, int], int] = defaultdict(int)
        self.local_blocks: list[Block | None] = [None] * len(values.ranks)  # per rank its last block without messages
        self.reserved: dict[Segment, _Reservation] = {}
        self.reserved_count: dict[Block, int] = defaultdict(int)  # of `reserved`, by block

    def place_all(self) -> list[list[Block]]:
        """Walk through the times and return the blocks by rank."""
        by_time: dict[int, tuple[list[Operation], list[Operation], list[Operation]]] = {}
        for operation in self.values.operations():
            kinds = by_time.get(operation.when)
            if kinds is None:
                kinds = by_time[operation.when] = [], [], []
            local, sends, receives = kinds
            (sends if operation.kind == SEND else receives if operation.kind == RECEIVE else local).append(operation)
        # Times in order; within one: local work, then sends, then receives. So waits only lead to earlier steps.
        for time in sorted(by_time):
            local, sends, receives = by_time[time]
            for operation in local:
                if operation.kind == FOLD:
                    self._place_fold(operation)
                elif operation.kind == JOIN:
                    # a join only waits, so it has no step: it is done with the last steps of what it waits for
                    operation.done = list(latest_steps_of(operation.waits).values())
                    inherit_behind(operation)
            for operation in sends:
                for segment in operation.segments:
                    self._place_send(segment)
                inherit_behind(operation)
            for operation in receives:
                for segment in operation.segments:
                    if segment.step is None:
                        self._place_receive(segment)
                operation.done = last_steps(
                    [segment.step for segment in operation.segments if segment.step is not None]
                )
                inherit_behind(operation)
        return self.blocks

    # ---- local work ----

    def _place_fold(self, fold: Operation) -> None:
        """Place a fold of stored operands; or finish a fold on arrival, whose receives are placed by now."""
        steps = []
        if not fold.fold_stretches:
            steps.append(self._place_local_fold(fold))
        else:
            for stretch in fold.fold_stretches:
                last = stretch.chain[-1].step
                assert last is not None
                # The first receive takes one stored operand along; the others are added after the last receive.
                for cell in stretch.stored_operands[1:]:
                    awaited = steps_before_write(fold.waits)
                    add_awaited(awaited, last)
                    last = self._place_local(
                        fold.rank, "re", src=cell, dst=stretch.cell, count=stretch.count, awaited=awaited,
                        preferred=last.block,
                    )  # fmt: skip
                steps.append(last)
        fold.done = last_steps(steps)
        inherit_behind(fold)

    def _place_local_fold(self, fold: Operation) -> BlockStep:
        """Place a fold of stored operands, in steps of at most `limits.count` chunks."""
        (result, length), *operand_spans = fold.spans
        operand_cells = [cell for cell, _ in operand_spans]
        # Numbers of operands in the order in which steps read them: first the result's own cell, if it is an operand.
        order = sorted(range(len(operand_cells)), key=lambda number: operand_cells[number] != result)
        adds_to_result = operand_cells[order[0]] == result
        if adds_to_result and len(order) == 1:  # lowering makes no such fold
            raise AssertionError("a fold of nothing but its result")
        # An operand that arrives late delays only the step that reads it, not the whole fold.
        first_waits, later_waits = self._split_waits(fold, order)
        step: BlockStep | None = None
        for low in range(0, length, self.limits.count):  # from chunk `low` of the fold on
            count = min(self.limits.count, length - low)
            # Steps wait for the step before, so only the first ones wait for what the fold waits for.
            awaited = latest_steps_of(first_waits) if low == 0 else {}
            if low == 0:
                add_behind(awaited, fold.waits)
            for position, number in enumerate(order[1:] if adds_to_result else order):
                # The first operand is copied to the result, unless it is there already.
                verb = "cpy" if position == 0 and not adds_to_result else "re"
                if low == 0:
                    for operation in later_waits.get(number, ()):
                        for done_step in operation.done:
                            add_awaited(awaited, done_step)
                if step is not None:
                    add_awaited(awaited, step)
                preferred = step.block if step is not None else self._receiving_block(awaited)
                step = self._place_local(
                    fold.rank, verb, src=operand_cells[number] + low, dst=result + low, count=count, awaited=awaited,
                    preferred=preferred,
                )  # fmt: skip
                awaited = {}
        assert step is not None
        return step

    def _split_waits(self, fold: Operation, order: list[int]) -> tuple[list[Operation], dict[int, list[Operation]]]:
        """Split a fold's waits into those before its first step, and those that only a later operand needs.

        The latter are receives that bring this operand alone; they are returned by the operand's number. `order`:
        numbers of operands in the order in which steps read them.
        """
        length, writer = fold.length, self.values.writer
        operands_of: dict[Operation, set[int]] = defaultdict(set)  # writer -> the operands that have data of it
        for number in range(len(order)):
            # a fold reads `length` versions of each operand, operand by operand; -1 is a user's input
            for version in fold.versions[number * length : (number + 1) * length]:
                if version >= 0:
                    operands_of[writer[version]].add(number)
        # The first step reads the first two operands if the first one is the result's own cell; else it copies the
        # first alone. Both count as early in either case, so such a copy also waits for the second operand.
        early_operands = {order[0], order[min(1, len(order) - 1)]}
        first_waits: list[Operation] = []
        later_waits: dict[int, list[Operation]] = defaultdict(list)
        for operation in fold.waits:
            operands = operands_of.get(operation, set())
            if operation.kind == RECEIVE and len(operands) == 1 and not operands & early_operands:
                later_waits[next(iter(operands))].append(operation)
            else:
                first_waits.append(operation)
        return first_waits, later_waits

    def _receiving_block(self, awaited: Awaited) -> Block | None:
        """Return a receiving block among those waited for, if any: a step placed in it need not wait for that block."""
        receiving = [step for step in awaited.values() if step.block.recv >= 0]
        return max(receiving, key=lambda step: step.index).block if receiving else None

    def _place_local(
        self, rank: int, verb: str, src: int, dst: int, count: int, awaited: Awaited, preferred: Block | None
    ) -> BlockStep:  # fmt: skip
        """Place a step without a message: in block `preferred` if there is room, else in a block without messages."""
        if preferred is not None and self._has_room(preferred, StepNeeds(awaited, has_unplaced=False)):
            block = preferred
        else:
            block = self._local_block(rank, awaited)
        return self._append_step(BlockStep(verb, src, dst, count, block), awaited)

    def _local_block(self, rank: int, awaited: Awaited) -> Block:
        """Return a block of this rank without messages that has room for a step with these waits."""
        block = self.local_blocks[rank]
        if block is None or not self._has_room(block, StepNeeds(awaited, has_unplaced=False)):
            block = self._new_block(rank, channel=0, send=-1, recv=-1)
            self.local_blocks[rank] = block
        return block

    # ---- messages ----

    def _place_send(self, segment: Segment) -> None:
        """Place the send of a segment: in the step that receives it if it is forwarded, else in a step of its own."""
        send = segment.send
        step = self._forward_in_receive(segment)
        if step is None:
            awaited = latest_steps_of(send.waits)
            incoming = self._receive_needs(segment)
            sender, receiver = self._find_blocks(segment, StepNeeds(awaited, has_unplaced=False), incoming)
            step = self._append_step(BlockStep("s", segment.src, dst=-1, count=segment.count, block=sender), awaited)
            sender.last_send = step.index
            self._reserve_receive(segment, receiver, incoming)
        send.done = last_steps([*send.done, step]) if send.done else [step]

    def _forward_in_receive(self, segment: Segment) -> BlockStep | None:
        """Let the step that receives the segment's parent also send the segment; return that step.

        None if the order of sends or the waits do not allow it.
        """
        parent = segment.parent
        if parent is None or parent.step is None:
            return None
        step = parent.step
        block = step.block
        # The receiving block can forward only to its own peer, in order, and with a verb that exists.
        if block.send != segment.receive.rank or step.index <= block.last_send or step.verb not in FUSED:
            return None
        # The operation that `step` itself completes: the receive, or the fold on arrival that ends with it.
        producer = parent.receive if parent.fold_stretch is None else parent.fold_stretch.fold
        other_waits = [operation for operation in segment.send.waits if operation is not producer]
        # Everything that the send waits for must be implied by the step that would forward it.
        for other in latest_steps_of(other_waits).values() if other_waits else ():
            last_done = step.index if other.block is block else step.done_before.get(other.block, -1)
            if other.index > last_done:
                return None
        incoming = self._receive_needs(segment)
        rank, peer, track = segment.receive.rank, segment.send.rank, segment.track
        if not self._fits_channel(rank, block.channel, track, peer, sending=False, needs=incoming):
            return None
        self._reserve_receive(
            segment, self._find_or_make_block(rank, block.channel, track, peer, sending=False), incoming
        )
        step.verb = FUSED[step.verb]
        if step.verb == "rrcs" and segment.only_forwarded:  # nobody reads the sum here, so it is not stored
            step.verb, step.dst = "rrs", -1
        block.last_send = step.index
        return step

    def _reserve_receive(self, segment: Segment, receiver: Block, incoming: StepNeeds) -> None:
        """Reserve the receive of a segment in a block. `incoming`: what it waits for.

        It is placed at once if the block only receives, has no other receive reserved, and all steps that it waits for
        exist; otherwise after all sends of this time.
        """
        # Reserve room for the receive now, so that the block does not overflow before it is placed.
        reserved_steps = self._step_cost(receiver, incoming)
        receiver.load += reserved_steps
        self.reserved[segment] = _Reservation(receiver, reserved_steps, incoming.awaited)
        self.reserved_count[receiver] += 1
        if receiver.send < 0 and self.reserved_count[receiver] == 1 and not incoming.has_unplaced:
            self._place_receive(segment)

    def _receive_needs(self, segment: Segment) -> StepNeeds:
        """Return the steps that the receive of a segment waits for, as far as they exist."""
        stretch, receive = segment.fold_stretch, segment.receive
        if stretch is None:
            return StepNeeds(steps_before_write(receive.waits), has_unplaced=False)
        if stretch.chain[0] is segment:
            awaited = steps_before_write(waits_through_joins(stretch.fold))
            # The first step of the chain writes the result's cells: it also waits for the readers of these.
            for member in stretch.chain:
                if member.dst == stretch.cell:
                    for step in steps_before_write(member.receive.waits).values():
                        add_awaited(awaited, step)
            return StepNeeds(awaited, has_unplaced=False)
        last = stretch.chain[stretch.chain.index(segment) - 1].step
        return StepNeeds({} if last is None else {last.block: last}, has_unplaced=last is None)

    def _place_receive(self, segment: Segment) -> None:
        """Place the receive of a segment, in the block that was chosen when it was sent."""
        block, reserved_steps, awaited = self.reserved.pop(segment)
        block.load -= reserved_steps
        self.reserved_count[block] -= 1
        stretch = segment.fold_stretch
        if stretch is None:
            segment.step = self._append_step(
                BlockStep("r", src=-1, dst=segment.dst, count=segment.count, block=block), awaited
            )
            return
        if segment.receive.waits and segment.dst != stretch.cell:
            # The message is not stored in its cells: their readers are recorded for the next writer (see the module).
            behind = steps_before_write(segment.receive.waits)
            for reading_step in (stretch.fold.behind or {}).values():
                add_awaited(behind, reading_step)
            stretch.fold.behind = behind
        if stretch.chain[0] is segment:
            # The first receive takes one stored operand along; the others are added last (`_place_fold`).
            verb, src = ("rrc", stretch.stored_operands[0]) if stretch.stored_operands else ("r", -1)
        else:
            last = stretch.chain[stretch.chain.index(segment) - 1].step
            assert last is not None
            add_awaited(awaited, last)
            verb, src = "rrc", stretch.cell
        segment.step = self._append_step(BlockStep(verb, src, stretch.cell, segment.count, block), awaited)

    # ---- blocks ----

    def _find_blocks(self, segment: Segment, outgoing: StepNeeds, incoming: StepNeeds) -> tuple[Block, Block]:
        """Return the blocks at both ends, on the first channel of the segment's track that has room at both.

        `outgoing`, `incoming`: what the send and the receive wait for.
        """
        source, target, track = segment.send.rank, segment.receive.rank, segment.track
        full_count = self.full_channels[source, target, track]
        while True:
            channel = self._channel_of(track, full_count)
            if self._fits_channel(source, channel, track, target, sending=True, needs=outgoing) and self._fits_channel(
                target, channel, track, source, sending=False, needs=incoming
            ):
                break
            full_count += 1
        self.full_channels[source, target, track] = full_count
        return self._find_or_make_block(source, channel, track, target, sending=True), self._find_or_make_block(
            target, channel, track, source, sending=False
        )

    def _channel_of(self, track: int, full_count: int) -> int:
        """Return the channel of a track after `full_count` full ones; raise Full if there are no more channels."""
        channel = self.channels.setdefault((track, full_count), len(self.channels))
        if channel >= self.limits.channels:
            raise Full
        return channel

    def _fits_channel(self, rank: int, channel: int, track: int, peer: int, sending: bool, needs: StepNeeds) -> bool:
        """Return whether a channel has room at this rank for a step that sends to (or receives from) this peer."""
        block = self.block_of_peer.get((rank, channel, peer, sending))
        if block is not None:
            return self._has_room(block, needs)
        send, recv = self._peers_of_block(rank, track, peer, sending)
        limit = self.limits.per_channel
        return not (
            (send >= 0 and self.sending[rank, channel] >= limit)
            or (recv >= 0 and self.receiving[rank, channel] >= limit)
        )

    def _peers_of_block(self, rank: int, track: int, peer: int, sending: bool) -> tuple[int, int]:
        """Return the rank that a block sends to, and the one that it receives from.

        `peer` is the former (`sending`) or the latter; the track gives the other.
        """
        if sending:
            return peer, self.tracks[track].before.get((rank, peer), -1)
        return self.tracks[track].after.get((rank, peer), -1), peer

    def _find_or_make_block(self, rank: int, channel: int, track: int, peer: int, sending: bool) -> Block:
        """Return the block on a channel that sends to (`sending`) or receives from this peer, or else a new one."""
        block = self.block_of_peer.get((rank, channel, peer, sending))
        if block is None:
            block = self._new_block(rank, channel, *self._peers_of_block(rank, track, peer, sending))
            if block.send >= 0:
                self.block_of_peer[rank, channel, block.send, True] = block
                self.sending[rank, channel] += 1
            if block.recv >= 0:
                self.block_of_peer[rank, channel, block.recv, False] = block
                self.receiving[rank, channel] += 1
        return block

    def _new_block(self, rank: int, channel: int, send: int, recv: int) -> Block:
        """Return a new block. `send`, `recv`: the ranks that it sends to and receives from; -1: none."""
        if len(self.blocks[rank]) >= self.limits.blocks:
            raise Unsupported(
                f"rank {rank} needs more than {self.limits.blocks} thread blocks; take a planner with fewer partners"
            )
        self.blocks[rank].append(Block(rank, channel, send, recv))
        return self.blocks[rank][-1]

    def _step_cost(self, block: Block, needs: StepNeeds) -> int:
        """Return the number of steps in the file of one step of this block with these waits.

        A step in the file waits for one other step, so further waits take steps without work. More than
        `limits.together` are gathered in another block (`_append_step`).
        """
        count = len(needs.awaited) + needs.has_unplaced
        if count < 2:
            return 1
        count = len(missing_steps(block, needs.awaited)) + needs.has_unplaced
        return max(1, min(count, self.limits.together))

    def _has_room(self, block: Block, needs: StepNeeds) -> bool:
        """Return whether one more step with these waits fits into the block."""
        return block.load + self._step_cost(block, needs) <= self.limits.steps

    def _append_step(self, step: BlockStep, awaited_steps: Awaited) -> BlockStep:
        """Append a step to its block; all steps that it waits for exist already."""
        block = step.block
        missing = missing_steps(block, awaited_steps)
        together = self.limits.together
        # Too many waits for one step: gather them by empty steps first.
        while len(missing) > together:
            gathered = {awaited.block: awaited for awaited in missing[:together]}
            empty_step = BlockStep("cpy", src=-1, dst=-1, count=0, block=self._local_block(block.rank, gathered))
            self._append_step(empty_step, gathered)
            missing = [*missing[together:], empty_step]
        if missing:
            done_before = dict(block.done_before)
            # Vector clock: everything that an awaited step had waited for is implied from now on.
            for awaited in missing:
                for other, index in awaited.done_before.items():
                    if index > done_before.get(other, -1):
                        done_before[other] = index
                done_before[awaited.block] = max(awaited.index, done_before.get(awaited.block, -1))
            done_before.pop(block, None)
            block.done_before = done_before
        step.waits, step.done_before, step.index = missing, block.done_before, len(block.steps)
        block.steps.append(step)
        block.load += max(1, len(missing))  # in the file, each further wait is a step without work
        return step
