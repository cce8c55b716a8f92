"""Resolve the numbers in a plan of MSCCL++: channels between ranks, remote buffers, groups of a switch, and cells.

read.py and operations.py use this to run a plan on the machine of lower/machine, whose memory is one array of cells:
a *cell* is the smallest interval of data that is checked, and a chunk has `width` of them.
A rank's channels of one type are numbered through all its rows in the file. The k-th channel from rank a to b is paired
with the k-th from b to a. If b has fewer, nobody can wait for the signals of the remaining channels.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from antiphon.core.collective import Collective
from antiphon.core.interpret.buffers import sides
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.mscclpp.shape import (
    KINDS,
    LL,
    MEMORY,
    MOST_CELLS,
    MOST_CONNECTIONS,
    PORT,
    SWITCH,
    File,
    Gpu,
    ThreadBlock,
)
from antiphon.lower.machine.code import INPUT, OUTPUT, SCRATCH, CellPlaces

MOST_WIDTH = 2**10  # cells of a chunk
_KIND = {kind: number for number, kind in enumerate(KINDS)}


def grain_of(file: File, collective: Collective) -> int:
    """Return the number of chunks of a block; the buffers of every rank must agree on it."""
    one_buffer = file.inplace and collective.kind == "custom"  # the blocks before the call and those after it share it
    inputs, outputs = (side.size.tolist() for side in sides(collective, in_place=one_buffer))  # blocks, by rank
    grain = 0
    for rank, gpu in enumerate(file.gpus):
        for field_name, size, chunks in (
            ("input_chunks", inputs[rank], gpu.input_chunks), ("output_chunks", outputs[rank], gpu.output_chunks),
        ):  # fmt: skip
            if size and not grain:  # the first buffer with any data
                grain = chunks // size
            if size and (not grain or chunks != size * grain):
                expectation = f"{collective.kind} of {size} blocks here" + (
                    f", each of {grain} elsewhere" if grain else ""
                )
                raise Invalid(f"gpus[{rank}].{field_name}: is {chunks}, for {expectation}")
    return grain


class Wiring:
    """Translates what a file names into numbers of the machine: cells, semaphores, groups.

    `width`: cells of a chunk. `scratch_width`: of a chunk of scratch, fewer if turns of a pipeline reuse it. `start`,
    `named`: by semaphore, its initial value and its name in messages. `local`: by rank, the semaphores of the rank
    itself. `peers`: by type and rank, each channel's peer and its number among the channels to it. `groups`: by rank,
    buffer and ranks of switch groups. `first`, `size`: by rank and buffer, its first cell and its cells. `begin`: by
    rank, the first cell of the user's buffer that holds input and output if in place. `file_bytes`: size of the file,
    which limits the memory that it may ask for.
    """

    def __init__(self, file: File, collective: Collective, width: int, scratch_width: int, file_bytes: int) -> None:
        self.file, self.collective, self.width, self.scratch_width = file, collective, width, scratch_width
        self.packets = file.protocol == LL  # whether scratch may hold packets
        grain = grain_of(file, collective)
        self.places = self._make_places(grain, file_bytes)
        # by type of channel, signalling rank, waiting rank, and number among their channels
        self.semaphores: dict[tuple[str, int, int, int], int] = {}
        self.start: list[int] = []
        self.named: list[str] = []
        self.peers: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.groups: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for rank, gpu in enumerate(file.gpus):
            self._read_channels(rank, gpu)
        self._pair_channels()
        self._check_groups()
        self.local = [self._number_local(rank, gpu) for rank, gpu in enumerate(file.gpus)]
        self.first: list[list[int]] = self.places.first.tolist()
        self.size: list[list[int]] = self.places.size.tolist()
        self.begin: list[int] = self.places.begin.tolist()
        # recorded by `cells` and `packet_cells`, for `refuse_mixed_scratch` at the end
        self.plain: set[tuple[int, int, int]] = set()  # scratch used as plain data: rank, chunk, number of chunks
        self.packed: set[tuple[int, int, int]] = set()  # scratch used as packets

    # ---- cells ----

    def _make_places(self, grain: int, file_bytes: int) -> CellPlaces:
        """Return the places of all buffers. Packets have cells of their own, behind those of plain data in scratch."""
        file, copies = self.file, 2 if self.packets else 1
        scratch_cells = [gpu.scratch_chunks * self.scratch_width * copies for gpu in file.gpus]
        declared = sum(gpu.input_chunks + gpu.output_chunks for gpu in file.gpus) * self.width
        if sum(scratch_cells) + declared > max(MOST_CELLS, file_bytes):
            raise Invalid(f"{sum(scratch_cells) + declared} chunks, but only {file_bytes} bytes of operations on them")
        places = CellPlaces.of(self.collective, file.inplace, grain * self.width, scratch_cells)
        if file.inplace:  # a rank without input, or without output, passes the other buffer twice
            for side, other in ((INPUT, OUTPUT), (OUTPUT, INPUT)):
                lacking = places.size[:, side] == 0
                places.first[lacking, side] = places.first[lacking, other]
                places.size[lacking, side] = places.size[lacking, other]
        return replace(places, cells_per_chunk=(self.width, self.width, self.scratch_width))

    def cells(self, where: object, rank: int, owner: int, kind: str | None, index: int, size: int) -> int:
        """Return the first cell of `size` chunks from chunk `index` of a buffer of rank `owner`, which `rank` names.

        Raises Invalid if part of it does not exist. `where`: the operation, for messages. `kind`: i, o or s (None:
        missing in the file, Invalid). In place, the executor computes a remote address from the offset in this rank's
        buffer, so the same offset is taken at other ranks.
        """
        buffer = _KIND.get(kind or "", -1)
        if buffer < 0:
            raise Invalid(f"{where}: expected a buffer i, o or s, got {quote(kind)}")
        if buffer == SCRATCH:
            self.plain.add((owner, index, size))
            if index + size > self.file.gpus[owner].scratch_chunks:
                room = self.file.gpus[owner].scratch_chunks
                raise Invalid(f"{where}: {_range_text(index, size)} of the scratch of rank {owner}, of {room}")
            return self.first[owner][SCRATCH] + index * self.scratch_width
        base = self.first[owner][buffer]
        # The offset within the user's buffer is assumed equal at both ranks.
        if self.file.inplace and owner != rank:
            base = self.begin[owner] + self.first[rank][buffer] - self.begin[rank]
        low = base + index * self.width
        high = low + size * self.width
        if low < self.first[owner][buffer] or high > self.first[owner][buffer] + self.size[owner][buffer]:
            room = self.size[owner][buffer] // self.width
            raise Invalid(
                f"{where}: {_range_text(index, size)} of the {('input', 'output')[buffer]} of rank {owner}, of {room}"
            )
        return low

    def packet_cells(self, where: object, owner: int, kind: str | None, index: int, size: int) -> int:
        """Return the first cell of packets in scratch, as `cells` does for plain data."""
        if not self.packets:
            raise Invalid(f"{where}: packets take twice the room, which only protocol LL gives them")
        if kind != "s":
            raise Invalid(f"{where}: packets go to scratch, not to {quote(kind)}")
        self.packed.add((owner, index, size))
        room = self.file.gpus[owner].scratch_chunks
        if index + size > room:
            raise Invalid(f"{where}: {_range_text(index, size)}, as packets, of the scratch of rank {owner}, of {room}")
        return self.first[owner][SCRATCH] + (room + index) * self.scratch_width

    def refuse_mixed_scratch(self) -> None:
        """Raise Invalid if packets lie in scratch that plain data uses, too."""
        # a packet is half flag, so the packets of chunk k cover plain chunks 2 k and 2 k + 1
        packed: dict[int, list[tuple[int, int]]] = {}
        for rank, index, size in self.packed:
            packed.setdefault(rank, []).append((2 * index, 2 * (index + size)))
        for rank, index, size in sorted(self.plain):
            if any(index < high and low < index + size for low, high in packed.get(rank, ())):
                raise Invalid(f"rank {rank}: chunk {index} of its scratch is used as it is, and lies among packets")

    # ---- channels ----

    def _read_channels(self, rank: int, gpu: Gpu) -> None:
        """Read the channels and switch groups of a rank."""
        for row, channel in enumerate(gpu.channels):
            where = f"gpus[{rank}].channels[{row}]"
            if channel.channel_type in (MEMORY, PORT):
                connections = self.peers.setdefault((channel.channel_type, rank), [])
                if channel.connected_to is None:
                    raise Invalid(f"{where}: lacks connected_to")
                for peer in channel.connected_to:
                    if peer >= len(self.file.gpus) or peer == rank:
                        raise Invalid(f"{where}: is connected to {peer}, which is no other rank")
                    connections.append((peer, 0))  # 0: the number follows in `_pair_channels`
                if len(connections) > MOST_CONNECTIONS:
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

    def _pair_channels(self) -> None:
        """Number the channels between every two ranks, and count them (`channel_counts`: by type, rank and peer)."""
        for connections in self.peers.values():
            # The n-th channel from a to b is paired with the n-th from b to a.
            counts: Counter[int] = Counter()
            for i, (peer, _) in enumerate(connections):
                connections[i] = peer, counts[peer]
                counts[peer] += 1
        self.channel_counts = Counter(
            (kind, rank, peer) for (kind, rank), connections in self.peers.items() for peer, _ in connections
        )

    def _check_groups(self) -> None:
        """Raise Invalid unless all ranks of a switch's group name the group, equally often."""
        count = Counter((rank, group) for rank, groups in self.groups.items() for group in groups)
        for (rank, (buffer, ranks)), group_count in count.items():
            for other in ranks:
                if count[other, (buffer, ranks)] != group_count:
                    raise Invalid(f"gpus[{rank}].channels: rank {other} does not join the switch's group {list(ranks)}")

    def signal(self, kind: str, rank: int, channel: int, *, is_wait: bool) -> int:
        """Return the semaphore that a rank releases or acquires on a channel; -1 where no rank can acquire it."""
        peer, number = self.peers[kind, rank][channel]
        source, target = (peer, rank) if is_wait else (rank, peer)
        # The peer has fewer channels: this signal has no receiver. (A wait without a sender has a semaphore that nobody
        # releases, so that it is found to wait forever.)
        if not is_wait and number >= self.channel_counts[kind, peer, rank]:
            return -1
        return self._number_semaphore((kind, source, target, number))

    def _number_semaphore(self, key: tuple[str, int, int, int]) -> int:
        if key not in self.semaphores:
            self.semaphores[key] = len(self.start)
            self.start.append(0)
            kind, source, target, number = key
            self.named.append(f"the signal from rank {source} to rank {target} ({kind} channel {number} of theirs)")
        return self.semaphores[key]

    def _number_local(self, rank: int, gpu: Gpu) -> list[int]:
        """Add the semaphores of a rank's own thread blocks; return their numbers in the machine."""
        numbers = []
        for number, semaphore in enumerate(gpu.semaphores):
            numbers.append(len(self.start))
            self.start.append(semaphore.init_value)
            self.named.append(f"semaphore {number} of rank {rank}")
        return numbers


