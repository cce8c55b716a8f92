"""Ctrl-C and SIGTERM at any moment: one line, the exit code, nothing left (more often: fuzz/interrupts.py)."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import interrupts
import pytest
from quick import in_turn

from antiphon.cli import Signals, run
from antiphon.select import tuner
from antiphon.select.task import Done, Priced

ROOT = Path(__file__).resolve().parents[1]
PYTHON = [sys.executable, "-c"]


QUICK = ("topology", "verify")  # those that take longer: in the slow set


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tries", "busy", "names", "least"),
    [(3, 0, QUICK, 1), *((40, busy, (), 21) for busy in (0, 4))],
)
def test_at_random_moments(tries: int, busy: int, names: tuple[str, ...], least: int) -> None:
    commands = [command for command in interrupts.COMMANDS if not names or command[0] in names]
    counts, faults = interrupts.interrupts(tries, busy, seed=7, commands=commands)
    assert not faults
    assert counts["interrupted"] >= least  # the others were done before


def ended(program: str, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([*PYTHON, program, *arguments], capture_output=True, text=True, timeout=1000, check=False)
    return done.returncode, done.stdout, done.stderr


FIRST_LINE = """
import os, sys
number, wanted = int(sys.argv[1]), sys.argv[2]
class Here:  # the first thing that the package asks Python for, once it listens
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Here())
for name in [n for n in sys.modules if n.split(".")[0] in ("typing", "threading", "signal")]:
    del sys.modules[name]
sys.argv = ["/usr/bin/antiphon", "list", "topologies"]
from antiphon.cli import main
main()
"""


@pytest.mark.parametrize(("number", "said"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
@pytest.mark.parametrize(
    "module", in_turn(["typing", "signal", "typer", "antiphon.cli.table", "antiphon.cli.listing"], 3)
)
def test_while_modules_are_loaded(number: int, said: str, module: str) -> None:
    assert ended(FIRST_LINE, str(int(number)), module) == (128 + number, "", f"antiphon: {said}\n")


def test_a_program_of_others_keeps_its_own_ways() -> None:
    code, _, said = ended("import antiphon, os, signal; os.kill(os.getpid(), signal.SIGINT)")
    assert code == -signal.SIGINT
    assert "KeyboardInterrupt" in said
    usual = "signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    assert ended(f"import signal, antiphon.cli; antiphon.cli.run(['models']); print({usual})")[1].endswith("True\n")


@pytest.mark.slow
def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    """A shell's background job."""
    program = "import os, signal; os.kill(os.getpid(), signal.SIGINT); from antiphon.cli import main; "
    program += "main(['list', 'models'])"
    ignored = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {program}"
    code, out, said = ended(ignored)
    assert (code, said) == (0, "")
    assert out


COMMAND = """
import os, signal, sys, threading, time
import antiphon.cli.machine
def work(*_):
    {work}
antiphon.cli.machine.bound = work
antiphon.cli.main(["bound", "allreduce", "ring:ranks=3"])
"""
KILL = "os.kill(os.getpid(), signal.SIGINT)"


@pytest.mark.parametrize(
    "work",
    in_turn(
        [
            KILL,
            # raised where nobody can catch it
            f"x = type('X', (), {{'__del__': lambda self: {KILL}}})(); del x; time.sleep(60)",
            # made into something else by a library
            f"""
    try:
        {KILL}
        time.sleep(60)
    except KeyboardInterrupt:
        raise ImportError('half')""",
            # a second one while the first ends what was begun
            f"""
    try:
        {KILL}
    finally:
        {KILL}""",
            # while a library is imported: after it
            "sys.path.insert(0, '{folder}'); import interrupting; time.sleep(60)",
            # in a process that was forked from it
            f"""
    if not os.fork():
        {KILL}
        os._exit(1)
    os.wait()
    {KILL}""",
            # while it leaves: a thread that takes its time
            f"""
    def late():
        time.sleep(0.3)
        {KILL}
        time.sleep(60)
    threading.Thread(target=late).start()
    {KILL}""",
        ],
        7,
    ),
)
def test_within_a_command(work: str, tmp_path: Path) -> None:
    (tmp_path / "interrupting.py").write_text(f"import os, signal\n{KILL}\nready = True\n")
    work = work.replace("{folder}", str(tmp_path))
    assert ended(COMMAND.replace("{work}", work)) == (130, "", "antiphon: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_found_is_kept(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = tuner.run_tasks

    def until_one_is_found(context: Any, tasks: Any, workers: int, tell: Any, *rest: Any) -> None:
        heard: list[Any] = []

        def hear(message: Any) -> None:
            tell(message)
            if heard and isinstance(message, Done):
                os.kill(os.getpid(), number)
            heard.extend([message] if isinstance(message, Priced) else [])

        real(context, tasks, 0, hear)

    monkeypatch.setattr(tuner, "run_tasks", until_one_is_found)
    path = tmp_path / "plan.json"
    assert run(["tune", "allreduce", "ring:ranks=4", "-o", str(path)]) == 128 + number
    assert capsys.readouterr().err.endswith("\nantiphon: interrupted; the result so far is printed and written\n")
    assert run(["verify", str(path)]) == 0


def test_signals_in_a_thread_of_a_program_are_its_own() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(run(["list", "models"])))
    thread.start()
    thread.join()
    assert found == [0]


