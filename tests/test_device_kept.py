"""Choices timed on a device are kept from one process to the next: read, refused, written at once, forgotten."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import antiphon
from antiphon.cli import run as command
from antiphon.errors import Invalid
from antiphon.runtimes.device import kept
from antiphon.runtimes.device.kept import Question, band_of, put, read, tried_of
from antiphon.runtimes.device.shares import Choice, choices
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.measure.device import Threads

SOME = [Choice("kernel", lanes, rounds) for lanes in (1, 2, 4) for rounds in (1, 4)] + [Choice("steps", 1)]
ASKED = Question(
    machine="here", device="a device", build="b", plan="p", tried=tried_of(SOME), band=20, dtype="float32", op="sum",
    in_place=False, alike=False, ranks=4, blocks=8, threads=512,
)  # fmt: skip
TIMES = [(one, 8.0 / one.lanes + one.rounds / 10) for one in SOME]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, but for the kernel, which need not be compiled again."""
    if shutil.which("c++") is not None:
        built = library("device").parent
        shutil.copytree(built, tmp_path / "native" / built.name)
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    return tmp_path / "device"


def file_of(folder: Path) -> Path:
    (path,) = folder.glob("*.json")
    return path


def test_what_was_timed_is_read_again(folder: Path) -> None:
    assert read(ASKED, SOME) == (None, "")
    put(ASKED, "allreduce by ring", TIMES)
    found, wrong = read(ASKED, SOME)
    assert found is not None
    assert (found.best, wrong) == (Choice("kernel", 4, 1), "")
    assert [one.lanes for one, _ in found.frontier] == [1, 2, 4]
    assert found.source == f"kept in {file_of(folder)}"
    assert file_of(folder).stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("key", [one.name for one in msgspec.structs.fields(Question)])
def test_another_question_has_another_answer(folder: Path, key: str) -> None:
    put(ASKED, "", TIMES)
    value = getattr(ASKED, key)
    other = msgspec.structs.replace(ASKED, **{key: f"{value}." if isinstance(value, str) else not value})
    assert read(other, SOME) == (None, "")


def damaged(text: dict[str, Any], how: str) -> Any:
    line = text["frontier"]
    changed: dict[str, Callable[[], Any]] = {
        "another version": lambda: text.update(format=2),
        "another device": lambda: text["question"].update(device="mine"),
        "more than is known": lambda: text.update(more=1),
        "a way that is none": lambda: line[0].update(way="rm"),
        "more lanes than are tried": lambda: line[-1].update(lanes=2**30),
        "less than no time": lambda: line[-1].update(seconds=-1.0),
        "times that rise": lambda: line.insert(0, line.pop(1)),
        "no way at all": line.clear,
        "endless": lambda: line[0].update(seconds=1e999),
    }
    changed[how]()
    return text


@pytest.mark.parametrize(
    "how",
    ["another version", "another device", "more than is known", "a way that is none", "more lanes than are tried",
     "less than no time", "times that rise", "no way at all", "endless"],
)  # fmt: skip
def test_what_is_not_as_it_was_written_is_refused(folder: Path, how: str) -> None:
    put(ASKED, "", TIMES)
    path = file_of(folder)
    path.write_text(json.dumps(damaged(json.loads(path.read_text()), how)))
    found, wrong = read(ASKED, SOME)
    assert found is None
    assert wrong.startswith(f"{path} is not used: ")
    assert "\n" not in wrong
    assert put(ASKED, "", TIMES, wrong).source == f"timed ({wrong}), kept in {path}"
    assert read(ASKED, SOME)[0] is not None  # the next one is right


