"""Generate the reference pages of the site: a page per command from the parser, a page per module from its docstrings.

Nothing of this is committed: `site_hooks.py` adds the pages to the site while it is built.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from antiphon.cli import application
from antiphon.cli.kinds import PLANS
from antiphon.errors import Missing

CLI_FOLDER = "reference/cli"
PYTHON_FOLDER = "reference/python"
MODULES = (
    "antiphon", "antiphon.available", "antiphon.comm", "antiphon.errors", "antiphon.fit", "antiphon.frontier",
    "antiphon.lab", "antiphon.machines", "antiphon.measure", "antiphon.native", "antiphon.pages", "antiphon.papers",
    "antiphon.replay", "antiphon.sweep", "antiphon.torch", "antiphon.traces",
)  # fmt: skip
MAX_SIGNATURE = 90  # characters; a longer signature gets a line per parameter
NOT_DETAILED = {"AntiphonGroup"}  # its methods are those of PyTorch's process groups
NOTE = "*Generated from the {}; `{}` prints the same.*\n"
NUMPY_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
LIST_SECTIONS = {"Parameters", "Other Parameters", "Attributes", "Returns", "Yields", "Raises", "Warns"}
PARAMETERS = re.compile(r"`\w+`(, `\w+`)*( \([^)]*\))?:\s")  # "`nbytes`: a size", "`effort`, `seed`: as of `tune`"


def build_reference() -> dict[str, str]:
    """All generated pages: path below docs/ -> Markdown."""
    return build_command_pages() | {f"{PYTHON_FOLDER}/{name}.md": describe_module(name) for name in MODULES}


# ---- the command line ----


def build_command_pages() -> dict[str, str]:
    """An index that lists the commands by group, and a page for each."""
    group = application()
    context = open_command(group, "antiphon", None)
    headings: dict[str, list[str]] = group.commands.headings  # type: ignore[attr-defined]
    index = ["# Command line\n", NOTE.format("parser", "antiphon --help"), f"```text\n{_help(group, context)}\n```\n"]
    pages: dict[str, str] = {}
    for heading, names in headings.items():
        index += [f"## {heading}\n", "| command | purpose |", "|---|---|"]
        for name in names:
            command = group.commands[name]
            index.append(f"| [`antiphon {name}`]({name}.md) | {_cell(command.get_short_help_str(200))} |")
            blocks = [f"# antiphon {name}\n", NOTE.format("parser", f"antiphon {name} --help")]
            pages[f"{CLI_FOLDER}/{name}.md"] = "\n".join([*blocks, *_describe_command(command, name, context)])
        index.append("")
    return {f"{CLI_FOLDER}/index.md": "\n".join(index), **pages}


def list_commands() -> list[str]:
    """All commands in words, subcommands too: "tune", "bench genmodel"."""
    group = application()
    names: list[str] = []
    for listed in group.commands.headings.values():  # type: ignore[attr-defined]
        for name in listed:
            names.append(name)
            names += [f"{name} {inner}" for inner in subcommands(group.commands[name])]
    return names


def subcommands(command: Any) -> dict[str, Any]:
    return {name: inner for name, inner in getattr(command, "commands", {}).items() if name != PLANS}


def open_command(command: Any, name: str | None, parent: Any) -> Any:
    """A context of typer's for a command, without parsing anything."""
    context = command.context_class(command, info_name=name, parent=parent)
    context.terminal_width = context.max_content_width = 100
    return context


def shown_command(command: Any, context: Any) -> tuple[Any, Any]:
    """The command that a page describes, with its context: of `bench COLL` one of its own, without a name."""
    nameless = getattr(command, "commands", {}).get(PLANS)
    return (nameless, open_command(nameless, None, context)) if nameless else (command, context)


def _help(command: Any, context: Any) -> str:
    return str(command.get_help(context)).rstrip()


def _describe_command(command: Any, name: str, parent: Any) -> Iterator[str]:
    """Usage, text, arguments and options of a command; then the same of its subcommands, each under a heading."""
    context = open_command(command, name, parent)
    shown, shown_in = shown_command(command, context)
    usage = " ".join(describe_usage(shown, shown_in))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    yield _paragraphs(shown.help or command.help or "")
    if shown.epilog:
        yield f"```console\n$ {' '.join(shown.epilog.split()).removeprefix('Example: ')}\n```\n"
    arguments, options = describe_parameters(shown, shown_in)
    for title, rows in (("argument", arguments), ("option", options)):
        if rows:
            yield f"| {title} | meaning |\n|---|---|"
            yield (
                "\n".join(f"| `{' '.join(spelling.split())}` | {_cell(meaning)} |" for spelling, meaning in rows) + "\n"
            )
    for inner_name, inner in subcommands(command).items():
        yield f"## antiphon {name} {inner_name}\n"
        yield from _describe_command(inner, inner_name, context)


