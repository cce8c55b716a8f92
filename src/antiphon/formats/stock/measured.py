"""Read which of their own algorithms MPI or NCCL should use, from a table that `tune --library-only` wrote.

The writers of rules in this folder (`RULE_FORMATS`) call `library_of` once and `algorithm_of` per size range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.core.plan import Entry, Plan
from antiphon.errors import Invalid, Unsupported, quote

CLAIM = "library"  # key in Entry.claims of what was measured: {name, version, file, algorithm, parameters}
DEFAULT = "default"  # the algorithm that the library chooses by itself
MAX_PARAMETER = 2**31 - 1  # greatest C int
# Parts of messages: why a range has no rule; how to measure for rules
NO_RULE_REASON = "its own choice was measured to be as good, or nothing was measured"
HOW_TO_MEASURE = "tune it by antiphon tune COLL TOPO --on mpi --library-only"
RULE_FORMATS = {
    "Open MPI": "openmpi-rules", "MPICH": "mpich-rules", "NCCL": "nccl-tuner", "RCCL": "nccl-csv",
}  # fmt: skip


@dataclass(frozen=True)
class MeasuredAlgorithm:
    """An algorithm of the library, with the parameters that it was measured with."""

    name: str
    parameters: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, key: str) -> int:
        return dict(self.parameters)[key]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.parameters)])


def library_claim(entry: Entry) -> Mapping[str, Any] | None:
    """Return the entry's claim about the library, or None. Raise Invalid if it is malformed."""
    claim = entry.claims.get(CLAIM)
    if claim is None:
        return None
    texts = ("name", "version", "file", "algorithm")
    numbers = claim.get("parameters", {}) if isinstance(claim, dict) else None
    # The texts are written to files of rules: refuse anything that is not printable.
    has_texts = isinstance(claim, dict) and all(
        isinstance(claim.get(key), str) and claim[key].isprintable() for key in texts
    )
    has_numbers = isinstance(numbers, dict) and all(
        type(value) is int and 0 <= value <= MAX_PARAMETER for value in numbers.values()
    )
    if not has_texts or not has_numbers:
        raise Invalid(f"claims.{CLAIM}: expected texts {', '.join(texts)} and whole numbers as parameters, got "
                      f"{quote(claim)}")  # fmt: skip
    checked: Mapping[str, Any] = claim
    return checked


def algorithm_of(entry: Entry) -> MeasuredAlgorithm | None:
    """Return the library's best algorithm for the range, or None if its own choice is best."""
    claim = library_claim(entry)
    if claim is None or claim["algorithm"] == DEFAULT:
        return None
    return MeasuredAlgorithm(claim["algorithm"], tuple(sorted(claim.get("parameters", {}).items())))


def library_of(plans: Mapping[str, Plan], name: str) -> Mapping[str, Any]:
    """Return the first claim about the library. Raise Unsupported if there is none, or if one is about another library
    than `name`."""
    library_claims = [
        claim for plan in plans.values() for entry in plan.entries if (claim := library_claim(entry)) is not None
    ]
    if not library_claims:
        raise Unsupported(
            f"{RULE_FORMATS[name]}: this table has no measurements of {name}'s own algorithms; {HOW_TO_MEASURE}"
        )
    for claim in library_claims:
        if claim["name"] != name:
            other_format = RULE_FORMATS.get(claim["name"])
            raise Unsupported(
                f"{RULE_FORMATS[name]}: this table was measured on {claim['name']}"
                + (f"; export --to {other_format}" if other_format else "")
            )
    return library_claims[0]


def required_parameter(algorithm: MeasuredAlgorithm, key: str) -> int:
    """Return a parameter; raise Invalid if the algorithm lacks it."""
    for name, value in algorithm.parameters:
        if name == key:
            return value
    raise Invalid(f"claims.{CLAIM}: {quote(algorithm.name)} has no parameter {key}")
