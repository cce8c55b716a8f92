"""The commands of `topology` (show, probe, join, export, degrade) and `bound`: a machine and its lower bounds."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api.machines import bound, degrade
from antiphon.cli import arguments as arg
from antiphon.cli.output import (
    JsonOutput,
    certificate_lines,
    check_outputs,
    emit,
    sort_outputs,
    working,
    write_pictures,
    written_lines,
)
from antiphon.core.bounds import Bound, conditions_text
from antiphon.core.bounds.memory import least_json
from antiphon.core.collective import Collective
from antiphon.core.files import check_writable, one_line
from antiphon.core.reshape import linked_ranks
from antiphon.core.serialize import dumps, save_topology
from antiphon.core.topology import Topology
from antiphon.cost import save_profile, usual_model
from antiphon.errors import Invalid, Unsupported, unknown
from antiphon.formats.files import write_files
from antiphon.formats.probe import here, joining
from antiphon.formats.probe.nccl_write import nccl_xml
from antiphon.formats.probe.probed import Probed, ranks_named
from antiphon.formats.probe.slurm import expand_hosts
from antiphon.formats.probe.table import SOURCES, read
from antiphon.options import parse_options, plain_value
from antiphon.registry import call
from antiphon.select import Frontier, compare_links, least_times, save_frontier, sizes_of
from antiphon.show.columns import LABEL_INDENT, paragraph
from antiphon.show.pictures.svg import topology_svg
from antiphon.show.terminal import add_picture, link_map
from antiphon.show.text import memory_lines, topology_text
from antiphon.topologies.degraded import ITEMS, connected_parts
from antiphon.topologies.spec import KEYS_WITH_UNITS
from antiphon.units import (
    exact,
    format_bandwidth,
    format_seconds,
    format_size,
    parse_ranks,
    plain,
    ranks_text,
    size_family,
)  # fmt: skip


def bound_text(limits: Bound, machine: Topology, target: Collective) -> str:
    """Return the bounds on steps and bandwidth with their witnesses; then those without the help of switches."""
    rate = f"at most {format_bandwidth(limits.bytes_per_second)} algbw" if limits.bytes_per_second else "unlimited"
    share = Fraction(target.input_weight, target.buffer_weight)  # the greatest input of a rank over nbytes
    input_text = "nbytes" if share == 1 else f"({share} nbytes)"
    ratio_text = f"R/C: rounds per chunk; time = R/C * {input_text} / ({format_bandwidth(machine.unit)}, a unit link)"
    lines = [
        *paragraph(f"{target.title} on {machine.name}: no schedule can do better than", first=""),
        f"  latency:   {limits.latency_steps} step{'s' * (limits.latency_steps != 1)}",
        f"  bandwidth: {rate} (R/C = {limits.inverse})",
        *paragraph(ratio_text, first=LABEL_INDENT, rest=LABEL_INDENT),
    ]
    unaided = limits.unaided  # None if no switch can help
    for line in limits.describe(machine, target):
        lines += paragraph(line, first="  because    ", rest=LABEL_INDENT)
    if unaided is not None and unaided.bytes_per_second != limits.bytes_per_second:
        # it is limited: else the bound with the help of switches would be unlimited, too, so that both were equal
        assert unaided.bytes_per_second is not None
        rate = f"{format_bandwidth(unaided.bytes_per_second)} algbw (R/C = {unaided.inverse})"
        lines += paragraph(f"  {conditions_text(unaided.assumes)}: {rate}", first="", rest=LABEL_INDENT)
        # the first line is the witness of the steps, which are the same without the help of switches
        for line in unaided.describe(machine, target)[1:]:
            lines += paragraph(line, first="  because    ", rest=LABEL_INDENT)
    return "\n".join(lines)


def show_command(
    topo: arg.Topo, only: arg.Only = "", output: Annotated[list[Path] | None, arg.output_option("topology show")] = None
) -> None:
    """Show a machine: its ranks, links and shared limits; --json prints the file form, which TOPO takes again."""
    files = sort_outputs("topology show", output)
    machine, _ = arg.machine_and_group(topo, only)
    for path in files["machine"]:
        save_topology(path, machine)
    output_lines = written_lines(*files["machine"])
    output_lines += write_pictures(lambda: topology_svg(machine), files["picture"])
    text = dumps(machine).decode()
    shown = add_picture("\n".join([topology_text(machine), *output_lines]), lambda: link_map(machine))
    emit(json.loads(text) if JsonOutput.requested else None, shown)


def probe_command(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="output of a tool (default: inspect this machine)")
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="NAME", help=f"whose it is: {', '.join(SOURCES)} (default: recognised by its contents)"
        ),
    ] = "",
    output: Annotated[list[Path] | None, arg.output_option("topology probe")] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="PICCL: write its figures for model loggp (.json)")
    ] = None,
    only: Annotated[
        str,
        typer.Option("--only", metavar="RANKS", help="keep only these ranks or hosts (node[01-04]), renumbered from 0"),
    ] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="KEY=VALUE", help="pcie=, pcie_gen=, nvlink=, nic=, radix= or sysfs=: see docs"
        ),
    ] = None,
) -> None:
    """Read a machine: this one, or another from the saved output of a tool.

    Without FILE it looks at this machine: GPUs, NVLink and xGMI, PCIe, memories, caches and network cards, as far as
    this process may use them, and reports what it could not see. --from NAME without FILE asks that tool alone.
    """
    out = sort_outputs("topology probe", output, {"--profile": profile})["machine"]
    # bandwidths stay texts with their units; nvlink is one here (bandwidth of a link)
    options: dict[str, object] = {
        key: value if KEYS_WITH_UNITS.fullmatch(key) or key == "nvlink" else plain_value(value)
        for key, value in parse_options(option or (), "--option", "key=value").items()
    }
    if (files or source) and "sysfs" in options:
        raise Invalid("--option sysfs=: is for looking at this machine; leave out FILE and --from, or the option")
    sysfs = str(options.pop("sysfs", here.SYSFS))  # where Linux shows its devices
    if files:
        probed = read(files, source, options)
    elif not source and (for_tools := options.keys() - {"pcie"}):  # looking at this machine takes only pcie=
        raise Invalid(f"--option {min(for_tools)}=: is for a file; name one, or a tool by --from")
    else:
        with working("looking at this machine"):
            probed = here.look_at_machine(source, sysfs, options=options)
    if only:
        probed = probed.only(_parse_members(probed, only, "--only"), f"only {only[:100]}")
    if profile is not None and probed.profile is None:
        raise Unsupported("--profile: only PICCL's files have figures for model loggp; leave it out")
    _report_machine(probed, out, profile)


def _parse_members(probed: Probed, only: str, label: str) -> list[int]:
    """Return the ranks that an option, the label, selects by number, or by the names of hosts."""
    if re.fullmatch(r"[0-9, -]+", only):
        return parse_ranks(only, label)
    return ranks_named(probed, expand_hosts(only, label), label)


def _report_machine(probed: Probed, out: Sequence[Path], profile: Path | None = None) -> None:
    """Print a machine that was read, with what was assumed of it, and write it."""
    for path in out:
        save_topology(path, probed.machine)
    if profile is not None and probed.profile is not None:
        save_profile(probed.profile, profile)
    lines = [topology_text(probed.machine)]
    for note in probed.notes:
        lines += paragraph(one_line(note), first="  note: ", rest=" " * 8)
    lines += written_lines(*out, profile)
    cards = [
        {"name": card.name, "bandwidth": plain(card.bandwidth) if card.bandwidth else None, "serves": list(card.nodes)}
        for card in probed.machine.cards
    ]
    value = {
        "topology": probed.machine.name, "ranks": probed.machine.ranks, "switches": probed.machine.switches,
        "links": probed.machine.links, "names": list(probed.names), "cards": cards, "notes": list(probed.notes),
        "written": [str(path) for path in (*out, profile) if path is not None],
    }  # fmt: skip
    emit(value, "\n".join(lines))


def join_command(
    box: Annotated[str, typer.Argument(metavar="BOX", help="the box: a name, a file, or the output of a tool")],
    fabric: Annotated[
        str,
        typer.Argument(
            metavar="FABRIC",
            help="the network, whose ranks are hosts, in the same forms; or switch:boxes=2,nic=400Gbit/s: boxes on one "
            "switch by their own cards, or rails:boxes=2: on a switch per card, below a spine; :only=node[01-04] keeps "
            "these hosts of a network",
        ),
    ],
    output: Annotated[list[Path] | None, arg.output_option("topology join")] = None,
    only: Annotated[str, arg.old_option("--only", instead="FABRIC:only=HOSTS")] = "",
    name: Annotated[str, typer.Option("--name", help="name of the machine")] = "",
) -> None:
    """Join a box and a fabric: every host of the fabric becomes a box, its cables the box's network cards.

    In the environment of a Slurm job only its hosts are taken.
    """
    out = sort_outputs("topology join", output)["machine"]
    fabric, separator, hosts = fabric.partition(":only=")
    if separator and (only or not hosts):
        raise Invalid(
            f"{fabric}:only=: names no hosts" if not hosts else "--only: leave it out beside FABRIC:only=HOSTS"
        )
    hosts = hosts or only
    if fabric.partition(":")[0] in ("switch", "rails"):
        if hosts:
            raise Invalid("only=: names hosts of a network; with switch or rails, boxes= is their number")
        with working("joining"):
            probed = _join_by_own_cards(box, fabric, name)
        _report_machine(probed, out)
        return
    network = joining.read_machine(fabric)
    if hosts:
        network = network.only(_parse_members(network, hosts, "only="), f"only {hosts[:100]}")
    elif network.hosts:
        network = here.keep_allocated(network, os.environ)
    with working("joining"):
        probed = joining.join_box_and_fabric(joining.read_machine(box), network, name)
    _report_machine(probed, out)


def _join_by_own_cards(box: str, fabric: str, name: str) -> Probed:
    """Join boxes by switch:boxes=N,nic=SPEED or rails:boxes=N,nic=SPEED."""
    kind, options = arg.split_options(fabric, "FABRIC")

    def join(probed: Probed, *, boxes: int, nic: str | None = None) -> Probed:
        speed = None if nic is None else str(nic)  # split_options reads 400, without a unit, as a number
        return joining.join_by_own_cards(probed, boxes, rail=kind == "rails", nic=speed, name=name)

    joined: Probed = call("fabric", kind, join, options, joining.read_machine(box))
    return joined


def export_machine_command(
    topo: Annotated[str, typer.Argument(metavar="BOX", help="the box: a name, a file, or the output of a tool")],
    out: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="the file to write, such as topo.xml")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="NAME", help="format and its options: nccl-xml:gdr=no (or gpus, nics, nic, cpu)"),
    ] = "nccl-xml",
) -> None:
    """Write a box as NCCL's topology XML (NCCL_TOPO_FILE), for virtual machines that hide their NVLinks or PCIe."""
    to, options = arg.split_options(to, "--to")
    if to != "nccl-xml":
        raise unknown("format of machines", to, ["nccl-xml"])
    check_writable(out)
    name, kept_ranks = arg.split_machine(topo)
    box = joining.read_machine(name)
    if kept_ranks is not None:
        box = box.only(kept_ranks, f"only ranks {ranks_text(kept_ranks)}")
    files = call("format", to, nccl_xml, options, box)
    ((_, nbytes),) = write_files(out.parent, {out.name: files["topo.xml"]})
    lines = [f"written: {out} ({format_size(nbytes)})"]
    for note in files.notes:
        lines += paragraph(one_line(note), first="  note: ", rest=" " * 8)
    emit({"written": [str(out)], "bytes": nbytes, "notes": list(files.notes)}, "\n".join(lines))


