"""Books: the pages and programs of a table, as bytes and back; what is left out, and all roots that are alike."""

import contextlib
import itertools
import random
import re
import struct
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from program_run import run_program
from quick import in_turn
from small_plans import plan_of_counts

import antiphon
from antiphon.core.choose import Call
from antiphon.core.collective import Collective
from antiphon.core.interpret import interpret
from antiphon.core.interpret.buffers import sides
from antiphon.core.plan import Entry, Plan
from antiphon.core.program import decode
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import dumps
from antiphon.core.topology import Topology
from antiphon.errors import AntiphonError, Invalid
from antiphon.runtimes.serve.book import Book, decode_book, encode_book, make_book, proven_book, read_table
from antiphon.select import save_plans

FULL = antiphon.topology("full:ranks=4")


def plan(kind: str, planner: str, machine: Topology = FULL, **options: object) -> Plan:
    found: Plan = antiphon.plan(kind, machine, planner=planner, **options)
    return found


def several() -> list[Plan]:
    two = plan("allreduce", "ring").at(0), plan("allreduce", "halving-doubling").at(0)
    claims = {"planner": "ring", "options": {"pieces": 2}, "seconds": 0.5, "reference_seconds": 0.4}
    entries = (
        Entry(0, 100, two[0].schedule, claims),
        Entry(100, 5000, two[1].schedule, {"planner": "x", "reference_seconds": 1, "served_by": "library"}),
        Entry(5000, None, two[0].schedule, {"planner": "ring"}),
    )
    return [Plan(FULL, two[0].schedule.collective, entries), plan("gather", "direct", root=2)]


def test_pages_are_found_by_size_members_and_root() -> None:
    book = make_book(several())
    everybody = (0, 1, 2, 3)
    found = [
        book.chooser.page(Call("allreduce", nbytes, members=everybody)) for nbytes in (0, 99, 100, 4999, 5000, 10**12)
    ]
    assert [page and (page.planner, page.program, page.measured, page.seconds) for page in found] == [
        *[("ring pieces=2", 0, True, 0.5)] * 2,
        *[("x", -1, True, None)] * 2,
        *[("ring", 0, False, None)] * 2,
    ]
    assert len(book.programs) == 1 + 4  # the ring once, gather for each root
    assert book.chooser.page(Call("allreduce", 5, members=(1, 0, 2, 3))) is None
    assert book.chooser.page(Call("allgather", 5, members=everybody)) is None
    assert book.chooser.page(Call("gather", 5, members=everybody)) is None
    assert [page.root for page in book.pages if page.kind == "gather"] == [2, 0, 1, 3]
    assert [page.root for page in make_book(several(), every_root=False).pages][-1] == 2


@pytest.mark.parametrize(
    ("kind", "planner", "machine"),
    in_turn(
        [
            ("broadcast", "binomial-tree", "full:ranks=5"),
            ("reduce", "ring", "ring:ranks=4"),
            ("gather", "ring", "ring:ranks=5"),
            ("scatter", "direct", "star:ranks=4"),
            pytest.param("broadcast", "trees", "dgx1v", marks=pytest.mark.slow),
        ],
        2,
    ),
)
def test_a_plan_for_one_root_serves_those_that_are_alike(kind: str, planner: str, machine: str) -> None:
    topology = antiphon.topology(machine)
    book = make_book([plan(kind, planner, topology)])
    alike = [0, 1, 4, 5] if machine == "dgx1v" else [*range(topology.ranks)]  # there are two kinds of GPUs in it
    assert sorted(page.root for page in book.pages) == alike
    for page in book.pages:
        program = decode(book.programs[page.program])[0]
        target = Collective(kind, topology.ranks, roots=[page.root])
        assert program.collective == target
        sizes = sides(target, False)[0].size
        given = [np.arange(int(size) * 3) + 100 * rank for rank, size in enumerate(sizes)]
        want = interpret(_direct(target), [one.copy() for one in given])
        for mine, theirs in zip(run_program(program, given), want, strict=True):
            assert np.array_equal(mine, theirs)


def _direct(target: Collective) -> Schedule:
    from antiphon.select import plan as make

    return make(target, antiphon.topology(f"full:ranks={target.ranks}"), planner="direct").at(0).schedule


