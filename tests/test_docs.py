"""What the documents show is run as it stands."""

import csv
import os
import re
import shlex
import shutil
import statistics
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import architecture_map
import mpi_env
import pytest
from commands import Capture
from lab_env import why_no_lab
from test_fit import TRUE, made
from test_fit_loggp import trips
from walk_readme import Block, Command, check, find_missing, read_blocks

from antiphon import registry
from antiphon.cli import run
from antiphon.cli.old_spellings import respell
from antiphon.core.program import codec
from antiphon.core.verify import verify
from antiphon.cost import Profile, save_profile
from antiphon.cost.fit import write_plan_times, write_round_trips
from antiphon.registry import call
from antiphon.runtimes.serve import book
from antiphon.select import plan
from antiphon.topologies import topology

ROOT = Path(__file__).parent.parent


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The examples of the page on extending: files become modules, the rest is executed."""
    names: dict[str, Any] = {}
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in blocks("docs/extending.md", "python"):
        if named := re.match(r"# file: (\w+)\.py\n", block):
            (tmp_path / f"{named[1]}.py").write_text(block)
            sys.modules.pop(named[1], None)
        else:
            exec(compile(block, "docs/extending.md", "exec"), names)
    return names


def added(monkeypatch: pytest.MonkeyPatch, kind: str, name: str, entry: registry.Entry) -> None:
    """What an entry point of an installed package does."""
    whole = {**registry.table(kind), name: entry}
    old = registry.table
    monkeypatch.setattr(registry, "table", lambda k: whole if k == kind else old(k))


def test_the_examples_of_the_extending_page_work(entries: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_tour_of_the_core_names_files_and_functions_that_exist() -> None:
    rows = re.findall(r"^\| `([\w/.]+)` \| (.*) \|$", (ROOT / "docs" / "extending.md").read_text(), re.MULTILINE)
    assert len(rows) > 10
    package = ROOT / "src" / "antiphon"
    for path, text in rows:
        names = re.findall(r"`([^`]+)`", text)
        files = [
            path,
            *(f"{path.rpartition('/')[0]}/{name}" if "/" not in name else name for name in names if "." in name),
        ]
        source = "".join((package / file).read_text() for file in files)
        assert [name for name in names if "." not in name and name not in source] == [], path


def test_the_map_of_folders_is_that_of_their_docstrings() -> None:
    assert architecture_map.read_map(architecture_map.PAGE.read_text()) == architecture_map.build_map(), (
        "run python release/architecture_map.py --write"
    )


@pytest.mark.parametrize(  # the first tunes what its commands tune, too
    "page", [pytest.param("docs/index.md", marks=pytest.mark.slow), "docs/tuning.md"]
)
def test_the_python_of_the_pages_runs(page: str) -> None:
    found = blocks(page, "python")
    assert found
    for block in found:
        exec(compile(block, page, "exec"), {})


def read_page(page: str) -> list[Block]:
    return read_blocks((ROOT / page).read_text())


PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
WITH_COMMANDS = [page for page in PAGES if any(not block.reason for block in read_page(page))]

# Blocks that are not run: their first line says so, and why.
UNTESTED = {
    "docs/bench.md": {"needs GPUs"},
    "docs/device.md": {"needs GPUs", "needs GPUs and their compilers"},
    "docs/fitting.md": {"needs GPUs", "needs the hosts that are to be measured"},
    "docs/reproduction.md": {"takes long"},
    "docs/stock.md": {"needs logs of nccl-tests", "needs GPUs", "needs NCCL 2.31"},
}

COMPILES = {  # pages whose commands need a C compiler
    "docs/auto.md", "docs/bench.md", "docs/device.md", "docs/export.md", "docs/have/mpi.md", "docs/have/no-cluster.md",
    "docs/have/nvidia.md", "docs/have/pytorch.md", "docs/index.md", "docs/mpi.md", "docs/numpy.md", "docs/stock.md",
    "docs/torch.md", "docs/tuning.md",
}  # fmt: skip

LONG = {  # what they run has tests of its own too
    "README.md", "docs/auto.md", "docs/bench.md", "docs/device.md", "docs/fitting.md", "docs/have/amd.md",
    "docs/have/fabric.md", "docs/have/mpi.md", "docs/have/no-cluster.md", "docs/have/nvidia.md", "docs/have/paper.md",
    "docs/have/pytorch.md", "docs/index.md", "docs/lab.md", "docs/models/loggp.md", "docs/models/nccl.md",
    "docs/mpi.md", "docs/numpy.md", "docs/replay.md", "docs/reproduction.md", "docs/planners/compose.md",
    "docs/planners/index.md", "docs/planners/sccl.md", "docs/planners/switches.md", "docs/planners/trees.md",
    "docs/stock.md", "docs/torch.md", "docs/tuning.md",
}  # fmt: skip

# What the root user and few cores need of Open MPI.
CONSENT = {
    **{f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1" for prefix in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")},
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class Reader:
    """Runs the commands of a page in an empty folder, in which the examples lie as in a clone.

    Plain calls of `antiphon` are run in this process, all else by bash: by Open MPI, or by MPICH in blocks for it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        self.folder, self.patch, self.capsys = folder, monkeypatch, capsys
        (folder / "examples").symlink_to(ROOT / "examples")
        monkeypatch.chdir(folder)

    def run_block(self, block: Block) -> None:
        if block.needs_lab and (why := why_no_lab()):
            pytest.skip(why)
        with_mpich = "mpich" in block.text or ("lab run" in block.text and "mpi" in block.text)
        mpi = mpi_env.mpich() if with_mpich else mpi_env.openmpi()
        for command in block.commands:
            line = command.line.replace("64MiB", "64KiB")
            plain = line.startswith("antiphon ") and not re.search(r"[$|;&>{]", line)
            if plain and not with_mpich:
                self.capsys.readouterr()
                code = run(shlex.split(line, comments=True)[1:])
                printed = [line for text in self.capsys.readouterr() for line in text.splitlines()]
                assert not (complaint := check(command, code, printed)), complaint
            else:
                if mpi is None and "mpi" in block.text:
                    pytest.skip("needs an MPI")
                self.run_line(replace(command, line=line), mpi)

    def run_line(self, command: Command, mpi: mpi_env.Mpi | None) -> None:
        """By bash; what it exports stays."""
        python = sys.executable if mpi is None else mpi.python
        tools = self.folder / "tools" / Path(python).parent.parent.name
        tools.mkdir(parents=True, exist_ok=True)
        (tools / "antiphon").write_text(f'#!/bin/sh\nexec {shlex.quote(python)} -m antiphon "$@"\n')
        (tools / "antiphon").chmod(0o755)
        environment = {**(dict(os.environ) if mpi is None else mpi.env), **CONSENT}
        environment["PATH"] = os.pathsep.join([str(tools), str(Path(python).parent), environment["PATH"]])
        script = f"{command.line}\ncode=$?\nenv -0 > exported\nexit $code"
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
        printed = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        assert not (complaint := check(command, done.returncode, printed)), complaint
        if command.line.startswith("export "):
            name = command.line.split()[1].partition("=")[0]
            exported = dict(entry.split("=", 1) for entry in Path("exported").read_text().split("\0") if entry)
            self.patch.setenv(name, exported[name])


