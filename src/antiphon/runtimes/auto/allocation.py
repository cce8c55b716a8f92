"""From a job's question to its machine: one with a rank for each process, in their order."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from antiphon.core.topology import hosts
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.probe import here
from antiphon.formats.probe.found import Probed, ranks_named
from antiphon.formats.probe.joining import joined, read_machine
from antiphon.runtimes.serve.auto_question import MACHINE, RANKS, Process, processes
from antiphon.units import parse_ranks

Look = Callable[[str], Probed]
_NOBODY: Mapping[str, str] = {}  # which GPUs a process sees, each has said for itself


def allocation(question: str, environment: Mapping[str, str] | None = None, look: Look | None = None) -> Probed:
    """The machine of the processes that ask. Invalid or Unsupported where nothing can be known of it.

    `look`: probes this machine, "" for the box and "slurm" for the network around it.
    """
    who = processes(question)
    environment = os.environ if environment is None else environment
    named = environment.get(MACHINE, "")
    found = read_machine(named) if named else _probed(who, environment, look or _look)
    ranks = _ranks(found, who, environment)
    if ranks != list(range(found.machine.ranks)):
        found = found.only(ranks, f"only ranks {','.join(map(str, ranks))}"[:200])
    if found.machine.ranks < 2 or not found.machine.links:
        raise Unsupported(f"{found.machine.name}: there is nothing to plan on {found.machine.ranks} ranks")
    return found


def _look(source: str) -> Probed:
    return here.look(source, environment=None if source else _NOBODY)


def _probed(who: Sequence[Process], environment: Mapping[str, str], look: Look) -> Probed:
    """What the tools of this host show; on several hosts the same box in each, on the network that Slurm tells of."""
    box = look("")
    boots = list(dict.fromkeys(process.boot for process in who))
    if not box.names or not box.names[0].startswith("GPU"):
        raise Unsupported(f"no GPU is seen here ({'; '.join(box.notes)[:200]}); name the machine by {MACHINE}")
    if len(boots) == 1:
        return box
    if not environment.get("SLURM_JOB_ID"):
        raise Unsupported(f"{len(boots)} hosts, and nothing tells how they are joined; name the machine by {MACHINE}")
    fabric = look("slurm")
    names = [next(process.host for process in who if process.boot == boot) for boot in boots]
    short = replace(fabric, names=tuple(name.partition(".")[0] for name in fabric.names))
    order = ranks_named(short, [name.partition(".")[0] for name in names], "the hosts of this job")
    return joined(box, fabric.only(order, "the hosts of this job") if order != list(range(len(order))) else fabric)


def _ranks(found: Probed, who: Sequence[Process], environment: Mapping[str, str]) -> list[int]:
    """Which rank of the machine every process is."""
    machine = found.machine
    if told := environment.get(RANKS, ""):
        ranks = parse_ranks(told, RANKS)
        if len(ranks) != len(who) or len(set(ranks)) != len(ranks) or max(ranks) >= machine.ranks:
            raise Invalid(
                f"{RANKS}={told[:60]}: names {len(set(ranks))} ranks; needed is one of the {machine.ranks} of "
                f"{machine.name} for each of {len(who)} processes"
            )
        return ranks
    if len(who) > machine.ranks:
        raise Unsupported(f"{machine.name} has {machine.ranks} ranks, but there are {len(who)} processes")
    boxes = hosts(machine)
    boots = list(dict.fromkeys(process.boot for process in who))
    if not boxes or len(boots) == 1:
        return _in_box(list(range(machine.ranks)), who)
    ranks = [-1] * len(who)
    if len(boots) > len(set(boxes)):
        raise Unsupported(f"{machine.name} has {len(set(boxes))} hosts, but the processes are on {len(boots)}")
    for number, boot in enumerate(boots):
        mine = [place for place, process in enumerate(who) if process.boot == boot]
        box = [rank for rank in range(machine.ranks) if boxes[rank] == number]
        for place, rank in zip(mine, _in_box(box, [who[place] for place in mine]), strict=True):
            ranks[place] = rank
    return ranks


def _in_box(box: Sequence[int], who: Sequence[Process]) -> list[int]:
    """Of the processes of one host: each the GPU that it alone sees, or they share what all see in their order."""
    if len(who) > len(box):
        raise Unsupported(f"there are {len(who)} processes on a host of {len(box)} GPUs")
    lists = [_numbers(process.visible) for process in who]
    known = [numbers for numbers in lists if numbers is not None]
    if not known or (len(who) == len(box) and any(number >= len(box) for numbers in known for number in numbers)):
        return list(box[: len(who)])  # nothing is told; or numbers of a larger machine, of which this is just the part
    first = known[0]
    if len(known) < len(who):
        raise Unsupported(f"what GPUs processes see is told by some alone; set it for all, or {RANKS}")
    if all(numbers == first for numbers in known) and len(first) >= len(who):
        chosen = first[: len(who)]
    elif all(len(numbers) == 1 for numbers in known) and len({numbers[0] for numbers in known}) == len(who):
        chosen = [numbers[0] for numbers in known]
    else:
        raise Unsupported(f"which GPU each process uses cannot be told; say so by {RANKS}=0,1,...")
    if max(chosen) >= len(box):
        raise Invalid(f"GPU {max(chosen)} is named to be seen, but the host has {len(box)}")
    return [box[number] for number in chosen]


def _numbers(visible: str) -> list[int] | None:
    """The GPUs that a process sees; None where nothing is said, or not by numbers."""
    if visible == "-":
        return None
    words = visible.removeprefix("=").split(",")
    if not all(re.fullmatch(r"[0-9]{1,6}", word) for word in words):
        return None
    return [int(word) for word in words]
