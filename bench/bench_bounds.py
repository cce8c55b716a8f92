"""How long bounds take: allgather and allreduce on clusters of boxes, alltoall programs on 64 ranks.

Run: python bench/bench_bounds.py. Prints the machine and the median of several runs of each.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.topology import LinkType, Topology, both_ways, build

GB = 10**9


def boxes(count: int, nic: int, size: int = 8) -> Topology:
    """Boxes of GPUs on a switch of 300 GB/s per GPU, each GPU with a NIC into one fabric switch."""
    ranks = count * size
    inner = [(gpu, ranks + gpu // size) for gpu in range(ranks)]
    outer = [(gpu, ranks + count) for gpu in range(ranks)]
    links = both_ways(inner, LinkType("nvlink", 300 * GB)) + both_ways(outer, LinkType("ib", nic * GB))
    return build(f"{count} boxes, NICs of {nic} GB/s", ranks, links, switches=count + 1)


def torus(*dims: int) -> Topology:
    """A torus with links of 25 GB/s."""
    total = 1
    pairs = []
    for size in dims:
        for node in range(total * size):
            pairs.append((node, node + total if node // total % size < size - 1 else node - total * (size - 1)))
        pairs = [
            (a + copy * total, b + copy * total) for a, b in pairs if a < total and b < total for copy in range(size)
        ] + [(a, b) for a, b in pairs if a >= total or b >= total]
        total *= size
    return build(f"torus {dims}", total, both_ways(dict.fromkeys(pairs), LinkType("ici", 25 * GB)))


def lopsided(ranks: int) -> Topology:
    """A ring with chords of many bandwidths: nothing is symmetric, so the linear program must decide."""
    links = []
    for a in range(ranks):
        for hop in (1, 5, 17):
            links.append((a, (a + hop) % ranks, LinkType("link", (1 + a * 7 % 11) * GB)))
            links.append(((a + hop) % ranks, a, LinkType("link", (1 + a * 5 % 13) * GB)))
    return build(f"lopsided {ranks}", ranks, links)


CASES = [
    ("allgather", boxes(32, 25), 9),
    ("allgather", boxes(32, 50), 9),
    ("allgather", boxes(128, 25), 5),
    ("allgather", boxes(128, 50), 5),
    ("reducescatter", boxes(128, 50), 3),
    ("allgather", torus(16, 16), 5),
    ("allgather", torus(32, 32), 3),
    ("allreduce", boxes(8, 50), 5),
    ("allreduce", boxes(32, 50), 3),
    ("alltoall", torus(8, 8), 3),
    ("alltoall", boxes(8, 50), 3),
    ("alltoall", lopsided(32), 3),
    ("alltoall", lopsided(64), 1),
]


def main() -> None:
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    bound(torus(3), Collective("allgather", 3))  # imports are not what is measured
    chosen = sys.argv[1:]
    for kind, topology, repeats in CASES:
        if chosen and kind not in chosen:
            continue
        seconds = []
        for _ in range(repeats):
            collective = Collective(kind, topology.ranks)
            start = time.perf_counter()
            found = bound(topology, collective)
            seconds.append(time.perf_counter() - start)
        rate = float(found.bytes_per_second or 0) / GB
        told = f"{kind} on {topology.name}, {topology.ranks} ranks"
        print(
            f"{told:62} {statistics.median(seconds):8.3f} s   {rate:10.3f} GB/s   tight={found.tight}",
            flush=True,
        )


if __name__ == "__main__":
    main()
