"""Send texts between authenticated processes, and check their contents; for the start of a group (rendezvous, mesh).

A text is sent as its length (8 bytes, little-endian) and its UTF-8 bytes. Memory grows only as bytes arrive, so a false
length cannot exhaust it. `end` is a time of `time.monotonic()`; `sender` names the process in errors.
"""

from __future__ import annotations

import base64
import errno
import json
import socket
import struct
import time
from typing import Any

from antiphon.errors import Invalid

_LENGTH = struct.Struct("<Q")
_MAX_BYTES = 2**30  # of a text; a table for a thousand ranks takes a hundredth of it
_CHUNK = 1 << 20  # bytes per read


def send_text(connection: socket.socket, text: str, end: float) -> None:
    """Send a text; raise TimeoutError after `end`, OSError if the receiver has ended."""
    data = text.encode()
    if len(data) > _MAX_BYTES:
        raise Invalid(
            f"{len(data)} bytes are to be handed to the other processes, and 2^30 can be; use a table with fewer plans"
        )
    connection.settimeout(_seconds_until(end))
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def receive_text(connection: socket.socket, end: float, sender: str) -> str:
    """Receive a text; raise TimeoutError after `end`, OSError if the sender has ended, Invalid if it is no text."""
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size, end))
    if length > _MAX_BYTES:
        raise no_message(sender, f"a length of {length} bytes")
    data = _receive_bytes(connection, length, end)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise no_message(sender, str(error)) from None


def parse_json(text: str, sender: str) -> Any:
    """Parse the JSON that a process sent; raise Invalid if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise no_message(sender, str(error)) from None


def texts_of(text: str, count: int, sender: str) -> list[str]:
    """Return the `count` texts of a JSON list."""
    texts = parse_json(text, sender)
    if not isinstance(texts, list) or len(texts) != count or not all(isinstance(item, str) for item in texts):
        raise no_message(sender, f"expected {count} texts")
    return texts


def fields_of(text: str, sender: str) -> dict[str, Any]:
    """Return the fields of a JSON object."""
    fields = parse_json(text, sender)
    if not isinstance(fields, dict):
        raise no_message(sender, "expected names and values")
    return fields


def hex_of(text: str, sender: str) -> bytes:
    """Return the bytes of a hexadecimal text."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise no_message(sender, str(error)) from None


def text_of(data: bytes) -> str:
    """Return bytes as base64 text."""
    return base64.b64encode(data).decode("ascii")


def base64_of(text: Any) -> bytes:
    """Return the bytes of a base64 text of process 0, as `text_of` writes it."""
    try:
        return base64.b64decode(text)
    except (TypeError, ValueError) as error:
        raise no_message("process 0", str(error)) from None


def no_message(sender: str, why: str) -> Invalid:
    """Return the error for a message that cannot be understood."""
    why = " ".join(why.split())[:120]
    return Invalid(
        f"{sender} sent what is no message of this program ({why}); do all run the same version of Antiphon?"
    )


def _receive_bytes(connection: socket.socket, count: int, end: float) -> bytearray:
    """Return the next `count` bytes. ConnectionResetError if the connection ends before."""
    data = bytearray()
    while len(data) < count:
        connection.settimeout(_seconds_until(end))
        chunk = connection.recv(min(count - len(data), _CHUNK))
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, "it closed its connection")
        data += chunk
    return data


def _seconds_until(end: float) -> float:
    """Return the seconds until `end`. TimeoutError if it is over, as sockets do not wait at 0."""
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
