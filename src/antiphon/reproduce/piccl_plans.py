"""Schedules of the three families of the PICCL paper (see piccl.py) for every k, timed on nodes like Delta's.

A family is an algorithm with a parameter k:

    k-ring                 k = 1 is the ring
    recursive multiplying  k = 2 is recursive doubling; a round (step) multiplies by k the number of ranks whose data
                           each rank has
    permuted               recursive multiplying with blocks permuted at the end

`plan_family` plans and verifies the schedules of all k; `Plans.times` predicts their times by LogGP: simulated by
packets (PACKETS) or whole messages (MESSAGES), without contention (NO_CONTENTION), or by the paper's formulas
(CLOSED_FORMS). The functions under "comparing" compare times by k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.cost import as_profile, prepare
from antiphon.cost.figures import Level
from antiphon.cost.loggp import forms as loggp_forms
from antiphon.planners.radix.kring import kring
from antiphon.planners.radix.permrecmult import permrecmult
from antiphon.planners.radix.recmult import recmult
from antiphon.topologies import topology
from antiphon.units import format_size

PROFILE = "loggp-delta"
GPUS_PER_NODE = 4
# How plans are timed. `local=on`: permuting a buffer costs time, as in PICCL.
PACKETS = "loggp:fidelity=packet,local=on"
MESSAGES = "loggp:local=on"
NO_CONTENTION = "loggp:contention=off,local=on"
CLOSED_FORMS = "closed form"  # no registered model: the formulas of the paper's section III
TIE_TOLERANCE = 1e-9  # times with a smaller relative difference count as equal
ASSUMPTIONS = "profile loggp-delta, whose figures are assumed, not measured"

Times = Mapping[int, Sequence[float]]  # k -> seconds for every size


@dataclass(frozen=True)
class PaperAlgorithm:
    """One of the paper's algorithms. `plain`: the k with which it is the algorithm without a parameter, such as the
    ring.
    """

    name: str
    planner: Callable[..., Iterator[Schedule]]
    plain: int


KRING = PaperAlgorithm("k-ring", kring, plain=1)
RECMULT = PaperAlgorithm("recursive multiplying", recmult, plain=2)
PERMUTED = PaperAlgorithm("permuted recursive multiplying", permrecmult, plain=2)
FAMILIES = (KRING, RECMULT, PERMUTED)


@dataclass(frozen=True, eq=False)
class Plans:
    """A family's verified schedules of one collective, by k: first `family.plain`, then by growing k.

    The planners of recursive multiplying take the fewest radices of at most k whose product is the number of ranks, as
    equal as they can be. So several k may lead to the same radices (64 ranks with k = 8, 16 or 32: 8x8). Of these only
    the least k is listed.
    """

    family: PaperAlgorithm
    kind: str
    machine: Topology
    by_k: Mapping[int, Schedule]

    def times(self, sizes: Sequence[int], model: str) -> Times:
        """Return the seconds by k for each size, by a model or by the formulas of section III (`CLOSED_FORMS`)."""
        if model == CLOSED_FORMS:
            return {k: [self._closed_form(k, size) for size in sizes] for k in self.by_k}
        seconds = {}
        for k, schedule in self.by_k.items():
            predict = prepare(model, schedule, self.machine, profile=PROFILE)
            seconds[k] = [predict(size).seconds for size in sizes]
        return seconds

    def _closed_form(self, k: int, nbytes: int) -> float:
        """Return the seconds by the formulas of section III.

        A round is priced as between hosts if any partner is in another host, else as within a host. That is exact where
        the number of ranks is a power of 2, as in all figures; a group of 3 ranks may lie in two hosts.
        """
        ranks, profile = self.machine.ranks, as_profile(PROFILE)
        within_host, between_hosts = profile_levels()
        block = max(1.0, nbytes / ranks)  # the formulas refuse messages below 1 byte
        if self.family == KRING:
            # groups of k consecutive ranks; delta has GPUS_PER_NODE consecutive ranks per host
            across_groups = between_hosts if ranks > GPUS_PER_NODE else within_host
            within_group = within_host if k <= GPUS_PER_NODE else across_groups
            return loggp_forms.kring(ranks, k, block, across_groups, within_group, collective=self.kind)
        radices = radices_of(self.by_k[k])
        # per round: the number of consecutive ranks that its partners lie within
        spans = [math.prod(radices[: i + 1]) for i in range(len(radices))]
        if self.family == PERMUTED:  # its first round is among the most distant ranks
            spans = [math.prod(radices[i:]) for i in range(len(radices))]
        levels = [within_host if span <= GPUS_PER_NODE else between_hosts for span in spans]
        # `m` of the formula: an allgather's rounds send whole blocks, an allreduce's the whole vector
        message_bytes = block if self.kind == "allgather" else float(nbytes)
        rounds = loggp_forms.recmult(ranks, radices, message_bytes, levels, collective=self.kind)
        copied_share = float(sum(work.share for work in self.by_k[k].local))  # share of nbytes
        return rounds + copied_share * nbytes / float(profile.memory_bandwidth)


@cache
def profile_levels() -> tuple[Level, Level]:
    """Return the LogGP parameters within a host, and those between hosts, of Delta's profile."""
    parameters = as_profile(PROFILE).loggp
    assert parameters is not None
    within_host, between_hosts = parameters.levels
    return within_host, between_hosts


