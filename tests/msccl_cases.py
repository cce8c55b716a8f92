"""Algorithms as others publish them, as MSCCL XML by hand; and files that we write, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable

import antiphon
from antiphon.core.program import Program
from antiphon.errors import AntiphonError
from antiphon.formats.msccl.write import xml_of
from antiphon.lower.lowering import lower

Step = tuple[str, str, int, str, int, int, int, int, int]  # type, src, offset, dst, offset, count, depid, deps, hasdep


def block(number: int, send: int, recv: int, steps: list[Step], channel: int = 0) -> str:
    lines = [f'    <tb id="{number}" send="{send}" recv="{recv}" chan="{channel}">\n']
    for s, (verb, src, src_at, dst, dst_at, count, after, step, flag) in enumerate(steps):
        lines.append(
            f'      <step s="{s}" type="{verb}" srcbuf="{src}" srcoff="{src_at}" dstbuf="{dst}" dstoff="{dst_at}" '
            f'cnt="{count}" depid="{after}" deps="{step}" hasdep="{flag}"/>\n'
        )
    return "".join([*lines, "    </tb>\n"])


def algorithm(
    coll: str, chunks: int, ranks: list[list[str]], sizes: tuple[int, int, int], *, in_place: bool = False,
    proto: str = "Simple", channels: int = 1, more: str = "",
) -> bytes:  # fmt: skip
    head = (
        f'<algo name="by-hand" proto="{proto}" nchannels="{channels}" nchunksperloop="{chunks}" ngpus="{len(ranks)}" '
    )
    head += f'coll="{coll}" inplace="{in_place:d}" outofplace="{not in_place:d}" minBytes="0" maxBytes="0"{more}>\n'
    told = f'i_chunks="{sizes[0]}" o_chunks="{sizes[1]}" s_chunks="{sizes[2]}"'
    inner = [f'  <gpu id="{rank}" {told}>\n{"".join(blocks)}  </gpu>\n' for rank, blocks in enumerate(ranks)]
    return "".join([head, *inner, "</algo>\n"]).encode()


def ring(n: int = 4) -> bytes:
    """P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations (2009): what has gone
    around once is the sum, and goes around once more. In place, each step one instruction."""
    ranks = []
    for rank in range(n):
        at = [(rank - step) % n for step in range(2 * n)]
        steps: list[Step] = [("s", "i", at[0], "i", at[0], 1, -1, -1, 0)]
        steps += [("rrs", "i", at[step], "i", at[step], 1, -1, -1, 0) for step in range(1, n - 1)]
        steps += [("rrcs", "i", at[n - 1], "i", at[n - 1], 1, -1, -1, 0)]
        steps += [("rcs", "i", at[step], "i", at[step], 1, -1, -1, 0) for step in range(n, 2 * n - 2)]
        steps += [("r", "i", at[2 * n - 2], "i", at[2 * n - 2], 1, -1, -1, 0)]
        ranks.append([block(0, (rank + 1) % n, (rank - 1) % n, steps)])
    return algorithm("allreduce", n, ranks, (n, 0, 0), in_place=True)


def allpairs(n: int = 3) -> bytes:
    """M. Cowan et al.: MSCCLang (ASPLOS 2023), All Pairs: everyone gathers its chunk from all, reduces it, and sends
    the result to all. Block 0 reduces; each other sends to one peer and receives from it."""
    ranks = []
    for rank in range(n):
        peers = [(rank + step) % n for step in range(1, n)]
        own: list[Step] = [("nop", "i", -1, "o", -1, 0, 1 + place, 1, 0) for place in range(n - 2)]
        own += [("re", "s", 0, "i", rank, 1, n - 1, 1, 1 if n == 2 else 0)]
        own += [("re", "s", place, "i", rank, 1, -1, -1, int(place == n - 2)) for place in range(1, n - 1)]
        blocks = [block(0, -1, -1, own)]
        for place, peer in enumerate(peers):
            steps: list[Step] = [
                ("s", "i", peer, "s", rank, 1, -1, -1, 0), ("r", "i", rank, "s", place, 1, -1, -1, 1),
                ("s", "i", rank, "i", rank, 1, 0, len(own) - 1, 0), ("r", "i", peer, "i", peer, 1, -1, -1, 0),
            ]  # fmt: skip
            blocks.append(block(1 + place, peer, peer, steps))
        ranks.append(blocks)
    return algorithm("allreduce", n, ranks, (n, n, n - 1), in_place=True, proto="LL")


def hierarchical() -> bytes:
    """MSCCLang (ASPLOS 2023), the hierarchical allreduce: reduce-scatter within nodes, allreduce among them, allgather
    within them; here two nodes of two ranks, each exchange with a channel of its own."""
    ranks = []
    for rank in range(4):
        near, far, mine, theirs = rank ^ 1, rank ^ 2, rank & 1, (rank & 1) ^ 1
        within: list[Step] = [
            ("s", "i", theirs, "i", theirs, 1, -1, -1, 0), ("rrc", "i", mine, "o", mine, 1, -1, -1, 1),
        ]  # fmt: skip
        among: list[Step] = [
            ("s", "o", mine, "o", mine, 1, 0, 1, 0), ("r", "s", 0, "s", 0, 1, -1, -1, 0),
            ("re", "s", 0, "o", mine, 1, -1, -1, 1),
        ]  # fmt: skip
        again: list[Step] = [
            ("s", "o", mine, "o", mine, 1, 1, 2, 0), ("r", "o", theirs, "o", theirs, 1, -1, -1, 0),
        ]  # fmt: skip
        ranks.append([block(0, near, near, within), block(1, far, far, among, 1), block(2, near, near, again, 2)])
    return algorithm("allreduce", 2, ranks, (2, 2, 1), channels=3)


def two_step() -> bytes:
    """MSCCLang (ASPLOS 2023), the two-step alltoall: what goes to one rank of another node is first gathered at the
    rank of one's own node with its number there, and crosses in one message; two nodes of two ranks."""
    ranks = []
    for rank in range(4):
        node, lane = divmod(rank, 2)
        near, far = rank ^ 1, rank ^ 2
        base, other = 2 * node, 2 * (1 - node)
        alone: list[Step] = [
            ("cpy", "i", rank, "o", rank, 1, -1, -1, 0), ("cpy", "i", far, "s", lane, 1, -1, -1, 1),
        ]  # fmt: skip
        within: list[Step] = [
            ("s", "i", near, "o", rank, 1, -1, -1, 0), ("s", "i", other + 1 - lane, "s", lane, 1, -1, -1, 0),
            ("r", "i", near, "o", near, 1, -1, -1, 0), ("r", "i", near, "s", 1 - lane, 1, -1, -1, 1),
        ]  # fmt: skip
        among: list[Step] = [
            ("nop", "i", -1, "o", -1, 0, 0, 1, 0), ("s", "s", 0, "o", base, 2, 1, 3, 0),
            ("r", "s", 0, "o", other, 2, -1, -1, 0),
        ]  # fmt: skip
        ranks.append([block(0, -1, -1, alone), block(1, near, near, within), block(2, far, far, among)])
    return algorithm("alltoall", 4, ranks, (4, 4, 2))


