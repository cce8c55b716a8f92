"""antiphon replay: a recorded job once more, with our plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.api.replaying import replay
from antiphon.cli.arguments import Json, Library, Only, OnMachine, PlannerNames, ProfileFile, Usual, machine_given
from antiphon.cli.output import emit, working
from antiphon.cli.replay_text import replay_text


def replay_command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE...", help="of PyTorch's profiler, Chakra or NCCL's profilers; or their folder"),
    ],
    topo: OnMachine = "",
    only: Only = "",
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE", help="our plans; without it, planned")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option("--measured", metavar="FILE", help="what ours take: of bench --json, or of nccl-tests"),
    ] = None,
    model: Usual = "",
    profile: ProfileFile = None,
    planner: PlannerNames = None,
    library: Library = "",
    cores: Annotated[
        int, typer.Option("--cores", metavar="N", min=0, help="the ranks share N cores (0: they do not)")
    ] = 0,
    json: Json = False,
) -> None:
    """A recorded job once more: a step as it was and with our plans, what is exposed, what is worth tuning."""
    with working("replaying"):
        found = replay(
            list(files), machine_given(topo, only), table=table, measured=measured, model=model, profile=profile,
            planners=planner or (), library=library, cores=cores or None,
        )  # fmt: skip
    emit(found, replay_text(found), json)
