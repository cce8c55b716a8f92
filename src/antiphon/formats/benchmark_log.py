"""Read logs of nccl-tests, rccl-tests, the OSU benchmarks and our own `bench`, as people paste them.

Input: the text of a terminal, a batch job or a forum thread. Result: a list of `BenchmarkRun`, one for each time a
benchmark was started, with its collective, its rows, and what the log says of the job (ranks, hosts, GPUs, versions,
variables).

Nothing is expected at a fixed place. A row of nccl-tests is recognized by size, count and data type side by side,
wherever in the line they stand, so prompts, time stamps, `[1,0]<stdout>:` of mpirun and `0:` of srun need no rules.
Behind them stand, by version and collective, an operator, a root, four numbers out of place and four in place:

    [1,0]<stdout>:  1048576  262144  float  sum  -1   41.20  25.45  44.54   0   40.90  25.64  44.87   0
                    nbytes   count   type   op  root  time   algbw  busbw wrong time   algbw  busbw wrong

A line that ends too early was wrapped: the next ones, if they have nothing but numbers, continue it; lines that the
library logged in between are skipped. A row whose algbw contradicts its time is garbled and left out. A row of OSU is a
size and a time below a title of OSU that measures the latency of a collective. JSON of nccl-tests, and CSV and JSON of
`bench`, are turned into the lines that the program would have printed.

The collective is that of the program or the title. If none is named, operator, root and busbw / algbw identify most:
for n ranks 2 (n-1)/n is an allreduce, (n-1)/n with an operator a reducescatter. The same quotient gives n.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from antiphon.core.collective import COMBINING, ROOTED, kind_named
from antiphon.core.jsontext import decode
from antiphon.errors import Invalid, quote

MAX_RANKS = 4096  # largest number of ranks that is tried when it is inferred from busbw / algbw
MAX_CONTINUATIONS = 4  # lines that may continue a wrapped row
MAX_MICROSECONDS = 1e12  # 11 days: no call takes longer
USUAL_WIDTH = 4  # numbers that a row has out of place, and again in place: time, algbw, busbw, wrong
OSU, BENCH = "OSU", "antiphon bench"
# Programs that do not measure NCCL or RCCL, and what they measure
MEASURES = {OSU: "OSU measures an MPI", BENCH: "antiphon bench measures Antiphon's plans"}
NAME_IT = "keep the line that starts the program (all_reduce_perf)"
PER_RANK = ("allgather", "alltoall", "gather", "scatter")  # OSU gives the bytes of one rank, or of one pair

# Replaced by a blank before lines are read: colours of a terminal, ` and | of a forum, tags of launchers
_NOISE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[`|]|\[[0-9]+(?:,[0-9]+)?\](?:<\w+> ?:?)?")
# A line of a container's log: Docker's driver json-file writes {"log": "the line\n", "stream": "stdout", "time": "..."}
_CONTAINER_LINE = re.compile(r'^\{"log": ?("(?:[^"\\\n]|\\.)*").*\}\r?$', re.MULTILINE)
# The name of a benchmark program. With `verb` or `option` the line starts it; else it may be a listing or prose.
_PROGRAM_NAME = re.compile(
    r"(?P<verb>Collective test starting: |\./)?\b(?P<name>[a-z_]{4,20})_perf(?:_mpi)?\b(?P<option>\s+-)?"
)
# The head of a table, which shows the columns of this version
_HEAD = re.compile(r"\b(?:cpu)?time\s+algbw\s+busbw\b.*")
# Lines before the rows of a run: a run that has rows ends here
_BEGIN = re.compile(
    r"\bnThread\s+\d|Collective test starting|Using devices|\bsize\s+count\s+(?:\(elements\)\s+)?type\b"
)
# Lines behind the rows, which may name the program but do not start it
_END = re.compile(r"Collective test concluded|Avg bus bandwidth|Out of bounds values")
# Data types as the programs print them
_TYPE = r"u?int\d*|u?char|float\w*|half|double|bfloat16|bf16|fp?8\w*"
# A row with commas or semicolons between its cells, as of a spreadsheet
_SHEET_ROW = re.compile(rf"(?<![\w.:-])[0-9]{{1,18}} ?([,;]) ?[0-9]{{1,18}} ?\1 ?(?:{_TYPE}) ?\1.*")
# A row: its size, its type, and the tail that `_parse_tail` reads
_ROW = re.compile(rf"(?<![\w.:-])([0-9]{{1,18}})\s+[0-9]{{1,18}}\s+({_TYPE})(?=\s|$)(.*)$")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{0,15})?(?:e[+-]?[0-9]{1,3})?|N/A|inf|nan", re.IGNORECASE)
# What a launcher or logger puts before a line: [tag] <stream>: host: >
_PREFIX = re.compile(r"^\s*(?:\[[^\]\s]{1,60}\]\s*)?(?:<\w{1,20}>\s*:?)?\s*(?:[\w.-]{1,60}:(?=\s))?[>\s]*")
# A title of OSU: what follows measures, and the version; a row of OSU: size, microseconds, other figures, and a check
_TITLE = re.compile(r"\bOSU\s+(\S.{0,60}?)\s+Test\s*v?([0-9.]*)")
_OSU_ROW = re.compile(
    r"(?<![\w.:,-])([0-9]{1,18})\s+([0-9]{1,12}\.[0-9]{1,6})(?: ?us)?((?:\s+[0-9.]{1,18})*)\s*(Pass|Fail\w*)?\s*$"
)
# The title of a table of `bench`: collective, machine, ranks; and the first columns of its CSV
_BENCH_TITLE = re.compile(r"#\s*([a-z]{4,20}) on .{1,200}, (\d{1,6}) ranks\s*$")
_BENCH_CSV = re.compile(r"\s*collective,planner,ranks,nbytes,count,")
# A line of the list of devices: rank, process, host, and name of the GPU
_DEVICE = re.compile(
    r"\bRank\s+(\d{1,6})\s+(?:Group\s+\d+\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)$"
)
_LIBRARY = re.compile(r"\b([NR]CCL) version\s*:?\s*([0-9]+(?:\.[0-9]+)+)")
_LIBRARY_CODE = re.compile(r"nccl-library=([0-9]{4,5})\b")  # 22804 is 2.28.4
_PROGRAM = re.compile(r"\b([nr]ccl-tests)(?: version|: Version)?\s+([0-9][\w.]*)?")
_VARIABLE = re.compile(r"\b((?:NCCL|RCCL)_[A-Z0-9_]{2,60})(?:=| set by environment to )([^\s;\"']{1,200})")
# What the library logs (NCCL_DEBUG=INFO): it may cut a row behind the root, as the row's first half is printed early
_LOGGED = re.compile(r"(?:\[[-0-9 :.T]{1,40}\] )?[\w.-]{1,64}:\d+:\d+\s+[NR]CCL (?:INFO|WARN|TRACE)\b.*")
_EXPORT, _UNSET = re.compile(r"\bexport\s"), re.compile(r"\bunset\s+((?:\w+\s*)+)")
# The number of processes in the command of a launcher, such as -np 8
_PROCESSES = re.compile(r"(?:^|\s)(?:-np|-n|--np|--ntasks)[ =]([0-9]{1,6})\b")
# What nccl-tests prints when a call fails, with the place in its source and the error
_FAILURE = re.compile(r"\bTest (?:NCCL|RCCL|CUDA|HIP) failure (?:\S+ )?(.{1,120})")
# What the library itself logs under NCCL_DEBUG=INFO, by the name that `BenchmarkRun.signs` gives it
_SIGNS = {
    "sockets": re.compile(r"\bvia NET/Socket|Using network Socket|Initialized NET plugin Socket"),
    "host memory": re.compile(r"\bvia SHM\b"),
    "no direct memory access": re.compile(r"\bvia NET/IB/[0-9]+(?!.*GDRDMA)"),
    "no NVLS": re.compile(r"NVLS multicast support is not available"),
}  # fmt: skip


@dataclass(frozen=True)
class LogRow:
    """One size of a run."""

    nbytes: int  # as the program prints it; `BenchmarkRun.points` converts OSU's sizes
    seconds: float  # out of place; in place if the row has no other time
    in_place: float | None = None  # seconds in place, if the row has both times
    wrong: bool = False  # whether the program reported wrong elements


@dataclass
class BenchmarkRun:
    """A benchmark that was started once. A text is "" and a number is 0 if the log does not have it."""

    kind: str = ""  # the collective
    program: str = "nccl-tests"  # or rccl-tests, OSU, BENCH
    version: str = ""  # of the program
    library: str = ""  # such as "NCCL 2.28.4"
    gpu: str = ""  # name of the first device in the list
    ranks: int = 0
    hosts: int = 0
    processes: int = 0
    environment: dict[str, str] = field(default_factory=dict)  # NCCL's variables on the command line or in its log
    shows_command: bool = False  # the command line is in the log
    signs: tuple[str, ...] = ()  # slow transports that the library logged (keys of _SIGNS)
    failure: str = ""  # the error at which the program ended
    separate: bool = False  # each process measured alone, not as one job: nccl-tests was built without MPI
    rows: list[LogRow] = field(default_factory=list)
    garbled: int = 0  # rows left out, as they are cut short or their algbw contradicts their time

    def points(self, ranks: int = 0, *, steady: bool = False, in_place: bool = False) -> list[tuple[int, float]]:
        """Return (nbytes, median seconds) of each size, by size.

        `ranks`: the number of ranks, used if the log does not have it. `steady`: take the lower one of the two times
        of a row, out of place and in place, as the first calls of a size may be slow. `in_place`: only times in place,
        of rows that have both.
        """
        times: dict[int, list[float]] = {}
        for row in self.rows:
            if in_place and row.in_place is None:
                continue
            in_place_seconds = row.in_place or row.seconds
            seconds = in_place_seconds if in_place else row.seconds
            if steady:
                seconds = min(row.seconds, in_place_seconds)
            times.setdefault(row.nbytes * self.scale(ranks), []).append(seconds)
        return sorted((nbytes, median(seconds)) for nbytes, seconds in times.items() if nbytes)

    def scale(self, ranks: int = 0) -> int:
        """Return nbytes (as nccl-tests counts) divided by the size in the log: OSU may count the block of one rank."""
        return (self.ranks or ranks or 1) if self.program == OSU and self.kind in PER_RANK else 1

    def spread(self) -> float | None:
        """Return the noise, as the median of relative deviations; None if there are fewer than three.

        Two kinds of deviations count: that of repeated times of one size from their median, and that of a row's ratio
        in place / out of place from the median ratio of the run. The kind with the greater median is the noise.
        """
        ratios = [row.in_place / row.seconds for row in self.rows if row.in_place]
        usual_ratio, median_seconds = median(ratios or [1.0]), dict(self.points())
        repetitions = Counter(row.nbytes for row in self.rows)
        in_place = [abs(ratio / usual_ratio - 1) for ratio in ratios]
        repeated = [
            abs(row.seconds / median_seconds[row.nbytes * self.scale()] - 1)
            for row in self.rows
            if repetitions[row.nbytes] > 1
        ]
        return max((median(kind) for kind in (in_place, repeated) if len(kind) > 2), default=None)


def read_runs(text: str, with_incomparable: bool = False) -> list[BenchmarkRun]:
    """Return the runs of a log in their order. Invalid if there is none, or if a collective is not named.

    Programs that measure no collective (sendrecv_perf) are left out. `with_incomparable`: return them, and also runs
    whose collective is not named (kind "").
    """
    if text.lstrip().startswith("{") and '"out_of_place"' in text:
        text = "\n".join(_lines_of_json(decode(text.encode(), dict)))
    elif text.lstrip().startswith("{") and '"rows"' in text and '"over_library"' in text:
        text = "\n".join(_lines_of_bench(decode(text.encode(), dict)["rows"]))
    elif _BENCH_CSV.match(text):
        text = "\n".join(_lines_of_bench(csv.DictReader(text.strip().splitlines())))
    text = _CONTAINER_LINE.sub(_unwrap_line, text)
    text = _SHEET_ROW.sub(lambda row: row[0].replace(row[1], " "), _NOISE.sub(" ", text))
    every_run = [*_Reader(text.splitlines()).read()]
    runs = [run for run in every_run if run.rows]
    if not runs:
        failure, garbled = _FAILURE.search(text), sum(run.garbled for run in every_run)
        if garbled:
            raise Invalid(f"all its rows ({garbled}) lack time, algbw, busbw or #wrong, or algbw contradicts the time")
        raise Invalid(
            "has no rows as nccl-tests, rccl-tests or OSU collectives print them (and is no file of bench); "
            + (f"the program failed: {failure[1]}" if failure else "paste the table with its sizes and times")
        )
    if with_incomparable:
        return runs
    if not all(run.kind for run in runs):
        raise Invalid(f"does not name its collective: {NAME_IT}")
    collectives = [run for run in runs if is_collective(run.kind)]
    if not collectives:
        raise Invalid(
            f"measures {quote(runs[0].kind)}, which is no collective; use all_reduce_perf, all_gather_perf, ..."
        )
    return collectives


def _unwrap_line(line: re.Match[str]) -> str:
    """Return what a program printed, from a line of a container's log; the line itself if it is no JSON."""
    try:
        return decode(line[1].encode(), str).rstrip("\n")
    except (Invalid, UnicodeEncodeError):
        return line[0]


