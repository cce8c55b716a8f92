"""device_process.py started for each process of a group, and what they tell handed on among them."""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def in_processes(
    groups: Sequence[Sequence[int]], way: str, calls: int, given: Sequence[Mapping[str, str] | None] = ()
) -> list[str]:
    """What each says at its end. `given`: of each what its environment is, if not that of this process."""
    ranks = sum(map(len, groups))
    script = str(Path(__file__).with_name("device_process.py"))
    started = [
        subprocess.Popen(
            [sys.executable, script, way, str(ranks), str(calls), *map(str, mine)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        for mine, environment in zip(groups, given or [None] * len(groups), strict=True)
    ]  # fmt: skip
    try:
        while True:
            told = [one.stdout.readline().strip() for one in started if one.stdout]
            if not all(re.fullmatch("[0-9a-f]*", line) for line in told):
                return told
            for one in started:
                assert one.poll() is None, told
                assert one.stdin is not None
                one.stdin.write(",".join(told) + "\n")
                one.stdin.flush()
    finally:
        for one in started:
            one.kill()
            one.communicate()
