"""Logs of nccl-tests, rccl-tests and OSU, in the forms that versions print and people paste."""

from __future__ import annotations

import json
import re

import pytest

from antiphon.errors import Invalid
from antiphon.formats.benchmark_log import BenchmarkRun, read_points, read_runs

POINTS = [(1 << 10, 2.05e-5), (1 << 20, 4.12e-5), (1 << 30, 4.21e-3)]
HEAD = """# nccl-tests version 2.17.6 nccl-headers=22804 nccl-library=22804
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 1024(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   6899 on    node-a device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6900 on    node-b device  0 [0000:05:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 40.1\n#\n# Collective test concluded: all_reduce_perf\n"


def row(nbytes: int, seconds: float, columns: str, factor: float, wrong: str = "0", in_place: str = "0") -> str:
    """A row as nccl-tests prints it; `columns`: operator and root, as far as the version has them."""
    us = seconds * 1e6
    time = f"{us:.2f}" if us < 100 else f"{us:.1f}" if us < 10000 else f"{us:.0f}"
    gbs = nbytes / seconds / 1e9
    half = f"{time:>8}  {gbs:6.2f}  {factor * gbs:6.2f}"
    return f"{nbytes:12d}  {nbytes // 4:12d}  {'float':>8}  {columns}  {half}  {wrong:>5}  {half}  {in_place:>5}\n"


def table(columns: str = "sum   -1", factor: float = 1.0, wrong: str = "0") -> str:
    return "".join(row(nbytes, seconds, columns, factor, wrong) for nbytes, seconds in POINTS)


LOG = HEAD + table() + FOOT
OSU_5 = "# OSU MPI-CUDA Allreduce Latency Test v5.9\n# Size       Avg Latency(us)\n1024  20.50\n1048576  41.20\n"
OSU_7 = """# OSU MPI All-to-All Personalized Exchange Latency Test v7.5
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations  P50 Tail Lat(us)  Validation
1024                   20.50             18.01             23.97        1000             20.40        Pass
262144                 41.20             40.01             43.97         100             41.10        Fail
"""


def rounded(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(nbytes, round(seconds, 9)) for nbytes, seconds in points]


def wrapped(text: str, columns: int) -> str:
    """Break every line as a terminal of this width does."""
    return "\n".join(
        line[at : at + columns] for line in text.split("\n") for at in range(0, max(len(line), 1), columns)
    )


def stripped(text: str) -> str:
    """As forums show it: marks of comments and leading blanks lost, lines broken between words."""
    return "\n".join(re.sub(r"(-1 .{22}\S+) +", r"\1\n", line.lstrip("# ")) for line in text.split("\n"))


@pytest.mark.parametrize(
    "paste",
    [
        LOG,
        LOG.replace("\n", "\r\n"),
        "".join(f"[1,0]<stdout>: {line}\n" for line in LOG.splitlines()),
        "".join(f"[0] {line.replace('-1 ', '-1[0] ')}\n" for line in LOG.splitlines()),
        "".join(f" 0: {line}\n" for line in LOG.splitlines()),
        "".join(f"2026-11-02T10:11:12.123Z {line}\n" for line in LOG.splitlines()),
        "".join(f"2026-11-02T10:11:12.123Z stdout F {line}\n" for line in LOG.splitlines()),
        "".join(json.dumps({"log": f"{line}\n", "stream": "stdout"}) + "\n" for line in LOG.splitlines()),
        "".join(f"> | {line} |\n" for line in LOG.splitlines()),
        re.sub(r"(?<=\S) +", "\t", LOG),
        HEAD + re.sub(r"(?<=\S) +", ",", table()) + FOOT,
        HEAD + re.sub(r"(?<=\S) +", " ; ", table()) + FOOT,
        "".join(f"\x1b[32m{line}\x1b[0m\n" for line in LOG.splitlines()),
        f"user@node-a:~$ mpirun -np 2 ./build/all_reduce_perf -b 1K -e 1G\n{LOG}user@node-a:~$ ls\n",
        wrapped(LOG, 80),
        wrapped(LOG, 91),
        wrapped(LOG, 100),
        stripped(LOG),
    ],
)
def test_pasted_logs_read_alike(paste: str) -> None:
    (run,) = read_runs(paste)
    assert (run.kind, run.ranks, run.garbled) == ("allreduce", 2, 0)
    assert rounded(run.points()) == POINTS
    assert [r.in_place for r in run.rows] == pytest.approx([seconds for _, seconds in POINTS])
    assert not any(r.wrong for r in run.rows)


RANK_5 = "#  Rank  5 Group  0 Pid 9 on node-a device  5 [0x07] NVIDIA A100-SXM4-80GB\n"


@pytest.mark.parametrize(
    ("text", "kind", "ranks"),
    [  # 2.0 to 2.12 have no root, some have no operator; then every row has both
        (f"$ ./all_gather_perf\n{table('')}", "allgather", 0),
        (f"$ ./all_gather_perf\n{table('', 0.9375)}", "allgather", 16),
        (f"$ ./broadcast_perf -g 8\n{table('   0')}", "broadcast", 0),
        (f"$ ./reduce_perf\n{table('sum  0')}", "reduce", 0),
        (f"./build/alltoall_perf\n{table('none -1', 0.875)}", "alltoall", 8),
        (f"./all_reduce_perf_mpi\n{table('sum -1', 1.75)}", "allreduce", 8),
        (table("sum -1", 1.96875), "allreduce", 64),  # no program is named
        (table("sum -1", 0.75), "reducescatter", 4),
        (table("sum", 1.75), "allreduce", 8),  # of old versions, which print no root
        (table("max 0"), "reduce", 0),
        (table("none 0"), "broadcast", 0),
        (f"$ mpirun all_gather_perf -b 8\n$ ls\nbroadcast_perf reduce_perf\n{table('none -1', 0.875)}", "allgather", 8),
        (f"all_gather_perf\nhypercube_perf\nsendrecv_perf\n{table('sum -1', 1.75)}", "allreduce", 8),
        (f"./all_reduce_perf; ./all_gather_perf\n{HEAD}{table('sum -1', 1.75)}", "allreduce", 8),  # a list cut short
        (f"./reduce_perf\n{RANK_5}{table('sum  0')}", "reduce", 6),  # a list of which the last line is left
    ],
)
def test_collective_and_ranks(text: str, kind: str, ranks: int) -> None:
    (run,) = read_runs(text)
    assert (run.kind, run.ranks, rounded(run.points())) == (kind, ranks, POINTS)


def test_what_a_log_says_of_the_job() -> None:
    text = (
        "$ mpirun -x NCCL_ALGO=Ring -x NCCL_IB_HCA==mlx5_0 all_reduce_perf\n" + HEAD
        + "node-a:1:1 [0] NCCL INFO NCCL_PROTO set by environment to Simple.\n"
        "node-a:1:1 [0] NCCL INFO Using network Socket\nNCCL version 2.21.5+cuda12.4\n"
        "node-a:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"
        + table(wrong="3") + "# Out of bounds values : 6 FAILED\n"
    )  # fmt: skip
    (run,) = read_runs(text)
    assert run.environment == {"NCCL_ALGO": "Ring", "NCCL_IB_HCA": "=mlx5_0", "NCCL_PROTO": "Simple."}
    assert (run.version, run.library, run.gpu, run.hosts) == ("2.17.6", "NCCL 2.21.5", "NVIDIA H100 80GB HBM3", 2)
    assert set(run.signs) == {"sockets", "host memory"}
    assert all(r.wrong for r in run.rows)
    rccl = f"rccl-tests: Version 2.18:+\n# Using devices\nRCCL version : 2.26.6-HEAD\n./all_reduce_perf\n{table()}"
    assert [(r.program, r.library) for r in read_runs(rccl)] == [("rccl-tests", "RCCL 2.26.6")]


@pytest.mark.parametrize(
    "more", [["#bitdiff"], ["i_min", "i_max", "i_p99", "i_cv%"], ["#bitdiff", "i_min", "i_max", "i_p99", "i_cv%"]]
)
def test_options_that_add_columns(more: list[str]) -> None:
    """-B, per-iteration timing and time stamps."""
    head = HEAD.replace("#wrong  ", f"#wrong {' '.join(more)} ").replace(
        "#wrong\n", f"#wrong {' '.join(more)} timestamp\n"
    )
    numbers = " ".join(str(7 + i) for i in range(len(more)))
    rows = re.sub(r"(?m) 0  (?= )", f" 0 {numbers} ", table()).replace(
        "    0\n", f"    0 {numbers} 2026-11-02 10:11:12\n"
    )
    (run,) = read_runs(head + rows + FOOT)
    assert (rounded(run.points()), run.garbled) == (POINTS, 0)
    assert [r.in_place for r in run.rows] == pytest.approx([seconds for _, seconds in POINTS])
    assert not any(r.wrong for r in run.rows)


def json_log(**changes: object) -> str:
    """The file that nccl-tests -J writes, as far as it is read."""

    def place(nbytes: int, seconds: float) -> dict[str, object]:
        gbs = nbytes / seconds / 1e9
        return {"time": seconds * 1e6, "alg_bw": gbs, "bus_bw": gbs, "nwrong": 0.0}

    log = {
        "args": ["/opt/build/all_reduce_perf", "-b", "1K"], "env": ["HOME=/", "NCCL_ALGO=Ring"], "nccl_version": 22804,
        "config": {"ngpus": 1, "devices": [
            {"rank": i, "group": 0, "pid": 7 + i, "hostname": f"node-{i}", "device": 0, "device_hex": "0000:04:00",
             "device_info": "NVIDIA H100 80GB HBM3"} for i in range(2)
        ]},
        "results": [
            {"size": n, "count": n // 4, "type": "float", "redop": "sum", "root": "    -1",
             "out_of_place": place(n, t), "in_place": {**place(n, t), "nwrong": None}} for n, t in POINTS
        ],
    }  # fmt: skip
    return json.dumps({**log, **changes})


def test_json() -> None:
    (run,) = read_runs(json_log())
    assert (run.kind, run.ranks, run.hosts, run.library, run.gpu) == (
        "allreduce", 2, 2, "NCCL 2.28.4", "NVIDIA H100 80GB HBM3",
    )  # fmt: skip
    assert (rounded(run.points()), run.environment) == (POINTS, {"NCCL_ALGO": "Ring"})
    for changes in (
        {"args": []},
        {"config": {}},
        {"results": [{"out_of_place": 1}]},
        {"results": 7},
        {"args": {"a": 1}},
    ):
        with pytest.raises(Invalid, match="is no JSON of nccl-tests -J"):
            read_runs(json_log(**changes, out_of_place=None))


@pytest.mark.parametrize(
    ("in_place", "noise"), [([0.8, 0.8, 0.8, 0.8], 0.0), ([0.76, 0.84, 0.76, 0.84], 0.05), ([1.0, 1.0], None)]
)
def test_noise_is_not_a_steady_difference(in_place: list[float], noise: float | None) -> None:
    rows = (
        f"{n} {n} int8 sum -1 {n / 1e4} 10.0 10.0 0 {f * n / 1e4} 10.0 10.0 0\n"
        for n, f in zip((10**6, 10**7, 10**8, 10**9), in_place, strict=False)
    )
    (run,) = read_runs(f"./all_reduce_perf\n{''.join(rows)}")
    assert run.spread() == pytest.approx(noise)
    repeated = read_runs(f"./all_reduce_perf\n{LOG.partition('(GB/s)')[2] * 3}")[0]
    assert repeated.spread() == pytest.approx(0.0)


def test_several_runs_of_a_file() -> None:
    other = LOG.replace("all_reduce", "reduce_scatter").replace("sum   -1", "sum   -1 ")
    slow = HEAD + "".join(row(nbytes, 2 * seconds, "sum   -1", 1.0) for nbytes, seconds in POINTS) + FOOT
    runs = read_runs(LOG + other + slow + OSU_5)
    assert [(r.kind, r.program, len(r.rows)) for r in runs] == [
        ("allreduce", "nccl-tests", 3), ("reducescatter", "nccl-tests", 3), ("allreduce", "nccl-tests", 3),
        ("allreduce", "OSU", 2),
    ]  # fmt: skip
    assert rounded(read_points(LOG + slow)["allreduce"]) == POINTS
    assert read_runs(LOG + slow)[1].spread() == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("text", "kind", "points"),
    [
        (OSU_5, "allreduce", [(1024, 2.05e-5), (1048576, 4.12e-5)]),
        (OSU_5.replace("20.50", "20.50 us"), "allreduce", [(1024, 2.05e-5), (1048576, 4.12e-5)]),
        (OSU_7, "alltoall", [(4096, 2.05e-5), (1048576, 4.12e-5)]),  # of four ranks
        (f"mpirun -n 2 osu_alltoall -f\n{OSU_7}", "alltoall", [(2048, 2.05e-5), (524288, 4.12e-5)]),
        (OSU_5.replace("Allreduce", "Reduce_scatter").replace("\n", "\r\n"), "reducescatter", None),
        (OSU_5.replace("# OSU", "[1,0]<stdout>:\\# OSU").replace("Allreduce", "Broadcast"), "broadcast", None),
        (OSU_5.replace("v5.9", "v6.2").replace("Allreduce", "Allgatherv"), "allgather", [(4096, 2.05e-5)]),
    ],
)
def test_osu(text: str, kind: str, points: list[tuple[int, float]] | None) -> None:
    (run,) = read_runs(text)
    assert (run.kind, run.program) == (kind, "OSU")
    if points:
        assert rounded(run.points(4))[: len(points)] == points
    assert [r.wrong for r in run.rows] == [False, "Fail" in text]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "has no rows as nccl-tests, rccl-tests or OSU collectives print them"),
        (HEAD, "has no rows"),
        (table("none -1", 0.875), "does not name its collective"),
        (f"./sendrecv_perf\n{table('none -1')}", "measures 'sendrecv', which is no collective"),
        (f"./sendrecv_perf\n{table('sum -1')}", "measures 'sendrecv', which is no collective"),
        (f"{HEAD}node-a: Test NCCL failure common.cu:1005 'internal error'", "the program failed: 'internal error'"),
        (OSU_5.replace("Allreduce", "Non-blocking Allreduce"), "which is no collective"),
        (
            "./all_reduce_perf\n 1024 256 float sum -1 20.5 900.0 900.0 0\n",
            r"rows \(1\) lack .* or algbw contradicts the time",
        ),
        ("./all_reduce_perf\n 1024 256 float sum -1 " + "9" * 400 + " 1 1 0\n 8 2 float", r"rows \(2\) lack time"),
        ("1 1 float " * 5000 + "\n" + "7 " * 20000, r"rows \(1\) lack time"),
        ("./all_reduce_perf\n 1024 256 float sum -1 20.5 0.05\n", r"lack time, algbw, busbw"),  # no column busbw
    ],
)
def test_what_is_no_log(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        read_runs(text)


OSU_BANDWIDTH = (
    "# OSU MPI Bandwidth Test v7.5\n# Size      Bandwidth (MB/s)\n1                       3.51\n1024   3211.15\n"
)


def test_other_benchmarks_of_osu_end_a_run() -> None:
    neighbors = OSU_5.replace("MPI-CUDA", "MPI").replace("Allreduce", "Neighborhood Allgather")
    (run,) = read_runs(OSU_5 + OSU_BANDWIDTH + neighbors)
    assert (run.kind, rounded(run.points())) == ("allreduce", [(1024, 2.05e-5), (1048576, 4.12e-5)])
    with pytest.raises(Invalid, match="measures 'MPI Bandwidth', which is no collective"):
        read_runs(OSU_BANDWIDTH)


def test_each_command_of_osu_has_its_processes() -> None:
    text = f"$ mpirun -np 8 osu_allreduce\n{OSU_5}$ srun -n 4 osu_bcast\n{OSU_5.replace('Allreduce', 'Broadcast')}"
    assert [(run.kind, run.ranks, len(run.rows)) for run in read_runs(text)] == [
        ("allreduce", 8, 2), ("broadcast", 4, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("stamp", ["", " [2026-11-02 10:11:12] "])
def test_lines_of_the_library_within_a_row(stamp: str) -> None:
    """NCCL_DEBUG=INFO: the library logs while the first half of the row is printed."""
    said = f"{stamp}node-a:6899:6920 [0] NCCL INFO "
    row_cut = table().replace("sum   -1", f"sum   -1{said}Using network Socket\n{said}Connected all rings\n")
    (run,) = read_runs(HEAD + row_cut + FOOT)
    assert (rounded(run.points()), run.garbled, run.signs) == (POINTS, 0, ("sockets",))


@pytest.mark.parametrize(
    "line", ['{"log": "a\tb", "level": 1}', '{"log": "C:\\x"}', '{"log": "\\ud83d"}', '{"log": "begin']
)
def test_other_lines_of_json_hide_no_row(line: str) -> None:
    (run,) = read_runs(f'{line}\n{LOG}end", "a": 1}}\n')
    assert rounded(run.points()) == POINTS


def test_runs_of_other_programs_do_not_count() -> None:
    text = LOG + LOG.replace("all_reduce", "sendrecv") + table("none -1", 0.875)
    (run,) = read_runs(LOG + LOG.replace("all_reduce", "sendrecv"))
    assert (run.kind, run.ranks) == ("allreduce", 2)
    assert [r.kind for r in read_runs(text, with_incomparable=True)][:2] == ["allreduce", "sendrecv"]


def test_garbled_rows_are_left_out() -> None:
    (run,) = read_runs(LOG.replace(" 1048576 ", " 9948576 "))
    assert (run.garbled, [nbytes for nbytes, _ in rounded(run.points())]) == (1, [1 << 10, 1 << 30])
    assert BenchmarkRun().spread() is None
