"""The latency-bandwidth frontier of a collective on a machine: every point verified, its proof rechecked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, bound, helped
from antiphon.core.collective import Collective
from antiphon.core.ksync.certificate import AS_PLANNED, BEST_FOUND, COMPOSED, FOR_K, OPTIMAL
from antiphon.core.plan import Entry, Plan
from antiphon.core.request import Request, silent
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost import prepare, usual_model
from antiphon.errors import Infeasible, Invalid, NotFound, TimedOut, Unsupported
from antiphon.isolate import GRACE, Lost, Say, Starved, Stopped, Terms, stream_job
from antiphon.registry import Entry as Planner
from antiphon.registry import call, find, refuse_unless_able
from antiphon.select.plans import measure
from antiphon.select.proofs import certified, label_of, least_ratio
from antiphon.select.ranges import runs, winners
from antiphon.select.wish import budget_of, collective, machine_of, sizes_of

_STRENGTH = (OPTIMAL, FOR_K, BEST_FOUND)
SIZES = "1KB:1GB"  # over which points are compared for a plan
GIB = 2**30


@dataclass(frozen=True, eq=False)
class FrontierPoint:
    """One (C, S, R). `proof` is about the schedule, or, where `about` is "halves", about each half of an allreduce.

    `least`: no algorithm of as many steps has R / C below this, if that is proved; `half`: no allgather of half as
    many has R / C below that, where the point is made of halves. `proved` was rechecked from the
    certificate; for `trusted` only an engine's word stands.
    """

    schedule: Schedule
    claims: Mapping[str, Any]
    proof: str
    about: str
    engine: str | None
    k: int | None
    least: Fraction | None
    half: Fraction | None = None
    proved: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()

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
    def meaning(self) -> str:
        """What the label says of this point."""
        what = f"of {self.steps} steps"
        if self.about == COMPOSED and self.least is None:
            half = f"of {self.steps // 2} steps"
            best = {OPTIMAL: f"no allgather {half} beats", FOR_K: f"no allgather {half}, {self._few(2)}, beats"}
            return f"{best.get(self.proof, 'better ones may exist than')} its halves; other ways to reduce may"
        if self.proof == OPTIMAL:
            return f"no algorithm {what} has a smaller R/C"
        if self.proof == FOR_K:
            return f"no algorithm {what}, {self._few(1)}, has a smaller R/C"
        return "a better one may exist" + (f", none {what} below {self.least}" if self.least is not None else "")

    def _few(self, halves: int) -> str:
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
class Impossible:
    """No algorithm of so many steps, or fewer, has R / C below this."""

    collective: str
    steps: int
    ratio: Fraction


@dataclass(frozen=True, eq=False)
class Frontier:
    """The result of `frontier`: points by steps. `stopped`: why the search ended early; None if it did not."""

    topology: Topology
    collective: Collective
    planner: str
    points: tuple[FrontierPoint, ...]
    limits: Bound  # where every transfer goes by itself
    stopped: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def assumes(self) -> tuple[str, ...]:
        """What all that is proved here takes for granted of switches that can do more than forward."""
        return helped(self.topology, self.collective)

    @property
    def impossible(self) -> tuple[Impossible, ...]:
        """What certificates forbid, by steps: of the collective, or of the halves of an allreduce."""
        found = {}
        for point in self.points:
            if point.least is not None:
                found[self.collective.kind, point.steps] = point.least
            elif point.half is not None:
                found["allgather", point.steps // 2] = point.half
        return tuple(Impossible(kind, steps, least) for (kind, steps), least in sorted(found.items()))

    def as_json(self) -> dict[str, Any]:
        """Stable keys."""
        return {
            "collective": self.collective.kind, "topology": self.topology.name, "planner": self.planner,
            "complete": self.stopped is None, "stopped": self.stopped,
            "points": [point.as_json() for point in self.points],
            "impossible": [
                {"collective": no.collective, "steps": no.steps, "ratio_below": str(no.ratio)} for no in self.impossible
            ],
            **self.limits.as_json(), "assumes": list(self.assumes), "notes": list(self.notes),
        }  # fmt: skip

    def plan(self, nbytes: str = SIZES, model: str = "") -> Plan:
        """The fastest point for every size by the model (left out, the usual one of the machine), as one plan; points
        that are best nowhere are left out."""
        model = model or usual_model(self.topology, wanted=(self.collective,))
        _, sizes = sizes_of(nbytes)
        times = {}
        for number, point in enumerate(self.points):
            predict = prepare(model, point.schedule, self.topology)
            times[number, 0] = [float(predict(size).seconds) for size in sizes]
        chosen = runs(winners(times))
        starts = [0, *(sizes[first] for _, first, _ in chosen[1:])]
        entries = [
            Entry(start, stop, self.points[key[0]].schedule, self._claims(self.points[key[0]], model))
            for (key, _, _), start, stop in zip(chosen, starts, [*starts[1:], None], strict=True)
        ]
        return Plan(self.topology, self.collective, tuple(entries))

    def _claims(self, point: FrontierPoint, model: str) -> dict[str, Any]:
        label = label_of(point.schedule)
        return {
            "planner": self.planner, **point.claims, **({"optimality": label} if label else {}), "model": model
        }  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan."""
        from antiphon.core.serialize import save_plan

        save_plan(path, self.plan())


