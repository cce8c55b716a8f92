"""Write execution plans of MSCCL++, for the executor in its NCCL library or for its own calls.

Each schedule gives one file for buffers in place and one for others. Parts of a schedule that touch no common data are
separate streams of thread blocks; every rank has a channel to each peer in each stream. Data is written straight to its
place at the receiver. Switches perform the joints of the schedule (`lower.onesided.switched`). Sizes are multiples of
the alignment times the chunks of a buffer. All ranks must pass buffers at the same offset in their allocations: the
executor computes remote addresses from its own offset. A small module, register.py, beside the plans hands them to
MSCCL++ (registration.py).

Tuning chose a plan by its predicted time with the fastest of NCCL's protocols. A file has one of two: packets (NCCL's
LL: data with flags, by way of scratch) or plain data (Simple). So the writer predicts the time of each file again, and
leaves sizes to NCCL at which the file would be slower than NCCL.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from antiphon.core.collective import Collective
from antiphon.core.interpret.buffers import sides
from antiphon.core.plan import GPU_LIBRARIES, Entry, Plan
from antiphon.core.program import BufferLayout, Program, among, collective_among, job_of
from antiphon.core.program.kinds import SCRATCH, chunked
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import dumps
from antiphon.core.transform import unjoined
from antiphon.errors import Invalid, NotFound, Unsupported, quote
from antiphon.formats.files import Files
from antiphon.formats.mscclpp.blocks import BACK_END, MIN_SHARE, MOST_CHUNKS, Far, gpus_by_packets, gpus_of
from antiphon.formats.mscclpp.gpu import BlockText, GpuText
from antiphon.formats.mscclpp.packet_choice import choose_packets
from antiphon.formats.mscclpp.registration import REGISTRATION_PURPOSE, RegisteredPlan, registration_text
from antiphon.formats.mscclpp.shape import (
    ACCESS_BYTES,
    LL,
    MOST_BLOCKS,
    MOST_CELLS,
    MOST_OFFSET,
    MOST_SMALLEST,
    MOST_THREADS,
    SIMPLE,
    SWITCH,
    WARP,
)
from antiphon.formats.mscclpp.shape import SCRATCH as SHARED_SCRATCH
from antiphon.formats.mscclpp.staging import stage
from antiphon.formats.predicted_times import PredictedTimes
from antiphon.formats.served import refuse_served
from antiphon.lower.lowering import MAX_LAG, has_little_scratch, lower
from antiphon.lower.onesided.packets import KINDS as PACKET_KINDS
from antiphon.lower.onesided.packets import can_use_packets
from antiphon.lower.onesided.switched import ADVICE, Switched, drop_unused_scratch, find_switched
from antiphon.lower.without_gc import without_gc
from antiphon.options import parse_yes
from antiphon.planners.shared.groups import ranks_by_host
from antiphon.units import format_size, parse_size, range_text

# collectives whose plans state a range of sizes
_SIZED = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce", "alltoall")


def mscclpp_json(
    plans: Mapping[str, Plan], *, blocks: int = 32, threads: int = 1024, alignment: int = 16, lag: int = 0,
    alone: bool = False, name: str = "", packets: int | str = "auto", staged: bool = False,
) -> Files[bytes]:  # fmt: skip
    """Write execution plans for MSCCL++ (plan0.json, plan0-in-place.json, ...) and register.py, which registers them.

    Plans for several collectives begin with the name of theirs (allgather-plan0.json). For a subset of the machine's
    ranks, the files are for a communicator of that subset, in its order; if other ranks relay, for one of all ranks.

    Parameters
    ----------
    blocks
        Number of concurrent thread blocks per GPU to aim at; a schedule that does not fit gets more, up to 108.
    threads
        Threads of each block.
    alignment
        Alignment of chunks in bytes.
    lag
        Steps before scratch is reused, as in programs. 0: never, unless scratch would exceed twice the largest buffer.
    alone
        Replace multicasts and reductions of switches by single transfers between ranks.
    name
        Prefix of the plans' names: letters, digits, - and _.
    packets
        Calls of up to this size use packets (protocol LL), in plan0-packets.json and plan0-packets-in-place.json, if
        all ranks exchange data and no switch combines; 0: none; yes: where a tuned plan is predicted to be faster by
        packets than by plain data, and than NCCL. A size or yes leaves broadcast, reduce, gather and scatter, which
        rule packets out, to NCCL. Default: yes, unless files for these are predicted to gain more.
    staged
        Large calls pass through shared scratch: new buffers need no new connections, nor equal offsets at all ranks.
        All received data is copied once more. Smaller calls are served by packets alone.
    """
    for option, value, low, high in (
        ("blocks", blocks, 1, MOST_BLOCKS), ("threads", threads, WARP, MOST_THREADS),
        ("alignment", alignment, ACCESS_BYTES, 2**16), ("lag", lag, 0, MAX_LAG),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Invalid(f"{option}: expected a whole number from {low} to {high}, got {quote(value)}")
    if threads % WARP or alignment % ACCESS_BYTES:
        raise Invalid(f"threads come in warps of {WARP}, alignment in multiples of {ACCESS_BYTES} bytes")
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,64}", name):
        raise Invalid(f"name: expected up to 64 letters, digits, - and _, got {quote(name)}")
    with_relays = {kind: _with_relays(plan) for kind, plan in plans.items()}
    ranks = {len(job_of(plan.collective)) for plan in with_relays.values()}
    if len(ranks) > 1:
        raise Unsupported(f"{BACK_END}: plans of {' and '.join(map(str, sorted(ranks)))} ranks; export each by itself")
    is_alone, is_staged = parse_yes(alone, "option alone"), parse_yes(staged, "option staged")
    writer = _Writer(blocks, threads, alignment, lag, is_alone, name, is_staged)
    # largest call by packets; None: by the predicted times of each plan
    packet_limit = None if packets in ("auto", "yes", True) else parse_size(packets, "packets")
    # Calls by packets take turns in two halves of scratch, which is safe only if all calls wait for all ranks. So plans
    # that do not are written first, and if there are any, the others go without packets.
    choice = choose_packets(with_relays, packet_limit, forced=packets != "auto", alone=is_alone)
    notes, early_leavers = choice.notes_on_excluded(), list[str]()
    for kind in sorted(plans.keys() - choice.excluded, key=lambda kind: (kind in choice.waiting, [*plans].index(kind))):
        plan = plans[kind]
        if early_leavers and packet_limit != 0 and kind in choice.waiting:
            packet_limit = 0
            notes.append(choice.note_without_packets(early_leavers))
        try:
            # notes on ranges that tuning left to NCCL; NotFound if all are
            notes += refuse_served(plan, BACK_END)
        except NotFound as error:
            if len(plans) == 1:
                raise
            notes.append(str(error))
            continue
        if with_relays[kind] is not plan:
            notes.append(
                f"{kind}: ranks outside of it relay; only programs that call the executor themselves can use it"
            )
        file_count = len(writer.files)
        notes += writer.add(with_relays[kind], packet_limit, f"{kind}-" if len(plans) > 1 else "")
        if len(writer.files) > file_count and kind not in choice.waiting:
            early_leavers.append(kind)
    if not writer.files:
        raise NotFound(f"{BACK_END}: nothing to write: {'; '.join(notes)}")
    per_node = writer.ranks_per_node.pop() if len(writer.ranks_per_node) == 1 else 0  # 0: register.py accepts any
    text = registration_text(ranks.pop(), per_node, writer.rows)
    purposes = {**writer.purposes, "register.py": REGISTRATION_PURPOSE}
    return Files({**writer.files, "register.py": text.encode()}, notes, purposes, writer.unserved)


def _with_relays(plan: Plan) -> Plan:
    """Return the plan; if ranks outside of its members relay, return it for a custom collective of all ranks in which
    the relays have no data of their own."""
    collective, used = plan.collective, set[int]()  # used: ranks that send or receive
    for schedule in (entry.schedule for entry in plan.entries if entry.served_by not in GPU_LIBRARIES):
        used |= {*schedule.src.tolist(), *schedule.dst.tolist()}
    if collective.custom is not None or used <= {*collective.members}:
        return plan
    # In place, the result of a reducescatter is a part of its input; a custom collective cannot state that.
    if collective.kind == "reducescatter":
        raise Unsupported(
            f"{BACK_END}: no reducescatter by relays outside of its ranks; plan without them (TOPO:only=RANKS)"
        )
    relation = Collective("custom", collective.ranks, weights=collective.weights, custom=collective.relation)
    entries = [replace(entry, schedule=replace(entry.schedule, collective=relation)) for entry in plan.entries]
    return replace(plan, collective=relation, entries=tuple(entries))


class _Variant(NamedTuple):
    """A file for an entry of a plan, by packets or as plain data (`head.packets`): what it states as a whole, and the
    channels and thread blocks of each GPU."""

    in_place: bool
    head: _Head
    gpus: list[GpuText]


@dataclass
class _Writer:
    """The files of all plans, and their rows in register.py, with the options of `mscclpp_json`."""

    blocks: int
    threads: int
    alignment: int
    lag: int
    alone: bool
    name: str
    staged: bool
    files: dict[str, bytes] = field(default_factory=dict)
    purposes: dict[str, str] = field(default_factory=dict)  # by file, the calls that it serves
    rows: list[RegisteredPlan] = field(default_factory=list)
    unserved: set[tuple[str, int]] = field(default_factory=set)  # see `Files`
    ranks_per_node: set[int] = field(default_factory=set)  # the numbers of ranks that hosts have

    def add(self, plan: Plan, packet_limit: int | None, prefix: str) -> list[str]:
        """Write a plan; calls of up to `packet_limit` bytes use packets if they can (None: by the predicted times).

        Return a note for each range in which the written plan is slower than the one that tuning chose; sizes at which
        NCCL is faster than the written plan are left to NCCL.
        """
        # for the ranks of the communicator alone, renumbered in its order
        far, sizes_of_hosts = _find_hosts(plan, job_of(plan.collective))
        self.ranks_per_node |= sizes_of_hosts
        notes = []
        for number, entry in enumerate(plan.entries):
            if entry.served_by not in GPU_LIBRARIES:
                notes += self._add_entry(plan, entry, packet_limit, f"{prefix}plan{number}", far)
            if entry.other is not None:
                notes += self._add_entry(plan, entry.other, packet_limit, f"{prefix}plan{number}-other", far)
        return notes

    def _add_entry(self, plan: Plan, entry: Entry, packet_limit: int | None, name: str, far: Far) -> list[str]:
        """Write the files of an entry, whose names begin with `name`; the other arguments and notes as for `add`."""
        collective, notes = collective_among(plan.collective, job_of(plan.collective)), list[str]()
        schedule = unjoined(entry.schedule) if self.alone else entry.schedule
        # an alltoall with unequal counts has no layout in place
        is_uneven = collective.kind == "alltoall" and not _has_equal_counts(collective)
        prediction = PredictedTimes.of(plan, entry, schedule)
        limit = packet_limit
        if limit is None:  # by the predicted times; of a range without end up to MOST_OFFSET
            limit = prediction.largest_by(LL, SIMPLE, entry.start, entry.stop, MOST_OFFSET)
        variants = [
            variant
            for in_place in ((False,) if is_uneven else (False, True))
            for variant in self._variants(schedule, in_place, (entry.start, entry.stop), limit, far)
        ]
        largest_by_packets = max((head.sizes.largest for _, head, _ in variants if head.packets), default=-1)
        label = f"{collective.kind} {range_text(entry.start, entry.stop)}"
        last_size = max((head.sizes.largest for _, head, _ in variants), default=0)
        # the last size to expect: of a range without end at least the size that was tuned
        if not self.staged and last_size < (entry.stop or max(entry.start, prediction.tuned_bytes) + 1) - 1:
            notes.append(f"{label}: serves calls of up to {format_size(last_size)} only: offsets have 32 bits")
        if self.staged:
            notes.append(self._note_staged(label, entry, largest_by_packets, variants))
        if not variants:
            return notes
        tuned_bytes = prediction.tuned_bytes
        slower, served = self._compare(prediction, variants, entry.stop, largest_by_packets)
        for slower_note in slower:
            can_have_packets = (
                collective.kind in PACKET_KINDS and packet_limit is not None and packet_limit < tuned_bytes
            )
            remedy = f" (option packets={format_size(tuned_bytes)})" if can_have_packets else ""
            notes.append(f"{label}: {slower_note}{remedy}")
        written = [variant for variant in variants if variant.head.packets or served is not None]
        moving_blocks = min(map(self._count_moving_blocks, written), default=self.blocks)
        if moving_blocks < self.blocks:
            notes.append(
                f"{label}: {moving_blocks} of {self.blocks} thread blocks move data (groups of them would need too "
                "many operations or barriers), so large calls may take longer than predicted; other planners or "
                "options may keep more busy"
            )
        for in_place, head, gpus in written:
            if not head.packets and served is not None:
                smallest, largest = served
                head.sizes = head.sizes._replace(
                    smallest=max(smallest, head.sizes.smallest),
                    largest=head.sizes.largest if largest is None else min(largest, head.sizes.largest),
                )
            suffix = f"{'-packets' if head.packets else ''}{'-in-place' if in_place else ''}"
            file = f"{name}{suffix}.json"
            self.files[file] = head.text(gpus)
            # without an end, offsets of 32 bits are the limit, some GB
            end = head.sizes.largest + 1 if head.packets or entry.stop is not None else None
            served_range = range_text(head.sizes.smallest, end)
            by_packets = " by packets" * head.packets
            self.purposes[file] = f"{collective.kind} {served_range}{by_packets}{head.sizes.omissions()}"
            # Of a broadcast only the root knows whether it is in place, so register.py takes the plan for other
            # buffers for both. The file in place is for programs that hand plans to the executor themselves.
            serves_in_place = None if collective.kind == "broadcast" else in_place
            if serves_in_place is not None or not in_place:
                registered = RegisteredPlan(
                    file, name=head.label, collective=collective.kind,
                    root=collective.roots[0] if collective.roots else None,
                    in_place=serves_in_place, smallest=head.sizes.smallest, largest=head.sizes.largest,
                    unit=head.sizes.multiple, switches=any(gpu.switch_groups for gpu in gpus), packets=head.packets,
                )  # fmt: skip
                self.rows.append(registered)
        tuned = entry.claims.get("at")
        if isinstance(tuned, int) and collective.kind in _SIZED:
            ranges = [head.sizes for _, head, _ in written if head.sizes.smallest <= tuned <= head.sizes.largest]
            if ranges and all(tuned % sizes.multiple for sizes in ranges):
                self.unserved.add((plan.collective.kind, tuned))
        return notes

    def _compare(
        self, prediction: PredictedTimes, variants: Sequence[_Variant], stop: int | None, largest_by_packets: int
    ) -> tuple[list[str], tuple[int, int | None] | None]:
        """Return notes on files that are slower than the choice of tuning, and the smallest and largest size that plain
        data serves (largest None: no limit); None in their place if it serves no size.

        `stop`: the first size above the range (None: no end). `largest_by_packets`: -1 if there are none.
        """
        notes, tuned_bytes = list[str](), prediction.tuned_bytes
        if 0 < tuned_bytes <= largest_by_packets:
            # compared at the tuned size alone; the note is empty if packets are as fast as the choice
            note, _ = prediction.compare(LL, tuned_bytes, tuned_bytes, may_leave=False)
            notes.append(note)
        smallest = min((head.sizes.smallest for _, head, _ in variants if not head.packets), default=None)
        served: tuple[int, int | None] | None = None
        if smallest is not None:
            last = None if stop is None else stop - 1
            # an export without the work of switches (`alone`) was asked for, so it serves all sizes
            note, served = prediction.compare(SIMPLE, smallest, last, may_leave=not self.alone)
            notes.append(note)
        return [note for note in notes if note], served

    def _variants(
        self, schedule: Schedule, in_place: bool, span: tuple[int, int | None], packet_limit: int, far: Far
    ) -> Iterator[_Variant]:
        """Yield the plans of a range: packets up to `packet_limit` bytes, plain data above.

        `span`: the sizes of calls, from the first up to but not including the second (None: no limit).
        """
        start, stop = span
        use_packets = packet_limit > 0 and start <= packet_limit
        packet_plan = _by_packets(schedule, in_place, self.blocks, far) if use_packets else None
        if packet_plan is not None:
            program, layout, gpus = packet_plan
            end = packet_limit + 1 if stop is None else min(stop, packet_limit + 1)
            head = _Head(program, layout, (start, end), self.threads, self.alignment, self.name, packets=True)
            if start < (end := min(end, head.sizes.largest + 1)):  # packets have only so much room
                yield _Variant(in_place, head, gpus)
                start = end
        if self.staged:
            yield from self._staged(schedule, in_place, (start, stop), far)
        elif stop is None or start < stop:
            program, layout, switched_part = _lower_plan(schedule, in_place, self.lag)
            head = _Head(program, layout, (start, stop), self.threads, self.alignment, self.name)
            if head.sizes.smallest > head.sizes.largest:
                return
            gpus = gpus_of(program, layout, switched_part, self.blocks, far, head.largest_chunk)
            yield _Variant(in_place, head, gpus)

    def _staged(self, schedule: Schedule, in_place: bool, span: tuple[int, int | None], far: Far) -> Iterator[_Variant]:
        """Yield the plan that passes data through scratch, if the range reaches sizes that it serves.

        `span`: the range, as for `_variants`.
        """
        if schedule.joint is not None:
            raise Unsupported(f"{BACK_END}: switches write into buffers, and staged data goes to scratch; {ADVICE}")
        # MAX_LAG: scratch is not reused within a call, hence not within a turn of the loop
        lowered = lower(schedule, in_place=in_place, lag=MAX_LAG, staged=True)
        program = among(lowered, job_of(schedule.collective))  # renumbered for the ranks of the communicator
        plan = stage(program, chunked(program, MOST_CHUNKS, BACK_END), self.blocks, far, self.alignment)
        head = _Head(program, plan.layout, span, self.threads, self.alignment, self.name, slot=plan.unit)
        if head.sizes.smallest <= head.sizes.largest:
            yield _Variant(in_place, head, plan.gpus)

    def _count_moving_blocks(self, variant: _Variant) -> int:
        """Return the number of thread blocks of the busiest rank that move data at once: `group` in each of
        its streams that move data.

        Return the option `blocks` instead, so that no note is written, for packets, and if at least 3/4 of the blocks
        that could have MIN_SHARE bytes of each chunk in the largest call do move data.
        """
        gpu = max(variant.gpus, key=lambda gpu: gpu.moving_streams)
        moving = gpu.moving_streams * gpu.group
        useful = min(self.blocks, gpu.moving_streams * (variant.head.largest_chunk // MIN_SHARE))
        return self.blocks if variant.head.packets or 4 * moving >= 3 * useful else moving

    def _note_staged(self, label: str, entry: Entry, largest_by_packets: int, variants: Sequence[_Variant]) -> str:
        """Return a note on the part of an entry's range that staged plans serve."""
        staged_sizes = (head.sizes.smallest for _, head, _ in variants if not head.packets)
        first = min(staged_sizes, default=entry.stop or MOST_OFFSET)
        begin = max(entry.start, largest_by_packets + 1)
        unserved = f"; no plan for sizes {range_text(begin, first)}" if begin < first else ""
        return f"{label}: staged, with a copy that predicted times do not count{unserved}"


