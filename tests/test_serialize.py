"""Files: what is saved is what is loaded, and nothing wrong gets in, out, or half-way."""

import errno
import gzip
import json
import os
import re
import resource
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from generate import Case, case, cases, topologies
from hypothesis import given
from hypothesis import strategies as st
from tables import listed

import antiphon
from antiphon.core import files, jsontext
from antiphon.core.collective import Collective, custom_relation
from antiphon.core.plan import Entry, Plan, check_plain
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import (
    dumps,
    load_collective,
    load_plan,
    load_topology,
    loads,
    save_plan,
    save_topology,
)  # fmt: skip
from antiphon.core.topology import LinkType, Topology, build
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
EXAMPLES = [text for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "antiphon-profile" not in text]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(st.text(), JSON, max_size=4)


def exactly_equal(a: Schedule, b: Schedule) -> bool:
    """Also in the order of rows."""
    ours, theirs = a.columns(), b.columns()
    return (
        a.same_as(b)
        and ours.keys() == theirs.keys()
        and all(np.array_equal(ours[name], theirs[name]) for name in ours)
        and a.provenance == b.provenance
    )


def small_plan() -> Plan:
    loaded = loads(EXAMPLES[-1].encode())
    assert isinstance(loaded, Plan)
    return loaded


# ---- the page ----


REDUCTION = b"""{
  "format": "antiphon-collective", "version": 1, "ranks": 3, "combining": true,
  "blocks": [{"pre": [0, 1, 2], "post": [0]}]
}"""


def test_the_examples_of_the_page_load_and_mean_what_it_says() -> None:
    machine, gather, custom, plan = (loads(text.encode()) for text in EXAMPLES)
    reduction = loads(REDUCTION)
    assert isinstance(machine, Topology)
    assert (machine.ranks, machine.switches, machine.links, machine.unit) == (4, 1, 12, Fraction(12_500_000_000))
    assert machine.types[0] == LinkType("nvlink", machine.bandwidth(0), 1e-6)
    assert gather == Collective("gather", 8, (0, 1, 4, 5), (4,), np.array([3, 1, 1, 2]))
    pre = [(0, 0, 0), (0, 1, 0), (1, 0, 10), (1, 1, 11), (1, 2, 12)]
    relation = custom_relation(pre, [(0, 2, None), (0, 3, None), (1, 3, None), (1, 2, (10, 12))], 4)
    assert custom == Collective("custom", 4, weights=np.array([1, 2]), custom=relation)
    ids = custom_relation([(0, r, r) for r in range(3)], [(0, 0, None)], 3)
    assert reduction == Collective("custom", 3, custom=ids)
    assert isinstance(plan, Plan)
    for entry in plan.entries:
        assert verify(entry.schedule, plan.topology).ok
    assert plan.at(65535) is plan.entries[0]
    assert plan.at(65536) is plan.entries[1]


def test_the_page_lists_every_field() -> None:
    from antiphon.core.serialize import schemas

    rows = [getattr(schemas, name) for name in dir(schemas) if name.endswith("Row") and name != "Row"]
    fields = {field.encode_name for row in rows for field in msgspec.structs.fields(row)}
    assert len(fields) > 40
    for field in fields - {"rank"}:
        assert f"`{field}`" in PAGE or f'`"{field}"`' in PAGE, field


# ---- identity ----


@given(topologies())
def test_topologies_come_back(machine: Topology) -> None:
    assert loads(dumps(machine)) == machine


@given(cases())
def test_collectives_come_back(made: Case) -> None:
    assert loads(dumps(made.collective)) == made.collective


