"""Commands take memory in proportion to their input, or refuse it up front: peak memory of the process, generously."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import antiphon
from antiphon.core.bounds import MAX_CUSTOM_BLOCKS
from antiphon.core.serialize.schemas import MAX_FILE_TYPES

WHATEVER = 300 * 2**20  # bytes of a process that has loaded the package and NumPy, and does something small


# A process starts with the peak of the one that forked it, which here may hold much: a small one stands between.
LAUNCHER = """
import resource, subprocess, sys
command = [sys.executable, "-m", "antiphon", *sys.argv[1:]]
done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
print(done.stdout)
"""


def peak_of(*words: str) -> tuple[int, int, str]:
    """Exit code, bytes at the peak, and what it said."""
    done = subprocess.run([sys.executable, "-c", LAUNCHER, *words], capture_output=True, text=True, check=True)
    figures, _, said = done.stdout.partition("\n")
    code, peak = map(int, figures.split())
    return code, peak, " ".join(said.split())


@pytest.mark.slow
def test_a_million_pieces_of_a_small_plan_are_not_written_out(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    antiphon.save(antiphon.plan("broadcast", "line:ranks=2", planner="binomial-tree"), file)
    plan = json.loads(file.read_text())
    plan["entries"][0]["claims"] = {}
    plan["entries"][0]["schedule"]["pieces"] = 10**6
    file.write_text(json.dumps(plan))
    code, peak, said = peak_of("simulate", str(file), "--nbytes", "1GB")
    assert code == 0
    assert "1000000 transfers with all pieces, more than 262144" in said
    assert peak < WHATEVER
    code, peak, said = peak_of("simulate", str(file), "--nbytes", "1GB", "--trace", str(tmp_path / "t.json"))
    assert code == 2
    assert "at most 262144: plan with fewer pieces" in said
    assert peak < WHATEVER


@pytest.mark.slow
def test_custom_blocks_beyond_the_limit_are_refused_before_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "custom.json"
    blocks = ",".join([f'{{"pre":[{i}],"post":[{(i + 1) % 4}]}}' for i in range(4)] * (MAX_CUSTOM_BLOCKS // 4 + 1))
    file.write_text(f'{{"format":"antiphon-collective","version":1,"kind":"custom","ranks":4,"blocks":[{blocks}]}}')
    code, peak, said = peak_of("bound", str(file), "ring:ranks=4")
    assert code == 2
    assert f"has {MAX_CUSTOM_BLOCKS + 4} blocks; at most {MAX_CUSTOM_BLOCKS} are supported" in said
    assert peak < WHATEVER


@pytest.mark.slow
def test_types_of_links_beyond_the_limit_are_refused_when_read(tmp_path: Path) -> None:
    file, count = tmp_path / "machine.json", MAX_FILE_TYPES + 1
    types = ",".join(f'{{"kind":"l","bandwidth":{10**9 + i}}}' for i in range(count))
    file.write_text(
        f'{{"format":"antiphon-topology","version":1,"name":"x","ranks":2,"links":[[0,1,0],[1,0,0]],"types":[{types}]}}'
    )
    code, peak, said = peak_of("topology", "show", str(file))
    assert code == 2
    assert f"types: a file may have at most {MAX_FILE_TYPES}, has {count}" in said
    assert peak < WHATEVER
