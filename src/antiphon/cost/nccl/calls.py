"""Read the parameters of NCCL's and RCCL's calls: launch, protocols and bandwidth fractions of a GPU or a network.

Each file in `profiles/calls` describes one generation or one network (seconds; fractions of the nominal bandwidth):

    {"format": "antiphon-calls", "version": 1, "name": "h100", "boxes": ["hgx-h100"],
     "measured": ["hgx-h100"], "library": "NCCL", "calibrated_by": ["h100-p5-1"], "launch": 6e-6, "launch_more": 4e-6,
     "hop": {"ll": 7e-7, "ll128": 2e-6, "simple": 6e-6}, "share": {"ll": 0.3, "ll128": 0.8, "simple": 0.82},
     "slowdown": 1.7, "ramp": 2.7e-5, "nvls": {"latency": 2e-5, "share": 0.6, "ramp": 5e-5},
     "collectives": ["allreduce"],
     "units": {"of": 132, "taken": {"ring": 24, "nvls": 16, "sends": 32}, "source": "https://..."},
     "copies": {"latency": 3.3e-6, "share": 0.83, "source": "https://...", "assumed": ["latency"]}}
    {"format": "antiphon-calls", "version": 1, "name": "ib", "kinds": ["ib"], "calibrated_by": ["h100-nebius-2"],
     "hop": {"ll": 3e-6, "ll128": 8e-6, "simple": 1.2e-5}, "share": {"ll": 0.3, "ll128": 0.8, "simple": 0.93}}

`assumed` names the figures that no measurement determines ("hop simple", "share ll", "message", "more" for
launch_more): they come from documents, or from the nearest generation. In a file without `calibrated_by` nothing was
measured. The multiprocessors that communication occupies (`units`) and the speed of copy engines (`copies`) are as
published, not fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from antiphon.core.files import read_bytes, reading
from antiphon.core.jsontext import check_keys, decode
from antiphon.errors import Invalid, quote

FORMAT, VERSION = "antiphon-calls", 1
FOLDER = Path(__file__).parent.parent / "profiles" / "calls"  # files of figures, one per GPU generation or network
LL, LL128, SIMPLE = PROTOCOLS = ("ll", "ll128", "simple")
MAX_SECONDS = 1.0  # the greatest latency, launch or ramp that a file may state
MAX_SLOWDOWN = 100.0  # the greatest `CallFigures.slowdown`, a factor
# The terms that a call adds to the time of its transfers, in words
CALL_TERMS = {
    "launch": "start of the kernel", "messages": "further messages of a rank to other nodes at the same time",
    "fan": "the same data sent to further ranks of a node in a step", "ramp": "a call's first bytes are slower",
}  # fmt: skip


class Nvls(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Reduction and multicast in the switches of a node (NVLink SHARP)."""

    latency: float  # seconds of both together
    share: float  # fraction of a GPU's bandwidth
    ramp: float = 0.0  # seconds; replaces that of `CallFigures`


