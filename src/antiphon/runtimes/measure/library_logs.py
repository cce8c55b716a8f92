"""Choose among NCCL's own settings by logs of nccl-tests or rccl-tests whose runs forced them.

For those who measure by scripts of their own. Input: a folder of logs. One run at least forces nothing (the default);
the others force an algorithm, and perhaps a protocol, channels and a chunk size. What a run forced is read from NCCL's
variables in its log (on the command line, exported, or as NCCL_DEBUG=INFO prints them), else from the name of its file:

    default.log             nothing is forced
    ring-simple-16ch.log    NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MIN_NCHANNELS=NCCL_MAX_NCHANNELS=16
    pat-chunk=128k.log      PAT with chunks of 128 KiB, by a tuner plugin

Result: at each size the fastest setting, if it beats the default beyond the noise: by more than 5 % if either was run
once, else by more than 2 % and in all runs. Settings within 2 % of the fastest count as equal; then the choice of the
size before stays, which makes few rules. Runs that cannot be compared (another library, other variables than the
default's, another number of ranks) and wrong results are put aside, with the reason.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.files import read_bytes
from antiphon.core.plan import Plan
from antiphon.core.topology import Topology
from antiphon.cost.nccl.library import library_here
from antiphon.errors import AntiphonError, Invalid, NotFound, quote
from antiphon.formats.benchmark_log import OSU, Run, read_runs
from antiphon.runtimes.measure.choose import Choice, MeasuredTuning
from antiphon.runtimes.measure.library import Candidate
from antiphon.runtimes.measure.library_choose import DEFAULT, Best, library_entries
from antiphon.runtimes.measure.race import ALIKE, MARGIN
from antiphon.select import tune
from antiphon.select.libraries import CLASSICS
from antiphon.units import format_size

LOGS = "logs"
MAX_FILES, MAX_LOG = 10_000, 2**26
ALGORITHMS = {
    "ring": "ring", "tree": "tree", "nvls": "nvls", "nvlstree": "nvls-tree", "collnet": "collnet-direct",
    "collnetdirect": "collnet-direct", "collnetchain": "collnet-chain", "pat": "pat",
}  # fmt: skip
PROTOCOLS = ("simple", "ll", "ll128")
LEAST_CHANNELS, MOST_CHANNELS = ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"), ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")
CHUNK = "chunk"  # no variable of NCCL's
EXPRESSED = ("NCCL_ALGO", "NCCL_PROTO", *LEAST_CHANNELS, *MOST_CHANNELS, CHUNK)  # a rule says the same
# Variables that change no times; those of tuner plugins only if the file name says what the plugin chose.
IRRELEVANT = re.compile(r"NCCL_(DEBUG|TESTS|HOME|ROOT|DIR|LIB|INCLUDE|PATH|VERSION|TOPO_DUMP|GRAPH_DUMP)")
PLUGINS = ("NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE")
_CHANNELS_WORD = re.compile(r"(?:([0-9]{1,3})(?:ch|channels?|ctas?)|(?:ch|channels?|ctas?)=?([0-9]{1,3}))")
_CHUNK_WORD = re.compile(r"chunk=?([0-9]{1,10})([km]?)(?:i?b)?")
_ASSIGNED = re.compile(r"\b(NCCL_[A-Z0-9_]+)=([A-Za-z0-9:^]+)")


@dataclass(frozen=True)
class LogRun:
    """A run of a log that can be compared, with what it forced."""

    file: str
    run: Run
    setting: Candidate


def tune_from_logs(
    collective: str | Collective,
    topology: Topology | str,
    folder: str | os.PathLike[str],
    *,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> MeasuredTuning:
    """Return a table that claims NCCL's fastest setting per range of sizes, as `tune_library` does for an MPI.

    All sizes are left to the library. The schedule of the entries is the best of ours by the model, among classic
    algorithms unless `options` (of `tune`) say otherwise: a table has to have one.
    """
    runs, refused = _read_folder(Path(folder))
    kinds = {run.kind for _, run in runs}
    requested = collective.kind if isinstance(collective, Collective) else collective
    if requested != "all" and requested not in kinds:
        raise NotFound(f"{os.fspath(folder)}: no log measures {requested}; the logs measure {', '.join(sorted(kinds))}")
    kinds = kinds if requested == "all" else {requested}
    sizes = sorted({nbytes for _, run in runs if run.kind in kinds for nbytes, _ in run.points()})
    options = {"planners": options.pop("planners", ()) or CLASSICS, **options}
    tuning = tune(
        collective, topology, nbytes=sorted({sizes[0], sizes[-1]}), nccl=False, shortlist=1,
        progress=progress, **options,
    )  # fmt: skip
    tuning = replace(tuning, collectives=tuple(kind for kind in tuning.collectives if kind in kinds))
    plans, rows = {}, list[dict[str, Any]]()
    described: list[str] = []
    for kind in tuning.collectives:
        if not tuning.shortlist.get(kind):
            continue
        named = [(file, run) for file, run in runs if run.kind == kind]
        compared, aside = _compare(named, tuning.topology, kind)
        refused += aside
        if not any(item.setting is DEFAULT for item in compared):
            raise NotFound(
                f"{os.fspath(folder)}: no log of {kind} ran with NCCL's own choice; run the benchmark without "
                "NCCL_ALGO and NCCL_PROTO, too" + "".join(f"; {reason}" for reason in refused[:3])
            )
        described += _describe(kind, compared)
        rows += [row for item in compared for row in _rows_of(item, kind)]
        listed = tuning.shortlist[kind][-1]
        best = [Best(Choice(size, listed, None), setting, row) for size, setting, row in _choose(compared)]
        library = {"name": _library_name(compared, tuning.topology), "version": _version(compared), "file": ""}
        plans[kind] = Plan(
            tuning.topology, tuning.plans[kind].collective,
            tuple(library_entries(best, tuning.shortlist[kind], library, LOGS)),
        )  # fmt: skip
    notes = [*described, *(f"put aside: {reason}" for reason in dict.fromkeys(refused))]
    return MeasuredTuning(tuning, LOGS, plans, tuple(rows), tuning.complete, not tuning.complete, notes=tuple(notes))


def _read_folder(folder: Path) -> tuple[list[tuple[str, Run]], list[str]]:
    """Return the runs of all logs below a folder with the name of their file, and why other files hold none."""
    if not folder.is_dir():
        raise Invalid(f"--from-logs {folder}: is no folder; name the folder that holds the logs of nccl-tests")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if len(files) > MAX_FILES:
        raise Invalid(f"--from-logs {folder}: holds {len(files)} files; at most {MAX_FILES} are read")
    runs, refused = list[tuple[str, Run]](), list[str]()
    for path in files:
        name = str(path.relative_to(folder))
        try:
            text = read_bytes(path, MAX_LOG).decode("utf-8", "replace")
            for run in read_runs(text):
                if run.program == OSU:
                    refused.append(f"{name}: OSU measures an MPI, not NCCL")
                else:
                    runs.append((name, run))
        except AntiphonError as error:
            refused.append(f"{name}: {str(error).removeprefix(f'{path}: ')}")
    if not runs:
        raise Invalid(
            f"--from-logs {folder}: no logs of nccl-tests or rccl-tests" + "".join(f"; {why}" for why in refused[:3])
        )
    return runs, refused


def _compare(named: Sequence[tuple[str, Run]], machine: Topology, kind: str) -> tuple[list[LogRun], list[str]]:
    """Return the runs that can be compared with the default, and why the others cannot."""
    compared, aside = list[LogRun](), list[str]()
    for file, run in named:
        try:
            if run.ranks and run.ranks != machine.ranks:
                raise Invalid(f"{run.ranks} ranks, but {machine.name} has {machine.ranks}")
            compared.append(LogRun(file, run, _read_setting(_forced_by(file, run), kind)))
        except Invalid as error:
            aside.append(f"{file}: {error}")
    default = [item for item in compared if item.setting is DEFAULT]
    if not default:
        return compared, aside
    libraries = Counter(item.run.library for item in default if item.run.library)
    library = libraries.most_common(1)[0][0] if libraries else ""
    default_variables = Counter(tuple(sorted(_other_variables(item).items())) for item in default).most_common(1)[0][0]
    comparable = []
    for item in compared:
        differing = sorted(set(_other_variables(item).items()) - set(default_variables)) if default_variables else []
        if library and item.run.library not in ("", library):
            aside.append(f"{item.file}: {item.run.library}, but the default ran with {library}")
        elif differing:
            name, value = differing[0]
            aside.append(f"{item.file}: sets {name}={value[:40]}, which the default does not and no rule can")
        else:
            comparable.append(item)
    return comparable, aside


def _forced_by(file: str, run: Run) -> dict[str, str]:
    """Return NCCL's variables of a run: those of its log, and for others what the file name says."""
    stem = Path(file).stem
    words = re.sub(r"(nvls|collnet)[-_. ](tree|direct|chain)", r"\1\2", stem.lower())
    named = dict(_ASSIGNED.findall(stem))
    for word in re.split(r"[^a-z0-9=]+", words):
        if word in ALGORITHMS:
            named.setdefault("NCCL_ALGO", word)
        elif word in PROTOCOLS:
            named.setdefault("NCCL_PROTO", word)
        elif channels := _CHANNELS_WORD.fullmatch(word):
            named.setdefault(MOST_CHANNELS[0], channels[1] or channels[2])
        elif chunk := _CHUNK_WORD.fullmatch(word):
            named[CHUNK] = str(int(chunk[1]) * {"": 1, "k": 2**10, "m": 2**20}[chunk[2]])
    return {**named, **{key: value.rstrip(".,") for key, value in run.environment.items()}}