def test_roots_that_are_not_alike_have_no_page() -> None:
    line = antiphon.topology("line:ranks=3")
    assert [page.root for page in make_book([plan("broadcast", "relay", line)]).pages] == [0, 2]
    group = plan("broadcast", "direct", FULL, ranks=[1, 3], root=3)
    book = make_book([group])
    assert [(page.root, page.members) for page in book.pages] == [(3, (1, 3)), (1, (1, 3))]


def test_what_no_call_means_is_left_with_the_reason() -> None:
    uneven = antiphon.plan(Collective("allgather", 4, weights=[1, 2, 1, 1]), FULL, planner="ring")
    helped = antiphon.plan("broadcast", antiphon.topology("line:ranks=3"), planner="relay", ranks=[0, 2])
    assert make_book([uneven]).omissions == ("allgather: its counts are uneven",)
    assert make_book([helped]).omissions == ("broadcast: rank 1, which is not in the group, would have to help",)
    assert make_book([uneven]).pages == ()
    with pytest.raises(Invalid, match="no plans"):
        make_book([])
    routeless = antiphon.plan(Collective("alltoall", 4, weights=[1, 2, 1, 0] * 4), FULL, planner="flows")
    assert make_book([routeless]).omissions == (
        "alltoall: its counts are zero between two ranks, which then have no route; antiphon tune --counts makes one",
    )
    with pytest.raises(Invalid, match="different machines"):
        make_book([uneven, helped])


def test_hosts_are_those_of_the_places() -> None:
    two = antiphon.topology("cluster:box=full:ranks=2,boxes=2")
    assert make_book([plan("allgather", "ring", two)]).hosts == (0, 0, 1, 1)
    assert make_book(several()).hosts == ()
    for one in ("dgx1v", "star:ranks=4", "tree:fanouts=2x2"):  # sockets and switches are no hosts
        assert make_book([plan("allgather", "ring", antiphon.topology(one))]).hosts == ()
    boxes = antiphon.topology("cluster:box=dgx1v,boxes=2")
    assert make_book([plan("broadcast", "relay", boxes)]).hosts == (0,) * 8 + (1,) * 8


def test_isomorphic_allocations_share_what_jobs_learn() -> None:
    """The keys of their plans are equal, though their programs are not; those of other plans and machines differ."""

    def book_of(*only: int) -> Book:
        machine = antiphon.topology("dgx1v", only=only)
        kinds = (("allreduce", "trees"), ("allreduce", "ring"), ("allgather", "trees"))
        return make_book([plan(kind, planner, machine, ranks=only) for kind, planner in kinds])

    first, second, other = itertools.starmap(book_of, [(0, 1, 4, 5), (2, 3, 6, 7), (0, 3, 4, 7)])
    assert first.programs != second.programs
    keys = [page.key for page in first.pages]
    assert len(set(keys)) == 3
    assert keys == [page.key for page in second.pages]
    assert not set(keys) & {page.key for page in other.pages}


def test_bytes_and_back(tmp_path: Path) -> None:
    book = make_book(several())
    data = encode_book(book)
    assert decode_book(data) == book
    assert len(data) % 8 == 0
    (tmp_path / "book").write_bytes(data)
    assert read_table(tmp_path / "book") == book
    empty = Book("nothing", 3, (), (), ())
    assert decode_book(encode_book(empty)) == empty


def test_no_damage_passes() -> None:
    book = make_book(several())
    data = encode_book(book)
    draw = random.Random(5)
    for _ in range(400):
        damaged = bytearray(data)
        if draw.random() < 0.3:
            damaged = damaged[: draw.randrange(len(data))]
        else:
            at = draw.randrange(len(data))
            damaged[at] ^= 1 << draw.randrange(8)
        with contextlib.suppress(Invalid):
            assert decode_book(bytes(damaged)) == book  # a bit between two programs
    with pytest.raises(Invalid, match="version 2 of books"):
        decode_book(data[:8] + b"\2" + data[9:])


