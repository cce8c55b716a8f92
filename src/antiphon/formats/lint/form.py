"""The data types of lint: the call to check, findings with outcome and remedy, and a runtime as a list of rules.

`antiphon lint FILE --runtime rccl-6` reads a file's header (`Head`), takes the call of the command line (`Call`), and
has the `Runtime` apply its rules. A rule is a function that yields findings: it compares header and call as the runtime
does, and says what would happen and what to do instead. Rules that several runtimes share are at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from antiphon.errors import Invalid, quote
from antiphon.units import format_size

WILL_NOT = ("refused", "ignored", "hangs", "wrong")  # outcomes in which the runtime does not run the file correctly


@dataclass(frozen=True)
class Head:
    """The header of a file. `least`, `most`: bytes of a call (None: unlimited). `chunks`: number of equal chunks of a
    call's buffer. `verbs`: all names of steps in it. `extra`: what only one format has."""

    format: str
    name: str
    kind: str
    ranks: int
    in_place: bool
    out_of_place: bool
    least: int
    most: int | None
    chunks: int
    channels: int
    protocol: str
    verbs: frozenset[str]
    root: int | None = None
    notes: tuple[str, ...] = ()
    extra: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """A call that a program makes. `nbytes`: as nccl-tests defines it, the largest buffer of a rank. `ranks`: 0 for as
    many as the file is for."""

    nbytes: int
    itemsize: int
    dtype: str
    op: str
    ranks: int
    in_place: bool | None = None
    root: int | None = None

    @property
    def where(self) -> str:
        return "" if self.in_place is None else (" in place" if self.in_place else " out of place")


@dataclass(frozen=True)
class Finding:
    """What a rule says. `outcome`: refused (with an error), ignored (the runtime silently uses its own algorithm),
    hangs, wrong, or note. `instead`: how to fix it."""

    outcome: str
    why: str
    instead: str = ""

    def as_json(self) -> dict[str, str]:
        return {"outcome": self.outcome, "why": self.why, "instead": self.instead}


Rule = Callable[[Head, Call], Iterator[Finding]]


@dataclass(frozen=True)
class Runtime:
    """A runtime. `format`: of the files that it reads. `rules`: in the order in which it decides."""

    name: str
    about: str
    format: str
    rules: tuple[Rule, ...]
    options: Mapping[str, str] = field(default_factory=dict)  # options that the export needs for it

    def check(self, head: Head, call: Call) -> list[Finding]:
        if head.format != self.format:
            raise Invalid(
                f"{quote(head.name)} is a file of {head.format}, and {self.name} reads {self.format}; "
                f"write it anew by `antiphon export PLAN --to {self.format}`"
            )
        # All rules are applied, in the runtime's order, so that the first finding is what a call meets first.
        findings = [finding for rule in self.rules for finding in rule(head, call)]
        return findings + [Finding("note", note) for note in head.notes]


def check_sizes(head: Head, call: Call) -> Iterator[Finding]:
    """Whether the size lies in the range of the file. `antiphon export` writes one file for every range of a table."""
    if call.nbytes < head.least or (head.most is not None and call.nbytes > head.most):
        end = "without end" if head.most is None else f"to {format_size(head.most)}"
        yield Finding(
            "ignored",
            f"{format_size(call.nbytes)} is outside of its range, from {format_size(head.least)} {end}",
            "tune over the sizes that the program uses: every range becomes a file of its own",
        )


def check_ranks(head: Head, call: Call) -> Iterator[Finding]:
    if call.ranks != head.ranks:
        yield Finding(
            "ignored",
            f"it is for {head.ranks} ranks, and the communicator has {call.ranks}",
            f"plan for {call.ranks} ranks (`antiphon topology show` has --only for an allocation)",
        )


def check_places(head: Head, call: Call) -> Iterator[Finding]:
    has = {True: head.in_place, False: head.out_of_place}
    for place, name in ((True, "in place"), (False, "out of place")):
        if call.in_place in (None, place) and not has[place]:
            outcome = "ignored" if call.in_place is not None else "note"
            yield Finding(outcome, f"calls {name} are not served by it", f"put the file for calls {name} beside it")
