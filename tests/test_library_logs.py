"""Choosing among NCCL's own settings by logs of nccl-tests: what each run forced, who wins, and what is put aside."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from quick import in_turn

import antiphon
from antiphon.cli import run
from antiphon.errors import Invalid, NotFound
from antiphon.formats.benchmark_log import read_runs
from antiphon.runtimes.measure import nccl_sweep
from antiphon.runtimes.measure.choose import MeasuredTuning

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22)
COLUMNS = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw"
)
PROGRAMS = {"allreduce": ("all_reduce_perf", "sum", 2), "allgather": ("all_gather_perf", "none", 1)}


def table(us: Mapping[int, float], kind: str = "allreduce", ranks: int = 8, wrong: int = 0, hosts: int = 1) -> str:
    """What the program prints, with these times."""
    program, op, scale = PROGRAMS[kind]
    lines = [f"# Collective test starting: {program}", "# Using devices"]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {rank} on node{rank * hosts // ranks} device {rank} [0x0{rank}] NVIDIA H100"
        for rank in range(ranks)
    ]
    lines += ["#", COLUMNS]
    for nbytes, time in us.items():
        speed = nbytes / time / 1e3
        half = f"{time:8.2f} {speed:7.2f} {speed * scale * (ranks - 1) / ranks:7.2f} {wrong:5d}"
        lines.append(f"{nbytes:12d} {nbytes // 4:12d} float {op} -1 {half} {half}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", f"# Collective test concluded: {program}"]) + "\n"


def times(*us: float) -> dict[int, float]:
    return dict(zip(SIZES, us, strict=True))


DEFAULT = times(10, 20, 60, 400)
LL = times(8, 19.5, 90, 900)  # faster at the smallest size; at the next within the noise of one run
SIMPLE = times(30, 35, 61, 250)


def tuned(folder: Path, files: Mapping[str, str], kind: str = "allreduce", machine: str = "hgx-h100") -> MeasuredTuning:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    search = antiphon.Search(workers="none")
    result = antiphon.measure.tune(kind, machine, logs=folder, planners="ring", search=search)
    assert result is not None
    return result


def settings(result: MeasuredTuning, kind: str = "allreduce") -> dict[int, str]:
    """What is chosen at each size: the algorithm with its parameters."""
    chosen = {}
    for nbytes in SIZES:
        (entry,) = [e for e in result.plans[kind].entries if e.start <= nbytes and (e.stop is None or nbytes < e.stop)]
        claim = entry.claims.get("library", {})
        numbers = (f"{key}={value}" for key, value in claim.get("parameters", {}).items())
        chosen[nbytes] = " ".join([str(claim.get("algorithm")), *numbers])
    return chosen


def test_logs_of_other_gpus_are_named_or_put_aside(tmp_path: Path) -> None:
    remark = "the log's GPUs are NVIDIA H100, the figures are of mi300x: is it this machine?"
    assert tuned(tmp_path / "a", {"default.log": table(DEFAULT)}, machine="mi300x").notes[0] == remark
    files = {"default.log": table(DEFAULT), "tree-ll.log": table(LL).replace("H100", "B200")}
    notes = tuned(tmp_path / "b", files).notes
    assert "put aside: tree-ll.log: NVIDIA B200, but the default ran on NVIDIA H100" in notes
    assert not any("is it this machine" in note for note in notes)


WANT = {1 << 10: "tree ll", 1 << 14: "default", 1 << 18: "default", 1 << 22: "ring simple channels=16"}
COMMAND = "all_reduce_perf -b 1K -e 4M -f 16"
FORMS = {
    "file names": {
        "default.log": table(DEFAULT), "tree-ll.log": table(LL), "ring_simple_16ch.log": table(SIMPLE),
    },
    "folders and assignments": {
        "a/base.txt": table(DEFAULT), "b/NCCL_ALGO=Tree,NCCL_PROTO=LL.txt": table(LL),
        "c/NCCL_ALGO=Ring,NCCL_PROTO=Simple,NCCL_MAX_NCHANNELS=16.txt": table(SIMPLE),
    },
    "commands": {
        "one.log": f"$ ./{COMMAND}\n{table(DEFAULT)}$ NCCL_ALGO=Tree NCCL_PROTO=LL ./{COMMAND}\n{table(LL)}"
        f"$ mpirun -np 8 -x NCCL_ALGO=RING -x NCCL_PROTO=simple -x NCCL_MIN_NCHANNELS=16 ./{COMMAND}\n{table(SIMPLE)}",
    },
    "exports": {
        "one.log": f"$ ./{COMMAND}\n{table(DEFAULT)}+ export NCCL_ALGO=Tree\n+ export NCCL_PROTO=LL\n+ ./{COMMAND}\n"
        f"{table(LL)}+ export NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_CTAS=16\n+ ./{COMMAND}\n{table(SIMPLE)}"
        f"+ unset NCCL_ALGO NCCL_PROTO\n+ unset NCCL_MAX_CTAS\n+ ./{COMMAND}\n{table(DEFAULT)}",
    },
    "what NCCL logs": {
        "1.log": table(DEFAULT),
        "2.log": "node0:1:1 [0] NCCL INFO NCCL_ALGO set by environment to tree\n"
        "node0:1:1 [0] NCCL INFO NCCL_PROTO set by environment to LL.\n" + table(LL),
        "3.log": "x NCCL INFO NCCL_ALGO set by environment to allreduce:ring;allgather:pat\n"
        "x NCCL INFO NCCL_PROTO set by environment to Simple\n"
        "x NCCL INFO NCCL_MAX_NCHANNELS set by environment to 16\n" + table(SIMPLE),
    },
}  # fmt: skip


@pytest.mark.parametrize("form", in_turn(FORMS, 3))
def test_what_runs_forced(form: str, tmp_path: Path) -> None:
    result = tuned(tmp_path, FORMS[form])
    assert settings(result) == WANT
    assert result.complete
    assert not any(note.startswith("put aside") for note in result.notes)
    claims = [entry.claims for entry in result.plan.entries if "library" in entry.claims]
    small, large = (claim for claim in claims if claim["library"]["algorithm"] != "default")
    assert small["library"]["name"] == "NCCL"
    assert small["served_by"] == large["served_by"] == "library"
    assert (small["library_over_default"], large["library_over_default"]) == pytest.approx((0.8, 0.625))


def test_the_rules_of_a_table_by_logs(tmp_path: Path) -> None:
    """Ranges end at the geometric middle between two sizes; nothing is said beyond the smallest and the largest."""
    result = tuned(tmp_path, FORMS["file names"])
    lines = antiphon.export(result.plans, "nccl-tuner")["nccl-tuner.txt"].decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "antiphon-nccl-tuner 1", "allreduce 1024 4095 tree ll 0 8 1", "allreduce 1048576 4194304 ring simple 16 8 1",
    ]  # fmt: skip
    assert "# measured: 1.6x over the default" in lines
    assert "# allreduce 4096 1048575: left to NCCL: its own choice was measured to be as good" in lines


@pytest.mark.parametrize(
    ("runs", "want"),
    in_turn(
        [
            ({"default": (10,), "ring": (9.6,)}, "default"),  # once each: 5 % are noise
            ({"default": (10,), "ring": (9.4,)}, "ring"),
            ({"default": (10, 10.1), "ring": (9.6, 9.7)}, "ring"),  # repeated: 2 %, and apart from each other
            ({"default": (10, 10.1), "ring": (9.85, 9.9)}, "default"),
            ({"default": (10, 11), "ring": (9.7, 9.9)}, "default"),  # the slowest run is 1 % faster than the fastest
            ({"default": (10, 11, 12), "ring": (8, 9, 10.5)}, "default"),
            ({"default": (10,), "ring": (5,), "ring-4ch": (4.95,), "tree": (9,)}, "ring channels=4"),
            ({"default": (10,), "ring": (1, 30), "tree": (8,)}, "tree"),
        ],
        2,
    ),
)
def test_noise(runs: Mapping[str, tuple[float, ...]], want: str, tmp_path: Path) -> None:
    files = {f"{name}.{i}.log": table({1 << 10: us}) for name, values in runs.items() for i, us in enumerate(values)}
    assert settings(tuned(tmp_path, files))[1 << 10] == want


ASIDE = {
    "nvls.log": (table(SIMPLE, ranks=4), "nvls.log: 4 ranks, but hgx-h100 has 8"),
    "many.log": ("NCCL_ALGO=Ring,Tree ./all_reduce_perf\n" + table(SIMPLE), "=Ring,Tree: expected one of ring"),
    "not.log": ("NCCL_ALGO=^NVLS ./all_reduce_perf\n" + table(SIMPLE), "NCCL_ALGO=^NVLS: expected one of"),
    "ll128.log": (table(SIMPLE), "ll128.log: forces no algorithm"),
    "ring-99ch.log": (table(SIMPLE), "channels '99': expected a number from 1 to 64"),
    "old-ring.log": ("NCCL version 2.19.3+cuda12\n" + table(SIMPLE), "NCCL 2.19.3, but the default ran with NCCL 2.30"),
    "buffer-ring.log": ("NCCL_BUFFSIZE=8388608 ./all_reduce_perf\n" + table(SIMPLE), "sets NCCL_BUFFSIZE=8388608"),
    "plugin-ring.log": ("NCCL_NVLS_ENABLE=0 ./all_reduce_perf\n" + table(SIMPLE), "sets NCCL_NVLS_ENABLE=0"),
    "limits-ring.log": (
        "NCCL_MIN_NCHANNELS=8 NCCL_MAX_NCHANNELS=16 ./all_reduce_perf\n" + table(SIMPLE), "channels 16 and 8: forces no"
    ),
    "elsewhere-ring.log": (table({1 << 30: 1}), "elsewhere-ring.log: none of its sizes ran with NCCL's own choice"),
    "osu.log": ("# OSU MPI-CUDA Allreduce Latency Test v5.9\n1024  20.50\n", "osu.log: OSU measures an MPI"),
    "second.log": (table(SIMPLE), "second.log: does not say what it forced; name it default.log"),
    "readme.md": ("these are our logs\n", "readme.md: has no rows as nccl-tests"),
}  # fmt: skip


def test_what_cannot_be_compared_is_put_aside(tmp_path: Path) -> None:
    default = "NCCL version 2.30.4+cuda13\n$ NCCL_IB_HCA=mlx5 NCCL_DEBUG=INFO ./all_reduce_perf\n" + table(DEFAULT)
    files = {"default.log": default, "tree-ll.log": "NCCL_IB_HCA=mlx5 ./all_reduce_perf\n" + table(LL)}
    result = tuned(tmp_path, {**files, **{name: text for name, (text, _) in ASIDE.items()}})
    assert settings(result)[1 << 22] == "default"  # those put aside would all win
    assert settings(result)[1 << 10] == "tree ll"
    for name, (_, says) in ASIDE.items():
        assert any(note.startswith("put aside: ") and name in note and says in note for note in result.notes), name
    assert result.plan.entries[1].claims["library"]["version"] == "2.30.4"
    assert any("own choice: default.log; 1 other setting" in note for note in result.notes)


@pytest.mark.parametrize("head", ["$ ./all_reduce_perf -b 1K\n", "# Collective test starting: all_reduce_perf\n"])
def test_a_command_without_variables_sets_none(head: str, tmp_path: Path) -> None:
    """A log without a command says nothing of them: NCCL_IB_HCA may have been exported for all runs."""
    other = "$ NCCL_BUFFSIZE=8388608 NCCL_ALGO=Ring ./all_reduce_perf -b 1K\n" + table(SIMPLE)
    result = tuned(tmp_path, {"default.log": head + table(DEFAULT), "1.log": other})
    is_aside = any("1.log: sets NCCL_BUFFSIZE=8388608" in note for note in result.notes)
    assert is_aside == head.startswith("$")
    assert settings(result)[1 << 22] == ("default" if is_aside else "ring")


def test_wrong_results_never_win(tmp_path: Path) -> None:
    result = tuned(tmp_path, {"default.log": table(DEFAULT), "ring.log": table(times(1, 1, 1, 1), wrong=3)})
    assert set(settings(result).values()) == {"default"}
    assert any("4 rows with wrong results left out" in note for note in result.notes)


def test_a_chunk_size_by_a_plugin(tmp_path: Path) -> None:
    plugin = "NCCL_TUNER_PLUGIN=/x/libantiphon_nccl_tuner.so ./all_reduce_perf\n"
    files = {"default.log": table(DEFAULT), "ring-simple-chunk=128k.log": plugin + table(SIMPLE)}
    result = tuned(tmp_path, files)
    assert settings(result)[1 << 22] == "ring simple chunk=131072"
    text = antiphon.export(result.plans, "nccl-tuner")["nccl-tuner.txt"].decode()
    assert "\nallreduce 1048576 4194304 ring simple 0 8 1 131072\n" in text


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is no folder"):
        antiphon.measure.tune("allreduce", "hgx-h100", logs=tmp_path / "none")
    with pytest.raises(Invalid, match="no logs of nccl-tests"):
        antiphon.measure.tune("allreduce", "hgx-h100", logs=tmp_path)
    with pytest.raises(NotFound, match=r"ran with NCCL's own choice.*run the benchmark without NCCL_ALGO"):
        tuned(tmp_path, {"ring.log": table(SIMPLE)})
    with pytest.raises(NotFound, match="no log measures allgather; the logs measure allreduce"):
        tuned(tmp_path, {}, "allgather")
    with pytest.raises(Invalid, match="pass either on="):
        antiphon.measure.tune("allreduce", "hgx-h100")
    for detail in ({"nbytes": "1MB"}, {"warmup": 1}, {"shortlisted": 2}):
        with pytest.raises(Invalid, match=f"{next(iter(detail))}: is for measuring, and logs= has the measurements"):
            antiphon.measure.tune("allreduce", "hgx-h100", logs=tmp_path, **detail)
    files = {"default.log": table(DEFAULT), "gather-ring.log": table(LL, "allgather")}
    result = tuned(tmp_path / "partly", files, "all")
    assert list(result.plans) == list(result.tuning.collectives) == ["allreduce"]
    assert any("put aside: no log of allgather ran with NCCL's own choice" in note for note in result.notes)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    gather = {"gather-default.log": table(DEFAULT, "allgather"), "gather-pat.log": table(SIMPLE, "allgather")}
    tuned(tmp_path / "logs", {**FORMS["file names"], **gather})
    command = "tune all hgx-h100 --from-logs logs --planner ring --workers 0 -o table.json"
    assert run(command.split()) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 collectives on hgx-h100, measured on logs:\n")
    for says in ("ring simple channels=16", "1.6x", "use: antiphon export table.json --to nccl-tuner -o rules",
                 "own choice: default.log"):  # fmt: skip
        assert says in text
    assert "our best" not in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert run([*command.split(), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["file"] for row in document["rows"]} == {*FORMS["file names"], *gather}
    assert {row["collective"] for row in document["ranges"]} == {"allreduce", "allgather"}
    assert run(["export", "table.json", "--to", "ncclx-csv", "-o", "rules"]) == 0
    assert "allgather,[131072,524288],pat,simple,-1,1,8,-1,-1,0\n" in Path("rules/ncclx-tuner.csv").read_text()
    for more in ("--on mpi", "--nbytes 1MB", "--vary nodes=1,2", "--iterations 3"):
        assert run([*command.split()[:-2], *more.split()]) == 2
        assert "--from-logs" in capsys.readouterr().err


def test_variables_belong_to_the_run_they_stand_before() -> None:
    one, two, three = read_runs(FORMS["commands"]["one.log"])
    assert (one.environment, two.environment) == ({}, {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"})
    assert three.environment == {"NCCL_ALGO": "RING", "NCCL_PROTO": "simple", "NCCL_MIN_NCHANNELS": "16"}
    runs = read_runs(FORMS["exports"]["one.log"])
    assert [run.environment.get("NCCL_ALGO") for run in runs] == [None, "Tree", "Ring", None]
    both = f"$ export NCCL_ALGO=Ring\n$ ./{COMMAND}\n{table(LL)}$ ./all_gather_perf\n{table(LL, 'allgather')}"
    assert [run.environment for run in read_runs(both)] == [{"NCCL_ALGO": "Ring"}] * 2


# ---- the sweep that writes the logs ----

# Its tables are written beforehand: to import this file in every run takes most of the time of these tests.
BENCHMARK = """#!{python} -S
import os, sys
forced = [os.environ.get(f"NCCL_{{name}}", "") for name in ("ALGO", "PROTO", "MAX_NCHANNELS")]
with open("calls", "a") as file:
    print(*forced, file=file)
