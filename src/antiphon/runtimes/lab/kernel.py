"""Linux namespaces of a lab: the process that keeps them, and how other processes enter them. Needs root.

A lab is one process, its keeper, that has a mount, a process and several network namespaces of its own. Names of the
network namespaces are files below /run/netns, a file system that is visible only to the keeper and in the lab (`ip
netns` works there). The keeper is process 1 of its process namespace: when it ends in any way, the kernel ends all
processes of the lab and removes its namespaces with their links. Nothing needs to be cleaned up.

A lab is *leashed* if it belongs to the process that made it and ends with that process (antiphon's own runs); else it
stays until `lab down`. `place`: the number of a process in the job, from 0. `rank`: its number in the machine, which
differs if the job uses only some of the ranks.

keeping.py runs it as a script (python -I -S kernel.py), to start quickly: only the standard library here. KEEPER is the
keeper's process number.

    keep NAME                 set up the lab on stdin (one line of JSON); end with stdin if it is leashed. NAME is not
                              read: by it `ps` shows which lab this is
    enter KEEPER SPACE each|once COMMAND   once: run COMMAND in network namespace SPACE of the lab; each: run it for
                              every rank of the job, in that rank's namespace
    change KEEPER             run the commands on stdin (one line of JSON) in the lab, and record the dead links there
    rank COMMAND              become COMMAND in the namespace of the rank that an MPI launcher gave this process
    host rN COMMAND           run a shell command in the namespace of rank N, as ssh would on a host of this name
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

# Flags of unshare(2) and setns(2), as in <linux/sched.h>
CLONE_NEWNS = 0x00020000  # mounts
CLONE_NEWUTS = 0x04000000  # the name of the host
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 4096, 16384, 1 << 18, 2  # MS_* of mount(2), MNT_DETACH of umount2(2)
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
SPACES = "/run/netns"
HOST = "host"  # the network namespace of launchers: only the loopback
ABOUT = "/dev/shm/lab.json"  # in the lab: facts for its processes
MACHINE = "/dev/shm/topology.json"  # in the lab: its machine
SETTINGS = "/dev/shm/mca"  # in the namespace of a host: parameters of Open MPI
SESSIONS = "/dev/shm/sessions"  # in the lab: temporary files of Open MPI's launcher, a file system for each command
DEAD = "/dev/shm/dead"  # in the lab: the names of links that were cut
# variables in which launchers pass a process its number
RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK")
GRACE = 10.0  # seconds for the other ranks to end after one has failed
_NOT_STARTED = 127  # exit code

# Windows has no C library by this name, but imports this module
_libc: ctypes.CDLL = ctypes.CDLL(None, use_errno=True) if hasattr(os, "fork") else ctypes.pythonapi


# ---- system calls that Python 3.11 does not have ----


def _check_call(code: int, call: str) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check_call(_libc.unshare(flags), "unshare")


def join_namespace(path: str, flag: int) -> None:
    """Enter the namespace of this file."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check_call(_libc.setns(handle, flag), f"setns {path}")
    finally:
        os.close(handle)


def _mount_filesystem(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    code = _libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None)
    _check_call(code, f"mount {target}")


def _name_host(name: str) -> None:
    _check_call(_libc.sethostname(name.encode(), len(name.encode())), "sethostname")


def die_with_parent() -> None:
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


# ---- the keeper ----


def keep() -> None:
    """Set up the lab, print the keeper's process number and `ready`, and stay.

    The line on stdin is that of keeping._keeper_spec. `leashed`: see above; `about`: the content of ABOUT; `spaces`:
    network namespaces to create, with the `settings` below /proc/sys/net; `batches`: commands to run in them."""
    spec = json.loads(sys.stdin.buffer.readline())
    if spec["leashed"]:
        die_with_parent()
    unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS)
    child = os.fork()
    if child:
        print(f"keeper {child}", flush=True)
        if not spec["leashed"]:
            return
        os.close(1)  # so that the reader of the pipe sees its end when the keeper, `child`, ends
        os.waitpid(child, 0)
        return
    if spec["leashed"]:
        die_with_parent()
    try:
        _set_up(spec)
    except Exception as error:
        print(f"fault {' '.join(str(error).split())}", flush=True)
        os._exit(1)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans in the lab are ours: reaped automatically
    print("ready", flush=True)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2) if spec["leashed"] else (0, 1, 2):  # a leashed lab reads stdin below
        os.dup2(null, stream)
    while not spec["leashed"]:
        signal.pause()
    while os.read(0, 4096):  # until the owner of a leashed lab closes the pipe
        pass
    os._exit(0)


