"""The command `doctor`: what is on this machine, which ways to use Antiphon work here, and which to try first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from antiphon.api.machines import doctor
from antiphon.cli.output import emit, working
from antiphon.core.files import one_line
from antiphon.runtimes.inventory import LIBRARIES
from antiphon.show.columns import paragraph, wrap_table
from antiphon.units import format_bandwidth

# Rows of the last table that list programs: (label, key of the inventory of `antiphon.doctor`)
PROGRAM_ROWS = (("MPI", "mpi"), ("launchers", "launchers"), ("compilers", "compilers"))


def doctor_command() -> None:
    """Find what is on this machine, which of Antiphon's workflows work here, in what order to try them, and which
    parts are unproven. Nothing is changed or measured."""
    # unproven parts: `status` of a workflow states on what hardware it was tested
    with working("looking at this machine"):
        inventory = doctor()
    emit(inventory, "\n".join(doctor_lines(inventory)))


def doctor_lines(inventory: Mapping[str, Any]) -> list[str]:
    """Return what to try first, the ways to use Antiphon on this machine, then what is on it."""
    # the inventory calls a workflow a route; row["route"] below is what a workflow does, as text
    processors, gpus, workflows = inventory["processors"], inventory["gpus"], inventory["routes"]
    names = [f"{gpu['vendor']} {gpu['name'].removeprefix(gpu['vendor']).strip()}" for gpu in gpus]
    counts = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU"
    memory = f", {inventory['memory'] / 1e9:.0f} GB of memory" if inventory["memory"] else ""
    summary = f"{counts}; {processors['allowed']} hardware threads{memory}"
    # workflows that work here come first, and one works everywhere (checking logs)
    lines = paragraph(one_line(f"{summary}. Try first: {workflows[0]['route']}"), first="", rest="  ")
    # the commands of workflows on processors name this machine by a stand-in of the catalogue
    if name := re.search(r"full:ranks=(\d+)", str(workflows)):
        lines += ["", *paragraph(f"{name[0]} stands for this machine: {name[1]} ranks, each linked to every other", "")]
    for number, row in enumerate((row for row in workflows if row["works"]), 1):
        lines += ["", *paragraph(f"{number}. {row['route']} ({row['status']})", first="", rest="   ")]
        lines += [f"   {command}" for command in row["commands"]]
    missing = [[row["route"], f"needs {row['missing']}"] for row in workflows if not row["works"]]
    lines += ["", "not possible here", *wrap_table(head=[], rows=missing)] if missing else []
    drivers = sorted({gpu["driver"] for gpu in gpus} - {""})
    cards = [
        f"{card['name']} ({card['kind']}, "
        f"{format_bandwidth(card['bandwidth']) if card['bandwidth'] else 'speed unknown'})"
        for card in inventory["cards"]
    ]
    rows = {
        "processors": f"{processors['model'] or 'unknown'}; packages: {processors['packages']}, cores: "
        f"{processors['cores']}, NUMA nodes: {processors['memories']}; hardware threads for this process: "
        f"{processors['allowed']}",
        "GPUs": counts + (f"; driver {', '.join(drivers)}" if drivers else ""),
        "network cards": ", ".join(cards),
        **{name: ", ".join(map(_program, inventory[key])) for name, key in PROGRAM_ROWS},
        "libraries": ", ".join(f"{row['name']} {row['version']} ({row['path']})" for row in inventory["libraries"]),
        "Python": ", ".join(f"{name} {version}" for name, version in inventory["packages"].items()),
    }
    rows["libraries"] = rows["libraries"] or f"none of {', '.join(LIBRARIES)}"
    inventory_rows = [[name, one_line(text) or "none"] for name, text in rows.items()]
    return [*lines, "", "on this machine", *wrap_table(head=[], rows=inventory_rows)]


def _program(row: Mapping[str, str]) -> str:
    """Return a program's name, who made it ("by", such as MPICH), its version and its fault, in words."""
    fault = f"({row['fault']})" if row["fault"] else ""
    return " ".join(filter(None, (row["name"], row["by"], row["version"], fault)))
