"""Help, the width of what is printed, and completion in the shells themselves."""

import contextlib
import io
import itertools
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest
from commands import Capture, complaint, printed
from quick import in_turn

from antiphon.cli import planning, run

COMMAND = [sys.executable, "-m", "antiphon"]
pytestmark = pytest.mark.usefixtures("own_folder")


# ---- help ----


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        ("-h", "--help"),
        ("help", "--help"),
        ("tune -h", "tune --help"),
        ("help tune", "tune --help"),
        ("help topology show", "topology show --help"),
        ("bench -h", "bench --help"),
        ("help bench micro", "bench micro --help"),
        ("--json help tune", "tune --help"),
    ],
)
def test_ways_to_ask_for_help(capsys: Capture, asked: str, same: str) -> None:
    assert printed(capsys, *asked.split()) == printed(capsys, *same.split())
    assert "-h, --help" in printed(capsys, *asked.split())


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("topology probe", "[FILE]..."), ("replay", "TRACE..."), ("list", "KIND [NAME]"), ("table diff", "OLD NEW"),
        ("bench", "COLL|PLAN|TABLE [TOPO]"),
    ],
)  # fmt: skip
def test_arguments_have_their_own_names_in_help(capsys: Capture, command: str, usage: str) -> None:
    """Not Python's types, nor more brackets, as some versions of typer add."""
    text = printed(capsys, *command.split(), "--help")
    assert text.startswith(f"Usage: antiphon {command} [OPTIONS] {usage}\n")
    arguments = text.partition("Arguments:\n")[2].partition("\n\n")[0]
    assert "  " + usage.split(" [", maxsplit=1)[0] in arguments
    assert "<" not in arguments


@pytest.mark.parametrize("group", ["table", "store", "fit", "lab", "topology", "trace"])
def test_commands_of_a_group_are_described_in_whole_sentences(capsys: Capture, group: str) -> None:
    commands = printed(capsys, group, "--help").partition("Commands:\n")[2].partition("\n\n")[0]
    assert "..." not in commands


def test_help_for_what_is_no_command(capsys: Capture) -> None:
    assert "No such command 'frobnicate'" in complaint(capsys, "help", "frobnicate")


@pytest.mark.parametrize(
    ("option", "meant"),
    [("--plannr", "--planner"), ("--sizes", "--nbytes"), ("--algorithm", "--planner"), ("--qqq", "")],
)
def test_an_unknown_option_suggests_only_what_was_most_likely_meant(
    capsys: pytest.CaptureFixture[str], option: str, meant: str
) -> None:
    hint = f"; did you mean {meant}?" if meant else ""
    said = complaint(capsys, "tune", "allreduce", "dgx1v", option, "x")
    assert said == f"antiphon: no such option: {option}{hint} (see antiphon tune --help)\n"


@pytest.mark.slow
def test_a_build_shows_in_a_log_that_it_goes_on(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LOG_INTERVAL", 0.05)
    assert run(["build", "nccl-tuner", "--compiler", "sh -c 'sleep 0.5; exit 1' cc"]) == 2
    assert "compiling (" in capsys.readouterr().err


def test_the_first_result_is_printed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr("antiphon.cli.planning.say", heard.append)
    with planning.repeat_in_log(print_at_once="best") as tell:
        tell("1 of 3")
        assert not heard
        tell("2 of 3, the best")
        tell("3 of 3, the best")
        assert heard == ["2 of 3, the best (0 s)"]


def test_tune_prints_its_first_result_before_it_is_done(capsys: Capture) -> None:
    assert run(["tune", "allgather", "ring:ranks=4", "--nbytes", "1KB", "--planner", "ring", "--workers", "1"]) == 0
    first = r"1 of \d+ planner calls done; last: ring; best so far for 1KB: ring, "
    assert re.search(first, capsys.readouterr().err)


# ---- width ----


WIDE = [
    "list planners", "list models", "list formats", "list runtimes", "tune --help",
    "topology show dgx1v", "bound allgather cluster:box=dgx-a100,boxes=4",
    "predict allreduce hgx-h100 --library nccl --nbytes 1KB:1MB:32",
    "tune allreduce hgx-h100 --planner ring --planner recursive-doubling --nbytes 1KB:1GB:1000 --workers 1",
]  # fmt: skip
FIXED = [  # whose text is no wider than a usual terminal, however wide this one is
    "predict plan.json --nbytes 1MB --trace trace.json", "run plan.json --nbytes 1KB", "verify plan.json",
    "plan allreduce hypercube:ranks=16 -o other.json",
    "tune all ring:ranks=3 --planner ring --planner direct --nbytes 1KB:8KB",
]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "command"), [*itertools.product(("60", "140"), WIDE), *itertools.product(("80",), FIXED)]
)
def test_text_is_as_wide_as_the_terminal(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: str, command: str
) -> None:
    if "plan.json" in command:
        printed(capsys, "plan", "allreduce", "dgx1v", "-o", "plan.json")
    monkeypatch.setenv("COLUMNS", columns)
    widest = max(map(len, printed(capsys, *command.split()).splitlines()))
    assert widest <= int(columns)
    if command in ("list planners", "list runtimes", "tune --help"):
        assert widest > int(columns) - 16


