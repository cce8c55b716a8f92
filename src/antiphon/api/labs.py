"""The emulated cluster: rate-limited links between network namespaces. Needs Linux and root."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.api import _inputs
from antiphon.api._checked import public, yes_or_no
from antiphon.api.running import run as run_plan
from antiphon.errors import Invalid, quote
from antiphon.units import parse_seconds

if TYPE_CHECKING:
    from antiphon.api._kinds import MachineLike, Path, PlanLike, Row, Seconds, Sizes
    from antiphon.runtimes.lab.lab import LinkCut


@public
def up(topology: MachineLike, *, scale: str = "", name: str = "") -> Row:
    """Create a lab that stays up.

    Parameters
    ----------
    topology
        The machine to emulate.
    scale
        How much slower links are: "2Mbit per GB/s", or "link=40Mbit" for the unit link. Default: such that the fastest
        link has 40 Mbit/s.
    name
        Name of the lab. Default: that of the machine.

    Returns
    -------
    dict
        The row of the lab, as of `status`.

    Raises
    ------
    Missing
        Not Linux, not root, or iproute2 is not installed.
    Invalid
        A lab of this name is already up.

    Examples
    --------
    ::

        antiphon.lab.up("ring:ranks=4", scale="link=40Mbit")
    """
    from antiphon.runtimes.lab import lab

    return lab.lab_up(_inputs.machine(topology), scale=scale, name=name)


@public
def down(name: str = "", *, every: bool = False) -> list[str]:
    """Take a lab down.

    Parameters
    ----------
    name
        The lab. Default: the only one.
    every
        Take all labs down.

    Returns
    -------
    list of str
        Names of the labs that were taken down.

    Raises
    ------
    Missing
        Not Linux, not root, or iproute2 is not installed.
    Invalid
        No lab of this name is up, or several are and none is named.

    Examples
    --------
    ::

        antiphon.lab.down("ring:ranks=4")
    """
    from antiphon.runtimes.lab import lab

    return lab.lab_down(name, every=yes_or_no(every, "every"))


def status() -> list[Row]:
    """List the labs that are up.

    Returns
    -------
    list of dict
        A row per lab: `name`, `topology`, `ranks`, `namespaces`, `links`, `scale`, `slowest` and `fastest` (bits per
        second of links), `reachable` (whether all ranks reach each other), `keeper` and `owner` (processes; None: it
        stays up).
    """
    from antiphon.runtimes.lab import lab

    return lab.lab_status()


@public
def cut(name: str = "", links: Sequence[str] | str = ()) -> Row:
    """Cut links of a lab that is up, also under a running program; those not named are up again.

    ANTIPHON_DEAD names them in the lab, so that tables with plans for failures follow. After 3 seconds there are paths
    around them.

    Parameters
    ----------
    name
        The lab. Default: the only one.
    links
        Links such as "0-1,3-nvswitch", or a list.

    Returns
    -------
    dict
        `name`, `dead` (the links) and `reachable`: whether all ranks still reach each other.

    Raises
    ------
    Missing
        Not Linux, not root, or iproute2 is not installed.
    Invalid
        No such lab or link.

    Examples
    --------
    ::

        antiphon.lab.cut(links="0-1")
    """
    from antiphon.runtimes.lab import lab

    return lab.lab_cut(name, [link for link in links.split(",") if link] if isinstance(links, str) else [*links])


@public
def command(
    where: MachineLike, command: Sequence[str], *, scale: str = "", name: str = "", timeout: Seconds = 600.0,
    quiet: bool = False, cuts: Mapping[str, float | str] | None = None,
) -> Row:  # fmt: skip
    """Start a program once for each rank, in a lab that is up or in a temporary one.

    Parameters
    ----------
    where
        Name of a lab that is up ("" for the only one), or a machine.
    command
        The program with its arguments.
    scale, name
        Scale and name of a temporary lab, as of `up`.
    timeout
        Seconds after which the program is stopped.
    quiet
        Do not print the program's output.
    cuts
        Links to cut meanwhile, each with the seconds after the start, or with a number of a call as `antiphon watch`
        counts them: {"0-1": 2.5, "1-2": "call=5"} cuts 1-2 once a process has made four calls.

    Returns
    -------
    dict
        `exit_code` and figures of the run.

    Raises
    ------
    Missing
        Not Linux, not root, or iproute2 is not installed.
    Invalid
        `command` is a string, or a link in `cuts` does not exist.

    Examples
    --------
    ::

        antiphon.lab.command("ring:ranks=4", ["hostname"])["exit_code"]
    """
    from antiphon.runtimes.lab import lab

    if isinstance(command, str):
        raise Invalid(f"command: expected a list of words, such as {command.split()}, got {quote(command)}")
    is_up = isinstance(where, str) and (not where or where in lab.lab_names())
    lab_or_machine: Any = where if is_up else _inputs.machine(where)
    return lab.lab_command(
        lab_or_machine,
        command,
        scale=scale,
        name=name,
        timeout=float(timeout),
        quiet=yes_or_no(quiet, "quiet"),
        cuts=[_cut_at(link, at) for link, at in (cuts or {}).items()],
    )


def _cut_at(link: str, at: float | str) -> LinkCut:
    """Return when a link is cut: seconds after the start, or at "call=5" after four calls."""
    from antiphon.runtimes.lab.lab import LinkCut

    if not isinstance(at, str):
        return LinkCut(link, seconds=float(at))
    if re.fullmatch(r"call=[1-9]\d{0,8}", at):
        return LinkCut(link, calls=int(at.removeprefix("call=")) - 1)
    return LinkCut(link, seconds=parse_seconds(at, "cuts", bare=True))


@public
def run(  # noqa: PLR0913
    plan: PlanLike, nbytes: Sizes, *, dtype: str = "float32", op: str = "sum", seed: int = 0, repeat: int = 3,
    in_place: bool = False, scale: str = "", name: str = "", timeout: Seconds = 600.0, collective: str = "",
    trace: Path | None = None,
) -> list[Row]:  # fmt: skip
    """Run a plan in a lab, a process for each rank, as `antiphon.run(..., on="lab")` does.

    Parameters
    ----------
    plan, nbytes, dtype, op, seed, repeat, in_place, timeout, collective, trace
        As of `antiphon.run`.
    scale, name
        Scale and name of a temporary lab, as of `up`.

    Returns
    -------
    list of dict
        Rows as of `antiphon.run`.

    Raises
    ------
    Missing
        Not Linux, not root, or iproute2 is not installed.
    Invalid
        The plan or an option is wrong.

    Examples
    --------
    ::

        antiphon.lab.run("plan.json", "600KB")
    """
    return run_plan(
        plan, nbytes, on="lab", dtype=dtype, op=op, seed=seed, repeat=repeat, in_place=in_place, scale=scale, name=name,
        timeout=timeout, collective=collective, trace=trace,
    )  # fmt: skip
