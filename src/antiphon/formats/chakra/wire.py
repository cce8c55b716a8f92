"""Encode and decode the Protocol Buffers wire format, as far as Chakra needs it: integers, bytes, nested messages.

The format is documented at https://protobuf.dev/programming-guides/encoding. A message is a list of fields: a key (the
field's number and type), then a number in groups of 7 bits (varint), 4 or 8 bytes, or a length and its bytes. Field
1 with the number 300 is 08 ac 02. Functions up to `delimited` encode, those after it decode, and raise Invalid with the
byte of a fault. Written by hand: it is smaller than the dependency would be, and a file from elsewhere is checked
against limits before memory is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from antiphon.errors import Invalid

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types of protocol buffers
_MASK64 = 2**64 - 1
_MAX_VARINT = 10  # bytes of a number


def varint(value: int) -> bytes:
    """Encode a whole number from -2^63 to 2^64 - 1; a negative one as its 64 bits.

    Groups of 7 bits, the lowest first; the top bit of a byte marks that more follow.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    value &= _MASK64
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Encode a field with an integer; 0 is omitted, as the default. A field begins with its number and wire type."""
    return varint(field << 3 | VARINT) + varint(value) if value else b""


def octets(field: int, value: bytes) -> bytes:
    """Encode a field with bytes, a text or a message."""
    return varint(field << 3 | BYTES) + varint(len(value)) + value


def packed(field: int, values: Iterable[int]) -> bytes:
    """Encode a field with a list of whole numbers; b"" if the list is empty."""
    body = b"".join(map(varint, values))
    return octets(field, body) if body else b""


def delimited(message: bytes) -> bytes:
    """Encode a message of a file of several: its length, then the message."""
    return varint(len(message)) + message


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number at `at`, and where it ends."""
    value = shift = 0
    for index in range(at, min(end, at + _MAX_VARINT)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value > _MASK64:
                break
            return value, index + 1
        shift += 7
    raise Invalid(f"byte {at}: the number there has no end, or is longer than 64 bits")


def messages(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each message of a file begins and ends."""
    at = 0
    while at < len(data):
        length, begin = read_varint(data, at, len(data))
        at = begin + length
        if at > len(data):
            raise Invalid(f"byte {begin}: a message of {length} bytes ends beyond the file's {len(data)}")
        yield begin, at


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: (field, type, value, end).

    Of type VARINT the value is the number; of other types it is where the bytes begin, and `end` is where they end.
    """
    while at < end:
        key, begin = read_varint(data, at, end)
        field, kind = key >> 3, key & 7
        if not 0 < field < 2**29:  # the limit of protocol buffers
            raise Invalid(f"byte {at}: there is no field {field}")
        if kind == VARINT:
            value, at = read_varint(data, begin, end)
            yield field, kind, value, at
            continue
        if kind == BYTES:
            length, begin = read_varint(data, begin, end)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise Invalid(f"byte {at}: a field of type {kind}, which nobody writes any more")
        at = begin + length
        if at > end:
            raise Invalid(f"byte {begin}: {length} bytes reach beyond the end of their message")
        yield field, kind, begin, at


def numbers(data: bytes, kind: int, value: int, end: int) -> Iterator[int]:
    """Yield the numbers of a field that may repeat: its only number, or those packed in its bytes."""
    if kind == VARINT:
        yield value
        return
    while value < end:
        number_read, value = read_varint(data, value, end)
        yield number_read


def text(data: bytes, begin: int, end: int) -> str:
    """Decode UTF-8."""
    try:
        return data[begin:end].decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"byte {begin + error.start}: a text that is not UTF-8") from None


def signed(value: int) -> int:
    """Return the signed number that was written as its 64 bits."""
    return value - 2**64 if value >= 2**63 else value


def unzigzag(value: int) -> int:
    """Decode a signed number of the zigzag encoding: 0, 1, 2, 3 stand for 0, -1, 1, -2."""
    return (value >> 1) ^ -(value & 1)


def unpack(form: str, data: bytes, begin: int, end: int) -> float | int:
    """Decode a number of fixed length; Invalid if there are more or fewer bytes."""
    if end - begin != struct.calcsize(form):
        raise Invalid(f"byte {begin}: {end - begin} bytes, where {struct.calcsize(form)} make up the number")
    result: float | int = struct.unpack_from(form, data, begin)[0]
    return result
