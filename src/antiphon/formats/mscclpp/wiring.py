"""What the numbers of a plan name: channels of two ranks, remote buffers, groups of a switch, and cells.

A rank's channels of one type are numbered through all its rows. The k-th of one rank to another is the k-th of that
one back; where the other has fewer, nobody can wait for its signals.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from antiphon.core.collective import Collective
from antiphon.core.interpret.buffers import sides
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.mscclpp.shape import (
    FEW_CELLS,
    KINDS,
    LL,
    MEMORY,
    MOST_CONNECTIONS,
    PORT,
    SWITCH,
    File,
    Gpu,
    ThreadBlock,
)
from antiphon.lower.machine.code import INPUT, OUTPUT, SCRATCH, Places

MOST_WIDTH = 2**10  # cells of a chunk
_KIND = {kind: number for number, kind in enumerate(KINDS)}


def grain_of(file: File, collective: Collective) -> int:
    """Into how many chunks a block is cut; every rank must say the same of its buffers."""
    first, last = (side.size.tolist() for side in sides(collective))
    found = 0
    for rank, gpu in enumerate(file.gpus):
        for what, size, chunks in (
            ("input_chunks", first[rank], gpu.input_chunks), ("output_chunks", last[rank], gpu.output_chunks),
        ):  # fmt: skip
            if size and not found:
                found = chunks // size
            if size and (not found or chunks != size * found):
                told = f"{collective.kind} of {size} blocks here" + (f", each of {found} elsewhere" if found else "")
                raise Invalid(f"gpus[{rank}].{what}: is {chunks}, for {told}")
    return found


class Wiring:
    """Names of a file as numbers of the machine. `width`: cells of a chunk; `scratch`: cells of a chunk of scratch."""

    def __init__(self, file: File, collective: Collective, width: int, scratch: int, nbytes: int) -> None:
        self.file, self.collective, self.width, self.scratch = file, collective, width, scratch
        self.packets = file.protocol == LL
        grain = grain_of(file, collective)
        self.places = self._places(grain, nbytes)
        self.semaphores: dict[tuple[str, int, int, int], int] = {}
        self.start: list[int] = []
        self.named: list[str] = []
        self.peers: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.groups: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for rank, gpu in enumerate(file.gpus):
            self._connect(rank, gpu)
        self._pair()
        self._check_groups()
        self.local = [self._local(rank, gpu) for rank, gpu in enumerate(file.gpus)]
        self.first: list[list[int]] = self.places.first.tolist()
        self.size: list[list[int]] = self.places.size.tolist()
        self.begin: list[int] = self.places.begin.tolist()
        self.plain: set[tuple[int, int, int]] = set()  # scratch touched as it is: rank, chunk, how many
        self.packed: set[tuple[int, int, int]] = set()  # and as packets

    # ---- cells ----

    def _places(self, grain: int, nbytes: int) -> Places:
        file, twice = self.file, 2 if self.packets else 1
        room = [gpu.scratch_chunks * self.scratch * twice for gpu in file.gpus]
        declared = sum(gpu.input_chunks + gpu.output_chunks for gpu in file.gpus) * self.width
        if sum(room) + declared > max(FEW_CELLS, nbytes):
            raise Invalid(f"{sum(room) + declared} chunks, but only {nbytes} bytes of text to say what happens to them")
        made = Places.of(self.collective, file.inplace, grain * self.width, room)
        if file.inplace:  # who has no input, or no output, hands over the other buffer again
            for side, other in ((INPUT, OUTPUT), (OUTPUT, INPUT)):
                lacking = made.size[:, side] == 0
                made.first[lacking, side] = made.first[lacking, other]
                made.size[lacking, side] = made.size[lacking, other]
        return replace(made, cells_per_chunk=(self.width, self.width, self.scratch))

    def cells(self, where: object, rank: int, at: int, kind: str | None, index: int, size: int) -> int:
        """The first cell of a place that `rank` names at the rank `at`, if all of it is there. What lies behind the
        beginning of the user's buffer at this rank is reckoned to lie so at the others."""
        which = _KIND.get(kind or "", -1)
        if which < 0:
            raise Invalid(f"{where}: expected a buffer i, o or s, got {quote(kind)}")
        if which == SCRATCH:
            self.plain.add((at, index, size))
            if index + size > self.file.gpus[at].scratch_chunks:
                room = self.file.gpus[at].scratch_chunks
                raise Invalid(f"{where}: {_span(index, size)} of the scratch of rank {at}, of {room}")
            return self.first[at][SCRATCH] + index * self.scratch
        base = self.first[at][which]
        if self.file.inplace and at != rank:
            base = self.begin[at] + self.first[rank][which] - self.begin[rank]
        low = base + index * self.width
        high = low + size * self.width
        if low < self.first[at][which] or high > self.first[at][which] + self.size[at][which]:
            room = self.size[at][which] // self.width
            raise Invalid(f"{where}: {_span(index, size)} of the {('input', 'output')[which]} of rank {at}, of {room}")
        return low

    def packet_cells(self, where: object, at: int, kind: str | None, index: int, size: int) -> int:
        """The same of packets, which take the room of two: they are kept apart from what is no packet."""
        if not self.packets:
            raise Invalid(f"{where}: packets take twice the room, which only protocol LL gives them")
        if kind != "s":
            raise Invalid(f"{where}: packets go to scratch, not to {quote(kind)}")
        self.packed.add((at, index, size))
        room = self.file.gpus[at].scratch_chunks
        if index + size > room:
            raise Invalid(f"{where}: {_span(index, size)}, as packets, of the scratch of rank {at}, of {room}")
        return self.first[at][SCRATCH] + (room + index) * self.scratch

    def refuse_mixed_scratch(self) -> None:
        """Packets lie at twice their index: where scratch is used both ways, they may lie upon what is none."""
        packed: dict[int, list[tuple[int, int]]] = {}
        for rank, index, size in self.packed:
            packed.setdefault(rank, []).append((2 * index, 2 * (index + size)))
        for rank, index, size in sorted(self.plain):
            if any(index < high and low < index + size for low, high in packed.get(rank, ())):
                raise Invalid(f"rank {rank}: chunk {index} of its scratch is used as it is, and lies among packets")

    # ---- channels ----

    def _connect(self, rank: int, gpu: Gpu) -> None:
        for row, channel in enumerate(gpu.channels):
            where = f"gpus[{rank}].channels[{row}]"
            if channel.channel_type in (MEMORY, PORT):
                known = self.peers.setdefault((channel.channel_type, rank), [])
                if channel.connected_to is None:
                    raise Invalid(f"{where}: lacks connected_to")
                for peer in channel.connected_to:
                    if peer >= len(self.file.gpus) or peer == rank:
                        raise Invalid(f"{where}: is connected to {peer}, which is no other rank")
                    known.append((peer, 0))
                if len(known) > MOST_CONNECTIONS:
                    raise Invalid(f"{where}: more than {MOST_CONNECTIONS} channels")
            elif channel.channel_type == SWITCH:
                if channel.buffer_type not in KINDS or channel.rank_groups is None:
                    raise Invalid(f"{where}: a switch needs buffer_type (i, o or s) and rank_groups")
                for group in channel.rank_groups:
                    ranks = tuple(group.ranks)
                    if rank not in ranks or len(set(ranks)) < len(ranks) or max(ranks) >= len(self.file.gpus):
                        raise Invalid(f"{where}: {list(ranks)[:8]} is no group of ranks with {rank} in it")
                    self.groups.setdefault(rank, []).append((KINDS.index(channel.buffer_type), ranks))
            else:
                raise Invalid(f"{where}: expected type memory, port or switch, got {quote(channel.channel_type)}")

    def _pair(self) -> None:
        for known in self.peers.values():
            seen: Counter[int] = Counter()
            for at, (peer, _) in enumerate(known):
                known[at] = peer, seen[peer]
                seen[peer] += 1
        self.many = Counter((kind, rank, peer) for (kind, rank), known in self.peers.items() for peer, _ in known)

    def _check_groups(self) -> None:
        """All ranks of a group must name it, equally often."""
        count = Counter((rank, one) for rank, groups in self.groups.items() for one in groups)
        for (rank, (which, ranks)), many in count.items():
            for other in ranks:
                if count[other, (which, ranks)] != many:
                    raise Invalid(f"gpus[{rank}].channels: rank {other} does not join the switch's group {list(ranks)}")

    def signal(self, kind: str, rank: int, channel: int, *, taken: bool) -> int:
        """The semaphore that a rank gives to on a channel of its own, or takes from; -1 where nobody can take."""
        peer, number = self.peers[kind, rank][channel]
        source, target = (peer, rank) if taken else (rank, peer)
        if not taken and number >= self.many[kind, peer, rank]:
            return -1
        return self._numbered((kind, source, target, number))

    def _numbered(self, key: tuple[str, int, int, int]) -> int:
        if key not in self.semaphores:
            self.semaphores[key] = len(self.start)
            self.start.append(0)
            kind, source, target, number = key
            self.named.append(f"the signal from rank {source} to rank {target} ({kind} channel {number} of theirs)")
        return self.semaphores[key]

    def _local(self, rank: int, gpu: Gpu) -> list[int]:
        found = []
        for number, semaphore in enumerate(gpu.semaphores):
            found.append(len(self.start))
            self.start.append(semaphore.init_value)
            self.named.append(f"semaphore {number} of rank {rank}")
        return found


