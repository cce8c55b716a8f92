"""Exact lower bounds on steps and time, each with a witness that can be checked on its own.

`bound(topology, collective)` answers two questions. Latency: what is the minimum number of steps? The greatest
distance from a holder of some data to a rank that needs it (latency.py). Bandwidth: how long must it take at zero
latency? The search (bandwidth.py) tries, from simple to strong,

    cut         data that must leave a set of nodes, over the capacity out of it         cuts.py, candidates.py
    partition   for allreduce: transfers between the parts of a partition                partition.py
    LP dual     prices of links: the least price of all transfers that any schedule must     lp.py
                make, over the sum of price * capacity

For several groups at the same time the duals of all groups at common prices are added (joint.py). The search keeps the
best witness, which is then rechecked from nothing but the topology and the collective (recheck.py), with plain sums and
shortest paths in exact rationals.

Switches that multicast or reduce can lower a bound. So on machines that have such switches the bound is computed
twice: with their help, and *unaided*, for schedules in which switches only forward.

Example: allreduce of N bytes on 4 ranks in a bidirectional ring of 1 GB/s links. The partition into single ranks has 8
links of 1 GB/s between its parts, and 2 * (4 - 1) * N bytes must cross them, so every schedule takes at least
6 N / (8 GB/s).

Where theory does not say that a bound is attained, attained.py searches small machines for a packing of trees that
meets it. What is valid, what is tight and why: docs/bounds.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from antiphon.core.bounds.abilities import abilities_of, strip_abilities
from antiphon.core.bounds.assumed import (
    MULTICAST,
    REDUCTION,
    assumed_conditions,
    conditions_text,
    conditions_without_help,
)
from antiphon.core.bounds.attained import packing_of
from antiphon.core.bounds.bandwidth import BandwidthSearch
from antiphon.core.bounds.joint import JointSearch
from antiphon.core.bounds.latency import latency_of
from antiphon.core.bounds.needs import Needs, needs_of
from antiphon.core.bounds.packing import packed_time
from antiphon.core.bounds.recheck import check_distance, proved_time
from antiphon.core.bounds.witness import (
    Cut,
    Distance,
    Family,
    JointDual,
    LpDual,
    Packing,
    Partition,
    Tree,
    Witness,
    witness_of,
)
from antiphon.core.collective import Collective
from antiphon.core.display import Displayed
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported
from antiphon.units import format_bandwidth, plain


@dataclass(frozen=True)
class Bound(Displayed):
    """Lower bounds on the steps and on the time of every schedule of a collective on a topology, with their proofs.

    Attributes
    ----------
    latency_steps, latency_witness
        The minimum number of steps, and a path that proves it.
    inverse
        The inverse bandwidth, SCCL's R/C at zero latency: (time * `topology.unit`, the bandwidth of a unit link) /
        (bytes of the greatest input of any rank).
    bytes_per_second
        nbytes divided by the minimum time at zero latency; None if nothing must move.
    witness
        The proof of `inverse` and `bytes_per_second`; None if nothing must move.
    tight
        True if schedules with ever finer chunks come as close to this bandwidth as one likes; None if that is not
        known.
    note
        Why `tight` is what it is.
    assumes
        Conditions such as "no reduction in switches" under which alone the witness is valid on this machine. Only an
        `unaided` bound has any; all else holds even if switches multicast or reduce.
    packing
        Trees that attain the bound, on small machines where theory does not say that it is attained.
    unaided
        The bound of the same machine if its switches only forward. None if no switch can help this collective.
    """

    latency_steps: int
    latency_witness: Distance | None
    inverse: Fraction
    bytes_per_second: Fraction | None
    witness: Witness | None
    tight: bool | None
    note: str
    assumes: tuple[str, ...] = ()
    packing: Packing | None = None
    unaided: Bound | None = None

    def __repr__(self) -> str:
        rate = format_bandwidth(self.bytes_per_second) if self.bytes_per_second else "unlimited"
        steps = f"{self.latency_steps} step{'s' * (self.latency_steps != 1)}"
        return f"Bound({steps}, {rate} of nbytes, R/C = {self.inverse})"

    @property
    def without_help(self) -> Bound:
        """Return the bound of schedules in which no switch multicasts or reduces."""
        return self if self.unaided is None else self.unaided

    @property
    def without_switches(self) -> Fraction | None:
        """Return `bytes_per_second` of the machine whose switches only forward, for runtimes that cannot use them."""
        return self.without_help.bytes_per_second

    def seconds(self, nbytes: int) -> Fraction:
        """Return the minimum time in seconds at zero latency."""
        return nbytes / self.bytes_per_second if self.bytes_per_second is not None else Fraction(0)

    def as_json(self) -> dict[str, Any]:
        """Return the bound as JSON. The keys latency_steps, bandwidth {inverse, bytes_per_second, witness} and assumes
        stay the same across releases.
        """
        latency, proof = self.latency_witness, self.witness
        rate = self.bytes_per_second
        return {
            "latency_steps": self.latency_steps,
            "latency_witness": latency.as_json() if latency is not None else None,
            "bandwidth": {
                "inverse": str(self.inverse),
                "bytes_per_second": plain(rate) if rate is not None else None,
                **self._without_switches_json(),
                "witness": proof.as_json() if proof is not None else None,
                "tight": self.tight,
                "note": self.note,
                "packing": self.packing.as_json() if self.packing is not None else None,
            },
            "assumes": list(self.assumes),
            **({"unaided": self.unaided.plan_json()} if self.unaided is not None else {}),
        }

    def _without_switches_json(self) -> dict[str, Any]:
        """Return the key without_switches, if the bound relies on the help of switches."""
        if self.unaided is None:
            return {}
        rate = self.without_switches
        return {"without_switches": plain(rate) if rate is not None else None}

    def plan_json(self) -> dict[str, Any]:
        """Return the bandwidth bound as plans store it, with `assumes` if it assumes anything or relies on switches."""
        bound_json = self.as_json()
        has_assumptions = self.assumes or self.unaided is not None
        return {**bound_json["bandwidth"], **({"assumes": bound_json["assumes"]} if has_assumptions else {})}

    def describe(self, topology: Topology, collective: Collective) -> list[str]:
        """Return one line per witness in the user's terms; the bound `unaided` describes itself."""
        lines = [self.latency_witness.describe(topology)] if self.latency_witness is not None else []
        if self.witness is not None:
            lines.append(self.witness.describe(topology, collective.buffer_weight))
        return lines