def is_collective(name: str) -> bool:
    """Return whether a run of this kind measures a collective: `kind_named` maps its spellings to our name."""
    return kind_named(name) == name


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
            template = "Rank {rank} Pid {pid} on {hostname} device {device} [{device_hex}] {device_info}"
            yield template.format_map(device)
        for row in log["results"]:
            cells = [row[key] for key in ("size", "count", "type", "redop", "root")]
            for times in filter(None, (row["out_of_place"], row["in_place"])):
                cells += [f"{float(times[key]):.6f}" for key in ("time", "alg_bw", "bus_bw")]
                cells.append("N/A" if times["nwrong"] is None else times["nwrong"])
            yield " ".join(map(str, cells))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Invalid(f"is no JSON of nccl-tests -J: {type(error).__name__} {quote(str(error))}") from None


def _lines_of_bench(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines that `bench` would have printed, from the rows of its CSV or JSON."""
    title, lines = "", list[str]()
    try:
        for row in rows:
            rates = " ".join(f"{float(row[key]) / 1e9:.9f}" for key in ("algbw", "busbw"))
            times = f"{float(row['seconds']) * 1e6:.6f} {rates} {row['wrong']}"
            if str(row["in_place"]) == "True":  # stands behind the row out of place, and shares its line
                lines[-1] += f" {times}"
                continue
            row_title = f"# {row['collective']} on a machine, {row['ranks']} ranks"
            lines += [row_title] if row_title != title else []
            title, root = row_title, -1 if row["root"] in (None, "") else row["root"]
            lines.append(f"{row['nbytes']} {row['count']} {row['dtype']} {row['op'] or 'none'} {root} {times}")
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise Invalid(f"is no file of bench: {type(error).__name__} {quote(str(error))}") from None
    return lines


class _Reader:
    """Read the lines once, in order; `run` collects the context and the rows of the current run."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.run = BenchmarkRun()
        self.last_kind = ""  # the collective that a program or a title named last, maybe for an earlier run
        self.devices: dict[int, tuple[str, str]] = {}  # host and process by rank
        self.bus_factor = (0.0, 0.0)  # busbw / algbw, and algbw, of the row of greatest algbw: it is rounded least
        self.op_and_root = ("", "")  # what the rows print as operator and root
        self.width = USUAL_WIDTH  # as USUAL_WIDTH, by the head of the current table
        self.has_failed = False  # the summary of the run says that values were out of bounds
        self.has_command = False  # a line of the run starts its program; later mentions do not change the collective
        self.exported: dict[str, str] = {}  # variables of all later runs
        self.next_variables: dict[str, str] = {}  # variables that stand behind the rows of this run: of the next one

    def read(self) -> Iterator[BenchmarkRun]:
        """Yield each run once the next one begins."""
        at = 0
        while at < len(self.lines):
            line = self.lines[at]
            at += 1
            row = _ROW.search(line)
            if row:
                at = self._add_row(row, at)
            elif self.run.program == OSU and (row := _OSU_ROW.search(line)):
                if int(row[1]) and float(row[2]):  # 0 bytes, or no time, are of no use
                    wrong = (row[4] or "").startswith("Fail")
                    self.run.rows.append(LogRow(int(row[1]), float(row[2]) / 1e6, wrong=wrong))
            else:
                if head := _HEAD.search(line):
                    words = head[0].split()  # the columns in place begin where the name of the first comes again
                    self.width = next((i for i in range(USUAL_WIDTH, len(words)) if words[i] == words[0]), USUAL_WIDTH)
                title = _TITLE.search(line)
                start = None if title or _END.search(line) else _PROGRAM_NAME.search(line)
                bench_title = _BENCH_TITLE.search(line)
                begins = title or start or bench_title or _BEGIN.search(line) or _osu_processes(line)
                if self.run.rows and begins:
                    yield self._finish()
                self._read_context(line, title, start)
                if bench_title and is_collective(bench_title[1]):
                    self.run.program, self.run.kind, self.run.ranks = BENCH, bench_title[1], int(bench_title[2])
        yield self._finish()

    def _read_context(self, line: str, title: re.Match[str] | None, start: re.Match[str] | None) -> None:
        """Take from a line what it says about the run. `title`, `start`: where _TITLE and _PROGRAM_NAME match in it."""
        run = self.run
        if title:
            run.program, run.version = OSU, title[2]
            run.library = next((name for name in ("NCCL", "RCCL") if name in title[1]), "")
            self.last_kind = run.kind = _osu_kind(title[1])
        elif start:
            is_command = bool(start["verb"] or start["option"])
            if is_command or not self.has_command:
                self.last_kind = run.kind = kind_named(start["name"].replace("_", "")) or start["name"]
            self.has_command = self.has_command or is_command
            run.shows_command = run.shows_command or start["verb"] == "./" or bool(start["option"])
        if device := _DEVICE.search(line):
            host_and_process = (device[3], device[2])
            # In one job each rank is on one host: a second host for it shows processes that measure alone. The same
            # host once more shows nothing, as the first list may be that of an earlier start, which printed no rows.
            earlier_host, _ = self.devices.setdefault(int(device[1]), host_and_process)
            run.separate |= earlier_host != device[3]
            self.devices[int(device[1])] = host_and_process
            run.gpu = run.gpu or device[4].strip()
        if program := _PROGRAM.search(line):
            run.program = program[1] if run.program != OSU else OSU
            run.version = run.version or program[2] or ""
        if library := _LIBRARY.search(line):  # RCCL's library means rccl-tests, which call themselves nccl-tests
            run.library = f"{library[1]} {library[2]}"
            run.program = "rccl-tests" if library[1] == "RCCL" and run.program != OSU else run.program
        elif code := _LIBRARY_CODE.search(line):
            number = int(code[1])  # NCCL_VERSION_CODE: 22304 is 2.23.4
            run.library = f"NCCL {number // 10000}.{number // 100 % 100}.{number % 100}"
        if "CCL_" in line:
            self._read_variables(line)
        run.ranks = _osu_processes(line) or run.ranks
        if failure := _FAILURE.search(line):
            run.failure = run.failure or failure[1]
        run.signs += tuple(name for name, sign in _SIGNS.items() if name not in run.signs and sign.search(line))
        self.has_failed = self.has_failed or ("FAILED" in line and "Out of bounds" in line)

    def _read_variables(self, line: str) -> None:
        """Collect NCCL's variables from a line.

        Exported ones hold for all later runs, ones behind the rows of this run for the next run, others for this run.
        """
        variables = dict(_VARIABLE.findall(line))
        if unset := _UNSET.search(line):
            for name in unset[1].split():
                self.exported.pop(name, None)
        elif _EXPORT.search(line):
            self.exported |= variables
        if self.run.rows and " set by environment to " not in line:
            self.next_variables |= variables
        elif unset:
            self.run.environment = {k: v for k, v in self.run.environment.items() if k not in unset[1].split()}
        else:
            self.run.environment |= variables

    def _add_row(self, row: re.Match[str], at: int) -> int:
        """Read a row that begins in the line before index `at`; return the index of the line after the row."""
        tail, end, continuations = row[3], at, 0
        if logged := _LOGGED.search(tail):
            self._read_context(logged[0], None, None)
            tail = tail[: logged.start()]
        values = _parse_tail(tail, self.width)
        # as long as the time in place is missing, the row may go on in the next line
        while values is None or len(values.times) < 2:
            while end < len(self.lines) and _LOGGED.search(self.lines[end]) and not _ROW.search(self.lines[end]):
                self._read_context(self.lines[end], None, None)
                end += 1
            if end == len(self.lines) or continuations == MAX_CONTINUATIONS:
                break
            next_line = self.lines[end]
            # `_PREFIX` matches every line, if only its empty beginning; `or ""` is for the type checker
            words = next_line[len((_PREFIX.match(next_line) or "")[0]) :].split()
            if not words or not all(_NUMBER.fullmatch(word) for word in words if word not in _OPERATORS):
                break
            end, continuations = end + 1, continuations + 1
            spaced = _parse_tail(f"{tail} {' '.join(words)}", self.width)
            # A terminal may wrap within a word, too: then neither end has a blank.
            is_word_split = spaced is None and not tail[-1:].isspace() and not next_line[:1].isspace()
            tail += next_line if is_word_split else f" {' '.join(words)}"
            values = _parse_tail(tail, self.width) or values
        if values is None or not _is_consistent(int(row[1]), values):
            self.run.garbled += 1
            return at  # the lines behind it may be rows of their own
        if int(row[1]):  # a row of 0 bytes is read, but of no use
            out_of_place, *in_place_times = values.times
            in_place = in_place_times[0] / 1e6 if in_place_times and in_place_times[0] else None
            self.run.rows.append(LogRow(int(row[1]), out_of_place / 1e6, in_place, values.wrong))
            self.op_and_root = (values.op, values.root)
            _, greatest_algbw = self.bus_factor
            if values.algbw > max(greatest_algbw, 0):
                self.bus_factor = (values.busbw / values.algbw, values.algbw)
        return end

    def _finish(self) -> BenchmarkRun:
        """Complete the current run, and begin the next."""
        run, (factor, algbw), (op, root) = self.run, self.bus_factor, self.op_and_root
        if run.program != OSU and run.rows:
            inferred = _infer_kind(op, root, factor)
            if not run.kind:  # no line of this run names it: the name of an earlier run may fit
                run.kind = inferred or (self.last_kind if _has_columns(self.last_kind, op, root) else "")
            # The columns contradict the name, which may be of another run. Only the name of a program that measures no
            # collective (sendrecv_perf), started by a command of this run, stays.
            elif not _has_columns(run.kind, op, root) and (is_collective(run.kind) or not self.has_command):
                run.kind = inferred
            run.separate |= algbw > 0 and not factor  # busbw is 0 for a single rank
            if run.program != BENCH:  # the title of `bench` states the ranks; a list of devices may be incomplete
                run.ranks = max(max(self.devices, default=-1) + 1, _infer_ranks(run.kind, factor, algbw))
        run.hosts = len({host for host, _ in self.devices.values()})
        run.processes = len(set(self.devices.values()))
        # The summary says that the run failed: wrong are the marked rows; if none is marked, it may be any of them.
        if self.has_failed:
            run.rows = [replace(row, wrong=row.wrong or not any(r.wrong for r in run.rows)) for row in run.rows]
        self.run, self.devices, self.bus_factor, self.op_and_root = BenchmarkRun(), {}, (0.0, 0.0), ("", "")
        self.has_failed = self.has_command = False
        self.run.environment = {**self.exported, **self.next_variables}
        self.next_variables = {}
        return run


# What the operator column may show; "none": the collective has no operator
_OPERATORS = ("sum", "prod", "max", "min", "avg", "mulsum", "all", "none")


@dataclass(frozen=True)
class _Tail:
    """What stands behind size, count and type in a row of nccl-tests."""

    times: tuple[float, ...]  # microseconds out of place, then in place
    algbw: float  # GB/s out of place
    busbw: float  # GB/s out of place
    op: str  # "" if this version has no column for it
    root: str  # "" if this version has no column for it
    wrong: bool  # whether any element is wrong


def _parse_tail(text: str, width: int) -> _Tail | None:
    """Parse what stands behind size, count and type; None unless the numbers out of place are complete.

    `width`: the numbers out of place, and again in place. Each group begins with time, algbw, busbw and
    the number of wrong elements (old versions: the largest error).
    """
    words = text.split()
    op = words.pop(0) if words and words[0] in _OPERATORS else ""
    values: list[str] = []
    for word in words:
        if not _NUMBER.fullmatch(word):
            break
        values.append(word)
    root = values.pop(0) if len(values) % width == 1 else ""  # else this version has no column for it
    if len(values) < width or len(values) % width or "." in root:
        return None
    groups = [values[at : at + width] for at in (0, width)[: len(values) // width]]
    try:
        times = tuple(float(group[0]) for group in groups if group[0][0].isdigit())  # without "N/A", "inf" and "nan"
        algbw, busbw = map(float, groups[0][1:3])  # behind the time
    except ValueError:
        return None
    if not times or not 0 < times[0] < MAX_MICROSECONDS or not all(0 <= time < MAX_MICROSECONDS for time in times):
        return None
    # The number behind busbw counts wrong elements; in old versions it is the largest error, and below 1 that is taken
    # for rounding. NaN counts as wrong, too.
    wrong = any(group[3].upper() != "N/A" and not float(group[3]) < 1 for group in groups)
    return _Tail(times, algbw, busbw, op, root, wrong)


def _is_consistent(nbytes: int, values: _Tail) -> bool:
    """Return whether algbw follows from size and time, up to rounding.

    Old versions count only what a rank sends: half of it for two ranks, so 0.45 of nbytes / time is accepted. The other
    margins, 5 % and 0.02 GB/s, are for rounding.
    """
    out_of_place, *_ = values.times
    expected = nbytes / out_of_place / 1e3  # GB/s; printed with two decimals
    return 0.45 * expected - 0.02 <= values.algbw <= 1.05 * expected + 0.02


def _osu_processes(line: str) -> int:
    """Return the number of processes if the line is a command that starts a benchmark of OSU, else 0."""
    processes = _PROCESSES.search(line) if "osu_" in line else None
    return int(processes[1]) if processes else 0


def _osu_kind(title: str) -> str:
    """Return the collective in a title of OSU, or the title if its figures are no times of a collective."""
    words = title.lower().replace("-", "").replace("_", "").split()
    if "latency" not in words or {"nonblocking", "neighborhood"} & {*words}:
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
    # An allreduce has 2 (n - 1) / n, which is 1 for two ranks; a reducescatter has (n - 1) / n, below 0.995 up to 200
    # ranks; others have 1. Printed figures are rounded, hence the margins.
    if op != "none" and factor > 1.05:
        return "allreduce"
    if not op or not root or not factor:
        return ""
    if op == "none":
        return "broadcast" if root != "-1" and abs(factor - 1) < 0.01 else ""
    if root != "-1":
        return "reduce"
    return "allreduce" if factor > 0.995 else "reducescatter"


def _infer_ranks(kind: str, factor: float, algbw: float) -> int:
    """Return the only number of ranks with this busbw / algbw, within rounding to 0.01 GB/s; 0: several, or none."""
    if not algbw or kind in ROOTED:  # for rooted ones busbw is algbw with any number of ranks
        return 0
    # Both figures are rounded to 0.01 GB/s, so each is off by up to 0.005, and a little for the division.
    error = 0.006 / algbw * (1 + factor)
    scale = 2 if kind == "allreduce" else 1
    candidates = [n for n in range(2, MAX_RANKS + 1) if abs(scale * (n - 1) / n - factor) <= error]
    return candidates[0] if len(candidates) == 1 else 0
