"""Third stage of the compilation to thread blocks: assign every step to a block and a channel, and find its waits.

Input are the segments of messages and the pieces of folds (segments.py); output are the blocks of each rank with their
steps. It is one walk through the times of the program: at each time first local work of all ranks, then all sends, then
all receives. Blocks execute their steps in this order, and a step waits only for steps of earlier times (a fold on
arrival also for the step before it in its chain). If every block only sends or only receives, the step with the
smallest time can always proceed (docs/program.md). A block that also forwards what it receives may wait for an empty
slot at a later time: `blocks.find_stuck` checks whether all blocks reach their end.

A message that is folded on arrival is not stored at its own place, and does not wait for readers of that place. A later
writer there must wait for them, although it only waits for the fold: these readers are recorded as `behind` the fold.
If the fold's result takes the place of one of its messages, the first step of the fold waits for them instead.

`done_before` of a block grows by the waits of its steps; steps in it are not waited for again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from antiphon.core.program import FOLD, JOIN, RECEIVE, SEND
from antiphon.errors import Unsupported
from antiphon.lower.blocks.operations import Block, Operation, Segment, Step, Values
from antiphon.lower.blocks.segments import Lane, waits_through_joins


@dataclass(frozen=True)
class Limits:
    """Limits of a runtime, per rank unless stated otherwise. The defaults are those of MSCCL's executor."""

    steps: int = 64  # of a block
    channels: int = 32
    blocks: int = 1024
    per_channel: int = 32  # blocks with sends on one channel, and blocks with receives
    waited: int = 128  # blocks that other blocks may wait for: their number is an int8
    count: int = 71  # chunks of a step
    chunks: int = 2**15 - 1  # of a buffer: offsets are int16
    slots: int = 2  # slots of a queue between two blocks
    fused: bool = True  # whether a step can receive and at once reduce or forward
    together: int = 32  # steps that one step can wait for; steps without work collect more


# ---- what a step waits for ----


Awaited = dict[Block, Step]


class Needs(NamedTuple):
    """The steps that a step waits for, and whether one of them does not exist yet."""

    awaited: Awaited
    missing: bool


def add(needs: Awaited, step: Step) -> None:
    """Add a step to wait for; of each block only the last one counts."""
    latest_step = needs.get(step.block)
    if latest_step is None or latest_step.place < step.place:
        needs[step.block] = step


def latest_steps_of(waits: Iterable[Operation]) -> Awaited:
    """Return, of every block, the last step that belongs to any of these operations."""
    steps: Awaited = {}
    for operation in waits:
        for step in operation.done:
            latest_step = steps.get(step.block)
            if latest_step is None or latest_step.place < step.place:
                steps[step.block] = step
    return steps


def steps_before_write(waits: Iterable[Operation]) -> Awaited:
    """Return the steps that must precede a step that writes."""
    needs = latest_steps_of(waits)
    add_behind(needs, waits)
    return needs


def add_behind(needs: Awaited, waits: Iterable[Operation]) -> None:
    for operation in waits:
        if operation.behind:
            for step in operation.behind.values():
                add(needs, step)


def inherit_behind(operation: Operation) -> None:
    """Collect what is behind it: its own, and that of its waits, as far as the steps that it ends with do not imply
    it."""
    behind = operation.behind or {}
    add_behind(behind, operation.waits)
    if behind:
        operation.behind = {
            block: step for block, step in behind.items() if not any(_is_implied(end, step) for end in operation.done)
        }


def _is_implied(end: Step, step: Step) -> bool:
    return (end.block is step.block and step.place <= end.place) or end.done_before.get(step.block, -1) >= step.place


def ends(steps: list[Step]) -> list[Step]:
    if len(steps) == 1:
        return steps
    latest_steps: Awaited = {}
    for step in steps:
        add(latest_steps, step)
    return list(latest_steps.values())


def missing_steps(block: Block, needs: Awaited) -> list[Step]:
    """Return the needed steps that the block has not waited for and that no other needed step implies."""
    done_before = block.done_before
    missing = [
        step for step in needs.values() if step.block is not block and done_before.get(step.block, -1) < step.place
    ]
    if len(missing) < 2:
        return missing
    return [
        step
        for step in missing
        if not any(other is not step and other.done_before.get(step.block, -1) >= step.place for other in missing)
    ]


# ---- blocks and channels ----


FUSED = {"r": "rcs", "rrc": "rrcs"}


class Full(Exception):
    """More channels are needed than there are."""


def place(values: Values, lanes: list[Lane], limits: Limits) -> list[list[Block]]:
    """Return the blocks by rank. Linear in steps, and in blocks of a rank for each step that waits."""
    return _Placing(values, lanes, limits).place_all()


