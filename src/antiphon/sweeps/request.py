"""Read the file of a sweep (TOML), and list its cells: one for every machine and collective.

    collectives = ["allreduce", "alltoall"]
    nbytes = "1MB:1GB:10"                    # as for tune
    planners = ["compose", "flows"]          # left out: every planner that can plan it
    model = "alpha-beta"                     # left out: the usual one of each machine

    [[machines]]
    topology = "cluster:box=hgx-h100"
    vary = { boxes = [2, 4], fabric = ["switch", "fat-tree"] }   # every combination: four machines

    [[machines]]
    topology = "dgx1v"
    price = 150000                           # of the whole machine, under every price list

    [[prices]]                               # price lists: the sum over what a machine consists of
    name = "list"
    rank = 30000
    switch = 8000
    links = { nvlink = 50, ib = 400 }        # by kind; a link in both directions counts once
    bandwidth = { ib = 12 }                  # in addition, for each GB/s of these links

A combination of options that makes no machine is refused with the reason, and the others go on.
"""

from __future__ import annotations

import itertools
import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from antiphon.core.collective import KINDS, ROOTED, kind_named
from antiphon.core.files import read_bytes, within
from antiphon.core.jsontext import conversion_fault
from antiphon.core.request import effort_of
from antiphon.core.topology import LinkType, Topology
from antiphon.cost import as_profile, model_of
from antiphon.errors import AntiphonError, Invalid, quote, unknown, warn_unlikely
from antiphon.registry import find
from antiphon.select.family import replace_option
from antiphon.select.parse_request import budget_of, is_file, machine_of, sizes_of
from antiphon.select.parse_request import collective as collective_of
from antiphon.select.store import Answer, Question, answer

MAX_MACHINES = 100_000  # of one sweep, so that its list fits memory and one folder
MAX_FILE_BYTES = 2**24
Value = int | float | str | bool
Price = Annotated[float, msgspec.Meta(ge=0, lt=1e18)]
# columns of the table beside those of the price lists
COLUMNS = ["machine", "ranks", "collective", "nbytes", "planner", "seconds", "gap", "library_seconds"]
REFUSED = "refused"  # the last column


class MachineEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One machine, or a family of machines by the values of some options."""

    topology: str
    vary: dict[str, list[Value]] = {}
    price: Price | None = None


class PriceList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the parts of a machine cost, in any unit."""

    name: str = ""
    rank: Price = 0.0
    switch: Price = 0.0
    links: dict[str, Price] = {}
    bandwidth: dict[str, Price] = {}  # per GB/s

    def price_of(self, machine: Topology) -> float:
        """Return the sum over ranks, switches and links; kinds of links that are not listed cost nothing."""
        # a link of the topology is one direction: both directions of a cable together have its price
        counts = Counter(machine.link_type.tolist())
        links = sum(self._price_of_link(machine.types[number]) * count / 2 for number, count in sorted(counts.items()))
        return machine.ranks * self.rank + machine.switches * self.switch + links

    def _price_of_link(self, link_type: LinkType) -> float:
        per_gigabyte = self.bandwidth.get(link_type.kind, 0.0)
        return self.links.get(link_type.kind, 0.0) + per_gigabyte * float(link_type.bandwidth) / 1e9


class SweepFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file, as it is written."""

    collectives: list[str] | str
    machines: list[MachineEntry]
    nbytes: str | list[int | str] = "1KB:1GB"
    planners: list[str] = []
    model: str = ""
    profile: str | None = None
    effort: float = 5.0
    budget: float | str = 60.0
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    prices: list[PriceList] = []


@dataclass(frozen=True, eq=False)
class Cell:
    """One machine and one collective, at all sizes. `refused`: why there is nothing to plan, "" if there is."""

    machine: str
    collective: str
    question: Question | None
    refused: str = ""


def plan_cell(question: Question, budget: float) -> Answer:
    """Plan one cell in this process. `budget`: CPU seconds of a planner."""
    planned = answer(question, budget=budget, workers="none")  # no worker processes: this may be one already
    if not planned.complete:  # Ctrl-C ends the sweep, not only this cell
        raise KeyboardInterrupt
    return planned


@dataclass(frozen=True, eq=False)
class SweepRequest:
    """A sweep that was read: cells in the order of the file, and the price of each machine by price list."""

    cells: tuple[Cell, ...]
    sizes: tuple[int, ...]
    prices: Mapping[str, Mapping[str, float | None]]  # name of the list -> machine -> price
    budget: float  # CPU seconds of a planner, as for tune
    ranks: Mapping[str, int] = field(default_factory=dict)  # machine -> number of ranks


def read_sweep_file(path: str | os.PathLike[str]) -> SweepRequest:
    """Read a file; every fault is one line that names the place."""
    with within(os.fspath(path)):
        try:
            values = tomllib.loads(read_bytes(path, MAX_FILE_BYTES).decode())
            return sweep_request(msgspec.convert(values, SweepFile))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid(f"is not TOML: {error}") from None
        except msgspec.ValidationError as error:
            raise Invalid(conversion_fault(str(error), SweepFile)) from None


def sweep_request(file: SweepFile) -> SweepRequest:
    """Make every machine, and list the cells."""
    collectives = [file.collectives] if isinstance(file.collectives, str) else file.collectives
    if not collectives or not file.machines:
        raise Invalid("name at least one collective, and one machine under [[machines]]")
    # what is wrong for every machine is an error now, and no reason why each has no plan
    for planner in file.planners:
        find("planner", planner)  # raises for an unknown one
    if file.model:
        model_of(file.model)  # likewise
    effort, budget = effort_of(file.effort), budget_of(file.budget)
    targets = [_read_collective(text) for text in collectives]
    if len(set(targets)) < len(targets):
        raise Invalid("collectives: one is listed twice")
    _, sizes = sizes_of(file.nbytes)
    profile = None if file.profile is None else as_profile(file.profile)
    # the same options as of `api.sweeping.tune`, so that its answers serve a sweep, and those of a sweep serve it
    search = {"planners": tuple(file.planners), "effort": effort, "seed": file.seed, "deterministic": False}
    # without price lists, the prices of single machines make one
    lists = file.prices or ([PriceList("price")] if any(m.price is not None for m in file.machines) else [])
    names = [prices.name or f"price {i + 1}" for i, prices in enumerate(lists)]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise Invalid(f"prices: two lists are named {quote(repeated)}; give each a name of its own")
    for name in set(names) & {*COLUMNS, REFUSED}:
        raise Invalid(f"prices: {name} is another column of the table; choose another name")
    cells: list[Cell] = []
    priced: dict[str, dict[str, float | None]] = {name: {} for name in names}
    ranks: dict[str, int] = {}
    listed: set[str] = set()
    link_kinds: set[str] = set()
    for spec, entry in _specs(file.machines):
        if spec in listed:
            raise Invalid(f"machines: {spec} is listed twice")
        listed.add(spec)
        machine, why = _make_machine(spec)
        if machine is not None:
            ranks[spec] = machine.ranks
            link_kinds |= {link_type.kind for link_type in machine.types}
        for name, prices in zip(names, lists, strict=True):
            computed = None if machine is None or not file.prices else prices.price_of(machine)
            priced[name][spec] = entry.price if entry.price is not None else computed
        for text, (kind, root) in zip(collectives, targets, strict=True):
            if machine is None:
                cells.append(Cell(spec, text, question=None, refused=why))
                continue
            try:
                target = collective_of(kind, machine, root=root)
                cells.append(Cell(spec, text, Question(machine, target, sizes, file.model, profile, search)))
            except AntiphonError as error:  # such as a root that a small machine lacks
                cells.append(Cell(spec, text, question=None, refused=str(error)))
    # only a warning, as a price list may serve several sweeps
    for kind in (
        sorted({k for prices in lists for k in (*prices.links, *prices.bandwidth)} - link_kinds) if ranks else ()
    ):
        warn_unlikely(f"prices: no machine has links of kind {kind}, only {', '.join(sorted(link_kinds))}")
    return SweepRequest(tuple(cells), sizes, priced, budget, ranks)


def _read_collective(text: str) -> tuple[str, int | None]:
    """Return the kind (or path) and the root of a collective as in the file, "allreduce" or "broadcast:root=2"."""
    name, _, tail = text.partition(":root=")
    kind = kind_named(name)
    if kind is None and (is_file(text) or "@" in text):  # "@": groups, which depend on the machine
        return text, None
    if kind is None:
        raise unknown("collective", name, KINDS)
    if tail and kind not in ROOTED:
        raise Invalid(f"collectives: {kind} has no root; leave it out")
    if tail and not tail.isdecimal():
        raise Invalid(f"collectives: expected a name such as allreduce or broadcast:root=2, got {quote(text)}")
    return kind, int(tail) if tail else None


def _specs(entries: list[MachineEntry]) -> Iterator[tuple[str, MachineEntry]]:
    """Yield the specs of all machines ("cluster:box=hgx-h100,boxes=2"), one for every combination of the options that
    vary, each with its entry of the file.
    """
    total = 0
    for entry in entries:
        combinations = 1
        for key, values in entry.vary.items():
            if not values:
                raise Invalid(f"machines: vary {key} of {entry.topology} has no values")
            combinations *= len(values)
        total += combinations
        if total > MAX_MACHINES:
            raise Invalid(f"machines: more than {MAX_MACHINES}; split the sweep")
        for option_values in itertools.product(*entry.vary.values()):
            spec = entry.topology
            for key, value in zip(entry.vary, option_values, strict=True):
                spec = replace_option(spec, key, value)
            yield spec, entry


def _make_machine(spec: str) -> tuple[Topology | None, str]:
    """Return the machine, or None and the reason why the spec makes none."""
    try:
        return machine_of(spec), ""
    except AntiphonError as error:
        return None, str(error)
