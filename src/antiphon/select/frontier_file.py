"""Write a frontier with all its proofs to one file that others can check, and check such files field by field.

A plan keeps one point per range of sizes, in this package's numbering. A frontier file (format "antiphon-frontier",
schema in antiphon/certificates/frontier.schema.json) keeps every point with its schedule as a table of transfers, the
bounds, and every impossibility that the certificates contain, each with evidence in terms of links, blocks and ranks
(core/ksync/evidence.py). `antiphon/certificates/check_certificate.py` checks it without this package.

    frontier_json     the file of a frontier
    load_frontier     read a file that `check_frontier` finds right
    check_frontier    read a file, build the frontier again from its schedules and certificates alone, and compare:
                      every field must be what is recomputed, except those that only the search knows (STATED)

Example: allgather on a DGX-1 has the points (2, 2, 3) and (6, 3, 7), and two impossibilities: no algorithm of 2 steps
has R/C below 3/2, none of 3 steps below 7/6. Change any of these numbers, or a transfer, and the file is refused.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from antiphon.core.bounds import Bound, bound, proved_rate, strip_abilities, witness_of
from antiphon.core.collective import Collective
from antiphon.core.files import name_of, read_bytes, reading, write_bytes
from antiphon.core.jsontext import check_keys, decode, layout
from antiphon.core.ksync.certificate import certified_instance, least_rounds_per_part
from antiphon.core.ksync.evidence import bandwidth_evidence, explicit_dual, refutation_files
from antiphon.core.routes import Routes, resolve
from antiphon.core.schedule import Chunks, Schedule
from antiphon.core.serialize.convert import collective_in, collective_out, topology_in, topology_out
from antiphon.core.serialize.schemas import CollectiveRow, TopologyRow
from antiphon.core.topology import Topology
from antiphon.core.verify import Fault
from antiphon.errors import AntiphonError, Invalid, Unsupported, quote
from antiphon.select._frontier import Frontier, make_point
from antiphon.select.proofs import PlanVerdict, bounds_text
from antiphon.select.provenance import certificate_of, findings_or_empty, is_same

FORMAT, VERSION = "antiphon-frontier", 1
STATED = ("planner", "stopped", "notes")  # fields that only the search knows, so that nothing can check them

# step, chunk, sender, receiver, op, slot at the sender, slot at the receiver, links of the route ([]: within a rank)
_TransferRow = tuple[int, int, int, int, int, int, int, list[int]]
_COLUMNS = 8  # number of values in such a row


class _PointRow(msgspec.Struct):
    """The fields of a point from which its schedule is rebuilt."""

    chunk_blocks: list[int]  # per chunk its block
    transfer_rows: list[_TransferRow]
    provenance: dict[str, Any] = {}


class _FrontierRow(msgspec.Struct):
    """The fields of a file from which its frontier is rebuilt; the other fields are compared with recomputed ones."""

    format: str
    version: int
    topology: TopologyRow
    collective: CollectiveRow
    planner: str
    stopped: str | None
    notes: list[str]
    points: list[_PointRow]
    bandwidth: dict[str, Any]


def save_frontier(path: str | os.PathLike[str], frontier: Frontier) -> None:
    """Write a frontier with all its proofs."""
    write_bytes(path, layout(frontier_json(frontier)) + b"\n")


def frontier_json(frontier: Frontier) -> dict[str, Any]:
    """Return the content of a frontier file. Raises Unsupported for schedules that it cannot hold."""
    topology, collective, limits = frontier.topology, frontier.collective, frontier.limits
    body = frontier.as_json()
    body["bandwidth"]["dual"] = bandwidth_evidence(topology, collective, limits.witness)  # LP dual: prices of links
    body["points"] = [
        {**point.as_json(), **_schedule_json(point.schedule, topology), "provenance": dict(point.schedule.provenance)}
        for point in frontier.points
    ]
    # nbytes_weight: the weight that nbytes measures, if not that of the largest buffer of a rank
    return {
        "format": FORMAT, "version": VERSION, **body, "topology": topology_out(topology),
        "collective": collective_out(collective), "blocks": _blocks_json(collective),
        **({"nbytes_weight": collective.nbytes_weight} if collective.nbytes_weight else {}),
        "impossible": list(_list_impossible(frontier)),
    }  # fmt: skip


def _blocks_json(collective: Collective) -> list[list[Any]]:
    """Return per block its weight, [rank, contributions] at the start, and [rank, contributions] at the end.

    Example, a block of weight 1 that goes from rank 0 to ranks 1 and 2: [1, [[0, [0]]], [[1, [0]], [2, [0]]]].
    """
    relation = collective.relation
    weights = collective.weights.tolist()
    starts: list[dict[int, list[int]]] = [{} for _ in weights]
    ends: list[dict[int, list[int]]] = [{} for _ in weights]
    for block, rank, contribution in zip(
        relation.pre_block.tolist(), relation.pre_rank.tolist(), relation.pre_id.tolist(), strict=True
    ):
        starts[block].setdefault(rank, []).append(contribution)
    contributions = [sorted({number for numbers in start.values() for number in numbers}) for start in starts]
    post = zip(relation.post_block.tolist(), relation.post_rank.tolist(), relation.post_want.tolist(), strict=True)
    for block, rank, want in post:
        ends[block][rank] = list(relation.wants[want]) if want >= 0 else contributions[block]
    return [
        [weight, *([list(pair) for pair in side.items()] for side in sides)]
        for weight, *sides in zip(weights, starts, ends, strict=True)
    ]


def _schedule_json(schedule: Schedule, topology: Topology) -> dict[str, Any]:
    """Return the chunks and transfers of a schedule; each transfer with the links of its route."""
    chunks = schedule.chunks
    # `local`: work of ranks in their own memory at the end, such as Bruck's rotation, for which the file has no field.
    if not isinstance(schedule.pieces, int) or schedule.pieces != 1 or schedule.joint is not None or schedule.local:
        raise Unsupported("a frontier file holds schedules without pipelining and without joints; write a plan (-o)")
    blocks = chunks.block.tolist()
    even = _even_chunks(blocks)
    # offsets and shares are fractions with the denominator of their `Chunks`
    if any(not np.array_equal(getattr(chunks, key) * even.denominator, getattr(even, key) * chunks.denominator)
           for key in ("offset", "share")):  # fmt: skip
        raise Unsupported("a frontier file holds schedules whose blocks are cut into equal chunks; write a plan (-o)")
    resolved = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    columns = (
        schedule.step,
        schedule.chunk,
        schedule.src,
        schedule.dst,
        schedule.op,
        schedule.slot("src"),
        schedule.slot("dst"),
    )
    rows = zip(*(column.tolist() for column in columns), resolved.route.tolist(), strict=True)
    return {
        "chunk_blocks": blocks,
        "transfer_rows": [[*row, list(resolved.table[route]) if route >= 0 else []] for *row, route in rows],
    }


def _even_chunks(blocks: list[int]) -> Chunks:
    """Return chunks that cut each block evenly, in the order of their numbers. `blocks`: per chunk its block."""
    counts, chunks_so_far = Counter(blocks), Counter[int]()  # by block: its chunks, and those placed so far
    denominator = int(np.lcm.reduce(list(counts.values()))) if counts else 1
    offsets = []
    for block in blocks:
        offsets.append(chunks_so_far[block] * (denominator // counts[block]))
        chunks_so_far[block] += 1
    shares = [denominator // counts[block] for block in blocks]
    return Chunks(np.array(blocks, np.int32), np.array(offsets, np.int64), np.array(shares, np.int64), denominator)


def _list_impossible(frontier: Frontier) -> Iterator[dict[str, Any]]:
    """Yield the (S, R/C) and (C, S, R) that the certificates of the points exclude, each once, with evidence."""
    topology, listed = frontier.topology, list[dict[str, Any]]()
    for point in frontier.points:
        certificate = certificate_of(point.schedule)
        if certificate is None:
            continue
        # `about`: the problem that the certificate is about, such as the reversed collective (ksync/certificate.py).
        # For SUMS, an allreduce as a whole, the evidence is of three kinds: prices of links at which the trees of a
        # chunk are too dear (`duals`), or all pairs of trees are (`pairs`: one collects, one spreads), or `sends`, the
        # number of links that each chunk must cross, with a proof by search.
        instance = certified_instance(topology, frontier.collective, certificate["about"])
        subject = {"collective": instance.collective.kind, "about": certificate["about"], "steps": certificate["steps"]}
        about, steps, evidence = (certificate[key] for key in ("about", "steps", "least"))
        ratio = least_rounds_per_part(instance, about, steps, evidence) / instance.input_weight
        # no R/C below `ratio` in these steps; then every single (C, S, R) that the search refuted
        ratio_entry: dict[str, Any] = {**subject, "ratio_below": str(ratio)}
        entries = [ratio_entry]
        proof_names = (name for name, _ in refutation_files(certificate))  # SAT proofs, in the order used below
        if "sends" in evidence:
            ratio_entry |= {"sends": evidence["sends"], "refutation": next(proof_names)}
        else:
            ratio_entry[_kind_of(evidence)] = [explicit_dual(instance, evidence)]
            if "pairs" in ratio_entry:
                # R/C = ratio lets all links together carry `ratio` times their capacities of each chunk
                # (`capacity` has the bonds first, then the shared limits)
                ratio_entry["sends"] = int(ratio * sum(instance.capacity[: len(instance.bonds)]))
        for refuted in certificate["refuted"]:
            entry = {**subject, "chunks": refuted["chunks"], "rounds": refuted["rounds"]}
            if refuted["how"] == "duals":
                entry[_kind_of(*refuted["duals"])] = [explicit_dual(instance, dual) for dual in refuted["duals"]]
            elif refuted["how"] == "resolution":
                entry["refutation"] = next(proof_names)
            # the third kind, "search", leaves no evidence in a file
            entries.append(entry)
        for entry in entries:
            if entry not in listed:
                listed.append(entry)
                yield entry


def _kind_of(*duals: Mapping[str, Any]) -> str:
    """Return the field for these duals of one point: "pairs" for those of pairs of trees.

    A dual of an allreduce lists `trees`; where the list is empty, the dual is one of pairs of trees.
    """
    return "duals" if all(dual.get("trees", True) for dual in duals) else "pairs"


# ---- checking ----


def is_frontier_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a regular file holds a frontier. Pipes, which can be read once only, hold none."""
    if not os.path.isfile(path):
        return False
    with reading(name_of(path)):
        data = read_bytes(path)
    return data.lstrip()[:1] == b"{" and FORMAT.encode() in data[:200]  # the format is the first field


