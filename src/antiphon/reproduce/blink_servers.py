"""Figure 22(b) of Blink: a job on some GPUs of two DGX-1V, for networks between them of any speed.

The paper says only that it simulates 100 MB on 3 and 5 GPUs. Assumed here: which GPUs (GPUS); one network card per
server, shared by its GPUs, with the bandwidth of the figure's x axis each way; NVLinks as fast as the paper measures
them while GPUs reduce and forward (2.2: around 19 GB/s, of 25); latencies of the catalogue; phases that overlap, in the
best number of pieces. Rings run over PCIe at half an NVLink's bandwidth (5.1), or over the network if that is slower.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.reshape import degrade, keep
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.planners.trees.blink import blink
from antiphon.reproduce.blink_allocations import unique_allocations
from antiphon.reproduce.blink_rates import PCIE, rate_bound, ring_rate
from antiphon.topologies import topology

# The GPUs of the job in the first and in the second server
GPUS = (0, 1, 2), (0, 1, 2, 3, 4)
NBYTES = 10**8  # of the allreduce
NOMINAL_NVLINK = Fraction(25 * 10**9)  # bytes per second
MEASURED_NVLINK = Fraction(19 * 10**9)  # bytes per second
GIGABIT_BYTES = Fraction(10**9, 8)  # 1 Gbit/s in bytes per second
UNLIMITED_GBITS = 10_000  # Gbit/s: a network that limits nothing


@dataclass(frozen=True)
class NetworkPoint:
    """The result for one network."""

    network: Fraction  # bandwidth between the servers, in bytes per second
    speed: float  # throughput for 100 MB, in bytes per second
    rate: Fraction  # throughput in the limit of large data, in bytes per second
    limit: str  # the bottleneck: "network" or "NVLink"


def network_point(gigabits: Fraction | int, link: Fraction = MEASURED_NVLINK) -> NetworkPoint:
    """Return the point of a network: planned by `blink` in three phases, verified, and predicted by alpha-beta.

    `link`: bytes per second of an NVLink.
    """
    machine = build_servers(gigabits, link)
    collective = Collective("allreduce", machine.ranks)
    schedule = next(iter(blink(Request(machine, collective, nbytes=NBYTES))))
    verify(schedule, machine).or_raise()
    predicted = alpha_beta(schedule, machine)(NBYTES)
    network = gigabits * GIGABIT_BYTES
    rate = throughput(schedule, machine) or Fraction(0)
    return NetworkPoint(network, NBYTES / predicted.seconds, rate, "network" if rate == network else "NVLink")


def build_servers(gigabits: Fraction | int, link: Fraction) -> Topology:
    """Return two DGX-1V with one card each, only the GPUs of the job, NVLinks slowed down to `link` bytes/s each."""
    card = f"{gigabits * GIGABIT_BYTES}B/s"
    machine = topology(f"cluster:box=dgx1v,boxes=2,nics=1,nic={card}")
    if link != NOMINAL_NVLINK:
        machine = degrade(machine, kind="nvlink", slower=NOMINAL_NVLINK / link)
    return keep(machine, [gpu + 8 * server for server, gpus in enumerate(GPUS) for gpu in gpus]).topology


def ring_bandwidth(gigabits: Fraction | int) -> Fraction:
    """Return the bytes/s of one ring through both servers."""
    speed = min(PCIE * MEASURED_NVLINK, gigabits * GIGABIT_BYTES)
    return speed * ring_rate("allreduce", count=1, ranks=sum(map(len, GPUS)))


def count_knees() -> Counter[Fraction]:
    """Count the pairs of a 3-GPU and a 5-GPU allocation by the rate, in links, of the slower server's trees.

    A network of that rate is where the curve has its knee: the bottleneck of faster networks is NVLink.
    """
    box = topology("dgx1v")
    smaller, larger = (
        [rate_bound(job.machine, "allreduce").rate for job in unique_allocations(box, [len(gpus)])] for gpus in GPUS
    )  # fmt: skip
    return Counter(min(a, b) for a in smaller for b in larger)