def _other_variables(item: LogRun) -> dict[str, str]:
    """Return the variables that no rule can express and that may change times."""
    ignored = (*EXPRESSED, *(PLUGINS if item.setting is not DEFAULT else ()))
    return {
        key: value for key, value in item.run.environment.items() if key not in ignored and not IRRELEVANT.match(key)
    }


def _read_setting(variables: Mapping[str, str], kind: str) -> Candidate:
    """Return what these variables force, named as `predict` does ("ring simple"). Invalid if no rule can say so."""
    algorithm = _only_value("NCCL_ALGO", variables, kind, ALGORITHMS)
    protocol = _only_value("NCCL_PROTO", variables, kind, {name: name for name in PROTOCOLS})
    maximum, minimum = (
        next((variables[key] for key in keys if key in variables), "") for keys in (MOST_CHANNELS, LEAST_CHANNELS)
    )
    parameters: dict[str, int] = {}
    for name, text, limit in (("channels", maximum or minimum, 64), ("chunk", variables.get(CHUNK, ""), 2**30)):
        if text and not (text.isascii() and text.isdecimal() and 1 <= int(text) <= limit):
            raise Invalid(f"{name} {quote(text)}: expected a number from 1 to {limit}")
        parameters |= {name: int(text)} if text else {}
    if not algorithm and not protocol and not parameters:
        return DEFAULT
    if not algorithm:
        raise Invalid("forces no algorithm (NCCL_ALGO), which a rule must name")
    return Candidate(f"{algorithm} {protocol}".strip(), parameters)


