"""A profile: what was measured or assumed of a kind of machine, kept beside the topology and never inside it.

The file (every field after the first two may be left out):

    {"format": "antiphon-profile", "version": 1, "name": "my cluster",
     "alpha": {"nvlink": "0.7us", "ib": 2e-6},
     "bandwidth_factor": {"ib": 0.92},
     "memory_bandwidth": "450GB/s"}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import msgspec

from antiphon.core.files import check_keys, decode, name_of, read_bytes, reading
from antiphon.core.serialize.schemas import Head
from antiphon.core.topology import LinkType, Topology
from antiphon.errors import Invalid, quote
from antiphon.units import exact, parse_bandwidth, parse_seconds

FORMAT, VERSION = "antiphon-profile", 1
MEMORY_BANDWIDTH = Fraction(100 * 10**9)  # assumed: what a rank copies or combines per second on its own
MOST_FACTOR = 1000


@dataclass(frozen=True)
class Profile:
    """Overrides by kind of link, and the bytes of local work that a rank does per second.

    `alpha`: seconds of latency in place of the topology's. `bandwidth_factor`: what is really reached of the
    nominal bandwidth; a shared limit takes that of its links (the greatest, where it joins several kinds).
    """

    name: str = ""
    alpha: Mapping[str, float] = field(default_factory=dict)
    bandwidth_factor: Mapping[str, Fraction] = field(default_factory=dict)
    memory_bandwidth: Fraction = MEMORY_BANDWIDTH

    def __post_init__(self) -> None:
        for what, given in (("alpha", self.alpha), ("bandwidth_factor", self.bandwidth_factor)):
            if not isinstance(given, Mapping):
                raise Invalid(
                    f'{what}: expected figures by kind of link, such as {{"nvlink": ...}}, got {quote(given)}'
                )
        alpha = {kind: parse_seconds(value, f"alpha.{kind}") for kind, value in self.alpha.items()}
        factor = {kind: exact(value, f"bandwidth_factor.{kind}") for kind, value in self.bandwidth_factor.items()}
        for kind, value in factor.items():
            if not Fraction(1, MOST_FACTOR) <= value <= MOST_FACTOR:
                raise Invalid(f"bandwidth_factor.{kind}: expected 1/{MOST_FACTOR} to {MOST_FACTOR}, got {float(value)}")
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "bandwidth_factor", factor)
        memory = parse_bandwidth(self.memory_bandwidth, "memory_bandwidth")
        object.__setattr__(self, "memory_bandwidth", memory)

    def on(self, topology: Topology) -> Topology:
        """The machine as this profile sees it; Invalid where it speaks of no kind of link that there is. O(links)."""
        kinds = {t.kind for t in topology.types}
        spoken = {*self.alpha, *self.bandwidth_factor}
        if spoken and not spoken & kinds:
            raise Invalid(
                f"profile {quote(self.name)}: speaks of links of kind {', '.join(sorted(spoken)[:5])}, but topology "
                f"{topology.name} has only {', '.join(sorted(kinds)[:5])}; name these"
            )
        if not spoken & kinds:
            return topology
        types = tuple(self._seen(t) for t in topology.types)
        limits = tuple(
            replace(limit, bandwidth=limit.bandwidth * max(self._factor(topology, link) for link in limit.links))
            for limit in topology.limits
        )
        return replace(topology, types=types, limits=limits)

    def _seen(self, kind: LinkType) -> LinkType:
        factor = self.bandwidth_factor.get(kind.kind, Fraction(1))
        return LinkType(kind.kind, kind.bandwidth * factor, self.alpha.get(kind.kind, kind.latency))

    def _factor(self, topology: Topology, link: int) -> Fraction:
        return self.bandwidth_factor.get(topology.types[int(topology.link_type[link])].kind, Fraction(1))


class _Row(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: str = FORMAT
    version: int = VERSION
    name: str = ""
    alpha: dict[str, float | int | str] = {}
    bandwidth_factor: dict[str, float | int | str] = {}
    memory_bandwidth: float | int | str | None = None


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile; every fault is one line that names the file and the place in it."""
    with reading(name_of(path)):
        data = read_bytes(path)
        head = decode(data, Head)
        if head.format != FORMAT:
            raise Invalid(f'"format" is {quote(head.format)}; a profile begins with "format": "{FORMAT}", "version": 1')
        if head.version != VERSION or type(head.version) is not int:
            raise Invalid(f"version {quote(head.version)} of {FORMAT} is not known here; version {VERSION} is")
        row = decode(data, _Row)
        check_keys(data)
        memory = MEMORY_BANDWIDTH if row.memory_bandwidth is None else row.memory_bandwidth
        return Profile(
            row.name,
            {kind: parse_seconds(value, f"alpha.{kind}") for kind, value in row.alpha.items()},
            {kind: exact(value, f"bandwidth_factor.{kind}") for kind, value in row.bandwidth_factor.items()},
            parse_bandwidth(memory, "memory_bandwidth"),
        )


def as_profile(profile: Profile | str | os.PathLike[str] | None) -> Profile:
    """A profile, the file of one, or the default: the topology as it stands."""
    if profile is None:
        return Profile()
    if isinstance(profile, Profile):
        return profile
    if not isinstance(profile, str | os.PathLike):
        raise Invalid(f"profile: expected a Profile or the name of a file, got {quote(profile)}")
    return load_profile(profile)
