"""NCCL's own header, for tests that hold our declarations against it."""

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from antiphon.runtimes.engine.build import library


@cache
def header(content: str = "") -> Path | None:
    """The folder of an nccl.h with this content."""
    given = os.environ.get("ANTIPHON_TEST_NCCL", "")
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") is not None else None
    folders = (
        [Path(given)]
        if given
        else [Path(p) / "include" for p in (spec.submodule_search_locations or ())]
        if spec
        else []
    )
    able = (folder for folder in folders if (folder / "nccl.h").exists())
    return next((folder for folder in able if content in (folder / "nccl.h").read_text()), None)


def build_anew(name: str, cache: Path) -> Path:
    """A native library, compiled into this cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHON_CACHE", str(cache))
        return library(name)


def cuda_names(folder: Path) -> Path:
    """nccl.h asks for CUDA's headers, of which it takes the names of streams and events."""
    made = folder / "cuda"
    made.mkdir(exist_ok=True)
    (made / "cuda_runtime.h").write_text(
        "typedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n"
    )
    for name in ("fp16", "bf16", "fp8"):
        (made / f"cuda_{name}.h").write_text("")
    return made
