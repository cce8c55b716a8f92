"""Write the rules of `nccl_tuner` as CSV, for the tuners built into RCCL and NCCLX and for NVIDIA's example plugin.

    RCCL, example plugin   collective, first and last byte, algorithm, protocol, channels, nodes, ranks, operations in
                           a pipeline, registered buffers; -1: any, or the library's own
    NCCLX                  collective, an interval of bytes per rank, algorithm, protocol, channels, nodes, ranks per
                           node, operations in a pipeline, registered buffers, chunk bytes (0: its own)

In both the first line that fits a call decides. A rule "ring simple with 16 channels for an allreduce of 1 to 2 MiB on
2 nodes of 8 ranks" becomes

    allreduce,1048576,2097151,ring,simple,16,2,16,-1,-1
    allreduce,[65536,131071],ring,simple,16,2,8,-1,-1,0

Every line must name a protocol. Where a rule leaves it to the library, its range is split where the protocol that the
model holds to be best changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from antiphon.core.files import read_bytes
from antiphon.core.plan import Plan
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.files import Files
from antiphon.formats.stock.nccl_tuner import (
    ALGORITHMS,
    MAX_MODELLED,
    PROTOCOLS,
    SUPPORTED,
    RangeRule,
    RuleTable,
    choose_rules,
)

CSV_FILE, NCCLX_FILE = "nccl-tuner.csv", "ncclx-tuner.csv"
CSV_COLUMNS = "# colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
NCCLX_COLUMNS = "# collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks,numPipeOps,regBuff,chunkSize"
ANY_BYTES = 2**64 - 1  # last byte of a range without end
# NCCL's ring serves every collective of the format.
_RULE = re.compile(
    rf"({'|'.join(SUPPORTED['ring'])}),\d{{1,20}},\d{{1,20}},({'|'.join(ALGORITHMS).replace('-', '_')}),"
    r"(ll|ll128|simple)"
    r"(,-?\d{1,9}){3,5}",  # channels, nodes, ranks, and perhaps numPipeOps, regBuff
    re.ASCII,
)
MAX_MERGED = 2**20  # bytes of a file to merge
WITH_PROTOCOLS = ("ring", "tree")  # all other algorithms have protocol simple alone


def nccl_csv(
    plans: Mapping[str, Plan], *, protocol: str = "auto", channels: int = 0, unproven: bool = False, merge: str = ""
) -> Files[str]:
    """Write rules for RCCL's built-in tuner (NCCL_TUNER_CONFIG_FILE), whose format NVIDIA's example plugin shares.

    Parameters
    ----------
    protocol, channels, unproven
        As of nccl-tuner.
    merge
        A file of this format, such as the table that RCCL ships, whose rules follow ours.
    """
    table = choose_rules("nccl-csv", plans, protocol, channels, unproven, has_chunks=False, has_auto=False)
    lines, notes = [table.title, CSV_COLUMNS], table.notes()  # the title is a comment, "# for ..."
    for kind, start, stop, rule in _with_protocols(table):
        last = ANY_BYTES if stop is None else stop - 1
        fields = (
            kind, start, last, rule.algorithm.replace("-", "_"), rule.protocol, rule.channels or -1, table.nodes,
            table.ranks, -1, -1,
        )  # fmt: skip
        lines.append(",".join(map(str, fields)))
    if merge:
        shipped = _read_rules(merge)
        lines += [f"# rules of {Path(merge).name[:100]}", *shipped]
        notes.append(f"rules of {merge}, behind ours: {len(shipped)}")
    elif table.name == "RCCL":
        notes.append(
            "the file takes the place of the table that RCCL ships (share/rccl/tuner/rccl_tuner_<arch>.csv): keep its "
            "rules by option merge=FILE"
        )
    if table.name == "NCCL":
        notes.append(
            "NVIDIA's example plugin gives calls without a line, and lines with channels -1, a single channel: let it "
            "begin with *nChannels = 0, or use nccl-tuner"
        )
    return Files({CSV_FILE: "\n".join(lines) + "\n"}, notes)


def ncclx_csv(
    plans: Mapping[str, Plan], *, protocol: str = "auto", channels: int = 0, unproven: bool = False
) -> Files[str]:
    """Write rules for the tuner built into NCCLX (NCCLX_TUNER_CONFIG_FILE).

    Parameters
    ----------
    protocol, channels, unproven
        As of nccl-tuner.
    """
    table = choose_rules("ncclx-csv", plans, protocol, channels, unproven, has_auto=False)
    ranks, nodes = table.ranks, table.nodes
    if ranks % nodes:
        raise Unsupported(f"ncclx-csv: {ranks} ranks on {nodes} nodes; NCCLX's rules need as many on each node")
    lines, notes = [table.title, NCCLX_COLUMNS], table.notes()  # the title is a comment, "# for ..."
    for kind, start, stop, rule in _with_protocols(table):
        # NCCLX divides bytes by ranks, rounding down: its interval may hold up to ranks - 1 bytes more than the range.
        low, high = -(-start // ranks), "" if stop is None else (stop - 1) // ranks
        if high != "" and int(high) < low:
            notes.append(f"left to NCCLX: {kind} from {start} to {stop} bytes: less than a byte per rank apart")
            continue
        fields = (
            kind, f"[{low},{high}]" if high != "" else f"[{low},)", rule.algorithm.replace("-", "_"), rule.protocol,
            rule.channels or -1, nodes, ranks // nodes, -1, -1, rule.chunk,
        )  # fmt: skip
        lines.append(",".join(map(str, fields)))
    return Files({NCCLX_FILE: "\n".join(lines) + "\n"}, notes)


def _with_protocols(table: RuleTable) -> Iterator[RangeRule]:
    """Yield the rules with a protocol each, split where the model's best protocol for the algorithm changes."""
    for range_rule in table.rules:
        if range_rule.rule.protocol != "auto":
            yield range_rule
        elif range_rule.rule.algorithm not in WITH_PROTOCOLS:
            yield range_rule._replace(rule=range_rule.rule._replace(protocol="simple"))
        else:
            yield from _split_by_protocol(range_rule, table)