@without_gc()
def json_of(program: Program, *, blocks: int = 32, packets: bool = False) -> bytes:
    """Return the plan of a program on one host, unchanged and for all sizes; with `packets`, one that uses packets."""
    if packets:
        if not can_use_packets(program):
            raise Unsupported(f"{BACK_END}: not everyone hears from everyone, as packets need; leave them out")
        layout, gpus = gpus_by_packets(program, blocks, lambda a, b: False)
        return _Head(program, layout, (0, None), MOST_THREADS, ACCESS_BYTES, name="", packets=True).text(gpus)
    layout, switched_part = _find_switched(program)
    gpus = gpus_of(program, layout, switched_part, blocks, lambda a, b: False)
    return _Head(program, layout, (0, None), MOST_THREADS, ACCESS_BYTES, name="").text(gpus)


def _has_equal_counts(collective: Collective) -> bool:
    """Return whether the collective has a layout in place: of an alltoall, whether its counts are equal."""
    try:
        sides(collective, in_place=True)
    except Unsupported:
        return False
    return True


def _find_hosts(plan: Plan, members: Sequence[int]) -> tuple[Far, set[int]]:
    """Return a function that is true if two members are on different hosts, and the number of members of each host."""
    number = {rank: index for index, rank in enumerate(members)}
    host = [0] * len(members)
    sizes = set()
    for host_number, ranks in enumerate(ranks_by_host(plan.topology, members)):
        sizes.add(len(ranks))
        for rank in ranks:
            host[number[rank]] = host_number
    return lambda a, b: host[a] != host[b], sizes


