"""Processes that find each other at a store where texts of earlier ones lie, as after an elastic restart."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install 'antiphon[torch]'")
RANKS = 3


class Store:
    """Of this process: a key that is not there is waited for."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def has_extended_api(self) -> bool:
        return False

    def set(self, key: str, text: str) -> None:
        self.texts[key] = text

    def get(self, key: str) -> bytes:
        end = time.monotonic() + 20
        while key not in self.texts and time.monotonic() < end:
            time.sleep(0.001)
        return self.texts[key].encode()


def started(store: Any, rank: int, name: str, before: Any = None) -> tuple[list[str], list[str], list[str], str]:
    """What a process of a group hears, by two exchanges and one more; the second text is of what it heard first."""
    from antiphon.runtimes.serve.group_start import Outdated
    from antiphon.runtimes.serve.torch_store import Exchanges

    exchange = Exchanges(store, rank, RANKS, 20.0)
    while True:
        first = exchange(f"{name} {rank}")
        if before is not None:
            before(first)
        try:
            second = exchange(f"{rank} heard {first}")
            break
        except Outdated:
            pass
    return first, second, exchange(f"third of {name}"), exchange.generation


def together(store: Any, name: str, order: Sequence[int] = range(RANKS), pause: float = 0.0) -> str:
    """All start and hear the same, of each other alone; what is theirs alone."""
    with ThreadPoolExecutor(RANKS) as pool:
        futures = []
        for rank in order:
            futures.append(pool.submit(started, store, rank, name))
            time.sleep(pause)
        found = [one.result() for one in futures]
    want = [f"{name} {rank}" for rank in range(RANKS)]
    for first, second, third, generation in found:
        assert first == want
        assert second == [f"{rank} heard {want}" for rank in range(RANKS)]
        assert third == [f"third of {name}"] * RANKS
        assert generation == found[0][3]
    return found[0][3]


def test_at_a_store_that_is_new() -> None:
    assert len(together(Store(), "new")) == 32


@pytest.mark.parametrize("pause", [0.0, 0.03])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_texts_of_those_whose_places_were_taken_are_not_believed(order: Sequence[int], pause: float) -> None:
    store = Store()
    generations = {together(store, name, order, pause) for name in ("old", "older", "new")}
    assert len(generations) == 3


@pytest.mark.parametrize("seed", range(6))
def test_those_who_died_while_they_met_leave_nothing_either(seed: int) -> None:
    draw, store = random.Random(seed), Store()
    for number in (1, 2, 3):
        for rank in range(RANKS):
            if draw.random() < 0.6:
                store.set(f"antiphon/{number}/{rank}", f"{draw.randrange(16**32):032x}old {rank}")
    together(store, "new", draw.sample(range(RANKS), RANKS), draw.choice([0.0, 0.02]))


def test_what_was_said_once_is_not_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may go by the answers of the others while these still wait for another: they must not answer anew."""
    store, answers = Store(), list[Any]()
    together(store, "old")
    with ThreadPoolExecutor(RANKS) as pool:
        one = pool.submit(started, store, 1, "new", answers.append)
        time.sleep(0.05)
        rest = [pool.submit(started, store, rank, "new") for rank in (0, 2)]
        for each in (one, *rest):
            each.result()
    assert answers == [list(one) for one in dict.fromkeys(map(tuple, answers))]  # each state of the store but once


def test_who_never_comes_is_told_after_the_patience() -> None:
    from antiphon.errors import TimedOut
    from antiphon.runtimes.serve.group_start import Outdated
    from antiphon.runtimes.serve.torch_store import Exchanges

    store = Store()
    together(store, "old")
    exchange = Exchanges(store, 0, RANKS, 0.05)

    def meet() -> None:
        while True:
            exchange("new 0")
            with suppress(Outdated):
                exchange("new")
                return

    with pytest.raises(TimedOut, match=r"texts of processes that are gone, and after 0\.05 seconds not yet of all 3"):
        meet()


DIES_ONCE = """
import os, sys
from datetime import timedelta
import torch, torch.distributed as dist
import antiphon.torch
dist.init_process_group("antiphon", timeout=timedelta(seconds=30))
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.ones(4)
dist.all_reduce(x)
some = dist.new_group([0, 1])
if rank == 0:
    dist.send(x, 1)  # by gloo within
if rank == 1:
    dist.recv(x, 0)
if rank < 2:
    dist.all_reduce(x, group=some)
if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(3)
dist.barrier()
print(f"rank {rank} has {x[0].item():g}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--standalone"], ["--master-port", "{port}"]])
def test_torchrun_starts_it_again_after_one_has_died(tmp_path: Path, how: list[str]) -> None:
    script = tmp_path / "dies_once.py"
    script.write_text(DIES_ONCE)
    port = str(20000 + os.getpid() % 20000)
    command = [sys.executable, "-m", "torch.distributed.run", *(one.format(port=port) for one in how)]
    command += ["--nproc-per-node", "3", "--max-restarts", "1", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(part for part in done.stdout.replace("rank", "\nrank").split("\n") if part.strip()) == [
        "rank 0 has 6", "rank 1 has 6", "rank 2 has 3",
    ]  # fmt: skip


ATTEMPTS = """
from datetime import timedelta
import torch.distributed as dist
import antiphon.torch
for world_size in (2, 2, 1):  # nobody else comes to the first two
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    try:
        dist.init_process_group(
            "antiphon", store=store, rank=0, world_size=world_size, timeout=timedelta(seconds=0.2)
        )
        print("started", dist.group.WORLD.group_name)
    except Exception as error:
        print("failed")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_failed_attempt_does_not_change_the_name_of_the_next_group() -> None:
    """Processes at which a group started destroy it and name the next one 0; so do those at which it did not start."""
    environment = {key: value for key, value in os.environ.items() if key != "ANTIPHON_TABLE"}
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ATTEMPTS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["failed", "failed", "started", "0"], done.stderr
