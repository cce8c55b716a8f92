"""Bring labs up and down, and find them: a lab lives as long as its keeper process, without other state.

`kernel.py`, started as a process, is the keeper: it creates the namespaces and holds them. A lab is found by looking
for keepers in /proc, and read from a file that the keeper shows in its own mount namespace (ABOUT). A leashed lab ends
with the process that made it; any other stays until `Lab.end`. A process number alone may be reused, so a keeper is
identified by its number and the time at which it began.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Missing, Unsupported, quote
from antiphon.runtimes.engine.launch import Failed
from antiphon.runtimes.lab.commands import SETTINGS, Batch, batches, lab_facts
from antiphon.runtimes.lab.kernel import ABOUT, start_time, wait_for_end
from antiphon.runtimes.lab.layout import LabLayout, lay_out

KERNEL = str(Path(__file__).with_name("kernel.py"))
SCRIPT = (sys.executable, "-I", "-S", KERNEL)
_END_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True)
class Lab:
    """A lab that is up."""

    name: str
    keeper: int  # the process that keeps its namespaces (kernel.py)
    began: str  # when that process began, in kernel ticks: distinguishes it from a later one with the same number
    # the facts it was made from: topology, scale, ranks, hosts, devices, owner (the process that it ends with; 0: none)
    about: dict[str, Any]
    leashed: bool  # whether it ends with the process that made it

    def layout(self) -> LabLayout:
        return lay_out(self.machine(), self.about["scale"])

    def machine(self) -> Topology:
        """Return the machine with its own bandwidths, not those of the lab."""
        from antiphon.core.serialize import loads

        topology = loads(json.dumps(self.about["topology"]).encode(), f"lab {self.name}")
        assert isinstance(topology, Topology)
        return topology

    def change(self, batches: Sequence[Batch], dead: str | None = None) -> None:
        """Run commands in the namespaces of the lab.

        `dead`: the names of the links that are down from then on, for its processes to read; None: as before.
        """
        spec = json.dumps({"batches": batches, "dead": dead}).encode() + b"\n"
        done = subprocess.run([*SCRIPT, "change", str(self.keeper)], input=spec, capture_output=True, check=False)
        if done.returncode:
            reason = " ".join(done.stderr.decode(errors="replace").split()[-20:])
            raise Failed(f"lab {self.name} was taken down" if not self.is_up() else f"lab {self.name}: {reason}")

    def is_up(self) -> bool:
        return start_time(self.keeper) == self.began

    def end(self) -> None:
        """Take the lab down; the kernel ends its processes first. Failed if the keeper does not end."""
        with contextlib.suppress(ProcessLookupError):
            if self.is_up():
                os.kill(self.keeper, signal.SIGKILL)
        if not wait_for_end(self.keeper, self.began, _END_TIMEOUT):
            raise Failed(f"lab {self.name}: its keeper, process {self.keeper}, does not end")


def need_root() -> None:
    """Raise Missing, with advice, where labs are not supported."""
    if not sys.platform.startswith("linux") or not hasattr(os, "fork"):
        raise Missing("the lab is made of network namespaces, which only Linux has: use a Linux machine, or a VM")
    if os.geteuid() != 0:
        raise Missing("the lab makes network namespaces, which needs root: start it by sudo, or in a container that "
                      "has CAP_SYS_ADMIN and CAP_NET_ADMIN")  # fmt: skip
    for program in ("ip", "tc", "bridge"):
        if shutil.which(program) is None:
            raise Missing(f"the lab is made with {program}, which is not on the PATH: install iproute2")


def name_of(topology: Topology, name: str = "") -> str:
    """Return the name of a lab: `name`, else one made from that of the machine."""
    if name and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", name):
        raise Invalid(f"name of a lab: expected up to 40 of a-z, 0-9 and -, got {quote(name)}")
    return name or re.sub(r"[^a-z0-9]+", "-", topology.name.lower()).strip("-")[:40] or "lab"


def find_labs() -> list[Lab]:
    """Return all labs that are up, by name."""
    labs = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (lab := _lab_at(int(entry.name))) is not None:
            labs.append(lab)
    return sorted(labs, key=lambda lab: lab.name)


def _lab_at(process: int) -> Lab | None:
    """Return the lab whose keeper this process is: owned by root, the first of its process namespace."""
    folder = Path(f"/proc/{process}")
    try:
        words = folder.joinpath("cmdline").read_bytes().split(b"\0")
        if b"keep" not in words or not any(word.endswith(b"kernel.py") for word in words):
            return None
        status = folder.joinpath("status").read_text(encoding="utf-8", errors="replace")
        numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
        # The keeper is process 1 of its own process namespace, and root's: others cannot pose as a lab.
        if len(numbers) < 2 or numbers[-1] != "1" or folder.stat().st_uid != 0:
            return None
        about = json.loads(Path(f"/proc/{process}/root{ABOUT}").read_text(encoding="utf-8"))
        return Lab(str(about["name"]), process, start_time(process), about, leashed=bool(about["owner"]))
    except (OSError, ValueError, KeyError):
        return None  # it has ended meanwhile, or is no lab


def find_lab(name: str) -> Lab | None:
    return next((lab for lab in find_labs() if lab.name == name), None)


def _keeper_spec(topology: Topology, layout: LabLayout, name: str, scale: str, leashed: bool) -> dict[str, Any]:
    """Return what the keeper gets on stdin: facts, names of namespaces, kernel settings and commands."""
    from antiphon.core.serialize import dumps

    about_lab = lab_facts(layout, name, scale)
    about_lab["topology"] = json.loads(dumps(topology))
    about_lab["owner"] = os.getpid() if leashed else 0  # 0: nobody, the lab stays
    return {
        "leashed": leashed, "about": about_lab, "spaces": [layout.space(node) for node in layout.nodes],
        "settings": SETTINGS, "batches": batches(layout),
    }  # fmt: skip


def bring_up(topology: Topology, scale: str, name: str, leashed: bool) -> tuple[Lab, subprocess.Popen[bytes]]:
    """Make a lab; return it with the process that was started (of a lab that is not leashed, it has ended).

    `scale`: as `lay_out` reads it. `leashed`: the lab ends when that process is stopped, or when this one ends in any
    way."""
    need_root()
    layout = lay_out(topology, scale)
    if find_lab(name) is not None:
        raise Invalid(f"there is a lab {quote(name)} already: antiphon lab down {name}, or choose another --name")
    spec = _keeper_spec(topology, layout, name, scale, leashed)
    keeper = subprocess.Popen(
        [*SCRIPT, "keep", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        process = _keeper_process(keeper, spec)
    except BaseException:
        stop_keeper(keeper)
        raise
    lab = Lab(name, process, start_time(process), spec["about"], leashed)
    # The started process ends by itself; the lab continues without it.
    if not leashed:
        keeper.wait()
        for stream in (keeper.stdin, keeper.stdout, keeper.stderr):
            assert stream is not None
            stream.close()
    return lab, keeper


def _keeper_process(keeper: subprocess.Popen[bytes], spec: dict[str, Any]) -> int:
    """Send the keeper its work and wait until it is ready. Return the process that keeps the lab."""
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    process = 0
    try:
        keeper.stdin.write(json.dumps(spec).encode() + b"\n")
        keeper.stdin.flush()
        # The keeper answers in lines: "keeper PID", then "ready" or "fault REASON".
        for line in keeper.stdout:
            word, _, rest = line.decode(errors="replace").strip().partition(" ")
            if word == "keeper":
                process = int(rest)
            elif word == "ready":
                return process
            elif word == "fault":
                raise Unsupported(f"this system cannot make the lab: {rest}")
    except BrokenPipeError:
        pass
    except BaseException:
        if process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        raise
    assert keeper.stderr is not None
    errors = " ".join(keeper.stderr.read().decode(errors="replace").split()[-20:])
    raise Unsupported(f"this system cannot make network namespaces: {errors or 'the keeper ended'}")


def stop_keeper(keeper: subprocess.Popen[bytes]) -> None:
    """End a leashed lab, and wait until it has ended."""
    if keeper.stdin is not None:
        with contextlib.suppress(OSError):
            keeper.stdin.close()
    try:
        keeper.wait(_END_TIMEOUT)
    except subprocess.TimeoutExpired:
        keeper.kill()  # the lab ends with it, by the death signal that it has asked for (kernel.py)
        keeper.wait(_END_TIMEOUT)
    for stream in (keeper.stdout, keeper.stderr):
        if stream is not None:
            stream.close()


def _network_key(layout: LabLayout) -> tuple[object, ...]:
    """Return what a lab emulates of its machine: all of `Topology.key` from ranks to limits, without names."""
    return layout.machine.key()[1:8]


@contextmanager
def ensure_lab(topology: Topology, scale: str, name: str) -> Iterator[Lab]:
    """Yield the lab of this name if one is up for this machine, else one that lasts for the block.

    A lab that lasts for another command ends with that command, together with all processes in it; so it is not shared:
    the new one is then named NAME-2, or NAME-3, ...
    """
    need_root()
    # Use the lab that is up, if it has the same machine and scale.
    existing = find_lab(name)
    if existing is not None and existing.leashed:
        used_names = {lab.name for lab in find_labs()}
        # a name has 40 characters at most (`name_of`), four of them for the number
        name = next(free for number in count(2) if (free := f"{name[:36]}-{number}") not in used_names)
    elif existing is not None:
        if _network_key(existing.layout()) != _network_key(lay_out(topology, existing.about["scale"])):
            raise Invalid(
                f"the lab {quote(name)} that is up is another machine; choose another --name, or take it down"
            )
        # without a scale any will do
        if scale and lay_out(topology, scale).speed != existing.layout().speed:
            raise Invalid(f"the lab {quote(name)} is up at scale {quote(existing.about['scale'])}; take it down first")
        yield existing
        return
    lab, keeper = bring_up(topology, scale, name, leashed=True)
    try:
        yield lab
    finally:
        stop_keeper(keeper)