def _find_switched(program: Program) -> tuple[BufferLayout, Switched]:
    """Return the addresses of a program's data, in chunks, and the part of the program that switches perform."""
    layout = chunked(program, MOST_CHUNKS, BACK_END)
    switched_part = find_switched(program, layout, BACK_END)
    return drop_unused_scratch(program, layout, switched_part), switched_part


def _lower_plan(schedule: Schedule, in_place: bool, lag: int) -> tuple[Program, BufferLayout, Switched]:
    """Return the program of a schedule, the addresses of its data, and the part that switches perform."""
    if not schedule.collective.weights.any():
        raise Unsupported(f"{BACK_END}: no rank has any data, and a loader divides by the chunks of its buffers")
    # By default (lag 0) without reuse of scratch (MAX_LAG) if that is little, else with reuse after one step.
    for tried_lag in (lag,) if lag else (MAX_LAG, 1):
        try:
            program = among(lower(schedule, in_place=in_place, lag=tried_lag, joints=True), job_of(schedule.collective))
        except Unsupported as error:
            if schedule.joint is None:
                raise
            raise Unsupported(f"{error}; {ADVICE}") from None
        layout, switched_part = _find_switched(program)
        if tried_lag == lag or has_little_scratch(layout):
            break
    total = int(layout.sizes.sum())
    if total > MOST_CELLS:
        raise Unsupported(
            f"{BACK_END}: {total} chunks in the buffers of all ranks, of at most {MOST_CELLS}; use a planner (or "
            "options) that gives fewer chunks, or shares of smaller denominators"
        )
    return program, layout, switched_part


