"""Figure 7 of PICCL: ways of getting blocks in order, on 4 nodes of Delta and of Polaris. Measured and drawn there,
simulated here.

All are distance halving, recursive doubling allgathers (k = 2); the baseline exchanges data at the beginning, in one
round more. What is said of them is compared (V.D).
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
from antiphon.reproduce.blink_made import Row, judged, row
from antiphon.reproduce.hardware import near
from antiphon.reproduce.piccl_made import PACKETS, ranges
from antiphon.topologies import topology
from antiphon.units import format_size

NODES = 4
MACHINES = {"delta": "loggp-delta", "polaris": "loggp-polaris"}  # and their profiles
BASELINE, KERNEL, SEPARATE = "exchange", "permute", "separate"
WAYS = (BASELINE, "exchange-minimal", SEPARATE, KERNEL)
RINGS = (1, 2, 4)  # k of rings: 1 is the ring
SIZES = tuple(2**e for e in range(4, 29))
SMALL, LARGE = 2**15, 2**21  # V.C: small messages are of up to 32 KB; V.D: large ones of 2 MB and more
GAINS = 1.3
ASSUMED = "V.D, Figure 7; the figures of both profiles are assumed, not measured"


def figure7() -> Iterator[Row]:
    """Four rows for each machine."""
    for name, profile in MACHINES.items():
        machine = topology(f"{name}:nodes={NODES}")
        times = {way: _times(machine, profile, permrecmult, k=2, by=way) for way in WAYS}
        rings = [_times(machine, profile, kring, k=k) for k in RINGS]
        yield from comparing(name, times, [min(one) for one in zip(*rings, strict=True)])


def _times(machine: Topology, profile: str, planner: object, **options: object) -> list[float]:
    made: Schedule = next(planner(Request(machine, Collective("allgather", machine.ranks)), **options))  # type: ignore[operator]
    verify(made, machine).or_raise()
    predict = prepare(PACKETS, made, machine, profile=profile)
    return [predict(size).seconds for size in SIZES]


def comparing(name: str, times: dict[str, list[float]], ring: list[float]) -> Iterator[Row]:
    base = times[BASELINE]
    gains = [a / b for a, b in zip(base, times[KERNEL], strict=True)]
    small = max(gain for size, gain in zip(SIZES, gains, strict=True) if size <= SMALL)
    proof = [f"{format_size(size)}: {gain:.3f}" for size, gain in zip(SIZES, gains, strict=True)]
    yield row(
        f"{name}, permuting on the GPU, small messages", {"over": GAINS}, {"speedup": round(small, 3)},
        judged(small > GAINS or near(small, GAINS), small > 1), note=ASSUMED, engine="loggp", proof=proof,
        deviation=None if small > GAINS else "one round of five less is 5/4, and the rest what it carries",
    )  # fmt: skip
    best = [min(WAYS, key=lambda way: times[way][n]) for n in range(len(SIZES))]
    told = ranges(SIZES, best)
    first = [way for size, way in zip(SIZES, best, strict=True) if size < LARGE]
    yield row(
        f"{name}, permuting is the fastest way below 2 MB", {"so": True}, {"so": set(first) == {KERNEL}, **told},
        set(first) == {KERNEL}, note=ASSUMED, engine="loggp",
    )  # fmt: skip
    last = [way for size, way in zip(SIZES, best, strict=True) if size >= LARGE]
    yield row(
        f"{name}, Send/Recv is the fastest way from 2 MB on", {"so": True}, {"so": set(last) == {SEPARATE}, **told},
        judged(set(last) == {SEPARATE}, SEPARATE in last), note=ASSUMED, engine="loggp",
        deviation=None if set(last) == {SEPARATE} else "simulated, each separate message pays its overhead, where NCCL "
        "starts those of a group together, and permuting costs no launch",
    )  # fmt: skip
    ahead = [size for size, one, *others in zip(SIZES, ring, *times.values(), strict=True) if one < min(others)]
    so = bool(ahead) and ahead[-1] == SIZES[-1]
    yield row(
        f"{name}, rings are the fastest of all for large messages", {"so": True},
        {"so": so, "from": format_size(ahead[0]) if ahead else None}, so, note=ASSUMED, engine="loggp",
        proof=[f"{format_size(s)}: {min(o) / r:.3f}" for s, r, *o in zip(SIZES, ring, *times.values(), strict=True)],
        deviation=None if so else "not up to 256 MiB: where messages are long, both load links alike",
    )  # fmt: skip