def _only_value(key: str, variables: Mapping[str, str], kind: str, names: Mapping[str, str]) -> str:
    """Return the one value that a variable such as NCCL_ALGO=Ring or allreduce:ring allows; "" if it is not set."""
    text = variables.get(key, "")
    for entry in filter(None, text.split(";")):
        collective, _, values = entry.lower().rpartition(":")
        if collective and not kind.startswith(re.sub(r"[^a-z]", "", collective)):
            continue
        value = re.sub(r"[-_]", "", values)
        if value not in names:
            raise Invalid(f"{key}={text[:60]}: expected one of {', '.join(names)}, as a rule names just one")
        return names[value]
    return ""


def _choose(compared: Sequence[LogRun]) -> Iterable[tuple[int, Candidate, dict[str, Any]]]:
    """Yield the setting for each size that the default was measured at, with its times."""
    times: dict[int, dict[tuple[str, tuple[tuple[str, int], ...]], list[float]]] = {}
    settings = {_key(item.setting): item.setting for item in compared}
    for item in compared:
        for row in item.run.rows:
            if not row.wrong and row.seconds > 0:
                times.setdefault(row.nbytes, {}).setdefault(_key(item.setting), []).append(row.seconds)
    before = _key(DEFAULT)
    for nbytes, by_setting in sorted(times.items()):
        default = by_setting.get(_key(DEFAULT))
        if default is None:
            continue
        faster = {key: median(times) for key, times in by_setting.items() if _beats(times, default)}
        shortest = min(faster.values(), default=0.0)
        near = [key for key, seconds in faster.items() if seconds <= ALIKE * shortest]
        chosen = before if before in near else min(near, key=lambda key: (faster[key], key), default=_key(DEFAULT))
        before = chosen
        seconds, reference = median(by_setting[chosen]), median(default)
        figures = {"seconds": seconds, "over_library": seconds / reference, "reference_seconds": reference}
        yield nbytes, settings[chosen], figures


