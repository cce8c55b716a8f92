"""Parse a machine's name with options: name:key=value,key=value."""

from __future__ import annotations

import os
import re

from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote
from antiphon.options import parse_options, plain_value
from antiphon.registry import call, find, table

Options = dict[str, int | str]
# Options whose values have a unit. They stay texts, so that their parsers can refuse a number without a unit.
KEYS_WITH_UNITS = re.compile("(.*_)?(bandwidth|latency)|nic|uplink")


def machine_of(spec: str, separator: str = ",") -> Topology:
    """Return the machine that a text names: one of the catalogue with its options, or a file.

    `separator`: between options. It is "+" where the name is itself an option's value: cluster:box=torus:dims=2x4+...
    """
    if is_file(spec):
        from antiphon.core.serialize import load_topology

        return load_topology(spec)
    name, _, tail = spec.partition(":")
    _refuse_file(name, tail)
    make = find("topology", name).load()  # the function of table.py, such as regular.ring
    machine: Topology = call("topology", name, make, parse_spec_options(spec, tail, separator))
    return machine


def is_file(spec: str) -> bool:
    """Return whether a text names a file of a topology rather than a machine of the catalogue."""
    return spec.endswith((".json", ".json.gz")) or "/" in spec.partition(":")[0]


def _refuse_file(name: str, tail: str) -> None:
    """Raise Invalid, with advice, if the name is that of a file rather than of a machine."""
    if not os.path.exists(name) or name in table("topology"):
        return
    if tail and name.endswith((".json", ".json.gz")):
        raise Invalid(f"{name}: a file takes no options; leave {quote(':' + tail)} out")
    raise Invalid(f"{name}: no machine of the catalogue; if the file there holds one, write ./{name}")


def parse_spec_options(spec: str, tail: str, separator: str = ",") -> Options:
    """Return the options behind the colon (`tail`, as parted by `separator`) of a machine's name `spec`."""
    # a "+" parts options only where a key follows: it also stands in values such as 2x(3+5)
    texts = re.split(rf"{re.escape(separator)}(?=[a-z_]+=)", tail) if separator != "," else tail.split(",")
    parsed = parse_options(texts if tail else (), f"topology {quote(spec)}", f"name:key=value{separator}key=value")
    return {key: value if KEYS_WITH_UNITS.fullmatch(key) else plain_value(value) for key, value in parsed.items()}
