"""What an installed Antiphon must do on a machine that has nothing else: no compiler, no MPI, no source tree.

smoke.py VERSION KIND; a wheel of kind "engine" brings the compiled engine, which must run.
"""

import importlib.metadata
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import antiphon
from antiphon.errors import AntiphonError

VERSION, KIND = sys.argv[1:]  # KIND: "engine" (of a wheel that brings it), "pure" (any other wheel) or "sdist"
HAS_ENGINE = KIND == "engine"
SOCKETS = """
import sys, numpy, antiphon.comm
with antiphon.comm.connect(rank=int(sys.argv[1]), ranks=2, address=sys.argv[2], secret="not-a-secret-" * 3) as c:
    assert (c.allreduce(numpy.full(1000, 1.5 + c.rank)) == 4.0).all()
"""


def command(*arguments: str) -> str:
    done = subprocess.run(["antiphon", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"antiphon {' '.join(arguments)}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


def functions() -> None:
    machine = antiphon.topology("dgx1v")
    best = antiphon.tune("allreduce", machine, nbytes="1KB:1MB", search=antiphon.Search(budget=1))
    assert best.ranges
    recordings = Path(antiphon.__file__).parent / "select" / "recordings"
    assert recordings.exists() == (KIND != "sdist")  # `tune` replays those that these sources and solvers made
    assert antiphon.verify(best.plan, proof=True)
    assert antiphon.run(best.plan, "64KiB")[0]["correct"]
    assert antiphon.traces.simulate(best.plan, "1MB")[0]["seconds"] > 0
    assert antiphon.pages.report(best).startswith("<!")
    antiphon.save(best, "table.json.gz")
    assert antiphon.load("table.json.gz", antiphon.Plan).collective == best.plan.collective
    assert antiphon.export(best.plan, "goal", nbytes="1MB")
    assert antiphon.frontier.find("alltoall", "ring:ranks=4", budget=60).points


def commands() -> None:
    assert command("--version").strip() == f"antiphon {VERSION}"
    planned = json.loads(command("plan", "allgather", "dgx1v", "--planner", "multi-ring", "-o", "plan.json", "--json"))
    assert planned["verified"] is True
    for rest in (["verify"], ["predict", "--nbytes", "1KB:1MB"], ["run", "--nbytes", "64KiB"]):
        assert command(rest[0], "plan.json", *rest[1:])
    for names in ("list planners", "list models", "list formats", "list runtimes", "topology list", "reproduce"):
        assert json.loads(command(*names.split(), "--json"))


def without_a_compiler() -> None:
    """What needs one says so; the compiled engine of the wheel runs."""
    assert not any(shutil.which(name) for name in ("cc", "c++", "gcc", "clang", "mpicc"))
    needs = {
        "build mpi": lambda: antiphon.native.build("mpi"),
        **({} if HAS_ENGINE else {"run --on threads": lambda: antiphon.run("plan.json", "64KiB", on="threads")}),
    }
    for name, call in needs.items():
        try:
            call()
        except AntiphonError:
            continue
        raise SystemExit(f"{name}: there is no compiler here, and yet it made something")
    if HAS_ENGINE:
        assert json.loads(command("run", "plan.json", "--nbytes", "64KiB", "--on", "threads", "--json"))
        assert antiphon.native.build("nccl-tuner").parent.name == "prebuilt"
        run_sockets()


def run_sockets() -> None:
    """Two processes that meet without MPI."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [subprocess.Popen([sys.executable, "-c", SOCKETS, str(rank), address]) for rank in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]


if __name__ == "__main__":
    where = Path(antiphon.__file__).parent
    assert where.is_relative_to(sys.prefix), where
    assert importlib.metadata.version("antiphon") == antiphon.__version__ == VERSION
    assert (where / "py.typed").is_file()
    assert (Path(sys.prefix) / "share" / "man" / "man1" / "antiphon-tune.1").is_file() or KIND == "sdist"
    functions()
    commands()
    without_a_compiler()
    engine = ", also on threads and sockets" if HAS_ENGINE else ""
    print(f"antiphon {VERSION}: plans, verifies, runs{engine}; from {where.name} in a bare environment")
