"""Translate operations of MSCCL++'s executor (its kernel as of 2026): what each does to cells, semaphores and ports.

read.py calls `OperationReader.items` for every operation; an item (machine_blocks.py) is an instruction of the abstract
machine by which files are checked (lower/machine), with its threads, the packets that it waits for (`flags`) and those
that it writes (`marks`). A *cell* is the smallest interval of data that is checked, `wiring.width` of them per chunk; a
*task* is what one thread does: acquire or release semaphores, or pass a request to a port.

Not obvious from the names: a `flush` flushes as many channels as it has destinations; `get` reads at the index of its
destination and writes at that of its source; `pws` on a memory channel signals no rank; on memory channels `put` and
`ppkt` read all sources from the buffer of the first; sizes are those of the destinations for `put`, those of the
sources for `get` and `ppkt`, else that of the first source. Through a port packets travel as they lie in scratch, flags
included: `ppkt` sends them as they are, `rppkt` once all have come and all threads have met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.mscclpp.machine_blocks import BlockItem, Machine, ThreadTask, ThreadTasks
from antiphon.formats.mscclpp.shape import KINDS, MEMORY, PORT, Buffer, Inner
from antiphon.formats.mscclpp.wiring import Names, Wiring
from antiphon.lower.machine.code import Instruction


class Window:
    """The share of its data that an operation handles: in turn `at` of a pipeline the `at`-th stretch of `cells` cells,
    outside of pipelines (`cells` 0) all of it."""

    def __init__(self, at: int = 0, cells: int = 0) -> None:
        self.at, self.cells = at, cells


WHOLE = Window()  # of an operation outside pipelines


class OperationReader:
    """Translates the operations of one thread block to items. One method per group of their names (`readers`).

    `names` resolves the numbers by which the block calls channels, remote buffers and groups. Methods of `names` and
    `wiring` get `self` as the place to name in errors.
    """

    def __init__(self, wiring: Wiring, machine: Machine, names: Names, ports: dict[int, int]) -> None:
        self.wiring, self.machine, self.names, self.rank = wiring, machine, names, names.rank
        self.ports = ports  # port channel -> the block of `machine` that stands for its proxy thread
        self.number, self.verb, self.name = 0, "", ""  # step and names of the current operation, for messages
        self.window = WHOLE
        self.threads_of: dict[tuple[str, tuple[int, ...]], ThreadTasks] = {}  # cache: the same signals and waits recur
        names_of = {
            self._read_signal: "signal wait rlxsignal rlxwait",
            self._read_semaphores: "sem_acquire sem_release",
            self._read_flush: "flush",
            self._read_put: "put pws pwsf",  # put; put with signal; put with signal, then flush
            self._read_get: "get",
            self._read_copy: "copy",
            self._read_reduce: "re res rre rres",
            self._read_put_packets: "ppkt",
            self._read_pass_packets: "rppkt",
            self._read_unpack: "upkt",
            self._read_pack: "cpkt",
            self._read_reduce_packets: "repkt respkt recpkt recspkt",
            self._read_switch_reduce: "glres",
            self._read_switch_store: "gstore",
            self._read_switch_packets: "gstorepkt",
        }
        self.readers: dict[str, Callable[[Inner], Sequence[BlockItem | None]]] = {
            name: reader for reader, group in names_of.items() for name in group.split()
        }

    def __str__(self) -> str:
        """Return the current operation, for errors."""
        return f"{self.names.where}, step {self.number} ({self.name[:24]})"

    def items(self, number: int, operation: Inner, window: Window, within: str = "") -> Sequence[BlockItem | None]:
        """Return the items of an operation (None: all threads meet), which is part of an operation `within`, if any."""
        self.number, self.window, self.name = number, window, within or operation.name
        self.verb = f"{operation.name} in pipeline" if window.cells else operation.name
        read = self.readers.get(operation.name)
        if read is None:
            raise Unsupported(f"{self}: {quote(operation.name)} is no operation that is known here")
        return read(operation)

    def _bare_instruction(self, *, loose: bool = False) -> Instruction:
        """Return an instruction without data. `loose`: its signals do not make writes visible."""
        return Instruction(self.number, self.verb, loose=loose)

    # ---- signals ----

    def _channel_type(self, operation: Inner) -> str:
        if operation.channel_type not in (MEMORY, PORT):
            raise Invalid(f"{self}: does nothing on channels of type {quote(operation.channel_type)}; memory or port")
        return operation.channel_type

    def _read_signal(self, operation: Inner) -> list[BlockItem]:
        """Translate signals and waits. Names with rlx ("relaxed") do not make writes visible: they are loose."""
        kind, name = self._channel_type(operation), operation.name
        if not operation.channel_ids:
            return []
        if kind == PORT:
            threads = ThreadTasks(
                [self._port_task(channel_id, is_wait=name.endswith("wait")) for channel_id in operation.channel_ids]
            )
            return [BlockItem(self._bare_instruction(), threads)]
        key = name, tuple(operation.channel_ids)
        cached_threads = self.threads_of.get(key)
        if cached_threads is None:
            cached_threads = self.threads_of[key] = ThreadTasks(
                self._memory_tasks(operation.channel_ids, is_wait=name.endswith("wait"))
            )
        return (
            [BlockItem(self._bare_instruction(loose=name.startswith("rlx")), cached_threads)]
            if cached_threads.tasks
            else []
        )

    def _memory_tasks(self, ids: list[int], *, is_wait: bool) -> list[ThreadTask]:
        """Return the tasks of memory channels, without signals that no rank can receive."""
        tasks = []
        for channel_id in ids:
            channel = self.names.channel(self, MEMORY, channel_id)
            semaphore = self.wiring.signal(MEMORY, self.rank, channel, is_wait=is_wait)
            if semaphore >= 0:  # -1: the peer has no such channel
                tasks.append(ThreadTask(acquire=(semaphore,)) if is_wait else ThreadTask(release=(semaphore,)))
        return tasks

    def _port_task(self, channel_id: int, *, is_wait: bool) -> ThreadTask:
        """Return the task of a port channel: a wait is the thread's own, a signal a request that the proxy performs."""
        channel = self.names.channel(self, PORT, channel_id)
        semaphore = self.wiring.signal(PORT, self.rank, channel, is_wait=is_wait)
        if is_wait:
            return ThreadTask(acquire=(semaphore,))
        release = (semaphore,) if semaphore >= 0 else ()
        return ThreadTask(port=self._proxy_of(channel), later=replace(self._bare_instruction(), release=release))

    def _read_semaphores(self, operation: Inner) -> list[BlockItem]:
        numbers = [self.wiring.local[self.rank][number] for number in operation.semaphore_ids or ()]
        is_wait = operation.name == "sem_acquire"
        tasks = [ThreadTask(acquire=(s,)) if is_wait else ThreadTask(release=(s,)) for s in numbers]
        return [BlockItem(self._bare_instruction(), ThreadTasks(tasks))] if tasks else []

    def _proxy_of(self, channel: int) -> int:
        """Return the block of the machine for the proxy of a port channel, which is outside the kernel (detached)."""
        if channel not in self.ports:
            self.ports[channel] = self.machine.block(self.rank, f"proxy of port {channel}", detached=True)
        return self.ports[channel]

    def _read_flush(self, operation: Inner) -> list[BlockItem]:
        count = len(operation.dst_buff or ())
        if count > len(operation.channel_ids or ()):
            raise Invalid(f"{self}: flushes {count} channels, one for each destination, and names fewer")
        channels = [self.names.channel(self, PORT, channel_id) for channel_id in (operation.channel_ids or ())[:count]]
        tasks = [ThreadTask(port=self._proxy_of(channel), flush=True) for channel in channels]
        return [BlockItem(self._bare_instruction(), ThreadTasks(tasks))] if tasks else []

    # ---- places ----

    def _own_range(self, operation: Inner, size: int) -> tuple[int, int]:
        """Return the first cell, counted from the begin of a run of `size` chunks, and the number of cells that this
        thread block handles of it in this turn."""
        width = self.wiring.width
        if self.window.cells:
            return self.window.at * self.window.cells, self.window.cells
        # A group of `tbg_size` thread blocks shares the cells: each handles an equal run, as `width` is such that
        # tbg_size divides the cells (`_find_widths` in read.py).
        cells, group = size * width, operation.tbg_info
        if group is None:
            return 0, cells
        return cells // group.tbg_size * group.tb_id, cells // group.tbg_size

    def _scratch_offset(self, kind: str | None, skip: int) -> int:
        """Return the offset in a buffer of type `kind` ("s": scratch). A pipeline's turns reuse scratch cyclically."""
        if kind != "s":
            return skip
        if self.window.cells:
            return skip % self.wiring.scratch_width
        # `wiring.scratch_width`: cells of scratch per chunk, fewer than `width` if the turns of a pipeline reuse them.
        if self.wiring.scratch_width != self.wiring.width:
            raise Unsupported(f"{self}: beside a pipeline, scratch that is reused has no place for whole chunks")
        return skip

    def _local_cell(self, place: Buffer, size: int, skip: int) -> int:
        """Return the first cell that is handled of a place of this rank: `skip` cells behind its begin.

        `size`: chunks from there on, which must exist. It may be that of the other end of the operation.
        """
        return self._cell_here(place.type, place.index, size, skip)

    def _cell_here(self, kind: str | None, index: int, size: int, skip: int) -> int:
        """Return what `_local_cell` does, for chunk `index` of this rank's buffer `kind`."""
        if kind is None:
            raise Invalid(f"{self}: lacks the type of a buffer of its own")
        first = self.wiring.cells(self, rank=self.rank, owner=self.rank, kind=kind, index=index, size=size)
        return first + self._scratch_offset(kind, skip)

    def _remote_cell(self, place: Buffer, size: int, skip: int, kind: str = MEMORY) -> int:
        """Return what `_local_cell` does, for a place of another rank, which channels of type `kind` reach."""
        rank, buffer = self.names.buffer(self, kind, place.buffer_id)
        if buffer == "s" and self.wiring.file.use_double_scratch_buffer:
            raise Invalid(
                f"{self}: with use_double_scratch_buffer a rank uses two halves of its scratch, "
                "but others write to the first"
            )
        first = self.wiring.cells(self, rank=self.rank, owner=rank, kind=buffer, index=place.index, size=size)
        return first + self._scratch_offset(buffer, skip)

    def _packet_cell(self, place: Buffer, size: int, skip: int, *, far: str = "") -> int:
        """Return the first cell of packets in scratch of this rank; with `far`, of another by channels of that type."""
        rank, buffer = self.names.buffer(self, far, place.buffer_id) if far else (self.rank, place.type)
        return self.wiring.packet_cells(self, rank, buffer, place.index, size) + skip

    def _source_buffers(self, operation: Inner, min_count: int = 1) -> list[Buffer]:
        if len(operation.src_buff or ()) < min_count:
            raise Invalid(f"{self}: needs {min_count} in src_buff, has {len(operation.src_buff or ())}")
        return operation.src_buff or []

    def _target_buffers(self, operation: Inner, min_count: int = 1) -> list[Buffer]:
        if len(operation.dst_buff or ()) < min_count:
            raise Invalid(f"{self}: needs {min_count} in dst_buff, has {len(operation.dst_buff or ())}")
        return operation.dst_buff or []

    def _first_ends(self, operation: Inner) -> tuple[Buffer, Buffer, int, int, int]:
        """Return the first source and target, the size of the source, and the run of it that is handled here (first
        cell, number of cells)."""
        (source, *_), (target, *_) = self._source_buffers(operation), self._target_buffers(operation)
        return source, target, source.size, *self._own_range(operation, source.size)

    def _data_items(
        self, count: int, read: Sequence[int], write: Sequence[int], flags: Sequence[int] = (),
        marks: Sequence[int] = (),
    ) -> list[BlockItem]:  # fmt: skip
        """Return the item that reads and writes `count` cells from each of these first cells on; none if `count` is 0.

        `flags`, `marks`: first cells of the packets that it waits for, and of those that it writes.
        """
        if not count:
            return []
        instruction = Instruction(self.number, self.verb, count, tuple(read), tuple(write))
        # Calls alternate between the halves of a double scratch buffer, so packets may arrive before a rank has begun
        # (`ahead`).
        instruction.ahead = bool(marks) and self.wiring.file.use_double_scratch_buffer
        return [
            BlockItem(
                instruction,
                threads=None,
                flags=[(cell, count) for cell in flags],
                marks=[(cell, count) for cell in marks],
            )
        ]

    # ---- data ----

    def _read_put(self, operation: Inner) -> list[BlockItem]:
        if operation.channel_type == PORT:
            return self._read_port_put(operation)
        if operation.channel_type != MEMORY:
            raise Invalid(f"{self}: puts by channels of type {quote(operation.channel_type)}; memory or port")
        targets = self._target_buffers(operation)
        sources = self._source_buffers(operation, len(targets))
        items = []
        for source, target in zip(sources, targets, strict=False):
            # skip: cells of the place that come before this thread block's
            skip, count = self._own_range(operation, target.size)
            read = self._cell_here(sources[0].type, source.index, target.size, skip)
            items += self._data_items(count, (read,), (self._remote_cell(target, target.size, skip),))
        return items

    def _read_port_put(self, operation: Inner) -> list[BlockItem]:
        targets = self._target_buffers(operation)
        sources, ids = self._source_buffers(operation, len(targets)), operation.channel_ids or []
        if len(ids) < len(targets):
            raise Invalid(f"{self}: {len(targets)} destinations, but {len(ids)} channels")
        tasks = []
        for source, target, channel_id in zip(sources, targets, ids, strict=False):
            channel = self._port_to(target, channel_id)
            skip, count = self._own_range(operation, target.size)
            release = () if operation.name == "put" else (self.wiring.signal(PORT, self.rank, channel, is_wait=False),)
            later = Instruction(
                self.number, self.verb, count, (self._local_cell(source, target.size, skip),),
                (self._remote_cell(target, target.size, skip, PORT),), release=tuple(s for s in release if s >= 0),
            )  # fmt: skip
            tasks.append(ThreadTask(port=self._proxy_of(channel), later=later, flush=operation.name == "pwsf"))
        return [BlockItem(self._bare_instruction(), ThreadTasks(tasks))]

    def _port_to(self, target: Buffer, channel_id: int) -> int:
        """Return the channel of a port that leads to the rank of a destination."""
        channel = self.names.channel(self, PORT, channel_id)
        peer, _ = self.wiring.peers[PORT, self.rank][channel]
        owner, _ = self.names.buffer(self, PORT, target.buffer_id)
        if owner != peer:
            raise Invalid(f"{self}: its channel leads to rank {peer}, its destination is another's")
        return channel

    def _read_get(self, operation: Inner) -> list[BlockItem]:
        sources = self._source_buffers(operation)
        targets, items = self._target_buffers(operation, len(sources)), []
        for source, target in zip(sources, targets, strict=False):
            skip, count = self._own_range(operation, source.size)
            # The kernel exchanges the two indexes: model what it does and name it in errors.
            if source.index != target.index:
                self.verb = f"{operation.name}, which takes the two indexes one for the other"
            into = Buffer(source.index, source.size, target.type)
            origin = Buffer(target.index, source.size, None, source.buffer_id)
            items += self._data_items(
                count, [self._remote_cell(origin, source.size, skip)], [self._local_cell(into, source.size, skip)]
            )
        return items

    def _read_copy(self, operation: Inner) -> list[BlockItem]:
        source, target, size, skip, count = self._first_ends(operation)
        return self._data_items(count, [self._local_cell(source, size, skip)], [self._local_cell(target, size, skip)])

    def _read_reduce(self, operation: Inner) -> list[BlockItem]:
        """Translate reductions: rre, rres read all but the first source from other ranks; res, rres write so."""
        sources, targets = self._source_buffers(operation), self._target_buffers(operation)
        size = sources[0].size
        skip, count = self._own_range(operation, size)
        reads_remote, writes_remote = operation.name.startswith("rr"), operation.name.endswith("s")
        # In a pipeline the kernel adds to source i > 0 the offset of destination i, not its own. The two differ where
        # scratch is reused and one of both is scratch. `re` has no destination i > 0, so the kernel adds the offset of
        # a place outside scratch, which is wrong if source i is scratch. For `res` the kernel takes the number of a
        # remote buffer for the type of the destination, which may make it scratch or not, so no source is safe.
        is_shifted = writes_remote or any(place.type == "s" for place in sources[1:])
        if self.window.cells and self.wiring.file.reuse_resources and not reads_remote and is_shifted:
            raise Unsupported(
                f"{self}: in a pipeline that reuses scratch the kernel reads sources at the offsets of destinations"
            )
        read = [self._local_cell(sources[0], size, skip)]
        read += [(self._remote_cell if reads_remote else self._local_cell)(place, size, skip) for place in sources[1:]]
        write = [self._local_cell(targets[0], size, skip)]
        write += [self._remote_cell(place, size, skip) for place in targets[1:]] if writes_remote else []
        return self._data_items(count, read, write)

    # ---- packets ----

    def _refuse_pipelined(self, operation: Inner) -> None:
        """Refuse packets within pipelines, and operations on packets that name a port but would not use it."""
        if operation.channel_type == PORT and operation.name not in ("ppkt", "rppkt"):
            raise Unsupported(f"{self}: writes packets by memory channels, whatever their type; use these")
        if self.window.cells:
            raise Unsupported(f"{self}: packets know nothing of pipelines")

    def _read_put_packets(self, operation: Inner) -> list[BlockItem]:
        self._refuse_pipelined(operation)
        targets = self._target_buffers(operation)
        sources, items = self._source_buffers(operation, len(targets)), list[BlockItem]()
        if operation.channel_type == PORT:
            return self._port_packets(operation, sources[: len(targets)])
        for source, target in zip(sources, targets, strict=False):
            skip, count = self._own_range(operation, source.size)
            mark = self._packet_cell(target, source.size, skip, far=MEMORY)
            read = self._cell_here(sources[0].type, source.index, source.size, skip)
            items += self._data_items(count, (read,), (mark,), marks=(mark,))
        return items

    def _port_packets(self, operation: Inner, sources: Sequence[Buffer]) -> list[BlockItem]:
        """Translate packets that ports send from scratch: thread i sends those of source i."""
        targets, ids, tasks = operation.dst_buff or [], operation.channel_ids or [], []
        if len(ids) < len(targets):
            raise Invalid(f"{self}: {len(targets)} destinations, but {len(ids)} channels")
        for source, target, channel_id in zip(sources, targets, ids, strict=False):
            channel = self._port_to(target, channel_id)
            skip, count = self._own_range(operation, source.size)
            mark = self._packet_cell(target, source.size, skip, far=PORT)
            later = Instruction(self.number, self.verb, count, (self._packet_cell(source, source.size, skip),), (mark,))
            later.ahead = self.wiring.file.use_double_scratch_buffer
            tasks.append(ThreadTask(port=self._proxy_of(channel), later=later, marks=((mark, count),)))
        return [BlockItem(self._bare_instruction(), ThreadTasks(tasks))]

    def _read_pass_packets(self, operation: Inner) -> Sequence[BlockItem | None]:
        """Translate the forwarding of packets that arrived in scratch."""
        self._refuse_pipelined(operation)
        source, _, size, skip, count = self._first_ends(operation)
        flag = self._packet_cell(source, size, skip)
        if operation.channel_type == PORT:
            arrival = self._data_items(count, [flag], write=[], flags=[flag])
            return [*arrival, None, *self._port_packets(operation, [source] * len(operation.dst_buff or ()))]
        marks = [self._packet_cell(place, size, skip, far=MEMORY) for place in self._target_buffers(operation)]
        return self._data_items(count, [flag], marks, flags=[flag], marks=marks)

    def _read_unpack(self, operation: Inner) -> list[BlockItem]:
        self._refuse_pipelined(operation)
        source, target, size, skip, count = self._first_ends(operation)
        flag = self._packet_cell(source, size, skip)
        return self._data_items(count, (flag,), (self._local_cell(target, size, skip),), flags=(flag,))

    def _read_pack(self, operation: Inner) -> list[BlockItem]:
        self._refuse_pipelined(operation)
        source, target, size, skip, count = self._first_ends(operation)
        mark = self._packet_cell(target, size, skip)
        return self._data_items(count, [self._local_cell(source, size, skip)], [mark], marks=[mark])

    def _read_reduce_packets(self, operation: Inner) -> list[BlockItem]:
        """Translate reductions of packets. The first source and the first destination are data, the others packets.

        With a "c" in the name ("copy") the second destination is on this rank; with an "s" ("send") all destinations
        after these are on other ranks.
        """
        self._refuse_pipelined(operation)
        copies, sends = int(operation.name in ("recpkt", "recspkt")), operation.name in ("respkt", "recspkt")
        sources, targets = self._source_buffers(operation), self._target_buffers(operation, 1 + copies)
        size = sources[0].size
        skip, count = self._own_range(operation, size)
        flags = [self._packet_cell(place, size, skip) for place in sources[1:]]
        read = [*flags, self._local_cell(sources[0], size, skip)]
        marks = [self._packet_cell(place, size, skip) for place in targets[1 : 1 + copies]]
        marks += [self._packet_cell(place, size, skip, far=MEMORY) for place in targets[1 + copies :]] if sends else []
        write = [self._local_cell(targets[0], size, skip), *marks]
        return self._data_items(count, read, write, flags=flags, marks=marks)

    # ---- switches ----

    def _group_cells(self, place: Buffer, size: int, skip: int, *, packets: bool = False) -> list[int]:
        """Return the first cells of a place, one for each rank of a group."""
        kind_number, ranks = self.names.group(self, place.switch_channel_id)
        kind = KINDS[kind_number]
        if packets:
            return [self.wiring.packet_cells(self, rank, kind, place.index, size) + skip for rank in ranks]
        if kind == "s" and self.wiring.file.use_double_scratch_buffer:
            raise Invalid(f"{self}: with use_double_scratch_buffer switches find scratch in one place only")
        skip = self._scratch_offset(kind, skip)
        return [
            self.wiring.cells(self, rank=self.rank, owner=rank, kind=kind, index=place.index, size=size) + skip
            for rank in ranks
        ]

    def _read_switch_reduce(self, operation: Inner) -> list[BlockItem]:
        source, target, size, skip, count = self._first_ends(operation)
        return self._data_items(count, self._group_cells(source, size, skip), self._group_cells(target, size, skip))

    def _read_switch_store(self, operation: Inner) -> list[BlockItem]:
        source, target, size, skip, count = self._first_ends(operation)
        return self._data_items(count, [self._local_cell(source, size, skip)], self._group_cells(target, size, skip))

    def _read_switch_packets(self, operation: Inner) -> list[BlockItem]:
        self._refuse_pipelined(operation)
        source, target, size, skip, count = self._first_ends(operation)
        flag = self._packet_cell(source, size, skip)
        marks = self._group_cells(target, size, skip, packets=True)
        return self._data_items(count, [flag], marks, flags=[flag], marks=marks)
