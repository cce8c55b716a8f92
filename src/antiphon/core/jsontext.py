"""JSON text: decoding with limits and located errors, a check for repeated keys, and a readable layout.

    decode       bytes -> a msgspec struct, checked for types and unknown or missing fields
    check_keys   refuse an object that has a key twice, which decoders accept silently
    locate       "line 4, column 12: " of the value that an error message names, such as "types[0]: bandwidth: ..."
    layout       a value -> JSON for people and version control: one key per line, columns on one line

Errors are `Invalid` in one line: where, what is wrong and how to fix it, for example `line 3, column 14: ranks:
expected a whole number, got "8"`. Positions are computed only when there is an error, by walking the text along the
path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar, get_args, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import row_batches
from antiphon.errors import Invalid, quote, unknown

# A list or object takes about 70 bytes of memory, however short its text is. So that no small file fills the memory,
# more than FREE_CONTAINERS lists and objects are accepted only if their text is long enough on average.
FREE_CONTAINERS = 2**16
MIN_CONTAINER_BYTES = 7  # of text per list or object beyond FREE_CONTAINERS
MAX_KNOWN = 2**10  # texts of checked objects remembered, and the greatest length of such a text in bytes
MAX_LINE = 100  # characters: a shorter object is written on one line
T = TypeVar("T")
_SAMPLE = 2**14  # bytes searched for signs of another program's output
_OUTPUTS = (  # (sign, advice)
    (
        rb"out-of-place\s+in-place|# nThread|# Avg bus bandwidth",
        "looks like output of nccl-tests: times, no plan; antiphon check-log FILE --topology TOPO checks them",
    ),
    (
        rb"(?m)^[\s\x1b\[0-9;m]*GPU0\s+(\x1b\[[0-9;]*m)?(GPU1|X)\b|<system\b",
        "looks like a machine as a tool prints it; antiphon topology probe FILE -o machine.json reads it",
    ),
    (
        rb"\A<",
        "looks like XML; machines are read by antiphon topology probe FILE -o machine.json, schedules of MSCCL as PLAN",
    ),
)
_BOM = b"\xef\xbb\xbf"  # byte order mark
_PLAIN = re.compile(rb"\{[^{}\\]*\}")  # an object without objects or escapes in it
_KEY = re.compile(rb'("[^"]*")\s*:')
# A key in an error message, e.g. topology links[3]
_PATH = re.compile(r"(?:topology )?([a-z_]+(?:\[[0-9]+\]|\.[a-z_]+)*)")
_PLACE = re.compile(r"line ([0-9]+), column ([0-9]+): ")
_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^,\]}\s]*")  # a number, true, false or null
_BRACKET = re.compile(rb'[\[\]{}]|"(?:[^"\\]|\\.)*"', re.DOTALL)
_SHORT = 40  # longest value, in characters, that a message quotes
# A brace, or a string with the colon that makes it a key
_TOKEN = re.compile(rb'\{|\}|"(?:[^"\\]|\\.)*"(?:\s*:)?', re.DOTALL)
# An escape; group 1 marks half of a surrogate pair
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD]([89a-fA-F])..|.)", re.DOTALL)


def decode(data: bytes, kind: type[T]) -> T:
    """Decode JSON text into a struct, checked for types and unknown or missing fields; linear.

    Raises Invalid with the position of the fault, also for text with very many tiny lists and objects (see
    FREE_CONTAINERS).
    """
    data = data.removeprefix(_BOM)
    text = data.lstrip()
    if not text:
        raise Invalid("is not valid JSON: it is empty")
    containers = data.count(b"[") + data.count(b"{")
    if containers > FREE_CONTAINERS + len(data) // MIN_CONTAINER_BYTES:
        raise Invalid(
            f"has {containers} lists and objects in {len(data)} bytes; more than {FREE_CONTAINERS} are read if they "
            f"have at least {MIN_CONTAINER_BYTES} bytes on average"
        )
    _check_text(data)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _decoding_fault(str(error), kind, data) from None
    except msgspec.DecodeError as error:
        other_output = "" if text[:1] in b"{[" else _known_output(text)
        raise (Invalid(other_output) if other_output else _syntax_fault(str(error), data)) from None
    except RecursionError:
        raise Invalid("is nested too deeply") from None


def _check_text(data: bytes) -> None:
    """Reject bytes that are not UTF-8, also where the decoder would skip them: such text can be neither shown nor
    compared."""
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"{_line_and_column(data, error.start)}is not valid JSON: it is not UTF-8 text") from None


def _known_output(text: bytes) -> str:
    """Return advice if the text is another program's output that some command reads; "" if it looks like no known
    output."""
    return next((advice for sign, advice in _OUTPUTS if re.search(sign, text[:_SAMPLE])), "")


def check_keys(data: bytes) -> None:
    """Refuse an object that has a key twice; decoders would silently take the last. `data` must be valid JSON.

    One pass over braces and keys: long columns of numbers are skipped at the speed of the regex engine. An object
    without objects, escapes or braces in strings is checked as a whole, and its text is remembered, as many recur.
    """
    open_objects: list[set[object]] = []
    known_objects: set[bytes] = set()  # texts of objects that were checked
    at = 0
    while match := _TOKEN.search(data, at):
        token, at = match.group(), match.end()
        if token == b"{":
            plain = _PLAIN.match(data, match.start())
            text = plain.group() if plain is not None else b""
            # an odd number of quotes: the closing brace that was matched stands in a string
            if plain is None or text.count(b'"') % 2:
                open_objects.append(set())
                continue
            at = plain.end()
            if text not in known_objects:
                keys = _KEY.findall(text)
                if len(set(keys)) < len(keys):
                    key = next(key for key in keys if keys.count(key) > 1)
                    _refuse_twice(key, data, plain.start() + text.rfind(key))
                if len(known_objects) < MAX_KNOWN and len(text) < MAX_KNOWN:
                    known_objects.add(text)
        elif token == b"}":
            open_objects.pop()
        elif token.endswith(b":"):
            key = _key_text(token[:-1])
            if key in open_objects[-1]:
                _refuse_twice(token[:-1], data, match.start())
            open_objects[-1].add(key)


def _key_text(token: bytes) -> str:
    """Return a key without its escapes. Decoders skip unknown keys unread, so a bad escape in one is noticed only
    here."""
    try:
        return str(msgspec.json.decode(token, type=str))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode(token, str)  # raises the specific error


def _refuse_twice(key: bytes, data: bytes, at: int) -> None:
    """Raise Invalid for a repeated key."""
    name = quote(_key_text(key))
    raise Invalid(f"{_line_and_column(data, at)}the key {name} stands twice in one object; remove one")


def layout(value: object) -> bytes:
    """Return JSON for people and version control: one key per line, columns and small objects on one line each.

    Columns may be arrays: each becomes text before the next is read, as a list takes eight times its text.
    """
    return b"".join(_lay_out(value, depth=0))


def _lay_out(value: object, depth: int) -> list[bytes]:
    """Return the text as a list of strings, which the caller joins once: a plan may have a gigabyte."""
    if isinstance(value, dict):
        items = [[msgspec.json.encode(key) + b": ", *_lay_out(inner, depth + 1)] for key, inner in value.items()]
        opening, closing = b"{", b"}"
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        items = [_lay_out(inner, depth + 1) for inner in value]
        opening, closing = b"[", b"]"
    else:
        if isinstance(value, NumberLists):
            return [value.encode()]
        return [_encode_column(value) if isinstance(value, np.ndarray) else msgspec.json.encode(value)]
    strings = [string for item in items for string in item]
    # The outermost object has a line per key, however short it is.
    if depth and isinstance(value, dict) and sum(map(len, strings)) <= MAX_LINE and b"\n" not in b"".join(strings):
        return [opening, b", ".join(b"".join(item) for item in items), closing]
    indent = b"\n" + b"  " * (depth + 1)
    separated = [string for item in items for string in (b"," + indent, *item)]
    return [opening + indent, *separated[1:], b"\n" + b"  " * depth + closing]


@dataclass(frozen=True, eq=False)
class NumberLists:
    """Lists of whole numbers for `layout`: list i is `numbers[ends[i]:ends[i + 1]]`."""

    numbers: NDArray[Any]
    ends: NDArray[Any]

    def encode(self) -> bytes:
        """Return the JSON text of the list of lists.

        >>> NumberLists(np.array([7, 8, 7]), np.array([0, 2, 3])).encode()
        b'[[7,8],[7]]'
        """
        numbers = self.numbers.tolist()
        return msgspec.json.encode([numbers[a:b] for a, b in pairwise(self.ends.tolist())])


def _encode_column(values: NDArray[Any]) -> bytes:
    """Return the JSON text of a column, batch by batch, as a list of all its values takes eight times its text.

    >>> _encode_column(np.array([7, -1, 7]))
    b'[7,-1,7]'
    """
    texts = (msgspec.json.encode(values[rows].tolist())[1:-1] for rows in row_batches(len(values)))
    return b"[%s]" % b",".join(texts)


def locate(message: str, data: bytes) -> str:
    """Return "line 4, column 12: " for the value that a message begins with, such as "types[0]: bandwidth: ...".

    "" if it names no value of the text. `data` must be valid JSON up to there. Linear.
    """
    path: list[str | int] = []
    at = None
    if message.startswith("line "):  # it names its place already
        return ""
    for segment in message.split(": "):
        named = _PATH.match(segment)
        steps = _path_steps(named[1]) if named else []
        value_at = _find_value(data, [*path, *steps]) if steps else None
        if value_at is None:
            break
        path, at = [*path, *steps], value_at
    return "" if at is None else _line_and_column(data, at)


def without_place(message: str) -> str:
    """Return a message without its line and column, which mean nothing outside the piece of text they refer to."""
    return _PLACE.sub("", message, count=1)


def move_place(message: str, data: bytes, outer: bytes) -> str:
    """Translate the line and column in a message about `data` to the text `outer` that contains it."""
    match = _PLACE.search(message)
    at = outer.find(data) if match else -1
    if match is None or at < 0:
        return message
    line, column = int(match[1]), int(match[2])
    line_start = outer.rfind(b"\n", 0, at) + 1
    columns_before = len(outer[line_start:at].decode("utf-8", "replace"))  # characters, as columns count them
    lines_above = outer.count(b"\n", 0, at)
    moved = f"line {lines_above + line}, column {column + columns_before * (line == 1)}: "
    return message[: match.start()] + moved + message[match.end() :]


def _path_steps(path: str) -> list[str | int]:
    """Split "types[0].bandwidth" into ["types", 0, "bandwidth"]."""
    return [int(word) if word.isdigit() else word for word in re.findall(r"\w+", path)]


def _line_and_column(data: bytes, at: int) -> str:
    """Return the position as text; lines and columns count from 1, columns in characters."""
    begin = data.rfind(b"\n", 0, at) + 1
    line, column = data.count(b"\n", 0, at) + 1, len(data[begin:at].decode("utf-8", "replace")) + 1
    return f"line {line}, column {column}: "


def _find_value(data: bytes, path: list[str | int]) -> int | None:
    """Return where the value at a path begins, or None."""
    at: int | None = _past_space(data, at=0)
    for step in path:
        at = _find_child(data, at, step) if at is not None else None
    return at


def _find_child(data: bytes, at: int, step: str | int) -> int | None:
    """Return where the value of this key, or with this index, begins in the object or list at `at`."""
    if data[at : at + 1] != (b"{" if isinstance(step, str) else b"["):
        return None
    number = 0
    at = _past_space(data, at + 1)
    while at < len(data) and data[at : at + 1] not in (b"]", b"}"):
        if isinstance(step, str):
            key = _STRING.match(data, at)
            if key is None:
                return None
            at = _past_space(data, _past_space(data, key.end()) + 1)  # a colon between
            if msgspec.json.decode(key.group()) == step:
                return at
        elif number == step:
            return at
        at = _past_space(data, _past_value(data, at))
        if data[at : at + 1] == b",":
            at = _past_space(data, at + 1)
        number += 1
    return None


def _past_space(data: bytes, at: int) -> int:
    """Return the position after white space."""
    match = _SPACE.match(data, at)
    return match.end() if match else at


def _past_value(data: bytes, at: int) -> int:
    """Return the position after the value that begins at `at`."""
    if data[at : at + 1] not in (b"{", b"["):
        match = _STRING.match(data, at) or _SCALAR.match(data, at)
        return max(match.end(), at + 1) if match else len(data)  # + 1: callers advance also in faulty text
    depth = 0
    for token in _BRACKET.finditer(data, at):
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token.group(), 0)
        if depth == 0:
            return token.end()
    return len(data)


def _syntax_fault(message: str, data: bytes) -> Invalid:
    """Return the error for text that is not JSON: where, and the likely cause."""
    problem = message.removeprefix("JSON is malformed: ")
    byte = re.search(r" \(byte ([0-9]+)\)$", problem)
    escapes = _ESCAPE.finditer(data) if byte is None else ()
    surrogate = next((escape for escape in escapes if escape.group(1)), None)
    if surrogate is not None:  # the decoder calls the text truncated
        place = _line_and_column(data, surrogate.start())
        return Invalid(f"{place}is not valid JSON: half of a surrogate pair stands alone")
    if byte is None:
        place = _line_and_column(data, len(data.rstrip())) if "truncated" in problem else ""
        return Invalid(f"{place}is not valid JSON: {'it ends too early' if place else problem}; is a ] or }} missing?")
    at = int(byte[1])
    problem, rest = problem[: byte.start()], data[at:]
    if rest[:1] == b"'":
        problem += "; texts stand in double quotes"
    elif rest[:1] in (b"/", b"#"):
        problem += "; JSON has no comments, remove it"
    elif rest.startswith((b"True", b"False", b"None")):
        problem += "; write true, false or null"
    elif data.lstrip()[:1] not in (b"{", b"["):
        problem += ", and text of ours begins with {"
    return Invalid(f"{_line_and_column(data, at)}is not valid JSON: {problem}")


def conversion_fault(message: str, kind: object) -> Invalid:
    """Translate the message of `msgspec.convert` about values without a text, such as those of a TOML file."""
    return Invalid(without_place(str(_decoding_fault(message, kind, b""))))


def _decoding_fault(message: str, kind: object, data: bytes) -> Invalid:
    """Translate the decoder's message: where, what, and the nearest name for an unknown field."""
    # msgspec ends messages with, for example, " - at `$.types[0].name`". For a value in a dict it names no key but
    # writes `$.claims[...]`, so that such a value has no position here.
    problem, _, path = message.partition(" - at ")
    path = path.strip("`").removeprefix("$")
    where = path.removeprefix(".")
    problem = problem[:1].lower() + problem[1:].replace("`", "")
    field_names = _fields_at(kind, path)
    at = None if "..." in path else _find_value(data, _path_steps(path))
    if (match := re.fullmatch(r"object contains unknown field (.*)", problem, re.DOTALL)) and field_names:
        problem = str(unknown("field", match.group(1), field_names))
        value = _find_child(data, at, match.group(1)) if at is not None else None
        key = data.rfind(msgspec.json.encode(match.group(1)), 0, value) if value is not None else -1
        at = key if key >= 0 else at
    elif match := re.fullmatch(r"object missing required field (\w+)", problem):
        problem = f'missing required field "{match[1]}"'
    elif match := re.fullmatch(r"expected (.+?)(?:, got (.+))?", problem):
        text = data[at : _past_value(data, at)] if at is not None else b""
        got = text.decode("utf-8", "replace") if text and len(text) <= _SHORT else _in_words(match[2] or "")
        problem = f"expected {_in_words(match[1])}" + (f", got {got}" if got else "")
    place = "" if at is None else _line_and_column(data, at)
    return Invalid(f"{place}{where}: {problem}" if where else f"{place}{problem}")


