"""Resolve the options of model loggp: limits on ports and NICs, how overheads overlap, when a message has left.

Explicit options override those that `meaning` implies, which override the profile's. Example: meaning="loggops" with
device_radix=2 gives one processor per rank, sent=left, 2 ports and no limit on network cards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from antiphon.core.messages import LEFT, RECEIVED
from antiphon.cost.figures import Level, LogGP
from antiphon.cost.profile import Profile
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.units import parse_size

FIDELITIES = ("message", "packet")  # option `fidelity`: messages are sent as a whole, or in packets
CPUS = ("overlap", "shared")  # option `cpu`: overheads of messages overlap, or share a processor
SENT = (RECEIVED, LEFT)
# option `meaning`: a name for the values of several other options
MEANINGS: dict[str, dict[str, int | str | None]] = {
    "ports": {"cpu": "overlap", "sent": RECEIVED},
    "loggops": {"cpu": "shared", "sent": LEFT, "device_radix": 1, "node_radix": "none"},
}


@dataclass(frozen=True)
class Options:
    """Resolved options."""

    figures: LogGP  # of the profile, with the numbers of ports (device_radix) and NICs (node_radix) asked for
    packets: bool = False  # fidelity=packet
    processors: bool = False  # cpu=shared
    sent: str = RECEIVED  # when a message counts for the steps of its sender: received, or left
    eager: float = float("inf")  # bytes up to which a message has left before the receiver takes it


def options_of(
    profile: Profile, *, fidelity: str, contention: str, device_radix: int | str | None, node_radix: int | str | None,
    cpu: str | None, sent: str | None, eager: int | str | None, meaning: str,
) -> Options:  # fmt: skip
    """Resolve the options of model loggp (see loggp.py): explicit ones first, then those that `meaning` implies, then
    those of the profile."""
    _one_of("fidelity", fidelity, FIDELITIES)
    _one_of("contention", contention, ("on", "off"))
    _one_of("meaning", meaning, tuple(MEANINGS))
    explicit = {"cpu": cpu, "sent": sent, "device_radix": device_radix, "node_radix": node_radix}
    chosen = {**MEANINGS[meaning], **{name: value for name, value in explicit.items() if value is not None}}
    cpu, sent = _one_of("cpu", chosen.pop("cpu"), CPUS), _one_of("sent", chosen.pop("sent"), SENT)
    overrides = {name: None if value == "none" else value for name, value in chosen.items()}
    figures = replace(profile.loggp or LogGP((Level(),)), **overrides)  # type: ignore[arg-type]
    if contention == "off":
        figures = replace(figures, device_radix=None, node_radix=None)
    eager_limit = float("inf") if eager in (None, "none") else float(parse_size(eager, "option eager of model loggp"))
    options = Options(figures, fidelity == "packet", cpu == "shared", sent, eager_limit)
    _refuse_incompatible_options(options, contention)
    return options


def _refuse_incompatible_options(options: Options, contention: str) -> None:
    """Raise Unsupported if options contradict cpu=shared or need it."""
    if not options.processors:
        if options.eager != float("inf"):
            raise Unsupported(
                "model loggp: option eager (up to where a send is over before the receiver takes the message) goes "
                "with cpu=shared; ports take what arrives at once; leave it out, or add cpu=shared"
            )
        return
    where = "model loggp: option cpu=shared (a rank's one processor sends, takes in and combines)"
    if options.packets:
        raise Unsupported(f"{where} takes messages whole; leave out fidelity=packet")
    if contention == "off":
        raise Unsupported(f"{where} is contention; leave out contention=off")
    if options.figures.node_radix is not None:
        raise Unsupported(f"{where} knows no NICs that ranks share; add node_radix=none")


def _one_of(name: str, value: object, choices: Sequence[str]) -> str:
    """Return the value of an option; raise Invalid if it is not one of the choices."""
    if value not in choices:
        *rest, last = choices
        raise Invalid(f"option {name} of model loggp: expected {', '.join(rest)} or {last}, got {quote(value)}")
    return str(value)
