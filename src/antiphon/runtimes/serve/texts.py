"""Texts between processes that know each other: their length goes before them, and memory is taken as they come."""

from __future__ import annotations

import base64
import json
import socket
import struct
import time
from typing import Any

from antiphon.errors import Invalid

_LENGTH = struct.Struct("<Q")
_MOST = 2**30  # bytes of a text; a table for a thousand ranks takes a hundredth of it
_AT_ONCE = 1 << 20


def send_text(one: socket.socket, text: str, end: float) -> None:
    """TimeoutError after `end`, by the monotonic clock; OSError where the other is gone."""
    data = text.encode()
    if len(data) > _MOST:
        raise Invalid(
            f"{len(data)} bytes are to be handed to the other processes, and 2^30 can be; use a table with fewer plans"
        )
    one.settimeout(_left(end))
    one.sendall(_LENGTH.pack(len(data)))
    one.sendall(data)


def receive_text(one: socket.socket, end: float, who: str) -> str:
    (length,) = _LENGTH.unpack(_exactly(one, _LENGTH.size, end))
    if length > _MOST:
        raise no_message(who, f"a length of {length} bytes")
    data = _exactly(one, length, end)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise no_message(who, str(error)) from None


def parsed(text: str, who: str) -> Any:
    """The JSON that a process sent; Invalid, which names it, where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise no_message(who, str(error)) from None


def texts_of(text: str, count: int, who: str) -> list[str]:
    """So many texts, sent as one."""
    found = parsed(text, who)
    if not isinstance(found, list) or len(found) != count or not all(isinstance(one, str) for one in found):
        raise no_message(who, f"expected {count} texts")
    return found


def fields_of(text: str, who: str) -> dict[str, Any]:
    found = parsed(text, who)
    if not isinstance(found, dict):
        raise no_message(who, "expected names and values")
    return found


def hex_of(text: str, who: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise no_message(who, str(error)) from None


def text_of(data: bytes) -> str:
    """What `base64_of` reads."""
    return base64.b64encode(data).decode("ascii")


def base64_of(text: Any, who: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (TypeError, ValueError) as error:
        raise no_message(who, str(error)) from None


def no_message(who: str, why: str) -> Invalid:
    why = " ".join(why.split())[:120]
    return Invalid(f"{who} sent what is no message of this program ({why}); do all run the same version of Antiphon?")


def _exactly(one: socket.socket, count: int, end: float) -> bytearray:
    found = bytearray()
    while len(found) < count:
        one.settimeout(_left(end))
        part = one.recv(min(count - len(found), _AT_ONCE))
        if not part:
            raise ConnectionResetError(104, "it closed its connection")
        found += part
    return found


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
