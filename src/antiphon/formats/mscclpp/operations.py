"""What each operation of the executor does to cells, semaphores and ports, as its kernel does it (of 2026).

Said here because it is not what the names say: a `flush` flushes so many channels as it has destinations; `get` reads
at the index of its destination and writes at that of its source; `pws` on a memory channel signals nobody; `put` takes
all sources from the buffer of the first; sizes are those of the destinations for `put`, else that of the first source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.mscclpp.lanes import Cells, Item, Lane, Machine, Threads
from antiphon.formats.mscclpp.shape import KINDS, MEMORY, PORT, Buffer, Inner
from antiphon.formats.mscclpp.wiring import Names, Wiring
from antiphon.lower.machine.code import Instruction


class Window:
    """Which part of its data an operation does: the `at`-th unit of all, in a pipeline (`one`: cells of it; 0: all)."""

    def __init__(self, at: int = 0, one: int = 0) -> None:
        self.at, self.one = at, one


WHOLE = Window()


class Reader:
    """Operations of one thread block as items."""

    def __init__(self, wiring: Wiring, machine: Machine, names: Names, ports: dict[int, int]) -> None:
        self.wiring, self.machine, self.names, self.rank = wiring, machine, names, names.rank
        self.ports = ports  # of each port channel its block of the machine
        self.number, self.verb, self.name = 0, "", ""
        self.window = WHOLE
        self.told: dict[tuple[str, tuple[int, ...]], Threads] = {}  # what signals and waits come again and again
        self.known = {
            "signal": self._told, "wait": self._told, "rlxsignal": self._told, "rlxwait": self._told,
            "sem_acquire": self._linked, "sem_release": self._linked, "flush": self._flush, "put": self._put,
            "pws": self._put, "pwsf": self._put, "get": self._get, "copy": self._copy, "re": self._reduce,
            "res": self._reduce, "rre": self._reduce, "rres": self._reduce, "ppkt": self._put_packets,
            "rppkt": self._pass_packets, "upkt": self._unpack, "cpkt": self._pack, "repkt": self._reduce_packets,
            "respkt": self._reduce_packets, "recpkt": self._reduce_packets, "recspkt": self._reduce_packets,
            "glres": self._switch_reduce, "gstore": self._switch_store, "gstorepkt": self._switch_packets,
        }  # fmt: skip

    def __str__(self) -> str:
        """Where it is now: put together only where something is wrong there."""
        return f"{self.names.where}, step {self.number} ({self.name[:24]})"

    def items(self, number: int, one: Inner, window: Window, within: str = "") -> list[Item]:
        """`within`: the name of the operation that has this one in it."""
        self.number, self.window, self.name = number, window, within or one.name
        self.verb = f"{one.name} in pipeline" if window.one else one.name
        read = self.known.get(one.name)
        if read is None:
            raise Unsupported(f"{self}: {quote(one.name)} is no operation that is known here")
        return read(one)

    def _one(self, *, loose: bool = False) -> Instruction:
        return Instruction(self.number, self.verb, loose=loose)

    # ---- signals ----

    def _type(self, one: Inner) -> str:
        if one.channel_type not in (MEMORY, PORT):
            raise Invalid(f"{self}: does nothing on channels of type {quote(one.channel_type)}; memory or port")
        return one.channel_type

    def _told(self, one: Inner) -> list[Item]:
        kind, name = self._type(one), one.name
        if not one.channel_ids:
            return []
        if kind == PORT:
            threads = Threads([self._asked(at, taken=name.endswith("wait")) for at in one.channel_ids])
            return [Item(self._one(), threads)]
        key = name, tuple(one.channel_ids)
        found = self.told.get(key)
        if found is None:
            found = self.told[key] = Threads(self._lanes(one.channel_ids, taken=name.endswith("wait")))
        return [Item(self._one(loose=name.startswith("rlx")), found)] if found.lanes else []

    def _lanes(self, ids: list[int], *, taken: bool) -> list[Lane]:
        """By memory. A signal that nobody can take is none."""
        lanes = []
        for at in ids:
            channel = self.names.channel(self, MEMORY, at)
            semaphore = self.wiring.signal(MEMORY, self.rank, channel, taken=taken)
            if semaphore >= 0:
                lanes.append(Lane((semaphore,), ()) if taken else Lane((), (semaphore,)))
        return lanes

    def _asked(self, at: int, *, taken: bool) -> Lane:
        channel = self.names.channel(self, PORT, at)
        semaphore = self.wiring.signal(PORT, self.rank, channel, taken=taken)
        if taken:
            return Lane(acquire=(semaphore,))
        given = (semaphore,) if semaphore >= 0 else ()
        return Lane(port=self._port(channel), later=replace(self._one(), release=given))

    def _linked(self, one: Inner) -> list[Item]:
        numbers = [self.wiring.local[self.rank][number] for number in one.semaphore_ids or ()]
        lanes = [Lane((s,), ()) if one.name == "sem_acquire" else Lane((), (s,)) for s in numbers]
        return [Item(self._one(), Threads(lanes))] if lanes else []

    def _port(self, channel: int) -> int:
        """The proxy of a channel."""
        if channel not in self.ports:
            self.ports[channel] = self.machine.block(self.rank, f"proxy of port {channel}", beside=True)
        return self.ports[channel]

    def _flush(self, one: Inner) -> list[Item]:
        many = len(one.dst_buff or ())
        if many > len(one.channel_ids or ()):
            raise Invalid(f"{self}: flushes {many} channels, one for each destination, and names fewer")
        channels = [self.names.channel(self, PORT, at) for at in (one.channel_ids or ())[:many]]
        lanes = [Lane(port=self._port(channel), flush=True) for channel in channels]
        return [Item(self._one(), Threads(lanes))] if lanes else []

    # ---- places ----

    def _run(self, one: Inner, size: int) -> tuple[int, int]:
        """Of a run of so many chunks, from which cell on it is done here, and how many."""
        width = self.wiring.width
        if self.window.one:
            return self.window.at * self.window.one, self.window.one
        cells, group = size * width, one.tbg_info
        if group is None:
            return 0, cells
        return cells // group.tbg_size * group.tb_id, cells // group.tbg_size

    def _offset(self, kind: str | None, skip: int) -> int:
        """In a pipeline scratch may be smaller than what goes through it: its units take turns."""
        if kind != "s":
            return skip
        if self.window.one:
            return skip % self.wiring.scratch
        if self.wiring.scratch != self.wiring.width:
            raise Unsupported(f"{self}: beside a pipeline, scratch that is reused has no place for whole chunks")
        return skip

    def _local(self, place: Buffer, size: int, skip: int) -> int:
        return self._here(place.type, place.index, size, skip)

    def _here(self, kind: str | None, index: int, size: int, skip: int) -> int:
        if kind is None:
            raise Invalid(f"{self}: lacks the type of a buffer of its own")
        return self.wiring.cells(self, self.rank, self.rank, kind, index, size) + self._offset(kind, skip)

    def _far(self, place: Buffer, size: int, skip: int, kind: str = MEMORY) -> int:
        at, of = self.names.buffer(self, kind, place.buffer_id)
        if of == "s" and self.wiring.file.use_double_scratch_buffer:
            raise Invalid(
                f"{self}: with use_double_scratch_buffer others find scratch in one place, its own rank in two"
            )
        return self.wiring.cells(self, self.rank, at, of, place.index, size) + self._offset(of, skip)

    def _packets(self, place: Buffer, size: int, skip: int, *, far: bool = False) -> int:
        at, of = self.names.buffer(self, MEMORY, place.buffer_id) if far else (self.rank, place.type)
        return self.wiring.packet_cells(self, at, of, place.index, size) + skip

    def _sources(self, one: Inner, least: int = 1) -> list[Buffer]:
        if len(one.src_buff or ()) < least:
            raise Invalid(f"{self}: needs {least} in src_buff, has {len(one.src_buff or ())}")
        return one.src_buff or []

    def _targets(self, one: Inner, least: int = 1) -> list[Buffer]:
        if len(one.dst_buff or ()) < least:
            raise Invalid(f"{self}: needs {least} in dst_buff, has {len(one.dst_buff or ())}")
        return one.dst_buff or []

    def _data(
        self, count: int, read: Sequence[int], write: Sequence[int], flags: Sequence[Cells] = (),
        marks: Sequence[Cells] = (),
    ) -> list[Item]:  # fmt: skip
        if not count:
            return []
        one = Instruction(self.number, self.verb, count, tuple(read), tuple(write))
        one.ahead = bool(marks) and self.wiring.file.use_double_scratch_buffer
        return [Item(one, None, flags, marks)]

    # ---- data ----

    def _put(self, one: Inner) -> list[Item]:
        if one.channel_type == PORT:
            return self._port_put(one)
        if one.channel_type != MEMORY:
            raise Invalid(f"{self}: puts by channels of type {quote(one.channel_type)}; memory or port")
        targets = self._targets(one)
        sources = self._sources(one, len(targets))
        made = []
        for source, target in zip(sources, targets, strict=False):
            skip, count = self._run(one, target.size)
            read = self._here(sources[0].type, source.index, target.size, skip)
            made += self._data(count, (read,), (self._far(target, target.size, skip),))
        return made

    def _port_put(self, one: Inner) -> list[Item]:
        targets = self._targets(one)
        sources, ids = self._sources(one, len(targets)), one.channel_ids or []
        if len(ids) < len(targets):
            raise Invalid(f"{self}: {len(targets)} destinations, but {len(ids)} channels")
        lanes = []
        for source, target, at in zip(sources, targets, ids, strict=False):
            channel = self.names.channel(self, PORT, at)
            peer = self.wiring.peers[PORT, self.rank][channel][0]
            if self.names.buffer(self, PORT, target.buffer_id)[0] != peer:
                raise Invalid(f"{self}: its channel leads to rank {peer}, its destination is another's")
            skip, count = self._run(one, target.size)
            given = () if one.name == "put" else (self.wiring.signal(PORT, self.rank, channel, taken=False),)
            later = Instruction(
                self.number, self.verb, count, (self._local(source, target.size, skip),),
                (self._far(target, target.size, skip, PORT),), release=tuple(s for s in given if s >= 0),
            )  # fmt: skip
            lanes.append(Lane(port=self._port(channel), later=later, flush=one.name == "pwsf"))
        return [Item(self._one(), Threads(lanes))]

    def _get(self, one: Inner) -> list[Item]:
        sources = self._sources(one)
        targets, made = self._targets(one, len(sources)), []
        for source, target in zip(sources, targets, strict=False):
            skip, count = self._run(one, source.size)
            if source.index != target.index:
                self.verb = f"{one.name}, which takes the two indexes one for the other"
            into = Buffer(source.index, source.size, target.type)
            of = Buffer(target.index, source.size, None, source.buffer_id)
            made += self._data(count, [self._far(of, source.size, skip)], [self._local(into, source.size, skip)])
        return made

    def _copy(self, one: Inner) -> list[Item]:
        source, target = self._sources(one)[0], self._targets(one)[0]
        skip, count = self._run(one, source.size)
        return self._data(count, [self._local(source, source.size, skip)], [self._local(target, source.size, skip)])

    def _reduce(self, one: Inner) -> list[Item]:
        """rre and rres read the second source and all behind it from others; res and rres write so."""
        sources, targets = self._sources(one), self._targets(one)
        size = sources[0].size
        skip, count = self._run(one, size)
        far_in, far_out = one.name.startswith("rr"), one.name.endswith("s")
        if self.window.one and self.wiring.file.reuse_resources and not far_in:
            kinds = {place.type for place in (*sources, *targets[:1])}
            if "s" in kinds and len(kinds) > 1:
                raise Unsupported(f"{self}: in a pipeline that reuses scratch it reads from elsewhere than it says")
        read = [self._local(sources[0], size, skip)]
        read += [(self._far if far_in else self._local)(place, size, skip) for place in sources[1:]]
        write = [self._local(targets[0], size, skip)]
        write += [self._far(place, size, skip) for place in targets[1:]] if far_out else []
        return self._data(count, read, write)

    # ---- packets ----

    def _whole(self, one: Inner) -> None:
        if one.channel_type == PORT:
            raise Unsupported(f"{self}: packets by ports are not known here; use memory channels")
        if self.window.one:
            raise Unsupported(f"{self}: packets know nothing of pipelines")

    def _put_packets(self, one: Inner) -> list[Item]:
        self._whole(one)
        targets = self._targets(one)
        sources, made = self._sources(one, len(targets)), []
        for source, target in zip(sources, targets, strict=False):
            skip, count = self._run(one, source.size)
            mark = self._packets(target, source.size, skip, far=True)
            read = self._here(sources[0].type, source.index, source.size, skip)
            made += self._data(count, (read,), (mark,), (), ((mark, count),))
        return made

    def _pass_packets(self, one: Inner) -> list[Item]:
        self._whole(one)
        source, targets = self._sources(one)[0], self._targets(one)
        skip, count = self._run(one, source.size)
        flag = self._packets(source, source.size, skip)
        marks = [self._packets(place, source.size, skip, far=True) for place in targets]
        return self._data(count, [flag], marks, flags=[(flag, count)], marks=[(mark, count) for mark in marks])

    def _unpack(self, one: Inner) -> list[Item]:
        self._whole(one)
        source, target = self._sources(one)[0], self._targets(one)[0]
        skip, count = self._run(one, source.size)
        flag = self._packets(source, source.size, skip)
        return self._data(count, (flag,), (self._local(target, source.size, skip),), ((flag, count),))

    def _pack(self, one: Inner) -> list[Item]:
        self._whole(one)
        source, target = self._sources(one)[0], self._targets(one)[0]
        skip, count = self._run(one, source.size)
        mark = self._packets(target, source.size, skip)
        return self._data(count, [self._local(source, source.size, skip)], [mark], marks=[(mark, count)])

    def _reduce_packets(self, one: Inner) -> list[Item]:
        """The first source is data, all others are packets. The first destination is data; with a c in the name the
        second is packets here; with an s all behind these are packets at others."""
        self._whole(one)
        copied, sent = int(one.name in ("recpkt", "recspkt")), one.name in ("respkt", "recspkt")
        sources, targets = self._sources(one), self._targets(one, 1 + copied)
        size = sources[0].size
        skip, count = self._run(one, size)
        flags = [self._packets(place, size, skip) for place in sources[1:]]
        read = [*flags, self._local(sources[0], size, skip)]
        marks = [self._packets(place, size, skip) for place in targets[1 : 1 + copied]]
        marks += [self._packets(place, size, skip, far=True) for place in targets[1 + copied :]] if sent else []
        write = [self._local(targets[0], size, skip), *marks]
        return self._data(
            count, read, write, flags=[(flag, count) for flag in flags], marks=[(mark, count) for mark in marks]
        )

    # ---- switches ----

    def _group(self, place: Buffer, size: int, skip: int, *, packets: bool = False) -> list[int]:
        """The same place at all ranks of a group."""
        which, ranks = self.names.group(self, place.switch_channel_id)
        kind = KINDS[which]
        if packets:
            return [self.wiring.packet_cells(self, at, kind, place.index, size) + skip for at in ranks]
        if kind == "s" and self.wiring.file.use_double_scratch_buffer:
            raise Invalid(f"{self}: with use_double_scratch_buffer switches find scratch in one place only")
        skip = self._offset(kind, skip)
        return [self.wiring.cells(self, self.rank, at, kind, place.index, size) + skip for at in ranks]

    def _switch_reduce(self, one: Inner) -> list[Item]:
        source, target = self._sources(one)[0], self._targets(one)[0]
        skip, count = self._run(one, source.size)
        return self._data(count, self._group(source, source.size, skip), self._group(target, source.size, skip))

    def _switch_store(self, one: Inner) -> list[Item]:
        source, target = self._sources(one)[0], self._targets(one)[0]
        skip, count = self._run(one, source.size)
        return self._data(count, [self._local(source, source.size, skip)], self._group(target, source.size, skip))

    def _switch_packets(self, one: Inner) -> list[Item]:
        self._whole(one)
        source, target = self._sources(one)[0], self._targets(one)[0]
        skip, count = self._run(one, source.size)
        flag = self._packets(source, source.size, skip)
        marks = self._group(target, source.size, skip, packets=True)
        return self._data(count, [flag], marks, flags=[(flag, count)], marks=[(mark, count) for mark in marks])
