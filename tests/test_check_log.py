"""check-log: verdicts on tables of healthy machines, on degraded ones, on public threads, and on upgrades."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from published import FIT, HELD_OUT, ONE_FOR_ALL, published
from quick import in_turn
from test_benchmark_log import LOG, OSU_5, row

from antiphon.cli import run
from antiphon.cost.nccl.library import library_here
from antiphon.errors import Invalid
from antiphon.measure import check_log, compare_logs
from antiphon.topologies import topology

TWO = "cluster:box=hgx-h100,boxes=2"
KB, MB, GB = 2**10, 2**20, 2**30
PROGRAMS = {"allreduce": ("all_reduce", "sum -1"), "allgather": ("all_gather", "none -1")}
SWEEP = [8 * 4**i for i in range(15)]


def factor(kind: str, ranks: int) -> float:
    return (2 if kind == "allreduce" else 1) * (ranks - 1) / ranks


def write(folder: Path, kind: str, ranks: int, points: list[tuple[int, float]], before: str = "") -> Path:
    """A log with these sizes and seconds; `before`: lines or variables of the command."""
    program, columns = PROGRAMS[kind]
    text = "".join(row(nbytes, seconds, columns, factor(kind, ranks)) for nbytes, seconds in points)
    path = folder / "test.log"
    path.write_text(f"$ mpirun {before} ./{program}_perf\n{text}")
    return path


def busbw(ranks: int, *points: tuple[int, float]) -> list[tuple[int, float]]:
    """Seconds of an allreduce from sizes and GB/s of bus bandwidth."""
    return [(nbytes, factor("allreduce", ranks) * nbytes / (gbs * 1e9)) for nbytes, gbs in points]


# Networks that the model has no figures for by the name of the machine
OTHER_NETWORKS = ("h100-a3mega", "h100-a3mega-gke-gather", "h200-a3ultra-gather")
# Tables that decided nothing about the model: machines as they should be, and slow by an old library or network plugin
UNUSED = {
    "h100-coreweave-8": "normal", "gb200-coreweave-72": "normal", "a100-p4d-old": "normal", "a100-p4d-old-2": "normal",
    "a100-p4d-old-3": "slow", "a100-p4d-old-4": "slow", "h100-p5-2-old": "slow",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    in_turn([
        t.name for t in published()
        if t.name in UNUSED or (t.part in (FIT, HELD_OUT) and t.topology and t.collective in PROGRAMS)
    ], 10),
)  # fmt: skip
def test_published_tables(name: str, tmp_path: Path) -> None:
    (table,) = (t for t in published() if t.name == name)
    path = write(tmp_path, table.collective, table.ranks, table.seconds())
    library = f"{table.library.lower()}:processes={'one' if table.processes == ONE_FOR_ALL else 'each'}"
    (result,) = check_log(path, table.topology, library=library)
    verdict = UNUSED.get(name, "slow" if name in OTHER_NETWORKS else "normal")
    assert result["verdict"] == verdict, result["text"]
    if name == "a100-p4d-2":  # which is normal for rings, and slow where the log says that only rings were allowed
        path = write(tmp_path, table.collective, table.ranks, table.seconds(), "-x NCCL_ALGO=RING")
        (named,) = check_log(path, table.topology)
        assert (named["verdict"], named["causes"][0]["cause"]) == ("slow", "algorithm-ring")
    assert [r["nbytes"] for r in result["rows"]] == [nbytes for nbytes, _ in table.seconds()]


# What public threads measured, and how they ended: NVIDIA/nccl-tests 29 (before and after GPUDirect RDMA), 100, 112,
# 119, 175, 212, 290, 309, 347; NVIDIA/nccl 412, 1048, 1221, 1453, 1455, 2140, 2409. (nccl-tests 71, 182 and 294
# ended with "built without MPI", see below.)
THREADS = [
    ("hgx-h100", [(8 * GB, 31356e-6)], "", "normal", ""),
    ("hgx-h100", [(256 * MB, 256 * MB / 250e9)], "", "normal", ""),
    ("hgx-h100", busbw(8, (GB, 366), (4 * GB, 370), (8 * GB, 370)), "", "slow", "nvls-off"),
    ("hgx-h100", busbw(8, (8 * GB, 476)), "", "normal", ""),
    ("hgx-h100", busbw(8, (2 * GB, 480), (4 * GB, 480)), "-x NCCL_ALGO=NVLS", "normal", ""),
    ("hgx-h100", busbw(8, (2 * GB, 368), (4 * GB, 368)), "-x NCCL_ALGO=RING", "slow", "algorithm-ring"),
    ("dgx-a100", busbw(8, (4 * GB, 232.54)), "", "normal", ""),
    ("cluster:box=dgx-a100,boxes=3,nics=4,nic=200Gbit/s", [
        (127926280, 2560.7e-6), (130023432, 2584.7e-6), (132120584, 2644.1e-6), (133169160, 2666e-6),
    ], "", "normal", ""),
    (TWO, busbw(16, (16 * GB, 470)), "", "normal", ""),
    (TWO, busbw(16, (4 * GB, 330), (8 * GB, 330)), "-x NCCL_NVLS_ENABLE=0", "slow", "nvls-off"),
    (TWO, busbw(16, (4 * GB, 430), (8 * GB, 430)), "-x NCCL_NVLS_ENABLE=1", "normal", ""),
    ("cluster:box=hgx-h100,boxes=3", [
        (MB, 1626e-6), (4 * MB, 623e-6), (16 * MB, 1335e-6), (64 * MB, 24410e-6), (512 * MB, 193909e-6),
    ], "", "slow", None),
    ("cluster:box=dgx-a100,boxes=2,nics=4,nic=200Gbit/s", busbw(16, (4 * GB, 86)), "", "normal", ""),
    (TWO, busbw(16, (GB, 216.5), (8 * GB, 231)), "", "slow", None),
    (TWO, busbw(16, (GB, 216.5), (8 * GB, 231)), "-x NCCL_IB_HCA=a,b,c,d,e,f,g,h -x NCCL_P2P_LEVEL=NVL", "slow", None),
    ("cluster:box=dgx-a100,boxes=2,nics=4,nic=200Gbit/s", busbw(16, (GB, 9.84), (8 * GB, 9.84)),
     "-x NCCL_IB_HCA=mlx5_0", "slow", "cards"),
    ("cluster:box=dgx-a100,boxes=12,nics=1,nic=200Gbit/s", busbw(96, (GB, 15.3), (4 * GB, 15.3), (8 * GB, 15.3)),
     "", "slow", "network"),
    ("cluster:box=dgx1v,boxes=4,nics=1,nic=100Gbit/s", busbw(32, (512 * MB, 6)), "", "slow", None),
    ("cluster:box=dgx1v,boxes=4,nics=1,nic=100Gbit/s", busbw(32, (512 * MB, 12.2)), "", "normal", ""),
    ("cluster:box=dgx-a100,boxes=2,nics=4,nic=200Gbit/s", busbw(16, (GB, 91), (8 * GB, 91)),
     "-x NCCL_IB_HCA=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1", "normal", ""),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "points", "before", "verdict", "cause"), in_turn(THREADS, 8))
def test_public_threads(
    spec: str, points: list[tuple[int, float]], before: str, verdict: str, cause: str | None, tmp_path: Path
) -> None:
    (result,) = check_log(write(tmp_path, "allreduce", topology(spec).ranks, points, before), spec)
    assert result["verdict"] == verdict, result["text"]
    assert (result["causes"][0]["cause"] if result["causes"] else "") == (cause or "")
    assert cause is not None or "cannot tell why" in result["text"]


# Without MPI every process lists its own devices as ranks 0, 1, ...
SEPARATE = "./all_reduce_perf\n" + "".join(
    f"#  Rank  {rank} Group  0 Pid 35 on {host} device {rank} [0x03] NVIDIA H100 80GB HBM3\n"
    for host in ("a", "b") for rank in (0, 1)
)  # fmt: skip


A100 = "./all_reduce_perf\n#  Rank  0 Group  0 Pid 1 on a device  0 [0x07] NVIDIA A100-SXM4-80GB\n"


@pytest.mark.parametrize(
    ("text", "spec", "words"),
    [
        (LOG, "full:ranks=2,bandwidth=400GB/s", "64% of the wire at 1GiB, but what is normal is not known"),
        (OSU_5, "hgx-h100", "it ends at 1MiB"),
        (OSU_5.replace("MPI-CUDA", "NCCL-CUDA"), "hgx-h100", "it ends at 1MiB"),
        (LOG, "full:ranks=2", "faster than these links allow"),
        (LOG.replace("all_reduce", "sendrecv"), "full:ranks=2", "cannot tell: 'sendrecv' is no collective"),
        (f"./all_reduce_perf\n{row(GB, 4e-3, 'sum -1', 0.0)}", "hgx-h100", "the processes did not form one job"),
        (SEPARATE + row(GB, 4e-3, "sum -1", 1.0) * 2, "hgx-h100", "the processes did not form one job"),
        (row(GB, 4e-3, "none -1", 0.875), "hgx-h100", "cannot tell: the collective is not named"),
        (LOG.replace(" 0 OK", " 3 FAILED"), "full:ranks=2", "wrong results at 3 of 3 sizes"),
        (f"./all_reduce_perf\n{row(GB, GB / 900e9, 'sum -1', 1.75)}", "hgx-h100", "faster than these links allow"),
        (A100 + row(GB, GB / 133e9, "sum -1", 1.75), "hgx-h100", "not known (the log names other GPUs)"),
    ],
)
def test_what_cannot_be_told(text: str, spec: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(text)
    assert words in check_log(path, spec)[0]["text"]


def test_notes_and_wrong_results(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(
        "#  Rank  0 Group  0 Pid 1 on a device  0 [0x07] NVIDIA A100-SXM4-80GB\n"
        + "".join(f"#  Rank  {i} Group  0 Pid 1 on a device  {i} [0x07] NVIDIA A100-SXM4-80GB\n" for i in range(8))
        + f"./all_reduce_perf\n{row(GB, 4e-3, 'sum -1', 1.75, wrong='7')}{row(MB, 1.0, 'sum -1', 1.75)}".replace(
            "0.00", "9.00"
        )
    )
    with path.open("a") as file:
        file.write("node-a: Test CUDA failure common.cu:892 'out of memory'\n")
    (result,) = check_log(path, "hgx-h100")
    assert result["verdict"] == "wrong"
    assert "wrong results at 1 of 1 sizes" in result["text"]
    assert [note.split(" ")[:3] for note in result["notes"]] == [
        ["the", "program", "failed"], ["1", "rows", "are"], ["the", "log's", "GPUs"],
    ]  # fmt: skip
    with pytest.raises(Invalid, match="the log has 8 ranks, dgx2 has 16: name the machine of the run"):
        check_log(path, "dgx2")


@pytest.mark.parametrize(
    ("version", "library", "verdict"),
    [
        ("2.16.5", "", "normal"),  # which has no NVLS
        ("2.18.1", "", "slow"),
        ("2.16.5", "nccl-2.18", "slow"),
        ("2.28.3", "nccl-2.28:registered=yes", "normal"),  # symmetric kernels: within their unknown error
    ],
)
def test_versions(version: str, library: str, verdict: str, tmp_path: Path) -> None:
    """The times of the rings."""
    model = library_here(topology("hgx-h100"), algorithm="ring")
    points = [(n, model.at("allreduce", n)[0].seconds) for n in SWEEP]
    path = write(tmp_path, "allreduce", 8, points)
    path.write_text(f"NCCL version {version}+cuda12.0\n{path.read_text()}")
    assert check_log(path, "hgx-h100", library=library)[0]["verdict"] == verdict


def test_a_launch_that_hides_small_calls(tmp_path: Path) -> None:
    """Calls are launched while others run, so that none takes less than a launch, and large ones take no longer."""
    points = [(n, library_here(topology("hgx-h100")).at("allreduce", n)[0].seconds) for n in SWEEP]
    (result,) = check_log(write(tmp_path, "allreduce", 8, [(n, max(t, 3e-4)) for n, t in points]), "hgx-h100")
    assert (result["verdict"], result["causes"][0]["cause"]) == ("slow", "launch")
    assert "takes at least 3" in result["causes"][0]["text"]


def test_a_single_slow_size_is_named(tmp_path: Path) -> None:
    points = [(n, library_here(topology("hgx-h100")).at("allreduce", n)[0].seconds) for n in SWEEP]
    path = write(tmp_path, "allreduce", 8, [(n, 4 * t if n == 8 * 4**10 else t) for n, t in points])
    (result,) = check_log(path, "hgx-h100")
    assert result["verdict"] == "normal"
    assert result["text"].endswith("as this machine should give; but 4 times the predicted time at 8MiB")


def test_upgrades(tmp_path: Path) -> None:
    points = [(n, 2e-5 + n / 200e9) for n in SWEEP]
    before, after, same = (tmp_path / name for name in ("before", "after", "same"))
    for path, slowdown in ((before, 1.0), (after, 1.3), (same, 1.03)):
        text = "".join(row(n, t * (slowdown if n >= MB else 1.0), "sum -1", 1.75) for n, t in points)
        path.write_text(f"NCCL version 2.{int(slowdown * 20)}.1\n./all_reduce_perf\n{text}")
    result = compare_logs(before, after)
    (entry,) = result["collectives"]
    assert (result["verdict"], entry["libraries"]) == ("slower", ["NCCL 2.20.1", "NCCL 2.26.1"])
    assert [r["nbytes"] for r in entry["rows"] if r["verdict"] == "slower"] == [n for n in SWEEP if n >= MB]
    assert "slower at 6 of 15 sizes" in entry["text"]
    assert compare_logs(after, before)["verdict"] == "faster"
    assert compare_logs(before, same)["verdict"] == "unchanged"
    assert compare_logs(before, same)["notes"] == []
    lines = same.read_text().splitlines()
    garbled = lines[-1].replace(lines[-1].split()[6], "123456")  # its algbw no longer fits its time
    same.write_text("\n".join([*lines[:-2], garbled]))
    assert [note.split(" ")[:4] for note in compare_logs(before, same)["notes"]] == [
        ["1", "rows", "of", "the"], ["allreduce:", "2", "sizes", "are"],
    ]  # fmt: skip
    other = tmp_path / "other"
    other.write_text(before.read_text().replace("all_reduce", "all_gather").replace("sum", "none"))
    with pytest.raises(Invalid, match="no collective and size in common"):
        compare_logs(before, other)


def test_only_comparable_runs_are_compared(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    allgather = OSU_5.replace("Allreduce", "Allgather") + "16384  99.00\n"
    before.write_text(f"$ mpirun -np 16 osu_allgather\n{allgather}")  # sizes of one rank: 1 KiB is 16 KiB of all
    after.write_text(allgather)
    result = compare_logs(before, after)
    assert (result["verdict"], len(result["collectives"][0]["rows"])) == ("unchanged", 3)
    before.write_text(LOG)
    after.write_text(OSU_5)
    with pytest.raises(Invalid, match="no collective and size in common"):
        compare_logs(before, after)
    after.write_text(LOG.replace("H100", "A100").replace(" 0 OK", " 3 FAILED"))
    assert compare_logs(before, after)["notes"] == [
        "3 rows of the log after have wrong results; their times mean nothing",
        "allreduce: the logs name different GPUs: NVIDIA H100 80GB HBM3 before, NVIDIA A100 80GB HBM3 after",
    ]


def test_noise_from_run_to_run(tmp_path: Path) -> None:
    def runs(*factors: float) -> Path:
        path = tmp_path / str(len(factors))
        path.write_text(
            "".join(
                f"./all_reduce_perf\n{''.join(row(n, f * n / 1e11, 'sum -1', 1.75) for n in SWEEP)}" for f in factors
            )
        )
        return path

    result = compare_logs(runs(1.0, 1.1, 0.9), runs(1.15))
    assert (result["verdict"], result["collectives"][0]["noise"]) == ("unchanged", pytest.approx(0.3, rel=0.05))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    healthy = [(n, library_here(topology("hgx-h100")).at("allreduce", n)[0].seconds) for n in SWEEP]
    path = str(write(tmp_path, "allreduce", 8, healthy))
    assert run(["check-log", path, "--topology", "hgx-h100"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("allreduce of 8 ranks (nccl-tests): normal: ")
    assert max(map(len, said.splitlines())) <= 80
    slow = str(write(tmp_path, "allreduce", 8, [(n, 3 * t) for n, t in healthy]))
    assert run(["check-log", slow, "--topology", "hgx-h100", "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)["runs"]
    assert set(result) == {
        "collective", "ranks", "program", "version", "library", "gpu", "environment", "signs", "verdict", "text",
        "causes", "notes", "rows",
    }  # fmt: skip
    assert set(result["rows"][0]) == {
        "nbytes", "seconds", "busbw", "modelled", "algorithm", "protocol", "bound", "share", "ratio", "wrong",
        "verdict",
    }  # fmt: skip
    assert run(["check-log", path, slow]) == 0
    assert capsys.readouterr().out.startswith("allreduce: unchanged")
    before = tmp_path / "before.log"
    before.write_text(Path(write(tmp_path, "allreduce", 8, healthy)).read_text())
    after = str(write(tmp_path, "allreduce", 8, [(n, 3 * t) for n, t in healthy]))
    for arguments in ([str(before), "--after", after], ["--before", str(before), after]):
        assert run(["check-log", *arguments]) == 1
        assert capsys.readouterr().out.startswith("allreduce: slower")
    four = [(n, library_here(topology("mi300x")).at("allreduce", n)[0].seconds) for n in SWEEP]
    path = str(write(tmp_path, "allreduce", 4, four))
    assert run(["check-log", path, "--topology", "mi300x"]) == 2
    assert run(["check-log", path, "--topology", "mi300x:only=0-3", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["runs"][0]["ranks"] == 4
    for arguments in (
        ["check-log"],
        ["check-log", path],
        ["check-log", path, slow, "--topology", "mi300x"],
        ["check-log", path, path, slow],
    ):
        assert run(arguments) == 2


def test_a_slowdown_of_calls_in_place_alone_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for path, slowdown in ((before, 1.0), (after, 1.4)):
        rows = [row(n, 2e-5 + n / 200e9, "sum -1", 1.75) for n in SWEEP]
        words = [line.split() for line in rows]
        for columns, n in zip(words, SWEEP, strict=True):  # time and algbw in place
            seconds = slowdown * (2e-5 + n / 200e9)
            columns[-4:-1] = [f"{1e6 * seconds:.2f}", f"{n / seconds / 1e9:.2f}", f"{1.75 * n / seconds / 1e9:.2f}"]
        path.write_text("./all_reduce_perf\n" + "\n".join(map(" ".join, words)))
    result = compare_logs(before, after)
    assert (result["verdict"], [entry["in_place"] for entry in result["collectives"]]) == ("slower", [False, True])
    assert run(["check-log", "--before", str(before), "--after", str(after)]) == 1
    assert "allreduce in place: slower at 15 of 15 sizes" in capsys.readouterr().out
