"""Write schedules by hand: `w[rank, buffer, index]` is a place, `.copy_to` and `.reduce_to` transfer its data.

A *place* is a position in a rank's buffer. In this file "block" alone means a `with` block of the user's program:
`Writing` is the outer one, `with antiphon.write(...) as w:`; `Simultaneous` are inner ones, whose statements happen in
one step; `Places` are the places that statements name. Each statement is checked at once, with the user's line in the
error, and becomes rows: one transfer of one chunk each. A row gets the earliest step that its data allow (timing.py);
the rows of an inner block form a group (`StepRows`), which gets one step. When the outer block ends, all rows become a
schedule (rows.py), which is verified. arguments.py reads arguments, layout.py maps places to chunks, and lines.py finds
the user's line.

Example, a broadcast from rank 0 on a line of three ranks. The second copy reads what the first wrote: it is in step 1.

    with antiphon.write("broadcast", "line:ranks=3") as w:
        w[0, "input", 0].copy_to(1).copy_to(2)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from types import CodeType, TracebackType
from typing import Self, SupportsIndex

from antiphon.author.arguments import Arguments, Index, Ranks
from antiphon.author.layout import INPUT, OUTPUT, SCRATCH, Layout, Place
from antiphon.author.lines import SourceLine, current_code, current_line
from antiphon.author.rows import StepRows, WrittenRow, explain_fault, schedule_of
from antiphon.author.timing import Clock, Move, PlaceKey
from antiphon.core.collective import Collective
from antiphon.core.plan import Entry, Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported, list_first, quote
from antiphon.select import measure

WRITTEN = "written"  # the planner of such a schedule, in the provenance of plans
MAX_ROWS = 2**24  # transfers, some GB of Python objects: a loop that does not end is stopped


class Places:
    """Places in buffers, as `w[rank, buffer, index]` returns them, to be copied or reduced to other ranks.

    They name places, not values: a statement sends what the places hold at that time. It refuses a place that holds
    another chunk than when the object was made (`_chunks`, one per place).
    """

    def __init__(self, writing: Writing, places: list[Place], chunks: list[int], step_group: int = -1) -> None:
        self._writing, self._places, self._chunks = writing, places, chunks
        self._step_group = step_group  # the group of rows (StepRows.number) that writes these places; -1: none

    def copy_to(
        self, rank: Ranks, buffer: str | None = None, index: SupportsIndex | None = None, *,
        via: Iterable[SupportsIndex] | None = None,
    ) -> Places:  # fmt: skip
        """Copy these chunks to another rank (or to several).

        Parameters
        ----------
        rank
            Destination rank, or several; the own rank is allowed.
        buffer
            "output" and "input" are the rank's places for the chunk, any other name is scratch of that rank. Default:
            where the chunk belongs: the output, else the input, else scratch named "scratch".
        index
            Index in the buffer of the first chunk from each source rank; its others follow. Default: in outputs and
            inputs the place of the chunk, in scratch its number: j * chunks + k for chunk k of the collective's block
            j.
        via
            Links to use, by their numbers on the machine. Default: the only path, or the shortest.

        Returns
        -------
        Places
            The places at the destination, from which the chunks can be forwarded.

        Raises
        ------
        Invalid
            An argument is wrong; the message names the line of the statement.

        Examples
        --------
        >>> from antiphon.api.plans import write
        >>> with write("broadcast", "line:ranks=3") as w:
        ...     print(w[0, "input", 0].copy_to(1).copy_to(2))
        w[2, 'output', 0]
        """
        return self._writing._send_places(self, copy=True, to=rank, buffer=buffer, index=index, via=via)

    def reduce_to(
        self, rank: Ranks, buffer: str | None = None, index: SupportsIndex | None = None, *,
        via: Iterable[SupportsIndex] | None = None,
    ) -> Places:  # fmt: skip
        """Reduce these chunks into the same chunks of another rank (or of several); an empty place is overwritten.

        Parameters
        ----------
        rank, buffer, index, via
            As for `copy_to`.

        Returns
        -------
        Places
            The places at the destination.
        """
        return self._writing._send_places(self, copy=False, to=rank, buffer=buffer, index=index, via=via)

    @property
    def places(self) -> tuple[Place, ...]:
        """Rank, buffer and index of each place."""
        return tuple(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Places]:
        for place, chunk in zip(self._places, self._chunks, strict=True):
            yield Places(self._writing, [place], [chunk], self._step_group)

    def __repr__(self) -> str:
        return list_first(self._places, limit=4) or "no places"


class Simultaneous:
    """Statements that happen at once: `with w.step():` (`fixed`: its step is known when it begins),
    `with w.together():` (the earliest step possible, known when it ends), and `with w.joint():` (`joint`: like
    `together`, or within the step around it).
    """

    def __init__(self, writing: Writing, fixed: bool, joint: bool = False) -> None:
        self._writing, self._fixed, self._joint = writing, fixed, joint
        self._begins_step = False  # whether this block begins its step, and so ends it; a joint may be inside a step

    def __enter__(self) -> None:
        self._begins_step = self._fixed or self._writing._step_rows is None
        self._writing._enter_group(self._fixed, self._joint)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writing._leave_group(self._begins_step, self._joint, failed=kind is not None)


class Writing:
    """A schedule that is being written, as returned by `antiphon.write` and used in a `with` block.

    `w[rank, buffer, index]` are places: of one rank or of several, of "input", "output" or of scratch by any other
    name, one or a slice (`w[0, "input", 2:4]`); without an index all of an input or output. When the block ends, the
    schedule is verified (unless `verify` is False); then `.schedule`, `.plan` and `.lines` are available. `chunks`:
    chunks per block of the collective; `pieces`: slices that every chunk is sent in.

    Examples
    --------
    >>> from antiphon.api.plans import write
    >>> with write("allgather", "ring:ranks=2") as w:
    ...     with w.together():
    ...         right, left = w[0, "input", 0].copy_to(1), w[1, "input", 0].copy_to(0)
    >>> w.schedule.steps
    1
    """

    def __init__(
        self, collective: Collective, topology: Topology, chunks: int = 1, pieces: int = 1, verify: bool = True
    ) -> None:
        self.collective, self.topology, self.chunks, self.pieces = collective, topology, chunks, pieces
        self.ranks = collective.members  # the ranks that take part, for loops in the user's program
        self._verify = verify
        self._layout = Layout(collective, chunks)
        self._arguments = Arguments(self._layout, collective.ranks, topology.links, self._make_error)
        self._clock = Clock()
        self._rows: list[WrittenRow] = []
        self._scratch_chunks: dict[PlaceKey, int] = {}  # the chunk at each place of scratch
        self._with_function: CodeType | None = None  # code of the user's function that holds the block, for lines
        self._line = SourceLine(file="", number=0)  # of the `with` statement, once the block begins
        self._open = self._ended = False
        self._step_rows: StepRows | None = None  # the rows of the step that is being written as a whole
        # The line of a w.together() or w.joint() whose `with` has not begun yet; any other statement is an error then
        self._pending_group: SourceLine | None = None
        self._step_groups = self._joints = 0  # the numbers of groups and joints used so far
        self._joint = -1  # number of the joint that is being written, -1: none

    # ---- the block ----

    def __enter__(self) -> Self:
        if self._open or self._ended:
            raise Invalid(f"{current_line()}: this schedule is written already; begin another with antiphon.write")
        self._with_function, self._line, self._open = current_code(), current_line(), True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._open = False
            return
        try:
            self._need_open()  # raises if the last statement was a w.together() or w.joint() without `with`
        finally:
            self._open = False
        self._close_step()
        self._ended = True
        if self._verify:
            self._check_schedule()

    def _check_schedule(self) -> None:
        """Verify the schedule. Raises Invalid with the lines that are at fault."""
        fault = verify(self.schedule, self.topology).fault
        if fault is not None:
            raise Invalid(explain_fault(fault, self._rows, self._layout, self._line))

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule, once the block has ended."""
        self._need_end("schedule")
        provenance = {"planner": WRITTEN, "options": {"chunks": self.chunks, "pieces": self.pieces}}
        return schedule_of(
            self._rows, self._layout, self.collective, self.topology, pieces=self.pieces, provenance=provenance
        )

    @cached_property
    def plan(self) -> Plan:
        """The plan of this schedule for all sizes, verified, with its distance from the bounds."""
        self._need_end("plan")
        self._check_schedule()
        claims = {"planner": WRITTEN, **measure(self.schedule, self.topology)}  # figures of the schedule by their names
        return Plan(self.topology, self.collective, (Entry(start=0, stop=None, schedule=self.schedule, claims=claims),))

    @property
    def lines(self) -> tuple[str, ...]:
        """The source line of every row of the schedule, as file:line."""
        self._need_end("lines")
        return tuple(str(row.line) for row in self._rows)

    def _need_end(self, attribute: str) -> None:
        """Raise Invalid unless the block has ended without an error."""
        if not self._ended:
            why = "the block has not ended yet" if self._open else "no block of `with` has ended without an error"
            raise Invalid(f"{current_line()}: w.{attribute} is not there: {why}")

    # ---- steps ----

    def step(self) -> Simultaneous:
        """Begin a step after everything written so far, until the next `w.step()`, or to the end of `with w.step():`.

        All transfers of a step read the data of its beginning. After a block, steps follow from data again, none before
        the end of this one.
        """
        self._need_open()
        if self._step_rows is not None and not self._step_rows.until_next_step:
            raise self._make_error("a step within a step; end the one before")
        self._close_step()
        self._begin_step(self._clock.end)
        return Simultaneous(self, fixed=True)

    def together(self) -> Simultaneous:
        """Put the statements of a `with w.together():` block into one step, the earliest possible for all of them.

        They read the data of its beginning, so two ranks can exchange data.
        """
        self._need_open()
        self._pending_group = current_line(self._with_function)
        return Simultaneous(self, fixed=False)

    def joint(self) -> Simultaneous:
        """Make the statements of a `with w.joint():` block one multicast or reduction by switches.

        They are copies of one place to several ranks, or reductions of several places into one, in one step; several
        joints may be in one `w.step()`.
        """
        self._need_open()
        self._pending_group = current_line(self._with_function)
        return Simultaneous(self, fixed=False, joint=True)

    def _enter_group(self, fixed: bool, joint: bool) -> None:
        """Begin the `with` block of a step (`fixed`), a joint, or statements together."""
        self._pending_group = None
        self._need_open()
        if fixed:  # `step` has begun the step already, as if it lasted until the next one
            assert self._step_rows is not None
            self._step_rows.until_next_step = False
            return
        if joint and self._joint >= 0:
            raise self._make_error("a joint within a joint; end the one before")
        if self._step_rows is not None and not joint:
            raise self._make_error("all of a step is together already; leave out w.together() here")
        if self._step_rows is None:
            self._begin_step(step=None)
        if joint:
            self._joint = self._joints
            self._joints += 1

    def _leave_group(self, begins_step: bool, joint: bool, failed: bool) -> None:
        """End a `with` block.

        `begins_step`: the block began its step, which ends with the block. `failed`: the block raised an error, so the
        rows of the step are dropped.
        """
        if joint:
            self._joint = -1
        if begins_step and failed:
            self._step_rows = None
        elif begins_step:
            self._close_step()

    def _begin_step(self, step: int | None) -> None:
        """Begin to collect rows of one step; None: the earliest possible for all of them."""
        self._step_groups += 1
        self._step_rows = StepRows(self._step_groups, step, until_next_step=step is not None)

    def _close_step(self) -> None:
        """Give the rows that were collected for one step their step; nothing if there is no such step."""
        step_rows, self._step_rows = self._step_rows, None
        if step_rows is None:
            return
        self._place_rows(step_rows.rows, step_rows.step)
        if step_rows.step is not None:  # a w.step(): all later statements come after it
            self._clock.floor = self._clock.end

    def _place_rows(self, rows: list[WrittenRow], step: int | None = None) -> None:
        """Put rows into one step (None: the earliest possible), and note which chunk each scratch place then holds."""
        row_step = self._clock.schedule_moves([row.move for row in rows], step)
        for row in rows:
            row.step = row_step
            if row.move.dst.scratch:
                self._scratch_chunks[row.move.dst] = row.chunk
        self._rows += rows
        if len(self._rows) > MAX_ROWS:
            raise Unsupported(f"{current_line(self._with_function)}: more than {MAX_ROWS} transfers; write fewer")

    # ---- statements ----

    def __getitem__(self, key: tuple[Ranks, str] | tuple[Ranks, str, Index]) -> Places:
        self._need_open()
        if not isinstance(key, tuple) or len(key) not in (2, 3):
            raise self._make_error(f"expected w[rank, buffer] or w[rank, buffer, index], got {quote(key)}")
        ranks, buffer_name, *index_or_none = key
        buffer = self._arguments.buffer(buffer_name)
        chunks: dict[Place, int] = {}
        for rank in self._arguments.ranks(ranks):
            for index in self._arguments.indices(tuple(index_or_none), rank, buffer):
                place = Place(rank, buffer, index)
                chunks[place] = self._chunk_at(place)
        return Places(self, list(chunks), list(chunks.values()))

    def _send_places(
        self, source: Places, copy: bool, to: Ranks, buffer: str | None, index: SupportsIndex | None,
        via: Iterable[SupportsIndex] | None,
    ) -> Places:  # fmt: skip
        """Carry out one statement: send every source to every rank, in the order of `to`."""
        self._need_open()
        self._check_current(source)
        ranks = self._arguments.ranks(to)
        name = None if buffer is None else self._arguments.buffer(buffer)
        links = None if via is None else self._arguments.links(via)
        pairs = list(zip(source._places, source._chunks, strict=True))
        starts = self._start_indices(source, name, index)
        targets = [
            self._target_place(place, chunk, rank, name, start, copy)
            for rank in ranks
            for (place, chunk), start in zip(pairs, starts, strict=True)
        ]
        if copy and len(set(targets)) < len(targets):
            raise self._make_error("several places are copied to one; each would replace the one before")
        line, new_rows = current_line(self._with_function), []
        for (src, chunk), dst in zip(pairs * len(ranks), targets, strict=True):
            move = self._make_move(src, dst, copy)
            if move is not None:
                new_rows.append(WrittenRow(move, chunk, src, dst, line, links, self._joint))
        if self._step_rows is None:
            for row in new_rows:
                self._place_rows([row])
        elif clash := self._step_rows.find_conflict(new_rows):
            raise self._make_error(clash)
        else:
            self._step_rows.add(new_rows)
        step_group = self._step_rows.number if self._step_rows is not None and new_rows else -1
        destinations = dict(zip(targets, [chunk for _ in ranks for _, chunk in pairs], strict=True))  # each place once
        return Places(self, list(destinations), list(destinations.values()), step_group)

    def _start_indices(self, source: Places, buffer: str | None, index: SupportsIndex | None) -> list[int | None]:
        """Return the index of each source at the destination: of the sources of one rank the first gets `index`, the
        others the next ones. Without `index` (None) each has its chunk's default place (None).
        """
        if index is None:
            return [None] * len(source)
        if buffer is None:
            raise self._make_error("an index needs its buffer; name it, too")
        start, sent_from = self._arguments.start(index), Counter[int]()
        starts: list[int | None] = []
        for place in source._places:
            starts.append(start + sent_from[place.rank])
            sent_from[place.rank] += 1
        return starts

    def _check_current(self, source: Places) -> None:
        """Raise Invalid if one of these places holds another chunk now, or gets its data only in this very step."""
        # all transfers of a step read at its beginning, so data that arrive in it cannot be sent on
        if self._step_rows is not None and source._step_group == self._step_rows.number:
            raise self._make_error(f"{source!r} arrives in this very step; send it on in a later one")
        for place, chunk in zip(source._places, source._chunks, strict=True):
            if self._chunk_at(place) != chunk:
                raise self._make_error(f"{place} holds another chunk by now; use it before it is overwritten")

    def _make_move(self, src: Place, dst: Place, copy: bool) -> Move | None:
        """Return the transfer, or None if source and destination are one place, as a chunk's input and output are."""
        move = Move(self._place_key(src), self._place_key(dst), copy)
        if move.src != move.dst:
            return move
        if copy:
            return None
        raise self._make_error(f"{src} and {dst} are one place, which cannot be added to itself; use scratch")

    def _target_place(
        self, src: Place, chunk: int, rank: int, buffer: str | None, index: int | None, copy: bool
    ) -> Place:
        """Return the place for a chunk at the destination rank. Raises Invalid if the named one cannot hold it."""
        if buffer is None:
            return self._layout.default_place(rank, chunk) or self._layout.scratch_place(rank, SCRATCH, chunk)
        if buffer in (INPUT, OUTPUT):
            own_place = self._layout.buffer_place(rank, buffer, chunk)
            if own_place is not None and index in (None, own_place.index):
                return own_place
            no_place = f"rank {rank} has no place for it there; use scratch"
            reason = f"its place there is {own_place}" if own_place else no_place
            index_text = "" if index is None else f", {index}"
            raise self._make_error(f"w[{rank}, {buffer!r}{index_text}] is not for the data of {src}: {reason}")
        place = self._layout.scratch_place(rank, buffer, chunk) if index is None else Place(rank, buffer, index)
        if not copy and self._scratch_chunks.get(self._place_key(place), chunk) != chunk:
            raise self._make_error(
                f"{place} holds another chunk than {src}, and only the same chunk of ranks can be added"
            )
        return place

    def _place_key(self, place: Place) -> PlaceKey:
        """Return the key of a place; a chunk's places in input and output are one."""
        if place.buffer in (INPUT, OUTPUT):
            return PlaceKey(place.rank, "", self._layout.chunk(place))
        return PlaceKey(place.rank, place.buffer, place.index)

    def _chunk_at(self, place: Place) -> int:
        """Return the chunk that the place holds now."""
        if place.buffer in (INPUT, OUTPUT):
            return self._layout.chunk(place)
        chunk = self._scratch_chunks.get(self._place_key(place))
        if chunk is None:
            raise self._make_error(f"nothing has been put into {place} yet")
        return chunk

    def _need_open(self) -> None:
        """Raise Invalid outside the block, or if a w.together() or w.joint() was not used with `with`."""
        if not self._open:
            why = "has ended" if self._ended else "has not begun; write `with antiphon.write(...) as w:`"
            raise self._make_error(f"the block of this schedule {why}")
        if self._pending_group is not None:
            raise Invalid(f"{self._pending_group}: w.together() and w.joint() are for `with`, and hold for its block")

    def _make_error(self, why: str) -> Invalid:
        return Invalid(f"{current_line(self._with_function)}: {why}")
