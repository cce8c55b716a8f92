"""All commands, in the order in which the help lists them. To add one: a function in a file here, and its row.

A command's file is imported when the command is first used, so that running one does not wait for the files of the
others.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import typer
import typer.main

from antiphon.cli.kinds import (
    PLANS,
    NamelessCommand,
    WithFileList,
    WithNamelessCommand,
    WithProgram,
    epilog,
    show_plain_names,
)


class Command(NamedTuple):
    """A command."""

    name: str
    call: str  # "file:function" in this folder, imported when the command is used
    about: str | None  # its line in the list of commands, if that is not the first line of its help
    example: str | None
    typer_options: Mapping[str, Any] = {}  # further keyword arguments for typer


class CommandGroup(NamedTuple):
    """Commands behind one name, such as `topology show` and `topology probe`."""

    name: str
    about: str | None  # its line in the list of commands, if that is not the first line of its help
    help: str  # the text of its help, above the list of its commands
    example: str | None
    commands: tuple[Command, ...]
    typer_options: Mapping[str, Any] = {}


GROUPS: Mapping[str, tuple[Command | CommandGroup, ...]] = {
    "Machines": (
        CommandGroup("topology", "Show or probe a machine, join boxes to a fabric, drop links.",
              "Show, read and change machines.", "topology show dgx1v -o machine.svg", (
            Command("show", "machine:show_command", "Show a machine, or draw it.",
                    "topology show ring:ranks=8,bandwidth=10GB/s"),
            Command("probe", "machine:probe_command", "Read this machine, or another from the output of a tool.",
                    "topology probe topo.txt --from nvidia-smi -o box.json"),
            Command("join", "machine:join_command", "Join a box and a fabric.",
                    "topology join topo.txt ibnetdiscover.txt -o cluster.json"),
            Command("export", "machine:export_machine_command", "Write a box as NCCL's topology file.",
                    "topology export hgx-h100 -o topo.xml"),
            Command("degrade", "machine:degrade_command", "Remove or slow down links, or remove ranks.",
                    "topology degrade dgx1v --drop 0-3 -o broken.json"),
        )),
        Command("doctor", "doctor:doctor_command", "Find what is here, and what to try first.", "doctor"),
    ),
    "Plan": (
        Command("bound", "machine:bound_command", "Print lower bounds on steps and time.",
                "bound allgather dgx1v"),
        Command("plan", "plans:plan_command", "Plan a collective with one planner, or compose plans.",
                "plan allreduce dgx1v --planner multi-ring -o plan.json", {"cls": WithFileList}),
        Command("frontier", "frontier:frontier_command", "Compute the latency-bandwidth frontier, with proofs.",
                "frontier allgather dgx1v --budget 60s -o plan.json"),
        Command("tune", "tuning:tune_command", "Find the best plan for every size.",
                "tune allreduce dgx1v -o plan.json -o report.html"),
        Command("sweep", "sweeping:sweep_command", "Compare many machines, by speed and price.",
                "sweep study.toml -o study.csv -o study.svg"),
        Command("verify", "verifying:verify_command", "Verify a plan, or check whether a runtime runs it (--for).",
                "verify plan.json --proof"),
        Command("predict", "costs:predict_command", "Predict the time of a plan at each size, and its bottleneck.",
                "predict plan.json --nbytes 1KB:1GB"),
        Command("explore", "explore:explore_command", "Explore a plan, table, frontier, sweep or trace in a browser.",
                "explore plan.json -o plan.html"),
        Command("check-log", "check_log:check_log_command", "Check a log of nccl-tests, rccl-tests or OSU.",
                "check-log nccl.log --topology hgx-h100"),
    ),
    "Run": (
        Command("run", "plans:run_command", "Run a plan with real data and check every element.",
                "run plan.json --nbytes 64MiB --on local"),
        CommandGroup("bench", about=None, help="Measure plans beside the library's own collectives.", example=None,
                     commands=(
            # runs where the word after `bench` names none of the commands below; users never type PLANS
            Command(PLANS, "bench:bench_plans_command", about=None,
                    example="bench allreduce full:ranks=4 --nbytes 8:8MiB:8",
                    typer_options={"cls": NamelessCommand, "hidden": True}),
            Command("genmodel", "bench:genmodel_command", "Measure for `fit genmodel`.",
                    "bench genmodel -n 8 --nbytes 1MiB:64MiB:8 -o times.csv"),
            Command("loggp", "bench:loggp_command", "Measure for `fit loggp`.",
                    "bench loggp --on mpi:mpiexec=srun -o trips.csv"),
            # MIMO: many inputs to many outputs; MCA: multi-chain aggregation
            Command("micro", "bench:micro_command", "Run Blink's micro-benchmarks: chains, fan-in, fan-out, ...",
                    "bench micro dgx1v --on cuda --nbytes 1MB:1GB:10"),
        ), typer_options={"cls": WithNamelessCommand}),
        Command("build", "build:build_command",
                "Compile the preload for your MPI, or a tuner for NCCL.", "build mpi"),
        Command("export", "export:export_command", "Write a plan as files for another program.",
                "export plan.json --to goal --nbytes 64MiB -o goal"),
        Command("watch", "watching:watch_command", "Show the calls of a running job, or metrics for Prometheus.",
                "watch /dev/shm/job"),
        CommandGroup("lab", "Manage an emulated cluster and run programs in it.",
              "Emulate a machine: its links become rate-limited network devices between namespaces of this computer. "
              "Needs root.", "lab run dgx1v -- mpiexec -n 8 ./program", (
            Command("up", "lab:up_command", "Create a lab that remains.", 'lab up dgx1v --scale "link=40Mbit"'),
            Command("down", "lab:down_command", "Remove a lab.", "lab down dgx1v"),
            Command("cut", "lab:cut_command", "Cut links of a lab, also under a running program.", "lab cut dgx1v 0-1"),
            Command("status", "lab:status_command", "List the labs that are up.", "lab status --json"),
            Command("run", "lab:run_command", "Run a program in a lab.",
                    "lab run dgx1v -- mpiexec -n 8 ./program", {"cls": WithProgram}),
        )),
    ),
    "More": (
        Command("list", "listing:list_command", "List planners, models, runtimes, formats or topologies.",
                "list planners ring"),
        CommandGroup("fit", about=None, help="Fit model parameters to measurements.",
                     example="fit genmodel times.csv -o profile.json",
                     commands=(
            Command("genmodel", "fit:genmodel_command", "Fit GenModel: alpha, beta, gamma, delta, epsilon and w_t.",
                    "fit genmodel times.csv --memory memory.json -o fit.json"),
            Command("memory", "fit:memory_command", "Measure GenModel's gamma and delta on this machine.",
                    "fit memory -o memory.json"),
            Command("loggp", "fit:loggp_command", "Fit LogGP: L, o_s, o_r, g and G.",
                    "fit loggp trips.csv --within host -o profile.json"),
            Command("lowering", "fit:lowering_command", "Fit the costs of running plans on GPUs.",
                    "fit lowering times.csv -o profile.json"),
        )),
        Command("replay", "replay:replay_command", "Estimate what a recorded job gains from a table of plans.",
                "replay rank0.json rank1.json --topology dgx1v"),
        CommandGroup("table", about=None, help="Show, merge or compare files of times that jobs learned.",
                     example="table show learned.txt",
                     commands=(
            Command("show", "learned:show_learned_command", "Show the times that jobs learned.",
                    "table show learned.txt"),
            Command("merge", "learned:merge_learned_command", "Merge what several jobs learned into one file.",
                    "table merge a.txt b.txt -o learned.txt"),
            Command("diff", "learned:diff_learned_command", "Compare what two jobs have chosen.",
                    "table diff monday.txt tuesday.txt"),
        )),
        CommandGroup("store", about=None, help="List, get or delete plans kept by --store.", example="store list",
                     commands=(
            Command("list", "sweeping:list_stored_command", about=None, example="store list"),
            Command("get", "sweeping:get_command", "Get a plan without planning.",
                    "store get allreduce dgx1v -o plan.json"),
            Command("gc", "sweeping:collect_command", about=None, example="store gc --older-than 30 --max-bytes 1GB"),
        )),
        Command("reproduce", "reproduce:reproduce_command", "Recompute a table of a paper.",
                "reproduce sccl-table5"),
        CommandGroup("trace", "Merge traces, or read those of other programs.", "Merge traces, or read Chakra traces.",
              "trace merge measured.json simulated.json -o both.json", (
            Command("merge", "trace:merge_command", "Merge traces into one file, side by side.",
                    "trace merge measured.json simulated.json -o both.json"),
            Command("read", "trace:read_command", "Read Chakra execution traces: a plan, or collectives.",
                    "trace read chakra -o plan.json"),
        )),
    ),
}  # fmt: skip
OLD_COMMANDS = (  # see old_spellings
    Command("simulate", "costs:simulate_command", about=None, example=None, typer_options={"hidden": True}),
    Command("check", "verifying:check_command", about=None, example=None, typer_options={"hidden": True}),
    Command("compose", "plans:compose_command", about=None, example=None, typer_options={"hidden": True}),
)


class Commands(Mapping[str, Any]):
    """All commands by name, each created when it is first looked up."""

    def __init__(self, groups: Mapping[str, tuple[Command | CommandGroup, ...]], hidden: tuple[Command, ...]) -> None:
        self.headings = {heading: [row.name for row in rows] for heading, rows in groups.items()}
        self._rows = {row.name: row for rows in (*groups.values(), hidden) for row in rows}
        self._loaded: dict[str, Any] = {}

    def load(self, words: Sequence[str]) -> None:
        """Load the command that a command line with these words runs, or all commands if it names none.

        Loading comes before the work, so that a signal that arrives meanwhile ends the process at once.
        """
        first_word = next((word for word in words if not word.startswith("-")), "")
        if first_word in self._rows:
            self[first_word]  # looking it up loads it
        elif list(words) != ["--version"]:  # the list of all commands, or the error for an unknown name
            dict(self)

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            single_app = typer.Typer(rich_markup_mode=None)
            _register(single_app, self._rows[name])
            self._loaded[name] = typer.main.get_group(single_app).commands[name]
            show_plain_names(self._loaded[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _register(app: typer.Typer, row: Command | CommandGroup) -> None:
    """Add a command, or a group with its commands, to a typer application."""
    if isinstance(row, Command):
        file, _, function = row.call.partition(":")
        call = getattr(importlib.import_module(f"antiphon.cli.{file}"), function)
        app.command(row.name, short_help=row.about, epilog=epilog(row.example), **row.typer_options)(call)
    else:
        group = typer.Typer(
            no_args_is_help=True, rich_markup_mode=None, help=row.help, epilog=epilog(row.example), **row.typer_options
        )
        for inner in row.commands:
            _register(group, inner)
        app.add_typer(group, name=row.name, short_help=row.about)
