"""Synthesize SCCL's points by the planner `sccl`: each verified, and its certificate rechecked.

A `PointFamily` is a machine, a collective and a root. `make` returns the schedule of one point (C, S, R), `frontier`
all points that no other beats. A certificate proves that the search missed nothing; `ratio_bound` follows from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.ksync.certificate import COMPOSED, certified_instance, check_certificate, least_rounds_per_part
from antiphon.core.ksync.instance import instance_of
from antiphon.core.loads import claims
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.errors import Infeasible
from antiphon.planners.synth.group import group_of, orbits
from antiphon.planners.synth.sccl import sccl


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


@dataclass(frozen=True)
class Synthesized:
    """A synthesized schedule of a point (C, S, R)."""

    schedule: Schedule
    chunks: int
    steps: int
    rounds: int
    ratio_bound: Fraction | None  # lower bound on R / C of algorithms with as many steps; None: no certificate
    proof: str  # label of the certificate
    engine: str  # the method or solver that found the schedule, such as a SAT solver
    seconds: float  # CPU time of the search and of verifying the schedule, without its certificate
    composed: bool = False  # a reducescatter, then an allgather; `ratio_bound` then holds only for such allreduces
    proved: tuple[str, ...] = ()  # what the certificate proves, line by line
    trusted: tuple[str, ...] = ()  # claims that only a solver vouches for

    @property
    def point(self) -> tuple[int, int, int]:
        return self.chunks, self.steps, self.rounds

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.rounds, self.chunks)


@dataclass(frozen=True)
class PointFamily:
    """A machine, a collective and a root: points of one family can be compared with each other."""

    topology: Topology
    collective: Collective

    @property
    def root(self) -> int | None:
        return self.collective.roots[0] if self.collective.kind in ROOTED else None

    @property
    def name(self) -> str:
        return self.collective.kind if self.root is None else f"{self.collective.kind} (root {self.root})"

    def limits(self) -> Bound:
        """Return the lower bounds on steps and on R / C."""
        return bound(self.topology, self.collective)

    def make(self, chunks: int, steps: int, rounds: int) -> Synthesized:
        """Return the algorithm of one point, by the planner `sccl`."""
        algorithms = list(self._synthesize_points(chunks=chunks, steps=steps, rounds=rounds))
        if len(algorithms) != 1:
            raise Infeasible(f"planner sccl gave {len(algorithms)} schedules for one point of {self.name}")
        return algorithms[0]

    def frontier(self, k: int | None, steps: int) -> list[Synthesized]:
        """Return the frontier with at most these steps; `k`: only schedules with R <= S + k."""
        return list(self._synthesize_points(k=k, steps=steps))

    def _synthesize_points(self, **options: Any) -> Iterator[Synthesized]:
        """Yield algorithms, verified and with their certificates rechecked. Cached results are not used."""
        begin = cpu_seconds()
        for schedule in sccl(Request(self.topology, self.collective), cache=False, **options):
            verify(schedule, self.topology).or_raise()
            seconds = cpu_seconds() - begin  # without the time of checking the certificate
            yield self._check_schedule(schedule, seconds)
            begin = cpu_seconds()

    def _check_schedule(self, schedule: Schedule, seconds: float) -> Synthesized:
        """Return a schedule with its point and, from its rechecked certificate, the lower bound on R / C."""
        figures = claims(schedule, self.topology)
        chunks, steps, rounds = (int(figures[key]) for key in ("chunks", "steps", "rounds"))
        engine, certificate = str(schedule.provenance["engine"]), schedule.provenance.get("certificate")
        if certificate is None:
            return Synthesized(
                schedule,
                chunks,
                steps,
                rounds,
                ratio_bound=None,
                proof=schedule.provenance["found"]["proof"],
                engine=engine,
                seconds=seconds,
            )
        checked = check_certificate(self.topology, self.collective, certificate)
        instance = certified_instance(self.topology, self.collective, certificate["about"])
        composed = certificate["about"] == COMPOSED
        # The dual solution of the LP bounds the rounds per chunk of a block ("part"). The certificate of a composed
        # allreduce is about one half; both halves take the same rounds.
        about, evidence = certificate["about"], certificate["least"]
        halves = 2 if composed else 1
        rounds_per_part = least_rounds_per_part(instance, about, certificate["steps"], evidence) * halves
        ratio_bound = rounds_per_part * instance.parts_of(certificate["chunks"]) / chunks
        return Synthesized(
            schedule, chunks, steps, rounds, ratio_bound, proof=certificate["proof"], engine=engine, seconds=seconds,
            composed=composed, proved=checked.proved, trusted=checked.trusted,
        )  # fmt: skip


def make_family(topology: Topology, kind: str, root: int | None = None) -> PointFamily:
    """Return the family of a collective; `root`: None if the collective has none."""
    return PointFamily(topology, Collective(kind, topology.ranks, members=(), roots=() if root is None else (root,)))


def roots_of(topology: Topology, kind: str) -> list[int | None]:
    """Return the lowest rank of every orbit under the machine's symmetries; [None] for a collective without root.

    Roots of one orbit give the same points.
    """
    if kind not in ROOTED:
        return [None]
    # an allgather treats all ranks alike, so its symmetries are those of the machine
    group = group_of(instance_of(topology, Collective("allgather", topology.ranks)))
    return sorted(set(orbits(group.nodes)[: topology.ranks].tolist()))
