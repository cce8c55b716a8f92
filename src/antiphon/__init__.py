"""Antiphon plans collective communication for the machine it will run on.

The functions bear the names of the commands:

    machine = antiphon.topology("dgx1v")
    limits = antiphon.bound("allreduce", machine)
    plan = antiphon.plan("allreduce", machine, planner="ring")
    fault = antiphon.verify(plan)           # None: the plan is right
    rows = antiphon.run(plan, "64MiB")
    best = antiphon.tune("allreduce", machine)         # every planner, every size; best.plan, best.ranges
    rows = antiphon.predict(best.plan, "1KB:1GB")
    rows = antiphon.simulate(best.plan, "64MiB", trace="trace.json")
    page = antiphon.report(best)                       # HTML
    points = antiphon.frontier("allgather", machine).points   # from the fewest steps to the least time, with proofs

    files = antiphon.export(plan, "goal", nbytes="64MiB")     # for another program, by a back end

    with antiphon.comm(MPI.COMM_WORLD, "table.json") as c:    # under mpiexec, with NumPy and mpi4py
        total = c.allreduce(array)

`antiphon.topologies()`, `.planners()`, `.models()`, `.backends()` and `.runtimes()` list what there is.
"""

# These are in memory when Python starts: nothing is looked for on the disk until Ctrl-C is heard.
import _signal  # type: ignore[import-not-found]  # what `signal` is made of
import sys
from os import _exit, getpid, write


