"""Make, write, compose and verify plans, and find the latency-bandwidth frontier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.api import _inputs
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
    collective: CollectiveLike,
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
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Plan by one planner: return its best schedule, verified, with its gaps to the lower bounds.

    Parameters
    ----------
    collective
        A collective, its name or its file.
    topology
        The machine, its name or its file.
    planner
        One of `antiphon.available.planners()`. Default: ring, or relay for a custom collective.
    root
        Root of a rooted collective. Default: the lowest participating rank.
    ranks
        Participating ranks; the others may relay. Default: all.
    nbytes
        Plan for this size, such as "64MiB": of several schedules the fastest at this size is returned. Default: the one
        nearest to the bandwidth bound, then to the latency bound.
    model
        Cost model that decides which is fastest (`antiphon.available.models()`). Default: alpha-beta, and critical-path
        for `dispatch`.
    options
        Options of the planner, such as {"pieces": 4}.
    deterministic
        Allow only schedules that combine every element in one fixed order. Without `planner`, the best of the planners
        that can do so.
    effort
        Limit of a planner that searches, in counted units of about a second (sccl: 60), so the result is the same on
        every machine.
    budget
        CPU seconds, or "60s", for planning, proving and the bound together, in a process of their own, which is then
        stopped: the best plan so far is returned, with `stopped` among its claims. Which plan that is depends on the
        speed of the machine. Default: no limit.
    seed
        The same seed gives the same plan.
    progress
        Called with progress messages of a planner that searches. With it, Ctrl-C returns the best plan so far, with
        `stopped` among its claims.

    Returns
    -------
    Plan
        One verified schedule with its claims.

    Raises
    ------
    Unsupported
        The planner does not handle this collective on this machine.
    SeveralOrders
        `deterministic`, and every schedule combines in an order that depends on the size.
    TimedOut
        The budget ended before any plan was found.

    Examples
    --------
    >>> plan("allreduce", "ring:ranks=4", planner="ring").collective.kind
    'allreduce'
    """
    from antiphon.select import plan as plan_best

    machine = _inputs.machine(topology)
    return plan_best(
        _inputs.collective(collective, machine, root, ranks), machine, planner=planner, model=model, options=options,
        nbytes=None if nbytes is None else size(nbytes, "nbytes"), deterministic=deterministic, effort=effort,
        budget=budget, seed=seed, tell=progress,
    )  # fmt: skip


@public
def frontier(  # noqa: PLR0913
    collective: CollectiveLike,
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
    progress: Callable[[str], None] | None = None,
    on_point: Callable[[FrontierPoint], None] | None = None,
    in_own_process: bool = False,
) -> Frontier:
    """Find every point of the latency-bandwidth frontier that a planner can reach, verified, with proofs rechecked.

    Parameters
    ----------
    collective
        A collective, its name or its file.
    topology
        The machine, its name or its file.
    planner
        The planner that searches for points.
    root, ranks
        As for `plan`.
    k
        Only points of R <= S + k rounds for S steps. Default: any.
    steps
        Maximum number of steps.
    options
        Options of the planner.
    effort
        Limit of the search, in counted units (sccl: 60).
    budget
        CPU seconds, or "60s", after which the process that searches is stopped and the points found so far are
        returned.
    memory
        Maximum memory of the search, in GiB.
    seed
        The same seed gives the same points.
    progress
        Called with progress messages.
    on_point
        Called with each point at once when the planner finds it.
    in_own_process
        Run the planner in a process of its own even without a budget: Ctrl-C then stops it at once, and its memory is
        limited.

    Returns
    -------
    Frontier
        `.points`, `.impossible`, `.stopped` (why the search ended early), `.plan()`, `.as_json()` and `.save(file)`.

    Raises
    ------
    TimedOut
        The budget ended before any point was found.

    Examples
    --------
    >>> len(frontier("broadcast", "line:ranks=3").points) > 1
    True
    """
    from antiphon.select import frontier as find_frontier

    machine = _inputs.machine(topology)
    return find_frontier(
        _inputs.collective(collective, machine, root, ranks), machine, planner=planner, k=k, steps=steps, effort=effort,
        budget=None if budget is None else float(budget), seed=seed, memory=memory, options=options,
        on_progress=progress, on_point=on_point, in_own_process=in_own_process,
    )  # fmt: skip


