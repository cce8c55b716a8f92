"""What MSCCL's executor does with an algorithm, for the machine to check.

The executor takes the steps of a thread block as they stand, but for these: a nop is no step of its own, its dependency
is waited for by the next step, which must have one itself; one that nothing follows is forgotten. Consecutive `re` into
one place from one buffer, of which none but the first waits and none but the last has a flag, are one step, with the
count of the last. A step counts as many as the dependencies that it waits for, or the reductions that it is; with
hasdep it shows this count when it is done, and who waits for a step waits until the block shows so much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from antiphon.core.collective import Collective
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.lint.form import Head
from antiphon.formats.msccl.read import (
    READS,
    RECEIVES,
    ROOM,
    SENDS,
    SLOTS,
    WRITES,
    Algorithm,
    Gpu,
    Step,
    ThreadBlock,
    read_msccl,
)
from antiphon.formats.written import Written, Wrong
from antiphon.lower.machine.code import Block, Code, Instruction, Places
from antiphon.lower.uncollected import uncollected

MOST_AWAITED = 127
MOST_FUSED = 16
MOST_COUNT = 71
MOST_PER_CHANNEL = 32
LETTERS = "ios"


@dataclass(eq=False, slots=True)
class Done:
    """A step as the executor does it: the last of those of the file that it is; where it begins to read, and what it
    waits for, as (block, step). `shows`: the count."""

    step: Step
    sources: list[int]
    after: list[tuple[int, int]]
    shows: int = -1


def codes_of(algorithm: Algorithm, root: int | None = None) -> Iterator[Code]:
    """The code out of place, and in place, as far as the file is for that."""
    for in_place, asked in ((False, algorithm.out_of_place), (True, algorithm.in_place)):
        if asked:
            yield code_of(algorithm, in_place, root=root)


@uncollected()
def code_of(algorithm: Algorithm, in_place: bool, protocol: str | None = None, *, root: int | None = None) -> Code:
    """The code of an algorithm. `protocol`: instead of its own. `root`: of calls that have one, where the file does not
    say it and it does not show.

    Invalid, naming rank, thread block and step, where the executor would read or write what it must not, wait for what
    never comes, or take messages of other lengths than were sent. Linear in steps.
    """
    _refuse_idle(algorithm)
    collective = _collective(algorithm, root)
    grain = algorithm.chunks
    if algorithm.collective in ("allgather", "reducescatter", "alltoall"):
        if grain % algorithm.ranks:
            raise Invalid(f"nchunksperloop is {grain}, which the {algorithm.ranks} ranks do not divide")
        grain //= algorithm.ranks
    places = Places.of(collective, in_place, grain, named_scratch(algorithm))
    ways: dict[tuple[int, int, int], int] = {}
    _connections(algorithm, ways)
    first: list[int] = []
    for gpu in algorithm.gpus:
        first.append((first[-1] + len(algorithm.gpus[gpu.rank - 1].blocks)) if first else 0)
    made: list[Block] = []
    messages = _Messages()
    for gpu in algorithm.gpus:
        done = [_done(gpu, block) for block in gpu.blocks]
        shown = [[(one.shows, at) for at, one in enumerate(mine) if one.step.flag] for mine in done]
        for block, mine in zip(gpu.blocks, done, strict=True):
            lies = _Lies(gpu, block, places)
            out = Block(gpu.rank, f"tb {block.number}")
            for one in mine:
                wait = tuple(
                    (first[gpu.rank] + other, _awaited(gpu, block, one, other, step, shown))
                    for other, step in one.after
                )
                out.instructions.append(_instruction(lies, one, wait, ways))
                messages.add(gpu, block, one)
            made.append(out)
    messages.refuse()
    protocol = protocol or algorithm.protocol
    return Code(
        collective,
        in_place,
        grain,
        places,
        made,
        list(ways),
        SLOTS[protocol],
        message_chunks=_together(algorithm, protocol),
    )


def _together(algorithm: Algorithm, protocol: str) -> int:
    """How many chunks surely go as one message: as many as fit into one, at the largest size that the file is for."""
    most = algorithm.sizes[1]
    return max(ROOM[protocol] // -(-most // algorithm.chunks), 1) if most else 1


# ---- what it is for ----


def _collective(algorithm: Algorithm, root: int | None) -> Collective:
    kind = algorithm.collective
    if kind not in ("broadcast", "reduce", "gather", "scatter"):
        return Collective(kind, algorithm.ranks)
    if root is None:
        root = algorithm.root if algorithm.root >= 0 else _root(algorithm)
    return Collective(kind, algorithm.ranks, roots=(root,))


def _root(algorithm: Algorithm) -> int:
    """Who alone has more chunks, or never receives, or never sends, as it is the root's to do."""
    kind, gpus = algorithm.collective, algorithm.gpus
    if kind in ("gather", "scatter"):
        side = 1 if kind == "gather" else 0
        sizes = [gpu.sizes[side] for gpu in gpus]
        found = [rank for rank, size in enumerate(sizes) if size == max(sizes) and size > algorithm.chunks]
    else:
        verbs = RECEIVES if kind == "broadcast" else SENDS
        doing = [any(step.verb in verbs for block in gpu.blocks for step in block.steps) for gpu in gpus]
        found = [rank for rank, does in enumerate(doing) if not does]
    if len(found) != 1 and algorithm.ranks > 1:
        raise Unsupported(f"the file does not say who is the root of the {kind}; give it as root")
    return found[0] if found else 0


