"""A machine as people name it: name:key=value,key=value."""

from __future__ import annotations

import re

from antiphon.core.topology import Topology
from antiphon.errors import quote
from antiphon.options import parse_options, plain_value
from antiphon.registry import call, find

Options = dict[str, int | str]
UNITS = re.compile("(.*_)?(bandwidth|latency)|nic|uplink")  # options that have a unit: a number alone says nothing


def machine_of(spec: str, separator: str = ",") -> Topology:
    """The machine of the catalogue that a text names; inside another spec options are parted by "+" instead."""
    name, _, tail = spec.partition(":")
    make = find("topology", name).load()
    found: Topology = call("topology", name, make, options(spec, tail, separator))
    return found


def options(spec: str, tail: str, separator: str = ",") -> Options:
    """The options behind the colon."""
    # a "+" parts options only where a key follows: it also stands in values such as 2x(3+5)
    parts = re.split(rf"{re.escape(separator)}(?=[a-z_]+=)", tail) if separator != "," else tail.split(",")
    given = parse_options(parts if tail else (), f"topology {quote(spec)}", f"name:key=value{separator}key=value")
    return {key: value if UNITS.fullmatch(key) else plain_value(value) for key, value in given.items()}
