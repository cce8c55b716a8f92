"""Versions of cells: equal to a plain derivation, acyclic on legal schedules, right in known cases, and small."""

import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from graphlib import TopologicalSorter

import numpy as np
import oracle
import pytest
from generate import Case, case, cases
from hypothesis import given

from antiphon.core.collective import Collective
from antiphon.core.dependencies import Versions, cell_keys, versions
from antiphon.core.schedule import Schedule, cut

Key = tuple[int, int, int]  # (chunk, rank, slot)


def hand_made(ranks: int, rows: Sequence[tuple[int, ...]], parts: int = 1) -> Schedule:
    """Rows of (step, chunk, src, src slot, dst, dst slot, op) of an allreduce."""
    collective = Collective("allreduce", ranks)
    columns = [np.array(c, np.int32) for c in zip(*rows, strict=True)] if rows else [np.zeros(0, np.int32)] * 7
    step, chunk, src, src_slot, dst, dst_slot, op = columns
    return Schedule(
        collective, cut(collective, parts), step, chunk, src, dst, op.astype(np.uint8),
        src_slot=src_slot, dst_slot=dst_slot,
    )  # fmt: skip


def plainly(schedule: Schedule) -> tuple[list[tuple[Key, int]], list[tuple[Key, int]]]:
    """Per row (cell, how many groups of writes came before) for what it reads, and for what it writes."""
    rows = oracle.rows_of(schedule)
    written: dict[Key, set[int]] = defaultdict(set)
    for row in rows:
        written[row.chunk, row.dst, row.dst_slot].add(row.step)
    reads, writes = [], []
    for row in rows:
        source, target = (row.chunk, row.src, row.src_slot), (row.chunk, row.dst, row.dst_slot)
        reads.append((source, sum(step < row.step for step in written[source])))
        writes.append((target, sum(step <= row.step for step in written[target])))
    return reads, writes


def compare(schedule: Schedule) -> None:
    """Every claim of Versions against the plain derivation."""
    found = versions(schedule)
    reads, writes = plainly(schedule)
    cells = sorted({cell for cell, _ in reads + writes})
    rows = oracle.rows_of(schedule)
    groups = {cell: {0: -1} for cell in cells}
    for (cell, number), row in zip(writes, rows, strict=True):
        groups[cell][number] = row.step
    listed = [(cell, number) for cell in cells for number in range(len(groups[cell]))]
    name = {key: at for at, key in enumerate(listed)}
    assert len(found) == len(listed)
    assert found.read.tolist() == [name[key] for key in reads]
    assert found.write.tolist() == [name[key] for key in writes]
    assert found.step.tolist() == [groups[cell][number] for cell, number in listed]
    assert list(zip(found.chunk.tolist(), found.rank.tolist(), found.slot.tolist(), strict=True)) == [
        cell for cell, _ in listed
    ]
    assert found.initial.tolist() == [number == 0 for _, number in listed]
    assert found.final.tolist() == [number == len(groups[cell]) - 1 for cell, number in listed]
    for (ptr, members), column in ((found.readers, found.read), (found.writers, found.write)):
        for version in range(len(listed)):
            expected = [row for row, at in enumerate(column.tolist()) if at == version]
            assert members[ptr[version] : ptr[version + 1]].tolist() == expected
    check_last(found, schedule, {cell: name[cell, len(groups[cell]) - 1] for cell in cells})


def check_last(found: Versions, schedule: Schedule, last: dict[Key, int]) -> None:
    ranks, slots = schedule.collective.ranks, schedule.slots
    every = [(c, r, s) for c in range(len(schedule.chunks)) for r in range(ranks) for s in range(slots)]
    keys = np.array([(c * ranks + r) * slots + s for c, r, s in every], np.int64)
    assert found.last_of(keys).tolist() == [last.get(cell, -1) for cell in every]


def events(schedule: Schedule) -> dict[tuple[str, int], set[tuple[str, int]]]:
    """The graph of reads and writes, spelled out: event -> what it must wait for."""
    found = versions(schedule)
    rows = range(schedule.transfers)
    waits: dict[tuple[str, int], set[tuple[str, int]]] = {("W", row): {("R", row)} for row in rows}
    waits |= {("R", row): set() for row in rows}
    read, write, cell = found.read.tolist(), found.write.tolist(), found.cell.tolist()
    for a in rows:
        for b in rows:
            if write[a] == read[b]:
                waits["R", b].add(("W", a))  # RAW
            if cell[read[a]] == cell[write[b]] and read[a] == write[b] - 1:
                waits["W", b].add(("R", a))  # WAR
            if cell[write[a]] == cell[write[b]] and write[a] == write[b] - 1:
                waits["W", b].add(("W", a))  # WAW
    return waits