def degrade_command(
    topo: arg.Topo,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop", metavar="[KIND=]ITEMS",
            help="links, ranks and NICs: 0-1,3-nvswitch,5,host0/nic1 (0-1:2: two of its wires); ranks=0,4-5; links=2%: "
            "a random share (nics=, ranks=); repeatable",
        ),
    ] = None,
    slow: Annotated[
        str,
        typer.Option(
            "--slow", metavar="ITEM=LEFT",
            help="what is left of links, NICs or ranks: 0-1=0.5,2-3=10GB/s,7=0.5, or of a random share: links:2%=0.5",
        ),
    ] = "",
    seed: arg.Seed = 0,
    output: Annotated[list[Path] | None, arg.output_option("topology degrade")] = None,
) -> None:  # fmt: skip
    """Remove or slow down links (in both directions), network cards or ranks: by name, or a random fraction of them.

    Prints what was lost, and the parts if the machine falls apart. `tune COLL broken.json --against TOPO` reports what
    that costs, `plan --repair OLD.json broken.json` repairs a plan.
    """
    out = sort_outputs("topology degrade", output)["machine"]
    if not drop and not slow:
        raise Invalid("nothing to degrade; give --drop or --slow")
    failures = _parse_failures(drop or (), slow)
    if seed and "fraction" not in failures:
        raise Invalid("--seed chooses a random share; give one, such as --drop links=2%, or leave the seed out")
    intact_machine, _ = arg.machine_and_group(topo, only="")
    machine = degrade(intact_machine, seed=seed, **failures)
    for path in out:
        save_topology(path, machine)
    text = [*_failure_lines(intact_machine, machine), topology_text(machine), *written_lines(*out)]
    text += _next_lines(topo, str(out[0]), connected_parts(machine)) if out else []
    emit(json.loads(dumps(machine)) if JsonOutput.requested else None, "\n".join(text))