def frontier(  # noqa: PLR0913
    wanted: Collective | str,
    topology: Topology | str,
    *,
    planner: str = "sccl",
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    k: int | None = None,
    steps: int | None = None,
    budget: float | str | None = None,
    effort: float | None = None,
    seed: int = 0,
    memory: float | None = None,
    options: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] | None = None,
    heard: Callable[[FrontierPoint], None] | None = None,
    apart: bool = False,
) -> Frontier:
    """Every point of the latency-bandwidth frontier that the planner finds, verified, with proofs rechecked.

    `k`: only R <= S + k (left out: any). `steps`: the most steps. `memory`: GiB for the solvers. `tell` hears what is
    tried and proved, `heard` each point as it is found. `effort`: how much is tried, in units of about a second; they
    are counted, so it ends alike on every machine. `budget`: CPU seconds after which the process in which all this is
    done is stopped. `apart`: it is a program of its own, budget or not, which Ctrl-C stops at once, too. What was
    found until then is returned, with `stopped` saying so; TimedOut if that is nothing, Infeasible if there can be
    nothing, NotFound if nothing was found though the search came to its end.
    """
    topology = machine_of(topology)
    target = wanted if isinstance(wanted, Collective) else collective(wanted, topology, root=root, ranks=ranks)
    seconds = None if budget is None else budget_of(budget)
    asked = {key: value for key, value in (("k", k), ("steps", steps), ("memory", memory)) if value is not None}
    given = {**asked, **(options or {})}
    _check(given.get("k"), given.get("steps"), given.get("memory"))
    _refuse_unless_able(planner, target, given)
    request = Request(topology, target, budget=seconds, seed=seed, effort=effort, tell=tell or silent)
    search = _Search(topology, target, planner)
    task: _Asked = planner, find("planner", planner), given, request
    if apart or seconds is not None:
        stopped = search.run(_set_apart(task, memory, own_program=apart), heard or _unheard)
    else:
        stopped = search.run(_find_points(task), heard or _unheard)
    return search.result(stopped, steps, k)


def _unheard(point: FrontierPoint) -> None:
    pass


def _check(k: Any, steps: Any, memory: Any) -> None:
    for name, value, least in (("k", k, 0), ("steps", steps, 1)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise Invalid(f"{name}: expected a whole number from {least}, got {value!r}")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int | float) or not memory > 0):
        raise Invalid(f"memory: expected GiB, more than 0, got {memory!r}")


def _refuse_unless_able(planner: str, target: Collective, options: Mapping[str, Any]) -> None:
    entry = find("planner", planner)
    refuse_unless_able(planner, entry, target)
    for key in options:
        if key not in entry.can["options"]:
            raise Unsupported(f"planner {planner} has no option {key}; leave it out, or use planner sccl")


_Asked = tuple[str, Planner, dict[str, Any], Request]  # planner, its options, for what


_PointFound = tuple[FrontierPoint, Bound, Sequence[str]]  # with the bounds, and notes on certificates so far


def _set_apart(asked: _Asked, memory: float | None, own_program: bool) -> Iterator[_PointFound]:
    """What is found in another process: TimedOut, Lost or KeyboardInterrupt after what was half done."""
    planner, entry, given, request = asked
    most = None if memory is None else int(memory * GIB)
    terms = Terms[_Asked](_say_points, seconds=lambda job: request.budget, memory=most, grace=GRACE)
    job = (planner, entry, given, replace(request, tell=silent))
    try:
        with closing(stream_job(job, terms, own_program=own_program)) as messages:
            for message in messages:
                if isinstance(message, str):
                    request.tell(message)
                else:
                    yield message
    except Stopped:
        raise TimedOut("the budget is spent") from None
    except Starved:
        raise TimedOut("memory ran out" if memory is None else f"its {memory:g} GiB of memory are spent") from None
    except Lost as error:
        raise Lost(f"the planner failed: {error}") from None


def _say_points(asked: _Asked, say: Say) -> None:
    planner, entry, given, request = asked
    for found in _find_points((planner, entry, given, replace(request, tell=say))):
        say(found)