MAX_CUSTOM_BLOCKS = 2**18  # of a custom collective: needs are listed block by block, about 1.4 KB of memory each


def bound(topology: Topology, collective: Collective) -> Bound:
    """Return exact lower bounds for any schedule, with rechecked witnesses.

    Raises Invalid if a rank cannot be reached, Unsupported for a custom collective of more than MAX_CUSTOM_BLOCKS
    blocks.

    Cost: for allgather, broadcast and their reversals at most one maximum flow per rank; for alltoall, and for every
    collective under shared limits, a linear program of about ranks * links variables.
    """
    if collective.ranks != topology.ranks:
        raise Invalid(
            f"the collective is for {collective.ranks} ranks, but topology {topology.name} has "
            f"{topology.ranks}; make it for the whole machine, with members for a group"
        )
    if collective.custom is not None and collective.blocks > MAX_CUSTOM_BLOCKS:
        raise Unsupported(
            f"bound: the custom collective has {collective.blocks} blocks; at most {MAX_CUSTOM_BLOCKS} are supported. "
            "Join blocks that the same ranks have and want into one of their total weight"
        )
    needs = needs_of(collective)
    latency = latency_of(topology, needs)
    # First without help of switches: this bound holds for runtimes that cannot use them, too.
    result = _unchecked_bound(strip_abilities(topology), collective, needs, latency)
    if abilities_of(topology, collective):
        unaided = replace(result, assumes=assumed_conditions(topology, collective, result.witness))
        result = replace(_unchecked_bound(topology, collective, needs, latency), unaided=unaided)
    recheck(topology, collective, result)
    return result


