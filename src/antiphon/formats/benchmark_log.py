"""Read logs of nccl-tests, rccl-tests and the OSU benchmarks, as people paste them.

Input: the text of a terminal, a batch job or a forum thread. Result: a list of `Run`, one for each time a benchmark was
started, with its collective, its rows, and what the log says of the job (ranks, hosts, GPUs, versions, variables).

Nothing is expected at a fixed place. A row of nccl-tests is recognized by size, count and data type side by side,
wherever in the line they stand, so prompts, time stamps, `[1,0]<stdout>:` of mpirun and `0:` of srun need no rules.
Behind them stand, by version and collective, an operator, a root, four numbers out of place and four in place:

    [1,0]<stdout>:  1048576  262144  float  sum  -1   41.20  25.45  44.54   0   40.90  25.64  44.87   0
                    nbytes   count   type   op  root  time   algbw  busbw wrong time   algbw  busbw wrong

A line that ends too early was wrapped: the next ones, if they have nothing but numbers, continue it. A row whose algbw
contradicts its time is garbled and left out. A row of OSU is a size and a time below a title of OSU.

The collective is that of the program or the title. If none is named, operator, root and busbw / algbw identify most:
for n ranks 2 (n-1)/n is an allreduce, (n-1)/n with an operator a reducescatter. The same quotient gives n.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from antiphon.core.collective import COMBINING, ROOTED, kind_named
from antiphon.core.jsontext import decode
from antiphon.errors import Invalid, quote

MAX_RANKS = 4096  # to be inferred from busbw / algbw
MAX_CONTINUATIONS = 4  # lines that continue a wrapped row
USUAL_WIDTH = 4  # numbers out of place: time, algbw, busbw, wrong
OSU = "OSU"
PER_RANK = ("allgather", "alltoall", "gather", "scatter")  # OSU gives the bytes of one rank, or of one pair

# Colours of a terminal, marks of a forum, tags of launchers, which may stand within a line
_NOISE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[`|]|\[[0-9]+(?:,[0-9]+)?\](?:<\w+> ?:?)?")
# A program: as a command with options, or in a listing, a build log or prose
_STARTED = re.compile(
    r"(?P<verb>Collective test starting: |\./)?\b(?P<name>[a-z_]{4,20})_perf(?:_mpi)?\b(?P<option>\s+-)?"
)
_HEAD = re.compile(r"\b(?:cpu)?time\s+algbw\s+busbw\b.*")
_BEGIN = re.compile(
    r"\bnThread\s+\d|Collective test starting|Using devices|\bsize\s+count\s+(?:\(elements\)\s+)?type\b"
)
_END = re.compile(r"Collective test concluded|Avg bus bandwidth|Out of bounds values")
_TYPE = r"u?int\d*|u?char|float\w*|half|double|bfloat16|bf16|fp?8\w*"
_ROW = re.compile(rf"(?<![\w.:-])([0-9]{{1,18}})\s+[0-9]{{1,18}}\s+({_TYPE})(?=\s|$)(.*)$")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{0,15})?(?:e[+-]?[0-9]{1,3})?|N/A|inf|nan", re.IGNORECASE)
_PREFIX = re.compile(r"^\s*(?:\[[^\]\s]{1,60}\]\s*)?(?:<\w{1,20}>\s*:?)?\s*(?:[\w.-]{1,60}:(?=\s))?[>\s]*")
_TITLE = re.compile(r"\bOSU\s+(\S.{0,60}?)\s+Latency\s+Test\s*v?([0-9.]*)")
_OSU_ROW = re.compile(
    r"(?<![\w.:,-])([0-9]{1,18})\s+([0-9]{1,12}\.[0-9]{1,6})((?:\s+[0-9.]{1,18})*)\s*(Pass|Fail\w*)?\s*$"
)
_DEVICE = re.compile(
    r"\bRank\s+(\d{1,6})\s+(?:Group\s+\d+\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)$"
)
_LIBRARY = re.compile(r"\b([NR]CCL) version\s*:?\s*([0-9]+(?:\.[0-9]+)+)")
_CODED = re.compile(r"nccl-library=([0-9]{4,5})\b")  # 22804 is 2.28.4
_PROGRAM = re.compile(r"\b([nr]ccl-tests)(?: version|: Version)?\s+([0-9][\w.]*)?")
_VARIABLE = re.compile(r"\b((?:NCCL|RCCL)_[A-Z0-9_]{2,60})(?:=| set by environment to )([^\s;\"']{1,200})")
_EXPORT, _UNSET = re.compile(r"\bexport\s"), re.compile(r"\bunset\s+((?:\w+\s*)+)")
_PROCESSES = re.compile(r"(?:^|\s)(?:-np|-n|--np|--ntasks)[ =]([0-9]{1,6})\b")
# What the library itself logs under NCCL_DEBUG=INFO, by the name that `Run.signs` gives it
_SIGNS = {
    "sockets": re.compile(r"\bvia NET/Socket|Using network Socket|Initialized NET plugin Socket"),
    "host memory": re.compile(r"\bvia SHM\b"),
    "no direct memory access": re.compile(r"\bvia NET/IB/[0-9]+(?!.*GDRDMA)"),
    "no NVLS": re.compile(r"NVLS multicast support is not available"),
}  # fmt: skip


@dataclass(frozen=True)
class LogRow:
    """One size of a run: seconds out of place (in place if there is nothing else), seconds in place, wrong elements."""

    nbytes: int
    seconds: float
    in_place: float | None = None
    wrong: bool = False


@dataclass
class Run:
    """A benchmark as it was started once. `ranks`, `hosts`, `processes`: 0 if the log does not say. `environment`:
    NCCL's variables on the command line or in its log. `signs`: what the library logged of its transports. `garbled`:
    rows left out."""

    kind: str = ""
    program: str = "nccl-tests"
    version: str = ""
    library: str = ""
    gpu: str = ""
    ranks: int = 0
    hosts: int = 0
    processes: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    signs: tuple[str, ...] = ()
    rows: list[LogRow] = field(default_factory=list)
    garbled: int = 0

    def points(self, ranks: int = 0, *, steady: bool = False) -> list[tuple[int, float]]:
        """Return the median seconds of each size, sizes as nccl-tests counts them. `ranks`: if the log has none.
        `steady`: of each row the faster one of out of place and in place, as first calls may be slow."""
        times: dict[int, list[float]] = {}
        for row in self.rows:
            seconds = min(row.seconds, row.in_place or row.seconds) if steady else row.seconds
            times.setdefault(row.nbytes * self.scale(ranks), []).append(seconds)
        return sorted((nbytes, median(seconds)) for nbytes, seconds in times.items() if nbytes)

    def scale(self, ranks: int = 0) -> int:
        """Return nbytes as nccl-tests counts over the size in the log."""
        return (self.ranks or ranks or 1) if self.program == OSU and self.kind in PER_RANK else 1

    def spread(self) -> float | None:
        """Return the noise: the median relative deviation of repeated times from their median, and of in place / out of
        place from what it usually is in this run; None if fewer than three sizes show any."""
        ratios = [row.in_place / row.seconds for row in self.rows if row.in_place]
        usual_ratio, usual = median(ratios or [1.0]), dict(self.points())
        count = Counter(row.nbytes for row in self.rows)
        deviations = [abs(ratio / usual_ratio - 1) for ratio in ratios]
        deviations += [
            abs(row.seconds / usual[row.nbytes * self.scale()] - 1) for row in self.rows if count[row.nbytes] > 1
        ]
        return median(deviations) if len(deviations) > 2 else None


def read_runs(text: str) -> list[Run]:
    """Return the runs of a log in their order. Invalid if there is none, or if a collective is not named."""
    if text.lstrip().startswith("{") and '"out_of_place"' in text:
        text = "\n".join(_lines_of_json(decode(text.encode(), dict)))
    runs = [run for run in _Reader(_NOISE.sub(" ", text).splitlines()).read() if run.rows]
    if not runs:
        raise Invalid(
            "has no rows as nccl-tests, rccl-tests or OSU collectives print them (and is no JSON of bench); "
            "paste the table with its sizes and times"
        )
    for run in runs:
        if not run.kind:
            raise Invalid("does not name its collective: keep the line that starts the program (all_reduce_perf)")
        if kind_named(run.kind) != run.kind:
            raise Invalid(
                f"measures {quote(run.kind)}, which is no collective; use all_reduce_perf, all_gather_perf, ..."
            )
    return runs


def read_points(text: str) -> dict[str, list[tuple[int, float]]]:
    """Return sizes and seconds by collective; of several runs the fastest time of each size."""
    fastest: dict[str, dict[int, float]] = {}
    for run in read_runs(text):
        sizes = fastest.setdefault(run.kind, {})
        for nbytes, seconds in run.points():
            sizes[nbytes] = min(sizes.get(nbytes, seconds), seconds)
    return {kind: sorted(sizes.items()) for kind, sizes in fastest.items()}


def _lines_of_json(log: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that nccl-tests would have printed, from the JSON that it writes with -J."""
    try:
        yield " ".join(["./" + str(log["args"][0]).rpartition("/")[2], *map(str, log["args"][1:])])
        yield from (str(variable) for variable in log.get("env", []))
        yield f"nccl-library={log.get('nccl_version', 0)}"
        for device in log["config"]["devices"]:
            place = "Rank {rank} Pid {pid} on {hostname} device {device} [{device_hex}] {device_info}"
            yield place.format_map(device)
        for row in log["results"]:
            cells = [row[key] for key in ("size", "count", "type", "redop", "root")]
            for times in filter(None, (row["out_of_place"], row["in_place"])):
                cells += [f"{float(times[key]):.6f}" for key in ("time", "alg_bw", "bus_bw")]
                cells.append("N/A" if times["nwrong"] is None else times["nwrong"])
            yield " ".join(map(str, cells))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Invalid(f"is no JSON of nccl-tests -J: {type(error).__name__} {quote(str(error))}") from None