def _by_packets(
    schedule: Schedule, in_place: bool, blocks: int, far: Far
) -> tuple[Program, BufferLayout, list[GpuText]] | None:
    """Return the plan that uses packets, in scratch without reuse; None if the schedule cannot use packets."""
    if schedule.joint is not None:
        return None
    program = among(lower(schedule, in_place=in_place, lag=MAX_LAG), job_of(schedule.collective))
    if not can_use_packets(program):
        return None
    try:
        return program, *gpus_by_packets(program, blocks, far)
    except Unsupported:
        return None


def chunks_of_ranks(collective: Collective, in_place: bool, grain: int) -> list[tuple[int, int]]:
    """Return how many chunks of input and of output each rank passes; never 0, as the loader divides by them.

    `grain`: chunks per weight 1 of a block. A rank without input, or without output, passes its other buffer twice; a
    rank with neither passes as much as the first rank that has one.
    """
    # NCCL's calls have an input and an output in place, too; a custom collective has one buffer then
    inputs, outputs = (side.size.tolist() for side in sides(collective, in_place and collective.kind == "custom"))
    declared_chunks = [(a or b, b or a) for a, b in zip(inputs, outputs, strict=True)]
    usual = next(pair for pair in declared_chunks if any(pair))
    passed_chunks = [pair if any(pair) else usual for pair in declared_chunks]
    return [(input_chunks * grain, output_chunks * grain) for input_chunks, output_chunks in passed_chunks]


