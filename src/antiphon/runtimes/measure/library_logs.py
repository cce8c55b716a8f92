"""Choose among NCCL's own settings by logs of nccl-tests or rccl-tests whose runs forced them.

Input: a folder of logs. At least one run forces nothing (the default); the others force an algorithm, and perhaps a
protocol, channels and a chunk size. These are read from NCCL's variables in the log (on the command line, exported, or
as NCCL_DEBUG=INFO prints them), else from the name of its file:

    default.log             nothing is forced
    ring-simple-16ch.log    NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MIN_NCHANNELS=NCCL_MAX_NCHANNELS=16
    pat-chunk=128k.log      PAT with chunks of 128 KiB, by a tuner plugin

Result: at each size the fastest setting, if it beats the default beyond the noise: by more than 5 % if either was run
once, else by more than 2 % and in all runs. Settings within 2 % of the fastest count as equal; among them the
choice of the next smaller size is kept, for fewer rules. Runs that cannot be compared with the default (another
library, other variables, another number of ranks) and wrong results are left out, with the reason.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from antiphon.core.collective import Collective
from antiphon.core.files import read_bytes
from antiphon.core.plan import Plan
from antiphon.core.topology import Topology
from antiphon.cost.nccl.library import doubt_gpus, library_here
from antiphon.errors import AntiphonError, Invalid, NotFound, quote
from antiphon.formats.benchmark_log import MEASURES, BenchmarkRun, read_runs
from antiphon.formats.stock.nccl_tuner import MAX_CHANNELS, MAX_CHUNK, SUPPORTED
from antiphon.runtimes.measure.choose import MeasuredTuning, SizeChoice
from antiphon.runtimes.measure.library import LibraryCandidate
from antiphon.runtimes.measure.library_choose import DEFAULT, Best, library_entries
from antiphon.runtimes.measure.nccl_sweep import MAX_BEHIND, run_sweep
from antiphon.runtimes.measure.race import MARGIN, TIE_RATIO
from antiphon.select import tune
from antiphon.select.libraries import CLASSICS

LOGS = "logs"
MAX_LOG = 2**26  # bytes
ALGORITHMS = {
    "ring": "ring", "tree": "tree", "nvls": "nvls", "nvlstree": "nvls-tree", "collnet": "collnet-direct",
    "collnetdirect": "collnet-direct", "collnetchain": "collnet-chain", "pat": "pat",
}  # fmt: skip
PROTOCOLS = {name: name for name in ("simple", "ll", "ll128")}  # NCCL's names and ours, as above; here they agree
CHANNELS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS")
CHUNK = "chunk"  # stands for the chunk size among the variables: NCCL has none for it
EXPRESSED = ("NCCL_ALGO", "NCCL_PROTO", *CHANNELS)  # variables that a rule can replace
PLUGINS = ("NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE")  # the file name says what the plugin chose
IRRELEVANT = re.compile(r"NCCL_(DEBUG|TESTS|HOME|ROOT|DIR|LIB|INCLUDE|PATH|VERSION|TOPO_DUMP|GRAPH_DUMP)")
# words in names of files: "16ch" or "channels=16"; "chunk=128k"; "default"
_CHANNELS_WORD = re.compile(r"([0-9]{1,3})(?:ch|channels?|ctas?)|(?:ch|channels?|ctas?)=?([0-9]{1,3})")
_CHUNK_WORD = re.compile(r"chunk=?([0-9]{1,10})([km]?)(?:i?b)?")
_DEFAULT_WORD = re.compile(r"(?<![a-z])(default|base|baseline|auto|stock)(?![a-z])")
_RUN_AGAIN = re.compile(r"(?<!default)-again\.log$")  # a contender's second run (nccl_sweep.py)
_ASSIGNED = re.compile(r"\b(NCCL_[A-Z0-9_]+)=([A-Za-z0-9:^]+)")  # in names of files, too: "NCCL_ALGO=Ring"


class LogRun(NamedTuple):
    """A run of a log, with what it forced."""

    file: str
    run: BenchmarkRun
    setting: LibraryCandidate

    @property
    def key(self) -> tuple[str, tuple[tuple[str, int], ...]]:
        """The setting, as a key of dictionaries."""
        return self.setting.name, tuple(sorted(self.setting.parameters.items()))

    def other_variables(self) -> set[tuple[str, str]]:
        """Return the variables that no rule can express and that may change times."""
        ignored = (*EXPRESSED, *(PLUGINS if self.setting is not DEFAULT else ()))
        return {
            (key, value) for key, value in self.run.environment.items()
            if key not in ignored and not IRRELEVANT.match(key)
        }  # fmt: skip


OWN = LogRun(file="", run=BenchmarkRun(), setting=DEFAULT).key  # the key of NCCL's own choice


def tune_from_logs(
    collective: str | Collective, topology: Topology, folder: str | os.PathLike[str], *,
    command: str = "", progress: Callable[[int, int, str], None] | None = None, **options: Any,
) -> MeasuredTuning:  # fmt: skip
    """Return a table that claims NCCL's fastest setting per range of sizes, as `tune_library` does for an MPI.

    All sizes are left to the library. The schedule of the entries is the best of ours by the model, among classic
    algorithms unless `options` (of `tune`) say otherwise: a table has to have one. `command`: starts nccl-tests; it is
    first run with every setting, and writes the logs.
    """
    requested = collective.kind if isinstance(collective, Collective) else collective
    missing = 0 if not command else _sweep(command, Path(folder), requested, topology, progress)
    runs, reasons = _read_folder(Path(folder))
    kinds = {run.kind for _, run in runs}
    if requested not in ("all", *kinds):
        raise NotFound(f"{folder}: no log measures {requested}; the logs measure {', '.join(sorted(kinds))}")
    kinds = kinds if requested == "all" else {requested}
    sizes = sorted(nbytes for _, run in runs if run.kind in kinds for nbytes, _ in run.points())
    options["planners"] = options.get("planners") or CLASSICS
    ends = sorted({sizes[0], sizes[-1]})  # two sizes will do, as the library serves all of them
    tuning = tune(collective, topology, nbytes=ends, nccl=False, shortlist=1, progress=progress, **options)
    plans, rows, described, gpus = dict[str, Plan](), list[dict[str, Any]](), list[str](), dict[str, None]()
    for kind in (kind for kind in tuning.collectives if tuning.shortlist.get(kind) and kind in kinds):
        compared, left_out = _compare([(file, run) for file, run in runs if run.kind == kind], tuning.topology)
        reasons += left_out
        gpus |= {item.run.gpu: None for item in compared}
        files = list(dict.fromkeys(item.file for item in compared if item.setting is DEFAULT))
        if not files:
            advice = "run the benchmark without NCCL_ALGO and NCCL_PROTO, too"
            reasons.insert(0, f"no log of {kind} ran with NCCL's own choice; {advice}")
            continue
        settings = len({item.key for item in compared}) - 1
        settings_text = f"{settings} other setting{'' if settings == 1 else 's'}"
        described.append(f"{kind}: {len(compared)} runs; own choice: {', '.join(files)}; {settings_text}")
        rows += [
            {"collective": kind, "planner": None, "options": {}, "algorithm": item.setting.name,
             **item.setting.parameters, "nbytes": row.nbytes, "seconds": row.seconds, "wrong": row.wrong,
             "file": item.file}
            for item in compared for row in item.run.rows
        ]  # fmt: skip
        shortlist = tuning.shortlist[kind]
        # a schedule of ours: any will do, as every size is left to the library
        best = [
            Best(SizeChoice(size, shortlist[-1], row=None), setting, row) for size, setting, row in _choose(compared)
        ]
        entries = library_entries(best, shortlist, _describe_library(compared, tuning.topology), LOGS)
        plans[kind] = Plan(tuning.topology, tuning.plans[kind].collective, tuple(entries))
    if not plans:
        raise NotFound(f"{folder}: {'; '.join(reasons[:4]) or 'no planner could plan any collective of the logs'}")
    tuning = replace(tuning, collectives=tuple(plans))
    wrong = sum(row["wrong"] for row in rows)
    described += [f"{wrong} rows with wrong results left out"] if wrong else []
    with suppress(AntiphonError):  # no figures of NCCL for this machine
        # are the logs of other GPUs than those of the machine?
        remarks = [doubt_gpus(gpu, library_here(tuning.topology)) for gpu in gpus]
        described = [*filter(None, remarks), *described]
    notes = (*described, *(f"put aside: {reason}" for reason in dict.fromkeys(reasons)))
    complete = tuning.complete and not missing
    return MeasuredTuning(
        tuning, LOGS, plans, tuple(rows), complete, interrupted=not complete, unmeasured=missing, notes=notes
    )


def _sweep(
    command: str, folder: Path, kind: str, machine: Topology, progress: Callable[[int, int, str], None] | None
) -> int:
    """Run `command` with every setting; return the number that Ctrl-C left out."""

    def list_contenders() -> list[LibraryCandidate]:
        runs, _ = _read_folder(folder)
        # without their second runs, so that a sweep that is continued finds the same contenders
        first = [(file, run) for file, run in runs if run.kind == kind and not _RUN_AGAIN.search(file)]
        compared, _ = _compare(first, machine)
        return _find_contenders(compared)

    if kind not in SUPPORTED["ring"]:
        raise Invalid(
            f"--run: measures one of {', '.join(SUPPORTED['ring'])}, not {kind}; NCCL's settings are for these"
        )
    return run_sweep(command, folder, kind, list_contenders, progress)


def _read_folder(folder: Path) -> tuple[list[tuple[str, BenchmarkRun]], list[str]]:
    """Return the runs of all logs below a folder with the name of their file, and why other files hold none."""
    if not folder.is_dir():
        raise Invalid(f"--from-logs {folder}: is no folder; name the folder that holds the logs of nccl-tests")
    runs, reasons = list[tuple[str, BenchmarkRun]](), list[str]()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        try:
            log_runs = read_runs(read_bytes(path, MAX_LOG).decode("utf-8", "replace"))
        except AntiphonError as error:
            reasons.append(f"{name}: {str(error).removeprefix(f'{path}: ')}")
            continue
        runs += [(name, run) for run in log_runs if run.program not in MEASURES]
        reasons += [f"{name}: {MEASURES[run.program]}, not NCCL" for run in log_runs if run.program in MEASURES]
    if not runs:
        raise Invalid(
            f"--from-logs {folder}: no logs of nccl-tests or rccl-tests{''.join(f'; {x}' for x in reasons[:3])}"
        )
    return runs, reasons


def _compare(named: Sequence[tuple[str, BenchmarkRun]], machine: Topology) -> tuple[list[LogRun], list[str]]:
    """Return the runs that can be compared with the default, and why the others cannot."""
    candidates, comparable, aside = list[LogRun](), list[LogRun](), list[str]()
    for file, run in named:
        try:
            if run.ranks and run.ranks != machine.ranks:
                raise Invalid(f"{run.ranks} ranks, but {machine.name} has {machine.ranks}")
            candidates.append(LogRun(file, run, _read_setting(_forced_by(file, run), run.kind)))
        except Invalid as error:
            aside.append(f"{file}: {error}")
    default = [item for item in candidates if item.setting is DEFAULT]
    if named_default := [item for item in default if _DEFAULT_WORD.search(item.file.lower())]:
        # If logs are named so, another log that does not say what it forced may have forced anything.
        unnamed = [item for item in default if item not in named_default and not item.run.environment]
        aside += [f"{item.file}: does not say what it forced; name it default.log if nothing" for item in unnamed]
        candidates = [item for item in candidates if item not in unnamed]
        default = [item for item in default if item not in unnamed]
    library = _usual([item.run.library for item in default if item.run.library], fallback="")
    gpu = _usual([item.run.gpu for item in default if item.run.gpu], fallback="")
    variables = _usual([frozenset(item.other_variables()) for item in default], frozenset())
    sizes = {row.nbytes for item in default for row in item.run.rows}
    shows_variables = bool(variables) or any(item.run.shows_command for item in default)
    for item in candidates:
        # If the default's logs show neither variables nor a command, theirs are unknown.
        differing = sorted(item.other_variables() - variables) if shows_variables else []
        if library and item.run.library not in ("", library):
            aside.append(f"{item.file}: {item.run.library}, but the default ran with {library}")
        elif gpu and item.run.gpu not in ("", gpu):
            aside.append(f"{item.file}: {item.run.gpu}, but the default ran on {gpu}")
        elif differing:
            name, value = differing[0]
            aside.append(f"{item.file}: sets {name}={value[:40]}, which the default does not and no rule can")
        elif sizes and sizes.isdisjoint(row.nbytes for row in item.run.rows):
            aside.append(f"{item.file}: none of its sizes ran with NCCL's own choice")
        else:
            comparable.append(item)
    return comparable, aside


def _usual(values: Sequence[Any], fallback: Any) -> Any:
    """Return the most frequent value; `fallback` if there is none."""
    return Counter(values).most_common(1)[0][0] if values else fallback


def _forced_by(file: str, run: BenchmarkRun) -> dict[str, str]:
    """Return NCCL's variables of a run: those in the log, and others as the file's name states them."""
    stem = Path(file).stem
    named = dict(_ASSIGNED.findall(stem))
    words = re.sub(r"(nvls|collnet)[-_. ](tree|direct|chain)", r"\1\2", stem.lower())
    for word in re.split(r"[^a-z0-9=]+", words):
        if word in ALGORITHMS:
            named.setdefault("NCCL_ALGO", word)
        elif word in PROTOCOLS:
            named.setdefault("NCCL_PROTO", word)
        elif channels := _CHANNELS_WORD.fullmatch(word):
            named.setdefault(CHANNELS[0], channels[1] or channels[2])
        elif chunk := _CHUNK_WORD.fullmatch(word):
            named[CHUNK] = str(int(chunk[1]) * {"": 1, "k": 2**10, "m": 2**20}[chunk[2]])
    return {**named, **{key: value.rstrip(".,") for key, value in run.environment.items()}}


def _read_setting(variables: Mapping[str, str], kind: str) -> LibraryCandidate:
    """Return what these variables force, named as `predict` does ("ring simple"). Invalid if no rule can express it."""
    algorithm = _only_value("NCCL_ALGO", variables, kind, ALGORITHMS)
    protocol = _only_value("NCCL_PROTO", variables, kind, PROTOCOLS)
    limits = dict.fromkeys(variables[key] for key in CHANNELS if key in variables)
    if len(limits) > 1:
        raise Invalid(
            f"channels {' and '.join(limits)}: forces no number of channels; set both limits to the same number"
        )
    channels = next(iter(limits), "")
    parameters = dict[str, int]()
    for name, text, limit in (("channels", channels, MAX_CHANNELS), ("chunk", variables.get(CHUNK, ""), MAX_CHUNK)):
        if text and not (text.isascii() and text.isdecimal() and 1 <= int(text) <= limit):
            raise Invalid(f"{name} {quote(text)}: expected a number from 1 to {limit}")
        parameters |= {name: int(text)} if text else {}
    if not algorithm and (protocol or parameters):
        raise Invalid("forces no algorithm (NCCL_ALGO), which a rule must name")
    return LibraryCandidate(f"{algorithm} {protocol}".strip(), parameters) if algorithm else DEFAULT


def _only_value(key: str, variables: Mapping[str, str], kind: str, names: Mapping[str, str]) -> str:
    """Return the one value that a variable such as NCCL_ALGO=Ring or allreduce:ring allows; "" if it is not set."""
    text = variables.get(key, "")
    for entry in filter(None, text.split(";")):
        collective, _, values = entry.lower().rpartition(":")
        # an entry for one collective ("AllReduce:ring"), or for all: the empty name begins every kind
        if kind.startswith(re.sub(r"[^a-z]", "", collective)):
            value = re.sub(r"[-_]", "", values)
            if value not in names:
                raise Invalid(f"{key}={text[:60]}: expected one of {', '.join(names)}, as a rule names just one")
            return names[value]
    return ""


def _times_by_size(compared: Sequence[LogRun]) -> list[tuple[int, dict[Any, list[float]]]]:
    """Return (nbytes, seconds of correct rows by setting) for each size at which the default was measured, sorted."""
    times: dict[int, dict[Any, list[float]]] = {}
    for item in compared:
        for row in item.run.rows:
            if not row.wrong and row.seconds > 0:
                times.setdefault(row.nbytes, {}).setdefault(item.key, []).append(row.seconds)
    return [(nbytes, by_setting) for nbytes, by_setting in sorted(times.items()) if OWN in by_setting]


def _find_contenders(compared: Sequence[LogRun]) -> list[LibraryCandidate]:
    """Return the pairs of algorithm and protocol that are the fastest at some size and at most MAX_BEHIND times slower
    than NCCL's own choice there: with other numbers of channels they may beat it."""
    # only names of an algorithm with its protocol ("ring ll") have a blank
    settings = {item.key: item.setting for item in compared if " " in item.setting.name and not item.setting.parameters}
    contenders, previous = dict[Any, LibraryCandidate](), OWN
    for _, by_setting in _times_by_size(compared):
        limit = MAX_BEHIND * median(by_setting[OWN])
        near = {key: median(times) for key, times in by_setting.items() if key in settings and median(times) <= limit}
        if near and near.get(previous, inf) > TIE_RATIO * min(near.values()):
            previous = min(near, key=lambda key: (near[key], key))  # else the choice of the next smaller size stays
        if near:
            contenders[previous] = settings[previous]
    return list(contenders.values())


