"""Read the values of options to try, which replace the sweep that a planner's entry declares.

A planner's entry may declare option sets to try, such as pieces=1, 4, 16. The user may sweep others: "k=2:64" is every
whole number from 2 to 64, "k=2,4,8" a list, "k=factors" the divisors of the number of ranks from 2 on. Planners that
have the option try every combination of the values, at most MAX_VALUES; those that lack it keep their declared sets.

Example: with k=2,4 and fold=yes,no planner recmult, which has both options, tries (2, yes), (2, no), (4, yes) and
(4, no); planner kring, which has only k, tries 2 and 4.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from antiphon.errors import Invalid, quote
from antiphon.options import parse_options, plain_value
from antiphon.registry import Entry, PlannerCapabilities, find

FACTORS = "factors"
MAX_VALUES = 4096  # of one option, and combinations of values for one planner
FORMS = "k=2:64, k=2,4,8 or k=factors"

Value = int | float | str | bool
Sweep = Mapping[str, Any]  # option -> its values: a text as users write it, one value, or several


def read_sweep(texts: Iterable[str]) -> dict[str, str]:
    """Parse --sweep k=2:64, each option once."""
    return parse_options(texts, "--sweep", f"an option and its values, parted by commas ({FORMS})")


def values_of(values: Any, name: str, ranks: int) -> tuple[Value, ...]:
    """Return the values of one option, each once, in order. Errors begin with `name`.

    A text is a list separated by commas: values, ranges of whole numbers with both ends ("2:64"), and "factors": the
    divisors of the number of ranks from 2 on.
    """
    items: Iterable[Any]
    if isinstance(values, str):
        items = values.split(",")
    elif isinstance(values, Iterable) and not isinstance(values, bytes | Mapping):
        items = values
    else:
        items = [values]
    distinct: dict[tuple[type, Value], Value] = {}  # 1 and True are different values
    for item in items:
        for value in _expand_item(item, name, ranks):
            distinct.setdefault((type(value), value), value)
            if len(distinct) > MAX_VALUES:
                raise Invalid(f"{name}: more than {MAX_VALUES} values; sweep fewer")
    if not distinct:
        raise Invalid(f"{name}: has no values; write for example {FORMS}")
    return tuple(distinct.values())


def _expand_item(item: Any, name: str, ranks: int) -> Iterable[Value]:
    """Return the values of one item of a list, such as 4, "2:64" or "factors"."""
    if not isinstance(item, str):
        if hasattr(item, "item") and not isinstance(item, type):  # a number of NumPy's, but not its type: np.int64
            item = item.item()
        if not isinstance(item, int | float | bool) or (isinstance(item, float) and not math.isfinite(item)):
            raise Invalid(f"{name}: expected values such as {FORMS}; got {quote(item)}")
        return (item,)
    text = item.strip()
    if not text:
        raise Invalid(f"{name}: there is nothing between two commas, or at an end")
    if text == FACTORS:
        return [k for k in range(2, ranks + 1) if ranks % k == 0]
    if ":" not in text:
        return (plain_value(text),)
    match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if match is None:
        raise Invalid(f"{name}: cannot read the range {quote(text)}; write it as 2:64, with both ends")
    low, high = int(match[1]), int(match[2])
    if high < low:
        raise Invalid(f"{name}: the range {text} is empty; write the lower end first")
    # one value more than MAX_VALUES suffices for the caller to refuse the range
    return range(low, min(high, low + MAX_VALUES) + 1)


def resolve_sweep(sweep: Sweep | None, planners: Sequence[str], ranks: int) -> dict[str, tuple[Value, ...]]:
    """Return the values of every swept option; Invalid if no planner has the option, or there are too many values."""
    if sweep is not None and not isinstance(sweep, Mapping):
        raise Invalid(f'sweep: expected options and their values, such as {{"k": range(2, 65)}}; got {quote(sweep)}')
    values = {}
    for key, listed_values in (sweep or {}).items():
        options_of = {name: find("planner", name).options for name in planners}
        if not any(key in options for options in options_of.values()):
            sweepable = sorted({option for options in options_of.values() for option in options})
            if len(planners) == 1:
                problem = f"planner {planners[0]} has no option"
            else:
                problem = f"none of the planners {_list_names(planners)} has the option"
            available = f"to sweep there are: {', '.join(sweepable)}" if sweepable else "there is none to sweep"
            raise Invalid(f"sweep: {problem} {quote(key)}; {available}")
        values[key] = values_of(listed_values, f"sweep of {key}", ranks)
    for name in planners:
        # check the number of combinations before they are made
        count = math.prod(len(v) for key, v in values.items() if key in find("planner", name).options)
        if count > MAX_VALUES:
            raise Invalid(
                f"sweep: {count} combinations of values for planner {name} (at most {MAX_VALUES}); sweep fewer"
            )
    return values


def _list_names(names: Sequence[str]) -> str:
    """Return the first names in words."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def list_combinations(
    sweep: Mapping[str, Sequence[Value]], planner: Entry[PlannerCapabilities]
) -> list[dict[str, Any]]:
    """Return the option sets to try of a planner: every combination of the values, the last option varying fastest.

    If the planner has no swept option: those that its entry declares.
    """
    swept = {key: values for key, values in sweep.items() if key in planner.options} if sweep else {}
    if not swept:
        return [dict(options) for options in planner.can.sweep]
    return [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]