def _next_lines(intact: str, broken: str, components: Sequence[Sequence[int]]) -> list[str]:
    """Return the commands that report what a failure costs, and that repair a plan.

    `components`: the parts of the broken machine; of several, the commands plan for the first, the largest.
    """
    ranks = ranks_text(components[0], len(components[0])) if len(components) > 1 else ""
    against = ["antiphon", "tune", arg.join_collective("allreduce", None, ranks), broken, "--against", intact]
    repaired = shlex.quote(f"{broken}:only={ranks}" if ranks else broken)
    title = paragraph("next: plan anew and see what the failure costs, or repair an old plan:")
    return [*title, f"    {shlex.join(against)}", f"    antiphon plan --repair OLD.json {repaired} -o new.json"]


def _parse_failures(drop: Sequence[str], slow: str) -> dict[str, Any]:
    """Return the arguments of `degrade` for the values of --drop and --slow."""
    options: dict[str, Any] = {}
    names: dict[str, list[str]] = {}  # by kind
    for text in drop:
        kind, equals, items = text.partition("=")
        if not equals:  # each name shows its kind: 3, host0/nic1, 0-1
            for item in filter(None, text.split(",")):
                kind = "ranks" if item.isdigit() else "links" if "-" in item else "nics"
                names.setdefault(kind, []).append(item)
        elif kind not in ITEMS:
            raise unknown("kind of items to drop", kind, ITEMS)
        elif items.endswith("%"):
            options |= _random_share(options, kind, items)
        else:
            names.setdefault(kind, []).append(items)
    for kind, items_of_kind in names.items():
        joined = ",".join(items_of_kind)
        options[f"drop_{kind}"] = parse_ranks(joined, "--drop ranks") if kind == "ranks" else joined
    share = re.fullmatch(r"(?:(\w+):)?([^=:]+%)=(.+)", slow)  # 2%=0.5 or links:2%=0.5: what is left of a random share
    if share is None:
        return options | ({"slow": slow} if slow else {})
    kind, percentage, remaining = share.groups()
    return options | _random_share(options, kind or "links", percentage) | {"remaining": remaining}


