"""Parse untrusted XML as a stream, safely: nothing is fetched, no entities are expanded, and memory stays small.

`read_xml` calls a `Reader` for the begin and end of every element, with the line for its messages. Document types
(<!DOCTYPE ...>), which could declare entities or name other files, are rejected, as is an element of over 16 KiB with
hundreds of attributes. Every fault is raised as Invalid, in one line that names the file and, where known, the line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol
from xml.parsers import expat

from antiphon.core.files import name_of, read_buffers, reading
from antiphon.errors import Invalid, quote

Attributes = Mapping[str, str]
_WINDOW = 2**14  # bytes in which attributes are counted
_BLOCK = 2**20  # bytes that are parsed at once
MAX_ATTRIBUTES = 2**8  # in a window of _WINDOW bytes within which no element ends
MAX_DIGITS = 18  # of a whole number
_ENCODINGS = {  # first bytes of a file (a byte-order mark, or "<") -> its encoding
    b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"<\0\0\0": "UTF-32-LE", b"\0\0\0<": "UTF-32-BE",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"<\0": "UTF-16-LE", b"\0<": "UTF-16-BE",
}  # fmt: skip
_UNREAD_ENCODING = "is in an encoding that is not read ({}); write it as UTF-8"


def encoding(data: bytes) -> str:
    """Return the encoding by the first bytes of a file; else UTF-8, though it may be Latin-1 or similar."""
    return next((name for start, name in _ENCODINGS.items() if data.startswith(start)), "UTF-8")


def opening(data: bytes) -> str:
    """Return the beginning of a file as text, without a byte-order mark and blanks.

    >>> opening(" <algo>".encode("utf-16"))
    '<algo>'
    """
    return data[:4096].decode(encoding(data), "replace").removeprefix("\ufeff").lstrip()


class Reader(Protocol):
    """An object whose methods are called for every element, in the order of the file; comments are skipped."""

    def begin(self, name: str, attributes: Attributes, line: int) -> None: ...

    def end(self, name: str) -> None: ...


def read_xml(
    source: str | os.PathLike[str] | bytes,
    reader: Reader,
    allow_doctype: bool = False,
    text: Callable[[str], None] | None = None,
) -> None:
    """Parse a file, or its contents, and call the reader for each element. Linear.

    Files may be compressed, as `read_buffers` reads them. Memory is constant beyond what the reader stores.
    `allow_doctype`: skip a document type that only names a file (it is not fetched); one that declares anything is
    refused in any case. `text`: called with the text between elements, in pieces.
    """
    with reading("XML" if isinstance(source, bytes) else name_of(source)):
        parser = expat.ParserCreate()
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

        def refuse(*_: object) -> None:
            raise Invalid(f"line {parser.CurrentLineNumber}: has a document type (<!DOCTYPE ...>); remove it")

        def begin_doctype(_name: str, _file: str | None, _public: str | None, declares: int) -> None:
            if declares or not allow_doctype:
                refuse()

        parser.StartDoctypeDeclHandler = begin_doctype
        parser.EntityDeclHandler = parser.UnparsedEntityDeclHandler = refuse
        parser.ExternalEntityRefHandler = refuse  # type: ignore[assignment]  # it never returns

        def begin(name: str, attributes: dict[str, str]) -> None:
            reader.begin(name, attributes, parser.CurrentLineNumber)

        parser.StartElementHandler = begin
        if text is not None:
            parser.CharacterDataHandler = text
        parser.EndElementHandler = reader.end
        try:
            for number, block in enumerate(
                _split_blocks(source) if isinstance(source, bytes) else read_buffers(source)
            ):
                if not number and encoding(block).startswith("UTF-32"):
                    raise Invalid(_UNREAD_ENCODING.format("UTF-32"))  # expat would report malformed XML
                _check_attributes(block)
                parser.Parse(block, False)  # noqa: FBT003 (not the last block)
            parser.Parse(b"", True)  # noqa: FBT003 (the end)
        except expat.ExpatError as error:
            raise Invalid(
                f"line {error.lineno}, column {error.offset + 1}: is not well-formed XML: "
                f'{expat.ErrorString(error.code)}; expected <name attribute="value" .../> and every element closed'
            ) from None
        except (LookupError, ValueError) as error:
            # Expat raises LookupError (unknown encoding), UnicodeError (bytes invalid in it) or ValueError("multi-byte
            # encodings are not supported"). All others, such as Invalid and KeyError, come from the reader.
            is_encoding_error = type(error) is LookupError or isinstance(error, UnicodeError)
            if not is_encoding_error and "multi-byte encodings" not in str(error):
                raise
            raise Invalid(_UNREAD_ENCODING.format(error)) from None


def _split_blocks(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), _BLOCK):
        yield data[begin : begin + _BLOCK]


def _check_attributes(block: bytes) -> None:
    """Refuse an element with very many attributes: they take far more memory than text, and all exist at once.

    A cheap test: a window of 16 KiB without any ">" and with over MAX_ATTRIBUTES "=". It misses shorter elements, which
    take little memory, and refuses text between elements that looks like that.
    """
    for begin in range(0, len(block), _WINDOW):
        window = block[begin : begin + _WINDOW]
        if b">" not in window and window.count(b"=") > MAX_ATTRIBUTES:
            raise Invalid(f"has an element with more than {MAX_ATTRIBUTES} attributes; expected some few")


def read_integer(attributes: Attributes, key: str, where: str, default: int | None = None) -> int:
    """Return an attribute that is a whole number from 0 on. Without a `default` it is required."""
    text = attributes.get(key)
    if text is None:
        if default is None:
            raise Invalid(f'{where} has no {key}="..."; expected a whole number')
        return default
    if not (text.isdigit() and text.isascii()) or len(text) > MAX_DIGITS:
        raise Invalid(f"{where}: {key} is {quote(text)}; expected a whole number from 0 on")
    return int(text)
