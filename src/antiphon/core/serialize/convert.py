"""Convert between the objects of a JSON file (schemas.py) and the types of the core.

`topology_in`, `collective_in` and `plan_in` take the decoded objects of schemas.py (their names end in Row) and return
checked values; an error names the position in the file, such as "links[3]: ...". `topology_out`, `collective_out` and
`plan_out` return plain dictionaries in the order in which keys are written; defaults are left out, and the columns of a
schedule stay NumPy arrays, which the writer of JSON encodes. `pre` and `post` are the keys of a custom block: the ranks
that begin with it and those that must end with it. `ordered`: contributions are combined in ascending order of their
ids (in built-in collectives, of ranks). Counts are limited before anything is allocated, so that no small file fills
the memory.

Example: `{"kind": "allreduce", "ranks": 4}` becomes `Collective("allreduce", 4)`, and back.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np

from antiphon.core.collective import ROOTED, Collective, joint, relation_of
from antiphon.core.columns import SAFE_INT64, AnyInts, Longs, freeze
from antiphon.core.files import within
from antiphon.core.jsontext import NumberLists, decode, without_place
from antiphon.core.plan import Entry, Plan, check_plain
from antiphon.core.routes import Routes
from antiphon.core.schedule import Chunks, Local, Schedule
from antiphon.core.serialize.schemas import (
    COLLECTIVE,
    MAX_FILE_BLOCKS,
    MAX_FILE_ENTRIES,
    MAX_FILE_NODES,
    MAX_FILE_TYPES,
    TOPOLOGY,
    VERSION,
    BlockRow,
    CollectiveRow,
    GroupRow,
    LocalRow,
    PlanRow,
    ScheduleRow,
    TopologyRow,
)
from antiphon.core.serialize.slips import bandwidth_out, latency_out
from antiphon.core.topology import FORWARD_ONLY, Ability, LinkType, NetworkCard, SharedLimit, Topology, default_places
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.units import exact, parse_bandwidth, plain, stored_bandwidth

# ---- topology ----


def topology_in(row: TopologyRow) -> Topology:
    """Build a topology from a file's object."""
    _check_nested(row.format, row.version, TOPOLOGY)
    if max(row.ranks, row.switches) > MAX_FILE_NODES:
        raise Invalid(f"ranks, switches: a file may have at most {MAX_FILE_NODES} of each")
    if len(row.types) > MAX_FILE_TYPES:
        raise Invalid(
            f"types: a file may have at most {MAX_FILE_TYPES}, has {len(row.types)}; let links that are alike share one"
        )
    types, limits = [], []
    for i, link_type in enumerate(row.types):
        with within(f"types[{i}]"):  # puts this position before the message of an error
            bandwidth = stored_bandwidth(link_type.bandwidth)
            # LinkType parses the latency, which may be a text such as "1.5us".
            types.append(LinkType(link_type.kind, bandwidth, link_type.latency))  # type: ignore[arg-type]
    for i, limit in enumerate(row.limits):
        with within(f"limits[{i}]"):
            limits.append(SharedLimit(limit.name, tuple(limit.links), stored_bandwidth(limit.bandwidth)))
    links: Any = _read_longs(list(itertools.chain.from_iterable(row.links)), "links").reshape(-1, 3)
    if row.ranks >= 1 and row.switches >= 0:  # else Topology reports the counts
        _check_links(links, row.ranks + row.switches, len(types))
    if row.places == []:
        raise Invalid("places: is empty; leave it out or name every node")
    src, dst, type_of = links.T
    # 0: Topology takes the bandwidth of the slowest link
    unit = Fraction(0) if row.unit is None else stored_bandwidth(row.unit, "unit")
    limit_rows, places = tuple(limits), tuple(row.places or ())
    cards = []
    for i, card in enumerate(row.cards):
        with within(f"cards[{i}]"):
            speed = None if card.bandwidth is None else stored_bandwidth(card.bandwidth)
            cards.append(NetworkCard(card.name, speed, tuple(card.serves)))
    topology = Topology(
        row.name, row.ranks, row.switches, link_src=src, link_dst=dst, link_type=type_of, types=tuple(types),
        limits=limit_rows, places=places, unit=unit,
    )  # fmt: skip
    # Abilities and cards name nodes, so they come second: the counts of nodes are checked by now.
    return replace(topology, abilities=_abilities_in(row), cards=tuple(cards)) if row.abilities or cards else topology


