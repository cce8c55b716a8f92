"""`--as nccl`: what NCCL (RCCL) would do on a machine at each size, what that takes, and what the figure rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.interpret import busbw_factor
from antiphon.core.topology import Topology
from antiphon.cost.nccl.calls import Calls, shipped_calls
from antiphon.cost.nccl.choice import ALGORITHMS, COLLNET, PAT, SENDS, Costs, Priced, prices
from antiphon.cost.nccl.place import Place, by_name, gpu_of, network_of, place_of
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.options import parse_options
from antiphon.units import format_seconds

LIBRARIES = ("nccl", "rccl")
OPTIONS = ("gpu", "network", "processes", "algorithm")
PROCESSES = ("each", "one")  # a process for each GPU, or one for all of a node
NO_TABLE = (COLLNET, PAT, SENDS)  # ways that no table of part fit has in it
EXAMPLE = "nccl:gpu=h100,network=ib"


@dataclass(frozen=True)
class Library:
    """A library on a machine: `at` tells its choice at a size."""

    name: str
    place: Place
    costs: Costs
    algorithms: Sequence[str] = ALGORITHMS

    def at(self, collective: str, nbytes: int) -> list[Priced]:
        """All that it could do, its choice first."""
        return prices(self.place, self.costs, collective, nbytes, self.algorithms)

    def basis(self, collective: str, algorithm: str) -> str:
        """Whether a figure is calibrated, and by which tables: as it stands in the line of the figure."""
        return self.costs.basis() + self._beyond(collective, algorithm)

    def brief(self, collective: str, nbytes: int) -> str:
        """The same of its choice at a size, without the names of the tables."""
        return self.costs.brief() + self._beyond(collective, self.at(collective, nbytes)[0].algorithm)

    def _beyond(self, collective: str, algorithm: str) -> str:
        if algorithm in NO_TABLE:
            return f"; {algorithm} not calibrated"
        return "" if collective == "allreduce" else f"; {collective} by the figures of allreduce"

    def rows(self, collective: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
        """A row per size: nbytes, seconds, algbw, busbw, algorithm, protocol, terms, limit, why, calibrated, others."""
        factor = busbw_factor(Collective(collective, self.place.ranks))
        found = []
        for nbytes in sizes:
            best, *rest = self.at(collective, nbytes)
            algbw = nbytes / best.seconds if best.seconds else 0.0
            found.append(
                {
                    "nbytes": nbytes,
                    "seconds": best.seconds,
                    "algbw": algbw,
                    "busbw": algbw * factor,
                    "algorithm": best.algorithm,
                    "protocol": best.protocol,
                    "terms": dict(best.terms),
                    "limit": best.limit,
                    "why": why(best, rest),
                    "calibrated": self.basis(collective, best.algorithm),
                    "others": {one.name: one.seconds for one in rest},
                }
            )
        return found


def why(best: Priced, rest: Sequence[Priced]) -> str:
    """What it gains on the next best way, and what it waits for most."""
    term = max(best.terms, key=lambda name: best.terms[name])
    most = f"its {best.limit}" if term == "bytes" else {"hops": "hops", "network": "hops between nodes"}.get(term, term)
    if not rest:
        return f"the only way; mostly {most}"
    other = next((one for one in rest if one.algorithm != best.algorithm), rest[0])
    return f"{other.name} would take {format_seconds(other.seconds)}; mostly {most}"


def library(asked: str, machine: Topology) -> Library:
    """The library that `asked` names on this machine: nccl or rccl, behind a colon gpu=, network=, processes=,
    algorithm=. Unsupported where no figures are known of its GPUs or its network, and none are named."""
    name, _, behind = asked.partition(":")
    if name not in LIBRARIES:
        raise Invalid(f"library {quote(name)}: expected {' or '.join(LIBRARIES)}, such as {EXAMPLE}")
    told = parse_options(behind.split(",") if behind else (), f"library {quote(asked)}", EXAMPLE)
    for key in told:
        if key not in OPTIONS:
            raise Invalid(f"library {name}: has no option {quote(key)}; it has {', '.join(OPTIONS)}")
    found = library_here(machine, **told)
    if found.name != name:
        figures = found.costs.gpu.name
        raise Unsupported(f"library {name}: the figures of {figures} are of {found.name.upper()}; ask for {found.name}")
    return found


def library_here(
    machine: Topology, *, gpu: str = "", network: str = "", processes: str = PROCESSES[0], algorithm: str = ""
) -> Library:
    """The library that the figures of this machine are of."""
    place, figures = place_of(machine), _gpu(machine, gpu)
    between = _network(machine, place, figures, network)
    if processes not in PROCESSES:
        raise Invalid(f"processes={quote(processes)}: expected {' or '.join(PROCESSES)}")
    if algorithm and algorithm not in ALGORITHMS:
        raise Invalid(f"algorithm={quote(algorithm)}: expected one of {', '.join(ALGORITHMS)}")
    costs = Costs(figures, between, processes == PROCESSES[1])
    return Library(figures.library.lower(), place, costs, (algorithm,) if algorithm else ALGORITHMS)


def _gpu(machine: Topology, asked: str) -> Calls:
    known = shipped_calls()
    if asked:
        return by_name(asked, known, "gpu", boxes=True)
    found = gpu_of(machine.name, known)
    if found is None:
        able = ", ".join(name for name, calls in known.items() if calls.boxes)
        raise Unsupported(
            f"topology {machine.name}: no figures are known of its GPUs; name a generation by gpu= (figures of {able})"
        )
    return found


def _network(machine: Topology, place: Place, gpu: Calls, asked: str) -> Calls | None:
    known = shipped_calls()
    if asked:
        return by_name(asked, known, "network", boxes=False)
    if place.nodes == 1:
        return None
    found = network_of(place, gpu.name, known)
    if found is None:
        able = ", ".join(name for name, calls in known.items() if not calls.boxes)
        raise Unsupported(
            f"topology {machine.name}: no figures are known of a network of {' and '.join(place.kinds)} links; name "
            f"one by network= (figures of {able})"
        )
    return found