class _Reader:
    """Goes through the lines once; `run` collects the context and the rows of the current run."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.run = Run()
        self.named = ""  # the last collective that a program or a title named
        self.devices: dict[int, tuple[str, str]] = {}  # host and process by rank
        self.ratio = (0.0, 0.0)  # busbw / algbw of the row with the greatest algbw, and its rounding error
        self.columns = ("", "")  # operator and root of the rows
        self.width = USUAL_WIDTH  # numbers out of place, and as many in place, as the head of the table has
        self.failed = self.is_commanded = False
        self.exported: dict[str, str] = {}  # variables of all later runs
        self.following: dict[str, str] = {}  # variables behind the rows of this run, which belong to the next

    def read(self) -> Iterator[Run]:
        """Yield each run once the next one begins."""
        at = 0
        while at < len(self.lines):
            line = self.lines[at]
            at += 1
            row = _ROW.search(line)
            if row:
                at = self._add_row(row, at)
            elif self.run.program == OSU and (row := _OSU_ROW.search(line)):
                if int(row[1]) and float(row[2]):
                    wrong = (row[4] or "").startswith("Fail")
                    self.run.rows.append(LogRow(int(row[1]), float(row[2]) / 1e6, wrong=wrong))
            else:
                if head := _HEAD.search(line):
                    words = head[0].split()
                    self.width = next((i for i in range(USUAL_WIDTH, len(words)) if words[i] == words[0]), USUAL_WIDTH)
                title = _TITLE.search(line)
                started = None if title or _END.search(line) else _STARTED.search(line)
                if self.run.rows and (title or started or _BEGIN.search(line)):
                    yield self._finish()
                self._read_context(line, title, started)
        yield self._finish()

    def _read_context(self, line: str, title: re.Match[str] | None, started: re.Match[str] | None) -> None:
        """Take from a line what it says about the run."""
        run = self.run
        if title:
            run.program, run.version = OSU, title[2]
            run.library = next((name for name in ("NCCL", "RCCL") if name in title[1]), "")
            self.named = run.kind = _osu_kind(title[1])
        elif started:
            is_command = bool(started["verb"] or started["option"])
            if is_command or not self.is_commanded:
                self.named = run.kind = kind_named(started["name"].replace("_", "")) or started["name"]
            self.is_commanded = self.is_commanded or is_command
        if device := _DEVICE.search(line):
            self.devices[int(device[1])] = (device[3], device[2])
            run.gpu = run.gpu or device[4].strip()
        if program := _PROGRAM.search(line):
            run.program = program[1] if run.program != OSU else OSU
            run.version = run.version or program[2] or ""
        if library := _LIBRARY.search(line):
            run.library = f"{library[1]} {library[2]}"
            run.program = "rccl-tests" if library[1] == "RCCL" and run.program != OSU else run.program
        elif coded := _CODED.search(line):
            number = int(coded[1])
            run.library = f"NCCL {number // 10000}.{number // 100 % 100}.{number % 100}"
        if "CCL_" in line:
            self._read_variables(line)
        if "osu_" in line and (processes := _PROCESSES.search(line)):
            run.ranks = int(processes[1])
        run.signs += tuple(name for name, sign in _SIGNS.items() if name not in run.signs and sign.search(line))
        self.failed = self.failed or ("FAILED" in line and "Out of bounds" in line)

    def _read_variables(self, line: str) -> None:
        """Take NCCL's variables: exported for all later runs, behind rows for the next one, else for this one."""
        variables = dict(_VARIABLE.findall(line))
        if unset := _UNSET.search(line):
            for name in unset[1].split():
                self.exported.pop(name, None)
        elif _EXPORT.search(line):
            self.exported |= variables
        if self.run.rows and " set by environment to " not in line:
            self.following |= variables
        elif unset:
            self.run.environment = {k: v for k, v in self.run.environment.items() if k not in unset[1].split()}
        else:
            self.run.environment |= variables

    def _add_row(self, row: re.Match[str], at: int) -> int:
        """Read a row that begins in the line before `at`; return the line after it."""
        tail, used = row[3], 0
        values = _parse_tail(tail, self.width)
        while (values is None or len(values.times) < 2) and used < MAX_CONTINUATIONS and at + used < len(self.lines):
            following = self.lines[at + used]
            words = following[len((_PREFIX.match(following) or "")[0]) :].split()
            if not words or not all(_NUMBER.fullmatch(word) for word in words if word not in _OPERATORS):
                break
            used += 1
            spaced = _parse_tail(f"{tail} {' '.join(words)}", self.width)
            # A terminal cuts within a word, too: then neither end has a blank.
            cut = spaced is None and not tail[-1:].isspace() and not following[:1].isspace()
            tail += following if cut else f" {' '.join(words)}"
            values = _parse_tail(tail, self.width) or values
        if values is None or not _agrees(int(row[1]), values):
            self.run.garbled += 1
            return at
        if int(row[1]):
            in_place = values.times[1] / 1e6 if len(values.times) > 1 and values.times[1] else None
            self.run.rows.append(LogRow(int(row[1]), values.times[0] / 1e6, in_place, values.wrong))
            self.columns = (values.op, values.root)
            if values.algbw > 0 and values.algbw > self.ratio[1]:
                self.ratio = (values.busbw / values.algbw, values.algbw)
        return at + used

    def _finish(self) -> Run:
        """Complete the current run, and begin the next."""
        run, (factor, algbw), (op, root) = self.run, self.ratio, self.columns
        if run.program != OSU and run.rows:
            inferred = _infer_kind(op, root, factor)
            if not run.kind:  # named for an earlier run at most
                run.kind = inferred or (self.named if _has_columns(self.named, op, root) else "")
            elif not _has_columns(run.kind, op, root):
                run.kind = inferred
            # the list of devices may be cut short
            run.ranks = max(len(self.devices), _infer_ranks(run.kind, factor, algbw))
        run.hosts = len({host for host, _ in self.devices.values()})
        run.processes = len(set(self.devices.values()))
        if self.failed:
            run.rows = [replace(row, wrong=row.wrong or not any(r.wrong for r in run.rows)) for row in run.rows]
        self.run, self.devices, self.ratio, self.columns = Run(), {}, (0.0, 0.0), ("", "")
        self.failed = self.is_commanded = False
        self.run.environment = {**self.exported, **self.following}
        self.following = {}
        return run


