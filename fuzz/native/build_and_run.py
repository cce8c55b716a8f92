"""The fuzzer of the engine in C: compiled with what is there and run. The first crash ends it; its input is kept.

python fuzz/native/build_and_run.py --executions 100000 --seed 1

With clang it is libFuzzer, which sees what code an input reaches; with another compiler a driver that goes by chance.
Both with AddressSanitizer (and its search for leaks) and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from seeds import write

from antiphon.runtimes.engine.build import CORE, NATIVE

HERE = Path(__file__).parent
ENGINE = [name for name in (*CORE, "book.c") if name != "exports.c"]
OURS = [HERE / "target.c", HERE / "mutate.c"]
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-pthread"]
FLAGS += ["-ffp-contract=off"]
SETTINGS = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=1024:detect_leaks=1:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
MOST_BYTES = 1 << 16  # of an input


def compiled(folder: Path, compiler: str, native: Path = NATIVE) -> tuple[Path, bool]:
    """The fuzzer, and whether it is libFuzzer."""
    for command, fuzzer in ((compiler or "clang", True), (compiler or os.environ.get("CC", "cc"), False)):
        if shutil.which(command) is None:
            continue
        kinds = ["-fsanitize=address,undefined"]
        kinds += ["-fsanitize=fuzzer", f"-fsanitize-coverage-ignorelist={HERE / 'not_counted.txt'}"] if fuzzer else []
        path = folder / ("libfuzzer" if fuzzer else "driver")
        sources = [*(native / name for name in ENGINE), *OURS, *([] if fuzzer else [HERE / "driver.c"])]
        done = subprocess.run(
            [command, *FLAGS, f"-I{native}", *kinds, *map(str, sources), "-o", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return path, fuzzer
        if not fuzzer:
            raise SystemExit(f"{command} could not compile the fuzzer: {done.stderr[-2000:]}")
    raise SystemExit("there is no compiler: install clang, or gcc with its sanitizers")


def run(path: Path, fuzzer: bool, folder: Path, executions: int, seed: int) -> tuple[int, str]:
    """The exit code and what was told at the end."""
    seeds, last = folder / "seeds", folder / "crash-last"
    command = [str(path), str(seeds), str(executions), str(seed), str(last)]
    if fuzzer:
        corpus = folder / "corpus"
        corpus.mkdir()
        # The time-out is of the wall clock: far above what any input takes, so that a busy machine is no fault.
        limits = ["-timeout=600", "-rss_limit_mb=2048", "-malloc_limit_mb=1024", f"-max_len={MOST_BYTES}"]
        command = [str(path), f"-runs={executions}", f"-seed={seed}", *limits, f"-artifact_prefix={folder}/"]
        command += [str(corpus), str(seeds)]
    done = subprocess.run(command, env={**os.environ, **SETTINGS}, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--executions", type=int, default=100_000)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--compiler", default="", help="instead of clang, or $CC or cc")
    ask.add_argument("--keep", type=Path, default=Path("fuzz-crashes"), help="where the input of a crash is kept")
    ask.add_argument("--native", type=Path, default=NATIVE, help="the folder of the engine's sources")
    given = ask.parse_args()
    with tempfile.TemporaryDirectory(prefix="antiphon-native-fuzz-") as name:
        folder = Path(name)
        count = write(folder / "seeds")
        path, fuzzer = compiled(folder, given.compiler, given.native)
        begin = time.monotonic()
        code, told = run(path, fuzzer, folder, given.executions, given.seed)
        seconds = time.monotonic() - begin
        found = [*folder.glob("crash-*"), *folder.glob("leak-*"), *folder.glob("timeout-*"), *folder.glob("oom-*")]
        reached = re.findall(r"cov: (\d+)", told)
        how = f"libFuzzer, {reached[-1]} edges reached" if fuzzer and reached else "without coverage"
        if code == 0:
            print(f"{given.executions} executions from {count} seeds, {how}, {seconds:.0f} s: 0 crashes")
            return 0
        print(told[-6000:], file=sys.stderr)
        given.keep.mkdir(parents=True, exist_ok=True)
        for one in found:
            shutil.copy(one, given.keep / one.name)
            print(f"kept: {given.keep / one.name}", file=sys.stderr)
        print(f"a crash within {given.executions} executions, seed {given.seed} ({how}); exit code {code}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
