"""antiphon lab: the emulated cluster."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api import labs
from antiphon.cli import arguments as arg
from antiphon.cli.kinds import COMMAND
from antiphon.cli.output import check_outputs, emit, working
from antiphon.cli.run_text import rows_text, trace_text
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Missing
from antiphon.select import is_file
from antiphon.show.text import paragraph, table
from antiphon.units import parse_seconds, parse_sizes


def up_command(
    topo: arg.Topo,
    scale: arg.Scale = "",
    name: arg.LabName = "",
    only: arg.Only = "",
    json: arg.Json = False,
) -> None:
    """Make a lab that stays until `antiphon lab down`: a network namespace for each rank and switch, a rate-limited
    link for each that the machine has. Nothing outside of these namespaces is touched.
    """
    row = labs.up(arg.machine_and_group(topo, only, "")[0], scale=scale, name=name)
    emit(row, labs_text([row]), json)


def down_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="which (default: the only one)")] = "",
    every: Annotated[bool, typer.Option("--all", help="all there are")] = False,
    json: arg.Json = False,
) -> None:
    """End all that runs in a lab, and take it down."""
    if name and every:
        raise Invalid(f"--all takes all labs down, {name} is one; leave one of them out")
    names = labs.down(name, every=every)
    emit({"down": names}, f"taken down: {', '.join(names)}" if names else "no lab was up", json)


def status_command(json: arg.Json = False) -> None:
    """The labs that are up, however they came to be."""
    rows = labs.status()
    emit({"labs": rows}, labs_text(rows) if rows else "no lab is up", json)


def run_command(
    context: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="PLAN|TOPO", help="a plan; before -- COMMAND a machine, or the name of a lab")
    ] = "",
    nbytes: Annotated[str, typer.Option("--nbytes", metavar="SIZE", help="of a plan: 600KB, or a range")] = "",
    collective: arg.WhichPlan = "",
    dtype: arg.Dtype = "float32",
    op: arg.Op = "sum",
    repeat: arg.Repeat = 3,
    seed: arg.Seed = 0,
    scale: arg.Scale = "",
    name: arg.LabName = "",
    only: arg.Only = "",
    timeout: arg.Timeout = "600s",
    trace: arg.Trace = None,
    json: arg.Json = False,
) -> None:
    """Run a plan, one process for each rank, or a program, in the lab that is up, or in one made for it.

    A plan's data are checked in every element; its time stands beside what its loads on the lab's links predict, and
    beside the bytes that were counted on every link. A program behind -- is started once for each rank, with the
    environment that PyTorch wants and {rank} replaced; mpiexec (of MPICH) is started once, and its processes enter
    the ranks' namespaces.
    """
    command = context.meta[COMMAND]
    limit = parse_seconds(timeout, "--timeout", bare=True)
    if command is not None:
        _run_program(what, command, only, {"scale": scale, "name": name, "timeout": limit, "quiet": json}, json)
        return
    if not what:
        raise Invalid("lab run: expected a plan, or -- and a command")
    if not nbytes:
        raise Invalid(f"lab run {what}: give --nbytes SIZE if it is a plan, or -- and a command if it is a machine")
    if not is_file(what) and not Path(what).exists():
        raise Invalid(
            f"lab run {what}: no such file of a plan (antiphon plan -o makes one); a machine takes -- COMMAND"
        )
    if only:
        raise Invalid("--only: the plan knows its machine; leave it out")
    sizes = parse_sizes(nbytes, "--nbytes")
    check_outputs({"--trace": trace})
    with working(f"running {what}"):
        rows = labs.run(
            what, sizes, dtype=dtype, op=op, seed=seed, repeat=repeat, scale=scale, name=name, timeout=limit,
            collective=collective, trace=trace,
        )  # fmt: skip
    emit({"rows": rows}, rows_text(rows) + trace_text(trace), json)
    if not all(row["correct"] for row in rows):
        raise typer.Exit(1)


def _run_program(what: str, command: Sequence[str], only: str, how: dict[str, Any], json: bool) -> None:
    from antiphon.runtimes.lab.lab import lab_names

    if command and "{" not in command[0] and shutil.which(command[0]) is None:
        raise Missing(f"{command[0]}: no such program")
    where: Topology | str = what
    if what and (what not in lab_names() or only):
        where = arg.machine_and_group(what, only, "")[0]
    row = labs.command(where, command, **how)
    if json:
        emit(row, "", json)
    if row["exit_code"]:
        typer.echo(f"antiphon: {command[0]} ended with exit code {row['exit_code']}", err=True)
        raise typer.Exit(1)


def labs_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The labs that are up."""
    listed = [
        [
            row["name"], str(row["ranks"]), str(row["links"]), _bits(row["slowest"]), _bits(row["fastest"]),
            str(row["keeper"]), "stays" if row["owner"] is None else f"with process {row['owner']}",
        ]
        for row in rows
    ]  # fmt: skip
    lines = table(["lab", "ranks", "cables", "slowest", "fastest", "keeper", "how long"], listed)
    cut = [row["name"] for row in rows if not row["reachable"]]
    notes = paragraph(f"not all ranks of {', '.join(cut)} can reach each other", "  ") if cut else []
    return "\n".join([*lines, *notes])


def _bits(rate: int) -> str:
    for scale, unit in ((10**9, "Gbit/s"), (10**6, "Mbit/s")):
        if rate >= scale:
            return f"{rate / scale:.4g} {unit}"
    return f"{rate / 1000:.4g} kbit/s"
