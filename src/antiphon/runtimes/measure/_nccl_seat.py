"""What a process of `nccl` measures: the buffers of its rank on its GPU, and calls on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from antiphon.core.collective import Collective
from antiphon.runtimes.engine.native import OpenProgram
from antiphon.runtimes.engine.nccl import Communicator, Nccl, Rounds
from antiphon.runtimes.measure.case import Case
from antiphon.runtimes.measure.loop import Seat

PATIENCE = 60.0


def joined(nccl: Nccl, comm: Any) -> Communicator:
    """A communicator of NCCL with the ranks of one of mpi4py; those of one host take its GPUs in turn. Collective."""
    from mpi4py import MPI

    local = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    device = local.rank
    local.Free()
    identity = comm.bcast(nccl.identity() if comm.rank == 0 else None)
    return Communicator(nccl, comm.size, comm.rank, identity, device)


class DeviceSeat(Seat):
    """What is checked is fetched from there."""

    def __init__(self, collective: Collective, rank: int, case: Case, there: Communicator) -> None:
        super().__init__(collective, rank, case)
        self.there = there
        self.at_source = there.nccl.memory("source", self.source.nbytes)
        self.at_target = there.nccl.memory("target", self.target.nbytes)
        there.bring(self.at_source, self.source)

    def call(self, program: OpenProgram, case: Case) -> Callable[[], None]:
        """A call of a program, to its end."""
        place_of = [case.ranks.index(r) if r in case.ranks else -1 for r in range(self.collective.ranks)]
        rounds = Rounds(self.there, program, self.rank, case.unit, self.dtype, case.in_place, place_of)
        source = self.at_target if case.in_place else self.at_source
        return partial(rounds.go, source, self.at_target, case.op, case.timeout or PATIENCE)

    def refresh(self) -> None:
        super().refresh()
        if self.case.in_place:
            self.there.bring(self.at_target, self.target)

    def spoil(self) -> None:
        super().spoil()
        self.there.bring(self.at_target, self.target)

    def wrong(self) -> int:
        self.there.fetch(self.at_target, self.target)
        self.there.fetch(self.at_source, self.source)
        return super().wrong()
