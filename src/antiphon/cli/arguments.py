"""The arguments that several commands share, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.api.machines import collective, topology
from antiphon.core.collective import Collective, kind_named
from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.select.parse_request import is_file
from antiphon.units import parse_ranks


def check_order(context: typer.Context, topo: str) -> str:
    """Check that the two were not swapped: Invalid, with the right command, if the machine is a collective's name."""
    first = next((str(value) for name, value in context.params.items() if name in ("coll", "what", "file")), "")
    if kind_named(topo) and first and not kind_named(first) and first != "all":
        raise Invalid(f"the collective comes first: {context.command_path} {topo} {first}")
    return topo


Topo = Annotated[
    str, typer.Argument(metavar="TOPO", help="name, name:key=value,... or file.json", callback=check_order)
]
Coll = Annotated[str, typer.Argument(metavar="COLL", help="allreduce, allgather, ... or file.json")]
Root = Annotated[
    int | None, typer.Option("--root", metavar="RANK", help="the root of a rooted collective (default: the first rank)")
]
Only = Annotated[
    str,
    typer.Option("--only", metavar="RANKS", help="keep just these ranks of the machine, e.g. 0,1,4; the rest vanishes"),
]
Ranks = Annotated[
    str, typer.Option("--ranks", metavar="RANKS", help="the ranks that take part, e.g. 0,1,4; the others may relay")
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="a plan as `plan -o` or `tune -o` writes it")]
WhichPlan = Annotated[
    str, typer.Option("--collective", metavar="COLL", help="of a table with several plans, the one for this")
]
OnMachine = Annotated[
    str, typer.Option("--topology", metavar="TOPO", help="the machine, for a file that names none (MSCCL, MSCCL++)")
]
Usual = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME", show_default=False,
        help="what predicts the times: see antiphon list models (default: calls on known GPUs, else alpha-beta)",
    ),
]  # fmt: skip
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="draw it into this file")]
Png = Annotated[Path | None, typer.Option("--png", metavar="FILE", help="the same as pixels (needs antiphon[plot])")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="write the result here (.json or .json.gz)")
]
ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="what was measured: a JSON file, or the name of a shipped one"),
]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="write when everything happened (Chrome trace, for Perfetto)"),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, metavar="N", help="same seed, same plans, data and choices by chance")
]
Budget = Annotated[
    str, typer.Option("--budget", metavar="TIME", help="stop after so much CPU time, e.g. 60s; the best so far is kept")
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="one order of combining for every element: the same bits at all sizes")
]
PlannerOption = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="for the planner; again for more")
]
Launcher = Annotated[
    str, typer.Option("--mpiexec", metavar="COMMAND", help='on mpi, the launcher: "mpiexec --hostfile hosts"')
]
Scale = Annotated[
    str,
    typer.Option(
        "--scale", metavar="SCALE",
        help='on lab, how slow: "2Mbit per GB/s", or "link=40Mbit" for the unit link (default: the fastest 40 Mbit/s)',
    ),
]  # fmt: skip
LabName = Annotated[str, typer.Option("--name", metavar="NAME", help="on lab: which (default: the machine's)")]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="give up after so long")]
Hybrid = Annotated[
    bool, typer.Option("--hybrid", help="on threads, cuda, hip: links that the plan leaves idle carry a part, too")
]
Repeat = Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="runs of each; the median time counts")]
Dtype = Annotated[str, typer.Option("--dtype", metavar="TYPE", help="int8 ... float64, bfloat16, float8_e4m3fn, ...")]
Op = Annotated[str, typer.Option("--op", metavar="OP", help="sum, prod, min, max or avg")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="write all that was measured here, as CSV")]
Library = Annotated[
    str, typer.Option("--library", metavar="LIBRARY", help="nccl, rccl or msccl, with options: what it would do")
]
On = Annotated[
    str, typer.Option("--on", metavar="WHERE", help="a runtime: mpi, torch, lab, threads, cuda, ... (run: also local)")
]
PlannerName = Annotated[str, typer.Option("--planner", metavar="NAME", help="who plans: see antiphon list planners")]
PlannerNames = Annotated[
    list[str] | None, typer.Option("--planner", metavar="NAME", help="just this planner; again for more")
]
Effort = Annotated[
    float | None, typer.Option("--effort", metavar="N", help="effort of a planner that searches (sccl: 60, in tune 5)")
]
Json = Annotated[bool, typer.Option("--json", help="the result as JSON (documented, stable keys)")]


def machine_and_group(spec: str, only: str, ranks: str) -> tuple[Topology, list[int] | None]:
    """The machine, and the ranks that take part (None: all)."""
    group = parse_ranks(ranks, "--ranks") if ranks else None
    if not only:
        return topology(spec), group
    present = parse_ranks(only, "--only")
    absent = sorted(set(group or ()) - set(present))
    if absent:
        raise Invalid(f"--ranks: rank {absent[0]} is not among those that --only keeps")
    return topology(spec, only=present), group or present


def machine_given(spec: str, only: str) -> Topology | None:
    """The machine of --topology and --only; None without these."""
    if only and not spec:
        raise Invalid("--only: says which ranks of --topology are there; give that, too")
    return machine_and_group(spec, only, "")[0] if spec else None


def request(coll: str, spec: str, root: int | None, only: str, ranks: str) -> tuple[Collective, Topology]:
    machine, group = machine_and_group(spec, only, ranks)
    if only and not ranks and is_file(coll):  # the file says which ranks take part, --only which are present
        target = collective(coll, machine, root=root)
        absent = sorted(set(target.members) - set(group or ()))
        if absent:
            raise Invalid(f"{coll}: rank {absent[0]} takes part, but is not among those that --only keeps")
        return target, machine
    return collective(coll, machine, root=root, ranks=group), machine
