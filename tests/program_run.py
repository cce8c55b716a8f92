"""Run a program for all ranks in one process: operations in a random legal order, with no buffering at all.

Input: a program and one array per rank. Output: the result of every rank. This simulates the worst runtime that is
still legal, to test programs: a send and its receive proceed only when both have started, and everything that could be
reordered is. It reads only the program, never the schedule from which the program was made.

An operation sends, receives, folds (combines operands into a result) or joins (only waits). It reads and writes
*parts*, intervals of the rank's buffers; the first part of a fold is its result. An operation may be divided into
pieces. An *instance* is one piece of an operation. It starts at one moment and is done at some later one; in between,
its reads and writes are checked for races with all other started instances of its rank.

Example: if rank 0 sends to 1 before it receives from 1, and rank 1 likewise, on one strictly ordered channel, neither
send can complete: the run ends with the error "deadlock".
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.datatypes import accumulator, average, combine_of
from antiphon.core.interpret.buffers import take_inputs
from antiphon.core.program.form import op_text
from antiphon.core.program.kinds import FOLD, INPUT, RECEIVE, SEND, BufferLayout, Program, layout_of
from antiphon.errors import Invalid

Array = NDArray[Any]
Connection = tuple[int, int, int]  # from, to, channel
Stretch = tuple[int, int, int, bool]  # buffer, begin, end, written


def run_program(
    program: Program,
    inputs: Sequence[Any],
    *,
    op: str = "sum",
    dtype: object = None,
    seed: int = 0,
    strict: bool | None = None,
) -> list[Array]:
    """Return the output of every rank; `inputs` as for `interpret` (in place: the users' buffers, which are written
    to).

    `strict` True: channels start their instances in order. False: any ready instance may start, only messages stay in
    order. None: the seed chooses. Raises Invalid for a deadlock, for messages whose lengths differ, for an access
    outside its buffer, and for a race: an element is touched while another operation may write it. It executes
    Python code per instance.
    """
    combine = combine_of(op)
    buffers = take_inputs(program.collective, inputs, dtype, program.in_place)
    layout = layout_of(program, buffers.unit)
    random = Random(seed)
    outputs = list(buffers.arrays) if program.in_place else [np.empty(n, buffers.dtype) for n in layout.sizes[:, 1]]
    # Scratch begins with garbage, so that a read of unwritten memory changes the result.
    spoiled = np.random.default_rng(seed)
    scratch = [_fill_with_garbage(spoiled, int(n), buffers.dtype) for n in layout.sizes[:, 2]]
    data = _Data(
        program, layout, [list(three) for three in zip(buffers.arrays, outputs, scratch, strict=True)], combine
    )
    with np.errstate(all="ignore"):
        _Simulation(program, data, random, random.random() < 0.5 if strict is None else strict).run()
        if op == "avg":
            _divide_averages(program, layout, outputs)
    return outputs


def _fill_with_garbage(random: np.random.Generator, count: int, dtype: np.dtype[Any]) -> Array:
    """Return values that must never get into a result."""
    return random.integers(1, 100, count).astype(dtype)


def _divide_averages(program: Program, layout: BufferLayout, outputs: list[Array]) -> None:
    """Divide the results of avg: the finish table lists intervals of the output and the count to divide each by.

    An address is the element at a point of the line of all blocks (`layout.at`), plus the shift of its base.
    """
    for rank, target in enumerate(outputs):
        for row in range(int(program.finish_ptr[rank]), int(program.finish_ptr[rank + 1])):
            base, begin, end = (int(c[row]) for c in (program.finish_base, program.finish_begin, program.finish_end))
            shift = int(program.base_shift[base]) * layout.unit
            stretch = slice(shift + int(layout.at[begin]), shift + int(layout.at[end]))
            target[stretch] = average(target[stretch], int(program.finish_count[row]))


class _Data:
    """The buffers of all ranks, and the effect of instances on them.

    In place, input and output of a rank are one array. Programs in place then name it only as output, so that races are
    found although they are counted per buffer.
    """

    def __init__(self, program: Program, layout: BufferLayout, buffers: list[list[Array]], combine: np.ufunc) -> None:
        self.program, self.layout, self.buffers, self.combine = program, layout, buffers, combine
        self.ptr: list[int] = program.part_ptr.tolist()
        self.ranks: list[int] = program.rank.tolist()
        self.sizes = layout.sizes.tolist()

    def stretches(self, operation: int, piece: int) -> list[Stretch]:
        """Return the stretches that an instance reads and writes, in the order of its parts."""
        kind, pieces = int(self.program.kind[operation]), int(self.program.pieces[operation])
        stretches = []
        rank = self.ranks[operation]
        for nth, part_row in enumerate(range(self.ptr[operation], self.ptr[operation + 1])):
            low, high = self.layout.piece(part_row, piece, pieces)
            buffer = int(self.layout.buffer[part_row])
            written = kind == RECEIVE or (kind == FOLD and nth == 0)
            if not 0 <= low <= high <= self.sizes[rank][buffer]:
                raise Invalid(f"{op_text(self.program, operation)}: part {nth} leaves buffer {buffer} of its rank")
            if written and buffer == INPUT:
                raise Invalid(f"{op_text(self.program, operation)}: writes into the input")
            stretches.append((buffer, low, high, written))
        return stretches

    def view(self, rank: int, stretch: Stretch) -> Array:
        """Return a stretch as an array."""
        buffer, low, high, _ = stretch
        return self.buffers[rank][buffer][low:high]

    def move(self, source: int, target: int, reads: list[Stretch], writes: list[Stretch]) -> None:
        """Copy the elements of a send to the stretches of its receive."""
        stream = np.concatenate([self.view(source, s) for s in reads])
        at = 0
        for stretch in writes:
            view = self.view(target, stretch)
            view[:] = stream[at : at + len(view)]
            at += len(view)

    def fold(self, rank: int, stretches: list[Stretch]) -> None:
        """Combine the operands of a fold into its result."""
        target, *operands = (self.view(rank, s) for s in stretches)
        if len(operands) == 1:
            target[:] = operands[0]
            return
        # Sum in the wider accumulator type, and round once at the end, as `interpret` does.
        total = operands[0].astype(accumulator(target.dtype))
        for other in operands[1:]:
            total = self.combine(total, other.astype(total.dtype))
        target[:] = total.astype(target.dtype)


class _Busy:
    """Per element the number of started instances that read it and that write it.

    So a new instance need only check its own elements.
    """

    def __init__(self, sizes: list[int]) -> None:
        self.readers = [np.zeros(size, np.int32) for size in sizes]
        self.writers = [np.zeros(size, np.int32) for size in sizes]

    def conflicts(self, stretches: list[Stretch]) -> bool:
        """Return whether these accesses conflict with a started instance."""
        return any(
            self.writers[buffer][low:high].any() or (written and self.readers[buffer][low:high].any())
            for buffer, low, high, written in stretches
        )

    def add(self, stretches: list[Stretch], count: int) -> None:
        """Count these accesses, or with -1 remove them."""
        for buffer, low, high, written in stretches:
            (self.writers if written else self.readers)[buffer][low:high] += count


class _Simulation:
    """The state of a run: instances that may start, instances that may end, and the random choice of the next event."""

    def __init__(self, program: Program, data: _Data, random: Random, strict: bool) -> None:
        self.program, self.data, self.random = program, data, random
        self.kind: list[int] = program.kind.tolist()
        self.pieces: list[int] = program.pieces.tolist()
        self.channel: list[int] = program.channel.tolist()
        self.peer: list[int] = program.peer.tolist()
        # left: pieces of each operation that are not done; need: conditions that an instance still waits for, -1: done.
        self.left = list(self.pieces)
        self.first = np.concatenate([[0], np.cumsum(program.pieces)]).tolist()
        self.owner: list[int] = np.repeat(np.arange(program.operations), program.pieces).tolist()
        # later: the operations that wait for an operation.
        self.later: list[list[int]] = [[] for _ in self.kind]
        self.need = [0] * len(self.owner)
        for waiter, awaited in zip(program.wait_op.tolist(), program.wait.tolist(), strict=True):
            self.later[awaited].append(waiter)
            for instance in range(self.first[waiter], self.first[waiter + 1]):
                self.need[instance] += 1
        # An instance without elements takes no time: it is done as soon as it starts (`full` is false).
        self.stretches = [data.stretches(o, i - self.first[o]) for i, o in enumerate(self.owner)]
        self.full = [any(high > low for _, low, high, _ in stretches) for stretches in self.stretches]
        self.queue_of = self._make_queues(strict)
        self.startable: list[int] = []
        # posted: sends and receives that have started and wait for their counterpart, in order.
        self.posted: dict[Connection, tuple[deque[int], deque[int]]] = defaultdict(lambda: (deque(), deque()))
        self.endable: list[tuple[int, ...]] = []  # started, and may end: a fold, or a send with its receive
        # active: per rank, the accesses of all started instances, the posted ones included.
        self.active: list[dict[int, list[Stretch]]] = [{} for _ in range(program.ranks)]
        self.busy = [_Busy(sizes) for sizes in data.sizes]
        self.done = 0

    def _make_queues(self, strict: bool) -> list[deque[int] | None]:
        """Return per instance the queue in which it must be first to start, or None."""
        program = self.program
        # The intended order. `when` is the time of an operation: twice its step, plus 1 for folds. Each piece follows
        # the one before it a step later, so piece i is due at when + 2 i. Ties go by operation.
        piece = np.arange(len(self.owner)) - np.array(self.first)[self.owner]
        order = np.lexsort(
            (np.array(self.owner), program.when[self.owner] + 2 * piece, program.rank[self.owner])
        ).tolist()
        queues: dict[tuple[int, ...], deque[int]] = defaultdict(deque)
        queue_of: list[deque[int] | None] = [None] * len(self.owner)
        for instance in order:
            o = self.owner[instance]
            rank, kind = self.data.ranks[o], self.kind[o]
            # strict: one queue per channel, for all kinds. Else only the messages of one connection keep their order.
            if strict:
                key: tuple[int, ...] = (rank, self.channel[o])
            elif kind in (SEND, RECEIVE) and self.full[instance]:
                key = (rank, self.channel[o], kind, self.peer[o])
            else:
                continue
            queue_of[instance] = queues[key]
            queues[key].append(instance)
        return queue_of

    def run(self) -> None:
        """Start and end instances in random order until none is left; raise Invalid for a deadlock."""
        for instance, queue in enumerate(self.queue_of):
            if self.need[instance] == 0 and (queue is None or queue[0] == instance):
                self.startable.append(instance)
        while self.startable or self.endable:
            # Pick uniformly among all events possible now: start an instance, or end a started one.
            at = self.random.randrange(len(self.startable) + len(self.endable))
            if at < len(self.startable):
                self._start_instance(_pop_at(self.startable, at))
            else:
                self._end_instances(_pop_at(self.endable, at - len(self.startable)))
        if self.done < len(self.owner):
            stuck = next(i for i, o in enumerate(self.owner) if self.left[o] and not self._is_done(i))
            count = len(self.owner) - self.done
            raise Invalid(
                f"{op_text(self.program, self.owner[stuck])}: deadlock: {count} instances never end, this is one"
            )

    def _is_done(self, instance: int) -> bool:
        return self.need[instance] < 0

    def _start_instance(self, instance: int) -> None:
        """Start an instance; a send or receive then waits for its counterpart."""
        o = self.owner[instance]
        queue = self.queue_of[instance]
        if queue is not None:
            queue.popleft()
            if queue and self.need[queue[0]] == 0:
                self.startable.append(queue[0])
        if not self.full[instance]:
            self._mark_done(instance)
            return
        rank, kind = self.data.ranks[o], self.kind[o]
        self._mark_busy(rank, instance)
        if kind == FOLD:  # a join has no elements and is done above
            self.endable.append((instance,))
            return
        connection = (rank, self.peer[o], self.channel[o]) if kind == SEND else (self.peer[o], rank, self.channel[o])
        # Zero buffering: data move only once both sides have started; their common end is one event.
        sends, receives = self.posted[connection]
        (sends if kind == SEND else receives).append(instance)
        if sends and receives:
            self.endable.append((sends.popleft(), receives.popleft()))

    def _mark_busy(self, rank: int, instance: int) -> None:
        """Register the accesses of an instance; raise Invalid if they race with those of a started one."""
        stretches, busy = self.stretches[instance], self.busy[rank]
        # The counters find a clash fast; only then are the instances compared, to name both.
        if busy.conflicts(stretches):
            for other, other_stretches in self.active[rank].items():
                clash = _find_clash(stretches, other_stretches)
                if clash:
                    names = op_text(self.program, self.owner[instance]), op_text(self.program, self.owner[other])
                    raise Invalid(f"{names[0]}: a race with {names[1]} about {clash}")
        busy.add(stretches, 1)
        self.active[rank][instance] = stretches

    def _end_instances(self, instances: tuple[int, ...]) -> None:
        """Apply the effect of a fold, or of a send and its receive, and end the instances."""
        data = self.data
        ranks = [data.ranks[self.owner[i]] for i in instances]
        stretches = [self.stretches[i] for i in instances]
        if len(instances) == 2:
            count = [sum(high - low for _, low, high, _ in accesses) for accesses in stretches]
            if count[0] != count[1]:
                names = [op_text(self.program, self.owner[i]) for i in instances]
                raise Invalid(f"{names[0]}: sends {count[0]} elements, and {names[1]} takes {count[1]}")
            data.move(ranks[0], ranks[1], stretches[0], stretches[1])
        else:
            data.fold(ranks[0], stretches[0])
        for rank, instance in zip(ranks, instances, strict=True):
            self.busy[rank].add(self.active[rank].pop(instance), -1)
            self._mark_done(instance)

    def _mark_done(self, instance: int) -> None:
        """Release the instances that wait for this one."""
        o = self.owner[instance]
        self.done += 1
        self.need[instance] = -1
        self.left[o] -= 1
        piece = instance - self.first[o]
        # Equal numbers of pieces: piece i releases piece i. Otherwise the last piece releases all pieces.
        for waiter in self.later[o]:
            if self.pieces[waiter] == self.pieces[o]:
                self._lower_need(self.first[waiter] + piece)
            elif not self.left[o]:
                for other in range(self.first[waiter], self.first[waiter + 1]):
                    self._lower_need(other)

    def _lower_need(self, instance: int) -> None:
        """Note that one of an instance's waits is satisfied."""
        self.need[instance] -= 1
        queue = self.queue_of[instance]
        if self.need[instance] == 0 and (queue is None or queue[0] == instance):
            self.startable.append(instance)


def _pop_at(items: list[Any], at: int) -> Any:
    """Remove and return an item in O(1); the order of the others may change."""
    # Swap with the last item: O(1) removal where order does not matter.
    items[at], items[-1] = items[-1], items[at]
    return items.pop()


def _find_clash(own: list[Stretch], active: list[Stretch]) -> str:
    """Describe the first element that two instances access and at least one of them writes; "" if there is none."""
    for buffer, low, high, written in own:
        for other, other_low, other_high, other_written in active:
            first = max(low, other_low)
            if buffer == other and first < min(high, other_high) and (written or other_written):
                return f"element {first} of buffer {buffer}"
    return ""
