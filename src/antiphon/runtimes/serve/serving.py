"""Serves the calls of one group of processes with the native engine: chooses the page, keeps the plans, keeps count.

All processes of a group make the same calls in the same order, so whatever is decided from a call alone is decided
alike everywhere: the page, and also that a plan is still to be made (`fill`), which process 0 then does for all. Every
message bears the call that it is of, so processes that make different calls find out (`begin`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.choose import Call, Chooser, Pages
from antiphon.errors import AntiphonError, Invalid, TimedOut
from antiphon.runtimes.engine.native import MOVED, Engine, Mismatch, NativePlan, OpenProgram, TransportFailed, Wire
from antiphon.runtimes.engine.warming import Warming
from antiphon.runtimes.serve.auto_turns import Turns
from antiphon.runtimes.serve.book import Book, Page, decode_book, encode_book
from antiphon.runtimes.serve.call_head import CallHead
from antiphon.runtimes.serve.group_book import default_book
from antiphon.runtimes.serve.ledger import Ledger

Array = NDArray[Any]
IN_PARTS = ("allgather", "reducescatter", "gather", "scatter", "alltoall")  # whose buffers hold a block for each rank
SLOWER, UNMEASURED = "measured to be slower than the library", "its size was not measured"
MOST_PLANS = 64  # kept, each with its scratch
MOST_EARLY = 16  # made before they are called for


class Serving:
    """The programs of a group over one wire. One call at a time.

    `base`: a broadcast from process 0, by which later plans are handed out; only needed with `fill`: then what no page
    is for gets a plan for a machine in which everybody is linked with everybody.

    `book`: what it began with, the same at all processes.

    `chooser` says which page a call goes by. It is the book's `pages`; another may stand in its place that gives pages
    of the same book, and must give the same at all processes of a call. Calls bear no members: all are of this group.
    """

    def __init__(self, engine: Engine, wire: Wire, rank: int, book: Book, base: bytes, fill: bool) -> None:
        self.engine, self.wire, self.rank, self.ranks, self.fill = engine, wire, rank, book.ranks, fill
        self.ledger, self.book = Ledger(), book
        self.broken = ""
        self.pages: Pages[Page] = Pages()
        self._runnable: Pages[Page] = Pages()  # those that are not left to the library
        self.chooser: Chooser[Page] = self.pages
        self._programs: dict[bytes, OpenProgram] = {}
        self._book_of: dict[int, bytes] = {}  # the program of a page
        self._plans: dict[tuple[int, int, int, bool], NativePlan] = {}
        self._tried: set[tuple[str, int]] = set()
        self._base = base
        self._books: list[Book] = []  # in the order in which their pages are looked at
        self._turns: Turns | None = None
        self._early: dict[tuple[int, int, int, bool], NativePlan] = {}
        self._warming: Warming | None = None
        self._sum = b""
        self.head = CallHead(rank, encode_book(book))
        wire.calls(self.head.memory)
        self.begin = self.head.begin  # the next call; straight there, as it is a good part of what a small call costs
        self._take(book)

    def agree(self, timeout: float) -> None:
        """Until all processes have begun this call: before something else than the engine serves it."""
        try:
            self.wire.agree(timeout)
        except (TransportFailed, TimedOut) as error:
            raise self._failed(error) from None
        finally:
            self._unless_stopped()

    def _failed(self, error: AntiphonError) -> AntiphonError:
        """What is told of a call that could not be carried out. Nothing more can be run."""
        told = self.head.against(self.wire.theirs()) if isinstance(error, Mismatch) else f"{error} ({self.head.says()})"
        self.fail(told)
        return type(error)(told)

    def _unless_stopped(self) -> None:
        if self.wire.stopped:
            self.fail("a handler of a signal ended it")

    def _take(self, book: Book) -> None:
        self._books.append(book)
        for page in book.pages:
            where = (page, page.start, page.stop, page.kind, page.root)
            self.pages.add(*where)
            if page.program >= 0:
                self._runnable.add(*where)
                self._book_of[id(page)] = book.programs[page.program]

    def nbytes(self, kind: str, unit: int, itemsize: int) -> int:
        return unit * itemsize * (self.ranks if kind in IN_PARTS else 1)

    def find(self, call: Call, timeout: float = 0.0, library: bool = True) -> Page | None:
        """The page of a call, or None: the library's. `library`: whether that could do it."""
        page = (self.chooser if library else self._runnable).page(call)
        if page is not None:
            return page if page.program >= 0 else None
        key = (call.kind, call.root)
        if not self.fill or key in self._tried:
            return None
        book = self._made_now(call.kind, call.root, timeout)
        self._tried.add(key)
        self._take(book)
        return self.find(call, timeout, library)

    def why_not(self, call: Call) -> str:
        """Why `find` gave None."""
        page = self.chooser.page(call)
        if page is None:
            return "no schedule for it in the table"
        return SLOWER if page.measured else UNMEASURED

    def run(
        self, page: Page, unit: int, source: Array | None, target: Array, op: str = "sum", timeout: float = 0.0,
        counted: bool = True,
    ) -> None:  # fmt: skip
        """Take part in the call that was begun; without a source it is in place. After an error nothing can be run."""
        nbytes, began = self.nbytes(page.kind, unit, target.dtype.itemsize), time.perf_counter()
        if nbytes:
            plan = self._plan(page, unit, target.dtype.itemsize, source is None)
            self._guarded(plan, source, target, op, timeout)
        else:
            self.agree(timeout)
        if not counted:
            return
        row = self.ledger.row(page.kind, page.planner, "antiphon")
        self.ledger.count(row, nbytes, time.perf_counter() - began)

    def uneven(self, source: int, target: int, lengths: Array, timeout: float) -> int:
        """The call that was begun as one from each to each (Wire.uneven)."""
        began = time.perf_counter()
        try:
            found = self.wire.uneven(source, target, lengths, timeout)
        except (TransportFailed, TimedOut) as error:
            raise self._failed(error) from None
        finally:
            self._unless_stopped()
        if found == MOVED:
            row = self.ledger.row("alltoall", "point to point", "antiphon")
            self.ledger.count(row, int(lengths[0].sum()), time.perf_counter() - began)
        return found

    def _guarded(self, plan: NativePlan, source: Array | None, target: Array, op: str, timeout: float) -> None:
        try:
            plan.run(source, target, self.wire, op, timeout)
        except (TransportFailed, TimedOut) as error:
            raise self._failed(error) from None
        finally:
            self._unless_stopped()

    def _plan(self, page: Page, unit: int, itemsize: int, in_place: bool) -> NativePlan:
        key = (id(page), unit, itemsize, in_place)
        plan = self._plans.pop(key, None)
        if plan is None:
            if len(self._plans) >= MOST_PLANS:
                del self._plans[next(iter(self._plans))]  # the one whose use is the longest ago
            plan = self._program(self._book_of[id(page)]).plan(self.rank, unit, in_place)
        self._plans[key] = plan
        return plan

    def _program(self, data: bytes) -> OpenProgram:
        found = self._programs.get(data)
        if found is None:
            found = self._programs[data] = self.engine.program(data)
        return found

    # ---- plans made when they are needed ----

    def _made_now(self, kind: str, root: int, timeout: float) -> Book:
        """A book for calls of a kind, made by process 0, which is making the same call."""
        data = b""
        if self.rank == 0:
            try:
                data = b"+" + encode_book(default_book(kind, self.ranks, root, self.wire.near))
            except AntiphonError as error:
                data = b"-" + str(error).encode()
        size = np.array([len(data)], np.int64)
        self._broadcast(size, timeout, 1)
        buffer = np.frombuffer(data, np.uint8).copy() if self.rank == 0 else np.zeros(int(size[0]), np.uint8)
        self._broadcast(buffer, timeout, 2)
        data = buffer.tobytes()
        if data[:1] == b"-":
            raise Invalid(data[1:].decode(errors="replace"))
        self.head.extend(data)
        self.head.stage(0)
        return decode_book(data[1:])

    def _broadcast(self, buffer: Array, timeout: float, stage: int) -> None:
        self.head.stage(stage)
        self._guarded(self._program(self._base).plan(self.rank, len(buffer), True), None, buffer, "sum", timeout)

    # ---- plans that others make meanwhile ----

    def later(self, turns: Turns, program: bytes) -> None:
        """Ask for plans from now on (see auto_turns). `program`: a sum at all."""
        self._turns, self._sum, turns.ready = turns, program, self._ready
        self.begin = self._begin_and_ask

    def _begin_and_ask(self, kind: str, nbytes: int, type_: int, op: str = "sum", root: int = -1) -> None:
        turns, head = self._turns, self.head
        head.begin(kind, nbytes, type_, op, root)
        if turns is None or not turns.due(head.number, kind, nbytes):
            return
        book = turns.turn(head.number, self._add)
        if book is not None:
            self._go_by(book, turns.data)
        head.stage(0)
        if turns.over and not self.broken:
            self.begin = head.begin

    def _add(self, values: Array) -> None:
        assert self._turns is not None
        self.head.stage(3)
        plan = self._program(self._sum).plan(self.rank, len(values), True)
        self._guarded(plan, None, values, "sum", self._turns.timeout)

    def _ready(self, book: Book) -> Iterator[None]:
        """Plans by a book for calls like those that plans are kept for, and their memory."""
        pages = Pages[Page]()
        for page in book.pages:
            pages.add(page, page.start, page.stop, page.kind, page.root)
        before = {id(page): page for one in self._books for page in one.pages}
        yield
        for old, unit, itemsize, in_place in list(self._plans)[-MOST_EARLY:]:
            kind, root = before[old].kind, before[old].root
            found = pages.page(Call(kind, self.nbytes(kind, unit, itemsize), root))
            if found is not None and found.program >= 0:
                with suppress(AntiphonError):  # the call itself says so
                    plan = self._program(book.programs[found.program]).plan(self.rank, unit, in_place)
                    self._early[id(found), unit, itemsize, in_place] = plan
                yield
        self._warming = Warming([(plan, key[2]) for key, plan in self._early.items()])
        while not self._warming.done:
            yield

    def _go_by(self, book: Book, data: bytes) -> None:
        """This book goes before all that there are. At the same call at all processes."""
        books = [book, *self._books]
        self.head.extend(data)
        for key in list(self._plans)[: max(0, len(self._plans) + len(self._early) - MOST_PLANS)]:
            del self._plans[key]
        self._plans |= self._early
        self._early = {}
        pages = Pages[Page]()
        if self.chooser is self.pages:
            self.chooser = pages
        self.pages, self._runnable, self._books = pages, Pages(), []
        for one in books:
            self._take(one)

    # ---- the end ----

    def fail(self, why: str) -> None:
        """Nothing can be run any more: let go of the wire, so that the others notice."""
        if not self.broken:
            self.broken = why or "it was closed"
            self.begin = self._refuse
            if self._turns is not None:
                self._turns.end()
            if self._warming is not None:
                self._warming.end()
            self.wire.close()

    def _refuse(self, kind: str, nbytes: int, type_: int, op: str = "sum", root: int = -1) -> None:
        raise TransportFailed(f"an earlier call failed: {self.broken}")

    def finish(self) -> None:
        """Before `close`, if all went well so far: a message that came and that no call took is told."""
        if not self.broken:
            try:
                self.wire.left()
            except Mismatch as error:
                raise self._failed(error) from None

    def close(self) -> None:
        self.fail("the group was closed")
        self._plans.clear()
