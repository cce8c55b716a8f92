"""What an installed Antiphon must do on a machine that has nothing else: no compiler, no MPI, no source tree."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path

import antiphon
from antiphon.errors import AntiphonError

VERSION = sys.argv[1]


def command(*arguments: str) -> str:
    done = subprocess.run(["antiphon", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"antiphon {' '.join(arguments)}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


def functions() -> None:
    machine = antiphon.topology("dgx1v")
    best = antiphon.tune("allreduce", machine, nbytes="1KB:1MB", search=antiphon.Search(budget=1))
    assert best.ranges
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
    """What needs one says so."""
    assert not any(shutil.which(name) for name in ("cc", "gcc", "clang", "mpicc"))
    try:
        antiphon.native.build("mpi")
    except AntiphonError:
        return
    raise SystemExit("build mpi: there is no compiler here, and yet it made something")


if __name__ == "__main__":
    where = Path(antiphon.__file__).parent
    assert where.is_relative_to(sys.prefix), where
    assert importlib.metadata.version("antiphon") == antiphon.__version__ == VERSION
    assert (where / "py.typed").is_file()
    functions()
    commands()
    without_a_compiler()
    print(f"antiphon {VERSION}: plans, proves, runs, tells; from {where.name} in a bare environment")
