"""Write the input of PICCL's simulator (`antiphon export --to piccl-xml`): its schedule XML and, with a profile, its
topology XML and parameter files.

Each message of the plan at one size becomes a <transfer>, with the transfers that it waits for (module `_schedule`
describes the format). The text of a transfer consists of sections (STEP to TAIL below). Each section of a batch of
transfers is added as columns of numbers with a template, and `Lines` writes all in order, so that a million transfers
take seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import quoteattr

import msgspec
import numpy as np

from antiphon.core.columns import Longs, order_of, run_starts
from antiphon.core.joints import refuse_joints
from antiphon.core.messages import MOST_DEPENDENCIES, Messages, Sets, sets, waits
from antiphon.core.messages import messages as messages_of
from antiphon.core.plan import Plan
from antiphon.core.schedule import COPY, REDUCE
from antiphon.core.serialize import dumps
from antiphon.core.transform import expand
from antiphon.cost import as_profile
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.files import FileContent
from antiphon.formats.message_options import check_order
from antiphon.formats.piccl._machine_written import topology_files
from antiphon.formats.text import Lines
from antiphon.units import parse_size

FILE = "schedule.xml"
_BATCH = 2**17  # messages written at a time
_NAMES = {"reducescatter": "reduce_scatter"}  # collectives that PICCL calls otherwise
# sections of the text of a transfer, in their order; PARTS: their number
STEP, HEAD, DEPS, MIDDLE, LEFT, COPIES, REDUCES, ROUTE, TAIL, PARTS = range(10)


def piccl_xml(
    plan: Plan, *, nbytes: int | str, order: str = "rounds", profile: Any = None, local: str = ""
) -> dict[str, FileContent]:
    """Write the transfers of a plan at one size as PICCL's schedule XML, with their dependencies.

    Additional attributes, which PICCL ignores, record the data of each transfer and the plan, so that reading the file
    restores it. `left` lists transfers whose last byte must have left before: PICCL has no such condition, as it
    gives every receiver buffers of its own. O(n log n) in rows and dependencies, written as a stream.

    Parameters
    ----------
    order
        When a transfer may start: "rounds" (PICCL's own) waits for everything that its source sent or received in
        earlier steps, "data" for the versions that it reads (docs/program.md).
    profile
        A profile with LogGP parameters: also write the topology and the parameter files.
    local
        "off" omits local work that the schedule declares. Default: such a schedule is an error, as transfers cannot
        express it.
    """
    size = parse_size(nbytes, "nbytes")
    files: dict[str, FileContent] = {}
    if profile is not None:
        used_profile = as_profile(profile)
        if used_profile.loggp is None:
            raise Invalid(
                f'profile {used_profile.name!r}: has no figures for LogGP; give it "loggp": {{"levels": [...]}}'
            )
        files |= topology_files(plan.topology, used_profile.loggp)
    schedule = plan.at(size).schedule
    refuse_joints(schedule, "export to piccl-xml")
    if local not in ("", "off"):
        raise Invalid(f"option local of format piccl-xml: expected off, got {quote(local)}")
    if schedule.local and not local:
        kinds = ", ".join(work.kind for work in schedule.local)
        raise Unsupported(
            f"the plan ends with local work ({kinds}), which PICCL's transfers cannot say; local=off leaves it out, as "
            "our own runtimes do, and export to goal can write it"
        )
    messages = messages_of(expand(schedule))  # a transfer per slice of a chunk
    inner = np.flatnonzero(messages.src == messages.dst)
    if inner.size:
        raise Unsupported(
            f"in step {messages.step[inner[0]]} rank {messages.src[inner[0]]} moves data within itself, which PICCL's "
            "transfers cannot say; export to goal does"
        )
    check_order(order)
    needs = sets(waits(messages, order))  # what messages wait for; equal sets are stored once
    if needs.pairs > MOST_DEPENDENCIES:
        raise Unsupported(
            f"its {len(messages)} transfers wait for each other in {needs.pairs} pairs, more than {MOST_DEPENDENCIES}; "
            "export to goal, which writes joins instead of pairs"
        )
    return {FILE: _write_text(plan, messages, needs, size), **files}


def _write_text(plan: Plan, messages: Messages, needs: Sets, nbytes: int) -> Iterator[bytes]:
    """Yield the file: the head with the plan without rows, then the transfers, batch by batch."""
    provenance = messages.schedule.provenance
    k = provenance.get("options", {}).get("k")
    attributes = {
        "name": _NAMES.get(plan.collective.kind, plan.collective.kind),
        "algorithm": str(provenance.get("planner", "")),
        **({"k": str(k)} if isinstance(k, int) and not isinstance(k, bool) else {}),
        "nodes": str(plan.collective.ranks),
        "buffer_size": str(nbytes),
    }
    head = "".join(f" {key}={quoteattr(value)}" for key, value in attributes.items())
    empty_plan = Plan.of(plan.topology, messages.schedule.take([]))
    plan_text = quoteattr(msgspec.json.format(dumps(empty_plan), indent=-1).decode())
    yield f"<collective{head}>\n    <antiphon plan={plan_text}/>\n".encode()
    rows = order_of(messages.of_row, max(len(messages), 1))
    first_row = np.concatenate([[0], np.cumsum(np.bincount(messages.of_row, minlength=len(messages)))])
    sizes, _ = messages.nbytes(nbytes)
    # needs.message is sorted: the waits of a batch are consecutive
    first_wait = np.searchsorted(needs.message, np.arange(0, len(messages) + _BATCH, _BATCH))
    for number, low in enumerate(range(0, len(messages), _BATCH)):
        high = min(low + _BATCH, len(messages))
        waiting = needs.listed(np.arange(first_wait[number], first_wait[number + 1]))
        yield from _write_batch(messages, sizes, (low, high), rows[first_row[low] : first_row[high]], waiting)
    yield b"</collective>\n"


def _write_batch(
    messages: Messages, sizes: Longs, span: tuple[int, int], rows: Longs, waiting: tuple[Longs, Longs]
) -> Iterator[bytes]:
    """Yield the transfers from span[0] to below span[1].

    `rows`: their rows of the schedule, by transfer. `waiting`: the columns transfer and 2 * t, for the transfer t that
    must be done before it, or 2 * t + 1 if the last byte of t must have left.
    """
    lines, (low, high), (waiter, condition) = Lines(), span, waiting
    number = np.arange(low, high)
    first_place = (number - low) * PARTS  # in `lines`, which writes by place: one for each section of a transfer
    step = messages.step[low:high]
    begins_step = np.append(low == 0 or messages.step[low - 1] != step[0], step[1:] != step[:-1])
    lines.add(first_place[begins_step] + STEP, "\n    <!-- step %d -->\n", step[begins_step])
    ends = (messages.src[low:high], messages.dst[low:high])
    lines.add(
        first_place + HEAD, '    <transfer id="%d" size="%d" src="%d" dst="%d" deps="', number, sizes[low:high], *ends
    )
    done = (condition & 1) == 0  # waits for transfers that are done; the others, for those that have left, come below
    owner, awaited = waiter[done], condition[done] >> 1
    is_free = np.ones(len(number), np.bool_)  # waits for no transfer
    is_free[owner - low] = False
    lines.add(first_place[is_free] + DEPS, "-1")
    # template 0 for the first wait of a transfer, 1 for those after it
    lines.mixed((owner - low) * PARTS + DEPS, ("%d", ",%d"), (~run_starts(owner)).astype(np.int64), awaited)
    lines.add(first_place + MIDDLE, '" step="%d"', step)
    owner, awaited = waiter[~done], condition[~done] >> 1
    places, kind = (owner - low) * PARTS + LEFT, (~run_starts(owner)).astype(np.int64)
    lines.mixed(places, (' left="%d', ",%d"), kind, awaited)
    # the closing quote, behind the last of each transfer (the slice is for no places at all)
    lines.add(places[np.append(places[1:] != places[:-1], True)[: len(places)]], '"')
    _write_data(lines, messages, rows, low)
    routed = np.flatnonzero(messages.route[low:high] >= 0)
    lines.add(first_place[routed] + ROUTE, ' route="%d"', messages.route[low:high][routed])
    lines.add(first_place + TAIL, "/>\n")
    yield from lines.text()


def _write_data(lines: Lines, messages: Messages, rows: Longs, low: int) -> None:
    """Add the chunks of each transfer, copied or reduced; consecutive chunks in slots 0 become a range such as 0-3.

    >>> from antiphon import plan
    >>> schedule = plan("allgather", "star:ranks=4", planner="bruck").at(12).schedule
    >>> schedule.step.tolist(), schedule.chunk.tolist()  # in step 1 every rank sends two chunks
    ([0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], [1, 2, 3, 0, 2, 3, 0, 1, 3, 0, 1, 2])
    >>> lines = Lines()
    >>> _write_data(lines, messages_of(schedule), np.arange(12), 0)
    >>> b"".join(lines.text())
    b' copy="0" copy="1" copy="2" copy="3" copy="0-1" copy="1-2" copy="2-3" copy="0,3"'
    """
    schedule = messages.schedule
    transfer, chunk, op = messages.of_row[rows] - low, schedule.chunk[rows].astype(np.int64), schedule.op[rows]
    slots = [schedule.slot(side)[rows] for side in ("src", "dst")]
    order = np.lexsort((slots[1], slots[0], chunk, op, transfer))
    transfer, chunk, op = transfer[order], chunk[order], op[order]
    src_slot, dst_slot = (slot[order] for slot in slots)
    plain = (src_slot == 0) & (dst_slot == 0)
    joins = (
        (transfer[1:] == transfer[:-1]) & (op[1:] == op[:-1]) & (chunk[1:] == chunk[:-1] + 1) & plain[1:] & plain[:-1]
    )
    begin = np.flatnonzero(np.append(True, ~joins)[: len(transfer)])
    last = chunk[np.append(begin[1:], len(transfer)) - 1] if len(transfer) else chunk
    transfer, chunk, op, plain = transfer[begin], chunk[begin], op[begin], plain[begin]
    # 0: a chunk; 1: a range; 2: a chunk from slot to slot. A form takes as many of three columns as it has numbers.
    forms = ("%d", "%d-%d", "%d:%d:%d")
    kind = np.where(plain, (last > chunk).astype(np.int64), 2)
    second = np.where(kind == 1, last, src_slot[begin])
    for code, section, key in ((COPY, COPIES, "copy"), (REDUCE, REDUCES, "reduce")):
        runs = np.flatnonzero(op == code)
        places = transfer[runs] * PARTS + section
        templates = [f' {key}="{number_format}' for number_format in forms] + [
            f",{number_format}" for number_format in forms
        ]
        offset = np.where(run_starts(places), 0, len(forms))  # all but the first of a transfer begin with a comma
        lines.mixed(places, templates, kind[runs] + offset, chunk[runs], second[runs], dst_slot[begin][runs])
        # the closing quote, behind the last of each transfer
        lines.add(places[np.append(places[1:] != places[:-1], True)[: len(places)]], '"')
