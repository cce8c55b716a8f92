"""The kit that proves the GPU kernel on another machine, built for threads and run without any package."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_kit
import pytest
from quick import ordinary

BENCH = Path(__file__).resolve().parents[1] / "bench"
LIBRARY = Path(__file__).with_name("device") / "library.c"
NVCC = shutil.which("nvcc")
KINDS = 1 if ordinary else 3  # collectives that are timed
pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit with a part of each sort."""
    folder = tmp_path_factory.mktemp("kit")
    gpu_kit.build_kit(
        folder, "threads", programs=gpu_kit.PROGRAMS[3:4], machines=["full:ranks=5", "hgx-h100"],
        dtypes=["bfloat16"], timed=(gpu_kit.TIMED[1:2] + gpu_kit.TIMED[3:])[:KINDS], sizes=["1024", "40000"],
    )  # fmt: skip
    return folder


def run(kit: Path, script: str, *arguments: str, python: tuple[str, ...] = ("-S", "-E")) -> tuple[int, list[str], Any]:
    """Exit code, lines and results of a script, by a Python without packages."""
    out = kit / "out.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, *python, str(kit / script), "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert "Traceback" not in done.stderr, done.stderr
    return (
        done.returncode,
        done.stdout.splitlines() + done.stderr.splitlines(),
        json.loads(out.read_text()) if out.exists() else None,
    )


def changed(kit: Path, folder: Path, **changes: Any) -> Path:
    """A copy of the kit in which kit.json has these entries."""
    shutil.copytree(kit, folder)
    entries = json.loads((folder / "kit.json").read_text()) | changes
    (folder / "kit.json").write_text(json.dumps(entries))
    return folder


@pytest.mark.slow
def test_the_smoke_test_proves_all_parts(kit: Path) -> None:
    code, lines, results = run(kit, "gpu_smoke.py")
    states = {part["name"]: part["state"] for part in results["parts"]}
    assert list(states) == [
        "allreduce-full-direct", "calls full-bfloat16", "calls hgx-h100-bfloat16", "copies",
        "sanitizer allreduce-full-direct",
    ]  # fmt: skip
    assert states.pop("sanitizer allreduce-full-direct") == "not run: no compute-sanitizer on the PATH"
    assert set(states.values()) == {"right"}, results
    assert (code, results["on"]) == (0, "threads")
    where = "by threads of the processor, not yet run on a GPU"
    assert lines[5] == f"4 of 5 parts right; {where}. Results: {kit / 'out.json'}"
    copies = [line[:23].split() for line in lines[8:]]
    assert copies == [["the", "same", "GPU", "1000004"], ["another", "GPU", "1000004"]]


@pytest.mark.slow
def test_times_stand_beside_those_of_the_library(kit: Path, tmp_path: Path) -> None:
    library = kit / "library.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(LIBRARY), "-o", str(library)], check=True)
    code, lines, results = run(kit, "gpu_times.py", "--nccl", str(library))
    rows = [row for part in results["parts"][-KINDS:] for row in part["rows"]]
    assert (code, [row["nbytes"] for row in rows]) == (0, [1024, 40000] * KINDS)
    for row in rows:
        assert row["right"]
        assert row["library_seconds"] > 0
        assert row["best"]["seconds"] == min(choice["seconds"] for choice in row["choices"])
        assert {choice["form"] for choice in row["choices"]} == {"signals", "packets"}
    assert sum("lanes" in line for line in lines) == 2 * KINDS
    subprocess.run(["cc", "-shared", "-fPIC", "-DSPOILED", str(LIBRARY), "-o", str(library)], check=True)
    timed = json.loads((kit / "kit.json").read_text())["parts"]["times"][-1:]
    few = changed(kit, tmp_path / "kit", parts={"times": timed})
    code, lines, results = run(few, "gpu_times.py", "--nccl", str(library))
    (part,) = results["parts"]
    assert (code, part["state"]) == (1, "wrong")
    assert [(row["right"], row["library_right"]) for row in part["rows"]] == [(True, False)] * 2
    assert sum(line.endswith(", NCCL WRONG") for line in lines) == 2
    code, lines, results = run(few, "gpu_times.py", "--nccl", "-")
    assert (code, results["parts"][-1]["rows"][0]["library_seconds"]) == (0, None)
    assert any(line.startswith("no NCCL beside (-); all right") for line in lines)


@pytest.mark.slow
def test_what_is_wrong_hangs_or_is_missing_is_reported_and_the_rest_goes_on(kit: Path, tmp_path: Path) -> None:
    check = {"command": ["./gpu_calls", "check", "full-bfloat16.calls"], "seconds": 60}
    parts = [
        {"name": "wrong", **check},
        {"name": "cut", "command": ["./gpu_calls", "check", "cut.calls"], "seconds": 60},
        {"name": "hangs", "command": ["sh", "-c", "echo '{\"row\": 1}'; echo '{\"cut'; sleep 60"], "seconds": 0.5},
        {"name": "absent", "command": ["./no-such-program"], "seconds": 1},
        {"name": "copies", "command": ["./gpu_copy", "4096"], "seconds": 60},
    ]
    folder = changed(kit, tmp_path / "kit", parts={"smoke": parts, "times": parts})
    calls = bytearray((folder / "full-bfloat16.calls").read_bytes())
    (folder / "cut.calls").write_bytes(calls[:2000])
    calls[-1] ^= 1  # of the output expected of the last rank in the last case
    (folder / "full-bfloat16.calls").write_bytes(calls)
    for script in ("gpu_smoke.py", "gpu_times.py"):
        code, lines, results = run(folder, script)
        found = {part["name"]: part["state"].partition(":")[0] for part in results["parts"]}
        assert found == {
            "wrong": "wrong", "cut": "failed with exit code 3", "hangs": "timed out after 0 s",
            "absent": "cannot start", "copies": "right",
        }  # fmt: skip
        assert any("is wrong at rank 4" in line for line in results["parts"][0]["output"])
        assert "too short" in results["parts"][1]["output"][-1]
        assert results["parts"][2]["rows"] == [{"row": 1}]
        assert code == 1
        assert any("see: wrong, cut, hangs, absent" in line for line in lines)


@pytest.mark.slow
def test_without_a_gpu_or_a_kit_it_says_so(kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = changed(kit, tmp_path / "kit", on="cuda")
    for script in ("gpu_smoke.py", "gpu_times.py"):
        code, (line,), _ = run(folder, script)
        assert (code, "nvidia-smi -L lists none. Not yet run on a GPU" in line) == (2, True)
    (folder / "kit.json").write_text("{")
    code, (line,), _ = run(folder, "gpu_smoke.py")
    assert (code, "kit.json cannot be read" in line, "python bench/gpu_kit.py" in line) == (1, True, True)
    done = subprocess.run([sys.executable, str(BENCH / "gpu_kit.py"), str(tmp_path / "new")],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr.splitlines()) == (
        2, ["gpu-kit: no nvcc on the PATH; docs/device.md says how to get it"],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("name", ["gpu_calls", "gpu_copy"])
def test_nvcc_takes_its_programs_without_a_word(tmp_path: Path, name: str) -> None:
    from antiphon.runtimes.engine.build import DEVICE

    command = [str(NVCC), "-std=c++17", "-arch=compute_90", "-Xcicc", "-O0", "-ptx", "-Xcompiler", "-Wall,-Wextra"]
    done = subprocess.run([*command, "-DTYPES_COMPILED=4", f"-I{DEVICE}", str(BENCH / f"{name}.cu"), "-o",
                           str(tmp_path / "out.ptx")], capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