def test_handlers_of_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []

    def mine(number: int, frame: Any) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGTERM, mine)
    try:
        signals = Signals()
        signals.install()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)
        signals.restore()
        assert heard == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_another_thread_takes_adds_no_line() -> None:
    program = (
        "import os, signal, sys, threading, time\n"
        "import antiphon.cli.signals as ours\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "signals, plain = ours.Signals(), ours.say\n"
        "signals.install()\n"
        "def say(message):\n"
        "    plain(message)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(0.2)\n"
        "ours.say = say\n"
        "signals.print_last_line('terminated')\n"
        "os._exit(7)\n"
    )
    done = subprocess.run([*PYTHON, program], capture_output=True, text=True, timeout=1000, check=False)
    assert (done.returncode, done.stderr) == (7, "antiphon: terminated\n")


def test_a_signal_while_a_warning_is_printed_interrupts_the_command() -> None:
    program = (
        "import os, signal, warnings\n"
        "import antiphon.cli._app as app\n"
        "import antiphon.cli.signals as ours\n"
        "from antiphon.errors import UnlikelyInput\n"
        "signals = ours.Signals()\n"
        "signals.install()\n"
        "signals.raises_interrupt = True\n"
        "app.say = ours.say = lambda message: os.kill(os.getpid(), signal.SIGINT)\n"
        "try:\n"
        "    with app._warnings_on_stderr():\n"
        "        warnings.warn('odd', UnlikelyInput)\n"
        "except KeyboardInterrupt:\n"
        "    os._exit(7)\n"
    )
    ended = subprocess.run([*PYTHON, program], capture_output=True, text=True, timeout=1000, check=False)
    assert (ended.returncode, ended.stderr) == (7, "")


def test_a_signal_ends_a_command_whose_last_line_nobody_reads() -> None:
    """Stderr is a full pipe, so the last line never ends; the signals sent meanwhile still end the process."""
    program = (
        "import os, signal, threading, time\n"
        "import antiphon.cli.signals as ours\n"
        "signals = ours.Signals()\n"
        "signals.install()\n"
        "reader, writer = os.pipe()\n"
        "os.dup2(writer, 2)\n"
        "os.set_blocking(2, False)\n"
        "try:\n"
        "    while True:\n"
        "        os.write(2, bytes(4096))\n"
        "except BlockingIOError:\n"
        "    os.set_blocking(2, True)\n"
        "main = threading.get_ident()\n"
        "def interrupt():\n"
        "    for _ in range(8):\n"
        "        time.sleep(0.1)\n"
        "        signal.pthread_kill(main, signal.SIGINT)\n"
        "    time.sleep(20)\n"
        "    os._exit(9)\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "ours.say = lambda message: os.write(2, message.encode())\n"
        "signals.print_last_line('interrupted')\n"
    )
    ended = subprocess.run([*PYTHON, program], capture_output=True, timeout=1000, check=False)
    assert ended.returncode == 130


def test_the_hook_is_restored_where_signals_are_ignored() -> None:
    before = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)]
    hook = sys.unraisablehook
    try:
        signals = Signals()
        signals.install()
        signals.restore()
        assert sys.unraisablehook is hook
    finally:
        sys.unraisablehook = hook
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
