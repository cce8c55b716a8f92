"""The built-in back ends by name. To add one: a file with a function that writes it, and an entry here.

An entry has the function, a line for `antiphon list formats`, and its `BackendCapabilities` (explained in registry.py).
In its `files`, NAME is the function's argument `name`. `replaces`: a runtime runs the files in place of a GPU library's
own choice.
"""

from __future__ import annotations

from dataclasses import replace

from antiphon.registry import BackendCapabilities, Entry

_MSCCL = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter")
_ONE_SIZE = BackendCapabilities(topologies="all", needs=("nbytes",))
_ANY_SIZE = BackendCapabilities(topologies="all")
_PLAN_TABLES = BackendCapabilities(topologies="all", tables=True)

TABLE: dict[str, Entry[BackendCapabilities]] = {
    "chakra": Entry(
        "antiphon.formats.chakra.write:chakra",
        "Chakra execution traces, for ASTRA-sim: a file of sends, receives and computations for each rank",
        replace(_ONE_SIZE, files=("NAME.0.et, ...",)),
    ),
    "cuda": Entry(
        "antiphon.formats.device.write:cuda",
        "a CUDA program that runs the plan, checks and times it; also compiles to run on a CPU",
        replace(_ANY_SIZE, files=("plan0.cu, ...",), suffix=".cu"),
    ),
    "dimacs": Entry(
        "antiphon.formats.points.dimacs:dimacs",
        "what a plan claims of points (C, S, R), for any SAT solver to confirm or contradict",
        replace(_ANY_SIZE, files=("sat-C-S-R.cnf, ...", "unsat-C-S-R.cnf, ...")),
    ),
    "goal": Entry(
        "antiphon.formats.goal.write:goal",
        "GOAL, for LogGOPSim and ATLAHS: sends, receives, computations",
        replace(_ONE_SIZE, files=("schedule.goal",)),
    ),
    "hip": Entry(
        "antiphon.formats.device.write:hip",
        "a HIP program that runs the plan, checks and times it, for AMD GPUs",
        replace(_ANY_SIZE, files=("plan0.hip.cpp, ...",), suffix=".hip.cpp"),
    ),
    "msccl-xml": Entry(
        "antiphon.formats.msccl.write:msccl_xml",
        "MSCCL XML, which MSCCL's executor and RCCL run: what thread blocks of GPUs do",
        replace(_ANY_SIZE, collectives=_MSCCL, replaces=True, files=("NAME-0.xml, ...", "NAME-0-in-place.xml, ...")),
    ),
    "mscclpp-json": Entry(
        "antiphon.formats.mscclpp.write:mscclpp_json",
        "execution plans of MSCCL++: what every thread block of every GPU does",
        replace(
            _PLAN_TABLES,
            replaces=True,
            files=("plan0.json, ...", "plan0-in-place.json, ...", "plan0-packets.json, ...", "register.py"),
        ),
    ),
    "mpich-rules": Entry(
        "antiphon.formats.stock.mpich_rules:mpich_rules",
        "selection trees for MPICH: its own fastest algorithm at each size, from a table by tune --library-only",
        replace(_PLAN_TABLES, files=("mpich-mpir.json", "mpich-ch4.json")),
    ),
    "nccl-csv": Entry(
        "antiphon.formats.stock.nccl_csv:nccl_csv",
        "file for RCCL's built-in tuner (and NVIDIA's example plugin): the algorithm, protocol and channels to use",
        replace(_PLAN_TABLES, files=("nccl-tuner.csv",)),
    ),
    "nccl-graph": Entry(
        "antiphon.formats.stock.nccl_graph:nccl_graph",
        "rings and chains for a stock NCCL, as NCCL_GRAPH_FILE",
        replace(_PLAN_TABLES, files=("nccl-graph.xml",)),
    ),
    "nccl-tuner": Entry(
        "antiphon.formats.stock.nccl_tuner:nccl_tuner",
        "file for our tuner plugin of NCCL (antiphon build nccl-tuner): the algorithm, protocol and channels to use",
        replace(_PLAN_TABLES, files=("nccl-tuner.txt",)),
    ),
    "ncclx-csv": Entry(
        "antiphon.formats.stock.nccl_csv:ncclx_csv",
        "file for NCCLX's built-in tuner: the algorithm, protocol, channels and chunk size to use",
        replace(_PLAN_TABLES, files=("ncclx-tuner.csv",)),
    ),
    "openmpi-rules": Entry(
        "antiphon.formats.stock.openmpi_rules:openmpi_rules",
        "rules for Open MPI: its own fastest algorithm at each size, from a table by tune --library-only",
        replace(_PLAN_TABLES, files=("openmpi-rules.conf",)),
    ),
    "piccl-xml": Entry(
        "antiphon.formats.piccl.write:piccl_xml",
        "PICCL's schedule XML; with option profile also its topology XML and LogGP parameters",
        replace(_ONE_SIZE, files=("schedule.xml", "topology.xml", "level0.csv, ...")),
    ),
    "program": Entry(
        "antiphon.formats.program:program",
        "what our own runtimes execute: per rank operations on addresses",
        replace(_ANY_SIZE, files=("program0.bin, ...", "program0.txt, ...")),
    ),
    "smtlib": Entry(
        "antiphon.formats.points.smtlib:smtlib",
        "what a plan claims of points (C, S, R), as SMT-LIB 2, for any solver of QF_LIA",
        replace(_ANY_SIZE, files=("sat-C-S-R.smt2, ...", "unsat-C-S-R.smt2, ...")),
    ),
    # an algorithm that was measured to be best; with unproven=yes also the one that does what the plan's planner does
    "ucc": Entry(
        "antiphon.formats.stock.ucc:ucc",
        "tuning strings for UCC: its own algorithms that were measured to be faster, or (unproven) that match the plan",
        replace(_PLAN_TABLES, files=("ucc.conf",)),
    ),
}
