"""Figure 7 of PICCL (see piccl.py): methods of putting blocks in order, on 4 nodes of Delta and of Polaris.

The paper measured and drew their times; here they are simulated. All are recursive doubling allgathers (k = 2) whose
partners are far away at first and near in the end (distance halving). So blocks arrive out of order, and there are four
methods to get them in order. The baseline (`exchange`) exchanges all data at the beginning in one round more;
`exchange-minimal` only blocks in the wrong position. `separate` (Send/Recv) sends each block as a message of its own to
its right position. `permute` permutes at the end by a GPU kernel. The claims about them are compared (V.D). The first
arguments of `row` are name, published figures, ours, and whether they agree.
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.cost import prepare
from antiphon.planners.radix.kring import kring
from antiphon.planners.radix.permrecmult import permrecmult
from antiphon.reproduce.piccl_plans import PACKETS, merge_equal
from antiphon.reproduce.rows import Row, agreement, is_near, row
from antiphon.topologies import topology
from antiphon.units import format_size

NODES = 4
MACHINES = {"delta": "loggp-delta", "polaris": "loggp-polaris"}  # and their profiles
BASELINE, PERMUTE, SEPARATE = "exchange", "permute", "separate"
METHODS = (BASELINE, "exchange-minimal", SEPARATE, PERMUTE)
RING_KS = (1, 2, 4)  # k of k-ring: 1 is the ring
SIZES = tuple(2**e for e in range(4, 29))
SMALL, LARGE = 2**15, 2**21  # V.C: small messages are of up to 32 KB; V.D: large ones of 2 MB and more
PUBLISHED_SPEEDUP = 1.3  # of permuting over exchanging, for small messages
ASSUMPTIONS = "V.D, Figure 7; the figures of both profiles are assumed, not measured"


def figure7() -> Iterator[Row]:
    """Yield four rows for each machine."""
    for name, profile in MACHINES.items():
        machine = topology(f"{name}:nodes={NODES}")
        times = {method: _simulate_times(machine, profile, permrecmult, k=2, by=method) for method in METHODS}
        rings = [_simulate_times(machine, profile, kring, k=k) for k in RING_KS]
        yield from compare_methods(name, times, [min(seconds) for seconds in zip(*rings, strict=True)])


def _simulate_times(machine: Topology, profile: str, planner: object, **options: object) -> list[float]:
    """Return the simulated seconds at each size of a planner's verified schedule."""
    schedule: Schedule = next(planner(Request(machine, Collective("allgather", machine.ranks)), **options))  # type: ignore[operator]
    verify(schedule, machine).or_raise()
    predict = prepare(PACKETS, schedule, machine, profile=profile)
    return [predict(size).seconds for size in SIZES]


def compare_methods(name: str, times: dict[str, list[float]], ring: list[float]) -> Iterator[Row]:
    """Yield the rows of a machine. `times`: seconds by method and size; `ring`: of the fastest ring at each size."""
    base = times[BASELINE]
    gains = [a / b for a, b in zip(base, times[PERMUTE], strict=True)]
    small = max(gain for size, gain in zip(SIZES, gains, strict=True) if size <= SMALL)
    proof = [f"{format_size(size)}: {gain:.3f}" for size, gain in zip(SIZES, gains, strict=True)]
    yield row(
        f"{name}, permuting on the GPU, small messages", {"over": PUBLISHED_SPEEDUP}, {"speedup": round(small, 3)},
        agreement(small > PUBLISHED_SPEEDUP or is_near(small, PUBLISHED_SPEEDUP), small > 1),
        note=ASSUMPTIONS, engine="loggp", proof=proof,
        # the baseline has five rounds, permuting four: 5/4 by latency, and more by the bytes of the fifth round
        deviation=None if small > PUBLISHED_SPEEDUP else "one round of five less is 5/4, and the rest what it carries",
    )  # fmt: skip
    best = [min(METHODS, key=lambda method: times[method][n]) for n in range(len(SIZES))]
    fastest_by_size = merge_equal(SIZES, best)
    small_methods = [method for size, method in zip(SIZES, best, strict=True) if size < LARGE]
    yield row(
        f"{name}, permuting is the fastest way below 2 MB", {"so": True},
        {"so": set(small_methods) == {PERMUTE}, **fastest_by_size}, set(small_methods) == {PERMUTE},
        note=ASSUMPTIONS, engine="loggp",
    )  # fmt: skip
    large_methods = [method for size, method in zip(SIZES, best, strict=True) if size >= LARGE]
    yield row(
        f"{name}, Send/Recv is the fastest way from 2 MB on", {"so": True},
        {"so": set(large_methods) == {SEPARATE}, **fastest_by_size},
        agreement(set(large_methods) == {SEPARATE}, SEPARATE in large_methods), note=ASSUMPTIONS, engine="loggp",
        deviation=None if set(large_methods) == {SEPARATE} else "simulated, each separate message pays its overhead, "
        "where NCCL starts those of a group together, and permuting costs no launch",
    )  # fmt: skip
    ring_sizes = [
        size
        for size, ring_seconds, *method_seconds in zip(SIZES, ring, *times.values(), strict=True)
        if ring_seconds < min(method_seconds)
    ]
    rings_win = bool(ring_sizes) and ring_sizes[-1] == SIZES[-1]
    yield row(
        f"{name}, rings are the fastest of all for large messages", {"so": True},
        {"so": rings_win, "from": format_size(ring_sizes[0]) if ring_sizes else None}, rings_win,
        note=ASSUMPTIONS, engine="loggp",
        proof=[
            f"{format_size(size)}: {min(method_seconds) / ring_seconds:.3f}"
            for size, ring_seconds, *method_seconds in zip(SIZES, ring, *times.values(), strict=True)
        ],
        deviation=None if rings_win else "not up to 256 MiB: where messages are long, both load links alike",
    )  # fmt: skip