def _set_up(spec: dict[str, Any]) -> None:
    """Create mounts, network namespaces and their content."""
    _mount_filesystem("none", "/", kind="", flags=_RECURSIVE | _PRIVATE)  # mounts below are not seen outside the lab
    _mount_filesystem("proc", "/proc", "proc")
    _mount_filesystem("tmpfs", "/dev/shm", "tmpfs")
    os.makedirs(SPACES, exist_ok=True)
    _mount_filesystem("tmpfs", SPACES, "tmpfs")
    _name_host("localhost")
    with open(ABOUT, "w", encoding="utf-8") as out:
        json.dump(spec["about"], out)
    with open(MACHINE, "w", encoding="utf-8") as out:
        json.dump(spec["about"]["topology"], out)
    if os.path.exists("/etc/hosts"):
        with open("/dev/shm/hosts", "w", encoding="utf-8") as out:
            out.write("127.0.0.1 localhost\n" + "".join(f"{a} {name}\n" for name, a in spec["about"]["hosts"].items()))
        _mount_filesystem("/dev/shm/hosts", "/etc/hosts", kind="", flags=_BIND)
    # create each network namespace by unsharing, and bind it to a name, so that it outlives the switch to the next
    for name in [*spec["spaces"], HOST]:  # the keeper stays in the last one
        unshare(CLONE_NEWNET)
        for path, value in spec["settings"].items():
            _write_setting(f"/proc/sys/net/{path}", value)
        with open(f"{SPACES}/{name}", "w", encoding="ascii"):
            pass
        _mount_filesystem("/proc/self/ns/net", f"{SPACES}/{name}", kind="", flags=_BIND)
    # thousands of commands: one process of `ip -batch` per namespace, not one per command
    for program, space, text in spec["batches"]:  # ip, tc or bridge; its namespace or ""; its commands
        _run_batch([program, *(["-n", space] if space else []), "-batch", "-"], text)


def _write_setting(path: str, value: str) -> None:
    try:
        with open(path, "w", encoding="ascii") as out:
            out.write(value)
    except FileNotFoundError:  # a kernel without IPv6 lacks its settings
        pass


def _run_batch(command: Sequence[str], text: str) -> None:
    """Run a program (ip, tc, bridge) with its commands on stdin. OSError names the command that failed."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        failed = [line for line in lines if line.startswith("Command failed")]
        # "Command failed -:LINE" names the line of the batch
        number = int(failed[0].rpartition(":")[2]) if failed and failed[0].rpartition(":")[2].isdigit() else 0
        failed_line = text.splitlines()[number - 1] if number else ""
        raise OSError(0, f"{' '.join(command[:-2])} {failed_line}: {lines[0] if lines else 'failed'}")


# ---- into a lab ----


def change(keeper: int) -> int:
    """Run batches of commands in the namespaces of a lab, after writing the names of dead links to DEAD."""
    spec = json.loads(sys.stdin.buffer.readline())
    join_namespace(f"/proc/{keeper}/ns/mnt", CLONE_NEWNS)
    try:
        if spec["dead"] is not None:
            with open(f"{DEAD}.new", "w", encoding="utf-8") as out:
                out.write(spec["dead"])
            os.replace(f"{DEAD}.new", DEAD)
        for program, space, text in spec["batches"]:
            _run_batch([program, "-n", space, "-batch", "-"], text)
    except OSError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


def enter(keeper: int, space: str, each: bool, command: Sequence[str]) -> int:
    """Run a command in the lab of this keeper; return its exit code. Its processes end with it."""
    parent = os.getppid()
    die_with_parent()
    if os.getppid() != parent:  # it ended before `die_with_parent` took effect
        return _NOT_STARTED
    # joining a mount namespace changes the working directory to its root
    folder = os.getcwd()
    # the pid namespace applies to children only, hence the fork below
    for namespace, flag in (("pid", CLONE_NEWPID), ("uts", CLONE_NEWUTS), ("mnt", CLONE_NEWNS)):
        join_namespace(f"/proc/{keeper}/ns/{namespace}", flag)
    os.chdir(folder)
    join_namespace(f"{SPACES}/{space}", CLONE_NEWNET)
    return _wait_for(_fork_into(_in_own_process_namespace, each, command))


def _fork_into(call: Any, *arguments: Any) -> int:
    """Call a function in a child process, which ends with its result as exit code; return the child."""
    child = os.fork()
    if child:
        return child
    code = _NOT_STARTED
    try:
        die_with_parent()
        code = call(*arguments)
    except OSError as error:
        print(f"antiphon: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _wait_for(child: int) -> int:
    return _exit_code(os.waitpid(child, 0)[1])


def _exit_code(status: int) -> int:
    """Return the exit code of a wait status, as shells give it: 128 + the signal's number."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _in_own_process_namespace(each: bool, command: Sequence[str]) -> int:
    """Create a process namespace below the keeper's, so that no process outlives the command."""
    unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS)
    return _wait_for(_fork_into(_run_each if each else _run_once, command))


def _run_once(command: Sequence[str]) -> int:
    """Run a command as a child; return its exit code."""
    _mount_filesystem("proc", "/proc", "proc")
    # Folders of Open MPI's launcher are named by host and process, which are the same in the next run. The kernel frees
    # this file system with the mounts of this process, however it ends.
    os.makedirs(SESSIONS, exist_ok=True)
    _mount_filesystem("tmpfs", SESSIONS, "tmpfs")
    _see_network()
    command_process = _fork_into(_exec_command, command)
    while True:
        child, status = os.wait()
        # as process 1 of its namespace it also reaps orphans
        if child == command_process:
            return _exit_code(status)


