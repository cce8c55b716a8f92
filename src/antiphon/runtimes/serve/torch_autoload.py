"""The entry point in the group torch.backends, which PyTorch calls when it is imported (PyTorch 2.5 and newer).

It makes `dist.init_process_group("antiphon")` work without `import antiphon.torch`. It imports nothing and never fails:
the backend itself is imported when a process group is created.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

NAME = "antiphon"


def register() -> None:
    """Make the name of the backend known to PyTorch, which is in the middle of its import."""
    with contextlib.suppress(Exception):  # an unknown version of PyTorch: its import must not fail because of us
        dist: Any = sys.modules["torch.distributed"]
        if NAME not in dist.Backend.backend_list:
            dist.Backend.register_backend(NAME, _create_group, extended_api=True, devices=["cpu"])


def _create_group(options: Any, backend_options: Any = None) -> Any:
    from antiphon.runtimes.serve.torch_backend import create, register

    register()
    return create(options, backend_options)