def _check_links(links: Longs, nodes: int, types: int) -> None:
    """Refuse the first link that leads to no node or to itself, or has no type."""
    srcs, dsts, types_of = links.T
    is_faulty = (srcs == dsts) | (types_of < 0) | (types_of >= types)
    for end in (srcs, dsts):
        is_faulty |= (end < 0) | (end >= nodes)
    if not is_faulty.any():
        return
    link = int(np.flatnonzero(is_faulty)[0])
    src, dst, link_type = links[link].tolist()
    position = f"links[{link}]: [{src}, {dst}, {link_type}]"
    if not 0 <= link_type < types:
        raise Invalid(f"{position}: no link type has number {link_type} (types has {types}, numbered from 0)")
    if src == dst:
        raise Invalid(f"{position}: leads from node {src} to itself; remove it")
    node = dst if 0 <= src < nodes else src
    raise Invalid(f"{position}: no node has number {node}; nodes are 0 to {nodes - 1} (ranks first, then switches)")


def _abilities_in(row: TopologyRow) -> tuple[Ability, ...]:
    """Return one ability per switch; each switch may be named once."""
    abilities = [FORWARD_ONLY] * row.switches
    for i, group in enumerate(row.abilities):
        with within(f"abilities[{i}]"):
            ability = Ability(
                group.multicast, group.reduce, group.through, group.own, group.at_once, tuple(group.operators),
                tuple(group.types),
            )  # fmt: skip
        if ability == FORWARD_ONLY:
            raise Invalid(f"abilities[{i}]: says nothing; give multicast or reduce as true, or leave it out")
        for node in group.switches:
            if not row.ranks <= node < row.ranks + row.switches:
                raise Invalid(f"abilities[{i}].switches: node {quote(node)} is no switch")
            if abilities[node - row.ranks] != FORWARD_ONLY:
                raise Invalid(f"abilities[{i}].switches: switch {node} is named twice")
            abilities[node - row.ranks] = ability
    return tuple(abilities)


def topology_out(topology: Topology) -> dict[str, Any]:
    """Return a topology as a dictionary for JSON."""
    columns = (topology.link_src, topology.link_dst, topology.link_type)
    body: dict[str, Any] = {"name": topology.name, "ranks": topology.ranks}
    if topology.switches:
        body["switches"] = topology.switches
    parse_bandwidth(topology.unit, "unit bandwidth")  # raises if out of range: such a file could not be read back
    body["unit"] = bandwidth_out(topology.unit)
    body["types"] = [
        {"kind": t.kind, "bandwidth": bandwidth_out(t.bandwidth), "latency": latency_out(t.latency)}
        for t in topology.types
    ]
    body["links"] = np.stack(columns, axis=1).tolist()
    if topology.limits:
        body["limits"] = [
            {"name": limit.name, "links": list(limit.links), "bandwidth": bandwidth_out(limit.bandwidth)}
            for limit in topology.limits
        ]
    if topology.places != default_places(topology.ranks, topology.switches):
        body["places"] = list(topology.places)
    if topology.abilities:
        groups: dict[Ability, list[int]] = {}
        for node in range(topology.ranks, topology.nodes):
            groups.setdefault(topology.ability(node), []).append(node)
        groups.pop(FORWARD_ONLY, None)
        body["abilities"] = [{"switches": nodes, **_ability_fields(ability)} for ability, nodes in groups.items()]
    if topology.cards:
        body["cards"] = [
            {"name": card.name, "serves": list(card.nodes)}
            | ({} if card.bandwidth is None else {"bandwidth": bandwidth_out(card.bandwidth)})
            for card in topology.cards
        ]
    return body


def _ability_fields(ability: Ability) -> dict[str, bool | int | list[str]]:
    """Return the fields of an ability that differ from the default."""
    set_fields = {name: value for name, value in asdict(ability).items() if value}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in set_fields.items()}


# ---- collective ----


