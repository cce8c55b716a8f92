"""Execution plans as others write them, written by hand from what is published about the executor of MSCCL++ (its
documentation of operations, and the algorithms it describes): not copied from any file.

- `pairs`: allreduce in place of two ranks, each block reading, adding and writing one chunk of the other (the direct
  allreduce of its quick start).
- `packets`: the one-shot allreduce of its results page for small sizes: everybody sends packets, everybody adds.
- `crowd`: an allreduce by packets in three blocks, which a barrier holds in order.
- `forward`: an allgather by packets, where one rank passes on what it got (put, copy and unpack of packets).
- `grouped`: an allgather whose puts are shared by a group of two blocks, each with a channel of its own.
- `pulled`: an allgather by get, after a relaxed signal that all have begun.
- `ported`: a broadcast through port channels, signalled by the proxy.
- `posted`: an allgather by packets through port channels, one rank sending what lies in scratch, one once it has come.
- `staged`: a reducescatter in two blocks, which a semaphore of the GPU holds in order.
- `switched`: the allreduce of a switch that adds and multicasts (NVLS), relaxed signals around it.
"""

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NOP: Row = {"name": "nop"}
NAMES = ("pairs", "packets", "crowd", "forward", "grouped", "pulled", "ported", "staged", "posted")


def tell(name: str, *ids: int, kind: str = "memory") -> Row:
    return {"name": name, "channel_ids": list(ids), "channel_type": kind}


def _read(name: str) -> Row:
    plan: Row = json.loads((Path(__file__).parent / "foreign" / "mscclpp" / f"{name}.json").read_text())
    return plan


FOREIGN = {name: _read(name) for name in NAMES}
SWITCHED = _read("switched")
