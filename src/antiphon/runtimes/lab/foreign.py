"""Run unmodified programs in a lab: once for each rank, or by an MPI launcher.

`antiphon lab run TOPO -- python train.py` starts the program once per rank, each in its namespace. A launcher
(`mpiexec -n 4 ./a.out`) is started once. `with_entrance` puts `kernel.py rank` in front of the program that it starts,
which moves each process to the namespace of its rank. With other launchers, or several programs, the user marks the
places by "{enter}".
Open MPI's launcher needs a daemon beside its processes: it runs on the host of the first rank, takes the ranks for
hosts and starts a daemon on each by `kernel.py host` in place of ssh (`on_hosts`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from antiphon.errors import Invalid, Missing, TimedOut
from antiphon.runtimes.engine.launch import Failed
from antiphon.runtimes.lab.keeping import SCRIPT, Lab
from antiphon.runtimes.lab.kernel import DEAD, HOST, SESSIONS, wait_for_end
from antiphon.runtimes.lab.kernel import MACHINE as MACHINE_FILE
from antiphon.runtimes.lab.kernel import SETTINGS as OPEN_MPI_SETTINGS
from antiphon.runtimes.serve.auto_question import MACHINE as MACHINE_VARIABLE
from antiphon.runtimes.serve.auto_question import RANKS as RANKS_VARIABLE
from antiphon.units import format_seconds

ENTER = "{enter}"
LAUNCHERS = ("mpiexec", "mpirun", "mpiexec.hydra")
# Messages go by TCP: MPICH and its derivatives even if all processes seem to be on one host, and Open MPI
SETTINGS = {
    "MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "all", "FI_PROVIDER": "tcp",
    "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "PRTE_MCA_plm_ssh_agent": " ".join([*SCRIPT, "host"]),
    "PRTE_MCA_prte_tmpdir_base": SESSIONS,
    "PRTE_MCA_rmaps_default_mapping_policy": "node",  # one process per rank, also with --oversubscribe
    "OMPI_MCA_mca_base_param_files": OPEN_MPI_SETTINGS,
    "OMPI_MCA_mpi_yield_when_idle": "1",  # the ranks share this computer's cores
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",  # a lab needs root
    "ANTIPHON_ANYWHERE": "1",  # every rank has its own host name here
    "ANTIPHON_SHARED": "0",  # all bytes cross the links
    "ANTIPHON_DEAD": f"@{DEAD}",  # tables with plans for failures follow `lab cut`
}  # fmt: skip
_ARGUMENT_COUNTS = {  # options of Hydra before the program, with the number of their arguments
    **dict.fromkeys(("genv", "env"), 2),
    **dict.fromkeys(
        ("n", "np", "ppn", "f", "hosts", "host", "wdir", "iface", "launcher", "bind-to", "map-by", "rmk", "genvlist",
         "envlist", "configfile", "machinefile", "path", "info-key", "perhost", "hostfile"), 1),
    **dict.fromkeys(("l", "verbose", "genvall", "genvnone", "envall", "envnone", "prepend-rank",
                    "print-all-exitcodes"), 0),
}  # fmt: skip


def with_entrance(command: Sequence[str], ranks: int = 0) -> tuple[list[str], bool]:
    """Return the command to start, `kernel.py rank` included, and whether to start it once for each rank.

    Invalid if the program's place is ambiguous, or if the command requests more processes than the lab has `ranks` (0:
    unlimited)."""
    entrance = [*SCRIPT, "rank"]
    if ENTER in command:
        return [argument for word in command for argument in (entrance if word == ENTER else [word])], False
    first = _find_launcher(command)
    if Path(command[first]).name not in LAUNCHERS:
        return list(command), True
    index = first + 1
    while index < len(command) and command[index].startswith("-"):
        name = command[index].lstrip("-")
        if name not in _ARGUMENT_COUNTS:
            raise Invalid(f"{command[first]} {command[index]}: write {ENTER} before the program that it is to start")
        count = command[index + 1] if name in ("n", "np") and index + 1 < len(command) else ""
        if ranks and count.isdecimal() and int(count) > ranks:
            raise Invalid(f"{command[first]} {command[index]} {count}: the lab has {ranks} ranks, one for each process")
        index += 1 + _ARGUMENT_COUNTS[name]
    if index >= len(command):
        raise Invalid(f"{command[first]}: no program to start behind its options")
    if ":" in command[index:]:
        raise Invalid(f"{command[first]} with several programs: write {ENTER} before each")
    return [*command[:index], *entrance, *command[index:]], False


def on_hosts(command: Sequence[str], ranks: Sequence[int]) -> list[str]:
    """Return the command that starts Open MPI's launcher on the first rank's host, with the ranks as its hosts."""
    index = _find_launcher(command) + 1
    hosts = ",".join(f"r{rank}:1" for rank in ranks)
    start = shlex.join(["exec", *command[:index], "--host", hosts, *command[index:]])
    return [*SCRIPT, "host", f"r{ranks[0]}", start]


def _find_launcher(command: Sequence[str]) -> int:
    """Return the index of the launcher: 0, or after `env A=1 B=2`."""
    index = 0
    if Path(command[0]).name == "env":
        # the first word that assigns nothing; options of env end up there, too, and are no launcher
        index = next((i for i, word in enumerate(command) if i and ("=" not in word or word[0] == "-")), 0)
    return index


def run_foreign(
    lab: Lab,
    command: Sequence[str],
    timeout: float = 600.0,
    quiet: bool = False,
    added_settings: Mapping[str, str] | None = None,
) -> tuple[int, float]:
    """Run a command; return its exit code and seconds. Its output goes to stdout, or to stderr if `quiet`.

    `added_settings`: further environment variables, unless they are set.

    Its processes end with it, and when this process ends. TimedOut after `timeout`.
    """
    if not command:
        raise Invalid("no command: antiphon lab run TOPO -- COMMAND ...")
    ranks = lab.about["ranks"]
    launcher = command[_find_launcher(command)]
    if Path(launcher).name in LAUNCHERS and _is_open_mpi(launcher):
        if ENTER in command:
            raise Invalid(f"{launcher} is Open MPI's, which starts its processes at the ranks: leave out {ENTER}")
        started_command, each = on_hosts(command, ranks), False
    else:
        started_command, each = with_entrance(command, len(ranks))
    settings = SETTINGS if MACHINE_VARIABLE in os.environ else {**SETTINGS, **_describe_machine(lab)}
    environment = {**settings, **(added_settings or {}), **os.environ}
    began = time.monotonic()
    # kernel.py's words: the keeper of the lab, the namespace to begin in, and whether to start once for each rank
    process = subprocess.Popen(
        [*SCRIPT, "enter", str(lab.keeper), HOST, "each" if each else "once", *started_command], env=environment,
        stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno() if quiet else None, start_new_session=True,
    )  # fmt: skip
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise TimedOut(f"{command[0]} was not done within {format_seconds(timeout)}; give --timeout more") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # 127: the command did not start, or the lab was taken down, whose keeper ends after all other processes
    if code == 127 and (not lab.is_up() or wait_for_end(lab.keeper, lab.began, timeout=0.3)):
        raise Failed(f"lab {lab.name} was taken down during the run")
    return code, time.monotonic() - began


def _describe_machine(lab: Lab) -> dict[str, str]:
    """Return the machine for table `auto`: nothing can be probed in a lab."""
    return {MACHINE_VARIABLE: MACHINE_FILE, RANKS_VARIABLE: ",".join(map(str, lab.about["ranks"]))}


def _is_open_mpi(program: str) -> bool:
    try:
        version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        raise Missing(f"{program}: no such program; pip install mpich brings an mpiexec") from None
    except (OSError, subprocess.TimeoutExpired):
        return False
    # Open MPI 4 calls its launcher OpenRTE
    return "open mpi" in version.stdout.lower() or "openrte" in version.stdout.lower()
