"""What the options of model loggp mean together: limits, who serves overheads, when a send is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from antiphon.core.messages import LEFT, RECEIVED
from antiphon.cost.figures import Level, LogGP
from antiphon.cost.profile import Profile
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.units import parse_size

FIDELITIES = ("message", "packet")
CPUS = ("overlap", "shared")
SENT = (RECEIVED, LEFT)
MEANINGS: dict[str, dict[str, int | str | None]] = {
    "ports": {"cpu": "overlap", "sent": RECEIVED},
    "loggops": {"cpu": "shared", "sent": LEFT, "device_radix": 1, "node_radix": "none"},
}


@dataclass(frozen=True)
class Options:
    """`packets`: at fidelity packet; `processors`: cpu=shared; `sent`: when what a rank sent counts for its own rounds;
    `eager`: bytes up to which a send is over before the receiver takes the message."""

    limits: LogGP
    packets: bool = False
    processors: bool = False
    sent: str = RECEIVED
    eager: float = float("inf")


def options_of(
    given: Profile, *, fidelity: str, contention: str, device_radix: int | str | None, node_radix: int | str | None,
    cpu: str | None, sent: str | None, eager: int | str | None, meaning: str,
) -> Options:  # fmt: skip
    """What was asked for explicitly, then what `meaning` stands for, then what the profile says."""
    _one_of("fidelity", fidelity, FIDELITIES)
    _one_of("contention", contention, ("on", "off"))
    _one_of("meaning", meaning, tuple(MEANINGS))
    asked = {"cpu": cpu, "sent": sent, "device_radix": device_radix, "node_radix": node_radix}
    told = {**MEANINGS[meaning], **{name: value for name, value in asked.items() if value is not None}}
    cpu, sent = _one_of("cpu", told.pop("cpu"), CPUS), _one_of("sent", told.pop("sent"), SENT)
    changed = {name: None if value == "none" else value for name, value in told.items()}
    limits = replace(given.loggp or LogGP((Level(),)), **changed)  # type: ignore[arg-type]
    if contention == "off":
        limits = replace(limits, device_radix=None, node_radix=None)
    most = float("inf") if eager in (None, "none") else float(parse_size(eager, "option eager of model loggp"))
    found = Options(limits, fidelity == "packet", cpu == "shared", sent, most)
    _refuse_what_makes_no_sense(found, contention)
    return found


def _refuse_what_makes_no_sense(found: Options, contention: str) -> None:
    if not found.processors:
        if found.eager != float("inf"):
            raise Unsupported(
                "model loggp: option eager (up to where a send is over before the receiver takes the message) goes "
                "with cpu=shared; ports take what arrives at once; leave it out, or add cpu=shared"
            )
        return
    where = "model loggp: option cpu=shared (a rank's one processor sends, takes in and combines)"
    if found.packets:
        raise Unsupported(f"{where} takes messages whole; leave out fidelity=packet")
    if contention == "off":
        raise Unsupported(f"{where} is contention; leave out contention=off")
    if found.limits.node_radix is not None:
        raise Unsupported(f"{where} knows no NICs that ranks share; add node_radix=none")


def _one_of(name: str, value: object, known: Sequence[str]) -> str:
    if value not in known:
        *rest, last = known
        raise Invalid(f"option {name} of model loggp: expected {', '.join(rest)} or {last}, got {quote(value)}")
    return str(value)
