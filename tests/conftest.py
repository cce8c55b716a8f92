"""Hypothesis profiles: `default`; `quick`, a fifth of the examples, in the ordinary set; and `thorough` for a longer
search (ANTIPHON_HYPOTHESIS=thorough).

No test sees what an earlier run has decided: the cache is off. Compiled modules are kept in any case: hundreds of
processes are started, and without them each would compile all that it imports.
"""

import gc
import os
import shlex
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import mpi_env
import pytest
import quick
from hypothesis import settings

HERE = Path(__file__).parent
# The limit of a slow test by the clock: some take minutes of a processor, and may have a twentieth of one.
SLOW_SECONDS = 6000
# The engines have all types and rules: on threads of a processor as if on a GPU 25 s of a compiler, 6 s so, and those
# in C a fourth of it. `make test-all` has them as they are.
COMPILERS = {"CC": "cc", "CXX": "c++"}
# What is compiled at first use, into a folder that all processes share: whoever begins with one of these has compiled
# LogGP's loops, or the engines in C and C++, before another needs them.
LOOPS_FIRST = ("test_loggp", "test_parameterized")
ENGINES_FIRST = ("test_device", "test_bench_memory", "test_auto_jobs", "test_preload", "test_nccl", "test_mismatch")

settings.register_profile(
    "default",
    parent=settings(),
    max_examples=50,
    deadline=None,  # the first call of a solver is slow, and says nothing
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=2000)
settings.register_profile("quick", parent=settings.get_profile("default"), max_examples=50 // quick.SHARE)

os.environ["ANTIPHON_CACHE"] = "off"
os.environ["COLUMNS"] = "80"  # what commands print is as wide
# Open MPI asks libfabric at every start what networks there are: a second, and nothing here runs over one.
os.environ.setdefault("OMPI_MCA_btl", "^ofi")

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # nothing is to lie beside sources: then where pytest keeps things
    kept = Path(__file__).parents[1] / ".pytest_cache" / "modules"
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(kept)

# A shell starts what runs in the background with Ctrl-C ignored, and all that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is read."""
    quick.ordinary = config.getoption("markexpr") == "not slow"
    settings.load_profile(os.environ.get("ANTIPHON_HYPOTHESIS") or ("quick" if quick.ordinary else "default"))
    if quick.ordinary:
        for variable, compiler in COMPILERS.items():
            os.environ.setdefault(variable, mpi_env.quickly(compiler))
        if (beside := Path(sys.executable).with_name("mpicc")).exists():
            os.environ.setdefault("MPICC", mpi_env.quickly(shlex.quote(str(beside))))
        _read_no_sources()


def _read_no_sources() -> None:
    """Every process would read all sources for constants that hypothesis might try: seconds. Nobody promises these
    names: without them it goes on as ever."""
    with suppress(ImportError):
        from hypothesis.internal.conjecture import providers

        names = vars(providers)
        if {"_get_local_constants", "_local_constants"} <= names.keys():
            names["_get_local_constants"] = lambda: names["_local_constants"]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is collected stays: it is not looked through for garbage meanwhile, and afterwards seldom. (Not frozen: what
    counts frozen objects goes through all of them, and the package asks whether somebody else froze any.)"""
    gc.disable()
    try:
        if session.config.args == session.config.getini("testpaths") and _worker() % 2:
            _read_from_the_end()
        return (yield)
    finally:
        gc.enable()
        gc.set_threshold(10_000, 20, 20)


def _worker() -> int:
    """The number of this process among those that run the tests together."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])


def _read_from_the_end() -> None:
    """All processes read all tests, and where these are not compiled yet each would compile all: so every second one
    begins with the last, and finds the first compiled by its neighbour. What cannot be read is told when collected."""
    for path in sorted(HERE.glob("test_*.py"), reverse=True):
        with suppress(Exception, pytest.skip.Exception):
            import_module(path.stem)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """A third of all items are of tests that are slow as a whole: where these are not wanted none is made, unless a
    test is asked for by its name."""
    if not quick.ordinary or any("::" in given for given in collector.config.args):
        return None
    # What the object itself has, and nothing that it would load to answer.
    marks = getattr(obj, "__dict__", {}).get("pytestmark", ())
    return [] if any(mark.name == "slow" for mark in marks) else None


@pytest.hookimpl(trylast=True)  # when what was not asked for is gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests have time; the others are ordered for processes that run them together."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1 and quick.ordinary:
        loops, engines, rest = list[pytest.Item](), list[pytest.Item](), list[pytest.Item]()
        for item in items:
            name = item.path.name
            first = loops if name.startswith(LOOPS_FIRST) else engines if name.startswith(ENGINES_FIRST) else rest
            first.append(item)
        place = max(0, len(items) // processes - len(loops))  # behind it the second process begins
        items[:] = [*loops, *rest[:place], *engines, *rest[place:]]


def pytest_sessionfinish() -> None:
    """pytest looks through all that there is once more, for nothing."""
    gc.freeze()


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def openmpi() -> mpi_env.Mpi:
    """Open MPI, or the test is skipped."""
    found = mpi_env.openmpi()
    if found is None:
        pytest.skip("needs mpi4py, mpiexec and a compiler: pip install 'antiphon[mpi]'")
    return found


@pytest.fixture
def mpich() -> mpi_env.Mpi:
    """MPICH, or the test is skipped."""
    found = mpi_env.mpich()
    if found is None:
        pytest.skip("needs an environment with mpich and mpi4py (make test sets one up; $ANTIPHON_TEST_MPICH)")
    return found


@pytest.fixture(params=["openmpi", pytest.param("mpich", marks=pytest.mark.slow)])
def mpi(request: pytest.FixtureRequest) -> mpi_env.Mpi:
    """Open MPI; in the slow set MPICH, too."""
    found: mpi_env.Mpi = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Adds planners to the table, as installed packages do: those of stubborn_planners.py by name, or entries."""
    import stubborn_planners

    from antiphon import registry
    from antiphon.select import tuner

    monkeypatch.syspath_prepend(str(HERE))
    planners, table = dict(registry.table("planner")), registry.table
    for module in (registry, tuner):
        monkeypatch.setattr(module, "table", lambda kind: planners if kind == "planner" else table(kind))

    def add(*names: str, **entries: object) -> None:
        planners.update({name: stubborn_planners.entry(name) for name in names}, **entries)

    return add
