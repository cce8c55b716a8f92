"""The kernel of GPUs under threads: no race that ThreadSanitizer sees, right whatever is held up, ranks as processes.

device/driver.cc is compiled with the sources of the kernel, as they are or made weaker in one place: then something
must be found.
"""

import os
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from device_cases import Call, Plan, drawn, plan_of, written
from device_started import in_processes
from quick import in_turn

import antiphon
from antiphon.lower.onesided import steps
from antiphon.lower.onesided.streams import find_credits
from antiphon.runtimes.device.group import CALLS
from antiphon.runtimes.engine.build import DEVICE

DRIVER = Path(__file__).with_name("device") / "driver.cc"
FLAGS = ["-std=c++17", "-O0", "-g", "-pthread", "-ffp-contract=off", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
RACE = 66  # how ThreadSanitizer ends
NEAR_THE_END = CALLS - 7  # numbers of calls begin again soon

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("device")


def compiled(folder: Path, name: str, *more: str, changed: tuple[str, str, str] | None = None) -> Path:
    """The driver; `changed`: a file of the sources, what stands there once or more, and what comes in its place."""
    path = folder / name
    if path.exists():
        return path
    sources = DEVICE
    if changed is not None:
        file, before, after = changed
        sources = Path(shutil.copytree(DEVICE, folder / f"{name}-sources"))
        text = (sources / file).read_text()
        assert before in text
        (sources / file).write_text(text.replace(before, after))
    command = ["c++", *FLAGS, *more, f"-I{sources}", str(DRIVER), "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


def sanitized(folder: Path) -> Path:
    path = compiled(folder, "sanitized", "-fsanitize=thread")
    done = subprocess.run([str(path)], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run under this kernel")
    return path


def shaken(folder: Path) -> Path:
    return compiled(folder, "shaken", "-DSHAKEN")


def run(
    driver: Path, file: Path, how: str = "threads", *, blocks: int, threads: int, calls: int, seed: int = 0,
    limit: float = 120.0,
) -> tuple[int, str]:  # fmt: skip
    """The exit code, and what was said; -1 where it took too long."""
    command = [str(driver), str(file), how, *map(str, (blocks, threads, calls, seed, NEAR_THE_END))]
    environment = {**os.environ, "TSAN_OPTIONS": f"halt_on_error=1 exitcode={RACE}"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, errors="replace",
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said = process.communicate(timeout=limit)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return -1, "it does not end"
    return process.returncode, said


def made(
    planner: str, kind: str, spec: str, in_place: bool = False, streams: int = 2, packets: bool = False,
    pull: bool = False,
) -> Plan:  # fmt: skip
    root = {"root": 0} if kind in ("broadcast", "reduce", "gather", "scatter") else {}
    schedule = antiphon.plan(kind, antiphon.topology(spec), planner=planner, **root).at(1 << 16).schedule
    return plan_of(schedule, in_place, streams, packets, pull)


@cache
def plans(spec: str) -> list[Plan]:
    return [
        made("ring", "allreduce", spec), made("direct", "alltoall", spec, True), made("direct", "reducescatter", spec),
        made("binomial-tree", "broadcast", spec), made("ring", "allgather", spec, True),
        made("halving-doubling", "allreduce", spec, True, 1), made("multi-ring", "allreduce", spec, False, 4),
        made("ring", "allreduce", spec, packets=True), made("direct", "alltoall", spec, True, packets=True),
        made("binomial-tree", "broadcast", spec, packets=True), made("recmult", "allgather", spec, True, packets=True),
        made("ring", "allreduce", spec, pull=True), made("direct", "alltoall", spec, True, pull=True),
    ]  # fmt: skip


def several(folder: Path, spec: str, blocks: int, seed: int, count: int = 16) -> Path:
    """Calls of all sorts, to be made in turn."""
    random = np.random.default_rng(seed)
    return written(folder / f"calls-{spec}-{blocks}-{seed}", list(drawn(random, plans(spec), count, blocks)))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_no_race(folder: Path, threads: int) -> None:
    """Several threads a block, several blocks a rank, lanes and rounds, different calls in turn."""
    for seed, spec in enumerate(("full:ranks=2", "full:ranks=3", "full:ranks=5", "full:ranks=8")):
        file = several(folder, spec, 8, seed, 40)
        code, said = run(sanitized(folder), file, blocks=8, threads=threads, calls=200, seed=seed, limit=400)
        assert code == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("how", ["steps", "copies"])
def test_no_race_by_steps(folder: Path, how: str) -> None:
    """Queues and events alone say what waits for what."""
    some = [one for one in plans("full:ranks=4") if not one.tables[0].packets]
    file = written(folder / f"calls-{how}", list(drawn(np.random.default_rng(7), some, 14, 8)))
    code, said = run(sanitized(folder), file, how, blocks=8, threads=1, calls=25)
    assert code == 0, said


@pytest.mark.slow
def test_steps_that_do_not_wait_are_found(folder: Path) -> None:
    """A queue that goes on though an event has not come."""
    some = [made("ring", "allreduce", "full:ranks=3"), made("direct", "reducescatter", "full:ranks=3")]
    file = written(folder / "unawaited", [Call(one, 1000, "int32", "sum", seed=1) for one in some])
    before = "while (!event.happened.load(std::memory_order_acquire)) back_off();"
    driver = compiled(
        folder, "unawaited-steps", "-fsanitize=thread", changed=("threads_queues.h", before, "(void)event;")
    )
    assert run(driver, file, "steps", blocks=4, threads=1, calls=30)[0] in (1, RACE)


@pytest.mark.slow
def test_no_race_by_switches(folder: Path) -> None:
    some = [
        made("nvls", kind, "hgx-h100", in_place) for kind in ("allreduce", "allgather") for in_place in (False, True)
    ]
    calls = list(drawn(np.random.default_rng(3), some, 12, 4))
    code, said = run(sanitized(folder), written(folder / "switches", calls), blocks=4, threads=2, calls=60)
    assert code == 0, said


UNFLAGGED = (
    "while ((u32)((packet = load_relaxed(box + i)) >> 32) != flag)",
    "while (!(packet = load_relaxed(box + i)) || !flag)",
)


@pytest.mark.slow
def test_a_packet_of_another_call_is_not_taken(folder: Path) -> None:
    """Where its flag is not compared, what stands in the box is taken; where boxes have no halves, what somebody sends
    who is ahead is written over what was not read."""
    some = [
        made("ring", "allreduce", "full:ranks=3", packets=True),
        made("direct", "alltoall", "full:ranks=3", packets=True),
    ]
    file = written(folder / "packets", list(drawn(np.random.default_rng(1), some, 8, 4)))
    code, said = run(shaken(folder), file, blocks=4, threads=2, calls=60)
    assert code == 0, said
    driver = compiled(folder, "unflagged", "-DSHAKEN", changed=("packets.h", *UNFLAGGED))
    assert run(driver, file, blocks=4, threads=2, calls=60, limit=20)[0] == 1
    half = "return (i64)(call % 2) * BOX;", "return (i64)(call & 0) * BOX;"
    driver = compiled(folder, "half", "-DSHAKEN", changed=("packets.h", *half))
    assert any(run(driver, file, blocks=4, threads=2, calls=200, seed=seed, limit=10)[0] for seed in range(4))


WEAKER = {
    "a signal is stored without release": ("world.h", "value, __ATOMIC_RELEASE)", "value, __ATOMIC_RELAXED)"),
    "a signal is loaded without acquire": ("world.h", "(at, __ATOMIC_ACQUIRE)", "(at, __ATOMIC_RELAXED)"),
    "threads pass by a sync": (
        "kernel.h", "if (sync_block(failed)) return 1;\n            } else", "(void)failed;\n            } else",
    ),
    "threads come to a meeting without release": (
        "meeting.h", "fetch_add(1, std::memory_order_acq_rel)", "fetch_add(1, std::memory_order_relaxed)",
    ),
    "threads leave a meeting without acquire": (
        "meeting.h", "turn.load(std::memory_order_acquire)", "turn.load(std::memory_order_relaxed)",
    ),
    "a thread is woken without release": (
        "threads_bell.h", "exchange(RUNG, std::memory_order_acq_rel)", "exchange(RUNG, std::memory_order_relaxed)",
    ),
    "a thread ends without release": (
        "threads.cc", "busy.fetch_sub(1, std::memory_order_acq_rel)", "busy.fetch_sub(1, std::memory_order_relaxed)",
    ),
    "a meeting ends without release": (
        "meeting.h", "turn + 1, std::memory_order_release", "turn + 1, std::memory_order_relaxed",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WEAKER)
def test_what_is_made_weaker_is_found(folder: Path, name: str) -> None:
    file = several(folder, "full:ranks=3", 8, 2)
    sanitized(folder)
    driver = compiled(folder, name.replace(" ", "-"), "-fsanitize=thread", changed=WEAKER[name])
    code, said = run(driver, file, blocks=8, threads=2, calls=100, limit=60)
    assert (code, "data race" in said) == (RACE, True), said[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["threads", "processes"])
@pytest.mark.parametrize("spec", ["full:ranks=2", "ring:ranks=3", "full:ranks=5", "full:ranks=8"])
def test_right_whatever_is_held_up(folder: Path, how: str, spec: str) -> None:
    for seed in range(60):
        file = several(folder, spec, 4, seed // 20, 24)
        code, said = run(shaken(folder), file, how, blocks=4, threads=1 + seed % 3, calls=100, seed=seed)
        assert code == 0, f"seed {seed}: {said}"


@pytest.mark.slow
def test_who_is_told_twice_hears_the_numbers_in_their_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer at another place among those that are told was told by another thread, and calls did not end. (Of tables
    with credits that nobody needs.)"""
    monkeypatch.setattr(steps, "find_credits", lambda program, **_: find_credits(program, farther=False))
    plan = made("multi-ring", "allreduce", "full:ranks=8", streams=4)
    file = written(folder / "told-twice", [Call(plan, unit, "int32", "sum", seed=unit) for unit in (1, 7, 8)])
    for seed in range(3):
        assert run(shaken(folder), file, blocks=4, threads=3, calls=60, seed=seed)[0] == 0
    by_peer, by_place = "(u32)a.rank % my_threads() == my_thread()", "k % my_threads() == my_thread()"
    driver = compiled(folder, "by-place", "-DSHAKEN", changed=("kernel.h", by_peer, by_place))
    assert any(run(driver, file, blocks=4, threads=3, calls=60, seed=seed, limit=30)[0] for seed in range(3))


@pytest.mark.slow
@pytest.mark.parametrize("way", in_turn(["any", "kernel", "steps"], 3))
@pytest.mark.parametrize("groups", in_turn([([[0], [1, 2]],), ([[2], [0], [3, 1], [4]],)]))
def test_ranks_of_several_processes(groups: list[list[int]], way: str) -> None:
    """Each has some, with memory of its own that all reach; past the last number of a call. By a kernel, by steps, or
    each process its own way."""
    assert in_processes(groups, way, 30) == ["wrong: 0"] * len(groups)


@pytest.mark.slow
def test_switches_of_several_processes() -> None:
    """Memory of all ranks with one address, wherever they are."""
    assert in_processes([[0, 1, 2], [3, 4, 5, 6, 7]], "switches", 3) == ["wrong: 0"] * 2
