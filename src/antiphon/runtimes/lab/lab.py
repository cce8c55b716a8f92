"""The emulated cluster: a machine's links as rate-limited network devices between namespaces (docs/lab.md).

Each rank and switch of the machine is a network namespace of Linux, each link a pair of virtual Ethernet devices whose
rates are the machine's times `scale`. Below are the operations of `antiphon lab`: up, down, status, cut, run.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple

from antiphon.core.topology import Topology
from antiphon.errors import Invalid, unknown
from antiphon.runtimes.engine.launch import Failed
from antiphon.runtimes.engine.watched import count_calls
from antiphon.runtimes.lab.commands import bits, cut_batches, route_batches
from antiphon.runtimes.lab.foreign import run_foreign
from antiphon.runtimes.lab.keeping import Lab, bring_up, ensure_lab, find_lab, find_labs, name_of, need_root
from antiphon.runtimes.measure.case import Row
from antiphon.topologies.degraded import failure_name, pair_of

REROUTE = 3.0  # seconds until the network knows paths around a cut link, as routing protocols take
POLL = 0.01  # seconds between two checks for cuts that are due


class LinkCut(NamedTuple):
    """A link that is cut during a run: once these seconds have passed and some process has made so many collective
    calls."""

    link: str
    seconds: float = 0.0
    calls: int = 0


def lab_up(topology: Topology, scale: str = "", name: str = "") -> Row:
    """Make a lab that stays until `lab_down`; return its row of `lab_status`.

    `scale`: what `lay_out` (layout.py) reads, such as "2Mbit per GB/s"; "": its default.
    """
    lab, _ = bring_up(topology, scale, name_of(topology, name), leashed=False)
    return lab_row(lab)


def lab_down(name: str = "", every: bool = False) -> list[str]:
    """Take down the lab of this name, the only one, or every lab; return their names."""
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
    """Return a row for each lab that is up."""
    need_root()
    return [lab_row(lab) for lab in find_labs()]


def lab_names() -> list[str]:
    """Return the names of the labs that stay up, which commands may share."""
    return [lab.name for lab in find_labs() if not lab.leashed]


def lab_row(lab: Lab) -> Row:
    """Return the facts of a lab that `lab_status` shows; rates in bits per second."""
    layout = lab.layout()
    slowest, fastest = (pick(port.rate for port in layout.ports if port.rate is not None) for pick in (min, max))
    owner = int(lab.about["owner"])  # the process that the lab ends with; 0: none
    return {
        "name": lab.name, "topology": lab.about["topology"]["name"], "ranks": len(layout.ranks),
        "namespaces": len(layout.nodes), "links": len(layout.cables),
        "scale": float(layout.speed), "slowest": bits(slowest), "fastest": bits(fastest),
        "reachable": layout.connected(), "keeper": lab.keeper, "owner": owner or None,
    }  # fmt: skip


def lab_cut(name: str, links: Sequence[str]) -> Row:
    """Take these links of a lab down and bring all others up; after REROUTE seconds all ranks have paths around them.

    Links are named as in `topology degrade`. Returns the names of the links that are down, and whether all ranks reach
    each other."""
    need_root()
    return _cut_links(_the_lab(name), links)


def _cut_links(lab: Lab, links: Sequence[str]) -> Row:
    """Cut these links and bring all others up; see `lab_cut`."""
    layout, machine = lab.layout(), lab.machine()
    names = [failure_name(machine, link) for link in links]
    for text in names:
        if ":" in text:
            raise Invalid(f"link {text}: a lab cuts whole links; leave out the number of wires")
    dead = [pair_of(machine, text) for text in names]
    remaining_layout = layout.without(dead)
    lab.change(cut_batches(layout, dead), ",".join(names))
    if dead:
        time.sleep(REROUTE)
    lab.change(route_batches(remaining_layout))
    return {"name": lab.name, "dead": names, "reachable": remaining_layout.connected()}


@contextmanager
def _cuts_in_time(lab: Lab, cuts: Sequence[LinkCut]) -> Iterator[dict[str, str]]:
    """Cut links when they are due while the block runs; yield the settings by which the program's calls are counted."""
    stopped, began, waiting = threading.Event(), time.monotonic(), list(cuts)

    def cut_links() -> None:
        links: list[str] = []  # all that are due so far: `_cut_links` brings all others up
        while waiting and not stopped.wait(POLL):
            calls = count_calls(folder, began) if any(cut.calls for cut in waiting) else 0
            due = [cut for cut in waiting if began + cut.seconds <= time.monotonic() and cut.calls <= calls]
            for cut in due:
                waiting.remove(cut)
                links.append(cut.link)
            with suppress(Failed):  # the lab has ended
                if due:
                    _cut_links(lab, links)

    with tempfile.TemporaryDirectory() as temporary:
        folder = os.environ.get("ANTIPHON_WATCH") or temporary
        thread = threading.Thread(target=cut_links)
        thread.start()
        try:
            yield {"ANTIPHON_WATCH": folder} if any(cut.calls for cut in cuts) else {}
        finally:
            stopped.set()
            thread.join()
    for cut in waiting:
        print(f"antiphon: {cut.link} was not cut: the program had ended", file=sys.stderr)


def lab_command(
    where: Topology | str, command: Sequence[str], *, scale: str = "", name: str = "", timeout: float = 600.0,
    quiet: bool = False, cuts: Sequence[LinkCut] = (),
) -> Row:  # fmt: skip
    """Run a program in the lab of a machine, or in the lab of this name ("": the only one that is up).

    For a machine without a lab one is made, which ends with the program. `scale`: as of `lab_up`. `name`: of the
    machine's lab; "": the machine's name. A command that begins with mpiexec is one MPI program, else it is started
    once for each rank with the environment variables of PyTorch. `quiet`: its output goes to stderr. `cuts`: links to
    cut while it runs. Returns its exit code and time.
    """
    need_root()
    # A name: the lab must be up. A machine: use its lab, or make one for this command.
    with (
        nullcontext(_the_lab(where))
        if isinstance(where, str)
        else ensure_lab(where, scale, name_of(where, name)) as lab
    ):
        for cut in cuts:
            failure_name(lab.machine(), cut.link)  # an error now, not in the middle of the run
        with _cuts_in_time(lab, cuts) as settings:
            code, seconds = run_foreign(lab, command, timeout, quiet, settings)
    return {"command": list(command), "exit_code": code, "seconds": seconds}


def _the_lab(name: str) -> Lab:
    """Return the lab of this name, or the only one; Invalid if there is none."""
    labs = find_labs()
    if not name and len(labs) == 1:
        return labs[0]
    lab = find_lab(name)
    if lab is None:
        listed = ", ".join(lab.name for lab in labs)
        raise Invalid(f"name a machine, or one of the labs that are up: {listed}" if labs else "no lab is up: name a "
                      "machine, or antiphon lab up TOPO first")  # fmt: skip
    return lab