def _choose(compared: Sequence[LogRun]) -> Iterator[tuple[int, LibraryCandidate, dict[str, Any]]]:
    """Yield the setting for each size that the default was measured at, with its times."""
    settings, previous = {item.key: item.setting for item in compared}, OWN
    for nbytes, by_setting in _times_by_size(compared):
        default = by_setting[OWN]
        faster = {key: median(times) for key, times in by_setting.items() if _beats(times, default)}
        near = [key for key, seconds in faster.items() if seconds <= TIE_RATIO * min(faster.values())]
        # among those that count as equal the choice of the next smaller size is kept
        previous = previous if previous in near else min(near, key=lambda key: (faster[key], key), default=OWN)
        seconds, reference = median(by_setting[previous]), median(default)
        figures = {"seconds": seconds, "over_library": seconds / reference, "reference_seconds": reference}
        yield nbytes, settings[previous], figures


def _beats(times: Sequence[float], default: Sequence[float]) -> bool:
    """Return whether a setting is faster than the default beyond the noise that the runs show."""
    if min(len(times), len(default)) < 2:
        return median(times) < MARGIN * median(default)
    return max(times) * TIE_RATIO < min(default)


def _describe_library(compared: Sequence[LogRun], machine: Topology) -> dict[str, str]:
    """Return the library's name, and its version as the default's logs give it."""
    is_rccl = any(item.run.program == "rccl-tests" or item.run.library.startswith("RCCL") for item in compared)
    with suppress(AntiphonError):
        is_rccl = is_rccl or library_here(machine).name == "rccl"
    version = _usual(
        [item.run.library for item in compared if item.setting is DEFAULT and item.run.library], fallback=""
    )
    return {"name": "RCCL" if is_rccl else "NCCL", "version": version.partition(" ")[2], "file": ""}
