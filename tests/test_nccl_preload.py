"""The preload that chooses NCCL's algorithm per call: programs of several ranks run over a stand-in for NCCL that
records what is called, with which configuration."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from nccl_header import build_anew, cuda_names, header

import antiphon
from antiphon.cli import run

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
STOCK = Path(__file__).parent / "stock"
STRICT = ("cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fPIC")
HEAD = "antiphon-nccl-tuner 1\n"
FLOAT32, FLOAT16, FLOAT64 = 7, 6, 8
NAMES = {
    "allreduce": "ncclAllReduce", "allgather": "ncclAllGather", "reducescatter": "ncclReduceScatter",
    "broadcast": "ncclBroadcast", "reduce": "ncclReduce", "alltoall": "ncclAlltoAll", "gather": "ncclGather",
    "scatter": "ncclScatter",
}  # fmt: skip
Call = tuple[str, int, int]


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_anew("nccl_preload", tmp_path_factory.mktemp("cache"))


def build_program(folder: Path, *flags: str) -> Path:
    """The program, linked with a stand-in made with these flags."""
    folder.mkdir(exist_ok=True)
    stand_in, program = folder / "libnccl.so.2", folder / "calls"
    subprocess.run(
        [*STRICT, *flags, "-Wno-unused-parameter", "-shared", STOCK / "nccl_stand_in.c", "-o", stand_in], check=True
    )
    link = [f"-Wl,-rpath,{folder}", f"-L{folder}", "-l:libnccl.so.2"]
    subprocess.run([*STRICT, *flags, STOCK / "nccl_calls.c", "-o", program, *link], check=True)
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program(tmp_path_factory.mktemp("program"))


class Job:
    """Runs the program on some ranks, each with its host and its table."""

    def __init__(self, program: Path, preload: Path, folder: Path) -> None:
        self.program, self.preload, self.folder, self.errors = program, preload, folder, ""
        self.runs = 0

    def __call__(
        self, tables: str | Sequence[str | None], calls: Sequence[Call], how: str = "plain", hosts: str = "aabb",
        version: int = 23203, **environment: str,
    ) -> list[list[str]]:  # fmt: skip
        """What each rank called. `tables`: of all ranks, or of each (None: no table)."""
        self.runs += 1
        board = self.folder / f"board{self.runs}"
        board.write_bytes(bytes(2**16 * 12))
        processes = []
        for rank, host in enumerate(hosts):
            table = tables if isinstance(tables, str) else tables[rank]
            path = self.folder / f"table{self.runs}.{rank}.txt"
            own = {
                "STAND_IN_FILE": board,
                "STAND_IN_VERSION": version,
                "STAND_IN_HOST": host,
                "LD_PRELOAD": self.preload,
            }
            if table is not None:
                path.write_text(table)
                own["ANTIPHON_NCCL_TUNER"] = path
            processes.append(
                subprocess.Popen(
                    [self.program, str(len(hosts)), str(rank), how],
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**os.environ, **{key: str(value) for key, value in own.items()}, **environment},
                )
            )
        text = "".join(f"{kind} {count} {type_}\n" for kind, count, type_ in calls)
        for process in processes:  # all begin before any ends
            assert process.stdin
            process.stdin.write(text)
            process.stdin.close()
            process.stdin = None
        results = [process.communicate(timeout=60) for process in processes]
        self.errors = "".join(errors for _, errors in results)
        assert [process.returncode for process in processes] == [0] * len(hosts), self.errors
        lines = [output.splitlines() for output, _ in results]
        assert all(one[-1] == "living 0" for one in lines)  # what was made to agree is gone
        return [[line for line in one if not line.startswith("living")] for one in lines]


@pytest.fixture
def job(program: Path, preload: Path, tmp_path: Path) -> Job:
    return Job(program, preload, tmp_path)


def configured(kind: str, selection: str, tag: int, most: int = 0, policy: int = 0) -> str:
    return f"{NAMES[kind]} '{selection}' force=0 most={most} policy={policy} tag={tag}"


ALGORITHMS = {  # as NCCL 2.32 names them; then as 2.31 does
    "ring auto": ("RING", "ring"), "ring ll": ("RING_LL+^RING_LL128", None), "ring ll128": ("RING_LL128", None),
    "ring simple": ("RING_SIMPLE", None), "tree auto": ("TREE", "tree"), "tree ll": ("TREE_LL+^TREE_LL128", None),
    "tree ll128": ("TREE_LL128", None), "tree simple": ("TREE_SIMPLE", None), "nvls auto": ("NVLS_SIMPLE", "nvls"),
    "nvls simple": ("NVLS_SIMPLE", "nvls"), "nvls ll": (None, None),
    "nvls-tree simple": ("NVLSTREE_SIMPLE", "nvlstree"),
    "collnet-direct auto": ("COLLNET_DIRECT_SIMPLE", "collnetdirect"),
    "collnet-chain auto": ("COLLNET_CHAIN_SIMPLE", "collnetchain"), "pat auto": ("PAT_SIMPLE", "pat"),
    "symmetric auto": ("SYMK_", None), "auto auto": ("", ""), "copies auto": ("", ""),
}  # fmt: skip


@pytest.mark.parametrize("version", [23102, 23203])
def test_every_algorithm(job: Job, version: int) -> None:
    rules = list(ALGORITHMS)
    table = HEAD + "".join(f"allreduce {4 * i} {4 * i + 3} {rule} {i} * *\n" for i, rule in enumerate(rules))
    calls = [("allreduce", i, FLOAT32) for i in range(len(rules) + 1)]
    expected = []
    for i, rule in enumerate(rules):
        selection = ALGORITHMS[rule][version < 23200]
        policy = 2 if rule.startswith("copies") else 0
        plain = selection is None
        expected.append("ncclAllReduce" if plain else configured("allreduce", selection or "", i + 2, i, policy))
    assert job(table, calls, version=version) == [[*expected, "ncclAllReduce"]] * 4


def test_rules_with_a_chunk_are_called_through(job: Job) -> None:
    """A configuration has no chunk, so their gain is not known."""
    table = HEAD + "allreduce 0 4 ring auto 0 * * 131072\nallreduce 0 - ring auto 0 * * 0\n"
    plain, ring = "ncclAllReduce", configured("allreduce", "RING", 3)
    assert job(table, [("allreduce", 1, FLOAT32), ("allreduce", 2, FLOAT32)]) == [[plain, ring]] * 4


def test_bytes_are_those_of_all_ranks(job: Job) -> None:
    """As tables count them: a share times the ranks for five of the collectives."""
    table = HEAD + "".join(f"{kind} 64 127 auto auto 3 4 2\n" for kind in NAMES)
    shares = ("allgather", "reducescatter", "alltoall", "gather", "scatter")
    for lines in job(table, [(kind, count, FLOAT16) for kind in NAMES for count in (7, 8, 15, 16, 31, 32, 63, 64)]):
        for i, kind in enumerate(NAMES):
            chosen = [line != NAMES[kind] for line in lines[8 * i : 8 * i + 8]]
            inside = (8, 15) if kind in shares else (32, 63)
            assert chosen == [count in inside for count in (7, 8, 15, 16, 31, 32, 63, 64)], kind
    calls = [("allgather", 2**63, FLOAT64), ("allreduce", 2**61 + 8, FLOAT64), ("allreduce", 64, 12)]
    assert job(table, calls) == [["ncclAllGather", "ncclAllReduce", "ncclAllReduce"]] * 4  # no size, no rule


RULE = HEAD + "\n# of 4 ranks on 2 nodes\nallreduce 0 - tree ll 4 4 2\n"
CALLS = [("allreduce", 10, FLOAT32)]
TREE = configured("allreduce", "TREE_LL+^TREE_LL128", 4, 4)


@pytest.mark.parametrize(
    ("how", "hosts", "chosen"),
    [
        ("plain", "aabb", True), ("plain", "abab", True), ("group", "aabb", True), ("config", "aabb", True),
        ("scalable", "abba", True), ("plain", "aaaa", False), ("plain", "abcd", False), ("plain", "aab", False),
        ("plain", "aaab", False), ("nonblocking", "aabb", False), ("split", "aabbccdd", True),
        ("split", "abcdabcd", False), ("plain", "a", False),
    ],
)  # fmt: skip
def test_ranks_and_nodes(job: Job, how: str, hosts: str, chosen: bool) -> None:
    assert job(RULE, CALLS, how, hosts) == [[TREE if chosen else "ncclAllReduce"]] * len(hosts)
    uneven = hosts in ("aab", "aaab")
    assert ("different numbers" in job.errors) == uneven
    assert job.errors.count("antiphon:") == uneven  # one rank says so


@pytest.mark.parametrize(
    "other", [None, HEAD, RULE + "#\n", RULE.replace("ll", "simple"), RULE + "allreduce 0 - tree ll 4 4 x\n"]
)
def test_ranks_with_other_tables_choose_nothing(job: Job, other: str | None) -> None:
    for tables in ([RULE, RULE, RULE, other], [other, RULE, RULE, RULE]):
        assert job(tables, CALLS) == [["ncclAllReduce"]] * 4
        assert "antiphon: the 4 ranks of a communicator have different tables" in job.errors


def test_tables_with_errors(job: Job) -> None:
    assert job(RULE + "allreduce 0 - tre ll 4 4 2\n", CALLS) == [["ncclAllReduce"]] * 4
    assert re.search(r"antiphon: .*txt, line 5: no such algorithm; NCCL chooses by itself", job.errors)
    assert job([None] * 4, CALLS) == [["ncclAllReduce"]] * 4
    assert "$ANTIPHON_NCCL_TUNER names no table" in job.errors
    assert job(RULE, CALLS, NCCL_COMM_BLOCKING="0") == [["ncclAllReduce"]] * 4


def test_an_older_nccl_is_called_through(preload: Path, tmp_path: Path) -> None:
    old = Job(build_program(tmp_path / "old", "-DWITHOUT_CONFIG"), preload, tmp_path)
    assert old(RULE, CALLS, version=22304) == [["ncclAllReduce"]] * 4
    assert old.errors == ""


BOTH = RULE + "allreduce 0 - ring simple 2 2 1\n"
RING = configured("allreduce", "RING_SIMPLE", 5, 2)


def test_communicators_have_rules_of_their_own(job: Job) -> None:
    """A communicator of four ranks on two hosts, and its halves, each on one."""
    assert job(BOTH, CALLS * 3, "both") == [[TREE, RING] * 3] * 4
    assert job(BOTH, CALLS * 3, "both", hosts="abab") == [[TREE, "ncclAllReduce"] * 3] * 4


@pytest.mark.slow
def test_all_communicators_of_a_group_are_checked(job: Job) -> None:
    assert job(RULE, CALLS, "many") == [[TREE]] * 4


def test_calls_in_a_group_and_by_threads(job: Job) -> None:
    calls = [("allreduce", 10 * i, FLOAT32) for i in range(20)]
    table = HEAD + "allreduce 0 399 tree ll 4 4 2\nallreduce 400 - ring ll128 0 4 2\n"
    small, large = configured("allreduce", "TREE_LL+^TREE_LL128", 2, 4), configured("allreduce", "RING_LL128", 3)
    assert job(table, calls, "grouped") == [[small] * 10 + [large] * 10] * 4
    for lines in job(table, calls, "threads"):
        assert sorted(lines) == sorted([small, large] * 40)


def test_an_entry_that_this_nccl_lacks_is_called_through(preload: Path, tmp_path: Path) -> None:
    job = Job(build_program(tmp_path / "part", "-DncclScatterConfig=ncclOtherConfig"), preload, tmp_path)
    assert job(HEAD + "scatter 0 - auto auto 3 * *\n", [("scatter", 8, FLOAT32)]) == [["ncclScatter"]] * 4


def test_a_table_for_the_tuner_serves_the_preload(job: Job) -> None:
    plan = antiphon.plan("allreduce", "full:ranks=4", planner="ring")
    options = {"unproven": True, "protocol": "simple", "channels": 6}
    text = antiphon.export(plan, "nccl-tuner", options=options)["nccl-tuner.txt"].decode()
    assert job(text, CALLS, hosts="aaaa")[0][0].startswith("ncclAllReduce 'RING_SIMPLE' force=0 most=6")


def test_with_nccls_own_header(tmp_path: Path) -> None:
    folder = header("ncclAllReduceConfig")  # NCCL 2.31 and later
    if folder is None:
        pytest.skip(
            "needs nccl.h of NCCL 2.31 or later: the wheel nvidia-nccl-cu13, or its folder in $ANTIPHON_TEST_NCCL"
        )
    system = ["-isystem", str(folder), "-isystem", str(cuda_names(tmp_path))]
    source = Path(antiphon.__file__).parent / "runtimes/engine/native/nccl_choose.c"
    made = tmp_path / "preload.so"
    subprocess.run(
        [*STRICT, "-DAP_NCCL_H", *system, "-shared", "-pthread", "-fvisibility=hidden", source, "-o", made], check=True
    )
    program = build_program(tmp_path / "program", "-DWITH_NCCL_H", *system)
    assert Job(program, made, tmp_path)(RULE, CALLS) == [[TREE]] * 4


def test_only_names_of_nccl_are_seen(preload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("nm") is not None:
        seen = subprocess.run(
            ["nm", "-D", "--defined-only", preload], capture_output=True, text=True, check=True
        ).stdout
        names = set(re.findall(r" [A-Z] (\w+)", seen))
        assert names >= set(NAMES.values())
        assert all(name.startswith(("ncclComm", "ncclGroup")) for name in names - set(NAMES.values()))
    assert run(["build", "nccl-preload"]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "libantiphon_nccl_preload.so"
