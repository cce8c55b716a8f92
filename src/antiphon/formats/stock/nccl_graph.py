"""Write the rings and chains of a plan as an NCCL graph file, for `antiphon export --to nccl-graph`.

NCCL reads the file named by NCCL_GRAPH_FILE instead of searching for rings and trees. Each `<channel>` in it lists the
GPUs in the order of a ring or chain; NCCL spreads the data evenly over the channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from antiphon.core.plan import Plan
from antiphon.core.routes import resolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology, hosts
from antiphon.errors import Invalid, NotFound, Unsupported, quote
from antiphon.formats.files import Files
from antiphon.formats.stock.circles import CHAIN, RING, CircleOrder, find_orders
from antiphon.formats.stock.ranges import first_plan, planner_of
from antiphon.options import parse_yes

FILE = "nccl-graph.xml"
# MAXCHANNELS of NCCL up to 2.24; it is 64 from 2.25 on, but NCCL doubles the channels of a graph
MAX_GRAPH_CHANNELS = 32
UNPROVEN = "that NCCL is faster by these than by its own is not predicted: measure both"
LINKS = ("NVL", "PIX", "PXB", "PHB", "SYS")  # NCCL's names of connections between GPUs, the nearest first
# NCCL's numbers (id of the graph, pattern): rings; trees, which are chains within a box
GRAPHS = {RING: (0, 4), CHAIN: (1, 3)}


def nccl_graph(plans: Mapping[str, Plan], *, copies: int = 1, link: str = "", partial: bool = False) -> Files[str]:
    """Write one NCCL graph file: a channel for each ring, more for a ring with a larger share of the data.

    NCCL has one set of rings and one of trees for all collectives and sizes, and within a box its trees are chains: so
    every entry of every plan must follow the same rings or the same chains.

    Parameters
    ----------
    partial
        Omit entries that follow others.
    copies
        Number of copies of every channel.
    link
        NVL, PIX, PXB, PHB or SYS: the connection of the GPUs. Default: NVL if all links used are NVLinks, else PHB.
    """
    machine = first_plan(plans).topology
    partial = parse_yes(partial, "option partial")
    if isinstance(copies, bool) or not isinstance(copies, int) or not 1 <= copies <= MAX_GRAPH_CHANNELS:
        raise Invalid(f"copies: expected a whole number from 1 to {MAX_GRAPH_CHANNELS}, got {quote(copies)}")
    if link and link not in LINKS:
        raise Invalid(f"link: expected {', '.join(LINKS)}, got {quote(link)}")
    if len(set(hosts(machine))) > 1:
        raise Unsupported(
            f"nccl-graph: {machine.name} has {len(set(hosts(machine)))} hosts; a graph file says the orders within one "
            "(plan for one of them)"
        )
    # RING, CHAIN -> the first entry with that form: its label, schedule and orders
    by_form: dict[str, tuple[str, Schedule, list[CircleOrder]]] = {}
    library_ranges = 0
    for kind, plan in plans.items():
        if len(plan.collective.members) != machine.ranks:
            raise Unsupported(
                f"nccl-graph: the plan is for {len(plan.collective.members)} of {machine.ranks} ranks, and the file "
                "numbers GPUs as ranks; plan for all GPUs of the host"
            )
        for entry in plan.entries:
            if entry.served_by:
                library_ranges += 1
                continue
            label = f"{kind} by {planner_of(entry) or 'a schedule'} from {entry.start} bytes on"
            try:
                entry_orders = _orders_of(entry.schedule)
            except Unsupported as error:
                if partial:
                    continue
                raise Unsupported(
                    f"nccl-graph: {label}: {error}; NCCL takes rings, and trees that are chains (option partial=yes "
                    "leaves out what is neither)"
                ) from None
            form = entry_orders[0].form
            # The first entry sets the rings (or chains); all others must have the same.
            first_label, _, first_orders = by_form.setdefault(form, (label, entry.schedule, entry_orders))
            if [(order.ranks, order.share) for order in first_orders] != [
                (order.ranks, order.share) for order in entry_orders
            ]:
                raise Unsupported(f"nccl-graph: {label} has other {form}s than {first_label}; NCCL has one set for all")
    if not by_form and library_ranges:
        raise NotFound("nccl-graph: NCCL's own choice is as good: nothing to write")
    if not by_form:
        raise Unsupported("nccl-graph: nothing in this table goes along rings or chains")
    lines = ['<graphs version="1">']
    for form in sorted(by_form, key=lambda form: GRAPHS[form]):
        _, schedule, form_orders = by_form[form]
        lines += _graph_lines(machine, schedule, form_orders, copies, link)
    notes = [f"left to NCCL: {library_ranges} ranges: ours is not faster"] if library_ranges else []
    return Files({FILE: "\n".join([*lines, "</graphs>"]) + "\n"}, [*notes, UNPROVEN])


def _orders_of(schedule: Schedule) -> list[CircleOrder]:
    """Return the rings, or the chains, of a schedule; raise Unsupported if it has both, or neither."""
    if schedule.joint is not None:
        raise Unsupported("lets switches multicast or combine")
    entry_orders = find_orders(schedule)
    if len({order.form for order in entry_orders}) > 1:
        raise Unsupported("goes along rings and along chains at once")
    return entry_orders


def _graph_lines(
    machine: Topology, schedule: Schedule, entry_orders: Sequence[CircleOrder], copies: int, link: str
) -> list[str]:
    """Return the XML of one graph: `copies` channels, or more in proportion to its share, for each order."""
    number, pattern = GRAPHS[entry_orders[0].form]  # all orders of an entry have one form
    # Numbers of channels in proportion to the shares, in lowest terms, times `copies`.
    common_denominator = math.lcm(*(order.share.denominator for order in entry_orders))
    shares = [int(order.share * common_denominator) for order in entry_orders]
    counts = [copies * share // math.gcd(*shares) for share in shares]
    if sum(counts) > MAX_GRAPH_CHANNELS:
        raise Unsupported(
            f"nccl-graph: the {entry_orders[0].form}s have parts of the data that need {sum(counts)} channels, and "
            f"there are {MAX_GRAPH_CHANNELS} at most"
        )
    speed, nvlink = _channel_speed(machine, schedule, entry_orders, counts)
    kind = link or ("NVL" if nvlink else "PHB")
    # the attributes ...inter and crossnic are about networks, which a graph within one box does not use
    attributes = {
        "id": number, "pattern": pattern, "crossnic": 0, "nchannels": sum(counts), "speedintra": speed,
        "speedinter": speed, "latencyinter": 0, "typeintra": kind, "typeinter": "PIX",
        "samechannels": int(len(entry_orders) == 1),
    }  # fmt: skip
    lines = [" ".join(["  <graph", *(f'{key}="{value}"' for key, value in attributes.items())]) + ">"]
    for order, count in zip(entry_orders, counts, strict=True):
        gpus = [f'      <gpu dev="{rank:#x}" rank="{rank}"/>' for rank in order.ranks]
        lines += ["    <channel>", *gpus, "    </channel>"] * count
    return [*lines, "  </graph>"]


def _channel_speed(
    machine: Topology, schedule: Schedule, entry_orders: Sequence[CircleOrder], counts: Sequence[int]
) -> tuple[str, bool]:
    """Return the GB/s of every channel when all are in use, and whether all links used are NVLinks."""
    # `route`: per row of the schedule the number of its route; `table`: by that number the links of the route
    resolved = resolve(machine, schedule.src, schedule.dst, schedule.route, schedule.routes)
    resources = machine.resources
    # Channels per resource: a channel gets an equal share of the slowest resource. (order.rows: the schedule's rows
    # that move the data of an order.)
    load: dict[int, int] = {}
    kinds: set[str] = set()
    for order, count in zip(entry_orders, counts, strict=True):
        rows = np.array(order.rows)
        for route in np.unique(resolved.route[rows]).tolist():
            for link in resolved.table[route]:
                kinds.add(machine.types[int(machine.link_type[link])].kind)
                for resource in (link, *resources.limits_of(link)):
                    load[resource] = load.get(resource, 0) + count
    slowest = min(resources.bytes_per_second(resource) / channels for resource, channels in load.items())
    return f"{float(slowest) / 1e9:.4g}", all(kind.startswith("nvlink") for kind in kinds)