def write_files(page: str) -> None:
    """Files that the page shows under their name, and measurements that its blocks for other hosts would write."""
    named = r"^`([\w.-]+)`:\n\n```\w+\n(.*?)^```|^```python\n(# file: (\w+\.py)\n.*?)^```"
    for name, text, code, script in re.findall(named, (ROOT / page).read_text(), re.DOTALL | re.MULTILINE):
        Path(name or script).write_text(text or code)
    if page == "docs/fitting.md":
        write_plan_times(made(seed=1), "times.csv")
        save_profile(Profile("memory", gamma=TRUE["gamma"], delta=TRUE["delta"]), "memory.json")
        for name in ("host.csv", "rest.csv"):
            write_round_trips(trips(), name)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in LONG else page for page in WITH_COMMANDS]
)
def test_the_commands_of_the_documents_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Each page for itself: whoever follows it needs no other."""
    if page in COMPILES and shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    reader = Reader(tmp_path, monkeypatch, capsys)
    write_files(page)
    for block in read_page(page):
        if not block.reason and "pip install" not in block.text:
            reader.run_block(block)


def test_blocks_that_are_not_run_are_listed() -> None:
    untested = {page: {block.reason for block in read_page(page)} - {""} for page in PAGES}
    assert {page: reasons for page, reasons in untested.items() if reasons} == UNTESTED


def test_commands_stand_in_blocks_that_are_run() -> None:
    """Not in blocks of other kinds, where nothing would run them."""
    line = r"(\$ )?(\w+=\S+ )*(antiphon|mpiexec|mpirun|torchrun|python|pip|make|export|nvcc|srun) .*"
    for page in PAGES:
        rest = re.sub(r"^```(console|sh)\n.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
        code = re.findall(r"^```\w*\n(.*?)^```", rest, re.DOTALL | re.MULTILINE)
        code += re.findall(r"^    (.*)", re.sub(r"^```.*?^```", "", rest, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
        assert [text for block in code for text in block.splitlines() if re.fullmatch(line, text)] == [], page


def test_commands_are_spelled_as_the_help_spells_them() -> None:
    """Spellings of the version before still run, with a warning; no page shows them."""
    for page in PAGES:
        for block in read_page(page):
            for words in re.findall(r"\bantiphon ([^|;&)#\n]+)", block.text):
                assert respell(words.split())[1] == [], (page, words)


def test_what_a_page_shows_is_compared_with_what_is_printed() -> None:
    (block,) = read_blocks("```console\n$ antiphon bound\nat most 400 GB/s\n...\n  2 steps\n```\n")
    (command,) = block.commands
    assert (command.line, command.exit_code) == ("antiphon bound", 0)
    assert find_missing(command.shown, ["first", "at most  410 GB/s", "other", "2 steps"]) == ""
    assert find_missing(command.shown, ["at most 520 GB/s", "2 steps"]) == "at most 400 GB/s"
    assert find_missing(command.shown, ["2 steps", "at most 400 GB/s"]) == "  2 steps"
    assert check(command, 1, []).startswith("`antiphon bound`: exit code 1")


def test_the_layout_of_programs_and_books_is_that_of_the_code() -> None:
    """docs/data/program-layout.csv: every field of fixed size at its offset, and no other."""
    letters = {"char[8]": "8s", "u16": "H", "u32": "I", "i32": "i", "u64": "Q", "i64": "q", "f64": "d"}
    layouts: dict[str, str] = {}
    with (ROOT / "docs/data/program-layout.csv").open() as file:
        for row in csv.DictReader(file):
            if row["offset"]:
                layout = layouts.get(row["table"], "<")
                assert struct.calcsize(layout) == int(row["offset"]), row
                layouts[row["table"]] = layout + letters[row["type"]]
    sizes = {table: struct.calcsize(layout) for table, layout in layouts.items()}
    entries = ("points", "bases", "classes", "slots", "operations", "parts", "waits", "finish")
    assert sizes == {
        "program header": codec.HEADER.size,
        "program directory entry": codec.DIRECTORY_ENTRY.size,
        "section header": codec.SECTION_HEADER.size,
        **{f"{name} entry": dtype.itemsize for name, dtype in zip(entries, codec.TABLES, strict=True)},
        "book header": book.HEADER.size,
        "book page": book.PAGE_ENTRY.size,
        "book program entry": book.PROGRAM_ENTRY.size,
    }


def test_the_figures_of_the_zoo_are_those_of_its_table() -> None:
    with open(ROOT / "docs/data/zoo.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ratios = [float(row[kind]) for row in rows for kind in row if kind not in ("machine", "cpu_seconds") and row[kind]]
    cases, median = len(ratios), f"{statistics.median(ratios):.3f}"
    above = sum(ratio > 1.05 for ratio in ratios)
    pages = ("docs/reproduction.md", "README.md")
    reproduction, readme = (" ".join((ROOT / page).read_text().split()) for page in pages)
    assert f"({cases} cases: median {median}, {above} above 1.05)" in reproduction
    assert f"Of {cases} best plans for 1 GB, the median takes [{median} times the bound]" in readme


def test_documents_have_commands() -> None:
    assert {"README.md", "docs/index.md", "docs/tuning.md"} <= set(WITH_COMMANDS)


def test_links_between_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
