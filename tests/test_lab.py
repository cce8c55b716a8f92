"""The emulated cluster: what is laid out, what stands, what runs in it, and that nothing is ever left behind."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import bench_cuts
import mpi_env
import pytest
from commands import answer
from lab_env import why_no_lab

import antiphon
from antiphon.cli import run
from antiphon.core.plan import Plan
from antiphon.core.reshape import only
from antiphon.core.topology import LinkType, SharedLimit, Topology, build
from antiphon.errors import AntiphonError, Invalid, Missing, Unsupported
from antiphon.runtimes.engine.launch import Failed
from antiphon.runtimes.lab import lab, runtime
from antiphon.runtimes.lab.commands import batches, bits, cut_batches, route_batches
from antiphon.runtimes.lab.foreign import on_hosts, with_entrance
from antiphon.runtimes.lab.keeping import SCRIPT, ensure_lab, find_lab, find_labs
from antiphon.runtimes.lab.layout import lay_out
from antiphon.runtimes.measure.case import How, Runnable
from antiphon.runtimes.measure.rows import run_schedule
from antiphon.units import parse_size

MBIT = 125_000  # bytes per second
AT_ONCE = 16_384 + 18_432  # bytes that pass without waiting: a burst before the first packet, and all of the last


@pytest.fixture(scope="module")
def _able() -> None:
    if why := why_no_lab():
        pytest.skip(why)


@pytest.fixture
def name(_able: None) -> Iterator[str]:
    """A name for a lab, in which nothing may be left afterwards."""
    own = f"test-{os.getpid()}"
    before = _root_network()
    yield own
    assert find_lab(own) is None
    assert _root_network() == before
    with contextlib.suppress(ChildProcessError):
        assert os.waitpid(-1, os.WNOHANG) == (0, 0)  # no zombie of ours


def _root_network() -> list[str]:
    """Devices and named namespaces outside of all labs."""
    told = [subprocess.run(["ip", *what], capture_output=True, text=True, check=True).stdout
            for what in (("-o", "link"), ("netns", "list"), ("route",))]  # fmt: skip
    return [re.sub(r"qlen \d+", "", text) for text in told]


def gone(check: Callable[[], bool], patience: float = 10.0) -> bool:
    end = time.monotonic() + patience
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


# ---- what is laid out ----


def lab_run(schedule: Any, machine: Topology, nbytes: Any, *given: Any, repeat: int = 3, **how: Any) -> list[Any]:
    there = {key: how.pop(key) for key in ("scale", "name", "timeout") if key in how}
    options: dict[str, Any] = {"repeat": repeat, "how": How(**there), **how}
    return run_schedule("lab", Runnable(schedule, machine), nbytes, *given, **options) or []


def lab_plan(plan: Plan, nbytes: str, **how: Any) -> list[Any]:
    return lab_run(plan.at(parse_size(nbytes)).schedule, plan.topology, nbytes, **how)


def test_the_dgx1v_is_laid_out_link_by_link() -> None:
    machine = antiphon.topology("dgx1v")
    layout = lay_out(machine, "link=40Mbit")
    assert (len(layout.nodes), len(layout.cables), layout.connected()) == (8, 16, True)
    rates = {(port.node, port.peer): port.rate for port in layout.ports}
    assert rates == {
        (int(a), int(b)): 40 * MBIT * machine.bandwidth(i) / (25 * 10**9)
        for i, (a, b) in enumerate(zip(machine.link_src, machine.link_dst, strict=True))
    }
    assert lay_out(machine).speed == Fraction(40 * MBIT, 50 * 10**9)
    assert lay_out(machine, "2Mbit per GB/s").speed == Fraction(2 * MBIT, 10**9)
    assert [len(layout.path(0, other) or []) for other in range(1, 8)] == [1, 1, 1, 1, 2, 2, 2]
    widest = [layout.machine.bandwidth(link) for link in layout.path(0, 7) or []]
    assert widest == [80 * MBIT, 80 * MBIT]  # by 3 or 4, never over a thin link


def test_cables_are_made_inside_the_namespaces() -> None:
    for spec in ("dgx1v", "tree:fanouts=2x3,oversubscription=4", "cluster:box=full:ranks=2,boxes=2"):
        made = batches(lay_out(antiphon.topology(spec)))
        (_, _, cables), *rest = made
        assert all(line.count(" netns ") == 2 for line in cables.splitlines())
        numbers = re.findall(r" index (\d+) ", cables)
        assert len(set(numbers)) == len(numbers)
        assert all(space for _, space, _ in rest)  # nothing else is done outside of one


def test_one_way_links_and_unequal_directions() -> None:
    fast, slow = LinkType("x", Fraction(10**9)), LinkType("x", Fraction(10**9, 4))
    layout = lay_out(build("odd", 3, [(0, 1, fast), (1, 0, slow), (1, 2, fast), (2, 0, slow), (0, 1, slow)]))
    rates = {(port.node, port.peer): port.rate and bits(port.rate) for port in layout.ports}
    assert rates == {
        (0, 1): 50_000_000, (1, 0): 10_000_000, (1, 2): 40_000_000, (2, 1): None, (2, 0): 10_000_000, (0, 2): None,
    }  # fmt: skip
    assert [layout.space(int(layout.machine.link_dst[link])) for link in layout.path(0, 2) or []] == ["r1", "r2"]


def test_who_is_in_no_allocation_is_not_in_the_lab() -> None:
    layout = lay_out(only(antiphon.topology("dgx1v"), [1, 4, 5, 6]))
    assert layout.ranks == [1, 4, 5, 6]
    assert len(layout.cables) == 4


def test_shared_limits_are_queues_where_the_links_meet() -> None:
    layout = lay_out(antiphon.topology("cluster:box=dgx1v,boxes=2"))
    (switch,) = [node for node in layout.nodes if node >= layout.machine.ranks]
    assert len(layout.limit_queues) == len(layout.machine.limits)
    assert {limit_queue.node for limit_queue in layout.limit_queues} == {switch}
    assert {limit_queue.outward for limit_queue in layout.limit_queues} == {True, False}
    one = LinkType("x", Fraction(10**9))
    pairs = [(0, 1, one), (1, 0, one), (2, 3, one), (3, 2, one)]
    with pytest.raises(Unsupported, match="bus"):
        lay_out(build("bus", 4, pairs, limits=[SharedLimit("bus", (0, 2), Fraction(10**9))]))


@pytest.mark.parametrize(
    ("scale", "says"),
    [("fast", "expected"), ("link=1Mbit per", "expected|unknown|read"), ("link=40Tbit", "fastest"),
     ("link=1kbit", "link would have"), ("0Mbit per GB/s", "greater")],
)  # fmt: skip
def test_scales_that_cannot_be(scale: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        lay_out(antiphon.topology("dgx1v"), scale)


def test_too_large_or_without_links() -> None:
    with pytest.raises(Unsupported, match="256 at most"):
        lay_out(antiphon.topology("full:ranks=300"))
    with pytest.raises(Unsupported, match="no links"):
        lay_out(build("alone", 1, []))


def test_where_a_launchers_program_begins() -> None:
    def split(text: str) -> tuple[str, bool]:
        words, each = with_entrance(text.split())
        return " ".join(words).replace(" ".join([*SCRIPT, "rank"]), "HERE"), each

    assert split("mpiexec -n 8 ./prog -n 3") == ("mpiexec -n 8 HERE ./prog -n 3", False)
    assert split("/x/mpirun -genv A 1 -l -np 2 python a.py") == ("/x/mpirun -genv A 1 -l -np 2 HERE python a.py", False)
    assert split("env A=1 B= mpiexec -n 8 prog") == ("env A=1 B= mpiexec -n 8 HERE prog", False)
    assert split("env A=1 python mpiexec") == ("env A=1 python mpiexec", True)
    assert split("env A=1") == ("env A=1", True)
    assert split("srun -n 8 {enter} prog") == ("srun -n 8 HERE prog", False)
    several = "mpiexec -n 1 {} a : -n 1 {} b"
    assert split(several.format("{enter}", "{enter}")) == (several.format("HERE", "HERE"), False)
    assert split("python train.py {rank}") == ("python train.py {rank}", True)
    for text, says in [
        ("mpiexec -n 2", "no program"),
        ("mpiexec --odd 2 prog", "{enter}"),
        ("mpiexec -n 1 a : b", "several"),
    ]:
        with pytest.raises(Invalid, match=says):
            with_entrance(text.split())
    assert with_entrance(["mpiexec", "-l", "-n", "4", "prog"], 4)
    with pytest.raises(Invalid, match="-n 5: the lab has 4 ranks"):
        with_entrance(["mpiexec", "-l", "-n", "5", "prog"], 4)


def test_open_mpi_takes_the_ranks_for_hosts() -> None:
    words = on_hosts(["env", "A=1", "mpirun", "-n", "2", "./a.out 'b c'"], [1, 4])
    assert words[: len(SCRIPT) + 2] == [*SCRIPT, "host", "r1"]
    assert words[-1] == "exec env A=1 mpirun --host r1:1,r4:1 -n 2 " + shlex.quote("./a.out 'b c'")


def test_without_root_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "platform", "linux")
    for call in (lab.lab_status, lab.lab_down, lambda: lab.lab_up(antiphon.topology("dgx1v"))):
        with pytest.raises(Missing, match="sudo"):
            call()
    assert run(["lab", "up", "dgx1v"]) == 2
    assert "needs root" in capsys.readouterr().err


# ---- what stands ----


def test_a_lab_for_one_command_is_not_shared(name: str) -> None:
    """The first command to end would kill the processes of the others."""
    machine = antiphon.topology("line:ranks=2")
    with ensure_lab(machine, "", name) as first:
        with ensure_lab(machine, "", name) as second:
            assert (first.name, second.name) == (name, f"{name}-2")
            assert name not in lab.lab_names()
        assert first.is_up()
        assert not second.is_up()


def test_up_status_run_down(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = _root_network()
    up = answer(capsys, "lab", "up", "ring:ranks=3", "--name", name, "--scale", "link=20Mbit")
    try:
        assert (up["name"], up["ranks"], up["fastest"], up["owner"]) == (name, 3, 20_000_000, None)
        assert up in answer(capsys, "lab", "status")["labs"]
        assert _root_network() == before  # nothing of it is seen outside
        assert run(["lab", "up", "ring:ranks=3", "--name", name]) == 2
        assert "already" in capsys.readouterr().err
        plan = str(tmp_path / "plan.json")
        answer(capsys, "plan", "allreduce", "ring:ranks=3", "-o", plan)
        (row,) = answer(capsys, "run", plan, "--on", f"lab:name={name}", "--nbytes", "120KB", "--repeat", "1")["rows"]
        assert row["correct"]
        # six links, each 2/3 of the buffer at 2.5 MB/s over both directions of the ring: half of it
        assert row["predicted_seconds"] == pytest.approx(120e3 * 2 / 3 / 2.5e6)
        answer(capsys, "plan", "allreduce", "ring:ranks=4", "-o", plan)
        assert run(["run", plan, "--on", f"lab:name={name}", "--nbytes", "1KB"]) == 2
        assert "another machine" in capsys.readouterr().err
        assert run(["lab", "run", name, "--", "false"]) == 1
    finally:
        assert answer(capsys, "lab", "down", name) == {"down": [name]}
    assert run(["lab", "down", name]) == 2
    assert up["keeper"] not in [one.keeper for one in find_labs()]


def test_a_command_is_a_list_of_words() -> None:
    with pytest.raises(Invalid, match=r"command: expected a list of words, such as \['./program', '-n'\], got"):
        antiphon.lab.command("ring:ranks=2", "./program -n")


def checked(row: dict[str, Any], machine: Topology) -> None:
    """Right, not faster than the links, and every byte counted where it should be."""
    assert row["correct"]
    layout = lay_out(machine)
    rates = {f"{layout.space(p.node)}>{layout.space(p.peer)}": p.rate for p in layout.ports if p.rate is not None}
    for link in row["links"]:
        assert row["seconds"] > (link["expected"] - AT_ONCE) / rates[link["link"]], link
    back = {link["link"]: link["expected"] for link in row["links"]}
    for link in row["links"]:
        there, here = link["link"].split(">")
        replies = 0.02 * back.get(f"{here}>{there}", 0) + 4000
        assert link["expected"] <= link["counted"] <= 1.03 * link["expected"] + replies, link


@pytest.mark.slow
def test_an_irregular_allocation_every_byte_crosses_the_links(name: str) -> None:
    machine = only(antiphon.topology("dgx1v"), [1, 4, 5, 6])
    for kind, planner in (("allgather", "trees"), ("allreduce", "relay")):
        plan = antiphon.plan(kind, machine, planner=planner, ranks=[1, 4, 5, 6], nbytes=400_000)
        (row,) = lab_plan(plan, "400KB", repeat=1, name=name)
        checked(row, machine)
        assert sum(link["expected"] for link in row["links"]) > 0


@pytest.mark.slow
def test_sizes_down_to_nothing(name: str) -> None:
    machine = antiphon.topology("line:ranks=3")
    schedule = antiphon.plan("broadcast", machine, planner="trees", root=1).at(0).schedule
    rows = lab_run(schedule, machine, [0, 1, 7, 1001], dtype="int8", repeat=1, name=name)
    assert [(row["nbytes"], row["correct"]) for row in rows] == [(0, True), (1, True), (7, True), (1001, True)]
    assert [row["over_predicted"] for row in rows] == [None] * 4
    assert [link["expected"] for link in rows[3]["links"]] == [0, 1001, 1001, 0]


@pytest.mark.slow
def test_below_what_the_shapers_let_pass_at_once_there_is_no_ratio(name: str) -> None:
    """A ratio of 0.005, say, would be one of bursts. The border is that of the load of a link, not of the buffer."""
    machine = antiphon.topology("line:ranks=2")
    schedule = antiphon.plan("broadcast", machine, planner="ring", options={"pieces": 1}).at(0).schedule
    sizes = [1000, AT_ONCE, AT_ONCE + 4, 10 * AT_ONCE]
    rows = lab_run(schedule, machine, sizes, repeat=1, name=name)
    assert [row["over_predicted"] is None for row in rows] == [True, True, False, False]
    assert {row["at_once"] for row in rows} == {AT_ONCE}
    assert all(row["predicted_seconds"] > 0 for row in rows)
    from antiphon.cli.run_text import rows_text

    said = " ".join(rows_text(rows).split())
    assert f"1KB, 34KiB: nothing over predicted: no link carries more than the {AT_ONCE} bytes" in said
    assert "nothing over" not in rows_text(rows[2:])


@pytest.mark.slow
def test_switches_in_two_levels(name: str) -> None:
    machine = antiphon.topology("tree:fanouts=2x2,oversubscription=4")
    plan = antiphon.plan("allreduce", machine, planner="gentree")
    (row,) = lab_plan(plan, "800KB", repeat=1, name=name, op="max", dtype="int32")
    checked(row, machine)
    assert {link["link"] for link in row["links"] if link["expected"]} >= {"s0>s1", "r0>s1", "s1>r0"}


@pytest.mark.slow
def test_a_shared_limit_limits(name: str) -> None:
    """Two ranks of a box share a card as wide as one link: together they get that, not twice."""
    link = LinkType("x", Fraction(10**9))
    ends = [(rank, 4, link) for rank in range(4)] + [(4, rank, link) for rank in range(4)]
    machine = build("cards", 4, ends, switches=1, limits=[SharedLimit("card", (0, 1), Fraction(10**9))])
    plan = antiphon.plan("alltoall", machine, planner="direct")
    (row,) = lab_plan(plan, "400KB", repeat=1, name=name)
    checked(row, machine)
    free = antiphon.plan("alltoall", build("free", 4, ends, switches=1), planner="direct")
    (other,) = lab_plan(free, "400KB", repeat=1, name=name)
    assert row["predicted_seconds"] == pytest.approx(2 * other["predicted_seconds"])


# ---- programs of others ----


@pytest.mark.slow
def test_a_program_for_each_rank(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    machine = antiphon.topology("line:ranks=3")
    told = (
        "import os, socket; print(os.environ['RANK'], os.environ['WORLD_SIZE'], socket.gethostname(), '{rank}', "
        "open('/proc/sys/net/ipv4/tcp_congestion_control').read().strip())"
    )
    row = lab.lab_command(machine, [sys.executable, "-S", "-c", told], name=name)
    assert row["exit_code"] == 0
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "0 3 r0 0 reno", "1 3 r1 1 reno", "2 3 r2 2 reno"]
    assert lab.lab_command(machine, ["sh", "-c", "exit $RANK"], name=name)["exit_code"] in (1, 2)
    with pytest.raises(AntiphonError, match="not done within"):
        lab.lab_command(machine, ["sleep", "60"], name=name, timeout=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"], indirect=True)
def test_mpi_between_namespaces(name: str, mpi: mpi_env.Mpi, tmp_path: Path) -> None:
    program = tmp_path / "sum.py"
    program.write_text(
        "from mpi4py import MPI\nimport numpy as np\nc = MPI.COMM_WORLD\na = np.full(1000, c.rank + 1.0)\n"
        "c.Allreduce(MPI.IN_PLACE, a)\nassert (a == 10).all()\nassert MPI.Get_processor_name() == f'r{c.rank}'\n"
    )
    machine = antiphon.topology("ring:ranks=4")
    command = [*mpi.mpiexec(4), mpi.python, str(program)]
    assert lab.lab_command(machine, command, name=name, timeout=60)["exit_code"] == 0


@pytest.mark.slow
def test_nothing_remains_of_a_launcher_that_is_killed(name: str, openmpi: mpi_env.Mpi) -> None:
    antiphon.lab.up("line:ranks=2", name=name)
    try:
        keeper = find_lab(name).keeper  # type: ignore[union-attr]
        before = sorted(os.listdir(f"/proc/{keeper}/root/dev/shm"))
        command = [*openmpi.mpiexec(2), "sh", "-c", "ls /dev/shm/sessions | grep -q . && exec sleep 60"]
        with pytest.raises(AntiphonError, match="not done within"):
            lab.lab_command(name, command, timeout=6)  # the launcher, its daemons and programs are killed
        after = set(os.listdir(f"/proc/{keeper}/root/dev/shm")) - {*before}
        assert not [file for file in after if file not in ("mca", "mca.r0", "mca.r1", "sessions")]
        assert os.listdir(f"/proc/{keeper}/root/dev/shm/sessions") == []
    finally:
        antiphon.lab.down(name)


@pytest.mark.slow
def test_gloo_between_namespaces(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "sum.py"
    program.write_text(
        "import torch, torch.distributed as d\nd.init_process_group('gloo')\n"
        "x = torch.ones(1000) * (d.get_rank() + 1)\nd.all_reduce(x)\nassert (x == 6).all()\nd.destroy_process_group()\n"
    )
    row = lab.lab_command(antiphon.topology("line:ranks=3"), [sys.executable, str(program)], name=name, timeout=120)
    assert row["exit_code"] == 0


# ---- faults ----


def inside(owner: Any, space: str) -> list[int]:
    """The processes in a network namespace of a lab."""
    number = os.stat(f"/proc/{owner.keeper}/root/run/netns/{space}").st_ino
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.stat(entry / "ns" / "net").st_ino == number:
                found.append(int(entry.name))
    return found


def during(name: str, what: Callable[[Any], None]) -> threading.Thread:
    """Do it as soon as rank 1 of this lab moves data."""

    def wait() -> None:
        def moving() -> bool:
            found = find_lab(name)
            try:
                one = inside(found, "r1")[0]
                lines = Path(f"/proc/{one}/net/dev").read_text().splitlines()[2:]
            except (AttributeError, IndexError, OSError):  # the lab, its namespace or its process is not there yet
                return False
            return sum(int(line.split(":")[1].split()[8]) for line in lines) > 100_000

        if gone(moving, 20):
            what(find_lab(name))

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.fixture
def long_run(name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A run that would take some ten seconds."""
    monkeypatch.setattr(runtime, "STALL", 1.0)
    machine = antiphon.topology("ring:ranks=3")
    schedule = antiphon.plan("allgather", machine, planner="ring").at(0).schedule

    def go() -> Any:
        return lab_run(schedule, machine, "3MB", repeat=20, name=name, scale="link=8Mbit", timeout=60)

    return go