def _unchecked_bound(topology: Topology, collective: Collective, needs: Needs, latency: Distance | None) -> Bound:
    """Compute the bounds, which are not yet rechecked."""
    search = JointSearch if collective.groups else BandwidthSearch
    proved = search(topology, collective, needs).find_best()
    inverse, rate = _rates_of_time(topology, collective, proved.time)
    steps = latency.steps if latency is not None else 0
    tight, note, packing = proved.tight, proved.note, None
    # Tightness unknown: try to construct trees that meet the bound, unless some rank starts with several contributions
    # already combined (`joined`).
    if tight is None and not needs.joined:
        packing = packing_of(topology, collective, proved.time)
        if packing is not None:
            tight, note = True, f"attained by {len(packing.trees)} trees, which are listed"
    return Bound(
        latency_steps=steps, latency_witness=latency, inverse=inverse, bytes_per_second=rate, witness=proved.witness,
        tight=tight, note=note, packing=packing,
    )  # fmt: skip


def recheck(topology: Topology, collective: Collective, stated: Bound) -> None:
    """Check a bound from its witnesses alone, in exact rationals; raise Invalid if they do not prove it."""
    # Every number of the bound must follow from a witness; the witnesses are checked from nothing else.
    if (stated.latency_witness is None) != (stated.latency_steps == 0):
        raise Invalid("this bound states steps without a witness; compute the bound anew")
    if stated.latency_witness is not None:
        check_distance(topology, collective, stated.latency_witness)
        if stated.latency_witness.steps != stated.latency_steps:
            raise Invalid("this bound states other steps than its witness proves; compute the bound anew")
    # There is an unaided bound exactly where some switch can help.
    if (stated.unaided is not None) != bool(abilities_of(topology, collective)):
        raise Invalid("this bound lacks the value without the help of switches; compute the bound anew")
    if stated.unaided is not None:
        if stated.unaided.assumes != assumed_conditions(topology, collective, stated.unaided.witness):
            raise Invalid("this bound assumes other things of switches than its witness does; compute the bound anew")
        # On the machine whose switches only forward, the same bound holds without conditions.
        recheck(strip_abilities(topology), collective, replace(stated.unaided, assumes=()))
    if stated.assumes:  # a bound that allows the help of switches has no conditions
        raise Invalid("this bound assumes other things of switches than its witness does; compute the bound anew")
    time = proved_time(topology, collective, stated.witness)
    if (stated.inverse, stated.bytes_per_second) != _rates_of_time(topology, collective, time):
        raise Invalid("this bound states another bandwidth than its witness proves; compute the bound anew")
    if stated.packing is not None and packed_time(topology, collective, stated.packing) != time:
        raise Invalid("this bound's packing takes another time than the bound; compute the bound anew")


def proved_rate(topology: Topology, collective: Collective, witness: Witness) -> Fraction | None:
    """Return the greatest nbytes per second that this witness leaves possible; raise Invalid if it proves nothing."""
    _, rate = _rates_of_time(topology, collective, proved_time(topology, collective, witness))
    return rate


def _rates_of_time(topology: Topology, collective: Collective, time: Fraction) -> tuple[Fraction, Fraction | None]:
    """Convert a time to R/C and to nbytes per second.

    `time`: seconds if a block of weight 1 had one byte. The weight of a block is its relative size; `input_weight` is
    the weight of the greatest input of any rank, and `buffer_weight` the weight that corresponds to nbytes.
    """
    inverse = time * topology.unit / collective.input_weight
    return inverse, collective.buffer_weight / time if time else None
