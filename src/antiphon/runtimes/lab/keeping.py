"""Bringing labs up and down, and finding those that stand: a lab is its keeper, and nothing is kept anywhere else."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Missing, Unsupported, quote
from antiphon.runtimes.engine.launch import Failed
from antiphon.runtimes.lab.commands import SETTINGS, about, batches
from antiphon.runtimes.lab.kernel import ABOUT, gone, started
from antiphon.runtimes.lab.layout import Layout, lay_out

KERNEL = str(Path(__file__).with_name("kernel.py"))
SCRIPT = (sys.executable, "-I", "-S", KERNEL)
PATIENCE = 60.0
_ENDED = 10.0


@dataclass(frozen=True)
class Lab:
    """A lab that stands: its keeper's process and when that began, and what it was made from."""

    name: str
    keeper: int
    began: str
    about: dict[str, Any]
    leashed: bool

    def layout(self) -> Layout:
        return lay_out(self.machine(), self.about["scale"])

    def machine(self) -> Topology:
        """With the bandwidths that were asked for, not those of the lab."""
        from antiphon.core.serialize import loads

        found = loads(json.dumps(self.about["topology"]).encode(), f"lab {self.name}")
        assert isinstance(found, Topology)
        return found

    def stands(self) -> bool:
        return started(self.keeper) == self.began

    def end(self) -> None:
        """Take it down; the kernel ends what runs in it first. Failed where it does not end."""
        with contextlib.suppress(ProcessLookupError):
            if self.stands():
                os.kill(self.keeper, signal.SIGKILL)
        if not gone(self.keeper, self.began, _ENDED):
            raise Failed(f"lab {self.name}: its keeper, process {self.keeper}, does not end")


def need_root() -> None:
    """Missing where labs cannot be: says what to do."""
    if not sys.platform.startswith("linux"):
        raise Missing("the lab is made of network namespaces, which only Linux has: use a Linux machine, or a VM")
    if os.geteuid() != 0:
        raise Missing("the lab makes network namespaces, which needs root: start it by sudo, or in a container that "
                      "has CAP_SYS_ADMIN and CAP_NET_ADMIN")  # fmt: skip
    for program in ("ip", "tc", "bridge"):
        if shutil.which(program) is None:
            raise Missing(f"the lab is made with {program}, which is not on the PATH: install iproute2")


def name_of(topology: Topology, given: str = "") -> str:
    """The name of a lab: as given, else that of the machine."""
    if given and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", given):
        raise Invalid(f"name of a lab: expected up to 40 of a-z, 0-9 and -, got {quote(given)}")
    return given or re.sub(r"[^a-z0-9]+", "-", topology.name.lower()).strip("-")[:40] or "lab"


def find_labs() -> list[Lab]:
    """All that stand, by name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (lab := _lab_at(int(entry.name))) is not None:
            found.append(lab)
    return sorted(found, key=lambda lab: lab.name)


def _lab_at(process: int) -> Lab | None:
    """The lab that this process keeps: one of root, the first of its process namespace."""
    folder = Path(f"/proc/{process}")
    try:
        told = folder.joinpath("cmdline").read_bytes().split(b"\0")
        if b"keep" not in told or not any(part.endswith(b"kernel.py") for part in told):
            return None
        status = folder.joinpath("status").read_text(encoding="utf-8", errors="replace")
        numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
        if len(numbers) < 2 or numbers[-1] != "1" or folder.stat().st_uid != 0:
            return None
        known = json.loads(Path(f"/proc/{process}/root{ABOUT}").read_text(encoding="utf-8"))
        return Lab(str(known["name"]), process, started(process), known, bool(known["owner"]))
    except (OSError, ValueError, KeyError):
        return None  # it ended meanwhile, or is no lab


def find_lab(name: str) -> Lab | None:
    return next((lab for lab in find_labs() if lab.name == name), None)


def _spec(topology: Topology, layout: Layout, name: str, scale: str, leashed: bool) -> dict[str, Any]:
    from antiphon.core.serialize import dumps

    known = about(layout, name, scale)
    known["topology"] = json.loads(dumps(topology))
    known["owner"] = os.getpid() if leashed else 0
    return {
        "leashed": leashed, "about": known, "spaces": [layout.space(node) for node in layout.nodes],
        "settings": SETTINGS, "batches": batches(layout),
    }  # fmt: skip


def bring_up(topology: Topology, scale: str, name: str, leashed: bool) -> tuple[Lab, subprocess.Popen[bytes]]:
    """Make a lab. Leashed: it ends when the process that comes back is stopped, or when this one ends in any way."""
    need_root()
    layout = lay_out(topology, scale)
    if find_lab(name) is not None:
        raise Invalid(f"there is a lab {quote(name)} already: antiphon lab down {name}, or choose another --name")
    spec = _spec(topology, layout, name, scale, leashed)
    keeper = subprocess.Popen(
        [*SCRIPT, "keep", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        process = _keeper_process(keeper, spec)
    except BaseException:
        stop(keeper)
        raise
    lab = Lab(name, process, started(process), spec["about"], leashed)
    if not leashed:
        keeper.wait()
        for stream in (keeper.stdin, keeper.stdout, keeper.stderr):
            assert stream is not None
            stream.close()
    return lab, keeper


def _keeper_process(keeper: subprocess.Popen[bytes], spec: dict[str, Any]) -> int:
    """Hand it the work, and hear that it is done: the process that keeps the lab."""
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    process = 0
    try:
        keeper.stdin.write(json.dumps(spec).encode() + b"\n")
        keeper.stdin.flush()
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
    said = " ".join(keeper.stderr.read().decode(errors="replace").split()[-20:])
    raise Unsupported(f"this system cannot make network namespaces: {said or 'the keeper ended'}")


def stop(keeper: subprocess.Popen[bytes]) -> None:
    """Let go of a leashed lab, and wait until it is gone."""
    if keeper.stdin is not None:
        with contextlib.suppress(OSError):
            keeper.stdin.close()
    try:
        keeper.wait(_ENDED)
    except subprocess.TimeoutExpired:
        keeper.kill()  # and by its death signal what it keeps
        keeper.wait(_ENDED)
    for stream in (keeper.stdout, keeper.stderr):
        if stream is not None:
            stream.close()


@contextmanager
def standing(topology: Topology, scale: str, name: str) -> Iterator[Lab]:
    """The lab of this name if one stands for this machine, else one for as long as the block takes."""
    need_root()
    there = find_lab(name)
    if there is not None:
        if there.layout().machine.key()[1:8] != lay_out(topology, there.about["scale"]).machine.key()[1:8]:
            raise Invalid(
                f"the lab {quote(name)} that is up is another machine; choose another --name, or take it down"
            )
        if scale and lay_out(topology, scale).speed != there.layout().speed:
            raise Invalid(f"the lab {quote(name)} is up at scale {quote(there.about['scale'])}; take it down first")
        yield there
        return
    lab, keeper = bring_up(topology, scale, name, leashed=True)
    try:
        yield lab
    finally:
        stop(keeper)
