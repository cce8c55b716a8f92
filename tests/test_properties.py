"""Laws that tie the parts together, on random machines, collectives and valid schedules."""

import random
from dataclasses import replace

import generate
import numpy as np
from generate import cases
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core import reshape
from antiphon.core.bounds import bound, recheck
from antiphon.core.loads import pipelined_steps, timeline
from antiphon.core.transform import clean, relabel_collective


def no_schedule_beats(case: generate.Case) -> None:
    least = bound(case.topology, case.collective)
    recheck(case.topology, case.collective, least)
    assert pipelined_steps(case.schedule) >= least.latency_steps
    if least.bytes_per_second is not None:
        assert timeline(case.schedule, case.topology).total * least.bytes_per_second >= 1


@given(cases())
def test_no_valid_schedule_beats_the_bound(case: generate.Case) -> None:
    no_schedule_beats(case)
    no_schedule_beats(replace(case, schedule=clean(case.schedule)))


@given(cases(), st.randoms(use_true_random=False))
def test_bounds_do_not_depend_on_names(case: generate.Case, rng: random.Random) -> None:
    machine = case.topology
    ranks = rng.sample(range(machine.ranks), machine.ranks)
    names = [*ranks, *(machine.ranks + i for i in rng.sample(range(machine.switches), machine.switches))]
    renamed, _ = relabel_collective(case.collective, np.array(ranks))
    before, after = bound(machine, case.collective), bound(reshape.relabel(machine, names), renamed)
    assert (before.latency_steps, before.tight) == (after.latency_steps, after.tight)
    # where a search is not exhaustive (one-way machines, prices rounded) other names may find another bound
    if before.tight:
        assert before.inverse == after.inverse
