"""Serve the calls of one group of processes with the native engine: choose the page, cache plans, count calls.

A call is served in three steps, which `Comm` (NumPy) and `Calls` (PyTorch) take:

    serving.begin(kind, nbytes, ...)      # from now on every message carries this call
    page = serving.find(call)             # which program serves this collective and size; None: the library
    serving.run(page, unit, source, target)

A page of the book names a program (operations per rank, for any size). `run` turns it into a native plan for the size
of the call (`_prepare_plan`; the last MAX_PLANS are cached), which the C engine executes over the wire.

All processes of a group make the same calls in the same order. So a decision that depends on the call alone is the same
everywhere: the page, and whether a plan has to be made first (`fill`), which process 0 then does for all. As messages
carry the call that they belong to, a process that makes a different call gets an error instead of wrong data.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.choose import Call, Chooser, SizeChooser
from antiphon.errors import AntiphonError, Invalid, TimedOut
from antiphon.runtimes.engine.learned import LearnedLine, keep_learned
from antiphon.runtimes.engine.learner import PLANNED_SLICES
from antiphon.runtimes.engine.native import (
    MOVED,
    Engine,
    Mismatch,
    NativePlan,
    OpenProgram,
    TransportFailed,
    Warming,
    Wire,
)
from antiphon.runtimes.serve.auto_turns import Turns
from antiphon.runtimes.serve.book import UNEVEN, Book, Page, decode_book, encode_book
from antiphon.runtimes.serve.call_head import BOOK_BYTES, BOOK_LENGTH, CALL, CHOICE, END, CallHead
from antiphon.runtimes.serve.group_book import default_book
from antiphon.runtimes.serve.learning import Learners, sliced_name
from antiphon.runtimes.serve.ledger import CallLedger

Array = NDArray[Any]
# collectives with a block per rank in their largest buffer
SPLIT_KINDS = ("allgather", "reducescatter", "gather", "scatter", "alltoall")
# reasons of `why_not`
SLOWER, UNMEASURED = "measured to be slower than the library", "its size was not measured"
LEARNED = "learning tries the library, or found it faster"
MAX_PLANS = 64  # cached, each with its scratch
MAX_EARLY_PLANS = 16  # prepared before they are needed


class Serving:
    """The programs of a group over one wire (the connections between its processes). One call at a time.

    `book`: the first book, the same at all processes.
    `fill`: calls without a page get a plan for a fully connected machine, which process 0 makes and broadcasts.
    `base`: the program of that broadcast, needed with `fill` only.

    `chooser` returns the page of a call. It is `pages`, or a replacement that returns pages of the same book, the same
    at all processes. Calls carry no members: all are of this group.

    `timeout`, of all methods: seconds without any progress after which a call fails; 0: no limit.
    """

    def __init__(self, engine: Engine, wire: Wire, rank: int, book: Book, base: bytes, fill: bool) -> None:
        self.engine, self.wire, self.rank, self.ranks, self.fill = engine, wire, rank, book.ranks, fill
        self.ledger, self.book = CallLedger(), book
        self.broken = ""  # the reason once nothing can run any more
        self.agrees = False  # whether a call waits at its end until all processes have succeeded
        self.pages: SizeChooser[Page] = SizeChooser()
        self._runnable: SizeChooser[Page] = SizeChooser()  # without pages that are left to the library
        self.chooser: Chooser[Page] = self.pages
        self._programs: dict[bytes, OpenProgram] = {}  # by the bytes of the program
        self._program_of: dict[int, bytes] = {}  # by id of the page
        # by (id of the page, unit, itemsize, in place, slices); least recently used first
        self._plans: dict[tuple[int, int, int, bool, int], NativePlan] = {}
        self._planned_calls: set[tuple[str, int]] = set()  # (kind, root) for which a plan was made at once
        self._broadcast_program = base
        self._books: list[Book] = []  # in the order in which pages are searched
        self._turns: Turns | None = None
        self._prepared_plans: dict[tuple[int, int, int, bool, int], NativePlan] = {}  # plans for a book not yet in use
        self._warming: Warming | None = None
        self._allreduce_program = b""
        self._learners: Learners | None = None
        self._learned_path = ""
        self._slices = PLANNED_SLICES  # of the running call
        # the header of every message: the call, its stage, and a digest of the books; the wire reads it from `memory`
        self.head = CallHead(rank, encode_book(book))
        wire.calls(self.head.memory)
        # rebound when the group asks for plans, and once it has failed
        self.begin = self.head.begin  # bound directly: a good part of the cost of a small call
        self._add_book(book)

    def agree(self, timeout: float) -> None:
        """Wait until all processes have begun this call: needed if something other than the engine then serves it."""
        try:
            self.wire.agree(timeout)
        except (TransportFailed, TimedOut) as error:
            raise self._failed_error(error) from None
        finally:
            self._fail_if_stopped()

    def _failed_error(self, error: AntiphonError) -> AntiphonError:
        """Return the error of a call that failed, with the call named. Nothing can run afterwards."""
        mismatch = isinstance(error, Mismatch)
        text = self.head.explain_mismatch(self.wire.other_call()) if mismatch else f"{error} ({self.head.describe()})"
        self.fail(text)
        return type(error)(text)

    def _fail_if_stopped(self) -> None:
        if self.wire.stopped:
            self.fail("a handler of a signal ended it")

    def _add_book(self, book: Book) -> None:
        """Search the pages of this book after those of the books so far."""
        self._books.append(book)
        for page in book.pages:
            entry = (page, page.start, page.stop, page.kind, page.root)
            self.pages.add(*entry)
            if page.program >= 0:
                self._runnable.add(*entry)
                self._program_of[id(page)] = book.programs[page.program]

    def nbytes(self, kind: str, unit: int, itemsize: int) -> int:
        """Return the nbytes of a call with blocks of `unit` elements of `itemsize` bytes."""
        return unit * itemsize * (self.ranks if kind in SPLIT_KINDS else 1)

    def learn(self, program: bytes, earlier: Sequence[LearnedLine], path: str) -> None:
        """Choose among candidates for each call from now on (see learning). `program`: an allreduce.

        `earlier`: what earlier jobs have learned; `path`: the file to which process 0 writes at the end, "": none."""
        self._allreduce_program, self._learned_path = program, path

        def exchange(values: Array, timeout: float) -> None:
            self._combine_over_processes(values, "max", timeout)
            self.head.stage(CALL)

        def align(timeout: float) -> None:
            self.head.stage(CHOICE)
            self.agree(timeout)
            self.head.stage(CALL)

        def program_of(page: Page) -> bytes:
            return self._program_of[id(page)]

        self._learners = Learners(
            self.engine, self.ranks, self.ledger, exchange, align, program_of, self._open_program, earlier
        )

    def find(self, call: Call, timeout: float = 0.0, library: bool = True, learns: bool = False) -> Page | None:
        """Return the page of a call, or None for the library. `library`: whether the library supports the call.

        `learns`: the caller makes the call at once, and calls `record` if the library served it."""
        self._slices = PLANNED_SLICES
        # a call that the library does not support needs a page with a program
        page = (self.chooser if library else self._runnable).page(call)
        # plans of an ordered page combine in the same order at all sizes: another candidate could change the bits
        if page is not None and learns and self._learners is not None and call.nbytes and not page.ordered:
            pages = [other for book in self._books for other in book.pages]
            chosen, self._slices = self._learners.choose(page, call, pages, library, timeout)
            return chosen
        if page is not None:
            return page if page.program >= 0 else None
        key = (call.kind, call.root)
        if not self.fill or key in self._planned_calls:
            return None
        # no page: all processes get here at the same call, so process 0 can broadcast a plan
        book = self._make_default_book(call.kind, call.root, timeout)
        self._planned_calls.add(key)
        self._add_book(book)
        return self.find(call, timeout, library, learns)

    def why_not(self, call: Call) -> str:
        """Return the reason why `find` returned None."""
        page = self.chooser.page(call)
        if page is None:
            return "no schedule for it in the table"
        if self._learners is not None and page.program >= 0:
            return LEARNED
        return SLOWER if page.measured else UNMEASURED

    def record(self, seconds: float) -> None:
        """Record, for learning, how long the call of the last `find` took. `run` does so, too, so callers do it only
        where the library served the call."""
        if self._learners is not None:
            self._learners.record(seconds)

    def run(
        self, page: Page, unit: int, source: Array | None, target: Array, op: str = "sum", timeout: float = 0.0,
        counted: bool = True,
    ) -> None:  # fmt: skip
        """Execute the call that was begun; without a source it is in place. After an error nothing can run.

        `counted`: whether the ledger lists the call and learning uses its time.
        """
        nbytes, began = self.nbytes(page.kind, unit, target.dtype.itemsize), time.perf_counter()
        # an empty call moves no data, but still synchronizes, so that mismatches are noticed
        if nbytes:
            plan = self._prepare_plan(page, unit, target.dtype.itemsize, source is None)
            self._run_plan(plan, source, target, op, timeout)
            self._agree_at_end(timeout)
        else:
            self.agree(timeout)
        if not counted:
            return
        seconds = time.perf_counter() - began
        self.record(seconds)
        self.ledger.count(self.ledger.row(page.kind, sliced_name(page, self._slices), "antiphon"), nbytes, seconds)

    def uneven(self, source: int, target: int, lengths: Array, timeout: float) -> int:
        """Execute the call that was begun, an alltoall of uneven blocks; return its outcome (Wire.uneven).

        `source`, `target`: addresses of the buffers. `lengths`: bytes to, then from each rank, of shape (2, ranks).
        """
        began = time.perf_counter()
        try:
            outcome = self.wire.uneven(source, target, lengths, timeout)
        except (TransportFailed, TimedOut) as error:
            raise self._failed_error(error) from None
        finally:
            self._fail_if_stopped()
        if outcome == MOVED:
            self._agree_at_end(timeout)
            row = self.ledger.row("alltoall", "point to point", "antiphon")
            self.ledger.count(row, int(lengths[0].sum()), time.perf_counter() - began)
        return outcome

    @property
    def plans_uneven(self) -> bool:
        """Whether the books have plans for uneven alltoalls; the same at all processes."""
        return any(page.kind == UNEVEN and page.program >= 0 for book in self._books for page in book.pages)

    def gather(self, values: Array, timeout: float, library: bool = False) -> Array | None:
        """Return the values of all processes, a row each, by an allgather within the call that was begun, such as an
        alltoall whose sizes are not known yet. The ledger does not count it.

        `library`: whether the caller can gather by the library. None: it must, as no program serves this size. Without
        `library` that happens only if, without `fill`, the books have no program for it either."""
        rows = np.empty((self.ranks, len(values)), values.dtype)
        page = self.find(Call("allgather", self.nbytes("allgather", len(values), values.itemsize)), timeout, library)
        if page is None:
            return None
        self.run(page, len(values), values, rows.reshape(-1), "sum", timeout, counted=False)
        return rows

    def run_counts(self, counts: Array, source: Array, target: Array, timeout: float) -> bool:
        """Execute the call that was begun, an alltoall, if a page serves uneven ones of this size; return whether.

        `counts[r, s]`: bytes from process s to process r, the same at all processes. Blocks lie one after another in
        `source` and `target`, which are bytes."""
        began, nbytes = time.perf_counter(), int(max(counts.sum(axis=0).max(), counts.sum(axis=1).max()))
        page = self._runnable.page(Call(UNEVEN, nbytes))
        if page is None:
            return False
        plan = self._open_program(self._program_of[id(page)]).plan_counts(self.rank, counts)
        self._run_plan(plan, source, target, "sum", timeout)
        self._agree_at_end(timeout)
        row = self.ledger.row("alltoall", page.planner, "antiphon")
        self.ledger.count(row, int(counts[:, self.rank].sum()), time.perf_counter() - began)
        return True

    def _agree_at_end(self, timeout: float) -> None:
        """Wait for the success of all processes, if requested: one that fails closes its connections instead.

        Twice: a broken link that the call itself does not use may be noticed only by the first agreement. Then some
        processes pass it. But those that fail in it do not take part in the second, which so fails everywhere.
        """
        if self.agrees:
            self.head.stage(END)
            self.agree(timeout)
            self.agree(2 * timeout)  # others may come later by the timeout of the first
            self.head.stage(CALL)

    def _run_plan(self, plan: NativePlan, source: Array | None, target: Array, op: str, timeout: float) -> None:
        """Execute a plan. If it fails, the group is broken, as other processes may be anywhere in the call."""
        try:
            plan.run(source, target, self.wire, op, timeout)
        except (TransportFailed, TimedOut) as error:
            raise self._failed_error(error) from None
        finally:
            self._fail_if_stopped()

    def _prepare_plan(self, page: Page, unit: int, itemsize: int, in_place: bool) -> NativePlan:
        """Return the plan of a page for a size, from the cache or new."""
        key = (id(page), unit, itemsize, in_place, self._slices)
        plan = self._plans.pop(key, None)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                # dictionaries keep insertion order, and a plan that is used is inserted again
                del self._plans[next(iter(self._plans))]  # the least recently used
            plan = self._open_program(self._program_of[id(page)]).plan(self.rank, unit, in_place, slices=self._slices)
        self._plans[key] = plan
        return plan

    def _open_program(self, data: bytes) -> OpenProgram:
        program = self._programs.get(data)
        if program is None:
            program = self._programs[data] = self.engine.program(data)
        return program

    # ---- plans made when they are needed ----

    def _make_default_book(self, kind: str, root: int, timeout: float) -> Book:
        """Return a book for calls of a kind, which process 0 makes and broadcasts within the same call."""
        data = b""
        if self.rank == 0:
            try:
                data = b"+" + encode_book(default_book(kind, self.ranks, root, near=self.wire.near))
            except AntiphonError as error:
                data = b"-" + str(error).encode()
        # two broadcasts: the length, then the book; "+" and "-" mark success and failure
        size = np.array([len(data)], np.int64)
        self._broadcast_bytes(size, timeout, BOOK_LENGTH)
        buffer = np.frombuffer(data, np.uint8).copy() if self.rank == 0 else np.zeros(int(size[0]), np.uint8)
        self._broadcast_bytes(buffer, timeout, BOOK_BYTES)
        data = buffer.tobytes()
        if data[:1] == b"-":
            raise Invalid(data[1:].decode(errors="replace"))
        self.head.extend(data)
        self.head.stage(CALL)
        return decode_book(data[1:])

    def _broadcast_bytes(self, buffer: Array, timeout: float, stage: int) -> None:
        """Broadcast process 0's bytes into all buffers, which have one length, as a stage of the running call."""
        self.head.stage(stage)
        self._run_plan(
            self._open_program(self._broadcast_program).plan(self.rank, len(buffer), in_place=True),
            source=None,
            target=buffer,
            op="sum",
            timeout=timeout,
        )

    # ---- plans that a subprocess of process 0 makes while calls are served ----

    def ask_for_plans(self, turns: Turns, program: bytes) -> None:
        """Ask for plans from now on (see auto_turns). `program`: an allreduce.

        `turns.ready` is a function: it is called with the new book, and its steps are taken one per turn. After the
        last one this process is ready for the book."""
        self._turns, self._allreduce_program, turns.ready = turns, program, self._prepare_for_book
        self.begin = self._begin_and_ask

    def _begin_and_ask(self, kind: str, nbytes: int, type_: int, op: str = "sum", root: int = -1) -> None:
        """Begin a call; before some of them, ask for plans, and use them once all processes are ready."""
        turns, head = self._turns, self.head
        head.begin(kind, nbytes, type_, op, root)
        # decided by the number and size of the call alone, so equal on all processes
        if turns is None or not turns.due(head.number, kind, nbytes):
            return
        book = turns.turn(head.number, self._sum_over_processes)
        if book is not None:
            self._switch_to(book, turns.data)
        head.stage(CALL)
        # plans adopted, or none will come: calls cost nothing extra from now on
        if turns.over and not self.broken:
            self.begin = head.begin

    def _sum_over_processes(self, values: Array) -> None:
        """Add up values over all processes, in place."""
        assert self._turns is not None
        self._combine_over_processes(values, "sum", self._turns.timeout)

    def _combine_over_processes(self, values: Array, op: str, timeout: float) -> None:
        """Combine values over all processes, in place, as a stage of the running call."""
        self.head.stage(CHOICE)
        plan = self._open_program(self._allreduce_program).plan(self.rank, len(values), in_place=True)
        self._run_plan(plan, source=None, target=values, op=op, timeout=timeout)

    def _prepare_for_book(self, book: Book) -> Iterator[None]:
        """Make plans by a book for calls like those whose plans are cached, and touch their memory.

        Each `yield` ends a step, between which calls are served; a step makes at most one plan.
        """
        pages = SizeChooser[Page]()
        for page in book.pages:
            pages.add(page, page.start, page.stop, page.kind, page.root)
        yield
        # only now, as calls served meanwhile may have added a book (`fill`)
        old_pages = {id(page): page for old in self._books for page in old.pages}
        # the most recently used plans are the best guess at the next calls
        for page_id, unit, itemsize, in_place, _ in list(self._plans)[-MAX_EARLY_PLANS:]:
            kind, root = old_pages[page_id].kind, old_pages[page_id].root
            new_page = pages.page(Call(kind, self.nbytes(kind, unit, itemsize), root))
            if new_page is not None and new_page.program >= 0:
                with suppress(AntiphonError):  # the call itself will raise it
                    plan = self._open_program(book.programs[new_page.program]).plan(self.rank, unit, in_place)
                    self._prepared_plans[id(new_page), unit, itemsize, in_place, PLANNED_SLICES] = plan
                yield
        # touch the memory in a background thread, and report "not ready" until it is done
        self._warming = Warming([(plan, itemsize) for (_, _, itemsize, _, _), plan in self._prepared_plans.items()])
        while not self._warming.done:
            yield

    def _switch_to(self, book: Book, data: bytes) -> None:
        """Search this book before the earlier ones from now on. All processes do so at the same call."""
        old_books = self._books
        self.head.extend(data)
        # make room for the plans prepared early
        for key in list(self._plans)[: max(0, len(self._plans) + len(self._prepared_plans) - MAX_PLANS)]:
            del self._plans[key]
        self._plans |= self._prepared_plans
        self._prepared_plans = {}
        pages = SizeChooser[Page]()
        # keep a chooser that the owner of the group has installed
        if self.chooser is self.pages:
            self.chooser = pages
        self.pages, self._runnable, self._books = pages, SizeChooser(), []
        # pages are searched in the order of the books
        for added in (book, *old_books):
            self._add_book(added)

    # ---- the end of the group ----

    def fail(self, why: str) -> None:
        """Close the wire, so that the other processes notice. Nothing can run afterwards."""
        if not self.broken:
            self.broken = why or "it was closed"
            self.begin = self._refuse_call
            if self._turns is not None:
                self._turns.end()
            if self._warming is not None:
                self._warming.end()
            self.wire.close()

    def _refuse_call(self, kind: str, nbytes: int, type_: int, op: str = "sum", root: int = -1) -> None:
        raise TransportFailed(f"an earlier call failed: {self.broken}")

    def finish(self) -> None:
        """Before `close`: raise if a message has arrived that no call received."""
        if not self.broken:
            try:
                self.wire.refuse_unreceived()
            except Mismatch as error:
                raise self._failed_error(error) from None

    def close(self) -> None:
        if self._learners is not None and self._learned_path and not self.broken:
            try:
                keep_learned(self._learned_path, self._learners.lines())
            except AntiphonError as error:  # a group ends in any case
                print(f"antiphon: ANTIPHON_LEARNED: {error}", file=sys.stderr)
        self.fail("the group was closed")
        self._plans.clear()
