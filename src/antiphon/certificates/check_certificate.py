# mypy: ignore-errors
"""Check a frontier file of Antiphon with the Python standard library alone: python check_certificate.py FILE

frontier.schema.json, beside it, describes the format. Exit code 0: all holds; 1: the first error is printed; 2: FILE
cannot be read. Checked exactly, without code of the package, from the machine and the collective (`blocks`) in FILE:

    points       each schedule is run, sums in order; (C, S, R), gaps and labels follow from it and from the lines below
    bounds       on steps by distances, on R/C by prices of links and partitions; switches are taken to forward only
    impossible   by prices in each step, for every split of R; proofs by resolution are counted only
"""

import gzip
import itertools
import json
import math
import sys
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path

# A block is (weight, pre, post): two dicts, from the ranks that begin (end) with it to a Counter of their contributions
FAR = 10**30  # the cost of what cannot be reached
ABOUT = ("plan", "dual", "halves", "sums", "broadcast from ", "reduce to ")  # see `problem_of`
ERRORS = (AssertionError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def require(holds, statement):
    if not holds:
        raise AssertionError(statement)


class Machine:
    """Links (tail, head) between nodes: ranks, then switches. Resources: the links, then the shared limits."""

    def __init__(self, topology, backward=False):
        limits, self.ranks = topology.get("limits", []), topology["ranks"]
        self.nodes = self.ranks + topology.get("switches", 0)
        links = self.links = [(head, tail) if backward else (tail, head) for tail, head, _ in topology["links"]]
        rows = [topology["types"][kind] for *_, kind in topology["links"]] + limits + [{"bandwidth": topology["unit"]}]
        *rates, self.unit = [Fraction(str(row["bandwidth"]).removesuffix("B/s")) for row in rows]
        require(min(self.unit, *rates) > 0, "topology: a bandwidth is not positive")
        require({node for link in links for node in link} <= {*range(self.nodes)}, "topology: no such node")
        require(all(kind >= 0 for *_, kind in topology["links"]), "topology: no such type")
        require({x for limit in limits for x in limit["links"]} <= {*range(len(links))}, "topology: no such link")
        self.capacity = [rate / self.unit for rate in rates]  # per resource, in chunks per round
        numbered = list(enumerate(limits, len(links)))  # per link the resources that it loads:
        self.used_by = [[x, *(n for n, limit in numbered if x in limit["links"])] for x in range(len(links))]
        self.back = self if backward else Machine(topology, backward=True)

    def steps_from(self, starts):
        """Return the least number of steps to every node: a step crosses one link into a rank."""
        hops = {(x, 0): int(head < self.ranks) for x, (_, head) in enumerate(self.links)}
        return self.cheapest(starts, [0] * self.ranks, hops)

    def cheapest(self, starts, steps, lengths):
        """Return the least cost to every node (FAR: out of reach) in these steps, each over one link into a rank.
        `lengths`: by (link, step), 0 if missing; steps of one number, as in [0] * n, have the same lengths."""
        far = [0 if node in starts else FAR for node in range(self.nodes)]
        for step in steps:
            far[self.ranks :] = [FAR] * (self.nodes - self.ranks)
            for hop in range(self.ranks, self.nodes + 1):  # into switches, as often as there are any, then into ranks
                before = list(far)
                for link, (tail, head) in enumerate(self.links):
                    if (head < self.ranks) == (hop == self.nodes) and before[tail] < FAR:
                        far[head] = min(far[head], before[tail] + lengths.get((link, step), 0))
        return far

    def cheapest_tree(self, roots, steps, lengths):
        """Return the least cost of bringing a chunk from the roots to all ranks, where each other one receives once."""
        paid = {frozenset(roots): 0}  # by the set of ranks that have it
        for step in steps:
            cost = [self.cheapest([sender], [step], lengths) for sender in range(self.ranks)]
            for owners, total in list(paid.items()):
                later = {owners: total}  # sets that have it after this step
                for rank in set(range(self.ranks)) - owners:
                    price = min(cost[sender][rank] for sender in owners)
                    later |= {to | {rank}: total + price for to, total in later.items()}
                paid |= {to: min(total, paid.get(to, FAR)) for to, total in later.items()}
        return paid.get(frozenset(range(self.ranks)), FAR)

    def cheapest_pair(self, steps, lengths):
        """Return the least cost of a chunk's sends in an allreduce. 2 (n - 1) are a tree up to a rank and one down from
        it, or up to two ranks that exchange in step t, and down; or they are more (the first of `totals`)."""
        ranks = range(self.ranks)
        sends = {(u, t): self.cheapest([u], [t], lengths)[: self.ranks] for u in ranks for t in steps}
        totals = [(2 * self.ranks - 1) * min(min(row[:u] + row[u + 1 :]) for (u, _), row in sends.items())]
        for t, u, v in itertools.product(range(len(steps) + 1), ranks, ranks):
            if u == v or (u < v and t < len(steps)):  # u == v: one root, the steps before t lead up to it
                exchange = sends[u, t][v] + sends[v, t][u] if u < v else 0
                up = self.back.cheapest_tree({u, v}, steps[:t][::-1], lengths)
                totals.append(up + exchange + self.cheapest_tree({u, v}, steps[t + (u < v) :], lengths))
        return min(totals)


def run_schedule(machine, blocks, ordered, chunks, transfers):
    """Run a schedule; return C, S, R, and the time without latency. `chunks`: per chunk its block, cut evenly."""
    numbers = [*chunks, *(x for row in transfers for x in (*row[:7], *row[7]))]
    require(all(type(x) is int and x >= 0 for x in numbers), "a number of a chunk or transfer is negative or not whole")
    shares, steps, rounds, time = Counter(chunks), 1 + max(row[0] for row in transfers), 0, Fraction(0)
    require(all(shares[block] or not weight for block, (weight, _, _) in enumerate(blocks)), "a block has no chunk")
    count = max(sum(shares[b] for b, block in enumerate(blocks) if rank in block[1]) for rank in range(machine.ranks))
    values = {(rank, c, 0): ids for c, block in enumerate(chunks) for rank, ids in blocks[block][1].items()}
    for step in range(steps):
        loads, writes = Counter(), defaultdict(list)
        for _, chunk, src, dst, op, src_slot, dst_slot, path in (row for row in transfers if row[0] == step):
            where = f"step {step}, chunk {chunk}, rank {src} to {dst}: "
            tails, nodes = [machine.links[x][0] for x in path], [src, *(machine.links[x][1] for x in path)]
            require((src, chunk, src_slot) in values, where + "the sender has nothing to send")
            require([*tails, dst] == nodes and min(nodes[1:-1], default=FAR) >= machine.ranks, where + "no such route")
            require((path or src_slot != dst_slot) and op in (0, 1), where + "it does nothing")  # 0: copy, 1: add
            writes[dst, chunk, dst_slot].append((op, values[src, chunk, src_slot]))
            for resource in (x for link in path for x in machine.used_by[link]):
                loads[resource] += Fraction(blocks[chunks[chunk]][0], shares[chunks[chunk]])
        for cell, written in writes.items():
            require(len(written) == 1 or all(op for op, _ in written), f"step {step}: several writers of {cell}")
            own = [values[cell]] if written[0][0] and cell in values else []
            operands = sorted([*own, *(ids for _, ids in written)], key=min)
            in_order = all(max(a) < min(b) for a, b in itertools.pairwise(operands))
            require(in_order or not ordered, f"step {step}: {cell} is combined out of order")
            values[cell] = sum(operands, Counter())
        longest = max((load / machine.capacity[x] for x, load in loads.items()), default=Fraction(0))
        time, rounds = time + longest, rounds + math.ceil(longest * count / weight_of(blocks))
    for chunk, rank, target in ((c, *want) for c, block in enumerate(chunks) for want in blocks[block][2].items()):
        require(values.get((rank, chunk, 0)) == target, f"rank {rank} does not end with chunk {chunk}")
    return count, steps, max(rounds, steps), time  # by definition R is at least S


def weight_of(blocks, side=1):
    """Return the greatest weight that a rank begins with (side 1: `pre`) or ends with (side 2: `post`)."""
    return max(sum(b[0] for b in blocks if rank in b[side]) for rank in {rank for b in blocks for rank in b[side]})


def needs_of(block):
    """Return pairs (holders, rank): the rank needs a contribution that it lacks and only the holders can give."""
    initial, wants = block[1].items(), [(rank, want, name) for rank, want in block[2].items() for name in want]
    pairs = {(frozenset(h for h, ids in initial if ids[name] and ids <= want), rank) for rank, want, name in wants}
    return [(holders, rank) for holders, rank in pairs if rank not in holders]


def is_allreduce(blocks):
    """Return whether there is one block, and each rank needs a contribution of every other that no third rank has."""
    single = sum(len(holders) == 1 for holders, _ in needs_of(blocks[0]))
    return len(blocks) == 1 and set(blocks[0][1]) == set(blocks[0][2]) and single == math.perm(len(blocks[0][1]), 2)


def problem_of(machine, blocks, about):
    """Return the machine and blocks that an impossibility is about. plan: the collective, which only copies; dual: it
    backwards; sums: an allreduce; halves: the allgather in one; broadcast from r, reduce to r: a part of every one."""
    action, _, root = about.rpartition(" ")
    backward = about == "dual" or action == "reduce to"
    if about in ("plan", "sums"):
        require(about == "sums" or all(len(set().union(*b[1].values())) == 1 for b in blocks), "plan: it combines")
        return machine, blocks
    if about == "dual":
        for block in blocks:  # backwards, who begins with data receives: it must be needed, or the sole destination
            needed = {frozenset(block[2]), *(holders for holders, _ in needs_of(block))}
            require(1 in (len(block[1]), len(block[2])), "dual: a block goes from several ranks to several")
            require({frozenset([rank]) for rank in block[1]} <= needed, "dual: not every rank that has data is needed")
        pairs = [(b[0], b[2], b[1]) for b in blocks]
    else:
        is_contained = is_allreduce(blocks) if about == "halves" else action in ("broadcast from", "reduce to")
        require(is_contained, f"{about}: no such collective within this one")
        moves = [(*h, rank)[:: -1 if backward else 1] for h, rank in needs_of(blocks[0]) if len(h) == 1]
        roots = sorted(blocks[0][1]) if about == "halves" else [int(root)]  # a reduce is a broadcast backwards
        pairs = [(1, [root], [dest for source, dest in moves if source == root]) for root in roots]
        require(len(blocks) == 1 and all(dests for *_, dests in pairs), f"{about}: it contains no such thing")
    problem = [(weight, *({rank: Counter([0]) for rank in side} for side in sides)) for weight, *sides in pairs]
    return machine.back if backward else machine, problem


def evaluate(machine, blocks, dual, steps, by_trees=False):
    """Return B, V of a dual: rounds r_s and p parts of all blocks satisfy sum over steps of r_s B_s >= p V.

    At the prices, moves of step s cost r_s B_s at most. `shares` divide the price of a block's moves among families. In
    each the block pays for the cheapest path to its farthest rank; `by_trees` for the cheapest tree that takes a rank's
    input to all or all to a rank; without shares for the cheapest pair of trees. Without steps, prices hold always.
    """
    price, times = {(x, s): amount for x, s, amount in dual["prices"]}, range(steps) or [0] * machine.ranks
    ends, value = machine.links, 0
    cost = {(x, s): sum(price.get((y, s), 0) for y in used) for x, used in enumerate(machine.used_by) for s in times}
    # A partition takes from every link's cost `number` times the parts that it leaves (or enters). An allreduce
    # crosses between k parts with data at least 2 (k - 1) times: k - 1 to gather all in one, k - 1 to spread the sum.
    for node_lists, entering, number in dual.get("partitions", []):
        places, (weight, pre, _), count = [set(place) for place in node_lists], blocks[0], max(int(number), 0)
        once = sorted(rank for place in places for rank in place if rank < machine.ranks) == list(range(machine.ranks))
        require(once and not steps and is_allreduce(blocks), "a partition bounds allreduces only")
        for link, pair in enumerate(ends):
            cost[link, 0] -= count * sum((pair[entering] in place) > (pair[1 - entering] in place) for place in places)
        value += count * 2 * (sum(not place.isdisjoint(pre) for place in places) - 1) * weight
    shares = {block: share for share in dual["shares"] for block in share["blocks"]}
    for number, block in enumerate(blocks):
        needs, share = needs_of(block), shares.get(number, {"families": [None], "potentials": [], "trees": [None]})
        phi = {(switch, s): amount for switch, s, amount in share["potentials"]}  # they cancel over every path
        net_cost = {(x, s): cost[x, s] + phi.get((ends[x][1], s), 0) - phi.get((ends[x][0], s), 0) for x, s in cost}
        families = [net_cost if rows is None else {(x, s): n for x, s, n in rows} for rows in share["families"]]
        amounts = [*price.values(), *map(abs, phi.values()), *(n for family in families for n in family.values())]
        is_valid = all(type(amount) is int and amount >= 0 for amount in amounts)
        require(is_valid and all(x >= machine.ranks for x, _ in phi), "a price is not allowed")
        is_sum = len(block[1]) == machine.ranks and is_allreduce(blocks)
        require(is_sum or not by_trees, "sums: no allreduce of all ranks")
        # Families may pay more than the net cost only for useless moves: too early, too late, or to a holder.
        early, late = machine.steps_from(block[1]), machine.back.steps_from({rank for _, rank in needs})
        for x, s in [key for key, limit in net_cost.items() if sum(family.get(key, 0) for family in families) > limit]:
            tail, head = ends[x]
            useful = early[tail] <= s < steps - late[head] and any(head not in holders for holders, _ in needs)
            require(steps and not by_trees and not useful, "a move pays more than it costs")
        for tree, lengths in zip(share["trees"], families, strict=True) if by_trees else ():
            if tree is None:  # the whole price is paid by a pair of trees
                value += block[0] * machine.cheapest_pair(times, lengths)
            else:
                side, order = (machine.back, times[::-1]) if tree[1] else (machine, times)  # toward the root, or away
                value += block[0] * side.cheapest_tree({tree[0]}, order, lengths)
        for lengths in families if needs and not by_trees else ():
            far = {starts: machine.cheapest(starts, times, lengths) for starts, _ in needs}
            value += block[0] * max(far[starts][rank] for starts, rank in needs)
    require(value < FAR, "a rank is out of reach")
    return [sum(price.get((x, s), 0) * n for x, n in enumerate(machine.capacity)) for s in sorted({*times})], value


def check_impossible(machine, blocks, entry):
    """Return the least rounds per part that an impossibility proves, or the (parts, rounds) that it excludes."""
    problem, steps = problem_of(machine, blocks, entry["about"]), entry["steps"]
    duals = entry.get("duals", entry.get("pairs", []))  # pairs: of sums, duals without shares
    values = [evaluate(*problem, dual, steps, by_trees=entry["about"] == "sums") for dual in duals]
    require(values or entry["about"] == "sums" or "sends" not in entry, "impossible: sends bound sums only")
    if "ratio_below" in entry:  # without duals: each chunk crosses `sends` links (proved elsewhere); capacities add up
        budget, value = values[0] if values else ([sum(machine.capacity[: len(machine.links)])], entry["sends"])
        ratio = Fraction(value) / max(budget) / weight_of(problem[1])
        require(entry["ratio_below"] == str(ratio), f"impossible: in {steps} steps the dual proves R/C >= {ratio}")
        return ratio * weight_of(problem[1]), None
    p, rounds = Fraction(entry["chunks"], weight_of(problem[1])), entry["rounds"]
    require(p.denominator == 1 and type(rounds) is int, "impossible: chunks or rounds are not whole")
    # a dual with rounds * max(B) < p V forbids every split; else each split must be forbidden by some dual
    if values and not any(rounds * max(budget) < p * value for budget, value in values):
        for marks in itertools.combinations(range(1, rounds), steps - 1):
            split = [b - a for a, b in itertools.pairwise((0, *marks, rounds))]
            forbidden = any(sum(r * b for r, b in zip(split, x, strict=True)) < p * value for x, value in values)
            require(forbidden, f"impossible: no dual forbids rounds {split} in {steps} steps")
    return None, (p, rounds)


def check_point(machine, blocks, ordered, point, least_steps, least_ratio, excluded):
    """Check a point by the bounds on S and R/C. `excluded`: (about, steps) -> results of `check_impossible`."""
    chunks, steps, rounds, time = run_schedule(machine, blocks, ordered, point["chunk_blocks"], point["transfer_rows"])
    ratio, halves = Fraction(rounds, chunks), point["about"] == "halves"
    # in halves: an allgather of a block per rank, backwards, then forwards; proofs are about one, in half the rounds
    phases, weight = (2, len(blocks[0][1])) if halves else (1, weight_of(blocks))
    per_part = ratio * weight / phases  # rounds per part of the problem that proofs are about
    proofs = excluded.get((point["about"], steps / phases), [])  # a bound above this point is about another form
    bound = max((x for x, _ in proofs if x is not None and x <= per_part), default=Fraction(0))
    figures = {  # the bound on a half says nothing about other allreduces
        "chunks": chunks, "steps": steps, "rounds": rounds, "ratio": str(ratio), "latency_gap": steps / least_steps,
        "transfers": len(point["transfer_rows"]), "bandwidth_gap": float(time / (least_ratio * weight_of(blocks))),
        "least_ratio": point["least_ratio"] and str(max(least_ratio, 0 if halves else bound / weight)),
    }  # fmt: skip
    for key, value in figures.items():
        require(point[key] == value, f"({chunks}, {steps}, {rounds}): {key} is {value}, not {point[key]}")
    if point["proof"] == "proved-optimal":
        require(ratio == least_ratio or per_part <= bound, f"({chunks}, {steps}, {rounds}): nothing proves it optimal")
    elif point["proof"] == "proved-optimal-for-k":
        for r in range(steps // phases, steps // phases + point["k"] + 1):
            for p in range(math.floor(r / per_part) + 1, math.floor(r / bound) + 1):
                better = any(refuted and refuted[0] <= p and r <= refuted[1] for _, refuted in proofs)
                require(better, f"({chunks}, {steps}, {rounds}): nothing refutes {p} parts in {r} rounds")
    require(point["proof"] in ("best-found-in-budget", "proved-optimal", "proved-optimal-for-k"), "an unknown label")
    require(point["about"].rstrip("0123456789") in ABOUT, "about is unknown")


def check(file):
    """Check every statement of a file; return the number of impossibilities that neither duals nor the bound prove."""
    machine, excluded = Machine(file["topology"]), defaultdict(list)
    blocks = [(w, *({rank: Counter(ids) for rank, ids in side} for side in sides)) for w, *sides in file["blocks"]]
    require(all(len(dict(side)) == len(side) for _, *sides in file["blocks"] for side in sides), "ranks: one is twice")
    require({r for _, a, b in blocks for r in (*a, *b)} <= {*range(machine.ranks)}, "blocks: no such rank")
    weights = [weight for weight, *_ in blocks]  # smallest whole numbers: a block is cut into a multiple of its weight
    require(min(weights) >= 0 and math.gcd(*weights) == 1, "blocks: a weight is negative, or all have a common divisor")
    least_steps = max(machine.steps_from(h)[rank] for block in blocks if block[0] for h, rank in needs_of(block))
    (budget,), value = evaluate(machine, blocks, file["bandwidth"]["dual"], steps=0)
    least_ratio = Fraction(value) / budget / weight_of(blocks)
    largest = max(weight_of(blocks), weight_of(blocks, side=2))
    nbytes_weight = file.get("nbytes_weight", largest)  # joint collectives: the largest buffer of a group
    require(type(nbytes_weight) is int and 0 < nbytes_weight <= largest, "nbytes_weight: no buffer has this weight")
    require(file["latency_steps"] == least_steps, f"latency_steps: distances prove {least_steps}")
    require(file["bandwidth"]["inverse"] == str(least_ratio), f"bandwidth.inverse: its dual proves {least_ratio}")
    rate = machine.unit * nbytes_weight / (least_ratio * weight_of(blocks))
    require(Fraction(file["bandwidth"]["bytes_per_second"]) == rate, f"bandwidth.bytes_per_second: is {rate}")
    for entry in file["impossible"]:
        excluded[entry["about"], entry["steps"]].append(check_impossible(machine, blocks, entry))
    for point in file["points"]:
        check_point(machine, blocks, file["collective"].get("ordered"), point, least_steps, least_ratio, excluded)
    without_duals = [entry for entry in file["impossible"] if not (entry.get("duals") or entry.get("pairs"))]
    return sum(Fraction(entry.get("ratio_below", FAR)) > least_ratio for entry in without_duals)


def main(path):
    try:
        data = Path(path).read_bytes()
        file = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        require(file["format"] == "antiphon-frontier" and file["version"] == 1, "not a frontier file of version 1")
        print(f"right: {len(file['points'])} points, {len(file['impossible'])} impossibilities, {check(file)} unproved")
        return 0
    except (OSError, EOFError, *ERRORS) as error:
        print(f"WRONG: {path}: {error if isinstance(error, AssertionError) else repr(error)}")
        return 2 if isinstance(error, OSError | EOFError | json.JSONDecodeError) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else __doc__)
