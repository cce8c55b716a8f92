"""The stand-in for NCCL, and the program that judges calls: both must be right before others are held against them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nccl_env
import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"), reason="needs Linux and a C compiler"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.getbasetemp() / "nccl"
    nccl_env.compiled(made)
    return made


@pytest.mark.parametrize(("ranks", "room", "words"), [(2, 4096, ()), (3, 64, ("graphs",)), (5, 256, ())])
def test_its_collectives_are_right(folder: Path, ranks: int, room: int, words: tuple[str, ...]) -> None:
    done = nccl_env.run(folder, ranks, ranks, 20, *words, env={"STANDIN_ROOM": str(room)})
    assert done.right, done.complained
    assert all("sequences are right" in said for said in done.said)


def test_a_missing_event_gives_wrong_results(folder: Path) -> None:
    words = ("careless", "allreduce", "broadcast")
    done = nccl_env.run(folder, 2, 1, 60, *words)
    assert 4 in done.codes, done.said
