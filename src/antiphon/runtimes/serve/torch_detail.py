"""TORCH_DISTRIBUTED_DEBUG=DETAIL: before a collective all tell all what they call, with the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from antiphon.core.choose import Call
from antiphon.runtimes.serve.call_head import type_code
from antiphon.runtimes.serve.serving import Serving
from antiphon.runtimes.serve.torch_work import CollectiveFailed

_MOST = 1024  # bytes of what one tells
_WHERE = "TORCH_DISTRIBUTED_DEBUG=DETAIL"


def wanted() -> bool:
    return bool(dist.get_debug_level() == dist.DebugLevel.DETAIL)


def call_text(kind: str, tensors: Sequence[Any]) -> str:
    """A call in words."""
    shapes = ", ".join(f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for one in tensors)
    return f"{kind} of {shapes}" if shapes else kind


def compare(serving: Serving, text: str, seconds: float) -> None:
    """CollectiveFailed at all processes where one of them calls something else; nothing has moved then."""
    given = text.encode()
    if len(given) > _MOST:
        given = given[: _MOST - 3] + b"..."
    mine, every = np.zeros(_MOST, np.uint8), np.zeros(_MOST * serving.ranks, np.uint8)
    mine[: len(given)] = np.frombuffer(given, np.uint8)
    serving.begin("allgather", _MOST, type_code(torch.uint8))
    page = serving.find(Call("allgather", serving.nbytes("allgather", _MOST, 1)), seconds, library=False)
    assert page is not None
    serving.run(page, _MOST, mine, every, "sum", seconds, counted=False)
    texts = [one.tobytes().rstrip(b"\0").decode(errors="replace") for one in every.reshape(serving.ranks, _MOST)]
    other = next((rank for rank, one in enumerate(texts) if one != texts[0]), 0)
    if other:
        raise CollectiveFailed(f"{_WHERE}: rank 0 calls {texts[0]}, rank {other} {texts[other]}")
