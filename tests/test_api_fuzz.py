"""Public functions given what makes no sense: a result, or an error of ours."""

import gzip
import inspect
import math
import os
import random
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import replay_traces
from quick import ordinary

import antiphon
from antiphon.errors import AntiphonError, Invalid

CALLS = 400 if ordinary else 1000
SEED = 7


class Stranger:
    """An object of nobody's, which tells nothing of itself."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class BytePath(os.PathLike[bytes]):
    def __fspath__(self) -> bytes:
        return b"plan.json"


class NoPath(os.PathLike[str]):
    def __fspath__(self) -> str:
        raise ValueError


def given_files() -> dict[str, Any]:
    """Objects of every kind, and files of every kind and of none."""
    machine = antiphon.topology("ring:ranks=3")
    plan = antiphon.plan("allreduce", machine)
    tuning = antiphon.tune(
        "all", machine, nbytes="1KB", planners="ring", nccl=False, search=antiphon.Search(workers="none")
    )
    profile = antiphon.Profile("mine", alpha={"link": 1e-6})
    found = {"machine": machine, "plan": plan, "tuning": tuning, "profile": profile, "plans": dict(tuning.plans)}
    for name in ("machine", "plan", "tuning", "profile"):
        antiphon.save(found[name], f"{name}.json")
    antiphon.save(antiphon.collective("gather", machine), "collective.json")
    for kind in ("reducescatter", "allgather"):
        antiphon.save(antiphon.plan(kind, machine), f"{kind}.json")
    antiphon.save(antiphon.measure.memory(max_vectors=3, nbytes=4096, repeat=1), "times.csv")
    antiphon.export(plan, "program", "program")
    antiphon.export(plan, "chakra", "chakra", nbytes="1KB")
    antiphon.traces.simulate(plan, "1KB", trace="simulated.json")
    replay_traces.write(Path(), [replay_traces.ddp(0), replay_traces.ddp(1)])
    Path("damaged.json.gz").write_bytes(gzip.compress(b'{"format": "antiphon-plan"')[:-9])
    Path("cut.json").write_bytes(Path("plan.json").read_bytes()[:200])
    Path("noise.bin").write_bytes(random.Random(0).randbytes(500))
    Path("deep.json").write_text("[" * 100_000)
    Path("other.xml").write_text("<html><body/></html>")
    return found


def wrong_things(found: dict[str, Any]) -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    files = [str(path) for path in Path().rglob("*") if path.is_file()]
    return [
        None, True, -1, 0, 1, 3, 1.5, math.nan, math.inf, -math.inf, 10**30, -(10**30), 2**59, 1e300, 1j, "", " ", "x",
        "all", "none", "nowhere.json", ".", "/", "1KB", "1MB:2MB", "64PB", "1e400", "-5", "1/0", "9" * 5000, "k=1",
        "a\0b", "\ud800", "ring:ranks=2", "ring:ranks=0", "ring:ranks=", "loggp:fidelity=x", "alpha-beta", b"bytes", [],
        (), {}, [None], ["1KB", "2KB"], [1, -1], [0, 0], {"k": []}, {1: 2}, {"pieces": object()}, set(), range(3),
        range(10**12), object(), Stranger(), BytePath(), NoPath(), Path("plan.json"), Path(), len, int, ValueError("x"),
        np.array([1, 2]),
        np.array([[1.5]]), np.zeros((2, 2)),
        np.float64(3), np.int64(2), np.array("1KB"), np.dtype("float32"), iter([1]), loop, os,
        *found.values(), *files,
    ]  # fmt: skip


def silent(*_: object) -> None:
    pass


def right_calls(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """A small call of each function; of some only what goes wrong may be tried, as what is right starts processes."""
    machine, plan = found["machine"], found["plan"]
    wish = {"collective": "allreduce", "topology": machine, "ranks": [0, 1]}
    many = {"collective": "allgather", "topology": machine, "nbytes": "1KB", "planners": "ring",
            "search": antiphon.Search(workers="none")}  # fmt: skip
    return [
        ("topology", {"spec": "ring:ranks=3", "only": [0, 1]}), ("collective", wish), ("bound", wish),
        ("machines.degrade", {"topology": "dgx1v", "drop_links": "0-3", "slow": {"1-2": 0.5}, "drop_ranks": [7],
                     "fraction": None, "seed": 0}),
        ("plan", {**wish, "planner": "ring", "nbytes": "1KB", "model": "alpha-beta", "seed": 1, "budget": "2s",
                  "options": {}, "deterministic": False, "root": None, "progress": print}),
        ("write", {**wish, "root": None, "chunks": 2, "pieces": 3, "verify": True}),
        ("verify", {"plan": plan, "topology": machine, "proof": True}),
        ("verify", {"plan": plan, "runtime": "rccl-6", "nbytes": "1KB", "dtype": "float32", "op": "sum",
                    "in_place": True, "collective": ""}),
        ("Search", {"effort": 1.0, "budget": "2s", "seed": 1, "deterministic": True, "sweep": {},
                    "plans": ["plan.json"], "shortlist": 2}),
        ("predict", {"plan": "allreduce", "topology": "hgx-h100", "nbytes": "1KB:4KB", "library": "nccl"}),
        ("predict", {"plan": plan, "nbytes": "1KB:4KB", "model": "alpha-beta", "profile": None, "collective": ""}),
        ("traces.simulate", {"plan": plan, "nbytes": 1000, "model": "critical-path", "profile": None,
                             "trace": "trace.json"}),
        ("tune", {**many, "root": None, "ranks": None, "profile": None, "against": None, "nccl": True,
                  "progress": None}),
        ("machines.tune_family", {**many, "topology": "ring", "vary": "ranks=2,3"}),
        ("compose", {"plans": ["reducescatter.json", "allgather.json"], "at_once": False, "shares": None}),
        ("pages.report", {"tuning": found["tuning"]}), ("load", {"path": "plan.json", "kind": antiphon.Plan}),
        ("save", {"value": plan, "path": "again.json"}),
        ("export", {"plan": plan, "name": "goal", "folder": "goal", "nbytes": "1KB", "options": {}, "collective": ""}),
        ("run", {"plan": plan, "nbytes": "1KB", "on": "local", "dtype": "float32", "op": "sum", "seed": 0, "repeat": 1,
                 "in_place": False, "timeout": 5, "collective": ""}),
        ("frontier.find", {"collective": "alltoall", "topology": machine, "k": 0, "steps": 2, "budget": 1, "seed": 0,
                      "planner": "sccl", "options": {}, "memory": None}),
        ("fit.memory", {"measurements": "times.csv"}), ("papers.reproduce", {"name": "?"}),
        ("measure.memory", {"nbytes": 4096, "max_vectors": 3, "repeat": 1, "threads": 1}),
        ("measure.bench", {"what": "?", "topology": machine, "nbytes": "1KB", "on": "?", "dtype": "float32",
                           "op": "sum"}),
        ("lab.run", {"plan": "?", "nbytes": "1KB", "dtype": "float32"}), ("native.build", {"what": "?"}),
        ("traces.merge", {"files": ["simulated.json"], "output": "merged.json"}),
        ("traces.read", {"files": "chakra"}),
        ("replay.job", {"files": ["rank0.json", "rank1.json"], "topology": "full:ranks=2", "planners": "ring",
                    "model": "alpha-beta", "measured": None, "table": None, "profile": None, "library": "",
                    "cores": None, "progress": None}),
        ("comm.connect", {"communicator": None, "table": None, "rank": 0, "ranks": 1, "address": "localhost:1"}),
    ]  # fmt: skip


KEPT = {
    "measure.bench": ("what", "on"), "lab.run": ("plan",), "native.build": ("what",), "papers.reproduce": ("name",),
    "comm.connect": ("rank", "ranks"), "replay.job": ("planners",), "tune": ("planners", "search"),
    "machines.tune_family": ("planners", "search"),
}  # fmt: skip


def a_call(chance: random.Random, calls: list[Any], wrong: list[Any]) -> tuple[str, dict[str, Any]]:
    """One of them, with one to three things in it replaced."""
    name, arguments = chance.choice(calls)
    given = dict(arguments)
    free = [key for key in given if key not in KEPT.get(name, ())]
    for key in chance.sample(free, min(len(free), chance.randint(1, 3))):
        given[key] = chance.choice(wrong)
        if key == "progress" and callable(given[key]):
            given[key] = silent  # what a function of theirs raises is their own
    if chance.random() < 0.02:
        given["frobnicate"] = 1
    return name, given


def told(function: Callable[..., Any], given: dict[str, Any]) -> str:
    """What came out: "" if it was a result or an error of ours."""
    try:
        function(**given)
    except AntiphonError as error:
        return "" if str(error) and "\n" not in str(error) else f"not one line: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_what_makes_no_sense_is_told_in_our_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = given_files()
    calls, wrong, chance = right_calls(found), wrong_things(found), random.Random(SEED)
    assert {name for name, _ in calls} >= {
        name for name in antiphon.__all__ if callable(one := getattr(antiphon, name)) and not isinstance(one, type)
        and inspect.signature(one).parameters
    }  # fmt: skip
    strange = []
    for number in range(int(os.environ.get("ANTIPHON_FUZZ_CALLS", CALLS))):
        name, given = a_call(chance, calls, wrong)
        said = told(attrgetter(name)(antiphon), given)
        if said:
            strange.append(f"{number}: {name}({', '.join(given)}): {said}")
    assert not strange, "\n".join(strange)


NAMES_FIRST: dict[str, tuple[str, dict[str, Any]]] = {
    "measure.bench": ("what", {}), "native.build": ("what", {}), "papers.reproduce": ("name", {}),
    "comm.connect": ("ranks", {"rank": 0, "address": "localhost:1"}),
}  # fmt: skip


@pytest.mark.parametrize("function", list(NAMES_FIRST))
def test_what_chooses_the_work_makes_no_sense(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started for it. (Text is left out: some of these names mean long work.)"""
    monkeypatch.chdir(tmp_path)
    name, others = NAMES_FIRST[function]
    wrong = [one for one in wrong_things({}) if not isinstance(one, str | os.PathLike | int | np.integer)]
    said = {
        str(number): told(attrgetter(function)(antiphon), {name: one, **others}) for number, one in enumerate(wrong)
    }
    assert not [text for text in said.values() if text]


class Silent:
    """Raises whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"has no {name}, and will not say so")


@pytest.mark.parametrize("function", ["verify", "predict", "traces.simulate", "run", "save", "measure.bench"])
def test_objects_that_raise_are_refused_in_one_line(function: str, tmp_path: Path) -> None:
    others = {"verify": (), "save": (tmp_path / "x.json",)}.get(function, ("1KB",))
    with pytest.raises(AntiphonError) as told:
        attrgetter(function)(antiphon)(Silent(), *others)
    assert "\n" not in str(told.value)
    with pytest.raises(Invalid, match="nbytes: expected a size such as 64KB"):
        antiphon.run(antiphon.plan("allreduce", "ring:ranks=3"), Silent())
