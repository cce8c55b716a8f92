"""Hypothesis profiles: `default`; `quick`, a third of the examples, in the ordinary set; and `thorough` for a longer
search (ANTIPHON_HYPOTHESIS=thorough).

No test sees what an earlier run has decided: the cache is off. Compiled modules are kept in any case: hundreds of
processes are started, and without them each would compile all that it imports.
"""

import gc
import os
import signal
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import mpi_env
import pytest
import quick
from hypothesis import settings

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
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: it is not looked through for garbage meanwhile, and afterwards seldom. (Not frozen: what
    counts frozen objects goes through all of them, and the package asks whether somebody else froze any.)"""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.set_threshold(10_000, 20, 20)


def pytest_sessionfinish() -> None:
    """pytest looks through all that there is once more, for nothing."""
    gc.freeze()


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
        pytest.skip("needs an environment with mpich and mpi4py (make test makes .venv/mpich; $ANTIPHON_TEST_MPICH)")
    return found
