"""The arguments that several commands share, as annotated types for typer, and functions that parse them.

    COLL   allreduce, broadcast:root=2, allgather:ranks=0-3         split_collective
           allreduce@rows, allreduce@data + alltoall@expert         request
    TOPO   dgx1v, ring:ranks=8, box.json, dgx1v:only=0,1,4          machine_and_group
    PLAN   plan.json, or one plan of a table: table.json:allreduce  split_plan
    --on   mpi:mpiexec=srun,timeout=60s                             split_runtime
    --planner, --to   sccl:chunks=6,steps=3                         split_options

On the right are the functions of this file that parse such a text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api.machines import collective, topology
from antiphon.cli.old_spellings import replaced_text
from antiphon.cli.output import output_help
from antiphon.core.collective import Collective, kind_named
from antiphon.core.plan import Plan
from antiphon.core.topology import Topology
from antiphon.cost.lowering_costs import check_lowering
from antiphon.errors import Invalid, quote, unknown, warn_unlikely
from antiphon.options import parse_options, parse_yes, plain_value
from antiphon.registry import find, table
from antiphon.select import choose_plan, load_plans
from antiphon.select.parse_request import is_file, names_groups
from antiphon.units import parse_ranks, parse_seconds


def old_option(option: str, *names: str, instead: str) -> Any:
    """Declare an option of the previous version, hidden from the help; using it prints `instead`, the spelling now.

    `names`: its other names.
    """

    def warn(value: Any) -> Any:
        if value not in (None, ""):
            warn_unlikely(replaced_text(option, instead))
        return value

    return typer.Option(option, *names, hidden=True, callback=warn)


def output_option(command: str) -> Any:
    """Declare -o of a command that writes what `output.OUTPUTS` says."""
    return typer.Option("-o", "--output", metavar="FILE", help=output_help(command))


def check_order(context: typer.Context, topo: str) -> str:
    """Check that COLL and TOPO were not swapped: Invalid, with the right command, if TOPO is a collective's name."""
    # the argument before TOPO, which commands name differently
    coll = next((str(value) for name, value in context.params.items() if name in ("coll", "subject", "file")), "")
    if kind_named(topo) and coll and not kind_named(coll.partition(":")[0]) and coll != "all":
        raise Invalid(f"the collective comes first: {context.command_path} {topo} {coll}")
    return topo


TOPO_HELP = "name, name:key=value,... or file.json; :only=0,1,4 keeps these ranks and removes the others"
Topo = Annotated[str, typer.Argument(metavar="TOPO", help=TOPO_HELP, callback=check_order)]
COLL_HELP = "allreduce, broadcast:root=2, allgather:ranks=0-3, allreduce@rows, ... or file.json"
Coll = Annotated[str, typer.Argument(metavar="COLL", help=COLL_HELP)]
Root = Annotated[int | None, old_option("--root", instead="COLL:root=RANK")]
Only = Annotated[str, old_option("--only", instead="TOPO:only=RANKS")]
Ranks = Annotated[str, old_option("--ranks", instead="COLL:ranks=RANKS")]
Groups = Annotated[
    str,
    typer.Option("--groups", metavar="GROUPS", help="in groups at the same time: 0-3;4-7, every=8, rows or columns"),
]
Mesh = Annotated[
    str, typer.Option("--mesh", metavar="NAME=SIZE,...", help="number the ranks as a mesh: data=4,tensor=8")
]
Along = Annotated[
    str, typer.Option("--along", metavar="NAME", help="in groups along this dimension of --mesh; data+tensor: both")
]
PlanFile = Annotated[
    str,
    typer.Argument(
        metavar="PLAN", help="file written by `plan -o` or `tune -o`; one plan of a table: table.json:allreduce"
    ),
]
WhichPlan = Annotated[str, old_option("--collective", instead="PLAN:COLL")]
OnMachine = Annotated[
    str, typer.Option("--topology", metavar="TOPO", help="machine of a file that names none (MSCCL, MSCCL++)")
]
RecordedOn = Annotated[str, typer.Option("--topology", metavar="TOPO", help="the machine that the log or trace is of")]
RecordedLibrary = Annotated[
    str,
    typer.Option("--library", metavar="LIBRARY", help="its library, where it is not named: nccl:gpu=h100,network=ib"),
]
ModelName = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME", show_default=False,
        help="cost model: see antiphon list models (default: `calls` on known GPUs, else `alpha-beta`)",
    ),
]  # fmt: skip
Certificate = Annotated[
    Path | None,
    typer.Option("--certificate", metavar="FILE", help="write what is proved, with evidence that others can check"),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="measured profile: a JSON file, or the name of a shipped one"),
]
Trace = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="write a Chrome trace of all events (for Perfetto)")
]
Engine = Annotated[
    str, typer.Option("--engine", metavar="ENGINE", help="processes[:N], ray[:ADDRESS] or dask[:ADDRESS]")
]
Seed = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="seed of random plans, data and choices")]
Budget = Annotated[
    str,
    typer.Option("--budget", metavar="TIME", help="stop after this much CPU time, e.g. 90s, and keep the best so far"),
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="combine every element in one order: the same bits at all sizes")
]
Scale = Annotated[
    str,
    typer.Option(
        "--scale", metavar="SCALE",
        help='rates of the lab: "2Mbit per GB/s", or "link=40Mbit" for the unit link (default: the fastest 40 Mbit/s)',
    ),
]  # fmt: skip
LabName = Annotated[str, typer.Option("--name", metavar="NAME", help="name of the lab (default: that of the machine)")]
Repeat = Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="number of runs; the median time counts")]
Dtype = Annotated[str, typer.Option("--dtype", metavar="TYPE", help="int8 ... float64, bfloat16, float8_e4m3fn, ...")]
Op = Annotated[str, typer.Option("--op", metavar="OP", help="sum, prod, min, max or avg")]
Library = Annotated[
    str,
    typer.Option(
        "--library",
        metavar="LIBRARY",
        help="predict the library's choice at --nbytes instead: nccl (or nccl-2.32), rccl or msccl, with options",
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on", metavar="WHERE",
        help="runtime and its options, such as mpi:mpiexec=srun,timeout=60s: see antiphon list runtimes",
    ),
]  # fmt: skip
PlannerName = Annotated[
    str,
    typer.Option(
        "--planner", metavar="NAME", help="planner and its options, such as sccl:k=2: see antiphon list planners"
    ),
]
PlannerNames = Annotated[
    list[str] | None, typer.Option("--planner", metavar="NAME", help="use only this planner; repeatable")
]
Effort = Annotated[
    float | None,
    typer.Option("--effort", metavar="N", help="effort of a planner that searches (default for sccl: 60; in tune 5)"),
]