class _Sizes(NamedTuple):
    """The sizes in bytes of the calls that a plan serves."""

    smallest: int
    largest: int
    multiple: int  # all sizes are multiples of this

    def omissions(self) -> str:
        """Return which sizes of the range are served; "" if all large powers of two, as most calls have such sizes."""
        first = max(-(-self.smallest // self.multiple), 1) * self.multiple
        if first > self.largest:
            return f"; serves no call, as no multiple of {self.multiple} bytes is in that range"
        if not self.multiple & (self.multiple - 1):
            return ""
        sizes = f"{first}" if first + self.multiple > self.largest else f"multiples of {self.multiple}"
        return f"; serves only {sizes} bytes (no power of two)"


class _Head:
    """What a file states as a whole, and the text around that of its GPUs.

    `layout`: the addresses of the program's data, in chunks. `span`: the sizes of calls, from the first up to but not
    including the second (None: no limit). `label`: the plan's name, set by `text`. `packets`: it uses packets. `slot`:
    bytes of a slot of scratch, if all data passes through slots; else 0. `chunks`: by rank those of input and output.
    """

    def __init__(
        self, program: Program, layout: BufferLayout, span: tuple[int, int | None], threads: int, alignment: int,
        name: str, *, packets: bool = False, slot: int = 0,
    ) -> None:  # fmt: skip
        self.program, self.layout, self.span, self.slot = program, layout, span, slot
        self.threads, self.alignment, self.name, self.packets = threads, alignment, name, packets
        self.chunks = chunks_of_ranks(program.collective, program.in_place, layout.unit)
        self.sizes, self.label = self._find_sizes(), ""

    @property
    def largest_chunk(self) -> int:
        """Return the bytes of a chunk in the largest call."""
        # a call of `multiple` bytes has chunks of `alignment` bytes
        return self.sizes.largest * self.alignment // self.sizes.multiple

    @without_gc()
    def text(self, gpus: list[GpuText]) -> bytes:
        """Return the whole text of the plan.

        The name has a checksum of the text after it: the executor tells plans apart by their names alone. Plans that
        touch only scratch of other ranks share one set of connections for all buffers (reuse_resources).
        """
        collective, in_place = self.program.collective, self.program.in_place
        gpu_texts = [self._gpu_text(rank, gpu, self.chunks[rank]) for rank, gpu in enumerate(gpus)]
        body = ",\n".join(gpu_texts)
        label = f"{self.name or 'antiphon'}-{collective.kind}-{collective.ranks}{'-in-place' if in_place else ''}"
        ours, protocol = dumps(collective).decode().strip(), LL if self.packets else SIMPLE
        reuses = str(self.packets or self.slot > 0).lower()
        tail = (
            f'"collective":"{collective.kind}","protocol":"{protocol}","inplace":{str(in_place).lower()},'
            f'"reuse_resources":{reuses},"num_threads_per_block":{self.threads},'
            f'"use_double_scratch_buffer":{str(self.packets).lower()},'
            f'"buffer_alignment":{self.alignment},"min_message_size":{min(self.sizes.smallest, MOST_SMALLEST)},'
            f'"max_message_size":{self.sizes.largest},\n'
            f'"antiphon":{{"collective":{ours}}},\n"gpus":[\n{body}\n]}}\n'
        )
        self.label = f"{label}-{zlib.crc32(tail.encode()):08x}"
        return f'{{"name":"{self.label}",\n{tail}'.encode()

    def _find_sizes(self) -> _Sizes:
        """Return the sizes that the plan serves. The largest is that of the plan's range, or less: offsets must fit
        into 32 bits, packets into the shared scratch."""
        collective = self.program.collective
        # Offsets of the executor have 32 bits: chunk size * largest number of chunks < MOST_OFFSET.
        scratch = 0 if self.slot else int(self.layout.sizes[:, SCRATCH].max())
        chunk = (MOST_OFFSET - 1) // max(scratch, *(max(pair) for pair in self.chunks))
        if self.packets:
            # Calls take turns in two halves of the shared scratch, and packets are twice as large as their data.
            chunk = min(chunk, SHARED_SCRATCH // 4 // max(scratch, 1))
        chunk = chunk // self.alignment * self.alignment
        # chunks of the buffer whose size is that of the call: the output of an allgather, else the input
        is_allgather = collective.kind == "allgather"
        counts = {output_chunks if is_allgather else input_chunks for input_chunks, output_chunks in self.chunks}
        largest, multiple = chunk * max(counts), self.alignment * max(counts)
        # a range is stated only if all ranks pass buffers of one size; of custom ones those with relays may
        if collective.kind not in (*_SIZED, "custom") or len({*counts, *(max(pair) for pair in self.chunks)}) > 1:
            if self.slot:
                raise Unsupported(f"{BACK_END}: stages only data of equal size at all ranks through scratch")
            return _Sizes(smallest=0, largest=largest, multiple=multiple)
        # Ranges end before `stop`; the file states the last size included.
        start, stop = self.span
        start = max(start, self.slot * max(counts))  # staged: each chunk fills a slot
        return _Sizes(start, largest if stop is None else min(largest, stop - 1), multiple)

    def _gpu_text(self, rank: int, gpu: GpuText, chunks: tuple[int, int]) -> str:
        """Return the JSON of a rank; `chunks`: of its input and output, as `chunks_of_ranks` counts them."""
        channels = ",".join(
            f'{{"channel_type":"{kind}","connected_to":{_json_list(peers)}}}'
            for kind, peers in gpu.channels.items()
            if peers
        )
        groups = ",".join(
            f'{{"channel_type":"{SWITCH}","buffer_type":"{kind}","rank_groups":[{{"size":{len(ranks)},'
            f'"ranks":{_json_list(ranks)}}}]}}'
            for ranks, kind in gpu.switch_groups
        )
        channels = ",".join(filter(None, (channels, groups)))
        buffers = ",".join(
            f'{{"rank":{peer},"type":"{kind}","access_channel_types":["{access}"]}}'
            for peer, kind, access in gpu.buffers
        )
        blocks = ",\n".join(self._block_text(number, block) for number, block in enumerate(gpu.blocks))
        semaphores = ",".join(['{"init_value":0}'] * gpu.chaining.semaphores)
        (input_chunks, output_chunks), scratch = chunks, int(self.layout.sizes[rank, SCRATCH])
        return (
            f'{{"id":{rank},"input_chunks":{input_chunks},"output_chunks":{output_chunks},"scratch_chunks":{scratch},'
            f'"threadblocks":[\n{blocks}],"channels":[{channels}],"remote_buffers":[{buffers}],'
            f'"semaphores":[{semaphores}]}}'
        )

    def _block_text(self, number: int, block: BlockText) -> str:
        channels = ",".join(
            f'{{"channel_type":"{kind}","channel_ids":{_json_list(ids)}}}'
            for kind, ids in block.channels.items()
            if ids
        )
        buffers = ",".join(
            f'{{"access_channel_type":"{kind}","remote_buffer_ids":{_json_list(ids)}}}'
            for kind, ids in block.buffers.items()
            if ids
        )
        operations = ",".join(block.operations)
        return f'{{"id":{number},"ops":[{operations}],"channels":[{channels}],"remote_buffer_refs":[{buffers}]}}'


def _json_list(numbers: Iterable[int]) -> str:
    return "[" + ",".join(map(str, numbers)) + "]"
