"""Read and write profiles: files of measured or assumed figures that replace nominal figures of a topology.

`Profile.on(topology)` returns the topology with the profile's latencies and bandwidths; models read the other figures.
The file (all fields except the first two are optional):

    {"format": "antiphon-profile", "version": 1, "name": "my cluster",
     "alpha": {"nvlink": "0.7us", "ib": 2e-6},
     "bandwidth_factor": {"ib": 0.92},
     "memory_bandwidth": "450GB/s",
     "incast": {"ib": {"epsilon": 3e-11, "w_t": 9}},
     "gamma": 1.5e-10, "delta": 4.7e-11,
     "loggp": {"device_radix": 8, "node_radix": 1, "levels": [
       {"within": "host", "L": 1.5e-5, "o_s": 4e-6, "o_r": 4e-6, "g": 1.3e-5, "G": 1.2e-11},
       {"sizes": [1, 65536], "L": [2e-5, 3e-5], "o_s": 4e-6, "o_r": 4e-6, "g": 1.3e-5, "G": 4e-11}]},
     "lowerings": {"copies": {"start": 5e-6, "step": 5e-6, "copy": 2e-6, "share": 0.97}}}

The folder `profiles` has the profiles that come with Antiphon; `as_profile` finds them by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from antiphon.core.files import name_of, read_bytes, reading, within, write_bytes
from antiphon.core.jsontext import check_keys, decode, layout
from antiphon.core.serialize.schemas import FileHead
from antiphon.core.topology import LinkType, Topology
from antiphon.cost.figures import LogGP, LogGPRow
from antiphon.cost.lowering_costs import LoweringCosts, LoweringRow, check_lowering
from antiphon.errors import Invalid, quote
from antiphon.units import exact, parse_bandwidth, parse_seconds, plain, stored_bandwidth

FORMAT, VERSION = "antiphon-profile", 1
MEMORY_BANDWIDTH = Fraction(100 * 10**9)  # bytes per second that a rank copies or combines locally; an assumption
MAX_FACTOR = 1000  # greatest bandwidth_factor; the least is 1 / MAX_FACTOR
MAX_FIELDS = 2**14  # of a file
MAX_SECONDS_PER_BYTE = 1.0  # no real machine is slower
MAX_SENDERS = 2**31  # w_t is less
SHIPPED = Path(__file__).parent / "profiles"  # profiles that come with the package


@dataclass(frozen=True)
class Incast:
    """The slowdown of a link over which many ranks send to one receiver at the same time."""

    epsilon: float = 0.0  # seconds per byte that each sender beyond `w_t` adds
    w_t: int = 0  # senders that cost nothing

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _per_byte(self.epsilon, "epsilon"))
        if isinstance(self.w_t, bool) or not isinstance(self.w_t, int) or not 0 <= self.w_t < MAX_SENDERS:
            raise Invalid(f"w_t: expected a whole number of senders from 0 on, got {quote(self.w_t)}")


def _per_byte(value: object, label: str) -> float:
    """Return seconds per byte, checked for range."""
    seconds = exact(value, label)
    if not 0 <= seconds <= MAX_SECONDS_PER_BYTE:
        raise Invalid(f"{label}: expected seconds per byte, from 0 to {MAX_SECONDS_PER_BYTE:g}, got {quote(value)}")
    return float(seconds)


@dataclass(frozen=True)
class Profile:
    """Figures by kind of link that override those of a topology, and figures of ranks; the defaults add no time."""

    name: str = ""
    alpha: Mapping[str, float] = field(default_factory=dict)  # kind of link -> latency in seconds
    # kind of link -> share of the nominal bandwidth that is reached; a shared limit takes the greatest of its links
    bandwidth_factor: Mapping[str, Fraction] = field(default_factory=dict)
    memory_bandwidth: Fraction = MEMORY_BANDWIDTH  # bytes per second of copies within a rank
    incast: Mapping[str, Incast] = field(default_factory=dict)  # by kind of link; for models genmodel and flows
    gamma: float = 0.0  # seconds per byte that a rank reduces
    delta: float = 0.0  # seconds per byte that a rank reads from or writes to memory while it combines
    loggp: LogGP | None = None  # for model loggp
    lowerings: Mapping[str, LoweringCosts] = field(default_factory=dict)  # by name of the lowering, for model lowering

    def __post_init__(self) -> None:
        figures = (("alpha", self.alpha), ("bandwidth_factor", self.bandwidth_factor), ("incast", self.incast))
        for key, by_kind in figures:
            if not isinstance(by_kind, Mapping):
                raise Invalid(
                    f'{key}: expected figures by kind of link, such as {{"nvlink": ...}}, got {quote(by_kind)}'
                )
        alpha = {kind: parse_seconds(value, f"alpha.{kind}") for kind, value in self.alpha.items()}
        factor = {kind: exact(value, f"bandwidth_factor.{kind}") for kind, value in self.bandwidth_factor.items()}
        for kind, value in factor.items():
            if not Fraction(1, MAX_FACTOR) <= value <= MAX_FACTOR:
                raise Invalid(f"bandwidth_factor.{kind}: expected 1/{MAX_FACTOR} to {MAX_FACTOR}, got {float(value)}")
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "bandwidth_factor", factor)
        memory = parse_bandwidth(self.memory_bandwidth, "memory_bandwidth")
        object.__setattr__(self, "memory_bandwidth", memory)
        for kind, incast in self.incast.items():
            if not isinstance(incast, Incast):
                raise Invalid(f"incast.{kind}: expected Incast(epsilon, w_t), got {quote(incast)}")
        object.__setattr__(self, "incast", dict(self.incast))
        object.__setattr__(self, "gamma", _per_byte(self.gamma, "gamma"))
        object.__setattr__(self, "delta", _per_byte(self.delta, "delta"))
        if self.loggp is not None and not isinstance(self.loggp, LogGP):
            raise Invalid(f"loggp: expected LogGP(levels, ...), got {quote(self.loggp)}")
        if not isinstance(self.lowerings, Mapping):
            raise Invalid(f"lowerings: expected costs by lowering, got {quote(self.lowerings)}")
        for name, costs in self.lowerings.items():
            if not check_lowering(name, "lowering of a profile") or not isinstance(costs, LoweringCosts):
                raise Invalid(f"lowerings.{name}: expected LoweringCosts(start, step, copy, share), got {quote(costs)}")
        object.__setattr__(self, "lowerings", dict(self.lowerings))

    def on(self, topology: Topology) -> Topology:
        """Return the topology with this profile's latencies and bandwidths. O(links).

        Raises Invalid if the topology lacks all kinds of links that the profile names.
        """
        kinds = {t.kind for t in topology.types}
        named_kinds = {*self.alpha, *self.bandwidth_factor, *self.incast}
        if named_kinds and not named_kinds & kinds:
            raise Invalid(
                f"profile {quote(self.name)}: is for links of kind {', '.join(sorted(named_kinds)[:5])}, but topology "
                f"{topology.name} has only {', '.join(sorted(kinds)[:5])}; name these (fit genmodel --kind KIND)"
            )
        if not {*self.alpha, *self.bandwidth_factor} & kinds:
            return topology
        types = tuple(self._adjust_type(t) for t in topology.types)
        limits = tuple(
            replace(limit, bandwidth=limit.bandwidth * max(self._scale_factor(topology, link) for link in limit.links))
            for limit in topology.limits
        )
        return replace(topology, types=types, limits=limits)

    def _adjust_type(self, link_type: LinkType) -> LinkType:
        """Return a link type with this profile's latency and bandwidth."""
        factor = self.bandwidth_factor.get(link_type.kind, Fraction(1))
        latency = self.alpha.get(link_type.kind, link_type.latency)
        return LinkType(link_type.kind, link_type.bandwidth * factor, latency)

    def _scale_factor(self, topology: Topology, link: int) -> Fraction:
        """Return the share of a link's nominal bandwidth that is reached."""
        return self.bandwidth_factor.get(topology.types[int(topology.link_type[link])].kind, Fraction(1))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of this profile; defaults are left out."""
        rows: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        incasts = {kind: {"epsilon": incast.epsilon, "w_t": incast.w_t} for kind, incast in self.incast.items()}
        factor = {kind: plain(value) for kind, value in self.bandwidth_factor.items()}
        fields = {"name": self.name, "alpha": dict(self.alpha), "bandwidth_factor": factor, "incast": incasts}
        rows |= {key: value for key, value in fields.items() if value}
        if self.memory_bandwidth != MEMORY_BANDWIDTH:
            rows["memory_bandwidth"] = plain(self.memory_bandwidth)
        if self.loggp is not None:
            rows["loggp"] = self.loggp.as_json()
        if self.lowerings:
            rows["lowerings"] = {name: costs.as_json() for name, costs in self.lowerings.items()}
        return rows | {key: value for key, value in (("gamma", self.gamma), ("delta", self.delta)) if value}


class _IncastRow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    epsilon: float | int
    w_t: int = 0


class _ProfileRow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: str = FORMAT
    version: int = VERSION
    name: str = ""
    alpha: dict[str, float | int | str] = {}
    bandwidth_factor: dict[str, float | int | str] = {}
    memory_bandwidth: float | int | str | None = None
    incast: dict[str, _IncastRow] = {}
    gamma: float | int = 0.0
    delta: float | int = 0.0
    loggp: LogGPRow | None = None
    lowerings: dict[str, LoweringRow] = {}


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile; every error is one line with the file and the place in it."""
    with reading(name_of(path)):
        data = read_bytes(path)
        if data.count(b":") > MAX_FIELDS:
            raise Invalid(f"has more than {MAX_FIELDS} fields; a profile has some dozens")
        head = decode(data, FileHead)
        if head.format != FORMAT:
            raise Invalid(f'"format" is {quote(head.format)}; a profile begins with "format": "{FORMAT}", "version": 1')
        if head.version != VERSION or type(head.version) is not int:
            raise Invalid(f"version {quote(head.version)} of {FORMAT} is not known here; version {VERSION} is")
        row = decode(data, _ProfileRow)
        check_keys(data)
        memory = MEMORY_BANDWIDTH if row.memory_bandwidth is None else row.memory_bandwidth
        return Profile(
            row.name,
            alpha={kind: parse_seconds(value, f"alpha.{kind}") for kind, value in row.alpha.items()},
            bandwidth_factor={
                kind: exact(value, f"bandwidth_factor.{kind}") for kind, value in row.bandwidth_factor.items()
            },
            memory_bandwidth=stored_bandwidth(memory, "memory_bandwidth"),
            incast={kind: _parse_incast(kind, incast) for kind, incast in row.incast.items()},
            gamma=_per_byte(row.gamma, "gamma"),
            delta=_per_byte(row.delta, "delta"),
            loggp=row.loggp.read() if row.loggp is not None else None,
            lowerings={name: _parse_costs(name, costs) for name, costs in row.lowerings.items()},
        )