def _range_text(index: int, size: int) -> str:
    return f"chunks {index} to {index + size - 1}"


class Names:
    """Resolves the numbers by which a thread block calls channels, remote buffers and groups.

    Its methods take a position in the block's own list and return the rank's number of a channel, (rank, buffer type)
    of a remote buffer, and (buffer number, ranks) of a switch's group.
    """

    def __init__(self, wiring: Wiring, rank: int, number: int, block: ThreadBlock) -> None:
        self.wiring, self.rank, self.number = wiring, rank, number
        where = self.where = f"rank {rank}, block {number}"
        self.channels: dict[str, list[int]] = {}
        for row in block.channels:
            kind = row.channel_type
            channel_count = len(wiring.groups.get(rank, ()) if kind == SWITCH else wiring.peers.get((kind, rank), ()))
            for channel in row.channel_ids:
                if channel >= channel_count:
                    raise Invalid(f"{where}: {kind} channel {channel}, but rank {rank} has {channel_count}")
            self.channels.setdefault(kind, []).extend(row.channel_ids)
        self.buffers: dict[str, list[tuple[int, str]]] = {}
        remote = wiring.file.gpus[rank].remote_buffers
        for refs in block.remote_buffer_refs:
            kind = refs.access_channel_type
            for buffer in refs.remote_buffer_ids:
                if buffer >= len(remote):
                    raise Invalid(f"{where}: remote buffer {buffer}, but rank {rank} has {len(remote)}")
                remote_buffer = remote[buffer]
                if kind not in remote_buffer.access_channel_types:
                    raise Invalid(f"{where}: remote buffer {buffer} cannot be reached by {kind}")
                if remote_buffer.rank >= len(wiring.file.gpus) or remote_buffer.rank == rank:
                    raise Invalid(f"gpus[{rank}].remote_buffers[{buffer}]: rank {remote_buffer.rank} is no other rank")
                if remote_buffer.type not in KINDS:
                    raise Invalid(
                        f"gpus[{rank}].remote_buffers[{buffer}]: expected i, o or s, got {quote(remote_buffer.type)}"
                    )
                self.buffers.setdefault(kind, []).append((remote_buffer.rank, remote_buffer.type))

    def channel(self, where: object, kind: str, index: int) -> int:
        channels = self.channels.get(kind, ())
        if index >= len(channels):
            raise Invalid(f"{where}: {kind} channel {index}, but its block has {len(channels)}")
        return channels[index]

    def buffer(self, where: object, kind: str, index: int | None) -> tuple[int, str]:
        buffers = self.buffers.get(kind, ())
        if index is None or index >= len(buffers):
            raise Invalid(f"{where}: remote buffer {index}, but its block has {len(buffers)} by {kind}")
        return buffers[index]

    def group(self, where: object, index: int | None) -> tuple[int, tuple[int, ...]]:
        if index is None:
            raise Invalid(f"{where}: lacks switch_channel_id")
        return self.wiring.groups[self.rank][self.channel(where, SWITCH, index)]


