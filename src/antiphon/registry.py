"""Tables of topologies, planners, models, back ends and runtimes.

A table maps a name to an `Entry` whose function is imported only when it is used. A folder's `table.py` holds
the built-in entries; other packages add theirs through entry points named `antiphon.<kind>`.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from antiphon.core.collective import Collective
from antiphon.errors import Invalid, Unsupported, quote, unknown

EFFORT = 10.0  # of planners that declare none
KINDS = {"topology": "topologies", "planner": "planners", "model": "cost", "backend": "formats", "runtime": "runtimes"}


@dataclass(frozen=True)
class Entry:
    """One name of a table. `where` is "module:function"; `can` declares its abilities, read without importing it.

    For planners:

    - can["collectives"], can["options"]: names. can["topologies"]: a phrase.
    - can["sweep"]: options worth trying when tuning. can["sizes"]: True if plans differ by size, so that tuning for
      many sizes asks for several.
    - can["in_switches"]: True if all its schedules let switches multicast or reduce: `tune` uses it only on machines
      whose switches can.
    - can["effort"]: relative to other planners, in transfers on many ranks: a number above 0, by default 10.
    - can["most"]: by collective the greatest number of ranks. can["joined"]: True if links or switches must join all
      ranks. Errors of other planners name it by these.
    - can["process"]: True if `tune` must run it in a process of its own, as it does planners of other packages. One
      that works in C for long (a solver) needs that: in the process of `tune` a signal stops it at its budget, which
      only Python code notices.
    """

    where: str
    about: str
    can: Mapping[str, Any]

    @property
    def own(self) -> bool:
        """Whether it is of this package."""
        return self.where.startswith("antiphon.")

    def load(self) -> Callable[..., Any]:
        module, _, function = self.where.partition(":")
        target: Callable[..., Any] = getattr(importlib.import_module(module), function)
        return target


@cache
def table(kind: str) -> Mapping[str, Entry]:
    """All entries of a kind: the built-in ones, then those of installed packages (which may not replace them)."""
    entries: dict[str, Entry] = dict(importlib.import_module(f"antiphon.{KINDS[kind]}.table").TABLE)
    for point in entry_points(group=f"antiphon.{kind}"):
        entry = point.load()
        if point.name in entries or not isinstance(entry, Entry):
            raise Invalid(
                f"the installed package entry point antiphon.{kind}:{point.name} "
                "repeats a name or is not an antiphon.registry.Entry; remove or fix that package"
            )
        entries[point.name] = entry
    return entries


def find(kind: str, name: str) -> Entry:
    entries = table(kind)
    if name not in entries:
        raise unknown(kind, name, entries)
    return entries[name]


def effort_of_planner(name: str, entry: Entry) -> float:
    """The relative effort that a planner's entry declares; Invalid, naming it, if that is no number above 0."""
    effort = entry.can.get("effort", EFFORT)
    if isinstance(effort, bool) or not isinstance(effort, int | float) or not 0 < effort < math.inf:
        raise Invalid(f'planner {name}: can["effort"] of its entry: expected a number above 0, got {quote(effort)}')
    return float(effort)


def call(kind: str, name: str, function: Callable[..., Any], options: Mapping[str, Any], *args: Any) -> Any:
    """Call a table's function with keyword options; Invalid names unknown options and missing ones.

    A function that takes **options accepts any.
    """
    parameters = inspect.signature(function).parameters
    keywords = {key: p for key, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key in options:
        if key not in keywords and not takes_any:
            if not keywords:
                raise Invalid(f"{kind} {name} takes no options, got {quote(key)}")
            raise unknown(f"option of {kind} {name}", key, keywords)
    needed = [k for k, p in keywords.items() if p.default is inspect.Parameter.empty and k not in options]
    if needed:
        raise Invalid(f"{kind} {name} needs {', '.join(needed)}; for example {name}:{needed[0]}=8")
    return function(*args, **options)


def refuse_unless_able(name: str, entry: Entry, collective: Collective) -> None:
    """Unsupported, naming planners that can, unless the planner declares this collective."""
    able = entry.can["collectives"]
    if collective.kind not in able:
        able_planners = [
            other for other, candidate in table("planner").items() if collective.kind in candidate.can["collectives"]
        ]
        would = f"planners that can: {', '.join(able_planners)}" if able_planners else "no planner here can yet"
        raise Unsupported(f"planner {name} does not plan {collective.kind} (it plans {', '.join(able)}); {would}")
