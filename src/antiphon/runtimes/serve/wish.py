"""By which wire the environment wants messages to go (docs/wires.md)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from antiphon.errors import Invalid, quote
from antiphon.runtimes.serve.interface import interface_address, interface_addresses, own_address

VARIABLE = "ANTIPHON_WIRE"
_SOCKETS, _FABRIC = "sockets", "fabric"
_OVER_TCP = ("tcp", "sockets", "udp", "net")  # providers whose cards have addresses of IP: over_tcp in fabric_rails.c


@dataclass(frozen=True)
class Wish:
    """`told`: what all processes must want alike: "" for shared memory or else sockets, "sockets", or "fabric" with its
    provider."""

    told: str
    provider: str = ""
    places: str = ""

    @property
    def fabric(self) -> bool:
        return self.told.startswith(_FABRIC)

    @property
    def near(self) -> bool:
        """Whether processes of one host may share memory."""
        return not self.told


def wish() -> Wish:
    text = os.environ.get(VARIABLE, "")
    kind, _, rest = text.partition(":")
    provider, _, places = rest.partition(":")
    if not text:
        return Wish("")
    if text == _SOCKETS:
        return Wish(_SOCKETS)
    if kind == _FABRIC and len(provider) < 64 and (provider or not rest):
        return Wish(f"{_FABRIC}:{provider}", provider, _places(provider, places))
    raise Invalid(
        f"{VARIABLE}: expected sockets, fabric, fabric:PROVIDER or fabric:PROVIDER:CARD,CARD, got {quote(text)}; "
        "left out, it is shared memory within a host, and sockets between hosts"
    )


def agreed(told: list[str]) -> Wish:
    """What follows from what all want; it says no places. Invalid where some want another fabric, or none."""
    for rank, one in enumerate(told):
        wanted = next((r for r, other in enumerate(told) if Wish(other).fabric and other != one), None)
        if wanted is not None:
            raise Invalid(
                f"rank {wanted} is to go by {quote(told[wanted])}, rank {rank} by {quote(one) if one else 'sockets'}; "
                f"set {VARIABLE} alike for all"
            )
    return Wish(told[0] if all(one == told[0] for one in told) else _SOCKETS)


def _places(provider: str, places: str) -> str:
    """Cards over TCP are known by addresses; the others by their own names."""
    if not any(part in _OVER_TCP for part in provider.split(";")):
        return places
    if places:
        return ",".join(interface_address(name) for name in places.split(","))
    return ",".join(interface_addresses() or [own_address()])
