"""Parametrized round trips (PRTT) as CSV: `antiphon bench loggp` writes them and `antiphon fit loggp` reads them.

    kind,n,delay,nbytes,seconds
    rtt,1,0,4096,7.9e-06                 one message there, one back
    rtt,16,0,4096,4.1e-05                16 there at once, then one back
    rtt,16,4us,4096,1.03e-04             16 there, 4 us between two of them, then one back
    server,16,0,4096,1.1e-05             the time of receiving 16 that had already arrived

and, with more ranks, for the number of messages at once:

    burst,3,0,4096,9.1e-06               3 messages from one rank to another at once, then one back
    fan-out,3,0,1048576,2.1e-04          one rank sends to 3 at once
    fan-in,3,0,1048576,2.1e-04           3 ranks send to one
    pairs,3,0,1048576,2.1e-04            3 ranks each send to a partner on the other node

One row per repetition. The tables of the prototype of Hoefler et al. (Low-Overhead LogGP Parameter Assessment for
Modern Interconnection Networks, 2007) are read as well: columns size, n, d, PRTT(1,0,s), ... in seconds, by spaces.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphon.core.files import name_of, within
from antiphon.cost.fit.tables import (
    parse_positive_bytes,
    parse_positive_seconds,
    parse_rows,
    parse_whole,
    read_text,
    write_rows,
)
from antiphon.errors import Invalid, quote, unknown
from antiphon.units import parse_seconds

COLUMNS = ("kind", "n", "delay", "nbytes", "seconds")
RTT, SERVER = "rtt", "server"  # round trips, and a receiver's time for n messages
# Experiments on simultaneous messages
BURST, FAN_OUT, FAN_IN, PAIRS = SIMULTANEOUS = ("burst", "fan-out", "fan-in", "pairs")
# Columns of the LogGP prototype's files
_PROTOTYPE_COLUMNS = ("size", "n", "d", "PRTT(1,0,s)", "PRTT(n,0,s)", "PRTT(n,d,s)", "PRTT_server(n-1,d,s)")


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One measurement.

    kind `rtt`: PRTT(n, delay, nbytes), the time from the first of n messages, `delay` seconds between two of them,
    until the answer is back. kind `server`: the seconds in which the receiver took n messages that had already arrived,
    with a pause of `delay` before each. Kinds in SIMULTANEOUS: n messages that could all begin at once.
    """

    kind: str
    n: int
    delay: float
    nbytes: int
    seconds: float
    line: int = 0  # of the file, for error messages; 0: not read from one


def read_round_trips(path: str | os.PathLike[str]) -> list[RoundTrip]:
    """Read the file of `fit loggp`; errors name file and line. Linear."""
    name = name_of(path)
    with within(name):
        text = read_text(path, COLUMNS)
        head = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
        if "PRTT(" in head:
            return _parse_prototype(text)
        return parse_rows(text, COLUMNS, optional=(), parse_row=_parse_round_trip)


def write_round_trips(rows: Sequence[RoundTrip], path: str | os.PathLike[str]) -> None:
    """Write the file that `read_round_trips` reads as the same rows."""
    write_rows(COLUMNS, [[r.kind, r.n, repr(r.delay), r.nbytes, repr(r.seconds)] for r in rows], path)


def _parse_round_trip(row: Mapping[str, str], line: int) -> RoundTrip:
    kind = row["kind"].lower()
    if kind not in (RTT, SERVER, *SIMULTANEOUS):
        raise unknown("kind", row["kind"], (RTT, SERVER, *SIMULTANEOUS))
    n, delay = parse_whole(row["n"], "n", minimum=1), parse_seconds(row["delay"] or "0", "delay", bare=True)
    if kind == RTT and n == 1 and delay:
        raise Invalid(f"delay: one message alone has none between two, got {quote(row['delay'])}; write 0")
    if kind in SIMULTANEOUS and delay:
        raise Invalid(f"delay: messages that begin at once have none, got {quote(row['delay'])}; write 0")
    return RoundTrip(kind, n, delay, parse_positive_bytes(row["nbytes"]), parse_positive_seconds(row["seconds"]), line)


def _parse_prototype(text: str) -> list[RoundTrip]:
    """Parse the prototype's table: four measurements per line, PRTT_server of n - 1 messages, each after a pause."""
    rows: list[RoundTrip] = []
    head: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split()
        if not cells or cells[0].startswith("#"):
            continue
        with within(f"line {number}"):
            if not head:
                head = cells
                for name in _PROTOTYPE_COLUMNS:
                    if head.count(name) != 1:
                        raise Invalid(
                            f"expected the column {name} once; the columns are {' '.join(_PROTOTYPE_COLUMNS)}"
                        )
                continue
            if len(cells) != len(head):
                raise Invalid(f"has {len(cells)} columns, the first line has {len(head)}")
            row = dict(zip(head, cells, strict=True))
            n, delay, nbytes = (
                parse_whole(row["n"], "n", minimum=2), parse_seconds(row["d"], "d", bare=True),
                parse_positive_bytes(row["size"]),
            )  # fmt: skip
            if not delay:
                raise Invalid("d: without a delay between messages nothing determines o_s; expected more than 0")
            seconds_by_series = [parse_positive_seconds(row[name]) for name in _PROTOTYPE_COLUMNS[3:]]
            series = ((RTT, 1, 0.0), (RTT, n, 0.0), (RTT, n, delay), (SERVER, n - 1, delay))
            rows += [
                RoundTrip(kind, count, wait, nbytes, seconds, number)
                for (kind, count, wait), seconds in zip(series, seconds_by_series, strict=True)
            ]
    if not rows:
        raise Invalid(f"holds no measurements; expected lines of {' '.join(_PROTOTYPE_COLUMNS)}")
    return rows