def split_collective(coll: str, root: int | None, ranks: str) -> tuple[str, int | None, list[int] | None]:
    """Split COLL:root=RANK,ranks=RANKS into the name or file, the root and the ranks; None if not named.

    `root`, `ranks`: values of the old options --root and --ranks, used if COLL has none.
    """
    pattern = r"(?:root|ranks)="  # a file's name may have colons: the options begin at the one before root= or ranks=
    name, *tail = re.split(rf":(?={pattern})", coll, maxsplit=1)
    label = f"collective {quote(coll)}"
    options = parse_options(re.split(rf",(?={pattern})", tail[0]) if tail else (), label, "COLL:root=2,ranks=0-3")
    if "root" in options:
        root, *further_ranks = parse_ranks(options["root"], f"{label}: root")
        if further_ranks:
            raise Invalid(f"{label}: root: expected one rank, got {quote(options['root'])}")
    ranks = options.get("ranks", ranks)
    return name, root, parse_ranks(ranks, f"{label}: ranks") if ranks else None


def with_groups(coll: str, groups: str = "", mesh: str = "", along: str = "") -> str:
    """Return a collective's text with the groups of --groups, or of --mesh and --along.

    >>> with_groups("allreduce", mesh="data=4,tensor=8", along="data+tensor")
    'allreduce@data + allreduce@tensor'
    """
    if along and not mesh:
        raise Invalid(f"--along {along}: names dimensions of a mesh; give --mesh, such as --mesh data=4,tensor=8")
    if groups and along:
        raise Invalid("--groups, --along: both name the groups; leave one of them out")
    if mesh and not (along or groups or names_groups(coll)):
        raise Invalid(f"--mesh {mesh}: say along which dimension, by --along or as in COLL@DIMENSION")
    if not (groups or along):
        return coll
    if coll.partition(":")[0] == "all":
        raise Invalid(f"--{'groups' if groups else 'along'}: takes one collective, such as allreduce, not all")
    if names_groups(coll):
        raise Invalid(f"collective {quote(coll)}: names its groups; leave out --{'groups' if groups else 'along'}")
    name, colon, tail = coll.partition(":")
    return " + ".join(f"{name}@{each}" for each in (along or groups).split("+")) + colon + tail


def join_collective(coll: str, root: int | None, ranks: str) -> str:
    """Return COLL with the values of the old options --root and --ranks appended."""
    options = {"root": root, "ranks": ranks or None}
    texts = [f"{key}={value}" for key, value in options.items() if value is not None]
    return ":".join([coll, *([",".join(texts)] if texts else [])])


def split_plan(plan: str, collective: str = "") -> tuple[Path, str]:
    """Split PLAN:COLL, as in table.json:allreduce, into file and collective.

    `collective`: value of the old option --collective.
    """
    name, colon, kind = plan.rpartition(":")
    if colon and name and not Path(plan).exists() and kind.isidentifier():
        return Path(name), kind
    return Path(plan), collective


