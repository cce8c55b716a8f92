"""Programs in Fortran under the preloaded library: by mpif.h, the module mpi and the module mpi_f08."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import antiphon
from antiphon.select import save_plans

PROGRAM = Path(__file__).with_name("preload") / "fortran.f90"
PLANNERS = {
    "allreduce": "ring", "allgather": "ring", "reducescatter": "ring", "broadcast": "binomial-tree",
    "reduce": "binomial-tree", "gather": "direct", "scatter": "direct", "alltoall": "pairwise",
}  # fmt: skip
RANKS = 4


@cache
def folder_of_mpi() -> Path | None:
    """Of an MPI with a compiler for Fortran, such as Debian's libopenmpi-dev with gfortran."""
    found = shutil.which("mpifort") or shutil.which("mpif90")
    folder = Path(found).parent if found else None
    there = folder is not None and all((folder / name).exists() for name in ("mpicc", "mpiexec"))
    return folder if there and shutil.which("gfortran") else None


@pytest.mark.skipif(folder_of_mpi() is None, reason="needs an MPI with Fortran: apt install gfortran libopenmpi-dev")
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(1, id="mpif.h"),
        pytest.param(2, id="mpi", marks=pytest.mark.slow),
        pytest.param(3, id="mpi_f08", marks=pytest.mark.slow),
    ],
)
def test_every_way_is_served(way: int, tmp_path: Path) -> None:
    here = folder_of_mpi()
    assert here is not None
    program = tmp_path / "program"
    flags = ["-cpp", "-ffree-line-length-none", f"-DWAY={way}", "-O1"]
    flags += ["-fallow-argument-mismatch"] if way == 1 else []
    compiler = next(here / name for name in ("mpifort", "mpif90") if (here / name).exists())
    subprocess.run([str(compiler), *flags, str(PROGRAM), "-o", str(program)], check=True, timeout=1000)
    machine = antiphon.topology(f"full:ranks={RANKS}")
    table, report = tmp_path / "table.json", tmp_path / "report.json"
    plans = {kind: antiphon.plan(kind, machine, planner=planner) for kind, planner in PLANNERS.items()}
    save_plans(table, plans, table=True)
    command = [sys.executable, "-m", "antiphon", "build", "mpi", "--compiler", str(here / "mpicc")]
    library = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=True).stdout.strip()
    env = {
        **os.environ, "LD_PRELOAD": library, "ANTIPHON_TABLE": str(table), "ANTIPHON_REPORT": str(report),
        "ANTIPHON_LEAST": "0", "ANTIPHON_AFTER": "0", "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }  # fmt: skip
    command = [str(here / "mpiexec"), "--oversubscribe", "-n", str(RANKS), str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1000, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stdout + done.stderr
    served = {row["collective"]: row["calls"] for row in json.loads(report.read_text())["served"]}
    wanted = {**dict.fromkeys(PLANNERS, 1), "allreduce": 4, "allgather": 3, "reducescatter": 2}
    assert served == wanted
