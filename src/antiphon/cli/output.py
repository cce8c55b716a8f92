"""Results on stdout (text, or JSON under --json), progress on stderr, and checks of output files before long work."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from antiphon.core.files import check_folder, check_writable, write_bytes
from antiphon.errors import AntiphonError, Invalid
from antiphon.show.pictures.png import check_png, png_of
from antiphon.units import format_seconds

# The kinds of files that a command writes with -o; a file's ending decides its kind, a name without one is of the first
OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "topology show": ("machine", "picture"),
    "topology probe": ("machine",),
    "topology join": ("machine",),
    "topology degrade": ("machine",),
    "plan": ("plan", "picture"),
    "compose": ("plan",),  # an old spelling
    "frontier": ("plan",),
    "tune": ("plans", "report", "picture"),
    "sweep": ("rows", "picture"),
    "explore": ("page",),
    "bench": ("measurements",),
    "bench genmodel": ("measurements",),
    "bench loggp": ("measurements",),
    "bench micro": ("measurements",),
    "fit genmodel": ("profile", "picture"),
    "fit memory": ("profile", "measurements", "picture"),
    "fit loggp": ("profile", "picture"),
    "fit lowering": ("profile",),
    "trace merge": ("trace",),
    "trace read": ("plan",),
    "store get": ("plan",),
}
# The endings of each kind, and of files that other options name; .json if not listed. All may add .gz.
ENDINGS: Mapping[str, tuple[str, ...]] = {
    "picture": (".svg", ".png"), "--heatmap": (".svg",), "report": (".html",), "page": (".html",),
    "rows": (".csv", ".parquet"), "measurements": (".csv",), "--fit": (".csv",),
}  # fmt: skip


class StoppedEarly(AntiphonError):
    """Ctrl-C ended the work early; the result until then is printed."""

    exit_code = 130  # 128 + SIGINT, as shells report it


class JsonOutput:
    """Whether --json is there: then stdout gets exactly one value, the result of the command or its error."""

    requested = False  # `_app.run` sets both for each command
    has_result = False


def emit(value: Any, text: str) -> None:
    """Print the result: under --json its value, for a script, otherwise its text, for a person."""
    print(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) if JsonOutput.requested else text)
    JsonOutput.has_result = True


def emit_error(kind: str, message: str, exit_code: int) -> None:
    """Under --json, print an error unless the result is printed already (of a search that Ctrl-C ended)."""
    if JsonOutput.requested and not JsonOutput.has_result:
        emit({"error": {"kind": kind, "message": message, "exit_code": exit_code}}, text="")


@contextmanager
def working(activity: str) -> Iterator[None]:
    """Show on a terminal's stderr what is being done."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(activity):
        yield


def dash(value: Any, format_value: Callable[[Any], str] = format_seconds) -> str:
    """Return a cell of a table: "-" if there is no value."""
    return "-" if value is None else format_value(value)


def origin_text() -> str:
    """Return the date and the command of a page."""
    return f"{date.today()}: {shlex.join(['antiphon', *sys.argv[1:]])}"


def written_lines(*paths: Path | None) -> list[str]:
    return [f"  written: {path}" for path in paths if path is not None]


def certificate_lines(path: Path | None) -> list[str]:
    """Return where a frontier file was written, and how to check it without this package."""
    if path is None:
        return []
    checker = Path(__file__).parent.parent / "certificates" / "check_certificate.py"
    return [f"  written: {path}; to check it:", f"    {shlex.join(['python', str(checker), str(path)])}"]


def output_help(command: str) -> str:
    """Return the help of -o of a command: what it writes.

    >>> output_help("plan")
    'write the plan (.json) or picture (.svg, .png); repeatable'
    """
    *kinds, last_kind = (f"{kind} ({', '.join(_endings(kind))})" for kind in OUTPUTS[command])
    return f"write the {', '.join(kinds)} or {last_kind}; repeatable" if kinds else f"write the {last_kind}"


def sort_outputs(
    command: str, paths: Sequence[Path] | None, options: Mapping[str, Path | None] | None = None, folder: bool = False
) -> dict[str, list[Path]]:
    """Return the paths of -o by kind of file; before that, check that it can write all of them.

    `command`: a key of `OUTPUTS`. `options`: paths of further options, which are checked, too. `folder`: the first
    kind is several files, for which -o names a directory.
    """
    kinds = OUTPUTS[command]
    files: dict[str, list[Path]] = {kind: [] for kind in kinds}
    for path in paths or ():
        if not folder:
            _check_ending("-o", path, [ending for kind in kinds for ending in _endings(kind)])
        # a name without an ending is of the first kind
        files[next((kind for kind in kinds if _ending_of(path) in _endings(kind)), kinds[0])].append(path)
    folders = files[kinds[0]] if folder else []
    for path in folders:
        check_folder(path)
    check_outputs(options or {}, [path for path in paths or () if path not in folders])
    if any(_ending_of(path) == ".png" for path in files.get("picture", ())):
        check_png()
    return files


def check_outputs(options: Mapping[str, Path | None], results: Sequence[Path] = ()) -> None:
    """Check before long work that files can be written: each path is writable, has the right ending, and is named once.

    `options`: path by option. `results`: paths of -o, whose endings are checked already.
    """
    paths = [*results, *(path for path in options.values() if path is not None)]
    for path in paths:
        check_writable(path)
    # devices and pipes, such as /dev/stdout, may be named twice
    files = [os.path.realpath(path) for path in paths if path.is_file() or not path.exists()]
    for path in paths:
        if files.count(os.path.realpath(path)) > 1:
            raise Invalid(f"{path}: would be written twice; name two files")
    for option, option_path in options.items():
        if option_path is not None:
            _check_ending(option, option_path, _endings(option))


def _endings(kind: str) -> tuple[str, ...]:
    return ENDINGS.get(kind, (".json",))


def _ending_of(path: Path) -> str:
    """Return the ending that names a format, in lower case and without .gz; "" if there is none, as in plan-1.5."""
    suffix = Path(path.name[:-3] if path.name.lower().endswith(".gz") else path.name).suffix.lower()
    if suffix == ".htm":
        return ".html"
    return suffix if re.fullmatch(r"\.[a-z]\w*", suffix) else ""


def _check_ending(option: str, path: Path, endings: Sequence[str]) -> None:
    """Refuse an ending other than those of the formats that are written, which would mislead. A name may have none."""
    ending = _ending_of(path)
    subject = "command" if option == "-o" else "option"
    if ending and ending not in endings:
        raise Invalid(f"{option} {path}: cannot write {ending}; this {subject} writes {', '.join(endings)}")


def write_pictures(draw: Callable[[], str], pictures: Sequence[Path]) -> list[str]:
    """Draw once, write the pictures requested, and return a line for each."""
    if not pictures:
        return []
    svg = draw()
    # All are made before the first is written: making one may fail.
    contents = [png_of(svg) if _ending_of(path) == ".png" else svg.encode() for path in pictures]
    for path, content in zip(pictures, contents, strict=True):
        write_bytes(path, content)
    return written_lines(*pictures)
