"""The emulated cluster: what schedules gain on irregular machines, measured beside what is predicted.

Run as root: python bench/bench_lab.py [dgx] [allocations] [tree] [plans] [mesh] (default: all). The MPI library is
MPICH, from the environment $ANTIPHON_TEST_MPICH, else the folder mpich of this one; without it those rows are left out.
With `dgx` the picture docs/lab-dgx1v.svg is drawn anew. `mesh` needs PyTorch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _common
from _bars import Bar, measured_svg

import antiphon
from antiphon.core.plan import Plan
from antiphon.core.reshape import only
from antiphon.core.topology import Topology
from antiphon.errors import AntiphonError

REPEAT = 7
SCALE = "link=40Mbit"
ROOT = Path(__file__).resolve().parent.parent
MPICH = Path(os.environ.get("ANTIPHON_TEST_MPICH") or Path(sys.prefix) / "mpich") / "bin"
RING = "NCCL-like rings"
SCHEDULES: list[tuple[str, str, dict[str, Any]]] = [
    ("one ring of single links", "multi-ring", {"rings": 1}),
    ("two rings: one, both ways", "multi-ring", {"rings": 2}),
    ("one ring of double links, both ways", "ring", {}),
    ("all six rings", "multi-ring", {"rings": 6, "pieces": 1}),
    ("all six rings, pipelined", "multi-ring", {"rings": 6, "pieces": 4}),
    ("packed trees", "trees", {}),
    ("synthesis, fewest steps of the best", "sccl", {}),
]
ALLOCATIONS = ["1,4,5,6", "0,1,4", "0,2,4,5", "3,4,6,7", "1,2,5,6,7", "0,1,2,4,5", "2,3,4,6,7", "0,3,4,5,6,7"]


@contextmanager
def lab(machine: Topology, name: str) -> Iterator[str]:
    antiphon.lab.up(machine, scale=SCALE, name=name)
    try:
        yield name
    finally:
        antiphon.lab.down(name)


def ours(plan: Any, nbytes: int, name: str, repeat: int = REPEAT) -> dict[str, Any]:
    (row,) = antiphon.lab.run(plan, nbytes, name=name, repeat=repeat)
    if not row["correct"]:
        sys.exit(f"{plan}: {row['wrong']} elements are wrong")
    used = [link for link in row["links"] if link["expected"]]
    off = max(link["counted"] / link["expected"] - 1 for link in used)
    missing = sum(link["counted"] < link["expected"] for link in used)
    keys = ("seconds", "least", "most", "predicted_seconds", "over_predicted")
    return {**{key: row[key] for key in keys}, "links": len(used), "above_load": off, "below_load": missing}


def library(kind: str, nbytes: int, name: str, ranks: int) -> dict[str, Any] | None:
    """MPICH's own, over TCP in the same lab."""
    if not (MPICH / "mpiexec").exists():
        return None
    program = [str(MPICH / "python"), str(Path(__file__).with_name("_lab_mpi.py")), kind, str(nbytes), str(REPEAT)]
    done = subprocess.run(
        [sys.executable, "-m", "antiphon", "lab", "run", name, "--timeout", "300s", "--",
         str(MPICH / "mpiexec"), "-n", str(ranks), *program],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{kind} by MPICH failed: {done.stderr[-600:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def told(rows: list[dict[str, Any]]) -> None:
    _common.print_table(
        ["what", "seconds", "least", "most", "predicted", "ratio", "above load"],
        [[r["what"], r["seconds"], r["least"], r["most"], r.get("predicted_seconds") or "-",
          r.get("over_predicted") or "-", r.get("above_load", "-")] for r in rows],
    )  # fmt: skip


def dgx(nbytes: int = 8 * 600_000) -> dict[str, Any]:
    machine = antiphon.topology("dgx1v")
    rows = []
    with lab(machine, "bench-dgx1v") as name:
        for what, planner, options in SCHEDULES:
            plan = antiphon.plan("allgather", machine, planner=planner, options=options, nbytes=nbytes)
            rows.append({"what": what, "planner": planner, "options": options, **ours(plan, nbytes, name)})
        theirs = library("allgather", nbytes, name, 8)
        if theirs is not None:
            rows.append({"what": "the MPI library's own (MPICH)", **theirs})
    told(rows)
    best = min((r for r in rows if "over_predicted" in r), key=lambda r: r["seconds"])
    gains = {"best": best["what"], "best_over_prediction": best["over_predicted"]}
    gains["over_one_ring"] = rows[0]["seconds"] / best["seconds"]
    if theirs is not None:
        gains["over_the_library"] = theirs["seconds"] / best["seconds"]
    print(gains)
    bars = [Bar(r["what"], r["seconds"], r["least"], r["most"], r.get("predicted_seconds")) for r in rows]
    title = "allgather of 600 KB per rank on an emulated DGX-1V, one link = 40 Mbit/s"
    (ROOT / "docs" / "lab-dgx1v.svg").write_text(measured_svg(title, bars), encoding="utf-8")
    return {"nbytes": nbytes, "rows": rows, **gains}


def allocations(nbytes: int = 2_000_000) -> list[dict[str, Any]]:
    whole, out = antiphon.topology("dgx1v"), []
    for text in ALLOCATIONS:
        ranks = [int(part) for part in text.split(",")]
        machine = only(whole, ranks)
        with lab(machine, "bench-part") as name:
            for kind in ("allreduce", "broadcast"):
                row: dict[str, Any] = {"ranks": text, "collective": kind}
                found = {}
                for planner in ("trees", "multi-ring"):
                    try:
                        plan = antiphon.plan(kind, machine, planner=planner, ranks=ranks, nbytes=nbytes)
                    except AntiphonError:
                        continue  # no ring of links through all of them
                    found[planner] = ours(plan, nbytes, name)
                theirs = library(kind, nbytes, name, len(ranks))
                row |= {"trees": found["trees"], "rings": found.get("multi-ring"), "library": theirs}
                out.append(row)
                print(
                    text, kind, {k: round(v["seconds"], 4) for k, v in row.items() if isinstance(v, dict)}, flush=True
                )
    _common.print_table(
        ["ranks", "collective", "trees", "predicted", "ratio", RING, "MPICH", "gain over MPICH"],
        [[r["ranks"], r["collective"], r["trees"]["seconds"], r["trees"]["predicted_seconds"],
          r["trees"]["over_predicted"],
          r["rings"]["seconds"] if r["rings"] else "-", r["library"]["seconds"] if r["library"] else "-",
          r["library"]["seconds"] / r["trees"]["seconds"] if r["library"] else "-"] for r in out],
    )  # fmt: skip
    return out


TREE = [
    ("GenTree", "gentree", {}),
    ("GenTree, 4 pieces", "gentree", {"pieces": 4}),
    ("flat ring", "ring", {}),
    ("flat ring, ranks as dealt to the switches in turn", "ring", {"order": "0,4,1,5,2,6,3,7"}),
]


def tree() -> list[dict[str, Any]]:
    """Two switches of four ranks below one, oversubscribed fourfold."""
    machine, out = antiphon.topology("tree:fanouts=2x4,oversubscription=4"), []
    with lab(machine, "bench-tree") as name:
        for nbytes in (64_000, 256_000, 1_024_000):
            rows = []
            for what, planner, options in TREE:
                plan = antiphon.plan("allreduce", machine, planner=planner, options=options, nbytes=nbytes)
                rows.append({"what": what, "nbytes": nbytes, **ours(plan, nbytes, name)})
            theirs = library("allreduce", nbytes, name, 8)
            if theirs is not None:
                rows.append({"what": "MPICH", "nbytes": nbytes, **theirs})
            print(f"allreduce of {nbytes} bytes")
            told(rows)
            out += rows
    return out


PLANS = [
    ("dgx1v", [("allreduce", "trees"), ("allreduce", "ring"), ("allgather", "multi-ring"), ("broadcast", "trees")]),
    ("full:ranks=4", [("broadcast", "binomial-tree"), ("reduce", "binomial-tree"), ("allreduce", "halving-doubling"),
                      ("allreduce", "direct")]),
    ("ring:ranks=4", [("allreduce", "ring"), ("broadcast", "relay"), ("reducescatter", "ring")]),
    ("tree:fanouts=2x4", [("broadcast", "binomial-tree"), ("allreduce", "ring"), ("allreduce", "double-binary-tree")]),
]  # fmt: skip


def plans(nbytes: int = 8_000_000) -> list[dict[str, Any]]:
    """What four machines take for fourteen plans, beside what their links and the engine's pieces predict."""
    out = []
    for spec, wanted in PLANS:
        machine = antiphon.topology(spec)
        with lab(machine, "bench-plans") as name:
            for kind, planner in wanted:
                plan = antiphon.plan(kind, machine, planner=planner, nbytes=nbytes)
                row = {"machine": spec, "what": f"{kind}, {planner}", **ours(plan, nbytes, name, 3)}
                out.append(row)
                print(spec, kind, planner, f"{row['seconds']:.3f} {row['over_predicted']:.3f}", flush=True)
    told(out)
    return out


MESHES = [(2, 3), (2, 4), (4, 8)]
MESH_SCALE, MESH_BANDWIDTH = "link=4Mbit", "500KB/s"  # so slow that the processors have time for all ranks


def mesh(nbytes: int = 1_200_000) -> list[dict[str, Any]]:
    """What allreduces along both dimensions of a mesh at once take under PyTorch, beside what is predicted."""
    out = []
    for data, tensor in MESHES:
        spec = f"mesh:dims={data}x{tensor}"
        groups = antiphon.collective("allreduce@data + allreduce@tensor", spec, mesh=f"data={data},tensor={tensor}")
        plan = antiphon.plan(groups, spec, planner="groups", nbytes=nbytes, options={"links": "alone"})
        # The links alone, in the steps of the plan; without common steps ("flows"), messages of later steps compete.
        slow = Plan.of(antiphon.topology(f"{spec},bandwidth={MESH_BANDWIDTH}"), plan.entries[0].schedule)
        models = ("alpha-beta", "flows")
        in_steps, without_steps = (antiphon.predict(slow, nbytes, model=m)[0]["seconds"] for m in models)
        with tempfile.TemporaryDirectory() as folder:
            antiphon.save(plan, f"{folder}/plan.json")
            command = [
                sys.executable,
                "-m",
                "antiphon",
                "lab",
                "run",
                spec,
                "--scale",
                MESH_SCALE,
                "--",
                sys.executable,
            ]
            command += [str(ROOT / "bench" / "_mesh_job.py"), *map(str, (data, tensor, nbytes, 5))]
            env = {**os.environ, "ANTIPHON_TABLE": f"{folder}/plan.json"}
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        row = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
        seconds = statistics.median(row["seconds"])
        ratio = seconds / in_steps
        out.append(
            {
                "machine": spec, "what": "allreduces along both dimensions, PyTorch", "seconds": seconds,
                "predicted_seconds": in_steps, "without_steps_seconds": without_steps, "over_predicted": ratio,
                "served": row["served"],
            }
        )  # fmt: skip
        print(spec, f"{seconds:.3f} {ratio:.3f}", row["served"], flush=True)
    return out


def main() -> None:
    _common.print_machine()
    wanted = sys.argv[1:] or ["dgx", "allocations", "tree", "plans", "mesh"]
    path = _common.RESULTS / "lab.json"
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    data.pop("machine", None)
    for part in wanted:
        data[part] = {"dgx": dgx, "allocations": allocations, "tree": tree, "plans": plans, "mesh": mesh}[part]()
    _common.save("lab", data)


if __name__ == "__main__":
    main()
