"""An execution plan of MSCCL++, of either generation, whoever wrote it: the machine that it was written for.

A plan says who reaches whom, and by what: memory channels (`sm` before) join GPUs whose memory is mapped, switch
channels (`nvls`) a group on NVSwitches that multicast and reduce, port channels (`proxy`) anything that a proxy serves.
What memory and switch channels join is drawn as a box; ports between boxes as a network card each. Links that the plan
does not use are not seen, and no speed is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Annotated

import msgspec

from antiphon.core.files import read_bytes
from antiphon.core.jsontext import decode
from antiphon.core.topology import FORWARDS, Ability, Link, LinkType, both_ways, build
from antiphon.errors import Invalid, quote
from antiphon.formats.probe.box import MOST_GPUS, root, unite
from antiphon.formats.probe.found import Probed
from antiphon.topologies.links import GB, IB_HOP, NVLINK, NVLINK_LATENCY, NVSWITCH_HOP
from antiphon.topologies.nvswitch import NVLS
from antiphon.topologies.options import Bandwidth
from antiphon.units import format_bandwidth, parse_bandwidth

MOST_BYTES = 2**30
CARD = Fraction(50 * GB)  # of 400 Gbit/s, assumed
MEMORY, PORT, SWITCH = ("memory", "sm"), ("port", "proxy"), ("switch", "nvls")
Rank = Annotated[int, msgspec.Meta(ge=0, le=MOST_GPUS - 1)]


class _RankGroup(msgspec.Struct, gc=False):
    ranks: list[Rank] = []


class _Channel(msgspec.Struct, gc=False):
    """Both generations' names; the first calls the connections connectedTo."""

    channel_type: str = ""
    type: str = ""
    connected_to: list[Rank] | None = None
    connectedTo: list[Rank] | None = None  # noqa: N815
    rank_groups: list[_RankGroup] | None = None
    rankGroups: list[_RankGroup] | None = None  # noqa: N815


class _Gpu(msgspec.Struct, gc=False):
    id: Rank
    channels: list[_Channel] = []


class _File(msgspec.Struct, gc=False):
    gpus: list[_Gpu]


Pair = tuple[int, int]


def read(paths: Sequence[str], name: str, *, nvlink: Bandwidth | None = None, nic: Bandwidth | None = None) -> Probed:
    """`nvlink`: what joins two GPUs of a box, or a GPU with the switch; `nic`: what the card of a GPU carries."""
    file = decode(read_bytes(paths[0], MOST_BYTES), _File)
    ranks = len(file.gpus)
    if not 1 <= ranks <= MOST_GPUS:
        raise Invalid(f"gpus: expected 1 to {MOST_GPUS}, got {ranks}")
    pairs: dict[str, set[Pair]] = {"memory": set(), "port": set()}
    groups: set[tuple[int, ...]] = set()
    for place, gpu in enumerate(file.gpus):
        if gpu.id != place:
            raise Invalid(f"gpus[{place}].id: is {gpu.id}; every GPU stands at the place of its number")
        for kind, others in _channels(gpu, ranks):
            if kind == "switch":
                groups.add(tuple(sorted(set(others))))
            else:
                pairs[kind].update((min(place, other), max(place, other)) for other in others)
    speed = NVLINK if nvlink is None else parse_bandwidth(nvlink, "nvlink")
    card = CARD if nic is None else parse_bandwidth(nic, "nic")
    return _drawn(name, ranks, pairs["memory"], pairs["port"], sorted(groups), speed, card)


def _channels(gpu: _Gpu, ranks: int) -> Iterator[tuple[str, list[int]]]:
    """Of each channel its kind, and the other ranks."""
    for number, channel in enumerate(gpu.channels):
        where = f"gpus[{gpu.id}].channels[{number}]"
        told = channel.channel_type or channel.type
        if told in SWITCH:
            rows = [("switch", group.ranks) for group in channel.rank_groups or channel.rankGroups or []]
        elif told in MEMORY or told in PORT:
            rows = [("memory" if told in MEMORY else "port", channel.connected_to or channel.connectedTo or [])]
        else:
            raise Invalid(f"{where}: expected a channel of type memory, port or switch, got {quote(told)}")
        for kind, others in rows:
            if any(other >= ranks for other in others):
                raise Invalid(f"{where}: leads to rank {max(others)}, but there are {ranks} GPUs")
            yield kind, [other for other in others if kind == "switch" or other != gpu.id]


def _drawn(
    name: str, ranks: int, memory: set[Pair], port: set[Pair], groups: list[tuple[int, ...]], speed: Fraction,
    card: Fraction,
) -> Probed:  # fmt: skip
    box = list(range(ranks))
    for pair in (*memory, *(pair for group in groups for pair in pairwise(group))):
        unite(box, *pair)
    box = [root(box, rank) for rank in range(ranks)]
    order = {one: number for number, one in enumerate(sorted(set(box)))}
    within = [sum(other == mine for other in box[:rank]) for rank, mine in enumerate(box)]
    places = [f"host{order[one]}/gpu{within[rank]}" for rank, one in enumerate(box)]
    switched = sorted({box[group[0]] for group in groups if group})
    links: list[Link] = []
    abilities: list[Ability] = []
    for one in switched:
        hub = len(places)
        places.append(f"host{order[one]}/nvswitch")
        abilities.append(NVLS)
        mine = [rank for rank in range(ranks) if box[rank] == one]
        links += both_ways([(rank, hub) for rank in mine], LinkType("nvlink", speed, NVSWITCH_HOP))
    direct = sorted(pair for pair in memory if box[pair[0]] not in switched)
    links += both_ways(direct, LinkType("nvlink", speed, NVLINK_LATENCY))
    carded = sorted({rank for pair in port if box[pair[0]] != box[pair[1]] for rank in pair})
    if carded:
        hub = len(places)
        places.append("network")
        abilities.append(FORWARDS)
        links += both_ways([(rank, hub) for rank in carded], LinkType("ib", card, IB_HOP))
    machine = build(
        name, ranks, links, switches=len(places) - ranks, places=places, unit=speed if direct or switched else card,
        abilities=abilities,
    )  # fmt: skip
    notes = ["a plan says who reaches whom, not how fast; links that it does not use are not seen"]
    if direct or switched:
        notes.append(f"a link of {format_bandwidth(speed)} from GPU to GPU is assumed (--option nvlink=450GB/s)")
    if carded:
        notes.append(f"a card of {format_bandwidth(card)} for each GPU with ports is assumed (--option nic=400Gbit/s)")
    for rank in carded:
        unite(box, carded[0], rank)
    if len({root(box, rank) for rank in range(ranks)}) > 1:
        notes.append("some GPUs are joined by nothing that is shown here")
    return Probed(machine, tuple(notes), tuple(f"rank {rank}" for rank in range(ranks)))