@given(cases(), OBJECT, OBJECT)
def test_plans_come_back(made: Case, claims: dict[str, Any], provenance: dict[str, Any]) -> None:
    schedule = Schedule(**{**vars(made.schedule), "provenance": provenance})
    plan = Plan(made.topology, made.collective, (Entry(0, 77, schedule, claims), Entry(77, None, made.schedule)))
    text = dumps(plan)
    back = loads(text)
    assert isinstance(back, Plan)
    assert (back.topology, back.collective) == (plan.topology, plan.collective)
    assert [(e.start, e.stop, e.claims) for e in back.entries] == [(0, 77, claims), (77, None, {})]
    assert exactly_equal(back.entries[0].schedule, schedule)
    assert exactly_equal(back.entries[1].schedule, made.schedule)
    assert dumps(back) == text


# ---- plans ----


def test_a_plan_is_checked() -> None:
    plan = small_plan()
    first, second = plan.entries
    wrong = [
        ((), "no entries"),
        ((second,), "the first begins at 0"),
        ((first,), "the last has no end"),
        ((second, first), "the first begins at 0"),
        ((first, first, second), "begins at 0 bytes"),
        ((first, Entry(65537, None, first.schedule)), "without gap"),
        ((Entry(0, None, first.schedule), second), "without end"),
    ]
    for entries, complaint in wrong:
        with pytest.raises(Invalid, match=complaint):
            Plan(plan.topology, plan.collective, entries)
    with pytest.raises(Invalid, match="another collective"):
        Plan(plan.topology, Collective("reducescatter", 2), plan.entries)
    with pytest.raises(Invalid, match="is for 3 ranks"):
        Plan(plan.topology, Collective("allreduce", 3), plan.entries)
    for start, stop in ((5, 5), (-1, 4), (0, 2**60), (True, None), (1.0, None)):
        with pytest.raises(Invalid):
            Entry(start, stop, first.schedule)
    with pytest.raises(Invalid, match="0 or more"):
        plan.at(-1)
    assert Plan.of(plan.topology, first.schedule).at(10**18).schedule is first.schedule


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([], "expected an object"),
        ({"a": [1, {2}]}, r"claims\.a\[1\]: \{2\} is not a plain JSON value"),
        ({"a": float("nan"), "b": [1], "c": {}}, r"claims\.a: nan"),
        ({"a": {3: 1}}, r"claims\.a: its key 3 is not a text"),
        ({"a": float("nan")}, r"claims\.a: nan is not a finite number"),
        ({"a": -float("inf")}, "not a finite number"),
        ({"a": np.int64(3)}, "not a plain JSON value"),
        ({"a": b"x"}, "not a plain JSON value"),
    ],
)
def test_only_plain_values_are_claimed(value: Any, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        check_plain(value, "claims")
    objects: dict[str, Any] = {}
    lists: list[Any] = []
    for _ in range(33):
        objects, lists = {"a": objects}, [lists]
    for deep in (objects, {"a": lists}):
        with pytest.raises(Invalid, match="nested deeper than 32"):
            check_plain(deep, "claims")


# ---- hostile input ----

TOPOLOGY = dumps(loads(EXAMPLES[0].encode())).decode()
COLLECTIVE, CUSTOM, PLAN = EXAMPLES[1], EXAMPLES[2], EXAMPLES[-1]
TEXTS = {
    "TOPOLOGY": TOPOLOGY, "COLLECTIVE": COLLECTIVE, "CUSTOM": CUSTOM, "PLAN": PLAN,
    "WIDE": '{"format": "antiphon-collective", "version": 1, "kind": "alltoall", "ranks": 9999}',
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "old", "new", "complaint"),
    [
        *listed("refused-files"),
        (TOPOLOGY, '"ranks": 4', f'"ranks": {"9" * 6000}', "out of range"),
        (json.dumps({**json.loads(TOPOLOGY), "places": []}), "", "", "places: is empty"),
        (PLAN, '"steps": 1}', f'"steps": {"[" * 60000}', "nested too deeply"),
    ],
)
def test_bad_input_is_told_in_one_line(text: str, old: str, new: str, complaint: str) -> None:
    text = TEXTS.get(text, text)
    assert old in text
    with pytest.raises((Invalid, Unsupported), match=complaint) as caught:
        loads(text.replace(old, new, 1).encode(), "some.json")
    message = str(caught.value)
    assert message.startswith("some.json: ")
    assert "\n" not in message
    assert len(message) <= 500


