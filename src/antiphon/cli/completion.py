"""Completion for bash, zsh and fish: scripts that hold all commands, options and names, and start no process.

One table of words serves the three (`word_table`). Its keys are "commands [COMMAND]", "options [COMMAND]",
"value COMMAND OPTION" (the kind of word that an option takes), "arguments COMMAND" (the kinds of its arguments, in
order, the last for all further ones), and "names KIND". A kind that begins with @ takes files, too; - takes anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from antiphon.core.files import write_bytes
from antiphon.errors import Invalid, unknown

SHOW, INSTALL = "--show-completion", "--install-completion"
SHELLS = ("bash", "zsh", "fish")

# The kind of word that a parameter takes: by command (for its argument NAME), by command and option, or by an option of
# any command; then by the metavar (placeholder) of the help.
_KIND_BY_OPTION = {
    "list": "entries", "reproduce": "tables",
    "fit memory --from": "@",
    "--planner": "planners", "--model": "models", "--to": "formats", "--profile": "@profiles",
    "topology probe --from": "sources", "topology export --to": "machine formats", "fit genmodel --kind": "-",
}  # fmt: skip
_KIND_BY_METAVAR = {
    "COLL": "collectives", "COLL|all": "targets", "COLL|PLAN|TABLE": "@targets", "TOPO": "@machines",
    "TOPO | PLAN": "@machines", "BOX": "@machines", "FABRIC": "@machines", "WHERE": "runtimes", "LIBRARY": "libraries",
    "WHAT": "built", "KIND": "kinds", "SHELL": "shells", "OP": "operators", "OPS": "operators",
    "TYPE": "types", "TYPES": "types", "RUNTIME": "checked",
}  # fmt: skip
_FILES = re.compile("FILE|DIR|FOLDER|PLACE|PLAN|OLD|LOG|TRACE|PROFILE|CSV|MEASUREMENTS")


def with_shell(words: Sequence[str]) -> list[str]:
    """Add the shell that runs us to a command line that asks for a script and names no shell."""
    if len(words) != 1 or words[0] not in (SHOW, INSTALL):
        return list(words)
    try:
        import shellingham  # typer needs it, too

        shell, _ = shellingham.detect_shell()  # its name and path
    except Exception:  # no shell started us, or its processes cannot be seen
        shell = os.path.basename(os.environ.get("SHELL", ""))
    if not shell:
        raise Invalid(f"{words[0]}: cannot detect the shell; name it: {', '.join(SHELLS)}")
    return [*words, shell]


def show(shell: str, application: Any) -> str:
    """Return the script for a shell. `application`: the group of all commands."""
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    table = word_table(application)
    if shell == "fish":
        rows = "\n".join(f"        case '{key}'\n            echo '{value}'" for key, value in table.items())
    else:
        rows = "\n".join(f"    '{key}') REPLY='{value}' ;;" for key, value in table.items())
    script = (Path(__file__).parent / "completion_scripts" / f"antiphon.{shell}").read_text(encoding="utf-8")
    return script.replace("@WORDS@", rows)


def install(shell: str, application: Any) -> str:
    """Write the script where the shell looks for it. Return its path, and what the user must do, as text."""
    script, home = show(shell, application), Path.home()
    data, config = (os.environ.get(f"XDG_{name}_HOME") for name in ("DATA", "CONFIG"))
    path, advice = {
        "bash": (
            Path(data or home / ".local/share") / "bash-completion/completions/antiphon",
            "new shells load it if the package bash-completion is there; else add to ~/.bashrc: source {}",
        ),
        "zsh": (
            home / ".zfunc/_antiphon",
            "add to ~/.zshrc, if it is not there yet: fpath+=(~/.zfunc); autoload -Uz compinit; compinit",
        ),
        "fish": (Path(config or home / ".config") / "fish/completions/antiphon.fish", "new shells load it"),
    }[shell]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, script.encode())
    return f"written: {path}\n{advice.format(path)}"


def word_table(application: Any) -> dict[str, str]:
    """Return all words by key, as described at the top."""
    table: dict[str, str] = {}

    def add(key: str, *words: str) -> None:
        table[key.strip()] = " ".join([*table.get(key.strip(), "").split(), *words])

    for path, command in _commands(path="", command=application):
        names = [name for name, subcommand in getattr(command, "commands", {}).items() if not subcommand.hidden]
        if names:
            add(f"commands {path}", *names, *([] if path else ["help"]))
        for parameter in command.params:
            if getattr(parameter, "hidden", False):
                continue
            flags = [flag for flag in [*parameter.opts, *parameter.secondary_opts] if flag.startswith("-")]
            add(
                f"options {path}" if flags else f"arguments {path}",
                *(flags or [_kind_of_word(path, flag="", metavar=parameter.metavar)]),
            )
            for flag in flags if not getattr(parameter, "is_flag", False) else ():
                long_flag = flags[-1]  # the spelling that _KIND_BY_OPTION has
                table[f"value {path}".strip() + f" {flag}"] = _kind_of_word(path, long_flag, parameter.metavar)
        add(f"options {path}", "--json", "--help", "-h")
    return table | {f"names {kind}": " ".join(names) for kind, names in _names_by_kind().items()}


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield all commands with their words; the nameless command of a group has the words of the group."""
    yield path, command
    for name, subcommand in getattr(command, "commands", {}).items():
        # hidden are old spellings, at the top level, and the nameless command of a group
        if subcommand.hidden and not path:
            continue
        yield from _commands(path if subcommand.hidden else f"{path} {name}".strip(), subcommand)


