"""Topology files that people write by hand: what is wrong is refused with its place and the way out, and what is valid
but hardly meant is reported."""

import json
import re
import warnings
from pathlib import Path

import pytest
from tables import listed

import antiphon
from antiphon.cli import run
from antiphon.core.serialize import dumps, loads, save_topology
from antiphon.errors import Invalid, UnlikelyInput
from antiphon.topologies import topology

GOOD = """{
  "format": "antiphon-topology",
  "version": 1,
  "name": "square",
  "ranks": 4,
  "types": [
    {"kind": "nvlink", "bandwidth": "25GB/s", "latency": "1us"}
  ],
  "links": [
    [0, 1, 0], [1, 0, 0],
    [1, 2, 0], [2, 1, 0],
    [2, 3, 0], [3, 2, 0],
    [0, 3, 0], [3, 0, 0]
  ],
  "limits": [{"name": "nic", "links": [0], "bandwidth": "10GB/s"}],
  "places": ["a", "b", "c", "d"]
}
"""
# What is written instead of what, and the whole message behind the name of the file
MISTAKES = {name: tuple(rest) for name, *rest in listed("slips")}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_with_its_place(mistake: str) -> None:
    old, new, message = MISTAKES[mistake]
    assert old in GOOD
    with pytest.raises(Invalid, match=re.escape(f"square.json: {message}")) as caught:
        loads(GOOD.replace(old, new, 1).encode(), "square.json")
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize(("keys", "likely"), [('"entries": []', "plan"), ('"kind": "gather"', "collective")])
def test_a_missing_format_is_likely_what_the_keys_say(keys: str, likely: str) -> None:
    with pytest.raises(Invalid, match=f'"format": "antiphon-{likely}"'):
        loads(f"{{{keys}}}".encode())


SLIPS = {
    '"25GB/s"| 25': 'line 7, column 38: types[0].bandwidth: 25 without a unit is in bytes per second; write "25GB/s"',
    '"25GB/s"|"25"': 'line 7, column 37: types[0].bandwidth: 25 without a unit is in bytes per second; write "25GB/s"',
    '"25GB/s"|25000': 'types[0].bandwidth: 25000 without a unit is in bytes per second; write "25000MB/s"',
    '"10GB/s"|10': 'line 15, column 57: limits[0].bandwidth: 10 without a unit is in bytes per second; write "10GB/s"',
    '"1us"|1': 'line 7, column 58: types[0].latency: 1 without a unit is in seconds; write "1us", or "1s"',
    ", [3, 2, 0]|": (
        "line 12, column 5: links[4]: [2, 3, 0] has no link back; add [3, 2, 0], or give it a type of its own"
    ),
}


def unlikely(data: bytes, name: str = "square.json") -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loads(data, name)
    return [str(one.message) for one in caught if issubclass(one.category, UnlikelyInput)]


@pytest.mark.parametrize("slip", SLIPS)
def test_what_is_hardly_meant_is_reported(slip: str) -> None:
    old, _, new = slip.partition("|")
    assert old in GOOD
    said = unlikely(GOOD.replace(old, new, 1).encode())
    assert len(said) == 1
    assert said[0].startswith("square.json: ")
    assert SLIPS[slip] in said[0]


def test_several_are_one_line() -> None:
    text = GOOD.replace('"25GB/s"', "25").replace('"1us"', "1")
    assert [line.partition("meant ")[2] for line in unlikely(text.encode())] == ["(and 1 more like it in this file)"]


@pytest.mark.parametrize("change", [
    "|", '"25GB/s"|25000000000', '"25GB/s"|"25B/s"', '"25GB/s"|1000000', '"1us"|1e-6', '"1us"|0.05', '"1us"|"1s"',
])  # fmt: skip
def test_what_is_meant_is_not(change: str) -> None:
    old, _, new = change.partition("|")
    assert unlikely(GOOD.replace(old, new, 1).encode() if old else GOOD.encode()) == []


def test_one_way_by_a_type_of_its_own_is_meant() -> None:
    second = '"latency": "1us"}, {"kind": "tap", "bandwidth": "1GB/s"}'
    text = GOOD.replace('"latency": "1us"}', second).replace("[3, 2, 0]", "[3, 1, 1]").replace("[2, 3, 0]", "[2, 0, 1]")
    assert unlikely(text.encode()) == []


def test_a_slow_machine_that_was_made_so_is_written_with_its_units(tmp_path: Path) -> None:
    """So that what a spec says with its units is not reported when its file is read."""
    machine = topology("full:ranks=4,bandwidth=7/3B/s,latency=1s")
    data = dumps(machine)
    assert unlikely(data) == []
    assert loads(data) == machine
    save_topology(tmp_path / "slow.json", machine)
    assert antiphon.topology(str(tmp_path / "slow.json")) == machine


def test_every_command_reports_it_in_a_line_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.json").write_text(GOOD.replace('"25GB/s"', "25"), encoding="utf-8")
    line = (
        "antiphon: warning: t.json: line 7, column 37: types[0].bandwidth: 25 without a unit is in bytes per second; "
    )
    for command in ("topology show t.json", "bound allgather t.json", "plan allgather t.json --planner ring -o p.json"):
        assert run(command.split()) == 0
        told = capsys.readouterr()
        assert told.err.startswith(line)
        assert told.err.count("\n") == 1
    plan = Path("p.json").read_text(encoding="utf-8")
    assert run(["verify", "p.json"]) == 0
    assert capsys.readouterr().err == ""  # our own file has the unit
    Path("p.json").write_text(plan.replace('"25B/s"', "25"), encoding="utf-8")
    assert run(["verify", "p.json"]) == 0
    assert "topology.types[0].bandwidth: 25 without a unit" in capsys.readouterr().err


def test_python_warns_and_a_table_warns_once(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(GOOD.replace('"25GB/s"', "25"), encoding="utf-8")
    with pytest.warns(UnlikelyInput, match=r"types\[0\].bandwidth: 25 without a unit"):
        machine = antiphon.topology(str(path))
    table = {kind: antiphon.plan(kind, machine, planner="ring") for kind in ("allgather", "allreduce")}
    antiphon.save(table, tmp_path / "table.json")
    text = (tmp_path / "table.json").read_text(encoding="utf-8").replace('"25B/s"', "25")
    (tmp_path / "table.json").write_text(text, encoding="utf-8")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        antiphon.load(tmp_path / "table.json")
    said = [str(one.message) for one in caught]
    assert len(said) == 1
    place = re.search(r"line ([0-9]+), column ([0-9]+)", said[0])
    assert place is not None
    assert text.splitlines()[int(place[1]) - 1][int(place[2]) - 1 :].startswith("25")
    assert json.loads(text)["format"] == "antiphon-table"
