"""Weigh packets against the files of collectives that rule them out.

A rank may leave a broadcast (reduce, scatter, gather) before others enter it, which packets do not allow: files for
both cannot be registered together. So either the other collectives do without packets, or the broadcast is left to the
GPU library, and the choice with the greater gain is written. A gain is the sum, over collectives and the sizes at which
each range of a table is weighed (its ends, its tuned size, powers of two between), of the logarithm of the factor by
which the files are predicted to be faster than what serves without them.

Example, an HGX H100: packets gain up to 1.2x for three collectives up to 32 KiB, a file for broadcast 1.2x for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, log
from typing import NamedTuple

from antiphon.core.plan import GPU_LIBRARIES, Plan
from antiphon.core.transform import unjoined
from antiphon.formats.mscclpp.shape import LL, MOST_OFFSET, SIMPLE
from antiphon.formats.predicted_times import PredictedTimes
from antiphon.lower.onesided.packets import KINDS as PACKET_KINDS
from antiphon.units import format_size

SMALLEST_WEIGHED = 1024  # bytes; tables begin here by default, though their first range serves all smaller sizes


class Gain(NamedTuple):
    """What some files gain: the sum of logarithms, and the largest factor with its collective and size in bytes."""

    total: float = 0.0
    factor: float = 1.0
    kind: str = ""
    nbytes: int = 0

    def __str__(self) -> str:
        """Return the largest factor in words; "" if nothing is gained."""
        where = f"{self.kind} at {format_size(self.nbytes)}"
        return f"up to {self.factor:.3g}x faster for {where}" if self.total > 0 else ""


class PacketChoice(NamedTuple):
    """`waiting`: the collectives that packets can serve, as no rank leaves them before all have entered. `excluded`:
    others, left to the library for the sake of packets. `packets`, `plain`: what packets gain, and the others' files.
    """

    waiting: list[str]
    excluded: list[str]
    packets: Gain
    plain: Gain

    def notes_on_excluded(self) -> list[str]:
        """Return a note on the excluded collectives, if there are any."""
        names, losing, gaining = ", ".join(self.excluded), str(self.plain), str(self.packets)
        note = (
            f"left to the library: {names}: a rank may leave them before others enter, which rules out packets"
            f"{f' ({gaining})' if gaining else ''}; option packets=0 writes files for them"
            f"{f' ({losing} than the library)' if losing else ''} and no packets"
        )
        return [note] if names else []

    def note_without_packets(self, leaving: Sequence[str]) -> str:
        """Return the note that there are no packets because files for the collectives `leaving` are written."""
        gaining = f", {self.packets}" if self.packets.total > 0 else ""
        return (
            f"no packets{gaining}: a rank may leave {', '.join(leaving)} before others enter; option packets=yes "
            "writes packets, and leaves these to the library"
        )


def choose_packets(
    plans: Mapping[str, Plan], packet_limit: int | None, *, forced: bool, alone: bool
) -> PacketChoice:  # fmt: skip
    """Choose between packets and the files of collectives that rule them out.

    `packet_limit`: the largest call by packets, 0 for none. `forced`: packets are asked for, even if they gain less.
    `alone`: switches neither multicast nor reduce.
    """
    waiting = {kind: plan for kind, plan in plans.items() if plan.collective.kind in PACKET_KINDS}
    leaving = {
        kind: plan for kind, plan in plans.items()
        if kind not in waiting and any(entry.served_by not in GPU_LIBRARIES for entry in plan.entries)
    }  # fmt: skip
    if packet_limit == 0 or not waiting or not leaving:
        return PacketChoice([*waiting], [], Gain(), Gain())
    packets, plain = _find_gain(waiting, LL, alone), _find_gain(leaving, SIMPLE, alone)
    # a file that gains nothing may turn out not to be written; if so, it rules out nothing
    excluded = [kind for kind, plan in leaving.items() if forced or _find_gain({kind: plan}, SIMPLE, alone).total > 0]
    return PacketChoice([*waiting], excluded if forced or packets.total > plain.total else [], packets, plain)


def _find_gain(plans: Mapping[str, Plan], protocol: str, alone: bool) -> Gain:
    """Return what packets (LL) gain over plain data and the library, or plain data (SIMPLE) over the library.

    Plans without predicted times by protocol gain nothing.
    """
    # rounded, so that equal gains are equal: the last bits of floats do not decide
    factors = [
        (round(factor, 6), kind, size)
        for kind, plan in plans.items()
        for factor, size in _factors(plan, protocol, alone)
    ]
    return Gain(round(sum(log(factor) for factor, _, _ in factors), 6), *max(factors, default=Gain()[1:]))


def _factors(plan: Plan, protocol: str, alone: bool) -> Iterator[tuple[float, int]]:
    """Yield the factor of each size that is weighed, at least 1, with the size."""
    for entry in plan.entries:
        schedule = unjoined(entry.schedule) if alone else entry.schedule
        prediction = PredictedTimes.of(plan, entry, schedule)
        if entry.served_by in GPU_LIBRARIES or prediction.speedup <= 0:
            continue
        first, last = entry.start, None if entry.stop is None else entry.stop - 1
        if protocol == LL:  # switches have no packets
            last = (
                0 if schedule.joint is not None else prediction.largest_by(LL, SIMPLE, first, entry.stop, MOST_OFFSET)
            )
            if not last:
                continue
        for nbytes in prediction.sample_sizes(max(first, min(SMALLEST_WEIGHED, prediction.tuned_bytes)), last):
            times, library = prediction.by_protocol(nbytes), prediction.library_seconds(nbytes)
            plain = min(times.get(SIMPLE.lower(), inf), library)
            yield (max(plain / times.get(LL.lower(), inf), 1.0) if protocol == LL else library / plain), nbytes
