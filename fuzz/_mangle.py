"""Files damaged at random: as bytes, JSON, XML, tables of text, and as binary files whose checksums are mended."""

from __future__ import annotations

import gzip
import json
import random
import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

ODD_NUMBERS = (
    "0", "-1", "1", "2", "-0", "0.5", "1e999", "-1e999", "NaN", "Infinity", "1e-400", "255", "65536", "2147483647",
    "2147483648", "-2147483649", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551616",
    "1048576", "1048577", "33554433", "134217729", "1" + "0" * 40, "9" * 400, "1e308", "3.0", "1" + "0" * 5000,
)  # fmt: skip
ODD_TEXTS = (
    "", " ", "\\u0000", "\\ud800", "1/0", "7/3", "-1/2", "25GB/s", "25", "1us", "1e400GB/s", "nan", "inf", "../x", "/",
    "x" * 300, "\udcff", "\\n", "\u202e", "\U0001f600", "9" * 5000, "1e-5000s", "0x10", "1_000", "antiphon-plan",
    "custom", "allreduce", "alltoall", "nvlink",
)  # fmt: skip
WORDS = (0, 1, 2, 3, 7, 8, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**20, 2**24 + 1)
DEEP = (40, 600, 20_000)


# ---- bytes ----


def as_bytes(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(out) + 1)
        way = rng.randrange(8)
        if way == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif way == 1 and at < len(out):
            out[at] = rng.choice([0, 255, 10, 34, 44, 48, 91, 93, 123, 125, 60, 62, rng.randrange(256)])
        elif way == 2:
            out[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 2, 8])))
        elif way == 3:
            del out[at : at + rng.choice([1, 2, 8, 100])]
        elif way == 4:
            del out[at:]
        elif way == 5:
            out[at:at] = out[at : at + rng.choice([1, 8, 64])] * rng.choice([1, 2, 50])
        elif way == 6:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            out[at:at] = other[start : start + rng.choice([4, 40, 400])]
        elif at + 4 <= len(out):
            out[at : at + 4] = struct.pack("<I", rng.choice(WORDS))
    return bytes(out)


def packed(rng: random.Random, data: bytes) -> bytes:
    """Compressed, and at times damaged after that, cut off, twice, or a great many zeros."""
    if rng.random() < 0.01:
        return gzip.compress(bytes(2**24), 1)
    whole = gzip.compress(data, rng.choice([1, 9]))
    way = rng.randrange(5)
    if way == 0:
        return whole[: rng.randrange(len(whole))]
    if way == 1:
        return whole + whole
    if way == 2:
        return as_bytes(rng, whole, [data])
    return whole


# ---- JSON ----


class Raw(str):
    """Text that stands in the JSON just so."""


def rendered(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, dict):
        pairs = ((k if isinstance(k, Raw) else json.dumps(k), rendered(v)) for k, v in value.items())
        return "{" + ",".join(f"{k}:{v}" for k, v in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(rendered, value)) + "]"
    return json.dumps(value)


