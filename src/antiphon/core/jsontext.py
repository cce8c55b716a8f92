"""JSON: decoded within bounds, each fault reported with its place; no key twice; laid out for people."""

from __future__ import annotations

import re
from typing import TypeVar, get_args, get_origin

import msgspec

from antiphon.errors import Invalid, quote, unknown

FEW_PARTS, LEAST_PART = 2**16, 7
FEW_SEEN = 2**10
INLINE = 100  # characters: a shorter object stands on one line
T = TypeVar("T")
_SAMPLE = 2**14  # bytes in which the output of another program shows what it is
_OUTPUTS = (
    (
        rb"out-of-place\s+in-place|# nThread|# Avg bus bandwidth",
        "looks like output of nccl-tests: times, no plan; antiphon replay TRACES --measured FILE reads them",
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
_BOM = b"\xef\xbb\xbf"
_PLAIN = re.compile(rb"\{[^{}\\]*\}")
# Bounded, as longer ones are not kept; groups that give nothing back match wrongly before Python 3.11.5.
_NESTED = re.compile(rb'\{(?:[^{}"\\]++|"[^{}"\\]*+"|\{(?:[^{}"\\]++|"[^{}"\\]*+"){0,512}\}){0,512}\}')
_KEY = re.compile(rb'("[^"]*")\s*:')
_TOKEN = re.compile(rb'\{|\}|"(?:[^"\\]|\\.)*"(?:\s*:)?', re.DOTALL)
_BYTE = re.compile(r" \(byte ([0-9]+)\)")
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD]([89a-fA-F])..|.)", re.DOTALL)


def decode(data: bytes, kind: type[T]) -> T:
    """JSON text as a struct, checked for types, unknown and missing fields; linear.

    Lists and objects take some 70 bytes each, however short: text of hardly anything else is refused.
    """
    text = data.removeprefix(_BOM).lstrip()
    if not text:
        raise Invalid("is not valid JSON: it is empty")
    parts = data.count(b"[") + data.count(b"{")
    if parts > FEW_PARTS + len(data) // LEAST_PART:
        raise Invalid(
            f"has {parts} lists and objects in {len(data)} bytes; more than {FEW_PARTS} are read if they have at "
            f"least {LEAST_PART} bytes on average"
        )
    _check_text(data)
    try:
        return msgspec.json.decode(data.removeprefix(_BOM), type=kind)
    except msgspec.ValidationError as error:
        raise _decoding_fault(str(error), kind) from None
    except msgspec.DecodeError as error:
        fault = f"is not valid JSON: {_syntax_fault(str(error), data)}"
        if text[:1] not in b"{[":
            fault = _known_output(text) or f"{fault}, and text of ours begins with {{"
        raise Invalid(fault) from None
    except RecursionError:
        raise Invalid("is nested too deeply") from None


def _check_text(data: bytes) -> None:
    """Refuse what is not UTF-8, also where the decoder would skip it: later it could not be shown or compared."""
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"is not valid JSON: it is not UTF-8 text ({_place(data, error.start)})") from None


def _syntax_fault(message: str, data: bytes) -> str:
    """What the decoder says is wrong, with line and column instead of the number of the byte."""
    start = len(data) - len(data.removeprefix(_BOM))
    if match := _BYTE.search(message):
        place = _place(data, start + int(match.group(1)))
        return message[: match.start()].removeprefix("JSON is malformed: ") + f" ({place})"
    lone = next((escape for escape in _ESCAPE.finditer(data) if escape.group(1)), None)
    if lone is not None:  # the decoder calls the text truncated
        return f"half of a surrogate pair stands alone ({_place(data, lone.start())})"
    return message


def _place(data: bytes, at: int) -> str:
    column = at - data.rfind(b"\n", 0, at)
    lines = data.count(b"\n", 0, at)
    return f"line {lines + 1}, column {column}"


def _known_output(text: bytes) -> str:
    """What a text is that other programs print, and which command reads that; "" if it looks like none of them."""
    return next((said for sign, said in _OUTPUTS if re.search(sign, text[:_SAMPLE])), "")


def check_keys(data: bytes) -> None:
    """Refuse an object that has a key twice; decoders would quietly take the last. `data` must be valid JSON.

    Digits are left out at first: what differs without them differs, and much of a long file is then the same again.
    """
    if len(data) > FEW_SEEN and b"\\" not in data:
        try:
            _check_keys(data.translate(None, b"0123456789"))
            return
        except Invalid:
            pass  # or these keys differ in digits alone
    _check_keys(data)


