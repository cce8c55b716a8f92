"""Read Chakra execution traces: those that Antiphon wrote as a plan; those of other programs as a list of collectives,
or as a recorded job with computation and dependencies.

Input: files named NAME.RANK.et, one per rank (`read_traces`). Three readings of the nodes:

    plan_of          our own traces: sends and receives are paired by source, destination, tag and size, and the
                     attributes of each send name the rows of the schedule that it carries
    collectives_of   traces of others: a row per call of a collective
    rank_traces_of   traces of others: a timeline per rank, from the durations of nodes and their dependencies
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from antiphon.core.files import name_of, read_bytes, reading
from antiphon.core.jsontext import decode
from antiphon.core.messages import messages
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import loads
from antiphon.cost.replay.job import ProcessGroup
from antiphon.cost.replay.recorded import RankCall, RankTrace
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.chakra.nodes import (
    COLLECTIVE,
    COLLECTIVES,
    COMPUTE,
    METADATA,
    RECEIVE,
    SEND,
    Node,
    Value,
    read_nodes,
    topological_order,
)
from antiphon.formats.chakra.write import ROWS

MAX_FILES = 2**16  # one per rank; in a folder of more, reading stops with an error
Traces = Mapping[int, tuple[Mapping[str, Value], Sequence[Node]]]  # by rank: head of the file, and its nodes
_US = 1e-6  # seconds
# NAME.RANK.et, or RANK.et
_NAME = re.compile(r"(.*?)\.?([0-9]{1,9})\.et(?:\.gz)?")


def files_of(files_or_folders: Sequence[str | os.PathLike[str]]) -> dict[int, Path]:
    """Return the file of each rank, by the number before `.et`; a folder stands for the files in it."""
    paths: list[Path] = []
    for entry in map(Path, files_or_folders):
        try:
            paths += sorted(path for path in entry.iterdir() if _NAME.fullmatch(path.name))
        except (OSError, ValueError):  # not a folder: the reader reports errors
            paths.append(entry)
    if not paths or len(paths) > MAX_FILES:
        raise Invalid(f"expected the files of some ranks, such as NAME.0.et, or their folder; there are {len(paths)}")
    file_of: dict[int, Path] = {}
    for path in paths:
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise Invalid(f"{name_of(path)}: its name does not show its rank; expected NAME.RANK.et")
        rank = int(match[2])
        if rank in file_of:
            raise Invalid(f"{name_of(path)}: {name_of(file_of[rank])} is of rank {rank}, too")
        file_of[rank] = path
    return dict(sorted(file_of.items()))


def read_traces(paths: Sequence[str | os.PathLike[str]]) -> Traces:
    """Read the traces of all ranks. Invalid names the file, and the byte or node."""
    traces = {}
    for rank, path in files_of(paths).items():
        with reading(name_of(path)):
            traces[rank] = read_nodes(read_bytes(path))
    return traces


def has_plan(traces: Traces) -> bool:
    """Return whether Antiphon wrote the traces, so that they contain a plan."""
    return any("antiphon" in head for head, _ in traces.values())


# ---- traces that Antiphon wrote ----


def plan_of(traces: Traces) -> Plan:
    """Return the plan that `export --to chakra` wrote, for the one nbytes that was exported. Its pieces have become
    chunks.

    Invalid if sends and receives do not match, or carry other sizes than the plan says. The plan is not verified here.
    """
    head = next((head for head, _ in traces.values() if "antiphon" in head), None)
    if head is None:
        raise Invalid("these traces contain no plan: they were not written by export --to chakra")
    plan = loads(str(head["antiphon"]).encode(), "the plan in the head")
    expected = "the plan in the head: expected one with one schedule, whose rows are in the nodes"
    if not isinstance(plan, Plan) or len(plan.entries) != 1:
        raise Invalid(expected)
    (entry,) = plan.entries
    if entry.schedule.transfers:
        raise Invalid(expected)
    if set(traces) != set(range(plan.collective.ranks)):
        raise Invalid(f"expected the files of ranks 0 to {plan.collective.ranks - 1}, and there are {len(traces)}")
    sent = _match_messages(traces)
    schedule = _with_rows(entry.schedule, sent)
    _check_sizes(schedule, str(head.get("nbytes", "")), sent)
    return replace(plan, entries=(replace(entry, schedule=schedule),))


def _match_messages(traces: Traces) -> list[tuple[int, Node]]:
    """Return the sends and copies of all ranks with their rank, in the order of node numbers, which our writer derives
    from the numbers of messages. Invalid if a send has no receive or a receive no send."""
    # a message is identified by its ends, tag and size
    sent: dict[tuple[Any, ...], tuple[int, Node]] = {}
    received: set[tuple[Any, ...]] = set()
    copies = []
    for rank, (_, nodes) in traces.items():
        for node in nodes:
            src, dst, tag, size = (node.integer(name) for name in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
            key = src, dst, tag, size
            if node.type in (SEND, RECEIVE):
                earlier_keys, own_end = (sent, src) if node.type == SEND else (received, dst)
                if own_end != rank or None in key or key in earlier_keys:
                    raise Invalid(f"rank {rank}, node {node.id}: its ends, tag or size are not there, or given twice")
                if node.type == SEND:
                    sent[key] = rank, node
                else:
                    received.add(key)
            # a copy within a rank is written as computation with a step
            elif node.type == COMPUTE and "step" in node.attributes:
                copies.append((rank, node))
    # report one unmatched message
    if sent.keys() != received:
        src, dst, tag, size = min(sent.keys() ^ received)
        raise Invalid(f"message {tag} of {size} bytes from rank {src} to {dst} is not both sent and received")
    return sorted([*sent.values(), *copies], key=lambda pair: pair[1].id)


def _with_rows(empty: Schedule, sent: Sequence[tuple[int, Node]]) -> Schedule:
    """Return the schedule with the rows that the nodes name. A copy stays within its rank."""
    columns: dict[str, list[int]] = {name: [] for name in ("step", "src", "dst", "route", *ROWS)}
    # ROWS: chunk, op and the slot columns. The latter are optional: schedules without scratch slots omit them
    listed = {name for name in ROWS if any(name in node.attributes for _, node in sent)} | {"chunk", "op"}
    for rank, node in sent:
        lists = {name: node.attributes.get(name) for name in listed}
        count = len(lists["chunk"]) if isinstance(lists["chunk"], list) else 0
        for name, values in lists.items():
            if not count or not isinstance(values, list) or len(values) != count:
                raise Invalid(f"node {node.id}: {name} is not there for each row of the message")
            columns[name] += values  # type: ignore[arg-type]  # np.array and Schedule check the items
        dst = rank if node.type == COMPUTE else node.integer("comm_dst")
        for name, value in (
            ("step", node.integer("step")),
            ("src", rank),
            ("dst", dst),
            ("route", node.integer("route")),
        ):
            # a missing route is -1, the default route; the schedule refuses -1 as a step or rank
            columns[name] += [-1 if value is None else value] * count
    for name in ("src_slot", "dst_slot"):
        if name not in listed:
            del columns[name]
    try:
        arrays: dict[str, Any] = {name: np.array(values, np.int64) for name, values in columns.items()}
        return replace(empty, **arrays)
    except OverflowError:
        raise Invalid("a row has a number that is out of range") from None


def _check_sizes(schedule: Schedule, nbytes: str, sent: Sequence[tuple[int, Node]]) -> None:
    """Check that every message has the size that the schedule gives it for a call of `nbytes`."""
    if not nbytes.isascii() or not nbytes.isdigit() or len(nbytes) > 18:  # longer ones may not fit int64
        raise Invalid(f"nbytes of the head: expected a number of bytes, got {quote(nbytes)}")
    table = messages(schedule)
    message_bytes, _combined_bytes = table.nbytes(int(nbytes))
    size = np.maximum(message_bytes, 1).tolist()  # an empty message is written as one byte
    for _, node in sent:
        tag = node.integer("comm_tag")
        # a copy within a rank has no tag
        if tag is not None and (tag >= len(size) or node.integer("comm_size") != size[tag]):
            raise Invalid(f"node {node.id}: is not the message {tag} of {size[tag] if tag < len(size) else 'no'} bytes")


# ---- traces of other programs ----


def collectives_of(traces: Traces) -> list[dict[str, Any]]:
    """Return a row per collective that each rank calls, in an order that its dependencies allow.

    Keys: rank, node, name, collective, nbytes (as in the trace), group and members (None: all, or unknown), root,
    start_us, duration_us.
    """
    rows = []
    for rank, (_, nodes) in traces.items():
        groups = groups_of(nodes)
        for node in topological_order(nodes):
            if node.type == COLLECTIVE:
                rows.append({"rank": rank, **collective_of(node, groups)})
    return rows


def collective_of(node: Node, groups: Mapping[str, list[int]]) -> dict[str, Any]:
    """Return the row of a collective (`collectives_of`, without the rank)."""
    kind, size = node.integer("comm_type"), node.integer("comm_size")
    if kind is None or not 0 <= kind < len(COLLECTIVES):
        raise Unsupported(f"node {node.id}: a collective of type {kind}; known are 0 to {len(COLLECTIVES) - 1}")
    if size is None or not 0 <= size < 2**60:
        raise Invalid(f"node {node.id}: comm_size: expected a number of bytes, got {size}")
    group = str(node.attributes.get("pg_name", ""))
    return {
        "node": node.id, "name": node.name, "collective": COLLECTIVES[kind], "nbytes": size, "group": group,
        "members": groups.get(group), "root": node.integer("root_rank"), "start_us": node.start_us,
        "duration_us": node.duration_us,
    }  # fmt: skip


class _Group(msgspec.Struct):
    """A process group as PyTorch lists it."""

    pg_name: Any  # a text or a number
    ranks: list[int]


def groups_of(nodes: Sequence[Node]) -> dict[str, list[int]]:
    """Return the ranks of process groups by name, from metadata nodes of PyTorch whose inputs list them as JSON."""
    ranks_of: dict[str, list[int]] = {}
    for node in nodes:
        begin, end = node.inputs.find("[{"), node.inputs.rfind("}]")
        if node.type != METADATA or not 0 <= begin < end:
            continue
        try:
            groups = decode(node.inputs[begin : end + 2].encode(), list[_Group])
        except Invalid:
            raise Invalid(f"node {node.id}: its process groups are no list of pg_name and ranks") from None
        ranks_of |= {str(group.pg_name): group.ranks for group in groups if group.ranks}
    return ranks_of


# ---- traces of other programs as a recorded job ----


def rank_traces_of(traces: Traces) -> list[RankTrace]:
    """Return a timeline per rank, simulated from durations and dependencies of nodes; recorded start times are unused.

    Computation runs one node after another. Collectives run beside it, those of one process group one after another.
    All other nodes, also sends and receives, take no time.
    """
    return [_record_rank(rank, nodes, len(traces)) for rank, (_, nodes) in traces.items()]


def _record_rank(rank: int, nodes: Sequence[Node], ranks: int) -> RankTrace:
    """Return the timeline of a rank: simulate its nodes in order. Times are in seconds.

    `computed_until`: end of computation so far. `group_free_from`: by process group the end of its last collective.
    """
    process_groups = groups_of(nodes)
    groups: dict[str, ProcessGroup] = {}
    calls: list[RankCall] = []
    waits: list[tuple[float, float, int]] = []  # begin, end, call
    # by node: its end, and the last collective that it depends on (number in `calls`); -1: none, or computation that
    # the node depends on has waited for it already
    done: dict[int, tuple[float, int]] = {}
    already_waited: set[int] = set()
    computed_until, group_free_from = 0.0, dict[str, float]()
    # in topological order; of those that may come next, the earliest recorded start is first
    for node in topological_order(sorted(nodes, key=lambda node: (node.start_us, node.id))):
        dependencies = [done[other] for other in node.dependencies]
        last_collective = max(
            (call for _, call in dependencies), key=lambda call: calls[call].end if call >= 0 else -1.0, default=-1
        )
        if node.type == COMPUTE:
            # computation after a collective: the rank waits for it, once
            if last_collective >= 0 and last_collective not in already_waited:
                waits.append((computed_until, max(computed_until, calls[last_collective].end), last_collective))
                computed_until = max(computed_until, calls[last_collective].end)
                already_waited.add(last_collective)
            computed_until += node.duration_us * _US
            done[node.id] = computed_until, -1
        elif node.type == COLLECTIVE:
            row: dict[str, Any] = collective_of(node, process_groups)
            name, members = row["group"], tuple(row["members"] or ())
            groups.setdefault(name, ProcessGroup(name, len(members) or ranks, members))
            ready = max([0.0, *(at for at, _ in dependencies)])  # when all dependencies are done
            # collectives of one group run one after another
            begin = max(ready, group_free_from.get(name, 0.0))
            group_free_from[name] = begin + node.duration_us * _US
            calls.append(
                RankCall(
                    kind=row["collective"],
                    nbytes=row["nbytes"],
                    group=name,
                    # Ready later: the rank calls it once it has computed, which queues it behind the collective that
                    # it depends on, and computes on. Ready earlier: it calls then, as collectives run beside
                    # computation.
                    called=min(ready, computed_until),
                    start=begin,
                    end=group_free_from[name],
                    lane=name,  # as if each group had a stream of its own
                    step=0,  # the whole trace is one training step
                )
            )
            done[node.id] = group_free_from[name], len(calls) - 1
        else:  # takes no time: sends and receives, too, as only collectives are compared with our plans
            done[node.id] = max([0.0, *(at for at, _ in dependencies)]), last_collective
    if not calls:
        raise Invalid(f"rank {rank}: has no collectives")
    end = max([computed_until, *(call.end for call in calls)])
    if not end > 0:
        raise Invalid(f"rank {rank}: no node has a duration (duration_micros)")
    # one host for all ranks: simulated timelines have the same clock
    return RankTrace(rank=rank, host="", groups=groups, steps=[(0.0, end)], calls=calls, waits=waits)
