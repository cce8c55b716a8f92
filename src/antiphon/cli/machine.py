"""antiphon topology show, antiphon bound: the machine and its limits."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from antiphon.api.machines import bound
from antiphon.cli.arguments import Coll, Json, Only, Png, Ranks, Root, Svg, Topo, machine_and_group, request
from antiphon.cli.output import check_outputs, emit, working, write_pictures
from antiphon.core.bounds import Bound, without
from antiphon.core.bounds.memory import least_json
from antiphon.core.collective import Collective
from antiphon.core.serialize import dumps, save_topology
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported, unknown
from antiphon.show.pictures.svg import topology_svg
from antiphon.show.text import memory_lines, paragraph, topology_text
from antiphon.units import format_bandwidth

_SOURCES = ("piccl-xml", "nccl-xml", "nvidia-smi", "rocm-smi")


def bound_text(found: Bound, machine: Topology, wanted: Collective) -> str:
    rate = format_bandwidth(found.bytes_per_second) if found.bytes_per_second else "unlimited"
    lines = [
        *paragraph(f"{wanted.kind} on {machine.name}: no schedule can do better than", ""),
        f"  latency:   {found.latency_steps} step{'s' * (found.latency_steps != 1)}",
        f"  bandwidth: {rate} of nbytes (R/C = {found.inverse})",
    ]
    for line in found.describe(machine, wanted):
        lines += paragraph(line, "  because    ", " " * 13)
    if found.unaided is not None and found.unaided.bytes_per_second != found.bytes_per_second:
        alone = found.unaided
        assert alone.bytes_per_second is not None
        less = f"{format_bandwidth(alone.bytes_per_second)} of nbytes (R/C = {alone.inverse})"
        lines += paragraph(f"  {without(alone.assumes)}: {less}", "", " " * 13)
        for line in alone.describe(machine, wanted)[1:]:
            lines += paragraph(line, "  because    ", " " * 13)
    return "\n".join(lines)


def _show(
    topo: Topo,
    only: Only = "",
    svg: Svg = None,
    png: Png = None,
    json: Json = False,
) -> None:
    """Show a machine: its ranks, links and shared limits; --json gives the file form, which TOPO takes again."""
    check_outputs({"--svg": svg, "--png": png})
    machine, _ = machine_and_group(topo, only, "")
    drawn = write_pictures(lambda: topology_svg(machine), svg, png)
    text = dumps(machine).decode()
    emit(jsonlib.loads(text) if json else None, "\n".join([topology_text(machine), *drawn]), json)


def _probe(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="what describes the machine")],
    source: Annotated[str, typer.Option("--from", metavar="NAME", help="what the file is: piccl-xml")],
    out: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="write the machine here (.json)")],
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="and its figures for model loggp here (.json)")
    ] = None,
    radix: Annotated[
        int | None,
        typer.Option("--radix", min=1, metavar="N", help="messages that a rank sends, or receives, at once (1)"),
    ] = None,
    json: Json = False,
) -> None:
    """Read a machine from the file of another program: topology XML of PICCL, with the LogGP figures that it names.

    Every group becomes a switch, so that every command can use the machine; what LogGP says of it exactly is written
    as a profile. The radix of devices stands in no file of theirs: give it by --radix.
    """
    if source not in _SOURCES:
        raise unknown("source of machines", source, _SOURCES)
    if source != "piccl-xml":
        raise Unsupported(f"--from {source} is not there yet; what is: piccl-xml")
    from antiphon.cost import save_profile
    from antiphon.formats.piccl.readers import read_topology

    check_outputs({"-o": out, "--profile": profile})
    machine, figures = read_topology(file, radix)
    save_topology(out, machine)
    written = [str(out)]
    if profile is not None:
        save_profile(figures, profile)
        written.append(str(profile))
    lines = [topology_text(machine), *(f"  written: {path}" for path in written)]
    emit({"topology": machine.name, "ranks": machine.ranks, "written": written}, "\n".join(lines), json)


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
        found = bound(wanted, machine)
    least = least_json(wanted, machine)
    emit({**found.as_json(), **least}, "\n".join([bound_text(found, machine, wanted), *memory_lines(least)]), json)


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Show a machine, or read one from a file.",
        epilog="Example: antiphon topology show dgx1v --svg machine.svg",
    )
    group.command(
        "show",
        short_help="Show a machine; --svg and --png draw it.",
        epilog="Example: antiphon topology show ring:ranks=8,bandwidth=10GB/s",
    )(_show)
    group.command(
        "probe",
        short_help="Read a machine from the file of another program.",
        epilog="Example: antiphon topology probe topo.xml --from piccl-xml -o topo.json",
    )(_probe)
    app.add_typer(group, name="topology")
    app.command(
        "bound",
        short_help="The fewest steps and the least time possible.",
        epilog="Example: antiphon bound allgather dgx1v",
    )(_bound)
