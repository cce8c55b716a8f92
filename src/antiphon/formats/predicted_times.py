"""Predicted times of a plan by protocol, and the sizes at which a file that has one protocol is worth its place.

Tuning compares plans at a few sizes, each by its fastest protocol; a file has one protocol and serves a range. So every
size of the range, within a factor of 2, is compared again: with the time of the choice, for the note, and with that of
the library (NCCL, RCCL). Sizes at which the file would be slower are left to the library. Example, MI300X, a plan tuned
at 8 KiB that wins up to 64 KiB by LL:

    8 KiB    packets 8.8 us   RCCL 13.6 us   written by packets
    16 KiB   LL128 9.7 us, plain data 46 us, RCCL 14 us: the file of plain data does not serve it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from math import inf

from antiphon.core.plan import Entry, Plan
from antiphon.core.schedule import Schedule
from antiphon.cost.nccl.library import find_library_model
from antiphon.cost.nccl.model import calls
from antiphon.errors import AntiphonError
from antiphon.units import format_ends, format_size

SAME_TIME = 1.005  # ratio of predicted times up to which two plans count as equally fast


@dataclass(frozen=True)
class PredictedTimes:
    """The predicted time for which tuning chose a plan, and the times of its schedule by protocol at any size.

    `tuned_bytes`: the size at which tuning compared the plan. `speedup`: the factor by which it was faster than
    `library`, 0 if unknown.
    """

    tuned_bytes: int  # 0: nothing is known
    seconds: float  # of the chosen plan at that size
    speedup: float
    library: str
    by_protocol: Callable[[int], dict[str, float]]  # bytes -> predicted seconds by protocol; empty if nothing is known
    library_seconds: Callable[[int], float]  # bytes -> predicted seconds of the library

    @staticmethod
    def of(plan: Plan, entry: Entry, schedule: Schedule) -> PredictedTimes:
        """Return the times of `schedule`, written for the entry; nothing is known without times by protocol."""
        claims = entry.claims
        nbytes, seconds, speedup = claims.get("at"), claims.get("seconds"), claims.get("speedup")
        is_by_calls = claims.get("model") == "calls"
        if is_by_calls and isinstance(nbytes, int) and isinstance(seconds, float) and nbytes > 0 and seconds > 0:
            with suppress(AntiphonError):
                library = str(claims.get("reference") or "") if isinstance(speedup, float) else ""
                by_protocol = calls(schedule, plan.topology).seconds_by_protocol
                factor = float(speedup or 0) if library else 0.0
                library_seconds = _library_times(plan, nbytes, seconds * factor)
                return PredictedTimes(nbytes, seconds, factor, library.upper(), by_protocol, library_seconds)
        return PredictedTimes(  # with tuned_bytes 0 the other figures are not read
            tuned_bytes=0,
            seconds=1.0,
            speedup=0.0,
            library="",
            by_protocol=lambda nbytes: {},
            library_seconds=lambda nbytes: 0.0,
        )

    def fastest_protocol(self, nbytes: int) -> str:
        """Return the fastest protocol at a size, "" if nothing is known."""
        times = self.by_protocol(nbytes)
        return min(times, key=lambda name: times[name], default="")

    def largest_by(self, protocol: str, other: str, start: int, stop: int | None, limit: int) -> int:
        """Return the last of the sizes start, 2 start, 4 start, ... below `stop` (None: below `limit`) up to which a
        protocol is worth its place at each: it is faster than the `other` one that files can have, and than the
        library, if it is not the fastest of all. 0 if it is not at the first.

        If it is worth it at `stop` - 1, the last size of the range, too, return that: the protocol then counts as worth
        it from the result so far up to there.
        """
        name = protocol.lower()

        def is_worth_it(nbytes: int) -> bool:
            times = self.by_protocol(nbytes)
            seconds = times.get(name, inf)
            beats_library = self.fastest_protocol(nbytes) == name or seconds < self.library_seconds(nbytes)
            return seconds < times.get(other.lower(), inf) and (beats_library or self.speedup <= 0)

        largest, nbytes = 0, max(start, 1)
        while nbytes < (stop or limit) and is_worth_it(nbytes):
            largest, nbytes = nbytes, 2 * nbytes
        reaches_end = stop is not None and largest > 0 and is_worth_it(stop - 1)
        return stop - 1 if stop is not None and reaches_end else largest

    def compare(
        self, protocol: str, smallest: int, largest: int | None, *, may_leave: bool
    ) -> tuple[str, tuple[int, int | None] | None]:
        """Compare the file of `protocol` for sizes from `smallest` to `largest` with the choice and with the library.

        Return a note, empty if the file is as fast as the choice and serves all sizes, and the smallest and the largest
        size that it serves (`largest` None: no limit); None: it serves none. `may_leave`: leave sizes to the library at
        which that is faster.
        """
        if not self.tuned_bytes:
            return "", (smallest, largest)
        sizes = self.sample_sizes(smallest, largest)
        slowdowns = {nbytes: self._slowdown(protocol, nbytes) for nbytes in sizes}

        def is_served(nbytes: int) -> bool:
            # A file as fast as the chosen plan is served without a look at the library, to which tuning preferred that
            # plan; so is every size if the speedup is unknown.
            slowdown = slowdowns[nbytes]
            seconds = slowdown * self._chosen_seconds(nbytes)
            return slowdown <= SAME_TIME or self.speedup <= 0 or seconds < self.library_seconds(nbytes)

        served = _choose_run(sizes, is_served, self.tuned_bytes) if may_leave else sizes
        # the sizes that the note is about: those that the file serves, else the tuned one, else all
        named = served or ([self.tuned_bytes] if self.tuned_bytes in slowdowns else sizes)
        worst = max(named, key=lambda nbytes: slowdowns[nbytes])
        notes = []
        if slowdowns[worst] > SAME_TIME:
            fastest = self.fastest_protocol(worst)
            won_by = f", which won by {fastest}" if fastest != protocol.lower() else ""
            size, _ = format_ends(worst, None)  # ">256KiB" for a byte more, where packets end
            notes.append(
                f"{f'above {size[1:]}' if size.startswith('>') else f'at {size}'} protocol {protocol} takes "
                f"{slowdowns[worst]:.3g} times the time of the choice{won_by}"
            )
        if not served:  # then every size is slower than the choice, so there is a note on the worst
            return f"{notes[0]}: left to {self.library}", None
        first, last = served[0], served[-1]
        notes += [f"below {format_size(first)} left to {self.library}"] if first > sizes[0] else []
        notes += [f"above {format_size(last)} left to {self.library}"] if last < sizes[-1] else []
        span = (first if first > sizes[0] else smallest), (last if last < sizes[-1] else largest)
        return "; ".join(notes), span

    def sample_sizes(self, smallest: int, largest: int | None) -> list[int]:
        """Return sizes of a range within a factor of 2 of each other, with its ends and the tuned size, ascending.

        `largest` None: the range has no end, so the sizes go up to the tuned one.
        """
        tuned = self.tuned_bytes
        last = max(tuned, smallest) if largest is None else max(largest, smallest)
        sizes = {last, *([tuned] if smallest <= tuned <= last else [])}
        nbytes = last
        while nbytes > max(smallest, 1):
            nbytes = max(2 ** (nbytes - 1).bit_length() // 2, smallest, 1)  # the next smaller power of two
            sizes.add(nbytes)
        return sorted(sizes)

    def _chosen_seconds(self, nbytes: int) -> float:
        """Return the seconds of the chosen plan: as tuning stated them, at other sizes by its fastest protocol."""
        return self.seconds if nbytes == self.tuned_bytes else min(self.by_protocol(nbytes).values())

    def _slowdown(self, protocol: str, nbytes: int) -> float:
        """Return the predicted time by `protocol` over that of the chosen plan; 1 if the protocol has no prediction."""
        chosen = self._chosen_seconds(nbytes)
        return self.by_protocol(nbytes).get(protocol.lower(), chosen) / chosen


def _library_times(plan: Plan, tuned_bytes: int, tuned_seconds: float) -> Callable[[int], float]:
    """Return the library's predicted seconds at any size, such that they are `tuned_seconds` at `tuned_bytes`.

    Without a model of the library, only what is certain to be faster is served: the library takes no less time for more
    bytes than at the tuned size, and for fewer bytes no less than in proportion.
    """
    collective = plan.collective
    with suppress(AntiphonError):
        model = find_library_model(plan.topology, [collective])
        if model is not None and tuned_seconds > 0:

            def library_seconds(nbytes: int) -> float:
                chosen = model.choice(collective.kind, nbytes)
                return chosen.seconds

            scale = tuned_seconds / library_seconds(tuned_bytes)
            return lambda nbytes: scale * library_seconds(nbytes)
    return lambda nbytes: tuned_seconds * min(1.0, nbytes / tuned_bytes)


def _choose_run(sizes: Sequence[int], is_served: Callable[[int], bool], preferred: int) -> list[int]:
    """Return the run of served sizes that holds the preferred one, else the longest; [] if none is served."""
    runs = [list(run) for served, run in groupby(sizes, key=is_served) if served]
    return max(runs, key=lambda run: (preferred in run, len(run)), default=[])
