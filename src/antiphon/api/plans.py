"""Make, write, compose and verify plans, and find the latency-bandwidth frontier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.api import _given
from antiphon.api._checked import checked, operator, public, size, yes_or_no
from antiphon.api._checked import dtype as _dtype
from antiphon.api.report import Report

if TYPE_CHECKING:
    from antiphon.api._kinds import CollectiveLike, MachineLike, PlanLike, Seconds, Size
    from antiphon.author import Writing
    from antiphon.core.plan import Plan
    from antiphon.select import Frontier, FrontierPoint


@public
def plan(  # noqa: PLR0913
    wanted: CollectiveLike,
    topology: MachineLike,
    *,
    planner: str = "",
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    nbytes: Size | None = None,
    model: str | None = None,
    options: Mapping[str, Any] | None = None,
    deterministic: bool = False,
    effort: float | None = None,
    budget: Seconds | None = None,
    seed: int = 0,
    tell: Callable[[str], None] | None = None,
) -> Plan:
    """Plan by one planner: return its best schedule, verified, with its gaps to the bounds.

    `wanted`: a collective, its name or its file.
    `topology`: the machine, its name or its file.
    `planner`: one of `antiphon.available.planners()`; left out, ring, or relay for a custom collective.
    `root`: of a rooted collective the root; left out, the first rank that takes part.
    `ranks`: those that take part; the others may relay. Left out, all.
    `nbytes`: plan for this size, such as "64MiB"; of several schedules the fastest for it is kept. Left out, the one
    nearest to the bandwidth bound, then to that of latency.
    `model`: what says which is the fastest (`antiphon.available.models()`; alpha-beta).
    `options`: those of the planner, {"pieces": 4}.
    `deterministic`: only schedules that combine every element in one and the same order; SeveralOrders where there
    is none. Without a planner the best of those that can.
    `effort`: how much a planner that searches tries, in units of about a second (sccl: 60); they are counted, so the
    answer is the same on every machine.
    `budget`: CPU seconds, or "60s", for planning, proving and the bound together, in a process of their own, which is
    stopped then: the best plan so far is returned, and `stopped` among its claims says what was stopped; TimedOut if
    there is none. Which plan that is depends on how fast the machine is. Left out, nothing is stopped.
    `seed`: the same seed gives the same plan.
    `tell`: called with what a planner that searches is doing; with it, Ctrl-C returns the best plan so far. The plan
    claims as `stopped` what ended a search early.
    """
    from antiphon.select import plan as make

    machine = _given.machine(topology)
    return make(
        _given.collective(wanted, machine, root, ranks), machine, planner=planner, model=model, options=options,
        nbytes=None if nbytes is None else size(nbytes, "nbytes"), deterministic=deterministic, effort=effort,
        budget=budget, seed=seed, tell=tell,
    )  # fmt: skip


@public
def frontier(  # noqa: PLR0913
    wanted: CollectiveLike,
    topology: MachineLike,
    *,
    planner: str = "sccl",
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    k: int | None = None,
    steps: int | None = None,
    options: Mapping[str, Any] | None = None,
    effort: float | None = None,
    budget: Seconds | None = None,
    memory: float | None = None,
    seed: int = 0,
    tell: Callable[[str], None] | None = None,
    heard: Callable[[FrontierPoint], None] | None = None,
    apart: bool = False,
) -> Frontier:
    """Every point of the latency-bandwidth frontier that the planner finds, verified, with proofs rechecked: `.points`,
    `.impossible`, `.stopped` (why it ended early), `.plan()`, `.as_json()`, `.save(file)`.

    `wanted`: a collective, its name or its file.
    `topology`: the machine, its name or its file.
    `planner`: finds the points.
    `root`, `ranks`: as for `plan`.
    `k`: only points of R <= S + k rounds; left out, any.
    `steps`: the most steps.
    `options`: those of the planner.
    `effort`: how much is tried, in counted units (sccl: 60).
    `budget`: CPU seconds, or "60s", after which the process that searches is stopped, and what was found is returned;
    TimedOut if that is nothing.
    `memory`: GiB, the most for the search.
    `seed`: the same seed gives the same points.
    `tell`: called with what is tried and proved.
    `heard`: called with each point as soon as it is found.
    `apart`: the planner works in a program of its own, with a budget or without, which Ctrl-C stops at once, too, and
    whose memory is limited.
    """
    from antiphon.select import frontier as find

    machine = _given.machine(topology)
    return find(
        _given.collective(wanted, machine, root, ranks), machine, planner=planner, k=k, steps=steps, effort=effort,
        budget=budget, seed=seed, memory=memory, options=options, tell=tell, heard=heard, apart=apart,
    )  # fmt: skip


@public
def compose(
    plans: Sequence[PlanLike], *, at_once: bool = False, shares: Sequence[float | int | str] | None = None
) -> Plan:
    """One plan of several for groups of ranks of one machine: one after the other, or at once. It is verified as a
    whole, and named as the collective that it is, or else a custom one.

    The data of all lie on one line, blocks side by side in the order of their numbers. What the next takes the one
    before must leave there; Invalid says where they do not meet.

    `plans`: plans or their files, each with one schedule.
    `at_once`: side by side instead: groups that have no rank in common, each with all of the data.
    `shares`: at once, of the data, one for each plan: [1, 1] or ["1/3", "2/3"]; then groups may have ranks in common.
    """
    from antiphon.errors import Invalid
    from antiphon.select import put_together
    from antiphon.units import exact

    if isinstance(plans, str | bytes) or not isinstance(plans, Sequence):
        raise Invalid("plans: expected several plans or files")
    operands: list[Plan] = []
    for number, source in enumerate(plans, start=1):
        by_collective = _given.plans(source, f"plan {number}")
        if len(by_collective) > 1:
            kinds = ", ".join(by_collective)
            raise Invalid(f"plan {number}: holds {len(by_collective)} plans ({kinds}); give one of them")
        operands += by_collective.values()
    if shares is not None and (isinstance(shares, str | bytes) or not isinstance(shares, Sequence)):
        raise Invalid("shares: expected a number for each plan, such as [1, 1]")
    fractions = None if shares is None else [exact(share, f"shares[{i}]") for i, share in enumerate(shares)]
    if fractions is not None and len(fractions) != len(operands):
        raise Invalid(f"shares: {len(fractions)} for {len(operands)} plans; give one for each plan")
    return put_together(operands, at_once=yes_or_no(at_once, "at_once"), shares=fractions)


@public
def verify(
    plan: PlanLike,
    topology: MachineLike | None = None,
    *,
    proof: bool = False,
    op: str | None = None,
    dtype: Any = None,
    runtime: str = "",
    nbytes: Size | None = None,
    in_place: bool | None = None,
    collective: str = "",
) -> Report:
    """Whether a plan and its claims are right, and with `runtime` whether that will run it: a report that is true or
    false, with `.fault`, the first thing wrong, and `.will_run`, `.reasons`. Of several plans all are verified.

    `plan`: a plan, its file (also a table, or XML that `export` wrote), or what `tune` gave.
    `topology`: verify it on this machine instead of its own; then what it claims of its own is not checked.
    `proof`: recheck bounds and certificates from themselves alone, too.
    `op`, `dtype`: whether switches that combine can do so with this operator and this type, too; of a runtime's call
    the operator and the type (float32, sum).
    `runtime`: msccl, rccl-6 or mscclpp-0.9: will it run the plan, or ignore it, hang, or compute wrongly? The plan is
    written as the runtime's files first; such a file itself is taken as it is.
    `nbytes`: of the call on that runtime, such as "64MiB": the largest buffer of a rank.
    `in_place`: how it is called; left out, both ways are looked at.
    `collective`: of several plans the one to be run by that runtime.
    """
    from antiphon.api.checking import check, run_reasons
    from antiphon.core.verify import Fault
    from antiphon.errors import Invalid
    from antiphon.formats.written import Wrong
    from antiphon.select import judged

    if bool(runtime) != (nbytes is not None):
        raise Invalid("runtime, nbytes: a runtime is asked about a call of a size; give both, or neither")
    data = checked({"op": op, "dtype": dtype}, op=operator, dtype=_dtype)
    machine = None if topology is None else _given.machine(topology)
    try:
        plans = list(_given.plans(plan).values())
    except Wrong as error:  # a file of another program, executed as it stands
        return Report(None, Fault(error.kind, str(error)), will_run=False if runtime else None)
    verdict = judged(plans, machine, proof=proof, **data)
    claims = (verdict.proved, verdict.trusted, verdict.stated)
    if verdict.fault is not None or not runtime:
        return Report(verdict.topology, verdict.fault, *claims, will_run=False if runtime else None)
    assert nbytes is not None
    call = {"op": "sum", "dtype": "float32", **data}
    rows = check(plan, runtime, nbytes, in_place=in_place, collective=collective, **call)
    runs = any(row["runs"] for row in rows)
    return Report(verdict.topology, None, *claims, will_run=runs, reasons=tuple(run_reasons(rows)))


@public
def write(
    wanted: CollectiveLike,
    topology: MachineLike,
    *,
    chunks: int = 1,
    pieces: int = 1,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    verify: bool = True,
) -> Writing:
    """A schedule of your own, statement by statement, in a `with` block:

        with antiphon.write("allreduce", "ring:ranks=4", chunks=4) as w:
            for i in range(4):
                c = w[(i + 1) % 4, "input", i]
                for k in (2, 3, 4):
                    c = c.reduce_to((i + k) % 4)
                for k in (1, 2, 3):
                    c = c.copy_to((i + k) % 4)
        antiphon.save(w.plan, "plan.json")

    Steps follow from what waits for what; `w.step()` and `w.together()` say them. When the block ends, the schedule is
    verified: Invalid names the line that is wrong. Then there are `.schedule`, `.plan` and `.lines`.

    `wanted`: a collective, its name or its file.
    `topology`: the machine, its name or its file.
    `chunks`: into how many equal parts every block is cut: an allreduce has one block, an allgather one per rank.
    `pieces`: pipelining depth: the number of pieces in which every chunk is sent, each a step behind the one before.
    `root`, `ranks`: with a name, its root and the ranks that take part, as for `plan`.
    `verify`: False: what the block says is not judged when it ends; `.plan` judges it.
    """
    from antiphon.author import Writing

    machine = _given.machine(topology)
    return Writing(_given.collective(wanted, machine, root, ranks), machine, chunks, pieces, verify)
