"""The table of messages: no order of rows changes what is made of it, and what is exported is what is priced."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from entries import loggp
from generate import Case, case, cases
from goal_read import read_goal
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quick import examples, in_turn, ordinary

from antiphon.core.collective import Collective
from antiphon.core.plan import Plan
from antiphon.core.program import encode
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import expand
from antiphon.cost import Incast, Level, LogGP, Profile, chrome_trace, prepare
from antiphon.cost.loggp.loggp import simulate_graph
from antiphon.errors import AntiphonError, Unsupported
from antiphon.formats import emit
from antiphon.formats.piccl.readers import read_schedule
from antiphon.formats.program import both
from antiphon.registry import table
from antiphon.topologies import topology

LEVELS = (
    Level("host", L=1e-6, o_s=2e-7, o_r=3e-7, g=4e-7, G=1e-11, gamma=1e-9),
    Level("", (1, 1000), L=(3e-6, 4e-6), o_s=3e-7, o_r=3e-7, g=5e-7, G=1e-10, gamma=1e-9),
)
RICH = Profile(gamma=1e-11, delta=2e-11, loggp=LogGP(LEVELS))
PLAIN = Profile(gamma=1e-11)
MODELS = (
    "alpha-beta", "critical-path", "genmodel", "alpha-beta-gamma", "sccl", "flows", "loggp", "loggp:sent=left",
    "loggp:order=data", "loggp:order=streams", "loggp:fidelity=packet", "loggp:fidelity=packet,order=data,local=on",
)  # fmt: skip
WITHOUT_FIGURES = ("genmodel", "loggp", "loggp:order=data")  # that take others then
EXPORTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("goal", {"order": "data", "nics": 2, "local": "100GB/s"}), ("goal", {"order": "rounds", "local": "off"}),
    ("chakra", {"order": "data", "gamma": 1e-9, "local": "100GB/s"}), ("chakra", {"order": "rounds", "local": "off"}),
    ("piccl-xml", {"order": "data", "local": "off"}), ("piccl-xml", {"order": "rounds", "local": "off"}),
)  # fmt: skip
NBYTES = 98765
SEARCHING = ("sccl", "trees", "blink")
SMALL, GREATER = ("torus:dims=2x2", "star:ranks=3"), ("delta:nodes=2", "torus:dims=2x3")
IN_SWITCHES = ("nvls", "sharp", "nvls-tree")
SUPPORTED = ("hgx-h100", "cluster:box=hgx-h100,boxes=2,sharp=true")


def shuffled(schedule: Schedule, seed: int) -> Schedule:
    return schedule.take(np.random.default_rng(seed).permutation(schedule.transfers))


def said(model: str, schedule: Schedule, machine: Topology, profile: Profile) -> Iterator[object]:
    """All that a model says of a schedule."""
    try:
        ready = prepare(model, schedule, machine, profile=profile)
        found = ready(NBYTES)
    except AntiphonError as error:
        yield type(error)
        return
    yield from (found.seconds, dict(found.terms), found.bottleneck, list(found.critical_path), found.note)
    if hasattr(ready, "events"):
        yield chrome_trace(ready.events(NBYTES), machine, NBYTES, model)


def files(schedule: Schedule, machine: Topology) -> Iterator[object]:
    """All that is exported of it, and its programs."""
    made = Plan.of(machine, schedule)
    for name, options in EXPORTS:
        try:
            found = emit(made, name, nbytes=NBYTES, options=options)
            yield {file: text if isinstance(text, bytes | str) else b"".join(text) for file, text in found.items()}
        except Unsupported as error:
            yield type(error)
    try:
        programs = both(schedule)
    except Unsupported as error:  # what switches are to combine
        programs = []
        yield type(error)
    for program in programs:
        yield encode([program]) if isinstance(encode([program]), bytes) else b"".join(encode([program]))


def same_whatever_the_order(schedule: Schedule, machine: Topology, seed: int) -> None:
    other = shuffled(schedule, seed)
    incast = {kind.kind: Incast(1e-11 * (i + 1), 1 + i) for i, kind in enumerate(machine.types)}
    for profile, models in ((replace(RICH, incast=incast), MODELS), (PLAIN, WITHOUT_FIGURES)):
        for model in models:
            assert list(said(model, schedule, machine, profile)) == list(said(model, other, machine, profile)), model
    assert list(files(schedule, machine)) == list(files(other, machine))


@settings(max_examples=2 if ordinary else 25)
@given(random=cases(most_ranks=5), seed=st.integers(0, 2**32 - 1))
def test_no_order_of_rows_changes_anything(random: Case, seed: int) -> None:
    same_whatever_the_order(random.schedule, random.topology, seed)


# Of custom collectives alone there is nothing to draw here.
PLANNERS = [name for name, entry in table("planner").items() if entry.can.collectives != ("custom",)]
EVERY_PLAN = [pytest.param(name, 1, marks=pytest.mark.slow) for name in PLANNERS]


def planned(name: str, every: int) -> Iterator[tuple[Schedule, Topology]]:
    """Something of every kind (or every so-manieth) that a planner can plan, by turns on one of two machines where it
    can on both (small ones for those that search), in no more than 3 pieces."""
    entry = table("planner")[name]
    names = SMALL if name in SEARCHING else SUPPORTED if name in IN_SWITCHES else GREATER
    machines = [topology(machine) for machine in names]
    for number, kind in enumerate(entry.can.collectives[::every]):
        for machine in (machines[number % 2], machines[number % 2 - 1]):
            try:
                made = next(iter(entry.load()(Request(machine, Collective(kind, machine.ranks), budget=20.0))))
            except (AntiphonError, StopIteration):
                continue
            yield replace(made, pieces=np.minimum(made.pieces, 3)), machine
            break


@pytest.mark.parametrize(("name", "every"), [*in_turn([(name, 10) for name in PLANNERS], 12), *EVERY_PLAN])
def test_no_order_of_rows_changes_what_is_said_of_a_plan(name: str, every: int) -> None:
    plans = list(planned(name, every))
    assert plans
    for number, (schedule, machine) in enumerate(plans):
        same_whatever_the_order(schedule, machine, number)


# ---- what is exported is what is priced ----


def bytes_that_cut_evenly(schedule: Schedule) -> int:
    """A size at which every chunk, and every piece of one, has whole bytes."""
    return expand(schedule).chunks.denominator * schedule.collective.buffer_weight * 64


def exported(schedule: Schedule, machine: Topology, folder: Path, back_end: str, **options: Any) -> Any:
    """The graph of messages that the file says."""
    (text,) = emit(
        Plan.of(machine, schedule), back_end, nbytes=bytes_that_cut_evenly(schedule), options=options
    ).values()
    path = folder / ("schedule.xml" if back_end == "piccl-xml" else "schedule.goal")
    path.write_bytes(text if isinstance(text, bytes) else b"".join(text))
    return read_schedule(path).graph if back_end == "piccl-xml" else read_goal(path.read_text())


def agrees(graph: Any, schedule: Schedule, machine: Topology, fidelity: str, **options: Any) -> None:
    """The file, simulated, takes as long as was predicted, and each of its messages is done when it should be."""
    nbytes = bytes_that_cut_evenly(schedule)
    wanted: Any = loggp(schedule, machine, profile=RICH, fidelity=fidelity, **options)
    found: Any = simulate_graph(graph, machine, profile=RICH, fidelity=fidelity)
    assert found(1).seconds == pytest.approx(wanted(nbytes).seconds, rel=1e-9)
    done, told = wanted.run(nbytes).log.done, found.run(1).log.done
    np.testing.assert_allclose(told[: len(done)], done, rtol=1e-9)


def no_row_inside(schedule: Schedule) -> Schedule:
    return schedule.take(np.flatnonzero(schedule.src != schedule.dst))


@settings(max_examples=examples(40))
@given(random=cases())
def test_piccl_read_back_is_what_was_predicted(tmp_path_factory: pytest.TempPathFactory, random: Case) -> None:
    schedule = no_row_inside(random.schedule)
    for order in ("rounds", "data"):
        graph = exported(
            schedule, random.topology, tmp_path_factory.mktemp("xml"), "piccl-xml", order=order, local="off"
        )
        for fidelity in ("message", "packet"):
            agrees(graph, schedule, random.topology, fidelity, order=order)


@settings(max_examples=examples(40))
@given(random=cases())
@example(random=case(479001599))
@example(random=case(331))
def test_goal_read_back_is_what_was_predicted(tmp_path_factory: pytest.TempPathFactory, random: Case) -> None:
    """By rounds a rank knows of what it sent that it has left: `sent=left` says so of the prediction. Rows within a
    rank included, and all that comes at one moment."""
    schedule = random.schedule
    for order, sent in (("rounds", "left"), ("data", "received")):
        told = {"order": order, "gamma": 1e-9, "local": "off"}
        graph = exported(schedule, random.topology, tmp_path_factory.mktemp("goal"), "goal", **told)
        for fidelity in ("message", "packet"):
            agrees(graph, schedule, random.topology, fidelity, order=order, sent=sent)