def load_plan(plan: str) -> Plan:
    """Return the plan of PLAN or PLAN:COLL, as in table.json:allreduce."""
    path, kind = split_plan(plan)
    return choose_plan(load_plans(path), kind, str(path))


def split_runtime(on: str) -> tuple[str, dict[str, Any]]:
    """Split RUNTIME:key=value,... into its name and its options; only options of that runtime are accepted."""
    name, _, tail = on.partition(":")
    keys = [*find("runtime", name).can.options, "timeout"]
    label = f"--on {quote(on)}"
    # a comma begins an option where the name of one follows, of any runtime: so a wrong one is reported as such, and
    # values may have commas, such as a launcher's options
    any_key = "|".join({"timeout", *(key for entry in table("runtime").values() for key in entry.can.options)})
    texts = re.split(rf",(?=(?:{any_key})=)", tail) if tail else ()
    options: dict[str, Any] = dict(parse_options(texts, label, f"{name}:KEY=VALUE"))
    for key in options:
        if key not in keys:
            raise unknown(f"option of runtime {name}", key, keys)
    if "timeout" in options:
        # bare: a number without a unit is in seconds
        options["timeout"] = parse_seconds(options["timeout"], f"{label}: timeout", bare=True)
    if "hybrid" in options:  # of the GPU kernel: links that the plan leaves idle carry some of the data
        options["hybrid"] = parse_yes(options["hybrid"], f"{label}: hybrid")
    if "lowering" in options:
        check_lowering(options["lowering"], f"{label}: lowering")
    return name, options


def split_options(text: str, option: str) -> tuple[str, dict[str, Any]]:
    """Split NAME:key=value,... of an option into the name and its options.

    >>> split_options("compose:groups=3x4,inside=ring,direct", "--planner")
    ('compose', {'groups': '3x4', 'inside': 'ring,direct'})
    """
    name, colon, tail = text.partition(":")
    texts = re.split(r",(?=\w+=)", tail) if colon else ()  # a comma may be in a value, too
    options = parse_options(texts, f"{option} {quote(text)}", f"{name or 'NAME'}:key=value")
    return name, {key: plain_value(value) for key, value in options.items()}


def split_machine(spec: str, only: str = "") -> tuple[str, list[int] | None]:
    """Split TOPO:only=RANKS into the machine and the ranks to keep (None: all); `only`: value of the old --only.

    >>> split_machine("ring:only=0-2,ranks=8")
    ('ring:ranks=8', [0, 1, 2])
    """
    # before only= the name or other options; after its ranks, which have commas too, a comma and further options
    match, label = re.fullmatch(r"(.+?)([:,])only=([^=]*?)(?:,(\w+=.*))?", spec), "--only"
    if match is not None:
        label = f"machine {quote(spec)}: only"
        name, separator, only, tail = match.groups()
        spec = f"{name}{separator}{tail}" if tail else name
    return spec, parse_ranks(only, label) if only or match is not None else None


def machine_and_group(spec: str, only: str, group: list[int] | None = None) -> tuple[Topology, list[int] | None]:
    """Return the machine, reduced to the ranks that only= keeps, and the participating ranks (None: all)."""
    name, kept_ranks = split_machine(spec, only)
    if kept_ranks is None:
        return topology(name), group
    missing_ranks = sorted(set(group or ()) - set(kept_ranks))
    if missing_ranks:
        raise Invalid(f"ranks: rank {missing_ranks[0]} is not among those that only= keeps")
    return topology(name, only=kept_ranks), group or kept_ranks


def machine_or_none(spec: str, only: str) -> Topology | None:
    """Return the machine of --topology; None without it."""
    if only and not spec:
        raise Invalid("--only: selects ranks of --topology; give --topology TOPO:only=RANKS")
    if not spec:
        return None
    machine, _ = machine_and_group(spec, only)
    return machine


def request(
    coll: str, spec: str, root: int | None, only: str, ranks: str, groups: str = "", mesh: str = "", along: str = ""
) -> tuple[Collective, Topology]:
    """Return the collective and the machine of a command line; `root` and `ranks` are those of the old options."""
    coll, root, members = split_collective(with_groups(coll, groups, mesh, along), root, ranks)
    machine, group = machine_and_group(spec, only, members)
    if names_groups(coll):
        return collective(coll, machine, root=root, ranks=group, mesh=mesh), machine
    if group and not members and is_file(coll):  # the file lists the participants, only= the ranks present
        target = collective(coll, machine, root=root)
        missing_ranks = sorted(set(target.members) - set(group or ()))
        if missing_ranks:
            raise Invalid(f"{coll}: rank {missing_ranks[0]} takes part, but is not among those that only= keeps")
        return target, machine
    return collective(coll, machine, root=root, ranks=group), machine
