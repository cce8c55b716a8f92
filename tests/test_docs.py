"""What the documents show is run as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from lab_env import why_no_lab

from antiphon import registry
from antiphon.cli import run
from antiphon.core.verify import verify
from antiphon.registry import call
from antiphon.select import plan
from antiphon.topologies import topology

ROOT = Path(__file__).parent.parent


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The examples of the architecture page: files become modules, the rest is executed."""
    names: dict[str, Any] = {}
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in blocks("docs/architecture.md", "python"):
        if named := re.match(r"# file: (\w+)\.py\n", block):
            (tmp_path / f"{named[1]}.py").write_text(block)
            sys.modules.pop(named[1], None)
        else:
            exec(compile(block, "docs/architecture.md", "exec"), names)
    return names


def added(monkeypatch: pytest.MonkeyPatch, kind: str, name: str, entry: registry.Entry) -> None:
    """What an entry point of an installed package does."""
    whole = {**registry.table(kind), name: entry}
    old = registry.table
    monkeypatch.setattr(registry, "table", lambda k: whole if k == kind else old(k))


def test_the_examples_of_the_architecture_page_work(entries: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    added(monkeypatch, "topology", "kite", entries["TOPOLOGY"])
    machine = topology("kite:tail=2,bandwidth=20GB/s")
    assert (machine.ranks, machine.links, int(machine.unit)) == (6, 12, 20 * 10**9)
    added(monkeypatch, "planner", "relay", entries["PLANNER"])
    made = plan("broadcast", machine, planner="relay", options={"pieces": 4})
    assert verify(made.entries[0].schedule, machine).ok
    assert made.entries[0].claims["steps"] == 5 + 4 - 1
    predicted = entries["MODEL"].load()(made.entries[0].schedule, machine, alpha=1.0)(8 * 10**9)
    # eight steps; every link carries the whole: at most a quarter in a step, in eight steps
    assert predicted.terms == {"latency": 8.0, "bandwidth": pytest.approx(8 * 0.25 * 8 / 20)}
    assert predicted.seconds == sum(predicted.terms.values())
    files = call("backend", "as_csv", entries["BACKEND"].load(), {}, made)
    assert files["schedule0.csv"].splitlines()[:2] == ["step,chunk,src,dst,op", "0,0,0,1,0"]


@pytest.mark.parametrize(  # the first tunes what its commands tune, too
    "page", [pytest.param("README.md", marks=pytest.mark.slow), "docs/guide.md", "docs/tuning.md"]
)
def test_the_python_of_the_pages_runs(page: str) -> None:
    found = blocks(page, "python")
    assert found
    for block in found:
        exec(compile(block, page, "exec"), {})


def commands(page: str) -> list[str]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line for line in lines if line.startswith("$ antiphon ")]


WITH_COMMANDS = [
    page
    for page in ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
    if commands(page)
]


COMPILES = {  # pages whose commands need a C compiler
    "docs/auto.md", "docs/bench.md", "docs/measuring-gpus.md", "docs/mpi.md", "docs/stock.md", "docs/traces.md",
    "docs/tuning.md",
}  # fmt: skip
LABS = {"docs/lab.md"}  # and those that need root


LONG = {
    "docs/bench.md",
    "docs/device.md",
    "docs/guide.md",
    "docs/lab.md",
    "docs/measuring-gpus.md",
    "docs/models/loggp.md",
    "docs/models/nccl.md",
    "docs/mpi.md",
    "docs/replay.md",
    "docs/reproduction.md",
    "docs/planners/blink.md",
    "docs/planners/compose.md",
    "docs/planners/flows.md",
    "docs/planners/greedy.md",
    "docs/planners/sccl.md",
    "docs/planners/shallow.md",
    "docs/stock.md",
    "docs/tuning.md",
}  # what they run has tests of its own too


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in LONG else page for page in WITH_COMMANDS]
)
def test_the_commands_of_the_documents_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page for itself: whoever follows it needs no other."""
    if page in COMPILES and shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    if page in LABS and (why := why_no_lab()):
        pytest.skip(why)
    monkeypatch.chdir(tmp_path)
    for name, text in re.findall(
        r"^`([\w.-]+)`:\n\n```text\n(.*?)```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    ):
        Path(name).write_text(text)
    for line in commands(page):
        arguments = shlex.split(line.removeprefix("$ antiphon ").replace("64MiB", "64KiB"))
        assert run(arguments) == 0, line


def test_documents_have_commands() -> None:
    assert {"README.md", "docs/guide.md", "docs/tuning.md"} <= set(WITH_COMMANDS)


def test_links_between_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
