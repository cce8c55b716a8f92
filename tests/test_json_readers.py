"""Every reader of JSON, given damaged files: it may only refuse, by exit code 2 and one line that names the file."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import loaders
import probe_cases
import pytest
from quick import in_turn, ordinary
from test_mscclpp import files_of

import antiphon
from antiphon.core import jsontext
from antiphon.errors import AntiphonError, Invalid
from antiphon.formats.chakra.nodes import METADATA, Node
from antiphon.formats.chakra.read import groups_of
from antiphon.formats.foreign_program import Wrong

BAD_TEXT = (b"\xff", b"\xed\xa0\x80", b"\xc3", b"\\ud800", b"\\udc00x", b"\\ud800\\u0041", b"\\u00", b"\\x41", b"\x00")
ODD_VALUES = (
    b"1e999", b"-1e999", b"1e-999", b"NaN", b"Infinity", b"-Infinity", b"1" + b"0" * 40, b"9" * 5000, b"1e308",
    b"1E+18", b"-0", b"01", b"0x10", b"null", b"true", b"[]", b"{}", b'""', b'"NaN"', b'"1e999"', b"[" * 60_000,
    b'{"a":' * 60_000, b"[" * 40 + b"]" * 40, b'{"a":1,"a":2}', b'{"\xff":1}', b'{"\\ud800x":1}', b'["\xff"]',
)  # fmt: skip
ODD_WHOLE = (
    b"", b" ", b"\xef\xbb\xbf", b"null", b"1", b'"x"', b"[]", b"{}", b"[[]]", b"{]", b"\xff\xfe{\x00}\x00", b"[{}]",
    b"{" * 60_000, b'{"format":"antiphon-plan","version":1e999}', b'{"format":"\xff"}', b'{"format":[],"version":1}',
)  # fmt: skip
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null|[{}\[\],:]')
PLACES = 6 if ordinary else 12  # tokens of a file that are damaged, spread evenly


def measured(path: Path) -> None:
    antiphon.replay.job([path.with_name("job.json")], topology="full:ranks=2", measured=path)


MANY = ["plan", "MSCCL++ plan", "recorded job"]  # which have most of the fields
OTHERS = ["topology", "collective", "table", "profile", "trace", "rocm-smi", "netfiles", "lines of NCCL's Inspector",
          "measured"]  # fmt: skip


@cache
def readers() -> dict[str, tuple[bytes, Callable[[Path], Any]]]:
    """Of each kind of JSON file a good one, and what reads it."""
    names = ("topology", "collective", "plan", "table", "profile", "trace", "recorded job")
    found = {name: (loaders.TARGETS[name].good()[-1], loaders.TARGETS[name].use) for name in names}
    rocm = next(case.text for case in probe_cases.CASES["rocm-smi"] if case.text.startswith("{"))
    network = next(case.text for case in probe_cases.CASES["netfiles"] if case.text.startswith("{"))
    inspected = loaders.lines_of_nccl()[0].splitlines()[0]
    rows = [{"collective": "allreduce", "nbytes": 1000, "seconds": 1e-5, "ranks": 2}]
    return found | {
        "MSCCL++ plan": (files_of("allreduce", "ring:ranks=3", "ring")["plan0.json"], antiphon.load),
        "rocm-smi": (rocm.encode(), loaders.use_machine("rocm-smi")),
        "netfiles": (network.encode(), loaders.use_machine("netfiles")),
        "lines of NCCL's Inspector": (inspected, loaders.use_job),
        "measured": (json.dumps({"rows": rows}).encode(), measured),
    }


def damaged(data: bytes) -> Iterator[bytes]:
    """One thing wrong at a time."""
    yield from ODD_WHOLE
    tokens = list(TOKEN.finditer(data))
    for bad in BAD_TEXT:
        yield data.replace(b"{", b'{"zz%s":1,' % bad, 1)  # a key that nobody knows, and most skip unread
        yield bad + data
    for match, after in list(pairwise(tokens))[:: max(1, len(tokens) // PLACES)]:
        before, text, behind = data[: match.start()], match.group(), data[match.end() :]
        is_key = text.startswith(b'"') and after.group() == b":"
        if text.startswith(b'"'):
            yield from (before + text[:-1] + bad + b'"' + behind for bad in BAD_TEXT)
        if is_key:
            value = after.end()
            yield data[:value] + b"1," + text + b":" + data[value:]  # twice
            yield from (data[:value] + odd + b"," + text + b":" + data[value:] for odd in ODD_VALUES)
        elif text not in (b"{", b"}", b"[", b"]", b",", b":"):
            yield from (before + odd + behind for odd in ODD_VALUES)
        yield before + behind
        yield before


def complaint(use: Callable[[Path], Any], path: Path, data: bytes) -> str | None:
    """What is wrong with how a reader takes it."""
    path.write_bytes(data)
    try:
        use(path)
    except AntiphonError as error:
        text = str(error)
        if isinstance(error, Wrong):  # it was read, and what it does was judged
            return None
        if error.exit_code != 2 or "\n" in text or len(text) > 2000:
            return f"{type(error).__name__}: {text}"
        return (
            None if path.name in text or text.startswith("the traces have no collective") else f"names no file: {text}"
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("name", [*MANY, *in_turn(OTHERS, 9)])
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    good, use = readers()[name]
    tmp_path.joinpath("job.json").write_bytes(loaders.jobs()[0])
    path = tmp_path / "damaged.json"
    path.write_bytes(good)
    use(path)
    path.write_bytes(b"\xef\xbb\xbf" + good)
    use(path)
    wrong = {text[:300]: data[:300] for data in damaged(good) if (text := complaint(use, path, data))}
    assert not wrong


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"a":\n  1, "b\xff": 2}', "line 2, column 8: is not valid JSON: it is not UTF-8 text"),
        (b'{"a":\n  x}', "line 2, column 3: is not valid JSON: invalid character"),
        (b'\xef\xbb\xbf{"a": x}', "line 1, column 7: is not valid JSON: invalid character"),
        (
            b'{"a": "\\\\ud800 \\ud83d\\ude00",\n "b": "\\ud800"}',
            "line 2, column 8: .* half of a surrogate pair",
        ),
        (b"[" * 60_000, "nested too deeply"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(data: bytes, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        jsontext.decode(data, dict[str, Any] if data[:1] != b"[" else Any)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [rb"\ud800", rb"\ud800x", rb"\udc00"])
def test_bad_escapes_in_keys_that_were_skipped_are_refused(key: bytes) -> None:
    with pytest.raises(Invalid, match="not valid JSON"):
        jsontext.check_keys(b'{"a":{"%s": {}}}' % key)


@pytest.mark.parametrize("ranks", ["[Infinity]", "[1e999]", '["x"]', "[[1]]", "0", '[1, "1"]'])
def test_process_groups_without_ranks_are_refused(ranks: str) -> None:
    groups = Node(7, "groups", METADATA, inputs=f'[{{"pg_name": "0", "ranks": {ranks}}}]')
    with pytest.raises(Invalid, match="node 7: its process groups are no list"):
        groups_of([groups])