_OPERATORS = ("sum", "prod", "max", "min", "avg", "mulsum", "all", "none")


@dataclass(frozen=True)
class _Tail:
    """The numbers behind size, count and type: microseconds out of place and in place, GB/s, root and operator."""

    times: tuple[float, ...]
    algbw: float
    busbw: float
    op: str
    root: str
    wrong: bool


def _parse_tail(text: str, width: int) -> _Tail | None:
    """Parse what stands behind size, count and type; None unless it is complete at least out of place. `width`: numbers
    out of place and in place, which begin with time, algbw, busbw and wrong elements (old versions: the error)."""
    words = text.split()
    op = words.pop(0) if words and words[0] in _OPERATORS else ""
    values: list[str] = []
    for word in words:
        if not _NUMBER.fullmatch(word):
            break
        values.append(word)
    root = values.pop(0) if len(values) % width == 1 else ""
    if len(values) < width or len(values) % width or "." in root:
        return None
    groups = [values[at : at + width] for at in (0, width)[: len(values) // width]]
    try:
        times = tuple(float(group[0]) for group in groups if group[0][0].isdigit())
        algbw, busbw = float(groups[0][1]), float(groups[0][2])
    except ValueError:
        return None
    if not times or not 0 < times[0] < 1e12 or not all(0 <= time < 1e12 for time in times):
        return None
    wrong = any(group[3].upper() != "N/A" and not float(group[3]) < 1 for group in groups)
    return _Tail(times, algbw, busbw, op, root, wrong)


def _agrees(nbytes: int, values: _Tail) -> bool:
    """Whether algbw follows from size and time; old versions leave out the part that stays (a half for two ranks)."""
    expected = nbytes / values.times[0] / 1e3
    return 0.45 * expected - 0.02 <= values.algbw <= 1.05 * expected + 0.02


def _osu_kind(title: str) -> str:
    """Return the collective of a title of OSU; its own words if it is none that can be compared."""
    words = title.lower().replace("-", "").replace("_", "").split()
    if "nonblocking" in words:
        return title
    names = {"bcast": "broadcast", "alltoallv": "alltoall"}
    kinds = (kind_named(names.get(word, word)) or kind_named(word.removesuffix("v")) for word in words)
    return next((kind for kind in kinds if kind), title)


def _has_columns(kind: str, op: str, root: str) -> bool:
    """Return whether rows of this collective have such an operator and root; old versions print neither for some."""
    if op and (op == "none") != (kind not in COMBINING):
        return False
    return not root or (root != "-1") == (kind in ROOTED)


def _infer_kind(op: str, root: str, factor: float) -> str:
    """Return the collective that these columns and this busbw / algbw show; empty where it may be one of several."""
    if not op or not root or not factor:
        return ""
    if op == "none":
        return "broadcast" if root != "-1" and abs(factor - 1) < 0.01 else ""
    if root != "-1":
        return "reduce"
    return "allreduce" if factor > 0.995 else "reducescatter"


def _infer_ranks(kind: str, factor: float, algbw: float) -> int:
    """Return the only number of ranks with this busbw / algbw, within rounding to 0.01 GB/s; 0: several, or none."""
    if not algbw or kind in ROOTED:
        return 0
    error = 0.006 / algbw * (1 + factor)
    scale = 2 if kind == "allreduce" else 1
    able = [n for n in range(2, MAX_RANKS + 1) if abs(scale * (n - 1) / n - factor) <= error]
    return able[0] if len(able) == 1 else 0
