"""Messages by each wire between two processes, in turn: on this host, and in a lab by one network and by two.

Run: python bench/bench_wires.py [here] [lab]   (lab: as root). A message is half of a broadcast there and one back, in
calls of `antiphon.comm`; medians of 21 rounds, of what it takes and of the processor time of both processes. In the lab
two ranks have a link each to two switches, 80 Mbit/s wide: two networks.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _common
import numpy as np

import antiphon
from antiphon.core.topology import LinkType, both_ways, build

ROUNDS = 21
HERE = {  # $ANTIPHON_WIRE and $ANTIPHON_INTERFACE
    "sockets": ("sockets", "lo"),
    "sockets, two connections": ("sockets", "lo,lo"),
    "fabric:tcp": ("fabric:tcp:lo", "lo"),
    "fabric:tcp, two cards": ("fabric:tcp:lo,lo", "lo"),
}
LAB = {
    "sockets": ("sockets", "s0"),
    "sockets, two networks": ("sockets", "s0,s1"),
    "fabric:tcp": ("fabric:tcp:s0", "s0"),
    "fabric:tcp, two networks": ("fabric:tcp:s0,s1", "s0"),
}
SIZES = {8: 20, 1 << 16: 20, 8 << 20: 1}  # bytes, and messages of a round


def process(rank: int, address: str, wires: dict[str, tuple[str, str]]) -> None:
    """What one process does; process 0 prints its rows."""
    made = {}
    host, port = address.rsplit(":", 1)
    for number, (name, (wire, interface)) in enumerate(wires.items()):
        os.environ.update(ANTIPHON_WIRE=wire, ANTIPHON_INTERFACE=interface)
        made[name] = antiphon.comm(
            rank=rank, ranks=2, address=f"{host}:{int(port) + number}", secret="0123456789abcdef"
        )
    rows = []
    for nbytes, calls in SIZES.items():
        data = np.zeros(nbytes, np.uint8)
        spent: dict[str, list[float]] = {name: [] for name in made}
        worked: dict[str, list[float]] = {name: [] for name in made}
        for turn in range(ROUNDS + 1):
            for name, comm in made.items():
                comm.allreduce(np.zeros(1))
                began, before = time.perf_counter(), time.process_time()
                for _ in range(calls):
                    comm.broadcast(data, 0)
                    comm.broadcast(data, 1)
                wall, cpu = time.perf_counter() - began, time.process_time() - before
                both = comm.allreduce(np.array([cpu]))[0]
                if turn:
                    spent[name].append(wall / calls / 2)
                    worked[name].append(both / calls / 2)
        for name in made:
            rows.append({"wire": name, "nbytes": nbytes, "seconds": statistics.median(spent[name]),
                         "processor_seconds": statistics.median(worked[name])})  # fmt: skip
    for comm in made.values():
        comm.close()
    if rank == 0:
        print(json.dumps(rows), flush=True)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def here() -> list[dict[str, Any]]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, __file__, "process", json.dumps(HERE), address]
    second = subprocess.Popen([*command, "1"])
    try:
        first = subprocess.run([*command, "0"], capture_output=True, text=True, timeout=280, check=False)
        second.wait(20)
    finally:
        second.kill()
    if first.returncode:
        sys.exit(first.stderr[-800:])
    return [{"where": "here", **row} for row in json.loads(first.stdout)]


def lab() -> list[dict[str, Any]]:
    kind = LinkType("link", 10_000_000, 0.0)
    machine = build("two-networks", 2, both_ways([(0, 2), (1, 2), (0, 3), (1, 3)], kind), switches=2)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows")
        command = ["sh", "-c", f'exec "$0" "$1" process "$2" $MASTER_ADDR:29600 $RANK >> {out}']
        command += [sys.executable, __file__, json.dumps(LAB)]
        antiphon.lab("run", machine, command=command, scale="link=80Mbit", timeout="280s")
        return [{"where": "lab", **row} for row in json.loads(out.read_text())]


def main() -> None:
    _common.print_machine()
    wanted = sys.argv[1:] or ["here", "lab"]
    before = _common.RESULTS / "wires.json"  # of a run for the other
    kept = json.loads(before.read_text(encoding="utf-8"))["rows"] if before.exists() else []
    rows = [row for name, measure in (("here", here), ("lab", lab)) if name in wanted for row in measure()]
    least = {(row["where"], row["nbytes"]): row for row in rows if row["wire"] == "sockets"}
    for row in rows:
        row["ratio"] = row["seconds"] / least[row["where"], row["nbytes"]]["seconds"]
    _common.print_table(
        ["where", "wire", "nbytes", "us", "processor us", "of sockets"],
        [
            [r["where"], r["wire"], r["nbytes"], r["seconds"] * 1e6, r["processor_seconds"] * 1e6, r["ratio"]]
            for r in rows
        ],
    )
    _common.save("wires", {"rows": [row for row in kept if row["where"] not in wanted] + rows})


if __name__ == "__main__":
    if sys.argv[1:2] == ["process"]:
        process(int(sys.argv[4]), sys.argv[3], json.loads(sys.argv[2]))
    else:
        main()