def _split_by_protocol(item: RangeRule, table: RuleTable) -> Iterator[RangeRule]:
    """Split a range at the powers of two at which the model prefers another protocol."""
    last = MAX_MODELLED if item.stop is None else min(item.stop - 1, MAX_MODELLED)
    sizes = [item.start, *(size for size in (2**power for power in range(64)) if item.start < size <= last)]
    best = [_best_protocol(item, table, max(size, 1)) for size in sizes]
    starts = [i for i in range(len(sizes)) if i == 0 or best[i] != best[i - 1]]
    for i, following in zip(starts, [*starts[1:], None], strict=True):
        stop = item.stop if following is None else sizes[following]
        yield item._replace(start=sizes[i], stop=stop, rule=item.rule._replace(protocol=best[i]))


def _best_protocol(item: RangeRule, table: RuleTable, nbytes: int) -> str:
    """Return the protocol with which the model predicts the rule's algorithm to be fastest."""
    library = table.library
    for option in library.at(item.kind, nbytes) if library is not None else ():  # of each algorithm the fastest first
        if option.algorithm == item.rule.algorithm and option.protocol in PROTOCOLS:
            return option.protocol
    raise Unsupported(
        f"{item.kind} by {item.rule.algorithm}: this format needs a protocol, and the model has no figures here; name "
        "one by option protocol=simple, or export --to nccl-tuner"
    )


def _read_rules(path: str) -> list[str]:
    """Return the rules of a file of this format. Invalid if a line is none."""
    rules = []
    for number, line in enumerate(read_bytes(path, MAX_MERGED).decode("utf-8", "replace").splitlines(), 1):
        rule = re.sub(r"\s+", "", line)
        if not rule or rule.startswith(("#", "colltype", "collective_type")):
            continue
        if not _RULE.fullmatch(rule):
            raise Invalid(f"merge={path}, line {number}: {quote(line[:80])}: expected {CSV_COLUMNS[2:]}")
        rules.append(rule)
    return rules
