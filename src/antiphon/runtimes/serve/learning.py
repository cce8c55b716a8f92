"""Learning for NumPy and PyTorch (ANTIPHON_LEARN=1): calls run by the candidate that a learner chooses.

Candidates for a call: the page that the book has for it, pages of the same kind and root for other sizes, the first one
in more and in fewer slices, and the library's own collective. Processes agree by an allreduce of the engine within the
call, a few numbers, and only at the calls that the learners name. An example, allreduces of 1 MB over four processes:

    call 1 to 21    each candidate makes three calls; then the maxima of their times are exchanged
    call 22         the library drops out, and so on, until the best one is left
    from call 52    ring in twice as many slices, compared with its earlier times at call 60, 68, ...
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from antiphon.core.choose import Call
from antiphon.errors import AntiphonError
from antiphon.runtimes.engine.learner import PLANNED_SLICES, Learner
from antiphon.runtimes.engine.native import Engine, OpenProgram
from antiphon.runtimes.serve.book import Page
from antiphon.runtimes.serve.ledger import Ledger

MAX_ALTERNATIVES = 3
MIN_SLICED_BYTES = 2**15
MAX_CHECKED_RANKS = 32  # whose sections are checked for other numbers of slices
OTHER_CALLS = 32  # of other sizes in a row, after which the last of them is timed instead


@dataclass
class _Learning:
    """A learner with its pages (None: the library), and the size of the calls that it times."""

    learner: Learner
    pages: list[Page | None]
    nbytes: int
    untimed: int = 0  # calls in a row of other sizes


class Learners:
    """The learners of a group, by page and size class.

    `exchange`: replaces numbers by their maxima over all processes; `align`: returns when all have begun the call;
    `open_program`: of a page."""

    def __init__(
        self, engine: Engine, ranks: int, ledger: Ledger, exchange: Callable[[NDArray[Any], float], None],
        align: Callable[[float], None], open_program: Callable[[Page], OpenProgram],
    ) -> None:  # fmt: skip
        self._engine, self._ranks, self._ledger = engine, ranks, ledger
        self._exchange, self._align, self._open_program = exchange, align, open_program
        self._learners: dict[tuple[int, int, bool], _Learning] = {}
        self._timed: Learner | None = None  # of the running call

    def choose(
        self, page: Page, call: Call, pages: Sequence[Page], library: bool, timeout: float
    ) -> tuple[Page | None, int]:
        """Return the page (None: the library) and the slices for a call. The same at all processes."""
        key = (id(page), call.nbytes.bit_length(), library)
        if key not in self._learners:
            self._learners[key] = self._make_learning(page, pages, call.nbytes, library)
        learning = self._learners[key]
        if not self._is_timed(learning, call.nbytes):
            candidate = learning.learner.candidate
            return learning.pages[candidate.program], candidate.slices
        learner = learning.learner
        numbers = learner.report()
        if numbers is not None:
            agreed, began = numbers.copy(), time.perf_counter()
            self._exchange(agreed, timeout)
            learner.update(agreed, time.perf_counter() - began)
            self._report(page, learning)
        candidate = learner.begin()
        if learner.aligns:
            self._align(timeout)  # a process late from the last call must not count in this one's time
        self._timed = learner
        return learning.pages[candidate.program], candidate.slices

    def record(self, seconds: float) -> None:
        """Say how long the call took for which `choose` chose."""
        if self._timed is not None:
            self._timed.end(seconds)
        self._timed = None

    def _make_learning(self, page: Page, pages: Sequence[Page], nbytes: int, library: bool) -> _Learning:
        candidates: list[Page | None] = [None]
        programs = set()
        position = next((i for i, other in enumerate(pages) if other is page), 0)
        # the page itself, then the nearest ones: those for neighbouring sizes
        for i in sorted(range(len(pages)), key=lambda i: abs(i - position)):
            other = pages[i]
            same_calls = (other.kind, other.root) == (page.kind, page.root) and other.program >= 0
            program = self._open_program(other) if same_calls else None
            if program is not None and id(program) not in programs and len(candidates) < 2 + MAX_ALTERNATIVES:
                candidates.append(other)
                programs.add(id(program))
        first = 1 if page.program >= 0 else 0
        sliced = nbytes >= MIN_SLICED_BYTES and all(map(self._can_be_sliced, candidates[1:]))
        functions = self._engine.library
        return _Learning(Learner(functions, len(candidates), first, library, sliced), candidates, nbytes)

    def _can_be_sliced(self, page: Page | None) -> bool:
        """Return whether every rank can run a page in more and fewer slices. All processes find the same."""
        if page is None or self._ranks > MAX_CHECKED_RANKS:
            return False
        program = self._open_program(page)
        try:
            for rank in range(self._ranks):
                for in_place in range(2):
                    if program.facts.variants >> in_place & 1:
                        for slices in (PLANNED_SLICES // 2, 16 * PLANNED_SLICES):
                            program.plan(rank, 1, bool(in_place), slices=slices)
        except AntiphonError:
            return False
        return True

    def _is_timed(self, learning: _Learning, nbytes: int) -> bool:
        """Return whether calls of this size are those that are timed."""
        if learning.nbytes == nbytes:
            learning.untimed = 0
            return True
        learning.untimed += 1
        if learning.untimed < OTHER_CALLS:
            return False
        learning.nbytes, learning.untimed = nbytes, 0
        learning.learner.restart()
        return True

    def _report(self, page: Page, learning: _Learning) -> None:
        """Enter in the report what was chosen, from which call of this size on, and why."""
        texts = []
        for choice in learning.learner.choices():
            served_by = learning.pages[choice.candidate.program]
            name = "the library" if served_by is None else sliced_name(served_by, choice.candidate.slices)
            texts.append(f"{name} from call {choice.call} on ({choice.why})")
        row = self._ledger.row(page.kind, f"calls of {learning.nbytes} bytes", "learned")
        row.why = "; ".join(texts)


def sliced_name(page: Page, slices: int) -> str:
    """Return the name of a page's planner, with the factor by which its slices are more than planned."""
    return page.planner if slices == PLANNED_SLICES else f"{page.planner} x{slices / PLANNED_SLICES:g}"
