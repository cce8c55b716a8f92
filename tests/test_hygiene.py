"""Rules about the project's files as files: how long they are, and what they must not contain."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE_SUFFIXES = {".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
LONGEST_SOURCE = 600
NOT_OURS = {".git", ".venv", "build", "dist", "__pycache__"}

# A path below somebody's home or working directory, at the start of a path: not `a/home/b`, not `https://x/home/b`.
PRIVATE_PATH = re.compile(r"(?<![\w./~})\]*-])/(?:home|root|work|workspace|Users)/[\w.~-]+|[A-Za-z]:\\Users\\")


def git(*args: str) -> str | None:
    """What git says in the project's root, or None where there is no (usable) git."""
    try:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def walk(root: Path) -> list[Path]:
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [
            name
            for name in subfolders
            if name not in NOT_OURS and not name.endswith(("_cache", ".egg-info")) and name != ".hypothesis"
        ]
        found += [Path(folder, name) for name in names]
    return sorted(found)


def project_files() -> list[Path]:
    """Every file that is, or could be, committed; outside a checkout, every file that is not built."""
    top = git("rev-parse", "--show-toplevel")
    if top is not None and Path(top.rstrip("\n")).resolve() == ROOT:
        listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        if listed is not None:
            paths = (ROOT / name for name in sorted(set(listed.split("\0"))) if name)
            return [path for path in paths if path.is_file()]
    return walk(ROOT)


def private_paths(text: str) -> list[str]:
    return [found.group() for found in PRIVATE_PATH.finditer(text)]


def test_no_source_file_is_too_long() -> None:
    too_long = []
    for path in walk(ROOT / "src"):
        if path.suffix in SOURCE_SUFFIXES:
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > LONGEST_SOURCE:
                too_long.append(f"{path.relative_to(ROOT)} has {lines} lines, more than {LONGEST_SOURCE}")
    assert not too_long, "\n".join(too_long)


def test_no_private_paths() -> None:
    files = project_files()
    assert Path(__file__).resolve() in files
    found = []
    for path in files:
        text = path.read_bytes().decode("utf-8", errors="replace")
        if "\0" in text or not private_paths(text):
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            found += [f"{path.relative_to(ROOT)}:{number}: {private}" for private in private_paths(line)]
    assert not found, "\n".join(found)


def test_what_is_included_from_other_folders_is_there() -> None:
    """Programs that no test compiles, too."""
    named = [
        (path, name)
        for path in project_files()
        if path.suffix in SOURCE_SUFFIXES - {".py", ".pyi"}
        for name in re.findall(r'^#include "(\.\./[^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert named
    missing = [f"{path.relative_to(ROOT)}: {name}" for path, name in named if not (path.parent / name).is_file()]
    assert not missing, "\n".join(missing)


def test_both_ways_of_listing_files_find_this_one() -> None:
    assert Path(__file__).resolve() in walk(ROOT)
    assert Path(__file__).resolve() in project_files()


def test_private_paths_are_told_from_others() -> None:
    # Put together from parts, so that this file does not hold what it looks for.
    for top in ("home", "root", "work", "Users"):
        assert private_paths(f'open("/{top}/' + 'someone/plan.json")')
        assert not private_paths(f"see docs/{top}/page and https://example.org/{top}/page")
    assert private_paths("C:" + "\\Users\\someone")
    assert not private_paths("/usr/bin/env, /tmp/x, /dev/shm/y, the /root/ of a tree")