def _random_share(options: Mapping[str, Any], kind: str, percentage: str) -> dict[str, Any]:
    """Return the arguments of `degrade` that choose this percentage of a kind of items."""
    if "fraction" in options:
        raise Invalid("--drop, --slow: one random share at a time; degrade the machine in two steps")
    return {"fraction": float(exact(percentage[:-1], "random share") / 100), "of": kind}


def _failure_lines(intact: Topology, machine: Topology) -> list[str]:
    """Return what a machine lost, as lines: ranks, links, and whether the others can reach each other."""
    before, after = ({*linked_ranks(each)} for each in (intact, machine))
    components = connected_parts(machine)
    lost_ranks = sorted(before - after)
    lost = [f"rank{'s' * (len(lost_ranks) > 1)} {ranks_text(lost_ranks)} lost"] if lost_ranks else []
    damage = compare_links(intact, machine, frozenset(after))
    if damage.total:
        lost.append(f"{damage.total} link{'s' * (damage.total != 1)} lost or slower (both directions count once)")
    state = f"{len(components)} parts" if len(components) > 1 else "all connected"
    lines = paragraph(
        f"{', '.join(lost) or 'unchanged'}; {len(after)} of {intact.ranks} ranks remain, {state}", first=""
    )
    if len(components) > 1:
        for number, ranks in enumerate(components, start=1):
            lines += paragraph(f"part {number}: ranks {ranks_text(ranks)}")
    return [*lines, *(paragraph(damage.describe()) if damage.total else [])]


