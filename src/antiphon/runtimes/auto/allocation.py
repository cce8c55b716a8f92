"""Determine the machine of a job that asks for plans: one rank per process, in the order of the processes.

The question of the job (a text, serve/auto_question) lists host, boot id and visible GPUs of every process. The machine
is the one that the user named in $ANTIPHON_TOPOLOGY; else this host is probed, and with several hosts the same box is
assumed in each, on the network that Slurm reports. Then every process gets a rank: as named in the environment, or the
GPU that it sees.

    8 processes on one host of 8 GPUs; CUDA_VISIBLE_DEVICES is 3 in process 0, ...    ranks 3, ...
    4 processes with CUDA_VISIBLE_DEVICES=4,5,6,7 in each                            ranks 4, 5, 6, 7
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from antiphon.core.topology import hosts
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.probe import here
from antiphon.formats.probe.joining import join_box_and_fabric, read_machine
from antiphon.formats.probe.probed import Probed, ranks_named
from antiphon.runtimes.serve.auto_question import MACHINE, RANKS, ProcessPlace, read_processes
from antiphon.units import parse_ranks

Probe = Callable[[str], Probed]
# no environment variables: visible GPUs are in the question, and must not count twice
_NO_VARIABLES: Mapping[str, str] = {}


def find_allocation(question: str, environment: Mapping[str, str] | None = None, probe: Probe | None = None) -> Probed:
    """Return the machine of the processes of the question. Invalid or Unsupported if it cannot be determined.

    `probe`: probes this machine, "" for the box and "slurm" for the network around it.
    """
    job = read_processes(question)
    environment = os.environ if environment is None else environment
    named = environment.get(MACHINE, "")
    probed = read_machine(named) if named else _probe_hosts(job, environment, probe or _probe_source)
    ranks = _assign_ranks(probed, job, environment)
    if ranks != list(range(probed.machine.ranks)):
        probed = probed.only(ranks, f"only ranks {','.join(map(str, ranks))}"[:200])
    if probed.machine.ranks < 2 or not probed.machine.links:
        raise Unsupported(f"{probed.machine.name}: there is nothing to plan on {probed.machine.ranks} ranks")
    return probed


def _probe_source(source: str) -> Probed:
    return here.look_at_machine(source, environment=None if source else _NO_VARIABLES)


def _probe_hosts(job: Sequence[ProcessPlace], environment: Mapping[str, str], probe: Probe) -> Probed:
    """Probe this host; with several hosts, assume the same box in each, on the network that Slurm reports."""
    box = probe("")
    boot_ids = list(dict.fromkeys(process.boot for process in job))
    if not box.names or not box.names[0].startswith("GPU"):
        raise Unsupported(f"no GPU is seen here ({'; '.join(box.notes)[:200]}); name the machine by {MACHINE}")
    if len(boot_ids) == 1:
        return box
    if not environment.get("SLURM_JOB_ID"):
        raise Unsupported(f"{len(boot_ids)} hosts, and their network is unknown; name the machine by {MACHINE}")
    fabric = probe("slurm")
    names = [next(process.host for process in job if process.boot == boot_id) for boot_id in boot_ids]
    short = replace(fabric, names=tuple(name.partition(".")[0] for name in fabric.names))
    order = ranks_named(short, [name.partition(".")[0] for name in names], "the hosts of this job")
    # if the job has the first hosts in order, further ones may stay: `find_allocation` leaves out their ranks
    return join_box_and_fabric(
        box, fabric.only(order, "the hosts of this job") if order != list(range(len(order))) else fabric
    )


def _assign_ranks(probed: Probed, job: Sequence[ProcessPlace], environment: Mapping[str, str]) -> list[int]:
    """Return the rank of every process in the machine."""
    machine = probed.machine
    if setting := environment.get(RANKS, ""):
        ranks = parse_ranks(setting, RANKS)
        if len(ranks) != len(job) or len(set(ranks)) != len(ranks) or max(ranks) >= machine.ranks:
            raise Invalid(
                f"{RANKS}={setting[:60]}: names {len(set(ranks))} ranks; needed is one of the {machine.ranks} of "
                f"{machine.name} for each of {len(job)} processes"
            )
        return ranks
    if len(job) > machine.ranks:
        raise Unsupported(f"{machine.name} has {machine.ranks} ranks, but there are {len(job)} processes")
    host_of = hosts(machine)  # by rank; empty: all ranks are on one host
    boot_ids = list(dict.fromkeys(process.boot for process in job))
    if not host_of or len(boot_ids) == 1:
        return _assign_gpus(list(range(machine.ranks)), job)
    ranks = [-1] * len(job)
    if len(boot_ids) > len(set(host_of)):
        raise Unsupported(f"{machine.name} has {len(set(host_of))} hosts, but the processes are on {len(boot_ids)}")
    # the hosts of the machine in the order in which the processes name theirs
    for number, boot_id in enumerate(boot_ids):
        process_numbers = [process_number for process_number, process in enumerate(job) if process.boot == boot_id]
        box = [rank for rank in range(machine.ranks) if host_of[rank] == number]
        for process_number, rank in zip(
            process_numbers, _assign_gpus(box, [job[process_number] for process_number in process_numbers]), strict=True
        ):
            ranks[process_number] = rank
    return ranks


def _assign_gpus(box: Sequence[int], members: Sequence[ProcessPlace]) -> list[int]:
    """Assign GPUs to the processes of a host: the single GPU that each sees, or those that all see, in order.

    `box`: the ranks of its GPUs, by number of the GPU."""
    if len(members) > len(box):
        raise Unsupported(f"there are {len(members)} processes on a host of {len(box)} GPUs")
    lists = [_gpu_numbers(process.visible) for process in members]
    known_lists = [numbers for numbers in lists if numbers is not None]
    if not known_lists or (
        len(members) == len(box) and any(number >= len(box) for numbers in known_lists for number in numbers)
    ):
        # without numbers; or with those of a larger host, where the machine has only the GPUs that the job got
        return list(box[: len(members)])
    first = known_lists[0]
    if len(known_lists) < len(members):
        raise Unsupported(f"only some processes set which GPUs they see; set it for all, or {RANKS}")
    if all(numbers == first for numbers in known_lists) and len(first) >= len(members):
        chosen = first[: len(members)]
    elif all(len(numbers) == 1 for numbers in known_lists) and len({numbers[0] for numbers in known_lists}) == len(
        members
    ):
        chosen = [numbers[0] for numbers in known_lists]
    else:
        raise Unsupported(f"which GPU each process uses is unclear; set {RANKS}=0,1,...")
    if max(chosen) >= len(box):
        raise Invalid(f"GPU {max(chosen)} is named to be seen, but the host has {len(box)}")
    return [box[number] for number in chosen]


def _gpu_numbers(visible: str) -> list[int] | None:
    """Return the numbers of the GPUs visible to a process (`ProcessPlace.visible`); None if unset, or not by
    numbers."""
    if visible == "-":
        return None
    words = visible.removeprefix("=").split(",")
    if not all(re.fullmatch(r"[0-9]{1,6}", word) for word in words):
        return None
    return [int(word) for word in words]
