"""Result of a reader: a machine, the assumptions about it, and the names of its ranks and network cards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from antiphon.core.reshape import keep, relabel
from antiphon.core.topology import Topology
from antiphon.cost.profile import Profile
from antiphon.errors import Invalid


@dataclass(frozen=True, slots=True)
class Port:
    """A cable from a card of a host to a switch, nodes of a network's machine; bytes per second each way."""

    host: int
    card: str
    switch: int
    speed: Fraction


@dataclass(frozen=True)
class Probed:
    """`names`: what every rank is called where it stands (GPU 3, or a host). `hosts`: each rank is a whole host."""

    machine: Topology
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    hosts: bool = False
    ports: tuple[Port, ...] = ()  # of hosts
    assumed: bool = False  # of a network: its speeds are in no file
    profile: Profile | None = None

    def only(self, ranks: list[int], note: str) -> Probed:
        """These ranks alone, in this order: rank 0 is the first. Switches without a remaining rank are removed."""
        kept_part = keep(self.machine, ranks)
        order = sorted(ranks)
        machine = kept_part.topology
        at = {rank: new for new, rank in enumerate(ranks)}
        if order != ranks:
            turn = [at[rank] for rank in order]
            machine = relabel(machine, [*turn, *range(machine.ranks, machine.nodes)])
        new = {old: at.get(old, number) for number, old in enumerate(kept_part.nodes)}
        ports = (
            replace(port, host=at[port.host], switch=new[port.switch])
            for port in self.ports if port.host in at and port.switch in new
        )  # fmt: skip
        return replace(
            self, machine=machine, notes=(*self.notes, note), names=tuple(self.names[rank] for rank in ranks),
            ports=tuple(ports),
        )  # fmt: skip


def ranks_named(probed: Probed, names: list[str], label: str) -> list[int]:
    """The ranks that have these names."""
    place = {name: rank for rank, name in enumerate(probed.names)}
    missing = [name for name in names if name not in place]
    if missing:
        available = ", ".join(probed.names[:8]) + (", ..." if len(probed.names) > 8 else "")
        raise Invalid(f"{label}: {missing[0][:60]!r} does not exist (available: {available})")
    return [place[name] for name in names]
