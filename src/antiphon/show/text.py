"""Describe machines, plans and the fewest memory accesses of a collective as text for the terminal.

Large machines are summarized: links and shared limits are counted by name with the numbers left out (all links from a
host*/gpu* to a host*/switch* in one row), and a matrix of bandwidths is printed only up to WIDEST_MATRIX nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import conditions_text
from antiphon.core.files import one_line
from antiphon.core.topology import Ability, Topology
from antiphon.errors import list_first
from antiphon.select import format_switch_uses
from antiphon.show.columns import LABEL_INDENT, fitted_rows, paragraph, table, width, wrap_table
from antiphon.show.words import by_planner
from antiphon.units import format_bandwidth, format_seconds, plain, plural

WIDEST_MATRIX = 16  # most nodes of a matrix of bandwidths
MAX_LIMITS = 8  # most shared limits, or switches, that are listed one by one
MAX_ROWS = 40  # of a table of links
KIND_HEAD = ["kind", "bandwidth", "units", "latency", "links"]  # units: the bandwidth in unit links


def summary_text(topology: Topology) -> str:
    """Return a machine in one line."""
    switches = f", {topology.switches} switch{'es' * (topology.switches > 1)}" if topology.switches else ""
    linked = {*topology.link_src.tolist(), *topology.link_dst.tolist()}
    alone = sum(rank not in linked for rank in range(topology.ranks))  # as with only=, which keeps the numbers of ranks
    ranks = f"{topology.ranks} ranks{f' ({alone} of them without links)' if alone and linked else ''}"
    unit = f"a unit link is {format_bandwidth(topology.unit)}"
    return f"{topology.name}: {ranks}{switches}, {topology.links} directed links; {unit}"


def kind_rows(topology: Topology) -> list[list[str]]:
    """Return a row for each kind of links, with the head KIND_HEAD."""
    counts = Counter(topology.link_type.tolist())
    return [
        [
            t.kind,
            format_bandwidth(t.bandwidth),
            _units_text(t.bandwidth / topology.unit),
            format_seconds(t.latency),
            str(counts[i]),
        ]
        for i, t in enumerate(topology.types)
    ]


def topology_text(topology: Topology) -> str:
    """List links with their bandwidths and shared limits; of large machines, links counted by the places they join."""
    lines = [*paragraph(summary_text(topology), first=""), "", *table(KIND_HEAD, kind_rows(topology))]
    matrix = _link_matrix(topology) if topology.nodes <= WIDEST_MATRIX else []
    if matrix and max(map(len, matrix)) <= width():
        lines += ["", "unit links from row to column:", *matrix]
    else:
        lines += ["", "links by what they join (* stands for numbers):", *_links_by_places(topology)]
        lines += ["", "(--json lists every link, -o machine.svg draws them)"]
    if topology.limits:
        lines += ["", *_limits_table(topology)]
    if topology.abilities:
        lines += ["", *_ability_lines(topology)]
    lines += [""] if topology.cards else []
    for card in topology.cards:
        speed = format_bandwidth(card.bandwidth) if card.bandwidth else "speed unknown"
        served = ", ".join(topology.places[node] for node in card.nodes[:16])
        lines += paragraph(one_line(f"{card.name} ({speed}): serves {served}"), first="  card: ", rest=" " * 8)
    return "\n".join(lines)


def _units_text(number: Fraction) -> str:
    """Return a bandwidth in unit links, as an exact fraction if that is short."""
    return str(plain(number)) if len(str(number)) <= 6 else f"{float(number):.4g}"


def _links_by_places(topology: Topology) -> list[str]:
    """Return a table of links, counted by the places that they join with numbers left out; at most MAX_ROWS rows."""
    patterns = [re.sub(r"\d+", "*", place) for place in topology.places]
    ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), topology.link_type.tolist(), strict=True)
    counted = Counter((patterns[a], patterns[b], kind) for a, b, kind in ends)
    rows = []
    for (a, b, kind), count in counted.items():
        reverse = counted[b, a, kind] if a != b else count
        if count == reverse and (b, a, kind) in counted and a > b:
            continue  # counted in the row from b to a, as "each way"
        count_text = f"{count} each way" if a != b and count == reverse else str(count)
        rows.append([a, b, topology.types[kind].kind, format_bandwidth(topology.types[kind].bandwidth), count_text])
    return table(["from", "to", "kind", "bandwidth", "links"], rows[:MAX_ROWS]) + _omitted_rows(len(rows))


def _limits_table(topology: Topology) -> list[str]:
    """Return a table of shared limits, one by one, or if they are many, by name with numbers left out."""
    rows = [[x.name, format_bandwidth(x.bandwidth), str(len(x.links)), "1"] for x in topology.limits]
    if len(rows) > MAX_LIMITS:
        counted = Counter((re.sub(r"\d+", "*", name), speed, links) for name, speed, links, _ in rows)
        rows = [[*columns, str(count)] for columns, count in counted.items()]
        return table(["shared limit", "bandwidth", "links", "count"], rows[:MAX_ROWS]) + _omitted_rows(len(rows))
    return table(["shared limit", "bandwidth", "links"], [row[:3] for row in rows])


def _ability_lines(topology: Topology) -> list[str]:
    """Return what switches can do besides forwarding; equal ones are listed once, without numbers if they are many."""
    places_of: dict[Ability, list[str]] = {}
    for node in range(topology.ranks, topology.nodes):
        places_of.setdefault(topology.ability(node), []).append(topology.places[node])
    lines: list[str] = []
    for ability, places in places_of.items():
        names = (
            places if len(places) <= MAX_LIMITS else [*dict.fromkeys(re.sub(r"\d+", "*", place) for place in places)]
        )
        verbs = [verb for verb, does in (("multicast", ability.multicast), ("reduce", ability.reduce)) if does]
        if verbs:
            lines += paragraph(f"can {' and '.join(verbs)}: {', '.join(names)}{_ability_details(ability)}", rest="    ")
            lines += [f"  {line}" for line in wrap_table(head=[], rows=_operator_rows(ability))]
    return lines


def _ability_details(ability: Ability) -> str:
    """Return further abilities and limits of a switch that multicasts or reduces."""
    details = ["sends on what it combined"] if ability.through else []
    details += ["a rank's input and result for itself pass through it, too"] if ability.own else []
    details += [f"serves {ability.at_once} at once"] if ability.at_once else []
    return f" ({'; '.join(details)})" if details else ""


def _operator_rows(ability: Ability) -> list[list[str]]:
    """Return a row for each set of types: the operators by which a switch reduces these, and the types."""
    if not ability.reduce or not (ability.operators or ability.types):
        return []
    types_of: dict[str, list[str]] = {} if ability.operators else {"any operator": []}
    # an operator is "sum", or "sum of float16" if the switch has it for one type only
    for name, _, dtype in (name.partition(" of ") for name in ability.operators):
        types_of.setdefault(name, []).extend([dtype] if dtype else [])
    names_of: dict[str, list[str]] = {}
    for name, types in types_of.items():
        names_of.setdefault(", ".join(types or ability.types) or "any type", []).append(name)
    return [[f"reduces {', '.join(names)}", f"of {types}"] for types, names in names_of.items()]


def _omitted_rows(rows: int) -> list[str]:
    return [f"  ... {rows - MAX_ROWS} more"] if rows > MAX_ROWS else []


def _link_matrix(topology: Topology) -> list[str]:
    """Return a matrix of bandwidths, in unit links, from the node of the row to that of the column."""
    units: dict[tuple[int, int], Fraction] = {}
    for link in range(topology.links):
        pair = (int(topology.link_src[link]), int(topology.link_dst[link]))
        units[pair] = units.get(pair, Fraction(0)) + topology.bandwidth(link) / topology.unit
    last_words = [place.rpartition("/")[2] for place in topology.places]
    # switches are named by the last word of their place where that is unique, ranks by their number
    is_unique = len(set(last_words[topology.ranks :])) == topology.switches
    switch_names = (last_words if is_unique else topology.places)[topology.ranks :]
    names = [*map(str, range(topology.ranks)), *switch_names]
    rows = [
        [
            names[a],
            *(_units_text(units[a, b]) if (a, b) in units else "." for b in range(topology.nodes)),
            topology.places[a],
        ]
        for a in range(topology.nodes)
    ]
    fitted, _ = fitted_rows(["", *names, "place"], rows, ["place"])
    return [line for row in fitted for line in row]


def plan_text(claims: Mapping[str, Any], exact_rounds: Fraction | None = None) -> str:
    """Return the claims of a plan in a few lines: its size, its gaps. `exact_rounds`: not rounded up in each step."""
    counts = {noun: claims[f"{noun}s"] for noun in ("step", "round", "transfer")}
    size = ", ".join(f"{count} {noun}{'s' * (count != 1)}" for noun, count in counts.items())
    kind, roots = claims["collective"], claims["roots"]
    is_sent = kind in ("broadcast", "scatter")  # by the roots, which alone have data; chunks are of their data
    rank_names = f"rank{'s' * (len(roots) > 1)} {list_first(roots)}"
    end = f" {'from' if is_sent else 'to'} {rank_names}" if roots else ""
    owner = f"of {'each' if len(roots) > 1 else 'the'} root's data" if is_sent else "per rank"
    title = f"{claims.get('groups') or kind}{end} on {claims['topology']}{by_planner(claims['planner'])}"
    rounded = ""  # R/C is then more than the time
    if exact_rounds is not None and f"{float(exact_rounds):.4g}" != f"{claims['rounds']:.4g}":
        rounded = f" ({float(exact_rounds):.4g} rounds; {claims['rounds']} if those of each step are rounded up)"
    lines = [
        *paragraph(f"{title}: {claims['chunks']} chunk{'s' * (claims['chunks'] != 1)} {owner}, {size}", first=""),
        *labelled("bandwidth", _gap_text(claims["bandwidth_gap"], "the least time for large messages") + rounded),
        *_gap_without_switches(claims.get("bandwidth_gap_without_switches")),
        *labelled("latency", _gap_text(claims["latency_gap"], "the fewest steps possible")),
    ]
    if claims.get("uses"):  # of switches: multicast, reduction
        unicast_text = f"; with every row alone {claims['bandwidth_gap_alone']:.4g} times the least time"
        lines += labelled("uses", f"{format_switch_uses(claims['uses'])}{unicast_text}")
    if claims.get("rate") is not None:
        details = claims.get("found") or {}  # facts that the planner states
        proof_text = ": no schedule is faster" if details.get("optimal") else ""
        if not proof_text and details.get("optimal_without_switches"):
            proof_text = ": no schedule is faster without the help of switches"
        lines += labelled("rate", f"{claims['rate']} unit links in the limit of fine pieces{proof_text}")
        if details.get("trees"):
            # "few": the number of trees in words, where the planner made it small; "how": how it packed them
            trees = details.get("few") or f"{details['trees']} tree{'s' * (details['trees'] > 1)}"
            depth = f", {details['deepest']} deep" if details.get("deepest") else ""
            lines += labelled("trees", f"{trees}{depth}; {details.get('how', '')}")
    memory = claims.get("memory")
    if memory and memory["least"] != "0":
        senders = claims["incast"]["senders"]
        fewest = f"the fewest memory accesses{conditions_text(memory.get('assumes', ()), ' {}')}"
        incast = f"up to {senders} ranks send to one at once" if senders > 1 else "no two ranks send to one at once"
        lines += labelled("memory", f"{_gap_text(memory['gap'], fewest)}; {incast}")
    return "\n".join(lines)


def labelled(label: str, text: str) -> list[str]:
    """Return a line of a plan's description, wrapped behind its label."""
    return paragraph(f"{label + ':':<11}{text}", first="  ", rest=LABEL_INDENT)


def _gap_without_switches(gap: float | None) -> list[str]:
    """Return the gap to the bound without the help of switches, if they may help."""
    if gap is None:
        return []
    return paragraph(f"{gap:.4g} times the least time if switches only forward", first=LABEL_INDENT, rest=LABEL_INDENT)


def memory_lines(fewest: Mapping[str, Any]) -> list[str]:
    """Return GenModel's theorems as text: the fewest memory accesses, and the concurrent senders that they need."""
    accesses, senders = Fraction(fewest["memory"]["accesses"]), fewest["memory"]["senders"]
    if not accesses:
        return []
    scope = conditions_text(fewest["memory"].get("assumes", ()), "{} ")
    text = f"{scope}combining costs some rank at least {float(accesses):.4g} times nbytes of memory traffic"
    return labelled("memory", f"{text}; so little needs {plural(senders, 'sender')} to one rank at once")


def _gap_text(gap: float | None, optimum: str) -> str:
    """Return a gap to the bound in words."""
    if gap is None:
        return "nothing need be done, but the plan does something"
    return f"{gap:.4g} times {optimum}" + (" (proved optimal)" if gap == 1 else "")
