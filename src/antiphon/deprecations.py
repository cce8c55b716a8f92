"""Names of the previous version: they work in this version, with a DeprecationWarning that states the new name.

`MOVED` is the only list of them; to retire a name, delete its row, and the call of `stay_callable` in the module that
now has the name (`antiphon.frontier` was a function, and is a module).
"""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any, NamedTuple


class Moved(NamedTuple):
    """`call`: "module:name" of the function that replaces the old one. `new`: what to write instead."""

    call: str
    new: str


MOVED = {
    "Frontier": Moved("frontier:Frontier", "antiphon.frontier.Frontier"),
    "backends": Moved("available:formats", "antiphon.available.formats()"),
    "bench": Moved("api.old:bench", "antiphon.measure.bench, .micro, .genmodel, .loggp or .memory"),
    "build": Moved("native:build", "antiphon.native.build"),
    "check": Moved("api.checking:check", "antiphon.verify(plan, runtime=..., nbytes=...)"),
    "comm": Moved("comm:connect", "antiphon.comm.connect"),
    "degrade": Moved("machines:degrade", "antiphon.machines.degrade"),
    "fit": Moved("api.old:fit", "antiphon.fit.genmodel, .loggp or .memory"),
    "frontier": Moved("frontier:find", "antiphon.frontier.find"),
    "lab": Moved("api.old:lab", "antiphon.lab.up, .down, .status, .run or .command"),
    "models": Moved("available:models", "antiphon.available.models()"),
    "planners": Moved("available:planners", "antiphon.available.planners()"),
    "predict_library": Moved(
        "api.costs:predict_library", "antiphon.predict(collective, nbytes, topology=..., library=...)"
    ),
    "replay": Moved("replay:job", "antiphon.replay.job"),
    "report": Moved("pages:report", "antiphon.pages.report"),
    "reproduce": Moved("papers:reproduce", "antiphon.papers.reproduce"),
    "runtimes": Moved("available:runtimes", "antiphon.available.runtimes()"),
    "simulate": Moved("traces:simulate", "antiphon.predict(plan, nbytes, trace=FILE) or antiphon.traces.simulate"),
    "topologies": Moved("available:topologies", "antiphon.available.topologies()"),
    "trace": Moved("api.old:trace", "antiphon.traces.merge or .read"),
    "tune_over": Moved("machines:tune_family", "antiphon.machines.tune_family"),
}


def old_name(name: str, stacklevel: int = 3) -> Any:
    """Return what an old name of the package stands for, and warn."""
    module, _, attribute = MOVED[name].call.partition(":")
    warn_old(f"antiphon.{name}", MOVED[name].new, stacklevel + 1)
    return getattr(importlib.import_module(f"antiphon.{module}"), attribute)


def warn_old(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn at the line `stacklevel` frames up, the user's, that `old` is now spelled `new`."""
    warnings.warn(
        f"{old} is now {new}; the old spelling ends with the next version", DeprecationWarning, stacklevel=stacklevel
    )


class _CallableModule(ModuleType):
    """A module whose call is that of the function which had its name."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return old_name(self.__name__.rpartition(".")[2])(*args, **options)


def stay_callable(module: str) -> None:
    """Let a module be called like the function of its name in the previous version."""
    sys.modules[module].__class__ = _CallableModule
