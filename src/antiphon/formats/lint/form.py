"""The data types of lint: the call to check, findings with outcome and remedy, and a runtime as a list of rules.

`antiphon lint FILE --runtime rccl-6` reads a file's header (`Head`), takes the call of the command line
(`ApplicationCall`), and has the `RuntimeRules` apply its rules. A rule is a function that yields findings: it compares
header and call as the runtime does, and says what would happen and what to do instead. Rules that several runtimes
share are at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from antiphon.errors import Invalid, quote
from antiphon.units import format_size

WILL_NOT = ("refused", "ignored", "hangs", "wrong")  # outcomes in which the runtime does not run the file correctly


@dataclass(frozen=True)
class Head:
    """What the header of an exported file says, and a summary of its operations."""

    format: str  # as `antiphon list formats` has it
    name: str
    kind: str  # the collective
    ranks: int
    in_place: bool  # whether the file serves calls in place
    out_of_place: bool  # whether the file serves calls out of place
    min_bytes: int  # fewest bytes of a call that the file serves
    max_bytes: int | None  # most bytes; None: unlimited
    chunks: int  # number of equal chunks of a call's buffer
    channels: int  # number of NCCL's channels (sets of connections) that the file uses
    protocol: str  # NCCL's name: Simple, LL or LL128
    verbs: frozenset[str]  # names of all operations in the file, such as "rrc" or "glres"
    root: int | None = None  # None: the collective has none
    notes: tuple[str, ...] = ()  # remarks that hold for every call
    extra: Mapping[str, int] = field(default_factory=dict)  # figures that only one format has, such as "scratch"

    def serves(self, in_place: bool) -> bool:
        """Return whether the file serves calls in place, or out of place."""
        return self.in_place if in_place else self.out_of_place

    def serves_size(self, nbytes: int) -> bool:
        """Return whether calls of this size are within the range of the file."""
        return self.min_bytes <= nbytes and (self.max_bytes is None or nbytes <= self.max_bytes)


@dataclass(frozen=True)
class ApplicationCall:
    """A call of the collective, as an application makes it."""

    nbytes: int  # as nccl-tests defines it: the largest buffer of a rank
    itemsize: int  # bytes of an element
    dtype: str  # such as "float16"
    op: str  # such as "sum"
    ranks: int  # 0: as many as the file is for; formats/checked.py replaces 0 by that number before rules run
    in_place: bool | None = None  # None: either
    root: int | None = None  # None: any


@dataclass(frozen=True)
class Finding:
    """What a rule reports about a call.

    Outcomes: "refused" (the call ends in an error), "ignored" (the runtime silently uses its own algorithm), "hangs",
    "wrong" (the result is wrong) and "note" (the file runs, but the user should know something).
    """

    outcome: str
    why: str
    instead: str = ""  # how to fix it

    def as_json(self) -> dict[str, str]:
        return {"outcome": self.outcome, "why": self.why, "instead": self.instead}


Rule = Callable[[Head, ApplicationCall], Iterator[Finding]]
Size = Callable[[Head, ApplicationCall], int]


def call_size(head: Head, call: ApplicationCall) -> int:
    """Return the bytes of a call, as nccl-tests defines them."""
    return call.nbytes


@dataclass(frozen=True)
class RuntimeRules:
    """A runtime as the list of rules by which it accepts or rejects a file for a call."""

    name: str
    about: str
    format: str  # of the files that the runtime reads
    rules: tuple[Rule, ...]  # in the order in which the runtime decides
    options: Mapping[str, str] = field(default_factory=dict)  # options that `antiphon export` needs for this runtime
    size_of: Size = call_size  # the bytes of a call that the runtime compares with the file's range

    def check(self, head: Head, call: ApplicationCall) -> list[Finding]:
        """Return the findings of all rules, then the notes of the file."""
        if head.format != self.format:
            raise Invalid(
                f"{quote(head.name)} is a file of {head.format}, and {self.name} reads {self.format}; "
                f"write it anew by `antiphon export PLAN --to {self.format}`"
            )
        # All rules are applied in the order in which the runtime decides: the first finding is what a call meets first.
        findings = [finding for rule in self.rules for finding in rule(head, call)]
        return findings + [Finding("note", note) for note in head.notes]


def always_note(why: str, instead: str) -> Rule:
    """Return a rule that reports the same note on every call."""
    return lambda head, call: iter([Finding("note", why, instead)])


def check_sizes(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report a size outside of the file's range. `antiphon export` writes one file for every range of a plan."""
    if not head.serves_size(call.nbytes):
        end = "without end" if head.max_bytes is None else f"to {format_size(head.max_bytes)}"
        yield Finding(
            "ignored",
            f"{format_size(call.nbytes)} is outside of its range, from {format_size(head.min_bytes)} {end}",
            "tune over the sizes that the program uses: every range becomes a file of its own",
        )


def check_ranks(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report a communicator with another number of ranks than the file."""
    if call.ranks != head.ranks:
        yield Finding(
            "ignored",
            f"it is for {head.ranks} ranks, and the communicator has {call.ranks}",
            f"plan for {call.ranks} ranks (`antiphon topology show` takes TOPO:only=RANKS)",
        )


def check_in_place(head: Head, call: ApplicationCall) -> Iterator[Finding]:
    """Report a call in place (or out of place) that the file does not serve; a note if the call may be either."""
    for in_place in (True, False):
        if call.in_place in (None, in_place) and not head.serves(in_place):
            yield not_served(in_place, "ignored" if call.in_place is not None else "note")


def place_name(in_place: bool) -> str:
    return "in place" if in_place else "out of place"


def not_served(in_place: bool, outcome: str = "note") -> Finding:
    """Return the finding of a file that does not serve calls in place, or out of place."""
    place = place_name(in_place)
    return Finding(outcome, f"calls {place} are not served by it", f"put the file for calls {place} beside it")
