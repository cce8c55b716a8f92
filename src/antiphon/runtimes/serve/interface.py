"""The address of a network interface that the environment names."""

from __future__ import annotations

import os
import socket
import struct

from antiphon.errors import Invalid, quote

NAMES = ("ANTIPHON_INTERFACE", "GLOO_SOCKET_IFNAME")
_SIOCGIFADDR = 0x8915


def interface_address() -> str:
    """Of the first interface in $ANTIPHON_INTERFACE, else in $GLOO_SOCKET_IFNAME; "" where neither is set."""
    name = next((os.environ[one] for one in NAMES if os.environ.get(one)), "").partition(",")[0].strip()
    if not name:
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            found = fcntl.ioctl(one.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise Invalid(f"{quote(name)}: no interface with an IPv4 address ({error.strerror}); see ip addr") from None
    return socket.inet_ntoa(found[20:24])
