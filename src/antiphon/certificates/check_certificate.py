# mypy: ignore-errors
"""Check a frontier file of Antiphon with the Python standard library alone: python check_certificate.py FILE

frontier.schema.json, beside it, describes the format. Exit code 0: all holds; 1: the first error is printed; 2: FILE
cannot be read. Checked exactly, without code of the package, for the blocks of a named collective or custom ones:

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

# A block is (weight, pre, post): two dicts, from ranks that begin (end) with it to a Counter of their contributions.
# A need is (holders, rank): the rank must get a contribution that only the holders can give.
# Sends are a list with a dict per step: (sender, receiver) -> the least cost of a send, if there is one; to itself 0.
FAR = 10**30  # the cost of what cannot be reached
ERRORS = (AssertionError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def require(holds, statement):
    if not holds:
        raise AssertionError(statement)


class Machine:
    """Links (tail, head) between nodes: ranks, then switches. Resources: the links, then the shared limits."""

    def __init__(self, topology):
        links, limits, self.ranks = topology["links"], topology.get("limits", []), range(topology["ranks"])
        self.links = [(tail, head) for tail, head, _ in links]
        self.switches = {node for link in self.links for node in link} - {*self.ranks}
        rows = [topology["types"][kind] for *_, kind in links] + limits + [{"bandwidth": topology["unit"]}]
        *rates, self.unit = [Fraction(str(row["bandwidth"]).removesuffix("B/s")) for row in rows]
        require(min(self.unit, *rates) > 0, "topology: a bandwidth is not positive")
        nodes = range(len(self.ranks) + topology.get("switches", 0))
        require(self.switches <= {*nodes}, "topology: no such node")
        require(all(kind >= 0 for *_, kind in links), "topology: no such type")
        require({x for limit in limits for x in limit["links"]} <= {*range(len(links))}, "topology: no such link")
        self.capacity = [rate / self.unit for rate in rates]  # per resource, in chunks per round
        numbered = list(enumerate(limits, len(links)))  # per link the resources that it loads:
        self.used_by = [[x, *(n for n, limit in numbered if x in limit["links"])] for x in range(len(links))]

    def sends(self, steps, lengths):
        """Return the sends in these steps, over one link or several through switches. `lengths`: by (link, step)."""
        sends = {}
        for step in {*steps}:
            far = defaultdict(lambda: FAR, {(rank, rank): 0 for rank in self.ranks})
            for link, (tail, head) in [*enumerate(self.links)] * (len(self.switches) + 1):
                for sender in self.ranks if tail in self.switches else [tail]:
                    far[sender, head] = min(far[sender, head], far[sender, tail] + lengths.get((link, step), 0))
            sends[step] = {pair: cost for pair, cost in far.items() if pair[1] in self.ranks and cost < FAR}
        return [sends[step] for step in steps]

    def cheapest_paths(self, starts, sends):
        """Return the least cost from the starts to every rank."""
        far = [0 if rank in starts else FAR for rank in self.ranks]
        for step in sends:
            before = list(far)
            for (sender, rank), cost in step.items():
                far[rank] = min(far[rank], before[sender] + cost)
        return far

    def cheapest_tree(self, roots, sends, toward=False):
        """Return the least cost of bringing a chunk from the roots to all ranks, where each other one receives once."""
        if toward:  # from all ranks to the roots: the same, backwards
            sends = [{(receiver, sender): cost for (sender, receiver), cost in step.items()} for step in sends[::-1]]
        paid = {frozenset(roots): 0}  # by the set of ranks that have it
        for step in sends:
            for owners, total in list(paid.items()):
                later = {owners: total}  # sets that have it after this step
                for rank in set(self.ranks) - owners:
                    price = min(step.get((sender, rank), FAR) for sender in owners)
                    later |= {to | {rank}: total + price for to, total in later.items()}
                paid |= {to: min(total, paid.get(to, FAR)) for to, total in later.items()}
        return paid.get(frozenset(self.ranks), FAR)

    def cheapest_pair(self, sends):
        """Return the least cost of a chunk's sends in an allreduce. 2 (n - 1) are a tree up to a rank and one down from
        it, or up to two ranks that exchange in step t, and down; or they are more (the first of `totals`)."""
        cheapest_send = min(cost for step in sends for (u, v), cost in step.items() if u != v)
        totals, steps = [(2 * len(self.ranks) - 1) * cheapest_send], len(sends)
        for t, u, v in itertools.product(range(steps + 1), self.ranks, self.ranks):
            if u == v or (u < v and t < steps):  # u == v: one root, the steps before t lead up to it
                exchange = sends[t].get((u, v), FAR) + sends[t].get((v, u), FAR) if u < v else 0
                up = self.cheapest_tree({u, v}, sends[:t], toward=True)
                totals.append(up + exchange + self.cheapest_tree({u, v}, sends[t + (u < v) :]))
        return min(totals)


def run_schedule(machine, blocks, ordered, chunks, transfers):
    """Run a schedule; return C, S, R, and the time without latency. `chunks`: per chunk its block, cut evenly."""
    numbers = [*chunks, *(x for row in transfers for x in (*row[:7], *row[7]))]
    require(all(type(x) is int and x >= 0 for x in numbers), "a number of a chunk or transfer is negative or not whole")
    shares, steps, rounds, time = Counter(chunks), 1 + max(row[0] for row in transfers), 0, Fraction(0)
    require(all(shares[block] or not weight for block, (weight, *_) in enumerate(blocks)), "a block has no chunk")
    count = weight_of([(shares[block], *sides) for block, (_, *sides) in enumerate(blocks)])
    values = {(rank, c, 0): ids for c, block in enumerate(chunks) for rank, ids in blocks[block][1].items()}
    for step in range(steps):
        loads, writes = Counter(), defaultdict(list)
        for _, chunk, src, dst, op, src_slot, dst_slot, path in (row for row in transfers if row[0] == step):
            where = f"step {step}, chunk {chunk}, rank {src} to {dst}: "
            tails, nodes = [machine.links[x][0] for x in path], [src, *(machine.links[x][1] for x in path)]
            require((src, chunk, src_slot) in values, where + "the sender has nothing to send")
            require([*tails, dst] == nodes and {*nodes} - machine.switches == {src, dst}, where + "no such route")
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


def members_of_allreduce(problem):
    """Return the ranks that each need what every other one alone can give, if there is one block; else none."""
    pairs = {(*holders, rank) for _, needs in problem for holders, rank in needs if len(holders) == 1}
    members = {rank for pair in pairs for rank in pair}
    return members if len(problem) == 1 and pairs == {*itertools.permutations(members, 2)} else set()


def problem_of(blocks, about):
    """Return the problem of an impossibility: (weight, needs) per block, the weight of a part, -1 if steps run back.
    `about`: halves: the allgather in an allreduce; broadcast from r, reduce to r: some of its needs; else all needs."""
    problem, (action, _, root) = [], about.rpartition(" ")
    for weight, pre, post in blocks:
        require(about != "plan" or len({*itertools.chain(*pre.values())}) < 2, "plan: it combines")
        wants = [(rank, want, name) for rank, want in post.items() for name in want]
        givers = [frozenset(r for r, ids in pre.items() if ids[name] and ids <= want) for _, want, name in wants]
        problem.append((weight, {(h, rank) for h, (rank, *_) in zip(givers, wants, strict=True) if rank not in h}))
    if about == "halves":
        members = sorted(members_of_allreduce(problem))
        return [(1, {need for need in problem[0][1] if need[0] == {rank}}) for rank in members], 1, 1
    if action:
        key = int(root) if action == "reduce to" else frozenset([int(root)])
        problem = [(weight, {need for need in needs if key in need}) for weight, needs in problem]
    return problem, weight_of(blocks, side=2 if about == "dual" else 1), -1 if about[:6] in ("dual", "reduce") else 1


def evaluate(machine, problem, dual, times, by_trees=False):
    """Return B, V of a dual: rounds r_s and p parts of all blocks satisfy sum over steps of r_s B_s >= p V. `times` has
    the steps in order of time; [0, 0, ...] if prices always hold. `by_trees`: families pay for trees, not for paths."""
    price, members, value = {(x, s): amount for x, s, amount in dual["prices"]}, members_of_allreduce(problem), 0
    cost = {(x, s): sum(price.get((y, s), 0) for y in used) for x, used in enumerate(machine.used_by) for s in times}
    # A partition takes from every link's cost `number` times the parts that it leaves (or enters). An allreduce
    # crosses between k parts with data at least 2 (k - 1) times: k - 1 to gather all in one, k - 1 to spread the sum.
    for node_lists, entering, number in dual.get("partitions", []):
        places, count = [set(place) for place in node_lists], max(int(number), 0)
        once = sorted(rank for place in places for rank in place if rank in machine.ranks) == [*machine.ranks]
        require(once and members and not any(times), "a partition bounds allreduces only")
        for link, pair in enumerate(machine.links):
            cost[link, 0] -= count * sum((pair[entering] in place) > (pair[1 - entering] in place) for place in places)
        value += count * 2 * (sum(not place.isdisjoint(members) for place in places) - 1)
    require(min(min(step.values()) for step in machine.sends(times, cost)) >= 0, "partitions take more than the price")
    require(not by_trees or members == {*machine.ranks}, "sums: no allreduce of all ranks")
    unpaid = {*range(len(problem))}
    for share in [*dual["shares"], {"families": [None]}]:  # the last: all other blocks pay the whole cost
        payers = unpaid & {*share.get("blocks", unpaid)}
        unpaid -= payers
        families = [cost if rows is None else {(x, s): n for x, s, n in rows} for rows in share["families"]]
        require(all(type(n) is int and n >= 0 for row in (price, *families) for n in row.values()), "a price is wrong")
        # All families may pay as much for a send as it costs. Else it is free, as if it came too early to be of use.
        surplus = {key: amount - sum(lengths.get(key, 0) for lengths in families) for key, amount in cost.items()}
        surplus_by_send = machine.sends(times, surplus)
        for lengths, tree in zip(families, share.get("trees") or [None] * len(families), strict=True):
            sends = machine.sends(times, lengths)
            for step, surpluses in zip(sends, surplus_by_send, strict=True):
                step |= {pair: 0 for pair, amount in surpluses.items() if amount < 0}
            for weight, needs in (problem[number] for number in payers):
                if not by_trees:
                    paths = {starts: machine.cheapest_paths(starts, sends) for starts, _ in needs}
                    value += weight * max((paths[starts][rank] for starts, rank in needs), default=0)
                elif tree:  # its root, and whether it leads there
                    value += weight * machine.cheapest_tree({tree[0]}, sends, toward=tree[1])
                else:  # the whole price is paid by a pair of trees
                    value += weight * machine.cheapest_pair(sends)
    require(value < FAR, "a rank is out of reach")
    return [sum(price.get((x, s), 0) * n for x, n in enumerate(machine.capacity)) for s in sorted({*times})], value


def check_impossible(machine, blocks, entry):
    """Return the least rounds per part that an impossibility proves, or the (parts, rounds) that it excludes."""
    about, steps, duals = entry["about"], entry["steps"], entry.get("duals") or entry.get("pairs") or []
    problem, weight, direction = problem_of(blocks, about)
    values = [evaluate(machine, problem, dual, range(steps)[::direction], by_trees=about == "sums") for dual in duals]
    if "ratio_below" in entry:  # sums without duals: each chunk crosses `sends` links (proved elsewhere)
        all_links = [sum(machine.capacity[: len(machine.links)])]
        budget, value = values[0] if values else (all_links, entry["sends"] if about == "sums" else 0)
        ratio = Fraction(value) / max(budget)
        require(entry["ratio_below"] == str(ratio / weight), f"impossible: in {steps} steps R/C >= {ratio / weight}")
        return ratio, (FAR, 0)
    p, rounds = Fraction(entry["chunks"], weight), entry["rounds"]
    require(p.denominator == 1 and type(rounds) is int, "impossible: chunks or rounds are not whole")
    # a dual with rounds * max(B) < p V forbids every split; else each split must be forbidden by some dual
    if values and not any(rounds * max(budget) < p * value for budget, value in values):
        for marks in itertools.combinations(range(1, rounds), steps - 1):
            split = [b - a for a, b in itertools.pairwise((0, *marks, rounds))]
            forbidden = any(sum(r * b for r, b in zip(split, x, strict=True)) < p * value for x, value in values)
            require(forbidden, f"impossible: no dual forbids rounds {split} in {steps} steps")
    return 0, (p, rounds)


def check_point(machine, blocks, ordered, point, least_steps, least_ratio, excluded):
    """Check a point by the bounds on S and R/C. `excluded`: (about, steps) -> results of `check_impossible`."""
    chunks, steps, rounds, time = run_schedule(machine, blocks, ordered, point["chunk_blocks"], point["transfer_rows"])
    name, ratio, halves = f"({chunks}, {steps}, {rounds}): ", Fraction(rounds, chunks), point["about"] == "halves"
    # in halves: an allgather of a block per rank, backwards, then forwards; proofs are about one, in half the rounds
    phases, weight = (2, len(blocks[0][1])) if halves else (1, weight_of(blocks))
    per_part = ratio * weight / phases  # rounds per part of the problem that proofs are about
    proofs = excluded.get((point["about"], steps / phases), [])  # a bound above this point is about another form
    bound = max((lower for lower, _ in proofs if lower <= per_part), default=0)
    figures = {  # the bound on a half says nothing about other allreduces
        "chunks": chunks, "steps": steps, "rounds": rounds, "ratio": str(ratio), "latency_gap": steps / least_steps,
        "transfers": len(point["transfer_rows"]), "bandwidth_gap": float(time / (least_ratio * weight_of(blocks))),
        "least_ratio": point["least_ratio"] and str(max(least_ratio, 0 if halves else bound / weight)),
    }  # fmt: skip
    for key, value in figures.items():
        require(point[key] == value, f"{name}{key} is {value}, not {point[key]}")
    if point["proof"] == "proved-optimal":
        require(ratio == least_ratio or per_part == bound, name + "nothing proves it optimal")
    elif point["proof"] == "proved-optimal-for-k":
        for r in range(steps // phases, steps // phases + point["k"] + 1):
            p = math.floor(r / per_part) + 1  # the fewest that would be better
            better = r < bound * p or any(refuted_p <= p and r <= refuted_r for _, (refuted_p, refuted_r) in proofs)
            require(better, f"{name}nothing refutes {p} parts in {r} rounds")
    else:
        require(point["proof"] == "best-found-in-budget", name + "its label is unknown")


def named_blocks(collective):
    """Return the blocks of a named collective, by who wants them, then by who contributes to them."""
    members, roots = collective.get("members", range(collective["ranks"])), collective.get("roots", [])
    together, each, root = [members], [[rank] for rank in members], [[rank] for rank in roots]
    sources, goals = {
        "broadcast": (root, together), "reduce": (together, root), "scatter": (root, each), "gather": (each, root),
        "allgather": (each, together), "reducescatter": (together, each), "allreduce": (together, together),
        "alltoall": (each, each),
    }[collective["kind"]]  # fmt: skip
    sides = [({a: Counter([a]) for a in pre}, {b: Counter(pre) for b in post}) for post in goals for pre in sources]
    return [(w, *pair) for w, pair in zip(collective.get("weights", [1] * len(sides)), sides, strict=True)]


def check(file):
    """Check every statement of a file; return the number of impossibilities that neither duals nor the bound prove."""
    machine, collective, excluded = Machine(file["topology"]), file["collective"], defaultdict(list)
    blocks = [(w, *({rank: Counter(ids) for rank, ids in side} for side in sides)) for w, *sides in file["blocks"]]
    if collective.get("kind", "custom") != "custom":
        require(blocks == named_blocks(collective), "blocks: are not those of the collective")
    require({r for _, a, b in blocks for r in (*a, *b)} <= {*machine.ranks}, "blocks: no such rank")
    weights = [weight for weight, *_ in blocks]  # smallest whole numbers: a block is cut into a multiple of its weight
    require(min(weights) >= 0 and math.gcd(*weights) == 1, "blocks: a weight is negative, or all have a common divisor")
    problem, weight, _ = problem_of(blocks, "sums")
    into_ranks = {(x, 0): int(head in machine.ranks) for x, (_, head) in enumerate(machine.links)}
    hops = machine.sends([0] * len(machine.ranks), into_ranks)  # a step crosses one link into a rank
    least_steps = max(machine.cheapest_paths(h, hops)[rank] for w, needs in problem if w for h, rank in needs)
    (budget,), value = evaluate(machine, problem, file["bandwidth"]["dual"], [0] * len(machine.ranks))
    least_ratio, largest = Fraction(value) / budget / weight, max(weight, weight_of(blocks, side=2))
    nbytes_weight = file.get("nbytes_weight", largest)  # joint collectives: the largest buffer of a group
    require(type(nbytes_weight) is int and 0 < nbytes_weight <= largest, "nbytes_weight: no buffer has this weight")
    rate = machine.unit * nbytes_weight / (least_ratio * weight)
    require(file["latency_steps"] == least_steps, f"latency_steps: distances prove {least_steps}")
    require(file["bandwidth"]["inverse"] == str(least_ratio), f"bandwidth.inverse: its dual proves {least_ratio}")
    require(Fraction(file["bandwidth"]["bytes_per_second"]) == rate, f"bandwidth.bytes_per_second: is {rate}")
    subjects = {entry["about"].rstrip("0123456789") for entry in [*file["points"], *file["impossible"]]}
    require(subjects <= {"plan", "dual", "halves", "sums", "broadcast from ", "reduce to "}, "about: one is unknown")
    for entry in file["impossible"]:
        excluded[entry["about"], entry["steps"]].append(check_impossible(machine, blocks, entry))
    for point in file["points"]:
        check_point(machine, blocks, collective.get("ordered"), point, least_steps, least_ratio, excluded)
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