def load_frontier(path: str | os.PathLike[str]) -> Frontier:
    """Return the frontier of a file; raise Invalid if it is wrong."""
    verdict, frontier = _rebuild(path)
    if frontier is None:
        raise Invalid(f"{name_of(path)}: {verdict.fault.message if verdict.fault else 'is wrong'}")
    return frontier


def check_frontier(path: str | os.PathLike[str]) -> PlanVerdict:
    """Build the frontier of a file again from its machine, schedules and certificates, and compare every field."""
    verdict, _ = _rebuild(path)
    return verdict


def _rebuild(path: str | os.PathLike[str]) -> tuple[PlanVerdict, Frontier | None]:
    """Return the verdict on a file, and its frontier unless it is wrong.

    Raises Invalid if the file cannot be read.
    """
    with reading(name_of(path)):
        data = read_bytes(path)
        stated, row = decode(data, dict[str, Any]), decode(data, _FrontierRow)
        check_keys(data)
        if row.format != FORMAT or row.version != VERSION:
            raise Invalid(
                f"version {quote(row.version)} of {quote(row.format)} is unsupported; expected {VERSION} of {FORMAT}"
            )
        topology, collective = topology_in(row.topology), collective_in(row.collective)
    bounds = bound(topology, collective)
    limits = _with_stated_witness(topology, collective, bounds, row.bandwidth)
    notes: list[str] = []
    points = []
    for number, point in enumerate(row.points):
        try:
            schedule = _schedule_in(point, collective)
            points.append(make_point(schedule, topology, bounds, notes))
        except (AntiphonError, OverflowError) as error:  # a number beyond 64 bits overflows a column
            return PlanVerdict(topology, is_same_machine=True, fault=Fault("claim", f"points[{number}]: {error}")), None
        if notes:
            fault = Fault("proof", f"points[{number}]: {notes[0]}")
            return PlanVerdict(topology, is_same_machine=True, fault=fault), None
    rebuilt = Frontier(
        topology, collective, row.planner, tuple(points), limits, stopped=row.stopped, notes=tuple(row.notes)
    )
    difference = _first_difference(stated, msgspec.json.decode(msgspec.json.encode(frontier_json(rebuilt))))
    if difference is not None:
        fault = Fault("proof", f"{difference}; write the file anew")
        return PlanVerdict(topology, is_same_machine=True, fault=fault), None
    proved = [bounds_text(f"{collective.title} on {topology.name}", limits.latency_steps, limits.inverse)]
    for verified in points:
        name = f"({verified.chunks}, {verified.steps}, {verified.rounds})"
        proved += [f"{name}: {text}" for text in verified.proved]
    trusted = tuple(text for verified in points for text in verified.trusted)
    stated_fields = [f"{key}: {quote(stated[key])}" for key in STATED if stated[key]]
    for verified in points:
        certificate, findings = certificate_of(verified.schedule), findings_or_empty(verified.schedule)
        unchecked = {k: v for k, v in verified.schedule.provenance.items() if k not in ("certificate", "found")}
        unchecked |= {f"found.{key}": value for key, value in findings.items() if key != "proof"}
        if certificate is not None and verified.k is None:  # what it proves, it proves for every k
            unchecked["certificate.k"] = certificate["k"]
        stated_fields += [f"points[].provenance.{key}: {quote(value)}" for key, value in unchecked.items()]
    return PlanVerdict(
        topology,
        is_same_machine=True,
        fault=None,
        plan=None,
        proved=tuple(dict.fromkeys(proved)),
        trusted=trusted,
        stated=tuple(dict.fromkeys(stated_fields)),
    ), rebuilt


