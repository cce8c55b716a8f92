"""Namespaces of the kernel: who keeps those of a lab, and how processes get into them. Linux; needs root.

A lab is one process, its keeper, that has a mount, a process and several network namespaces of its own. Names of the
network namespaces are files below /run/netns, which is a file system that only the keeper and what runs in the lab see
(`ip netns` works there). The keeper is process 1 of its process namespace: when it ends, however it ends, the kernel
ends all that runs in the lab, and takes away its namespaces with the links in them. Nothing need be cleaned up.

Runs by itself (python -I -S kernel.py), as starting it must not take long: only the standard library here.

    keep NAME                 set up what stdin says (one line of JSON); end with stdin if it is leashed
    enter KEEPER SPACE each|once COMMAND   run it in the lab: once, or once for each rank; all it started ends with it
    rank COMMAND              become COMMAND in the namespace of the rank that an MPI launcher gave this process
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

NEW_MOUNTS, NEW_NAMES, NEW_PROCESSES, NEW_NETWORK = 0x00020000, 0x04000000, 0x20000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 4096, 16384, 1 << 18, 2
_DEATH_SIGNAL = 1
SPACES = "/run/netns"
HOST = "host"  # the network namespace that launchers run in: the loopback alone
ABOUT = "/dev/shm/lab.json"  # in the lab: what processes there need to know of it
MACHINE = "/dev/shm/topology.json"  # and the machine that it is
RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK")
GRACE = 10.0  # seconds that the others have to end by themselves when one of them failed
_LOST = 127

_libc = ctypes.CDLL(None, use_errno=True)


# ---- system calls that Python 3.11 does not have ----


def _done(code: int, what: str) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _done(_libc.unshare(flags), "unshare")


def join(path: str, flag: int) -> None:
    """Go into a namespace by its file."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _done(_libc.setns(handle, flag), f"setns {path}")
    finally:
        os.close(handle)


def _mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    code = _libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None)
    _done(code, f"mount {target}")


def _name_host(name: str) -> None:
    _done(_libc.sethostname(name.encode(), len(name.encode())), "sethostname")


def die_with_parent() -> None:
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


# ---- the keeper ----


def keep() -> None:
    """Set the lab up, say its process number and `ready`, and stay."""
    told = json.loads(sys.stdin.buffer.readline())
    if told["leashed"]:
        die_with_parent()
    unshare(NEW_MOUNTS | NEW_PROCESSES | NEW_NAMES)
    child = os.fork()
    if child:
        print(f"keeper {child}", flush=True)
        if not told["leashed"]:
            return
        os.close(1)
        os.waitpid(child, 0)
        return
    if told["leashed"]:
        die_with_parent()
    try:
        _furnish(told)
    except Exception as error:
        print(f"fault {' '.join(str(error).split())}", flush=True)
        os._exit(1)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what is orphaned in the lab is ours: forgotten when it ends
    print("ready", flush=True)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2) if told["leashed"] else (0, 1, 2):
        os.dup2(nothing, stream)
    while not told["leashed"]:
        signal.pause()
    while os.read(0, 4096):
        pass
    os._exit(0)


def _furnish(told: dict[str, Any]) -> None:
    """Mounts, network namespaces and what is in them."""
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    _mount("proc", "/proc", "proc")
    _mount("tmpfs", "/dev/shm", "tmpfs")
    os.makedirs(SPACES, exist_ok=True)
    _mount("tmpfs", SPACES, "tmpfs")
    _name_host("localhost")
    with open(ABOUT, "w", encoding="utf-8") as out:
        json.dump(told["about"], out)
    with open(MACHINE, "w", encoding="utf-8") as out:
        json.dump(told["about"]["topology"], out)
    if os.path.exists("/etc/hosts"):
        with open("/dev/shm/hosts", "w", encoding="utf-8") as out:
            out.write("127.0.0.1 localhost\n" + "".join(f"{a} {name}\n" for name, a in told["about"]["hosts"].items()))
        _mount("/dev/shm/hosts", "/etc/hosts", "", _BIND)
    for name in [*told["spaces"], HOST]:  # in the last one the keeper stays
        unshare(NEW_NETWORK)
        for path, value in told["settings"].items():
            _set(f"/proc/sys/net/{path}", value)
        with open(f"{SPACES}/{name}", "w", encoding="ascii"):
            pass
        _mount("/proc/self/ns/net", f"{SPACES}/{name}", "", _BIND)
    for program, space, text in told["batches"]:
        _batch([program, *(["-n", space] if space else []), "-batch", "-"], text)


def _set(path: str, value: str) -> None:
    try:
        with open(path, "w", encoding="ascii") as out:
            out.write(value)
    except FileNotFoundError:  # a kernel without IPv6 has none of its settings
        pass


