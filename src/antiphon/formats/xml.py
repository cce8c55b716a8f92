"""Parse untrusted XML as a stream: document types are rejected, so there are no entities to expand and nothing to
fetch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol
from xml.parsers import expat

from antiphon.core.files import name_of, read_blocks, reading
from antiphon.errors import Invalid, quote

Attributes = Mapping[str, str]
_STRETCH = 2**14  # bytes
_BLOCK = 2**20
MAX_ATTRIBUTES = 2**8
LONGEST = 18  # digits of a whole number
_ENCODINGS = {  # by how a file in them begins: with a mark of the order of bytes, or with "<"
    b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"<\0\0\0": "UTF-32-LE", b"\0\0\0<": "UTF-32-BE",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"<\0": "UTF-16-LE", b"\0<": "UTF-16-BE",
}  # fmt: skip


def encoding(data: bytes) -> str:
    """Return the encoding by the first bytes of a file; UTF-8 stands for every extension of ASCII."""
    return next((name for start, name in _ENCODINGS.items() if data.startswith(start)), "UTF-8")


def opening(data: bytes) -> str:
    """How a file begins, as text, without marks and blanks.

    >>> opening(" <algo>".encode("utf-16"))
    '<algo>'
    """
    return data[:4096].decode(encoding(data), "replace").removeprefix("\ufeff").lstrip()


class Reader(Protocol):
    """What is called for every element, in the order of the file; comments and text are passed over."""

    def begin(self, name: str, attributes: Attributes, line: int) -> None: ...

    def end(self, name: str) -> None: ...


def read_xml(
    source: str | os.PathLike[str] | bytes,
    reader: Reader,
    doctype: bool = False,
    text: Callable[[str], None] | None = None,
) -> None:
    """Hand a file, or its contents, to a reader, element by element. Every fault is one line that names file and line.
    Linear.

    As much as `read_blocks` reads, also compressed; memory is what the reader keeps. `doctype`: a document type that
    only names a file is passed over (nothing is fetched); one that declares anything is refused in any case. `text`
    hears what stands between elements, in pieces.
    """
    with reading("XML" if isinstance(source, bytes) else name_of(source)):
        parser = expat.ParserCreate()
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

        def refuse(*_: object) -> None:
            raise Invalid(f"line {parser.CurrentLineNumber}: has a document type (<!DOCTYPE ...>); remove it")

        def begin_doctype(_name: str, _file: str | None, _public: str | None, declares: int) -> None:
            if declares or not doctype:
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
            for number, block in enumerate(_split_blocks(source) if isinstance(source, bytes) else read_blocks(source)):
                if not number and encoding(block).startswith("UTF-32"):
                    raise LookupError("UTF-32")
                _check_attributes(block)
                parser.Parse(block, False)
            parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise Invalid(
                f"line {error.lineno}, column {error.offset + 1}: is not well-formed XML: "
                f'{expat.ErrorString(error.code)}; expected <name attribute="value" .../> and every element closed'
            ) from None
        except (LookupError, ValueError) as error:
            of_reader = type(error) is not LookupError and not isinstance(error, UnicodeError)
            if of_reader and "multi-byte encodings" not in str(error):
                raise
            raise Invalid(f"is in an encoding that is not read ({error}); write it as UTF-8") from None


def _split_blocks(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), _BLOCK):
        yield data[begin : begin + _BLOCK]


def _check_attributes(block: bytes) -> None:
    """Attributes take far more memory than text, and all of an element are there at once. One that has many is long."""
    for begin in range(0, len(block), _STRETCH):
        stretch = block[begin : begin + _STRETCH]
        if b">" not in stretch and stretch.count(b"=") > MAX_ATTRIBUTES:
            raise Invalid(f"has an element with more than {MAX_ATTRIBUTES} attributes; expected some few")


def read_integer(attributes: Attributes, key: str, where: str, missing: int | None = None) -> int:
    """An attribute that is a whole number from 0 on; `missing` where it is left out, if it may be."""
    text = attributes.get(key)
    if text is None:
        if missing is None:
            raise Invalid(f'{where} has no {key}="..."; expected a whole number')
        return missing
    if not (text.isdigit() and text.isascii()) or len(text) > LONGEST:
        raise Invalid(f"{where}: {key} is {quote(text)}; expected a whole number from 0 on")
    return int(text)
