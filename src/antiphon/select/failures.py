"""Plans made beforehand for every single failure: one table for the intact machine and the machine after each failure.

`tune_failures` (tuner.py) lists the failures of links, of single wires of links, of network cards, or of ranks
(`topologies/degraded.py`). It groups those after which the machine is the same up to the numbers of its nodes (equal
canonical forms), and tunes once per class. A table holds the plans of a class with the names of its failures:

    {"dead": ["0-1", "2-3"], "plans": {...}}     the plans are for a machine without 0-1

`choose_surviving` finds the plans for what is dead now and renumbers them: for 2-3 by the isomorphism from the machine
without 0-1 to the one without 2-3. Every schedule is verified after that. ANTIPHON_DEAD lists the dead: names as
`topology degrade` takes them, or @FILE with such names, which is read again for every new communicator or group.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.plan import Plan
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid, list_first
from antiphon.planners.shared.tree_repair import surviving_collective
from antiphon.select.renumber_plans import label_machine, renumber_plan
from antiphon.topologies.degraded import MissingLink, drop_items, failure_name, name_failures

DEAD = "ANTIPHON_DEAD"
MAX_NAMED = 8  # failures that an error lists


@dataclass(frozen=True)
class FailureClass:
    """Failures after which the machines are the same up to the numbers of nodes.

    `load` returns the plans, by collective, for the machine without names[0]; none if its ranks are not all connected.
    """

    names: tuple[str, ...]
    load: Callable[[], dict[str, Plan]]


def classify_failures(
    topology: Topology, of: str, collectives: Sequence[Collective]
) -> list[tuple[tuple[str, ...], Topology]]:
    """Return the classes of single failures: the names of each class, and the machine after the first of them.

    `of`: "links", "wires", "nics" or "ranks".
    """
    classes: dict[tuple[str, ...], list[str]] = {}
    failures = {name: drop_items(topology, [name]) for name in name_failures(topology, of)}
    for name, machine in failures.items():
        reduced = [reduce_collective(collective, machine) for collective in collectives]
        # "": no collective is left, so that the machine does not matter. Forms do not show how much ranks send: with
        # uneven blocks no two failures are alike.
        canonical_forms = tuple(
            name if each and np.ptp(each.weights) else label_machine(machine, each).key if each else ""
            for each in reduced
        )
        classes.setdefault(canonical_forms, []).append(name)
    return [(tuple(names), failures[names[0]]) for names in classes.values()]


def reduce_collective(collective: Collective, machine: Topology) -> Collective | None:
    """Return the collective among the ranks that still have links; None if it lost its root, or all ranks but one."""
    try:
        surviving, _ = surviving_collective(collective, machine)
        return surviving
    except Infeasible:
        return None


def read_dead() -> list[str]:
    """Return the names of what is dead, by $ANTIPHON_DEAD or the file that it names; a missing file names nothing."""
    text = os.environ.get(DEAD, "").strip()
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"{DEAD}={text}: cannot be read: {error}") from None
    return [name for name in re.split(r"[,\s]+", text) if name]


def choose_surviving(
    plans: Mapping[str, Plan], classes: Sequence[FailureClass], dead: Sequence[str], file: str
) -> dict[str, Plan]:
    """Return the plans for the machine without what is dead, by collective; Invalid if there are none for that.

    `plans` and `classes`: of the intact machine and of its failures, from `file`. Plans for a machine that lacks these
    links already are returned as they are.
    """
    machine = next(iter(plans.values())).topology
    names = []
    for text in dead:
        try:
            names.append(failure_name(machine, text))
        except MissingLink:  # the plan was made without this link
            continue
        except Invalid as error:
            raise Invalid(f"{DEAD}: {error}") from None
    if not names:
        return dict(plans)
    for failure_class in classes:
        if len(set(names)) == 1 and names[0] in failure_class.names:
            return _renumber_class(failure_class, names[0], plans)
    available = [name for failure_class in classes for name in failure_class.names]
    listed = list_first(available, MAX_NAMED)
    has = f"has plans for one failure at a time: {listed}" if available else "has no plans for failures"
    raise Invalid(
        f"{file}: {' and '.join(dict.fromkeys(names))} dead ({DEAD}), but the file {has}; antiphon tune --failures "
        "makes them, antiphon plan --repair repairs a plan for any failures"
    )


def _renumber_class(failure_class: FailureClass, name: str, intact: Mapping[str, Plan]) -> dict[str, Plan]:
    """Return the plans of a class for the failure of this name."""
    plans = failure_class.load()
    if not plans:
        raise Invalid(f"{name} is dead ({DEAD}): not all ranks reach each other without it, so there is no plan")
    machine = drop_items(next(iter(intact.values())).topology, [name])
    renumbered = {}
    for kind, plan in plans.items():
        if kind in intact and (collective := reduce_collective(intact[kind].collective, machine)):
            labelling = label_machine(machine, collective)
            renumbered[kind] = renumber_plan(plan, machine, label_machine(plan.topology, plan.collective), labelling)
    return renumbered
