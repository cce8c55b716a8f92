"""Read and write sizes, bandwidths and times as people write them. Bandwidths are exact: ints or Fractions."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import islice
from typing import Any, NamedTuple, SupportsIndex

from antiphon.errors import Invalid, quote

Number = int | Fraction
Sizes = SupportsIndex | str | Sequence[SupportsIndex | str]  # as people write them: parse_sizes

_PREFIX = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "µs": 10**6, "ns": 10**9}  # unit of time -> its number in a second
_BYTES_OF_TYPE = {
    **dict.fromkeys(
        ("i8", "u8", "int8", "uint8", "f8e4m3", "f8e5m2", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"), 1
    ),
    **dict.fromkeys(("f16", "bf16", "i16", "u16", "float16", "bfloat16", "half"), 2),
    **dict.fromkeys(("f32", "i32", "u32", "float32", "int32", "uint32", "float"), 4),
    **dict.fromkeys(("f64", "i64", "u64", "float64", "int64", "uint64", "double"), 8),
}
# a number that begins a text: 7/3 (with a denominator other than 0), 1.5e3 or .5
_NUMBER = r"\s*([0-9]+/0*[1-9][0-9]*|[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,3})?|\.[0-9]+(?:e[+-]?[0-9]{1,3})?)"
_BARE = re.compile(r"\s*[0-9]+(/0*[1-9][0-9]*)?\s*")  # as `plain` writes a number into a file
_MOST = 10**300  # below what a float can hold
MOST_SIZES = 4096  # sizes in one list
_LONGEST = 60  # characters: nobody writes a longer number, and parsing one must stay cheap


def exact(value: object, label: str = "number") -> Fraction:
    """Return an exact number from an int, Fraction, finite float (its shortest decimal) or a string like "7/3"."""
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction | str):
        raise Invalid(f"{label}: expected a number, got {quote(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise Invalid(f"{label}: must be finite, got {value}")
    if isinstance(value, str) and (len(value) > _LONGEST or re.search(r"e[+-]?[0-9]{4}", value, re.IGNORECASE)):
        raise Invalid(f"{label}: {quote(value)} is too long for a number")
    try:
        number = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    except (ValueError, ZeroDivisionError):
        raise Invalid(f"{label}: cannot read {quote(value)} as a number") from None
    if abs(number) >= _MOST:
        raise Invalid(f"{label}: must be below 10^300")
    return number


def _split(text: str, label: str, example: str) -> tuple[Fraction, str]:
    """Return the number that a text begins with, and the unit after it. `label` and `example` are for the error."""
    match = re.fullmatch(_NUMBER + r"\s*(.*?)\s*", text, re.IGNORECASE) if len(text) <= _LONGEST else None
    if match is None:
        raise Invalid(f"{label}: cannot read {quote(text)}; write for example {example}")
    number, unit = match.groups()
    return Fraction(number), unit


def parse_size(value: SupportsIndex | str, label: str = "size") -> int:
    """Read a size in bytes: 4096, "64KB" (10^3), "1.5MiB" (2^20), "1e8f32" (elements times their size)."""
    if isinstance(value, bool) or not (isinstance(value, str) or hasattr(type(value), "__index__")):
        raise Invalid(f"{label}: expected a size such as 64KB, got {quote(value)}")
    if isinstance(value, str) and ":" in value:
        raise Invalid(f"{label}: expected one size such as 64MiB, got the range {quote(value)}")
    number, unit = _split(value, label, "64KB or 1.5MiB") if isinstance(value, str) else (_whole(value, label), "")
    scale = _size_unit(unit)
    if scale is None:
        raise Invalid(
            f"{label}: unknown unit {quote(unit)} in {quote(value)}; use B, KB, KiB, MB, MiB, GB, GiB or a type "
            "like f32"
        )
    total = number * scale
    if total.denominator != 1 or total < 0:
        raise Invalid(f"{label}: {quote(value)} is not a whole, non-negative number of bytes")
    if total >= 2**60:
        raise Invalid(f"{label}: {quote(value)} is more than any machine holds (2^60 bytes)")
    return int(total)


def _whole(value: SupportsIndex, label: str) -> Fraction:
    """Return an integer of Python or NumPy. TypeError: an array, which has __index__ only if it has one element."""
    try:
        return Fraction(operator.index(value))
    except TypeError:
        raise Invalid(f"{label}: expected a size such as 64KB, got {quote(value)}") from None


class Span(NamedTuple):
    """Sizes from `low` to at most `high`, each `factor` times the one before; None: the caller's usual factor."""

    low: int
    high: int
    factor: int | None = None

    def steps(self, usual: int = 2) -> list[int]:
        """Return `low` and its multiples by powers of `factor` (or `usual`), up to `high`."""
        sizes = [self.low]
        # a size of 0 has no multiples
        while sizes[-1] and sizes[-1] * (self.factor or usual) <= self.high:
            sizes.append(sizes[-1] * (self.factor or usual))
        return sizes

    def sizes(self, usual: int = 2) -> list[int]:
        """Return the steps, and `high` if it is none of them."""
        steps = self.steps(usual)
        return steps if steps[-1] == self.high else [*steps, self.high]