@public
def compose(
    plans: Sequence[PlanLike], *, at_once: bool = False, shares: Sequence[float | int | str] | None = None
) -> Plan:
    """Combine plans for groups of ranks of one machine into one plan, one after another or at once.

    The result is verified as a whole. It is named after the collective that it performs; if there is none, it is a
    custom one. All plans work on the same data: the blocks of each collective, one behind the other by number. Unless
    `at_once`, one plan's output must be the next one's input.

    Parameters
    ----------
    plans
        Plans or their files, each with one schedule.
    at_once
        Run the plans concurrently instead: on groups without a common rank, each on all of the data.
    shares
        With `at_once`, the share of the data of each plan: [1, 1] or ["1/3", "2/3"]; groups may then have ranks in
        common.

    Returns
    -------
    Plan
        One verified plan.

    Raises
    ------
    Invalid
        The output of one plan is not the input of the next, or the number of shares is wrong.

    Examples
    --------
    >>> parts = [plan("reducescatter", "ring:ranks=4"), plan("allgather", "ring:ranks=4")]
    >>> compose(parts).collective.kind
    'allreduce'
    """
    from antiphon.errors import Invalid, quote
    from antiphon.select import put_together
    from antiphon.units import exact

    if isinstance(plans, str | bytes) or not isinstance(plans, Sequence):
        raise Invalid(f"plans: expected a list of plans or their files, got {quote(plans)}")
    operands: list[Plan] = []
    for number, source in enumerate(plans, start=1):
        by_collective = _inputs.plans(source, f"plan {number}")
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
def repair(
    plan: PlanLike, topology: MachineLike, *, collective: str = "", nbytes: Size | None = None,
    budget: Seconds | None = None, seed: int = 0, progress: Callable[[str], None] | None = None,
) -> Plan:  # fmt: skip
    """Repair a plan after failures: keep what still works on the degraded machine and plan anew what does not.

    Parameters
    ----------
    plan
        The plan, or its file, for the intact machine.
    topology
        The degraded machine (`degrade`), its name or its file. Ranks without links no longer take part.
    collective
        Of several plans, the one to repair.
    nbytes
        Slice the transfers for this size. Default: for the sizes of the plan.
    budget
        CPU seconds for every schedule that must be planned anew. Default: no limit.
    seed
        Seed of the schedules that are planned anew.
    progress
        Called with progress messages.

    Returns
    -------
    Plan
        A verified plan for the degraded machine. Its claim `repaired` is the number of transfers kept; its
        `bandwidth_gap` limits how much faster any other plan could be.

    Raises
    ------
    Infeasible
        Ranks no longer reach each other, or the root is lost.

    Examples
    --------
    >>> from antiphon.api.machines import degrade
    >>> repair(plan("broadcast", "ring:ranks=4"), degrade("ring:ranks=4", drop_links="1-2")).topology.name
    'ring:ranks=4 degraded'
    """
    from antiphon.core.request import silent
    from antiphon.select.parse_request import budget_of
    from antiphon.select.repair import repair as repair_plan

    intact = _inputs.plan(plan, collective)
    return repair_plan(
        intact, _inputs.machine(topology), nbytes=None if nbytes is None else size(nbytes, "nbytes"),
        budget=None if budget is None else budget_of(budget), seed=seed, tell=progress or silent,
    )  # fmt: skip


