"""The emulated cluster: a machine's links as rate-limited network devices between namespaces (docs/lab.md)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from antiphon.core.interpret import busbw_factor
from antiphon.core.loads import timeline
from antiphon.core.plan import Plan
from antiphon.core.program import Program, bind, encode
from antiphon.core.program.kinds import SEND
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, TimedOut, unknown
from antiphon.lower.program import lower
from antiphon.run._build import library
from antiphon.run._case import asked
from antiphon.run._lab_commands import AT_ONCE, MTU, address, bits
from antiphon.run._lab_foreign import run_foreign
from antiphon.run._lab_job import Case, Job
from antiphon.run._lab_keeping import SCRIPT, Lab, bring_up, find_lab, find_labs, name_of, need_root, standing
from antiphon.run._lab_kernel import HOST, gone
from antiphon.run._lab_layout import Layout, check_paths
from antiphon.run._launch import MARK, Failed
from antiphon.run._mpi_job import taking_part
from antiphon.units import format_seconds, parse_size

Row = dict[str, Any]
HEADERS, PACKET = 52, MTU + 14  # bytes: IP and TCP with time stamps; what is shaped of a full packet
OVERHEAD = PACKET / (MTU - HEADERS) - 1  # of a full packet, over its payload
STALL = 5.0  # seconds at least without progress before a rank gives up


def lab_up(topology: Topology, scale: str = "", name: str = "") -> Row:
    """Make a lab that stays until `lab_down`: what `lab_status` says of it."""
    lab, _ = bring_up(topology, scale, name_of(topology, name), leashed=False)
    return told(lab)


def lab_down(name: str = "", every: bool = False) -> list[str]:
    """Take down the lab of this name, the only one there is, or all: their names."""
    need_root()
    labs = find_labs()
    if not every:
        if name and name not in [lab.name for lab in labs]:
            raise unknown("lab", name, [lab.name for lab in labs]) if labs else Invalid("no lab is up")
        if not name and len(labs) > 1:
            raise Invalid(f"several labs are up: {', '.join(lab.name for lab in labs)}; name one, or --all")
        labs = [lab for lab in labs if name in ("", lab.name)]
    for lab in labs:
        lab.end()
    return [lab.name for lab in labs]


def lab_status() -> list[Row]:
    """The labs that stand."""
    need_root()
    return [told(lab) for lab in find_labs()]


def lab_names() -> list[str]:
    return [lab.name for lab in find_labs()]


def told(lab: Lab) -> Row:
    layout = lab.layout()
    slowest, fastest = (pick(port.rate for port in layout.ports if port.rate is not None) for pick in (min, max))
    owner = int(lab.about["owner"])
    return {
        "name": lab.name, "topology": lab.about["topology"]["name"], "ranks": len(layout.ranks),
        "namespaces": len(layout.nodes), "links": len(layout.cables),
        "scale": float(layout.speed), "slowest": bits(slowest), "fastest": bits(fastest),
        "reachable": layout.connected(), "keeper": lab.keeper, "owner": owner or None,
    }  # fmt: skip


def lab_command(
    where: Topology | str,
    command: Sequence[str],
    *,
    scale: str = "",
    name: str = "",
    timeout: float = 600.0,
    quiet: bool = False,
) -> Row:
    """Run a program in the lab of a machine (one made for it if none is up), or in that of a name ("": the only one).

    By mpiexec it is one MPI program (MPICH's), else it is started once for each rank with what PyTorch wants in the
    environment. Back come its exit code and the time.
    """
    need_root()
    if isinstance(where, str):
        code, seconds = run_foreign(_the_lab(where), command, timeout, quiet)
    else:
        with standing(where, scale, name_of(where, name)) as lab:
            code, seconds = run_foreign(lab, command, timeout, quiet)
    return {"command": list(command), "exit_code": code, "seconds": seconds}


def _the_lab(name: str) -> Lab:
    labs = find_labs()
    if not name and len(labs) == 1:
        return labs[0]
    found = find_lab(name)
    if found is None:
        listed = ", ".join(lab.name for lab in labs)
        raise Invalid(f"name a machine, or one of the labs that are up: {listed}" if labs else "no lab is up: name a "
                      "machine, or antiphon lab up TOPO first")  # fmt: skip
    return found


# ---- a plan ----


def lab_run(  # noqa: PLR0913
    schedule: Schedule,
    topology: Topology,
    nbytes: int | str | Sequence[int | str],
    dtype: str = "float32",
    op: str = "sum",
    seed: int = 0,
    repeat: int = 3,
    in_place: bool = False,
    *,
    scale: str = "",
    name: str = "",
    timeout: float = 600.0,
) -> list[Row]:
    """Run a schedule on random data in the lab of this machine, or one made for it: a row for each size.

    seconds: median over `repeat` runs of what the slowest rank took, all starting together; predicted_seconds: zero
    latency, the lab's bandwidths, no headers; ratio: of these two, None where nothing carries more than its shaper lets
    through at once (`at_once` bytes), as the bandwidth then limits nothing; links: bytes that each link should carry
    and that it was counted to.
    """
    sizes, kind = asked(nbytes, dtype, op, repeat)
    need_root()
    engine = str(library("sockets"))
    weight = schedule.collective.buffer_weight * kind.itemsize
    units = [parse_size(size, "nbytes") // weight for size in sizes]
    program = lower(schedule, in_place=in_place)
    with standing(topology, scale, name_of(topology, name)) as lab:
        layout = lab.layout()
        check_paths(layout, schedule.src.tolist(), schedule.dst.tolist(), schedule.route, schedule.routes)
        beta = float(timeline(schedule, layout.machine).total)
        cases = [Case(u, u * weight, min(max(STALL, 2 * beta * u * weight), timeout / 2)) for u in units]
        ranks = taking_part(schedule)
        job = Job(
            engine, ranks, _peers(schedule, ranks), {str(rank): address(rank) for rank in ranks},
            [(layout.space(port.node), layout.space(port.peer)) for port in layout.ports if port.links],
            cases, kind.name, op, in_place, seed, repeat, 1, encode([program]),
        )  # fmt: skip
        found = _measured(lab, job, timeout)
    return [
        {**_row(schedule, layout, program, case, row, beta, kind.itemsize), "dtype": kind.name, "op": op}
        for case, row in zip(cases, found, strict=True)
    ]


def lab_run_plan(plan: Plan, nbytes: int | str | Sequence[int | str], **how: Any) -> list[Row]:
    """`lab_run` with the schedules that a plan chooses for these sizes."""
    wanted = [nbytes] if isinstance(nbytes, int | str) else list(nbytes)
    rows = []
    for size in wanted:
        rows += lab_run(plan.at(parse_size(size)).schedule, plan.topology, size, **how)
    return rows


def _peers(schedule: Schedule, ranks: Sequence[int]) -> dict[str, list[int]]:
    pairs = np.unique(np.stack([schedule.src, schedule.dst]), axis=1).T.tolist()
    peers: dict[int, set[int]] = {rank: set() for rank in ranks}
    for src, dst in pairs:
        if src != dst:
            peers[src].add(dst)
            peers[dst].add(src)
    return {str(rank): sorted(found) for rank, found in peers.items()}


def _measured(lab: Lab, job: Job, timeout: float) -> list[Row]:
    """What the job says of each case; whatever ends this early ends all its processes."""
    command = [*SCRIPT, "enter", str(lab.keeper), HOST, "once", sys.executable, "-m", "antiphon.run._lab_job"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, complaints = process.communicate(job.encode(), timeout)
        except subprocess.TimeoutExpired:
            raise TimedOut(
                f"lab {lab.name} was not done within {format_seconds(timeout)}; give --timeout more, or a smaller size"
            ) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    rows = [json.loads(line.partition(MARK)[2]) for line in out.decode(errors="replace").splitlines() if MARK in line]
    for row in rows:
        if "faults" in row:
            raise Failed(_blame(lab, row))
    if len(rows) != len(job.cases):
        killed = process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if not lab.stands() or (killed and gone(lab.keeper, lab.began, 1.0)):  # its keeper ends after all others
            raise Failed(f"lab {lab.name} was taken down during the run")
        said = [line for line in complaints.decode(errors="replace").splitlines() if line.strip()]
        raise Failed(f"the run in lab {lab.name} failed: {' '.join(said[-1:]) or f'exit code {process.returncode}'}")
    return rows


def _blame(lab: Lab, row: Row) -> str:
    """What went wrong, the cause before what followed from it."""
    said: list[Row] = row["faults"]
    if row["broken"]:
        space, device = row["broken"][0]
        followed = f"rank {said[0]['rank']}: {said[0]['fault']}"
        return f"lab {lab.name}: the link between {space} and {device} is down ({followed})"
    order = {
        "ended": 0,
        "error": 0,
        "Invalid": 1,
        "Unsupported": 1,
        "MemoryError": 1,
        "TransportFailed": 3,
        "TimedOut": 4,
    }
    worst = min(said, key=lambda one: order.get(one["kind"], 2))
    return f"lab {lab.name}: rank {worst['rank']}: {worst['fault']}" if worst["rank"] >= 0 else str(worst["fault"])


def _row(schedule: Schedule, layout: Layout, program: Program, case: Case, row: Row, beta: float, item: int) -> Row:
    seconds, predicted = row["seconds"], beta * case.nbytes
    links = _links(layout, program, case.unit, item, row["counted"])
    meant = predicted and _greatest_load(layout, links) > AT_ONCE
    return {
        "nbytes": case.nbytes, "seconds": seconds, "algbw": case.nbytes / seconds,
        "busbw": case.nbytes / seconds * busbw_factor(schedule.collective),
        "least": min(row["spent"]), "most": max(row["spent"]),
        "predicted_seconds": predicted, "ratio": seconds / predicted if meant else None, "at_once": AT_ONCE,
        "overhead": OVERHEAD, "correct": row["wrong"] == 0, "wrong": row["wrong"], "messages": row["messages"],
        "links": links,
    }  # fmt: skip


def _greatest_load(layout: Layout, links: Sequence[Row]) -> int:
    """The most bytes that one shaper must let through: of a link one way, or of a limit that several share."""
    load = {link["link"]: link["expected"] for link in links}
    shared = [
        sum(
            load.get(">".join([here, there] if funnel.outward else [there, here]), 0)
            for here, there in ((layout.space(funnel.node), layout.space(peer)) for peer in funnel.peers)
        )
        for funnel in layout.funnels
    ]
    return max([*load.values(), *shared], default=0)


def _links(layout: Layout, program: Program, unit: int, item: int, counted: Sequence[int]) -> list[Row]:
    """For each pair of neighbours and direction: payload by the program, and what was counted, headers included."""
    sends = program.kind[program.part_op] == SEND
    length = bind(program, unit).length[sends] * item
    ranks = program.ranks
    key = program.rank[program.part_op][sends] * ranks + program.peer[program.part_op][sends]
    pairs, inverse = np.unique(key, return_inverse=True)
    total = np.zeros(len(pairs), np.int64)
    np.add.at(total, inverse, length)
    expected: dict[tuple[int, int], int] = {}
    machine = layout.machine
    for pair, payload in zip(pairs.tolist(), total.tolist(), strict=True):
        for link in layout.path(*divmod(pair, ranks)) or []:
            ends = int(machine.link_src[link]), int(machine.link_dst[link])
            expected[ends] = expected.get(ends, 0) + payload
    ports = [port for port in layout.ports if port.links]
    return [
        {"link": f"{layout.space(port.node)}>{layout.space(port.peer)}",
         "expected": expected.get((port.node, port.peer), 0), "counted": number}
        for port, number in zip(ports, counted, strict=True)
    ]  # fmt: skip