def test_what_people_also_write_is_understood() -> None:
    assert loads(b"\xef\xbb\xbf" + COLLECTIVE.encode()) == loads(COLLECTIVE.encode())
    pasted = json.loads(PLAN)
    pasted["collective"] |= {"format": "antiphon-collective", "version": 1}
    assert isinstance(loads(json.dumps(pasted).encode()), Plan)


def test_control_characters_in_a_file_do_not_reach_the_terminal() -> None:
    with pytest.raises(Invalid) as caught:
        loads(
            TOPOLOGY.replace('"nvlink", "bandwidth": 25000000000', '"a\\n\\u001b[2J", "bandwidth": 0').encode(), "a\nb"
        )
    assert str(caught.value).isprintable()


def test_bytes_that_are_no_text() -> None:
    for bad in (
        b"\xff\xfe",
        TOPOLOGY.encode("utf-16"),
        TOPOLOGY.replace("two", "tw\xff").encode("latin-1"),
        bytes(100),
    ):
        with pytest.raises(Invalid, match="not valid JSON"):
            loads(bad)
    for end in range(0, len(PLAN), 7):
        with pytest.raises(Invalid):
            loads(PLAN[:end].encode())


# ---- files ----


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "odd\nname ü.json"])
def test_files_of_all_kinds_come_back(tmp_path: Path, name: str) -> None:
    made = case(3)
    path = tmp_path / name
    save_topology(path, made.topology)
    assert load_topology(path) == made.topology
    antiphon.save(made.collective, str(path))
    assert load_collective(str(path)) == made.collective
    plan = Plan.of(made.topology, made.schedule)
    save_plan(path, plan)
    assert dumps(load_plan(path)) == dumps(plan)
    compressed = name.endswith(".gz")
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == compressed
    assert not compressed or path.read_bytes()[4:8] == bytes(4)  # no time stamp: equal plans give equal files
    assert os.listdir(tmp_path) == [name]
    with pytest.raises(Invalid, match="holds a plan; a topology is needed here"):
        load_topology(path)


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 2 * 10**6))
    assert path.stat().st_size < 10**6
    monkeypatch.setattr(files, "MAX_BYTES", 10**6)
    with pytest.raises(Invalid, match=r"bomb\.json\.gz: unpacks to more than 1000000 bytes"):
        load_plan(path)
    path.write_bytes(b" " * (10**6 + 1))
    with pytest.raises(Invalid, match="is larger than 1000000 bytes"):
        load_plan(path)
    path.write_bytes(gzip.compress(os.urandom(10**5) + b" " * 10**6))  # a file of some size may unpack to more
    monkeypatch.setattr(files, "MAX_UNPACKED", 10**3)
    monkeypatch.setattr(files, "MAX_BYTES", 10**7)
    assert len(files.read_bytes(path)) == 11 * 10**5
    monkeypatch.setattr(files, "MAX_RATIO", 2)
    with pytest.raises(Invalid, match="unpacks to more than 2"):
        files.read_bytes(path)
    if os.path.exists("/dev/zero"):
        with pytest.raises(Invalid, match="is a device"):
            load_plan("/dev/zero")


def test_unreadable_files(tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        (tmp_path / "none.json", r"none\.json: cannot be read: No such file"),
        (tmp_path, "cannot be read: is a directory"),
        (tmp_path / "a" / "b", "cannot be read: No such file"),
        ("", "'': cannot be read"),
        ("a\0b", "cannot be read: (open: )?embedded null"),
    ]
    for path, complaint in cases:
        with pytest.raises(Invalid, match=complaint):
            load_plan(path)


