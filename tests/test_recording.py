"""Recorded tunings: a recording gives the same result as planning, and one that is not right is ignored."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import record_tunings
from quick import in_turn

from antiphon import registry
from antiphon.select import Tuning, tune, tuner
from antiphon.select import recording as recording_module

MACHINE = "ring:ranks=4"
SIZES = [1000, 10**6]
PLANNERS = ("ring", "trees", "direct", "nvls")  # the last refuses the machine


def tuned(folder: Path, kind: str = "allgather", **options: Any) -> Tuning:
    return tune(kind, MACHINE, **{"nbytes": SIZES, "workers": "none", "recordings": folder, **options})


@pytest.fixture(scope="module", autouse=True)
def few_planners() -> Iterator[None]:
    """Leave only some planners in the table: with all of them every tuning takes a second."""
    table = registry.table
    with pytest.MonkeyPatch.context() as patch:
        planners = {name: table("planner")[name] for name in PLANNERS}
        patch.setattr(tuner, "table", lambda kind: planners if kind == "planner" else table(kind))
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuning]:
    folder = tmp_path_factory.mktemp("recordings")
    return folder, tuned(folder, record=True)


def changed(recorded: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return a folder with the recording, changed."""
    (file,) = recorded.iterdir()
    content = json.loads(gzip.decompress(file.read_bytes()))
    change(content)
    (folder / file.name).write_bytes(gzip.compress(json.dumps(content).encode()))
    return folder


def is_result_of(tuning: Tuning, other: Tuning) -> bool:
    return tuning.as_json() == other.as_json() and tuning.plan == other.plan


def reword(file: dict[str, Any]) -> None:
    """Change what no schedule proves: it shows in the result whether the file was replayed."""
    next(end for end in file["ends"] if end["reason"])["reason"] = "recorded"


def is_replayed(tuning: Tuning) -> bool:
    return any(candidate.reason == "recorded" for candidate in tuning.candidates)


def test_a_recording_gives_the_same_result(recorded: tuple[Path, Tuning], tmp_path: Path) -> None:
    folder, planned = recorded
    assert is_result_of(tuned(folder), planned)
    assert is_replayed(tuned(changed(folder, tmp_path, reword)))


@pytest.mark.parametrize("options", in_turn([
    {"nbytes": [1000]}, {"effort": 4.0}, {"seed": 1}, {"budget": 50.0}, {"deterministic": True}, {"ranks": [0, 1]},
    {"planners": ["ring"]}, {"nccl": False}, {"shortlist": 1}, {"sweep": {"pieces": (1, 2)}}, {"kind": "allreduce"},
    {"profile": "loggp-delta", "model": "loggp"},
], 3))  # fmt: skip
def test_another_request_is_planned(options: dict[str, Any], recorded: tuple[Path, Tuning], tmp_path: Path) -> None:
    assert not is_replayed(tuned(changed(recorded[0], tmp_path, reword), **options))


def test_changed_sources_are_another_request(
    recorded: tuple[Path, Tuning], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = changed(recorded[0], tmp_path, reword)
    monkeypatch.setattr(recording_module, "producer_versions", lambda: ("another release",))
    assert not is_replayed(tuned(folder))


def _winner(file: dict[str, Any]) -> dict[str, Any]:
    winners: list[dict[str, Any]] = [row for row in file["rows"] if row["entry"] is not None]
    return winners[0]


def halve_times(row: dict[str, Any]) -> None:
    prices = row["evaluation"]["prices"]
    prices["seconds"] = [seconds / 2 for seconds in prices["seconds"]]


def make_plans_topologies(file: dict[str, Any]) -> None:
    for kind, plan in file["plans"].items():
        file["plans"][kind] = {**plan["topology"], "format": "antiphon.topology", "version": 1}


def remove_winners(file: dict[str, Any]) -> None:
    for row in file["rows"]:
        row["entry"] = None


def speed_up_others(file: dict[str, Any]) -> None:
    for row in file["rows"]:
        if row["entry"] is None:
            halve_times(row)


def remove_transfer(file: dict[str, Any]) -> None:
    schedule = file["plans"]["allgather"]["entries"][0]["schedule"]
    for column in {"step", "chunk", "src", "dst", "op", "route"} & schedule.keys():
        schedule[column].pop()


DAMAGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "another format": lambda file: file.update(format=0),
    "no plans": lambda file: file.update(plans={}),
    "topologies as plans": make_plans_topologies,
    "a task without its end": lambda file: file["ends"].pop(),
    "figures for other sizes": lambda file: file["rows"][-1]["evaluation"]["prices"]["terms"].pop(),
    "an unknown task": lambda file: file["rows"][0].update(index=10**6),
    "a faster winner": lambda file: halve_times(_winner(file)),
    "fewer steps": lambda file: _winner(file)["evaluation"]["figures"].update(steps=1),
    "no schedule wins": remove_winners,
    "a faster candidate without its schedule": speed_up_others,
    "a transfer is missing": remove_transfer,
}


@pytest.mark.parametrize("name", in_turn(DAMAGES, 3))
def test_a_recording_that_is_not_right_is_ignored(
    name: str, recorded: tuple[Path, Tuning], tmp_path: Path
) -> None:  # fmt: skip
    def change(file: dict[str, Any]) -> None:
        reword(file)
        DAMAGES[name](file)

    folder, planned = recorded
    assert is_result_of(tuned(changed(folder, tmp_path, change)), planned)


def test_a_damaged_file_is_ignored(recorded: tuple[Path, Tuning], tmp_path: Path) -> None:
    folder = changed(recorded[0], tmp_path, lambda file: None)
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert is_result_of(tuned(folder), recorded[1])


def test_the_release_records_what_a_user_asks_for(tmp_path: Path) -> None:
    assert record_tunings.record_all(tmp_path, (MACHINE,), ("broadcast",)) < record_tunings.MAX_BYTES / 40
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()
    tuning = tune("broadcast", MACHINE, model="", recordings=tmp_path)
    assert is_result_of(tuning, tune("broadcast", MACHINE, model="", recordings=tmp_path / "none"))
    assert file.read_bytes() == before