def _refuse_idle(algorithm: Algorithm) -> None:
    """Chunks of the collective, and of scratch, of which far more are said to be than steps move, get no room: all but
    one rank's share of the chunks must be read and written, also in place."""
    steps = sum(len(block.steps) for gpu in algorithm.gpus for block in gpu.blocks)
    moved = MOST_COUNT * steps
    if (algorithm.ranks - 1) * algorithm.chunks > moved or algorithm.chunks > 2**15 + MOST_COUNT:
        raise Invalid(
            f"nchunksperloop is {algorithm.chunks}: {steps} steps of up to {MOST_COUNT} chunks cannot move that many "
            f"to or from all of {algorithm.ranks} ranks"
        )
    if sum(named_scratch(algorithm)) > moved + 2**16:
        raise Invalid(f"its scratch has {sum(named_scratch(algorithm))} chunks, most of which nothing can touch")


def named_scratch(algorithm: Algorithm) -> list[int]:
    """Per rank the chunks of scratch up to the last that a step names, if so many are declared."""
    found = []
    for gpu in algorithm.gpus:
        named = 0
        for block in gpu.blocks:
            for step in block.steps:
                for letter, at, verbs in ((step.src, step.src_at, READS), (step.dst, step.dst_at, WRITES)):
                    if letter == "s" and step.verb in verbs:
                        named = max(named, at + step.count)
        found.append(min(named, gpu.sizes[2]))
    return found


def _connections(algorithm: Algorithm, ways: dict[tuple[int, int, int], int]) -> None:
    """A connection belongs to one block at either end: two would each go on counting for themselves."""
    for gpu in algorithm.gpus:
        for sending in (True, False):
            owner: dict[tuple[int, int], int] = {}
            many: dict[int, int] = {}
            for block in gpu.blocks:
                peer = block.send if sending else block.recv
                if peer < 0:
                    continue
                word = "sends to" if sending else "receives from"
                other = owner.setdefault((peer, block.channel), block.number)
                if other != block.number:
                    raise Invalid(
                        f"rank {gpu.rank}, tb {block.number}: {word} rank {peer} on channel {block.channel}, as tb "
                        f"{other} does; a connection belongs to one thread block"
                    )
                many[block.channel] = many.get(block.channel, 0) + 1
                if many[block.channel] > MOST_PER_CHANNEL:
                    raise Invalid(
                        f"rank {gpu.rank}, tb {block.number}: more than {MOST_PER_CHANNEL} thread blocks with "
                        f"{'sends' if sending else 'receives'} on channel {block.channel}"
                    )
                way = (gpu.rank, peer, block.channel) if sending else (peer, gpu.rank, block.channel)
                ways.setdefault(way, len(ways))


