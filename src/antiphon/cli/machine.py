"""antiphon topology show, antiphon bound: the machine and its limits."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli._arguments import Coll, Json, Only, Ranks, Root, Topo, machine_and_group, request
from antiphon.cli._output import emit, working
from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import Collective
from antiphon.core.files import write_bytes
from antiphon.core.serialize import dumps
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.show.svg import topology_svg
from antiphon.show.text import topology_text
from antiphon.units import format_bandwidth

ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


def bound_text(found: Bound, machine: Topology, wanted: Collective) -> str:
    rate = format_bandwidth(found.bytes_per_second) if found.bytes_per_second else "unlimited"
    lines = [
        f"{wanted.kind} on {machine.name}: no schedule can do better than",
        f"  latency:   {found.latency_steps} steps",
        f"  bandwidth: {rate} of nbytes (R/C = {found.inverse})",
        *(f"  because    {line}" for line in found.describe(machine, wanted)),
    ]
    return "\n".join(lines)


def _show(
    topo: Topo,
    only: Only = "",
    svg: Annotated[Path | None, typer.Option("--svg", help="draw it into this file")] = None,
    json: Json = False,
) -> None:
    """Show a machine: its ranks, links and shared limits; --json gives the file form, which TOPO takes again."""
    machine, _ = machine_and_group(topo, only, "")
    if svg is not None:
        write_bytes(svg, topology_svg(machine).encode())
    text = dumps(machine).decode()
    emit(jsonlib.loads(text) if json else None, topology_text(machine), json)


def _probe(context: typer.Context) -> None:  # the context takes whatever arguments there are
    raise Unsupported("antiphon topology probe is not there yet; describe the machine in a file, and give its name")


def _bound(
    coll: Coll,
    topo: Topo,
    root: Root = None,
    only: Only = "",
    ranks: Ranks = "",
    json: Json = False,
) -> None:
    """Exact lower bounds on steps and on time, each with what proves it."""
    wanted, machine = request(coll, topo, root, only, ranks)
    with working(f"bounding {wanted.kind} on {machine.name}"):
        found = bound(machine, wanted)
    emit(found.as_json(), bound_text(found, machine, wanted), json)


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show a machine.")
    group.command("show", epilog="Example: antiphon topology show ring:ranks=8,bandwidth=10GB/s")(_show)
    group.command("probe", hidden=True, context_settings=ANYTHING, help="Not there yet.")(_probe)
    app.add_typer(group, name="topology")
    app.command("bound", epilog="Example: antiphon bound allgather dgx1v")(_bound)