def test_whatever_is_damaged_by_chance_is_refused_or_known(folder: Path) -> None:
    """And told in one line."""
    put(ASKED, "", TIMES)
    path, random, refused = file_of(folder), np.random.default_rng(7), 0
    whole = path.read_bytes()
    for _ in range(200):
        data = bytearray(whole)
        for at in random.integers(len(whole), size=int(random.integers(1, 4))).tolist():
            data[at] = int(random.choice([data[at] ^ 1 << int(random.integers(8)), *b"-0e9}],"]))
        path.write_bytes(data)
        found, wrong = read(ASKED, SOME)
        if found is None:
            refused += 1
            assert wrong.startswith(f"{path} is not used: ")
            assert "\n" not in wrong
        else:
            assert all(one in SOME for one, _ in found.frontier)
    assert refused > 100


@pytest.mark.parametrize(
    "what", ["cut", "long", "deep", "link", "written by others", "folder of others", "pipe", "folder"]
)
def test_what_may_be_of_others_is_refused(folder: Path, tmp_path: Path, what: str) -> None:
    put(ASKED, "", TIMES)
    path = file_of(folder)
    whole = path.read_bytes()
    if what == "cut":
        path.write_bytes(whole[:-20])
    elif what == "long":
        path.write_bytes(whole + b" " * 2**17)
    elif what == "deep":
        path.write_bytes(b"[" * 60000)
    elif what == "written by others":
        path.chmod(0o666)
    elif what == "folder of others":
        folder.chmod(0o777)
    else:
        path.unlink()
        if what == "link":
            (tmp_path / "elsewhere").write_bytes(whole)
            path.symlink_to(tmp_path / "elsewhere")
        elif what == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
    found, wrong = read(ASKED, SOME)
    assert (found, wrong.startswith(f"{path} is not used: ")) == (None, True)
    (row,) = antiphon.choices()
    assert row["wrong"]


def test_writers_at_once_leave_a_whole_one(folder: Path) -> None:
    """Whoever reads meanwhile has one of them."""
    slower = [[(one, seconds * factor) for one, seconds in TIMES] for factor in (1.0, 2.0, 3.0)]
    put(ASKED, "", slower[0])
    right = {tuple(seconds for _, seconds in put(ASKED, "", one).frontier) for one in slower}

    def write(turn: int) -> None:
        put(ASKED, "", slower[turn % 3])

    def look(turn: int) -> bool:
        del turn
        found, _ = read(ASKED, SOME)
        return found is not None and tuple(seconds for _, seconds in found.frontier) in right

    with ThreadPoolExecutor(4) as pool:
        writing = pool.map(write, range(60))
        assert all(pool.map(look, range(200)))
        list(writing)
    assert [path.name for path in folder.iterdir()] == [file_of(folder).name]


def test_nothing_is_kept_where_that_is_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_CACHE", "off")
    assert put(ASKED, "", TIMES).source == "timed, kept nowhere"
    assert read(ASKED, SOME) == (None, "")
    assert (antiphon.choices(), folder.exists()) == ([], False)


def test_where_nothing_can_be_written_the_choice_is_taken_all_the_same(folder: Path) -> None:
    folder.write_text("a file")
    found = put(ASKED, "", TIMES)
    assert found.best == Choice("kernel", 4, 1)
    assert found.source.startswith(f"timed, not kept in {folder}")
    assert antiphon.choices() == []


def test_only_so_many_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_FILES", 3)
    for band in range(8):
        put(msgspec.structs.replace(ASKED, band=band), "", TIMES)
    assert len(antiphon.choices()) == 3


def test_a_size_that_fills_the_memory_is_not_looked_at(folder: Path) -> None:
    put(msgspec.structs.replace(ASKED, band=10**9), "", TIMES)
    (row,) = antiphon.choices()
    assert "band" in str(row["wrong"])


def test_sizes_of_a_band_share_a_choice() -> None:
    bands = [band_of(size) for size in range(2000)]
    assert bands == sorted(bands)
    assert all(band_of(2**power) + 1 == band_of(2**power + 1) for power in range(1, 40))


