"""Words as people type them: spellings of collectives, arguments in the wrong order, near and far misses."""

from dataclasses import replace
from pathlib import Path

import pytest
from commands import Capture, complaint

import antiphon
from antiphon.cli import run
from antiphon.errors import Invalid, Unsupported, unknown
from antiphon.registry import table
from antiphon.show.listing import entry_row, entry_text

pytestmark = pytest.mark.usefixtures("own_folder")


# ---- collectives ----


@pytest.mark.parametrize(
    ("kind", "spellings"),
    [
        ("allreduce", "all_reduce AllReduce all-reduce ALLREDUCE ncclAllReduce MPI_Allreduce allreduce_coalesced"),
        ("reducescatter", "reduce_scatter ReduceScatter MPI_Reduce_scatter_block reduce_scatter_tensor"),
        ("allgather", "all_gather all_gather_into_tensor MPI_Allgather _allgather_base all-gather"),
        ("alltoall", "all_to_all all_to_all_single MPI_Alltoall ncclAlltoAll AllToAll"),
        ("broadcast", "MPI_Bcast ncclBcast bcast Broadcast"),
        ("reduce", "MPI_Reduce ncclReduce"),
        ("gather", "MPI_Gather"),
        ("scatter", "Scatter"),
    ],
)
def test_spellings_of_collectives(kind: str, spellings: str) -> None:
    for name in spellings.split():
        assert antiphon.collective(name, "ring:ranks=4").kind == kind
        assert antiphon.Collective(name, 4) == antiphon.Collective(kind, 4)


@pytest.mark.parametrize("name", ["MPI_Allgatherv", "dgx1v", "allreducex", "mpi", "nccl", "", "_"])
def test_no_spelling_of_any(name: str) -> None:
    with pytest.raises(Invalid, match="unknown collective"):
        antiphon.collective(name, "ring:ranks=4")


def test_any_spelling_is_taken_and_ours_is_used(capsys: Capture) -> None:
    assert run(["tune", "MPI_Allgather", "ring:ranks=4", "--nbytes", "1KB", "-o", "table.json", "--workers", "1"]) == 0
    assert run(["predict", "table.json:all_gather", "--nbytes", "1KB"]) == 0
    assert run(["run", "table.json:AllGather", "--nbytes", "1KB", "--json"]) == 0
    capsys.readouterr()
    assert run(["bound", "reduce_scatter", "ring:ranks=4"]) == 0
    assert capsys.readouterr().out.startswith("reducescatter on ring")


def test_a_root_is_for_rooted_ones_however_spelled(capsys: Capture) -> None:
    assert run(["plan", "MPI_Bcast:root=2", "ring:ranks=4"]) == 0
    assert "allreduce has no root" in complaint(capsys, "plan", "all_reduce:root=2", "ring:ranks=4")


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ("tune dgx1v allreduce", "antiphon tune allreduce dgx1v"),
        ("plan ring:ranks=4 all_reduce", "antiphon plan all_reduce ring:ranks=4"),
        ("bound dgx1v AllReduce", "antiphon bound AllReduce dgx1v"),
        ("frontier dgx1v allgather", "antiphon frontier allgather dgx1v"),
        ("bench full:ranks=4 allreduce", "antiphon bench allreduce full:ranks=4"),
        ("predict dgx1v allreduce --library nccl --nbytes 1MB", "antiphon predict allreduce dgx1v"),
    ],
)
def test_swapped_arguments(capsys: Capture, arguments: str, right: str) -> None:
    assert complaint(capsys, *arguments.split()) == f"antiphon: the collective comes first: {right}\n"


# ---- guesses ----


@pytest.mark.parametrize(
    ("name", "known", "guess"),
    [
        ("alreduce", ["allreduce", "reduce"], "allreduce"),
        ("rign", ["ring"], "ring"),
        ("dgx1", ["dgx1v"], "dgx1v"),
        ("exchang", ["exchange"], "exchange"),
        ("srk", ["dst", "src"], "src"),
        ("nccl", ["msccl", "rccl-6"], ""),
        ("xml", ["piccl-xml", "ucc"], ""),
        ("foo", ["proto"], ""),
    ],
)
def test_only_near_misses_are_guessed(name: str, known: list[str], guess: str) -> None:
    said = str(unknown("thing", name, known))
    assert said.startswith(f"unknown thing {name!r}" + (f"; did you mean {guess!r}?" if guess else " (known: "))


@pytest.mark.parametrize("library", ["nccl", "NCCL", "nccl-2.20"])
def test_nccl_takes_no_schedules(library: str) -> None:
    plan = antiphon.plan("allreduce", "ring:ranks=4")
    with pytest.raises(Unsupported, match=r"takes no schedules.*export PLAN --to nccl-tuner"):
        antiphon.verify(plan, runtime=library, nbytes="1MB")


def test_options_that_a_function_does_not_have() -> None:
    with pytest.raises(Invalid, match=r"unknown option of bound 'only' .*antiphon.topology\(NAME, only="):
        antiphon.bound("allreduce", "dgx1v", only=[0, 1])  # type: ignore[call-arg]
    with pytest.raises(Invalid, match="unknown option of plan 'planer'; did you mean 'planner'"):
        antiphon.plan("allreduce", "dgx1v", planer="ring")  # type: ignore[call-arg]