class Units(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Streaming multiprocessors (compute units) of a GPU, and the maximum that NCCL's kernel occupies while it runs.

    `taken`: by `ring` (and trees), `nvls`, `sends` (alltoall and the like): one per channel, as NCCL's log reports.
    Small calls occupy fewer.
    """

    of: int
    source: str
    taken: dict[str, int] = {}


class Copies(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A copy to another GPU by copy engines."""

    latency: float  # seconds without the bytes
    share: float  # fraction of the bandwidth
    source: str
    assumed: list[str] = []


class CallFigures(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The figures of one generation of GPUs or of one network, fitted to the published tables in `calibrated_by`.

    `boxes`: machines of the generation; `measured`, `collectives`: those in the tables. `kinds`: the network's kinds of
    links; `gpus`: only GPUs of these generations have these figures of the network (empty: all). `launch`: seconds from
    the call until the kernel runs; `launch_more`: for each further GPU that the same process drives, `launch_channel`:
    for each further channel of each of its GPUs. `hop`: seconds of latency from one rank to the next, by protocol;
    `share`: the fraction of the bandwidth that data get by protocol. The first bytes of a call over a GPU's links are
    slower (few channels, short buffers): they take 1 + `slowdown` times as long, which adds at most `ramp` seconds to a
    call. `message` of a network: seconds per further message that a rank sends to another node at the same time.
    `message` of GPUs: a step in which a rank sends the same data to m ranks of its node, or combines those of m with
    its own, takes (m - 1) * `message` seconds more.
    """

    format: str
    version: int
    name: str
    hop: dict[str, float]
    share: dict[str, float]
    calibrated_by: list[str] = []
    collectives: list[str] = []
    assumed: list[str] = []
    boxes: list[str] = []
    measured: list[str] = []
    kinds: list[str] = []
    gpus: list[str] = []
    library: str = "NCCL"
    launch: float = 0.0
    launch_more: float = 0.0
    launch_channel: float = 0.0
    slowdown: float = 0.0
    ramp: float = 0.0
    message: float = 0.0
    nvls: Nvls | None = None
    units: Units | None = None
    copies: Copies | None = None

    def check(self) -> None:
        """Raise Invalid if a figure is out of range or inconsistent."""
        if (self.format, self.version) != (FORMAT, VERSION):
            raise Invalid(f'expected "format": "{FORMAT}", "version": {VERSION}')
        if not self.hop or set(self.hop) - set(PROTOCOLS) or set(self.hop) != set(self.share):
            raise Invalid(f"hop and share: expected the same of {', '.join(PROTOCOLS)} in both")
        if set(self.measured) - set(self.boxes):
            raise Invalid("measured: expected some of boxes")
        seconds: Mapping[str, float] = self.hop | {
            "launch": self.launch, "launch_more": self.launch_more, "launch_channel": self.launch_channel,
            "ramp": self.ramp, "message": self.message,
        }  # fmt: skip
        shares: Mapping[str, float] = self.share
        if self.nvls is not None:
            seconds = {**seconds, "nvls": self.nvls.latency, "ramp of nvls": self.nvls.ramp}
            shares = {**shares, "nvls": self.nvls.share}
        if self.copies is not None:
            seconds, shares = {**seconds, "copies": self.copies.latency}, {**shares, "copies": self.copies.share}
        if self.units is not None and not all(
            0 < n <= self.units.of for n in (self.units.of, *self.units.taken.values())
        ):
            raise Invalid(f"units: expected more than 0, at most the {self.units.of} that there are")
        if not 0 <= self.slowdown <= MAX_SLOWDOWN:
            raise Invalid(f"slowdown: expected 0 to {MAX_SLOWDOWN:g}, got {self.slowdown}")
        for name, value in seconds.items():
            if not 0 <= value <= MAX_SECONDS:
                raise Invalid(f"{name}: expected 0 to {MAX_SECONDS:g} seconds, got {value}")
        for name, value in shares.items():
            if not 0 < value <= 1:
                raise Invalid(f"share of {name}: expected more than 0, at most 1, got {value}")

    def ramp_seconds(self, moving: float, *, in_switches: bool = False) -> float:
        """Return the seconds that the slow first bytes add to a call; `moving`: of all its bytes at full speed."""
        return min(self.slowdown * moving, self.nvls.ramp if in_switches and self.nvls is not None else self.ramp)

    def assumes(self, figure: str) -> bool:
        """Return whether a figure such as "hop simple" is assumed rather than measured."""
        return not self.calibrated_by or figure in self.assumed

    def basis(self) -> str:
        """Return the measurements that the figures are calibrated by, in words."""
        device = "network" if self.kinds or not self.boxes else "GPU"
        if not self.calibrated_by:
            return f"{device} {self.name} not calibrated" + (f" ({', '.join(self.assumed)})" if self.assumed else "")
        return f"{device} {self.name} calibrated by {self.library}'s published times ({', '.join(self.calibrated_by)})"


def read_calls(data: bytes) -> CallFigures:
    """Parse and check a file of this format."""
    calls = decode(data, CallFigures)
    check_keys(data)
    calls.check()
    return calls


@cache
def shipped_calls() -> Mapping[str, CallFigures]:
    """Return the figures that come with Antiphon, by name."""
    tables = {}
    for file in sorted(FOLDER.glob("*.json")):
        with reading(file.name):
            calls = read_calls(read_bytes(file))
            if calls.name != file.stem:
                raise Invalid(f"holds the name {quote(calls.name)}; a shipped file must bear the name that it holds")
            tables[calls.name] = calls
    return tables
