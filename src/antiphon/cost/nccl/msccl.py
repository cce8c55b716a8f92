"""Price MSCCL's choice: its own algorithms for ranges of sizes; elsewhere the choice of NCCL or RCCL (library.py).

The file `msccl.json` lists the algorithms as published, with their ranges: those of msccl-tools for Azure's NDv4, and
those that come with RCCL for MI300X. MSCCL takes the first one whose range has the size, whether or not it is the
fastest. Its time depends on the fields of its entry:

    seconds, share      for allreduces on NDv4: fitted to the table of MSCCL's leaderboard (bench/fit_msccl.py)
    as_library          RCCL's predicted time, as its tables were measured with these algorithms on, as is the default
    neither             the formulas of choice.py (hierarchical: two hops within a node, one between), not calibrated

Example: on 8 A100 of NDv4 an allreduce of 64 KB is in the range of "allpairs ll", so it takes its `seconds` plus bytes
over (bandwidth * share).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from antiphon.core.files import read_bytes, reading
from antiphon.core.jsontext import check_keys, decode
from antiphon.cost.nccl.calls import PROTOCOLS
from antiphon.cost.nccl.choice import Costs, Load, OptionPrice, price_option
from antiphon.cost.nccl.layout import NcclLayout
from antiphon.errors import Invalid
from antiphon.units import format_size

FORMAT, VERSION = "antiphon-msccl", 1
SHIPPED = Path(__file__).parent / "msccl.json"
# Values of `way` in the file
ALLPAIRS, RING, DIRECT, HIERARCHICAL, THREE_STEP = WAYS = ("allpairs", "ring", "direct", "hierarchical", "three-step")


class Algorithm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """An algorithm for sizes from `least` to `most` bytes (None: no upper end) on `nodes` nodes of `local` GPUs.

    `gpus`: generations of GPUs. `way`: one of WAYS. `blocks`: thread blocks per GPU, one multiprocessor each.
    `in_place`: only for calls in place; `why` says so, and predicted calls count as calls in place. `source`: where the
    algorithm is published. `seconds`, `share`: launch and hops, and the fraction of the bandwidth; `calibrated_by`: the
    measurements that these were fitted to. `as_library`: priced as the library's own choice.
    """

    gpus: list[str]
    local: int
    nodes: list[int]
    collective: str
    least: int
    way: str
    protocol: str
    source: str
    most: int | None = None
    blocks: int | None = None
    in_place: bool = False
    seconds: float | None = None
    share: float | None = None
    calibrated_by: list[str] = []
    as_library: bool = False

    def check(self) -> None:
        if self.way not in WAYS or self.protocol not in PROTOCOLS:
            raise Invalid(
                f"way {self.way}, protocol {self.protocol}: expected {', '.join(WAYS)}; {', '.join(PROTOCOLS)}"
            )
        if (self.seconds is None) != (self.share is None) or not 0 < (1.0 if self.share is None else self.share) <= 1:
            raise Invalid("expected seconds and a share of more than 0, at most 1, or neither")
        if self.seconds is None and self.way == RING and not self.as_library:
            raise Invalid("a ring needs seconds and share")

    @property
    def name(self) -> str:
        return f"{self.way} {self.protocol}"

    def has(self, collective: str, nbytes: int) -> bool:
        """Return whether the range contains this size of this collective."""
        return self.collective == collective and self.least <= nbytes and (self.most is None or nbytes <= self.most)

    def basis(self, costs: Costs) -> str:
        """Return the basis of its figures."""
        if self.calibrated_by:
            assumptions = f"; {costs.origin}" if costs.origin else ""
            return f"MSCCL's {self.name} calibrated by {', '.join(self.calibrated_by)}{assumptions}"
        if self.as_library:
            return f"{costs.basis()}, which were measured with MSCCL's algorithms on"
        return f"{costs.basis()}; MSCCL's {self.name} not calibrated"

    def why(self) -> str:
        """Return the range in words."""
        upto = f"to {format_size(self.most)}" if self.most is not None else "on"
        where = " in place" if self.in_place else ""
        return f"its algorithm{where} from {format_size(self.least)} {upto}"


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: str
    version: int
    algorithms: list[Algorithm]


def read_algorithms(data: bytes) -> tuple[Algorithm, ...]:
    """Parse and check the algorithms of such a file."""
    file = decode(data, _File)
    check_keys(data)
    if (file.format, file.version) != (FORMAT, VERSION):
        raise Invalid(f'expected "format": "{FORMAT}", "version": {VERSION}')
    for algorithm in file.algorithms:
        algorithm.check()
    return tuple(file.algorithms)


@cache
def shipped_algorithms() -> tuple[Algorithm, ...]:
    with reading(SHIPPED.name):
        return read_algorithms(read_bytes(SHIPPED))


def msccl_algorithms(gpu: str, layout: NcclLayout) -> list[Algorithm]:
    """Return the algorithms that MSCCL has for such a machine."""
    return [a for a in shipped_algorithms() if gpu in a.gpus and layout.local == a.local and layout.nodes in a.nodes]


def priced_by(
    algorithm: Algorithm, layout: NcclLayout, costs: Costs, nbytes: int, library: Sequence[OptionPrice]
) -> OptionPrice:
    """Price an algorithm. `library`: all options of NCCL, its choice first."""
    if algorithm.as_library:
        best = library[0]
        return OptionPrice(algorithm.way, algorithm.protocol, best.seconds, best.terms, best.limit)
    if algorithm.seconds is not None and algorithm.share is not None:
        # the fitted seconds contain the launch, so hops are the rest of them
        transfer = moved_by(algorithm.collective, layout.ranks) * nbytes / (layout.wire * algorithm.share)
        rest = {"network": 0.0, "bytes": transfer, "hops": max(algorithm.seconds - costs.gpu.launch, 0.0)}
        # launches on further GPUs overlap with the rest of the call
        terms = {"launch": costs.launch(layout.local, sum(rest.values())), **rest}
        return OptionPrice(algorithm.way, algorithm.protocol, sum(terms.values()), terms, "wire")
    load = _load_of(algorithm.way, layout, nbytes)
    return price_option(load, algorithm.way, algorithm.protocol, layout, costs, nbytes)


def moved_by(collective: str, ranks: int) -> float:
    """Return the share of the data that crosses a rank's wire in allpairs or a ring."""
    return (2 if collective == "allreduce" else 1) * (ranks - 1) / ranks


def _load_of(algorithm: str, layout: NcclLayout, nbytes: int) -> Load:
    """Return the load of an algorithm, by its `way` (but RING, which always has seconds of its own).

    `wire` counts a rank's bytes within its node, `cards` a node's to other nodes. allpairs: all to all, twice (an
    allreduce); direct: once (an alltoall). hierarchical, three-step (alltoalls): data for other nodes are first
    gathered at the GPU with the same number, so that each sends one message to each node.
    """
    g, n = layout.local, layout.ranks  # ranks per node, all ranks
    if algorithm == ALLPAIRS:
        return Load(inside=2, between=0, wire=2 * (n - 1) / n * nbytes, cards=0)
    if algorithm == DIRECT:
        return Load(inside=1, between=0, wire=(n - 1) / n * nbytes, cards=0)
    inside, share = (2 if algorithm == HIERARCHICAL else 3), nbytes / n  # steps within nodes; bytes from rank to rank
    return Load(
        inside,
        between=1,
        wire=nbytes * (g - 1) / g,
        cards=share * g * (n - g),
        messages=max(layout.nodes - 2, 0),  # beyond the first, one to each other node
        to_all_nodes=True,
    )