@pytest.mark.slow
def test_a_rank_that_is_killed(name: str, long_run: Callable[[], Any]) -> None:
    thread = during(name, lambda found: os.kill(inside(found, "r1")[0], signal.SIGKILL))
    with pytest.raises(Failed, match="rank 1: ended by signal 9"):
        long_run()
    thread.join()


@pytest.mark.slow
def test_a_link_that_disappears(name: str, long_run: Callable[[], Any]) -> None:
    def cut(found: Any) -> None:
        command = [*SCRIPT, "enter", str(found.keeper), "r1", "once", "ip", "link", "set", "dev", "r2", "down"]
        subprocess.run(command, check=True)

    thread = during(name, cut)
    with pytest.raises(Failed, match=r"the link between r. and r. is down"):
        long_run()
    thread.join()


@pytest.mark.slow
def test_a_lab_that_is_taken_down_meanwhile(name: str, long_run: Callable[[], Any]) -> None:
    thread = during(name, lambda _: lab.lab_down(name))
    with pytest.raises(Failed, match="taken down"):
        long_run()
    thread.join()


SLEEP = f"sleep 1234.{os.getpid()}"  # nobody else's


@contextlib.contextmanager
def started(program: str) -> Iterator[subprocess.Popen[bytes]]:
    """It is killed in the end, if it still runs: also where the test fails."""
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_lab_ends_with_who_made_it(name: str, number: signal.Signals) -> None:
    """However that ends: the kernel takes all of it away, and what ran in it, detached or not."""
    mark = f"{name}-{number}"
    program = (
        "import antiphon; from antiphon.runtimes.lab.lab import lab_command; "
        "lab_command(antiphon.topology('ring:ranks=3'), "
        f"['sh', '-c', 'setsid {SLEEP} & exec {SLEEP}'], name='{mark}')"
    )
    with started(program) as owner:
        assert gone(lambda: _sleeping() >= 6, 30)
        found = find_lab(mark)
        assert found is not None
        assert found.about["owner"] == owner.pid
        owner.send_signal(number)
        owner.wait(60)
    assert gone(lambda: find_lab(mark) is None and not Path(f"/proc/{found.keeper}/ns").exists() and not _sleeping())