def delta_machine(nodes: int) -> Topology:
    """Return `nodes` computers like those of the cluster Delta, each with 4 GPUs."""
    return topology(f"delta:nodes={nodes}")


def plan_family(family: PaperAlgorithm, kind: str, machine: Topology, ks: Sequence[int] = ()) -> Plans:
    """Return verified schedules for these k; by default for all factors of the number of ranks."""
    ranks = machine.ranks
    candidates = ks or [family.plain, *(k for k in range(2, ranks + 1) if ranks % k == 0 and k != family.plain)]
    by_k: dict[int, Schedule] = {}
    seen_radices: set[Any] = set()
    for k in candidates:
        schedule = next(family.planner(Request(machine, Collective(kind, ranks)), k=k))
        radices = schedule.provenance["found"].get("radices", k)  # k-ring has none
        if radices not in seen_radices:
            verify(schedule, machine).or_raise()
            seen_radices.add(radices)
            by_k[k] = schedule
    return Plans(family, kind, machine, by_k)


def radices_of(schedule: Schedule) -> list[int]:
    """Return the number of ranks that exchange in each round of recursive multiplying."""
    return [int(radix) for radix in str(schedule.provenance["found"]["radices"]).split("x")]


# ---- comparing ----


def speedups_by_k(times: Times) -> dict[int, list[float]]:
    """Return the speedup of every k over the first k (`family.plain` in `Plans.by_k`), for every size."""
    plain = next(iter(times.values()))
    return {k: [a / b for a, b in zip(plain, seconds, strict=True)] for k, seconds in times.items()}


def fastest_k(times: Times) -> list[int]:
    """Return the fastest k at every size; of several that are equally fast, the first."""
    fastest = []
    for column in zip(*times.values(), strict=True):
        limit = min(column) * (1 + TIE_TOLERANCE)
        fastest.append(next(k for k, seconds in zip(times, column, strict=True) if seconds <= limit))
    return fastest


def geomean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def merge_equal(sizes: Sequence[int], chosen: Sequence[object]) -> dict[str, object]:
    """Merge neighbouring sizes with the same choice: {"16B to 256KiB": 8, ...}."""
    spans: dict[str, object] = {}
    start = 0
    for end in range(1, len(sizes) + 1):
        if end == len(sizes) or chosen[end] != chosen[start]:
            first, last = format_size(sizes[start]), format_size(sizes[end - 1])
            spans[first if first == last else f"{first} to {last}"] = chosen[start]
            start = end
    return spans


def round_values(values: Mapping[Any, float]) -> dict[str, float]:
    """Round values to three decimals, for a row."""
    return {str(key): round(value, 3) for key, value in values.items()}
