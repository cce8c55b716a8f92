"""The proven bound of a machine, to which predictions of libraries are held: no library can beat it either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from weakref import WeakKeyDictionary

from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.topology import Topology
from antiphon.cost.nccl.choice import Priced
from antiphon.errors import Infeasible, Invalid

BOUND = "bound"  # the `limit` of a prediction that was raised to the proven bound
# Machines with more ranks are priced by the cuts of their network alone (`Place.cuts`), as their bounds take too long:
# an alltoall's linear program 4 s of a processor for 128 ranks, a minute for 512; all others 1 s for 512, 5 s for 1024.
MAX_RANKS, MAX_RANKS_ALLTOALL = 512, 128
_proven: WeakKeyDictionary[Topology, dict[tuple[str, int], Proven | None]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Proven:
    """The greatest rate, in bytes of nbytes per second, that any schedule has, and the witness in words."""

    bytes_per_second: Fraction
    because: str

    @staticmethod
    def of(proven: Bound, machine: Topology, collective: Collective) -> Proven | None:
        """None where nothing must move."""
        if proven.bytes_per_second is None or proven.witness is None:
            return None
        return Proven(proven.bytes_per_second, proven.witness.describe(machine, collective.buffer_weight))

    def hold(self, prediction: Priced, nbytes: int) -> Priced:
        """Return the prediction, raised to the bound's time at zero latency where it is below."""
        min_seconds = float(nbytes / self.bytes_per_second)
        if prediction.seconds >= min_seconds:
            return prediction
        terms: Mapping[str, float] = {
            **prediction.terms,
            "bytes": prediction.terms.get("bytes", 0.0) + min_seconds - prediction.seconds,
        }
        return replace(prediction, seconds=min_seconds, terms=terms, limit=BOUND)


def proven_limit(machine: Topology, kind: str, root: int) -> Proven | None:
    """The bound of a collective among all ranks, computed once; None where nothing must move, or it takes too long."""
    proofs = _proven.setdefault(machine, {})
    key = (kind, root if kind in ROOTED else 0)
    if key not in proofs:
        proofs[key] = _prove_bound(machine, *key)
    return proofs[key]


def _prove_bound(machine: Topology, kind: str, root: int) -> Proven | None:
    if machine.ranks > (MAX_RANKS_ALLTOALL if kind == "alltoall" else MAX_RANKS):
        return None
    collective = Collective(kind, machine.ranks, roots=(root,) if kind in ROOTED else ())
    try:
        return Proven.of(bound(machine, collective), machine, collective)
    except (Infeasible, Invalid):  # over links that are not described, such as PCIe of a box of NVLinks
        return None