def collective_in(row: CollectiveRow) -> Collective:
    """Build a collective from a file's object."""
    _check_nested(row.format, row.version, COLLECTIVE)
    if row.ranks > MAX_FILE_NODES:
        raise Invalid(f"ranks: a file may have at most {MAX_FILE_NODES}")
    for field_name, values in (("members", row.members), ("roots", row.roots), ("weights", row.weights)):
        if values == []:
            raise Invalid(f"{field_name}: is empty; leave it out or fill it")
    if row.groups is not None:
        return _joint_in(row, row.groups)
    members, roots = tuple(row.members or ()), tuple(row.roots or ())
    count = len(members) or row.ranks
    blocks_per_member = {"alltoall": count, "scatter": len(roots) or 1, "gather": len(roots) or 1}
    if count * blocks_per_member.get(row.kind, 1) > MAX_FILE_BLOCKS:
        raise Unsupported(f"{row.kind}: a file may have at most {MAX_FILE_BLOCKS} blocks; use fewer ranks")
    if (row.kind == "custom") != (row.blocks is not None):
        raise Invalid('blocks: a collective has either a kind, such as "allreduce", or blocks of its own')
    weights = _read_longs(row.weights or (), "weights")
    if row.blocks is None:
        if row.combining:
            raise Invalid(f"combining: follows from the kind {quote(row.kind)}; leave it out")
        return Collective(row.kind, row.ranks, members, roots, weights, ordered=row.ordered)
    if weights.size:
        raise Invalid("weights: a custom collective has its weights in its blocks")
    return _custom_in(row, row.blocks, members, roots)


def _joint_in(row: CollectiveRow, rows: list[GroupRow]) -> Collective:
    """Build a joint collective from its groups."""
    # the kind "custom", which files may leave out, stands for none; joint collectives are written with it
    if row.kind != "custom" or row.blocks is not None or row.roots or row.weights or row.combining or row.ordered:
        raise Invalid("groups: a joint collective has groups, and no kind, blocks, roots, weights or order of its own")
    groups = []
    for i, group in enumerate(rows):
        group_fields = {f.name: getattr(group, f.name) for f in msgspec.structs.fields(group) if f.name != "size"}
        try:
            groups.append(collective_in(CollectiveRow(ranks=row.ranks, **group_fields)))
        except (Invalid, Unsupported) as error:
            raise type(error)(f"groups[{i}]: {error}") from None
    if not groups or sum(group.blocks for group in groups) > MAX_FILE_BLOCKS:
        raise Invalid(f"groups: expected at least one group, with up to {MAX_FILE_BLOCKS} blocks together")
    joined = joint(groups, [group.size for group in rows])
    if row.members is not None and tuple(sorted(row.members)) != joined.members:
        raise Invalid("members: are those of the groups; leave them out")
    return joined


def _custom_in(
    row: CollectiveRow, blocks: list[msgspec.Raw], members: tuple[int, ...], roots: tuple[int, ...]
) -> Collective:
    """Build a custom collective, decoding one block at a time to save memory."""
    # Rows (block, rank, id of the contribution) of what ranks begin with, and (block, rank, index in `wants`; -1: all)
    # of what they must end with.
    pre, post, weights = array("i"), array("i"), array("q")
    wants: dict[tuple[int, ...], int] = {}
    block = BlockRow(pre=[], post=[])
    for i, raw in enumerate(blocks):
        try:
            block = decode(bytes(raw), BlockRow)
        except Invalid as error:
            fault = without_place(str(error))
            # A fault in a field begins with its name, and continues the path: "blocks[3].pre[0]: ...".
            in_field = fault.startswith(("pre", "post", "weight"))
            raise Invalid(f"blocks[{i}]{'.' if in_field else ': '}{fault}") from None
        for holder in block.pre:
            # A number alone is a rank. Its contribution has the rank's number as id, or 0 if nothing is combined.
            rank, identity = (holder, holder if row.combining else 0) if isinstance(holder, int) else holder
            pre.extend(
                (i, _check_below(rank, row.ranks, f"blocks[{i}].pre: rank"), _check_below(identity, 2**31, "id"))
            )
        for receiver in block.post:
            rank, want = (
                (receiver, -1) if isinstance(receiver, int) else (receiver.rank, _want_number(receiver.ids, wants))
            )
            post.extend((i, _check_below(rank, row.ranks, f"blocks[{i}].post: rank"), want))
        weights.append(_check_below(block.weight, SAFE_INT64, f"blocks[{i}].weight:"))
    # The relation has one block more than the greatest that its rows name, so an empty last block would vanish.
    if blocks and not (block.pre or block.post):
        raise Invalid(f"blocks[{len(blocks) - 1}]: nobody has it and nobody wants it; remove it")
    pre_rows, post_rows = (np.frombuffer(column, np.int32).reshape(-1, 3) for column in (pre, post))
    relation = relation_of(pre_rows, post_rows, tuple(wants), row.ranks)
    sizes = np.frombuffer(weights, np.int64)
    return Collective("custom", row.ranks, members, roots, sizes, relation, ordered=row.ordered)