def parse_span(value: SupportsIndex | str, label: str = "nbytes") -> Span:
    """Read a range, written as SIZE, FROM:TO or FROM:TO:FACTOR: "64KB", "1KB:1GB", "1KB:1GB:4"."""
    if not isinstance(value, str) or ":" not in value:
        size = parse_size(value, label)
        return Span(size, size)
    first, last, *rest = value.split(":")
    factor = int(rest[0]) if len(rest) == 1 and re.fullmatch(r"\s*[0-9]{1,9}\s*", rest[0]) else 0
    if len(rest) > 1 or (rest and factor < 2) or not first.strip() or not last.strip():
        raise Invalid(f"{label}: expected SIZE, FROM:TO or FROM:TO:FACTOR with a factor from 2, got {quote(value)}")
    low, high = parse_size(first, label), parse_size(last, label)
    if not 0 < low <= high:
        raise Invalid(f"{label}: the range {quote(value)} is empty; begin above 0 and at most where it ends")
    return Span(low, high, factor or None)


def parse_sizes(value: Sizes, label: str = "nbytes", usual: int = 2) -> list[int]:
    """Return the sizes of a range as `parse_span` reads it (`usual`: factor of FROM:TO), or of several ranges."""
    spans: list[Any] = [value]
    if not isinstance(value, str) and isinstance(value, Iterable):
        try:
            spans = list(islice(value, MOST_SIZES + 1))
        except TypeError:  # a NumPy array of no dimensions is an Iterable by its type, and cannot be iterated
            raise Invalid(f"{label}: expected a size such as 64KB, or several, got {quote(value)}") from None
        if len(spans) > MOST_SIZES:
            raise Invalid(f"{label}: more than {MOST_SIZES} sizes; give fewer")
    return [size for size_text in spans for size in parse_span(size_text, label).sizes(usual)]


def _size_unit(unit: str) -> int | None:
    """Return the bytes of a unit of size, or of an element of a data type; None if it is neither."""
    name = unit.lower()
    if name in _BYTES_OF_TYPE:
        return _BYTES_OF_TYPE[name]
    if match := re.fullmatch(r"([kmgtp])i(b?)", name):
        return _BINARY[match.group(1)]
    if match := re.fullmatch(r"([kmgtp]?)b?", name):
        return _PREFIX[match.group(1)]
    return None


