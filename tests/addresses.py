"""Addresses at which nobody listens, and none is taken meanwhile."""

import os
import random
import socket
from contextlib import suppress

FIRST, EACH, WORKERS = 10_000, 1_000, 22  # below what the system hands out by itself, a part for every worker


def free_addresses(count: int) -> list[str]:
    worker = int("0" + os.environ.get("PYTEST_XDIST_WORKER", "").lstrip("gw")) % WORKERS
    ports = range(FIRST + EACH * worker, FIRST + EACH * (worker + 1))
    found: list[str] = []
    for port in random.SystemRandom().sample(ports, EACH):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(f"127.0.0.1:{port}")
        if len(found) == count:
            break
    return found
