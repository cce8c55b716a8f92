"""The command line as people and scripts use it: exit codes, one clear line, stable JSON keys, nothing lost."""

import gzip
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Capture, answer, complaint
from tables import refused

import antiphon
import antiphon.cost
from antiphon import cli
from antiphon.cli import application, keep_freed_memory, run

pytestmark = pytest.mark.usefixtures("own_folder")


def a_plan(capsys: Capture, name: str = "plan.json", *more: str) -> dict[str, Any]:
    answer(capsys, "plan", "allreduce", "dgx1v", "-o", name, *more)
    content = Path(name).read_bytes()
    loaded: dict[str, Any] = json.loads(gzip.decompress(content) if name.endswith("gz") else content)
    return loaded


# ---- what scripts rely on ----


def test_one_plan_of_a_table_is_named_behind_a_colon(capsys: Capture) -> None:
    tune = ["tune", "all", "full:ranks=2", "--nbytes", "1KB", "--planner", "direct"]
    answer(capsys, *tune, "-o", "table.json")
    assert answer(capsys, "verify", "table.json:all_reduce") == {"ok": True, "fault": None}
    assert run(["verify", "table.json:allreduce"]) == 0
    assert capsys.readouterr().out.startswith("right: allreduce on full:ranks=2, 1 schedule")
    assert "unknown collective in table.json 'allreduc'" in complaint(capsys, "verify", "table.json:allreduc")
    composed = answer(capsys, "plan", "--from", "table.json:reducescatter", "--from", "table.json:allgather")
    assert composed["collective"] == "allreduce"
    for command in (["plan", "--from", "table.json"], ["predict", "table.json", "--together", "--nbytes", "1KB"]):
        assert "table.json: holds plans for allreduce" in complaint(capsys, *command)


def test_lists(capsys: Capture) -> None:
    assert {"ring", "full", "dgx1v"} <= {row["name"] for row in answer(capsys, "list", "topologies")}
    planners = {row["name"]: row for row in answer(capsys, "list", "planners")}
    assert {"allgather", "reducescatter", "allreduce", "broadcast"} <= set(planners["ring"]["collectives"])
    assert len(planners) >= 12


def test_plan_keys_and_verify(capsys: Capture) -> None:
    figures = answer(capsys, "plan", "allgather", "dgx1v", "--planner", "ring", "-o", "plan.json")
    keys = "planner collective topology chunks steps rounds transfers verified bandwidth_gap latency_gap proof"
    assert set(keys.split()) <= set(figures)
    assert (figures["chunks"], figures["steps"], figures["rounds"], figures["bandwidth_gap"]) == (4, 7, 7, 1.5)
    assert figures["verified"] is True
    assert answer(capsys, "verify", "plan.json") == {"ok": True, "fault": None}
    assert answer(capsys, "verify", "plan.json", "--proof")["ok"]


def test_a_file_in_place_of_a_machine(capsys: Capture) -> None:
    Path("notes").write_text("hello")
    Path("dgx1v").mkdir()  # what bears the name of a machine is one
    Path("machine.json").write_text(json.dumps(answer(capsys, "topology", "show", "ring:ranks=4")))
    assert "holds one, write ./notes" in complaint(capsys, "bound", "allreduce", "notes")
    assert "a file takes no options" in complaint(capsys, "bound", "allreduce", "machine.json:ranks=8")
    assert answer(capsys, "bound", "allreduce", "dgx1v")["latency_steps"] == 2
    assert answer(capsys, "bound", "allreduce", "./machine.json")["latency_steps"] == 2


def test_store_get_prints_the_command_that_makes_the_plan(capsys: Capture) -> None:
    request = ["broadcast:root=1", "ring:ranks=2", "--nbytes", "1KB", "--planner", "ring", "--store", "kept plans"]
    said = complaint(capsys, "store", "get", *request, code=1)
    command = re.findall("`antiphon (.*)` makes it", said)[0]
    assert shlex.split(command) == ["tune", *request]
    assert run(shlex.split(command)) == 0
    capsys.readouterr()
    assert answer(capsys, "store", "get", *request)["stored"] is True