def test_predictions_on_a_narrow_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the terms go, the smallest first, and a line names them; the figures themselves stay."""
    printed(capsys, "plan", "allreduce", "hgx-h100", "-o", "plan.json")
    for columns, terms in (("60", False), ("140", True)):
        monkeypatch.setenv("COLUMNS", columns)
        text = printed(capsys, "predict", "plan.json", "--nbytes", "1KB:1MB:32")
        assert ("launch us" in text.splitlines()[1]) == terms
        assert ("+ columns also: " in " ".join(text.split())) != terms
        assert {"nbytes", "time", "algbw", "busbw"} <= set(text.split())
        assert max(map(len, text.splitlines())) <= int(columns)


def test_bound_says_by_which_model_tune_computes_gaps(capsys: Capture) -> None:
    note = "The gaps of tune are over another bound: --model calls"
    assert note in " ".join(printed(capsys, "bound", "allreduce", "dgx1v", "--nbytes", "1MB").split())
    assert note not in printed(capsys, "bound", "allreduce", "dgx1v", "--nbytes", "1MB", "--model", "calls")
    assert "gaps of tune" not in printed(capsys, "bound", "allreduce", "ring:ranks=4", "--nbytes", "1MB")


def test_equal_errors_of_all_sizes_are_stated_once(capsys: Capture) -> None:
    words = ["allreduce", "dgx1v", "--planner", "ring", "--nbytes", "1MB", "--explain"]
    assert "fit: allreduce 7.5% at all sizes; treat" in " ".join(printed(capsys, "tune", *words).split())


def test_verify_says_what_it_did_not_check(capsys: Capture) -> None:
    """The weaker check claims no more than --proof; what is stated is named by sizes, in words that are not cut."""
    words = ["allreduce", "dgx1v", "--planner", "ring", "--planner", "recursive-doubling", "-o", "plan.json"]
    printed(capsys, "tune", *words)
    weak, strong = (" ".join(printed(capsys, "verify", "plan.json", *proof).split()) for proof in ([], ["--proof"]))
    assert "gaps confirmed; not checked: predicted times, planners' notes (--proof checks or lists them)" in weak
    assert "figures confirmed, except those listed as stated" in strong
    assert re.search(
        r"stated.* up to \S+, \(C, S, R\) = \(1, 3, 3\): claims: .*runners_up = \(planner \S+, options", strong
    )
    assert not re.search(r"[{}]|\w\.\.\.", strong)
    assert strong.endswith("(C, S, R): chunks of each rank's input, steps, rounds")
    assert strong.count("(C, S, R) = (1, 3, 3): ") == 2  # its sizes and figures once, then what is proved or stated


def test_degrade_names_the_next_commands(capsys: Capture) -> None:
    lines = printed(capsys, "topology", "degrade", "dgx1v", "--drop", "0-1", "-o", "broken.json").splitlines()
    assert lines[-3].startswith("  next:")
    assert lines[-2:] == [
        "    antiphon tune allreduce broken.json --against dgx1v",
        "    antiphon plan --repair OLD.json broken.json -o new.json",
    ]
    assert sum("gone" in line for line in lines) == 1


def test_degrade_names_commands_for_the_largest_part_of_a_machine_that_falls_apart(capsys: Capture) -> None:
    assert run(["plan", "allreduce", "line:ranks=5", "--planner", "relay", "-o", "OLD.json"]) == 0
    assert run(["topology", "degrade", "line:ranks=5", "--drop", "2-3", "-o", "broken.json"]) == 0
    commands = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert commands[0][1:4] == ["tune", "allreduce:ranks=0-2", "broken.json"]
    assert run([*commands[0][1:], "--nbytes", "1KB", "--planner", "relay"]) == 0
    assert run(commands[1][1:]) == 0


@pytest.mark.parametrize(("columns", "widest"), in_turn([(140, 140), (40, 60), (300, 200)]))
def test_width_of_a_real_terminal(columns: int, widest: int) -> None:
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen([*COMMAND, "tune", "--help"], stdout=slave, stdin=slave, env=environment) as process:
        os.close(slave)
        text = _read_all(master)
    assert process.returncode == 0
    lengths = [len(line) for line in text.replace("\r", "").splitlines()]
    assert widest - 16 < max(lengths) <= widest


@pytest.mark.slow
def test_width_where_there_is_no_terminal() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run([*COMMAND, "list", "planners"], capture_output=True, text=True, env=environment, check=True)
    assert 84 < max(map(len, done.stdout.splitlines())) <= 100


def _read_all(master: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(master, 2**16)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            os.close(master)
            return b"".join(parts).decode()
        parts.append(part)


# ---- completion ----

CASES = [
    ("tun", {"tune"}, set()),
    ("", {"list", "verify"}, {"planners", "check", "simulate", "compose"}),
    ("", {"tune", "plan", "help", "topology"}, {"allreduce"}),
    ("help tu", {"tune"}, set()),
    ("topology ", {"show", "probe", "join"}, {"tune"}),
    ("tune allr", {"allreduce"}, {"reduce"}),
    ("tune ", {"allreduce", "all"}, {"tune", "dgx1v"}),
    ("tune allreduce dg", {"dgx1v", "dgx-a100"}, {"ring:ranks=8"}),
    ("tune allreduce ", {"dgx1v", "ring:ranks=8", "mine.json"}, {"allreduce"}),
    ("tune --planner ring allreduce m", {"mine.json"}, {"dgx1v"}),
    ("tune allreduce dgx1v --planner ri", {"ring"}, {"trees"}),
    ("tune allreduce dgx1v --planner ring --pla", {"--planner"}, {"--json"}),
    ("tune allreduce dgx1v --js", {"--json"}, {"--planner"}),
    ("tune allreduce dgx1v --model ", {"alpha-beta", "loggp"}, {"ring"}),
    ("export mine.json --to ms", {"msccl-xml", "mscclpp-json"}, {"goal"}),
    ("verify ", {"mine.json"}, {"dgx1v", "verify"}),
    ("bench ", {"genmodel", "micro", "allreduce", "mine.json"}, {"tune"}),
    ("bench allreduce full:ranks=4 --on ", {"mpi", "threads"}, {"nccl-tuner"}),
    ("build ", {"mpi", "nccl-tuner"}, {"goal"}),
    ("verify mine.json --for ", {"msccl", "rccl-6"}, {"goal"}),
    ("list ", {"planners", "formats"}, {"ring"}),
    ("list planners ri", {"ring"}, {"planners"}),
    ("list topologies dg", {"dgx1v"}, {"show"}),
    ("plan --from ", {"mine.json"}, {"allreduce"}),
    ("plan allreduce dgx1v --repair ", {"mine.json"}, {"allreduce"}),
    ("check-log ", {"mine.json"}, {"dgx1v"}),
    ("predict allreduce ", {"dgx1v", "mine.json"}, {"allreduce"}),
    ("bound allreduce dgx1v --model ", {"genmodel"}, {"ring"}),
    ("fit genmodel times.csv --kind ", set(), {"planners"}),
    ("run mine.json --dtype bfl", {"bfloat16"}, {"float32"}),
    ("lab run dgx1v -- ./a.out mi", {"mine.json"}, {"micro"}),
    ("-", {"--version", "--help", "--show-completion", "--json"}, {"--planner"}),
    ("--show-completion ", {"bash", "zsh", "fish"}, {"tune"}),
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every shell gets, installed into a home of its own."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
            patch.delenv(name, raising=False)
        for shell in ("bash", "zsh", "fish"):
            with contextlib.redirect_stdout(io.StringIO()) as said:
                assert run(["--install-completion", shell]) == 0
            assert said.getvalue().startswith(f"written: {home}")
    return home


def in_shell(command: list[str], home: Path) -> str:
    """What a shell prints that has no antiphon to ask."""
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "TERM": "dumb"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_completion_in_bash(scripts: Path) -> None:
    Path("mine.json").write_text("{}")
    path = scripts / ".local/share/bash-completion/completions/antiphon"
    asked = "\n".join(
        f'COMP_LINE={line!r}; COMP_POINT={len(line)}; COMPREPLY=(); _antiphon; echo "${{COMPREPLY[@]}}"'
        for line in (f"antiphon {words}" for words, _, _ in CASES)
    )
    answers = in_shell(["bash", "--norc", "-c", f". {path}; complete -p antiphon >&2\n{asked}"], scripts).splitlines()
    for (words, offered, not_offered), answer in zip(CASES, answers, strict=True):
        assert offered <= set(answer.split()), (words, answer)
        assert not not_offered & set(answer.split()), (words, answer)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "answer"),
    [("bound allreduce ring:ra", "ranks=8"), ("tune --planner=ri", "ring"), ("bound allreduce ./mi", "./mine.json")],
)
def test_word_breaks_of_bash(scripts: Path, words: str, answer: str) -> None:
    """Readline replaces only what stands behind a colon or an equals sign."""
    Path("mine.json").write_text("{}")
    path = scripts / ".local/share/bash-completion/completions/antiphon"
    line = f"antiphon {words}"
    asked = f'. {path}; COMP_LINE={line!r}; COMP_POINT={len(line)}; _antiphon; echo "${{COMPREPLY[@]}}"'
    assert in_shell(["bash", "--norc", "-c", asked], scripts).split() == [answer]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_completion_in_fish(scripts: Path) -> None:
    Path("mine.json").write_text("{}")
    path = scripts / ".config/fish/completions/antiphon.fish"
    asked = "; ".join(f"complete -C 'antiphon {words}'; echo ===" for words, _, _ in CASES)
    answers = in_shell(["fish", "-c", f"source {path}; {asked}"], scripts).split("===\n")
    for (words, offered, not_offered), answer in zip(CASES, answers[:-1], strict=True):
        said = {line.split("\t")[0] for line in answer.splitlines()}
        assert offered <= said, (words, answer)
        assert not not_offered & said, (words, answer)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_completion_in_zsh(scripts: Path) -> None:
    """Typed at a real prompt: what is the only one is written out."""
    Path("mine.json").write_text("{}")
    (scripts / ".zshrc").write_text(
        "PS1='> '; fpath+=(~/.zfunc); autoload -Uz compinit; compinit -u -D; unsetopt beep\n"
    )
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    environment = {"HOME": str(scripts), "PATH": "/usr/bin:/bin", "TERM": "dumb"}
    with subprocess.Popen(
        ["zsh", "-i"], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    ):
        os.close(slave)
        for typed, whole in [
            ("antiphon tun", "tune "),
            ("antiphon tune allr", "allreduce "),
            ("antiphon tune allreduce dgx1v --planner binom", "--planner binomial-tree "),
            ("antiphon tune allreduce dgx1v --planner=binom", "--planner=binomial-tree "),
            ("antiphon bound allreduce ring:", "ring:ranks=8"),
            ("antiphon verify mi", "mine.json "),
            ("antiphon help fron", "frontier "),
        ]:
            os.write(master, f"{typed}\t".encode())
            assert whole in _until(master, whole), typed
            os.write(master, b"\x15")  # the line is cleared
        os.write(master, b"exit\n")
        _read_all(master)


def _until(master: int, text: str) -> str:
    """What a terminal shows until this is there, at most for a minute."""
    shown, end = "", time.monotonic() + 60
    while text not in shown and time.monotonic() < end:
        if select.select([master], [], [], 1.0)[0]:
            shown += os.read(master, 2**16).decode()
    return shown


def test_completion_that_cannot_be(capsys: Capture) -> None:
    assert "unknown shell 'tcsh' (known: bash, fish, zsh)" in complaint(capsys, "--show-completion", "tcsh")


@pytest.mark.slow
def test_completion_of_the_shell_that_runs_us() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(COMMAND)} --show-completion; true"], capture_output=True, text=True, check=True
    )
    assert "for bash" in done.stdout