@given(cases())
def test_equal_a_plain_derivation(random_case: Case) -> None:
    compare(random_case.schedule)


@pytest.mark.parametrize("seed", range(60))
def test_legal_schedules_have_no_cycle(seed: int) -> None:
    schedule = case(seed, most_ranks=5).schedule
    order = list(TopologicalSorter(events(schedule)).static_order())
    assert len(order) == 2 * schedule.transfers


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_events_gives_the_same_values(seed: int) -> None:
    """Executed in an order that respects the graph, every read sees the version that the steps say."""
    schedule = case(seed, most_ranks=4).schedule
    rows, found = oracle.rows_of(schedule), versions(schedule)
    current: dict[Key, int] = {}
    for version in np.flatnonzero(found.initial).tolist():
        current[int(found.chunk[version]), int(found.rank[version]), int(found.slot[version])] = version
    rng, graph, ready = random.Random(seed), TopologicalSorter(events(schedule)), list[tuple[str, int]]()
    graph.prepare()
    while graph.is_active():
        ready += graph.get_ready()
        what, row = ready.pop(rng.randrange(len(ready)))
        graph.done((what, row))
        r = rows[row]
        if what == "R":
            assert current[r.chunk, r.src, r.src_slot] == found.read[row]
        else:
            assert current[r.chunk, r.dst, r.dst_slot] in (found.write[row] - 1, found.write[row])
            current[r.chunk, r.dst, r.dst_slot] = int(found.write[row])


def test_no_rows() -> None:
    found = versions(hand_made(3, []))
    assert len(found) == 0
    assert found.last_of(np.array([0, 1])).tolist() == [-1, -1]
    assert len(found.readers[0]) == len(found.writers[0]) == 1


@pytest.mark.parametrize("parts", [2**11, 2**20])
def test_huge_numbers(parts: int) -> None:
    """Steps, slots, ranks and chunks near their limits: keys must not overflow."""
    ranks, last = 2**24, 2**31 - 2
    collective = Collective("allreduce", ranks, members=(0, ranks - 1))
    rows = [
        (0, 0, 0, 0, ranks - 1, 0, 1),
        (last - 1, parts - 1, ranks - 1, 0, 0, 2**15 - 1, 0),
        (last, parts - 1, 0, 2**15 - 1, ranks - 1, 1, 0),
        (last, parts - 1, ranks - 1, 1, 0, 2**15 - 2, 0),
    ]
    rows += [(100 * k, parts // 2, 0, 0, ranks - 1, 2**15 - 1, 0) for k in range(1, 9)]
    step, chunk, src, src_slot, dst, dst_slot, op = np.array(rows).T
    schedule = Schedule(
        collective, cut(collective, parts), step, chunk, src, dst, op, src_slot=src_slot, dst_slot=dst_slot
    )  # fmt: skip
    assert cell_keys(schedule, "src")[1] == parts * ranks * 2**15
    found = versions(schedule)
    reads, writes = plainly(schedule)
    for version, (cell, number) in [*zip(found.read, reads, strict=True), *zip(found.write, writes, strict=True)]:
        assert (found.chunk[version], found.rank[version], found.slot[version]) == cell
        assert (found.step[version] == -1) == (number == 0)
    assert found.step[found.write].tolist() == [row[0] for row in rows]
    assert int(found.initial.sum()) == 6 + 2


DIRECT = """
import numpy as np
from antiphon.core.collective import Collective
from antiphon.core.dependencies import versions
from antiphon.core.schedule import Schedule, cut

def peak():
    # KiB of this program alone: ru_maxrss would begin at what its parent had taken when it forked
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

P = 1024
src, dst = (x.ravel().astype(np.int32) for x in np.divmod(np.arange(P * P), P))
keep = src != dst
src, dst = src[keep], dst[keep]
collective = Collective("allreduce", P)
zero = np.zeros(len(src), np.int32)
schedule = Schedule(collective, cut(collective, 1), zero, zero, src, dst, np.ones(len(src), np.uint8))
before = peak()
found = versions(schedule)
assert len(found) == 2 * P
assert np.array_equal(found.read, 2 * src) and np.array_equal(found.write, 2 * dst + 1)
assert np.array_equal(np.diff(found.readers[0]), np.tile([P - 1, 0], P))
print(before, peak())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_direct_allreduce_on_1024_ranks_stays_small() -> None:
    """A million rows, where explicit edges would be 10^9."""
    done = subprocess.run([sys.executable, "-c", DIRECT], capture_output=True, text=True, check=True)
    before, after = (int(n) / 1024 for n in done.stdout.split())
    assert after < 400, f"{after:.0f} MB, {before:.0f} of them before"