def test_shares_that_are_not_one_for_each_plan(capsys: Capture) -> None:
    a_plan(capsys)
    assert "2 for 1 plans" in complaint(capsys, "plan", "--from", "plan.json", "--at-once", "--shares", "1,1")


@pytest.mark.parametrize("value", [("--nbytes", ""), ("--nbytes=",), ("--planner", "", "--seed", "1"), ("-o", "")])
def test_an_empty_value_is_refused(capsys: Capture, value: tuple[str, ...]) -> None:
    """As of a variable that is not set: never taken as if the option were left out."""
    option = value[0].rstrip("=")
    assert f"{option}: its value is empty" in complaint(capsys, "plan", "allreduce", "ring:ranks=4", *value)


def test_run_keys(capsys: Capture) -> None:
    a_plan(capsys)
    for dtype, op in (("float32", "sum"), ("bfloat16", "max"), ("int8", "prod"), ("float16", "avg")):
        (row,) = answer(capsys, "run", "plan.json", "--nbytes", "100KB", "--dtype", dtype, "--op", op)["rows"]
        assert {"nbytes", "seconds", "algbw", "busbw", "reference_seconds", "correct"} <= set(row)
        assert row["correct"] is True
        assert row["nbytes"] == 100_000
    for size in ("0", "1f32", "7f32"):
        assert answer(capsys, "run", "plan.json", "--nbytes", size)["rows"][0]["correct"]
    assert run(["run", "plan.json", "--nbytes", "1KB"]) == 0
    assert "all ranks in one process" in " ".join(capsys.readouterr().out.split())  # its times say little
    several = answer(capsys, "run", "plan.json", "--nbytes", "1KB:16KB:4")["rows"]
    assert [row["nbytes"] for row in several] == [row["nbytes"] for row in antiphon.run("plan.json", "1KB:16KB:4")]


def test_topology_json_is_a_topology(capsys: Capture) -> None:
    first = answer(capsys, "topology", "show", "dgx1v")
    Path("mine.json").write_text(json.dumps(first))
    assert answer(capsys, "topology", "show", "mine.json") == first
    assert answer(capsys, "bound", "allgather", "mine.json")["bandwidth"]["inverse"] == "7/6"
    assert run(["topology", "show", "dgx1v", "-o", "mine.svg", "-o", "mine.json"]) == 0
    assert antiphon.topology("mine.json") == antiphon.topology("dgx1v")
    assert Path("mine.svg").read_text().startswith("<svg")


def test_where_no_planner_was_named_the_command_that_tries_all_is(capsys: Capture) -> None:
    def said(*arguments: str) -> str:
        capsys.readouterr()
        assert run(arguments) == 0
        return capsys.readouterr().out

    asked = ["broadcast:root=1", "star:ranks=4,only=0-2", "--nbytes", "1MB", "--model", "alpha-beta"]
    line = "  next:      ring is the default; to try all planners:"
    told = said("plan", *asked)
    assert told.startswith("broadcast from rank 1 on star:ranks=4 only 0,1,2 by ring: ")
    assert " chunks of the root's data, " in " ".join(told.split())
    assert re.search(r"\n  at 1MB:    [0-9.]+ us, predicted by model alpha-beta\n", told)
    assert "times the least time" in told
    named = told.partition(f"{line}\n")[2].splitlines()[0].removeprefix("    antiphon ")
    assert sorted(named.split()) == sorted(["tune", *asked])
    assert "all verified" in said(*named.split(), "--planner", "ring")  # it is a command
    for more in (["--planner", "ring"], ["--deterministic"]):
        assert line not in said("plan", *asked, *more)
    assert line not in said("plan", "allgather", "full:ranks=2")  # nothing is better


def test_same_input_same_plan(capsys: Capture) -> None:
    a_plan(capsys, "one.json")
    a_plan(capsys, "two.json")
    assert Path("one.json").read_bytes() == Path("two.json").read_bytes()
    assert a_plan(capsys, "three.json.gz") == json.loads(Path("one.json").read_text())