def _parse_costs(name: str, row: LoweringRow) -> LoweringCosts:
    with within(f"lowerings.{name}"):
        return row.read()


def _parse_incast(kind: str, row: _IncastRow) -> Incast:
    with within(f"incast.{kind}"):
        return Incast(float(exact(row.epsilon, "epsilon")), row.w_t)


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write the file that `load_profile` reads as the same profile."""
    write_bytes(path, layout(profile.as_json()) + b"\n")


def shipped_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that come with Antiphon."""
    return tuple(sorted(file.stem for file in SHIPPED.glob("*.json")))


_UNCHANGED = Profile()  # leaves every topology as it is


def as_profile(profile: Profile | str | os.PathLike[str] | None) -> Profile:
    """Return the profile for a Profile, a file, the name of a shipped profile, or None (the topology as it is)."""
    if profile is None:
        return _UNCHANGED
    if isinstance(profile, Profile):
        return profile
    if not isinstance(profile, str | os.PathLike):
        raise Invalid(f"profile: expected a Profile or the name of a file, got {quote(profile)}")
    name = os.fspath(profile)
    if name in shipped_profiles():
        return load_profile(SHIPPED / f"{name}.json")
    # A bare name without an ending, and without such a file, is meant to be that of a shipped profile.
    if name == os.path.basename(name) and not os.path.splitext(name)[1] and not os.path.exists(name):
        raise Invalid(f"profile {quote(name)}: neither a file nor one of ours ({', '.join(shipped_profiles())})")
    return load_profile(profile)
