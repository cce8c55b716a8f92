"""Learning for NumPy and PyTorch (ANTIPHON_LEARN=1): each call runs by the candidate that a learner chooses.

Candidates for a call: the page that the book has for it, pages of the same kind and root for other sizes, the chosen
page (at first the book's) in more and in fewer slices, and the collective of "the library": gloo for PyTorch, MPI for
NumPy (none over sockets). Processes agree by an allreduce of the engine within the call, a few numbers, and only at the
calls that the learners name. An example, allreduces of 1 MB over four processes:

    call 1 to 21    each candidate makes three calls; then the maxima of their times are exchanged
    call 22         the library drops out, and so on, until the best one is left
    from call 52    ring in twice as many slices, compared with its earlier times at call 60, 68, ...
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from antiphon.core.choose import Call
from antiphon.errors import AntiphonError
from antiphon.runtimes.engine.learned import LearnedLine
from antiphon.runtimes.engine.learner import PLANNED_SLICES, Arm, CallCandidate, Learner
from antiphon.runtimes.engine.native import Engine, OpenProgram
from antiphon.runtimes.serve.book import Page
from antiphon.runtimes.serve.ledger import CallLedger

MAX_ALTERNATIVES = 3  # pages for other sizes that race the call's own; each costs three calls at the start
MIN_SLICED_BYTES = 2**15  # smaller calls are dominated by latency: other numbers of slices gain nothing
MAX_CHECKED_RANKS = 32  # with more ranks, checking that each can run other numbers of slices takes too long
OTHER_CALLS = 32  # calls of other sizes in a row after which the size of the last one is timed instead


@dataclass
class _Learning:
    """A learner with its pages (None: the library), and the size of the calls that it times."""

    learner: Learner
    pages: list[Page | None]  # by `CallCandidate.program`, which is no `Page.program`
    keys: list[str]  # of the pages, in the file of what was learned
    page: Page  # the book's page for these calls
    nbytes: int  # of the calls that are timed
    untimed: int = 0  # calls in a row of other sizes


class Learners:
    """The learners of a group, by page and size class.

    `exchange`: replaces numbers by their maxima over all processes; `align`: returns when all have begun the call;
    `program_of`: the program file of a page, opened by `open_program`; `earlier`: the results of earlier jobs, the same
    at all processes."""

    def __init__(
        self, engine: Engine, ranks: int, ledger: CallLedger, exchange: Callable[[NDArray[Any], float], None],
        align: Callable[[float], None], program_of: Callable[[Page], bytes],
        open_program: Callable[[bytes], OpenProgram], earlier: Sequence[LearnedLine],
    ) -> None:  # fmt: skip
        self._engine, self._ranks, self._ledger = engine, ranks, ledger
        self._exchange, self._align, self._program_of, self._open = exchange, align, program_of, open_program
        self._earlier = earlier
        self._learners: dict[tuple[int, int, bool], _Learning] = {}
        self._timed: Learner | None = None  # of the call under way, if that is timed

    def choose(
        self, page: Page, call: Call, pages: Sequence[Page], has_library: bool, timeout: float
    ) -> tuple[Page | None, int]:
        """Return the page (None: the library) and the slices for a call, the same at all processes.

        Slices are counted in quarters of the planned number, so PLANNED_SLICES stands for that number itself. `pages`:
        all of the book; `has_library`: whether the library can make the call."""
        # sizes between the same powers of two share a learner
        key = (id(page), call.nbytes.bit_length(), has_library)
        if key not in self._learners:
            self._learners[key] = self._make_learning(page, pages, call.nbytes, has_library)
        learning = self._learners[key]
        if not self._note_size(learning, call.nbytes):
            candidate = learning.learner.candidate
            return learning.pages[candidate.program], candidate.slices
        learner = learning.learner
        numbers = learner.report()
        if numbers is not None:  # processes exchange their numbers before this call
            agreed, began = numbers.copy(), time.perf_counter()
            self._exchange(agreed, timeout)
            learner.update(agreed, time.perf_counter() - began)
            self._enter_choices(page, learning)
        candidate = learner.begin()
        if learner.aligns:
            self._align(timeout)  # a process late from the last call must not count in this one's time
        self._timed = learner
        return learning.pages[candidate.program], candidate.slices

    def record(self, seconds: float) -> None:
        """Record how long the call of the last `choose` took."""
        if self._timed is not None:
            self._timed.end(seconds)
        self._timed = None

    def _make_learning(self, page: Page, pages: Sequence[Page], nbytes: int, has_library: bool) -> _Learning:
        """Return a new learner for calls of a page, with its candidates and what earlier jobs have learned of them."""
        candidates: list[Page | None] = [None]
        programs: list[bytes] = []
        position = next((i for i, other in enumerate(pages) if other is page), 0)
        # the page itself, then the nearest ones: those for neighbouring sizes
        for i in sorted(range(len(pages)), key=lambda i: abs(i - position)):
            other = pages[i]
            same_calls = (other.kind, other.root) == (page.kind, page.root) and other.program >= 0
            program = self._program_of(other) if same_calls else b""
            # the library, the page itself, and its alternatives
            if program and program not in programs and len(candidates) < 2 + MAX_ALTERNATIVES:
                candidates.append(other)
                programs.append(program)
        first = 1 if page.program >= 0 else 0  # a page without a program leaves the call to the library
        # any of the pages may be chosen, and is then tried in other numbers of slices
        sliced = nbytes >= MIN_SLICED_BYTES and all(map(self._can_be_sliced, candidates[1:]))
        functions = self._engine.library  # functions of the engine, in C; not the library above
        learner = Learner(functions, programs=len(candidates), first=first, library=has_library, sliced=sliced)
        checksums = ["0", *(f"{zlib.crc32(program):x}" for program in programs)]  # the keys of earlier files
        keys = [
            f"{other.key:x}" if other and other.key else checksum
            for other, checksum in zip(candidates, checksums, strict=True)
        ]
        learning = _Learning(learner, candidates, keys, page, nbytes)
        for line in self._earlier:
            same_class = line.nbytes.bit_length() == nbytes.bit_length()
            same_kind = (line.collective, line.ranks, line.root) == (page.kind, self._ranks, page.root)
            known_keys = keys if line.checksum in keys else checksums
            if same_class and same_kind and line.checksum in known_keys:
                candidate = CallCandidate(known_keys.index(line.checksum), line.slices)
                times = line.samples, line.seconds, line.low, line.high
                if candidate.program or has_library:
                    learner.recall(Arm(candidate, bool(line.chosen), *times))
        return learning

    def lines(self) -> list[LearnedLine]:
        """Return what was learned, as lines of the file $ANTIPHON_LEARNED."""
        rows = []
        for learning in self._learners.values():
            # (before the first choice the times are few)
            for arm in learning.learner.arms() if learning.learner.choices() else ():
                # (the end of a search sets `seconds` alone; a line must have low <= seconds <= high)
                page, own_page = learning.pages[arm.candidate.program], learning.page
                rows.append(
                    LearnedLine(
                        collective=own_page.kind, ranks=self._ranks, root=own_page.root, nbytes=learning.nbytes,
                        checksum=learning.keys[arm.candidate.program], slices=arm.candidate.slices,
                        samples=arm.samples, seconds=arm.seconds, low=min(arm.low, arm.seconds),
                        high=max(arm.high, arm.seconds), chosen=int(arm.chosen),
                        planner="the library" if page is None else page.planner,
                    )
                )  # fmt: skip
        return rows

    def _can_be_sliced(self, page: Page | None) -> bool:
        """Return whether every rank can run a page in more and fewer slices; the same at all processes."""
        if page is None or self._ranks > MAX_CHECKED_RANKS:
            return False
        program = self._open(self._program_of(page))
        try:
            for rank in range(self._ranks):
                for in_place in range(2):  # bits of `variants`: 0 out of place, 1 in place
                    if program.facts.variants >> in_place & 1:
                        # half of the planned number, which the learner tries first, and the most that it tries
                        for slices in (PLANNED_SLICES // 2, 16 * PLANNED_SLICES):
                            program.plan(rank, unit=1, in_place=bool(in_place), slices=slices)
        except AntiphonError:
            return False
        return True

    def _note_size(self, learning: _Learning, nbytes: int) -> bool:
        """Return whether calls of this size are timed. After OTHER_CALLS calls of other sizes in a row, the size of the
        last one becomes the timed one."""
        if learning.nbytes == nbytes:
            learning.untimed = 0
            return True
        learning.untimed += 1
        if learning.untimed < OTHER_CALLS:
            return False
        learning.nbytes, learning.untimed = nbytes, 0
        learning.learner.restart()
        return True

    def _enter_choices(self, page: Page, learning: _Learning) -> None:
        """Enter in the ledger what was chosen, from which call of this size on, and why."""
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
