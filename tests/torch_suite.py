"""PyTorch's own tests of what a backend does, those that its wheel holds, by a backend: names, and how each ended.

    python tests/torch_suite.py gloo|antiphon|instead [NAME...]

`instead`: by ours, for tests that ask for gloo by name. Every test is of some processes, made by fork. A line per test,
as JSON: its name, "passed", "skipped" or "failed", and the last line of what it said.

TORCH_TESTS: the file distributed_test.py of another PyTorch's wheel, whose tests are run with the one that is here.
"""

import importlib
import importlib.util
import json
import logging
import os
import sys
import tempfile
import unittest
import warnings
from typing import Any

from unittest_told import Told

BACKEND = sys.argv[1]
FOLDER = tempfile.mkdtemp()
os.environ.update(
    BACKEND="gloo" if BACKEND == "instead" else BACKEND, WORLD_SIZE="4", TEMP_DIR=FOLDER,
    INIT_METHOD=f"file://{FOLDER}/shared_init_file",
)  # fmt: skip
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

import antiphon.torch  # noqa: E402, F401

# ours is one of the backends that these may be asked of
for able in DistTestCases.backend_feature.values():
    if "gloo" in able:
        able.add("antiphon")


def skips_nothing(name: str) -> Any:
    if name.startswith("skip_if_"):
        return lambda test: test
    raise AttributeError(name)


MODULE = "torch.testing._internal.distributed.distributed_test"
if given := os.environ.get("TORCH_TESTS"):
    about = importlib.util.spec_from_file_location(MODULE, given)
    assert about is not None, given
    assert about.loader is not None, given
    # what an older one skips where there are GPUs of some kind, and has another name by now
    common_distributed.__getattr__ = skips_nothing  # type: ignore[attr-defined]
    tests = sys.modules[MODULE] = importlib.util.module_from_spec(about)  # whose classes are found by this name
    about.loader.exec_module(tests)
else:
    tests = importlib.import_module(MODULE)

if BACKEND == "instead":
    by_name = dist.init_process_group, dist.new_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return by_name[0]("antiphon" if backend == "gloo" else backend, *args, **kwargs)

    def new_group(*args: Any, backend: str | None = None, **kwargs: Any) -> Any:
        return by_name[1](*args, backend="antiphon" if backend == "gloo" else backend, **kwargs)

    dist.init_process_group, dist.new_group = init_process_group, new_group


class Suite(tests.TestDistBackend, tests.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def heard(name: str, how: str, why: str) -> None:
    said = [line for line in why.splitlines() if "Error: " in line] or [line for line in why.splitlines() if line]
    print(json.dumps([name.rpartition(".")[2], how, said[-1][:300] if said else ""]), file=answers, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")  # all else that is printed goes elsewhere
    os.dup2(2, 1)
    names = sys.argv[2:] or unittest.TestLoader().getTestCaseNames(Suite)
    unittest.TestSuite(Suite(name) for name in names).run(Told(heard))