@pytest.mark.slow
def test_a_lab_that_stays_outlives_those_who_use_it(name: str) -> None:
    """But what they ran there ends with them."""
    lab.lab_up(antiphon.topology("ring:ranks=3"), name=name)
    try:
        what = (
            f"from antiphon.runtimes.lab.lab import lab_command; lab_command('{name}', ['sh', '-c', 'setsid {SLEEP}'])"
        )
        with started(what):
            assert gone(lambda: _sleeping() >= 3, 30)
        assert gone(lambda: not _sleeping())
        assert name in lab.lab_names()
        with pytest.raises(AntiphonError, match="not done within"):
            lab.lab_command(name, ["sh", "-c", f"setsid {SLEEP}"], timeout=1.0)
        assert gone(lambda: not _sleeping())
    finally:
        assert lab.lab_down(name) == [name]


def _sleeping() -> int:
    """How many of the sleepers there are, zombies not counted."""
    count, wanted = 0, SLEEP.replace(" ", "\0").encode() + b"\0"
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            count += entry.name.isdigit() and (entry / "cmdline").read_bytes() == wanted
    return count


def test_plans_for_other_paths_are_refused(name: str) -> None:
    machine = antiphon.topology("cluster:box=full:ranks=2,boxes=2,fabric=leaf-spine,boxes_per_leaf=1,spines=2")
    try:
        plan = antiphon.plan("allreduce", machine, planner="hierarchical-ring")
    except AntiphonError:
        pytest.skip("no planner spreads here")
    with contextlib.suppress(Unsupported):
        checked(lab_plan(plan, "8KB", repeat=1, name=name)[0], machine)


