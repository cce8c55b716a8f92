"""Generate manual pages from the parser of the command line.

`manpages.py FOLDER` writes antiphon.1, antiphon-tune.1 and so on: a page per command, subcommands as its sections, as
in the reference of the site (reference.py), which lists the same.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reference import (
    describe_parameters,
    describe_usage,
    open_command,
    shown_command,
    subcommands,
)

from antiphon import __version__
from antiphon.cli import application

RELEASED = re.compile(r"^## \[[^]]+\] - (\d{4}-\d\d-\d\d)$", re.MULTILINE)
CHANGELOG = Path(__file__).resolve().parent.parent / "CHANGELOG.md"


def build_manpages() -> dict[str, str]:
    """All pages by file name."""
    group = application()
    context = open_command(group, "antiphon", None)
    headings: dict[str, list[str]] = group.commands.headings  # type: ignore[attr-defined]
    pages = {"antiphon.1": "\n".join(_overview(group, context, headings)) + "\n"}
    for name in (name for names in headings.values() for name in names):
        command = group.commands[name]
        lines = [*_title(f"antiphon-{name}", command.get_short_help_str(200)), *_command(command, name, context, "SH")]
        pages[f"antiphon-{name}.1"] = "\n".join([*lines, *_see_also("antiphon")]) + "\n"
    return pages


def _title(name: str, purpose: str) -> Iterator[str]:
    date = RELEASED.search(CHANGELOG.read_text(encoding="utf-8"))
    yield f'.TH "{name.upper()}" 1 "{date[1] if date else ""}" "antiphon {__version__}" "Antiphon"'
    yield from (".SH NAME", f"{_escape(name)} \\- {_escape(purpose.rstrip('.'))}")


def _overview(group: Any, context: Any, headings: dict[str, list[str]]) -> Iterator[str]:
    """The page of `antiphon` itself: its options, and the commands by group."""
    yield from _title("antiphon", group.help or "")
    yield from (".SH SYNOPSIS", ".B antiphon", _escape("[OPTIONS] COMMAND [ARGS]..."))
    for heading, names in headings.items():
        yield f".SH {_escape(heading.upper())}"
        for name in names:
            purpose = group.commands[name].get_short_help_str(200)
            yield from (".TP", f".BR antiphon\\-{_escape(name)} (1)", _escape(purpose))
    yield from _parameter_list("OPTIONS", describe_parameters(group, context)[1], "SH")
    yield from (".SH EXIT STATUS",)
    for code, meaning in EXIT_CODES.items():
        yield from (".TP", f".B {code}", meaning)


EXIT_CODES = {
    0: "done", 1: "the answer is no: an invalid plan, infeasible, or budget spent", 2: "wrong usage or bad input",
    130: "ended by Ctrl\\-C", 143: "ended by SIGTERM",
}  # fmt: skip


def _see_also(name: str) -> Iterator[str]:
    yield from (".SH SEE ALSO", f".BR {name} (1)")


def _command(command: Any, name: str, parent: Any, level: str) -> Iterator[str]:
    """Synopsis, text, arguments and options of a command; then the same of its subcommands."""
    context = open_command(command, name, parent)
    shown, shown_in = shown_command(command, context)
    yield from (f".{level} SYNOPSIS", f".B {_escape(context.command_path)}") if level == "SH" else ()
    if level == "SH":
        yield _escape(" ".join(describe_usage(shown, shown_in)))
        yield ".SH DESCRIPTION"
    yield from _paragraphs(shown.help or command.help or "")
    arguments, options = describe_parameters(shown, shown_in)
    yield from _parameter_list("ARGUMENTS", arguments, level)
    yield from _parameter_list("OPTIONS", options, level)
    if shown.epilog:
        yield from (
            f".{level} EXAMPLE",
            ".nf",
            _escape(" ".join(shown.epilog.split()).removeprefix("Example: ")),
            ".fi",
        )
    for inner_name, inner in subcommands(command).items():
        usage = " ".join(describe_usage(inner, open_command(inner, inner_name, context)))
        yield f'.SH "{_escape(f"{context.command_path} {inner_name} {usage}")}"'
        yield from _command(inner, inner_name, context, "SS")


def _parameter_list(title: str, rows: list[tuple[str, str]], level: str) -> Iterator[str]:
    if rows:
        yield f".{level} {title}"
    for spelling, meaning in rows:
        yield from (".TP", f".B {_escape(' '.join(spelling.split()))}", _escape(" ".join(meaning.split())))


def _paragraphs(text: str) -> Iterator[str]:
    """The text of a help. Paragraphs after a line with \\b keep their lines: they are commands."""
    for paragraph in inspect.cleandoc(text.partition("\f")[0]).split("\n\n"):
        if paragraph.startswith("\b"):
            yield from (".PP", ".nf", *map(_escape, inspect.cleandoc(paragraph[1:]).splitlines()), ".fi")
        else:
            yield from (".PP", _escape(" ".join(paragraph.split())))


def _escape(text: str) -> str:
    """Text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in build_manpages().items():
        (folder / name).write_text(page, encoding="utf-8")
    print(f"{folder}: man -l {folder}/antiphon.1")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