def collective_of(file: File, collective: Collective | None, root: int, file_bytes: int) -> Collective:
    """Return the collective of a plan: the argument, the one that Antiphon stored, or its kind among all ranks."""
    from antiphon.core.collective import KINDS as KNOWN  # collectives; KINDS in this file are buffers
    from antiphon.core.collective import ROOTED
    from antiphon.core.serialize import loads

    if collective is None and file.antiphon is not None and bytes(file.antiphon.collective):
        stored = loads(bytes(file.antiphon.collective), "antiphon.collective")
        if not isinstance(stored, Collective) or stored.kind != file.collective:
            raise Invalid("antiphon.collective: is no collective of the kind that the plan names")
        collective = stored
    if collective is None:
        if file.collective not in KNOWN:
            raise Unsupported(f"collective: {quote(file.collective)} does not define its result; pass the collective")
        collective = Collective(file.collective, len(file.gpus), roots=(root,) if file.collective in ROOTED else ())
    if collective.blocks > max(MOST_CELLS, file_bytes):
        raise Invalid(f"collective: {collective.blocks} blocks, but only {file_bytes} bytes of operations on them")
    if collective.ranks != len(file.gpus):
        raise Invalid(f"gpus: {len(file.gpus)}, for a collective of {collective.ranks} ranks")
    return collective