# ---- links that are cut ----


def test_paths_avoid_what_is_cut() -> None:
    """The batches put the cables down at both ends, and lead every rank around them; parallel links go together."""
    layout = lay_out(antiphon.topology("cluster:box=dgx1v,boxes=2"))
    downs = {
        (space, line)
        for _, space, text in cut_batches(layout, [(0, 3)])
        for line in text.splitlines()
        if "down" in line
    }
    assert downs == {("r0", "link set dev r3 down"), ("r3", "link set dev r0 down")}
    around = layout.without([(0, 3)])
    assert around.connected()
    assert [layout.space(int(layout.machine.link_dst[link])) for link in around.path(0, 3) or []] in (
        ["r1", "r3"], ["r2", "r3"], ["s0", "r3"],
    )  # fmt: skip
    routes = dict.fromkeys(
        line for _, space, text in route_batches(around) if space == "r0" for line in text.splitlines()
    )
    assert not any("dev r3 " in line or line.endswith("dev r3") for line in routes)
    assert all(" replace " in line for line in routes)
    assert not layout.without([(0, 1), (0, 2), (0, 3), (0, 4), (0, 16)]).connected()


def test_cuts_that_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "lab", "up", "dgx1v", "--name", name)
    try:
        for words, says in {
            f"lab cut {name} 0-7": "no link joins rank 0 and rank 7",
            f"lab cut {name} 0-3:1": "a lab cuts whole links",
            f"lab cut {name} 0-9": "unknown node of dgx1v '9'",
            f"lab run {name} --cut 0-7@1s -- true": "no link joins rank 0 and rank 7",
            f"lab run {name} --cut 0-3 -- true": "expected a link and a time, such as 0-1@5s",
            f"lab run {name} --cut 0-3@soon -- true": "cannot read 'soon'",
            f"lab run {name} --cut 0-3@call=0 -- true": "cannot read 'call=0'",
        }.items():
            assert run(words.split()) == 2
            assert says in capsys.readouterr().err
    finally:
        answer(capsys, "lab", "down", name)


