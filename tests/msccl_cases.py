"""Algorithms as others publish them, as MSCCL XML by hand (`foreign/msccl`); and files that we write, drawn at random.

- `ring`: P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations (2009). In place.
- `allpairs`: M. Cowan et al.: MSCCLang (ASPLOS 2023), All Pairs. Block 0 reduces; each other serves one peer.
- `hierarchical`: MSCCLang, the hierarchical allreduce, of two nodes of two ranks, with a channel for each exchange.
- `two-step`: MSCCLang, the two-step alltoall, of two nodes of two ranks.
- `doubling`: R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH (2005):
  the allgather by recursive doubling.
- `binomial`: Thakur et al.: the broadcast by a binomial tree of four ranks, from rank 1.
- `both-ways`: Z. Cai et al.: Synthesizing optimal collective algorithms (PPoPP 2021): the allgather on a ring of four.
"""

import random
from pathlib import Path

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


FOREIGN = {
    name: (Path(__file__).parent / "foreign" / "msccl" / f"{name}.xml").read_bytes()
    for name in ("ring", "allpairs", "hierarchical", "two-step", "doubling", "binomial", "both-ways")
}

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
