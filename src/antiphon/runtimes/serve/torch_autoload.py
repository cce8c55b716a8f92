"""What PyTorch calls when it is imported: the entry point of the group torch.backends (PyTorch 2.5 and newer).

So that `dist.init_process_group("antiphon")` works without `import antiphon.torch`. It imports nothing and never fails:
the backend itself is imported when a process group is made.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

NAME = "antiphon"
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")  # of NVIDIA's and AMD's GPUs; to ask PyTorch for GPUs takes a while


def register() -> None:
    """Make the name of the backend known to PyTorch, which is in the middle of its import."""
    with contextlib.suppress(Exception):  # a version of PyTorch that is made otherwise; its import must not fail by us
        dist: Any = sys.modules["torch.distributed"]
        if NAME not in dist.Backend.backend_list:
            devices = ["cpu", *(["cuda"] if any(map(os.path.exists, _DRIVERS)) else [])]
            dist.Backend.register_backend(NAME, _create, extended_api=True, devices=devices)


def _create(options: Any, backend_options: Any = None) -> Any:
    from antiphon.runtimes.serve.torch_backend import create, register

    register()
    return create(options, backend_options)