@public
def recount(plan: PlanLike, counts: Any, *, collective: str = "") -> Plan:
    """Return the plan of an alltoall with the counts of one call (MPI_Alltoallv); nothing is searched.

    Parameters
    ----------
    plan
        A plan of an alltoall, its file, or the result of `tune(..., counts=)`.
    counts
        A matrix (row i, column j: what rank i sends to rank j), or its JSON file.
    collective
        Of several plans, the one for this collective.

    Returns
    -------
    Plan
        The same transfers, each with the new share of the data, verified; its figures are for these counts.

    Raises
    ------
    Invalid
        The plan is not of an alltoall, or the counts do not fit it.

    Examples
    --------
    >>> recount(plan("alltoall", "ring:ranks=3"), [[0, 5, 1], [2, 0, 2], [1, 1, 0]]).collective.buffer_weight
    6
    """
    from antiphon.select.counts import recount as recount_plan

    return recount_plan(_inputs.plan(plan, collective), counts)


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
    """Verify a plan and its claims, and with `runtime` whether that runtime will run it; of several plans all.

    Parameters
    ----------
    plan
        A plan, its file (also a table, with its plans for the machine without single links or ranks, or XML that
        `export` wrote), or the result of `tune`.
    topology
        Verify on this machine instead of the plan's own; claims about its own machine are then not checked.
    proof
        Also recheck bounds and certificates independently of the planner.
    op, dtype
        Also check that switches support this operator and type; with `runtime`, those of the call (sum, float32).
    runtime
        msccl, rccl-6 or mscclpp-0.9: check whether it will run the plan, or ignore it, hang, or compute wrong values.
        The plan is exported to the runtime's files first; such a file itself is checked as it is.
    nbytes
        Size of the call on that runtime, such as "64MiB": the largest buffer of a rank.
    in_place
        Whether the call is in place. Default: both are checked.
    collective
        Of several plans, the one that the runtime runs.

    Returns
    -------
    Report
        True if the plan is correct and the runtime, if any, will run it. `.fault` is the first error, `.will_run` and
        `.reasons` are the verdict on the runtime.

    Raises
    ------
    Invalid
        Only one of `runtime` and `nbytes` was passed, or the file cannot be read.

    Examples
    --------
    >>> bool(verify(plan("allreduce", "ring:ranks=4")))
    True
    """
    from antiphon.api.checking import check, run_reasons
    from antiphon.core.verify import Fault
    from antiphon.errors import Invalid
    from antiphon.formats.foreign_program import Wrong
    from antiphon.select import check_failures, check_plans

    if bool(runtime) != (nbytes is not None):
        raise Invalid("runtime, nbytes: a runtime is checked for a call of one size; give both, or neither")
    # `checked` leaves out those that are None, so that the defaults below hold
    data = checked({"op": op, "dtype": dtype}, op=operator, dtype=_dtype)
    machine = None if topology is None else _inputs.machine(topology)
    try:
        # dead=(): the plans for the intact machine, even if $ANTIPHON_DEAD names failed links or ranks;
        # `check_failures` checks the others
        plans = list(_inputs.plans(plan, dead=()).values())
    except Wrong as error:  # a file of another program is executed when it is read, and its results are wrong
        return Report(topology=None, fault=Fault(error.kind, str(error)), will_run=False if runtime else None)
    if runtime and collective:  # the question is about calls of this one
        plans = [each for each in plans if each.collective.kind == collective] or plans
    verdict = check_plans(plans, machine, proof=proof, **data)
    if machine is None and _inputs.is_path(plan) and not runtime:
        verdict = check_failures(verdict, plan, proof=proof, **data)
    # rechecked, reported by a solver only, and not checkable (select/proofs.py)
    claims: dict[str, Any] = {"proved": verdict.proved, "trusted": verdict.trusted, "stated": verdict.stated}
    if verdict.fault is not None or not runtime:
        return Report(verdict.topology, verdict.fault, **claims, will_run=False if runtime else None)
    assert nbytes is not None
    call = {"op": "sum", "dtype": "float32", **data}
    rows = check(plan, runtime, nbytes, in_place=in_place, collective=collective, **call)
    runs = any(row["runs"] for row in rows)  # a row per file of the plan; one that serves the call is enough
    return Report(verdict.topology, fault=None, **claims, will_run=runs, reasons=tuple(run_reasons(rows)))


@public
def write(
    collective: CollectiveLike,
    topology: MachineLike,
    *,
    chunks: int = 1,
    pieces: int = 1,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    verify: bool = True,
) -> Writing:
    """Write a schedule of your own, statement by statement, in a `with` block.

        with antiphon.write("allreduce", "ring:ranks=4", chunks=4) as w:
            for i in range(4):
                c = w[(i + 1) % 4, "input", i]
                for k in (2, 3, 4):
                    c = c.reduce_to((i + k) % 4)
                for k in (1, 2, 3):
                    c = c.copy_to((i + k) % 4)
        antiphon.save(w.plan, "plan.json")

    Steps follow from the dependencies between statements; `w.step()` and `w.together()` set them explicitly. The
    schedule is verified when the block ends.

    Parameters
    ----------
    collective
        A collective, its name or its file.
    topology
        The machine, its name or its file.
    chunks
        Number of equal chunks per block: an allreduce has one block, an allgather one per rank.
    pieces
        Pipelining depth: the number of pieces in which every chunk is sent, each a step behind the one before.
    root, ranks
        For a collective passed by name, its root and participating ranks, as for `plan`.
    verify
        False: do not verify when the block ends; `.plan` verifies then.

    Returns
    -------
    Writing
        The block's `w`; after the block it has `.schedule`, `.plan` and `.lines`.

    Raises
    ------
    Invalid
        The schedule is wrong; the message names the line of the statement.

    Examples
    --------
    >>> with write("broadcast", "line:ranks=3") as w:
    ...     tail = w[0, "input", 0].copy_to(1).copy_to(2)
    >>> w.plan.collective.kind
    'broadcast'
    """
    from antiphon.author import Writing

    machine = _inputs.machine(topology)
    return Writing(_inputs.collective(collective, machine, root, ranks), machine, chunks, pieces, verify)
