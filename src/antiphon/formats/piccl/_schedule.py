"""Read PICCL's schedules: transfers with sizes, endpoints and dependencies; ours also name the data that they carry.

    <collective name="allreduce" algorithm="kring" nodes="4" buffer_size="1024">
        <transfer id="7" size="256" src="0" dst="1" deps="3,5"/>

says that rank 0 sends 256 bytes to rank 1 once transfers 3 and 5 are done, but not which data. So such a schedule can
be timed (it becomes a graph of messages) but not verified. Files that Antiphon wrote also have <antiphon plan="..."/>
with the plan, and on each transfer step, route and chunks (copy="3-5" reduce="7"), so that they can.

The XML is read as a stream into arrays, in batches, so that memory stays a few times that of the arrays.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antiphon.core.columns import Bools, Longs, as_int32, concat_ranges, distinct, pointers
from antiphon.core.files import name_of, reading, within
from antiphon.core.messages import MessageGraph, cycle_of, cycle_text, messages
from antiphon.core.plan import Entry, Plan
from antiphon.core.schedule import COPY, REDUCE
from antiphon.core.serialize import loads
from antiphon.core.topology import MAX_NODES
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.xml import MAX_DIGITS, Attributes, read_integer, read_xml

MAX_ROWS = 2**27  # after runs of chunks are written out, a transfer per chunk
# 3, 3-7, or 3:0:1 (from slot 0 to slot 1)
_RUN = re.compile("([0-9]{1,9})(?:-([0-9]{1,9})|:([0-9]{1,5}):([0-9]{1,5}))?")
_IDS = re.compile("[0-9]{1,18}+(?:,[0-9]{1,18}+)*+")  # possessive (+): backtracking would take memory for each comma
# One value per transfer: id to dst, line of the file, step, route. Per wait: owner (index of the waiting transfer), dep
# (id of the transfer waited for), left. Per run of chunks: a row of runs, see `_read_chunks`.
_COLUMNS = ("id", "size", "src", "dst", "line", "owner", "dep", "left", "step", "route", "runs")
# Attribute -> `left`: waits until transfers are done; until their last byte has left (only in files of Antiphon)
_WAITS = {"deps": 0, "left": 1}
_RUN_WIDTH = 6  # numbers of a row of `runs` (`_read_chunks`)
_BATCH = 2**12  # transfers converted at a time
_OPS = {"copy": COPY, "reduce": REDUCE}  # attribute that lists chunks -> `op` of their rows


@dataclass(frozen=True, eq=False)
class PicclSchedule:
    """The content of a file."""

    path: str  # for messages
    collective: str  # by PICCL's name, such as reduce_scatter
    algorithm: str
    k: int | None  # parameter of the algorithm, if stated
    nbytes: int  # of the call; 0 if not stated
    graph: MessageGraph  # the transfers as messages, in the order of the file
    ids: Longs  # the id of each transfer
    plan: Plan | None = None  # the plan that Antiphon wrote beside them, for this size; None in files of other programs

    def verifiable(self) -> Plan:
        """Return the plan in the file; Unsupported if it has none."""
        if self.plan is None:
            raise Unsupported(
                f"{self.path}: contains sizes, but not the data that moves (it has no <antiphon plan=.../>), so "
                "it can be simulated but not verified (antiphon predict FILE --topology TOPO.xml); files that "
                "`antiphon export --to piccl-xml` wrote can be"
            )
        return self.plan


def read_schedule(path: str | os.PathLike[str]) -> PicclSchedule:
    """Read a schedule; every fault is one line that names file and line. Linear: 1,000,000 transfers in seconds."""
    reader = _Reader()
    read_xml(path, reader)
    with reading(name_of(path)):
        return reader.result(name_of(path))


def _join_arrays(arrays: list[Longs], width: int) -> Longs:
    """Join the arrays of a column. `width`: numbers of a row, if it has several ("runs"), else 0.

    A single array is not copied, to save memory.
    """
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.zeros((0, width) if width else 0, np.int64)


class _Reader:
    """Collect transfers into columns, in batches."""

    def __init__(self) -> None:
        self.depth = 0  # of open elements
        self.head: Attributes = {}  # of <collective>
        self.ranks = self.nbytes = self.count = 0  # count: transfers in `arrays`, without those of the batch
        self.k: int | None = None
        self.plan: Plan | None = None
        self.batch: list[Attributes] = []  # of the transfers that are not converted yet, and their lines of the file
        self.lines: list[int] = []
        self.arrays: dict[str, list[Longs]] = {name: [] for name in _COLUMNS}

    def begin(self, name: str, attributes: Attributes, line: int) -> None:
        """Take an element; `read_xml` calls this and `end`."""
        self.depth += 1
        if name == "transfer" and self.depth == 2:
            self.batch.append(attributes)
            self.lines.append(line)
            # attributes are strings: convert them to arrays before there are too many
            if len(self.batch) == _BATCH:
                self._take_batch()
        elif self.depth == 1:
            self._begin_schedule(name, attributes, line)
        elif self.depth == 2 and name == "antiphon":
            self._read_plan(attributes, line)
        else:
            raise Invalid(f"line {line}: <{name[:40]}> does not belong here; expected <transfer .../> in <collective>")

    def end(self, name: str) -> None:
        self.depth -= 1

    def _begin_schedule(self, name: str, attributes: Attributes, line: int) -> None:
        if name != "collective":
            other = "; `antiphon topology probe --from piccl-xml` reads machines" if name == "topo" else ""
            raise Invalid(f"line {line}: begins with <{name[:40]}>, a schedule with <collective ...>{other}")
        where = f"line {line}: collective"
        self.head = dict(attributes)
        self.ranks = read_integer(attributes, "nodes", where)
        if not 1 <= self.ranks <= MAX_NODES:
            raise Invalid(f"{where}: nodes is {self.ranks}; expected 1 to {MAX_NODES}")
        self.nbytes = read_integer(attributes, "buffer_size", where, default=0)
        self.k = read_integer(attributes, "k", where) if "k" in attributes else None

    def _read_plan(self, attributes: Attributes, line: int) -> None:
        if self.count or self.batch or self.plan is not None:
            raise Invalid(f"line {line}: <antiphon> stands once, before the transfers")
        with within(f"line {line}, antiphon"):
            plan = loads(attributes.get("plan", "").encode("utf-8", "surrogatepass"), "plan")
            if not isinstance(plan, Plan) or len(plan.entries) != 1:
                raise Invalid("plan: expected a plan with one schedule")
            self.plan = plan

    # ---- a batch ----

    def _take_batch(self) -> None:
        """Convert the attributes of the batch to arrays, and begin a new one."""
        if not self.batch:
            return
        all_indices = list(range(len(self.batch)))
        for name in ("id", "size", "src", "dst", *(("step",) if self.plan is not None else ())):
            self._append_column(name, self._read_numbers(name, all_indices))
        for key in _WAITS:
            self._read_dependencies(key)
        if self.plan is not None:
            routed = [i for i in all_indices if "route" in self.batch[i]]
            route = np.full(len(all_indices), -1, np.int64)
            route[routed] = self._read_numbers("route", routed)
            self._append_column("route", route)
            for key, op in _OPS.items():
                self._read_chunks(key, op, [i for i in all_indices if key in self.batch[i]])
        self._append_column("line", self.lines)
        self.count += len(self.batch)
        self.batch, self.lines = [], []

    def _append_column(self, name: str, values: list[int] | Longs) -> None:
        self.arrays[name].append(np.array(values, np.int64))

    def _line_of(self, index: int) -> str:
        return f"line {self.lines[index]}: transfer"

    def _read_numbers(self, key: str, indices: list[int]) -> list[int]:
        """Return the attribute `key` of these transfers of the batch as numbers."""
        texts = [self.batch[i].get(key, "") for i in indices]
        # fast path: all are plain digits; else find the faulty line
        if texts and not (
            "".join(texts).isascii() and all(map(str.isdigit, texts)) and max(map(len, texts)) <= MAX_DIGITS
        ):
            for i in indices:
                read_integer(self.batch[i], key, self._line_of(i))
        return list(map(int, texts))

    def _read_dependencies(self, key: str) -> None:
        """Read the ids of transfers that each transfer of the batch waits for."""
        texts = [attributes.get(key, "-1") for attributes in self.batch]
        waiting = [i for i, text in enumerate(texts) if text != "-1"]
        joined = ",".join([texts[i] for i in waiting])
        # fast path: parse the ids of the whole batch at once
        if joined and _IDS.fullmatch(joined):
            counts = [texts[i].count(",") + 1 for i in waiting]
            self._add_dependencies(
                key,
                np.repeat(np.array(waiting, np.int64) + self.count, counts),
                np.fromstring(joined, np.int64, sep=","),
            )
            return
        for i in waiting:
            ids = [text.strip() for text in texts[i].split(",")]
            ids = [text for text in ids if text not in ("", "-1")]
            if any(not _IDS.fullmatch(text) for text in ids):
                raise Invalid(
                    f"{self._line_of(i)}: {key} is {quote(texts[i])}; expected ids such as 3,7, or -1 for none"
                )
            self._add_dependencies(key, [self.count + i] * len(ids), list(map(int, ids)))

    def _add_dependencies(self, key: str, owner: list[int] | Longs, dep: list[int] | Longs) -> None:
        """Add waits: transfer number `owner` of the file waits for the transfer with the id `dep`."""
        self.arrays["owner"].append(np.array(owner, np.int32))  # narrow types, as these columns may be long
        self._append_column("dep", dep)
        self.arrays["left"].append(np.full(len(dep), _WAITS[key], np.int8))

    def _read_chunks(self, key: str, op: int, indices: list[int]) -> None:
        """Read the runs of chunks that the attribute `key` of these transfers names.

        Columns of `runs`: transfer, first chunk, last chunk, op, source slot, destination slot.
        """
        alone = [i for i in indices if self.batch[i][key].isdigit()]  # a single chunk: by far the most in rings
        chunk = self._read_numbers(key, alone)
        transfer, no_slot = np.array(alone, np.int64) + self.count, np.zeros(len(alone), np.int64)
        runs = np.stack([transfer, chunk, chunk, np.full(len(alone), op), no_slot, no_slot], axis=1)
        self.arrays["runs"].append(runs.astype(np.int64))
        other_runs = []
        for i in indices if len(alone) < len(indices) else ():
            for text in self.batch[i][key].split(",") if not self.batch[i][key].isdigit() else ():
                match = _RUN.fullmatch(text)
                if match is None:
                    where = f"{self._line_of(i)}: {key}"
                    raise Invalid(f"{where}: {quote(text)} names no chunks; expected 3, 3-7 or 3:0:1")
                first, last, *slots = (int(number) for number in match.groups("0"))
                other_runs.append((self.count + i, first, last if match[2] else first, op, *slots))
        self.arrays["runs"].append(np.array(other_runs, np.int64).reshape(-1, _RUN_WIDTH))

    # ---- the end ----

    def result(self, path: str) -> PicclSchedule:
        """Check all transfers together, and return the schedule."""
        self._take_batch()
        # the whole columns
        self.all = {name: _join_arrays(self.arrays.pop(name), _RUN_WIDTH if name == "runs" else 0) for name in _COLUMNS}
        ids, src, dst, size = (self.all[name] for name in ("id", "src", "dst", "size"))
        for name, nodes in (("src", src), ("dst", dst)):
            wrong = np.flatnonzero(nodes >= self.ranks)
            if wrong.size:
                raise self._error_at(int(wrong[0]), f"{name} is {nodes[wrong[0]]}, but nodes are 0 to {self.ranks - 1}")
        wrong = np.flatnonzero(src == dst)
        if wrong.size:
            raise self._error_at(int(wrong[0]), f"goes from node {src[wrong[0]]} to itself; remove it")
        # ids -> indices of transfers in the file
        owner, dep, left = self._resolve_ids(ids)
        ptr = pointers(owner, len(ids))
        # a cycle of waits would never start
        ring = cycle_of(ptr, as_int32(dep))
        if ring:
            raise self._error_at(ring[0], cycle_text(ids[ring].tolist(), "transfer"))
        graph = MessageGraph(self.ranks, as_int32(src), as_int32(dst), size, ptr, as_int32(dep), left=left)
        plan = None
        if self.plan is not None:
            plan, combined = self._complete_plan(self.plan, graph)
            graph = replace(graph, combined=combined)
        name, algorithm = (self.head.get(key, "") for key in ("name", "algorithm"))
        return PicclSchedule(path, name, algorithm, self.k, self.nbytes, graph, ids, plan)

    def _error_at(self, number: int, reason: str) -> Invalid:
        """Return the error about transfer `number` of the file, with its line and id."""
        return Invalid(f"line {self.all['line'][number]}: transfer {self.all['id'][number]}: {reason}")

    def _resolve_ids(self, ids: Longs) -> tuple[Longs, Longs, Bools]:
        """Return the waits, each once: owner, transfer waited for (as indices), whether it only needs to have left.

        Transfers with the ids 10 and 12; the second waits for the first, listed twice:

        >>> reader = _Reader()
        >>> reader.all = {"owner": np.array([1, 1]), "dep": np.array([10, 10]), "left": np.array([0, 0])}
        >>> reader._resolve_ids(np.array([10, 12]))
        (array([1]), array([0]), array([False]))
        """
        owner, dep, left = (self.all.pop(name) for name in ("owner", "dep", "left"))  # these may be long
        count = len(ids)
        # usually ids are the indices already; else look them up by binary search
        if not np.array_equal(ids, np.arange(count)):
            order = np.argsort(ids, kind="stable")
            ordered = ids[order]
            twice = np.flatnonzero(ordered[1:] == ordered[:-1])
            if twice.size:
                first, second = order[twice[0]], order[twice[0] + 1]
                raise self._error_at(int(second), f"line {self.all['line'][first]} has the same id; give each its own")
            position = np.minimum(np.searchsorted(ordered, dep), max(count - 1, 0))
            exists = ordered[position] == dep if count else np.zeros(len(dep), np.bool_)
            index = order[position] if count else position
        else:
            exists, index = dep < count, dep
        if not exists.all():
            wait = int(np.argmin(exists))
            raise self._error_at(int(owner[wait]), f"waits for {dep[wait]}, but there is no transfer of that id")
        # pack (owner, index, left) into one integer: sorting and removing duplicates need one pass
        key = np.multiply(owner, max(count, 1), dtype=np.int64)
        key += index
        key *= 2
        key += left
        del owner, dep, index, left
        if len(key) and bool((key[1:] <= key[:-1]).any()):  # not ascending, or some twice
            key = distinct(key)
        flags = (key & 1).astype(np.bool_)
        key >>= 1
        return key // max(count, 1), key % max(count, 1), flags

    # ---- what only our files have ----

    def _complete_plan(self, plan: Plan, graph: MessageGraph) -> tuple[Plan, Longs]:
        """Return the plan with the transfers as rows, and per message the bytes that its receiver reduces (`combined`).

        Invalid if sizes contradict the chunks.
        """
        entry = plan.entries[0]
        empty_schedule = entry.schedule
        if plan.collective.ranks != graph.ranks:
            raise Invalid(f"nodes is {graph.ranks}, but the plan in <antiphon> is for {plan.collective.ranks}")
        transfer, first, last, op, src_slot, dst_slot = self.all["runs"].T
        wrong = np.flatnonzero((last < first) | (last >= len(empty_schedule.chunks)))
        if wrong.size:
            run = wrong[0]
            raise self._error_at(
                int(transfer[run]), f"chunks {first[run]}-{last[run]}, but there are {len(empty_schedule.chunks)}"
            )
        # a run of chunks becomes a row per chunk
        counts = last - first + 1
        if int(counts.sum()) > MAX_ROWS:
            raise Invalid(f"its transfers carry {counts.sum()} chunks, more than {MAX_ROWS}")
        row, chunk = np.repeat(transfer, counts), concat_ranges(first, counts)
        empty = np.flatnonzero(np.bincount(transfer, minlength=len(graph)) == 0)
        if empty.size:
            raise self._error_at(int(empty[0]), 'carries no chunks; expected copy="..." or reduce="..."')
        step, route = self.all["step"], self.all["route"]
        columns: dict[str, Any] = {
            "step": step[row], "chunk": chunk, "src": graph.src[row], "dst": graph.dst[row],
            "op": np.repeat(op, counts), "route": route[row],
            "src_slot": np.repeat(src_slot, counts), "dst_slot": np.repeat(dst_slot, counts),
        }  # fmt: skip
        schedule = replace(empty_schedule, **columns)
        # derive the messages from the rows, and compare them with those in the file
        expected = messages(schedule)
        if len(expected) != len(graph):
            raise Invalid("two transfers have the same step, src, dst and route; join them")
        # Rows of a transfer have equal step, ends and route, so they are of one message; no transfer is without rows,
        # and there are as many messages: so each is one transfer.
        number = np.empty(len(graph), np.int64)
        number[row] = expected.of_row
        size, combined = (column[number] for column in expected.nbytes(self.nbytes))
        wrong = np.flatnonzero(size != graph.nbytes)
        if wrong.size:
            first_wrong = int(wrong[0])
            should = f"its chunks have {size[first_wrong]} bytes at this buffer_size"
            raise self._error_at(first_wrong, f"size is {graph.nbytes[first_wrong]}, but {should}")
        complete_plan = Plan(plan.topology, plan.collective, (Entry(entry.start, entry.stop, schedule, entry.claims),))
        return complete_plan, combined
