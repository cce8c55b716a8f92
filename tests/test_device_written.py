"""Plans as programs of CUDA and HIP: their main runs on threads, and is right; compilers take them without a word."""

import re
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.cli import run
from antiphon.core.collective import ROOTED
from antiphon.core.schedule import Schedule
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.formats.device.shapes import pieces
from antiphon.formats.device.statements import statements
from antiphon.formats.device.write import HIP_FLAGS, source
from antiphon.lower.device.table import tables
from antiphon.registry import table

NVCC, HIPCC = shutil.which("nvcc"), shutil.which("hipcc")
needs_a_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def schedule_of(kind: str, spec: str, planner: str, **options: Any) -> Schedule:
    root = {"root": 1} if kind in ROOTED else {}
    return antiphon.plan(kind, antiphon.topology(spec), planner=planner, **root, **options).at(2**20).schedule


def compiled(folder: Path, text: str, *more: str) -> Path:
    """For threads of a processor, without a warning."""
    file, program = folder / "plan.cu", folder / "plan"
    file.write_text(text)
    command = ["c++", "-x", "c++", "-std=c++17", "-O0", "-pthread", "-Wall", "-Wextra", "-Werror", *more, str(file)]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return program


def told(program: Path, arguments: str | list[str]) -> tuple[int, list[list[str]], str]:
    """The exit code, the rows of the table, and what is said last."""
    line = arguments.split() if isinstance(arguments, str) else arguments
    done = subprocess.run([str(program), *line], capture_output=True, text=True, check=False, timeout=1000)
    rows = [line.split() for line in done.stdout.splitlines() if line[:1] == " "]
    return done.returncode, rows, done.stdout.splitlines()[-1]


def right(program: Path, arguments: str, way: str = "") -> None:
    """`way`: which must be taken."""
    code, rows, last = told(program, arguments)
    assert (code, last) == (0, "# all right")
    assert rows
    assert all(row[-1] == "0" for row in rows)
    assert not way or {row[6] for row in rows} == {way}


CASES = [
    ("allreduce", "ring:ranks=3", "ring", {"op": "avg", "dtype": "int32"}),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("allreduce", "dgx1v", "trees", {}),
            ("allreduce", "hgx-h100", "nvls", {"dtype": "bfloat16"}),
            ("alltoall", "full:ranks=4", "pairwise", {"dtype": "int8", "in_place": True}),
        )
    ),
]  # fmt: skip


@needs_a_compiler
@pytest.mark.parametrize(("kind", "spec", "planner", "options"), CASES)
def test_its_main_is_right(tmp_path: Path, kind: str, spec: str, planner: str, options: dict[str, Any]) -> None:
    program = compiled(tmp_path, source(schedule_of(kind, spec, planner), spec, **options))
    for packets in ("0", "1"):
        way = ("signals", "packets")[int(packets)]
        right(program, f"-b 1 -e 20000 -f 50 -n 2 -w 1 -p {packets}", way=way)
    for packets in ("0", "1"):
        right(program, f"-b 9001 -e 9001 -n 2 -w 0 -l 2 -r 3 -t 2 -p {packets}")


@needs_a_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "spec", "planner"), [("allreduce", "dgx1v", "trees"), ("alltoall", "full:ranks=5", "direct")]
)
def test_who_receives_may_read(tmp_path: Path, kind: str, spec: str, planner: str) -> None:
    text = source(schedule_of(kind, spec, planner), spec, "int32", in_place=True, pull=True)
    assert text != source(schedule_of(kind, spec, planner), spec, "int32", in_place=True, packets=False)
    program = compiled(tmp_path, text)
    right(program, "-b 1 -e 20000 -f 50 -n 2 -w 1", way="signals")
    right(program, "-b 9001 -e 9001 -n 2 -w 0 -l 2 -r 3 -t 2")


