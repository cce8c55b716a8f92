"""What is made once for all processes that run the tests together."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Any:
    """What `make(folder)` gives, as JSON: the first process that asks makes it, others wait for it and read it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # then each process has a folder of its own in that of the run
        base = base.parent
    file = base / f"{name}.json"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            folder = base / f"{name}-made"
            folder.mkdir(exist_ok=True)
            file.write_text(json.dumps(make(folder)))
    return json.loads(file.read_text())