def _batch(command: Sequence[str], text: str) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        failed = [line for line in lines if line.startswith("Command failed")]
        number = int(failed[0].rpartition(":")[2]) if failed and failed[0].rpartition(":")[2].isdigit() else 0
        which = text.splitlines()[number - 1] if number else ""
        raise OSError(0, f"{' '.join(command[:-2])} {which}: {lines[0] if lines else 'failed'}")


# ---- into a lab ----


def enter(keeper: int, space: str, each: bool, command: Sequence[str]) -> int:
    """Run a command in the lab of this keeper, and come back with its exit code; all it started ends with it."""
    parent = os.getppid()
    die_with_parent()
    if os.getppid() != parent:
        return _LOST
    folder = os.getcwd()
    for what, flag in (("pid", NEW_PROCESSES), ("uts", NEW_NAMES), ("mnt", NEW_MOUNTS)):
        join(f"/proc/{keeper}/ns/{what}", flag)
    os.chdir(folder)
    join(f"{SPACES}/{space}", NEW_NETWORK)
    return _waited(_fork(_first_of_its_own, each, command))


def _fork(call: Any, *arguments: Any) -> int:
    child = os.fork()
    if child:
        return child
    code = _LOST
    try:
        die_with_parent()
        code = call(*arguments)
    except OSError as error:
        print(f"antiphon: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _waited(child: int) -> int:
    return _code(os.waitpid(child, 0)[1])


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _first_of_its_own(each: bool, command: Sequence[str]) -> int:
    """In the keeper's process namespace: one more below it, so that no process outlives the command."""
    unshare(NEW_MOUNTS | NEW_PROCESSES | NEW_NAMES)
    return _waited(_fork(_run_each if each else _run_once, command))


def _run_once(command: Sequence[str]) -> int:
    _mount("proc", "/proc", "proc")
    _see_network()
    main = _fork(_become, command)
    while True:
        child, status = os.wait()
        if child == main:
            return _code(status)


def _become(command: Sequence[str]) -> int:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        print(f"antiphon: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    return _LOST


def _run_each(command: Sequence[str]) -> int:
    """Once for each rank, in its namespace; the first exit code that is not 0, and then the others are ended."""
    _mount("proc", "/proc", "proc")
    with open(ABOUT, encoding="utf-8") as text:
        ranks = json.load(text)["ranks"]
    running = {_fork(_become_rank, rank, place, command) for place, rank in enumerate(ranks)}
    worst = 0
    while running:
        child, status = os.wait()
        if child not in running:
            continue
        running.discard(child)
        if not worst and _code(status):
            worst = _code(status)
            signal.signal(signal.SIGALRM, lambda *_, code=worst: os._exit(code))
            signal.setitimer(signal.ITIMER_REAL, GRACE)
    return worst


def _become_rank(rank: int, place: int, command: Sequence[str]) -> int:
    with open(ABOUT, encoding="utf-8") as text:
        about = json.load(text)
    os.environ.update(RANK=str(place), LOCAL_RANK="0", WORLD_SIZE=str(len(about["ranks"])))
    os.environ.setdefault("MASTER_ADDR", about["hosts"][f"r{about['ranks'][0]}"])
    os.environ.setdefault("MASTER_PORT", "29500")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", about["devices"][str(rank)])
    _move_to(rank)
    return _become([part.replace("{rank}", str(rank)) for part in command])


def _move_to(rank: int) -> None:
    join(f"{SPACES}/r{rank}", NEW_NETWORK)
    unshare(NEW_MOUNTS | NEW_NAMES)
    _name_host(f"r{rank}")
    _see_network()


def _see_network() -> None:
    """/sys/class/net is that of the namespace in which it was mounted."""
    _libc.umount2(b"/sys", _DETACH)
    with contextlib.suppress(OSError):
        _mount("sysfs", "/sys", "sysfs")


def become_rank(command: Sequence[str]) -> int:
    """What a launcher starts in place of a command."""
    found = [os.environ[name] for name in RANKS if os.environ.get(name, "").isdigit()]
    if not found:
        print(f"antiphon: no rank in the environment ({', '.join(RANKS)}): start this by mpiexec", file=sys.stderr)
        return 2
    with open(ABOUT, encoding="utf-8") as text:
        about = json.load(text)
    place = int(found[0])
    if place >= len(about["ranks"]):
        print(f"antiphon: process {place}: the lab has {len(about['ranks'])} ranks", file=sys.stderr)
        return 2
    rank = about["ranks"][place]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", about["devices"][str(rank)])
    _move_to(rank)
    return _become(command)


def started(process: int) -> str:
    """When a process began, in the kernel's ticks: together with its number this is its name. Empty: it is gone."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as text:
            fields = text.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def gone(process: int, since: str, patience: float) -> bool:
    """Wait until a process has ended."""
    end = time.monotonic() + patience
    while started(process) == since:
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
        case ["rank", *command] if command:
            return become_rank(command)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