def _check_keys(data: bytes) -> None:
    """One pass over quotes and braces: long columns of numbers are skipped at the speed of the regex engine, and
    objects that have at most such without others in them are looked at as a whole, where no string in them has an
    escape or a brace. Of those that come again and again several one after another are passed over at once."""
    open_objects: list[set[object]] = []
    seen: set[bytes] = set()  # some of the plain ones, which come again and again
    waiting: list[tuple[int, bytes]] = []  # where some end whose objects within are looked at now, and their text
    again, enough = 0, FEW_SEEN  # how often one of them came; when to make the next pattern
    more: re.Pattern[bytes] | None = None
    at = 0
    while match := _TOKEN.search(data, at):
        token, at = match.group(), match.end()
        if token == b"{":
            nested = _NESTED.match(data, match.start())
            if nested is not None and nested.group() in seen:
                again += 1
                if again == enough:
                    enough *= 8
                    more = _several(seen)
                behind = more.match(data, nested.end()) if more is not None else None
                at = nested.end() if behind is None else behind.end()
                continue
            plain = _PLAIN.match(data, match.start())
            if plain is None and nested is not None:
                text = nested.group()
                if len(seen) < FEW_SEEN and len(text) < FEW_SEEN:
                    waiting.append((nested.end(), text))
            text = plain.group() if plain is not None else b""
            if plain is None or text.count(b'"') % 2:
                open_objects.append(set())
                continue
            at = plain.end()
            if text not in seen:
                keys = _KEY.findall(text)
                if len(set(keys)) < len(keys):
                    _refuse_twice(_key_text(next(key for key in keys if keys.count(key) > 1)))
                if len(seen) < FEW_SEEN and len(text) < FEW_SEEN:
                    seen.add(text)
        elif token == b"}":
            open_objects.pop()
            if waiting and waiting[-1][0] == at:
                seen.add(waiting.pop()[1])
        elif token.endswith(b":"):
            key = _key_text(token[:-1])
            if key in open_objects[-1]:
                _refuse_twice(key)
            open_objects[-1].add(key)


def _key_text(token: bytes) -> str:
    """A key without its escapes. Decoders skip unknown keys unread, so this is where a bad escape in one is noticed."""
    try:
        return str(msgspec.json.decode(token, type=str))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode(token, str)  # which says what is wrong


def _several(seen: set[bytes]) -> re.Pattern[bytes] | None:
    """Up to a thousand of these, each behind a comma; None where they are too long together to be looked for."""
    if sum(map(len, seen)) > FEW_SEEN * 8:
        return None
    return re.compile(rb"(?:\s*,\s*(?:%s)){1,1000}" % b"|".join(map(re.escape, seen)))


def _refuse_twice(key: object) -> None:
    raise Invalid(f"the key {quote(key)} stands twice in one object; remove one")


def layout(value: object, depth: int = 0) -> bytes:
    """JSON for people and version control: one key per line, columns and small objects on one line each."""
    if isinstance(value, dict):
        parts = [msgspec.json.encode(key) + b": " + layout(inner, depth + 1) for key, inner in value.items()]
        ends = b"{", b"}"
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        parts = [layout(inner, depth + 1) for inner in value]
        ends = b"[", b"]"
    else:
        return msgspec.json.encode(value)
    short = sum(map(len, parts)) <= INLINE and not any(b"\n" in part for part in parts)
    if depth and short and isinstance(value, dict):
        return ends[0] + b", ".join(parts) + ends[1]
    indent = b"\n" + b"  " * (depth + 1)
    return ends[0] + indent + (b"," + indent).join(parts) + b"\n" + b"  " * depth + ends[1]


def _decoding_fault(message: str, kind: object) -> Invalid:
    """A decoder's message in our words: where, what, and the nearest name for an unknown field."""
    what, _, path = message.partition(" - at ")
    path = path.strip("`").removeprefix("key ").removeprefix("$")
    where = path.removeprefix(".")
    what = what[:1].lower() + what[1:].replace("`", "")
    known = _fields(kind, path)
    if (match := re.fullmatch(r"object contains unknown field (.*)", what, re.DOTALL)) and known:
        what = str(unknown("field", match.group(1), known))
    return Invalid(f"{where}: {what}" if where else what)


def _fields(kind: object, path: str) -> list[str]:
    """The names of the fields at a path of a struct; none if the path leads elsewhere."""
    for step in re.findall(r"\.\w+|\[", path):
        kinds = [kind, *get_args(kind)]
        if step == "[":
            kind = next((get_args(k)[0] for k in kinds if get_origin(k) is list), None)
        else:
            by_name = {f.encode_name: f.type for k in kinds if _is_struct(k) for f in msgspec.structs.fields(k)}
            kind = by_name.get(step[1:])
    found = [k for k in (kind, *get_args(kind)) if _is_struct(k)]
    return [f.encode_name for k in found for f in msgspec.structs.fields(k)]


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
