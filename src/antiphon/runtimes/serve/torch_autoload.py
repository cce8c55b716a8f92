"""What PyTorch calls when it is imported: the entry point of the group torch.backends (PyTorch 2.5 and newer).

So that `dist.init_process_group("antiphon")` works without `import antiphon.torch`. It imports nothing and never fails:
the backend itself is imported when a process group is made.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

NAME = "antiphon"


def register() -> None:
    """Make the name of the backend known to PyTorch, which is in the middle of its import."""
    with contextlib.suppress(Exception):  # a version of PyTorch that is made otherwise; its import must not fail by us
        dist: Any = sys.modules["torch.distributed"]
        if NAME not in dist.Backend.backend_list:
            dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, backend_options: Any = None) -> Any:
    from antiphon.runtimes.serve.torch_backend import create, register

    register()
    return create(options, backend_options)