def _want_number(ids: list[int], wants: dict[tuple[int, ...], int]) -> int:
    """Return the index in `wants` of a multiset of ids, adding it if it is new."""
    return wants.setdefault(tuple(sorted(ids)), len(wants))


def collective_out(collective: Collective) -> dict[str, Any]:
    """Return a collective as a dictionary for JSON."""
    body: dict[str, Any] = {"kind": collective.kind, "ranks": collective.ranks}
    if collective.groups:
        rows = [collective_out(group) for group in collective.groups]
        for row, group, size in zip(rows, collective.groups, collective.group_sizes, strict=True):
            del row["ranks"]
            row["members"] = list(group.members)
            if size != 1:
                row["size"] = size
        return {**body, "groups": rows}
    if len(collective.members) < collective.ranks:
        body["members"] = list(collective.members)
    if collective.kind in ROOTED:
        body["roots"] = list(collective.roots)
    if collective.ordered:
        body["ordered"] = True
    if collective.custom is not None:
        return {**body, **_custom_out(collective)}
    if np.any(collective.weights != 1):
        body["weights"] = collective.weights.tolist()
    return body


def _custom_out(collective: Collective) -> dict[str, Any]:
    """Return the blocks of a custom collective as JSON values."""
    relation = collective.relation
    # `combining` states the ids that `pre` leaves out: a rank's own number, else 0 (see `_custom_in`). Either choice is
    # read back correctly; this one leaves out all ids if they are ranks.
    combining = bool(len(relation.pre_id) and np.array_equal(relation.pre_id, relation.pre_rank))
    blocks: list[dict[str, Any]] = [
        {"weight": weight, "pre": [], "post": []} if weight != 1 else {"pre": [], "post": []}
        for weight in collective.weights.tolist()
    ]
    pre = (relation.pre_block, relation.pre_rank, relation.pre_id)
    for block, rank, identity in zip(*(c.tolist() for c in pre), strict=True):
        blocks[block]["pre"].append(rank if identity == (rank if combining else 0) else [rank, identity])
    post = (relation.post_block, relation.post_rank, relation.post_want)
    for block, rank, want in zip(*(c.tolist() for c in post), strict=True):
        ids = {"rank": rank, "ids": list(relation.wants[want])} if want >= 0 else rank
        blocks[block]["post"].append(ids)
    return {"combining": combining, "blocks": blocks} if combining else {"blocks": blocks}


# ---- plan ----

OPTIONAL_COLUMNS = ("route", "src_slot", "dst_slot", "joint")
COLUMNS = ("step", "chunk", "src", "dst", "op", *OPTIONAL_COLUMNS)


def plan_in(row: PlanRow) -> Plan:
    """Build a plan from a file's object."""
    with within("topology"):
        topology = topology_in(row.topology)
    with within("collective"):
        collective = collective_in(row.collective)
    entries = []
    if len(row.entries) > MAX_FILE_ENTRIES:
        raise Invalid(f"entries: a file may have at most {MAX_FILE_ENTRIES}, has {len(row.entries)}")
    for i, entry in enumerate(row.entries):
        columns = {name: _column_in(entry.schedule, name, f"entries[{i}].schedule.{name}") for name in COLUMNS}
        with within(f"entries[{i}]"):
            schedule = _schedule_in(entry.schedule, columns, collective)
            entries.append(Entry(entry.start, entry.stop, schedule, entry.claims))
    return Plan(topology, collective, tuple(entries))


def plan_out(plan: Plan) -> dict[str, Any]:
    """Return a plan as a dictionary for JSON."""
    return {
        "topology": topology_out(plan.topology),
        "collective": collective_out(plan.collective),
        "entries": [
            {"from": e.start, "to": e.stop, "claims": e.claims, "schedule": _schedule_out(e.schedule)}
            for e in plan.entries
        ],
    }


