"""The addresses of network interfaces that the environment names, and of this host."""

from __future__ import annotations

import os
import socket
import struct

from antiphon.errors import Invalid, quote

NAMES = ("ANTIPHON_INTERFACE", "GLOO_SOCKET_IFNAME")
_SIOCGIFADDR = 0x8915
_ELSEWHERE = "192.0.2.1"  # an address that is nobody's (RFC 5737): the route to it is the usual one


def interface_addresses() -> list[str]:
    """Of the interfaces in $ANTIPHON_INTERFACE, with commas between: one rail each; else of the first one in
    $GLOO_SOCKET_IFNAME; none where neither is set."""
    for variable, most in zip(NAMES, (None, 1), strict=True):
        names = [name.strip() for name in os.environ.get(variable, "").split(",")[:most]]
        if any(names):
            return [interface_address(name) for name in names if name]
    return []


def interface_address(name: str) -> str:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            found = fcntl.ioctl(one.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise Invalid(f"{quote(name)}: no interface with an IPv4 address ({error.strerror}); see ip addr") from None
    return socket.inet_ntoa(found[20:24])


def own_address() -> str:
    """The address that this host has towards others; the loopback's where it has none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect((_ELSEWHERE, 9))
            return str(one.getsockname()[0])
        except OSError:
            return "127.0.0.1"