def test_unwritable_places(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    cases: list[tuple[Any, str]] = [
        (tmp_path, "is a directory; name a file in it"),
        (tmp_path / "none" / "a.json", r"there is no directory .*none; create it first"),
        (tmp_path / "file" / "a.json", "there is no directory"),
        (tmp_path / ("x" * 300), "cannot be written: File name too long"),
        ("", "is a directory"),
        ("a\0b", "embedded null"),
    ]
    for path, complaint in cases:
        with pytest.raises(Invalid, match=complaint):
            save_plan(path, small_plan())
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_device() -> None:
    with pytest.raises(Invalid, match=r"/dev/full: cannot be written: No space left on device"):
        save_plan("/dev/full", small_plan())


@pytest.mark.parametrize(
    ("call", "error", "raised"),
    [
        ("open", OSError(errno.EACCES, "Permission denied"), Invalid),
        ("fsync", OSError(errno.ENOSPC, "No space left on device"), Invalid),
        ("replace", OSError(errno.EROFS, "Read-only file system"), Invalid),
        ("fsync", KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException, raised: type[BaseException]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    monkeypatch.setattr(os, call, Mock(side_effect=error))
    with pytest.raises(raised, match=f"plan.json: cannot be written: {error.args[1]}" if error.args else ""):
        save_plan(path, small_plan())
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """A real failure in the midst of writing: this process may write no more than 4096 bytes to a file."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    ring = build("ring", 5000, [(i, (i + 1) % 5000, LinkType("x", 1)) for i in range(5000)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(Invalid, match=r"plan\.json: cannot be written: File too large"):
            save_topology(path, ring)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs users and modes")
def test_modes_links_and_protection(tmp_path: Path) -> None:
    path, link = tmp_path / "plan.json", tmp_path / "link.json"
    old = os.umask(0o027)
    try:
        save_plan(path, small_plan())
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o600)
        link.symlink_to(path)
        path.write_text("old")
        save_plan(link, small_plan())
        assert path.stat().st_mode & 0o777 == 0o600  # as it was
        assert link.is_symlink()
        assert load_plan(path).topology == small_plan().topology
    finally:
        os.umask(old)
    if os.geteuid() != 0:  # nothing is protected from root
        path.chmod(0o400)
        with pytest.raises(Invalid, match="write-protected"):
            save_plan(path, small_plan())
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(Invalid, match="Permission denied"):
                save_plan(tmp_path / "new.json", small_plan())
        finally:
            tmp_path.chmod(0o700)


def test_what_cannot_be_read_back_is_not_written() -> None:
    plan = small_plan()
    first = plan.entries[0].schedule
    with pytest.raises(Invalid, match="not a plain JSON value"):
        dumps(Plan.of(plan.topology, Schedule(**{**vars(first), "provenance": {"x": {1, 2}}})))
    link = LinkType("x", 1)
    with pytest.raises(Invalid, match="lone surrogate"):
        dumps(Plan.of(plan.topology, Schedule(**{**vars(first), "provenance": {"x": "\ud800"}})))
    for name in ("\ud800", "a\nb", "\x1b[31m", "a\x00"):
        with pytest.raises(Invalid, match="control characters"):
            build(name, 2, [(0, 1, link)])
    with pytest.raises(Invalid, match="out of range"):
        dumps(build("x", 2, [(0, 1, link)], unit=10**30))
    with pytest.raises(Invalid, match="only a topology, collective or plan"):
        dumps({"a": 1})
    assert loads(dumps(Collective("allreduce", 2))) == Collective("allreduce", 2)


@given(st.text(max_size=40), OBJECT)
def test_keys_are_compared_as_texts_not_as_spelt(key: str, value: dict[str, Any]) -> None:
    jsontext.check_keys(json.dumps({key: value, key + "x": [value, {key: value}]}).encode())
    twice = "{" + f"{json.dumps(key)} : 1, {json.dumps(key, ensure_ascii=False)}: 2" + "}"
    with pytest.raises(Invalid, match="stands twice"):
        jsontext.check_keys(twice.encode("utf-8", "surrogatepass"))