def test_the_command_lists_and_forgets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for band in (16, 20):
        put(msgspec.structs.replace(ASKED, band=band), "allreduce by ring", TIMES)
    (folder / "notes.json").write_text("mine")
    assert command(["choices"]) == 0
    said = capsys.readouterr().out
    assert said.count("allreduce by ring") == 2
    assert "one kernel, 4 lanes, 1 round" in said
    rows = antiphon.choices()
    assert command(["choices", "--forget", rows[0]["name"], "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["choices"]] == [rows[1]["name"]]
    assert command(["choices", "--forget", "nobody"]) == 2
    assert "no choice of this name is kept" in capsys.readouterr().err
    with pytest.raises(Invalid):
        antiphon.choices(forget="")
    assert antiphon.choices(forget="all") == []
    assert [path.name for path in folder.iterdir()] == ["notes.json"]
    assert command(["choices"]) == 0
    assert capsys.readouterr().out == "no choices are kept\n"


def test_one_is_forgotten_by_what_tells_it_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is removed unless each of the names is one's alone; what is removed is told."""
    names = ["a" * 64, "ab" * 32, "abc" + "0" * 61]
    for name in names:
        put(ASKED, "allreduce by ring", TIMES)
        (folder / f"{ASKED.name}.json").rename(folder / f"{name}.json")
    there = sorted(folder.iterdir())
    assert [path.stem for path in there] == names
    for wrong, said in (
        (["ab"], "2 choices have names that begin so: abababababab, abc000000000"),
        (["abc", "a"], "3 choices have names that begin so"),
        (["all", "x"], "no choice of this name is kept"),
        (["aa", ""], "no choice of this name is kept"),
    ):
        with pytest.raises(Invalid, match=said):
            antiphon.choices(forget=wrong)
        assert sorted(folder.iterdir()) == there
    assert command(["choices", "--forget", "abc", "--forget", "abc0"]) == 0
    assert f"forgotten: {there[2]}\n" in capsys.readouterr().out
    assert command(["choices", "--forget", "all", "--forget", "aa", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"choices": [], "forgotten": [str(path) for path in there[:2]]}


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_a_run_times_once(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Another process takes what was found, where the size is of the same band; what is forgotten is timed again."""
    tried: list[Choice] = []

    def slowly(call: Callable[[Choice], None], some: Iterator[Choice]) -> list[tuple[Choice, float]]:
        found = list(some)
        call(found[0])
        tried.extend(found)
        return [(one, 1.0 + (one.way != "steps")) for one in found]

    monkeypatch.setattr(
        Threads, "choices", lambda self, plans, blocks, nbytes: choices(plans["plain"].streams, blocks, True, nbytes)
    )
    monkeypatch.setattr(sys.modules[Threads.__module__], "timed", slowly)
    plan = antiphon.plan("allreduce", "ring:ranks=2", planner="ring")
    sources = list[str]()
    for size, dtype in (("12KB", "float32"), ("12KB", "float32"), ("10KB", "float32"), ("40KB", "float32"),
                        ("12KB", "int8")):  # fmt: skip
        (row,) = antiphon.run(plan, size, on="threads", dtype=dtype)
        assert row["correct"]
        assert row["choice"]["way"] == "steps"
        assert row["frontier"][0]["seconds"] == 1.0
        sources.append(row["choice_from"].partition(" in ")[0])
    assert sources == ["timed, kept", "kept", "kept", "timed, kept", "timed, kept"]
    assert len(antiphon.choices()) == 3
    antiphon.save(plan, folder.parent / "plan.json")
    assert command(["run", str(folder.parent / "plan.json"), "--nbytes", "12KB", "--on", "threads"]) == 0
    assert "by steps, 1 lane, 1 round; kept in" in capsys.readouterr().out
    antiphon.choices(forget="all")
    (row,) = antiphon.run(plan, "12KB", on="threads")
    assert row["choice_from"].startswith("timed, kept in ")
