"""How long bounds take: allgather and allreduce on clusters of boxes, alltoall programs on 64 ranks.

Run: python bench/bench_bounds.py. Prints the machine and the medians of several runs of each.
"""

from __future__ import annotations

from _common import medians, print_machine, print_table, save

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


HEADERS = ("bound", "ranks", "seconds", "cpu seconds", "GB/s", "tight")
TARGETS = {  # cpu seconds
    "allgather on 32 boxes, NICs of 25 GB/s": 0.1,
    "allgather on 32 boxes, NICs of 50 GB/s": 0.1,
    "allgather on 128 boxes, NICs of 25 GB/s": 2,
    "allgather on 128 boxes, NICs of 50 GB/s": 2,
}
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


def by_bisection(topology: Topology) -> float:
    """The baseline: bisect the rate of an allgather in doubles, one maximum flow per rank and rate tried."""
    import igraph

    capacity = [float(topology.bandwidth(link)) / GB for link in range(topology.links)]
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    source, ranks = topology.nodes, range(topology.ranks)
    graph = igraph.Graph(n=source + 1, edges=ends + [(source, rank) for rank in ranks], directed=True)
    low, high = 0.0, max(capacity) * topology.ranks
    while high - low > 1e-6 * high:
        rate = (low + high) / 2
        feed = capacity + [rate] * topology.ranks
        enough = rate * topology.ranks * (1 - 1e-9)
        if all(graph.maxflow_value(source, rank, feed) >= enough for rank in ranks):
            low = rate
        else:
            high = rate
    return low * topology.ranks


def main() -> None:
    print_machine()
    bound(torus(3), Collective("allgather", 3))  # imports are not what is measured
    rows: list[tuple[object, ...]] = []
    for kind, topology, repeats in CASES:
        found = bound(topology, Collective(kind, topology.ranks))
        took = medians(lambda k=kind, t=topology: bound(t, Collective(k, t.ranks)), repeats)
        rate = float(found.bytes_per_second or 0) / GB
        rows.append(
            (f"{kind} on {topology.name}", topology.ranks, took["seconds"], took["cpu_seconds"], rate, found.tight)
        )
    print_table(HEADERS, rows)
    small = boxes(32, 25)
    plain, ours = (
        medians(lambda: by_bisection(small), 1)["cpu_seconds"],
        medians(lambda: bound(small, Collective("allgather", small.ranks)), 9)["cpu_seconds"],
    )
    found = bound(small, Collective("allgather", small.ranks))
    apart = by_bisection(small) / float(found.bytes_per_second or 1) * GB - 1
    print(f"baseline, bisection over a maximum flow per rank, {small.ranks} ranks: {plain:.3f} s of CPU;")
    print(f"ours: {ours:.3f} s, {plain / ours:.1f} x")
    print(f"(the two differ by {apart:.1e}; ours is exact)")
    missed = [
        f"{name}: {cpu:.2f} s (target {TARGETS[name]})" for name, _, _, cpu, *_ in rows if cpu > TARGETS.get(name, 1e9)
    ]
    print("\n".join(f"MISSED {line}" for line in missed) or "all targets met")
    listed = [dict(zip(HEADERS, row, strict=True)) for row in rows]
    save("bounds", {"rows": listed, "baseline_cpu_seconds": plain, "ours_cpu_seconds": ours, "missed": missed})


if __name__ == "__main__":
    main()