def doubling() -> bytes:
    """R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH (2005): the
    allgather by recursive doubling."""
    ranks = []
    for rank in range(4):
        near, far, pair = rank ^ 1, rank ^ 2, rank & 2
        first: list[Step] = [
            ("s", "i", 0, "o", rank, 1, -1, -1, 0), ("r", "i", 0, "o", near, 1, -1, -1, 1),
        ]  # fmt: skip
        second: list[Step] = [
            ("cpy", "i", 0, "o", rank, 1, -1, -1, 0), ("s", "o", pair, "o", pair, 2, 0, 1, 0),
            ("r", "o", pair ^ 2, "o", pair ^ 2, 2, -1, -1, 0),
        ]  # fmt: skip
        ranks.append([block(0, near, near, first), block(1, far, far, second)])
    return algorithm("allgather", 4, ranks, (1, 4, 0))


def binomial() -> bytes:
    """Thakur et al. (2005): the broadcast by a binomial tree, of four ranks from rank 1; who passes it on does so as it
    comes where it can."""
    first: list[Step] = [("s", "i", 0, "o", 0, 1, -1, -1, 0)]
    root = [block(0, 3, -1, first), block(1, 2, -1, first), block(2, -1, -1, [("cpy", "i", 0, "o", 0, 1, -1, -1, 0)])]
    passing = [block(0, 0, 1, [("rcs", "o", 0, "o", 0, 1, -1, -1, 0)])]
    leaf: list[Step] = [("r", "o", 0, "o", 0, 1, -1, -1, 0)]
    return algorithm("broadcast", 1, [[block(0, -1, 3, leaf)], root, [block(0, -1, 1, leaf)], passing], (1, 1, 0))


