"""The order of the C files of the engine: none call each other in a circle, and none offers what no other uses.

Read off the sources: a file needs another if it names a function or variable that the other defines. Names that other
files can see begin with ap_.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from antiphon.runtimes.engine.build import DEVICE, NATIVE, TARGETS

# Comments, strings and characters.
NO_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
# A line that begins a definition: at the left margin, not static, and not a declaration of another kind.
DEFINITION = re.compile(r"^(?!static\b|typedef\b|extern\b|#|\s)[^;{}()=\n]*?\b(ap_\w+)\s*([(=;\[])", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.MULTILINE)


def without_comments(text: str) -> str:
    return NO_CODE.sub(" ", text)


def end_of_parameters(code: str, start: int) -> int:
    """The place behind the parenthesis that closes the one before `start`."""
    depth, at = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        at += 1
    return at


def defined_names(code: str) -> set[str]:
    """The functions and variables that other files can see."""
    names = set()
    for match in DEFINITION.finditer(code):
        is_function = match[2] == "("
        if not is_function or code[end_of_parameters(code, match.end()) :].lstrip().startswith("{"):
            names.add(match[1])
    return names


def used_names(code: str) -> set[str]:
    return set(re.findall(r"\bap_\w+", code))


def needed_files(files: dict[str, str]) -> dict[str, set[str]]:
    """Of each file, those that define what it names."""
    codes = {name: without_comments(text) for name, text in files.items()}
    owner = {symbol: name for name, code in codes.items() for symbol in defined_names(code)}
    return {
        name: {owner[symbol] for symbol in used_names(code) if symbol in owner} - {name} for name, code in codes.items()
    }


def included_files(files: dict[str, str]) -> dict[str, set[str]]:
    return {name: {Path(other).name for other in INCLUDE.findall(text)} & files.keys() for name, text in files.items()}


def find_circles(needs: dict[str, set[str]]) -> list[str]:
    """The files that need themselves by way of others, and those between such."""
    rest = {name: set(needed) for name, needed in needs.items()}
    while True:
        needed_by_rest = set().union(*rest.values())
        free = {name for name, needed in rest.items() if not needed or name not in needed_by_rest}
        if not free:
            return sorted(f"{name}: {sorted(needed)}" for name, needed in rest.items())
        rest = {name: needed - free for name, needed in rest.items() if name not in free}


def unshared_names(files: dict[str, str], elsewhere: Iterable[str] = ()) -> list[str]:
    """What a .c file defines for others, though only its own text and its declaration name it."""
    codes = {name: without_comments(text) for name, text in files.items()}
    headers = " ".join(code for name, code in codes.items() if name.endswith(".h"))
    outside = used_names(" ".join(elsewhere))
    found = []
    for name, code in codes.items():
        others = (
            used_names(" ".join(c for other, c in codes.items() if other.endswith(".c") and other != name)) | outside
        )
        for symbol in defined_names(code) if name.endswith(".c") else ():
            if symbol not in others and len(re.findall(rf"\b{symbol}\b", headers)) < 2:
                found.append(f"{name}: {symbol}")
    return sorted(found)


def sources(folder: Path, *suffixes: str) -> dict[str, str]:
    files = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.suffix in suffixes}
    assert files
    return files


def test_no_sources_call_each_other() -> None:
    assert find_circles(needed_files(sources(NATIVE, ".c"))) == []


@pytest.mark.parametrize("folder", [NATIVE, DEVICE], ids=["engine", "device"])
def test_no_headers_include_each_other(folder: Path) -> None:
    assert find_circles(included_files(sources(folder, ".h", ".c", ".cc", ".cu"))) == []


def test_what_no_other_file_uses_is_static() -> None:
    fuzzers = [path.read_text(encoding="utf-8") for path in (Path(__file__).parents[1] / "fuzz" / "native").glob("*.c")]
    assert unshared_names(sources(NATIVE, ".c", ".h"), fuzzers) == []


def test_every_source_is_built() -> None:
    built = {target.folder / name for target in TARGETS.values() for name in target.sources}
    there = {path for folder in (NATIVE, DEVICE) for path in folder.iterdir() if path.suffix in (".c", ".cc", ".cu")}
    assert there == built


@pytest.mark.parametrize("folder", [NATIVE, DEVICE], ids=["engine", "device"])
def test_every_file_begins_with_its_role(folder: Path) -> None:
    files = sources(folder, ".c", ".h", ".cc", ".cu")
    assert [name for name, text in sorted(files.items()) if not text.startswith("/* ")] == []


# ---- the checks checked ----


def test_a_circle_is_found() -> None:
    files = {
        "a.c": "int ap_a(void) { return ap_b(1); }\n",
        "b.c": "int ap_table[3] = {1, 2, 3};\nint ap_b(int n) {\n    return n ? ap_c() : 0;\n}\n",
        "c.c": "static int own(void) { return ap_table[0]; }\nint ap_c(void) { return own(); }\n",
        "d.c": 'int ap_d(void) { return ap_a(); } /* ap_e */ const char *text = "ap_e";\n',
        "e.c": "int ap_e(void (*f)(int), int n) { return ap_d(); }\n",
    }
    assert find_circles(needed_files(files)) == ["b.c: ['c.c']", "c.c: ['b.c']"]
    assert find_circles({name: set() for name in files}) == []


def test_a_declaration_is_no_definition() -> None:
    assert defined_names("int ap_a(int (*f)(void), int n);\nextern int ap_b;\nstatic int ap_c(void) { }\n") == set()
    assert defined_names("ap_state ap_d;\nconst int ap_e[2] = {1};\nvoid *ap_f(int n)\n{\n}\n") == {
        "ap_d", "ap_e", "ap_f",
    }  # fmt: skip


def test_what_is_only_declared_is_found() -> None:
    files = {
        "a.h": "int ap_a(void);\nint ap_b(void);\nextern int ap_c;\nstatic inline int ap_d(void) { return ap_c; }\n",
        "a.c": "int ap_c;\nint ap_a(void) { return ap_b(); }\nint ap_b(void) { return 0; }\n",
        "b.c": "int ap_e(void) { return ap_a(); }\n",
    }
    assert unshared_names(files) == ["a.c: ap_b", "b.c: ap_e"]
    assert unshared_names(files, ["ap_e()"]) == ["a.c: ap_b"]
