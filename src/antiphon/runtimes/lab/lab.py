"""The emulated cluster: a machine's links as rate-limited network devices between namespaces (docs/lab.md).

Each rank and switch of the machine is a network namespace of Linux, each link a pair of virtual Ethernet devices whose
rates are in proportion to the machine's (`scale`). Below are the operations of `antiphon lab`: up, down, status, run.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.core.topology import Topology
from antiphon.errors import Invalid, unknown
from antiphon.runtimes.lab.commands import bits
from antiphon.runtimes.lab.foreign import run_foreign
from antiphon.runtimes.lab.keeping import Lab, bring_up, ensure_lab, find_lab, find_labs, name_of, need_root
from antiphon.runtimes.measure.case import Row


def lab_up(topology: Topology, scale: str = "", name: str = "") -> Row:
    """Make a lab that stays until `lab_down`; return its row of `lab_status`."""
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
    return [lab.name for lab in find_labs()]


def lab_row(lab: Lab) -> Row:
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

    By mpiexec it is one MPI program (MPICH's), else it is started once for each rank with the environment variables of
    PyTorch. Returns its exit code and time.
    """
    need_root()
    # A name: the lab must be up. A machine: use its lab, or make one for this command.
    if isinstance(where, str):
        code, seconds = run_foreign(_the_lab(where), command, timeout, quiet)
    else:
        with ensure_lab(where, scale, name_of(where, name)) as lab:
            code, seconds = run_foreign(lab, command, timeout, quiet)
    return {"command": list(command), "exit_code": code, "seconds": seconds}


def _the_lab(name: str) -> Lab:
    labs = find_labs()
    if not name and len(labs) == 1:
        return labs[0]
    lab = find_lab(name)
    if lab is None:
        listed = ", ".join(lab.name for lab in labs)
        raise Invalid(f"name a machine, or one of the labs that are up: {listed}" if labs else "no lab is up: name a "
                      "machine, or antiphon lab up TOPO first")  # fmt: skip
    return lab