def both_ways() -> bytes:
    """Z. Cai et al.: Synthesizing optimal collective algorithms (PPoPP 2021): the allgather on a ring of four in two
    steps: both neighbours at first, then each half of the block of the rank opposite from either side."""
    ranks = []
    for rank in range(4):
        left, right, across = (rank - 1) % 4, (rank + 1) % 4, (rank + 2) % 4
        blocks = [block(0, -1, -1, [("cpy", "i", 0, "o", 2 * rank, 2, -1, -1, 0)])]
        for number, (to, source, half) in enumerate(((right, left, 0), (left, right, 1)), 1):
            steps: list[Step] = [
                ("s", "i", 0, "o", 2 * rank, 2, -1, -1, 0), ("r", "i", 0, "o", 2 * source, 2, -1, -1, 0),
                ("s", "o", 2 * source + half, "o", 2 * source + half, 1, -1, -1, 0),
                ("r", "o", 2 * across + half, "o", 2 * across + half, 1, -1, -1, 0),
            ]  # fmt: skip
            blocks.append(block(number, to, source, steps))
        ranks.append(blocks)
    return algorithm("allgather", 8, ranks, (2, 8, 0))


FOREIGN: dict[str, Callable[[], bytes]] = {
    "ring": ring, "allpairs": allpairs, "hierarchical": hierarchical, "two-step": two_step, "doubling": doubling,
    "binomial": binomial, "both-ways": both_ways,
}  # fmt: skip

DRAWN = [
    ("allreduce", "ring"), ("allreduce", "recursive-doubling"), ("allreduce", "halving-doubling"),
    ("allreduce", "direct"), ("allreduce", "recmult"), ("allreduce", "binomial-tree"), ("allreduce", "pairwise"),
    ("allgather", "bruck"), ("allgather", "direct"), ("allgather", "ring"), ("reducescatter", "bruck"),
    ("reducescatter", "pairwise"), ("reducescatter", "permrecmult"), ("alltoall", "bruck"), ("alltoall", "pairwise"),
    ("alltoall", "relay"), ("broadcast", "binomial-tree"), ("broadcast", "ring"), ("reduce", "binomial-tree"),
    ("reduce", "halving-doubling"), ("gather", "binomial-tree"), ("scatter", "binomial-tree"), ("gather", "relay"),
]  # fmt: skip


def program(coll: str, planner: str, topology: str, in_place: bool = False) -> Program:
    plan = antiphon.plan(coll, antiphon.topology(topology), planner=planner)
    return lower(plan.at(10**6).schedule, in_place=in_place)


def written(dice: random.Random) -> bytes | None:
    """A file of ours; None where there is none."""
    coll, planner = dice.choice(DRAWN)
    topology = f"{dice.choice(('full', 'ring'))}:ranks={dice.randint(3, 5)}"
    proto, instances = dice.choice(("Simple", "LL")), dice.choice((1, 1, 1, 2))
    try:
        made = program(coll, planner, topology, dice.random() < 0.5)
        return xml_of(made, proto=proto, instances=instances)
    except AntiphonError:
        return None