def test_an_error_names_the_value_that_is_wrong() -> None:
    with pytest.raises(Invalid, match="rank 3 is named twice"):
        antiphon.collective("allgather", "ring:ranks=4", ranks=[1, 3, 3])
    with pytest.raises(Invalid, match=r"expected a list of plans or their files, got 'plan\.json'"):
        antiphon.compose("plan.json")


# ---- check ----


def test_check_shows_the_file_that_serves(capsys: Capture) -> None:
    """Of a table with several ranges, the files of other sizes are only counted."""
    short, long = (antiphon.plan("allreduce", "full:ranks=4", planner=name) for name in ("direct", "ring"))
    entries = (replace(short.entries[0], stop=2**16), replace(long.entries[0], start=2**16))
    antiphon.save(replace(short, entries=entries), "table.json")
    call = ["verify", "table.json", "--for", "msccl", "--nbytes", "1MB"]
    assert run(call) == 0
    brief = capsys.readouterr().out
    assert "will not run" not in brief
    assert "for other calls (--all shows why" in brief
    assert run([*call, "--all"]) == 0
    whole = capsys.readouterr().out
    assert whole.rindex("will run") < whole.index("will not run")
    # each finding once for both files, and no word of calls that the other of them serves
    assert "-1.xml: will run\n  allreduce-ring-1-in-place.xml: will run\n" in brief
    assert brief.count("the executor is off") == 1
    assert "not served by it" not in brief
    # where none runs, those for the size are judged
    assert run([*call[:-1], "999999"]) == 1
    none = capsys.readouterr().out
    assert none.count("cannot be cut into") == 1
    assert "2 files for other calls" in none
    assert "outside of its range" not in none
    report = antiphon.verify("table.json", runtime="msccl", nbytes="999999")
    assert {reason["file"] for reason in report.reasons} == {"allreduce-ring-1.xml", "allreduce-ring-1-in-place.xml"}


def test_a_runtime_without_its_version_is_suggested(capsys: Capture) -> None:
    antiphon.save(antiphon.plan("allreduce", "ring:ranks=4"), "plan.json")
    assert run(["verify", "plan.json", "--for", "mscclpp", "--nbytes", "1MB"]) == 2
    assert "did you mean 'mscclpp-0.9'" in capsys.readouterr().err


# ---- plans by value ----


def test_plans_are_equal_by_value() -> None:
    plan = antiphon.plan("allreduce", "dgx1v", planner="multi-ring")
    antiphon.save(plan, "plan.json")
    first, second = antiphon.load("plan.json", antiphon.Plan), antiphon.load("plan.json", antiphon.Plan)
    assert plan == first == second
    assert len({plan, first, second}) == 1
    for other in (
        antiphon.plan("allreduce", "dgx1v", planner="ring"),
        antiphon.plan("allreduce", "full:ranks=8"),
        replace(plan, entries=(replace(plan.entries[0], claims={}),)),
        plan.topology,
    ):
        assert plan != other


# ---- one entry of a table ----


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("list planners ring", ["directions=2", "order=auto", "allgather", "docs/planners/index.md#ring"]),
        ("list planners trees", ["with steps: give every hop a start time", "loss=0", "1 to 1048576"]),
        ("list models loggp", ["fidelity=message", "device_radix=auto"]),
        ("list formats goal", ["order=data", "schedule.goal"]),
        ("list runtimes mpi", ["mpiexec=", "timeout=600s"]),
        ("list topologies ring", ["ranks= (needed)", "bandwidth=25GB/s", "ring:ranks=8"]),
    ],
)
def test_one_entry_of_a_table(capsys: Capture, command: str, says: list[str]) -> None:
    assert run(command.split()) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in says), text
    assert run([*command.split(), "--json"]) == 0
    assert f'"name": "{command.split()[2]}"' in capsys.readouterr().out
    assert "did you mean" in complaint(capsys, *command.split()[:2], command.split()[2][:-1] + "x")


def test_every_entry_of_every_table_can_be_shown(capsys: Capture) -> None:
    docs = Path(__file__).parent.parent
    for kind in ("planner", "model", "backend", "runtime", "topology"):
        for name in table(kind):
            row = entry_row(kind, name)
            assert entry_text(kind, row).startswith(f"{name}: ")
            page, _, section = row.get("page", "").partition("#")
            assert not section or f"## `{section}`\n" in (docs / page).read_text(), row["page"]
            assert not page or (docs / page).is_file()


# ---- files of others ----

LOG = """\
# nThread 1 nGpus 8 minBytes 8 maxBytes 8388608 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validate: 1
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     8388608       2097152     float     sum      -1    92.31   90.88  159.03      0    91.59   91.59  160.28      0
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LOG, "log.json: looks like output of nccl-tests: times, no plan; antiphon check-log FILE --topology TOPO"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-19\n", "antiphon topology probe FILE -o machine.json"),
        ('<system version="1">\n</system>\n', "antiphon topology probe FILE -o machine.json"),
        ("hello\n", "is not valid JSON"),
    ],
)
def test_files_that_other_programs_print(capsys: Capture, text: str, says: str) -> None:
    Path("log.json").write_text(text)
    for command in (["verify", "log.json"], ["bound", "allreduce", "log.json"], ["run", "log.json", "--nbytes", "1KB"]):
        assert says in complaint(capsys, *command)


def test_a_single_step_is_no_steps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    assert run(["plan", "broadcast", "line:ranks=2", "--planner", "direct", "-o", file]) == 0
    assert run(["verify", file, "--proof"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1 step, 1 round, 1 transfer " in text
    assert "takes 1 step or more" in text
