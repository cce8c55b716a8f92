"""The runtime `torch`: processes of PyTorch on this machine (torch_process), compared with gloo's own collectives."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from antiphon.core.plan import Plan
from antiphon.errors import Invalid, Missing, Unsupported
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import Failed, watch
from antiphon.runtimes.measure.case import Case, How, Row, RowCallback, Runnable, Runtime, Stop, never
from antiphon.runtimes.measure.mpi_process import MpiJob
from antiphon.select import save_plans

KINDS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter", "alltoall")


class Torch(Runtime):
    """Run all cases in one launch. Collectives that PyTorch only has in place run out of place by a copy."""

    def ready(self, how: How) -> None:
        if find_spec("torch") is None:
            raise Missing("to run under PyTorch needs the package torch: pip install 'antiphon[torch]'")
        if "TORCHELASTIC_RUN_ID" in os.environ:
            raise Invalid(
                "--on torch: starts its processes itself, on this host; start it without torchrun, or let the job "
                "measure: ANTIPHON_LEARN=1 ANTIPHON_LEARNED=learned.txt torchrun ..."
            )
        library("sockets", how.compiler)

    def run(
        self, programs: Sequence[Runnable], cases: Sequence[Case], how: How, on_row: RowCallback, enough: Stop = never
    ) -> None:
        for runnable in programs:
            _refuse_unsupported(runnable)
        counts = {len(case.ranks) for case in cases}
        if len(counts) > 1:
            raise Invalid("--on torch: the plans are for different numbers of ranks; measure one at a time")
        received = 0

        def receive(row: Row) -> bool:
            nonlocal received
            if "fault" in row:
                raise Failed(f"PyTorch: {row['fault']}")
            received += 1
            on_row(int(row.pop("case")), row)
            # True stops the processes; after the last row they end by themselves
            return enough() and received < len(cases)

        with tempfile.TemporaryDirectory(prefix="antiphon-") as temporary:
            folder = Path(temporary)
            # torch_process serves its groups by the plans, as users do; of the programs it reads the collectives alone.
            # The job is as for MPI, but without the engine, which PyTorch's processes build themselves.
            for number, runnable in enumerate(programs):
                plan = Plan.of(runnable.topology, runnable.schedule)
                save_plans(folder / f"plan{number}.json", {"plan": plan}, table=False)
            MpiJob(
                library="", processes=counts.pop(), programs=[runnable.data for runnable in programs], cases=list(cases)
            ).write(folder)
            command = [sys.executable, "-m", "antiphon.runtimes.measure.torch_process", str(folder)]
            complete = watch(command, receive, how.timeout, temporary=str(folder))
        if complete and received != len(cases):
            raise Failed(f"PyTorch ended after {received} of {len(cases)} runs")


def _refuse_unsupported(runnable: Runnable) -> None:
    collective = runnable.schedule.collective
    uneven = len(set(collective.weights.tolist())) > 1 or len(collective.roots) > 1
    if collective.kind not in KINDS or uneven or len(collective.members) != collective.ranks:
        raise Unsupported("--on torch: takes the eight collectives among all ranks, with even counts and one root")