@pytest.mark.slow
def test_a_link_is_cut_and_mended(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is dead is told to the programs; a cut in time comes while the program runs, and all are up at the end."""
    monkeypatch.setattr(lab, "REROUTE", 0.2)
    show = "cat /dev/shm/dead; echo; ip route get 10.77.0.2 | head -1; sleep 3; cat /dev/shm/dead; echo"
    command = ["sh", "-c", f"[ {{rank}} != 0 ] || {{ {show}; }}"]
    lab.lab_up(antiphon.topology("ring:ranks=3"), name=name)
    try:
        assert lab.lab_cut(name, ["1-0"]) == {"name": name, "dead": ["0-1"], "reachable": True}
        lab.lab_command(name, command, cuts=[lab.LinkCut("1-2", 1.0)])
        said = capfd.readouterr().out.splitlines()
        assert (said[0], said[2]) == ("0-1", "1-2")
        assert "dev r2" in said[1]
        assert lab.lab_cut(name, ["0-1", "0-2"])["reachable"] is False
        assert lab.lab_cut(name, [])["dead"] == []
        lab.lab_command(name, command)
        said = capfd.readouterr().out.splitlines()
        assert (said[0], said[2]) == ("", "")
        assert "dev r1" in said[1]
    finally:
        lab.lab_down(name)


CALLS_UNTIL_CUT = """
import os, sys, time
from pathlib import Path
import numpy as np
import antiphon
from antiphon.errors import AntiphonError
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"] + ":29519"
with antiphon.comm.connect(rank=rank, ranks=ranks, address=address, timeout=5, table=sys.argv[1]) as group:
    for call in range(1, 500):
        try:
            group.allreduce(np.ones(10))
        except AntiphonError:
            break
        if Path("/dev/shm/dead").exists():
            break
        time.sleep(0.02)
    print(call, flush=True)
"""


@pytest.mark.slow
def test_a_link_is_cut_at_a_call(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_SECRET", "only for this test")
    antiphon.save(antiphon.plan("allreduce", "ring:ranks=3"), tmp_path / "plan.json")
    command = [sys.executable, "-c", CALLS_UNTIL_CUT, str(tmp_path / "plan.json")]
    antiphon.lab.command("ring:ranks=3", command, name=name, timeout=120, cuts={"0-1": "call=5", "1-2": "call=999"})
    out, err = capfd.readouterr()
    assert len(out.split()) == 3
    assert all(4 <= int(call) < 499 for call in out.split()), err
    assert "1-2 was not cut: the program had ended" in err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mpi", "torch"])
def test_a_job_goes_on_by_the_repaired_table(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    """Links cut at random under a job: right results or an error, no hang; bench_cuts.py does that a hundred times."""
    if kind == "torch":
        pytest.importorskip("torch")
    else:
        monkeypatch.setattr(bench_cuts, "MPICH", request.getfixturevalue("mpich").bin)
    result = bench_cuts.run(kind, bench_cuts.kite(), cuts=2, seed=1, timeout=2.0)
    assert result["calls"] > 10
    assert len(result["rows"]) == 2
    if kind == "mpi":
        assert sum(row["calls"] for row in result["served"]) > 5
