"""Spellings of the previous version: each still works in this version, with one line of warning, and is in no help.

`respell` rewrites the words of a command line before it is parsed: renamed commands, renamed options, and options that
have become part of an argument (`--mpiexec srun` is `--on mpi:mpiexec=srun`).

To retire a spelling, delete its row here, and its command from `OLD_COMMANDS` of the table where it has one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple


class OldSpelling(NamedTuple):
    """The replacement of a command's or option's former name."""

    new: str  # what to type instead, for the message
    # the words that replace the command's name; None if a hidden command of that name still works
    words: tuple[str, ...] | None = None


COMMANDS = {
    "topologies": OldSpelling("list topologies", ("list", "topologies")),
    "topology list": OldSpelling("list topologies", ("list", "topologies")),
    "planners": OldSpelling("list planners", ("list", "planners")),
    "models": OldSpelling("list models", ("list", "models")),
    "backends": OldSpelling("list formats", ("list", "formats")),
    "runtimes": OldSpelling("list runtimes", ("list", "runtimes")),
    "store ls": OldSpelling("store list", ("store", "list")),
    "simulate": OldSpelling("predict PLAN --nbytes SIZE --trace FILE"),
    "check": OldSpelling("verify PLAN --for RUNTIME --nbytes SIZE"),
    "compose": OldSpelling("plan --from A.json B.json"),
}
PICTURE_OPTIONS = ("--picture", "--svg", "--png")
# What an option of a command is now. Of two words the second is a key: `--beta 0` is `--known beta=0`.
OPTIONS = {
    ("predict", "--as"): "--library",
    ("replay", "--as"): "--library",
    ("plan", "--from"): "--tree-root",
    **{("topology", f"--{key}"): f"--option {key}" for key in ("radix", "sysfs")},
    **{("topology", f"--drop-{key}"): f"--drop {key}" for key in ("links", "nics", "ranks")},
    **{("fit", f"--{key}"): f"--known {key}" for key in ("beta", "gamma", "delta", "bandwidth")},
    **{(name, form): "-o" for name in ("topology", "plan", "tune", "sweep", "fit") for form in PICTURE_OPTIONS},
    **{(name, "--csv"): "-o" for name in ("bench", "bench micro", "fit")},
    ("tune", "--report"): "-o",
    ("bench", "-o"): "--op",
}
# Options that are now options of what another option names, as in `--on mpi:mpiexec=srun`: their keys there. The values
# of --option hold the key.
RUNTIME_OPTIONS = {"--mpiexec": "mpiexec", "--scale": "scale", "--name": "name", "--timeout": "timeout"}
OPTION = {"--option": ""}
# Rows of command, that option, its value if it is missing (None: the command refuses the old options), their keys
MOVED: tuple[tuple[str, str, str | None, dict[str, str]], ...] = (
    ("run", "--on", "local", RUNTIME_OPTIONS),
    ("bench", "--on", "mpi", RUNTIME_OPTIONS),
    ("tune", "--on", None, {**RUNTIME_OPTIONS, "--for": "timeout"}),
    ("plan", "--planner", "", {**OPTION, "--chunks": "chunks", "--steps": "steps", "--rounds": "rounds"}),
    ("frontier", "--planner", "sccl", {**OPTION, "--k": "k", "--steps": "steps", "--memory": "memory"}),
    ("bench", "--planner", "", OPTION),
    ("export", "--to", None, OPTION),
    ("topology export", "--to", "nccl-xml", OPTION),
)
# Options of nccl-tests for sizes, now --nbytes BEGIN:END:FACTOR: the position of each in that text
SIZE_OPTIONS = {"-b": 0, "--begin": 0, "-e": 1, "--end": 1, "-f": 2, "--factor": 2}
# Commands of `bench` that have none of these options of nccl-tests
MEASUREMENTS = [["bench", name] for name in ("genmodel", "loggp", "micro")]
DEFAULT_SIZES = ["1KB", "16MB", "4"]  # BEGIN, END, FACTOR


def respell(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a command line in today's spelling, and a warning for each old spelling in it."""
    end = words.index("--") if "--" in words else len(words)  # the words of another program follow
    own_words, program_words = list(words[:end]), list(words[end:])
    if not own_words:
        return program_words, []
    warnings = []
    for length in (2, 1):
        name = " ".join(own_words[:length])
        if old := COMMANDS.get(name):
            warnings.append(_warning(name, old.new))
            own_words = [*(old.words or own_words[:length]), *own_words[length:]]
            break
    name, *rest = own_words
    has_size = any(word.split("=")[0] == "--nbytes" for word in rest)  # of a plan; a machine without it lacks a program
    if [name, *rest[:1]] == ["lab", "run"] and not program_words and has_size and not rest[1].startswith("-"):
        warnings.append(_warning("lab run PLAN", "run PLAN --on lab"))
        name, rest = "run", ["--on", "lab", *rest[1:]]
    if name == "lab" and rest == ["down", "--all"]:
        warnings.append(_warning("lab down --all", "lab down all"))
        rest = ["down", "all"]
    if [name, *rest[:1]] == ["topology", "join"]:
        rest = _name_fabric(rest, warnings)
    if [name, *rest[:1]] == ["topology", "degrade"]:
        rest = _join_random_share(rest, warnings)
    for command, host, default, keys in MOVED:
        if command in (name, f"{name} {''.join(rest[:1])}"):
            rest = _move_options(command, rest, host, default, keys, warnings)
    if name in ("bench", "tune"):
        rest = _join_sizes(name, rest, warnings)
    command = " ".join([name, *rest[:1]]) if [name, *rest[:1]] in MEASUREMENTS else name
    return [name, *_rename_options(command, rest, warnings), *program_words], warnings


