"""Compare the machines of a sweep: which is the fastest, and which for the money, as sentences and as a table."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.sweeps.results import MachineResult, SweepResult, shared_prefix
from antiphon.units import plural


def short_names(machines: Sequence[MachineResult]) -> tuple[str, dict[str, str]]:
    """Return the prefix that all names share, and by name the name without it."""
    prefix = shared_prefix([m.machine for m in machines])
    return prefix, {m.machine: m.machine[len(prefix) :] for m in machines}


def conclusions(result: SweepResult) -> list[str]:
    """Return which machine is the fastest, and which are the best for their price; [] if none could be planned for."""
    machines = result.machines()  # the fastest first
    planned = [m for m in machines if m.relative_time is not None]
    prefix, short = short_names(machines)
    if not planned:
        return []
    # machines without a plan for every collective are not compared
    scope = f"{plural(len(planned), 'machine')}{f' {prefix}...' if prefix else ''}"
    scope += "" if len(planned) == len(machines) else f" ({len(machines) - len(planned)} left out)"
    standing = f"the fastest of {scope}"
    if len(planned) == 1 < len(machines):
        standing = f"the only one of {len(machines)} machines with a plan for every collective"
    lines = [f"{short[planned[0].machine]} is {standing}"]
    for name in result.request.prices:
        names = "; ".join(short[m.machine] for m in planned if name in m.on_front)
        lines += [f"best for their price ({name}): {names}"] if names else []
    return lines


def machine_table(result: SweepResult, limit: int) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of a table of the `limit` fastest machines.

    Machines are left out if a collective of the sweep has no plan on them. A machine's time is relative: the
    geometric mean over collectives and sizes, divided by that of the fastest machine.
    """
    machines, prices = result.machines(), list(result.request.prices)
    _, short = short_names(machines)
    planned = [m for m in machines if m.relative_time is not None][:limit]
    return ["machine", "ranks", "time", "worst gap", *prices], [_row(m, short[m.machine], prices) for m in planned]


def _row(m: MachineResult, name: str, prices: Sequence[str]) -> list[str]:
    cells = [str(m.ranks or "-"), f"{m.relative_time:.3f}x", "-" if m.gap is None else f"{m.gap:.2f}x"]
    cells += ["-" if m.price[key] is None else f"{m.price[key]:,.10g}" for key in prices]
    return [name, *cells]
