"""How long a job takes to start, and how much memory its rank 0, while strangers connect a thousand times a second.

Run: python bench/bench_strangers.py [PAIRS]. Jobs of 4 processes that meet at the loopback by `antiphon.comm`, alone
and under the flood by turns: the time from when the last three begin until all have their connections; added times are
of pairs, the median of them. A job has failed if anything is raised or its first allreduce is wrong. Strangers do all
that tests/hostile.py has, from one process; nothing but the job's own address is touched. Needs a C compiler.
"""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _common
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import hostile

import antiphon

RANKS, RATE, HELD, LATER = 4, 1000, 500, 0.5  # LATER: seconds that the last ranks come after rank 0
LIMIT = 30.0  # seconds after which a job has failed


def flood(host: str, port: str, seconds: str) -> None:
    """Strangers, RATE a second for so many seconds; how many connected."""
    draw, acts, held = random.Random(7), sorted(hostile.ACTS), deque[socket.socket]()
    begin, tried, connected = time.monotonic(), 0, 0
    end = begin + float(seconds)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while (now := time.monotonic()) < end:
        while tried < (now - begin) * RATE:
            tried += 1
            one = hostile.commit(draw.choice(acts), (host, int(port)), draw, 1.0)
            if one is not None:
                connected += 1
                held.append(one)
            if len(held) > HELD:
                held.popleft().close()
        time.sleep(0.002)
    print(json.dumps({"tried": tried, "connected": connected, "seconds": time.monotonic() - begin}))


def rank_of_job(rank: int, address: str, begin: float, ranks: int = RANKS) -> dict[str, Any]:
    """From when the last ranks begin."""
    time.sleep(max(begin + (LATER if rank else 0.0) - time.monotonic(), 0.0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with antiphon.comm.connect(rank=rank, ranks=ranks, address=address, timeout=LIMIT) as c:
        seconds = time.monotonic() - begin - LATER
        good = bool((c.allreduce(np.ones(1000)) == ranks).all())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"good": good, "seconds": seconds, "grown_mb": grown / 1024}


def job(address: str) -> list[dict[str, Any]]:
    begin, ends = time.monotonic() + 0.05, []
    for rank in range(RANKS):
        mine, theirs = os.pipe()
        if not os.fork():
            said: dict[str, Any] = {"good": False}
            try:
                sys.stderr = None  # strangers are counted here
                said = rank_of_job(rank, address, begin)
            except BaseException as error:
                said["error"] = f"{type(error).__name__}: {error}"
            finally:
                os.write(theirs, json.dumps(said).encode())
                os._exit(0)
        os.close(theirs)
        ends.append(os.fdopen(mine))
    told = [one.read() for one in ends]
    for _ in range(RANKS):
        os.wait()
    return [json.loads(text or '{"good": false, "error": "it died"}') for text in told]


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def measured(flooded: bool) -> dict[str, Any]:
    address, strangers = free_address(), dict[str, Any]()
    if not flooded:
        rows = job(address)
    else:
        command = [sys.executable, __file__, "flood", *address.split(":"), str(LATER + 2.0)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            rows = job(address)
            strangers = json.loads(process.stdout.readlines()[-1])
    failed = [row for row in rows if not row["good"]]
    seconds = max((row.get("seconds", LIMIT) for row in rows), default=LIMIT)
    return {
        "failed": bool(failed), "why": [row.get("error", "") for row in failed], "seconds": seconds,
        "grown_mb": rows[0].get("grown_mb", 0.0), "strangers": strangers,
    }  # fmt: skip


def main(pairs: int) -> None:
    _common.print_machine()
    address, now = free_address(), time.monotonic()
    with ThreadPoolExecutor(2) as pool:  # all is imported and compiled before processes are forked
        list(pool.map(lambda rank: rank_of_job(rank, address, now, 2), range(2)))
    rows = [(measured(False), measured(True)) for _ in range(pairs)]
    flooded = [with_them for _, with_them in rows]
    found = {
        "pairs": pairs,
        "failed alone": sum(alone["failed"] for alone, _ in rows),
        "failed under the flood": sum(one["failed"] for one in flooded),
        "strangers that connected, median of a job": statistics.median(o["strangers"]["connected"] for o in flooded),
        "tried in a second": statistics.median(o["strangers"]["tried"] / o["strangers"]["seconds"] for o in flooded),
        "seconds alone": statistics.median(alone["seconds"] for alone, _ in rows),
        "seconds under the flood": statistics.median(one["seconds"] for one in flooded),
        "added seconds, median of pairs": statistics.median(one["seconds"] - alone["seconds"] for alone, one in rows),
        "added seconds, greatest": max(one["seconds"] - alone["seconds"] for alone, one in rows),
        "added MB of rank 0, greatest": max(one["grown_mb"] - alone["grown_mb"] for alone, one in rows),
    }
    _common.print_table(["", "found"], [[name, value] for name, value in found.items()])
    for one in flooded:
        if one["failed"]:
            print(one["why"])
    _common.save("strangers", found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["flood"]:
        flood(*sys.argv[2:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