def _kind_of_word(path: str, flag: str, metavar: str | None) -> str:
    """Return the kind of word that an option (or, without flag, an argument) of a command takes."""
    plain_metavar = re.sub(r"[\[\].]", "", metavar or "")  # [FILE]... is FILE
    # the placeholder NAME says nothing: then, and for --profile, the option itself counts, in any command
    kind = _KIND_BY_OPTION.get(f"{path} {flag}".strip()) if flag or plain_metavar == "NAME" else None
    if kind is None and (flag == "--profile" or plain_metavar == "NAME"):
        kind = _KIND_BY_OPTION.get(flag)
    return kind or _KIND_BY_METAVAR.get(plain_metavar) or ("@" if _FILES.match(plain_metavar) else "-")


def _names_by_kind() -> dict[str, list[str]]:
    """Return all names by kind; a machine that needs options has those of its example."""
    from antiphon.cli.listing import REGISTRY_KINDS
    from antiphon.core.collective import KINDS
    from antiphon.core.datatypes import DATA_TYPES, OPERATORS
    from antiphon.cost.profile import shipped_profiles
    from antiphon.formats.lint.table import RUNTIMES
    from antiphon.formats.probe.table import SOURCES
    from antiphon.registry import table
    from antiphon.reproduce.table import TABLE
    from antiphon.runtimes.engine.mpi import LIBRARIES

    return {
        "shells": list(SHELLS), "collectives": list(KINDS), "targets": [*KINDS, "all"],
        "kinds": list(REGISTRY_KINDS),
        "entries": [name for kind in REGISTRY_KINDS.values() for name in table(kind)],
        "machine formats": ["nccl-xml"],
        "machines": [entry.can.example or name for name, entry in table("topology").items()],
        "planners": list(table("planner")), "models": list(table("model")), "formats": list(table("backend")),
        "runtimes": list(table("runtime")), "libraries": ["nccl", "rccl", "msccl"], "checked": list(RUNTIMES),
        "built": list(LIBRARIES), "operators": list(OPERATORS), "types": list(DATA_TYPES),
        "sources": list(SOURCES), "profiles": list(shipped_profiles()), "tables": list(TABLE),
    }  # fmt: skip
