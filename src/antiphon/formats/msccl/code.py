"""Translate an MSCCL algorithm, as MSCCL's executor runs it, into a code for the abstract machine to check.

Input: an `AlgorithmFile` as `read` returns it (GPUs, their thread blocks, steps). Output: a `Code` (lower/machine): per
thread block the instructions with the cells that they read and write, the connection that they send to or receive from,
and the instructions of other blocks that they wait for. The abstract machine runs it in every order that the runtime
may take. `codes_of` yields the code for calls out of place and in place.

The executor runs the steps of a thread block as they are, with two exceptions. A nop is no step of its own: the next
step, which must have a dependency itself, also waits for that of the nop; a trailing nop is dropped. Consecutive `re`
(local reductions) into one place from one buffer are fused into one step, with the count of the last, if only the first
waits and only the last has a flag (hasdep=1: others wait for it). A nop between them does not end the fusion; its
dependency passes to the next step that is not fused.

    steps of the file                     the executor's steps
    nop  waits for tb 1, step 0           -
    re   i0 -> o0, waits for tb 2         re  i0, i1 -> o0, waits for both; publishes counter 2
    re   i1 -> o0, hasdep=1

Each block has a counter, which advances by one per step, by one more per further dependency of a step, and by one more
per further reduction fused in it. A step with a flag publishes the counter when it is done, and dependent steps wait
for that value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from antiphon.core.collective import Collective
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.foreign_program import ForeignProgram, Wrong
from antiphon.formats.lint.form import Head
from antiphon.formats.msccl.read import (
    LETTERS,
    MOST_COUNT,
    MOST_MESSAGE_BYTES,
    READS,
    RECEIVES,
    SENDS,
    SLOTS_OF_PROTOCOL,
    WRITES,
    AlgorithmFile,
    FileBlock,
    FileRank,
    FileStep,
    read_msccl,
)
from antiphon.lower.machine.code import CellPlaces, Code, CodeBlock, Instruction
from antiphon.lower.without_gc import without_gc

MOST_AWAITED = 127  # largest number of a thread block that others may wait for
# The executor's table of the sources of a block has as many entries. At this reduction of a block a fusion ends; later
# ones may fuse again, and a step of more sources than this does not fit.
MOST_FUSED = 16
MOST_OFFSET = 2**15  # chunks of a buffer that the executor's 16-bit offsets reach
MOST_PER_CHANNEL = 32  # thread blocks of a rank that send, or that receive, on one channel


@dataclass(eq=False, slots=True)
class ExecutedStep:
    """A step as the executor runs it: the last of the file's steps fused in it; the offsets that it reads, and its
    dependencies as (block, step). `counter`: the value of the block's counter that it publishes."""

    step: FileStep
    sources: list[int]
    after: list[tuple[int, int]]
    counter: int = -1


def codes_of(algorithm: AlgorithmFile, root: int | None = None) -> Iterator[Code]:
    """Yield the code out of place, and in place, as far as the file supports them. `root`: as for `code_of`."""
    for in_place, is_included in ((False, algorithm.out_of_place), (True, algorithm.in_place)):
        if is_included:
            yield code_of(algorithm, in_place, root=root)


