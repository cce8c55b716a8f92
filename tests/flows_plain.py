"""Flows in plain Python and exact fractions: explicit waits, one event at a time. Slow, small and obviously right.

Nothing here uses the derived versions, the messages or NumPy: what waits for what is read off the rows. Without the
price of combining, which is held against the count of reductions instead.
"""

from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any

import oracle

from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import expand
from antiphon.cost import Incast, Profile


class Plain:
    """Message by message in exact fractions: explicit waits, and max-min rates by filling up link after link."""

    def __init__(self, pieced: Schedule, machine: Topology, nbytes: int, profile: Profile) -> None:
        schedule = expand(pieced)
        steps = self.steps(pieced)
        self.machine, self.profile = machine, profile
        ways, weights = oracle.Ways(machine), schedule.collective.weights
        grouped: dict[tuple[int, ...], list[oracle.Row]] = defaultdict(list)
        for step, plain in zip(steps, oracle.rows_of(schedule), strict=True):
            row = plain._replace(step=step)
            route = row.route if row.src != row.dst and row.route >= 0 else len(schedule.routes)
            grouped[row.step, row.src, row.dst, route].append(row)
        self.keys = sorted(grouped)
        self.path = {key: ways.path(grouped[key][0], schedule) or () for key in self.keys}
        total = schedule.chunks.denominator * schedule.collective.buffer_weight
        self.size, self.reads, self.writes = {}, {}, {}
        for key in self.keys:
            rows = grouped[key]
            share = sum(
                int(schedule.chunks.share[r.chunk]) * int(weights[schedule.chunks.block[r.chunk]]) for r in rows
            )
            self.size[key] = Fraction(share * nbytes, total) if self.path[key] else Fraction(0)
            self.reads[key] = [(r.chunk, r.src, r.src_slot) for r in rows]
            self.writes[key] = [(r.chunk, r.dst, r.dst_slot) for r in rows]
        self.written = sorted({(cell, key[0]) for key in self.keys for cell in self.writes[key]})

    def before(self, cell: Any, step: int) -> Any:
        """The last write of a cell before a step."""
        return max((s for c, s in self.written if c == cell and s < step), default=None)

    def waits(self, key: Any) -> set[Any]:
        """What a message reads."""
        found = {("cell", cell, self.before(cell, key[0])) for cell in self.reads[key]}
        return {wait for wait in found if wait[2] is not None}

    def gates(self, cell: Any, step: int) -> set[Any]:
        """What a write waits for."""
        last = self.before(cell, step)
        floor = -1 if last is None else last
        out = {("sent", key) for key in self.keys if key[0] == step and cell in self.writes[key]}
        out |= {("sent", key) for key in self.keys if floor < key[0] <= step and cell in self.reads[key]}
        return out | ({("cell", cell, last)} if last is not None else set())

    @staticmethod
    def steps(pieced: Schedule) -> list[int]:
        """Of every row with its pieces written out: pieces of one step and of as many pieces share one, in the order of
        when they go, and then of their steps and pieces."""
        pieces = [pieced.pieces] * len(pieced.chunks) if isinstance(pieced.pieces, int) else pieced.pieces.tolist()
        rows = [(row.step, pieces[row.chunk]) for row in oracle.rows_of(pieced)]
        keys = [(step + piece, step, many) for step, many in rows for piece in range(many)]
        number = {key: place for place, key in enumerate(sorted(set(keys)))}
        return [number[key] for key in keys]

    def resources(self, key: Any) -> list[int]:
        machine, found = self.machine, list(self.path[key])
        for number, limit in enumerate(machine.limits):
            found += [machine.links + number] * sum(link in limit.links for link in self.path[key])
        return found

    def capacity(self, resource: int, active: list[Any]) -> Fraction:
        machine, links = self.machine, [resource]
        if resource >= machine.links:
            links = list(machine.limits[resource - machine.links].links)
            nominal = machine.limits[resource - machine.links].bandwidth
        else:
            nominal = machine.bandwidth(resource)
        kinds = [self.profile.incast.get(machine.types[machine.link_type[i]].kind, Incast()) for i in links]
        seen = max(kinds, key=lambda kind: (kind.epsilon, -kind.w_t))
        senders = Counter(dst for _, dst in {key[1:3] for key in active if resource in self.resources(key)})
        excess = max(max(senders.values(), default=0) - seen.w_t, 0)
        return 1 / (1 / nominal + Fraction(seen.epsilon) * excess)

    def rates(self, active: list[Any]) -> dict[Any, Fraction]:
        room = {r: self.capacity(r, active) for key in active for r in self.resources(key)}
        open_, rate = list(active), {}
        while open_:
            users = Counter(r for key in open_ for r in self.resources(key))
            least = min(room[r] / count for r, count in users.items())
            tight = {r for r, count in users.items() if room[r] / count == least}
            for key in [key for key in open_ if tight & set(self.resources(key))]:
                rate[key] = least
                open_.remove(key)
                for r in self.resources(key):
                    room[r] -= least
        return rate

    def seconds(self) -> Fraction:
        machine, now = self.machine, Fraction(0)
        done: set[Any] = set()
        due: dict[Any, Fraction] = {}
        left = dict(self.size)
        waits = {key: self.waits(key) for key in self.keys}
        gates = {("cell", *cell): self.gates(*cell) for cell in self.written}
        last: dict[Any, Any] = {}
        previous = {}
        for key in self.keys:
            previous[key] = last.get(key[1:])
            last[key[1:]] = key
        active: list[Any] = []
        begun: set[Any] = set()
        while True:
            changed = True
            while changed:
                changed = False
                for key in self.keys:
                    if key not in due and waits[key] <= done:
                        alpha = sum(Fraction(machine.types[machine.link_type[i]].latency) for i in self.path[key])
                        due[key], changed = now + alpha, True
                    free = previous[key] is None or ("sent", previous[key]) in done
                    if key in due and key not in begun and due[key] <= now and free:
                        begun.add(key)
                        active.append(key)
                    if key in active and left[key] == 0:
                        active.remove(key)
                        done.add(("sent", key))
                        changed = True
                for cell, wait in gates.items():
                    if cell not in done and wait <= done:
                        done.add(cell)
                        changed = True
            rates = self.rates(active)
            ahead = [now + left[key] / rates[key] for key in active]
            ahead += [when for key, when in due.items() if key not in begun and when > now]
            if not ahead:
                assert len(begun) == len(self.keys)
                return now
            then = min(ahead)
            for key in active:
                left[key] -= rates[key] * (then - now)
            now = then
