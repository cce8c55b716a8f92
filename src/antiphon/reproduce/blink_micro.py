"""Blink's micro-benchmarks on a DGX-1, predicted by the calibrated costs of calls on V100s (cost/nccl).

The patterns (chains, fans, MIMO, MCA) are those of runtimes/measure/bench_micro. Ours is the throughput of the busiest
link by the model `calls`; the paper's were measured. Claims without figures are compared as true or false. The first
arguments of `row` are name, published figures, ours, and whether they agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.cost import prepare
from antiphon.reproduce.rows import NEAR, Row, agreement, claim, is_near, row
from antiphon.runtimes.measure.bench_micro import PUBLISHED, Pattern, plan_on, select_patterns
from antiphon.topologies import topology

LARGE = 10**9  # bytes over the busiest link: the paper's 1000 MB
NVLINK = 25e9  # bytes per second: the nominal bandwidth of a link
CHAIN_LENGTHS, FAN_WIDTHS = range(3, 9), (1, 2, 3)  # GPUs of a chain, branches of a fan
# why a predicted rate differs from a published one
DEVIATION = "link rates, launch and steps as tables of nccl-tests tell them; what a kernel needs to add is not priced"
WHERE = {
    "chain-forward": "A.1.1, Figure 24(a)", "chain-reduce": "2.2, Figure 7 (A.1.1 says around 18)",
    "chain-reduce-broadcast": "A.1.1, Figure 24(c)", "mimo": "2.2, Figure 8(c)", "mca": "2.2, Figure 8(c)",
}  # fmt: skip


def micro() -> Iterator[Row]:
    """Yield the throughput of the busiest link at 1000 MB, and the paper's claims on chain lengths and fan widths.

    The shape agrees if a rate is below the 25 GB/s of the link.
    """
    machine, busiest = topology("dgx1v"), dict[str, float]()
    for pattern in select_patterns():
        by_size = {size: _busiest_throughput(pattern, machine, size) for size in (10**6, 10**7, 10**8, LARGE)}
        busiest[pattern.title] = by_size[LARGE]
        # bytes per second, and the bytes from which the paper reaches them: LARGE is enough for all
        published, _ = PUBLISHED.get((pattern.name, pattern.size), (None, 0))
        if published is None:
            continue
        ours, is_reproduced = by_size[LARGE], is_near(by_size[LARGE], published)
        yield row(
            f"dgx1v, {pattern.title}", {"GB_per_second": published / 1e9}, {"GB_per_second": round(ours / 1e9, 2)},
            agreement(is_reproduced, ours < NVLINK), note=f"{WHERE[pattern.name]}: at 1000 MB", engine="calls",
            proof=[f"{size} B: {rate / 1e9:.2f} GB/s" for size, rate in by_size.items()],
            deviation=None if is_reproduced else DEVIATION,
        )  # fmt: skip
    yield from _shape_rows(busiest)


def _shape_rows(rates: dict[str, float]) -> Iterator[Row]:
    """Compare claims about lengths and widths; `rates`: bytes per second by pattern."""
    details = {"note": "A.1", "engine": "calls"}
    for name in ("chain-forward", "chain-reduce", "chain-reduce-broadcast"):
        falls = _is_falling([rates[f"{name} {size}"] for size in CHAIN_LENGTHS])
        yield claim(f"dgx1v, {name}: less, the longer the chain", falls, **details)
    round_trip = all(rates[f"chain-reduce-broadcast {n}"] < rates[f"chain-reduce {n}"] for n in CHAIN_LENGTHS)
    yield claim("dgx1v, chains: there and back is less than there", round_trip, **details)
    fans = [rates[f"fan-out-forward {n}"] for n in FAN_WIDTHS]
    steady = max(fans) - min(fans) <= NEAR * max(fans)
    yield claim("dgx1v, fan-out: as much, however many there are", steady, **details)


def _is_falling(rates: Sequence[float]) -> bool:
    """Return whether rates, from short to long chains, never rise, and the last is below the first."""
    return all(shorter >= longer for shorter, longer in pairwise(rates)) and rates[0] > rates[-1]


def _busiest_throughput(pattern: Pattern, machine: Topology, link_bytes: int) -> float:
    """Return the bytes per second of the busiest link when it carries `link_bytes` bytes."""
    plan = plan_on(pattern, machine)
    # the largest buffer is `buffer_weight` blocks, of which the busiest link carries `busiest`
    nbytes = link_bytes * plan.collective.buffer_weight // pattern.busiest
    schedule = plan.at(nbytes).schedule
    verify(schedule, machine).or_raise()
    return link_bytes / float(prepare("calls", schedule, machine)(nbytes).seconds)
