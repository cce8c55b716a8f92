"""The catalogue of machines: one small file per family, one line each in table.py."""

from __future__ import annotations

from pathlib import Path

from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote
from antiphon.registry import call, find


def topology(spec: str) -> Topology:
    """A machine as people name it: "dgx1v", "ring:ranks=8,bandwidth=10GB/s", or a JSON file."""
    if spec.endswith((".json", ".json.gz")) or "/" in spec.partition(":")[0]:
        from antiphon.core.serialize import load_topology

        return load_topology(Path(spec))
    name, _, tail = spec.partition(":")
    make = find("topology", name).load()
    options = _options(spec, tail)
    made: Topology = call("topology", name, make, options)
    return made


def _options(spec: str, tail: str) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for part in tail.split(",") if tail else []:
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise Invalid(f"topology {quote(spec)}: expected name:key=value,key=value")
        if key in found:
            raise Invalid(f"topology {quote(spec)}: {key} is given twice")
        found[key] = plain_value(value)
    return found


def plain_value(text: str) -> int | str:
    """An option's value: a whole number where it is one."""
    digits = text[1:] if text[:1] == "-" else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else text
