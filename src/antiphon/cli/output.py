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

# What an option writes, by suffix; options not listed write JSON. A path may add .gz, or have no suffix.
_SUFFIXES = {"--heatmap": ".svg", "--report": ".html", "--csv": ".csv", "--fit": ".csv"}
_PICTURE_SUFFIXES = (".svg", ".png")
_JSON_SUFFIX = ".json"


class StoppedEarly(AntiphonError):
    """Ctrl-C ended the work early; the result until then is printed."""

    exit_code = 130


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
        emit({"error": {"kind": kind, "message": message, "exit_code": exit_code}}, "")


@contextmanager
def working(activity: str) -> Iterator[None]:
    """Show on a terminal's stderr what is being done."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(activity):
        yield


def dash(value: Any, form: Callable[[Any], str] = format_seconds) -> str:
    """Return a cell of a table: "-" if there is no value."""
    return "-" if value is None else form(value)


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
    return [f"  written: {path}; to check it:", f"    python {checker} {path}"]


def check_outputs(
    outputs: Mapping[str, Path | None], pictures: Sequence[Path] | None = None, *, folder: str = "",
    parents: bool = False, forms: Mapping[str, str] = _SUFFIXES,
) -> None:  # fmt: skip
    """Check before long work that all outputs can be written.

    Each path must be writable, its suffix must fit what the option writes, and no two may be the same file. For a
    PNG, the package that draws it must be installed.

    Parameters
    ----------
    outputs
        Path by option.
    pictures
        Paths of --picture.
    folder
        The option, if any, that names a directory for several files.
    parents
        Whether the directories above that one may be created, too.
    forms
        Suffix by option; options not listed write JSON.
    """
    option_of_path: dict[str, str] = {}
    for option, path in [*outputs.items(), *(("--picture", picture) for picture in pictures or ())]:
        if path is None:
            continue
        if option == folder:
            check_folder(path, parents)
        else:
            check_writable(path)
        first_option = option_of_path.setdefault(os.path.realpath(path), option)
        if first_option != option and (path.is_file() or not path.exists()):
            raise Invalid(f"{path}: is given for both {first_option} and {option}; name two files")
    for option, path in outputs.items():
        if path is not None and option != folder:
            _check_suffix(path, option, forms.get(option, _JSON_SUFFIX))
    for picture in pictures or ():
        if picture.suffix.lower() not in _PICTURE_SUFFIXES:
            raise Invalid(f"--picture {picture}: name a file that ends in {' or '.join(_PICTURE_SUFFIXES)}")
    if any(picture.suffix.lower() == ".png" for picture in pictures or ()):
        check_png()


def _check_suffix(path: Path, option: str, form: str) -> None:
    """Refuse a suffix other than that of the format (`form`), which would mislead. A name may have none."""
    name = path.name[:-3] if path.name.lower().endswith(".gz") else path.name
    suffix = Path(name).suffix
    suffixes = (form, ".htm") if form == ".html" else (form,)
    if re.fullmatch(r"\.[a-zA-Z]\w*", suffix) and suffix.lower() not in suffixes:
        format_name = form[1:].upper()
        raise Invalid(f"{option} {path}: {format_name} is written, not {suffix}; name it {Path(name).stem}{form}")


def write_pictures(draw: Callable[[], str], pictures: Sequence[Path] | None) -> list[str]:
    """Draw once, write the pictures requested, and return a line for each."""
    if not pictures:
        return []
    svg = draw()
    # All are made before the first is written: making one may fail.
    contents = [png_of(svg) if path.suffix.lower() == ".png" else svg.encode() for path in pictures]
    for path, content in zip(pictures, contents, strict=True):
        write_bytes(path, content)
    return written_lines(*pictures)
