"""Options as people write them: key=value, values, yes or no. The one reader of these for topologies, planners, models,
back ends and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from antiphon.errors import Invalid, quote

_ANSWERS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_options(texts: Iterable[str], label: str, example: str) -> dict[str, str]:
    """The values of key=value by key, as texts; each key once. `example`: how it is written right."""
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
    """An option's value: a whole number where it is one."""
    digits = text[1:] if text[:1] == "-" else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else text


def parse_yes(value: object, label: str) -> bool:
    """Yes or no: true, yes, 1 or false, no, 0."""
    if isinstance(value, bool):
        return value
    answer = _ANSWERS.get(str(value).lower()) if isinstance(value, str | int) else None
    if answer is None:
        raise Invalid(f"{label}: expected true or false, got {quote(value)}")
    return answer


def name_with_options(name: str, options: Mapping[str, object]) -> str:
    """ring pieces=4."""
    return " ".join([name, *(f"{key}={value}" for key, value in options.items())])
