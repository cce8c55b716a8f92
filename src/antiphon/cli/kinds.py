"""Classes of commands that typer lacks, used by cli/table.py: a group whose help has headings, a group with a nameless
command, a command with a user's program after --, and an option with several files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import typer.core

PLANS = "COLL|PLAN|TABLE"  # internal name of the nameless command, after the arguments that it takes
COMMAND = "antiphon.lab.command"  # key in `ctx.meta` of the list of words after --; None if there is no --


def epilog(example: str | None) -> str:
    """Return the last lines of a help: the options that every command has, and an example."""
    example_text = f"\n\nExample: antiphon {example}" if example else ""
    endings = "\n\nThe ending of a file after -o decides its kind." if example and example.count(" -o ") > 1 else ""
    return f"Every command: --json prints one JSON object, --help shows the options.{endings}{example_text}"


def show_plain_names(command: Any) -> None:
    """Make the help of a command name its arguments as they are declared: some versions of typer add their Python type
    (`TOPO <str>`) and further brackets and dots (`[[FILE]...]...`)."""
    for inner in getattr(command, "commands", {}).values():
        show_plain_names(inner)
    for argument in command.params:
        if argument.param_type_name == "argument":
            name = argument.metavar or argument.name.upper()
            in_usage = name if argument.required or name.startswith("[") else f"[{name}]"
            argument.get_usage_pieces = partial(_usage_pieces, in_usage)
            argument.get_help_record = partial(_help_record, name, argument.get_help_record)


def _usage_pieces(name: str, _context: Any) -> list[str]:
    return [name]


def _help_record(name: str, make_record: Callable[..., tuple[str, str] | None], context: Any) -> tuple[str, str] | None:
    """Return the name of an argument and its description; None if the help does not show it."""
    record = make_record(context)
    return record and (name, record[1])


class WithHeadings(typer.core.TyperGroup):
    """The group of all commands; the help lists them under the headings of cli/table.py."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        headings = self.commands.headings  # type: ignore[attr-defined]
        column = max(len(name) for names in headings.values() for name in names)
        limit = formatter.width - 6 - column  # 6: indents, and blanks between the name and its line
        for heading, names in headings.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(name.ljust(column), self.commands[name].get_short_help_str(limit)) for name in names]
                )


class WithNamelessCommand(typer.core.TyperGroup):
    """A group with named commands and a nameless one, for words that name no command.

    `bench genmodel`, `bench loggp` and `bench micro` are named; `bench allreduce ...` is the nameless command, with
    `allreduce` as its argument. The help of the group is that of the nameless command, and lists the others.
    """

    # typer calls these methods; each changes one behaviour of its base class
    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = [PLANS, *args]
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        inner = self.commands[PLANS]
        return inner.get_help(type(ctx)(inner, parent=ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name as usage lines show it (none for the nameless command), the command and its words."""
        name, command, rest = super().resolve_command(ctx, args)
        return (None if name == PLANS else name), command, rest


class NamelessCommand(typer.core.TyperCommand):
    """The nameless command of a `WithNamelessCommand`: its usage is that of the group."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path.strip(), " ".join(self.collect_usage_pieces(ctx)))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        ctx.parent.command.format_commands(ctx.parent, formatter)


class WithProgram(typer.core.TyperCommand):
    """A command that leaves the words after -- unread: they are a program of the user."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        separator = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND] = args[separator + 1 :] if separator < len(args) else None
        return super().parse_args(ctx, args[:separator])


class WithFileList(typer.core.TyperCommand):
    """A command with `--from A.json B.json`: all words up to the next option are files.

    typer gets `--from A.json --from B.json`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words: list[str] = []
        is_file = False  # whether the next word is a file: true after --from, until the next option
        for word in args:
            if word.startswith("-"):
                option, equals, _ = word.partition("=")
                is_file = option == "--from"
                words += [word] if equals or not is_file else []
            else:
                words += ["--from", word] if is_file else [word]
        if args[-1:] == ["--from"]:  # no file follows: typer then reports that
            words.append("--from")
        return super().parse_args(ctx, words)
