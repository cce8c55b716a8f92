"""Program files and books with numbers of one's own in them, and right checksums: what a hostile file looks like."""

from __future__ import annotations

import struct
import zlib

TABLES = {
    "points": 16, "bases": 24, "classes": 24, "slots": 4, "operations": 32, "parts": 12, "waits": 4, "finish": 24,
}  # fmt: skip
HEAD = {
    "kind": 32, "ranks": 36, "members": 40, "roots": 44, "blocks": 48, "channels": 52, "variants": 56, "label": 60,
    "denominator": 64, "buffer_weight": 72, "pre": 80, "post": 84, "wants": 88, "wanted": 92,
}  # fmt: skip
ENTRY = 24  # bytes of an entry of a directory: u64 begin, u64 bytes, u32 checksum, u32 0


def number(data: bytes | bytearray, at: int, form: str = "I") -> int:
    return int(struct.unpack_from("<" + form, data, at)[0])


class Crafted:
    """A program file that is changed in place; `file` gives it with its checksums mended."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def head(self, field: str, value: int) -> Crafted:
        wide = field in ("denominator", "buffer_weight")
        struct.pack_into("<Q" if wide else "<I", self.data, HEAD[field], value)
        return self

    def weight(self, block: int, value: int) -> Crafted:
        members, roots = number(self.data, HEAD["members"]), number(self.data, HEAD["roots"])
        at = 96 + (4 * members + 7) // 8 * 8 + (4 * roots + 7) // 8 * 8 + 8 * block
        struct.pack_into("<q", self.data, at, value)
        return self

    def entry(self, rank: int, in_place: bool) -> int:
        ranks, head = number(self.data, HEAD["ranks"]), number(self.data, 16, "Q")
        return head - ENTRY * (2 * ranks - (ranks if in_place else 0) - rank)

    def section(self, rank: int, in_place: bool = False) -> int:
        """Where it begins."""
        return number(self.data, self.entry(rank, in_place), "Q")

    def sides(self, rank: int, source: int, target: int, in_place: bool = False) -> Crafted:
        """What the section says its buffers weigh."""
        struct.pack_into("<QQ", self.data, self.section(rank, in_place) + 8, source, target)
        return self

    def table(self, name: str, rank: int, in_place: bool = False) -> tuple[int, int]:
        """Where a table of a section begins, and how many rows it has."""
        begin = self.section(rank, in_place)
        counts = struct.unpack_from("<8I", self.data, begin + 24)
        at = begin + 56
        for (one, size), count in zip(TABLES.items(), counts, strict=True):
            if one == name:
                return at, count
            at += (size * count + 7) // 8 * 8
        raise KeyError(name)

    def put(
        self, name: str, row: int, offset: int, form: str, *values: int, rank: int = 0, place: bool = False
    ) -> Crafted:
        """Numbers of a row of a table, from a byte of it on; row -1: all rows."""
        at, count = self.table(name, rank, place)
        for one in range(count) if row < 0 else [row]:
            assert one < count
            struct.pack_into("<" + form, self.data, at + TABLES[name] * one + offset, *values)
        return self

    @property
    def file(self) -> bytes:
        return mended(self.data)


def mended(data: bytes | bytearray) -> bytes:
    """A program file with right checksums, as far as it has a head and sections."""
    body = bytearray(data)
    head, ranks = number(body, 16, "Q"), number(body, HEAD["ranks"])
    if not 96 <= head <= len(body):
        return bytes(body)
    for at in range(max(head - 2 * ENTRY * ranks, 96), head - ENTRY + 1, ENTRY):
        begin, size = struct.unpack_from("<QQ", body, at)
        if begin and begin + size <= len(body):
            struct.pack_into("<I", body, at + 16, zlib.crc32(body[begin : begin + size]))
    struct.pack_into("<I", body, 12, zlib.crc32(body[16:head]))
    return bytes(body)


def in_book(book: bytes, program: int, changed: bytes) -> bytes:
    """A book in which a program file is another of the same length; all checksums are right."""
    body = bytearray(book)
    head, programs = number(body, 16, "Q"), number(body, 40)
    at = head - ENTRY * (programs - program)
    begin, size = struct.unpack_from("<QQ", body, at)
    assert size == len(changed)
    body[begin : begin + size] = changed
    struct.pack_into("<I", body, at + 16, zlib.crc32(changed))
    struct.pack_into("<I", body, 12, zlib.crc32(body[16:head]))
    return bytes(body)


def program_of(book: bytes, program: int) -> bytes:
    at = number(book, 16, "Q") - ENTRY * (number(book, 40) - program)
    begin, size = struct.unpack_from("<QQ", book, at)
    return bytes(book[begin : begin + size])
