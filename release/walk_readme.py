"""Follow README in a bare environment as a user does: a fresh clone, its commands in its order, the output it shows.

    python3 release/walk_readme.py

Needs git, python3 and a C compiler, and installs into an environment inside a temporary folder. Commands that need a
lab (root and network namespaces) are skipped where there is none. Figures may differ by a quarter from those shown.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 0.25
LIMIT = 900  # seconds by the clock, on a busy machine too; two minutes where nothing else runs
NOT_TESTED = "# not tested: "
_BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
_EXIT_CODE = re.compile(r"# exit code (\d+)")


@dataclass(frozen=True)
class Command:
    """A command of a page with the lines of output that the page shows, `...` standing for any lines."""

    line: str
    shown: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """What the comment behind the command announces; 0 without one."""
        announced = _EXIT_CODE.search(self.line)
        return int(announced[1]) if announced else 0


@dataclass(frozen=True)
class Block:
    """A fenced block of commands. `reason`: why it is not run, as its first line says; empty where it is."""

    commands: tuple[Command, ...]
    reason: str = ""

    @property
    def text(self) -> str:
        return "\n".join(command.line for command in self.commands)

    @property
    def needs_lab(self) -> bool:
        return "antiphon lab " in self.text or "--on lab" in self.text


def read_blocks(page: str) -> list[Block]:
    """All blocks of commands of a page: ```console with `$ ` before each command, or ```sh with commands alone."""
    return [_read_block(language, body.splitlines()) for language, body in _BLOCK.findall(page)]


def _read_block(language: str, lines: list[str]) -> Block:
    first = lines[0] if lines else ""
    reason = first.removeprefix(NOT_TESTED) if first.startswith(NOT_TESTED) else ""
    commands: list[Command] = []
    for line in lines:
        if language == "console" and line.startswith("$ "):
            commands.append(Command(line[2:]))
        elif language == "sh" and line and not line.startswith("#"):
            commands.append(Command(line))
        elif language == "console" and commands:
            commands[-1] = Command(commands[-1].line, (*commands[-1].shown, line))
    return Block(tuple(commands), reason)


def find_missing(shown: Sequence[str], printed: Sequence[str]) -> str:
    """Return the first line shown whose words were not printed in this order, wherever lines were broken; "" if none.

    Numbers may differ by TOLERANCE."""
    words = [word for line in printed for word in line.split()]
    start = 0
    for line in shown:
        expected = line.split()
        if expected in ([], ["..."]):
            continue
        places = range(start, len(words) - len(expected) + 1)
        place = next((at for at in places if all(map(_agree, expected, words[at : at + len(expected)]))), None)
        if place is None:
            return line
        start = place + len(expected)
    return ""


def _agree(shown: str, printed: str) -> bool:
    """Whether two words are the same but for numbers that differ by at most TOLERANCE."""
    if shown == printed:
        return True
    if _NUMBER.sub("#", shown) != _NUMBER.sub("#", printed):
        return False
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=True)
    return all(abs(float(a) - float(b)) <= TOLERANCE * float(a) for a, b in pairs)


class Shell:
    """One bash for the whole page, so that `export` and an activated environment last."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=folder, env=environment, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, line: str) -> tuple[int, list[str]]:
        """Return the exit code of a command, and what it printed on stdout and stderr."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line} </dev/null\nprintf '\\n@@ %d\\n' $?\n")
        printed: list[str] = []
        for text in self.process.stdout:
            if text.startswith("@@ "):
                return int(text[3:]), printed
            printed.append(text.rstrip("\n"))
        raise SystemExit(f"README: the shell ended in `{line}`\n" + "\n".join(printed))

    def close(self) -> None:
        """End the shell and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def walk(shell: Shell, block: Block) -> Iterator[str]:
    """Run the commands of a block; yield a line for each. SystemExit at the first that is not as shown."""
    for command in block.commands:
        start = time.monotonic()
        code, printed = shell.run(command.line)
        if complaint := check(command, code, printed):
            raise SystemExit(f"README: {complaint}")
        yield f"{time.monotonic() - start:5.1f} s  {command.line}"


def check(command: Command, code: int, printed: Sequence[str]) -> str:
    """What is wrong with the exit code and the output of a command; empty where nothing is."""
    if code != command.exit_code:
        complaint = f"exit code {code}"
    elif missing := find_missing(command.shown, printed):
        complaint = f"`{missing.strip()}` is not in the output"
    else:
        return ""
    return "\n".join([f"`{command.line}`: {complaint}", *printed])


def why_no_lab(shell: Shell) -> str:
    """Empty where a lab can be made; else the reason, as the command reports it."""
    code, printed = shell.run("antiphon lab run full:ranks=2 -- true")
    return "" if code == 0 else " ".join(printed).strip() or f"exit code {code}"


def _bare(home: Path) -> dict[str, str]:
    """An environment without what an active virtual environment or an earlier run left in this one."""
    active = os.environ.get("VIRTUAL_ENV", "")
    folders = [
        folder
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)
        if not (active and folder.startswith(active)) and not folder.startswith(str(ROOT))
    ]
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_")) or name == "HOME"}
    cache = str(home / "cache")
    path = os.pathsep.join(folders)
    return {**kept, "PATH": path, "LC_ALL": "C.UTF-8", "COLUMNS": "80", "XDG_CACHE_HOME": cache}


def main() -> None:
    missing = [program for program in ("git", "bash", "cc") if shutil.which(program) is None]
    if missing:
        print(f"walk through README skipped: there is no {', '.join(missing)} here")
        return
    signal.signal(signal.SIGALRM, _end_late)
    signal.alarm(LIMIT)
    signal.signal(signal.SIGTERM, _end_stopped)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="antiphon-readme-") as folder:
        clone = Path(folder, "antiphon")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        blocks = [block for block in read_blocks((clone / "README.md").read_text(encoding="utf-8")) if not block.reason]
        shell, skipped = Shell(clone, _bare(Path(folder))), ""
        try:
            for block in blocks:
                if block.needs_lab and (reason := why_no_lab(shell)):
                    skipped = ", but for what was skipped"
                    print(f"skipped, as there can be no lab here ({reason}):\n{block.text}")
                    continue
                for line in walk(shell, block):
                    print(line, flush=True)
        finally:
            shell.close()
    print(f"README holds{skipped}: {time.monotonic() - start:.0f} s")


def _end_stopped(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _end_late(*_: object) -> None:
    raise SystemExit(f"README: its commands take more than {LIMIT} s")


if __name__ == "__main__":
    main()
