"""mpi4py's own tests of collectives, those of its source archive: how each ended, at each process.

    mpiexec -n N python tests/mpi4py_suite.py FOLDER OUT [PART...]

FOLDER: that of the tests. OUT: process I writes `OUT-I.json`, a row for each test: its name, "passed", "skipped" or
"failed", and the last line of what it said. PART: only tests whose names have one of these in them.
"""

import json
import sys
import unittest
from pathlib import Path
from typing import Any

FOLDER, OUT, PARTS = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
sys.path.insert(0, str(FOLDER))
sys.modules.update(dict.fromkeys(["cupy", "numba"]))  # for GPUs

from mpi4py import MPI  # noqa: E402


class Told(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, str, str]] = []

    def tell(self, test: unittest.TestCase, how: str, why: str = "") -> None:
        said = [line for line in why.splitlines() if line]
        self.rows.append((test.id(), how, said[-1][:300] if said else ""))

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.tell(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.tell(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802
        self.tell(test, "failed", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addError = addFailure  # noqa: N815


def tests_in(suite: unittest.TestSuite) -> list[Any]:
    found: list[Any] = []
    for one in suite:
        found += tests_in(one) if isinstance(one, unittest.TestSuite) else [one]
    return found


if __name__ == "__main__":
    every = tests_in(unittest.TestLoader().discover(str(FOLDER), "test_cco*.py"))
    told = Told()
    unittest.TestSuite(test for test in every if not PARTS or any(part in test.id() for part in PARTS)).run(told)
    Path(f"{OUT}-{MPI.COMM_WORLD.rank}.json").write_text(json.dumps(told.rows))