def _exec_command(command: Sequence[str]) -> int:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        print(f"antiphon: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    return _NOT_STARTED


def _run_each(command: Sequence[str]) -> int:
    """Run a command for each rank, in its namespace. Return the first exit code but 0, after ending the others."""
    _mount_filesystem("proc", "/proc", "proc")
    with open(ABOUT, encoding="utf-8") as text:
        ranks = json.load(text)["ranks"]
    running = {_fork_into(_become_rank, rank, place, command) for place, rank in enumerate(ranks)}
    exit_code = 0
    while running:
        child, status = os.wait()
        if child not in running:
            continue
        running.discard(child)
        # the first failure decides the exit code; the others get GRACE seconds to end by themselves
        if not exit_code and _exit_code(status):
            exit_code = _exit_code(status)
            # this is process 1 of its namespace: when it exits, the kernel ends the others
            signal.signal(signal.SIGALRM, lambda *_, code=exit_code: os._exit(code))
            signal.setitimer(signal.ITIMER_REAL, GRACE)
    return exit_code


def _become_rank(rank: int, place: int, command: Sequence[str]) -> int:
    """Set PyTorch's environment variables for a rank, enter its namespace, and become the command."""
    with open(ABOUT, encoding="utf-8") as text:
        about = json.load(text)
    os.environ.update(RANK=str(place), LOCAL_RANK="0", WORLD_SIZE=str(len(about["ranks"])))
    os.environ.setdefault("MASTER_ADDR", about["hosts"][f"r{about['ranks'][0]}"])
    os.environ.setdefault("MASTER_PORT", "29500")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", about["devices"][str(rank)])
    _move_to(rank)
    return _exec_command([word.replace("{rank}", str(rank)) for word in command])


def _move_to(rank: int) -> None:
    """Enter the network namespace of a rank, with its host name."""
    join_namespace(f"{SPACES}/r{rank}", CLONE_NEWNET)
    unshare(CLONE_NEWNS | CLONE_NEWUTS)
    _name_host(f"r{rank}")
    _see_network()


def _see_network() -> None:
    """Mount /sys again: /sys/class/net is that of the namespace in which it was mounted."""
    _libc.umount2(b"/sys", _DETACH)
    with contextlib.suppress(OSError):
        _mount_filesystem("sysfs", "/sys", "sysfs")


def become_rank(command: Sequence[str]) -> int:
    """Become a command that a launcher starts, in the namespace of its rank."""
    numbers = [os.environ[name] for name in RANKS if os.environ.get(name, "").isdigit()]
    if not numbers:
        print(f"antiphon: no rank in the environment ({', '.join(RANKS)}): start this by mpiexec", file=sys.stderr)
        return 2
    with open(ABOUT, encoding="utf-8") as text:
        about = json.load(text)
    place = int(numbers[0])
    if place >= len(about["ranks"]):
        print(f"antiphon: process {place}: the lab has {len(about['ranks'])} ranks", file=sys.stderr)
        return 2
    rank = about["ranks"][place]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", about["devices"][str(rank)])
    _move_to(rank)
    return _exec_command(command)


def become_host(host: str, words: Sequence[str]) -> int:
    """Become the shell command that these words form, in the namespace of a rank that is named like its host.

    There SETTINGS limits Open MPI to one device: all devices of a rank have the same address, by which Open MPI would
    take a connection for that of another device, and wait for ever.
    """
    rank = host.removeprefix("r")
    _move_to(int(rank))
    with open(ABOUT, encoding="utf-8") as text:
        device = json.load(text)["devices"][rank]
    own_settings = f"{SETTINGS}.{host}"
    with open(own_settings, "w", encoding="ascii") as out:
        out.write(f"btl_tcp_if_include = {device}\n")
    # the mount point: a new file, or, where r0 started this process, the file of r0
    with open(SETTINGS, "a", encoding="ascii"):
        pass
    _mount_filesystem(own_settings, SETTINGS, kind="", flags=_BIND)
    return _exec_command(["/bin/sh", "-c", " ".join(words)])


def start_time(process: int) -> str:
    """Return when a process began, in kernel ticks; "" if it has ended. With its number that identifies a process."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as text:
            fields = text.read().rpartition(")")[2].split()  # of proc_pid_stat(5), from field 3 on; 22: the start
    except OSError:
        return ""
    state, started = fields[0], fields[19]
    return "" if state in "ZX" else started  # zombie or dead


def wait_for_end(process: int, began: str, timeout: float) -> bool:
    """Wait until a process has ended; False after the timeout."""
    end = time.monotonic() + timeout
    while start_time(process) == began:
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def main(arguments: Sequence[str]) -> int:
    match list(arguments):
        case ["keep", _]:
            keep()
            return 0
        case ["enter", keeper, space, how, *command] if command:
            return enter(int(keeper), space, how == "each", command)
        case ["change", keeper]:
            return change(int(keeper))
        case ["rank", *command] if command:
            return become_rank(command)
        case ["host", host, *words] if words:
            return become_host(host, words)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
