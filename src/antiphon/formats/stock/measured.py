"""Read the library's own algorithms from a table that `tune --library-only` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.core.plan import Entry, Plan
from antiphon.errors import Invalid, Unsupported, quote

CLAIM = "library"  # of an entry: {name, version, file, algorithm, parameters}
DEFAULT = "default"  # the algorithm that the library chooses by itself
MAX_PARAMETER = 2**31 - 1
AS_GOOD = "its own choice was measured to be as good, or nothing was measured"
HOW = "tune it by antiphon tune COLL TOPO --on mpi --library-only"
RULE_FORMATS = {
    "Open MPI": "openmpi-rules", "MPICH": "mpich-rules", "NCCL": "nccl-tuner", "RCCL": "nccl-csv",
}  # fmt: skip


@dataclass(frozen=True)
class Algorithm:
    """One of the library's, by its name, with the numbers that it was measured with."""

    name: str
    parameters: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, key: str) -> int:
        return dict(self.parameters)[key]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.parameters)])


def about(entry: Entry) -> Mapping[str, Any] | None:
    """What is claimed of the library; None where nothing is. Invalid where it is not of that form."""
    claim = entry.claims.get(CLAIM)
    if claim is None:
        return None
    texts = ("name", "version", "file", "algorithm")
    numbers = claim.get("parameters", {}) if isinstance(claim, dict) else None
    # The texts are written to files of rules: refuse anything that is not printable.
    plain = isinstance(claim, dict) and all(
        isinstance(claim.get(key), str) and claim[key].isprintable() for key in texts
    )
    right = isinstance(numbers, dict) and all(type(n) is int and 0 <= n <= MAX_PARAMETER for n in numbers.values())
    if not plain or not right:
        raise Invalid(f"claims.{CLAIM}: expected texts {', '.join(texts)} and whole numbers as parameters, got "
                      f"{quote(claim)}")  # fmt: skip
    library_claim: Mapping[str, Any] = claim
    return library_claim


def algorithm_of(entry: Entry) -> Algorithm | None:
    """The library's best algorithm, where it is not its own choice."""
    claim = about(entry)
    if claim is None or claim["algorithm"] == DEFAULT:
        return None
    return Algorithm(claim["algorithm"], tuple(sorted(claim.get("parameters", {}).items())))


def library_of(plans: Mapping[str, Plan], name: str) -> Mapping[str, Any]:
    """What all entries say of the library itself. Unsupported where none does, or one speaks of another than `name`."""
    library_claims = [claim for plan in plans.values() for entry in plan.entries if (claim := about(entry)) is not None]
    if not library_claims:
        raise Unsupported(f"{RULE_FORMATS[name]}: this table has no measurements of {name}'s own algorithms; {HOW}")
    for claim in library_claims:
        if claim["name"] != name:
            other = RULE_FORMATS.get(claim["name"])
            raise Unsupported(
                f"{RULE_FORMATS[name]}: this table was measured on {claim['name']}"
                + (f"; export --to {other}" if other else "")
            )
    return library_claims[0]


def required_parameter(algorithm: Algorithm, key: str) -> int:
    """A parameter that must be there."""
    for name, value in algorithm.parameters:
        if name == key:
            return value
    raise Invalid(f"claims.{CLAIM}: {quote(algorithm.name)} has no parameter {key}")