if "-" in sys.argv:
    sys.exit("all_reduce_perf: invalid option")
if forced[0].startswith("nvls"):
    sys.exit("NCCL WARN no algorithm or protocol available")
tables = {tables!r}
print(tables.get(" ".join(forced)) or tables.get(" ".join(forced[:2])) or tables["other"])
"""
SCALES = {"": 1, " 4": 2, " 8": 1.5, " 16": 0.8, " 32": 1.1}  # times of ring simple, by the number of channels


def write_benchmark(program: Path, scales: Mapping[str, float]) -> None:
    tables = {f"ring simple{many}": table({n: t * scale for n, t in SIMPLE.items()}) for many, scale in scales.items()}
    tables |= {"tree ll": table(LL), " ": table(DEFAULT), "other": table(times(90, 90, 90, 900))}
    program.write_text(BENCHMARK.format(python=sys.executable, tables=tables))
    program.chmod(0o755)


@pytest.fixture
def benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "all_reduce_perf"
    write_benchmark(program, SCALES)
    monkeypatch.chdir(tmp_path)
    for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS"):
        monkeypatch.delenv(name, raising=False)
    return program


def test_a_sweep_runs_every_setting_once_and_goes_on_where_it_stopped(
    benchmark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep() -> MeasuredTuning:
        search = antiphon.Search(workers="none")
        command = f"{benchmark} -b 1K -e 4M"
        result = antiphon.measure.tune(
            "allreduce", "hgx-h100", logs="logs", command=command, planners="ring", search=search
        )
        assert result is not None
        return result

    result = sweep()
    # what ran twice wins by 2 % already: tree ll at the second size
    assert settings(result) == {**WANT, 1 << 14: "tree ll", 1 << 18: "ring simple channels=16"}
    assert result.complete
    calls = Path("calls").read_text().splitlines()
    pairs = [f"{a} {p} " for a in ("ring", "tree") for p in ("ll", "ll128", "simple")]
    assert sorted(calls[:10]) == sorted(["  ", "  ", *pairs, "nvls simple ", "nvlstree simple "])
    again = [[f"{setting} {n}" for n in ("", "4", "8", "16", "32")] for setting in ("tree ll", "ring simple")]
    assert sorted(calls[10:]) == sorted(again[0] + again[1])
    assert "put aside: nvls-simple.log: has no rows" in "\n".join(result.notes)
    for name in ("ring-ll.log", "tree-ll-8ch.log"):
        Path("logs", name).unlink()
    limits, log_run = list[float](), nccl_sweep.log_run

    def limited(words: Any, variables: Any, path: Path, limit: float) -> None:
        limits.append(limit)
        log_run(words, variables, path, limit)

    monkeypatch.setattr(nccl_sweep, "log_run", limited)
    assert settings(sweep()) == settings(result)
    assert Path("calls").read_text().splitlines()[20:] == ["ring ll ", "tree ll 8"]
    assert min(limits) >= 3600  # how long the default takes is not known any more


@pytest.mark.slow
def test_channels_of_what_is_hardly_slower_than_the_own_choice(benchmark: Path) -> None:
    """A setting that is 3 % behind may be the fastest with other numbers of channels; one 20 % behind is left alone."""
    for scale, best in ((412 / 250, "ring simple channels=16"), (480 / 250, "default")):
        write_benchmark(benchmark, {**SCALES, "": scale})
        folder, search = Path(f"logs{scale}"), antiphon.Search(workers="none")
        result = antiphon.measure.tune(
            "allreduce", "hgx-h100", logs=folder, command=str(benchmark), planners="ring", search=search
        )
        assert result is not None
        assert settings(result)[1 << 22] == best
        assert (folder / "ring-simple-8ch.log").exists() == (best != "default")


def test_commands_that_measure_nothing(
    benchmark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command, says in (
        (f"{benchmark} -", "printed no times: all_reduce_perf: invalid option"), ("/bin/true", "printed no times"),
        (str(tmp_path / "none"), "no such program"), ("", "no such program"), ("'", "No closing quotation"),
    ):  # fmt: skip
        assert run(["tune", "allreduce", "hgx-h100", "--from-logs", "logs", "--run", command or " "]) in (1, 2, 69)
        assert says in capsys.readouterr().err
        assert not list(Path("logs").glob("*")) if Path("logs").exists() else True
    assert run(["tune", "allreduce", "hgx-h100", "--run", "x"]) == 2
    assert "add --from-logs DIR" in capsys.readouterr().err
    assert run(["tune", "alltoall", "hgx-h100", "--from-logs", "logs", "--run", str(benchmark)]) == 2
    assert "--run: measures one of allreduce" in capsys.readouterr().err


def test_ctrl_c_keeps_the_logs(benchmark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_run, count = nccl_sweep.log_run, 0

    def interrupted(*arguments: Any, **named: Any) -> None:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        log_run(*arguments, **named)

    monkeypatch.setattr(nccl_sweep, "log_run", interrupted)
    search = antiphon.Search(workers="none")
    result = antiphon.measure.tune(
        "allreduce", "hgx-h100", logs="logs", command=str(benchmark), planners="ring", search=search
    )
    assert result is not None
    assert result.interrupted
    assert not result.complete
    assert result.unmeasured == 7
    assert sorted(path.name for path in Path("logs").iterdir()) == ["default-again.log", "default.log", "ring-ll.log"]


def test_a_run_that_hangs_is_stopped(tmp_path: Path) -> None:
    nccl_sweep.log_run(["sleep", "60"], {}, tmp_path / "ring-ll.log", 0.3)
    assert [path.name for path in tmp_path.iterdir()] == ["ring-ll.log"]
    assert "stopped after" in (tmp_path / "ring-ll.log").read_text()
