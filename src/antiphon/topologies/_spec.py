"""A machine as people name it: name:key=value,key=value."""

from __future__ import annotations

import re

from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote
from antiphon.registry import call, find

Options = dict[str, int | str]
UNITS = re.compile("(.*_)?(bandwidth|latency)|nic|uplink")  # options that have a unit: a number alone says nothing


def made(spec: str, separator: str = ",") -> Topology:
    """The machine of the catalogue that a text names; inside another spec options are parted by "+" instead."""
    name, _, tail = spec.partition(":")
    make = find("topology", name).load()
    found: Topology = call("topology", name, make, options(spec, tail, separator))
    return found


def options(spec: str, tail: str, separator: str = ",") -> Options:
    """The options behind the colon."""
    found: Options = {}
    # a "+" parts options only where a key follows: it also stands in values such as 2x(3+5)
    parts = re.split(rf"{re.escape(separator)}(?=[a-z_]+=)", tail) if separator != "," else tail.split(",")
    for part in parts if tail else []:
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise Invalid(f"topology {quote(spec)}: expected name:key=value{separator}key=value")
        if key in found:
            raise Invalid(f"topology {quote(spec)}: {key} is given twice")
        found[key] = value if UNITS.fullmatch(key) else plain_value(value)
    return found


def plain_value(text: str) -> int | str:
    """An option's value: a whole number where it is one."""
    digits = text[1:] if text[:1] == "-" else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else text
