"""The result of reading what a probing tool reports: a machine, assumptions about it, names of ranks and cards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from antiphon.core.reshape import keep, relabel
from antiphon.core.topology import Topology
from antiphon.cost.profile import Profile
from antiphon.errors import Invalid, list_first


@dataclass(frozen=True, slots=True)
class Port:
    """A cable from a network card of a host to a switch."""

    host: int  # node of the machine; in a `Net`, the index in its list of hosts
    card: str  # its name, unique within the host
    switch: int  # node of the machine; while a network is read (`Net` in net.py), the index in its list of switches
    speed: Fraction  # bytes per second each way


@dataclass(frozen=True)
class Probed:
    """A machine as a tool reports it, with notes beside the machine itself."""

    machine: Topology
    notes: tuple[str, ...] = ()  # assumptions, in words
    names: tuple[str, ...] = ()  # per rank its name in the tool's output: GPU 3, or a host; (): it has none
    hosts: bool = False  # whether each rank is a whole host
    ports: tuple[Port, ...] = ()  # of hosts
    assumed: bool = False  # whether the speeds of a network are in no file, but assumed
    profile: Profile | None = None  # measured figures, if the tool reports any

    def only(self, ranks: list[int], note: str) -> Probed:
        """Return the machine of these ranks, numbered in this order. Switches without a remaining rank are removed."""
        restriction = keep(self.machine, ranks)  # numbers ranks in ascending order
        ascending = sorted(ranks)
        machine = restriction.topology
        new_rank = {rank: new for new, rank in enumerate(ranks)}
        if ascending != ranks:
            new_numbers = [new_rank[rank] for rank in ascending]
            machine = relabel(machine, [*new_numbers, *range(machine.ranks, machine.nodes)])
        # `restriction.nodes`: the old number of each node that is left, ascending; only ranks were reordered since
        new_node = {old: new_rank.get(old, number) for number, old in enumerate(restriction.nodes)}
        ports = (
            replace(port, host=new_rank[port.host], switch=new_node[port.switch])
            for port in self.ports if port.host in new_rank and port.switch in new_node
        )  # fmt: skip
        return replace(
            self, machine=machine, notes=(*self.notes, note), ports=tuple(ports),
            names=tuple(self.names[rank] for rank in ranks) if self.names else (),
        )  # fmt: skip


def ranks_named(probed: Probed, names: list[str], label: str) -> list[int]:
    """Return the ranks with these names, in order. Raises Invalid, beginning with `label`, if a name is missing."""
    rank_of = {name: rank for rank, name in enumerate(probed.names)}
    missing = [name for name in names if name not in rank_of]
    if missing:
        raise Invalid(f"{label}: {missing[0][:60]!r} does not exist (available: {list_first(probed.names)})")
    return [rank_of[name] for name in names]
