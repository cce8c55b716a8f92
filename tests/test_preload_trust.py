"""The library under LD_PRELOAD leaves alone what is not its own: names, memory, and books that lie."""

import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable
from ctypes import c_size_t, c_void_p, create_string_buffer
from pathlib import Path

import numpy as np
import pytest
from craft import Crafted, in_book, number, program_of
from mpi_env import Mpi
from quick import in_turn
from test_preload import OTHERS, PLANNERS, Run, compiled, folder, preloaded, table

from antiphon.runtimes.engine import build
from antiphon.runtimes.engine.native import Functions
from antiphon.runtimes.serve.book import encode_book, read_table

__all__ = ["folder"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", in_turn([2, pytest.param(4, marks=pytest.mark.slow)]))
def test_in_place_only_the_result_is_written(mpi: Mpi, folder: Path, ranks: int) -> None:
    for planners in (PLANNERS, OTHERS):
        tables = [table(folder, ranks, planners, planners["allreduce"])]
        run = Run(mpi, folder, ranks, [compiled(folder, mpi, "untouched")], tables, ANTIPHON_LEAST="0").right()
        assert run.warnings == []
        assert all(run.served(collective, ranks) for collective in planners)
        assert run.left == {}


@pytest.mark.slow
def test_a_program_may_have_functions_of_the_same_names(mpi: Mpi, folder: Path) -> None:
    """Also where they can be found by other libraries, as in a program that loads plug-ins."""
    program = compiled(folder, mpi, "names", "-rdynamic")
    run = Run(mpi, folder, 2, [program], [table(folder, 2)], ANTIPHON_LEAST="0").right()
    assert run.warnings == []
    assert run.served("allreduce", 2) == 1
    assert run.served("broadcast", 2) == 1


def symbols(path: str) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in done.stdout.splitlines()}


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_nothing_is_visible_but_the_names_of_mpi_and_one_of_ours(mpi: Mpi) -> None:
    found = symbols(preloaded(mpi.python, mpi.mpicc))
    assert {"MPI_Init", "MPI_Allreduce", "MPI_Alltoall", "antiphon_engine"} <= found
    fortran = {name for name in found if re.fullmatch(r"mpi_[a-z_]+_|ompi_[a-z_]+_f", name)}
    assert ("ompi_allreduce_f" in fortran) == (mpi.name == "openmpi")
    assert {name for name in found - fortran if not name.startswith("MPI_")} == {"antiphon_engine"}
    for target in ("threads", "sockets"):
        assert symbols(str(build.library(target))) == {"antiphon_engine"}


def far_away(program: Crafted) -> Crafted:
    """Two units of 2^32 elements of a buffer that has one of a thousand: the second one is moved."""
    for rank in range(2):
        for place in (False, True):
            program.sides(rank, 2**32, 2**32, place)
            at, count = program.table("bases", rank, place)
            for row in range(count):
                if number(program.data, at + 24 * row + 8) != 2:
                    program.put("bases", row, 0, "q", 2**32 - 1, rank=rank, place=place)
    return program


def wrapped(program: Crafted) -> Crafted:
    """Slots of so many elements that their bytes are a small number again; data goes into the second one."""
    for rank in range(2):
        for place in (False, True):
            if program.table("classes", rank, place)[1]:
                program.put("classes", -1, 0, "qq", 2**51, 0, rank=rank, place=place)
    return program


@pytest.mark.parametrize("lie", [far_away, pytest.param(wrapped, marks=pytest.mark.slow)])
def test_a_book_that_lies_moves_nothing_out_of_bounds(
    mpi: Mpi, folder: Path, lie: Callable[[Crafted], Crafted]
) -> None:
    """Its checksums are right. It may be refused, and the calls left to the library, or served rightly."""
    good = encode_book(read_table(table(folder, 2, {"allreduce": "ring"}, "single")))
    path = folder / f"{lie.__name__}.book"
    path.write_bytes(in_book(good, 0, lie(Crafted(program_of(good, 0))).file))
    run = Run(mpi, folder, 2, [compiled(folder, mpi, "small"), "4000", "8192"], [path], ANTIPHON_LEAST="0").right()
    assert run.done.returncode == 0
    assert run.warnings


# ---- without processes ----


def opened(engine: Functions, book: bytes) -> str:
    """What the reader in C says of a book; "" if it takes it."""
    engine.ap_book_open.argtypes, engine.ap_book_open.restype = [c_void_p, c_size_t, c_void_p], c_void_p
    engine.ap_book_close.argtypes = [c_void_p]
    words, error = np.frombuffer(book + bytes(-len(book) % 8), np.uint64).copy(), create_string_buffer(256)
    handle = engine.ap_book_open(words.ctypes.data, len(book), error)
    engine.ap_book_close(handle)
    return "" if handle else error.raw[4:].partition(b"\0")[0].decode()


def again(book: bytes) -> bytes:
    """With the checksum of its head made right."""
    head = number(book, 16, "Q")
    return book[:12] + struct.pack("<I", zlib.crc32(book[16:head])) + book[16:]


def test_a_page_is_held_against_its_program(openmpi: Mpi, folder: Path) -> None:
    engine = Functions(build.library("mpi", openmpi.mpicc))
    good = encode_book(read_table(table(folder, 3, {"allgather": "ring", "allreduce": "ring"}, "pair")))
    kinds = [number(program_of(good, i), 32) for i in range(number(good, 40))]
    gathers, head = kinds.index(4), number(good, 16, "Q")
    assert opened(engine, good) == ""
    uneven = Crafted(program_of(good, gathers)).weight(0, 3).weight(1, 0).weight(2, 0).file
    assert "a page and its program do not fit" in opened(engine, in_book(good, gathers, uneven))
    other = Crafted(program_of(good, gathers)).head("kind", 5).file
    assert "a page and its program do not fit" in opened(engine, in_book(good, gathers, other))
    wrong = Crafted(program_of(good, gathers)).weight(0, 5).file
    assert "its greatest buffer" in opened(engine, in_book(good, gathers, wrong))
    entries = head - 24 * len(kinds)
    twice = good[: entries + 24] + good[entries : entries + 20] + good[entries + 44 :]
    assert "lies outside, or upon another" in opened(engine, again(twice))


def test_a_damaged_book_is_refused_with_the_reason(openmpi: Mpi, folder: Path) -> None:
    engine = Functions(build.library("mpi", openmpi.mpicc))
    data = encode_book(read_table(table(folder, 2)))
    assert opened(engine, data) == ""
    assert all(opened(engine, data[:size]) for size in range(0, len(data), 97))
    for changed, text in (
        (data[:-100], "cut off or damaged"),
        (data[:70] + b"x" + data[71:], "checksum of its head"),
        (data[:-60] + bytes([data[-60] ^ 4]) + data[-59:], "checksum of a program"),
        (data[:8] + b"\x07" + data[9:], "has version 7"),
        (b"x" + data[1:], "no book"),
    ):
        assert text in opened(engine, changed)
