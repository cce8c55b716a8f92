"""How a runtime cuts what has no pieces: what is declared is what the engine does, and what models price."""

import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn

import antiphon
from antiphon.core.program import encode
from antiphon.core.schedule import Schedule
from antiphon.core.transform import NO_CUTS, Cutting, pipeline
from antiphon.cost import prepare
from antiphon.errors import AntiphonError
from antiphon.formats.program import lower
from antiphon.registry import table
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.native import Engine
from antiphon.runtimes.measure.case import OPTIONS, Runtime
from antiphon.runtimes.measure.rows import cuts_of
from antiphon.select import tune

ENGINE = cuts_of("mpi")
PLANS = [
    ("broadcast", "binomial-tree"), ("reduce", "binomial-tree"), ("allreduce", "ring"), ("allreduce", "direct"),
    ("allreduce", "halving-doubling"), ("allreduce", "recursive-doubling"), ("allreduce", "double-binary-tree"),
    ("reducescatter", "ring"), ("allgather", "ring"), ("alltoall", "pairwise"), ("scatter", "direct"),
    ("gather", "direct"),
]  # fmt: skip


def made(kind: str, planner: str, ranks: int = 4) -> Schedule:
    schedule: Schedule = antiphon.plan(kind, f"full:ranks={ranks}", planner=planner).at(0).schedule
    return schedule


def sizes_of_messages(schedule: Schedule, nbytes: int) -> list[float]:
    """Of messages between ranks, as docs/schedule.md counts them; none has two numbers of pieces."""
    weights, scale = schedule.chunks.weights(schedule.collective)
    found: dict[tuple[int, int, int], float] = {}
    for step, chunk, src, dst in zip(schedule.step, schedule.chunk, schedule.src, schedule.dst, strict=True):
        key = int(step), int(src), int(dst)
        found[key] = found.get(key, 0.0) + float(weights[chunk]) / float(scale) * nbytes
    return [*found.values()]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
@pytest.mark.parametrize(("kind", "planner"), in_turn(PLANS))
def test_the_engine_sends_as_many_messages_as_is_declared(kind: str, planner: str) -> None:
    engine, whole = Engine(library("threads")), made(kind, planner)
    weight = 4 * whole.collective.buffer_weight
    for schedule, pieces in ((pipeline(whole, 1), 0), (pipeline(whole, 3), 3)):
        program = engine.program(encode([lower(schedule)]))
        for unit in (2**12, 2**15, 2**15 + 4, 2**17, 2**18 + 64):
            plans, wires = [program.plan(rank, unit) for rank in range(4)], engine.threads(4)
            calls = [
                plan.bound(np.zeros(plan.needs.input, np.float32), np.zeros(plan.needs.output, np.float32), wire)
                for plan, wire in zip(plans, wires, strict=True)
            ]
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda call: call(), calls))
            each = sizes_of_messages(schedule, unit * weight)
            cut = schedule.collective.kind in ENGINE.collectives
            parts = [pieces or (min(-(-size // ENGINE.piece), ENGINE.most) if cut else 1) for size in each]
            assert sum(plan.needs.sends for plan in plans) == sum(parts), (unit, pieces)


def test_what_goes_on_alone_is_in_pieces() -> None:
    tree = made("broadcast", "binomial-tree")
    pieces = [Cutting(tree, ENGINE).at(size).pieces for size in (2**17, 2**17 + 1, 3 * 2**17, 2**19, 2**30)]
    assert [int(np.max(one)) for one in pieces] == [1, 2, 3, 4, 4]
    ring = pipeline(made("allreduce", "ring"), 1)  # a chunk for each rank and direction
    share = len(ring.chunks)
    assert int(np.max(Cutting(ring, ENGINE).at(share * 2**17).pieces)) == 1
    assert Cutting(ring, ENGINE).at(share * 2**19).pieces == 4
    halving = made(
        "allreduce", "halving-doubling"
    )  # a half is received, a quarter of all is sent on: all must be there
    assert Cutting(halving, ENGINE).at(2**30) is halving
    deep = pipeline(tree, 2)
    assert Cutting(deep, ENGINE).at(2**30) is deep  # what is stated stays
    assert Cutting(tree, NO_CUTS).at(2**30) is tree
    scatter = made("scatter", "direct")
    assert Cutting(scatter, ENGINE).at(2**30) is scatter


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(PLANS), st.integers(2, 9), st.integers(0, 2**26), st.randoms(use_true_random=False))
def test_the_order_of_rows_means_nothing(plan: tuple[str, str], ranks: int, nbytes: int, draw: random.Random) -> None:
    try:
        schedule = made(*plan, ranks=ranks)
    except AntiphonError:  # for powers of two only
        return
    rows = draw.sample(range(schedule.transfers), schedule.transfers)
    shuffled = schedule.take(np.array(rows))
    assert Cutting(schedule, ENGINE).pieces(nbytes) == Cutting(shuffled, ENGINE).pieces(nbytes)


def test_models_price_what_is_sent() -> None:
    """Of a broadcast of 8 MB by a tree of two levels a part goes on while the next comes; no difference is seen between
    what is cut and what is stated to be."""
    machine, tree = antiphon.topology("full:ranks=4,latency=0us"), made("broadcast", "binomial-tree")
    for model in ("alpha-beta", "critical-path", "flows"):
        plain, cut = (prepare(model, tree, machine, cuts=cuts) for cuts in (None, ENGINE))
        stated = prepare(model, pipeline(tree, 4), machine)
        assert cut(2**17).seconds == plain(2**17).seconds
        assert cut(2**23).seconds == pytest.approx(5 / 8 * plain(2**23).seconds)
        assert cut(2**23).seconds == stated(2**23).seconds
    tuned = [
        tune("broadcast", machine, nbytes="8MiB", planners="binomial-tree", sweep={"pieces": [1, 4]}, cuts=cuts,
             workers="none", nccl=False)
        for cuts in (None, ENGINE)
    ]  # fmt: skip
    seconds = [[one.seconds[2**23] for one in found.candidates if one.seconds] for found in tuned]
    assert max(seconds[0]) > 1.5 * min(seconds[0])
    assert max(seconds[1]) == min(seconds[1])


def test_every_runtime_says_what_it_can() -> None:
    for name, entry in table("runtime").items():
        assert isinstance(entry.load()(), Runtime), name
        assert set(entry.can.options) <= set(OPTIONS)
        assert cuts_of(name).most >= 1