def _in_words(kinds: str) -> str:
    """Translate the decoder's type names into plain words."""
    words = {"int | str": 'a whole number, or a text such as "25GB/s"', "int": "a whole number"}
    words |= {"float": "a number", "str": "a text in double quotes", "bool": "true or false"}
    words |= {"object": "an object {...}", "array": "a list [...]"}
    if kinds in words:
        return words[kinds]
    if length := re.fullmatch(r"array of length ([0-9]+)", kinds):
        return f"a list of {length[1]}"
    if limit := re.fullmatch(r"(int|float) ([<>]=?) (\S+)", kinds):  # as msgspec.Meta states it
        return f"{words[limit[1]]} {limit[2]} {limit[3]}"
    return " or ".join(words.get(kind, kind) for kind in kinds.split(" | "))


def _fields_at(kind: object, path: str) -> list[str]:
    """Return the field names of the struct at a path; none if the path leads elsewhere."""
    for step in re.findall(r"\.\w+|\[", path):
        kinds = [kind, *get_args(kind)]  # of a union, such as `list[X] | None`, its members, too
        if step == "[":
            kind = next((get_args(k)[0] for k in kinds if get_origin(k) is list), None)
        else:
            by_name = {f.encode_name: f.type for k in kinds if _is_struct(k) for f in msgspec.structs.fields(k)}
            kind = by_name.get(step[1:])
    structs = [k for k in (kind, *get_args(kind)) if _is_struct(k)]
    return [f.encode_name for k in structs for f in msgspec.structs.fields(k)]


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
