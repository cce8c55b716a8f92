"""Compile the parts of the engine that need no MPI for wheels: `prebuilt.py FOLDER MACHINE COMPILER...`.

COMPILER is Zig (`python -m ziglang`, from PyPI), which compiles for any processor and against any version of the GNU C
library: GLIBC is the oldest that the wheel's platform tag (manylinux) allows. build.library loads a file of FOLDER only
if its name, a hash of sources and flags, is that of the installed sources. Prints the platform tag.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from antiphon.runtimes.engine.build import PREBUILT_TARGETS, TARGETS, compiler_arguments, prebuilt_name

GLIBC = (2, 28)  # memfd_create is in it, and manylinux_2_28 is a usual tag
MACHINES = ("x86_64", "aarch64")


def compile_all(folder: Path, machine: str, compiler: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    platform = f"{machine}-linux-gnu.{'.'.join(map(str, GLIBC))}"
    for target in PREBUILT_TARGETS:
        language = "c++" if TARGETS[target].compiler == "c++" else "cc"
        words = [*compiler, language, "-target", platform, *compiler_arguments(target)]
        # without symbols for debuggers; 64-bit atomics are instructions on both processors
        command = [*words, "-Wl,-s", "-o", str(folder / prebuilt_name(target, machine))]
        subprocess.run(command, check=True)


def platform_tag(machine: str) -> str:
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[2] not in MACHINES:
        sys.exit(f"usage: prebuilt.py FOLDER {'|'.join(MACHINES)} COMPILER...")
    compile_all(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    print(platform_tag(sys.argv[2]))