def describe_usage(command: Any, context: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        yield from command.collect_usage_pieces(context)
        return
    yield "[OPTIONS]"
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument":
            yield _spell_argument(parameter) if parameter.required else f"[{_spell_argument(parameter)}]"


def _spell_argument(parameter: Any) -> str:
    """The name of an argument without the brackets that typer adds."""
    return re.sub(r"[\[\]{}]", "", str(parameter.metavar or parameter.name.upper()))


def describe_parameters(command: Any, context: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What the help lists: (spelling, meaning) of the arguments, and of the options."""
    arguments: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            arguments.append((_spell_argument(parameter), record[1]))
        else:
            options.append(record)
    return arguments, options


def _paragraphs(text: str) -> str:
    """The text of a help. Paragraphs after a line with \\b keep their lines: they are commands."""
    blocks = []
    for paragraph in inspect.cleandoc(text.partition("\f")[0]).split("\n\n"):
        if paragraph.startswith("\b"):
            blocks.append(f"```text\n{inspect.cleandoc(paragraph[1:])}\n```")
        else:
            blocks.append(_escape(" ".join(paragraph.split())))
    return "\n\n".join(blocks) + "\n"


def _cell(text: str) -> str:
    return _escape(" ".join(text.split())).replace("|", "\\|")


def _escape(text: str) -> str:
    """Text that Markdown leaves as it is; `code` in it stays code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if k % 2 else re.sub(r"([*_\[\]<>])", r"\\\1", piece) for k, piece in enumerate(pieces))


# ---- the Python API ----


def describe_module(name: str) -> str:
    """The page of a module: its docstring, then every public name with signature and docstring."""
    blocks = [f"# {name}\n"]
    try:
        module = importlib.import_module(name)
    except Missing as missing:  # PyTorch
        return "\n".join([*blocks, _escape(str(missing))])
    blocks += [NOTE.format("docstrings", f"help({name})"), docstring_to_markdown(inspect.getdoc(module) or "")]
    for public in list_public(name):
        value = getattr(module, public)
        if inspect.isclass(value):
            blocks += _describe_class(public, value)
        elif callable(value):
            blocks += _describe_function(public, value, "##")
    return "\n".join(blocks)


def list_public(name: str) -> list[str]:
    """The public names of a module, without those that are modules themselves."""
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", None) or [
        public
        for public, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == name and not public.startswith("_")
    ]
    return [public for public in listed if not inspect.ismodule(getattr(module, public))]


def _describe_function(name: str, function: Callable[..., Any], heading: str) -> Iterator[str]:
    yield f"{heading} {name}\n"
    yield _signature(name, function)
    yield docstring_to_markdown(inspect.getdoc(function) or "")


def _describe_class(name: str, kind: type) -> Iterator[str]:
    yield f"## {name}\n"
    bases = [base.__name__ for base in kind.__bases__ if base is not object]
    yield (
        f"```python\nclass {name}({', '.join(bases)})\n```\n" if issubclass(kind, Exception) else _signature(name, kind)
    )
    yield docstring_to_markdown(inspect.cleandoc(vars(kind).get("__doc__") or ""))
    for member, value in vars(kind).items():
        if member.startswith("_") or name in NOT_DETAILED:
            continue
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(value, property | functools.cached_property) and value.__doc__:
            yield f"### {name}.{member}\n\n{docstring_to_markdown(inspect.cleandoc(value.__doc__))}"
        elif inspect.isfunction(function) and function.__doc__:
            yield from _describe_function(f"{name}.{member}", function, "###")


def _signature(name: str, value: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # written in C
        return ""
    parameters, result = list(_spelled(signature)), _result(signature)
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) > MAX_SIGNATURE:
        line = "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){result}"])
    return f"```python\n{line}\n```\n"


def _spelled(signature: inspect.Signature) -> Iterator[str]:
    """The parameters of a signature as they are written, with the bare * before those that must be named."""
    starred = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        starred |= parameter.kind is parameter.VAR_POSITIONAL
        annotation = parameter.annotation
        text = str(parameter).replace("<factory>", "...")
        yield text.replace(repr(annotation), annotation, 1) if isinstance(annotation, str) else text


def _result(signature: inspect.Signature) -> str:
    result = signature.return_annotation
    if result in (signature.empty, None, "None"):
        return ""
    return f" -> {result}" if isinstance(result, str) else f" -> {inspect.formatannotation(result)}"


def docstring_to_markdown(text: str) -> str:
    """A docstring as Markdown: sections of NumPy and lines that begin with names of parameters become lists."""
    blocks: list[str] = []
    section = ""
    for paragraph in re.split(r"\n\s*\n", NUMPY_HEADING.sub(r"\1\n---\n\n", text).strip("\n")):
        lines = paragraph.split("\n")
        if lines[1:] == ["---"]:
            section = lines[0]
            blocks.append(f"**{section}**")
        elif lines[0].lstrip().startswith(">>>"):
            blocks.append(f"```pycon\n{inspect.cleandoc(paragraph)}\n```")
        elif section in LIST_SECTIONS:
            blocks.append(_section_list(lines))
        elif all(line.startswith("    ") for line in lines):
            code = inspect.cleandoc("\n" + paragraph)
            blocks.append(f"```{_language(code)}\n{code}\n```")
        elif any(PARAMETERS.match(line) for line in lines):
            blocks += _parameter_list(lines)
        else:
            blocks.append(_escape(" ".join(line.strip() for line in lines)))
    return "\n\n".join(blocks) + "\n"


def _section_list(lines: list[str]) -> str:
    """Lines of a section of NumPy: names, each with its text indented below it."""
    items: list[str] = []
    for line in lines:
        if not line.startswith(" "):
            items.append(f"- `{line.strip()}`:")
        elif items:
            items[-1] += f" {_escape(line.strip())}"
        else:  # a further paragraph of the item above
            items.append(f"    {_escape(line.strip())}")
    return "\n".join(items)


def _language(code: str) -> str:
    try:
        ast.parse(code)
    except SyntaxError:
        return "text"
    return "python"


def _parameter_list(lines: list[str]) -> list[str]:
    """A paragraph in which lines begin with "`name`: ...", as an item for each."""
    items: list[str] = []
    for line in lines:
        if PARAMETERS.match(line):
            items.append(f"- {line.strip()}")
        elif items:
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    head = [] if items[0].startswith("- ") else [_escape(items.pop(0))]
    return [*head, "\n".join(f"- {_escape(item[2:])}" for item in items)]
