"""Renumber a plan for another machine that differs only in the numbers of its nodes.

Two machines are isomorphic if their canonical forms are equal (`core/symmetry.py`). In the form, nodes are coloured as
root, member or neither, so that members correspond to members and roots to roots. A plan for one machine is renumbered
for the other by both canonical labellings, and verified there:

    allocation A: GPUs 0 1 4 5, planned
    allocation B: GPUs 2 3 6 7, the same form: relabelled 0>2, 1>3, 4>6, 5>7
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Ints
from antiphon.core.plan import Plan
from antiphon.core.reshape import relabel as relabel_machine
from antiphon.core.symmetry import Labelling, canonical
from antiphon.core.topology import Topology
from antiphon.core.transform import relabel
from antiphon.core.verify import verify
from antiphon.errors import Invalid

OUTSIDE, MEMBER, ROOT = 0, 1, 2  # colours of ranks; switches are OUTSIDE


def renumber_plan(plan: Plan, machine: Topology, plan_labelling: Labelling, labelling: Labelling) -> Plan:
    """Return a plan for another machine in the numbers of `machine`, verified on it.

    `label_machine` returns the labellings: `plan_labelling` of the plan's machine, `labelling` of `machine`. Raises
    Invalid if the machines are not isomorphic, or a schedule is wrong; its text goes on after the name of the plan's
    file ("FILE: its plans are ...").
    """
    (plan_numbers, plan_key), (machine_numbers, key) = plan_labelling, labelling
    if key != plan_key:
        raise Invalid("its plans are for another machine")
    # argsort inverts a labelling: it returns the node that has each canonical number
    new_number = np.empty(machine.nodes, np.int64)  # by node of the plan's machine
    new_number[np.argsort(plan_numbers)] = np.argsort(machine_numbers)
    links = _match_links(relabel_machine(plan.topology, new_number), machine)
    # ranks are the first nodes, and correspond to ranks
    entries = tuple(
        replace(entry, schedule=relabel(entry.schedule, new_number[: machine.ranks], links)) for entry in plan.entries
    )
    for entry in entries:
        fault = verify(entry.schedule, machine).fault
        if fault is not None:
            raise Invalid(f"a schedule is wrong: {fault.message}")
    return Plan(machine, entries[0].schedule.collective, entries)


def label_machine(machine: Topology, collective: Collective) -> Labelling:
    """Return the canonical labelling and key of a machine whose ranks are coloured by their roles in a collective."""
    colours = [OUTSIDE] * machine.nodes
    for rank in collective.members:
        colours[rank] = MEMBER
    for rank in collective.roots:
        colours[rank] = ROOT
    return canonical(machine, colours)


def _match_links(renumbered: Topology, machine: Topology) -> Ints:
    """Return for each link of `renumbered` its number in `machine`, which has the same links in another order.

    Links with equal keys are interchangeable, as far as the key shows; the caller verifies every schedule.
    """
    numbers: dict[object, list[int]] = {}
    for link, key in enumerate(_link_keys(machine)):
        numbers.setdefault(key, []).append(link)
    unmatched = {key: iter(links) for key, links in numbers.items()}
    matched = [next(unmatched.get(key, iter(())), -1) for key in _link_keys(renumbered)]
    if -1 in matched or len(matched) != machine.links:
        raise Invalid("its machine has other links or shared limits")
    return np.array(matched, np.int32)


def _link_keys(machine: Topology) -> list[tuple[object, ...]]:
    """Return for each link its ends, its type, and the bandwidths of the shared limits that include it."""
    limits: list[list[Fraction]] = [[] for _ in range(machine.links)]
    for limit in machine.limits:
        for link in limit.links:
            limits[link].append(limit.bandwidth)
    ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), machine.link_type.tolist(), limits, strict=True)
    return [(src, dst, machine.types[kind], *sorted(bandwidths)) for src, dst, kind, bandwidths in ends]
