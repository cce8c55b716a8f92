"""Find the latency-bandwidth frontier of a collective on a machine: every point verified, its proof rechecked.

A point (C, S, R) is a schedule of C chunks per rank, S steps and R rounds: S stands for its latency, R / C for its time
on the links. A planner searches, in this process or a child process; its schedules become points, and those that no
other point beats form the frontier.

    frontier           run the planner; make a point of each schedule, until the planner ends or is stopped
    make_point         verify the schedule; recheck its certificate; find the strongest label that holds
    _unbeaten_points   drop points that another equals or beats in both S and R / C

The label of a point states what is proved:

    proved-optimal         no algorithm of S steps has a smaller R / C; also given where R / C is the machine's bound
    proved-optimal-for-k   no algorithm of S steps with R <= S + k has a smaller R / C
    best-found-in-budget   nothing is proved

Example: allgather on a ring of 4, both directions: (C, S, R) = (1, 2, 2) has R / C = 2 in the fewest steps; (2, 2, 3)
has 3/2, the bound of the links, in as many steps. The second beats the first, so the frontier is one point.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, bound, conditions_without_help
from antiphon.core.collective import Collective
from antiphon.core.display import Explorable
from antiphon.core.ksync.certificate import AS_PLANNED, BEST_FOUND, COMPOSED, FOR_K, OPTIMAL
from antiphon.core.plan import Entry, Plan
from antiphon.core.request import Request, silent
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost import prepare, usual_model
from antiphon.errors import Invalid, NotFound, TimedOut, Unsupported
from antiphon.isolate import GRACE, Lost, PoolTerms, Send, Starved, Stopped, stream_job
from antiphon.registry import Entry as Planner
from antiphon.registry import call, find, refuse_unless_able
from antiphon.select.figures import measure
from antiphon.select.parse_request import sizes_of
from antiphon.select.proofs import least_ratio, recheck_certificate
from antiphon.select.provenance import label_of
from antiphon.select.ranges import Key, choose_winners, merge_runs
from antiphon.units import plural

_LABELS = (OPTIMAL, FOR_K, BEST_FOUND)  # labels of points, the strongest first
SIZES = "1KB:1GB"  # sizes at which points are compared for a plan
GIB = 2**30


@dataclass(frozen=True, eq=False)
class FrontierPoint:
    """One point (C, S, R) of the frontier: a verified schedule, and what is proved about it.

    An allreduce may be composed of two halves, a reducescatter and an allgather. Then its certificate is about the
    allgather, of S / 2 steps, and `half` is set in place of `least`. The certificate of any other allreduce is about a
    broadcast or a reduce that every allreduce contains.
    """

    schedule: Schedule
    claims: Mapping[str, Any]  # its figures: chunks, steps, rounds, gaps, ...
    proof: str  # its label: "proved-optimal", ...
    about: str  # the collective that the certificate is about: "plan", "halves", ... (core/ksync/certificate.py)
    engine: str | None  # the solver that found the schedule
    k: int | None  # of the label proved-optimal-for-k
    least: Fraction | None  # lower bound on R / C of all algorithms of S steps; None: nothing is proved
    half: Fraction | None = None  # lower bound on R / C of all allgathers of S / 2 steps; None: not of two halves
    proved: tuple[str, ...] = ()  # statements rechecked from the certificate
    trusted: tuple[str, ...] = ()  # statements that the solver reported and nothing proves

    @property
    def chunks(self) -> int:
        return int(self.claims["chunks"])

    @property
    def steps(self) -> int:
        return int(self.claims["steps"])

    @property
    def rounds(self) -> int:
        return int(self.claims["rounds"])

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.rounds, self.chunks)

    @property
    def has_no_certificate(self) -> bool:
        """Return whether nothing is proved of its number of steps: on large machines, and by other planners."""
        return self.least is None and self.half is None

    @property
    def meaning(self) -> str:
        """Return the label of this point in words."""
        steps = f"of {plural(self.steps, 'step')}"
        # A proof about halves does not exclude better allreduces of another form.
        if self.about == COMPOSED and self.least is None:
            half = f"of {plural(self.steps // 2, 'step')}"
            half_condition = self._k_text(halves=2)
            best = {OPTIMAL: f"no allgather {half} beats", FOR_K: f"no allgather {half}, {half_condition}, beats"}
            return f"{best.get(self.proof, 'better ones may exist than')} its halves; other ways to reduce may"
        if self.proof == OPTIMAL:
            return f"no algorithm {steps} has a smaller R/C"
        if self.proof == FOR_K:
            return f"no algorithm {steps}, {self._k_text(halves=1)}, has a smaller R/C"
        if self.has_no_certificate:
            return f"a better one may exist; no certificate bounds R/C {steps}"
        return "a better one may exist" + (f", none {steps} below {self.least}" if self.least is not None else "")

    def _k_text(self, halves: int) -> str:
        """Return the condition R <= S + k in words, for one of `halves` (1 or 2) equal parts of the schedule."""
        return f"with R at most {self.steps // halves + (self.k or 0)}"

    def as_json(self) -> dict[str, Any]:
        return {
            "chunks": self.chunks, "steps": self.steps, "rounds": self.rounds, "proof": self.proof,
            "ratio": str(self.ratio), "about": self.about, "meaning": self.meaning, "k": self.k,
            "least_ratio": None if self.least is None else str(self.least), "engine": self.engine,
            "bandwidth_gap": self.claims["bandwidth_gap"], "latency_gap": self.claims["latency_gap"],
            "transfers": self.claims["transfers"], "proved": list(self.proved), "trusted": list(self.trusted),
        }  # fmt: skip


@dataclass(frozen=True)
class RatioBound:
    """No algorithm of `steps` steps, or fewer, has R / C below `ratio`."""

    collective: str
    steps: int
    ratio: Fraction


@dataclass(frozen=True, eq=False)
class Frontier(Explorable):
    """The result of `frontier`: points in order of steps. `stopped`: why the search ended early; None if it did not."""

    topology: Topology
    collective: Collective
    planner: str
    points: tuple[FrontierPoint, ...]
    limits: Bound  # lower bounds if switches only forward
    stopped: str | None = None
    notes: tuple[str, ...] = ()  # which certificates do not hold

    def __repr__(self) -> str:
        points = f"{len(self.points)} point{'s' * (len(self.points) != 1)}"
        return f"Frontier({self.collective.kind} on {self.topology.name[:80]}, by {self.planner}: {points})"

    @property
    def assumes(self) -> tuple[str, ...]:
        """Return what switches could do but must not for the proofs to hold ("no multicast in switches")."""
        return conditions_without_help(self.topology, self.collective)

    @property
    def impossible(self) -> tuple[RatioBound, ...]:
        """Return the ratios that certificates exclude, by steps: of the collective, or of an allreduce's halves."""
        least_ratios = {}
        for point in self.points:
            if point.least is not None:
                least_ratios[self.collective.kind, point.steps] = point.least
            elif point.half is not None:
                least_ratios["allgather", point.steps // 2] = point.half
        return tuple(RatioBound(kind, steps, ratio) for (kind, steps), ratio in sorted(least_ratios.items()))

    def as_json(self) -> dict[str, Any]:
        """Return the frontier as JSON; its keys are stable."""
        return {
            "collective": self.collective.kind, "topology": self.topology.name, "planner": self.planner,
            "complete": self.stopped is None, "stopped": self.stopped,
            "points": [point.as_json() for point in self.points],
            "impossible": [
                {"collective": limit.collective, "steps": limit.steps, "ratio_below": str(limit.ratio)}
                for limit in self.impossible
            ],
            **self.limits.as_json(), "assumes": list(self.assumes), "notes": list(self.notes),
        }  # fmt: skip

    def plan(self, nbytes: str = SIZES, model: str = "") -> Plan:
        """Return the fastest point for every size by the model (default: that of the machine), as one plan."""
        model = model or usual_model(self.topology, wanted=(self.collective,))
        _, sizes = sizes_of(nbytes)
        times = {}
        for number, point in enumerate(self.points):
            predict = prepare(model, point.schedule, self.topology)
            times[Key(number, variant=0)] = [float(predict(size).seconds) for size in sizes]
        # the fastest point per size; neighbouring sizes with the same point become one range
        runs = merge_runs(choose_winners(times))
        starts = [0, *(sizes[first] for _, first, _ in runs[1:])]
        winners = [self.points[key.candidate] for key, _, _ in runs]
        entries = [
            Entry(start, stop, point.schedule, self._claims_of_point(point, model))
            for point, start, stop in zip(winners, starts, [*starts[1:], None], strict=True)
        ]
        return Plan(self.topology, self.collective, tuple(entries))

    def _claims_of_point(self, point: FrontierPoint, model: str) -> dict[str, Any]:
        label = label_of(point.schedule)
        return {
            "planner": self.planner, **point.claims, **({"optimality": label} if label else {}), "model": model
        }  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan."""
        from antiphon.core.serialize import save_plan

        save_plan(path, self.plan())


def frontier(  # noqa: PLR0913
    target: Collective,
    topology: Topology,
    *,
    planner: str = "sccl",
    k: int | None = None,
    steps: int | None = None,
    budget: float | None = None,
    effort: float | None = None,
    seed: int = 0,
    memory: float | None = None,
    options: Mapping[str, Any] | None = None,
    on_progress: Callable[[str], None] | None = None,
    on_point: Callable[[FrontierPoint], None] | None = None,
    in_own_process: bool = False,
) -> Frontier:
    """Return every point of the latency-bandwidth frontier that the planner finds, verified, with proofs rechecked.

    If the search is stopped, the points until then are returned, and `stopped` says why.

    Parameters
    ----------
    k
        Only points with R <= S + k (default: no limit).
    steps
        Only points with at most this number of steps.
    memory
        GiB for the solvers.
    options
        Further options of the planner.
    on_progress
        Called with each line of progress.
    on_point
        Called with each point once it is found and verified.
    effort
        Limit on the work of the search, in units of about a second; the search ends alike on every computer.
    budget
        CPU seconds after which the process of the search is stopped.
    in_own_process
        Search in a separate program even without a budget, so that Ctrl-C stops it at once. With a budget alone, the
        search runs in a process forked from this one, which starts faster.

    Raises
    ------
    TimedOut
        The search was stopped without a point.
    Infeasible
        There can be no point.
    NotFound
        The complete search found no point.
    """
    search_limits = (("k", k), ("steps", steps), ("memory", memory))
    planner_options = {**{key: value for key, value in search_limits if value is not None}, **(options or {})}
    _check_limits(planner_options)
    entry = find("planner", planner)
    refuse_unless_able(planner, entry, target)
    if target.ordered and not entry.can.ordered:
        raise Unsupported(f"planner {planner} combines contributions in any order; use planner sccl, which keeps it")
    for key in planner_options:
        if key not in entry.options:
            raise Unsupported(f"planner {planner} has no option {key}; leave it out, or use planner sccl")
    request = Request(topology, target, budget=budget, seed=seed, effort=effort, tell=on_progress or silent)
    task: _Task = planner, entry, planner_options, request
    # a budget can only be enforced on another process
    in_child = in_own_process or budget is not None
    progress = _find_in_child(task, memory, own_program=in_own_process) if in_child else _find_points(task)
    results: list[_Progress] = []
    stopped: str | None = None
    try:
        for result in progress:
            results.append(result)
            if on_point is not None:
                point, _, _ = result
                on_point(point)
    except KeyboardInterrupt:
        stopped = "interrupted"
    except (TimedOut, Lost) as error:
        stopped = str(error)
    if not results:
        name = f"{request.collective.kind} on {request.topology.name}"
        if stopped is not None:
            raise TimedOut(f"no point of the frontier of {name} was found: {stopped}")
        raise NotFound(f"planner {planner} found no algorithm for {name}")
    _, bounds, notes = results[-1]
    points = _unbeaten_points([point for point, _, _ in results])
    return Frontier(
        topology, target, planner, points, limits=bounds.without_help, stopped=stopped,
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _check_limits(options: Mapping[str, Any]) -> None:
    """Raise Invalid if k, steps or memory is no valid number."""
    for name, minimum in (("k", 0), ("steps", 1)):
        value = options.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
            raise Invalid(f"{name}: expected a whole number from {minimum}, got {value!r}")
    memory = options.get("memory")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int | float) or not memory > 0):
        raise Invalid(f"memory: expected GiB, more than 0, got {memory!r}")


_Task = tuple[str, Planner, dict[str, Any], Request]  # planner, its entry in the registry, its options, the request
_Progress = tuple[FrontierPoint, Bound, Sequence[str]]  # a point, the bounds, and notes on certificates so far


def _find_in_child(task: _Task, memory: float | None, own_program: bool) -> Iterator[_Progress]:
    """Yield the points that a child process finds. Raises TimedOut or Lost if it is stopped or dies.

    `memory`: its limit in GiB, None: no limit. `own_program`: a new Python process, else one forked from this one.
    """
    planner, entry, options, request = task
    terms = PoolTerms[_Task](
        _send_points, seconds=lambda job: request.budget, memory=None if memory is None else int(memory * GIB),
        grace=GRACE,  # seconds in which a stopped search can still send its points
    )  # fmt: skip
    # the child gets no callback of this process (`silent`); it sends its lines of progress as messages
    job = (planner, entry, options, replace(request, tell=silent))
    try:
        with closing(stream_job(job, terms, own_program=own_program)) as messages:
            for message in messages:
                if isinstance(message, str):
                    request.tell(message)
                else:
                    yield message
    except Stopped:
        raise TimedOut("the budget is used up") from None
    except Starved:
        raise TimedOut("memory ran out" if memory is None else f"its {memory:g} GiB of memory are used up") from None
    except Lost as error:
        raise Lost(f"the planner failed: {error}") from None


def _send_points(task: _Task, send: Send) -> None:
    """Run the planner in a child process, and send its points and lines of progress to the parent."""
    planner, entry, options, request = task
    for progress in _find_points((planner, entry, options, replace(request, tell=send))):
        send(progress)


def _find_points(task: _Task) -> Iterator[_Progress]:
    """Yield the planner's schedules as points, verified and with their proofs rechecked."""
    planner, entry, options, request = task
    bounds: Bound | None = None
    notes: list[str] = []
    for schedule in call("planner", planner, entry.load(), options, request):
        bounds = bounds or bound(request.topology, request.collective)
        yield make_point(schedule, request.topology, bounds, notes), bounds, tuple(notes)


def make_point(schedule: Schedule, topology: Topology, bounds: Bound, notes: list[str]) -> FrontierPoint:
    """Return the point of a schedule: verify it (`measure`) and recheck its certificate. If that does not hold, or the
    budget ends meanwhile, the point counts as best found, with a note."""
    claims = measure(schedule, topology, bounds)
    provenance = schedule.provenance
    certificate = provenance.get("certificate")
    try:
        checked = recheck_certificate(schedule, topology)
    except (Invalid, TimedOut) as error:  # the schedule is right, only its proof is not, or not checked
        why = f"a certificate does not hold: {error}"
        if isinstance(error, TimedOut):
            why = "the budget ended before a certificate was checked"
        notes.append(f"{why}; its point counts as best found")
        schedule = replace(schedule, provenance={**provenance, "certificate": None, "found": None})
        checked = certificate = None
    label = certificate["proof"] if checked is not None and certificate is not None else BEST_FOUND
    # what the certificate proves of R / C: of this collective, or of the halves of an allreduce
    proved_ratio = least_ratio(schedule, topology) if checked is not None else None
    about = certificate["about"] if certificate is not None else AS_PLANNED
    half = proved_ratio if about == COMPOSED else None
    proved_ratio = proved_ratio if half is None else None  # a bound for halves is none for the allreduce
    best_ratio = bounds.without_help.inverse  # the bound on R / C
    if Fraction(claims["rounds"], claims["chunks"]) == best_ratio:  # meets the bound, certificate or not
        label, proved_ratio = OPTIMAL, best_ratio
    elif proved_ratio is not None:
        proved_ratio = max(proved_ratio, best_ratio)  # a certificate may prove less than the links do
    return FrontierPoint(
        schedule, claims, proof=label, about=about, engine=provenance.get("engine"),
        k=certificate["k"] if certificate is not None and label == FOR_K else None, least=proved_ratio, half=half,
        proved=checked.proved if checked is not None else (), trusted=checked.trusted if checked is not None else (),
    )  # fmt: skip


def _unbeaten_points(points: Sequence[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Return the points that no other beats, by steps; of equal points the one with the strongest label, then the
    first.
    """
    # one point for each (S, R / C), then drop the dominated ones: O(points^2)
    best: dict[tuple[int, Fraction], FrontierPoint] = {}
    for point in points:
        rival = best.get((point.steps, point.ratio))
        if rival is None or _LABELS.index(point.proof) < _LABELS.index(rival.proof):
            best[point.steps, point.ratio] = point
    unbeaten = [p for p in best.values() if not any(_beats(rival, p) for rival in best.values())]
    return tuple(sorted(unbeaten, key=lambda p: (p.steps, p.ratio)))


def _beats(point: FrontierPoint, rival: FrontierPoint) -> bool:
    """Return whether the point is no worse in S and R / C, and better in one of them."""
    is_other = (point.steps, point.ratio) != (rival.steps, rival.ratio)
    return is_other and point.steps <= rival.steps and point.ratio <= rival.ratio