def _find_points(asked: _Asked) -> Iterator[_PointFound]:
    """What the planner yields, verified and with its proof rechecked, as it comes."""
    planner, entry, given, request = asked
    checking = _Checking(request.topology, request.collective)
    for schedule in call("planner", planner, entry.load(), given, request):
        yield checking.point(schedule), checking.bounds(), tuple(checking.notes)


class _Checking:
    """Makes points of schedules; `notes`: which certificates do not hold."""

    def __init__(self, topology: Topology, target: Collective) -> None:
        self.topology, self.target = topology, target
        self.limits: Bound | None = None
        self.notes: list[str] = []

    def bounds(self) -> Bound:
        if self.limits is None:
            self.limits = bound(self.topology, self.target)
        return self.limits

    def point(self, schedule: Schedule) -> FrontierPoint:
        claims = measure(schedule, self.topology, self.bounds())
        provenance = schedule.provenance
        certificate = provenance.get("certificate")
        try:
            checked = certified(schedule, self.topology)
        except Invalid as error:  # no proof, but a right schedule all the same
            self.notes.append(f"a certificate does not hold, and its point counts as best found: {error}")
            schedule = replace(schedule, provenance={**provenance, "certificate": None, "found": None})
            checked = certificate = None
        label = certificate["proof"] if checked is not None and certificate is not None else BEST_FOUND
        least = least_ratio(schedule, self.topology) if checked is not None else None
        about = certificate["about"] if certificate is not None else AS_PLANNED
        half = least if about == COMPOSED else None
        least = least if half is None else None
        if (
            Fraction(claims["rounds"], claims["chunks"]) == self.bounds().without_help.inverse
        ):  # whatever the certificate is about
            label, least = OPTIMAL, self.bounds().without_help.inverse
        return FrontierPoint(
            schedule, claims, label, about, provenance.get("engine"),
            certificate["k"] if certificate is not None and label == FOR_K else None, least, half,
            checked.proved if checked is not None else (), checked.trusted if checked is not None else (),
        )  # fmt: skip


class _Search:
    """What was found so far."""

    def __init__(self, topology: Topology, target: Collective, planner: str) -> None:
        self.topology, self.target, self.planner = topology, target, planner
        self.limits: Bound | None = None
        self.points: list[FrontierPoint] = []
        self.notes: Sequence[str] = ()

    def run(self, stream: Iterator[_PointFound], heard: Callable[[FrontierPoint], None]) -> str | None:
        """Hear it to the end; why it ended early, or None."""
        try:
            for point, self.limits, self.notes in stream:
                self.points.append(point)
                heard(point)
        except KeyboardInterrupt:
            return "interrupted"
        except (TimedOut, Lost) as error:
            return str(error)
        return None

    def bounds(self) -> Bound:
        if self.limits is None:
            self.limits = bound(self.topology, self.target)
        return self.limits

    def result(self, stopped: str | None, steps: int | None, k: int | None) -> Frontier:
        """TimedOut, Infeasible or NotFound where there is no point."""
        name = f"{self.target.kind} on {self.topology.name}"
        if not self.points:
            if stopped is not None:
                raise TimedOut(f"no point of the frontier of {name} was found: {stopped}")
            limits = self.bounds()
            if steps is not None and steps < limits.latency_steps and limits.latency_witness is not None:
                why = limits.latency_witness.describe(self.topology).partition(": ")[2]
                raise Infeasible(f"no algorithm for {name} has S = {steps} or less: {why}")
            within = [f"at most {steps} steps"] if steps is not None else []
            within += [f"R <= S + {k}"] if k is not None else []
            limited = f" with {' and '.join(within)}" if within else ""
            raise NotFound(f"planner {self.planner} found no algorithm for {name}{limited}")
        best: dict[tuple[int, Fraction], FrontierPoint] = {}
        for point in self.points:  # of equals the one with the best proof, then the first
            known = best.get((point.steps, point.ratio))
            if known is None or _STRENGTH.index(point.proof) < _STRENGTH.index(known.proof):
                best[point.steps, point.ratio] = point
        kept = [p for p in best.values() if not any(_beats(other, p) for other in best.values())]
        ordered = tuple(sorted(kept, key=lambda p: (p.steps, p.ratio)))
        return Frontier(
            self.topology,
            self.target,
            self.planner,
            ordered,
            self.bounds().without_help,
            stopped,
            tuple(dict.fromkeys(self.notes)),
        )


def _beats(one: FrontierPoint, other: FrontierPoint) -> bool:
    """Nowhere worse, somewhere better."""
    return (
        (one.steps, one.ratio) != (other.steps, other.ratio) and one.steps <= other.steps and one.ratio <= other.ratio
    )
