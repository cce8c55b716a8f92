"""Functions of the previous version that selected their action by a string; each action is a function of its own now.

The next version removes them, with the rows of `antiphon.deprecations` that name them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from antiphon.api import fitting, labs, measuring, traces
from antiphon.api._checked import text
from antiphon.errors import Invalid, unknown


def bench(what: Any, topology: Any = None, nbytes: Any = None, **how: Any) -> Any:
    """Call `antiphon.measure.bench`, or the function of `antiphon.measure` that `what` names."""
    if not isinstance(what, str) or what not in ("genmodel", "loggp", "memory", "micro"):
        return measuring.bench(what, topology, nbytes, **how)
    if "ranks" in how:  # as the previous version called this parameter
        how["processes"] = how.pop("ranks")
    if what == "micro":
        return measuring.micro(topology, nbytes, **how)
    if topology is not None:
        raise Invalid(f"topology: {what} is measured on the machine at hand; leave it out")
    functions: Mapping[str, Callable[..., Any]] = {
        "genmodel": measuring.genmodel, "loggp": measuring.loggp, "memory": measuring.memory,
    }  # fmt: skip
    return functions[what](nbytes, **how)


def fit(what: str, measurements: Any, **parameters: Any) -> Any:
    """Call the function of `antiphon.fit` that `what` names."""
    functions: Mapping[str, Callable[..., Any]] = {
        "genmodel": fitting.genmodel, "loggp": fitting.loggp, "memory": fitting.memory,
    }  # fmt: skip
    if not isinstance(what, str) or what not in functions:
        raise unknown("fit", what, functions)
    return functions[what](measurements, **parameters)


def lab(what: str, where: Any = "", nbytes: Any = None, **how: Any) -> Any:
    """Call the function of `antiphon.lab` that `what` names; "run" with a command is `lab.command`."""
    if text(what, "what") not in ("up", "down", "status", "run"):
        raise unknown("lab", what, ("up", "down", "status", "run"))
    if what == "status":
        return labs.status()
    if what != "run":
        return (labs.up if what == "up" else labs.down)(where, **how)
    if "command" in how:
        return labs.command(where, **how)
    if nbytes is None:
        raise Invalid("lab run: give nbytes with a plan, or command with a machine")
    return labs.run(where, nbytes, **how)


def trace(what: str, files: Any, output: Any = None) -> Any:
    """Call `antiphon.traces.merge` or `.read`, and return the latter's result as a mapping."""
    if what == "merge":
        return traces.merge(files, output)
    if what != "read":
        raise unknown("trace", what, ("merge", "read"))
    if output is not None:
        raise Invalid("output: read returns the plan; antiphon.save writes it")
    recording = traces.read(files)
    return {"plan": recording.plan, "collectives": list(recording.collectives)}