@needs_a_compiler
@pytest.mark.slow
@pytest.mark.timeout(3000)  # hundreds of programs are compiled: minutes of a processor
@pytest.mark.parametrize("ranks", [2, 3, 5, 6, 8, 12, 16])
def test_all_planners_are_right(tmp_path: Path, ranks: int) -> None:
    """Each type with each operator in turn."""
    done, spec = 0, f"full:ranks={ranks}"
    types = ["float32", "int8", "float16", "uint32", "float64", "bfloat16"]
    operators = ["sum", "max", "avg", "prod"]
    for planner, entry in table("planner").items():
        for kind in entry.can.collectives:
            for in_place in (False, True):
                try:
                    schedule = schedule_of(kind, spec, planner)
                    op = operators[done // 16 % 4] if schedule.collective.combining else "sum"
                    text = source(schedule, spec, types[done // 2 % 8], op, in_place, 1 + done % 4)
                except AntiphonError:
                    continue
                program = compiled(tmp_path, text)
                for packets in ("0", "1"):
                    right(program, f"-b 1 -e 40000 -f 199 -n 1 -w 1 -p {packets}")
                done += 1
    assert done > 60


@pytest.mark.slow
@needs_a_compiler
@pytest.mark.parametrize(
    ("before", "after", "packets"),
    [
        (
            "w.copy(w.output(2), w.output(1), {0, 1});",
            "w.copy(w.output(2), w.input(1), {0, 1});",
            "0",
        ),  # data of another place
        pytest.param("w.fold<2, 2>", "w.spread<2, 2>", "0", marks=pytest.mark.slow),  # combined by another rule
        pytest.param("Rule::NUMBER", "SUM", "1", marks=pytest.mark.slow),
        pytest.param("    {1, 0, 0, 1, 3, 3},", "    {1, 0, 0, 1, 3, 2},", "0", marks=pytest.mark.slow),  # promised
    ],
)
def test_its_check_finds_what_is_wrong(tmp_path: Path, before: str, after: str, packets: str) -> None:
    text = source(schedule_of("allreduce", "ring:ranks=3", "ring"), "ring:ranks=3", op="max")
    assert before in text
    program = compiled(tmp_path, text.replace(before, after))
    code, rows, last = told(program, f"-b 4096 -e 4096 -n 1 -p {packets}")
    assert (code, last) == (1, "# WRONG")
    assert int(rows[0][-1]) > 0


@pytest.mark.slow
@needs_a_compiler
def test_a_call_that_hangs_is_stopped(tmp_path: Path) -> None:
    text = source(schedule_of("allreduce", "ring:ranks=3", "ring"), "ring:ranks=3")
    assert "CALL_TIMEOUT = 60" in text
    changed = text.replace("CALL_TIMEOUT = 60", "CALL_TIMEOUT = 0.3").replace("w.signal(1, 2);", "", 1)
    assert changed.count("w.signal") < text.count("w.signal")
    assert told(compiled(tmp_path, changed), "-n 1 -p 0")[0::2] == (1, "# WRONG")


@pytest.mark.slow
@needs_a_compiler
def test_another_type_and_operator_for_the_compiler(tmp_path: Path) -> None:
    program = compiled(
        tmp_path,
        source(schedule_of("reduce", "full:ranks=3", "direct"), "full:ranks=3"),
        "-DTYPE=half16",
        "-DOPERATOR=Min",
    )
    code, rows, _ = told(program, "-n 1")
    assert (code, rows[0][2:4]) == (0, ["half16", "Min"])
    assert told(program, "-n 1 -b 2K -e 2KB")[1][0][0] == "2048"
    sizes = ("x", "-1", "1X", "1KBx", "nan", "inf", "-inf", "infinity", "infB", "1e999", "", " ", "64 ", "64 B", "1K ")
    for wrong in (*(["-b", one] for one in sizes), ["-b"], ["-begin", "1"], ["--help"], ["b", "1"]):
        code, _, last = told(program, wrong)
        assert code == 2, wrong
        assert "-p 0: with signals" in last


def test_what_ranks_do_alike_is_one_function() -> None:
    """And what is done again and again a loop: nothing of it grows with the ranks."""
    few, many = (
        source(schedule_of("alltoall", f"full:ranks={n}", "pairwise"), "full", streams=1, packets=False)
        for n in (16, 32)
    )
    functions = [re.findall(r"OUT_OF_LINE bool (\w+)", text) for text in (few, many)]
    assert functions == [["stream_0"], ["stream_0"]]
    plan = [text[text.index("OUT_OF_LINE bool stream_0") : text.index("/* Run a stream")] for text in (few, many)]
    assert plan[0].count("\n") == plan[1].count("\n") < 40
    assert "row" not in plan[0]


def test_pieces_hold_all_statements_in_their_order() -> None:
    forms = [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 4, 4, 4, 4, 4, 4, 4, 4, 5]
    found = pieces(forms)
    assert [number for one in found for number in forms[one.first : one.first + one.length] * one.times] == forms
    assert max(one.times for one in found) == 8


def test_all_that_a_table_says_is_read() -> None:
    made = tables(schedule_of("allreduce", "dgx1v", "trees"))
    for one in made:
        words = one.words.tolist()
        arguments = words[13]
        read = statements(one)
        named = sum(
            1 if form[0] in ("signal", "wait", "to", "from", "divide") else len(form) - 2 if len(form) > 2 else 0
            for stream in read.streams
            for form, _ in stream
        )
        assert named == arguments


@pytest.mark.slow
@needs_a_compiler
def test_small_data_as_packets(tmp_path: Path) -> None:
    """Also where many places are named one by one, and where calls must wait for their receivers to begin; left out
    where it is asked for, and where they have no room, or data is large. Left to itself the program takes either."""
    schedule = schedule_of("reduce", "full:ranks=12", "direct")
    text = source(schedule, "full:ranks=12", "int8")
    assert "w.relay_listed" in text
    assert "w.wait_begun" in text
    program = compiled(tmp_path, text)
    right(program, "-b 7 -e 7000 -f 1000 -n 5 -w 0 -t 2 -p 1", way="packets")
    right(program, "-b 300K -e 300K -n 1 -w 0 -p 1", way="signals")  # no room in half a box
    right(program, "-b 7 -e 7000 -f 1000 -n 1 -w 0")
    changed = text.replace("MOST_PACKED = 262144", "MOST_PACKED = 6999")
    right(compiled(tmp_path, changed), "-b 7000 -e 7000 -n 1 -w 0", way="signals")
    plain = source(schedule, "full:ranks=12", "int8", packets=False)
    assert "w.relay_listed(" not in plain.split("/* ======== The plan ")[-1]


def test_packets_are_left_out_where_there_is_no_room_for_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = schedule_of("allreduce", "full:ranks=4", "ring")
    plain, both = (source(schedule, "full", packets=packets) for packets in (False, True))
    monkeypatch.setattr("antiphon.formats.device.write.MAX_PACKET_STATEMENTS", 20)
    assert source(schedule, "full") == plain != both


def test_what_cannot_be_written_is_told() -> None:
    schedule = schedule_of("allreduce", "full:ranks=2", "direct")
    plan = antiphon.plan("allreduce", antiphon.topology("full:ranks=2"), planner="direct")
    for options, message in (
        ({"dtype": "float8"}, "float8"), ({"dtype": object}, "unknown data type 'object'"), ({"op": "xor"}, "xor"),
        ({"streams": 0}, "streams: expected a whole number"),
        ({"pull": True, "packets": "yes"}, "options pull and packets: take one"),
        ({"arrival": "yes", "pull": "yes"}, "options pull and arrival: take one"),
        ({"arrival": True, "packets": True}, "options arrival and packets: take one"),
    ):  # fmt: skip
        with pytest.raises(Invalid, match=message):
            antiphon.export(plan, "cuda", options=options)
        with pytest.raises(Invalid, match=message):
            antiphon.export(plan, "hip", options=options)
    left_out: tuple[dict[str, str], ...] = ({}, {"packets": "no"}, {"pull": "yes"})
    files = [antiphon.export(plan, "cuda", options=options) for options in left_out]
    assert [b"w.relay" in file["plan0.cu"].partition(b"== The plan ")[2] for file in files] == [True, False, False]
    assert antiphon.export(plan, "cuda", options={"packets": "yes", "pull": "no"}) == files[0]
    assert set(antiphon.export(plan, "hip")) == {"plan0.hip.cpp"}
    short, full = (antiphon.export(plan, "cuda", options={"dtype": one}) for one in ("bf16", "bfloat16"))
    assert short == full != files[0]
    assert source(schedule, "full") == source(schedule, "full")


def test_too_long_for_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.formats.device.write.MAX_STATEMENTS", 10)
    with pytest.raises(Unsupported, match="run it by its table"):
        source(schedule_of("allreduce", "full:ranks=4", "ring"), "full")


def test_a_file_or_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "allreduce", "ring:ranks=3", "--planner", "ring", "-o", "plan.json"]) == 0
    for line, file in (
        ("export plan.json --to cuda -o mine.cu", "mine.cu"),
        ("export plan.json --to hip -o deep/out", "deep/out/plan0.hip.cpp"),
        ("export plan.json --to hip:op=max -o mine.hip.cpp", "mine.hip.cpp"),
    ):  # fmt: skip
        assert run(line.split()) == 0, line
        assert "int main" in Path(file).read_text()
    capsys.readouterr()


@pytest.mark.slow
@needs_a_compiler
def test_the_order_of_arrival_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = "--planner permrecmult:k=3 -o plan.json"
    assert run(f"plan allgather full:ranks=9 {plan}".split()) == 0
    assert run(["export", "plan.json", "--to", "cuda", "-o", "plain.cu"]) == 0
    assert run(["export", "plan.json", "--to", "cuda:arrival=yes", "-o", "mine.cu"]) == 0
    assert "w.permute_listed" in Path("mine.cu").read_text()
    assert "w.permute_listed" not in Path("plain.cu").read_text().split("/* ======== The plan ")[-1]
    right(compiled(tmp_path, Path("mine.cu").read_text()), "-b 1 -e 9000 -f 99 -n 1 -w 1")
    capsys.readouterr()
    for line, said in (
        ("export plan.json --to cuda:arrival=perhaps -o no.cu", "option arrival"),
        ("export ring.json --to cuda:arrival=yes -o no.cu", "no order of arrival"),
    ):
        assert run(["plan", "allgather", "full:ranks=4", "--planner", "ring", "-o", "ring.json"]) == 0
        assert run(line.split()) != 0
        assert said in capsys.readouterr().err
    assert not Path("no.cu").exists()


def spent() -> float:
    """Seconds of a processor, by all that was started and has ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def quietly(command: list[str], text: str, folder: Path, suffix: str, limit: float = 60.0) -> None:
    """A compiler takes it without a warning, and with so many seconds of a processor. The clock decides nothing: by it
    only who hangs is stopped."""
    file, before = folder / f"plan{suffix}", spent()
    file.write_text(text)
    done = subprocess.run(
        [*command, "-std=c++17", "-O3", "-c", "-o", str(folder / "plan.o"), str(file)],
        capture_output=True, text=True, check=False, timeout=20 * limit,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "warning" not in done.stderr, done.stderr[-3000:]
    assert spent() - before <= limit


LARGE = [("allreduce", "ring"), ("allreduce", "direct"), ("alltoall", "pairwise"), ("allreduce", "halving-doubling"),
         ("allreduce", "double-binary-tree")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize(("arch", "dtype"), [(arch, "float16") for arch in (75, 80, 90, 100)])
def test_nvcc_takes_it(tmp_path: Path, arch: int, dtype: str) -> None:
    text = source(schedule_of("allreduce", "dgx1v", "trees"), "dgx1v", dtype)
    quietly([str(NVCC), f"-arch=sm_{arch}", "-Xcompiler", "-Wall,-Wextra"], text, tmp_path, ".cu")


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize(("kind", "planner"), LARGE)
def test_nvcc_takes_64_ranks(tmp_path: Path, kind: str, planner: str) -> None:
    text = source(schedule_of(kind, "full:ranks=64", planner), "full:ranks=64")
    quietly([str(NVCC), "-arch=sm_90", "-Xcompiler", "-Wall,-Wextra"], text, tmp_path, ".cu")


def by_hipcc(arch: str) -> list[str]:
    return [str(HIPCC), "-x", "hip", f"--offload-arch={arch}", *HIP_FLAGS.split(), "-Wall", "-Wextra"]


@pytest.mark.slow
@pytest.mark.skipif(HIPCC is None, reason="needs hipcc")
@pytest.mark.parametrize("arch", ["gfx906", "gfx90a"])
@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_hipcc_takes_it(tmp_path: Path, arch: str, dtype: str) -> None:
    quietly(by_hipcc(arch), source(schedule_of("allreduce", "dgx1v", "trees"), "dgx1v", dtype), tmp_path, ".hip.cpp")


@pytest.mark.slow
@pytest.mark.skipif(HIPCC is None, reason="needs hipcc")
def test_hipcc_takes_64_ranks(tmp_path: Path) -> None:
    text = source(schedule_of("allreduce", "full:ranks=64", "ring"), "full:ranks=64")
    quietly(by_hipcc("gfx90a"), text, tmp_path, ".hip.cpp")


@needs_a_compiler
@pytest.mark.slow
def test_blocks_as_they_arrive(tmp_path: Path) -> None:
    text = source(schedule_of("allgather", "full:ranks=9", "permrecmult"), "full:ranks=9", in_place=True, arrival=True)
    assert "w.permute_listed" in text
    right(compiled(tmp_path, text), "-b 1 -e 40000 -f 199 -n 1 -w 0")