def replaced_text(old: str, new: str) -> str:
    """Return the warning about an old spelling, without its prefix."""
    return f"`{old}` is now `{new}`; the old spelling ends with the next version"


def _warning(old: str, new: str) -> str:
    return f"warning: {replaced_text(f'antiphon {old}', f'antiphon {new}')}"


def _extract_options(words: Sequence[str], options: Container[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Split a command line into the words that remain, and these options with their values."""
    remaining, extracted = [], []
    pending = list(words)
    while pending:
        option, equals, value = pending[0].partition("=")
        if option in options and (equals or len(pending) > 1):
            extracted.append((option, value if equals else pending.pop(1)))
        else:
            remaining.append(pending[0])
        del pending[0]
    return remaining, extracted


def _move_options(
    command: str, words: list[str], host: str, default: str | None, keys: Mapping[str, str], warnings: list[str]
) -> list[str]:
    """Rewrite `--on mpi --mpiexec srun` as `--on mpi:mpiexec=srun`; `host` is --on. The rest is as in `MOVED`."""
    # --hybrid was a flag without a value
    option_keys = {**keys, "--hybrid": "hybrid"} if host == "--on" else keys
    with_values = ["--hybrid=yes" if word == "--hybrid" else word for word in words]
    remaining, options = _extract_options(with_values, option_keys)
    if not options:
        return words
    remaining, hosts = _extract_options(remaining, (host,))
    _, text = hosts[-1] if hosts else ("", default)  # of several the last counts
    if text is None:
        return words
    for option, value in options:
        item = value if option == "--option" else f"{option_keys[option]}={value}"
        name, key = text.partition(":")[0] or "NAME", item.partition("=")[0]
        warnings.append(_warning(f"{command} {option}", f"{command} {host} {name}:{key}=VALUE"))
        text += f"{',' if ':' in text else ':'}{item}"
    return [*remaining, host, text]


def _name_fabric(words: list[str], warnings: list[str]) -> list[str]:
    """Rewrite `--boxes 2 --rail --nic SPEED` of `topology join` as `rails:boxes=2,nic=SPEED`."""
    remaining, options = _extract_options(words, ("--boxes", "--nic"))
    if not options:
        return words
    fabric = "rails" if "--rail" in remaining else "switch"
    fabric += ":" + ",".join(f"{option[2:]}={value}" for option, value in options)
    warnings.append(_warning(f"topology join {options[0][0]}", f"topology join BOX {fabric}"))
    return [*(word for word in remaining if word != "--rail"), fabric]


def _join_random_share(words: list[str], warnings: list[str]) -> list[str]:
    """Rewrite `--fraction 0.02 --of nics` of `topology degrade` as `--drop nics=2%`, with `--left` as `--slow`."""
    remaining, options = _extract_options(words, ("--fraction", "--of", "--left"))
    values = dict(options)
    try:
        share = f"{float(values['--fraction']) * 100:.12g}%"
    except (KeyError, ValueError):
        return words
    kind, bandwidth = values.get("--of", "links"), values.get("--left")
    new = ["--drop", f"{kind}={share}"] if bandwidth is None else ["--slow", f"{kind}:{share}={bandwidth}"]
    warnings.append(_warning("topology degrade --fraction", f"topology degrade {' '.join(new)}"))
    return [*remaining, *new]


def _join_sizes(name: str, words: list[str], warnings: list[str]) -> list[str]:
    """Rewrite `-b 8 -e 8MiB -f 8` as `--nbytes 8:8MiB:8`."""
    if [name, *words[:1]] in MEASUREMENTS:
        return words
    options_of = SIZE_OPTIONS if name == "bench" else {"--factor": 2}
    words, options = _extract_options(words, options_of)
    if not options:
        return words
    words, size_options = _extract_options(words, ("--nbytes",))
    sizes = size_options[-1][1].split(":") if size_options else list(DEFAULT_SIZES)
    if len(sizes) > 1:  # else there is one size, which needs no factor
        *_, default_factor = DEFAULT_SIZES
        sizes = [*sizes, default_factor][:3]  # BEGIN:END gets a factor, BEGIN:END:FACTOR has one
        for option, value in options:
            sizes[options_of[option]] = value
    option, _ = options[0]  # one warning for all of them: the new spelling has all
    warnings.append(_warning(f"{name} {option}", f"{name} --nbytes {':'.join(sizes)}"))
    return [*words, "--nbytes", ":".join(sizes)]


def _rename_options(name: str, words: list[str], warnings: list[str]) -> list[str]:
    """Rewrite options that were renamed, or that have become keys of another option."""
    renamed = []
    pending = iter(enumerate(words))
    for i, word in pending:
        option, equals, value = word.partition("=")
        new, _, key = OPTIONS.get((name, option), "").partition(" ")
        following = value if equals else "".join(words[i + 1 : i + 2])
        # `plan --from RANK` drew the trees of a rank, `plan --from FILE...` composes plans; `bench -o OPERATOR` is
        # nccl-tests' spelling, `bench -o FILE` writes a file, whose name has a dot or a slash.
        is_old = {"--from": following.isdigit(), "-o": not set(following) & set("./")}.get(option, True)
        if not new or not is_old:
            renamed.append(word)
            continue
        if not equals:
            next(pending, None)  # the value is the next word
        renamed += [new, f"{key}={following}" if key else following]
        warnings.append(_warning(f"{name} {option}", f"{name} {new}{f' {key}=VALUE' if key else ''}"))
    return renamed