def bound_command(
    coll: arg.Coll, topo: arg.Topo, root: arg.Root = None, only: arg.Only = "", ranks: arg.Ranks = "",
    groups: arg.Groups = "", mesh: arg.Mesh = "", along: arg.Along = "",
    nbytes: Annotated[
        str, typer.Option(metavar="SIZES", help="also bound the time at these sizes, such as 1KB:1GB")
    ] = "",
    model: Annotated[
        str, typer.Option(metavar="NAME", help="cost model, for --nbytes (default: alpha-beta)", show_default=False)
    ] = "",
    certificate: arg.Certificate = None,
) -> None:  # fmt: skip
    """Print exact lower bounds on steps and on time, each with what proves it; with --nbytes also by size."""
    target, machine = arg.request(
        coll, topo, root=root, only=only, ranks=ranks, groups=groups, mesh=mesh, along=along
    )  # fmt: skip
    check_outputs({"--certificate": certificate})
    if model and not nbytes:
        raise Invalid("--model: bounds the time at sizes; add --nbytes, such as 1KB:1GB")
    _span, sizes = sizes_of(nbytes) if nbytes else ((), ())
    model = model or "alpha-beta"
    with working(f"bounding {target.title} on {machine.name}"):
        limits = bound(target, machine)
        times = least_times(target, machine, limits, sizes, model) if sizes else {}
    memory = least_json(target, machine)
    by_size = {"seconds": {str(size): seconds for size, seconds in times.items()}, "model": model} if sizes else {}
    text = [
        bound_text(limits, machine, target),
        *memory_lines(memory),
        *_least_time_lines(times, limits, model, usual_model(machine, wanted=(target,))),
    ]
    if certificate is not None:
        # A frontier without points: its file holds bounds alone, those of a machine whose switches only forward
        # (`without_help`: `unaided` if some switch can help, else `limits` itself).
        save_frontier(certificate, Frontier(machine, target, planner="", points=(), limits=limits.without_help))
    emit({**limits.as_json(), **memory, **by_size}, "\n".join([*text, *certificate_lines(certificate)]))


def _least_time_lines(times: Mapping[int, float], limits: Bound, model: str, model_of_tune: str) -> list[str]:
    """Return the lower bound on time at each size as lines, sizes and times in columns, with the part on the links;
    then by which model `tune` computes gaps, if by another one.
    """
    if not times:
        return []
    rest = "" if model == "alpha-beta" else ", and what else the model charges per message and call"
    note = f"the rest: latency, and links that are idle in the first and last steps{rest}"
    note += f". The gaps of tune are over another bound: --model {model_of_tune}" if model != model_of_tune else ""
    family = size_family(times)
    width = max(len(format_size(size, family)) for size in times)
    rows = [f"    {format_size(size, family):>{width}}   {format_seconds(seconds)}" for size, seconds in times.items()]
    rows = [f"{r} (on the links {format_seconds(float(limits.seconds(n)))})" for r, n in zip(rows, times, strict=True)]
    return [f"  least time by the model `{model}`:", *rows, *paragraph(note)]
