"""antiphon build: libraries made with the user's own compiler."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from antiphon.api.running import build
from antiphon.cli.arguments import Json
from antiphon.cli.output import emit, working


def _build_command(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="mpi: the engine over MPI, also for LD_PRELOAD")],
    compiler: Annotated[
        str,
        typer.Option("--compiler", metavar="COMMAND", help="instead of $MPICC, or mpicc beside Python or on the PATH"),
    ] = "",
    json: Json = False,
) -> None:
    """Compile the native engine for your MPI, where that has not been done yet, and print where the library is.

    Programs run by a tuned table, without a change to them:
    ANTIPHON_TABLE=table.json LD_PRELOAD=$(antiphon build mpi) mpiexec -n 8 ./a.out
    """
    with working("compiling the engine"):
        path = build(cast(Any, what), compiler)
    emit({"library": str(path)}, str(path), json)


def register(app: typer.Typer) -> None:
    app.command(
        "build",
        short_help="Compile the engine for your MPI; prints its path.",
        epilog="Example: antiphon build mpi",
    )(_build_command)
