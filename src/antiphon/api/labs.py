"""The emulated cluster: rate-limited links between network namespaces. Needs Linux and root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antiphon.api import _given
from antiphon.api._checked import public, yes_or_no
from antiphon.api.running import run as run_plan

if TYPE_CHECKING:
    from antiphon.api._kinds import MachineLike, Path, PlanLike, Row, Seconds, Sizes


@public
def up(topology: MachineLike, *, scale: str = "", name: str = "") -> Row:
    """Make a lab that stays.

    `topology`: the machine.
    `scale`: how slow: "2Mbit per GB/s", or "link=40Mbit" for the unit link.
    `name`: of the lab; left out, that of the machine.
    """
    from antiphon.runtimes.lab import lab

    return lab.lab_up(_given.machine(topology), scale=scale, name=name)


@public
def down(name: str = "", *, every: bool = False) -> list[str]:
    """Take a lab down, and return the names of those that are gone.

    `name`: which; left out, the only one.
    `every`: all there are.
    """
    from antiphon.runtimes.lab import lab

    return lab.lab_down(name, every=yes_or_no(every, "every"))


def status() -> list[Row]:
    """The labs that are up."""
    from antiphon.runtimes.lab import lab

    return lab.lab_status()


@public
def command(
    where: MachineLike, command: Sequence[str], *, scale: str = "", name: str = "", timeout: Seconds = 600.0,
    quiet: bool = False,
) -> Row:  # fmt: skip
    """Start a program once for each rank, in a lab that is up or in one made for it: its `exit_code`, and more.

    `where`: the name of a lab that is up (an empty one: the only one), or a machine.
    `command`: the program with its arguments.
    `scale`, `name`: of a lab that is made for it, as of `up`.
    `timeout`: seconds after which it is given up.
    `quiet`: do not show what the program says.
    """
    from antiphon.runtimes.lab import lab

    is_up = isinstance(where, str) and (not where or where in lab.lab_names())
    ground: Any = where if is_up else _given.machine(where)
    return lab.lab_command(
        ground, command, scale=scale, name=name, timeout=float(timeout), quiet=yes_or_no(quiet, "quiet")
    )


@public
def run(  # noqa: PLR0913
    plan: PlanLike, nbytes: Sizes, *, dtype: str = "float32", op: str = "sum", seed: int = 0, repeat: int = 3,
    in_place: bool = False, scale: str = "", name: str = "", timeout: Seconds = 600.0, collective: str = "",
    trace: Path | None = None,
) -> list[Row]:  # fmt: skip
    """Run a plan in a lab, a process for each rank, as `antiphon.run(..., on="lab")` does.

    `plan`, `nbytes`, `dtype`, `op`, `seed`, `repeat`, `in_place`, `timeout`, `collective`, `trace`: as of
    `antiphon.run`.
    `scale`, `name`: of a lab that is made for it, as of `up`.
    """
    return run_plan(
        plan, nbytes, on="lab", dtype=dtype, op=op, seed=seed, repeat=repeat, in_place=in_place, scale=scale, name=name,
        timeout=timeout, collective=collective, trace=trace,
    )  # fmt: skip
