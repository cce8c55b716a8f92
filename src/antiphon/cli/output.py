"""Results on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antiphon.core.files import check_folder, check_writable, write_bytes
from antiphon.errors import AntiphonError, Invalid
from antiphon.show.pictures.png import check_png, png_of

# What each option writes: the suffix that its file may have, also with .gz behind it, or none.
_FORMS = {"--svg": ".svg", "--heatmap": ".svg", "--png": ".png", "--report": ".html", "--csv": ".csv", "--fit": ".csv"}
_JSON = ".json"  # the others


class StoppedEarly(AntiphonError):
    """Ctrl-C came, but what was found until then is told."""

    exit_code = 130


class JsonOutput:
    """What a command writes to stdout under --json: exactly one value, its result or its error."""

    has_result = False


def emit(value: Any, text: str, as_json: bool) -> None:
    """The result, for a script or for a person."""
    print(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) if as_json else text)
    JsonOutput.has_result = JsonOutput.has_result or as_json


def emit_error(kind: str, message: str, exit_code: int) -> None:
    """The error of a command for a script, unless its result stands there already (a search that Ctrl-C ended)."""
    if not JsonOutput.has_result:
        emit({"error": {"kind": kind, "message": message, "exit_code": exit_code}}, "", True)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal's stderr what is being done, while it is."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def check_outputs(
    outputs: Mapping[str, Path | None], *, folder: str = "", parents: bool = False, forms: Mapping[str, str] = _FORMS
) -> None:
    """Before any long work: whether all that is asked for can be written, by option. Each is refused at once where
    nothing can be written at its place, where its name says that it is something else, or what makes it is not
    installed, and so are two with one name.

    `folder`: the option that names a directory for several files; with `parents` those above it are made, too.
    """
    named: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        if option == folder:
            check_folder(path, parents)
        else:
            check_writable(path)
        if option == "--png":
            check_png()
        other = named.setdefault(os.path.realpath(path), option)
        if other != option and (path.is_file() or not path.exists()):
            raise Invalid(f"{path}: is named by {other} and by {option}; name two files")
    for option, path in outputs.items():
        if path is not None and option != folder:
            _check_suffix(path, option, forms.get(option, _JSON))


def _check_suffix(path: Path, option: str, form: str) -> None:
    """Whoever opens it goes by its name; without a suffix nothing is promised."""
    name = path.name[:-3] if path.name.lower().endswith(".gz") else path.name
    suffix = Path(name).suffix
    allowed = (form, ".htm") if form == ".html" else (form,)
    if re.fullmatch(r"\.[a-zA-Z]\w*", suffix) and suffix.lower() not in allowed:
        what = form[1:].upper()
        raise Invalid(f"{option} {path}: {what} is written, not {suffix}; name it {Path(name).stem}{form}")


def write_pictures(draw: Callable[[], str], svg: Path | None, png: Path | None) -> list[str]:
    """Draw once, write what was asked for, and say so."""
    if svg is None and png is None:
        return []
    picture = draw()
    pixels = png_of(picture) if png is not None else b""
    said = []
    for path, content in ((svg, picture.encode()), (png, pixels)):
        if path is not None:
            write_bytes(path, content)
            said.append(f"  written: {path}")
    return said
