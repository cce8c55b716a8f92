"""Memory that loaders take above an idle process, in times the size of the file: at most 20, or the file is refused.

    python bench/bench_loaders.py [--sizes 1,10,50] [--only topology] [--save]

Each file is made of the smallest parts that its format knows, again and again: what takes most memory for its bytes.
Every load is in a process of its own, after a small file of the same kind; its peak is VmHWM, reset before it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import gzip
import json
import os
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from _common import print_machine, print_table, save

MOST = 20.0
MB = 10**6
KIND = '"types":[{"kind":"a","bandwidth":1}]'
TOPOLOGY = '{"format":"antiphon-topology","version":1,"name":"t","ranks":2,'
COLLECTIVE = '{"format":"antiphon-collective","version":1,'
GATHER = COLLECTIVE + '"kind":"allgather","ranks":9,'
PROFILE = '{"format":"antiphon-profile","version":1,"name":"p",'
INNER = (
    f'"topology":{{"name":"t","ranks":2,{KIND},"links":[[0,1,0],[1,0,0]]}},'
    '"collective":{"kind":"allgather","ranks":2}'
)
CHUNKS = '"chunks":{"block":[0,1],"offset":[0,0],"share":[1,1],"denominator":1}'
COLUMNS = ("step", "chunk", "src", "dst", "op")


def filled(head: str, part: str, tail: str, size: int, first: str = "", joint: str = ",") -> bytes:
    """The part as often as the size allows."""
    count = max((size - len(head) - len(tail)) // (len(part) + len(joint)), 1)
    return (head + first + joint.join([part] * count) + tail).encode()


def plan(schedule: str, more: str = "") -> str:
    return f'{{"format":"antiphon-plan","version":1,{INNER},"entries":[{{"schedule":{{{schedule}}}{more}}}]}}'


def columns(size: int, value: str = "0", pick: tuple[str, ...] = COLUMNS) -> bytes:
    each = max(size // len(pick) // (len(value) + 1), 1)
    text = ",".join(f'"{name}":[{",".join([value] * each)}]' for name in pick)
    return plan(f"{CHUNKS},{text}").encode()


def around(whole: str, part: str, size: int, joint: str = ",") -> bytes:
    head, _, tail = whole.partition("@")
    return filled(head, part, tail, size, joint=joint)


def _numbered(size: int) -> bytes:
    one = plan(f"{CHUNKS},{EMPTY}")
    parts = (f'"k{i}":{one}' for i in range(size // (len(one) + 10)))
    return ('{"format":"antiphon-table","version":1,"plans":{' + ",".join(parts) + "}}").encode()


def keyed(whole: str, size: int) -> bytes:
    head, _, tail = whole.partition("@")
    return (head + ",".join(f'"{i}":0' for i in range(size // 10)) + tail).encode()


def lines(head: str, line: str, size: int) -> bytes:
    return filled(head + "\n", line, "\n", size, joint="\n")


def _rows(size: int) -> bytes:
    return ("s,L,o_s,o_r,g,G\n" + "\n".join(f"{i},0,0,0,0,0" for i in range(1, size // 17))).encode()


def _transfers(size: int) -> bytes:
    text = "".join(f'<transfer id="{i}" size="1" src="0" dst="1" deps="-1"/>' for i in range(size // 55))
    return XML.replace("@", text).encode()


def _attributes(size: int) -> bytes:
    return ("<collective " + " ".join(f'a{i}=""' for i in range(size // 11)) + ' nodes="2"/>').encode()


def _groups(size: int) -> bytes:
    text = "".join(f'<group level="0" id="{i}" param_file="a"/>' for i in range(1, size // 46))
    return TREE.replace("@", text).encode()


def _nodes(size: int) -> bytes:
    count = size // 18
    text = "".join(f'<node id="{i}"/>' for i in range(count))
    return f'<topo num_nodes="{count}"><group level="0" id="0" param_file="a">{text}</group></topo>'.encode()


def _book(size: int) -> bytes:
    """Of pages that all share one member and no program."""
    header, page = struct.Struct("<8sIIQQ8I"), struct.Struct("<IiIIQQiIIIdQ")
    count = size // page.size
    body = b"t" + bytes(7) + bytes(8) + page.pack(6, -1, 0, 1, 0, 2**64 - 1, -1, 0, 0, 0, 0.0, 0) * count
    head = header.size + len(body)
    rest = header.pack(b"ANTIBOOK", 1, 0, head, head, 1, count, 0, 1, 0, 1, 0, 0)[16:] + body
    return b"ANTIBOOK" + struct.pack("<II", 1, zlib.crc32(rest)) + rest


def _columns(size: int) -> bytes:
    names = [f"GPU{i}" for i in range(120)]
    rows = [f"{name} " + " ".join(["NV1"] * 120) for name in names]
    return ("\n".join([" ".join(names), *rows * max(1, size // 60_000)]) + "\n").encode()


def _switches(size: int) -> bytes:
    return "".join(f"SwitchName={i} Nodes={i}\n" for i in range(size // 30)).encode()


def _cabled(size: int) -> bytes:
    head = 'Switch 1 "S-1"\n'
    return (head + "".join(f'[{i}] "H-{i:x}"[1]\n' for i in range(size // 18))).encode()


def _named_switches(size: int) -> bytes:
    return "".join(f'Switch 1 "S-{i:x}"\n' for i in range(size // 17)).encode()


def _ns3(size: int) -> bytes:
    count = size // 18
    return (f"9 1 {count}\n8\n" + "0 1 1Gbps 1ns 0\n" * count).encode()


def _ns3_kinds(size: int) -> bytes:
    count = size // 20
    return (f"9 1 {count}\n8\n" + "".join(f"0 1 {i}bps 1ns 0\n" for i in range(1, count + 1))).encode()


def _tacos(size: int) -> bytes:
    return ("NPUs Count,9\nSrcID,DestID,Latency (ns),Bandwidth (GB/s)\n" + "0,1,5,1\n" * (size // 8)).encode()


def _slots(size: int) -> bytes:
    return b"<system><cpu>" + b"<pci/>" * (size // 6) + b"</cpu></system>"


def _dims(size: int) -> bytes:
    return b'{"units-count":[2],"a":[' + b",".join([b"1"] * (size // 2)) + b"]}"


def _length(count: int) -> bytes:
    out = b""
    while count > 127:
        out, count = out + bytes([count & 127 | 128]), count >> 7
    return out + bytes([count])


def _field(data: bytes) -> bytes:
    """Its length, and then the bytes, as protocol buffers have texts and messages."""
    return _length(len(data)) + data


def _inner(*parts: bytes) -> bytes:
    """The last of them in a field behind the one before, all that in one behind the one before that, and so on."""
    *heads, made = parts
    for head in reversed(heads):
        made = head + _field(made)
    return made


def _chakra(size: int) -> bytes:
    """Nodes with a number, a kind, an attribute, and what they wait for."""
    made = (b"\x08" + _length(i) + b"\x18\x04\x2a" + _field(_length(max(i - 1, 1))) for i in range(1, size // 40))
    return HEAD + b"".join(_field(b"\x12\x08all kind" + one + b"\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x01") for one in made)


JOB = '{"distributedInfo":{"rank":0,"world_size":2},"traceEvents":[@]}'
WORK = '{"ph":"X","cat":"cpu_op","ts":1.5,"dur":2,"tid":2,"name":"a"}'
CALL = (
    '{"ph":"X","cat":"cpu_op","ts":1.5,"dur":2,"name":"c10d::allreduce_","args":{"Input Dims":[[[5]]]}},'
    '{"ph":"X","cat":"x","ts":2,"dur":2,"tid":2,"name":"gloo:all_reduce"},'
    '{"ph":"X","cat":"cpu_op","ts":1,"dur":9,"name":"a"}'
)
LINE = (
    '{"header":{"rank":0,"n_ranks":2},"coll_perf":{"coll":"AllReduce","coll_msg_size_bytes":8,"coll_exec_time_us":1}}'
)
HEAD = b"\x07\x0a\x050.0.4"
EMPTY = ",".join(f'"{name}":[]' for name in COLUMNS)
BLOCK = '{"pre":[0],"post":[1]}'
TREE = '<topo num_nodes="1" num_levels="1">@<group level="0" id="0" param_file="a"><node id="0"/></group></topo>'
XML = '<collective nodes="2" buffer_size="1">@</collective>'
Shape = Callable[[int], bytes]
# What is loaded, by which function, and what it is full of.
SHAPES: dict[str, tuple[str, Shape]] = {
    "topology: links": ("json", lambda n: around(TOPOLOGY + KIND + ',"links":[@]}', "[0,1,0]", n)),
    "topology: kinds of links": (
        "json", lambda n: around(TOPOLOGY + '"types":[@],"links":[]}', '{"kind":"a","bandwidth":1}', n)),
    "topology: limits": ("json", lambda n: around(
        TOPOLOGY + KIND + ',"links":[[0,1,0]],"limits":[@]}', '{"name":"","links":[0],"bandwidth":1}', n)),
    "topology: links of a limit": ("json", lambda n: around(
        TOPOLOGY + KIND + ',"links":[[0,1,0]],"limits":[{"name":"","links":[@],"bandwidth":1}]}', "0", n)),
    "topology: places": ("json", lambda n: around(TOPOLOGY + KIND + ',"links":[],"places":[@]}', '""', n)),
    "topology: nested": ("json", lambda n: b"[" * n),
    "collective: members": ("json", lambda n: around(GATHER + '"members":[@]}', "0", n)),
    "collective: weights": ("json", lambda n: around(GATHER + '"weights":[@]}', "1", n)),
    "collective: blocks": ("json", lambda n: around(COLLECTIVE + '"ranks":2,"blocks":[@]}', BLOCK, n)),
    "collective: empty blocks": (
        "json", lambda n: around(COLLECTIVE + '"ranks":2,"blocks":[@]}', '{"pre":[],"post":[]}', n)),
    "collective: who has a block": (
        "json", lambda n: around(COLLECTIVE + '"ranks":2,"blocks":[{"pre":[@],"post":[0]}]}', "0", n)),
    "collective: who has what": (
        "json", lambda n: around(COLLECTIVE + '"ranks":2,"blocks":[{"pre":[@],"post":[0]}]}', "[0,0]", n)),
    "collective: who wants a block": (
        "json", lambda n: around(COLLECTIVE + '"ranks":2,"blocks":[{"pre":[0],"post":[@]}]}', "0", n)),
    "collective: who wants what": ("json", lambda n: around(
        COLLECTIVE + '"ranks":2,"blocks":[{"pre":[0],"post":[@]}]}', '{"rank":0,"ids":[0]}', n)),
    "plan: columns of zeros": ("plan", columns),
    "plan: columns of numbers": ("plan", lambda n: columns(n, "70000")),
    "plan: all columns": ("plan", lambda n: columns(n, "0", (*COLUMNS, "route", "src_slot", "dst_slot"))),
    "plan: routes": ("plan", lambda n: around(plan(f'{CHUNKS},{EMPTY},"routes":[@]'), "[0]", n)),
    "plan: empty routes": ("plan", lambda n: around(plan(f'{CHUNKS},{EMPTY},"routes":[@]'), "[]", n)),
    "plan: pieces": ("plan", lambda n: around(plan(f'{CHUNKS},{EMPTY},"pieces":[@]'), "1", n)),
    "plan: local work": (
        "plan", lambda n: around(plan(f'{CHUNKS},{EMPTY},"local":[@]'), '{"kind":"a","share":1}', n)),
    "plan: claims": ("plan", lambda n: around(plan(f"{CHUNKS},{EMPTY}", ',"claims":{"a":[@]}'), "[]", n)),
    "plan: claims of objects": ("plan", lambda n: around(plan(f"{CHUNKS},{EMPTY}", ',"claims":{"a":[@]}'), "{}", n)),
    "plan: provenance": ("plan", lambda n: around(plan(f'{CHUNKS},{EMPTY},"provenance":{{"a":[@]}}'), '"a"', n)),
    "plan: entries": ("plan", lambda n: around(
        f'{{"format":"antiphon-plan","version":1,{INNER},"entries":[@]}}', f'{{"schedule":{{{CHUNKS},{EMPTY}}}}}', n)),
    "plan: chunks": ("plan", lambda n: around(
        plan(f'"chunks":{{"block":[@],"offset":[0],"share":[1],"denominator":1}},{EMPTY}'), "0", n)),
    "table: plans": ("plan", _numbered),
    "profile: alpha": ("profile", lambda n: keyed(PROFILE + '"alpha":{@}}', n)),
    "profile: levels": ("profile", lambda n: around(
        PROFILE + '"loggp":{"levels":[@]}}',
        '{"within":"","sizes":[1],"L":[0],"o_s":[0],"o_r":[0],"g":[0],"G":[0]}', n)),
    "measurements: genmodel": ("measured", lambda n: lines("plan,ranks,nbytes,seconds", "cps,2,1,1", n)),
    "measurements: memory": ("added", lambda n: lines("vectors,nbytes,seconds", "2,1,1", n)),
    "measurements: loggp": ("trips", lambda n: lines("kind,n,delay,nbytes,seconds", "rtt,2,1,1,1", n)),
    "measurements: empty lines": ("added", lambda n: lines("vectors,nbytes,seconds", "", n)),
    "measurements: one long line": ("added", lambda n: around("vectors,nbytes,seconds\n@", "1", n)),
    "figures": ("figures", _rows),
    "figures: one long line": ("figures", lambda n: around("@", "1", n)),
    "xml: transfers": ("schedule", _transfers),
    "xml: waits": ("schedule", lambda n: around(
        '<collective nodes="2" buffer_size="1"><transfer id="0" size="1" src="0" dst="1" deps="-1"/>'
        '<transfer id="1" size="1" src="0" dst="1" deps="@"/></collective>', "0", n)),
    "xml: attributes": ("schedule", _attributes),
    "xml: nested": ("schedule", lambda n: around(XML, "<a>", n, "")),
    "xml: a long attribute": ("schedule", lambda n: around('<collective nodes="2" name="@"/>', "aa", n, "a")),
    "xml: an open tag": ("schedule", lambda n: b"<" + b"a" * n),
    "xml: groups": ("machine", _groups),
    "xml: nodes": ("machine", _nodes),
    "book: pages": ("table", _book),
    "probe: a matrix of NVLinks": ("nvidia-smi", _columns),
    "probe: GPUs with their names": (
        "nvidia-smi", lambda n: b"".join(b"GPU %d: a\n" % i for i in range(min(n // 9, 9999)))),
    "probe: links of a GPU": ("nvidia-smi", lambda n: lines("GPU 0: a", "Link 1: 25 GB/s", n)),
    "probe: slots of PCIe": ("nccl-xml", _slots),
    "probe: slots in slots": ("nccl-xml", lambda n: b"<system><cpu>" + b"<pci>" * (n // 5)),
    "probe: GPUs of NCCL": ("nccl-xml", lambda n: around("<system>@</system>", "<gpu/>", n, "")),
    "probe: NVLinks of NCCL": (
        "nccl-xml", lambda n: around("<system><gpu>@</gpu></system>", '<nvlink count="1"/>', n, "")),
    "probe: cards of NCCL": ("nccl-xml", lambda n: around("<system>@</system>", "<net/>", n, "")),
    "probe: channels": ("nccl-xml", lambda n: around(
        '<graphs><graph pattern="4" speedintra="1">@</graph></graphs>', '<channel><gpu dev="1"/></channel>', n, "")),
    "probe: tables of rocm-smi": ("rocm-smi", lambda n: lines("GPU0 GPU1", "GPU0 0 15", n)),
    "probe: JSON of rocm-smi": ("rocm-smi", lambda n: keyed('{"system":{@}}', n)),
    "probe: objects of rocm-smi": ("rocm-smi", lambda n: around('{"system":{"a":[@]}}', "{}", n)),
    "probe: devices of hwloc": ("hwloc", lambda n: around("<topology>@</topology>", '<object type="PCIDev"/>', n, "")),
    "probe: cores of hwloc": ("hwloc", lambda n: around("<topology>@</topology>", '<object type="Core"/>', n, "")),
    "probe: bandwidths of hwloc": ("hwloc", lambda n: around(
        '<topology><distances2 name="NVLinkBandwidth"><u64values>@</u64values></distances2></topology>', "1", n, " ")),
    "probe: cables": ("ibnetdiscover", _cabled),
    "probe: switches of InfiniBand": ("ibnetdiscover", _named_switches),
    "probe: switches of Slurm": ("slurm", _switches),
    "probe: one list of hosts": ("slurm", lambda n: around("SwitchName=a Nodes=@", "a", n)),
    "probe: ranges of hosts": (
        "slurm", lambda n: lines("SwitchName=a Nodes=a[1-9999]", "SwitchName=b Nodes=b[1-9999]", n)),
    "probe: links of ns-3": ("netfiles", _ns3),
    "probe: kinds of links of ns-3": ("netfiles", _ns3_kinds),
    "probe: links of TACOS": ("netfiles", _tacos),
    "probe: dimensions": ("netfiles", _dims),
    "probe: values of YAML": ("netfiles", lambda n: lines("topology:", "- Ring", n)),
    "trace: events": ("trace", lambda n: around('{"traceEvents":[@]}', '{"ph":"M"}', n)),
    "trace: events of usual length": ("trace", lambda n: around(
        '{"traceEvents":[@]}', '{"ph":"X","ts":1.5,"dur":2,"pid":1,"tid":2,"name":"a","args":{"b":1}}', n)),
    "trace: args": ("trace", lambda n: keyed('{"traceEvents":[{"ph":"M","args":{@}}]}', n)),
    "trace: about itself": ("trace", lambda n: around('{"traceEvents":[],"otherData":{"a":[@]}}', "[]", n)),
    "job: computation": ("job", lambda n: around(JOB, WORK, n)),
    "job: calls": ("job", lambda n: around(JOB, CALL, n)),
    "job: lines": ("job", lambda n: filled("", LINE, "\n", n, joint="\n")),
    "chakra: nodes": ("chakra", lambda n: HEAD + b"\0" * n),
    "chakra: nodes of usual length": ("chakra", _chakra),
    "chakra: attributes": ("chakra", lambda n: HEAD + _field(b"".join(
        b"\x52\x08\x0a\x06%06d" % i for i in range(n // 10)))),
    "chakra: values": ("chakra", lambda n: HEAD + _inner(b"", b"\x52", b"\x52", b"\x0a", bytes(n))),
    "chakra: texts": ("chakra", lambda n: HEAD + _inner(b"", b"\x52", b"\xf2\x01", b"\x0a\x02aa" * (n // 4))),
    "chakra: waits": ("chakra", lambda n: HEAD + _inner(b"", b"\x08\x80\x7f\x2a", b"\x80\x7f" * (n // 2))),
    "gzip: zeros": ("json", lambda n: gzip.compress(bytes(n * 200), 9)),
    "gzip: links": ("json", lambda n: gzip.compress(SHAPES["topology: links"][1](n * 100), 9)),
}  # fmt: skip


def loader(kind: str) -> Callable[[Path], object]:
    from antiphon.core.files import read_bytes
    from antiphon.core.serialize import loads
    from antiphon.cost import load_profile
    from antiphon.cost.fit.loggp_tables import read_round_trips
    from antiphon.cost.fit.tables import read_addition_times, read_plan_times
    from antiphon.formats.chakra.nodes import read_nodes, topological_order
    from antiphon.formats.chrome import ChromeTrace
    from antiphon.formats.jobs import read_recording
    from antiphon.formats.piccl import readers as piccl
    from antiphon.formats.piccl.figures import read_figures
    from antiphon.formats.probe.table import SOURCES, read
    from antiphon.runtimes.serve.book import read_table
    from antiphon.select import load_plans

    if kind in SOURCES:
        return lambda path: read([str(path)], kind)
    return {
        "json": lambda path: loads(read_bytes(path)), "plan": load_plans, "profile": load_profile, "table": read_table,
        "measured": read_plan_times, "added": read_addition_times, "trips": read_round_trips, "figures": read_figures,
        "schedule": piccl.read_schedule, "machine": piccl.read_topology,
        "trace": lambda path: ChromeTrace("a", read_bytes(path)),
        "job": lambda path: read_recording([path]),
        "chakra": lambda path: list(topological_order(read_nodes(read_bytes(path))[1])),
    }[kind]  # fmt: skip


def status(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def one(name: str, size: int, folder: Path) -> dict[str, object]:
    """In a fork, so that its peak is its own: load a small one, then this one."""
    from antiphon.errors import AntiphonError

    gc.freeze()  # what was there before the fork need not be looked at again and again
    kind, shape = SHAPES[name]
    load = loader(kind)
    (folder / "a").write_bytes(b"s,L,o_s,o_r,g,G\n1,0,0,0,0,0\n")
    path = folder / "file"
    for n in (1000, size):
        path.write_bytes(shape(n))
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before, begin = status("VmRSS"), time.process_time()
        try:
            load(path)
            said = "loads"
        except AntiphonError as error:
            said = str(error).replace(str(path), "FILE")
        spent, peak = time.process_time() - begin, status("VmHWM") - before
    length = path.stat().st_size
    return {"bytes": length, "peak": peak, "times": round(peak / length, 2), "seconds": round(spent, 2), "said": said}


def forked(name: str, size: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        process = os.fork()
        if not process:
            with contextlib.suppress(BaseException):
                Path(folder, "found").write_text(json.dumps(one(name, size, Path(folder))))
            os._exit(0)
        os.waitpid(process, 0)
        found = Path(folder, "found")
        if not found.exists():
            sys.exit(f"{name}: the process that loads it has died")
        loaded: dict[str, object] = json.loads(found.read_text())
        return loaded


def measured(sizes: list[int], only: str) -> Iterator[tuple[str, int, dict[str, object]]]:
    for name in SHAPES:
        for size in sizes:
            if only in name:
                yield name, size, forked(name, size * MB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,10,50", help="of the files, in MB")
    parser.add_argument("--only", default="", help="shapes whose name has this in it")
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    print_machine()
    for kind in {kind for kind, _ in SHAPES.values()}:
        loader(kind)
    rows, worst = [], 0.0
    for name, size, found in measured([int(size) for size in asked.sizes.split(",")], asked.only):
        unpacked = name.startswith("gzip")  # there the limit on what it becomes holds
        if not unpacked:
            worst = max(worst, float(str(found["times"])))
        rows.append([name, size, found["bytes"], found["times"], found["seconds"], str(found["said"])[:60]])
        print(*rows[-1], sep="\t", file=sys.stderr, flush=True)
    print_table(["what it is full of", "MB asked", "bytes", "times the file", "CPU s", "what comes of it"], rows)
    print(f"worst: {worst:.1f} times the file (at most {MOST:g})")
    if asked.save:
        save("loaders", {"rows": rows, "worst": worst})
    sys.exit(worst > MOST)


if __name__ == "__main__":
    main()
