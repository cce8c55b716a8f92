"""Everything that reads a user's file, given damaged ones: it may only refuse, in one line, soon, in little memory.

Topologies, collectives, plans (plain and compressed), tables, profiles, measurements of four kinds as CSV, PICCL's
XML, programs and books with checksums that fit, what tools print of machines. What loads must survive what comes next:
it is verified, checked, written again, and what was written reads as the same.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import random
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from _harness import CASES, Found, main
from _mangle import as_book, as_bytes, as_json, as_program, as_table, as_words, as_xml, packed
from generate import case
from replay_traces import ddp, gpu, inspected, profile_of_nccl

from antiphon.core import serialize
from antiphon.core.plan import Plan
from antiphon.core.program import decode, encode, prove
from antiphon.core.verify import verify
from antiphon.cost import load_profile, save_profile, simulate
from antiphon.cost.fit.loggp_tables import read_round_trips, write_round_trips
from antiphon.cost.fit.tables import read_addition_times, read_plan_times, write_addition_times, write_plan_times
from antiphon.cost.replay.steps import replay_job
from antiphon.errors import AntiphonError
from antiphon.formats.chakra.nodes import COLLECTIVE, attribute, head, node, read_nodes
from antiphon.formats.chakra.read import collectives_of, plan_of, read_traces
from antiphon.formats.chakra.wire import octets
from antiphon.formats.chakra.write import chakra
from antiphon.formats.chrome import ChromeTrace, merge_traces
from antiphon.formats.jobs import read_recording
from antiphon.formats.piccl import readers as piccl
from antiphon.formats.piccl.write import piccl_xml
from antiphon.formats.probe.joining import join_box_and_fabric
from antiphon.formats.probe.joining import read_machine as named_machine
from antiphon.formats.probe.table import read as read_machine
from antiphon.formats.probe.table import recognise_source
from antiphon.formats.program import both
from antiphon.runtimes.serve.book import decode_book, encode_book, make_book, read_table
from antiphon.select import dump_tables, load_plans

NAME = "loaders"
PER_SEED = 20
MEMORY = 2**30  # beyond what the process has
SECONDS = 5.0  # of CPU time for one file;
MOST_BYTES = 2**20  # of a damaged file
LONGEST = 2000  # of a message
MOST_TRANSFERS = 3000
Mangle = Callable[[random.Random, bytes, list[bytes]], bytes]


@dataclass(frozen=True)
class Target:
    """A kind of file: how it ends, good ones, how they are damaged beside as bytes, and what is done with it."""

    suffix: str
    good: Callable[[], list[bytes]]
    mangle: Mangle
    use: Callable[[Path], None]


class Late(BaseException):
    """The CPU time of one file is spent."""


# ---- what is done with files ----


def same(mine: Any, again: Any) -> None:
    if mine != again:
        raise AssertionError("what was written does not read as the same")


def use_topology(path: Path) -> None:
    found = serialize.load_topology(path)
    same(found, serialize.loads(serialize.dumps(found)))


def use_collective(path: Path) -> None:
    found = serialize.load_collective(path)
    same(found, serialize.loads(serialize.dumps(found)))


def next_of(plan: Plan) -> None:
    for entry in plan.entries:
        if entry.schedule.transfers <= MOST_TRANSFERS:
            verify(entry.schedule, plan.topology, entry.claims)
    text = serialize.dumps(plan)
    same(text, serialize.dumps(serialize.loads(text)))  # type: ignore[arg-type]


def use_plan(path: Path) -> None:
    next_of(serialize.load_plan(path))


def use_table(path: Path) -> None:
    for plan in load_plans(path).values():
        next_of(plan)
    encode_book(read_table(path))


def use_profile(path: Path) -> None:
    found, again = load_profile(path), path.with_name("again.json")
    save_profile(found, again)
    same(found, load_profile(again))


def use_measured(path: Path) -> None:
    write_plan_times(read_plan_times(path), path.with_name("again.csv"))


def use_added(path: Path) -> None:
    write_addition_times(read_addition_times(path), path.with_name("again.csv"))


def use_trips(path: Path) -> None:
    write_round_trips(read_round_trips(path), path.with_name("again.csv"))


def use_figures(path: Path) -> None:
    piccl.figures_text(piccl.read_figures(path))


def use_piccl_topology(path: Path) -> None:
    topology, _ = piccl.read_topology(path)
    same(topology, serialize.loads(serialize.dumps(topology)))


def use_machine(source: str) -> Callable[[Path], None]:
    """Whatever it is recognised as, its own reader reads it; what it becomes is a file, and boxes go on networks."""

    def use(path: Path) -> None:
        with contextlib.suppress(AntiphonError):
            recognise_source(str(path))
        found = read_machine([str(path)], source)
        same(found.machine, serialize.loads(serialize.dumps(found.machine)))
        if found.machine.links < MOST_TRANSFERS:
            with contextlib.suppress(AntiphonError):
                join_box_and_fabric(network("dgx1v"), found) if found.hosts else join_box_and_fabric(
                    found, network("star:ranks=2")
                )

    return use


@cache
def network(spec: str) -> Any:
    return named_machine(spec)


def use_piccl_schedule(path: Path) -> None:
    next_of(piccl.read_schedule(path).verifiable())


def use_program(path: Path) -> None:
    programs = decode(path.read_bytes())
    same(programs[0].collective, decode(encode(programs))[0].collective)
    for program in programs:
        prove(program)


def use_book(path: Path) -> None:
    book = decode_book(path.read_bytes())
    encode_book(book)
    for program in book.programs:
        decode(program)


def use_trace(path: Path) -> None:
    """Beside itself; what comes of that reads as a trace again."""
    whole, rows = merge_traces([path, path])
    again = ChromeTrace("again", whole)
    same(len(rows), len(again.about["traces"]))


def use_chakra(path: Path) -> None:
    collectives_of(read_traces([path]))


def use_chakra_plan(path: Path) -> None:
    """As the file of rank 0, beside the others of its plan."""
    whole = {rank: read_nodes(data) for rank, data in enumerate(chakra_plan())}
    next_of(plan_of({**whole, 0: read_traces([path])[0]}))


def use_job(path: Path) -> None:
    """Followed as it was, and without communication."""
    job = read_recording([path])
    for seconds in ([call.seconds for call in job.calls], [0.0] * len(job.calls)):
        assert all(math.isfinite(one) for one in replay_job(job, seconds).steps)


# ---- good files ----


@cache
def plans() -> list[Plan]:
    """Small ones of every kind: by generator, with slots, routes, pieces and uneven chunks."""
    found = []
    seed = 0
    while len(found) < 24:
        made = case(seed, most_ranks=4)
        seed += 1
        if made.schedule.transfers <= 40:
            found.append(Plan.of(made.topology, made.schedule, {"planner": "random", "steps": made.schedule.steps}))
    return found


@cache
def proven() -> list[Plan]:
    """Small ones of planners."""
    import antiphon

    asked = [("allreduce", "ring", "ring:ranks=3"), ("allgather", "bruck", "full:ranks=3"),
             ("broadcast", "binomial-tree", "star:ranks=3"), ("reducescatter", "direct", "full:ranks=3")]  # fmt: skip
    return [antiphon.plan(kind, antiphon.topology(machine), planner=planner) for kind, planner, machine in asked]


def texts(kind: Callable[[Plan], Any]) -> list[bytes]:
    return [serialize.dumps(kind(plan)) for plan in plans()]


PROFILE = b"""{"format": "antiphon-profile", "version": 1, "name": "mine", "alpha": {"nvlink": "0.7us", "ib": 2e-6},
 "bandwidth_factor": {"ib": 0.92}, "memory_bandwidth": "450GB/s", "incast": {"ib": {"epsilon": 3e-11, "w_t": 9}},
 "gamma": 1.5e-10, "delta": 4.7e-11, "loggp": {"device_radix": 8, "node_radix": 1, "levels": [
 {"within": "host", "L": 1.5e-5, "o_s": 4e-6, "o_r": 4e-6, "g": 1.3e-5, "G": 1.2e-11},
 {"sizes": [1, 65536], "L": [2e-5, 3e-5], "o_s": 4e-6, "o_r": 4e-6, "g": 1.3e-5, "G": 4e-11}]}}"""
MEASURED = b"plan,ranks,nbytes,seconds\ncps,8,1MiB,0.00183\nring,8,65536,1e-4\nrhd,4,4KiB,5us\n"
ADDED = b"vectors,nbytes,seconds\n2,67108864,0.0412\n3,1MiB,0.001\n8,4096,3us\n"
TRIPS = (
    b"kind,n,delay,nbytes,seconds\nrtt,1,0,4096,7.9e-06\nrtt,16,0,4096,4.1e-05\nrtt,16,4us,4096,1.03e-04\n"
    b"server,16,0,4096,1.1e-05\n"
)
FIGURES = b"s,L,o_s,o_r,g,G\n1,1.5e-5,4.4e-6,4.4e-6,1.3e-5,1.2e-11\n65536,1.6e-5,4.5e-6,4.4e-6,1.3e-5,1.2e-11\n"
MACHINE = b"""<topo num_nodes="4" num_levels="2">
<group level="1" id="0" param_file="figures.csv">
<group level="0" id="0" ports="1" param_file="figures.csv"> <node id="0"/> <node id="1"/> </group>
<group level="0" id="1" ports="1" param_file="figures.csv"> <node id="2"/> <node id="3"/> </group>
</group>
</topo>
"""


@cache
def schedules_xml() -> list[bytes]:
    found = []
    for plan in proven():
        files = piccl_xml(plan, nbytes="4KiB", local="off")
        found += [_joined(data) for name, data in files.items() if name.endswith(".xml") and "topology" not in name]
    return found


def _joined(data: Any) -> bytes:
    if isinstance(data, str):
        return data.encode()
    return (
        data if isinstance(data, bytes) else b"".join(part.encode() if isinstance(part, str) else part for part in data)
    )


@cache
def programs() -> list[bytes]:
    return [encode(both(plan.entries[0].schedule)) for plan in [*proven(), *plans()[:8]]]


@cache
def books() -> list[bytes]:
    return [encode_book(make_book([plan])) for plan in proven()]


def told(source: str) -> Callable[[], list[bytes]]:
    """What the tests of readers have of this tool."""

    @cache
    def texts() -> list[bytes]:
        import probe_cases

        return [case.text.encode() for case in probe_cases.CASES[source]]

    return texts


@cache
def traces() -> list[bytes]:
    found = [simulate(plan, "4KiB", trace=True)[1] for plan in proven()]
    return [data for data in found if data is not None]


@cache
def jobs() -> list[bytes]:
    made = [ddp(0), ddp(1, late=2.0), gpu(0), {"traceEvents": profile_of_nccl(0)}]
    return [json.dumps(one).encode() for one in made]


@cache
def lines_of_nccl() -> list[bytes]:
    return ["\n".join(inspected(rank, number, 1e-3) for number in range(1, 6)).encode() for rank in (0, 1)]


@cache
def chakra_plan() -> list[bytes]:
    return [_joined(file) for file in chakra(proven()[0], nbytes="4KiB").values()]


@cache
def chakra_traces() -> list[bytes]:
    files = [file for plan in proven() for file in chakra(plan, nbytes="4KiB", gamma=1e-9, local="off").values()]
    coll = octets(10, attribute("comm_type", 0)) + octets(10, attribute("comm_size", 4096))
    calls = [node(number, "call", COLLECTIVE, [number - 1] if number > 1 else [], 5, coll) for number in (1, 2, 3)]
    return [*map(_joined, files), head({}) + b"".join(calls)]


TARGETS = {
    "topology": Target(".json", cache(lambda: texts(lambda plan: plan.topology)), as_json, use_topology),
    "collective": Target(".json", cache(lambda: texts(lambda plan: plan.collective)), as_json, use_collective),
    "plan": Target(".json", cache(lambda: texts(lambda plan: plan)), as_json, use_plan),
    "compressed plan": Target(
        ".json.gz", cache(lambda: texts(lambda plan: plan)),
        lambda rng, data, others: packed(rng, as_json(rng, data, others)), use_plan,
    ),
    "table": Target(
        ".json", cache(lambda: [dump_tables({p.collective.kind: p for p in proven()[at:at + 1]}) for at in range(4)]),
        as_json, use_table,
    ),
    "profile": Target(".json", lambda: [PROFILE], as_json, use_profile),
    "measurements": Target(".csv", lambda: [MEASURED], as_table, use_measured),
    "memory measurements": Target(".csv", lambda: [ADDED], as_table, use_added),
    "round trips": Target(".csv", lambda: [TRIPS], as_table, use_trips),
    "figures": Target(".csv", lambda: [FIGURES], as_table, use_figures),
    "PICCL topology": Target(".xml", lambda: [MACHINE], as_xml, use_piccl_topology),
    "PICCL schedule": Target(".xml", schedules_xml, as_xml, use_piccl_schedule),
    "program": Target(".bin", programs, as_program, use_program),
    "trace": Target(".json", traces, as_json, use_trace),
    "recorded job": Target(".json", jobs, as_json, use_job),
    "lines of NCCL's Inspector": Target(".log", lines_of_nccl, as_bytes, use_job),
    "Chakra job": Target(".0.et", lambda: chakra_traces()[-1:], as_bytes, use_job),
    "Chakra trace": Target(".0.et", chakra_traces, as_bytes, use_chakra),
    "Chakra plan": Target(".0.et", lambda: chakra_plan()[:1], as_bytes, use_chakra_plan),
    "book": Target(".bin", books, as_book, use_book),
    **{
        source: Target(".xml" if way is as_xml else ".txt", told(source), way, use_machine(source))
        for source, way in (
            ("nvidia-smi", as_words), ("rocm-smi", as_words), ("nccl-xml", as_xml), ("hwloc", as_xml),
            ("ibnetdiscover", as_words), ("slurm", as_words), ("netfiles", as_words),
        )
    },
}  # fmt: skip


# ---- judging ----


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Address space for MEMORY more than there is now, and CPU time for SECONDS: then `Late`."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))

    def late(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGVTALRM, late)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def judged(use: Callable[[Path], None], path: Path) -> tuple[str, str | None]:
    """loaded or refused, and what is wrong with that."""
    began = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        use(path)
    except AntiphonError as error:
        text = str(error)
        if "\n" in text or len(text) > LONGEST or not text:
            return "refused", f"the message is not one short line: {text[:300]!r}"
        if "memory of this machine" in text:
            return "refused", f"{path.stat().st_size} bytes ask for more than {MEMORY} bytes of memory"
        return "refused", None
    except Late:
        return "late", f"takes more than {SECONDS} s of CPU time"
    except MemoryError:
        return "too large", f"asks for more than {MEMORY} bytes of memory"
    except Exception as error:
        return "crashed", f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    spent = time.process_time() - began
    return "loaded", None if spent < SECONDS else f"takes {spent:.1f} s"


def one(seed: int, counts: Counter[str]) -> None:
    rng = random.Random(f"{NAME} {seed}")
    name = rng.choice(list(TARGETS))
    target = TARGETS[name]
    good = target.good()
    with tempfile.TemporaryDirectory(prefix="fuzz-loaders-") as folder, limited():
        path = Path(folder) / f"file{target.suffix}"
        path.with_name("figures.csv").write_bytes(FIGURES)
        for _ in range(PER_SEED):
            data = base = rng.choice(good)
            if rng.random() < 0.7:
                data = target.mangle(rng, data, good)
            if data == base or rng.random() < 0.1:
                data = as_bytes(rng, data, good)
            data = data[:MOST_BYTES]
            if target.suffix.endswith(".gz") and rng.random() < 0.05:
                data = gzip.compress(data)
            path.write_bytes(data)
            end, wrong = judged(target.use, path)
            counts[CASES] += 1
            counts[end] += 1
            if wrong:
                raise Found(f"{name}: {wrong}", {f"{name.replace(' ', '-')}{target.suffix}": data})


def good_files_load() -> None:
    """Before anything is damaged, every good file must load: else nothing here is tested."""
    for name, target in TARGETS.items():
        for data in target.good():
            with tempfile.TemporaryDirectory(prefix="fuzz-loaders-") as folder:
                path = Path(folder) / f"file{target.suffix}"
                path.with_name("figures.csv").write_bytes(FIGURES)
                path.write_bytes(data)
                try:
                    target.use(path)
                except AntiphonError as error:
                    raise Found(f"{name}: a good file is refused: {error}", {f"good{target.suffix}": data}) from error


if __name__ == "__main__":
    main(NAME, one, 5_000, __doc__)
