"""A device for PyTorch without a GPU (tests/torch_standin), compiled and kept, and the module that PyTorch wants."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import shutil
import subprocess
import tempfile
import types
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nccl_env

from antiphon.runtimes.engine.build import native_folder

SOURCE = Path(__file__).with_name("torch_standin") / "device.cpp"
NAME = "standin"
DEVICES = 8  # as device.cpp has them


def compiled() -> Path:
    """The folder with the stand-in for NCCL and CUDA and with the device. Once for a state of all sources."""
    text = [path.read_bytes() for path in sorted([SOURCE, *nccl_env.FOLDER.iterdir()])]
    text += [version("torch").encode(), subprocess.run(["c++", "--version"], capture_output=True, check=True).stdout]
    folder = native_folder().with_name("tests") / hashlib.sha256(b"\0".join(text)).hexdigest()[:20]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "device.lock").open("w") as lock:  # others that need it wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "device.so").exists():
            made = Path(tempfile.mkdtemp(dir=folder.parent))
            try:
                _compile(made)
                made.rename(folder)
            finally:
                shutil.rmtree(made, ignore_errors=True)
    return folder


def _compile(folder: Path) -> None:
    spec = find_spec("torch")  # which takes a second to import
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    behind = nccl_env.compiled(folder)
    include = package / "include"
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", "-pthread", f"-I{nccl_env.FOLDER}"]
    flags += [f"-isystem{include}", f"-isystem{include / 'torch' / 'csrc' / 'api' / 'include'}"]
    link = [f"-L{package / 'lib'}", "-ltorch_cpu", "-lc10", f"-L{folder}", f"-l:{behind.name}"]
    command = ["c++", *flags, str(SOURCE), *link, "-o", str(folder / "device.so")]
    subprocess.run(command, check=True, timeout=1000)


def use(folder: Path) -> Any:
    """In this process: the device `standin` of PyTorch, and tensors on it for our backend."""
    import torch

    ctypes.CDLL(str(folder / "libnccl.so.2"), mode=ctypes.RTLD_GLOBAL)
    torch.ops.load_library(str(folder / "device.so"))
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module())
    torch.utils.generate_methods_for_privateuse1_backend()
    torch.set_num_threads(1)
    from antiphon.runtimes.serve import torch_nccl

    torch_nccl.KINDS[NAME] = torch_nccl.Kind("nccl", str(folder / "libnccl.so.2"), str(nccl_env.FOLDER / "nvcc"))
    return torch.device(NAME, 0)


def module() -> types.ModuleType:
    """As torch.cuda is one, as far as DDP, FSDP2 and device meshes ask."""
    import torch

    made: Any = types.ModuleType(f"torch.{NAME}")
    chosen = torch.accelerator

    class Stream(torch.Stream):
        def __new__(cls, device: Any = None, priority: int = 0, **more: Any) -> Any:
            return super().__new__(cls, device=device or torch.device(NAME, chosen.current_device_index()), **more)

    class Event(torch.Event):
        def __new__(cls, **more: Any) -> Any:
            return super().__new__(cls, NAME)

    @contextlib.contextmanager
    def stream(given: Any) -> Iterator[None]:
        if given is None:
            yield
            return
        with given:
            yield

    made.Stream, made.Event, made.stream = Stream, Event, stream
    made.current_stream, made.synchronize = chosen.current_stream, chosen.synchronize
    made.current_device, made.set_device = chosen.current_device_index, chosen.set_device_index
    made.device_count, made.is_available = lambda: DEVICES, lambda: True
    made.is_initialized = lambda: True
    made.manual_seed_all = made.manual_seed = lambda seed: None
    made.get_amp_supported_dtype = lambda: [torch.bfloat16]
    return made  # type: ignore[no-any-return]