@without_gc()
def code_of(algorithm: AlgorithmFile, in_place: bool, protocol: str | None = None, *, root: int | None = None) -> Code:
    """Return the code of an algorithm. `protocol`: replaces the file's. `root`: of a rooted collective whose file
    neither states nor implies it.

    Raises Invalid, with rank, thread block and step, if the executor would read or write outside of a buffer, wait
    forever, or receive a message of another length than was sent. Linear in steps.
    """
    _refuse_unused_chunks(algorithm)
    collective = _collective_of(algorithm, root)
    # `grain` is chunks per block. In these three collectives the file's number counts the chunks of all blocks; in a
    # gather or scatter, which also have a block per rank, it counts those of one block.
    grain = algorithm.chunks
    if algorithm.collective in ("allgather", "reducescatter", "alltoall"):
        if grain % algorithm.ranks:
            raise Invalid(f"nchunksperloop is {grain}, which the {algorithm.ranks} ranks do not divide")
        grain //= algorithm.ranks
    places = CellPlaces.of(collective, in_place, grain, named_scratch(algorithm))
    connections: dict[tuple[int, int, int], int] = {}
    _find_connections(algorithm, connections)
    # number of the first code block of each rank, as blocks are numbered through all ranks
    first = list(accumulate((len(gpu.blocks) for gpu in algorithm.gpus), initial=0))
    code_blocks: list[CodeBlock] = []
    messages = _Messages()
    for gpu in algorithm.gpus:
        steps_of_blocks = [_executed_steps(gpu, block) for block in gpu.blocks]
        # by block the counters that it publishes, each with the index of its instruction: waits compare with them
        published = [
            [(executed.counter, at) for at, executed in enumerate(block_steps) if executed.step.flag]
            for block_steps in steps_of_blocks
        ]
        for block, block_steps in zip(gpu.blocks, steps_of_blocks, strict=True):
            finder = _CellFinder(gpu, block, places)
            out = CodeBlock(gpu.rank, f"tb {block.number}")
            for executed in block_steps:
                wait = tuple(
                    (first[gpu.rank] + other, _find_awaited(gpu, block, executed, other, step, published))
                    for other, step in executed.after
                )
                out.instructions.append(_make_instruction(finder, executed, wait, connections))
                messages.add(gpu, block, executed)
            code_blocks.append(out)
    messages.refuse_mismatches()
    protocol = protocol or algorithm.protocol
    return Code(
        collective,
        in_place,
        grain,
        places,
        code_blocks,
        connections=list(connections),
        slots=SLOTS_OF_PROTOCOL[protocol],  # messages that a connection holds
        message_chunks=_chunks_together(algorithm, protocol),
    )


