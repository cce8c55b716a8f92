"""Values of options to try: what replaces the sweep that a planner's entry declares."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from antiphon.errors import Invalid, quote
from antiphon.options import parse_options, plain_value
from antiphon.registry import find

FACTORS = "factors"
MOST = 4096  # combinations of values for one planner
FORMS = "k=2:64, k=2,4,8 or k=factors"

Value = int | float | str | bool
Sweep = Mapping[str, Any]  # per option: its values as people write them, or one value, or several


def read_sweep(texts: Iterable[str]) -> dict[str, str]:
    """--sweep k=2:64, each option once."""
    return parse_options(texts, "--sweep", f"an option and its values, parted by commas ({FORMS})")


def values_of(given: Any, what: str, ranks: int) -> tuple[Value, ...]:
    """The values of one option, each once, in the order they are given.

    A text is a list parted by commas, each part a value, a range of whole numbers with both ends ("2:64"), or
    "factors": what divides the number of ranks, from 2 up to itself.
    """
    parts: Iterable[Any]
    if isinstance(given, str):
        parts = given.split(",")
    elif isinstance(given, Iterable) and not isinstance(given, bytes | Mapping):
        parts = given
    else:
        parts = [given]
    found: dict[tuple[type, Value], Value] = {}
    for part in parts:
        for value in _expanded(part, what, ranks):
            found.setdefault((type(value), value), value)
            if len(found) > MOST:
                raise Invalid(f"{what}: more than {MOST} values; sweep fewer")
    if not found:
        raise Invalid(f"{what}: has no values; write for example {FORMS}")
    return tuple(found.values())


def _expanded(part: Any, what: str, ranks: int) -> Iterable[Value]:
    if not isinstance(part, str):
        if hasattr(part, "item") and not isinstance(part, type):  # a number of NumPy's
            part = part.item()
        if not isinstance(part, int | float | bool) or (isinstance(part, float) and not math.isfinite(part)):
            raise Invalid(f"{what}: expected values such as {FORMS}; got {quote(part)}")
        return (part,)
    text = part.strip()
    if not text:
        raise Invalid(f"{what}: there is nothing between two commas, or at an end")
    if text == FACTORS:
        return [k for k in range(2, ranks + 1) if ranks % k == 0]
    if ":" not in text:
        return (plain_value(text),)
    match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if match is None:
        raise Invalid(f"{what}: cannot read the range {quote(text)}; write it as 2:64, with both ends")
    low, high = int(match[1]), int(match[2])
    if high < low:
        raise Invalid(f"{what}: the range {text} is empty; write the lower end first")
    return range(low, min(high, low + MOST) + 1)


def resolved(sweep: Sweep | None, planners: Sequence[str], ranks: int) -> dict[str, tuple[Value, ...]]:
    """The values of every option swept; Invalid where none of the planners has the option."""
    if sweep is not None and not isinstance(sweep, Mapping):
        raise Invalid(f'sweep: expected options and their values, such as {{"k": range(2, 65)}}; got {quote(sweep)}')
    found = {}
    for key, given in (sweep or {}).items():
        having = {name: find("planner", name).can["options"] for name in planners}
        if not any(key in options for options in having.values()):
            known = sorted({option for options in having.values() for option in options})
            one = f"planner {planners[0]}" if len(planners) == 1 else f"none of the planners {_listed(planners)}"
            none = "has no option" if len(planners) == 1 else "has the option"
            told = f"to sweep there are: {', '.join(known)}" if known else "there is none to sweep"
            raise Invalid(f"sweep: {one} {none} {quote(key)}; {told}")
        found[key] = values_of(given, f"sweep of {key}", ranks)
    for name in planners:
        many = math.prod(len(values) for key, values in found.items() if key in find("planner", name).can["options"])
        if many > MOST:
            raise Invalid(f"sweep: {many} combinations of values for planner {name} (at most {MOST}); sweep fewer")
    return found


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def combinations(
    sweep: Mapping[str, Sequence[Value]], options: Sequence[str], declared: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What a planner with these options is asked for: every combination of the values, the last option varying
    fastest; what it declares itself, where it has none of the options."""
    mine = {key: values for key, values in sweep.items() if key in options}
    if not mine:
        return [dict(one) for one in declared]
    return [dict(zip(mine, values, strict=True)) for values in itertools.product(*mine.values())]