def parse_bandwidth(value: int | float | Fraction | str, label: str = "bandwidth") -> Fraction:
    """Read an exact bandwidth, a number of bytes per second or text with a unit: "25GB/s", "100Gbit/s" (or Gb/s),
    "1.5GiB/s", "7/3GB/s"."""
    if isinstance(value, str):
        number, unit = _split(value, label, "25GB/s or 100Gbit/s")
        if not unit:
            raise Invalid(f"{label}: {quote(value)} has no unit; write for example {_with(value, 'GB/s or', 'Gbit/s')}")
        match = re.fullmatch(r"(?:([kmgtp])(i?))?(bit|b|B|bytes|byte)(?:/s|ps)", unit, re.IGNORECASE)
        if match is None:
            raise Invalid(f"{label}: unknown unit {quote(unit)} in {quote(value)}; use GB/s, MiB/s or Gbit/s")
        prefix, binary, item = match.groups(default="")
        number *= _BINARY[prefix.lower()] if binary else _PREFIX[prefix.lower()]
        if item.lower() == "bit" or item == "b":  # b is a bit, B a byte
            number /= 8
    else:
        number = exact(value, label)
    if number <= 0:
        raise Invalid(f"{label}: must be greater than 0, got {quote(value)}")
    # the value and its denominator each fit an int64, with room for the sum of two
    if not Fraction(1, 10**15) < number < 10**18 or number.denominator >= 2**62:
        raise Invalid(f"{label}: {quote(value)} is out of range (10^-15 to 10^18 bytes per second)")
    return number


def is_bare(value: object) -> bool:
    """Return whether a value is a number without a unit, also one in quotes as `plain` writes it."""
    return not isinstance(value, str) or _BARE.fullmatch(value) is not None


def stored_bandwidth(value: int | float | Fraction | str, label: str = "bandwidth") -> Fraction:
    """Read a bandwidth of a file: bytes per second, or as text as `plain` writes them ("7/3") or with a unit."""
    return parse_bandwidth(exact(value, label) if isinstance(value, str) and is_bare(value) else value, label)


def parse_seconds(value: int | float | str, label: str = "time", bare: bool = False) -> float:
    """Read a time in seconds: a number, or text with a unit ("1.5us", "20 ms"; 0 needs none).

    `bare`: text without a unit is in seconds, as in a column of seconds or for a time limit.
    """
    if isinstance(value, str):
        number, unit = _split(value, label, "60s" if bare else "1.5us")
        if not unit and number and not bare:
            raise Invalid(f"{label}: {quote(value)} has no unit; write for example {_with(value, 'us or', 's')}")
        if unit and unit.lower() not in _PER_SECOND:
            raise Invalid(f"{label}: unknown unit {quote(unit)} in {quote(value)}; use s, ms, us or ns")
        number /= _PER_SECOND[unit.lower() or "s"]
    else:
        number = exact(value, label)
    if not 0 <= number < 10**9:
        raise Invalid(f"{label}: must be between 0 and 10^9 seconds, got {quote(value)}")
    return float(number)


def _with(value: str, *units: str) -> str:
    """Return the value with each of these units, as an example: "25GB/s or 25Gbit/s"."""
    return " ".join(value.strip() + unit for unit in units)


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: 1 step, 2 steps, 1,200 processes."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def plain(value: Number) -> int | str:
    """Return an exact number as JSON has it: an int, or a string like "7/3"."""
    number = Fraction(value)
    return number.numerator if number.denominator == 1 else f"{number.numerator}/{number.denominator}"


def parse_ranks(text: str, label: str = "ranks") -> list[int]:
    """Read ranks as people write them: 0,1,4 or 0-3,6."""
    ranks: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", item)
        if match is None:
            raise Invalid(f"{label}: expected ranks such as 0,1,4 or 0-3,6, got {quote(text)}")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or high - low > 2**24:  # 2^24: no machine has more ranks
            raise Invalid(f"{label}: {item.strip()} is no range of ranks; write the lower one first")
        ranks += range(low, high + 1)
    if len(set(ranks)) != len(ranks):
        raise Invalid(f"{label}: a rank is named twice in {quote(text)}")
    return ranks


def ranks_text(ranks: Iterable[int], longest: int = 8) -> str:
    """Write ascending ranks as `parse_ranks` reads them: 0-3,6; of many ranges only the first, then "...".

    >>> ranks_text([0, 1, 2, 3, 6])
    '0-3,6'
    """
    high_of: dict[int, int] = {}  # last rank of each range, by its first rank
    low = high = -2  # not -1, of which rank 0 would be the next
    for rank in ranks:
        low, high = low if rank == high + 1 else rank, rank
        high_of[low] = high
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in high_of.items()]
    return ",".join(texts if len(texts) <= longest else [*texts[:longest], "..."])


