"""Schedules against the lower bounds by size: none may be predicted to take less than the bound of its model.

Machines of ranks and switches with shared limits, hosts, one-way links, latencies that differ and switches that
multicast and reduce; all collectives, with groups, weights and several roots; schedules of all planners and of the
tests' generators; at times a profile. Under alpha-beta the time of a schedule is summed here from docs/models.md;
under the other models it is the model's.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from _barriers import TooManyLoadsError, step_costs
from _harness import CASES, Found, main
from _meaning import Judge
from generate import collective as any_collective
from generate import topology as any_machine
from generate_joints import joined_case
from generate_schedule import schedule as any_schedule

from antiphon.core.bounds import bound
from antiphon.core.collective import KINDS, Collective
from antiphon.core.plan import Plan
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import dumps
from antiphon.core.topology import Ability, Link, LinkType, SharedLimit, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.cost import Profile, prepare
from antiphon.cost.bound_evaluator import BoundEvaluator
from antiphon.cost.model_bound import model_bound
from antiphon.errors import AntiphonError
from antiphon.registry import call, table

NAME = "bounds_by_size"
MODELS = ("critical-path", "flows", "sccl")
SIZES = (0, 1, 1000, 1 << 14, 1 << 18, 1 << 22, 1 << 27, 1 << 33)
SLOW_PLANNERS = ("sccl",)
MAX_ROWS = 400
ROUNDING = 1 - 1e-9
LATENCIES = (0.0, 1e-7, 1e-6, 1e-6, 2e-6, 3e-6, 2e-5)


def link_type(rng: random.Random) -> LinkType:
    width = Fraction(10**9 * rng.choice((1, 1, 2, 3, 7, 40)), rng.choice((1, 1, 3)))
    return LinkType(rng.choice("abc"), width, rng.choice(LATENCIES))


def boxes(rng: random.Random) -> Topology:
    """Hosts of a few ranks, with a switch inside or links between all, and switches in a row between them."""
    hosts, size = rng.randint(2, 3), rng.randint(1, 4)
    ranks, near, far = hosts * size, link_type(rng), link_type(rng)
    middle = rng.randint(1, 3)
    inside = rng.choice(("switch", "mesh", "ring"))
    switches = middle + (hosts if inside == "switch" else 0)
    links: list[Link] = []
    pairs = [(ranks + at, ranks + at + 1) for at in range(middle - 1)]
    for host in range(hosts):
        mine = range(host * size, (host + 1) * size)
        if inside == "switch":
            links += both_ways([(rank, ranks + middle + host) for rank in mine], near)
        elif inside == "mesh":
            links += both_ways([(a, b) for a in mine for b in mine if a < b], near)
        else:
            links += [(a, mine[(at + 1) % size], near) for at, a in enumerate(mine) if size > 1]
        spread = rng.random() < 0.5
        for rank in mine if spread else mine[:1]:
            pairs.append((rank, ranks + rng.randrange(middle)))
    links += both_ways(pairs, far)
    for a, b in pairs:
        if rng.random() < 0.2:
            links.append((*rng.choice(((a, b), (b, a))), link_type(rng)))
    limits = []
    if rng.random() < 0.4:
        chosen = rng.sample(range(len(links)), rng.randint(1, min(len(links), 6)))
        limits.append(SharedLimit("nic", tuple(chosen), Fraction(10**9 * rng.choice((1, 2, 5)))))
    places = [f"host{rank // size}/gpu{rank % size}" for rank in range(ranks)]
    places += [f"switch{at}" for at in range(switches)]
    return build("boxes", ranks, links, switches=switches, limits=limits, places=places)


def machine(rng: random.Random) -> Topology:
    if rng.random() < 0.5:
        made = boxes(rng)
    else:
        made = any_machine(rng, rng.randint(2, 7))
        kinds = tuple(link_type(rng) for _ in made.types)
        limits = tuple(replace(limit, bandwidth=link_type(rng).bandwidth) for limit in made.limits)
        made = replace(made, types=kinds, limits=limits, unit=Fraction(0))
        if rng.random() < 0.4:
            hosts = rng.randint(2, 3)
            places = [f"host{rng.randrange(hosts)}/gpu{rank}" for rank in range(made.ranks)]
            made = replace(made, places=(*places, *(f"switch{at}" for at in range(made.switches))))
    if made.switches and rng.random() < 0.6:
        made = replace(made, abilities=tuple(ability(rng) for _ in range(made.switches)))
    return made


def ability(rng: random.Random) -> Ability:
    multicast, reduces = rng.random() < 0.8, rng.random() < 0.8
    if not multicast and not reduces:
        return Ability()
    return Ability(multicast, reduces, through=rng.random() < 0.5, own=rng.random() < 0.4)


def any_profile(rng: random.Random, kinds: list[str]) -> Profile:
    if rng.random() < 0.5:
        return Profile()
    alpha = {kind: rng.choice(LATENCIES) for kind in kinds if rng.random() < 0.6}
    factor = {kind: Fraction(rng.randint(1, 12), 8) for kind in kinds if rng.random() < 0.6}
    return Profile("random", alpha=alpha, bandwidth_factor=factor)


def schedules(rng: random.Random, target: Collective, on: Topology) -> list[tuple[str, Schedule]]:
    """Correct ones: of all planners that can, and of the generator."""
    made = []
    for name, entry in table("planner").items():
        kind = target.kind if target.custom is None else "custom"
        if name in SLOW_PLANNERS or kind not in entry.can.collectives:
            continue
        for option in ({}, rng.choice([{}, *entry.can.sweep])):
            try:
                found = next(iter(call("planner", name, entry.load(), option, Request(on, target, seed=1))), None)
            except AntiphonError:
                continue
            if found is not None and found.transfers <= MAX_ROWS:
                made.append((f"{name} {option}", found))
    for _ in range(2):
        with suppress(IndexError):  # the generator needs a way from each rank to each other
            made.append(("generated", any_schedule(rng, target, on)))
    return [(name, one) for name, one in made if verify(one, on).fault is None]


def compare(
    what: str,
    one: Schedule,
    on: Topology,
    proofs: BoundEvaluator,
    profile: Profile,
    counts: Counter[str],
    rng: random.Random,
) -> None:
    files: dict[str, bytes | str] = {"plan.json": dumps(Plan.of(on, one)), "profile.txt": repr(profile)}

    def check(model: str, nbytes: int, seconds: float, least: float) -> None:
        counts["times"] += 1
        counts["times equal to the bound"] += seconds <= least * (1 + 1e-9)
        if seconds < least * ROUNDING:
            raise Found(
                f"{model} at {nbytes} bytes: {what} takes {seconds:.9g} s, the bound is {least:.9g} s "
                f"({one.collective.kind} on {on.name}, {profile})",
                files,
            )

    least = model_bound("alpha-beta", {}, proofs, profile)
    if least is not None:
        try:
            costs = step_costs(one, on, Judge(on), profile)
        except TooManyLoadsError:
            counts["too long"] += 1
            return
        late, wire = sum(alpha for alpha, _ in costs), float(sum(wire for _, wire in costs))
        counts[CASES] += 1
        counts[one.collective.kind] += 1
        for nbytes in SIZES:
            check("alpha-beta", nbytes, late + wire * nbytes, least(nbytes))
    model = rng.choice(MODELS)
    least = model_bound(model, {}, proofs, profile)
    if least is None:
        return
    try:
        predict = prepare(model, one, on, profile=profile)
        times = [(nbytes, predict(nbytes).seconds) for nbytes in rng.sample(SIZES, 3)]
    except AntiphonError:
        return
    counts[model] += 1
    for nbytes, seconds in times:
        check(model, nbytes, seconds, least(nbytes))


def one(seed: int, counts: Counter[str]) -> None:
    rng = random.Random(f"{NAME} {seed}")
    if rng.random() < 0.25:
        case = joined_case(rng)
        if case is None or verify(case.schedule, case.topology).fault is not None:
            return
        on, target, made = case.topology, case.schedule.collective, [("joints", case.schedule)]
        made += schedules(rng, target, on)
    else:
        on = machine(rng)
        kind = rng.choice((*KINDS, "custom"))
        target = (
            Collective(kind, on.ranks)
            if kind != "custom" and rng.random() < 0.5
            else any_collective(rng, on.ranks, kind)
        )
        made = []
    try:
        proofs = BoundEvaluator(on, target, bound(on, target))
    except AntiphonError:
        counts["no bound"] += 1
        return
    if not len(proofs.needs):
        counts["nothing to move"] += 1
        return
    profile = any_profile(rng, sorted({kind.kind for kind in on.types}))
    try:
        profile.on(on)
    except AntiphonError:
        profile = Profile()
    for what, schedule in made or schedules(rng, target, on):
        compare(what, schedule, on, proofs, profile, counts, rng)


if __name__ == "__main__":
    main(NAME, one, 3_000, __doc__)
