"""mpi4py's own tests of collectives, those of its source archive: how each ended, at each process.

    mpiexec -n N python tests/mpi4py_suite.py FOLDER OUT [PART...]

FOLDER: that of the tests. OUT: process I writes `OUT-I.json`, a row for each test: its name, "passed", "skipped" or
"failed", and the last line of what it said. PART: only tests whose names have one of these in them. $MPI4PY_ARRAYS:
only arrays of this name ("numpy": two kinds); else six kinds, which MPI cannot tell from one another.
"""

import json
import os
import sys
import unittest
from importlib import import_module
from pathlib import Path
from typing import Any

from unittest_told import Told

FOLDER, OUT, PARTS = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
sys.path.insert(0, str(FOLDER))
sys.modules.update(dict.fromkeys(["cupy", "numba"]))  # for GPUs

from mpi4py import MPI  # noqa: E402


def tests_in(suite: unittest.TestSuite) -> list[Any]:
    found: list[Any] = []
    for one in suite:
        found += tests_in(one) if isinstance(one, unittest.TestSuite) else [one]
    return found


if __name__ == "__main__":
    if kind := os.environ.get("MPI4PY_ARRAYS"):
        kinds = import_module("arrayimpl").ArrayBackends
        kinds[:] = [one for one in kinds if one.backend == kind]
    every = tests_in(unittest.TestLoader().discover(str(FOLDER), "test_cco*.py"))
    rows: list[tuple[str, str, str]] = []

    def heard(name: str, how: str, why: str) -> None:
        said = [line for line in why.splitlines() if line]
        rows.append((name, how, said[-1][:300] if said else ""))

    unittest.TestSuite(test for test in every if not PARTS or any(part in test.id() for part in PARTS)).run(Told(heard))
    Path(f"{OUT}-{MPI.COMM_WORLD.rank}.json").write_text(json.dumps(rows))