# ---- steps as they are done ----


def _text(gpu: Gpu, block: ThreadBlock, step: Step) -> str:
    return f"rank {gpu.rank}, tb {block.number}, step {step.number} ({step.verb})"


def _done(gpu: Gpu, block: ThreadBlock) -> list[Done]:
    made: list[Done] = []
    pending: list[tuple[int, int]] = []
    open_to: tuple[str, int, str] | None = None  # where a reduction that the next one may join leads
    reductions = 0
    for step in block.steps:
        if step.after >= 0:
            pending.append((step.after, step.after_step))
        if step.verb == "nop":
            continue
        target = (step.dst, step.dst_at, step.src)
        if step.verb == "re" and open_to == target and step.after == -1:
            last = made[-1]
            last.step = step
            last.sources.append(step.src_at)
            if len(last.sources) > MOST_FUSED:
                raise Invalid(
                    f"{_text(gpu, block, step)}: the executor makes more than {MOST_FUSED} reductions one, and has no "
                    "room for them; set hasdep on the one before"
                )
        else:
            if pending and step.after < 0:
                raise Invalid(
                    f"{_text(gpu, block, step)}: follows a nop and waits for nothing itself, which the executor refuses"
                )
            made.append(Done(step, [step.src_at], pending))
            pending = []
        if step.verb == "re":
            reductions += 1
            whole = step.flag or reductions == MOST_FUSED
            open_to = None if whole else target
        else:
            open_to = None
    count = 0
    for one in made:
        count += max(len(one.after) - 1, 0) + len(one.sources) - 1
        one.shows = count
        count += 1
    return made


def _awaited(
    gpu: Gpu, block: ThreadBlock, one: Done, other: int, step: int, shown: list[list[tuple[int, int]]]
) -> int:  # fmt: skip
    """The instruction of the other block with which this wait ends."""
    told = _text(gpu, block, one.step)
    if other > MOST_AWAITED:
        raise Invalid(f"{told}: waits for tb {other}; the executor keeps such numbers up to {MOST_AWAITED}")
    if other >= len(shown):
        raise Invalid(f"{told}: waits for tb {other}, which is not there")
    if not -(2**15) <= step < 2**15:
        raise Invalid(f"{told}: waits for step {step}; the executor keeps such numbers in 16 bits")
    if step < 0 and shown[other] and shown[other][-1][0] >= 64 + step:
        raise Invalid(f"{told}: waits for step {step}, which the executor takes for one of the round before")
    for shows, at in shown[other]:
        if shows >= step:
            return at
    raise Invalid(
        f"{told}: waits for step {step} of tb {other}, where no step from there on has hasdep=1: it waits for ever"
    )


# ---- what they touch ----


@dataclass(frozen=True, slots=True)
class _Lies:
    gpu: Gpu
    block: ThreadBlock
    places: Places

    def cell(self, step: Step, letter: str, at: int, declared: bool) -> int:
        kind, rank = LETTERS.index(letter), self.gpu.rank
        size = int(self.places.size[rank, kind])
        name = ("input", "output", "scratch")[kind]
        if at < 0 or at + step.count > size or at >= 2**15:
            raise Invalid(
                f"{_text(self.gpu, self.block, step)}: touches chunks {at} to {at + step.count - 1} of the {name}, "
                f"which has {size}"
            )
        if declared and at >= self.gpu.sizes[kind]:
            raise Invalid(
                f"{_text(self.gpu, self.block, step)}: touches chunk {at} of the {name}, of {letter}_chunks="
                f"{self.gpu.sizes[kind]}; the executor refuses that"
            )
        return int(self.places.first[rank, kind]) + at


