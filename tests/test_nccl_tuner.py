"""The tuner plugin for a stock NCCL: what it chooses by every version of the interface, asked from C as NCCL asks;
its table, also a hostile one; and what is exported for it.

NCCL's own header is looked for in $ANTIPHON_TEST_NCCL (the folder with nccl.h), else in the wheel nvidia-nccl-cu13 or
nvidia-nccl-cu12.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from nccl_header import build_anew, cuda_names, header
from tables import listed

import antiphon
from antiphon.cli import run
from antiphon.core.plan import Entry, Plan
from antiphon.errors import Invalid, NotFound, Unsupported
from antiphon.formats.stock.nccl_tuner import FAMILIES, SUPPORTED

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
DRIVER = Path(__file__).parent / "stock" / "nccl_drive.c"
VERSIONS = (2, 3, 4, 5, 6)
HEAD = "antiphon-nccl-tuner 1\n"
COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
NEVER = -1.0
# What NCCL would take by itself is ring, simple; nothing is forbidden. Costs by algorithm, then by protocol.
COSTS = [[50.0, 40.0, 30.0], [20.0, 15.0, 10.0], *([60.0 + i, 61.0 + i, 62.0 + i] for i in range(5))]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_anew("nccl_tuner", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("drive") / "drive"
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", DRIVER, "-o", made, "-ldl"], check=True)
    return made


Call = tuple[str, int]
Told = tuple[str, str, int, int]


class Asked:
    """The plugin with a table, asked by one version after another."""

    def __init__(self, driver: Path, plugin: Path, folder: Path) -> None:
        self.driver, self.plugin, self.path, self.said = driver, plugin, folder / "table.txt", ""

    def table(self, text: str | bytes) -> Asked:
        self.path.write_bytes(text.encode() if isinstance(text, str) else text)
        return self

    def __call__(
        self, version: int, calls: Sequence[Call], costs: Sequence[Sequence[float]] = COSTS, ranks: int = 8,
        nodes: int = 1, helps: str = "1 1", where: str | None = None,
    ) -> list[Told]:  # fmt: skip
        """Of every call the algorithm and protocol that NCCL takes, the channels (0: its own), and costs changed."""
        told = " ".join(str(cost) for row in costs for cost in row)
        lines = [f"{COLLECTIVES.index(kind)} {nbytes} {helps} {told}" for kind, nbytes in calls]
        environment = {**os.environ, "ANTIPHON_NCCL_TUNER": str(self.path) if where is None else where}
        done = subprocess.run(
            [self.driver, self.plugin, str(version), str(ranks), str(nodes)], input="\n".join(lines), text=True,
            capture_output=True, env=environment, check=False, timeout=1000,
        )  # fmt: skip
        assert done.returncode == 0, done
        self.said = done.stderr
        rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
        assert len(rows) == len(calls)
        assert all(row[0] == 0 for row in rows)
        self.chunks = [row[5] for row in rows]
        return [(ALGORITHMS[a], PROTOCOLS[p], channels, changed) for _, a, p, channels, changed, _ in rows]


@pytest.fixture
def asked(driver: Path, plugin: Path, tmp_path: Path) -> Asked:
    return Asked(driver, plugin, tmp_path)


OWN = ("ring", "simple", 0, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_choices_of_every_version(asked: Asked, version: int) -> None:
    asked.table(
        HEAD + "# a comment\n\nallreduce 1024 4095 tree ll 4 8 1\nallreduce 4096 - nvls simple 0 8 *\n"
        "  allgather\t0 100 ring ll128 64 * *\nreducescatter 0 - pat ll 3 * *\n"
    )
    by_table = version > 2
    assert asked(version, [("allreduce", n) for n in (0, 1023, 1024, 4095, 4096, 2**40)]) == [
        OWN, OWN, ("tree", "ll", 4, by_table), ("tree", "ll", 4, by_table), ("nvls", "simple", 0, by_table),
        ("nvls", "simple", 0, by_table),
    ]  # fmt: skip
    assert asked(version, [("allgather", 100), ("allgather", 101)]) == [("ring", "ll128", 64, by_table), OWN]
    assert asked(version, [("broadcast", 7), ("reduce", 7)]) == [OWN, OWN]
    # version 2 is older than PAT
    assert asked(version, [("reducescatter", 9)]) == [("pat", "ll", 3, 1) if by_table else OWN]
    assert asked(version, [("allreduce", 2000)], ranks=4) == [OWN]
    assert asked(version, [("allreduce", 2000)], nodes=2) == [OWN]
    assert asked(version, [("allreduce", 5000)], nodes=2)[0][0] == "nvls"


@pytest.mark.parametrize("version", VERSIONS)
def test_all_that_a_table_can_say(asked: Asked, version: int) -> None:
    lines = [
        (kind, algorithm, protocol, i + 1)
        for kind in COLLECTIVES
        for i, (algorithm, protocol) in enumerate((a, p) for a in ALGORITHMS for p in PROTOCOLS)
    ]
    told = [f"{kind} {1000 * n} {1000 * n + 999} {a} {p} {n} * *\n" for kind, a, p, n in lines]
    calls = [(kind, 1000 * n + 500) for kind, _, _, n in lines]
    expected = [(a, p, n) for _, a, p, n in lines]
    found = asked.table(HEAD + "".join(told))(version, calls)
    for one, want in zip(found, expected, strict=True):
        assert one[:3] == (OWN[:3] if version == 2 and want[0] == "pat" else want)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_the_protocol_that_nccl_holds_to_be_best(asked: Asked, version: int) -> None:
    asked.table(HEAD + "allreduce 0 - tree auto 0 * *\n")
    assert asked(version, [("allreduce", 5)]) == [("tree", "simple", 0, 1)]
    costs = [[50.0, 4.0, NEVER], *COSTS[1:]]
    assert asked(version, [("allreduce", 5)], costs) == [("tree", "ll128", 0, 1)]
    assert asked(version, [("allreduce", 5)], [[NEVER] * 3, *COSTS[1:]]) == [OWN]


@pytest.mark.parametrize("version", VERSIONS)
def test_chunks_of_rules_that_are_followed(asked: Asked, version: int) -> None:
    """Only version 6 asks, so rules with a chunk are for it alone. One that NCCL could not follow sets no chunk."""
    asked.table(
        HEAD + "allreduce 0 9 tree ll 0 * * 131072\nallreduce 10 19 tree auto 4 8 1 1048576\n"
        "allreduce 20 29 nvls simple 0 * * 65536\nallreduce 30 39 tree ll 0 * * 0\nallreduce 40 - tree ll 0 * *\n"
    )
    costs = [*COSTS[:4], [NEVER] * 3, *COSTS[5:]]
    calls = [("allreduce", nbytes) for nbytes in (5, 15, 25, 35, 45)]
    algorithms = [choice[0] for choice in asked(version, calls, costs, helps="0 0")]
    assert algorithms == (["tree", "tree", "ring"] if version == 6 else ["ring"] * 3) + ["tree"] * 2
    assert ("3 rules left out: chunk sizes need NCCL 2.30" in asked.said) == (version < 6)
    own = 512 << 10
    assert asked.chunks == ([131072, 1048576, own, own, own] if version == 6 else [own] * 5)


def test_the_protocol_before_there_were_costs(asked: Asked) -> None:
    assert asked.table(HEAD + "allreduce 0 - tree auto 8 * *\n")(2, [("allreduce", 5)]) == [OWN]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_nccl_cannot_do_here_stays_its_choice(asked: Asked, version: int) -> None:
    """Channels, too: a rule that is not followed says nothing of them."""
    asked.table(HEAD + "allreduce 0 9 nvls simple 5 * *\nallreduce 10 19 collnet-direct simple 5 * *\n")
    costs = [*COSTS[:2], [NEVER] * 3, [NEVER] * 3, [NEVER] * 3, *COSTS[5:]]
    assert asked(version, [("allreduce", 5), ("allreduce", 15)], costs, helps="0 0") == [OWN, OWN]


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_table(asked: Asked, version: int, tmp_path: Path) -> None:
    for where in ("", str(tmp_path / "none.txt"), str(tmp_path)):
        assert asked(version, [("allreduce", 5)], where=where) == [OWN]
        assert ("names no table" if not where else "NCCL chooses by itself") in asked.said
    os.mkfifo(tmp_path / "pipe")
    assert asked(version, [("allreduce", 5)], where=str(tmp_path / "pipe")) == [OWN]
    assert "is no file" in asked.said


GOOD = "allreduce 0 - tree ll 0 * *\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *listed("refused-tuner-tables"),
        (HEAD + GOOD + "allreduce 0 - tree ll 0 * *\r\n", "nodes"),
        (HEAD + GOOD + "\0", "is no text"),
        (HEAD + GOOD * 4097, "more than 4096 rules"),
        (HEAD + "#" * 2**20, "more than 1 MiB"),
        (HEAD + "x" * 10**6, "expected 8 words"),
    ],
)
def test_a_table_with_anything_wrong_is_not_used(asked: Asked, text: str, says: str) -> None:
    assert asked.table(text)(6, [("allreduce", 5)]) == [OWN]
    assert f"WARN antiphon: {asked.path}, line" in asked.said
    assert says in asked.said
    assert "NCCL chooses by itself" in asked.said


def test_every_beginning_of_a_table_is_harmless(asked: Asked) -> None:
    whole = HEAD + "allreduce 0 99 tree ll 4 8 1\n"
    for length in range(0, len(whole), 3):
        told = asked.table(whole[:length])(4, [("allreduce", 5)])
        assert told in ([OWN], [("tree", "ll", 4, 1)])
    assert asked.table(whole.rstrip("\n"))(4, [("allreduce", 5)]) == [("tree", "ll", 4, 1)]
    assert asked.table(HEAD + GOOD * 4096)(4, [("allreduce", 5)]) == [("tree", "ll", 0, 1)]


def test_the_first_line_that_fits_decides(asked: Asked) -> None:
    asked.table(HEAD + "allreduce 0 9 tree ll 1 4 *\nallreduce 5 9 nvls ll 2 * *\nallreduce 0 9 tree simple 3 * *\n")
    assert asked(5, [("allreduce", 4), ("allreduce", 5)]) == [("tree", "simple", 3, 1), ("nvls", "ll", 2, 1)]


def test_with_nccls_own_header(asked: Asked, tmp_path: Path) -> None:
    folder = header()
    if folder is None:
        pytest.skip("needs nccl.h: the wheel nvidia-nccl-cu13, or the folder with it in $ANTIPHON_TEST_NCCL")
    strict = "cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden"
    source = Path(antiphon.__file__).parent / "runtimes/engine/native/nccl_tuner.c"
    made, drive = tmp_path / "tuner.so", tmp_path / "drive"
    # as others' headers in a C program: what they do that warnings mention is theirs
    subprocess.run(
        [*strict.split(), "-DAP_NCCL_H", "-isystem", folder, "-isystem", cuda_names(tmp_path), source, "-o", made],
        check=True,
    )
    subprocess.run(
        ["cc", "-DWITH_NCCL_H", "-isystem", folder, "-isystem", cuda_names(tmp_path), DRIVER, "-o", drive, "-ldl"],
        check=True,
    )
    again = Asked(drive, made, tmp_path).table(HEAD + GOOD)
    for version in VERSIONS:
        assert again(version, [("allreduce", 5)]) == [("tree", "ll", 0, int(version > 2))]


def test_only_its_own_names_are_seen(plugin: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    seen = subprocess.run(["nm", "-D", "--defined-only", plugin], capture_output=True, text=True, check=True).stdout
    assert sorted(re.findall(r" [A-Z] (\w+)", seen)) == [f"ncclTunerPlugin_v{n}" for n in VERSIONS]


# ---- what is exported for it ----


def exported(plan: Any, **options: Any) -> str:
    """With lines that nothing says to gain, as there are no figures of NCCL on these machines."""
    return antiphon.export(plan, "nccl-tuner", options={"unproven": True, **options})["nccl-tuner.txt"].decode()


def two_ranges(spec: str = "full:ranks=8") -> Plan:
    machine = antiphon.topology(spec)
    tree = antiphon.plan("allreduce", machine, planner="binomial-tree").entries[0]
    ring = antiphon.plan("allreduce", machine, planner="ring").entries[0]
    return Plan(
        machine, ring.schedule.collective,
        (Entry(0, 65536, tree.schedule, tree.claims), Entry(65536, None, ring.schedule, ring.claims)),
    )  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_a_plan_from_the_planner_to_the_choice(asked: Asked, version: int) -> None:
    asked.table(exported(two_ranges(), protocol="ll", channels=6))
    calls = [("allreduce", n) for n in (0, 65535, 65536, 2**36)]
    found = [one[:3] for one in asked(version, calls)]
    assert found == [("tree", "ll", 6), ("tree", "ll", 6), ("ring", "ll", 6), ("ring", "ll", 6)]
    assert asked(version, calls, ranks=7) == [OWN] * 4


def test_what_nccl_has_nothing_for_is_left_to_it(asked: Asked) -> None:
    machine = antiphon.topology("full:ranks=4")
    tables = {
        "allreduce": antiphon.plan("allreduce", machine, planner="halving-doubling"),
        "broadcast": antiphon.plan("broadcast", machine, planner="ring"),
        "reduce": antiphon.plan("reduce", machine, planner="binomial-tree"),
    }
    text = exported(tables)
    assert "broadcast 0 - ring auto 0 4 1\n" in text
    assert "# allreduce 0 -: left to NCCL" in text
    assert "# reduce 0 -: left to NCCL" in text  # NCCL has trees for allreduce alone
    assert asked.table(text)(6, [("broadcast", 5), ("allreduce", 5), ("reduce", 5)], ranks=4)[0][:3] == (
        "ring",
        "simple",
        0,
    )
    assert asked.said.startswith("INFO antiphon: 1 rules")
    with pytest.raises(Unsupported, match=r"NCCL has no algorithm .*allreduce by halving-doubling"):
        exported(tables["allreduce"])


def test_what_is_served_by_the_library_is_left_to_it() -> None:
    made = two_ranges()
    left = [Entry(e.start, e.stop, e.schedule, {**e.claims, "served_by": "library"}) for e in made.entries]
    text = exported(Plan(made.topology, made.collective, (left[0], made.entries[1])))
    assert "# allreduce 0 65535: left to NCCL: our plan is not clearly faster\n" in text
    assert "\nallreduce 65536 - ring auto 0 8 1\n" in text
    with pytest.raises(NotFound, match="nothing to write"):
        exported(Plan(made.topology, made.collective, tuple(left)))


@pytest.mark.parametrize("to", ["nccl-tuner", "nccl-csv", "ncclx-csv"])
def test_where_the_model_has_no_figures_nothing_is_said_to_be_as_good(to: str) -> None:
    unknown = antiphon.plan("allreduce", "ring:ranks=4", planner="ring")
    refusal = f"{to}: no setting is known to beat NCCL's own choice: nothing to write"
    with pytest.raises(NotFound, match=refusal) as caught:
        antiphon.export(unknown, to)
    advised = re.search(r"options? (\S+) writes? lines to measure$", str(caught.value))
    assert advised is not None
    assert antiphon.export(unknown, to, options=dict(each.split("=") for each in advised[1].split(",")))


def test_hosts_and_members() -> None:
    assert " ring auto 0 16 2\n" in exported(
        antiphon.plan("allgather", antiphon.topology("cluster:box=dgx1v,boxes=2"), planner="hierarchical-ring")
    )
    part = antiphon.plan("allreduce", antiphon.topology("full:ranks=4"), planner="ring", ranks=[0, 1, 2])
    with pytest.raises(Unsupported, match="3 of 4 ranks"):
        exported(part)
    allocation = antiphon.topology("dgx1v", only=[0, 1, 2, 3])  # as that error advises
    assert " ring auto 0 4 1\n" in exported(antiphon.plan("allreduce", allocation, planner="ring", ranks=[0, 1, 2, 3]))


def test_options() -> None:
    for options, says in (
        ({"protocol": "LL"}, "protocol"), ({"channels": 65}, "channels"), ({"channels": True}, "channels"),
        ({"channels": "many"}, "channels"), ({"chanels": 1}, "did you mean 'channels'"),
    ):  # fmt: skip
        with pytest.raises(Invalid, match=says):
            exported(two_ranges(), **options)


def test_families_are_of_planners_that_there_are() -> None:
    planners = {row["name"] for row in antiphon.available.planners()}
    assert set().union(*FAMILIES.values()) <= planners
    assert set(SUPPORTED) == set(FAMILIES)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))
    commands = (
        "tune allreduce ring:ranks=4 --planner ring --nbytes 1KB:1MB -o table.json",
        "export table.json --to nccl-tuner:channels=2,unproven=yes -o tuner",
    )
    for line in commands:
        assert run(line.split()) == 0
    assert "allreduce 0 - ring auto 2 4 1\n" in Path("tuner/nccl-tuner.txt").read_text()
    capsys.readouterr()
    assert run(["build", "nccl-tuner"]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "libantiphon_nccl_tuner.so"
