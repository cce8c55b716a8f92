"""Hosts with several networks: what each of them carries."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from lab_env import why_no_lab

import antiphon
from antiphon.core.topology import LinkType, Topology, both_ways, build
from antiphon.runtimes.lab.commands import batches, rank_switches
from antiphon.runtimes.lab.layout import lay_out

MEGABYTES = 3
PROGRAM = """
import json, os, sys, numpy as np, antiphon
rank, where = int(os.environ["RANK"]), os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
sent = lambda: [int(open(f"/sys/class/net/s{n}/statistics/tx_bytes").read()) for n in (0, 1)]
with antiphon.comm.connect(rank=rank, ranks=2, address=where, timeout=60, secret="0123456789abcdef") as c:
    x = np.arange(int(sys.argv[1]) * 125_000.0) * (1 - rank)
    before = sent()
    c.broadcast(x, 0)
    assert (x == np.arange(len(x))).all()
    c.allreduce(np.zeros(1))
    if not rank:
        open(sys.argv[2], "w").write(json.dumps([after - then for after, then in zip(sent(), before)]))
"""


def pair(alone: bool = False) -> Topology:
    """Two ranks on two switches; `alone`: and a third on the first of them."""
    ranks = 3 if alone else 2
    ends = [(0, ranks), (1, ranks), (0, ranks + 1), (1, ranks + 1), *([(2, ranks)] if alone else [])]
    return build("pair", ranks, both_ways(ends, LinkType("link", 10**8, 0.0)), switches=2)


def test_each_switch_of_a_rank_with_several_is_a_network() -> None:
    layout = lay_out(pair(alone=True))
    assert rank_switches(layout) == {0: [3, 4], 1: [3, 4]}
    told = {space: text.splitlines() for program, space, text in batches(layout) if (program, space[:1]) == ("ip", "r")}
    first = {
        device: next(line.split()[2] for line in told["r0"] if line.startswith("address") and f"dev {device}" in line)
        for device in ("s0", "s1")
    }
    assert first == {"s0": "10.100.0.1/32", "s1": "10.100.2.1/32"}  # what programs find that are told a device
    ways = {line.split()[2]: line.split()[4] for line in told["r1"] if line.startswith("route")}
    assert ways == {"10.77.0.1/32": "s0", "10.77.0.3/32": "s0", "10.100.0.1/32": "s0", "10.100.2.1/32": "s1"}
    others = {line.split()[2]: line.split()[4] for line in told["r2"] if line.startswith("route")}
    assert set(others.values()) == {"s0"}
    assert {"10.100.2.1/32", "10.100.2.2/32"} <= set(others)  # who is not there reaches it as the rank itself
    assert not rank_switches(lay_out(antiphon.topology("tree:fanouts=2x4")))


def carried(folder: Path, monkeypatch: pytest.MonkeyPatch, devices: str) -> list[float]:
    """What each network took of a broadcast, in times of its bytes."""
    program, out = folder / "give.py", folder / "sent.json"
    program.write_text(PROGRAM)
    monkeypatch.setenv("ANTIPHON_INTERFACE", devices)
    command = [sys.executable, str(program), str(MEGABYTES), str(out)]
    row = antiphon.lab.command(pair(), command=command, scale="link=400Mbit", timeout=60)
    assert row["exit_code"] == 0
    found: list[Any] = json.loads(out.read_text())
    return [one / (MEGABYTES * 10**6) for one in found]


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_lab()), reason=f"a lab: {why_no_lab()}")
def test_both_networks_carry_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = carried(tmp_path, monkeypatch, "s0,s1")
    assert all(0.4 < part < 0.6 for part in both), both
    alone = carried(tmp_path, monkeypatch, "s1")
    assert alone[0] < 0.05, alone
    assert alone[1] > 0.95, alone
