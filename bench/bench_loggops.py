"""LogGP as LogGOPSim means it (`meaning=loggops`), beside LogGOPSim itself, on the same GOAL files.

Run: python bench/bench_loggops.py TXT2BIN LOGGOPSIM STABLE COMMIT, three programs that were built elsewhere from
https://github.com/spcl/LogGOPSim: its `txt2bin`, its simulator, and its simulator with std::stable_sort in place of
std::sort where operations that become ready together are ordered by kind. (std::sort leaves the order of equal ones
open; from 17 on it is not that of the file. A rank's receives are ready at the start, so that is where it matters.)

Nanoseconds, with what LogGP says with ports. tests/test_loggops.py predicts each row again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from _common import RESULTS, print_table

import antiphon
from antiphon.cost import Level, LogGP, Profile

MEANING = "loggp:meaning=loggops,eager={S},order={order}"
PORTS = "loggp:order={order}"
NS = 1e-9


@dataclass(frozen=True)
class Figures:
    """As the simulator takes them, in ns and ns per byte; gamma (ns per byte combined) is in the GOAL file."""

    L: int
    o: int
    g: int
    G: int
    S: int
    gamma: int

    def profile(self) -> Profile:
        o = self.o * NS
        level = Level("", L=self.L * NS, o_s=o, o_r=o, g=self.g * NS, G=self.G * NS, gamma=self.gamma * NS)
        return Profile(loggp=LogGP((level,), 1, None))


@dataclass(frozen=True)
class Case:
    """A plan, and what its messages wait for."""

    name: str
    collective: str
    topology: str
    planner: str
    order: str
    options: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("ring", "allreduce", "full:ranks=16", "ring", "rounds", {"directions": 1}),
    Case("two-way ring", "allreduce", "full:ranks=4", "ring", "rounds", {"directions": 2}),
    Case("two-way ring", "allreduce", "full:ranks=16", "ring", "rounds", {"directions": 2}),
    Case("two-way ring", "allreduce", "full:ranks=16", "ring", "data", {"directions": 2}),
    Case("k-ring", "allgather", "full:ranks=16", "kring", "rounds", {"k": 4}),
    Case("k-ring", "allgather", "full:ranks=8", "kring", "data", {"k": 4}),
    Case("k-ring", "allgather", "full:ranks=16", "kring", "data", {"k": 4}),
    Case("two trees", "allreduce", "full:ranks=16", "double-binary-tree", "rounds"),
    Case("two trees", "allreduce", "full:ranks=16", "double-binary-tree", "data"),
    Case("pairwise alltoall", "alltoall", "full:ranks=16", "pairwise", "rounds"),
    Case("direct alltoall", "alltoall", "full:ranks=8", "direct", "data"),
    Case("direct alltoall", "alltoall", "full:ranks=16", "direct", "data"),
    Case("recursive multiplying", "allreduce", "full:ranks=16", "recmult", "rounds", {"k": 4}),
    Case("recursive multiplying", "allreduce", "full:ranks=16", "recmult", "data", {"k": 4}),
    Case("Bruck", "allgather", "full:ranks=12", "bruck", "rounds"),
    Case("recursive doubling", "allreduce", "full:ranks=16", "recursive-doubling", "rounds"),
    Case("halving and doubling", "allreduce", "full:ranks=16", "halving-doubling", "data"),
    Case("binomial tree", "broadcast", "full:ranks=16", "binomial-tree", "data"),
)
FIGURES = (Figures(2500, 1500, 1000, 6, 65535, 0), Figures(700, 3000, 9000, 2, 65535, 1))
SIZES = (960, 96_000, 1_920_000)


def planned(case: Case) -> Any:
    return antiphon.plan(case.collective, case.topology, planner=case.planner, options=case.options)


def goal_of(plan: Any, case: Case, figures: Figures, nbytes: int) -> bytes:
    options = {"order": case.order, "gamma": figures.gamma * NS, "local": "off"}
    files = antiphon.export(plan, "goal", nbytes=nbytes, options=options)
    return b"".join(files.values())


def replayed(text: bytes, figures: Figures, txt2bin: str, simulators: list[str]) -> list[int]:
    """The nanoseconds that each simulator says."""
    out = []
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "schedule.goal", Path(folder) / "schedule.bin"
        source.write_bytes(text)
        subprocess.run([txt2bin, "-i", source, "-o", binary], check=True, capture_output=True)
        told = [f"-{name}{value}" for name, value in asdict(figures).items() if name != "gamma"]
        for simulator in simulators:
            ran = subprocess.run([simulator, "-b", "-f", binary, *told], check=True, capture_output=True, text=True)
            found = re.search(r"Maximum finishing time at host \d+: (\d+)", ran.stdout)
            if found is None:
                raise RuntimeError(f"{simulator}: {ran.stdout[-500:]}")
            out.append(int(found[1]))
    return out


def main(txt2bin: str, simulator: str, stable: str, commit: str) -> None:
    rows, table = [], []
    for case in CASES:
        plan = planned(case)
        for figures in FIGURES:
            for nbytes in SIZES:
                text = goal_of(plan, case, figures, nbytes)
                known, kept = replayed(text, figures, txt2bin, [simulator, stable])
                said = {
                    what: antiphon.predict(
                        plan, nbytes, model=model.format(order=case.order, S=figures.S), profile=figures.profile()
                    )[0]["seconds"] / NS
                    for what, model in (("loggops", MEANING), ("ports", PORTS))
                }  # fmt: skip
                rows.append({"case": asdict(case), "figures": asdict(figures), "nbytes": nbytes, "simulated": known,
                             "stable": kept, **said})  # fmt: skip
                ratios = [
                    f"{said[what] / ns:.4f}" for what, ns in (("loggops", kept), ("loggops", known), ("ports", known))
                ]
                table.append([f"{case.name} {case.topology[11:]} {case.order}", nbytes, known, kept, *ratios])
    print_table(["plan", "bytes", "simulated ns", "stable ns", "loggops/stable", "loggops", "ports"], table)
    tool = {"repository": "https://github.com/spcl/LogGOPSim", "commit": commit}
    path = RESULTS / "loggops.json"
    path.write_text(json.dumps({"tool": tool, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
