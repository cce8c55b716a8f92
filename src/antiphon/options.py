"""Options of topologies, planners, models, back ends and runtimes: how they are declared, and how people write them.

An option is declared once, in the signature of the function that takes it: its type and default there, everything else
in an `Option`. Listings, errors and `registry.call` read the signature.

    def ring(request: Request, *, directions: Annotated[int, Option("2: half the data each way", choices=(1, 2))] = 2):
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

from antiphon.errors import Invalid, quote, unknown
from antiphon.units import exact

_ANSWERS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Option:
    """What the type and the default of an option do not say."""

    about: str  # what it does, for listings; also what happens by default, if the default is None
    unit: str = ""  # the unit of a number
    minimum: int | None = None  # the least number that is allowed; None: no limit
    maximum: int | None = None  # the greatest number that is allowed; None: no limit
    choices: tuple[str | int, ...] = ()

    @property
    def range_text(self) -> str:
        """The permitted values as text: "one of near, far", "1 or more", "0 to 1"."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        low = None if self.minimum is None else str(self.minimum)
        return "" if low is None else f"{low} or more" if self.maximum is None else f"{low} to {self.maximum}"

    def check(self, name: str, value: object, declared_type: object) -> object:
        """Return the value, parsed if it is text of a bool or float; Invalid if type, range or choices forbid it.

        None stands for the default.
        """
        # int | None: int and None
        kinds = get_args(declared_type) if isinstance(declared_type, types.UnionType) else (declared_type,)
        if value is None:
            return value
        if self.choices:
            if value not in self.choices or isinstance(value, bool):
                raise unknown(f"value of option {name}", value, map(str, self.choices))
        elif bool in kinds and str not in kinds:
            return parse_yes(value, f"option {name}")
        elif float in kinds or (int in kinds and str not in kinds):
            self._check_number(name, value, is_whole=float not in kinds)
            if isinstance(value, str) and str not in kinds:  # as the command line passes 0.5
                return float(Fraction(value))
        return value

    def _check_number(self, name: str, value: object, is_whole: bool) -> None:
        """Raise Invalid unless the value is a number in the range; a whole one must be an int, not a text."""
        try:
            # `exact` refuses texts such as 1e999999999, whose fraction would fill the memory
            number = exact(value) if isinstance(value, str) else Fraction(str(value))  # a bool raises ValueError
        except (Invalid, ValueError, ZeroDivisionError):
            number = None
        low, high = self.minimum, self.maximum
        in_range = number is not None and (low is None or number >= low) and (high is None or number <= high)
        if not in_range or (is_whole and not isinstance(value, int)):
            limits = f" {'of' if self.maximum is None else 'from'} {self.range_text}" if self.range_text else ""
            raise Invalid(
                f"option {name}: expected {'a whole number' if is_whole else 'a number'}{limits}, got {quote(value)}"
            )


def parse_options(texts: Iterable[str], label: str, example: str) -> dict[str, str]:
    """Read key=value texts into a dictionary of texts; each key may occur once. `example`: shown in errors."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise Invalid(f"{label}: expected {example}, got {quote(text)}")
        if key in values:
            raise Invalid(f"{label}: {key} is given twice; leave one of them out")
        values[key] = value
    return values


def plain_value(text: str) -> int | str:
    """Return an option's value as an int if it is a whole number, else as it is."""
    digits = text[1:] if text[:1] == "-" else text
    # at most 18 digits, which 64 bits hold
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else text


def parse_yes(value: object, label: str) -> bool:
    """Read yes or no: true, yes, 1 or false, no, 0."""
    if isinstance(value, bool):
        return value
    answer = _ANSWERS.get(str(value).lower()) if isinstance(value, str | int) else None
    if answer is None:
        raise Invalid(f"{label}: expected true or false, got {quote(value)}")
    return answer


def name_with_options(name: str, options: Mapping[str, object]) -> str:
    """Write a name with options: ring pieces=4."""
    return " ".join([name, *(f"{key}={value}" for key, value in options.items())])