def _is_the_command() -> bool:
    """Whether this process is the command line, by its script or by `python -m antiphon`: not one that imports us."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    if name == "-m":  # Python looks for the module, whose name stands before the arguments
        name = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    return name.rpartition("/")[2] == "antiphon"


def _leave(number: int, frame: object) -> None:
    """While nothing is being done yet, nothing is lost by leaving. A child that has just been forked says nothing."""
    if getpid() == _PROCESS:
        write(2, b"antiphon: terminated\n" if number == _signal.SIGTERM else b"antiphon: interrupted\n")
    _exit(128 + number)


_PROCESS = getpid()
if _is_the_command():  # antiphon.cli takes over; where Ctrl-C is ignored (in a background job of a shell) it stays so
    for _number, _usual in ((_signal.SIGINT, _signal.default_int_handler), (_signal.SIGTERM, _signal.SIG_DFL)):
        if _signal.getsignal(_number) == _usual:
            _signal.signal(_number, _leave)

from collections.abc import Callable  # noqa: E402 (see above)
from types import ModuleType  # noqa: E402
from typing import Any  # noqa: E402

__version__ = "0.1.0"
__all__ = [
    "backends", "bench", "bound", "build", "collective", "comm", "export", "fit", "frontier", "lab", "models", "plan",
    "planners", "predict", "report", "reproduce", "run", "runtimes", "simulate", "topologies", "topology", "tune",
    "tune_over", "verify",
]  # fmt: skip


def topologies() -> list[dict[str, Any]]:
    """The machines in the catalogue: name, about, the ranks each can have, an example."""
    return _listed("topology")


def planners() -> list[dict[str, Any]]:
    """The ways to plan: name, about, and for which collectives, on which machines, with which options."""
    return _listed("planner")


def models() -> list[dict[str, Any]]:
    """The cost models: name, about, and what each can price."""
    return _listed("model")


def backends() -> list[dict[str, Any]]:
    """What plans can be written as: name, about, what each takes, and its options."""
    return _listed("backend")


def runtimes() -> list[dict[str, Any]]:
    """Where plans can run: name, about, the library beside, the options, and how each cuts messages."""
    return _listed("runtime")


def _listed(kind: str) -> list[dict[str, Any]]:
    from antiphon.show.listing import listed

    return listed(kind)


def topology(spec: str) -> Any:
    """A machine: "dgx1v", "ring:ranks=8,bandwidth=10GB/s", or a JSON file."""
    from antiphon.topologies import topology as make

    return make(spec)


def collective(spec: str, topology: Any, **who: Any) -> Any:
    """A collective on a machine: its name or a JSON file; `root`, `ranks` (a group)."""
    from antiphon.select import collective as make

    return make(spec, topology, **who)


def bound(wanted: Any, topology: Any, **who: Any) -> Any:
    """Exact lower bounds on steps and time, with their witnesses."""
    from antiphon.core.bounds import bound as find

    return find(topology, collective(wanted, topology, **who) if isinstance(wanted, str) else wanted)


def plan(wanted: Any, topology: Any, **options: Any) -> Any:
    """A verified plan with its distance from the bounds: `planner`, `root`, `ranks`, `options`, ..."""
    from antiphon.select import plan as make

    return make(wanted, topology, **options)


def frontier(wanted: Any, topology: Any, **options: Any) -> Any:
    """The latency-bandwidth frontier with proofs: `root`, `ranks`, `k`, `steps`, `budget`, `seed`, `memory`, ...

    The result has `.points`, `.impossible`, `.stopped`, `.plan()`, `.as_json()` and `.save(file)`.
    """
    from antiphon.select import frontier as find

    return find(wanted, topology, **options)


def verify(plan: Any, topology: Any = None, *, proof: bool = False) -> Any:
    """The first thing wrong with a plan and its claims, or None."""
    from antiphon.select import check

    return check(plan, topology or plan.topology, proof=proof, claims=topology is None)


def run(plan: Any, nbytes: int | str, **how: Any) -> Any:
    """Move real data by a plan and check every element: a row of figures per size. `on`: a runtime (local: all ranks in
    this process)."""
    from antiphon.run.bench import run_plan

    return run_plan(plan, nbytes, **how)


def predict(plan: Any, nbytes: Any, *, model: str = "alpha-beta", profile: Any = None) -> Any:
    """What a plan takes by a model, a row per size: a size, a range like "1KB:1GB", or several sizes."""
    from antiphon.cost import predict as price

    return price(plan, nbytes, model=model, profile=profile)


def simulate(
    plan: Any, nbytes: int | str, *, model: str = "critical-path", profile: Any = None, trace: Any = None
) -> Any:
    """Follow every message of one size: a row as of `predict`, with the path that held it up.

    `trace`: a file for when each message is under way (Chrome's trace format).
    """
    from antiphon.cost import simulate as follow

    row, events = follow(plan, nbytes, model=model, profile=profile, trace=trace is not None)
    if events is not None:
        from antiphon.core.files import write_bytes

        write_bytes(trace, events)
    return [row]


def tune(wanted: Any, topology: Any, **options: Any) -> Any:
    """The best plan for every size: a collective or "all"; `nbytes`, `model`, `profile`, `planners`, `sweep`, ...

    The result has `.plan` (`.plans` for several), `.ranges`, `.candidates`, `.as_json()` and `.save(file)`. With
    `on="mpi"` it is chosen by measuring; the result then has `.rows`, too, but no `.candidates`.
    """
    if options.get("on"):
        from antiphon.run.choose import tune_measured

        return tune_measured(wanted, topology, **options)
    from antiphon.select import tune as find

    return find(wanted, topology, **options)


def tune_over(wanted: Any, topology: str, *, vary: Any, **options: Any) -> Any:
    """`tune` for several sizes of a family of machines: "delta", vary={"nodes": [1, 2, 4]}.

    The result has `.tunings` (by value), `.refused`, `.as_json()` and `.save(directory)`.
    """
    from antiphon.select import tune_over as find

    return find(wanted, topology, vary=vary, **options)


def report(tuning: Any) -> str:
    """The result of `tune` as one HTML page that needs nothing else."""
    from antiphon.show.report import report_html
    from antiphon.show.svg import topology_svg
    from antiphon.show.text import topology_text

    return report_html(tuning, topology_svg, topology_text)


def reproduce(name: str = "") -> list[dict[str, Any]]:
    """A paper's table made again: rows of name, published, ours, deviation, ok, note. Without a name: what there is."""
    from antiphon.reproduce import names
    from antiphon.reproduce import reproduce as rows

    return list(rows(name)) if name else names()


def export(plan: Any, name: str, folder: Any = None, *, nbytes: Any = None, **options: Any) -> Any:
    """A plan for another program, by a back end ("goal", "piccl-xml", ...): what each file holds, as bytes by name.

    With a folder the files are written there, all or none; what comes back is then each path with its number of bytes.
    """
    from antiphon.lower import emit
    from antiphon.lower import export as write

    if folder is not None:
        return write(plan, name, folder, nbytes=nbytes, options=options)
    made = emit(plan, name, nbytes=nbytes, options=options)
    return {file: text.encode() if isinstance(text, str) else b"".join((text,) if isinstance(text, bytes) else text)
            for file, text in made.items()}  # fmt: skip


def build(what: str, compiler: str = "") -> Any:
    """The native engine for your MPI ("mpi"), compiled where that has not been done yet: the path of the library."""
    from antiphon.run.mpi import build as make

    return make(what, compiler)


def lab(what: str, *given: Any, **how: Any) -> Any:
    """The emulated cluster: "up" (a machine; scale=, name=), "down" (a name), "status", "run" (a plan, nbytes; ...).

    "run" with a machine, or the name of a lab, and command=[...] runs a program there. Needs Linux and root.
    """
    from antiphon.errors import unknown
    from antiphon.run import lab as cluster

    doers: dict[str, Callable[..., Any]] = {
        "up": cluster.lab_up, "down": cluster.lab_down, "status": cluster.lab_status,
        "run": lambda plan, nbytes, **more: run(plan, nbytes, on="lab", **more),
    }  # fmt: skip
    if what == "run" and "command" in how:
        return cluster.lab_command(*given, **how)
    if what not in doers:
        raise unknown("lab", what, doers)
    return doers[what](*given, **how)


def comm(communicator: Any = None, table: Any = None, **how: Any) -> Any:
    """Collectives on NumPy arrays by the plans of a table: c.allreduce(x), ...; c.report() tells what served them.

    Among the processes of mpi4py's communicator (left out: all), or without MPI: `rank`, `ranks`, `address`.
    """
    from antiphon.run.comm import comm as make

    return make(communicator, table, **how)


def bench(what: Any, topology: Any = None, nbytes: Any = "1KB:16MB:4", **how: Any) -> Any:
    """Measurements. Of plans (a plan, several, a file of them, or a collective with its machine) beside the library's
    own collectives: `on="mpi"`, `dtype`, `op`, `iterations`, ...: a row per size. For `fit`: "genmodel" or "loggp"
    (over MPI; sizes=, ...), or "memory" (most=, nbytes=, ...).
    """
    if what == "loggp":
        from antiphon.run.bench_loggp import bench_loggp

        return bench_loggp(**how)
    if what == "genmodel":
        from antiphon.run.bench_genmodel import bench_genmodel

        return bench_genmodel(**how)
    if what == "memory":
        from antiphon.run.bench_memory import bench_memory

        return bench_memory(**how) if nbytes == "1KB:16MB:4" else bench_memory(nbytes=nbytes, **how)
    from antiphon.run.bench import bench as measure

    return measure(what, topology, nbytes, **how)


def fit(what: str, measurements: Any, **known: float) -> Any:
    """Model parameters from measurements or the CSV file of them: "genmodel", "loggp" or "memory".

    `known`: beta, gamma, delta in seconds per byte, for genmodel. What comes back has `parameters`, `combinations`,
    `notes` and `as_json()`; antiphon.cost.fit makes profiles of it.
    """
    from antiphon.cost import fit as fits
    from antiphon.errors import unknown

    readers: dict[str, Callable[[Any], Any]] = {
        "genmodel": fits.read_measured, "loggp": fits.read_round_trips, "memory": fits.read_added,
    }  # fmt: skip
    if what not in readers:
        raise unknown("fit", what, tuple(readers))
    rows = measurements if isinstance(measurements, list | tuple) else readers[what](measurements)
    if what == "genmodel":
        return fits.fit_genmodel(rows, known)
    return fits.fit_loggp(rows, **known) if what == "loggp" else fits.fit_memory(rows, **known)


_ALSO_FOLDERS: dict[str, Callable[..., Any]] = {
    "run": run, "topologies": topologies, "planners": planners, "reproduce": reproduce,
}  # fmt: skip


class _Folder(ModuleType):
    """A folder such as antiphon.run, which can be called as the function of that name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _ALSO_FOLDERS[self.__name__.rpartition(".")[2]](*args, **kwargs)


class _Front(ModuleType):
    """Importing antiphon.run.local puts the folder in the place of the function: let it stand for both."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ALSO_FOLDERS and isinstance(value, ModuleType):
            value.__class__ = _Folder
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front