def _span(index: int, size: int) -> str:
    return f"chunks {index} to {index + size - 1}"


class Names:
    """What the numbers within a thread block name."""

    def __init__(self, wiring: Wiring, rank: int, number: int, block: ThreadBlock) -> None:
        self.wiring, self.rank, self.number = wiring, rank, number
        where = self.where = f"rank {rank}, block {number}"
        self.channels: dict[str, list[int]] = {}
        for row in block.channels:
            kind = row.channel_type
            there = len(wiring.groups.get(rank, ()) if kind == SWITCH else wiring.peers.get((kind, rank), ()))
            for channel in row.channel_ids:
                if channel >= there:
                    raise Invalid(f"{where}: {kind} channel {channel}, but rank {rank} has {there}")
            self.channels.setdefault(kind, []).extend(row.channel_ids)
        self.buffers: dict[str, list[tuple[int, str]]] = {}
        remote = wiring.file.gpus[rank].remote_buffers
        for refs in block.remote_buffer_refs:
            kind = refs.access_channel_type
            for buffer in refs.remote_buffer_ids:
                if buffer >= len(remote):
                    raise Invalid(f"{where}: remote buffer {buffer}, but rank {rank} has {len(remote)}")
                one = remote[buffer]
                if kind not in one.access_channel_types:
                    raise Invalid(f"{where}: remote buffer {buffer} cannot be reached by {kind}")
                if one.rank >= len(wiring.file.gpus) or one.rank == rank:
                    raise Invalid(f"gpus[{rank}].remote_buffers[{buffer}]: rank {one.rank} is no other rank")
                if one.type not in KINDS:
                    raise Invalid(f"gpus[{rank}].remote_buffers[{buffer}]: expected i, o or s, got {quote(one.type)}")
                self.buffers.setdefault(kind, []).append((one.rank, one.type))

    def channel(self, where: object, kind: str, at: int) -> int:
        known = self.channels.get(kind, ())
        if at >= len(known):
            raise Invalid(f"{where}: {kind} channel {at}, but its block has {len(known)}")
        return known[at]

    def buffer(self, where: object, kind: str, at: int | None) -> tuple[int, str]:
        known = self.buffers.get(kind, ())
        if at is None or at >= len(known):
            raise Invalid(f"{where}: remote buffer {at}, but its block has {len(known)} by {kind}")
        return known[at]

    def group(self, where: object, at: int | None) -> tuple[int, tuple[int, ...]]:
        if at is None:
            raise Invalid(f"{where}: lacks switch_channel_id")
        return self.wiring.groups[self.rank][self.channel(where, SWITCH, at)]


def collective_of(file: File, given: Collective | None, root: int, nbytes: int) -> Collective:
    """What the plan is for: as told, as Antiphon wrote beside it, or of all ranks, by its kind."""
    from antiphon.core.collective import KINDS as KNOWN
    from antiphon.core.collective import ROOTED
    from antiphon.core.serialize import loads

    if given is None and file.antiphon is not None and bytes(file.antiphon.collective):
        found = loads(bytes(file.antiphon.collective), "antiphon.collective")
        if not isinstance(found, Collective) or found.kind != file.collective:
            raise Invalid("antiphon.collective: is no collective of the kind that the plan names")
        given = found
    if given is None:
        if file.collective not in KNOWN:
            raise Unsupported(f"collective: {quote(file.collective)} has no result by itself; say which it is")
        given = Collective(file.collective, len(file.gpus), roots=(root,) if file.collective in ROOTED else ())
    if given.blocks > max(FEW_CELLS, nbytes):
        raise Invalid(f"collective: {given.blocks} blocks, but only {nbytes} bytes of text to say what happens to them")
    if given.ranks != len(file.gpus):
        raise Invalid(f"gpus: {len(file.gpus)}, for a collective of {given.ranks} ranks")
    return given
