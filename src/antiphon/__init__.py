"""Antiphon plans collective communication for the machine it will run on.

    machine = antiphon.topology("dgx1v")
    limits = antiphon.bound("allreduce", machine)
    plan = antiphon.plan("allreduce", machine, planner="ring")
    assert antiphon.verify(plan)                       # a report: true if the plan is right, else with .fault
    rows = antiphon.run(plan, "64MiB")
    best = antiphon.tune("allreduce", machine)         # every planner, every size; best.plan, best.ranges
    quick = antiphon.tune("allreduce", machine, search=antiphon.Search(effort=1, workers=4))
    rows = antiphon.predict(best.plan, "1KB:1GB")
    rows = antiphon.predict(best.plan, "64MiB", trace="trace.json")

    with antiphon.write("broadcast", "line:ranks=3") as w:    # a schedule of your own; then w.plan
        w[0, "input", 0].copy_to(1).copy_to(2)

    files = antiphon.export(plan, "goal", nbytes="64MiB")     # for another program, by a format
    plan = antiphon.load("plan.json", antiphon.Plan)          # any file that Antiphon writes
    antiphon.save(plan, "copy.json.gz")

Pass a machine, a collective, a plan or a profile as an object, a name or a file. Errors are instances of
`antiphon.errors.AntiphonError`. These modules have more functions; each is imported on first use:

    available     lists of planners, models, runtimes, formats and topologies
    machines      machines with failures, families of machines
    sweep         comparisons of many machines, and the store of plans
    frontier      the latency-bandwidth frontier, with proofs
    measure       measurements of plans, tuning by measurements, benchmarks to fit models to
    fit           parameters of cost models from measurements
    lab           the emulated cluster
    comm          collectives on NumPy arrays
    torch         the PyTorch backend (`import antiphon.torch` registers it)
    native        libraries that are compiled here
    replay        estimates of what recorded jobs gain from plans
    traces        traces of runs and predictions
    pages         results as HTML
    papers        the papers' tables, recomputed
"""

# Imports are lazy, as the command line imports this file, too, and must start quickly.
TYPE_CHECKING = False

__version__ = "0.2.0"

__all__ = [
    "Bound", "Collective", "Places", "Plan", "Profile", "Report", "Search", "Topology", "Tuning", "Writing",
    "bound", "collective", "compose", "errors", "export", "load", "plan", "predict", "run", "save", "topology", "tune",
    "verify", "write",
]  # fmt: skip

if TYPE_CHECKING:
    from antiphon import available as available
    from antiphon import comm as comm
    from antiphon import cost as cost
    from antiphon import errors as errors
    from antiphon import fit as fit
    from antiphon import frontier as frontier
    from antiphon import lab as lab
    from antiphon import machines as machines
    from antiphon import measure as measure
    from antiphon import native as native
    from antiphon import pages as pages
    from antiphon import papers as papers
    from antiphon import replay as replay
    from antiphon import select as select
    from antiphon import sweep as sweep
    from antiphon import traces as traces
    from antiphon.api.costs import predict
    from antiphon.api.files import export, load, save
    from antiphon.api.machines import bound, collective, topology
    from antiphon.api.plans import compose, plan, verify, write
    from antiphon.api.report import Report
    from antiphon.api.running import run
    from antiphon.api.search import Search
    from antiphon.api.tuning import tune
    from antiphon.author import Places, Writing
    from antiphon.core.bounds import Bound
    from antiphon.core.collective import Collective
    from antiphon.core.plan import Plan
    from antiphon.core.topology import Topology
    from antiphon.cost import Profile
    from antiphon.select import Tuning
else:
    _FILES = {
        "api.report": "Report", "api.search": "Search", "api.costs": "predict", "api.files": "export load save",
        "api.machines": "bound collective topology", "api.plans": "compose plan verify write", "api.running": "run",
        "api.tuning": "tune", "author": "Places Writing", "core.bounds": "Bound", "core.collective": "Collective",
        "core.plan": "Plan", "core.topology": "Topology", "cost": "Profile", "select": "Tuning",
    }  # fmt: skip
    _FILE_OF = {name: file for file, names in _FILES.items() for name in names.split()}
    # Imported when they are first used as attributes: the modules of the docstring except `torch`, which programs
    # import to register it; and packages that are not part of the public API, which type checkers need not know.
    _MODULES = (
        "available", "comm", "core", "cost", "errors", "fit", "frontier", "lab", "machines", "measure", "native",
        "pages", "papers", "planners", "replay", "reproduce", "runtimes", "select", "show", "sweep", "topologies",
        "traces",
    )  # fmt: skip

    def __getattr__(name):
        from importlib import import_module

        if name in _FILE_OF:
            value = globals()[name] = getattr(import_module(f"antiphon.{_FILE_OF[name]}"), name)
            return value
        if name in _MODULES:
            return import_module(f"antiphon.{name}")
        from antiphon.deprecations import MOVED, old_name

        if name in MOVED:
            return old_name(name)
        raise AttributeError(f"module 'antiphon' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__, *_MODULES})