def test_of_several_schedules_the_best_for_a_size_or_all(capsys: Capture) -> None:
    group = ("allreduce:ranks=0,2", "line:ranks=3", "--planner", "relay")
    small, large = (answer(capsys, "plan", *group, "--nbytes", size) for size in ("1KB", "1GB"))
    assert small["steps"] < 10
    assert large["steps"] > 100
    assert small["bandwidth_gap"] > large["bandwidth_gap"]
    every = answer(capsys, "plan", *group, "--all", "-o", "many.json")["plans"]
    assert [one["options"]["pieces"] for one in every] == [1, 8, 32, 128, 512]
    assert all(one["verified"] for one in every)
    for number in (1, len(every)):
        assert answer(capsys, "verify", f"many-{number}.json")["ok"]
    assert not Path("many.json").exists()
    assert "give --nbytes" in complaint(capsys, "plan", *group, "--model", "alpha-beta")
    assert "leave one of them out" in complaint(capsys, "plan", *group, "--model", "sccl", "--all")
    assert "did you mean" in complaint(capsys, "plan", *group, "--nbytes", "1KB", "--model", "alphabeta")


def test_a_plan_of_one_order_of_combining(capsys: Capture) -> None:
    machine = ("allreduce", "full:ranks=6", "--deterministic")
    figures = answer(capsys, "plan", *machine, "-o", "same.json")
    assert figures["order"]
    assert answer(capsys, "verify", "same.json")["ok"]
    assert answer(capsys, "plan", *machine, "--nbytes", "1KB")["planner"] == "direct"  # the fastest of those that can
    assert answer(capsys, "plan", *machine, "--planner", figures["planner"])["order"] == figures["order"]
    every = answer(capsys, "plan", *machine, "--all")["plans"]
    assert {"recursive-doubling", "binomial-tree"} <= {one["planner"] for one in every}
    assert not {"ring", "double-binary-tree"} & {one["planner"] for one in every}
    said = complaint(capsys, "plan", *machine, "--planner", "ring", code=1)
    assert "planner ring: it combines the parts of the data in different orders" in said
    assert "name it, too" in complaint(capsys, "plan", *machine, "--planner", ":pieces=4")
    assert answer(capsys, "plan", "allgather", "ring:ranks=4", "--deterministic", "--planner", "ring")["order"] == ""
    some = ("dgx1v:only=1,4,5,6", "--deterministic")
    assert answer(capsys, "plan", "allreduce", *some)["planner"] == "relay"  # goes where the classics do not
    assert "has a schedule for reducescatter" in complaint(capsys, "plan", "reducescatter", *some, code=1)
    assert "cannot be reached" in complaint(capsys, "plan", "allreduce", "dgx1v:only=1,4", "--deterministic")


