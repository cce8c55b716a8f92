"""What an entry of a table promises, and how it is held to it. `test_contract.py` goes through the tables.

A planner that declares a collective and a kind of machine must plan there: every schedule is verified, run on whole
numbers (so that every element must be exact), and compared with bounds. Where it declares nothing it may refuse, by
an `Unsupported` that names what would do. No model may predict less than the bounds.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import islice
from typing import Any

import igraph
import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import Collective
from antiphon.core.interpret import interpret
from antiphon.core.joints import joints_of
from antiphon.core.loads import pieces_of, pipelined_steps, timeline
from antiphon.core.request import Request
from antiphon.core.reshape import only
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.registry import Entry, call, table
from antiphon.topologies import topology

SIZES = (1, 2**30)  # bytes at which models are asked: latency, then bandwidth is all
CLOSE = 1 - 1e-9  # models add up floats
ONE_FORMULA = ("alpha-beta", "sccl")  # models whose cost does not grow with pieces
TOO_MANY = "transfers; at most"  # the refusal of what would not fit into memory
MANY = 64  # ranks up to which nothing may be too many

Members = tuple[int, ...]


# ---- machines ----


@cache
def machine(spec: str) -> Topology:
    """A machine by its name; behind " only " the ranks that are left of it."""
    name, _, kept = spec.partition(" only ")
    return only(topology(name), [int(r) for r in kept.split(",")]) if kept else topology(name)


def examples() -> dict[str, Entry]:
    """The machines that the catalogue gives as examples (an installed package need not give one)."""
    return {str(entry.can.example): entry for entry in table("topology").values() if entry.can.example}


def sizes_of_catalogue(counts: tuple[int, ...]) -> list[str]:
    """Every example, and whatever takes a number of ranks, boxes or nodes with each of these; what takes routers also
    with them. So a new family needs no more than its line in the table."""
    found: dict[str, None] = {}
    for spec, entry in examples().items():
        options = inspect.signature(entry.load()).parameters
        specs = [spec]
        for key in ("ranks", "boxes", "nodes"):
            if key in options:
                specs += [re.sub(rf"({key}=)\d+|dims=[\dx]+", f"{key}={count}", spec) for count in counts]
        if "routers" in options and options["routers"].default is False:
            specs += [f"{made},routers=true" for made in specs]
        found |= dict.fromkeys(made for made in specs if _exists(made))
    return list(found)


def _exists(spec: str) -> bool:
    """Whether a family has this size at all: hypercubes have powers of 2."""
    try:
        machine(spec)
    except Invalid as refusal:
        if re.search(r"ranks|boxes|nodes", str(refusal)):
            return False
        raise
    return True


# ---- what the phrases of `can.topologies` claim ----


def linked(here: Topology, members: Members) -> bool:
    """Every two members are linked directly or by a path through switches."""
    out: dict[int, list[int]] = {}
    for a, b in zip(here.link_src.tolist(), here.link_dst.tolist(), strict=True):
        out.setdefault(a, []).append(b)
    for source in members:
        seen, ahead = {source}, [source]
        while ahead:
            more = [b for b in out.get(ahead.pop(), ()) if b not in seen]
            seen.update(more)
            ahead += [b for b in more if b >= here.ranks]
        if not seen.issuperset(members):
            return False
    return True


def connected(here: Topology, members: Members) -> bool:
    """Every member reaches every other, also by way of ranks."""
    graph = igraph.Graph(here.nodes, list(zip(here.link_src.tolist(), here.link_dst.tolist(), strict=True)), True)
    part = graph.connected_components(mode="strong").membership
    return len({part[member] for member in members}) == 1


def circled(here: Topology, members: Members) -> bool:
    """A cycle of direct links through all members is found by trying, or switches join all members."""
    return bool(here.switches and linked(here, members)) or _cycle(here, members, 20_000)


def _cycle(here: Topology, members: Members, trials: int) -> bool:
    inside = set(members)
    out: dict[int, set[int]] = {member: set() for member in members}
    for a, b in zip(here.link_src.tolist(), here.link_dst.tolist(), strict=True):
        if a in inside and b in inside:
            out[a].add(b)
    path, used = [members[0]], {members[0]}
    ways: list[list[int]] = [sorted(out[members[0]])]
    while ways and trials:
        trials -= 1
        if len(path) == len(members) and path[0] in out[path[-1]]:
            return True
        if not ways[-1]:
            ways.pop()
            used.discard(path.pop())
            continue
        there = ways[-1].pop()
        if there not in used:
            path.append(there)
            used.add(there)
            ways.append(sorted(out[there] - used, key=lambda rank: -len(out[rank] - used)))  # few ways on come first
    return False


def levelled(here: Topology, members: Members) -> bool:
    """What "(clusters, tori)" stands for; and where all are joined, all levels are."""
    whole_torus = here.name.startswith("torus:") and len(members) == here.ranks
    return whole_torus or linked(here, members)


def grouped(here: Topology, members: Members) -> bool:
    """What "(clusters, tori)" stands for, where all take part; others may show groups, too."""
    torus = re.match(r"torus:dims=\d+x\d", here.name)
    boxes = re.match(r"cluster:box=(dgx|hgx|mi300x|full|star)\b.*,boxes=([2-9]|1\d)", here.name)
    return bool(torus or boxes) and len(members) == here.ranks


def treelike(here: Topology, members: Members) -> bool:
    """Members are the leaves of a tree of switches; or boxes that are joined inside stand on a fabric that is a tree,
    or one where switches side by side are taken as one."""
    boxes = re.match(r"cluster:box=(dgx-a100|hgx-h100|mi300x|dgx2|full|star)\b.*,fabric=(?!rail)", here.name)
    if boxes and len(members) == here.ranks:
        return True
    links = set(zip(here.link_src.tolist(), here.link_dst.tolist(), strict=True))
    graph = igraph.Graph(here.nodes, [(a, b) for a, b in links if a < b and (b, a) in links])
    part = graph.connected_components().membership
    leaves = all(graph.degree(rank) == 1 and graph.neighbors(rank)[0] >= here.ranks for rank in members)
    alone = len(graph.es) == here.nodes - (max(part) + 1) and 2 * len(graph.es) == here.links
    return leaves and alone and len({part[member] for member in members}) == 1


def in_one_switch(here: Topology, members: Members, through: bool = False) -> bool:
    """A switch that multicasts and reduces (and sends on what it combined) is linked to every member, both ways."""
    links = set(zip(here.link_src.tolist(), here.link_dst.tolist(), strict=True))
    able = (
        node for node in range(here.ranks, here.nodes) if here.ability(node).multicast and here.ability(node).reduce
    )
    return len(members) > 1 and any(
        all({(member, node), (node, member)} <= links for member in members)
        for node in able if here.ability(node).through or not through
    )  # fmt: skip


def in_boxes(here: Topology, members: Members) -> bool:
    """Boxes of a cluster, all taken whole, whose own switches multicast and reduce."""
    return here.name.startswith("cluster:box=hgx") and len(members) == here.ranks and "boxes=1," not in f"{here.name},"


HELPED = "any whose ranks are joined by switches that multicast and reduce (for broadcast, allgather: multicast)"
PHRASES: dict[str, Callable[[Topology, Members], bool]] = {
    "any where partners reach each other by a link or through switches, not through other ranks": linked,
    "any with a cycle of direct links through all ranks, or with switches that join all ranks": circled,
    "any where the rings of every level have links or paths through switches (clusters, tori)": levelled,
    "any connected one; data may pass through other ranks": connected,
    "any connected one, for collectives such as allreduce@rows": connected,
    "any with groups, by place or links, whose ranks reach each other within the group (clusters, tori)": grouped,
    "any connected one of up to 64 ranks": lambda here, members: connected(here, members) and len(members) <= 64,
    "any connected one; above 128 ranks it takes plans of quick planners instead of searching": connected,
    "any connected one of up to 512 ranks; 2048 with one root or a symmetric machine": lambda here, members: (
        connected(here, members) and len(members) <= 512  # more are not among the examples
    ),
    "any tree of switches with ranks as leaves, fat trees, and boxes on such a fabric": treelike,
    HELPED: in_one_switch,
    f"{HELPED.partition(' and')[0]}, reduce and forward what they reduced": partial(in_one_switch, through=True),
    "boxes, where switches in the boxes or among them multicast and reduce": in_boxes,
}


# ---- a collective on a machine, and what nothing can beat there ----


@dataclass(frozen=True)
class Setting:
    """A collective on a machine."""

    spec: str
    wanted: Collective

    def __str__(self) -> str:
        return f"{self.wanted!r} on {self.spec}"

    @property
    def machine(self) -> Topology:
        return machine(self.spec)

    @cached_property
    def bound(self) -> Bound:
        return bound(self.machine, self.wanted)

    @cached_property
    def latency(self) -> float:
        """Seconds that the farthest contribution is on its way, whatever way it takes."""
        here, wanted = self.machine, self.wanted
        links = list(zip(here.link_src.tolist(), here.link_dst.tolist(), strict=True))
        graph = igraph.Graph(here.nodes, links, True)
        each = np.array([kind.latency for kind in here.types])[here.link_type].tolist()
        sources = targets = list(wanted.members)
        if wanted.kind in ("broadcast", "scatter"):
            sources = list(wanted.roots)
        elif wanted.kind in ("reduce", "gather"):
            targets = list(wanted.roots)
        return float(np.max(graph.distances(sources, targets, weights=each, mode="out")))

    def least(self, nbytes: int) -> float:
        """No schedule takes less: seconds by the exact bounds."""
        return max(self.latency, float(self.bound.seconds(nbytes)))

    @cached_property
    def one_latency(self) -> bool:
        """All routes there can be have one latency: direct links alone, all alike."""
        here = self.machine
        return not here.switches and len({here.types[i].latency for i in set(here.link_type.tolist())}) == 1

    def claimed_by(self, entry: Entry) -> bool:
        """Whether the planner declares that it can. Of a phrase that is not known here nothing is expected."""
        says = PHRASES.get(str(entry.can.topologies), lambda *_: False)
        return self.wanted.kind in entry.can.collectives and says(self.machine, self.wanted.members)


def setting(spec: str, kind: str, root: int | None = None, members: Members = ()) -> Setting:
    roots = () if root is None or kind not in ("broadcast", "reduce", "scatter", "gather") else (root,)
    return Setting(spec, Collective(kind, machine(spec).ranks, members, roots))


# ---- the data, and what must come of it ----


def inputs_of(wanted: Collective, unit: int) -> list[NDArray[Any] | None]:
    """Random whole numbers, all bits in use: sums wrap around, and are exact."""
    random = np.random.default_rng(unit)
    length = unit * (len(wanted.members) if wanted.kind in ("scatter", "reducescatter", "alltoall") else 1)
    holders = wanted.roots if wanted.kind in ("broadcast", "scatter") else wanted.members
    given: list[NDArray[Any] | None] = [None] * wanted.ranks
    for rank in holders:
        given[rank] = random.integers(-(2**63), 2**63, length)
    return given


def outcome(wanted: Collective, given: list[NDArray[Any] | None], unit: int) -> dict[int, NDArray[Any]]:
    """By the textbook: what every rank must end with that ends with anything."""
    members, kind = wanted.members, wanted.kind
    there = np.stack([array for array in given if array is not None])  # in the order of ranks
    if kind in ("broadcast", "scatter"):
        parts = there[0].reshape(-1, unit) if kind == "scatter" else np.tile(there[0], (len(members), 1))
        return dict(zip(members, parts, strict=True))
    if kind in ("reduce", "gather"):
        return {wanted.roots[0]: there.sum(axis=0) if kind == "reduce" else there.ravel()}
    if kind in ("allreduce", "allgather"):
        every = there.sum(axis=0) if kind == "allreduce" else there.ravel()
        return dict.fromkeys(members, every)
    blocks = there.reshape(len(members), len(members), unit)  # sender, receiver
    if kind == "reducescatter":
        return dict(zip(members, blocks.sum(axis=0), strict=True))
    return {member: blocks[:, i].ravel() for i, member in enumerate(members)}


def misrun(schedule: Schedule, unit: int = 0) -> str | None:
    """Run on random whole numbers; says which rank ends with something else than it must."""
    wanted = schedule.collective
    unit = unit or 2 * int(np.bincount(schedule.chunks.block).max()) + 1  # no chunk empty, and not all alike
    given = inputs_of(wanted, unit)
    right = outcome(wanted, given, unit)
    for rank, array in enumerate(interpret(schedule, given)):
        if not np.array_equal(array, right.get(rank, array[:0])):
            return f"run with {unit} elements a block, rank {rank} ends with wrong data"
    return None


# ---- planners ----


# what the phrases of models claim; boxes by name, as figures of what a call costs are known by generation
BOXES = {"dgx1v", "dgx2", "dgx-a100", "hgx-h100", "hgx-h200", "hgx-b200", "mi300x"}
PRICED: dict[str, Callable[[Setting], bool]] = {
    "all": lambda at: True,
    "one latency": lambda at: at.one_latency,
    "known GPUs": lambda at: at.machine.name in BOXES,
    "one node": lambda at: at.machine.name in BOXES,
}


@dataclass
class Judge:
    """Holds planners to what they declare. `variants`: how many schedules of one call are looked at, `expanding`: how
    many transfers with all pieces a model may be asked for whose cost grows with them. `turns`: of how many models one
    prices a schedule, another the next."""

    models: Mapping[str, Entry]
    variants: int | None = None
    expanding: int = 2**11
    unit: int = 0
    turns: int = 1
    priced: int = 0

    def faults(self, at: Setting, name: str, entry: Entry, sweep: Iterable[Mapping[str, Any]] = ({},)) -> Iterator[str]:
        """All that is wrong with what the planner does here with these options, a line each."""
        right: set[int] = set()  # rows that were verified and run already: pieces change none
        for options in sweep:
            told = f"{name} {dict(options)}, {at}: "
            count = 0
            try:
                made = call("planner", name, entry.load(), options, Request(at.machine, at.wanted, seed=1))
                for schedule in islice(made, 1 if solves(entry) else self.variants):
                    count += 1
                    yield from (told + fault for fault in self._wrong(at, name, schedule, right))
                if not count:
                    yield told + "yields nothing"
            except Unsupported as refusal:
                yield from (told + fault for fault in self._refused(at, name, entry, str(refusal), count))
            except Exception as error:
                yield f"{told}{type(error).__name__}: {error}"

    def _wrong(self, at: Setting, name: str, schedule: Schedule, right: set[int]) -> Iterator[str]:
        if schedule.collective != at.wanted:
            yield f"is for another collective, {schedule.collective!r}"
            return
        if schedule.provenance.get("planner") != name:
            yield f"says it is by {schedule.provenance.get('planner')!r}"
        rows = rows_of(schedule)
        if rows not in right:
            fault = verify(schedule, at.machine).fault
            if fault is not None:
                yield f"is wrong: {fault}"
                return
            wrong = misrun(schedule, self.unit)
            if wrong is not None:
                yield wrong
                return
            right.add(rows)
        gap = timeline(schedule, at.machine).total * (at.bound.bytes_per_second or 0)
        if gap < 1:
            yield f"beats the bandwidth bound: its gap is {float(gap)}"
        if pipelined_steps(schedule) < at.bound.latency_steps:
            yield f"takes {pipelined_steps(schedule)} steps, and at least {at.bound.latency_steps} are needed"
        yield from self._too_soon(at, schedule)

    def _too_soon(self, at: Setting, schedule: Schedule) -> Iterator[str]:
        """Predictions below the bound."""
        large = int(pieces_of(schedule)[schedule.chunk].sum()) > self.expanding
        self.priced += 1
        for number, (model, entry) in enumerate(self.models.items()):
            if (number + self.priced) % self.turns or (large and model not in ONE_FORMULA):
                continue
            try:
                predict = call("model", model, entry.load(), {}, schedule, at.machine)
            except Unsupported as refusal:
                prices = joints_of(schedule) is None or entry.can.in_switches
                if prices and PRICED[str(entry.can.topologies)](at):
                    yield f"model {model} refuses it: {refusal}"
                continue
            if joints_of(schedule) is not None and not entry.can.in_switches:
                yield f"model {model} prices what it does not declare: joints"
            for nbytes in SIZES:
                seconds = predict(nbytes).seconds
                if not (math.isfinite(seconds) and seconds >= at.least(nbytes) * CLOSE):
                    yield f"model {model} predicts {seconds} s for {nbytes} bytes; the bound is {at.least(nbytes)} s"

    def _refused(self, at: Setting, name: str, entry: Entry, refusal: str, count: int) -> Iterator[str]:
        """What is wrong with a refusal: it was claimed, comes late, or leaves the user without advice."""
        too_many = TOO_MANY in refusal and len(at.wanted.members) > MANY
        if at.claimed_by(entry) and not too_many:
            yield f"refuses what it claims: {refusal}"
        if count:
            yield f"refuses after {count} schedules: {refusal}"
        if not refusal.startswith(f"planner {name}") or "\n" in refusal:
            yield f"refuses without saying in one line who does: {refusal}"
        advice = re.findall(r"[a-z][a-z0-9-]*", refusal.rpartition(";")[2])
        others = [word for word in advice if word in table("planner") and word != name]
        if not any(plans(at, other) for other in others):
            yield f"refuses, and of what it names ({', '.join(others) or 'nothing'}) none would do: {refusal}"


@cache
def plans(at: Setting, planner: str) -> bool:
    """Whether this planner does plan here."""
    entry = table("planner")[planner]
    if at.wanted.kind not in entry.can.collectives:
        return False
    try:
        return next(iter(entry.load()(Request(at.machine, at.wanted))), None) is not None
    except Unsupported:
        return False


def rows_of(schedule: Schedule) -> int:
    """Tells apart schedules whose rows, chunks or routes differ."""
    columns = (*schedule.columns().values(), schedule.chunks.block, schedule.chunks.offset, schedule.chunks.share)
    routes = (schedule.routes.ptr, schedule.routes.links)
    return hash(tuple(column.tobytes() for column in (*columns, *routes)))


def sweep_of(entry: Entry, how: str) -> list[Mapping[str, Any]]:
    """Of the options that a planner declares worth trying: the "defaults", "all", or "most", which is all but those
    that are depths of pipelining alone, of which it is the last."""
    sweep: list[Mapping[str, Any]] = list(entry.can.sweep)
    depths = [options for options in sweep if set(options) == {"pieces"}]
    return {"defaults": [{}], "most": [o for o in sweep if o not in depths[:-1]], "all": sweep}[how]


def solves(entry: Entry) -> bool:
    """Whether the planner works in solvers: it goes on for as long as one lets it, so only its first is looked at."""
    return bool(entry.can.process)


def able(kind: str) -> list[tuple[str, Entry]]:
    """The planners that declare this collective."""
    return [(name, entry) for name, entry in table("planner").items() if kind in entry.can.collectives]