class _Placing:
    """The state of the walk."""

    def __init__(self, values: Values, lanes: list[Lane], limits: Limits) -> None:
        self.values, self.lanes, self.limits = values, lanes, limits
        self.blocks: list[list[Block]] = [[] for _ in values.ranks]
        self.at: dict[tuple[int, int, int, bool], Block] = {}  # rank, channel, peer, whether it sends there
        self.sending: dict[tuple[int, int], int] = defaultdict(int)  # blocks with sends, by rank and channel
        self.receiving: dict[tuple[int, int], int] = defaultdict(int)
        self.numbers: dict[tuple[int, int], int] = {}  # by lane and number of full channels before: channel
        # per connection and lane: the number of full channels
        self.reached: dict[tuple[int, int, int], int] = defaultdict(int)
        self.own: list[Block | None] = [None] * len(values.ranks)
        self.promised: dict[Segment, tuple[Block, int, Awaited]] = {}
        self.owed: dict[Block, int] = defaultdict(int)

    def place_all(self) -> list[list[Block]]:
        """Walk through the times and return the blocks by rank."""
        by_time: dict[int, tuple[list[Operation], list[Operation], list[Operation]]] = {}
        for operation in self.values.every():
            kinds = by_time.get(operation.when)
            if kinds is None:
                kinds = by_time[operation.when] = [], [], []
            kinds[1 if operation.kind == SEND else 2 if operation.kind == RECEIVE else 0].append(operation)
        # Times in order; within one: local work, then sends, then receives. So waits only lead to earlier steps.
        for time in sorted(by_time):
            alone, sends, receives = by_time[time]
            for operation in alone:
                if operation.kind == FOLD:
                    self._place_fold(operation)
                elif operation.kind == JOIN:
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
                operation.done = ends([each.step for each in operation.segments if each.step is not None])
                inherit_behind(operation)
        return self.blocks

    # ---- what is done alone ----

    def _place_fold(self, fold: Operation) -> None:
        """Place a fold: local, or as the steps that receive its messages."""
        steps = []
        if not fold.pieces:
            steps.append(self._place_local_fold(fold))
        else:
            for piece in fold.pieces:
                last = piece.chain[-1].step
                assert last is not None
                for cell in piece.memory[1:]:
                    awaited = steps_before_write(fold.waits)
                    add(awaited, last)
                    last = self._place_local(fold.rank, "re", cell, piece.cell, piece.count, awaited, last.block)
                steps.append(last)
        fold.done = ends(steps)
        inherit_behind(fold)

    def _place_local_fold(self, fold: Operation) -> Step:
        """Place a fold of stored operands, in steps of at most `limits.count` chunks."""
        (result, length), *operands = fold.spans
        order = sorted(range(len(operands)), key=lambda number: operands[number][0] != result)
        if operands[order[0]][0] == result and len(order) == 1:
            raise AssertionError("a fold of nothing but its result")
        # An operand that arrives late delays only the step that reads it, not the whole fold.
        first, later = self._split_waits(fold, order)
        step: Step | None = None
        # A step moves at most limits.count chunks.
        for low in range(0, length, self.limits.count):
            count = min(self.limits.count, length - low)
            numbers = order
            awaited = latest_steps_of(first) if low == 0 else {}
            if low == 0:
                add_behind(awaited, fold.waits)
            if operands[order[0]][0] == result:
                numbers = order[1:]
            for place, number in enumerate(numbers):
                verb = "cpy" if place == 0 and numbers is order else "re"
                if low == 0:
                    for operation in later.get(number, ()):
                        for each in operation.done:
                            add(awaited, each)
                if step is not None:
                    add(awaited, step)
                near = step.block if step is not None else self._receiving_block(fold.rank, awaited)
                step = self._place_local(fold.rank, verb, operands[number][0] + low, result + low, count, awaited, near)
                awaited = {}
        assert step is not None
        return step

    def _split_waits(self, fold: Operation, order: list[int]) -> tuple[list[Operation], dict[int, list[Operation]]]:
        """Split a fold's waits: those before its first step, and those of one later operand only: the message
        that brings it."""
        length, writer = fold.length, self.values.writer
        brings: dict[Operation, set[int]] = defaultdict(set)
        for number in range(len(order)):
            for version in fold.versions[number * length : (number + 1) * length]:
                if version >= 0:
                    brings[writer[version]].add(number)
        early = {order[0], order[min(1, len(order) - 1)]}
        first: list[Operation] = []
        later: dict[int, list[Operation]] = defaultdict(list)
        for operation in fold.waits:
            operands = brings.get(operation, set())
            if operation.kind == RECEIVE and len(operands) == 1 and not operands & early:
                later[next(iter(operands))].append(operation)
            else:
                first.append(operation)
        return first, later

    def _receiving_block(self, rank: int, awaited: Awaited) -> Block | None:
        """Return a receiving block among those waited for, if any: a step placed in it need not wait for that block."""
        receiving = [step for step in awaited.values() if step.block.recv >= 0]
        return max(receiving, key=lambda step: step.place).block if receiving else None

    def _place_local(
        self, rank: int, verb: str, src: int, dst: int, count: int, awaited: Awaited, near: Block | None
    ) -> Step:  # fmt: skip
        """Place a step without a message: in block `near` if there is room, else in a block of its own."""
        block = (
            near if near is not None and self._has_room(near, Needs(awaited, False)) else self._own_block(rank, awaited)
        )
        return self._append_step(Step(verb, src, dst, count, block), awaited)

    def _own_block(self, rank: int, awaited: Awaited) -> Block:
        block = self.own[rank]
        if block is None or not self._has_room(block, Needs(awaited, False)):
            block = self._new_block(rank, 0, -1, -1)
            self.own[rank] = block
        return block

    # ---- messages ----

    def _place_send(self, segment: Segment) -> None:
        """Place the send of a segment: in the step that receives it if it is forwarded, else in a step of its own."""
        send = segment.send
        step = self._forward_in_receive(segment)
        if step is None:
            awaited = latest_steps_of(send.waits)
            incoming = self._receive_needs(segment)
            sender, receiver = self._find_blocks(segment, Needs(awaited, False), incoming)
            step = self._append_step(Step("s", segment.src, -1, segment.count, sender), awaited)
            sender.sent = step.place
            self._promise_receive(segment, receiver, incoming)
        send.done = ends([*send.done, step]) if send.done else [step]

    def _forward_in_receive(self, segment: Segment) -> Step | None:
        """Let the step that receives the segment's parent also send the segment, if order and waits allow it; return
        that step, or None.
        """
        parent = segment.parent
        if parent is None or parent.step is None:
            return None
        step = parent.step
        block = step.block
        # The receiving block can forward only to its own peer, in order, and with a verb that exists.
        if block.send != segment.receive.rank or step.place <= block.sent or step.verb not in FUSED:
            return None
        producer = parent.receive if parent.piece is None else parent.piece.fold
        other_waits = [operation for operation in segment.send.waits if operation is not producer]
        # Everything that the send waits for must be implied by the step that would forward it.
        for other in latest_steps_of(other_waits).values() if other_waits else ():
            last_place = step.place if other.block is block else step.done_before.get(other.block, -1)
            if other.place > last_place:
                return None
        incoming = self._receive_needs(segment)
        rank, peer, lane = segment.receive.rank, segment.send.rank, segment.lane
        if not self._fits_channel(rank, block.channel, lane, peer, False, incoming):
            return None
        self._promise_receive(segment, self._find_or_make_block(rank, block.channel, lane, peer, False), incoming)
        step.verb = FUSED[step.verb]
        if step.verb == "rrcs" and segment.passing:
            step.verb, step.dst = "rrs", -1
        block.sent = step.place
        return step

    def _promise_receive(self, segment: Segment, receiver: Block, incoming: Needs) -> None:
        """Reserve the receive of a segment in a block.

        It is placed at once if the block only receives, has no other receive reserved, and all steps that it waits for
        exist; otherwise after all sends of this time.
        """
        # Reserve room for the receive now, so that the block does not overflow before it is placed.
        steps = self._step_cost(receiver, incoming)
        receiver.load += steps
        self.promised[segment] = receiver, steps, incoming.awaited
        self.owed[receiver] += 1
        if receiver.send < 0 and self.owed[receiver] == 1 and not incoming.missing:
            self._place_receive(segment)

    def _receive_needs(self, segment: Segment) -> Needs:
        """Return the steps that receiving it waits for, as far as they exist."""
        piece, receive = segment.piece, segment.receive
        if piece is None:
            return Needs(steps_before_write(receive.waits), False)
        if piece.chain[0] is segment:
            awaited = steps_before_write(waits_through_joins(piece.fold))
            for member in piece.chain:
                if member.dst == piece.cell:
                    for step in steps_before_write(member.receive.waits).values():
                        add(awaited, step)
            return Needs(awaited, False)
        last = piece.chain[piece.chain.index(segment) - 1].step
        return Needs({} if last is None else {last.block: last}, last is None)

    def _place_receive(self, segment: Segment) -> None:
        """Place the receive of a segment, in the block that was chosen when it was sent."""
        block, steps, awaited = self.promised.pop(segment)
        block.load -= steps
        self.owed[block] -= 1
        piece = segment.piece
        if piece is None:
            segment.step = self._append_step(Step("r", -1, segment.dst, segment.count, block), awaited)
            return
        if segment.receive.waits and segment.dst != piece.cell:
            behind = steps_before_write(segment.receive.waits)
            for each in (piece.fold.behind or {}).values():
                add(behind, each)
            piece.fold.behind = behind
        if piece.chain[0] is segment:
            verb, src = ("rrc", piece.memory[0]) if piece.memory else ("r", -1)
        else:
            last = piece.chain[piece.chain.index(segment) - 1].step
            assert last is not None
            add(awaited, last)
            verb, src = "rrc", piece.cell
        segment.step = self._append_step(Step(verb, src, piece.cell, segment.count, block), awaited)

    # ---- blocks ----

    def _find_blocks(self, segment: Segment, outgoing: Needs, incoming: Needs) -> tuple[Block, Block]:
        """Return the blocks at both ends, on the first channel of the segment's lane that has room at both."""
        source, target, lane = segment.send.rank, segment.receive.rank, segment.lane
        full = self.reached[source, target, lane]
        while True:
            number = self._channel_of(lane, full)
            if self._fits_channel(source, number, lane, target, True, outgoing) and self._fits_channel(
                target, number, lane, source, False, incoming
            ):
                break
            full += 1
        self.reached[source, target, lane] = full
        return self._find_or_make_block(source, number, lane, target, True), self._find_or_make_block(
            target, number, lane, source, False
        )

    def _channel_of(self, lane: int, full: int) -> int:
        number = self.numbers.setdefault((lane, full), len(self.numbers))
        if number >= self.limits.channels:
            raise Full
        return number

    def _fits_channel(self, rank: int, number: int, lane: int, peer: int, sending: bool, need: Needs) -> bool:
        """Return whether a channel has room at this rank for a step with this peer."""
        block = self.at.get((rank, number, peer, sending))
        if block is not None:
            return self._has_room(block, need)
        send, recv = self._peers_of_block(rank, lane, peer, sending)
        limit = self.limits.per_channel
        return not (
            (send >= 0 and self.sending[rank, number] >= limit) or (recv >= 0 and self.receiving[rank, number] >= limit)
        )

    def _peers_of_block(self, rank: int, lane: int, peer: int, sending: bool) -> tuple[int, int]:
        """Return the rank that the block sends to, and the one that it receives from."""
        if sending:
            return peer, self.lanes[lane].before.get((rank, peer), -1)
        return self.lanes[lane].after.get((rank, peer), -1), peer

    def _find_or_make_block(self, rank: int, number: int, lane: int, peer: int, sending: bool) -> Block:
        """Return the block on a channel with this peer, a new one if there is none."""
        block = self.at.get((rank, number, peer, sending))
        if block is None:
            block = self._new_block(rank, number, *self._peers_of_block(rank, lane, peer, sending))
            if block.send >= 0:
                self.at[rank, number, block.send, True] = block
                self.sending[rank, number] += 1
            if block.recv >= 0:
                self.at[rank, number, block.recv, False] = block
                self.receiving[rank, number] += 1
        return block

    def _new_block(self, rank: int, number: int, send: int, recv: int) -> Block:
        if len(self.blocks[rank]) >= self.limits.blocks:
            raise Unsupported(
                f"rank {rank} needs more than {self.limits.blocks} thread blocks; take a planner with fewer partners"
            )
        self.blocks[rank].append(Block(rank, number, send, recv))
        return self.blocks[rank][-1]

    def _step_cost(self, block: Block, need: Needs) -> int:
        """Steps in a file of one in this block that waits for that."""
        count = len(need.awaited) + need.missing
        if count < 2:
            return 1
        count = len(missing_steps(block, need.awaited)) + need.missing
        return max(1, min(count, self.limits.together))

    def _has_room(self, block: Block, need: Needs) -> bool:
        return block.load + self._step_cost(block, need) <= self.limits.steps

    def _append_step(self, step: Step, awaited_steps: Awaited) -> Step:
        """Append a step to its block; what it waits for is there already."""
        block = step.block
        missing = missing_steps(block, awaited_steps)
        together = self.limits.together
        # Too many waits for one step: gather them by empty steps first.
        while len(missing) > together:
            gathered = {awaited.block: awaited for awaited in missing[:together]}
            gathers = Step("cpy", -1, -1, 0, self._own_block(block.rank, gathered))
            self._append_step(gathers, gathered)
            missing = [*missing[together:], gathers]
        if missing:
            seen_places = dict(block.done_before)
            # Vector clock: what an awaited step had waited for is implied from now on.
            for awaited in missing:
                for other, place in awaited.done_before.items():
                    if place > seen_places.get(other, -1):
                        seen_places[other] = place
                seen_places[awaited.block] = max(awaited.place, seen_places.get(awaited.block, -1))
            seen_places.pop(block, None)
            block.done_before = seen_places
        step.waits, step.done_before, step.place = missing, block.done_before, len(block.steps)
        block.steps.append(step)
        block.load += max(1, len(missing))
        return step
