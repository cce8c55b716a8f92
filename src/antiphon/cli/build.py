"""The command `build`: compile the MPI engine or a plugin for NCCL with the user's own compiler."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from antiphon.api.running import build
from antiphon.cli.arguments import old_option
from antiphon.cli.output import emit
from antiphon.cli.planning import compiling


def build_command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="mpi: the engine over MPI, also for LD_PRELOAD; nccl-tuner: a tuner plugin for NCCL; nccl-preload: "
            "for LD_PRELOAD, sets NCCL's algorithm for each call (from NCCL 2.31 on)",
        ),
    ],
    compiler: Annotated[str, old_option("--compiler", instead="$MPICC or $CC")] = "",
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table", metavar="FILE",
            help="also compile this table, so that no job waits for it (repeatable; only for mpi)",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Compile a library with your compiler, unless it is cached, and print its path.

    To run an unchanged MPI program with a tuned table:

    \b
        ANTIPHON_TABLE=table.json \\
        LD_PRELOAD=$(antiphon build mpi --table table.json) \\
        mpiexec -n 8 ./a.out

    To make NCCL choose algorithms by a file of `export --to nccl-tuner`:

    \b
        ANTIPHON_NCCL_TUNER=tuner/nccl-tuner.txt \\
        NCCL_TUNER_PLUGIN=$(antiphon build nccl-tuner) \\
        ./a.out
    """
    with compiling():
        path = build(cast(Any, what), compiler, table or ())
    emit({"library": str(path)}, str(path))
