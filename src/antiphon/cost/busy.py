"""How busy every link and shared limit is over time.

A simulator reports each change of a link's load to a `LoadLog`, which turns the changes into intervals of constant load
(`Utilisation`). Example: a 1 GB/s link carries 0.5 GB/s from 0 to 1 s and 1 GB/s from 1 to 3 s. These are two
intervals, with shares 0.5 and 1.0 of its capacity; the mean share is 0.83.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Floats, Longs, order_of, run_starts
from antiphon.core.messages import resource_name, seconds_per_byte
from antiphon.core.topology import Topology


@dataclass(frozen=True, eq=False)
class Utilisation:
    """Intervals of constant load, in the order of (resource, begin); idle links and limits have none.

    All columns have one element per interval.
    """

    topology: Topology
    resource: Longs  # number of a link; from topology.links on, of a shared limit
    begin: Floats  # seconds
    end: Floats
    load: Floats  # bytes per second
    share: Floats  # load / nominal capacity; stays below 1 if incast slows the link

    def __len__(self) -> int:
        return len(self.resource)

    def bytes(self) -> Floats:
        """Return the total bytes over every link and every limit."""
        count = self.topology.links + len(self.topology.limits)
        return np.asarray(np.bincount(self.resource, self.load * (self.end - self.begin), count), np.float64)

    def mean(self) -> Floats:
        """Return the average fraction of nominal capacity that every link and limit uses, from 0 to the last end."""
        last = float(self.end.max(initial=0.0))
        return self.bytes() * seconds_per_byte(self.topology) / last if last else self.bytes()

    def name(self, resource: int) -> str:
        return resource_name(self.topology, resource)


class LoadLog:
    """Collects changes of load, by being called with (time, resources, new loads), and turns them into intervals."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.resources: list[Longs] = []
        self.loads: list[Floats] = []

    def __call__(self, now: float, resources: Longs, loads: Floats) -> None:
        self.times.append(now)
        self.resources.append(resources)
        self.loads.append(loads)

    def utilisation(self, topology: Topology) -> Utilisation:
        """Turn changes (time, link or limit, new load) into intervals of constant load. O(changes), and one sort.

        Link 0 is half busy at first, then fully; link 2 all the time:

        >>> from antiphon.core.example import machine
        >>> log = LoadLog()
        >>> log(0.0, np.array([0, 2]), np.array([5e8, 1e9]))
        >>> log(1.0, np.array([0]), np.array([1e9]))
        >>> log(3.0, np.array([0, 2]), np.array([0.0, 0.0]))
        >>> busy = log.utilisation(machine())
        >>> [column.tolist() for column in (busy.resource, busy.begin, busy.end, busy.share)]
        [[0, 0, 2], [0.0, 1.0, 0.0], [1.0, 3.0, 3.0], [0.5, 1.0, 1.0]]
        >>> busy.mean().tolist()
        [0.8333333333333334, 0.0, 1.0, 0.0]
        """
        count = topology.links + len(topology.limits)
        resource = np.concatenate([np.zeros(0, np.int64), *self.resources])
        load = np.concatenate([np.zeros(0), *self.loads])
        time = np.repeat(np.array(self.times), [len(changed) for changed in self.resources])
        order = order_of(resource, max(count, 1))  # a stable sort: in the order of time within each resource
        resource, load, time = resource[order], load[order], time[order]
        is_change = run_starts(resource)
        is_change[1:] |= load[1:] != load[:-1]
        resource, load, time = resource[is_change], load[is_change], time[is_change]
        # behind a resource's last change this is another resource's time; but there the load is 0: no interval
        end = np.append(time[1:], 0.0)
        is_interval = (load > 0) & (end > time)
        resource, load = resource[is_interval], load[is_interval]
        share = load * seconds_per_byte(topology)[resource]
        return Utilisation(topology, resource, time[is_interval], end[is_interval], load, share)