def _schedule_in(point: _PointRow, collective: Collective) -> Schedule:
    """Build the schedule of a point of a file."""
    paths: dict[tuple[int, ...], int] = {}  # links of a route -> its number
    rows = [(*row, paths.setdefault(tuple(path), len(paths)) if path else -1) for *row, path in point.transfer_rows]
    table = np.array(rows, np.int64).reshape(-1, _COLUMNS)  # also without rows
    columns: list[Any] = [table[:, i] for i in range(_COLUMNS)]  # Schedule narrows the columns and checks their ranges
    step, chunk, src, dst, op, src_slot, dst_slot, route = columns
    return Schedule(
        collective, _even_chunks(point.chunk_blocks), step, chunk, src, dst, op, route=route, src_slot=src_slot,
        dst_slot=dst_slot, routes=Routes.of(paths), provenance=point.provenance,
    )  # fmt: skip


def _with_stated_witness(topology: Topology, collective: Collective, bounds: Bound, stated: Mapping[str, Any]) -> Bound:
    """Return the bound without help of switches, with the witness of the file if that proves the same.

    Another version of the LP solver may find another witness.
    """
    limits, witness_json = bounds.without_help, stated.get("witness")
    if not isinstance(witness_json, Mapping) or is_same(witness_json, limits.as_json()["bandwidth"]["witness"]):
        return limits
    witness = witness_of(witness_json)
    # `strip_abilities`: switches only forward
    if proved_rate(strip_abilities(topology), collective, witness) != limits.bytes_per_second:
        raise Invalid("bandwidth.witness: does not prove the stated bound; write the file anew")
    return replace(limits, witness=witness)


def _first_difference(stated: Any, recomputed: Any, place: str = "") -> str | None:
    """Return in words where two JSON values differ first; None if they are equal.

    `place`: where both are in the file, such as "points[0].steps"; "": they are the file.
    """
    if isinstance(stated, dict) and isinstance(recomputed, dict):
        for key in [*recomputed, *(key for key in stated if key not in recomputed)]:
            inner = f"{place}.{key}" if place else key
            if key not in stated or key not in recomputed:
                return f"{inner}: is missing" if key not in stated else f"{inner}: is not a field of this format"
            difference = _first_difference(stated[key], recomputed[key], inner)
            if difference:
                return difference
        return None
    if isinstance(stated, list) and isinstance(recomputed, list) and len(stated) == len(recomputed):
        pairs = enumerate(zip(stated, recomputed, strict=True))
        return next(filter(None, (_first_difference(a, b, f"{place}[{i}]") for i, (a, b) in pairs)), None)
    if is_same(stated, recomputed):
        return None
    return f"{place}: the file states {quote(stated)}, but it is {quote(recomputed)}"
