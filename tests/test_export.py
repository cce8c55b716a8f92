"""antiphon list formats, export: the table of formats, files whole or not at all, one line for what is wrong."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Capture, complaint
from tables import refused

import antiphon
from antiphon import registry
from antiphon.cli import run
from antiphon.core.collective import Collective
from antiphon.core.plan import Plan
from antiphon.core.serialize import load_plan, save_plan
from antiphon.errors import Invalid, Missing, Unsupported
from antiphon.formats import emit, export, lacks, write_files
from antiphon.registry import BackendCapabilities, Entry, table
from antiphon.units import format_size


@pytest.fixture(autouse=True)
def _with_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "allreduce", "star:ranks=4", "--planner", "ring", "-o", "plan.json"]) == 0
    capsys.readouterr()


def test_backends(capsys: Capture) -> None:
    assert run(["list", "formats"]) == 0
    assert "LogGOPSim" in capsys.readouterr().out
    assert run(["list", "formats", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) >= {"goal", "piccl-xml"}
    for name, row in rows.items():
        assert row["available"] is True
        assert row["missing"] == ""
        assert row["needs"] == (["nbytes"] if name in ("chakra", "goal", "piccl-xml") else [])
    assert {row["name"] for row in antiphon.available.formats()} == set(rows)


@pytest.mark.parametrize(("name", "file"), [("goal", "schedule.goal"), ("piccl-xml", "schedule.xml")])
def test_export(capsys: Capture, name: str, file: str) -> None:
    line = f"export plan.json --to {name} --nbytes 64KiB -o deep/out"
    assert run(line.split()) == 0
    out, err = capsys.readouterr()
    path = Path("deep/out") / file
    assert (out, err) == (f"written: {path} ({format_size(path.stat().st_size)})\n", "")
    first = path.read_bytes()
    assert run([*line.replace(name, f"{name}:order=rounds", 1).split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"backend": name, "files": [{"file": str(path), "bytes": path.stat().st_size}], "notes": []}
    assert sorted(p.name for p in path.parent.iterdir()) == [file]
    made = antiphon.export(load_plan("plan.json"), name, nbytes="64KiB")
    assert made == {file: first}
    assert antiphon.export(load_plan("plan.json"), name, "deep/out", nbytes=65536) == [(path, len(first))]
    assert path.read_bytes() == first


def test_export_with_a_profile(capsys: Capture) -> None:
    line = "export plan.json --to piccl-xml:profile=loggp-delta --nbytes 1MiB -o out"
    assert run(line.split()) == 0
    assert capsys.readouterr().out.count("written: ") == 3
    assert run(["topology", "probe", "out/topology.xml", "--from", "piccl-xml", "-o", "machine.json", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["topology"], told["ranks"], told["written"]) == ("star:ranks=4", 4, ["machine.json"])
    assert run(["plan", "allreduce", "machine.json"]) == 0
    capsys.readouterr()
    assert "has no figures for LogGP" in complaint(capsys, *line.replace("loggp-delta", "genmodel-table5").split())


@pytest.mark.parametrize(("line", "says"), refused("export"))
def test_bad_exports(capsys: Capture, line: str, says: str) -> None:
    assert says in complaint(capsys, *line.split())
    assert not Path("out").exists()


def test_a_wrong_plan_is_not_written(capsys: Capture) -> None:
    made = load_plan("plan.json")
    entry = made.entries[0]
    save_plan("wrong.json", Plan.of(made.topology, entry.schedule.take(range(entry.schedule.transfers - 1))))
    line = "export wrong.json --to goal --nbytes 1KB -o out"
    assert "the plan is wrong and is not written" in complaint(capsys, *line.split(), code=1)
    assert not Path("out").exists()


# ---- files ----


def test_files_are_written_all_or_none() -> None:
    def broken() -> Iterator[bytes]:
        yield b"a part"
        raise Invalid("no more")

    Path("out").mkdir()
    Path("out/a.txt").write_text("before")
    with pytest.raises(Invalid, match="no more"):
        write_files("out", {"a.txt": "new", "b.txt": broken()})
    assert {p.name: p.read_text() for p in Path("out").iterdir()} == {"a.txt": "before"}
    assert write_files("out", {"a.txt": "é", "b.txt": iter([b"1", b"23"])}) == [
        (Path("out/a.txt"), 2),
        (Path("out/b.txt"), 3),
    ]
    assert {p.name: p.read_text() for p in Path("out").iterdir()} == {"a.txt": "é", "b.txt": "123"}
    Path("out/c.txt").mkdir()
    with pytest.raises(Invalid, match=r"out/c\.txt: cannot be written: is a directory"):
        write_files("out", {"a.txt": "later", "c.txt": "x"})
    assert Path("out/a.txt").read_text() == "é"
    for name in ("../a.txt", "/a.txt", "", "..", "sub/a.txt"):
        with pytest.raises(Invalid, match="expected a plain name"):
            write_files("out", {name: "x"})


# ---- the table ----


def added(monkeypatch: pytest.MonkeyPatch, entry: Entry) -> None:
    """What an entry point of an installed package does."""
    whole = {**registry.table("backend"), "mine": entry}
    old = registry.table
    monkeypatch.setattr(registry, "table", lambda kind: whole if kind == "backend" else old(kind))


def mine(plan: Plan, *, loud: bool = False) -> dict[str, Any]:
    return {"mine.txt": plan.collective.kind.upper() if loud else plan.collective.kind}


def test_a_back_end_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    made = load_plan("plan.json")
    where = f"{__name__}:mine"
    added(monkeypatch, Entry(where, "mine", BackendCapabilities()))
    assert emit(made, "mine", options={"loud": True}) == {"mine.txt": "ALLREDUCE"}
    assert export(made, "mine", "out") == [(Path("out/mine.txt"), 9)]
    with pytest.raises(Invalid, match="right for every size; leave nbytes out"):
        emit(made, "mine", nbytes=5)
    entry = Entry(where, "mine", BackendCapabilities(("broadcast",), modules=("json", "no_such_module")))
    assert lacks(entry) == "Python package no_such_module"
    added(monkeypatch, entry)
    with pytest.raises(Missing, match="format mine needs Python package no_such_module"):
        emit(made, "mine")
    added(monkeypatch, Entry(where, "mine", BackendCapabilities(("broadcast",), programs=("python3",))))
    with pytest.raises(Unsupported, match="does not write allreduce"):
        emit(made, "mine")


@pytest.mark.parametrize("planner", ["direct", "flows"])
def test_where_no_rank_has_any_data(planner: str) -> None:
    """Written, or refused in our words: nothing divides by how much there is."""
    machine = antiphon.topology("full:ranks=3")
    plan = antiphon.plan(Collective("alltoall", 3, weights=np.zeros(9, int)), machine, planner=planner)
    refused = set()
    for name in ("cuda", "hip", "msccl-xml", "mscclpp-json", "program", "goal", "chakra", "piccl-xml"):
        needs = table("backend")[name].can.needs
        try:
            antiphon.export(plan, name, nbytes=1024 if needs else None)
        except Unsupported:
            refused.add(name)
    assert "mscclpp-json" in refused
    assert not refused & {"program", "goal", "chakra", "piccl-xml"}