def test_pages_and_programs_share_nothing() -> None:
    """Else a small book could be read as a large one."""
    data = encode_book(make_book(several()))
    head, _, _, pages, programs, members, _, name, labels, _ = struct.unpack_from("<QQ8I", data, 16)
    page = 64 + name + -name % 8 + 4 * members + 4 * members % 8 + labels + -labels % 8
    entry = page + 64 * pages

    def changed(at: int, form: str, value: int) -> bytes:
        made = bytearray(data)
        struct.pack_into(form, made, at, value)
        struct.pack_into("<I", made, 12, zlib.crc32(made[16:head]))
        return bytes(made)

    assert decode_book(changed(page, "<I", struct.unpack_from("<I", data, page)[0]))
    for at, more in ((page + 12, 1), (page + 44, 1)):
        with pytest.raises(Invalid, match="pages share members or labels"):
            decode_book(changed(at, "<I", struct.unpack_from("<I", data, at)[0] + more))
    assert programs > 1
    again = bytearray(changed(entry + 24, "<Q", struct.unpack_from("<Q", data, entry)[0]))
    again[entry + 24 : entry + 48] = again[entry : entry + 24]
    struct.pack_into("<I", again, 12, zlib.crc32(again[16:head]))
    with pytest.raises(Invalid, match="cut off or damaged"):
        decode_book(bytes(again))


def test_tables_are_read_and_verified(tmp_path: Path) -> None:
    save_plans(tmp_path / "table.json", {one.collective.kind: one for one in several()}, "alpha-beta", table=True)
    assert read_table(tmp_path / "table.json") == make_book(several())
    right = plan("allgather", "ring")
    wrong = replace(right.at(0).schedule, chunk=right.at(0).schedule.chunk[::-1].copy())
    (tmp_path / "wrong.json").write_bytes(dumps(Plan.of(FULL, wrong)))
    with pytest.raises(Invalid, match=r"wrong\.json: the schedule for allgather is wrong"):
        read_table(tmp_path / "wrong.json")
    with pytest.raises(AntiphonError):
        read_table(tmp_path / "missing.json")


def test_a_small_file_with_many_switches_asks_for_little(tmp_path: Path) -> None:
    """Of 65536 switches that nothing is linked to there are as many symmetries, each as long."""
    path, again = tmp_path / "plan.json", tmp_path / "many.json"
    antiphon.save(antiphon.plan("broadcast", antiphon.topology("star:ranks=3"), planner="binomial-tree"), path)
    text = path.read_text()
    assert '"switches":1,' in text.replace(" ", "")
    again.write_text(text.replace('"switches": 1,', '"switches": 65536,').replace('"switches":1,', '"switches":65536,'))
    tracemalloc.start()
    try:
        assert len(read_table(again).pages) == 1
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()
    assert len(read_table(path).pages) == 3


def test_a_plan_for_counts_serves_uneven_alltoalls_only() -> None:
    book = make_book([plan_of_counts(FULL)])
    assert [(page.kind, page.start, page.program) for page in book.pages] == [
        ("alltoallv", 0, -1),
        ("alltoallv", 1000, 0),
    ]
    assert decode_book(encode_book(book)) == book
    (program, *_) = decode(book.programs[0])
    assert program.collective == Collective("alltoall", 4)
    assert book.chooser.page(Call("alltoall", 4000, members=(0, 1, 2, 3))) is None
    other = replace(book, pages=tuple(replace(page, kind="alltoall") for page in book.pages))
    assert proven_book(encode_book(other)).pages == other.pages
    ring = make_book([plan("allreduce", "ring")])
    with pytest.raises(Invalid, match="it is allreduce"):
        proven_book(encode_book(replace(ring, pages=(replace(ring.pages[0], kind="alltoallv"),))))


def test_the_name_of_a_stored_book_depends_on_the_code_that_compiles_it(tmp_path: Path) -> None:
    """The preload finds a book by a hash of these folders: a change in one that compiling uses must not be missed."""
    package = Path(antiphon.__file__).parent
    source = (package / "runtimes/engine/native/preload_tables.c").read_text()
    hashed = set(re.findall(r'"/([a-z/]+)"', source.split("const folders[] = {")[1].split("}")[0]))
    (tmp_path / "plan.json").write_bytes(dumps(plan("allreduce", "ring")))
    script = (
        "import sys; from antiphon.runtimes.serve.book import encode_book, read_books; "
        "list(map(encode_book, read_books(sys.argv[1]))); "
        "print(*(m.__file__ for name, m in list(sys.modules.items()) if name.startswith('antiphon.core')))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "plan.json")]
    files = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    used = {str(Path(file).parent.relative_to(package)) for file in files}
    assert used <= hashed
    assert all(any((package / folder).glob("*.py")) for folder in hashed)