def _chunks_together(algorithm: AlgorithmFile, protocol: str) -> int:
    """Return the number of chunks that fit in one message at the largest size of the file, so that they are never
    split; 1 if the file has no largest size."""
    _, max_bytes = algorithm.sizes
    return max(MOST_MESSAGE_BYTES[protocol] // -(-max_bytes // algorithm.chunks), 1) if max_bytes else 1


# ---- the collective ----


def _collective_of(algorithm: AlgorithmFile, root: int | None) -> Collective:
    """Return the collective that the file is for, with its root if it has one."""
    kind = algorithm.collective
    if kind not in ("broadcast", "reduce", "gather", "scatter"):
        return Collective(kind, algorithm.ranks)
    if root is None:
        root = algorithm.root if algorithm.root >= 0 else _find_root(algorithm)
    return Collective(kind, algorithm.ranks, roots=(root,))


def _find_root(algorithm: AlgorithmFile) -> int:
    """Return the only rank that can be the root: with more chunks, or the one that never receives, or never sends."""
    # gather and scatter: the root has the large buffer; else it is the rank that only sends or only receives
    kind, gpus = algorithm.collective, algorithm.gpus
    if kind in ("gather", "scatter"):
        side = OUTPUT if kind == "gather" else INPUT
        sizes = [gpu.sizes[side] for gpu in gpus]
        candidates = [rank for rank, size in enumerate(sizes) if size == max(sizes) and size > algorithm.chunks]
    else:
        verbs = RECEIVES if kind == "broadcast" else SENDS
        is_active = [any(step.verb in verbs for block in gpu.blocks for step in block.steps) for gpu in gpus]
        candidates = [rank for rank, active in enumerate(is_active) if not active]
    if len(candidates) != 1 and algorithm.ranks > 1:
        raise Unsupported(f"the file does not name the root of the {kind}; pass it as root")
    return candidates[0] if candidates else 0


def _refuse_unused_chunks(algorithm: AlgorithmFile) -> None:
    """Refuse files that declare far more chunks than their steps can move, before memory is allocated for them.

    Each rank but one (the root) must read or write all chunks, or each rank all of them but its own block. Either way
    that is (ranks - 1) * chunks in total, also in place. A step moves at most MOST_COUNT."""
    steps = sum(len(block.steps) for gpu in algorithm.gpus for block in gpu.blocks)
    moved = MOST_COUNT * steps
    if (algorithm.ranks - 1) * algorithm.chunks > moved or algorithm.chunks > MOST_OFFSET + MOST_COUNT:
        raise Invalid(
            f"nchunksperloop is {algorithm.chunks}: {steps} steps of up to {MOST_COUNT} chunks cannot move that many "
            f"to or from all of {algorithm.ranks} ranks"
        )
    if sum(named_scratch(algorithm)) > moved + 2**16:  # a few chunks too many harm nobody
        raise Invalid(f"its scratch has {sum(named_scratch(algorithm))} chunks, far more than its steps can touch")


def named_scratch(algorithm: AlgorithmFile) -> list[int]:
    """Return per rank the declared chunks of scratch, up to the last that a step names."""
    scratch_chunks = []
    for gpu in algorithm.gpus:
        named = 0
        for block in gpu.blocks:
            for step in block.steps:
                for letter, at, verbs in ((step.src, step.src_at, READS), (step.dst, step.dst_at, WRITES)):
                    if letter == "s" and step.verb in verbs:
                        named = max(named, at + step.count)
        scratch_chunks.append(min(named, gpu.sizes[SCRATCH]))
    return scratch_chunks


def _find_connections(algorithm: AlgorithmFile, connections: dict[tuple[int, int, int], int]) -> None:
    """Add the connections (sender, receiver, channel) of all blocks to `connections`, each with the next number.

    Invalid if two blocks of a rank share one: each would count its messages for itself.
    """
    for gpu in algorithm.gpus:
        for sending in (True, False):
            owner: dict[tuple[int, int], int] = {}
            counts: dict[int, int] = {}
            for block in gpu.blocks:
                peer = block.send if sending else block.recv
                # this block does not send (or receive)
                if peer < 0:
                    continue
                verb_text = "sends to" if sending else "receives from"
                other = owner.setdefault((peer, block.channel), block.number)
                if other != block.number:
                    raise Invalid(
                        f"rank {gpu.rank}, tb {block.number}: {verb_text} rank {peer} on channel {block.channel}, as "
                        f"tb {other} does; a connection belongs to one thread block"
                    )
                counts[block.channel] = counts.get(block.channel, 0) + 1
                if counts[block.channel] > MOST_PER_CHANNEL:
                    raise Invalid(
                        f"rank {gpu.rank}, tb {block.number}: more than {MOST_PER_CHANNEL} thread blocks with "
                        f"{'sends' if sending else 'receives'} on channel {block.channel}"
                    )
                connection = (gpu.rank, peer, block.channel) if sending else (peer, gpu.rank, block.channel)
                connections.setdefault(connection, len(connections))


# ---- steps as the executor runs them ----


def _step_text(gpu: FileRank, block: FileBlock, step: FileStep) -> str:
    """Return the place of a step, for messages."""
    return f"rank {gpu.rank}, tb {block.number}, step {step.number} ({step.verb})"


def _executed_steps(gpu: FileRank, block: FileBlock) -> list[ExecutedStep]:
    """Return the steps of a block as the executor runs them: without nops, and with reductions fused."""
    executed_steps: list[ExecutedStep] = []
    pending: list[tuple[int, int]] = []  # dependencies (block, step) of the next step: its own, and those of nops
    open_to: tuple[str, int, str] | None = None  # (buffer, offset, source buffer) of a reduction open to another
    reductions = 0  # of the whole block: their sources share a table of MOST_FUSED in the executor
    for step in block.steps:
        # dependencies of a nop are added to those of the next step
        if step.after >= 0:
            pending.append((step.after, step.after_step))
        if step.verb == "nop":
            continue
        # consecutive reductions into one place from one buffer become one step of several sources
        target = (step.dst, step.dst_at, step.src)
        # (-1 as in the executor: after another negative number, which is no dependency either, nothing is fused)
        if step.verb == "re" and open_to == target and step.after == -1:
            last = executed_steps[-1]
            last.step = step
            last.sources.append(step.src_at)
            if len(last.sources) > MOST_FUSED:
                raise Invalid(
                    f"{_step_text(gpu, block, step)}: the executor makes more than {MOST_FUSED} reductions one, and "
                    "has no room for them; set hasdep on the one before"
                )
        else:
            if pending and step.after < 0:
                raise Invalid(
                    f"{_step_text(gpu, block, step)}: follows a nop and waits for nothing itself, which the executor "
                    "refuses"
                )
            executed_steps.append(ExecutedStep(step, [step.src_at], pending))
            pending = []
        if step.verb == "re":
            reductions += 1
            # A step that publishes its counter ends the fusion. So does the MOST_FUSED-th reduction of the block, and
            # only that: later ones may be fused again, as in the executor.
            is_closed = step.flag or reductions == MOST_FUSED
            open_to = None if is_closed else target
        else:
            open_to = None
    # the executor's counter: extra dependencies and fused reductions count as steps of their own
    count = 0
    for executed in executed_steps:
        count += max(len(executed.after) - 1, 0) + len(executed.sources) - 1
        executed.counter = count
        count += 1
    return executed_steps


def _find_awaited(
    gpu: FileRank, block: FileBlock, waiting: ExecutedStep, other: int, step: int,
    published: list[list[tuple[int, int]]],
) -> int:  # fmt: skip
    """Return the index of the instruction of the other block that ends this wait.

    `other`, `step`: the thread block that is waited for, and the value that its counter must reach. `published`: per
    block the counters that it publishes, each with the index of its instruction.
    """
    waiting_text = _step_text(gpu, block, waiting.step)
    if other > MOST_AWAITED:
        raise Invalid(f"{waiting_text}: waits for tb {other}; the executor keeps such numbers up to {MOST_AWAITED}")
    if other >= len(published):
        raise Invalid(f"{waiting_text}: waits for tb {other}, which is not there")
    if not -(2**15) <= step < 2**15:
        raise Invalid(f"{waiting_text}: waits for step {step}; the executor keeps such numbers in 16 bits")
    # The executor repeats the block in rounds, whose counters are 64 apart. So a negative step is reached by a counter
    # of 64 + step or more of the round before.
    if step < 0 and published[other] and published[other][-1][0] >= 64 + step:
        raise Invalid(f"{waiting_text}: waits for step {step}, which the executor takes for one of the round before")
    # the first published counter that reaches the awaited one ends the wait
    for counter, at in published[other]:
        if counter >= step:
            return at
    raise Invalid(
        f"{waiting_text}: waits for step {step} of tb {other}, where no step from there on has hasdep=1: it waits for "
        "ever"
    )


# ---- the cells that steps read and write ----


@dataclass(frozen=True, slots=True)
class _CellFinder:
    """The cells of the abstract machine that the steps of a block name by buffer letter and offset."""

    gpu: FileRank
    block: FileBlock
    places: CellPlaces

    def cell(self, step: FileStep, letter: str, at: int, declared: bool) -> int:
        """Return the first cell of offset `at`; Invalid if outside of the buffer.

        `declared`: Invalid, too, unless it is below the file's i_chunks, o_chunks or s_chunks.
        """
        kind, rank = LETTERS.index(letter), self.gpu.rank
        size = int(self.places.size[rank, kind])
        name = ("input", "output", "scratch")[kind]
        if at < 0 or at + step.count > size or at >= MOST_OFFSET:
            raise Invalid(
                f"{_step_text(self.gpu, self.block, step)}: touches chunks {at} to {at + step.count - 1} of the "
                f"{name}, which has {size}"
            )
        if declared and at >= self.gpu.sizes[kind]:
            raise Invalid(
                f"{_step_text(self.gpu, self.block, step)}: touches chunk {at} of the {name}, of {letter}_chunks="
                f"{self.gpu.sizes[kind]}; the executor refuses that"
            )
        return int(self.places.first[rank, kind]) + at


def _make_instruction(
    finder: _CellFinder, executed: ExecutedStep, wait: tuple[tuple[int, int], ...], connections: dict[tuple[int, int,
    int], int]
) -> Instruction:  # fmt: skip
    """Return a step as an instruction on cells; `wait`: the instructions that must be done before it."""
    step, block, rank = executed.step, finder.block, finder.gpu.rank
    verb = step.verb
    for verbs, peer, verb_text in ((SENDS, block.send, "send to"), (RECEIVES, block.recv, "receive from")):
        if verb in verbs and peer < 0:
            raise Invalid(f"{_step_text(finder.gpu, block, step)}: its thread block has no rank to {verb_text}")
    if not step.count:  # it moves no chunk, but it waits, and others may wait for it
        return Instruction(step.number, verb, count=0, wait=wait)
    # rrc is exempt from the executor's check of declared sizes
    declared = verb != "rrc"
    read = []
    if verb == "re":  # a local reduction also reads its destination
        read.append(finder.cell(step, step.dst, step.dst_at, declared))
    if verb in READS:
        read += [finder.cell(step, step.src, at, declared) for at in executed.sources]
    write = (finder.cell(step, step.dst, step.dst_at, declared),) if verb in WRITES else ()
    pop = connections[block.recv, rank, block.channel] if verb in RECEIVES else -1
    push = connections[rank, block.send, block.channel] if verb in SENDS else -1
    return Instruction(step.number, verb, step.count, tuple(read), write, pop, push, wait)


_StepPlace = tuple[FileRank, FileBlock, FileStep]


@dataclass(eq=False)
class _Messages:
    """The steps that send and receive, by connection: the k-th receive takes what the k-th send sends."""

    sends: dict[tuple[int, int, int], list[_StepPlace]] = field(default_factory=dict)
    receives: dict[tuple[int, int, int], list[_StepPlace]] = field(default_factory=dict)

    def add(self, gpu: FileRank, block: FileBlock, executed: ExecutedStep) -> None:
        step = executed.step
        if not step.count:
            return
        if step.verb in SENDS:
            self.sends.setdefault((gpu.rank, block.send, block.channel), []).append((gpu, block, step))
        if step.verb in RECEIVES:
            self.receives.setdefault((block.recv, gpu.rank, block.channel), []).append((gpu, block, step))

    def refuse_mismatches(self) -> None:
        """Raise Invalid unless the k-th send of a connection has as many chunks as the k-th receive."""
        for connection in sorted({*self.sends, *self.receives}):
            sender, receiver, channel = connection
            sends, receives = self.sends.get(connection, []), self.receives.get(connection, [])
            # channels are FIFO: the k-th receive takes the k-th send
            for send, receive in zip(sends, receives, strict=False):
                (_, _, sent), (_, _, received) = send, receive
                if sent.count != received.count:
                    mismatch = f"sends {sent.count} chunks, but {_step_text(*receive)} takes {received.count}"
                    raise Invalid(f"{_step_text(*send)}: {mismatch}")
            if len(sends) > len(receives):
                raise Invalid(
                    f"{_step_text(*sends[len(receives)])}: nothing at rank {receiver} receives it on channel {channel}"
                )
            if len(receives) > len(sends):
                raise Invalid(f"{_step_text(*receives[len(sends)])}: rank {sender} never sends it on channel {channel}")


# ---- for checks of files that others wrote ----


FORMAT = "msccl-xml"


def read(data: bytes, name: str) -> ForeignProgram:
    """Read a file for checks. Raise Wrong, with rank, thread block and step, if the executor cannot run it."""
    algorithm = read_msccl(data)
    try:
        codes = {"in place" if code.in_place else "out of place": code for code in codes_of(algorithm)}
    except Invalid as error:
        raise Wrong("form", str(error)) from None
    roots = next((code.collective.roots for code in codes.values()), ())
    extra = {
        "blocks": max(len(gpu.blocks) for gpu in algorithm.gpus),
        "scratch": max(gpu.sizes[SCRATCH] for gpu in algorithm.gpus), "used": max(named_scratch(algorithm)),
    }  # fmt: skip
    head = Head(
        FORMAT, algorithm.name or name, algorithm.collective, algorithm.ranks, in_place=algorithm.in_place,
        out_of_place=algorithm.out_of_place, min_bytes=algorithm.sizes[0], max_bytes=algorithm.sizes[1] or None,
        chunks=algorithm.chunks, channels=algorithm.channels, protocol=algorithm.protocol,
        verbs=frozenset(step.verb for gpu in algorithm.gpus for block in gpu.blocks for step in block.steps),
        root=roots[0] if roots else None, notes=tuple(algorithm.notes), extra=extra,
    )  # fmt: skip
    return ForeignProgram(head, codes)
