"""The commands `lab up`, `down`, `status`, `cut` and `run`: a machine emulated by network namespaces (api/labs.py)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from antiphon.api import labs
from antiphon.cli import arguments as arg
from antiphon.cli.kinds import COMMAND
from antiphon.cli.output import JsonOutput, emit
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Missing, quote
from antiphon.show.columns import paragraph, table
from antiphon.units import parse_seconds

LabArgument = Annotated[str, typer.Argument(metavar="NAME", help="name of the lab (default: the only one)")]


def up_command(topo: arg.Topo, scale: arg.Scale = "", name: arg.LabName = "", only: arg.Only = "") -> None:
    """Create a lab that remains until `antiphon lab down`: a network namespace for each rank and switch, and a link for
    each link of the machine, slowed down by --scale. Nothing outside of these namespaces is touched.
    """
    machine, _ = arg.machine_and_group(topo, only)
    row = labs.up(machine, scale=scale, name=name)
    emit(row, labs_text([row]))


def down_command(name: LabArgument = "") -> None:
    """Stop all processes in a lab and remove it; `all` instead of a name: every lab."""
    names = labs.down(name="", every=True) if name == "all" else labs.down(name)
    emit({"down": names}, f"taken down: {', '.join(names)}" if names else "no lab was up")


def status_command() -> None:
    """List the labs that are up, also those of other commands and programs."""
    rows = labs.status()
    emit({"labs": rows}, labs_text(rows) if rows else "no lab is up")


def cut_command(
    name: LabArgument = "",
    links: Annotated[
        str, typer.Argument(metavar="[LINKS]", help="0-1,3-nvswitch; none: all links are up again", show_default=False)
    ] = "",
) -> None:
    """Cut links of a lab that is up, also under a running program; links that are not named are up again.

    Programs in the lab read the names of the cut links from the file that ANTIPHON_DEAD names. After 3 seconds, routes
    avoid these links.
    """
    row = labs.cut(name, links)
    text = f"{row['name']}: {', '.join(row['dead']) or 'nothing'} is cut"
    emit(row, text if row["reachable"] else f"{text}; not all ranks reach each other")


def run_command(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[TOPO]",
            help="a machine (a lab is made for it), or the name of a lab that is up",
            show_default=False,
        ),
    ] = "",
    scale: arg.Scale = "",
    name: arg.LabName = "",
    only: arg.Only = "",
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="stop after this time")] = "600s",
    cut: Annotated[
        str,
        typer.Option(
            "--cut", metavar="LINK@WHEN,...", help="cut links during the run: 0-1@5s, 0-1@call=5", show_default=False
        ),
    ] = "",
) -> None:
    """Run a program in the lab that is up, or in one made for it; `antiphon run PLAN --on lab` runs a plan there.

    The program behind -- is started once per rank, with the environment variables that PyTorch needs; {rank} in its
    arguments becomes the number of the rank. mpiexec (of MPICH) is started once, and its processes enter the ranks'
    namespaces.
    """
    from antiphon.runtimes.lab.lab import lab_names

    command = context.meta[COMMAND]  # the words behind --, None if there is no --: set by kinds.WithProgram
    limit = parse_seconds(timeout, "--timeout", bare=True)
    if command is None:
        example = f"antiphon lab run {target} -- ./program".replace("  ", " ")
        raise Invalid(
            f"lab run: expected -- and a command, as in {example}; for a plan: antiphon run PLAN --on lab --nbytes SIZE"
        )
    # a program whose name has {rank} is another one for each rank
    if command and "{" not in command[0] and shutil.which(command[0]) is None:
        raise Missing(f"{command[0]}: no such program")
    machine_or_lab: Topology | str = target
    # --only chooses ranks of a machine: with it the target is one, even if a lab has this name
    if target and (target not in lab_names() or only):
        machine_or_lab, _ = arg.machine_and_group(target, only)
    row = labs.command(
        machine_or_lab,
        command,
        scale=scale,
        name=name,
        timeout=limit,
        quiet=JsonOutput.requested,
        cuts=_parse_cuts(cut),
    )
    if JsonOutput.requested:
        emit(row, text="")
    if row["exit_code"]:
        typer.echo(f"antiphon: {command[0]} ended with exit code {row['exit_code']}", err=True)
        raise typer.Exit(1)


def _parse_cuts(text: str) -> dict[str, float | str]:
    """Read links with the times or calls at which they are cut, such as 0-1@5s,2-3@call=10."""
    cuts: dict[str, float | str] = {}
    for item in text.split(",") if text else ():
        link, at, when = item.rpartition("@")
        if not link or not at:
            raise Invalid(f"--cut: expected a link and a time, such as 0-1@5s, got {quote(item)}")
        cuts[link] = when if re.fullmatch(r"call=[1-9]\d{0,8}", when) else parse_seconds(when, "--cut", bare=True)
    return cuts


def labs_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the labs that are up. A lab's keeper is the process whose namespaces form it."""
    cells = [
        [
            row["name"], str(row["ranks"]), str(row["links"]), _rate_text(row["slowest"]), _rate_text(row["fastest"]),
            str(row["keeper"]), "lab down" if row["owner"] is None else f"process {row['owner']} ends",
        ]
        for row in rows
    ]  # fmt: skip
    lines = table(["lab", "ranks", "links", "slowest", "fastest", "keeper (pid)", "until"], cells)
    unreachable = [row["name"] for row in rows if not row["reachable"]]
    notes = (
        paragraph(f"not all ranks of {', '.join(unreachable)} can reach each other", first="  ") if unreachable else []
    )
    return "\n".join([*lines, *notes])


def _rate_text(rate: int) -> str:
    """Return a rate in bits per second as text."""
    for scale, unit in ((10**9, "Gbit/s"), (10**6, "Mbit/s")):
        if rate >= scale:
            return f"{rate / scale:.4g} {unit}"
    return f"{rate / 1000:.4g} kbit/s"