@pytest.mark.slow
def test_an_allocation_without_a_ring_says_what_nccl_would_do(capsys: Capture) -> None:
    assert run(["tune", "allreduce", "dgx1v:only=1,4,5,6", "--nbytes", "1MB", "--planner", "relay"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the links hold no ring: PCIe at half a link, not calibrated" in said
    assert run(["tune", "allreduce", "dgx1v:only=1,4", "--nbytes", "1MB"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "no links lead from rank 1 to rank 4" in said
    said = complaint(capsys, "tune", "allreduce", "dgx1v:only=1,4", "--on", "mpi")
    assert "dgx1v:only=1,4: cannot be combined with --on" in said


def test_allocations_and_groups_keep_the_numbers(capsys: Capture) -> None:
    answer(capsys, "plan", "broadcast:root=4", "dgx1v:only=0,3,4,7", "-o", "four.json")
    plan = json.loads(Path("four.json").read_text())
    schedule = plan["entries"][0]["schedule"]
    assert set(schedule["src"]) | set(schedule["dst"]) == {0, 3, 4, 7}
    assert answer(capsys, "run", "four.json", "--nbytes", "1KB")["rows"][0]["correct"]
    alone = answer(capsys, "bound", "allgather", "dgx1v:only=0,1,2")["bandwidth"]
    assert answer(capsys, "bound", "allgather", "ring:only=0-3,ranks=8") == answer(
        capsys, "bound", "allgather", "ring:ranks=8,only=0-3"
    )
    assert "expected ranks such as" in complaint(capsys, "bound", "allgather", "dgx1v:only=x")
    relayed = answer(capsys, "bound", "allgather:ranks=0,1,2", "dgx1v")["bandwidth"]
    assert eval(alone["inverse"]) > eval(relayed["inverse"])
    assert "only= keeps" in complaint(capsys, "bound", "allgather:ranks=0,5", "dgx1v:only=0-2")


def test_a_wrong_plan_is_named_and_exits_with_1(capsys: Capture) -> None:
    plan = a_plan(capsys)
    schedule = plan["entries"][0]["schedule"]
    for name in ("step", "chunk", "src", "dst", "op"):
        schedule[name] = schedule[name][:-1]
    Path("short.json").write_text(json.dumps(plan))
    fault = answer(capsys, "verify", "short.json", code=1)["fault"]
    assert set(fault) == {"kind", "step", "chunk", "src", "dst", "message"}
    assert fault["kind"] == "post"
    assert "the plan is wrong" in complaint(capsys, "run", "short.json", "--nbytes", "1KB", code=1)
    plan = a_plan(capsys)
    plan["entries"][0]["claims"]["rounds"] = 3
    Path("boast.json").write_text(json.dumps(plan))
    assert answer(capsys, "verify", "boast.json", code=1)["fault"]["kind"] == "claim"
    plan["entries"][0]["claims"].update(rounds=14, bandwidth_gap=1.0)
    Path("boast.json").write_text(json.dumps(plan))
    assert "bandwidth_gap" in answer(capsys, "verify", "boast.json", code=1)["fault"]["message"]
    assert answer(capsys, "verify", "plan.json", "--topology", "ring:ranks=8", code=1)["fault"]["kind"] == "route"


# ---- bad input: one clear line, exit code 2 ----


@pytest.mark.parametrize(("arguments", "says"), refused("commands"))
def test_bad_input(capsys: Capture, arguments: str, says: str) -> None:
    assert says in complaint(capsys, *arguments.split())


def test_bad_runs(capsys: Capture) -> None:
    a_plan(capsys)
    for more, says in [
        ("--nbytes 1KB --on torch:scale=1", "unknown option of runtime torch 'scale'"),
        ("--nbytes 1KB --on mars", "unknown"),
        ("--nbytes 1KB --dtype flaot32", "float32"),
        ("--nbytes 1KB --op summ", "sum"), ("--nbytes -5", "cannot read"), ("--nbytes 1KB --repeat 0", "repeat"),
    ]:  # fmt: skip
        assert says in complaint(capsys, "run", "plan.json", *more.split())
    assert "ranks" in complaint(capsys, "verify", "plan.json", "--topology", "ring:ranks=4")


@pytest.mark.slow
def test_a_run_under_torch_starts_its_own_processes(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    a_plan(capsys)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")  # as torchrun sets it
    assert "without torchrun" in complaint(capsys, "run", "plan.json", "--nbytes", "1KB", "--on", "torch")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '{"format": "antiphon-plan"}', "\x00\xff", '{"format": "antiphon-plan", "version": 99}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_malformed_files(capsys: Capture, text: str) -> None:
    Path("bad.json").write_text(text, errors="surrogateescape")
    for command in (["verify", "bad.json"], ["bound", "allreduce", "bad.json"], ["bound", "bad.json", "dgx1v"]):
        assert "bad.json" in complaint(capsys, *command)


# ---- output that cannot be written: existing files stay ----


def test_unwritable_output(capsys: Capture) -> None:
    Path("folder").mkdir()
    for target in ("folder", "missing/plan.json", "/dev/full/x.json", "/proc/plan.json"):
        complaint(capsys, "plan", "allreduce", "dgx1v", "-o", target)


def test_the_version_is_said_without_numpy() -> None:
    code = "import sys; from antiphon.cli import run; run(['--version']); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def commands() -> list[list[str]]:
    """All that is there, groups by themselves and with each of theirs."""
    found = []
    for name, command in application().commands.items():  # type: ignore[attr-defined]
        if not command.hidden:
            found.append([name])
            found += [[name, inner] for inner, c in getattr(command, "commands", {}).items() if not c.hidden]
    return found


@pytest.mark.parametrize("command", [[], *commands()], ids=" ".join)
def test_help_has_an_example(capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example: antiphon" in out.splitlines()[-1]  # whole, to be copied
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("command", "heading"), [([], "Machines"), ([], "More"), (["topology"], "Commands"), (["bench"], "Commands")]
)
def test_a_group_of_commands_alone_shows_what_it_has(capsys: Capture, command: list[str], heading: str) -> None:
    assert run(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"\n{heading}:\n" in err


def test_version(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"antiphon {antiphon.__version__}\n"


PLACES = {  # of commands that are no function of the package itself
    "check-log": "measure.check_log", "doctor": "machines.doctor", "explore": "pages.explore",
    "frontier": "frontier.find", "bench": "measure.bench", "build": "native.build", "lab": "lab", "list": "available",
    "fit": "fit", "replay": "replay.job", "reproduce": "papers.reproduce", "store": "sweep.Store",
    "sweep": "sweep.run", "table": "replay.learned", "trace": "traces", "watch": "measure.watch",
}  # fmt: skip


def test_every_command_is_a_function_of_the_package() -> None:
    for module in ("planners.table", "reproduce.table", "topologies.table"):
        importlib.import_module(f"antiphon.{module}")
    for name, *_ in commands():
        where = name if name in antiphon.__all__ else PLACES[name]
        found: Any = antiphon
        for part in where.split("."):
            found = getattr(found, part)
        assert callable(found) or found.__all__, name
    assert {row["name"] for row in antiphon.available.topologies()} >= {"ring", "dgx1v"}
    assert {row["name"] for row in antiphon.available.planners()} >= {"ring", "multi-ring"}
    assert {row["name"] for row in antiphon.available.models()} >= {"alpha-beta", "critical-path"}


def test_what_a_review_found(capsys: Capture) -> None:
    machine = {
        "format": "antiphon-topology", "version": 1, "name": "sw\u00e9\u4e2d", "ranks": 4, "switches": 1,
        "types": [{"kind": "n", "bandwidth": "1B/s"}],
        "links": [[0, 4, 0], [4, 0, 0], [1, 4, 0], [4, 1, 0], [1, 2, 0], [2, 1, 0], [0, 3, 0], [3, 0, 0]],
    }  # fmt: skip
    Path("sw.json").write_text(json.dumps(machine))
    assert "no link or path through switches" in complaint(capsys, "plan", "allgather", "sw.json")
    assert "exactly once" in complaint(capsys, "plan", "allreduce", "dgx1v", "--planner", "ring:order=5")
    a_plan(capsys)
    assert "--seed" in complaint(capsys, "run", "plan.json", "--nbytes", "64", "--seed", "-1")
    heavy = {"format": "antiphon-collective", "version": 1, "ranks": 8, "kind": "allreduce", "weights": [1000003]}
    Path("heavy.json").write_text(json.dumps(heavy))
    assert answer(capsys, "plan", "heavy.json", "dgx1v")["bandwidth_gap"] == 1.5
    few = {**heavy, "members": [0, 1, 2], "weights": [1]}
    Path("few.json").write_text(json.dumps(few))
    answer(capsys, "bound", "few.json", "dgx1v:only=0-3")
    assert "rank 2 takes part" in complaint(capsys, "bound", "few.json", "dgx1v:only=0,1,3")
    assert run(["verify", "plan.json", "--topology", "full:ranks=8"]) == 0
    assert "another machine: not checked" in " ".join(capsys.readouterr().out.split())
    done = subprocess.run(
        [sys.executable, "-c", "from antiphon.cli import main; main()", "topology", "show", "sw.json"],
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="settings of the GNU C library")
@pytest.mark.parametrize(("most", "sizes"), [(2**28, [2**28]), (2**25, [2**28, 2**25]), (0, [2**28, 2**25])])
def test_older_c_librarieskeep_freed_memory_too(monkeypatch: pytest.MonkeyPatch, most: int, sizes: list[int]) -> None:
    """They refuse a large threshold, and would then map every larger array anew."""
    calls: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, option: int, value: int) -> int:
            calls.append((option, value))
            return int(value <= most)

    monkeypatch.setattr(cli.ctypes, "CDLL", lambda name: Library())
    keep_freed_memory()
    mmap_threshold, trim_threshold = -3, -1  # of malloc.h
    assert calls == [*((mmap_threshold, size) for size in sizes), (trim_threshold, -1)]
