"""How the tests of a unittest suite ended, one after another: for programs that run the suites of others."""

import unittest
from collections.abc import Callable


class Told(unittest.TestResult):
    """`heard` is told each test's name, how it ended, and all that it said."""

    def __init__(self, heard: Callable[[str, str, str], None]) -> None:
        super().__init__()
        self.heard = heard

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.heard(test.id(), "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.heard(test.id(), "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802
        self.heard(test.id(), "failed", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addError = addFailure  # noqa: N815
