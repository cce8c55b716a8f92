"""Antiphon plans collective communication for the machine it will run on.

The functions bear the names of the commands:

    machine = antiphon.topology("dgx1v")
    limits = antiphon.bound("allreduce", machine)
    plan = antiphon.plan("allreduce", machine, planner="ring")
    assert antiphon.verify(plan)            # a report: true if the plan is right, else with .fault
    rows = antiphon.run(plan, "64MiB")
    best = antiphon.tune("allreduce", machine)         # every planner, every size; best.plan, best.ranges
    rows = antiphon.predict(best.plan, "1KB:1GB")
    rows = antiphon.simulate(best.plan, "64MiB", trace="trace.json")
    page = antiphon.report(best)                       # HTML
    points = antiphon.frontier("allgather", machine).points   # from the fewest steps to the least time, with proofs

    with antiphon.write("broadcast", "line:ranks=3") as w:    # a schedule of your own; then w.plan
        w[0, "input", 0].copy_to(1).copy_to(2)

    files = antiphon.export(plan, "goal", nbytes="64MiB")     # for another program, by a back end

    with antiphon.comm(MPI.COMM_WORLD, "table.json") as c:    # under mpiexec, with NumPy and mpi4py
        total = c.allreduce(array)

    plan = antiphon.load("plan.json", antiphon.Plan)          # every file there is
    antiphon.save(plan, "copy.json.gz")

A machine, a collective, a plan or a profile is given as an object, by its name or by its file. What goes wrong is an
`antiphon.errors.AntiphonError`. `.topologies()`, `.planners()`, `.models()`, `.backends()` and `.runtimes()` list what
there is.
"""

# These are in memory when Python starts: nothing is looked for on the disk until Ctrl-C is heard.
import _signal  # type: ignore[import-not-found]  # what `signal` is made of
import sys
from os import _exit, getpid
from os import write as _write


def _is_the_command() -> bool:
    """Whether this process is the command line, by its script or by `python -m antiphon`: not one that imports us."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    if name == "-m":  # Python looks for the module, whose name stands before the arguments
        name = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    return name.rpartition("/")[2] == "antiphon"


def _leave(number: int, frame: object) -> None:
    """While nothing is being done yet, nothing is lost by leaving. A child that has just been forked says nothing, and
    a second signal nothing more."""
    global _LEAVING  # noqa: PLW0603
    if _LEAVING:
        return
    _LEAVING = True
    if getpid() == _PROCESS:
        _write(2, b"antiphon: terminated\n" if number == _signal.SIGTERM else b"antiphon: interrupted\n")
    _exit(128 + number)


_LEAVING = False
_PROCESS = getpid()
if _is_the_command():  # antiphon.cli takes over; where Ctrl-C is ignored (in a background job of a shell) it stays so
    for _number, _usual in ((_signal.SIGINT, _signal.default_int_handler), (_signal.SIGTERM, _signal.SIG_DFL)):
        if _signal.getsignal(_number) == _usual:
            _signal.signal(_number, _leave)

__version__ = "0.1.0"

import importlib  # noqa: E402 (see above)
from typing import TYPE_CHECKING  # noqa: E402

# Python gives a folder's name to the folder when it is first imported; these four are functions, from then on.
for _folder in ("planners", "reproduce", "runtimes", "topologies"):
    importlib.import_module(f"antiphon.{_folder}")

from antiphon.api.checking import check  # noqa: E402
from antiphon.api.costs import predict, predict_library, simulate  # noqa: E402
from antiphon.api.files import export, load, save  # noqa: E402
from antiphon.api.machines import backends, bound, collective, degrade, models, planners, runtimes, topologies, topology  # noqa: E402
from antiphon.api.measuring import bench, fit  # noqa: E402
from antiphon.api.plans import compose, frontier, plan, verify, write  # noqa: E402
from antiphon.api.replaying import replay  # noqa: E402
from antiphon.api.running import build, comm, lab, reproduce, run  # noqa: E402
from antiphon.api.traces import trace  # noqa: E402
from antiphon.api.tuning import report, tune, tune_over  # noqa: E402

__all__ = [
    "Collective", "Frontier", "Places", "Plan", "Profile", "Report", "Topology", "Tuning", "Writing",
    "backends", "bench", "bound", "build", "check", "collective", "comm", "compose", "degrade", "export",
    "fit", "frontier", "lab", "load", "models", "plan", "planners", "predict", "predict_library", "replay", "report",
    "reproduce", "run", "runtimes", "save", "simulate", "topologies", "topology", "trace", "tune", "tune_over",
    "verify", "write",
]  # fmt: skip

if TYPE_CHECKING:
    from antiphon import errors as errors
    from antiphon.api._report import Report
    from antiphon.author import Places, Writing
    from antiphon.core.collective import Collective
    from antiphon.core.plan import Plan
    from antiphon.core.topology import Topology
    from antiphon.cost import Profile
    from antiphon.select import Frontier, Tuning
else:  # imported when somebody asks for them
    _TYPES = {
        "Collective": "core.collective", "Frontier": "select", "Places": "author", "Plan": "core.plan",
        "Profile": "cost", "Report": "api._report", "Topology": "core.topology",
        "Tuning": "select", "Writing": "author",
    }  # fmt: skip

    def __getattr__(name):
        if name not in _TYPES:
            raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
        return getattr(importlib.import_module(f"antiphon.{_TYPES[name]}"), name)
