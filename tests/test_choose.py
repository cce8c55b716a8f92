"""Which page serves a call: the first, in the order given, that is for it."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np
import pytest
from entries import ring
from hypothesis import given
from hypothesis import strategies as st
from mpi_env import Mpi

from antiphon.core.choose import Call, SizeChooser
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.plan import Plan
from antiphon.core.request import Request
from antiphon.errors import Invalid
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.native import Functions
from antiphon.runtimes.serve.book import Book, Page, decode_book, encode_book
from antiphon.topologies import topology

KINDS = ("allreduce", "gather")
ENDS = st.one_of(st.integers(0, 12), st.sampled_from([2**20, 2**59]))
Row = tuple[int, int | None, str, int, tuple[int, ...]]


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """start, stop, kind, root, members."""
    start = draw(ENDS)
    stop = draw(st.one_of(st.none(), st.integers(start + 1, 2**60)))
    kind = draw(st.sampled_from(KINDS))
    return start, stop, kind, draw(st.integers(-1, 1)), draw(st.sampled_from([(), (0, 1), (1, 0)]))


@given(table=st.lists(rows(), max_size=8), more=st.lists(ENDS, max_size=4))
def test_the_first_page_that_holds_the_size(table: list[Row], more: list[int]) -> None:
    pages: SizeChooser[int] = SizeChooser()
    for number, (start, stop, *where) in enumerate(table):
        pages.add(number, start, stop, *where)
    edges = {at + by for row in table for at in row[:2] if at is not None for by in (-1, 0, 1)}
    for nbytes in {*edges, *more, 0}:
        for kind in (*KINDS, "alltoall"):
            for root in (-1, 0, 1):
                for members in ((), (0, 1), (1, 0)):
                    fitting = [
                        number
                        for number, (start, stop, *where) in enumerate(table)
                        if where == [kind, root, members] and start <= nbytes and (stop is None or nbytes < stop)
                    ]
                    found = pages.page(Call(kind, nbytes, root, members))
                    assert found == (fitting[0] if fitting else None)


def test_a_plan_is_asked_by_size() -> None:
    machine = topology("ring:ranks=3")
    (schedule,) = ring(Request(machine, Collective("gather", 3)))
    plan = Plan.of(machine, schedule)
    assert plan.at(0) is plan.at(10**12) is plan.entries[0]
    assert plan.chooser.page(Call("gather", 5)) is plan.entries[0]
    for wrong in (-1, True - 2):
        with pytest.raises(Invalid, match="must be 0 or more"):
            plan.at(wrong)


# ---- the look-up in C ----

IN_C = ("broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter", "allreduce", "alltoall")
DRAWN = ("broadcast", "gather", "allreduce")
GROUPS = ((0, 1, 2), (2, 0, 1), (2, 1))


class NativePage(Structure):
    _fields_ = (
        ("kind", c_uint32), ("members", c_uint32), ("root", c_int32), ("member", POINTER(c_int32)),
        ("start", c_uint64), ("stop", c_uint64), ("program", c_int32), ("measured", c_int32), ("ordered", c_int32),
        ("label", c_char_p), ("label_bytes", c_uint32),
    )  # fmt: skip


class NativeBook(Structure):
    _fields_ = (
        ("ranks", c_uint32), ("pages", c_uint32), ("programs", c_uint32), ("machine_bytes", c_uint32),
        ("host", c_void_p), ("machine", c_void_p), ("dead", c_void_p), ("dead_bytes", c_uint32),
        ("page", POINTER(NativePage)), ("program", c_void_p),
    )  # fmt: skip


class Range(Structure):
    _fields_ = (("kind", c_uint32), ("root", c_int32), ("start", c_uint64), ("stop", c_uint64))


@st.composite
def pages(draw: st.DrawFn) -> Page:
    kind, group, start = draw(st.sampled_from(DRAWN)), draw(st.sampled_from(GROUPS)), draw(ENDS)
    stop = draw(st.one_of(st.none(), st.integers(start + 1, 2**60)))
    root = draw(st.sampled_from(group)) if kind in ROOTED else -1
    return Page(kind, group, root, start, stop, "left to the library", -1, True)


class Chooser:
    """That of the preloaded library, for one process group."""

    def __init__(self, engine: Any, book: bytes, group: tuple[int, ...]) -> None:
        self.engine, self.group = engine, group
        words = np.frombuffer(book + bytes(-len(book) % 8), np.uint64).copy()  # aligned
        handle = engine.ap_book_open(words.ctypes.data, len(book), None)
        assert handle
        native = NativeBook.from_address(handle)
        members, ranges = (c_int32 * len(group))(*group), (Range * (native.pages + 1))()
        self.mine: list[int] = []  # the pages that are for this group
        for number in range(native.pages):
            place = ctypes.byref(ranges, len(self.mine) * ctypes.sizeof(Range))
            if engine.ap_range_of(ctypes.byref(native.page[number]), members, len(group), place):
                self.mine.append(number)
        self.chooser = engine.ap_chooser_open(ranges, len(self.mine), len(group))
        engine.ap_book_close(handle)

    def page(self, kind: str, root: int, nbytes: int) -> int | None:
        at = -1 if root < 0 else self.group.index(root)
        found = self.engine.ap_choose(self.chooser, IN_C.index(kind), at, nbytes)
        return self.mine[found] if found >= 0 else None

    def close(self) -> None:
        self.engine.ap_chooser_close(self.chooser)


@pytest.fixture
def engine(openmpi: Mpi) -> Any:
    found = Functions(library("mpi", openmpi.mpicc))
    for name, given_, gives in (
        ("ap_book_open", [c_void_p, ctypes.c_size_t, c_void_p], c_void_p), ("ap_book_close", [c_void_p], None),
        ("ap_range_of", [c_void_p, c_void_p, c_uint32, c_void_p], ctypes.c_int),
        ("ap_chooser_open", [c_void_p, c_uint32, c_uint32], c_void_p), ("ap_chooser_close", [c_void_p], None),
        ("ap_choose", [c_void_p, c_uint32, c_int32, c_uint64], c_int64),
    ):  # fmt: skip
        function = getattr(found, name)
        function.argtypes, function.restype = given_, gives
    return found


def test_both_choose_the_same_page(engine: Any) -> None:
    """Of random books, in which pages also overlap."""

    @given(listed=st.lists(pages(), max_size=9))
    def check(listed: list[Page]) -> None:
        data = encode_book(Book("a machine", 3, (), tuple(listed), ()))
        book = decode_book(data)
        edges = {at + by for page in listed for at in (page.start, page.stop or 0) for by in (-1, 0, 1)}
        for group in GROUPS:
            native = Chooser(engine, data, group)
            for nbytes in sorted(edge for edge in {*edges, 5} if edge >= 0):
                for kind in (*DRAWN, "alltoall"):
                    for root in group if kind in ROOTED else (-1,):
                        ours = book.chooser.page(Call(kind, nbytes, root, group))
                        number = native.page(kind, root, nbytes)
                        assert (number is None) == (ours is None)
                        assert number is None or book.pages[number] is ours
            native.close()

    check()


def test_of_pages_that_overlap_the_first_in_the_book_counts(engine: Any) -> None:
    """Also where another begins before it."""
    listed = [
        Page("allreduce", (2, 1), -1, start, stop, "", -1, True)
        for start, stop in ((0, 100), (1000, None), (500, None))
    ]
    native = Chooser(engine, encode_book(Book("", 3, (), tuple(listed), ())), (2, 1))
    assert [native.page("allreduce", -1, at) for at in (99, 100, 500, 999, 1000)] == [0, None, 2, 2, 1]
    native.close()
