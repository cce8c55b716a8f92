"""Commands ended by a signal at random moments: none may show a traceback, keep a child or leave a temporary file.

    python fuzz/interrupts.py --count 1000 --busy 4

Each try starts a command in a session of its own, waits for a time drawn from the length of an undisturbed run, and
sends SIGINT to the whole session, as a terminal does, or SIGTERM to the command alone; some get a second signal. What
is judged: exit code, stderr, processes of the session that are still there, files left in its TMPDIR. A traceback
without a file of Antiphon is the interpreter's own start and is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
POINT = "sccl:chunks=2,steps=5,rounds=5"
COMMANDS = (
    ("topology", "show", "dgx1v", "-o", "machine.svg"),
    ("plan", "allreduce", "dgx1v", "--planner", "trees"),
    ("plan", "allgather", "ring:ranks=6", "--planner", POINT),
    ("tune", "allreduce", "dgx1v", "--nbytes", "1KB:1GB"),
    ("frontier", "allgather", "ring:ranks=4"),
    ("bound", "allreduce", "dgx1v"),
    ("verify", "plan.json", "--proof"),
    ("run", "plan.json", "--nbytes", "16MB"),
    ("simulate", "plan.json", "--nbytes", "64MB"),
)
PATIENCE = 60.0
DONE = (0, 1)  # a command that was quicker than the signal


@dataclass(frozen=True)
class Try:
    command: tuple[str, ...]
    number: int
    delay: float
    second: float | None  # after the first


@dataclass(frozen=True)
class End:
    code: int
    stderr: str
    alive: tuple[str, ...]
    left: tuple[str, ...]


def starts(folder: Path) -> tuple[list[str], ...]:
    """The two ways in: the module, and what pip makes of the entry point."""
    script = folder / "antiphon"
    script.write_text("import sys\nfrom antiphon.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n")
    return [sys.executable, "-m", "antiphon"], [sys.executable, str(script)]


def environment(folder: Path) -> dict[str, str]:
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = folder / "tmp"
    kept.mkdir(exist_ok=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(kept), "ANTIPHON_CACHE": "off"}


def prepare(folder: Path, commands: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], float]:
    """The plan that some commands read, and how long each takes undisturbed."""
    env = environment(folder)

    def run(*command: str) -> None:
        whole = [sys.executable, "-m", "antiphon", *command]
        subprocess.run(whole, cwd=folder, env=env, capture_output=True, check=True)

    run("plan", "allreduce", "dgx1v", "-o", "plan.json")
    lengths = {}
    for command in commands:
        begin = time.monotonic()
        run(*command)
        lengths[command] = time.monotonic() - begin
    return lengths


def do(one: Try, folder: Path, start: Sequence[str]) -> End:
    env = environment(folder)
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*start, *one.command],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        try:
            for delay in (one.delay, one.second):
                if delay is not None:
                    time.sleep(delay)
                    send(process, one.number)
            code = process.wait(PATIENCE)
        finally:
            alive = session_of(process.pid)
            names = tuple(map(name_of, alive))
            for pid in alive:
                kill(pid)
            if process.poll() is None:
                process.kill()
            process.wait()
        said.seek(0)
        left = tuple(sorted(path.name for path in (folder / "tmp").iterdir()))
        return End(code, said.read(), names, left)


def send(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


def session_of(leader: int) -> list[int]:
    """The processes that still run in what it began, itself aside; some take a moment to see that it has gone."""
    end = time.monotonic() + 5
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != leader:
                try:
                    fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == leader and fields[0] != "Z":
                    found.append(int(entry.name))
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.02)


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")[:200]
    return str(pid)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wrong(one: Try, end: End) -> str:
    """What is wrong with how it ended; "" where nothing is."""
    if "Traceback" in end.stderr or "Exception ignored" in end.stderr:
        ours = "antiphon/" in end.stderr.partition("Traceback")[2]
        return "traceback" if ours else "start"
    told = [line for line in end.stderr.splitlines() if line.startswith("antiphon: ")]
    if end.code == -one.number and len(told) <= (one.second is not None):
        return ""  # before Python listens, or when it has stopped
    if end.code == 128 + one.number:
        if len(told) != 1:
            return "no line" if not told else "several lines"
    elif end.code not in DONE:
        return "exit code"
    if end.alive:
        return "process left"
    return "file left" if end.left else ""


def draw(rng: random.Random, lengths: dict[tuple[str, ...], float], busy: int) -> Try:
    command = rng.choice([*lengths])
    # half of them while modules are loaded, which all commands have in common
    limit = min(lengths.values()) if rng.random() < 0.5 else max(lengths[command], 0.1)
    number = signal.SIGINT if rng.random() < 0.75 else signal.SIGTERM
    second = rng.choice([0.0, 0.005, 0.05]) if rng.random() < 0.2 else None
    return Try(command, number, rng.uniform(0, limit) * (1 + busy / 2), second)


def interrupts(
    count: int, busy: int, seed: int, tell: bool = False, commands: Sequence[tuple[str, ...]] = COMMANDS
) -> tuple[Counter[str], list[tuple[Try, End, str]]]:
    """So many tries of these commands while `busy` processes do nothing but work: the counts, and the faults."""
    rng, counts, faults = random.Random(seed), Counter[str](), []
    with tempfile.TemporaryDirectory(prefix="interrupts-") as name:
        folder = Path(name)
        ways, lengths = starts(folder), prepare(folder, commands)
        workers = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            for at in range(count):
                one = draw(rng, lengths, busy)
                end = do(one, folder, ways[at % len(ways)])
                fault = wrong(one, end)
                counts[fault or ("interrupted" if end.code not in DONE else "done before")] += 1
                if fault and fault != "start":
                    faults.append((one, end, fault))
                    if tell:
                        print(f"{fault}: {one}\n{end}", file=sys.stderr, flush=True)
                for path in (folder / "tmp").iterdir():
                    path.rename(folder / f"left-{at}-{path.name}")
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    return counts, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--busy", type=int, default=0, help="processes that keep the processors busy meanwhile")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    counts, faults = interrupts(asked.count, asked.busy, asked.seed, tell=True)
    print(json.dumps({"tries": asked.count, "busy": asked.busy, "seed": asked.seed, **counts}))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