def _column_in(row: ScheduleRow, name: str, position: str) -> list[int] | AnyInts | None:
    """Read one column; `position`: where it stands in the file, for errors.

    Text of plain numbers goes straight into an array: a list of Python ints takes eight times as much memory as its
    text, and a column may have 33 million rows. Any other text is decoded with full checks.
    """
    text = bytes(getattr(row, name))
    # plain: between [ and ] nothing but digits, commas and minus signs
    values = None if text[:1] != b"[" or text[1:].translate(None, b"0123456789,-") != b"]" else text[1:-1]
    if values:
        numbers = np.fromstring(values, np.int64, sep=",")
        # Numbers beyond int64 are clipped to its ends, so values near these are left to the full checks.
        # The count of numbers shows whether NumPy has read all the text: it stops at a number such as "1-2".
        if (
            len(numbers) == values.count(b",") + 1
            and -SAFE_INT64 < int(numbers.min()) <= int(numbers.max()) < SAFE_INT64
        ):
            fits_int32 = -(2**31) <= int(numbers.min()) <= int(numbers.max()) < 2**31
            return freeze(numbers.astype(np.int32)) if fits_int32 else freeze(numbers)
    try:
        return None if name in OPTIONAL_COLUMNS and text == b"null" else decode(text, list[int])
    except Invalid as error:
        fault = without_place(str(error))
        raise Invalid(f"{position}{fault}" if fault.startswith("[") else f"{position}: {fault}") from None


def _schedule_in(
    row: ScheduleRow, columns: Mapping[str, list[int] | AnyInts | None], collective: Collective
) -> Schedule:
    """Build a schedule from a file's object. `columns`: by name what `_column_in` returns; None: no such column."""
    with within("schedule"):
        check_plain(row.provenance, "provenance")
        chunk_row = row.chunks
        with within("chunks"):
            names = ("block", "offset", "share")
            block, offset, share = (_read_longs(getattr(chunk_row, name), name) for name in names)
            chunks = Chunks(block, offset, share, chunk_row.denominator)  # type: ignore[arg-type]
        read_columns: dict[str, Any] = {
            name: _read_longs(values, name) if isinstance(values, list) else values for name, values in columns.items()
        }
        route_ptr = np.cumsum([0, *map(len, row.routes)], dtype=np.int64)
        links = _read_longs(list(itertools.chain.from_iterable(row.routes)), "routes")
        if links.size and not 0 <= int(links.min()) <= int(links.max()) < 2**31:
            raise Invalid("routes: the number of a link is out of range")
        pieces = row.pieces if isinstance(row.pieces, int) else _read_longs(row.pieces, "pieces")
        return Schedule(
            collective, chunks, **read_columns, routes=Routes(route_ptr, links.astype(np.int32)),
            pieces=_check_below(pieces, 2**31, "pieces") if isinstance(pieces, int) else pieces,
            local=tuple(_local_in(item, i) for i, item in enumerate(row.local)), provenance=row.provenance,
        )  # fmt: skip


def _local_in(row: LocalRow, i: int) -> Local:
    """Build a declaration of local work: what every rank does in the end besides transfers, on a share of nbytes."""
    share = exact(row.share, f"local[{i}].share")
    if share < 0:
        raise Invalid(f"local[{i}].share: must be 0 or more, got {quote(row.share)}")
    return Local(row.kind, share)


def _schedule_out(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as a dictionary for JSON: one list per column."""
    check_plain(schedule.provenance, "provenance")
    chunks = schedule.chunks
    body: dict[str, Any] = {"provenance": dict(schedule.provenance)}
    if isinstance(schedule.pieces, np.ndarray) or schedule.pieces != 1:
        body["pieces"] = schedule.pieces if isinstance(schedule.pieces, int) else schedule.pieces.tolist()
    if schedule.local:
        body["local"] = [{"kind": item.kind, "share": plain(item.share)} for item in schedule.local]
    names = ("block", "offset", "share")
    # arrays, as are the columns below
    body["chunks"] = {"denominator": chunks.denominator, **{n: getattr(chunks, n) for n in names}}
    if len(schedule.routes):
        body["routes"] = NumberLists(schedule.routes.links, schedule.routes.ptr)  # written as lists of numbers
    return {**body, **schedule.columns()}


# ---- shared ----


def _check_nested(file_format: str, version: int, expected: str) -> None:
    """Check the format and version of a topology or collective, which the parts of a plan may repeat."""
    if file_format != expected or version != VERSION:
        raise Invalid(f"expected version {VERSION} of {expected}, got version {version} of {quote(file_format)}")


def _read_longs(values: Sequence[int], column_name: str) -> Longs:
    """Return a list of whole numbers as int64; raise Invalid if one does not fit."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        row = next(i for i, value in enumerate(values) if not -(2**63) <= value < 2**63)
        raise Invalid(f"{column_name}[{row}]: {quote(values[row])} is out of range") from None


def _check_below(value: int, high: int, field_name: str) -> int:
    """Return the value; raise Invalid unless it is in 0..high-1."""
    if not 0 <= value < high:
        raise Invalid(f"{field_name} {quote(value)} is out of range (0 to {high - 1})")
    return value