def spots(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree; of long lists a few."""
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 12)) if isinstance(value, list) else ()
    for key in keys:
        found.append((value, key))
        spots(value[key], found)
    return found


def odd(rng: random.Random) -> Any:
    way = rng.randrange(8)
    if way < 3:
        return Raw(rng.choice(ODD_NUMBERS))
    if way < 5:
        return Raw('"' + rng.choice(ODD_TEXTS) + '"')
    if way == 5:
        depth = rng.choice(DEEP)
        return Raw(rng.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth]))
    return rng.choice([None, True, False, [], {}, [1], {"a": 1}, [[]], [None]])


def as_json(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    tree = json.loads(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        left = spots(tree, [])
        if not left:
            break
        container, key = rng.choice(left)
        way = rng.randrange(9)
        if isinstance(container, list) and key >= len(container):
            continue
        if way == 0:
            del container[key]
        elif way == 1 and isinstance(container, dict):
            container[Raw(json.dumps(str(key)) + " ")] = container[key]  # the key twice
        elif way == 2 and isinstance(container, dict):
            suffix = rng.choice(["", "x", " ", "\ud800", Raw("\\ud800"), Raw("\\ud800x")])  # the first one is no UTF-8
            renamed = json.dumps(str(key))[:-1] + suffix + '"'
            container[Raw(renamed)] = container.pop(key)
        elif way == 3 and isinstance(container, list):
            container[key:key] = [container[key]] * rng.choice([1, 3, 1000])
        elif way == 4 and isinstance(container[key], int):
            container[key] += rng.choice([-1, 1, 2, 2**31])
        elif way == 5:
            theirs, where = rng.choice(spots(json.loads(rng.choice(others)), []) or [([0], 0)])
            container[key] = theirs[where]
        elif way == 6 and isinstance(container, list):
            rng.shuffle(container)
        else:
            container[key] = odd(rng)
    return rendered(tree).encode("utf-8", "surrogatepass")


# ---- XML, and tables of text ----


def as_xml(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    text = data.decode()
    for _ in range(rng.choice([1, 1, 2, 4])):
        way = rng.randrange(7)
        values = list(re.finditer(r'="([^"]*)"', text))
        tags = list(re.finditer(r"<[^>]*>", text))
        if way < 3 and values:
            at = rng.choice(values)
            new = rng.choice([*ODD_NUMBERS, *ODD_TEXTS, "0,1,2", "3-7", "0-99999999999", "3:0:1", "-1", "&x;", "<"])
            text = text[: at.start(1)] + new + text[at.end(1) :]
        elif way == 3 and tags:
            at = rng.choice(tags)
            text = text[: at.start()] + text[at.end() :]
        elif way == 4 and tags:
            at = rng.choice(tags)
            text = text[: at.start()] + at.group() * rng.choice([2, 3, 300]) + text[at.start() :]
        elif way == 5:
            text = '<!DOCTYPE a [<!ENTITY x "' + "y" * 50 + '"><!ENTITY z "&x;&x;&x;">]>' + text
        elif tags:
            at, deep = rng.choice(tags), rng.choice(DEEP)
            text = text[: at.start()] + "<group>" * deep + text[at.start() :]
    return text.encode("utf-8", "surrogatepass")


def as_table(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    rows = [line.split(",") for line in data.decode().splitlines()]
    for _ in range(rng.choice([1, 1, 2, 4])):
        if not rows:
            break
        row = rng.choice(rows)
        way = rng.randrange(7)
        if way < 3 and row:
            row[rng.randrange(len(row))] = rng.choice([*ODD_NUMBERS, *ODD_TEXTS, '"', '"a', "4us", "1MiB", "ring"])
        elif way == 3:
            rows.remove(row)
        elif way == 4:
            rows.extend([list(row) for _ in range(rng.choice([1, 2, 200]))])
        elif way == 5 and row:
            row.pop(rng.randrange(len(row)))
        else:
            row.extend(["0"] * rng.choice([1, 2, 5000]))
    return rng.choice(["\n", "\r\n", "\n\n"]).join(map(",".join, rows)).encode("utf-8", "surrogatepass")


def as_words(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Text of lines of words: words changed, doubled, taken from elsewhere; lines lost, repeated, moved."""
    rows = [re.split(r"( +|\t+)", line) for line in data.decode().split("\n")]
    for _ in range(rng.choice([1, 1, 2, 4])):
        if not rows:
            break
        row = rng.choice(rows)
        way = rng.randrange(8) if row else 7
        if way < 3:
            row[rng.randrange(len(row))] = rng.choice(
                [*ODD_NUMBERS, *ODD_TEXTS, "X", "NV999", "GPU0", "[1]", "a[1-9999]", "=", ":"]
            )
        elif way == 3:
            rows.remove(row)
        elif way == 4:
            rows.extend([list(row) for _ in range(rng.choice([1, 2, 200]))])
        elif way == 5:
            del row[rng.randrange(len(row)) :]
        elif way == 6:
            other = rng.choice(rng.choice(others).decode().split("\n"))
            rows.insert(rng.randrange(len(rows) + 1), [other])
        else:
            row.extend([" ", "0"] * rng.choice([1, 2, 5000]))
    return rng.choice(["\n", "\r\n", "\n\n"]).join(map("".join, rows)).encode("utf-8", "surrogatepass")


# ---- binary files: words are changed, then all checksums fit again ----


Entries = Callable[[bytearray, int], list[int]]


def mended(data: bytearray, entries: Entries, inner: Entries | None = None) -> bytes:
    """`entries`: where the rows (offset, length, checksum, 0) of the parts stand. The head's checksum covers them."""
    head = struct.unpack_from("<Q", data, 16)[0] if len(data) >= 32 else len(data) + 1
    if head > len(data):
        return bytes(data)
    for at in entries(data, head):
        if not 0 <= at <= head - 24:
            continue
        begin, size = struct.unpack_from("<QQ", data, at)
        if size < len(data) and begin + size <= len(data):
            if inner is not None:
                data[begin : begin + size] = mended(data[begin : begin + size], inner)
            struct.pack_into("<I", data, at + 16, zlib.crc32(bytes(data[begin : begin + size])))
    struct.pack_into("<I", data, 12, zlib.crc32(bytes(data[16:head])))
    return bytes(data)


def program_entries(data: bytearray, head: int) -> list[int]:
    """docs/program.md: two rows for every rank, at the end of the head."""
    ranks = struct.unpack_from("<I", data, 36)[0]
    return [head - 24 * (i + 1) for i in range(2 * min(ranks, 64))]


def book_entries(data: bytearray, head: int) -> list[int]:
    """docs/program.md: a row for every program, at the end of the head."""
    programs = struct.unpack_from("<I", data, 40)[0]
    return [head - 24 * (i + 1) for i in range(min(programs, 64))]


def as_binary(rng: random.Random, data: bytes, entries: Entries, inner: Entries | None = None) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3])):
        wide = rng.random() < 0.3
        at = rng.randrange(len(out) // 8) * 8 + (0 if wide else rng.choice([0, 4]))
        kind, top = ("<Q", 2**64) if wide else ("<I", 2**32)
        old = struct.unpack_from(kind, out, at)[0]
        near = (old + 1, old - 1, old ^ (1 << rng.randrange(32)))
        new = rng.choice([*near, rng.choice(WORDS), rng.randrange(20), top - 1])
        struct.pack_into(kind, out, at, new % top)
    return mended(out, entries, inner)


def as_program(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    return as_binary(rng, data, program_entries)


def as_book(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    return as_binary(rng, data, book_entries, program_entries)
