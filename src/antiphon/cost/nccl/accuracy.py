"""How far predictions of NCCL and RCCL can be trusted: a predicted speedup within their median error counts as noise.

`errors.json` has the median of |predicted / measured - 1| on machines held out of the fit: by collective, by place
(within a node or between nodes) and by range of sizes (up to 64 KB, between, from 64 MB on). `bench/bench_nccl.py
--write` derives it from the published tables: per machine the median over its rows, then the median over machines, so
that all machines count the same, however many rows they have. The verdicts of `tune`, exports and notes read it here.

The rows of a single machine may be good by luck: such a collective, or one without any, gets the greatest error of the
same place and range. For a collective with different data for each rank (alltoall, gather, scatter) only its own rows
count, as no other collective consists of sends. No error counts as less than MIN_ERROR, about that of large sizes over
all machines, or as UNCALIBRATED_ERROR on GPUs with another generation's figures.

Example: within a node an allgather of 1 MB is off by 22 % in the median over two machines; a predicted speedup of 1.15
over NCCL is noise. For a broadcast only rows of one machine exist (off by 8 %), so 22 % counts as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from antiphon.core.files import read_bytes, reading
from antiphon.core.jsontext import decode
from antiphon.cost.nccl.choice import TO_EACH
from antiphon.errors import Invalid

FORMAT, VERSION = "antiphon-errors", 1
FILE = Path(__file__).parent / "errors.json"
WITHIN, BETWEEN = PLACES = ("within a node", "between nodes")
RANGES = ("up to 64 KB", "between", "from 64 MB on")
SMALL, LARGE = 64_000, 64_000_000  # bytes: end of the first range, beginning of the last
MIN_MACHINES = 2  # behind a median, for it to count on its own
MIN_ERROR = 0.075  # no error counts as less; see the module
UNCALIBRATED_ERROR = 0.3  # the greatest median error of B200's tables, by H100's figures
AIMS = {WITHIN: 0.15, BETWEEN: 0.25}  # the error that the model should not exceed


class HeldOut(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The median error of one collective in one place and range of sizes, and the rows and machines behind it."""

    collective: str
    place: str
    range: str
    error: float
    rows: int
    machines: int


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: str
    version: int
    errors: list[HeldOut]


@cache
def held_out_errors() -> tuple[HeldOut, ...]:
    """Return the errors of errors.json."""
    with reading(FILE.name):
        file = decode(read_bytes(FILE), _File)
        if (file.format, file.version) != (FORMAT, VERSION):
            raise Invalid(f'expected "format": "{FORMAT}", "version": {VERSION}')
        return tuple(file.errors)


def error_at(collective: str, nbytes: int, nodes: int, *, calibrated: bool = True) -> float | None:
    """Return the relative error of a prediction on a machine that is not in the fit; None if unknown.

    `calibrated`: whether the figures of its GPUs were fitted to tables of their own generation.
    """
    return _error_in(collective, RANGES[range_index(nbytes)], nodes, calibrated)


def range_index(nbytes: int) -> int:
    """Return which of the three RANGES a size is in."""
    return 0 if nbytes <= SMALL else 1 if nbytes < LARGE else 2


def _error_in(collective: str, sizes: str, nodes: int, calibrated: bool) -> float | None:
    """Return the relative error in a range of sizes: the collective's own if it has at least MIN_MACHINES.

    Otherwise it is the greatest error of any collective that is not in TO_EACH. For those in TO_EACH it is their own,
    None if there is none.
    """
    place = BETWEEN if nodes > 1 else WITHIN
    errors = [row for row in held_out_errors() if (row.place, row.range) == (place, sizes)]
    collective_error = next((row for row in errors if row.collective == collective), None)
    min_error = MIN_ERROR if calibrated else UNCALIBRATED_ERROR
    if collective in TO_EACH or (collective_error is not None and collective_error.machines >= MIN_MACHINES):
        return max(collective_error.error, min_error) if collective_error is not None else None
    return max([min_error, *(row.error for row in errors if row.collective not in TO_EACH)])


def missed_aim(error: float | None, nodes: int) -> str | None:
    """Return in words the error that the model should not exceed, if this one exceeds it; else None."""
    place = BETWEEN if nodes > 1 else WITHIN
    return f"{AIMS[place]:.0%} {place}" if error is not None and error > AIMS[place] else None


def is_within_error(speedup: float, error: float | None) -> bool:
    """Return whether a predicted speedup over the library cannot be distinguished from 1, given its model's error.

    An unknown error counts as the greatest known.
    """
    noise = 1 + (_greatest_error() if error is None else error)
    return 1 / noise <= speedup <= noise


def is_clearly_faster(speedup: float, error: float | None) -> bool:
    """Return whether a predicted speedup over the library exceeds the error of the library's model.

    Sizes at which it does not are left to the library in tables and exports.
    """
    return speedup > 1 and not is_within_error(speedup, error)


def accuracy_note(collectives: Iterable[str], nodes: int, *, calibrated: bool = True) -> str:
    """Return a remark, to append to another, on the error of the library's predicted times; "" for no collectives."""
    kinds_of: dict[str, list[str]] = {}  # collectives by the text on their errors
    for kind in sorted(set(collectives)):
        errors = [(sizes, _error_in(kind, sizes, nodes, calibrated)) for sizes in RANGES]
        by_range = [(f"{error:.1%}", sizes) for sizes, error in errors if error is not None]
        is_same = len(by_range) == len(RANGES) and len({error for error, _ in by_range}) == 1
        text = f"{by_range[0][0]} at all sizes" if is_same else ", ".join(map(" ".join, by_range))
        kinds_of.setdefault(text or f"unknown (no measurements), {_greatest_error():.1%} counts", []).append(kind)
    if not kinds_of:
        return ""
    errors_text = "; ".join(f"{', '.join(kinds)} {text}" for text, kinds in kinds_of.items())
    return (
        f"; median error of its times on machines held out of the fit: {errors_text}; treat smaller speedups as noise"
    )


def errors_text(errors: Iterable[tuple[str, int, float | None]]) -> str:
    """Return errors by range of sizes in percent, from rows of collective, size and error; "" for none.

    >>> errors_text([("reduce", 1000, 0.08), ("allreduce", 1000, 0.08), ("reduce", 10**6, 0.22)])
    'in % up to 64 KB/between: allreduce 8, reduce 8/22'
    """
    errors_of: dict[str, dict[str, str]] = {}  # by collective and range
    for kind, nbytes, error in sorted(errors, key=lambda row: row[:2]):
        noise = _greatest_error() if error is None else error
        errors_of.setdefault(kind, {})[RANGES[range_index(nbytes)]] = f"{noise * 100:.0f}"
    ranges = [sizes for sizes in RANGES if any(sizes in by_range for by_range in errors_of.values())]
    kinds_of: dict[tuple[str, ...], list[str]] = {}  # by errors: one, if all ranges have the same
    for kind, by_range in errors_of.items():
        values = (*by_range.values(),)
        kinds_of.setdefault(values[:1] if len({*values}) == 1 else values, []).append(kind)
    if not kinds_of:
        return ""
    if len(kinds_of) == 1:
        (values,) = kinds_of
        return f"{values[0]} %" if len(values) == 1 else ", ".join(map("{} % {}".format, values, ranges))
    texts = [f"{', '.join(kinds)} {'/'.join(values)}" for values, kinds in kinds_of.items()]
    return f"in % {'/'.join(ranges)}: {', '.join(texts)}"


def _greatest_error() -> float:
    return max(row.error for row in held_out_errors())