def _instruction(
    lies: _Lies, one: Done, wait: tuple[tuple[int, int], ...], ways: dict[tuple[int, int, int], int]
) -> Instruction:  # fmt: skip
    step, block, rank = one.step, lies.block, lies.gpu.rank
    verb = step.verb
    for verbs, peer, what in ((SENDS, block.send, "send to"), (RECEIVES, block.recv, "receive from")):
        if verb in verbs and peer < 0:
            raise Invalid(f"{_text(lies.gpu, block, step)}: its thread block has no rank to {what}")
    if not step.count:
        return Instruction(step.number, verb, 0, wait=wait)
    declared = verb != "rrc"
    read = []
    if verb == "re":
        read.append(lies.cell(step, step.dst, step.dst_at, declared))
    if verb in READS:
        read += [lies.cell(step, step.src, at, declared) for at in one.sources]
    write = (lies.cell(step, step.dst, step.dst_at, declared),) if verb in WRITES else ()
    pop = ways[block.recv, rank, block.channel] if verb in RECEIVES else -1
    push = ways[rank, block.send, block.channel] if verb in SENDS else -1
    return Instruction(step.number, verb, step.count, tuple(read), write, pop, push, wait)


@dataclass(eq=False)
class _Messages:
    """All sends and receives by their way, with their steps."""

    sent: dict[tuple[int, int, int], list[_Spot]] = field(default_factory=dict)
    taken: dict[tuple[int, int, int], list[_Spot]] = field(default_factory=dict)

    def add(self, gpu: Gpu, block: ThreadBlock, one: Done) -> None:
        step = one.step
        if not step.count:
            return
        if step.verb in SENDS:
            self.sent.setdefault((gpu.rank, block.send, block.channel), []).append((gpu, block, step))
        if step.verb in RECEIVES:
            self.taken.setdefault((block.recv, gpu.rank, block.channel), []).append((gpu, block, step))

    def refuse(self) -> None:
        """The k-th send of a way is the k-th receive, of as many chunks."""
        for way in sorted({*self.sent, *self.taken}):
            sent, taken = self.sent.get(way, []), self.taken.get(way, [])
            for one, two in zip(sent, taken, strict=False):
                if one[2].count != two[2].count:
                    what = f"sends {one[2].count} chunks, of which {_text(*two)} takes {two[2].count}"
                    raise Invalid(f"{_text(*one)}: {what}")
            if len(sent) > len(taken):
                raise Invalid(f"{_text(*sent[len(taken)])}: nothing at rank {way[1]} receives it on channel {way[2]}")
            if len(taken) > len(sent):
                raise Invalid(f"{_text(*taken[len(sent)])}: rank {way[0]} never sends it on channel {way[2]}")


_Spot = tuple[Gpu, ThreadBlock, Step]


# ---- for checks of files that others wrote ----


FORMAT = "msccl-xml"


def read(data: bytes, name: str) -> Written:
    """Wrong, naming rank, thread block and step, where it asks for what cannot be: then there is no code to judge."""
    told = read_msccl(data)
    try:
        codes = {"in place" if code.in_place else "out of place": code for code in codes_of(told)}
    except Invalid as error:
        raise Wrong("form", str(error)) from None
    roots = next((code.collective.roots for code in codes.values()), ())
    extra = {
        "blocks": max(len(gpu.blocks) for gpu in told.gpus), "scratch": max(gpu.sizes[2] for gpu in told.gpus),
        "used": max(named_scratch(told)),
    }  # fmt: skip
    head = Head(
        FORMAT, told.name or name, told.collective, told.ranks, told.in_place, told.out_of_place, told.sizes[0],
        told.sizes[1] or None, told.chunks, told.channels, told.protocol,
        frozenset(step.verb for gpu in told.gpus for block in gpu.blocks for step in block.steps),
        roots[0] if roots else None, tuple(told.notes), extra,
    )  # fmt: skip
    return Written(head, codes)