DECIMAL, BINARY = "KB", "KiB"  # families of units of size
_LONG_SIZES = (  # units of sizes, from the largest
    (2**50, "PiB"), (10**15, "PB"), (2**40, "TiB"), (10**12, "TB"), (2**30, "GiB"), (10**9, "GB"), (2**20, "MiB"),
    (10**6, "MB"), (2**10, "KiB"), (10**3, "KB"),
)  # fmt: skip


def format_size(nbytes: int, family: str = "") -> str:
    """Write a size in its shortest exact form: 65536 -> 64KiB, 64000 -> 64KB, and 4096000 -> 4.096MB.

    `family`: the units to prefer for sizes that are whole in both families; DECIMAL allows up to three digits after the
    point (131072000 -> 131.072MB).
    """
    for scale, unit in _LONG_SIZES if nbytes and family else ():
        quotient, rest = divmod(nbytes, scale)
        if ("i" in unit) == (family == BINARY) and rest == 0:
            return f"{quotient}{unit}"
        is_decimal = family == DECIMAL and "i" not in unit and nbytes % 1000 == 0  # 1500 stays 1500B
        three_digits_suffice = rest * 1000 % scale == 0
        if is_decimal and 0 < quotient < 1000 and three_digits_suffice:
            return f"{quotient}.{rest * 1000 // scale:03}".rstrip("0") + unit
    exact_texts = [f"{nbytes // scale}{unit}" for scale, unit in _LONG_SIZES if nbytes and nbytes % scale == 0]
    text = min(exact_texts, key=len, default=f"{nbytes}B")
    if family or not re.match(r"[0-9]{4,}[KMGTP]", text):
        return text
    with_point = format_size(nbytes, DECIMAL)  # 4.096MB instead of 4096KB, where three digits suffice
    return with_point if "." in with_point else text


def size_family(sizes: Iterable[int]) -> str:
    """Return the family of units that most of these sizes are whole in, or "" if neither is ahead."""
    ahead = sum((size % 1000 == 0) - (size % 1024 == 0) for size in sizes if size)  # decimal sizes over binary ones
    return DECIMAL if ahead > 0 else BINARY if ahead < 0 else ""


def format_ends(start: int, stop: int | None, family: str = "") -> tuple[str, str]:
    """Write the two ends of a range from `start` to below `stop` (None: no end).

    One byte more than a round size is ">4MB" as the start, and "4MB" as the end, as the range has calls of 4 MB. The
    round size itself is "4MB" at either end; as the end it is the start of the next range. `family`: as for
    `format_size`.
    """
    texts = [format_size(end, family) if end is not None else "-" for end in (start, stop)]
    for i, end in enumerate((start, stop)):
        if end is not None and end > 1000 and re.fullmatch(r"[0-9]+B", texts[i]):
            round_text = format_size(end - 1, family)
            if not re.fullmatch(r"[0-9]+B", round_text):
                texts[i] = f">{round_text}" if i == 0 else round_text
    return texts[0], texts[1]


def range_text(start: int, stop: int | None) -> str:
    """Write the range from `start` to below `stop` (None: no end) in words.

    >>> range_text(0, 4096), range_text(16385, 2**19), range_text(2**23 + 1, None), range_text(2**23, None)
    ('up to 4KiB', '>16KiB to 512KiB', 'above 8MiB', 'from 8MiB on')
    """
    first, last = format_ends(start, stop)
    if not start:
        return f"up to {last}" if stop is not None else "at all sizes"
    if stop is not None:
        return f"{first} to {last}"
    return f"above {first[1:]}" if first.startswith(">") else f"from {first} on"


def format_bandwidth(bytes_per_second: Number | float) -> str:
    """Write a bandwidth in four digits and a unit: 25 GB/s."""
    value = float(bytes_per_second)
    for scale, unit in [(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "KB/s")]:
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} B/s"


def format_seconds(seconds: float) -> str:
    """Write a time in four digits and a unit: 12.5 us."""
    for scale, unit in [(1, "s"), (1e-3, "ms"), (1e-6, "us")]:
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns" if seconds else "0 s"