def _beats(times: Sequence[float], default: Sequence[float]) -> bool:
    """Whether a setting is faster than the default beyond the noise that the runs show."""
    ratio = median(times) / median(default)
    if min(len(times), len(default)) < 2:
        return ratio < MARGIN
    return ratio < 1 / ALIKE and max(times) < min(default)


def _key(setting: Candidate) -> tuple[str, tuple[tuple[str, int], ...]]:
    return setting.name, tuple(sorted(setting.parameters.items()))


def _rows_of(item: LogRun, kind: str) -> list[dict[str, Any]]:
    facts: dict[str, Any] = {"collective": kind, "planner": None, "options": {}, "algorithm": item.setting.name}
    return [
        {**facts, **item.setting.parameters, "nbytes": row.nbytes, "seconds": row.seconds, "wrong": row.wrong,
         "file": item.file}
        for row in item.run.rows
    ]  # fmt: skip


def _describe(kind: str, compared: Sequence[LogRun]) -> list[str]:
    """Return a line that says which files were taken as the default and how many settings stood beside it."""
    files = list(dict.fromkeys(item.file for item in compared if item.setting is DEFAULT))
    settings = {_key(item.setting) for item in compared if item.setting is not DEFAULT}
    wrong = sum(row.wrong for item in compared for row in item.run.rows)
    names = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    sizes = sorted({row.nbytes for item in compared for row in item.run.rows})
    span = f"{format_size(sizes[0])} to {format_size(sizes[-1])}"
    text = f"{kind}: {len(compared)} runs, {span}; own choice: {names}; {len(settings)} other settings"
    return [text + (f"; {wrong} rows with wrong results left out" if wrong else "")]


def _library_name(compared: Sequence[LogRun], machine: Topology) -> str:
    if any(item.run.program == "rccl-tests" or item.run.library.startswith("RCCL") for item in compared):
        return "RCCL"
    try:
        return library_here(machine).name.upper()
    except AntiphonError:
        return "NCCL"


def _version(compared: Sequence[LogRun]) -> str:
    """Return the library's version as the default's logs give it; "" if they do not."""
    default = (item.run.library for item in compared if item.setting is DEFAULT and item.run.library)
    return next(default, "").partition(" ")[2]
